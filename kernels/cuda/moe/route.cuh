/* SPDX-License-Identifier: MIT */
/* What the kernels of route share: the top-k choice of a row's experts, and the first two levels of the reduction
 * tree of route.h. */
#ifndef WEFT_KERNELS_CUDA_ROUTE_CUH
#define WEFT_KERNELS_CUDA_ROUTE_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/moe/route.h"

enum {
  ROUTE_WARPS = 4,      /* of a block that only chooses */
  ROUTER_EXPERTS = 128, /* most of a router that the kernels for F32 weights take */
  PART_CHAINS = 4,      /* of a block */
  PART_EXPERTS = 4      /* of a thread, whose chains sum_of_four adds */
};

/* An unsigned number that is the larger the better the logit is. NaN counts as -infinity; 0 means that there is no
 * logit. */
static __device__ __forceinline__ uint32_t order_of(float logit) {
  uint32_t bits = __float_as_uint(isnan(logit) ? -INFINITY : __fadd_rn(logit, 0.0f));
  return bits ^ ((bits & 0x80000000u) != 0 ? 0xFFFFFFFFu : 0x80000000u);
}

/* Loads the factors of the lane's experts. No kernel writes them, so they may be loaded before the inputs are there. */
template <int SLOTS>
static __device__ __forceinline__ void get_scales(const weft_route_args &a, float (&scale)[SLOTS]) {
#pragma unroll
  for (uint32_t s = 0; s < SLOTS; s++) {
    uint32_t e = 32 * s + threadIdx.x % 32;
    scale[s] = a.expert_scale != NULL && e < a.n_experts ? a.expert_scale[e] : 0.0f;
  }
}

/* Chooses a row's experts, with all lanes of a warp. k <= 32, n_experts <= 32 SLOTS. */
template <int SLOTS>
static __device__ __forceinline__ void choose_experts(const weft_route_args &a, uint64_t r, const float *logits,
                                                      const float (&scale)[SLOTS]) {
  uint32_t lane = threadIdx.x % 32, order[SLOTS], index = 0;
#pragma unroll
  for (uint32_t s = 0; s < SLOTS; s++) order[s] = 32 * s + lane < a.n_experts ? order_of(logits[32 * s + lane]) : 0;
  for (uint32_t j = 0; j < a.k; j++) {
    uint32_t best = 0, at = UINT32_MAX;
#pragma unroll
    for (uint32_t s = 0; s < SLOTS; s++) best = max(best, order[s]);
    best = __reduce_max_sync(0xFFFFFFFFu, best);
#pragma unroll
    for (uint32_t s = 0; s < SLOTS; s++)
      if (order[s] == best) at = min(at, 32 * s + lane);
    at = __reduce_min_sync(0xFFFFFFFFu, at);
#pragma unroll
    for (uint32_t s = 0; s < SLOTS; s++)
      if (32 * s + lane == at) order[s] = 0;
    if (lane == j) index = at;
  }
  float own = logits[index];
  float e = expf(own - __shfl_sync(0xFFFFFFFFu, own, 0)), total = 0.0f, times = 1.0f;
#pragma unroll
  for (uint32_t s = 0; s < SLOTS; s++) {
    float there = __shfl_sync(0xFFFFFFFFu, scale[s], index % 32);
    if (s == index / 32) times = there;
  }
  for (uint32_t j = 0; j < a.k; j++) total = __fadd_rn(total, __shfl_sync(0xFFFFFFFFu, e, j));
  if (lane >= a.k) return;
  float weight = __fdiv_rn(e, total);
  if (a.expert_scale != NULL) weight = __fmul_rn(weight, times);
  a.ids[r * a.k + lane] = (int32_t)index;
  a.weights[r * a.k + lane] = weight;
}

/* Adds four neighbouring chains, which four lanes have. Of the four experts each lane ends with the sum of one. */
static __device__ __forceinline__ float sum_of_four(const float (&sum)[PART_EXPERTS], uint32_t chain) {
  float two[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    float kept = chain % 2 == 0 ? sum[i] : sum[2 + i], other = chain % 2 == 0 ? sum[2 + i] : sum[i];
    two[i] = __fadd_rn(kept, __shfl_xor_sync(0xFFFFFFFFu, other, 4));
  }
  float kept = chain / 2 == 0 ? two[0] : two[1], other = chain / 2 == 0 ? two[1] : two[0];
  return __fadd_rn(kept, __shfl_xor_sync(0xFFFFFFFFu, other, 8));
}

#endif
