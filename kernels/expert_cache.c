/* SPDX-License-Identifier: MIT */
#include "kernels/expert_cache.h"

#include <string.h>

#include "base/memory.h"

uint32_t expert_cache_places(uint64_t n_bytes, uint64_t n_bytes_all, uint32_t n_mats) {
  if (n_mats == 0 || n_bytes_all == 0) return 0;
  double n = (double)n_bytes / (double)n_bytes_all * (double)n_mats;
  return n < (double)(n_mats - 1) ? (uint32_t)n : n_mats - 1;
}

weft_status expert_cache_open(expert_cache *c, uint32_t n_mats, uint32_t n_places) {
  memset(c, 0, sizeof *c);
  c->heat = (uint32_t *)weft_alloc(n_mats, sizeof *c->heat);
  c->heard = (uint32_t *)weft_alloc(n_mats, sizeof *c->heard);
  c->place_of = (int32_t *)weft_alloc(n_mats, sizeof *c->place_of);
  c->expert_at = (uint32_t *)weft_alloc(n_places == 0 ? 1 : n_places, sizeof *c->expert_at);
  if (c->heat == NULL || c->heard == NULL || c->place_of == NULL || c->expert_at == NULL) {
    expert_cache_close(c);
    return WEFT_E_NO_MEMORY;
  }
  c->n_mats = n_mats;
  c->n_places = n_places;
  for (uint32_t e = 0; e < n_mats; e++) c->place_of[e] = e < n_places ? (int32_t)e : EXPERT_CACHE_NONE;
  for (uint32_t i = 0; i < n_places; i++) c->expert_at[i] = i;
  return WEFT_OK;
}

void expert_cache_close(expert_cache *c) {
  weft_free(c->heat);
  weft_free(c->heard);
  weft_free(c->place_of);
  weft_free(c->expert_at);
  memset(c, 0, sizeof *c);
}

void expert_cache_hear(expert_cache *c, const uint32_t *n_tokens) {
  uint64_t all = 0;
  for (uint32_t e = 0; e < c->n_mats; e++) {
    uint32_t n = n_tokens[e] - c->heard[e];
    c->heard[e] = n_tokens[e];
    c->heat[e] = n < UINT32_MAX / 2 - c->heat[e] ? c->heat[e] + n : UINT32_MAX / 2;
    c->n_tokens += n;
    if (c->place_of[e] != EXPERT_CACHE_NONE) c->n_hits += n;
    all += c->heat[e];
  }
  for (; all > (uint64_t)EXPERT_CACHE_AGE * c->n_mats; all /= 2)
    for (uint32_t e = 0; e < c->n_mats; e++) c->heat[e] /= 2;
}

bool expert_cache_exchange(expert_cache *c, uint32_t *expert, uint32_t *place) {
  uint32_t hottest = UINT32_MAX, coldest = UINT32_MAX;
  for (uint32_t e = 0; e < c->n_mats; e++) {
    if (c->place_of[e] == EXPERT_CACHE_NONE) {
      if (hottest == UINT32_MAX || c->heat[e] > c->heat[hottest]) hottest = e;
    } else if (coldest == UINT32_MAX || c->heat[e] < c->heat[coldest]) {
      coldest = e;
    }
  }
  if (hottest == UINT32_MAX || coldest == UINT32_MAX) return false;
  uint32_t least = c->heat[coldest] + c->heat[coldest] / 4 + EXPERT_CACHE_LEAST;
  if (c->heat[hottest] <= least) return false;
  *expert = hottest;
  *place = (uint32_t)c->place_of[coldest];
  c->place_of[coldest] = EXPERT_CACHE_NONE;
  c->place_of[hottest] = (int32_t)*place;
  c->expert_at[*place] = hottest;
  return true;
}
