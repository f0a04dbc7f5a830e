/* SPDX-License-Identifier: MIT */
/* Which replica was sent which prompts and may still have their blocks, as far as a choice between replicas needs it
 * (replica_choice.h).
 *
 * Law. It is a memory of bounded size of what was sent, and a guess of what a pool still holds, on which speed depends
 * and no answer does. A replica may have a block while it has evicted less than twice what it can keep since it was
 * last sent the block; twice, because what a window has passed is evicted before all others and counts, too. A prompt
 * is cut into blocks; a block stands under a hash of all tokens up to its end, its model and its sharing domain,
 * so no domain finds what another one sent. Where a set of places is full the block that was used longest ago is
 * forgotten. The caller keeps other threads out. */
#ifndef WEFT_SCHEDULER_SENT_PREFIXES_H
#define WEFT_SCHEDULER_SENT_PREFIXES_H

#include <stdint.h>

#include "base/status.h"
#include "pager/pager.h"
#include "scheduler/replica_choice.h"

enum {
  WEFT_SENT_BLOCK = 32,      /* tokens */
  WEFT_SENT_PLACES = 1 << 17 /* so it remembers four million tokens in six MiB */
};

typedef struct weft_sent_place {
  uint64_t key;  /* 0: empty */
  uint32_t used; /* when, in calls */
  uint32_t
      at[WEFT_REPLICAS_MAX]; /* pages that each replica had evicted when it was last sent the block, + 1; 0: never */
} weft_sent_place;

typedef struct weft_sent_prefixes {
  weft_sent_place *place; /* [WEFT_SENT_PLACES] */
  uint32_t n_calls;
} weft_sent_prefixes;

/* A prompt, for both calls below. */
typedef struct weft_sent_prompt {
  uint32_t model;
  weft_key128 domain;
  const int32_t *tokens;
  uint32_t n_tokens;
} weft_sent_prompt;

weft_status weft_sent_open(weft_sent_prefixes *sent);
void weft_sent_close(weft_sent_prefixes *sent);
/* What a replica's pool has forgotten, and what it keeps. */
typedef struct weft_sent_pool {
  uint64_t n_evicted; /* pages, since the start */
  uint32_t n_kept;    /* pages that are cached or free */
} weft_sent_pool;

/* n_found: [n_replicas], how many tokens of the beginning each replica was sent and may still have, in whole blocks. */
void weft_sent_find(const weft_sent_prefixes *sent, const weft_sent_prompt *prompt, const weft_sent_pool *pool,
                    uint32_t n_replicas, uint32_t *n_found);
void weft_sent_note(weft_sent_prefixes *sent, const weft_sent_prompt *prompt, const weft_sent_pool *pool,
                    uint32_t replica);
void weft_sent_forget(weft_sent_prefixes *sent); /* everything */

#endif
