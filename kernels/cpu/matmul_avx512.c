/* SPDX-License-Identifier: MIT */
/* Products of rows with panels, AVX-512 with VNNI: sixteen lanes are the sixteen outputs of a panel.
 *
 * Law: the numerics of matmul.h. A block's codes are widened once into eight registers for all rows of the group, whose
 * sums stay in registers; activations are read from memory as broadcasts. */
#include "kernels/cpu/matmul.h"

#if defined(__AVX512VNNI__)
#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/matmul_lanes.h"
#include "kernels/cpu/quantise_impl.h"

#define INLINE static inline __attribute__((always_inline))

enum { FETCH_AHEAD = 8192 /* bytes */ };

/* ---- weights of one block: 32 inputs x 16 outputs ---- */

INLINE void load_codes(uint32_t bits, const uint8_t *q, __m512i w[8]) {
  if (bits == 8) {
#pragma GCC unroll 8
    for (int c = 0; c < 8; c++) w[c] = _mm512_loadu_si512(q + 64 * c);
    return;
  }
  const __m512i low = _mm512_set1_epi8(15);
  if (bits < 4) {
    const __m512i two = _mm512_set1_epi8(3);
#pragma GCC unroll 8
    for (int c = 0; c < 8; c++) {
      w[c] = _mm512_and_si512(_mm512_srli_epi16(_mm512_loadu_si512(q + c / 4 * 64), (unsigned)(2 * (c % 4))), two);
    }
    if (bits == 2) return;
    const __m512i bit = _mm512_set1_epi8(4);
    __m512i third = _mm512_loadu_si512(q + 128);
#pragma GCC unroll 8
    for (int c = 0; c < 8; c++) {
      __m512i at2 = c < 2 ? _mm512_slli_epi16(third, (unsigned)(2 - c)) : _mm512_srli_epi16(third, (unsigned)(c - 2));
      w[c] = _mm512_ternarylogic_epi64(w[c], at2, bit, 0xF8);
    }
    return;
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; c++) {
    __m512i both = _mm512_loadu_si512(q + 64 * c);
    w[c] = _mm512_and_si512(both, low);
    w[c + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
  }
  if (bits == 5) {
    const __m512i bit = _mm512_set1_epi8(16);
    __m512i fifth = _mm512_loadu_si512(q + 256);
#pragma GCC unroll 8
    for (int c = 0; c < 8; c++) {
      __m512i at4 = c < 4 ? _mm512_slli_epi16(fifth, (unsigned)(4 - c)) : _mm512_srli_epi16(fifth, (unsigned)(c - 4));
      w[c] = _mm512_ternarylogic_epi64(w[c], at4, bit, 0xF8); /* w | (at4 & bit) */
    }
  }
  if (bits == 6) {
    const __m512i pair = _mm512_set1_epi8(48);
#pragma GCC unroll 8
    for (int c = 0; c < 8; c++) {
      __m512i two = _mm512_loadu_si512(q + (c < 4 ? 256 : 320));
      int at = 2 * (c % 4);
      __m512i at4 = at <= 4 ? _mm512_slli_epi16(two, (unsigned)(4 - at)) : _mm512_srli_epi16(two, (unsigned)(at - 4));
      w[c] = _mm512_ternarylogic_epi64(w[c], at4, pair, 0xF8);
    }
  }
}

/* Replaces codes by their values plus 1 << VALUE_SHIFT. This offset is the same for all types, so types that differ
 * only in their values share functions. */
enum { VALUE_SHIFT = 7 };

INLINE void look_up(const int8_t *values, __m512i w[8]) {
  __m128i plus = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(const void *)values), _mm_set1_epi8(-128));
  const __m512i table = _mm512_broadcast_i32x4(plus);
#pragma GCC unroll 8
  for (int c = 0; c < 8; c++) w[c] = _mm512_shuffle_epi8(table, w[c]);
}

INLINE __m512 load_f16(const uint8_t *at) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at));
}

INLINE __m512 load_u8(const uint8_t *at) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at)));
}

/* Four bits of each byte. */
INLINE __m512 load_low_u4(const uint8_t *at) {
  __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
  return _mm512_cvtepi32_ps(_mm512_and_si512(bytes, _mm512_set1_epi32(15)));
}

INLINE __m512 load_high_u4(const uint8_t *at) {
  __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
  return _mm512_cvtepi32_ps(_mm512_srli_epi32(bytes, 4));
}

INLINE __m512 load_s8(const uint8_t *at) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at)));
}

/* 2^(e - 128); e = 255 is NaN. */
INLINE __m512 load_e8m0(const uint8_t *at) {
  __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
  __m512i bits = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
  __mmask16 small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
  bits = _mm512_mask_sllv_epi32(bits, small, _mm512_set1_epi32(0x00200000), e);
  __mmask16 none = _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255));
  bits = _mm512_mask_mov_epi32(bits, none, _mm512_set1_epi32(0x7FC00000));
  return _mm512_castsi512_ps(bits);
}

typedef struct weights {
  __m512i w[8];
  __m512 scale[2]; /* SPLIT, PAIRS: of both halves; others: the first */
  __m512 least[2]; /* what is added to scale * code: LEAST the first; PAIRS both, times CPU_FROM_PART */
  __m512 minus_up; /* lifted sums: -(scale[0] * CPU_LIFT) */
} weights;

/* Whether scale * CPU_LIFT is exact. */
INLINE bool is_lifted(const cpu_pack_info *info) {
  return !cpu_has_f32_d(info) && info->scale_bytes != 16;
}

INLINE __m512i begin_dot(bool lifted) {
  return lifted ? _mm512_set1_epi32(CPU_LIFT_BITS) : _mm512_setzero_si512();
}

/* scale * dot, rounded once. */
INLINE __m512 scale_dot(bool lifted, const weights *k, __m512i dot) {
  if (lifted) return _mm512_fmadd_ps(k->scale[0], _mm512_castsi512_ps(dot), k->minus_up);
  return _mm512_mul_ps(k->scale[0], _mm512_cvtepi32_ps(dot));
}

/* ---- one block, one row ---- */

typedef int32_t four_codes __attribute__((may_alias, aligned(1)));

/* The instruction broadcasts its operand from memory by itself; compilers make two instructions of that. */
INLINE __m512i dot4(__m512i dot, const __m512i w[4], const uint8_t *codes) {
#pragma GCC unroll 4
  for (int c = 0; c < 4; c++) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(dot) : "v"(w[c]), "m"(*(const four_codes *)(codes + 4 * c)));
  }
  return dot;
}

/* What a sum begins with, in all lanes. */
INLINE __m512i load_sum(const uint8_t *at) {
  int32_t sum;
  memcpy(&sum, at, 4);
  return _mm512_set1_epi32(sum);
}

/* `sum` less, in all lanes, the sum of that part of a row's codes times 1 << shift. */
INLINE __m512i take_offset(__m512i sum, const uint8_t *x, cpu_part part, unsigned shift) {
  const __m512i factor = _mm512_set1_epi32((int32_t)part << shift);
  __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(factor), "m"(*(const four_codes *)(x + CPU_X_MINUS)));
  return sum;
}

INLINE float load_float(const uint8_t *at) {
  float f;
  memcpy(&f, at, 4);
  return f;
}

INLINE __m512 add_halves(const cpu_pack_info *info, unsigned shift, const weights *k, const uint8_t *x) {
  const bool split = info->form == CPU_FORM_SPLIT, lifted = is_lifted(info);
  __m512i dot0 = begin_dot(lifted), dot1 = _mm512_setzero_si512();
  if (split && lifted && shift == CPU_SHIFT_HALVES) {
    dot0 = load_sum(x + CPU_X_FROM_FIRST);
    dot1 = load_sum(x + CPU_X_FROM_LAST);
  } else if (split) {
    dot0 = take_offset(dot0, x, CPU_PART_FIRST, shift);
    dot1 = take_offset(dot1, x, CPU_PART_LAST, shift);
  }
  __m512 t = scale_dot(lifted, k, dot4(dot0, k->w, x));
  t = _mm512_fmadd_ps(k->scale[1], _mm512_cvtepi32_ps(dot4(dot1, k->w + 4, x + 16)), t);
  if (split) return t;
  const __m512 first = _mm512_sub_ps(_mm512_set1_ps(load_float(x + CPU_X_FROM_FIRST)), _mm512_set1_ps(CPU_LIFT));
  t = _mm512_fnmadd_ps(k->least[0], first, t);
  return _mm512_fnmadd_ps(k->least[1], _mm512_cvtepi32_ps(load_sum(x + CPU_X_FROM_LAST)), t);
}

INLINE __m512 add_block(const cpu_pack_info *info, unsigned shift, const weights *k, const uint8_t *x, __m512 acc) {
  __m512 t;
  if (info->form == CPU_FORM_SPLIT || info->form == CPU_FORM_PAIRS) {
    t = add_halves(info, shift, k, x);
  } else {
    __m512i dot = begin_dot(is_lifted(info));
    if (info->form == CPU_FORM_OFFSET) dot = take_offset(dot, x, CPU_PART_ALL, shift);
    t = scale_dot(is_lifted(info), k, dot4(dot4(dot, k->w, x), k->w + 4, x + 16));
    if (info->form == CPU_FORM_LEAST) t = _mm512_fmadd_ps(k->least[0], _mm512_set1_ps(load_float(x + CPU_X_SUM)), t);
  }
  return _mm512_fmadd_ps(t, _mm512_set1_ps(load_float(x + CPU_X_SCALE)), acc);
}

/* Prefetches what lies FETCH_AHEAD bytes further in the tile's panels or, beyond their end, in `next`. The processor
 * prefetches by itself too, but not early enough, and cannot foresee the jump to `next`. */
INLINE void fetch_ahead(const cpu_tile *tile, const uint8_t *at, uint32_t n_bytes) {
  uint64_t left = (uint64_t)(tile->panel + tile->n_panels * tile->panel_bytes - at);
  if (!tile->fetch || (left <= FETCH_AHEAD && tile->next == NULL)) return;
  const uint8_t *from = left > FETCH_AHEAD ? at + FETCH_AHEAD : tile->next + (FETCH_AHEAD - left);
#pragma GCC unroll 8
  for (uint32_t i = 0; i < n_bytes; i += 64) _mm_prefetch((const char *)from + i, _MM_HINT_T0);
}

/* ---- one panel, R rows ---- */

INLINE void store_rows(const __m512 *acc, int R, const cpu_tile *tile, uint32_t panel) {
  uint32_t left = tile->n_cols - panel * CPU_PANEL;
  __mmask16 mask = left >= CPU_PANEL ? 0xFFFF : (__mmask16)((1u << left) - 1u);
  float *y = tile->y + panel * CPU_PANEL;
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) _mm512_mask_storeu_ps(y + (uint64_t)r * tile->y_stride, mask, acc[r]);
}

INLINE void load_small_scales(const cpu_pack_info *info, const uint8_t *scales, weights *k) {
  k->scale[0] = info->scale_bytes == 16 ? load_e8m0(scales) : load_f16(scales);
  if (info->form == CPU_FORM_SPLIT) k->scale[1] = load_f16(scales + 32);
  if (info->form == CPU_FORM_LEAST) k->least[0] = load_f16(scales + 32);
}

INLINE void small_panel(const cpu_pack_info *info, int R, const cpu_tile *tile, uint32_t panel) {
  const uint32_t per_line = cpu_blocks_per_line(info->scale_bytes);
  const unsigned shift = info->values != NULL ? VALUE_SHIFT : info->offset_shift;
  const uint8_t *at = tile->panel + panel * tile->panel_bytes, *x = tile->x;
  __m512 acc[16];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) acc[r] = _mm512_setzero_ps();
  for (uint32_t left = tile->n_in / CPU_PACK_BLOCK; left > 0;) {
    const uint8_t *scales = at;
    at += 64;
    uint32_t n = left < per_line ? left : per_line;
    left -= n;
    for (; n > 0; n--) {
      weights k;
      fetch_ahead(tile, at, info->quant_bytes);
      load_codes(info->bits, at, k.w);
      if (info->values != NULL) look_up(tile->info->values, k.w);
      load_small_scales(info, scales, &k);
      k.minus_up = _mm512_mul_ps(k.scale[0], _mm512_set1_ps(-CPU_LIFT));
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) acc[r] = add_block(info, shift, &k, x + CPU_X_BYTES * r, acc[r]);
      scales += info->scale_bytes;
      at += info->quant_bytes;
      x += CPU_X_BYTES * R;
    }
  }
  store_rows(acc, R, tile, panel);
}

/* The scales of sub-block j; d and minus_least are those of the super-block. */
INLINE void load_super_scales(cpu_pack_form form, const uint8_t *super, uint32_t j, __m512 d, __m512 minus_least,
                              weights *k) {
  const uint8_t *first = super + 64 + 32 * j, *second = first + 16;
  if (form == CPU_FORM_SPLIT) {
    k->scale[0] = _mm512_mul_ps(d, load_s8(first));
    k->scale[1] = _mm512_mul_ps(d, load_s8(second));
  } else if (form == CPU_FORM_PAIRS) {
    k->scale[0] = _mm512_mul_ps(d, load_low_u4(first));
    k->scale[1] = _mm512_mul_ps(d, load_low_u4(second));
    k->least[0] = _mm512_mul_ps(minus_least, load_high_u4(first));
    k->least[1] = _mm512_mul_ps(minus_least, load_high_u4(second));
  } else {
    k->scale[0] = _mm512_mul_ps(d, load_u8(super + 64 + 16 * j));
    k->least[0] = _mm512_mul_ps(minus_least, load_u8(super + 192 + 16 * j));
  }
}

INLINE void super_panel(const cpu_pack_info *info, int R, const cpu_tile *tile, uint32_t panel) {
  const unsigned shift = info->values != NULL ? VALUE_SHIFT : info->offset_shift;
  const uint8_t *super = tile->panel + panel * tile->panel_bytes;
  const uint8_t *x = tile->x;
  __m512 acc[16];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) acc[r] = _mm512_setzero_ps();
  for (uint32_t s = 0; s < tile->n_in / 256; s++) {
    const __m512 d = cpu_has_f32_d(info) ? _mm512_loadu_ps(super) : load_f16(super);
    const float part = info->form == CPU_FORM_PAIRS ? -CPU_FROM_PART : -1.0f;
    const __m512 minus_least = _mm512_mul_ps(_mm512_set1_ps(part), load_f16(super + 32));
    const uint8_t *quants = super + 320;
    for (uint32_t j = 0; j < 8; j++) {
      weights k;
      fetch_ahead(tile, quants, info->quant_bytes + 64);
      load_codes(info->bits, quants, k.w);
      if (info->values != NULL) look_up(tile->info->values, k.w);
      load_super_scales(info->form, super, j, d, minus_least, &k);
      k.minus_up = _mm512_mul_ps(k.scale[0], _mm512_set1_ps(-CPU_LIFT));
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) acc[r] = add_block(info, shift, &k, x + CPU_X_BYTES * r, acc[r]);
      quants += info->quant_bytes;
      x += CPU_X_BYTES * R;
    }
    super = quants;
  }
  store_rows(acc, R, tile, panel);
}

INLINE void quantised_panel(const cpu_pack_info *info, int R, const cpu_tile *tile, uint32_t panel) {
  if (info->header_bytes == 0)
    small_panel(info, R, tile, panel);
  else
    super_panel(info, R, tile, panel);
}

INLINE __m512 load_weight(weft_type type, const uint8_t *panel, uint64_t i) {
  if (type == WEFT_TYPE_F32) return _mm512_loadu_ps(panel + 64 * i);
  if (type == WEFT_TYPE_F16) return load_f16(panel + 32 * i);
  __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)(panel + 32 * i));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

INLINE void float_panel(weft_type type, int R, const cpu_tile *tile, uint32_t panel) {
  const uint8_t *weight = tile->panel + panel * tile->panel_bytes;
  const uint8_t *x = tile->x;
  float total[16][CPU_PANEL] __attribute__((aligned(64))) = {{0}};
  __m512 acc[16];
  for (uint32_t first = 0; first < tile->n_in; first += CPU_SEGMENT) {
    uint32_t n = tile->n_in - first < CPU_SEGMENT ? tile->n_in - first : CPU_SEGMENT;
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) acc[r] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i++, x += 4 * R) {
      __m512 w = load_weight(type, weight, first + i);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) acc[r] = _mm512_fmadd_ps(w, _mm512_set1_ps(load_float(x + 4 * r)), acc[r]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) _mm512_store_ps(total[r], _mm512_add_ps(_mm512_load_ps(total[r]), acc[r]));
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) acc[r] = _mm512_load_ps(total[r]);
  store_rows(acc, R, tile, panel);
}

/* ---- one function per type and number of rows ---- */

#define ROWS(X, type) \
  X(type, 1) X(type, 2) X(type, 3) X(type, 4) X(type, 5) X(type, 6) X(type, 7) X(type, 8) X(type, 16)
#define TILE_FN(type, R)                                             \
  static void tile_##type##_##R(const cpu_tile *tile) {              \
    for (uint32_t p = 0; p < tile->n_panels; p++) PANEL(type, R, p); \
  }

#define PANEL(type, R, p) float_panel(WEFT_TYPE_##type, R, tile, p)
ROWS(TILE_FN, F32)
ROWS(TILE_FN, F16)
ROWS(TILE_FN, BF16)
#undef PANEL

/* Types that differ only in their values use the functions of one of them. */
#define SHARED_BY(X) \
  X(H4_FP4, H4_IQ4)  \
  X(S4_IQ3X, S4_IQ4) \
  X(S4_IQ3S, S4_IQ4) \
  X(S3_IQ1, S3_IQ2)
#define X(type, ...) static const cpu_pack_info info_##type __attribute__((unused)) = {WEFT_TYPE_##type, __VA_ARGS__};
CPU_PACK_QUANTS(X)
#undef X
#define OWN_FUNCTIONS(X) \
  X(Q8_0)                \
  X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(MXFP4) X(H4_IQ4) X(Q2_K) X(Q4_K) X(Q5_K) X(Q6_K) X(S4_IQ4) X(S3_Q3) X(S3_IQ2)
#define PANEL(type, R, p) quantised_panel(&info_##type, R, tile, p)
#define X(type)           ROWS(TILE_FN, type)
OWN_FUNCTIONS(X)
#undef X
#undef PANEL

typedef void (*tile_fn)(const cpu_tile *tile);

/* The function for a type and a number of rows. All functions of a type have the same numerics. */
static tile_fn find_tile_fn(weft_type type, uint32_t n_rows) {
#define FN_OF(type, R)     [R] = tile_##type##_##R,
#define X(type)            {WEFT_TYPE_##type, {ROWS(FN_OF, type)}},
#define SHARED(type, like) {WEFT_TYPE_##type, {ROWS(FN_OF, like)}},
  static const struct {
    weft_type type;
    tile_fn fn[CPU_GROUP + 1];
  } all[] = {X(F32) X(F16) X(BF16) OWN_FUNCTIONS(X) SHARED_BY(SHARED)};
#undef SHARED
#undef X
#undef FN_OF
  for (uint32_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    if (all[i].type == type) return all[i].fn[n_rows];
  }
  return NULL;
}

static void tile_avx512(const cpu_tile *tile) {
  find_tile_fn(tile->info->type, tile->n_rows)(tile);
}

/* ---- rows ---- */

/* Of each lane the largest magnitude in a block. */
INLINE __m512i magnitudes(const float *x) {
  const __m512i all = _mm512_set1_epi32(0x7FFFFFFF);
  __m512i low = _mm512_and_si512(_mm512_loadu_si512(x), all), high = _mm512_and_si512(_mm512_loadu_si512(x + 16), all);
  return _mm512_max_epu32(low, high);
}

INLINE __m128 most_of_four(const float *x) {
  __m512i a = magnitudes(x), b = magnitudes(x + 32), c = magnitudes(x + 64), d = magnitudes(x + 96);
  __m512i ab = _mm512_max_epu32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  __m512i cd = _mm512_max_epu32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  __m512i all = _mm512_max_epu32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  __m256i half = _mm256_max_epu32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
  return _mm_castsi128_ps(_mm_max_epu32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
}

INLINE void put_block(const float *x, float scale, float inverse, uint8_t *to) {
  __m512 by = _mm512_set1_ps(inverse);
  __mmask16 usable = inverse != 0.0f ? 0xFFFF : 0;
  __m512i c0 = _mm512_maskz_cvtps_epi32(usable, _mm512_mul_ps(_mm512_loadu_ps(x), by));
  __m512i c1 = _mm512_maskz_cvtps_epi32(usable, _mm512_mul_ps(_mm512_loadu_ps(x + 16), by));
  __m128i q0 = _mm512_cvtepi32_epi8(c0), q1 = _mm512_cvtepi32_epi8(c1);
  _mm_storeu_si128((__m128i *)(void *)to, q0);
  _mm_storeu_si128((__m128i *)(void *)(to + 16), q1);
  cpu_block_tail(to, scale, sum_bytes(q0), sum_bytes(q1));
}

INLINE float most_of(const float *x) {
  uint32_t most = _mm512_reduce_max_epu32(magnitudes(x));
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((int32_t)most)));
}

const cpu_products cpu_products_avx512 = {
    .tile = tile_avx512,
    .quantise = quantise_row,
    .add_ranked = lanes_add_ranked,
};
#endif
