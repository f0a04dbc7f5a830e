/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/rows.h"

typedef struct norm_run {
  const weft_norm_args *args;
  const cpu_rows *rows;
} norm_run;

static void plain_row(const norm_run *run, const float *x, const float *weight, float *y) {
  const cpu_norm_row row = {
      .x = x, .weight = weight, .y = y, .row_scale = 1.0f, .eps = run->args->eps, .n = run->args->n_cols};
  run->rows->norm(&row);
}

static void norm_rows(void *arg, uint32_t first, uint32_t end) {
  const norm_run *run = arg;
  const weft_norm_args *args = run->args;
  for (uint64_t r = first; r < end; r++) {
    float *x = args->x + r * args->x_stride, *x2 = args->x2 == NULL ? NULL : args->x2 + r * args->x2_stride;
    float *y = args->y + r * args->y_stride;
    if (args->x_weight != NULL) plain_row(run, x, args->x_weight, x);
    if (x2 != NULL && args->x2_weight != NULL) plain_row(run, x2, args->x2_weight, x2);
    const cpu_norm_row row = {
        .x = x,
        .x2 = x2,
        .weight = args->weight,
        .add = args->add == NULL ? NULL : args->add + r * args->add_stride,
        .y = y,
        .row_scale = args->row_scale == NULL ? 1.0f : args->row_scale[r],
        .eps = args->eps,
        .plain = args->plain,
        .n = args->n_cols,
    };
    run->rows->norm(&row);
    for (uint32_t i = 0; i < args->n_then; i++)
      plain_row(run, y, args->then_weight[i], args->then[i] + r * args->y_stride);
  }
}

weft_status cpu_norm(weft_device *device, const weft_norm_args *args) {
  norm_run run = {.args = args, .rows = cpu_rows_of(device)};
  cpu_for_rows(device, args->n_rows, args->n_cols / 4 * (1 + args->n_then), norm_rows, &run);
  return WEFT_OK;
}
