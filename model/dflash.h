/* SPDX-License-Identifier: MIT */
/* A drafter that fills a block in one pass (architecture dflash): some layers of its own that read hidden rows of its
 * target (what goes into some of that one's layers), and whose attention is not causal.
 *
 * A position's features, the rows that go into the named layers one behind the other, are projected and normed; of
 * these rows, the same for all of its layers, it makes keys and values, normed and rotated as its own are. To draft
 * after tokens 0 .. n - 1, of which all but the last have keys, the last one and marks in place of those that
 * follow are a block at positions n - 1, n ..; its rows see the keys before it and one another, and row k gives the
 * token k behind the last. Embeddings and head are the target's.
 *
 * Law. Its keys lie in sets of rows behind those of its target's layers, so that the pager keeps, finds, moves and
 * forgets them with these; a key depends on tokens up to its position alone. The keys of a block lie in scratch. A
 * row's result depends on its block and the keys before it only. The two lie on one device, and the target is
 * opened with the drafter's file in weft_model_limits. What files of DFlash2 have besides is refused by name.
 *
 * DSpark: the rows of a block from the first one on give the drafts, and the token before each adds to its logits
 * (model/blocks.h; the runner draws, since a draft is not known before the one before it). */
#ifndef WEFT_MODEL_DFLASH_H
#define WEFT_MODEL_DFLASH_H

#include "model/model_internal.h"

#ifdef __cplusplus
extern "C" {
#endif

bool dflash_is_file(const weft_gguf *gguf);
bool dflash_is(const weft_model *model);
/* Of a target that was read, with the file in its limits: whether that drafts for it. One line where it does not. */
weft_status dflash_check(const weft_model *model, uint32_t n_devices, weft_error *error);
/* Appends the drafter's keys to those of its target. */
weft_status dflash_add_keys(const weft_model *model, weft_kv_geometry *geometry);
/* Reads the drafter's keys. INVALID where the target was opened without its file. */
weft_status dflash_read(const weft_gguf *gguf, weft_model *model, weft_error *error);
/* Where its layers find their keys among its target's. */
void dflash_find_keys(weft_model *model);

typedef struct dflash_args {
  weft_model *model;
  const weft_batch *batch;
  const weft_kv_store *kv;
  const weft_kv_layout *layout; /* of the target */
  float *features;              /* of dflash_store: [n_rows][features], of the batch's rows */
  const uint32_t *output_row;   /* of dflash_block */
  uint32_t n_output;
  float *hidden; /* [n_output][n_hidden] */
} dflash_args;

/* Makes the keys of the batch's rows, all of which store in the pool. */
weft_status dflash_store(const dflash_args *args);
/* The rows of blocks, which are the batch's segments. */
weft_status dflash_block(const dflash_args *args);

#ifdef __cplusplus
}
#endif
#endif
