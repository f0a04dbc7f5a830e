/* SPDX-License-Identifier: MIT */
/* A pool of threads that run the tasks of one op.
 *
 * Law: weft_thread_pool_run returns when every task has run. The caller is thread 0 and takes tasks too, so a pool of
 * one thread has no workers. Tasks are handed out in ascending order through one counter. Which thread runs a task is
 * not defined, so a task's result must depend on the task alone (the thread number only picks scratch). A worker that
 * wakes late takes no part in a run, and a run does not wait for workers that took no task. Runs of one pool come from
 * one thread at a time and do not nest. No memory is allocated after open. Workers spin for some tens of microseconds
 * after a run, then sleep: an idle pool uses no processor time. */
#ifndef WEFT_KERNELS_CPU_THREAD_POOL_H
#define WEFT_KERNELS_CPU_THREAD_POOL_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_thread_pool weft_thread_pool;

/* A task: task is in [0, n_tasks), thread in [0, weft_thread_pool_size). */
typedef void (*weft_thread_pool_fn)(void *arg, uint32_t task, uint32_t thread);

enum { WEFT_THREAD_POOL_MAX = 256 };

/* n_threads counts the caller; 0 means all cores that this process may use. When the pool spans all of them, each
 * worker is pinned to a core; the threads of a smaller pool are placed by the system. The caller owns *out and closes
 * it. */
weft_status weft_thread_pool_open(uint32_t n_threads, weft_thread_pool **out, weft_error *error);
void weft_thread_pool_close(weft_thread_pool *pool);
uint32_t weft_thread_pool_size(const weft_thread_pool *pool);
void weft_thread_pool_run(weft_thread_pool *pool, weft_thread_pool_fn fn, void *arg, uint32_t n_tasks);

/* Cores this process may use, at least 1. */
uint32_t weft_thread_pool_cores(void);

#ifdef __cplusplus
}
#endif
#endif
