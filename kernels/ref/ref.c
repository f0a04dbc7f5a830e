/* SPDX-License-Identifier: MIT */
/* The reference device itself: host memory and one thread. Weights are as in the file, but for types that devices hold
 * as others. */
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/canvas_head.h"

static void ref_close(weft_device *device) {
  host_share_close(device);
  weft_free(device);
}

static weft_status ref_expect(weft_device *device, weft_weight *weight, unsigned uses, weft_error *error) {
  (void)error;
  bool eight = device->info.products == 8 && !weft_keeps_numbers(uses) && ref_w8a8_takes(weight->type);
  weight->type = weft_type_find((int32_t)weight->type)->held_as;
  weight->layout = eight ? REF_EIGHT : 0; /* the bytes are those of weight->type */
  if (eight && (uses & WEFT_USE_EMBED) != 0) weight->layout |= WEFT_LAYOUT_CANVASES;
  weight->n_bytes = (uint64_t)weight->n_mats * weight->n_out * weft_type_row_bytes(weight->type, weight->n_in);
  return WEFT_OK;
}

static weft_status ref_weight(weft_device *device, weft_weight *weight, const void *file_bytes, unsigned uses,
                              weft_error *error) {
  void *bytes = NULL;
  const weft_type stored = weight->type;
  const uint64_t n_rows = (uint64_t)weight->n_mats * weight->n_out;
  const uint64_t stored_bytes = weft_type_row_bytes(stored, weight->n_in);
  (void)ref_expect(device, weight, uses, error);
  const uint64_t held_bytes = weft_type_row_bytes(weight->type, weight->n_in);
  if (device->shares) bytes = host_share_take(device, weight->n_bytes);
  weft_status status =
      device->shares ? (bytes == NULL ? WEFT_E_NO_MEMORY : WEFT_OK) : host_alloc(device, weight->n_bytes, &bytes);
  if (status != WEFT_OK) {
    return weft_fail(error, status, "out of memory: %llu bytes for a weight", (unsigned long long)weight->n_bytes);
  }
  for (uint64_t r = 0; r < n_rows; r++) {
    const uint8_t *row = (const uint8_t *)file_bytes + r * stored_bytes;
    weft_repack_row(stored, row, (uint8_t *)bytes + r * held_bytes, weight->n_in);
  }
  weight->data = bytes;
  return WEFT_OK;
}

static void ref_weight_free(weft_device *device, weft_weight *weight) {
  if (device->shares) return; /* it stays until the device is closed */
  host_free(device, (void *)(uintptr_t)weight->data);
}

static weft_status ref_weight_unpack(weft_device *device, const weft_weight *weight, void *file_bytes) {
  (void)device;
  memcpy(file_bytes, weight->data, weight->n_bytes);
  return WEFT_OK;
}

static const device_share_calls ref_share = {HOST_SHARE, .expect = ref_expect};

static const device_calls ref_calls = {
    .close = ref_close,
    HOST_CALLS,
    .weight = ref_weight,
    .weight_free = ref_weight_free,
    .weight_unpack = ref_weight_unpack,
    .share = &ref_share,
};

static bool ref_supports(const weft_device *device, weft_type weight_type) {
  (void)device;
  return weft_type_find((int32_t)weight_type) != NULL;
}

static const char *ref_family(const weft_device *device, const char *op) {
  (void)device;
  (void)op;
  return "ref";
}

static const char *ref_numerics(const weft_device *device, weft_type weight_type) {
  return device->info.products == 8 && ref_w8a8_takes(weight_type) ? "s8x256-i32" : "f64";
}

static const weft_kernels ref_kernels = {.backend = "ref", HOST_KERNELS(ref)};

weft_status ref_device_open(const weft_device_config *config, weft_device **out, weft_error *error) {
  weft_device *device = weft_alloc(1, sizeof *device);
  if (device == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "out of memory: the ref device");
  device->calls = &ref_calls;
  device->kernels = &ref_kernels;
  device->info.backend = "ref";
  device->info.index = config->index;
  device->info.isa = "portable";
  device->info.has_eight_beside = true;
  device->info.products = device_takes_eight(config, true) ? 8 : 32;
  device->info.n_threads = 1;
  host_describe(device, config);
  weft_status status = host_share_open(device, config, error);
  if (status == WEFT_OK) *out = device;
  if (status != WEFT_OK) weft_free(device);
  return status;
}

void ref_weight_row(const weft_weight *weight, uint32_t matrix, uint32_t row, float *out) {
  uint64_t row_bytes = weft_type_row_bytes(weight->type, weight->n_in);
  const uint8_t *stored = weight->data;
  stored += ((uint64_t)matrix * weight->n_out + row) * row_bytes;
  weft_dequantise_row(weight->type, stored, out, weight->n_in);
}

double ref_dot(const float *a, const float *b, uint32_t n) {
  double sum = 0.0;
  for (uint32_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
  return sum;
}

void ref_side_rows(const weft_weight *weight, uint32_t matrix, uint32_t first, uint32_t n, float *rows, double *side) {
  const uint64_t n_in = weight->n_in;
  for (uint32_t k = 0; k < n; k++) ref_weight_row(weight, matrix, first + k, rows + k * n_in);
  memset(rows + n * n_in, 0, (REF_SIDE - n) * n_in * sizeof *rows);
  for (uint64_t i = 0; i < n_in; i++) {
    for (uint32_t k = 0; k < REF_SIDE; k++) side[i * REF_SIDE + k] = (double)rows[k * n_in + i];
  }
}

void ref_side_dots(const float *x, const double *side, uint32_t n_in, double *sum) {
  typedef double pair __attribute__((vector_size(16), aligned(8), may_alias));
  pair sum0 = {0.0, 0.0}, sum1 = sum0, sum2 = sum0, sum3 = sum0;
  for (uint32_t i = 0; i < n_in; i++) {
    const pair *weight = (const pair *)(side + (uint64_t)i * REF_SIDE), value = {(double)x[i], (double)x[i]};
    sum0 += value * weight[0];
    sum1 += value * weight[1];
    sum2 += value * weight[2];
    sum3 += value * weight[3];
  }
  const pair sums[REF_SIDE / 2] = {sum0, sum1, sum2, sum3};
  memcpy(sum, sums, sizeof sums);
}

void ref_row_dots(const float *x, const float *rows, uint32_t n_in, double *sum) {
  double sums[REF_SIDE] = {0.0};
  for (uint32_t i = 0; i < n_in; i++) {
#pragma GCC unroll 8
    for (uint32_t k = 0; k < REF_SIDE; k++) sums[k] += (double)x[i] * (double)rows[(uint64_t)k * n_in + i];
  }
  memcpy(sum, sums, sizeof sums);
}

void ref_row_products(const weft_weight *weight, uint32_t matrix, uint32_t first, uint32_t n, const float *x,
                      float *rows, double *sum) {
  const uint64_t n_in = weight->n_in;
  if (weight->layout == REF_EIGHT) {
    for (uint32_t k = 0; k < n; k++) sum[k] = (double)ref_w8a8_dot(weight, matrix, first + k, x, rows);
    return;
  }
  for (uint32_t k = 0; k < n; k++) ref_weight_row(weight, matrix, first + k, rows + k * n_in);
  memset(rows + n * n_in, 0, (REF_SIDE - n) * n_in * sizeof *rows);
  ref_row_dots(x, rows, weight->n_in, sum);
}

double ref_scale(const weft_weight *weight, uint32_t matrix) {
  return weight->scale == NULL ? 1.0 : (double)weight->scale[matrix];
}

void ref_products(const weft_weight *weight, uint32_t matrix, uint32_t first, uint32_t n, const float *x, float *rows,
                  double *out) {
  double scale = ref_scale(weight, matrix);
  ref_row_products(weight, matrix, first, n, x, rows, out);
  for (uint32_t k = 0; k < n; k++) out[k] *= scale;
}

static double apply_activation(weft_activation activation, double x) {
  if (activation == WEFT_SILU) return x / (1.0 + exp(-x));
  if (activation == WEFT_SIGMOID) return 1.0 / (1.0 + exp(-x));
  const double sqrt_2_over_pi = 0.79788456080286535588;
  return 0.5 * x * (1.0 + tanh(sqrt_2_over_pi * (x + 0.044715 * x * x * x)));
}

static double hold_below(double x, double limit) {
  return x > limit ? limit : x;
}

double ref_gated(weft_activation activation, double own_limit, double g, double u) {
  if (own_limit > 0.0) {
    g = hold_below(g, own_limit);
    u = -hold_below(-hold_below(u, own_limit), own_limit);
  }
  if (activation != WEFT_CLAMPED_SILU) return apply_activation(activation, g) * u;
  const double limit = (double)WEFT_GATE_LIMIT, slope = (double)WEFT_GATE_SLOPE;
  g = hold_below(g, limit);
  u = -hold_below(-hold_below(u, limit), limit);
  return g / (1.0 + exp(-slope * g)) * (u + 1.0);
}
