/* SPDX-License-Identifier: MIT */
/* soft: soft[r] = scale * softmax(logits[r] / temperature[r]) W. For rows of canvases, where products have 8 bits, the
 * weights of tokens are integers of 8 bits relative to the largest of their chunk, and so are the numbers of W, with a
 * step for 256 tokens of a column. */
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

/* sum += the products of a span's tokens: weight[v] times the integers of rows [first, first + n) of W, and `scale`. */
static void add_span(const weft_weight *w, uint32_t first, uint32_t n, const int32_t *weight, double scale, double *sum,
                     float *rows) {
  for (uint32_t v = 0; v < n; v++) ref_weight_row(w, 0, first + v, rows + (uint64_t)v * w->n_in);
  for (uint32_t i = 0; i < w->n_in; i++) {
    float most = 0.0f;
    for (uint32_t v = 0; v < n; v++) most = fmaxf(most, fabsf(rows[(uint64_t)v * w->n_in + i]));
    if (most < 0x1p-100f) continue;
    float inverse = 127.0f / most, step = most / 127.0f;
    int32_t total = 0;
    for (uint32_t v = 0; v < n; v++) total += weight[v] * (int32_t)lrintf(rows[(uint64_t)v * w->n_in + i] * inverse);
    sum[i] += (double)total * (double)step * scale;
  }
}

/* The largest allowed logit of tokens [first, end). */
static double find_largest(const float *logits, const uint32_t *allowed, uint32_t first, uint32_t end) {
  double most = -INFINITY;
  for (uint32_t v = first; v < end; v++)
    if (ref_is_allowed(allowed, v)) most = fmax(most, (double)logits[v]);
  return most;
}

static void soft_row_of_integers(const weft_weight *w, const float *logits, const uint32_t *allowed, double temperature,
                                 float scale, double *sum, float *rows, float *soft) {
  double total = 0.0, row_most = find_largest(logits, allowed, 0, w->n_out);
  memset(sum, 0, w->n_in * sizeof *sum);
  for (uint32_t chunk = 0; chunk < w->n_out; chunk += WEFT_VOCAB_CHUNK) {
    uint32_t end = w->n_out - chunk < WEFT_VOCAB_CHUNK ? w->n_out : chunk + WEFT_VOCAB_CHUNK;
    double most = find_largest(logits, allowed, chunk, end), down = exp((most - row_most) / temperature);
    for (uint32_t first = chunk; first < end && !isinf(most); first += REF_SPAN) {
      uint32_t n = end - first < REF_SPAN ? end - first : REF_SPAN;
      int32_t weight[REF_SPAN];
      for (uint32_t v = 0; v < n; v++) {
        bool is = ref_is_allowed(allowed, first + v);
        double e = is ? exp(((double)logits[first + v] - most) / temperature) : 0.0;
        weight[v] = (int32_t)lrint(255.0 * e);
        total += e * down;
      }
      add_span(w, first, n, weight, down, sum, rows);
    }
  }
  for (uint32_t i = 0; i < w->n_in; i++) soft[i] = (float)((double)scale * sum[i] / (255.0 * total));
}

void ref_soft_row(const weft_weight *weight, const float *logits, const uint32_t *allowed, float temperature,
                  float scale, double *sum, float *row, float *soft) {
  double max = -INFINITY, total = 0.0;
  if (weight->layout == REF_EIGHT) {
    soft_row_of_integers(weight, logits, allowed, (double)temperature, scale, sum, row, soft);
    return;
  }
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

uint64_t ref_soft_row_floats(const weft_weight *weight) {
  return (uint64_t)weight->n_in * (weight->layout == REF_EIGHT ? REF_SPAN : REF_SIDE);
}

uint64_t ref_soft_scratch(weft_device *device, const weft_soft_args *args) {
  (void)device;
  return (uint64_t)args->weight->n_in * sizeof(double) + ref_soft_row_floats(args->weight) * sizeof(float);
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
