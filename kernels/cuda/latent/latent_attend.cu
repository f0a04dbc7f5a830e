/* SPDX-License-Identifier: MIT */
/* latent_attend. The rows that a row sees are a list: near ones ascending, then far ones ascending. Rows of 512 numbers
 * in bf16 or 8 bits go by tensor cores here, those of 576 whose first 512 are values in parted.cu; all others go by
 * latent_fallback.cu.
 *
 * A block has 16 heads of a row: queries as bf16 are the one operand, stored rows the other, first as keys and then as
 * values; eight bits become bf16, factor times integer rounded once. The list is cut into chunks of 64 rows:
 *
 *   scores    four warps have 128 dimensions each, sixteen at a time, ascending, and half of the rows; their sums are
 *             added by pairs
 *   weights   2^(score - maximum of the chunk), rounded to bf16; sixteen lanes add four each, then a tree
 *   out       a warp has 64 dimensions, sixteen rows at a time, ascending
 *
 * Chunks are merged ascending, each from a fresh state (attention.cuh). Where a call has few rows, on Hopper, the
 * blocks of a cluster take a chunk each, leave (out, maximum, sum) in shared memory, and merge some of the dimensions
 * each. */
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/latent/latent.cuh"
#include "kernels/cuda/latent/parted.cuh"

enum {
  ATTEND_WIDTH = 512,
  ATTEND_THREADS = 256,
  ATTEND_HEADS = 16,
  ATTEND_CHUNK = 64,
  ATTEND_PARTS = 4,   /* of a score */
  ATTEND_CLUSTER = 8, /* blocks of a row and 16 heads, where a call has up to */
  ATTEND_CLUSTER_ROWS = 8
};

struct attend_memory {
  static constexpr uint32_t STRIDE =
      ATTEND_WIDTH * 2 + 16; /* bytes from row to row: eight rows lie in different banks */
  uint8_t rows[ATTEND_CHUNK * STRIDE];
  float score[ATTEND_PARTS][ATTEND_HEADS][ATTEND_CHUNK + 4];
  __nv_bfloat16 weight[ATTEND_HEADS][ATTEND_CHUNK + 8];
  const uint8_t *row[ATTEND_CHUNK];
  /* How chunks are merged; in the end keep is what out is multiplied by. In a cluster: maximum and sum of the chunk. */
  float keep[ATTEND_HEADS], add[ATTEND_HEADS];
};
static_assert(sizeof(attend_memory) <= 99 << 10, "shared memory of a block on every card");

/* What a row sees. */
struct seen_rows {
  const weft_latent_segment &s;
  uint32_t position, first_near, n_near, n_far;

  __device__ __forceinline__ seen_rows(const weft_latent_attend_args &a, uint32_t r)
      : s(latent_find_segment(a.segment, a.n_segments, r)) {
    position = s.kv_len + (r - s.first_row);
    first_near = position + 1 > a.window ? position + 1 - a.window : 0;
    n_near = position + 1 - first_near;
    n_far = a.far.base == NULL ? 0 : (position + 1) / a.far.positions;
    if (a.ids != NULL) n_far = min(n_far, a.k);
  }
  __device__ __forceinline__ uint32_t n_chunks(void) const {
    return (n_near + n_far + ATTEND_CHUNK - 1) / ATTEND_CHUNK;
  }
  /* Entry i of the list; NULL behind its end. */
  __device__ __forceinline__ const uint8_t *row(const weft_latent_attend_args &a, uint32_t r, uint32_t i) const {
    if (i < n_near) return latent_row_at(a.near, a.near.offset, s.table[WEFT_LATENT_NEAR], first_near + i);
    i -= n_near;
    if (i >= n_far) return NULL;
    if (a.ids != NULL) i = (uint32_t)a.ids[(uint64_t)r * a.k + i];
    return latent_row_at(a.far, a.far.offset, s.table[WEFT_LATENT_FAR], i * a.far.positions);
  }
};

/* ---- a chunk's rows, into shared memory ---- */

/* Ends with the rows on their way (bf16) or there (8 bits). Rows behind the list's end are zeros. */
template <weft_type T>
static __device__ __forceinline__ void load_rows(attend_memory &m) {
  constexpr uint32_t UNITS = T == WEFT_TYPE_BF16 ? ATTEND_WIDTH / 8 : ATTEND_WIDTH / 16; /* of 16 bytes, of a row */
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < ATTEND_CHUNK * UNITS; i += ATTEND_THREADS) {
    const uint32_t row = i / UNITS, unit = i % UNITS;
    const uint8_t *from = m.row[row];
    if constexpr (T == WEFT_TYPE_BF16) {
      uint8_t *to = m.rows + row * m.STRIDE + unit * 16;
      cp_async_16_if(shared_address(to), (from == NULL ? m.row[0] : from) + unit * 16, from != NULL);
    } else {
      uint4 q = make_uint4(0, 0, 0, 0);
      float factor = 0.0f;
      if (from != NULL) {
        q = *(const uint4 *)(const void *)(from + unit * 16);
        factor = __half2float(((const __half *)(const void *)(from + ATTEND_WIDTH))[unit / 2]);
      }
      latent_put_eight_bits(m.rows + row * m.STRIDE + unit * 32, q, factor);
    }
  }
  if (T == WEFT_TYPE_BF16) cp_async_commit();
}

/* ---- the products ---- */

/* The queries of a warp: 128 dimensions of 16 heads. Heads that do not exist are zeros. */
struct warp_queries {
  uint32_t step[8][4];
};
static __device__ __forceinline__ void load_queries(const weft_latent_attend_args &a, uint32_t r, uint32_t first_head,
                                                    warp_queries &q) {
  const uint32_t lane = threadIdx.x % 32, part = threadIdx.x / 32 % ATTEND_PARTS;
  const float *from = a.q + r * a.q_stride + 128 * part + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const uint32_t head = first_head + lane / 4 + i % 2 * 8;
#pragma unroll
    for (int k = 0; k < 8; k++) {
      float2 x = make_float2(0.0f, 0.0f);
      if (head < a.n_heads)
        x = *(const float2 *)(const void *)(from + (uint64_t)head * ATTEND_WIDTH + 16 * k + i / 2 * 8);
      q.step[k][i] = pair_bf16(x.x, x.y);
    }
  }
}

/* A warp's part of the scores. */
static __device__ __forceinline__ void make_scores(attend_memory &m, const warp_queries &q) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = warp % ATTEND_PARTS, g = lane / 4;
  const uint32_t first = warp / ATTEND_PARTS * 32, c = lane % 4 * 2;
  const uint32_t row = shared_address(m.rows) + (first + lane % 8) * m.STRIDE;
  uint32_t from = row + part * 256 + lane / 8 * 16;
#pragma unroll
  for (int n = 0; n < 4; n++, from += 8 * m.STRIDE) {
    float sums[4] = {};
#pragma unroll
    for (int k = 0; k < 8; k += 2) {
      uint32_t b[4];
      ldmatrix_x4(b, from + k * 32);
      mma_bf16(sums, q.step[k], b[0], b[1]);
      mma_bf16(sums, q.step[k + 1], b[2], b[3]);
    }
    *(float2 *)(void *)&m.score[part][g][first + 8 * n + c] = make_float2(sums[0], sums[1]);
    *(float2 *)(void *)&m.score[part][g + 8][first + 8 * n + c] = make_float2(sums[2], sums[3]);
  }
}

/* The sum over sixteen lanes. */
static __device__ __forceinline__ float sum_of_16(float x) {
#pragma unroll
  for (int step = 8; step > 0; step /= 2) x = __fadd_rn(x, __shfl_xor_sync(0xFFFFFFFFu, x, step));
  return x;
}

/* Weights of n rows: sixteen lanes have a head, and a lane has rows 4 lane .. 4 lane + 3. */
static __device__ __forceinline__ void make_weights(attend_memory &m, float scale, uint32_t n, float *most,
                                                    float *sum) {
  const uint32_t head = threadIdx.x / 16, first = threadIdx.x % 16 * 4;
  float4 part[ATTEND_PARTS];
#pragma unroll
  for (int p = 0; p < ATTEND_PARTS; p++) part[p] = *(const float4 *)(const void *)&m.score[p][head][first];
  float score[4], weight[4], own = -INFINITY;
#pragma unroll
  for (uint32_t e = 0; e < 4; e++) {
    auto at = [&](int p) { return e == 0 ? part[p].x : e == 1 ? part[p].y : e == 2 ? part[p].z : part[p].w; };
    float all = __fadd_rn(__fadd_rn(at(0), at(1)), __fadd_rn(at(2), at(3)));
    score[e] = first + e < n ? __fmul_rn(all, scale) : -INFINITY;
    own = fmaxf(own, score[e]);
  }
  *most = latent_max_of_16(own);
#pragma unroll
  for (int e = 0; e < 4; e++)
    weight[e] = __bfloat162float(__float2bfloat16_rn(power_of_2(__fsub_rn(score[e], anchor_of(*most)))));
  *sum = sum_of_16(__fadd_rn(__fadd_rn(weight[0], weight[1]), __fadd_rn(weight[2], weight[3])));
  *(uint2 *)(void *)&m.weight[head][first] =
      make_uint2(pair_bf16(weight[0], weight[1]), pair_bf16(weight[2], weight[3]));
}

/* A warp's 64 dimensions of a chunk's out. */
static __device__ __forceinline__ void make_out(attend_memory &m, float (&out)[8][4]) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t weights = shared_address(&m.weight[lane % 16][lane / 16 * 8]);
  const uint32_t rows = shared_address(m.rows) + lane % 16 * m.STRIDE + warp * 128 + lane / 16 * 16;
#pragma unroll
  for (int n = 0; n < 8; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) out[n][e] = 0.0f;
#pragma unroll
  for (int k = 0; k < ATTEND_CHUNK / 16; k++) {
    uint32_t w[4];
    ldmatrix_x4(w, weights + k * 32);
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, rows + k * 16 * m.STRIDE + n * 16);
      mma_bf16(out[n], w, b[0], b[1]);
      mma_bf16(out[n + 1], w, b[2], b[3]);
    }
  }
}

/* ---- what is stored ---- */

/* What a head's out is multiplied by. */
static __device__ __forceinline__ float factor_of(const weft_latent_attend_args &a, uint32_t head, float most,
                                                  float sum) {
  if (a.sinks == NULL) return __frcp_rn(sum);
  return __frcp_rn(__fadd_rn(sum, exp2f(__fmaf_rn(a.sinks[head], 1.44269504088896f, -most))));
}

/* Numbers d and d + 1, d even, of a head's out, rotated back. sine_cosine: of number d. */
static __device__ __forceinline__ float2 turn_back(float2 x, float2 sine_cosine) {
  float s = sine_cosine.x, c = sine_cosine.y;
  return make_float2(__fmaf_rn(x.x, c, __fmul_rn(x.y, s)), __fmaf_rn(x.y, c, -__fmul_rn(x.x, s)));
}

static __device__ __forceinline__ float2 turn_of(const weft_latent_turn &turn, uint32_t d, uint32_t position) {
  const uint32_t pair = (d - (ATTEND_WIDTH - turn.n_rotated)) / 2;
  return latent_sine_and_cosine(__fmul_rn((float)position, turn.inv_freq[pair]));
}

/* Rows g and g + 8 of a warp's 64 dimensions: the heads' results, times `keep`. */
static __device__ __forceinline__ void store_heads(const weft_latent_attend_args &a, const attend_memory &m, uint32_t r,
                                                   uint32_t first_head, uint32_t position, const float (&out)[8][4]) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, first = threadIdx.x / 32 * 64 + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < 8; n++) {
    const uint32_t d = first + 8 * n;
    const bool turns = d >= ATTEND_WIDTH - a.turn.n_rotated;
    const float2 turn = turns ? turn_of(a.turn, d, position) : make_float2(0.0f, 1.0f);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const uint32_t head = first_head + g + 8 * h;
      if (head >= a.n_heads) continue;
      const float times = m.keep[g + 8 * h];
      float2 x = make_float2(__fmul_rn(out[n][2 * h], times), __fmul_rn(out[n][2 * h + 1], times));
      if (turns) x = turn_back(x, turn);
      *(float2 *)(void *)(a.out + r * a.out_stride + (uint64_t)head * ATTEND_WIDTH + d) = x;
    }
  }
}

/* ---- the kernels ---- */

/* A block goes through all chunks of its row. */
template <weft_type T>
static __global__ void __launch_bounds__(ATTEND_THREADS, 2)
    attend_kernel(const __grid_constant__ weft_latent_attend_args a) {
  launch_dependents_and_wait();
  extern __shared__ __align__(16) uint8_t shared[];
  attend_memory &m = *(attend_memory *)(void *)shared;
  const uint32_t r = blockIdx.x, first_head = blockIdx.y * ATTEND_HEADS, own = threadIdx.x / 16;
  const seen_rows seen(a, r);
  const uint32_t n_rows = seen.n_near + seen.n_far, n_chunks = seen.n_chunks();
  warp_queries q;
  float out[8][4] = {}, all_max = -INFINITY, all_sum = 0.0f;
  if (threadIdx.x < ATTEND_CHUNK) m.row[threadIdx.x] = seen.row(a, r, threadIdx.x);
  __syncthreads();
  load_rows<T>(m);
  load_queries(a, r, first_head, q);
  for (uint32_t chunk = 0;;) {
    float most, sum, keep, add, of_chunk[8][4];
    if (T == WEFT_TYPE_BF16) cp_async_wait<0>();
    __syncthreads();
    make_scores(m, q);
    if (threadIdx.x < ATTEND_CHUNK) m.row[threadIdx.x] = seen.row(a, r, (chunk + 1) * ATTEND_CHUNK + threadIdx.x);
    __syncthreads();
    make_weights(m, a.scale * 1.44269504088896f, n_rows - chunk * ATTEND_CHUNK, &most, &sum);
    rescale_factors(all_max, most, &all_max, &keep, &add);
    all_sum = rescale_add(all_sum, keep, sum, add);
    if (threadIdx.x % 16 == 0) m.keep[own] = keep, m.add[own] = add;
    __syncthreads();
    make_out(m, of_chunk);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      keep = m.keep[threadIdx.x % 32 / 4 + 8 * h], add = m.add[threadIdx.x % 32 / 4 + 8 * h];
#pragma unroll
      for (int i = 0; i < 16; i++)
        out[i / 2][2 * h + i % 2] = rescale_add(out[i / 2][2 * h + i % 2], keep, of_chunk[i / 2][2 * h + i % 2], add);
    }
    __syncthreads();
    if (++chunk == n_chunks) break;
    load_rows<T>(m);
  }
  if (threadIdx.x % 16 == 0 && first_head + own < a.n_heads)
    m.keep[own] = factor_of(a, first_head + own, all_max, all_sum);
  __syncthreads();
  store_heads(a, m, r, first_head, seen.position, out);
}

#ifndef WEFT_CUDA_PORTABLE

/* A chunk's out of 16 heads, where its rows were. */
enum { ATTEND_OUT_STRIDE = ATTEND_WIDTH + 8 /* floats */ };

static __device__ __forceinline__ void leave_out(attend_memory &m, const float (&out)[8][4]) {
  const uint32_t lane = threadIdx.x % 32, first = threadIdx.x / 32 * 64 + lane % 4 * 2;
  float *to = (float *)(void *)m.rows;
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const int n = i / 2, h = i % 2;
    *(float2 *)(void *)(to + (lane / 4 + 8 * h) * ATTEND_OUT_STRIDE + first + 8 * n) =
        make_float2(out[n][2 * h], out[n][2 * h + 1]);
  }
}

/* A cluster has 16 heads of a row: chunk i is block i % ATTEND_CLUSTER's. Of the merged out a block has 64 dimensions,
 * a thread four of a head. */
template <weft_type T>
static __global__ void __launch_bounds__(ATTEND_THREADS)
    attend_cluster_kernel(const __grid_constant__ weft_latent_attend_args a) {
  launch_dependents_and_wait();
  extern __shared__ __align__(16) uint8_t shared[];
  attend_memory &m = *(attend_memory *)(void *)shared;
  const uint32_t r = blockIdx.x / ATTEND_CLUSTER, rank = blockIdx.x % ATTEND_CLUSTER, own = threadIdx.x / 16;
  const uint32_t first_head = blockIdx.y * ATTEND_HEADS, head = first_head + own;
  const uint32_t first = rank * (ATTEND_WIDTH / ATTEND_CLUSTER) + threadIdx.x % 16 * 4;
  const seen_rows seen(a, r);
  const uint32_t n_rows = seen.n_near + seen.n_far, n_chunks = seen.n_chunks();
  warp_queries q;
  float all[4] = {}, all_max = -INFINITY, all_sum = 0.0f;
  load_queries(a, r, first_head, q);
  for (uint32_t base = 0; base < n_chunks; base += ATTEND_CLUSTER) {
    const uint32_t chunk = base + rank;
    if (chunk < n_chunks) {
      float most, sum, of_chunk[8][4];
      if (threadIdx.x < ATTEND_CHUNK) m.row[threadIdx.x] = seen.row(a, r, chunk * ATTEND_CHUNK + threadIdx.x);
      __syncthreads();
      load_rows<T>(m);
      if (T == WEFT_TYPE_BF16) cp_async_wait<0>();
      __syncthreads();
      make_scores(m, q);
      __syncthreads();
      make_weights(m, a.scale * 1.44269504088896f, n_rows - chunk * ATTEND_CHUNK, &most, &sum);
      if (threadIdx.x % 16 == 0) m.keep[own] = most, m.add[own] = sum;
      __syncthreads();
      make_out(m, of_chunk);
      __syncthreads();
      leave_out(m, of_chunk);
    }
    cluster_arrive();
    cluster_wait();
#pragma unroll
    for (uint32_t c = 0; c < ATTEND_CLUSTER; c++) {
      if (base + c >= n_chunks) break;
      const float4 x = load_four_from_cluster((const float *)(const void *)m.rows + own * ATTEND_OUT_STRIDE + first, c);
      float keep, add;
      rescale_factors(all_max, load_from_cluster(&m.keep[own], c), &all_max, &keep, &add);
      all_sum = rescale_add(all_sum, keep, load_from_cluster(&m.add[own], c), add);
      all[0] = rescale_add(all[0], keep, x.x, add), all[1] = rescale_add(all[1], keep, x.y, add);
      all[2] = rescale_add(all[2], keep, x.z, add), all[3] = rescale_add(all[3], keep, x.w, add);
    }
    cluster_arrive();
    cluster_wait();
  }
  if (head >= a.n_heads) return;
  const float times = factor_of(a, head, all_max, all_sum);
#pragma unroll
  for (uint32_t e = 0; e < 4; e += 2) {
    float2 x = make_float2(__fmul_rn(all[e], times), __fmul_rn(all[e + 1], times));
    if (first + e >= ATTEND_WIDTH - a.turn.n_rotated) x = turn_back(x, turn_of(a.turn, first + e, seen.position));
    *(float2 *)(void *)(a.out + r * a.out_stride + (uint64_t)head * ATTEND_WIDTH + first + e) = x;
  }
}

#endif

/* ---- the op ---- */

static bool is_aligned(const weft_latent_view *v) {
  return ((uintptr_t)v->base | v->page_bytes | v->offset) % 16 == 0;
}

/* Whether tensor cores take the call. */
static bool is_tiled(const weft_latent_attend_args *a) {
  if (a->near.width != ATTEND_WIDTH || a->n_values > 0) return false;
  if (a->near.type == WEFT_TYPE_F32 || !is_aligned(&a->near)) return false;
  if (a->far.base != NULL && (a->far.type != a->near.type || !is_aligned(&a->far))) return false;
  return (((uintptr_t)a->q | (uintptr_t)a->out) % 8 | a->q_stride % 2 | a->out_stride % 2) == 0;
}

template <weft_type T>
static weft_status attend_tiled(cuda_device *d, const weft_latent_attend_args *args) {
#ifndef WEFT_CUDA_PORTABLE
  if (args->n_rows <= ATTEND_CLUSTER_ROWS && !d->fresh) {
    cuda_start_clusters(d, attend_cluster_kernel<T>,
                        dim3(ATTEND_CLUSTER * args->n_rows, cuda_ceil(args->n_heads, ATTEND_HEADS)), ATTEND_CLUSTER,
                        ATTEND_THREADS, sizeof(attend_memory), *args);
    return cuda_launched(d, "latent_attend");
  }
#endif
  cuda_start(d, attend_kernel<T>, dim3(args->n_rows, cuda_ceil(args->n_heads, ATTEND_HEADS)), ATTEND_THREADS,
             sizeof(attend_memory), *args);
  return cuda_launched(d, "latent_attend");
}

weft_status cuda_latent_attend_walk(weft_device *device, const weft_latent_attend_args *args) {
  if (parted_fits(args)) return parted_walk(cuda_of(device), args);
  return latent_walk_segments(device, args->segment, args->n_segments);
}

weft_status cuda_latent_attend(weft_device *device, const weft_latent_attend_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  if (parted_fits(args)) return parted_attend(d, args);
  weft_latent_attend_args a = *args;
  weft_status status = latent_push_segments(d, args->segment, args->n_segments, &a.segment);
  if (status != WEFT_OK) return status;
  if (a.n_heads > 65535) return WEFT_E_UNSUPPORTED;
  if (!is_tiled(&a)) return latent_attend_fallback(d, &a);
  return a.near.type == WEFT_TYPE_BF16 ? attend_tiled<WEFT_TYPE_BF16>(d, &a) : attend_tiled<WEFT_TYPE_Q8_0>(d, &a);
}

#ifndef WEFT_CUDA_PORTABLE

template <weft_type T>
static cudaError_t allow_both(void) {
  cudaError_t error = latent_allow(attend_kernel<T>, sizeof(attend_memory));
  return error == cudaSuccess ? latent_allow(attend_cluster_kernel<T>, sizeof(attend_memory)) : error;
}

weft_status cuda_latent_setup(cuda_device *d) {
  cudaError_t error = allow_both<WEFT_TYPE_BF16>();
  if (error == cudaSuccess) error = allow_both<WEFT_TYPE_Q8_0>();
  const weft_status status = cuda_judge(d, error, "setting up attention over latent rows");
  if (status != WEFT_OK) return status;
  const weft_status next = parted_setup(d);
  return next == WEFT_OK ? latent_heads_setup(d) : next;
}

#endif
