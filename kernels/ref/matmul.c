/* SPDX-License-Identifier: MIT */
/* matmul: y[i] = x W[i]^T with the dequantised weight and the f32 input, summed in double, times the weight's scale. */
#include "kernels/ref/ref.h"
#include "kernels/parts.h"

uint64_t ref_matmul_scratch(weft_device *device, const weft_matmul_args *args) {
  (void)device;
  return (uint64_t)args->weight[0]->n_in * sizeof(float); /* one weight row */
}

weft_status ref_matmul(weft_device *device, const weft_matmul_args *args) {
  float *row = args->scratch;
  for (uint32_t w = 0; w < args->n_weights; w++) {
    const weft_weight *weight = args->weight[w];
    for (uint32_t out = 0; out < weight->n_out; out++) {
      bool eight = weight->layout == REF_EIGHT;
      if (!eight) ref_weight_row(weight, 0, out, row);
      for (uint32_t r = 0; r < args->n_rows; r++) {
        const float *x = args->x + r * args->x_stride;
        float *y = &args->y[w][r * args->y_stride[w] + out];
        double sum = eight ? (double)ref_w8a8_dot(weight, 0, out, x, row) : ref_dot(x, row, weight->n_in);
        *y = (float)(sum * ref_scale(weight, 0));
      }
    }
  }
  if (args->activation == 0) return WEFT_OK;
  const weft_gate_args gate = parts_matmul_gate(args);
  return ref_gate(device, &gate);
}
