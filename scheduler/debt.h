/* SPDX-License-Identifier: MIT */
/* Debts: which tenant holds more than its share of places or pages while another one waits with less than its own.
 * Here it is decided which running request is preempted for a waiting one. Reads only.
 *
 * Law. Tenant a owes tenant b when a holds more than its share, runs more than one request and is of no higher class,
 * and b would still be within its share with what it asks for. The request of a that came last is preempted; for a slot,
 * the last on the lane of that slot. So no tenant is brought below its share, none is brought above it, and every chain
 * of debts ends. For pages and places the first request in rank is never preempted, because its tenant runs a later one;
 * for a slot it is where the tenant's other requests run on other lanes, and starts again when it is due. Time is shared
 * by virtual clocks (share.h), places and pages by these shares: a clock could not do it, because it stands still while
 * its lane has no turn. */
#ifndef WEFT_SCHEDULER_DEBT_H
#define WEFT_SCHEDULER_DEBT_H

#include "scheduler/state.h"

/* What the waiting request lacks. */
typedef enum weft_debt_of {
  WEFT_DEBT_PAGES = 0,  /* of the pool */
  WEFT_DEBT_PLACES = 1, /* among all running requests (running_max) */
  WEFT_DEBT_SLOTS = 2   /* of its lane's runner */
} weft_debt_of;

typedef struct weft_debt {
  weft_debt_of of;
  uint32_t n, wanted;     /* how many there are; how many the request asks for */
  uint64_t active_weight; /* of the tenants that have requests */
} weft_debt;

/* Begins to judge a request that asks for `wanted` of what `of` says. */
weft_debt weft_debt_open(const weft_engine *engine, const weft_request *request, weft_debt_of of, uint32_t wanted);
/* The request's tenant would not exceed its share with what the request asks for. */
bool weft_debt_is_within_share(const weft_engine *engine, const weft_debt *debt, const weft_request *request);
/* The tenant owes to the request's tenant; weft_debt_is_within_share must hold for the request. */
bool weft_debt_owes(const weft_engine *engine, const weft_debt *debt, uint32_t tenant, const weft_request *request);
/* The running request to preempt for the request; NULL: no tenant owes it anything. */
weft_request *weft_debt_find(const weft_engine *engine, const weft_debt *debt, const weft_request *request);
/* Whether the waiting request goes before the starved running one (claims.h): only where there is none, or where the
 * tenant of the starved one owes pages to the tenant of the waiting one. */
bool weft_debt_goes_before_starved(const weft_engine *engine, const weft_request *request);

#endif
