/* SPDX-License-Identifier: MIT */
/* What the portable GEMM of 16 bits (gemm.cuh) and of 8 bits (w8a8_gemm.cuh) share: the sizes of an item, which items a
 * block takes, and how a stage of packed weights comes into shared memory.
 *
 * A work item is some row tiles of the weights times 8 NT rows. A stage is 128 inputs of it. Each of four warps has an
 * equal part of the row tiles times all rows, so codes are made operands once; with two of them an operand b, which
 * ldmatrix fetches, is used twice.
 *
 *   wide    128 outputs x 64 rows, two row tiles to a warp
 *   narrow   64 outputs x 32 rows, one row tile to a warp: more items, for few rows
 *   thin     64 outputs x 16 rows, the same, with more blocks to a multiprocessor: for jobs of few rows
 *
 * A block is persistent, and its ring does not end with an item: the first stages of the next one are on their way
 * while the last ones of an item are multiplied (stage_cursor). */
#ifndef WEFT_KERNELS_CUDA_PORTABLE_GEMM_TILE_CUH
#define WEFT_KERNELS_CUDA_PORTABLE_GEMM_TILE_CUH

#include "kernels/cuda/gemm/call_tiles.cuh"
#include "kernels/cuda/portable/tile.cuh"

enum { TILE_WIDE, TILE_NARROW, TILE_THIN };

/* X_UNIT: bytes that eight rows have of 128 inputs. */
template <int T, int SIZE, uint32_t X_UNIT>
struct gemm_tile {
  static constexpr packed_shape f = packed_shape_of(T);
  static constexpr bool wide = SIZE == TILE_WIDE;
  static constexpr uint32_t threads = 128, tiles = wide ? 8 : 4, per_warp = tiles / 4; /* row tiles */
  static constexpr uint32_t fits = wide ? 2 : SIZE == TILE_NARROW ? 4 : 5;             /* on a multiprocessor */
  static constexpr uint32_t nt = wide ? 8 : SIZE == TILE_NARROW ? 4 : 2, rows = 8 * nt;
  /* Up to so many eights of rows, an item is multiplied as a smaller one. */
  static constexpr uint32_t few = nt > 2 ? nt / 2 : nt;
  static constexpr uint32_t w_tile = f.codes + f.high + f.scales, w_stage = tiles * w_tile;
  static constexpr uint32_t x_stage = nt * X_UNIT, stage = w_stage + x_stage;
  static constexpr uint32_t budget = wide ? PORTABLE_SHARED_BYTES_MOST : PORTABLE_SHARED_BYTES_MOST / 2 & ~1023u;
  static constexpr uint32_t most = SIZE == TILE_THIN ? 3 : 4;
  static constexpr uint32_t fit = budget / stage, stages = fit > most ? most : fit, bytes = stages * stage;
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

/* The job of item number `index`, or of the last one. Without jobs: all rows. */
static __device__ __forceinline__ gemm_job job_at(const gemm_args &a, const tile_items &items, uint32_t index) {
  gemm_job all = {0, 0, a.n_rows};
  return a.jobs != NULL ? a.jobs[min(index, items.n - 1) / items.n_groups / items.n_parts] : all;
}

template <class S>
static __device__ __forceinline__ tile_item item_at(const tile_items &items, uint32_t index, const gemm_job &job) {
  uint32_t first = index / items.n_groups % items.n_parts * S::rows;
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

/* The size of items with which the multiprocessors are done first. Two wide items that one has at once count half as
 * much again as four narrow ones: on an H200 they take 45 us of 2816 inputs in Q4_K, and the narrow ones 34. */
static inline int tile_size_of(const cuda_device *d, const gemm_args &a) {
  uint32_t n_tiles = tiles_of(a);
  uint64_t n = d->n_multiprocessors;
  if (a.jobs != NULL) return a.job_rows > 32 ? TILE_WIDE : a.job_rows > 16 ? TILE_NARROW : TILE_THIN;
  uint64_t wide = (uint64_t)cuda_ceil(n_tiles, 8) * cuda_ceil(a.n_rows, 64),
           narrow = (uint64_t)cuda_ceil(n_tiles, 4) * cuda_ceil(a.n_rows, 32);
  if (a.n_rows > 32 && (wide + 2 * n - 1) / (2 * n) * 3 <= (narrow + 4 * n - 1) / (4 * n) * 2) return TILE_WIDE;
  return a.n_rows > 16 ? TILE_NARROW : TILE_THIN;
}

/* ---- stages of weights ----------------------------------------------------------------------------------- */

template <int T>
static __device__ __forceinline__ bool is_tail_unit_of(const gemm_args &a, uint32_t unit) {
  return packed_shape_of(T).unit == 128 && a.is_tail != 0 && unit + 1 == a.n_units;
}

/* Where the 16 bytes at `at` of a stage of weights lie in the first unit of their row tile. In types with super-blocks
 * a stage has the codes and high bits of half of one, and all its scales. */
template <int T>
static __device__ __forceinline__ uint32_t piece_source(uint32_t at) {
  constexpr packed_shape f = packed_shape_of(T);
  if (f.unit == 128 || at < f.codes) return at;
  return at + f.codes + (at < f.codes + f.high ? 0 : f.high);
}

/* How much further they lie in the second half of a super-block. */
template <int T>
static __device__ __forceinline__ uint32_t piece_step(uint32_t at) {
  constexpr packed_shape f = packed_shape_of(T);
  return at < f.codes ? f.codes : at < f.codes + f.high ? f.high : 0;
}

/* The pieces of 16 bytes of a stage of weights that a thread copies, in unit 0 of an item: looked up once for it, since
 * with each stage that would be a large part of what a block does. */
template <class S>
struct weight_pieces {
  static constexpr uint32_t of_tile = S::w_tile / 16, all = S::tiles * of_tile, n = (all + S::threads - 1) / S::threads;
  const uint8_t *from[n];
};

template <int T, class S>
static __device__ __forceinline__ void find_pieces(const gemm_args &a, const tile_item &item, weight_pieces<S> &p) {
#pragma unroll
  for (uint32_t i = 0; i < p.n; i++) {
    uint32_t piece = min(threadIdx.x + i * S::threads, p.all - 1);
    weight_tile t = find_tile(a, item.tile + piece / p.of_tile);
    const gemm_weight &weight = a.weight[t.w];
    uint64_t tile = (uint64_t)item.matrix * weight.n_tiles + min(t.tile, weight.n_tiles - 1);
    p.from[i] = weight.data + PACKED_HEADER_BYTES + tile * a.tile_bytes + piece_source<T>(piece % p.of_tile * 16);
  }
}

/* Starts the copies of unit `unit` of an item's row tiles. */
template <int T, class S>
static __device__ __forceinline__ void copy_weights(const gemm_args &a, uint32_t unit, uint8_t *to,
                                                    const weight_pieces<S> &p) {
  constexpr packed_shape f = packed_shape_of(T);
  uint32_t n_bytes = is_tail_unit_of<T>(a, unit) ? S::w_tile / 2 : S::w_tile;
  uint32_t further = (f.unit == 128 ? unit : unit / 2) * packed_unit_bytes(f);
#pragma unroll
  for (uint32_t i = 0; i < p.n; i++) {
    uint32_t piece = threadIdx.x + i * S::threads, at = piece % p.of_tile * 16;
    const uint8_t *from = p.from[i] + further;
    if (f.unit == 256 && unit % 2 != 0) from += piece_step<T>(at);
    if (piece < p.all && at < n_bytes) cp_async_16(shared_address(to) + piece * 16, from);
  }
}

/* The stage that is copied next: unit `unit` of item number `index`, where it exists; and the job of the block's item
 * behind that one, which is loaded an item before it is needed. */
template <class S>
struct stage_cursor {
  uint32_t index, unit;
  tile_item item;
  gemm_job next;
  weight_pieces<S> pieces;
};

/* Goes to the block's first item from number `index` on that has rows. ahead.next: the job of that number. */
template <int T, class S>
static __device__ __forceinline__ void seek_item(const gemm_args &a, const tile_items &items, uint32_t index,
                                                 stage_cursor<S> &ahead) {
  ahead.unit = 0;
  for (; index < items.n; index += gridDim.x) {
    ahead.item = item_at<S>(items, index, ahead.next);
    ahead.next = job_at(a, items, index + gridDim.x);
    if (ahead.item.n > 0) break;
  }
  ahead.index = index;
  if (index < items.n) find_pieces<T, S>(a, ahead.item, ahead.pieces);
}

/* Starts the copies of the cursor's stage, as one group, and moves it on. X_UNIT as above. */
template <int T, class S, uint32_t X_UNIT>
static __device__ __forceinline__ void copy_stage(const gemm_args &a, const tile_items &items, uint8_t *to,
                                                  stage_cursor<S> &ahead) {
  if (ahead.index < items.n) {
    copy_weights<T, S>(a, ahead.unit, to, ahead.pieces);
    const uint8_t *rows = (const uint8_t *)a.x + ((uint64_t)ahead.unit * a.x_tiles + ahead.item.first / 8) * X_UNIT;
    copy_bytes(to + S::w_stage, rows, (ahead.item.n + 7) / 8 * X_UNIT, threadIdx.x, S::threads);
    if (++ahead.unit == a.n_units) seek_item<T, S>(a, items, ahead.index + gridDim.x, ahead);
  }
  cp_async_commit();
}

/* Multiplies all items of a block. multiply(item, step) does one of them: step() is called once for each of its units,
 * and gives the stage that has this unit. */
template <int T, class S, uint32_t X_UNIT, class F>
static __device__ __forceinline__ void multiply_items(const gemm_args &a, uint8_t *memory, F &&multiply) {
  tile_items items = count_items<S>(a);
  stage_cursor<S> ahead;
  uint32_t at = 0;
  if (items.n == 0) return;
  ahead.next = job_at(a, items, blockIdx.x);
  seek_item<T, S>(a, items, blockIdx.x, ahead);
  for (uint32_t i = 0; i + 1 < S::stages; i++) copy_stage<T, S, X_UNIT>(a, items, memory + i * S::stage, ahead);
  auto step = [&]() {
    ring_step<S::stages>();
    uint32_t before = at == 0 ? S::stages - 1 : at - 1, now = at;
    copy_stage<T, S, X_UNIT>(a, items, memory + before * S::stage, ahead);
    at = at + 1 == S::stages ? 0 : at + 1;
    return (const uint8_t *)(memory + now * S::stage);
  };
#pragma unroll 1
  for (uint32_t index = blockIdx.x; index < items.n; index += gridDim.x) {
    const tile_item item = item_at<S>(items, index, job_at(a, items, index)); /* the cache has the job */
    if (item.n > 0) multiply(item, step);
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
