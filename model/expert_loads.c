/* SPDX-License-Identifier: MIT */
#include "model/expert_loads.h"

#include <pthread.h>
#include <string.h>

#include "base/memory.h"

const double weft_expert_ratio_bounds[WEFT_EXPERT_RATIOS - 1] = {0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0};

struct weft_expert_loads {
  pthread_mutex_t mutex;
  uint32_t n_layers;
  uint32_t *n_tokens; /* [n_layers][n_experts] of the window */
  uint64_t *n_all;    /* [n_layers] */
  weft_expert_stats stats;
};

weft_status weft_expert_loads_open(weft_expert_loads **out) {
  *out = weft_alloc(1, sizeof **out);
  if (*out == NULL) return WEFT_E_NO_MEMORY;
  (void)pthread_mutex_init(&(*out)->mutex, NULL);
  return WEFT_OK;
}

void weft_expert_loads_close(weft_expert_loads *l) {
  if (l == NULL) return;
  (void)pthread_mutex_destroy(&l->mutex);
  weft_free(l->n_tokens);
  weft_free(l->n_all);
  weft_free(l);
}

weft_status weft_expert_loads_shape(weft_expert_loads *l, uint32_t n_layers, uint32_t n_experts) {
  weft_status status = WEFT_OK;
  (void)pthread_mutex_lock(&l->mutex);
  if (l->n_all == NULL) {
    l->n_tokens = weft_alloc((uint64_t)n_layers * n_experts, sizeof *l->n_tokens);
    l->n_all = weft_alloc(n_layers, sizeof *l->n_all);
    if (l->n_tokens == NULL || l->n_all == NULL) {
      weft_free(l->n_tokens);
      weft_free(l->n_all);
      l->n_tokens = NULL;
      l->n_all = NULL;
      status = WEFT_E_NO_MEMORY;
    } else {
      l->n_layers = n_layers;
      l->stats.n_experts = n_experts;
    }
  }
  (void)pthread_mutex_unlock(&l->mutex);
  return status;
}

static void end_window(weft_expert_loads *l, uint32_t layer) {
  const uint32_t n = l->stats.n_experts;
  uint32_t *n_tokens = l->n_tokens + (uint64_t)layer * n, most = 0;
  const double average = (double)l->n_all[layer] / n;
  for (uint32_t e = 0; e < n; e++) {
    uint32_t i = 0;
    while (i + 1 < WEFT_EXPERT_RATIOS && n_tokens[e] > average * weft_expert_ratio_bounds[i]) i++;
    l->stats.ratio[i] += 1;
    if (n_tokens[e] > most) most = n_tokens[e];
  }
  l->stats.n_windows += 1;
  l->stats.evenness += average / most;
  memset(n_tokens, 0, n * sizeof *n_tokens);
  l->n_all[layer] = 0;
}

void weft_expert_loads_add(weft_expert_loads *l, uint32_t layer, const int32_t *ids, uint64_t n) {
  (void)pthread_mutex_lock(&l->mutex);
  const uint32_t n_experts = l->stats.n_experts;
  for (uint64_t i = 0; i < n && layer < l->n_layers; i++) {
    if ((uint32_t)ids[i] >= n_experts) continue;
    l->n_tokens[(uint64_t)layer * n_experts + (uint32_t)ids[i]] += 1;
    if (++l->n_all[layer] == (uint64_t)WEFT_EXPERT_WINDOW * n_experts) end_window(l, layer);
  }
  (void)pthread_mutex_unlock(&l->mutex);
}

weft_expert_stats weft_expert_loads_stats(weft_expert_loads *l) {
  (void)pthread_mutex_lock(&l->mutex);
  weft_expert_stats stats = l->stats;
  (void)pthread_mutex_unlock(&l->mutex);
  return stats;
}
