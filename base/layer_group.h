/* SPDX-License-Identifier: MIT */
/* A layer group: layers of one model whose keys and values are kept for the same window in blocks of the same
 * positions, so that these layers share one block table. The model cuts its layers into groups, the scheduler fills the
 * block tables, and the pager hands out the pages; all three describe a group with the struct below.
 *
 * Law: a block is block_tokens neighbouring positions of all layers of a group, and it fills one page. In a group of
 * states a block is instead the state after its last position: what a recurrence has made of all positions up to there.
 * It fills state_pages pages. Groups of states come after the other groups of a model, of which there is at least one.
 */
#ifndef WEFT_BASE_LAYER_GROUP_H
#define WEFT_BASE_LAYER_GROUP_H

#include <stdbool.h>
#include <stdint.h>

enum {
  WEFT_GROUPS_MAX = 16,        /* layer groups of one model */
  WEFT_MODELS_MAX = 16,        /* models that share one pool of pages */
  WEFT_BLOCK_TOKENS_MAX = 256, /* positions of one block: a power of two from 1 to this */
  WEFT_STATE_PAGES_MAX = 4096  /* pages of one state */
};

typedef struct weft_layer_group {
  uint32_t block_tokens; /* a power of two */
  uint32_t window; /* 0: the group keeps every position; W: a row at position p sees the keys at positions > p - W */
  uint32_t n_layers;
  uint32_t state_pages; /* 0: keys and values; else pages of a state. Its window is 0 */
  bool from_border;     /* with a window W: a row sees the keys since the last border, a multiple of W, instead */
} weft_layer_group;

/* The first position whose keys a row at `position` sees. Of a group of keys and values. */
static inline uint32_t weft_layer_group_first(const weft_layer_group *group, uint32_t position) {
  if (group->window == 0) return 0;
  if (group->from_border) return position - position % group->window;
  return position < group->window ? 0 : position - group->window + 1;
}

#endif
