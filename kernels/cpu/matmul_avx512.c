/* SPDX-License-Identifier: MIT */
/* Products of rows with panels, AVX-512 with VNNI: sixteen lanes are the sixteen outputs of a
 * panel.
 *
 * Law: the numerics of matmul.h. A block's codes are widened once into eight registers and serve
 * all rows of the group, whose accumulators stay in registers; activations come as broadcasts from
 * memory. */
#include "kernels/cpu/matmul.h"

#if defined(__AVX512VNNI__)
#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/matmul_lanes.h"

#define INLINE static inline __attribute__((always_inline))

enum { FETCH_AHEAD = 4096 /* bytes */ };

/* ---- weights of one block: 32 inputs x 16 outputs ---- */

INLINE void load_codes(uint32_t bits, const uint8_t *q, __m512i w[8]) {
  if (bits == 8) {
#pragma GCC unroll 8
    for (int c = 0; c < 8; c++) w[c] = _mm512_loadu_si512(q + 64 * c);
    return;
  }
  const __m512i low = _mm512_set1_epi8(15);
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

/* MXFP4 codes to twice their value plus 16. */
INLINE void look_up(__m512i w[8]) {
  const __m512i table =
      _mm512_broadcast_i32x4(_mm_setr_epi8(16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4));
#pragma GCC unroll 8
  for (int c = 0; c < 8; c++) w[c] = _mm512_shuffle_epi8(table, w[c]);
}

INLINE __m512 load_f16(const uint8_t *at) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at));
}

INLINE __m512 load_u8(const uint8_t *at) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at)));
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
  __m512 a, b; /* OFFSET: scale; LEAST: scale, -least; SPLIT: scales of both halves */
} weights;

/* ---- one block, one row ---- */

INLINE __m512i dot4(__m512i dot, const __m512i w[4], const uint8_t *codes) {
#pragma GCC unroll 4
  for (int c = 0; c < 4; c++) {
    int32_t four;
    memcpy(&four, codes + 4 * c, 4);
    dot = _mm512_dpbusd_epi32(dot, w[c], _mm512_set1_epi32(four));
  }
  return dot;
}

INLINE __m512i offset_sum(const uint8_t *at, unsigned shift) {
  int32_t sum;
  memcpy(&sum, at, 4);
  return _mm512_slli_epi32(_mm512_set1_epi32(sum), shift);
}

INLINE float load_float(const uint8_t *at) {
  float f;
  memcpy(&f, at, 4);
  return f;
}

INLINE __m512 add_block(cpu_pack_form form, unsigned shift, const weights *k, const uint8_t *x, __m512 acc) {
  __m512 t;
  if (form == CPU_FORM_SPLIT) {
    __m512i dot0 = dot4(offset_sum(x + CPU_X_MINUS_FIRST, shift), k->w, x);
    __m512i dot1 = dot4(offset_sum(x + CPU_X_MINUS_LAST, shift), k->w + 4, x + 16);
    t = _mm512_mul_ps(k->a, _mm512_cvtepi32_ps(dot0));
    t = _mm512_fmadd_ps(k->b, _mm512_cvtepi32_ps(dot1), t);
  } else {
    __m512i dot = form == CPU_FORM_OFFSET ? offset_sum(x + CPU_X_MINUS, shift) : _mm512_setzero_si512();
    dot = dot4(dot4(dot, k->w, x), k->w + 4, x + 16);
    t = _mm512_mul_ps(k->a, _mm512_cvtepi32_ps(dot));
    if (form == CPU_FORM_LEAST) t = _mm512_fmadd_ps(k->b, _mm512_set1_ps(load_float(x + CPU_X_SUM)), t);
  }
  return _mm512_fmadd_ps(t, _mm512_set1_ps(load_float(x + CPU_X_SCALE)), acc);
}

/* Asks for what lies FETCH_AHEAD bytes away: further in the tile's panels, or in those that come
 * next. With few rows the processor sees the stream itself and is faster left alone; the jump to
 * `next` it cannot see. */
INLINE void fetch_ahead(const cpu_tile *tile, const uint8_t *at, uint32_t n_bytes, bool few_rows) {
  if (!tile->fetch) return;
  const uint8_t *end = tile->panel + tile->n_panels * tile->panel_bytes;
  uint64_t left = (uint64_t)(end - at);
  if (left > FETCH_AHEAD ? few_rows : tile->next == NULL) return;
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

INLINE void small_panel(weft_type type, unsigned shift, uint32_t bits, uint32_t quant_bytes, int R,
                        const cpu_tile *tile, uint32_t panel) {
  const uint32_t scale_bytes = type == WEFT_TYPE_MXFP4 ? 16 : 32, per_line = cpu_blocks_per_line(scale_bytes);
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
      fetch_ahead(tile, at, quant_bytes, R < 8);
      load_codes(bits, at, k.w);
      if (type == WEFT_TYPE_MXFP4) look_up(k.w);
      k.a = type == WEFT_TYPE_MXFP4 ? load_e8m0(scales) : load_f16(scales);
      k.b = k.a;
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) acc[r] = add_block(CPU_FORM_OFFSET, shift, &k, x + CPU_X_BYTES * r, acc[r]);
      scales += scale_bytes;
      at += quant_bytes;
      x += CPU_X_BYTES * R;
    }
  }
  store_rows(acc, R, tile, panel);
}

INLINE void super_panel(cpu_pack_form form, uint32_t bits, uint32_t quant_bytes, int R, const cpu_tile *tile,
                        uint32_t panel) {
  const uint8_t *super = tile->panel + panel * tile->panel_bytes;
  const uint8_t *x = tile->x;
  __m512 acc[16];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) acc[r] = _mm512_setzero_ps();
  for (uint32_t s = 0; s < tile->n_in / 256; s++) {
    const __m512 d = load_f16(super);
    const __m512 least = _mm512_sub_ps(_mm512_setzero_ps(), load_f16(super + 32));
    const uint8_t *quants = super + 320;
    for (uint32_t j = 0; j < 8; j++) {
      weights k;
      fetch_ahead(tile, quants, quant_bytes + 64, R < 5);
      load_codes(bits, quants, k.w);
      if (form == CPU_FORM_SPLIT) {
        k.a = _mm512_mul_ps(d, load_s8(super + 64 + 32 * j));
        k.b = _mm512_mul_ps(d, load_s8(super + 80 + 32 * j));
      } else {
        k.a = _mm512_mul_ps(d, load_u8(super + 64 + 16 * j));
        k.b = _mm512_mul_ps(least, load_u8(super + 192 + 16 * j));
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) acc[r] = add_block(form, 5, &k, x + CPU_X_BYTES * r, acc[r]);
      quants += quant_bytes;
      x += CPU_X_BYTES * R;
    }
    super = quants;
  }
  store_rows(acc, R, tile, panel);
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

#define TYPES(X, R)                                                \
  X(F32, R, float_panel(WEFT_TYPE_F32, R, tile, p))                \
  X(F16, R, float_panel(WEFT_TYPE_F16, R, tile, p))                \
  X(BF16, R, float_panel(WEFT_TYPE_BF16, R, tile, p))              \
  X(Q8_0, R, small_panel(WEFT_TYPE_Q8_0, 7, 8, 512, R, tile, p))   \
  X(Q4_0, R, small_panel(WEFT_TYPE_Q4_0, 3, 4, 256, R, tile, p))   \
  X(Q5_0, R, small_panel(WEFT_TYPE_Q5_0, 4, 5, 320, R, tile, p))   \
  X(MXFP4, R, small_panel(WEFT_TYPE_MXFP4, 4, 4, 256, R, tile, p)) \
  X(Q4_K, R, super_panel(CPU_FORM_LEAST, 4, 256, R, tile, p))      \
  X(Q5_K, R, super_panel(CPU_FORM_LEAST, 5, 320, R, tile, p))      \
  X(Q6_K, R, super_panel(CPU_FORM_SPLIT, 6, 384, R, tile, p))
#define ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(16)

#define X(type, R, call)                                \
  static void tile_##type##_##R(const cpu_tile *tile) { \
    for (uint32_t p = 0; p < tile->n_panels; p++) call; \
  }
#define ALL(R) TYPES(X, R)
ROWS(ALL)
#undef ALL
#undef X

typedef void (*tile_fn)(const cpu_tile *tile);

/* The table of variants: one numerics per type, one function per number of rows. */
static tile_fn find_tile_fn(weft_type type, uint32_t n_rows) {
  switch (type) {
#define Y(type)                                                \
  case WEFT_TYPE_##type: {                                     \
    static const tile_fn fns[CPU_GROUP + 1] = {ROWS_OF(type)}; \
    return fns[n_rows];                                        \
  }
#define ROWS_OF(type)                                                                                                \
  [1] = tile_##type##_1, [2] = tile_##type##_2, [3] = tile_##type##_3, [4] = tile_##type##_4, [5] = tile_##type##_5, \
  [6] = tile_##type##_6, [7] = tile_##type##_7, [8] = tile_##type##_8, [16] = tile_##type##_16
    Y(F32)
    Y(F16)
    Y(BF16)
    Y(Q8_0)
    Y(Q4_0)
    Y(Q5_0)
    Y(MXFP4)
    Y(Q4_K)
    Y(Q5_K)
    Y(Q6_K)
#undef ROWS_OF
#undef Y
    case WEFT_TYPE_NONE:
      break;
  }
  return NULL;
}

static void tile_avx512(const cpu_tile *tile) {
  find_tile_fn(tile->info->type, tile->n_rows)(tile);
}

/* ---- rows ---- */

/* Sum of sixteen signed bytes: as unsigned ones 128 larger. */
INLINE int32_t sum_bytes(__m128i q) {
  __m128i eights = _mm_sad_epu8(_mm_xor_si128(q, _mm_set1_epi8(-128)), _mm_setzero_si128());
  return _mm_cvtsi128_si32(_mm_add_epi32(eights, _mm_unpackhi_epi64(eights, eights))) - 16 * 128;
}

static void quantise_avx512(const float *x, uint32_t n_in, uint32_t row, uint32_t n_rows, uint8_t *group) {
  const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
  for (uint32_t b = 0; b < n_in / CPU_PACK_BLOCK; b++, x += CPU_PACK_BLOCK) {
    __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
    __m512i m0 = _mm512_and_si512(_mm512_castps_si512(x0), magnitude);
    __m512i m1 = _mm512_and_si512(_mm512_castps_si512(x1), magnitude);
    union {
      uint32_t u;
      float f;
    } most = {_mm512_reduce_max_epu32(_mm512_max_epu32(m0, m1))};
    float scale, inverse;
    cpu_block_scale(most.f, &scale, &inverse);
    __m512 by = _mm512_set1_ps(inverse);
    __mmask16 usable = inverse != 0.0f ? 0xFFFF : 0;
    __m128i q0 = _mm512_cvtepi32_epi8(_mm512_maskz_cvtps_epi32(usable, _mm512_mul_ps(x0, by)));
    __m128i q1 = _mm512_cvtepi32_epi8(_mm512_maskz_cvtps_epi32(usable, _mm512_mul_ps(x1, by)));
    uint8_t *to = group + ((uint64_t)b * n_rows + row) * CPU_X_BYTES;
    _mm_storeu_si128((__m128i *)(void *)to, q0);
    _mm_storeu_si128((__m128i *)(void *)(to + 16), q1);
    cpu_block_tail(to, scale, sum_bytes(q0), sum_bytes(q1));
  }
}

static void add_ranked_avx512(const cpu_ranked *ranked, uint32_t n, float *y) {
  lanes_add_ranked(ranked, n, y);
}

const cpu_products cpu_products_avx512 = {
    .tile = tile_avx512,
    .quantise = quantise_avx512,
    .add_ranked = add_ranked_avx512,
};
#endif
