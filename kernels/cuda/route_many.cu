/* SPDX-License-Identifier: MIT */
/* The router of many rows, in two kernels. The first one makes the sums of four neighbouring chains (route.h): a block
 * has 32 rows, all experts and four chains, and brings the inputs of these chains step by step. The second one adds
 * these sums up by the rest of the tree and chooses; a warp has a row. */
#include "kernels/cuda/route.cuh"

enum {
  MANY_THREADS = 256,
  MANY_BLOCKS = 2,      /* on a multiprocessor */
  MANY_ROWS = 32,       /* of a block */
  MANY_THREAD_ROWS = 8, /* of a thread: every second of 16 */
  MANY_QUADS = 2,       /* of experts of a thread: every fourth of 32 experts */
  MANY_PARTS = 8,       /* four chains of 32 */
  MANY_STEPS = 2,       /* of 128 inputs each, that are brought at once: a stage */
  MANY_STAGES = 3,      /* in shared memory */
  STEP_ROWS = MANY_ROWS + ROUTER_EXPERTS,
  STAGE_FLOAT4 = MANY_STEPS * STEP_ROWS * PART_CHAINS,
  MANY_BYTES = MANY_STAGES * STAGE_FLOAT4 * 16
};

/* Starts the copies of the block's chains of COUNT rows into a stage, with all threads. Where there is no row or no
 * input, zeros are written. */
template <uint32_t COUNT>
static __device__ __forceinline__ void bring_rows(float4 *stage, const float *from, uint64_t stride, uint32_t first_row,
                                                  uint32_t end_row, uint32_t step, uint32_t n_in) {
  uint32_t chain = threadIdx.x % PART_CHAINS, at = threadIdx.x / PART_CHAINS;
#pragma unroll
  for (uint32_t i = 0; i < MANY_STEPS * COUNT * PART_CHAINS / MANY_THREADS; i++) {
    uint32_t here = at + i * (MANY_THREADS / PART_CHAINS), own = here / COUNT, row = here % COUNT;
    uint32_t k = 128 * (step + own) + 4 * (PART_CHAINS * (blockIdx.x % MANY_PARTS) + chain);
    bool ok = first_row + row < end_row && k < n_in;
    copy16_if(shared_address(stage + (own * STEP_ROWS + row) * PART_CHAINS + chain),
              ok ? from + (uint64_t)(first_row + row) * stride + k : from, ok);
  }
}

/* Adds a step to the sums. x and w: the thread's first row and expert in the stage. */
static __device__ __forceinline__ void add_step(const float4 *x, const float4 *w,
                                                float (&sum)[MANY_THREAD_ROWS][MANY_QUADS][PART_EXPERTS]) {
  float4 in[MANY_THREAD_ROWS];
#pragma unroll
  for (int i = 0; i < MANY_THREAD_ROWS; i++) in[i] = x[2 * i * PART_CHAINS];
#pragma unroll
  for (int e = 0; e < MANY_QUADS * PART_EXPERTS; e++) {
    float4 by = w[4 * e * PART_CHAINS];
#pragma unroll
    for (int c = 0; c < 4; c++) {
#pragma unroll
      for (int i = 0; i < MANY_THREAD_ROWS; i++) {
        float &to = sum[i][e / PART_EXPERTS][e % PART_EXPERTS];
        to = __fmaf_rn(((const float *)&by)[c], ((const float *)&in[i])[c], to);
      }
    }
  }
}

static __global__ void __launch_bounds__(MANY_THREADS, MANY_BLOCKS)
    many_parts_kernel(const __grid_constant__ weft_route_args a, const float *weights, uint32_t n_in, float *parts) {
  extern __shared__ float4 memory[]; /* [stage][step][rows of x, then of weights][chain] */
  uint32_t first_row = blockIdx.x / MANY_PARTS * MANY_ROWS, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t chain = lane / 4 % 4, row = warp / 4 * 16 + lane / 2 % 2, expert = warp % 4 * 32 + lane / 16 * 2 + lane % 2;
  uint32_t n_stages = (n_in + 128 * MANY_STEPS - 1) / (128 * MANY_STEPS);
  float sum[MANY_THREAD_ROWS][MANY_QUADS][PART_EXPERTS] = {};
  next_may_start();
  for (uint32_t s = 0; s < MANY_STAGES - 1; s++)
    bring_rows<ROUTER_EXPERTS>(memory + s * STAGE_FLOAT4 + MANY_ROWS * PART_CHAINS, weights, n_in, 0, a.n_experts,
                               MANY_STEPS * s, n_in);
  inputs_wait();
  for (uint32_t s = 0; s < MANY_STAGES - 1; s++) {
    bring_rows<MANY_ROWS>(memory + s * STAGE_FLOAT4, a.x, a.x_stride, first_row, a.n_rows, MANY_STEPS * s, n_in);
    copies_commit();
  }
#pragma unroll 1
  for (uint32_t s = 0; s < n_stages; s++) {
    copies_wait<MANY_STAGES - 2>();
    __syncthreads(); /* the stage is there, and all threads have read the one before it */
    uint32_t next = s + MANY_STAGES - 1;
    if (next < n_stages) {
      float4 *to = memory + next % MANY_STAGES * STAGE_FLOAT4;
      bring_rows<MANY_ROWS>(to, a.x, a.x_stride, first_row, a.n_rows, MANY_STEPS * next, n_in);
      bring_rows<ROUTER_EXPERTS>(to + MANY_ROWS * PART_CHAINS, weights, n_in, 0, a.n_experts, MANY_STEPS * next, n_in);
    }
    copies_commit();
    const float4 *stage = memory + s % MANY_STAGES * STAGE_FLOAT4 + chain;
#pragma unroll 1
    for (int step = 0; step < MANY_STEPS; step++) {
      const float4 *from = stage + step * STEP_ROWS * PART_CHAINS;
      add_step(from + row * PART_CHAINS, from + (MANY_ROWS + expert) * PART_CHAINS, sum);
    }
  }
  float *to = parts + (uint64_t)(blockIdx.x % MANY_PARTS) * a.n_rows * ROUTER_EXPERTS;
#pragma unroll
  for (uint32_t i = 0; i < MANY_THREAD_ROWS; i++) {
#pragma unroll
    for (uint32_t q = 0; q < MANY_QUADS; q++) {
      float mine = sum_of_four(sum[i][q], chain);
      uint64_t r = first_row + row + 2 * i;
      if (r < a.n_rows) to[r * ROUTER_EXPERTS + expert + 4 * (PART_EXPERTS * q + chain % 2 * 2 + chain / 2)] = mine;
    }
  }
}

static __global__ void __launch_bounds__(32 * ROUTE_WARPS)
    many_choose_kernel(const __grid_constant__ weft_route_args a, const float *parts) {
  __shared__ float logits[ROUTE_WARPS][ROUTER_EXPERTS];
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = blockIdx.x * ROUTE_WARPS + warp;
  float scale[ROUTER_EXPERTS / 32], all[ROUTER_EXPERTS / 32][MANY_PARTS];
  next_may_start();
  get_scales(a, scale);
  inputs_wait();
  if (r >= a.n_rows) return;
#pragma unroll
  for (uint32_t i = 0; i < ROUTER_EXPERTS / 32; i++) {
#pragma unroll
    for (uint32_t p = 0; p < MANY_PARTS; p++)
      all[i][p] = parts[((uint64_t)p * a.n_rows + r) * ROUTER_EXPERTS + 32 * i + lane];
  }
#pragma unroll
  for (uint32_t i = 0; i < ROUTER_EXPERTS / 32; i++) {
    float *of = all[i];
#pragma unroll
    for (uint32_t step = 1; step < MANY_PARTS; step *= 2) {
#pragma unroll
      for (uint32_t p = 0; p < MANY_PARTS; p += 2 * step) of[p] = __fadd_rn(of[p], of[p + step]);
    }
    logits[warp][32 * i + lane] = of[0];
    if (32 * i + lane < a.n_experts) a.logits[r * a.logits_stride + 32 * i + lane] = of[0];
  }
  __syncwarp();
  choose_experts(a, r, logits[warp], scale);
}

/* ---- host ----------------------------------------------------------------------------------------------- */

uint64_t route_many_scratch(const weft_route_args *args) {
  return (uint64_t)MANY_PARTS * ROUTER_EXPERTS * sizeof(float) * args->n_rows;
}

weft_status route_many_setup(cuda_device *d) {
  return cuda_judge(d, cudaFuncSetAttribute(many_parts_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MANY_BYTES),
                    "setting up routers");
}

weft_status route_many(cuda_device *d, const weft_route_args *args, const float *weights) {
  float *parts = (float *)args->scratch;
  cuda_start(d, many_parts_kernel, MANY_PARTS * cuda_ceil(args->n_rows, MANY_ROWS), MANY_THREADS, MANY_BYTES, *args,
             weights, args->router->n_in, parts);
  cuda_start(d, many_choose_kernel, cuda_ceil(args->n_rows, ROUTE_WARPS), 32 * ROUTE_WARPS, 0, *args,
             (const float *)parts);
  return cuda_launched(d, "a router of many rows");
}
