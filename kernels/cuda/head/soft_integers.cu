/* SPDX-License-Identifier: MIT */
/* Soft embeddings in 8 bits (soft_integers.h). The weights of tokens are made with the statistics (head.cu), and the
 * product is int8_gemm's, with jobs: a part of the vocabulary is a matrix, a row has a place for each. */
#include "kernels/cuda/head/soft_integers.h"

#include <math.h>
#include <string.h>

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/weights/packed_element.cuh"

enum { CHUNK = WEFT_VOCAB_CHUNK, CHUNK_UNITS = CHUNK / 128, CHUNK_SPANS = CHUNK / W8A8_SPAN };

/* ---- the embedding --------------------------------------------------------------------------------------- */

/* Chunks of a part of the vocabulary, and its parts. */
typedef struct vocabulary_parts {
  uint32_t n_chunks, n;
} vocabulary_parts;

static vocabulary_parts parts_of(uint32_t n_vocab) {
  uint32_t n_chunks = cuda_ceil(n_vocab, CHUNK), each = cuda_ceil(n_chunks, SPANS_MAX);
  return {each, cuda_ceil(n_chunks, each)};
}

soft_sections soft_sections_behind(const weft_weight *weight, uint64_t from) {
  vocabulary_parts parts = parts_of(weight->n_out);
  uint64_t n = (uint64_t)parts.n * cuda_ceil(weight->n_in, INT8_BLOCK) * parts.n_chunks * CHUNK_SPANS;
  soft_sections place;
  place.integers = cuda_align(from);
  place.steps = place.integers + n * 2 * INT8_UNIT_BYTES;
  place.end = place.steps + n * INT8_BLOCK * sizeof(float);
  return place;
}

typedef struct make_args {
  element_rows rows;
  uint32_t n_blocks, n_spans; /* column blocks; spans of a part */
  int8_t *integers;
  float *steps;
} make_args;

/* A block takes a span of 256 tokens and 64 columns, a warp of it eight columns, a lane twice four tokens. */
static __global__ void __launch_bounds__(256) soft_integers_kernel(const make_args a) {
  const uint32_t lane = threadIdx.x % 32, span = blockIdx.x % a.n_spans, part = blockIdx.x / a.n_spans;
  const uint64_t block = (uint64_t)part * a.n_blocks + blockIdx.y, at = block * a.n_spans + span;
  const uint32_t token = blockIdx.x * W8A8_SPAN + lane * 4;
  for (uint32_t o = threadIdx.x / 32 * 8; o < threadIdx.x / 32 * 8 + 8; o++) {
    const uint32_t i = blockIdx.y * INT8_BLOCK + o, column = o / 16 * 16 + o / 2 % 2 * 8 + o % 16 / 4 * 2 + o % 2;
    float value[8], most = 0.0f;
    bool bad = false;
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) {
      uint32_t v = token + k / 4 * 128 + k % 4;
      value[k] = v < a.rows.n_rows && i < a.rows.n_in ? element_of(a.rows, v, i) : 0.0f;
      bad = bad || !isfinite(value[k]);
      most = fmaxf(most, fabsf(value[k]));
    }
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
    bad = __any_sync(0xFFFFFFFFu, bad);
    const bool none = bad || most < 0x1p-100f;
    const float inverse = none ? 0.0f : __fdiv_rn(127.0f, most);
    if (lane == 0) a.steps[at * INT8_BLOCK + o] = bad ? NAN : none ? 0.0f : __fdiv_rn(most, 127.0f);
#pragma unroll
    for (uint32_t unit = 0; unit < 2; unit++) {
      uint32_t word = 0;
      for (uint32_t e = 0; e < 4; e++)
        word |= (uint32_t)(uint8_t)(none ? 0 : __float2int_rn(__fmul_rn(value[unit * 4 + e], inverse))) << (8 * e);
      *(uint32_t *)(void *)(a.integers + (at * 2 + unit) * INT8_UNIT_BYTES + column * 128 +
                            (lane % 8 ^ column % 8) * 16 + lane / 8 * 4) = word;
    }
  }
}

weft_status soft_integers_make(cuda_device *d, const weft_weight *weight, uint8_t *data, uint64_t from) {
  soft_sections place = soft_sections_behind(weight, from);
  vocabulary_parts parts = parts_of(weight->n_out);
  weft_weight placed = *weight;
  placed.data = data;
  make_args a;
  a.rows = element_rows_of(&placed);
  a.n_blocks = cuda_ceil(weight->n_in, INT8_BLOCK);
  a.n_spans = parts.n_chunks * CHUNK_SPANS;
  a.integers = (int8_t *)data + place.integers;
  a.steps = (float *)(void *)(data + place.steps);
  soft_integers_kernel<<<dim3(parts.n * a.n_spans, a.n_blocks), 256, 0, d->stream>>>(a);
  return cuda_launched(d, "the integers of an embedding");
}

/* Where all else that a weight in 8 bits has ends. */
static uint64_t end_of_others(const weft_weight *weight) {
  if (weight->layout == INT8_LAYOUT) return int8_sections_of(weight).end;
  packed_dims dims = packed_dims_of(weight->type, weight->n_in, weight->n_out);
  uint64_t n_tiles = (uint64_t)weight->n_mats * dims.n_tiles;
  return w8a8_steps_at(n_tiles, dims.tile_bytes) + w8a8_steps_bytes(n_tiles, weight->n_in);
}

bool soft_has_integers(const weft_weight *weight) {
  return w8a8_has(weight->layout) && weight->n_bytes > end_of_others(weight);
}

/* ---- rows ------------------------------------------------------------------------------------------------ */

static uint64_t sums_stride(const weft_weight *weight) {
  return (uint64_t)cuda_ceil(weight->n_in, 4) * 4;
}

void soft_integers_cut(cuda_cutter *cutter, uint32_t n_rows, head_group *group) {
  vocabulary_parts parts = parts_of(group->n_vocab);
  soft_rows *rows = &group->soft_rows;
  rows->n_parts = parts.n;
  rows->part_chunks = parts.n_chunks;
  rows->n_places = cuda_ceil(n_rows, 8) * 8;
  rows->n_tiles = parts.n * rows->n_places / 8;
  uint64_t n_places = (uint64_t)parts.n * rows->n_places, n_spans = (uint64_t)parts.n_chunks * CHUNK_SPANS;
  rows->numbers = (uint8_t *)cuda_cut(cutter, n_places * n_spans * (W8A8_SPAN + sizeof(float)));
  rows->scales = (float *)(void *)(rows->numbers + w8a8_scales_at((uint32_t)n_spans, rows->n_tiles));
  rows->sums = (float *)(void *)cuda_cut(cutter, n_places * sums_stride(group->weight) * sizeof(float));
  rows->jobs = (gemm_job *)(void *)cuda_cut(cutter, parts.n * cuda_ceil(n_rows, INT8_JOB_ROWS) * sizeof(gemm_job));
  rows->n_jobs = (uint32_t *)(void *)cuda_cut(cutter, sizeof(uint32_t));
}

#ifndef WEFT_CUDA_PORTABLE
/* A thread adds the parts of a column. */
static __global__ void __launch_bounds__(256)
    soft_parts_kernel(const __grid_constant__ head_group g, uint32_t n_in, uint64_t stride) {
  launch_dependents_and_wait();
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, r = g.soft_rows.first + blockIdx.y;
  if (i >= n_in || (g.want != NULL && g.want[r] == 0)) return;
  const float factor = g.rows[r].factor;
  float sum = 0.0f;
  for (uint32_t part = 0; part < g.soft_rows.n_parts; part++)
    sum = __fadd_rn(sum, g.soft_rows.sums[((uint64_t)part * g.soft_rows.n_places + r) * stride + i]);
  g.soft[r * g.soft_stride + i] = factor == 0.0f ? 0.0f : __fmul_rn(__fmul_rn(sum, 1.0f / 255.0f), factor);
}

weft_status soft_integers(cuda_device *d, const head_group *group) {
  const weft_weight *w = group->weight;
  const soft_rows *rows = &group->soft_rows;
  if (rows->n == 0) return WEFT_OK;
  const uint8_t *data = (const uint8_t *)w->data;
  soft_sections place = soft_sections_behind(w, end_of_others(w));
  gemm_args a;
  memset(&a, 0, sizeof a);
  gemm_weight *e = &a.weight[0];
  e->header = e->data = data;
  e->int8_weights = data + place.integers;
  e->fine_steps = (const float *)(const void *)(data + place.steps);
  e->y = rows->sums;
  e->y_stride = sums_stride(w);
  e->n_out = w->n_in;
  e->n_tiles = cuda_ceil(w->n_in, 16);
  a.n_weights = 1;
  a.type = w->type;
  a.is_w8a8 = a.is_tiled = true;
  a.x = rows->numbers;
  a.x_tiles = rows->n_tiles;
  a.n_in = rows->part_chunks * CHUNK;
  a.n_rows = rows->n_parts * rows->n_places;
  a.n_units = rows->part_chunks * CHUNK_UNITS;
  a.jobs = rows->jobs;
  a.n_jobs = rows->n_jobs;
  a.jobs_max = rows->n_parts * cuda_ceil(rows->n, INT8_JOB_ROWS);
  a.job_rows = INT8_JOB_ROWS;
  weft_status status = int8_gemm_unsigned(d, &a);
  if (status != WEFT_OK) return status;
  cuda_start(d, soft_parts_kernel, dim3(cuda_ceil(w->n_in, 256), rows->n), 256, 0, *group, w->n_in, e->y_stride);
  return cuda_launched(d, "adding soft embeddings");
}
#endif
