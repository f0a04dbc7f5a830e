/* SPDX-License-Identifier: MIT */
#ifndef WEFT_BASE_CLOCK_H
#define WEFT_BASE_CLOCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Microseconds of the monotonic clock. Whoever decides anything by time takes it as an argument instead. */
uint64_t weft_clock_us(void);
/* The same clock in nanoseconds, for what is measured. */
uint64_t weft_clock_ns(void);

#ifdef __cplusplus
}
#endif
#endif
