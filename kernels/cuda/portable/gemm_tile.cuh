/* SPDX-License-Identifier: MIT */
/* What the portable GEMM of 16 bits (gemm.cu) and of 8 bits (w8a8_gemm.cu) share: the sizes of an item, which items a
 * block takes, and how a stage of packed weights comes into shared memory.
 *
 * A work item is some row tiles of the weights times 8 NT rows. A stage is 128 inputs of it. Each of four warps has an
 * equal part of the row tiles times all rows, so codes are made operands once; with two of them an operand b, which
 * ldmatrix fetches, is used twice.
 *
 *   wide    128 outputs x 64 rows, two row tiles to a warp
 *   narrow   64 outputs x 32 rows, one row tile to a warp: more items, for few rows */
#ifndef WEFT_KERNELS_CUDA_PORTABLE_GEMM_TILE_CUH
#define WEFT_KERNELS_CUDA_PORTABLE_GEMM_TILE_CUH

#include "kernels/cuda/gemm/call_tiles.cuh"
#include "kernels/cuda/portable/tile.cuh"

/* x_unit: bytes that eight rows have of 128 inputs. */
template <int T, bool WIDE, uint32_t X_UNIT>
struct gemm_tile {
  static constexpr packed_shape f = packed_shape_of(T);
  static constexpr uint32_t threads = 128, tiles = WIDE ? 8 : 4, per_warp = tiles / 4; /* row tiles */
  static constexpr uint32_t fits = WIDE ? 2 : 4;                                       /* on a multiprocessor */
  static constexpr uint32_t nt = WIDE ? 8 : 4, rows = 8 * nt;
  static constexpr uint32_t w_tile = f.codes + f.high + f.scales, w_stage = tiles * w_tile;
  static constexpr uint32_t x_stage = nt * X_UNIT, stage = w_stage + x_stage;
  static constexpr uint32_t budget = WIDE ? PORTABLE_SHARED_BYTES_MOST : PORTABLE_SHARED_BYTES_MOST / 2 & ~1023u;
  static constexpr uint32_t fit = budget / stage, stages = fit > 4 ? 4 : fit, bytes = stages * stage;
  static_assert(stages >= 2, "two stages at least");
};

/* Rows [first, first + n) times row tiles from `tile` on; of the matrix of a job. n 0: no work. */
typedef struct tile_item {
  uint32_t matrix, first, n, tile;
} tile_item;

/* Items of a call: for each `rows` rows of all rows, or of each job, all groups of `tiles` row tiles. */
struct tile_items {
  uint32_t n, n_groups, n_parts; /* parts of a job */
};

template <class S>
static __device__ __forceinline__ tile_items count_items(const gemm_args &a) {
  tile_items items;
  items.n_groups = (tiles_of(a) + S::tiles - 1) / S::tiles;
  items.n_parts = a.jobs != NULL ? (a.job_rows + S::rows - 1) / S::rows : (a.n_rows + S::rows - 1) / S::rows;
  items.n = items.n_groups * items.n_parts * (a.jobs != NULL ? *a.n_jobs : 1);
  return items;
}

template <class S>
static __device__ __forceinline__ tile_item item_at(const gemm_args &a, const tile_items &items, uint32_t index) {
  uint32_t at = index / items.n_groups, first = at % items.n_parts * S::rows;
  gemm_job job = {0, 0, a.n_rows};
  if (a.jobs != NULL) job = a.jobs[at / items.n_parts];
  return {job.matrix, job.first + first, first < job.n ? min(S::rows, job.n - first) : 0,
          index % items.n_groups * S::tiles};
}

/* Blocks of a launch: as many as the card holds at once at the least, one to an item at the most. */
template <class S>
static inline uint32_t blocks_of(const cuda_device *d, const gemm_args &a) {
  uint64_t n_jobs = a.jobs != NULL ? a.jobs_max : 1, rows = a.jobs != NULL ? a.job_rows : a.n_rows;
  uint64_t n_items = n_jobs * cuda_ceil((uint32_t)rows, S::rows) * cuda_ceil(tiles_of(a), S::tiles);
  uint64_t n_fit = (uint64_t)d->n_multiprocessors * S::fits;
  return (uint32_t)(n_items < n_fit ? n_items : n_fit);
}

/* The size of items with which the multiprocessors are done first. Two wide items that one has at once take it half as
 * long again as four narrow ones: on an H200 61 us of 2816 inputs in Q4_K, and two narrow ones 34. */
static inline bool is_wide_call(const cuda_device *d, const gemm_args &a) {
  uint32_t n_tiles = tiles_of(a);
  uint64_t n = d->n_multiprocessors;
  if (a.jobs != NULL) return a.job_rows > 32;
  uint64_t wide = (uint64_t)cuda_ceil(n_tiles, 8) * cuda_ceil(a.n_rows, 64),
           narrow = (uint64_t)cuda_ceil(n_tiles, 4) * cuda_ceil(a.n_rows, 32);
  return a.n_rows > 32 && (wide + 2 * n - 1) / (2 * n) * 3 <= (narrow + 4 * n - 1) / (4 * n) * 2;
}

/* ---- stages of weights ----------------------------------------------------------------------------------- */

template <int T>
static __device__ __forceinline__ bool is_tail_unit_of(const gemm_args &a, uint32_t unit) {
  return packed_shape_of(T).unit == 128 && a.is_tail != 0 && unit + 1 == a.n_units;
}

/* Where 16 bytes of a stage of weights lie in their row tile. In types with super-blocks a stage has the codes and high
 * bits of half of one, and all its scales. */
template <int T>
static __device__ __forceinline__ uint32_t stage_source(uint32_t unit, uint32_t at) {
  constexpr packed_shape f = packed_shape_of(T);
  if (f.unit == 128) return unit * packed_unit_bytes(f) + at;
  uint32_t half = unit % 2, from = unit / 2 * packed_unit_bytes(f) + at;
  if (at < f.codes) return from + half * f.codes;
  return from + f.codes + (at < f.codes + f.high ? half * f.high : f.high);
}

/* Starts the copies of unit `unit` of an item's row tiles. tile_of(i): row tile i of the item. */
template <int T, class S, class F>
static __device__ __forceinline__ void copy_weights(const gemm_args &a, uint32_t unit, uint8_t *to, F &&tile_of) {
  constexpr uint32_t pieces = S::w_tile / 16;
  uint32_t n_bytes = is_tail_unit_of<T>(a, unit) ? S::w_tile / 2 : S::w_tile;
#pragma unroll
  for (uint32_t i = threadIdx.x; i < S::tiles * pieces; i += S::threads) {
    uint32_t own = i / pieces, at = i % pieces * 16;
    if (at < n_bytes) cp_async_16(shared_address(to) + own * S::w_tile + at, tile_of(own) + stage_source<T>(unit, at));
  }
}

/* The 128 inputs of a stage. */
template <int T>
static __device__ __forceinline__ packed_block stage_block(const uint8_t *row_tile, uint32_t unit, bool tail) {
  constexpr packed_shape f = packed_shape_of(T);
  packed_block p = packed_block_of<T>(row_tile, 0, tail);
  if (f.unit == 256) {
    p.half = unit & 1u;
    p.high = row_tile + f.codes;
    p.scales = row_tile + f.codes + f.high;
  }
  return p;
}

#endif
