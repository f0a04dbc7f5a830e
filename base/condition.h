/* SPDX-License-Identifier: MIT */
/* Threads that wait for each other, with an end by weft_clock_us.
 *
 * Law: waits are counted by the monotonic clock, so that nobody who sets the time of day makes one longer or shorter. */
#ifndef WEFT_BASE_CONDITION_H
#define WEFT_BASE_CONDITION_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* pthread_cond_destroy closes it. */
weft_status weft_condition_open(pthread_cond_t *condition);
/* Waits, under the mutex, until the condition is signalled or weft_clock_us reaches until_us; UINT64_MAX is never. It
 * may come back too early, as pthread_cond_wait may. False: the time is over. */
bool weft_condition_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, uint64_t until_us);

#ifdef __cplusplus
}
#endif
#endif
