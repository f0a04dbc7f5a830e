/* SPDX-License-Identifier: MIT */
#include "model/logits.h"

#include <string.h>

#include "base/memory.h"
#include "kernels/canvas_head.h"
#include "kernels/ops.h"

enum { MARK_SOFT = 0 }; /* of the last device: the soft embeddings of a canvas have been sent */

struct weft_logits {
  weft_logits_config config;
  const weft_model_info *info;
  const weft_weight *head;
  weft_weight canvas_head; /* its form for rows of canvases (kernels/canvas_head.h) */
  float cap, embed_scale;
  const weft_split *split;
  weft_device *first, *last; /* of the model's devices */
  weft_kv_layout layout;
  weft_kv_store *store;
  /* Pages of a sequence lie one after the other: its groups' blocks from first_page[g] on. */
  uint32_t sequence_pages, first_page[WEFT_GROUPS_MAX];
  uint32_t *table; /* page i is page i */
  /* Of a group of states a sequence has the pages of two: the one that its next rows begin with, and the one that the
   * rows behind the next border do. */
  uint8_t *second;         /* [sequences_max] whether the second one is the first of these */
  weft_state_write *state; /* [segments_max for each group of states] */
  uint32_t n_states;
  /* the step that is being filled: [rows_max], [segments_max] */
  uint32_t n_rows, n_segments, n_output;
  int32_t *token, *position;
  int64_t *kv_slot[WEFT_GROUPS_MAX];
  uint32_t *output_row, *table_at;
  weft_logits_row *output;
  weft_segment *segment;
  const float **soft;
  float *d_soft;                                            /* of the first device: [rows_max, n_hidden] */
  float *d_hidden, *d_made_soft, *d_logits, *d_temperature; /* of the last device */
  uint8_t *d_bad, *bad;
  float *logits; /* host, [head_rows, n_vocab] */
  void *d_scratch;
  uint64_t scratch_bytes;
  /* of the call */
  const weft_logits_sequence *sequence;
  weft_logits_take take;
  void *self;
};

void weft_logits_close(weft_logits *l) {
  if (l == NULL) return;
  weft_device *d = l->last;
  for (uint32_t g = 0; g < WEFT_GROUPS_MAX; g++) weft_free(l->kv_slot[g]);
  weft_free(l->table);
  weft_free(l->second);
  weft_free(l->state);
  weft_free(l->token);
  weft_free(l->position);
  weft_free(l->output_row);
  weft_free(l->table_at);
  weft_free(l->output);
  weft_free(l->segment);
  weft_free(l->soft);
  weft_free(l->bad);
  weft_free(l->logits);
  weft_device_free(d, l->d_hidden);
  weft_device_free(d, l->d_logits);
  weft_device_free(l->first, l->d_soft);
  weft_device_free(d, l->d_made_soft);
  weft_device_free(d, l->d_temperature);
  weft_device_free(d, l->d_bad);
  weft_device_free(d, l->d_scratch);
  weft_kv_store_close(l->store);
  weft_free(l);
}

static weft_status open_pool(weft_logits *l, weft_error *error) {
  const weft_kv_geometry *geometry = &l->info->kv;
  weft_status status = weft_kv_layout_choose(&geometry, 1, 0, &l->layout, error);
  if (status != WEFT_OK) return status;
  uint64_t n_pages = 0;
  for (uint32_t g = 0; g < l->layout.n_groups; g++) {
    l->first_page[g] = (uint32_t)n_pages;
    const weft_layer_group *group = &l->layout.group[g];
    n_pages += group->state_pages > 0 ? 2 * group->state_pages : (l->config.tokens_max - 1) / group->block_tokens + 1;
  }
  l->sequence_pages = (uint32_t)n_pages;
  n_pages *= l->config.sequences_max;
  if (n_pages > UINT32_MAX) return weft_fail(error, WEFT_E_TOO_LARGE, "the sequences need more than 2^32 pages");
  status = weft_kv_store_open(l->split, &l->layout, (uint32_t)n_pages, &l->store, error);
  if (status != WEFT_OK) return status;
  l->table = weft_alloc(n_pages, sizeof *l->table);
  if (l->table == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the block tables");
  for (uint32_t i = 0; i < n_pages; i++) l->table[i] = i;
  return WEFT_OK;
}

static weft_status open_arrays(weft_logits *l, weft_error *error) {
  uint64_t n = l->config.limits.rows_max, n_segments = l->config.limits.segments_max;
  l->token = weft_alloc(n, sizeof *l->token);
  l->position = weft_alloc(n, sizeof *l->position);
  l->output_row = weft_alloc(n, sizeof *l->output_row);
  l->output = weft_alloc(n, sizeof *l->output);
  l->segment = weft_alloc(n_segments, sizeof *l->segment);
  l->soft = weft_alloc(n_segments, sizeof *l->soft);
  l->table_at = weft_alloc(n_segments * l->layout.n_groups, sizeof *l->table_at);
  l->second = weft_alloc(l->config.sequences_max, sizeof *l->second);
  l->state = weft_alloc(n_segments * l->layout.n_groups, sizeof *l->state);
  l->bad = weft_alloc(l->config.head_rows, 1);
  l->logits = weft_alloc((uint64_t)l->config.head_rows * l->info->n_vocab, sizeof *l->logits);
  bool refused = l->token == NULL || l->position == NULL || l->output_row == NULL || l->output == NULL ||
                 l->segment == NULL || l->soft == NULL || l->table_at == NULL || l->bad == NULL || l->logits == NULL ||
                 l->second == NULL || l->state == NULL;
  for (uint32_t g = 0; g < l->layout.n_groups; g++) {
    l->kv_slot[g] = weft_alloc(n, sizeof *l->kv_slot[g]);
    refused |= l->kv_slot[g] == NULL;
  }
  return refused ? weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the arrays of a step") : WEFT_OK;
}

static weft_status open_buffers(weft_logits *l, weft_error *error) {
  weft_device *d = l->last;
  uint64_t n = l->config.limits.rows_max, hidden = l->info->n_hidden, n_head = l->config.head_rows;
  weft_head_rows_args rows = {
      .weight = l->head, .n_rows = (uint32_t)n_head, .h_stride = hidden, .logits_stride = l->info->n_vocab};
  weft_soft_args soft = {
      .weight = &l->canvas_head, .n_rows = 1, .logits_stride = l->info->n_vocab, .soft_stride = hidden};
  uint64_t a = weft_head_rows_scratch(d, &rows), b = weft_soft_scratch(d, &soft);
  l->scratch_bytes = a > b ? a : b;
  weft_status status = weft_device_alloc(d, n * hidden * sizeof(float), (void **)&l->d_hidden);
  if (status == WEFT_OK) status = weft_device_alloc(l->first, n * hidden * sizeof(float), (void **)&l->d_soft);
  if (status == WEFT_OK) status = weft_device_alloc(d, hidden * sizeof(float), (void **)&l->d_made_soft);
  if (status == WEFT_OK) {
    status = weft_device_alloc(d, n_head * l->info->n_vocab * sizeof(float), (void **)&l->d_logits);
  }
  if (status == WEFT_OK) status = weft_device_alloc(d, sizeof(float), (void **)&l->d_temperature);
  if (status == WEFT_OK) status = weft_device_alloc(d, n_head, (void **)&l->d_bad);
  if (status == WEFT_OK && l->scratch_bytes > 0) status = weft_device_alloc(d, l->scratch_bytes, &l->d_scratch);
  return status == WEFT_OK ? status : weft_fail(error, status, "no memory for the logits' buffers");
}

weft_status weft_logits_open(const weft_logits_config *config, weft_logits **out, weft_error *error) {
  *out = NULL;
  weft_logits *l = weft_alloc(1, sizeof *l);
  if (l == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory");
  l->config = *config;
  l->info = weft_model_get_info(config->model);
  l->split = weft_model_get_split(config->model);
  l->first = l->split->device[0];
  l->last = weft_split_last(l->split);
  l->head = weft_model_head(config->model, &l->cap, &l->embed_scale);
  l->canvas_head = weft_canvas_head(l->head);
  weft_status status = WEFT_OK;
  if (config->tokens_max == 0 || config->sequences_max == 0 || config->head_rows == 0) {
    status = weft_fail(error, WEFT_E_INVALID, "no tokens were given");
  } else if (config->tokens_max > l->info->context_length) {
    status = weft_fail(error, WEFT_E_TOO_LARGE, "%u tokens are more than the context of %u", config->tokens_max,
                       l->info->context_length);
  }
  if (status == WEFT_OK) status = open_pool(l, error);
  if (status == WEFT_OK) status = open_arrays(l, error);
  if (status == WEFT_OK) status = open_buffers(l, error);
  if (status != WEFT_OK) {
    weft_logits_close(l);
    return status;
  }
  *out = l;
  return WEFT_OK;
}

/* ---- a step ---- */

/* The rows of the step that are wanted, through the head, as many at once as there is room for. */
static weft_status give_rows(weft_logits *l, bool canvas, weft_error *error) {
  weft_device *d = l->last;
  uint64_t n_vocab = l->info->n_vocab;
  for (uint32_t first = 0, n; first < l->n_output; first += n) {
    n = l->n_output - first < l->config.head_rows ? l->n_output - first : l->config.head_rows;
    weft_head_rows_args rows = {.h = l->d_hidden + (uint64_t)first * l->info->n_hidden,
                                .weight = canvas ? &l->canvas_head : l->head,
                                .logits = l->d_logits,
                                .bad = l->d_bad,
                                .n_rows = n,
                                .h_stride = l->info->n_hidden,
                                .logits_stride = n_vocab,
                                .cap = l->cap,
                                .scratch = l->d_scratch,
                                .scratch_bytes = l->scratch_bytes};
    weft_status status = weft_head_rows(d, &rows);
    if (status == WEFT_OK) status = weft_device_download(d, l->logits, l->d_logits, n * n_vocab * sizeof(float));
    if (status == WEFT_OK) status = weft_device_download(d, l->bad, l->d_bad, n);
    if (status != WEFT_OK) return weft_fail(error, status, "the head failed: %s", weft_status_text(status));
    for (uint32_t i = 0; i < n; i++) l->output[first + i].bad = l->bad[i] != 0;
    if (l->take(l->self, l->output + first, n, l->logits, l->info->n_vocab) != 0) {
      return weft_fail(error, WEFT_E_IO, "the logits could not be written");
    }
  }
  return WEFT_OK;
}

/* Computes what the step holds and empties it. */
static weft_status run_step(weft_logits *l, weft_error *error) {
  bool canvas = l->n_segments > 0 && l->segment[0].pass == WEFT_PASS_DECODER;
  weft_batch batch = {.n_rows = l->n_rows,
                      .n_stored = canvas ? 0 : l->n_rows,
                      .n_encoder = canvas ? 0 : l->n_rows,
                      .n_segments = l->n_segments,
                      .n_groups = l->layout.n_groups,
                      .token = l->token,
                      .position = l->position,
                      .segment = l->segment,
                      .table = l->table,
                      .table_at = l->table_at,
                      .state = l->state,
                      .n_states = l->n_states};
  for (uint32_t g = 0; g < l->layout.n_groups; g++)
    batch.kv_slot[g] = l->layout.group[g].state_pages > 0 ? NULL : l->kv_slot[g];
  weft_forward_args args = {.batch = &batch,
                            .token = l->token,
                            .kv = l->store,
                            .layout = &l->layout,
                            .soft = l->soft,
                            .output_row = l->output_row,
                            .n_output = l->n_output,
                            .hidden = l->d_hidden,
                            .tap = l->config.tap,
                            .tap_self = l->config.tap_self};
  weft_status status = weft_model_forward(l->config.model, &args);
  if (status != WEFT_OK) return weft_fail(error, status, "the forward pass failed: %s", weft_status_text(status));
  status = give_rows(l, canvas, error);
  l->n_rows = l->n_segments = l->n_output = l->n_states = 0;
  return status;
}

/* The states of segment s in group g: it begins with the sequence's present one, and writes the other one if it reaches
 * a border. */
static void add_states(weft_logits *l, uint32_t s, uint32_t g, uint32_t sequence, bool was_second) {
  const weft_layer_group *group = &l->layout.group[g];
  uint32_t first = sequence * l->sequence_pages + l->first_page[g], kv_len = l->segment[s].kv_len;
  uint32_t end = kv_len + l->segment[s].n_rows, last = end / group->block_tokens * group->block_tokens;
  l->table_at[s * l->layout.n_groups + g] =
      kv_len < group->block_tokens ? WEFT_STATE_NONE : first + was_second * group->state_pages;
  if (last <= kv_len) return;
  l->second[sequence] = !was_second;
  l->state[l->n_states++] = (weft_state_write){
      .segment = s, .group = g, .position = last, .table_at = first + !was_second * group->state_pages};
}

/* One more segment of the step: n tokens of a sequence, from position kv_len on. Returns its first row. */
static uint32_t add_segment(weft_logits *l, uint32_t sequence, const int32_t *tokens, uint32_t kv_len, uint32_t n,
                            const float *soft, bool canvas) {
  uint32_t first = l->n_rows, s = l->n_segments, pages = sequence * l->sequence_pages;
  l->segment[s] = (weft_segment){.first_row = first,
                                 .n_rows = n,
                                 .kv_len = kv_len,
                                 .mask = canvas ? WEFT_MASK_WHOLE : WEFT_MASK_CAUSAL,
                                 .stores = canvas ? WEFT_STORES_SCRATCH : WEFT_STORES_POOL,
                                 .pass = canvas ? WEFT_PASS_DECODER : WEFT_PASS_ENCODER,
                                 .n_outputs = canvas ? n : 0,
                                 .ask = canvas ? WEFT_ASK_CANVAS : WEFT_ASK_SAMPLE,
                                 .step = soft != NULL};
  l->soft[s] = soft;
  bool was_second = l->second[sequence] != 0;
  for (uint32_t i = 0; i < n; i++) {
    l->token[first + i] = tokens[i];
    l->position[first + i] = (int32_t)(kv_len + i);
  }
  for (uint32_t g = 0; g < l->layout.n_groups; g++) {
    uint32_t block = l->layout.group[g].block_tokens;
    if (l->layout.group[g].state_pages > 0) {
      add_states(l, s, g, sequence, was_second);
      continue;
    }
    l->table_at[s * l->layout.n_groups + g] = pages + l->first_page[g];
    for (uint32_t i = 0; i < n; i++) {
      int64_t page = (int64_t)pages + l->first_page[g] + (kv_len + i) / block;
      l->kv_slot[g][first + i] = canvas ? -1 : page * block + (kv_len + i) % block;
    }
  }
  l->n_rows += n;
  l->n_segments += 1;
  return first;
}

static void want_row(weft_logits *l, uint32_t row_of_step, uint32_t sequence, uint32_t row) {
  l->output_row[l->n_output] = row_of_step;
  l->output[l->n_output++] = (weft_logits_row){.sequence = sequence, .row = row};
}

static weft_status run_tokens(weft_logits *l, uint32_t n_sequences, weft_error *error) {
  const weft_model_limits *limits = &l->config.limits;
  weft_status status = WEFT_OK;
  for (uint32_t s = 0; s < n_sequences && status == WEFT_OK; s++) {
    const weft_logits_sequence *q = &l->sequence[s];
    for (uint32_t at = 0, n; at < q->n_tokens && status == WEFT_OK; at += n) {
      uint32_t room = limits->rows_max - l->n_rows;
      n = q->n_tokens - at < room ? q->n_tokens - at : room;
      uint32_t first = add_segment(l, s, q->tokens + at, at, n, NULL, false);
      for (uint32_t i = 0; i < n; i++) {
        if (at + i >= q->first) want_row(l, first + i, s, at + i);
      }
      if (l->n_rows == limits->rows_max || l->n_segments == limits->segments_max) status = run_step(l, error);
    }
  }
  return status == WEFT_OK && l->n_rows > 0 ? run_step(l, error) : status;
}

/* Soft embedding rows of a canvas whose rows of the step will be first, first + 1, ... */
static weft_status make_soft(weft_logits *l, const weft_logits_sequence *q, const float *previous, uint32_t first,
                             weft_error *error) {
  weft_device *d = l->last;
  uint64_t n_vocab = l->info->n_vocab;
  weft_status status = weft_device_upload(d, l->d_temperature, &q->previous_temperature, sizeof(float));
  for (uint32_t i = 0; i < l->info->canvas_length && status == WEFT_OK; i++) {
    status = weft_device_upload(d, l->d_logits, previous + i * n_vocab, n_vocab * sizeof(float));
    weft_soft_args args = {.logits = l->d_logits,
                           .temperature = l->d_temperature,
                           .weight = &l->canvas_head,
                           .soft = l->d_made_soft,
                           .n_rows = 1,
                           .logits_stride = n_vocab,
                           .soft_stride = l->info->n_hidden,
                           .scale = l->embed_scale,
                           .scratch = l->d_scratch,
                           .scratch_bytes = l->scratch_bytes};
    float *to = l->d_soft + (uint64_t)(first + i) * l->info->n_hidden;
    if (status == WEFT_OK) status = weft_soft(d, &args);
    if (status == WEFT_OK)
      status = weft_device_send(d, l->first, to, l->d_made_soft, l->info->n_hidden * sizeof(float));
  }
  if (status == WEFT_OK) status = weft_device_mark(d, MARK_SOFT);
  if (status == WEFT_OK) status = weft_device_follow(l->first, d, MARK_SOFT);
  return status == WEFT_OK ? status
                           : weft_fail(error, status, "the soft embedding failed: %s", weft_status_text(status));
}

static weft_status add_canvas(weft_logits *l, uint32_t s, uint32_t canvas, weft_error *error) {
  const weft_logits_sequence *q = &l->sequence[s];
  uint32_t n = l->info->canvas_length, at = canvas * n;
  const float *soft = NULL;
  if (q->previous != NULL) {
    soft = l->d_soft + (uint64_t)l->n_rows * l->info->n_hidden;
    weft_status status = make_soft(l, q, q->previous + (uint64_t)at * l->info->n_vocab, l->n_rows, error);
    if (status != WEFT_OK) return status;
  }
  uint32_t first = add_segment(l, s, q->canvas + at, q->n_tokens, n, soft, true);
  for (uint32_t i = 0; i < n; i++) {
    if (q->wanted == NULL || q->wanted[at + i] != 0) want_row(l, first + i, s, q->n_tokens + at + i);
  }
  return WEFT_OK;
}

static weft_status run_canvases(weft_logits *l, uint32_t n_sequences, weft_error *error) {
  const weft_model_limits *limits = &l->config.limits;
  weft_status status = WEFT_OK;
  for (uint32_t s = 0; s < n_sequences; s++) {
    for (uint32_t k = 0; k < l->sequence[s].n_canvases && status == WEFT_OK; k++) {
      status = add_canvas(l, s, k, error);
      bool full = l->n_rows + l->info->canvas_length > limits->canvas_rows_max || l->n_segments == limits->segments_max;
      if (status == WEFT_OK && full) status = run_step(l, error);
    }
  }
  return status == WEFT_OK && l->n_rows > 0 ? run_step(l, error) : status;
}

/* ---- a call ---- */

static weft_status check_tokens(const weft_logits *l, const int32_t *tokens, uint64_t n, weft_error *error) {
  for (uint64_t i = 0; i < n; i++) {
    if (tokens[i] >= 0 && (uint32_t)tokens[i] < l->info->n_vocab) continue;
    return weft_fail(error, WEFT_E_INVALID, "token %d is not in the vocabulary of %u", tokens[i], l->info->n_vocab);
  }
  return WEFT_OK;
}

static weft_status check_sequence(const weft_logits *l, const weft_logits_sequence *q, weft_error *error) {
  const weft_model_info *info = l->info;
  uint32_t canvas = q->n_canvases > 0 ? info->canvas_length : 0;
  if (q->n_tokens == 0) return weft_fail(error, WEFT_E_INVALID, "no tokens were given");
  if (q->n_tokens > l->config.tokens_max || (uint64_t)q->n_tokens + canvas > info->context_length) {
    return weft_fail(error, WEFT_E_TOO_LARGE, "%u tokens are more than the context of %u", q->n_tokens + canvas,
                     info->context_length);
  }
  if (q->n_canvases > 0 && canvas == 0) {
    return weft_fail(error, WEFT_E_UNSUPPORTED, "%s has no canvas pass", info->name);
  }
  if (canvas > l->config.limits.canvas_rows_max) {
    return weft_fail(error, WEFT_E_TOO_LARGE, "a canvas of %u rows is more than the %u of a step", canvas,
                     l->config.limits.canvas_rows_max);
  }
  weft_status status = check_tokens(l, q->tokens, q->n_tokens, error);
  if (status == WEFT_OK) status = check_tokens(l, q->canvas, (uint64_t)q->n_canvases * canvas, error);
  return status;
}

weft_status weft_logits_run(weft_logits *l, const weft_logits_sequence *sequence, uint32_t n_sequences,
                            weft_logits_take take, void *self, weft_error *error) {
  weft_status status = WEFT_OK;
  if (n_sequences > l->config.sequences_max) {
    status = weft_fail(error, WEFT_E_TOO_LARGE, "%u sequences are more than the %u of a call", n_sequences,
                       l->config.sequences_max);
  }
  for (uint32_t s = 0; s < n_sequences && status == WEFT_OK; s++) status = check_sequence(l, &sequence[s], error);
  l->sequence = sequence;
  l->take = take;
  l->self = self;
  l->n_rows = l->n_segments = l->n_output = 0;
  if (status == WEFT_OK) status = run_tokens(l, n_sequences, error);
  if (status == WEFT_OK) status = run_canvases(l, n_sequences, error);
  return status;
}
