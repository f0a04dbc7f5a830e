/* SPDX-License-Identifier: MIT */
/* Tenants: what each has used, and who of its requests waits for which lane.
 *
 * Law. clock is the tenant's virtual time: the cost of all rows planned for it, divided by its
 * weight. Among tenants with work the one with the smallest clock is served first (share.c). Nobody
 * saves up: whoever wanted nothing more at the end of a plan, or comes back from having nothing to
 * do, is raised to `now`, the smallest clock of those that still want rows. Nobody pays for a time
 * without rivals: while all get what they want, all clocks are drawn level. Each queue (tenant x
 * lane) is in order of submission, where a priority counts as WEFT_AGE_US earlier. */
#ifndef WEFT_SCHEDULER_TENANT_H
#define WEFT_SCHEDULER_TENANT_H

#include "scheduler/policy.h"
#include "scheduler/request.h"

enum { WEFT_CLOCK_UNIT = 1000 }; /* clock ticks of one unit of cost at weight 1 */

typedef struct weft_tenant {
  weft_tenant_config config; /* defaults filled in */
  uint64_t clock;
  uint64_t wants; /* one bit per lane: the last plan left something undone */
  uint32_t n_waiting, n_running;
  weft_link works; /* what share.c may still plan for it in the present plan */
} weft_tenant;

typedef struct weft_tenants {
  uint32_t n_tenants, n_lanes;
  uint64_t now;         /* virtual time; never falls */
  weft_tenant *tenant;  /* [n_tenants] */
  weft_link *queue;     /* [n_lanes][n_tenants] */
  uint32_t *n_ready;    /* [n_lanes][n_tenants] requests that decode or denoise */
  uint32_t *contender;  /* [n_tenants], scratch of share.c */
} weft_tenants;

/* config: [n_tenants] or NULL. */
weft_status weft_tenants_open(weft_tenants *tenants, const weft_tenant_config *config,
                              uint32_t n_tenants, uint32_t n_lanes);
void weft_tenants_close(weft_tenants *tenants);
/* Puts a waiting request where its priority and arrival say. */
void weft_tenants_enqueue(weft_tenants *tenants, weft_request *request);
/* The request was taken out of the queue by the caller (its link), or waits no longer. */
void weft_tenants_dequeued(weft_tenants *tenants, const weft_request *request);
/* The order of one tenant's requests in its queue. */
bool weft_tenants_queued_before(const weft_request *a, const weft_request *b);
/* The first waiting request of a tenant on a lane; NULL when none waits. It stays queued. */
weft_request *weft_tenants_first(const weft_tenants *tenants, uint32_t lane, uint32_t tenant);
/* Any request in the lane's queues; NULL when empty. */
weft_request *weft_tenants_any(const weft_tenants *tenants, uint32_t lane);
/* How the request stands against those of other tenants. */
weft_candidate weft_tenants_candidate(const weft_tenants *tenants, const weft_request *request,
                                      uint64_t now_us);
/* How it stands when memory is short. */
weft_rank weft_tenants_rank(const weft_tenants *tenants, const weft_request *request);
/* A plan is complete, and `wants` says who has something left undone: draws the clocks level. */
void weft_tenants_level(weft_tenants *tenants, uint64_t lanes_with_work);

static inline uint64_t weft_tenants_ticks(const weft_tenants *tenants, uint32_t tenant,
                                          uint64_t cost) {
  return cost * WEFT_CLOCK_UNIT / tenants->tenant[tenant].config.weight;
}

static inline void weft_tenants_charge(weft_tenants *tenants, uint32_t tenant, uint64_t cost) {
  tenants->tenant[tenant].clock += weft_tenants_ticks(tenants, tenant, cost);
}

static inline uint32_t *weft_tenants_n_ready(weft_tenants *tenants, const weft_request *r) {
  return &tenants->n_ready[(size_t)r->lane * tenants->n_tenants + r->tenant];
}

#endif
