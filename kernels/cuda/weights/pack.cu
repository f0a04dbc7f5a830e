/* SPDX-License-Identifier: MIT */
/* Placing weights: file bytes go through a staging buffer and are packed on the device (packed_layout.cuh); and back,
 * for tests.
 *
 * Law: each packed word, and each file byte on the way back, is made by one thread, which gathers its bits. */
#include <string.h>

#include "base/log.h"
#include "kernels/canvas_head.h"
#include "kernels/cuda/moe/host_experts.h"
#include "kernels/cuda/gemm/w8a8.h"
#include "kernels/cuda/head/soft_integers.h"
#include "kernels/cuda/set.h"
#include "kernels/cuda/weights/packed_element.cuh"
#include "kernels/repack.h"

typedef struct pack_args {
  int type;
  packed_dims dims;
  uint32_t n_in, n_out;
  uint64_t row_bytes;  /* of the file */
  const uint8_t *file; /* rows from first_row on */
  uint64_t first_row;
  uint64_t first_tile; /* over all matrices */
  uint8_t *tiles;
  packed_header *header;
  uint32_t block_elements, block_bytes;
} pack_args;

/* Row r (0..15) of the tile in the file; NULL where the matrix has no such row. */
static __device__ const uint8_t *file_row(const pack_args &a, uint64_t tile, uint32_t r) {
  uint64_t matrix = tile / a.dims.n_tiles;
  uint64_t row = tile % a.dims.n_tiles * 16 + r;
  if (row >= a.n_out) return NULL;
  return a.file + (matrix * a.n_out + row - a.first_row) * a.row_bytes;
}

static __device__ uint32_t nibble_of(const uint8_t *bytes, uint32_t i) {
  return i < 16 ? bytes[i] & 15u : (uint32_t)bytes[i - 16] >> 4;
}

/* The code of element k of a file row, as element_code gives it. */
static __device__ uint32_t file_code(const pack_args &a, const uint8_t *row, uint32_t k) {
  if (row == NULL || k >= a.n_in) return 0;
  const uint8_t *b = row + (uint64_t)(k / a.block_elements) * a.block_bytes;
  uint32_t i = k % a.block_elements;
  switch (a.type) {
    case WEFT_TYPE_F16:
    case WEFT_TYPE_BF16:
      return (uint32_t)b[0] | (uint32_t)b[1] << 8;
    case WEFT_TYPE_Q8_0:
      return b[2 + i];
    case WEFT_TYPE_Q4_0:
      return nibble_of(b + 2, i);
    case WEFT_TYPE_MXFP4:
      return nibble_of(b + 1, i);
    case WEFT_TYPE_Q4_1:
    case WEFT_TYPE_H4_IQ4:
    case WEFT_TYPE_H4_FP4:
      return nibble_of(b + 4, i);
    case WEFT_TYPE_Q5_1:
      return nibble_of(b + 8, i) | ((uint32_t)b[4 + i / 8] >> i % 8 & 1u) << 4;
    case WEFT_TYPE_Q2_K:
      return (uint32_t)b[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3u;
    case WEFT_TYPE_S4_IQ4:
    case WEFT_TYPE_S4_IQ3X:
    case WEFT_TYPE_S4_IQ3S:
      return nibble_of(b + 20 + i / 32 * 16, i % 32);
    case WEFT_TYPE_S3_Q3:
    case WEFT_TYPE_S3_IQ2:
    case WEFT_TYPE_S3_IQ1:
      return ((uint32_t)b[20 + i / 32 * 8 + i % 8] >> (i % 32 / 8 * 2) & 3u) | ((uint32_t)b[84 + i / 8] >> i % 8 & 1u)
                                                                                   << 2;
    case WEFT_TYPE_Q5_0:
      return nibble_of(b + 6, i) | ((uint32_t)b[2 + i / 8] >> i % 8 & 1u) << 4;
    case WEFT_TYPE_Q6_K: {
      uint32_t half = i / 128, group = i % 128 / 32, l = i % 32;
      uint32_t byte = b[64 * half + 32 * (group & 1u) + l];
      return (group < 2 ? byte & 15u : byte >> 4) | ((uint32_t)b[128 + 32 * half + l] >> (2 * group) & 3u) << 4;
    }
    default: { /* Q4_K, Q5_K */
      uint32_t j = i / 32, l = i % 32;
      uint32_t byte = b[(a.type == WEFT_TYPE_Q5_K ? 48 : 16) + 32 * (j / 2) + l];
      uint32_t code = j % 2 == 0 ? byte & 15u : byte >> 4;
      if (a.type == WEFT_TYPE_Q5_K) code |= ((uint32_t)b[16 + l] >> j & 1u) << 4;
      return code;
    }
  }
}

/* Byte `at` of the block that holds element k; 0 where there is none. */
static __device__ uint32_t file_byte(const pack_args &a, const uint8_t *row, uint32_t k, uint32_t at) {
  if (row == NULL || k >= a.n_in) return 0;
  return row[(uint64_t)(k / a.block_elements) * a.block_bytes + at];
}

static __device__ uint32_t file_f16(const pack_args &a, const uint8_t *row, uint32_t k, uint32_t at) {
  return file_byte(a, row, k, at) | file_byte(a, row, k, at + 1) << 8;
}

/* Bit of element i of a word whose codes have four bits. */
static __device__ uint32_t nibble_place(uint32_t i) {
  return i / 2 * 4 + i % 2 * 16;
}

/* pack_codes of codes that are stored with two bits. */
static __device__ uint32_t pack_narrow(const pack_args &a, uint64_t tile, uint32_t k0, uint32_t at) {
  uint32_t h = at / 256, lane = at / 8 % 32, word = 0;
  const uint8_t *row = file_row(a, tile, lane / 4 + 8 * h);
  uint32_t k = k0 + 32 * (lane % 4) + at / 4 % 2 * 16;
  for (uint32_t i = 0; i < 16; i++) word |= (file_code(a, row, k + i) & 3u) << (nibble_place(i % 8) + i / 8 * 2);
  return word;
}

/* The word at byte `at` of their third bits. */
static __device__ uint32_t pack_third(const pack_args &a, uint64_t tile, uint32_t k0, uint32_t at) {
  uint32_t lane = at / 8, h = at / 4 % 2, word = 0;
  const uint8_t *row = file_row(a, tile, lane / 4 + 8 * h);
  for (uint32_t i = 0; i < 32; i++)
    word |= (file_code(a, row, k0 + 32 * (lane % 4) + i) >> 2 & 1u) << (nibble_place(i % 8) + i / 8);
  return word;
}

/* One of two words of MXFP4 (mx_place), whose first element is k of the row. */
static __device__ uint32_t pack_mx(const pack_args &a, const uint8_t *row, uint32_t k, uint32_t second) {
  uint64_t both = 0;
  for (uint32_t e = 0; e < 16; e++) {
    const mx_bits at = mx_place(e);
    const uint64_t code = file_code(a, row, k + e);
    both |= (code >> 3 & 1) << at.sign | (code >> 1 & 3) << (at.exponent - 1) | (code & 1) << at.mantissa;
  }
  return (uint32_t)(both >> (32 * second));
}

/* The word at byte `at` of the codes of 128 inputs that begin at k0. */
static __device__ uint32_t pack_codes(const pack_args &a, uint64_t tile, uint32_t k0, bool tail, uint32_t at) {
  uint32_t bits = packed_bits(a.type), h, lane, e, n = 32 / bits, word = 0;
  if (packed_is_narrow(a.type)) return pack_narrow(a, tile, k0, at);
  if (bits == 16) {
    h = at / 512 % 2, lane = at / 16 % 32, e = at / 1024 * 8 + at % 16 / 2;
  } else if (bits == 8) {
    h = at / 512 % 2, lane = at / 16 % 32, e = at / 1024 * 16 + at % 16;
  } else if (tail) {
    h = at / 256, lane = at / 8 % 32, e = at % 8 * 2;
  } else {
    h = at / 512, lane = at / 16 % 32, e = at % 16 * 2;
  }
  const uint8_t *row = file_row(a, tile, lane / 4 + 8 * h);
  uint32_t k = k0 + (tail ? 16 : 32) * (lane % 4) + e;
  if (a.type == WEFT_TYPE_MXFP4) return pack_mx(a, row, k - e % 16, e / 8 % 2);
  for (uint32_t i = 0; i < n; i++) {
    uint32_t code = file_code(a, row, k + i) & (bits == 16 ? 0xFFFFu : (1u << bits) - 1u);
    word |= code << (bits == 4 ? nibble_place(i) : i * bits);
  }
  return word;
}

static __device__ uint32_t pack_high(const pack_args &a, uint64_t tile, uint32_t k0, bool tail, uint32_t at) {
  uint32_t word = 0, lane, h, e = 0;
  if (packed_has_third_bit(a.type)) return pack_third(a, tile, k0, at);
  if (a.type == WEFT_TYPE_Q6_K) {
    lane = at / 16, h = at / 8 % 2, e = at / 4 % 2 * 16;
    const uint8_t *row = file_row(a, tile, lane / 4 + 8 * h);
    uint32_t k = k0 + 32 * (lane % 4) + e;
    for (uint32_t i = 0; i < 16; i++) word |= (file_code(a, row, k + i) >> 4 & 3u) << (i / 2 * 2 + i % 2 * 16);
    return word;
  }
  if (tail) {
    lane = at / 4;
    for (h = 0; h < 2; h++) {
      const uint8_t *row = file_row(a, tile, lane / 4 + 8 * h);
      for (uint32_t i = 0; i < 16; i++) {
        uint32_t bit = file_code(a, row, k0 + 16 * (lane % 4) + i) >> 4 & 1u;
        word |= bit << (16 * h + i / 2 + i % 2 * 8);
      }
    }
    return word;
  }
  lane = at / 8, h = at / 4 % 2;
  const uint8_t *row = file_row(a, tile, lane / 4 + 8 * h);
  for (uint32_t i = 0; i < 32; i++)
    word |= (file_code(a, row, k0 + 32 * (lane % 4) + i) >> 4 & 1u) << (i / 2 + i % 2 * 16);
  return word;
}

/* The largest finite magnitude among the scales, as f32 bits. */
static __device__ void note_most_f32(uint32_t *most, float scale) {
  float size = fabsf(scale);
  if (size > 0.0f && isfinite(size)) atomicMax(most, __float_as_uint(size));
}

static __device__ void note_most(uint32_t *most, uint32_t f16_bits) {
  note_most_f32(most, half_bits(f16_bits));
}

/* Where a super-block keeps its sixteen bytes of scales, and the numbers that split layouts keep behind those. */
static __device__ uint32_t scales_begin(int type) {
  return type == WEFT_TYPE_Q6_K ? 192 : packed_is_s(type) ? 4 : 0;
}

static __device__ uint32_t file_word(const pack_args &a, const uint8_t *row, uint32_t k, uint32_t at) {
  return file_f16(a, row, k, at) | file_f16(a, row, k, at + 2) << 16;
}

/* The word at byte `at` of the scales of a super-block. */
static __device__ uint32_t pack_super_scales(const pack_args &a, uint64_t tile, uint32_t k0, uint32_t at) {
  uint32_t word = 0;
  if (at >= 256 && a.type == WEFT_TYPE_Q6_K) {
    for (uint32_t i = 0; i < 2; i++) {
      uint32_t d = file_f16(a, file_row(a, tile, (at - 256) / 2 + i), k0, 208);
      note_most(&a.header->max_scale, d);
      word |= d << (16 * i);
    }
    return word;
  }
  if (at >= 256 && a.type == WEFT_TYPE_Q2_K) {
    word = file_word(a, file_row(a, tile, (at - 256) / 4), k0, 80);
    note_most(&a.header->max_scale, word & 0xFFFFu);
    note_most(&a.header->max_zero_point, word >> 16);
    return word;
  }
  if (at >= 256) {
    word = file_word(a, file_row(a, tile, (at - 256) / 4), k0, 0);
    note_most_f32(&a.header->max_scale, __uint_as_float(word));
    return word;
  }
  word = file_word(a, file_row(a, tile, at / 16), k0, at % 16 + scales_begin(a.type));
  if (packed_is_k(a.type) && at % 16 == 0) {
    note_most(&a.header->max_scale, word & 0xFFFFu);
    note_most(&a.header->max_zero_point, word >> 16);
  }
  return word;
}

static __device__ uint32_t pack_scales(const pack_args &a, uint64_t tile, uint32_t k0, bool tail, uint32_t at) {
  uint32_t word = 0, n = tail ? 2 : 4; /* blocks of a row */
  if (packed_shape_of(a.type).unit == 256) return pack_super_scales(a, tile, k0, at);
  if (a.type == WEFT_TYPE_MXFP4) {
    for (uint32_t i = 0; i < 4; i++) { /* [block][row half] */
      uint32_t block = at / 2 + i / 2;
      uint32_t e = file_byte(a, file_row(a, tile, block / n + 8 * (i % 2)), k0 + 32 * (block % n), 0);
      if (e > 0 && e < 255) note_most_f32(&a.header->max_scale, __uint_as_float(e << 23)); /* 2^(e - 127) */
      if (e == 255) note_most_f32(&a.header->max_zero_point, 1.0f); /* no zero point: some are no numbers */
      word |= e << (8 * i);
    }
    return word;
  }
  if (packed_shape_of(a.type).scales == 256) { /* [block][row half] two numbers */
    uint32_t block = at / 8;
    word = file_word(a, file_row(a, tile, block / n + 8 * (at / 4 % 2)), k0 + 32 * (block % n), 0);
    bool has_least = packed_type(a.type) == WEFT_TYPE_Q5_1;
    note_most(&a.header->max_scale, word & 0xFFFFu);
    note_most(has_least ? &a.header->max_zero_point : &a.header->max_scale, word >> 16);
    return word;
  }
  uint32_t block = at / 4;
  for (uint32_t h = 0; h < 2; h++) {
    uint32_t d = file_f16(a, file_row(a, tile, block / n + 8 * h), k0 + 32 * (block % n), 0);
    note_most(&a.header->max_scale, d);
    word |= d << (16 * h);
  }
  return word;
}

static __global__ void pack_kernel(const pack_args a) {
  uint64_t tile = a.first_tile + blockIdx.x;
  packed_shape f = packed_shape_of(a.type);
  uint32_t unit_bytes = packed_unit_bytes(f);
  uint32_t *out = (uint32_t *)(void *)(a.tiles + tile * a.dims.tile_bytes);
  for (uint32_t w = threadIdx.x; w < a.dims.tile_bytes / 4; w += blockDim.x) {
    uint32_t at = 4 * w, unit = at / unit_bytes, in = at % unit_bytes;
    uint32_t k0 = unit * f.unit, n = f.unit / 128;
    bool tail = a.dims.is_tail != 0 && unit + 1 == a.dims.n_units;
    uint32_t codes = f.codes >> (tail ? 1 : 0), high = f.high >> (tail ? 1 : 0);
    if (in < n * codes) {
      out[w] = pack_codes(a, tile, k0 + in / codes * 128, tail, in % codes);
    } else if (in < n * (codes + high)) {
      in -= n * codes;
      out[w] = pack_high(a, tile, k0 + in / high * 128, tail, in % high);
    } else {
      out[w] = pack_scales(a, tile, k0, tail, in - n * (codes + high));
    }
  }
}

/* ---- and back ------------------------------------------------------------------------------------------- */

typedef struct unpack_row {
  int type;
  packed_dims dims;
  const uint8_t *tile;
  uint32_t r;
} unpack_row;

static __device__ uint32_t code_of(const unpack_row &u, uint32_t k) {
  return element_code(u.type, element_at(u.type, u.dims, u.tile, u.r, k));
}

static __device__ uint32_t low_pair(const unpack_row &u, uint32_t k_low, uint32_t k_high) {
  return (code_of(u, k_low) & 15u) | (code_of(u, k_high) & 15u) << 4;
}

/* Byte j of the block of 32 elements from k on: scales, fifth bits, codes. */
static __device__ uint32_t unpack_small(const unpack_row &u, uint32_t k, uint32_t j) {
  element_place p = element_at(u.type, u.dims, u.tile, u.r, k);
  bool has_two = packed_shape_of(u.type).scales == 256;
  uint32_t n_scale = has_two ? 4 : u.type == WEFT_TYPE_MXFP4 ? 1 : 2;
  if (j < n_scale) return (has_two ? element_pair(p) : element_scale(u.type, p)) >> (8 * j) & 0xFFu;
  j -= n_scale;
  if (u.type == WEFT_TYPE_Q8_0) return code_of(u, k + j);
  if (u.type == WEFT_TYPE_Q5_0 || u.type == WEFT_TYPE_Q5_1) {
    uint32_t byte = 0;
    for (uint32_t i = 0; i < 8 && j < 4; i++) byte |= (code_of(u, k + 8 * j + i) >> 4) << i;
    if (j < 4) return byte;
    j -= 4;
  }
  return low_pair(u, k + j, k + j + 16);
}

/* Byte j of an S3 block's codes: low bits, then third bits. */
static __device__ uint32_t unpack_three(const unpack_row &u, uint32_t k, uint32_t j) {
  uint32_t byte = 0;
  if (j < 64) {
    for (uint32_t i = 0; i < 4; i++) byte |= (code_of(u, k + j / 8 * 32 + j % 8 + 8 * i) & 3u) << (2 * i);
    return byte;
  }
  for (uint32_t i = 0; i < 8; i++) byte |= (code_of(u, k + (j - 64) * 8 + i) >> 2 & 1u) << i;
  return byte;
}

/* Byte j of the super-block of 256 elements from k on, of Q6_K. */
static __device__ uint32_t unpack_six(const unpack_row &u, uint32_t k, uint32_t j) {
  element_place p = element_at(u.type, u.dims, u.tile, u.r, k);
  uint32_t byte = 0;
  if (j >= 208) return element_q6_scale(p) >> (8 * (j - 208)) & 0xFFu;
  if (j >= 192) return element_super_byte(p, j - 192);
  if (j < 128) {
    uint32_t at = k + j / 64 * 128 + j % 64;
    return low_pair(u, at, at + 64);
  }
  uint32_t at = k + (j - 128) / 32 * 128 + j % 32;
  for (uint32_t i = 0; i < 4; i++) byte |= (code_of(u, at + 32 * i) >> 4) << (2 * i);
  return byte;
}

/* Byte j of the super-block of 256 elements from k on, of any other type. */
static __device__ uint32_t unpack_super(const unpack_row &u, uint32_t k, uint32_t j) {
  element_place p = element_at(u.type, u.dims, u.tile, u.r, k);
  uint32_t byte = 0;
  if (u.type == WEFT_TYPE_Q6_K) return unpack_six(u, k, j);
  if (packed_is_s(u.type)) {
    if (j < 4) return element_super_word(p) >> (8 * j) & 0xFFu;
    if (j < 20) return element_super_byte(p, j - 4);
    j -= 20;
    return packed_has_third_bit(u.type) ? unpack_three(u, k, j)
                                        : low_pair(u, k + j / 16 * 32 + j % 16, k + j / 16 * 32 + j % 16 + 16);
  }
  if (j < 16) return element_super_byte(p, j);
  j -= 16;
  if (u.type == WEFT_TYPE_Q2_K) {
    if (j >= 64) return element_super_word(p) >> (8 * (j - 64)) & 0xFFu;
    for (uint32_t i = 0; i < 4; i++) byte |= code_of(u, k + j / 32 * 128 + j % 32 + 32 * i) << (2 * i);
    return byte;
  }
  if (u.type == WEFT_TYPE_Q5_K) {
    for (uint32_t i = 0; i < 8 && j < 32; i++) byte |= (code_of(u, k + 32 * i + j) >> 4) << i;
    if (j < 32) return byte;
    j -= 32;
  }
  return low_pair(u, k + j / 32 * 64 + j % 32, k + j / 32 * 64 + j % 32 + 32);
}

/* One block per row: rows [first_row, first_row + gridDim.x) over all matrices. */
static __global__ void unpack_kernel(const pack_args a, uint8_t *file) {
  uint64_t row = a.first_row + blockIdx.x, in = row % a.n_out;
  unpack_row u;
  u.type = a.type;
  u.dims = a.dims;
  u.tile = a.tiles + (row / a.n_out * a.dims.n_tiles + in / 16) * a.dims.tile_bytes;
  u.r = (uint32_t)(in % 16);
  uint8_t *out = file + (uint64_t)blockIdx.x * a.row_bytes;
  for (uint32_t b = threadIdx.x; b < a.row_bytes; b += blockDim.x) {
    uint32_t k = b / a.block_bytes * a.block_elements, j = b % a.block_bytes;
    if (packed_bits(a.type) == 16) {
      out[b] = (uint8_t)(code_of(u, k) >> (8 * j));
    } else {
      out[b] = (uint8_t)(a.block_elements == 32 ? unpack_small(u, k, j) : unpack_super(u, k, j));
    }
  }
}

/* ---- host ----------------------------------------------------------------------------------------------- */

static pack_args args_of(const weft_weight *weight, uint8_t *data) {
  const weft_type_info *info = weft_type_find((int32_t)weight->type);
  pack_args a;
  memset(&a, 0, sizeof a);
  a.type = weight->type;
  a.dims = packed_dims_of(weight->type, weight->n_in, weight->n_out);
  a.n_in = weight->n_in;
  a.n_out = weight->n_out;
  a.row_bytes = weft_type_row_bytes(weight->type, weight->n_in);
  a.tiles = data + PACKED_HEADER_BYTES;
  a.header = (packed_header *)(void *)data;
  a.block_elements = info->n_elements;
  a.block_bytes = info->n_bytes;
  return a;
}

static uint64_t file_bytes_of(const weft_weight *weight) {
  return (uint64_t)weight->n_mats * weight->n_out * weft_type_row_bytes(weight->type, weight->n_in);
}

/* F32 weights keep their file's layout; those whose rows are looked up or whose results are logits keep 16 bits, unless
 * they are logits of canvases. */
static uint32_t layout_of(const cuda_device *d, const weft_weight *weight, unsigned uses) {
  if (weight->type == WEFT_TYPE_F32) return 0;
  if (!d->w8a8 || weft_keeps_numbers(uses) || !w8a8_takes(weight->type)) return 1;
  uint32_t layout = d->base.info.integers ? (uint32_t)INT8_LAYOUT : (uint32_t)W8A8_LAYOUT;
  return (uses & WEFT_USE_EMBED) != 0 ? layout | WEFT_LAYOUT_CANVASES : layout;
}

/* The layout of what lies in memory. */
static uint32_t kept_layout(const weft_weight *weight) {
  return weft_canvas_head(weight).layout;
}

/* What lies before integers for soft embeddings. */
static uint64_t plain_bytes(const weft_weight *weight) {
  if (weight->type == WEFT_TYPE_F32) return PACKED_HEADER_BYTES + file_bytes_of(weight);
  packed_dims dims = packed_dims_of(weight->type, weight->n_in, weight->n_out);
  uint64_t n_tiles = (uint64_t)weight->n_mats * dims.n_tiles;
  if (kept_layout(weight) == INT8_LAYOUT) return int8_sections_of(weight).end;
  if (kept_layout(weight) != W8A8_LAYOUT) return PACKED_HEADER_BYTES + n_tiles * dims.tile_bytes;
  return w8a8_steps_at(n_tiles, dims.tile_bytes) + w8a8_steps_bytes(n_tiles, weight->n_in);
}

/* Whether soft embeddings are made of integers that lie behind all else. */
static bool keeps_soft_integers(const weft_weight *weight) {
  return (weight->layout & WEFT_LAYOUT_CANVASES) != 0 && cuda_sets[0].soft_integers != NULL;
}

static uint64_t packed_bytes(const weft_weight *weight) {
  uint64_t n_bytes = plain_bytes(weight);
  return keeps_soft_integers(weight) ? soft_sections_behind(weight, n_bytes).end : n_bytes;
}

/* Copies file bytes to the staging buffer and packs them from there, as many row tiles at a time as fit. */
static weft_status pack_all(cuda_device *d, const weft_weight *weight, const weft_weight_source *source,
                            uint8_t *data) {
  pack_args a = args_of(weight, data);
  uint64_t n_tiles = (uint64_t)weight->n_mats * a.dims.n_tiles;
  uint64_t step = cuda_piece_bytes(d, CUDA_STAGING_BYTES) / (16 * a.row_bytes);
  if (step == 0) step = 1;
  for (uint64_t tile = 0; tile < n_tiles; tile += step) {
    uint64_t last = (tile + step < n_tiles ? tile + step : n_tiles) - 1;
    uint64_t end = last % a.dims.n_tiles * 16 + 16;
    if (end > a.n_out) end = a.n_out;
    end += last / a.dims.n_tiles * a.n_out;
    a.first_tile = tile;
    a.first_row = tile / a.dims.n_tiles * a.n_out + tile % a.dims.n_tiles * 16;
    a.file = d->staging;
    weft_status status =
        cuda_push_source(d, d->staging, source, a.first_row * a.row_bytes, (end - a.first_row) * a.row_bytes);
    if (status == WEFT_OK) status = cuda_piece_begin(d);
    if (status != WEFT_OK) return status;
    pack_kernel<<<(uint32_t)(last + 1 - tile), 256, 0, d->stream>>>(a);
    status = cuda_launched(d, "packing a weight");
    if (status == WEFT_OK) status = cuda_piece_end(d);
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}

/* Makes the whole packed weight at `data`: header, row tiles and, for W8A8, steps. */
static weft_status fill_packed(cuda_device *d, const weft_weight *weight, const weft_weight_source *source,
                               uint8_t *data) {
  weft_status status = cuda_judge(d, cudaMemsetAsync(data, 0, PACKED_HEADER_BYTES, d->stream), "a weight's header");
  if (status != WEFT_OK) return status;
  if (weight->type == WEFT_TYPE_F32)
    return cuda_push_source(d, data + PACKED_HEADER_BYTES, source, 0, file_bytes_of(weight));
  status = pack_all(d, weight, source, data);
  if (status != WEFT_OK || !w8a8_has(kept_layout(weight))) return status;
  status = cuda_piece_begin(d);
  if (status == WEFT_OK) status = w8a8_make_steps(d, weight, data);
  if (status == WEFT_OK && kept_layout(weight) == INT8_LAYOUT) status = int8_weights_make(d, weight, data);
  if (status == WEFT_OK && keeps_soft_integers(weight))
    status = soft_integers_make(d, weight, data, plain_bytes(weight));
  return status == WEFT_OK ? cuda_piece_end(d) : status;
}

static cuda_matrix_parts parts_of(const weft_weight *weight) {
  packed_dims dims = packed_dims_of(weight->type, weight->n_in, weight->n_out);
  cuda_matrix_parts parts = {{PACKED_HEADER_BYTES, 0}, {file_bytes_of(weight) / weight->n_mats, 0}};
  if (weight->type == WEFT_TYPE_F32) return parts;
  parts.n_bytes[0] = (uint64_t)dims.n_tiles * dims.tile_bytes;
  if (!w8a8_has(weight->layout)) return parts;
  parts.at[1] = w8a8_steps_at((uint64_t)weight->n_mats * dims.n_tiles, dims.tile_bytes);
  parts.n_bytes[1] = w8a8_steps_bytes(dims.n_tiles, weight->n_in);
  return parts;
}

/* Places experts for which the card has no room: they are packed in temporary device memory and copied to the host. */
static weft_status place_on_host(cuda_device *d, const weft_weight *weight, const weft_weight_source *source,
                                 uint64_t n_bytes, void **out) {
  void *moment = NULL;
  weft_status status = d->base.calls->alloc(&d->base, n_bytes, &moment);
  if (status == WEFT_OK) status = fill_packed(d, weight, source, (uint8_t *)moment);
  cuda_matrix_parts parts = parts_of(weight);
  if (status == WEFT_OK) status = cuda_experts_keep(d, weight, &parts, moment, n_bytes, out);
  if (moment != NULL) d->base.calls->free(&d->base, moment);
  if (status == WEFT_OK) d->base.weights.n_bytes_host += n_bytes;
  return status;
}

/* In weft_weight.layout: the weight is a table of rows in host memory, which the card reads where it lies. */
enum { HOST_LAYOUT = 0x200 };

/* Kernels that write or read the table have ended first: freeing pinned memory is not said to wait for them. */
static void give_table(cuda_device *d, void *table) {
  if (!d->lost) (void)cuda_judge(d, cudaStreamSynchronize(d->stream), "waiting for a table's last use");
  d->base.calls->free_host(&d->base, table);
}

/* The rows of a table in host memory are packed by the card all the same, and written there. */
static weft_status place_table(cuda_device *d, const weft_weight *weight, const weft_weight_source *source,
                               uint64_t n_bytes, void **out) {
  weft_status status = d->base.calls->alloc_host(&d->base, n_bytes, out);
  if (status != WEFT_OK) return status;
  status = fill_packed(d, weight, source, (uint8_t *)*out);
  if (status == WEFT_OK) status = cuda_judge(d, cudaStreamSynchronize(d->stream), "packing a table");
  if (status == WEFT_OK)
    d->base.weights.n_bytes_tables += n_bytes;
  else
    give_table(d, *out);
  return status;
}

static void note_arena(cuda_device *d) {
  d->base.weights.n_bytes = d->arena.n_asked;
  d->base.weights.n_bytes_held = d->arena.n_taken;
}

/* Whether experts may stay in host memory. */
static bool may_stay(const cuda_device *d, const weft_weight *weight) {
  return weight->layout != INT8_LAYOUT && !d->base.shares && d->base.holding == NULL;
}

static uint64_t room_left(const cuda_device *d) {
  return d->arena.n_bytes_max > d->arena.n_taken ? d->arena.n_bytes_max - d->arena.n_taken : 0;
}

/* So many bytes are not for weights. A cap of zero would be none. */
static void keep_room(cuda_device *d, uint64_t n_bytes) {
  if (n_bytes > 0 && n_bytes == d->arena.n_bytes_max) n_bytes -= 1;
  d->arena.n_bytes_max -= n_bytes;
  d->n_bytes_kept += n_bytes;
}

void cuda_expect_experts(weft_device *device, uint64_t n_bytes) {
  expert_room_expect(&cuda_of(device)->room, n_bytes);
}

/* Places a weight whose type is one that devices hold. */
static weft_status place_held(cuda_device *d, weft_weight *weight, const weft_weight_source *source, unsigned uses,
                              weft_error *error) {
  void *data = NULL;
  weight->layout = layout_of(d, weight, uses);
  uint64_t n_bytes = packed_bytes(weight);
  d->fresh = true;
  if (16 * weft_type_row_bytes(weight->type, weight->n_in) > CUDA_STAGING_BYTES) {
    return weft_fail(error, WEFT_E_UNSUPPORTED, "rows of %u elements are too long for the cuda backend", weight->n_in);
  }
  bool stays = uses == WEFT_USE_EXPERTS && may_stay(d, weight);
  bool is_table = (uses & WEFT_USE_TABLE) != 0 && weft_device_reads_host_tables(&d->base);
  if (stays) keep_room(d, expert_room_reserve(&d->room, room_left(d)));
  weft_status status = d->lost ? WEFT_E_DEVICE : stays && d->room.is_full ? WEFT_E_NO_MEMORY : WEFT_OK;
  if (status == WEFT_OK && !is_table) status = cuda_take_weight(d, n_bytes, &data);
  if (status == WEFT_OK && is_table) {
    status = place_table(d, weight, source, n_bytes, &data);
  } else if (status == WEFT_OK) {
    status = fill_packed(d, weight, source, (uint8_t *)data);
    if (status != WEFT_OK) cuda_give_weight(d, data, n_bytes);
  } else if (status == WEFT_E_NO_MEMORY && stays) {
    keep_room(d, expert_room_fill(&d->room, room_left(d)));
    status = place_on_host(d, weight, source, n_bytes, &data);
  }
  if (stays && status == WEFT_OK) expert_room_placed(&d->room, n_bytes);
  note_arena(d);
  if (status == WEFT_E_NO_MEMORY) {
    return weft_fail(
        error, status, "%s has no room for a %s of %llu MiB%s", is_table ? "host memory" : "the device",
        is_table ? "table" : "weight", (unsigned long long)(n_bytes >> 20),
        kept_layout(weight) == INT8_LAYOUT ? " with its integers; lower --kv-mib, or leave out --precision fast" : "");
  }
  if (status != WEFT_OK) return weft_fail(error, status, "the device refused a weight: %s", weft_status_text(status));
  weight->data = data;
  weight->n_bytes = n_bytes;
  if (is_table) weight->layout |= HOST_LAYOUT;
  return WEFT_OK;
}

weft_status cuda_weight_expect(weft_device *device, weft_weight *weight, unsigned uses, weft_error *error) {
  (void)error;
  weight->type = weft_type_find((int32_t)weight->type)->held_as;
  weight->layout = layout_of(cuda_of(device), weight, uses);
  weight->n_bytes = packed_bytes(weight);
  return WEFT_OK;
}

weft_status cuda_weight_read(weft_device *device, weft_weight *weight, const weft_weight_source *source, unsigned uses,
                             weft_error *error) {
  cuda_device *d = cuda_of(device);
  weft_type held = weft_type_find((int32_t)weight->type)->held_as;
  if (held == weight->type) return place_held(d, weight, source, uses, error);
  repack_source repacked;
  weft_status status = repack_source_open(&repacked, weight->type, source, CUDA_RING_PART_BYTES);
  if (status != WEFT_OK) return weft_fail(error, status, "out of memory: repacking a weight");
  weft_weight as_held = *weight;
  as_held.type = held;
  status = place_held(d, &as_held, &repacked.source, uses, error);
  repack_source_close(&repacked);
  if (status == WEFT_OK) *weight = as_held;
  return status;
}

weft_status cuda_weight_place(weft_device *device, weft_weight *weight, const void *file_bytes, unsigned uses,
                              weft_error *error) {
  const weft_weight_source source = {file_bytes, NULL, NULL};
  return cuda_weight_read(device, weight, &source, uses, error);
}

void cuda_weight_free(weft_device *device, weft_weight *weight) {
  cuda_device *d = cuda_of(device);
  void *data = (void *)(uintptr_t)weight->data;
  if (d->base.shares) return; /* it stays until the device is closed */
  if (cuda_experts_forget(d, data)) {
    d->base.weights.n_bytes_host -= weight->n_bytes;
    if (d->base.weights.n_bytes_host == 0) { /* there is no cache either */
      d->arena.n_bytes_max += d->n_bytes_kept;
      d->n_bytes_kept = 0;
    }
  } else if ((weight->layout & HOST_LAYOUT) != 0) {
    d->base.weights.n_bytes_tables -= weight->n_bytes;
    give_table(d, data);
  } else {
    cuda_give_weight(d, data, weight->n_bytes);
  }
  note_arena(d);
}

weft_status cuda_weight_most(weft_device *device, const weft_weight *weight, float most[2], bool set) {
  cuda_device *d = cuda_of(device);
  void *header = (void *)(uintptr_t)weight->data;
  static_assert(sizeof(packed_header) == 2 * sizeof(float), "what a header has");
  if (d->lost) return WEFT_E_DEVICE;
  cudaError_t error = cudaMemcpyAsync(set ? header : most, set ? (const void *)most : header, sizeof(packed_header),
                                      cudaMemcpyDefault, d->stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(d->stream);
  return cuda_judge(d, error, "the largest scale of a weight");
}

weft_status cuda_weight_unpack(weft_device *device, const weft_weight *weight, void *file_bytes) {
  cuda_device *d = cuda_of(device);
  uint8_t *data = (uint8_t *)(uintptr_t)weight->data, *file = (uint8_t *)file_bytes;
  if (weight->type == WEFT_TYPE_F32) {
    return device->calls->download(device, file_bytes, data + PACKED_HEADER_BYTES, file_bytes_of(weight));
  }
  pack_args a = args_of(weight, data);
  uint64_t n_rows = (uint64_t)weight->n_mats * weight->n_out;
  uint64_t step = CUDA_STAGING_BYTES / a.row_bytes;
  for (a.first_row = 0; a.first_row < n_rows; a.first_row += step) {
    uint64_t n = n_rows - a.first_row < step ? n_rows - a.first_row : step;
    unpack_kernel<<<(uint32_t)n, 256, 0, d->stream>>>(a, d->staging);
    weft_status status = cuda_launched(d, "unpacking a weight");
    if (status == WEFT_OK) {
      status = device->calls->download(device, file + a.first_row * a.row_bytes, d->staging, n * a.row_bytes);
    }
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}
