/* SPDX-License-Identifier: MIT */
/* Spans of a row tile of integers of weights (weights/int8_weights.h), for GEMV on Hopper: a span is copied as it lies,
 * and its eight products take their operands from shared memory, where codes would be requantised first.
 *
 * Law: sums and steps are those that multiply_span (gemm/w8a8_gemv.cuh) gives for the codes. */
#ifndef WEFT_KERNELS_CUDA_INTEGERS_GEMV_CUH
#define WEFT_KERNELS_CUDA_INTEGERS_GEMV_CUH

#include "kernels/cuda/gemm/w8a8_gemv.cuh"
#include "kernels/cuda/weights/int8_weights.h"

enum {
  INTEGERS_TILE_BYTES = 16 * 128, /* of a row tile and half a span */
  INTEGERS_STAGE = 2 * INTEGERS_TILE_BYTES + W8A8_STEPS_BYTES
};

/* Starts the copy of a span of a row tile of one of the matrices to a stage whose last span all lanes have read. */
static __device__ __forceinline__ void issue_integers(const gemm_weight &weight, uint32_t n_spans, gemv_ring &ring,
                                                      uint32_t stage, uint32_t matrix, uint32_t tile, uint32_t span) {
  uint64_t block = (uint64_t)matrix * ((weight.n_tiles + 3) / 4) + tile / 4;
  uint64_t of_all = (uint64_t)matrix * weight.n_tiles + tile;
  const uint8_t *half = weight.int8_weights + (block * n_spans + span) * 2 * INT8_UNIT_BYTES;
  half += tile % 4 * INTEGERS_TILE_BYTES;
  ring_issue_halves(ring, stage, half, half + INT8_UNIT_BYTES, INTEGERS_TILE_BYTES,
                    weight.steps + (of_all * n_spans + span) * W8A8_STEPS_BYTES, W8A8_STEPS_BYTES);
}

/* The integer sums of the span in the ring's stage with a raw row, and the steps of the lane's outputs g and g + 8. */
static __device__ __forceinline__ void multiply_integers(const gemm_args &a, const gemv_ring &ring, uint32_t span,
                                                         const uint8_t *numbers, int32_t (&d)[1][4], float (&step)[2]) {
  /* A lane says where a row of eight of the operand lies: outputs o, of matrix j. */
  uint32_t lane = threadIdx.x % 32, j = lane / 8, o = lane % 8 + j % 2 * 8;
  uint32_t column = o / 2 % 2 * 8 + o / 4 * 2 + o % 2;
  const uint8_t *piece = ring_piece(ring);
  const uint16_t *steps = (const uint16_t *)(const void *)(piece + 2 * INTEGERS_TILE_BYTES);
#pragma unroll
  for (int r = 0; r < 2; r++) step[r] = __uint_as_float((uint32_t)steps[lane / 4 + 8 * r] << 16);
  int32_t half[2][4] = {};
#pragma unroll
  for (uint32_t u = 0; u < 2; u++) {
    uint32_t unit = 2 * span + u, b[8];
    if (unit >= a.n_units) continue;
    load_numbers(numbers, unit, is_tail_unit(a, unit), b);
    uint32_t from = shared_address(piece + u * INTEGERS_TILE_BYTES) + column * 128;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      uint32_t w[4];
      ldmatrix_x4(w, from + ((2 * i + j / 2) ^ column % 8) * 16);
      mma_s8(half[u], w, b[2 * i], b[2 * i + 1]);
    }
  }
#pragma unroll
  for (int e = 0; e < 4; e++) d[0][e] = half[0][e] + half[1][e];
}

#endif
