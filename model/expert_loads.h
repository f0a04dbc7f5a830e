/* SPDX-License-Identifier: MIT */
/* How evenly rows are spread over the experts of a model's layers, of the rows that a runner looks at.
 *
 * Law: a layer's tokens are counted until its experts have had WEFT_EXPERT_WINDOW of them on average; then each expert
 * goes into the histogram by its tokens over that average, the layer's evenness is added (the average over the most
 * tokens of an expert: 1 where all have the same), and its counts begin anew. So what is told only grows, is of any
 * length of time, and takes no more room with more layers or experts. Any thread may call; runners of replicas of one
 * model share one. */
#ifndef WEFT_MODEL_EXPERT_LOADS_H
#define WEFT_MODEL_EXPERT_LOADS_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WEFT_EXPERT_WINDOW = 32, WEFT_EXPERT_RATIOS = 8 };
extern const double weft_expert_ratio_bounds[WEFT_EXPERT_RATIOS - 1];

/* Of all layers. ratio: experts of ended windows whose tokens were at most weft_expert_ratio_bounds[i] times the
 * average, the last bucket being open; the sum of the ratios of a window is the number of experts. */
typedef struct weft_expert_stats {
  uint32_t n_experts; /* 0: the model has none, or was never loaded */
  uint64_t ratio[WEFT_EXPERT_RATIOS];
  uint64_t n_windows;
  double evenness; /* the sum over windows */
} weft_expert_stats;

typedef struct weft_expert_loads weft_expert_loads;
weft_status weft_expert_loads_open(weft_expert_loads **out);
void weft_expert_loads_close(weft_expert_loads *loads);
/* To be called before add, and again where the model is loaded again: the same numbers then. NO_MEMORY. */
weft_status weft_expert_loads_shape(weft_expert_loads *loads, uint32_t n_layers, uint32_t n_experts);
/* ids: n choices of rows in a layer; those that are no expert count nowhere. */
void weft_expert_loads_add(weft_expert_loads *loads, uint32_t layer, const int32_t *ids, uint64_t n);
weft_expert_stats weft_expert_loads_stats(weft_expert_loads *loads);

#ifdef __cplusplus
}
#endif
#endif
