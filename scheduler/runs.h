/* SPDX-License-Identifier: MIT */
/* Runs of a lane: asks depth.h how many drafts the next step has, and tells it what came of them.
 *
 * Law. The choice is made before a step is planned, when nothing of the lane is in flight, from what is known then.
 * Where steps are planned ahead it is made beside the step in flight as well: if the next one should have runs, the
 * lane waits until its rows have landed (step.c), and chooses again. With several stages (rows.h) a choice is about the
 * requests of which nothing is in flight, and no lane waits. What a step took is, on a real clock, the time since the
 * step before landed or, where that was earlier than its own plan, since that began: so what is not planned ahead
 * counts. */
#ifndef WEFT_SCHEDULER_RUNS_H
#define WEFT_SCHEDULER_RUNS_H

#include "scheduler/planning.h"

/* Chooses for the step that is planned now. After open of its pace. */
void weft_runs_choose(weft_planning *planning);
/* Whether the lane, of which a step is in flight, waits for it to land. */
bool weft_runs_wait(weft_engine *engine, weft_lane *lane);
/* How many drafts the request may have in the step for which was chosen; 0: none. */
uint32_t weft_runs_depth(const weft_lane *lane, const weft_request *request);
/* Whether the request's next row gives a token that a shadow foretold, or the first one of a run that gave none. */
bool weft_runs_follow_shadow(const weft_request *request);
/* A step of the lane landed. Before its time becomes that of the step before. */
void weft_runs_landed(weft_engine *engine, const weft_step_plan *plan, const weft_step_result *result);

#endif
