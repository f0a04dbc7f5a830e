/* SPDX-License-Identifier: MIT */
/* assign: experts by scores of their own, or by a table of the row's token (kernels/experts.h). A warp has a row. It
 * chooses one expert after another: the best that stands behind the one before it, by rank, then by number. So nothing
 * is marked as taken, and where there are few experts their ranks stay in registers. A token or an expert that does not
 * exist cannot be refused here: its ids become -1, of which experts makes NaN. */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cuda.h"

enum { ASSIGN_WARPS = 4, ASSIGN_KEPT = 16 /* ranks of a lane that stay in registers */ };

/* sqrt(softplus(logit)) */
static __device__ __forceinline__ float score_of(float logit) {
  float e = log1pf(expf(-fabsf(logit)));
  return sqrtf(logit > 0.0f ? __fadd_rn(logit, e) : isnan(logit) ? logit : e);
}

/* An expert among those that may be chosen; expert UINT32_MAX: none. */
struct candidate {
  float rank;
  uint32_t expert;
  __device__ __forceinline__ bool before(const candidate &other) const {
    return rank > other.rank || (rank == other.rank && expert < other.expert);
  }
};

static __device__ __forceinline__ float rank_of(const weft_assign_args &a, const float *logits, uint32_t e) {
  float rank = __fadd_rn(score_of(logits[e]), a.bias[e]);
  return isnan(rank) ? -INFINITY : rank;
}

static __device__ __forceinline__ candidate best_of_warp(candidate own) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    candidate other = {__shfl_xor_sync(0xFFFFFFFFu, own.rank, step), __shfl_xor_sync(0xFFFFFFFFu, own.expert, step)};
    if (other.before(own)) own = other;
  }
  return own;
}

/* KEPT: all ranks of a lane are in registers. own: the expert of the rank that is the lane's number. */
template <bool KEPT>
static __device__ __forceinline__ void choose_by_rank(const weft_assign_args &a, const float *logits, int32_t *ids,
                                                      uint32_t *own) {
  const uint32_t lane = threadIdx.x % 32;
  float rank[KEPT ? ASSIGN_KEPT : 1];
#pragma unroll
  for (uint32_t i = 0; KEPT && i < ASSIGN_KEPT; i++)
    if (lane + 32 * i < a.n_experts) rank[i] = rank_of(a, logits, lane + 32 * i);
  candidate last = {INFINITY, 0};
  for (uint32_t j = 0; j < a.k; j++) {
    candidate best = {-INFINITY, UINT32_MAX};
    auto offer = [&](float r, uint32_t e) {
      candidate one = {r, e};
      bool is_left = j == 0 || last.before(one);
      if (is_left && one.before(best)) best = one;
    };
    if constexpr (KEPT) {
#pragma unroll
      for (uint32_t i = 0; i < ASSIGN_KEPT; i++)
        if (lane + 32 * i < a.n_experts) offer(rank[i], lane + 32 * i);
    } else {
      for (uint32_t e = lane; e < a.n_experts; e += 32) offer(rank_of(a, logits, e), e);
    }
    last = best_of_warp(best);
    if (lane == 0) ids[j] = (int32_t)last.expert;
    if (lane == j) *own = last.expert;
  }
}

static __device__ __forceinline__ void choose_by_table(const weft_assign_args &a, uint64_t row, int32_t *ids,
                                                       uint32_t *own) {
  const uint32_t token = (uint32_t)a.tokens[row];
  for (uint32_t j = threadIdx.x % 32; j < a.k; j += 32) {
    int32_t id = token < a.n_tokens ? a.table[(uint64_t)token * a.k + j] : -1;
    ids[j] = (uint32_t)id < a.n_experts ? id : -1;
    if (j < 32) *own = (uint32_t)id;
  }
}

/* Weights of up to 32 ranks, a lane each. */
static __device__ __forceinline__ void weigh_lanes(const weft_assign_args &a, const float *logits, uint32_t id,
                                                   float *weights) {
  const uint32_t lane = threadIdx.x % 32;
  float score = lane < a.k && id < a.n_experts ? score_of(logits[id]) : not_a_number(), total = 1e-20f;
  for (uint32_t j = 0; j < a.k; j++) total = __fadd_rn(total, __shfl_sync(0xFFFFFFFFu, score, j));
  if (lane < a.k) weights[lane] = __fdiv_rn(__fmul_rn(a.factor, score), total);
}

template <bool KEPT>
static __global__ void __launch_bounds__(32 * ASSIGN_WARPS) assign_kernel(const __grid_constant__ weft_assign_args a) {
  launch_dependents_and_wait();
  const uint64_t row = (uint64_t)blockIdx.x * ASSIGN_WARPS + threadIdx.x / 32;
  if (row >= a.n_rows) return;
  const float *logits = a.logits + row * a.logits_stride;
  int32_t *ids = a.ids + row * a.k;
  float *weights = a.weights + row * a.k, total = 1e-20f;
  uint32_t own = UINT32_MAX;
  if (a.table != NULL)
    choose_by_table(a, row, ids, &own);
  else
    choose_by_rank<KEPT>(a, logits, ids, &own);
  if (a.k <= 32) {
    weigh_lanes(a, logits, own, weights);
    return;
  }
  __syncwarp();
  for (uint32_t j = 0; j < a.k; j++) {
    uint32_t id = (uint32_t)ids[j];
    total = __fadd_rn(total, id < a.n_experts ? score_of(logits[id]) : not_a_number());
  }
  for (uint32_t j = threadIdx.x % 32; j < a.k; j += 32) {
    uint32_t id = (uint32_t)ids[j];
    float score = id < a.n_experts ? score_of(logits[id]) : not_a_number();
    weights[j] = __fdiv_rn(__fmul_rn(a.factor, score), total);
  }
}

weft_status cuda_assign(weft_device *device, const weft_assign_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  bool kept = args->n_experts <= 32 * ASSIGN_KEPT;
  cuda_start(d, kept ? assign_kernel<true> : assign_kernel<false>, cuda_ceil(args->n_rows, ASSIGN_WARPS),
             32 * ASSIGN_WARPS, 0, *args);
  return cuda_launched(d, "assign");
}
