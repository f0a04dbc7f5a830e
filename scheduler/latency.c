/* SPDX-License-Identifier: MIT */
#include "scheduler/latency.h"

const uint64_t weft_latency_bounds_us[19] = {
    1000,   2500,   5000,    10000,   20000,   40000,   60000,    80000,    100000,   250000,
    500000, 750000, 1000000, 2500000, 5000000, 7500000, 10000000, 30000000, 60000000,
};

void weft_latency_count(uint64_t *buckets, uint64_t value_us) {
  uint32_t i = 0;
  while (i < WEFT_LATENCY_BOUNDS && value_us > weft_latency_bounds_us[i]) i += 1;
  buckets[i] += 1;
}

const double weft_step_ratio_bounds[WEFT_STEP_RATIOS - 1] = {0.5, 0.75, 0.9, 1.1, 1.25, 1.5, 2.0};
