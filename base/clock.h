/* SPDX-License-Identifier: MIT */
#ifndef WEFT_BASE_CLOCK_H
#define WEFT_BASE_CLOCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Microseconds of the system's monotonic clock. A function that decides anything by time takes the time as an argument
 * instead of calling this one, so that tests and the simulation can set the time. */
uint64_t weft_clock_us(void);
/* Nanoseconds of the same clock, for measurements. */
uint64_t weft_clock_ns(void);

#ifdef __cplusplus
}
#endif
#endif
