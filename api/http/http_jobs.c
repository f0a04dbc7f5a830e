/* SPDX-License-Identifier: MIT */
/* The two ways between the network thread and the workers (workers.h): jobs go to the workers, exchanges that are
 * ready come back.
 *
 * Law: an exchange is `working` from http_queue until its handler has returned, or until the network thread has taken
 * it back before a worker began with it. Workers are shared among tenants, or among addresses where there is one
 * tenant. */
#include <stddef.h>

#include "api/http/http_internal.h"

/* Under the lock. */
static void make_ready(weft_exchange *x) {
  weft_http *http = x->http;
  if (x->in_ready) return;
  x->in_ready = true;
  x->next_ready = NULL;
  if (http->last_ready != NULL) http->last_ready->next_ready = x;
  if (http->ready == NULL) http->ready = x;
  http->last_ready = x;
}

void weft_exchange_wake(weft_exchange *x) {
  weft_http *http = x->http;
  (void)pthread_mutex_lock(&http->lock);
  bool first = http->ready == NULL;
  make_ready(x);
  (void)pthread_mutex_unlock(&http->lock);
  if (first) http_poke(http); /* else the thread was poked for the first of the list, and will take all of it */
}

weft_exchange *http_take_ready(weft_http *http) {
  (void)pthread_mutex_lock(&http->lock);
  weft_exchange *x = http->ready;
  if (x != NULL) {
    http->ready = x->next_ready;
    if (http->ready == NULL) http->last_ready = NULL;
    x->in_ready = false;
  }
  (void)pthread_mutex_unlock(&http->lock);
  return x;
}

void http_forget_ready(weft_exchange *x) {
  weft_http *http = x->http;
  (void)pthread_mutex_lock(&http->lock);
  if (x->in_ready) {
    weft_exchange *before = NULL;
    for (weft_exchange *at = http->ready; at != x; at = at->next_ready) before = at;
    if (before == NULL) http->ready = x->next_ready;
    if (before != NULL) before->next_ready = x->next_ready;
    if (http->last_ready == x) http->last_ready = before;
    x->in_ready = false;
  }
  (void)pthread_mutex_unlock(&http->lock);
}

/* ---- workers ---- */

/* The queue of the workers that the exchange joins: one for each tenant, or for each address where there is one
 * tenant. */
static uint32_t queue_of(const weft_exchange *x) {
  return x->http->config.n_tenants > 1 ? x->who : x->who - TENANTS_MAX;
}

static weft_exchange *exchange_of(weft_job *job) {
  return (weft_exchange *)(void *)((char *)job - offsetof(weft_exchange, job));
}

void http_refuse_closing(weft_exchange *x) {
  weft_refusal why;
  (void)weft_refuse(&why, 503, "cancelled", NULL, "the request was cancelled: the server is shutting down");
  weft_exchange_refuse(x, &why);
}

bool weft_exchange_stops(weft_exchange *x) {
  if (atomic_load(&x->unwanted)) return true;
  x->gives_back = x->http->workers != NULL && !x->quick && weft_workers_gives_back(x->http->workers, &x->job);
  return x->gives_back;
}

bool weft_exchange_gives_back(const weft_exchange *x) {
  return x->gives_back;
}

static weft_job_end run_job(void *self, weft_job *job, bool closing) {
  weft_http *http = self;
  weft_exchange *x = exchange_of(job);
  x->gives_back = false;
  if (closing) {
    http_refuse_closing(x);
  } else {
    http->config.handle(http->config.self, x);
  }
  if (x->gives_back) return WEFT_JOB_GIVEN_BACK;
  (void)pthread_mutex_lock(&http->lock);
  x->working = false;
  make_ready(x);
  http_poke(http);
  (void)pthread_mutex_unlock(&http->lock);
  return WEFT_JOB_DONE;
}

void http_queue(weft_exchange *x) {
  weft_http *http = x->http;
  x->job.is_long = x->body.n > SMALL_BODY_BYTES;
  (void)pthread_mutex_lock(&http->lock);
  bool taken = x->working = weft_workers_put(http->workers, &x->job, queue_of(x));
  (void)pthread_mutex_unlock(&http->lock);
  if (!taken) http_refuse_closing(x);
}

bool http_unqueue(weft_exchange *x) {
  weft_http *http = x->http;
  (void)pthread_mutex_lock(&http->lock);
  if (x->working && weft_workers_take_back(http->workers, &x->job)) x->working = false;
  bool free_of_workers = !x->working;
  (void)pthread_mutex_unlock(&http->lock);
  return free_of_workers;
}

weft_status http_jobs_open(weft_http *http, weft_error *error) {
  const weft_http_config *c = &http->config;
  const weft_workers_config config = {.n_threads = c->n_workers,
                                      .n_tenants = c->n_tenants > 1 ? c->n_tenants : (uint32_t)ADDRESSES_MAX,
                                      .weight = c->n_tenants > 1 ? c->weight : NULL,
                                      .self = http,
                                      .run = run_job,
                                      .thread_us = c->worker_us};
  return weft_workers_open(&config, &http->workers, error);
}

void http_jobs_close(weft_http *http) {
  (void)pthread_mutex_lock(&http->lock);
  http->closing = true;
  (void)pthread_mutex_unlock(&http->lock);
  if (http->workers != NULL) weft_workers_stop(http->workers);
}

void weft_http_set_weight(weft_http *http, uint32_t tenant, uint32_t weight) {
  if (http->config.n_tenants > 1) weft_workers_set_weight(http->workers, tenant, weight);
}

uint64_t weft_http_worker_us(weft_http *http, uint32_t tenant) {
  uint64_t us = 0;
  if (http->config.n_tenants > 1) return weft_workers_used_us(http->workers, tenant);
  for (uint32_t i = 0; i < ADDRESSES_MAX; i++) us += weft_workers_used_us(http->workers, i);
  return us;
}
