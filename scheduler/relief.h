/* SPDX-License-Identifier: MIT */
/* Relief: where the blocks come from that a running request lacks. Here it is decided which running request, canvas or
 * autoregressive, is preempted for another running one; perform.c acts.
 *
 * Law. The pager gives free pages and evicts cached ones before it lacks any; the rows of a prompt are halved as long as
 * that helps (weft_relief_reserve). Then blocks are sought in this order:
 *   1. what the request's own windows let go of when the pager is told of its last rows;
 *   2. pins of lower priority (pins.h);
 *   3. a running request that ranks below this one: it is preempted and computes again later (policy.h says which of
 *      several: the lowest class, then the tenant furthest beyond its share, then the last to arrive), but not one of a
 *      tenant within its share for one of a tenant beyond its own, of one class, unless that is the first in rank;
 *   4. the request of a tenant that owes pages to this one's tenant (debt.h): it is preempted, too;
 *   5. none: this request waits until another one leaves.
 * So the first request in rank always advances. Where the tenant's own limit is the reason, only requests of the same
 * tenant are preempted. Pages that the waiter (claims.h) needs and that the tenant of this request owes to it are set
 * aside, unless the waiter itself stands behind the starved request: then this request yields, and counts as lacking
 * nothing. */
#ifndef WEFT_SCHEDULER_RELIEF_H
#define WEFT_SCHEDULER_RELIEF_H

#include "scheduler/state.h"

typedef enum weft_relief_kind {
  WEFT_RELIEF_COMMIT = 0,  /* tell the pager of the request's last rows */
  WEFT_RELIEF_PIN = 1,     /* let go of a pin */
  WEFT_RELIEF_PREEMPT = 2, /* preempt the victim */
  WEFT_RELIEF_WAIT = 3     /* nothing can be had now */
} weft_relief_kind;

typedef struct weft_relief {
  weft_relief_kind kind;
  weft_request *victim; /* PREEMPT */
  bool within_tenant;   /* PREEMPT, WAIT: the limit of the request's tenant is the reason */
} weft_relief;

/* Reserves blocks of the pager for n more positions of the request. If there are too few and may_shrink is set, for
 * half as many, and so on. Returns for how many positions; 0: none, and *limited says whether the tenant's limit is
 * why. */
uint32_t weft_relief_reserve(weft_engine *engine, weft_request *request, uint32_t n, bool may_shrink, bool *limited);
/* The free pages are set aside for the waiter, since the tenant of this request owes them to it: the request takes no
 * block now. */
bool weft_relief_yields(const weft_engine *engine, const weft_request *request, uint32_t n);
/* What to do for the request, which got no block from weft_relief_reserve. */
weft_relief weft_relief_decide(weft_engine *engine, const weft_request *request, bool limited);

#endif
