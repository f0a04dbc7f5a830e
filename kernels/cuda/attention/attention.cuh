/* SPDX-License-Identifier: MIT */
/* What the attention kernels share: segments on the device, what a row sees, where a key lies in the paged cache, and
 * the factors by which a softmax so far is rescaled and chunks are merged. The online softmax itself is each kernel's
 * own: flash.cu, decode_stream.cu, decode_cluster.cu.
 *
 * A query is one head of one row. The queries of a segment that read the same kv head (grouped-query attention) are
 * numbered f = row * group + (head % group), group = heads per kv head.
 *
 * Law: attention_flash, attention_decode_stream and attention_decode_cluster give the same bits. Scores are products
 * over the head dimension, 16 elements at a time, ascending. Softmax is online (Milakov and Gimelshein 2018) within a
 * chunk of 1024 key positions: tiles of 128 positions ascend; the chunk's (max, sum, out) so far is rescaled to the
 * new maximum, the weights of the tile are 2^(score - maximum) as bf16, and out adds the values of 16 keys at a time,
 * ascending. The sum of weights is computed as one more column of out, whose values are all 1. Chunks are merged
 * ascending, each from a fresh state. A key that a row does not see weighs 0, which changes no bit, so a row's bits
 * depend on absolute positions alone. A sink is added to the sum of all chunks (add_sink): of heads of 64 dimensions
 * the kernels have a variant with sinks. Keys and values of 8 bits become bf16 first, and of sixteen elements of such a
 * key the order is another one, the same in all (rows_q8.cuh). attention_fallback takes the calls whose head size, type
 * of keys or alignment the others cannot take; its sums have an order of their own. */
#ifndef WEFT_KERNELS_CUDA_ATTENTION_CUH
#define WEFT_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cuda.h"

enum { CHUNK = 1024, TILE = 128, DECODE_QUERIES = 16, FLASH_QUERIES = 64, FALLBACK_QUERIES = 4 };

/* The work of a block, or of a cluster: some queries of a segment with chunks [chunk, chunk_end) of key positions. */
typedef struct attention_item {
  uint32_t segment, first, n; /* queries f in [first, first + n); n 0: a void item, which has no work */
  uint32_t chunk, chunk_end;
  /* part_step > 0: the item is one chunk, whose result for query first + i goes to partial row part + i * part_step */
  uint32_t part, part_step;
} attention_item;

/* Queries whose chunks were computed by items of their own: query first + i has n_chunks partial rows, of which the
 * first is part + i * n_chunks. */
typedef struct attention_merge {
  uint32_t segment, first, n, n_chunks, part;
} attention_merge;

typedef struct attention_kernel_args {
  weft_attention_args op;      /* segment: device copy */
  const attention_item *items; /* device; of the kernel that is launched */
  const attention_merge *merges;
  uint32_t n_items, n_merges, group;
  uint32_t block_shift; /* log2 of the tokens of a block */
  uint32_t turns;       /* blocks that take the chunks of an item in turn */
  uint64_t per_group;   /* f / group = f * per_group >> 32 */
  bool wide;            /* queries may be read 16 bytes at a time */
  bool prepares;        /* attention_flash: results go to op.prepared, and whole spans are a block's */
  float *part;          /* [kv head][rows][head_dim + 2]: out, max, sum; NULL: nothing is split */
  uint64_t part_stride; /* floats per kv head */
} attention_kernel_args;

/* The row of query f; exact while f * group stays below 2^32. */
static __device__ __forceinline__ uint32_t row_of_query(const attention_kernel_args &k, uint32_t f) {
  return (uint32_t)(f * k.per_group >> 32);
}

/* Positions [first, end) that row i of the segment sees. */
static __device__ __forceinline__ void find_visible(const weft_attention_segment &s, uint32_t window, uint32_t i,
                                                    uint32_t *first, uint32_t *end) {
  bool whole = s.mask != WEFT_MASK_CAUSAL;
  uint32_t position = whole ? s.kv_len : s.kv_len + i;
  *end = s.kv_len + (whole ? s.n_rows : i + 1);
  *first = window != 0 && position + 1 > window ? position + 1 - window : 0;
}

/* Whether a key lies among the segment's own rows and not in a page of the pool. */
static __device__ __forceinline__ bool is_own_key(const weft_attention_segment &s, uint32_t position) {
  return s.stores != WEFT_STORES_POOL && position >= s.kv_len;
}

/* The page of a key. It is looked up long before its use, so that no instruction waits for it. */
static __device__ __forceinline__ uint32_t page_of_key(const weft_attention_segment &s, uint32_t shift,
                                                       uint32_t position) {
  return is_own_key(s, position) ? 0 : s.table[position >> shift];
}

/* The stored key, or value, at a position that some row sees. vector: bytes of one. */
static __device__ __forceinline__ const uint8_t *key_at(const weft_attention_args &a, const weft_attention_segment &s,
                                                        uint32_t head, uint32_t position, uint64_t page, bool is_value,
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

/* How a chunk's (max, sum, out) is merged into that of the chunks before it: out = out * keep + chunk's out * add,
 * and the sum likewise. All kernels use this one text, so that they agree in their bits. Maxima are exponents of 2. */
static __device__ __forceinline__ void rescale_factors(float max_all, float max_chunk, float *max_new, float *keep,
                                                       float *add) {
  float m = fmaxf(max_all, max_chunk);
  *max_new = m;
  *keep = max_all == -INFINITY ? 0.0f : exp2f(max_all - m);
  *add = max_chunk == -INFINITY ? 0.0f : exp2f(max_chunk - m);
}

static __device__ __forceinline__ float rescale_add(float all, float keep, float chunk, float add) {
  return __fmaf_rn(all, keep, __fmul_rn(chunk, add));
}

/* What weights are relative to: the maximum, or 0 where nothing has been seen yet, since -inf would give NaN. */
static __device__ __forceinline__ float anchor_of(float most) {
  return most == -INFINITY ? 0.0f : most;
}

static __device__ __forceinline__ float weight_of(float score, float scale, float anchor) {
  return power_of_2(__fmaf_rn(score, scale, -anchor));
}

/* A head's sum of weights with its sink, relative to the maximum of the scores as the others are. */
static __device__ __forceinline__ float add_sink(const attention_kernel_args &k, uint32_t head, float max, float sum) {
  return __fadd_rn(sum, exp2f(__fmaf_rn(k.op.sinks[head], 1.44269504088896f, -max)));
}

/* The head of query f. */
static __device__ __forceinline__ uint32_t head_of_query(const attention_kernel_args &k, uint32_t kv_head, uint32_t f) {
  return kv_head * k.group + (f - row_of_query(k, f) * k.group);
}

/* Reads queries as bf16 in pieces of four numbers. A query has ROW_PIECES of them (head_dim / 4), all queries
 * N_PIECES; each piece goes to put(query, piece of the query, bits). Queries beyond the item are zeros. Up to 16
 * loads of a thread are in flight at once. */
template <bool WIDE, int N_THREADS, int N_PIECES, int ROW_PIECES, class put_query>
static __device__ __forceinline__ void convert_queries(const attention_kernel_args &k, const attention_item &item,
                                                       const weft_attention_segment &s, uint32_t kv_head,
                                                       uint32_t first, put_query put) {
  constexpr int steps = N_PIECES / N_THREADS, batch = steps < 16 ? steps : 16;
#pragma unroll 1
  for (int step = 0; step < steps; step += batch) {
    float4 x[batch];
#pragma unroll
    for (int i = 0; i < batch; i++) {
      uint32_t at = (step + i) * N_THREADS + threadIdx.x % N_THREADS, r = first + at / ROW_PIECES, f = item.first + r;
      uint32_t row = row_of_query(k, f);
      x[i] = make_float4(0, 0, 0, 0);
      if (r >= item.n) continue;
      const float *q = k.op.q + ((uint64_t)s.first_row + row) * k.op.q_stride +
                       (uint64_t)(kv_head * k.group + (f - row * k.group)) * (4 * ROW_PIECES) + at % ROW_PIECES * 4;
      x[i] = WIDE ? *(const float4 *)(const void *)q : make_float4(q[0], q[1], q[2], q[3]);
    }
#pragma unroll
    for (int i = 0; i < batch; i++) {
      uint32_t at = (step + i) * N_THREADS + threadIdx.x % N_THREADS;
      put(at / ROW_PIECES, at % ROW_PIECES, make_uint2(pair_bf16(x[i].x, x[i].y), pair_bf16(x[i].z, x[i].w)));
    }
  }
}

/* Reads ROWS queries from item.first + first on, by N_THREADS threads. */
template <int D, int ROWS, int N_THREADS, class put_query>
static __device__ __forceinline__ void load_queries(const attention_kernel_args &k, const attention_item &item,
                                                    const weft_attention_segment &s, uint32_t kv_head, uint32_t first,
                                                    put_query put) {
  if (k.wide)
    convert_queries<true, N_THREADS, ROWS * D / 4, D / 4>(k, item, s, kv_head, first, put);
  else
    convert_queries<false, N_THREADS, ROWS * D / 4, D / 4>(k, item, s, kv_head, first, put);
}

/* Where the result of query item.first + r goes: into out or, where the item is one chunk, into its partial row. */
static __device__ __forceinline__ float *decode_row(const attention_kernel_args &k, const attention_item &item,
                                                    const weft_attention_segment &s, uint32_t kv_head, uint32_t r) {
  uint32_t dim = k.op.kv.head_dim, f = item.first + r, i = row_of_query(k, f);
  if (item.part_step > 0)
    return k.part + kv_head * k.part_stride + (uint64_t)(item.part + r * item.part_step) * (dim + 2);
  return k.op.out + ((uint64_t)s.first_row + i) * k.op.out_stride +
         (uint64_t)(kv_head * k.group + (f - i * k.group)) * dim;
}

/* Which of the dimensions of all warps number e of product n is that a lane has, where a warp's N products have 8
 * dimensions each. Over values of 8 bits, of sixteen dimensions the even ones are columns of one product and the odd
 * ones of the next (rows_q8.cuh), which is another warp's if a warp has one product. */
template <int N, bool Q8>
static __device__ __forceinline__ uint32_t dimension_of(int n, int e) {
  uint32_t warp = threadIdx.x / 32, c = threadIdx.x % 4;
  if (!Q8) return warp * N * 8 + n * 8 + c * 2 + e;
  if (N == 1) return warp / 2 * 16 + c * 4 + e * 2 + warp % 2;
  return warp * N * 8 + n / 2 * 16 + c * 4 + e * 2 + n % 2;
}

/* Stores rows g and g + 8 of an item, of dimensions from `first` on 8 N of each warp: the final result or, for
 * attention_combine, that of the item's one chunk. */
template <int D, int N, bool SINKS, bool Q8>
static __device__ __forceinline__ void store_decode(const attention_kernel_args &k, const attention_item &item,
                                                    const weft_attention_segment &s, uint32_t kv_head, uint32_t first,
                                                    const float (&all)[N][4], const float (&all_max)[2],
                                                    const float (&all_sum)[2]) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    uint32_t r = threadIdx.x % 32 / 4 + 8 * h;
    if (r >= item.n) continue;
    float sum = all_sum[h];
    if (SINKS && item.part_step == 0) sum = add_sink(k, head_of_query(k, kv_head, item.first + r), all_max[h], sum);
    float *to = decode_row(k, item, s, kv_head, r), times = item.part_step > 0 ? 1.0f : __frcp_rn(sum);
    if (item.part_step > 0 && first == 0 && threadIdx.x / 32 == 0 && threadIdx.x % 4 == 0)
      to[D] = all_max[h], to[D + 1] = all_sum[h];
    to += first;
#pragma unroll
    for (int n = 0; n < N; n++) {
      float one = __fmul_rn(all[n][2 * h], times), next = __fmul_rn(all[n][2 * h + 1], times);
      if (Q8)
        to[dimension_of<N, Q8>(n, 0)] = one, to[dimension_of<N, Q8>(n, 1)] = next;
      else
        *(float2 *)(void *)(to + dimension_of<N, Q8>(n, 0)) = make_float2(one, next);
    }
  }
}

/* ---- clusters ---- */

/* Sends numbers to another block of the cluster, to the place that `mine` is in this block. That block's barrier, which
 * expects them, counts their bytes. */
static __device__ __forceinline__ void st_async(const void *mine, uint32_t rank, uint32_t x, const uint64_t *barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                   cluster_address(mine, rank)),
               "r"(x), "r"(cluster_address(barrier, rank))
               : "memory");
}

static __device__ __forceinline__ void st_async_4(const void *mine, uint32_t rank, uint4 x, const uint64_t *barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                   cluster_address(mine, rank)),
               "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(cluster_address(barrier, rank))
               : "memory");
}

weft_status attention_fallback(cuda_device *d, const attention_kernel_args *args);
/* Computes items of up to DECODE_QUERIES queries each (decode). part_step is 0, or n_chunks of the item's merge. */
weft_status attention_decode_cluster(cuda_device *d, const attention_kernel_args *args);
/* How many clusters of attention_decode_cluster the card holds at once; an item has one for each kv head. */
uint32_t attention_decode_cluster_room(const cuda_device *d, uint32_t head_dim);
weft_status attention_decode_cluster_setup(cuda_device *d);
/* The same items, where there are many of them: a block takes an item alone. */
weft_status attention_decode_stream(cuda_device *d, const attention_kernel_args *args);
weft_status attention_decode_stream_setup(cuda_device *d);
/* Merges the partial rows of both. */
weft_status attention_combine(cuda_device *d, const attention_kernel_args *args);
/* Computes items of FLASH_QUERIES queries, or of twice as many with n_groups 2, by as many warpgroups. */
weft_status attention_flash(cuda_device *d, const attention_kernel_args *args, uint32_t n_groups);
/* How many blocks attention_flash and attention_decode_stream cut an item's head dimension into. */
static inline uint32_t attention_slices(uint32_t head_dim) {
  return head_dim > 256 ? head_dim / 256 : 1;
}
weft_status attention_flash_setup(cuda_device *d);

#endif
