/* SPDX-License-Identifier: MIT */
/* The down projection of experts for few rows in W8A8, fused with the sum over ranks, as in down_gemv.cu: a warp has a
 * rank with all its spans. Integers of weights (weights/int8_weights.h), where they lie beside codes of 8 bits, are no
 * more bytes than these and need not be made; they are the type INTEGERS here. */
#include <string.h>

#include "kernels/cuda/gemm/w8a8_gemv.cuh"
#include "kernels/cuda/moe/experts_gemv.h"
#include "kernels/cuda/moe/host_products.h"
#ifndef WEFT_CUDA_PORTABLE
#include "kernels/cuda/gemm/integers_gemv.cuh"
#endif

enum { INTEGERS = WEFT_TYPE_NONE };

/* ---- a span of a row tile -------------------------------------------------------------------------------- */

/* Shared memory of a stage. */
__host__ __device__ constexpr uint32_t stage_of(int type) {
#ifndef WEFT_CUDA_PORTABLE /* its set keeps no integers */
  if (type == INTEGERS) return INTEGERS_STAGE;
#endif
  return span_bytes(type);
}

/* Starts the copy of a span of a row tile of one of the matrices to a stage whose last span all lanes have read. */
template <int T>
static __device__ __forceinline__ void issue_tile(const gemm_args &a, gemv_ring &ring, uint32_t stage, uint32_t matrix,
                                                  uint32_t tile, uint32_t span) {
  const gemm_weight &weight = a.weight[0];
  uint32_t n_spans = w8a8_spans_of(a);
#ifndef WEFT_CUDA_PORTABLE
  if constexpr (T == INTEGERS) return issue_integers(weight, n_spans, ring, stage, matrix, tile, span);
#endif
  if constexpr (T != INTEGERS) {
    uint64_t at = (uint64_t)matrix * weight.n_tiles + tile;
    issue_span<T>(a, ring, stage, weight.data + PACKED_HEADER_BYTES + at * a.tile_bytes,
                  weight.steps + at * n_spans * W8A8_STEPS_BYTES, span);
  }
}

/* The integer sums of the span in the ring's stage with a raw row, and the steps of the lane's outputs g and g + 8. */
template <int T, class F>
static __device__ __forceinline__ void multiply_tile(const gemm_args &a, gemv_ring &ring, uint32_t span,
                                                     const uint8_t *numbers, int32_t (&d)[1][4], float (&step)[2],
                                                     F &&issue) {
#ifndef WEFT_CUDA_PORTABLE
  if constexpr (T == INTEGERS) multiply_integers(a, ring, span, numbers, d, step);
#endif
  if constexpr (T != INTEGERS) {
    w8a8_rows<1> rows = {{numbers}};
    span_rows<1> x;
    multiply_span<T, 1, true>(a, ring, span, rows, x, d, step, issue);
  }
}

/* ---- ranks ----------------------------------------------------------------------------------------------- */

/* The next span whose copy a warp issues: those of its ranks whose experts are here come one after another, item by
 * item. */
typedef struct down_cursor {
  const int32_t *ids;
  uint32_t item, n_items, tile, rank, k, span;
} down_cursor;

static __device__ __forceinline__ void enter_item(const gemm_args &a, down_cursor &at) {
  uint32_t r = at.item / a.weight[0].n_tiles;
  at.tile = at.item - r * a.weight[0].n_tiles;
  at.ids = a.ids + (uint64_t)r * at.k;
  at.rank = threadIdx.x / 32;
}

template <int T>
static __device__ __forceinline__ void issue_down(const gemm_args &a, gemv_ring &ring, uint32_t stage,
                                                  down_cursor &at) {
  uint32_t matrix = UINT32_MAX, n_spans = w8a8_spans_of(a);
  while (at.item < at.n_items) {
    for (; at.rank < at.k; at.rank += DOWN_WARPS)
      if ((matrix = matrix_of(a, __ldcg(at.ids + at.rank))) < a.n_matrices) break;
    if (at.rank < at.k) break;
    at.item += gridDim.x;
    if (at.item < at.n_items) enter_item(a, at);
  }
  if (at.item >= at.n_items) return;
  issue_tile<T>(a, ring, stage, matrix, at.tile, at.span);
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
#pragma unroll 1
  for (uint32_t span = 0; span < w8a8_spans_of(a); span++) {
    auto issue = [&](uint32_t stage) { issue_down<T>(a, ring, stage, ahead); };
    int32_t d[1][4];
    float step[2];
    ring_wait(ring);
    multiply_tile<T>(a, ring, span, numbers, d, step, issue);
    pass_stage<true, false>(ring, issue);
#pragma unroll
    for (int h = 0; h < 2; h++) sum[h] = __fmaf_rn((float)d[0][2 * h], __fmul_rn(scales[span], step[h]), sum[h]);
  }
  if (lane % 4 != 0) return; /* column 0 */
  float down = scale_of(a.weight[0], matrix);
#pragma unroll
  for (int h = 0; h < 2; h++) done[lane / 4 + 8 * h] = __bfloat162float(__float2bfloat16_rn(__fmul_rn(sum[h], down)));
}

/* Puts a processor's results of a pair, whose expert did not cross, in the place of what was made of other bytes. */
static __device__ __forceinline__ void take_result(const gemm_args &a, const desk_results &host, uint32_t matrix,
                                                   uint64_t pair, uint32_t tile, float *done) {
  const int32_t slot = host.slot_of[pair];
  if (slot < 0) return;
  __syncwarp();
  const uint32_t lane = threadIdx.x % 32;
  if (lane >= 16) return;
  const float sum = __ldcg(host.sums + (uint64_t)slot * host.n_sums + 16 * tile + lane);
  done[lane] = __bfloat162float(__float2bfloat16_rn(__fmul_rn(sum, scale_of(a.weight[0], matrix))));
}

/* A warp's tasks in a block's row tiles of the shared MLP: task t is span t % n_spans of tile t / n_spans. */
template <int T>
static __device__ __forceinline__ void issue_task(const gemm_args &a, gemv_ring &ring, uint32_t stage,
                                                  uint32_t first_tile, uint32_t task) {
  uint32_t n_spans = w8a8_spans_of(a), tile = first_tile + task / n_spans;
  if (task >= DOWN_SHARED_TILES * n_spans || tile >= a.weight[0].n_tiles) return;
  issue_tile<T>(a, ring, stage, 0, tile, task % n_spans);
}

/* Computes DOWN_SHARED_TILES row tiles of the shared MLP. All warps share the rows and spans, where the tiles' sums are
 * left. COLUMNS 1: of one row. */
template <int T, int COLUMNS>
static __device__ __forceinline__ void shared_tiles(const gemm_args &a, uint32_t first_tile, gemv_ring &ring,
                                                    uint8_t *rows, float *spans) {
  uint32_t n_spans = w8a8_spans_of(a), warp = threadIdx.x / 32, n_tasks = DOWN_SHARED_TILES * n_spans;
  if (first_tile + 1 >= a.weight[0].n_tiles) n_tasks = n_spans;
  uint32_t ahead = warp;
#pragma unroll 1
  for (uint32_t i = 0; i < ring.n; i++, ahead += DOWN_WARPS)
    issue_task<T>(a, ring, (ring.at + i) % ring.n, first_tile, ahead);
  wait_for_prior_grids();
  launch_dependent_grids();
  quantise_rows(
      a, COLUMNS == 1 ? 1 : a.n_rows, [&](uint32_t r) { return a.raw.x + r * a.raw.x_stride; }, rows);
  uint32_t of_lane = COLUMNS == 1 ? 0 : min(threadIdx.x % 32 / 4, a.n_rows - 1);
  const uint8_t *own = rows + of_lane * bytes_of_row(n_spans);
#pragma unroll 1
  for (uint32_t task = warp; task < n_tasks; task += DOWN_WARPS, ahead += DOWN_WARPS) {
    auto issue = [&](uint32_t stage) { issue_task<T>(a, ring, stage, first_tile, ahead); };
    int32_t d[1][4];
    float step[2];
    ring_wait(ring);
    multiply_tile<T>(a, ring, task % n_spans, own, d, step, issue);
    store_span<1, COLUMNS>(spans + task * floats_of_span<COLUMNS>(), d, step);
    pass_stage<true, false>(ring, issue);
  }
  __syncthreads();
  uint32_t r = threadIdx.x / (16 * DOWN_SHARED_TILES), at = threadIdx.x % (16 * DOWN_SHARED_TILES),
           out = first_tile * 16 + at;
  if (r < (COLUMNS == 1 ? 1 : a.n_rows) && out < a.weight[0].n_out) {
    float sum = add_spans<COLUMNS>(spans + at / 16 * n_spans * floats_of_span<COLUMNS>(), n_spans, r, at % 16,
                                   {scales_of_row(rows + r * bytes_of_row(n_spans), n_spans), 1});
    a.weight[0].y[r * a.weight[0].y_stride + out] = __fmul_rn(sum, scale_of(a.weight[0], 0));
  }
  __syncthreads();
}

/* Items of the shared MLP: pairs of its row tiles. */
static __host__ __device__ __forceinline__ uint32_t shared_items(const gemm_args &shared) {
  return (shared.weight[0].n_tiles + DOWN_SHARED_TILES - 1) / DOWN_SHARED_TILES;
}

/* A warp's row, or those of the shared MLP in the place of all warps'. */
static __host__ __device__ __forceinline__ uint32_t size_of_rows(uint32_t n_spans, const gemm_args &shared) {
  uint32_t own = DOWN_WARPS * bytes_of_row(n_spans), other = shared.n_rows * bytes_of_row(w8a8_spans_of(shared));
  return own > other ? own : other;
}

/* Blocks are persistent, as in down_gemv.cu: items of the shared MLP come first, then row tiles of row after row. ONE:
 * of one row, as INTEGERS always are. */
template <int T, bool ONE>
static __global__ void __launch_bounds__(32 * DOWN_WARPS, 2)
    w8a8_down_kernel(const __grid_constant__ gemm_args a, const __grid_constant__ gemm_args shared,
                     const float *weights, uint32_t k, uint32_t n_stages, const __grid_constant__ desk_results host) {
  /* Stages of the warps; rows; two times 16 results of ranks, or the spans of the shared MLP. */
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t filled[DOWN_WARPS * DOWN_STAGES_MAX];
  __shared__ down_ranks ranks[2];
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_spans = w8a8_spans_of(a), buffer = 0;
  uint32_t n_shared = shared_items(shared), item = blockIdx.x;
  bool waits = item >= n_shared;
  gemv_ring ring =
      ring_init(memory + warp * n_stages * stage_of(T), filled + warp * DOWN_STAGES_MAX, n_stages, stage_of(T));
  uint8_t *rows = memory + DOWN_WARPS * n_stages * stage_of(T);
  float *done = (float *)(void *)(rows + size_of_rows(n_spans, shared));
#pragma unroll 1
  for (; item < n_shared; item += gridDim.x)
    shared_tiles<T, ONE ? 1 : 8>(shared, item * DOWN_SHARED_TILES, ring, rows, done);
  uint8_t *numbers = rows + warp * bytes_of_row(n_spans);
  float *scales = (float *)(void *)(numbers + n_spans * W8A8_SPAN);
  item -= n_shared;
  down_cursor ahead = {NULL, item, a.weight[0].n_tiles * a.n_rows, 0, 0, k, 0};
  enter_item(a, ahead);
#pragma unroll 1
  for (uint32_t i = 0; i < n_stages; i++) issue_down<T>(a, ring, (ring.at + i) % n_stages, ahead);
#pragma unroll 1
  for (; item < ahead.n_items; item += gridDim.x, buffer ^= 1) {
    uint64_t r = item / a.weight[0].n_tiles;
    const int32_t *ids = a.ids + r * k;
    float *own = done + buffer * 16 * k;
    uint32_t matrix = warp < k ? matrix_of(a, __ldcg(ids + warp)) : 0;
    down_rank rank = load_rank(a, weights, r, k);
    if (waits) wait_for_prior_grids();
    if (waits) launch_dependent_grids();
    waits = false;
#pragma unroll 1
    for (uint32_t j = warp; j < k; j += DOWN_WARPS) {
      if (matrix < a.n_matrices) {
        __syncwarp(); /* all lanes have read the row before */
        quantise_row<RANK_SPANS>(a, a.raw.x + (r * k + j) * a.raw.x_stride, 0, 1, numbers, scales);
        __syncwarp();
        multiply_rank<T>(a, matrix, numbers, scales, ring, ahead, own + 16 * j);
        if (host.slot_of != NULL)
          take_result(a, host, matrix, r * k + j, item - (uint32_t)r * a.weight[0].n_tiles, own + 16 * j);
      } else if (lane < 16) {
        own[16 * j + lane] = not_a_number();
      }
      if (j + DOWN_WARPS < k) matrix = matrix_of(a, __ldcg(ids + j + DOWN_WARPS));
    }
    store_rank(a, rank, k, ranks[buffer]);
    __syncthreads(); /* it also says that the results of two items before have been read */
    combine_ranks_store(a, ranks[buffer], r, item - (uint32_t)r * a.weight[0].n_tiles, k, own);
  }
}

/* Shared memory of a block. */
static uint32_t bytes_of_down(int type, uint32_t n_spans, const gemm_args &shared, uint32_t k, uint32_t n_stages) {
  uint32_t n_floats = shared.n_rows == 0 ? 0 : shared.n_rows == 1 ? floats_of_span<1>() : floats_of_span<8>();
  uint32_t results = 128 * k, of_shared = 4 * DOWN_SHARED_TILES * w8a8_spans_of(shared) * n_floats;
  return DOWN_WARPS * n_stages * stage_of(type) + size_of_rows(n_spans, shared) +
         (results > of_shared ? results : of_shared);
}

bool w8a8_gemv_down_fits(int type, uint32_t n_in, uint32_t k) {
  gemm_args none;
  memset(&none, 0, sizeof none);
  return bytes_of_down(type, cuda_ceil(n_in, W8A8_SPAN), none, k, DOWN_STAGES_LEAST) <= GEMV_SHARED_BYTES_MAX;
}

bool w8a8_gemv_down_shares(const gemm_args *args, const gemm_args *shared, uint32_t k) {
  uint32_t most = gemv_bytes_of(args->n_rows == 1 ? 1 : down_blocks());
  return args->type == shared->type && shared->is_w8a8 && args->n_rows == shared->n_rows &&
         args->n_rows <= DOWN_WARPS && w8a8_gemv_takes_raw(shared->n_rows, shared->n_in) &&
         gemm_is_wide(shared->raw.x, shared->raw.x_stride) &&
         bytes_of_down(args->type, w8a8_spans_of(*args), *shared, k, DOWN_STAGES_LEAST) <= most;
}

template <int T>
static weft_status launch_down(cuda_device *d, const gemm_args &a, const gemm_args &shared, const float *weights,
                               uint32_t k) {
  uint32_t n_spans = w8a8_spans_of(a), n_stages = DOWN_STAGES_LEAST, n_blocks = down_blocks();
  if (bytes_of_down(T, n_spans, shared, k, n_stages) > gemv_bytes_of(n_blocks)) n_blocks = 1;
  auto has_room = [&](uint32_t n) {
    uint32_t most = n == 2 ? gemv_bytes_of(n_blocks) : (uint32_t)DOWN_BYTES_OF_TWO;
    return n <= n_spans && n <= DOWN_STAGES_MAX && bytes_of_down(T, n_spans, shared, k, n) <= most;
  };
  while (has_room(n_stages + 1)) n_stages++;
  uint32_t bytes = bytes_of_down(T, n_spans, shared, k, n_stages),
           n_items = shared_items(shared) + a.weight[0].n_tiles * a.n_rows, room = d->n_multiprocessors * n_blocks;
  cuda_start(d, a.n_rows == 1 ? w8a8_down_kernel<T, true> : w8a8_down_kernel<T, T == INTEGERS>,
             n_items < room ? n_items : room, 32 * DOWN_WARPS, bytes, a, shared, weights, k, n_stages,
             host_products_results(d));
  return cuda_launched(d, "the down side of experts in 8 bits");
}

#ifndef WEFT_CUDA_PORTABLE
/* Whether integers are there, and no more bytes than codes. More rows were not timed. */
static bool takes_integers(const gemm_args *args, const gemm_args *shared) {
  return args->n_rows == 1 && packed_bits(args->type) == 8 && args->weight[0].int8_weights != NULL &&
         (shared->n_rows == 0 || shared->weight[0].int8_weights != NULL);
}
#endif

weft_status w8a8_gemv_down(cuda_device *d, const gemm_args *args, const gemm_args *shared, const float *weights,
                           uint32_t k) {
#ifndef WEFT_CUDA_PORTABLE
  if (takes_integers(args, shared)) return launch_down<INTEGERS>(d, *args, *shared, weights, k);
#endif
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
  const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
  cudaError_t error = cudaFuncSetAttribute(w8a8_down_kernel<T, true>, most, GEMV_SHARED_BYTES_MAX);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(w8a8_down_kernel<T, T == INTEGERS>, most, GEMV_SHARED_BYTES_MAX);
  return cuda_judge(d, error, "setting up experts in 8 bits");
}

weft_status w8a8_gemv_down_setup(cuda_device *d) {
#ifndef WEFT_CUDA_PORTABLE
  weft_status status = set_up<INTEGERS>(d);
  if (status != WEFT_OK) return status;
#endif
  return each_packed_type([&](auto type) {
    constexpr int T = decltype(type)::value;
    if constexpr (w8a8_takes(T))
      return set_up<T>(d);
    else
      return WEFT_OK;
  });
}
