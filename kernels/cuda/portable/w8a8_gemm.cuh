/* SPDX-License-Identifier: MIT */
/* W8A8 GEMM (gemm/w8a8.h) of many rows for the portable set, dense and grouped: codes are requantised to int8 in
 * registers, rows come by ldmatrix, products are mma.sync. Items and stages are those of gemm_tile.cuh; a stage is a
 * span, whose sums are exact in s32, or half of one. Each size of items has a file of its own, as in gemm.cuh. */
#ifndef WEFT_KERNELS_CUDA_PORTABLE_W8A8_GEMM_CUH
#define WEFT_KERNELS_CUDA_PORTABLE_W8A8_GEMM_CUH

#include "kernels/cuda/gemm/w8a8.cuh"
#include "kernels/cuda/portable/gemm_tile.cuh"

/* A warp's part of an item: row tiles from `tile` on, and all rows, of which n_eights eights exist; and its steps in
 * the span. */
template <class S>
struct span_warp {
  uint32_t tile, n_eights;
  float step[S::per_warp][2], over[S::per_warp][2];
};

/* Opens the span of a stage. */
template <class S>
static __device__ __forceinline__ void open_span(const uint8_t *stage, span_warp<S> &own) {
  const uint16_t *steps = (const uint16_t *)(const void *)(stage + S::steps_at) + own.tile * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (uint32_t t = 0; t < S::per_warp; t++) {
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
      own.step[t][r] = __uint_as_float((uint32_t)steps[t * 16 + r * 8] << 16);
      own.over[t][r] = inverse_of(own.step[t][r]);
    }
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
    packed_block p = stage_block<T, S>(stage + (own.tile + t) * S::w_tile, unit, tail);
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

/* A lane's part of the address from which ldmatrix_x4 gets the operands b of eight rows: pieces `piece` .. + 3. */
static __device__ __forceinline__ uint32_t operands_of_one(uint32_t piece) {
  uint32_t lane = threadIdx.x % 32, row = lane % 8;
  return row * 128 + ((piece + lane / 8) ^ row) * 16;
}

/* The integers of a span, whose stage has both units, and N eights of rows. */
template <int T, class S, uint32_t N>
static __device__ __forceinline__ void multiply_span(const gemm_args &a, const uint8_t *stage, uint32_t span,
                                                     const span_warp<S> &own, int32_t (&d)[N][4]) {
  uint32_t lane = threadIdx.x % 32, x = shared_address(stage + S::w_stage);
  const uint8_t *tile = stage + own.tile * S::w_tile;
#pragma unroll
  for (uint32_t u = 0; u < 2; u++) {
    uint32_t unit = 2 * span + u;
    if (packed_shape_of(T).unit == 128 && u == 1 && unit >= a.n_units) continue;
    packed_block p = packed_block_of<T>(tile, u, is_tail_unit_of<T>(a, unit));
    lane_codes<T> codes;
    lane_scales<T> scales;
    dequant_factors factors;
    load_codes<T>(p, lane, codes);
    load_scales<T>(p, lane / 4, lane % 4, scales);
    w8a8_factors<T>(scales, u, lane % 4, own.over[0], factors);
    uint32_t b[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      uint32_t w[4];
      requantise_operands<T>(codes, factors, (int)i, w);
      if constexpr (N == 1) {
        if (i % 2 == 0) ldmatrix_x4(b, x + u * S::x_unit + operands_of_one(2 * i));
        mma_s8(d[0], w, b[i % 2 * 2], b[i % 2 * 2 + 1]);
      } else {
#pragma unroll
        for (uint32_t n = 0; n < N; n += 2) {
          ldmatrix_x4(b, x + u * S::x_unit + n * 1024 + operand_b_at(2 * i, 1024));
          mma_s8(d[n], w, b[0], b[1]);
          mma_s8(d[n + 1], w, b[2], b[3]);
        }
      }
    }
  }
}

/* sums += the span's integers times their scales, which came with its stage; the integers begin at 0 again. */
template <class S>
static __device__ __forceinline__ void scale_sums(const uint8_t *stage, const span_warp<S> &own,
                                                  int32_t (&d)[S::per_warp][S::nt][4],
                                                  float (&sums)[S::per_warp][S::nt][4]) {
  const float2 *scales = (const float2 *)(const void *)(stage + S::scales_at) + threadIdx.x % 4;
#pragma unroll
  for (uint32_t n = 0; n < S::nt; n++) {
    float2 rows = scales[4 * n];
#pragma unroll
    for (uint32_t t = 0; t < S::per_warp; t++) {
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        float scale = __fmul_rn(i % 2 == 0 ? rows.x : rows.y, own.step[t][i / 2]);
        sums[t][n][i] = __fmaf_rn((float)d[t][n][i], scale, sums[t][n][i]);
        d[t][n][i] = 0;
      }
    }
  }
}

/* sums += the integers of the spans of a round of all teams, span by span, where team t has the t-th part of the rows'
 * eights. stages: the teams', of which the first n_spans have a span. given: memory for the integers of all teams,
 * which begin at 0 again. */
template <class S>
static __device__ __forceinline__ void scale_sums_of_teams(const uint8_t *stages, uint8_t *given, uint32_t own_tile,
                                                           uint32_t n_spans, int32_t (&d)[S::per_warp][S::nt][4],
                                                           float (&sums)[S::nt / S::teams][4]) {
  constexpr uint32_t n_own = S::nt / S::teams;
  uint32_t lane = threadIdx.x % 32, team = team_of<S>();
  float4 *of_tile = (float4 *)(void *)given + own_tile * S::nt * 32 + lane; /* [team][row tile][eight][lane] */
#pragma unroll
  for (uint32_t n = 0; n < S::nt; n++) {
    of_tile[(team * S::tiles * S::nt + n) * 32] =
        make_float4((float)d[0][n][0], (float)d[0][n][1], (float)d[0][n][2], (float)d[0][n][3]);
    d[0][n][0] = d[0][n][1] = d[0][n][2] = d[0][n][3] = 0;
  }
  __syncthreads();
#pragma unroll
  for (uint32_t t = 0; t < S::teams; t++) {
    if (t >= n_spans) break;
    const uint8_t *stage = stages + t * S::stage;
    const uint16_t *steps = (const uint16_t *)(const void *)(stage + S::steps_at) + own_tile * 16 + lane / 4;
    const float2 *scales = (const float2 *)(const void *)(stage + S::scales_at) + team * n_own * 4 + lane % 4;
    float low = __uint_as_float((uint32_t)steps[0] << 16), high = __uint_as_float((uint32_t)steps[8] << 16);
#pragma unroll
    for (uint32_t n = 0; n < n_own; n++) {
      float2 rows = scales[4 * n];
      float4 v = of_tile[(t * S::tiles * S::nt + team * n_own + n) * 32];
      sums[n][0] = __fmaf_rn(v.x, __fmul_rn(rows.x, low), sums[n][0]);
      sums[n][1] = __fmaf_rn(v.y, __fmul_rn(rows.y, low), sums[n][1]);
      sums[n][2] = __fmaf_rn(v.z, __fmul_rn(rows.x, high), sums[n][2]);
      sums[n][3] = __fmaf_rn(v.w, __fmul_rn(rows.y, high), sums[n][3]);
    }
  }
}

/* Two outputs of a row, which lie 8 apart; those that do not exist are not stored. */
template <class T>
static __device__ __forceinline__ void store_pair(T *y, float low, float high, bool has_low, bool has_high) {
  if constexpr (sizeof(T) == 2) {
    if (has_low) y[0] = __float2bfloat16_rn(low);
    if (has_high) y[8] = __float2bfloat16_rn(high);
  } else {
    if (has_low) y[0] = low;
    if (has_high) y[8] = high;
  }
}

/* Stores a row tile's sums. Lane 4 g + c has, of every eight rows, rows 2 c and 2 c + 1 of outputs g and g + 8. */
template <uint32_t N, class T>
static __device__ __forceinline__ void store_tile(T *y, uint64_t y_stride, uint32_t n_rows, int32_t n_out, float scale,
                                                  const float (&sums)[N][4]) {
  uint32_t lane = threadIdx.x % 32, row = lane % 4 * 2;
  bool has_low = (int32_t)(lane / 4) < n_out, has_high = (int32_t)(lane / 4 + 8) < n_out;
  y += row * y_stride + lane / 4;
#pragma unroll
  for (uint32_t n = 0; n < N; n++, y += 8 * y_stride) {
#pragma unroll
    for (uint32_t j = 0; j < 2; j++) {
      bool is_row = row + 8 * n + j < n_rows;
      store_pair(y + j * y_stride, __fmul_rn(sums[n][j], scale), __fmul_rn(sums[n][j + 2], scale), has_low && is_row,
                 has_high && is_row);
    }
  }
}

/* Those of rows from `skipped` on. */
template <uint32_t N>
static __device__ __forceinline__ void store_tile_of(const gemm_args &a, const tile_item &item, uint32_t own_tile,
                                                     uint32_t skipped, const float (&sums)[N][4]) {
  if (skipped >= item.n) return;
  weight_tile t = find_tile(a, item.tile + own_tile);
  const gemm_weight &weight = a.weight[t.w];
  int32_t n_out = (int32_t)weight.n_out - (int32_t)(t.tile * 16);
  uint32_t n_rows = item.n - skipped;
  uint64_t at = (uint64_t)(item.first + skipped) * weight.y_stride + t.tile * 16;
  float scale = scale_of(weight, item.matrix);
  if (a.y_is_bf16)
    store_tile((__nv_bfloat16 *)(void *)weight.y + at, weight.y_stride, n_rows, n_out, scale, sums);
  else
    store_tile(weight.y + at, weight.y_stride, n_rows, n_out, scale, sums);
}

/* An item whose rows are N eights or less, and whose stages are spans. */
template <int T, class S, uint32_t N, class F>
static __device__ __forceinline__ void multiply_spans(const gemm_args &a, const tile_item &item, F &&step) {
  span_warp<S> own;
  own.tile = threadIdx.x / 32;
  float sums[N][4] = {};
#pragma unroll 1
  for (uint32_t span = 0; span < w8a8_spans_of(a); span++) {
    const uint8_t *stage = step();
    int32_t d[N][4] = {};
    open_span(stage, own);
    multiply_span<T, S, N>(a, stage, span, own, d);
    const float2 *scales = (const float2 *)(const void *)(stage + S::scales_at) + threadIdx.x % 4;
#pragma unroll
    for (uint32_t n = 0; n < N; n++) {
      float2 rows = scales[4 * n];
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        float scale = __fmul_rn(i % 2 == 0 ? rows.x : rows.y, own.step[0][i / 2]);
        sums[n][i] = __fmaf_rn((float)d[n][i], scale, sums[n][i]);
      }
    }
  }
  store_tile_of(a, item, own.tile, 0, sums);
}

template <int T, class S>
static __device__ __forceinline__ void multiply_unit(const gemm_args &a, const uint8_t *stage, uint32_t unit,
                                                     span_warp<S> &own, int32_t (&d)[S::per_warp][S::nt][4]) {
  bool tail = is_tail_unit_of<T>(a, unit);
  if (unit % 2 == 0) open_span(stage, own);
  if (S::few == S::nt || own.n_eights > S::most_of)
    multiply_stage<T, S, S::nt>(stage, unit, tail, own, d);
  else if (S::most_of < S::nt && own.n_eights > S::few)
    multiply_stage<T, S, S::most_of>(stage, unit, tail, own, d);
  else
    multiply_stage<T, S, S::few>(stage, unit, tail, own, d);
}

template <int T, class S, class F>
static __device__ __forceinline__ void multiply_item(const gemm_args &a, const tile_item &item, F &&step) {
  span_warp<S> own;
  own.tile = threadIdx.x / 32 * S::per_warp, own.n_eights = (item.n + 7) / 8;
  float sums[S::per_warp][S::nt][4] = {};
  int32_t d[S::per_warp][S::nt][4] = {};
#pragma unroll 1
  for (uint32_t unit = 0; unit < a.n_units; unit++) {
    const uint8_t *stage = step();
    multiply_unit<T, S>(a, stage, unit, own, d);
    if (unit % 2 == 1 || unit + 1 == a.n_units) scale_sums(stage, own, d, sums);
  }
#pragma unroll
  for (uint32_t t = 0; t < S::per_warp; t++) store_tile_of(a, item, own.tile + t, 0, sums[t]);
}

template <int T, class S, class F>
static __device__ __forceinline__ void multiply_item_of_spans(const gemm_args &a, const tile_item &item, F &&step) {
  constexpr uint32_t few = S::nt / 2;
  if (item.n <= 8 * few)
    multiply_spans<T, S, few>(a, item, step);
  else if (S::most_of < S::nt && S::most_of > few && item.n <= 8 * S::most_of)
    multiply_spans<T, S, S::most_of>(a, item, step);
  else
    multiply_spans<T, S, S::nt>(a, item, step);
}

/* The same by teams. */
template <int T, class S, class F>
static __device__ __forceinline__ void multiply_item_by_teams(const gemm_args &a, const tile_item &item, uint8_t *given,
                                                              F &&step) {
  constexpr uint32_t n_own = S::nt / S::teams;
  span_warp<S> own;
  own.tile = own_thread<S>() / 32, own.n_eights = (item.n + 7) / 8;
  uint32_t team = team_of<S>(), n_spans = w8a8_spans_of(a), n_steps = steps_of<S>(a);
  float sums[n_own][4] = {};
  int32_t d[S::per_warp][S::nt][4] = {};
#pragma unroll 1
  for (uint32_t at = 0; at < n_steps; at++) {
    const uint8_t *stages = step();
    uint32_t unit = unit_of_step<S>(at);
    if (unit < a.n_units) multiply_unit<T, S>(a, stages + team * S::stage, unit, own, d);
    if (at % 2 == 1) scale_sums_of_teams<S>(stages, given, own.tile, n_spans - at / 2 * S::teams, d, sums);
  }
  store_tile_of(a, item, own.tile, team * n_own * 8, sums);
}

/* All items of a product by some blocks. */
template <int T, int SIZE, class B>
static __device__ __forceinline__ void multiply_product(const gemm_args &a, uint8_t *memory, const B &blocks) {
  using S = gemm_tile<T, SIZE, 1024>;
  multiply_items<T, S, 1024>(a, memory, blocks, [&](const tile_item &item, auto &step) {
    if constexpr (S::teams > 1)
      multiply_item_by_teams<T, S>(a, item, memory + S::ring_bytes, step);
    else if constexpr (S::units == 2)
      multiply_item_of_spans<T, S>(a, item, step);
    else
      multiply_item<T, S>(a, item, step);
  });
}

template <int T, int SIZE>
static __global__ void __launch_bounds__(gemm_tile<T, SIZE, 1024>::threads *gemm_tile<T, SIZE, 1024>::teams,
                                         gemm_tile<T, SIZE, 1024>::fits)
    w8a8_gemm_kernel(const __grid_constant__ gemm_args a) {
  extern __shared__ __align__(1024) uint8_t memory[]; /* stages, as gemm_tile has them */
  if (!starts_early<gemm_tile<T, SIZE, 1024>>(a)) wait_for_prior_grids();
  multiply_product<T, SIZE>(a, memory, all_blocks());
  launch_dependent_grids();
}

/* ---- host ------------------------------------------------------------------------------------------------ */

/* Only types that w8a8_takes have kernels. */
template <int SIZE>
static weft_status launch_items(cuda_device *d, const gemm_args *args) {
  return dispatch_packed_type(args->type, [&](auto type) {
    constexpr int T = decltype(type)::value;
    if constexpr (w8a8_takes(T)) {
      using S = gemm_tile<T, SIZE, 1024>;
      auto kernel = w8a8_gemm_kernel<T, SIZE>;
      if (starts_early<S>(*args))
        cuda_start(d, kernel, blocks_of<S>(d, *args), S::threads * S::teams, S::bytes, *args);
      else
        cuda_start_in_order(d, kernel, blocks_of<S>(d, *args), S::threads * S::teams, S::bytes, *args);
      return cuda_launched(d, "a product of 8 bits");
    } else {
      return WEFT_E_UNSUPPORTED;
    }
  });
}

#endif
