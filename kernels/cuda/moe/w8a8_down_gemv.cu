/* SPDX-License-Identifier: MIT */
/* The down projection of experts for few rows in W8A8, fused with the sum over ranks, as in down_gemv.cu: a warp has a
 * rank with all its spans. */
#include "kernels/cuda/gemm/w8a8_gemv.cuh"
#include "kernels/cuda/moe/experts_gemv.h"

/* The next span whose copy a warp issues: those of its ranks whose experts are here come one after another. */
typedef struct down_cursor {
  const int32_t *ids;
  uint32_t tile, rank, k, span;
} down_cursor;

template <int T>
static __device__ __forceinline__ void issue_down(const gemm_args &a, gemv_ring &ring, uint32_t stage,
                                                  down_cursor &at) {
  uint32_t matrix = UINT32_MAX, n_spans = w8a8_spans_of(a);
  for (; at.rank < at.k; at.rank += DOWN_WARPS)
    if ((matrix = matrix_of(a, __ldcg(at.ids + at.rank))) < a.n_matrices) break;
  if (at.rank >= at.k) return;
  uint64_t tile = (uint64_t)matrix * a.weight[0].n_tiles + at.tile;
  issue_span<T>(a, ring, stage, a.weight[0].data + PACKED_HEADER_BYTES + tile * a.tile_bytes,
                a.weight[0].steps + tile * n_spans * W8A8_STEPS_BYTES, at.span);
  if (++at.span < n_spans) return;
  at.span = 0;
  at.rank += DOWN_WARPS;
}

/* Computes 16 outputs of one rank, whose row is `numbers` with `scales`, to done [16]. */
template <int T>
static __device__ __forceinline__ void multiply_rank(const gemm_args &a, uint32_t matrix, const uint8_t *numbers,
                                                     const float *scales, gemv_ring &ring, down_cursor &ahead,
                                                     float *done) {
  uint32_t lane = threadIdx.x % 32;
  float sum[2] = {0.0f, 0.0f};
  w8a8_rows<1> rows = {{numbers}};
#pragma unroll 1
  for (uint32_t span = 0; span < w8a8_spans_of(a); span++) {
    int32_t d[1][4];
    float step[2];
    span_rows<1> x;
    ring_wait(ring);
    multiply_span<T, 1, true>(a, ring, span, rows, x, d, step);
    uint32_t stage = ring.at;
    ring_advance(ring);
    issue_down<T>(a, ring, stage, ahead);
#pragma unroll
    for (int h = 0; h < 2; h++) sum[h] = __fmaf_rn((float)d[0][2 * h], __fmul_rn(scales[span], step[h]), sum[h]);
  }
  if (lane % 4 != 0) return; /* column 0 */
  float down = scale_of(a.weight[0], matrix);
#pragma unroll
  for (int h = 0; h < 2; h++) done[lane / 4 + 8 * h] = __bfloat162float(__float2bfloat16_rn(__fmul_rn(sum[h], down)));
}

/* A warp's tasks in a block's row tiles of the shared MLP: task t is span t % n_spans of tile t / n_spans. */
template <int T>
static __device__ __forceinline__ void issue_task(const gemm_args &a, gemv_ring &ring, uint32_t stage,
                                                  uint32_t first_tile, uint32_t task) {
  uint32_t n_spans = w8a8_spans_of(a), tile = first_tile + task / n_spans;
  if (task >= DOWN_SHARED_TILES * n_spans || tile >= a.weight[0].n_tiles) return;
  issue_span<T>(a, ring, stage, a.weight[0].data + PACKED_HEADER_BYTES + (uint64_t)tile * a.tile_bytes,
                a.weight[0].steps + (uint64_t)tile * n_spans * W8A8_STEPS_BYTES, task % n_spans);
}

/* Computes DOWN_SHARED_TILES row tiles of the shared MLP. All warps share the row (numbers, scales) and spans, where
 * the tiles' sums are left. */
template <int T>
static __device__ __forceinline__ void shared_tiles(const gemm_args &a, uint32_t first_tile, gemv_ring &ring,
                                                    uint8_t *numbers, float *scales, float *spans) {
  uint32_t n_spans = w8a8_spans_of(a), warp = threadIdx.x / 32, n_tasks = DOWN_SHARED_TILES * n_spans;
  if (first_tile + 1 >= a.weight[0].n_tiles) n_tasks = n_spans;
  uint32_t ahead = warp;
#pragma unroll 1
  for (uint32_t stage = 0; stage < ring.n; stage++, ahead += DOWN_WARPS)
    issue_task<T>(a, ring, stage, first_tile, ahead);
  wait_for_prior_grids();
  launch_dependent_grids();
  quantise_row<ROW_SPANS>(a, a.raw.x, warp, DOWN_WARPS, numbers, scales);
  __syncthreads();
  w8a8_rows<1> rows = {{numbers}};
#pragma unroll 1
  for (uint32_t task = warp; task < n_tasks; task += DOWN_WARPS, ahead += DOWN_WARPS) {
    int32_t d[1][4];
    float step[2];
    span_rows<1> x;
    ring_wait(ring);
    multiply_span<T, 1, true>(a, ring, task % n_spans, rows, x, d, step);
    store_span<1, 1>(spans + task * floats_of_span<1>(), d, step);
    uint32_t stage = ring.at;
    ring_advance(ring);
    issue_task<T>(a, ring, stage, first_tile, ahead);
  }
  __syncthreads();
  uint32_t out = first_tile * 16 + threadIdx.x;
  if (threadIdx.x >= 16 * DOWN_SHARED_TILES || out >= a.weight[0].n_out) return;
  float sum =
      add_spans<1>(spans + threadIdx.x / 16 * n_spans * floats_of_span<1>(), n_spans, 0, threadIdx.x % 16, {scales, 1});
  a.weight[0].y[out] = __fmul_rn(sum, scale_of(a.weight[0], 0));
}

template <int T>
static __global__ void __launch_bounds__(32 * DOWN_WARPS)
    w8a8_down_kernel(const __grid_constant__ gemm_args a, const __grid_constant__ gemm_args shared,
                     const float *weights, uint32_t k, uint32_t n_stages) {
  /* Stages of the warps; then of each warp a row and its scales; 16 results of ranks, or the spans of the shared MLP,
   * whose row lies where all warps' do. */
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t filled[DOWN_WARPS * DOWN_STAGES_MAX];
  __shared__ down_ranks ranks;
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_spans = w8a8_spans_of(a);
  uint64_t r = blockIdx.y;
  gemv_ring ring =
      ring_init(memory + warp * n_stages * span_bytes(T), filled + warp * DOWN_STAGES_MAX, n_stages, span_bytes(T));
  uint8_t *rows = memory + DOWN_WARPS * n_stages * span_bytes(T);
  float *done = (float *)(void *)(rows + DOWN_WARPS * bytes_of_row(n_spans));
  if (blockIdx.x >= a.weight[0].n_tiles) {
    float *scales = (float *)(void *)(rows + w8a8_spans_of(shared) * W8A8_SPAN);
    return shared_tiles<T>(shared, (blockIdx.x - a.weight[0].n_tiles) * DOWN_SHARED_TILES, ring, rows, scales, done);
  }
  uint8_t *numbers = rows + warp * bytes_of_row(n_spans);
  float *scales = (float *)(void *)(numbers + n_spans * W8A8_SPAN);
  const int32_t *ids = a.ids + r * k;
  down_cursor ahead = {ids, blockIdx.x, warp, k, 0};
#pragma unroll 1
  for (uint32_t stage = 0; stage < n_stages; stage++) issue_down<T>(a, ring, stage, ahead);
  uint32_t matrix = warp < k ? matrix_of(a, __ldcg(ids + warp)) : 0;
  down_rank rank = load_rank(a, weights, r, k);
  wait_for_prior_grids();
  launch_dependent_grids();
#pragma unroll 1
  for (uint32_t j = warp; j < k; j += DOWN_WARPS) {
    if (matrix < a.n_matrices) {
      __syncwarp(); /* all lanes have read the row before */
      quantise_row<RANK_SPANS>(a, a.raw.x + (r * k + j) * a.raw.x_stride, 0, 1, numbers, scales);
      __syncwarp();
      multiply_rank<T>(a, matrix, numbers, scales, ring, ahead, done + 16 * j);
    } else if (lane < 16) {
      done[16 * j + lane] = not_a_number();
    }
    if (j + DOWN_WARPS < k) matrix = matrix_of(a, __ldcg(ids + j + DOWN_WARPS));
  }
  store_rank(a, rank, k, ranks);
  __syncthreads();
  combine_ranks_store(a, ranks, r, k, done);
}

/* Shared memory of a block. shared_spans: spans of the shared MLP's row; 0: there is no shared MLP. */
static uint32_t bytes_of_down(int type, uint32_t n_spans, uint32_t shared_spans, uint32_t k, uint32_t n_stages) {
  uint32_t results = 64 * k, of_shared = 4 * DOWN_SHARED_TILES * shared_spans * floats_of_span<1>();
  return DOWN_WARPS * (n_stages * span_bytes(type) + bytes_of_row(n_spans)) +
         (results > of_shared ? results : of_shared);
}

bool w8a8_gemv_down_fits(int type, uint32_t n_in, uint32_t k) {
  return bytes_of_down(type, cuda_ceil(n_in, W8A8_SPAN), 0, k, 2) <= GEMV_SHARED_BYTES_MAX;
}

bool w8a8_gemv_down_shares(const gemm_args *args, const gemm_args *shared, uint32_t k) {
  uint32_t n_spans = w8a8_spans_of(*args), shared_spans = w8a8_spans_of(*shared);
  return args->type == shared->type && shared->is_w8a8 && args->n_rows == 1 && shared->n_rows == 1 &&
         w8a8_gemv_takes_raw(1, shared->n_in) && gemm_is_wide(shared->raw.x, shared->raw.x_stride) &&
         bytes_of_row(shared_spans) <= DOWN_WARPS * bytes_of_row(n_spans) &&
         bytes_of_down(args->type, n_spans, shared_spans, k, 2) <= GEMV_SHARED_BYTES_MAX;
}

template <int T>
static weft_status launch_down(cuda_device *d, const gemm_args &a, const gemm_args &shared, const float *weights,
                               uint32_t k) {
  bool shares = shared.weight[0].n_tiles > 0;
  uint32_t n_spans = w8a8_spans_of(a), shared_spans = shares ? w8a8_spans_of(shared) : 0, n_stages = 2;
  while (n_stages < n_spans && n_stages < DOWN_STAGES_MAX &&
         bytes_of_down(T, n_spans, shared_spans, k, n_stages + 1) <= DOWN_BYTES_OF_TWO)
    n_stages++;
  dim3 grid(a.weight[0].n_tiles + cuda_ceil(shared.weight[0].n_tiles, DOWN_SHARED_TILES), a.n_rows);
  cuda_start(d, w8a8_down_kernel<T>, grid, 32 * DOWN_WARPS, bytes_of_down(T, n_spans, shared_spans, k, n_stages), a,
             shared, weights, k, n_stages);
  return cuda_launched(d, "the down side of experts in 8 bits");
}

weft_status w8a8_gemv_down(cuda_device *d, const gemm_args *args, const gemm_args *shared, const float *weights,
                           uint32_t k) {
  return dispatch_packed_type(args->type, [&](auto type) {
    constexpr int T = decltype(type)::value;
    if constexpr (w8a8_takes(T))
      return launch_down<T>(d, *args, *shared, weights, k);
    else
      return WEFT_E_UNSUPPORTED;
  });
}

template <int T>
static weft_status set_up(cuda_device *d) {
  cudaError_t error =
      cudaFuncSetAttribute(w8a8_down_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, GEMV_SHARED_BYTES_MAX);
  return cuda_judge(d, error, "setting up experts in 8 bits");
}

weft_status w8a8_gemv_down_setup(cuda_device *d) {
  return each_packed_type([&](auto type) {
    constexpr int T = decltype(type)::value;
    if constexpr (w8a8_takes(T))
      return set_up<T>(d);
    else
      return WEFT_OK;
  });
}
