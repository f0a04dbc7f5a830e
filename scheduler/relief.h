/* SPDX-License-Identifier: MIT */
/* Relief: where the blocks come from that a running request lacks. Decides; perform.c acts.
 *
 * Law. In this order: what its own windows let go of when the pager is told of its last rows; pins of lower priority;
 * the memory of a running request that ranks below it, which computes again later; that of a request whose tenant owes
 * it pages (debt.h); else it waits until somebody leaves. So the first in rank always advances. Where the tenant's own
 * limit is the reason, only the tenant's own requests give way. Pages that a waiting request needs, and that the
 * tenant of this one owes to it, are set aside: then this one yields, and lacks nothing. */
#ifndef WEFT_SCHEDULER_RELIEF_H
#define WEFT_SCHEDULER_RELIEF_H

#include "scheduler/state.h"

typedef enum weft_relief_kind {
  WEFT_RELIEF_COMMIT = 0, /* tell the pager of its last rows */
  WEFT_RELIEF_PIN = 1,
  WEFT_RELIEF_PREEMPT = 2,
  WEFT_RELIEF_WAIT = 3
} weft_relief_kind;

typedef struct weft_relief {
  weft_relief_kind kind;
  weft_request *victim; /* PREEMPT */
  bool within_tenant;   /* WAIT: its tenant's limit is the reason */
} weft_relief;

/* Blocks of the pager for n more positions, or with may_shrink for half as many again and again. Gives how many; 0:
 * none, *limited says whether the tenant's limit is the reason. */
uint32_t weft_relief_reserve(weft_engine *engine, weft_request *request, uint32_t n, bool may_shrink, bool *limited);
/* A waiting request of a tenant to which this one's owes pages needs all that there are. */
bool weft_relief_yields(const weft_engine *engine, const weft_request *request, uint32_t n);
weft_relief weft_relief_decide(weft_engine *engine, const weft_request *request, bool limited);

#endif
