/* SPDX-License-Identifier: MIT */
/* route. A warp chooses for a row; the largest k of the logits one after another, each the largest of those left.
 *
 * With a router of F32 weights and few rows one kernel does both: a warp has one expert's weights in registers before
 * its inputs are there, and the block that ends last chooses. The product's order is that of multiply_f32.cu. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/form.cuh"
#include "kernels/parts.h"

enum {
  ROUTE_WARPS = 4,
  ROUTE_SLOTS = 8,   /* experts of a lane */
  ROUTER_SLOTS = 24, /* float4 of a lane */
  ROUTER_ROWS = ROUTE_WARPS
};

/* Larger is better, as unsigned; NaN as the least number; 0 is none at all. */
static __device__ __forceinline__ uint32_t order_of(float logit) {
  uint32_t bits = __float_as_uint(isnan(logit) ? -INFINITY : __fadd_rn(logit, 0.0f));
  return bits ^ ((bits & 0x80000000u) != 0 ? 0xFFFFFFFFu : 0x80000000u);
}

/* A row's choice; whole warp. k <= 32, n_experts <= 32 ROUTE_SLOTS. */
static __device__ __forceinline__ void choose(const weft_route_args &a, uint64_t r) {
  const float *logits = a.logits + r * a.logits_stride;
  uint32_t lane = threadIdx.x % 32, order[ROUTE_SLOTS], index = 0;
  float logit[ROUTE_SLOTS], own = 0.0f;
#pragma unroll
  for (uint32_t s = 0; s < ROUTE_SLOTS; s++) {
    uint32_t e = 32 * s + lane;
    logit[s] = e < a.n_experts ? __ldcg(logits + e) : 0.0f;
    order[s] = e < a.n_experts ? order_of(logit[s]) : 0;
  }
  for (uint32_t j = 0; j < a.k; j++) {
    uint32_t best = 0, at = UINT32_MAX;
#pragma unroll
    for (uint32_t s = 0; s < ROUTE_SLOTS; s++) best = max(best, order[s]);
    best = __reduce_max_sync(0xFFFFFFFFu, best);
#pragma unroll
    for (uint32_t s = 0; s < ROUTE_SLOTS; s++)
      if (order[s] == best) at = min(at, 32 * s + lane);
    at = __reduce_min_sync(0xFFFFFFFFu, at);
    float value = 0.0f;
#pragma unroll
    for (uint32_t s = 0; s < ROUTE_SLOTS; s++) {
      if (s != at / 32) continue;
      value = logit[s];
      if (lane == at % 32) order[s] = 0;
    }
    value = __shfl_sync(0xFFFFFFFFu, value, at % 32);
    if (lane == j) own = value, index = at;
  }
  float e = expf(own - __shfl_sync(0xFFFFFFFFu, own, 0)), total = 0.0f;
  for (uint32_t j = 0; j < a.k; j++) total = __fadd_rn(total, __shfl_sync(0xFFFFFFFFu, e, j));
  if (lane >= a.k) return;
  float weight = __fdiv_rn(e, total);
  if (a.expert_scale != NULL) weight = __fmul_rn(weight, a.expert_scale[index]);
  a.ids[r * a.k + lane] = (int32_t)index;
  a.weights[r * a.k + lane] = weight;
}

/* The same for any number of experts. The best one after (last, last_index): */
static __device__ void next_best(const float *logits, uint32_t n, bool first, uint32_t last, uint32_t last_index,
                                 uint32_t *best, uint32_t *best_index) {
  uint32_t value = 0, index = UINT32_MAX;
  for (uint32_t e = threadIdx.x % 32; e < n; e += 32) {
    uint32_t v = order_of(logits[e]);
    if (!first && !(v < last || (v == last && e > last_index))) continue;
    if (v > value) value = v, index = e; /* e ascends: ties keep the first */
  }
  *best = __reduce_max_sync(0xFFFFFFFFu, value);
  *best_index = __reduce_min_sync(0xFFFFFFFFu, value == *best ? index : UINT32_MAX);
}

static __device__ void choose_of_many(const weft_route_args &a, uint64_t r) {
  const float *logits = a.logits + r * a.logits_stride;
  int32_t *ids = a.ids + r * a.k;
  float *weights = a.weights + r * a.k, top = 0.0f, total = 0.0f;
  uint32_t last = 0, index = 0;
  for (uint32_t j = 0; j < a.k; j++) {
    next_best(logits, a.n_experts, j == 0, last, index, &last, &index);
    float logit = logits[index];
    if (j == 0) top = logit;
    float e = expf(logit - top);
    total = __fadd_rn(total, e);
    if (threadIdx.x % 32 == 0) ids[j] = (int32_t)index, weights[j] = e;
  }
  __syncwarp();
  for (uint32_t j = threadIdx.x % 32; j < a.k; j += 32) {
    float weight = __fdiv_rn(weights[j], total);
    if (a.expert_scale != NULL) weight = __fmul_rn(weight, a.expert_scale[ids[j]]);
    weights[j] = weight;
  }
}

static bool is_small(const weft_route_args *args) {
  return args->n_experts <= 32 * ROUTE_SLOTS && args->k <= 32;
}

static __global__ void route_kernel(const __grid_constant__ weft_route_args a, bool small) {
  inputs_ready();
  uint32_t r = blockIdx.x * ROUTE_WARPS + threadIdx.x / 32;
  if (r >= a.n_rows) return;
  if (small) choose(a, r);
  else choose_of_many(a, r);
}

/* ticket: 0 between kernels. */
static __global__ void __launch_bounds__(32 * ROUTE_WARPS) router_kernel(const __grid_constant__ weft_route_args a,
                                                                         const float *weights, uint32_t n_in,
                                                                         uint32_t *ticket) {
  __shared__ bool is_last;
  next_may_start();
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, e = blockIdx.x * ROUTE_WARPS + warp;
  float4 w[ROUTER_SLOTS];
#pragma unroll
  for (uint32_t t = 0; t < ROUTER_SLOTS; t++) {
    uint32_t k = 128 * t + 4 * lane;
    w[t] = make_float4(0, 0, 0, 0);
    if (e < a.n_experts && k < n_in) w[t] = *(const float4 *)(const void *)(weights + (uint64_t)e * n_in + k);
  }
  inputs_wait();
  for (uint32_t r = 0; r < a.n_rows; r++) {
    const float *x = a.x + r * a.x_stride;
    float sum = 0.0f;
#pragma unroll
    for (uint32_t t = 0; t < ROUTER_SLOTS; t++) {
      uint32_t k = 128 * t + 4 * lane;
      float4 in = k < n_in ? *(const float4 *)(const void *)(x + k) : make_float4(0, 0, 0, 0);
      sum = __fmaf_rn(w[t].x, in.x, sum);
      sum = __fmaf_rn(w[t].y, in.y, sum);
      sum = __fmaf_rn(w[t].z, in.z, sum);
      sum = __fmaf_rn(w[t].w, in.w, sum);
    }
    sum = warp_sum(sum);
    if (lane == 0 && e < a.n_experts) a.logits[r * a.logits_stride + e] = sum;
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(ticket, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  if (warp < a.n_rows) choose(a, warp);
  if (threadIdx.x == 0) *ticket = 0;
}

/* ---- the op --------------------------------------------------------------------------------------------- */

uint64_t weft_cuda_route_scratch(weft_device *device, const weft_route_args *args) {
  weft_matmul_args m = weft_route_product(args);
  return args->router == NULL ? 0 : weft_cuda_matmul_scratch(device, &m);
}

static bool is_one_kernel(const weft_route_args *args) {
  const weft_weight *w = args->router;
  return w->type == WEFT_TYPE_F32 && args->n_rows <= ROUTER_ROWS && is_small(args) && w->n_in % 4 == 0 &&
         w->n_in <= 128 * ROUTER_SLOTS && args->x_stride % 4 == 0 && ((uintptr_t)args->x & 15u) == 0;
}

weft_status weft_cuda_route(weft_device *device, const weft_route_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  if (args->router != NULL && is_one_kernel(args)) {
    const float *weights = (const float *)(const void *)((const uint8_t *)args->router->data + FORM_HEADER_BYTES);
    cuda_start(d, router_kernel, cuda_ceil(args->n_experts, ROUTE_WARPS), 32 * ROUTE_WARPS, 0, *args, weights,
               args->router->n_in, d->ticket);
    return cuda_launched(d, "router");
  }
  if (args->router != NULL) {
    weft_matmul_args m = weft_route_product(args);
    weft_status status = weft_cuda_matmul(device, &m);
    if (status != WEFT_OK) return status;
  }
  cuda_start(d, route_kernel, cuda_ceil(args->n_rows, ROUTE_WARPS), 32 * ROUTE_WARPS, 0, *args, is_small(args));
  return cuda_launched(d, "route");
}
