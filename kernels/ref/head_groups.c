/* SPDX-License-Identifier: MIT */
/* head_groups: one sum of doubles for each token of the groups. */
#include "kernels/ref/ref.h"

#include <math.h>

#include "kernels/parts.h"

uint64_t ref_head_groups_scratch(weft_device *device, const weft_head_groups_args *args) {
  (void)device;
  return (uint64_t)args->weight->n_in * sizeof(float);
}

weft_status ref_head_groups(weft_device *device, const weft_head_groups_args *args) {
  (void)device;
  const weft_weight *weight = args->weight;
  for (uint32_t r = 0; r < args->n_rows; r++) {
    float *logits = args->logits + r * args->logits_stride;
    if (!parts_groups_exist(args, r)) return parts_refuse_row("head_groups", r, PARTS_NO_GROUP);
    for (uint32_t v = 0; v < weight->n_out; v++) logits[v] = -INFINITY;
    for (uint64_t i = 0; i < (uint64_t)args->k * args->size; i++) {
      int32_t token = parts_group_token(args, r, i);
      ref_weight_row(weight, 0, (uint32_t)token, args->scratch);
      logits[token] = (float)ref_dot(args->h + r * args->h_stride, args->scratch, weight->n_in);
    }
  }
  return WEFT_OK;
}
