/* SPDX-License-Identifier: MIT */
/* assign: experts by scores of their own, or by a table of the row's token (kernels/experts.h). A warp has a row. It
 * chooses one expert after another: the best that stands behind the one before it, by rank, then by number. So nothing
 * is marked as taken, and where there are few experts their ranks stay in registers. Groups are chosen in the same way.
 * A token or an expert that does not exist cannot be refused here: its ids become -1, of which experts makes NaN.
 * Sums of the softmax: experts of a lane ascend, then a tree over lanes. */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cuda.h"

enum { ASSIGN_WARPS = 4, ASSIGN_KEPT = 16 /* ranks of a lane that stay in registers */ };

/* A row's scores, and which groups are not chosen among. */
struct scored_row {
  const weft_assign_args &a;
  const float *logits;
  float most, total;
  uint32_t closed;

  __device__ __forceinline__ float score(uint32_t e) const {
    const float x = logits[e];
    if (a.scores == WEFT_SCORES_SIGMOID) return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-x)));
    if (a.scores == WEFT_SCORES_SOFTMAX) return __fdiv_rn(expf(__fsub_rn(x, most)), total);
    float small = log1pf(expf(-fabsf(x)));
    return sqrtf(x > 0.0f ? __fadd_rn(x, small) : isnan(x) ? x : small);
  }
  __device__ __forceinline__ float rank(uint32_t e) const {
    float own = a.bias == NULL ? score(e) : __fadd_rn(score(e), a.bias[e]);
    return isnan(own) ? -INFINITY : own;
  }
  __device__ __forceinline__ bool is_closed(uint32_t e) const {
    return a.n_groups > 0 && (closed >> (e / (a.n_experts / a.n_groups)) & 1) != 0;
  }
};

/* An expert, or a group, among those that may be chosen; number UINT32_MAX: none. */
struct candidate {
  float rank;
  uint32_t number;
  __device__ __forceinline__ bool before(const candidate &other) const {
    return rank > other.rank || (rank == other.rank && number < other.number);
  }
};

static __device__ __forceinline__ candidate best_of_warp(candidate own) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    candidate other = {__shfl_xor_sync(0xFFFFFFFFu, own.rank, step), __shfl_xor_sync(0xFFFFFFFFu, own.number, step)};
    if (other.before(own)) own = other;
  }
  return own;
}

static __device__ __forceinline__ void sum_scores(scored_row &row) {
  float most = -INFINITY, total = 0.0f;
  for (uint32_t e = threadIdx.x % 32; e < row.a.n_experts; e += 32) most = fmaxf(most, row.logits[e]);
  most = warp_max(most);
  for (uint32_t e = threadIdx.x % 32; e < row.a.n_experts; e += 32)
    total = __fadd_rn(total, expf(__fsub_rn(row.logits[e], most)));
  row.most = most, row.total = warp_sum(total);
}

/* The best expert of a group that stands behind `last`. */
static __device__ __forceinline__ candidate best_of_group(const scored_row &row, uint32_t group, candidate last) {
  const uint32_t n = row.a.n_experts / row.a.n_groups;
  candidate best = {-INFINITY, UINT32_MAX};
  for (uint32_t e = group * n + threadIdx.x % 32; e < (group + 1) * n; e += 32) {
    candidate one = {row.rank(e), e};
    if (last.before(one) && one.before(best)) best = one;
  }
  return best_of_warp(best);
}

/* Closes all groups but the best. Lane g has group g. */
static __device__ __forceinline__ void close_groups(scored_row &row) {
  const uint32_t lane = threadIdx.x % 32;
  candidate own = {-INFINITY, UINT32_MAX};
  for (uint32_t g = 0; g < row.a.n_groups; g++) {
    candidate first = best_of_group(row, g, {INFINITY, 0});
    float rank = first.rank;
    if (row.a.scores != WEFT_SCORES_SOFTMAX) rank = __fadd_rn(rank, best_of_group(row, g, first).rank);
    if (lane == g) own = {isnan(rank) ? -INFINITY : rank, g};
  }
  uint32_t open = 0;
  for (uint32_t i = 0; i < row.a.n_groups_used; i++) {
    candidate left = lane < row.a.n_groups && (open >> lane & 1) == 0 ? own : candidate{-INFINITY, UINT32_MAX};
    open |= 1u << best_of_warp(left).number;
  }
  row.closed = ~open;
}

/* KEPT: all ranks of a lane are in registers. own: the expert of the rank that is the lane's number. */
template <bool KEPT>
static __device__ __forceinline__ void choose_by_rank(const scored_row &row, int32_t *ids, uint32_t *own) {
  const uint32_t lane = threadIdx.x % 32, n = row.a.n_experts;
  float rank[KEPT ? ASSIGN_KEPT : 1];
  uint32_t offered = 0; /* of those in registers, a bit each */
#pragma unroll
  for (uint32_t i = 0; KEPT && i < ASSIGN_KEPT; i++) {
    if (lane + 32 * i >= n || row.is_closed(lane + 32 * i)) continue;
    rank[i] = row.rank(lane + 32 * i);
    offered |= 1u << i;
  }
  candidate last = {INFINITY, 0};
  for (uint32_t j = 0; j < row.a.k; j++) {
    candidate best = {-INFINITY, UINT32_MAX};
    auto offer = [&](float r, uint32_t e) {
      candidate one = {r, e};
      bool is_left = j == 0 || last.before(one);
      if (is_left && one.before(best)) best = one;
    };
    if constexpr (KEPT) {
#pragma unroll
      for (uint32_t i = 0; i < ASSIGN_KEPT; i++)
        if ((offered >> i & 1) != 0) offer(rank[i], lane + 32 * i);
    } else {
      for (uint32_t e = lane; e < n; e += 32)
        if (!row.is_closed(e)) offer(row.rank(e), e);
    }
    last = best_of_warp(best);
    if (lane == 0) ids[j] = (int32_t)last.number;
    if (lane == j) *own = last.number;
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

static __device__ __forceinline__ float weight_of(const weft_assign_args &a, float score, float total) {
  float own = __fmul_rn(a.factor, score);
  return a.as_scored ? own : __fdiv_rn(own, total);
}

/* Weights of up to 32 ranks, a lane each. */
static __device__ __forceinline__ void weigh_lanes(const scored_row &row, uint32_t id, float *weights) {
  const uint32_t lane = threadIdx.x % 32, k = row.a.k;
  float score = lane < k && id < row.a.n_experts ? row.score(id) : not_a_number(), total = 1e-20f;
  for (uint32_t j = 0; j < k; j++) total = __fadd_rn(total, __shfl_sync(0xFFFFFFFFu, score, j));
  if (lane < k) weights[lane] = weight_of(row.a, score, total);
}

template <bool KEPT>
static __global__ void __launch_bounds__(32 * ASSIGN_WARPS) assign_kernel(const __grid_constant__ weft_assign_args a) {
  launch_dependents_and_wait();
  const uint64_t r = (uint64_t)blockIdx.x * ASSIGN_WARPS + threadIdx.x / 32;
  if (r >= a.n_rows) return;
  scored_row row = {a, a.logits + r * a.logits_stride, 0.0f, 1.0f, 0};
  int32_t *ids = a.ids + r * a.k;
  float *weights = a.weights + r * a.k, total = 1e-20f;
  uint32_t own = UINT32_MAX;
  if (a.scores == WEFT_SCORES_SOFTMAX) sum_scores(row);
  if (a.n_groups > 0) close_groups(row);
  if (a.table != NULL)
    choose_by_table(a, r, ids, &own);
  else
    choose_by_rank<KEPT>(row, ids, &own);
  if (a.k <= 32) {
    weigh_lanes(row, own, weights);
    return;
  }
  __syncwarp();
  for (uint32_t j = 0; j < a.k; j++) {
    uint32_t id = (uint32_t)ids[j];
    total = __fadd_rn(total, id < a.n_experts ? row.score(id) : not_a_number());
  }
  for (uint32_t j = threadIdx.x % 32; j < a.k; j += 32) {
    uint32_t id = (uint32_t)ids[j];
    weights[j] = weight_of(a, id < a.n_experts ? row.score(id) : not_a_number(), total);
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
