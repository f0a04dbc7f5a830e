/* SPDX-License-Identifier: MIT */
/* Output matrices and rows for tests of the head, and its ops on them. */
#ifndef WEFT_TESTS_KERNELS_HEAD_H
#define WEFT_TESTS_KERNELS_HEAD_H

#include "tests/kernels/weights.h"

typedef struct head_case {
  weft_type type;
  uint32_t n_vocab, n_in;
  float cap, spread; /* of h: how peaked */
} head_case;

static const head_case cases[] = {
    {WEFT_TYPE_Q4_K, 1061, 256, 30.0f, 0.02f}, {WEFT_TYPE_Q8_0, 1024, 96, 0.0f, 0.3f},
    {WEFT_TYPE_F32, 700, 40, 30.0f, 1.0f},     {WEFT_TYPE_BF16, 1500, 72, 0.0f, 2.0f},
    {WEFT_TYPE_Q6_K, 513, 256, 5.0f, 0.1f},    {WEFT_TYPE_F16, 19, 33, 0.0f, 0.5f},
    {WEFT_TYPE_Q5_0, 16, 32, 0.0f, 0.01f},     {WEFT_TYPE_MXFP4, 530, 64, 20.0f, 0.1f},
    {WEFT_TYPE_Q8_0, 100, 448, 0.0f, 0.1f},    {WEFT_TYPE_Q4_0, 1100, 192, 30.0f, 0.1f},
    {WEFT_TYPE_Q5_K, 600, 512, 0.0f, 0.05f},   {WEFT_TYPE_Q5_0, 530, 288, 30.0f, 0.1f},
    {WEFT_TYPE_MXFP4, 70, 320, 0.0f, 0.1f},    {WEFT_TYPE_F16, 520, 300, 0.0f, 0.1f},
    {WEFT_TYPE_Q5_1, 530, 288, 30.0f, 0.1f},   {WEFT_TYPE_Q4_1, 70, 96, 0.0f, 0.1f},
    {WEFT_TYPE_Q2_K, 530, 256, 30.0f, 0.1f},   {WEFT_TYPE_Q3_K, 600, 512, 0.0f, 0.05f},
    {WEFT_TYPE_IQ4_NL, 530, 288, 30.0f, 0.1f}, {WEFT_TYPE_IQ4_XS, 600, 256, 0.0f, 0.1f},
    {WEFT_TYPE_NVFP4, 530, 320, 30.0f, 0.1f},  {WEFT_TYPE_NVFP4, 70, 64, 0.0f, 0.1f},
    {WEFT_TYPE_IQ2_S, 70, 256, 0.0f, 0.1f},    {WEFT_TYPE_IQ3_S, 520, 256, 30.0f, 0.1f},
};
enum {
  N_CASES = sizeof cases / sizeof cases[0],
  ROWS = 40,
  ROWS_MAX = 7 * ROWS, /* the first ones, again and again */
  IN_MAX = 512,
  VOCAB_MAX = 1536,
  WORDS = VOCAB_MAX / 32
};

/* Inputs of ROWS rows: temperatures from cold to hot, every third row with a mask. */
typedef struct inputs {
  float h[ROWS_MAX * IN_MAX], temperature[ROWS_MAX], u[ROWS_MAX];
  uint32_t bits[ROWS][WORDS];
  const uint32_t *allowed[ROWS_MAX];
} inputs;

static inline inputs *make_inputs(const head_case *c, uint64_t seed) {
  static const float temperatures[5] = {1.0f, 0.4f, 0.01f, 5.0f, 0.8f};
  inputs *in = memory_new(1, sizeof *in);
  fill_normal(in->h, (size_t)ROWS * c->n_in, seed);
  for (uint32_t i = 0; i < ROWS * c->n_in; i++) in->h[i] *= c->spread;
  for (uint32_t r = 0; r < ROWS; r++) {
    in->temperature[r] = temperatures[r % 5];
    in->u[r] = random_uniform(seed + 1, r);
    if (r % 3 != 1) continue;
    for (uint32_t v = 0; v < c->n_vocab; v++) {
      bool yes = r % 2 == 0 ? random_uniform(seed + r, v) < 0.3f : v == c->n_vocab - 1 || v == 3;
      in->bits[r][v / 32] |= (uint32_t)yes << (v % 32);
    }
    in->allowed[r] = in->bits[r];
  }
  in->u[0] = 0.0f;
  in->u[5] = 0x1.fffffep-1f;
  for (uint32_t r = ROWS; r < ROWS_MAX; r++) {
    memcpy(in->h + r * c->n_in, in->h + r % ROWS * c->n_in, c->n_in * sizeof *in->h);
    in->temperature[r] = in->temperature[r % ROWS];
    in->u[r] = in->u[r % ROWS];
    in->allowed[r] = in->allowed[r % ROWS];
  }
  return in;
}

static inline bool is_allowed(const inputs *in, uint32_t r, uint32_t v) {
  return in->allowed[r] == NULL || (in->bits[r][v / 32] >> (v % 32) & 1u) != 0;
}

typedef struct outputs {
  buffer soft, argmax, drawn, top, log_total, entropy, bad;
} outputs;

static inline outputs run_stats(weft_device *device, const head_case *c, const weft_weight *weight, const inputs *in,
                                uint32_t first, uint32_t n, const uint8_t *want, bool soft, float *logits) {
  outputs o = {buffer_new((size_t)n * c->n_in * 4),
               buffer_new(n * 4),
               buffer_new(n * 4),
               buffer_new(n * 4),
               buffer_new(n * 4),
               buffer_new(n * 4),
               buffer_new(n)};
  weft_head_stats_args args = {
      .h = in->h + first * c->n_in,
      .weight = weight,
      .temperature = in->temperature + first,
      .u = in->u + first,
      .allowed = in->allowed + first,
      .soft = soft ? o.soft.data : NULL,
      .want_soft = want,
      .argmax = o.argmax.data,
      .drawn = o.drawn.data,
      .top = o.top.data,
      .log_total = o.log_total.data,
      .entropy = o.entropy.data,
      .bad = o.bad.data,
      .logits = logits,
      .n_rows = n,
      .h_stride = c->n_in,
      .soft_stride = c->n_in,
      .logits_stride = c->n_vocab,
      .cap = c->cap,
      .soft_scale = 1.5f,
  };
  RUN_OP(head_stats, device, &args);
  return o;
}

static inline void free_outputs(outputs *o) {
  buffer *all[] = {&o->soft, &o->argmax, &o->drawn, &o->top, &o->log_total, &o->entropy, &o->bad};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) buffer_free(all[i]);
}

/* Row `at` of a and row 0 .. of b: everything but the soft embedding, and that too when asked. */
static inline void assert_outputs(const char *device, const outputs *a, uint32_t at, const outputs *b, uint32_t n,
                                  uint32_t n_in, bool soft) {
  const buffer *of_a[] = {&a->argmax, &a->drawn, &a->top, &a->log_total, &a->entropy};
  const buffer *of_b[] = {&b->argmax, &b->drawn, &b->top, &b->log_total, &b->entropy};
  for (size_t i = 0; i < sizeof of_a / sizeof of_a[0]; i++) {
    assert_same("head_stats", device, "a number", (uint32_t *)of_a[i]->data + at, of_b[i]->data, n * 4);
  }
  assert_same("head_stats", device, "bad", (uint8_t *)a->bad.data + at, b->bad.data, n);
  if (!soft) return;
  assert_same("head_stats", device, "soft", (float *)a->soft.data + (size_t)at * n_in, b->soft.data,
              (size_t)n * n_in * 4);
}

static inline buffer run_rows(weft_device *device, const head_case *c, const weft_weight *weight, const float *h,
                              uint32_t n, uint8_t *bad) {
  buffer logits = buffer_new((size_t)n * c->n_vocab * 4), flags = buffer_new(n);
  weft_head_rows_args args = {h, weight, logits.data, flags.data, n, c->n_in, c->n_vocab, c->cap, NULL, 0};
  RUN_OP(head_rows, device, &args);
  memcpy(bad, flags.data, n);
  buffer_free(&flags);
  return logits;
}

#endif
