/* SPDX-License-Identifier: MIT */
/* The thread pool: every task runs once, whatever the number of tasks, threads and pauses between
 * runs. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/memory.h"
#include "kernels/cpu/thread_pool.h"

enum { TASKS_MAX = 1000, THREADS_MAX = 16 };

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

static void check_run(weft_thread_pool *pool, uint32_t n_tasks) {
  static tally t;
  memset(&t, 0, sizeof t);
  t.n_threads = weft_thread_pool_size(pool);
  weft_thread_pool_run(pool, count, &t, n_tasks);
  assert_int_equal(atomic_load(&t.n_wrong), 0);
  for (uint32_t i = 0; i < TASKS_MAX; i++) assert_int_equal(atomic_load(&t.ran[i]), i < n_tasks ? 1 : 0);
}

static void test_every_task_once(void **state) {
  (void)state;
  for (uint32_t n_threads = 1; n_threads <= 5; n_threads++) {
    weft_thread_pool *pool = NULL;
    assert_int_equal(weft_thread_pool_open(n_threads, &pool, NULL), WEFT_OK);
    assert_int_equal(weft_thread_pool_size(pool), n_threads);
    for (uint32_t i = 0; i < 300; i++) check_run(pool, i % 37);
    check_run(pool, TASKS_MAX);
    weft_thread_pool_close(pool);
  }
}

/* The threads of this process as the system numbers them; how many. */
static uint32_t list_threads(long *out) {
  uint32_t n = 0;
  DIR *folder = opendir("/proc/self/task");
  assert_non_null(folder);
  for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
    if (entry->d_name[0] == '.') continue;
    assert_true(n < THREADS_MAX);
    out[n++] = strtol(entry->d_name, NULL, 10);
  }
  (void)closedir(folder);
  return n;
}

/* How often a thread went to sleep until now; *asleep: it does. */
static uint64_t sleeps_of(long thread, bool *asleep) {
  char path[64], line[128];
  unsigned long long n = 0;
  (void)snprintf(path, sizeof path, "/proc/self/task/%ld/status", thread);
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  while (fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, "State:", 6) == 0) *asleep = strstr(line, "(sleeping)") != NULL;
    (void)sscanf(line, "voluntary_ctxt_switches: %llu", &n);
  }
  (void)fclose(file);
  return n;
}

typedef struct workers {
  long id[THREADS_MAX];
  uint32_t n;
} workers;

/* The threads that are there now and are not among the n_before that were there before the pool. */
static workers list_workers(const long *before, uint32_t n_before) {
  workers w = {.n = 0};
  long now[THREADS_MAX];
  uint32_t n = list_threads(now);
  for (uint32_t i = 0; i < n; i++) {
    bool known = false;
    for (uint32_t k = 0; k < n_before; k++) known |= before[k] == now[i];
    if (!known) w.id[w.n++] = now[i];
  }
  return w;
}

/* Waits until all workers sleep, for as long as that takes; how often they went to sleep in all. */
static uint64_t wait_for_sleep(const workers *w) {
  for (;;) {
    uint64_t n = 0;
    bool all = true, asleep = false;
    for (uint32_t i = 0; i < w->n; i++) {
      n += sleeps_of(w->id[i], &asleep);
      all = all && asleep;
    }
    if (all) return n;
    (void)usleep(200);
  }
}

/* Workers that went to sleep are woken; while they sleep they cost nothing: nobody wakes only to look around. A pool
 * that does not sleep, or wakes by itself more often than the pause below is long, never comes out of here. */
static void test_sleeps_and_wakes(void **state) {
  (void)state;
  weft_thread_pool *pool = NULL;
  long before[THREADS_MAX];
  uint32_t n_before = list_threads(before);
  assert_int_equal(weft_thread_pool_open(4, &pool, NULL), WEFT_OK);
  const workers w = list_workers(before, n_before);
  assert_int_equal(w.n, 3);
  for (uint32_t i = 0; i < 20; i++) {
    (void)wait_for_sleep(&w);
    check_run(pool, 50);
  }
  uint64_t first, second = wait_for_sleep(&w);
  do {
    first = second;
    (void)usleep(100000);
    second = wait_for_sleep(&w);
  } while (second != first);
  weft_thread_pool_close(pool);
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
  weft_thread_pool *pool = NULL;
  chain c = {{0}};
  assert_int_equal(weft_thread_pool_open(3, &pool, NULL), WEFT_OK);
  for (uint32_t i = 0; i < 20000; i++) weft_thread_pool_run(pool, add, &c, 5);
  for (uint32_t i = 0; i < 5; i++) assert_int_equal(c.sum[i], 20000u * (i + 1));
  weft_thread_pool_close(pool);
}

static void test_refused_memory(void **state) {
  (void)state;
  weft_thread_pool *pool = NULL;
  weft_error error = {{0}};
  (void)weft_memory_fail_at(1);
  weft_status status = weft_thread_pool_open(2, &pool, &error);
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
