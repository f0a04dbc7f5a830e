/* SPDX-License-Identifier: MIT */
/* The layer of a file that guesses tokens ahead (nextn; MTP, multi-token prediction): one more layer with attention
 * behind a model's own, which drafts for that model. It is opened as a model of one layer whose target is its file's
 * model; both get limits.nextn. Embeddings and head are the target's, unless the file has some for the layer.
 *
 * The row of position p is made of two: the embedding of token p, and the target's hidden row of position p - 1, the
 * one that token p was drawn from, after the final norm. Each is normed, they are projected together into the layer's
 * residual stream, and what the layer gives, normed, is what the head reads to guess token p + 1. A row of a guess has
 * that normed row in place of a hidden row of the target, which does not exist yet. At position 0, and where nobody
 * knows the hidden row before (the first row behind a found prefix), zeros take its place. Where the residual stream
 * has several parts (kernels/streams.h), the hidden row is that stream after the last layer, before its parts are mixed:
 * each part is normed and projected beside the same embedding, and the layer mixes its own stream for the head.
 *
 * Law. The layer has keys of its own, in a set of rows behind those of its model's layers, so that the pager keeps,
 * finds, moves and forgets them with the model's. A key depends on tokens up to its position alone, as those of the
 * model do, but for the zeros: they change what is guessed at and never an answer. The keys of guesses lie in scratch.
 * A row's result depends on that row and its keys only. Layer and model lie on one device. */
#ifndef WEFT_MODEL_NEXTN_H
#define WEFT_MODEL_NEXTN_H

#include "model/model_internal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of a model that was read: whether its file has such a layer. UNSUPPORTED with one line where it has none, or several,
 * where the architecture's is not supported, or where the model lies on several devices. */
weft_status nextn_check(const weft_gguf *gguf, const weft_model *model, uint32_t n_devices, weft_error *error);
/* Appends the layer's keys to those of its model. */
void nextn_add_keys(const model_hyper *hyper, weft_kv_geometry *geometry);
/* Of the layer: what its target says of it. INVALID where that was opened without limits.nextn. */
weft_status nextn_read(const weft_gguf *gguf, weft_model *model, weft_error *error);
/* Where the layer finds its keys among its target's. */
void nextn_find_keys(weft_model *model);
bool nextn_is(const weft_model *model);

/* Rows in memory of the device. */
typedef struct nextn_rows {
  weft_model *model;
  float *pair; /* [rows_max][parts][2][n_hidden]: the normed embedding, then the normed hidden row, of each part of the
                * residual stream */
} nextn_rows;

/* Which rows of the pairs n rows become: first, first + every, first + 2 every .. */
typedef struct nextn_places {
  uint32_t n, first, every;
} nextn_places;
/* The tokens of rows [n], and their hidden rows [n][parts][n_hidden]. */
weft_status nextn_put_tokens(const nextn_rows *rows, const int32_t *token, const nextn_places *places);
weft_status nextn_put_hidden(const nextn_rows *rows, float *hidden, const nextn_places *places);

typedef struct nextn_args {
  const nextn_rows *rows;
  const weft_batch *batch; /* its rows are those of the pairs, and its segments may leave some out */
  const weft_kv_store *kv;
  const weft_kv_layout *layout; /* of the target */
  const uint32_t *output_row;
  uint32_t n_output; /* 0: keys are all that is wanted */
  float *hidden;     /* [n_output][n_hidden] */
  bool again;        /* the call before had the same rows, tables and positions */
} nextn_args;
weft_status nextn_compute(const nextn_args *args);

#ifdef __cplusplus
}
#endif
#endif
