/* SPDX-License-Identifier: MIT */
/* Workers: threads that do what may take long before a request is the engine's, tenant by tenant in turn: parsing,
 * templates, tokenising, submitting.
 *
 * Law. Of the tenants that have a job waiting, the one whose jobs have used least processor time for its weight is next;
 * its jobs run in the order they came. Time is measured when a job ends and charged to its tenant. A tenant that had no
 * job begins at the level of the one served last, so nobody saves up. While there are several tenants, one is given
 * another worker only while it leaves as many free as it then holds, or holds none: so a tenant alone keeps at most half
 * of them, and the first job of another waits for no job as long as a worker is free, else for the first job to end. A
 * job that runs is not interrupted: how long one may take is bounded by what it is given (api/json_scan.h,
 * weft_served_check_text). */
#ifndef WEFT_API_WORKERS_H
#define WEFT_API_WORKERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct weft_workers weft_workers;

/* Lies inside what is to be done; its memory is the workers' from put until run is called with it. */
typedef struct weft_job {
  struct weft_job *next;
  uint32_t tenant;
} weft_job;

typedef struct weft_workers_config {
  uint32_t n_threads;
  uint32_t n_tenants;
  const uint32_t *weight; /* [n_tenants], copied; NULL: all 1 */
  void *self;
  void (*run)(void *self, weft_job *job, bool closing); /* closing: it is only to be answered */
  uint64_t (*thread_us)(void);                          /* NULL: processor time of the calling thread */
} weft_workers_config;

weft_status weft_workers_open(const weft_workers_config *config, weft_workers **out, weft_error *error);
/* False when the workers are closing: the job is still the caller's. */
bool weft_workers_put(weft_workers *workers, weft_job *job, uint32_t tenant);
/* True: the job was waiting and is the caller's again. False: it runs, or has run. */
bool weft_workers_take_back(weft_workers *workers, weft_job *job);
/* Processor time charged to a tenant so far. */
uint64_t weft_workers_used_us(weft_workers *workers, uint32_t tenant);
/* Runs what waits with closing set and ends the threads; from then on nothing can be put. */
void weft_workers_stop(weft_workers *workers);
void weft_workers_close(weft_workers *workers); /* stops first; NULL is fine */

#endif
