/* SPDX-License-Identifier: MIT */
/* Which experts of a model lie on a card that has no room for all, and which stay in host memory.
 *
 * Law: experts are placed behind all other weights, in the order of the layers. The first ones lie on the card, as far
 * as there is room; from the first one that has none on, all stay in host memory, also one that would have room. So
 * what lies on the card is a prefix of that order. Where it is known beforehand that they have no room together, all
 * but EXPERT_ROOM_STACKS_PART-th of the room is for a cache of those on the host (kernels/expert_cache.h), and what the
 * first one without room leaves becomes part of it: of a whole stack most experts are hardly chosen. */
#ifndef WEFT_KERNELS_EXPERT_ROOM_H
#define WEFT_KERNELS_EXPERT_ROOM_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { EXPERT_ROOM_STACKS_PART = 8 };

typedef struct expert_room {
  uint64_t n_expected, n_placed;    /* bytes of the model's experts; of those of them that were placed */
  uint64_t cache_bytes, host_bytes; /* of the cache, and of the experts that it is for */
  bool is_full;                     /* all further experts stay on the host */
} expert_room;

/* A model's experts will be placed, of so many bytes; 0: it is not known, and each lies where it finds room. */
void expert_room_expect(expert_room *room, uint64_t n_bytes);
/* Called before an expert weight is placed, while `left` bytes are left for weights: how many of them become the
 * cache's, and are left for weights no longer. */
uint64_t expert_room_reserve(expert_room *room, uint64_t left);
/* The same when a weight found no room. */
uint64_t expert_room_fill(expert_room *room, uint64_t left);
/* A weight of n_bytes was placed, here or there. */
void expert_room_placed(expert_room *room, uint64_t n_bytes);
/* What of the cache is for a weight of n_bytes that stays on the host. */
uint64_t expert_room_share(const expert_room *room, uint64_t n_bytes);

#ifdef __cplusplus
}
#endif
#endif
