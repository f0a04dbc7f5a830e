/* SPDX-License-Identifier: MIT */
#include "kernels/repack.h"

#include <string.h>

#include "base/check.h"
#include "kernels/codebooks.h"

enum { SUPER = 256, N_SCALES = 16 };

const int8_t weft_values_fp4[WEFT_TYPE_VALUES] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
const int8_t weft_values_iq4[WEFT_TYPE_VALUES] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                  1,    13,   25,  38,  53,  69,  89,  113};
const int8_t weft_values_iq3x[WEFT_TYPE_VALUES] = {4,  12,  20,  28,  36,  44,  52,  62,
                                                   -4, -12, -20, -28, -36, -44, -52, -62};
const int8_t weft_values_iq3s[WEFT_TYPE_VALUES] = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};
const int8_t weft_values_q3[WEFT_TYPE_VALUES] = {-4, -3, -2, -1, 0, 1, 2, 3};
const int8_t weft_values_iq2[WEFT_TYPE_VALUES] = {8, 25, 43, 0, -8, -25, -43, 0};
const int8_t weft_values_iq1[WEFT_TYPE_VALUES] = {-7, 1, 9, 0, -9, -1, 7, 0}; /* 8 g + 1, then 8 g - 1 */

static uint32_t read_16(const uint8_t *at) {
  uint16_t v;
  memcpy(&v, at, sizeof v);
  return v;
}

static uint32_t read_32(const uint8_t *at) {
  uint32_t v;
  memcpy(&v, at, sizeof v);
  return v;
}

/* ---- blocks of 256, taken apart into scales and codes ---- */

typedef struct super_block {
  float d; /* the file's, times the power of two that makes scales whole numbers */
  int8_t scale[N_SCALES];
  uint8_t code[SUPER];
} super_block;

/* Codes of three bits as they are held: of each 32 numbers the lower two bits of numbers i, 8 + i, 16 + i and 24 + i in
 * byte i, and the third bits. */
typedef struct three_bit_codes {
  uint64_t low[SUPER / 32];
  uint32_t high[SUPER / 32];
} three_bit_codes;

static void write_head(const super_block *b, uint8_t *held) {
  memcpy(held, &b->d, 4);
  memcpy(held + 4, b->scale, N_SCALES);
}

static void write_s4(const super_block *b, uint8_t *held) {
  write_head(b, held);
  held += 4 + N_SCALES;
  for (uint32_t j = 0; j < SUPER; j += 32, held += 16) {
    for (uint32_t i = 0; i < 16; i++) held[i] = (uint8_t)(b->code[j + i] | b->code[j + 16 + i] << 4);
  }
}

static void write_s3(const super_block *b, uint8_t *held) {
  write_head(b, held);
  uint8_t *low = held + 4 + N_SCALES, *high = low + SUPER / 4;
  for (uint32_t j = 0; j < SUPER; j += 32, low += 8, high += 4) {
    uint32_t third = 0;
    for (uint32_t i = 0; i < 8; i++) low[i] = 0;
    for (uint32_t i = 0; i < 32; i++) {
      low[i % 8] = (uint8_t)(low[i % 8] | (b->code[j + i] & 3u) << (2 * (i / 8)));
      third |= (uint32_t)(b->code[j + i] >> 2) << i;
    }
    memcpy(high, &third, 4);
  }
}

static void write_three_bits(const super_block *b, const three_bit_codes *codes, uint8_t *held) {
  write_head(b, held);
  memcpy(held + 4 + N_SCALES, codes->low, sizeof codes->low);
  memcpy(held + 4 + N_SCALES + sizeof codes->low, codes->high, sizeof codes->high);
}

/* Eight numbers of two bits, each in a byte. */
static uint64_t spread_pairs(uint64_t entry) {
  entry = (entry | entry << 24) & 0x000000FF000000FFull;
  entry = (entry | entry << 12) & 0x000F000F000F000Full;
  return (entry | entry << 6) & 0x0303030303030303ull;
}

/* The codes of numbers 8 l .. 8 l + 7: the magnitudes of a codebook's entry and their signs; bit i of `signs` means
 * minus. */
static void put_eight(three_bit_codes *codes, uint32_t l, uint32_t entry, uint32_t signs) {
  codes->low[l / 4] |= spread_pairs(entry & 0xFFFFu) << (2 * (l % 4));
  codes->high[l / 4] |= signs << (8 * (l % 4));
}

static void put_four(uint32_t entry, uint32_t signs, uint8_t *code) {
  for (uint32_t i = 0; i < 4; i++) code[i] = (uint8_t)((entry >> (4 * i) & 7u) | (signs >> i & 1u) << 3);
}

/* Adds to seven stored signs the eighth, which makes the number of minus signs even. */
static uint32_t eight_signs(uint32_t seven) {
  return (seven & 127u) | (uint32_t)(__builtin_popcount(seven & 127u) & 1) << 7;
}

/* A stored scale s of a codebook type stands for s + 1/2; held is twice that, 2 s + 1. */
static int8_t odd_scale(uint32_t s) {
  return (int8_t)(2 * s + 1);
}

/* Scales of four bits each. */
static void read_odd_scales(const uint8_t *at, super_block *s) {
  for (uint32_t k = 0; k < N_SCALES; k++) s->scale[k] = odd_scale((uint32_t)at[k / 2] >> (k % 2 * 4) & 15u);
}

/* ---- the types ---- */

static void repack_q3_k(const uint8_t *b, uint8_t *held) {
  super_block s;
  s.d = weft_f16_to_f32((uint16_t)read_16(b + 108));
  for (uint32_t k = 0; k < N_SCALES; k++) {
    uint32_t low = k < 8 ? b[96 + k] & 15u : (uint32_t)b[96 + k - 8] >> 4;
    uint32_t high = (uint32_t)b[104 + k % 4] >> (2 * (k / 4)) & 3u;
    s.scale[k] = (int8_t)((int32_t)(low | high << 4) - 32);
  }
  for (uint32_t i = 0; i < SUPER; i++) {
    uint32_t low = (uint32_t)b[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3u;
    s.code[i] = (uint8_t)(low | ((uint32_t)b[i % 32] >> (i / 32) & 1u) << 2);
  }
  write_s3(&s, held);
}

static void repack_iq2_xxs(const uint8_t *b, uint8_t *held) {
  super_block s;
  three_bit_codes codes = {{0}, {0}};
  s.d = weft_f16_to_f32((uint16_t)read_16(b)) * 0.125f;
  for (uint32_t j = 0; j < 8; j++) {
    const uint8_t *group = b + 2 + 8 * j;
    uint32_t rest = read_32(group + 4);
    s.scale[2 * j] = s.scale[2 * j + 1] = odd_scale(rest >> 28);
    for (uint32_t l = 0; l < 4; l++) {
      put_eight(&codes, 4 * j + l, codebook_iq2_xxs[group[l]], eight_signs(rest >> (7 * l)));
    }
  }
  write_three_bits(&s, &codes, held);
}

static void repack_iq2_xs(const uint8_t *b, uint8_t *held) {
  super_block s;
  three_bit_codes codes = {{0}, {0}};
  s.d = weft_f16_to_f32((uint16_t)read_16(b)) * 0.125f;
  read_odd_scales(b + 66, &s);
  for (uint32_t l = 0; l < 32; l++) {
    uint32_t word = read_16(b + 2 + 2 * l);
    put_eight(&codes, l, codebook_iq2_xs[word & 511u], eight_signs(word >> 9));
  }
  write_three_bits(&s, &codes, held);
}

static void repack_iq2_s(const uint8_t *b, uint8_t *held) {
  super_block s;
  three_bit_codes codes = {{0}, {0}};
  s.d = weft_f16_to_f32((uint16_t)read_16(b)) * 0.125f;
  read_odd_scales(b + 74, &s);
  for (uint32_t l = 0; l < 32; l++) {
    uint32_t high = (uint32_t)b[66 + l / 4] >> (l % 4 * 2) & 3u;
    put_eight(&codes, l, codebook_iq2_s[b[2 + l] | high << 8], b[34 + l]);
  }
  write_three_bits(&s, &codes, held);
}

static void repack_iq3_xxs(const uint8_t *b, uint8_t *held) {
  super_block s;
  s.d = weft_f16_to_f32((uint16_t)read_16(b)) * 0.25f;
  for (uint32_t j = 0; j < 8; j++) {
    uint32_t rest = read_32(b + 66 + 4 * j);
    s.scale[2 * j] = s.scale[2 * j + 1] = odd_scale(rest >> 28);
    for (uint32_t l = 0; l < 4; l++) {
      uint32_t signs = eight_signs(rest >> (7 * l));
      const uint8_t *pair = b + 2 + 8 * j + 2 * l;
      put_four(codebook_iq3_xxs[pair[0]], signs, s.code + 32 * j + 8 * l);
      put_four(codebook_iq3_xxs[pair[1]], signs >> 4, s.code + 32 * j + 8 * l + 4);
    }
  }
  write_s4(&s, held);
}

static void repack_iq3_s(const uint8_t *b, uint8_t *held) {
  super_block s;
  s.d = weft_f16_to_f32((uint16_t)read_16(b));
  for (uint32_t k = 0; k < N_SCALES; k++) {
    s.scale[k] = odd_scale((uint32_t)b[106 + k / 4] >> (k / 2 % 2 * 4) & 15u);
  }
  for (uint32_t l = 0; l < 64; l++) {
    uint32_t high = (uint32_t)b[66 + l / 8] >> (l % 8) & 1u;
    put_four(codebook_iq3_s[b[2 + l] | high << 8], (uint32_t)b[74 + l / 2] >> (l % 2 * 4), s.code + 4 * l);
  }
  write_s4(&s, held);
}

static void repack_iq1_s(const uint8_t *b, uint8_t *held) {
  super_block s;
  three_bit_codes codes = {{0}, {0}};
  s.d = weft_f16_to_f32((uint16_t)read_16(b)) * 0.125f;
  for (uint32_t j = 0; j < 8; j++) {
    uint32_t high = read_16(b + 34 + 2 * j);
    s.scale[2 * j] = s.scale[2 * j + 1] = odd_scale(high >> 12 & 7u);
    uint32_t minus = (high >> 15) * 0xFFu;
    for (uint32_t l = 0; l < 4; l++) {
      put_eight(&codes, 4 * j + l, codebook_iq1_s[b[2 + 4 * j + l] | (high >> (3 * l) & 7u) << 8], minus);
    }
  }
  write_three_bits(&s, &codes, held);
}

static void repack_iq1_m(const uint8_t *b, uint8_t *held) {
  super_block s;
  three_bit_codes codes = {{0}, {0}};
  uint32_t d = 0;
  for (uint32_t j = 0; j < 4; j++) {
    uint32_t word = read_16(b + 48 + 2 * j);
    d |= word >> 12 << (4 * j);
    for (uint32_t i = 0; i < 4; i++) s.scale[4 * j + i] = odd_scale(word >> (3 * i) & 7u);
  }
  s.d = weft_f16_to_f32((uint16_t)d) * 0.125f;
  for (uint32_t l = 0; l < 32; l++) {
    uint32_t high = (uint32_t)b[32 + l / 2] >> (l % 2 * 4);
    put_eight(&codes, l, codebook_iq1_s[b[l] | (high & 7u) << 8], (high >> 3 & 1u) * 0xFFu);
  }
  write_three_bits(&s, &codes, held);
}

static void repack_iq4_xs(const uint8_t *b, uint8_t *held) {
  super_block s;
  s.d = weft_f16_to_f32((uint16_t)read_16(b));
  uint32_t high = read_16(b + 2);
  for (uint32_t k = 0; k < N_SCALES; k++) {
    uint32_t j = k / 2, low = (uint32_t)b[4 + j / 2] >> (j % 2 * 4) & 15u;
    s.scale[k] = (int8_t)((int32_t)(low | (high >> (2 * j) & 3u) << 4) - 32);
  }
  write_head(&s, held);
  memcpy(held + 4 + N_SCALES, b + 8, SUPER / 2);
}

static void repack_iq4_nl(const uint8_t *b, uint8_t *held) {
  memcpy(held, b, 2);
  memcpy(held + 2, b, 2);
  memcpy(held + 4, b + 2, 16);
}

/* NVFP4: half of a scale of eight bits, of which the first is not read, four are exponent and three are mantissa. It is
 * halved because the table of values has twice the values. The largest code means zero, as in the format's reference,
 * and not NaN. */
static uint16_t half_scale(uint32_t code) {
  uint32_t exponent = code >> 3 & 15u, mantissa = code & 7u;
  if (code == 0x7F) return 0;
  if (exponent == 0) return weft_f32_to_f16((float)mantissa * 0x1p-10f);
  return (uint16_t)((exponent + 7) << 10 | mantissa << 7);
}

/* NVFP4 stores sixteen numbers in eight bytes, whose lower halves come first. Two sixteens become the lower and the
 * upper halves of the bytes of a held block. */
static void repack_nvfp4(const uint8_t *b, uint8_t *held) {
  for (uint32_t k = 0; k < 4; k += 2, held += 20) {
    const uint8_t *first = b + 4 + 8 * k, *second = first + 8;
    const uint16_t scale[2] = {half_scale(b[k]), half_scale(b[k + 1])};
    memcpy(held, scale, sizeof scale);
    for (uint32_t i = 0; i < 8; i++) {
      held[4 + i] = (uint8_t)((first[i] & 15u) | second[i] << 4);
      held[12 + i] = (uint8_t)(first[i] >> 4 | (second[i] & 0xF0u));
    }
  }
}

/* Writes numbers -1, 0, 1 (and 2) times d as Q2_K: codes 0 .. 3 with scale 1 and minimum 1, both times d. */
static void write_ternary(const uint8_t *d, const uint8_t code[SUPER], uint8_t *held) {
  memset(held, 0x11, N_SCALES);
  memset(held + 16, 0, SUPER / 4);
  for (uint32_t i = 0; i < SUPER; i++) {
    uint8_t *byte = held + 16 + i / 128 * 32 + i % 32;
    *byte = (uint8_t)(*byte | code[i] << (i % 128 / 32 * 2));
  }
  memcpy(held + 80, d, 2);
  memcpy(held + 82, d, 2);
}

static void repack_tq2_0(const uint8_t *b, uint8_t *held) {
  memset(held, 0x11, N_SCALES);
  memcpy(held + 16, b, SUPER / 4);
  memcpy(held + 80, b + 64, 2);
  memcpy(held + 82, b + 64, 2);
}

/* TQ1_0: five numbers share a byte, as digits to the base 3 of a fraction of 243. A byte times 3^n, without what leaves
 * eight bits, times 3 has digit n above the eighth bit. */
static void repack_tq1_0(const uint8_t *b, uint8_t *held) {
  static const uint8_t power[5] = {1, 3, 9, 27, 81};
  uint8_t code[SUPER];
  for (uint32_t i = 0; i < SUPER; i++) {
    uint32_t at = i < 160 ? i % 32 : i < 240 ? 32 + (i - 160) % 16 : 48 + (i - 240) % 4;
    uint32_t n = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
    code[i] = (uint8_t)((uint32_t)(uint8_t)(b[at] * power[n]) * 3u >> 8);
  }
  write_ternary(b + 52, code, held);
}

repack_block repack_find(weft_type type) {
  static const struct {
    weft_type type;
    repack_block repack;
  } all[] = {
      {WEFT_TYPE_Q3_K, repack_q3_k},     {WEFT_TYPE_IQ2_XXS, repack_iq2_xxs}, {WEFT_TYPE_IQ2_XS, repack_iq2_xs},
      {WEFT_TYPE_IQ2_S, repack_iq2_s},   {WEFT_TYPE_IQ3_XXS, repack_iq3_xxs}, {WEFT_TYPE_IQ3_S, repack_iq3_s},
      {WEFT_TYPE_IQ1_S, repack_iq1_s},   {WEFT_TYPE_IQ1_M, repack_iq1_m},     {WEFT_TYPE_IQ4_XS, repack_iq4_xs},
      {WEFT_TYPE_IQ4_NL, repack_iq4_nl}, {WEFT_TYPE_TQ1_0, repack_tq1_0},     {WEFT_TYPE_TQ2_0, repack_tq2_0},
      {WEFT_TYPE_NVFP4, repack_nvfp4},
  };
  for (uint32_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    if (all[i].type == type) return all[i].repack;
  }
  return NULL;
}

/* ---- what a held block means ---- */

static void dequantise_h4(const weft_type_info *info, const uint8_t *held, float *out) {
  for (uint32_t i = 0; i < 32; i++) {
    float scale = weft_f16_to_f32((uint16_t)read_16(held + i / 16 * 2));
    out[i] = scale * (float)info->values[held[4 + i % 16] >> (i / 16 * 4) & 15];
  }
}

static void dequantise_super(const weft_type_info *info, const uint8_t *held, bool three_bits, float *out) {
  const uint8_t *low = held + 4 + N_SCALES, *high = low + SUPER / 4;
  float d;
  memcpy(&d, held, 4);
  for (uint32_t i = 0; i < SUPER; i++) {
    uint32_t j = i / 32, k = i % 32, code;
    if (three_bits) {
      code = ((uint32_t)low[8 * j + k % 8] >> (2 * (k / 8)) & 3u) | (read_32(high + 4 * j) >> k & 1u) << 2;
    } else {
      code = (uint32_t)low[16 * j + k % 16] >> (k / 16 * 4) & 15u;
    }
    out[i] = d * (float)(int8_t)held[4 + i / 16] * (float)info->values[code];
  }
}

void repack_dequantise(const weft_type_info *info, const uint8_t *held, float *out) {
  if (info->n_elements == 32) {
    dequantise_h4(info, held, out);
  } else {
    dequantise_super(info, held, info->n_bytes == 116, out);
  }
}

void weft_repack_row(weft_type type, const void *stored, void *held, uint64_t n) {
  const weft_type_info *from = weft_type_find((int32_t)type);
  WEFT_CHECK(from != NULL);
  WEFT_CHECK(n % from->n_elements == 0);
  const weft_type_info *to = weft_type_find((int32_t)from->held_as);
  repack_block repack = repack_find(type);
  if (repack == NULL) {
    memcpy(held, stored, n / from->n_elements * from->n_bytes);
    return;
  }
  const uint8_t *in = stored;
  uint8_t *out = held;
  uint32_t out_bytes = from->n_elements / to->n_elements * to->n_bytes;
  for (uint64_t i = 0; i < n; i += from->n_elements, in += from->n_bytes, out += out_bytes) repack(in, out);
}
