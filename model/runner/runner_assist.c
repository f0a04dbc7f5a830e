/* SPDX-License-Identifier: MIT */
#include "model/runner/runner_assist.h"

#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "model/assistant.h"

enum { DRAFTS_MAX = 64 };

typedef struct runner_assist {
  weft_model *model;
  const weft_weight *head;
  uint32_t n_target, n_hidden, rows_max, kept_rows;
  uint64_t scratch_bytes, n_bytes;
  /* Arrays of the device. */
  float *kept;    /* [depth + 1][kept_rows][n_target] hidden rows that flights draw from */
  float *newest;  /* [n_slots][n_target] that of each slot */
  float *pair;    /* [rows_max][2][n_target] */
  float *hidden;  /* [rows_max][n_hidden] */
  int32_t *token; /* [DRAFTS_MAX + 1][rows_max] the last token, then drafts */
  int32_t *asked; /* [DRAFTS_MAX][2][rows_max] temperatures and numbers drawn, then [rows_max] which of both */
  void *stats;    /* of rows_max rows */
  void *scratch;
  /* Host memory. */
  int32_t *drafted; /* [DRAFTS_MAX][rows_max] that the device sends */
  int32_t *input;   /* [DRAFTS_MAX * 2 + 1][rows_max] */
  int32_t *last;    /* [rows_max] */
  uint32_t *row;    /* [rows_max] 0, 1, 2 .. */
  const uint32_t **allowed_of;
} runner_assist;

/* ---- open and close ---- */

static void *take_device(device_runner *r, runner_assist *a, uint64_t n, uint64_t size, weft_status *status) {
  a->n_bytes += n * size;
  return runner_memory_take(&r->memory, r->first, n * size, status);
}

static weft_status take_arrays(device_runner *r, runner_assist *a) {
  weft_status status = WEFT_OK;
  uint64_t n = a->rows_max, f = sizeof(float);
  weft_head_stats_args stats = {.weight = a->head, .n_rows = a->rows_max, .h_stride = a->n_hidden};
  a->scratch_bytes = weft_head_stats_scratch(r->first, &stats);
  a->kept = take_device(r, a, (uint64_t)(r->info.depth + 1) * a->kept_rows * a->n_target, f, &status);
  a->newest = take_device(r, a, (uint64_t)r->config.n_slots * a->n_target, f, &status);
  a->pair = take_device(r, a, 2 * n * a->n_target, f, &status);
  a->hidden = take_device(r, a, n * a->n_hidden, f, &status);
  a->token = take_device(r, a, n * (DRAFTS_MAX + 1), sizeof *a->token, &status);
  a->asked = take_device(r, a, n * (2 * DRAFTS_MAX + 1), sizeof *a->asked, &status);
  a->stats = take_device(r, a, runner_stats_bytes(n), 1, &status);
  a->scratch = take_device(r, a, a->scratch_bytes, 1, &status);
  if (status == WEFT_OK)
    status = weft_device_alloc_host(r->first, n * DRAFTS_MAX * sizeof *a->drafted, (void **)&a->drafted);
  if (status != WEFT_OK) return status;
  a->input = weft_alloc(n * (2 * DRAFTS_MAX + 1), sizeof *a->input);
  a->last = weft_alloc(n, sizeof *a->last);
  a->row = weft_alloc(n, sizeof *a->row);
  a->allowed_of = weft_alloc(n, sizeof *a->allowed_of);
  if (a->input == NULL || a->last == NULL || a->row == NULL || a->allowed_of == NULL) return WEFT_E_NO_MEMORY;
  for (uint32_t i = 0; i < a->rows_max; i++) {
    a->row[i] = i;
    a->allowed_of[i] = r->allowed;
  }
  return WEFT_OK;
}

weft_status runner_assist_open(device_runner *r, runner_assist **out) {
  float cap, scale;
  *out = NULL;
  if (r->config.assistant == NULL) return WEFT_OK;
  runner_assist *a = *out = weft_alloc(1, sizeof *a);
  if (a == NULL) return WEFT_E_NO_MEMORY;
  const weft_model *model = r->config.assistant;
  a->model = r->config.assistant;
  a->head = weft_model_head(model, &cap, &scale);
  a->n_target = model->hyper.n_target;
  a->n_hidden = model->hyper.n_hidden;
  a->rows_max = model->limits.segments_max;
  a->kept_rows = r->config.limits.segments_max + r->info.draft_rows_max;
  return take_arrays(r, a);
}

void runner_assist_close(device_runner *r, runner_assist *a) {
  if (a == NULL) return;
  weft_device_free_host(r->first, a->drafted);
  weft_free(a->input);
  weft_free(a->last);
  weft_free(a->row);
  weft_free(a->allowed_of);
  weft_free(a);
}

uint64_t runner_assist_bytes(const runner_assist *a) {
  return a == NULL ? 0 : a->n_bytes;
}

/* ---- hidden rows ---- */

static float *kept_of(const device_runner *r, const runner_flight *f) {
  const runner_assist *a = r->assist;
  return a->kept + (uint64_t)(f - r->flight) * a->kept_rows * a->n_target;
}

/* Rows that draw: those that need logits come first among the hidden rows, plain ones behind those that are scored. */
weft_status runner_assist_keep(device_runner *r, const runner_flight *f) {
  const runner_outputs *o = &f->outputs;
  if (r->assist == NULL) return WEFT_OK;
  uint64_t n = r->n_hidden, f32 = sizeof(float);
  float *kept = kept_of(r, f);
  weft_status status = WEFT_OK;
  if (o->n_logits > 0) status = weft_device_copy(r->last, kept, r->d_hidden, o->n_logits * n * f32);
  if (status != WEFT_OK || o->n_plain == 0) return status;
  return weft_device_copy(r->last, kept + o->n_logits * n, r->d_hidden + runner_first_stats(o) * n,
                          o->n_plain * n * f32);
}

/* A result's tokens lie at the places of the rows that drew them, in the order in which these were kept. */
weft_status runner_assist_take(device_runner *r, const runner_flight *f) {
  runner_assist *a = r->assist;
  weft_status status = WEFT_OK;
  if (a == NULL) return WEFT_OK;
  for (uint32_t i = 0; i < f->n_segments && status == WEFT_OK; i++) {
    runner_slot *s = runner_slot_of(r, f, i);
    const weft_segment_result *result = &f->result[i];
    if (s == NULL || result->n_taken == 0 || f->segment[i].peeks) continue;
    uint64_t row = (uint64_t)(result->token - f->token) + result->n_taken - 1;
    s->hidden_at = s->n_history;
    status = weft_device_copy(r->last, a->newest + (uint64_t)f->segment[i].slot * a->n_target,
                              kept_of(r, f) + row * a->n_target, a->n_target * sizeof(float));
  }
  return status;
}

/* ---- drafts ---- */

/* What each draft is drawn with, as plain rows of the target are (ask_plain_row in device_runner.c). */
static weft_status ask_drafts(device_runner *r, const weft_batch *batch, uint32_t n_drafts) {
  runner_assist *a = r->assist;
  uint32_t n = batch->n_rows;
  int32_t *which = a->input + (uint64_t)2 * n_drafts * n;
  for (uint32_t i = 0; i < n; i++) {
    const runner_slot *s = &r->slots[batch->segment[i].slot];
    const weft_sampling *p = s->params.sampling;
    float temperature = p->temperature > 0.0f ? p->temperature : 1.0f;
    which[i] = (int32_t)(p->temperature > 0.0f ? n + i : i);
    for (uint32_t k = 0; k < n_drafts; k++) {
      weft_draw_key key = {p->seed, p->choice, WEFT_DRAW_TOKEN, (uint64_t)batch->position[i] + 1 + k, 0};
      float u = weft_draw_uniform(&key);
      memcpy(a->input + (uint64_t)2 * k * n + i, &temperature, sizeof temperature);
      memcpy(a->input + ((uint64_t)2 * k + 1) * n + i, &u, sizeof u);
    }
  }
  weft_status status =
      weft_device_upload(r->first, a->asked, a->input, ((uint64_t)2 * n_drafts + 1) * n * sizeof *a->asked);
  if (status == WEFT_OK) status = weft_device_upload(r->first, a->token, batch->token, n * sizeof *a->token);
  for (uint32_t i = 0; i < n && status == WEFT_OK; i++)
    status = weft_device_copy(r->first, a->pair + (2ull * i + 1) * a->n_target,
                              a->newest + (uint64_t)batch->segment[i].slot * a->n_target, a->n_target * sizeof(float));
  return status;
}

/* The tokens of draft k, behind those of the drafts before. */
static weft_status draw_drafts(device_runner *r, uint32_t n, uint32_t k, uint32_t n_drafts) {
  runner_assist *a = r->assist;
  runner_stats out = runner_stats_at(a->stats, n);
  const float *asked = (const float *)(const void *)a->asked;
  weft_head_stats_args stats = {.h = a->hidden,
                                .weight = a->head,
                                .temperature = asked + (uint64_t)2 * k * n,
                                .u = asked + ((uint64_t)2 * k + 1) * n,
                                .allowed = r->allowed != NULL ? a->allowed_of : NULL,
                                .argmax = out.argmax,
                                .drawn = out.drawn,
                                .top = out.top,
                                .log_total = out.log_total,
                                .entropy = out.entropy,
                                .bad = out.bad,
                                .n_rows = n,
                                .h_stride = a->n_hidden,
                                .scratch = a->scratch,
                                .scratch_bytes = a->scratch_bytes};
  weft_move_args move = {.to = a->token + ((uint64_t)k + 1) * n,
                         .from = out.argmax,
                         .from_at = a->asked + (uint64_t)2 * n_drafts * n,
                         .n_rows = n};
  weft_status status = weft_head_stats(r->first, &stats);
  return status == WEFT_OK ? weft_move(r->first, &move) : status;
}

static weft_status make_drafts(device_runner *r, const weft_batch *batch, uint32_t n_drafts) {
  runner_assist *a = r->assist;
  uint64_t n = batch->n_rows;
  weft_status status = ask_drafts(r, batch, n_drafts);
  for (uint32_t k = 0; k < n_drafts && status == WEFT_OK; k++) {
    const assistant_args args = {.model = a->model,
                                 .batch = batch,
                                 .kv = r->config.store,
                                 .layout = r->config.layout,
                                 .token = a->token + k * n,
                                 .pair = a->pair,
                                 .hidden = a->hidden,
                                 .row = a->row};
    status = assistant_step(&args);
    if (status == WEFT_OK) status = draw_drafts(r, batch->n_rows, k, n_drafts);
  }
  if (status == WEFT_OK)
    status = weft_device_copy(r->first, a->drafted, a->token + n, n_drafts * n * sizeof *a->drafted);
  return status == WEFT_OK ? weft_device_sync(r->first) : status;
}

weft_status runner_draft(weft_runner *base, const weft_batch *batch, uint32_t n_drafts, int32_t *out) {
  device_runner *r = (device_runner *)(void *)base;
  runner_assist *a = r->assist;
  uint32_t n = batch->n_rows;
  if (r->broken) return WEFT_E_DEVICE;
  if (a == NULL || n == 0 || n > a->rows_max || n != batch->n_segments || n_drafts == 0 || n_drafts > DRAFTS_MAX)
    return WEFT_E_INVALID;
  weft_status status = make_drafts(r, batch, n_drafts);
  if (status != WEFT_OK) r->broken = true;
  for (uint32_t i = 0; i < n && status == WEFT_OK; i++) {
    const runner_slot *s = &r->slots[batch->segment[i].slot];
    bool known = s->n_pending == 0 && s->hidden_at == s->n_history && s->n_history == (uint32_t)batch->position[i] + 1;
    for (uint32_t k = 0; k < n_drafts; k++) out[i * n_drafts + k] = known ? a->drafted[(uint64_t)k * n + i] : -1;
  }
  return status;
}
