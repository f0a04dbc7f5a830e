/* SPDX-License-Identifier: MIT */
/* Operands of MXFP4 for the kernels that experts of some rows take (gemm_grouped.cu, moe/experts_stream.cu). They are
 * bound by instructions, so operands are made with fewer here than in dequantise.cuh; the numbers are the same. One
 * product with 2^126 times the scale takes a code to its value. So that this power exists in bf16, scales are
 * multiplied by 2^prescale where the largest of the weight is above 2. */
#ifndef WEFT_KERNELS_CUDA_MXFP4_CUH
#define WEFT_KERNELS_CUDA_MXFP4_CUH

#include "kernels/cuda/weights/dequantise.cuh"

/* The exponent of the power of two that the weight's scales are multiplied by. */
template <int T>
static __device__ __forceinline__ int grouped_prescale(const packed_header *header) {
  if (T != WEFT_TYPE_MXFP4) return prescale_exponent(T, header);
  return min(0, 1 - (int)(header->max_scale >> 23) + 127);
}

/* powers_of, for the exponents that grouped_prescale gives for a lane's rows of row halves 0 and 1. MXFP4: what is
 * added to the exponent of a scale of either. */
template <int T>
static __device__ __forceinline__ prescale_powers grouped_powers(const int (&prescale)[2], const value_table &values) {
  prescale_powers powers = powers_of<T>(prescale[0], values);
  if (T == WEFT_TYPE_MXFP4) powers.first = (uint32_t)(prescale[0] + 126), powers.second = (uint32_t)(prescale[1] + 126);
  return powers;
}

/* Each factor is 2^126 times a prescaled scale, twice; 0 where that is below all of bf16. powers: grouped_powers. */
template <>
__device__ __forceinline__ void make_dequant_factors<WEFT_TYPE_MXFP4>(const lane_scales<WEFT_TYPE_MXFP4> &in, uint32_t,
                                                                      uint32_t, const prescale_powers &powers,
                                                                      dequant_factors &out) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int up = (int)(r == 0 ? powers.first : powers.second);
    uint32_t e = in.row[0].x >> (8 * r) & 0xFFu;
    out.of[r][0] = (e == 255 ? 0x7FC0u : (uint32_t)max((int)e + up, 0) << 7) * 0x10001u;
  }
}

template <>
__device__ __forceinline__ void dequantise_values<WEFT_TYPE_MXFP4>(const lane_codes<WEFT_TYPE_MXFP4> &in,
                                                                   const dequant_factors &f, int i, int r,
                                                                   uint32_t (&out)[4]) {
  const uint32_t word = word_of(in.code[r], i);
  uint32_t fourths = mx_fourths(word_of(in.code[r], i / 2 * 2), word_of(in.code[r], i / 2 * 2 + 1));
  asm("" : "+r"(fourths)); /* else the compiler makes the bits of each pair apart, with more instructions */
#pragma unroll
  for (int p = 0; p < 4; p++)
    out[p] = of_bf162(__hmul2(as_bf162(mx_bits_of(word, fourths, i % 2 != 0, p)), as_bf162(f.of[r][0])));
}

#endif
