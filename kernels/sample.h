/* SPDX-License-Identifier: MIT */
/* sample: a token, and logprobs, from a row of logits; and the arithmetic that every backend shares.
 *
 * Law. The steps, in this order:
 *   1  tokens that are not allowed, by the mask of all rows or the row's own, and logits that are not finite, are out
 *   2  the bias is added; repetition penalty; presence and frequency penalties
 *   3  the largest logit that is left is the argmax (of equal ones that of the lower token)
 *   4  value = logit / temperature, rounded to f32; only finite values stay
 *   5  top_k: the best top_k values stay (of equal ones those of lower tokens)
 *   6  top_p: of these the best, as many as are needed for their weights to reach top_p of the total
 *   7  min_p: of these the ones with value - largest >= min_log
 *   8  one draw: the first token in vocabulary order whose running sum of weights exceeds u * total
 * A weight is an integer, 2^40 e^(value - largest) without its fraction, computed by weft_sample_weight, each of whose
 * operations is exact or rounded once. Sums of integers are exact in any order, so from the same logits every backend
 * draws the same token. */
#ifndef WEFT_KERNELS_SAMPLE_H
#define WEFT_KERNELS_SAMPLE_H

#include <stdint.h>
#include <string.h>

#include "base/sampling.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WEFT_SAMPLE_VOCAB_MAX = 1 << 20 };

/* What a row is asked for. Tokens of the history that are not in the vocabulary are left out. */
typedef struct weft_sample_row {
  float temperature;                        /* 0, or so small that the largest value is not finite: the argmax */
  float u;                                  /* uniform in [0, 1) */
  uint32_t top_k;                           /* 0: all */
  float top_p;                              /* 1: all */
  float min_log;                            /* log(min_p); -INFINITY: all */
  float repetition;                         /* 1: none; over the history */
  float presence, frequency;                /* 0: none; over the history from n_prompt on */
  uint32_t history_at, n_history, n_prompt; /* tokens of args.history */
  uint32_t bias_at, n_bias;                 /* entries of args.bias; at most WEFT_LOGIT_BIAS_MAX */
  int32_t cell;                             /* args.cells[cell]: where the token goes; -1: nowhere */
  uint32_t pending;                         /* 1: that cell's token so far is one more of the history, its last */
  uint32_t logprobs, n_top;                 /* whether total and top are wanted; n_top <= WEFT_TOP_LOGPROBS_MAX */
  uint32_t mask;                            /* 0: none; else the row may have only tokens of mask - 1 of args.masks */
} weft_sample_row;

typedef struct weft_sample_top {
  int32_t token;
  float logit;
} weft_sample_top;

/* Logits here are those after bias and penalties. The logprob of a token is logit - most - log(total / 2^40). */
typedef struct weft_sample_result {
  int32_t token;
  uint32_t bad;      /* 1: no token was left, or the row was bad before; everything else is 0 */
  float logit, most; /* that of the token; the largest */
  uint64_t total;    /* logprobs: sum of weights at temperature 1, before top_k and what follows; else 0 */
  uint32_t n_top, unused;
  weft_sample_top top[WEFT_TOP_LOGPROBS_MAX]; /* best first; ties: the lower token */
} weft_sample_result;

typedef struct weft_sample_args {
  float *logits;              /* [n_rows, n_vocab]; overwritten */
  const uint8_t *bad;         /* optional [n_rows]: rows that are given up */
  const weft_sample_row *row; /* [n_rows] */
  const int32_t *history;     /* optional; of all rows */
  const weft_logit_bias *bias;
  int32_t *cells;          /* optional; no two rows have one cell */
  const uint32_t *allowed; /* optional bitmask, of all rows */
  const uint32_t *masks;   /* bitmasks of rows, (n_vocab + 31) / 32 words each */
  weft_sample_result *out; /* [n_rows] */
  uint32_t n_rows, n_vocab;
  uint64_t logits_stride;
  void *scratch;
  uint64_t scratch_bytes;
} weft_sample_args;

#ifdef __CUDA_ARCH__
#define WEFT_SAMPLE_FN        static __device__ __forceinline__
#define WEFT_SAMPLE_MUL(a, b) __fmul_rn(a, b)
#define WEFT_SAMPLE_ADD(a, b) __fadd_rn(a, b)
#define WEFT_SAMPLE_DIV(a, b) __fdiv_rn(a, b)
#else
#define WEFT_SAMPLE_FN        static inline
#define WEFT_SAMPLE_MUL(a, b) ((a) * (b))
#define WEFT_SAMPLE_ADD(a, b) ((a) + (b))
#define WEFT_SAMPLE_DIV(a, b) ((a) / (b))
#endif

/* 2^40 e^below for below <= 0, with a relative error below 2^-20 before its fraction is cut off; 0 where that would be
 * less than 1, and for NaN. e^below is 2^t, and 2^t is 2^n with a whole n times 2^f with |f| <= 1/2, which is a
 * polynomial. */
WEFT_SAMPLE_FN uint64_t weft_sample_weight(float below) {
  float t = WEFT_SAMPLE_MUL(below, 1.44269504f);
  if (!(t > -41.0f)) return 0;
  float n = WEFT_SAMPLE_ADD(WEFT_SAMPLE_ADD(t, 12582912.0f), -12582912.0f), f = WEFT_SAMPLE_ADD(t, -n);
  float p = WEFT_SAMPLE_ADD(WEFT_SAMPLE_MUL(1.5461447e-4f, f), 1.3390867e-3f);
  p = WEFT_SAMPLE_ADD(WEFT_SAMPLE_MUL(p, f), 9.618057e-3f);
  p = WEFT_SAMPLE_ADD(WEFT_SAMPLE_MUL(p, f), 5.550357e-2f);
  p = WEFT_SAMPLE_ADD(WEFT_SAMPLE_MUL(p, f), 2.402265e-1f);
  p = WEFT_SAMPLE_ADD(WEFT_SAMPLE_MUL(p, f), 6.931472e-1f);
  p = WEFT_SAMPLE_ADD(WEFT_SAMPLE_MUL(p, f), 1.0f);
  uint32_t bits;
  memcpy(&bits, &p, sizeof bits);
  bits += (uint32_t)((int32_t)n + 40) << 23;
  memcpy(&p, &bits, sizeof p);
  return (uint64_t)p;
}

/* The row's own mask; NULL: it has none. */
WEFT_SAMPLE_FN const uint32_t *weft_sample_mask(const weft_sample_args *args, const weft_sample_row *row) {
  return row->mask == 0 ? (const uint32_t *)0 : args->masks + (uint64_t)(row->mask - 1) * ((args->n_vocab + 31) / 32);
}

/* The logit, with penalties, of a token that occurs in the history, of which `times` are in the answer. */
WEFT_SAMPLE_FN float weft_sample_penalised(float logit, const weft_sample_row *row, uint32_t times) {
  if (row->repetition != 1.0f)
    logit = logit > 0.0f ? WEFT_SAMPLE_DIV(logit, row->repetition) : WEFT_SAMPLE_MUL(logit, row->repetition);
  if (times == 0) return logit;
  return WEFT_SAMPLE_ADD(logit, -WEFT_SAMPLE_ADD(row->presence, WEFT_SAMPLE_MUL(row->frequency, (float)times)));
}

/* A candidate, and two comparisons for qsort: tokens are ordered by value for the cuts and by token for the draw. */
typedef struct weft_sample_ranked {
  float value;
  int32_t token;
} weft_sample_ranked;

static inline int weft_sample_by_token(const void *a, const void *b) {
  int32_t x = ((const weft_sample_ranked *)a)->token, y = ((const weft_sample_ranked *)b)->token;
  return (x > y) - (x < y);
}

static inline int weft_sample_by_value(const void *a, const void *b) { /* largest first; ties: lower token first */
  float x = ((const weft_sample_ranked *)a)->value, y = ((const weft_sample_ranked *)b)->value;
  return x != y ? (x > y ? -1 : 1) : weft_sample_by_token(a, b);
}

/* What the weights of the tokens that top_p keeps must add up to (at least 1), and what the running sum of weights must
 * exceed at the token drawn. */
WEFT_SAMPLE_FN uint64_t weft_sample_wanted(float top_p, uint64_t total) {
  double wanted = (double)top_p * (double)total;
  uint64_t whole = (uint64_t)wanted;
  whole += (double)whole < wanted ? 1 : 0;
  return whole > 0 ? whole : 1;
}
WEFT_SAMPLE_FN uint64_t weft_sample_threshold(float u, uint64_t total) {
  return (uint64_t)((double)u * (double)total);
}

#ifdef __cplusplus
}
#endif
#endif
