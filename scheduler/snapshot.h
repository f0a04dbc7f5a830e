/* SPDX-License-Identifier: MIT */
/* What other threads see of the engine: copies of its counters, made by the engine thread under stats_mutex. */
#ifndef WEFT_SCHEDULER_SNAPSHOT_H
#define WEFT_SCHEDULER_SNAPSHOT_H

#include "scheduler/state.h"

void weft_snapshot_take(weft_engine *engine);

#endif
