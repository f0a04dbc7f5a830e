/* SPDX-License-Identifier: MIT */
/* Packed weights: how a weight lies on the card, and how a warp makes numbers of its codes.
 *
 * A quantised weight is stored as codes, which are small integers: value = scale * code + least. A scale and a least
 * (an offset, 0 in many types) belong to 16 or 32 neighbouring inputs of a row. Types of the K family have super-blocks
 * of 256 inputs, whose scales and leasts are small integers too and share one float each. F16 and BF16 numbers count as
 * codes of 16 bits.
 *
 * The packed form has the integers and scales of the file, ordered for loads of 16 bytes and for the registers of the
 * matrix units:
 *
 *   weight     256 bytes of header, then row tiles (16 rows of one matrix; missing rows are zeros)
 *   row tile   units of 256 inputs (types with super-blocks) or of 128, ascending. A last unit of 128 holds only 64
 *              inputs, the "tail", when at most 64 are left; missing inputs are zeros
 *   unit       codes | high bits | scales
 *
 * Lane 4 g + c of a warp (g < 8, c < 4) has rows g and g + 8 of a row tile, which are its row halves. Of each 128
 * inputs it has the 32 from 32 c on, of a tail the 16 from 16 c on; below they are the lane's elements. So product j of
 * 16 x 16 takes inputs 32 c + 4 j + {0, 1, 2, 3} of all four c. This order of inputs is the same in every kernel, and
 * it is part of the numerics.
 *
 *   codes      16 bits  [i < 4][row half][lane][8 elements]
 *               8 bits  [q < 2][row half][lane][16 elements]
 *               4 bits  [row half][lane][32 elements]; of the 8 elements of a word, 2 p is at bit 4 p
 *                       and 2 p + 1 at bit 16 + 4 p
 *   high bits  1 bit    [lane][row half][32 bits]: element 2 p at bit p, 2 p + 1 at bit 16 + p (tail: 8 + p)
 *               2 bits  [lane][row half][2 words of 16 elements]: 2 p at 2 p, 2 p + 1 at 16 + 2 p
 *   scales     of 32    [lane][row half] (tail: [g][c / 2][row half]): f16; MXFP4: e8m0; Q5_1, H4: two f16
 *              super    [row] 16 bytes as in the file (Q6_K: the 16 scales, then [row] its f16; S4: the same with an
 *                       f32; Q2_K: the 16 bytes of scales and minima, then [row] its two f16)
 *
 * Types share a form where they differ only in what their codes stand for. A type also uses the form of another one
 * with more bits: Q4_1 lies as Q5_1 does, S3 types as S4 do (packed_type).
 *
 * Law: packing is a bijection with the bytes of the weight's type. F32 weights are not packed: they keep the file's
 * form after the header. */
#ifndef WEFT_KERNELS_CUDA_PACKED_LAYOUT_CUH
#define WEFT_KERNELS_CUDA_PACKED_LAYOUT_CUH

#include <type_traits>

#include "kernels/cuda/common.cuh"

enum { PACKED_HEADER_BYTES = 256 };

/* The first bytes of a weight: the largest magnitudes of the scales and of the leasts that it stores as floats (of a
 * super-block: of its one scale and one least), as bits of f32. */
typedef struct packed_header {
  uint32_t max_scale, max_zero_point;
} packed_header;

static __device__ __forceinline__ packed_header header_of(const uint8_t *data) {
  float4 v = load_evict_last((const float4 *)(const void *)data);
  return {__float_as_uint(v.x), __float_as_uint(v.y)};
}

typedef struct packed_shape {
  uint32_t codes, high, scales; /* bytes: codes and high of 128 inputs, scales of a unit */
  uint32_t unit;                /* inputs */
} packed_shape;

/* The type whose form a type shares, and whose kernels multiply it. */
__host__ __device__ constexpr int packed_type(int type) {
  switch (type) {
    case WEFT_TYPE_Q4_1:
      return WEFT_TYPE_Q5_1;
    case WEFT_TYPE_H4_FP4:
      return WEFT_TYPE_H4_IQ4;
    case WEFT_TYPE_S4_IQ3X:
    case WEFT_TYPE_S4_IQ3S:
    case WEFT_TYPE_S3_Q3:
    case WEFT_TYPE_S3_IQ2:
    case WEFT_TYPE_S3_IQ1:
      return WEFT_TYPE_S4_IQ4;
    default:
      return type;
  }
}

__host__ __device__ constexpr packed_shape packed_shape_of(int type) {
  switch (packed_type(type)) {
    case WEFT_TYPE_F16:
    case WEFT_TYPE_BF16:
      return {4096, 0, 0, 128};
    case WEFT_TYPE_Q8_0:
      return {2048, 0, 128, 128};
    case WEFT_TYPE_Q4_0:
      return {1024, 0, 128, 128};
    case WEFT_TYPE_Q5_0:
      return {1024, 256, 128, 128};
    case WEFT_TYPE_MXFP4:
      return {1024, 0, 64, 128};
    case WEFT_TYPE_Q5_1:
      return {1024, 256, 256, 128};
    case WEFT_TYPE_H4_IQ4:
      return {1024, 0, 256, 128};
    case WEFT_TYPE_Q4_K:
      return {1024, 0, 256, 256};
    case WEFT_TYPE_Q5_K:
      return {1024, 256, 256, 256};
    case WEFT_TYPE_S4_IQ4:
    case WEFT_TYPE_Q2_K:
      return {1024, 0, 320, 256};
    case WEFT_TYPE_Q6_K:
      return {1024, 512, 288, 256};
    default:
      return {0, 0, 0, 128};
  }
}

__host__ __device__ constexpr uint32_t packed_unit_bytes(packed_shape f) {
  return f.unit / 128 * (f.codes + f.high) + f.scales;
}

/* Bits of a code without its high bits. */
__host__ __device__ constexpr uint32_t packed_bits(int type) {
  return type == WEFT_TYPE_F16 || type == WEFT_TYPE_BF16 ? 16 : type == WEFT_TYPE_Q8_0 ? 8 : 4;
}

/* Whether products are made in bf16. All other types are multiplied in f16, whose range is too small for these two. */
__host__ __device__ constexpr bool packed_is_bf16(int type) {
  return type == WEFT_TYPE_BF16 || type == WEFT_TYPE_MXFP4;
}

/* Codes of five bits, of which one is a high bit. */
__host__ __device__ constexpr bool packed_has_fifth_bit(int type) {
  return packed_shape_of(type).high == 256;
}
/* Six-bit scales and minima of thirty-two elements each (Q4_K, Q5_K). */
__host__ __device__ constexpr bool packed_is_k(int type) {
  return packed_shape_of(type).unit == 256 && packed_shape_of(type).scales == 256;
}
/* Split forms: a scale for every sixteen elements. */
__host__ __device__ constexpr bool packed_is_split(int type) {
  return packed_shape_of(type).scales > 256 || packed_type(type) == WEFT_TYPE_H4_IQ4;
}
/* Codes stand for values of a table. */
__host__ __device__ constexpr bool packed_has_table(int type) {
  return packed_type(type) == WEFT_TYPE_S4_IQ4 || packed_type(type) == WEFT_TYPE_H4_IQ4;
}

/* The values that a type's codes stand for, each plus 128: that of code i is byte i. */
typedef struct value_table {
  uint32_t word[4];
} value_table;

static inline value_table value_table_of(int type) {
  const weft_type_info *info = weft_type_find(type);
  value_table table = {{0, 0, 0, 0}};
  for (uint32_t i = 0; i < WEFT_TYPE_VALUES && info != NULL && info->values != NULL; i++)
    table.word[i / 4] |= ((uint32_t)(uint8_t)info->values[i] ^ 0x80u) << (8 * (i % 4));
  return table;
}

/* How a weight is cut into row tiles and units: a function of its type, n_in and n_out. */
typedef struct packed_dims {
  uint32_t n_units;    /* of 128 inputs; the last may hold 64 */
  uint32_t is_tail;    /* the last one does */
  uint32_t tile_bytes; /* of a row tile */
  uint32_t n_tiles;    /* of a matrix */
} packed_dims;

__host__ __device__ inline packed_dims packed_dims_of(int type, uint32_t n_in, uint32_t n_out) {
  packed_shape f = packed_shape_of(type);
  packed_dims cut;
  uint32_t rest = n_in % 128;
  cut.n_units = n_in / 128 + (rest != 0 ? 1u : 0u);
  cut.is_tail = f.unit == 128 && rest != 0 && rest <= 64 ? 1u : 0u;
  uint32_t n_whole = (cut.n_units - cut.is_tail) * 128 / f.unit;
  cut.tile_bytes = n_whole * packed_unit_bytes(f) + cut.is_tail * (packed_unit_bytes(f) / 2);
  cut.n_tiles = (n_out + 15) / 16;
  return cut;
}

/* Where 128 inputs of a row tile lie. half: which half of a super-block they are. */
typedef struct packed_block {
  const uint8_t *codes, *high, *scales;
  uint32_t half;
  bool tail;
} packed_block;

template <int T>
static __device__ __forceinline__ packed_block packed_block_of(const uint8_t *row_tile, uint32_t unit, bool tail) {
  constexpr packed_shape f = packed_shape_of(T);
  packed_block p;
  p.half = f.unit == 256 ? unit & 1u : 0u;
  p.tail = f.unit == 128 && tail;
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
  return p;
}

/* ---- what a lane holds of 128 inputs -------------------------------------------------------------------- */

template <int T>
struct lane_codes {
  static constexpr int N = packed_bits(T) == 16 ? 8 : packed_bits(T) == 8 ? 4 : 2;
  uint4 code[N];    /* 16 bits: [i][row half]; 8 bits: [q][row half]; 4 bits: [row half] */
  uint32_t high[4]; /* 1 bit: [row half]; 2 bits: [row half][2] */
};

template <int T>
static __device__ __forceinline__ void load_codes(const packed_block &p, uint32_t lane, lane_codes<T> &out) {
  constexpr int bits = packed_bits(T), n = lane_codes<T>::N;
  if (bits == 4 && p.tail) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint2 v = *(const uint2 *)(const void *)(p.codes + h * 256 + lane * 8);
      out.code[h] = make_uint4(v.x, v.y, 0, 0);
    }
  } else {
#pragma unroll
    for (int i = 0; i < n; i++) {
      if (p.tail && i >= n / 2) {
        out.code[i] = make_uint4(0, 0, 0, 0);
      } else {
        out.code[i] = *(const uint4 *)(const void *)(p.codes + i * 512 + lane * 16);
      }
    }
  }
  if (T == WEFT_TYPE_Q6_K) {
    uint4 v = *(const uint4 *)(const void *)(p.high + lane * 16);
    out.high[0] = v.x, out.high[1] = v.y, out.high[2] = v.z, out.high[3] = v.w;
  } else if (packed_shape_of(T).high > 0) {
    if (p.tail) {
      uint32_t v = *(const uint32_t *)(const void *)(p.high + lane * 4);
      out.high[0] = (v & 0xFFu) | (v & 0xFF00u) << 8;
      out.high[1] = (v >> 16 & 0xFFu) | (v >> 8 & 0xFF0000u);
    } else {
      uint2 v = *(const uint2 *)(const void *)(p.high + lane * 8);
      out.high[0] = v.x, out.high[1] = v.y;
    }
  }
}

static __device__ __forceinline__ __half2 as_half2(uint32_t v) {
  return *reinterpret_cast<__half2 *>(&v);
}
static __device__ __forceinline__ uint32_t of_half2(__half2 v) {
  return *reinterpret_cast<uint32_t *>(&v);
}
static __device__ __forceinline__ __nv_bfloat162 as_bf162(uint32_t v) {
  return *reinterpret_cast<__nv_bfloat162 *>(&v);
}
static __device__ __forceinline__ uint32_t of_bf162(__nv_bfloat162 v) {
  return *reinterpret_cast<uint32_t *>(&v);
}

/* ---- scales --------------------------------------------------------------------------------------------- */

/* The stored scales of a lane's rows g and g + 8. */
template <int T>
struct lane_scales {
  uint4 row[packed_is_k(T) ? 2 : 1];
};

template <int T>
static __device__ __forceinline__ void load_scales(const packed_block &p, uint32_t g, uint32_t c, lane_scales<T> &out) {
  if (packed_bits(T) == 16) return;
  if constexpr (packed_is_k(T)) {
    out.row[0] = *(const uint4 *)(const void *)(p.scales + g * 16);
    out.row[1] = *(const uint4 *)(const void *)(p.scales + (g + 8) * 16);
  } else if constexpr (T == WEFT_TYPE_Q6_K) {
    uint32_t at = 8 * p.half + 2 * c;
    out.row[0].x = *(const uint16_t *)(const void *)(p.scales + g * 16 + at);
    out.row[0].y = *(const uint16_t *)(const void *)(p.scales + (g + 8) * 16 + at);
    out.row[0].z = *(const uint16_t *)(const void *)(p.scales + 256 + g * 2);
    out.row[0].w = *(const uint16_t *)(const void *)(p.scales + 256 + (g + 8) * 2);
  } else if constexpr (packed_shape_of(T).unit == 256) { /* S4, Q2_K */
    uint32_t at = 8 * p.half + 2 * c;
    out.row[0].x = *(const uint16_t *)(const void *)(p.scales + g * 16 + at);
    out.row[0].y = *(const uint16_t *)(const void *)(p.scales + (g + 8) * 16 + at);
    out.row[0].z = *(const uint32_t *)(const void *)(p.scales + 256 + g * 4);
    out.row[0].w = *(const uint32_t *)(const void *)(p.scales + 256 + (g + 8) * 4);
  } else if constexpr (packed_shape_of(T).scales == 256) { /* Q5_1, H4: two numbers of each row */
    uint2 v = *(const uint2 *)(const void *)(p.scales + (p.tail ? g * 16 + c / 2 * 8 : (g * 4 + c) * 8));
    uint32_t shift = T == WEFT_TYPE_H4_IQ4 && p.tail ? c % 2 * 16 : 0; /* of 64 inputs a lane has sixteen */
    out.row[0].x = v.x >> shift, out.row[0].y = v.y >> shift;
  } else if constexpr (T == WEFT_TYPE_MXFP4) {
    uint32_t at = p.tail ? g * 4 + c / 2 * 2 : (g * 4 + c) * 2;
    out.row[0].x = *(const uint16_t *)(const void *)(p.scales + at);
  } else {
    uint32_t at = p.tail ? g * 8 + c / 2 * 4 : (g * 4 + c) * 4;
    out.row[0].x = *(const uint32_t *)(const void *)(p.scales + at);
  }
}

/* The factors of a lane's elements, which make value = scale * code + least. of[r][0] is scale | least << 16 of row
 * half r, both rounded to f16; of[r][1] is that of the second sixteen elements in split forms, the others have one pair
 * for all 32. A code is used as the bits of a subnormal f16, which is 2^-24 times the code, and the scale is 2^24 times
 * as large: so codes need no conversion. MXFP4: the scale twice, in bf16. values: only in forms that have them. */
struct dequant_factors {
  uint32_t of[2][2];
  value_table values;
};

/* The f16 with these bits as f32. */
static __device__ __forceinline__ float half_bits(uint32_t bits) {
  return __half2float(__ushort_as_half((unsigned short)bits));
}

/* Scale and least of block 4 half + c (of 32 elements) in a super-block of Q4_K or Q5_K as a pair of f16: the scale,
 * and 2^-10 times the least. They are stored as six bits each, in words y, z and w of `row`. */
static __device__ __forceinline__ uint32_t super_scale(const uint4 &row, uint32_t half, uint32_t c) {
  uint32_t pick = 0x0400u + 0x0101u * c, bytes = __byte_perm(row.y, row.z, pick), magic = 0x3C006400u; /* 1024; 1 */
  uint32_t bits = (bytes & 0x003F003Fu) | magic;
  if (half != 0) bits = (__byte_perm(row.w, row.w >> 4, pick) & 0x000F000Fu) | (bytes >> 2 & 0x00300030u) | magic;
  return of_half2(__hsub2(as_half2(bits), as_half2(magic)));
}

/* 2^n of a normal number. */
static __device__ __forceinline__ float power_of_two(int n) {
  return __int_as_float((n + 127) << 23);
}

/* The powers of two that stored scales and leasts are multiplied by. All values of a weight are raised by 2^raise
 * (prescale_exponent), and scales by another 2^24, because a code counts as 2^-24 of itself. first and second do this to a
 * pair of f16, in two multiplications, since one power could lie outside f16 (2^-24 to 2^15). In most types the pair is
 * two scales: those of a lane's two rows or (H4) of a row's two sixteens. In Q5_1 it is a scale and a least, which is
 * multiplied by 2^raise. In Q4_K and Q5_K the least is multiplied by -2^(raise + 10): it is subtracted, and super_scale
 * gives 2^-10 of it. */
typedef struct prescale_powers {
  float prescale;
  uint32_t first, second;
  value_table values;
} prescale_powers;

template <int T>
static __device__ __forceinline__ prescale_powers powers_of(int prescale, const value_table &values) {
  int scale = prescale + 24, zero_point = packed_is_k(T) ? prescale + 10 : T == WEFT_TYPE_Q5_1 ? prescale : scale;
  int first = max(-14, min(zero_point, 15));
  float high = power_of_two(first);
  return {power_of_two(prescale), pair_f16(power_of_two(min(scale, 15)), packed_is_k(T) ? -high : high),
          pair_f16(power_of_two(max(scale - 15, 0)), power_of_two(zero_point - first)), values};
}

/* Exact, unless the result is subnormal in f16: it is then rounded once. */
static __device__ __forceinline__ uint32_t apply_prescale(uint32_t pair, const prescale_powers &powers) {
  return of_half2(__hmul2(__hmul2(as_half2(pair), as_half2(powers.first)), as_half2(powers.second)));
}

/* The factors of that block. */
static __device__ __forceinline__ uint32_t super_factors(const uint4 &row, uint32_t half, uint32_t c,
                                                         const prescale_powers &powers) {
  return of_half2(__hmul2(as_half2(super_scale(row, half, c)), as_half2(apply_prescale(row.x, powers))));
}

/* What a scale is multiplied by to make the least of codes that stand for code - offset: -offset * 2^-24, twice. It is
 * exact in f16. */
template <int T>
static __device__ __forceinline__ uint32_t offset_pair(void) {
  constexpr uint32_t offset = T == WEFT_TYPE_Q6_K ? 32 : T == WEFT_TYPE_Q4_0 ? 8 : T == WEFT_TYPE_Q5_0 ? 16 : 128;
  return (0x8000u | offset) * 0x10001u;
}

/* The same from a scale in f32, which is rounded to f16 first. */
static __device__ __forceinline__ uint32_t offset_factors(float step, float offset) {
  float rounded = __half2float(__float2half_rn(step));
  return pair_f16(rounded, rounded * (-offset * 0x1p-24f));
}

/* Q2_K: the factors of sixteen elements. d: the two f16 of their super-block; byte: four bits of scale, four of
 * minimum. */
static __device__ __forceinline__ uint32_t pair_scales(uint32_t d, uint32_t byte, float prescale) {
  float scale = half_bits(d & 0xFFFFu) * (prescale * 0x1p24f) * (float)(byte & 15u);
  return pair_f16(scale, half_bits(d >> 16) * -prescale * (float)(byte >> 4));
}

/* An e8m0 scale as bf16: 2^(e - 127). e is the exponent of the bf16, but for 0, the subnormal 2^-127, and 255, NaN. */
static __device__ __forceinline__ uint32_t mx_scale(uint32_t e) {
  return e == 0 ? 0x0040u : e == 255 ? 0x7FC0u : e << 7;
}

/* Makes the factors of a lane's elements. powers: of the weight's prescale_exponent, which puts its largest scale near the
 * top of the range of f16. */
template <int T>
static __device__ __forceinline__ void make_dequant_factors(const lane_scales<T> &in, uint32_t half, uint32_t c,
                                                            const prescale_powers &powers, dequant_factors &out) {
  if constexpr (packed_has_table(T)) out.values = powers.values;
  if constexpr (packed_is_k(T)) {
#pragma unroll
    for (int r = 0; r < 2; r++) out.of[r][0] = super_factors(in.row[r], half, c, powers);
  } else if constexpr (T == WEFT_TYPE_Q6_K) {
    float up = powers.prescale * 0x1p24f, d[2] = {half_bits(in.row[0].z) * up, half_bits(in.row[0].w) * up};
    uint32_t s[2] = {in.row[0].x, in.row[0].y};
#pragma unroll
    for (int r = 0; r < 2; r++) {
      out.of[r][0] = offset_factors(d[r] * (float)(int8_t)(s[r] & 0xFFu), 32.0f);
      out.of[r][1] = offset_factors(d[r] * (float)(int8_t)(s[r] >> 8), 32.0f);
    }
  } else if constexpr (T == WEFT_TYPE_S4_IQ4) {
    float up = powers.prescale * 0x1p24f, d[2] = {__uint_as_float(in.row[0].z) * up, __uint_as_float(in.row[0].w) * up};
    uint32_t s[2] = {in.row[0].x, in.row[0].y};
#pragma unroll
    for (int r = 0; r < 2; r++) {
      out.of[r][0] = offset_factors(d[r] * (float)(int8_t)(s[r] & 0xFFu), 128.0f);
      out.of[r][1] = offset_factors(d[r] * (float)(int8_t)(s[r] >> 8), 128.0f);
    }
  } else if constexpr (T == WEFT_TYPE_Q2_K) {
    uint32_t s[2] = {in.row[0].x, in.row[0].y}, d[2] = {in.row[0].z, in.row[0].w};
#pragma unroll
    for (int r = 0; r < 2; r++) {
      out.of[r][0] = pair_scales(d[r], s[r] & 0xFFu, powers.prescale);
      out.of[r][1] = pair_scales(d[r], s[r] >> 8, powers.prescale);
    }
  } else if constexpr (T == WEFT_TYPE_Q5_1) {
    out.of[0][0] = apply_prescale(in.row[0].x, powers);
    out.of[1][0] = apply_prescale(in.row[0].y, powers);
  } else if constexpr (T == WEFT_TYPE_H4_IQ4) {
    uint32_t rows[2] = {in.row[0].x, in.row[0].y};
#pragma unroll
    for (int r = 0; r < 2; r++) {
      uint32_t steps = apply_prescale(rows[r], powers); /* of both halves */
      uint32_t zero_point = of_half2(__hmul2(as_half2(steps), as_half2(offset_pair<T>())));
      out.of[r][0] = __byte_perm(steps, zero_point, 0x5410);
      out.of[r][1] = __byte_perm(steps, zero_point, 0x7632);
    }
  } else if constexpr (T == WEFT_TYPE_MXFP4) {
#pragma unroll
    for (int r = 0; r < 2; r++) out.of[r][0] = mx_scale(in.row[0].x >> (8 * r) & 0xFFu) * 0x10001u;
  } else if constexpr (packed_bits(T) != 16) {
    uint32_t steps = apply_prescale(in.row[0].x, powers); /* of both rows */
    uint32_t zero_point = of_half2(__hmul2(as_half2(steps), as_half2(offset_pair<T>())));
    out.of[0][0] = __byte_perm(steps, zero_point, 0x5410);
    out.of[1][0] = __byte_perm(steps, zero_point, 0x7632);
  }
}

/* ---- values --------------------------------------------------------------------------------------------- */

/* Two codes of MXFP4 (e2m1: a sign, two bits of exponent, one of mantissa), in the low four bits of each half, as bf16
 * values times their scale. The bits of a code become those of a bf16, whose exponent is then too small by 126. Both
 * products are exact. */
static __device__ __forceinline__ uint32_t mx_pair(uint32_t code, uint32_t scale) {
  uint32_t bits = (code & 0x00070007u) << 6 | (code & 0x00080008u) << 12;
  __nv_bfloat162 scaled = __hmul2(as_bf162(bits), as_bf162(0x7E807E80u)); /* 2^126 */
  return of_bf162(__hmul2(scaled, as_bf162(scale)));
}

/* scale * code + least of two codes, rounded once. */
static __device__ __forceinline__ uint32_t dequantise_pair(uint32_t codes, uint32_t scale, uint32_t zero_point) {
  return of_half2(__hfma2(as_half2(codes), as_half2(scale), as_half2(zero_point)));
}

/* The low or the high half of a pair, twice. This costs nothing: the instruction that reads the pair selects halves. */
static __device__ __forceinline__ uint32_t low_twice(uint32_t pair) {
  return of_half2(__low2half2(as_half2(pair)));
}
static __device__ __forceinline__ uint32_t high_twice(uint32_t pair) {
  return of_half2(__high2half2(as_half2(pair)));
}

static __device__ __forceinline__ uint32_t word_of(const uint4 &v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* bits << n; n may be negative. */
static __device__ __forceinline__ uint32_t shift_bits(uint32_t bits, int n) {
  return n >= 0 ? bits << n : bits >> -n;
}

/* The values of the eight codes of a word, plus 128, as four pairs. Three bits of a code pick a byte out of each half
 * of the table; the fourth bit chooses between these two. */
static __device__ __forceinline__ void look_up(const value_table &values, uint32_t word, uint32_t (&out)[4]) {
  uint32_t three = word & 0x77777777u, half = (word & 0x88888888u) >> 1 | 0x32103210u, bytes[2];
#pragma unroll
  for (int i = 0; i < 2; i++) { /* even elements, odd ones */
    uint32_t low = __byte_perm(values.word[0], values.word[1], three >> (16 * i));
    uint32_t high = __byte_perm(values.word[2], values.word[3], three >> (16 * i));
    bytes[i] = __byte_perm(low, high, half >> (16 * i));
  }
#pragma unroll
  for (int p = 0; p < 4; p++) out[p] = __byte_perm(bytes[0], bytes[1], 0x0400u + 0x0101u * p) & 0x00FF00FFu;
}

/* Elements 8 i .. 8 i + 7 of row half r as four pairs of 16-bit numbers. */
template <int T>
static __device__ __forceinline__ void dequantise_values(const lane_codes<T> &in, const dequant_factors &f, int i,
                                                         int r, uint32_t (&out)[4]) {
  constexpr int bits = packed_bits(T);
  if (bits == 16) {
    const uint4 &v = in.code[2 * i + r];
    out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
    return;
  }
  uint32_t factors = f.of[r][packed_is_split(T) ? i / 2 : 0], scale = low_twice(factors),
           zero_point = high_twice(factors);
  if (bits == 8) {
    const uint4 &v = in.code[i / 2 * 2 + r];
#pragma unroll
    for (int w = 0; w < 2; w++) {
      uint32_t codes = word_of(v, i % 2 * 2 + w) ^ 0x80808080u;
      out[2 * w] = dequantise_pair(__byte_perm(codes, 0, 0x4140), scale, zero_point);
      out[2 * w + 1] = dequantise_pair(__byte_perm(codes, 0, 0x4342), scale, zero_point);
    }
    return;
  }
  uint32_t word = word_of(in.code[r], i);
  if (T == WEFT_TYPE_MXFP4) {
#pragma unroll
    for (int p = 0; p < 4; p++) out[p] = mx_pair(word >> (4 * p) & 0x000F000Fu, factors);
    return;
  }
  if (packed_has_table(T)) {
    uint32_t codes[4];
    look_up(f.values, word, codes);
#pragma unroll
    for (int p = 0; p < 4; p++) out[p] = dequantise_pair(codes[p], scale, zero_point);
    return;
  }
  /* codes of odd pairs stay four bits higher and meet a sixteenth of the scale, which saves a shift */
  uint32_t low_scale = of_half2(__hmul2(as_half2(scale), as_half2(0x2C002C00u)));
#pragma unroll
  for (int p = 0; p < 4; p++) {
    const int up = p % 2 * 4;
    uint32_t code = (p < 2 ? word : word >> 8) & 0x000F000Fu << up;
    if (packed_has_fifth_bit(T)) code |= shift_bits(in.high[r], 4 + up - (4 * i + p)) & 0x00100010u << up;
    if (T == WEFT_TYPE_Q6_K)
      code |= shift_bits(in.high[2 * r + i / 2], 4 + up - 2 * (4 * (i % 2) + p)) & 0x00300030u << up;
    out[p] = dequantise_pair(code, p % 2 == 0 ? scale : low_scale, zero_point);
  }
}

/* Operands of products 2 i and 2 i + 1 of the 128 inputs. */
template <int T>
static __device__ __forceinline__ void dequantise_operands(const lane_codes<T> &in, const dequant_factors &f, int i,
                                                           uint32_t (&out)[2][4]) {
  uint32_t low[4], high[4]; /* rows g and g + 8 */
  dequantise_values<T>(in, f, i, 0, low);
  dequantise_values<T>(in, f, i, 1, high);
#pragma unroll
  for (int j = 0; j < 2; j++) {
    out[j][0] = low[2 * j];
    out[j][1] = high[2 * j];
    out[j][2] = low[2 * j + 1];
    out[j][3] = high[2 * j + 1];
  }
}

/* Eight numbers in 16 bits each, rounded to nearest even. */
template <bool BF16>
static __device__ __forceinline__ uint4 pack_f16x8(const float (&v)[8]) {
  if (BF16) {
    return make_uint4(pair_bf16(v[0], v[1]), pair_bf16(v[2], v[3]), pair_bf16(v[4], v[5]), pair_bf16(v[6], v[7]));
  }
  return make_uint4(pair_f16(v[0], v[1]), pair_f16(v[2], v[3]), pair_f16(v[4], v[5]), pair_f16(v[6], v[7]));
}

/* The exponent of the power of two that takes a row's largest magnitude (given as f32 bits) into [2^14, 2^15), near the
 * top of f16; at most 100 either way. */
static __device__ __forceinline__ int scale_exponent_of(uint32_t most_bits) {
  if (most_bits == 0 || most_bits >= 0x7F800000u) return 0; /* zeros; or a row with inf or NaN */
  int scale_exponent = 14 - ilogbf(__uint_as_float(most_bits));
  return max(-100, min(100, scale_exponent));
}

/* The exponent of the power of two that a weight's values are raised by: 2^24 times its largest scale becomes about
 * 2^14. It is at most 6, so that apply_prescale needs no more than two powers. */
static __device__ __forceinline__ int prescale_exponent(int type, const packed_header *header) {
  float most = __uint_as_float(header->max_scale), zero_point = __uint_as_float(header->max_zero_point);
  switch (packed_type(type)) {
    case WEFT_TYPE_Q8_0:
    case WEFT_TYPE_Q4_0:
    case WEFT_TYPE_Q5_0:
    case WEFT_TYPE_Q5_1:
    case WEFT_TYPE_H4_IQ4:
      break;
    case WEFT_TYPE_Q2_K:
      most *= 15.0f, zero_point *= 15.0f;
      break;
    case WEFT_TYPE_S4_IQ4:
      most *= 128.0f;
      break;
    case WEFT_TYPE_Q4_K:
    case WEFT_TYPE_Q5_K:
      most *= 63.0f;
      break;
    case WEFT_TYPE_Q6_K:
      most *= 128.0f;
      break;
    default:
      return 0;
  }
  most =
      fmaxf(most, zero_point * 0x1p-14f); /* a raised least stays below 2^5: in super_factors it is 2^10 times that */
  if (!(most > 0.0f) || isinf(most)) return 0;
  return min(-10 - ilogbf(most), 6);
}

/* ---- host: code for a type that is known when it runs ------------------------------------------------------ */

/* Calls run(c), where decltype(c)::value is the type whose form `type` has. UNSUPPORTED: the type is not packed. */
template <class F>
static weft_status dispatch_packed_type(int type, F &&run) {
  switch (packed_type(type)) {
    case WEFT_TYPE_F16:
      return run(std::integral_constant<int, WEFT_TYPE_F16>());
    case WEFT_TYPE_BF16:
      return run(std::integral_constant<int, WEFT_TYPE_BF16>());
    case WEFT_TYPE_Q8_0:
      return run(std::integral_constant<int, WEFT_TYPE_Q8_0>());
    case WEFT_TYPE_Q4_0:
      return run(std::integral_constant<int, WEFT_TYPE_Q4_0>());
    case WEFT_TYPE_Q5_0:
      return run(std::integral_constant<int, WEFT_TYPE_Q5_0>());
    case WEFT_TYPE_MXFP4:
      return run(std::integral_constant<int, WEFT_TYPE_MXFP4>());
    case WEFT_TYPE_Q4_K:
      return run(std::integral_constant<int, WEFT_TYPE_Q4_K>());
    case WEFT_TYPE_Q5_K:
      return run(std::integral_constant<int, WEFT_TYPE_Q5_K>());
    case WEFT_TYPE_Q6_K:
      return run(std::integral_constant<int, WEFT_TYPE_Q6_K>());
    case WEFT_TYPE_Q5_1:
      return run(std::integral_constant<int, WEFT_TYPE_Q5_1>());
    case WEFT_TYPE_Q2_K:
      return run(std::integral_constant<int, WEFT_TYPE_Q2_K>());
    case WEFT_TYPE_H4_IQ4:
      return run(std::integral_constant<int, WEFT_TYPE_H4_IQ4>());
    case WEFT_TYPE_S4_IQ4:
      return run(std::integral_constant<int, WEFT_TYPE_S4_IQ4>());
    default:
      return WEFT_E_UNSUPPORTED;
  }
}

/* Calls run for every form, up to the first that fails. */
template <class F>
static weft_status each_packed_type(F &&run) {
  static const int types[] = {WEFT_TYPE_F16,   WEFT_TYPE_BF16,   WEFT_TYPE_Q8_0,  WEFT_TYPE_Q4_0, WEFT_TYPE_Q5_0,
                              WEFT_TYPE_MXFP4, WEFT_TYPE_Q4_K,   WEFT_TYPE_Q5_K,  WEFT_TYPE_Q6_K, WEFT_TYPE_Q5_1,
                              WEFT_TYPE_Q2_K,  WEFT_TYPE_H4_IQ4, WEFT_TYPE_S4_IQ4};
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < sizeof types / sizeof types[0] && status == WEFT_OK; i++)
    status = dispatch_packed_type(types[i], run);
  return status;
}

#endif
