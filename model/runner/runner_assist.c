/* SPDX-License-Identifier: MIT */
#include "model/runner/runner_assist.h"

#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "model/assistant.h"
#include "model/dflash.h"
#include "model/nextn.h"
#include "model/runner/runner_ways.h"

/* ---- open and close ---- */

void *runner_take_draft_memory(device_runner *r, runner_assist *a, uint64_t n, uint64_t size, weft_status *status) {
  a->n_bytes += n * size;
  return runner_memory_take(&r->memory, r->first, n * size, status);
}

/* The parts of the stream that a layer which guesses ahead reads are kept from now on: of the model, and its own. */
static weft_status take_streams(device_runner *r, runner_assist *a) {
  weft_model *target = r->config.model;
  const uint64_t n = a->n_target;
  weft_status status = WEFT_OK;
  float *own = runner_take_draft_memory(r, a, a->rows_max * n, sizeof *own, &status);
  float *of_model = runner_take_draft_memory(r, a, target->limits.rows_max * n, sizeof *own, &status);
  if (status != WEFT_OK) return status;
  a->model->features.stream = own;
  target->features.stream = of_model;
  return runner_near_open(r, a);
}

/* What goes into the layers that a drafter of blocks names is kept from now on. */
static weft_status take_features(device_runner *r, runner_assist *a) {
  weft_model *target = r->config.model;
  weft_status status = WEFT_OK;
  if (nextn_is(a->model) && a->model->hyper.latent.n_streams > 0) return take_streams(r, a);
  if (!dflash_is(a->model)) return WEFT_OK;
  target->features.rows = runner_take_draft_memory(r, a, (uint64_t)target->limits.rows_max * a->model->hyper.n_target,
                                                   sizeof(float), &status);
  target->features.block = status == WEFT_OK ? &a->model->hyper.block : NULL;
  return status;
}

static weft_status take_arrays(device_runner *r, runner_assist *a) {
  weft_status status = WEFT_OK;
  uint64_t n = a->rows_max, f = sizeof(float), n_pairs = a->model->limits.rows_max;
  weft_head_stats_args stats = {.weight = a->head, .n_rows = a->rows_max, .h_stride = a->n_hidden};
  a->scratch_bytes = weft_head_stats_scratch(r->first, &stats);
  a->kept = runner_take_draft_memory(r, a, (uint64_t)(r->info.depth + 1) * a->kept_rows * a->n_target, f, &status);
  a->newest = runner_take_draft_memory(r, a, (r->config.n_slots + 1ull) * a->n_target, f, &status);
  a->pair = runner_take_draft_memory(r, a, 2 * n_pairs * a->n_target, f, &status);
  a->hidden = runner_take_draft_memory(r, a, n * a->n_hidden, f, &status);
  a->token = runner_take_draft_memory(r, a, n * (RUNNER_DRAFTS_MAX + 1), sizeof *a->token, &status);
  a->asked = runner_take_draft_memory(r, a, n * (2 * RUNNER_DRAFTS_MAX + 1), sizeof *a->asked, &status);
  a->stats = runner_take_draft_memory(r, a, runner_stats_bytes(n), 1, &status);
  a->scratch = runner_take_draft_memory(r, a, a->scratch_bytes, 1, &status);
  if (status == WEFT_OK) status = take_features(r, a);
  if (status == WEFT_OK) status = runner_heads_open(r, a);
  if (status == WEFT_OK)
    status = weft_device_alloc_host(r->first, n * RUNNER_DRAFTS_MAX * sizeof *a->drafted, (void **)&a->drafted);
  if (status != WEFT_OK) return status;
  a->input = weft_alloc(n * (2 * RUNNER_DRAFTS_MAX + 1), sizeof *a->input);
  a->row = weft_alloc(n_pairs, sizeof *a->row);
  a->allowed_of = weft_alloc(n, sizeof *a->allowed_of);
  a->output_at = weft_alloc(n_pairs, sizeof *a->output_at);
  a->position = weft_alloc(n_pairs, sizeof *a->position);
  a->marks = weft_alloc(n_pairs, sizeof *a->marks);
  a->no_slot = weft_alloc(n_pairs, sizeof *a->no_slot);
  a->segment = weft_alloc(n, sizeof *a->segment);
  if (a->input == NULL || a->row == NULL || a->allowed_of == NULL || a->output_at == NULL || a->position == NULL ||
      a->no_slot == NULL || a->segment == NULL || a->marks == NULL)
    return WEFT_E_NO_MEMORY;
  for (uint32_t i = 0; i < n; i++) a->allowed_of[i] = r->allowed;
  for (uint32_t i = 0; i < n_pairs; i++) {
    a->row[i] = i;
    a->no_slot[i] = -1;
  }
  return weft_device_zero(r->first, a->newest, (r->config.n_slots + 1ull) * a->n_target * f);
}

weft_status runner_assist_open(device_runner *r, runner_assist **out) {
  float cap, scale;
  *out = NULL;
  if (r->config.assistant == NULL) return WEFT_OK;
  runner_assist *a = *out = weft_alloc(1, sizeof *a);
  if (a == NULL) return WEFT_E_NO_MEMORY;
  const weft_model *model = r->config.assistant;
  a->model = r->config.assistant;
  a->way = nextn_is(model) ? &runner_way_nextn : dflash_is(model) ? &runner_way_dflash : &runner_way_assistant;
  a->head = weft_model_head(model, &cap, &scale);
  a->n_target = dflash_is(model)  ? model->hyper.n_hidden
                : nextn_is(model) ? (uint32_t)model_row_width(model)
                                  : model->hyper.n_target;
  a->n_hidden = model->hyper.n_hidden;
  a->rows_max = model->limits.segments_max;
  a->kept_rows = r->config.limits.segments_max + r->info.draft_rows_max;
  return take_arrays(r, a);
}

void runner_assist_close(device_runner *r, runner_assist *a) {
  if (a == NULL) return;
  r->config.model->features = (model_features){.block = NULL};
  a->model->features.stream = NULL;
  runner_near_close(a->near);
  weft_device_free_host(r->first, a->drafted);
  weft_free(a->logits.host);
  weft_free(a->input);
  weft_free(a->row);
  weft_free(a->allowed_of);
  weft_free(a->output_at);
  weft_free(a->position);
  weft_free(a->marks);
  weft_free(a->no_slot);
  weft_free(a->segment);
  weft_free(a);
}

uint64_t runner_assist_bytes(const runner_assist *a) {
  return a == NULL ? 0 : a->n_bytes;
}

/* ---- hidden rows ---- */

float *runner_kept_of(const device_runner *r, const runner_flight *f) {
  const runner_assist *a = r->assist;
  return a->kept + (uint64_t)(f - r->flight) * a->kept_rows * a->n_target;
}

float *runner_hidden_rows(const device_runner *r) {
  float *stream = r->config.model->features.stream;
  return stream != NULL ? stream : r->d_hidden;
}

weft_status runner_keep_rows(device_runner *r, const runner_flight *f) {
  const runner_outputs *o = &f->outputs;
  uint64_t n = r->assist->n_target, f32 = sizeof(float);
  float *kept = runner_kept_of(r, f), *rows = runner_hidden_rows(r);
  weft_status status = WEFT_OK;
  if (o->n_logits > 0) status = weft_device_copy(r->last, kept, rows, o->n_logits * n * f32);
  if (status != WEFT_OK || o->n_plain == 0) return status;
  return weft_device_copy(r->last, kept + o->n_logits * n, rows + runner_first_stats(o) * n, o->n_plain * n * f32);
}

weft_status runner_take_newest(device_runner *r, const runner_flight *f, uint32_t segment, uint64_t row) {
  runner_assist *a = r->assist;
  return weft_device_copy(r->last, a->newest + (uint64_t)f->segment[segment].slot * a->n_target,
                          runner_kept_of(r, f) + row * a->n_target, a->n_target * sizeof(float));
}

bool runner_assist_was_new(device_runner *r) {
  bool was_new = r->assist != NULL && r->assist->is_new;
  if (was_new) r->assist->is_new = false;
  return was_new;
}

bool runner_assist_shows_all(const device_runner *r) {
  return r->assist != NULL && r->assist->way->shows_all;
}

weft_status runner_assist_step(device_runner *r, const runner_flight *f, const runner_step *step) {
  return r->assist == NULL ? WEFT_OK : r->assist->way->after_step(r, f, step);
}

/* A result's tokens lie at the places of the rows that drew them, in the order in which these were kept. */
weft_status runner_assist_take(device_runner *r, const runner_flight *f) {
  weft_status status = WEFT_OK;
  if (r->assist == NULL) return WEFT_OK;
  for (uint32_t i = 0; i < f->n_segments && status == WEFT_OK; i++) {
    runner_slot *s = runner_slot_of(r, f, i);
    const weft_segment_result *result = &f->result[i];
    if (s == NULL || result->n_taken == 0 || f->segment[i].peeks) continue;
    s->hidden_at = s->n_history;
    status = r->assist->way->take(r, f, i, (uint64_t)(result->token - f->token) + result->n_taken - 1);
  }
  return status;
}

/* ---- drafts ---- */

/* What each draft is drawn with, as plain rows of the target are (ask_plain_row in device_runner.c). */
static weft_status ask_drafts(device_runner *r, const weft_batch *batch, uint32_t n_drafts) {
  runner_assist *a = r->assist;
  uint32_t n = batch->n_rows;
  int32_t *which = a->input, *asked = a->input + n;
  a->n_drawn = 0;
  for (uint32_t i = 0; i < n; i++) {
    const runner_slot *s = &r->slots[batch->segment[i].slot];
    const weft_sampling *p = s->params.sampling;
    float temperature = p->temperature > 0.0f ? p->temperature : 1.0f;
    which[i] = (int32_t)(p->temperature > 0.0f ? n + i : i);
    a->n_drawn += p->temperature > 0.0f;
    for (uint32_t k = 0; k < n_drafts; k++) {
      weft_draw_key key = {p->seed, p->choice, WEFT_DRAW_TOKEN, (uint64_t)batch->position[i] + 1 + k, 0};
      float u = weft_draw_uniform(&key);
      memcpy(asked + (uint64_t)2 * k * n + i, &temperature, sizeof temperature);
      memcpy(asked + ((uint64_t)2 * k + 1) * n + i, &u, sizeof u);
    }
  }
  weft_status status =
      weft_device_upload(r->first, a->asked, a->input, ((uint64_t)2 * n_drafts + 1) * n * sizeof *a->asked);
  if (status == WEFT_OK) status = weft_device_upload(r->first, a->token, batch->token, n * sizeof *a->token);
  return status == WEFT_OK && runner_heads_apply(a) ? runner_heads_ask(r, batch, n_drafts) : status;
}

/* The tokens of draft k, behind those of the drafts before. Where all rows draw, or none does, the head writes them. */
static weft_status draw_drafts(device_runner *r, uint32_t n, uint32_t k) {
  runner_assist *a = r->assist;
  if (runner_heads_apply(a)) return runner_heads_draw(r, n, k);
  runner_stats out = runner_stats_at(a->stats, n);
  int32_t *token = a->token + ((uint64_t)k + 1) * n;
  const weft_move_args move = {.to = token, .from = out.argmax, .from_at = a->asked, .n_rows = n};
  const float *asked = (const float *)(const void *)(a->asked + n);
  weft_head_stats_args stats = {.h = a->hidden,
                                .weight = a->head,
                                .temperature = asked + (uint64_t)2 * k * n,
                                .u = asked + ((uint64_t)2 * k + 1) * n,
                                .allowed = r->allowed != NULL ? a->allowed_of : NULL,
                                .argmax = a->n_drawn == 0 ? token : out.argmax,
                                .drawn = a->n_drawn == 0   ? NULL
                                         : a->n_drawn == n ? token
                                                           : out.drawn,
                                .top = out.top,
                                .log_total = a->n_drawn == 0 ? NULL : out.log_total,
                                .entropy = a->n_drawn == 0 ? NULL : out.entropy,
                                .bad = out.bad,
                                .n_rows = n,
                                .h_stride = a->n_hidden,
                                .scratch = a->scratch,
                                .scratch_bytes = a->scratch_bytes};
  weft_status status = weft_head_stats(r->first, &stats);
  return status == WEFT_OK && a->n_drawn > 0 && a->n_drawn < n ? weft_move(r->first, &move) : status;
}

/* Draft k of every row. A draft that comes again, of as many rows, is repeated as a graph, whatever comes behind it. */
static weft_status make_draft(device_runner *r, const weft_batch *batch, uint32_t k, uint32_t n_drafts) {
  runner_assist *a = r->assist;
  bool in_graph = r->graphs && a->near == NULL;
  uint64_t key = weft_mix64((uint64_t)(uintptr_t)a ^ weft_mix64((uint64_t)batch->n_rows << 32 | k)) | 1;
  const weft_graph_counters before = weft_device_graph_counters(r->first);
  weft_status status;
  if (in_graph) weft_device_graph_owner(r->first, r->config.graph_owner);
  if (in_graph) weft_device_graph_begin(r->first, key, NULL);
  do {
    status = a->way->draft(r, batch, k, n_drafts);
    if (status == WEFT_OK) status = draw_drafts(r, batch->n_rows, k);
  } while (in_graph && weft_device_graph_end(r->first, &status));
  const weft_graph_counters after = weft_device_graph_counters(r->first);
  if (after.eager + after.captures != before.eager + before.captures) a->is_new = true;
  return status;
}

static weft_status make_drafts(device_runner *r, const weft_batch *batch, uint32_t n_drafts) {
  runner_assist *a = r->assist;
  uint64_t n = batch->n_rows;
  weft_status status = ask_drafts(r, batch, n_drafts);
  if (status == WEFT_OK) status = a->way->begin(r, batch, n_drafts);
  for (uint32_t k = 0; k < n_drafts && status == WEFT_OK; k++) status = make_draft(r, batch, k, n_drafts);
  if (status == WEFT_OK)
    status = weft_device_copy(r->first, a->drafted, a->token + n, n_drafts * n * sizeof *a->drafted);
  return status == WEFT_OK ? weft_device_sync(r->first) : status;
}

/* Rows first .. first + n - 1 of the batch. */
static weft_batch part_of(const weft_batch *batch, uint32_t first, uint32_t n) {
  weft_batch part = *batch;
  part.n_rows = part.n_stored = part.n_encoder = part.n_segments = n;
  part.token += first;
  part.position += first;
  part.segment += first;
  part.table_at += (uint64_t)first * batch->n_groups;
  return part;
}

static weft_status draft_part(device_runner *r, const weft_batch *batch, uint32_t n_drafts, uint32_t stride,
                              int32_t *out) {
  const runner_assist *a = r->assist;
  uint32_t n = batch->n_rows;
  weft_status status = make_drafts(r, batch, n_drafts);
  for (uint32_t i = 0; i < n && status == WEFT_OK; i++) {
    const runner_slot *s = &r->slots[batch->segment[i].slot];
    bool known = s->n_pending == 0 && s->hidden_at == s->n_history && s->n_history == (uint32_t)batch->position[i] + 1;
    known = known && a->way->knows(s);
    for (uint32_t k = 0; k < n_drafts; k++)
      out[(uint64_t)i * stride + k] = known ? a->drafted[(uint64_t)k * n + i] : -1;
  }
  return status;
}

weft_status runner_draft(weft_runner *base, const weft_batch *batch, uint32_t n_drafts, int32_t *out) {
  device_runner *r = (device_runner *)(void *)base;
  runner_assist *a = r->assist;
  uint32_t n = batch->n_rows, n_made = n_drafts;
  if (r->broken) return WEFT_E_DEVICE;
  if (a == NULL || n == 0 || n > a->rows_max || n != batch->n_segments || n_drafts == 0 || n_drafts > RUNNER_DRAFTS_MAX)
    return WEFT_E_INVALID;
  while (a->way->rows_at_once(r, n_made) == 0) n_made -= 1;
  for (uint64_t i = 0; i < (uint64_t)n * n_drafts; i++) out[i] = -1;
  uint32_t most = a->way->rows_at_once(r, n_made);
  weft_status status = WEFT_OK;
  for (uint32_t first = 0; first < n && status == WEFT_OK; first += most) {
    const weft_batch part = part_of(batch, first, n - first < most ? n - first : most);
    status = draft_part(r, &part, n_made, n_drafts, out + (uint64_t)first * n_drafts);
  }
  if (status != WEFT_OK) r->broken = true;
  return status;
}

/* ---- a drafter that reads the model's keys ---- */

static uint32_t count_all_rows(const device_runner *r, uint32_t n_drafts) {
  (void)n_drafts;
  return r->assist->rows_max;
}

static weft_status keep_drawing_rows(device_runner *r, const runner_flight *f, const runner_step *step) {
  (void)step;
  return runner_keep_rows(r, f);
}

static bool know_slot(const runner_slot *s) {
  (void)s;
  return true;
}

uint32_t runner_slots_in_turn(const weft_batch *batch, uint32_t first) {
  uint32_t n = 1;
  while (first + n < batch->n_rows && batch->segment[first + n].slot == batch->segment[first].slot + n) n += 1;
  return n;
}

static weft_status copy_newest(device_runner *r, const weft_batch *batch, uint32_t n_drafts) {
  runner_assist *a = r->assist;
  const uint64_t width = a->n_target;
  weft_status status = WEFT_OK;
  (void)n_drafts;
  for (uint32_t i = 0, n; i < batch->n_rows && status == WEFT_OK; i += n) {
    n = runner_slots_in_turn(batch, i);
    const weft_norm_args copy = {.x = a->newest + batch->segment[i].slot * width,
                                 .y = a->pair + (2ull * i + 1) * width,
                                 .n_rows = n,
                                 .n_cols = a->n_target,
                                 .plain = true,
                                 .x_stride = width,
                                 .y_stride = 2 * width};
    status = weft_norm(r->first, &copy);
  }
  return status;
}

static weft_status step_assistant(device_runner *r, const weft_batch *batch, uint32_t k, uint32_t n_drafts) {
  runner_assist *a = r->assist;
  const assistant_args args = {.model = a->model,
                               .batch = batch,
                               .kv = r->config.store,
                               .layout = r->config.layout,
                               .token = a->token + (uint64_t)k * batch->n_rows,
                               .pair = a->pair,
                               .hidden = a->hidden,
                               .row = a->row,
                               .again = k > 0};
  (void)n_drafts;
  return assistant_step(&args);
}

const runner_way runner_way_assistant = {.rows_at_once = count_all_rows,
                                         .after_step = keep_drawing_rows,
                                         .take = runner_take_newest,
                                         .knows = know_slot,
                                         .begin = copy_newest,
                                         .draft = step_assistant};
