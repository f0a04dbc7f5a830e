/* SPDX-License-Identifier: MIT */
/* route: top-k of a row's router logits, by a warp: k times the largest of those that are left; then a softmax over
 * them. A router is a product before it. On Hopper routers of F32 weights are one kernel with the choice
 * (route_cluster.cu). */
#include "kernels/cuda/moe/route.cuh"
#include "kernels/parts.h"

enum { ROUTE_SLOTS = 8 /* experts of a lane */ };

/* For any number of experts: finds the best one that comes after (last, last_index) in the order of choice. */
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
  launch_dependent_grids();
  float scale[ROUTE_SLOTS];
  if (small) get_scales(a, scale);
  wait_for_prior_grids();
  uint32_t r = blockIdx.x * ROUTE_WARPS + threadIdx.x / 32;
  if (r >= a.n_rows) return;
  if (small)
    choose_experts(a, r, a.logits + r * a.logits_stride, scale);
  else
    choose_of_many(a, r);
}

uint64_t route_product_scratch(weft_device *device, const weft_route_args *args) {
  if (args->router == NULL) return 0;
  weft_matmul_args m = parts_route_product(args);
  return cuda_matmul_scratch(device, &m);
}

weft_status route_product(weft_device *device, const weft_route_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  weft_status status = parts_route_logits(device, args, cuda_matmul, cuda_norm);
  if (status != WEFT_OK) return status;
  cuda_start(d, route_kernel, cuda_ceil(args->n_rows, ROUTE_WARPS), 32 * ROUTE_WARPS, 0, *args, is_small(args));
  return cuda_launched(d, "route");
}
