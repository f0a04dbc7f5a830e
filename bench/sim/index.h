/* SPDX-License-Identifier: MIT */
/* The index of a router that reads cache events: which replicas said that they have which blocks.
 *
 * Law. What a replica tells at a time is known `lag_us` later, in the order in which it was told, and not before. A
 * replica has a block while it has told it as stored in some medium and in that medium not as removed since. Blocks
 * have keys: names of cache events (api/events/kv_names.h), of one model apart from those of another. */
#ifndef WEFT_BENCH_SIM_INDEX_H
#define WEFT_BENCH_SIM_INDEX_H

#include "bench/inside.h"

typedef enum weft_sim_news_kind { WEFT_SIM_STORED, WEFT_SIM_REMOVED, WEFT_SIM_CLEARED } weft_sim_news_kind;

/* Something that a replica told and the router may not know yet. */
typedef struct weft_sim_news {
  uint64_t at_us, key;
  uint32_t replica;
  uint8_t kind, medium;
} weft_sim_news;

/* A block of a replica; in the list of its bucket. */
typedef struct weft_sim_index_entry {
  uint64_t key;
  uint32_t replica, next; /* index + 1 */
  uint8_t mediums;        /* one bit for each that has it */
} weft_sim_index_entry;

typedef struct weft_sim_index {
  uint64_t lag_us;
  weft_sim_news *news; /* a ring of n_news_room, a power of two */
  uint64_t n_told, n_known;
  uint32_t n_news_room;
  weft_sim_index_entry *entry; /* [room] */
  uint32_t *bucket;            /* [n_buckets], a power of two: index + 1 */
  uint32_t room, used, free, n, n_buckets, n_most;
  bool refused; /* memory was refused: something is missing */
} weft_sim_index;

weft_status weft_sim_index_open(uint64_t lag_us, weft_sim_index *out);
void weft_sim_index_close(weft_sim_index *index); /* one of zeros is fine */
/* now_us: never less than in the call before. key and medium are those of stored and removed blocks. */
void weft_sim_index_tell(weft_sim_index *index, uint64_t now_us, weft_sim_news_kind kind, uint32_t replica,
                         uint8_t medium, uint64_t key);
/* Whatever is known at this time. */
void weft_sim_index_learn(weft_sim_index *index, uint64_t now_us);
/* key: [n] blocks of a prompt from its start on. n_found: [n_replicas], how many of them each replica has without a
 * gap. */
void weft_sim_index_find(const weft_sim_index *index, const uint64_t *key, uint32_t n, uint32_t n_replicas,
                         uint32_t *n_found);

#endif
