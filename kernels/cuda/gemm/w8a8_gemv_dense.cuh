/* SPDX-License-Identifier: MIT */
/* What a block does of a dense product of few rows in W8A8: w8a8_gemv.cu has the kernels of one type of weights,
 * portable/w8a8_gemv_pair.cu those of two. w8a8_ahead.cu has the same epilogue. */
#ifndef WEFT_KERNELS_CUDA_W8A8_GEMV_DENSE_CUH
#define WEFT_KERNELS_CUDA_W8A8_GEMV_DENSE_CUH

#include "kernels/cuda/gemm/call_tiles.cuh"
#include "kernels/cuda/gemm/w8a8_gemv.cuh"
#include "kernels/cuda/moe/experts_gemv.h"

/* The epilogue of a row tile, which its warps share: this is own_warp of n_warps. spans: the tile's sums, and behind
 * them those of the tile of up. scales(column): those of the row's spans. */
template <int COLUMNS, bool GATED, class F>
static __device__ __forceinline__ void reduce_spans(const gemm_args &a, dense_tile tile, const float *spans, F &&scales,
                                                    uint32_t own_warp, uint32_t n_warps) {
  const gemm_weight &weight = a.weight[tile.weight];
  uint32_t n_spans = w8a8_spans_of(a);
#pragma unroll 1
  for (uint32_t i = 32 * own_warp + threadIdx.x % 32; i < 16 * COLUMNS; i += 32 * n_warps) {
    uint32_t column = i / 16, out = tile.tile * 16 + i % 16;
    if (column >= a.n_rows || out >= weight.n_out) continue;
    span_scales own = scales(column);
    float value = __fmul_rn(add_spans<COLUMNS>(spans, n_spans, column, i % 16, own), scale_of(weight, 0));
    if (GATED) {
      float up = add_spans<COLUMNS>(spans + n_spans * floats_of_span<COLUMNS>(), n_spans, column, i % 16, own);
      value = gate_product(a.activation, value, __fmul_rn(up, scale_of(a.weight[a.n_weights == 2 ? 1 : 0], 0)));
    }
    weight.y[column * weight.y_stride + out] = value;
  }
}

/* The row tile of a warp slot in a block's group of them. Gated, slots 2 i and 2 i + 1 have a tile of the gate and the
 * same one of up, which are two weights or the halves of one. */
template <bool GATED>
static __device__ __forceinline__ dense_tile find_slot(const gemm_args &a, uint32_t group, uint32_t slot,
                                                       uint32_t n_slots) {
  if (!GATED) return find_dense<false>(a, group, slot);
  uint32_t n_tiles = a.n_weights == 2 ? a.weight[0].n_tiles : a.weight[0].n_tiles / 2, half = slot % 2;
  dense_tile t = {a.n_weights == 2 ? half : 0, group * (n_slots / 2) + slot / 2, NULL};
  if (t.tile >= n_tiles) return t;
  if (a.n_weights != 2) t.tile += half * n_tiles;
  t.data = a.weight[t.weight].data + PACKED_HEADER_BYTES + (uint64_t)t.tile * a.tile_bytes;
  return t;
}

/* A product, whose groups of row tiles the blocks take in turn. Up to 8 NT rows, which come as ROWS says (gemv.cuh). */
template <int T, int NT, int ROWS, bool GATED, class B>
static __device__ __forceinline__ void multiply_groups(const gemm_args &a, uint32_t n_groups, const B &blocks) {
  /* Stages of the warps; sums of the block's row tiles, of two groups in turn where there are two; raw rows. */
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t filled[GEMV_WARPS_MAX * GEMV_STAGES];
  constexpr bool RAW = ROWS != ROWS_PREPARED, ONE = ROWS == ROWS_RAW_ONE;
  constexpr int columns = ONE ? 1 : 8 * NT;
  const uint32_t n_stages = ring_stages_of(a);
  uint32_t n_warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, buffer = 0;
  uint32_t split = warp % a.n_splits, slot = warp / a.n_splits, n_slots = n_warps / a.n_splits;
  uint32_t first = split * a.split_units, end = min(a.n_units, first + a.split_units), unit = first;
  uint32_t n_spans = w8a8_spans_of(a), tile_floats = n_spans * floats_of_span<columns>();
  uint32_t n_buffers = n_groups > blocks.count() ? 2 : 1;
  gemv_ring ring =
      ring_init(memory + warp * n_stages * span_bytes(T), filled + warp * GEMV_STAGES, n_stages, span_bytes(T));
  float *sums = (float *)(void *)(memory + n_warps * n_stages * span_bytes(T));
  uint8_t *raw = (uint8_t *)(void *)(sums + n_buffers * n_slots * tile_floats);
  dense_tile tile = find_slot<GATED>(a, blocks.own(), slot, n_slots);
  uint32_t group_ahead = blocks.own(); /* whose unit `unit`, of the row tile `ahead`, is issued next */
  const uint8_t *ahead, *steps;
  auto enter = [&](const dense_tile &t) {
    ahead = t.data;
    if (t.data != NULL) steps = a.weight[t.weight].steps + (uint64_t)t.tile * n_spans * W8A8_STEPS_BYTES;
  };
  enter(tile);
  auto issue = [&](uint32_t stage) {
    if (ahead == NULL) return;
    issue_span<T>(a, ring, stage, ahead, steps, unit / 2);
    unit += 2;
    if (unit < end) return;
    unit = first;
    group_ahead += blocks.count();
    ahead = NULL;
    if (group_ahead < n_groups) enter(find_slot<GATED>(a, group_ahead, slot, n_slots));
  };
#pragma unroll 1
  for (uint32_t stage = 0; stage < n_stages; stage++) issue(stage);
  if (!RAW || !a.raw.is_there) wait_for_prior_grids();
  launch_dependent_grids();
  if (RAW)
    quantise_rows(
        a, ONE ? 1 : a.n_rows, [&](uint32_t r) { return a.raw.x + r * a.raw.x_stride; }, raw);
  const uint8_t *x = (const uint8_t *)a.x;
  const float *x_scales = (const float *)(const void *)(x + w8a8_scales_at(n_spans, a.x_tiles));
  auto scales = [&](uint32_t r) {
    if (RAW) return span_scales{scales_of_row(raw + r * bytes_of_row(n_spans), n_spans), 1};
    return span_scales{x_scales + r * n_spans, 1};
  };
  w8a8_rows<NT> rows;
#pragma unroll
  for (int n = 0; n < NT; n++) {
    uint32_t r = ONE ? 0 : min(8 * n + lane / 4, a.n_rows - 1);
    rows.numbers[n] = RAW ? raw + r * bytes_of_row(n_spans) : x + (uint64_t)r * n_spans * W8A8_SPAN;
  }
  for (uint32_t group = blocks.own(); group < n_groups; group += blocks.count()) {
    if (group != blocks.own()) tile = find_slot<GATED>(a, group, slot, n_slots);
    float *own = sums + (buffer * n_slots + slot) * tile_floats;
    if (tile.data != NULL) multiply_spans<T, NT, RAW, columns>(a, ring, first, end, rows, own, issue);
    __syncthreads(); /* it also says that the spans of the group before have been read */
    if (GATED && tile.data != NULL)
      reduce_spans<columns, true>(a, find_slot<true>(a, group, slot / 2 * 2, n_slots), own - slot % 2 * tile_floats,
                                  scales, slot % 2 * a.n_splits + split, 2 * a.n_splits);
    if (!GATED && tile.data != NULL) reduce_spans<columns, false>(a, tile, own, scales, split, a.n_splits);
    buffer ^= 1;
  }
  if (RAW && a.raw.is_there) wait_for_prior_grids(); /* who waits for this kernel waits for those before it too */
}

/* ---- host ------------------------------------------------------------------------------------------------ */

/* Shared memory of a block: stages of the warps, the sums of n_buffers groups of n_slots row tiles (floats_of_span, for
 * n_columns rows), n_raw raw rows. */
static inline uint32_t w8a8_gemv_bytes(int type, uint32_t n_slots, uint32_t n_splits, uint32_t n_spans,
                                       uint32_t n_columns, uint32_t n_raw, uint32_t n_buffers) {
  return n_slots * n_splits * gemv_stages(RING_DENSE) * span_bytes(type) +
         4 * n_buffers * n_slots * n_spans * (n_columns * COLUMN + 16) + n_raw * bytes_of_row(n_spans);
}

#endif
