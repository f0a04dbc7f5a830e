/* SPDX-License-Identifier: MIT */
/* What other threads see of the engine: copies of its counters, made by the engine thread under stats_mutex at the end
 * of a turn, so that readers never wait for a step and always see counters that belong together. */
#ifndef WEFT_SCHEDULER_SNAPSHOT_H
#define WEFT_SCHEDULER_SNAPSHOT_H

#include "scheduler/state.h"

/* Engine thread. */
void weft_snapshot_take(weft_engine *engine);
/* Estimated microseconds until the tenant finds what its submission lacks (Retry-After); 0: never. Any thread. */
uint64_t weft_snapshot_retry_us(weft_engine *engine, uint32_t tenant, const weft_shortage *shortage);

#endif
