/* SPDX-License-Identifier: MIT */
/* Canvases whose answer is held to a grammar. After the statistics of a denoise step the rows of such a canvas go
 * through the head once more, a few at a time; what is kept of their logits is the best token and the log-sum of each
 * class of the grammar's graph. The most likely path through the graph (model/canvas_path.h) then takes the place of
 * the argmax tokens, before the entropy-bound rule looks at them. The host makes the path, so only a device whose
 * memory is the host's can hold canvases. */
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "model/canvas_path.h"
#include "model/runner_internal.h"

struct runner_held {
  canvas_path *path;
  int32_t *best;  /* [canvas_length, WEFT_GRAPH_CLASSES] */
  float *log_sum; /* the same */
};

static const weft_grammar_graph *graph_of(const runner_slot *s) {
  return weft_grammar_graph_of(s->params.grammar);
}

/* Positions of a canvas that belong to the answer, at most. */
static uint32_t answer_positions(const device_runner *r, const runner_slot *s) {
  return s->n_left < r->canvas_length ? s->n_left : r->canvas_length;
}

/* ---- where an answer is ---- */

weft_status runner_held_begin(const device_runner *r, runner_slot *s) {
  const weft_slot_params *p = &s->params;
  uint32_t n_answer = p->n_tokens - p->n_prompt;
  const weft_grammar_graph *graph = graph_of(s);
  if (!r->info.holds_canvases || graph == NULL) return WEFT_E_UNSUPPORTED;
  if (n_answer >= p->max_tokens || n_answer % r->canvas_length != 0) return WEFT_E_INVALID;
  s->n_left = p->max_tokens - n_answer;
  s->n_canvases = n_answer / r->canvas_length;
  weft_graph_begin(graph, &s->places);
  for (uint32_t i = p->n_prompt; i < p->n_tokens; i++) {
    if (!weft_graph_take(graph, &s->places, s->history[i])) return WEFT_E_INVALID;
  }
  uint32_t place = 0;
  while (place < graph->n_places && !(weft_graph_has(&s->places, place) && graph->left[place] <= s->n_left)) place += 1;
  return place < graph->n_places ? WEFT_OK : WEFT_E_INVALID; /* else it could not be completed */
}

bool runner_held_take(const device_runner *r, runner_slot *s, const int32_t *canvas) {
  const weft_grammar_graph *graph = graph_of(s);
  uint32_t n = answer_positions(r, s);
  for (uint32_t i = 0; i < n; i++) WEFT_CHECK(weft_graph_take(graph, &s->places, canvas[i]));
  s->n_left -= n;
  s->n_canvases += 1;
  return weft_graph_is_done(graph, &s->places);
}

/* ---- a denoise step ---- */

/* Best tokens and log-sums of the rows of one canvas, whose hidden states begin at h. */
static weft_status find_classes(device_runner *r, const weft_grammar_graph *graph, const float *h,
                                const float *temperature, uint32_t n_rows) {
  weft_status status = WEFT_OK;
  for (uint32_t first = 0, n; first < n_rows && status == WEFT_OK; first += n) {
    n = n_rows - first < r->logit_rows_max ? n_rows - first : r->logit_rows_max;
    uint64_t at = (uint64_t)first * graph->n_classes;
    weft_classes_args classes = {.logits = r->d_logits,
                                 .temperature = temperature + first,
                                 .token = graph->token,
                                 .at = graph->tokens_at,
                                 .allowed = r->allowed,
                                 .best = r->held->best + at,
                                 .log_sum = r->held->log_sum + at,
                                 .n_rows = n,
                                 .n_classes = graph->n_classes,
                                 .logits_stride = r->info.n_vocab};
    status = runner_make_logits(r, h + (uint64_t)first * r->n_hidden, n);
    if (status == WEFT_OK) status = weft_classes(r->config.device, &classes);
  }
  return status;
}

static weft_status find_path(device_runner *r, const runner_slot *s, const float *h, const float *temperature,
                             int32_t *argmax) {
  uint32_t n = answer_positions(r, s);
  canvas_path_ask ask = {.graph = graph_of(s),
                         .from = &s->places,
                         .n = n,
                         .n_left = s->n_left,
                         .best = r->held->best,
                         .log_sum = r->held->log_sum};
  weft_status status = find_classes(r, ask.graph, h, temperature, n);
  if (status == WEFT_OK) WEFT_CHECK(canvas_path_find(r->held->path, &ask, argmax));
  return status;
}

/* A step of a canvas that is done is void: its place has moved on to the next canvas. */
weft_status runner_held_paths(device_runner *r, const runner_step *step, const runner_outputs *o,
                              const float *temperature, int32_t *argmax) {
  uint32_t first = o->n_plain;
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < step->batch->n_segments && status == WEFT_OK; i++) {
    const weft_segment *segment = &step->batch->segment[i];
    if (segment->output != WEFT_OUTPUT_CANVAS) continue;
    const runner_slot *s = &r->slots[segment->slot];
    if (s->params.grammar != NULL && segment->block == s->n_canvases) {
      const float *h = r->d_hidden + (uint64_t)(runner_first_stats(o) + first) * r->n_hidden;
      status = find_path(r, s, h, temperature + first, argmax + first);
    }
    first += segment->n_rows;
  }
  return status;
}

/* ---- open and close ---- */

weft_status runner_open_held(device_runner *r) {
  if (!r->info.holds_canvases) return WEFT_OK;
  uint64_t n = (uint64_t)r->canvas_length * WEFT_GRAPH_CLASSES, n_bytes = 0;
  runner_held *held = r->held = weft_alloc(1, sizeof *held);
  if (held == NULL) return WEFT_E_NO_MEMORY;
  weft_status status = canvas_path_open(r->canvas_length, &held->path, &n_bytes);
  held->best = weft_alloc(n, sizeof *held->best);
  held->log_sum = weft_alloc(n, sizeof *held->log_sum);
  r->n_bytes += sizeof *held + n_bytes + n * (sizeof *held->best + sizeof *held->log_sum);
  return held->best == NULL || held->log_sum == NULL ? WEFT_E_NO_MEMORY : status;
}

void runner_close_held(device_runner *r) {
  if (r->held == NULL) return;
  canvas_path_close(r->held->path);
  weft_free(r->held->best);
  weft_free(r->held->log_sum);
  weft_free(r->held);
}
