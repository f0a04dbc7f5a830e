/* SPDX-License-Identifier: MIT */
/* Products of 8 bits from ready integers (integers.h): many rows, dense and of experts. Blocks stay on the card and take
 * one item after another: up to 128 rows x 128 columns, in two column blocks. Rows and columns both come from shared
 * memory, so a warp makes nothing but sums.
 *
 *   group     four warps with 64 of the rows; a block has two. A group has two sets of integer sums: while the products
 *             of a span run into one, it scales those of the span before, which are in the other. The first span of an
 *             item runs while the results of the item before are stored
 *   bringer   four more warps, of which one lane each says which items the block works on, and copies rows, columns,
 *             and scales with steps. Copies are as large as they can be: 16 KiB of rows and 8 KiB of columns
 *   stage     128 inputs of rows and columns; scales and steps, which belong to 256, have a ring of their own
 *
 * Law: a result has the bits of eight_multiply, which has the same sums in the same order. The rings are used as
 * rings.cuh says. */
#include "kernels/cuda/integers.h"
#include "kernels/cuda/rings.cuh"

enum {
  ITEM_ROWS = 128,
  GROUP_ROWS = 64,
  ROWS_BYTES = ITEM_ROWS * 128, /* of a half stage */
  HALF_BYTES = ROWS_BYTES + 2 * INTEGERS_UNIT_BYTES,
  STAGE_BYTES = 2 * HALF_BYTES,
  STAGES = 3,
  FACTORS_BYTES = (ITEM_ROWS + 2 * INTEGERS_BLOCK) * 4, /* of a stage: scales of rows, steps of two column blocks */
  INTEGERS_BYTES = STAGES * (STAGE_BYTES + FACTORS_BYTES),
  INTEGERS_TAKERS = ITEM_TILES * WARP_ARRIVALS + 3,
  SUMS = 16 /* tiles of 8 columns */
};

struct integers_memory {
  uint64_t full[STAGES][2], empty[STAGES]; /* full: of each half */
  uint64_t factors_full[STAGES], factors_empty[STAGES];
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

static __device__ void bring_items(const multiply_args &a, integers_memory &m) {
  ring_cursor at = {0, 1};
  uint32_t n_pairs = pairs_of(a), n_jobs = a.jobs != NULL ? *a.n_jobs : (a.n_rows + ITEM_ROWS - 1) / ITEM_ROWS;
  for (uint32_t index = blockIdx.x;; index += gridDim.x) {
    ring_item item = {0, 0, 0, 0};
    if (index < n_pairs * n_jobs) {
      uint32_t j = index / n_pairs;
      item = {0, j * ITEM_ROWS, 0, index - j * n_pairs};
      if (a.jobs != NULL)
        item.matrix = a.jobs[j].matrix, item.first = a.jobs[j].first, item.n = a.jobs[j].n;
      else
        item.n = min((uint32_t)ITEM_ROWS, a.n_rows - item.first);
    }
    barrier_wait(&m.item_empty[at.slot], at.turn);
    m.item[at.slot] = item;
    barrier_arrive(&m.item_full[at.slot]);
    if (item.n == 0) return;
    step_on(at, ITEM_SLOTS);
  }
}

static __device__ void bring_rows(const multiply_args &a, uint8_t *ring, integers_memory &m) {
  ring_cursor at = {0, 1}, item_at = {0, 0};
  for (ring_item item; (item = take_item(m, item_at, false)).n > 0;) {
    const uint8_t *from = (const uint8_t *)a.x + (uint64_t)item.first / 8 * 1024;
    const uint32_t n_bytes = (item.n + 7) / 8 * 1024;
    for (uint32_t span = 0; span < eight_spans_of(a); span++) {
      barrier_wait(&m.empty[at.slot], at.turn);
      for (uint32_t half = 0; half < 2; half++, from += (uint64_t)a.x_tiles * 1024) {
        uint64_t *full = &m.full[at.slot][half];
        barrier_expect(full, n_bytes);
        copy_bulk(ring + at.slot * STAGE_BYTES + half * HALF_BYTES, from, n_bytes, full);
      }
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
    for (uint32_t span = 0; span < eight_spans_of(a); span++) {
      barrier_wait(&m.empty[at.slot], at.turn);
      for (uint32_t half = 0; half < 2; half++) {
        uint8_t *to = ring + at.slot * STAGE_BYTES + half * HALF_BYTES + ROWS_BYTES;
        uint64_t *full = &m.full[at.slot][half];
        barrier_expect(full, 2 * INTEGERS_UNIT_BYTES);
        for (uint32_t block = 0; block < 2; block++, to += INTEGERS_UNIT_BYTES) {
          copy_bulk(to, from[block], INTEGERS_UNIT_BYTES, full);
          from[block] += INTEGERS_UNIT_BYTES;
        }
      }
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
      step_on(at, STAGES);
    }
  }
}

/* ---- products -------------------------------------------------------------------------------------------- */

typedef int32_t span_sums[SUMS][4];

#define INTEGERS_4(i) "+r"(d[i][0]), "+r"(d[i][1]), "+r"(d[i][2]), "+r"(d[i][3])

/* d (+)= a b of 64 rows x 128 columns x 32 inputs, both in shared memory; add 0: from zero. */
static __device__ __forceinline__ void integers_wgmma(span_sums &d, uint64_t a, uint64_t b, int32_t add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {" WGMMA_128
               "}, %64, %65, p;\n}\n"
               : INTEGERS_4(0), INTEGERS_4(1), INTEGERS_4(2), INTEGERS_4(3), INTEGERS_4(4), INTEGERS_4(5),
                 INTEGERS_4(6), INTEGERS_4(7), INTEGERS_4(8), INTEGERS_4(9), INTEGERS_4(10), INTEGERS_4(11),
                 INTEGERS_4(12), INTEGERS_4(13), INTEGERS_4(14), INTEGERS_4(15)
               : "l"(a), "l"(b), "r"(add));
}

/* Starts the products of half a span. */
static __device__ __forceinline__ void start_half(const uint8_t *half, int32_t add, span_sums &d) {
  uint64_t rows = wgmma_operand_mixed(half + threadIdx.x / 128 * GROUP_ROWS * 128, 1024);
  uint64_t columns = wgmma_operand_mixed(half + ROWS_BYTES, 1024);
#pragma unroll
  for (int i = 0; i < 4; i++)
    integers_wgmma(d, rows + (uint64_t)(32 * i >> 4), columns + (uint64_t)(32 * i >> 4), i == 0 ? add : 1);
}

/* Starts the products of the span in stage `at`. exists: there is one; else they multiply what lies there, and nobody
 * reads the result: the compiler orders products one by one where it sees them in a branch. */
static __device__ __forceinline__ void start_span(const uint8_t *ring, integers_memory &m, const ring_cursor &at,
                                                  bool exists, span_sums &d) {
  const uint8_t *stage = ring + at.slot * STAGE_BYTES;
  if (exists) barrier_wait(&m.full[at.slot][0], at.turn), barrier_wait(&m.full[at.slot][1], at.turn);
  wgmma_fence();
  start_half(stage, 0, d);
  start_half(stage + HALF_BYTES, 1, d);
  wgmma_commit();
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

/* Ends a span whose products have ended: its stage may be written again, and its sums are added. */
static __device__ __forceinline__ void end_span(const uint8_t *ring, integers_memory &m, const ring_cursor &at,
                                                uint32_t row, const span_sums &d, float (&sums)[SUMS][4]) {
  const uint8_t *factors = ring + STAGES * STAGE_BYTES + at.slot * FACTORS_BYTES;
  barrier_arrive_warp(&m.empty[at.slot]);
  barrier_wait(&m.factors_full[at.slot], at.turn);
  scale_sums((const float *)(const void *)factors, row, d, sums);
  __syncwarp();
  barrier_arrive_warp(&m.factors_empty[at.slot]);
}

/* ---- results --------------------------------------------------------------------------------------------- */

/* Four results of a row side by side, of which n exist. */
static __device__ __forceinline__ void store_four(float *y, bool wide, uint32_t n, const float (&v)[4]) {
  if (wide) {
    *(float4 *)(void *)y = make_float4(v[0], v[1], v[2], v[3]);
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < 4; i++)
    if (i < n) y[i] = v[i];
}

static __device__ __forceinline__ bool stores_wide(const multiply_weight &weight) {
  return ((uintptr_t)weight.y & 15u) == 0 && weight.y_stride % 4 == 0;
}

/* The four sums of row half r in column tiles n and n + 1. */
static __device__ __forceinline__ void four_of(const float (&sums)[SUMS][4], int n, int r, float scale, float (&v)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] = __fmul_rn(sums[n + i / 2][2 * r + i % 2], scale);
}

static __device__ __forceinline__ void store_sums(const multiply_args &a, const ring_item &item, uint32_t row,
                                                  const float (&sums)[SUMS][4]) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    column_block c = find_columns(a, item.tile, (uint32_t)half);
    const multiply_weight &weight = a.weight[c.w];
    if (c.block >= blocks_of(weight)) return;
    const float scale = scale_of(weight, item.matrix);
    const uint32_t first = c.block * INTEGERS_BLOCK + threadIdx.x % 4 * 4;
    const bool wide = stores_wide(weight);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float *y = weight.y + (uint64_t)(item.first + row + 8 * r) * weight.y_stride + first;
#pragma unroll
      for (int m = 0; m < 4; m++) {
        float v[4];
        uint32_t left = row + 8 * r < item.n && first + 16 * m < weight.n_out ? weight.n_out - first - 16 * m : 0;
        four_of(sums, 8 * half + 2 * m, r, scale, v);
        store_four(y + 16 * m, wide && left >= 4, left, v);
      }
    }
  }
}

/* act(g) * u: the first block's columns are of the gate, the second one's the same of up. */
static __device__ __forceinline__ void store_gated_sums(const multiply_args &a, const ring_item &item, uint32_t row,
                                                        const float (&sums)[SUMS][4]) {
  const multiply_weight &weight = a.weight[0];
  const float scale[2] = {scale_of(weight, item.matrix), scale_of(a.weight[a.n_weights - 1], item.matrix)};
  const uint32_t first = item.tile * INTEGERS_BLOCK + threadIdx.x % 4 * 4;
  const bool wide = stores_wide(weight);
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float *y = weight.y + (uint64_t)(item.first + row + 8 * r) * weight.y_stride + first;
#pragma unroll
    for (int m = 0; m < 4; m++) {
      float g[4], u[4];
      uint32_t left = row + 8 * r < item.n && first + 16 * m < weight.n_out ? weight.n_out - first - 16 * m : 0;
      four_of(sums, 2 * m, r, scale[0], g);
      four_of(sums, 8 + 2 * m, r, scale[1], u);
#pragma unroll
      for (int i = 0; i < 4; i++) g[i] = gate_product(a.activation, g[i], u[i]);
      store_four(y + 16 * m, wide && left >= 4, left, g);
    }
  }
}

/* ---- the kernel ------------------------------------------------------------------------------------------ */

/* A group's place in its work. at: the stage of the span that starts next; before: that of the span before it. item:
 * the item of the span that starts next; it is read, and given back, when its last span ends. */
typedef struct integers_work {
  ring_cursor at, before, item, item_before;
  uint32_t span, row; /* row: the lane's first one of an item, the other is 8 more */
} integers_work;

/* Whether the block has the item at `at`. */
static __device__ __forceinline__ bool has_item(integers_memory &m, const ring_cursor &at) {
  barrier_wait(&m.item_full[at.slot], at.turn);
  return __shfl_sync(0xFFFFFFFFu, m.item[at.slot].n, 0) > 0;
}

/* Goes on to the next span to start; false: there is none. */
static __device__ __forceinline__ bool next_span(const multiply_args &a, integers_memory &m, integers_work &work) {
  work.before = work.at;
  step_on(work.at, STAGES);
  if (++work.span < eight_spans_of(a)) return true;
  work.span = 0;
  work.item_before = work.item;
  step_on(work.item, ITEM_SLOTS);
  return has_item(m, work.item);
}

/* Starts the span after that in d, if there is one, in `next`; and ends that in d. False: it was the last one. */
template <bool GATED>
static __device__ __forceinline__ bool work_on(const multiply_args &a, const uint8_t *ring, integers_memory &m,
                                               integers_work &work, span_sums &d, span_sums &next,
                                               float (&sums)[SUMS][4]) {
  bool more = next_span(a, m, work);
  start_span(ring, m, work.at, more, next);
  wgmma_wait<1>();
  end_span(ring, m, work.before, work.row, d, sums);
  if (work.span != 0) return more;
  ring_item item = m.item[work.item_before.slot];
  __syncwarp();
  barrier_arrive_warp(&m.item_empty[work.item_before.slot]);
  if constexpr (GATED)
    store_gated_sums(a, item, work.row, sums);
  else
    store_sums(a, item, work.row, sums);
#pragma unroll
  for (int n = 0; n < SUMS; n++) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0.0f;
  return more;
}

template <bool GATED>
static __device__ __forceinline__ void multiply_items(const multiply_args &a, const uint8_t *ring, integers_memory &m) {
  integers_work work = {{0, 0}, {0, 0}, {0, 0}, {0, 0}, 0, threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4};
  span_sums even = {}, odd = {};
  float sums[SUMS][4] = {};
  if (!has_item(m, work.item)) return;
  start_span(ring, m, work.at, true, even);
  for (;;) {
    if (!work_on<GATED>(a, ring, m, work, even, odd, sums)) { wgmma_wait<0>(); return; }
    if (!work_on<GATED>(a, ring, m, work, odd, even, sums)) { wgmma_wait<0>(); return; }
  }
}

static __device__ __forceinline__ void make_barriers(integers_memory &m) {
  for (uint32_t i = 0; i < STAGES; i++) {
    barrier_init(&m.full[i][0], 2), barrier_init(&m.full[i][1], 2);
    barrier_init(&m.empty[i], ITEM_TILES * WARP_ARRIVALS);
    barrier_init(&m.factors_full[i], 1), barrier_init(&m.factors_empty[i], ITEM_TILES * WARP_ARRIVALS);
  }
  for (uint32_t i = 0; i < ITEM_SLOTS; i++)
    barrier_init(&m.item_full[i], 1), barrier_init(&m.item_empty[i], INTEGERS_TAKERS);
  barriers_ready();
}

template <bool GATED>
static __global__ void __launch_bounds__(ITEM_THREADS, 1) integers_kernel(const __grid_constant__ multiply_args a) {
  extern __shared__ __align__(1024) uint8_t memory[]; /* stages; scales and steps */
  __shared__ integers_memory m;
  uint32_t group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) make_barriers(m);
  __syncthreads();
  inputs_ready();
  if (group == 2) {
    registers_shrink<24>();
    if (threadIdx.x % 32 != 0) return;
    uint32_t warp = threadIdx.x / 32 - ITEM_TILES;
    if (warp == 0) bring_items(a, m);
    if (warp == 1) bring_rows(a, memory, m);
    if (warp == 2) bring_columns(a, memory, m);
    if (warp == 3) bring_factors(a, memory + STAGES * STAGE_BYTES, m);
    return;
  }
  registers_grow<240>();
  multiply_items<GATED>(a, memory, m);
}

/* ---- host ------------------------------------------------------------------------------------------------ */

bool integers_take(const cuda_device *d, const multiply_args *args) {
  if (!d->integers) return false;
  for (uint32_t w = 0; w < args->n_weights; w++)
    if (args->weight[w].integers == NULL) return false;
  return args->jobs != NULL ? args->job_rows == ITEM_ROWS : args->n_rows >= 2 * ITEM_ROWS;
}

bool integers_gate(const multiply_args *args) {
  return args->n_weights == 2 ? args->weight[0].n_out == args->weight[1].n_out
                              : args->n_weights == 1 && args->weight[0].n_tiles % 8 == 0;
}

weft_status integers_multiply(cuda_device *d, const multiply_args *args) {
  uint64_t n_jobs = args->jobs != NULL ? args->jobs_max : cuda_ceil(args->n_rows, ITEM_ROWS);
  uint64_t n_items = n_jobs * pairs_of(*args);
  uint32_t n_blocks = n_items < d->n_multiprocessors ? (uint32_t)n_items : d->n_multiprocessors;
  /* An ordinary launch: blocks that start before the kernel before has ended would crowd each other. */
  if (args->gated)
    integers_kernel<true><<<n_blocks, ITEM_THREADS, INTEGERS_BYTES, d->stream>>>(*args);
  else
    integers_kernel<false><<<n_blocks, ITEM_THREADS, INTEGERS_BYTES, d->stream>>>(*args);
  return cuda_launched(d, "a product of integers");
}

weft_status integers_setup(cuda_device *d) {
  cudaError_t error =
      cudaFuncSetAttribute(integers_kernel<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, INTEGERS_BYTES);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(integers_kernel<false>, cudaFuncAttributeMaxDynamicSharedMemorySize, INTEGERS_BYTES);
  return cuda_judge(d, error, "setting up products of integers");
}
