/* SPDX-License-Identifier: MIT */
/* soft: soft[r] = scale * softmax(logits[r] / temperature[r]) W. */
#include "kernels/ref/ref.h"

#include <math.h>

void ref_soft_row(const weft_weight *weight, const float *logits, const uint32_t *allowed, float temperature,
                  float scale, double *sum, float *row, float *soft) {
  double max = -INFINITY, total = 0.0;
  for (uint32_t v = 0; v < weight->n_out; v++) {
    double z = (double)logits[v] / (double)temperature;
    if (ref_is_allowed(allowed, v) && z > max) max = z;
  }
  for (uint32_t i = 0; i < weight->n_in; i++) sum[i] = 0.0;
  for (uint32_t v = 0; v < weight->n_out; v++) {
    if (!ref_is_allowed(allowed, v)) continue;
    double e = exp((double)logits[v] / (double)temperature - max);
    ref_weight_row(weight, 0, v, row);
    total += e;
    for (uint32_t i = 0; i < weight->n_in; i++) sum[i] += e * (double)row[i];
  }
  for (uint32_t i = 0; i < weight->n_in; i++) soft[i] = (float)((double)scale * sum[i] / total);
}

uint64_t ref_soft_scratch(weft_device *device, const weft_soft_args *args) {
  (void)device;
  return (uint64_t)args->weight->n_in * (sizeof(double) + sizeof(float));
}

weft_status ref_soft(weft_device *device, const weft_soft_args *args) {
  (void)device;
  double *sum = args->scratch;
  float *row = (float *)(sum + args->weight->n_in);
  for (uint32_t r = 0; r < args->n_rows; r++) {
    ref_soft_row(args->weight, args->logits + r * args->logits_stride, NULL, args->temperature[r], args->scale, sum,
                 row, args->soft + r * args->soft_stride);
  }
  return WEFT_OK;
}
