/* SPDX-License-Identifier: MIT */
/* Planning: one loop that asks who is due, what that request can use, and has it done.
 *
 * Law. One way: share.h says who is due, rows.h and admission.h say what should happen, relief.h where missing blocks come
 * from, perform.h makes it true; nothing of that calls back. Running requests go first: every decode row, commit and
 * denoise step while they fit and no tenant is far ahead, then prompts and admissions as share.h says, while rows last.
 * Who found no room in a step is first in the next one. */
#ifndef WEFT_SCHEDULER_PLANNER_H
#define WEFT_SCHEDULER_PLANNER_H

#include "scheduler/state.h"

/* Fills the plan, which was begun for the lane. */
void weft_planner_run(weft_engine *engine, weft_lane *lane, weft_step_plan *plan);

#endif
