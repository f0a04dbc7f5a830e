/* SPDX-License-Identifier: MIT */
/* What of the prefix index outlives the process: it is told to who writes it down, and taken from who has read it.
 *
 * Law. What is told are the blocks whose content lies in the file, each with the nodes of its prefix from the root on,
 * parents before children, and only in domains that a rule names; public prefixes are always among them. Telling may
 * take many calls while the pager works on: what is told of a slot was true of it when it was told, and a reader finds
 * by the page's checksum whether it still is. What is taken becomes nodes that are hashed with this pager's own secret,
 * and content of the file tier like any other; a slot of the file that is handed out for it (`claim`, `take`) is
 * nobody's until it is taken or given back. Every word of a reader is judged: what cannot be is not taken, and breaks
 * nothing.
 *
 * Only of a pager that was opened with `saves`; engine thread. */
#ifndef WEFT_PAGER_SAVED_H
#define WEFT_PAGER_SAVED_H

#include "pager/journal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether blocks of the domain are told. */
typedef struct weft_domain_rule {
  bool (*keeps)(void *self, weft_key128 domain);
  void *self;
} weft_domain_rule;

/* A node, by its number: nodes are numbered from 0 in the order in which they are told. */
typedef struct weft_saved_node {
  uint32_t parent; /* WEFT_NODE_NONE: a domain begins here, at the root of a model */
  uint32_t model;
  bool root; /* a domain begins here: it has a domain and no tokens */
  weft_key128 domain;
} weft_saved_node;

typedef struct weft_saved_block {
  uint32_t node, group;
  uint32_t n_slots; /* of the file: one, or those of a state in their order */
} weft_saved_block;

/* Room for what one call tells; the caller's. */
typedef struct weft_saved_part {
  weft_saved_node *node; /* [nodes_max] */
  int32_t *tokens;       /* [nodes_max][base tokens] */
  weft_saved_block *block;
  uint32_t *slot;                            /* [slots_max] of all blocks, one behind another */
  uint32_t nodes_max, blocks_max, slots_max; /* slots_max: at least WEFT_STATE_PAGES_MAX */
  uint32_t n_nodes, n_blocks, n_slots;
} weft_saved_part;

/* Begins to tell. The rule is asked until the last part was told. */
void weft_pager_save_begin(weft_pager *pager, const weft_domain_rule *rule);
/* Fills the part. True: there is more. */
bool weft_pager_save_next(weft_pager *pager, weft_saved_part *part);

/* Sends cached blocks of the rule's domains down to the file, those first that would be evicted first, at most `max` of
 * them, as far as copies and host memory have room now; what lies in host memory begins to go there, too. Returns how
 * many blocks left the pool. Only worthy blocks go, as in an eviction. */
uint32_t weft_pager_put_down(weft_pager *pager, const weft_domain_rule *rule, uint32_t max);

/* Hands out these slots of the file. False: one of them is not free, comes twice or is none, and nothing was done. */
bool weft_pager_slots_claim(weft_pager *pager, const uint32_t *slot, uint32_t n);
/* Hands out up to max slots of the file, for which the oldest content there gives way; returns how many. */
uint32_t weft_pager_slots_take(weft_pager *pager, uint32_t *slot, uint32_t max);
/* Takes back slots that were handed out. */
void weft_pager_slots_give_back(weft_pager *pager, const uint32_t *slot, uint32_t n);

/* Finds or makes a node below `parent`, a node that this gave (WEFT_NODE_NONE: at the root of a model), and holds it
 * until weft_pager_adopt_end. domain: that of a root; NULL: tokens are those of a base block. WEFT_NODE_NONE: no node
 * is
 * free, or there can be no such node. Until then weft_pager_check counts references that it does not know. */
uint32_t weft_pager_adopt_node(weft_pager *pager, uint32_t parent, uint32_t model, const weft_key128 *domain,
                               const int32_t *tokens);
/* The content of these slots, which were handed out, is the block of the node's group. False: there can be no such
 * block, or it is there already; the slots are free then. */
bool weft_pager_adopt_block(weft_pager *pager, uint32_t node, uint32_t group, const uint32_t *slot, uint32_t n_slots);
void weft_pager_adopt_end(weft_pager *pager, const uint32_t *node, uint32_t n);
/* Counts resets of the cache. After one, nodes that weft_pager_adopt_node gave before are gone. */
uint64_t weft_pager_n_resets(const weft_pager *pager);

#ifdef __cplusplus
}
#endif
#endif
