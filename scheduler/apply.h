/* SPDX-License-Identifier: MIT */
/* Applying: the results of a step become tokens, events and committed positions. Engine thread.
 *
 * Law. Segments are applied in the order of the plan. Rows of a request that has finished meanwhile are void and
 * counted, and so are the rows of a run behind the tokens that were taken of it (model/batch.h) or behind the one that
 * ended the answer. A preempted request whose rows were in flight keeps what they computed. The host knows a token
 * before the rows of that token are committed, because the token was sampled in an earlier step, which was applied
 * earlier, or by an earlier row of the same run. A logit that is not finite (NaN or infinity: `bad` of a segment's
 * result) ends its request with an error, and only that request. */
#ifndef WEFT_SCHEDULER_APPLY_H
#define WEFT_SCHEDULER_APPLY_H

#include "scheduler/state.h"

/* False: the results do not belong to the plan (another number of segments); then the runner counts as broken. */
bool weft_apply_step(weft_engine *engine, weft_step_plan *plan, const weft_step_result *result);

#endif
