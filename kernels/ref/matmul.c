/* SPDX-License-Identifier: MIT */
/* matmul: y[i] = x W[i]^T with the dequantised weight and the f32 input, summed in double, times the weight's scale. */
#include "kernels/ref/ref.h"
#include "kernels/parts.h"

uint64_t ref_matmul_scratch(weft_device *device, const weft_matmul_args *args) {
  (void)device;
  return (uint64_t)args->weight[0]->n_in * REF_SIDE *
         (sizeof(double) + sizeof(float)); /* rows side by side, and as they are */
}

/* Outputs [first, first + n) of all rows. */
static void multiply_rows(const weft_matmul_args *args, uint32_t w, uint32_t first, uint32_t n, double *side,
                          float *rows) {
  const weft_weight *weight = args->weight[w];
  double scale = ref_scale(weight, 0), sum[REF_SIDE];
  ref_side_rows(weight, 0, first, n, rows, side);
  for (uint32_t r = 0; r < args->n_rows; r++) {
    float *y = args->y[w] + r * args->y_stride[w] + first;
    ref_side_dots(args->x + r * args->x_stride, side, weight->n_in, sum);
    for (uint32_t k = 0; k < n; k++) y[k] = (float)(sum[k] * scale);
  }
}

/* The same in 8 bits: the weight's integers are made once for all rows. */
static void multiply_eight(const weft_matmul_args *args, uint32_t w, uint32_t out, float *row) {
  const weft_weight *weight = args->weight[w];
  ref_weight_row(weight, 0, out, row);
  float *y = args->y[w] + out;
  uint64_t stride = args->y_stride[w];
  int32_t codes[REF_SPAN];
  for (uint32_t r = 0; r < args->n_rows; r++) y[r * stride] = 0.0f;
  for (uint32_t first = 0; first < weight->n_in; first += REF_SPAN) {
    uint32_t n = weight->n_in - first < REF_SPAN ? weight->n_in - first : REF_SPAN;
    float step = ref_w8a8_span(weight, 0, out, first, row, codes);
    for (uint32_t r = 0; r < args->n_rows; r++)
      y[r * stride] = ref_w8a8_add(codes, step, args->x + r * args->x_stride + first, n, y[r * stride]);
  }
  for (uint32_t r = 0; r < args->n_rows; r++) y[r * stride] = (float)((double)y[r * stride] * ref_scale(weight, 0));
}

weft_status ref_matmul(weft_device *device, const weft_matmul_args *args) {
  double *side = args->scratch;
  float *row = (float *)(side + (uint64_t)REF_SIDE * args->weight[0]->n_in);
  for (uint32_t w = 0; w < args->n_weights; w++) {
    const weft_weight *weight = args->weight[w];
    if (weight->layout == REF_EIGHT) {
      for (uint32_t out = 0; out < weight->n_out; out++) multiply_eight(args, w, out, row);
      continue;
    }
    for (uint32_t out = 0; out < weight->n_out; out += REF_SIDE)
      multiply_rows(args, w, out, weight->n_out - out < REF_SIDE ? weight->n_out - out : REF_SIDE, side, row);
  }
  if (args->activation == 0) return WEFT_OK;
  const weft_gate_args gate = parts_matmul_gate(args);
  return ref_gate(device, &gate);
}
