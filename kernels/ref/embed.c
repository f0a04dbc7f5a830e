/* SPDX-License-Identifier: MIT */
/* embed: y[r] = scale * row tokens[r] of weight, one f32 product per element. */
#include "kernels/ref/ref.h"
#include "kernels/parts.h"

weft_status ref_embed(weft_device *device, const weft_embed_args *args) {
  (void)device;
  const weft_weight *weight = args->weight;
  for (uint32_t r = 0; r < args->n_rows; r++) {
    int32_t token = args->tokens[r];
    if (token < 0 || (uint32_t)token >= weight->n_out) {
      return parts_refuse_row("embed", r, "has a token that the weight has no row for");
    }
    float *y = args->y + r * args->y_stride;
    ref_weight_row(weight, 0, (uint32_t)token, y);
    for (uint32_t i = 0; i < weight->n_in; i++) y[i] *= args->scale;
  }
  return WEFT_OK;
}
