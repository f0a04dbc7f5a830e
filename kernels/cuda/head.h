/* SPDX-License-Identifier: MIT */
/* What head_stats and soft share: statistics per chunk of 512 tokens of the vocabulary, and the product of
 * probabilities with the embedding.
 *
 * Rows go in groups of up to HEAD_ROWS: their logits exist for the length of a group. Per chunk the
 * largest allowed logit is the reference of its exponentials; chunks meet in double, by one fixed tree.
 *
 * The soft row is a product of weights e = 2^15 e^((logit - most of the row) / temperature), rounded to the 16 bits
 * that the embedding is multiplied in (f16: to a multiple of 2^-39 of the largest token's at worst), with the embedding:
 * at most SPANS_MAX spans of whole chunks, in a span steps of 16 tokens ascending from 0, then the spans ascending, then
 * the row's factor scale / total. */
#ifndef WEFT_KERNELS_CUDA_HEAD_H
#define WEFT_KERNELS_CUDA_HEAD_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/form.cuh"

enum { HEAD_ROWS = 128, SPANS_MAX = 12, SOFT_LIFT = 15 };

typedef struct chunk_stat {
  float most, sum, weighted; /* largest allowed logit; sums of e and e t, t = (logit - most) / temperature */
  int32_t argmax;
  uint32_t flags; /* 1: a logit was not finite, 2: a token is allowed */
} chunk_stat;

/* Of a row: its largest allowed logit; soft scale / sum of e, 0 for a bad row. */
typedef struct row_stat {
  float most, factor;
} row_stat;

/* One group of rows. Pointers are those of the group's first row. */
typedef struct head_group {
  const weft_weight *weight;
  const float *logits; /* not capped yet */
  uint64_t logits_stride;
  bool wide; /* four logits may be read at once */
  float cap; /* of the logits; 0: none, or done already */
  const float *temperature;
  const uint32_t *const *allowed; /* device array of device masks, or NULL */
  uint32_t n_rows, n_vocab, n_chunks;
  chunk_stat *stats; /* [n_rows][n_chunks] */
  row_stat *rows;    /* [n_rows] */
  void *weights;     /* of tokens; layout in soft.cu */
  float *spans;      /* layout in soft.cu */
  float soft_scale;
  float *soft;
  uint64_t soft_stride;
  const uint8_t *want; /* device, or NULL: all rows */
} head_group;

/* Results of head_stats; NULL in soft. */
typedef struct head_outputs {
  const float *u;
  int32_t *argmax, *drawn;
  float *top, *log_total, *entropy;
  uint8_t *bad;
} head_outputs;

/* Cuts what a group needs beside its logits. */
void head_cut(cuda_cutter *cutter, const weft_weight *weight, uint32_t n_rows, bool soft, head_group *group);
/* Statistics, then outputs (may be NULL), then rows. */
weft_status head_measure(cuda_device *d, const head_group *group, const head_outputs *outputs);
/* What the soft rows need beside that (soft.cu). */
void soft_cut(cuda_cutter *cutter, uint32_t n_rows, head_group *group);
/* The soft rows; after head_measure. */
weft_status head_soften(cuda_device *d, const head_group *group);

/* log2(e) / temperature: what differences of logits are multiplied with. */
static __device__ __forceinline__ float steepness(const head_group &g, uint32_t r) {
  return __fdiv_rn(1.44269504f, g.temperature[r]);
}

/* Logits [v, v + 4) of a row, capped; 0 beyond the vocabulary. */
static __device__ __forceinline__ void load_logits(const head_group &g, const float *row, uint32_t v, float (&raw)[4]) {
  if (g.wide && v + 4 <= g.n_vocab) {
    float4 four = *(const float4 *)(const void *)(row + v);
    raw[0] = four.x, raw[1] = four.y, raw[2] = four.z, raw[3] = four.w;
  } else {
#pragma unroll
    for (uint32_t e = 0; e < 4; e++) raw[e] = v + e < g.n_vocab ? row[v + e] : 0.0f;
  }
}

/* Which of the tokens [v, v + 8) the row may take, as bits; v is a multiple of 4. */
static __device__ __forceinline__ uint32_t allowed_bits(const head_group &g, const uint32_t *mask, uint32_t v) {
  uint32_t bits = 0xFFu;
  if (v >= g.n_vocab) return 0;
  if (mask != NULL) bits = mask[v / 32] >> (v % 32);
  return g.n_vocab - v >= 8 ? bits : bits & ((1u << (g.n_vocab - v)) - 1u);
}

#endif
