/* SPDX-License-Identifier: MIT */
#include "model/device_runner.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "kernels/ops.h"

enum { DEPTH = 2 }; /* batches submitted and not collected */

typedef struct slot {
  bool open;
  weft_slot_params params; /* pointers replaced by the slot's own */
  weft_logit_bias *bias;   /* [WEFT_LOGIT_BIAS_MAX], taken when a request first needs it */
  int32_t *history;        /* [seq_tokens_max] prompt, then answer */
  uint32_t n_history;
  int32_t *canvas;         /* [C] tokens of the next denoise step */
  int32_t *argmax;         /* [WEFT_STABILITY_MAX][C], newest first */
  uint32_t n_argmax;
  uint32_t block;
  bool done;               /* the canvas of `block` has stopped */
  float *soft;             /* device [C, n_hidden] */
} slot;

/* What one collected step points into. */
typedef struct result_set {
  weft_step_result step;
  weft_segment_result *result; /* [segments_max] */
  int32_t *argmax, *canvas_in, *drawn, *canvas_out; /* [canvas_rows_max] */
  float *entropy;
  uint8_t *accepted;
} result_set;

typedef struct device_runner {
  weft_runner base;
  weft_runner_info info;
  weft_device_runner_config config;
  const weft_weight *head;
  float cap, embed_scale;
  uint32_t n_hidden, canvas_length, logit_rows_max, output_max;
  bool broken;
  slot *slots;
  result_set set[DEPTH + 1];
  uint32_t first_set, n_sets; /* ring of submitted, not collected */
  /* host arrays of one step */
  int32_t *token;          /* [rows_max] */
  uint32_t *output_row;    /* [output_max]: rows that need logits, then plain rows, then canvas rows */
  uint32_t *output_segment; /* [output_max] */
  const float **soft_of;   /* [segments_max] */
  float *temperature, *u, *entropy, *top, *log_total;
  int32_t *argmax, *drawn, *renoise;
  uint8_t *bad, *want_soft;
  uint32_t *order;         /* [C] */
  uint32_t *allowed;       /* device bitmask, NULL when nothing is suppressed */
  const uint32_t **allowed_of;
  float *logits_row;       /* [n_vocab] host */
  void *sample_scratch;
  int32_t *suppressed;
  /* device arrays */
  float *d_hidden, *d_soft, *d_logits, *d_temperature, *d_u, *d_top, *d_log_total, *d_entropy;
  int32_t *d_argmax, *d_drawn;
  uint8_t *d_bad;
  void *d_scratch;
  uint64_t scratch_bytes, n_bytes;
} device_runner;

/* ---- slots -------------------------------------------------------------------------------------------- */

static weft_status runner_slot_open(weft_runner *base, uint32_t index, const weft_slot_params *params) {
  device_runner *r = (device_runner *)base;
  if (r->broken) return WEFT_E_DEVICE;
  WEFT_CHECK(index < r->config.n_slots);
  slot *s = &r->slots[index];
  WEFT_CHECK(!s->open);
  if (params->canvas && r->canvas_length == 0) return WEFT_E_UNSUPPORTED;
  if (params->n_tokens > r->config.seq_tokens_max) return WEFT_E_TOO_LARGE;
  s->params = *params;
  s->params.tokens = s->history;
  s->params.sampling.bias = s->bias;
  WEFT_CHECK(params->sampling.n_bias <= WEFT_LOGIT_BIAS_MAX);
  if (params->sampling.n_bias > 0) {
    memcpy(s->bias, params->sampling.bias, params->sampling.n_bias * sizeof *s->bias);
  }
  memcpy(s->history, params->tokens, params->n_tokens * sizeof *s->history);
  s->n_history = params->n_tokens;
  s->n_argmax = 0;
  s->block = 0;
  s->done = false;
  s->open = true;
  return WEFT_OK;
}

static void runner_slot_close(weft_runner *base, uint32_t index) {
  device_runner *r = (device_runner *)base;
  WEFT_CHECK(index < r->config.n_slots);
  r->slots[index].open = false;
}

static void canvas_start(device_runner *r, slot *s, const weft_segment *segment) {
  const weft_entropy_bound *p = &s->params.entropy_bound;
  for (uint32_t i = 0; i < r->canvas_length; i++) {
    weft_draw_key key = {p->seed, p->choice, WEFT_DRAW_INIT, segment->kv_len + i, 0};
    s->canvas[i] = (int32_t)weft_draw_below(&key, r->info.n_vocab);
  }
  s->n_argmax = 0;
  s->block = segment->block;
  s->done = false;
}

/* ---- before the forward pass ---------------------------------------------------------------------------- */

static void resolve_tokens(device_runner *r, const weft_batch *batch) {
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    const weft_segment *segment = &batch->segment[i];
    slot *s = &r->slots[segment->slot];
    int32_t *token = r->token + segment->first_row;
    switch (segment->token_source) {
      case WEFT_TOKENS_HOST:
        memcpy(token, batch->token + segment->first_row, segment->n_rows * sizeof *token);
        break;
      case WEFT_TOKENS_SAMPLED:
        token[0] = s->history[s->n_history - 1];
        break;
      case WEFT_TOKENS_CANVAS:
        if (segment->step == 0) canvas_start(r, s, segment);
        memcpy(token, s->canvas, segment->n_rows * sizeof *token);
        break;
      case WEFT_TOKENS_ARGMAX:
        memcpy(token, s->argmax, segment->n_rows * sizeof *token);
        break;
    }
  }
}

static weft_status check_batch(const device_runner *r, const weft_batch *batch) {
  const weft_model_limits *limits = &r->config.limits;
  if (batch->n_rows > limits->rows_max || batch->n_segments > limits->segments_max) return WEFT_E_INVALID;
  if (batch->n_causal > batch->n_rows || batch->n_groups != r->info.n_groups) return WEFT_E_INVALID;
  if (batch->n_rows - batch->n_causal > limits->canvas_rows_max) return WEFT_E_INVALID;
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    const weft_segment *s = &batch->segment[i];
    if (s->slot >= r->config.n_slots || s->n_rows == 0) return WEFT_E_INVALID;
    if (s->first_row > batch->n_rows || s->n_rows > batch->n_rows - s->first_row) return WEFT_E_INVALID;
    bool canvas_rows = s->first_row >= batch->n_causal;
    if (s->canvas != canvas_rows) return WEFT_E_INVALID;
    if (s->canvas && s->n_rows != r->canvas_length) return WEFT_E_INVALID;
    if (s->token_source == WEFT_TOKENS_SAMPLED && s->n_rows != 1) return WEFT_E_INVALID;
  }
  return WEFT_OK;
}

/* The rows whose hidden state is wanted, sorted into [need logits][plain][canvas]. */
typedef struct outputs {
  uint32_t n_logits, n_plain, n_canvas_rows;
} outputs;

static void push_output(device_runner *r, uint32_t at, const weft_batch *batch, uint32_t segment, uint32_t row) {
  r->output_row[at] = batch->segment[segment].first_row + row;
  r->output_segment[at] = segment;
}

static outputs list_outputs(device_runner *r, const weft_batch *batch) {
  outputs o = {0};
  uint32_t at = 0;
  for (int pass = 0; pass < 2; pass++) { /* logits rows, then plain rows */
    for (uint32_t i = 0; i < batch->n_segments; i++) {
      const weft_segment *s = &batch->segment[i];
      if (s->output != WEFT_OUTPUT_TOKEN) continue;
      bool plain = weft_sampling_is_plain(&r->slots[s->slot].params.sampling);
      if (plain != (pass == 1)) continue;
      push_output(r, at++, batch, i, s->n_rows - 1);
      if (plain) {
        o.n_plain += 1;
      } else {
        o.n_logits += 1;
      }
    }
  }
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    const weft_segment *s = &batch->segment[i];
    if (s->output != WEFT_OUTPUT_CANVAS) continue;
    for (uint32_t row = 0; row < s->n_rows; row++) push_output(r, at++, batch, i, row);
    o.n_canvas_rows += s->n_rows;
  }
  return o;
}

/* Temperatures, uniforms and soft wishes of the rows that go through head_stats. */
static void fill_stats_rows(device_runner *r, const weft_batch *batch, const outputs *o) {
  uint32_t n = o->n_plain + o->n_canvas_rows;
  for (uint32_t j = 0; j < n; j++) {
    uint32_t at = o->n_logits + j;
    const weft_segment *segment = &batch->segment[r->output_segment[at]];
    const slot *s = &r->slots[segment->slot];
    uint64_t position = segment->kv_len + (r->output_row[at] - segment->first_row);
    r->allowed_of[j] = r->allowed;
    if (segment->canvas) {
      const weft_entropy_bound *p = &s->params.entropy_bound;
      weft_draw_key key = {p->seed, p->choice, WEFT_DRAW_CANVAS, position, segment->step};
      r->temperature[j] = weft_entropy_bound_temperature(p, segment->step);
      r->u[j] = weft_draw_uniform(&key);
      r->want_soft[j] = !p->no_self_conditioning && segment->step + 1 < p->max_steps;
    } else {
      const weft_sampling *p = &s->params.sampling;
      weft_draw_key key = {p->seed, p->choice, WEFT_DRAW_TOKEN, position + 1, 0};
      r->temperature[j] = p->temperature > 0.0f ? p->temperature : 1.0f;
      r->u[j] = weft_draw_uniform(&key);
      r->want_soft[j] = 0;
    }
  }
}

static weft_status run_head_stats(device_runner *r, const outputs *o) {
  uint32_t n = o->n_plain + o->n_canvas_rows;
  if (n == 0) return WEFT_OK;
  weft_device *d = r->config.device;
  weft_status status = weft_device_upload(d, r->d_temperature, r->temperature, n * sizeof(float));
  if (status == WEFT_OK) status = weft_device_upload(d, r->d_u, r->u, n * sizeof(float));
  if (status != WEFT_OK) return status;
  /* Soft rows of canvases start at the first canvas row, so that plain rows need no soft memory. */
  bool canvases = o->n_canvas_rows > 0;
  weft_head_stats_args args = {
      .h = r->d_hidden + (uint64_t)o->n_logits * r->n_hidden,
      .weight = r->head,
      .temperature = r->d_temperature,
      .u = r->d_u,
      .allowed = r->allowed != NULL ? r->allowed_of : NULL,
      .soft = canvases ? r->d_soft : NULL,
      .want_soft = canvases ? r->want_soft : NULL,
      .argmax = r->d_argmax,
      .drawn = r->d_drawn,
      .top = r->d_top,
      .log_total = r->d_log_total,
      .entropy = r->d_entropy,
      .bad = r->d_bad,
      .n_rows = n,
      .h_stride = r->n_hidden,
      .soft_stride = r->n_hidden,
      .cap = r->cap,
      .soft_scale = r->embed_scale,
      .scratch = r->d_scratch,
      .scratch_bytes = r->scratch_bytes,
  };
  status = weft_head_stats(d, &args);
  if (status == WEFT_OK) status = weft_device_download(d, r->argmax, r->d_argmax, n * sizeof(int32_t));
  if (status == WEFT_OK) status = weft_device_download(d, r->drawn, r->d_drawn, n * sizeof(int32_t));
  if (status == WEFT_OK) status = weft_device_download(d, r->entropy, r->d_entropy, n * sizeof(float));
  if (status == WEFT_OK) status = weft_device_download(d, r->bad, r->d_bad, n);
  return status;
}

/* ---- after it ------------------------------------------------------------------------------------------- */

static void slot_push(device_runner *r, slot *s, int32_t token) {
  if (s->n_history < r->config.seq_tokens_max) s->history[s->n_history++] = token;
}

static weft_status sample_logits_rows(device_runner *r, const weft_batch *batch, const outputs *o, result_set *set) {
  weft_device *d = r->config.device;
  for (uint32_t first = 0; first < o->n_logits; first += r->logit_rows_max) {
    uint32_t n = o->n_logits - first < r->logit_rows_max ? o->n_logits - first : r->logit_rows_max;
    weft_head_rows_args args = {.h = r->d_hidden + (uint64_t)first * r->n_hidden,
                                .weight = r->head,
                                .logits = r->d_logits,
                                .bad = r->d_bad,
                                .n_rows = n,
                                .h_stride = r->n_hidden,
                                .logits_stride = r->info.n_vocab,
                                .cap = r->cap,
                                .scratch = r->d_scratch,
                                .scratch_bytes = r->scratch_bytes};
    weft_status status = weft_head_rows(d, &args);
    if (status == WEFT_OK) status = weft_device_download(d, r->bad, r->d_bad, n);
    for (uint32_t j = 0; j < n && status == WEFT_OK; j++) {
      const weft_segment *segment = &batch->segment[r->output_segment[first + j]];
      slot *s = &r->slots[segment->slot];
      weft_segment_result *result = &set->result[r->output_segment[first + j]];
      status = weft_device_download(d, r->logits_row, r->d_logits + (uint64_t)j * r->info.n_vocab,
                                    (uint64_t)r->info.n_vocab * sizeof(float));
      if (status != WEFT_OK) break;
      weft_sample_args sample = {.sampling = &s->params.sampling,
                                 .logits = r->logits_row,
                                 .n_vocab = r->info.n_vocab,
                                 .history = s->history,
                                 .n_history = s->n_history,
                                 .n_prompt = s->params.n_prompt,
                                 .suppressed = r->suppressed,
                                 .n_suppressed = r->config.n_suppressed,
                                 .position = (uint64_t)segment->kv_len + segment->n_rows,
                                 .scratch = r->sample_scratch};
      result->bad = r->bad[j] != 0 || weft_sample_row(&sample, &result->sampled) != WEFT_OK;
      if (!result->bad) slot_push(r, s, result->sampled.token);
    }
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}

static void take_plain_rows(device_runner *r, const weft_batch *batch, const outputs *o, result_set *set) {
  for (uint32_t j = 0; j < o->n_plain; j++) {
    uint32_t index = r->output_segment[o->n_logits + j];
    slot *s = &r->slots[batch->segment[index].slot];
    weft_segment_result *result = &set->result[index];
    result->bad = r->bad[j] != 0;
    result->sampled.token = s->params.sampling.temperature > 0.0f ? r->drawn[j] : r->argmax[j];
    if (!result->bad) slot_push(r, s, result->sampled.token);
  }
}

/* One canvas: statistics of its rows at stats[first ..] become the next canvas of its slot. */
static weft_status step_canvas(device_runner *r, const weft_segment *segment, uint32_t first, uint32_t place,
                               result_set *set, weft_segment_result *result) {
  slot *s = &r->slots[segment->slot];
  uint32_t n = segment->n_rows;
  const weft_entropy_bound *p = &s->params.entropy_bound;
  for (uint32_t i = 0; i < n; i++) result->bad |= r->bad[first + i] != 0;
  for (uint32_t i = 0; i < n; i++) {
    weft_draw_key key = {p->seed, p->choice, WEFT_DRAW_RENOISE, segment->kv_len + i, segment->step};
    r->renoise[i] = (int32_t)weft_draw_below(&key, r->info.n_vocab);
  }
  memcpy(set->canvas_in + place, s->canvas, n * sizeof(int32_t));
  memcpy(set->argmax + place, r->argmax + first, n * sizeof(int32_t));
  memcpy(set->drawn + place, r->drawn + first, n * sizeof(int32_t));
  memcpy(set->entropy + place, r->entropy + first, n * sizeof(float));
  weft_canvas_step step = {.params = p,
                           .step = segment->step,
                           .n = n,
                           .argmax = set->argmax + place,
                           .drawn = set->drawn + place,
                           .renoise = r->renoise,
                           .entropy = set->entropy + place,
                           .history = s->argmax,
                           .n_history = s->n_argmax,
                           .order = r->order,
                           .next = set->canvas_out + place,
                           .accepted = set->accepted + place};
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
  result->temperature = r->temperature[first];
  result->argmax = set->argmax + place;
  if (s->params.trace) {
    result->canvas_in = set->canvas_in + place;
    result->drawn = set->drawn + place;
    result->canvas_out = set->canvas_out + place;
    result->entropy = set->entropy + place;
    result->accepted = set->accepted + place;
  }
  if (!r->want_soft[first]) return WEFT_OK;
  return weft_device_copy(r->config.device, s->soft, r->d_soft + (uint64_t)first * r->n_hidden,
                          (uint64_t)n * r->n_hidden * sizeof(float));
}

static weft_status take_canvases(device_runner *r, const weft_batch *batch, const outputs *o, result_set *set) {
  uint32_t first = o->n_plain, place = 0;
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    const weft_segment *segment = &batch->segment[i];
    if (segment->output != WEFT_OUTPUT_CANVAS) continue;
    weft_segment_result *result = &set->result[i];
    if (!result->is_void) {
      weft_status status = step_canvas(r, segment, first, place, set, result);
      if (status != WEFT_OK) return status;
    }
    first += segment->n_rows;
    place += segment->n_rows;
  }
  return WEFT_OK;
}

/* Results exist per segment while the step is worked on; only those with an output are handed out. */
static void start_results(device_runner *r, const weft_batch *batch, result_set *set) {
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    const weft_segment *segment = &batch->segment[i];
    const slot *s = &r->slots[segment->slot];
    bool done = segment->output == WEFT_OUTPUT_CANVAS && segment->step > 0 && s->done && s->block == segment->block;
    set->result[i] = (weft_segment_result){.segment = i, .is_void = done};
  }
}

static void pack_results(const weft_batch *batch, result_set *set) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    if (batch->segment[i].output == WEFT_OUTPUT_NONE) continue;
    set->result[n++] = set->result[i];
  }
  set->step.n_results = n;
  set->step.result = set->result;
}

static weft_status run_forward(device_runner *r, const weft_batch *batch, const outputs *o, result_set *set) {
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    const weft_segment *segment = &batch->segment[i];
    const slot *s = &r->slots[segment->slot];
    bool has_soft = segment->canvas && segment->step > 0 && !s->params.entropy_bound.no_self_conditioning;
    r->soft_of[i] = has_soft ? s->soft : NULL;
  }
  weft_forward_args args = {.batch = batch,
                            .token = r->token,
                            .kv = r->config.store,
                            .layout = r->config.layout,
                            .soft = r->soft_of,
                            .output_row = r->output_row,
                            .n_output = o->n_logits + o->n_plain + o->n_canvas_rows,
                            .hidden = r->d_hidden};
  weft_status status = weft_model_forward(r->config.model, &args);
  set->step.n_experts_touched = args.n_experts_touched;
  return status;
}

static weft_status compute(device_runner *r, const weft_batch *batch, result_set *set) {
  weft_status status = weft_kv_store_copy(r->config.store, batch->copy, batch->n_copies);
  if (status != WEFT_OK) return status;
  start_results(r, batch, set);
  resolve_tokens(r, batch);
  outputs o = list_outputs(r, batch);
  status = run_forward(r, batch, &o, set);
  if (status == WEFT_OK) {
    fill_stats_rows(r, batch, &o);
    status = run_head_stats(r, &o);
  }
  if (status == WEFT_OK) {
    take_plain_rows(r, batch, &o, set);
    status = take_canvases(r, batch, &o, set);
  }
  if (status == WEFT_OK) status = sample_logits_rows(r, batch, &o, set);
  if (status == WEFT_OK) pack_results(batch, set);
  return status;
}

static weft_status runner_submit(weft_runner *base, const weft_batch *batch) {
  device_runner *r = (device_runner *)base;
  if (r->broken) return WEFT_E_DEVICE;
  if (r->n_sets >= DEPTH) return WEFT_FULL;
  weft_status status = check_batch(r, batch);
  if (status != WEFT_OK) return status;
  result_set *set = &r->set[(r->first_set + r->n_sets) % (DEPTH + 1)];
  uint64_t start = weft_clock_us();
  set->step = (weft_step_result){.number = batch->number};
  set->step.status = compute(r, batch, set);
  set->step.device_us = weft_clock_us() - start;
  if (set->step.status != WEFT_OK) {
    set->step.status = WEFT_E_DEVICE;
    set->step.n_results = 0;
    r->broken = true;
  }
  r->n_sets += 1;
  return WEFT_OK;
}

static weft_status runner_collect(weft_runner *base, weft_step_result *result) {
  device_runner *r = (device_runner *)base;
  if (r->n_sets == 0) return r->broken ? WEFT_E_DEVICE : WEFT_AGAIN;
  *result = r->set[r->first_set].step;
  r->first_set = (r->first_set + 1) % (DEPTH + 1);
  r->n_sets -= 1;
  return WEFT_OK;
}

static const weft_runner_info *runner_info(const weft_runner *base) {
  return &((const device_runner *)base)->info;
}

/* ---- open and close --------------------------------------------------------------------------------------- */

static void close_slots(device_runner *r) {
  if (r->slots == NULL) return;
  for (uint32_t i = 0; i < r->config.n_slots; i++) {
    slot *s = &r->slots[i];
    weft_free(s->bias);
    weft_free(s->history);
    weft_free(s->canvas);
    weft_free(s->argmax);
    weft_device_free(r->config.device, s->soft);
  }
  weft_free(r->slots);
}

static void runner_close(weft_runner *base) {
  device_runner *r = (device_runner *)base;
  if (r == NULL) return;
  close_slots(r);
  for (uint32_t i = 0; i <= DEPTH; i++) {
    result_set *set = &r->set[i];
    void *const host[] = {set->result, set->argmax, set->canvas_in, set->drawn, set->canvas_out, set->entropy,
                          set->accepted};
    for (uint32_t k = 0; k < sizeof host / sizeof *host; k++) weft_free(host[k]);
  }
  void *const host[] = {r->token, r->output_row, r->output_segment, r->soft_of, r->temperature, r->u, r->entropy,
                        r->argmax, r->drawn, r->renoise, r->bad, r->want_soft, r->order, r->allowed_of,
                        r->logits_row, r->sample_scratch, r->suppressed};
  for (uint32_t k = 0; k < sizeof host / sizeof *host; k++) weft_free(host[k]);
  void *const device[] = {r->allowed, r->d_hidden, r->d_soft, r->d_logits, r->d_temperature, r->d_u, r->d_top,
                          r->d_log_total, r->d_entropy, r->d_argmax, r->d_drawn, r->d_bad, r->d_scratch};
  for (uint32_t k = 0; k < sizeof device / sizeof *device; k++) weft_device_free(r->config.device, device[k]);
  weft_free(r);
}

static const weft_runner_ops runner_ops = {.info = runner_info,
                                           .slot_open = runner_slot_open,
                                           .slot_close = runner_slot_close,
                                           .submit = runner_submit,
                                           .collect = runner_collect,
                                           .close = runner_close};

/* Host memory; counts bytes, remembers a refusal. */
static void *take(device_runner *r, uint64_t n, uint64_t size, weft_status *status) {
  if (*status != WEFT_OK) return NULL;
  void *memory = weft_alloc(n, size);
  if (memory == NULL) *status = WEFT_E_NO_MEMORY;
  r->n_bytes += n * size;
  return memory;
}

static void *take_device(device_runner *r, uint64_t n, uint64_t size, weft_status *status) {
  void *memory = NULL;
  if (*status != WEFT_OK) return NULL;
  *status = weft_device_alloc(r->config.device, n * size, &memory);
  r->n_bytes += n * size;
  return memory;
}

static weft_status open_slots(device_runner *r) {
  weft_status status = WEFT_OK;
  uint64_t c = r->canvas_length;
  r->slots = take(r, r->config.n_slots, sizeof *r->slots, &status);
  for (uint32_t i = 0; i < r->config.n_slots && status == WEFT_OK; i++) {
    slot *s = &r->slots[i];
    s->history = take(r, r->config.seq_tokens_max, sizeof *s->history, &status);
    s->bias = take(r, WEFT_LOGIT_BIAS_MAX, sizeof *s->bias, &status);
    if (c == 0) continue;
    s->canvas = take(r, c, sizeof *s->canvas, &status);
    s->argmax = take(r, c * WEFT_STABILITY_MAX, sizeof *s->argmax, &status);
    s->soft = take_device(r, c * r->n_hidden, sizeof(float), &status);
  }
  return status;
}

static weft_status open_sets(device_runner *r) {
  weft_status status = WEFT_OK;
  uint64_t rows = r->config.limits.canvas_rows_max;
  for (uint32_t i = 0; i <= DEPTH; i++) {
    result_set *set = &r->set[i];
    set->result = take(r, r->config.limits.segments_max, sizeof *set->result, &status);
    set->argmax = take(r, rows, sizeof *set->argmax, &status);
    set->canvas_in = take(r, rows, sizeof *set->canvas_in, &status);
    set->drawn = take(r, rows, sizeof *set->drawn, &status);
    set->canvas_out = take(r, rows, sizeof *set->canvas_out, &status);
    set->entropy = take(r, rows, sizeof *set->entropy, &status);
    set->accepted = take(r, rows, sizeof *set->accepted, &status);
  }
  return status;
}

static weft_status open_host(device_runner *r) {
  weft_status status = WEFT_OK;
  const weft_model_limits *limits = &r->config.limits;
  uint64_t n = r->output_max;
  r->token = take(r, limits->rows_max, sizeof *r->token, &status);
  r->output_row = take(r, n, sizeof *r->output_row, &status);
  r->output_segment = take(r, n, sizeof *r->output_segment, &status);
  r->soft_of = take(r, limits->segments_max, sizeof *r->soft_of, &status);
  r->temperature = take(r, n, sizeof *r->temperature, &status);
  r->u = take(r, n, sizeof *r->u, &status);
  r->entropy = take(r, n, sizeof *r->entropy, &status);
  r->argmax = take(r, n, sizeof *r->argmax, &status);
  r->drawn = take(r, n, sizeof *r->drawn, &status);
  r->renoise = take(r, r->canvas_length, sizeof *r->renoise, &status);
  r->bad = take(r, n, sizeof *r->bad, &status);
  r->want_soft = take(r, n, sizeof *r->want_soft, &status);
  r->order = take(r, r->canvas_length, sizeof *r->order, &status);
  r->allowed_of = take(r, n, sizeof *r->allowed_of, &status);
  r->logits_row = take(r, r->info.n_vocab, sizeof *r->logits_row, &status);
  r->sample_scratch = take(r, r->info.n_vocab, 8, &status);
  r->suppressed = take(r, r->config.n_suppressed, sizeof *r->suppressed, &status);
  if (status != WEFT_OK) return status;
  if (r->config.n_suppressed > 0) {
    memcpy(r->suppressed, r->config.suppressed, r->config.n_suppressed * sizeof *r->suppressed);
  }
  return open_sets(r);
}

static weft_status open_allowed(device_runner *r) {
  if (r->config.n_suppressed == 0) return WEFT_OK;
  weft_status status = WEFT_OK;
  uint32_t n_words = (r->info.n_vocab + 31) / 32;
  uint32_t *mask = weft_alloc(n_words, sizeof *mask);
  if (mask == NULL) return WEFT_E_NO_MEMORY;
  memset(mask, 0xFF, n_words * sizeof *mask);
  for (uint32_t i = 0; i < r->config.n_suppressed; i++) {
    uint32_t token = (uint32_t)r->suppressed[i];
    if (token < r->info.n_vocab) mask[token / 32] &= ~(1u << token % 32);
  }
  r->allowed = take_device(r, n_words, sizeof *mask, &status);
  if (status == WEFT_OK) status = weft_device_upload(r->config.device, r->allowed, mask, n_words * sizeof *mask);
  weft_free(mask);
  return status;
}

static weft_status open_device(device_runner *r) {
  weft_status status = WEFT_OK;
  weft_device *d = r->config.device;
  uint64_t n = r->output_max;
  r->d_hidden = take_device(r, n * r->n_hidden, sizeof(float), &status);
  if (r->canvas_length > 0) r->d_soft = take_device(r, n * r->n_hidden, sizeof(float), &status);
  r->d_logits = take_device(r, (uint64_t)r->logit_rows_max * r->info.n_vocab, sizeof(float), &status);
  r->d_temperature = take_device(r, n, sizeof(float), &status);
  r->d_u = take_device(r, n, sizeof(float), &status);
  r->d_top = take_device(r, n, sizeof(float), &status);
  r->d_log_total = take_device(r, n, sizeof(float), &status);
  r->d_entropy = take_device(r, n, sizeof(float), &status);
  r->d_argmax = take_device(r, n, sizeof(int32_t), &status);
  r->d_drawn = take_device(r, n, sizeof(int32_t), &status);
  r->d_bad = take_device(r, n, 1, &status);
  if (status != WEFT_OK) return status;
  weft_head_stats_args stats = {.weight = r->head, .n_rows = (uint32_t)n, .h_stride = r->n_hidden,
                                .soft = r->d_soft, .soft_stride = r->n_hidden};
  weft_head_rows_args rows = {.weight = r->head, .n_rows = r->logit_rows_max, .h_stride = r->n_hidden,
                              .logits_stride = r->info.n_vocab};
  uint64_t a = weft_head_stats_scratch(d, &stats), b = weft_head_rows_scratch(d, &rows);
  r->scratch_bytes = a > b ? a : b;
  r->d_scratch = take_device(r, r->scratch_bytes, 1, &status);
  return status == WEFT_OK ? open_allowed(r) : status;
}

static void fill_info(device_runner *r) {
  const weft_model_info *model = weft_model_get_info(r->config.model);
  weft_runner_info *info = &r->info;
  (void)snprintf(info->name, sizeof info->name, "%s", r->config.name);
  (void)snprintf(info->arch, sizeof info->arch, "%s", model->arch);
  info->fingerprint_low = model->fingerprint_low;
  info->fingerprint_high = model->fingerprint_high;
  info->n_vocab = model->n_vocab;
  info->context_length = model->context_length;
  info->canvas_length = model->canvas_length;
  info->autoregressive = true;
  info->n_slots = r->config.n_slots;
  info->rows_max = r->config.limits.rows_max;
  info->depth = DEPTH;
  info->page_bytes = r->config.layout->page_bytes;
  info->kv_bytes_per_token = weft_kv_bytes_per_token(&model->kv, false);
  info->n_experts = model->n_experts;
  info->n_experts_used = model->n_experts_used;
  info->entropy_bound = model->entropy_bound;
  info->n_groups = r->config.layout->n_groups;
  for (uint32_t g = 0; g < info->n_groups; g++) {
    const weft_kv_group *from = &r->config.layout->group[g];
    info->group[g] = (weft_runner_group){from->block_tokens, from->window, from->n_layers};
  }
  r->n_hidden = model->n_hidden;
  r->canvas_length = model->canvas_length;
}

weft_status weft_device_runner_open(const weft_device_runner_config *config, weft_runner **out, uint64_t *n_bytes,
                                    weft_error *error) {
  *out = NULL;
  device_runner *r = weft_alloc(1, sizeof *r);
  if (r == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the runner of %s", config->name);
  r->base.ops = &runner_ops;
  r->config = *config;
  fill_info(r);
  r->head = weft_model_head(config->model, &r->cap, &r->embed_scale);
  uint64_t logits_bytes = config->logits_bytes_max > 0 ? config->logits_bytes_max : (uint64_t)64 << 20;
  uint64_t row_bytes = (uint64_t)r->info.n_vocab * sizeof(float);
  r->logit_rows_max = logits_bytes < row_bytes ? 1 : (uint32_t)(logits_bytes / row_bytes);
  if (r->logit_rows_max > config->n_slots) r->logit_rows_max = config->n_slots;
  r->output_max = config->limits.segments_max + config->limits.canvas_rows_max;
  weft_status status = open_slots(r);
  if (status == WEFT_OK) status = open_host(r);
  if (status == WEFT_OK) status = open_device(r);
  if (status != WEFT_OK) {
    runner_close(&r->base);
    return weft_fail(error, status, "the runner of %s needs more memory than there is: lower --running or --rows",
                     config->name);
  }
  if (n_bytes != NULL) *n_bytes = r->n_bytes;
  *out = &r->base;
  return WEFT_OK;
}
