/* SPDX-License-Identifier: MIT */
/* Flash decoding of up to sixteen queries over keys of bf16 or 8 bits, where there are items enough for all
 * multiprocessors: a block takes an item alone and goes through the tiles of its chunks. While it adds the values of
 * one tile, the keys of the next are in flight, and while it scores these, their values are. The first tile is read
 * before the inputs are there, if it is older than the step. Heads of 512 are shared by two blocks, with 256
 * dimensions of out each. Keys and values of 8 bits lie in shared memory as they are stored, so that two blocks find
 * room on a multiprocessor but for heads of 512, and become bf16 in the registers of the warp that multiplies them
 * (rows_q8.cuh).
 *
 *   scores    a warp has 16 of a tile's 128 keys; the warps find the tile's largest score through shared memory
 *   weights   online softmax; they go to shared memory, as bf16
 *   values    a warp has an eighth of the dimensions */
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/attention/rows_q8.cuh"

enum { STREAM_THREADS = 256, STREAM_WARPS = 8, WEIGHT_STRIDE = TILE + 8, WARP_KEYS = TILE / STREAM_WARPS };

template <int D, bool Q8>
struct stream_shape {
  static constexpr int dim = D;
  static constexpr bool q8 = Q8;
  static constexpr bool early = !Q8 || q8_early(D); /* keys may be copied before the inputs are there */
  static constexpr int dims = D < 256 ? D : 256;    /* of out, in a block */
  static constexpr int slices = D / dims;
  static constexpr int n_sums = dims / STREAM_WARPS / 8;
  static constexpr int q_stride = D + 8;
  static constexpr int vector = Q8 ? q8_bytes(D) : D * 2; /* bytes of a key, as it is stored */
  /* Bytes from row to row in shared memory. Of bf16, 16-byte pieces are exchanged by row % 8. */
  static constexpr int key_stride = Q8 ? q8_stride(q8_bytes(D)) : D * 2;
  static constexpr int value_stride = Q8 ? q8_stride(q8_bytes(dims)) : dims * 2;
  static constexpr int blocks = Q8 && D <= 256 ? 2 : 1; /* on a multiprocessor */
};

template <class shape>
struct stream_memory {
  uint8_t keys[TILE * shape::key_stride], values[TILE * shape::value_stride];
  __nv_bfloat16 q[DECODE_QUERIES * shape::q_stride];
  __nv_bfloat16 weight[DECODE_QUERIES * WEIGHT_STRIDE];
  float warp_max[STREAM_WARPS][DECODE_QUERIES];
};

template <class shape>
struct stream_block {
  attention_item item;
  weft_attention_segment segment;
  uint32_t kv_head, slice, first, end; /* positions that some query sees */
  stream_memory<shape> *m;
};

/* A tile, and where a lane's key lies. Lanes l and l + 16 have the same of the warp's sixteen keys. */
typedef struct stream_place {
  uint32_t base, page; /* first position of the tile */
  bool at_end;
} stream_place;

/* A lane's part of (max, sum, out), of the chunk so far and of all chunks before: rows g and g + 8 in the warp's
 * dimensions. */
template <int N>
struct stream_sums {
  float most[2], out[N][4], sum[4];
  float all_max[2], all_sum[2], all[N][4];
};

static __device__ __forceinline__ uint32_t lane_position(const stream_place &at) {
  return at.base + threadIdx.x / 32 * WARP_KEYS + threadIdx.x % WARP_KEYS;
}

template <class shape>
static __device__ __forceinline__ void look_up(const attention_kernel_args &k, const stream_block<shape> &b,
                                               stream_place &at) {
  uint32_t position = lane_position(at);
  at.at_end = at.base >= b.end || at.base >= b.item.chunk_end * CHUNK;
  if (!at.at_end && position >= b.first && position < b.end) at.page = page_of_key(b.segment, k.block_shift, position);
}

/* Starts copies of N bytes of each of the warp's sixteen rows of bf16. */
template <int N>
static __device__ __forceinline__ void copy_bf16(uint32_t to, uint64_t own, uint32_t seen) {
  constexpr int lanes = N / 16 < 32 ? N / 16 : 32; /* for one row */
  uint32_t lane = threadIdx.x % 32;
#pragma unroll 8
  for (int step = 0; step < WARP_KEYS * N / 512; step++) {
    uint32_t row = (step * 32 + lane) / (N / 16), part = (step * 32 + lane) % (N / 16);
    uint64_t from = __shfl_sync(0xFFFFFFFFu, own, lanes == 32 ? step / (N / 512) : row);
    cp_async_16_if(to + row * N + (part ^ (row & 7)) * 16, (const uint8_t *)(uintptr_t)from + part * 16,
                   (seen >> row & 1) != 0);
  }
}

/* Starts copies of the warp's sixteen keys, or of the block's slice of their values. */
template <bool VALUES, class shape>
static __device__ __forceinline__ void copy_rows(const attention_kernel_args &k, const stream_block<shape> &b,
                                                 const stream_place &at) {
  constexpr int dims = VALUES ? shape::dims : shape::dim, stride = VALUES ? shape::value_stride : shape::key_stride;
  uint32_t position = lane_position(at), skipped = VALUES ? b.slice * dims : 0; /* numbers of a row */
  bool ok = position >= b.first && position < b.end;
  uint64_t own = (uint64_t)(uintptr_t)k.op.kv.base;
  if (ok) {
    own = (uint64_t)(uintptr_t)key_at(k.op, b.segment, b.kv_head, position, at.page, VALUES, shape::vector) +
          (shape::q8 ? skipped : skipped * 2);
  }
  uint32_t seen = __ballot_sync(0xFFFFFFFFu, ok);
  uint32_t to = shared_address(VALUES ? b.m->values : b.m->keys) + threadIdx.x / 32 * WARP_KEYS * stride;
  if constexpr (shape::q8) {
    uint32_t tail_at = shape::dim - skipped + skipped / WEFT_KV_Q8_BLOCK * 2;
    q8_copy_rows<q8_piece(shape::dim), dims, q8_bytes(dims) - dims, WARP_KEYS, stride>(to, own, tail_at, UINT32_MAX,
                                                                                       seen);
  } else {
    copy_bf16<dims * 2>(to, own, seen);
  }
}

/* Multiplies the warp's sixteen keys with the queries, in two chains over the head dimension, one for each eight
 * keys. */
template <class shape>
static __device__ __forceinline__ void multiply_keys(const stream_block<shape> &b, float (&score)[2][4]) {
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t q_at = shared_address(b.m->q + lane % 16 * shape::q_stride + lane / 16 * 8);
  const uint8_t *keys = b.m->keys + warp * WARP_KEYS * shape::key_stride;
  uint32_t k_at = shared_address(keys) + (lane % 8 + lane / 16 * 8) * shape::key_stride, part = lane / 8 % 2;
  if constexpr (shape::q8) {
    const uint8_t *factors = keys + lane / 4 * shape::key_stride + shape::dim;
#pragma unroll 2
    for (int d = 0; d < shape::dim; d += 32) {
      uint32_t w[2][4], v[4];
      ldmatrix_x4(w[0], q_at + d * 2);
      ldmatrix_x4(w[1], q_at + d * 2 + 32);
      ldmatrix_x4(v, k_at + d + part * 16);
#pragma unroll
      for (int i = 0; i < 2; i++) { /* of the keys */
        float factor = q8_factor(factors + i * 8 * shape::key_stride, d / 32);
#pragma unroll
        for (int j = 0; j < 2; j++) {
          uint32_t low, high;
          q8_key(v[2 * i + j], factor, low, high);
          mma_bf16(score[i], w[j], low, high);
        }
      }
    }
  } else {
#pragma unroll 8
    for (int d = 0; d < shape::dim; d += 16) {
      uint32_t w[4], v[4];
      ldmatrix_x4(w, q_at + d * 2);
      ldmatrix_x4(v, k_at + (((d / 8 + part) ^ (lane & 7)) << 4));
      mma_bf16(score[0], w, v[0], v[1]);
      mma_bf16(score[1], w, v[2], v[3]);
    }
  }
}

/* Computes the scores of the warp's sixteen keys. What a row does not see scores -inf. */
template <class shape>
static __device__ __forceinline__ void score_tile(const stream_block<shape> &b, uint32_t base,
                                                  const uint32_t (&first)[2], const uint32_t (&end)[2],
                                                  float (&score)[2][4]) {
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 8; i++) score[i / 4][i % 4] = 0.0f;
  multiply_keys(b, score);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    uint32_t h = i % 4 / 2, position = base + warp * WARP_KEYS + i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (position < first[h] || position >= end[h]) score[i / 4][i % 4] = -INFINITY;
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float most = fmaxf(fmaxf(score[0][2 * h], score[0][2 * h + 1]), fmaxf(score[1][2 * h], score[1][2 * h + 1]));
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
    if (lane % 4 == 0) b.m->warp_max[warp][lane / 4 + 8 * h] = most;
  }
}

/* Writes the weights of the warp's keys to shared memory, and scales out and sum so far to the new maximum. */
template <class shape, int N>
static __device__ __forceinline__ void online_softmax(const stream_block<shape> &b, float scale,
                                                      const float (&score)[2][4], stream_sums<N> &s) {
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    uint32_t r = lane / 4 + 8 * h;
    float most = -INFINITY;
#pragma unroll
    for (int w = 0; w < STREAM_WARPS; w++) most = fmaxf(most, b.m->warp_max[w][r]);
    most = fmaxf(s.most[h], __fmul_rn(most, scale));
    float anchor = anchor_of(most), keep = power_of_2(__fadd_rn(s.most[h], -anchor));
    s.most[h] = most;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      *(uint32_t *)(void *)(b.m->weight + r * WEIGHT_STRIDE + warp * WARP_KEYS + 8 * i + lane % 4 * 2) =
          pair_bf16(weight_of(score[i][2 * h], scale, anchor), weight_of(score[i][2 * h + 1], scale, anchor));
    }
#pragma unroll
    for (int n = 0; n < N; n++)
      s.out[n][2 * h] = __fmul_rn(s.out[n][2 * h], keep), s.out[n][2 * h + 1] = __fmul_rn(s.out[n][2 * h + 1], keep);
    s.sum[2 * h] = __fmul_rn(s.sum[2 * h], keep), s.sum[2 * h + 1] = __fmul_rn(s.sum[2 * h + 1], keep);
  }
}

/* A lane's registers of the operands of 16 keys' values, from key `key` of the tile on. */
template <class shape, int N>
static __device__ __forceinline__ void load_values(const stream_block<shape> &b, int key, uint32_t (&v)[N][2]) {
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, all[4];
  const uint8_t *from = b.m->values + key * shape::value_stride;
  uint32_t at = shared_address(from) + lane % 16 * shape::value_stride;
  if constexpr (shape::q8) {
    constexpr int used = N > 1 ? N / 2 : 1; /* of sixteen dimensions each */
    uint32_t first = N > 1 ? warp * N * 8 : warp / 2 * 16;
    float factor[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
      factor[i] = q8_factor(from + (lane % 4 * 2 + i / 2 * 8 + i % 2) * shape::value_stride + shape::dims, first / 32);
    ldmatrix_x4_trans(all, at + first + (used > 1 ? lane / 16 * 16 : 0));
#pragma unroll
    for (int i = 0; i < 2 * N; i++) {
      int n = i / 2, k = i % 2;
      v[n][k] = q8_values(all[n / 2 * 2 + k], N > 1 ? n % 2 : warp % 2, factor[2 * k], factor[2 * k + 1]);
    }
  } else {
    uint32_t part = warp * N + (N > 1 ? lane / 16 : 0);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      ldmatrix_x4_trans(all, at + (((part + n) ^ (lane & 7)) << 4));
      v[n][0] = all[0], v[n][1] = all[1];
      if constexpr (N > 1) v[n + 1][0] = all[2], v[n + 1][1] = all[3];
    }
  }
}

template <class shape, int N>
static __device__ __forceinline__ void add_tile(const stream_block<shape> &b, stream_sums<N> &s) {
  uint32_t lane = threadIdx.x % 32;
  uint32_t p_at = shared_address(b.m->weight + lane % 16 * WEIGHT_STRIDE + lane / 16 * 8);
  const uint32_t ones = 0x3F803F80u;
#pragma unroll
  for (int key = 0; key < TILE; key += 16) {
    uint32_t w[4], v[N][2];
    ldmatrix_x4(w, p_at + key * 2);
    mma_bf16(s.sum, w, ones, ones);
    load_values(b, key, v);
#pragma unroll
    for (int n = 0; n < N; n++) mma_bf16(s.out[n], w, v[n][0], v[n][1]);
  }
}

/* Merges the chunk to those before it, and begins a fresh one. */
template <int N>
static __device__ __forceinline__ void merge_chunk(stream_sums<N> &s) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float keep, add;
    rescale_factors(s.all_max[h], s.most[h], &s.all_max[h], &keep, &add);
    s.all_sum[h] = rescale_add(s.all_sum[h], keep, s.sum[2 * h], add);
    s.most[h] = -INFINITY, s.sum[2 * h] = s.sum[2 * h + 1] = 0.0f;
#pragma unroll
    for (int i = 0; i < 2 * N; i++) {
      float *all = &s.all[i / 2][2 * h + i % 2], *out = &s.out[i / 2][2 * h + i % 2];
      *all = rescale_add(*all, keep, *out, add);
      *out = 0.0f;
    }
  }
}

template <class shape, bool SINKS>
static __device__ __forceinline__ void stream_tiles(const attention_kernel_args &k, const stream_block<shape> &b) {
  constexpr int n = shape::n_sums;
  uint32_t first[2], end[2];
  stream_sums<n> s;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    uint32_t r = threadIdx.x % 32 / 4 + 8 * h;
    first[h] = end[h] = 0;
    if (r < b.item.n) find_visible(b.segment, k.op.window, row_of_query(k, b.item.first + r), &first[h], &end[h]);
    s.most[h] = s.all_max[h] = -INFINITY, s.all_sum[h] = 0.0f;
  }
#pragma unroll
  for (int i = 0; i < 4 * n; i++) s.out[i / 4][i % 4] = s.all[i / 4][i % 4] = 0.0f;
  s.sum[0] = s.sum[1] = s.sum[2] = s.sum[3] = 0.0f;
  float scale = k.op.scale * 1.44269504088896f;
  stream_place at = {max(b.first, b.item.chunk * CHUNK) / TILE * TILE, 0, false};
  look_up(k, b, at);
  bool is_old = shape::early &&
                at.base + TILE <= b.segment.n_old; /* the first tile, which is then read before the inputs are there */
  if (!is_old) wait_for_prior_grids();
  copy_rows<false>(k, b, at);
  cp_async_commit();
  if (is_old) {
    copy_rows<true>(k, b, at);
    wait_for_prior_grids();
  }
  load_queries<shape::dim, DECODE_QUERIES, STREAM_THREADS>(
      k, b.item, b.segment, b.kv_head, 0, [&](uint32_t row, uint32_t piece, uint2 x) {
        __nv_bfloat16 *to = b.m->q + row * shape::q_stride;
        if (shape::q8)
          q8_put(piece, x, [&](uint32_t place, uint32_t word) { *(uint32_t *)(void *)(to + place) = word; });
        else
          *(uint2 *)(void *)(to + piece * 4) = x;
      });
  while (!at.at_end) {
    stream_place next = at;
    next.base += TILE;
    look_up(k, b, next);
    /* A barrier said that the values before have been added. */
    if (!is_old) copy_rows<true>(k, b, at);
    is_old = false;
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    float score[2][4];
    score_tile(b, at.base, first, end, score);
    __syncthreads();
    if (!next.at_end) copy_rows<false>(k, b, next);
    cp_async_commit();
    online_softmax(b, scale, score, s);
    cp_async_wait<1>();
    __syncthreads();
    add_tile(b, s);
    if (next.at_end || next.base % CHUNK == 0) merge_chunk(s);
    at = next;
    __syncthreads();
  }
  store_decode<shape::dim, n, SINKS, shape::q8>(k, b.item, b.segment, b.kv_head, b.slice * shape::dims, s.all,
                                                s.all_max, s.all_sum);
}

template <class shape, bool SINKS>
static __global__ void __launch_bounds__(STREAM_THREADS, shape::blocks)
    decode_stream_kernel(const __grid_constant__ attention_kernel_args k) {
  launch_dependent_grids();
  extern __shared__ __align__(128) uint8_t memory[];
  stream_block<shape> b;
  uint32_t at = blockIdx.x / shape::slices;
  b.item = k.items[at / k.op.kv.n_kv_heads];
  if (b.item.n == 0) return; /* void */
  b.segment = k.op.segment[b.item.segment];
  b.kv_head = at % k.op.kv.n_kv_heads;
  b.slice = blockIdx.x % shape::slices;
  b.m = (stream_memory<shape> *)(void *)memory;
  uint32_t unused;
  find_visible(b.segment, k.op.window, row_of_query(k, b.item.first), &b.first, &unused);
  find_visible(b.segment, k.op.window, row_of_query(k, b.item.first + b.item.n - 1), &unused, &b.end);
  stream_tiles<shape, SINKS>(k, b);
}

template <class shape, bool SINKS>
static void start_shape(cuda_device *d, const attention_kernel_args *args) {
  uint32_t n = args->n_items * args->op.kv.n_kv_heads * shape::slices;
  cuda_start_clusters(d, decode_stream_kernel<shape, SINKS>, n, 1, STREAM_THREADS, sizeof(stream_memory<shape>), *args);
}

template <int D, bool SINKS = false>
static void start_stream(cuda_device *d, const attention_kernel_args *args) {
  if (args->op.kv.type == WEFT_TYPE_Q8_0)
    start_shape<stream_shape<D, true>, SINKS>(d, args);
  else
    start_shape<stream_shape<D, false>, SINKS>(d, args);
}

weft_status attention_decode_stream(cuda_device *d, const attention_kernel_args *args) {
  switch (args->op.kv.head_dim) {
    case 64:
      args->op.sinks != NULL ? start_stream<64, true>(d, args) : start_stream<64>(d, args);
      break;
    case 128:
      start_stream<128>(d, args);
      break;
    case 256:
      start_stream<256>(d, args);
      break;
    default:
      start_stream<512>(d, args);
      break;
  }
  return cuda_launched(d, "attention");
}

template <class shape, bool SINKS>
static cudaError_t ask_for_memory(void) {
  return cudaFuncSetAttribute(decode_stream_kernel<shape, SINKS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              sizeof(stream_memory<shape>));
}

template <int D, bool SINKS = false>
static cudaError_t set_up(void) {
  cudaError_t error = ask_for_memory<stream_shape<D, false>, SINKS>();
  return error == cudaSuccess ? ask_for_memory<stream_shape<D, true>, SINKS>() : error;
}

weft_status attention_decode_stream_setup(cuda_device *d) {
  cudaError_t error = set_up<64>();
  if (error == cudaSuccess) error = set_up<64, true>();
  if (error == cudaSuccess) error = set_up<128>();
  if (error == cudaSuccess) error = set_up<256>();
  if (error == cudaSuccess) error = set_up<512>();
  return cuda_judge(d, error, "setting up attention");
}
