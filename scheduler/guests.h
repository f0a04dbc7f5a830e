/* SPDX-License-Identifier: MIT */
/* Models that come and go while the engine runs: their runners say at the beginning of each turn whether they are here
 * (weft_runner_ops.stay).
 *
 * Law. Requests are accepted whether or not their model is here, and wait in their queue; their deadlines run. While a
 * model leaves, no request of it starts; those that run go on to their end, or until they are preempted. It is away
 * only when none of its lane runs and nothing is in flight, and then its pins give their pages back, as declared pins
 * of a cache that was dropped do; its cached pages stay, for when it comes again, and are evicted like all others. A
 * canvas that was saved starts again, with the same numbers. Requests of a model that could not come end with its
 * runner's line. No other lane waits for any of this. Engine thread. */
#ifndef WEFT_SCHEDULER_GUESTS_H
#define WEFT_SCHEDULER_GUESTS_H

#include "scheduler/state.h"

/* Asks the runners of such models, once in every turn. */
void weft_guests_hear(weft_engine *engine);

#endif
