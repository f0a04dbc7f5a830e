/* SPDX-License-Identifier: MIT */
/* Products of 8 bits from ready integers (integers.h): many rows, dense and of experts. Blocks stay on the card and
 * take one item after another: up to 192 rows x 128 columns, in two column blocks. Rows and columns both come from
 * shared memory, so a warp makes nothing but sums.
 *
 *   group     four warps with 64 of the rows; a block has three. While one scales the sums of a span, or stores
 *             results, the others multiply. A group whose rows an item does not have lets its stages pass
 *   bringer   four more warps with a lane each at work: one deals out the items, one copies rows, one columns, one
 *             scales and steps. Copies are as large as they can be: to start one takes a lane some 60 ns, whatever its
 *             size
 *   stage     128 inputs of rows and columns; scales and steps, which belong to 256, have a ring of their own
 *
 * Law: a result has the bits of eight_multiply, which has the same sums in the same order. A stage is read and written
 * again as rings.cuh says; a warp arrives at `empty` when the products that read the stage have ended. */
#include "kernels/cuda/eight.cuh"
#include "kernels/cuda/integers.h"
#include "kernels/cuda/rings.cuh"

enum {
  GROUPS = 3,
  GROUP_ROWS = 64,
  ITEM_ROWS = GROUPS * GROUP_ROWS,
  WARPS = 4 * GROUPS, /* that multiply */
  THREADS = 32 * (WARPS + 4),
  ROWS_BYTES = ITEM_ROWS * 128, /* of a stage */
  STAGE_BYTES = ROWS_BYTES + 2 * INTEGERS_UNIT_BYTES,
  STAGES = 5,
  FACTORS_BYTES = (ITEM_ROWS + 2 * INTEGERS_BLOCK) * 4, /* of a span: scales of rows, steps of two column blocks */
  FACTORS = 4,
  INTEGERS_BYTES = STAGES * STAGE_BYTES + FACTORS * FACTORS_BYTES,
  INTEGERS_TAKERS = WARPS * WARP_ARRIVALS + 3,
  SUMS = 16 /* tiles of 8 columns */
};
static_assert((int)ITEM_ROWS == (int)INTEGERS_JOB_ROWS, "a job is an item's rows");

struct integers_memory {
  uint64_t full[STAGES], empty[STAGES], factors_full[FACTORS], factors_empty[FACTORS];
  uint64_t item_full[ITEM_SLOTS], item_empty[ITEM_SLOTS];
  ring_item item[ITEM_SLOTS]; /* tile: which pair of column blocks */
};

/* ---- columns --------------------------------------------------------------------------------------------- */

static __host__ __device__ __forceinline__ uint32_t blocks_of(const multiply_weight &weight) {
  return (weight.n_tiles + 3) / 4;
}

/* Pairs of column blocks: of all weights in one sequence; gated: a block of the gate and the same one of up. */
static __host__ __device__ __forceinline__ uint32_t pairs_of(const multiply_args &a) {
  if (a.gated) return a.n_weights == 2 ? blocks_of(a.weight[0]) : blocks_of(a.weight[0]) / 2;
  uint32_t n = 0;
  for (uint32_t w = 0; w < a.n_weights; w++) n += blocks_of(a.weight[w]);
  return (n + 1) / 2;
}

/* Half `half` of a pair: block `block` of weight `w`. Behind the last block it names one that does not exist. */
typedef struct column_block {
  uint32_t w, block;
} column_block;

static __device__ __forceinline__ column_block find_columns(const multiply_args &a, uint32_t pair, uint32_t half) {
  if (a.gated) return a.n_weights == 2 ? column_block{half, pair} : column_block{0, pair + half * pairs_of(a)};
  uint32_t w = 0, block = 2 * pair + half;
  for (; w + 1 < a.n_weights && block >= blocks_of(a.weight[w]); w++) block -= blocks_of(a.weight[w]);
  return {w, block};
}

/* Its number among the blocks of all matrices; one that does not exist counts as the last one of its matrix. */
static __device__ __forceinline__ uint64_t block_at(const multiply_weight &weight, uint32_t matrix, uint32_t block) {
  uint32_t n = blocks_of(weight);
  return (uint64_t)matrix * n + min(block, n - 1);
}

/* ---- what is brought ------------------------------------------------------------------------------------- */

static __device__ void bring_rows(const multiply_args &a, uint8_t *ring, integers_memory &m) {
  ring_cursor at = {0, 1}, item_at = {0, 0};
  for (ring_item item; (item = take_item(m, item_at, false)).n > 0;) {
    const uint8_t *from = (const uint8_t *)a.x + (uint64_t)item.first / 8 * 1024;
    const uint32_t n_bytes = (item.n + 7) / 8 * 1024;
    for (uint32_t half = 0; half < 2 * eight_spans_of(a); half++, from += (uint64_t)a.x_tiles * 1024) {
      barrier_wait(&m.empty[at.slot], at.turn);
      barrier_expect(&m.full[at.slot], n_bytes);
      copy_bulk(ring + at.slot * STAGE_BYTES, from, n_bytes, &m.full[at.slot]);
      step_on(at, STAGES);
    }
  }
}

static __device__ void bring_columns(const multiply_args &a, uint8_t *ring, integers_memory &m) {
  ring_cursor at = {0, 1}, item_at = {0, 0};
  for (ring_item item; (item = take_item(m, item_at, false)).n > 0;) {
    const uint8_t *from[2];
    for (uint32_t block = 0; block < 2; block++) {
      column_block c = find_columns(a, item.tile, block);
      from[block] = a.weight[c.w].integers +
                    block_at(a.weight[c.w], item.matrix, c.block) * eight_spans_of(a) * 2 * INTEGERS_UNIT_BYTES;
    }
    for (uint32_t half = 0; half < 2 * eight_spans_of(a); half++) {
      uint8_t *to = ring + at.slot * STAGE_BYTES + ROWS_BYTES;
      barrier_wait(&m.empty[at.slot], at.turn);
      barrier_expect(&m.full[at.slot], 2 * INTEGERS_UNIT_BYTES);
      copy_bulk(to, from[0], INTEGERS_UNIT_BYTES, &m.full[at.slot]);
      copy_bulk(to + INTEGERS_UNIT_BYTES, from[1], INTEGERS_UNIT_BYTES, &m.full[at.slot]);
      from[0] += INTEGERS_UNIT_BYTES, from[1] += INTEGERS_UNIT_BYTES;
      step_on(at, STAGES);
    }
  }
}

/* Scales of the rows, and steps of the columns. */
static __device__ void bring_factors(const multiply_args &a, uint8_t *ring, integers_memory &m) {
  ring_cursor at = {0, 1}, item_at = {0, 0};
  const uint32_t n_spans = eight_spans_of(a), steps_bytes = INTEGERS_BLOCK * 4;
  for (ring_item item; (item = take_item(m, item_at, false)).n > 0;) {
    const uint8_t *scales = (const uint8_t *)a.x + eight_scales_at(n_spans, a.x_tiles) + (uint64_t)item.first / 8 * 32;
    const float *from[2];
    const uint32_t n_bytes = (item.n + 7) / 8 * 32;
    for (uint32_t block = 0; block < 2; block++) {
      column_block c = find_columns(a, item.tile, block);
      from[block] = a.weight[c.w].fine_steps + block_at(a.weight[c.w], item.matrix, c.block) * n_spans * INTEGERS_BLOCK;
    }
    for (uint32_t span = 0; span < n_spans; span++, scales += (uint64_t)a.x_tiles * 32) {
      uint8_t *to = ring + at.slot * FACTORS_BYTES;
      uint64_t *full = &m.factors_full[at.slot];
      barrier_wait(&m.factors_empty[at.slot], at.turn);
      barrier_expect(full, n_bytes + 2 * steps_bytes);
      copy_bulk(to, scales, n_bytes, full);
      for (uint32_t block = 0; block < 2; block++)
        copy_bulk(to + ITEM_ROWS * 4 + block * steps_bytes, from[block] + span * INTEGERS_BLOCK, steps_bytes, full);
      step_on(at, FACTORS);
    }
  }
}

/* ---- products -------------------------------------------------------------------------------------------- */

typedef int32_t span_sums[SUMS][4];

/* d (+)= a b of 64 rows x 128 columns x 32 inputs, both in shared memory; add 0: from zero. */
static __device__ __forceinline__ void integers_wgmma(span_sums &d, uint64_t a, uint64_t b, int32_t add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {" WGMMA_128
               "}, %64, %65, p;\n}\n"
               : EIGHT_SUMS_16
               : "l"(a), "l"(b), "r"(add));
}

/* Waits for the next stage, whose place is then given. */
static __device__ __forceinline__ const uint8_t *take_stage(const uint8_t *ring, integers_memory &m, ring_cursor &at) {
  const uint8_t *stage = ring + at.slot * STAGE_BYTES;
  barrier_wait(&m.full[at.slot], at.turn);
  step_on(at, STAGES);
  return stage;
}

static __device__ __forceinline__ void give_stage(integers_memory &m, ring_cursor &at) {
  barrier_arrive_warp(&m.empty[at.slot]);
  step_on(at, STAGES);
}

/* Starts the products of half a span. */
static __device__ __forceinline__ void start_half(const uint8_t *stage, int32_t add, span_sums &d) {
  uint64_t rows = wgmma_operand_mixed(stage + threadIdx.x / 128 * GROUP_ROWS * 128, 1024);
  uint64_t columns = wgmma_operand_mixed(stage + ROWS_BYTES, 1024);
#pragma unroll
  for (int i = 0; i < 4; i++)
    integers_wgmma(d, rows + (uint64_t)(32 * i >> 4), columns + (uint64_t)(32 * i >> 4), i == 0 ? add : 1);
}

/* sums += the span's integers times their scales. */
static __device__ __forceinline__ void scale_sums(const float *factors, uint32_t row, const span_sums &d,
                                                  float (&sums)[SUMS][4]) {
  const float scale[2] = {factors[row], factors[row + 8]};
  const float *steps = factors + ITEM_ROWS + threadIdx.x % 4 * 4;
#pragma unroll
  for (int n = 0; n < SUMS; n += 2) {
    float4 four = *(const float4 *)(const void *)(steps + 8 * n);
    const float step[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 8; i++) {
      float &sum = sums[n + i / 4][i % 4];
      sum = __fmaf_rn((float)d[n + i / 4][i % 4], __fmul_rn(scale[i / 2 % 2], step[i / 4 * 2 + i % 2]), sum);
    }
  }
}

/* ---- results --------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ void store_at_once(float *y, const float (&v)[4]) {
  *(float4 *)(void *)y = make_float4(v[0], v[1], v[2], v[3]);
}

static __device__ __forceinline__ void store_at_once(__nv_bfloat16 *y, const float (&v)[4]) {
  *(uint2 *)(void *)y = make_uint2(pair_bf16(v[0], v[1]), pair_bf16(v[2], v[3]));
}

/* Stores four results of a row side by side, of which n exist. WHOLE: all do, and they may be stored at once. Y: float,
 * or bf16, to which they are rounded. */
template <bool WHOLE, class Y>
static __device__ __forceinline__ void store_four(Y *y, uint32_t n, const float (&v)[4]) {
  if constexpr (WHOLE) {
    store_at_once(y, v);
  } else if (n >= 4 && (uintptr_t)y % (4 * sizeof(Y)) == 0) { /* rows of a group that is not full */
    store_at_once(y, v);
  } else {
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
      if (i < n) y[i] = (Y)v[i];
  }
}

/* Whether all rows of a group exist, and all outputs of a block that begins at output `first`. */
static __device__ __forceinline__ bool is_whole(const multiply_weight &weight, const ring_item &item, uint32_t first) {
  return item.n >= threadIdx.x / 128 * GROUP_ROWS + GROUP_ROWS && first + INTEGERS_BLOCK <= weight.n_out &&
         ((uintptr_t)weight.y & 15u) == 0 && weight.y_stride % 4 == 0;
}

/* How many of the outputs from `first` on a row of the item has. */
static __device__ __forceinline__ uint32_t outputs_left(const multiply_weight &weight, const ring_item &item,
                                                        uint32_t row, uint32_t first) {
  return row < item.n && first < weight.n_out ? weight.n_out - first : 0;
}

/* The four sums of row half r in column tiles n and n + 1. */
static __device__ __forceinline__ void four_of(const float (&sums)[SUMS][4], int n, int r, float scale, float (&v)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] = __fmul_rn(sums[n + i / 2][2 * r + i % 2], scale);
}

/* Stores the results of one column block, whose sums are those of column tiles n and on. */
template <bool WHOLE, class Y>
static __device__ __forceinline__ void store_block(const multiply_weight &weight, const ring_item &item, uint32_t row,
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
static __device__ __forceinline__ void store_sums(const multiply_args &a, const ring_item &item, uint32_t row,
                                                  const float (&sums)[SUMS][4]) {
#pragma unroll
  for (int block = 0; block < 2; block++) {
    column_block c = find_columns(a, item.tile, (uint32_t)block);
    const multiply_weight &weight = a.weight[c.w];
    const uint32_t first = c.block * INTEGERS_BLOCK;
    if (c.block >= blocks_of(weight)) return;
    if (is_whole(weight, item, first))
      store_block<true, Y>(weight, item, row, first, 8 * block, sums);
    else
      store_block<false, Y>(weight, item, row, first, 8 * block, sums);
  }
}

/* act(g) * u: the first block's columns are of the gate, the second one's the same of up. */
template <bool WHOLE>
static __device__ __forceinline__ void store_gated_block(const multiply_args &a, const ring_item &item, uint32_t row,
                                                         const float (&sums)[SUMS][4]) {
  const multiply_weight &weight = a.weight[0];
  const float scale[2] = {scale_of(weight, item.matrix), scale_of(a.weight[a.n_weights - 1], item.matrix)};
  const uint32_t first = item.tile * INTEGERS_BLOCK + threadIdx.x % 4 * 4;
#pragma unroll
  for (int r = 0; r < 2; r++, row += 8) {
    float *y = weight.y + (uint64_t)(item.first + row) * weight.y_stride + first;
#pragma unroll
    for (int m = 0; m < 4; m++) {
      float g[4], u[4];
      four_of(sums, 2 * m, r, scale[0], g);
      four_of(sums, 8 + 2 * m, r, scale[1], u);
#pragma unroll
      for (int i = 0; i < 4; i++) g[i] = gate_product(a.activation, g[i], u[i]);
      store_four<WHOLE>(y + 16 * m, outputs_left(weight, item, row, first + 16 * m), g);
    }
  }
}

static __device__ __forceinline__ void store_gated_sums(const multiply_args &a, const ring_item &item, uint32_t row,
                                                        const float (&sums)[SUMS][4]) {
  if (is_whole(a.weight[0], item, item.tile * INTEGERS_BLOCK))
    store_gated_block<true>(a, item, row, sums);
  else
    store_gated_block<false>(a, item, row, sums);
}

/* ---- the kernel ------------------------------------------------------------------------------------------ */

/* A group's places in the rings: the stage it reads next, the one it gives back next, the scales and steps. row: the
 * lane's first row of an item; the other is 8 more. */
typedef struct integers_group {
  ring_cursor read, spent, factors;
  uint32_t row;
} integers_group;

/* Multiplies a span, and adds it to the sums. */
static __device__ __forceinline__ void multiply_span(const uint8_t *ring, integers_memory &m, integers_group &at,
                                                     span_sums &d, float (&sums)[SUMS][4]) {
  const uint8_t *first = take_stage(ring, m, at.read), *second = take_stage(ring, m, at.read);
  const uint8_t *factors = ring + STAGES * STAGE_BYTES + at.factors.slot * FACTORS_BYTES;
  wgmma_fence();
  start_half(first, 0, d);
  start_half(second, 1, d);
  wgmma_commit();
  barrier_wait(&m.factors_full[at.factors.slot], at.factors.turn);
  wgmma_wait<0>();
  give_stage(m, at.spent), give_stage(m, at.spent);
  scale_sums((const float *)(const void *)factors, at.row, d, sums);
  __syncwarp();
  barrier_arrive_warp(&m.factors_empty[at.factors.slot]);
  step_on(at.factors, FACTORS);
}

/* Lets the stages of a span pass. */
static __device__ __forceinline__ void pass_span(const uint8_t *ring, integers_memory &m, integers_group &at) {
  (void)take_stage(ring, m, at.read), (void)take_stage(ring, m, at.read);
  barrier_wait(&m.factors_full[at.factors.slot], at.factors.turn);
  __syncwarp();
  give_stage(m, at.spent), give_stage(m, at.spent);
  barrier_arrive_warp(&m.factors_empty[at.factors.slot]);
  step_on(at.factors, FACTORS);
}

template <bool GATED, class Y>
static __device__ __forceinline__ void multiply_item(const multiply_args &a, const ring_item &item, const uint8_t *ring,
                                                     integers_memory &m, integers_group &at) {
  span_sums d = {};
  float sums[SUMS][4] = {};
  for (uint32_t span = 0; span < eight_spans_of(a); span++) multiply_span(ring, m, at, d, sums);
  if constexpr (GATED)
    store_gated_sums(a, item, at.row, sums);
  else
    store_sums<Y>(a, item, at.row, sums);
}

static __device__ __forceinline__ void make_barriers(integers_memory &m) {
  for (uint32_t i = 0; i < STAGES; i++) barrier_init(&m.full[i], 2), barrier_init(&m.empty[i], WARPS * WARP_ARRIVALS);
  for (uint32_t i = 0; i < FACTORS; i++)
    barrier_init(&m.factors_full[i], 1), barrier_init(&m.factors_empty[i], WARPS * WARP_ARRIVALS);
  for (uint32_t i = 0; i < ITEM_SLOTS; i++)
    barrier_init(&m.item_full[i], 1), barrier_init(&m.item_empty[i], INTEGERS_TAKERS);
  barriers_ready();
}

/* GATED: results are act(g) * u, in float. */
template <bool GATED, class Y>
static __global__ void __launch_bounds__(THREADS, 1) integers_kernel(const __grid_constant__ multiply_args a) {
  extern __shared__ __align__(1024) uint8_t ring[]; /* stages; scales and steps */
  __shared__ integers_memory m;
  uint32_t group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) make_barriers(m);
  __syncthreads();
  inputs_ready();
  if (group == GROUPS) {
    registers_shrink<56>();
    if (threadIdx.x % 32 != 0) return;
    uint32_t warp = threadIdx.x / 32 - WARPS;
    if (warp == 0) bring_items(a, m, ITEM_ROWS, pairs_of(a), 1);
    if (warp == 1) bring_rows(a, ring, m);
    if (warp == 2) bring_columns(a, ring, m);
    if (warp == 3) bring_factors(a, ring + STAGES * STAGE_BYTES, m);
    return;
  }
  registers_grow<152>();
  integers_group at = {{0, 0}, {0, 0}, {0, 0}, threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4};
  ring_cursor item_at = {0, 0};
  for (ring_item item; (item = take_item(m, item_at, true)).n > 0;) {
    if (group * GROUP_ROWS < item.n)
      multiply_item<GATED, Y>(a, item, ring, m, at);
    else
      for (uint32_t span = 0; span < eight_spans_of(a); span++) pass_span(ring, m, at);
  }
}

/* ---- host ------------------------------------------------------------------------------------------------ */

bool integers_take(const multiply_args *args) {
  for (uint32_t w = 0; w < args->n_weights; w++)
    if (args->weight[w].integers == NULL) return false;
  return args->jobs != NULL ? args->job_rows == INTEGERS_JOB_ROWS : args->n_rows >= INTEGERS_LEAST_ROWS;
}

bool integers_gate(const multiply_args *args) {
  return args->n_weights == 2 ? args->weight[0].n_out == args->weight[1].n_out
                              : args->n_weights == 1 && args->weight[0].n_tiles % 8 == 0;
}

/* a NULL: sets the kernel up. */
template <bool GATED, class Y>
static weft_status launch_integers(cuda_device *d, const multiply_args *a) {
  auto kernel = integers_kernel<GATED, Y>;
  if (a == NULL) {
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, INTEGERS_BYTES);
    return cuda_judge(d, error, "setting up products of integers");
  }
  uint64_t n_jobs = a->jobs != NULL ? a->jobs_max : cuda_ceil(a->n_rows, ITEM_ROWS);
  uint64_t n_items = n_jobs * pairs_of(*a);
  uint32_t n_blocks = n_items < d->n_multiprocessors ? (uint32_t)n_items : d->n_multiprocessors;
  /* An ordinary launch: blocks that start before the kernel before has ended would crowd each other. */
  kernel<<<n_blocks, THREADS, INTEGERS_BYTES, d->stream>>>(*a);
  return cuda_launched(d, "a product of integers");
}

weft_status integers_multiply(cuda_device *d, const multiply_args *args) {
  return args->gated       ? launch_integers<true, float>(d, args)
         : args->y_is_bf16 ? launch_integers<false, __nv_bfloat16>(d, args)
                           : launch_integers<false, float>(d, args);
}

weft_status integers_setup(cuda_device *d) {
  weft_status status = launch_integers<true, float>(d, NULL);
  if (status == WEFT_OK) status = launch_integers<false, __nv_bfloat16>(d, NULL);
  return status == WEFT_OK ? launch_integers<false, float>(d, NULL) : status;
}
