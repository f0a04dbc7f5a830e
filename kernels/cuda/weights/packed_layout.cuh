/* SPDX-License-Identifier: MIT */
/* The packed layout of weights: how a weight lies on the card. dequantise.cuh makes numbers of it.
 *
 * A quantised weight is stored as codes, which are small integers: value = scale * code + zero point. (The zero point
 * is counted in values here, not in codes; ggml calls it the minimum, and it is 0 in many types.) A scale and a zero
 * point belong to 16 or 32 neighbouring inputs of a row. Types of the K family have super-blocks of 256 inputs, whose
 * scales and zero points are small integers too and share one float each. F16 and BF16 numbers count as codes of 16
 * bits.
 *
 * The packed layout has the integers and scales of the file, interleaved for loads of 16 bytes and for the register
 * fragments of mma and wgmma, so that no kernel shuffles them:
 *
 *   weight     256 bytes of header, then row tiles (16 rows of one matrix; missing rows are zeros)
 *   row tile   units of 256 inputs (types with super-blocks) or of 128, ascending. A last unit of 128 holds only 64
 *              inputs, the "tail", when at most 64 are left; missing inputs are zeros
 *   unit       codes | high bits | scales
 *
 * Lane 4 g + c of a warp (g < 8, c < 4) has rows g and g + 8 of a row tile, which are its row halves. Of each 128
 * inputs it has the 32 from 32 c on, of a tail the 16 from 16 c on; below they are the lane's elements. So product j
 * of 16 x 16 takes inputs 32 c + 4 j + {0, 1, 2, 3} of all four c. This order of inputs is the same in every kernel,
 * and it is part of the numerics.
 *
 *   codes      16 bits  [i < 4][row half][lane][8 elements]
 *               8 bits  [q < 2][row half][lane][16 elements]
 *               4 bits  [row half][lane][32 elements]; of the 8 elements of a word, 2 p is at bit 4 p and 2 p + 1 at
 *                       bit 16 + 4 p
 *               MXFP4   the same words, with bits in other places (mx_place), so that fewer instructions make
 *                       operands of them
 *               2 bits  [row half][lane][2 words]: two words of 4 bits in one, of which the first has the low and the
 *                       second the high two bits of each four; so a mask makes words of 4 bits of them
 *   high bits  1 bit    [lane][row half][32 bits]: element 2 p at bit p, 2 p + 1 at bit 16 + p (tail: 8 + p)
 *               2 bits  [lane][row half][2 words of 16 elements]: 2 p at 2 p, 2 p + 1 at 16 + 2 p
 *             S3: 1 bit   [lane][row half][4 words of 4 bits in one]: bit i of each four is the third bit of word i
 *   scales     of 32    [lane][row half] (tail: [g][c / 2][row half]): f16; MXFP4: e8m0; Q5_1, H4: two f16 super
 *              [row] 16 bytes as in the file (Q6_K: the 16 scales, then [row] its f16; S4 and S3: the same
 *                       with an f32; Q2_K: the 16 bytes of scales and minima, then [row] its two f16)
 *
 * Types share a packed layout where they differ only in what their codes stand for. A type also uses the layout of
 * another one with more bits: Q4_1 lies as Q5_1 does (packed_type).
 *
 * Law: packing is a bijection with the bytes of the weight's type. F32 weights are not packed: they keep the file's
 * layout after the header. */
#ifndef WEFT_KERNELS_CUDA_PACKED_LAYOUT_CUH
#define WEFT_KERNELS_CUDA_PACKED_LAYOUT_CUH

#include <type_traits>

#include "kernels/cuda/common.cuh"

enum { PACKED_HEADER_BYTES = 256 };

/* The first bytes of a weight: the largest magnitudes of the scales and of the zero points that it stores as floats
 * (of a super-block: of its one scale and one zero point), as bits of f32. */
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

/* The type whose packed layout a type shares, and whose kernels multiply it. */
__host__ __device__ constexpr int packed_type(int type) {
  switch (type) {
    case WEFT_TYPE_Q4_1:
      return WEFT_TYPE_Q5_1;
    case WEFT_TYPE_H4_FP4:
      return WEFT_TYPE_H4_IQ4;
    case WEFT_TYPE_S4_IQ3X:
    case WEFT_TYPE_S4_IQ3S:
      return WEFT_TYPE_S4_IQ4;
    case WEFT_TYPE_S3_IQ2:
    case WEFT_TYPE_S3_IQ1:
      return WEFT_TYPE_S3_Q3;
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
      return {1024, 0, 320, 256};
    case WEFT_TYPE_S3_Q3:
      return {512, 256, 320, 256};
    case WEFT_TYPE_Q2_K:
      return {512, 0, 320, 256};
    case WEFT_TYPE_Q6_K:
      return {1024, 512, 288, 256};
    default:
      return {0, 0, 0, 128};
  }
}

__host__ __device__ constexpr uint32_t packed_unit_bytes(packed_shape f) {
  return f.unit / 128 * (f.codes + f.high) + f.scales;
}

/* Bits of a code in registers, without its high bits. Codes that are stored with two bits have four there, and a third
 * bit of theirs is among these. */
__host__ __device__ constexpr uint32_t packed_bits(int type) {
  return type == WEFT_TYPE_F16 || type == WEFT_TYPE_BF16 ? 16 : type == WEFT_TYPE_Q8_0 ? 8 : 4;
}

/* Whether products are made in bf16. All other types are multiplied in f16, whose range is too small for these two. */
__host__ __device__ constexpr bool packed_is_bf16(int type) {
  return type == WEFT_TYPE_BF16 || type == WEFT_TYPE_MXFP4;
}

/* Codes that are stored with two bits, and whether a third one lies among the high bits. */
__host__ __device__ constexpr bool packed_is_narrow(int type) {
  return packed_shape_of(type).codes == 512;
}
__host__ __device__ constexpr bool packed_has_third_bit(int type) {
  return packed_is_narrow(type) && packed_shape_of(type).high > 0;
}

/* Codes of five bits, of which one is a high bit. */
__host__ __device__ constexpr bool packed_has_fifth_bit(int type) {
  return packed_shape_of(type).high == 256 && !packed_is_narrow(type);
}
/* Super-blocks with one f32 and a scale of a byte for every sixteen elements, whose codes stand for values. */
__host__ __device__ constexpr bool packed_is_s(int type) {
  return packed_type(type) == WEFT_TYPE_S4_IQ4 || packed_type(type) == WEFT_TYPE_S3_Q3;
}
/* Six-bit scales and minima of thirty-two elements each (Q4_K, Q5_K). */
__host__ __device__ constexpr bool packed_is_k(int type) {
  return packed_shape_of(type).unit == 256 && packed_shape_of(type).scales == 256;
}
/* Split layouts: a scale for every sixteen elements. */
__host__ __device__ constexpr bool packed_is_split(int type) {
  return packed_shape_of(type).scales > 256 || packed_type(type) == WEFT_TYPE_H4_IQ4;
}
/* Codes stand for values of a table. */
__host__ __device__ constexpr bool packed_has_table(int type) {
  return packed_is_s(type) || packed_type(type) == WEFT_TYPE_H4_IQ4;
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

/* How many row tiles and units a weight has: a function of its type, n_in and n_out. */
typedef struct packed_dims {
  uint32_t n_units;    /* of 128 inputs; the last may hold 64 */
  uint32_t is_tail;    /* the last one does */
  uint32_t tile_bytes; /* of a row tile */
  uint32_t n_tiles;    /* of a matrix */
} packed_dims;

__host__ __device__ inline packed_dims packed_dims_of(int type, uint32_t n_in, uint32_t n_out) {
  packed_shape f = packed_shape_of(type);
  packed_dims dims;
  uint32_t rest = n_in % 128;
  dims.n_units = n_in / 128 + (rest != 0 ? 1u : 0u);
  dims.is_tail = f.unit == 128 && rest != 0 && rest <= 64 ? 1u : 0u;
  uint32_t n_whole = (dims.n_units - dims.is_tail) * 128 / f.unit;
  dims.tile_bytes = n_whole * packed_unit_bytes(f) + dims.is_tail * (packed_unit_bytes(f) / 2);
  dims.n_tiles = (n_out + 15) / 16;
  return dims;
}

/* MXFP4: where the bits of element e < 16 of two words lie, which are words 2 q and 2 q + 1 of a lane's: the sign, both
 * bits of the exponent (the higher one is at exponent), the mantissa. Both elements of a pair, 2 p and 2 p + 1, have
 * the same places in the lower and the upper half of a word.
 *
 * The first three pairs of a word lie as a bf16 has them, but 3 p bits lower: sign at bit 15, exponent and mantissa at
 * bits 8, 7 and 6. What these leave, bits 14, 13, 11 and 10 of both words, has the fourth pairs of both: exponents in
 * the first word, six bits too high; in the second word signs, one bit too low, and mantissas, seven too high. Moved to
 * its place, that of the second word is three bits lower than a bf16 has it. */
typedef struct mx_bits {
  uint32_t sign, exponent, mantissa; /* 32 and more: in the second word */
} mx_bits;

__host__ __device__ constexpr mx_bits mx_place(uint32_t e) {
  uint32_t word = e / 8 * 32, p = e % 8 / 2, half = e % 2 * 16, second = e / 8;
  if (p < 3) return {word + half + 15 - 3 * p, word + half + 8 - 3 * p, word + half + 6 - 3 * p};
  return {32 + half + 14 - 3 * second, half + 14 - 3 * second, 32 + half + 13 - 3 * second};
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

/* ---- host: code for a type that is known when it runs ---------------------------------------------------- */

/* Calls run(c), where decltype(c)::value is the type whose packed layout `type` has. UNSUPPORTED: the type is not
 * packed. */
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
    case WEFT_TYPE_S3_Q3:
      return run(std::integral_constant<int, WEFT_TYPE_S3_Q3>());
    default:
      return WEFT_E_UNSUPPORTED;
  }
}

/* Calls run for every packed layout, up to the first that fails. */
template <class F>
static weft_status each_packed_type(F &&run) {
  static const int types[] = {WEFT_TYPE_F16,   WEFT_TYPE_BF16,   WEFT_TYPE_Q8_0,   WEFT_TYPE_Q4_0, WEFT_TYPE_Q5_0,
                              WEFT_TYPE_MXFP4, WEFT_TYPE_Q4_K,   WEFT_TYPE_Q5_K,   WEFT_TYPE_Q6_K, WEFT_TYPE_Q5_1,
                              WEFT_TYPE_Q2_K,  WEFT_TYPE_H4_IQ4, WEFT_TYPE_S4_IQ4, WEFT_TYPE_S3_Q3};
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < sizeof types / sizeof types[0] && status == WEFT_OK; i++)
    status = dispatch_packed_type(types[i], run);
  return status;
}

#endif
