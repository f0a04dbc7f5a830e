/* SPDX-License-Identifier: MIT */
/* Soft embeddings with products of bf16 (AVX-512 BF16), of which an instruction makes twice as many as of f32.
 *
 * Law: these functions are called only where the processor has avx512bf16, which the other *_avx512.c files do not
 * need. A product of two bf16 numbers is exact in f32; the instruction adds two of them to each of sixteen sums. */
#include "kernels/cpu/head.h"

#if defined(__AVX512VNNI__)
#include <immintrin.h>

#include "kernels/cpu/matmul_lanes.h"

#define BF16        __attribute__((target("avx512bf16")))
#define BF16_INLINE static inline __attribute__((always_inline, target("avx512bf16")))

enum { COLUMN_BYTES = WEFT_VOCAB_CHUNK * CPU_PANEL * 2, TOKEN_PAIRS = CPU_PANEL / 2 };

/* Widens sixteen inputs of sixteen tokens to f32: value[i] has a token in each lane. */
BF16_INLINE void widen_block(const cpu_pack_info *info, const lanes_block *block, const lanes_u *codes, uint32_t half,
                             __m512 value[CPU_PANEL]) {
  const __m512 scale = (__m512)block->scale[half], least = (__m512)block->least[half];
  const __m512i byte = _mm512_set1_epi32(255), offset = _mm512_set1_epi32(1 << info->offset_shift);
#pragma GCC unroll 16
  for (uint32_t i = 0; i < CPU_PANEL; i++) {
    __m512i code = _mm512_srli_epi32((__m512i)codes[4 * half + i / 4], 8 * (i % 4));
    if (i % 4 != 3) code = _mm512_and_si512(code, byte);
    if (lanes_has_least(info)) {
      value[i] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(code), least);
    } else {
      value[i] = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_sub_epi32(code, offset)));
    }
  }
}

/* Transposes and stores. A lane of 32 bits is a pair of tokens: the lower half of pairs[i] has the pairs of input i,
 * the upper half those of input i + 8. Row j of the result has pair j of each of the sixteen inputs. */
BF16_INLINE void store_turned(const __m512i pairs[8], uint8_t *to) {
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

BF16_INLINE void store_values(const __m512 value[CPU_PANEL], uint8_t *to) {
  __m512i pairs[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) pairs[i] = (__m512i)_mm512_cvtne2ps_pbh(value[i + 8], value[i]);
  store_turned(pairs, to);
}

BF16_INLINE void widen_type(const cpu_pack_info *info, const uint8_t *panel, uint32_t n_in, uint8_t *to) {
  lanes_u codes[8];
  __m512 value[CPU_PANEL];
  for (uint32_t b = 0; b < n_in / CPU_PACK_BLOCK; b++, to += 2 * COLUMN_BYTES) {
    lanes_block block = lanes_find_block(info, panel, b);
    lanes_block_codes(info, &block, codes);
    widen_block(info, &block, codes, 0, value);
    store_values(value, to);
    widen_block(info, &block, codes, 1, value);
    store_values(value, to + COLUMN_BYTES);
  }
}

/* Stored bf16 numbers need no rounding and are only transposed. */
BF16_INLINE void widen_bf16(const uint8_t *panel, uint32_t n_in, uint8_t *to) {
  for (uint32_t i = 0; i < n_in; i += CPU_PANEL, to += COLUMN_BYTES) {
    __m512i pairs[8];
    for (uint32_t k = 0; k < 8; k++) {
      const __m256i none = _mm256_setzero_si256();
      const __m256i *at = (const __m256i *)(const void *)(panel + 32ull * (i + k));
      __m256i low = i + k < n_in ? _mm256_loadu_si256(at) : none;
      __m256i high = i + k + 8 < n_in ? _mm256_loadu_si256(at + 8) : none;
      pairs[k] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
    store_turned(pairs, to);
  }
}

BF16 static void widen(const cpu_pack_info *info, const uint8_t *panel, uint32_t n_in, uint32_t at, uint8_t *wide) {
  uint8_t *to = wide + (uint64_t)at * TOKEN_PAIRS * CPU_PANEL * 4;
  if (info->type == WEFT_TYPE_BF16)
    widen_bf16(panel, n_in, to);
  else if (info->type == WEFT_TYPE_Q4_K) {
    static const cpu_pack_info q4 = {WEFT_TYPE_Q4_K, CPU_FORM_LEAST, 4, 0, 256, 320, 0, NULL};
    widen_type(&q4, panel, n_in, to);
  } else if (info->type == WEFT_TYPE_Q6_K) {
    static const cpu_pack_info q6 = {WEFT_TYPE_Q6_K, CPU_FORM_SPLIT, 6, 5, 384, 320, 0, NULL};
    widen_type(&q6, panel, n_in, to);
  } else if (info->type == WEFT_TYPE_Q8_0) {
    static const cpu_pack_info q8 = {WEFT_TYPE_Q8_0, CPU_FORM_OFFSET, 8, 7, 512, 0, 32, NULL};
    widen_type(&q8, panel, n_in, to);
  } else {
    widen_type(info, panel, n_in, to);
  }
}

/* Rounds e to bf16 in place: the bf16 numbers take the first half of the bytes. */
BF16 static void narrow(float *e) {
  for (uint32_t v = 0; v < WEFT_VOCAB_CHUNK; v += 32) {
    __m512 low = _mm512_loadu_ps(e + v), high = _mm512_loadu_ps(e + v + 16);
    _mm512_storeu_si512(e + v / 2, (__m512i)_mm512_cvtne2ps_pbh(high, low));
  }
}

typedef int32_t two_tokens __attribute__((may_alias)); /* weights of two tokens, in bf16 */

BF16 static void add(const cpu_soft_tile *tile) {
  const uint8_t *wide = tile->wide;
  __m512 sum[CPU_SOFT_ROWS];
#pragma GCC unroll 8
  for (int r = 0; r < CPU_SOFT_ROWS; r++) sum[r] = _mm512_setzero_ps();
  for (uint32_t v = 0; v < tile->n_tokens / 2; v++, wide += 64) {
    const __m512bh w = (__m512bh)_mm512_loadu_si512(wide);
#pragma GCC unroll 8
    for (int r = 0; r < CPU_SOFT_ROWS; r++) {
      /* The instruction broadcasts its operand from memory by itself; compilers make two instructions of that. */
      __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum[r]) : "v"(w), "m"(*(const two_tokens *)(tile->e[r] + v)));
    }
  }
  __mmask16 mask = (__mmask16)((1u << tile->n_cols) - 1u);
#pragma GCC unroll 8
  for (uint32_t r = 0; r < CPU_SOFT_ROWS; r++) {
    if (r >= tile->n_rows) break;
    __m512 soft = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, tile->soft[r]), _mm512_set1_ps(tile->factor[r][0]));
    soft = _mm512_fmadd_ps(sum[r], _mm512_set1_ps(tile->factor[r][1]), soft);
    _mm512_mask_storeu_ps(tile->soft[r], mask, soft);
  }
}

const cpu_soft_fns cpu_soft_bf16_avx512 = {
    .element_bytes = 2,
    .least = 0x1p-30,
    .widen = widen,
    .narrow = narrow,
    .add = add,
};
#endif
