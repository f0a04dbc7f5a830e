/* SPDX-License-Identifier: MIT */
/* Slots, and the way of a step from submit to collect. */
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/random.h"
#include "model/model_internal.h"
#include "model/runner/runner_assist.h"
#include "model/runner/runner_internal.h"
#include "model/runner/runner_look.h"
#include "model/runner/runner_share.h"
#include "model/shards.h"

/* ---- slots -------------------------------------------------------------------------------------------- */

static weft_status runner_slot_open(weft_runner *base, uint32_t index, const weft_slot_params *params) {
  device_runner *r = (device_runner *)base;
  if (r->broken) return WEFT_E_DEVICE;
  WEFT_CHECK(index < r->config.n_slots);
  runner_slot *s = &r->slots[index];
  WEFT_CHECK(!s->open);
  bool both = params->draws && params->denoises;
  if (params->denoises && r->canvas_length == 0) return WEFT_E_UNSUPPORTED;
  if (both && params->grammar != NULL) return WEFT_E_UNSUPPORTED; /* it would go on along two answers */
  if (params->n_tokens > r->config.seq_tokens_max) return WEFT_E_TOO_LARGE;
  s->params = *params;
  s->params.tokens = s->history;
  WEFT_CHECK(params->sampling->n_bias <= WEFT_LOGIT_BIAS_MAX);
  memcpy(s->history, params->tokens, params->n_tokens * sizeof *s->history);
  s->n_history = params->n_tokens;
  s->n_pending = s->hidden_at = s->hidden_of = 0;
  weft_matcher_begin(&s->matcher, params->grammar);
  for (uint32_t i = params->n_prompt; i < params->n_tokens && params->grammar != NULL && params->draws; i++) {
    if (!weft_matcher_take(&s->matcher, r->grammar_scratch, s->history[i])) return WEFT_E_INVALID;
  }
  if (params->denoises && params->grammar != NULL) {
    weft_status status = runner_held_begin(r, s);
    if (status != WEFT_OK) return status;
  }
  s->generation += 1;
  s->open = true;
  return WEFT_OK;
}

static void runner_slot_close(weft_runner *base, uint32_t index) {
  device_runner *r = (device_runner *)base;
  WEFT_CHECK(index < r->config.n_slots);
  r->slots[index].open = false;
}

/* ---- before the forward pass ---------------------------------------------------------------------------- */

/* In the order of submission: a slot's tokens come one after another. */
void runner_settle_first(device_runner *r, uint32_t n) {
  for (uint32_t f = 0; f < n; f++) runner_settle(r, &r->flight[(r->first_flight + f) % (r->info.depth + 1)]);
}

void runner_start_canvas(const device_runner *r, const runner_slot *s, const weft_segment *segment, int32_t *tokens) {
  const weft_sampling *p = s->params.sampling;
  for (uint32_t i = 0; i < segment->n_rows; i++) {
    weft_draw_key key = {p->seed, p->choice, WEFT_DRAW_INIT, segment->kv_len + i, 0};
    tokens[i] = (int32_t)weft_draw_below(&key, r->info.n_vocab);
  }
}

/* Tokens that the first device has; where that is the host's own memory, they are read at once. */
static void from_cells(device_runner *r, const weft_segment *segment, uint64_t cell) {
  uint32_t row = segment->first_row;
  if (r->in_place) {
    memcpy(r->token + row, r->d_mirror + cell, segment->n_rows * sizeof *r->token);
    return;
  }
  for (uint32_t i = 0; i < segment->n_rows; i++) {
    r->token[row + i] = 0;
    r->cell_of[row + i] = (int32_t)(cell + i);
  }
  r->any_cell = true;
}

static void resolve_tokens(device_runner *r, const weft_batch *batch) {
  r->any_cell = false;
  for (uint32_t i = 0; i < batch->n_rows; i++) r->cell_of[i] = -1;
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    const weft_segment *segment = &batch->segment[i];
    runner_slot *s = &r->slots[segment->slot];
    int32_t *token = r->token + segment->first_row;
    switch (segment->token_source) {
      case WEFT_TOKENS_HOST:
        memcpy(token, batch->token + segment->first_row, segment->n_rows * sizeof *token);
        break;
      case WEFT_TOKENS_SAMPLED:
        if (s->n_pending > 0) {
          from_cells(r, segment, runner_mirror_token(r, segment->slot));
        } else {
          token[0] = s->history[s->n_history - 1];
        }
        break;
      case WEFT_TOKENS_CANVAS:
        if (segment->step == 0) {
          runner_start_canvas(r, s, segment, token);
        } else {
          from_cells(r, segment, runner_mirror_canvas(r, segment->slot));
        }
        break;
      case WEFT_TOKENS_ARGMAX:
        from_cells(r, segment, runner_mirror_canvas(r, segment->slot) + r->canvas_length);
        break;
    }
  }
}

static void push_output(device_runner *r, runner_flight *f, const runner_step *step, uint32_t at, uint32_t segment,
                        uint32_t row) {
  uint32_t given = segment;
  if (segment >= step->first_filled) given = segment - step->n_filled;
  if (segment >= step->first_filled && segment < step->first_filled + step->n_filled) given = UINT32_MAX;
  r->output_row[at] = step->batch->segment[segment].first_row + row;
  r->output_at[at] = segment;
  f->output_segment[at] = given;
  f->draft[at] = -1;
}

/* Scored rows; returns where the next rows go. */
static uint32_t list_scored(device_runner *r, runner_flight *f, const runner_step *step, uint32_t at) {
  for (uint32_t i = 0; i < step->batch->n_segments; i++) {
    const weft_segment *s = &step->batch->segment[i];
    uint32_t n = weft_segment_n_scored(s);
    for (uint32_t k = 0; k < n; k++) push_output(r, f, step, at++, i, s->first_output + k);
    f->outputs.n_scored += n;
  }
  return at;
}

/* The rows of a segment that draw tokens; returns where the next rows go. */
static uint32_t list_run(device_runner *r, runner_flight *f, const runner_step *step, uint32_t segment, uint32_t at) {
  const weft_segment *s = &step->batch->segment[segment];
  for (uint32_t row = s->n_rows - weft_segment_n_sampled(s); row < s->n_rows; row++, at++) {
    push_output(r, f, step, at, segment, row);
    if (row + 1 < s->n_rows) f->draft[at] = r->token[s->first_row + row + 1];
  }
  return at;
}

/* The rows whose hidden state is wanted, sorted into [need logits][scored][plain][canvas]. */
static void list_outputs(device_runner *r, runner_flight *f, const runner_step *step) {
  const weft_batch *batch = step->batch;
  runner_outputs *o = &f->outputs;
  uint32_t at = 0;
  *o = (runner_outputs){0};
  for (int pass = 0; pass < 2; pass++) { /* logits rows, then plain rows */
    for (uint32_t i = 0; i < batch->n_segments; i++) {
      const weft_segment *s = &batch->segment[i];
      uint32_t n_sampled = weft_segment_n_sampled(s);
      bool plain = runner_is_plain(&r->slots[s->slot]);
      if (n_sampled == 0 || plain != (pass == 1)) continue;
      at = list_run(r, f, step, i, at);
      if (plain) {
        o->n_plain += n_sampled;
      } else {
        o->n_logits += n_sampled;
      }
    }
    if (pass == 0) at = list_scored(r, f, step, at);
  }
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    const weft_segment *s = &batch->segment[i];
    if (!weft_segment_denoises(s)) continue;
    for (uint32_t row = 0; row < s->n_rows; row++) push_output(r, f, step, at++, i, row);
    o->n_canvas_rows += s->n_rows;
    o->n_canvases += 1;
    o->n_held += r->slots[s->slot].params.grammar != NULL ? 1 : 0;
  }
}

/* The rows that have no output, in their order. */
static void list_others(device_runner *r, runner_flight *f, const runner_step *step) {
  const weft_batch *batch = step->batch;
  uint32_t at = runner_first_stats(&f->outputs) + f->outputs.n_plain;
  if (!runner_assist_shows_all(r)) return;
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    const weft_segment *s = &batch->segment[i];
    uint32_t first = s->n_outputs > 0 ? s->first_output : s->n_rows;
    for (uint32_t row = 0; row < s->n_rows; row++) {
      if (row >= first && row < first + s->n_outputs) continue;
      push_output(r, f, step, at++, i, row);
      f->outputs.n_others += 1;
    }
  }
}

/* What the rows with statistics are given, as it lies in `inputs`: n of each, then a row per canvas. */
typedef struct runner_inputs {
  float *temperature, *u;
  int32_t *from, *to, *fresh;
  weft_canvas_row *canvas;
  uint64_t n_words;
} runner_inputs;

static runner_inputs inputs_at(int32_t *memory, const runner_outputs *o) {
  uint64_t n = o->n_plain + o->n_canvas_rows;
  return (runner_inputs){.temperature = (float *)(void *)memory,
                         .u = (float *)(void *)(memory + n),
                         .from = memory + 2 * n,
                         .to = memory + 3 * n,
                         .fresh = memory + 4 * n,
                         .canvas = (weft_canvas_row *)(void *)(memory + 5 * n),
                         .n_words = 5 * n + (uint64_t)o->n_canvases * RUNNER_CANVAS_WORDS};
}

/* A row of a canvas; j: its place among the statistics. */
static void ask_canvas_row(device_runner *r, const runner_inputs *in, uint32_t j, const weft_segment *segment,
                           uint64_t position) {
  const weft_entropy_bound *p = r->slots[segment->slot].params.entropy_bound;
  const weft_sampling *s = r->slots[segment->slot].params.sampling;
  weft_draw_key draw = {s->seed, s->choice, WEFT_DRAW_CANVAS, position, segment->step};
  weft_draw_key fresh = {s->seed, s->choice, WEFT_DRAW_RENOISE, position, segment->step};
  in->temperature[j] = weft_entropy_bound_temperature(p, segment->step);
  in->u[j] = weft_draw_uniform(&draw);
  in->fresh[j] = (int32_t)weft_draw_below(&fresh, r->info.n_vocab);
  r->want_soft[j] = !p->no_self_conditioning && segment->step + 1 < p->max_steps;
}

/* A plain row: its token is found among the statistics and goes to its slot's cell, unless it only fills up or is one
 * of several of a run. The host knows the last token of such a run before any row follows. */
static void ask_plain_row(device_runner *r, const runner_inputs *in, uint32_t j, const weft_segment *segment,
                          uint64_t position, const runner_flight *f) {
  const weft_sampling *p = r->slots[segment->slot].params.sampling;
  weft_draw_key key = {p->seed, p->choice, WEFT_DRAW_TOKEN, position + 1, 0};
  uint32_t n = f->outputs.n_plain + f->outputs.n_canvas_rows;
  in->temperature[j] = p->temperature > 0.0f ? p->temperature : 1.0f;
  in->u[j] = weft_draw_uniform(&key);
  in->fresh[j] = 0;
  r->want_soft[j] = 0;
  if (f->output_segment[runner_first_stats(&f->outputs) + j] == UINT32_MAX) return;
  if (weft_segment_n_sampled(segment) > 1) return;
  in->from[j] = (int32_t)(p->temperature > 0.0f ? n + j : j);
  in->to[j] = (int32_t)segment->slot;
}

static weft_status send_inputs(device_runner *r, runner_flight *f, const runner_step *step) {
  const runner_outputs *o = &f->outputs;
  runner_inputs in = inputs_at(r->inputs, o);
  uint32_t n = o->n_plain + o->n_canvas_rows, n_canvases = 0;
  for (uint32_t j = 0; j < n; j++) {
    uint32_t at = runner_first_stats(o) + j;
    const weft_segment *segment = &step->batch->segment[r->output_at[at]];
    uint64_t position = segment->kv_len + (r->output_row[at] - segment->first_row);
    r->allowed_of[j] = r->allowed;
    in.from[j] = in.to[j] = -1;
    if (segment->pass != WEFT_PASS_DECODER) {
      ask_plain_row(r, &in, j, segment, position, f);
      continue;
    }
    ask_canvas_row(r, &in, j, segment, position);
    if (r->output_row[at] != segment->first_row) continue;
    weft_canvas_row *canvas = &in.canvas[n_canvases++];
    weft_entropy_bound_rule(r->slots[segment->slot].params.entropy_bound, segment->step, &canvas->rule);
    canvas->rule.agree = r->slots[segment->slot].params.grammar != NULL ? 1 : 0;
    canvas->slot = segment->slot;
    canvas->first = j;
  }
  memcpy(f->temperature, in.temperature, n * sizeof *in.temperature);
  return runner_upload_inputs(r, o, r->last, r->d_inputs);
}

weft_status runner_upload_inputs(const device_runner *r, const runner_outputs *o, weft_device *device, int32_t *to) {
  return weft_device_upload(device, to, r->inputs, inputs_at(r->inputs, o).n_words * sizeof *to);
}

/* Where the soft embeddings of canvas segments lie. A device that works behind its calls gets them, or zeros, in one
 * place, whatever slots they come from: a step that comes again then has the same pointers. */
static weft_status place_soft(device_runner *r, const weft_batch *batch) {
  weft_device *d = r->first;
  uint64_t at = 0;
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < batch->n_segments && status == WEFT_OK; i++) {
    const weft_segment *segment = &batch->segment[i];
    const runner_slot *s = &r->slots[segment->slot];
    bool decoder = segment->pass == WEFT_PASS_DECODER;
    bool has_soft = decoder && segment->step > 0 && !s->params.entropy_bound->no_self_conditioning;
    r->soft_of[i] = has_soft ? s->soft : NULL;
    if (r->in_place || !decoder) continue;
    uint64_t n = (uint64_t)segment->n_rows * r->n_hidden;
    float *to = r->d_soft_in + at;
    at += n;
    r->soft_of[i] = to;
    status = has_soft ? weft_device_copy(d, to, s->soft, n * sizeof *to) : weft_device_zero(d, to, n * sizeof *to);
  }
  return status;
}

/* ---- the step itself ------------------------------------------------------------------------------------ */

static weft_forward_args forward_args(const device_runner *r, const runner_flight *f, const runner_step *step) {
  const runner_outputs *o = &f->outputs;
  return (weft_forward_args){.batch = step->batch,
                             .token = r->token,
                             .cells = r->d_mirror,
                             .cell_of = r->any_cell || step->steady ? r->cell_of : NULL,
                             .kv = r->config.store,
                             .layout = r->config.layout,
                             .soft = r->soft_of,
                             .output_row = r->output_row,
                             .n_output = runner_first_stats(o) + o->n_plain + o->n_canvas_rows + o->n_others,
                             .hidden = r->d_hidden};
}

/* Tokens of plain rows to their cells, canvases to those of their next step. */
static weft_status take_tokens(device_runner *r, const runner_outputs *o) {
  weft_device *d = r->last;
  runner_inputs in = inputs_at(r->d_inputs, o);
  runner_stats stats = runner_stats_at(r->d_stats, o->n_plain + o->n_canvas_rows);
  weft_move_args move = {
      .to = r->d_cells, .from = stats.argmax, .to_at = in.to, .from_at = in.from, .n_rows = o->n_plain};
  weft_canvas_args canvas = {.row = in.canvas,
                             .state = r->d_cells + r->config.n_slots,
                             .argmax = stats.argmax,
                             .drawn = stats.drawn,
                             .entropy = stats.entropy,
                             .bad = stats.bad,
                             .fresh = in.fresh,
                             .next = stats.next,
                             .accepted = stats.accepted,
                             .out = r->d_canvas,
                             .n_rows = o->n_canvases,
                             .n = r->canvas_length,
                             .scratch = r->d_scratch,
                             .scratch_bytes = r->scratch_bytes};
  weft_status status = weft_move(d, &move);
  return status == WEFT_OK ? weft_canvas(d, &canvas) : status;
}

static runner_head own_head(const device_runner *r) {
  return (runner_head){.device = r->last,
                       .weight = r->head,
                       .canvases = &r->canvas_head,
                       .hidden = r->d_hidden,
                       .inputs = r->d_inputs,
                       .allowed_of = r->allowed != NULL ? r->allowed_of : NULL,
                       .scratch = r->d_scratch,
                       .scratch_bytes = r->scratch_bytes};
}

static weft_status head_stats_of(device_runner *r, const runner_head *head, const weft_weight *weight,
                                 const runner_outputs *o, uint32_t first, uint32_t n, float *logits) {
  if (n == 0) return WEFT_OK;
  bool canvases = o->n_canvas_rows > 0;
  runner_stats out = runner_stats_at(r->d_stats, o->n_plain + o->n_canvas_rows);
  runner_inputs in = inputs_at(head->inputs, o);
  weft_head_stats_args args = {
      .h = head->hidden + (uint64_t)(runner_first_stats(o) + first) * r->n_hidden,
      .weight = weight,
      .temperature = in.temperature + first,
      .u = in.u + first,
      .allowed = head->allowed_of != NULL ? head->allowed_of + first : NULL,
      .soft = canvases ? r->d_soft + (uint64_t)first * r->n_hidden : NULL,
      .want_soft = canvases ? r->want_soft + first : NULL,
      .argmax = out.argmax + first,
      .drawn = out.drawn + first,
      .top = out.top + first,
      .log_total = out.log_total + first,
      .entropy = out.entropy + first,
      .bad = out.bad + first,
      .logits = logits,
      .n_rows = n,
      .h_stride = r->n_hidden,
      .soft_stride = r->n_hidden,
      .logits_stride = r->info.n_vocab,
      .cap = r->cap,
      .soft_scale = r->embed_scale,
      .scratch = head->scratch,
      .scratch_bytes = head->scratch_bytes,
  };
  return weft_head_stats(head->device, &args);
}

uint64_t runner_stats_scratch(weft_device *device, const weft_weight *head, weft_head_stats_args canvases) {
  uint64_t n_bytes = weft_head_stats_scratch(device, &canvases);
  canvases.weight = head;
  uint64_t plain = weft_head_stats_scratch(device, &canvases);
  return plain > n_bytes ? plain : n_bytes;
}

/* Rows of canvases come behind plain ones. One call has all where both are multiplied in the same form. */
weft_status runner_head_stats(device_runner *r, const runner_head *head, const runner_outputs *o, uint32_t first,
                              uint32_t n, float *logits) {
  const runner_head own = own_head(r);
  if (head == NULL) head = &own;
  uint32_t n_plain = first >= o->n_plain ? 0 : n < o->n_plain - first ? n : o->n_plain - first;
  if (head->weight->layout == head->canvases->layout) n_plain = 0;
  weft_status status = head_stats_of(r, head, head->weight, o, first, n_plain, logits);
  if (logits != NULL) logits += (uint64_t)n_plain * r->info.n_vocab;
  return status == WEFT_OK ? head_stats_of(r, head, head->canvases, o, first + n_plain, n - n_plain, logits) : status;
}

/* Only plain rows are shared out by the vocabulary, so these are the rows with statistics. */
weft_status runner_head_part(const device_runner *r, const runner_head *head, const runner_outputs *o,
                             const weft_head_part_args *range, uint32_t first, uint32_t n) {
  weft_head_part_args args = *range;
  args.h = head->hidden + (uint64_t)(runner_first_stats(o) + first) * r->n_hidden;
  args.temperature = inputs_at(head->inputs, o).temperature + first;
  args.n_rows = n;
  return weft_head_part(head->device, &args);
}

weft_status runner_head_join(const device_runner *r, const runner_outputs *o, const weft_head_join_args *parts,
                             uint32_t first, uint32_t n) {
  runner_stats out = runner_stats_at(r->d_stats, o->n_plain + o->n_canvas_rows);
  runner_inputs in = inputs_at(r->d_inputs, o);
  weft_head_join_args args = *parts;
  args.temperature = in.temperature + first;
  args.u = in.u + first;
  args.argmax = out.argmax + first;
  args.drawn = out.drawn + first;
  args.top = out.top + first;
  args.log_total = out.log_total + first;
  args.entropy = out.entropy + first;
  args.bad = out.bad + first;
  args.n_rows = n;
  return weft_head_join(r->last, &args);
}

/* The statistics of all rows but those of held canvases, which come with their classes. */
static weft_status run_head_stats(device_runner *r, const runner_step *step, const runner_outputs *o, bool shared) {
  uint32_t n = o->n_plain + o->n_canvas_rows, from = 0, at = o->n_plain, end = n;
  weft_status status = WEFT_OK;
  if (shared && o->n_canvas_rows == 0) {
    const runner_head own = own_head(r);
    status = runner_share_tokens(r->share, 0, &own);
    return status == WEFT_OK && n > 0 ? take_tokens(r, o) : status;
  }
  if (shared) runner_share_rows(r, n, 0, &from, &end);
  for (uint32_t i = 0; i < step->batch->n_segments && o->n_held > 0 && status == WEFT_OK; i++) {
    const weft_segment *segment = &step->batch->segment[i];
    if (!weft_segment_denoises(segment)) continue;
    if (r->slots[segment->slot].params.grammar != NULL) {
      status = runner_head_stats(r, NULL, o, from, at - from, NULL);
      from = at + segment->n_rows;
    }
    at += segment->n_rows;
  }
  if (status == WEFT_OK) status = runner_head_stats(r, NULL, o, from, end - from, NULL);
  if (status == WEFT_OK && shared) status = runner_share_meet(r);
  return status == WEFT_OK && n > 0 && o->n_held == 0 ? take_tokens(r, o) : status;
}

/* What the host has a part in, and a device therefore cannot repeat. The steps before say where in the grammar a canvas
 * begins: they are settled while the device computes the forward pass of this one, the last. */
static weft_status run_held(device_runner *r, const runner_step *step, const runner_outputs *o) {
  if (o->n_held == 0) return WEFT_OK;
  runner_settle_first(r, r->n_flights - 1);
  if (r->broken) return WEFT_E_DEVICE;
  weft_status status = runner_held_paths(r, step, o, inputs_at(r->d_inputs, o).temperature);
  return status == WEFT_OK ? take_tokens(r, o) : status;
}

/* Where a step of few sequences that finds the device idle is cut in two graphs: the device computes the first layers
 * while the host goes through the calls of the others. Of more the shapes are many, and so would be the graphs that are
 * kept. 0: it is one graph. */
static uint32_t layer_of_cut(const device_runner *r, const runner_step *step, const model_part *part) {
  enum { LAYERS_MIN = 16, SEGMENTS_MAX = 4, SHARE = 5 };
  const weft_model *model = r->config.model;
  bool whole = !step->steady || r->n_flights > 1 || model->n_parts > 1 || model->n_shards > 1;
  uint32_t n = part->end_layer - part->first_layer;
  return whole || n < LAYERS_MIN || step->batch->n_segments > SEGMENTS_MAX
             ? 0
             : part->first_layer + (n + SHARE - 1) / SHARE;
}

/* Layers [first, end) of a part, and the head behind the last one. What comes again is recorded by devices that can,
 * and repeated with one launch. */
static weft_status run_layers(device_runner *r, const runner_flight *f, const runner_step *step, model_step *pass,
                              uint32_t first, uint32_t end) {
  const model_part *part = pass->part;
  const model_step begun = *pass;
  bool ends = end == r->config.model->hyper.n_layers;
  weft_status status;
  if (step->steady) weft_device_graph_owner(part->device, r->config.graph_owner);
  if (step->steady)
    weft_device_graph_begin(part->device, pass->args->graph_key ^ (uint64_t)first << 1, model_shards_vote(part));
  do {
    *pass = begun;
    status = model_compute(pass, first, end);
    if (status == WEFT_OK && ends) status = run_head_stats(r, step, &f->outputs, pass->args->share != NULL);
  } while (step->steady && weft_device_graph_end(part->device, &status));
  return status;
}

/* What one device does for a step. */
static weft_status run_part(device_runner *r, runner_flight *f, const runner_step *step, model_step *pass, uint32_t p) {
  const model_part *part = &r->config.model->part[p];
  weft_status status = model_enter(pass, p);
  if (status != WEFT_OK) return status;
  const weft_graph_counters before = weft_device_graph_counters(part->device);
  uint32_t first = part->first_layer, cut = layer_of_cut(r, step, part);
  if (cut > 0) status = run_layers(r, f, step, pass, first, cut);
  if (status == WEFT_OK) status = run_layers(r, f, step, pass, cut > 0 ? cut : first, part->end_layer);
  const weft_graph_counters after = weft_device_graph_counters(part->device);
  if (after.eager + after.captures != before.eager + before.captures) f->step.is_new = true;
  return status == WEFT_OK ? model_leave(pass) : status;
}

/* The key of the graphs of steps of this shape, on each device. 0: the step is no graph. */
static uint64_t graph_key(const device_runner *r, const runner_flight *f, const runner_step *step) {
  const weft_batch *batch = step->batch;
  uint64_t shape = weft_mix64(batch->n_encoder) ^ ((uint64_t)batch->n_stored << 32 | batch->n_rows);
  uint64_t held = f->outputs.n_held > 0 ? 1 : 0; /* it then ends before the tokens are taken */
  return step->steady ? weft_mix64((uint64_t)(uintptr_t)r ^ weft_mix64(shape << 1 | held)) | 1 : 0;
}

static weft_status run_step(device_runner *r, runner_flight *f, const runner_step *step) {
  weft_forward_args args = forward_args(r, f, step);
  args.graph_key = graph_key(r, f, step);
  runner_share_step(r->share, &f->outputs, &args);
  weft_status status = WEFT_OK;
  model_step pass;
  model_begin(r->config.model, &args, &pass);
  model_shards_start(r->config.model->others, &args);
  for (uint32_t p = 0; p < r->info.n_stages && status == WEFT_OK; p++) status = run_part(r, f, step, &pass, p);
  status = model_shards_join(r->config.model->others, status);
  return status == WEFT_OK ? run_held(r, step, &f->outputs) : status;
}

/* What the host will want to see, and the soft embeddings of the next steps, into their places. */
static weft_status send_results(device_runner *r, runner_flight *f, const runner_step *step) {
  weft_device *d = r->last;
  const runner_outputs *o = &f->outputs;
  uint32_t n = o->n_plain + o->n_canvas_rows, first = o->n_plain;
  weft_status status = n == 0 ? WEFT_OK : weft_device_copy(d, f->stats, r->d_stats, runner_stats_sent(n));
  if (status == WEFT_OK && o->n_logits > 0) {
    status = weft_device_copy(d, f->sampled, r->d_sampled, o->n_logits * sizeof *f->sampled);
  }
  if (status == WEFT_OK && o->n_scored > 0) {
    status = weft_device_copy(d, f->judged, r->d_judged, o->n_scored * sizeof *f->judged);
    if (status == WEFT_OK)
      status = weft_device_copy(d, f->given_logit, r->d_given_logit, o->n_scored * sizeof *f->given_logit);
  }
  if (status == WEFT_OK && o->n_canvases > 0) {
    status = weft_device_copy(d, f->canvas, r->d_canvas, o->n_canvases * sizeof *f->canvas);
  }
  for (uint32_t i = 0; i < step->batch->n_segments && status == WEFT_OK; i++) {
    const weft_segment *segment = &step->batch->segment[i];
    if (!weft_segment_denoises(segment)) continue;
    const float *soft = r->d_soft + (uint64_t)first * r->n_hidden;
    if (r->want_soft[first]) status = runner_send_soft(r, segment->slot, soft, segment->n_rows);
    first += segment->n_rows;
  }
  if (status == WEFT_OK) status = runner_send_cells(r, f);
  return status == WEFT_OK ? runner_look_send(r, f, step) : status;
}

/* Results exist per segment while the step is worked on; only those with an output are handed out. */
static void start_flight(device_runner *r, const weft_batch *batch, runner_flight *f) {
  f->step = (weft_step_result){.number = batch->number, .is_new = runner_assist_was_new(r)};
  f->settled = false;
  f->n_looked = 0;
  f->start_us = weft_clock_us();
  f->n_segments = batch->n_segments;
  memcpy(f->segment, batch->segment, batch->n_segments * sizeof *f->segment);
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    const weft_segment *segment = &batch->segment[i];
    f->result[i] = (weft_segment_result){.segment = i};
    f->generation[i] = r->slots[segment->slot].generation;
  }
}

static weft_status enqueue_work(device_runner *r, const weft_batch *batch, runner_flight *f) {
  f->outputs = (runner_outputs){0};
  weft_status status = weft_kv_store_copy(r->config.store, batch->copy, batch->n_copies, &f->n_moves);
  if (status != WEFT_OK) return status;
  if (batch->n_rows == 0) return WEFT_OK;
  status = runner_follow(r, batch);
  if (status != WEFT_OK) return status;
  resolve_tokens(r, batch);
  runner_step step = {.batch = batch, .first_filled = UINT32_MAX, .steady = runner_is_steady(r, batch)};
  if (step.steady) {
    step.batch = runner_fill_up(r, batch, &step.n_filled);
    step.first_filled = 0;
    while (step.first_filled < batch->n_segments && batch->segment[step.first_filled].stores == WEFT_STORES_POOL)
      step.first_filled++;
  }
  list_outputs(r, f, &step);
  list_others(r, f, &step);
  runner_note_writes(r, f);
  status = send_inputs(r, f, &step);
  if (status == WEFT_OK) status = place_soft(r, step.batch);
  if (status == WEFT_OK) status = run_step(r, f, &step);
  if (status == WEFT_OK) status = runner_sample(r, f, &step);
  if (status == WEFT_OK) status = runner_score(r, f);
  if (status == WEFT_OK) status = runner_assist_step(r, f, &step);
  return status == WEFT_OK ? send_results(r, f, &step) : status;
}

static weft_status enqueue_step(device_runner *r, const weft_batch *batch, runner_flight *f) {
  weft_status status = enqueue_work(r, batch, f);
  return status == WEFT_OK ? runner_mark(r, f) : status;
}

/* The copies of a batch whose rows will not be computed belong to the pool all the same. */
static weft_status only_copies(device_runner *r, const weft_batch *batch) {
  uint64_t n_moves;
  (void)weft_kv_store_copy(r->config.store, batch->copy, batch->n_copies, &n_moves);
  weft_kv_store_ran(r->config.store, n_moves, true);
  return WEFT_E_DEVICE;
}

static void count_pending(device_runner *r, const runner_flight *f) {
  const runner_outputs *o = &f->outputs;
  uint32_t end = runner_first_stats(o) + o->n_plain;
  for (uint32_t j = 0; j < end; j++) {
    bool scored = j >= o->n_logits && j < runner_first_stats(o);
    uint32_t i = f->output_segment[j];
    if (!scored && i != UINT32_MAX) r->slots[f->segment[i].slot].n_pending += 1;
  }
}

/* Rows of a run that are not plain have masks and penalties, which need every token before them: the host knows
 * those of the slot, and there is room for the drafts behind them. What is committed does not enter the history,
 * which the tokens that a slot draws go on from. */
static bool fits_slot(const device_runner *r, const weft_segment *segment, const runner_slot *slot) {
  const weft_slot_params *params = &slot->params;
  uint32_t n_sampled = weft_segment_n_sampled(segment);
  bool commits = segment->token_source == WEFT_TOKENS_ARGMAX;
  if (n_sampled > 0 && !params->draws) return false;
  if ((commits || segment->pass == WEFT_PASS_DECODER) && !params->denoises) return false;
  if (commits && params->draws) return false;
  if (n_sampled < 2 || runner_is_plain(slot)) return true;
  return slot->n_pending == 0 && (uint64_t)slot->n_history + n_sampled - 1 <= r->config.seq_tokens_max;
}

static bool segments_fit(const device_runner *r, const weft_batch *batch) {
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    const weft_segment *s = &batch->segment[i];
    if (!fits_slot(r, s, &r->slots[s->slot])) return false;
  }
  return true;
}

static weft_status runner_submit(weft_runner *base, const weft_batch *batch) {
  device_runner *r = (device_runner *)base;
  if (r->broken) return only_copies(r, batch);
  if (r->n_flights >= r->info.depth) return WEFT_FULL;
  if (!weft_batch_is_sound(batch, &r->bounds) || !segments_fit(r, batch)) return WEFT_E_INVALID;
  runner_flight *f = &r->flight[(r->first_flight + r->n_flights) % (r->info.depth + 1)];
  if (!runner_find_given(r, f, batch)) return WEFT_E_INVALID;
  start_flight(r, batch, f);
  r->n_flights += 1;
  f->number = ++r->n_steps;
  f->step.status = r->broken ? only_copies(r, batch) : enqueue_step(r, batch, f);
  if (f->step.status != WEFT_OK) r->broken = true;
  if (!r->broken) count_pending(r, f);
  if (r->in_place || r->broken) runner_settle_first(r, r->n_flights);
  return WEFT_OK;
}

static weft_status runner_collect(weft_runner *base, weft_step_result *result) {
  device_runner *r = (device_runner *)base;
  if (r->n_flights == 0) return r->broken ? WEFT_E_DEVICE : WEFT_AGAIN;
  runner_flight *f = &r->flight[r->first_flight];
  runner_settle(r, f);
  *result = f->step;
  r->first_flight = (r->first_flight + 1) % (r->info.depth + 1);
  r->n_flights -= 1;
  return WEFT_OK;
}

static uint32_t runner_copies_ended(weft_runner *base, weft_copy_end *out, uint32_t max) {
  const weft_kv_store *store = ((device_runner *)base)->config.store;
  return store->file == NULL ? 0 : weft_kv_file_ended(store->file, out, max);
}

static uint32_t runner_allowed(weft_runner *base, uint32_t index, const int32_t *draft, uint32_t n) {
  device_runner *r = (device_runner *)base;
  const runner_slot *s = &r->slots[index];
  weft_matcher *matcher = &r->draft_matcher;
  uint32_t k = 0;
  if (s->params.grammar == NULL) return n;
  *matcher = s->matcher;
  while (k < n && weft_matcher_take(matcher, r->grammar_scratch, draft[k])) k++;
  return k;
}

static const weft_runner_info *runner_info(const weft_runner *base) {
  return &((const device_runner *)base)->info;
}

const weft_runner_ops runner_ops = {WEFT_RUNNER_OPS_ALL(runner), .allowed = runner_allowed, .draft = runner_draft};
