/* SPDX-License-Identifier: MIT */
/* The kernel of dense products of few rows, and its launches: gemv.cu has it for raw rows, gemv_prepared.cu for rows
 * after the prologue, since each file takes half of the time to compile. */
#ifndef WEFT_KERNELS_CUDA_GEMV_DENSE_CUH
#define WEFT_KERNELS_CUDA_GEMV_DENSE_CUH

#include "kernels/cuda/gemm/gemv.cuh"
#include "kernels/cuda/moe/experts_gemv.h"

/* Stages of a warp, at most, where blocks have room beside those of the kernel before. */
enum { DEEP_STAGES = (int)DOWN_STAGES_MAX < 4 ? (int)DOWN_STAGES_MAX : 4 };

/* A product of rows after the prologue. args NULL: sets the kernels of all types up. */
weft_status gemv_prepared(cuda_device *d, const gemm_args *args);

/* Registers of a thread, for 8 NT rows. */
constexpr int gemv_registers(int nt) {
  return nt == 1 ? 80 : nt == 2 ? 112 : 128;
}

template <int T, int NT, int ROWS, bool GATED>
static __global__ void __maxnreg__(gemv_registers(NT))
    gemv_kernel(const __grid_constant__ gemm_args a, uint32_t n_groups, uint32_t n_stages) {
  /* Stages of the warps; sums [2][row tiles of the block][splits][NT][32][4], whose halves groups use in turn; rows. */
  extern __shared__ __align__(128) uint8_t memory[];
  constexpr bool RAW = ROWS != ROWS_PREPARED, ONE = ROWS == ROWS_RAW_ONE;
  __shared__ __align__(8) uint64_t filled[GEMV_WARPS_MAX * DEEP_STAGES];
  __shared__ uint32_t most_of[GEMV_WARPS_MAX];
  __shared__ float w_unscales[2][GEMV_WARPS_MAX]; /* of row tiles: weight_unscale_of */
  __shared__ int scale_exponent[GEMM_RAW_ROWS];
  uint32_t n_warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, buffer = 0;
  uint32_t split = warp % a.n_splits, slot = warp / a.n_splits;
  uint32_t first = split * a.split_units, end = min(a.n_units, first + a.split_units), unit = first;
  gemv_ring ring = ring_init(memory + warp * n_stages * gemv_stage_bytes(T), filled + warp * n_stages, n_stages,
                             gemv_stage_bytes(T));
  float *part = (float *)(void *)(memory + n_warps * n_stages * gemv_stage_bytes(T));
  uint4 *raw = (uint4 *)(void *)(part + 2 * n_warps * NT * 128);
  bool is_last = split + 1 == a.n_splits; /* the warp of the shortest split runs the epilogue */
  dense_tile tile = find_dense<GATED>(a, blockIdx.x, slot);
  packed_header header = header_of(a.weight[tile.data != NULL ? tile.weight : 0].header);
  const uint8_t *ahead = tile.data; /* the copy of whose unit `unit` is issued next */
  uint32_t group_ahead = blockIdx.x;
  auto issue = [&](uint32_t stage) {
    if (ahead == NULL) return;
    issue_piece<T>(a, ring, stage, ahead, unit);
    unit += gemv_units(T);
    if (unit < end) return;
    unit = first;
    group_ahead += gridDim.x;
    ahead = group_ahead < n_groups ? find_dense<GATED>(a, group_ahead, slot).data : NULL;
  };
#pragma unroll 1
  for (uint32_t stage = 0; stage < n_stages; stage++) issue(stage);
  if (!RAW || !a.raw.is_there) wait_for_prior_grids();
  launch_dependent_grids();
  if (RAW)
    fused_prologue<T>(
        a, ONE ? 1 : a.n_rows, [&](uint32_t r) { return a.raw.x + r * a.raw.x_stride; }, most_of, raw, scale_exponent);
  x_source<NT> x;
#pragma unroll
  for (int n = 0; n < NT; n++) {
    uint32_t r = ONE ? 0 : min(8 * n + lane / 4, a.n_rows - 1);
    if (!RAW)
      x.prepared[n] = (const uint8_t *)a.x + (NT > 2 ? min((uint32_t)n, a.x_tiles - 1) * 2048 : x_at(a, r, lane % 4));
    if (RAW) x.raw = raw + r * raw_stride(a.n_units);
  }
  for (uint32_t group = blockIdx.x; group < n_groups; group += gridDim.x) {
    if (group != blockIdx.x) {
      uint32_t known = tile.weight;
      tile = find_dense<GATED>(a, group, slot);
      if (tile.data != NULL && tile.weight != known) header = header_of(a.weight[tile.weight].header);
    }
    int prescale = prescale_exponent(T, &header);
    if (lane == 0 && is_last && tile.data != NULL)
      w_unscales[buffer][slot] = weight_unscale_of(a.weight[tile.weight], 0, prescale);
    float *own = part + (buffer * n_warps + warp) * NT * 128;
    if (tile.data != NULL)
      multiply_split<T, NT, RAW>(a, ring, first, end, x, powers_of<T>(prescale, a.values), own, issue);
    __syncthreads(); /* it also says that the sums of the group before have been read */
    if (tile.data != NULL && is_last && (!GATED || slot == 0)) {
      epilogue_args of = {&a.weight[tile.weight], tile.tile, a.n_rows, w_unscales[buffer][slot],
                          GATED ? w_unscales[buffer][1] : 0};
      run_epilogue<NT, GATED>(a, of, own - split * NT * 128,
                              [&](uint32_t r) { return RAW ? power_of_two(-scale_exponent[r]) : a.x_unscale[r]; });
    }
    buffer ^= 1;
  }
  if (RAW && a.raw.is_there) wait_for_prior_grids(); /* who waits for this kernel waits for those before it too */
}

/* ---- launches -------------------------------------------------------------------------------------------- */

/* How many row tiles a block takes at once: a pair where they are gated. Where every block runs the prologue for
 * itself, it takes as many as a multiprocessor holds, as long as all of the card has work; or half of it, where a
 * launch for the same rows and other weights may run on the other half. */
template <int T, int NT, int ROWS>
static uint32_t slots_of(cuda_device *d, const gemm_args &a, uint32_t n_raw) {
  uint32_t n = a.gated ? 2 : GEMV_SPLITS_MAX / a.n_splits, n_tiles = gemv_tiles(a);
  while (ROWS != ROWS_PREPARED && !a.gated && (n + 1) * a.n_splits <= GEMV_WARPS_MAX &&
         n_tiles > n * d->n_multiprocessors / (a.n_weights == 1 && !a.raw.is_there ? 1 : 2) &&
         gemv_bytes<T, NT>((n + 1) * a.n_splits, n_raw, a.n_units) <= GEMV_SHARED_BYTES_MAX)
    n++;
  return n;
}

/* Stages of a warp. Where half of the multiprocessors have no block, all weights of a split are asked for before the
 * rows are there, as far as there is room: on the others the blocks of the kernel before may lie. */
template <int T, int NT>
static uint32_t stages_of(const cuda_device *d, const gemm_args &a, uint32_t n_groups, uint32_t n_warps,
                          uint32_t n_raw) {
  uint32_t n = GEMV_STAGES, n_pieces = a.split_units / gemv_units(T), stage = n_warps * gemv_stage_bytes(T);
  if (2 * n_groups > d->n_multiprocessors) return n;
  while (n < n_pieces && n < DEEP_STAGES &&
         gemv_bytes<T, NT>(n_warps, n_raw, a.n_units) + (n + 1 - GEMV_STAGES) * stage <= GEMV_SHARED_BYTES_MAX)
    n++;
  return n;
}

/* args NULL: sets the kernel up. */
template <int T, int NT, int ROWS, bool GATED>
static weft_status start_dense(cuda_device *d, const gemm_args *args) {
  static_assert(gemv_bytes<T, NT>(2 * GEMV_SPLITS_MAX, 0, 0) + (ROWS != ROWS_PREPARED ? GEMM_RAW_BYTES : 0) <=
                    GEMV_SHARED_BYTES_MAX,
                "shared memory");
  auto kernel = gemv_kernel<T, NT, ROWS, GATED>;
  if (args == NULL) return gemv_set_up(d, (const void *)kernel);
  uint32_t n_raw = ROWS != ROWS_PREPARED ? args->n_rows : 0;
  uint32_t n_slots = slots_of<T, NT, ROWS>(d, *args, n_raw), n_warps = n_slots * args->n_splits;
  uint32_t n_groups = cuda_ceil(gemv_tiles(*args), args->gated ? 1 : n_slots);
  uint32_t n_stages = stages_of<T, NT>(d, *args, n_groups, n_warps, n_raw),
           bytes = gemv_bytes<T, NT>(n_warps, n_raw, args->n_units) +
                   (n_stages - GEMV_STAGES) * n_warps * gemv_stage_bytes(T);
  cuda_start(d, kernel, gemv_blocks_of(d, n_groups, n_warps, bytes), 32 * n_warps, bytes, *args, n_groups, n_stages);
  return cuda_launched(d, "a product of few rows");
}

template <int T, int NT, int ROWS>
static weft_status launch_dense(cuda_device *d, const gemm_args *args) {
  if (args != NULL)
    return args->gated ? start_dense<T, NT, ROWS, true>(d, args) : start_dense<T, NT, ROWS, false>(d, args);
  weft_status status = start_dense<T, NT, ROWS, true>(d, NULL);
  return status == WEFT_OK ? start_dense<T, NT, ROWS, false>(d, NULL) : status;
}

#endif
