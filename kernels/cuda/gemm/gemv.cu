/* SPDX-License-Identifier: MIT */
/* Split-K GEMV for up to 16 rows, in the portable set up to 32: a warp takes 16 outputs and one split of the inputs;
 * the sums of the splits are reduced in shared memory, in the order of gemm.h (reduce_split_k of gemv.cuh).
 *
 *   weights  every warp has a ring of a few stages of its own, which bulk async copies fill
 *   block    its warps are (row tiles) x (splits), for 8 NT rows of x. Blocks are persistent: a block goes on to the
 *            row tiles one grid further, whose first weights are in flight during the epilogue of the tiles before
 *   raw      up to four rows come in f32: every block runs the prologue for itself in shared memory while its first
 *            weights are in flight (a fused prologue), which saves a kernel. Blocks then have as many row tiles as a
 *            multiprocessor holds
 *   gated    a row tile of the gate and the same tile of up lie in one block, whose epilogue writes act(g) * u
 *   tall     up to eight rows and at least two row tiles for every warp of the card (the head): a warp takes a row
 *            tile with all its splits and waits for no other warp
 *
 * moe/gate_up_gemv.cu multiplies experts in the same way. A kernel holds what its call needs and no more, since it
 * runs for a few microseconds, in which its instructions have to come from memory too. */
#include "kernels/cuda/gemm/gemv.cuh"
#include "kernels/cuda/gemm/gemv_dense.cuh"

enum { TALL_WARPS = 8 };

/* ---- many row tiles: a warp has whole ones --------------------------------------------------------------- */

/* The next piece whose copy a warp will issue. */
typedef struct tall_cursor {
  uint32_t tile, unit;
} tall_cursor;

template <int T>
static __device__ __forceinline__ void issue_tall(const gemm_args &a, gemv_ring &ring, uint32_t stage,
                                                  tall_cursor &at) {
  if (at.tile >= a.weight[0].n_tiles) return;
  issue_piece<T>(a, ring, stage, a.weight[0].data + PACKED_HEADER_BYTES + (uint64_t)at.tile * a.tile_bytes, at.unit);
  at.unit += gemv_units(T);
  if (at.unit >= a.n_units) at.unit = 0, at.tile += gridDim.x * TALL_WARPS;
}

/* No warp waits for another. ONE: of one row, which comes raw; others come after the prologue. */
template <int T, bool ONE>
static __global__ void __launch_bounds__(32 * TALL_WARPS, GEMV_WARPS_MAX / TALL_WARPS)
    gemv_tall_kernel(const __grid_constant__ gemm_args a) {
  extern __shared__ __align__(128) uint8_t memory[]; /* stages of the warps, the raw row */
  __shared__ __align__(8) uint64_t filled[TALL_WARPS * GEMV_STAGES];
  __shared__ uint32_t most_of[TALL_WARPS];
  __shared__ int scale_exponent[1];
  constexpr int n = ONE ? 2 : 4;
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = blockIdx.x * TALL_WARPS + warp;
  gemv_ring ring =
      ring_init(memory + warp * gemv_ring_bytes(T), filled + warp * GEMV_STAGES, GEMV_STAGES, gemv_stage_bytes(T));
  uint4 *raw = (uint4 *)(void *)(memory + TALL_WARPS * gemv_ring_bytes(T));
  tall_cursor ahead = {tile, 0};
  for (uint32_t stage = 0; stage < GEMV_STAGES; stage++) issue_tall<T>(a, ring, stage, ahead);
  opened_rows opened = open_rows<T, ONE, ONE>(a, most_of, raw, scale_exponent);
  x_source<1> x = rows_of_lane<ONE, ONE>(a, raw, a.n_rows);
  float unscale[2], w_unscale = weight_unscale_of(a.weight[0], 0, opened.prescale);
#pragma unroll
  for (uint32_t i = 0; i < 2; i++)
    unscale[i] = ONE ? power_of_two(-scale_exponent[0]) : a.x_unscale[min(lane % 4 * 2 + i, a.n_rows - 1)];
  for (; tile < a.weight[0].n_tiles; tile += gridDim.x * TALL_WARPS) {
    float all[n];
    multiply_tile<T, ONE, ONE>(
        a, x, opened.powers, ring, [&](uint32_t stage) { issue_tall<T>(a, ring, stage, ahead); }, all);
#pragma unroll
    for (int e = 0; e < n; e++) {
      uint32_t out = tile * 16 + lane / 4 + (ONE ? e : e / 2) * 8, row = lane % 4 * 2 + (ONE ? 0 : e % 2);
      if (row < a.n_rows && out < a.weight[0].n_out)
        a.weight[0].y[row * a.weight[0].y_stride + out] =
            __fmul_rn(__fmul_rn(all[e], unscale[ONE ? 0 : e % 2]), w_unscale);
    }
  }
}

bool gemv_is_tall(const cuda_device *d, const gemm_args *a) {
  return a->n_rows <= 8 && a->n_weights == 1 && a->ids == NULL && !a->gated &&
         a->weight[0].n_tiles >= 2 * GEMV_WARPS_MAX * d->n_multiprocessors;
}

/* a NULL: sets the kernel up. */
template <int T, bool ONE>
static weft_status launch_tall(cuda_device *d, const gemm_args *args) {
  uint32_t stage_bytes = TALL_WARPS * gemv_ring_bytes(T);
  if (args == NULL)
    return cuda_judge(d,
                      cudaFuncSetAttribute(gemv_tall_kernel<T, ONE>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)stage_bytes + (ONE ? GEMM_RAW_BYTES : 0)),
                      "setting up products");
  cuda_start(d, gemv_tall_kernel<T, ONE>, GEMV_WARPS_MAX / TALL_WARPS * d->n_multiprocessors, 32 * TALL_WARPS,
             stage_bytes + (ONE ? 16 * raw_stride(args->n_units) : 0), *args);
  return cuda_launched(d, "a product with a tall weight");
}

/* ---- launches -------------------------------------------------------------------------------------------- */

/* Raw rows, and weights with many row tiles. args NULL: sets the kernels of the type up. */
template <int T>
static weft_status launch_raw_or_tall(cuda_device *d, const gemm_args *args) {
  if (args == NULL) {
    weft_status status = launch_tall<T, true>(d, NULL);
    if (status == WEFT_OK) status = launch_tall<T, false>(d, NULL);
    if (status == WEFT_OK) status = launch_dense<T, 1, ROWS_RAW_ONE>(d, NULL);
    return status == WEFT_OK ? launch_dense<T, 1, ROWS_RAW>(d, NULL) : status;
  }
  if (gemv_is_tall(d, args))
    return args->raw.x != NULL ? launch_tall<T, true>(d, args) : launch_tall<T, false>(d, args);
  return args->n_rows == 1 ? launch_dense<T, 1, ROWS_RAW_ONE>(d, args) : launch_dense<T, 1, ROWS_RAW>(d, args);
}

weft_status gemv(cuda_device *d, const gemm_args *args) {
  if (args->ids != NULL) return experts_gemv_gate_up(d, args);
  if (args->raw.x == NULL && !gemv_is_tall(d, args)) return gemv_prepared(d, args);
  return dispatch_packed_type(args->type,
                              [&](auto type) { return launch_raw_or_tall<decltype(type)::value>(d, args); });
}

weft_status gemv_setup(cuda_device *d) {
  weft_status status = each_packed_type([&](auto type) { return launch_raw_or_tall<decltype(type)::value>(d, NULL); });
  return status == WEFT_OK ? gemv_prepared(d, NULL) : status;
}
