/* SPDX-License-Identifier: MIT */
/* norm: y = (add + rms(x + x2) * weight) * row_scale. x + x2 is an f32 sum; everything else is double until y. Where
 * args->plain is set, x + x2 is not normed. Norms before and after are made as calls of their own. */
#include "kernels/ref/ref.h"

#include <math.h>

static float norm_summand(const float *x, const float *x2, uint32_t i) {
  return x2 == NULL ? x[i] : x[i] + x2[i];
}

static double rms_factor(const float *x, const float *x2, uint32_t n, float eps) {
  double sum = 0.0;
  for (uint32_t i = 0; i < n; i++) sum += (double)norm_summand(x, x2, i) * (double)norm_summand(x, x2, i);
  return 1.0 / sqrt(sum / n + (double)eps);
}

static void norm_rows(const weft_norm_args *args) {
  uint32_t n = args->n_cols;
  for (uint32_t r = 0; r < args->n_rows; r++) {
    const float *x = args->x + r * args->x_stride;
    const float *x2 = args->x2 == NULL ? NULL : args->x2 + r * args->x2_stride;
    const float *add = args->add == NULL ? NULL : args->add + r * args->add_stride;
    float *y = args->y + r * args->y_stride;
    double factor = args->plain ? 1.0 : rms_factor(x, x2, n, args->eps);
    double row_scale = args->row_scale == NULL ? 1.0 : (double)args->row_scale[r];
    for (uint32_t i = 0; i < n; i++) {
      double value = (double)norm_summand(x, x2, i) * factor;
      if (args->weight != NULL) value *= (double)args->weight[i];
      if (add != NULL) value += (double)add[i];
      y[i] = (float)(value * row_scale);
    }
  }
}

static void plain_norm(const weft_norm_args *of, float *x, uint64_t x_stride, const float *weight, float *y,
                       uint64_t y_stride) {
  weft_norm_args args = {.x = x,
                         .weight = weight,
                         .y = y,
                         .n_rows = of->n_rows,
                         .n_cols = of->n_cols,
                         .x_stride = x_stride,
                         .y_stride = y_stride,
                         .eps = of->eps};
  norm_rows(&args);
}

weft_status ref_norm(weft_device *device, const weft_norm_args *args) {
  (void)device;
  if (args->x_weight != NULL) plain_norm(args, args->x, args->x_stride, args->x_weight, args->x, args->x_stride);
  if (args->x2 != NULL && args->x2_weight != NULL)
    plain_norm(args, args->x2, args->x2_stride, args->x2_weight, args->x2, args->x2_stride);
  norm_rows(args);
  for (uint32_t i = 0; i < args->n_then; i++)
    plain_norm(args, args->y, args->y_stride, args->then_weight[i], args->then[i], args->y_stride);
  return WEFT_OK;
}
