/* SPDX-License-Identifier: MIT */
/* One element of a packed weight: its code, its scale, its dequantised value in f32. This is slow, and serves where
 * rows are looked up, weights are unpacked and W8A8 steps are made. GEMM kernels dequantise whole units
 * (dequantise.cuh).
 *
 * Law: element_value has the bits that weft_dequantise_row gives for the weight's type. */
#ifndef WEFT_KERNELS_CUDA_PACKED_ELEMENT_CUH
#define WEFT_KERNELS_CUDA_PACKED_ELEMENT_CUH

#include "kernels/cuda/weights/dequantise.cuh"

/* Where element k of row r (0..15) of a row tile lies. */
typedef struct element_place {
  const uint8_t *codes, *high, *scales;
  uint32_t g, c, half_row; /* row = g + 8 half_row */
  uint32_t e;              /* of the lane's elements */
  uint32_t half;           /* which 128 of a super-block */
  bool tail;
} element_place;

static __device__ __forceinline__ element_place element_at(int type, packed_dims dims, const uint8_t *row_tile,
                                                           uint32_t r, uint32_t k) {
  packed_shape f = packed_shape_of(type);
  element_place p;
  uint32_t unit = k / 128, rest = k % 128;
  p.tail = dims.is_tail != 0 && unit + 1 == dims.n_units;
  p.half = f.unit == 256 ? unit & 1u : 0u;
  if (f.unit == 256) {
    const uint8_t *base = row_tile + (uint64_t)(unit / 2) * packed_unit_bytes(f);
    p.codes = base + p.half * f.codes;
    p.high = base + 2 * f.codes + p.half * f.high;
    p.scales = base + 2 * (f.codes + f.high);
  } else {
    const uint8_t *base = row_tile + (uint64_t)unit * packed_unit_bytes(f);
    uint32_t shift = p.tail ? 1 : 0;
    p.codes = base;
    p.high = base + (f.codes >> shift);
    p.scales = base + ((f.codes + f.high) >> shift);
  }
  p.g = r % 8;
  p.half_row = r / 8;
  p.c = p.tail ? rest / 16 : rest / 32;
  p.e = p.tail ? rest % 16 : rest % 32;
  return p;
}

static __device__ __forceinline__ uint32_t word_at(const uint8_t *p) {
  return *(const uint32_t *)(const void *)p;
}
static __device__ __forceinline__ uint32_t short_at(const uint8_t *p) {
  return *(const uint16_t *)(const void *)p;
}

/* MXFP4: the code of element e < 16 of two words. */
static __device__ __forceinline__ uint32_t mx_code(const uint8_t *words, uint32_t e) {
  const mx_bits at = mx_place(e);
  const uint64_t both = (uint64_t)word_at(words + 4) << 32 | word_at(words);
  return (uint32_t)(both >> at.sign & 1) << 3 | (uint32_t)(both >> (at.exponent - 1) & 3) << 1 |
         (uint32_t)(both >> at.mantissa & 1);
}

/* The whole code with its high bits: 2, 3, 4, 5, 6, 8 or 16 bits. */
static __device__ __forceinline__ uint32_t element_code(int type, const element_place &p) {
  uint32_t lane = p.g * 4 + p.c, h = p.half_row, e = p.e;
  if (packed_bits(type) == 16) return short_at(p.codes + (e / 8 * 2 + h) * 512 + lane * 16 + e % 8 * 2);
  if (packed_bits(type) == 8) return p.codes[(e / 16 * 2 + h) * 512 + lane * 16 + e % 16];
  if (packed_is_narrow(type)) {
    uint32_t place = e % 8 / 2 * 4 + e % 2 * 16;
    uint32_t two = word_at(p.codes + h * 256 + lane * 8 + e / 16 * 4) >> (place + e / 8 % 2 * 2) & 3u;
    if (!packed_has_third_bit(type)) return two;
    return two | (word_at(p.high + lane * 8 + h * 4) >> (place + e / 8) & 1u) << 2;
  }
  uint32_t at = p.tail ? h * 256 + lane * 8 : h * 512 + lane * 16;
  if (type == WEFT_TYPE_MXFP4) return mx_code(p.codes + at + e / 16 * 8, e % 16);
  uint32_t code = word_at(p.codes + at + e / 8 * 4) >> (e % 8 / 2 * 4 + e % 2 * 16) & 15u;
  if (type == WEFT_TYPE_Q6_K) {
    uint32_t word = word_at(p.high + lane * 16 + h * 8 + e / 16 * 4);
    return code | (word >> (e % 16 / 2 * 2 + e % 2 * 16) & 3u) << 4;
  }
  if (packed_shape_of(type).high == 0) return code;
  uint32_t bit = p.tail ? short_at(p.high + lane * 4 + h * 2) >> (e / 2 + e % 2 * 8)
                        : word_at(p.high + lane * 8 + h * 4) >> (e / 2 + e % 2 * 16);
  return code | (bit & 1u) << 4;
}

/* The bits of the scale in types with one scale per 32: of an f16, or of MXFP4's exponent. */
static __device__ __forceinline__ uint32_t element_scale(int type, const element_place &p) {
  uint32_t block = p.tail ? p.g * 2 + p.c / 2 : p.g * 4 + p.c;
  if (type == WEFT_TYPE_MXFP4) return p.scales[block * 2 + p.half_row];
  return short_at(p.scales + block * 4 + p.half_row * 2);
}

/* Both f16 in types with two of them per 32. */
static __device__ __forceinline__ uint32_t element_pair(const element_place &p) {
  uint32_t block = p.tail ? p.g * 2 + p.c / 2 : p.g * 4 + p.c;
  return word_at(p.scales + block * 8 + p.half_row * 4);
}

/* What a row stores behind the 16 bytes of scales: S4 and S3 their f32, Q2_K its two f16. */
static __device__ __forceinline__ uint32_t element_super_word(const element_place &p) {
  return word_at(p.scales + 256 + (p.g + 8 * p.half_row) * 4);
}

/* Byte `at` of the 16 scale bytes of the row's super-block. */
static __device__ __forceinline__ uint32_t element_super_byte(const element_place &p, uint32_t at) {
  return p.scales[(p.g + 8 * p.half_row) * 16 + at];
}

static __device__ __forceinline__ uint32_t element_q6_scale(const element_place &p) {
  return short_at(p.scales + 256 + (p.g + 8 * p.half_row) * 2);
}

/* The value of an MXFP4 code: `doubled` is twice the number that the code stands for, so `size` is half of the
 * scale. */
static __device__ __forceinline__ float mx_value(uint32_t code, uint32_t exponent) {
  uint32_t m = code & 7u, doubled = m < 5 ? m : m == 5 ? 6 : m == 6 ? 8 : 12;
  float size = __uint_as_float(exponent < 2      ? 0x00200000u << exponent
                               : exponent == 255 ? 0x7FC00000u
                                                 : (exponent - 1) << 23);
  return __fmul_rn((code & 8u) != 0 ? -(float)doubled : (float)doubled, size);
}

static __device__ __forceinline__ float value_of_code(const value_table &values, uint32_t code) {
  return (float)((int)(values.word[code / 4] >> (code % 4 * 8) & 0xFFu) - 128);
}

/* The value in types whose super-blocks have a scale per sixteen elements. */
static __device__ __forceinline__ float element_split_value(int type, const value_table &values, const element_place &p,
                                                            uint32_t code) {
  uint32_t scale = element_super_byte(p, 8 * p.half + 2 * p.c + p.e / 16);
  if (type == WEFT_TYPE_Q6_K)
    return __fmul_rn(__fmul_rn(half_bits(element_q6_scale(p)), (float)(int8_t)(uint8_t)scale), (float)((int)code - 32));
  uint32_t word = element_super_word(p);
  if (type == WEFT_TYPE_Q2_K) {
    float step = __fmul_rn(half_bits(word & 0xFFFFu), (float)(scale & 15u));
    return __fsub_rn(__fmul_rn(step, (float)code), __fmul_rn(half_bits(word >> 16), (float)(scale >> 4)));
  }
  return __fmul_rn(__fmul_rn(__uint_as_float(word), (float)(int8_t)(uint8_t)scale), value_of_code(values, code));
}

/* The value as the file format defines it, bit for bit. */
static __device__ __forceinline__ float element_value(int type, const value_table &values, const element_place &p) {
  uint32_t code = element_code(type, p);
  switch (packed_type(type)) {
    case WEFT_TYPE_F16:
      return half_bits(code);
    case WEFT_TYPE_BF16:
      return __uint_as_float(code << 16);
    case WEFT_TYPE_Q8_0:
      return __fmul_rn(half_bits(element_scale(type, p)), (float)(int8_t)(uint8_t)code);
    case WEFT_TYPE_Q4_0:
      return __fmul_rn(half_bits(element_scale(type, p)), (float)((int)code - 8));
    case WEFT_TYPE_Q5_0:
      return __fmul_rn(half_bits(element_scale(type, p)), (float)((int)code - 16));
    case WEFT_TYPE_Q5_1: {
      uint32_t pair = element_pair(p);
      return __fadd_rn(__fmul_rn(half_bits(pair & 0xFFFFu), (float)code), half_bits(pair >> 16));
    }
    case WEFT_TYPE_H4_IQ4: {
      uint32_t second = p.tail ? p.c % 2 : p.e / 16;
      return __fmul_rn(half_bits(element_pair(p) >> (16 * second) & 0xFFFFu), value_of_code(values, code));
    }
    case WEFT_TYPE_MXFP4:
      return mx_value(code, element_scale(type, p));
    case WEFT_TYPE_Q6_K:
    case WEFT_TYPE_Q2_K:
    case WEFT_TYPE_S4_IQ4:
    case WEFT_TYPE_S3_Q3:
      return element_split_value(type, values, p, code);
    default: { /* Q4_K, Q5_K */
      uint4 row = *(const uint4 *)(const void *)(p.scales + (p.g + 8 * p.half_row) * 16);
      uint32_t six = super_scale(row, p.half, p.c);
      float step = __fmul_rn(half_bits(row.x & 0xFFFFu), half_bits(six & 0xFFFFu));
      float offset = __fmul_rn(half_bits(row.x >> 16), half_bits(six >> 16) * 0x1p10f);
      return __fsub_rn(__fmul_rn(step, (float)code), offset);
    }
  }
}

/* A weight whose rows are looked up. */
typedef struct element_rows {
  int type;
  packed_dims dims;
  value_table values;
  const uint8_t *tiles;
  uint32_t n_in, n_rows;
} element_rows;

static inline element_rows element_rows_of(const weft_weight *w) {
  element_rows e;
  e.type = w->type;
  e.dims = packed_dims_of(w->type, w->n_in, w->n_out);
  e.values = value_table_of(w->type);
  e.tiles = (const uint8_t *)w->data + PACKED_HEADER_BYTES;
  e.n_in = w->n_in;
  e.n_rows = w->n_out;
  return e;
}

/* Element i of a row that exists. */
static __device__ __forceinline__ float element_of(const element_rows &e, uint32_t row, uint32_t i) {
  if (e.type == WEFT_TYPE_F32) return ((const float *)(const void *)e.tiles)[(uint64_t)row * e.n_in + i];
  const uint8_t *tile = e.tiles + (uint64_t)(row / 16) * e.dims.tile_bytes;
  return element_value(e.type, e.values, element_at(e.type, e.dims, tile, row % 16, i));
}

#endif
