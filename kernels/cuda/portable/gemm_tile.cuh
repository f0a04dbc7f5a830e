/* SPDX-License-Identifier: MIT */
/* What the portable GEMM of 16 bits (gemm.cuh) and of 8 bits (w8a8_gemm.cuh) share: the sizes of an item, which items a
 * block takes, and how a stage of packed weights comes into shared memory.
 *
 * A work item is some row tiles of the weights times 8 NT rows. Each warp has an equal part of the row tiles times all
 * rows, so codes are made operands once; with two of them an operand b, which ldmatrix fetches, is used twice. A stage
 * is 128 inputs of an item (a unit), or 256 where that much fits: thin items would else spend a third of their
 * instructions on copies and barriers, and the scales of a super-block would come twice.
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

/* X_UNIT: bytes that eight rows have of 128 inputs. */
template <int T, int SIZE, uint32_t X_UNIT>
struct gemm_tile {
  static constexpr int size = SIZE;
  static constexpr packed_shape f = packed_shape_of(T);
  static constexpr bool wide = SIZE == TILE_WIDE, eight = X_UNIT == 1024, /* 8 bits */
      thin = SIZE == TILE_THIN, split = SIZE == TILE_SPLIT;
  static constexpr uint32_t tiles = wide ? 8 : split ? 2 : 4, per_warp = wide && !eight ? 2 : 1; /* row tiles */
  static constexpr uint32_t threads = 32 * tiles / per_warp;                                     /* of a team */
  static constexpr uint32_t nt = wide ? 8 : thin ? 2 : 4, rows = 8 * nt;
  /* Up to so many eights of rows, an item is multiplied as a smaller one: half of it, or three quarters. */
  static constexpr uint32_t few = nt > 2 ? nt / 2 : nt, most_of = nt > 4 ? nt / 4 * 3 : few;
  static constexpr bool by_blocks = f.unit == 256; /* super-blocks */
  static constexpr uint32_t units = (thin && (by_blocks || eight)) || (eight && by_blocks && !split) ? 2 : 1;
  static constexpr uint32_t w_tile =
      units == 1 ? f.codes + f.high + f.scales : W8A8_SPAN / f.unit * packed_unit_bytes(f);
  static constexpr uint32_t w_stage = tiles * w_tile;
  static constexpr uint32_t of_tile = threads / tiles; /* threads that copy a row tile */
  static constexpr uint32_t x_unit = nt * X_UNIT, x_stage = units * x_unit;
  /* In 8 bits the scales of the rows come with a stage, and the steps of the row tiles behind them. */
  static constexpr uint32_t scales_at = w_stage + x_stage, steps_at = scales_at + nt * 32;
  static constexpr uint32_t stage = eight ? steps_at + tiles * W8A8_STEPS_BYTES : scales_at;          /* of a team */
  static constexpr uint32_t teams = split ? 4 : 1, given = teams == 1 ? 0 : teams * tiles * nt * 512; /* integers */
  static constexpr uint32_t ring_stage = teams * stage, most = units == 2 ? 2 : thin || split ? 3 : 4;
  static constexpr uint32_t half = PORTABLE_SHARED_BYTES_MOST / 2 & ~1023u;
  static constexpr uint32_t budget = wide || split ? PORTABLE_SHARED_BYTES_MOST : half;
  static constexpr uint32_t fit = (budget - given) / ring_stage, stages = fit > most ? most : fit;
  static constexpr uint32_t ring_bytes = stages * ring_stage, bytes = ring_bytes + given;
  static constexpr uint32_t of_memory = (227 << 10) / (bytes + 1024), of_thin = eight ? 6 : 5;
  static constexpr uint32_t fits = wide || split         ? 2
                                   : SIZE == TILE_NARROW ? 4
                                   : of_memory < of_thin ? of_memory
                                                         : of_thin; /* on a multiprocessor, at most */
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
  if (S::units == 2) return (a.n_units + 1) / 2;
  return S::teams == 1 ? a.n_units : (w8a8_spans_of(a) + S::teams - 1) / S::teams * 2;
}

/* Rows [first, first + n) times row tiles from `tile` on; of the matrix of a job. n 0: no work. */
typedef struct tile_item {
  uint32_t matrix, first, n, tile;
} tile_item;

/* Items of a call: for each `rows` rows of all rows, or of each job, all groups of `tiles` row tiles. */
template <class B>
struct tile_items {
  B blocks;                      /* that make them */
  uint32_t n, n_groups, n_parts; /* parts of a job */
  uint32_t step_groups, step;    /* from an item of a block to its next one: groups, and parts of jobs */
};

/* Item number `index`: of all parts of jobs the at-th one, and its group. */
typedef struct item_place {
  uint32_t index, at, group;
} item_place;

template <class S, class B>
static __device__ __forceinline__ tile_items<B> count_items(const gemm_args &a, const B &blocks) {
  tile_items<B> items;
  items.blocks = blocks;
  items.n_groups = (tiles_of(a) + S::tiles - 1) / S::tiles;
  items.n_parts = a.jobs != NULL ? (a.job_rows + S::rows - 1) / S::rows : (a.n_rows + S::rows - 1) / S::rows;
  items.n = items.n_groups * items.n_parts * (a.jobs != NULL ? *a.n_jobs : 1);
  items.step = blocks.count() / items.n_groups;
  items.step_groups = blocks.count() - items.step * items.n_groups;
  return items;
}

template <class B>
static __device__ __forceinline__ item_place first_place(const tile_items<B> &items) {
  uint32_t own = items.blocks.own(), at = own / items.n_groups;
  return {own, at, own - at * items.n_groups};
}

/* The block's next item: without a division, which takes longer than some products. */
template <class B>
static __device__ __forceinline__ item_place next_place(const tile_items<B> &items, const item_place &of) {
  item_place next = {of.index + items.blocks.count(), of.at + items.step, of.group + items.step_groups};
  if (next.group >= items.n_groups) next.group -= items.n_groups, next.at++;
  return next;
}

template <class B>
static __device__ __forceinline__ uint32_t job_of(const tile_items<B> &items, const item_place &of) {
  return items.n_parts == 1 ? of.at : of.at / items.n_parts;
}

/* The job of an item that exists; of another one any. Without jobs: all rows. */
template <class B>
static __device__ __forceinline__ gemm_job job_at(const gemm_args &a, const tile_items<B> &items,
                                                  const item_place &of) {
  gemm_job all = {0, 0, a.n_rows};
  return a.jobs != NULL ? a.jobs[of.index < items.n ? job_of(items, of) : 0] : all;
}

template <class S, class B>
static __device__ __forceinline__ tile_item item_at(const tile_items<B> &items, const item_place &of,
                                                    const gemm_job &job) {
  uint32_t first = (of.at - job_of(items, of) * items.n_parts) * S::rows;
  return {job.matrix, job.first + first, first < job.n ? min(S::rows, job.n - first) : 0, of.group * S::tiles};
}

/* Blocks that a multiprocessor has at once. */
template <class S>
static inline uint32_t blocks_at_once(void) {
  uint32_t n = cuda_family()->tile[S::size], room = cuda_blocks_in(S::bytes, 0);
  if (n > S::fits) n = S::fits;
  return n < room ? n : room;
}

/* Blocks of a launch: as many as the card holds at once, one to an item at the most. */
template <class S>
static inline uint32_t blocks_of(const cuda_device *d, const gemm_args &a) {
  uint64_t n_jobs = a.jobs != NULL ? a.jobs_max : 1, rows = a.jobs != NULL ? a.job_rows : a.n_rows;
  uint64_t n_items = n_jobs * cuda_ceil((uint32_t)rows, S::rows) * cuda_ceil(tiles_of(a), S::tiles);
  uint64_t n_fit = (uint64_t)d->n_multiprocessors * blocks_at_once<S>();
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

/* The same for those of them that lie within `left` bytes. */
template <uint32_t L, uint32_t bytes>
static __device__ __forceinline__ void copy_part(uint32_t to, const uint8_t *from, uint32_t lane, uint32_t left) {
  int32_t own = (int32_t)min(left, bytes) - (int32_t)lane * 16;
#pragma unroll
  for (int32_t at = 0; at < (int32_t)bytes; at += 16 * L)
    if (at < own) cp_async_16(to + at, from + at);
}

/* The stage that is copied next: unit `unit` of an item, if there is one; and the job of the block's item behind that
 * one, which is loaded an item before it is needed. */
struct stage_cursor {
  bool is_there;
  uint32_t unit;
  tile_item item;
  item_place place; /* of the item behind that one, and its job */
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
  if constexpr (S::units == 2) {
    const uint8_t *from = ahead.weights + ahead.unit / 2 * S::w_tile;
    if constexpr (f.unit == 256)
      copy_section<L, S::w_tile>(to, from, lane);
    else
      copy_part<L, S::w_tile>(to, from, lane, a.tile_bytes - ahead.unit / 2 * S::w_tile);
  } else if constexpr (f.unit == 256) {
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

/* Goes to the block's first item from `place` on that has rows. ahead.next: the job there. */
template <class S, uint32_t X_UNIT, class B>
static __device__ __forceinline__ void seek_item(const gemm_args &a, const tile_items<B> &items, item_place place,
                                                 stage_cursor &ahead) {
  ahead.unit = unit_of_step<S>(0);
  for (; place.index < items.n; place = ahead.place) {
    ahead.item = item_at<S>(items, place, ahead.next);
    ahead.place = next_place(items, place);
    ahead.next = job_at(a, items, ahead.place);
    if (ahead.item.n > 0) break;
  }
  ahead.is_there = place.index < items.n;
  if (ahead.is_there) {
    find_bytes<S, X_UNIT>(a, ahead);
    if constexpr (S::eight) find_scales<S>(a, ahead);
  }
}

/* What is copied of a stage: weights and their steps, which are there before a kernel starts, and rows. */
enum { COPY_WEIGHTS = 1, COPY_ROWS = 2 };

/* Starts the copies of the cursor's stage and moves it on. Those of rows, or of both, make a group with all copies
 * before. The scales of a span come with both of its units, of which the second one may not exist. X_UNIT as above. */
template <int T, class S, uint32_t X_UNIT, int WHAT = COPY_WEIGHTS | COPY_ROWS, class B>
static __device__ __forceinline__ void copy_stage(const gemm_args &a, const tile_items<B> &items, uint8_t *to,
                                                  stage_cursor &ahead) {
  if (ahead.is_there) {
    uint32_t own = own_thread<S>(), rows = shared_address(to) + S::w_stage + own * 16;
    if (S::teams == 1 || ahead.unit < a.n_units) {
      if (WHAT & COPY_WEIGHTS) copy_weights<T, S>(a, to, ahead);
#pragma unroll
      for (uint32_t u = 0; u < S::units; u++) {
        if (!(WHAT & COPY_ROWS)) break;
        const uint8_t *from = ahead.rows + (uint64_t)u * a.x_tiles * X_UNIT;
#pragma unroll
        for (uint32_t at = 0; at < S::x_unit; at += 16 * S::threads)
          if ((int32_t)at < ahead.rows_left) cp_async_16(rows + u * S::x_unit + at, from + at);
      }
    }
    if constexpr (S::eight) {
      uint32_t at = own < 32 ? S::scales_at + own * 16 : S::steps_at + (own - 32) * 16;
      const uint8_t *from = ahead.scales + (uint64_t)(ahead.unit / 2) * ahead.scales_step;
      bool wanted = WHAT == (COPY_WEIGHTS | COPY_ROWS) || (own < 32) == (WHAT == COPY_ROWS);
      if (wanted && ahead.scales != NULL && (S::teams == 1 || ahead.unit / 2 < w8a8_spans_of(a)))
        cp_async_16(shared_address(to) + at, from);
    }
    uint32_t apart = S::teams == 1 ? S::units : ahead.unit % 2 == 0 ? 1 : 2 * S::teams - 1; /* units, to the next one */
    ahead.rows += (uint64_t)apart * a.x_tiles * X_UNIT;
    ahead.unit += apart;
    if (ahead.unit >= S::teams * S::units * steps_of<S>(a)) seek_item<S, X_UNIT>(a, items, ahead.place, ahead);
  }
  if (WHAT & COPY_ROWS) cp_async_commit();
}

/* Whether the kernel of a product starts before its rows are there: a dense one in 8 bits, but for split items, of
 * which a multiprocessor would then have two and others none. Those with jobs fill the card: they start in order. */
template <class S>
__host__ __device__ constexpr bool starts_early(const gemm_args &a) {
  return S::eight && !S::split && a.jobs == NULL;
}

/* Starts the copies of the first stages: where a kernel starts early, weights before rows are there. */
template <int T, class S, uint32_t X_UNIT, class B>
static __device__ __forceinline__ void fill_ring(const gemm_args &a, const tile_items<B> &items, uint8_t *own,
                                                 stage_cursor &ahead) {
  if (!starts_early<S>(a)) {
    for (uint32_t i = 0; i + 1 < S::stages; i++) copy_stage<T, S, X_UNIT>(a, items, own + i * S::ring_stage, ahead);
    return;
  }
  stage_cursor rows = ahead;
#pragma unroll 1
  for (uint32_t i = 0; i + 1 < S::stages; i++)
    copy_stage<T, S, X_UNIT, COPY_WEIGHTS>(a, items, own + i * S::ring_stage, ahead);
  wait_for_prior_grids();
#pragma unroll 1
  for (uint32_t i = 0; i + 1 < S::stages; i++)
    copy_stage<T, S, X_UNIT, COPY_ROWS>(a, items, own + i * S::ring_stage, rows);
}

/* Multiplies all items of the blocks. multiply(item, step) does one of them: step() is called once for each of its
 * steps (steps_of), and gives the teams' stages. */
template <int T, class S, uint32_t X_UNIT, class B, class F>
static __device__ __forceinline__ void multiply_items(const gemm_args &a, uint8_t *memory, const B &blocks,
                                                      F &&multiply) {
  tile_items<B> items = count_items<S>(a, blocks);
  stage_cursor ahead;
  uint32_t at = 0;
  if (items.n == 0) return;
  item_place place = first_place(items);
  ahead.next = job_at(a, items, place);
  seek_item<S, X_UNIT>(a, items, place, ahead);
  uint8_t *own = memory + team_of<S>() * S::stage;
  fill_ring<T, S, X_UNIT>(a, items, own, ahead);
  auto step = [&]() {
    ring_step<S::stages>();
    uint32_t before = at == 0 ? S::stages - 1 : at - 1, now = at;
    copy_stage<T, S, X_UNIT>(a, items, own + before * S::ring_stage, ahead);
    at = at + 1 == S::stages ? 0 : at + 1;
    return (const uint8_t *)(memory + now * S::ring_stage);
  };
#pragma unroll 1
  for (; place.index < items.n; place = next_place(items, place)) {
    const tile_item item = item_at<S>(items, place, job_at(a, items, place)); /* the cache has the job */
    if (item.n > 0) multiply(item, step);
  }
}

/* 128 inputs of a row tile of a stage: of a longer one, those of its unit number `unit`. */
template <int T, class S>
static __device__ __forceinline__ packed_block stage_block(const uint8_t *row_tile, uint32_t unit, bool tail) {
  constexpr packed_shape f = packed_shape_of(T);
  packed_block p = packed_block_of<T>(row_tile, S::units == 1 ? 0 : unit, tail);
  if (f.unit == 256 && S::units == 1) {
    p.half = unit & 1u;
    p.high = row_tile + f.codes;
    p.scales = row_tile + f.codes + f.high;
  }
  return p;
}

#endif
