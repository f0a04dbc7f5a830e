/* SPDX-License-Identifier: MIT */
/* W8A8 GEMM (gemm/w8a8.h) of many rows for the portable set, dense and grouped: codes are requantised to int8 in
 * registers, rows come by ldmatrix, products are mma.sync. Items and stages are those of gemm_tile.cuh; a stage is half
 * a span, whose sums are exact in s32. Each size of items has a file of its own, as in gemm.cuh. */
#ifndef WEFT_KERNELS_CUDA_PORTABLE_W8A8_GEMM_CUH
#define WEFT_KERNELS_CUDA_PORTABLE_W8A8_GEMM_CUH

#include "kernels/cuda/gemm/w8a8.cuh"
#include "kernels/cuda/portable/gemm_tile.cuh"

/* A warp's part of an item: row tiles from `tile` on, and all rows, of which n_eights eights exist; its steps and the
 * scales of the rows in the span. */
template <class S>
struct span_warp {
  uint32_t tile, n_eights;
  const uint8_t *steps[S::per_warp]; /* of the row tile's span 0 */
  const float *scales;               /* of the lane's first row, span 0 */
  float step[S::per_warp][2], over[S::per_warp][2];
  uint32_t next[S::per_warp][2]; /* steps of the span behind it, as they are stored */
  float2 scale[S::nt];
};

/* Loads the steps of a span. They are needed at once when it begins, so this is done a span before. */
template <class S>
static __device__ __forceinline__ void load_steps(const gemm_args &a, uint32_t span, span_warp<S> &own) {
  span = min(span, w8a8_spans_of(a) - 1);
#pragma unroll
  for (uint32_t t = 0; t < S::per_warp; t++) {
    const uint16_t *steps = (const uint16_t *)(const void *)(own.steps[t] + span * W8A8_STEPS_BYTES);
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) own.next[t][r] = steps[threadIdx.x % 32 / 4 + 8 * r];
  }
}

/* Opens a span, whose steps have been loaded, and loads those of the next one and its own rows' scales: what they are
 * needed for comes later. */
template <class S>
static __device__ __forceinline__ void open_span(const gemm_args &a, uint32_t span, span_warp<S> &own) {
#pragma unroll
  for (uint32_t t = 0; t < S::per_warp; t++) {
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
      own.step[t][r] = __uint_as_float(own.next[t][r] << 16);
      own.over[t][r] = inverse_of(own.step[t][r]);
    }
  }
  load_steps(a, span + 1, own);
#pragma unroll
  for (uint32_t n = 0; n < S::nt; n++) {
    own.scale[n] = make_float2(0.0f, 0.0f);
    if (n < own.n_eights)
      own.scale[n] = *(const float2 *)(const void *)(own.scales + (uint64_t)span * a.x_tiles * 8 + 8 * n);
  }
}

/* The products of a stage with the first N eights of rows, without a branch between them. */
template <int T, class S, uint32_t N>
static __device__ __forceinline__ void multiply_stage(const uint8_t *stage, uint32_t unit, bool tail,
                                                      const span_warp<S> &own, int32_t (&d)[S::per_warp][S::nt][4]) {
  uint32_t lane = threadIdx.x % 32, x = shared_address(stage + S::w_stage);
  lane_codes<T> codes[S::per_warp];
  dequant_factors factors[S::per_warp];
#pragma unroll
  for (uint32_t t = 0; t < S::per_warp; t++) {
    packed_block p = stage_block<T>(stage + (own.tile + t) * S::w_tile, unit, tail);
    lane_scales<T> scales;
    load_codes<T>(p, lane, codes[t]);
    load_scales<T>(p, lane / 4, lane % 4, scales);
    w8a8_factors<T>(scales, unit % 2, lane % 4, own.over[t], factors[t]);
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t w[S::per_warp][4], b_at = x + operand_b_at((uint32_t)(2 * i), 1024);
#pragma unroll
    for (uint32_t t = 0; t < S::per_warp; t++) requantise_operands<T>(codes[t], factors[t], i, w[t]);
#pragma unroll
    for (uint32_t n = 0; n < N; n += 2) {
      uint32_t b[4];
      ldmatrix_x4(b, b_at + n * 1024);
#pragma unroll
      for (uint32_t t = 0; t < S::per_warp; t++) {
        mma_s8(d[t][n], w[t], b[0], b[1]);
        mma_s8(d[t][n + 1], w[t], b[2], b[3]);
      }
    }
  }
}

/* sums += the span's integers times their scales; the integers begin at 0 again. */
template <class S>
static __device__ __forceinline__ void scale_sums(const span_warp<S> &own, int32_t (&d)[S::per_warp][S::nt][4],
                                                  float (&sums)[S::per_warp][S::nt][4]) {
#pragma unroll
  for (uint32_t t = 0; t < S::per_warp; t++) {
#pragma unroll
    for (uint32_t n = 0; n < S::nt; n++) {
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        float scale = __fmul_rn(i % 2 == 0 ? own.scale[n].x : own.scale[n].y, own.step[t][i / 2]);
        sums[t][n][i] = __fmaf_rn((float)d[t][n][i], scale, sums[t][n][i]);
        d[t][n][i] = 0;
      }
    }
  }
}

/* Stores a row tile's sums. Lane 4 g + c has, of every eight rows, rows 2 c and 2 c + 1 of outputs g and g + 8. */
template <class S>
static __device__ __forceinline__ void store_tile(const gemm_args &a, const tile_item &item, uint32_t own_tile,
                                                  const float (&sums)[S::nt][4]) {
  weight_tile t = find_tile(a, item.tile + own_tile);
  const gemm_weight &weight = a.weight[t.w];
  uint32_t lane = threadIdx.x % 32, out = t.tile * 16 + lane / 4;
  const float scale = scale_of(weight, item.matrix);
#pragma unroll
  for (uint32_t n = 0; n < S::nt; n++) {
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      uint32_t r = 8 * n + lane % 4 * 2 + i % 2, column = out + i / 2 * 8;
      if (r >= item.n || column >= weight.n_out) continue;
      uint64_t at = (uint64_t)(item.first + r) * weight.y_stride + column;
      float value = __fmul_rn(sums[n][i], scale);
      if (a.y_is_bf16)
        ((__nv_bfloat16 *)(void *)weight.y)[at] = __float2bfloat16_rn(value);
      else
        weight.y[at] = value;
    }
  }
}

template <int T, class S, class F>
static __device__ __forceinline__ void multiply_item(const gemm_args &a, const tile_item &item, F &&step) {
  uint32_t n_spans = w8a8_spans_of(a);
  span_warp<S> own;
  own.tile = threadIdx.x / 32 * S::per_warp, own.n_eights = (item.n + 7) / 8;
  own.scales = (const float *)(const void *)((const uint8_t *)a.x + w8a8_scales_at(n_spans, a.x_tiles)) + item.first +
               threadIdx.x % 4 * 2;
#pragma unroll
  for (uint32_t t = 0; t < S::per_warp; t++) {
    weight_tile c = find_tile(a, item.tile + own.tile + t);
    uint64_t tile = (uint64_t)item.matrix * a.weight[c.w].n_tiles + min(c.tile, a.weight[c.w].n_tiles - 1);
    own.steps[t] = a.weight[c.w].steps + tile * n_spans * W8A8_STEPS_BYTES;
  }
  load_steps(a, 0, own);
  float sums[S::per_warp][S::nt][4] = {};
  int32_t d[S::per_warp][S::nt][4] = {};
#pragma unroll 1
  for (uint32_t unit = 0; unit < a.n_units; unit++) {
    if (unit % 2 == 0) open_span(a, unit / 2, own);
    const uint8_t *stage = step();
    bool tail = is_tail_unit_of<T>(a, unit);
    if (S::few == S::nt || own.n_eights > S::few)
      multiply_stage<T, S, S::nt>(stage, unit, tail, own, d);
    else
      multiply_stage<T, S, S::few>(stage, unit, tail, own, d);
    if (unit % 2 == 1 || unit + 1 == a.n_units) scale_sums(own, d, sums);
  }
#pragma unroll
  for (uint32_t t = 0; t < S::per_warp; t++) store_tile<S>(a, item, own.tile + t, sums[t]);
}

template <int T, int SIZE>
static __global__ void __launch_bounds__(128, SIZE == TILE_THIN ? 5 : 1)
    w8a8_gemm_kernel(const __grid_constant__ gemm_args a) {
  launch_dependents_and_wait();
  using S = gemm_tile<T, SIZE, 1024>;
  extern __shared__ __align__(1024) uint8_t memory[]; /* stages: row tiles of weights, rows */
  multiply_items<T, S, 1024>(a, memory, [&](const tile_item &item, auto &step) { multiply_item<T, S>(a, item, step); });
}

/* ---- host ------------------------------------------------------------------------------------------------ */

/* Only types that w8a8_takes have kernels. */
template <int SIZE>
static weft_status launch_items(cuda_device *d, const gemm_args *args) {
  return dispatch_packed_type(args->type, [&](auto type) {
    constexpr int T = decltype(type)::value;
    if constexpr (w8a8_takes(T)) {
      using S = gemm_tile<T, SIZE, 1024>;
      cuda_start(d, w8a8_gemm_kernel<T, SIZE>, blocks_of<S>(d, *args), S::threads, S::bytes, *args);
      return cuda_launched(d, "a product of 8 bits");
    } else {
      return WEFT_E_UNSUPPORTED;
    }
  });
}

#endif
