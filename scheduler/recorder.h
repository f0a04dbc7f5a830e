/* SPDX-License-Identifier: MIT */
/* The recorder: what the engine did last, kept in two rings, one of steps and one of requests that ended. api/trace.c
 * makes the Chrome trace of `weft trace` from it.
 *
 * Law. The newest WEFT_RECORDED_STEPS steps and WEFT_RECORDED_REQUESTS requests are kept; a newer record overwrites
 * the oldest. The engine thread adds records; any thread may take a copy. All times are microseconds of the engine's
 * clock. */
#ifndef WEFT_SCHEDULER_RECORDER_H
#define WEFT_SCHEDULER_RECORDER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { WEFT_RECORDED_STEPS = 2048, WEFT_RECORDED_REQUESTS = 1024 };

typedef struct weft_step_record {
  uint64_t number;       /* counts steps of the engine, from 1 */
  uint32_t lane;         /* index of the model whose step this was */
  bool failed;           /* the device failed during the step */
  uint64_t began_us;     /* planning of the step began */
  uint64_t launched_us;  /* the runner got the step */
  uint64_t enqueued_us;  /* the runner had enqueued it */
  uint64_t collected_us; /* the results of the step were there */
  uint64_t applied_us;   /* the results were applied */
  uint64_t predicted_us; /* device time of the step by the cost model (cost.h) */
  uint64_t measured_us;  /* device time as the runner measured it; 0: the runner measured nothing */
  uint64_t resizing_us;  /* in which the pool's memory was changed since the step before landed */
  uint32_t n_segments;
  uint32_t n_prefill_rows, n_decode_rows, n_commit_rows, n_canvas_rows;
  /* requests and pages at the moment when the step was applied */
  uint32_t n_running, n_waiting, n_pages_free, n_pages_cached, n_pages_pinned;
  uint64_t n_preemptions, n_evicted; /* since the engine was opened */
} weft_step_record;

typedef struct weft_request_record {
  uint64_t number; /* counts requests of the engine, from 0 */
  uint32_t lane, tenant;
  bool canvas;
  uint32_t finish; /* weft_finish */
  uint32_t n_prompt, n_cached, n_answer, n_preemptions;
  uint64_t submitted_us, started_us, first_token_us, finished_us; /* 0: the request ended before this happened */
} weft_request_record;

typedef struct weft_recorder {
  weft_step_record *step;       /* [WEFT_RECORDED_STEPS], a ring, owned */
  weft_request_record *request; /* [WEFT_RECORDED_REQUESTS], a ring, owned */
  uint64_t n_steps, n_requests; /* how many were ever added */
  pthread_mutex_t mutex;        /* of all of the above */
} weft_recorder;

/* NO_MEMORY. */
weft_status weft_recorder_open(weft_recorder *recorder);
void weft_recorder_close(weft_recorder *recorder); /* a recorder that is all zero is fine */
void weft_recorder_add_step(weft_recorder *recorder, const weft_step_record *step);
void weft_recorder_add_request(weft_recorder *recorder, const weft_request_record *request);
/* Copies the newest records, at most max of them, oldest first; returns how many. */
uint32_t weft_recorder_steps(weft_recorder *recorder, weft_step_record *out, uint32_t max);
uint32_t weft_recorder_requests(weft_recorder *recorder, weft_request_record *out, uint32_t max);

#endif
