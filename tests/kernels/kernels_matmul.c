/* SPDX-License-Identifier: MIT */
/* matmul and packed weights on the cpu device.
 *
 * Tolerance of a product: against a double sum over the same 8-bit activations only f32 roundings
 * are left. Quantised: per block of 32 the integer is exact; scale * dot, the minimum, the scale of
 * the row and the sum round once each, so 4 + n_blocks roundings of 2^-24 of the magnitudes added.
 * For types with minima the magnitudes are those of code * scale and of the minimum, at most 4
 * times those of their difference here. Float: a segment of 256 is one chain: 256 + n_segments
 * roundings at worst. */
#include "tests/kernels/weights.h"

enum { ROWS = 40, OUT = 37, DEVICES = 6 };

typedef struct matmul_case {
  weft_type type;
  uint32_t n_in, n_out;
} matmul_case;

/* Inputs: odd numbers of blocks; lengths that are no multiple of a segment. Outputs: parts of a
 * panel. */
static const matmul_case cases[] = {
    {WEFT_TYPE_F32, 300, OUT},    {WEFT_TYPE_F32, 17, 3},      {WEFT_TYPE_F16, 517, OUT},    {WEFT_TYPE_BF16, 256, 16},
    {WEFT_TYPE_BF16, 99, OUT},    {WEFT_TYPE_Q8_0, 96, OUT},   {WEFT_TYPE_Q8_0, 32, 1},      {WEFT_TYPE_Q4_0, 160, OUT},
    {WEFT_TYPE_Q5_0, 224, OUT},   {WEFT_TYPE_MXFP4, 96, OUT},  {WEFT_TYPE_Q4_K, 512, OUT},   {WEFT_TYPE_Q5_K, 256, OUT},
    {WEFT_TYPE_Q6_K, 768, OUT},   {WEFT_TYPE_Q4_1, 96, OUT},   {WEFT_TYPE_Q5_1, 704, OUT},   {WEFT_TYPE_Q2_K, 512, OUT},
    {WEFT_TYPE_Q3_K, 768, OUT},   {WEFT_TYPE_IQ4_NL, 96, OUT}, {WEFT_TYPE_IQ4_XS, 512, OUT}, {WEFT_TYPE_IQ2_S, 256, 20},
    {WEFT_TYPE_IQ3_XXS, 256, 20}, {WEFT_TYPE_IQ3_S, 512, 20},  {WEFT_TYPE_IQ1_M, 256, 20},   {WEFT_TYPE_TQ1_0, 256, 20},
    {WEFT_TYPE_NVFP4, 704, OUT},  {WEFT_TYPE_NVFP4, 64, 3},    {WEFT_TYPE_F32, 300, 1},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

/* y = x W^T for n_rows rows of x with stride; y has room for n_rows * n_out and is made here. */
static buffer product(weft_device *device, const weft_weight *weight, const float *x, uint64_t x_stride,
                      uint32_t n_rows) {
  buffer y = buffer_new((size_t)n_rows * weight->n_out * sizeof(float));
  weft_matmul_args args = {.x = x, .n_rows = n_rows, .n_weights = 1, .x_stride = x_stride};
  args.weight[0] = weight;
  args.y[0] = y.data;
  args.y_stride[0] = weight->n_out;
  RUN_OP(matmul, device, &args);
  return y;
}

/* cuda multiplies 16-bit numbers: a bf16 input is off by 2^-9 of itself, an f16 one by 2^-12 (or,
 * far below the row's largest, by nothing that counts); a quantised weight is made of a scale, a
 * product and a minimum, each off by 2^-12, of magnitudes up to 4 times its own. Sums are f32. */
static double cuda_share(weft_type type, uint32_t n_in) {
  double f32 = (257.0 + n_in / 256.0) * 0x1p-24;
  if (type == WEFT_TYPE_F32) return f32;
  if (type == WEFT_TYPE_BF16 || type == WEFT_TYPE_MXFP4) return 0x1p-9 + f32;
  return (type == WEFT_TYPE_F16 ? 1.0 : 13.0) * 0x1p-12 + f32;
}

static bool takes_eight(weft_type type) {
  return type == WEFT_TYPE_Q8_0 || type == WEFT_TYPE_Q4_0 || type == WEFT_TYPE_Q5_0 || type == WEFT_TYPE_Q4_K ||
         type == WEFT_TYPE_Q5_K || type == WEFT_TYPE_Q6_K;
}

/* Products of 8 bits: of each 256 inputs a row's number is off by half of 1 / 127 of the largest, a weight by little
 * more than 1 / 126 of the largest (whose step may be 1 / 128 of itself too long). */
static double eight_tolerance(const stored *s, uint64_t out, const float *x) {
  const float *w = s->value + out * s->shape.n_in;
  double tolerance = 0.0;
  for (uint32_t first = 0; first < s->shape.n_in; first += 256) {
    double most_x = 0.0, most_w = 0.0, all_x = 0.0, all_w = 0.0;
    for (uint32_t i = first; i < s->shape.n_in && i < first + 256; i++) {
      most_x = fmax(most_x, fabs((double)x[i])), most_w = fmax(most_w, fabs((double)w[i]));
      all_x += fabs((double)x[i]), all_w += fabs((double)w[i]);
    }
    double row = most_x / 254.0 * 1.0001, weight = most_w / 126.0 * 1.2;
    tolerance += all_w * row + all_x * weight + 256.0 * row * weight;
  }
  return tolerance;
}

/* How far a result on cuda may be from its plain meaning; size: dot_plain's. */
static double cuda_tolerance(bool eight, const stored *s, uint64_t out, const float *x, double size) {
  if (eight && takes_eight(s->shape.type)) return eight_tolerance(s, out, x);
  return cuda_share(s->shape.type, s->shape.n_in) * size;
}

/* Results first, first + step, .. of a row on cuda are near their plain meaning. */
static void assert_plain_row(const char *name, const char *what, bool eight, const stored *s, const float *x,
                             const float *y, uint32_t first, uint32_t step) {
  for (uint32_t o = first; o < s->shape.n_out; o += step) {
    double size, want = dot_plain(s, o, x, NULL, &size), off = fabs(want - (double)y[o]);
    assert_within(name, what, isnan(off) ? INFINITY : off, cuda_tolerance(eight, s, o, x, size));
  }
}

static void check_values(const matmul_case *c, const char *device, const stored *s, const float *x, const float *y) {
  float codes[1024], scales[32];
  bool cuda = strncmp(device, "cuda", 4) == 0, eight = cuda && device[4] != 0;
  bool quantised = !is_float(c->type) && !cuda;
  double roundings = quantised ? 4.0 * (4.0 + c->n_in / 32.0) : 257.0 + c->n_in / 256.0;
  for (uint32_t r = 0; r < ROWS; r++) {
    const float *row = x + (uint64_t)r * c->n_in;
    if (quantised) quantise_plain(row, c->n_in, codes, scales);
    for (uint32_t o = 0; o < c->n_out; o++) {
      double size, want = dot_plain(s, o, quantised ? codes : row, quantised ? scales : NULL, &size);
      double off = fabs(want - (double)y[r * c->n_out + o]);
      double tolerance = cuda ? cuda_tolerance(eight, s, o, row, size) : roundings * 0x1p-24 * size;
      assert_within(weft_type_find((int32_t)c->type)->name, device, isnan(off) ? INFINITY : off, tolerance);
    }
  }
}

/* The product of a weight that is uploaded for it alone. */
static buffer product_of(weft_device *device, const stored *s, const float *x, uint32_t n_rows) {
  weft_weight weight = upload(device, s);
  buffer y = product(device, &weight, x, s->shape.n_in, n_rows);
  weft_device_weight_free(device, &weight);
  return y;
}

/* The first n rows by themselves have the bits that they have among all. */
static void assert_fewer(weft_device *device, const weft_weight *weight, const float *x, uint32_t n,
                         const buffer *whole, const char *name, const char *on, const char *what) {
  buffer part = product(device, weight, x, weight->n_in, n);
  assert_same(name, on, what, part.data, whole->data, part.n_bytes);
  buffer_free(&part);
}

/* Products with the plain meaning; every number of rows 1 .. 40 and every row alone give the same
 * bits. */
static void rows_are_their_own(const matmul_case *c, const char *name, weft_device *device, const stored *s,
                               const float *x, buffer *whole) {
  weft_weight weight = upload(device, s);
  *whole = product(device, &weight, x, c->n_in, ROWS);
  check_values(c, name, s, x, whole->data);
  for (uint32_t n = 1; n < ROWS; n += quick ? 7 : 1)
    assert_fewer(device, &weight, x, n, whole, "matmul", name, "a smaller batch");
  for (uint32_t r = 0; r < ROWS; r += quick ? 13 : 1) {
    buffer alone = product(device, &weight, x + (uint64_t)r * c->n_in, c->n_in, 1);
    const float *row = (const float *)whole->data + (uint64_t)r * c->n_out;
    assert_same("matmul", name, "a row alone", alone.data, row, alone.n_bytes);
    buffer_free(&alone);
  }
  weft_device_weight_free(device, &weight);
}

static void test_products(void **state) {
  fixture *f = *state;
  for (uint32_t i = case_first; i < N_CASES; i += case_step) {
    const matmul_case *c = &cases[i];
    const char *name = weft_type_find((int32_t)c->type)->name;
    stored s = stored_new(c->type, 1, c->n_out, c->n_in, 7 + i);
    float *x = memory_new((size_t)ROWS * c->n_in, sizeof *x);
    fill_normal(x, (size_t)ROWS * c->n_in, 100 + i);
    for (uint32_t j = 0; j < ROWS * c->n_in; j++) { /* rows of all sizes, 2^-78 to 1 */
      x[j] = ldexpf(x[j], -2 * (int)(j / c->n_in));
    }
    buffer y[DEVICES_MAX] = {{0}}, *best = &y[f->all.n_cpu - 1];
    for (uint32_t d = 0; d < f->all.n; d++)
      if (!is_out_of_turn(&f->all, d, i)) rows_are_their_own(c, f->all.name[d], f->all.cpu[d], &s, x, &y[d]);
    for (uint32_t d = 1; d < f->all.n_cpu; d++) { /* one numerics on all isas; floats: all that have fma */
      if ((is_float(c->type) && d == 1) || y[d].data == NULL || y[d - 1].data == NULL) continue;
      assert_same(name, f->all.name[d], "the isa before", y[d].data, y[d - 1].data, y[d].n_bytes);
    }
    for (uint32_t t = 0; t < 2 && best->data != NULL; t++) {
      buffer again = product_of(f->more[t], &s, x, ROWS);
      assert_same(name, "cpu", "another number of threads", again.data, best->data, again.n_bytes);
      buffer_free(&again);
    }
    for (uint32_t d = 0; d < f->all.n; d++)
      if (y[d].data != NULL) buffer_free(&y[d]);
    memory_free(x);
    stored_free(&s);
  }
}

/* Against ref, which takes the input as it is: a code is off by at most half a step, max|x| / 254 of its block. */
static void near_ref(const matmul_case *c, weft_device *device, const stored *s, const float *x, const float *want) {
  buffer got = product_of(device, s, x, 1);
  for (uint32_t o = 0; o < c->n_out; o++) {
    double size, tolerance = 0.0;
    (void)dot_plain(s, o, x, NULL, &size);
    for (uint32_t k = 0; k < c->n_in && !is_float(c->type); k++) {
      float most = 0.0f;
      for (uint32_t j = k / 32 * 32; j < k / 32 * 32 + 32; j++) most = fmaxf(most, fabsf(x[j]));
      tolerance += fabs((double)s->value[(uint64_t)o * c->n_in + k]) * (double)most / 254.0;
    }
    if (is_cuda(device)) tolerance = cuda_tolerance(is_eight(device), s, o, x, size);
    double off = fabs((double)want[o] - (double)((float *)got.data)[o]);
    assert_within("ref", weft_device_get_info(device)->backend, off, 1.001 * tolerance + 300 * 0x1p-24 * size);
  }
  buffer_free(&got);
}

static void test_against_ref(void **state) {
  fixture *f = *state;
  for (uint32_t i = case_first; i < N_CASES; i += case_step) {
    const matmul_case *c = &cases[i];
    stored s = stored_new(c->type, 1, c->n_out, c->n_in, 31 + i);
    float *x = memory_new(1024, sizeof *x);
    fill_normal(x, c->n_in, 200 + i);
    buffer want = product_of(f->all.ref, &s, x, 1);
    for (uint32_t d = f->all.n_cpu - 1; d < f->all.n; d++) near_ref(c, f->all.cpu[d], &s, x, want.data);
    buffer_free(&want);
    memory_free(x);
    stored_free(&s);
  }
}

/* Weights whose scales are small or large all over: their products are as exact as others, and the same bits for every
 * number of rows. */
static void far_scales(fixture *f, const matmul_case *c, int power, const float *x) {
  static const uint32_t fewer[] = {1, 3, 9, 17};
  const char *name = weft_type_find((int32_t)c->type)->name;
  stored s = stored_new(c->type, 1, c->n_out, c->n_in, 61);
  stored_raise(&s, power);
  buffer want = product_of(f->all.ref, &s, x, 1);
  for (uint32_t d = f->all.n_cpu - 1; d < f->all.n; d++) {
    near_ref(c, f->all.cpu[d], &s, x, want.data);
    weft_weight weight = upload(f->all.cpu[d], &s);
    buffer whole = product(f->all.cpu[d], &weight, x, c->n_in, ROWS);
    for (uint32_t i = 0; i < sizeof fewer / sizeof fewer[0]; i++)
      assert_fewer(f->all.cpu[d], &weight, x, fewer[i], &whole, name, f->all.name[d], "far scales, fewer rows");
    buffer_free(&whole);
    weft_device_weight_free(f->all.cpu[d], &weight);
  }
  buffer_free(&want);
  stored_free(&s);
}

static void test_far_scales(void **state) {
  static const weft_type types[] = {WEFT_TYPE_Q8_0, WEFT_TYPE_Q4_0, WEFT_TYPE_Q5_0,   WEFT_TYPE_Q4_K,
                                    WEFT_TYPE_Q5_K, WEFT_TYPE_Q6_K, WEFT_TYPE_Q4_1,   WEFT_TYPE_Q5_1,
                                    WEFT_TYPE_Q2_K, WEFT_TYPE_Q3_K, WEFT_TYPE_IQ4_NL, WEFT_TYPE_IQ4_XS};
  static const int powers[] = {-14, -8, 8, 12};
  enum { N_IN = 512, N_OUT = 40 };
  float *x = memory_new(ROWS * N_IN, sizeof *x);
  fill_normal(x, ROWS * N_IN, 940);
  for (uint32_t t = 0; t < sizeof types / sizeof types[0]; t++) {
    matmul_case c = {.type = types[t], .n_out = N_OUT, .n_in = N_IN};
    for (uint32_t i = 0; i < sizeof powers / sizeof powers[0]; i++) far_scales(*state, &c, powers[i], x);
  }
  memory_free(x);
}

/* Three weights, strides wider than rows: what lies between rows stays as it was. Each weight alone, with 19 rows or
 * more, gives the same. */
static void weights_at_once(weft_device *device, const weft_type types[3], const uint32_t n_out[3], uint32_t n_rows,
                            uint32_t n_in, uint32_t x_gap) {
  enum { GAP = 7, LEAST = 19 };
  uint64_t x_stride = n_in + x_gap;
  uint32_t n_all = n_rows < LEAST ? LEAST : n_rows;
  buffer x = buffer_new(n_all * x_stride * sizeof(float)), y[3];
  for (uint32_t r = 0; r < n_all; r++) fill_normal((float *)x.data + r * x_stride, n_in, 300 + r);
  weft_matmul_args args = {.x = x.data, .n_rows = n_rows, .n_weights = 3, .x_stride = x_stride};
  weft_weight weight[3];
  stored s[3];
  for (uint32_t w = 0; w < 3; w++) {
    s[w] = stored_new(types[w], 1, n_out[w], n_in, 40 + w);
    weight[w] = upload(device, &s[w]);
    y[w] = buffer_new((size_t)n_rows * (n_out[w] + GAP) * sizeof(float));
    args.weight[w] = &weight[w];
    args.y[w] = y[w].data;
    args.y_stride[w] = n_out[w] + GAP;
  }
  RUN_OP(matmul, device, &args);
  for (uint32_t w = 0; w < 3; w++) {
    buffer alone = product(device, &weight[w], x.data, x_stride, n_all);
    for (uint32_t r = 0; r < n_rows; r++) {
      const float *row = (const float *)y[w].data + r * args.y_stride[w];
      assert_same("three weights", "cpu", "a row", row, (float *)alone.data + r * n_out[w], n_out[w] * sizeof(float));
      for (uint32_t i = 0; i < GAP; i++) assert_true(isnan(row[n_out[w] + i]));
    }
    buffer_free(&alone);
    buffer_free(&y[w]);
    weft_device_weight_free(device, &weight[w]);
    stored_free(&s[w]);
  }
  buffer_free(&x);
}

/* Three types of few rows, and many of types that a card with integers multiplies in one product, with an odd number
 * of blocks of 64 outputs; floats, whose many rows a card multiplies by tiles, but not those of few outputs alone; and
 * two types that a card has one kernel for, of up to 8 rows that it quantises or not, and of some more. */
static void three_weights(weft_device *device) {
  static const weft_type few[3] = {WEFT_TYPE_Q4_K, WEFT_TYPE_F16, WEFT_TYPE_Q6_K},
                         many[3] = {WEFT_TYPE_Q4_K, WEFT_TYPE_Q8_0, WEFT_TYPE_Q6_K},
                         floats[3] = {WEFT_TYPE_F32, WEFT_TYPE_F32, WEFT_TYPE_F32},
                         pairs[3][3] = {{WEFT_TYPE_Q4_K, WEFT_TYPE_Q4_K, WEFT_TYPE_Q6_K},
                                        {WEFT_TYPE_Q5_K, WEFT_TYPE_Q6_K, WEFT_TYPE_Q4_K},
                                        {WEFT_TYPE_Q4_K, WEFT_TYPE_Q8_0, WEFT_TYPE_Q8_0}};
  static const uint32_t few_out[3] = {48, 5, 33}, many_out[3] = {200, 130, 70}, floats_out[3] = {200, 1, 70};
  weights_at_once(device, few, few_out, 19, 256, 3);
  weights_at_once(device, many, many_out, 600, 256, 3);
  weights_at_once(device, floats, floats_out, 200, 388, 4);
  for (uint32_t i = 0; i < 3; i++) {
    for (uint32_t n_rows = 1; n_rows <= 8; n_rows += i == 0 ? 2 : 7) {
      weights_at_once(device, pairs[i], few_out, n_rows, 768, 4);
      weights_at_once(device, pairs[i], few_out, n_rows, 768, 3);
    }
    for (uint32_t n_rows = 1; n_rows <= 7; n_rows += 3) weights_at_once(device, pairs[i], many_out, n_rows, 2816, 4);
    weights_at_once(device, pairs[i], many_out, 17, 768, 4);
    weights_at_once(device, pairs[i], many_out, 32, 2816, 4);
  }
}

static void test_three_weights(void **state) {
  on_best_devices(*state, three_weights);
}

/* More rows and longer ones than a tile of any kernel: first rows alone give the same bits. */
static void test_many_rows(void **state) {
  fixture *f = *state;
  enum { N_IN = 2304, N_OUT = 130, MANY = 150 };
  static const uint32_t fewer[] = {1, 9, 17, 33, 65, 100};
  float *x = memory_new(MANY * N_IN, sizeof *x);
  fill_normal(x, MANY * N_IN, 900);
  for (uint32_t t = 0; t < N_TYPES; t++) {
    stored s = stored_new(all_types[t], 1, N_OUT, N_IN, 80 + t);
    for (uint32_t d = f->all.n_cpu - 1; d < f->all.n; d++) {
      weft_device *device = f->all.cpu[d];
      weft_weight weight = upload(device, &s);
      buffer whole = product(device, &weight, x, N_IN, MANY);
      for (uint32_t i = 0; i < sizeof fewer / sizeof fewer[0]; i++)
        assert_fewer(device, &weight, x, fewer[i], &whole, weft_type_find((int32_t)all_types[t])->name, f->all.name[d],
                     "fewer rows");
      if (is_cuda(device))
        assert_plain_row("many rows", "cuda", is_eight(device), &s, x + (size_t)(MANY - 1) * N_IN,
                         (float *)whole.data + (MANY - 1) * N_OUT, 0, 1);
      buffer_free(&whole);
      weft_device_weight_free(device, &weight);
    }
    stored_free(&s);
  }
  memory_free(x);
}

/* Enough outputs that a card of some hundred multiprocessors takes items of every kind, the larger the more rows, and
 * a warp for a tile of one row: all rows have the bits that they have among fewer, and the last ones their plain
 * meaning. */
static void items_agree(weft_device *device, const stored *s, uint32_t n_rows, const float *x) {
  static const uint32_t fewer[] = {1, 9, 16, 31, 64, 88, 100};
  weft_weight weight = upload(device, s);
  const char *name = weft_type_find((int32_t)weight.type)->name;
  buffer whole = product(device, &weight, x, weight.n_in, n_rows);
  for (uint32_t i = 0; i < sizeof fewer / sizeof fewer[0] && fewer[i] < n_rows; i++)
    assert_fewer(device, &weight, x, fewer[i], &whole, name, "cuda", "other items");
  for (uint32_t r = n_rows - 3; r < n_rows; r++)
    assert_plain_row(name, "cuda, large items", is_eight(device), s, x + (size_t)r * weight.n_in,
                     (float *)whole.data + (size_t)r * weight.n_out, r % 61, 61);
  buffer_free(&whole);
  weft_device_weight_free(device, &weight);
}

static void test_items(void **state) {
  fixture *f = *state;
  static const struct {
    uint32_t n_out, n_rows, n_in;
  } shapes[] = {{300, 128, 1024},  {8190, 255, 1024}, {8190, 255, 704},
                {16380, 31, 1024}, {101400, 10, 512}, {101400, 10, 288}};
  for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0] && f->all.n > f->all.n_cpu; i++) {
    float *x = memory_new((size_t)shapes[i].n_rows * shapes[i].n_in, sizeof *x);
    fill_normal(x, (size_t)shapes[i].n_rows * shapes[i].n_in, 970 + i);
    for (uint32_t t = case_first; t < N_TYPES; t += case_step) {
      if (shapes[i].n_in % weft_type_find((int32_t)all_types[t])->n_elements != 0) continue;
      stored s = stored_new(all_types[t], 1, shapes[i].n_out, shapes[i].n_in, 270 + t);
      for (uint32_t d = f->all.n_cpu; d < f->all.n; d++) items_agree(f->all.cpu[d], &s, shapes[i].n_rows, x);
      stored_free(&s);
    }
    memory_free(x);
  }
}

/* A backend that has not the products that are asked for does not open. */
static void test_products_refused(void **state) {
  static const struct {
    const char *backend;
    uint32_t products;
    bool integers;
    const char *line; /* NULL: it opens */
  } asked[] = {
      {"cpu", 8, false, NULL},
      {"cpu", 16, false, "backend 'cpu' multiplies quantised weights in 8 bits, not in 16; leave out --precision"},
      {"ref", 8, false, NULL},
      {"ref", 16, false, "backend 'ref' multiplies quantised weights in 32 bits, not in 16; leave out --precision"},
      {"ref", 7, false, "backend 'ref' multiplies quantised weights in 32 bits, not in 7; leave out --precision"},
      {"cpu", 8, true, "backend 'cpu' keeps no integers of weights"},
      {"ref", 8, true, "backend 'ref' keeps no integers of weights"},
      {"cuda", 8, true, NULL},
      {"cuda", 16, true, "integers of weights are for products of 8 bits"},
      {"cuda", 0, true, "integers of weights are for products of 8 bits"}};
  (void)state;
  for (uint32_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
    bool card = strcmp(asked[i].backend, "cuda") == 0;
    const weft_device_config config = {.backend = asked[i].backend,
                                       .isa = card ? cuda_set : NULL,
                                       .products = asked[i].products,
                                       .integers = asked[i].integers};
    weft_error error = {{0}};
    weft_device *device = NULL;
    const char *line = asked[i].line;
    if (memory_home == NULL && card) continue;
    if (card && is_portable(memory_home)) line = "backend 'cuda' keeps no integers of weights";
    assert_int_equal(weft_device_open(&config, &device, &error), line == NULL ? WEFT_OK : WEFT_E_UNSUPPORTED);
    assert_true((device == NULL) == (line != NULL));
    assert_string_equal(error.text, line == NULL ? "" : line);
    if (device != NULL) weft_device_close(device);
  }
}

/* Products of 8 bits: ref's are near their plain meaning, and the card's have their bits. */
static void test_eight_bits(void **state) {
  enum { N_OUT = 37, MANY = 70 };
  static const uint32_t lengths[] = {32, 64, 96, 160, 256, 288, 448, 704, 768, 1024};
  fixture *f = *state;
  const weft_device_config config = {.backend = "ref", .products = 8};
  weft_device *ref = NULL;
  assert_int_equal(weft_device_open(&config, &ref, NULL), WEFT_OK);
  for (uint32_t t = 0; t < N_TYPES; t++) {
    const weft_type_info *info = weft_type_find((int32_t)all_types[t]);
    for (uint32_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
      uint32_t n_in = lengths[i];
      if (!takes_eight(all_types[t]) || n_in % info->n_elements != 0) continue;
      stored s = stored_new(all_types[t], 1, N_OUT, n_in, 410 + i);
      float *x = memory_new((size_t)MANY * n_in, sizeof *x);
      fill_normal(x, (size_t)MANY * n_in, 420 + i);
      weft_weight weight = upload(ref, &s);
      buffer want = product(ref, &weight, x, n_in, MANY);
      for (uint32_t r = 0; r < MANY; r += 9)
        assert_plain_row(info->name, "ref, 8 bits", true, &s, x + (size_t)r * n_in, (float *)want.data + r * N_OUT, 0,
                         1);
      for (uint32_t d = f->all.n_cpu; d < f->all.n; d++) {
        if (!is_eight(f->all.cpu[d])) continue;
        weft_weight on_card = upload(f->all.cpu[d], &s);
        buffer got = product(f->all.cpu[d], &on_card, x, n_in, MANY);
        assert_same(info->name, f->all.name[d], "ref's product", got.data, want.data, got.n_bytes);
        buffer_free(&got);
        weft_device_weight_free(f->all.cpu[d], &on_card);
      }
      buffer_free(&want);
      weft_device_weight_free(ref, &weight);
      memory_free(x);
      stored_free(&s);
    }
  }
  weft_device_close(ref);
}

/* With and without integers products of many rows have the same bits, and integers take the memory that plans count. */
static void same_of_integers(weft_device *codes, weft_device *integers, const stored *s, const float *x) {
  static const uint32_t n_rows[] = {65, 300, 512, 577, 700};
  const char *name = weft_type_find((int32_t)s->shape.type)->name;
  weft_weight a = upload(codes, s), b = upload(integers, s);
  assert_in_range(b.n_bytes - a.n_bytes - weft_device_integers_bytes(integers, &s->shape, WEFT_USE_MATMUL), 0, 255);
  for (uint32_t i = 0; i < sizeof n_rows / sizeof *n_rows; i++) {
    buffer want = product(codes, &a, x, a.n_in, n_rows[i]), got = product(integers, &b, x, b.n_in, n_rows[i]);
    assert_same(name, "cuda, integers", "a product from codes", got.data, want.data, want.n_bytes);
    buffer_free(&want);
    buffer_free(&got);
  }
  weft_device_weight_free(codes, &a);
  weft_device_weight_free(integers, &b);
}

static void test_integers(void **state) {
  enum { MANY = 700, N_IN_MAX = 2816 };
  enum { N_LARGE = 17000 }; /* items enough that each block of a card has several, one after another */
  enum { N_PAIRS = 5632 };  /* with 300 and 577 rows, items of 128 rows are done first */
  static const uint32_t shapes[][2] = {{64, 256},       {37, 288},      {130, 704},    {1000, 512},
                                       {200, N_IN_MAX}, {N_LARGE, 256}, {N_PAIRS, 768}};
  const fixture *f = *state;
  weft_device *device[2] = {NULL}; /* without integers, with them */
  for (uint32_t d = f->all.n_cpu; d < f->all.n; d++)
    if (is_eight(f->all.cpu[d])) device[weft_device_get_info(f->all.cpu[d])->integers] = f->all.cpu[d];
  if (memory_home == NULL || is_portable(memory_home)) return; /* only Hopper's set keeps integers */
  assert_true(device[0] != NULL && device[1] != NULL);
  float *x = memory_new(MANY * N_IN_MAX, sizeof *x);
  fill_normal(x, MANY * N_IN_MAX, 980);
  for (uint32_t t = 0; t < N_TYPES; t++) {
    for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0] && takes_eight(all_types[t]); i++) {
      if (shapes[i][1] % weft_type_find((int32_t)all_types[t])->n_elements != 0) continue;
      if (shapes[i][0] >= N_PAIRS && all_types[t] != WEFT_TYPE_Q4_K) continue;
      stored s = stored_new(all_types[t], 1, shapes[i][0], shapes[i][1], 990 + i);
      same_of_integers(device[0], device[1], &s, x);
      stored_free(&s);
    }
  }
  memory_free(x);
}

/* cuda without the contract: rows may differ in their bits by how many there are, but are as good, and the same call
 * gives the same bits. */
static void test_free_sums(void **state) {
  enum { N_IN = 2304, N_OUT = 130, MANY = 150 };
  static const uint32_t n_rows[] = {1, 9, 17, 33, 65, MANY};
  (void)state;
  if (memory_home == NULL) return;
  weft_device *device = open_cuda(true);
  float *x = memory_new(MANY * N_IN, sizeof *x);
  fill_normal(x, MANY * N_IN, 950);
  for (uint32_t t = 0; t < N_TYPES; t++) {
    const char *name = weft_type_find((int32_t)all_types[t])->name;
    const char *tag = weft_device_kernels(device)->numerics(device, all_types[t]);
    stored s = stored_new(all_types[t], 1, N_OUT, N_IN, 180 + t);
    weft_weight weight = upload(device, &s);
    assert_true(all_types[t] == WEFT_TYPE_F32 || strstr(tag, "-free") != NULL);
    for (uint32_t i = 0; i < sizeof n_rows / sizeof n_rows[0]; i++) {
      uint32_t last = n_rows[i] - 1;
      buffer y = product(device, &weight, x, N_IN, n_rows[i]), again = product(device, &weight, x, N_IN, n_rows[i]);
      assert_same(name, "cuda, free sums", "the same call again", again.data, y.data, y.n_bytes);
      assert_plain_row(name, "cuda, free sums", false, &s, x + (size_t)last * N_IN, (float *)y.data + last * N_OUT, 0,
                       1);
      buffer_free(&y);
      buffer_free(&again);
    }
    weft_device_weight_free(device, &weight);
    stored_free(&s);
  }
  memory_free(x);
  weft_device_close(device);
}

/* Any bytes at all survive packing, of every type and of every type that devices hold others as. */
static void packing(weft_device *device, uint32_t n_blocks) {
  for (int32_t id = 0; id < WEFT_TYPE_ID_HELD + 64; id++) {
    const weft_type_info *info = weft_type_find(id);
    if (info == NULL) continue;
    weft_weight weight = {.type = info->type, .n_in = n_blocks * info->n_elements, .n_out = OUT, .n_mats = 3};
    uint64_t n_bytes = 3ull * OUT * n_blocks * info->n_bytes;
    uint64_t held_bytes = 3ull * OUT * weft_type_row_bytes(info->held_as, weight.n_in);
    buffer from = buffer_new(n_bytes), held = buffer_new(held_bytes), to = buffer_new(held_bytes);
    fill_bytes(from.data, n_bytes, 50 + (uint64_t)id);
    weft_repack_row(info->type, from.data, held.data, 3ull * OUT * weight.n_in);
    assert_int_equal(weft_device_weight(device, &weight, from.data, WEFT_USE_EXPERTS, NULL), WEFT_OK);
    assert_int_equal(weight.type, info->held_as);
    assert_int_equal(weft_device_weight_unpack(device, &weight, to.data), WEFT_OK);
    assert_same("packing", info->name, "a weight packed and unpacked", held.data, to.data, held_bytes);
    weft_device_weight_free(device, &weight);
    buffer_free(&from);
    buffer_free(&held);
    buffer_free(&to);
  }
}

static void packings(weft_device *device) {
  packing(device, 3);
  packing(device, 5);
}

static void test_packing(void **state) {
  on_best_devices(*state, packings);
}

/* Rows of every type that files have, bit for bit what the file means. */
static void lookups(weft_device *device) {
  for (int32_t id = 0; id < WEFT_TYPE_ID_HELD; id++) {
    const weft_type_info *info = weft_type_find(id);
    if (info == NULL) continue;
    const uint32_t n_in = 3 * info->n_elements;
    stored s = stored_new(info->type, 1, OUT, n_in, 60 + (uint64_t)id);
    weft_weight weight = upload(device, &s);
    int32_t *tokens = memory_new(OUT, sizeof *tokens);
    for (int32_t i = 0; i < OUT; i++) tokens[i] = OUT - 1 - i;
    buffer y = buffer_new((size_t)OUT * n_in * sizeof(float));
    weft_embed_args args = {&weight, tokens, y.data, OUT, 1.0f, n_in};
    assert_int_equal(done(device, weft_embed(device, &args)), WEFT_OK);
    for (uint32_t r = 0; r < OUT; r++) {
      const float *want = s.value + (uint64_t)(OUT - 1 - r) * n_in, *got = (float *)y.data + (uint64_t)r * n_in;
      for (uint32_t i = 0; i < n_in; i++) assert_true(want[i] == got[i]);
    }
    buffer_free(&y);
    memory_free(tokens);
    weft_device_weight_free(device, &weight);
    stored_free(&s);
  }
}

static void test_lookups(void **state) {
  on_best_devices(*state, lookups);
}

/* A NaN or an infinity in a row shows in all outputs of that row, and in no other row. Rows of
 * zeros and of numbers too small for a scale give zeros. */
static void test_hostile_rows(void **state) {
  fixture *f = *state;
  static const float bad[2] = {NAN, INFINITY};
  for (uint32_t d = 0; d < f->all.n; d++) {
    for (uint32_t t = 0; t < N_TYPES; t++) {
      if (is_out_of_turn(&f->all, d, t)) continue;
      const uint32_t n_in = 256, n_out = 20, n_rows = 5;
      stored s = stored_new(all_types[t], 1, n_out, n_in, 70 + t);
      weft_weight weight = upload(f->all.cpu[d], &s);
      float *x = memory_new(n_rows * n_in, sizeof *x);
      fill_normal(x, n_rows * n_in, 400 + t);
      buffer clean = product(f->all.cpu[d], &weight, x, n_in, n_rows);
      x[1 * 256 + 33] = bad[t % 2];
      for (uint32_t i = 0; i < n_in; i++) x[3 * 256 + i] = i % 2 == 0 ? 0.0f : 1e-38f;
      buffer y = product(f->all.cpu[d], &weight, x, n_in, n_rows);
      const float *got = y.data, *before = clean.data;
      for (uint32_t o = 0; o < n_out; o++) {
        for (uint32_t r = 0; r < n_rows; r += 2) assert_true(got[r * n_out + o] == before[r * n_out + o]);
        assert_true(!isfinite(got[1 * n_out + o]) || (is_float(all_types[t]) && s.value[o * n_in + 33] == 0.0f));
        assert_true(fabsf(got[3 * n_out + o]) < 1e-33f);
      }
      buffer_free(&y);
      buffer_free(&clean);
      memory_free(x);
      weft_device_weight_free(f->all.cpu[d], &weight);
      stored_free(&s);
    }
  }
}

/* Weights with a scale: the product of the same weight without one, times the scale, before an activation sees it. ref
 * rounds once, the others twice. */
typedef struct scaled_pair {
  weft_weight plain[2], scaled[2];
  float *scale;
} scaled_pair;

static void products_of_pair(weft_device *device, const weft_weight *weight, const float *x, uint32_t n_rows,
                             weft_activation activation, buffer y[2]) {
  weft_matmul_args args = {.x = x, .n_rows = n_rows, .n_weights = 2, .x_stride = weight[0].n_in};
  args.activation = activation;
  for (uint32_t i = 0; i < 2; i++) {
    y[i] = buffer_new((size_t)n_rows * weight[i].n_out * sizeof(float));
    args.weight[i] = &weight[i];
    args.y[i] = y[i].data;
    args.y_stride[i] = weight[i].n_out;
  }
  RUN_OP(matmul, device, &args);
}

static void scaled_products(weft_device *device, const char *name, const scaled_pair *w, const float *x,
                            uint32_t n_rows) {
  const uint32_t n_out = w->plain[0].n_out;
  bool is_ref = strcmp(weft_device_get_info(device)->backend, "ref") == 0;
  buffer plain[2], scaled[2], gated[2], want = buffer_new((size_t)n_rows * n_out * sizeof(float));
  products_of_pair(device, w->plain, x, n_rows, 0, plain);
  products_of_pair(device, w->scaled, x, n_rows, 0, scaled);
  for (uint32_t i = 0; i < 2; i++) {
    float *times = want.data;
    for (uint32_t j = 0; j < n_rows * n_out; j++) times[j] = ((const float *)plain[i].data)[j] * w->scale[i];
    if (is_ref) {
      for (uint32_t j = 0; j < n_rows * n_out; j++) {
        double off = fabs((double)times[j] - (double)((const float *)scaled[i].data)[j]);
        assert_within("scaled", name, off, 2.0 * 0x1p-24 * fabs((double)times[j]));
      }
    } else {
      assert_same("scaled", name, "the product times the scale", scaled[i].data, times, want.n_bytes);
    }
  }
  products_of_pair(device, w->scaled, x, n_rows, WEFT_SILU, gated);
  weft_gate_args gate = {scaled[0].data, scaled[1].data, want.data, n_rows, n_out, n_out,
                         n_out,          n_out,          WEFT_SILU, false,  0};
  assert_int_equal(done(device, weft_gate(device, &gate)), WEFT_OK);
  assert_same("scaled", name, "scaled, then gated", gated[0].data, want.data, want.n_bytes);
  for (uint32_t i = 0; i < 2; i++) {
    buffer_free(&plain[i]);
    buffer_free(&scaled[i]);
    buffer_free(&gated[i]);
  }
  buffer_free(&want);
}

static void scales_on(weft_device *device, const char *name, weft_type type, const float *x) {
  static const uint32_t n_rows[] = {1, 3, 8, 12, 17, ROWS, 150, 600};
  enum { N_IN = 768, N_OUT = 112 };
  scaled_pair w = {.scale = memory_new(2, sizeof(float))};
  w.scale[0] = 3.17e-4f;
  w.scale[1] = -11.3f;
  stored s = stored_new(type, 1, N_OUT, N_IN, 1301);
  for (uint32_t i = 0; i < 2; i++) {
    w.scaled[i] = w.plain[i] = upload(device, &s);
    w.scaled[i].scale = &w.scale[i];
  }
  for (uint32_t i = 0; i < sizeof n_rows / sizeof n_rows[0]; i++) scaled_products(device, name, &w, x, n_rows[i]);
  for (uint32_t i = 0; i < 2; i++) weft_device_weight_free(device, &w.plain[i]);
  memory_free(w.scale);
  stored_free(&s);
}

static void test_scales(void **state) {
  static const weft_type types[] = {WEFT_TYPE_F32, WEFT_TYPE_BF16, WEFT_TYPE_Q8_0, WEFT_TYPE_Q4_K, WEFT_TYPE_NVFP4};
  fixture *f = *state;
  float *x = memory_new(600 * 768, sizeof *x);
  fill_normal(x, 600 * 768, 1300);
  for (uint32_t t = case_first; t < sizeof types / sizeof types[0]; t += case_step) {
    scales_on(f->all.ref, "ref", types[t], x);
    for (uint32_t d = 0; d < f->all.n; d++)
      if (!is_out_of_turn(&f->all, d, t)) scales_on(f->all.cpu[d], f->all.name[d], types[t], x);
  }
  memory_free(x);
}

/* Ops that look rows up, or that cap what they multiply, take no scale. */
static void test_scales_refused(void **state) {
  fixture *f = *state;
  weft_device *device = f->more[0];
  float scale = 2.0f, y[64], h[64] = {0};
  int32_t token = 0;
  uint8_t bad;
  stored s = stored_new(WEFT_TYPE_NVFP4, 1, 3, 64, 1310);
  weft_weight weight = upload(device, &s);
  weight.scale = &scale;
  weft_embed_args embed = {&weight, &token, y, 1, 1.0f, 64};
  weft_head_rows_args head = {.h = h, .weight = &weight, .logits = y, .bad = &bad, .n_rows = 1};
  assert_int_equal(weft_embed(device, &embed), WEFT_E_INVALID);
  assert_int_equal(weft_head_rows(device, &head), WEFT_E_INVALID);
  weft_device_weight_free(device, &weight);
  stored_free(&s);
}

int main(int argc, char **argv) {
  take_arguments(argc, argv);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_products),  cmocka_unit_test(test_against_ref),    cmocka_unit_test(test_three_weights),
      cmocka_unit_test(test_packing),   cmocka_unit_test(test_lookups),        cmocka_unit_test(test_hostile_rows),
      cmocka_unit_test(test_many_rows), cmocka_unit_test(test_items),          cmocka_unit_test(test_far_scales),
      cmocka_unit_test(test_free_sums), cmocka_unit_test(test_eight_bits),     cmocka_unit_test(test_products_refused),
      cmocka_unit_test(test_scales),    cmocka_unit_test(test_scales_refused), cmocka_unit_test(test_integers),
  };
  return cmocka_run_group_tests(tests, setup_fixture_with_eight, teardown_fixture);
}
