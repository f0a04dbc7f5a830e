/* SPDX-License-Identifier: MIT */
/* Latency histograms with the bounds of weft_latency_bounds_us.
 *
 * Law. Bucket i counts the values that are at most bound i and above bound i - 1; the last bucket is open. */
#ifndef WEFT_SCHEDULER_LATENCY_H
#define WEFT_SCHEDULER_LATENCY_H

#include <stdint.h>

#include "scheduler/stats.h"

enum { WEFT_LATENCY_BOUNDS = 19 };

/* buckets: [WEFT_LATENCY_BOUNDS + 1] */
void weft_latency_count(uint64_t *buckets, uint64_t value_us);

#endif
