/* SPDX-License-Identifier: MIT */
/* Which experts the rows of a step chose, looked at now and then (model/expert_loads.h).
 *
 * Law: a step in RUNNER_LOOK_EVERY is looked at, the first one among them, and of it at most RUNNER_LOOK_ROWS rows in
 * every layer but the last, where only rows with an output go on. The choices are copied behind the step, in the order
 * of each device, into one piece of host memory: the next look waits until that is read. No bit of a result depends on
 * it. */
#ifndef WEFT_MODEL_RUNNER_RUNNER_LOOK_H
#define WEFT_MODEL_RUNNER_RUNNER_LOOK_H

#include "model/runner/runner_internal.h"

enum { RUNNER_LOOK_EVERY = 32, RUNNER_LOOK_ROWS = 256 };

/* Nothing is looked at where the configuration has nobody to tell, or the model no experts. */
weft_status runner_look_open(device_runner *r);
void runner_look_close(device_runner *r);
/* Behind all else of a step that was enqueued. */
weft_status runner_look_send(device_runner *r, runner_flight *f, const runner_step *step);
/* The flight has ended. sound: its results were computed. */
void runner_look_take(device_runner *r, const runner_flight *f, bool sound);

#endif
