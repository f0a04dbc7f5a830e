/* SPDX-License-Identifier: MIT */
/* What head_stats and soft share: statistics per chunk of 512 tokens of the vocabulary, and the product of
 * probabilities with the embedding.
 *
 * Rows go in groups of up to HEAD_ROWS: their logits exist for the length of a group. Per chunk the
 * largest allowed logit is the reference of its exponentials; chunks meet in double, by one fixed tree.
 * The soft row adds chunk after chunk within spans of 16 chunks, each chunk from 0, then the spans. */
#ifndef WEFT_KERNELS_CUDA_HEAD_H
#define WEFT_KERNELS_CUDA_HEAD_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/form.cuh"

enum { HEAD_ROWS = 128, SPAN_CHUNKS = 16 };

typedef struct chunk_stat {
  float most, sum, weighted; /* largest allowed logit; sums of e and e t, t = (logit - most) / temperature */
  int32_t argmax;
  uint32_t flags; /* 1: a logit was not finite, 2: a token is allowed */
} chunk_stat;

/* One group of rows. Pointers are those of the group's first row. */
typedef struct head_group {
  const weft_weight *weight;
  float *logits; /* head_stats: raw in, capped out; soft: only read */
  uint64_t logits_stride;
  bool writes_back;
  float cap;
  const float *temperature;
  const uint32_t *const *allowed; /* device array of device masks, or NULL */
  uint32_t n_rows, n_vocab, n_chunks;
  chunk_stat *stats;   /* [n_rows][n_chunks] */
  void *weights;       /* [n_rows][n_chunks * 512] of e: f32, f16 or bf16 as the weight wants; NULL: none */
  float *factor;       /* [n_rows][n_chunks]: scale e^((most - most of all) / temperature) / total */
  float *spans;        /* [n_spans][n_rows][n_in] */
  float soft_scale;
  float *soft; /* NULL: none */
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
/* Statistics, then outputs (may be NULL), then factors. */
weft_status head_measure(cuda_device *d, const head_group *group, const head_outputs *outputs);
/* The soft rows; after head_measure. */
weft_status head_soften(cuda_device *d, const head_group *group);

#endif
