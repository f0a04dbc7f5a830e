/* SPDX-License-Identifier: MIT */
/* Counters of several engines as those of one.
 *
 * Law. What is counted is added up. What all engines share (places.h) or have alike is the first one's: memory of
 * requests; of a tenant what waits, was refused and was evicted; the number of models. Pins are the same in each
 * engine: their number is the largest, and that of held ones the smallest of the engines that work. A model is broken
 * when it is so in every engine; the sum drains when any engine does. */
#ifndef WEFT_SCHEDULER_STATS_SUM_H
#define WEFT_SCHEDULER_STATS_SUM_H

#include "scheduler/stats.h"

void weft_engine_stats_add(weft_engine_stats *sum, const weft_engine_stats *part);
void weft_request_stats_add(weft_request_stats *sum, const weft_request_stats *part);
void weft_tenant_stats_add(weft_tenant_stats *sum, const weft_tenant_stats *part);
void weft_group_usage_add(weft_group_usage *sum, const weft_group_usage *part);

#endif
