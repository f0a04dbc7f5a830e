/* SPDX-License-Identifier: MIT */
#include "model/eight_bits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPAN = 256 }; /* inputs that share a scale: kernels/cuda/gemm/w8a8.h */

static bool is_of_layer(const weft_gguf_tensor *tensor) {
  return strncmp(tensor->name, "blk.", 4) == 0 && tensor->n_dims >= 2;
}

/* Types that cards multiply in 8 bits, of at most 6 bits a number. */
static bool is_coarse(weft_type type) {
  return type == WEFT_TYPE_Q4_0 || type == WEFT_TYPE_Q5_0 || type == WEFT_TYPE_Q4_K || type == WEFT_TYPE_Q5_K ||
         type == WEFT_TYPE_Q6_K;
}

static double find_share(const weft_gguf *gguf) {
  double all = 0.0, coarse = 0.0;
  for (uint32_t i = 0; i < weft_gguf_n_tensors(gguf); i++) {
    const weft_gguf_tensor *tensor = weft_gguf_tensor_at(gguf, i);
    if (!is_of_layer(tensor)) continue;
    double n = (double)tensor->ne[0] * (double)tensor->ne[1] * (double)tensor->ne[2];
    all += n;
    if (is_coarse(tensor->type)) coarse += n;
  }
  return all > 0.0 ? coarse / all : 0.0;
}

/* Whether the tensor is a norm whose results a layer's matrices read: its name after blk.N is one of these. gpt-oss
 * calls the norm before its experts post_attention_norm; other models with a norm of that name have an ffn_norm beside
 * it. */
static bool feeds_matrices(const weft_gguf *gguf, const weft_gguf_tensor *tensor) {
  static const char *const before[] = {".attn_norm.weight", ".ffn_norm.weight", ".pre_ffw_norm_2.weight"};
  const weft_type_info *type = weft_type_find((int32_t)tensor->type);
  const char *dot = strncmp(tensor->name, "blk.", 4) == 0 ? strchr(tensor->name + 4, '.') : NULL;
  char other[64];
  if (dot == NULL || tensor->n_dims != 1 || tensor->data == NULL || type == NULL || type->n_elements != 1) return false;
  for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
    if (strcmp(dot, before[i]) == 0) return true;
  }
  if (strcmp(dot, ".post_attention_norm.weight") != 0) return false;
  (void)snprintf(other, sizeof other, "%.*s.ffn_norm.weight", (int)(dot - tensor->name), tensor->name);
  return weft_gguf_tensor_find(gguf, other) == NULL;
}

static int compare_floats(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

/* (largest / median)^2 of n magnitudes. */
static double spread_of(float *magnitude, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    magnitude[i] = fabsf(magnitude[i]);
    if (!isfinite(magnitude[i])) return INFINITY;
  }
  qsort(magnitude, n, sizeof *magnitude, compare_floats);
  double largest = (double)magnitude[n - 1], median = (double)magnitude[n / 2];
  if (largest <= 0.0) return 1.0;
  return median > 0.0 ? largest / median * (largest / median) : INFINITY;
}

static void add_norm(const weft_gguf_tensor *tensor, double *sum, uint64_t *n_spans, double *widest,
                     weft_eight_bits *out) {
  const weft_type_info *type = weft_type_find((int32_t)tensor->type);
  for (uint64_t first = 0; first < tensor->ne[0]; first += SPAN) {
    uint32_t n = tensor->ne[0] - first < SPAN ? (uint32_t)(tensor->ne[0] - first) : (uint32_t)SPAN;
    float weight[SPAN];
    weft_dequantise_row(tensor->type, (const uint8_t *)tensor->data + first * type->n_bytes, weight, n);
    double spread = spread_of(weight, n);
    *sum += spread;
    *n_spans += 1;
    if (spread <= *widest) continue;
    *widest = spread;
    out->largest = tensor->name;
  }
}

weft_eight_bits weft_eight_bits_of(const weft_gguf *gguf) {
  weft_eight_bits out = {.share = find_share(gguf)};
  double sum = 0.0, widest = 0.0;
  uint64_t n_spans = 0;
  for (uint32_t i = 0; i < weft_gguf_n_tensors(gguf); i++) {
    const weft_gguf_tensor *tensor = weft_gguf_tensor_at(gguf, i);
    if (feeds_matrices(gguf, tensor)) add_norm(tensor, &sum, &n_spans, &widest, &out);
  }
  out.spread = n_spans > 0 ? sum / (double)n_spans : INFINITY;
  out.fits = out.share >= WEFT_EIGHT_BITS_SHARE && out.spread <= WEFT_EIGHT_BITS_SPREAD;
  return out;
}

bool weft_eight_bits_head(const weft_gguf *gguf) {
  const weft_gguf_tensor *norm = weft_gguf_tensor_find(gguf, "output_norm.weight");
  const weft_type_info *type = norm == NULL ? NULL : weft_type_find((int32_t)norm->type);
  weft_eight_bits unused = {0};
  double sum = 0.0, widest = 0.0;
  uint64_t n_spans = 0;
  if (type == NULL || norm->n_dims != 1 || norm->data == NULL || type->n_elements != 1) return false;
  add_norm(norm, &sum, &n_spans, &widest, &unused);
  return n_spans > 0 && sum / (double)n_spans <= WEFT_EIGHT_BITS_SPREAD;
}

void weft_eight_bits_say(const weft_eight_bits *facts, char *out, size_t n) {
  int share = (int)(100.0 * facts->share);
  if (facts->share < WEFT_EIGHT_BITS_SHARE) {
    (void)snprintf(out, n, "%d %% of the weights are in types of 4 to 6 bits, fewer than %d %%", share,
                   (int)(100.0 * WEFT_EIGHT_BITS_SHARE));
  } else if (facts->largest == NULL) {
    (void)snprintf(out, n, "there is no norm that would show outliers");
  } else if (!facts->fits) {
    (void)snprintf(out, n, "norms have outliers: spread %.3g, above %.3g, most in %.64s", facts->spread,
                   WEFT_EIGHT_BITS_SPREAD, facts->largest);
  } else {
    (void)snprintf(out, n, "%d %% of the weights are in types of 4 to 6 bits, and norms have no outliers (spread %.3g)",
                   share, facts->spread);
  }
}
