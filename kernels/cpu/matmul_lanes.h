/* SPDX-License-Identifier: MIT */
/* Sixteen lanes in plain C: vector types of the compiler, which makes of them what the file is compiled for. A lane is
 * an output row of a panel (pack.h).
 *
 * Law: products and sums are not fused and not reordered, so every instruction set computes the same bits here. Only .c
 * files and *_impl.h of this folder include this file. */
#ifndef WEFT_KERNELS_CPU_MATMUL_LANES_H
#define WEFT_KERNELS_CPU_MATMUL_LANES_H

#include <stdint.h>
#include <string.h>

#include "kernels/cpu/matmul.h"
#include "kernels/quant.h"

#pragma GCC diagnostic ignored "-Wpsabi" /* vectors never cross an object file */

typedef float lanes_f __attribute__((vector_size(64)));
typedef int32_t lanes_i __attribute__((vector_size(64)));
typedef uint32_t lanes_u __attribute__((vector_size(64)));

#define LANES_INLINE static inline __attribute__((always_inline, unused))

/* A vector as wide as a register of what the file is compiled for, and how many of a row are added together while its
 * ranks go by. */
#if defined(__AVX512F__)
enum { OWN_LANES = 16, OWN_VECTORS = 4 };
#elif defined(__AVX2__)
enum { OWN_LANES = 8, OWN_VECTORS = 2 };
#else
enum { OWN_LANES = 4, OWN_VECTORS = 2 };
#endif
typedef float lanes_own __attribute__((vector_size(OWN_LANES * 4)));

LANES_INLINE lanes_f lanes_splat(float x) {
#ifdef __AVX2__
  return (lanes_f){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
#else /* through registers that such a machine has: the compiler would store x sixteen times */
  typedef float quad __attribute__((vector_size(16)));
  const quad q = {x, x, x, x};
  lanes_f v;
  for (uint32_t i = 0; i < 4; i++) memcpy((float *)&v + 4 * i, &q, sizeof q);
  return v;
#endif
}

LANES_INLINE lanes_f lanes_load(const float *at) {
  lanes_f v;
  memcpy(&v, at, sizeof v);
  return v;
}

LANES_INLINE void lanes_store(float *at, lanes_f v) {
  memcpy(at, &v, sizeof v);
}

/* Loads the first n (1 .. 16) lanes; the others are `rest`. */
LANES_INLINE lanes_f lanes_load_part(const float *at, uint32_t n, float rest) {
  if (n >= 16) return lanes_load(at);
  lanes_f v = lanes_splat(rest);
  memcpy(&v, at, n * sizeof *at);
  return v;
}

LANES_INLINE void lanes_store_part(float *at, lanes_f v, uint32_t n) {
  memcpy(at, &v, (n >= 16 ? 16 : n) * sizeof *at);
}

/* v with each lane exchanged for the one `width` away. */
#define LANES_HALVES(v, width)                                                                                         \
  __builtin_shufflevector(v, v, 0 ^ width, 1 ^ width, 2 ^ width, 3 ^ width, 4 ^ width, 5 ^ width, 6 ^ width,           \
                          7 ^ width, 8 ^ width, 9 ^ width, 10 ^ width, 11 ^ width, 12 ^ width, 13 ^ width, 14 ^ width, \
                          15 ^ width)

/* The sum of the lanes. */
LANES_INLINE int32_t lanes_sum_i(lanes_i v) {
  v += LANES_HALVES(v, 8);
  v += LANES_HALVES(v, 4);
  v += LANES_HALVES(v, 2);
  v += LANES_HALVES(v, 1);
  return v[0];
}

LANES_INLINE lanes_i lanes_max_i(lanes_i a, lanes_i b) {
  lanes_i greater = a > b;
  return (a & greater) | (b & ~greater);
}

LANES_INLINE int32_t lanes_most_i(lanes_i v) {
  v = lanes_max_i(v, LANES_HALVES(v, 8));
  v = lanes_max_i(v, LANES_HALVES(v, 4));
  v = lanes_max_i(v, LANES_HALVES(v, 2));
  v = lanes_max_i(v, LANES_HALVES(v, 1));
  return v[0];
}

LANES_INLINE lanes_u lanes_load_u(const uint8_t *at) {
  lanes_u v;
  memcpy(&v, at, sizeof v);
  return v;
}

/* Unpacks the eight vectors of codes of one block, V0 .. V7 of pack.h. */
LANES_INLINE void lanes_codes(uint32_t bits, const uint8_t *quants, lanes_u w[8]) {
  if (bits == 8) {
    for (uint32_t c = 0; c < 8; c++) w[c] = lanes_load_u(quants + 64 * c);
    return;
  }
  if (bits < 4) {
    for (uint32_t c = 0; c < 8; c++) w[c] = lanes_load_u(quants + c / 4 * 64) >> (2 * (c % 4)) & 0x03030303u;
    if (bits == 2) return;
    lanes_u third = lanes_load_u(quants + 128);
    for (uint32_t c = 0; c < 8; c++) w[c] |= (third >> c & 0x01010101u) << 2;
    return;
  }
  for (uint32_t c = 0; c < 4; c++) {
    lanes_u both = lanes_load_u(quants + 64 * c);
    w[c] = both & 0x0F0F0F0Fu;
    w[c + 4] = both >> 4 & 0x0F0F0F0Fu;
  }
  if (bits == 5) {
    lanes_u fifth = lanes_load_u(quants + 256);
    for (uint32_t c = 0; c < 8; c++) w[c] |= (fifth >> c & 0x01010101u) << 4;
  }
  if (bits == 6) {
    lanes_u low = lanes_load_u(quants + 256), high = lanes_load_u(quants + 320);
    for (uint32_t c = 0; c < 4; c++) {
      w[c] |= (low >> (2 * c) & 0x03030303u) << 4;
      w[c + 4] |= (high >> (2 * c) & 0x03030303u) << 4;
    }
  }
}

/* ---- scales of one block ---- */

#if defined(__AVX512F__) && defined(__F16C__)
#include <immintrin.h>
LANES_INLINE lanes_f lanes_f16(const uint8_t *at) {
  return (lanes_f)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at));
}
#elif defined(__F16C__)
#include <immintrin.h>
LANES_INLINE lanes_f lanes_f16(const uint8_t *at) {
  lanes_f v;
  __m256 low = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
  __m256 high = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(at + 16)));
  memcpy(&v, &low, sizeof low);
  memcpy((char *)&v + sizeof low, &high, sizeof high);
  return v;
}
#else
LANES_INLINE lanes_f lanes_f16(const uint8_t *at) {
  uint16_t bits[16];
  lanes_f v;
  memcpy(bits, at, sizeof bits);
  for (uint32_t i = 0; i < 16; i++) v[i] = weft_f16_to_f32(bits[i]);
  return v;
}
#endif

typedef uint8_t lanes_u8 __attribute__((vector_size(16)));
typedef int8_t lanes_s8 __attribute__((vector_size(16)));
typedef uint16_t lanes_u16 __attribute__((vector_size(32)));

LANES_INLINE lanes_f lanes_from_u8(const uint8_t *at) {
  lanes_u8 v;
  memcpy(&v, at, sizeof v);
  return __builtin_convertvector(__builtin_convertvector(v, lanes_i), lanes_f);
}

/* Four bits of each byte, from bit `shift` on, as floats. */
LANES_INLINE lanes_f lanes_from_u4(const uint8_t *at, uint32_t shift) {
  lanes_u8 v;
  memcpy(&v, at, sizeof v);
  return __builtin_convertvector(__builtin_convertvector(v >> (uint8_t)shift & 15u, lanes_i), lanes_f);
}

LANES_INLINE lanes_f lanes_from_s8(const uint8_t *at) {
  lanes_s8 v;
  memcpy(&v, at, sizeof v);
  return __builtin_convertvector(__builtin_convertvector(v, lanes_i), lanes_f);
}

LANES_INLINE lanes_f lanes_bf16(const uint8_t *at) {
  lanes_u16 v;
  memcpy(&v, at, sizeof v);
  return (lanes_f)(__builtin_convertvector(v, lanes_u) << 16);
}

/* Half the scales of MXFP4: 2^(e - 128), and NaN for e = 255. Their half, because weft_values_fp4 has twice the
 * values. */
LANES_INLINE lanes_f lanes_e8m0(const uint8_t *at) {
  lanes_u8 bytes;
  memcpy(&bytes, at, sizeof bytes);
  lanes_u e = __builtin_convertvector(bytes, lanes_u);
  lanes_u tiny = (lanes_u)(e < 2u), none = (lanes_u)(e == 255u);
  lanes_u bits = ((e - 1u) << 23 & ~tiny) | ((e + 1u) * 0x00200000u & tiny);
  return (lanes_f)((bits & ~none) | (0x7FC00000u & none));
}

/* A block of 32 inputs of a panel of quantised weights: of each half the scale and, where the form has it (LEAST and
 * PAIRS), what is added to scale * code. */
typedef struct lanes_block {
  const uint8_t *quants;
  lanes_f scale[2], least[2];
} lanes_block;

LANES_INLINE bool lanes_has_least(const cpu_pack_info *info) {
  return info->form == CPU_FORM_LEAST || info->form == CPU_FORM_PAIRS;
}

/* Block b in types without super-blocks. */
LANES_INLINE lanes_block lanes_find_small(const cpu_pack_info *info, const uint8_t *panel, uint32_t b) {
  const uint8_t *scales = panel + cpu_scales_offset(info->scale_bytes, info->quant_bytes, b);
  lanes_block block = {.quants = panel + cpu_quants_offset(info->scale_bytes, info->quant_bytes, b)};
  block.scale[0] = info->scale_bytes == 16 ? lanes_e8m0(scales) : lanes_f16(scales);
  block.scale[1] = info->form == CPU_FORM_SPLIT ? lanes_f16(scales + 32) : block.scale[0];
  if (info->form == CPU_FORM_LEAST) block.least[0] = block.least[1] = lanes_f16(scales + 32);
  return block;
}

/* Block b of a panel of any quantised type. */
LANES_INLINE lanes_block lanes_find_block(const cpu_pack_info *info, const uint8_t *panel, uint32_t b) {
  if (info->header_bytes == 0) return lanes_find_small(info, panel, b);
  uint32_t j = b % 8;
  const uint8_t *super = panel + (uint64_t)(b / 8) * (info->header_bytes + 8ull * info->quant_bytes);
  lanes_block block = {.quants = super + info->header_bytes + (uint64_t)j * info->quant_bytes};
  lanes_f d = cpu_has_f32_d(info) ? lanes_load((const float *)(const void *)super) : lanes_f16(super);
  lanes_f minus = lanes_splat(0.0f) - lanes_f16(super + 32);
  for (uint32_t half = 0; half < 2; half++) {
    const uint8_t *scales = super + 64 + 32 * j + 16 * half;
    if (info->form == CPU_FORM_SPLIT) {
      block.scale[half] = d * lanes_from_s8(scales);
    } else if (info->form == CPU_FORM_PAIRS) {
      block.scale[half] = d * lanes_from_u4(scales, 0);
      block.least[half] = minus * lanes_from_u4(scales, 4);
    } else {
      block.scale[half] = d * lanes_from_u8(super + 64 + 16 * j);
      block.least[half] = minus * lanes_from_u8(super + 192 + 16 * j);
    }
  }
  return block;
}

/* Replaces codes by the values that they stand for, plus the offset. */
#if defined(__AVX2__)
LANES_INLINE void lanes_look_up(const cpu_pack_info *info, lanes_u w[8]) {
  __m128i values = _mm_loadu_si128((const __m128i *)(const void *)info->values);
  values = _mm_add_epi8(values, _mm_set1_epi8((char)(1u << info->offset_shift)));
  const __m256i table = _mm256_broadcastsi128_si256(values);
  for (uint32_t c = 0; c < 8; c++) {
    __m256i half[2];
    memcpy(half, &w[c], sizeof half);
    half[0] = _mm256_shuffle_epi8(table, half[0]);
    half[1] = _mm256_shuffle_epi8(table, half[1]);
    memcpy(&w[c], half, sizeof half);
  }
}
#else
LANES_INLINE void lanes_look_up(const cpu_pack_info *info, lanes_u w[8]) {
  uint8_t bytes[64], table[WEFT_TYPE_VALUES];
  for (uint32_t i = 0; i < WEFT_TYPE_VALUES; i++) table[i] = (uint8_t)(info->values[i] + (1 << info->offset_shift));
  for (uint32_t c = 0; c < 8; c++) {
    memcpy(bytes, &w[c], sizeof bytes);
    for (uint32_t i = 0; i < 64; i++) bytes[i] = table[bytes[i]];
    memcpy(&w[c], bytes, sizeof bytes);
  }
}
#endif

/* The codes of a block; where the type has a table of values, the values of the codes plus the offset. */
LANES_INLINE void lanes_block_codes(const cpu_pack_info *info, const lanes_block *block, lanes_u w[8]) {
  lanes_codes(info->bits, block->quants, w);
  if (info->values != NULL) lanes_look_up(info, w);
}

/* Input i of a panel of float weights, for all sixteen rows. */
LANES_INLINE lanes_f lanes_weight(weft_type type, const uint8_t *panel, uint64_t i) {
  if (type == WEFT_TYPE_F16) return lanes_f16(panel + 32 * i);
  if (type == WEFT_TYPE_BF16) return lanes_bf16(panel + 32 * i);
  lanes_f v;
  memcpy(&v, panel + 64 * i, sizeof v);
  return v;
}

/* ---- activations ---- */

/* x * inverse, rounded to nearest even (the codes of a row, matmul.h). */
LANES_INLINE lanes_i lanes_round(lanes_f x, float inverse) {
  const lanes_f magic = lanes_splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
  return (lanes_i)(x * inverse + magic) - (lanes_i)magic;
}

/* As cpu_products.quantise and add_ranked say (matmul.h). */
LANES_INLINE void lanes_quantise(const float *x, uint32_t n_in, uint32_t row, uint32_t n_rows, uint8_t *group) {
  for (uint32_t b = 0; b < n_in / CPU_PACK_BLOCK; b++, x += CPU_PACK_BLOCK) {
    lanes_f x0 = lanes_load(x), x1 = lanes_load(x + 16);
    lanes_i size0 = (lanes_i)x0 & 0x7FFFFFFF, size1 = (lanes_i)x1 & 0x7FFFFFFF;
    union {
      int32_t i;
      float f;
    } most = {lanes_most_i(lanes_max_i(size0, size1))};
    float scale, inverse;
    cpu_block_scale(most.f, &scale, &inverse);
    lanes_i q0 = {0}, q1 = {0};
    if (inverse != 0.0f) {
      q0 = lanes_round(x0, inverse);
      q1 = lanes_round(x1, inverse);
    }
    uint8_t *to = group + ((uint64_t)b * n_rows + row) * CPU_X_BYTES;
    lanes_s8 bytes0 = __builtin_convertvector(q0, lanes_s8), bytes1 = __builtin_convertvector(q1, lanes_s8);
    memcpy(to, &bytes0, sizeof bytes0);
    memcpy(to + 16, &bytes1, sizeof bytes1);
    cpu_block_tail(to, scale, lanes_sum_i(q0), lanes_sum_i(q1));
  }
}

/* n_v vectors of columns, which begin at x and y. The levels lie in registers, so the loops over them are unrolled. */
LANES_INLINE void lanes_add_columns(const cpu_ranked *ranked, const uint32_t n_v, const float *x, float *y) {
  lanes_own sum[WEFT_EXPERTS_LEVELS + 1][OWN_VECTORS] = {{{0}}};
  for (uint32_t j = 0; j < ranked->n; j++) {
    const cpu_rank rank = ranked->rank[j];
    const float *from = x + rank.slot * ranked->stride;
#pragma GCC unroll 4
    for (uint32_t v = 0; v < n_v; v++) {
      lanes_own term;
      memcpy(&term, from + OWN_LANES * v, sizeof term);
      sum[0][v] += term * rank.weight;
    }
#pragma GCC unroll 4
    for (uint32_t l = 0; l < WEFT_EXPERTS_LEVELS; l++) {
      if (l >= rank.closes) break;
#pragma GCC unroll 4
      for (uint32_t v = 0; v < n_v; v++) {
        sum[l + 1][v] += sum[l][v];
        sum[l][v] = (lanes_own){0};
      }
    }
  }
#pragma GCC unroll 4
  for (uint32_t v = 0; v < n_v; v++) memcpy(y + OWN_LANES * v, &sum[WEFT_EXPERTS_LEVELS][v], sizeof(lanes_own));
}

LANES_INLINE float lanes_add_one(const cpu_ranked *ranked, const float *x) {
  float sum[WEFT_EXPERTS_LEVELS + 1] = {0.0f};
  for (uint32_t j = 0; j < ranked->n; j++) {
    const cpu_rank rank = ranked->rank[j];
    sum[0] += x[rank.slot * ranked->stride] * rank.weight;
    for (uint32_t l = 0; l < rank.closes; l++) {
      sum[l + 1] += sum[l];
      sum[l] = 0.0f;
    }
  }
  return sum[WEFT_EXPERTS_LEVELS];
}

LANES_INLINE void lanes_add_ranked(const cpu_ranked *ranked, uint32_t n, float *y) {
  const float *x = ranked->x;
  uint32_t i = 0;
  for (; i + OWN_VECTORS * OWN_LANES <= n; i += OWN_VECTORS * OWN_LANES) {
    lanes_add_columns(ranked, OWN_VECTORS, x + i, y + i);
  }
  for (; i + OWN_LANES <= n; i += OWN_LANES) lanes_add_columns(ranked, 1, x + i, y + i);
  for (; i < n; i++) y[i] = lanes_add_one(ranked, x + i);
}

#endif
