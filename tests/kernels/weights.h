/* SPDX-License-Identifier: MIT */
/* Random weights of every stored type, and plain sums over what they mean.
 *
 * Law: bytes are random where any byte is a number; scales are drawn so that values are of order
 * one. */
#ifndef WEFT_TESTS_KERNELS_WEIGHTS_H
#define WEFT_TESTS_KERNELS_WEIGHTS_H

#include "tests/kernels/harness.h"

/* One type of each way of holding numbers: together they use every kernel. */
static const weft_type all_types[] = {WEFT_TYPE_F32,  WEFT_TYPE_F16,  WEFT_TYPE_BF16,   WEFT_TYPE_Q8_0,
                                      WEFT_TYPE_Q4_0, WEFT_TYPE_Q5_0, WEFT_TYPE_MXFP4,  WEFT_TYPE_Q4_K,
                                      WEFT_TYPE_Q5_K, WEFT_TYPE_Q6_K, WEFT_TYPE_Q4_1,   WEFT_TYPE_Q5_1,
                                      WEFT_TYPE_Q2_K, WEFT_TYPE_Q3_K, WEFT_TYPE_IQ4_XS, WEFT_TYPE_IQ4_NL};
enum { N_TYPES = sizeof all_types / sizeof all_types[0] };

/* Where blocks keep their f16 scales, and numbers that make values of order one of them. IQ1_M's is cut in four. */
typedef struct scale_place {
  weft_type type;
  uint32_t at;
  float divisor; /* 0: there is none */
  uint32_t at_least;
  float divisor_least;
} scale_place;

static const scale_place scale_places[] = {
    {WEFT_TYPE_Q8_0, 0, 100.0f, 0, 0},     {WEFT_TYPE_Q4_0, 0, 5.0f, 0, 0},      {WEFT_TYPE_Q5_0, 0, 10.0f, 0, 0},
    {WEFT_TYPE_Q4_1, 0, 5.0f, 2, -1.0f},   {WEFT_TYPE_Q5_1, 0, 10.0f, 2, -1.0f}, {WEFT_TYPE_Q4_K, 0, 150.0f, 2, 20.0f},
    {WEFT_TYPE_Q5_K, 0, 300.0f, 2, 20.0f}, {WEFT_TYPE_Q6_K, 208, 1500.0f, 0, 0}, {WEFT_TYPE_Q2_K, 80, 15.0f, 82, 10.0f},
    {WEFT_TYPE_Q3_K, 108, 60.0f, 0, 0},    {WEFT_TYPE_IQ4_NL, 0, 80.0f, 0, 0},   {WEFT_TYPE_IQ4_XS, 0, 1200.0f, 0, 0},
    {WEFT_TYPE_IQ2_XXS, 0, 60.0f, 0, 0},   {WEFT_TYPE_IQ2_XS, 0, 60.0f, 0, 0},   {WEFT_TYPE_IQ2_S, 0, 60.0f, 0, 0},
    {WEFT_TYPE_IQ3_XXS, 0, 150.0f, 0, 0},  {WEFT_TYPE_IQ3_S, 0, 150.0f, 0, 0},   {WEFT_TYPE_IQ1_S, 0, 6.0f, 0, 0},
    {WEFT_TYPE_TQ1_0, 52, 1.0f, 0, 0},     {WEFT_TYPE_TQ2_0, 64, 1.0f, 0, 0},
};

static inline const scale_place *find_scales(weft_type type) {
  for (uint32_t i = 0; i < sizeof scale_places / sizeof scale_places[0]; i++) {
    if (scale_places[i].type == type) return &scale_places[i];
  }
  return NULL;
}

static inline bool is_float(weft_type type) {
  return type == WEFT_TYPE_F32 || type == WEFT_TYPE_F16 || type == WEFT_TYPE_BF16;
}

/* A weight in the file's form and as floats [n_mats * n_out][n_in]. */
typedef struct stored {
  weft_weight shape; /* data is NULL */
  uint8_t *bytes;
  float *value;
  uint64_t n_bytes, row_bytes;
} stored;

static inline void put_f16(uint8_t *at, float value) {
  uint16_t bits = weft_f32_to_f16(value);
  memcpy(at, &bits, sizeof bits);
}

static inline void fill_block(weft_type type, uint8_t *block, uint32_t n_bytes, uint64_t seed) {
  fill_bytes(block, n_bytes, seed);
  float size = 0.5f + random_uniform(seed, 1000), normal = random_normal(seed, 1001);
  uint16_t half = weft_f32_to_bf16(normal);
  const scale_place *place = find_scales(type);
  if (place != NULL) {
    put_f16(block + place->at, size / place->divisor);
    if (place->divisor_least != 0.0f) put_f16(block + place->at_least, size / place->divisor_least);
  } else if (type == WEFT_TYPE_F32) {
    memcpy(block, &normal, sizeof normal);
  } else if (type == WEFT_TYPE_F16) {
    put_f16(block, normal);
  } else if (type == WEFT_TYPE_BF16) {
    memcpy(block, &half, sizeof half);
  } else if (type == WEFT_TYPE_MXFP4) {
    block[0] = (uint8_t)(124 + block[0] % 4);
  } else if (type == WEFT_TYPE_NVFP4) {
    for (uint32_t i = 0; i < 4; i++) block[i] = (uint8_t)(0x20 + block[i] % 16); /* 1/8 to 15/32 */
  } else {
    assert_int_equal(type, WEFT_TYPE_IQ1_M);
    uint16_t d = weft_f32_to_f16(size / 6.0f);
    for (uint32_t j = 0; j < 4; j++) {
      uint8_t *byte = block + 49 + 2 * j;
      *byte = (uint8_t)((*byte & 15u) | (uint32_t)(d >> (4 * j) & 15) << 4);
    }
  }
}

static inline stored stored_new(weft_type type, uint32_t n_mats, uint32_t n_out, uint32_t n_in, uint64_t seed) {
  const weft_type_info *info = weft_type_find((int32_t)type);
  stored s = {.shape = {.type = type, .n_in = n_in, .n_out = n_out, .n_mats = n_mats}};
  uint64_t n_rows = (uint64_t)n_mats * n_out;
  s.row_bytes = weft_type_row_bytes(type, n_in);
  s.n_bytes = n_rows * s.row_bytes;
  s.bytes = weft_alloc(s.n_bytes, 1);
  s.value = weft_alloc(n_rows * n_in, sizeof(float));
  assert_non_null(s.bytes);
  assert_non_null(s.value);
  for (uint64_t i = 0; i < s.n_bytes / info->n_bytes; i++) {
    fill_block(type, s.bytes + i * info->n_bytes, info->n_bytes, seed * 1000003 + i);
  }
  for (uint64_t r = 0; r < n_rows; r++) {
    weft_dequantise_row(type, s.bytes + r * s.row_bytes, s.value + r * n_in, n_in);
  }
  return s;
}

static inline void raise_half(uint8_t *at, int power) {
  uint16_t bits;
  memcpy(&bits, at, sizeof bits);
  put_f16(at, ldexpf(weft_f16_to_f32(bits), power));
}

/* The scales of the first n_rows rows, and the values with them, times 2^power, as far as f16 holds them. */
static inline void stored_raise_rows(stored *s, uint64_t n_rows, int power) {
  const weft_type_info *info = weft_type_find((int32_t)s->shape.type);
  const scale_place *place = find_scales(s->shape.type);
  for (uint8_t *block = s->bytes; block < s->bytes + n_rows * s->row_bytes; block += info->n_bytes) {
    raise_half(block + place->at, power);
    if (place->divisor_least != 0.0f) raise_half(block + place->at_least, power);
  }
  for (uint64_t r = 0; r < n_rows; r++)
    weft_dequantise_row(s->shape.type, s->bytes + r * s->row_bytes, s->value + r * s->shape.n_in, s->shape.n_in);
}

/* The same of all rows. */
static inline void stored_raise(stored *s, int power) {
  stored_raise_rows(s, s->n_bytes / s->row_bytes, power);
}

static inline void stored_free(stored *s) {
  weft_free(s->bytes);
  weft_free(s->value);
  *s = (stored){0};
}

static inline weft_weight upload(weft_device *device, const stored *s) {
  weft_weight weight = s->shape;
  weft_error error = {{0}};
  assert_int_equal(weft_device_weight(device, &weight, s->bytes, WEFT_USE_MATMUL, &error), WEFT_OK);
  return weight;
}

/* ---- what a product means ---- */

/* A row as a product with a quantised weight sees it: codes and scale of each 32, in plain words. */
static inline void quantise_plain(const float *x, uint32_t n, float *codes, float *scales) {
  for (uint32_t b = 0; b < n / 32; b++) {
    float most = 0.0f;
    for (uint32_t i = 0; i < 32; i++) most = fmaxf(most, fabsf(x[32 * b + i]));
    scales[b] = most / 127.0f;
    float inverse = most == 0.0f ? 0.0f : 1.0f / scales[b];
    for (uint32_t i = 0; i < 32; i++) codes[32 * b + i] = rintf(x[32 * b + i] * inverse);
  }
}

/* x . w, and in *size the sum of the magnitudes of what was added: rounding errors are parts of it.
 * Quantised: codes times the weight, scale last. */
static inline double dot_plain(const stored *s, uint64_t row, const float *x, const float *scales, double *size) {
  const float *w = s->value + row * s->shape.n_in;
  double sum = 0.0;
  *size = 0.0;
  for (uint32_t i = 0; i < s->shape.n_in; i++) {
    double product = (double)w[i] * (double)x[i] * (scales == NULL ? 1.0 : (double)scales[i / 32]);
    sum += product;
    *size += fabs(product);
  }
  return sum;
}

#endif
