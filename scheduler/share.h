/* SPDX-License-Identifier: MIT */
/* Sharing a step among tenants: an iterator over the requests that are due.
 *
 * Law. Each time, the request that is due first comes: the one whose class has the higher level, then the one whose
 * tenant has the smaller clock, then the one that arrived earlier. Within a tenant running requests come before
 * waiting ones. Decode rows and canvases of all tenants are served before that (planner.c), but only while they fit
 * and none of their tenants is more than one step of its own ahead of a tenant with a prompt: so a step is the unit of
 * unfairness (docs/scheduler.md derives the bound). Requests that found no room come first among those of their tenant
 * in the next step. */
#ifndef WEFT_SCHEDULER_SHARE_H
#define WEFT_SCHEDULER_SHARE_H

#include "scheduler/planning.h"

/* Called before anything is planned. paced: there is a target for the time between tokens. */
void weft_share_open(weft_planning *planning, bool paced);
/* True: rows or time are too few for all that run, or a tenant is far ahead of one that wants more. */
bool weft_share_is_contended(const weft_planning *planning);
/* The request found no time in this plan. */
void weft_share_hold(weft_planning *planning, const weft_request *request);
/* Whether the decode row of this request has time: it always has, unless its tenant is ahead (claims.h, tenant.ahead)
 * and the step has no time left. */
bool weft_share_has_time(weft_planning *planning, const weft_request *request);

typedef struct weft_share {
  weft_planning *p;          /* borrowed */
  bool with_ready;           /* requests that decode or denoise take part */
  bool admitting;            /* the caller clears it when no further request may start in this plan */
  uint32_t n_contenders;     /* tenants that may still have something due, in weft_tenants.contender */
  weft_link served, skipped; /* prompts with rows left to compute */
} weft_share;

/* Begins to iterate over prompts and waiting requests, and with with_ready also over those that decode or denoise. */
void weft_share_begin(weft_share *share, weft_planning *planning, bool with_ready);
/* The request that is due. A waiting one stays in its queue; a running one is in no list until weft_share_served.
 * NULL: no request can use more rows. */
weft_request *weft_share_next(weft_share *share);
/* The running request that weft_share_next gave last got its rows (done), or wanted rows and got none. */
void weft_share_served(weft_share *share, weft_request *request, bool was_ready, bool done);
/* Ends the iteration: puts all requests back into the lists of the lane, in the order of the next step. */
void weft_share_end(weft_share *share);

#endif
