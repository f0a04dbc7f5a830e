/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/rows.h"

enum {
  ROWS_INLINE_COST = 20000, /* below this a run of the pool costs more than it saves */
  ROWS_TASKS_PER_THREAD = 4 /* small parts, so that others soon finish what a delayed thread leaves */
};

const cpu_rows *cpu_rows_of(const weft_device *device) {
  return CPU_CODE_OF(cpu_get_isa(device), cpu_rows);
}

typedef struct rows_run {
  cpu_rows_fn fn;
  void *arg;
  uint32_t n_rows, n_tasks;
} rows_run;

static void run_task(void *arg, uint32_t task, uint32_t thread) {
  (void)thread;
  const rows_run *run = arg;
  uint32_t first = (uint32_t)((uint64_t)run->n_rows * task / run->n_tasks);
  uint32_t end = (uint32_t)((uint64_t)run->n_rows * (task + 1) / run->n_tasks);
  run->fn(run->arg, first, end);
}

void cpu_for_rows(weft_device *device, uint32_t n_rows, uint64_t row_cost, cpu_rows_fn fn, void *arg) {
  weft_thread_pool *pool = cpu_thread_pool(device);
  if (weft_thread_pool_size(pool) == 1 || n_rows < 2 || n_rows * row_cost < ROWS_INLINE_COST) {
    fn(arg, 0, n_rows);
    return;
  }
  rows_run run = {.fn = fn, .arg = arg, .n_rows = n_rows};
  run.n_tasks = weft_thread_pool_size(pool) * ROWS_TASKS_PER_THREAD;
  if (run.n_tasks > n_rows) run.n_tasks = n_rows;
  weft_thread_pool_run(pool, run_task, &run, run.n_tasks);
}
