/* SPDX-License-Identifier: MIT */
/* Claims: which request waits for memory, a place or time before others may go on. The engine owns the one record of
 * all claims (engine->claims); the comments below say which file sets and clears each field.
 *
 * Law. Every field limits what requests other than the one it names may do next, and is set only while its reason
 * lasts. Only the files in brackets write it; weft_engine_check recomputes all that can be recomputed.
 *
 *   starved            the running request, highest in rank, for which the pool has no blocks. It is served before any
 *                      other request, and no request is admitted but those that its tenant owes pages (debt.h), until
 *                      it gets its blocks or leaves. [lifecycle.c]
 *   tenant.starved     the same within one tenant whose own limit of blocks is the reason: no other request of the
 *                      tenant is admitted. [lifecycle.c]
 *   waiter             the waiting request that was due and found too few pages, or no place in its lane although one
 *                      is owed to it. No request that is due after it is admitted: on no lane if it lacks pages, on
 *                      its own lane if it lacks a slot there. While it goes before the starved (debt.h), the pages that
 *                      it needs (wait.need_pages) are set aside from running requests of tenants that owe them
 *                      (relief.h). Set when it is passed over [perform.c], cleared when it leaves its queue, for
 *                      whatever reason [waiting.c], or its model goes [guests.c].
 *   waits_for          what the waiter lacks; meaningless without a waiter. [perform.c]
 *   none_set_aside     no plan had rows, none is in flight and the waiter lacks pages, so plans are made once more and
 *                      nothing is set aside for the waiter in them. False between turns. [step.c]
 *   n_leaving          requests that gave up their memory or ended and whose rows are still in flight. While there is
 *                      one, no other request is preempted, because pages are on their way. [lifecycle.c]
 *   preempted          a request was preempted in the plan being made: no request is admitted in it but those that are
 *                      owed pages. Set by [lifecycle.c], cleared when a plan begins [planner.c].
 *   tenant.limited     plans for which no request of the tenant is admitted, because the last one tried needed more
 *                      blocks than the tenant's limit leaves. Set by [perform.c]; counted down, and cleared when
 *                      blocks come free, by [tenant.c].
 *   tenant.wants       one bit for each lane whose last plan left work of the tenant undone, or where a request of it
 *                      came to wait since: the tenant's virtual clock is not raised to the others' while a bit stands.
 *                      [share.c, tenant.c]
 *   tenant.passed      in the plan being made the tenant's waiting request lacks pages, or a slot that is not owed to
 *                      it: tenants that are due after it are asked instead. Set by [perform.c], cleared by [share.c].
 *   tenant.held        in the plan being made a request of the tenant found no time under the target. Set by
 *                      [share.c], turned into tenant.wants and cleared by [tenant.c].
 *   tenant.ahead       in the plan being made the tenant is so far ahead that no time is set aside for its decode
 *                      rows; read only while weft_planning.n_ahead is above 0. [share.c, light.c] */
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
  bool preempted, none_set_aside;
  weft_tenant_claims *tenant; /* [n_tenants], the memory of weft_tenants.claims */
} weft_claims;

#endif
