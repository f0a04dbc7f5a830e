/* SPDX-License-Identifier: MIT */
/* Claims: who waits for memory, a place or time before others may go on. One record for the whole engine.
 *
 * Law. Every field is a hold on somebody else's progress, has one owner who sets and clears it, and is true only while
 * its reason lasts (weft_engine_check recomputes all that can be recomputed):
 *
 *   starved            the running request, highest in rank, for which the pool has no blocks: it is served before
 *                      anybody else and nobody is admitted. Cleared when it gets its blocks or leaves.
 *   tenant.starved     the same within one tenant whose own limit is the reason: nobody else of the tenant is admitted.
 *   waiter             the waiting request that was due and found too few pages, or no place though one is owed to it:
 *                      only who is due before it passes it, on any lane (where it lacks a slot, on its own lane). The
 *                      pages it needs (wait.need_pages) are set aside from running requests of tenants that owe them
 *                      (relief.h). Cleared when it leaves its queue, for whatever reason.
 *   n_leaving          requests that gave up their memory or ended and whose rows are still in flight. While there is
 *                      one, nobody else is preempted: pages are on their way.
 *   preempted          somebody was preempted in the plan being made: nobody is admitted in it.
 *   tenant.limited     plans for which nobody of the tenant is admitted, since the last one tried needed more blocks
 *                      than the tenant's limit leaves. Cleared when blocks come free.
 *   tenant.wants       one bit per lane whose last plan left work of the tenant undone, or where a request of it came
 *                      to wait since: its clock is not raised.
 *   tenant.passed      in the plan being made its waiting request lacks pages or a place that nobody owes it: tenants
 *                      due after it are asked instead.
 *   tenant.held        in the plan being made something of the tenant found no time (pace.h).
 *   tenant.ahead       in the plan being made no time is set aside for the tenant's decode rows: it is far ahead of one
 *                      that was held back (share.c), or not light where light tenants leave no time for all (light.h). */
#ifndef WEFT_SCHEDULER_CLAIMS_H
#define WEFT_SCHEDULER_CLAIMS_H

#include <stdbool.h>
#include <stdint.h>

struct weft_request;

typedef struct weft_tenant_claims {
  struct weft_request *starved;
  uint64_t wants;
  uint32_t limited;
  bool passed, held, ahead;
} weft_tenant_claims;

typedef struct weft_claims {
  struct weft_request *starved;
  struct weft_request *waiter;
  uint8_t waits_for; /* weft_debt_of */
  uint32_t n_leaving;
  bool preempted;
  weft_tenant_claims *tenant; /* [n_tenants] */
} weft_claims;

#endif
