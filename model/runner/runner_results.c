/* SPDX-License-Identifier: MIT */
/* What the device found becomes results, and state of the slots. */
#include <string.h>

#include "base/clock.h"
#include "model/runner/runner_assist.h"
#include "model/runner/runner_internal.h"
#include "model/runner/runner_look.h"

static void slot_push(device_runner *r, runner_slot *s, int32_t token) {
  if (s->n_history < r->config.seq_tokens_max) s->history[s->n_history++] = token;
}

/* The rows of a run come in order, until one did not draw what the next one holds: then *over is their segment. Returns
 * where the row's token belongs; NULL: nowhere. A row that fills up is no run's. */
static weft_segment_result *enter_row(runner_slot *s, runner_flight *f, uint32_t index, bool bad, uint32_t *over) {
  if (s == NULL) return NULL;
  s->n_pending -= 1;
  if (index == *over) return NULL;
  *over = index;
  f->result[index].bad = bad;
  return bad ? NULL : &f->result[index];
}

static void take_token(device_runner *r, runner_slot *s, const weft_segment *segment, weft_segment_result *result,
                       weft_sampled *sampled) {
  if (result->n_taken++ == 0) result->token = sampled;
  if (!segment->peeks) slot_push(r, s, sampled->token);
}

static void take_plain_rows(device_runner *r, runner_flight *f) {
  const runner_outputs *o = &f->outputs;
  uint32_t over = UINT32_MAX; /* the segment whose run has ended */
  runner_stats stats = runner_stats_at(f->stats, o->n_plain + o->n_canvas_rows);
  for (uint32_t j = 0; j < o->n_plain; j++) {
    uint32_t at = runner_first_stats(o) + j, index = f->output_segment[at];
    runner_slot *s = index == UINT32_MAX ? NULL : runner_slot_of(r, f, index);
    weft_segment_result *result = enter_row(s, f, index, stats.bad[j] != 0, &over);
    if (result == NULL) continue;
    weft_sampled *sampled = &f->token[o->n_logits + j];
    *sampled = (weft_sampled){.token = s->params.sampling->temperature > 0.0f ? stats.drawn[j] : stats.argmax[j]};
    take_token(r, s, &f->segment[index], result, sampled);
    if (f->draft[at] == sampled->token) over = UINT32_MAX;
  }
}

/* A token that leaves or completes the format ends its run too. */
static void take_logits_rows(device_runner *r, runner_flight *f) {
  uint32_t over = UINT32_MAX;
  for (uint32_t j = 0; j < f->outputs.n_logits; j++) {
    uint32_t index = f->output_segment[j];
    runner_slot *s = runner_slot_of(r, f, index);
    weft_segment_result *result = enter_row(s, f, index, f->sampled[j].bad != 0, &over);
    if (result == NULL) continue;
    weft_sampled *sampled = &f->token[j];
    weft_sampling_take(&f->sampled[j], sampled);
    bool peeks = f->segment[index].peeks;
    weft_matcher *matcher = peeks ? &r->draft_matcher : &s->matcher;
    if (peeks && result->n_taken == 0) *matcher = s->matcher;
    take_token(r, s, &f->segment[index], result, sampled);
    if (s->matcher.grammar != NULL) {
      result->left_format = !weft_matcher_take(matcher, r->grammar_scratch, sampled->token);
      result->complete = weft_matcher_is_done(matcher);
    }
    if (f->draft[j] == sampled->token && !result->left_format && !result->complete) over = UINT32_MAX;
  }
}

/* The arrays of a trace. Those of the device stay where they came to; the canvas that went into this step is what the
 * slot kept of the step before. */
static void take_trace(device_runner *r, runner_flight *f, const weft_segment *segment, const runner_stats *stats,
                       uint32_t first, uint32_t place, weft_segment_result *result) {
  runner_slot *s = &r->slots[segment->slot];
  size_t n_bytes = segment->n_rows * sizeof(int32_t);
  if (segment->step == 0) {
    runner_start_canvas(r, s, segment, f->canvas_in + place);
  } else {
    memcpy(f->canvas_in + place, s->canvas, n_bytes);
  }
  memcpy(s->canvas, stats->next + first, n_bytes);
  result->canvas_in = f->canvas_in + place;
  result->drawn = stats->drawn + first;
  result->canvas_out = stats->next + first;
  result->entropy = stats->entropy + first;
  result->accepted = stats->accepted + first;
}

/* One canvas: its rows begin at `first` of the statistics and at `place` of the step's canvas rows. */
static void take_canvas(device_runner *r, runner_flight *f, uint32_t index, uint32_t first, uint32_t place,
                        const weft_canvas_result *found) {
  const weft_segment *segment = &f->segment[index];
  weft_segment_result *result = &f->result[index];
  runner_stats stats = runner_stats_at(f->stats, f->outputs.n_plain + f->outputs.n_canvas_rows);
  result->bad = found->bad != 0;
  result->done = found->done != 0;
  result->stopped = found->stopped != 0;
  result->n_accepted = found->n_accepted;
  result->mean_entropy = found->mean_entropy;
  result->temperature = f->temperature[first];
  result->argmax = stats.argmax + first;
  runner_slot *s = &r->slots[segment->slot];
  bool final = result->done && !result->bad && s->params.grammar != NULL;
  result->complete = final && runner_held_take(r, s, result->argmax);
  if (s->params.trace) take_trace(r, f, segment, &stats, first, place, result);
}

static void take_canvases(device_runner *r, runner_flight *f) {
  uint32_t first = f->outputs.n_plain, place = 0, canvas = 0;
  for (uint32_t i = 0; i < f->n_segments; i++) {
    const weft_segment *segment = &f->segment[i];
    if (!weft_segment_denoises(segment)) continue;
    const weft_canvas_result *found = &f->canvas[canvas++];
    f->result[i].is_void = found->is_void != 0;
    if (found->is_void == 0 && runner_slot_of(r, f, i) != NULL) take_canvas(r, f, i, first, place, found);
    first += segment->n_rows;
    place += segment->n_rows;
  }
}

static void pack_results(runner_flight *f) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < f->n_segments; i++) {
    if (f->segment[i].n_outputs == 0) continue;
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
  if (status == WEFT_OK) status = r->broken ? WEFT_E_DEVICE : runner_wait(r, f);
  weft_kv_store_ran(r->config.store, f->n_moves, status != WEFT_OK);
  if (status == WEFT_OK) {
    take_logits_rows(r, f);
    runner_take_scores(r, f);
    take_plain_rows(r, f);
    take_canvases(r, f);
    status = runner_assist_take(r, f);
    pack_results(f);
  }
  runner_look_take(r, f, status == WEFT_OK);
  time_step(r, f);
  if (status == WEFT_OK) return;
  f->step.status = WEFT_E_DEVICE;
  f->step.n_results = 0;
  r->broken = true;
}
