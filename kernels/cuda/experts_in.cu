/* SPDX-License-Identifier: MIT */
/* The input side of experts for few rows: act(gate x) * (up x) of every pair of a row and an expert that was chosen for
 * it, and of a shared MLP. Every block finds out for itself which pairs chose the same expert (find_jobs); these are
 * multiplied at once, up to eight of them. A block takes a row tile of the gate and the same one of up; its warps are
 * (gate, up) x (segments), as in multiply_few.cu. It goes on to the pairs of row tiles that lie one grid further.
 *
 * Row tiles of the shared MLP come first, since they do not wait for the choice of experts: their weights arrive while
 * experts are being chosen, and where the rows are there already (multiply_raw.is_there), they are also multiplied
 * meanwhile. Blocks that begin with an expert then prepare their rows meanwhile.
 *
 * Law: a block lets the next kernel start when it has waited for the choice (experts_few.cu reads it unwaited for). */
#include "kernels/cuda/experts.h"
#include "kernels/cuda/few.cuh"

/* Which raw rows a block has prepared: those of the experts, those of the shared MLP, or both, one behind the other. */
enum { HAS_OWN = 1, HAS_SHARED, HAS_BOTH };

/* Whether a block that begins with the shared MLP prepares the rows of both at once. More than two would leave room for
 * one block to a multiprocessor, where there are two. */
static __host__ __device__ __forceinline__ bool takes_both(const multiply_args &a) {
  return a.n_shared > 0 && a.n_rows <= 2;
}

/* An expert and up to eight of the pairs that chose it. */
typedef struct in_job {
  uint32_t matrix, first_tile, n; /* first_tile: of the matrix */
  uint8_t pair[8], row[8];        /* of x */
} in_job;

/* The experts that were chosen, each once: its weights are read and unpacked once for all rows that chose it. */
typedef struct in_jobs {
  uint32_t n;
  int32_t id[EXPERTS_FEW_PAIRS];           /* matrices of the pairs; below 0: the expert is not here */
  uint32_t firsts[EXPERTS_FEW_PAIRS / 32]; /* pairs that begin a job, a bit each */
  in_job job[EXPERTS_FEW_PAIRS];
} in_jobs;

/* How many pairs below `end` begin a job. */
static __device__ __forceinline__ uint32_t count_firsts(const in_jobs &jobs, uint32_t end) {
  uint32_t n = 0;
#pragma unroll
  for (uint32_t i = 0; i < EXPERTS_FEW_PAIRS / 32; i++) {
    uint32_t below = end >= 32 * i + 32 ? 0xFFFFFFFFu : end <= 32 * i ? 0 : (1u << (end - 32 * i)) - 1;
    n += __popc(jobs.firsts[i] & below);
  }
  return n;
}

/* Finds the jobs, in the order of their first pairs. The block has a thread for each pair. (experts_few.cu says what
 * stands in for an expert that is not here.) */
static __device__ __forceinline__ void find_jobs(const multiply_args &a, in_jobs &jobs) {
  uint32_t p = threadIdx.x, n_pairs = a.jobs_max, same = 0, first = p;
  int32_t id = p < n_pairs ? (int32_t)matrix_of(a, __ldcg(a.ids + p)) : -1;
  if ((uint32_t)id >= a.n_matrices) id = -1;
  if (p < EXPERTS_FEW_PAIRS) jobs.id[p] = id, jobs.job[p].n = 0;
  __syncthreads();
  for (uint32_t q = 0; q < min(p, n_pairs); q++) {
    if (jobs.id[q] != id) continue;
    if (same++ % 8 == 0) first = q;
  }
  if (same % 8 == 0) first = p;
  uint32_t firsts = __ballot_sync(0xFFFFFFFFu, id >= 0 && first == p);
  if (p % 32 == 0 && p < EXPERTS_FEW_PAIRS) jobs.firsts[p / 32] = firsts;
  __syncthreads();
  if (id >= 0) {
    in_job &job = jobs.job[count_firsts(jobs, first)];
    job.pair[same % 8] = (uint8_t)p;
    job.row[same % 8] = (uint8_t)(p / a.pairs_per_row);
    if (first == p) job.matrix = (uint32_t)id, job.first_tile = (uint32_t)id * a.weight[0].n_tiles;
    atomicAdd(&job.n, 1u);
  }
  if (p == 0) jobs.n = count_firsts(jobs, EXPERTS_FEW_PAIRS);
  __syncthreads();
}

template <int T, bool ONE>
static __device__ __forceinline__ void take_rows(const multiply_args &a, uint32_t has, uint32_t *most_of, uint4 *raw,
                                                 int *lift) {
  uint32_t n = ONE ? 1 : a.n_rows;
  auto row = [&](uint32_t r) {
    bool of_shared = has == HAS_SHARED || r >= n;
    r -= r >= n ? n : 0;
    return of_shared ? a.shared_x + r * a.shared_stride : a.raw.x + r * a.raw.x_stride;
  };
  prepare_raw<T>(a, has == HAS_BOTH ? 2 * n : n, row, most_of, raw, lift);
}

/* How items are dealt out: row tiles of the shared MLP, then those of the experts, job by job. */
typedef struct in_items {
  uint32_t n_groups;              /* row tiles of a job */
  uint32_t step_jobs, step_tiles; /* from an expert's item to the block's next one */
} in_items;

/* An item. Of the shared MLP: job 0, and tiles go on beyond its last one. */
typedef struct in_cursor {
  uint32_t job, tile;
} in_cursor;

/* ONE: of one row. */
template <int T, bool ONE>
static __global__ void __maxnreg__(80)
    in_kernel(const __grid_constant__ multiply_args a, const __grid_constant__ in_items items) {
  extern __shared__ __align__(128) uint8_t memory[]; /* few_bytes */
  __shared__ __align__(8) uint64_t filled[FEW_WARPS_MAX * FEW_PLACES];
  __shared__ uint32_t most_of[FEW_WARPS_MAX];
  __shared__ float low[2]; /* what undoes the raising of gate and up */
  __shared__ int lift[2 * MULTIPLY_RAW_ROWS];
  __shared__ in_jobs jobs;
  uint32_t n_warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, turn = 0;
  uint32_t segment = warp % a.n_segments, slot = warp / a.n_segments;
  uint32_t first = segment * a.segment_units, end = min(a.n_units, first + a.segment_units), unit = first;
  bool is_last = segment + 1 == a.n_segments; /* the warp of the shortest segment finishes tiles */
  few_ring ring = {memory + warp * FEW_PLACES * few_piece_bytes(T), filled + warp * FEW_PLACES, FEW_PLACES, 0, 0};
  float *part = (float *)(void *)(memory + n_warps * FEW_PLACES * few_piece_bytes(T));
  uint4 *raw = (uint4 *)(void *)(part + 2 * n_warps * 128);
  ring_open(&ring);
  bool begins = true, own = false; /* the first item is next; the choice of experts is known, and items are theirs */
  uint32_t has = 0;
  in_cursor at = {0, blockIdx.x}, ahead = at; /* ahead: whose unit `unit` is asked for next */
  const uint8_t *tiles = NULL;
  raise_powers powers;
  auto go_on = [&](in_cursor &c) {
    c.tile += own ? items.step_tiles : gridDim.x;
    if (own) c.job += items.step_jobs;
    if (own && c.tile >= items.n_groups) c.tile -= items.n_groups, c.job++;
  };
  auto exists = [&](const in_cursor &c) { return own ? c.job < jobs.n : c.tile < a.n_shared; };
  auto ask = [&](uint32_t place) {
    if (!exists(ahead)) return;
    uint32_t before = own ? jobs.job[ahead.job].first_tile : 0;
    ring_ask<T>(a, ring, place, tiles + (uint64_t)(before + ahead.tile) * a.tile_bytes, unit);
    unit += few_units(T);
    if (unit < end) return;
    unit = first;
    go_on(ahead);
  };
  for (;; go_on(at)) {
    bool is_shared = !own && at.tile < a.n_shared;
    if (begins || !(own || is_shared)) {
      /* First weights are asked for; but where rows are there before the choice, they are prepared before it. */
      bool rows_first = begins && !is_shared && a.raw.is_there;
      uint32_t weight = is_shared ? MULTIPLY_SHARED + slot : a.n_weights == 2 ? slot : 0;
      form_header header = header_of(a.weight[weight].data);
      tiles = a.weight[weight].data + FORM_HEADER_BYTES;
      if (!is_shared && a.n_weights != 2) tiles += (uint64_t)slot * items.n_groups * a.tile_bytes;
      begins = false;
#pragma unroll 1
      for (uint32_t step = 0; step < 2; step++) {
        if ((step == 0) == rows_first) {
          uint32_t wanted = !is_shared ? HAS_OWN : takes_both(a) ? HAS_BOTH : HAS_SHARED;
          if (!a.raw.is_there) inputs_wait();
          if ((has & wanted) == wanted) continue;
          __syncthreads(); /* all warps have read the rows before */
          take_rows<T, ONE>(a, has = wanted, most_of, raw, lift);
          continue;
        }
        if (!is_shared) {
          inputs_wait();
          next_may_start();
          find_jobs(a, jobs);
          own = true;
          at = {(at.tile - a.n_shared) / items.n_groups, (at.tile - a.n_shared) % items.n_groups};
        }
        ahead = at;
#pragma unroll 1
        for (uint32_t i = 0; i < FEW_PLACES; i++) ask((ring.at + i) % FEW_PLACES);
      }
      int raise = raise_exponent(T, &header);
      powers = powers_of<T>(raise, a.values);
      if (lane == 0 && is_last) low[slot] = power_of_two(-raise);
    }
    if (!exists(at)) break;
    const in_job &job = jobs.job[at.job];
    uint32_t n_columns = own ? job.n : a.n_rows;
    auto row_of = [&](uint32_t c) { return own ? (ONE ? 0u : job.row[c]) : c + (has == HAS_BOTH ? a.n_rows : 0); };
    uint32_t r = row_of(ONE ? 0 : min(lane / 4, n_columns - 1));
    x_source<1> x;
    x.raw = raw + r * raw_stride(a.n_units);
    float *mine = part + (turn * n_warps + warp) * 128;
    multiply_segment<T, 1, true, false>(a, ring, first, end, x, powers, mine, ask);
    __syncthreads(); /* it also says that the sums of the item before have been read */
    if (is_last && slot == 0) {
      const multiply_weight *gate = &a.weight[own ? 0 : MULTIPLY_SHARED],
                            *up = gate + (!own || a.n_weights == 2 ? 1 : 0);
      uint32_t matrix = own ? job.matrix : 0;
      few_end of = {gate, at.tile, n_columns, __fmul_rn(low[0], scale_of(*gate, matrix)),
                    __fmul_rn(low[1], scale_of(*up, matrix))};
      finish_tile<1, true>(
          a, of, mine - segment * 128, [&](uint32_t c) { return own ? job.pair[c] : c; },
          [&](uint32_t c) { return power_of_two(-lift[row_of(c)]); });
    }
    turn ^= 1;
  }
}

/* args NULL: sets the kernel up. */
template <int T, bool ONE>
static weft_status start_in(cuda_device *d, const multiply_args *args) {
  static_assert(few_bytes<T, 1>(2 * FEW_SEGMENTS, 0, 0) + MULTIPLY_RAW_BYTES <= FEW_SHARED_BYTES_MAX, "shared memory");
  if (args == NULL) return few_set_up(d, (const void *)in_kernel<T, ONE>);
  uint32_t n_warps = 2 * args->n_segments, n_groups = few_tiles(*args);
  uint32_t bytes = few_bytes<T, 1>(n_warps, args->n_rows * (takes_both(*args) ? 2 : 1), args->n_units);
  few_items all = few_items_of(*args, 2);
  uint32_t n_blocks = few_blocks_of(d, all, n_warps, bytes);
  in_items items = {n_groups, n_blocks / n_groups, n_blocks % n_groups};
  cuda_start(d, in_kernel<T, ONE>, n_blocks, 32 * n_warps, bytes, *args, items);
  return cuda_launched(d, "the input side of experts");
}

weft_status experts_in_few(cuda_device *d, const multiply_args *args) {
  return form_dispatch(args->type, [&](auto type) {
    constexpr int T = decltype(type)::value;
    return args->n_rows == 1 ? start_in<T, true>(d, args) : start_in<T, false>(d, args);
  });
}

weft_status experts_in_setup(cuda_device *d) {
  return form_each([&](auto type) {
    constexpr int T = decltype(type)::value;
    weft_status status = start_in<T, true>(d, NULL);
    return status == WEFT_OK ? start_in<T, false>(d, NULL) : status;
  });
}
