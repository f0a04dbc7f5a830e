/* SPDX-License-Identifier: MIT */
/* Which part of a layer's tensor a shard has (model/shards.h).
 *
 * Law: a tensor is cut along the one of its dimensions that counts heads or feed-forward columns; what has none is whole on
 * every shard. Heads are cut into equal shares. Feed-forward columns are cut between blocks of the type of the matrix that
 * sums over them, as evenly as these allow, and the rows of the matrices that make them are cut at the same places. Slices
 * of all shards together are the tensor. */
#ifndef WEFT_MODEL_WEIGHTS_SLICE_H
#define WEFT_MODEL_WEIGHTS_SLICE_H

#include "model/weights.h"

typedef struct weights_slice {
  bool whole;
  uint64_t first_in, n_in;                /* of each row */
  uint64_t first_out[2], n_out, n_ranges; /* ranges of n_out rows in each matrix */
} weights_slice;

/* The model's n_heads and n_kv_heads, which are those of the file, become those of a shard. INVALID or UNSUPPORTED, with a
 * line that names the number, where the model cannot be shared out so. */
weft_status weights_slice_heads(const weft_gguf *gguf, weft_model *model, weft_error *error);
/* The slice of the model's own shard. layer UINT32_MAX: of no layer, so whole. Errors, with a line: UNSUPPORTED, where a
 * cut would lie within a block. */
weft_status weights_slice_of(const weights_loader *loader, const weft_gguf_tensor *tensor, const tensor_row *row,
                             uint32_t layer, weights_slice *out);
/* Copies the bytes of a slice out of those of the tensor, matrix after matrix. */
void weights_slice_copy(const weft_gguf_tensor *tensor, const weights_slice *slice, const uint8_t *bytes, uint8_t *out);

#endif
