/* SPDX-License-Identifier: MIT */
/* Sharing a step among tenants: an iterator over the requests that are due.
 *
 * Law. Again and again the request that is due first comes: the higher level of its class, then the tenant with the smaller
 * clock, then arrival. Within a tenant running requests come first, then waiting ones. Decode rows and canvases of all
 * tenants go before that (planner.c) only while they fit and none of their tenants is more than one step of its own ahead
 * of a tenant with a prompt: so a step is the unit of unfairness (docs/scheduler.md derives the bound). Requests that found
 * no room come first among their tenant's in the next step. */
#ifndef WEFT_SCHEDULER_SHARE_H
#define WEFT_SCHEDULER_SHARE_H

#include "scheduler/planning.h"

/* Before anything is planned. paced: there is a target for the time between tokens. */
void weft_share_open(weft_planning *planning, bool paced);
/* True: rows or time are too few for all that run, or a tenant is far ahead of one that wants more. */
bool weft_share_is_contended(const weft_planning *planning);
/* The request found no time in this plan. */
void weft_share_hold(weft_planning *planning, const weft_request *request);
/* False: no time was set aside for this decode row (claims.h, tenant.ahead), and none is left. */
bool weft_share_has_time(weft_planning *planning, const weft_request *request);

typedef struct weft_share {
  weft_planning *p;
  bool with_ready;
  bool admitting; /* the caller: false when nobody else may start in this plan */
  uint32_t n_contenders;
  weft_link served, skipped; /* prompts with rows left to compute */
} weft_share;

/* Prompts, waiting requests, and with_ready those that decode or denoise. */
void weft_share_begin(weft_share *share, weft_planning *planning, bool with_ready);
/* The request that is due: a waiting one stays queued, a running one is in no list until weft_share_served. NULL: nobody
 * can use more rows. */
weft_request *weft_share_next(weft_share *share);
/* The running request that came last got its rows (done), or wanted rows and got none. */
void weft_share_served(weft_share *share, weft_request *request, bool was_ready, bool done);
/* Lists are in the order of the next step again. */
void weft_share_end(weft_share *share);

#endif
