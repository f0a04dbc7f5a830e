/* SPDX-License-Identifier: MIT */
/* How a request changes state. No other file writes state, finish, or the counts of running requests.
 *
 * Law. A request finishes once. Its memory, its slot and its place among the running are given back in one function
 * (leave), when nothing of it is in flight. Whoever decides calls none of this: planning calls it through perform.c,
 * results through apply.c, and the start of a turn (cancel, deadline, a broken device) through step.c. */
#ifndef WEFT_SCHEDULER_LIFECYCLE_H
#define WEFT_SCHEDULER_LIFECYCLE_H

#include "scheduler/state.h"

/* From the inbox into its queue. */
void weft_lifecycle_accept(weft_engine *engine, weft_request *request);
/* A dequeued request with sequence and slot, which the inbox counts as running, starts to run. */
void weft_lifecycle_enter(weft_engine *engine, weft_request *request);
/* All tokens that the host knows have rows: it decodes or denoises from now on. */
void weft_lifecycle_make_ready(weft_engine *engine, weft_request *request);

/* It runs and lacks blocks: the highest in rank is remembered as starved; within its tenant only where the tenant's own
 * limit is the reason. */
void weft_lifecycle_starve(weft_engine *engine, weft_request *request, bool within_tenant);
/* It has its blocks, or wants none any more. */
void weft_lifecycle_fed(weft_engine *engine, const weft_request *request);

/* Tells the pager of the positions whose keys and values are written. While siblings wait to fork the prompt, its last row
 * is held back: until then windows keep all that this row of theirs will see. */
void weft_lifecycle_commit(weft_engine *engine, weft_request *request);
/* The held row, too. */
void weft_lifecycle_commit_all(weft_engine *engine, weft_request *request);

/* The one final event. reason: FINISH_ERROR only. A running request leaves as soon as nothing of it is in flight. */
void weft_lifecycle_finish(weft_engine *engine, weft_request *request, weft_finish finish, const char *reason);
/* It gave its place in the queue to another tenant, and never ran. */
void weft_lifecycle_evict(weft_engine *engine, weft_request *request);
/* Gives up its memory and waits again. True: at once; false: when its rows in flight have landed. */
bool weft_lifecycle_preempt(weft_engine *engine, weft_request *request);
/* Nothing of a leaving request is in flight any more: it leaves. */
void weft_lifecycle_landed_last(weft_engine *engine, weft_request *request);
/* A segment of the request landed. */
static inline void weft_lifecycle_landed(weft_engine *engine, weft_request *request) {
  WEFT_CHECK(request->n_in_flight > 0);
  uint8_t left = (uint8_t)(request->n_in_flight - 1);
  request->n_in_flight = left;
  if (request->state == WEFT_REQUEST_LEAVING && left == 0) weft_lifecycle_landed_last(engine, request);
}
/* Every request of the lane ends with an error; its plans in flight are dropped. */
void weft_lifecycle_break(weft_engine *engine, weft_lane *lane, weft_status status, const char *where);

#endif
