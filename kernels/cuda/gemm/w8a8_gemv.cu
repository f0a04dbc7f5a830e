/* SPDX-License-Identifier: MIT */
/* Split-K GEMV in W8A8 (w8a8.h) for up to 16 rows, in the portable set up to 32. A warp takes 16 outputs and one split
 * of the spans, and leaves the exact integer sum of each span in shared memory; the warps of a row tile then reduce the
 * tile's spans in their order. Weights, blocks, raw rows and gated products are as in gemv.cu. */
#include "kernels/cuda/gemm/w8a8_gemv.cuh"
#include "kernels/cuda/moe/experts_gemv.h"

/* Whether there are kernels for 17 to 32 rows, which come tiled. On Hopper w8a8_dense is faster. */
#ifdef WEFT_CUDA_PORTABLE
static constexpr bool TAKES_TILED = true;
#else
static constexpr bool TAKES_TILED = false;
#endif

/* The epilogue of a row tile, which its warps share: this is own_warp of n_warps. spans: the tile's sums, and behind
 * them those of the tile of up. scales(column): those of the row's spans. */
template <int COLUMNS, bool GATED, class F>
static __device__ __forceinline__ void reduce_spans(const gemm_args &a, dense_tile tile, const float *spans, F &&scales,
                                                    uint32_t own_warp, uint32_t n_warps) {
  const gemm_weight &weight = a.weight[tile.weight];
  uint32_t n_spans = w8a8_spans_of(a);
#pragma unroll 1
  for (uint32_t i = 32 * own_warp + threadIdx.x % 32; i < 16 * COLUMNS; i += 32 * n_warps) {
    uint32_t column = i / 16, out = tile.tile * 16 + i % 16;
    if (column >= a.n_rows || out >= weight.n_out) continue;
    span_scales own = scales(column);
    float value = __fmul_rn(add_spans<COLUMNS>(spans, n_spans, column, i % 16, own), scale_of(weight, 0));
    if (GATED) {
      float up = add_spans<COLUMNS>(spans + n_spans * floats_of_span<COLUMNS>(), n_spans, column, i % 16, own);
      value = gate_product(a.activation, value, __fmul_rn(up, scale_of(a.weight[a.n_weights == 2 ? 1 : 0], 0)));
    }
    weight.y[column * weight.y_stride + out] = value;
  }
}

template <int T, int NT, int ROWS, bool GATED>
static __global__ void __maxnreg__(NT == 1 ? 80 : 128)
    w8a8_gemv_kernel(const __grid_constant__ gemm_args a, uint32_t n_groups) {
  /* Stages of the warps; sums of the block's row tiles, of two groups in turn; raw rows. */
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t filled[GEMV_WARPS_MAX * GEMV_STAGES];
  constexpr bool RAW = ROWS != ROWS_PREPARED, ONE = ROWS == ROWS_RAW_ONE;
  constexpr int columns = ONE ? 1 : 8 * NT;
  uint32_t n_warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, buffer = 0;
  uint32_t split = warp % a.n_splits, slot = warp / a.n_splits, n_slots = n_warps / a.n_splits;
  uint32_t first = split * a.split_units, end = min(a.n_units, first + a.split_units), unit = first;
  uint32_t n_spans = w8a8_spans_of(a), tile_floats = n_spans * floats_of_span<columns>();
  gemv_ring ring =
      ring_init(memory + warp * GEMV_STAGES * span_bytes(T), filled + warp * GEMV_STAGES, GEMV_STAGES, span_bytes(T));
  float *sums = (float *)(void *)(memory + n_warps * GEMV_STAGES * span_bytes(T));
  uint8_t *raw = (uint8_t *)(void *)(sums + 2 * n_slots * tile_floats);
  dense_tile tile = find_dense<GATED>(a, blockIdx.x, slot), ahead = tile; /* ahead: whose unit `unit` is issued next */
  uint32_t group_ahead = blockIdx.x;
  auto issue = [&](uint32_t stage) {
    if (ahead.data == NULL) return;
    const uint8_t *steps = a.weight[ahead.weight].steps + (uint64_t)ahead.tile * n_spans * W8A8_STEPS_BYTES;
    issue_span<T>(a, ring, stage, ahead.data, steps, unit / 2);
    unit += 2;
    if (unit < end) return;
    unit = first;
    group_ahead += gridDim.x;
    ahead.data = NULL;
    if (group_ahead < n_groups) ahead = find_dense<GATED>(a, group_ahead, slot);
  };
#pragma unroll 1
  for (uint32_t stage = 0; stage < GEMV_STAGES; stage++) issue(stage);
  if (!RAW || !a.raw.is_there) wait_for_prior_grids();
  launch_dependent_grids();
  if (RAW)
    quantise_rows(
        a, ONE ? 1 : a.n_rows, [&](uint32_t r) { return a.raw.x + r * a.raw.x_stride; }, raw);
  const uint8_t *x = (const uint8_t *)a.x;
  const float *x_scales = (const float *)(const void *)(x + w8a8_scales_at(n_spans, a.x_tiles));
  auto scales = [&](uint32_t r) {
    if (RAW) return span_scales{scales_of_row(raw + r * bytes_of_row(n_spans), n_spans), 1};
    return comes_tiled(NT) ? span_scales{x_scales + r, a.x_tiles * 8} : span_scales{x_scales + r * n_spans, 1};
  };
  w8a8_rows<NT> rows;
#pragma unroll
  for (int n = 0; n < NT; n++) {
    uint32_t r = ONE ? 0 : min(8 * n + lane / 4, a.n_rows - 1), tile = min((uint32_t)n, (a.n_rows - 1) / 8);
    rows.numbers[n] = RAW               ? raw + r * bytes_of_row(n_spans)
                      : comes_tiled(NT) ? x + tile * 1024
                                        : x + (uint64_t)r * n_spans * W8A8_SPAN;
  }
  for (uint32_t group = blockIdx.x; group < n_groups; group += gridDim.x) {
    if (group != blockIdx.x) tile = find_dense<GATED>(a, group, slot);
    float *own = sums + (buffer * n_slots + slot) * tile_floats;
    if (tile.data != NULL) multiply_spans<T, NT, RAW, columns>(a, ring, first, end, rows, own, issue);
    __syncthreads(); /* it also says that the spans of the group before have been read */
    if (GATED) {
      reduce_spans<columns, true>(a, find_dense<true>(a, group, 0), own - slot * tile_floats, scales, warp, n_warps);
    } else if (tile.data != NULL) {
      reduce_spans<columns, false>(a, tile, own, scales, split, a.n_splits);
    }
    buffer ^= 1;
  }
  if (RAW && a.raw.is_there) wait_for_prior_grids(); /* who waits for this kernel waits for those before it too */
}

/* ---- host ------------------------------------------------------------------------------------------------ */

/* Shared memory of a block. */
static uint32_t bytes_of(int type, uint32_t n_slots, uint32_t n_splits, uint32_t n_spans, uint32_t n_columns,
                         uint32_t n_raw) {
  return n_slots * n_splits * GEMV_STAGES * span_bytes(type) + 8 * n_slots * n_spans * (n_columns * COLUMN + 16) +
         n_raw * bytes_of_row(n_spans);
}

/* Raw rows are as many as a block surely has warps. */
bool w8a8_gemv_takes_raw(uint32_t n_rows, uint32_t n_in) {
  return n_in % 8 == 0 && (n_rows == 1 || (n_rows <= GEMM_RAW_ROWS && n_in > W8A8_SPAN));
}

bool w8a8_gemv_takes(int type, uint32_t n_rows, uint32_t n_in, bool gated) {
  uint32_t n_columns = n_rows == 1    ? 1
                       : n_rows <= 8  ? 8
                       : n_rows <= 16 ? 16
                                      : 32,
           n_raw = w8a8_gemv_takes_raw(n_rows, n_in) ? n_rows : 0;
  return n_rows <= 32 && w8a8_takes(type) &&
         bytes_of(type, gated ? 2 : 1, GEMV_SPLITS_MAX, cuda_ceil(n_in, W8A8_SPAN), n_columns, n_raw) <=
             GEMV_SHARED_BYTES_MAX;
}

bool w8a8_gemv_takes_tiled(const gemm_args *a) {
  return TAKES_TILED && a->jobs == NULL && a->n_rows > GEMV_ROWS_NARROW && gemv_tiles(*a) <= GEMV_TILES &&
         w8a8_gemv_takes(a->type, a->n_rows, a->n_in, a->n_weights == 2 || a->gated);
}

/* How many row tiles a block takes at once, by the rule of slots_of in gemv_dense.cuh. */
static uint32_t slots_of(cuda_device *d, const gemm_args &a, uint32_t n_columns, uint32_t n_raw) {
  uint32_t n = a.gated ? 2 : GEMV_SPLITS_MAX / a.n_splits, n_tiles = gemv_tiles(a), n_spans = w8a8_spans_of(a);
  while (n > 1 && !a.gated && bytes_of(a.type, n, a.n_splits, n_spans, n_columns, n_raw) > GEMV_SHARED_BYTES_MAX) n--;
  while (n_raw > 0 && !a.gated && (n + 1) * a.n_splits <= GEMV_WARPS_MAX &&
         n_tiles > n * d->n_multiprocessors / (a.n_weights == 1 && !a.raw.is_there ? 1 : 2) &&
         bytes_of(a.type, n + 1, a.n_splits, n_spans, n_columns, n_raw) <= GEMV_SHARED_BYTES_MAX)
    n++;
  return n;
}

/* args NULL: sets the kernel up. */
template <int T, int NT, int ROWS, bool GATED>
static weft_status start_gemv(cuda_device *d, const gemm_args *args) {
  auto kernel = w8a8_gemv_kernel<T, NT, ROWS, GATED>;
  if (args == NULL) return gemv_set_up(d, (const void *)kernel);
  const gemm_args &a = *args;
  uint32_t n_columns = ROWS == ROWS_RAW_ONE ? 1 : 8 * NT, n_raw = ROWS != ROWS_PREPARED ? a.n_rows : 0;
  uint32_t n_slots = slots_of(d, a, n_columns, n_raw), n_warps = n_slots * a.n_splits;
  uint32_t n_groups = cuda_ceil(gemv_tiles(a), GATED ? 1 : n_slots);
  uint32_t bytes = bytes_of(T, n_slots, a.n_splits, w8a8_spans_of(a), n_columns, n_raw);
  cuda_start(d, kernel, gemv_blocks_of(d, n_groups, n_warps, bytes), 32 * n_warps, bytes, a, n_groups);
  return cuda_launched(d, "a product of few rows in 8 bits");
}

template <int T, int NT, int ROWS>
static weft_status launch_gemv(cuda_device *d, const gemm_args *args) {
  if (args != NULL)
    return args->gated ? start_gemv<T, NT, ROWS, true>(d, args) : start_gemv<T, NT, ROWS, false>(d, args);
  weft_status status = start_gemv<T, NT, ROWS, true>(d, NULL);
  return status == WEFT_OK ? start_gemv<T, NT, ROWS, false>(d, NULL) : status;
}

/* args NULL: sets the kernels of the type up. */
template <int T>
static weft_status launch_for_rows(cuda_device *d, const gemm_args *args) {
  if constexpr (!w8a8_takes(T)) {
    return args == NULL ? WEFT_OK : WEFT_E_UNSUPPORTED;
  } else if (args == NULL) {
    weft_status status = launch_gemv<T, 1, ROWS_RAW_ONE>(d, NULL);
    if (status == WEFT_OK) status = launch_gemv<T, 1, ROWS_RAW>(d, NULL);
    if (status == WEFT_OK) status = launch_gemv<T, 1, ROWS_PREPARED>(d, NULL);
    if (status == WEFT_OK) status = launch_gemv<T, 2, ROWS_PREPARED>(d, NULL);
    if constexpr (TAKES_TILED)
      if (status == WEFT_OK) status = launch_gemv<T, 4, ROWS_PREPARED>(d, NULL);
    return status;
  } else if (args->raw.x != NULL) {
    return args->n_rows == 1 ? launch_gemv<T, 1, ROWS_RAW_ONE>(d, args) : launch_gemv<T, 1, ROWS_RAW>(d, args);
  } else {
    if constexpr (TAKES_TILED)
      if (args->n_rows > 16) return launch_gemv<T, 4, ROWS_PREPARED>(d, args);
    return args->n_rows <= 8 ? launch_gemv<T, 1, ROWS_PREPARED>(d, args) : launch_gemv<T, 2, ROWS_PREPARED>(d, args);
  }
}

weft_status w8a8_gemv(cuda_device *d, const gemm_args *args) {
  if (args->ids != NULL) return w8a8_gemv_gate_up(d, args);
  return dispatch_packed_type(args->type, [&](auto type) { return launch_for_rows<decltype(type)::value>(d, args); });
}

weft_status w8a8_gemv_setup(cuda_device *d) {
  weft_status status = each_packed_type([&](auto type) { return launch_for_rows<decltype(type)::value>(d, NULL); });
  if (status == WEFT_OK) status = w8a8_gemv_gate_up_setup(d);
  return status == WEFT_OK ? w8a8_gemv_down_setup(d) : status;
}
