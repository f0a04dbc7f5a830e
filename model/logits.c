/* SPDX-License-Identifier: MIT */
#include "model/logits.h"

#include <string.h>

#include "base/memory.h"
#include "kernels/ops.h"

typedef struct logits_run {
  const weft_logits_args *args;
  const weft_model_info *info;
  const weft_weight *head;
  float cap, embed_scale;
  weft_kv_layout layout;
  weft_kv_store *store;
  uint32_t rows_max, n_blocks[WEFT_GROUPS_MAX], first_page[WEFT_GROUPS_MAX];
  int32_t *position;
  int64_t *kv_slot[WEFT_GROUPS_MAX];
  uint32_t *table, *output_row;
  uint32_t table_at[WEFT_GROUPS_MAX];
  float *d_hidden, *d_logits, *d_soft, *d_temperature; /* device */
  uint8_t *d_bad;
  float *logits; /* host, one row */
  void *d_scratch;
  uint64_t scratch_bytes;
} logits_run;

static void close_run(logits_run *r) {
  weft_device *d = r->args->device;
  for (uint32_t g = 0; g < WEFT_GROUPS_MAX; g++) weft_free(r->kv_slot[g]);
  weft_free(r->position);
  weft_free(r->table);
  weft_free(r->output_row);
  weft_free(r->logits);
  weft_device_free(d, r->d_hidden);
  weft_device_free(d, r->d_logits);
  weft_device_free(d, r->d_soft);
  weft_device_free(d, r->d_temperature);
  weft_device_free(d, r->d_bad);
  weft_device_free(d, r->d_scratch);
  weft_kv_store_close(r->store);
}

/* Every group's blocks lie one after the other in the pool. */
static weft_status open_pool(logits_run *r, weft_error *error) {
  const weft_kv_geometry *geometry = &r->info->kv;
  weft_status status = weft_kv_layout_choose(&geometry, 1, 0, &r->layout, error);
  if (status != WEFT_OK) return status;
  uint32_t n_pages = 0;
  for (uint32_t g = 0; g < r->layout.n_groups; g++) {
    r->n_blocks[g] = (r->args->n_tokens + r->rows_max) / r->layout.group[g].block_tokens + 1;
    r->first_page[g] = n_pages;
    n_pages += r->n_blocks[g];
  }
  status = weft_kv_store_open(r->args->device, r->layout.page_bytes, n_pages, &r->store, error);
  if (status != WEFT_OK) return status;
  r->table = weft_alloc(n_pages, sizeof *r->table);
  if (r->table == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the block tables");
  for (uint32_t i = 0; i < n_pages; i++) r->table[i] = i;
  for (uint32_t g = 0; g < r->layout.n_groups; g++) r->table_at[g] = r->first_page[g];
  return WEFT_OK;
}

static weft_status open_memory(logits_run *r, weft_error *error) {
  weft_device *d = r->args->device;
  uint64_t n = r->rows_max, hidden = r->info->n_hidden;
  r->position = weft_alloc(n, sizeof *r->position);
  r->output_row = weft_alloc(n, sizeof *r->output_row);
  r->logits = weft_alloc(r->info->n_vocab, sizeof *r->logits);
  bool refused = r->position == NULL || r->output_row == NULL || r->logits == NULL;
  for (uint32_t g = 0; g < r->layout.n_groups; g++) {
    r->kv_slot[g] = weft_alloc(n, sizeof *r->kv_slot[g]);
    refused |= r->kv_slot[g] == NULL;
  }
  weft_head_rows_args rows = {.weight = r->head, .n_rows = 1, .h_stride = hidden, .logits_stride = r->info->n_vocab};
  weft_soft_args soft = {.weight = r->head, .n_rows = 1, .logits_stride = r->info->n_vocab, .soft_stride = hidden};
  uint64_t a = weft_head_rows_scratch(d, &rows), b = weft_soft_scratch(d, &soft);
  r->scratch_bytes = a > b ? a : b;
  weft_status status = refused ? WEFT_E_NO_MEMORY : WEFT_OK;
  if (status == WEFT_OK) status = weft_device_alloc(d, n * hidden * sizeof(float), (void **)&r->d_hidden);
  if (status == WEFT_OK) status = weft_device_alloc(d, n * hidden * sizeof(float), (void **)&r->d_soft);
  if (status == WEFT_OK) status = weft_device_alloc(d, r->info->n_vocab * sizeof(float), (void **)&r->d_logits);
  if (status == WEFT_OK) status = weft_device_alloc(d, sizeof(float), (void **)&r->d_temperature);
  if (status == WEFT_OK) status = weft_device_alloc(d, 1, (void **)&r->d_bad);
  if (status == WEFT_OK && r->scratch_bytes > 0) status = weft_device_alloc(d, r->scratch_bytes, &r->d_scratch);
  return status == WEFT_OK ? status : weft_fail(error, status, "no memory for the logits' buffers");
}

static weft_status give_rows(logits_run *r, uint32_t n, weft_error *error) {
  weft_device *d = r->args->device;
  for (uint32_t i = 0; i < n; i++) {
    weft_head_rows_args rows = {.h = r->d_hidden + (uint64_t)i * r->info->n_hidden,
                                .weight = r->head,
                                .logits = r->d_logits,
                                .bad = r->d_bad,
                                .n_rows = 1,
                                .h_stride = r->info->n_hidden,
                                .logits_stride = r->info->n_vocab,
                                .cap = r->cap,
                                .scratch = r->d_scratch,
                                .scratch_bytes = r->scratch_bytes};
    weft_status status = weft_head_rows(d, &rows);
    if (status == WEFT_OK) status = weft_device_download(d, r->logits, r->d_logits, r->info->n_vocab * sizeof(float));
    if (status != WEFT_OK) return weft_fail(error, status, "the head failed: %s", weft_status_text(status));
    if (r->args->row(r->args->self, r->logits, r->info->n_vocab) != 0) {
      return weft_fail(error, WEFT_E_IO, "the logits could not be written");
    }
  }
  return WEFT_OK;
}

/* One batch of one segment: n tokens at position first. */
static weft_status forward_piece(logits_run *r, const int32_t *tokens, uint32_t first, uint32_t n, bool canvas,
                                 const float *soft, bool wanted, weft_error *error) {
  for (uint32_t i = 0; i < n; i++) {
    r->position[i] = (int32_t)(first + i);
    r->output_row[i] = i;
    for (uint32_t g = 0; g < r->layout.n_groups; g++) {
      uint32_t block = r->layout.group[g].block_tokens;
      int64_t page = r->first_page[g] + (first + i) / block;
      r->kv_slot[g][i] = canvas ? -1 : page * block + (first + i) % block;
    }
  }
  weft_segment segment = {.n_rows = n,
                          .kv_len = first,
                          .canvas = canvas,
                          .output = canvas ? WEFT_OUTPUT_CANVAS : WEFT_OUTPUT_NONE,
                          .step = soft != NULL};
  weft_batch batch = {.n_rows = n,
                      .n_causal = canvas ? 0 : n,
                      .n_segments = 1,
                      .n_groups = r->layout.n_groups,
                      .token = tokens,
                      .position = r->position,
                      .segment = &segment,
                      .table = r->table,
                      .table_at = r->table_at};
  for (uint32_t g = 0; g < r->layout.n_groups; g++) batch.kv_slot[g] = r->kv_slot[g];
  weft_forward_args args = {.batch = &batch,
                            .token = tokens,
                            .kv = r->store,
                            .layout = &r->layout,
                            .soft = &soft,
                            .output_row = r->output_row,
                            .n_output = wanted ? n : 0,
                            .hidden = r->d_hidden};
  weft_status status = weft_model_forward(r->args->model, &args);
  if (status != WEFT_OK) return weft_fail(error, status, "the forward pass failed: %s", weft_status_text(status));
  return wanted ? give_rows(r, n, error) : WEFT_OK;
}

/* Soft embedding rows from given logits. */
static weft_status make_soft(logits_run *r, weft_error *error) {
  weft_device *d = r->args->device;
  uint64_t n_vocab = r->info->n_vocab;
  weft_status status = weft_device_upload(d, r->d_temperature, &r->args->previous_temperature, sizeof(float));
  for (uint32_t i = 0; i < r->args->n_canvas && status == WEFT_OK; i++) {
    status = weft_device_upload(d, r->d_logits, r->args->previous + i * n_vocab, n_vocab * sizeof(float));
    weft_soft_args args = {.logits = r->d_logits,
                           .temperature = r->d_temperature,
                           .weight = r->head,
                           .soft = r->d_soft + (uint64_t)i * r->info->n_hidden,
                           .n_rows = 1,
                           .logits_stride = n_vocab,
                           .soft_stride = r->info->n_hidden,
                           .scale = r->embed_scale,
                           .scratch = r->d_scratch,
                           .scratch_bytes = r->scratch_bytes};
    if (status == WEFT_OK) status = weft_soft(d, &args);
  }
  return status == WEFT_OK ? status
                           : weft_fail(error, status, "the soft embedding failed: %s", weft_status_text(status));
}

static weft_status check_args(const weft_logits_args *a, const weft_model_info *info, weft_error *error) {
  if (a->n_tokens == 0) return weft_fail(error, WEFT_E_INVALID, "no tokens were given");
  if ((uint64_t)a->n_tokens + a->n_canvas > info->context_length) {
    return weft_fail(error, WEFT_E_TOO_LARGE, "%u tokens are more than the context of %u", a->n_tokens + a->n_canvas,
                     info->context_length);
  }
  if (a->canvas != NULL && info->canvas_length == 0) {
    return weft_fail(error, WEFT_E_UNSUPPORTED, "%s has no canvas pass: leave --canvas out", info->name);
  }
  if (a->canvas != NULL && a->n_canvas != info->canvas_length) {
    return weft_fail(error, WEFT_E_INVALID, "the canvas has %u tokens; this model's has %u", a->n_canvas,
                     info->canvas_length);
  }
  for (uint32_t i = 0; i < a->n_tokens + a->n_canvas; i++) {
    int32_t token = i < a->n_tokens ? a->tokens[i] : a->canvas[i - a->n_tokens];
    if (token >= 0 && (uint32_t)token < info->n_vocab) continue;
    return weft_fail(error, WEFT_E_INVALID, "token %d is not in the vocabulary of %u", token, info->n_vocab);
  }
  return WEFT_OK;
}

weft_status weft_logits(const weft_logits_args *args, weft_error *error) {
  logits_run *r = weft_alloc(1, sizeof *r);
  if (r == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory");
  r->args = args;
  r->info = weft_model_get_info(args->model);
  r->head = weft_model_head(args->model, &r->cap, &r->embed_scale);
  r->rows_max = args->limits.rows_max;
  weft_status status = check_args(args, r->info, error);
  if (status == WEFT_OK) status = open_pool(r, error);
  if (status == WEFT_OK) status = open_memory(r, error);
  bool canvas = args->canvas != NULL;
  for (uint32_t first = 0; first < args->n_tokens && status == WEFT_OK; first += r->rows_max) {
    uint32_t n = args->n_tokens - first < r->rows_max ? args->n_tokens - first : r->rows_max;
    status = forward_piece(r, args->tokens + first, first, n, false, NULL, !canvas, error);
  }
  if (status == WEFT_OK && canvas) {
    if (args->previous != NULL) status = make_soft(r, error);
    if (status == WEFT_OK) {
      status = forward_piece(r, args->canvas, args->n_tokens, args->n_canvas, true,
                             args->previous != NULL ? r->d_soft : NULL, true, error);
    }
  }
  close_run(r);
  weft_free(r);
  return status;
}
