/* SPDX-License-Identifier: MIT */
/* Experts in host memory of which some lie on the card as well: which ones, and which leave for others.
 *
 * Law: of n_mats experts n_places lie on the card, one in each place at all times: place_of and expert_at are inverse.
 * An expert's heat is how many tokens it was given; half of it is forgotten as often as the heats of all experts pass
 * EXPERT_CACHE_AGE tokens for each. The hottest expert without a place takes that of the coldest one there, where its
 * heat is more than a quarter greater, and by more than EXPERT_CACHE_LEAST tokens, so that the copy pays. Experts of
 * equal heat are taken in their order. Nothing but the counts decides, and nothing of a result depends on it: the bytes
 * are the same wherever they are read. */
#ifndef WEFT_KERNELS_EXPERT_CACHE_H
#define WEFT_KERNELS_EXPERT_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { EXPERT_CACHE_AGE = 64, EXPERT_CACHE_LEAST = 4, EXPERT_CACHE_NONE = -1 };

typedef struct expert_cache {
  uint32_t n_mats, n_places;
  uint32_t *heat, *heard;    /* [n_mats]; heard: the counts of the hearing before */
  int32_t *place_of;         /* [n_mats]; EXPERT_CACHE_NONE: on the host alone */
  uint32_t *expert_at;       /* [n_places] */
  uint64_t n_tokens, n_hits; /* heard of; those of them whose expert had a place then */
} expert_cache;

/* Of n_bytes for a cache of experts that have n_bytes_all together: how many of n_mats of them have a place. */
uint32_t expert_cache_places(uint64_t n_bytes, uint64_t n_bytes_all, uint32_t n_mats);
/* The first n_places experts have a place. NO_MEMORY; the cache is empty then, as one of zeros is. */
weft_status expert_cache_open(expert_cache *cache, uint32_t n_mats, uint32_t n_places);
void expert_cache_close(expert_cache *cache);
/* n_tokens [n_mats]: tokens that each expert was given since the beginning; they may wrap. */
void expert_cache_hear(expert_cache *cache, const uint32_t *n_tokens);
/* One exchange: *expert has *place from now on, and its bytes have to be copied there. False: there is none to make. */
bool expert_cache_exchange(expert_cache *cache, uint32_t *expert, uint32_t *place);

#ifdef __cplusplus
}
#endif
#endif
