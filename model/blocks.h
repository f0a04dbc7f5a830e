/* SPDX-License-Identifier: MIT */
/* What a drafter that fills blocks (model/dflash.h) and the model that it drafts for know of each other; and what heads
 * of drafters have besides an output matrix. */
#ifndef WEFT_MODEL_BLOCKS_H
#define WEFT_MODEL_BLOCKS_H

#include <stdint.h>

#include "kernels/device.h"

enum { MODEL_BLOCK_LAYERS_MAX = 16 };

/* Of a drafter, from the keys of its file. */
typedef struct model_block {
  uint32_t n;                                       /* rows of a block, the last token among them; 0: it fills none */
  int32_t mask;                                     /* the token in place of those that follow */
  uint32_t n_layers, layer[MODEL_BLOCK_LAYERS_MAX]; /* of its target, whose input it reads */
  uint32_t first;                                   /* the row that gives the first draft */
} model_block;

/* Of a drafter's head, from its file. Groups (model/assistant.h): the tokens lie in n_groups of one size, of which a
 * row reads the n_chosen whose centroids it agrees with most. Pairs (model/dflash.h): what the token before a draft
 * adds to its logits is a product of two matrices with `rank` numbers between them. */
typedef struct model_draft_sizes {
  uint32_t n_groups, n_chosen; /* 0: a row reads all tokens */
  uint32_t rank;               /* 0: the token before adds nothing */
} model_draft_sizes;

typedef struct model_draft_head {
  weft_weight centroids;       /* [n_groups, n_hidden] */
  const int32_t *tokens;       /* [n_groups][n_vocab / n_groups] */
  weft_weight before, follows; /* [n_vocab, rank] both: of the token before, and of the token itself */
} model_draft_head;

/* Of its target: what went into these layers in the last step. */
typedef struct model_features {
  const model_block *block; /* NULL: nothing is kept */
  float *rows;              /* device memory, [rows_max][block->n_layers][n_hidden] */
  float *stream; /* the same, [rows_max][row width]: the parts of the stream that hidden rows are made of, in the order
                  * of the outputs (model/nextn.h); NULL: nothing is kept */
} model_features;

#endif
