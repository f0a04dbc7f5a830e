/* SPDX-License-Identifier: MIT */
/* The reference device itself: host memory, weights as the file has them, one thread. */
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

static void ref_close(weft_device *device) {
  weft_free(device);
}

static weft_status ref_weight(weft_device *device, weft_weight *weight, const void *file_bytes, unsigned uses,
                              weft_error *error) {
  (void)uses; /* one layout serves all */
  void *bytes = NULL;
  uint64_t n_bytes = weft_weight_file_bytes(weight);
  weft_status status = weft_host_alloc(device, n_bytes, &bytes);
  if (status != WEFT_OK) {
    return weft_fail(error, status, "out of memory: %llu bytes for a weight", (unsigned long long)n_bytes);
  }
  memcpy(bytes, file_bytes, n_bytes);
  weight->layout = 0;
  weight->data = bytes;
  weight->n_bytes = n_bytes;
  return WEFT_OK;
}

static void ref_weight_free(weft_device *device, weft_weight *weight) {
  weft_host_free(device, (void *)(uintptr_t)weight->data);
}

static weft_status ref_weight_unpack(weft_device *device, const weft_weight *weight, void *file_bytes) {
  (void)device;
  memcpy(file_bytes, weight->data, weight->n_bytes);
  return WEFT_OK;
}

static const weft_device_calls ref_calls = {
    .close = ref_close,
    .alloc = weft_host_alloc,
    .free = weft_host_free,
    .alloc_host = weft_host_alloc,
    .free_host = weft_host_free,
    .upload = weft_host_copy,
    .download = weft_host_copy,
    .copy = weft_host_copy,
    .zero = weft_host_zero,
    .sync = weft_host_sync,
    .weight = ref_weight,
    .weight_free = ref_weight_free,
    .weight_unpack = ref_weight_unpack,
};

static bool ref_supports(const weft_device *device, weft_type weight_type) {
  (void)device;
  return weft_type_find((int32_t)weight_type) != NULL;
}

static const char *ref_numerics(const weft_device *device, weft_type weight_type) {
  (void)device;
  (void)weight_type;
  return "f64";
}

static const weft_kernels ref_kernels = {
    .backend = "ref",
    .embed = weft_ref_embed,
    .norm = weft_ref_norm,
    .matmul = weft_ref_matmul,
    .matmul_scratch = weft_ref_matmul_scratch,
    .qkv = weft_ref_qkv,
    .attention = weft_ref_attention,
    .attention_scratch = weft_ref_attention_scratch,
    .gate = weft_ref_gate,
    .route = weft_ref_route,
    .route_scratch = weft_ref_route_scratch,
    .experts = weft_ref_experts,
    .experts_scratch = weft_ref_experts_scratch,
    .head_stats = weft_ref_head_stats,
    .head_stats_scratch = weft_ref_head_stats_scratch,
    .head_rows = weft_ref_head_rows,
    .head_rows_scratch = weft_ref_head_rows_scratch,
    .soft = weft_ref_soft,
    .soft_scratch = weft_ref_soft_scratch,
    .sample = weft_ref_sample,
    .sample_scratch = weft_ref_sample_scratch,
    .canvas = weft_ref_canvas,
    .canvas_scratch = weft_ref_canvas_scratch,
    .move = weft_ref_move,
    .supports = ref_supports,
    .numerics = ref_numerics,
};

weft_status weft_device_open_ref(const weft_device_config *config, weft_device **out, weft_error *error) {
  (void)config; /* one thread, no isa */
  weft_device *device = weft_alloc(1, sizeof *device);
  if (device == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "out of memory: the ref device");
  device->calls = &ref_calls;
  device->kernels = &ref_kernels;
  device->info.backend = "ref";
  device->info.isa = "portable";
  device->info.n_threads = 1;
  weft_host_describe(&device->info);
  *out = device;
  return WEFT_OK;
}

void weft_ref_weight_row(const weft_weight *weight, uint32_t matrix, uint32_t row, float *out) {
  uint64_t row_bytes = weft_type_row_bytes(weight->type, weight->n_in);
  const uint8_t *stored = weight->data;
  stored += ((uint64_t)matrix * weight->n_out + row) * row_bytes;
  weft_dequantise_row(weight->type, stored, out, weight->n_in);
}

double weft_ref_dot(const float *a, const float *b, uint32_t n) {
  double sum = 0.0;
  for (uint32_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
  return sum;
}

double weft_ref_activate(weft_activation activation, double x) {
  if (activation == WEFT_SILU) return x / (1.0 + exp(-x));
  const double sqrt_2_over_pi = 0.79788456080286535588;
  return 0.5 * x * (1.0 + tanh(sqrt_2_over_pi * (x + 0.044715 * x * x * x)));
}
