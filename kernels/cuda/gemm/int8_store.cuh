/* SPDX-License-Identifier: MIT */
/* What the kernels of products with integers of weights share (int8_gemm.cu, int8_jobs.cu): sums are scaled and stored.
 * Of a row a lane has two columns of every eight; columns are permuted (weights/int8_weights.h), so those of two eights
 * are four outputs side by side. */
#ifndef WEFT_KERNELS_CUDA_INT8_STORE_CUH
#define WEFT_KERNELS_CUDA_INT8_STORE_CUH

#include "kernels/cuda/gemm/w8a8.cuh"
#include "kernels/cuda/weights/int8_weights.h"

/* sums += the span's s32 accumulators times the scales of the lane's two rows and the steps of its columns. */
template <int N>
static __device__ __forceinline__ void scale_sums(const float (&scale)[2], const float *steps, const int32_t (&d)[N][4],
                                                  float (&sums)[N][4]) {
  steps += threadIdx.x % 4 * 4;
#pragma unroll
  for (int n = 0; n < N; n += 2) {
    float4 four = *(const float4 *)(const void *)(steps + 8 * n);
    const float step[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 8; i++) {
      float &sum = sums[n + i / 4][i % 4];
      sum = __fmaf_rn((float)d[n + i / 4][i % 4], __fmul_rn(scale[i / 2 % 2], step[i / 4 * 2 + i % 2]), sum);
    }
  }
}

static __device__ __forceinline__ void store_at_once(float *y, const float (&v)[4]) {
  *(float4 *)(void *)y = make_float4(v[0], v[1], v[2], v[3]);
}

static __device__ __forceinline__ void store_at_once(__nv_bfloat16 *y, const float (&v)[4]) {
  *(uint2 *)(void *)y = make_uint2(pair_bf16(v[0], v[1]), pair_bf16(v[2], v[3]));
}

/* Stores four results of a row side by side, of which n exist. WHOLE: all do, and they may be stored at once. Y: float,
 * or bf16, to which they are rounded. */
template <bool WHOLE, class Y>
static __device__ __forceinline__ void store_four(Y *y, uint32_t n, const float (&v)[4]) {
  if constexpr (WHOLE) {
    store_at_once(y, v);
  } else if (n >= 4 && (uintptr_t)y % (4 * sizeof(Y)) == 0) { /* rows of a group that is not full */
    store_at_once(y, v);
  } else {
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
      if (i < n) y[i] = (Y)v[i];
  }
}

/* The four sums of row half r in column tiles n and n + 1. */
template <int N>
static __device__ __forceinline__ void four_of(const float (&sums)[N][4], int n, int r, float scale, float (&v)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] = __fmul_rn(sums[n + i / 2][2 * r + i % 2], scale);
}

#endif
