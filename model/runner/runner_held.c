/* SPDX-License-Identifier: MIT */
/* Canvases whose answer is held to a grammar. The statistics of such a canvas are made a few rows at a time, and of the
 * logits of these rows is kept what is best: the token, and the log-sum, of each class of the grammar's graph. The most
 * likely path through the graph (model/formats/canvas_path.h) then takes the place of the argmax tokens, and of draws
 * that the grammar does not allow, before the entropy-bound rule looks at them.
 *
 * The host makes the path, so a step with such a canvas waits for the device, and for the steps before it, whose
 * results say where in the grammar the canvas begins. A device with memory of its own has the classes of a slot's graph
 * from the time that the slot is opened, and what it finds is copied to the host; while the host makes the path of one
 * canvas, it computes the next one. */
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "model/formats/canvas_path.h"
#include "model/model_internal.h"
#include "model/runner/runner_internal.h"
#include "model/runner/runner_share.h"

/* What is found of a canvas with n positions: best [n, n_classes], then log_sum, of the same shape. */
struct runner_held {
  canvas_path *path;
  int32_t *token;     /* [canvas_length] the path */
  int32_t *drawn[2];  /* [canvas_length] draws, as `found` */
  uint32_t *d_found;  /* device [2 * canvas_length * WEFT_GRAPH_CLASSES] */
  uint32_t *found[2]; /* where the host reads it, of one canvas and of the next: the same memory, or pinned memory */
};

/* A canvas on its way: its rows begin at `first` of those with statistics. */
typedef struct held_canvas {
  const runner_slot *slot;       /* NULL: none */
  uint32_t first, n_rows, which; /* which: of found[] */
} held_canvas;

static const weft_grammar_graph *graph_of(const runner_slot *s) {
  return weft_grammar_graph_of(s->params.grammar);
}

/* Positions of a canvas that belong to the answer, at most. */
static uint32_t answer_positions(const device_runner *r, const runner_slot *s) {
  return s->n_left < r->canvas_length ? s->n_left : r->canvas_length;
}

/* ---- where an answer is ---- */

static weft_status send_classes(const device_runner *r, const runner_slot *s, const weft_grammar_graph *graph) {
  weft_device *d = r->last;
  uint32_t n = graph->n_classes, *token = s->classes + n + 1;
  weft_status status =
      weft_device_upload(d, s->classes, graph->tokens_at, ((uint64_t)n + 1) * sizeof *graph->tokens_at);
  if (status != WEFT_OK) return status;
  return weft_device_upload(d, token, graph->token, (uint64_t)graph->tokens_at[n] * sizeof *graph->token);
}

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
  if (place == graph->n_places) return WEFT_E_INVALID; /* it could not be completed */
  return r->in_place ? WEFT_OK : send_classes(r, s, graph);
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

/* Of n rows whose logits are there, which are those from `first` on of n_answer positions of a canvas. */
static weft_status keep_classes(device_runner *r, const held_canvas *c, uint32_t first, uint32_t n, uint32_t n_answer,
                                const float *temperature) {
  const weft_grammar_graph *graph = graph_of(c->slot);
  uint32_t n_classes = graph->n_classes, *best = r->held->d_found + (uint64_t)first * n_classes;
  if (first >= n_answer) return WEFT_OK;
  weft_classes_args classes = {.logits = r->d_logits,
                               .temperature = temperature + c->first + first,
                               .token = r->in_place ? (const void *)graph->token : c->slot->classes + n_classes + 1,
                               .at = r->in_place ? graph->tokens_at : c->slot->classes,
                               .allowed = r->allowed,
                               .best = (int32_t *)(void *)best,
                               .log_sum = (float *)(void *)(best + (uint64_t)n_answer * n_classes),
                               .n_rows = n < n_answer - first ? n : n_answer - first,
                               .n_classes = n_classes,
                               .n_tokens = graph->tokens_at[n_classes],
                               .logits_stride = r->info.n_vocab,
                               .scratch = r->d_scratch,
                               .scratch_bytes = r->scratch_bytes};
  return weft_classes(r->last, &classes);
}

static runner_stats stats_of(const device_runner *r, const runner_outputs *o) {
  return runner_stats_at(r->d_stats, o->n_plain + o->n_canvas_rows);
}

/* Statistics of one canvas; best tokens and log-sums of its positions, on their way to the host. */
static weft_status find_classes(device_runner *r, const runner_outputs *o, const held_canvas *c,
                                const float *temperature) {
  runner_held *held = r->held;
  weft_device *d = r->last;
  uint32_t n_answer = answer_positions(r, c->slot);
  uint64_t n_words = 2 * (uint64_t)n_answer * graph_of(c->slot)->n_classes;
  weft_status status = WEFT_OK;
  for (uint32_t first = 0, n; first < c->n_rows && status == WEFT_OK; first += n) {
    n = c->n_rows - first < r->logit_rows_max ? c->n_rows - first : r->logit_rows_max;
    status = runner_head_stats(r, NULL, o, c->first + first, n, r->d_logits);
    if (status == WEFT_OK) status = keep_classes(r, c, first, n, n_answer, temperature);
  }
  const int32_t *drawn = stats_of(r, o).drawn + c->first;
  if (status == WEFT_OK && r->in_place) memcpy(held->drawn[c->which], drawn, n_answer * sizeof *drawn);
  if (status != WEFT_OK || r->in_place) return status;
  status = weft_device_copy(d, held->found[c->which], held->d_found, n_words * sizeof *held->d_found);
  if (status == WEFT_OK) status = weft_device_copy(d, held->drawn[c->which], drawn, n_answer * sizeof *drawn);
  return status == WEFT_OK ? weft_device_mark(d, MARK_HELD + c->which) : status;
}

/* A draw that the grammar does not allow behind the path before it could never agree with the path, so a model that
 * would write something else would never have a position accepted, and never see the grammar's text in its canvas: it
 * would denoise what is drawn anew in every step, and not come to rest. Such a draw is one of the path's token, the best
 * of those that are allowed. Returns whether there were any. */
static bool mend_draws(const runner_slot *s, const int32_t *path, uint32_t n, int32_t *drawn) {
  const weft_grammar_graph *graph = graph_of(s);
  weft_graph_set places = s->places;
  bool any = false;
  for (uint32_t i = 0; i < n; i++) {
    weft_graph_set other = places;
    bool allowed = drawn[i] == path[i] || weft_graph_take(graph, &other, drawn[i]);
    if (!allowed) drawn[i] = path[i];
    any = any || !allowed;
    WEFT_CHECK(weft_graph_take(graph, &places, path[i]));
  }
  return any;
}

static weft_status find_path(device_runner *r, const held_canvas *c, const runner_stats *stats) {
  const runner_held *held = r->held;
  if (c->slot == NULL) return WEFT_OK;
  uint32_t n = answer_positions(r, c->slot);
  const uint32_t *found = held->found[c->which];
  canvas_path_ask ask = {.graph = graph_of(c->slot),
                         .from = &c->slot->places,
                         .n = n,
                         .n_left = c->slot->n_left,
                         .best = (const int32_t *)(const void *)found,
                         .log_sum = (const float *)(const void *)(found + (uint64_t)n * graph_of(c->slot)->n_classes)};
  if (!r->in_place) {
    weft_status status = weft_device_wait(r->last, MARK_HELD + c->which);
    if (status != WEFT_OK) return status;
  }
  int32_t *drawn = held->drawn[c->which];
  WEFT_CHECK(canvas_path_find(held->path, &ask, held->token));
  bool mended = mend_draws(c->slot, held->token, n, drawn);
  weft_status status = weft_device_upload(r->last, stats->argmax + c->first, held->token, n * sizeof *drawn);
  if (status != WEFT_OK || !mended) return status;
  return weft_device_upload(r->last, stats->drawn + c->first, drawn, n * sizeof *drawn);
}

/* A step of a canvas that is done is void: its place has moved on to the next canvas. */
weft_status runner_held_paths(device_runner *r, const runner_step *step, const runner_outputs *o,
                              const float *temperature) {
  const runner_stats stats = stats_of(r, o);
  held_canvas c = {.first = o->n_plain}, before = {0};
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < step->batch->n_segments && status == WEFT_OK; i++) {
    const weft_segment *segment = &step->batch->segment[i];
    if (!weft_segment_denoises(segment)) continue;
    c.slot = &r->slots[segment->slot];
    c.n_rows = segment->n_rows;
    if (c.slot->params.grammar != NULL && segment->block == c.slot->n_canvases) {
      status = find_classes(r, o, &c, temperature);
      if (status == WEFT_OK) status = find_path(r, r->in_place ? &c : &before, &stats);
      if (!r->in_place) before = c;
      c.which ^= 1;
    } else if (c.slot->params.grammar != NULL) {
      status = runner_head_stats(r, NULL, o, c.first, c.n_rows, NULL);
    }
    c.first += segment->n_rows;
  }
  return status == WEFT_OK ? find_path(r, &before, &stats) : status;
}

/* ---- open and close ---- */

weft_status runner_open_held(device_runner *r) {
  if (r->canvas_length == 0) return WEFT_OK;
  uint64_t n_bytes = 0;
  runner_held *held = r->held = weft_alloc(1, sizeof *held);
  if (held == NULL) return WEFT_E_NO_MEMORY;
  weft_status status = canvas_path_open(r->canvas_length, &held->path, &n_bytes);
  held->token = weft_alloc(r->canvas_length, sizeof *held->token);
  if (status == WEFT_OK && held->token == NULL) status = WEFT_E_NO_MEMORY;
  uint64_t n_found = 2 * (uint64_t)r->canvas_length * WEFT_GRAPH_CLASSES * sizeof(uint32_t);
  held->d_found = runner_memory_take(&r->memory, r->last, n_found, &status);
  r->n_bytes += r->in_place ? n_found : 3 * n_found;
  for (uint32_t i = 0; i < 2 && status == WEFT_OK; i++)
    held->found[i] = r->in_place ? held->d_found : runner_memory_pin(&r->memory, r->last, n_found, &status);
  for (uint32_t i = 0; i < 2 && status == WEFT_OK; i++)
    held->drawn[i] =
        (int32_t *)(void *)runner_memory_pin(&r->memory, r->last, r->canvas_length * sizeof(int32_t), &status);
  r->n_bytes += sizeof *held + n_bytes + 3 * r->canvas_length * sizeof *held->token;
  return status;
}

void runner_close_held(device_runner *r) {
  runner_held *held = r->held;
  if (held == NULL) return;
  canvas_path_close(held->path);
  weft_free(held->token);
  for (uint32_t i = 0; i < 2; i++)
    if (held->found[i] != held->d_found) runner_memory_unpin(&r->memory, r->last, held->found[i]);
  for (uint32_t i = 0; i < 2; i++) runner_memory_unpin(&r->memory, r->last, held->drawn[i]);
  weft_free(held);
}
