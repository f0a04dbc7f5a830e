/* SPDX-License-Identifier: MIT */
/* What the two attention kernels share: segments on the device, what a row sees, where a key lies.
 *
 * A query is one head of one row. The queries of a segment that read the same kv head are numbered
 * f = row * group + (head % group), group = heads per kv head. */
#ifndef WEFT_KERNELS_CUDA_ATTENTION_CUH
#define WEFT_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cuda.h"

enum { CHUNK = WEFT_ATTENTION_CHUNK };

/* Some queries of a segment against chunks [chunk, chunk_end) of key positions. */
typedef struct attention_item {
  uint32_t segment, first, n; /* n 0: void; queries f in [first, first + n) */
  uint32_t chunk, chunk_end;
  /* part_step > 0: one chunk, whose result for query first + i goes to partial row part + i * part_step */
  uint32_t part, part_step;
} attention_item;

/* Queries whose chunks were computed apart: partial rows part + i * n_chunks ... of query first + i. */
typedef struct attention_merge {
  uint32_t segment, first, n, n_chunks, part;
} attention_merge;

typedef struct attention_kernel_args {
  weft_attention_args op;                /* segment: device copy */
  const attention_item *items;           /* device */
  const attention_merge *merges;
  uint32_t n_items, n_merges, group;
  uint64_t per_group; /* f / group = f * per_group >> 32 */
  bool wide;          /* queries may be read 16 bytes at a time */
  float *part; /* [kv head][rows][head_dim + 2]: out, max, sum; NULL: nothing is split */
  uint64_t part_stride; /* floats per kv head */
} attention_kernel_args;

/* The row of query f; exact while f * group stays below 2^32. */
static __device__ __forceinline__ uint32_t row_of_query(const attention_kernel_args &k, uint32_t f) {
  return (uint32_t)(f * k.per_group >> 32);
}

/* Positions [first, end) that row i of the segment sees. */
static __device__ __forceinline__ void visible(const weft_attention_segment &s, uint32_t window, uint32_t i,
                                               uint32_t *first, uint32_t *end) {
  uint32_t position = s.canvas ? s.kv_len : s.kv_len + i;
  *end = s.kv_len + (s.canvas ? s.n_rows : i + 1);
  *first = window != 0 && position + 1 > window ? position + 1 - window : 0;
}

/* Where a key lies: in a page of the pool, or among the segment's own rows. The page is looked up apart from its use, so
 * that nobody waits for it. */
static __device__ __forceinline__ bool is_own_key(const weft_attention_segment &s, uint32_t position) {
  return s.canvas && position >= s.kv_len;
}

static __device__ __forceinline__ uint32_t page_of_key(const weft_attention_args &a, const weft_attention_segment &s,
                                                       uint32_t position) {
  return is_own_key(s, position) ? 0 : s.table[position / a.kv.block_tokens];
}

/* The stored key (or value) at a position that some row sees; vector: its bytes. */
static __device__ __forceinline__ const uint8_t *key_at(const weft_attention_args &a,
                                                        const weft_attention_segment &s, uint32_t head,
                                                        uint32_t position, uint64_t page, bool is_value,
                                                        uint64_t vector) {
  if (is_own_key(s, position)) {
    uint64_t own = (uint64_t)(s.first_row - a.own_first) + (position - s.kv_len);
    const uint8_t *base = (const uint8_t *)(is_value ? a.own_v : a.own_k);
    return base + (own * a.kv.n_kv_heads + head) * vector;
  }
  uint64_t offset = (uint64_t)head * a.kv.block_tokens + position % a.kv.block_tokens;
  return (const uint8_t *)a.kv.base + page * a.kv.page_bytes + (is_value ? a.kv.v_offset : a.kv.k_offset) +
         offset * vector;
}

/* Joining a chunk (max_c, sum_c, out_c) to what there is: out = out * keep + out_c * add. One text for
 * all kernels. Maxima are in units of log2. */
static __device__ __forceinline__ void join_factors(float max_all, float max_chunk, float *max_new,
                                                    float *keep, float *add) {
  float m = fmaxf(max_all, max_chunk);
  *max_new = m;
  *keep = max_all == -INFINITY ? 0.0f : exp2f(max_all - m);
  *add = max_chunk == -INFINITY ? 0.0f : exp2f(max_chunk - m);
}

static __device__ __forceinline__ float joined(float all, float keep, float chunk, float add) {
  return __fmaf_rn(all, keep, __fmul_rn(chunk, add));
}

enum { SIMPLE_QUERIES = 4 }; /* of an item of attention_simple */
weft_status attention_simple(cuda_device *d, const attention_kernel_args *args);
bool attention_tiled_fits(const weft_attention_args *args);
/* Queries of an item: depends on the segments only for speed. */
uint32_t attention_tiled_queries(const weft_attention_args *args);
weft_status attention_tiled(cuda_device *d, const attention_kernel_args *args, uint32_t queries);
weft_status attention_tiled_setup(cuda_device *d);

#endif
