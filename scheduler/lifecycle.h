/* SPDX-License-Identifier: MIT */
/* How a request changes state. No other file writes state, finish or the counts of running requests.
 *
 * Law. A request finishes once. Its memory, its slot and its place among the running requests are given back in one
 * function (leave), when nothing of it is in flight. The files that decide call nothing of this. What planning decided
 * comes here through perform.c (planner.c itself calls only commit and fed, which change no state), results come
 * through apply.c, and what happens at the start of a turn or to a whole lane (cancel, deadline, eviction, a broken
 * device) through step.c. Engine thread. */
#ifndef WEFT_SCHEDULER_LIFECYCLE_H
#define WEFT_SCHEDULER_LIFECYCLE_H

#include "scheduler/state.h"

/* A request that was taken out of the inbox joins its queue, or ends at once where its lane is broken. */
void weft_lifecycle_accept(weft_engine *engine, weft_request *request);
/* A request that was dequeued, has a sequence and a slot, and is counted as running by the inbox starts to run. */
void weft_lifecycle_enter(weft_engine *engine, weft_request *request);
/* All tokens of the request that the host knows have rows: the request decodes or denoises from now on. */
void weft_lifecycle_make_ready(weft_engine *engine, weft_request *request);

/* The running request lacks blocks. Of all such requests the highest in rank is remembered as starved (claims.h);
 * within_tenant: only within its tenant, because the tenant's own limit is the reason. */
void weft_lifecycle_starve(weft_engine *engine, weft_request *request, bool within_tenant);
/* The request has its blocks, or wants none any more: it is starved no longer. */
void weft_lifecycle_fed(weft_engine *engine, const weft_request *request);

/* Tells the pager which positions of the request have their keys and values written, so that it can index whole blocks
 * and free what lies before a window. While siblings wait to fork the prompt, the last row of the prompt is held back,
 * so that the windows keep all keys that the siblings' last row will see. */
void weft_lifecycle_commit(weft_engine *engine, weft_request *request);
/* The same, with the row that is held back for siblings. */
void weft_lifecycle_commit_all(weft_engine *engine, weft_request *request);

/* Rows of a run of the request turned out to be void, and nothing of it is in flight: the pager takes back the blocks
 * that only they needed. */
void weft_lifecycle_take_back(weft_engine *engine, weft_request *request);

/* Ends the request and publishes its one final event. reason: one line, with FINISH_ERROR only. A running request
 * leaves as soon as nothing of it is in flight. */
void weft_lifecycle_finish(weft_engine *engine, weft_request *request, weft_finish finish, const char *reason);
/* Ends a request that never ran and whose place in the full queue went to another tenant (queue_share.h). */
void weft_lifecycle_evict(weft_engine *engine, weft_request *request);
/* Preempts a running request: it gives its blocks and its slot back, keeps its tokens and waits again. A canvas
 * between two steps is saved while a place for it is free (slot_save). True: it left at once; false: it leaves when
 * its rows in flight have landed. */
bool weft_lifecycle_preempt(weft_engine *engine, weft_request *request);
/* The last segment of a leaving request landed: it leaves. */
void weft_lifecycle_landed_last(weft_engine *engine, weft_request *request);
/* One segment of the request landed. */
static inline void weft_lifecycle_landed(weft_engine *engine, weft_request *request) {
  WEFT_CHECK(request->n_in_flight > 0);
  uint8_t left = (uint8_t)(request->n_in_flight - 1);
  request->n_in_flight = left;
  if (request->state == WEFT_REQUEST_LEAVING && left == 0) weft_lifecycle_landed_last(engine, request);
}
/* Ends all requests that wait in a lane, with one line. */
void weft_lifecycle_refuse(weft_engine *engine, weft_lane *lane, const char *reason);
/* The device of the lane failed (status) during `where`. Every request of the lane, running or waiting, ends with one
 * line that says so; its sequences, slots and pins are given back, its plans in flight are dropped, and the lane takes
 * no more requests. Other lanes go on. */
void weft_lifecycle_break(weft_engine *engine, weft_lane *lane, weft_status status, const char *where);

#endif
