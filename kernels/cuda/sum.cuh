/* SPDX-License-Identifier: MIT */
/* How a thread gives numbers to the inbox of another card (kernels/shards_sum.h).
 *
 * Law: a number is stored and loaded with the order of the whole system: its word says by itself that it has come. */
#ifndef WEFT_KERNELS_CUDA_SUM_CUH
#define WEFT_KERNELS_CUDA_SUM_CUH

#include "kernels/shards_sum.h"

typedef struct __align__(16) four {
  uint32_t word[4];
}
four;

static __device__ __forceinline__ void give(float *to, const four &v) {
  asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.word[0]), "r"(v.word[1]),
               "r"(v.word[2]), "r"(v.word[3])
               : "memory");
}

static __device__ __forceinline__ four as_four(const float4 &v) {
  four out = {{__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w)}};
  return out;
}

/* Gives four numbers of an array; none of them is then the empty one. */
static __device__ __forceinline__ void give_four(float *to, const float4 &x) {
  four v = as_four(x);
#pragma unroll
  for (uint32_t w = 0; w < 4; w++)
    if (v.word[w] == SHARDS_SUM_EMPTY) v.word[w] = SHARDS_SUM_OTHER;
  give(to, v);
}

/* Which sum is next, and so which inbox: until that sum runs. */
static __device__ __forceinline__ uint32_t sum_turn(const shards_sum &a) {
  return *(const volatile uint32_t *)&a.state->n_sums % SHARDS_SUM_INBOXES;
}

/* Of a sum by owners. */
static __device__ __forceinline__ uint32_t sum_owner(const shards_sum &a, uint64_t r) {
  return (uint32_t)r % a.n;
}

#endif
