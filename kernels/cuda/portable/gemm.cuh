/* SPDX-License-Identifier: MIT */
/* GEMM of many rows in 16 bits for the portable set, dense and grouped: codes are dequantised to operands in registers,
 * rows come by ldmatrix, products are mma.sync. Items and stages are those of gemm_tile.cuh, the layouts of weights and
 * rows and the numerics those of gemm.h: within a split products ascend, splits are added ascending from 0.
 *
 * Kernels of a size of items are compiled in a file of their own (gemm_wide.cu and so on), which takes a third of the
 * time. */
#ifndef WEFT_KERNELS_CUDA_PORTABLE_GEMM_CUH
#define WEFT_KERNELS_CUDA_PORTABLE_GEMM_CUH

#include "kernels/cuda/portable/gemm_tile.cuh"

/* Sums of a warp: of its row tiles, and of the rows in eights. */
template <class S>
struct warp_sums {
  float of[S::per_warp][S::nt][4];
};

template <class S>
static __device__ __forceinline__ void clear_sums(warp_sums<S> &sums) {
#pragma unroll
  for (uint32_t t = 0; t < S::per_warp; t++)
#pragma unroll
    for (uint32_t n = 0; n < S::nt; n++)
      sums.of[t][n][0] = sums.of[t][n][1] = sums.of[t][n][2] = sums.of[t][n][3] = 0.0f;
}

template <class S>
static __device__ __forceinline__ void add_split(warp_sums<S> &all, warp_sums<S> &sums) {
#pragma unroll
  for (uint32_t t = 0; t < S::per_warp; t++)
#pragma unroll
    for (uint32_t n = 0; n < S::nt; n++)
#pragma unroll
      for (uint32_t e = 0; e < 4; e++) all.of[t][n][e] = __fadd_rn(all.of[t][n][e], sums.of[t][n][e]);
  clear_sums(sums);
}

/* What a warp multiplies: row tiles from `tile` on, counted from the item's first, and all rows. */
typedef struct warp_place {
  uint32_t tile, n_eights; /* n_eights: of rows that exist */
} warp_place;

/* The products of 128 inputs of a stage, or of 64, with the first N eights of rows. Between them nothing branches, so
 * that operands are fetched while others are multiplied. */
template <int T, class S, uint32_t N>
static __device__ __forceinline__ void multiply_stage(const uint8_t *stage, uint32_t unit, bool tail,
                                                      const warp_place &own,
                                                      const prescale_powers (&powers)[S::per_warp],
                                                      warp_sums<S> &sums) {
  uint32_t lane = threadIdx.x % 32, x = shared_address(stage + S::w_stage) + unit % S::units * S::x_unit;
  lane_codes<T> codes[S::per_warp];
  dequant_factors factors[S::per_warp];
#pragma unroll
  for (uint32_t t = 0; t < S::per_warp; t++) {
    packed_block p = stage_block<T, S>(stage + (own.tile + t) * S::w_tile, unit, tail);
    lane_scales<T> scales;
    load_codes<T>(p, lane, codes[t]);
    load_scales<T>(p, lane / 4, lane % 4, scales);
    make_dequant_factors<T>(scales, p.half, lane % 4, powers[t], factors[t]);
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (i == 2 && tail) break;
    uint32_t w[S::per_warp][2][4];
#pragma unroll
    for (uint32_t t = 0; t < S::per_warp; t++) dequantise_operands<T>(codes[t], factors[t], i, w[t]);
#pragma unroll
    for (int e = 0; e < 2; e++) {
      uint32_t b_at = x + i / 2 * 1024 + operand_b_at((uint32_t)(i % 2 * 4 + 2 * e), 2048);
#pragma unroll
      for (uint32_t n = 0; n < N; n += 2) {
        uint32_t b[4];
        ldmatrix_x4(b, b_at + n * 2048);
#pragma unroll
        for (uint32_t t = 0; t < S::per_warp; t++) {
          mma<packed_is_bf16(T)>(sums.of[t][n], w[t][e], b[0], b[1]);
          mma<packed_is_bf16(T)>(sums.of[t][n + 1], w[t][e], b[2], b[3]);
        }
      }
    }
  }
}

/* Stores a row tile's sums, unscaled. Lane 4 g + c has, of every eight rows, rows 2 c and 2 c + 1 of outputs g and
 * g + 8. */
template <class S>
static __device__ __forceinline__ void store_tile(const gemm_args &a, const gemm_weight &weight, uint32_t tile,
                                                  const tile_item &item, float w_unscale,
                                                  const float (&sums)[S::nt][4]) {
  uint32_t lane = threadIdx.x % 32, row = lane % 4 * 2, out = tile * 16 + lane / 4;
  bool has_low = out < weight.n_out, has_high = out + 8 < weight.n_out;
  const float *undo = a.x_unscale + item.first + row;
  float *y = weight.y + (uint64_t)(item.first + row) * weight.y_stride + out;
#pragma unroll
  for (uint32_t n = 0; n < S::nt; n++, y += 8 * weight.y_stride) {
#pragma unroll
    for (uint32_t j = 0; j < 2; j++) {
      if (row + 8 * n + j >= item.n) continue;
      float by = undo[8 * n + j], *to = y + j * weight.y_stride;
      if (has_low) to[0] = __fmul_rn(__fmul_rn(sums[n][j], by), w_unscale);
      if (has_high) to[8] = __fmul_rn(__fmul_rn(sums[n][j + 2], by), w_unscale);
    }
  }
}

template <int T>
static __device__ __forceinline__ int load_prescale(const gemm_args &a, uint32_t w) {
  return prescale_exponent(T, (const packed_header *)(const void *)a.weight[w].header);
}

/* prescale: of weight 0. */
template <int T, class S, class F>
static __device__ __forceinline__ void multiply_item(const gemm_args &a, const tile_item &item, int prescale,
                                                     F &&step) {
  const warp_place own = {threadIdx.x / 32 * S::per_warp, (item.n + 7) / 8};
  warp_sums<S> all, sums;
  prescale_powers powers[S::per_warp];
  float w_unscale[S::per_warp];
  weight_tile t[S::per_warp];
#pragma unroll
  for (uint32_t i = 0; i < S::per_warp; i++) {
    t[i] = find_tile(a, item.tile + own.tile + i);
    const gemm_weight &weight = a.weight[t[i].w];
    int own_prescale = t[i].w == 0 ? prescale : load_prescale<T>(a, t[i].w);
    powers[i] = powers_of<T>(own_prescale, a.values);
    w_unscale[i] = weight_unscale_of(weight, item.matrix, own_prescale);
  }
  clear_sums(all), clear_sums(sums);
  uint32_t left = a.split_units;
#pragma unroll 1
  for (uint32_t first = 0; first < a.n_units; first += S::units) {
    const uint8_t *stage = step();
#pragma unroll
    for (uint32_t u = 0; u < S::units; u++) {
      uint32_t unit = S::units == 1 ? first : first + u;
      bool tail = is_tail_unit_of<T>(a, unit);
      if (S::few == S::nt || own.n_eights > S::most_of)
        multiply_stage<T, S, S::nt>(stage, S::units == 1 ? unit : u, tail, own, powers, sums);
      else if (S::most_of < S::nt && own.n_eights > S::few)
        multiply_stage<T, S, S::most_of>(stage, S::units == 1 ? unit : u, tail, own, powers, sums);
      else
        multiply_stage<T, S, S::few>(stage, S::units == 1 ? unit : u, tail, own, powers, sums);
      if (--left > 0 && unit + 1 < a.n_units) continue;
      add_split(all, sums);
      left = a.split_units;
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < S::per_warp; i++)
    store_tile<S>(a, a.weight[t[i].w], t[i].tile, item, w_unscale[i], all.of[i]);
}

template <int T, int SIZE>
static __global__ void __launch_bounds__(128, SIZE == TILE_THIN ? 5 : 1)
    gemm_kernel(const __grid_constant__ gemm_args a) {
  wait_for_prior_grids();
  using S = gemm_tile<T, SIZE, 2048>;
  extern __shared__ __align__(1024) uint8_t memory[]; /* stages: row tiles of weights, rows */
  const int prescale = load_prescale<T>(a, 0);
  multiply_items<T, S, 2048>(a, memory, all_blocks(),
                             [&](const tile_item &item, auto &step) { multiply_item<T, S>(a, item, prescale, step); });
  launch_dependent_grids();
}

/* ---- host ------------------------------------------------------------------------------------------------ */

template <int SIZE>
static weft_status launch_items(cuda_device *d, const gemm_args *args) {
  return dispatch_packed_type(args->type, [&](auto type) {
    constexpr int T = decltype(type)::value;
    using S = gemm_tile<T, SIZE, 2048>;
    cuda_start_in_order(d, gemm_kernel<T, SIZE>, blocks_of<S>(d, *args), S::threads, S::bytes, *args);
    return cuda_launched(d, "a product of many rows");
  });
}

#endif
