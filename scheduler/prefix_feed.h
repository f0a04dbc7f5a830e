/* SPDX-License-Identifier: MIT */
/* What changed in the prefix trie of an engine, from its thread to one reader on another.
 *
 * Law. At the end of a turn the engine copies changes (pager/journal.h) into the one buffer here, if the reader has
 * given it back, and never waits: while the reader has it, changes stay in the pager's list, where a node that changes
 * again is still told once. Nothing is lost, and what a turn spends here is bounded by the buffer. While the reader
 * does not want changes the pager lists none.
 *
 * Threads: fill by the engine's, the rest by the reader's. */
#ifndef WEFT_SCHEDULER_PREFIX_FEED_H
#define WEFT_SCHEDULER_PREFIX_FEED_H

#include <stdatomic.h>

#include "pager/journal.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_prefix_feed weft_prefix_feed;

/* What a reader has to apply, in its order; the trie is whole where `rest` is false. */
typedef struct weft_prefix_changes {
  const weft_prefix_change *change; /* [n] */
  const int32_t *tokens;            /* [n][base tokens] */
  uint32_t n;
  bool cleared; /* first, everything that was told before is gone */
  bool rest;
} weft_prefix_changes;

weft_status weft_prefix_feed_open(const weft_pager *pager, weft_prefix_feed **out);
void weft_prefix_feed_close(weft_prefix_feed *feed); /* NULL is fine */
/* Who reads. wake: called by the engine's thread when there is something to take; must not block. NULL: nobody, and
 * once this has returned the one before is not called any more. */
void weft_prefix_feed_listen(weft_prefix_feed *feed, void (*wake)(void *self), void *self);
/* From now on the reader wants changes, first of all the whole trie; or no longer. The engine hears of it in its next
 * turn (weft_engine_wake). */
void weft_prefix_feed_want(weft_prefix_feed *feed, bool wanted);
/* False: there is nothing to take. What is taken stays until it is given back; true then: there is more, and the engine
 * should have a turn (weft_engine_wake). */
bool weft_prefix_feed_take(weft_prefix_feed *feed, weft_prefix_changes *out);
bool weft_prefix_feed_give_back(weft_prefix_feed *feed);

/* The engine's. */
void weft_prefix_feed_fill(weft_prefix_feed *feed, weft_pager *pager);

#ifdef __cplusplus
}
#endif
#endif
