/* SPDX-License-Identifier: MIT */
/* The schedule of gate and up of experts for one row: act(gate x) * (up x) of every pair of the row and an expert that
 * was chosen for it, and of a shared MLP (two rows and more: gate_up_tiles.cuh). Every block finds out for itself which
 * experts are here (find_jobs). A block takes a row tile of the gate and the same one of up; its warps are (gate, up) x
 * (splits), as in gemm/gemv.cu. Blocks are persistent: a block goes on to the pairs of row tiles one grid further.
 *
 * Row tiles of the shared MLP come first, since they do not wait for the choice of experts: their weights arrive while
 * experts are being chosen, and where the rows are there already (gemm_raw_rows.is_there), they are also multiplied
 * meanwhile. Blocks that begin with an expert run their prologue meanwhile.
 *
 * How a row tile is multiplied is the type P, of 16 bits (gate_up_gemv.cu) or of W8A8 (w8a8_gate_up_gemv.cu):
 *   STAGE                       shared memory of a stage of a warp's ring
 *   block                       what the warps of a block share of it
 *   tile_floats(a)              floats of a row tile's sums
 *   P(memory)                   memory: the raw rows'
 *   enter(a, weight, tile)      goes on to a weight, whose row tiles are counted from `tile` on
 *   issue(a, ring, stage, tile, unit)    starts the copy of a piece
 *   take_rows(a, n, row, block)          the prologue of rows row(0) .. row(n - 1); ends with a barrier
 *   open(a, block, slot, notes)          behind the prologue; notes: this lane notes what the epilogue needs
 *   multiply(a, ring, unit, end, row, sums, split, issue)    a warp's split; row: that of the lane's column
 *   scale(block, slot, weight, matrix)   what results of gate (slot 0) or up (1) are multiplied by
 *   value(a, block, sums, row, own, scale)    a result from a row tile's sums; own: of its 16 outputs
 *
 * Law: a block lets the next kernel start when it has waited for the choice (down_gemv.cu reads it without a wait). */
#ifndef WEFT_KERNELS_CUDA_GATE_UP_CUH
#define WEFT_KERNELS_CUDA_GATE_UP_CUH

#include "kernels/cuda/moe/experts_gemv.h"
#include "kernels/cuda/gemm/gemv.cuh"
#include "kernels/cuda/moe/limited_gate.cuh"

/* Which rows a block has in shared memory after its prologue: those of the experts, or behind them those of the shared
 * MLP, too. */
enum { HAS_OWN = 1, HAS_BOTH };

/* A pair of the row and an expert that is here. */
typedef struct gate_up_job {
  uint32_t matrix, first_tile, pair; /* first_tile: of the matrix */
} gate_up_job;

typedef struct gate_up_jobs {
  uint32_t n;
  gate_up_job job[EXPERTS_GEMV_PAIRS];
} gate_up_jobs;

/* Finds the jobs, in the order of the pairs. The block has two warps at least. (down_gemv.cu says what stands in for an
 * expert that is not here.) */
static __device__ __forceinline__ void find_jobs(const gemm_args &a, gate_up_jobs &jobs) {
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, matrix[2], here[2];
  static_assert(EXPERTS_GEMV_PAIRS == 64, "two pairs to a lane");
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    uint32_t pair = 32 * i + lane;
    matrix[i] = pair < a.jobs_max ? matrix_of(a, __ldcg(a.ids + pair)) : UINT32_MAX;
    here[i] = __ballot_sync(0xFFFFFFFFu, matrix[i] < a.n_matrices);
  }
  uint32_t own = warp == 0 ? matrix[0] : matrix[1], before = (warp == 0 ? here[0] : here[1]) & ((1u << lane) - 1);
  if (warp < 2 && own < a.n_matrices)
    jobs.job[__popc(before) + (warp == 0 ? 0 : __popc(here[0]))] = {own, own * a.weight[0].n_tiles, threadIdx.x};
  if (threadIdx.x == 0) jobs.n = __popc(here[0]) + __popc(here[1]);
  __syncthreads();
}

template <class P>
static __device__ __forceinline__ void take_rows(const gemm_args &a, uint32_t n, uint32_t has, P &product,
                                                 typename P::block &block) {
  auto row = [&](uint32_t r) { return r >= n ? a.shared_x + (r - n) * a.shared_stride : a.raw.x + r * a.raw.x_stride; };
  product.take_rows(a, has == HAS_BOTH ? 2 * n : n, row, block);
}

/* The tile schedule: row tiles of the shared MLP, then those of the experts, job by job. */
typedef struct gate_up_items {
  uint32_t n_groups;              /* row tiles of a job */
  uint32_t step_jobs, step_tiles; /* from an expert's item to the block's next one */
} gate_up_items;

/* An item. Of the shared MLP: job 0, and tiles go on beyond its last one. */
typedef struct gate_up_cursor {
  uint32_t job, tile;
} gate_up_cursor;

/* gate_of(matrix) is the gate of an expert's outputs. */
template <class P, class F>
static __device__ __forceinline__ void multiply_gate_up(const gemm_args &a, const gate_up_items &items, F &&gate_of) {
  extern __shared__ __align__(128) uint8_t memory[]; /* gemv_bytes: rings; sums [2][gate, up]; rows */
  __shared__ __align__(8) uint64_t filled[GEMV_WARPS_MAX * GEMV_STAGES];
  __shared__ typename P::block block;
  __shared__ gate_up_jobs jobs;
  uint32_t n_warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, buffer = 0;
  uint32_t split = warp % a.n_splits, slot = warp / a.n_splits;
  uint32_t first = split * a.split_units, end = min(a.n_units, first + a.split_units), unit = first;
  bool is_last = split + 1 == a.n_splits; /* the warp of the shortest segment runs the epilogue */
  const uint32_t n_stages = ring_stages_of(a);
  gemv_ring ring = ring_init(memory + warp * n_stages * P::STAGE, filled + warp * GEMV_STAGES, n_stages, P::STAGE);
  float *sums = (float *)(void *)(memory + n_warps * n_stages * P::STAGE);
  uint32_t tile_floats = P::tile_floats(a);
  P product(sums + 4 * tile_floats);
  bool begins = true, own = false; /* the first item is next; the choice of experts is known, and items are theirs */
  uint32_t has = 0, issued = UINT32_MAX;           /* issued: the row tile at `ahead`, if there is one */
  gate_up_cursor at = {0, blockIdx.x}, ahead = at; /* ahead: the copy of whose unit `unit` is issued next */
  auto next_item = [&](gate_up_cursor &c) {
    c.tile += own ? items.step_tiles : gridDim.x;
    if (own) c.job += items.step_jobs;
    if (own && c.tile >= items.n_groups) c.tile -= items.n_groups, c.job++;
  };
  auto exists = [&](const gate_up_cursor &c) { return own ? c.job < jobs.n : c.tile < a.n_shared; };
  auto seek = [&] { issued = !exists(ahead) ? UINT32_MAX : (own ? jobs.job[ahead.job].first_tile : 0) + ahead.tile; };
  auto issue = [&](uint32_t stage) {
    if (issued == UINT32_MAX) return;
    product.issue(a, ring, stage, issued, unit);
    unit += P::UNITS;
    if (unit < end) return;
    unit = first;
    next_item(ahead);
    seek();
  };
  for (;; next_item(at)) {
    bool is_shared = !own && at.tile < a.n_shared;
    if (begins || !(own || is_shared)) {
      /* Copies of the first weights are issued; but where rows are there before the choice, their prologue is first. */
      bool rows_first = begins && !is_shared && a.raw.is_there;
      uint32_t weight = is_shared ? GEMM_SHARED_MLP + slot : a.n_weights == 2 ? slot : 0;
      product.enter(a, a.weight[weight], !is_shared && a.n_weights != 2 ? slot * items.n_groups : 0);
      begins = false;
#pragma unroll 1
      for (uint32_t step = 0; step < 2; step++) {
        if ((step == 0) == rows_first) {
          uint32_t wanted = is_shared ? HAS_BOTH : HAS_OWN;
          if (!a.raw.is_there) wait_for_prior_grids();
          if (has >= wanted) continue;
          take_rows(a, 1, has = wanted, product, block);
          continue;
        }
        if (!is_shared) {
          wait_for_prior_grids();
          launch_dependent_grids();
          find_jobs(a, jobs);
          own = true;
          at = {(at.tile - a.n_shared) / items.n_groups, (at.tile - a.n_shared) % items.n_groups};
        }
        ahead = at;
        seek();
#pragma unroll 1
        for (uint32_t i = 0; i < n_stages; i++) issue((ring.at + i) % n_stages);
      }
      product.open(a, block, slot, lane == 0 && is_last);
    }
    if (!exists(at)) break;
    uint32_t row = own ? 0 : 1;
    float *tile = sums + 2 * buffer * tile_floats;
    product.multiply(a, ring, first, end, row, tile + slot * tile_floats, split, issue);
    __syncthreads(); /* it also says that the sums of the item before have been read */
    if (is_last && slot == 0) {
      /* A half of the warp has the outputs of the gate, the other those of up. */
      uint32_t up = lane / 16, of = lane % 16, out = at.tile * 16 + of, pair = own ? jobs.job[at.job].pair : 0;
      uint32_t matrix = own ? jobs.job[at.job].matrix : 0;
      const gemm_weight *gate = &a.weight[own ? 0 : GEMM_SHARED_MLP];
      float scale = product.scale(block, up, gate[!own || a.n_weights == 2 ? up : 0], matrix);
      float value = product.value(a, block, tile + up * tile_floats, row, of, scale);
      float other = __shfl_down_sync(0xFFFFFFFFu, value, 16);
      if (up == 0 && out < gate->n_out)
        gate->y[(uint64_t)pair * gate->y_stride + out] = gate_of(matrix)(out, value, other);
    }
    buffer ^= 1;
  }
}

/* act(g) * u of an output. */
struct plain_gate {
  const gemm_args &a;
  __device__ __forceinline__ float operator()(uint32_t, float g, float u) const {
    return limited_gate(a.activation, a.limit, g, u);
  }
};

/* ---- host ------------------------------------------------------------------------------------------------ */

static inline uint32_t gate_up_warps(const gemm_args &a) {
  return 2 * a.n_splits;
}

/* How many blocks there are, and what each takes. bytes: shared memory of a block. */
static inline uint32_t gate_up_blocks_of(const cuda_device *d, const gemm_args &a, uint32_t bytes,
                                         gate_up_items *items) {
  uint32_t n_groups = gemv_tiles(a), n_items = a.n_shared + n_groups * a.jobs_max,
           n_blocks = gemv_blocks_of(d, n_items, gate_up_warps(a), bytes);
  *items = {n_groups, n_blocks / n_groups, n_blocks % n_groups};
  return n_blocks;
}

#endif
