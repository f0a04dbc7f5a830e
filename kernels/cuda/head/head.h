/* SPDX-License-Identifier: MIT */
/* What head_stats and soft share: statistics per chunk of 512 tokens of the vocabulary, and the product of
 * probabilities with the embedding.
 *
 * Law (numerics). Rows go in groups of up to HEAD_ROWS, and of three times as many where the matrix has integers;
 * head_stats has the logits of one group at a time. Within a chunk exponentials are relative to the largest allowed
 * logit. The chunks of a row are merged in double, by one fixed tree.
 *
 * The soft row is a product of the tokens' weights with the embedding. The weight of a token is
 * e = 2^15 e^((logit - largest logit of the row) / temperature), rounded to the 16-bit type in which the embedding is
 * multiplied (with f16 it is at worst a multiple of 2^-39 of the largest token's weight). The vocabulary is cut into at
 * most SPANS_MAX spans of whole chunks. A span adds steps of 16 tokens, ascending from 0; the spans are added
 * ascending; then comes the row's factor, scale / total. Rows of canvases in 8 bits: soft_integers.h. */
#ifndef WEFT_KERNELS_CUDA_HEAD_H
#define WEFT_KERNELS_CUDA_HEAD_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/weights/packed_layout.cuh"

enum { HEAD_ROWS = 128, SPANS_MAX = 12, SOFT_SCALE_EXPONENT = 15 };

typedef struct chunk_stat {
  float most, sum, weighted; /* largest allowed logit; sums of e and e t, t = (logit - most) / temperature */
  int32_t argmax;
  uint32_t flags; /* 1: a logit was not finite, 2: a token is allowed */
} chunk_stat;

/* What the soft row needs: the row's largest allowed logit; soft scale / sum of e, which is 0 for a bad row. */
typedef struct row_stat {
  float most, factor;
} row_stat;

struct gemm_job;

/* The weights of tokens of a group's rows as integers, in place `part * n_places + row` of tiled rows
 * (soft_integers.h); numbers NULL: none are made. */
typedef struct soft_rows {
  uint8_t *numbers;
  float *scales, *sums; /* sums: [part][n_places][columns] */
  struct gemm_job *jobs;
  uint32_t *n_jobs;
  uint32_t n_places, n_tiles;    /* of a part; of all, of 8 rows */
  uint32_t n_parts, part_chunks; /* of the vocabulary */
  uint32_t first, n;             /* rows that are wanted */
} soft_rows;

/* One group of rows. Pointers are those of the group's first row. */
typedef struct head_group {
  const weft_weight *weight;
  const float *logits; /* not capped yet */
  uint64_t logits_stride;
  bool wide;        /* four logits may be read at once */
  float cap, slope; /* of the logits (cap_slope); 0: none, or done already */
  const float *temperature;
  const uint32_t *const *allowed; /* device array of device masks, or NULL */
  const uint32_t *mask;           /* without one: the device mask of every row, or NULL */
  uint32_t n_rows, n_vocab, n_chunks;
  chunk_stat *stats; /* [n_rows][n_chunks] */
  row_stat *rows;    /* [n_rows] */
  void *weights;     /* of tokens; layout in soft.cu */
  float *spans;      /* layout in soft.cu */
  soft_rows soft_rows;
  float soft_scale;
  float *soft;
  uint64_t soft_stride;
  const uint8_t *want; /* device, or NULL: all rows */
} head_group;

/* The draw's uniforms and the results of head_stats, as in weft_head_stats_args. */
typedef struct head_outputs {
  const float *u;
  int32_t *argmax, *drawn;
  float *top, *log_total, *entropy;
  uint8_t *bad;
} head_outputs;

/* Cuts from scratch what a group needs beside its logits; soft: also what its soft rows need. */
void head_cut(cuda_cutter *cutter, const weft_weight *weight, uint32_t n_rows, bool soft, head_group *group);
/* Computes the statistics of chunks, and from them outputs (NULL: none, for soft) and group->rows (unless NULL). */
weft_status head_measure(cuda_device *d, const head_group *group, const head_outputs *outputs);
/* The part of head_cut for soft rows (soft.cu). */
void soft_cut(cuda_cutter *cutter, uint32_t n_rows, head_group *group);
/* Computes the soft rows. Called after head_measure. */
weft_status head_soften(cuda_device *d, const head_group *group);
weft_status head_soften_setup(cuda_device *d); /* Hopper's */

/* log2(e) / temperature: differences of logits times this are exponents of 2. */
static __device__ __forceinline__ float steepness_of(const head_group &g, uint32_t r) {
  return __fdiv_rn(1.44269504f, g.temperature[r]);
}

/* The row's mask, or NULL: all tokens. */
static __device__ __forceinline__ const uint32_t *mask_of(const head_group &g, uint32_t r) {
  return g.allowed == NULL ? g.mask : g.allowed[r];
}

/* Whether all 512 tokens of a chunk exist and are allowed to the row, and their logits may be read several at once. */
static __device__ __forceinline__ bool is_whole(const head_group &g, const uint32_t *mask, uint32_t chunk) {
  return mask == NULL && g.wide && (chunk + 1) * WEFT_VOCAB_CHUNK <= g.n_vocab;
}

/* Logits [v, v + N) of a row, N 2 or 4; 0 beyond the vocabulary. */
template <bool WHOLE, int N>
static __device__ __forceinline__ void load_logits(const head_group &g, const float *row, uint32_t v, float *raw) {
  if constexpr (!WHOLE) {
#pragma unroll
    for (uint32_t e = 0; e < N; e++) raw[e] = v + e < g.n_vocab ? row[v + e] : 0.0f;
  } else if constexpr (N == 4) {
    float4 four = *(const float4 *)(const void *)(row + v);
    raw[0] = four.x, raw[1] = four.y, raw[2] = four.z, raw[3] = four.w;
  } else {
    float2 two = *(const float2 *)(const void *)(row + v);
    raw[0] = two.x, raw[1] = two.y;
  }
}

template <int N>
static __device__ __forceinline__ void cap_logits(const head_group &g, float (&logit)[N]) {
  if (g.cap == 0.0f) return;
#pragma unroll
  for (int i = 0; i < N; i++) logit[i] = cap_logit(logit[i], g.cap, g.slope);
}

/* The bits of the tokens from v on that are allowed to the row, up to the next multiple of 32; bits above are
 * undefined. */
template <bool WHOLE>
static __device__ __forceinline__ uint32_t allowed_bits(const head_group &g, const uint32_t *mask, uint32_t v) {
  if (WHOLE) return 0xFFFFFFFFu;
  if (v >= g.n_vocab) return 0;
  uint32_t bits = mask == NULL ? 0xFFFFFFFFu : mask[v / 32] >> (v % 32), left = g.n_vocab - v;
  return left >= 32 ? bits : bits & ((1u << left) - 1u);
}

#endif
