/* SPDX-License-Identifier: MIT */
#include "scheduler/latency.h"

const uint64_t weft_latency_bounds_us[19] = {
    1000,   2500,   5000,    10000,   20000,   40000,   60000,    80000,    100000,   250000,
    500000, 750000, 1000000, 2500000, 5000000, 7500000, 10000000, 30000000, 60000000,
};

const uint64_t weft_draft_bounds_us[19] = {10,     25,      50,      100,      250,     500,    1000,
                                           2500,   5000,    10000,   25000,    50000,   100000, 250000,
                                           500000, 1000000, 2500000, 10000000, 60000000};

const uint64_t weft_token_bounds[19] = {1,    2,    5,    10,    20,    50,    100,    200,    500,    1000,
                                        2000, 5000, 8000, 10000, 20000, 50000, 100000, 200000, 1000000};

static void count_value(uint64_t *buckets, const uint64_t *bounds, uint64_t value) {
  uint32_t i = 0;
  while (i < WEFT_LATENCY_BOUNDS && value > bounds[i]) i += 1;
  buckets[i] += 1;
}

void weft_latency_count(uint64_t *buckets, uint64_t value_us) {
  count_value(buckets, weft_latency_bounds_us, value_us);
}

void weft_histogram_count_us(weft_histogram *h, uint64_t value_us) {
  count_value(h->bucket, weft_latency_bounds_us, value_us);
  h->sum += value_us;
}

void weft_histogram_count_draft_us(weft_histogram *h, uint64_t value_us) {
  count_value(h->bucket, weft_draft_bounds_us, value_us);
  h->sum += value_us;
}

void weft_histogram_count_tokens(weft_histogram *h, uint64_t value) {
  count_value(h->bucket, weft_token_bounds, value);
  h->sum += value;
}

const double weft_step_ratio_bounds[WEFT_STEP_RATIOS - 1] = {0.5, 0.75, 0.9, 1.1, 1.25, 1.5, 2.0};
