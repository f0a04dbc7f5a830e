/* SPDX-License-Identifier: MIT */
/* classes: a task is a row, computed by weft_classes_of_row (kernels/ref/classes.c). */
#include "kernels/cpu/cpu.h"

static void row_task(void *arg, uint32_t row, uint32_t thread) {
  (void)thread;
  weft_classes_of_row(arg, row);
}

weft_status cpu_classes(weft_device *device, const weft_classes_args *args) {
  weft_classes_args run = *args;
  weft_thread_pool_run(cpu_thread_pool(device), row_task, &run, args->n_rows);
  return WEFT_OK;
}
