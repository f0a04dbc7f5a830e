/* SPDX-License-Identifier: MIT */
/* head_rows: logits of whole rows, capped. */
#include "kernels/ref/ref.h"

#include <math.h>

bool ref_logits_row(const weft_weight *weight, const float *h, float cap, float *row, float *logits) {
  bool bad = false;
  for (uint32_t v = 0; v < weight->n_out; v++) {
    ref_weight_row(weight, 0, v, row);
    double logit = ref_dot(h, row, weight->n_in);
    bad = bad || !isfinite((float)logit); /* before the cap, which would hide an infinity */
    if (cap != 0.0f) logit = (double)cap * tanh(logit / (double)cap);
    logits[v] = (float)logit;
  }
  return bad;
}

uint64_t ref_head_rows_scratch(weft_device *device, const weft_head_rows_args *args) {
  (void)device;
  return (uint64_t)args->weight->n_in * sizeof(float);
}

weft_status ref_head_rows(weft_device *device, const weft_head_rows_args *args) {
  (void)device;
  for (uint32_t r = 0; r < args->n_rows; r++) {
    const float *h = args->h + r * args->h_stride;
    float *logits = args->logits + r * args->logits_stride;
    args->bad[r] = ref_logits_row(args->weight, h, args->cap, args->scratch, logits) ? 1 : 0;
  }
  return WEFT_OK;
}
