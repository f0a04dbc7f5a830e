/* SPDX-License-Identifier: MIT */
/* Applying: results become tokens, events, committed positions.
 *
 * Law. Segments are applied in plan order. Rows of a request that has finished meanwhile are void and counted. A preempted
 * request whose rows were in flight keeps what they gave. Tokens are known to the host before the rows that hold them are
 * committed: a row's token was sampled in an earlier step, which was applied earlier. */
#ifndef WEFT_SCHEDULER_APPLY_H
#define WEFT_SCHEDULER_APPLY_H

#include "scheduler/state.h"

/* False: the results do not belong to the plan. */
bool weft_apply_step(weft_engine *engine, weft_step_plan *plan, const weft_step_result *result);

#endif
