/* SPDX-License-Identifier: MIT */
/* What the W8A8 kernels share: quantising the numbers of a row, and requantising the codes of a weight to int8 in
 * registers, as operands of the tensor cores.
 *
 * Law: every rounding is the one that w8a8.h names. */
#ifndef WEFT_KERNELS_CUDA_W8A8_CUH
#define WEFT_KERNELS_CUDA_W8A8_CUH

#include "kernels/cuda/gemm/w8a8.h"

/* ---- rows ------------------------------------------------------------------------------------------------ */

#define W8A8_MIN_MAGNITUDE 0x1p-100f /* a span whose largest magnitude is below it counts as zeros */

/* The scale of a row's span whose largest magnitude has the bits `most`; a number x becomes round(x * inverse). A span
 * with an infinity or a NaN gets the scale NaN, so that results with it are NaN too. */
static __device__ __forceinline__ float w8a8_scale(uint32_t most, float *inverse) {
  float largest = __uint_as_float(most), scale = __fdiv_rn(largest, 127.0f);
  *inverse = most == 0 ? 0.0f : __fdiv_rn(127.0f, largest);
  if (most >= 0x7F800000u) scale = not_a_number(), *inverse = 0.0f;
  if (largest < W8A8_MIN_MAGNITUDE) scale = *inverse = 0.0f;
  return scale;
}

/* Two numbers quantised to int8, in the low half; four. */
static __device__ __forceinline__ uint32_t w8a8_pair_bytes(const float *v, float inverse) {
  uint32_t low = (uint32_t)__float2int_rn(__fmul_rn(v[0], inverse)) & 0xFFu;
  return low | ((uint32_t)__float2int_rn(__fmul_rn(v[1], inverse)) & 0xFFu) << 8;
}

static __device__ __forceinline__ uint32_t w8a8_bytes(const float *v, float inverse) {
  uint32_t word = 0;
#pragma unroll
  for (int e = 0; e < 4; e++) word |= ((uint32_t)__float2int_rn(__fmul_rn(v[e], inverse)) & 0xFFu) << (8 * e);
  return word;
}

/* ---- weights --------------------------------------------------------------------------------------------- */

/* How a code is requantised to int8: its factors are such that dequantise_pair (dequantise.cuh) gives 3 2^-4 plus
 * the integer times 2^-13. There f16 numbers are 2^-13 apart, so the low byte of the result is the integer, rounded.
 * A code counts as 2^-24 of itself, so its scale is 2^11 scale / step. */
enum { W8A8_ZERO = 0x3200 /* 3 2^-4 */ };

/* The factors from 2^11 scale and 2^-13 zero point, both in steps. */
static __device__ __forceinline__ uint32_t w8a8_pair(float scale, float zero_point) {
  uint32_t zero = (uint32_t)W8A8_ZERO << 16;
  return of_half2(__hadd2(as_half2(pair_f16(scale, zero_point)), as_half2(zero)));
}

/* The factors of a lane's elements. over: 2^11 / step of rows g and g + 8. */
template <int T>
static __device__ __forceinline__ void w8a8_factors(const lane_scales<T> &in, uint32_t half, uint32_t c,
                                                    const float (&over)[2], dequant_factors &out) {
  constexpr float offset = T == WEFT_TYPE_Q6_K   ? 32.0f
                           : T == WEFT_TYPE_Q4_0 ? 8.0f
                           : T == WEFT_TYPE_Q5_0 ? 16.0f
                                                 : 128.0f;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    if constexpr (T == WEFT_TYPE_Q4_K || T == WEFT_TYPE_Q5_K) {
      uint32_t six = super_scale(in.row[r], half, c); /* scale, 2^-10 zero point */
      float scale = half_bits(in.row[r].x & 0xFFFFu) * over[r] * half_bits(six & 0xFFFFu);
      float zero_point = half_bits(in.row[r].x >> 16) * (over[r] * -0x1p-14f) * half_bits(six >> 16);
      out.of[r][0] = w8a8_pair(scale, zero_point);
    } else if constexpr (T == WEFT_TYPE_Q6_K) {
      float d = half_bits(r == 0 ? in.row[0].z : in.row[0].w) * over[r];
      uint32_t s = r == 0 ? in.row[0].x : in.row[0].y;
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float scale = d * (float)(int8_t)(s >> (8 * i) & 0xFFu);
        out.of[r][i] = w8a8_pair(scale, scale * (-offset * 0x1p-24f));
      }
    } else {
      float scale = half_bits(in.row[0].x >> (16 * r) & 0xFFFFu) * over[r];
      out.of[r][0] = w8a8_pair(scale, scale * (-offset * 0x1p-24f));
    }
  }
}

/* The operand of product i, of 32 inputs. */
template <int T>
static __device__ __forceinline__ void requantise_operands(const lane_codes<T> &in, const dequant_factors &f, int i,
                                                           uint32_t (&out)[4]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    uint32_t pairs[4];
    dequantise_values<T>(in, f, i, r, pairs);
    out[r] = __byte_perm(pairs[0], pairs[1], 0x6420);
    out[r + 2] = __byte_perm(pairs[2], pairs[3], 0x6420);
  }
}

/* 2^11 / step, rounded once: a step is 0, NaN or a normal number whose inverse is one too, so an estimate and one
 * correction are enough. */
static __device__ __forceinline__ float inverse_of(float step) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(step));
  inverse = __fmaf_rn(inverse, __fmaf_rn(-step, inverse, 1.0f), inverse);
  return step == 0.0f ? 0.0f : inverse * 0x1p11f;
}

/* ---- sums ------------------------------------------------------------------------------------------------ */

/* The integer sums d of a product of the tensor cores, as operands of its instruction: of 2, 3, 4, 8 or 16 tiles of 8. */
#define W8A8_4(i)   "+r"(d[i][0]), "+r"(d[i][1]), "+r"(d[i][2]), "+r"(d[i][3])
#define W8A8_SUMS_2 W8A8_4(0), W8A8_4(1)
#define W8A8_SUMS_3 W8A8_SUMS_2, W8A8_4(2)
#define W8A8_SUMS_4 W8A8_SUMS_3, W8A8_4(3)
#define W8A8_SUMS_8 W8A8_SUMS_4, W8A8_4(4), W8A8_4(5), W8A8_4(6), W8A8_4(7)
#define W8A8_SUMS_16 \
  W8A8_SUMS_8, W8A8_4(8), W8A8_4(9), W8A8_4(10), W8A8_4(11), W8A8_4(12), W8A8_4(13), W8A8_4(14), W8A8_4(15)

#endif
