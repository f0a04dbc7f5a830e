/* SPDX-License-Identifier: MIT */
/* W8A8 GEMM from weights that were requantised to int8 ahead of time (weights/int8_weights.h): many rows, dense and
 * grouped. Persistent and warp-specialised: a work item is up to 192 rows x 128 columns, in two column blocks. Both
 * operands of wgmma (m64n128k32, s8 x s8 -> s32) come from shared memory, so a consumer warp dequantises nothing.
 *
 *   consumer  one to three warpgroups with 64 of the rows each. Two and more take turns at the tensor cores
 *             (take_turn): while one scales the accumulators of a span, or runs its epilogue, the others multiply. One
 *             alone has registers to start the next span before it scales. A warpgroup whose rows an item does not
 *             have takes no turn and releases its stages unread
 *   producer  four more warps with a lane each at work: the tile scheduler, one for rows, one for columns, one for
 *             scales and steps. Copies are as large as they can be: to start one takes a lane some 60 ns, whatever its
 *             size
 *   stage     128 inputs of rows and columns, as many as have room; scales and steps, which belong to 256, have a ring
 *             of their own
 *
 * Law: a result has the bits of w8a8_gemm, which has the same sums in the same order. A stage is read and written
 * again as pipeline.cuh says; a warp arrives at `empty` when the wgmma that read the stage have ended. */
#include "kernels/cuda/gemm/w8a8.cuh"
#include "kernels/cuda/gemm/int8_store.cuh"
#include "kernels/cuda/gemm/int8_jobs.h"
#include "kernels/cuda/gemm/pipeline.cuh"
#include "kernels/cuda/moe/limited_gate.cuh"

enum {
  GROUPS_MAX = 3,
  GROUP_ROWS = 64,
  SUMS = 16,        /* tiles of 8 columns */
  EARLY_ROWS = 512, /* up to which a dense product starts early, */
  MANY_ROWS = 2048, /* and from which on, */
  MANY_JOBS = 200,  /* as one does whose bound of jobs (jobs_max) is as high */
  WIDE_PAIRS = 512  /* pairs of column blocks from which on a product is wide */
};
static_assert(GROUPS_MAX * GROUP_ROWS == INT8_JOB_ROWS, "a job is an item's rows");

/* A kernel whose items have up to G * 64 rows. */
template <int G>
struct int8_shape {
  static constexpr uint32_t groups = G, rows = G * GROUP_ROWS, warps = 4 * G /* that multiply */,
                            threads = 32 * (warps + 4);
  static constexpr uint32_t rows_bytes = rows * 128 /* of a stage */, stage = rows_bytes + 2 * INT8_UNIT_BYTES;
  static constexpr uint32_t stages = G == 1 ? 9 : G == 2 ? 6 : 5;
  static constexpr uint32_t factors = (rows + 2 * INT8_BLOCK) * 4; /* of a span: scales of rows, steps of two blocks */
  static constexpr uint32_t factor_stages = G == 3 ? 4 : 6, bytes = stages * stage + factor_stages * factors;
};

template <class S>
struct int8_memory {
  uint64_t full[S::stages], empty[S::stages], factors_full[S::factor_stages], factors_empty[S::factor_stages];
  uint64_t turn[S::groups]; /* a group's turn to start products */
  uint64_t item_full[SCHEDULER_STAGES], item_empty[SCHEDULER_STAGES];
  work_item item[SCHEDULER_STAGES]; /* tile: which pair of column blocks */
};

/* ---- columns --------------------------------------------------------------------------------------------- */

static __host__ __device__ __forceinline__ uint32_t blocks_of(const gemm_weight &weight) {
  return (weight.n_tiles + 3) / 4;
}

/* Pairs of column blocks: of all weights in one sequence; gated: a block of the gate and the same one of up. */
static __host__ __device__ __forceinline__ uint32_t pairs_of(const gemm_args &a) {
  if (a.gated) return a.n_weights == 2 ? blocks_of(a.weight[0]) : blocks_of(a.weight[0]) / 2;
  uint32_t n = 0;
  for (uint32_t w = 0; w < a.n_weights; w++) n += blocks_of(a.weight[w]);
  return (n + 1) / 2;
}

/* Half `half` of a pair: block `block` of weight `w`. Behind the last block it names one that does not exist. */
typedef struct column_block {
  uint32_t w, block;
} column_block;

static __device__ __forceinline__ column_block find_columns(const gemm_args &a, uint32_t pair, uint32_t half) {
  if (a.gated) return a.n_weights == 2 ? column_block{half, pair} : column_block{0, pair + half * pairs_of(a)};
  uint32_t w = 0, block = 2 * pair + half;
  for (; w + 1 < a.n_weights && block >= blocks_of(a.weight[w]); w++) block -= blocks_of(a.weight[w]);
  return {w, block};
}

/* Its number among the blocks of all matrices; one that does not exist counts as the last one of its matrix. */
static __device__ __forceinline__ uint64_t block_at(const gemm_weight &weight, uint32_t matrix, uint32_t block) {
  uint32_t n = blocks_of(weight);
  return (uint64_t)matrix * n + min(block, n - 1);
}

/* Whether the weights of a dense product are so many that no cache keeps them from one item of rows to the next. */
static __host__ __device__ __forceinline__ bool is_wide(const gemm_args &a) {
  return a.jobs == NULL && pairs_of(a) >= WIDE_PAIRS;
}

/* ---- producer warps ------------------------------------------------------------------------------------- */

/* schedule_items for a wide product: items of the same columns follow one another, so that memory is asked for these
 * columns once. */
template <class S>
static __device__ void schedule_wide_items(const gemm_args &a, int8_memory<S> &m) {
  pipeline_state at = {0, 1};
  const uint32_t rows = a.job_rows, n_rows_items = (a.n_rows + rows - 1) / rows, n_items = pairs_of(a) * n_rows_items;
  for (uint32_t index = blockIdx.x;; index += gridDim.x) {
    work_item item = {0, 0, 0, 0};
    if (index < n_items) {
      const uint32_t first = index % n_rows_items * rows;
      item = {0, first, min(rows, a.n_rows - first), index / n_rows_items};
    }
    mbarrier_wait(&m.item_empty[at.stage], at.phase);
    m.item[at.stage] = item;
    mbarrier_arrive(&m.item_full[at.stage]);
    if (item.n == 0) return;
    advance(at, SCHEDULER_STAGES);
  }
}

template <class S>
static __device__ void produce_rows(const gemm_args &a, uint8_t *ring, int8_memory<S> &m) {
  pipeline_state at = {0, 1}, item_at = {0, 0};
  for (work_item item; (item = acquire_item(m, item_at, false)).n > 0;) {
    const uint8_t *from = (const uint8_t *)a.x + (uint64_t)item.first / 8 * 1024;
    const uint32_t n_bytes = (item.n + 7) / 8 * 1024;
    for (uint32_t half = 0; half < 2 * w8a8_spans_of(a); half++, from += (uint64_t)a.x_tiles * 1024) {
      mbarrier_wait(&m.empty[at.stage], at.phase);
      mbarrier_expect(&m.full[at.stage], n_bytes);
      bulk_copy(ring + at.stage * S::stage, from, n_bytes, &m.full[at.stage]);
      advance(at, S::stages);
    }
  }
}

template <class S>
static __device__ void produce_columns(const gemm_args &a, uint8_t *ring, int8_memory<S> &m) {
  pipeline_state at = {0, 1}, item_at = {0, 0};
  for (work_item item; (item = acquire_item(m, item_at, false)).n > 0;) {
    const uint8_t *from[2];
    for (uint32_t block = 0; block < 2; block++) {
      column_block c = find_columns(a, item.tile, block);
      from[block] = a.weight[c.w].int8_weights +
                    block_at(a.weight[c.w], item.matrix, c.block) * w8a8_spans_of(a) * 2 * INT8_UNIT_BYTES;
    }
    for (uint32_t half = 0; half < 2 * w8a8_spans_of(a); half++) {
      uint8_t *to = ring + at.stage * S::stage + S::rows_bytes;
      mbarrier_wait(&m.empty[at.stage], at.phase);
      mbarrier_expect(&m.full[at.stage], 2 * INT8_UNIT_BYTES);
      bulk_copy(to, from[0], INT8_UNIT_BYTES, &m.full[at.stage]);
      bulk_copy(to + INT8_UNIT_BYTES, from[1], INT8_UNIT_BYTES, &m.full[at.stage]);
      from[0] += INT8_UNIT_BYTES, from[1] += INT8_UNIT_BYTES;
      advance(at, S::stages);
    }
  }
}

/* Scales of the rows, and steps of the columns. */
template <class S>
static __device__ void produce_scales(const gemm_args &a, uint8_t *ring, int8_memory<S> &m) {
  pipeline_state at = {0, 1}, item_at = {0, 0};
  const uint32_t n_spans = w8a8_spans_of(a), steps_bytes = INT8_BLOCK * 4;
  for (work_item item; (item = acquire_item(m, item_at, false)).n > 0;) {
    const uint8_t *scales = (const uint8_t *)a.x + w8a8_scales_at(n_spans, a.x_tiles) + (uint64_t)item.first / 8 * 32;
    const float *from[2];
    const uint32_t n_bytes = (item.n + 7) / 8 * 32;
    for (uint32_t block = 0; block < 2; block++) {
      column_block c = find_columns(a, item.tile, block);
      from[block] = a.weight[c.w].fine_steps + block_at(a.weight[c.w], item.matrix, c.block) * n_spans * INT8_BLOCK;
    }
    for (uint32_t span = 0; span < n_spans; span++, scales += (uint64_t)a.x_tiles * 32) {
      uint8_t *to = ring + at.stage * S::factors;
      uint64_t *full = &m.factors_full[at.stage];
      mbarrier_wait(&m.factors_empty[at.stage], at.phase);
      mbarrier_expect(full, n_bytes + 2 * steps_bytes);
      bulk_copy(to, scales, n_bytes, full);
      for (uint32_t block = 0; block < 2; block++)
        bulk_copy(to + S::rows * 4 + block * steps_bytes, from[block] + span * INT8_BLOCK, steps_bytes, full);
      advance(at, S::factor_stages);
    }
  }
}

/* ---- products -------------------------------------------------------------------------------------------- */

typedef int32_t span_sums[SUMS][4];

#define INT8_WGMMA(rows)                                                                                     \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k32.s32." rows \
               ".s8 {" WGMMA_128 "}, %64, %65, p;\n}\n"                                                      \
               : W8A8_SUMS_16                                                                                \
               : "l"(a), "l"(b), "r"(add))

/* d (+)= a b of 64 rows x 128 columns x 32 inputs, both in shared memory; add 0: from zero. UNSIGNED: the rows' numbers
 * have no sign. */
template <bool UNSIGNED>
static __device__ __forceinline__ void int8_wgmma(span_sums &d, uint64_t a, uint64_t b, int32_t add) {
  if constexpr (UNSIGNED)
    INT8_WGMMA("u8");
  else
    INT8_WGMMA("s8");
}

/* Waits until the next stage is full. */
template <class S>
static __device__ __forceinline__ const uint8_t *acquire_stage(const uint8_t *ring, int8_memory<S> &m,
                                                               pipeline_state &at) {
  const uint8_t *stage = ring + at.stage * S::stage;
  mbarrier_wait(&m.full[at.stage], at.phase);
  advance(at, S::stages);
  return stage;
}

template <class S>
static __device__ __forceinline__ void release_stage(int8_memory<S> &m, pipeline_state &at) {
  mbarrier_arrive_warp(&m.empty[at.stage]);
  advance(at, S::stages);
}

/* Starts the products of half a span. group: the warpgroup's own, in a uniform register, so that no descriptor has to
 * be brought to one. */
template <class S, bool UNSIGNED>
static __device__ __forceinline__ void start_half(const uint8_t *stage, uint32_t group, int32_t add, span_sums &d) {
  uint64_t rows = wgmma_descriptor_swizzled(stage + group * GROUP_ROWS * 128, 1024);
  uint64_t columns = wgmma_descriptor_swizzled(stage + S::rows_bytes, 1024);
#pragma unroll
  for (int i = 0; i < 4; i++)
    int8_wgmma<UNSIGNED>(d, rows + (uint64_t)(32 * i >> 4), columns + (uint64_t)(32 * i >> 4), i == 0 ? add : 1);
}

/* ---- epilogue -------------------------------------------------------------------------------------------- */

/* Whether all rows of a group exist, and all outputs of a block that begins at output `first`. */
static __device__ __forceinline__ bool is_whole(const gemm_weight &weight, const work_item &item, uint32_t first) {
  return item.n >= threadIdx.x / 128 * GROUP_ROWS + GROUP_ROWS && first + INT8_BLOCK <= weight.n_out &&
         ((uintptr_t)weight.y & 15u) == 0 && weight.y_stride % 4 == 0;
}

/* How many of the outputs from `first` on a row of the item has. */
static __device__ __forceinline__ uint32_t outputs_left(const gemm_weight &weight, const work_item &item, uint32_t row,
                                                        uint32_t first) {
  return row < item.n && first < weight.n_out ? weight.n_out - first : 0;
}

/* Stores the results of one column block, whose sums are those of column tiles n and on. */
template <bool WHOLE, class Y>
static __device__ __forceinline__ void store_block(const gemm_weight &weight, const work_item &item, uint32_t row,
                                                   uint32_t first, int n, const float (&sums)[SUMS][4]) {
  const float scale = scale_of(weight, item.matrix);
  first += threadIdx.x % 4 * 4;
#pragma unroll
  for (int r = 0; r < 2; r++, row += 8) {
    Y *y = (Y *)(void *)weight.y + (uint64_t)(item.first + row) * weight.y_stride + first;
#pragma unroll
    for (int m = 0; m < 4; m++) {
      float v[4];
      four_of(sums, n + 2 * m, r, scale, v);
      store_four<WHOLE>(y + 16 * m, outputs_left(weight, item, row, first + 16 * m), v);
    }
  }
}

template <class Y>
static __device__ __forceinline__ void run_epilogue(const gemm_args &a, const work_item &item, uint32_t row,
                                                    const float (&sums)[SUMS][4]) {
#pragma unroll
  for (int block = 0; block < 2; block++) {
    column_block c = find_columns(a, item.tile, (uint32_t)block);
    const gemm_weight &weight = a.weight[c.w];
    const uint32_t first = c.block * INT8_BLOCK;
    if (c.block >= blocks_of(weight)) return;
    if (is_whole(weight, item, first))
      store_block<true, Y>(weight, item, row, first, 8 * block, sums);
    else
      store_block<false, Y>(weight, item, row, first, 8 * block, sums);
  }
}

/* act(g) * u: the first block's columns are of the gate, the second one's the same of up. */
template <bool WHOLE>
static __device__ __forceinline__ void store_gated_block(const gemm_args &a, const work_item &item, uint32_t row,
                                                         const float (&sums)[SUMS][4]) {
  const gemm_weight &weight = a.weight[0];
  const float scale[2] = {scale_of(weight, item.matrix), scale_of(a.weight[a.n_weights - 1], item.matrix)};
  const uint32_t first = item.tile * INT8_BLOCK + threadIdx.x % 4 * 4;
#pragma unroll
  for (int r = 0; r < 2; r++, row += 8) {
    float *y = weight.y + (uint64_t)(item.first + row) * weight.y_stride + first;
#pragma unroll
    for (int m = 0; m < 4; m++) {
      float g[4], u[4];
      four_of(sums, 2 * m, r, scale[0], g);
      four_of(sums, 8 + 2 * m, r, scale[1], u);
#pragma unroll
      for (int i = 0; i < 4; i++) g[i] = limited_gate(a.activation, a.limit, g[i], u[i]);
      store_four<WHOLE>(y + 16 * m, outputs_left(weight, item, row, first + 16 * m), g);
    }
  }
}

static __device__ __forceinline__ void run_gated_epilogue(const gemm_args &a, const work_item &item, uint32_t row,
                                                          const float (&sums)[SUMS][4]) {
  if (is_whole(a.weight[0], item, item.tile * INT8_BLOCK))
    store_gated_block<true>(a, item, row, sums);
  else
    store_gated_block<false>(a, item, row, sums);
}

/* ---- the kernel ------------------------------------------------------------------------------------------ */

/* A consumer warpgroup's positions in the rings: the stage it reads next, the one it releases next, the scales and
 * steps. row: the lane's first row of an item; the other is 8 more. turn: the parity to wait for at its turn.
 * n_groups: those with rows of the item. */
typedef struct int8_consumer {
  pipeline_state read, spent, factors;
  uint32_t row, group, turn, n_groups;
} int8_consumer;

/* The warpgroups take turns at starting the products of a span, each when those of the one before are half done, so
 * that they do not end together and leave the tensor cores idle while all of them scale. */
template <class S>
static __device__ __forceinline__ void take_turn(int8_memory<S> &m, int8_consumer &at) {
  mbarrier_wait(&m.turn[at.group], at.turn);
  at.turn ^= 1;
}

template <class S>
static __device__ __forceinline__ void pass_turn(int8_memory<S> &m, const int8_consumer &at) {
  mbarrier_arrive_warp(&m.turn[at.group + 1 < at.n_groups ? at.group + 1 : 0]);
}

/* Starts the products of a span. */
template <class S, bool UNSIGNED>
static __device__ __forceinline__ void start_span(const uint8_t *ring, int8_memory<S> &m, int8_consumer &at,
                                                  span_sums &d) {
  const uint8_t *first = acquire_stage(ring, m, at.read), *second = acquire_stage(ring, m, at.read);
  if (S::groups > 1) take_turn(m, at);
  wgmma_fence();
  start_half<S, UNSIGNED>(first, at.group, 0, d);
  wgmma_commit();
  start_half<S, UNSIGNED>(second, at.group, 1, d);
  wgmma_commit();
}

/* Waits for the products of a span, and adds them to the sums. RUNNING: those of the next span have been started. */
template <class S, bool RUNNING>
static __device__ __forceinline__ void end_span(const uint8_t *ring, int8_memory<S> &m, int8_consumer &at,
                                                const span_sums &d, float (&sums)[SUMS][4]) {
  wgmma_wait<RUNNING ? 3 : 1>();
  if (S::groups > 1) pass_turn(m, at);
  release_stage(m, at.spent);
  mbarrier_wait(&m.factors_full[at.factors.stage], at.factors.phase);
  wgmma_wait<RUNNING ? 2 : 0>();
  release_stage(m, at.spent);
  const float *of = (const float *)(const void *)(ring + S::stages * S::stage + at.factors.stage * S::factors);
  const float scale[2] = {of[at.row], of[at.row + 8]};
  scale_sums(scale, of + S::rows, d, sums);
  __threadfence_block(); /* the factors have been read, as in w8a8_pipeline.cuh */
  __syncwarp();
  mbarrier_arrive_warp(&m.factors_empty[at.factors.stage]);
  advance(at.factors, S::factor_stages);
}

/* The spans of an item for a group that is alone: the products of the next span run while it scales. */
template <class S, bool UNSIGNED>
static __device__ __forceinline__ void multiply_alone(uint32_t n_spans, const uint8_t *ring, int8_memory<S> &m,
                                                      int8_consumer &at, float (&sums)[SUMS][4]) {
  span_sums even = {}, odd = {};
  start_span<S, UNSIGNED>(ring, m, at, even);
  for (; n_spans > 2; n_spans -= 2) {
    start_span<S, UNSIGNED>(ring, m, at, odd);
    end_span<S, true>(ring, m, at, even, sums);
    start_span<S, UNSIGNED>(ring, m, at, even);
    end_span<S, true>(ring, m, at, odd, sums);
  }
  if (n_spans > 1) {
    start_span<S, UNSIGNED>(ring, m, at, odd);
    end_span<S, true>(ring, m, at, even, sums);
    end_span<S, false>(ring, m, at, odd, sums);
  } else {
    end_span<S, false>(ring, m, at, even, sums);
  }
}

/* Releases the stages of a span unread. */
template <class S>
static __device__ __forceinline__ void skip_span(const uint8_t *ring, int8_memory<S> &m, int8_consumer &at) {
  (void)acquire_stage(ring, m, at.read), (void)acquire_stage(ring, m, at.read);
  mbarrier_wait(&m.factors_full[at.factors.stage], at.factors.phase);
  __syncwarp();
  release_stage(m, at.spent), release_stage(m, at.spent);
  mbarrier_arrive_warp(&m.factors_empty[at.factors.stage]);
  advance(at.factors, S::factor_stages);
}

template <class S, bool GATED, class Y, bool UNSIGNED>
static __device__ __forceinline__ void multiply_item(const gemm_args &a, const work_item &item, const uint8_t *ring,
                                                     int8_memory<S> &m, int8_consumer &at) {
  float sums[SUMS][4] = {};
  if constexpr (S::groups == 1) {
    multiply_alone<S, UNSIGNED>(w8a8_spans_of(a), ring, m, at, sums);
  } else {
    span_sums d = {};
    for (uint32_t span = 0; span < w8a8_spans_of(a); span++) {
      start_span<S, UNSIGNED>(ring, m, at, d);
      end_span<S, false>(ring, m, at, d, sums);
    }
  }
  if constexpr (GATED)
    run_gated_epilogue(a, item, at.row, sums);
  else
    run_epilogue<Y>(a, item, at.row, sums);
}

template <class S>
static __device__ __forceinline__ void init_mbarriers(int8_memory<S> &m) {
  for (uint32_t i = 0; i < S::stages; i++)
    mbarrier_init(&m.full[i], 2), mbarrier_init(&m.empty[i], S::warps * WARP_ARRIVALS);
  for (uint32_t i = 0; i < S::factor_stages; i++)
    mbarrier_init(&m.factors_full[i], 1), mbarrier_init(&m.factors_empty[i], S::warps * WARP_ARRIVALS);
  for (uint32_t i = 0; i < S::groups; i++) mbarrier_init(&m.turn[i], 4 * WARP_ARRIVALS);
  for (uint32_t i = 0; i < SCHEDULER_STAGES; i++)
    mbarrier_init(&m.item_full[i], 1), mbarrier_init(&m.item_empty[i], S::warps * WARP_ARRIVALS + 3);
  mbarrier_init_fence();
}

/* GATED: results are act(g) * u, in float. */
template <class S, bool GATED, class Y, bool UNSIGNED>
static __global__ void __launch_bounds__(S::threads, 1) int8_gemm_kernel(const __grid_constant__ gemm_args a) {
  extern __shared__ __align__(1024) uint8_t ring[]; /* stages; scales and steps */
  __shared__ int8_memory<S> m;
  uint32_t group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) init_mbarriers(m);
  __syncthreads();
  launch_dependent_grids();
  if (group == S::groups) {
    if (S::groups == 3) setmaxnreg_dec<56>();
    if (threadIdx.x % 32 != 0) return;
    uint32_t warp = threadIdx.x / 32 - S::warps;
    /* No kernel writes weights while steps run, so the columns of items that are no jobs are copied before the wait. */
    if (a.jobs != NULL || warp % 2 == 1) wait_for_prior_grids();
    if (warp == 0 && is_wide(a)) schedule_wide_items(a, m);
    if (warp == 0 && !is_wide(a)) schedule_items(a, m, a.job_rows, pairs_of(a), 1);
    if (warp == 1) produce_rows(a, ring, m);
    if (warp == 2) produce_columns(a, ring, m);
    if (warp == 3) produce_scales(a, ring + S::stages * S::stage, m);
    return;
  }
  if (S::groups == 3) setmaxnreg_inc<152>();
  wait_for_prior_grids();
  const uint32_t row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  int8_consumer at = {{0, 0}, {0, 0}, {0, 0}, row, group, group == 0 ? 1u : 0u, 0}; /* the first turn waits for none */
  pipeline_state item_at = {0, 0};
  for (work_item item; (item = acquire_item(m, item_at, true)).n > 0;) {
    at.n_groups = (item.n + GROUP_ROWS - 1) / GROUP_ROWS;
    if (group < at.n_groups)
      multiply_item<S, GATED, Y, UNSIGNED>(a, item, ring, m, at);
    else
      for (uint32_t span = 0; span < w8a8_spans_of(a); span++) skip_span(ring, m, at);
  }
}

/* ---- host ------------------------------------------------------------------------------------------------ */

bool int8_gemm_takes(const gemm_args *args) {
  for (uint32_t w = 0; w < args->n_weights; w++)
    if (args->weight[w].int8_weights == NULL) return false;
  if (args->jobs != NULL) return args->job_rows == INT8_JOB_ROWS || int8_jobs_takes(args);
  return args->n_rows >= (is_wide(*args) ? INT8_MIN_ROWS_WIDE : INT8_MIN_ROWS);
}

bool int8_gemm_has_gated_epilogue(const gemm_args *args) {
  return args->n_weights == 2 ? args->weight[0].n_out == args->weight[1].n_out
                              : args->n_weights == 1 && args->weight[0].n_tiles % 8 == 0;
}

/* Rows of an item without jobs: those with which the multiprocessors are done first, if each takes one item after
 * another. One with work for fewer warpgroups takes less time, but not in proportion. */
static uint32_t item_rows(const cuda_device *d, const gemm_args *a) {
  static const uint32_t time[GROUPS_MAX + 1] = {0, 12, 18, 23}; /* of one relative to the others, by its groups */
  uint32_t best = GROUPS_MAX, least = UINT32_MAX;
  for (uint32_t groups = GROUPS_MAX; groups > 0; groups--) {
    const uint32_t n_items = pairs_of(*a) * cuda_ceil(a->n_rows, groups * GROUP_ROWS);
    const uint32_t work = cuda_ceil(n_items, d->n_multiprocessors) * time[groups];
    if (work < least) best = groups, least = work;
  }
  return best * GROUP_ROWS;
}

/* a NULL: sets the kernel up. */
template <int G, bool GATED, class Y, bool UNSIGNED>
static weft_status launch_shape(cuda_device *d, const gemm_args *a) {
  using S = int8_shape<G>;
  auto kernel = int8_gemm_kernel<S, GATED, Y, UNSIGNED>;
  if (a == NULL) {
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)S::bytes);
    return cuda_judge(d, error, "setting up products of integers");
  }
  uint64_t n_jobs = a->jobs != NULL ? a->jobs_max : cuda_ceil(a->n_rows, S::rows);
  uint64_t n_items = n_jobs * pairs_of(*a);
  uint32_t n_blocks = n_items < d->n_multiprocessors ? (uint32_t)n_items : d->n_multiprocessors;
  const bool early = a->jobs != NULL ? a->jobs_max >= MANY_JOBS : a->n_rows <= EARLY_ROWS || a->n_rows >= MANY_ROWS;
  if (early)
    cuda_start(d, kernel, n_blocks, S::threads, S::bytes, *a);
  else /* blocks that start before the kernel before has ended would crowd each other */
    kernel<<<n_blocks, S::threads, S::bytes, d->stream>>>(*a);
  return cuda_launched(d, "a product of integers");
}

/* A product without jobs, with the rows of an item that suit it. a NULL: sets the kernels up. */
template <bool GATED>
static weft_status launch_dense(cuda_device *d, const gemm_args *a) {
  if (a == NULL) {
    weft_status status = launch_shape<1, GATED, float, false>(d, NULL);
    if (status == WEFT_OK) status = launch_shape<2, GATED, float, false>(d, NULL);
    return status == WEFT_OK ? launch_shape<3, GATED, float, false>(d, NULL) : status;
  }
  gemm_args own = *a;
  own.job_rows = item_rows(d, a);
  return own.job_rows == GROUP_ROWS       ? launch_shape<1, GATED, float, false>(d, &own)
         : own.job_rows == 2 * GROUP_ROWS ? launch_shape<2, GATED, float, false>(d, &own)
                                          : launch_shape<3, GATED, float, false>(d, &own);
}

weft_status int8_gemm(cuda_device *d, const gemm_args *args) {
  if (int8_jobs_takes(args)) return int8_jobs(d, args);
  if (args->jobs == NULL) return args->gated ? launch_dense<true>(d, args) : launch_dense<false>(d, args);
  return args->gated       ? launch_shape<3, true, float, false>(d, args)
         : args->y_is_bf16 ? launch_shape<3, false, __nv_bfloat16, false>(d, args)
                           : launch_shape<3, false, float, false>(d, args);
}

weft_status int8_gemm_unsigned(cuda_device *d, const gemm_args *args) {
  return launch_shape<3, false, float, true>(d, args);
}

weft_status int8_gemm_setup(cuda_device *d) {
  weft_status status = launch_dense<true>(d, NULL);
  if (status == WEFT_OK) status = launch_dense<false>(d, NULL);
  if (status == WEFT_OK) status = launch_shape<3, false, __nv_bfloat16, false>(d, NULL);
  return status == WEFT_OK ? launch_shape<3, false, float, true>(d, NULL) : status;
}
