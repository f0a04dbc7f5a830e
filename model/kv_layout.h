/* SPDX-License-Identifier: MIT */
/* How a model's keys and values are cut into pages.
 *
 * Law: layers with equal bytes per token and equal retention form classes; a class is cut into groups of
 * layers_per_group layers; one block of a group is block_tokens positions of its layers and fills one page. All groups
 * of all models that share a pool use pages of the same size; what a group does not fill is padding, counted and kept
 * least. A layer that reads the keys of an earlier one costs nothing: its place is that layer's. Inside a page, layer
 * l of the group starts at l * layer_bytes: K, then V (kernels/ops.h). */
#ifndef WEFT_MODEL_KV_LAYOUT_H
#define WEFT_MODEL_KV_LAYOUT_H

#include <stdbool.h>

#include "base/layer_group.h"
#include "kernels/quant.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WEFT_LAYERS_MAX = 256 };

/* Per layer of one model. */
typedef struct weft_kv_geometry {
  weft_type type;
  uint32_t n_layers;
  uint32_t n_kv_heads[WEFT_LAYERS_MAX];
  uint32_t head_dim[WEFT_LAYERS_MAX];
  uint32_t window[WEFT_LAYERS_MAX];  /* 0: keeps all */
  uint32_t keys_of[WEFT_LAYERS_MAX]; /* 0: keys of its own; else 1 + the earlier layer whose pages it reads */
} weft_kv_geometry;

/* What the layers of a group put into a page. */
typedef struct weft_kv_shape {
  uint32_t n_kv_heads, head_dim;
  uint64_t layer_bytes; /* K and V of one layer of one block */
} weft_kv_shape;

typedef struct weft_kv_layout {
  weft_type type;
  uint64_t page_bytes;
  uint32_t n_groups;
  weft_layer_group group[WEFT_GROUPS_MAX];
  weft_kv_shape shape[WEFT_GROUPS_MAX]; /* of each group */
  uint16_t group_of[WEFT_LAYERS_MAX];   /* layer -> group */
  uint16_t index_in[WEFT_LAYERS_MAX];   /* layer -> place in its group */
  double padding;                       /* share of a page that is not used, mean over groups by layers */
} weft_kv_layout;

/* Chooses one page size and a layout per model with the least padding. Ties: the largest block nearest to 32 tokens
 * (it is the grain of the prefix cache), then fewer groups, then larger pages. block_tokens in {8, 16, 32, 64, 128};
 * fixed_block_tokens > 0 (a power of two <= 128) forces the smallest block. UNSUPPORTED when a model needs more than
 * WEFT_GROUPS_MAX groups. */
weft_status weft_kv_layout_choose(const weft_kv_geometry *const *geometry, uint32_t n_models,
                                  uint32_t fixed_block_tokens, weft_kv_layout *layouts, weft_error *error);
/* KV bytes that one more token of a long sequence costs, windows full: global layers only; and with windows empty. */
uint64_t weft_kv_bytes_per_token(const weft_kv_geometry *geometry, bool windows_full);

#ifdef __cplusplus
}
#endif
#endif
