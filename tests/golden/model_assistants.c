/* SPDX-License-Identifier: MIT */
/* Drafters that read their target's keys, against transformers (tests/golden/README.md, assistants/): the logits of
 * each draft after a prompt, on every backend of this machine, each draft fed with the token that the reference
 * drafted. Goal: largest error <= 2e-4 of the range of what a prompt's drafts expect. Drafts of all prompts in one step
 * have the bits of each alone. What cannot draft for a model is refused with one line. */
#include "model/assistant.h"
#include "tests/support/golden_drafts.h"
#include "tests/support/model_harness.h"
#include "tests/support/gguf_edit.h"

/* A model that drafts for that of the harness, and what a step of it needs. */
typedef struct drafting {
  harness *h;
  weft_gguf *gguf;
  weft_model *model;
  const weft_model_info *info;
  float *newest, *pair, *hidden, *logits; /* newest: [GOLDEN_DRAFTS_CASES][n_hidden of the target] */
  uint8_t *bad;
  int32_t *token;
  void *scratch;
  uint64_t scratch_bytes;
} drafting;

/* ---- a drafter ---- */

static const char *path_of(const char *folder, const char *name) {
  static char path[600];
  (void)snprintf(path, sizeof path, "%s/tests/golden/%s/%s", WEFT_SOURCE_DIR, folder, name);
  return path;
}

static void open_drafter(drafting *d, harness *h, const golden_drafts *g) {
  weft_error error = {{0}};
  const weft_model_limits limits = {
      .rows_max = GOLDEN_DRAFTS_CASES, .segments_max = GOLDEN_DRAFTS_CASES, .target = h->model};
  memset(d, 0, sizeof *d);
  d->h = h;
  d->gguf = harness_gguf(path_of("assistants", g->gguf));
  weft_status status = weft_model_open(d->gguf, &h->split, &limits, NULL, NULL, &d->model, &error);
  if (status != WEFT_OK) harness_die(g->gguf, status, error.text);
  d->info = weft_model_get_info(d->model);
  float cap, scale;
  weft_head_rows_args rows = {.weight = weft_model_head(d->model, &cap, &scale), .n_rows = GOLDEN_DRAFTS_CASES};
  d->scratch_bytes = weft_head_rows_scratch(h->device, &rows) + 64;
  status = weft_device_alloc(h->device, d->scratch_bytes, &d->scratch);
  if (status != WEFT_OK) harness_die(g->gguf, status, "scratch");
  d->newest = harness_memory(h, (size_t)GOLDEN_DRAFTS_CASES * h->info->n_hidden, sizeof *d->newest);
  d->pair = harness_memory(h, (size_t)2 * GOLDEN_DRAFTS_CASES * h->info->n_hidden, sizeof *d->pair);
  d->hidden = harness_memory(h, (size_t)GOLDEN_DRAFTS_CASES * d->info->n_hidden, sizeof *d->hidden);
  d->logits = harness_memory(h, (size_t)GOLDEN_DRAFTS_CASES * GOLDEN_DRAFTS_VOCAB, sizeof *d->logits);
  d->bad = harness_memory(h, GOLDEN_DRAFTS_CASES, 1);
  d->token = harness_memory(h, GOLDEN_DRAFTS_CASES, sizeof *d->token);
}

static void close_drafter(drafting *d) {
  void *const memory[] = {d->newest, d->pair, d->hidden, d->logits, d->bad, d->token};
  for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) harness_release(d->h, memory[i]);
  weft_device_free(d->h->device, d->scratch);
  weft_model_close(d->model);
  weft_gguf_close(d->gguf);
}

/* The target computes the prompt; its last hidden row is kept. */
static void run_prompt(drafting *d, golden_drafts *g, uint32_t i) {
  golden_prompt *p = &g->prompt[i];
  float logits[GOLDEN_DRAFTS_VOCAB];
  harness_seq_open(&p->seq);
  const harness_piece piece = {.seq = &p->seq, .tokens = p->token, .n = p->n, .output = OUT_LAST, .logits = logits};
  harness_run(d->h, &piece, 1);
  memcpy(d->newest + (size_t)i * d->h->info->n_hidden, d->h->hidden, d->h->info->n_hidden * sizeof *d->newest);
}

static void find_logits(drafting *d, uint32_t n) {
  float cap, scale;
  weft_head_rows_args args = {.h = d->hidden,
                              .weight = weft_model_head(d->model, &cap, &scale),
                              .logits = d->logits,
                              .bad = d->bad,
                              .n_rows = n,
                              .h_stride = d->info->n_hidden,
                              .logits_stride = d->info->n_vocab,
                              .scratch = d->scratch,
                              .scratch_bytes = d->scratch_bytes};
  args.cap = cap;
  weft_status status = weft_head_rows(d->h->device, &args);
  if (status != WEFT_OK) harness_die("head", status, "");
  harness_settle(d->h);
}

/* The drafts of prompts first .. first + n - 1 in the same steps: logits [n][n_drafts][n_vocab]. */
static void run_drafts(drafting *d, golden_drafts *g, uint32_t first, uint32_t n, float *out) {
  uint32_t n_groups = d->h->layout.n_groups, hidden = d->h->info->n_hidden, row[GOLDEN_DRAFTS_CASES];
  harness_arrays a = harness_arrays_open(n, n, n_groups);
  weft_batch batch = {.n_rows = n,
                      .n_stored = n,
                      .n_encoder = n,
                      .n_segments = n,
                      .n_groups = n_groups,
                      .token = a.token,
                      .position = a.position,
                      .segment = a.segment,
                      .table = a.table,
                      .table_at = a.table_at};
  for (uint32_t grp = 0; grp < n_groups; grp++) batch.kv_slot[grp] = a.slot[grp];
  for (uint32_t i = 0; i < n; i++) {
    golden_prompt *p = &g->prompt[first + i];
    row[i] = i;
    a.position[i] = (int32_t)p->n;
    a.segment[i] = (weft_segment){.first_row = i, .n_rows = 1, .kv_len = p->n - 1, .n_outputs = 1};
    for (uint32_t grp = 0; grp < n_groups; grp++) {
      a.table_at[i * n_groups + grp] = a.n_table;
      memcpy(a.table + a.n_table, p->seq.table[grp], p->seq.n_entries[grp] * sizeof *a.table);
      a.n_table += p->seq.n_entries[grp];
    }
    memcpy(d->pair + (size_t)(2 * i + 1) * hidden, d->newest + (size_t)(first + i) * hidden, hidden * sizeof *d->pair);
  }
  assistant_args args = {.model = d->model,
                         .batch = &batch,
                         .kv = d->h->kv,
                         .layout = &d->h->layout,
                         .token = d->token,
                         .pair = d->pair,
                         .hidden = d->hidden,
                         .row = row};
  for (uint32_t k = 0; k < g->n_drafts; k++) {
    for (uint32_t i = 0; i < n; i++) d->token[i] = g->prompt[first + i].drafted[k];
    args.again = k > 0;
    weft_status status = assistant_step(&args);
    if (status != WEFT_OK) harness_die(g->gguf, status, "a step");
    find_logits(d, n);
    for (uint32_t i = 0; i < n; i++)
      memcpy(out + ((size_t)i * g->n_drafts + k) * g->n_vocab, d->logits + (size_t)i * g->n_vocab,
             g->n_vocab * sizeof *out);
  }
  harness_arrays_close(&a);
}

/* ---- what holds ---- */

static void run_golden(const char *name, const harness_options *options) {
  static golden_drafts g;
  harness h;
  drafting d;
  double worst = 0;
  golden_drafts_read(&g, name);
  harness_open(&h, path_of("models", g.target), options);
  open_drafter(&d, &h, &g);
  size_t n = (size_t)g.n_drafts * g.n_vocab;
  float *all = harness_alloc(g.n_prompts * n, sizeof *all), *one = harness_alloc(n, sizeof *one);
  for (uint32_t i = 0; i < g.n_prompts; i++) run_prompt(&d, &g, i);
  run_drafts(&d, &g, 0, g.n_prompts, all);
  for (uint32_t i = 0; i < g.n_prompts; i++) {
    worst = fmax(worst, golden_drafts_judge(&g, i, all + i * n));
    run_drafts(&d, &g, i, 1, one);
    if (memcmp(one, all + i * n, n * sizeof *one) != 0) harness_die(g.gguf, WEFT_E_INVALID, "a draft alone differs");
    harness_seq_close(&g.prompt[i].seq);
  }
  (void)printf("%-4s %-9s %-8s %u prompts, worst error %.2e\n", options->backend, weft_device_get_info(h.device)->isa,
               name, g.n_prompts, worst);
  free(all);
  free(one);
  free(g.floats);
  close_drafter(&d);
  harness_close(&h);
}

/* ---- refusals ---- */

static void need_line(weft_status status, const weft_error *error, const char *why) {
  if (status == WEFT_OK || strstr(error->text, why) == NULL || strchr(error->text, '\n') != NULL)
    harness_die(why, status, error->text);
}

/* The drafter for ar-dense with one thing changed, or another file, is opened for a target. */
static void refuse(const char *path, const char *target, const gguf_edit *edit, const char *why) {
  harness h;
  const harness_options options = {.backend = "ref", .n_threads = 1, .rows_max = 8, .n_pages = 16};
  weft_error error = {{0}};
  weft_model *model = NULL;
  harness_open(&h, harness_tiny(target), &options);
  weft_gguf *gguf = harness_gguf(edit == NULL ? path : gguf_edit_file(path, edit, "drafter"));
  const weft_model_limits limits = {.rows_max = 2, .segments_max = 2, .target = h.model};
  need_line(weft_model_open(gguf, &h.split, &limits, NULL, NULL, &model, &error), &error, why);
  weft_gguf_close(gguf);
  harness_close(&h);
}

/* A target without layers of a kind, and one in two parts: a copy says so. */
static void refuse_targets(const char *path) {
  static weft_model target;
  static model_hyper hyper;
  harness h;
  const harness_options options = {.backend = "ref", .n_threads = 1, .rows_max = 8, .n_pages = 16};
  weft_error error = {{0}};
  harness_open(&h, harness_tiny("ar-dense"), &options);
  weft_gguf *gguf = harness_gguf(path);
  target = *h.model;
  memset(target.hyper.window, 0, sizeof target.hyper.window);
  need_line(assistant_read(gguf, &target, &hyper, &error), &error,
            "layer 0 of the drafter reads keys of a layer with a window, and ar-dense has no such layer");
  target = *h.model;
  target.n_parts = 2;
  need_line(assistant_read(gguf, &target, &hyper, &error), &error, "works on one device, and ar-dense lies on several");
  if (assistant_read(gguf, h.model, &hyper, &error) != WEFT_OK) harness_die("the target", WEFT_E_INVALID, error.text);
  weft_gguf_close(gguf);
  harness_close(&h);
}

/* Groups of tokens that a head cannot read. */
static void refuse_groups(const char *drafter) {
  char groups[600];
  (void)snprintf(groups, sizeof groups, "%s",
                 gguf_edit_join(drafter, path_of("assistants", "centroids.gguf"), "groups"));
  const gguf_edit uneven = {.reshape = "masked_embd_centroids.weight"}, order = {.drop_tensor = "masked_embd_ordering"},
                  far = {.bad_integer = "masked_embd_ordering"},
                  type = {.retype = "masked_embd_ordering", .type = WEFT_TYPE_F32},
                  most = {.set_u32 = "gemma4-assistant.centroid_top_k", .value = 17};
  refuse(groups, "ar-dense", &uneven, "has 15 groups, in which 128 tokens cannot lie evenly");
  refuse(groups, "ar-dense", &order, "'masked_embd_ordering' is missing");
  refuse(groups, "ar-dense", &far, "names token 1000 at place 0; there are 128");
  refuse(groups, "ar-dense", &type, "has type F32; a table of tokens is of type I32");
  refuse(groups, "ar-dense", &most, "gemma4-assistant.centroid_top_k");
}

static void run_refusals(void) {
  char path[600];
  (void)snprintf(path, sizeof path, "%s", path_of("assistants", "dense.gguf"));
  const gguf_edit width = {.set_u32 = "gemma4-assistant.embedding_length_out", .value = 48},
                  window = {.set_u32 = "gemma4-assistant.attention.sliding_window", .value = 4},
                  heads = {.set_u32 = "gemma4-assistant.attention.key_length_swa", .value = 24},
                  vocabulary = {.reshape = "token_embd.weight"}, back = {.drop_tensor = "nextn.post_projection.weight"},
                  more = {.add_scalar = "blk.0.attn_spare.weight", .real = 1.0f};
  refuse(path, "ar-dense", &width, "hidden rows have 48 numbers; those of ar-dense have 32");
  refuse(path, "ar-dense", &window, "a window of 4; the keys of ar-dense that it would read are of");
  refuse(path, "ar-dense", &heads, "gemma4-assistant.");
  refuse(path, "ar-dense", &vocabulary, "it has 127 tokens and ar-dense has 128");
  refuse(path, "ar-dense", &back, "'nextn.post_projection.weight' is missing");
  refuse(path, "ar-dense", &more, "'blk.0.attn_spare.weight' is not used");
  refuse(path, "qwen3-base", NULL, "drafts for gemma4 models, and qwen3-base is of 'qwen3'");
  refuse(harness_tiny("ar-dense"), "ar-dense", NULL, "it is no drafter of architecture 'gemma4-assistant'");
  refuse_targets(path);
  refuse_groups(path);
  gguf_edit_clean();
}

int main(void) {
  static const char *const names[] = {"dense", "shared"};
  static const harness_options ways[] = {
      {.backend = "ref", .n_threads = 1, .block_tokens = 4, .rows_max = 64, .n_pages = 1024},
      {.backend = "cpu", .n_threads = 2, .rows_max = 64, .n_pages = 1024},
      {.backend = "cpu", .isa = "portable", .n_threads = 1, .block_tokens = 8, .rows_max = 64, .n_pages = 1024},
      {.backend = "cpu", .isa = "avx2", .n_threads = 1, .block_tokens = 1, .rows_max = 64, .n_pages = 2048},
      {.backend = "cuda", .rows_max = 64, .n_pages = 1024},
      {.backend = "cuda", .block_tokens = 4, .rows_max = 64, .n_pages = 1024},
  };
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    weft_device_config config = {.backend = ways[i].backend, .n_threads = 1, .isa = ways[i].isa};
    weft_device *device;
    weft_error error = {{0}};
    weft_status status = weft_device_open(&config, &device, &error);
    if (status != WEFT_OK && ways[i].isa == NULL && strcmp(ways[i].backend, "cuda") != 0)
      harness_die(ways[i].backend, status, error.text);
    if (status != WEFT_OK) {
      (void)printf("%s %s: not on this machine\n", ways[i].backend, ways[i].isa != NULL ? ways[i].isa : "");
      continue;
    }
    weft_device_close(device);
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) run_golden(names[k], &ways[i]);
  }
  run_refusals();
  return 0;
}
