/* SPDX-License-Identifier: MIT */
/* Soft embeddings in 8 bits, of rows of canvases where products have 8 bits: a product of integers (int8_weights.h)
 * whose rows are the weights of tokens, and whose weight is the embedding with tokens as inputs.
 *
 * Law (numerics). The weight of a token is e^((logit - largest allowed logit of its chunk) / temperature), times 255
 * and rounded: an integer without a sign. A number of the embedding, as the file has it, becomes round(x * (127 /
 * largest magnitude of its column in the same 256 tokens)), and the step is that magnitude / 127. A span is 256 tokens;
 * what scales a row's is e^((largest logit of its chunk - that of the row) / temperature). The vocabulary is cut into
 * parts as into spans in head.h. A part is a product of 8 bits (w8a8.h): exact integer sums of a span, spans ascending
 * from 0 in f32; parts are added ascending, then come 1 / 255 and the row's factor. No sum depends on other rows.
 *
 * Behind all else that a weight with the use WEFT_USE_CANVASES has (its n_bytes tell) lie the integers of the
 * embedding, as int8_weights.h has them: a part of the vocabulary is a matrix, a column of the embedding an output. */
#ifndef WEFT_KERNELS_CUDA_SOFT_INTEGERS_H
#define WEFT_KERNELS_CUDA_SOFT_INTEGERS_H

#include "kernels/cuda/head/head.h"
#include "kernels/cuda/weights/int8_weights.h"

/* Where they lie, behind `from` bytes; where their steps begin, and where these end. */
typedef struct soft_sections {
  uint64_t integers, steps, end;
} soft_sections;
soft_sections soft_sections_behind(const weft_weight *weight, uint64_t from);
/* Makes them from the weight's row tiles at `data`. */
weft_status soft_integers_make(cuda_device *d, const weft_weight *weight, uint8_t *data, uint64_t from);

/* Whether soft embeddings of this weight are made of integers. */
bool soft_has_integers(const weft_weight *weight);
/* The parts of head_cut and head_soften for them. Rows [first, first + n) of the group are wanted, if any, where first
 * is a multiple of 8 and says so before head_measure. */
void soft_integers_cut(cuda_cutter *cutter, uint32_t n_rows, head_group *group);
weft_status soft_integers(cuda_device *d, const head_group *group);

#endif
