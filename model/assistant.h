/* SPDX-License-Identifier: MIT */
/* A drafter that reads its target's keys (architecture gemma4-assistant): a few layers with queries alone, whose
 * attention goes over the pages of the target, of its last layer with a window for layers with one, and of its last
 * layer without for the others. It keeps nothing of a sequence and writes no page.
 *
 * A draft after tokens 0 .. n - 1, of which all but the last have keys: the embedding of token n - 1 by the target and
 * the target's hidden row of token n - 2 (the one that token n - 1 was drawn from, after the final norm) lie one behind
 * the other and are projected into the drafter's residual stream, its layers attend as at position n - 1 over the keys
 * before it, and its head gives the next token. What it projects back stands in for the hidden row of the next draft,
 * beside the embedding of the token that was drafted; the position stays n - 1, since there are no newer keys.
 *
 * Law: of layers with a window W a draft sees the W - 1 keys before position n - 1, which are those that the row of
 * token n - 1 will see and which the pager therefore keeps. A row's result depends on that row only. The drafter and
 * its target lie on one device; it is opened with the target in weft_model_limits. */
#ifndef WEFT_MODEL_ASSISTANT_H
#define WEFT_MODEL_ASSISTANT_H

#include "model/model_internal.h"

#ifdef __cplusplus
extern "C" {
#endif

struct model_arch;

/* The architecture of such a file; NULL: it is another. */
const struct model_arch *assistant_arch(const weft_gguf *gguf);
/* Reads its keys. UNSUPPORTED or INVALID with a line where it is no drafter, or cannot draft for this target. */
weft_status assistant_read(const weft_gguf *gguf, const weft_model *target, model_hyper *hyper, weft_error *error);
/* Where each layer finds the target's keys. */
void assistant_find_keys(weft_model *model);

typedef struct assistant_args {
  weft_model *model;
  const weft_batch *batch; /* a row each: its one segment begins at position n - 2, and its position is n - 1 */
  const weft_kv_store *kv;
  const weft_kv_layout *layout; /* of the target */
  const int32_t *token;         /* [n_rows] on the device */
  float *pair;                  /* [n_rows][2][n_target]: of the first draft with the hidden row in the second half */
  float *hidden;                /* [n_rows][n_hidden] out: what the head reads, and the next draft begins with */
  const uint32_t *row;          /* [n_rows] 0, 1, 2 .. */
  bool again;                   /* the call before had the same batch, and its drafts are these rows' tokens */
} assistant_args;

/* One draft of each row, but for the head. */
weft_status assistant_step(const assistant_args *args);

#ifdef __cplusplus
}
#endif
#endif
