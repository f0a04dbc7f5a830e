/* SPDX-License-Identifier: MIT */
/* Where a waiting request is: in its queue, among the followers of a sequence that computes its prefix, or among the
 * requests that wait for the spill file (file_wait.h). Engine thread.
 *
 * Law. A waiting request is in exactly one of the three, and counted once in n_waiting of its lane. Followers come
 * back to their queue when their leader has as many valid tokens as they asked for, or has ended, and in any case
 * after WEFT_FOLLOW_PLANS plans: then they look again whether to follow on. */
#ifndef WEFT_SCHEDULER_WAITING_H
#define WEFT_SCHEDULER_WAITING_H

#include "scheduler/state.h"

/* Plans that a request follows a leader before it looks again. */
enum { WEFT_FOLLOW_PLANS = 8 };

weft_status weft_waiting_open(weft_engine *engine);
void weft_waiting_close(weft_engine *engine);

void weft_waiting_enqueue(weft_engine *engine, weft_request *request);
/* Takes the request out of wherever it waits; its state is still WAITING. */
void weft_waiting_dequeue(weft_engine *engine, weft_request *request);
/* Takes the request out of its queue until the leader has wake_at valid tokens. */
void weft_waiting_follow(weft_engine *engine, weft_request *request, weft_seq leader, uint32_t wake_at);
/* The sequence now has n_valid valid tokens (UINT32_MAX: it ended): the followers that asked for no more come back. */
void weft_waiting_wake(weft_engine *engine, weft_seq seq, uint32_t n_valid);

/* Called once a turn: followers that have waited for WEFT_FOLLOW_PLANS plans come back. */
void weft_waiting_end_follows(weft_engine *engine);

/* ---- for the file ---- */

/* Whether the request may wait for the file (again). */
bool weft_waiting_may_wait_for_file(const weft_engine *engine, const weft_request *request);
/* Takes the request out of its queue until weft_waiting_wake_from_file. n_pages: the pages that it will need for all
 * its tokens, where its whole prefix is on its way up; 0 where only a part of the prefix is. */
void weft_waiting_for_file(weft_engine *engine, weft_request *request, uint32_t n_pages);
/* Called once a turn: requests whose wait for the file is over come back. */
void weft_waiting_wake_from_file(weft_engine *engine);
/* All requests of the lane that wait for the file come back, because the lane ends. */
void weft_waiting_end_file(weft_engine *engine, uint32_t lane);

#endif
