/* SPDX-License-Identifier: MIT */
/* Dequantisation in registers: how a warp makes 16-bit operands of mma and wgmma from packed codes
 * (packed_layout.cuh).
 *
 * A lane loads the codes and scales of 128 inputs of its rows (load_codes, load_scales), makes a scale and a zero
 * point of each block (make_dequant_factors), and then eight numbers at a time by fused multiply-adds on pairs of f16
 * (dequantise_values, dequantise_operands). A code is used as the bits of a subnormal f16, so none is converted.
 *
 * Prescale: a weight's values are multiplied by a power of two that puts its largest scale near the top of f16's range
 * (prescale_exponent), and the epilogue undoes it.
 *
 * Law: a scale and a zero point are rounded to f16 once (of MXFP4 to bf16), and scale * code + zero point is rounded
 * once. */
#ifndef WEFT_KERNELS_CUDA_DEQUANTISE_CUH
#define WEFT_KERNELS_CUDA_DEQUANTISE_CUH

#include "kernels/cuda/weights/packed_layout.cuh"

/* ---- what a lane holds of 128 inputs -------------------------------------------------------------------- */

template <int T>
struct lane_codes {
  static constexpr int N = packed_bits(T) == 16 ? 8 : packed_bits(T) == 8 ? 4 : 2;
  uint4 code[N];    /* 16 bits: [i][row half]; 8 bits: [q][row half]; 4 bits: [row half] */
  uint32_t high[4]; /* 1 bit: [row half]; 2 bits: [row half][2] */
};

/* Words of 4 bits of codes that are stored with two, and, where T has them, a third in `third`. */
template <int T>
static __device__ __forceinline__ uint4 widen_codes(uint2 two, uint32_t third) {
  uint4 out = make_uint4(two.x & 0x33333333u, two.x >> 2 & 0x33333333u, two.y & 0x33333333u, two.y >> 2 & 0x33333333u);
  if (packed_has_third_bit(T)) {
    out.x |= third << 2 & 0x44444444u, out.y |= third << 1 & 0x44444444u;
    out.z |= third & 0x44444444u, out.w |= third >> 1 & 0x44444444u;
  }
  return out;
}

template <int T>
static __device__ __forceinline__ void load_narrow_codes(const packed_block &p, uint32_t lane, lane_codes<T> &out) {
  uint2 third = make_uint2(0, 0);
  if (packed_has_third_bit(T)) third = *(const uint2 *)(const void *)(p.high + lane * 8);
  out.code[0] = widen_codes<T>(*(const uint2 *)(const void *)(p.codes + lane * 8), third.x);
  out.code[1] = widen_codes<T>(*(const uint2 *)(const void *)(p.codes + 256 + lane * 8), third.y);
}

template <int T>
static __device__ __forceinline__ void load_codes(const packed_block &p, uint32_t lane, lane_codes<T> &out) {
  constexpr int bits = packed_bits(T), n = lane_codes<T>::N;
  if constexpr (packed_is_narrow(T)) {
    load_narrow_codes<T>(p, lane, out);
    return;
  }
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
  } else if constexpr (packed_shape_of(T).unit == 256) { /* S4, S3, Q2_K */
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

/* The factors of a lane's elements, which make value = scale * code + zero point. of[r][0] is scale | zero point <<
 * 16 of row half r, both rounded to f16; of[r][1] is that of the second sixteen elements in split layouts, the
 * others have one pair for all 32. A code is used as the bits of a subnormal f16, which is 2^-24 times the code, and
 * the scale is 2^24 times as large: so codes need no conversion. MXFP4: the scale twice, in bf16. values: only in
 * layouts that have them. */
struct dequant_factors {
  uint32_t of[2][2];
  value_table values;
};

/* The f16 with these bits as f32. */
static __device__ __forceinline__ float half_bits(uint32_t bits) {
  return __half2float(__ushort_as_half((unsigned short)bits));
}

/* Scale and zero point of block 4 half + c (of 32 elements) in a super-block of Q4_K or Q5_K as a pair of f16: the
 * scale, and 2^-10 times the zero point. They are stored as six bits each, in words y, z and w of `row`. */
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

/* The powers of two that stored scales and zero points are multiplied by. All values of a weight are multiplied by
 * 2^prescale (prescale_exponent), and scales by another 2^24, because a code counts as 2^-24 of itself. first and
 * second do this to a pair of f16, in two multiplications, since one power could lie outside f16 (2^-24 to 2^15). In
 * most types the pair is two scales: those of a lane's two rows or (H4) of a row's two sixteens. In Q5_1 it is a
 * scale and a zero point, which is multiplied by 2^prescale. In Q4_K and Q5_K the zero point is multiplied by
 * -2^(prescale + 10): it is subtracted, and super_scale gives 2^-10 of it. */
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

/* What a scale is multiplied by to make the zero point of codes that stand for code - offset: -offset * 2^-24,
 * twice. It is exact in f16. */
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

/* Makes the factors of a lane's elements. powers: of the weight's prescale_exponent, which puts its largest scale
 * near the top of the range of f16. */
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
  } else if constexpr (packed_is_s(T)) {
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

/* Both fourth pairs of two words of MXFP4 (mx_place): that of the first word as a bf16 has it, that of the second three
 * bits lower. */
static __device__ __forceinline__ uint32_t mx_fourths(uint32_t first, uint32_t second) {
  return (first >> 6 & 0x01B001B0u) | (second << 1 & 0x90009000u) | (second >> 7 & 0x00480048u);
}

/* Pair p of a word of MXFP4 (e2m1: a sign, two bits of exponent, one of mantissa) as the bits of two bf16, whose
 * exponents are too small by 126. fourths: mx_fourths; is_second: the word is the second one. */
static __device__ __forceinline__ uint32_t mx_bits_of(uint32_t word, uint32_t fourths, bool is_second, int p) {
  const uint32_t from = p < 3 ? word << (3 * p) : is_second ? fourths << 3 : fourths;
  return from & 0x81C081C0u;
}

/* Such a pair as bf16 values times their scale. Both products are exact. */
static __device__ __forceinline__ uint32_t mx_pair(uint32_t bits, uint32_t scale) {
  __nv_bfloat162 scaled = __hmul2(as_bf162(bits), as_bf162(0x7E807E80u)); /* 2^126 */
  return of_bf162(__hmul2(scaled, as_bf162(scale)));
}

/* scale * code + zero point of two codes, rounded once. */
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
    const uint32_t fourths = mx_fourths(word_of(in.code[r], i / 2 * 2), word_of(in.code[r], i / 2 * 2 + 1));
#pragma unroll
    for (int p = 0; p < 4; p++) out[p] = mx_pair(mx_bits_of(word, fourths, i % 2 != 0, p), factors);
    return;
  }
  if (packed_has_table(T)) {
    uint32_t codes[4];
    look_up(f.values, word, codes);
#pragma unroll
    for (int p = 0; p < 4; p++) out[p] = dequantise_pair(codes[p], scale, zero_point);
    return;
  }
  /* codes of odd pairs stay four bits higher and are multiplied by a sixteenth of the scale, which saves a shift */
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

/* The exponent of the power of two that a weight's values are multiplied by: 2^24 times its largest scale becomes about
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
    case WEFT_TYPE_S3_Q3:
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
  most = fmaxf(
      most, zero_point * 0x1p-14f); /* a prescaled zero point stays below 2^5: in super_factors it is 2^10 times that */
  if (!(most > 0.0f) || isinf(most)) return 0;
  return min(-10 - ilogbf(most), 6);
}

#endif
