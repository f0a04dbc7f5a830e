/* SPDX-License-Identifier: MIT */
/* One turn of the loop:
 *
 *   inbox ─► expire, hear of copies ─► launch: plan, batch, submit ─► land: collect, apply
 *
 * Law. Without overlap a turn lands the step that it launched. With overlap one more step is in flight than the runner
 * computes at once: with one stage a turn lands the step of the turn before, so that the device has the next step
 * already while results are applied. When there was nothing to launch a turn lands all steps. Steps land in the order in which they were submitted, over all lanes. Engine thread. */
#ifndef WEFT_SCHEDULER_STEP_H
#define WEFT_SCHEDULER_STEP_H

#include "scheduler/state.h"

/* WEFT_AGAIN: there was nothing to do. */
weft_status weft_step_turn(weft_engine *engine, uint64_t now_us);
/* Ends everything with CANCELLED, after what is in flight has landed. */
void weft_step_end_all(weft_engine *engine);

#endif
