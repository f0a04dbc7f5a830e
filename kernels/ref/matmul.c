/* SPDX-License-Identifier: MIT */
/* matmul: y[i] = x W[i]^T with the dequantised weight and the f32 input, summed in double, times the weight's scale. */
#include "kernels/ref/ref.h"
#include "kernels/parts.h"

uint64_t ref_matmul_scratch(weft_device *device, const weft_matmul_args *args) {
  (void)device;
  return (uint64_t)args->weight[0]->n_in * sizeof(float); /* one weight row */
}

/* Output `out` of all rows; row: its weights. */
static void multiply_rows(const weft_matmul_args *args, uint32_t w, uint32_t out, const float *row) {
  const weft_weight *weight = args->weight[w];
  float *y = args->y[w] + out;
  double scale = ref_scale(weight, 0);
  uint32_t r = 0;
  for (; r + 4 <= args->n_rows; r += 4) { /* four rows at once: the sum of one waits for each number it adds */
    double sum[4];
    ref_dot_four(args->x + r * args->x_stride, args->x_stride, row, weight->n_in, sum);
    for (uint32_t i = 0; i < 4; i++) y[(r + i) * args->y_stride[w]] = (float)(sum[i] * scale);
  }
  for (; r < args->n_rows; r++)
    y[r * args->y_stride[w]] = (float)(ref_dot(args->x + r * args->x_stride, row, weight->n_in) * scale);
}

/* The same in 8 bits: the weight's integers are made once for all rows. */
static void multiply_eight(const weft_matmul_args *args, uint32_t w, uint32_t out, const float *row) {
  const weft_weight *weight = args->weight[w];
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
  float *row = args->scratch;
  for (uint32_t w = 0; w < args->n_weights; w++) {
    const weft_weight *weight = args->weight[w];
    for (uint32_t out = 0; out < weight->n_out; out++) {
      ref_weight_row(weight, 0, out, row);
      (weight->layout == REF_EIGHT ? multiply_eight : multiply_rows)(args, w, out, row);
    }
  }
  if (args->activation == 0) return WEFT_OK;
  const weft_gate_args gate = parts_matmul_gate(args);
  return ref_gate(device, &gate);
}
