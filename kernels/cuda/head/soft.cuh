/* SPDX-License-Identifier: MIT */
/* The packed embedding as an operand of soft embeddings, transposed while it is loaded.
 *
 * A soft embedding is a sum over tokens. So the tensor cores need an operand whose rows are columns of the embedding
 * and which is summed over tokens. The packed layout has it the other way round: a row tile is 16
 * tokens, and a lane's codes are neighbouring inputs of one token. So ldmatrix loads the codes and transposes each 8 x
 * 8 numbers of 16 bits, which is what "transposed" means in the names below.
 *
 * A step is 64 tokens, which are four row tiles. A warp takes 32 inputs of a step: one of the blocks of 32 that a unit
 * has or, in a last unit of 64 inputs, two neighbouring blocks of 16. It multiplies them in four products x of 16
 * tokens each: product x takes from every row tile the tokens 2 x and 2 x + 1 (row half 0) and 2 x + 8 and 2 x + 9
 * (row half 1). Lane 4 g + c has the tokens of tile c. Which columns it has follows from g, since a number of 16 bits
 * may hold several codes:
 *
 *   codes     a number of 16 bits holds     columns of lane 4 g + c
 *   4 bits    every second of 8 codes       8 (g / 2) + 2 p + g % 2, for p < 4
 *   8 bits    2 neighbouring codes          16 q + 2 g + e, for q < 2, e < 2
 *   16 bits   1 code                        8 i + g, for i < 4
 *
 * The columns are the rows of two operands ("parts") of 16 rows.
 *
 * Law: values are made by the operations of dequantise.cuh, so a number of the embedding has the same 16 bits here
 * as in every other product. */
#ifndef WEFT_KERNELS_CUDA_SOFT_CUH
#define WEFT_KERNELS_CUDA_SOFT_CUH

#include "kernels/cuda/head/head.h"
#include "kernels/cuda/weights/dequantise.cuh"

enum {
  SOFT_TOKENS = 64, /* of a step */
  SOFT_TILES = SOFT_TOKENS / 16,
  SOFT_TABLE = SOFT_TOKENS * 4 /* f16: [tile][x][factor][row half][token % 2]; Q2_K has four factors, others two */
};

/* The column, of a warp's 32, that is row 8 half + g of operand `part`. */
template <int T>
static __device__ __forceinline__ uint32_t transposed_column(uint32_t part, uint32_t half, uint32_t g) {
  if (packed_bits(T) == 16) return 16 * part + 8 * half + g;
  if (packed_bits(T) == 8) return 16 * part + 2 * g + half;
  return 8 * (g / 2) + 4 * part + 2 * half + g % 2;
}

/* Where a lane finds its data of a step in shared memory. codes and high count bytes from the step's first row tile,
 * scales from the start of each row tile. */
typedef struct transposed_places {
  uint32_t tile;                       /* bytes from one row tile to the next */
  uint32_t codes, codes_x, codes_part; /* what the lane names to ldmatrix; to the next x; to the next part (16 bits) */
  uint32_t high, high_token, high_half, high_shift; /* to the next token, to the next row half; bits to drop */
  uint32_t scales, half;                            /* of the unit; which 128 inputs of a super-block */
  uint32_t block, lane;                             /* which 32 inputs of the unit */
  bool tail;                                        /* the unit holds 64 inputs */
} transposed_places;

template <int T>
static __device__ __forceinline__ transposed_places transposed_places_of(uint32_t unit, uint32_t block, uint32_t lane,
                                                                         uint32_t tile, bool tail) {
  constexpr int bits = packed_bits(T);
  packed_block p = packed_block_of<T>(NULL, unit, tail);
  constexpr bool narrow = packed_is_narrow(T);
  uint32_t row = lane % 2, matrix = lane / 8, h = matrix % 2, second = matrix / 2, i = lane / 8, e = lane / 4 % 2;
  transposed_places at;
  at.tail = p.tail;
  at.half = p.half;
  at.block = block;
  at.lane = lane;
  at.tile = tile;
  at.codes = (uint32_t)(uintptr_t)p.codes + lane % 8 / 2 * tile;
  at.codes_x = narrow || (bits == 4 && p.tail) ? 64 : 128;
  at.codes_part = bits == 16 && p.tail ? 16 : 2048;
  if (narrow)
    at.codes += h * 256 + row * 32 + block / 2 * 16;
  else if (bits == 4)
    at.codes += p.tail ? h * 256 + row * 32 + block * 16 : h * 512 + row * 64 + block * 16;
  if (bits == 8) at.codes += h * 512 + row * 64 + (p.tail ? block * 32 + second * 16 : second * 1024 + block * 16);
  if (bits == 16) at.codes += second * 1024 + h * 512 + row * 64 + (p.tail ? block * 32 : block * 16);
  at.high = (uint32_t)(uintptr_t)p.high;
  at.high_token = p.tail ? 16 : 32;
  at.high_half = p.tail ? 2 : 4;
  at.high_shift = packed_has_third_bit(T) ? i : 4 * (i % 2);
  if (T == WEFT_TYPE_Q6_K)
    at.high += lane % 8 / 2 * tile + (2 * matrix + row) * 64 + block * 16;
  else if (packed_has_third_bit(T))
    at.high += lane % 4 * tile + block * 8 + e * 2;
  else
    at.high += lane % 4 * tile + (p.tail ? (2 * block + i / 2) * 4 + e : block * 8 + e * 2 + i / 2);
  at.scales = (uint32_t)(uintptr_t)p.scales;
  return at;
}

/* ---- codes ---------------------------------------------------------------------------------------------- */

/* A lane's codes for one product: of 4 bits [row half], of 8 bits [q][row half], of 16 bits [i][row half]. high: their
 * high bits, [row half]; those of the second token lie 16 bits above those of the first. */
template <int T>
struct transposed_codes {
  static constexpr int N = packed_bits(T) / 2;
  uint32_t code[N], high[2];
};

static __device__ __forceinline__ void transpose_two(uint32_t &a, uint32_t &b, uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(a), "=r"(b)
               : "r"(address)
               : "memory");
}

static __device__ __forceinline__ void transpose_four(uint32_t *r, uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/* High bits of Q6_K, two to a code. The 16 bytes that two tokens eight apart have of the block are eight numbers of 16
 * bits, [row half][which 16 inputs][input % 2], each with the bits of eight codes. ldmatrix gives them to other lanes
 * than those that have the codes, so a shuffle fetches them. */
template <int T>
static __device__ __forceinline__ void transpose_two_bits(const uint8_t *tiles, const transposed_places &at,
                                                          transposed_codes<T> (&out)[4]) {
  uint32_t all[4], g = at.lane / 4;
  transpose_four(all, shared_address(tiles) + at.high);
#pragma unroll
  for (int x = 0; x < 4; x++) {
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
      uint32_t from = (h * 4 + g / 4 * 2 + g % 2) * 4 + at.lane % 4;
      out[x].high[h] = __shfl_sync(0xFFFFFFFFu, all[x], (int)from) >> (8 * (g / 2 % 2));
    }
  }
}

/* Codes of two bits. ldmatrix takes 16 bytes of a token, which are those of two blocks: eight numbers of 16 bits, each
 * with two of the numbers that codes of four bits have. A shuffle gives them to the lanes that want them, and the third
 * bits, where T has them, are read beside. */
template <int T>
static __device__ __forceinline__ void transpose_narrow(const uint8_t *tiles, const transposed_places &at, uint32_t x,
                                                        transposed_codes<T> &out) {
  uint32_t both[2], g = at.lane / 4, from = (at.block % 2 * 4 + g / 4 * 2 + g % 2) * 4 + at.lane % 4;
  transpose_two(both[0], both[1], shared_address(tiles) + at.codes + x * at.codes_x);
  const uint8_t *third = tiles + at.high + 2 * x * at.high_token;
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    out.code[h] = __shfl_sync(0xFFFFFFFFu, both[h], (int)from) >> (2 * (g / 2 % 2)) & 0x33333333u;
    if constexpr (packed_has_third_bit(T)) {
      uint32_t low = *(const uint16_t *)(const void *)(third + h * at.high_half);
      uint32_t next = *(const uint16_t *)(const void *)(third + at.high_token + h * at.high_half);
      out.code[h] |= ((low | next << 16) >> at.high_shift & 0x11111111u) << 2;
    }
  }
}

/* Loads the codes of product x. */
template <int T>
static __device__ __forceinline__ void transpose_codes_of(const uint8_t *tiles, const transposed_places &at, uint32_t x,
                                                          transposed_codes<T> &out) {
  constexpr int bits = packed_bits(T);
  uint32_t codes = shared_address(tiles) + at.codes + x * at.codes_x;
  if constexpr (packed_is_narrow(T))
    transpose_narrow<T>(tiles, at, x, out);
  else if constexpr (bits == 4)
    transpose_two(out.code[0], out.code[1], codes);
  if constexpr (bits >= 8) transpose_four(out.code, codes);
  if constexpr (bits == 16) transpose_four(out.code + 4, codes + at.codes_part);
  if constexpr (packed_has_fifth_bit(T)) {
    const uint8_t *high = tiles + at.high + 2 * x * at.high_token;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
      uint32_t low = high[h * at.high_half], next = high[at.high_token + h * at.high_half];
      out.high[h] = (low | next << 16) >> at.high_shift;
    }
  }
}

/* Loads the codes of all four products. Codes of 16 bits are left out: they are operands as they are, so their
 * registers may be overwritten only when the products that read them have ended. */
template <int T>
static __device__ __forceinline__ void transpose_codes(const uint8_t *tiles, const transposed_places &at,
                                                       transposed_codes<T> (&out)[4]) {
  if constexpr (packed_bits(T) < 16) {
#pragma unroll
    for (uint32_t x = 0; x < 4; x++) transpose_codes_of<T>(tiles, at, x, out[x]);
  }
  if constexpr (T == WEFT_TYPE_Q6_K) transpose_two_bits<T>(tiles, at, out);
}

/* ---- factors -------------------------------------------------------------------------------------------- */

/* Scale and zero point as in dequant_factors (dequantise.cuh), each of two neighbouring tokens: [row half]. */
typedef struct transposed_factors {
  uint32_t scale[2], zero_point[2];
} transposed_factors;

static __device__ __forceinline__ uint16_t bits_f16(float v) {
  return __half_as_ushort(__float2half_rn(v));
}

/* The factors of token r < 16 of a row tile, in 16 bits each: a scale and, where the type has one, a zero point; in
 * split layouts the scales of the two sixteens of inputs, which are followed in Q2_K by the two zero points. */
template <int T>
static __device__ __forceinline__ void token_factors(const uint8_t *tile, const transposed_places &at, uint32_t r,
                                                     const prescale_powers &powers, uint16_t (&out)[4]) {
  const uint8_t *scales = tile + at.scales;
  float up = powers.prescale * 0x1p24f;
  out[1] = 0;
  if constexpr (packed_is_k(T)) {
    uint4 row = *(const uint4 *)(const void *)(scales + r * 16);
    uint32_t factors = super_factors(row, at.half, at.block, powers);
    out[0] = (uint16_t)factors, out[1] = (uint16_t)(factors >> 16);
  } else if constexpr (T == WEFT_TYPE_Q6_K) {
    uint32_t two = *(const uint16_t *)(const void *)(scales + r * 16 + 8 * at.half + 2 * at.block);
    float d = half_bits(*(const uint16_t *)(const void *)(scales + 256 + r * 2)) * up;
    out[0] = bits_f16(d * (float)(int8_t)(two & 0xFFu));
    out[1] = bits_f16(d * (float)(int8_t)(two >> 8));
  } else if constexpr (packed_is_s(T)) {
    uint32_t two = *(const uint16_t *)(const void *)(scales + r * 16 + 8 * at.half + 2 * at.block);
    float d = *(const float *)(const void *)(scales + 256 + r * 4) * up;
    out[0] = bits_f16(d * (float)(int8_t)(two & 0xFFu));
    out[1] = bits_f16(d * (float)(int8_t)(two >> 8));
  } else if constexpr (T == WEFT_TYPE_Q2_K) {
    uint32_t two = *(const uint16_t *)(const void *)(scales + r * 16 + 8 * at.half + 2 * at.block);
    uint32_t d = *(const uint32_t *)(const void *)(scales + 256 + r * 4);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      uint32_t factors = pair_scales(d, two >> (8 * i) & 0xFFu, powers.prescale);
      out[i] = (uint16_t)factors, out[2 + i] = (uint16_t)(factors >> 16);
    }
  } else if constexpr (packed_shape_of(T).scales == 256) { /* Q5_1, H4 */
    uint32_t pair =
        *(const uint32_t *)(const void *)(scales + ((r % 8 * (at.tail ? 2 : 4) + at.block) * 2 + r / 8) * 4);
    uint32_t factors = apply_prescale(pair, powers);
    out[0] = (uint16_t)factors, out[1] = (uint16_t)(factors >> 16);
  } else if constexpr (T == WEFT_TYPE_MXFP4) {
    uint32_t e = scales[(r % 8 * (at.tail ? 2 : 4) + at.block) * 2 + r / 8];
    out[0] = (uint16_t)mx_scale(e);
  } else {
    const uint16_t *scale = (const uint16_t *)(const void *)scales;
    out[0] = bits_f16(half_bits(scale[(r % 8 * (at.tail ? 2 : 4) + at.block) * 2 + r / 8]) * up);
  }
}

/* Every lane makes the factors of two of the step's 64 tokens; through the warp's table each lane then gets those of
 * the tokens whose codes it has. */
template <int T>
static __device__ __forceinline__ void transpose_factors(const uint8_t *tiles, const transposed_places &at,
                                                         const prescale_powers &powers, uint16_t *table,
                                                         transposed_factors (&out)[4]) {
  if constexpr (packed_bits(T) == 16) return;
  constexpr bool has_least = packed_is_k(T) || T == WEFT_TYPE_Q5_1, has_second = has_least || packed_is_split(T);
  constexpr uint32_t each = T == WEFT_TYPE_Q2_K ? 16 : 8;
  uint32_t r = at.lane % 16, c = at.lane % 4, g = at.lane / 4;
  __syncwarp();
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    uint32_t t = 2 * i + at.lane / 16;
    uint16_t numbers[4];
    token_factors<T>(tiles + t * at.tile, at, r, powers, numbers);
    uint16_t *to = table + (t * 4 + r % 8 / 2) * each + r / 8 * 2 + r % 2;
    to[0] = numbers[0];
    if (has_second) to[4] = numbers[1];
    if (T == WEFT_TYPE_Q2_K) to[8] = numbers[2], to[12] = numbers[3];
  }
  __syncwarp();
#pragma unroll
  for (int x = 0; x < 4; x++) {
    const uint16_t *from = table + (c * 4 + x) * each;
    if constexpr (has_least) {
      uint4 v = *(const uint4 *)(const void *)from;
      out[x].scale[0] = v.x, out[x].scale[1] = v.y, out[x].zero_point[0] = v.z, out[x].zero_point[1] = v.w;
    } else {
      uint32_t half = packed_is_split(T) ? g / 4 * 4 : 0;
      uint2 v = *(const uint2 *)(const void *)(from + half);
      out[x].scale[0] = v.x, out[x].scale[1] = v.y;
      if constexpr (T == WEFT_TYPE_Q2_K) {
        uint2 zero_point = *(const uint2 *)(const void *)(from + 8 + half);
        out[x].zero_point[0] = zero_point.x, out[x].zero_point[1] = zero_point.y;
      } else {
#pragma unroll
        for (int h = 0; h < 2; h++)
          out[x].zero_point[h] = of_half2(__hmul2(as_half2(out[x].scale[h]), as_half2(offset_pair<T>())));
      }
    }
  }
}

/* ---- operands ------------------------------------------------------------------------------------------- */

/* The operands of both parts for one product. Values are made as in dequantise_values (packed_layout.cuh), but a
 * pair is one column of two tokens instead of two inputs of one row. */
template <int T>
static __device__ __forceinline__ void transposed_operands(const transposed_codes<T> &in, const transposed_factors &f,
                                                           const value_table &values, uint32_t (&out)[2][4]) {
  constexpr int bits = packed_bits(T);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    uint32_t looked_up[4], fourths = 0;
    const bool is_second = threadIdx.x / 8 % 2 != 0; /* of two words of MXFP4; the lane eight away has the other one */
    if constexpr (T == WEFT_TYPE_MXFP4) {
      const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, in.code[h], 8);
      fourths = is_second ? mx_fourths(other, in.code[h]) : mx_fourths(in.code[h], other);
    }
    if constexpr (packed_has_table(T)) look_up(values, in.code[h], looked_up);
    uint32_t low = bits == 4 ? of_half2(__hmul2(as_half2(f.scale[h]), as_half2(0x2C002C00u))) : 0;
#pragma unroll
    for (int p = 0; p < 4; p++) { /* part p / 2, rows' half p % 2 */
      uint32_t &to = out[p / 2][p % 2 + 2 * h];
      if constexpr (bits == 16) {
        to = in.code[2 * p + h];
      } else if constexpr (bits == 8) {
        to = dequantise_pair(__byte_perm(in.code[p / 2 * 2 + h] ^ 0x80808080u, 0, p % 2 == 0 ? 0x4240 : 0x4341),
                             f.scale[h], f.zero_point[h]);
      } else if constexpr (T == WEFT_TYPE_MXFP4) {
        to = mx_pair(mx_bits_of(in.code[h], fourths, is_second, p), f.scale[h]);
      } else if constexpr (packed_has_table(T)) {
        to = dequantise_pair(looked_up[p], f.scale[h], f.zero_point[h]);
      } else {
        const int up = p % 2 * 4;
        uint32_t code = (p < 2 ? in.code[h] : in.code[h] >> 8) & 0x000F000Fu << up;
        if (packed_has_fifth_bit(T)) code |= shift_bits(in.high[h], 4 + up - p) & 0x00100010u << up;
        if (T == WEFT_TYPE_Q6_K) code |= shift_bits(in.high[h], 4 + up - 2 * p) & 0x00300030u << up;
        to = dequantise_pair(code, p % 2 == 0 ? f.scale[h] : low, f.zero_point[h]);
      }
    }
  }
}

#endif
