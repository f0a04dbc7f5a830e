/* SPDX-License-Identifier: MIT */
/* The layer of a file that guesses tokens ahead, a drafter that fills blocks (model/dflash.h), and one that reads keys
 * (model/assistant.h, alone in golden/model_assistants), whose head may read the tokens of a few groups alone, by the
 * runner that drafts with it, on a card as graphs, against transformers' classes or layers put together of these
 * (tests/golden/README.md, assistants/): the logits of each draft after a prompt, on every backend of this machine.
 * Goal: largest error <= 2e-4 of the range of what a prompt's drafts expect. Drafts have the same bits alone and beside
 * others, after a prompt in any chunks, and after runs whose drafts were partly wrong. What cannot draft is refused
 * with one line. */
#include "model/nextn.h"
#include "model/runner/runner_ways.h"
#include "tests/support/gguf_edit.h"
#include "tests/support/golden_drafts.h"

enum { SLOTS = 12, ROWS = 160, MOST = 6, TEXT_MAX = 256 };

typedef struct drafting {
  harness *h;
  weft_model *layer;
  weft_runner *runner;
  float *logits;
  uint8_t *bad;
  void *scratch;
  uint64_t scratch_bytes, n_steps;
} drafting;

typedef struct text {
  harness_seq seq;
  int32_t token[TEXT_MAX]; /* the last one has no keys yet */
  uint32_t n;
} text;

static const weft_sampling plain = {.temperature = 0.0f, .top_p = 1.0f, .repetition_penalty = 1.0f};

static const char *path_of(const char *name) {
  static char path[600];
  (void)snprintf(path, sizeof path, "%s/tests/golden/assistants/%s", WEFT_SOURCE_DIR, name);
  return path;
}

static void need(weft_status status, const char *what, const weft_error *error) {
  if (status != WEFT_OK) harness_die(what, status, error == NULL ? "" : error->text);
}

/* blocks: the file of a drafter that fills blocks; NULL: the layer of the model's file drafts. */
static void open_drafting(drafting *d, harness *h, const weft_gguf *blocks) {
  weft_error error = {{0}};
  float cap, scale;
  weft_model_limits limits = {.rows_max = ROWS,
                              .canvas_rows_max = SLOTS * (MOST + 2),
                              .segments_max = ROWS,
                              .target = h->model,
                              .nextn = blocks == NULL};
  memset(d, 0, sizeof *d);
  d->h = h;
  need(weft_model_open(blocks == NULL ? h->gguf : blocks, &h->split, &limits, NULL, NULL, &d->layer, &error),
       "the layer", &error);
  limits.canvas_rows_max = ROWS;
  const weft_device_runner_config config = {.model = h->model,
                                            .store = h->kv,
                                            .layout = &h->layout,
                                            .name = "nextn",
                                            .limits = limits,
                                            .n_slots = SLOTS,
                                            .assistant = d->layer,
                                            .draft_rows_max = 32,
                                            .seq_tokens_max = TEXT_MAX};
  need(weft_device_runner_open(&config, &d->runner, NULL, &error), "the runner", &error);
  weft_head_rows_args rows = {.weight = weft_model_head(d->layer, &cap, &scale), .n_rows = SLOTS};
  d->scratch_bytes = weft_head_rows_scratch(h->device, &rows) + 64;
  need(weft_device_alloc(h->device, d->scratch_bytes, &d->scratch), "scratch", NULL);
  d->logits = harness_memory(h, (size_t)SLOTS * GOLDEN_DRAFTS_VOCAB, sizeof *d->logits);
  d->bad = harness_memory(h, SLOTS, 1);
}

static void close_drafting(drafting *d) {
  d->runner->ops->close(d->runner);
  harness_release(d->h, d->logits);
  harness_release(d->h, d->bad);
  weft_device_free(d->h->device, d->scratch);
  weft_model_close(d->layer);
}

/* ---- steps ---- */

static weft_batch batch_of(const drafting *d, const harness_arrays *a, weft_batch counts) {
  counts.token = a->token;
  counts.position = a->position;
  counts.segment = a->segment;
  counts.table = a->table;
  counts.table_at = a->table_at;
  counts.state = a->state;
  counts.n_states = a->n_states;
  for (uint32_t g = 0; g < counts.n_groups; g++)
    counts.kv_slot[g] = d->h->layout.group[g].state_pages > 0 ? NULL : a->slot[g];
  return counts;
}

/* Rows of a text from its last key on; the last n_sampled of them draw. Returns how many of these drew what follows. */
static uint32_t run_rows(drafting *d, text *t, uint32_t slot, const int32_t *token, uint32_t n, uint32_t n_sampled) {
  harness_arrays a = harness_arrays_open(n, 1, d->h->layout.n_groups);
  weft_batch batch = {.n_groups = d->h->layout.n_groups, .number = ++d->n_steps};
  const harness_piece piece = {.seq = &t->seq, .tokens = token, .n = n};
  uint32_t kv_len = t->seq.n_valid, n_taken = 0;
  weft_step_result result;
  harness_add_piece(d->h, &piece, &batch, &a);
  a.segment[0].slot = slot;
  a.segment[0].first_output = n - n_sampled;
  a.segment[0].n_outputs = n_sampled;
  batch = batch_of(d, &a, batch);
  need(d->runner->ops->submit(d->runner, &batch), "submit", NULL);
  need(d->runner->ops->collect(d->runner, &result), "collect", NULL);
  need(result.status, "a step", NULL);
  if (n_sampled > 0) {
    n_taken = result.result[0].n_taken;
    for (uint32_t i = 0; i < n_taken; i++) t->token[t->n++] = result.result[0].token[i].token;
    t->seq.n_valid = kv_len + n - n_sampled + n_taken;
  }
  harness_arrays_close(&a);
  return n_taken;
}

/* The text, but for what it draws itself, in pieces of `chunk`. */
static void open_text(drafting *d, text *t, uint32_t slot, const int32_t *token, uint32_t n, uint32_t chunk) {
  static const weft_entropy_bound none;
  const weft_slot_params params = {.draws = true,
                                   .sampling = &plain,
                                   .entropy_bound = &none,
                                   .tokens = token,
                                   .n_tokens = n,
                                   .n_prompt = n,
                                   .max_tokens = TEXT_MAX - n};
  need(d->runner->ops->slot_open(d->runner, slot, &params), "a slot", NULL);
  harness_seq_open(&t->seq);
  memcpy(t->token, token, n * sizeof *token);
  t->n = n;
  for (uint32_t at = 0; at < n; at += chunk) {
    uint32_t rows = n - at < chunk ? n - at : chunk;
    (void)run_rows(d, t, slot, token + at, rows, at + rows == n);
  }
}

static void close_text(drafting *d, text *t, uint32_t slot) {
  d->runner->ops->slot_close(d->runner, slot);
  harness_seq_close(&t->seq);
}

/* Tokens whose groups a row does not read are one below the least of the others, as in the makers' class. */
static void fill_unread(const drafting *d, float *logits) {
  const model_draft_sizes *draft = &d->layer->hyper.draft;
  uint32_t n = d->h->info->n_vocab, n_read = 0;
  float least = INFINITY;
  for (uint32_t v = 0; v < n; v++) {
    if (isinf(logits[v])) continue;
    least = fminf(least, logits[v]);
    n_read += 1;
  }
  if (n_read != draft->n_chosen * (n / draft->n_groups))
    harness_die("groups", WEFT_E_INVALID, "another number of tokens");
  for (uint32_t v = 0; v < n; v++)
    if (isinf(logits[v])) logits[v] = least - 1.0f;
}

/* The logits of the last drafts that were made: those of draft k. */
static void find_logits(drafting *d, device_runner *r, uint32_t n, uint32_t k) {
  const uint32_t n_vocab = d->h->info->n_vocab;
  float cap, scale;
  weft_head_rows_args args = {.h = r->assist->hidden,
                              .weight = weft_model_head(d->layer, &cap, &scale),
                              .logits = d->logits,
                              .bad = d->bad,
                              .n_rows = n,
                              .h_stride = r->assist->n_hidden,
                              .logits_stride = n_vocab,
                              .cap = cap,
                              .scratch = d->scratch,
                              .scratch_bytes = d->scratch_bytes};
  if (!runner_heads_apply(r->assist)) {
    need(weft_head_rows(d->h->device, &args), "head", NULL);
  } else {
    need(runner_heads_logits(r, 0, n, k), "logits", NULL);
    need(weft_device_copy(d->h->device, d->logits, r->assist->logits.row, (uint64_t)n * n_vocab * sizeof *d->logits),
         "a copy", NULL);
  }
  harness_settle(d->h);
  for (uint32_t i = 0; d->layer->hyper.draft.n_groups > 0 && i < n; i++) fill_unread(d, d->logits + i * n_vocab);
}

/* n_drafts drafts of the texts, text i in slot first + i: out [n][n_drafts], and the logits of the last ones. */
static void make_drafts(drafting *d, text *const *t, uint32_t first, uint32_t n, uint32_t n_drafts, int32_t *out,
                        float *logits) {
  uint32_t n_groups = d->h->layout.n_groups;
  device_runner *r = (device_runner *)(void *)d->runner;
  harness_arrays a = harness_arrays_open(n, n, n_groups);
  weft_batch counts = {.n_rows = n, .n_stored = n, .n_encoder = n, .n_segments = n, .n_groups = n_groups};
  for (uint32_t i = 0; i < n; i++) {
    a.token[i] = t[i]->token[t[i]->n - 1];
    a.position[i] = (int32_t)t[i]->n - 1;
    a.segment[i] =
        (weft_segment){.slot = first + i, .first_row = i, .n_rows = 1, .kv_len = t[i]->n - 2, .n_outputs = 1};
    for (uint32_t g = 0; g < n_groups; g++) {
      a.table_at[i * n_groups + g] = a.n_table;
      memcpy(a.table + a.n_table, t[i]->seq.table[g], t[i]->seq.n_entries[g] * sizeof *a.table);
      a.n_table += t[i]->seq.n_entries[g];
    }
  }
  const weft_batch batch = batch_of(d, &a, counts);
  need(d->runner->ops->draft(d->runner, &batch, n_drafts, out), "drafts", NULL);
  harness_arrays_close(&a);
  find_logits(d, r, n, n_drafts - 1);
  memcpy(logits, d->logits, (size_t)n * d->h->info->n_vocab * sizeof *logits);
}

/* ---- what holds ---- */

static double check_golden(drafting *d, const golden_drafts *g) {
  static text texts[GOLDEN_DRAFTS_CASES];
  static float got[GOLDEN_DRAFTS_CASES][MOST * GOLDEN_DRAFTS_VOCAB];
  text *t[GOLDEN_DRAFTS_CASES];
  float logits[SLOTS * GOLDEN_DRAFTS_VOCAB], alone[GOLDEN_DRAFTS_VOCAB];
  int32_t out[SLOTS * MOST];
  size_t n = g->n_vocab;
  double worst = 0;
  for (uint32_t i = 0; i < g->n_prompts; i++) {
    t[i] = &texts[i];
    open_text(d, t[i], i, g->prompt[i].token, g->prompt[i].n, TEXT_MAX);
    if (t[i]->token[t[i]->n - 1] != g->prompt[i].drafted[0]) harness_die(g->gguf, WEFT_E_INVALID, "another answer");
  }
  for (uint32_t k = 1; k <= g->n_drafts; k++) {
    make_drafts(d, t, 0, g->n_prompts, k, out, logits);
    for (uint32_t i = 0; i < g->n_prompts; i++) {
      memcpy(got[i] + (k - 1) * n, logits + i * n, n * sizeof *logits);
      for (uint32_t j = 0; j < k; j++)
        if (out[i * k + j] != g->prompt[i].drafted[j + 1]) harness_die(g->gguf, WEFT_E_INVALID, "another draft");
    }
  }
  for (uint32_t i = 0; i < g->n_prompts; i++) {
    worst = fmax(worst, golden_drafts_judge(g, i, got[i]));
    make_drafts(d, &t[i], i, 1, g->n_drafts, out, alone);
    if (memcmp(alone, logits + i * n, n * sizeof *alone) != 0)
      harness_die(g->gguf, WEFT_E_INVALID, "a draft alone differs");
  }
  for (uint32_t i = 0; i < g->n_prompts; i++) close_text(d, t[i], i);
  harness_forget_pages(d->h);
  return worst;
}

/* The drafts behind a text that came to be in steps are those behind the same text as one prompt. */
static void same_as_prompt(drafting *d, text *t, const char *what) {
  static text whole;
  text *one = &whole;
  int32_t out[2][MOST];
  float logits[2][GOLDEN_DRAFTS_VOCAB];
  uint32_t n = t->n - 1;
  open_text(d, one, 1, t->token, n, TEXT_MAX);
  make_drafts(d, &t, 0, 1, MOST, out[0], logits[0]);
  make_drafts(d, &one, 1, 1, MOST, out[1], logits[1]);
  bool same = memcmp(out[0], out[1], sizeof out[0]) == 0 &&
              memcmp(logits[0], logits[1], d->h->info->n_vocab * sizeof logits[0][0]) == 0;
  if (!same || out[0][0] < 0) harness_die(what, WEFT_E_INVALID, "other drafts than behind the same text as a prompt");
  close_text(d, one, 1);
}

/* A text of which the model answers some by itself, and then runs of drafts that are right up to a place. */
static void check_ways(drafting *d, const golden_drafts *g) {
  static text texts;
  text *t = &texts;
  static const uint32_t chunks[] = {1, 3, 64};
  int32_t out[MOST], run[MOST + 1];
  float logits[GOLDEN_DRAFTS_VOCAB];
  uint32_t n_taken = 0;
  for (uint32_t c = 0; c < 3; c++) {
    const golden_prompt *p = &g->prompt[(g->n_prompts > 5 ? 3 : 2) + c]; /* 63, 64 and 65 tokens, but of centroids */
    open_text(d, t, 0, p->token, p->n, chunks[c]);
    same_as_prompt(d, t, "chunks");
    for (uint32_t i = 0; i < 3; i++) (void)run_rows(d, t, 0, &t->token[t->n - 1], 1, 1);
    same_as_prompt(d, t, "one token after another");
    for (uint32_t i = 0; i < 6; i++) {
      make_drafts(d, &t, 0, 1, MOST, out, logits);
      run[0] = t->token[t->n - 1];
      memcpy(run + 1, out, sizeof out);
      if (i % 2 == 1)
        run[i] = (run[i] + 1) % (int32_t)g->n_vocab; /* the drafts up to here may be right, not this one */
      n_taken += run_rows(d, t, 0, run, MOST + 1, MOST + 1) - 1;
      same_as_prompt(d, t, "a run");
    }
    close_text(d, t, 0);
    harness_forget_pages(d->h);
  }
  if (n_taken == 0 || n_taken == 18 * MOST) harness_die(g->gguf, WEFT_E_INVALID, "all drafts were right, or none was");
  (void)printf("%u of %u drafts were right; ", n_taken, 18 * MOST);
}

/* Names that a converter has given to what is in a drafter; NULL: those of the file. */
typedef struct dialect {
  const char *arch, *width, *into, *out_of, *means, *order;
} dialect;

static const dialect dialects[] = {
    {"gemma4_assistant", "gemma4_assistant.n_embd_backbone", "mtp.pre_projection.weight", "mtp.post_projection.weight",
     "mtp.centroids.weight", "mtp.token_ordering.weight"},
    {"gemma4_mtp", "gemma4_mtp.backbone_embedding_length", "mtp_pre_proj.weight", "mtp_post_proj.weight",
     "mtp_centroids.weight", "mtp_token_ordering.weight"},
};

/* The file by other names, one change after another. */
static const char *rename_all(const char *path, const dialect *to) {
  char prefix[40], to_prefix[40];
  (void)snprintf(prefix, sizeof prefix, "gemma4-assistant.");
  (void)snprintf(to_prefix, sizeof to_prefix, "%s.", to->arch);
  const gguf_edit edits[] = {
      {.set_string = "general.architecture", .text = to->arch},
      {.set_u32 = to->width, .value = 32},
      {.drop_key = "gemma4-assistant.embedding_length_out"},
      {.prefix = prefix, .to_prefix = to_prefix},
      {.rename = "nextn.pre_projection.weight", .name = to->into},
      {.rename = "nextn.post_projection.weight", .name = to->out_of},
      {.rename = "masked_embd_centroids.weight", .name = to->means},
      {.rename = "masked_embd_ordering", .name = to->order},
  };
  for (size_t i = 0; i < sizeof edits / sizeof *edits; i++)
    path = gguf_edit_file(path, &edits[i], i % 2 ? "odd" : "even");
  return path;
}

/* A drafter, to which another file may add tensors; NULL: the layer of the model's file drafts. */
static weft_gguf *open_file(const char *name, const golden_drafts *g, const dialect *names) {
  char base[600], own[72];
  if (strncmp(name, "nextn-", 6) == 0) return NULL;
  (void)snprintf(base, sizeof base, "%s", path_of(g->gguf));
  (void)snprintf(own, sizeof own, "%s.gguf", name);
  if (strcmp(own, g->gguf) == 0) return harness_gguf(base);
  const char *path = gguf_edit_join(base, path_of(own), name);
  return harness_gguf(names == NULL ? path : rename_all(path, names));
}

static void run_golden(const char *name, const harness_options *options, const dialect *names) {
  static golden_drafts g;
  harness h;
  drafting d;
  harness_options way = *options;
  golden_drafts_read(&g, name);
  weft_gguf *drafter = open_file(name, &g, names);
  way.nextn = drafter == NULL;
  way.block_drafter = drafter != NULL && weft_model_fills_blocks(drafter) ? drafter : NULL;
  g.target[strcspn(g.target, ".")] = 0;
  harness_open(&h, drafter != NULL ? harness_tiny(g.target) : path_of(g.gguf), &way);
  open_drafting(&d, &h, drafter);
  double worst = check_golden(&d, &g);
  check_ways(&d, &g);
  (void)printf("%-4s %-9s %-10s %u prompts, worst error %.2e\n", options->backend, weft_device_get_info(h.device)->isa,
               name, g.n_prompts, worst);
  free(g.floats);
  close_drafting(&d);
  harness_close(&h);
  weft_gguf_close(drafter);
}

/* ---- refusals ---- */

/* A file, with one thing changed, is opened with a layer that drafts; or its layer for a model without room for it. */
static void refuse(const char *path, const gguf_edit *edit, bool of_layer, uint32_t n_devices, const char *why) {
  weft_device_config config = {.backend = "ref", .n_threads = 1};
  weft_model_limits limits = {.rows_max = 8, .canvas_rows_max = 8, .segments_max = 4, .nextn = !of_layer};
  weft_split split;
  weft_error error = {{0}};
  weft_model *model = NULL, *layer = NULL;
  weft_gguf *gguf = harness_gguf(edit == NULL ? path : gguf_edit_file(path, edit, "layer"));
  if (!split_of(gguf, n_devices, 1, &split)) harness_die(path, WEFT_E_INVALID, "split");
  for (config.index = 0; config.index < n_devices; config.index++)
    need(weft_device_open(&config, &split.device[config.index], &error), "device", &error);
  weft_status status = weft_model_open(gguf, &split, &limits, NULL, NULL, &model, &error);
  limits.target = model;
  limits.nextn = true;
  if (status == WEFT_OK) status = weft_model_open(gguf, &split, &limits, NULL, NULL, &layer, &error);
  if (status == WEFT_OK || strstr(error.text, why) == NULL || strchr(error.text, '\n') != NULL)
    harness_die(why, status, error.text);
  weft_model_close(model);
  for (uint32_t i = 0; i < n_devices; i++) weft_device_close(split.device[i]);
  weft_gguf_close(gguf);
}

static void run_refusals(void) {
  char path[600];
  (void)snprintf(path, sizeof path, "%s", path_of("nextn-moe.gguf"));
  const gguf_edit projection = {.drop_tensor = "blk.3.nextn.eh_proj.weight"},
                  narrow = {.reshape = "blk.3.nextn.enorm.weight"},
                  more = {.add_scalar = "blk.3.nextn.spare.weight", .real = 1.0f},
                  two = {.set_u32 = "qwen35moe.nextn_predict_layers", .value = 2};
  refuse(path, &projection, false, 1, "'blk.3.nextn.eh_proj.weight' is missing");
  refuse(path, &narrow, false, 1, "blk.3.nextn.enorm.weight");
  refuse(path, &more, false, 1, "'blk.3.nextn.spare.weight' is not used");
  refuse(path, &two, false, 1, "nextn_predict_layers' is 2; one layer can draft");
  refuse(path, NULL, true, 1, "opened without room for the keys");
  refuse(path, NULL, false, 2, "works on one device, and the model lies on 2");
  refuse(harness_tiny("qwen35-base"), NULL, false, 1, "has no layer that guesses tokens ahead");
  (void)snprintf(path, sizeof path, "%s", harness_tiny("deepseek4-base"));
  const gguf_edit pair = {.drop_tensor = "blk.3.nextn.eh_proj.weight"},
                  halves = {.rename = "blk.3.nextn.eh_proj.weight", .name = "blk.3.nextn.e_proj.weight"},
                  mixer = {.drop_tensor = "blk.3.nextn.hc_head_base.weight"},
                  sinks = {.drop_tensor = "blk.3.attn_sinks.weight"},
                  spare = {.add_scalar = "blk.3.nextn.spare.weight", .real = 1.0f};
  refuse(path, &pair, false, 1, "'blk.3.nextn.eh_proj.weight' is missing");
  refuse(path, &halves, false, 1, "'blk.3.nextn.eh_proj.weight' is missing");
  refuse(path, &mixer, false, 1, "'blk.3.nextn.hc_head_base.weight' is missing");
  refuse(path, &sinks, false, 1, "'blk.3.attn_sinks.weight' is missing");
  refuse(path, &spare, false, 1, "'blk.3.nextn.spare.weight' is not used");
  refuse(path, NULL, false, 2, "works on one device, and the model lies on 2");
  refuse(harness_tiny("deepseek4-deep"), NULL, false, 1, "has no layer that guesses tokens ahead");
  refuse(harness_tiny("ar-dense"), NULL, false, 1, "layers of 'gemma4' that guess tokens ahead (nextn) do not draft");
  gguf_edit_clean();
}

/* A drafter's file, with one thing changed, for a model of models/, with one thing changed. */
static void refuse_blocks(const gguf_edit *edit, const char *target, const gguf_edit *of_target, uint32_t n_devices,
                          const char *why) {
  weft_device_config config = {.backend = "ref", .n_threads = 1};
  weft_split split;
  weft_error error = {{0}};
  weft_model *model = NULL, *drafter = NULL;
  char path[600];
  (void)snprintf(path, sizeof path, "%s", path_of("dflash.gguf"));
  weft_gguf *blocks = harness_gguf(edit == NULL ? path : gguf_edit_file(path, edit, "blocks"));
  (void)snprintf(path, sizeof path, "%s", harness_tiny(target));
  weft_gguf *gguf = harness_gguf(of_target == NULL ? path : gguf_edit_file(path, of_target, "target"));
  weft_model_limits limits = {.rows_max = 8, .canvas_rows_max = 8, .segments_max = 4, .block_drafter = blocks};
  if (!split_of(gguf, n_devices, 1, &split)) harness_die(path, WEFT_E_INVALID, "split");
  for (config.index = 0; config.index < n_devices; config.index++)
    need(weft_device_open(&config, &split.device[config.index], &error), "device", &error);
  weft_status status = weft_model_open(gguf, &split, &limits, NULL, NULL, &model, &error);
  limits.target = model;
  if (status == WEFT_OK) status = weft_model_open(blocks, &split, &limits, NULL, NULL, &drafter, &error);
  if (status == WEFT_OK || strstr(error.text, why) == NULL || strchr(error.text, '\n') != NULL)
    harness_die(why, status, error.text);
  weft_model_close(model);
  for (uint32_t i = 0; i < n_devices; i++) weft_device_close(split.device[i]);
  weft_gguf_close(blocks);
  weft_gguf_close(gguf);
}

static void run_refusals_of_blocks(void) {
  const gguf_edit size = {.set_u32 = "dflash.block_size", .value = 1},
                  mark = {.drop_key = "tokenizer.ggml.mask_token_id"},
                  far = {.set_u32 = "tokenizer.ggml.mask_token_id", .value = 288},
                  reads = {.drop_key = "dflash.target_layers"}, fc = {.drop_tensor = "fc.weight"},
                  narrow = {.reshape = "fc.weight"}, taps = {.set_u32 = "dflash.conv_kernel_size", .value = 2},
                  markov = {.add_scalar = "markov_w1.weight", .real = 1.0f},
                  other = {.set_string = "dflash.markov_head_type", .text = "gated"},
                  anchor = {.set_u32 = "dflash.sample_from_anchor", .value = 1},
                  causal = {.set_u32 = "dflash.attention.causal", .value = 1},
                  spark = {.set_string = "general.architecture",
                           .text = "dspark",
                           .prefix = "dflash",
                           .to_prefix = "dspark"},
                  window = {.set_u32 = "dflash.attention.sliding_window", .value = 64},
                  three = {.set_u32 = "qwen3.block_count", .value = 3};
  refuse_blocks(&size, "qwen3-base", NULL, 1, "dflash.block_size");
  refuse_blocks(&mark, "qwen3-base", NULL, 1, "tokenizer.ggml.mask_token_id");
  refuse_blocks(&far, "qwen3-base", NULL, 1, "its mark is token 288, and");
  refuse_blocks(&reads, "qwen3-base", NULL, 1, "key 'dflash.target_layers' has 0 layers");
  refuse_blocks(&fc, "qwen3-base", NULL, 1, "'fc.weight' is missing");
  refuse_blocks(&narrow, "qwen3-base", NULL, 1, "tensor 'fc.weight' has shape");
  refuse_blocks(&taps, "qwen3-base", NULL, 1, "convolutions around sublayers (DFlash2)");
  refuse_blocks(&markov, "qwen3-base", NULL, 1, "tensor 'markov_w1.weight' has shape");
  refuse_blocks(&anchor, "qwen3-base", NULL, 1, "key 'dflash.sample_from_anchor' is true, which is not supported");
  refuse_blocks(&causal, "qwen3-base", NULL, 1, "key 'dflash.attention.causal' is true, which is not supported");
  refuse_blocks(&spark, "qwen3-base", NULL, 1, "tensor 'markov_w1.weight' is missing; a dspark drafter needs it");
  refuse_blocks(&other, "qwen3-base", NULL, 1, "other Markov heads (DSpark) are not supported");
  refuse_blocks(&window, "qwen3-base", NULL, 1, "windows of a drafter");
  refuse_blocks(NULL, "qwen3-base", &three, 1, "it reads what goes into layer 3 of its model");
  refuse_blocks(NULL, "qwen3-base", NULL, 2, "works on one device, and the model lies on 2");
  refuse_blocks(NULL, "ar-dense", NULL, 1, "whose hidden rows have 24 numbers; those of");
  gguf_edit_clean();
}

int main(void) {
  static const char *const names[] = {"nextn-moe", "nextn-latent", "dflash", "dspark", "dense", "centroids"};
  static const harness_options ways[] = {
      {.backend = "ref", .n_threads = 1, .block_tokens = 4},
      {.backend = "cpu", .n_threads = 2},
      {.backend = "cpu", .isa = "avx2", .block_tokens = 8},
      {.backend = "cpu", .isa = "portable"},
      {.backend = "cuda"},
      {.backend = "cuda", .block_tokens = 16},
  };
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    harness_options way = ways[i];
    weft_device_config config = {.backend = way.backend, .n_threads = 1, .isa = way.isa};
    weft_device *device;
    weft_error error = {{0}};
    weft_status status = weft_device_open(&config, &device, &error);
    if (status != WEFT_OK && way.isa == NULL && strcmp(way.backend, "cuda") != 0)
      harness_die(way.backend, status, error.text);
    if (status != WEFT_OK) {
      (void)printf("%s %s: not on this machine\n", way.backend, way.isa != NULL ? way.isa : "");
      continue;
    }
    weft_device_close(device);
    way.rows_max = ROWS;
    way.n_pages = 4096;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) run_golden(names[k], &way, NULL);
    for (size_t k = 0; k < sizeof dialects / sizeof *dialects && i == 1; k++)
      run_golden("centroids", &way, &dialects[k]);
  }
  run_refusals();
  run_refusals_of_blocks();
  return 0;
}
