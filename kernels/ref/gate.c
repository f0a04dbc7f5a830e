/* SPDX-License-Identifier: MIT */
/* gate: y = act(g) * u, or the clamped gate of both. */
#include "kernels/ref/ref.h"

weft_status ref_gate(weft_device *device, const weft_gate_args *args) {
  (void)device;
  for (uint32_t r = 0; r < args->n_rows; r++) {
    const float *g = args->g + r * args->g_stride;
    const float *u = args->u + r * args->u_stride;
    float *y = args->y + r * args->y_stride;
    for (uint32_t i = 0; i < args->n_cols; i++) {
      y[i] = (float)ref_gated(args->activation, (double)args->limit, (double)g[args->one_g ? 0 : i], (double)u[i]);
    }
  }
  return WEFT_OK;
}
