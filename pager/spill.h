/* SPDX-License-Identifier: MIT */
/* The lower tiers inside the pager: the slots of host memory and of the file. spill.c has the law. */
#ifndef WEFT_PAGER_SPILL_H
#define WEFT_PAGER_SPILL_H

#include "pager/pager_internal.h"

/* The state of a slot. The slots of the host come first in their array, those of the file after them. */
typedef enum pager_slot_state {
  PAGER_SLOT_FREE = 0,
  PAGER_SLOT_HELD = 1,   /* it holds content and is in the list of its tier */
  PAGER_SLOT_MOVING = 2, /* moves read it, if it has a node, or fill it, if it has none */
  PAGER_SLOT_PICKED = 3, /* the admit that is running brings its content back; never between calls */
  PAGER_SLOT_MEMBER = 4, /* it has a page of a state, but not the first; the first slot speaks for it */
  PAGER_SLOT_LENT = 5    /* it was handed out to be filled from outside (saved.h), and holds nothing yet */
} pager_slot_state;

typedef struct pager_slot {
  uint32_t next;  /* FREE: the next free slot; HELD: the slot whose content came next after this one's; MOVING: not 0
                         if a move of the content failed */
  uint32_t older; /* HELD: the slot whose content came last before this one's; MOVING: moves of the content that have
                         not ended; MEMBER: the first slot of its content */
  uint32_t more;  /* of content: the next slot of the same content, UINT32_MAX behind the last */
  uint32_t node : 24; /* the node whose block of `group` the content is; PAGER_NODE_NONE: its node is gone */
  uint32_t group : 4;
  uint32_t state : 3;
  uint32_t waiting : 1; /* the copy that fills it was not taken yet */
} pager_slot;

/* The highest tier from which content can be had now. */
typedef enum pager_reach { PAGER_IN_POOL = 0, PAGER_IN_HOST = 1, PAGER_IN_FILE = 2, PAGER_NOWHERE = 3 } pager_reach;

void pager_spill_reset(weft_pager *pager);
/* Emits the copy of an evicted page to the host. The node's place names the slot from now on, and the page has no node.
 * False: no slot or no room among the copies. */
bool pager_spill_out(weft_pager *pager, weft_page page);
/* The content that the place names is given up. The node ends too if nothing else refers to it. */
void pager_spill_forget(weft_pager *pager, uint32_t place);
/* Forgets the oldest content of the lowest tier that has any; false: there is none. */
bool pager_spill_forget_oldest(weft_pager *pager);
/* For a place in a lower tier: PAGER_IN_HOST, PAGER_IN_FILE, or PAGER_NOWHERE while the copy that fills it waits. */
pager_reach pager_spill_reach(const weft_pager *pager, uint32_t place);
/* True: the blocks of [0, match->n_stored) in host memory should be brought back, and there is room for them. */
bool pager_restore_pays(weft_pager *pager, const weft_admit *args, const pager_match *match);
/* True: the prompt should wait, because blocks of [0, match->n_filed) are being lifted from the file, or can be as soon
 * as other lifts have ended. *n_left: how many of its blocks in the file are not being lifted yet. */
bool pager_lift(weft_pager *pager, const weft_admit *args, const pager_match *match, uint32_t *n_left);
/* Two steps of an admit that brings blocks back. Pick protects the content of the place; then restore takes a page for
 * each picked entry of the sequence's tables, and emits the copies. */
void pager_restore_pick(weft_pager *pager, uint32_t place);
void pager_restore(weft_pager *pager, weft_seq seq);
/* True: this slot of the file is the first of some content, which is the block of that node and group. */
bool pager_file_content(const weft_pager *pager, uint32_t slot, uint32_t *node, uint32_t *group);
/* The slots of that content, by their numbers in the file. Returns how many. */
uint32_t pager_file_slots(const weft_pager *pager, uint32_t slot, uint32_t *out);
/* Whether a block of n pages can leave for host memory now without another content giving way. */
bool pager_spill_has_room(const weft_pager *pager, uint32_t n);
/* Begins to sink all that host memory holds. */
void pager_sink_all(weft_pager *pager);
bool pager_spill_check(const weft_pager *pager, weft_error *error);

#endif
