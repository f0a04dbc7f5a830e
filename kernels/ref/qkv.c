/* SPDX-License-Identifier: MIT */
/* qkv: biases, norms per head, rotation, and keys and values into pages or into the segment's own rows. */
#include "kernels/ref/ref.h"

#include <math.h>

#include "kernels/parts.h"

/* y = x + bias over the numbers of one head; bias may be NULL; y may equal x. */
static void bias_head(const float *x, const float *bias, uint32_t n, float *y) {
  for (uint32_t i = 0; i < n; i++) y[i] = bias == NULL ? x[i] : x[i] + bias[i];
}

/* y = rms(x) * weight over one head; weight may be NULL; y may equal x. */
static void norm_head(const float *x, const float *weight, float eps, uint32_t n, float *y) {
  double factor = 1.0 / sqrt(ref_dot(x, x, n) / n + (double)eps);
  for (uint32_t i = 0; i < n; i++) {
    double value = (double)x[i] * factor;
    y[i] = (float)(weight == NULL ? value : value * (double)weight[i]);
  }
}

static void rotate_head(const float *inv_freq, int32_t position, uint32_t n, float *y) {
  for (uint32_t i = 0; i < n / 2; i++) {
    float angle = (float)position * inv_freq[i];
    double c = (double)cosf(angle), s = (double)sinf(angle);
    double a = (double)y[i], b = (double)y[i + n / 2];
    y[i] = (float)(a * c - b * s);
    y[i + n / 2] = (float)(a * s + b * c);
  }
}

/* Where key (or value) `head` of row r goes. */
static void *find_place(const weft_qkv_args *args, uint32_t r, uint32_t head, bool is_value) {
  const weft_kv_view *kv = &args->kv;
  uint64_t vector = weft_kv_row_bytes(kv->type, kv->head_dim);
  int64_t slot = args->slot[r];
  if (slot < 0) {
    uint8_t *own = is_value ? args->own_v : args->own_k;
    return own + ((uint64_t)(r - args->own_first) * kv->n_kv_heads + head) * vector;
  }
  uint64_t page = (uint64_t)slot / kv->block_tokens, offset = (uint64_t)slot % kv->block_tokens;
  uint8_t *at = (uint8_t *)kv->base + page * kv->page_bytes + (is_value ? kv->v_offset : kv->k_offset);
  return at + ((uint64_t)head * kv->block_tokens + offset) * vector;
}

static void store_row(const weft_qkv_args *args, uint32_t r, float *work) {
  uint32_t dim = args->kv.head_dim;
  for (uint32_t head = 0; head < args->kv.n_kv_heads; head++) {
    uint64_t at = (uint64_t)head * dim;
    bias_head(args->k + r * args->k_stride + at, args->k_bias == NULL ? NULL : args->k_bias + at, dim, work);
    if (args->k_norm != NULL) norm_head(work, args->k_norm, args->eps, dim, work);
    rotate_head(args->inv_freq, args->position[r], dim, work);
    weft_kv_row_store(args->kv.type, work, dim, find_place(args, r, head, false));
    bias_head(args->v + r * args->v_stride + at, args->v_bias == NULL ? NULL : args->v_bias + at, dim, work);
    if (args->v_norm) norm_head(work, NULL, args->eps, dim, work);
    weft_kv_row_store(args->kv.type, work, dim, find_place(args, r, head, true));
  }
}

static bool has_place(const weft_qkv_args *args, uint32_t r) {
  return args->slot[r] >= 0 ? args->kv.base != NULL : args->own_k != NULL && r >= args->own_first;
}

weft_status ref_qkv(weft_device *device, const weft_qkv_args *args) {
  (void)device;
  uint32_t dim = args->kv.head_dim;
  float work[WEFT_HEAD_DIM_MAX];
  for (uint32_t r = 0; r < args->n_rows; r++) {
    if (args->k != NULL && !has_place(args, r)) {
      return parts_refuse_row("qkv", r, "has no place for its key and value");
    }
    for (uint32_t head = 0; head < args->n_heads; head++) {
      uint64_t at = (uint64_t)head * dim;
      float *q = args->q + r * args->q_stride + at;
      if (args->q_bias != NULL) bias_head(q, args->q_bias + at, dim, q);
      if (args->q_norm != NULL) norm_head(q, args->q_norm, args->eps, dim, q);
      rotate_head(args->inv_freq, args->position[r], dim, q);
    }
    if (args->k != NULL) store_row(args, r, work);
  }
  return WEFT_OK;
}
