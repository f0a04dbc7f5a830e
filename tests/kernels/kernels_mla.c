/* SPDX-License-Identifier: MIT */
/* Latent rows whose rotating part is a key beside them, of which the other numbers are values, and products by head:
 * ref against what kernels/latent.h defines, every device against ref, and rows one by one against all at once. */
#include "tests/kernels/harness.h"

static float *new_floats(uint64_t n, uint64_t seed) {
  float *x = memory_new(n + 1, sizeof *x);
  fill_normal(x, n, seed);
  return x;
}

/* ---- latent_heads ---- */

typedef struct heads_case {
  uint32_t n_rows, n_heads, n_in, n_out, n_rest;
} heads_case;

static void multiply(weft_device *device, const heads_case *c, const float *x, const float *weight, uint32_t first,
                     uint32_t n_rows, float *y) {
  const uint64_t x_cols = (uint64_t)c->n_heads * (c->n_in + c->n_rest) + 4,
                 y_cols = (uint64_t)c->n_heads * (c->n_out + c->n_rest) + 6;
  const weft_latent_heads_args args = {.x = x + first * x_cols,
                                       .weight = weight,
                                       .y = y + first * y_cols,
                                       .n_rows = n_rows,
                                       .n_heads = c->n_heads,
                                       .n_in = c->n_in,
                                       .n_out = c->n_out,
                                       .n_rest = c->n_rest,
                                       .x_stride = x_cols,
                                       .y_stride = y_cols};
  assert_int_equal(done(device, weft_latent_heads(device, &args)), WEFT_OK);
}

/* Number i of a row's y, by its definition. */
static double heads_by(const heads_case *c, const float *x, const float *weight, uint32_t i) {
  const uint32_t n_y = c->n_out + c->n_rest, head = i / n_y, at = i % n_y;
  double sum = 0.0;
  x += (uint64_t)head * (c->n_in + c->n_rest);
  if (at >= c->n_out) return (double)x[c->n_in + at - c->n_out];
  for (uint32_t k = 0; k < c->n_in; k++)
    sum += (double)weight[((uint64_t)head * c->n_out + at) * c->n_in + k] * (double)x[k];
  return sum;
}

/* Sums of n_in products below 5 * 5, each rounded: n_in * 25 * 2^-24 at most; chains of a random walk reach a tenth. On
 * a card numbers are sums of two of bf16, so that a product is off by 2^-17 of it, at random signs. */
static double heads_tolerance(const heads_case *c, bool on_card) {
  return c->n_in * 25 * 0x1p-24 + (on_card ? 25 * sqrt((double)c->n_in) * 0x1p-17 : 0.0);
}

static void test_heads(void **state) {
  static const heads_case cases[] = {{1, 3, 16, 24, 8},    {9, 3, 5, 7, 2},        {5, 2, 192, 96, 64},
                                     {70, 2, 300, 65, 0},  {8, 1, 257, 33, 16},    {66, 5, 12, 70, 4},
                                     {70, 2, 192, 96, 64}, {130, 2, 128, 256, 64}, {65, 1, 192, 128, 0}};
  const devices *all = *state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const heads_case *c = &cases[i];
    const uint32_t x_cols = c->n_heads * (c->n_in + c->n_rest) + 4, n_y = c->n_heads * (c->n_out + c->n_rest);
    const uint64_t y_cols = n_y + 6;
    float *x = new_floats((uint64_t)c->n_rows * x_cols, 3 * i + 1),
          *weight = new_floats((uint64_t)c->n_heads * c->n_out * c->n_in, 3 * i + 2),
          *y[2] = {new_floats(c->n_rows * y_cols, 3 * i + 3), new_floats(c->n_rows * y_cols, 3 * i + 3)};
    for (uint32_t d = 0; d <= all->n; d++) {
      weft_device *device = d == 0 ? all->ref : all->cpu[d - 1];
      const double tolerance = heads_tolerance(c, is_cuda(device));
      multiply(device, c, x, weight, 0, c->n_rows, y[0]);
      for (uint32_t r = 0; r < c->n_rows; r++) multiply(device, c, x, weight, r, 1, y[1]);
      for (uint32_t r = 0; r < c->n_rows; r++) {
        assert_memory_equal(y[0] + r * y_cols, y[1] + r * y_cols, n_y * sizeof(float));
        for (uint32_t k = 0; k < n_y; k++)
          assert_true(fabs((double)y[0][r * y_cols + k] - heads_by(c, x + (uint64_t)r * x_cols, weight, k)) <=
                      tolerance);
      }
    }
    void *const memory[] = {x, weight, y[0], y[1]};
    for (size_t j = 0; j < sizeof memory / sizeof *memory; j++) memory_free(memory[j]);
  }
}

/* ---- rows that are parted, and attention to their values ---- */

enum { BLOCK = 16, POSITIONS = 75, ROTATED = 8 };
typedef struct parted_case {
  weft_type type;
  uint32_t width, n_rotated, n_heads;
  double tolerance;
  uint32_t n_before; /* rows that are only stored, before those that are compared */
  bool of_cards;     /* many rows and heads: on cards alone, whose kernels of few rows were compared with ref */
} parted_case;

typedef struct parted_world {
  const parted_case *c;
  float *q, *kv, *kv_norm, *inv_freq, *out;
  buffer pool;
  uint32_t *table;
} parted_world;

static weft_latent_view view_of(const parted_world *w) {
  const uint64_t bytes = BLOCK * weft_kv_row_bytes(w->c->type, w->c->width), page = (bytes + 31) / 16 * 16;
  return (weft_latent_view){.base = w->pool.data,
                            .type = w->c->type,
                            .page_bytes = page,
                            .offset = 16,
                            .block_tokens = BLOCK,
                            .positions = 1,
                            .width = w->c->width};
}

static void open_parted(parted_world *w, const parted_case *c, uint64_t seed) {
  const uint32_t n_all = c->n_before + POSITIONS, n_pages = n_all / BLOCK + 1;
  *w = (parted_world){.c = c};
  w->q = new_floats((uint64_t)n_all * c->n_heads * c->width, seed);
  w->kv = new_floats((uint64_t)n_all * c->width, seed + 1);
  w->kv_norm = new_floats(c->width - c->n_rotated, seed + 2);
  w->inv_freq = new_floats(c->n_rotated / 2, seed + 3);
  w->out = new_floats((uint64_t)POSITIONS * c->n_heads * (c->width - c->n_rotated), 0);
  w->pool = buffer_new(n_pages * view_of(w).page_bytes);
  w->table = memory_new(n_pages, sizeof *w->table);
  for (uint32_t i = 0; i < n_pages; i++) w->table[i] = n_pages - 1 - i;
}

static void close_parted(parted_world *w) {
  void *const memory[] = {w->q, w->kv, w->kv_norm, w->inv_freq, w->out, w->table};
  for (size_t j = 0; j < sizeof memory / sizeof *memory; j++) memory_free(memory[j]);
  buffer_free(&w->pool);
}

/* Rows from a position on. Those before n_before are stored and no more. */
static void run_parted(weft_device *device, const parted_world *w, uint32_t first, uint32_t n) {
  const parted_case *c = w->c;
  const uint32_t n_values = c->width - c->n_rotated;
  const uint64_t q_cols = (uint64_t)c->n_heads * c->width, out_cols = (uint64_t)c->n_heads * n_values;
  float *q = new_floats(n * q_cols, 0);
  memcpy(q, w->q + first * q_cols, n * q_cols * sizeof *q);
  weft_latent_segment segment = {.n_rows = n, .kv_len = first};
  segment.table[WEFT_LATENT_NEAR] = w->table;
  const weft_latent_rows_args rows = {.near = view_of(w),
                                      .q = q,
                                      .kv = w->kv + (uint64_t)first * c->width,
                                      .kv_norm = w->kv_norm,
                                      .turn = {w->inv_freq, c->n_rotated},
                                      .segment = &segment,
                                      .n_segments = 1,
                                      .n_rows = n,
                                      .n_heads = c->n_heads,
                                      .q_stride = q_cols,
                                      .kv_stride = c->width,
                                      .eps = 1e-6f,
                                      .parted = true};
  assert_int_equal(done(device, weft_latent_rows(device, &rows)), WEFT_OK);
  const bool is_compared = first >= c->n_before;
  const weft_latent_attend_args attend = {.near = view_of(w),
                                          .q = q,
                                          .out = w->out + (is_compared ? first - c->n_before : 0) * out_cols,
                                          .turn = {w->inv_freq, c->n_rotated},
                                          .segment = &segment,
                                          .n_segments = 1,
                                          .n_rows = n,
                                          .n_heads = c->n_heads,
                                          .window = UINT32_MAX,
                                          .n_values = n_values,
                                          .scale = 1.0f / sqrtf((float)c->width),
                                          .q_stride = q_cols,
                                          .out_stride = out_cols};
  if (is_compared) assert_int_equal(done(device, weft_latent_attend(device, &attend)), WEFT_OK);
  memory_free(q);
}

static void turn_by(const parted_world *w, double *x, uint32_t position) {
  for (uint32_t i = 0; i < w->c->n_rotated / 2; i++) {
    double *pair = x + w->c->width - w->c->n_rotated + 2 * i, a = pair[0], b = pair[1];
    double angle = (double)(float)((float)position * w->inv_freq[i]);
    pair[0] = a * cos(angle) - b * sin(angle);
    pair[1] = b * cos(angle) + a * sin(angle);
  }
}

/* The result of a head of the row at a position, by its definition, of rows that are stored as they are. */
static void attend_by(const parted_world *w, uint32_t position, uint32_t head, double *out) {
  const uint32_t n = w->c->width, n_values = n - w->c->n_rotated;
  double q[64], row[64], total = 0.0;
  for (uint32_t i = 0; i < n; i++) q[i] = (double)w->q[((uint64_t)position * w->c->n_heads + head) * n + i];
  turn_by(w, q, position);
  for (uint32_t i = 0; i < n_values; i++) out[i] = 0.0;
  for (uint32_t at = 0; at <= position; at++) {
    double squares = 0.0, score = 0.0;
    for (uint32_t i = 0; i < n; i++) row[i] = (double)w->kv[(uint64_t)at * n + i];
    for (uint32_t i = 0; i < n_values; i++) squares += row[i] * row[i];
    for (uint32_t i = 0; i < n_values; i++) row[i] *= (double)w->kv_norm[i] / sqrt(squares / n_values + 1e-6);
    turn_by(w, row, at);
    for (uint32_t i = 0; i < n; i++) score += q[i] * row[i];
    double share = exp(score / sqrt((double)n));
    total += share;
    for (uint32_t i = 0; i < n_values; i++) out[i] += share * row[i];
  }
  for (uint32_t i = 0; i < n_values; i++) out[i] /= total;
}

static void check_definition(const parted_world *w) {
  const uint32_t n_values = w->c->width - w->c->n_rotated;
  double out[64];
  for (uint32_t p = 0; p < POSITIONS; p++) {
    for (uint32_t h = 0; h < w->c->n_heads; h++) {
      attend_by(w, p, h, out);
      const float *got = w->out + ((uint64_t)p * w->c->n_heads + h) * n_values;
      for (uint32_t i = 0; i < n_values; i++) assert_true(fabs((double)got[i] - out[i]) <= 25 * 64 * 0x1p-24);
    }
  }
}

/* Tolerances are those of kernels_latent.c: rows of f32 differ by roundings of scores, others by those of queries and
 * shares where a card has them in bf16. */
static void test_parted(void **state) {
  static const parted_case cases[] = {{WEFT_TYPE_F32, 40, ROTATED, 3, 25 * 64 * 0x1p-24, 0, false},
                                      {WEFT_TYPE_BF16, 40, ROTATED, 3, 25 * 64 * 0x1p-24 + 5 * 0x1p-8, 0, false},
                                      {WEFT_TYPE_Q8_0, 96, 32, 2, 25 * 64 * 0x1p-24 + 5 * 0x1p-7, 0, false},
                                      {WEFT_TYPE_BF16, 576, 64, 18, 10 * 0x1p-7, 0, false},
                                      {WEFT_TYPE_BF16, 576, 64, 1, 10 * 0x1p-7, 1100, false},
                                      {WEFT_TYPE_Q8_0, 576, 64, 3, 10 * 0x1p-7, 0, false},
                                      {WEFT_TYPE_BF16, 576, 64, 64, 0.0, 1030, true},
                                      {WEFT_TYPE_BF16, 576, 64, 2, 0.0, 4500, true},
                                      {WEFT_TYPE_Q8_0, 576, 64, 128, 0.0, 470, true}};
  const devices *all = *state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const uint32_t cols = cases[i].n_heads * (cases[i].width - cases[i].n_rotated), n_before = cases[i].n_before;
    const bool of_cards = cases[i].of_cards;
    bool has_card = false;
    for (uint32_t d = 0; d < all->n; d++) has_card = has_card || is_cuda(all->cpu[d]);
    if (of_cards && !has_card) continue;
    parted_world w;
    open_parted(&w, &cases[i], 10 * i + 1);
    if (n_before > 0 && !of_cards) run_parted(all->ref, &w, 0, n_before);
    if (!of_cards) run_parted(all->ref, &w, n_before, POSITIONS);
    if (cases[i].type == WEFT_TYPE_F32) check_definition(&w);
    float *ref = w.out;
    for (uint32_t d = 0; d < all->n; d++) {
      if (of_cards && !is_cuda(all->cpu[d])) continue;
      float *at_once = w.out = new_floats((uint64_t)POSITIONS * cols, 0);
      if (n_before > 0) run_parted(all->cpu[d], &w, 0, n_before);
      run_parted(all->cpu[d], &w, n_before, POSITIONS);
      if (!of_cards)
        assert_within("parted", all->name[d], distance(ref, at_once, POSITIONS, cols, cols), cases[i].tolerance);
      w.out = new_floats((uint64_t)POSITIONS * cols, 0);
      run_parted(all->cpu[d], &w, n_before, 7);
      for (uint32_t p = 7; p < POSITIONS; p++) run_parted(all->cpu[d], &w, n_before + p, 1);
      assert_same("parted", all->name[d], "one by one", at_once, w.out, (uint64_t)POSITIONS * cols * sizeof(float));
      memory_free(at_once);
      memory_free(w.out);
    }
    w.out = ref;
    close_parted(&w);
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_heads), cmocka_unit_test(test_parted)};
  take_arguments(argc, argv);
  return cmocka_run_group_tests(tests, setup_devices, teardown_devices);
}
