/* SPDX-License-Identifier: MIT */
/* Rows packed for products of 8 bits, for one x86 instruction set. matmul_avx2.c and matmul_avx512.c include this file
 * and define the three functions that it declares.
 *
 * Law: the bytes of cpu_products.quantise (matmul.h). Four blocks find their scales together. */
#include <immintrin.h>

#include "kernels/cpu/matmul.h"

#define QUANTISE_INLINE static inline __attribute__((always_inline))

/* The largest magnitude of each of four blocks side by side, and of one block. */
QUANTISE_INLINE __m128 most_of_four(const float *x);
QUANTISE_INLINE float most_of(const float *x);
/* Codes of a block, and what follows them. inverse 0: all codes are 0. */
QUANTISE_INLINE void put_block(const float *x, float scale, float inverse, uint8_t *to);

/* The sum of sixteen signed bytes. The instruction adds unsigned ones, so 128 is added to each before. */
QUANTISE_INLINE int32_t sum_bytes(__m128i q) {
  __m128i eights = _mm_sad_epu8(_mm_xor_si128(q, _mm_set1_epi8(-128)), _mm_setzero_si128());
  return _mm_cvtsi128_si32(_mm_add_epi32(eights, _mm_unpackhi_epi64(eights, eights))) - 16 * 128;
}

/* cpu_block_scale of four blocks. */
QUANTISE_INLINE void scale_four(__m128 most, float scale[4], float inverse[4]) {
  const __m128 is_number = _mm_cmp_ps(most, _mm_set1_ps(3.4028235e38f), _CMP_LE_OQ);
  const __m128 is_wide = _mm_and_ps(is_number, _mm_cmp_ps(most, _mm_set1_ps(0x1p-100f), _CMP_GE_OQ));
  const __m128 nan = _mm_castsi128_ps(_mm_set1_epi32(0x7FC00000)), divided = _mm_div_ps(most, _mm_set1_ps(127.0f));
  _mm_storeu_ps(scale, _mm_blendv_ps(nan, _mm_and_ps(is_wide, divided), is_number));
  _mm_storeu_ps(inverse, _mm_and_ps(is_wide, _mm_div_ps(_mm_set1_ps(1.0f), divided)));
}

static void quantise_row(const float *x, uint32_t n_in, uint32_t row, uint32_t n_rows, uint8_t *group) {
  const uint64_t step = (uint64_t)n_rows * CPU_X_BYTES;
  uint8_t *to = group + (uint64_t)row * CPU_X_BYTES;
  uint32_t left = n_in / CPU_PACK_BLOCK;
  float scale[4], inverse[4];
  for (; left >= 4; left -= 4, x += 4 * CPU_PACK_BLOCK) {
    scale_four(most_of_four(x), scale, inverse);
#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; i++, to += step) put_block(x + i * CPU_PACK_BLOCK, scale[i], inverse[i], to);
  }
  for (; left > 0; left--, x += CPU_PACK_BLOCK, to += step) {
    cpu_block_scale(most_of(x), scale, inverse);
    put_block(x, *scale, *inverse, to);
  }
}
