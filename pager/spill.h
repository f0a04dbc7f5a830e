/* SPDX-License-Identifier: MIT */
/* Lower tiers inside the pager: the slots of host memory and file, and what the other files ask of them. */
#ifndef WEFT_PAGER_SPILL_H
#define WEFT_PAGER_SPILL_H

#include "pager/pager_internal.h"

/* A slot of a lower tier: the host's first, then the file's. */
typedef enum pager_slot_state {
  PAGER_SLOT_FREE = 0,
  PAGER_SLOT_HELD = 1,   /* in the list of its tier */
  PAGER_SLOT_MOVING = 2, /* a move reads it (with node) or fills it (without) */
  PAGER_SLOT_PICKED = 3  /* within an admit that brings it back */
} pager_slot_state;

typedef struct pager_slot {
  uint32_t next;  /* FREE: next free slot; HELD: next newer slot */
  uint32_t older; /* HELD: next older slot */
  uint32_t node : 24;
  uint32_t group : 4;
  uint32_t state : 2;
  uint32_t waiting : 1; /* the copy that fills it was not taken yet */
} pager_slot;

typedef enum pager_reach { PAGER_IN_POOL = 0, PAGER_IN_HOST = 1, PAGER_IN_FILE = 2, PAGER_NOWHERE = 3 } pager_reach;

void pager_spill_reset(weft_pager *pager);
/* Moves what an evicted, published page holds to the host; the page leaves its node. False: no room. */
bool pager_spill_out(weft_pager *pager, weft_page page);
/* What the node's slot names leaves its tier for good; the node may go with it. */
void pager_spill_forget(weft_pager *pager, uint32_t slot);
/* Forgets the oldest content of the lowest tier that has any; false: there is none. */
bool pager_spill_forget_oldest(weft_pager *pager);
/* Where the content of a spilled slot can be read from now: IN_HOST, IN_FILE or NOWHERE. */
pager_reach pager_spill_reach(const weft_pager *pager, uint32_t slot);
/* True: the blocks of match->n_stored that lie in host memory are to be brought back, and can be. */
bool pager_restore_pays(weft_pager *pager, const weft_admit *args, const pager_match *match);
/* True: blocks of match->n_filed are on their way up, or wait for others that are; *n_left: how many are not yet. */
bool pager_lift(weft_pager *pager, const weft_admit *args, const pager_match *match, uint32_t *n_left);
/* Holds the spilled block until pager_restore, which turns all spilled entries of the table into pages. */
void pager_restore_pick(weft_pager *pager, uint32_t slot);
void pager_restore(weft_pager *pager, weft_seq seq);
bool pager_spill_check(const weft_pager *pager, weft_error *error);

#endif
