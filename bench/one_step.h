/* SPDX-License-Identifier: MIT */
/* One step of one model on one device, put together by hand: rows of sequences whose keys lie in a pool of this step's
 * own, every sequence in pages of its own. For programs of the laboratory that compute the same step in several ways.
 *
 * Tokens are drawn by sequence, position and `shift`. Errors are those of the calls that open and compute. What was
 * opened is closed by one_step_close, after an error too. */
#ifndef WEFT_BENCH_ONE_STEP_H
#define WEFT_BENCH_ONE_STEP_H

#include "base/memory.h"
#include "base/random.h"
#include "kernels/ops.h"
#include "model/model.h"

enum { STEP_SEQUENCES_MAX = 128, STEP_ROWS_MAX = 1024 };

/* What rows are for: STORED only leave keys and values, READ have outputs too, a CANVAS has outputs and stores none. */
typedef enum step_kind { STEP_STORED, STEP_READ, STEP_CANVAS } step_kind;

typedef struct one_step {
  weft_gguf *gguf;
  weft_device *device;
  weft_model *model;
  const weft_model_info *info;
  weft_kv_layout layout;
  weft_kv_store *store;
  uint64_t n_pages, first_page[STEP_SEQUENCES_MAX][WEFT_GROUPS_MAX];
  /* The step. */
  weft_batch batch;
  weft_segment segment[STEP_SEQUENCES_MAX];
  int32_t *token, *position, *cell_of; /* [STEP_ROWS_MAX], as kv_slot[group] and output_row */
  int64_t *kv_slot[WEFT_GROUPS_MAX];
  uint32_t *output_row, *table, table_at[STEP_SEQUENCES_MAX * WEFT_GROUPS_MAX], n_output;
  const float *soft[STEP_SEQUENCES_MAX], *d_soft; /* d_soft: the caller's, of every canvas; NULL: none */
  float *d_hidden;                                /* [STEP_ROWS_MAX][n_hidden]: what the step gives */
} one_step;

/* The model, before its pool. */
static inline weft_status one_step_open(one_step *s, const char *path, const weft_device_config *config,
                                        uint32_t n_sequences, weft_error *error) {
  weft_status status = weft_gguf_open(path, &s->gguf, error);
  if (status == WEFT_OK) status = weft_device_open(config, &s->device, error);
  if (status != WEFT_OK) return status;
  weft_split split = weft_split_one(s->device);
  weft_model_limits limits = {
      .rows_max = (uint32_t)STEP_ROWS_MAX, .canvas_rows_max = (uint32_t)STEP_ROWS_MAX, .segments_max = n_sequences};
  status = weft_model_open(s->gguf, &split, &limits, NULL, NULL, &s->model, error);
  if (status == WEFT_OK) s->info = weft_model_get_info(s->model);
  return status;
}

static inline weft_status one_step_open_arrays(one_step *s) {
  const uint64_t n = STEP_ROWS_MAX;
  bool ok = true;
  s->token = weft_alloc(n, sizeof *s->token);
  s->position = weft_alloc(n, sizeof *s->position);
  s->cell_of = weft_alloc(n, sizeof *s->cell_of);
  s->output_row = weft_alloc(n, sizeof *s->output_row);
  s->table = weft_alloc(s->n_pages, sizeof *s->table);
  for (uint32_t g = 0; g < s->layout.n_groups; g++)
    ok = (s->kv_slot[g] = weft_alloc(n, sizeof *s->kv_slot[g])) != NULL && ok;
  ok = ok && s->token != NULL && s->position != NULL && s->cell_of != NULL && s->output_row != NULL && s->table != NULL;
  if (!ok) return WEFT_E_NO_MEMORY;
  for (uint32_t i = 0; i < s->n_pages; i++) s->table[i] = i;
  return weft_device_alloc(s->device, n * s->info->n_hidden * sizeof(float), (void **)&s->d_hidden);
}

/* length: [n_sequences], the positions that a sequence may have. */
static inline weft_status one_step_open_pool(one_step *s, const uint32_t *length, uint32_t n_sequences,
                                             weft_error *error) {
  const weft_kv_geometry *geometry = &s->info->kv;
  weft_status status = weft_kv_layout_choose(&geometry, 1, 0, &s->layout, error);
  for (uint32_t i = 0; i < n_sequences; i++) {
    for (uint32_t g = 0; g < s->layout.n_groups; g++) {
      s->first_page[i][g] = s->n_pages;
      s->n_pages += length[i] / s->layout.group[g].block_tokens + 1;
    }
  }
  if (status == WEFT_OK)
    status = weft_kv_store_open(&(weft_split){.n_devices = 1, .device = {s->device}}, &s->layout, (uint32_t)s->n_pages,
                                &s->store, error);
  return status == WEFT_OK ? one_step_open_arrays(s) : status;
}

static inline void one_step_close(one_step *s) {
  void *host[] = {s->token, s->position, s->cell_of, s->output_row, s->table};
  for (size_t i = 0; i < sizeof host / sizeof *host; i++) weft_free(host[i]);
  for (uint32_t g = 0; g < WEFT_GROUPS_MAX; g++) weft_free(s->kv_slot[g]);
  if (s->device != NULL) weft_device_free(s->device, s->d_hidden);
  weft_kv_store_close(s->store);
  weft_model_close(s->model);
  weft_device_close(s->device);
  weft_gguf_close(s->gguf);
}

static inline void one_step_begin(one_step *s) {
  s->batch = (weft_batch){.n_groups = s->layout.n_groups,
                          .token = s->token,
                          .position = s->position,
                          .segment = s->segment,
                          .table = s->table,
                          .table_at = s->table_at};
  for (uint32_t g = 0; g < s->layout.n_groups; g++) s->batch.kv_slot[g] = s->kv_slot[g];
  s->n_output = 0;
}

static inline int32_t one_step_token(const one_step *s, uint32_t sequence, uint32_t position, uint32_t shift) {
  weft_draw_key key = {77, sequence, WEFT_DRAW_TEST, position, shift};
  return (int32_t)weft_draw_below(&key, s->info->n_vocab);
}

/* Rows [kv_len, kv_len + n) of a sequence, which the step has no others of. */
static inline void one_step_add_rows(one_step *s, uint32_t sequence, uint32_t kv_len, uint32_t n, step_kind kind,
                                     uint32_t shift) {
  weft_batch *b = &s->batch;
  uint32_t first = b->n_rows, own = b->n_segments++;
  bool canvas = kind == STEP_CANVAS;
  s->segment[own] = (weft_segment){.slot = sequence,
                                   .first_row = first,
                                   .n_rows = n,
                                   .kv_len = kv_len,
                                   .mask = canvas ? WEFT_MASK_WHOLE : WEFT_MASK_CAUSAL,
                                   .stores = canvas ? WEFT_STORES_SCRATCH : WEFT_STORES_POOL,
                                   .pass = canvas ? WEFT_PASS_DECODER : WEFT_PASS_ENCODER,
                                   .n_outputs = kind == STEP_STORED ? 0 : n,
                                   .ask = canvas ? WEFT_ASK_CANVAS : WEFT_ASK_SAMPLE,
                                   .step = canvas ? 1 : 0};
  s->soft[own] = canvas ? s->d_soft : NULL;
  for (uint32_t i = 0; i < n; i++) {
    s->token[first + i] = one_step_token(s, sequence, kv_len + i, shift);
    s->position[first + i] = (int32_t)(kv_len + i);
    s->cell_of[first + i] = -1;
    if (kind != STEP_STORED) s->output_row[s->n_output++] = first + i;
  }
  for (uint32_t g = 0; g < s->layout.n_groups; g++) {
    uint32_t block = s->layout.group[g].block_tokens;
    s->table_at[own * s->layout.n_groups + g] = (uint32_t)s->first_page[sequence][g];
    for (uint32_t i = 0; i < n; i++) {
      int64_t page = (int64_t)(s->first_page[sequence][g] + (kv_len + i) / block);
      s->kv_slot[g][first + i] = canvas ? -1 : page * block + (kv_len + i) % block;
    }
  }
  b->n_rows += n;
  if (!canvas) b->n_stored = b->n_encoder = b->n_rows;
}

static inline weft_status one_step_compute(one_step *s) {
  bool reads_host = weft_device_get_info(s->device)->host_memory;
  weft_forward_args args = {.batch = &s->batch,
                            .token = s->token,
                            .cells = (const int32_t *)(const void *)s->d_hidden,
                            .cell_of = reads_host ? NULL : s->cell_of,
                            .kv = s->store,
                            .layout = &s->layout,
                            .soft = s->soft,
                            .output_row = s->output_row,
                            .n_output = s->n_output,
                            .hidden = s->d_hidden};
  return weft_model_forward(s->model, &args);
}

static inline uint64_t one_step_bytes(const one_step *s) {
  return (uint64_t)s->n_output * s->info->n_hidden * sizeof(float);
}

/* to: [n_output][n_hidden]. */
static inline weft_status one_step_read(one_step *s, float *to) {
  return weft_device_download(s->device, to, s->d_hidden, one_step_bytes(s));
}

#endif
