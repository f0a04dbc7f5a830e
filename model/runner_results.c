/* SPDX-License-Identifier: MIT */
/* What the device found becomes results, and state of the slots. */
#include <string.h>

#include "base/clock.h"
#include "base/random.h"
#include "model/runner_internal.h"

/* NULL: the request that the segment belonged to has left its slot. */
static runner_slot *slot_of(device_runner *r, const runner_flight *f, uint32_t segment) {
  runner_slot *s = &r->slots[f->segment[segment].slot];
  return s->open && s->generation == f->generation[segment] ? s : NULL;
}

static void slot_push(device_runner *r, runner_slot *s, int32_t token) {
  if (s->n_history < r->config.seq_tokens_max) s->history[s->n_history++] = token;
}

static void take_plain_rows(device_runner *r, runner_flight *f) {
  const runner_outputs *o = &f->outputs;
  runner_stats stats = runner_stats_at(f->stats, o->n_plain + o->n_canvas_rows);
  for (uint32_t j = 0; j < o->n_plain; j++) {
    uint32_t index = f->output_segment[o->n_logits + j];
    runner_slot *s = index == UINT32_MAX ? NULL : slot_of(r, f, index);
    if (s == NULL) continue;
    weft_segment_result *result = &f->result[index];
    s->n_pending -= 1;
    result->bad = stats.bad[j] != 0;
    result->sampled.token = s->params.sampling.temperature > 0.0f ? stats.drawn[j] : stats.argmax[j];
    if (!result->bad) slot_push(r, s, result->sampled.token);
  }
}

static void take_logits_rows(device_runner *r, runner_flight *f) {
  for (uint32_t j = 0; j < f->outputs.n_logits; j++) {
    uint32_t index = f->output_segment[j];
    runner_slot *s = slot_of(r, f, index);
    if (s == NULL) continue;
    weft_segment_result *result = &f->result[index];
    s->n_pending -= 1;
    result->bad = f->sampled[j].bad != 0;
    weft_sampling_take(&f->sampled[j], &result->sampled);
    if (!result->bad) slot_push(r, s, result->sampled.token);
  }
}

/* One canvas: statistics of its rows at stats[first ..] become the next canvas of its slot. */
static void step_canvas(device_runner *r, runner_flight *f, uint32_t index, uint32_t first, uint32_t place) {
  const weft_segment *segment = &f->segment[index];
  weft_segment_result *result = &f->result[index];
  runner_slot *s = &r->slots[segment->slot];
  runner_stats stats = runner_stats_at(f->stats, f->outputs.n_plain + f->outputs.n_canvas_rows);
  uint32_t n = segment->n_rows;
  const weft_entropy_bound *p = &s->params.entropy_bound;
  for (uint32_t i = 0; i < n; i++) result->bad |= stats.bad[first + i] != 0;
  for (uint32_t i = 0; i < n; i++) {
    weft_draw_key key = {p->seed, p->choice, WEFT_DRAW_RENOISE, segment->kv_len + i, segment->step};
    r->renoise[i] = (int32_t)weft_draw_below(&key, r->info.n_vocab);
  }
  memcpy(f->canvas_in + place, s->canvas, n * sizeof(int32_t));
  memcpy(f->argmax + place, stats.argmax + first, n * sizeof(int32_t));
  memcpy(f->drawn + place, stats.drawn + first, n * sizeof(int32_t));
  memcpy(f->entropy + place, stats.entropy + first, n * sizeof(float));
  weft_canvas_step step = {.params = p,
                           .step = segment->step,
                           .n = n,
                           .argmax = f->argmax + place,
                           .drawn = f->drawn + place,
                           .renoise = r->renoise,
                           .entropy = f->entropy + place,
                           .history = s->argmax,
                           .n_history = s->n_argmax,
                           .order = r->order,
                           .next = f->canvas_out + place,
                           .accepted = f->accepted + place};
  weft_entropy_bound_step(&step);
  memcpy(s->canvas, step.next, n * sizeof(int32_t));
  memmove(s->argmax + n, s->argmax, (size_t)(WEFT_STABILITY_MAX - 1) * n * sizeof(int32_t));
  memcpy(s->argmax, step.argmax, n * sizeof(int32_t));
  if (s->n_argmax < WEFT_STABILITY_MAX) s->n_argmax += 1;
  s->done = step.done;
  result->done = step.done;
  result->stopped = step.stopped;
  result->n_accepted = step.n_accepted;
  result->mean_entropy = step.mean_entropy;
  result->temperature = f->temperature[first];
  result->argmax = f->argmax + place;
  if (s->params.trace) {
    result->canvas_in = f->canvas_in + place;
    result->drawn = f->drawn + place;
    result->canvas_out = f->canvas_out + place;
    result->entropy = f->entropy + place;
    result->accepted = f->accepted + place;
  }
}

static void take_canvases(device_runner *r, runner_flight *f) {
  uint32_t first = f->outputs.n_plain, place = 0;
  for (uint32_t i = 0; i < f->n_segments; i++) {
    const weft_segment *segment = &f->segment[i];
    if (segment->output != WEFT_OUTPUT_CANVAS) continue;
    if (!f->result[i].is_void && slot_of(r, f, i) != NULL) step_canvas(r, f, i, first, place);
    first += segment->n_rows;
    place += segment->n_rows;
  }
}

static void pack_results(runner_flight *f) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < f->n_segments; i++) {
    if (f->segment[i].output == WEFT_OUTPUT_NONE) continue;
    f->result[n++] = f->result[i];
  }
  f->step.n_results = n;
  f->step.result = f->result;
}

static void time_step(device_runner *r, runner_flight *f) {
  uint64_t now = weft_clock_us();
  f->step.device_us = now - (f->start_us > r->last_done_us ? f->start_us : r->last_done_us);
  r->last_done_us = now;
}

void runner_settle(device_runner *r, runner_flight *f) {
  if (f->settled) return;
  weft_status status = f->step.status;
  f->settled = true;
  if (status == WEFT_OK) status = r->broken ? WEFT_E_DEVICE : weft_device_wait(r->config.device, (uint32_t)(f - r->flight));
  weft_kv_store_ran(r->config.store, f->n_moves, status != WEFT_OK);
  if (status == WEFT_OK) {
    take_logits_rows(r, f);
    take_plain_rows(r, f);
    take_canvases(r, f);
    pack_results(f);
  }
  time_step(r, f);
  if (status == WEFT_OK) return;
  f->step.status = WEFT_E_DEVICE;
  f->step.n_results = 0;
  r->broken = true;
}
