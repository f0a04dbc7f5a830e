/* SPDX-License-Identifier: MIT */
/* How a run goes. One 64-bit ticket says which run is on and which task comes next:
 *
 *   ticket = run << 32 | next task        a thread takes task i by changing (run, i) to (run, i + 1)
 *
 * The ticket is closed (no task is left to take) before the fields of a new run are written, and a thread reads the
 * fields before it takes a ticket: a ticket that was taken proves that the fields were those of its run. A worker that
 * wakes late still holds an old ticket, cannot change it, and takes no part. The caller waits until n_done counts all
 * tasks; workers wait for the number of the run to change. Both spin first, then sleep on a futex. */
#include "kernels/cpu/thread_pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"
#include "base/memory.h"
#include "base/pause.h"
#include "base/threads.h"

enum {
  POOL_LINE = 64,
  POOL_SPINS = 2000 /* pauses of 15 to 45 ns: some tens of microseconds */
};

static const uint64_t POOL_CLOSED = UINT32_MAX; /* as next task: none is left */

typedef struct pool_worker {
  pthread_t thread;
  struct weft_thread_pool *pool;
  uint32_t index; /* 1 ... */
} pool_worker;

struct weft_thread_pool {
  /* Read by all, written once per run. */
  _Alignas(POOL_LINE) _Atomic(weft_thread_pool_fn) fn;
  _Atomic(void *) arg;
  _Atomic uint32_t n_tasks;
  _Atomic uint32_t run; /* workers sleep on it */
  _Atomic bool closing;
  _Alignas(POOL_LINE) _Atomic uint64_t ticket;
  _Alignas(POOL_LINE) _Atomic uint32_t n_done; /* the caller sleeps on it */
  _Atomic bool caller_sleeps;
  _Alignas(POOL_LINE) _Atomic uint32_t n_sleeping;
  uint32_t n_started; /* workers */
  pool_worker worker[WEFT_THREAD_POOL_MAX];
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen) {
  (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0); /* may return early; callers loop */
}

static void futex_wake(_Atomic uint32_t *word, uint32_t n) {
  (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* Takes tasks of the run that is on until none is left. */
static void take_tasks(weft_thread_pool *pool, uint32_t thread) {
  uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
  for (;;) {
    weft_thread_pool_fn fn = atomic_load_explicit(&pool->fn, memory_order_acquire);
    void *arg = atomic_load_explicit(&pool->arg, memory_order_acquire);
    uint32_t n_tasks = atomic_load_explicit(&pool->n_tasks, memory_order_acquire);
    uint32_t task = (uint32_t)ticket;
    if (task >= n_tasks) return;
    if (!atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket + 1, memory_order_acq_rel,
                                               memory_order_acquire)) {
      continue;
    }
    fn(arg, task, thread);
    uint32_t n_done = atomic_fetch_add(&pool->n_done, 1) + 1;
    if (n_done == n_tasks && thread != 0 && atomic_load(&pool->caller_sleeps)) futex_wake(&pool->n_done, 1);
    ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
  }
}

static void worker_wait(weft_thread_pool *pool, uint32_t seen) {
  for (uint32_t i = 0; i < POOL_SPINS; i++) {
    if (atomic_load_explicit(&pool->run, memory_order_acquire) != seen) return;
    weft_pause();
  }
  atomic_fetch_add(&pool->n_sleeping, 1);
  while (atomic_load(&pool->run) == seen) futex_wait(&pool->run, seen);
  atomic_fetch_sub(&pool->n_sleeping, 1);
}

static void *worker_main(void *arg) {
  pool_worker *worker = arg;
  weft_thread_pool *pool = worker->pool;
  uint32_t seen = 0;
  while (!atomic_load(&pool->closing)) {
    take_tasks(pool, worker->index);
    worker_wait(pool, seen);
    seen = atomic_load(&pool->run);
  }
  return NULL;
}

static void caller_wait(weft_thread_pool *pool, uint32_t n_tasks) {
  for (uint32_t i = 0; i < POOL_SPINS; i++) {
    if (atomic_load_explicit(&pool->n_done, memory_order_acquire) == n_tasks) return;
    weft_pause();
  }
  atomic_store(&pool->caller_sleeps, true);
  for (;;) {
    uint32_t n_done = atomic_load(&pool->n_done);
    if (n_done == n_tasks) break;
    futex_wait(&pool->n_done, n_done);
  }
  atomic_store(&pool->caller_sleeps, false);
}

static void start_run(weft_thread_pool *pool, weft_thread_pool_fn fn, void *arg, uint32_t n_tasks) {
  uint32_t run = atomic_load_explicit(&pool->run, memory_order_relaxed) + 1;
  atomic_store(&pool->ticket, (uint64_t)run << 32 | POOL_CLOSED);
  atomic_store_explicit(&pool->fn, fn, memory_order_release);
  atomic_store_explicit(&pool->arg, arg, memory_order_release);
  atomic_store_explicit(&pool->n_tasks, n_tasks, memory_order_release);
  atomic_store_explicit(&pool->n_done, 0, memory_order_relaxed);
  atomic_store_explicit(&pool->ticket, (uint64_t)run << 32, memory_order_release);
  atomic_store(&pool->run, run);
  if (atomic_load(&pool->n_sleeping) > 0) futex_wake(&pool->run, pool->n_started);
}

void weft_thread_pool_run(weft_thread_pool *pool, weft_thread_pool_fn fn, void *arg, uint32_t n_tasks) {
  if (n_tasks <= 1 || pool->n_started == 0) {
    for (uint32_t task = 0; task < n_tasks; task++) fn(arg, task, 0);
    return;
  }
  start_run(pool, fn, arg, n_tasks);
  take_tasks(pool, 0);
  caller_wait(pool, n_tasks);
}

uint32_t weft_thread_pool_size(const weft_thread_pool *pool) {
  return pool->n_started + 1;
}

/* ---- opening and closing ---- */

uint32_t weft_thread_pool_cores(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    int n = CPU_COUNT(&set);
    if (n > 0) return (uint32_t)n;
  }
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? (uint32_t)n : 1;
}

/* Pins worker i to the i-th core of the process. The caller is not pinned, since it belongs to the program. */
static void pin_worker(const pool_worker *worker) {
  cpu_set_t all, one;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return;
  uint32_t n = 0;
  for (int core = 0; core < CPU_SETSIZE; core++) {
    if (!CPU_ISSET(core, &all) || n++ != worker->index) continue;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    (void)pthread_setaffinity_np(worker->thread, sizeof one, &one); /* a hint: unpinned also works */
    return;
  }
}

weft_status weft_thread_pool_open(uint32_t n_threads, weft_thread_pool **out, weft_error *error) {
  uint32_t n_cores = weft_thread_pool_cores();
  if (n_threads == 0) n_threads = n_cores;
  if (n_threads > WEFT_THREAD_POOL_MAX) n_threads = WEFT_THREAD_POOL_MAX;
  weft_thread_pool *pool = weft_alloc_aligned(sizeof *pool, POOL_LINE);
  if (pool == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "out of memory: the thread pool");
  memset(pool, 0, sizeof *pool);
  for (uint32_t i = 1; i < n_threads; i++) {
    pool_worker *worker = &pool->worker[i - 1];
    *worker = (pool_worker){.pool = pool, .index = i};
    weft_error why = {{0}};
    weft_status status = weft_threads_start(&worker->thread, worker_main, worker, &why);
    if (status != WEFT_OK) {
      weft_thread_pool_close(pool);
      return weft_fail(error, status, "thread %u of %u was refused: %s", i + 1, n_threads, why.text);
    }
    pool->n_started += 1;
    if (n_threads == n_cores) pin_worker(worker);
  }
  *out = pool;
  return WEFT_OK;
}

void weft_thread_pool_close(weft_thread_pool *pool) {
  if (pool == NULL) return;
  atomic_store(&pool->closing, true);
  start_run(pool, NULL, NULL, 0);
  for (uint32_t i = 0; i < pool->n_started; i++) {
    int refused = pthread_join(pool->worker[i].thread, NULL);
    WEFT_CHECK(refused == 0);
  }
  weft_free(pool);
}
