/* SPDX-License-Identifier: MIT */
/* What other threads see of the engine: copies of its counters, made by the engine thread under stats_mutex. */
#ifndef WEFT_SCHEDULER_SNAPSHOT_H
#define WEFT_SCHEDULER_SNAPSHOT_H

#include "scheduler/state.h"

void weft_snapshot_take(weft_engine *engine);
/* An estimate of when the tenant finds what a submission lacks; 0: never. Any thread. */
uint64_t weft_snapshot_retry_us(weft_engine *engine, uint32_t tenant, const weft_shortage *shortage);

#endif
