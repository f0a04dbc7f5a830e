/* SPDX-License-Identifier: MIT */
/* The recorder: what the engine did last, kept in two rings: steps, and requests that ended. It is
 * what `weft trace` draws.
 *
 * Law. The newest WEFT_RECORDED_STEPS steps and WEFT_RECORDED_REQUESTS requests are kept, older ones
 * are overwritten. The engine thread adds; any thread may take a copy. Times are engine time. */
#ifndef WEFT_SCHEDULER_RECORDER_H
#define WEFT_SCHEDULER_RECORDER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { WEFT_RECORDED_STEPS = 2048, WEFT_RECORDED_REQUESTS = 1024 };

typedef struct weft_step_record {
  uint64_t number; /* counts steps of the engine, from 1 */
  uint32_t lane;   /* index of the runner */
  bool failed;     /* the device broke during it */
  /* planning began, the device got it, its results were there, they were applied */
  uint64_t began_us, launched_us, collected_us, applied_us;
  uint64_t predicted_us, measured_us; /* of the device; measured 0: it was not */
  uint32_t n_segments;
  uint32_t n_prefill_rows, n_decode_rows, n_commit_rows, n_canvas_rows;
  /* when it was applied */
  uint32_t n_running, n_waiting, n_pages_free, n_pages_cached, n_pages_pinned;
  uint64_t n_preemptions, n_evicted; /* since the engine was opened */
} weft_step_record;

typedef struct weft_request_record {
  uint64_t number; /* counts requests of the engine, from 0 */
  uint32_t lane, tenant;
  bool canvas;
  uint32_t finish; /* weft_finish */
  uint32_t n_prompt, n_cached, n_answer, n_preemptions;
  uint64_t submitted_us, started_us, first_token_us, finished_us; /* 0: it never came so far */
} weft_request_record;

typedef struct weft_recorder {
  weft_step_record *step;       /* [WEFT_RECORDED_STEPS], ring */
  weft_request_record *request; /* [WEFT_RECORDED_REQUESTS], ring */
  uint64_t n_steps, n_requests; /* ever added */
  pthread_mutex_t mutex;
} weft_recorder;

weft_status weft_recorder_open(weft_recorder *recorder);
void weft_recorder_close(weft_recorder *recorder); /* of zeros is fine */
void weft_recorder_add_step(weft_recorder *recorder, const weft_step_record *step);
void weft_recorder_add_request(weft_recorder *recorder, const weft_request_record *request);
/* Copies the newest at most max records, oldest first; returns how many. */
uint32_t weft_recorder_steps(weft_recorder *recorder, weft_step_record *out, uint32_t max);
uint32_t weft_recorder_requests(weft_recorder *recorder, weft_request_record *out, uint32_t max);

#endif
