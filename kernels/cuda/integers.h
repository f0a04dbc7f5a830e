/* SPDX-License-Identifier: MIT */
/* A weight's integers: what products of 8 bits make of its codes (eight.h), kept beside them, so that products of many
 * rows need not make them (weft_device_config.integers). They do not depend on the weight's type.
 *
 * A column is an output of a product. A column block is 64 of one matrix; columns that do not exist are zeros. Behind
 * the steps of a weight (layout INTEGERS) lie
 *   integers  [matrix][column block][span][half of its inputs][column][128 bytes], a column's bytes as those of a row
 *             that is prepared as matrices (eight_at)
 *   steps     [matrix][column block][span][64 outputs] f32
 * Column 16 m + 8 h + 2 c + e of a column block (h, e < 2, c < 4) is output 16 m + 4 c + 2 h + e, so the results that a
 * lane of the matrix units has of a row are four outputs side by side.
 *
 * Law: an integer is the one that the other kernels make of the same code, so results have the same bits. */
#ifndef WEFT_KERNELS_CUDA_INTEGERS_H
#define WEFT_KERNELS_CUDA_INTEGERS_H

#include "kernels/cuda/eight.h"

enum {
  INTEGERS_LAYOUT = 3,
  INTEGERS_BLOCK = 64,
  INTEGERS_UNIT_BYTES = INTEGERS_BLOCK * 128, /* of half a span */
  INTEGERS_JOB_ROWS = 192,
  /* With fewer rows of a dense product, or of an expert on average, making integers costs less than reading them. */
  INTEGERS_LEAST_ROWS = 512,
  INTEGERS_LEAST_PAIRS = 48
};

/* Whether a weight of this layout is multiplied in 8 bits. */
static inline bool eight_has(uint32_t layout) {
  return layout == EIGHT_LAYOUT || layout == INTEGERS_LAYOUT;
}

/* Where a weight's integers begin, where their steps begin, and where these end. */
typedef struct integers_place {
  uint64_t integers, steps, end;
} integers_place;
integers_place integers_place_of(const weft_weight *weight);
/* Makes the integers of a weight whose row tiles and steps are at `data`. */
weft_status integers_make(cuda_device *d, const weft_weight *weight, uint8_t *data);

/* Products from integers: of many rows, and of jobs of up to INTEGERS_JOB_ROWS. integers_take says whether the weights
 * of a call have them and its rows are enough for them to be faster; integers_gate whether it may be gated then. */
bool integers_take(const multiply_args *args);
bool integers_gate(const multiply_args *args);
weft_status integers_multiply(cuda_device *d, const multiply_args *args);
weft_status integers_setup(cuda_device *d);

#endif
