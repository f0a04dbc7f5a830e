/* SPDX-License-Identifier: MIT */
/* Sizes of a model with latent rows in place of keys and values, and which rows its layers have.
 *
 * Law: a layer has the sets of rows of kernels/latent.h that model_latent_has names, in their order; what it reads of
 * another layer is among them, and lies with that one. */
#ifndef WEFT_MODEL_LATENT_H
#define WEFT_MODEL_LATENT_H

#include "kernels/ops.h"
#include "model/kv_layout.h"

/* A memory that some layers read by what the last tokens are (kernels/engram.h). */
enum { MODEL_ENGRAM_LAYERS_MAX = 8 };
typedef struct model_engram {
  uint32_t n_layers;                                                        /* 0: there is none */
  uint32_t layer[MODEL_ENGRAM_LAYERS_MAX], n_rows[MODEL_ENGRAM_LAYERS_MAX]; /* n_rows: of the layer's table */
  uint32_t n_grams, n_heads, dim;                                           /* dim: numbers of a table's row */
  uint32_t pad;                                                             /* what stands before position 0 */
  bool one_table;                                                           /* all layers read rows of one */
} model_engram;

/* Layers with latent rows in place of keys and values (kernels/latent.h), and a residual stream of several parts
 * (kernels/streams.h): all layers of a model, or none. */
typedef struct model_latent {
  uint32_t n_streams, n_rounds;        /* n_streams 0: the model has no such layers */
  uint32_t q_rank, n_groups, out_rank; /* of the products before queries; of the heads' results by groups of heads */
  uint32_t n_rotated;
  uint32_t n_index_heads, index_dim, top_k;
  uint32_t ratio[WEFT_LAYERS_MAX]; /* positions of a far row; 0: there are only near ones */
  uint32_t n_hashed;               /* the first layers, whose experts a table of tokens chooses */
  float floor, rope_base_far;      /* the latter of layers with far rows */
  float limit[WEFT_LAYERS_MAX], shared_limit[WEFT_LAYERS_MAX]; /* of what experts gate, and the MLP beside them */
  /* Of V4.1, whose rows of the stream have behind them what their parts are taken by next. */
  bool carries;
  uint32_t source[WEFT_LAYERS_MAX];            /* 1 + the layer whose far and index rows a layer with far rows reads */
  bool chooses[WEFT_LAYERS_MAX];               /* it scores index rows; others see what the last one before chose */
  uint32_t block_source, n_blocks, block_rows; /* 1 + the layer that chooses blocks for later ones; 0: none does */
  model_engram engram;
} model_latent;
enum {
  MODEL_LATENT_OVERLAPS = 4, /* the ratio whose blocks overlap, and whose far rows are chosen by an index */
  MODEL_LATENT_GROUPS_MAX = 16,
  MODEL_LATENT_PENDING_BLOCKS = 2 /* of pending rows that an overlapping block is made of */
};

/* Which of the layers that read a memory a layer is; n_layers: it reads none. */
static inline uint32_t model_engram_index(const model_engram *engram, uint32_t layer) {
  uint32_t e = 0;
  while (e < engram->n_layers && engram->layer[e] != layer) e++;
  return e;
}

/* Rows of a table that a row reads. */
static inline uint32_t model_engram_reads(const model_engram *engram) {
  return engram->n_layers == 0 ? 0 : (engram->n_grams - 1) * engram->n_heads;
}

/* Whether a layer has latent rows of a set: its own, or where it reads another's those. */
static inline bool model_latent_has(const model_latent *latent, uint32_t layer, weft_latent_set set) {
  const uint32_t ratio = latent->ratio[layer];
  const bool pools = latent->carries ? ratio > 1 && latent->source[layer] == layer + 1 : ratio > 0;
  if (set == WEFT_LATENT_NEAR) return true;
  if (set == WEFT_LATENT_FAR) return ratio > 0;
  if (set == WEFT_LATENT_INDEX) return latent->carries ? ratio > 0 : ratio == MODEL_LATENT_OVERLAPS;
  if (set == WEFT_LATENT_PENDING) return pools;
  if (set == WEFT_LATENT_PENDING_INDEX) return !latent->carries && ratio == MODEL_LATENT_OVERLAPS;
  /* Tokens are kept by layer 0, for all layers that read them. */
  return latent->engram.n_layers > 0 &&
         (layer == 0 || model_engram_index(&latent->engram, layer) < latent->engram.n_layers);
}

#endif
