/* SPDX-License-Identifier: MIT */
/* The ops of a row: embed, norm, qkv, gate, route, soft. Every cpu variant against ref within a
 * tolerance that is derived here, and every row alone against the same row in a batch bit for bit. */
#include <unistd.h>

#include "tests/kernels/harness.h"

static const double ULP = 0x1p-24; /* half a unit in the last place of a number near 1 */

/* Rows of a batch that are compared with the same row alone. */
static const uint32_t alone_rows[] = {0, 3, 8};
enum { ROWS = 9, N_ALONE = 3, PAD = 8 };

/* ---- norm ---- */

typedef struct norm_case {
  const char *name;
  uint32_t n_cols;
  bool x2, weight, add, row_scale, in_place, plain, one_add; /* plain: not normed; one_add: one row for all */
} norm_case;

static const norm_case norm_cases[] = {
    {"norm of one column", 1, false, false, false, false, false, false, false},
    {"norm of 3", 3, true, true, true, true, false, false, false},
    {"norm of 16", 16, false, true, false, false, false, false, false},
    {"norm of 17", 17, true, false, false, false, true, false, false},
    {"norm of 63", 63, false, true, true, false, false, false, false},
    {"norm of 64", 64, false, false, true, true, true, false, false},
    {"norm of 200", 200, true, true, true, true, true, false, false},
    {"norm of 1024", 1024, false, true, false, false, false, false, false},
    {"norm of 2816", 2816, true, true, true, true, false, false, false},
    {"norm of 5376", 5376, true, true, false, false, false, false, false},
    {"norm of 7168 in place", 7168, true, true, true, true, true, false, false},
    {"norm of 2817 in place", 2817, true, true, true, true, true, false, false},
    {"sum of 64", 64, true, false, false, false, true, true, false},
    {"sum of 2048 and a bias in place", 2048, true, false, true, false, true, true, true},
    {"bias of 37", 37, false, false, true, true, false, true, true},
    {"norm of 200 and one row", 200, true, true, true, false, false, false, true},
};

/* The args of rows [first, first + n) of a norm over fixed random inputs. */
static void run_norm(weft_device *device, const norm_case *c, uint32_t first, uint32_t n, float *y) {
  uint64_t stride = c->n_cols + PAD, bytes = ROWS * stride * sizeof(float);
  buffer x = buffer_new(bytes), x2 = buffer_new(bytes), add = buffer_new(bytes);
  buffer weight = buffer_new(c->n_cols * sizeof(float)), row_scale = buffer_new(ROWS * sizeof(float));
  for (uint64_t r = 0; r < ROWS; r++) {
    fill_normal((float *)x.data + r * stride, c->n_cols, 10 + r);
    fill_normal((float *)x2.data + r * stride, c->n_cols, 30 + r);
    fill_normal((float *)add.data + r * stride, c->n_cols, 50 + r);
  }
  fill_normal(weight.data, c->n_cols, 70);
  fill_normal(row_scale.data, ROWS, 80);
  weft_norm_args args = {.n_rows = n, .n_cols = c->n_cols, .eps = 1e-6f};
  args.x_stride = args.x2_stride = args.add_stride = args.y_stride = stride;
  args.x = (float *)x.data + first * stride;
  if (c->x2) args.x2 = (float *)x2.data + first * stride;
  if (c->add) args.add = (const float *)add.data + (c->one_add ? 0 : first * stride);
  if (c->one_add) args.add_stride = 0;
  args.plain = c->plain;
  if (c->weight) args.weight = weight.data;
  if (c->row_scale) args.row_scale = (const float *)row_scale.data + first;
  args.y = y;
  if (c->in_place) {
    args.y = (float *)x.data + first * stride;
  }
  assert_int_equal(done(device, weft_norm(device, &args)), WEFT_OK);
  if (c->in_place) memcpy(y, args.y, n * stride * sizeof(float));
  buffer_free(&x);
  buffer_free(&x2);
  buffer_free(&add);
  buffer_free(&weight);
  buffer_free(&row_scale);
}

static void test_norm(void **state) {
  const devices *all = *state;
  for (size_t i = 0; i < sizeof norm_cases / sizeof norm_cases[0]; i++) {
    const norm_case *c = &norm_cases[i];
    uint64_t stride = c->n_cols + PAD;
    buffer ref = buffer_new(ROWS * stride * sizeof(float));
    run_norm(all->ref, c, 0, ROWS, ref.data);
    for (uint32_t d = 0; d < all->n; d++) {
      buffer out = buffer_new(ref.n_bytes), one = buffer_new(stride * sizeof(float));
      run_norm(all->cpu[d], c, 0, ROWS, out.data);
      /* Values reach about 4 * 4 * 3; the factor errs by about 3 ulp, then five roundings follow. */
      assert_within(c->name, all->name[d], distance(ref.data, out.data, ROWS, c->n_cols, stride), 8 * ULP * 64);
      for (uint32_t a = 0; a < N_ALONE; a++) {
        run_norm(all->cpu[d], c, alone_rows[a], 1, one.data);
        assert_same(c->name, all->name[d], "a row alone", one.data, (float *)out.data + alone_rows[a] * stride,
                    c->n_cols * sizeof(float));
      }
      buffer_free(&out);
      buffer_free(&one);
    }
    buffer_free(&ref);
  }
}

/* ---- gate ---- */

/* A backend without the delta rule has no gate by a sigmoid either. */
static bool has_gate(weft_device *device, weft_activation activation) {
  return activation != WEFT_SIGMOID || weft_device_kernels(device)->delta_rule != NULL;
}

static void run_gate(weft_device *device, weft_activation activation, uint32_t n_cols, uint32_t first, uint32_t n,
                     float *y) {
  uint64_t stride = n_cols + PAD;
  buffer g = buffer_new(ROWS * stride * sizeof(float)), u = buffer_new(g.n_bytes);
  for (uint64_t r = 0; r < ROWS; r++) {
    float *row = (float *)g.data + r * stride;
    fill_normal(row, n_cols, 10 + r);
    for (uint32_t i = 0; i < n_cols; i++) row[i] *= r == 0 ? 60.0f : 3.0f; /* row 0: into saturation */
    fill_normal((float *)u.data + r * stride, n_cols, 30 + r);
  }
  weft_gate_args args = {.n_rows = n, .n_cols = n_cols, .activation = activation, .y = y};
  args.g_stride = args.u_stride = args.y_stride = stride;
  args.g = (const float *)g.data + first * stride;
  args.u = (const float *)u.data + first * stride;
  assert_int_equal(done(device, weft_gate(device, &args)), WEFT_OK);
  buffer_free(&g);
  buffer_free(&u);
}

static void test_gate(void **state) {
  const devices *all = *state;
  static const uint32_t widths[] = {1, 7, 16, 33, 96, 704, 2112};
  static const char *const names[] = {"gelu", "silu", "clamped", "sigmoid"};
  for (size_t i = 0; i < 4 * sizeof widths / sizeof widths[0]; i++) {
    weft_activation activation = (weft_activation)(WEFT_GELU_TANH + i % 4);
    const char *name = names[i % 4];
    uint32_t n_cols = widths[i / 4];
    uint64_t stride = n_cols + PAD;
    buffer ref = buffer_new(ROWS * stride * sizeof(float));
    run_gate(all->ref, activation, n_cols, 0, ROWS, ref.data);
    for (uint32_t d = 0; d < all->n; d++) {
      if (!has_gate(all->cpu[d], activation)) continue;
      buffer out = buffer_new(ref.n_bytes), one = buffer_new(stride * sizeof(float));
      run_gate(all->cpu[d], activation, n_cols, 0, ROWS, out.data);
      /* |g u| < 4 * 3.5 in the rows of size 3 and 4 * 210 in row 0. The argument of the exponential
       * is below 2 * 3.5 where the result is not yet 0 or g u itself: a few ulp times that. */
      const float *r0 = ref.data, *o0 = out.data;
      assert_within(name, all->name[d], distance(r0, o0, 1, n_cols, stride), 8 * ULP * 840);
      assert_within(name, all->name[d], distance(r0 + stride, o0 + stride, ROWS - 1, n_cols, stride), 8 * ULP * 40);
      for (uint32_t a = 0; a < N_ALONE; a++) {
        run_gate(all->cpu[d], activation, n_cols, alone_rows[a], 1, one.data);
        assert_same(name, all->name[d], "a row alone", one.data, o0 + alone_rows[a] * stride, n_cols * sizeof(float));
      }
      buffer_free(&out);
      buffer_free(&one);
    }
    buffer_free(&ref);
  }
}

/* One number for each row: the bits that a row of equal numbers gives, also in the place of u. */
static void test_gate_by_one(void **state) {
  const devices *all = *state;
  static const uint32_t widths[] = {1, 17, 2048};
  for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
    uint64_t n_cols = widths[i], n = ROWS * n_cols;
    buffer g = buffer_new(n * sizeof(float)), u = buffer_new(g.n_bytes), y = buffer_new(g.n_bytes);
    for (uint64_t r = 0; r < ROWS; r++)
      for (uint64_t c = 0; c < n_cols; c++) ((float *)g.data)[r * n_cols + c] = 4.0f * random_normal(90, r);
    for (uint32_t d = 0; d <= all->n; d++) {
      weft_device *device = d < all->n ? all->cpu[d] : all->ref;
      if (!has_gate(device, WEFT_SIGMOID)) continue;
      weft_gate_args args = {.g = g.data,
                             .u = u.data,
                             .y = y.data,
                             .n_rows = ROWS,
                             .n_cols = (uint32_t)n_cols,
                             .g_stride = n_cols,
                             .u_stride = n_cols,
                             .y_stride = n_cols,
                             .activation = WEFT_SIGMOID};
      fill_normal(u.data, n, 91);
      assert_int_equal(done(device, weft_gate(device, &args)), WEFT_OK);
      args.one_g = true;
      args.y = u.data;
      assert_int_equal(done(device, weft_gate(device, &args)), WEFT_OK);
      assert_same("a gate by one number", d < all->n ? all->name[d] : "ref", "in place", y.data, u.data, g.n_bytes);
      args.activation = WEFT_SILU;
      assert_int_equal(weft_gate(device, &args), WEFT_E_INVALID);
    }
    buffer_free(&g);
    buffer_free(&u);
    buffer_free(&y);
  }
}

/* A clamped gate, number by number: what lies beyond the limits counts as the limit; what is no number stays none. */
static void test_clamped_gate(void **state) {
  const devices *all = *state;
  static const float g[8] = {7, 7.5f, 1e30f, -7.5f, 0, NAN, 1, -100}, u[8] = {1, 9, -9, -1e30f, 5, 1, NAN, 7};
  float *in = memory_new(16, sizeof *in), *y = memory_new(8, sizeof *y);
  memcpy(in, g, sizeof g);
  memcpy(in + 8, u, sizeof u);
  weft_gate_args args = {in, in + 8, y, 1, 8, 8, 8, 8, WEFT_CLAMPED_SILU, false, 0};
  for (uint32_t d = 0; d <= all->n; d++) {
    weft_device *device = d == 0 ? all->ref : all->cpu[d - 1];
    assert_int_equal(done(device, weft_gate(device, &args)), WEFT_OK);
    double seven = 7.0 / (1.0 + exp(-1.702 * 7.0)), low = -7.5 / (1.0 + exp(1.702 * 7.5));
    const double want[5] = {seven * 2, seven * 8, seven * -6, low * -6, 0};
    for (uint32_t i = 0; i < 5; i++) assert_true(fabs((double)y[i] - want[i]) <= 8 * (double)ULP * 56);
    assert_true(isnan(y[5]) && isnan(y[6]));
    assert_true(fabs((double)y[7]) < 1e-30);
  }
  memory_free(in);
  memory_free(y);
}

/* SiLU with a limit, number by number: g is held below it, u on both sides; what is no number stays none. */
static void test_limited_gate(void **state) {
  const devices *all = *state;
  static const float g[7] = {2, 2.5f, 1e30f, -7.5f, NAN, 1, -100}, u[7] = {1, 9, -9, -1e30f, 1, NAN, 7};
  float *in = memory_new(14, sizeof *in), *y = memory_new(7, sizeof *y);
  memcpy(in, g, sizeof g);
  memcpy(in + 7, u, sizeof u);
  for (uint32_t d = 0; d <= all->n; d++) {
    weft_gate_args args = {in, in + 7, y, 1, 7, 7, 7, 7, WEFT_SILU, false, 2.0f};
    weft_device *device = d == 0 ? all->ref : all->cpu[d - 1];
    if (!weft_device_kernels(device)->has_limits) {
      assert_int_equal(weft_gate(device, &args), WEFT_E_UNSUPPORTED);
      continue;
    }
    assert_int_equal(done(device, weft_gate(device, &args)), WEFT_OK);
    double two = 2.0 / (1.0 + exp(-2.0)), low = -7.5 / (1.0 + exp(7.5));
    const double want[4] = {two, two * 2, two * -2, low * -2};
    for (uint32_t i = 0; i < 4; i++) assert_true(fabs((double)y[i] - want[i]) <= 8 * (double)ULP * 4);
    assert_true(isnan(y[4]) && isnan(y[5]) && fabs((double)y[6]) < 1e-30);
    args.activation = WEFT_GELU_TANH;
    assert_int_equal(weft_gate(device, &args), WEFT_E_INVALID);
  }
  memory_free(in);
  memory_free(y);
}

/* ---- route ---- */

typedef struct route_case {
  const char *name;
  uint32_t n_experts, k;
  float quantum; /* logits are multiples of it, so that there are ties; 0: none */
  bool expert_scale;
} route_case;

static const route_case route_cases[] = {
    {"route 1 of 1", 1, 1, 0, false},       {"route 2 of 8", 8, 2, 0, true},
    {"route 8 of 128", 128, 8, 0, true},    {"route with ties", 64, 8, 0.5f, false},
    {"route, all equal", 16, 4, 100, true}, {"route all", 9, 9, 0, false},
};

static void run_route(weft_device *device, const route_case *c, uint32_t first, uint32_t n, int32_t *ids,
                      float *weights) {
  uint64_t stride = c->n_experts + PAD;
  buffer logits = buffer_new(ROWS * stride * sizeof(float));
  buffer scale = buffer_new(128 * sizeof(float));
  fill_normal(scale.data, 128, 99);
  for (uint64_t r = 0; r < ROWS; r++) {
    float *row = (float *)logits.data + r * stride;
    fill_normal(row, c->n_experts, 40 + r);
    for (uint32_t i = 0; i < c->n_experts; i++) {
      row[i] = c->quantum > 0 ? roundf(row[i] / c->quantum) * c->quantum : row[i] * 3.0f;
    }
  }
  weft_route_args args = {.logits = (float *)logits.data + first * stride, .logits_stride = stride};
  args.n_rows = n;
  args.n_experts = c->n_experts;
  args.k = c->k;
  args.expert_scale = c->expert_scale ? scale.data : NULL;
  args.ids = ids;
  args.weights = weights;
  assert_int_equal(done(device, weft_route(device, &args)), WEFT_OK);
  buffer_free(&logits);
  buffer_free(&scale);
}

static void test_route(void **state) {
  const devices *all = *state;
  for (size_t i = 0; i < sizeof route_cases / sizeof route_cases[0]; i++) {
    const route_case *c = &route_cases[i];
    size_t bytes = (size_t)ROWS * c->k * 4;
    buffer ref_ids = buffer_new(bytes), ref = buffer_new(bytes);
    run_route(all->ref, c, 0, ROWS, ref_ids.data, ref.data);
    for (uint32_t d = 0; d < all->n; d++) {
      buffer ids = buffer_new(bytes), weights = buffer_new(bytes);
      buffer one_id = buffer_new(9 * sizeof(int32_t)), one = buffer_new(9 * sizeof(float));
      run_route(all->cpu[d], c, 0, ROWS, ids.data, weights.data);
      assert_same(c->name, all->name[d], "the choice", ref_ids.data, ids.data, bytes);
      /* Weights below 4: k sums, an exponential, a quotient and a product, each a few roundings. */
      assert_within(c->name, all->name[d], distance(ref.data, weights.data, ROWS, c->k, c->k), 16 * ULP * 4);
      for (uint32_t a = 0; a < N_ALONE; a++) {
        size_t at = (size_t)alone_rows[a] * c->k;
        run_route(all->cpu[d], c, alone_rows[a], 1, one_id.data, one.data);
        assert_same(c->name, all->name[d], "a row alone", one.data, (float *)weights.data + at, c->k * 4);
        assert_same(c->name, all->name[d], "a row alone", one_id.data, (int32_t *)ids.data + at, c->k * 4);
      }
      buffer_free(&one_id);
      buffer_free(&one);
      buffer_free(&ids);
      buffer_free(&weights);
    }
    buffer_free(&ref_ids);
    buffer_free(&ref);
  }
}

/* A logit that is NaN counts as -infinity, on every backend: experts with a number come first, then the others in
 * order. */
static void test_route_nan(void **state) {
  const devices *all = *state;
  static const float values[8] = {NAN, 1, -INFINITY, 2, NAN, NAN, NAN, NAN};
  static const int32_t order[4] = {3, 1, 0, 2};
  float *logits = memory_new(8, sizeof *logits), *weights = memory_new(4, sizeof *weights);
  int32_t *ids = memory_new(4, sizeof *ids);
  memcpy(logits, values, sizeof values);
  weft_route_args args = {.logits = logits, .n_rows = 1, .n_experts = 8, .k = 4, .logits_stride = 8};
  args.ids = ids;
  args.weights = weights;
  for (uint32_t d = 0; d <= all->n; d++) {
    weft_device *device = d == 0 ? all->ref : all->cpu[d - 1];
    assert_int_equal(done(device, weft_route(device, &args)), WEFT_OK);
    assert_memory_equal(ids, order, sizeof order);
  }
  memory_free(logits);
  memory_free(weights);
  memory_free(ids);
}

/* ---- qkv ---- */

typedef struct qkv_case {
  const char *name;
  uint32_t n_heads, n_kv_heads, dim, block;
  weft_type type;
  bool q_norm, k_norm, v_norm, v_is_k;
  uint32_t n_rotated; /* pairs that turn: the others have frequency 0 */
  int32_t position;   /* of row 0 */
  bool queries_only;
  uint32_t n_rows;
  uint32_t biases; /* Q, K, V: which of them have one */
} qkv_case;

enum { Q = 1, K = 2, V = 4 };

static const qkv_case qkv_cases[] = {
    {"qkv dim 8", 1, 1, 8, 1, WEFT_TYPE_F32, true, true, true, false, 4, 0, false, ROWS, 0},
    {"qkv dim 24", 3, 1, 24, 4, WEFT_TYPE_BF16, true, true, true, true, 3, 5, false, ROWS, 0},
    {"qkv dim 64", 4, 2, 64, 16, WEFT_TYPE_F32, true, true, false, false, 32, 1000, false, ROWS, 0},
    {"qkv dim 128, no norms", 4, 4, 128, 16, WEFT_TYPE_BF16, false, false, false, false, 64, 32760, false, ROWS, 0},
    {"qkv dim 256, K = V", 8, 2, 256, 16, WEFT_TYPE_BF16, true, true, true, true, 128, 131000, false, ROWS, 0},
    {"qkv dim 32, 8 bits", 2, 1, 32, 4, WEFT_TYPE_Q8_0, true, true, true, false, 16, 77, false, ROWS, 0},
    {"qkv dim 256, 8 bits", 8, 2, 256, 16, WEFT_TYPE_Q8_0, true, true, true, true, 128, 4000, false, ROWS, 0},
    {"qkv dim 512, partial", 4, 1, 512, 32, WEFT_TYPE_F32, true, true, true, true, 64, 999990, false, ROWS, 0},
    {"queries only, dim 256", 8, 1, 256, 16, WEFT_TYPE_BF16, true, true, true, false, 128, 500, true, ROWS, 0},
    {"queries only, dim 40", 3, 1, 40, 4, WEFT_TYPE_F32, true, true, true, false, 20, 3, true, ROWS, 0},
    {"qkv of many rows", 8, 4, 64, 128, WEFT_TYPE_BF16, true, true, true, false, 32, 9, false, 1400, 0},
    {"qkv of many rows, 8 bits", 7, 3, 64, 128, WEFT_TYPE_Q8_0, false, true, true, false, 32, 9, false, 700, 0},
    {"qkv dim 64, biases", 8, 2, 64, 16, WEFT_TYPE_BF16, false, false, false, false, 32, 500, false, ROWS, Q | K | V},
    {"qkv dim 128, some biases", 4, 4, 128, 16, WEFT_TYPE_F32, true, true, true, false, 64, 7, false, ROWS, Q | V},
    {"qkv dim 256, K = V, 8 bits, bias of keys", 3, 2, 256, 16, WEFT_TYPE_Q8_0, false, true, false, true, 64, 7, false,
     ROWS, K},
    {"queries only, biases", 8, 1, 512, 16, WEFT_TYPE_BF16, true, true, true, false, 128, 500, true, ROWS, Q},
    {"qkv of many rows, biases", 64, 8, 64, 128, WEFT_TYPE_BF16, false, false, false, false, 32, 9, false, 700,
     Q | K | V},
};

enum { N_PAGES = 6 };

typedef struct qkv_buffers {
  buffer q, k, v, pages, own_k, own_v;
} qkv_buffers;

static void free_qkv(qkv_buffers *b) {
  buffer_free(&b->q);
  buffer_free(&b->k);
  buffer_free(&b->v);
  buffer_free(&b->pages);
  buffer_free(&b->own_k);
  buffer_free(&b->own_v);
}

static qkv_buffers qkv_inputs(const qkv_case *c) {
  uint64_t q_cols = (uint64_t)c->n_heads * c->dim, kv_cols = (uint64_t)c->n_kv_heads * c->dim;
  uint64_t vector = weft_kv_row_bytes(c->type, c->dim);
  qkv_buffers b = {
      .q = buffer_new(c->n_rows * (q_cols + PAD) * sizeof(float)),
      .k = buffer_new(c->n_rows * (kv_cols + PAD) * sizeof(float)),
      .v = buffer_new(c->n_rows * (kv_cols + PAD) * sizeof(float)),
      .pages = buffer_new(N_PAGES * (2ull * c->n_kv_heads * c->block * vector + 64)),
      .own_k = buffer_new(c->n_rows * c->n_kv_heads * vector),
      .own_v = buffer_new(c->n_rows * c->n_kv_heads * vector),
  };
  for (uint64_t r = 0; r < c->n_rows; r++) {
    fill_normal((float *)b.q.data + r * (q_cols + PAD), q_cols, 10 + r);
    fill_normal((float *)b.k.data + r * (kv_cols + PAD), kv_cols, 30 + r);
    fill_normal((float *)b.v.data + r * (kv_cols + PAD), kv_cols, 50 + r);
  }
  return b;
}

/* Rows [first, first + n): odd ones go to pages, even ones to own rows (of which index 0 is row
 * 0's). */
static void run_qkv(weft_device *device, const qkv_case *c, uint32_t first, uint32_t n, qkv_buffers *b) {
  uint64_t q_cols = (uint64_t)c->n_heads * c->dim, kv_cols = (uint64_t)c->n_kv_heads * c->dim;
  uint64_t vector = weft_kv_row_bytes(c->type, c->dim);
  float *inv_freq = memory_new(256 + 2 * 512, sizeof *inv_freq), *q_norm = inv_freq + 256;
  float *k_norm = q_norm + 512, *bias = memory_new(q_cols + 2 * kv_cols, sizeof *bias);
  int64_t *slot = memory_new(n, sizeof *slot + sizeof(int32_t));
  int32_t *position = (int32_t *)(slot + n);
  for (uint32_t i = 0; i < c->n_rotated; i++) inv_freq[i] = powf(10000.0f, -2.0f * (float)i / (float)c->dim);
  fill_normal(q_norm, c->dim, 91);
  fill_normal(k_norm, c->dim, 92);
  fill_normal(bias, q_cols + 2 * kv_cols, 93);
  for (uint32_t r = 0; r < n; r++) {
    uint32_t row = first + r;
    position[r] = c->position + (int32_t)row;
    slot[r] = row % 2 == 0 ? -1 : (int64_t)((row / 2 * 5 + 3) % (N_PAGES * c->block)); /* all differ */
  }
  weft_qkv_args args = {.n_rows = n, .n_heads = c->n_heads, .v_norm = c->v_norm, .eps = 1e-6f};
  args.q = (float *)b->q.data + first * (q_cols + PAD);
  args.k = (float *)b->k.data + first * (kv_cols + PAD);
  args.v = c->v_is_k ? args.k : (float *)b->v.data + first * (kv_cols + PAD);
  args.q_stride = q_cols + PAD;
  args.k_stride = args.v_stride = kv_cols + PAD;
  args.q_norm = c->q_norm ? q_norm : NULL;
  args.k_norm = c->k_norm ? k_norm : NULL;
  args.q_bias = (c->biases & Q) != 0 ? bias : NULL;
  args.k_bias = (c->biases & K) != 0 ? bias + q_cols : NULL;
  args.v_bias = (c->biases & V) != 0 ? bias + q_cols + kv_cols : NULL;
  args.inv_freq = inv_freq;
  args.position = position;
  args.slot = slot;
  args.kv = (weft_kv_view){.base = b->pages.data,
                           .type = c->type,
                           .page_bytes = b->pages.n_bytes / N_PAGES,
                           .k_offset = 64,
                           .v_offset = 64 + (uint64_t)c->n_kv_heads * c->block * vector,
                           .block_tokens = c->block,
                           .n_kv_heads = c->n_kv_heads,
                           .head_dim = c->dim};
  args.own_k = (uint8_t *)b->own_k.data + first * c->n_kv_heads * vector;
  args.own_v = (uint8_t *)b->own_v.data + first * c->n_kv_heads * vector;
  if (c->queries_only) args.k = args.v = NULL, args.slot = NULL;
  assert_int_equal(done(device, weft_qkv(device, &args)), WEFT_OK);
  args.kv.v_offset = args.kv.k_offset; /* values over keys */
  if (!c->queries_only) assert_int_equal(weft_qkv(device, &args), WEFT_E_INVALID);
  memory_free(inv_freq);
  memory_free(slot);
  memory_free(bias);
}

/* Stored vectors: equal where untouched, else within tolerance; bf16 may round the other way once,
 * and so may an integer of 8 bits or its factor. */
static void assert_stored(const qkv_case *c, const char *device, const uint8_t *a, const uint8_t *b, uint64_t n_bytes) {
  float x[512], y[512];
  uint64_t vector = weft_kv_row_bytes(c->type, c->dim);
  for (uint64_t at = 0; at + vector <= n_bytes; at += vector) {
    if (memcmp(a + at, b + at, vector) == 0) continue;
    weft_kv_row_load(c->type, a + at, c->dim, x);
    weft_kv_row_load(c->type, b + at, c->dim, y);
    float most = 0;
    for (uint32_t i = 0; i < c->dim; i++) most = fmaxf(most, fabsf(x[i]));
    for (uint32_t i = 0; i < c->dim; i++) {
      double allowed = 8 * ULP * 32;
      if (c->type == WEFT_TYPE_BF16) allowed += fabs((double)x[i]) / 128;
      if (c->type == WEFT_TYPE_Q8_0) allowed += (double)most / 100;
      assert_false(isnan(x[i]) || isnan(y[i]));
      assert_within(c->name, device, fabs((double)x[i] - (double)y[i]), allowed);
    }
  }
}

/* The planes of all pages, then what lies before and between them: that is never written. */
static void assert_pages(const qkv_case *c, const char *device, const buffer *a, const buffer *b) {
  uint64_t page = a->n_bytes / N_PAGES;
  for (uint64_t p = 0; p < N_PAGES; p++) {
    const uint8_t *x = (const uint8_t *)a->data + p * page, *y = (const uint8_t *)b->data + p * page;
    assert_same(c->name, device, "before the keys", x, y, 64);
    assert_stored(c, device, x + 64, y + 64, page - 64);
  }
}

static void test_qkv(void **state) {
  const devices *all = *state;
  for (size_t i = 0; i < sizeof qkv_cases / sizeof qkv_cases[0]; i++) {
    const qkv_case *c = &qkv_cases[i];
    uint64_t cols = (uint64_t)c->n_heads * c->dim, stride = cols + PAD;
    uint32_t n_rows = c->n_rows, step = n_rows == ROWS ? 1 : 35;
    qkv_buffers ref = qkv_inputs(c);
    run_qkv(all->ref, c, 0, n_rows, &ref);
    for (uint32_t d = 0; d < all->n; d++) {
      qkv_buffers out = qkv_inputs(c), one = qkv_inputs(c);
      run_qkv(all->cpu[d], c, 0, n_rows, &out);
      /* Angles are equal; cosine and sine err by an ulp, the norm by 8; values reach 4 * 4 * 2. */
      double worst = distance(ref.q.data, out.q.data, n_rows, cols, stride);
      assert_within(c->name, all->name[d], worst, 8 * ULP * 32);
      assert_pages(c, all->name[d], &ref.pages, &out.pages);
      assert_stored(c, all->name[d], ref.own_k.data, out.own_k.data, ref.own_k.n_bytes);
      assert_stored(c, all->name[d], ref.own_v.data, out.own_v.data, ref.own_v.n_bytes);
      for (uint32_t r = 0; r < n_rows; r += step) run_qkv(all->cpu[d], c, r, step, &one);
      assert_same(c->name, all->name[d], "q row by row", out.q.data, one.q.data, out.q.n_bytes);
      assert_same(c->name, all->name[d], "pages row by row", out.pages.data, one.pages.data, out.pages.n_bytes);
      assert_same(c->name, all->name[d], "keys row by row", out.own_k.data, one.own_k.data, out.own_k.n_bytes);
      free_qkv(&out);
      free_qkv(&one);
    }
    free_qkv(&ref);
  }
}

/* ---- embed and soft ---- */

static const weft_type stored_types[] = {WEFT_TYPE_F32,  WEFT_TYPE_F16,  WEFT_TYPE_BF16,
                                         WEFT_TYPE_Q8_0, WEFT_TYPE_Q4_0, WEFT_TYPE_Q5_0};
enum { N_TYPES = 6, N_VOCAB = 1100, N_IN = 96 };

static weft_weight place_weight(weft_device *device, weft_type type) {
  weft_weight weight = {.type = type, .n_in = N_IN, .n_out = N_VOCAB, .n_mats = 1};
  buffer file = buffer_new(N_VOCAB * weft_type_row_bytes(type, N_IN));
  float row[N_IN];
  for (uint64_t v = 0; v < N_VOCAB; v++) {
    fill_normal(row, N_IN, 1000 + v);
    uint8_t *to = (uint8_t *)file.data + v * weft_type_row_bytes(type, N_IN);
    assert_int_equal(weft_quantise_row(type, row, to, N_IN), WEFT_OK);
  }
  weft_error error = {{0}};
  assert_int_equal(weft_device_weight(device, &weight, file.data, WEFT_USE_EMBED, &error), WEFT_OK);
  buffer_free(&file);
  return weight;
}

static weft_status run_embed(weft_device *device, weft_type type, const int32_t *tokens, uint32_t n, float *y) {
  weft_weight weight = place_weight(device, type);
  buffer copy = buffer_new(n * sizeof *tokens);
  memcpy(copy.data, tokens, n * sizeof *tokens);
  weft_embed_args args = {.weight = &weight, .tokens = copy.data, .y = y, .n_rows = n, .scale = 2.5f};
  args.y_stride = N_IN + PAD;
  weft_status status = done(device, weft_embed(device, &args));
  buffer_free(&copy);
  weft_device_weight_free(device, &weight);
  return status;
}

/* A backend that sees the tokens says which row is wrong, and does not only fail. */
static void test_embed_says_why(void **state) {
  const devices *all = *state;
  int32_t beyond[2] = {0, N_VOCAB};
  for (uint32_t d = 0; d <= all->n; d++) {
    weft_device *device = d == 0 ? all->ref : all->cpu[d - 1];
    buffer out = buffer_new(2 * (N_IN + PAD) * sizeof(float));
    char said[512];
    FILE *lines = tmpfile();
    int kept = dup(STDERR_FILENO);
    assert_true(lines != NULL && kept >= 0 && dup2(fileno(lines), STDERR_FILENO) >= 0);
    weft_status status = run_embed(device, stored_types[0], beyond, 2, out.data);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    rewind(lines);
    size_t n_said = fread(said, 1, sizeof said - 1, lines);
    said[n_said] = 0;
    (void)fclose(lines);
    (void)close(kept);
    if (!is_cuda(device)) {
      assert_int_equal(status, WEFT_E_INVALID);
      assert_non_null(strstr(said, "op embed: invalid arguments: row 1 has a token that the weight has no row for"));
    }
    buffer_free(&out);
  }
}

static void test_embed(void **state) {
  const devices *all = *state;
  int32_t tokens[ROWS];
  for (uint32_t r = 0; r < ROWS; r++) tokens[r] = (int32_t)(r * 137 % N_VOCAB);
  tokens[1] = N_VOCAB - 1;
  for (uint32_t t = 0; t < N_TYPES; t++) {
    buffer ref = buffer_new(ROWS * (N_IN + PAD) * sizeof(float));
    assert_int_equal(run_embed(all->ref, stored_types[t], tokens, ROWS, ref.data), WEFT_OK);
    for (uint32_t d = 0; d < all->n; d++) {
      buffer out = buffer_new(ref.n_bytes);
      assert_int_equal(run_embed(all->cpu[d], stored_types[t], tokens, ROWS, out.data), WEFT_OK);
      assert_same("embed", all->name[d], weft_type_find((int32_t)stored_types[t])->name, ref.data, out.data,
                  ref.n_bytes);
      /* A device that sees tokens only while it runs cannot refuse: the row is NaN. */
      int32_t beyond[2] = {0, N_VOCAB}, negative[2] = {-1, 0};
      weft_status refused = is_cuda(all->cpu[d]) ? WEFT_OK : WEFT_E_INVALID;
      assert_int_equal(run_embed(all->cpu[d], stored_types[t], beyond, 2, out.data), refused);
      if (refused == WEFT_OK) {
        const float *row = out.data;
        for (uint32_t i = 0; i < N_IN; i++) assert_true(!isnan(row[i]) && isnan(row[N_IN + PAD + i]));
      }
      assert_int_equal(run_embed(all->cpu[d], stored_types[t], negative, 2, out.data), refused);
      buffer_free(&out);
    }
    buffer_free(&ref);
  }
}

static void run_soft(weft_device *device, const weft_weight *weight, uint32_t first, uint32_t n, float *soft) {
  enum { STRIDE = N_VOCAB + PAD };
  buffer logits = buffer_new(ROWS * STRIDE * sizeof(float));
  float *temperature = memory_new(ROWS, sizeof *temperature);
  for (uint64_t r = 0; r < ROWS; r++) {
    fill_normal((float *)logits.data + r * STRIDE, N_VOCAB, 600 + r);
    for (uint32_t v = 0; v < N_VOCAB; v++) ((float *)logits.data)[r * STRIDE + v] *= 5.0f;
    temperature[r] = 0.25f + 0.25f * (float)r;
  }
  weft_soft_args args = {.logits = (const float *)logits.data + first * STRIDE, .weight = weight, .soft = soft};
  args.temperature = temperature + first;
  args.n_rows = n;
  args.logits_stride = STRIDE;
  args.soft_stride = N_IN + PAD;
  args.scale = 3.0f;
  RUN_OP(soft, device, &args);
  buffer_free(&logits);
  memory_free(temperature);
}

static void test_soft(void **state) {
  const devices *all = *state;
  for (uint32_t t = 0; t < N_TYPES; t++) {
    weft_weight weight = place_weight(all->ref, stored_types[t]);
    buffer ref = buffer_new(ROWS * (N_IN + PAD) * sizeof(float));
    run_soft(all->ref, &weight, 0, ROWS, ref.data);
    weft_device_weight_free(all->ref, &weight);
    for (uint32_t d = 0; d < all->n; d++) {
      buffer out = buffer_new(ref.n_bytes), one = buffer_new(ref.n_bytes);
      weight = place_weight(all->cpu[d], stored_types[t]);
      run_soft(all->cpu[d], &weight, 0, ROWS, out.data);
      /* A mean of values below 4, times 3. An exponential errs by an ulp of its argument, below 20
       * / 0.25 where it weighs anything; the sum is over 1100 tokens. On cuda types other than F32 have probabilities
       * in bf16, off by 2^-9; with AVX-512 those other than F32 and F16 are integers whose steps are 1 / 2047 of the
       * largest of 64 (kernels/cpu/head.h). */
      const bool float_type = stored_types[t] == WEFT_TYPE_F32 || stored_types[t] == WEFT_TYPE_F16;
      double share = 64 * ULP;
      if (is_cuda(all->cpu[d]) && stored_types[t] != WEFT_TYPE_F32) share = 0x1p-8;
      if (strcmp(all->name[d], "avx512") == 0 && !float_type) share = 0x1p-12;
      assert_within("soft", all->name[d], distance(ref.data, out.data, ROWS, N_IN, N_IN + PAD), share * 12);
      for (uint32_t a = 0; a < N_ALONE; a++) {
        run_soft(all->cpu[d], &weight, alone_rows[a], 1, one.data);
        assert_same("soft", all->name[d], "a row alone", one.data,
                    (float *)out.data + (size_t)alone_rows[a] * (N_IN + PAD), N_IN * sizeof(float));
      }
      weft_device_weight_free(all->cpu[d], &weight);
      buffer_free(&out);
      buffer_free(&one);
    }
    buffer_free(&ref);
  }
}

/* ---- refusals ---- */

static void test_refusals(void **state) {
  const devices *all = *state;
  float x[16] = {0};
  weft_norm_args norm = {.x = x, .y = x, .n_rows = 2, .n_cols = 8, .x_stride = 8, .y_stride = 4};
  assert_int_equal(weft_norm(all->ref, &norm), WEFT_E_INVALID);
  norm.y_stride = 8;
  norm.x = NULL;
  assert_int_equal(weft_norm(all->ref, &norm), WEFT_E_INVALID);
  norm.n_rows = 0; /* nothing to do */
  assert_int_equal(weft_norm(all->ref, &norm), WEFT_OK);
  weft_gate_args gate = {.g = x, .u = x, .y = x, .n_rows = 1, .n_cols = 8};
  assert_int_equal(weft_gate(all->ref, &gate), WEFT_E_INVALID);
  int32_t ids[4];
  weft_route_args route = {.logits = x, .ids = ids, .weights = x, .n_rows = 1, .n_experts = 4, .k = 5};
  assert_int_equal(weft_route(all->ref, &route), WEFT_E_INVALID);
  weft_weight weight = {.type = WEFT_TYPE_F32, .n_in = 8, .n_out = 2, .n_mats = 1};
  weft_matmul_args matmul = {.x = x, .n_rows = 1, .n_weights = 1, .weight = {&weight}, .y = {x}};
  assert_int_equal(weft_matmul(all->ref, &matmul), WEFT_E_INVALID); /* no data */
  weft_error error = {{0}};
  weight.n_in = 0;
  assert_int_equal(weft_device_weight(all->ref, &weight, x, WEFT_USE_MATMUL, &error), WEFT_E_INVALID);
  weight = (weft_weight){.type = (weft_type)24, .n_in = 256, .n_out = 2, .n_mats = 1};
  assert_int_equal(weft_device_weight(all->ref, &weight, x, WEFT_USE_MATMUL, &error), WEFT_E_UNSUPPORTED);
  weight = (weft_weight){.type = WEFT_TYPE_Q8_0, .n_in = 33, .n_out = 2, .n_mats = 1};
  assert_int_equal(weft_device_weight(all->ref, &weight, x, WEFT_USE_MATMUL, &error), WEFT_E_INVALID);
  weight = (weft_weight){.type = WEFT_TYPE_F32, .n_in = ~0u, .n_out = ~0u, .n_mats = ~0u};
  assert_int_equal(weft_device_weight(all->ref, &weight, x, WEFT_USE_MATMUL, &error), WEFT_E_INVALID);
}

static void test_open(void **state) {
  (void)state;
  static const weft_device_config bad[] = {{.backend = "tpu"}, {.backend = "cpu", .isa = "sse9"}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    weft_device *device = NULL;
    weft_error error = {{0}};
    assert_int_equal(weft_device_open(&bad[i], &device, &error), WEFT_E_UNSUPPORTED);
    assert_null(device);
    assert_true(strlen(error.text) > 10);
  }
  weft_device *best = NULL;
  assert_int_equal(weft_device_open(NULL, &best, NULL), WEFT_OK);
  const weft_device_info *info = weft_device_get_info(best);
  assert_true(info->n_threads >= 1 && info->memory_bytes > 0 && info->name[0] != 0);
  weft_device_close(best);
}

/* Each allocation of open is refused once; nothing leaks (the sanitizer build sees it) and a line
 * says so. */
static void test_open_without_memory(void **state) {
  (void)state;
  weft_device_config config = {.backend = "cpu", .n_threads = 2};
  for (uint64_t n = 1; n < 10; n++) {
    weft_device *device = NULL;
    weft_error error = {{0}};
    (void)weft_memory_fail_at(n);
    weft_status status = weft_device_open(&config, &device, &error);
    (void)weft_memory_fail_at(0);
    if (status == WEFT_OK) {
      weft_device_close(device);
      assert_true(n > 1);
      return;
    }
    assert_int_equal(status, WEFT_E_NO_MEMORY);
    assert_true(error.text[0] != 0);
  }
  fail_msg("open never succeeds");
}

static void test_memory(void **state) {
  const devices *all = *state;
  for (uint32_t d = 0; d <= all->n; d++) {
    weft_device *device = d == 0 ? all->ref : all->cpu[d - 1];
    void *memory = NULL, *other = NULL;
    char text[8] = "weft", back[8] = {0};
    assert_int_equal(weft_device_alloc(device, 1000, &memory), WEFT_OK);
    assert_int_equal(weft_device_alloc(device, 0, &other), WEFT_OK);
    assert_int_equal((uintptr_t)memory % 256, 0);
    assert_int_equal(weft_device_zero(device, memory, 1000), WEFT_OK);
    assert_int_equal(weft_device_upload(device, memory, text, 8), WEFT_OK);
    assert_int_equal(weft_device_copy(device, (char *)memory + 8, memory, 8), WEFT_OK);
    assert_int_equal(weft_device_download(device, back, (char *)memory + 8, 8), WEFT_OK);
    assert_int_equal(weft_device_sync(device), WEFT_OK);
    assert_string_equal(back, "weft");
    assert_int_equal(weft_device_upload(device, NULL, text, 8), WEFT_E_INVALID);
    weft_device_free(device, memory);
    weft_device_free(device, other);
    assert_int_equal(weft_device_alloc(device, UINT64_MAX - 5, &memory), WEFT_E_NO_MEMORY);
    assert_null(memory);
  }
}

/* Short copies, which a card makes by a kernel, leave all bytes around them as they are, wherever they begin. */
static void test_short_copies(void **state) {
  const devices *all = *state;
  static const uint32_t length[] = {1, 3, 4, 15, 16, 17, 40, 100}, place[] = {0, 1, 4, 16};
  for (uint32_t d = 0; d <= all->n; d++) {
    weft_device *device = d == 0 ? all->ref : all->cpu[d - 1];
    void *host = NULL, *memory = NULL;
    assert_int_equal(weft_device_alloc_host(device, 256, &host), WEFT_OK);
    assert_int_equal(weft_device_alloc(device, 128, &memory), WEFT_OK);
    for (uint32_t i = 0; i < 8 * 4 * 4; i++) {
      uint32_t n = length[i / 16], from = place[i / 4 % 4], to = place[i % 4];
      uint8_t *sent = host, *back = sent + 128, wanted[128] = {0};
      for (uint32_t b = 0; b < 128; b++) sent[b] = (uint8_t)(b + i), back[b] = 0xEE;
      memcpy(wanted + to, sent + from, n);
      assert_int_equal(weft_device_zero(device, memory, 128), WEFT_OK);
      assert_int_equal(i % 2 == 0 ? weft_device_copy(device, (uint8_t *)memory + to, sent + from, n)
                                  : weft_device_upload(device, (uint8_t *)memory + to, sent + from, n),
                       WEFT_OK);
      assert_int_equal(weft_device_copy(device, back, memory, 128), WEFT_OK);
      assert_int_equal(weft_device_sync(device), WEFT_OK);
      assert_memory_equal(back, wanted, 128);
    }
    weft_device_free(device, memory);
    weft_device_free_host(device, host);
  }
}

int main(int argc, char **argv) {
  take_arguments(argc, argv);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_norm),         cmocka_unit_test(test_gate),
                                     cmocka_unit_test(test_gate_by_one),  cmocka_unit_test(test_limited_gate),
                                     cmocka_unit_test(test_clamped_gate), cmocka_unit_test(test_route),
                                     cmocka_unit_test(test_route_nan),    cmocka_unit_test(test_qkv),
                                     cmocka_unit_test(test_embed),        cmocka_unit_test(test_embed_says_why),
                                     cmocka_unit_test(test_soft),         cmocka_unit_test(test_refusals),
                                     cmocka_unit_test(test_open),         cmocka_unit_test(test_open_without_memory),
                                     cmocka_unit_test(test_memory),       cmocka_unit_test(test_short_copies)};
  return cmocka_run_group_tests_name("kernels/ops", tests, setup_devices, teardown_devices);
}
