/* SPDX-License-Identifier: MIT */
/* W8A8 (--precision fast): rows and weights are quantised to int8, symmetrically, with a scale for every span of 256
 * inputs (the quantisation group). The tensor cores multiply int8 at twice the rate of 16 bits and accumulate exactly,
 * in s32.
 *
 * Law (numerics). A span is 256 inputs; the last one may be shorter. The scale of a row's span is its largest
 * magnitude / 127, and a number x becomes round(x * (127 / largest magnitude)), where the factor is rounded to f32. A
 * weight's span has a step (its scale), its largest magnitude / 126, rounded up to bf16. The file's value scale * code
 * + zero point is requantised to round(round(zero point / step) + code * (scale / step)), where scale / step and,
 * before it is made an integer, zero point / step are rounded to f16; so the integer is off by little more than one
 * step. A span whose largest magnitude is below 2^-100 becomes zeros; one that holds an infinity or a NaN gets the
 * scale or step NaN. A result is the sum over spans, ascending from 0, of fma(float(exact integer sum), scale of the
 * row * step of the weight, sum), in f32. There is one order for all numbers of rows, dense and of experts, so a row's
 * result does not depend on the other rows. What an expert's down makes is rounded to bf16 before its weight
 * multiplies it, which is little beside what int8 rows lose, and halves the bytes of many rows' results. ref has the
 * same bits (kernels/ref/w8a8.c, experts.c).
 *
 * A weight that is multiplied so (layouts W8A8 and INT8) has, after its row tiles, the steps: [matrix][row
 * tile][span][16 rows] bf16. Rows that the prologue has quantised are, tiled for GEMM,
 *   numbers   [128 inputs][tile of 8 rows][row % 8][(2 i + h) xor row % 8][c < 4][4 bytes: inputs 32 c + 8 i + 4 h
 *             ..], i < 4, h < 2; where the last 128 inputs are 64: 16 c + 8 i + 4 h .., i < 2. The rest of the last
 *             256 inputs are zeros, whatever the weights' codes beside them are
 *   scales    [span][tile of 8 rows][8] f32
 * and for GEMV of up to 16 rows
 *   numbers   [row][256 inputs of each span]
 *   scales    from the same offset on: [row][span] f32
 * one after the other in memory of gemm_rows_bytes. */
#ifndef WEFT_KERNELS_CUDA_W8A8_H
#define WEFT_KERNELS_CUDA_W8A8_H

#include "kernels/cuda/gemm/gemm.h"

enum { W8A8_SPAN = 256, W8A8_LAYOUT = 2, W8A8_STEPS_BYTES = 32 /* of a row tile's span */ };

/* Whether weights of this type can be multiplied in W8A8. */
__host__ __device__ constexpr bool w8a8_takes(int type) {
  return type == WEFT_TYPE_Q8_0 || type == WEFT_TYPE_Q4_0 || type == WEFT_TYPE_Q5_0 || type == WEFT_TYPE_Q4_K ||
         type == WEFT_TYPE_Q5_K || type == WEFT_TYPE_Q6_K;
}

/* Bytes of a packed weight before its steps, and bytes of the steps. n_tiles counts the row tiles of all matrices. */
uint64_t w8a8_steps_at(uint64_t n_tiles, uint32_t tile_bytes);
uint64_t w8a8_steps_bytes(uint64_t n_tiles, uint32_t n_in);
/* Makes the steps of a weight whose row tiles are packed in `data`. */
weft_status w8a8_make_steps(cuda_device *d, const weft_weight *weight, uint8_t *data);

/* Whether other ops may run the prologue of so many rows, to 8 bits or to 16: products then read them tiled, and
 * spans are whole. The rows take no more memory than in f32. */
static inline bool w8a8_fits(uint32_t n_rows, uint32_t n_in) {
  return n_in % W8A8_SPAN == 0 && gemm_is_tiled(n_rows, 0);
}
/* What prologue_rows and gemm are for other weights. args->unscale and args->x_unscale are not used. */
weft_status w8a8_prologue(cuda_device *d, const prologue_args *args);
weft_status w8a8_gemm(cuda_device *d, const gemm_args *args);              /* many rows, dense and grouped */
bool w8a8_has_gated_epilogue(const cuda_device *d, const gemm_args *args); /* gemm_has_gated_epilogue */
weft_status w8a8_gemm_setup(cuda_device *d);
/* What w8a8_gemm calls for narrow dense weights: items of 64 outputs x 8 nt rows, nt 4 or 8. */
weft_status w8a8_dense(cuda_device *d, const gemm_args *args, uint32_t nt);
weft_status w8a8_dense_setup(cuda_device *d);
/* The GEMV kernels: dense ones (w8a8_gemv.cu), and gate and up and the down projection of experts
 * (moe/w8a8_gate_up_gemv.cu, moe/w8a8_down_gemv.cu), which stand beside gemv and those of experts_gemv.h. Each
 * function whose name has `takes` or `fits` says whether so many rows of n_in inputs have room in a block's shared
 * memory. shared: rows of a shared MLP lie beside the others. w8a8_gemv_takes_raw: whether so few rows may come raw
 * (gemm_raw_rows); w8a8_gemv_reads_raw: whether those of a dense product do. */
bool w8a8_gemv_takes(int type, uint32_t n_rows, uint32_t n_in, bool gated);
bool w8a8_gemv_takes_raw(uint32_t n_rows, uint32_t n_in);
bool w8a8_gemv_reads_raw(const gemm_args *args);
weft_status w8a8_gemv(cuda_device *d, const gemm_args *args);
bool w8a8_gemv_gate_up_fits(int type, uint32_t n_rows, uint32_t n_in, bool shared);
weft_status w8a8_gemv_gate_up(cuda_device *d, const gemm_args *args);
weft_status w8a8_gemv_gate_up_setup(cuda_device *d);
bool w8a8_gemv_down_fits(int type, uint32_t n_in, uint32_t k);
bool w8a8_gemv_down_shares(const gemm_args *args, const gemm_args *shared, uint32_t k);
weft_status w8a8_gemv_down(cuda_device *d, const gemm_args *args, const gemm_args *shared, const float *weights,
                           uint32_t k);
weft_status w8a8_gemv_down_setup(cuda_device *d);
weft_status w8a8_gemv_setup(cuda_device *d);

/* Spans of the inputs: a unit is 128 of them. */
__host__ __device__ static inline uint32_t w8a8_spans_of(const gemm_args &a) {
  return (a.n_units + 1) / 2;
}

/* Where a row has 16 bytes in tiled rows: piece p = 2 i + h of a unit, inputs 32 c + 8 i + 4 h .. */
__host__ __device__ static inline uint64_t w8a8_at(uint32_t n_tiles, uint32_t unit, uint32_t row, uint32_t p) {
  return ((uint64_t)unit * n_tiles + row / 8) * 1024 + row % 8 * 128 + (p ^ row % 8) * 16;
}

/* Where the scales of quantised rows begin. */
__host__ __device__ static inline uint64_t w8a8_scales_at(uint32_t n_spans, uint32_t n_tiles) {
  return (uint64_t)n_spans * n_tiles * 2048;
}

#endif
