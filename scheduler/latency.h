/* SPDX-License-Identifier: MIT */
/* Latency histograms with the bounds of weft_latency_bounds_us.
 *
 * Law: bucket i counts values <= bound i that no earlier bucket counts; the last bucket is open. */
#ifndef WEFT_SCHEDULER_LATENCY_H
#define WEFT_SCHEDULER_LATENCY_H

#include <stdint.h>

#include "scheduler/stats.h"

enum { WEFT_LATENCY_BOUNDS = 19 };

void weft_latency_count(uint64_t *buckets, uint64_t value_us);

#endif
