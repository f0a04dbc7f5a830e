/* SPDX-License-Identifier: MIT */
/* route of the portable set: routers of many rows as on Hopper (moe/route_gemm.cu), of few rows by one kernel, all
 * others by a product, then the choice (moe/route.cu).
 *
 * Few rows: blocks of a row share the experts, and the last one chooses, which gets the logits word by word: a word is
 * there when it is not 0 (counters.cuh). The next kernel starts when this one has waited for its inputs, so it finds
 * all but the choice there (cuda_device.choice). */
#include "kernels/cuda/moe/route.cuh"
#include "kernels/cuda/portable/counters.cuh"
#include "kernels/cuda/weights/packed_layout.cuh"

enum {
  ROUTE_PORTABLE_ROWS = 160, /* from so many on route_gemm, which Hopper has for more: it has clusters for fewer */
  FEW_ROWS = 8,              /* of one kernel */
  ROW_WARPS = 2,             /* of a block, an expert each */
  ROW_SLOTS = 24             /* fours of inputs of a lane, at most */
};

static __device__ float told_logits[COUNTED_DEVICES][FEW_ROWS][ROUTER_EXPERTS];

/* Waits for the logits of a row, and puts back zeros. */
static __device__ __forceinline__ void hear_logits(float *told, uint32_t n, float *logits) {
  uint32_t lane = threadIdx.x % 32;
  float x[ROUTER_EXPERTS / 32];
  bool all;
  do {
    all = true;
#pragma unroll
    for (uint32_t i = 0; i < ROUTER_EXPERTS / 32; i++)
      x[i] = 32 * i + lane < n ? hear_word(told + 32 * i + lane) : 1.0f;
#pragma unroll
    for (uint32_t i = 0; i < ROUTER_EXPERTS / 32; i++) all = all && is_told(x[i]);
  } while (!all);
#pragma unroll
  for (uint32_t i = 0; i < ROUTER_EXPERTS / 32; i++) {
    if (32 * i + lane < n) logits[32 * i + lane] = x[i], told[32 * i + lane] = 0.0f;
  }
  __syncwarp();
}

/* Starts the copies of a row of n_in inputs, ROW_SLOTS fours of each of `n_lanes` lanes at most. */
template <uint32_t n_lanes>
static __device__ __forceinline__ void copy_inputs(float4 *to, const float *from, uint32_t n_in, uint32_t lane) {
#pragma unroll
  for (uint32_t i = lane; i < ROW_SLOTS * 32; i += n_lanes)
    cp_async_16_if(shared_address(to + i), from + 4 * i, 4 * i < n_in);
}

static __global__ void __launch_bounds__(32 * ROW_WARPS)
    route_rows_kernel(const __grid_constant__ weft_route_args a, const float *weights, uint32_t n_in, uint32_t device) {
  __shared__ float4 x[ROW_SLOTS * 32], w[ROW_WARPS][ROW_SLOTS * 32]; /* all are asked for at once */
  __shared__ float logits[ROUTER_EXPERTS];
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, e = blockIdx.x * ROW_WARPS + warp, r = blockIdx.y;
  float scale[ROUTER_EXPERTS / 32], *told = told_logits[device][r];
  copy_inputs<32>(w[warp], weights + (uint64_t)min(e, a.n_experts - 1) * n_in, n_in, lane);
  get_scales(a, scale);
  wait_for_prior_grids();
  launch_dependent_grids();
  copy_inputs<32 * ROW_WARPS>(x, a.x + r * a.x_stride, n_in, threadIdx.x);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  float sum = 0.0f;
  for (uint32_t k = lane; 4 * k < n_in; k += 32) {
    sum = __fmaf_rn(w[warp][k].x, x[k].x, sum);
    sum = __fmaf_rn(w[warp][k].y, x[k].y, sum);
    sum = __fmaf_rn(w[warp][k].z, x[k].z, sum);
    sum = __fmaf_rn(w[warp][k].w, x[k].w, sum);
  }
  sum = sum_of_chains(sum);
  if (lane == 0 && e < a.n_experts) {
    if (a.router_bias != NULL) sum = __fadd_rn(sum, a.router_bias[e]);
    tell_word(told + e, sum);
    a.logits[r * a.logits_stride + e] = sum;
  }
  if (blockIdx.x + 1 < gridDim.x || warp != 0) return;
  hear_logits(told, a.n_experts, logits);
  choose_experts(a, r, logits, scale);
}

/* ---- host ------------------------------------------------------------------------------------------------ */

static bool takes_gemm(const weft_route_args *args) {
  return args->router != NULL && args->n_rows >= ROUTE_PORTABLE_ROWS && route_gemm_suits(args);
}

static const float *weights_of(const weft_weight *router) {
  return (const float *)(const void *)((const uint8_t *)router->data + PACKED_HEADER_BYTES);
}

uint64_t route_portable_scratch(weft_device *device, const weft_route_args *args) {
  return takes_gemm(args) ? route_gemm_scratch(args) : route_product_scratch(device, args);
}

weft_status route_portable(weft_device *device, const weft_route_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  if (takes_gemm(args)) return route_gemm(d, args, weights_of(args->router));
  bool few = args->router != NULL && args->n_rows <= FEW_ROWS && args->router->n_in <= 128 * ROW_SLOTS;
  uint32_t number = few && route_gemm_suits(args) ? counters_device(d) : COUNTED_DEVICES;
  if (number == COUNTED_DEVICES) return route_product(device, args);
  cuda_start(d, route_rows_kernel, dim3(cuda_ceil(args->n_experts, ROW_WARPS), args->n_rows), 32 * ROW_WARPS, 0, *args,
             weights_of(args->router), args->router->n_in, number);
  weft_status status = cuda_launched(d, "a router of few rows");
  if (status == WEFT_OK) d->choice = args->ids;
  return status;
}
