/* SPDX-License-Identifier: MIT */
/* The product of soft embeddings on Hopper (soft.cu). One producer warp copies the rows' weights and four row tiles of
 * the packed embedding, several steps ahead; two consumer warpgroups make wgmma. portable/soft_product.cuh is that of
 * the portable set. */
#ifndef WEFT_KERNELS_CUDA_SOFT_PRODUCT_CUH
#define WEFT_KERNELS_CUDA_SOFT_PRODUCT_CUH

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/head/soft_args.cuh"
#include "kernels/cuda/wgmma.cuh"

enum {
  SOFT_THREADS = 384, /* two consumer warpgroups, one producer */
  SOFT_STAGES = 4
};

template <int T>
struct soft_shape : soft_tile<T> {
  static constexpr uint32_t bytes = SOFT_STAGES * soft_tile<T>::stage;
};

/* What one lane of the producer warp does. A step's stage may be overwritten when all eight consumer warps have
 * arrived at its barrier `spent`. */
template <int T>
static __device__ void produce_steps(const soft_args &a, uint32_t first, uint32_t n, uint8_t *memory, uint64_t *filled,
                                     uint64_t *spent) {
  soft_columns columns = columns_of_block<T>(a);
  const uint8_t *weights = soft_weights_of(a);
  for (uint32_t i = 0; i < n; i++) {
    uint32_t slot = i % SOFT_STAGES, step = first + i;
    uint8_t *stage = memory + slot * soft_shape<T>::stage;
    if (i >= SOFT_STAGES) mbarrier_wait(&spent[slot], (i / SOFT_STAGES - 1) & 1u);
    mbarrier_expect(&filled[slot], SOFT_WEIGHT_BYTES + SOFT_TILES * columns.n_bytes);
    bulk_copy(stage, weights + (uint64_t)step * SOFT_WEIGHT_BYTES, SOFT_WEIGHT_BYTES, &filled[slot]);
    for (uint32_t t = 0; t < SOFT_TILES; t++) {
      uint32_t tile = min(step * SOFT_TILES + t, a.dims.n_tiles - 1); /* beyond the last one weights are 0 */
      bulk_copy(stage + SOFT_WEIGHT_BYTES + t * soft_shape<T>::tile, columns.from + (uint64_t)tile * a.dims.tile_bytes,
                columns.n_bytes, &filled[slot]);
    }
  }
}

/* A warp adds a span for 32 columns x 128 rows. It gives a step's place back when the last product of the step has
 * ended, which is known after a wait in the next step. */
template <int T>
static __device__ __forceinline__ void multiply_span(const soft_args &a, uint32_t n, const uint8_t *memory,
                                                     uint64_t *filled, uint64_t *spent, uint16_t *table) {
  using shape = soft_shape<T>;
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, unit = 2 * soft_columns_at(a) + warp / 4;
  bool tail = a.dims.is_tail != 0 && unit + 1 == a.dims.n_units;
  prescale_powers powers = powers_of<T>(prescale_exponent(T, (const packed_header *)(const void *)a.data), a.values);
  transposed_places at = transposed_places_of<T>(warp / 4, warp % 4, lane, shape::tile, tail);
  uint32_t w[2][2][4];
  float sum[2][HEAD_ROWS / 8][4];
#pragma unroll
  for (int at = 0; at < 4 * SOFT_SUMS; at++) sum[at / 64][at / 4 % 16][at % 4] = 0.0f;
#pragma unroll 1
  for (uint32_t i = 0; i < n; i++) {
    uint32_t slot = i % SOFT_STAGES;
    const uint8_t *stage = memory + slot * shape::stage, *tiles = stage + SOFT_WEIGHT_BYTES;
    transposed_codes<T> codes[4];
    transposed_factors factors[4];
    mbarrier_wait(&filled[slot], i / SOFT_STAGES & 1u);
    transpose_codes<T>(tiles, at, codes);
    transpose_factors<T>(tiles, at, powers, table, factors);
    uint64_t rows = wgmma_descriptor(stage, 256);
#pragma unroll
    for (int x = 0; x < 4; x++) {
      wgmma_wait<1>(); /* all products but the last have ended, so their operands may be overwritten */
      if (x == 1 && i > 0) mbarrier_arrive_warp(&spent[(i - 1) % SOFT_STAGES]);
      if constexpr (packed_bits(T) == 16) transpose_codes_of<T>(tiles, at, x, codes[x]);
      transposed_operands<T>(codes[x], factors[x], a.values, w[x % 2]);
      wgmma_fence();
#pragma unroll
      for (int part = 0; part < 2; part++)
        wgmma<HEAD_ROWS / 8, packed_is_bf16(T)>(sum[part], w[x % 2][part], rows + (uint64_t)(x * HEAD_ROWS * 32 >> 4));
      wgmma_commit();
    }
  }
  wgmma_wait<0>();
  store_span_sums(a, sum);
}

template <int T>
static __global__ void __launch_bounds__(SOFT_THREADS, 1) soft_kernel(const __grid_constant__ soft_args a) {
  launch_dependents_and_wait();
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(16) uint16_t table[SOFT_WARPS][SOFT_TABLE];
  __shared__ __align__(8) uint64_t filled[SOFT_STAGES], spent[SOFT_STAGES];
  uint32_t first = blockIdx.y * a.span_steps, n = min(a.span_steps, a.n_steps - first), warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < SOFT_STAGES; i++)
      mbarrier_init(&filled[i], 1), mbarrier_init(&spent[i], SOFT_WARPS * WARP_ARRIVALS);
    mbarrier_init_fence();
  }
  __syncthreads();
  if (warp >= SOFT_WARPS) {
    setmaxnreg_dec<40>();
    if (threadIdx.x == SOFT_WARPS * 32) produce_steps<T>(a, first, n, memory, filled, spent);
  } else {
    setmaxnreg_inc<232>();
    multiply_span<T>(a, n, memory, filled, spent, table[warp]);
  }
}

#endif
