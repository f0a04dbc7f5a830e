/* SPDX-License-Identifier: MIT */
/* The thread pool: every task runs once, whatever the number of tasks, threads and pauses between
 * runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/memory.h"
#include "kernels/cpu/pool.h"

enum { TASKS_MAX = 1000 };

typedef struct tally {
  uint32_t n_threads;
  _Atomic uint32_t ran[TASKS_MAX];
  _Atomic uint32_t busy[8]; /* a thread index must never be in two tasks at once */
  _Atomic uint32_t n_wrong;
} tally;

static void count(void *arg, uint32_t task, uint32_t thread) {
  tally *t = arg;
  if (task >= TASKS_MAX || thread >= t->n_threads) {
    atomic_fetch_add(&t->n_wrong, 1);
    return;
  }
  if (atomic_exchange(&t->busy[thread], 1) != 0) atomic_fetch_add(&t->n_wrong, 1);
  atomic_fetch_add(&t->ran[task], 1);
  atomic_store(&t->busy[thread], 0);
}

static void check_run(weft_pool *pool, uint32_t n_tasks) {
  static tally t;
  memset(&t, 0, sizeof t);
  t.n_threads = weft_pool_size(pool);
  weft_pool_run(pool, count, &t, n_tasks);
  assert_int_equal(atomic_load(&t.n_wrong), 0);
  for (uint32_t i = 0; i < TASKS_MAX; i++) assert_int_equal(atomic_load(&t.ran[i]), i < n_tasks ? 1 : 0);
}

static void test_every_task_once(void **state) {
  (void)state;
  for (uint32_t n_threads = 1; n_threads <= 5; n_threads++) {
    weft_pool *pool = NULL;
    assert_int_equal(weft_pool_open(n_threads, &pool, NULL), WEFT_OK);
    assert_int_equal(weft_pool_size(pool), n_threads);
    for (uint32_t i = 0; i < 300; i++) check_run(pool, i % 37);
    check_run(pool, TASKS_MAX);
    weft_pool_close(pool);
  }
}

static uint64_t now_us(clockid_t clock) {
  struct timespec t;
  assert_int_equal(clock_gettime(clock, &t), 0);
  return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static void pause_ms(long ms) {
  struct timespec t = {.tv_nsec = ms * 1000000};
  (void)nanosleep(&t, NULL);
}

/* Workers that went to sleep are woken; while they sleep they cost nothing. */
static void test_sleeps_and_wakes(void **state) {
  (void)state;
  weft_pool *pool = NULL;
  assert_int_equal(weft_pool_open(4, &pool, NULL), WEFT_OK);
  for (uint32_t i = 0; i < 20; i++) {
    pause_ms(2);
    check_run(pool, 50);
  }
  pause_ms(20);
  uint64_t before = now_us(CLOCK_PROCESS_CPUTIME_ID);
  pause_ms(200);
  assert_true(now_us(CLOCK_PROCESS_CPUTIME_ID) - before < 20000);
  weft_pool_close(pool);
}

typedef struct chain {
  uint64_t sum[64];
} chain;

static void add(void *arg, uint32_t task, uint32_t thread) {
  (void)thread;
  chain *c = arg;
  c->sum[task] += task + 1; /* plain memory: a run must see what the run before wrote */
}

static void test_runs_see_each_other(void **state) {
  (void)state;
  weft_pool *pool = NULL;
  chain c = {{0}};
  assert_int_equal(weft_pool_open(3, &pool, NULL), WEFT_OK);
  for (uint32_t i = 0; i < 20000; i++) weft_pool_run(pool, add, &c, 5);
  for (uint32_t i = 0; i < 5; i++) assert_int_equal(c.sum[i], 20000u * (i + 1));
  weft_pool_close(pool);
}

static void test_refused_memory(void **state) {
  (void)state;
  weft_pool *pool = NULL;
  weft_error error = {{0}};
  (void)weft_memory_fail_at(1);
  weft_status status = weft_pool_open(2, &pool, &error);
  (void)weft_memory_fail_at(0);
  assert_int_equal(status, WEFT_E_NO_MEMORY);
  assert_null(pool);
  assert_true(error.text[0] != 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_task_once),
      cmocka_unit_test(test_sleeps_and_wakes),
      cmocka_unit_test(test_runs_see_each_other),
      cmocka_unit_test(test_refused_memory),
  };
  return cmocka_run_group_tests_name("kernels/pool", tests, NULL, NULL);
}
