/* SPDX-License-Identifier: MIT */
/* Sizes as multiples of a unit. */
#ifndef WEFT_BASE_ROUND_H
#define WEFT_BASE_ROUND_H

#include <stdint.h>

/* The least multiple of `to` that is n or more; near the greatest number it wraps, so that it is less than n. */
static inline uint64_t weft_round_up(uint64_t n, uint64_t to) {
  return (n + to - 1) / to * to;
}

#endif
