/* SPDX-License-Identifier: MIT */
/* Recomputes the laws of state.h and claims.h, and the order of positions in request.h, from the lists, queues and
 * requests. The random worlds of tests/sim/scheduler_sim.c call it after every step, `weft sim` at the end of every
 * run. */
#ifndef WEFT_SCHEDULER_CHECK_H
#define WEFT_SCHEDULER_CHECK_H

#include "scheduler/state.h"

/* Between steps, engine thread: NULL, or one line that names the law that is broken. */
const char *weft_engine_check(const weft_engine *engine);

#endif
