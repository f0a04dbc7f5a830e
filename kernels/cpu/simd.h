/* SPDX-License-Identifier: MIT */
/* Vectors of f32, as wide as the instruction set that the including file is compiled for has them, and functions on
 * them.
 *
 * Law: the same code has 16 lanes in a *_avx512.c file, 8 in a *_avx2.c file and 4 elsewhere. Results of different
 * widths may differ in their last bits; those of one width are a function of the inputs alone. Everything is static, so
 * that files compiled for different instruction sets never use each other's functions. */
#ifndef WEFT_KERNELS_CPU_SIMD_H
#define WEFT_KERNELS_CPU_SIMD_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { VF_LANES = 16 };
#elif defined(__AVX2__)
enum { VF_LANES = 8 };
#else
enum { VF_LANES = 4 };
#endif

#define SIMD_INLINE static inline __attribute__((always_inline, unused))

typedef float vf __attribute__((vector_size(VF_LANES * 4)));
typedef int32_t vi __attribute__((vector_size(VF_LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(VF_LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(VF_LANES * 2)));
typedef int8_t vb __attribute__((vector_size(VF_LANES)));

/* ---- moving ---- */

SIMD_INLINE vf vf_set(float x) {
  return x - (vf){0};
}

SIMD_INLINE vf vf_load(const float *from) {
  vf x;
  memcpy(&x, from, sizeof x);
  return x;
}

SIMD_INLINE void vf_store(float *to, vf x) {
  memcpy(to, &x, sizeof x);
}

/* Load and store only the first n lanes (n < VF_LANES). The memory of the others is not touched; loaded, they are 0. */
SIMD_INLINE vf vf_load_some(const float *from, uint32_t n) {
#if defined(__AVX512F__)
  return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), from);
#else
  vf x = {0};
  for (uint32_t i = 0; i < n; i++) x[i] = from[i];
  return x;
#endif
}

SIMD_INLINE void vf_store_some(float *to, vf x, uint32_t n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, (__mmask16)((1u << n) - 1u), x);
#else
  for (uint32_t i = 0; i < n; i++) to[i] = x[i];
#endif
}

SIMD_INLINE vf vf_widen_bf16(vh x) {
  return (vf)(__builtin_convertvector(x, vu) << 16);
}

SIMD_INLINE vf vf_load_bf16(const uint16_t *from) {
#if defined(__AVX512F__)
  return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)from)), 16);
#elif defined(__AVX2__)
  return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)from)), 16);
#else
  vh x;
  memcpy(&x, from, sizeof x);
  return vf_widen_bf16(x);
#endif
}

SIMD_INLINE vf vf_load_i8(const int8_t *from) {
#if defined(__AVX512F__)
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)from)));
#elif defined(__AVX2__)
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)from)));
#else
  vb x;
  memcpy(&x, from, sizeof x);
  return __builtin_convertvector(__builtin_convertvector(x, vi), vf);
#endif
}

SIMD_INLINE vf vf_load_some_bf16(const uint16_t *from, uint32_t n) {
  vh x = {0};
  for (uint32_t i = 0; i < n; i++) x[i] = from[i];
  return vf_widen_bf16(x);
}

/* Rounds to nearest even, and keeps NaN: the bits of weft_f32_to_bf16. */
SIMD_INLINE vh vf_narrow_bf16(vf x) {
  vu bits = (vu)x;
  vu rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  vu quiet = (bits >> 16) | 0x40u;
  vu is_nan = (vu)((bits & 0x7FFFFFFFu) > 0x7F800000u);
  return __builtin_convertvector((is_nan & quiet) | (~is_nan & rounded), vh);
}

/* ---- arithmetic ---- */

/* a * b + c, rounded once where the instruction set has that operation, else twice. */
SIMD_INLINE vf vf_fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

/* Lanes of a where mask is all ones, of b where it is 0. */
SIMD_INLINE vf vf_select(vi mask, vf a, vf b) {
  return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

/* The larger; b when one of them is NaN. */
SIMD_INLINE vf vf_max(vf a, vf b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#else
  return vf_select(a > b, a, b);
#endif
}

/* The sum of the lanes by one fixed tree: the upper half is added to the lower one until one lane is left. */
SIMD_INLINE float vf_sum(vf x) {
  float lane[VF_LANES];
  memcpy(lane, &x, sizeof lane);
  for (uint32_t half = VF_LANES / 2; half > 0; half /= 2) {
    for (uint32_t i = 0; i < half; i++) lane[i] += lane[i + half];
  }
  return lane[0];
}

SIMD_INLINE float vf_max_lane(vf x) {
  float lane[VF_LANES];
  memcpy(lane, &x, sizeof lane);
  for (uint32_t half = VF_LANES / 2; half > 0; half /= 2) {
    for (uint32_t i = 0; i < half; i++) lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
  }
  return lane[0];
}

/* The smaller; b when one of them is NaN. */
SIMD_INLINE vf vf_min(vf a, vf b) {
#if defined(__AVX512F__)
  return _mm512_min_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_min_ps(a, b);
#else
  return vf_select(a < b, a, b);
#endif
}

/* x where y >= limit or y is NaN, else 0. */
SIMD_INLINE vf vf_zero_below(vf x, vf y, vf limit) {
#if defined(__AVX512F__)
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, limit, _CMP_NLT_UQ), x);
#else
  return (vf)(~(vi)(y < limit) & (vi)x);
#endif
}

/* e^x: x = n ln 2 + r with |r| <= ln 2 / 2, then a polynomial of degree 6 in r (fitted for least relative error, which
 * is 4e-9), times 2^n. ln 2 is in two parts (Cody and Waite's reduction; the parts are those of Cephes). For x < -87.3
 * the result is 0, for x > 88.3 it is e^88.3; NaN stays NaN. */
SIMD_INLINE vf vf_exp(vf x) {
  const vf lowest = vf_set(-87.3f), magic = vf_set(12582912.0f); /* 1.5 * 2^23: rounds to an integer */
  vf y = vf_min(vf_set(88.3f), vf_max(lowest, x));
  vf shifted = vf_fma(y, vf_set(1.44269504f), magic);
  vf n = shifted - magic;
  vf r = vf_fma(n, vf_set(-0.693359375f), y); /* an exact product: this part of ln 2 has 9 bits, n has 8 */
  r = vf_fma(n, vf_set(2.12194440e-4f), r);
  vf p = vf_fma(vf_set(1.38145406e-3f), r, vf_set(8.36874545e-3f));
  p = vf_fma(p, r, vf_set(4.16683890e-2f));
  p = vf_fma(p, r, vf_set(1.66665211e-1f));
  p = vf_fma(p, r, vf_set(4.99999940e-1f));
  p = vf_fma(p, r, vf_set(1.0f));
  p = vf_fma(p, r, vf_set(1.0f));
  vf power = (vf)(((vu)shifted << 23) + 0x3F800000u); /* the low bits of shifted are n */
  return vf_zero_below(p * power, x, lowest);
}

/* SiLU: x / (1 + e^-x). */
SIMD_INLINE vf vf_silu(vf x) {
  return x / (vf_set(1.0f) + vf_exp(-x));
}

/* GELU by tanh: x (1 + tanh(t)) / 2 = x / (1 + e^-2t), t = sqrt(2 / pi) (x + 0.044715 x^3). */
SIMD_INLINE vf vf_gelu_tanh(vf x) {
  vf cubic = vf_fma(x * x * vf_set(0.044715f), x, x);
  return x / (vf_set(1.0f) + vf_exp(cubic * vf_set(-1.59576912f)));
}

#endif
