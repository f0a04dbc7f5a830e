/* SPDX-License-Identifier: MIT */
#ifndef WEFT_BASE_CLOCK_H
#define WEFT_BASE_CLOCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Microseconds of the monotonic clock. A function that decides anything by time takes the time as an argument instead,
 * so that tests and the simulation can set it. */
uint64_t weft_clock_us(void);
/* The same clock in nanoseconds, for measurements. */
uint64_t weft_clock_ns(void);

#ifdef __cplusplus
}
#endif
#endif
