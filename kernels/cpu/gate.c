/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/rows.h"

typedef struct gate_run {
  const weft_gate_args *args;
  const cpu_rows *rows;
} gate_run;

static void gate_rows(void *arg, uint32_t first, uint32_t end) {
  const gate_run *run = arg;
  const weft_gate_args *args = run->args;
  for (uint64_t r = first; r < end; r++) {
    run->rows->gate(args->activation, args->g + r * args->g_stride, args->u + r * args->u_stride,
                    args->y + r * args->y_stride, args->n_cols);
  }
}

weft_status cpu_gate(weft_device *device, const weft_gate_args *args) {
  gate_run run = {.args = args, .rows = cpu_rows_of(device)};
  cpu_for_rows(device, args->n_rows, args->n_cols, gate_rows, &run);
  return WEFT_OK;
}
