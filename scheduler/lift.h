/* SPDX-License-Identifier: MIT */
/* Lifts: requests that wait for content to come up from the file, and what the engine hears of copies.
 *
 * Law. Such a request is in no queue, so it holds nobody up; it still waits: cancel, deadline and the
 * end of its lane reach it. When nothing comes up any more, those come back whose prefix was on its
 * way whole, and the first of the others, whose turn it is then: so a move costs one try, not one for
 * each who waits. Nothing comes up for whom the pool has no room beside those that wait. What is on its
 * way is waited for at most as long as computing all tokens would take, or LEAST_US; who waited so long,
 * or WAITS_MAX times, computes. While no move ends for LEAST_US nobody begins to wait: a disk that hangs costs those
 * who waited already. */
#ifndef WEFT_SCHEDULER_LIFT_H
#define WEFT_SCHEDULER_LIFT_H

#include <stdbool.h>

#include "scheduler/deadline.h"
#include "scheduler/list.h"

struct weft_engine;
struct weft_lane;
struct weft_request;

typedef struct weft_lifts {
  weft_link whole;      /* those whose prefix is on its way */
  weft_link list;       /* the others, in the order in which they began to wait */
  weft_deadlines until; /* when each computes instead */
  double page_us;       /* a page to or from the file, mean of late */
  uint32_t n_pages;     /* of all tokens of those in `whole` */
  uint64_t heard_us;    /* when a move ended, or began while there was none */
} weft_lifts;

/* n_max requests at once; pages of page_bytes. */
weft_status weft_lifts_open(weft_lifts *lifts, uint32_t n_max, uint64_t page_bytes);
void weft_lifts_close(weft_lifts *lifts);
/* Tells the pager of copies that failed or ended; before each plan. */
void weft_lifts_hear(struct weft_engine *engine);
/* Whether the request may wait (again). */
bool weft_lifts_may_wait(struct weft_engine *engine, const struct weft_request *request);
/* A waiting request leaves its queue until weft_lifts_wake. n_pages: its prefix is on its way whole, and that
 * is what it will need; 0: it is not. */
void weft_lifts_wait(struct weft_engine *engine, struct weft_lane *lane, struct weft_request *request,
                     uint32_t n_pages);
/* It waits for the file no longer, whatever it does now; nothing if it did not. */
void weft_lifts_left(struct weft_engine *engine, struct weft_request *request);
void weft_lifts_wake(struct weft_engine *engine);
/* All of the lane are in their queues again. */
void weft_lifts_end(struct weft_engine *engine, uint32_t lane);

#endif
