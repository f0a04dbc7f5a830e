/* SPDX-License-Identifier: MIT */
/* Flash decoding of up to sixteen queries over bf16 keys, where there are items enough for all multiprocessors: a
 * block takes an item alone and goes through the tiles of its chunks. While it adds the values of one tile, the keys
 * of the next are in flight, and while it scores these, their values are. The first tile is read before the inputs are
 * there, if it is older than the step. Heads of 512 are shared by two blocks, with 256 dimensions of out each.
 *
 *   scores    a warp has 16 of a tile's 128 keys; the warps find the tile's largest score through shared memory
 *   weights   online softmax; they go to shared memory, as bf16
 *   values    a warp has an eighth of the dimensions */
#include "kernels/cuda/attention/attention.cuh"

enum { STREAM_THREADS = 256, STREAM_WARPS = 8, WEIGHT_STRIDE = TILE + 8, WARP_KEYS = TILE / STREAM_WARPS };

template <int D>
struct stream_shape {
  static constexpr int dims = D < 256 ? D : 256; /* of out, in a block */
  static constexpr int slices = D / dims;
  static constexpr int n_sums = dims / STREAM_WARPS / 8;
  static constexpr int q_stride = D + 8;
};

template <int D>
struct stream_memory {
  uint8_t keys[TILE * D * 2], values[TILE * stream_shape<D>::dims * 2]; /* 16-byte pieces exchanged by row % 8 */
  __nv_bfloat16 q[DECODE_QUERIES * stream_shape<D>::q_stride];
  __nv_bfloat16 weight[DECODE_QUERIES * WEIGHT_STRIDE];
  float warp_max[STREAM_WARPS][DECODE_QUERIES];
};

template <int D>
struct stream_block {
  attention_item item;
  weft_attention_segment segment;
  uint32_t kv_head, slice, first, end; /* positions that some query sees */
  stream_memory<D> *m;
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

template <int D>
static __device__ __forceinline__ uint32_t lane_position(const stream_place &at) {
  return at.base + threadIdx.x / 32 * WARP_KEYS + threadIdx.x % WARP_KEYS;
}

template <int D>
static __device__ __forceinline__ void look_up(const attention_kernel_args &k, const stream_block<D> &b,
                                               stream_place &at) {
  uint32_t position = lane_position<D>(at);
  at.at_end = at.base >= b.end || at.base >= b.item.chunk_end * CHUNK;
  if (!at.at_end && position >= b.first && position < b.end) at.page = page_of_key(b.segment, k.block_shift, position);
}

/* Starts copies of N bytes of each of the warp's sixteen keys. */
template <int D, int N>
static __device__ __forceinline__ void copy_rows(const attention_kernel_args &k, const stream_block<D> &b,
                                                 const stream_place &at, bool is_value, uint8_t *to) {
  constexpr int lanes = N / 16 < 32 ? N / 16 : 32; /* for one row */
  uint32_t lane = threadIdx.x % 32, position = lane_position<D>(at);
  bool ok = position >= b.first && position < b.end;
  uint64_t own = (uint64_t)(uintptr_t)k.op.kv.base;
  if (ok) {
    own = (uint64_t)(uintptr_t)key_at(k.op, b.segment, b.kv_head, position, at.page, is_value, 2ull * D) +
          (is_value ? b.slice * N : 0);
  }
  uint32_t seen = __ballot_sync(0xFFFFFFFFu, ok), base = shared_address(to) + threadIdx.x / 32 * WARP_KEYS * N;
#pragma unroll 8
  for (int step = 0; step < WARP_KEYS * N / 512; step++) {
    uint32_t row = (step * 32 + lane) / (N / 16), part = (step * 32 + lane) % (N / 16);
    uint64_t from = __shfl_sync(0xFFFFFFFFu, own, lanes == 32 ? step / (N / 512) : row);
    cp_async_16_if(base + row * N + (part ^ (row & 7)) * 16, (const uint8_t *)(uintptr_t)from + part * 16,
                   (seen >> row & 1) != 0);
  }
}

/* Computes the scores of the warp's sixteen keys, in two chains over the head dimension, one for each eight keys. What
 * a row does not see scores -inf. */
template <int D>
static __device__ __forceinline__ void score_tile(const attention_kernel_args &k, const stream_block<D> &b,
                                                  uint32_t base, const uint32_t (&first)[2], const uint32_t (&end)[2],
                                                  float (&score)[2][4]) {
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t q_at = shared_address(b.m->q + lane % 16 * stream_shape<D>::q_stride + lane / 16 * 8);
  uint32_t k_at = shared_address(b.m->keys) + (warp * WARP_KEYS + lane % 8 + lane / 16 * 8) * D * 2,
           part = lane / 8 % 2;
#pragma unroll
  for (int i = 0; i < 8; i++) score[i / 4][i % 4] = 0.0f;
#pragma unroll 8
  for (int d = 0; d < D; d += 16) {
    uint32_t w[4], v[4];
    ldmatrix_x4(w, q_at + d * 2);
    ldmatrix_x4(v, k_at + (((d / 8 + part) ^ (lane & 7)) << 4));
    mma_bf16(score[0], w, v[0], v[1]);
    mma_bf16(score[1], w, v[2], v[3]);
  }
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
template <int D, int N>
static __device__ __forceinline__ void online_softmax(const stream_block<D> &b, float scale, const float (&score)[2][4],
                                                      stream_sums<N> &s) {
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

template <int D, int N>
static __device__ __forceinline__ void add_tile(const stream_block<D> &b, stream_sums<N> &s) {
  constexpr int dims = stream_shape<D>::dims;
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t p_at = shared_address(b.m->weight + lane % 16 * WEIGHT_STRIDE + lane / 16 * 8);
  uint32_t v_at = shared_address(b.m->values) + lane % 16 * dims * 2, part = warp * N + (N > 1 ? lane / 16 : 0);
  const uint32_t ones = 0x3F803F80u;
#pragma unroll
  for (int key = 0; key < TILE; key += 16) {
    uint32_t w[4];
    ldmatrix_x4(w, p_at + key * 2);
    mma_bf16(s.sum, w, ones, ones);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      uint32_t v[4];
      ldmatrix_x4_trans(v, v_at + key * dims * 2 + (((part + n) ^ (lane & 7)) << 4));
      mma_bf16(s.out[n], w, v[0], v[1]);
      if constexpr (N > 1) mma_bf16(s.out[n + 1], w, v[2], v[3]);
    }
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

template <int D, int N, bool SINKS>
static __device__ __forceinline__ void store_rows(const attention_kernel_args &k, const stream_block<D> &b,
                                                  const stream_sums<N> &s) {
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t dim = b.slice * stream_shape<D>::dims + warp * N * 8 + lane % 4 * 2;
  store_decode<D, N, SINKS>(k, b.item, b.segment, b.kv_head, dim, s.all, s.all_max, s.all_sum);
}

template <int D, bool SINKS>
static __device__ __forceinline__ void stream_tiles(const attention_kernel_args &k, const stream_block<D> &b) {
  constexpr int n = stream_shape<D>::n_sums, dims = stream_shape<D>::dims;
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
  bool is_old = at.base + TILE <= b.segment.n_old; /* the first tile, which is then read before the inputs are there */
  if (!is_old) wait_for_prior_grids();
  copy_rows<D, D * 2>(k, b, at, false, b.m->keys);
  cp_async_commit();
  if (is_old) {
    copy_rows<D, dims * 2>(k, b, at, true, b.m->values);
    wait_for_prior_grids();
  }
  load_queries<D, DECODE_QUERIES, STREAM_THREADS>(
      k, b.item, b.segment, b.kv_head, 0, [&](uint32_t row, uint32_t piece, uint2 x) {
        *(uint2 *)(void *)(b.m->q + row * stream_shape<D>::q_stride + piece * 4) = x;
      });
  while (!at.at_end) {
    stream_place next = at;
    next.base += TILE;
    look_up(k, b, next);
    /* A barrier said that the values before have been added. */
    if (!is_old) copy_rows<D, dims * 2>(k, b, at, true, b.m->values);
    is_old = false;
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    float score[2][4];
    score_tile(k, b, at.base, first, end, score);
    __syncthreads();
    if (!next.at_end) copy_rows<D, D * 2>(k, b, next, false, b.m->keys);
    cp_async_commit();
    online_softmax(b, scale, score, s);
    cp_async_wait<1>();
    __syncthreads();
    add_tile(b, s);
    if (next.at_end || next.base % CHUNK == 0) merge_chunk(s);
    at = next;
    __syncthreads();
  }
  store_rows<D, n, SINKS>(k, b, s);
}

template <int D, bool SINKS = false>
static __global__ void __launch_bounds__(STREAM_THREADS, 1)
    decode_stream_kernel(const __grid_constant__ attention_kernel_args k) {
  launch_dependent_grids();
  using shape = stream_shape<D>;
  extern __shared__ __align__(128) uint8_t memory[];
  stream_block<D> b;
  uint32_t at = blockIdx.x / shape::slices;
  b.item = k.items[at / k.op.kv.n_kv_heads];
  if (b.item.n == 0) return; /* void */
  b.segment = k.op.segment[b.item.segment];
  b.kv_head = at % k.op.kv.n_kv_heads;
  b.slice = blockIdx.x % shape::slices;
  b.m = (stream_memory<D> *)(void *)memory;
  uint32_t unused;
  find_visible(b.segment, k.op.window, row_of_query(k, b.item.first), &b.first, &unused);
  find_visible(b.segment, k.op.window, row_of_query(k, b.item.first + b.item.n - 1), &unused, &b.end);
  stream_tiles<D, SINKS>(k, b);
}

template <int D, bool SINKS = false>
static void start_stream(cuda_device *d, const attention_kernel_args *args) {
  uint32_t n = args->n_items * args->op.kv.n_kv_heads * stream_shape<D>::slices;
  attention_start(d, decode_stream_kernel<D, SINKS>, n, 1, STREAM_THREADS, sizeof(stream_memory<D>), *args);
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

template <int D, bool SINKS = false>
static cudaError_t set_up(void) {
  return cudaFuncSetAttribute(decode_stream_kernel<D, SINKS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              sizeof(stream_memory<D>));
}

weft_status attention_decode_stream_setup(cuda_device *d) {
  cudaError_t error = set_up<64>();
  if (error == cudaSuccess) error = set_up<64, true>();
  if (error == cudaSuccess) error = set_up<128>();
  if (error == cudaSuccess) error = set_up<256>();
  if (error == cudaSuccess) error = set_up<512>();
  return cuda_judge(d, error, "setting up attention");
}
