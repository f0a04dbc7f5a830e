/* SPDX-License-Identifier: MIT */
/* head_rows and head_part: logits of whole rows, capped, and of a range of tokens, not capped. */
#include "kernels/ref/ref.h"

#include <math.h>

void ref_head_products(const weft_weight *weight, uint32_t first, uint32_t n, const float *h, float *rows, float *y) {
  for (uint32_t v = 0; v < n; v += REF_SIDE) {
    uint32_t now = n - v < REF_SIDE ? n - v : REF_SIDE;
    double sum[REF_SIDE];
    ref_row_products(weight, 0, first + v, now, h, rows, sum);
    for (uint32_t k = 0; k < now; k++) y[v + k] = (float)sum[k];
  }
}

bool ref_cap_row(float *logits, uint32_t n, float cap) {
  bool bad = false;
  for (uint32_t v = 0; v < n; v++) {
    bad = bad || !isfinite(logits[v]); /* before the cap, which would hide an infinity */
    if (cap != 0.0f) logits[v] = (float)((double)cap * tanh((double)logits[v] / (double)cap));
  }
  return bad;
}

bool ref_logits_row(const weft_weight *weight, const float *h, float cap, float *rows, float *logits) {
  ref_head_products(weight, 0, weight->n_out, h, rows, logits);
  return ref_cap_row(logits, weight->n_out, cap);
}

uint64_t ref_head_rows_scratch(weft_device *device, const weft_head_rows_args *args) {
  (void)device;
  return (uint64_t)args->weight->n_in * REF_SIDE * sizeof(float);
}

weft_status ref_head_rows(weft_device *device, const weft_head_rows_args *args) {
  (void)device;
  for (uint32_t r = 0; r < args->n_rows; r++) {
    float *logits = args->logits + r * args->logits_stride;
    if (args->h != NULL)
      ref_head_products(args->weight, 0, args->weight->n_out, args->h + r * args->h_stride, args->scratch, logits);
    args->bad[r] = ref_cap_row(logits, args->weight->n_out, args->cap) ? 1 : 0;
  }
  return WEFT_OK;
}

uint64_t ref_head_part_scratch(weft_device *device, const weft_head_part_args *args) {
  (void)device;
  return (uint64_t)args->weight->n_in * REF_SIDE * sizeof(float);
}

/* Chunks are left alone: join reads logits. */
weft_status ref_head_part(weft_device *device, const weft_head_part_args *args) {
  (void)device;
  for (uint32_t r = 0; r < args->n_rows; r++) {
    ref_head_products(args->weight, args->first, args->n_tokens, args->h + r * args->h_stride, args->scratch,
                      args->logits + r * args->logits_stride);
  }
  return WEFT_OK;
}
