/* SPDX-License-Identifier: MIT */
/* What a drafter that fills blocks (model/dflash.h) and the model that it drafts for know of each other. */
#ifndef WEFT_MODEL_BLOCKS_H
#define WEFT_MODEL_BLOCKS_H

#include <stdint.h>

enum { MODEL_BLOCK_LAYERS_MAX = 16 };

/* Of a drafter, from the keys of its file. */
typedef struct model_block {
  uint32_t n;                                       /* rows of a block, the last token among them; 0: it fills none */
  int32_t mask;                                     /* the token in place of those that follow */
  uint32_t n_layers, layer[MODEL_BLOCK_LAYERS_MAX]; /* of its target, whose input it reads */
} model_block;

/* Of its target: what went into these layers in the last step. */
typedef struct model_features {
  const model_block *block; /* NULL: nothing is kept */
  float *rows;              /* device memory, [rows_max][block->n_layers][n_hidden] */
} model_features;

#endif
