/* SPDX-License-Identifier: MIT */
#include "base/condition.h"

#include <time.h>

weft_status weft_condition_open(pthread_cond_t *condition) {
  pthread_condattr_t attributes;
  if (pthread_condattr_init(&attributes) != 0) return WEFT_E_NO_MEMORY;
  (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); /* cannot fail for this clock */
  int bad = pthread_cond_init(condition, &attributes);
  (void)pthread_condattr_destroy(&attributes);
  return bad == 0 ? WEFT_OK : WEFT_E_NO_MEMORY;
}

bool weft_condition_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, uint64_t until_us) {
  if (until_us == UINT64_MAX) return pthread_cond_wait(condition, mutex) == 0;
  const struct timespec until = {.tv_sec = (time_t)(until_us / 1000000), .tv_nsec = (long)(until_us % 1000000 * 1000)};
  return pthread_cond_timedwait(condition, mutex, &until) == 0;
}
