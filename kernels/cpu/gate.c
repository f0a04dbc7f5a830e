/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/rows.h"

#include <math.h>

void cpu_gate_limited(float limit, const float *g, const float *u, float *y, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    float gate = g[i] > limit ? limit : g[i], up = u[i] > limit ? limit : u[i];
    if (up < -limit) up = -limit;
    y[i] = gate / (1.0f + expf(-gate)) * up;
  }
}

typedef struct gate_run {
  const weft_gate_args *args;
  const cpu_rows *rows;
} gate_run;

static void gate_rows(void *arg, uint32_t first, uint32_t end) {
  const gate_run *run = arg;
  const weft_gate_args *args = run->args;
  for (uint64_t r = first; r < end; r++) {
    const float *g = args->g + r * args->g_stride, *u = args->u + r * args->u_stride;
    float *y = args->y + r * args->y_stride;
    if (args->limit > 0.0f)
      cpu_gate_limited(args->limit, g, u, y, args->n_cols);
    else if (args->one_g)
      run->rows->gate_by_one(g[0], u, y, args->n_cols);
    else
      run->rows->gate(args->activation, g, u, y, args->n_cols);
  }
}

weft_status cpu_gate(weft_device *device, const weft_gate_args *args) {
  gate_run run = {.args = args, .rows = cpu_rows_of(device)};
  cpu_for_rows(device, args->n_rows, args->n_cols, gate_rows, &run);
  return WEFT_OK;
}
