/* SPDX-License-Identifier: MIT */
/* classes, row by row. The cpu backend deals the rows out to threads and uses the same computation. */
#include "kernels/classes.h"

#include <math.h>

#include "kernels/ref/ref.h"

static void find_class(const weft_classes_args *a, uint32_t row, uint32_t which) {
  const float *logits = a->logits + row * a->logits_stride;
  const float temperature = a->temperature[row];
  const uint32_t first = a->at[which], end = a->at[which + 1];
  uint64_t out = (uint64_t)row * a->n_classes + which;
  int32_t best = -1;
  for (uint32_t i = first; i < end; i++) {
    int32_t token = a->token[i];
    if (!ref_is_allowed(a->allowed, (uint32_t)token) || !isfinite(logits[token])) continue;
    if (best < 0 || logits[token] > logits[best]) best = token;
  }
  a->best[out] = best >= 0 ? best : first < end ? a->token[first] : -1;
  a->log_sum[out] = WEFT_CLASSES_NONE;
  if (best < 0) return;
  const float most = logits[best] / temperature;
  double sum = 0.0;
  for (uint32_t i = first; i < end; i++) {
    int32_t token = a->token[i];
    if (!ref_is_allowed(a->allowed, (uint32_t)token) || !isfinite(logits[token])) continue;
    sum += (double)expf(logits[token] / temperature - most);
  }
  if (isfinite(most)) a->log_sum[out] = (float)((double)most + log(sum));
}

void weft_classes_of_row(const weft_classes_args *args, uint32_t row) {
  for (uint32_t c = 0; c < args->n_classes; c++) find_class(args, row, c);
}

weft_status ref_classes(weft_device *device, const weft_classes_args *args) {
  (void)device;
  for (uint32_t r = 0; r < args->n_rows; r++) weft_classes_of_row(args, r);
  return WEFT_OK;
}
