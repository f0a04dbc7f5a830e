/* SPDX-License-Identifier: MIT */
/* norm: y = (add + rms(x + x2) * weight) * row_scale. x + x2 is an f32 sum; the rest is double
 * until y. */
#include "kernels/ref/ref.h"

#include <math.h>

static float summand(const float *x, const float *x2, uint32_t i) {
  return x2 == NULL ? x[i] : x[i] + x2[i];
}

weft_status weft_ref_norm(weft_device *device, const weft_norm_args *args) {
  (void)device;
  uint32_t n = args->n_cols;
  for (uint32_t r = 0; r < args->n_rows; r++) {
    const float *x = args->x + r * args->x_stride;
    const float *x2 = args->x2 == NULL ? NULL : args->x2 + r * args->x2_stride;
    const float *add = args->add == NULL ? NULL : args->add + r * args->add_stride;
    float *y = args->y + r * args->y_stride;
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++) sum += (double)summand(x, x2, i) * (double)summand(x, x2, i);
    double factor = 1.0 / sqrt(sum / n + (double)args->eps);
    double row_scale = args->row_scale == NULL ? 1.0 : (double)args->row_scale[r];
    for (uint32_t i = 0; i < n; i++) {
      double value = (double)summand(x, x2, i) * factor;
      if (args->weight != NULL) value *= (double)args->weight[i];
      if (add != NULL) value += (double)add[i];
      y[i] = (float)(value * row_scale);
    }
  }
  return WEFT_OK;
}
