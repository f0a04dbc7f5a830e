/* SPDX-License-Identifier: MIT */
/* sample on every device against ref: tokens, logits, totals and logprobs are equal bit for bit, of whatever row.
 *
 * Rows: spread as a model's, in few distinct values, all equal, one finite, none, NaN and infinities among them, wide.
 * What is asked: every parameter off or on, at the ends of its range too; histories with repeated tokens, tokens beyond
 * the vocabulary and one that is only in its cell; biases that name a token twice; a mask. */
#include "tests/kernels/harness.h"

enum { ROWS = 24, CELLS = 2 * ROWS, HISTORY = 160, BIASES = 40, KINDS = 8 };

/* What a call is given; device-readable. */
typedef struct wishes {
  uint32_t n_vocab, n_rows;
  float *logits;
  uint8_t *bad;
  weft_sample_row *row;
  int32_t *history, *cells;
  weft_logit_bias *bias;
  uint32_t *allowed;
  bool masked;
} wishes;

static uint32_t below(uint64_t seed, uint64_t i, uint32_t n) {
  weft_draw_key key = {.seed = seed, .purpose = WEFT_DRAW_TEST, .position = i};
  return weft_draw_below(&key, n);
}

static void fill_logits(float *x, uint32_t n, uint32_t kind, uint64_t seed) {
  for (uint32_t v = 0; v < n; v++) {
    float spread = random_normal(seed, v);
    x[v] = spread * 3.0f;
    if (kind == 1) x[v] = floorf(spread * 2.0f);
    if (kind == 2) x[v] = 1.25f;
    if (kind == 3) x[v] = v == n / 2 ? -3.0f : -INFINITY;
    if (kind == 4) x[v] = v % 2 == 0 ? NAN : -INFINITY;
    if (kind == 5 && v % 3 != 1) x[v] = v % 3 == 0 ? NAN : INFINITY;
    if (kind == 6) x[v] = spread * 1e4f;
    if (kind == 7) x[v] = spread * 1e-3f;
  }
}

static void ask(wishes *w, uint32_t r, uint64_t seed) {
  static const float temperatures[8] = {1.0f, 0.0f, 0.7f, 0.01f, 100.0f, 1e-42f, 0.4f, 1.5f};
  static const float top_p[6] = {1.0f, 0.9f, 1e-30f, 0.5f, 0.999f, 0x1.fffffep-1f};
  static const float min_p[4] = {0.0f, 0.05f, 1.0f, 1e-4f};
  const uint32_t top_k[8] = {0, 1, 2, 20, 40, 1000, w->n_vocab, w->n_vocab + 5};
  weft_sample_row *row = &w->row[r];
  uint32_t p = below(seed, 3, 4);
  *row = (weft_sample_row){.temperature = temperatures[below(seed, 0, 8)],
                           .u = random_uniform(seed, 1),
                           .top_k = top_k[below(seed, 2, 8)],
                           .top_p = top_p[below(seed, 4, 6)],
                           .min_log = min_p[p] > 0.0f ? logf(min_p[p]) : -INFINITY,
                           .repetition = 1.0f,
                           .cell = r % 4 == 3 ? -1 : (int32_t)(2 * r + 1),
                           .logprobs = below(seed, 5, 2)};
  if (r % 5 == 0) row->u = r % 2 == 0 ? 0.0f : 0x1.fffffep-1f;
  if (row->logprobs != 0) row->n_top = below(seed, 6, WEFT_TOP_LOGPROBS_MAX + 1);
  if (below(seed, 7, 2) == 0) return;
  row->repetition = below(seed, 8, 2) == 0 ? 1.0f : 1.3f;
  row->presence = (float)below(seed, 9, 3) * 0.5f - 0.5f;
  row->frequency = (float)below(seed, 10, 3) * 0.25f;
  row->history_at = r * HISTORY / 2;
  row->n_history = below(seed, 11, HISTORY);
  row->n_prompt = below(seed, 12, row->n_history + 1);
  row->pending = row->cell >= 0 ? below(seed, 13, 2) : 0;
  row->bias_at = r;
  row->n_bias = below(seed, 14, BIASES);
}

static wishes make(uint32_t n_vocab, uint32_t n_rows, uint64_t seed) {
  wishes w = {.n_vocab = n_vocab, .n_rows = n_rows, .masked = seed % 3 == 0};
  uint32_t n_history = ROWS * HISTORY, n_bias = ROWS + BIASES, n_words = (n_vocab + 31) / 32;
  w.logits = memory_new((size_t)n_rows * n_vocab, sizeof *w.logits);
  w.bad = memory_new(n_rows, 1);
  w.row = memory_new(n_rows, sizeof *w.row);
  w.history = memory_new(n_history, sizeof *w.history);
  w.cells = memory_new(CELLS, sizeof *w.cells);
  w.bias = memory_new(n_bias, sizeof *w.bias);
  w.allowed = memory_new(n_words, sizeof *w.allowed);
  for (uint32_t i = 0; i < n_history; i++) {
    w.history[i] = i % 31 == 0 ? -1 : (int32_t)below(seed + 1, i, i % 3 == 0 ? (n_vocab + 7) / 8 : n_vocab + 2);
  }
  for (uint32_t i = 0; i < n_bias; i++) {
    w.bias[i] = (weft_logit_bias){(int32_t)below(seed + 2, i, n_vocab), (float)below(seed + 3, i, 9) - 4.0f};
    if (i % 4 == 1) w.bias[i].token = w.bias[i - 1].token;
  }
  for (uint32_t i = 0; i < n_words; i++) w.allowed[i] = below(seed + 4, i, UINT32_MAX) | 4u;
  for (uint32_t i = 0; i < CELLS; i++) w.cells[i] = (int32_t)below(seed + 5, i, n_vocab);
  for (uint32_t r = 0; r < n_rows; r++) {
    fill_logits(w.logits + (size_t)r * n_vocab, n_vocab, below(seed + 6, r, KINDS), seed + 100 + r);
    ask(&w, r, seed + 200 + r);
    w.bad[r] = r == 7 ? 1 : 0;
  }
  return w;
}

static void give_back(wishes *w) {
  void *const parts[] = {w->logits, w->bad, w->row, w->history, w->cells, w->bias, w->allowed};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) memory_free(parts[i]);
}

/* Rows [first, first + n) on copies of logits and cells. */
static buffer run(weft_device *device, const wishes *w, uint32_t first, uint32_t n, int32_t *cells) {
  size_t logits_bytes = (size_t)n * w->n_vocab * sizeof(float);
  buffer logits = buffer_new(logits_bytes), out = buffer_new(n * sizeof(weft_sample_result));
  int32_t *own_cells = memory_new(CELLS, sizeof *own_cells);
  memcpy(logits.data, w->logits + (size_t)first * w->n_vocab, logits_bytes);
  memcpy(own_cells, w->cells, CELLS * sizeof *own_cells);
  weft_sample_args args = {.logits = logits.data,
                           .bad = w->bad + first,
                           .row = w->row + first,
                           .history = w->history,
                           .bias = w->bias,
                           .cells = own_cells,
                           .allowed = w->masked ? w->allowed : NULL,
                           .out = out.data,
                           .n_rows = n,
                           .n_vocab = w->n_vocab,
                           .logits_stride = w->n_vocab};
  RUN_OP(sample, device, &args);
  memcpy(cells, own_cells, CELLS * sizeof *cells);
  memory_free(own_cells);
  buffer_free(&logits);
  return out;
}

static void assert_result(const char *device, const wishes *w, uint32_t r, const weft_sample_result *a,
                          const weft_sample_result *b) {
  bool same = a->token == b->token && a->bad == b->bad && a->logit == b->logit && a->most == b->most &&
              a->total == b->total && a->n_top == b->n_top;
  for (uint32_t i = 0; same && i < a->n_top; i++) {
    same = a->top[i].token == b->top[i].token && a->top[i].logit == b->top[i].logit;
  }
  const weft_sample_row *row = &w->row[r];
  if (same) return;
  fail_msg(
      "%s: row %u of %u tokens (temperature %g, top_k %u, top_p %g, min_log %g, top %u): token %d, logit %.9g, most "
      "%.9g, total %llu, %u best; ref: %d, %.9g, %.9g, %llu, %u",
      device, r, w->n_vocab, (double)row->temperature, row->top_k, (double)row->top_p, (double)row->min_log, row->n_top,
      a->token, (double)a->logit, (double)a->most, (unsigned long long)a->total, a->n_top, b->token, (double)b->logit,
      (double)b->most, (unsigned long long)b->total, b->n_top);
}

static void test_equals_ref(void **state) {
  const devices *all = *state;
  static const uint32_t vocabs[] = {1, 2, 5, 33, 128, 700, 4099, 30011, 262144};
  for (uint32_t i = case_first; i < 9 * 6; i += case_step) {
    uint32_t n_vocab = vocabs[i % 9], n_rows = n_vocab > 100000 ? 3 : ROWS;
    int32_t want_cells[CELLS], cells[CELLS];
    wishes w = make(n_vocab, n_rows, 7000 + 1000 * (uint64_t)i);
    buffer want = run(all->ref, &w, 0, n_rows, want_cells);
    const weft_sample_result *ref = want.data;
    for (uint32_t d = 0; d < all->n; d++) {
      if (d + 1 < all->n_cpu) continue; /* the op has one text for all instruction sets */
      buffer got = run(all->cpu[d], &w, 0, n_rows, cells);
      for (uint32_t r = 0; r < n_rows; r++) {
        assert_result(all->name[d], &w, r, (const weft_sample_result *)got.data + r, &ref[r]);
      }
      assert_same("sample", all->name[d], "a cell", cells, want_cells, sizeof cells);
      buffer_free(&got);
      uint32_t r = i % n_rows; /* and alone */
      got = run(all->cpu[d], &w, r, 1, cells);
      assert_result(all->name[d], &w, r, got.data, &ref[r]);
      buffer_free(&got);
    }
    buffer_free(&want);
    give_back(&w);
  }
}

static void test_bad_rows_say_so(void **state) {
  const devices *all = *state;
  for (uint32_t d = 0; d <= all->n; d++) {
    weft_device *device = d == all->n ? all->ref : all->cpu[d];
    wishes w = make(700, ROWS, 3000);
    int32_t cells[CELLS];
    for (uint32_t r = 0; r < ROWS; r++) fill_logits(w.logits + (size_t)r * 700, 700, r % 2 == 0 ? 4 : 0, r);
    buffer out = run(device, &w, 0, ROWS, cells);
    for (uint32_t r = 0; r < ROWS; r++) {
      const weft_sample_result *result = (const weft_sample_result *)out.data + r;
      assert_int_equal(result->bad, r % 2 == 0 || r == 7 ? 1 : 0);
      assert_true(result->bad == 0 || (result->token == 0 && result->total == 0 && result->n_top == 0));
    }
    buffer_free(&out);
    give_back(&w);
  }
}

/* The one number that all backends share: against the exponential; and draws against it. */
static void test_weights(void **state) {
  (void)state;
  assert_true(weft_sample_weight(0.0f) == (uint64_t)1 << 40);
  assert_true(weft_sample_weight(-INFINITY) == 0 && weft_sample_weight(NAN) == 0 && weft_sample_weight(-30.0f) == 0);
  for (uint32_t i = 1; i < 100000; i++) {
    float x = -28.0f * random_uniform(1, i);
    double want = exp((double)x) * 0x1p40, off = fabs((double)weft_sample_weight(x) - want);
    assert_within("weight", "host", off, 1.0 + want * 0x1p-20);
  }
}

int main(int argc, char **argv) {
  take_arguments(argc, argv);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_weights),
      cmocka_unit_test(test_equals_ref),
      cmocka_unit_test(test_bad_rows_say_so),
  };
  return cmocka_run_group_tests(tests, setup_devices, teardown_devices);
}
