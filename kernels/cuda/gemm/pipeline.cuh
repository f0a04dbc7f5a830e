/* SPDX-License-Identifier: MIT */
/* The pipeline of warp-specialised GEMM: a ring of shared-memory stages between producer and consumer warps, the tile
 * scheduler, the mainloop of a consumer warp, and the epilogue; producers are each kernel's own. gemm_dense.cu,
 * gemm_grouped.cu and w8a8_gemm.cu are built of it; int8_gemm.cu uses the ring and the scheduler alone, since its
 * weights are not dequantised. (CUTLASS calls the same design a persistent warp-specialised kernel.)
 *
 * A stage holds the next inputs of the weights, or of the rows. Producer lanes fill the stages by bulk async copies,
 * as far ahead as the ring goes; consumer warps read them. Every stage has two mbarriers: `full` completes when the
 * stage's bytes have come, `empty` when all consumer warps have done with them. The A operand of wgmma is the weights,
 * in registers: a warp dequantises the codes of its row tile once for all rows. B is the activations, in shared
 * memory.
 *
 * Law: a stage is read only after a wait for its `full` barrier and overwritten only after a wait for its `empty`
 * barrier. A warp arrives at `empty` of weights when their codes are in its registers, and at `empty` of rows when the
 * wgmma that read them have ended. */
#ifndef WEFT_KERNELS_CUDA_PIPELINE_CUH
#define WEFT_KERNELS_CUDA_PIPELINE_CUH

#include "kernels/cuda/gemm/call_tiles.cuh"
#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/wgmma.cuh"

/* A position in a ring: the stage, and the parity to wait for at its barrier, which changes with every round. */
typedef struct pipeline_state {
  uint32_t stage, phase;
} pipeline_state;

static __device__ __forceinline__ void advance(pipeline_state &c, uint32_t n) {
  if (++c.stage == n) c.stage = 0, c.phase ^= 1;
}

/* ---- tile scheduler: the work items of persistent blocks, one after another ----------------- */

enum {
  ITEM_TILES = 8,       /* row tiles of an item, and consumer warps of a block: one to a tile */
  SCHEDULER_STAGES = 4, /* of the tile scheduler's ring */
  ITEM_THREADS = 384,
  /* Who must have read an item before its stage is written again: the consumer warps, a producer lane for each row
   * tile of weights, and the producer lane of rows. */
  ITEM_CONSUMERS = ITEM_TILES * WARP_ARRIVALS + ITEM_TILES + 1
};

/* Rows [first, first + n) times 128 outputs of a matrix, from row tile `tile` on. n is 0 behind the last item. */
typedef struct work_item {
  uint32_t matrix, first, n, tile;
} work_item;

/* Takes the next item from the tile scheduler's ring: for a whole warp, all of whose lanes call (is_warp), or for
 * one lane. M: the block's shared memory with the ring of items and its barriers.
 *
 * The item is loaded before the arrival that gives its stage back: an arrival releases, so the loads of its lane, and
 * by __syncwarp() those of the others, come before the write of whoever has waited for `item_empty`. */
template <class M>
static __device__ __forceinline__ work_item acquire_item(M &m, pipeline_state &at, bool is_warp) {
  mbarrier_wait(&m.item_full[at.stage], at.phase);
  work_item item = m.item[at.stage];
  if (is_warp) {
    item.n = __shfl_sync(0xFFFFFFFFu, item.n, 0); /* shows the compiler that all lanes take the same branches */
    __syncwarp();
    mbarrier_arrive_warp(&m.item_empty[at.stage]);
  } else {
    mbarrier_arrive(&m.item_empty[at.stage]);
  }
  advance(at, SCHEDULER_STAGES);
  return item;
}

/* The tile scheduler, one lane: it schedules the block's items for each job, or where there are none each `rows`
 * rows, n_groups groups of outputs. n_tiles: row tiles of a group, in which an item's `tile` is counted. */
template <class M>
static __device__ void schedule_items(const gemm_args &a, M &m, uint32_t rows, uint32_t n_groups, uint32_t n_tiles) {
  pipeline_state at = {0, 1};
  uint32_t n_items = n_groups * (a.jobs != NULL ? *a.n_jobs : (a.n_rows + rows - 1) / rows);
  for (uint32_t index = blockIdx.x;; index += gridDim.x) {
    work_item item = {0, 0, 0, 0};
    if (index < n_items) {
      uint32_t j = index / n_groups;
      item = {0, j * rows, 0, (index - j * n_groups) * n_tiles};
      if (a.jobs != NULL) {
        item.matrix = a.jobs[j].matrix, item.first = a.jobs[j].first, item.n = a.jobs[j].n;
      } else {
        item.n = min(rows, a.n_rows - item.first);
      }
    }
    mbarrier_wait(&m.item_empty[at.stage], at.phase);
    m.item[at.stage] = item;
    mbarrier_arrive(&m.item_full[at.stage]);
    if (item.n == 0) return;
    advance(at, SCHEDULER_STAGES);
  }
}

/* ---- weights --------------------------------------------------------------------------------------------- */

/* Whether a unit is the last one of a weight and holds 64 inputs (packed_layout.cuh). */
template <int T>
static __device__ __forceinline__ bool is_tail_of(const gemm_args &a, uint32_t unit) {
  return packed_shape_of(T).unit == 128 && a.is_tail != 0 && unit + 1 == a.n_units;
}

/* Bytes that a row tile has in the stage that begins at `unit`. */
template <int T>
static __device__ __forceinline__ uint32_t stage_bytes(const gemm_args &a, uint32_t unit) {
  return is_tail_of<T>(a, unit) ? packed_unit_bytes(packed_shape_of(T)) / 2 : packed_unit_bytes(packed_shape_of(T));
}

/* What a lane holds of a stage of weights: the codes of 128 inputs and the scales of the whole stage; in split
 * layouts (packed_is_split) only the scales of the same 128 inputs. */
template <int T>
struct lane_unit {
  lane_codes<T> codes;
  lane_scales<T> scales;
};

/* Loads part u of a row tile's stage: 128 inputs. */
template <int T>
static __device__ __forceinline__ void load_unit(const uint8_t *stage, uint32_t u, bool tail, lane_unit<T> &own) {
  packed_block p = packed_block_of<T>(stage, u, tail);
  uint32_t lane = threadIdx.x % 32;
  load_codes<T>(p, lane, own.codes);
  if (u == 0 || (packed_is_split(T) && packed_shape_of(T).unit == 256))
    load_scales<T>(p, lane / 4, lane % 4, own.scales);
}

/* How warps of kernels of shape S load a unit. Kernels with a gate have an own way. */
template <class S>
struct unit_source {
  template <int T>
  static __device__ __forceinline__ void load(const uint8_t *stage, uint32_t u, bool tail, lane_unit<T> &own) {
    load_unit<T>(stage, u, tail, own);
  }
};

/* A warp's view of the rings. w: its row tile in the first stage of weights; x: the first stage of rows; then the
 * barriers of all stages, and its position in both rings. rows_done: address of the barrier at which the warp arrives
 * when the products with the rows before these have ended; 0: none. S: the stages' units of 128 inputs, their bytes and
 * their number. */
template <class S>
struct consumer_warp {
  const uint8_t *w, *x;
  uint64_t *w_full, *w_empty, *x_full, *x_empty;
  pipeline_state w_at, x_at;
  uint32_t rows_done;
};

/* Two sets of operands: one is read by the products that run while the other is made. each: how many steps of 32 inputs
 * start their products together, which is as many as there are registers for. */
template <int T, int N>
struct operand_buffers {
  static constexpr int each = N <= 4 && packed_bits(T) == 4 ? 2 : 1;
  uint32_t w[2][each][2][4] = {};
};

/* Waits for the next stage of weights and loads its first 128 inputs. */
template <int T, class S>
static __device__ __forceinline__ void load_stage(const consumer_warp<S> &at, bool tail, lane_unit<T> &own) {
  mbarrier_wait(&at.w_full[at.w_at.stage], at.w_at.phase);
  unit_source<S>::template load<T>(at.w + at.w_at.stage * S::w_stage, 0, tail, own);
}

static __device__ __forceinline__ void release_rows(uint32_t &rows_done) {
  if (rows_done != 0) mbarrier_arrive(rows_done);
  rows_done = 0;
}

/* Keeps operands alive. It stands after the wait that ends the wgmma which read them, because the compiler does not
 * see that the products need the registers until then, and would use them for something else. */
template <int EACH>
static __device__ __forceinline__ void fence_operands(const uint32_t (&w)[EACH][2][4]) {
#pragma unroll
  for (int i = 0; i < 2 * EACH; i++) {
    const uint32_t(&own)[4] = w[i / 2][i % 2];
    asm volatile("" ::"r"(own[0]), "r"(own[1]), "r"(own[2]), "r"(own[3]));
  }
}

/* Issues the products of 128 inputs with the rows that the descriptor `rows` names; the last of them may still run
 * afterwards. STEPS: steps of 32 inputs, 4, or 2 in a unit of 64 inputs. load_next is called when all codes have become
 * operands, and loads the next ones. */
template <int T, int N, int STEPS, class S, class F>
static __device__ __forceinline__ void multiply_unit(consumer_warp<S> &at, operand_buffers<T, N> &operands,
                                                     uint64_t rows, const lane_codes<T> &codes,
                                                     const dequant_factors &factors, float (&sum)[N][4],
                                                     F &&load_next) {
  constexpr int each = operand_buffers<T, N>::each;
  constexpr bool as_they_are =
      packed_bits(T) == 16; /* codes are operands: the products that read them must end before the next are loaded */
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    const int buffer = i / each % 2;
    dequantise_operands<T>(codes, factors, i, operands.w[buffer][i % each]);
    if (i == STEPS - 1 && !as_they_are) load_next();
    if (i % each < each - 1) continue;
    wgmma_fence();
#pragma unroll
    for (int e = 0; e < each; e++) {
      const int step = i + 1 - each + e;
      uint64_t b = rows + (uint64_t)((step / 2 * 1024 + step % 2 * 64) >> 4);
      wgmma<N, packed_is_bf16(T)>(sum, operands.w[buffer][e][0], b);
      wgmma<N, packed_is_bf16(T)>(sum, operands.w[buffer][e][1], b + (32 >> 4));
    }
    wgmma_commit();
    if (as_they_are && i == STEPS - 1)
      wgmma_wait<0>();
    else
      wgmma_wait<1>();
    fence_operands(operands.w[1 - buffer]);
    if (i == each - 1) release_rows(at.rows_done);
  }
  if (as_they_are) load_next();
}

/* Issues the products of a stage of weights, whose first codes are in `own`. Afterwards `own` has the first codes of
 * the next stage, if there is one. */
template <int T, int N, int STEPS, class S>
static __device__ __forceinline__ void multiply_stage(consumer_warp<S> &at, operand_buffers<T, N> &operands,
                                                      const prescale_powers &powers, bool is_next, bool is_next_tail,
                                                      lane_unit<T> &own, float (&sum)[N][4]) {
  uint64_t rows;
#pragma unroll
  for (uint32_t u = 0; u < S::w_units; u++) {
    dequant_factors factors;
    make_dequant_factors<T>(own.scales, u, threadIdx.x % 4, powers, factors);
    if (u % S::x_units == 0) {
      mbarrier_wait(&at.x_full[at.x_at.stage], at.x_at.phase);
      rows = wgmma_descriptor_swizzled(at.x + at.x_at.stage * S::x_stage, 2048);
    }
    multiply_unit<T, N, STEPS, S>(
        at, operands, rows + (u % S::x_units * S::x_unit >> 4), own.codes, factors, sum, [&]() {
          if (u + 1 < S::w_units) {
            unit_source<S>::template load<T>(at.w + at.w_at.stage * S::w_stage, u + 1, false, own);
            return;
          }
          __syncwarp();
          mbarrier_arrive_warp(&at.w_empty[at.w_at.stage]);
          advance(at.w_at, S::w_stages);
          if (is_next) load_stage<T, S>(at, is_next_tail, own);
        });
    if ((u + 1) % S::x_units != 0) continue;
    if (WARP_ARRIVALS > 1 || threadIdx.x % 32 == 0) at.rows_done = shared_address(&at.x_empty[at.x_at.stage]);
    advance(at.x_at, S::x_stages);
  }
}

/* Waits for the products that still run. */
template <int T, int N, class S>
static __device__ __forceinline__ void end_products(consumer_warp<S> &at, const operand_buffers<T, N> &operands) {
  wgmma_wait<0>();
  fence_operands(operands.w[0]);
  fence_operands(operands.w[1]);
  release_rows(at.rows_done);
}

/* ---- epilogue -------------------------------------------------------------------------------------------- */

/* The inverses of the prologue's scaling of an item's rows (gemm.h). Of every 32 rows a lane has one. */
template <int N>
struct rows_unscale {
  float of[(N + 3) / 4];
};

/* Loads those of rows [first, first + n): long before they are needed, so that no warp waits for them. */
template <int N>
static __device__ __forceinline__ rows_unscale<N> load_unscale(const gemm_args &a, uint32_t first, uint32_t n) {
  rows_unscale<N> unscale;
#pragma unroll
  for (uint32_t i = 0; i < (N + 3) / 4; i++) unscale.of[i] = a.x_unscale[first + min(32 * i + threadIdx.x % 32, n - 1)];
  return unscale;
}

/* The epilogue: stores a warp's accumulators of row tile `tile` with rows [first, first + n), unscaled. Lane 4 g + c
 * has, of every eight rows, rows 2 c and 2 c + 1 of outputs g and g + 8. So eight lanes write 32 neighbouring bytes,
 * which is the least that memory takes. w_unscale: weight_unscale_of of the weight (gemm.h). */
template <int N>
static __device__ __forceinline__ void run_epilogue(const gemm_weight &weight, uint32_t tile, uint32_t first,
                                                    uint32_t n, float w_unscale, const rows_unscale<N> &unscale,
                                                    const float (&sum)[N][4]) {
  uint32_t lane = threadIdx.x % 32, out = tile * 16 + lane / 4;
  float *y = weight.y + (uint64_t)(first + lane % 4 * 2) * weight.y_stride + out;
#pragma unroll
  for (int i = 0; i < N; i++, y += 8 * weight.y_stride) {
    if (8 * i >= n) break;
#pragma unroll
    for (uint32_t j = 0; j < 2; j++) {
      uint32_t row = lane % 4 * 2 + j;
      float undo = __shfl_sync(0xFFFFFFFFu, unscale.of[i / 4], (int)(i % 4 * 8 + row));
      if (8 * i + row >= n) continue;
      if (out < weight.n_out) y[j * weight.y_stride] = __fmul_rn(__fmul_rn(sum[i][j], undo), w_unscale);
      if (out + 8 < weight.n_out) y[j * weight.y_stride + 8] = __fmul_rn(__fmul_rn(sum[i][j + 2], undo), w_unscale);
    }
  }
}

#endif
