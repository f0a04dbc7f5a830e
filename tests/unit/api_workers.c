/* SPDX-License-Identifier: MIT */
/* Workers among tenants, with processor time that the test makes up and jobs that end when the test says so: nothing
 * here depends on how fast the machine is. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/http/workers.h"

enum { JOBS_MAX = 64, TENANTS = 8 };

/* One job; one that is held ends when the gate is open. One that asks gives its worker back when it is told to. */
typedef struct task {
  weft_job job; /* first */
  bool held, asks;
  uint64_t us; /* processor time it takes */
} task;

static struct {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  uint32_t order[JOBS_MAX], n_started, n_ended, n_closing; /* order: tenants as their jobs began */
  uint32_t n_asked, n_given_back;
  weft_workers *workers;
  uint32_t started_by[TENANTS], ended_by[TENANTS];
  task task[JOBS_MAX];
  uint32_t n_tasks;
  bool open; /* the gate */
} w = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static _Thread_local uint64_t used_us;

static uint64_t pretended_us(void) {
  return used_us;
}

static weft_job_end run(void *self, weft_job *job, bool closing) {
  task *t = (task *)(void *)job;
  (void)self;
  (void)pthread_mutex_lock(&w.mutex);
  w.order[w.n_started++] = job->tenant;
  w.started_by[job->tenant] += 1;
  (void)pthread_cond_broadcast(&w.changed);
  if (t->asks && !closing) {
    used_us += t->us; /* before it asks */
    bool gives_back = weft_workers_gives_back(w.workers, job);
    w.n_asked += 1;
    w.n_given_back += gives_back;
    (void)pthread_cond_broadcast(&w.changed);
    if (gives_back) {
      (void)pthread_mutex_unlock(&w.mutex);
      return WEFT_JOB_GIVEN_BACK;
    }
  }
  while (t->held && !w.open && !closing) (void)pthread_cond_wait(&w.changed, &w.mutex);
  if (!t->asks) used_us += t->us;
  w.n_ended += 1;
  w.n_closing += closing;
  w.ended_by[job->tenant] += 1;
  (void)pthread_cond_broadcast(&w.changed);
  (void)pthread_mutex_unlock(&w.mutex);
  return WEFT_JOB_DONE;
}

static weft_workers *open_workers(uint32_t n_threads, uint32_t n_tenants, const uint32_t *weight) {
  const weft_workers_config config = {
      .n_threads = n_threads, .n_tenants = n_tenants, .weight = weight, .run = run, .thread_us = pretended_us};
  weft_workers *workers;
  weft_error error;
  w.n_started = w.n_ended = w.n_closing = w.n_tasks = w.n_asked = w.n_given_back = 0;
  w.open = false;
  memset(w.started_by, 0, sizeof w.started_by);
  memset(w.ended_by, 0, sizeof w.ended_by);
  assert_int_equal(weft_workers_open(&config, &workers, &error), WEFT_OK);
  w.workers = workers;
  return workers;
}

static void put_as(weft_workers *workers, uint32_t tenant, uint32_t n, uint64_t us, bool held) {
  for (uint32_t i = 0; i < n; i++) {
    task *t = &w.task[w.n_tasks++];
    *t = (task){.held = held, .us = us};
    assert_true(weft_workers_put(workers, &t->job, tenant));
  }
}

static void put(weft_workers *workers, uint32_t tenant, uint32_t n, uint64_t us) {
  put_as(workers, tenant, n, us, false);
}

static void put_held(weft_workers *workers, uint32_t tenant, uint32_t n, uint64_t us) {
  put_as(workers, tenant, n, us, true);
}

/* Waits however long it takes: a law that does not hold shows as a test that never ends. */
static void await(const uint32_t *count, uint32_t n) {
  (void)pthread_mutex_lock(&w.mutex);
  while (*count < n) (void)pthread_cond_wait(&w.changed, &w.mutex);
  (void)pthread_mutex_unlock(&w.mutex);
}

static void open_gate(void) {
  (void)pthread_mutex_lock(&w.mutex);
  w.open = true;
  (void)pthread_cond_broadcast(&w.changed);
  (void)pthread_mutex_unlock(&w.mutex);
}

static uint32_t started_by(uint32_t tenant) {
  (void)pthread_mutex_lock(&w.mutex);
  uint32_t n = w.started_by[tenant];
  (void)pthread_mutex_unlock(&w.mutex);
  return n;
}

static void long_jobs_of_one_tenant_leave_workers_to_others(void **state) {
  (void)state;
  weft_workers *workers = open_workers(4, 3, NULL);
  put_held(workers, 0, 8, 5000000);
  await(&w.started_by[0], 2);
  put(workers, 1, 1, 10);
  await(&w.ended_by[1], 1); /* while no job of the first tenant ended */
  put(workers, 2, 3, 10);
  await(&w.ended_by[2], 3);
  assert_int_equal(started_by(0), 2);
  open_gate();
  await(&w.ended_by[0], 8);
  weft_workers_close(workers);
}

/* A job that takes long, and one that asks how long it has taken. */
static void put_long(weft_workers *workers, uint32_t tenant, uint64_t us) {
  task *t = &w.task[w.n_tasks++];
  *t = (task){.held = true, .asks = true, .us = us};
  assert_true(weft_workers_put(workers, &t->job, tenant));
}

/* As many tenants as there are workers, and more, have long jobs: the last worker is not theirs. */
static void long_jobs_of_many_tenants_leave_a_worker(void **state) {
  enum { N = 6 };
  (void)state;
  weft_workers *workers = open_workers(4, N + 1, NULL);
  for (uint32_t i = 0; i < N; i++) put_long(workers, i, WEFT_WORKER_SLICE_US);
  await(&w.n_asked, N);          /* each of them has begun */
  await(&w.n_given_back, N - 3); /* and three hold their workers */
  put(workers, N, 5, 10);
  await(&w.ended_by[N], 5); /* while no long job ended */
  assert_int_equal(w.n_asked, N);
  open_gate();
  await(&w.n_ended, N + 5); /* those that gave their workers back ran, too */
  assert_int_equal(w.n_given_back, N - 3);
  weft_workers_close(workers);
}

/* Jobs that are long from the beginning begin on all workers but one. */
static void jobs_that_are_said_to_be_long_leave_a_worker(void **state) {
  (void)state;
  weft_workers *workers = open_workers(3, 4, NULL);
  for (uint32_t i = 0; i < 3; i++) {
    task *t = &w.task[w.n_tasks++];
    *t = (task){.job = {.is_long = true}, .held = true, .us = 10};
    assert_true(weft_workers_put(workers, &t->job, i));
  }
  await(&w.n_started, 2);
  put(workers, 3, 3, 10);
  await(&w.ended_by[3], 3);
  assert_int_equal(started_by(0) + started_by(1) + started_by(2), 2);
  open_gate();
  await(&w.n_ended, 6);
  weft_workers_close(workers);
}

/* A job within its slice is never told to go, and one that is long keeps its worker while there is a place. */
static void short_jobs_keep_their_workers(void **state) {
  (void)state;
  weft_workers *workers = open_workers(2, 3, NULL);
  put_long(workers, 0, WEFT_WORKER_SLICE_US);
  await(&w.n_asked, 1);
  put_long(workers, 1, WEFT_WORKER_SLICE_US - 1);
  await(&w.n_asked, 2);
  assert_int_equal(w.n_given_back, 0);
  open_gate();
  await(&w.n_ended, 2);
  weft_workers_close(workers);
}

/* What was given back and waits is refused when the workers close, and can be taken back before. */
static void a_job_that_was_given_back_waits_as_others_do(void **state) {
  (void)state;
  weft_workers *workers = open_workers(2, 4, NULL);
  put_long(workers, 0, WEFT_WORKER_SLICE_US);
  await(&w.n_asked, 1);
  put_long(workers, 1, WEFT_WORKER_SLICE_US);
  put_long(workers, 2, WEFT_WORKER_SLICE_US);
  await(&w.n_given_back, 2);
  put(workers, 3, 1, 10);
  await(&w.ended_by[3], 1); /* so both of them are in their queues again */
  assert_true(weft_workers_take_back(workers, &w.task[1].job));
  open_gate();
  await(&w.n_ended, 3);
  assert_int_equal(w.ended_by[1], 0);
  weft_workers_close(workers);
}

static void a_tenant_alone_on_a_server_has_all_workers(void **state) {
  (void)state;
  weft_workers *workers = open_workers(4, 1, NULL);
  put_held(workers, 0, 5, 10);
  await(&w.started_by[0], 4);
  open_gate();
  await(&w.n_ended, 5);
  weft_workers_close(workers);
}

/* One worker, held by a first job until all others wait: their order is a pure function of what they use. */
static void time_is_shared_by_weight(void **state) {
  static const uint32_t weight[] = {1, 1, 2};
  (void)state;
  weft_workers *workers = open_workers(1, 3, weight);
  put_held(workers, 0, 1, 100);
  await(&w.n_started, 1);
  put(workers, 0, 10, 100); /* each uses 100 us */
  put(workers, 1, 10, 50);  /* half as much: twice as many run */
  put(workers, 2, 20, 100); /* twice the weight */
  open_gate();
  await(&w.n_ended, 41);
  uint32_t n[3] = {0};
  for (uint32_t i = 0; i < 21; i++) n[w.order[i]] += 1;
  assert_in_range(n[0], 3, 5);
  assert_in_range(n[1], 7, 10);
  assert_in_range(n[2], 7, 10);
  weft_workers_stop(workers); /* the last job is charged when its worker is done with it */
  assert_int_equal(weft_workers_used_us(workers, 0), 1100);
  assert_int_equal(weft_workers_used_us(workers, 1), 500);
  assert_int_equal(weft_workers_used_us(workers, 2), 2000);
  weft_workers_close(workers);
}

static void nobody_saves_up(void **state) {
  (void)state;
  weft_workers *workers = open_workers(1, 2, NULL);
  put(workers, 0, 10, 1000); /* the other one is idle */
  await(&w.n_ended, 10);
  put_held(workers, 0, 1, 1000);
  await(&w.n_started, 11);
  put(workers, 0, 6, 1000);
  put(workers, 1, 6, 1000);
  open_gate();
  await(&w.n_ended, 23);
  for (uint32_t i = 12; i < 22; i++) assert_int_not_equal(w.order[i], w.order[i + 1]); /* in turn */
  weft_workers_close(workers);
}

/* The first, the last and one between of those that wait; the order of the others stays, and more can follow. */
static void what_waits_can_be_taken_back(void **state) {
  (void)state;
  weft_workers *workers = open_workers(1, 2, NULL);
  put_held(workers, 1, 1, 1);
  await(&w.n_started, 1);
  put(workers, 0, 5, 1);
  assert_false(weft_workers_take_back(workers, &w.task[0].job)); /* it runs */
  assert_true(weft_workers_take_back(workers, &w.task[1].job));
  assert_true(weft_workers_take_back(workers, &w.task[3].job));
  assert_true(weft_workers_take_back(workers, &w.task[5].job));
  assert_false(weft_workers_take_back(workers, &w.task[5].job));
  put(workers, 0, 1, 1);
  open_gate();
  await(&w.n_ended, 4);
  assert_int_equal(w.started_by[0], 3);
  assert_false(weft_workers_take_back(workers, &w.task[2].job)); /* it has run */
  weft_workers_close(workers);
  assert_int_equal(w.n_ended, 4);
}

static void closing_answers_what_waits(void **state) {
  weft_job late;
  (void)state;
  weft_workers *workers = open_workers(2, 2, NULL);
  put_held(workers, 0, 1, 1);
  await(&w.n_started, 1);
  put_held(workers, 0, 5, 1);
  put_held(workers, 1, 1, 1);
  await(&w.started_by[1], 1);
  open_gate();
  weft_workers_stop(workers);
  assert_int_equal(w.n_ended, 7);
  assert_false(weft_workers_put(workers, &late, 0));
  weft_workers_close(workers);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(long_jobs_of_one_tenant_leave_workers_to_others),
                                     cmocka_unit_test(long_jobs_of_many_tenants_leave_a_worker),
                                     cmocka_unit_test(jobs_that_are_said_to_be_long_leave_a_worker),
                                     cmocka_unit_test(short_jobs_keep_their_workers),
                                     cmocka_unit_test(a_job_that_was_given_back_waits_as_others_do),
                                     cmocka_unit_test(a_tenant_alone_on_a_server_has_all_workers),
                                     cmocka_unit_test(time_is_shared_by_weight),
                                     cmocka_unit_test(nobody_saves_up),
                                     cmocka_unit_test(what_waits_can_be_taken_back),
                                     cmocka_unit_test(closing_answers_what_waits)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
