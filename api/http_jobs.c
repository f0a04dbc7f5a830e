/* SPDX-License-Identifier: MIT */
/* Workers, and the two ways between them and the network thread: jobs to the workers, exchanges that are ready back.
 *
 * Law: workers serve tenants in turn (start-time fair queueing): each job of a tenant stands behind its last one by its cost,
 * and a tenant that comes back starts at the turn that is being served. So a job waits for at most one job of each other
 * tenant and for what runs, however many another tenant has queued, and large bodies count as many small ones. */
#include <string.h>

#include "api/http_internal.h"
#include "base/memory.h"

enum { TURN_BYTES = 4096 }; /* a body of so many bytes costs as much as an empty one again */

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
  if (first) http__poke(http); /* otherwise whoever was first has done so, and the thread takes all */
}

weft_exchange *http__take_ready(weft_http *http) {
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

void http__forget_ready(weft_exchange *x) {
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

/* Under the lock: the job whose turn it is leaves the list. The list is as short as the places for requests are few. */
static weft_exchange *take_job(weft_http *http) {
  weft_exchange **best = NULL;
  for (weft_exchange **at = &http->first_job; *at != NULL; at = &(*at)->next_job) {
    if (best == NULL || (*at)->turn < (*best)->turn) best = at;
  }
  if (best == NULL) return NULL;
  weft_exchange *x = *best;
  *best = x->next_job;
  x->queued = false;
  http->turn = x->turn;
  return x;
}

static void *work(void *self) {
  weft_http *http = self;
  (void)pthread_mutex_lock(&http->lock);
  while (!http->closing) {
    weft_exchange *x = take_job(http);
    if (x == NULL) {
      (void)pthread_cond_wait(&http->jobs_wait, &http->lock);
      continue;
    }
    (void)pthread_mutex_unlock(&http->lock);
    http->config.handle(http->config.self, x);
    (void)pthread_mutex_lock(&http->lock);
    x->working = false;
    make_ready(x);
    http__poke(http);
  }
  (void)pthread_mutex_unlock(&http->lock);
  return NULL;
}

void http__queue(weft_exchange *x) {
  weft_http *http = x->http;
  (void)pthread_mutex_lock(&http->lock);
  uint64_t *turn = &http->turn_of[x->who];
  if (*turn < http->turn) *turn = http->turn;
  *turn += 1 + x->body.n / TURN_BYTES;
  x->turn = *turn;
  x->queued = x->working = true;
  x->next_job = NULL;
  weft_exchange **last = &http->first_job; /* of equal turns the first to come is served first */
  while (*last != NULL) last = &(*last)->next_job;
  *last = x;
  (void)pthread_cond_signal(&http->jobs_wait);
  (void)pthread_mutex_unlock(&http->lock);
}

bool http__unqueue(weft_exchange *x) {
  weft_http *http = x->http;
  (void)pthread_mutex_lock(&http->lock);
  if (x->queued) {
    weft_exchange **at = &http->first_job;
    while (*at != x) at = &(*at)->next_job;
    *at = x->next_job;
    x->queued = x->working = false;
  }
  bool free_of_workers = !x->working;
  (void)pthread_mutex_unlock(&http->lock);
  return free_of_workers;
}

weft_status http__jobs_open(weft_http *http, weft_error *error) {
  uint32_t n = http->config.n_workers;
  for (uint32_t i = 0; i < n && i < WORKERS_MAX; i++) {
    int code = pthread_create(&http->worker[i], NULL, work, http);
    if (code != 0) return weft_fail(error, WEFT_E_IO, "the system refused a thread: %s", strerror(code));
    http->n_workers += 1;
  }
  return WEFT_OK;
}

void http__jobs_close(weft_http *http) {
  (void)pthread_mutex_lock(&http->lock);
  http->closing = true;
  (void)pthread_cond_broadcast(&http->jobs_wait);
  (void)pthread_mutex_unlock(&http->lock);
  for (uint32_t i = 0; i < http->n_workers; i++) (void)pthread_join(http->worker[i], NULL); /* ours, joined once */
  http->n_workers = 0;
}
