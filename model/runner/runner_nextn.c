/* SPDX-License-Identifier: MIT */
/* Drafts of the layer of the model's own file that guesses tokens ahead (model/nextn.h).
 *
 * Law: behind every step of the model the layer makes the keys of all rows of the step, each from the row's token and
 * the hidden row of the row before it: that of the same segment, or the slot's newest one. The latter is renewed in the
 * order of steps, so a step that is enqueued before this one has landed finds it; only of a run is it known when the
 * run has landed, and no row comes before that. Where the newest row is not of the position before, there are zeros. */
#include <string.h>

#include "model/nextn.h"
#include "model/runner/runner_ways.h"

static bool is_run(const weft_segment *s) {
  return s->peeks || weft_segment_n_sampled(s) > 1;
}

static nextn_rows rows_of(const device_runner *r) {
  return (nextn_rows){.model = r->assist->model, .pair = r->assist->pair};
}

/* ---- keys of a step ---- */

/* The hidden row before a row of a step. */
static float *hidden_before(const device_runner *r, const weft_segment *segment, uint32_t row) {
  const runner_assist *a = r->assist;
  const runner_slot *s = &r->slots[segment->slot];
  if (row > segment->first_row) return runner_hidden_rows(r) + (uint64_t)a->output_at[row - 1] * a->n_target;
  bool known = segment->kv_len > 0 && s->hidden_of == segment->kv_len;
  return a->newest + (uint64_t)(known ? segment->slot : r->config.n_slots) * a->n_target;
}

/* Neighbouring rows that lie one behind the other go in one call. */
static weft_status put_hidden(device_runner *r, const weft_batch *batch) {
  const runner_assist *a = r->assist;
  const nextn_rows rows = rows_of(r);
  nextn_places places = {.every = 1};
  float *from = NULL;
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    const weft_segment *segment = &batch->segment[i];
    for (uint32_t row = segment->first_row; row < segment->first_row + segment->n_rows && status == WEFT_OK; row++) {
      float *before = hidden_before(r, segment, row);
      if (places.n > 0 && before == from + (uint64_t)places.n * a->n_target) {
        places.n += 1;
        continue;
      }
      if (places.n > 0) status = nextn_put_hidden(&rows, from, &places);
      places = (nextn_places){.n = 1, .first = row, .every = 1};
      from = before;
    }
  }
  return status == WEFT_OK && places.n > 0 ? nextn_put_hidden(&rows, from, &places) : status;
}

/* Of segments that are no runs; slots that lie one behind the other, as their rows do, go in one call. */
static weft_status renew_newest(device_runner *r, const weft_batch *batch) {
  const runner_assist *a = r->assist;
  const uint64_t width = a->n_target;
  float *to = NULL, *from = NULL;
  uint64_t n = 0;
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < batch->n_segments && status == WEFT_OK; i++) {
    const weft_segment *segment = &batch->segment[i];
    if (is_run(segment)) continue;
    float *row = runner_hidden_rows(r) + a->output_at[segment->first_row + segment->n_rows - 1] * width;
    float *newest = a->newest + segment->slot * width;
    r->slots[segment->slot].hidden_of = segment->kv_len + segment->n_rows;
    if (n > 0 && row == from + n * width && newest == to + n * width) {
      n += 1;
      continue;
    }
    if (n > 0) status = weft_device_copy(r->last, to, from, n * width * sizeof *to);
    to = newest;
    from = row;
    n = 1;
  }
  return status == WEFT_OK && n > 0 ? weft_device_copy(r->last, to, from, n * width * sizeof *to) : status;
}

/* The rows of the batch as it was given; what fills it up writes what is written already. */
static weft_status make_keys(device_runner *r, const runner_flight *f, const runner_step *step) {
  runner_assist *a = r->assist;
  weft_batch batch = *step->batch;
  const nextn_rows rows = rows_of(r);
  const nextn_places all = {.n = batch.n_rows - step->n_filled, .every = 1};
  batch.n_rows = batch.n_stored = batch.n_encoder = all.n;
  batch.n_segments -= step->n_filled; /* they are the last ones: all rows store in the pool */
  batch.n_states = 0;
  for (uint32_t j = 0; j < step->batch->n_rows; j++) a->output_at[r->output_row[j]] = j;
  weft_status status = nextn_put_tokens(&rows, r->config.model->part[0].arrays.token, &all);
  if (status == WEFT_OK) status = put_hidden(r, &batch);
  const nextn_args args = {.rows = &rows, .batch = &batch, .kv = r->config.store, .layout = r->config.layout};
  if (status == WEFT_OK) status = nextn_compute(&args);
  if (status == WEFT_OK) status = runner_keep_rows(r, f);
  return status == WEFT_OK ? renew_newest(r, &batch) : status;
}

static weft_status take_run(device_runner *r, const runner_flight *f, uint32_t segment, uint64_t row) {
  const weft_segment *s = &f->segment[segment];
  if (!is_run(s)) return WEFT_OK;
  uint32_t n_before = s->n_rows - weft_segment_n_sampled(s); /* rows of a prompt that ends in the run */
  r->slots[s->slot].hidden_of = s->kv_len + n_before + f->result[segment].n_taken;
  return runner_take_newest(r, f, segment, row);
}

/* ---- drafts ---- */

static uint32_t count_rows(const device_runner *r, uint32_t n_drafts) {
  const runner_assist *a = r->assist;
  uint32_t n = a->model->limits.canvas_rows_max / n_drafts;
  return n < a->rows_max ? n : a->rows_max;
}

static bool know_newest(const runner_slot *s) {
  return s->hidden_of + 1 == s->n_history;
}

/* Row k of request i is row i * every + k of the layer: the last token, then drafts. Where rows find those before them
 * in pages, there is one of each request at a time. */
static uint32_t rows_of_request(const runner_assist *a, uint32_t n_drafts) {
  return a->near != NULL ? 1 : n_drafts;
}

static weft_status begin_drafts(device_runner *r, const weft_batch *batch, uint32_t n_drafts) {
  runner_assist *a = r->assist;
  const nextn_rows rows = rows_of(r);
  const uint32_t every = rows_of_request(a, n_drafts);
  weft_status status = WEFT_OK;
  for (uint32_t i = 0, n; i < batch->n_rows && status == WEFT_OK; i += n) {
    n = runner_slots_in_turn(batch, i);
    const nextn_places places = {.n = n, .first = i * every, .every = every};
    status = nextn_put_hidden(&rows, a->newest + (uint64_t)batch->segment[i].slot * a->n_target, &places);
  }
  for (uint32_t i = 0; i < batch->n_rows * every; i++)
    a->position[i] = batch->position[i / every] + (int32_t)(i % every);
  return status == WEFT_OK && a->near != NULL ? runner_near_copy(r, batch) : status;
}

/* The batch of draft k, whose keys of guesses lie in scratch. */
static void lay_out_draft(runner_assist *a, const weft_batch *batch, uint32_t k, uint32_t n_drafts, weft_batch *own) {
  *own = *batch;
  own->n_rows = own->n_encoder = batch->n_rows * n_drafts;
  own->n_stored = 0;
  own->token = a->position; /* nobody reads it: embeddings lie in the pairs */
  own->position = a->position;
  own->segment = a->segment;
  for (uint32_t g = 0; g < batch->n_groups; g++) own->kv_slot[g] = batch->kv_slot[g] == NULL ? NULL : a->no_slot;
  for (uint32_t i = 0; i < batch->n_rows; i++) {
    a->row[i] = i * n_drafts + k;
    a->segment[i] = (weft_segment){.slot = batch->segment[i].slot,
                                   .first_row = i * n_drafts,
                                   .n_rows = k + 1,
                                   .kv_len = (uint32_t)batch->position[i],
                                   .stores = WEFT_STORES_SCRATCH,
                                   .first_output = k,
                                   .n_outputs = 1};
  }
}

static weft_status make_draft(device_runner *r, const weft_batch *batch, uint32_t k, uint32_t n_drafts) {
  runner_assist *a = r->assist;
  const nextn_rows rows = rows_of(r);
  const uint32_t n = batch->n_rows, every = rows_of_request(a, n_drafts);
  const nextn_places places = {.n = n, .first = k % every, .every = every};
  float *stream = a->model->features.stream;
  weft_status status = nextn_put_tokens(&rows, a->token + (uint64_t)k * n, &places);
  if (status == WEFT_OK && k > 0) status = nextn_put_hidden(&rows, stream != NULL ? stream : a->hidden, &places);
  weft_batch own;
  if (a->near != NULL)
    runner_near_lay_out(a, batch, k, &own);
  else
    lay_out_draft(a, batch, k, n_drafts, &own);
  const nextn_args args = {.rows = &rows,
                           .batch = &own,
                           .kv = a->near != NULL ? &a->near->store : r->config.store,
                           .layout = a->near != NULL ? &a->near->layout : r->config.layout,
                           .output_row = a->row,
                           .n_output = n,
                           .hidden = a->hidden,
                           .again = k > 0 && a->near == NULL}; /* else each draft has a row of its own */
  return status == WEFT_OK ? nextn_compute(&args) : status;
}

const runner_way runner_way_nextn = {.shows_all = true,
                                     .rows_at_once = count_rows,
                                     .after_step = make_keys,
                                     .take = take_run,
                                     .knows = know_newest,
                                     .begin = begin_drafts,
                                     .draft = make_draft};
