/* SPDX-License-Identifier: MIT */
/* experts on the cpu device: bit-equal to its parts one after another (matmul, gate, matmul, two
 * sums in rank order), which are tested on their own; and near ref. */
#include "tests/kernels/weights.h"

typedef struct experts_case {
  const char *name;
  weft_type gate_type, up_type, down_type; /* up_type NONE: gate and up are one stack */
  uint32_t n_experts, k, n_in, n_ff;
  weft_activation activation;
  unsigned extra; /* SCALES, BIASES: every matrix has one; LIMITED: what is gated is held within LIMIT */
} experts_case;

enum { SCALES = 1, BIASES = 2, LIMITED = 4 };
static const float LIMIT = 0.4f;

static const experts_case cases[] = {
    {"4 bits, one stack", WEFT_TYPE_Q4_K, WEFT_TYPE_NONE, WEFT_TYPE_Q4_K, 7, 3, 256, 256, WEFT_GELU_TANH, 0},
    {"8 bits", WEFT_TYPE_Q8_0, WEFT_TYPE_Q8_0, WEFT_TYPE_Q8_0, 5, 2, 96, 160, WEFT_SILU, 0},
    {"mixed", WEFT_TYPE_Q6_K, WEFT_TYPE_BF16, WEFT_TYPE_Q5_0, 4, 4, 256, 96, WEFT_GELU_TANH, 0},
    {"float", WEFT_TYPE_F32, WEFT_TYPE_F32, WEFT_TYPE_F32, 6, 2, 40, 56, WEFT_SILU, 0},
    {"up inside a panel", WEFT_TYPE_F16, WEFT_TYPE_NONE, WEFT_TYPE_F16, 3, 1, 40, 41, WEFT_SILU, 0},
    {"down in floats", WEFT_TYPE_Q4_0, WEFT_TYPE_NONE, WEFT_TYPE_F32, 9, 8, 64, 72, WEFT_GELU_TANH, 0},
    {"5 bits with minima", WEFT_TYPE_Q4_K, WEFT_TYPE_NONE, WEFT_TYPE_Q5_1, 5, 3, 256, 96, WEFT_GELU_TANH, 0},
    {"2 and 3 bits", WEFT_TYPE_Q2_K, WEFT_TYPE_NONE, WEFT_TYPE_Q3_K, 5, 2, 256, 256, WEFT_SILU, 0},
    {"4 bits by a table", WEFT_TYPE_IQ4_XS, WEFT_TYPE_IQ3_S, WEFT_TYPE_IQ4_NL, 4, 2, 256, 96, WEFT_GELU_TANH, 0},
    {"scaled", WEFT_TYPE_NVFP4, WEFT_TYPE_NVFP4, WEFT_TYPE_NVFP4, 6, 3, 256, 192, WEFT_GELU_TANH, SCALES},
    {"scaled, one stack", WEFT_TYPE_Q8_0, WEFT_TYPE_NONE, WEFT_TYPE_Q4_0, 5, 2, 96, 160, WEFT_SILU, SCALES},
    {"scaled floats", WEFT_TYPE_F32, WEFT_TYPE_F32, WEFT_TYPE_F32, 6, 2, 40, 56, WEFT_SILU, SCALES},
    {"biases", WEFT_TYPE_Q8_0, WEFT_TYPE_NONE, WEFT_TYPE_Q4_0, 5, 2, 96, 160, WEFT_SILU, SCALES | BIASES},
    {"clamped", WEFT_TYPE_MXFP4, WEFT_TYPE_MXFP4, WEFT_TYPE_MXFP4, 6, 3, 96, 160, WEFT_CLAMPED_SILU, BIASES},
    {"clamped, biases of floats", WEFT_TYPE_F32, WEFT_TYPE_F32, WEFT_TYPE_F32, 6, 2, 40, 56, WEFT_CLAMPED_SILU, BIASES},
    {"clamped, up inside a panel", WEFT_TYPE_F16, WEFT_TYPE_NONE, WEFT_TYPE_BF16, 3, 1, 40, 41, WEFT_CLAMPED_SILU,
     BIASES},
    {"clamped, down in floats", WEFT_TYPE_Q4_0, WEFT_TYPE_Q8_0, WEFT_TYPE_F32, 9, 8, 64, 72, WEFT_CLAMPED_SILU, 0},
    {"several rows of an expert", WEFT_TYPE_Q4_K, WEFT_TYPE_NONE, WEFT_TYPE_Q8_0, 5, 3, 768, 96, WEFT_GELU_TANH, 0},
    {"the same in 16 bits", WEFT_TYPE_BF16, WEFT_TYPE_BF16, WEFT_TYPE_F16, 9, 8, 520, 48, WEFT_SILU, SCALES},
};
enum { N_CASES = sizeof cases / sizeof cases[0], WIDE = N_CASES - 2, ROWS = 40, WIDTH_MAX = 768 };

typedef struct weights {
  stored gate, up, down;
  float *bias[3]; /* of gate, up and down; NULL: none */
} weights;

/* The scale of a stack's matrices, in memory of its own. */
static void give_scales(stored *s, uint64_t seed) {
  float *scale = memory_new(s->shape.n_mats, sizeof *scale);
  for (uint32_t e = 0; e < s->shape.n_mats; e++) scale[e] = 0.25f + random_uniform(seed, e);
  s->shape.scale = scale;
}

static weights make_weights(const experts_case *c, uint64_t seed) {
  bool fused = c->up_type == WEFT_TYPE_NONE;
  weights w = {0};
  w.gate = stored_new(c->gate_type, c->n_experts, fused ? 2 * c->n_ff : c->n_ff, c->n_in, seed);
  if (!fused) w.up = stored_new(c->up_type, c->n_experts, c->n_ff, c->n_in, seed + 1);
  w.down = stored_new(c->down_type, c->n_experts, c->n_in, c->n_ff, seed + 2);
  if ((c->extra & SCALES) != 0) {
    give_scales(&w.gate, seed + 3);
    if (!fused) give_scales(&w.up, seed + 4);
    give_scales(&w.down, seed + 5);
  }
  for (uint32_t i = 0; i < 3 && (c->extra & BIASES) != 0; i++) {
    uint64_t n = (uint64_t)c->n_experts * (i == 2 ? c->n_in : c->n_ff);
    w.bias[i] = memory_new(n, sizeof *w.bias[i]);
    fill_normal(w.bias[i], n, seed + 6 + i);
  }
  return w;
}

static void free_weights(weights *w) {
  const stored *const all[] = {&w->gate, &w->up, &w->down};
  for (uint32_t i = 0; i < 3; i++) {
    if (all[i]->shape.scale != NULL) memory_free((void *)(uintptr_t)all[i]->shape.scale);
  }
  for (uint32_t i = 0; i < 3; i++) {
    if (w->bias[i] != NULL) memory_free(w->bias[i]);
  }
  stored_free(&w->gate);
  if (w->up.bytes != NULL) stored_free(&w->up);
  stored_free(&w->down);
}

/* Different experts in each row, some experts loved, in no order; weights fall with the rank. */
static void make_routes(const experts_case *c, uint32_t n_rows, int32_t *ids, float *rank_weights) {
  for (uint32_t r = 0; r < n_rows; r++) {
    for (uint32_t j = 0; j < c->k; j++) {
      uint32_t e = (uint32_t)(random_uniform(r, j) * random_uniform(r + 99, j) * (float)c->n_experts);
      for (uint32_t i = 0; i < j; i++) { /* the next expert that the row has not taken */
        if (ids[r * c->k + i] != (int32_t)e) continue;
        e = (e + 1) % c->n_experts;
        i = UINT32_MAX;
      }
      ids[r * c->k + j] = (int32_t)e;
      rank_weights[r * c->k + j] = random_uniform(r + 7, j) / (float)(j + 1);
    }
  }
}

static buffer run_experts(weft_device *device, const experts_case *c, const weights *w, const float *x,
                          const int32_t *ids, const float *rank_weights, uint32_t n_rows, uint32_t *n_touched) {
  buffer y = buffer_new((size_t)n_rows * c->n_in * sizeof(float));
  weft_weight gate = upload(device, &w->gate), down = upload(device, &w->down), up = {0};
  weft_experts_args args = {.x = x, .ids = ids, .weights = rank_weights, .down = &down, .y = y.data};
  if (w->up.bytes != NULL) {
    up = upload(device, &w->up);
    args.gate = &gate;
    args.up = &up;
  } else {
    args.gate_up = &gate;
  }
  args.n_rows = n_rows;
  args.k = c->k;
  args.x_stride = args.y_stride = c->n_in;
  args.activation = c->activation;
  args.limit = (c->extra & LIMITED) != 0 ? LIMIT : 0.0f;
  args.n_touched = n_touched;
  args.gate_bias = w->bias[0];
  args.up_bias = w->bias[1];
  args.down_bias = w->bias[2];
  RUN_OP(experts, device, &args);
  weft_device_weight_free(device, &gate);
  weft_device_weight_free(device, &up);
  weft_device_weight_free(device, &down);
  return y;
}

/* y += the expert's n numbers of a bias. */
static void one_bias(const float *bias, uint32_t expert, uint32_t n, float *y) {
  for (uint32_t i = 0; i < n && bias != NULL; i++) y[i] += bias[(uint64_t)expert * n + i];
}

/* y = x W^T for rows [begin, begin + n) of one expert's matrix. */
static void one_product(weft_device *device, const stored *s, uint32_t expert, uint32_t begin, uint32_t n,
                        const float *x, float *y) {
  weft_weight weight = s->shape;
  weight.n_mats = 1;
  weight.n_out = n;
  if (weight.scale != NULL) weight.scale += expert;
  const uint8_t *bytes = s->bytes + ((uint64_t)expert * s->shape.n_out + begin) * s->row_bytes;
  assert_int_equal(weft_device_weight(device, &weight, bytes, WEFT_USE_MATMUL, NULL), WEFT_OK);
  weft_matmul_args args = {.x = x, .n_rows = 1, .n_weights = 1, .x_stride = weight.n_in};
  args.weight[0] = &weight;
  args.y[0] = y;
  args.y_stride[0] = n;
  RUN_OP(matmul, device, &args);
  weft_device_weight_free(device, &weight);
}

/* By pairs, of sums that lie WIDTH_MAX apart: those of leaves [first, first + n). */
static float add_leaves(const float *sum, uint32_t first, uint32_t n) {
  if (n == 1) return sum[(size_t)first * WIDTH_MAX];
  return add_leaves(sum, first, n / 2) + add_leaves(sum, first + n / 2, n / 2);
}

static void row_of_parts(weft_device *device, const experts_case *c, const weights *w, const float *x,
                         const int32_t *ids, const float *rank_weights, float *y) {
  float *g = memory_new(2 * 256 + WIDTH_MAX, sizeof *g), *u = g + 256, *out = u + 256;
  bool fused = w->up.bytes == NULL;
  float *sums = memory_new((size_t)WEFT_EXPERTS_LEAVES * WIDTH_MAX, sizeof *sums);
  for (uint32_t j = 0; j < c->k; j++) {
    uint32_t e = (uint32_t)ids[j];
    one_product(device, &w->gate, e, 0, c->n_ff, x, g);
    one_product(device, fused ? &w->gate : &w->up, e, fused ? c->n_ff : 0, c->n_ff, x, u);
    one_bias(w->bias[0], e, c->n_ff, g);
    one_bias(w->bias[1], e, c->n_ff, u);
    const float limit = (c->extra & LIMITED) != 0 ? LIMIT : 0.0f;
    weft_gate_args gate = {g, u, g, 1, c->n_ff, c->n_ff, c->n_ff, c->n_ff, c->activation, false, limit};
    assert_int_equal(done(device, weft_gate(device, &gate)), WEFT_OK);
    one_product(device, &w->down, e, 0, c->n_in, g, out);
    bool rounds = strcmp(weft_device_kernels(device)->numerics(device, w->down.shape.type), "s8x256-i32") == 0;
    for (uint32_t i = 0; rounds && i < c->n_in; i++) out[i] = weft_bf16_to_f32(weft_f32_to_bf16(out[i]));
    one_bias(w->bias[2], e, c->n_in, out);
    uint32_t leaf = 0;
    while (leaf + 1 < WEFT_EXPERTS_LEAVES && c->n_experts * (leaf + 1) / WEFT_EXPERTS_LEAVES <= e) leaf++;
    float *sum = sums + (size_t)leaf * WIDTH_MAX;
    for (uint32_t i = 0; i < c->n_in; i++) sum[i] += rank_weights[j] * out[i];
  }
  for (uint32_t i = 0; i < c->n_in; i++) y[i] = add_leaves(sums + i, 0, WEFT_EXPERTS_LEAVES);
  memory_free(sums);
  memory_free(g);
}

typedef struct routed {
  float *x, *rank_weights;
  int32_t *ids;
} routed;

static routed make_inputs(const experts_case *c, uint32_t n_rows, uint64_t seed) {
  routed in = {memory_new((size_t)n_rows * WIDTH_MAX, sizeof(float)), memory_new((size_t)n_rows * 8, sizeof(float)),
               memory_new((size_t)n_rows * 8, sizeof(int32_t))};
  fill_normal(in.x, (size_t)n_rows * c->n_in, seed);
  make_routes(c, n_rows, in.ids, in.rank_weights);
  return in;
}

static void free_inputs(routed *in) {
  memory_free(in->x);
  memory_free(in->rank_weights);
  memory_free(in->ids);
}

/* A case with its weights and the rows it is to compute. */
typedef struct subject {
  const experts_case *c;
  weights w;
  routed in;
} subject;

static void on_each(const fixture *f, uint32_t seed, void (*check)(const fixture *f, const subject *u)) {
  for (uint32_t i = case_first; i < N_CASES; i += case_step) {
    subject u = {.c = &cases[i], .w = make_weights(&cases[i], seed + 10 * i)};
    u.in = make_inputs(u.c, ROWS, seed + 100 + i);
    check(f, &u);
    free_inputs(&u.in);
    free_weights(&u.w);
  }
}

/* The subject's rows [first, first + n). */
static buffer run_rows(weft_device *device, const subject *u, uint32_t first, uint32_t n, uint32_t *n_touched) {
  const routed *in = &u->in;
  return run_experts(device, u->c, &u->w, in->x + (size_t)first * u->c->n_in, in->ids + (size_t)first * u->c->k,
                     in->rank_weights + (size_t)first * u->c->k, n, n_touched);
}

static void check_parts(const fixture *f, const subject *u) {
  const experts_case *c = u->c;
  const routed *in = &u->in;
  float want[WIDTH_MAX];
  for (uint32_t d = 0; d < f->all.n; d++) {
    weft_device *device = f->all.cpu[d];
    if (is_out_of_turn(&f->all, d, (uint32_t)(u->c - cases))) continue;
    buffer y = run_rows(device, u, 0, ROWS, NULL);
    for (uint32_t r = 0; r < ROWS; r += 3) {
      row_of_parts(device, c, &u->w, in->x + r * c->n_in, in->ids + r * c->k, in->rank_weights + r * c->k, want);
      const float *got = (float *)y.data + (size_t)r * c->n_in;
      assert_same(c->name, f->all.name[d], "the sum of its parts", got, want, c->n_in * sizeof(float));
    }
    buffer_free(&y);
  }
}

static void test_parts(void **state) {
  on_each(*state, 500, check_parts);
}

/* The first n rows, and row r by itself, have the bits that they have among all. */
static void assert_fewer(weft_device *device, const char *name, const subject *u, uint32_t n, const buffer *whole) {
  buffer part = run_rows(device, u, 0, n, NULL);
  assert_same(u->c->name, name, "fewer rows", part.data, whole->data, part.n_bytes);
  buffer_free(&part);
}

static void assert_alone(weft_device *device, const char *name, const subject *u, uint32_t r, const buffer *whole) {
  buffer alone = run_rows(device, u, r, 1, NULL);
  const float *row = (const float *)whole->data + (size_t)r * u->c->n_in;
  assert_same(u->c->name, name, "a row alone", alone.data, row, alone.n_bytes);
  buffer_free(&alone);
}

static void check_rows_and_threads(const fixture *f, const subject *u) {
  for (uint32_t d = f->all.n_cpu - 1; d < f->all.n; d++) {
    buffer whole = run_rows(f->all.cpu[d], u, 0, ROWS, NULL);
    for (uint32_t n = 1; n < ROWS; n += quick && touches_are_seen ? 7 : 1) {
      assert_fewer(f->all.cpu[d], f->all.name[d], u, n, &whole);
      assert_alone(f->all.cpu[d], f->all.name[d], u, n, &whole);
    }
    for (uint32_t t = 0; t < 2 && d + 1 == f->all.n_cpu; t++) assert_fewer(f->more[t], "threads", u, ROWS, &whole);
    buffer_free(&whole);
  }
}

/* A limited case is the sum of its parts, also a row alone, and differs from the same case without. */
static void check_limits(const fixture *f, const experts_case *limited, uint64_t seed) {
  experts_case free = *limited;
  const uint32_t n = limited->n_in, k = limited->k;
  free.extra = 0;
  subject u = {.c = limited, .w = make_weights(limited, seed), .in = make_inputs(limited, ROWS, seed + 50)}, plain = u;
  plain.c = &free;
  for (uint32_t d = 0; d <= f->all.n; d++) {
    weft_device *device = d < f->all.n ? f->all.cpu[d] : f->all.ref;
    const char *name = d < f->all.n ? f->all.name[d] : "ref";
    buffer y = run_rows(device, &u, 0, ROWS, NULL), without = run_rows(device, &plain, 0, ROWS, NULL);
    assert_true(memcmp(y.data, without.data, y.n_bytes) != 0);
    for (uint32_t r = 0; r < ROWS && d < f->all.n; r += 3) {
      float want[WIDTH_MAX];
      row_of_parts(device, limited, &u.w, u.in.x + r * n, u.in.ids + r * k, u.in.rank_weights + r * k, want);
      assert_same(limited->name, name, "the sum of its parts", (float *)y.data + (size_t)r * n, want, n * sizeof *want);
      buffer alone = run_rows(device, &u, r, 1, NULL);
      assert_same(limited->name, name, "a row alone", alone.data, want, n * sizeof *want);
      buffer_free(&alone);
    }
    buffer_free(&y);
    buffer_free(&without);
  }
  free_inputs(&u.in);
  free_weights(&u.w);
}

static void test_limits(void **state) {
  static const experts_case limited[] = {
      {"limited", WEFT_TYPE_Q8_0, WEFT_TYPE_NONE, WEFT_TYPE_Q4_0, 5, 2, 96, 160, WEFT_SILU, LIMITED},
      {"limited, 2 bits", WEFT_TYPE_IQ2_XXS, WEFT_TYPE_IQ2_XXS, WEFT_TYPE_Q2_K, 5, 2, 256, 256, WEFT_SILU, LIMITED}};
  for (uint32_t i = 0; i < 2; i++) check_limits(*state, &limited[i], 1500 + 100 * i);
}

static void test_rows_and_threads(void **state) {
  on_each(*state, 700, check_rows_and_threads);
}

/* Four rows that choose one expert three times each: twelve pairs, more than are multiplied at once. In another call a
 * row names an expert that does not exist, which on a card is NaN there and nothing in the other rows. */
static void check_one_expert(const fixture *f, const subject *u) {
  uint32_t n_in = u->c->n_in, k = u->c->k;
  for (uint32_t i = 0; i < 4 * k; i++) u->in.ids[i] = 2;
  for (uint32_t d = f->all.n_cpu - 1; d < f->all.n; d++) {
    weft_device *device = f->all.cpu[d];
    buffer whole = run_rows(device, u, 0, 4, NULL), part = {0};
    for (uint32_t r = 0; r < 4; r++) assert_alone(device, f->all.name[d], u, r, &whole);
    if (is_cuda(device)) {
      u->in.ids[k + 1] = (int32_t)u->c->n_experts;
      part = run_rows(device, u, 0, 4, NULL);
      u->in.ids[k + 1] = 2;
      const float *got = (const float *)part.data, *want = (const float *)whole.data;
      for (uint32_t j = n_in; j < 2 * n_in; j++) assert_true(isnan(got[j]));
      assert_same(u->c->name, f->all.name[d], "the row before", got, want, n_in * sizeof *got);
      assert_same(u->c->name, f->all.name[d], "the rows behind", got + 2 * n_in, want + 2 * n_in,
                  2 * n_in * sizeof *got);
      buffer_free(&part);
    }
    buffer_free(&whole);
  }
}

static void test_one_expert(void **state) {
  fixture *f = *state;
  const experts_case *c = &cases[WIDE];
  subject u = {.c = c, .w = make_weights(c, 1300), .in = make_inputs(c, 4, 1350)};
  check_one_expert(f, &u);
  free_inputs(&u.in);
  free_weights(&u.w);
}

/* More items than a card has room for at once, of jobs of every size: a row has the bits that it has alone, and among
 * fewer. */
static void items_agree(weft_device *device, const char *name, const subject *u) {
  buffer all = run_rows(device, u, 0, 256, NULL);
  assert_fewer(device, name, u, 128, &all);
  if (is_cuda(device)) assert_fewer(device, name, u, 160, &all); /* one expert's pairs are cut at 64 rows */
  assert_fewer(device, name, u, ROWS, &all);
  for (uint32_t n = 2; n <= 9; n++) assert_fewer(device, name, u, n, &all); /* few rows have kernels of their own */
  for (uint32_t r = 0; r < 256; r += 51) assert_alone(device, name, u, r, &all);
  buffer_free(&all);
}

static void test_many_items(void **state) {
  fixture *f = *state;
  static const experts_case many[] = {
      {"many items of 4 bits", WEFT_TYPE_Q4_K, WEFT_TYPE_NONE, WEFT_TYPE_Q8_0, 64, 8, 256, 704, WEFT_GELU_TANH, 0},
      {"many items of 16 bits", WEFT_TYPE_F16, WEFT_TYPE_NONE, WEFT_TYPE_BF16, 64, 8, 256, 704, WEFT_GELU_TANH, 0},
      {"many items of MXFP4", WEFT_TYPE_MXFP4, WEFT_TYPE_NONE, WEFT_TYPE_MXFP4, 64, 8, 256, 704, WEFT_CLAMPED_SILU,
       BIASES},
      {"gate and up apart", WEFT_TYPE_Q5_K, WEFT_TYPE_Q5_K, WEFT_TYPE_F16, 9, 4, 256, 88, WEFT_SILU, SCALES},
      {"a stack of 6 bits", WEFT_TYPE_Q6_K, WEFT_TYPE_NONE, WEFT_TYPE_Q4_0, 9, 4, 512, 96, WEFT_SILU, SCALES},
      {"64 inputs behind the last 128", WEFT_TYPE_Q8_0, WEFT_TYPE_NONE, WEFT_TYPE_Q8_0, 9, 4, 192, 96, WEFT_SILU,
       SCALES},
      {"a block and a half", WEFT_TYPE_Q8_0, WEFT_TYPE_NONE, WEFT_TYPE_Q5_0, 9, 4, 96, 160, WEFT_GELU_TANH, SCALES},
      {"the same of 5 bits", WEFT_TYPE_Q5_0, WEFT_TYPE_Q5_0, WEFT_TYPE_F16, 9, 4, 320, 72, WEFT_GELU_TANH, 0},
      {"the same of 4 bits", WEFT_TYPE_Q4_0, WEFT_TYPE_NONE, WEFT_TYPE_F32, 9, 4, 192, 48, WEFT_GELU_TANH, 0},
      {"experts of many rows", WEFT_TYPE_Q4_K, WEFT_TYPE_NONE, WEFT_TYPE_Q8_0, 6, 3, 512, 192, WEFT_GELU_TANH, SCALES},
      {"clamped", WEFT_TYPE_MXFP4, WEFT_TYPE_MXFP4, WEFT_TYPE_MXFP4, 9, 4, 288, 96, WEFT_CLAMPED_SILU, BIASES},
      {"the same with whole rows", WEFT_TYPE_MXFP4, WEFT_TYPE_MXFP4, WEFT_TYPE_MXFP4, 9, 4, 288, 192, WEFT_CLAMPED_SILU,
       BIASES},
      {"a stack of them", WEFT_TYPE_MXFP4, WEFT_TYPE_NONE, WEFT_TYPE_MXFP4, 7, 3, 704, 320, WEFT_SILU, SCALES},
      {"clamped, one stack", WEFT_TYPE_Q8_0, WEFT_TYPE_NONE, WEFT_TYPE_Q8_0, 6, 3, 256, 256, WEFT_CLAMPED_SILU, BIASES},
      {"the same apart", WEFT_TYPE_Q8_0, WEFT_TYPE_Q8_0, WEFT_TYPE_Q6_K, 6, 3, 256, 256, WEFT_SILU, SCALES}};
  for (uint32_t i = case_first; i < sizeof many / sizeof many[0]; i += case_step) {
    if (quick && touches_are_seen && many[i].n_experts > 9) continue; /* there is no more to touch for more of them */
    subject u = {.c = &many[i], .w = make_weights(&many[i], 1100 + 10 * i)};
    u.in = make_inputs(&many[i], 256, 1150 + i);
    for (uint32_t d = f->all.n_cpu - 1; d < f->all.n; d++) items_agree(f->all.cpu[d], f->all.name[d], &u);
    free_inputs(&u.in);
    free_weights(&u.w);
  }
}

/* Jobs of every number of rows, one expert's cut at 192 rows, with work for one to three groups of warps: products from
 * integers of weights have the bits of products from codes. */
static void test_job_rows(void **state) {
  enum { MANY = 640, FEWEST = 90, STEP = 25 };
  static const experts_case sizes[] = {
      {"jobs of every size", WEFT_TYPE_Q4_K, WEFT_TYPE_NONE, WEFT_TYPE_Q8_0, 5, 3, 256, 192, WEFT_GELU_TANH, SCALES},
      {"the same apart", WEFT_TYPE_Q8_0, WEFT_TYPE_Q8_0, WEFT_TYPE_Q8_0, 5, 3, 320, 96, WEFT_SILU, 0}};
  const fixture *f = *state;
  weft_device *device[2] = {NULL}; /* without integers, with them */
  for (uint32_t d = f->all.n_cpu; d < f->all.n; d++)
    if (is_eight(f->all.cpu[d])) device[weft_device_get_info(f->all.cpu[d])->integers] = f->all.cpu[d];
  if (memory_home == NULL || is_portable(memory_home)) return; /* only Hopper's set keeps integers */
  assert_true(device[0] != NULL && device[1] != NULL);
  for (uint32_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    subject u = {.c = &sizes[i], .w = make_weights(&sizes[i], 1700 + 10 * i), .in = make_inputs(&sizes[i], MANY, 1750)};
    buffer codes = run_rows(device[0], &u, 0, MANY, NULL);
    for (uint32_t n = FEWEST; n <= MANY; n += STEP) assert_fewer(device[1], "cuda, integers", &u, n, &codes);
    for (uint32_t n = 15; n < 34; n += 3) assert_fewer(device[1], "cuda, two halves", &u, n, &codes); /* jobs of 48 */
    buffer_free(&codes);
    free_inputs(&u.in);
    free_weights(&u.w);
  }
}

/* Against ref the only difference that counts is that activations are rounded to 8 bits, twice. One
 * rounding moves a product by about 1 / 250 of its own size (max / 254 at most, max / 440 on
 * average, where the mean square is max / 2.1); three products meet in the result. Measured: 0.3 to
 * 0.9 % of the largest output; 3 % is allowed. */
static void check_against_ref(const fixture *f, const subject *u) {
  const experts_case *c = u->c;
  uint32_t touched[2] = {100, 100};
  buffer want = run_rows(f->all.ref, u, 0, ROWS, &touched[0]);
  double most = 0.0;
  for (uint32_t j = 0; j < ROWS * c->n_in; j++) most = fmax(most, fabs((double)((float *)want.data)[j]));
  bool floats = is_float(c->gate_type) && is_float(c->down_type);
  for (uint32_t d = f->all.n_cpu - 1; d < f->all.n; d++) {
    weft_device *device = d < f->all.n_cpu ? f->more[0] : f->all.cpu[d];
    bool exact = floats && (!is_cuda(device) || c->gate_type == WEFT_TYPE_F32);
    double share = exact ? 2e-6 : is_cuda(device) && !is_eight(device) ? 1e-2 : 3e-2;
    touched[1] = 100;
    buffer got = run_rows(device, u, 0, ROWS, &touched[1]);
    double off = distance(got.data, want.data, ROWS, c->n_in, c->n_in);
    assert_within(c->name, f->all.name[d], off, share * most);
    if (!is_cuda(device)) assert_int_equal(touched[0], touched[1]);
    buffer_free(&got);
  }
  buffer_free(&want);
}

static void test_against_ref(void **state) {
  on_each(*state, 900, check_against_ref);
}

/* Of one expert with the weight 1 a row is what its down makes, which products of 8 bits round to bf16: on a card, and
 * on ref when it is opened for them. */
static void check_rounded(weft_device *device, const char *name, const subject *u, bool rounds) {
  buffer y = run_rows(device, u, 0, ROWS, NULL);
  const uint32_t *bits = (const uint32_t *)y.data;
  uint32_t n = ROWS * u->c->n_in, n_longer = 0, n_zero = 0;
  for (uint32_t i = 0; i < n; i++) n_longer += (bits[i] & 0xFFFF) != 0, n_zero += bits[i] == 0;
  if (rounds ? n_longer != 0 : n_longer < n / 2) fail_msg("%s: %u of %u are no bf16", name, n_longer, n);
  assert_in_range(n_zero, 0, n / 8);
  buffer_free(&y);
}

static void test_rounded(void **state) {
  fixture *f = *state;
  static const experts_case one = {"one", WEFT_TYPE_Q4_K, WEFT_TYPE_NONE, WEFT_TYPE_Q8_0, 4, 1, 256, 96, WEFT_GELU_TANH,
                                   0};
  const weft_device_config config = {.backend = "ref", .products = 8};
  weft_device *ref = NULL;
  subject u = {.c = &one, .w = make_weights(&one, 1500), .in = make_inputs(&one, ROWS, 1550)};
  for (uint32_t r = 0; r < ROWS; r++) u.in.rank_weights[r] = 1.0f;
  assert_int_equal(weft_device_open(&config, &ref, NULL), WEFT_OK);
  check_rounded(ref, "ref, 8 bits", &u, true);
  check_rounded(f->all.ref, "ref", &u, false);
  for (uint32_t d = 0; d < f->all.n; d++) check_rounded(f->all.cpu[d], f->all.name[d], &u, is_eight(f->all.cpu[d]));
  weft_device_close(ref);
  free_inputs(&u.in);
  free_weights(&u.w);
}

/* A device that sees ids only while it runs cannot refuse: the row is NaN. */
static void assert_refused(weft_device *device, const weft_experts_args *args) {
  if (!is_cuda(device)) {
    assert_int_equal(weft_experts(device, args), WEFT_E_INVALID);
    return;
  }
  assert_int_equal(done(device, weft_experts(device, args)), WEFT_OK);
  for (uint32_t i = 0; i < args->down->n_out; i++) assert_true(isnan(args->y[i]));
}

static void bad_ids(weft_device *device) {
  const experts_case *c = &cases[1];
  weights w = make_weights(c, 1200);
  weft_weight gate = upload(device, &w.gate), up = upload(device, &w.up), down = upload(device, &w.down);
  float *x = memory_new(2 * 256 + 2, sizeof *x), *y = x + 256, *rank_weights = y + 256;
  int32_t *ids = memory_new(2, sizeof *ids);
  rank_weights[0] = rank_weights[1] = 1.0f;
  weft_experts_args args = {.x = x, .ids = ids, .weights = rank_weights, .gate = &gate, .up = &up, .down = &down};
  args.y = y;
  args.n_rows = 1;
  args.k = 2;
  args.x_stride = args.y_stride = c->n_in;
  args.activation = WEFT_SILU;
  args.scratch_bytes = weft_experts_scratch(device, &args);
  buffer scratch = buffer_new(args.scratch_bytes);
  args.scratch = scratch.data;
  /* more pairs of a row and an expert than 31 bits count are refused before anything is measured */
  args.n_rows = 1u << 31;
  assert_int_equal(weft_experts(device, &args), WEFT_E_INVALID);
  args.n_rows = 0;
  assert_int_equal(weft_experts_scratch(device, &args), 0);
  args.n_rows = 1;
  /* one expert twice is allowed */
  assert_int_equal(done(device, weft_experts(device, &args)), WEFT_OK);
  ids[1] = (int32_t)c->n_experts;
  assert_refused(device, &args);
  ids[1] = -1;
  assert_refused(device, &args);
  buffer_free(&scratch);
  memory_free(x);
  memory_free(ids);
  weft_device_weight_free(device, &gate);
  weft_device_weight_free(device, &up);
  weft_device_weight_free(device, &down);
  free_weights(&w);
}

static void test_bad_ids(void **state) {
  on_best_devices(*state, bad_ids);
}

int main(int argc, char **argv) {
  take_arguments(argc, argv);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_parts),      cmocka_unit_test(test_limits),     cmocka_unit_test(test_rows_and_threads),
      cmocka_unit_test(test_one_expert), cmocka_unit_test(test_many_items), cmocka_unit_test(test_against_ref),
      cmocka_unit_test(test_job_rows),   cmocka_unit_test(test_rounded),    cmocka_unit_test(test_bad_ids),
  };
  return cmocka_run_group_tests(tests, setup_fixture_with_eight, teardown_fixture);
}
