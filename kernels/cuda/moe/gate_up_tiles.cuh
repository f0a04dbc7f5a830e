/* SPDX-License-Identifier: MIT */
/* The schedule of gate and up of experts for two rows and more: what gate_up.cuh computes, by warps that have whole row
 * tiles. Two warps take an item, a row tile of the gate and the same one of up, each with all inputs and a ring of its
 * own, so no warp waits for the splits of others: only at an item's end the one with the gate waits for the one with
 * up. With some rows there are about as many items as pairs of warps on the card, or fewer.
 *
 * Items are row tiles of the shared MLP, then those of the experts, job by job. They are dealt out block by block, so
 * that every multiprocessor has as many. Warps with items of the shared MLP do not wait for the choice of experts. Each
 * warp finds out for itself which pairs chose the expert of its item.
 *
 * How a row tile is multiplied is the type P (gate_up.cuh). It also has
 *   multiply_tile(a, ring, item, issue, all)   a row tile: all[e] is of output lane / 4 + e / 2 * 8 and of column
 *                                              lane % 4 * 2 + e % 2
 *   scale_of_tile(weight, matrix)              what its results are multiplied by
 *   finish(block, sum, row, scale)             a result from its sum; row: of x, of the column
 *
 * Law: sums have the order of gemm.h or w8a8.h. A block lets the next kernel start when it has waited for the choice
 * (down_gemv.cu reads it without a wait). */
#ifndef WEFT_KERNELS_CUDA_GATE_UP_TILES_CUH
#define WEFT_KERNELS_CUDA_GATE_UP_TILES_CUH

#include "kernels/cuda/moe/gate_up.cuh"

enum {
  TILES_WARPS_MAX = GEMV_WARPS_MAX / 2 /* pairs of warps of a block */
};

/* What a warp knows of the choice. A lane has pairs `lane` and `lane + 32`: the expert of each, and in the upper half
 * how many pairs before it chose the same one; UINT32_MAX: the expert is not here, or there is no such pair. */
typedef struct tile_choice {
  uint32_t pair[2], firsts[2]; /* firsts: pairs that begin a job, a bit each */
} tile_choice;

static __device__ __forceinline__ uint32_t lanes_below(void) {
  uint32_t mask;
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(mask));
  return mask;
}

static __device__ __forceinline__ tile_choice read_choice(const gemm_args &a) {
  tile_choice c;
  uint32_t lane = threadIdx.x % 32, matrix[2], rank[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    matrix[h] = lane + 32 * h < a.jobs_max ? matrix_of(a, __ldcg(a.ids + lane + 32 * h)) : UINT32_MAX;
    if (matrix[h] >= a.n_matrices) matrix[h] = UINT32_MAX;
    rank[h] = __popc(__match_any_sync(0xFFFFFFFFu, matrix[h]) & lanes_below());
  }
  for (uint32_t q = 0; q < 32 && a.jobs_max > 32; q++)
    rank[1] += __shfl_sync(0xFFFFFFFFu, matrix[0], q) == matrix[1] ? 1 : 0;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    c.pair[h] = matrix[h] == UINT32_MAX ? UINT32_MAX : rank[h] << 16 | matrix[h];
    c.firsts[h] = __ballot_sync(0xFFFFFFFFu, matrix[h] != UINT32_MAX && rank[h] % 8 == 0);
  }
  return c;
}

static __device__ __forceinline__ uint32_t count_jobs(const tile_choice &c) {
  return __popc(c.firsts[0]) + __popc(c.firsts[1]);
}

/* What the choice says of the pair that begins a job, which exists. */
static __device__ __forceinline__ uint32_t first_of_job(const tile_choice &c, uint32_t job) {
  uint32_t n = __popc(c.firsts[0]), firsts = job < n ? c.firsts[0] : c.firsts[1];
  bool own = (firsts >> threadIdx.x % 32 & 1u) != 0 && __popc(firsts & lanes_below()) == (job < n ? job : job - n);
  return __shfl_sync(0xFFFFFFFFu, job < n ? c.pair[0] : c.pair[1], __ffs(__ballot_sync(0xFFFFFFFFu, own)) - 1);
}

/* The pairs of the job of which `first` was said, in columns; how many they are. */
static __device__ __forceinline__ uint32_t list_pairs(const tile_choice &c, uint32_t first, uint8_t *pair) {
  uint32_t n = 0;
  __syncwarp();
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    uint32_t column = c.pair[h] / 65536 - first / 65536;
    bool member = c.pair[h] % 65536 == first % 65536 && c.pair[h] != UINT32_MAX && column < 8;
    if (member) pair[column] = (uint8_t)(threadIdx.x % 32 + 32 * h);
    n += __popc(__ballot_sync(0xFFFFFFFFu, member));
  }
  __syncwarp();
  return n;
}

/* An item: a row tile of an expert or of the shared MLP, and its columns. A lane has one column's row of x for the
 * product, lane / 4, and the results of two, lane % 4 * 2 and the one after it, for which it knows the rows of x and y.
 * Rows of x are counted as take_rows leaves them. */
typedef struct tile_item {
  uint32_t matrix, group, n_columns, row, row_of[2], to[2];
} tile_item;

/* pair: room for the pairs of a job. */
static __device__ __forceinline__ tile_item item_of_expert(const gemm_args &a, const tile_choice &choice, uint32_t job,
                                                           uint32_t group, uint8_t *pair) {
  tile_item t;
  uint32_t first = first_of_job(choice, job), lane = threadIdx.x % 32;
  t.matrix = first % 65536;
  t.group = group;
  t.n_columns = list_pairs(choice, first, pair);
  t.row = pair[min(lane / 4, t.n_columns - 1)] / a.pairs_per_row;
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    t.to[i] = pair[min(lane % 4 * 2 + i, t.n_columns - 1)];
    t.row_of[i] = t.to[i] / a.pairs_per_row;
  }
  return t;
}

static __device__ __forceinline__ tile_item item_of_shared(const gemm_args &a, uint32_t group) {
  tile_item t;
  uint32_t lane = threadIdx.x % 32;
  t.matrix = 0;
  t.group = group;
  t.n_columns = a.n_rows;
  t.row = a.n_rows + min(lane / 4, a.n_rows - 1);
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    t.to[i] = min(lane % 4 * 2 + i, a.n_rows - 1);
    t.row_of[i] = a.n_rows + t.to[i];
  }
  return t;
}

/* What a warp is at. slot: 0 of the gate, 1 of up. own: items are those of the experts, whose choice is known. */
template <class P>
struct tile_warp {
  const gemm_args &a;
  P product;
  gemv_ring ring;
  tile_choice choice;
  uint32_t slot, step, n_groups; /* step: from an item to the warp's next one; n_groups: row tiles of a job */
  bool own;
  /* The next piece whose copy is issued: its item, row tile and unit; whether there is one. */
  uint32_t ahead, tile, unit;
  bool is_ahead;

  __device__ __forceinline__ bool exists(uint32_t item) const {
    return own ? (item - a.n_shared) / n_groups < count_jobs(choice) : item < a.n_shared;
  }
  __device__ __forceinline__ void seek() {
    unit = 0;
    is_ahead = exists(ahead);
    tile = ahead;
    if (!own || !is_ahead) return;
    uint32_t at = ahead - a.n_shared, job = at / n_groups;
    tile = first_of_job(choice, job) % 65536 * a.weight[0].n_tiles + at - job * n_groups;
  }
  __device__ __forceinline__ void issue(uint32_t stage) {
    if (!is_ahead) return;
    product.issue(a, ring, stage, tile, unit);
    unit += P::UNITS;
    if (unit < a.n_units) return;
    ahead += step;
    seek();
  }
  /* With the items of the shared MLP or of the experts from `item` on. */
  __device__ __forceinline__ void begin(uint32_t item) {
    uint32_t weight = !own ? GEMM_SHARED_MLP + slot : a.n_weights == 2 ? slot : 0;
    product.enter(a, a.weight[weight], own && a.n_weights != 2 ? slot * n_groups : 0);
    ahead = item;
    seek();
#pragma unroll 1
    for (uint32_t i = 0; i < ring_stages_of(a); i++) issue((ring.at + i) % ring_stages_of(a));
  }
  __device__ __forceinline__ tile_item enter(uint32_t item, uint8_t *pair) const {
    if (!own) return item_of_shared(a, item);
    uint32_t at = item - a.n_shared, job = at / n_groups;
    return item_of_expert(a, choice, job, at - job * n_groups, pair);
  }
  __device__ __forceinline__ void multiply(const typename P::block &block, const tile_item &t, float (&all)[4]) {
    const gemm_weight *weight = &a.weight[!own ? GEMM_SHARED_MLP + slot : a.n_weights == 2 ? slot : 0];
    product.multiply_tile(
        a, ring, t, [&](uint32_t stage) { issue(stage); }, all);
    float scale = product.scale_of_tile(*weight, t.matrix);
#pragma unroll
    for (int e = 0; e < 4; e++) all[e] = product.finish(block, all[e], t.row_of[e % 2], scale);
  }
};

static __device__ __forceinline__ void meet_pair(uint32_t pair) {
  asm volatile("bar.sync %0, 64;" ::"r"(pair + 1) : "memory");
}

/* g: the gate's results; up: those of up. */
template <class G>
static __device__ __forceinline__ void store_gated(const gemm_weight &gate, const tile_item &t, const float (&g)[4],
                                                   float4 up, G &&gated) {
  const float u[4] = {up.x, up.y, up.z, up.w};
#pragma unroll
  for (uint32_t e = 0; e < 4; e++) {
    uint32_t lane = threadIdx.x % 32, out = t.group * 16 + lane / 4 + e / 2 * 8;
    if (lane % 4 * 2 + e % 2 < t.n_columns && out < gate.n_out)
      gate.y[(uint64_t)t.to[e % 2] * gate.y_stride + out] = gated(out, g[e], u[e]);
  }
}

/* gate_of(matrix) is the gate of an expert's outputs. */
template <class P, class F>
static __device__ __forceinline__ void multiply_gate_up_tiles(const gemm_args &a, F &&gate_of) {
  extern __shared__ __align__(128) uint8_t memory[]; /* rings; [pairs of warps][2][128] results of up; rows */
  __shared__ __align__(8) uint64_t filled[GEMV_WARPS_MAX * GEMV_STAGES];
  __shared__ typename P::block block;
  __shared__ uint8_t columns[GEMV_WARPS_MAX][8];
  uint32_t n_warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, buffer = 0;
  uint32_t item = warp / 2 * gridDim.x + blockIdx.x, ring_bytes = ring_stages_of(a) * P::STAGE;
  float *results = (float *)(void *)(memory + n_warps * ring_bytes);
  tile_warp<P> w = {a, P(results + n_warps * 128)};
  w.ring = ring_init(memory + warp * ring_bytes, filled + warp * GEMV_STAGES, ring_stages_of(a), P::STAGE);
  w.slot = warp % 2;
  w.step = n_warps / 2 * gridDim.x;
  w.n_groups = gemv_tiles(a);
  w.own = false;
  results += warp / 2 * 256;
  if (item < a.n_shared) w.begin(item);
  if (!a.raw.is_there) wait_for_prior_grids();
  take_rows(a, a.n_rows, blockIdx.x < a.n_shared ? HAS_BOTH : HAS_OWN, w.product, block);
  if (item < a.n_shared) w.product.open(a, block, w.slot, false);
#pragma unroll 1
  for (;; item += w.step) {
    if (!w.own && item >= a.n_shared) {
      w.own = true;
      wait_for_prior_grids();
      launch_dependent_grids();
      w.choice = read_choice(a);
      w.begin(item);
      w.product.open(a, block, w.slot, false);
    }
    if (!w.exists(item)) break;
    const tile_item t = w.enter(item, columns[warp]);
    float all[4];
    w.multiply(block, t, all);
    float4 *up = (float4 *)(void *)(results + buffer * 128) + lane;
    buffer ^= 1; /* the one before is read until the pair meets again */
    if (w.slot == 1) *up = make_float4(all[0], all[1], all[2], all[3]);
    meet_pair(warp / 2);
    if (w.slot == 0) store_gated(a.weight[w.own ? 0 : GEMM_SHARED_MLP], t, all, *up, gate_of(t.matrix));
  }
}

/* ---- host ------------------------------------------------------------------------------------------------ */

/* Shared memory of a block of so many pairs of warps. */
static inline uint32_t tiles_bytes(uint32_t n_pairs, uint32_t stage_bytes, uint32_t rows_bytes) {
  return n_pairs * (2 * gemv_stages(RING_TILES) * stage_bytes + 1024) + rows_bytes;
}

/* How many pairs of warps a block has: as many as fit. 0: too few for the prologue of n_rows rows and as many of the
 * shared MLP. */
static inline uint32_t tiles_pairs(uint32_t n_rows, uint32_t stage_bytes, uint32_t rows_bytes) {
  uint32_t n = TILES_WARPS_MAX;
  while (n > 0 && tiles_bytes(n, stage_bytes, rows_bytes) > GEMV_SHARED_BYTES_MAX) n--;
  return n < n_rows || n_rows > GEMM_RAW_ROWS ? 0 : n;
}

#endif
