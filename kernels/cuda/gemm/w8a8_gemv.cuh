/* SPDX-License-Identifier: MIT */
/* What the GEMV kernels in W8A8 share beside gemv.cuh: the fused prologue, the products of a span, and the sums of a row
 * tile's spans, whose fma is made in their order when all of them are there. So how K is split is no part of the
 * numerics (w8a8.h). */
#ifndef WEFT_KERNELS_CUDA_W8A8_GEMV_CUH
#define WEFT_KERNELS_CUDA_W8A8_GEMV_CUH

#ifdef WEFT_CUDA_PORTABLE
#include "kernels/cuda/portable/w8a8_ring.cuh"
#endif
#include "kernels/cuda/gemm/gemv.cuh"
#include "kernels/cuda/gemm/w8a8.cuh"

enum {
  COLUMN = 20,    /* floats from a row's 16 sums to the next row's: no two lanes of a store use one bank */
  RANK_SPANS = 3, /* of a raw row, that a warp has in its registers: where it has a row for itself */
  ROW_SPANS = 2   /* where the warps of a block share rows */
};

/* Shared memory of a stage, which holds a span of a row tile: packed codes and scales, then the steps. */
__host__ __device__ constexpr uint32_t span_bytes(int type) {
  return ring_stage_bytes(gemv_piece_bytes(type) + W8A8_STEPS_BYTES);
}

/* Starts the copy of a span to a stage whose last span all lanes have read. */
template <int T>
static __device__ __forceinline__ void issue_span(const gemm_args &a, gemv_ring &ring, uint32_t stage,
                                                  const uint8_t *row_tile, const uint8_t *steps, uint32_t span) {
  constexpr uint32_t size = gemv_piece_bytes(T);
  ring_issue_with(ring, stage, row_tile + span * size, min(size, a.tile_bytes - span * size), size,
                  steps + span * W8A8_STEPS_BYTES, W8A8_STEPS_BYTES);
}

/* ---- rows ------------------------------------------------------------------------------------------------ */

/* The fused prologue: quantises a row of f32 to numbers [span][256], scales [span]. Warp `own` of `n_warps` does
 * every n_warps-th span, N of them at once. */
template <uint32_t N>
static __device__ __forceinline__ void quantise_row(const gemm_args &a, const float *x, uint32_t own, uint32_t n_warps,
                                                    uint8_t *numbers, float *scales) {
  uint32_t lane = threadIdx.x % 32, n_spans = w8a8_spans_of(a);
#pragma unroll 1
  for (uint32_t first = own; first < n_spans; first += N * n_warps) {
    float v[N][8];
#pragma unroll
    for (uint32_t t = 0; t < N; t++)
      if (first + t * n_warps < n_spans) load_raw(x, 32 * (first + t * n_warps) + lane, a.n_in, v[t]);
#pragma unroll
    for (uint32_t t = 0; t < N; t++) {
      uint32_t span = first + t * n_warps;
      if (span >= n_spans) break;
      float inverse, scale = w8a8_scale(__reduce_max_sync(0xFFFFFFFFu, chunk_max(v[t])), &inverse);
      *(uint2 *)(void *)(numbers + W8A8_SPAN * span + 8 * lane) =
          make_uint2(w8a8_bytes(v[t], inverse), w8a8_bytes(v[t] + 4, inverse));
      if (lane == 0) scales[span] = scale;
    }
  }
}

/* A raw row in shared memory: its numbers, then its scales, up to a multiple of 16 bytes. */
static __host__ __device__ __forceinline__ uint32_t bytes_of_row(uint32_t n_spans) {
  return n_spans * W8A8_SPAN + (n_spans + 3) / 4 * 16;
}

static __device__ __forceinline__ float *scales_of_row(uint8_t *row, uint32_t n_spans) {
  return (float *)(void *)(row + n_spans * W8A8_SPAN);
}

/* The same for rows row(0) .. row(n - 1), one bytes_of_row behind the other, with a barrier at the end. The block has
 * at least n warps, which share the rows out. */
template <class F>
static __device__ __forceinline__ void quantise_rows(const gemm_args &a, uint32_t n, F &&row, uint8_t *rows) {
  uint32_t warp = threadIdx.x / 32, n_warps = blockDim.x / 32, r = warp % n, n_spans = w8a8_spans_of(a);
  rows += r * bytes_of_row(n_spans);
  quantise_row<ROW_SPANS>(a, row(r), warp / n, (n_warps - r + n - 1) / n, rows, scales_of_row(rows, n_spans));
  __syncthreads();
}

/* The rows that a lane reads, lane / 4 of each eight; of one raw row all read the same. */
template <int NT>
struct w8a8_rows {
  const uint8_t *numbers[NT];
};

/* What the lane needs of 128 inputs of a row: operands 2 i, 2 i + 1 of product i. */
static __device__ __forceinline__ void load_numbers(const uint8_t *row, uint32_t unit, bool tail, uint32_t (&b)[8]) {
  uint32_t c = threadIdx.x % 4;
  const uint4 *from = (const uint4 *)(const void *)(row + 128 * unit + (tail ? 16 : 32) * c);
  uint4 low = from[0], high = make_uint4(0, 0, 0, 0);
  if (!tail) high = from[1];
  b[0] = low.x, b[1] = low.y, b[2] = low.z, b[3] = low.w;
  b[4] = high.x, b[5] = high.y, b[6] = high.z, b[7] = high.w;
}

/* ---- products -------------------------------------------------------------------------------------------- */

/* d += a b of 16 outputs x 8 rows x 32 inputs. */
static __device__ __forceinline__ void mma_s8(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The rows' operands of a span. Those of rows after the prologue are loaded before the span's weights are waited
 * for; a raw row lies in shared memory and is read when it is needed. */
template <int NT>
struct span_rows {
  uint32_t b[2][NT][8];
};

template <int T, int NT>
static __device__ __forceinline__ void load_rows(const gemm_args &a, uint32_t span, const w8a8_rows<NT> &rows,
                                                 span_rows<NT> &out) {
#pragma unroll
  for (uint32_t u = 0; u < 2; u++) {
    uint32_t unit = 2 * span + u;
    if (packed_shape_of(T).unit == 128 && unit >= a.n_units) continue;
    bool tail = packed_shape_of(T).unit == 128 && is_tail_unit(a, unit);
#pragma unroll
    for (int n = 0; n < NT; n++) load_numbers(rows.numbers[n], unit, tail, out.b[u][n]);
  }
}

/* Passes the ring's stage on: gives it back and starts the copy of what comes behind. Called when the stage's last
 * codes are in registers (IS_READ), and when what was made of it is stored; the kind of the ring says which of the two
 * does it. Of rows after the prologue the first is for rings of one stage: with two it made 8 rows 1 % slower. */
template <bool RAW, bool IS_READ, class F>
static __device__ __forceinline__ void pass_stage(gemv_ring &ring, F &&issue) {
  if (IS_READ != (RING_IS_READ_FIRST && (RAW || ring.n == 1))) return;
  uint32_t stage = ring.at;
  ring_advance(ring);
  issue(stage);
}

/* The integer sums of the span in the ring's stage, and the steps of the lane's outputs g and g + 8. */
template <int T, int NT, bool RAW, class F>
static __device__ __forceinline__ void multiply_span(const gemm_args &a, gemv_ring &ring, uint32_t span,
                                                     const w8a8_rows<NT> &rows, span_rows<NT> &x, int32_t (&d)[NT][4],
                                                     float (&step)[2], F &&issue) {
  uint32_t lane = threadIdx.x % 32;
  const uint16_t *steps = (const uint16_t *)(const void *)ring_steps(ring, gemv_piece_bytes(T));
  float over[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    step[r] = __uint_as_float((uint32_t)steps[lane / 4 + 8 * r] << 16);
    over[r] = inverse_of(step[r]);
  }
  int32_t half[2][NT][4] = {}; /* of 128 inputs each: shorter chains */
#pragma unroll
  for (uint32_t u = 0; u < 2; u++) {
    uint32_t unit = 2 * span + u;
    if (packed_shape_of(T).unit == 128 && unit >= a.n_units) { /* super-blocks have whole spans */
      if (u == 1) pass_stage<RAW, true>(ring, issue);
      continue;
    }
    bool tail = is_tail_unit(a, unit);
    packed_block block = packed_block_of<T>(ring_piece(ring), u, tail);
    lane_codes<T> codes;
    lane_scales<T> scales;
    dequant_factors factors;
    if constexpr (RAW) load_numbers(rows.numbers[0], unit, block.tail, x.b[u][0]);
    load_codes<T>(block, lane, codes);
    load_scales<T>(block, lane / 4, lane % 4, scales);
    if (u == 1) pass_stage<RAW, true>(ring, issue);
    w8a8_factors<T>(scales, u, lane % 4, over, factors);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      uint32_t w[4];
      requantise_operands<T>(codes, factors, i, w);
#pragma unroll
      for (int n = 0; n < NT; n++) mma_s8(half[u][n], w, x.b[u][n][2 * i], x.b[u][n][2 * i + 1]);
    }
  }
#pragma unroll
  for (int at = 0; at < 4 * NT; at++) d[at / 4][at % 4] = half[0][at / 4][at % 4] + half[1][at / 4][at % 4];
}

/* ---- sums of a row tile's spans: [span][column][16 outputs, then unused ones up to COLUMN], [16] steps --- */

template <int COLUMNS>
static __host__ __device__ constexpr uint32_t floats_of_span(void) {
  return COLUMNS * COLUMN + 16;
}

/* COLUMNS 1: of eight equal rows. */
template <int NT, int COLUMNS>
static __device__ __forceinline__ void store_span(float *to, const int32_t (&d)[NT][4], const float (&step)[2]) {
  uint32_t g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < NT; n++) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      uint32_t column = 8 * n + 2 * c + e % 2;
      if (column < COLUMNS) to[column * COLUMN + g + e / 2 * 8] = (float)d[n][e];
    }
  }
  if (c == 0) to[COLUMNS * COLUMN + g] = step[0], to[COLUMNS * COLUMN + g + 8] = step[1];
}

/* The scales of a row's spans, `step` floats from one to the next. */
typedef struct span_scales {
  const float *first;
  uint32_t step;
} span_scales;

template <int COLUMNS>
static __device__ __forceinline__ float add_spans(const float *spans, uint32_t n_spans, uint32_t column, uint32_t out,
                                                  span_scales scales) {
  float sum = 0.0f;
#pragma unroll 4
  for (uint32_t span = 0; span < n_spans; span++, spans += floats_of_span<COLUMNS>())
    sum = __fmaf_rn(spans[column * COLUMN + out],
                    __fmul_rn(scales.first[span * scales.step], spans[COLUMNS * COLUMN + out]), sum);
  return sum;
}

/* Multiplies a warp's split [unit, end) of a row tile, whose sums are `sums`. The copies of its first spans are in
 * flight; issue(stage) starts the copies of what comes behind them. */
template <int T, int NT, bool RAW, int COLUMNS, class F>
static __device__ __forceinline__ void multiply_spans(const gemm_args &a, gemv_ring &ring, uint32_t unit, uint32_t end,
                                                      const w8a8_rows<NT> &rows, float *sums, F &&issue) {
#pragma unroll 1
  for (; unit < end; unit += 2) {
    int32_t d[NT][4];
    float step[2];
    span_rows<NT> x;
    if constexpr (!RAW) load_rows<T>(a, unit / 2, rows, x);
    ring_wait(ring);
    multiply_span<T, NT, RAW>(a, ring, unit / 2, rows, x, d, step, issue);
    store_span<NT, COLUMNS>(sums + unit / 2 * floats_of_span<COLUMNS>(), d, step);
    pass_stage<RAW, false>(ring, issue);
  }
}

#endif
