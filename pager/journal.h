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
 * Who reads the events: the tests, whose model of the pager knows from them alone what must be found. They cost a hash
 * for each block.
 *
 * Changes. Beside the events there is a list of the nodes of the trie that are not as they were when a reader took them
 * last. Whoever applies all changes that weft_pager_take_changes gives, beginning with an empty trie, has the pager's
 * trie whenever it says that there is no rest: the same nodes with the same parents, tokens and domains, and the tier
 * of each block. A node is in the list once, however often it changed, so there is room for all nodes and nothing is
 * ever lost; what was undone meanwhile is not told at all. While nobody watches, nothing is listed. This is what a
 * publisher of cache events for routers reads (scheduler/prefix_feed.h). */
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

#define WEFT_NODE_NONE UINT32_MAX
enum { WEFT_TIER_NOWHERE = 3 }; /* beside the tiers of weft_tier */

/* A node as it is now. Its number may be that of another node that is gone. */
typedef struct weft_prefix_change {
  uint32_t node, parent; /* parent: WEFT_NODE_NONE where a domain begins at the root of a model */
  uint32_t model;
  uint32_t depth;     /* base blocks from the start of the prefix to the end of the node; of a root: to its parent's */
  bool live;          /* false: the node is gone, and nothing else of it is told */
  bool root;          /* a domain begins here: it has no tokens and no blocks */
  weft_key128 domain; /* of a root */
  uint8_t tier[WEFT_GROUPS_MAX]; /* where the block of each group that ends here can be had now */
} weft_prefix_change;

/* From now on changes are listed, first of all every node there is; or no longer. Only of a pager that was opened with
 * `changes`. */
void weft_pager_watch(weft_pager *pager, bool watch);
/* Takes at most max changes; tokens: [max][base tokens], those of nodes that are no roots. *cleared: everything that
 * was taken before is gone. *rest: there are more. While nobody watches there are none. */
uint32_t weft_pager_take_changes(weft_pager *pager, weft_prefix_change *out, int32_t *tokens, uint32_t max,
                                 bool *cleared, bool *rest);
bool weft_pager_has_changes(const weft_pager *pager);
uint32_t weft_pager_base_tokens(const weft_pager *pager); /* of a node */
uint32_t weft_pager_nodes_max(const weft_pager *pager);   /* numbers of nodes are below it */

#ifdef __cplusplus
}
#endif
#endif
