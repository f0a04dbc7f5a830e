/* SPDX-License-Identifier: MIT */
/* The sum over a row's experts (kernels/experts.h), as kernels make it: the row's ranks leaf by leaf, and the sums that
 * are not whole yet.
 *
 * Law: a rank whose expert does not exist is one of the last leaf. Its term is no number, so that the row is none. */
#ifndef WEFT_KERNELS_CUDA_RANKS_CUH
#define WEFT_KERNELS_CUDA_RANKS_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/experts.h"

/* The leaf of a rank whose expert is id. */
static __device__ __forceinline__ uint32_t leaf_of_rank(uint32_t id, uint32_t n_experts) {
  return id < n_experts ? weft_experts_leaf(id, n_experts) : WEFT_EXPERTS_LEAVES - 1;
}

typedef struct rank_of_row {
  uint32_t rank, leaf, id;
  float weight;
} rank_of_row;

static __device__ __forceinline__ rank_of_row load_rank(const int32_t *ids, const float *weights, uint32_t rank,
                                                        uint32_t k, uint32_t n_experts) {
  rank_of_row r = {rank, UINT32_MAX, 0, 0.0f};
  if (rank >= k) return r;
  r.id = (uint32_t)ids[rank];
  r.weight = weights[rank];
  r.leaf = leaf_of_rank(r.id, n_experts);
  return r;
}

/* Calls put(place, rank_of_row) for each of a row's ranks, with places 0, 1 .. k - 1 leaf by leaf and in rank order
 * within one. All lanes of a warp call it; a lane has a rank, and counts those before it. */
template <class PUT>
static __device__ __forceinline__ void order_ranks(const int32_t *ids, const float *weights, uint32_t k,
                                                   uint32_t n_experts, const PUT &put) {
  uint32_t lane = threadIdx.x % 32;
  for (uint32_t begin = 0; begin < k; begin += 32) {
    rank_of_row own = load_rank(ids, weights, begin + lane, k, n_experts);
    uint32_t place = 0;
    for (uint32_t from = 0; from < k; from += 32) {
      uint32_t leaf = from == begin ? own.leaf : load_rank(ids, weights, from + lane, k, n_experts).leaf;
#pragma unroll 8
      for (uint32_t i = 0; i < min(k - from, 32u); i++) {
        uint32_t other = __shfl_sync(0xFFFFFFFFu, leaf, i);
        if (other < own.leaf || (other == own.leaf && from + i < own.rank)) place++;
      }
    }
    if (own.rank < k) put(place, own);
  }
}

/* The sums of n outputs, +0 at first: of the leaf that is being added, and of each level above it. */
template <uint32_t n>
struct leaf_sums {
  float level[WEFT_EXPERTS_LEVELS + 1][n];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (uint32_t l = 0; l <= WEFT_EXPERTS_LEVELS; l++)
#pragma unroll
      for (uint32_t e = 0; e < n; e++) level[l][e] = 0.0f;
  }
  __device__ __forceinline__ void add(uint32_t e, float term) {
    level[0][e] = __fadd_rn(level[0][e], term);
  }
  /* next: the leaf of the next rank, as weft_experts_closes says. */
  __device__ __forceinline__ void close(uint32_t leaf, uint32_t next) {
    uint32_t differs = leaf ^ next;
#pragma unroll
    for (uint32_t l = 0; l < WEFT_EXPERTS_LEVELS; l++) {
      if (differs >> l == 0) break;
#pragma unroll
      for (uint32_t e = 0; e < n; e++) {
        level[l + 1][e] = __fadd_rn(level[l + 1][e], level[l][e]);
        level[l][e] = 0.0f;
      }
    }
  }
  __device__ __forceinline__ const float (&all() const)[n] {
    return level[WEFT_EXPERTS_LEVELS];
  }
};

#endif
