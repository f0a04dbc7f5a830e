/* SPDX-License-Identifier: MIT */
/* How a model's keys and values are cut into pages.
 *
 * Law: layers with the same number of KV heads, the same head size and the same window form a class; a class is cut
 * into layer groups of equally many layers (the last may have fewer); one block of a group is block_tokens positions of
 * the group's layers and fills one page. All groups of all models that share a pool use pages of the same size; the
 * share of a page that a group does not fill is padding, which is counted and kept least. Which blocks of a windowed
 * group are kept is decided by pager/window.c. A layer that reads the keys
 * of an earlier layer costs nothing: its place is that layer's.
 *
 * A model may lie in parts on several devices (model/split.h). A page then has bytes on each of them, part_bytes, equal
 * for all pages, so that a page stays one number: of each part a group has equally many layers (the last groups may
 * have fewer). In the bytes of a page on a device, layer l of the group's layers there starts at l * layer_bytes: K,
 * then V (kernels/ops.h). Of a model that lies in shards each device has the same bytes of a page: all layers, and of
 * their heads an equal share. */
#ifndef WEFT_MODEL_KV_LAYOUT_H
#define WEFT_MODEL_KV_LAYOUT_H

#include <stdbool.h>

#include "base/layer_group.h"
#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WEFT_LAYERS_MAX = 256 };

/* What the layers of one model keep per position. */
typedef struct weft_kv_geometry {
  weft_type type;
  uint32_t n_layers;
  uint32_t n_kv_heads[WEFT_LAYERS_MAX];
  uint32_t head_dim[WEFT_LAYERS_MAX];
  uint32_t window[WEFT_LAYERS_MAX];  /* 0: the layer keeps all positions */
  uint32_t keys_of[WEFT_LAYERS_MAX]; /* 0: keys of its own; else 1 + the earlier layer whose pages it reads */
  uint8_t part[WEFT_LAYERS_MAX];     /* < WEFT_DEVICES_MAX: on which device the layer lies */
  uint32_t n_shards;                 /* above 1: every layer lies on as many devices, and n_kv_heads is of each */
} weft_kv_geometry;

/* What the layers of a group store in a page. */
typedef struct weft_kv_shape {
  uint32_t n_kv_heads, head_dim;
  uint64_t layer_bytes; /* K and V of one layer of one block */
} weft_kv_shape;

typedef struct weft_kv_layout {
  weft_type type;
  uint64_t page_bytes;                   /* on all devices */
  uint32_t n_parts;                      /* devices of the models that share the pool */
  uint64_t part_bytes[WEFT_DEVICES_MAX]; /* [n_parts] of a page on each device */
  uint32_t n_groups;
  weft_layer_group group[WEFT_GROUPS_MAX];
  weft_kv_shape shape[WEFT_GROUPS_MAX]; /* of each group */
  uint16_t group_of[WEFT_LAYERS_MAX];   /* layer -> group */
  uint8_t part_of[WEFT_LAYERS_MAX];     /* layer -> device */
  uint16_t index_in[WEFT_LAYERS_MAX];   /* layer -> place among the layers of its group on that device */
  double padding;                       /* the unused share of a page, a mean over the layers with keys of their own */
} weft_kv_layout;

/* Chooses one page size and a layout per model with the least padding. Of layouts with equal padding the one wins whose
 * largest block is nearest to 32 tokens (a block is the smallest piece of a prefix that is cached), then the one with
 * fewer groups, then the one with larger pages. block_tokens is 8, 16, 32, 64 or 128, and the smallest block of a
 * layout is of fixed_block_tokens tokens where that is not 0 (a power of two <= 128). UNSUPPORTED when a model needs
 * more than WEFT_GROUPS_MAX groups; INVALID when a layer reads keys that no earlier layer of its part has, or models that
 * share a pool lie in different numbers of shards. */
weft_status weft_kv_layout_choose(const weft_kv_geometry *const *geometry, uint32_t n_models,
                                  uint32_t fixed_block_tokens, weft_kv_layout *layouts, weft_error *error);
/* Bytes that the keys and values of one more token take: with windows_full in a sequence longer than every window,
 * where only layers without a window grow; else in a short sequence, where all layers do. */
uint64_t weft_kv_bytes_per_token(const weft_kv_geometry *geometry, bool windows_full);

#ifdef __cplusplus
}
#endif
#endif
