/* SPDX-License-Identifier: MIT */
/* Planning: one loop that asks which request is due, what that request can use, and has it performed.
 *
 * A step holds rows of many requests, and requests join and leave between steps (continuous batching, Yu et al., Orca,
 * OSDI 2022); long prompts are computed in chunks beside decode rows (chunked prefill, Agrawal et al., arXiv
 * 2403.02310).
 *
 * Law. Planning goes one way: share.h says which request is due, rows.h and admission.h say what should happen to it,
 * relief.h says where missing blocks come from, perform.h makes it true; none of these calls back. The request that
 * lacks blocks (claims.h, starved) is served first. Then come decode rows, commits and denoise steps, as long as they
 * all fit and no tenant is far ahead; then prompts and waiting requests in the order of share.h, while rows last. A
 * request that found no room in one step is among the first in the next one. */
#ifndef WEFT_SCHEDULER_PLANNER_H
#define WEFT_SCHEDULER_PLANNER_H

#include "scheduler/state.h"

/* Fills the plan, which weft_plan_begin has emptied for this lane. Engine thread. */
void weft_planner_run(weft_engine *engine, weft_lane *lane, weft_step_plan *plan);

#endif
