/* SPDX-License-Identifier: MIT */
#include "scheduler/recorder.h"

#include <string.h>

#include "base/memory.h"

weft_status weft_recorder_open(weft_recorder *recorder) {
  *recorder = (weft_recorder){0};
  recorder->step = weft_alloc(WEFT_RECORDED_STEPS, sizeof *recorder->step);
  recorder->request = weft_alloc(WEFT_RECORDED_REQUESTS, sizeof *recorder->request);
  if (recorder->step != NULL && recorder->request != NULL && pthread_mutex_init(&recorder->mutex, NULL) == 0) {
    return WEFT_OK;
  }
  weft_free(recorder->step);
  weft_free(recorder->request);
  *recorder = (weft_recorder){0};
  return WEFT_E_NO_MEMORY;
}

void weft_recorder_close(weft_recorder *recorder) {
  if (recorder->step == NULL) return;
  (void)pthread_mutex_destroy(&recorder->mutex);
  weft_free(recorder->step);
  weft_free(recorder->request);
  *recorder = (weft_recorder){0};
}

void weft_recorder_add_step(weft_recorder *recorder, const weft_step_record *step) {
  (void)pthread_mutex_lock(&recorder->mutex);
  recorder->step[recorder->n_steps++ % WEFT_RECORDED_STEPS] = *step;
  (void)pthread_mutex_unlock(&recorder->mutex);
}

void weft_recorder_add_request(weft_recorder *recorder, const weft_request_record *request) {
  (void)pthread_mutex_lock(&recorder->mutex);
  recorder->request[recorder->n_requests++ % WEFT_RECORDED_REQUESTS] = *request;
  (void)pthread_mutex_unlock(&recorder->mutex);
}

/* The first of the newest at most max of n_ever records in a ring of n_ring. */
static uint64_t first_of(uint64_t n_ever, uint32_t n_ring, uint32_t max) {
  uint64_t n = n_ever < n_ring ? n_ever : n_ring;
  return n_ever - (n < max ? n : max);
}

uint32_t weft_recorder_steps(weft_recorder *recorder, weft_step_record *out, uint32_t max) {
  uint32_t n = 0;
  (void)pthread_mutex_lock(&recorder->mutex);
  uint64_t at = first_of(recorder->n_steps, WEFT_RECORDED_STEPS, max);
  for (; at < recorder->n_steps; at++) out[n++] = recorder->step[at % WEFT_RECORDED_STEPS];
  (void)pthread_mutex_unlock(&recorder->mutex);
  return n;
}

uint32_t weft_recorder_requests(weft_recorder *recorder, weft_request_record *out, uint32_t max) {
  uint32_t n = 0;
  (void)pthread_mutex_lock(&recorder->mutex);
  uint64_t at = first_of(recorder->n_requests, WEFT_RECORDED_REQUESTS, max);
  for (; at < recorder->n_requests; at++) {
    out[n++] = recorder->request[at % WEFT_RECORDED_REQUESTS];
  }
  (void)pthread_mutex_unlock(&recorder->mutex);
  return n;
}
