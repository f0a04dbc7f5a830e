/* SPDX-License-Identifier: MIT */
/* What w8a8_gemm.cu and w8a8_dense.cu share: a consumer warp's mainloop over spans, and its epilogue. A stage of the
 * pipeline (pipeline.cuh) is a span, of weights with their steps and of rows with their scales. A warp requantises the
 * codes of a row tile to int8 once, in registers, for all rows. */
#ifndef WEFT_KERNELS_CUDA_W8A8_PIPELINE_CUH
#define WEFT_KERNELS_CUDA_W8A8_PIPELINE_CUH

#include "kernels/cuda/gemm/w8a8.cuh"
#include "kernels/cuda/gemm/gated_epilogue.cuh"

/* ---- products -------------------------------------------------------------------------------------------- */

#define W8A8_PRODUCT(shape, n, inputs, operand, flag, ...)                                                           \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " flag ", 0;\nwgmma.mma_async.sync.aligned." shape ".s32.s8.s8 {" n \
               "}, {" inputs "}, " operand ", p;\n}\n"                                                               \
               : __VA_ARGS__                                                                                         \
               : WGMMA_A, "l"(b), "r"(add))

/* d (+)= a b of 64 outputs x 8 N rows x 32 inputs; add 0: from zero. */
template <int N>
static __device__ __forceinline__ void w8a8_wgmma(int32_t (&d)[N][4], const uint32_t (&a)[4], uint64_t b, int32_t add) {
  if constexpr (N == 2) {
    W8A8_PRODUCT("m64n16k32", WGMMA_16, "%8, %9, %10, %11", "%12", "%13", W8A8_SUMS_2);
  } else if constexpr (N == 3) {
    W8A8_PRODUCT("m64n24k32", WGMMA_24, "%12, %13, %14, %15", "%16", "%17", W8A8_SUMS_3);
  } else if constexpr (N == 4) {
    W8A8_PRODUCT("m64n32k32", WGMMA_32, "%16, %17, %18, %19", "%20", "%21", W8A8_SUMS_4);
  } else if constexpr (N == 8) {
    W8A8_PRODUCT("m64n64k32", WGMMA_64, "%32, %33, %34, %35", "%36", "%37", W8A8_SUMS_8);
  } else {
    static_assert(N == 16, "16, 24, 32, 64 or 128 rows");
    W8A8_PRODUCT("m64n128k32", WGMMA_128, "%64, %65, %66, %67", "%68", "%69", W8A8_SUMS_16);
  }
}

/* A warp's view of the rings: its row tile in the first stage of weights, or that of the gate; rows and scales of the
 * first stage; barriers; its position in both rings, which have S::stages stages of weights and S::x_stages of rows. */
template <class S>
struct w8a8_warp {
  const uint8_t *w, *x, *scales;
  uint64_t *w_full, *w_empty, *x_full, *x_empty;
  pipeline_state w_at, x_at;
};

/* What a lane holds of a span's weights: codes of 128 inputs, their scales, the steps of rows g and g + 8. */
template <int T>
struct w8a8_unit {
  lane_codes<T> codes;
  lane_scales<T> scales;
  float step[2];
};

/* Loads codes, and scales if they are wanted, of half u of a span. */
template <int T, bool GATED, class S>
static __device__ __forceinline__ void load_half(const uint8_t *stage, uint32_t u, bool tail, bool scales,
                                                 w8a8_unit<T> &own) {
  uint32_t lane = threadIdx.x % 32;
  packed_block p = packed_block_of<T>(stage, u, tail);
  if constexpr (GATED) {
    const gated_tiles tiles = gated_tiles_of(threadIdx.x / 32, S::w_tile);
    load_codes_gated<T>(p, tiles, lane, own.codes);
    if (scales) load_scales_gated<T>(p, tiles, lane / 4, lane % 4, own.scales);
  } else {
    load_codes<T>(p, lane, own.codes);
    if (scales) load_scales<T>(p, lane / 4, lane % 4, own.scales);
  }
}

/* Waits for the next stage of weights and loads its first 128 inputs. */
template <int T, bool GATED, class S>
static __device__ __forceinline__ void load_stage(const w8a8_warp<S> &at, bool tail, w8a8_unit<T> &own) {
  const uint8_t *stage = at.w + at.w_at.stage * S::w_stage;
  uint32_t row = threadIdx.x % 32 / 4 + (GATED ? threadIdx.x / 32 % 2 * 8 : 0);
  mbarrier_wait(&at.w_full[at.w_at.stage], at.w_at.phase);
  load_half<T, GATED, S>(stage, 0, tail, true, own);
#pragma unroll
  for (uint32_t r = 0; r < 2; r++) {
    const uint16_t *steps = (const uint16_t *)(const void *)(stage + S::w_codes + (GATED ? r * S::w_tile : r * 16));
    own.step[r] = __uint_as_float((uint32_t)steps[row] << 16);
  }
}

template <int T, bool GATED, class S>
static __device__ __forceinline__ void load_second(const w8a8_warp<S> &at, bool tail, w8a8_unit<T> &own) {
  bool scales = packed_shape_of(T).unit == 128 || T == WEFT_TYPE_Q6_K;
  load_half<T, GATED, S>(at.w + at.w_at.stage * S::w_stage, 1, tail, scales, own);
}

/* Operands of the products of 128 inputs. */
typedef uint32_t w8a8_operands[4][4];

/* Names operands as used, after the wait that ends the products which read them: fence_operands of pipeline.cuh says
 * why. */
static __device__ __forceinline__ void fence_operands(const w8a8_operands &w) {
#pragma unroll
  for (int i = 0; i < 4; i++) asm volatile("" ::"r"(w[i][0]), "r"(w[i][1]), "r"(w[i][2]), "r"(w[i][3]));
}

/* Requantises the codes of 128 inputs, which are half u of the span. */
template <int T>
static __device__ __forceinline__ void make_operands(const w8a8_unit<T> &own, uint32_t u, const float (&over)[2],
                                                     w8a8_operands &w) {
  dequant_factors factors;
  w8a8_factors<T>(own.scales, u, threadIdx.x % 4, over, factors);
#pragma unroll
  for (int i = 0; i < 4; i++) requantise_operands<T>(own.codes, factors, i, w[i]);
}

/* Starts the products of 128 inputs. add 0: from zero. */
template <int N>
static __device__ __forceinline__ void start_products(int32_t (&d)[N][4], const w8a8_operands &w, uint64_t rows,
                                                      int32_t add) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < 4; i++) w8a8_wgmma<N>(d, w[i], rows + (uint64_t)(32 * i >> 4), i == 0 ? add : 1);
  wgmma_commit();
}

/* sums += the span's s32 accumulators times their scales. */
template <int N>
static __device__ __forceinline__ void scale_sums(float (&sums)[N][4], const int32_t (&d)[N][4], const uint8_t *scales,
                                                  const float (&step)[2]) {
#pragma unroll
  for (int n = 0; n < N; n++) {
    float2 row = *(const float2 *)(const void *)(scales + 32 * n + threadIdx.x % 4 * 8);
#pragma unroll
    for (int i = 0; i < 4; i++)
      sums[n][i] = __fmaf_rn((float)d[n][i], __fmul_rn(i % 2 == 0 ? row.x : row.y, step[i / 2]), sums[n][i]);
  }
}

/* What a warp makes of a span before the products of the span before it have ended: the operands of the first 128
 * inputs, and the codes of the second 128. */
template <int T>
struct w8a8_next_span {
  w8a8_unit<T> own;
  float step[2], over[2];
  w8a8_operands first;
};

/* Software pipelining of the mainloop: waits for the next stage of weights and prepares its span. */
template <int T, bool GATED, class S>
static __device__ __forceinline__ void prepare_next_span(const gemm_args &a, uint32_t first_unit,
                                                         const w8a8_warp<S> &at, w8a8_next_span<T> &next) {
#pragma unroll
  for (int r = 0; r < 2; r++) next.step[r] = next.own.step[r], next.over[r] = inverse_of(next.step[r]);
  make_operands<T>(next.own, 0, next.over, next.first);
  load_second<T, GATED, S>(at, is_tail_of<T>(a, first_unit + 1), next.own);
}

/* Multiplies the span that is prepared. Afterwards the span from unit `next_unit` on is, if there is one.
 * add(scales, step): adds the span's s32 accumulators, times the rows' scales and the steps, to the sums. With `more`,
 * the operands are multiplied with 8 N rows first, whose sums add_first adds, then with the 8 N behind them. */
template <int T, int N, bool GATED, class S, class F, class G>
static __device__ __forceinline__ void multiply_span(const gemm_args &a, uint32_t next_unit, w8a8_warp<S> &at,
                                                     w8a8_next_span<T> &next, int32_t (&d)[N][4], bool more,
                                                     G &&add_first, F &&add) {
  w8a8_operands second;
  const float step[2] = {next.step[0], next.step[1]};
  mbarrier_wait(&at.x_full[at.x_at.stage], at.x_at.phase);
  uint64_t rows = wgmma_descriptor_swizzled(at.x + at.x_at.stage * S::x_stage, 1024);
  start_products<N>(d, next.first, rows, 0);
  make_operands<T>(next.own, 1, next.over, second);
  __syncwarp();
  mbarrier_arrive_warp(&at.w_empty[at.w_at.stage]);
  advance(at.w_at, S::stages);
  start_products<N>(d, second, rows + (S::x_unit >> 4), 1);
  if (more) {
    wgmma_wait<0>();
    fence_operands(next.first);
    fence_operands(second);
    add_first(at.scales + at.x_at.stage * S::scales, step);
    rows += N * 1024 >> 4;
    start_products<N>(d, next.first, rows, 0);
    start_products<N>(d, second, rows + (S::x_unit >> 4), 1);
  }
  if (next_unit < a.n_units) {
    load_stage<T, GATED, S>(at, is_tail_of<T>(a, next_unit), next.own);
    wgmma_wait<1>();
    fence_operands(next.first);
    prepare_next_span<T, GATED, S>(a, next_unit, at, next);
  }
  wgmma_wait<0>();
  fence_operands(second);
  add(at.scales + at.x_at.stage * S::scales, step);
  __threadfence_block(); /* the scales have been read: without it the arrival may overtake these loads */
  __syncwarp();
  mbarrier_arrive_warp(&at.x_empty[at.x_at.stage]);
  advance(at.x_at, S::x_stages);
}

/* The same with 8 N rows. */
template <int T, int N, bool GATED, class S, class F>
static __device__ __forceinline__ void multiply_span(const gemm_args &a, uint32_t next_unit, w8a8_warp<S> &at,
                                                     w8a8_next_span<T> &next, int32_t (&d)[N][4], F &&add) {
  multiply_span<T, N, GATED, S>(a, next_unit, at, next, d, false, add, add);
}

/* Stores a warp's sums in y and below. Lane 4 g + c has, of every eight rows, rows 2 c and 2 c + 1 of outputs g and
 * g + 8. WHOLE: all n rows and all outputs of the row tile exist, and no number needs a condition. */
template <int N, bool WHOLE>
static __device__ __forceinline__ void store_rows(float *y, uint64_t stride, uint32_t n, uint32_t n_outputs,
                                                  float scale, const float (&sums)[N][4]) {
  const uint32_t row = threadIdx.x % 4 * 2, out = threadIdx.x % 32 / 4;
  y += row * stride + out;
#pragma unroll
  for (int i = 0; i < N; i++, y += 8 * stride) {
#pragma unroll
    for (uint32_t j = 0; j < 2; j++) {
      if (!WHOLE && 8 * i + row + j >= n) continue;
      if (WHOLE || out < n_outputs) y[j * stride] = __fmul_rn(sums[i][j], scale);
      if (WHOLE || out + 8 < n_outputs) y[j * stride + 8] = __fmul_rn(sums[i][j + 2], scale);
    }
  }
}

/* The same in bf16. PAIRS: all outputs of the row tile exist, and outputs 2 i and 2 i + 1 lie in one word. The two
 * lanes that have such a pair for two rows store one row each. */
template <int N, bool PAIRS>
static __device__ __forceinline__ void store_rows_bf16(__nv_bfloat16 *y, uint64_t stride, uint32_t n,
                                                       uint32_t n_outputs, float scale, const float (&sums)[N][4]) {
  const uint32_t row = threadIdx.x % 4 * 2, out = threadIdx.x % 32 / 4, odd = out % 2;
  y += PAIRS ? (row + odd) * stride + out - odd : row * stride + out;
#pragma unroll
  for (int i = 0; i < N; i++, y += 8 * stride) {
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) { /* outputs out and out + 8 */
      float v[2] = {__fmul_rn(sums[i][2 * h], scale), __fmul_rn(sums[i][2 * h + 1], scale)};
      if constexpr (PAIRS) {
        float other = __shfl_xor_sync(0xFFFFFFFFu, odd ? v[0] : v[1], 4);
        uint32_t pair = odd ? pair_bf16(other, v[1]) : pair_bf16(v[0], other);
        if (8 * i + row + odd < n) *(uint32_t *)(void *)(y + 8 * h) = pair;
      } else {
#pragma unroll
        for (uint32_t j = 0; j < 2; j++)
          if (8 * i + row + j < n && out + 8 * h < n_outputs) y[j * stride + 8 * h] = __float2bfloat16_rn(v[j]);
      }
    }
  }
}

template <int N>
static __device__ __forceinline__ void run_epilogue_bf16(const gemm_weight &weight, const work_item &item,
                                                         uint32_t tile, const float (&sums)[N][4]) {
  const uint32_t n_outputs = weight.n_out - tile * 16;
  const float scale = scale_of(weight, item.matrix);
  __nv_bfloat16 *y = (__nv_bfloat16 *)(void *)weight.y + item.first * weight.y_stride + tile * 16;
  if (n_outputs >= 16 && weight.y_stride % 2 == 0)
    store_rows_bf16<N, true>(y, weight.y_stride, item.n, n_outputs, scale, sums);
  else
    store_rows_bf16<N, false>(y, weight.y_stride, item.n, n_outputs, scale, sums);
}

/* JOBS: the kernel takes jobs. */
template <int N, bool JOBS>
static __device__ __forceinline__ void run_epilogue(const gemm_args &a, const work_item &item, uint32_t own,
                                                    const float (&sums)[N][4]) {
  weight_tile t = find_tile(a, item.tile + own);
  const gemm_weight &weight = a.weight[t.w];
  if (t.tile >= weight.n_tiles) return;
  if (JOBS && a.y_is_bf16) {
    run_epilogue_bf16<N>(weight, item, t.tile, sums);
    return;
  }
  const uint32_t n_outputs = weight.n_out - t.tile * 16;
  const float scale = scale_of(weight, item.matrix);
  float *y = weight.y + item.first * weight.y_stride + t.tile * 16;
  if (item.n == 8 * N && n_outputs >= 16)
    store_rows<N, true>(y, weight.y_stride, item.n, n_outputs, scale, sums);
  else
    store_rows<N, false>(y, weight.y_stride, item.n, n_outputs, scale, sums);
}

#endif
