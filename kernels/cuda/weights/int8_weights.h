/* SPDX-License-Identifier: MIT */
/* Weights requantised to int8 ahead of time (weft_device_config.integers): what W8A8 kernels make of a weight's codes
 * (gemm/w8a8.h), kept beside these, so that GEMM of many rows need not dequantise them. They do not depend on the
 * weight's type.
 *
 * A column is an output of a product. A column block is 64 of one matrix; columns that do not exist are zeros. Behind
 * the steps of a weight (layout INT8) lie
 *   int8      [matrix][column block][span][half of its inputs][column][128 bytes], a column's bytes as those of a row
 *             that is tiled (w8a8_at)
 *   steps     [matrix][column block][span][64 outputs] f32
 * Column 16 m + 8 h + 2 c + e of a column block (h, e < 2, c < 4) is output 16 m + 4 c + 2 h + e, so the accumulators
 * that a lane has of a row are four outputs side by side.
 *
 * Law: an integer is the one that the other W8A8 kernels make of the same code, so results have the same bits. */
#ifndef WEFT_KERNELS_CUDA_INT8_WEIGHTS_H
#define WEFT_KERNELS_CUDA_INT8_WEIGHTS_H

#include "kernels/cuda/gemm/w8a8.h"

enum {
  INT8_LAYOUT = 3,
  INT8_BLOCK = 64,
  INT8_UNIT_BYTES = INT8_BLOCK * 128, /* of half a span */
  INT8_JOB_ROWS = 192,
  /* With fewer rows of a dense product, or of an expert on average, dequantising costs less than reading int8. */
  INT8_MIN_ROWS = 256,
  INT8_MIN_ROWS_WIDE = 129, /* of outputs for which few rows make items enough for a card */
  INT8_MIN_PAIRS = 48
};

/* Whether a weight of this layout is multiplied in W8A8. */
static inline bool w8a8_has(uint32_t layout) {
  return layout == W8A8_LAYOUT || layout == INT8_LAYOUT;
}

/* Where a weight's int8 begin, where their steps begin, and where these end. */
typedef struct int8_sections {
  uint64_t int8_weights, steps, end;
} int8_sections;
int8_sections int8_sections_of(const weft_weight *weight);
/* The bytes of int8 and steps, and of those for soft embeddings (device_calls.integers_bytes). */
uint64_t int8_weights_bytes(const weft_weight *weight, unsigned uses);
/* Makes the int8 of a weight whose row tiles and steps are at `data`. */
weft_status int8_weights_make(cuda_device *d, const weft_weight *weight, uint8_t *data);

/* GEMM from int8 weights: of many rows, and of jobs of up to INT8_JOB_ROWS. int8_gemm_takes says whether the weights
 * of a call have them and its rows are enough for them to be faster; int8_gemm_has_gated_epilogue whether it may
 * have a gated epilogue then. */
bool int8_gemm_takes(const gemm_args *args);
bool int8_gemm_has_gated_epilogue(const gemm_args *args);
weft_status int8_gemm(cuda_device *d, const gemm_args *args);
/* The same of rows whose numbers have no sign, with jobs, in f32. */
weft_status int8_gemm_unsigned(cuda_device *d, const gemm_args *args);
weft_status int8_gemm_setup(cuda_device *d);

#endif
