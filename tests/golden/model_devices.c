/* SPDX-License-Identifier: MIT */
/* Every backend against cpu, one step at a time and teacher-forced: each step of the other backend begins with what
 * cpu's step began with (tokens, canvas, and the logits that the soft embedding is made of), so that nothing adds up
 * but the keys of its own prompt. Prompts, tokens and canvas steps of random tiny models in F32 and of the demo model
 * in F32, in 16 bits and quantised.
 *
 *   argmax    of a row must be cpu's, unless cpu's two largest logits are closer than `gap` times the row's range
 *   logits    F32 files: may be off by `off` times that range, entropies by `nats`
 *   canvas    the entropy-bound rule is a function of these numbers (kernels/kernels_canvas: the same bits everywhere);
 *             how often it takes other positions is printed
 *
 * Gaps: an F32 file's products are of f32 on every backend: 1e-4. The others' are not: cpu rounds a row to 8 bits in
 * blocks of 32 where weights are quantised, cuda to 16 bits; ref does not round. Then now and then a router takes
 * another expert, and a row's logits jump by a tenth of their range; so only rows that the model was trained to answer are
 * held to a gap, 2e-2 (1.7e-2 was seen between cpu and an H200, at the first step of a canvas of noise), and a random
 * model to none. That largest gap is of one row; what a mistake moves is all of them, so
 *
 *   half of the rows    are off by at most `median` of their range. Measured between cpu and ref: 2.6e-6 in F32; 8e-5 in 16
 *                       bits, where a card rounds rows too, to eight bits of mantissa; 5e-3 where cpu rounds rows to 8 bits
 *   other argmaxes      one, and a hundredth of the rows
 *
 * Last, the demo model with one weight changed must be told apart in F32, and with one output of one matrix turned in 16
 * and in 8 bits. golden/api_devices compares whole answers. */
#include "base/random.h"
#include "bench/doubles/canvas_step.h"
#include "model/sampler.h"
#include "model/text/tokenizer.h"
#include "tests/support/gguf_requantise.h"
#include "tests/support/model_harness.h"

enum { PROMPT_MAX = 64, DECODES = 16, STEPS = 6, ROWS_MAX = 256, TALLY_MAX = 4096 };

typedef struct epsilon {
  double gap, off, nats; /* off, nats 0: not asked */
  double median, others; /* of rows: how far half of them may be off; what share may have another argmax */
} epsilon;
static const epsilon in_f32 = {1e-4, 2e-4, 1e-3, 1e-5, 0.0};
static const epsilon in_16_bits = {0.02, 0.0, 0.0, 3e-3, 0.01}, in_8_bits = {0.02, 0.0, 0.0, 1e-2, 0.01};

typedef struct tally {
  uint32_t n_rows, n_other, n_steps, n_moved; /* moved: steps whose accepted positions differ */
  double gap, off, nats;                      /* largest; gap: of rows whose argmax differs */
  double row_off[TALLY_MAX], median;          /* of each row */
} tally;

typedef struct pair {
  harness cpu, other;
  harness_seq cpu_seq, other_seq;
  float *cpu_logits, *other_logits;
  const epsilon *allowed;
  tally tally;
  char why[200]; /* not empty: they are apart */
} pair;

/* ---- statistics of rows ---------------------------------------------------------------------------------- */

typedef struct row_facts {
  int32_t argmax, drawn;
  float entropy;
  double range, gap;
} row_facts;

static row_facts facts_of(const float *logits, uint32_t n, double temperature, double u) {
  row_facts f = {0};
  double low = INFINITY, second = -INFINITY, total = 0.0, weighted = 0.0, before = 0.0;
  for (uint32_t v = 0; v < n; v++)
    if (logits[v] > logits[f.argmax]) f.argmax = (int32_t)v;
  double top = (double)logits[f.argmax];
  for (uint32_t v = 0; v < n; v++) {
    double x = (double)logits[v], t = (x - top) / temperature;
    low = fmin(low, x);
    if ((int32_t)v != f.argmax) second = fmax(second, x);
    total += exp(t);
    weighted += exp(t) * t;
  }
  for (uint32_t v = 0; v < n; v++) {
    before += exp(((double)logits[v] - top) / temperature);
    f.drawn = (int32_t)v;
    if (before > u * total) break;
  }
  f.entropy = (float)(log(total) - weighted / total);
  f.range = top - low;
  f.gap = (top - second) / f.range;
  return f;
}

static void compare_row(pair *p, const float *a, const float *b, const row_facts *fa, const row_facts *fb,
                        const char *where) {
  double off = 0.0, nats = fabs((double)fa->entropy - (double)fb->entropy);
  for (uint32_t v = 0; v < p->cpu.info->n_vocab; v++) {
    double d = fabs((double)a[v] - (double)b[v]) / fa->range;
    if (!(d <= off)) off = d; /* NaN counts */
  }
  if (p->tally.n_rows == TALLY_MAX) harness_die("rows", WEFT_E_LIMIT, "TALLY_MAX is too small");
  p->tally.row_off[p->tally.n_rows] = off;
  p->tally.n_rows += 1;
  p->tally.off = fmax(p->tally.off, off);
  p->tally.nats = fmax(p->tally.nats, nats);
  bool other = fa->argmax != fb->argmax;
  p->tally.n_other += other;
  if (other) p->tally.gap = fmax(p->tally.gap, fa->gap);
  if (p->why[0] != 0) return;
  if (!isfinite(off) || (other && fa->gap >= p->allowed->gap))
    (void)snprintf(p->why, sizeof p->why, "%s: argmax %d, cpu %d; cpu's largest two are %.2e of the range apart", where,
                   fb->argmax, fa->argmax, fa->gap);
  else if (p->allowed->off > 0.0 && (off > p->allowed->off || nats > p->allowed->nats))
    (void)snprintf(p->why, sizeof p->why, "%s: logits are off by %.2e of the range, the entropy by %.2e nats", where,
                   off, nats);
}

/* ---- steps ----------------------------------------------------------------------------------------------- */

/* The same piece on both; soft: made of cpu's logits of the step before, at this temperature; 0: none. */
static void run_both(pair *p, const int32_t *tokens, uint32_t n, bool canvas, double temperature) {
  harness *h[2] = {&p->cpu, &p->other};
  harness_seq *seq[2] = {&p->cpu_seq, &p->other_seq};
  float *soft[2] = {NULL, NULL};
  for (uint32_t i = 0; i < 2 && temperature > 0.0; i++) {
    soft[i] = harness_memory(h[i], n, h[i]->info->n_hidden * sizeof(float));
    harness_soft(h[i], p->cpu_logits, n, (float)temperature, soft[i]);
  }
  for (uint32_t i = 0; i < 2; i++) {
    harness_piece piece = {.seq = seq[i],
                           .tokens = tokens,
                           .n = n,
                           .canvas = canvas,
                           .soft = soft[i],
                           .output = OUT_ALL,
                           .logits = i == 0 ? p->cpu_logits : p->other_logits};
    harness_run(h[i], &piece, 1);
    if (soft[i] != NULL) harness_release(h[i], soft[i]);
  }
}

/* answers: of the prompt only the last row counts. */
static void check_tokens(pair *p, const int32_t *prompt, uint32_t n_prompt, bool answers) {
  uint32_t n_vocab = p->cpu.info->n_vocab;
  int32_t next = 0;
  for (uint32_t step = 0; step <= DECODES; step++) {
    uint32_t n = step == 0 ? n_prompt : 1;
    run_both(p, step == 0 ? prompt : &next, n, false, 0.0);
    for (uint32_t r = answers ? n - 1 : 0; r < n; r++) {
      const float *a = p->cpu_logits + (size_t)r * n_vocab, *b = p->other_logits + (size_t)r * n_vocab;
      row_facts fa = facts_of(a, n_vocab, 1.0, 0.5), fb = facts_of(b, n_vocab, 1.0, 0.5);
      char where[64];
      (void)snprintf(where, sizeof where, "token %u", step == 0 ? r : n_prompt + step - 1);
      compare_row(p, a, b, &fa, &fb, where);
      next = fa.argmax;
    }
  }
}

/* A canvas of one device. Nothing is remembered between steps: what counts is which positions are accepted. */
typedef struct canvas {
  int32_t tokens[4][ROWS_MAX], history[WEFT_STABILITY_MAX * ROWS_MAX];
  float entropy[ROWS_MAX];
  uint32_t order[ROWS_MAX];
  uint8_t accepted[ROWS_MAX];
  weft_host_canvas host;
} canvas;

static void open_canvas(canvas *c, uint32_t n) {
  c->host = (weft_host_canvas){.n = n, .entropy = c->entropy, .accepted = c->accepted, .order = c->order};
  c->host.argmax = c->tokens[0], c->host.drawn = c->tokens[1], c->host.fresh = c->tokens[2],
  c->host.next = c->tokens[3];
  c->host.history = c->history;
}

static void judge_canvas(const weft_entropy_bound *rule, uint32_t step, canvas *c) {
  c->host.n_history = 0;
  (void)weft_host_canvas_step(&c->host, rule, step);
}

static void check_canvases(pair *p, const int32_t *prompt, uint32_t n_prompt, uint64_t seed) {
  uint32_t n = p->cpu.info->canvas_length, n_vocab = p->cpu.info->n_vocab;
  weft_entropy_bound rule = weft_entropy_bound_default();
  static canvas of[2];
  int32_t tokens[ROWS_MAX];
  if (n == 0) return;
  rule.max_steps = STEPS;
  for (uint32_t i = 0; i < 2; i++) open_canvas(&of[i], n);
  run_both(p, prompt, n_prompt, false, 0.0);
  for (uint32_t i = 0; i < n; i++) tokens[i] = (int32_t)(weft_mix64(seed + i) % n_vocab);
  for (uint32_t step = 0; step < STEPS; step++) {
    double t = (double)weft_entropy_bound_temperature(&rule, step);
    run_both(p, tokens, n, true, step == 0 ? 0.0 : (double)weft_entropy_bound_temperature(&rule, step - 1));
    for (uint32_t r = 0; r < n; r++) {
      double u = (double)(weft_mix64(seed * 31 + step * n + r) >> 11) * 0x1p-53;
      row_facts f[2];
      for (uint32_t i = 0; i < 2; i++) {
        f[i] = facts_of((i == 0 ? p->cpu_logits : p->other_logits) + (size_t)r * n_vocab, n_vocab, t, u);
        const weft_host_canvas *host = &of[i].host;
        host->argmax[r] = f[i].argmax, host->drawn[r] = f[i].drawn, host->entropy[r] = f[i].entropy;
        host->fresh[r] = (int32_t)(weft_mix64(seed * 37 + step * n + r) % n_vocab);
      }
      char where[64];
      (void)snprintf(where, sizeof where, "canvas step %u, position %u", step, r);
      compare_row(p, p->cpu_logits + (size_t)r * n_vocab, p->other_logits + (size_t)r * n_vocab, &f[0], &f[1], where);
    }
    for (uint32_t i = 0; i < 2; i++) judge_canvas(&rule, step, &of[i]);
    p->tally.n_steps += 1;
    p->tally.n_moved += memcmp(of[0].accepted, of[1].accepted, n) != 0;
    memcpy(tokens, of[0].host.next, n * sizeof *tokens);
  }
}

/* ---- subjects -------------------------------------------------------------------------------------------- */

typedef struct subject {
  const char *file; /* below WEFT_SOURCE_DIR, without ".gguf" */
  weft_type type;   /* of matrices; NONE: as they are */
  const epsilon *allowed;
  bool asks; /* prompts are questions */
} subject;

static const char *const questions[] = {"88 - 68 =", "Put in falling order: 92 22 33 90",
                                        "Write in title case: drum horse", "Name 3 different animals, but not fox."};

static uint32_t make_prompt(const weft_gguf *gguf, const subject *s, uint32_t index, uint32_t n_vocab, int32_t *out) {
  if (!s->asks) {
    for (uint64_t i = 0; i < 24; i++) out[i] = (int32_t)(weft_mix64(index * 1000 + i) % n_vocab);
    return 24;
  }
  weft_tokenizer *tokenizer;
  weft_tokens tokens = {0};
  weft_error error = {{0}};
  char text[200];
  (void)snprintf(text, sizeof text, "<bos><|turn>user\n%s<turn|>\n<|turn>model\n", questions[index]);
  weft_status status = weft_tokenizer_open(gguf, &tokenizer, &error);
  if (status == WEFT_OK)
    status = weft_tokenizer_encode(tokenizer, text, strlen(text), WEFT_ENCODE_PARSE_SPECIAL, &tokens, &error);
  if (status != WEFT_OK || tokens.n > PROMPT_MAX) harness_die("prompt", status, error.text);
  uint32_t n = tokens.n;
  memcpy(out, tokens.ids, n * sizeof *out);
  weft_tokens_free(&tokens);
  weft_tokenizer_close(tokenizer);
  return n;
}

static void open_harness(harness *h, const subject *s, const gguf_writer *stored, const char *path,
                         const char *backend) {
  harness_options options = {.backend = backend, .n_threads = 2, .rows_max = ROWS_MAX, .n_pages = 512};
  weft_gguf *gguf;
  weft_error error = {{0}};
  weft_status status = s->type == WEFT_TYPE_NONE
                           ? weft_gguf_open(path, &gguf, &error)
                           : weft_gguf_open_memory(stored->file.bytes, stored->file.n, path, &gguf, &error);
  if (status != WEFT_OK) harness_die(path, status, error.text);
  harness_open_gguf(h, gguf, path, &options);
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* What all rows say together, which the jumps of a few cannot hide. */
static void judge_rows(pair *p) {
  tally *t = &p->tally;
  qsort(t->row_off, t->n_rows, sizeof *t->row_off, by_size);
  t->median = t->row_off[t->n_rows / 2];
  if (p->why[0] != 0) return;
  if (t->median > p->allowed->median)
    (void)snprintf(p->why, sizeof p->why, "half of the rows are off by more than %.2e of their range", t->median);
  else if (t->n_other > 1 + t->n_rows * p->allowed->others)
    (void)snprintf(p->why, sizeof p->why, "%u of %u rows have another argmax", t->n_other, t->n_rows);
}

/* stored: of the other backend; false: they are apart, and p->why says where. */
static bool play(pair *p, const subject *s, const gguf_writer *of_cpu, const gguf_writer *of_other, const char *path,
                 const char *backend) {
  memset(p, 0, sizeof *p);
  p->allowed = s->allowed;
  open_harness(&p->cpu, s, of_cpu, path, "cpu");
  open_harness(&p->other, s, of_other, path, backend);
  uint32_t n_vocab = p->cpu.info->n_vocab;
  p->cpu_logits = harness_alloc((size_t)ROWS_MAX * n_vocab, sizeof(float));
  p->other_logits = harness_alloc((size_t)ROWS_MAX * n_vocab, sizeof(float));
  uint32_t n_plays = 2 * test_amount(1, 1, 4); /* each prompt token by token, then by canvases */
  for (uint32_t i = 0; i < n_plays; i++) {
    int32_t prompt[PROMPT_MAX];
    uint32_t n = make_prompt(p->cpu.gguf, s, i / 2, n_vocab, prompt);
    harness_seq_open(&p->cpu_seq);
    harness_seq_open(&p->other_seq);
    harness_forget_pages(&p->cpu);
    harness_forget_pages(&p->other);
    if (i % 2 == 0)
      check_tokens(p, prompt, n, s->asks);
    else
      check_canvases(p, prompt, n, i);
    harness_seq_close(&p->cpu_seq);
    harness_seq_close(&p->other_seq);
  }
  judge_rows(p);
  free(p->cpu_logits);
  free(p->other_logits);
  harness_close(&p->cpu);
  harness_close(&p->other);
  return p->why[0] == 0;
}

/* The other sign for one output of one matrix, in a file of F32. */
static void turn_output(gguf_writer *w, const char *name) {
  weft_gguf *gguf;
  weft_error error = {{0}};
  weft_bytes file = gguf_writer_finish(w);
  weft_status status = weft_gguf_open_memory(file.data, file.n, name, &gguf, &error);
  if (status != WEFT_OK) harness_die(name, status, error.text);
  const weft_gguf_tensor *tensor = weft_gguf_tensor_find(gguf, name);
  if (tensor == NULL) harness_die(name, WEFT_E_NOT_FOUND, "no such matrix");
  float *values = (float *)(w->file.bytes + ((const char *)tensor->data - (const char *)w->file.bytes));
  for (uint64_t i = 0; i < tensor->ne[0]; i++) values[i] = -values[i];
  weft_gguf_close(gguf);
}

/* Fills w with the file as its subject says. spoil: in F32 a weight in the middle becomes another; in other types one
 * output of one matrix changes its sign. */
static void store(const subject *s, const char *path, bool spoil, gguf_writer *w) {
  weft_gguf *from;
  weft_error error = {{0}};
  gguf_writer turned = {0};
  if (s->type == WEFT_TYPE_NONE) return;
  weft_status status = weft_gguf_open(path, &from, &error);
  if (status != WEFT_OK) harness_die(path, status, error.text);
  if (spoil && s->type != WEFT_TYPE_F32) {
    requantise(from, WEFT_TYPE_F32, &turned);
    turn_output(&turned, "blk.2.attn_output.weight");
    weft_gguf_close(from);
    status = weft_gguf_open_memory(turned.file.bytes, turned.file.n, path, &from, &error);
    if (status != WEFT_OK) harness_die(path, status, error.text);
  }
  requantise(from, s->type, w);
  weft_gguf_close(from);
  gguf_writer_close(&turned);
  float one = 1.0f; /* weights are far smaller */
  if (spoil && s->type == WEFT_TYPE_F32) memcpy(w->data.bytes + w->data.n / 2 / 4 * 4, &one, sizeof one);
  (void)gguf_writer_finish(w);
}

static bool is_here(const char *backend) {
  weft_device_config config = {.backend = backend, .n_threads = 1};
  weft_device *device;
  weft_status status = weft_device_open(&config, &device, NULL);
  if (status == WEFT_OK) weft_device_close(device);
  return status == WEFT_OK;
}

static void run(const subject *s, const char *backend) {
  char path[512];
  static pair p;
  gguf_writer stored = {0};
  const char *type = s->type == WEFT_TYPE_NONE ? "as it is" : weft_type_find((int32_t)s->type)->name;
  (void)snprintf(path, sizeof path, "%s/%s.gguf", WEFT_SOURCE_DIR, s->file);
  store(s, path, false, &stored);
  bool same = play(&p, s, &stored, &stored, path, backend);
  gguf_writer_close(&stored);
  (void)printf(
      "%-36s %-8s %-4s %5u rows: %3u another argmax, gap at most %.1e; logits within %.1e of the range (half "
      "of the rows within %.1e, nine of ten within %.1e), entropies "
      "within %.1e nats; %u of %u canvas steps accept others\n",
      s->file, type, backend, p.tally.n_rows, p.tally.n_other, p.tally.gap, p.tally.off, p.tally.median,
      p.tally.row_off[p.tally.n_rows * 9 / 10], p.tally.nats, p.tally.n_moved, p.tally.n_steps);
  if (same) return;
  (void)printf("FAILED: %s: %s\n", s->file, p.why);
  exit(1);
}

static void run_spoiled(const subject *s, const char *what) {
  static pair p;
  char path[512];
  gguf_writer good = {0}, spoiled = {0};
  (void)snprintf(path, sizeof path, "%s/%s.gguf", WEFT_SOURCE_DIR, s->file);
  store(s, path, false, &good);
  store(s, path, true, &spoiled);
  bool same = play(&p, s, &good, &spoiled, path, "cpu");
  gguf_writer_close(&good);
  gguf_writer_close(&spoiled);
  if (same) harness_die(what, WEFT_E_INVALID, "nobody saw it");
  (void)printf("%s: %s (half of the rows within %.1e, the largest gap %.1e, %u of %u rows with another argmax)\n", what,
               p.why, p.tally.median, p.tally.gap, p.tally.n_other, p.tally.n_rows);
}

int main(void) {
  static const subject subjects[] = {
      {"tests/golden/models/ar-base", WEFT_TYPE_NONE, &in_f32, false},
      {"tests/golden/models/ar-fused-w4", WEFT_TYPE_NONE, &in_f32, false},
      {"tests/golden/models/dg-base", WEFT_TYPE_NONE, &in_f32, false},
      {"tests/golden/models/dg-c16-w4", WEFT_TYPE_NONE, &in_f32, false},
      {"tests/golden/models/dg-deep", WEFT_TYPE_NONE, &in_f32, false},
      {"tests/golden/models/dg-top1", WEFT_TYPE_NONE, &in_f32, false},
      {"model/demo/weft-demo", WEFT_TYPE_F32, &in_f32, true},
      {"model/demo/weft-demo", WEFT_TYPE_NONE, &in_8_bits, true},
      {"model/demo/weft-demo-ar", WEFT_TYPE_NONE, &in_8_bits, true},
      {"model/demo/weft-demo", WEFT_TYPE_BF16, &in_16_bits, true},
      {"model/demo/weft-demo", WEFT_TYPE_F16, &in_16_bits, true},
      {"model/demo/weft-demo", WEFT_TYPE_Q4_0, &in_8_bits, true},
  };
  static const char *const backends[] = {"ref", "cuda"};
  for (size_t b = 0; b < 2; b++) {
    if (!is_here(backends[b])) {
      (void)printf("%s: not on this machine\n", backends[b]);
      continue;
    }
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++) run(&subjects[i], backends[b]);
  }
  run_spoiled(&(subject){"model/demo/weft-demo", WEFT_TYPE_F32, &in_f32, true}, "one weight spoiled");
  run_spoiled(&(subject){"model/demo/weft-demo", WEFT_TYPE_BF16, &in_16_bits, true}, "one output turned, 16 bits");
  run_spoiled(&(subject){"model/demo/weft-demo", WEFT_TYPE_Q8_0, &in_8_bits, true}, "one output turned, 8 bits");
  return 0;
}
