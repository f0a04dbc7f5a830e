/* SPDX-License-Identifier: MIT */
/* Products of 8 bits from a card's packed weights, AVX-512 with VNNI (card_products_vectors.h). Integers of weights lie
 * plus 128, without a sign, as its products of bytes want one side. */
#include "kernels/cpu/card_products_impl.h"

#if defined(__AVX512VNNI__)
#include <immintrin.h>

enum { CV_FLOATS = 16, CV_BIAS = 128 };
typedef __m512 cf;
typedef __m512i ci;

#define cf_set(x)                  _mm512_set1_ps(x)
#define cf_fma(a, b, c)            _mm512_fmadd_ps(a, b, c)
#define cf_of(x)                   _mm512_cvtepi32_ps(x)
#define cf_lanes(x)                _mm512_broadcast_f32x4(x)
#define cf_permute(x, at)          _mm512_permutexvar_ps(at, x)
#define cf_round_f16(x)            _mm512_cvtph_ps(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))
#define cf_by_eight(v)             _mm512_mask_blend_ps(0xFF00, _mm512_set1_ps((v)[0]), _mm512_set1_ps((v)[1]))
#define cf_of_halves(v)            _mm512_cvtph_ps(_mm256_set_m128i((v)[1], (v)[0]))
#define ci_bits(x)                 _mm512_castps_si512(x)
#define ci_load(p)                 _mm512_loadu_si512(p)
#define ci_load_32(p)              _mm512_maskz_loadu_epi64(0x0F, p)
#define ci_store(p, x)             _mm512_store_si512(p, x)
#define ci_set8(x)                 _mm512_set1_epi8(x)
#define ci_set32(x)                _mm512_set1_epi32(x)
#define ci_lanes(x)                _mm512_broadcast_i32x4(x)
#define ci_add32(a, b)             _mm512_add_epi32(a, b)
#define ci_half32(x)               _mm512_srli_epi32(x, 1)
#define ci_and(a, b)               _mm512_and_si512(a, b)
#define ci_or(a, b)                _mm512_or_si512(a, b)
#define ci_xor(a, b)               _mm512_xor_si512(a, b)
#define ci_left16(x, n)            _mm512_slli_epi16(x, n)
#define ci_right16(x, n)           _mm512_srli_epi16(x, n)
#define ci_pack32(a, b)            _mm512_packus_epi32(a, b)
#define ci_pack16(a, b)            _mm512_packus_epi16(a, b)
#define ci_low8(a, b)              _mm512_unpacklo_epi8(a, b)
#define ci_high8(a, b)             _mm512_unpackhi_epi8(a, b)
#define ci_low16(a, b)             _mm512_unpacklo_epi16(a, b)
#define ci_high16(a, b)            _mm512_unpackhi_epi16(a, b)
#define ci_pick(table, at)         _mm512_shuffle_epi8(table, at)
#define ci_odd(even, odd)          _mm512_mask_blend_epi8(0xAAAAAAAAAAAAAAAAull, even, odd)
#define ci_where(x, bits, yes, no) _mm512_mask_blend_epi8(_mm512_test_epi8_mask(x, bits), no, yes)
#define ci_zip_first(a, b)         _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), b)
#define ci_zip_last(a, b)          _mm512_permutex2var_epi64(a, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), b)

CARD_INLINE cf cf_of_bytes(const void *from) {
  return cf_of(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from)));
}

CARD_INLINE cf cf_of_signed(const void *from) {
  return cf_of(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
}

/* The sums of each of four vectors' words, lane by lane of 128 bits. */
CARD_INLINE __m512i add_four(const __m512i v[4]) {
  const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
  const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* The exact sums of a row's span with 16 outputs. w: plus 128. */
CARD_INLINE __m512i sums_of(const uint8_t *w, const int8_t *row) {
  __m512i x[4], of[4];
  for (int i = 0; i < 4; i++) x[i] = _mm512_loadu_si512(row + 64 * i);
#pragma GCC unroll 4
  for (int q = 0; q < 4; q++) {
    __m512i sum[4];
#pragma GCC unroll 4
    for (int o = 0; o < 4; o++) {
      const uint8_t *own = w + (4 * q + o) * CARD_SPAN;
      sum[o] = _mm512_setzero_si512();
      for (int i = 0; i < 4; i++) sum[o] = _mm512_dpbusd_epi32(sum[o], _mm512_load_si512(own + 64 * i), x[i]);
    }
    of[q] = add_four(sum);
  }
  const __m512i a =
      _mm512_add_epi32(_mm512_shuffle_i32x4(of[0], of[1], 0x44), _mm512_shuffle_i32x4(of[0], of[1], 0xEE));
  const __m512i b =
      _mm512_add_epi32(_mm512_shuffle_i32x4(of[2], of[3], 0x44), _mm512_shuffle_i32x4(of[2], of[3], 0xEE));
  const __m512i all = _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
  __m512i over = _mm512_setzero_si512();
  for (int i = 0; i < 4; i++) over = _mm512_dpbusd_epi32(over, _mm512_set1_epi8((char)128), x[i]);
  return _mm512_sub_epi32(all, _mm512_set1_epi32(_mm512_reduce_add_epi32(over)));
}

/* y[16] += the sums of a row's span with 16 outputs, times the scales. */
CARD_INLINE void add_span(const uint8_t *w, const int8_t *row, float scale, const float *step, float *y) {
  const __m512 of = _mm512_mul_ps(_mm512_set1_ps(scale), _mm512_loadu_ps(step));
  _mm512_storeu_ps(y, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums_of(w, row)), of, _mm512_loadu_ps(y)));
}

#include "kernels/cpu/card_products_vectors.h"

void card_tile_avx512(const card_matrix *m, uint32_t tile, const card_rows *rows, float *y, uint64_t y_stride) {
  multiply_any(m, tile, rows, y, y_stride);
}
#endif
