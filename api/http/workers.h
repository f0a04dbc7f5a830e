/* SPDX-License-Identifier: MIT */
/* Workers: threads that do what may take long before a request is handed to the engine (parsing, templates,
 * tokenising, submitting), tenant by tenant in turn.
 *
 * Law. Of the tenants that have a job waiting, the one whose jobs have used least processor time for its weight is
 * next; its jobs run in the order in which they came. Time is measured when a job ends and charged to its tenant. A
 * tenant that had no job begins at the level of the tenant served last, so no tenant saves up time. While there are
 * several tenants, a tenant is given another worker only if it then holds no more workers than are left free, or held
 * none before: so a tenant that is alone keeps at most half of them, and the first job of another tenant starts at
 * once while a worker is free, else when the first job ends.
 *
 * Law. One worker is kept for jobs that are not long, however many tenants have long ones. A job is long when its owner
 * says so before it is put, or when it has used WEFT_WORKER_SLICE_US of processor time. What may take longer asks now
 * and then (weft_workers_gives_back): it goes on as a long job while fewer than all workers but one have such jobs;
 * else it gives its worker back, waits as the first of its tenant until one of them ends, and begins again. So it loses
 * a slice at most, and once. What does not ask is bounded by what it is given (api/json_scan.h,
 * check_bytes in api/prompt.c). */
#ifndef WEFT_API_HTTP_WORKERS_H
#define WEFT_API_HTTP_WORKERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { WEFT_WORKER_SLICE_US = 20000 };

typedef struct weft_workers weft_workers;

/* Lies inside the thing to be done, whose owner keeps it in memory. From put until run is called only the workers
 * touch it. */
typedef struct weft_job {
  struct weft_job *next;
  uint32_t tenant;
  bool is_long;           /* set by its owner before put, later by the workers */
  struct worker_run *run; /* while it runs */
} weft_job;

typedef enum weft_job_end {
  WEFT_JOB_DONE,      /* the job is its owner's again */
  WEFT_JOB_GIVEN_BACK /* weft_workers_gives_back said so: it waits, and is run again from its beginning */
} weft_job_end;

typedef struct weft_workers_config {
  uint32_t n_threads;
  uint32_t n_tenants;
  const uint32_t *weight; /* [n_tenants], copied; NULL: all 1 */
  void *self;
  weft_job_end (*run)(void *self, weft_job *job, bool closing); /* on a worker; closing: only refuse the job */
  uint64_t (*thread_us)(void);                                  /* NULL: processor time of the calling thread */
} weft_workers_config;

weft_status weft_workers_open(const weft_workers_config *config, weft_workers **out, weft_error *error);
/* False when the workers are closing: the job is still the caller's. */
bool weft_workers_put(weft_workers *workers, weft_job *job, uint32_t tenant);
/* Asked by a job that runs, on its worker. True: its worker is needed, so it ends now and returns
 * WEFT_JOB_GIVEN_BACK. */
bool weft_workers_gives_back(weft_workers *workers, weft_job *job);
/* True: the job was still waiting and is the caller's again. False: it runs, or has run. */
bool weft_workers_take_back(weft_workers *workers, weft_job *job);
/* The tenant's weight from the next job on. */
void weft_workers_set_weight(weft_workers *workers, uint32_t tenant, uint32_t weight);
/* Processor time charged to a tenant so far. */
uint64_t weft_workers_used_us(weft_workers *workers, uint32_t tenant);
/* Runs the waiting jobs with closing set and ends the threads; from then on nothing can be put. */
void weft_workers_stop(weft_workers *workers);
void weft_workers_close(weft_workers *workers); /* stops first; NULL is fine */

#endif
