/* SPDX-License-Identifier: MIT */
/* The product of soft embeddings in the portable set (head/soft.cu): all threads copy a step's weights of rows and four
 * row tiles of the packed embedding (tile.cuh), and the weights come to mma.sync by ldmatrix. */
#ifndef WEFT_KERNELS_CUDA_PORTABLE_SOFT_PRODUCT_CUH
#define WEFT_KERNELS_CUDA_PORTABLE_SOFT_PRODUCT_CUH

#include "kernels/cuda/head/soft_args.cuh"
#include "kernels/cuda/portable/tile.cuh"

enum { SOFT_THREADS = 32 * SOFT_WARPS };

template <int T>
struct soft_shape : soft_tile<T> {
  static constexpr uint32_t stage = soft_tile<T>::stage;
  static constexpr uint32_t table = packed_bits(T) == 16 ? 0 : SOFT_WARPS * SOFT_TABLE * 2; /* of factors */
  static constexpr uint32_t fit = (PORTABLE_SHARED_BYTES_MOST - table) / stage, stages = fit > 4 ? 4 : fit;
  static constexpr uint32_t bytes = stages * stage + table;
  static_assert(stages >= 2, "two stages at least");
};

/* Starts the copies of step `step`, if it is before `end`. */
template <int T>
static __device__ __forceinline__ void copy_step(const soft_args &a, const soft_columns &columns, uint32_t step,
                                                 uint32_t end, uint8_t *stage) {
  if (step < end) {
    copy_bytes(stage, soft_weights_of(a) + (uint64_t)step * SOFT_WEIGHT_BYTES, SOFT_WEIGHT_BYTES, threadIdx.x,
               SOFT_THREADS);
#pragma unroll
    for (uint32_t t = 0; t < SOFT_TILES; t++) {
      uint32_t tile = min(step * SOFT_TILES + t, a.dims.n_tiles - 1); /* beyond the last one weights are 0 */
      copy_bytes(stage + SOFT_WEIGHT_BYTES + t * soft_shape<T>::tile, columns.from + (uint64_t)tile * a.dims.tile_bytes,
                 columns.n_bytes, threadIdx.x, SOFT_THREADS);
    }
  }
  cp_async_commit();
}

/* The products of a step: four of 16 tokens, each of the warp's 32 columns and 128 rows. */
template <int T>
static __device__ __forceinline__ void multiply_step(const soft_args &a, const uint8_t *stage,
                                                     const transposed_places &at, const prescale_powers &powers,
                                                     uint16_t *table, float (&sum)[2][HEAD_ROWS / 8][4]) {
  const uint8_t *tiles = stage + SOFT_WEIGHT_BYTES;
  transposed_codes<T> codes[4];
  transposed_factors factors[4];
  transpose_codes<T>(tiles, at, codes);
  transpose_factors<T>(tiles, at, powers, table, factors);
#pragma unroll
  for (int x = 0; x < 4; x++) {
    uint32_t w[2][4], rows = shared_address(stage) + x * HEAD_ROWS * 32 + threadIdx.x % 32 * 16;
    if constexpr (packed_bits(T) == 16) transpose_codes_of<T>(tiles, at, x, codes[x]);
    transposed_operands<T>(codes[x], factors[x], a.values, w);
#pragma unroll
    for (int n = 0; n < HEAD_ROWS / 8; n += 2) {
      uint32_t b[4]; /* of eight rows the two eights of tokens lie one behind the other */
      ldmatrix_x4(b, rows + n * 256);
#pragma unroll
      for (int part = 0; part < 2; part++) {
        mma<packed_is_bf16(T)>(sum[part][n], w[part], b[0], b[1]);
        mma<packed_is_bf16(T)>(sum[part][n + 1], w[part], b[2], b[3]);
      }
    }
  }
}

template <int T>
static __global__ void __launch_bounds__(SOFT_THREADS, 1) soft_kernel(const __grid_constant__ soft_args a) {
  launch_dependents_and_wait();
  using shape = soft_shape<T>;
  extern __shared__ __align__(128) uint8_t memory[]; /* stages; of each warp a table */
  uint32_t first = blockIdx.y * a.span_steps, end = min(first + a.span_steps, a.n_steps);
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, unit = 2 * soft_columns_at(a) + warp / 4;
  bool tail = a.dims.is_tail != 0 && unit + 1 == a.dims.n_units;
  prescale_powers powers = powers_of<T>(prescale_exponent(T, (const packed_header *)(const void *)a.data), a.values);
  transposed_places at = transposed_places_of<T>(warp / 4, warp % 4, lane, shape::tile, tail);
  uint16_t *table = (uint16_t *)(void *)(memory + shape::stages * shape::stage) + warp * SOFT_TABLE;
  soft_columns columns = columns_of_block<T>(a);
  float sum[2][HEAD_ROWS / 8][4];
#pragma unroll
  for (int i = 0; i < 4 * SOFT_SUMS; i++) sum[i / 64][i / 4 % 16][i % 4] = 0.0f;
  for (uint32_t i = 0; i + 1 < shape::stages; i++) copy_step<T>(a, columns, first + i, end, memory + i * shape::stage);
#pragma unroll 1
  for (uint32_t step = first, slot = 0; step < end; step++) {
    ring_step<shape::stages>();
    uint32_t before = slot == 0 ? shape::stages - 1 : slot - 1;
    copy_step<T>(a, columns, step + shape::stages - 1, end, memory + before * shape::stage);
    multiply_step<T>(a, memory + slot * shape::stage, at, powers, table, sum);
    slot = slot + 1 == shape::stages ? 0 : slot + 1;
  }
  store_span_sums(a, sum);
}

#endif
