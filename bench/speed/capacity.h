/* SPDX-License-Identifier: MIT */
/* Capacity: how many sequences the pool of the pager holds, and how much of it holds no token. */
#ifndef WEFT_BENCH_SPEED_CAPACITY_H
#define WEFT_BENCH_SPEED_CAPACITY_H

#include <stdint.h>

#include "bench/inside.h"

typedef struct weft_capacity {
  double waste_percent;      /* of the bytes held: slots without a token that a later row can see */
  double ratio_contiguous;   /* sequences held, against as many bytes reserved for the longest each */
  double ratio_ring;         /* the same, where sliding layers reserve a ring of their window */
  double ratio_sliding;      /* long sequences held with sliding groups freed, against kept */
  double ratio_sharing;      /* pages of one shared prompt and own ends, unshared against shared */
  double ratio_sharing_kept; /* the same, where sliding layers keep every token */
  uint32_t n_contiguous, n_freed, n_kept, n_waste; /* sequences that were held */
  double mean_tokens, mean_waste_tokens;           /* of the drawn lengths */
} weft_capacity;

/* Measures all of it. Errors: what the pager refused that it should not have. */
weft_status weft_capacity_measure(weft_capacity *out, weft_error *error);
/* The lines of the table. */
void weft_capacity_print(const weft_capacity *capacity);

#endif
