/* SPDX-License-Identifier: MIT */
/* The functions of head_impl.h, compiled for AVX-512, and soft embeddings of integers (head.h).
 *
 * Law: an instruction multiplies 32 pairs of 16-bit integers and adds them by twos to sixteen sums of 32 bits. A span's
 * sum fits: 64 * 16383 * 2047 < 2^31. A tile has up to eight rows and two columns, so an e that was broadcast serves
 * both columns. */
#if defined(__AVX512VNNI__)
#define HEAD_TABLE cpu_head_avx512
#define SOFT_TABLE cpu_soft_avx512
#include "kernels/cpu/head_impl.h"

enum {
  MOST_WEIGHT = 2047,
  MOST_E = 16383,
  SPAN_PANELS = CPU_SOFT_SPAN / CPU_PANEL,
  SPAN_CODES = CPU_SOFT_SPAN * CPU_PANEL * 2, /* bytes of a span's integers in a column; steps follow */
  SPAN_BYTES = SPAN_CODES + CPU_PANEL * 4,
  COLUMN_BYTES = WEFT_VOCAB_CHUNK / CPU_SOFT_SPAN * SPAN_BYTES
};

/* Transposes and stores. A lane of 32 bits is a pair of tokens: the lower half of pairs[i] has the pairs of input i,
 * the upper half those of input i + 8. Row j of the result has pair j of each of the sixteen inputs. */
LANES_INLINE void store_turned(const __m512i pairs[8], uint8_t *to) {
  const __m512i low_lanes = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
  const __m512i high_lanes = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
  __m512i a[8], b[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    a[2 * i] = _mm512_unpacklo_epi32(pairs[2 * i], pairs[2 * i + 1]);
    a[2 * i + 1] = _mm512_unpackhi_epi32(pairs[2 * i], pairs[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++) {
    b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    _mm512_storeu_si512(to + 64 * i, _mm512_permutex2var_epi64(b[i], low_lanes, b[i + 4]));
    _mm512_storeu_si512(to + 64 * (i + 4), _mm512_permutex2var_epi64(b[i], high_lanes, b[i + 4]));
  }
}

/* The largest lane of each of sixteen vectors of unsigned numbers, side by side. */
LANES_INLINE __m512i most_of_each(__m512i x[CPU_PANEL]) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    x[i] =
        _mm512_max_epu32(_mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]), _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    x[i] =
        _mm512_max_epu32(_mm512_unpacklo_epi64(x[2 * i], x[2 * i + 1]), _mm512_unpackhi_epi64(x[2 * i], x[2 * i + 1]));
  }
#pragma GCC unroll 2
  for (int n = 2; n > 0; n--) {
    for (int i = 0; i < n; i++) {
      __m512i even = _mm512_shuffle_i32x4(x[2 * i], x[2 * i + 1], 0x88);
      x[i] = _mm512_max_epu32(even, _mm512_shuffle_i32x4(x[2 * i], x[2 * i + 1], 0xDD));
    }
  }
  return x[0];
}

/* The steps of sixteen columns whose largest magnitudes are `most`, and the factors that make integers of their numbers
 * (0: all of them are 0). A column that holds no number gets the step NaN, as rows do (matmul.h). */
LANES_INLINE __m512 find_steps(__m512 most, __m512 *inverse) {
  const __m512 spoilt = _mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000));
  __mmask16 is_number = _mm512_cmp_ps_mask(most, _mm512_set1_ps(3.4028235e38f), _CMP_LE_OQ);
  __mmask16 is_wide = _mm512_mask_cmp_ps_mask(is_number, most, _mm512_set1_ps(0x1p-100f), _CMP_GE_OQ);
  *inverse = _mm512_maskz_div_ps(is_wide, _mm512_set1_ps((float)MOST_WEIGHT), most);
  __m512 step = _mm512_maskz_mul_ps(is_wide, most, _mm512_set1_ps(1.0f / ((float)MOST_WEIGHT * (float)MOST_E)));
  return _mm512_mask_mov_ps(spoilt, is_number, step);
}

LANES_INLINE __m512i round_some(const float *value, float inverse) {
  return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(value), _mm512_set1_ps(inverse)));
}

/* Inputs of one half of block b of a panel of quantised weights: a vector has those of sixteen tokens. */
LANES_INLINE void value_block(const cpu_pack_info *info, const uint8_t *panel, uint32_t b, uint32_t half,
                              float value[CPU_PANEL][CPU_PANEL]) {
  const lanes_block block = lanes_find_block(info, panel, b);
  const __m512 scale = (__m512)block.scale[half];
  const __m512i byte = _mm512_set1_epi32(255), offset = _mm512_set1_epi32(1 << info->offset_shift);
  lanes_u codes[8];
  lanes_block_codes(info, &block, codes);
#pragma GCC unroll 16
  for (uint32_t k = 0; k < CPU_PANEL; k++) {
    __m512i code = _mm512_srli_epi32((__m512i)codes[4 * half + k / 4], 8 * (k % 4));
    if (k % 4 != 3) code = _mm512_and_si512(code, byte);
    if (lanes_has_least(info)) {
      __m512 product = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(code));
      _mm512_storeu_ps(value[k], _mm512_add_ps(product, (__m512)block.least[half]));
    } else {
      _mm512_storeu_ps(value[k], _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_sub_epi32(code, offset))));
    }
  }
}

/* Turns a column's numbers in n panels into integers. */
LANES_INLINE void round_column(float value[SPAN_PANELS][CPU_PANEL][CPU_PANEL], uint32_t n, uint8_t *to) {
  float inverse[CPU_PANEL];
  __m512i most[CPU_PANEL];
#pragma GCC unroll 16
  for (uint32_t k = 0; k < CPU_PANEL; k++) most[k] = _mm512_setzero_si512();
  for (uint32_t p = 0; p < n; p++) {
#pragma GCC unroll 16
    for (uint32_t k = 0; k < CPU_PANEL; k++) {
      __m512i size = _mm512_and_si512(_mm512_loadu_si512(value[p][k]), _mm512_set1_epi32(0x7FFFFFFF));
      most[k] = _mm512_max_epu32(most[k], size);
    }
  }
  __m512 by, step = find_steps(_mm512_castsi512_ps(most_of_each(most)), &by);
  _mm512_storeu_ps(to + SPAN_CODES, step);
  _mm512_storeu_ps(inverse, by);
  for (uint32_t p = 0; p < n; p++, to += CPU_PANEL * CPU_PANEL * 2) {
    __m512i pairs[8];
#pragma GCC unroll 8
    for (uint32_t k = 0; k < 8; k++) {
      __m256i low = _mm512_cvtepi32_epi16(round_some(value[p][k], inverse[k]));
      __m256i high = _mm512_cvtepi32_epi16(round_some(value[p][k + 8], inverse[k + 8]));
      pairs[k] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
    store_turned(pairs, to);
  }
}

LANES_INLINE void widen_type(const cpu_pack_info *info, const cpu_soft_panels *panels, uint8_t *wide) {
  float value[SPAN_PANELS][CPU_PANEL][CPU_PANEL] __attribute__((aligned(64)));
  uint8_t *to = wide + (uint64_t)(panels->first / SPAN_PANELS) * SPAN_BYTES;
  for (uint32_t b = 0; b < panels->n_in / CPU_PACK_BLOCK; b++, to += 2 * COLUMN_BYTES) {
#pragma GCC unroll 2
    for (uint32_t half = 0; half < 2; half++) {
      for (uint32_t p = 0; p < panels->n; p++) {
        value_block(info, panels->panel + p * panels->panel_bytes, b, half, value[p]);
      }
      round_column(value, panels->n, to + half * COLUMN_BYTES);
    }
  }
}

static void widen_bf16(const cpu_soft_panels *panels, uint8_t *to) {
  float value[SPAN_PANELS][CPU_PANEL][CPU_PANEL] __attribute__((aligned(64)));
  to += (uint64_t)(panels->first / SPAN_PANELS) * SPAN_BYTES;
  for (uint32_t i = 0; i < panels->n_in; i += CPU_PANEL, to += COLUMN_BYTES) {
    for (uint32_t p = 0; p < panels->n; p++) {
      widen_sixteen(panels->info, panels->panel + p * panels->panel_bytes, panels->n_in, i, value[p]);
    }
    round_column(value, panels->n, to);
  }
}

static void widen_integers(const cpu_soft_panels *panels, uint8_t *wide) {
  static const cpu_pack_info q4 = {WEFT_TYPE_Q4_K, CPU_FORM_LEAST, 4, 0, 256, 320, 0, NULL};
  static const cpu_pack_info q6 = {WEFT_TYPE_Q6_K, CPU_FORM_SPLIT, 6, 5, 384, 320, 0, NULL};
  static const cpu_pack_info q8 = {WEFT_TYPE_Q8_0, CPU_FORM_OFFSET, 8, 7, 512, 0, 32, NULL};
  if (panels->info->type == WEFT_TYPE_Q4_K)
    widen_type(&q4, panels, wide);
  else if (panels->info->type == WEFT_TYPE_Q6_K)
    widen_type(&q6, panels, wide);
  else if (panels->info->type == WEFT_TYPE_Q8_0)
    widen_type(&q8, panels, wide);
  else if (panels->info->type == WEFT_TYPE_BF16)
    widen_bf16(panels, wide);
  else
    widen_type(panels->info, panels, wide);
}

/* Rounds e in place: the integers take the first half of the bytes. */
static void narrow_e(float *e) {
  int16_t *to = (int16_t *)(void *)e;
  for (uint32_t v = 0; v < WEFT_VOCAB_CHUNK; v += CPU_PANEL) {
    __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(e + v), _mm512_set1_ps((float)MOST_E)));
    _mm256_storeu_si256((__m256i *)(void *)(to + v), _mm512_cvtepi32_epi16(whole));
  }
}

typedef int32_t two_tokens __attribute__((may_alias)); /* e of two tokens, in 16 bits each */

/* Adds the products of n_pairs pairs of tokens, from the tile's pair `first` on, to sum. */
LANES_INLINE void add_span(const cpu_soft_tile *tile, uint32_t n_c, uint32_t first, uint32_t n_pairs,
                           const uint8_t *wide, float sum[CPU_SOFT_ROWS][2 * CPU_PANEL]) {
  __m512i dot[CPU_SOFT_ROWS][2];
#pragma GCC unroll 8
  for (uint32_t r = 0; r < CPU_SOFT_ROWS; r++) dot[r][0] = dot[r][1] = _mm512_setzero_si512();
  for (uint32_t j = 0; j < n_pairs; j++) {
    __m512i w[2];
    for (uint32_t c = 0; c < n_c; c++) w[c] = _mm512_loadu_si512(wide + c * COLUMN_BYTES + 64 * j);
#pragma GCC unroll 8
    for (uint32_t r = 0; r < CPU_SOFT_ROWS; r++) {
      const __m512i e = _mm512_set1_epi32(*((const two_tokens *)(const void *)tile->e[r] + first + j));
      /* As an intrinsic, compilers copy each sum before and after. */
      for (uint32_t c = 0; c < n_c; c++) __asm__("vpdpwssd %2, %1, %0" : "+v"(dot[r][c]) : "v"(w[c]), "v"(e));
    }
  }
  for (uint32_t c = 0; c < n_c; c++) {
    const __m512 step = _mm512_loadu_ps(wide + c * COLUMN_BYTES + SPAN_CODES);
#pragma GCC unroll 8
    for (uint32_t r = 0; r < CPU_SOFT_ROWS; r++) {
      float *to = sum[r] + c * CPU_PANEL;
      _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][c]), step, _mm512_loadu_ps(to)));
    }
  }
}

LANES_INLINE void add_columns(const cpu_soft_tile *tile, uint32_t n_c) {
  float sum[CPU_SOFT_ROWS][2 * CPU_PANEL] __attribute__((aligned(64)));
  const uint8_t *wide = tile->wide;
#pragma GCC unroll 8
  for (uint32_t r = 0; r < CPU_SOFT_ROWS; r++) {
    for (uint32_t c = 0; c < n_c; c++) _mm512_store_ps(sum[r] + c * CPU_PANEL, _mm512_setzero_ps());
  }
  for (uint32_t v = 0; v < tile->n_tokens; v += CPU_SOFT_SPAN, wide += SPAN_BYTES) {
    uint32_t left = tile->n_tokens - v;
    add_span(tile, n_c, v / 2, (left < CPU_SOFT_SPAN ? left : CPU_SOFT_SPAN) / 2, wide, sum);
  }
  for (uint32_t r = 0; r < tile->n_rows; r++) {
    const __m512 before = _mm512_set1_ps(tile->factor[r][0]), by = _mm512_set1_ps(tile->factor[r][1]);
    for (uint32_t c = 0; c < n_c; c++) {
      uint32_t left = tile->n_cols - c * CPU_PANEL;
      __mmask16 mask = left < CPU_PANEL ? (__mmask16)((1u << left) - 1u) : 0xFFFF;
      float *to = tile->soft[r] + c * CPU_PANEL;
      __m512 soft = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, to), before);
      _mm512_mask_storeu_ps(to, mask, _mm512_fmadd_ps(_mm512_loadu_ps(sum[r] + c * CPU_PANEL), by, soft));
    }
  }
}

static void add_integers(const cpu_soft_tile *tile) {
  if (tile->n_cols > CPU_PANEL)
    add_columns(tile, 2);
  else
    add_columns(tile, 1);
}

const cpu_soft_fns cpu_soft_integers_avx512 = {
    .column_bytes = COLUMN_BYTES,
    .columns = 2,
    .least = 0x1p-30,
    .widen = widen_integers,
    .narrow = narrow_e,
    .add = add_integers,
};
#endif
