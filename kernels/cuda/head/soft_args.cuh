/* SPDX-License-Identifier: MIT */
/* What the kernels of soft.cu share with its product (soft_product.cuh of a kernel set). */
#ifndef WEFT_KERNELS_CUDA_SOFT_ARGS_CUH
#define WEFT_KERNELS_CUDA_SOFT_ARGS_CUH

#include "kernels/cuda/head/soft.cuh"

enum {
  SOFT_WARPS = 8, /* that multiply, of a block */
  SOFT_WEIGHT_BYTES = HEAD_ROWS * SOFT_TOKENS * 2,
  SOFT_SUMS = 32 /* of a thread, four numbers each */
};

typedef struct soft_args {
  head_group group;
  const uint8_t *data; /* of the weight */
  packed_dims dims;
  value_table values;
  uint32_t n_in, n_steps, span_steps, n_spans;
  uint32_t n_row_blocks;  /* of HEAD_ROWS rows; blocks that share a part of the embedding follow one another */
  uint64_t weights_bytes; /* of a row block's weights */
} soft_args;

/* The rows, in HEAD_ROWS, and the columns, in 256, of a block. */
static __device__ __forceinline__ uint32_t soft_row_block(const soft_args &a) {
  return blockIdx.x % a.n_row_blocks;
}

static __device__ __forceinline__ uint32_t soft_columns_at(const soft_args &a) {
  return blockIdx.x / a.n_row_blocks;
}

/* The weights of a block's rows. */
static __device__ __forceinline__ const uint8_t *soft_weights_of(const soft_args &a) {
  return (const uint8_t *)a.group.weights + soft_row_block(a) * a.weights_bytes;
}

/* Packed row tiles of a step in shared memory: their bytes, and bytes from one to the next. */
template <int T>
struct soft_tile {
  static constexpr packed_shape f = packed_shape_of(T);
  static constexpr uint32_t bytes_of_tile = f.unit == 256 ? packed_unit_bytes(f) : 2 * packed_unit_bytes(f);
  static constexpr uint32_t tile = bytes_of_tile + 16;
  static constexpr uint32_t stage = SOFT_WEIGHT_BYTES + (SOFT_TILES * tile + 127) / 128 * 128;
  static_assert(tile % 64 == 16 || tile % 64 == 48, "row tiles of a step begin in different banks");
};

/* What a block reads of each row tile: bytes from `from` of row tile 0 on. */
typedef struct soft_columns {
  const uint8_t *from;
  uint32_t n_bytes;
} soft_columns;

template <int T>
static __device__ __forceinline__ soft_columns columns_of_block(const soft_args &a) {
  constexpr packed_shape f = packed_shape_of(T);
  uint32_t unit = 2 * soft_columns_at(a), n_units = min(2u, a.dims.n_units - unit),
           n_bytes = soft_tile<T>::bytes_of_tile;
  bool tail = a.dims.is_tail != 0 && unit + n_units == a.dims.n_units;
  if (f.unit == 128) n_bytes = n_units * packed_unit_bytes(f) - (tail ? packed_unit_bytes(f) / 2 : 0);
  return {packed_block_of<T>(a.data + PACKED_HEADER_BYTES, unit, false).codes, n_bytes};
}

/* Leaves a thread's sums for soft_reduce_kernel. */
static __device__ __forceinline__ void store_span_sums(const soft_args &a, const float (&sum)[2][HEAD_ROWS / 8][4]) {
  float4 *out =
      (float4 *)a.group.spans + (uint64_t)(blockIdx.y * gridDim.x + blockIdx.x) * SOFT_SUMS * 256 + threadIdx.x;
#pragma unroll
  for (int at = 0; at < SOFT_SUMS; at++) {
    const float(&four)[4] = sum[at / 16][at % 16];
    if (soft_row_block(a) * HEAD_ROWS + at % 16 * 8 < a.group.n_rows)
      out[at * 256] = make_float4(four[0], four[1], four[2], four[3]);
  }
}

#endif
