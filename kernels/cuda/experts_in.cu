/* SPDX-License-Identifier: MIT */
/* The input side of experts for few rows: act(gate x) * (up x) of every pair of a row and an expert that was chosen for
 * it, and of a shared MLP. A block takes a row tile of the gate and the same one of up; its warps are (gate, up) x
 * (segments), as in multiply_few.cu. It goes on to the pairs of row tiles that lie one grid further.
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

/* What a warp multiplies of an item: pair and matrix are of an expert's. data NULL: the expert does not exist. */
typedef struct in_tile {
  uint32_t weight, pair, matrix, tile;
  const uint8_t *data;
} in_tile;

/* slot: 0 for the gate, 1 for up. n_groups: row tiles of an expert's gate. */
static __device__ __forceinline__ in_tile find_in(const multiply_args &a, uint32_t index, uint32_t slot,
                                                  uint32_t n_groups) {
  in_tile t = {MULTIPLY_SHARED + slot, 0, 0, index, NULL};
  uint64_t at = index;
  if (index >= a.n_shared) {
    t.pair = (index - a.n_shared) / n_groups;
    t.tile = (index - a.n_shared) % n_groups;
    t.matrix = (uint32_t)__ldcg(a.ids + t.pair);
    if (t.matrix >= a.n_matrices) return t;
    t.weight = a.n_weights == 2 ? slot : 0;
    at = (uint64_t)t.matrix * a.weight[t.weight].n_tiles + t.tile + (a.n_weights == 2 ? 0 : slot * n_groups);
  }
  t.data = a.weight[t.weight].data + FORM_HEADER_BYTES + at * a.tile_bytes;
  return t;
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
  prepare_raw<T, !ONE>(a, has == HAS_BOTH ? 2 * n : n, row, most_of, raw, lift);
}

/* ONE: of one row. */
template <int T, bool ONE>
static __global__ void __maxnreg__(80)
    in_kernel(const __grid_constant__ multiply_args a, uint32_t n_groups, uint32_t n_items) {
  extern __shared__ __align__(128) uint8_t memory[]; /* few_bytes */
  __shared__ __align__(8) uint64_t filled[FEW_WARPS_MAX * FEW_PLACES];
  __shared__ uint32_t most_of[FEW_WARPS_MAX];
  __shared__ float down_of[2][2]; /* lower_by of gate and up */
  __shared__ int lift[2 * MULTIPLY_RAW_ROWS];
  uint32_t n_warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, turn = 0;
  uint32_t segment = warp % a.n_segments, slot = warp / a.n_segments;
  uint32_t first = segment * a.segment_units, end = min(a.n_units, first + a.segment_units), unit = first;
  bool is_last = segment + 1 == a.n_segments; /* the warp of the shortest segment finishes tiles */
  few_ring ring = {memory + warp * FEW_PLACES * few_piece_bytes(T), filled + warp * FEW_PLACES, FEW_PLACES, 0, 0};
  float *part = (float *)(void *)(memory + n_warps * FEW_PLACES * few_piece_bytes(T));
  uint4 *raw = (uint4 *)(void *)(part + 2 * n_warps * 128);
  ring_open(&ring);
  bool is_shared = blockIdx.x < a.n_shared, is_there = a.raw.is_there;
  bool knows = !is_shared && !is_there; /* the choice of experts, which was waited for */
  form_header header = header_of(a.weight[a.n_weights == 2 ? slot : 0].data), of_shared = header;
  if (is_shared) of_shared = header_of(a.weight[MULTIPLY_SHARED + slot].data);
  const uint8_t *ahead = NULL; /* whose unit `unit` is asked for next */
  uint32_t index_ahead = blockIdx.x;
  auto enter = [&](uint32_t index) {
    ahead = NULL;
    unit = first;
    for (; index < n_items && ahead == NULL; index += gridDim.x)
      ahead = find_in(a, index_ahead = index, slot, n_groups).data;
  };
  auto ask = [&](uint32_t place) {
    if (ahead == NULL) return;
    ring_ask<T>(a, ring, place, ahead, unit);
    unit += few_units(T);
    if (unit < end) return;
    ahead = NULL;
    if (knows || index_ahead + gridDim.x < a.n_shared) enter(index_ahead + gridDim.x);
  };
  if (knows) inputs_wait();
  if (knows || is_shared) {
    enter(blockIdx.x);
#pragma unroll 1
    for (uint32_t place = 0; place < FEW_PLACES; place++) ask(place);
  }
  if (!is_there) inputs_wait();
  if (knows) next_may_start();
  uint32_t has = !is_shared ? HAS_OWN : takes_both(a) ? HAS_BOTH : HAS_SHARED;
  take_rows<T, ONE>(a, has, most_of, raw, lift);
  for (uint32_t index = blockIdx.x; index < n_items; index += gridDim.x) {
    is_shared = index < a.n_shared;
    if (!knows && !is_shared) {
      knows = true;
      inputs_wait();
      next_may_start();
      enter(index);
#pragma unroll 1
      for (uint32_t i = 0; i < FEW_PLACES; i++) ask((ring.at + i) % FEW_PLACES);
    }
    in_tile tile = find_in(a, index, slot, n_groups);
    if (tile.data == NULL) continue;
    if (!ONE && !is_shared && has == HAS_SHARED) {
      __syncthreads(); /* all warps have read the rows before */
      take_rows<T, ONE>(a, has = HAS_OWN, most_of, raw, lift);
    }
    uint32_t raw_row = is_shared ? (has == HAS_BOTH ? a.n_rows : 0) : ONE ? 0 : tile.pair / a.pairs_per_row;
    uint32_t r = raw_row + (!ONE && is_shared ? min(lane / 4, a.n_rows - 1) : 0);
    x_source<1> x;
    x.raw = raw + r * a.n_units * 16;
    x.turn = ONE ? 0 : raw_turn(r);
    int raise = raise_exponent(T, is_shared ? &of_shared : &header);
    if (lane == 0 && is_last) down_of[turn][slot] = lower_by(a.weight[tile.weight], tile.matrix, raise);
    float *own = part + (turn * n_warps + warp) * 128;
    multiply_segment<T, 1, true>(a, ring, first, end, x, raise, own, ask);
    __syncthreads(); /* it also says that the sums of the item before have been read */
    if (is_last && slot == 0) {
      few_end of = {&a.weight[tile.weight],           tile.tile,        tile.pair,
                    is_shared && !ONE ? a.n_rows : 1, down_of[turn][0], down_of[turn][1]};
      finish_tile<1, true>(a, of, own - segment * 128, [&](uint32_t c) { return power_of_two(-lift[raw_row + c]); });
    }
    turn ^= 1;
  }
  if (!knows) inputs_wait(); /* who waits for this kernel waits for those before it too */
}

/* args NULL: sets the kernel up. */
template <int T, bool ONE>
static weft_status start_in(cuda_device *d, const multiply_args *args) {
  static_assert(few_bytes<T, 1>(2 * FEW_SEGMENTS, MULTIPLY_RAW_BYTES / 256) <= FEW_SHARED_BYTES_MAX, "shared memory");
  if (args == NULL) return few_set_up(d, (const void *)in_kernel<T, ONE>);
  uint32_t n_warps = 2 * args->n_segments, n_groups = few_tiles(*args);
  uint32_t bytes = few_bytes<T, 1>(n_warps, args->n_units * args->n_rows * (takes_both(*args) ? 2 : 1));
  few_items items = few_items_of(*args, 2);
  cuda_start(d, in_kernel<T, ONE>, few_blocks_of(d, items, n_warps, bytes), 32 * n_warps, bytes, *args, n_groups,
             items.n);
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
