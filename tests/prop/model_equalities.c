/* SPDX-License-Identifier: MIT */
/* Equalities of the forward pass, bit for bit, on every backend and instruction set of this machine, for the tiny F32
 * models and the demo model as it is stored.
 *
 * A story is a list of passes over one sequence: a prompt or a committed canvas (causal), a denoise step (canvas) with
 * or without a soft embedding, a piece of a prompt whose rows see one another and are stored (whole), decode rows
 * (causal, one each). Prompt lengths sit on the edges of windows and blocks.
 * The reference of every comparison is the story computed in the plainest way: its sequence alone, each pass in a step
 * of its own, prompts whole, pages in order, and on a card no kernel begins before the one in front of it has ended.
 * The same stories are then computed
 *
 *   in chunks      the prompt in pieces of every size from 1 to its length
 *   unified        [prompt | canvas] and [commit | next canvas] in one step
 *   mixed          many stories at once, cut and interleaved by chance
 *   in pages       scattered pages, blocks of every size, 1 to 3 threads
 *   in parts       on two and three devices, where the memory of devices is the host's
 *   by the twin    a gemma4 model of the same tensors (causal passes)
 *
 *   model_equalities [ROUNDS [SEED [BACKEND]]]    mixed runs per subject, by default 3 (quick 1, nightly 20) from seed
 *                                                 1; on one backend alone */
#include "base/random.h"
#include "tests/support/gguf_edit.h"
#include "tests/support/gguf_twin.h"
#include "tests/support/model_harness.h"

enum { PASSES_MAX = 12, STORIES_MAX = 40, ROWS_MAX = 512, MIXED_STORIES = 6 };

typedef struct way {
  const char *backend, *isa;
} way;

/* How much of it: a row of the demo model costs the reference backend thousands of times what a row of a tiny model
 * costs a vector backend. */
typedef enum effort { BRIEF = 1, SHORT = 2, FULL = 3 } effort;

typedef struct subject {
  const char *path;
  effort effort;
  way way;
} subject;

typedef struct pass {
  bool canvas, whole;
  uint32_t n;
  int32_t *tokens;
  const float *soft; /* of a canvas; points to a story's soft rows */
  float *wanted;     /* [n][n_vocab] */
} pass;

typedef struct story {
  pass pass[PASSES_MAX];
  uint32_t n_passes;
  float *soft[2]; /* [canvas][n_hidden]; made from the wanted logits of a denoise step */
  /* the telling in progress */
  harness_seq seq;
  uint32_t at, done; /* pass, rows of it that are done */
} story;

static char label[200];
static uint64_t n_compared;
static story stories[STORIES_MAX];
static uint32_t n_stories;
static float *got; /* [ROWS_MAX][n_vocab] */

static uint32_t draw(uint64_t *state, uint32_t n) {
  return (uint32_t)((weft_mix64(++*state * 0x9E3779B97F4A7C15ull) >> 32) % n);
}

static void same(const char *law, const harness *h, const float *rows, const float *wanted, uint32_t n_rows) {
  n_compared += n_rows;
  harness_same(h, label, law, rows, wanted, n_rows);
}

/* ---- stories ------------------------------------------------------------------------------------------- */

static pass *add_pass(const harness *h, story *s, bool canvas, uint32_t n, uint64_t *seed) {
  pass *p = &s->pass[s->n_passes++];
  *p = (pass){.canvas = canvas, .n = n, .tokens = harness_alloc(n, sizeof *p->tokens)};
  for (uint32_t i = 0; i < n; i++) p->tokens[i] = (int32_t)draw(seed, h->info->n_vocab);
  p->wanted = harness_alloc((size_t)n * h->info->n_vocab, sizeof(float));
  return p;
}

/* A prompt, a whole piece of it and decode rows; for a model with a canvas: prompt, two steps, commit, two steps, commit, one step. */
static void make_story(const harness *h, uint32_t n_prompt, bool diffusion, uint32_t n_blocks, uint64_t seed) {
  story *s = &stories[n_stories++];
  uint32_t n = h->info->canvas_length;
  memset(s, 0, sizeof *s);
  (void)add_pass(h, s, false, n_prompt, &seed);
  if (!diffusion) add_pass(h, s, false, 9, &seed)->whole = true;
  for (uint32_t i = 0; !diffusion && i < 4; i++) (void)add_pass(h, s, false, 1, &seed);
  if (!diffusion) return;
  for (uint32_t block = 0; block < n_blocks; block++) {
    (void)add_pass(h, s, true, n, &seed);
    if (block + 1 == n_blocks) break;
    s->soft[block] = harness_memory(h, (size_t)n * h->info->n_hidden, sizeof(float));
    add_pass(h, s, true, n, &seed)->soft = s->soft[block];
    (void)add_pass(h, s, false, n, &seed);
  }
}

static void free_stories(const harness *h) {
  for (uint32_t i = 0; i < n_stories; i++) {
    for (uint32_t k = 0; k < stories[i].n_passes; k++) {
      free(stories[i].pass[k].tokens);
      free(stories[i].pass[k].wanted);
    }
    for (uint32_t k = 0; k < 2; k++) {
      if (stories[i].soft[k] != NULL) harness_release(h, stories[i].soft[k]);
    }
  }
  n_stories = 0;
}

/* The edges: 1, window - 2 .. window + 2, block - 1 .. block + 1 of every group. */
static void make_stories(const harness *h, effort much) {
  uint32_t length[STORIES_MAX], n = 0;
  length[n++] = 1;
  for (uint32_t g = 0; g < h->layout.n_groups; g++) {
    const weft_layer_group *group = &h->layout.group[g];
    for (uint32_t i = 0; group->window > 0 && i < 5; i++) length[n++] = group->window - 2 + i;
    for (uint32_t i = 0; much == FULL && i < 3; i++) length[n++] = group->block_tokens - 1 + i;
    if (group->window > 0 && much > BRIEF) length[n++] = 2 * group->window + 1;
    if (n + 9 > STORIES_MAX) break;
  }
  for (uint32_t i = 0; i < n && n_stories + 2 <= STORIES_MAX; i++) {
    bool known = length[i] == 0 || length[i] > 260;
    for (uint32_t k = 0; k < i; k++) known |= length[k] == length[i];
    if (known || (much < FULL && i % 3 != 0)) continue;     /* 1, window, 2 * window + 1 */
    if (much == BRIEF && length[i] == 1 && n > 1) continue; /* without a window it is all there is */
    bool diffusion = h->info->canvas_length > 0;
    make_story(h, length[i], diffusion, much == BRIEF ? 2 : 3, 1000 + i);
    if (diffusion && i % 3 == 0) make_story(h, length[i], false, 0, 2000 + i);
  }
}

/* ---- computing ------------------------------------------------------------------------------------------ */

static void begin(story *s) {
  harness_seq_open(&s->seq);
  s->at = s->done = 0;
}

static void end(story *s) {
  harness_seq_close(&s->seq);
}

static harness_piece next_piece(const harness *h, story *s, uint32_t n, float *logits) {
  pass *p = &s->pass[s->at];
  if (p->canvas || p->whole || n > p->n - s->done) n = p->n - s->done;
  (void)h;
  return (harness_piece){.seq = &s->seq,
                         .tokens = p->tokens + s->done,
                         .n = n,
                         .canvas = p->canvas,
                         .whole = p->whole,
                         .soft = p->soft,
                         .output = OUT_ALL,
                         .logits = logits};
}

static void advance(story *s, uint32_t n) {
  s->done += n;
  if (s->done < s->pass[s->at].n) return;
  s->at += 1;
  s->done = 0;
}

static void tell_alone(harness *h, story *s) {
  begin(s);
  harness_forget_pages(h);
  uint32_t n_soft = 0;
  while (s->at < s->n_passes) {
    pass *p = &s->pass[s->at];
    harness_piece piece = next_piece(h, s, p->n, p->wanted);
    harness_run(h, &piece, 1);
    advance(s, p->n);
    bool first_step = p->canvas && p->soft == NULL && n_soft < 2 && s->soft[n_soft] != NULL;
    if (first_step) harness_soft(h, p->wanted, p->n, 0.6f, s->soft[n_soft++]);
  }
  end(s);
}

/* Two-pass equals unified: a causal pass and the canvas pass after it share a step. */
static void tell_unified(harness *h, story *s) {
  begin(s);
  harness_forget_pages(h);
  while (s->at < s->n_passes) {
    harness_piece pieces[2];
    pass *p = &s->pass[s->at], *q = NULL;
    pieces[0] = next_piece(h, s, p->n, got);
    advance(s, p->n);
    if (!p->canvas && s->at < s->n_passes && s->pass[s->at].canvas) {
      q = &s->pass[s->at];
      pieces[1] = next_piece(h, s, q->n, got + (size_t)p->n * h->info->n_vocab);
      advance(s, q->n);
    }
    harness_run(h, pieces, q == NULL ? 1 : 2);
    same("unified, first part", h, pieces[0].logits, p->wanted, p->n);
    if (q != NULL) same("unified, canvas", h, pieces[1].logits, q->wanted, q->n);
  }
  end(s);
}

/* The prompt in chunks of one size; the canvas that follows sees the same keys. */
static void tell_chunked(harness *h, story *s, uint32_t size) {
  begin(s);
  harness_forget_pages(h);
  for (uint32_t i = 0; s->at < s->n_passes && s->at < 2; i++) {
    pass *p = &s->pass[s->at];
    const float *wanted = p->wanted + (size_t)s->done * h->info->n_vocab;
    harness_piece piece = next_piece(h, s, size, got);
    harness_run(h, &piece, 1);
    same("chunked", h, got, wanted, piece.n);
    advance(s, piece.n);
  }
  end(s);
}

/* ---- mixed --------------------------------------------------------------------------------------------- */

/* What one piece of a mixed step must give. */
typedef struct check {
  const float *wanted, *got;
  uint32_t n_rows;
} check;

typedef struct step {
  harness_piece causal[MIXED_STORIES], canvas[MIXED_STORIES];
  check check[2 * MIXED_STORIES];
  uint32_t n_causal, n_canvas, n_checks, n_rows, n_outputs;
} step;

static void add_to_step(const harness *h, step *t, story *s, uint64_t *state) {
  pass *p = &s->pass[s->at];
  const float *wanted = p->wanted + (size_t)s->done * h->info->n_vocab;
  uint32_t left = p->n - s->done, n = p->canvas || p->whole || draw(state, 3) == 0 ? left : 1 + draw(state, left);
  if (t->n_rows + n > ROWS_MAX) return;
  harness_piece piece = next_piece(h, s, n, got + (size_t)t->n_outputs * h->info->n_vocab);
  if (!p->canvas) {
    static const harness_output outputs[] = {OUT_ALL, OUT_ALL, OUT_LAST, OUT_NONE};
    piece.output = outputs[draw(state, 4)];
  }
  uint32_t n_out = piece.output == OUT_ALL ? n : piece.output == OUT_LAST ? 1 : 0;
  if (n_out > 0) {
    t->check[t->n_checks++] =
        (check){.wanted = wanted + (size_t)(n - n_out) * h->info->n_vocab, .got = piece.logits, .n_rows = n_out};
  }
  if (p->canvas) {
    t->canvas[t->n_canvas++] = piece;
  } else {
    t->causal[t->n_causal++] = piece;
  }
  t->n_rows += n;
  t->n_outputs += n_out;
  advance(s, n);
  bool canvas_next = s->at < s->n_passes && s->done == 0 && s->pass[s->at].canvas;
  if (!p->canvas && canvas_next && draw(state, 2) == 0) add_to_step(h, t, s, state);
}

static uint32_t tell_mixed(harness *h, uint64_t seed) {
  uint64_t state = seed * 7919;
  story *cast[MIXED_STORIES];
  uint32_t n_cast = n_stories < MIXED_STORIES ? n_stories : MIXED_STORIES, n_steps = 0;
  uint32_t first = draw(&state, n_stories), stride = 1 + draw(&state, n_stories - 1);
  while (n_stories % stride == 0 && stride > 1) stride -= 1; /* so that all are different */
  harness_forget_pages(h);
  for (uint32_t i = 0; i < n_cast; i++) {
    cast[i] = &stories[(first + (uint64_t)i * (stride == 0 ? 1 : stride)) % n_stories];
    for (uint32_t k = 0; k < i; k++) {
      if (cast[k] == cast[i]) n_cast = i;
    }
  }
  for (uint32_t i = 0; i < n_cast; i++) begin(cast[i]);
  for (bool going = true; going; n_steps++) {
    step t = {0};
    going = false;
    for (uint32_t i = 0; i < n_cast; i++) {
      if (cast[i]->at == cast[i]->n_passes) continue;
      going = true;
      if (draw(&state, 4) > 0) add_to_step(h, &t, cast[i], &state);
    }
    if (t.n_rows == 0) continue;
    harness_piece pieces[2 * MIXED_STORIES];
    memcpy(pieces, t.causal, t.n_causal * sizeof *pieces);
    memcpy(pieces + t.n_causal, t.canvas, t.n_canvas * sizeof *pieces);
    harness_run(h, pieces, t.n_causal + t.n_canvas);
    for (uint32_t i = 0; i < t.n_checks; i++) {
      same("mixed", h, t.check[i].got, t.check[i].wanted, t.check[i].n_rows);
    }
  }
  for (uint32_t i = 0; i < n_cast; i++) end(cast[i]);
  return n_steps;
}

/* ---- subjects ------------------------------------------------------------------------------------------ */

static harness_options options_of(const subject *s, uint32_t block, uint32_t n_threads, bool in_order) {
  return (harness_options){.backend = s->way.backend,
                           .isa = s->way.isa,
                           .n_threads = n_threads,
                           .block_tokens = block,
                           .rows_max = ROWS_MAX,
                           .n_pages = block > 0 && block < 16 ? 4096 : 640,
                           .in_order = in_order};
}

/* Scattered pages, blocks of every size, several numbers of threads. */
static void law_pages(const subject *s) {
  static const uint32_t blocks[] = {1, 2, 4, 8, 16, 32, 64, 128};
  for (uint32_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
    if (s->effort < FULL && i % (s->effort == SHORT ? 3 : 6) != 1) continue;
    harness h;
    harness_options options = options_of(s, blocks[i], 1 + i % 3, i % 4 == 3);
    harness_open(&h, s->path, &options);
    for (uint32_t k = i % 2; k < n_stories; k += s->effort < FULL ? 5 : 2) {
      tell_unified(&h, &stories[k]);
    }
    if (s->effort == FULL) (void)tell_mixed(&h, 100 + i);
    harness_close(&h);
  }
}

/* The bytes that went over the cuts are those of the rows: each at every cut, with its embeddings per layer. */
static void check_crossed(const harness *h, uint64_t n_rows) {
  const model_hyper *hyper = &h->model->hyper;
  uint64_t row = model_row_width(h->model) + (uint64_t)hyper->n_per_layer * hyper->n_layers;
  uint64_t wanted = n_rows * (h->split.n_devices - 1) * row * sizeof(float);
  weft_crossed crossed = weft_model_crossed(h->model);
  if (crossed.rows == wanted && crossed.soft == 0 && crossed.tokens == 0) return;
  (void)printf("FAILED: %s: %llu bytes of rows crossed, not %llu\n", label, (unsigned long long)crossed.rows,
               (unsigned long long)wanted);
  exit(1);
}

static uint64_t n_rows_told(const story *s) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < s->n_passes; i++) n += s->pass[i].n;
  return n;
}

/* Where the model cannot be cut, or memory is not the host's, this says nothing. */
static void law_parts(const subject *s, const harness *whole) {
  if (!weft_device_get_info(whole->device)->host_memory) return;
  for (uint32_t n = 2; n <= 3; n++) {
    harness h;
    weft_split split;
    uint64_t n_rows = 0;
    harness_options options = options_of(s, 0, 1 + n % 2, false);
    options.n_devices = n;
    if (!split_of(whole->gguf, n, 1, &split)) continue;
    harness_open(&h, s->path, &options);
    for (uint32_t k = n % 2; k < n_stories; k += s->effort < FULL ? 4 : 2) {
      tell_unified(&h, &stories[k]);
      n_rows += n_rows_told(&stories[k]);
    }
    check_crossed(&h, n_rows);
    if (n_stories > 1) (void)tell_mixed(&h, 200 + n);
    harness_close(&h);
  }
}

/* The causal passes of the diffusion file are those of a gemma4 file of the same tensors. */
static void law_twin(const subject *s, const harness *h) {
  char name[240];
  gguf_writer w = {0};
  weft_gguf *gguf;
  weft_error error = {{0}};
  harness twin;
  if (h->info->canvas_length == 0) return;
  gguf_twin(h->gguf, h->info->arch, &w);
  weft_bytes file = gguf_writer_finish(&w);
  (void)snprintf(name, sizeof name, "twin of %s", label);
  weft_status status = weft_gguf_open_memory(file.data, file.n, name, &gguf, &error);
  if (status != WEFT_OK) harness_die(name, status, error.text);
  harness_options options = options_of(s, 0, 2, false);
  harness_open_gguf(&twin, gguf, name, &options);
  if (twin.info->canvas_length != 0 || strcmp(twin.info->arch, "gemma4") != 0) {
    harness_die(name, WEFT_E_INVALID, "the twin is no gemma4 file");
  }
  for (uint32_t i = 0; i < n_stories; i++) {
    story *t = &stories[i];
    if (s->effort < FULL && i % 3 != 0) continue;
    begin(t);
    harness_forget_pages(&twin);
    for (; t->at < t->n_passes; advance(t, t->pass[t->at].n)) {
      pass *p = &t->pass[t->at];
      if (p->canvas) continue;
      harness_piece piece = next_piece(&twin, t, p->n, got);
      harness_run(&twin, &piece, 1);
      same("the twin", &twin, got, p->wanted, p->n);
    }
    end(t);
  }
  harness_close(&twin);
  gguf_writer_close(&w);
}

static void run_subject(const subject *s, uint32_t n_rounds, uint64_t seed) {
  harness h;
  const char *slash = strrchr(s->path, '/');
  (void)snprintf(label, sizeof label, "%s on %s %s", slash + 1, s->way.backend, s->way.isa != NULL ? s->way.isa : "");
  harness_options options = options_of(s, 0, 1, true);
  harness_open(&h, s->path, &options);
  got = harness_alloc((size_t)ROWS_MAX * h.info->n_vocab, sizeof *got);
  make_stories(&h, s->effort);
  uint64_t before = n_compared;
  uint32_t n_steps = 0;
  weft_device_serial_kernels(h.device, true);
  for (uint32_t i = 0; i < n_stories; i++) tell_alone(&h, &stories[i]);
  weft_device_serial_kernels(h.device, false);
  harness_scramble(h.page_order, options.n_pages); /* from here on: scattered pages */
  for (uint32_t i = 0; i < n_stories; i++) tell_unified(&h, &stories[i]);
  story *longest = &stories[0];
  for (uint32_t i = 0; i < n_stories; i++) {
    if (stories[i].pass[0].n > longest->pass[0].n) longest = &stories[i];
  }
  uint32_t n_prompt = longest->pass[0].n, stride = s->effort < FULL ? 1 + n_prompt / s->effort : 1;
  for (uint32_t size = 1; size <= n_prompt; size += stride) tell_chunked(&h, longest, size);
  for (uint32_t i = 0; i < n_rounds && n_stories > 1; i++) n_steps += tell_mixed(&h, seed + i);
  law_pages(s);
  law_parts(s, &h);
  law_twin(s, &h);
  (void)printf("%-44s %2u stories, %4u mixed steps, %6llu rows equal\n", label, n_stories, n_steps,
               (unsigned long long)(n_compared - before));
  free_stories(&h);
  free(got);
  harness_close(&h);
}

/* cpu and ref are everywhere; an instruction set or a card may not be. */
static bool has_way(const way *w) {
  weft_device_config config = {.backend = w->backend, .n_threads = 1, .isa = w->isa};
  weft_device *device;
  weft_error error = {{0}};
  weft_status status = weft_device_open(&config, &device, &error);
  if (status == WEFT_OK) weft_device_close(device);
  if (status == WEFT_OK) return true;
  bool optional = strcmp(w->backend, "cuda") == 0 || (w->isa != NULL && strcmp(w->isa, "portable") != 0);
  if (!optional) harness_die(w->backend, status, error.text);
  (void)printf("left out: %s\n", error.text);
  return false;
}

/* deepseek41-base with a memory in layer 1 alone, so that what its layers read of each other leaves a cut: before 2. */
static const char *make_cuttable(void) {
  static const int32_t layers[] = {1}, multipliers[] = {3, 5, 7}, primes[] = {5, 7, 11, 11}, offsets[] = {0, 5, 12, 23};
  static const gguf_edit edits[] = {
      {.set_list = "deepseek41.engram.layer_ids", .list = layers, .n_list = 1, .drop_tensor = "blk.2.engram_q.weight"},
      {.set_list = "deepseek41.engram.multipliers",
       .list = multipliers,
       .n_list = 3,
       .drop_tensor = "blk.2.engram_k.weight"},
      {.set_list = "deepseek41.engram.primes", .list = primes, .n_list = 4, .drop_tensor = "blk.2.engram_wkv.weight"},
      {.set_list = "deepseek41.engram.offsets",
       .list = offsets,
       .n_list = 4,
       .drop_tensor = "blk.2.engram_embd.weight"},
  };
  const char *path = harness_tiny("deepseek41-base");
  for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
    char name[32];
    (void)snprintf(name, sizeof name, "deepseek41-cut-%zu", i);
    path = gguf_edit_file(path, &edits[i], name);
  }
  return path;
}

int main(int argc, char **argv) {
  static const way ways[] = {{"ref", NULL}, {"cpu", "portable"}, {"cpu", "avx2"}, {"cpu", "avx512"}, {"cuda", NULL}};
  static const char *const names[] = {"ar-base",        "ar-dense-v",      "ar-fused-w4",     "dg-base",
                                      "dg-fused-c4",    "dg-c16-w4",       "dg-underscore",   "ar-per-layer",
                                      "ar-shared",      "gpt-oss-base",    "gpt-oss-pattern", "qwen35-base",
                                      "qwen35-moe",     "deepseek4-base",  "deepseek4-deep",  "glm4moe-base",
                                      "deepseek2-base", "deepseek41-base", "deepseek41-cut"};
  uint32_t n_rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : test_amount(1, 1, 20);
  uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
  const char *cuttable = make_cuttable(), *asked = argc > 3 ? argv[3] : NULL;
  for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
    if (asked != NULL && strcmp(asked, ways[w].backend) != 0) continue;
    if (!has_way(&ways[w])) continue;
    if (w == 1 && test_amount(1, 0, 0) != 0) continue; /* quick: the source of avx2, with other vectors */
    bool is_ref = strcmp(ways[w].backend, "ref") == 0;
    size_t stride = test_amount(4, w == 4 ? 1 : 3, 1); /* each file in full on one or two of the ways, and on a card */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
      bool is_full = i % stride == w % stride && !(is_ref && i >= 5);
      const char *path = i + 1 < sizeof names / sizeof *names ? harness_tiny(names[i]) : cuttable;
      run_subject(&(subject){path, is_full ? FULL : stride > 3 ? BRIEF : SHORT, ways[w]}, n_rounds, seed);
    }
    bool is_slow = is_ref || (ways[w].isa != NULL && strcmp(ways[w].isa, "portable") == 0);
    subject demo = {WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf", is_slow ? BRIEF : SHORT, ways[w]};
    run_subject(&demo, is_slow ? 1 : (n_rounds + 1) / 2, seed);
  }
  gguf_edit_clean();
  (void)printf("%llu rows of logits, all bits equal\n", (unsigned long long)n_compared);
  return 0;
}
