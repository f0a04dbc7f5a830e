/* SPDX-License-Identifier: MIT */
/* The journal: numbered events that say which blocks are in the prefix index and in which tier.
 *
 * Law. A reader of all events knows exactly which blocks can be found. Event number n is kept until event n + capacity
 * overwrites it. Writing never waits for a reader, and a reader that fell behind learns how many events it missed.
 *
 * Names. An event names a block by a hash that every program can compute that knows the fingerprint of the model, the
 * domain and the tokens, so that a router can compare it with a prompt. It has nothing to do with the hash of the
 * prefix index, which is secret. All numbers are little-endian:
 *   root of a domain   XXH3-128 of (the fingerprint or, behind a public prefix, the name of its last block; the domain)
 *   base block         XXH3-128 of (the name before it; its tokens as int32). A base block has as many tokens as the
 *                      smallest block of any model; a larger block has the name of its last base block
 *
 * Who reads it: the tests, whose model of the pager knows from the journal alone what must be found; and a publisher
 * of cache events for routers, once the server has one. Until then the engine opens its pager without a journal:
 * events that are not read would cost a hash for each block. */
#ifndef WEFT_PAGER_JOURNAL_H
#define WEFT_PAGER_JOURNAL_H

#include "pager/pager.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weft_journal_kind {
  WEFT_JOURNAL_STORED = 1,  /* a block was published, or its content came into a lower tier */
  WEFT_JOURNAL_REMOVED = 2, /* a block left the index, because it was evicted or replaced; or it left the tier */
  WEFT_JOURNAL_CLEARED = 3  /* everything left the index */
} weft_journal_kind;

typedef struct weft_journal_event {
  uint64_t number; /* 0, 1, 2, … */
  weft_journal_kind kind;
  uint32_t model, group;
  weft_tier tier;
  weft_page page;           /* or the slot of the tier */
  weft_key128 hash, parent; /* the names of the prefix that ends with the block, and of the prefix before the block */
  uint32_t first_position, n_tokens;
} weft_journal_event;

/* Copies the events from number *next on, the oldest first, and advances *next. *n_missed is how many events after
 * *next were overwritten before they could be read; they are skipped. Returns how many it copied, at most max. */
uint32_t weft_pager_journal_read(const weft_pager *pager, uint64_t *next, weft_journal_event *out, uint32_t max,
                                 uint64_t *n_missed);

#ifdef __cplusplus
}
#endif
#endif
