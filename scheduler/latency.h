/* SPDX-License-Identifier: MIT */
/* Histograms of latencies with the bounds of weft_latency_bounds_us, of what drafts take, which is less, with those of
 * weft_draft_bounds_us, and of tokens with those of weft_token_bounds.
 *
 * Law. Bucket i counts the values that are at most bound i and above bound i - 1; the last bucket is open. */
#ifndef WEFT_SCHEDULER_LATENCY_H
#define WEFT_SCHEDULER_LATENCY_H

#include <stdint.h>

#include "scheduler/stats.h"

enum { WEFT_LATENCY_BOUNDS = 19 };

/* buckets: [WEFT_LATENCY_BOUNDS + 1] */
void weft_latency_count(uint64_t *buckets, uint64_t value_us);
/* The same in a histogram, whose values are microseconds, or tokens. */
void weft_histogram_count_us(weft_histogram *histogram, uint64_t value_us);
void weft_histogram_count_draft_us(weft_histogram *histogram, uint64_t value_us);
void weft_histogram_count_tokens(weft_histogram *histogram, uint64_t value);

#endif
