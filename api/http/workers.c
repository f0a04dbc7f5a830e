/* SPDX-License-Identifier: MIT */
#include "api/http/workers.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/memory.h"
#include "base/threads.h"

enum { LEVEL_SHARE = 1 << 10 }; /* a microsecond at weight 1; weights are at most 1000 */

typedef struct worker_tenant {
  weft_job *first, **last; /* in the order they came */
  uint32_t weight, n_running;
  uint64_t level; /* time used, divided by weight */
  uint64_t used_us;
  uint64_t turn; /* when it was served last: of equal levels the one served longest ago is next */
} worker_tenant;

/* A job on its worker. The worker's own, but for is_long. */
typedef struct worker_run {
  uint64_t began_us;
  bool is_long; /* under the mutex */
} worker_run;

struct weft_workers {
  weft_workers_config config;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  worker_tenant *tenant;                         /* [n_tenants] */
  pthread_t *thread;                             /* [n_threads] */
  uint32_t n_threads, n_busy, n_long, n_waiting; /* n_long: of the busy ones, those with long jobs */
  uint64_t n_turns, level;                       /* of the tenant served last */
  bool closing;
};

static uint64_t thread_us(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now); /* cannot fail with this clock */
  return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

/* ---- which job is next, under the mutex -------------------------------------------------------- */

static bool may_have_another(const weft_workers *w, const worker_tenant *t) {
  if (w->config.n_tenants == 1 || t->n_running == 0 || w->closing) return true;
  return t->n_running + 1 + w->n_busy + 1 <= w->config.n_threads;
}

/* Whether one more long job may run. */
static bool has_long_place(const weft_workers *w) {
  return w->n_long + 1 < w->config.n_threads || w->config.n_threads == 1 || w->closing;
}

static worker_tenant *choose_tenant(weft_workers *w) {
  worker_tenant *best = NULL;
  if (w->n_waiting == 0) return NULL;
  for (uint32_t i = 0; i < w->config.n_tenants; i++) {
    worker_tenant *t = &w->tenant[i];
    if (t->first == NULL || !may_have_another(w, t) || (t->first->is_long && !has_long_place(w))) continue;
    if (best == NULL || t->level < best->level || (t->level == best->level && t->turn < best->turn)) best = t;
  }
  return best;
}

static weft_job *take_job(weft_workers *w, worker_tenant *t, worker_run *run) {
  weft_job *job = t->first;
  t->first = job->next;
  if (t->first == NULL) t->last = &t->first;
  t->n_running += 1;
  t->turn = ++w->n_turns;
  if (t->level > w->level) w->level = t->level;
  run->is_long = job->is_long;
  w->n_busy += 1;
  w->n_long += run->is_long;
  w->n_waiting -= 1;
  return job;
}

/* Back to the head of its tenant's queue. */
static void return_job(weft_workers *w, worker_tenant *t, weft_job *job) {
  job->is_long = true;
  job->next = t->first;
  if (t->first == NULL) t->last = &job->next;
  t->first = job;
  w->n_waiting += 1;
}

static void charge_worker_tenant(weft_workers *w, worker_tenant *t, uint64_t us) {
  if (us == 0) us = 1;
  t->used_us += us;
  t->level += us * LEVEL_SHARE / t->weight;
  t->n_running -= 1;
  w->n_busy -= 1;
}

/* ---- threads ----------------------------------------------------------------------------------- */

static void *run_worker(void *self) {
  weft_workers *w = self;
  (void)pthread_mutex_lock(&w->mutex);
  for (;;) {
    worker_tenant *t = choose_tenant(w);
    if (t == NULL && w->closing) break; /* nothing is left to do */
    if (t == NULL) {
      (void)pthread_cond_wait(&w->changed, &w->mutex);
      continue;
    }
    worker_run run;
    weft_job *job = take_job(w, t, &run);
    bool closing = w->closing;
    (void)pthread_mutex_unlock(&w->mutex);
    run.began_us = w->config.thread_us();
    job->run = &run;
    weft_job_end end = w->config.run(w->config.self, job, closing); /* done: the job may be gone already */
    uint64_t us = w->config.thread_us() - run.began_us;
    (void)pthread_mutex_lock(&w->mutex);
    charge_worker_tenant(w, t, us);
    w->n_long -= run.is_long;
    if (end == WEFT_JOB_GIVEN_BACK) return_job(w, t, job);
    (void)pthread_cond_broadcast(&w->changed); /* another tenant may have a worker now */
  }
  (void)pthread_mutex_unlock(&w->mutex);
  return NULL;
}

static weft_status start_threads(weft_workers *w, weft_error *error) {
  for (uint32_t i = 0; i < w->config.n_threads; i++) {
    weft_status status = weft_threads_start(&w->thread[i], run_worker, w, error);
    if (status != WEFT_OK) return status;
    w->n_threads += 1;
  }
  return WEFT_OK;
}

weft_status weft_workers_open(const weft_workers_config *config, weft_workers **out, weft_error *error) {
  WEFT_CHECK(config->n_threads > 0 && config->n_tenants > 0);
  *out = NULL;
  weft_workers *w = weft_alloc(1, sizeof *w);
  if (w == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for workers");
  w->config = *config;
  w->config.weight = NULL; /* copied below */
  if (w->config.thread_us == NULL) w->config.thread_us = thread_us;
  (void)pthread_mutex_init(&w->mutex, NULL); /* these cannot fail with default attributes on this system */
  (void)pthread_cond_init(&w->changed, NULL);
  w->tenant = weft_alloc(config->n_tenants, sizeof *w->tenant);
  w->thread = weft_alloc(config->n_threads, sizeof *w->thread);
  weft_status status = WEFT_OK;
  if (w->tenant == NULL || w->thread == NULL) status = weft_fail(error, WEFT_E_NO_MEMORY, "no memory for workers");
  for (uint32_t i = 0; i < config->n_tenants && status == WEFT_OK; i++) {
    uint32_t weight = config->weight == NULL || config->weight[i] == 0 ? 1 : config->weight[i];
    w->tenant[i].last = &w->tenant[i].first;
    w->tenant[i].weight = weight;
  }
  if (status == WEFT_OK) status = start_threads(w, error);
  if (status == WEFT_OK) {
    *out = w;
  } else {
    weft_workers_close(w);
  }
  return status;
}

bool weft_workers_put(weft_workers *w, weft_job *job, uint32_t tenant) {
  WEFT_CHECK(tenant < w->config.n_tenants);
  worker_tenant *t = &w->tenant[tenant];
  (void)pthread_mutex_lock(&w->mutex);
  bool open = !w->closing;
  if (open) {
    if (t->first == NULL && t->n_running == 0 && t->level < w->level) t->level = w->level;
    job->next = NULL;
    job->tenant = tenant;
    *t->last = job;
    t->last = &job->next;
    w->n_waiting += 1;
    (void)pthread_cond_signal(&w->changed);
  }
  (void)pthread_mutex_unlock(&w->mutex);
  return open;
}

bool weft_workers_gives_back(weft_workers *w, weft_job *job) {
  worker_run *run = job->run;
  if (w->config.thread_us() - run->began_us < WEFT_WORKER_SLICE_US) return false;
  (void)pthread_mutex_lock(&w->mutex);
  bool stays = run->is_long || has_long_place(w);
  if (stays && !run->is_long) {
    run->is_long = true;
    w->n_long += 1;
  }
  (void)pthread_mutex_unlock(&w->mutex);
  return !stays;
}

bool weft_workers_take_back(weft_workers *w, weft_job *job) {
  (void)pthread_mutex_lock(&w->mutex);
  worker_tenant *t = &w->tenant[job->tenant];
  weft_job **at = &t->first;
  while (*at != NULL && *at != job) at = &(*at)->next;
  bool waits = *at != NULL;
  if (waits) {
    *at = job->next;
    if (t->last == &job->next) t->last = at;
    w->n_waiting -= 1;
  }
  (void)pthread_mutex_unlock(&w->mutex);
  return waits;
}

void weft_workers_set_weight(weft_workers *w, uint32_t tenant, uint32_t weight) {
  WEFT_CHECK(tenant < w->config.n_tenants);
  (void)pthread_mutex_lock(&w->mutex);
  w->tenant[tenant].weight = weight == 0 ? 1 : weight;
  (void)pthread_mutex_unlock(&w->mutex);
}

uint64_t weft_workers_used_us(weft_workers *w, uint32_t tenant) {
  (void)pthread_mutex_lock(&w->mutex);
  uint64_t us = w->tenant[tenant].used_us;
  (void)pthread_mutex_unlock(&w->mutex);
  return us;
}

void weft_workers_stop(weft_workers *w) {
  (void)pthread_mutex_lock(&w->mutex);
  w->closing = true;
  (void)pthread_cond_broadcast(&w->changed);
  (void)pthread_mutex_unlock(&w->mutex);
  for (; w->n_threads > 0; w->n_threads--) (void)pthread_join(w->thread[w->n_threads - 1], NULL);
}

void weft_workers_close(weft_workers *w) {
  if (w == NULL) return;
  weft_workers_stop(w);
  (void)pthread_cond_destroy(&w->changed);
  (void)pthread_mutex_destroy(&w->mutex);
  weft_free(w->tenant);
  weft_free(w->thread);
  weft_free(w);
}
