/* SPDX-License-Identifier: MIT */
#include "base/clock.h"

#include <time.h>

uint64_t weft_clock_us(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t); /* cannot fail with this clock */
  return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}
