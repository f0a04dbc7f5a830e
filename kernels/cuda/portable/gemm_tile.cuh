/* SPDX-License-Identifier: MIT */
/* What the portable GEMM of 16 bits (gemm.cuh) and of 8 bits (w8a8_gemm.cuh) share: the sizes of an item, which items a
 * block takes, and how a stage of packed weights comes into shared memory.
 *
 * A work item is some row tiles of the weights times 8 NT rows. A stage is 128 inputs of it. Each warp has an equal
 * part of the row tiles times all rows, so codes are made operands once; with two of them an operand b, which ldmatrix
 * fetches, is used twice.
 *
 *   wide    128 outputs x 64 rows, two row tiles to a warp; in 8 bits, where making operands takes more time than
 *           products do, one, so that sixteen warps share a multiprocessor and not eight
 *   narrow   64 outputs x 32 rows, one row tile to a warp: more items, for few rows
 *   thin     64 outputs x 16 rows, the same, with more blocks to a multiprocessor: for jobs of few rows
 *   split    32 outputs x 32 rows, in 8 bits: for products that have a narrow item or less for each multiprocessor
 *
 * Split items have four teams of warps that take spans of the inputs in turn, since such items are few, and a scheduler
 * with one warp waits for it. A team has stages of its own beside those of the others, and the integers of its spans go
 * to the team that adds them, in the order of the spans.
 *
 * A block is persistent, and its ring does not end with an item: the first stages of the next one are on their way
 * while the last ones of an item are multiplied (stage_cursor). */
#ifndef WEFT_KERNELS_CUDA_PORTABLE_GEMM_TILE_CUH
#define WEFT_KERNELS_CUDA_PORTABLE_GEMM_TILE_CUH

#include "kernels/cuda/gemm/call_tiles.cuh"
#include "kernels/cuda/gemm/w8a8.h"
#include "kernels/cuda/portable/tile.cuh"

enum { TILE_WIDE, TILE_NARROW, TILE_THIN, TILE_SPLIT /* of 8 bits alone */ };

/* X_UNIT: bytes that eight rows have of 128 inputs. */
template <int T, int SIZE, uint32_t X_UNIT>
struct gemm_tile {
  static constexpr packed_shape f = packed_shape_of(T);
  static constexpr bool wide = SIZE == TILE_WIDE, eight = X_UNIT == 1024, /* 8 bits */
      thin = SIZE == TILE_THIN, split = SIZE == TILE_SPLIT;
  static constexpr uint32_t tiles = wide ? 8 : split ? 2 : 4, per_warp = wide && !eight ? 2 : 1; /* row tiles */
  static constexpr uint32_t threads = 32 * tiles / per_warp;                                     /* of a team */
  static constexpr uint32_t nt = wide ? 8 : thin ? 2 : 4, rows = 8 * nt;
  /* Up to so many eights of rows, an item is multiplied as a smaller one: half of it, or three quarters. */
  static constexpr uint32_t few = nt > 2 ? nt / 2 : nt, most_of = nt > 4 ? nt / 4 * 3 : few;
  static constexpr uint32_t w_tile = f.codes + f.high + f.scales, w_stage = tiles * w_tile;
  static constexpr uint32_t of_tile = threads / tiles; /* threads that copy a row tile */
  static constexpr uint32_t x_stage = nt * X_UNIT;
  /* In 8 bits the scales of the rows come with a stage, and the steps of the row tiles behind them. */
  static constexpr uint32_t scales_at = w_stage + x_stage, steps_at = scales_at + nt * 32;
  static constexpr uint32_t stage = eight ? steps_at + tiles * W8A8_STEPS_BYTES : scales_at;          /* of a team */
  static constexpr uint32_t teams = split ? 4 : 1, given = teams == 1 ? 0 : teams * tiles * nt * 512; /* integers */
  static constexpr uint32_t ring_stage = teams * stage, most = thin || split ? 3 : 4;
  static constexpr uint32_t half = PORTABLE_SHARED_BYTES_MOST / 2 & ~1023u;
  static constexpr uint32_t budget = wide || split ? PORTABLE_SHARED_BYTES_MOST : half;
  static constexpr uint32_t fit = (budget - given) / ring_stage, stages = fit > most ? most : fit;
  static constexpr uint32_t ring_bytes = stages * ring_stage, bytes = ring_bytes + given;
  static constexpr uint32_t fits = wide || split         ? 2
                                   : SIZE == TILE_NARROW ? 4
                                   : eight               ? 6
                                                         : 5; /* on a multiprocessor */
  static_assert(stages >= 2, "two stages at least");
};

/* The thread's team, and its number in it. */
template <class S>
static __device__ __forceinline__ uint32_t team_of(void) {
  return S::teams == 1 ? 0 : threadIdx.x / S::threads;
}

template <class S>
static __device__ __forceinline__ uint32_t own_thread(void) {
  return S::teams == 1 ? threadIdx.x : threadIdx.x % S::threads;
}

/* The unit that a team multiplies at a step of an item, and the number of steps, which all teams make. */
template <class S>
static __device__ __forceinline__ uint32_t unit_of_step(uint32_t step) {
  return S::teams == 1 ? step : (step / 2 * S::teams + team_of<S>()) * 2 + step % 2;
}

template <class S>
static __device__ __forceinline__ uint32_t steps_of(const gemm_args &a) {
  return S::teams == 1 ? a.n_units : (w8a8_spans_of(a) + S::teams - 1) / S::teams * 2;
}

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
  if (a.is_w8a8 && a.n_rows > 16 && narrow <= n) return TILE_SPLIT;
  if (a.n_rows > 32 && (wide + 2 * n - 1) / (2 * n) * 3 <= (narrow + 4 * n - 1) / (4 * n) * 2) return TILE_WIDE;
  return a.n_rows > 16 ? TILE_NARROW : TILE_THIN;
}

/* ---- stages of weights ----------------------------------------------------------------------------------- */

template <int T>
static __device__ __forceinline__ bool is_tail_unit_of(const gemm_args &a, uint32_t unit) {
  return packed_shape_of(T).unit == 128 && a.is_tail != 0 && unit + 1 == a.n_units;
}

/* Starts the copies of `bytes` bytes of a row tile by the L threads that have it. to and from are a thread's own, 16
 * bytes behind those of the thread before it: what is added to them is known when this is compiled, and so no
 * instruction of its own. */
template <uint32_t L, uint32_t bytes>
static __device__ __forceinline__ void copy_section(uint32_t to, const uint8_t *from, uint32_t lane) {
#pragma unroll
  for (uint32_t at = 0; at < bytes; at += 16 * L)
    if (at + 16 * L <= bytes || at + 16 * lane < bytes) cp_async_16(to + at, from + at);
}

/* The stage that is copied next: unit `unit` of item number `index`, where both exist; and the job of the block's item
 * behind that one, which is loaded an item before it is needed. */
struct stage_cursor {
  uint32_t index, unit;
  tile_item item;
  gemm_job next;
  const uint8_t *weights, *rows; /* the thread's own bytes: of its row tile's unit 0, and of the stage's rows */
  int32_t rows_left;             /* bytes of the stage's rows from these on */
  const uint8_t *scales; /* 8 bits: its 16 bytes of the rows' scales or of the row tiles' steps, in span 0; or NULL */
  uint32_t scales_step;  /* how far behind those of the next span lie */
};

/* Finds the bytes of an item's first stage that a thread copies: threads have a row tile together, and all rows. */
template <class S, uint32_t X_UNIT>
static __device__ __forceinline__ void find_bytes(const gemm_args &a, stage_cursor &ahead) {
  uint32_t own = own_thread<S>();
  weight_tile t = find_tile(a, ahead.item.tile + own / S::of_tile);
  const gemm_weight &weight = a.weight[t.w];
  uint64_t tile = (uint64_t)ahead.item.matrix * weight.n_tiles + min(t.tile, weight.n_tiles - 1);
  ahead.weights = weight.data + PACKED_HEADER_BYTES + tile * a.tile_bytes + own % S::of_tile * 16;
  ahead.rows = (const uint8_t *)a.x + (uint64_t)(ahead.item.first / 8) * X_UNIT + own * 16;
  if constexpr (S::teams > 1) ahead.rows += (uint64_t)ahead.unit * a.x_tiles * X_UNIT;
  ahead.rows_left = (int32_t)((ahead.item.n + 7) / 8 * X_UNIT) - (int32_t)own * 16;
}

/* The scales of the rows are copied by the first warp, the steps of the row tiles by the second one. */
template <class S>
static __device__ __forceinline__ void find_scales(const gemm_args &a, stage_cursor &ahead) {
  uint32_t n_spans = w8a8_spans_of(a), lane = threadIdx.x % 32, own = own_thread<S>();
  ahead.scales = NULL;
  if (own < 32) {
    ahead.scales_step = a.x_tiles * 32;
    if (lane < (ahead.item.n + 7) / 8 * 2)
      ahead.scales = (const uint8_t *)a.x + w8a8_scales_at(n_spans, a.x_tiles) + ahead.item.first * 4 + lane * 16;
  } else if (own < 32 + 2 * S::tiles) {
    weight_tile t = find_tile(a, ahead.item.tile + lane / 2);
    const gemm_weight &weight = a.weight[t.w];
    uint64_t tile = (uint64_t)ahead.item.matrix * weight.n_tiles + min(t.tile, weight.n_tiles - 1);
    ahead.scales_step = W8A8_STEPS_BYTES;
    ahead.scales = weight.steps + tile * n_spans * W8A8_STEPS_BYTES + lane % 2 * 16;
  }
}

/* Starts the copies of the cursor's weights. In types with super-blocks a stage has the codes and high bits of half of
 * one, and all its scales. */
template <int T, class S>
static __device__ __forceinline__ void copy_weights(const gemm_args &a, uint8_t *stage, const stage_cursor &ahead) {
  constexpr packed_shape f = packed_shape_of(T);
  constexpr uint32_t L = S::of_tile;
  uint32_t own = own_thread<S>(), lane = own % L, to = shared_address(stage) + own / L * S::w_tile + lane * 16;
  if constexpr (f.unit == 256) {
    uint32_t half = ahead.unit % 2;
    const uint8_t *from = ahead.weights + ahead.unit / 2 * packed_unit_bytes(f);
    copy_section<L, f.codes>(to, from + half * f.codes, lane);
    if constexpr (f.high > 0) copy_section<L, f.high>(to + f.codes, from + 2 * f.codes + half * f.high, lane);
    copy_section<L, f.scales>(to + f.codes + f.high, from + 2 * (f.codes + f.high), lane);
  } else if (is_tail_unit_of<T>(a, ahead.unit)) {
    copy_section<L, S::w_tile / 2>(to, ahead.weights + ahead.unit * S::w_tile, lane);
  } else {
    copy_section<L, S::w_tile>(to, ahead.weights + ahead.unit * S::w_tile, lane);
  }
}

/* Goes to the block's first item from number `index` on that has rows. ahead.next: the job of that number. */
template <class S, uint32_t X_UNIT>
static __device__ __forceinline__ void seek_item(const gemm_args &a, const tile_items &items, uint32_t index,
                                                 stage_cursor &ahead) {
  ahead.unit = unit_of_step<S>(0);
  for (; index < items.n; index += gridDim.x) {
    ahead.item = item_at<S>(items, index, ahead.next);
    ahead.next = job_at(a, items, index + gridDim.x);
    if (ahead.item.n > 0) break;
  }
  ahead.index = index;
  if (index < items.n) {
    find_bytes<S, X_UNIT>(a, ahead);
    if constexpr (S::eight) find_scales<S>(a, ahead);
  }
}

/* Starts the copies of the cursor's stage, as one group, and moves it on. The scales of a span come with both of its
 * units, of which the second one may not exist. X_UNIT as above. */
template <int T, class S, uint32_t X_UNIT>
static __device__ __forceinline__ void copy_stage(const gemm_args &a, const tile_items &items, uint8_t *to,
                                                  stage_cursor &ahead) {
  if (ahead.index < items.n) {
    uint32_t own = own_thread<S>(), rows = shared_address(to) + S::w_stage + own * 16;
    if (S::teams == 1 || ahead.unit < a.n_units) {
      copy_weights<T, S>(a, to, ahead);
#pragma unroll
      for (uint32_t at = 0; at < S::x_stage; at += 16 * S::threads)
        if ((int32_t)at < ahead.rows_left) cp_async_16(rows + at, ahead.rows + at);
    }
    if constexpr (S::eight) {
      uint32_t at = own < 32 ? S::scales_at + own * 16 : S::steps_at + (own - 32) * 16;
      const uint8_t *from = ahead.scales + (uint64_t)(ahead.unit / 2) * ahead.scales_step;
      if (ahead.scales != NULL && (S::teams == 1 || ahead.unit / 2 < w8a8_spans_of(a)))
        cp_async_16(shared_address(to) + at, from);
    }
    uint32_t apart = S::teams == 1 || ahead.unit % 2 == 0 ? 1 : 2 * S::teams - 1; /* units, to the next one */
    ahead.rows += (uint64_t)apart * a.x_tiles * X_UNIT;
    ahead.unit += apart;
    if (ahead.unit >= S::teams * steps_of<S>(a)) seek_item<S, X_UNIT>(a, items, ahead.index + gridDim.x, ahead);
  }
  cp_async_commit();
}

/* Multiplies all items of a block. multiply(item, step) does one of them: step() is called once for each of its steps
 * (steps_of), and gives the teams' stages. */
template <int T, class S, uint32_t X_UNIT, class F>
static __device__ __forceinline__ void multiply_items(const gemm_args &a, uint8_t *memory, F &&multiply) {
  tile_items items = count_items<S>(a);
  stage_cursor ahead;
  uint32_t at = 0;
  if (items.n == 0) return;
  ahead.next = job_at(a, items, blockIdx.x);
  seek_item<S, X_UNIT>(a, items, blockIdx.x, ahead);
  uint8_t *own = memory + team_of<S>() * S::stage;
  for (uint32_t i = 0; i + 1 < S::stages; i++) copy_stage<T, S, X_UNIT>(a, items, own + i * S::ring_stage, ahead);
  auto step = [&]() {
    ring_step<S::stages>();
    uint32_t before = at == 0 ? S::stages - 1 : at - 1, now = at;
    copy_stage<T, S, X_UNIT>(a, items, own + before * S::ring_stage, ahead);
    at = at + 1 == S::stages ? 0 : at + 1;
    return (const uint8_t *)(memory + now * S::ring_stage);
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
