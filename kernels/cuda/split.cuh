/* SPDX-License-Identifier: MIT */
/* Numbers as sums of two of bf16, high and low, for products by tensor cores: within 2^-17 of what they are. */
#ifndef WEFT_KERNELS_CUDA_SPLIT_CUH
#define WEFT_KERNELS_CUDA_SPLIT_CUH

#include "kernels/cuda/common.cuh"

static __device__ __forceinline__ void split_two(float x, float y, uint32_t &high, uint32_t &low) {
  high = pair_bf16(x, y);
  low = pair_bf16(__fsub_rn(x, __uint_as_float(high << 16)), __fsub_rn(y, __uint_as_float(high & 0xFFFF0000u)));
}

#endif
