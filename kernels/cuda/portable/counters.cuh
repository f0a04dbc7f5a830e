/* SPDX-License-Identifier: MIT */
/* How blocks tell one another what is there (counters.h): by a counter or, of a few words that one warp hears, by the
 * words themselves. Such a word is there when it is not 0, and who hears it puts back 0; zero is told as -0. */
#ifndef WEFT_KERNELS_CUDA_PORTABLE_COUNTERS_CUH
#define WEFT_KERNELS_CUDA_PORTABLE_COUNTERS_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/portable/counters.h"

/* Counts a block of which all threads have stored what others wait for. */
static __device__ __forceinline__ void count_block(uint32_t *counter) {
  __syncthreads();
  if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

/* What the counter says; what was stored before that is there. */
static __device__ __forceinline__ uint32_t counted(const uint32_t *counter) {
  uint32_t n;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(counter) : "memory");
  return n;
}

static __device__ __forceinline__ void tell_word(float *to, float x) {
  if (x == 0.0f) x = -0.0f;
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}

static __device__ __forceinline__ float hear_word(const float *from) {
  float x;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(x) : "l"(from) : "memory");
  return x;
}

static __device__ __forceinline__ bool is_told(float x) {
  return __float_as_uint(x) != 0;
}

#endif
