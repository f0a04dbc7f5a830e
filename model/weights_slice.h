/* SPDX-License-Identifier: MIT */
/* Which part of a layer's tensor a shard has (model/shards.h).
 *
 * Law: a matrix is cut between rows or between whole matrices, never within a row, so that every product has all of
 * its inputs: those that make heads, or feed-forward columns of a layer without experts, or that layer's hidden numbers
 * (`down`), into equal shares; a stack of experts into ranges of experts, as even as can be. Where there are fewer key
 * heads than shards, several shards have the same. So a slice is a range of the tensor's bytes. Vectors of heads and
 * scales of experts are cut at the same places. All else is whole on every shard. */
#ifndef WEFT_MODEL_WEIGHTS_SLICE_H
#define WEFT_MODEL_WEIGHTS_SLICE_H

#include "model/weights.h"

typedef struct weights_slice {
  weft_gguf_tensor matrix; /* the shard's part of a matrix, as a tensor */
  uint64_t first, n;       /* the shard's elements of a vector */
} weights_slice;

/* Whether heads and experts can be shared out to n shards, n > 1: INVALID or UNSUPPORTED, with a line that names the
 * number, where they cannot. */
weft_status weights_slice_check(const weft_gguf *gguf, const model_hyper *hyper, uint32_t n, weft_error *error);
/* The model's n_heads and n_kv_heads, which are those of the file, become those of a shard. Errors: those of
 * weights_slice_check. */
weft_status weights_slice_heads(const weft_gguf *gguf, weft_model *model, weft_error *error);
/* A token embedding that is the head too, on two devices. */
bool weights_tied_apart(const weights_loader *loader);
/* Whether the model's own shard has a tensor of no layer: shard 0 has all, others what stands for tokens. */
bool weights_shard_has(const weights_loader *loader, const tensor_row *row);
/* Places what tells a shard with a range of tokens which row of its embedding is whose; else nothing. NO_MEMORY. */
weft_status weights_token_tables(weights_loader *loader);
/* The slice of the model's own shard. layer UINT32_MAX: of no layer, so whole, but for the matrices of
 * tokens (model/shards.h). Errors, with a line: INVALID, where a
 * dimension cannot be shared out evenly. */
weft_status weights_slice_of(const weights_loader *loader, const weft_gguf_tensor *tensor, const tensor_row *row,
                             uint32_t layer, weights_slice *out);

#endif
