/* SPDX-License-Identifier: MIT */
/* W8A8 GEMM from integers of weights (weights/int8_weights.h) with jobs of up to INT8_FEW_ROWS rows: down of experts
 * that have some ten rows each. What bounds it is the bytes of the weights; int8_gemm has work for one group of warps
 * in three there, whose steps follow one another.
 *
 *   group     three, of a warpgroup each, which have items, stages and a producer of their own, so none waits for
 *             another one. An item is a column block, 64 outputs, for all rows of a job. Both operands of wgmma come
 *             from shared memory; rows that a job does not have are what was there before, and no result of them is
 *             stored
 *   items     job by job. Those that run at the same time lie side by side on different multiprocessors, so that what
 *             is left over at the end is spread over all of them. A group and its producer each find its items
 *   producer  a lane for each group, which issues its bulk async copies
 *   stage     128 inputs of rows and columns; scales and steps, which belong to 256, have a ring of their own
 *
 * Law: a result has the bits of w8a8_gemm, which has the same sums in the same order. */
#include "kernels/cuda/gemm/int8_jobs.h"

#include "kernels/cuda/gemm/int8_store.cuh"
#include "kernels/cuda/gemm/pipeline.cuh"

enum {
  GROUPS = 3,
  GROUP_THREADS = 128,
  THREADS = (GROUPS + 1) * GROUP_THREADS,
  ROWS_BYTES = INT8_FEW_ROWS * 128, /* of a stage */
  STAGE_BYTES = ROWS_BYTES + INT8_UNIT_BYTES,
  STAGES = 4,
  SCALES_BYTES = INT8_FEW_ROWS * 4,
  FACTORS_BYTES = SCALES_BYTES + INT8_BLOCK * 4, /* scales of rows, steps of columns */
  FACTORS = 4,
  GROUP_BYTES = (STAGES * STAGE_BYTES + FACTORS * FACTORS_BYTES + 1023) / 1024 * 1024,
  SUMS = INT8_BLOCK / 8, /* tiles of 8 columns */
  EARLY_PAIRS = 1024     /* with more the kernel starts early: 128 decoding sequences with 8 experts have no more */
};

typedef struct int8_jobs_barriers {
  uint64_t full[GROUPS][STAGES], empty[GROUPS][STAGES];
  uint64_t factors_full[GROUPS][FACTORS], factors_empty[GROUPS][FACTORS];
} int8_jobs_barriers;

static __host__ __device__ __forceinline__ uint32_t blocks_of(const gemm_weight &weight) {
  return (weight.n_tiles + 3) / 4;
}

/* A group's items: those numbered first, first + step, .. below end. */
typedef struct group_items {
  uint32_t first, step, end, of_job; /* of_job: items of a job */
} group_items;

static __device__ __forceinline__ group_items items_of_group(const gemm_args &a, uint32_t group) {
  const uint32_t of_job = blocks_of(a.weight[0]);
  return {group * gridDim.x + blockIdx.x, GROUPS * gridDim.x, *a.n_jobs * of_job, of_job};
}

/* Item `index`; its tile is its column block. */
static __device__ __forceinline__ work_item item_at(const gemm_args &a, const group_items &items, uint32_t index) {
  const uint32_t j = index / items.of_job;
  const gemm_job job = a.jobs[j];
  return {job.matrix, job.first, job.n, index - j * items.of_job};
}

/* ---- producer lanes -------------------------------------------------------------------------------------- */

static __device__ void produce_group(const gemm_args &a, uint8_t *ring, int8_jobs_barriers &b, uint32_t group) {
  const gemm_weight &weight = a.weight[0];
  const uint32_t n_spans = w8a8_spans_of(a);
  const group_items items = items_of_group(a, group);
  const uint8_t *x = (const uint8_t *)a.x, *scales = x + w8a8_scales_at(n_spans, a.x_tiles);
  pipeline_state at = {0, 1}, factors_at = {0, 1};
  for (uint32_t index = items.first; index < items.end; index += items.step) {
    const work_item item = item_at(a, items, index);
    const uint64_t block = (uint64_t)item.matrix * items.of_job + item.tile;
    const uint8_t *columns = weight.int8_weights + block * n_spans * 2 * INT8_UNIT_BYTES;
    const uint8_t *rows = x + (uint64_t)item.first / 8 * 1024, *row_scales = scales + (uint64_t)item.first / 8 * 32;
    const float *steps = weight.fine_steps + block * n_spans * INT8_BLOCK;
    const uint32_t n_tiles = (item.n + 7) / 8;
    for (uint32_t half = 0; half < 2 * n_spans; half++, columns += INT8_UNIT_BYTES) {
      uint8_t *to = ring + at.stage * STAGE_BYTES;
      mbarrier_wait(&b.empty[group][at.stage], at.phase);
      mbarrier_expect(&b.full[group][at.stage], INT8_UNIT_BYTES + n_tiles * 1024);
      bulk_copy_streamed(to + ROWS_BYTES, columns, INT8_UNIT_BYTES, &b.full[group][at.stage]); /* read by one job */
      bulk_copy(to, rows, n_tiles * 1024, &b.full[group][at.stage]);
      advance(at, STAGES);
      rows += (uint64_t)a.x_tiles * 1024;
      if (half % 2 != 0) continue;
      uint64_t *full = &b.factors_full[group][factors_at.stage];
      uint8_t *factors = ring + STAGES * STAGE_BYTES + factors_at.stage * FACTORS_BYTES;
      mbarrier_wait(&b.factors_empty[group][factors_at.stage], factors_at.phase);
      mbarrier_expect(full, n_tiles * 32 + INT8_BLOCK * 4);
      bulk_copy(factors, row_scales, n_tiles * 32, full);
      bulk_copy(factors + SCALES_BYTES, steps, INT8_BLOCK * 4, full);
      advance(factors_at, FACTORS);
      row_scales += (uint64_t)a.x_tiles * 32, steps += INT8_BLOCK;
    }
  }
}

/* ---- consumer groups ------------------------------------------------------------------------------------- */

/* d (+)= a b of 64 rows x 64 columns x 32 inputs, both in shared memory; add 0: from zero. */
static __device__ __forceinline__ void int8_wgmma(int32_t (&d)[SUMS][4], uint64_t a, uint64_t b, int32_t add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {" WGMMA_64
               "}, %32, %33, p;\n}\n"
               : W8A8_SUMS_8
               : "l"(a), "l"(b), "r"(add));
}

/* Starts the products of half a span. */
static __device__ __forceinline__ void start_half(const uint8_t *stage, int32_t add, int32_t (&d)[SUMS][4]) {
  const uint64_t rows = wgmma_descriptor_swizzled(stage, 1024);
  const uint64_t columns = wgmma_descriptor_swizzled(stage + ROWS_BYTES, 1024);
#pragma unroll
  for (int i = 0; i < 4; i++)
    int8_wgmma(d, rows + (uint64_t)(32 * i >> 4), columns + (uint64_t)(32 * i >> 4), i == 0 ? add : 1);
  wgmma_commit();
}

/* A group's rings and its positions in them. */
typedef struct int8_jobs_group {
  const uint8_t *ring;
  uint64_t *full, *empty, *factors_full, *factors_empty;
  pipeline_state at, factors;
} int8_jobs_group;

/* Multiplies a span, and adds it to the sums. row: the lane's first row of the item; the other is 8 more. */
static __device__ __forceinline__ void multiply_span(int8_jobs_group &g, uint32_t row, int32_t (&d)[SUMS][4],
                                                     float (&sums)[SUMS][4]) {
  const pipeline_state first = g.at;
  advance(g.at, STAGES);
  const pipeline_state second = g.at;
  advance(g.at, STAGES);
  mbarrier_wait(&g.full[first.stage], first.phase);
  wgmma_fence();
  start_half(g.ring + first.stage * STAGE_BYTES, 0, d);
  mbarrier_wait(&g.full[second.stage], second.phase);
  wgmma_fence();
  start_half(g.ring + second.stage * STAGE_BYTES, 1, d);
  wgmma_wait<1>();
  mbarrier_arrive_warp(&g.empty[first.stage]);
  mbarrier_wait(&g.factors_full[g.factors.stage], g.factors.phase);
  const float *factors = (const float *)(const void *)(g.ring + STAGES * STAGE_BYTES + g.factors.stage * FACTORS_BYTES);
  const float scale[2] = {factors[row], factors[row + 8]};
  wgmma_wait<0>();
  mbarrier_arrive_warp(&g.empty[second.stage]);
  scale_sums(scale, factors + INT8_FEW_ROWS, d, sums);
  __threadfence_block(); /* the factors have been read, as in w8a8_pipeline.cuh */
  __syncwarp();
  mbarrier_arrive_warp(&g.factors_empty[g.factors.stage]);
  advance(g.factors, FACTORS);
}

template <class Y>
static __device__ __forceinline__ void store_item(const gemm_weight &weight, const work_item &item, uint32_t row,
                                                  const float (&sums)[SUMS][4]) {
  const float scale = scale_of(weight, item.matrix);
  const uint32_t first = item.tile * INT8_BLOCK + threadIdx.x % 4 * 4;
#pragma unroll
  for (int r = 0; r < 2; r++, row += 8) {
    if (row >= item.n) continue;
    Y *y = (Y *)(void *)weight.y + (uint64_t)(item.first + row) * weight.y_stride + first;
#pragma unroll
    for (int m = 0; m < SUMS / 2; m++) {
      const uint32_t out = first + 16 * m;
      float v[4];
      four_of(sums, 2 * m, r, scale, v);
      store_four<false>(y + 16 * m, out < weight.n_out ? weight.n_out - out : 0, v);
    }
  }
}

template <class Y>
static __device__ __forceinline__ void multiply_items(const gemm_args &a, int8_jobs_group &g, uint32_t group) {
  const uint32_t row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, n_spans = w8a8_spans_of(a);
  const group_items items = items_of_group(a, group);
  work_item next = {0, 0, 0, 0};
  if (items.first < items.end) next = item_at(a, items, items.first);
  for (uint32_t index = items.first; index < items.end; index += items.step) {
    const work_item item = next;
    int32_t d[SUMS][4] = {};
    float sums[SUMS][4] = {};
    if (index + items.step < items.end) next = item_at(a, items, index + items.step);
    for (uint32_t span = 0; span < n_spans; span++) multiply_span(g, row, d, sums);
    store_item<Y>(a.weight[0], item, row, sums);
  }
}

/* ---- the kernel ------------------------------------------------------------------------------------------ */

static __device__ __forceinline__ void init_mbarriers(int8_jobs_barriers &b) {
  for (uint32_t g = 0; g < GROUPS; g++) {
    for (uint32_t i = 0; i < STAGES; i++)
      mbarrier_init(&b.full[g][i], 1), mbarrier_init(&b.empty[g][i], 4 * WARP_ARRIVALS);
    for (uint32_t i = 0; i < FACTORS; i++)
      mbarrier_init(&b.factors_full[g][i], 1), mbarrier_init(&b.factors_empty[g][i], 4 * WARP_ARRIVALS);
  }
  mbarrier_init_fence();
}

template <class Y>
static __global__ void __launch_bounds__(THREADS, 1) int8_jobs_kernel(const __grid_constant__ gemm_args a) {
  extern __shared__ __align__(1024) uint8_t memory[]; /* of each group: stages; scales and steps */
  __shared__ int8_jobs_barriers b;
  const uint32_t group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / GROUP_THREADS, 0);
  if (threadIdx.x == 0) init_mbarriers(b);
  __syncthreads();
  launch_dependents_and_wait();
  if (group == GROUPS) {
    const uint32_t own = threadIdx.x / 32 % 4;
    if (own < GROUPS && threadIdx.x % 32 == 0) produce_group(a, memory + own * GROUP_BYTES, b, own);
    return;
  }
  int8_jobs_group g = {memory + group * GROUP_BYTES, b.full[group], b.empty[group], b.factors_full[group],
                       b.factors_empty[group],       {0, 0},        {0, 0}};
  multiply_items<Y>(a, g, group);
}

/* ---- host ------------------------------------------------------------------------------------------------ */

/* a NULL: sets the kernel up. */
template <class Y>
static weft_status launch_jobs(cuda_device *d, const gemm_args *a) {
  const uint32_t n_bytes = GROUPS * GROUP_BYTES;
  if (a == NULL) {
    cudaError_t error =
        cudaFuncSetAttribute(int8_jobs_kernel<Y>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_bytes);
    return cuda_judge(d, error, "setting up products of integers with jobs");
  }
  const uint64_t n_items = (uint64_t)a->jobs_max * blocks_of(a->weight[0]);
  const uint32_t n_blocks = n_items < d->n_multiprocessors ? (uint32_t)n_items : d->n_multiprocessors;
  if (a->n_rows > EARLY_PAIRS)
    cuda_start(d, int8_jobs_kernel<Y>, n_blocks, THREADS, n_bytes, *a);
  else /* blocks that start before the kernel before has ended would crowd each other */
    int8_jobs_kernel<Y><<<n_blocks, THREADS, n_bytes, d->stream>>>(*a);
  return cuda_launched(d, "a product of integers with jobs");
}

weft_status int8_jobs(cuda_device *d, const gemm_args *args) {
  return args->y_is_bf16 ? launch_jobs<__nv_bfloat16>(d, args) : launch_jobs<float>(d, args);
}

weft_status int8_jobs_setup(cuda_device *d) {
  weft_status status = launch_jobs<__nv_bfloat16>(d, NULL);
  return status == WEFT_OK ? launch_jobs<float>(d, NULL) : status;
}
