/* SPDX-License-Identifier: MIT */
/* Products of 8 bits from a card's packed weights, AVX2 (card_products_vectors.h). Integers keep their sign; products
 * of bytes want one side without, so the sign of a weight's integer goes over to the row's number: 2 * 128 * 127 has
 * room in 16 bits. */
#include "kernels/cpu/card_products_impl.h"

#if defined(__AVX2__)
#include <immintrin.h>

enum { CV_FLOATS = 8, CV_BIAS = 0 };
typedef __m256 cf;
typedef __m256i ci;

#define cf_set(x)                  _mm256_set1_ps(x)
#define cf_fma(a, b, c)            _mm256_fmadd_ps(a, b, c)
#define cf_of(x)                   _mm256_cvtepi32_ps(x)
#define cf_lanes(x)                _mm256_set_m128(x, x)
#define cf_permute(x, at)          _mm256_permutevar8x32_ps(x, at)
#define cf_round_f16(x)            _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))
#define cf_by_eight(v)             _mm256_set1_ps((v)[0])
#define cf_of_halves(v)            _mm256_cvtph_ps((v)[0])
#define ci_bits(x)                 _mm256_castps_si256(x)
#define ci_load(p)                 _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define ci_load_32(p)              ci_load(p)
#define ci_store(p, x)             _mm256_store_si256((__m256i *)(void *)(p), x)
#define ci_set8(x)                 _mm256_set1_epi8(x)
#define ci_set32(x)                _mm256_set1_epi32(x)
#define ci_lanes(x)                _mm256_broadcastsi128_si256(x)
#define ci_add32(a, b)             _mm256_add_epi32(a, b)
#define ci_half32(x)               _mm256_srli_epi32(x, 1)
#define ci_and(a, b)               _mm256_and_si256(a, b)
#define ci_or(a, b)                _mm256_or_si256(a, b)
#define ci_xor(a, b)               _mm256_xor_si256(a, b)
#define ci_left16(x, n)            _mm256_slli_epi16(x, n)
#define ci_right16(x, n)           _mm256_srli_epi16(x, n)
#define ci_pack32(a, b)            _mm256_packus_epi32(a, b)
#define ci_pack16(a, b)            _mm256_packus_epi16(a, b)
#define ci_low8(a, b)              _mm256_unpacklo_epi8(a, b)
#define ci_high8(a, b)             _mm256_unpackhi_epi8(a, b)
#define ci_low16(a, b)             _mm256_unpacklo_epi16(a, b)
#define ci_high16(a, b)            _mm256_unpackhi_epi16(a, b)
#define ci_pick(table, at)         _mm256_shuffle_epi8(table, at)
#define ci_odd(even, odd)          _mm256_blendv_epi8(even, odd, _mm256_set1_epi16((short)0xFF00))
#define ci_where(x, bits, yes, no) _mm256_blendv_epi8(no, yes, _mm256_cmpeq_epi8(ci_and(x, bits), bits))
#define ci_zip_first(a, b)         _mm256_permute2x128_si256(a, b, 0x20)
#define ci_zip_last(a, b)          _mm256_permute2x128_si256(a, b, 0x31)

CARD_INLINE cf cf_of_bytes(const void *from) {
  return cf_of(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from)));
}

CARD_INLINE cf cf_of_signed(const void *from) {
  return cf_of(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from)));
}

/* The sums of eight products of 32 numbers. */
CARD_INLINE __m256i sum_of(const uint8_t *w, const __m256i x[8]) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    const __m256i own = _mm256_load_si256((const __m256i *)(const void *)(w + 32 * i));
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(own), _mm256_sign_epi8(x[i], own));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
  }
  return sum;
}

/* The exact sums of a row's span with eight outputs. */
CARD_INLINE __m256i sums_of(const uint8_t *w, const __m256i x[8]) {
  __m256i v[8];
#pragma GCC unroll 8
  for (int o = 0; o < 8; o++) v[o] = sum_of(w + o * CARD_SPAN, x);
  const __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
  const __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
  return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

/* y[16] += the sums of a row's span with 16 outputs, times the scales. */
CARD_INLINE void add_span(const uint8_t *w, const int8_t *row, float scale, const float *step, float *y) {
  __m256i x[8];
  for (int i = 0; i < 8; i++) x[i] = ci_load(row + 32 * i);
  for (uint32_t h = 0; h < 2; h++, y += 8, step += 8) {
    const __m256 exact = _mm256_cvtepi32_ps(sums_of(w + 8 * h * CARD_SPAN, x));
    _mm256_storeu_ps(
        y, _mm256_fmadd_ps(exact, _mm256_mul_ps(_mm256_set1_ps(scale), _mm256_loadu_ps(step)), _mm256_loadu_ps(y)));
  }
}

#include "kernels/cpu/card_products_vectors.h"

void card_tile_avx2(const card_matrix *m, uint32_t tile, const card_rows *rows, float *y, uint64_t y_stride) {
  multiply_any(m, tile, rows, y, y_stride);
}
#endif
