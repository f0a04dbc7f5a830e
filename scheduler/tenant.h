/* SPDX-License-Identifier: MIT */
/* Tenants: what each has used, and who of its requests waits for which lane.
 *
 * Law. clock is the tenant's virtual time: the cost of all rows planned for it. Among tenants that
 * wait, the one with the smallest clock is served first. A tenant that was idle does not save up:
 * when it comes back its clock is raised to that of the tenant served last. Each queue (tenant x
 * lane) is in order of priority, then arrival. */
#ifndef WEFT_SCHEDULER_TENANT_H
#define WEFT_SCHEDULER_TENANT_H

#include "scheduler/policy.h"
#include "scheduler/request.h"

typedef struct weft_tenant {
  uint64_t clock;
  uint32_t n_waiting, n_running;
} weft_tenant;

typedef struct weft_tenants {
  uint32_t n_tenants, n_lanes;
  uint64_t served_clock;     /* of the tenant served last; never falls */
  weft_tenant *tenant;       /* [n_tenants] */
  weft_link *queue;          /* [n_lanes][n_tenants] */
  weft_candidate *candidate; /* [n_tenants], scratch of pick */
  uint32_t *candidate_of;    /* [n_tenants], scratch of pick */
} weft_tenants;

weft_status weft_tenants_open(weft_tenants *tenants, uint32_t n_tenants, uint32_t n_lanes);
void weft_tenants_close(weft_tenants *tenants);
/* Puts a waiting request where its priority and arrival say. */
void weft_tenants_enqueue(weft_tenants *tenants, weft_request *request);
/* The request was taken out of the queue by the caller (its link), or waits no longer. */
void weft_tenants_dequeued(weft_tenants *tenants, const weft_request *request);
/* The waiting request of the lane to admit next; NULL when none waits. It stays queued. */
weft_request *weft_tenants_pick(weft_tenants *tenants, uint32_t lane);
/* Any request in the lane's queues; NULL when empty. */
weft_request *weft_tenants_any(weft_tenants *tenants, uint32_t lane);

static inline void weft_tenants_charge(weft_tenants *tenants, uint32_t tenant, uint64_t cost) {
  tenants->tenant[tenant].clock += cost;
}

#endif
