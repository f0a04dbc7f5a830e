/* SPDX-License-Identifier: MIT */
#include "base/clock.h"

#include <time.h>

uint64_t weft_clock_ns(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t); /* cannot fail for this clock */
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t weft_clock_us(void) {
  return weft_clock_ns() / 1000u;
}
