/* SPDX-License-Identifier: MIT */
/* qkv: biases, norms and rotation, and storing keys and values. A row's angles are computed once for all its heads. */
#include <string.h>

#include "kernels/cpu/rows.h"
#include "kernels/parts.h"

typedef struct qkv_run {
  const weft_qkv_args *args;
  const cpu_rows *rows;
} qkv_run;

/* Where head 0 of row r's keys (or values) goes, and the bytes from one head to the next. */
static uint8_t *find_place(const weft_qkv_args *args, uint64_t r, bool is_value, uint64_t *head_bytes) {
  const weft_kv_view *kv = &args->kv;
  uint64_t vector = weft_kv_row_bytes(kv->type, kv->head_dim);
  int64_t slot = args->slot[r];
  if (slot < 0) {
    uint8_t *own = is_value ? args->own_v : args->own_k;
    *head_bytes = vector;
    return own + (r - args->own_first) * kv->n_kv_heads * vector;
  }
  uint64_t page = (uint64_t)slot / kv->block_tokens, offset = (uint64_t)slot % kv->block_tokens;
  *head_bytes = kv->block_tokens * vector;
  return (uint8_t *)kv->base + page * kv->page_bytes + (is_value ? kv->v_offset : kv->k_offset) + offset * vector;
}

static void store_heads(const qkv_run *run, const float *x, uint8_t *to) {
  uint32_t dim = run->args->kv.head_dim;
  if (run->args->kv.type == WEFT_TYPE_F32)
    memcpy(to, x, dim * sizeof(float));
  else if (run->args->kv.type == WEFT_TYPE_Q8_0)
    run->rows->to_q8(x, to, dim);
  else
    run->rows->to_bf16(x, (uint16_t *)(void *)to, dim);
}

/* Numbers [at, at + n) of x with their biases, in y, which may be that part of x; bias NULL: x itself. */
static const float *with_bias(const float *x, const float *bias, uint64_t at, uint32_t n, float *y) {
  if (bias == NULL) return x + at;
  for (uint32_t i = 0; i < n; i++) y[i] = x[at + i] + bias[at + i];
  return y;
}

static void qkv_row(const qkv_run *run, uint64_t r) {
  const weft_qkv_args *args = run->args;
  const cpu_rows *rows = run->rows;
  uint32_t dim = args->kv.head_dim;
  float cosine[WEFT_HEAD_DIM_MAX / 2], sine[WEFT_HEAD_DIM_MAX / 2], work[WEFT_HEAD_DIM_MAX];
  rows->angles(args->inv_freq, args->position[r], dim / 2, cosine, sine);
  for (uint32_t h = 0; h < args->n_heads; h++) {
    uint64_t at = (uint64_t)h * dim;
    float *all = args->q + r * args->q_stride, *q = all + at;
    rows->head(with_bias(all, args->q_bias, at, dim, q), args->q_norm != NULL, args->q_norm, args->eps, dim, q);
    rows->rotate(cosine, sine, dim, q);
  }
  if (args->k == NULL) return;
  const float *k = args->k + r * args->k_stride, *v = args->v + r * args->v_stride;
  uint64_t head_bytes = 0;
  uint8_t *keys = find_place(args, r, false, &head_bytes), *values = find_place(args, r, true, &head_bytes);
  for (uint32_t h = 0; h < args->kv.n_kv_heads; h++) {
    uint64_t at = (uint64_t)h * dim;
    rows->head(with_bias(k, args->k_bias, at, dim, work), args->k_norm != NULL, args->k_norm, args->eps, dim, work);
    rows->rotate(cosine, sine, dim, work);
    store_heads(run, work, keys + h * head_bytes);
    rows->head(with_bias(v, args->v_bias, at, dim, work), args->v_norm, NULL, args->eps, dim, work);
    store_heads(run, work, values + h * head_bytes);
  }
}

static void qkv_rows(void *arg, uint32_t first, uint32_t end) {
  const qkv_run *run = arg;
  for (uint32_t r = first; r < end; r++) qkv_row(run, r);
}

weft_status cpu_qkv(weft_device *device, const weft_qkv_args *args) {
  for (uint32_t r = 0; args->k != NULL && r < args->n_rows; r++) {
    bool has_place = args->slot[r] >= 0 ? args->kv.base != NULL : args->own_k != NULL && r >= args->own_first;
    if (!has_place) return parts_refuse_row("qkv", r, "has no place for its key and value");
  }
  qkv_run run = {.args = args, .rows = cpu_rows_of(device)};
  uint64_t n_heads = (uint64_t)args->n_heads + (args->k == NULL ? 0 : 2ull * args->kv.n_kv_heads);
  cpu_for_rows(device, args->n_rows, n_heads * args->kv.head_dim / 4, qkv_rows, &run);
  return WEFT_OK;
}
