/* SPDX-License-Identifier: MIT */
/* What must not change a single bit of a row's logits, on every backend, for F32, BF16 and
 * quantised weights: how a prompt is cut into chunks, which pages hold its keys, how large blocks
 * are, which other rows share the step, how many threads compute it, and what lies in blocks that
 * no row can see. The reference of every comparison is the plainest way: one sequence alone, whole,
 * pages in order.
 *
 * Where a device's sums are free (cuda, --no-deterministic; its numerics say so), one law is left: the same request
 * alone gives the same bits again.
 *
 *   model_laws [BACKEND [TURN/TURNS]]    on one backend alone; of the files every TURNS-th, from the TURN-th on.
 *                                        77: none of them is on this machine */
#include <string.h>

#include "tests/support/gguf_requantise.h"
#include "tests/support/model_harness.h"

enum { PROMPT = 41, LONG = 560, ROWS_MAX = 640 };

typedef struct way {
  const char *backend, *isa;
  bool free_sums;
} way;

typedef struct subject {
  const char *name;
  weft_type type; /* of matrices */
  way way;
} subject;

static char label[160];
static uint32_t n_compared;

static int32_t token_at(uint32_t seed, uint32_t i, uint32_t n_vocab) {
  uint64_t x = (uint64_t)seed * 0x9E3779B97F4A7C15ull + i * 0xBF58476D1CE4E5B9ull;
  x ^= x >> 29;
  x *= 0x94D049BB133111EBull;
  return (int32_t)((x >> 33) % n_vocab);
}

static int32_t *make_tokens(const harness *h, uint32_t seed, uint32_t n) {
  int32_t *tokens = harness_alloc(n, sizeof *tokens);
  for (uint32_t i = 0; i < n; i++) tokens[i] = token_at(seed, i, h->info->n_vocab);
  return tokens;
}

static float *make_logits(const harness *h, uint32_t n) {
  return harness_alloc((size_t)n * h->info->n_vocab, sizeof(float));
}

static void same(const char *law, const harness *h, const float *got, const float *wanted, uint32_t n_rows) {
  n_compared++;
  harness_same(h, label, law, got, wanted, n_rows);
}

static harness_options options_of(const subject *s, uint32_t block, uint32_t n_threads, bool in_order) {
  return (harness_options){.backend = s->way.backend,
                           .isa = s->way.isa,
                           .n_threads = n_threads,
                           .block_tokens = block,
                           .rows_max = ROWS_MAX,
                           .n_pages = 4096,
                           .in_order = in_order,
                           .free_sums = s->way.free_sums};
}

static gguf_writer stored; /* the bytes of the subject's file */

static void open_subject(harness *h, const harness_options *options) {
  weft_gguf *gguf;
  weft_error error = {{0}};
  weft_status status = weft_gguf_open_memory(stored.file.bytes, stored.file.n, label, &gguf, &error);
  if (status != WEFT_OK) harness_die(label, status, error.text);
  harness_open_gguf(h, gguf, label, options);
}

/* Feeds tokens in pieces of the given sizes (repeated); logits of every row. */
static void feed(harness *h, harness_seq *seq, const int32_t *tokens, uint32_t n, const uint32_t *sizes,
                 uint32_t n_sizes, float *logits) {
  for (uint32_t at = 0, i = 0; at < n; i++) {
    uint32_t size = sizes[i % n_sizes] < n - at ? sizes[i % n_sizes] : n - at;
    harness_piece piece = {.seq = seq,
                           .tokens = tokens + at,
                           .n = size,
                           .output = OUT_ALL,
                           .logits = logits + (size_t)at * h->info->n_vocab};
    harness_run(h, &piece, 1);
    at += size;
  }
}

static void whole(harness *h, harness_seq *seq, const int32_t *tokens, uint32_t n, float *logits) {
  feed(h, seq, tokens, n, (const uint32_t[]){n}, 1, logits);
}

/* Prompts long enough for several chunks of attention, in chunks of all sizes. */
static void law_chunks(harness *h) {
  static const uint32_t cuts[][4] = {{1, 1, 1, 1}, {7, 1, 64, 3}, {255, 2, 1, 300}, {33, 33, 33, 33}};
  int32_t *tokens = make_tokens(h, 1, LONG);
  float *wanted = make_logits(h, LONG), *got = make_logits(h, LONG);
  for (uint32_t i = 0; i < 5; i++) {
    harness_seq seq;
    harness_seq_open(&seq);
    harness_forget_pages(h);
    if (i == 0) whole(h, &seq, tokens, LONG, wanted);
    if (i > 0) feed(h, &seq, tokens, LONG, cuts[i - 1], 4, got);
    if (i > 0) same("chunked equals whole", h, got, wanted, LONG);
    harness_seq_close(&seq);
  }
  free(tokens);
  free(wanted);
  free(got);
}

/* Only the last row's logits, or none, or some chunks without output: the rest is unchanged. */
static void law_outputs(harness *h) {
  int32_t *tokens = make_tokens(h, 2, PROMPT);
  float *wanted = make_logits(h, PROMPT), *got = make_logits(h, 1);
  uint32_t n_vocab = h->info->n_vocab;
  harness_seq seq;
  harness_seq_open(&seq);
  harness_forget_pages(h);
  whole(h, &seq, tokens, PROMPT, wanted);
  harness_seq_close(&seq);
  harness_seq_open(&seq);
  harness_piece none = {.seq = &seq, .tokens = tokens, .n = 11, .output = OUT_NONE};
  harness_run(h, &none, 1);
  harness_piece last = {.seq = &seq, .tokens = tokens + 11, .n = PROMPT - 11, .output = OUT_LAST, .logits = got};
  harness_run(h, &last, 1);
  same("last row only", h, got, wanted + (size_t)(PROMPT - 1) * n_vocab, 1);
  harness_seq_close(&seq);
  free(tokens);
  free(wanted);
  free(got);
}

/* Keys in scrambled pages, in blocks of other sizes, computed by another number of threads. */
static void law_pages(const subject *s) {
  static const struct {
    uint32_t block, n_threads;
    bool in_order;
  } ways[] = {{0, 1, true}, {0, 1, false}, {1, 1, false}, {2, 2, false}, {16, 2, false}, {128, 2, true}};
  float *wanted = NULL;
  for (uint32_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    harness h;
    harness_seq seq;
    harness_options options = options_of(s, ways[i].block, ways[i].n_threads, ways[i].in_order);
    open_subject(&h, &options);
    int32_t *tokens = make_tokens(&h, 3, LONG);
    float *got = make_logits(&h, LONG);
    harness_seq_open(&seq);
    whole(&h, &seq, tokens, LONG, got);
    if (wanted == NULL) {
      wanted = got;
    } else {
      same("pages, block sizes and threads", &h, got, wanted, LONG);
      free(got);
    }
    free(tokens);
    harness_seq_close(&seq);
    harness_close(&h);
  }
  free(wanted);
}

/* Blocks that no row can see may be anywhere and hold anything. */
static void law_windows(harness *h) {
  int32_t *tokens = make_tokens(h, 4, LONG);
  float *wanted = make_logits(h, LONG), *got = make_logits(h, LONG);
  uint32_t n_vocab = h->info->n_vocab;
  harness_seq seq;
  for (uint32_t pass = 0; pass < 2; pass++) {
    float *logits = pass == 0 ? wanted : got;
    harness_seq_open(&seq);
    harness_forget_pages(h);
    for (uint32_t at = 0; at < LONG; at += 20) {
      harness_piece piece = {
          .seq = &seq, .tokens = tokens + at, .n = 20, .output = OUT_ALL, .logits = logits + (size_t)at * n_vocab};
      harness_run(h, &piece, 1);
      for (uint32_t g = 0; pass == 1 && g < h->layout.n_groups; g++) {
        const weft_layer_group *group = &h->layout.group[g];
        for (uint32_t b = 0; group->window > 0 && b < seq.n_entries[g]; b++) {
          if ((b + 1) * group->block_tokens + group->window > seq.n_valid + 1) break;
          if (seq.table[g][b] == UINT32_MAX) continue;
          harness_poison(h, seq.table[g][b]);
          seq.table[g][b] = UINT32_MAX;
        }
      }
    }
    harness_seq_close(&seq);
  }
  same("released blocks", h, got, wanted, LONG);
  free(tokens);
  free(wanted);
  free(got);
}

/* A conversation: prompt, then as many decode rows. */
typedef struct talk {
  harness_seq seq;
  int32_t *tokens;
  uint32_t n;
  float *wanted, *got;
} talk;

static void talk_open(harness *h, talk *t, uint32_t seed, uint32_t n) {
  t->n = n;
  t->tokens = make_tokens(h, seed, n);
  t->wanted = make_logits(h, n);
  t->got = make_logits(h, n);
  harness_seq_open(&t->seq);
  harness_forget_pages(h);
  whole(h, &t->seq, t->tokens, n, t->wanted);
  harness_seq_close(&t->seq);
  harness_seq_open(&t->seq);
}

static void talk_close(talk *t) {
  harness_seq_close(&t->seq);
  free(t->tokens);
  free(t->wanted);
  free(t->got);
}

static harness_piece talk_next(harness *h, talk *t, uint32_t n) {
  uint32_t at = t->seq.n_valid;
  if (n > t->n - at) n = t->n - at;
  return (harness_piece){.seq = &t->seq,
                         .tokens = t->tokens + at,
                         .n = n,
                         .output = OUT_ALL,
                         .logits = t->got + (size_t)at * h->info->n_vocab};
}

/* Prefill chunks and decode rows of several sequences in one step. */
static void law_mixed_causal(harness *h) {
  talk t[3];
  static const uint32_t sizes[6][3] = {{9, 1, 17}, {1, 30, 1}, {1, 1, 1}, {12, 1, 2}, {1, 4, 11}, {40, 40, 40}};
  for (uint32_t i = 0; i < 3; i++) talk_open(h, &t[i], 20 + i, PROMPT);
  harness_forget_pages(h);
  for (uint32_t step = 0; step < 6; step++) {
    harness_piece pieces[3];
    uint32_t n = 0;
    for (uint32_t i = 0; i < 3; i++) {
      if (t[i].seq.n_valid < t[i].n) pieces[n++] = talk_next(h, &t[i], sizes[step][i]);
    }
    if (n > 0) harness_run(h, pieces, n);
  }
  for (uint32_t i = 0; i < 3; i++) {
    same("mixed equals alone", h, t[i].got, t[i].wanted, PROMPT);
    talk_close(&t[i]);
  }
}

/* A diffusion request: prompt, canvas steps with and without a soft embedding, commit, next canvas. */
typedef struct dream {
  int32_t *prompt, *canvas[4];
  uint32_t n_prompt, n;
  float *soft;
  float *logits[4]; /* of the canvas steps: first canvas, its second step, second canvas, its second
                       step */
  harness_seq seq;
} dream;

static void dream_open(harness *h, dream *d, uint32_t seed, uint32_t n_prompt) {
  d->n_prompt = n_prompt;
  d->n = h->info->canvas_length;
  d->prompt = make_tokens(h, seed, n_prompt);
  d->soft = harness_memory(h, d->n, h->info->n_hidden * sizeof(float));
  for (uint32_t i = 0; i < 4; i++) {
    d->canvas[i] = make_tokens(h, seed + 100 + i, d->n);
    d->logits[i] = make_logits(h, d->n);
  }
  harness_seq_open(&d->seq);
}

static void dream_close(const harness *h, dream *d) {
  harness_seq_close(&d->seq);
  free(d->prompt);
  harness_release(h, d->soft);
  for (uint32_t i = 0; i < 4; i++) {
    free(d->canvas[i]);
    free(d->logits[i]);
  }
}

static harness_piece dream_prefill(dream *d) {
  return (harness_piece){.seq = &d->seq, .tokens = d->prompt, .n = d->n_prompt, .output = OUT_NONE};
}

static harness_piece dream_commit(dream *d) {
  return (harness_piece){.seq = &d->seq, .tokens = d->canvas[1], .n = d->n, .output = OUT_NONE};
}

static harness_piece dream_step(dream *d, uint32_t i) {
  return (harness_piece){.seq = &d->seq,
                         .tokens = d->canvas[i],
                         .n = d->n,
                         .canvas = true,
                         .soft = i % 2 == 1 ? d->soft : NULL,
                         .output = OUT_ALL,
                         .logits = d->logits[i]};
}

/* Every pass in a step of its own. */
static void dream_alone(harness *h, dream *d) {
  harness_piece piece = dream_prefill(d);
  harness_run(h, &piece, 1);
  for (uint32_t i = 0; i < 4; i++) {
    if (i == 2) {
      piece = dream_commit(d);
      harness_run(h, &piece, 1);
    }
    piece = dream_step(d, i);
    harness_run(h, &piece, 1);
    if (i % 2 == 0) harness_soft(h, d->logits[i], d->n, 0.7f, d->soft);
  }
}

/* Two requests and a causal one in the same steps; prompt with first canvas, commit with next
 * canvas. */
static void dream_mixed(harness *h, dream *a, dream *b, talk *t) {
  for (uint32_t step = 0; step < 6; step++) {
    harness_piece pieces[6];
    uint32_t n = 0, i = step, j = step - 1; /* b runs one step behind a */
    if (t->seq.n_valid < t->n) pieces[n++] = talk_next(h, t, step % 2 == 0 ? 7 : 1);
    if (step == 0) pieces[n++] = dream_prefill(a);
    if (step == 1) pieces[n++] = dream_prefill(b);
    if (step == 2) pieces[n++] = dream_commit(a);
    if (step == 3) pieces[n++] = dream_commit(b);
    if (i < 4) pieces[n++] = dream_step(a, i);
    if (step >= 1 && j < 4) pieces[n++] = dream_step(b, j);
    if (n > 0) harness_run(h, pieces, n);
    if (i < 4 && i % 2 == 0) harness_soft(h, a->logits[i], a->n, 0.7f, a->soft);
    if (step >= 1 && j < 4 && j % 2 == 0) harness_soft(h, b->logits[j], b->n, 0.7f, b->soft);
  }
}

static void law_canvases(harness *h) {
  dream alone[2], mixed[2];
  talk t;
  if (h->info->canvas_length == 0) return;
  talk_open(h, &t, 60, PROMPT);
  for (uint32_t i = 0; i < 2; i++) {
    dream_open(h, &alone[i], 70 + i, 9 + 20 * i);
    dream_open(h, &mixed[i], 70 + i, 9 + 20 * i);
    harness_forget_pages(h);
    dream_alone(h, &alone[i]);
  }
  harness_forget_pages(h);
  dream_mixed(h, &mixed[0], &mixed[1], &t);
  for (uint32_t i = 0; i < 2; i++) {
    for (uint32_t k = 0; k < 4; k++) {
      same("canvas in a mixed step equals alone", h, mixed[i].logits[k], alone[i].logits[k], mixed[i].n);
    }
    dream_close(h, &alone[i]);
    dream_close(h, &mixed[i]);
  }
  same("decode beside canvases equals alone", h, t.got, t.wanted, t.seq.n_valid);
  talk_close(&t);
}

/* A canvas step leaves no trace in the cache. */
static void law_no_trace(harness *h) {
  if (h->info->canvas_length == 0) return;
  dream d;
  float *again = make_logits(h, h->info->canvas_length);
  dream_open(h, &d, 90, 17);
  harness_forget_pages(h);
  harness_piece piece = dream_prefill(&d);
  harness_run(h, &piece, 1);
  piece = dream_step(&d, 0);
  harness_run(h, &piece, 1);
  piece = dream_step(&d, 2); /* other tokens */
  harness_run(h, &piece, 1);
  piece = dream_step(&d, 0);
  piece.logits = again;
  harness_run(h, &piece, 1);
  same("a canvas step leaves no trace", h, again, d.logits[0], d.n);
  dream_close(h, &d);
  free(again);
}

/* The same request alone, again. */
static void law_again(harness *h) {
  int32_t *tokens = make_tokens(h, 5, LONG);
  float *logits[2];
  for (uint32_t i = 0; i < 2; i++) {
    harness_seq seq;
    harness_seq_open(&seq);
    harness_forget_pages(h);
    logits[i] = make_logits(h, LONG);
    feed(h, &seq, tokens, LONG, (const uint32_t[]){LONG - 9, 1, 1, 7}, 4, logits[i]);
    harness_seq_close(&seq);
  }
  same("alone, again", h, logits[1], logits[0], LONG);
  free(tokens);
  free(logits[0]);
  free(logits[1]);
  if (h->info->canvas_length == 0) return;
  dream d[2];
  for (uint32_t i = 0; i < 2; i++) {
    dream_open(h, &d[i], 70, 29);
    harness_forget_pages(h);
    dream_alone(h, &d[i]);
  }
  for (uint32_t k = 0; k < 4; k++) same("canvas alone, again", h, d[1].logits[k], d[0].logits[k], d[0].n);
  dream_close(h, &d[0]);
  dream_close(h, &d[1]);
}

static bool sums_are_free(const harness *h, weft_type type) {
  const char *tag = weft_device_kernels(h->device)->numerics(h->device, type);
  size_t n = strlen(tag);
  return n > 5 && strcmp(tag + n - 5, "-free") == 0;
}

static void run_subject(const subject *s) {
  weft_gguf *gguf = harness_gguf(harness_tiny(s->name));
  (void)snprintf(label, sizeof label, "%s as %s on %s %s", s->name, weft_type_find((int32_t)s->type)->name,
                 s->way.backend,
                 s->way.free_sums     ? "with free sums"
                 : s->way.isa != NULL ? s->way.isa
                                      : "");
  memset(&stored, 0, sizeof stored);
  requantise(gguf, s->type, &stored);
  (void)gguf_writer_finish(&stored);
  weft_gguf_close(gguf);
  harness h;
  harness_options options = options_of(s, 0, 2, true);
  open_subject(&h, &options);
  law_again(&h);
  if (sums_are_free(&h, s->type)) {
    harness_close(&h);
    gguf_writer_close(&stored);
    (void)printf("%-40s holds for the same request alone\n", label);
    return;
  }
  law_chunks(&h);
  law_outputs(&h);
  law_windows(&h);
  law_mixed_causal(&h);
  law_canvases(&h);
  law_no_trace(&h);
  harness_close(&h);
  law_pages(s);
  gguf_writer_close(&stored);
  (void)printf("%-40s holds\n", label);
}

/* Whether the arguments name this backend, and this file, with its number. */
static bool is_asked(int argc, char **argv, const char *backend, size_t file) {
  char *rest = NULL;
  if (argc > 1 && strcmp(argv[1], backend) != 0) return false;
  size_t turn = argc > 2 ? strtoul(argv[2], &rest, 10) : 0, turns = 1;
  if (rest != NULL && *rest == '/') turns = strtoul(rest + 1, NULL, 10);
  return turns < 2 || file % turns == turn;
}

int main(int argc, char **argv) {
  static const way ways[] = {{"ref", NULL, false},   {"cpu", NULL, false},  {"cpu", "portable", false},
                             {"cpu", "avx2", false}, {"cuda", NULL, false}, {"cuda", NULL, true}};
  static const struct {
    const char *name;
    weft_type type;
  } files[] = {
      {"dg-base", WEFT_TYPE_F32},         {"ar-fused-w4", WEFT_TYPE_F32},     {"dg-c16-w4", WEFT_TYPE_F32},
      {"dg-base", WEFT_TYPE_BF16},        {"dg-base", WEFT_TYPE_Q8_0},        {"dg-underscore", WEFT_TYPE_Q4_0},
      {"ar-dense", WEFT_TYPE_Q5_0},       {"ar-dense", WEFT_TYPE_Q5_1},       {"dg-base", WEFT_TYPE_IQ4_NL},
      {"dg-base", WEFT_TYPE_MXFP4},       {"ar-e2b", WEFT_TYPE_F32},          {"qwen3moe-base", WEFT_TYPE_F32},
      {"ar-e4b", WEFT_TYPE_BF16},         {"llama-window", WEFT_TYPE_Q8_0},   {"gpt-oss-base", WEFT_TYPE_F32},
      {"qwen35-base", WEFT_TYPE_F32},     {"qwen35-moe", WEFT_TYPE_BF16},     {"deepseek4-base", WEFT_TYPE_F32},
      {"deepseek4-deep", WEFT_TYPE_BF16}, {"gemma3-base", WEFT_TYPE_F32},     {"mistral3-base", WEFT_TYPE_F32},
      {"glm4moe-base", WEFT_TYPE_F32},    {"deepseek2-base", WEFT_TYPE_F32},  {"deepseek2-lite", WEFT_TYPE_BF16},
      {"deepseek41-base", WEFT_TYPE_F32}, {"deepseek41-deep", WEFT_TYPE_BF16}};
  size_t n_ref = test_amount(1, 1, 5);
  for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
    weft_device_config config = {.backend = ways[w].backend, .n_threads = 1, .isa = ways[w].isa};
    weft_device *device;
    weft_error error = {{0}};
    weft_status status = weft_device_open(&config, &device, &error);
    bool cuda = strcmp(ways[w].backend, "cuda") == 0;
    if (status != WEFT_OK && ways[w].isa == NULL && !cuda) harness_die(ways[w].backend, status, error.text);
    if (status != WEFT_OK) continue; /* not on this machine */
    weft_device_close(device);
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
      if (!is_asked(argc, argv, ways[w].backend, f)) continue;
      if (w == 0 && f >= n_ref) continue; /* the reference reads every type in the same way */
      if (w >= 2 && !cuda && (f == 1 || f == 2 || f == 5 || f > 6)) continue; /* other isas: one file per kind */
      subject s = {files[f].name, files[f].type, ways[w]};
      run_subject(&s);
    }
  }
  (void)printf("%u comparisons, all bits equal\n", n_compared);
  return argc == 1 || n_compared > 0 ? 0 : 77;
}
