/* SPDX-License-Identifier: MIT */
/* Opening and closing a device runner: all its memory. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/canvas_head.h"
#include "model/model_internal.h"
#include "model/runner/runner_assist.h"
#include "model/runner/runner_internal.h"
#include "model/runner/runner_look.h"
#include "model/runner/runner_share.h"
#include "model/shards.h"

enum { SCORED_ROWS_MAX = 256 }; /* of one step: each keeps its hidden state and its result until the step has landed */

static void close_slots(device_runner *r) {
  if (r->slots == NULL) return;
  for (uint32_t i = 0; i < r->config.n_slots; i++) {
    runner_slot *s = &r->slots[i];
    weft_free(s->history);
    weft_free(s->canvas);
  }
  weft_free(r->slots);
}

void runner_close(weft_runner *base) {
  device_runner *r = (device_runner *)base;
  if (r == NULL) return;
  for (uint32_t p = 0; p < r->split->n_devices && r->memory.placer == NULL; p++) {
    (void)weft_device_sync(r->split->device[p]); /* nothing of it may still run; an error has been told */
  }
  close_slots(r);
  runner_close_saves(r);
  for (uint32_t i = 0; i <= r->info.depth; i++) {
    runner_flight *f = &r->flight[i];
    void *const host[] = {f->result,         f->canvas_in,   f->segment, f->generation, f->draft,
                          f->output_segment, f->temperature, f->given,   f->scored,     f->token};
    for (uint32_t k = 0; k < sizeof host / sizeof *host; k++) weft_free(host[k]);
    void *const pinned[] = {f->stats, f->sampled, f->judged, f->given_logit, f->canvas};
    for (uint32_t k = 0; k < sizeof pinned / sizeof *pinned; k++) runner_memory_unpin(&r->memory, r->last, pinned[k]);
  }
  void *const host[] = {r->token,    r->cell_of,    r->segment,   r->position, r->kv_slot,
                        r->table_at, r->output_row, r->output_at, r->soft_of,  r->want_soft,
                        r->inputs,   r->allowed_of, r->asked,     r->masks,    r->given_at};
  for (uint32_t k = 0; k < sizeof host / sizeof *host; k++) weft_free(host[k]);
  weft_grammar_scratch_close(r->grammar_scratch);
  runner_close_held(r);
  runner_share_close(r->share);
  runner_assist_close(r, r->assist);
  runner_look_close(r);
  runner_memory_close(&r->memory);
  weft_free(r);
}

/* Host memory; counts bytes, remembers a refusal. */
static void *take_host(device_runner *r, uint64_t n, uint64_t size, weft_status *status) {
  if (*status != WEFT_OK) return NULL;
  r->n_bytes += n * size;
  if (r->counts) return NULL;
  void *memory = weft_alloc(n, size);
  if (memory == NULL) *status = WEFT_E_NO_MEMORY;
  return memory;
}

static void *take_memory_of(device_runner *r, weft_device *home, uint64_t n, uint64_t size, weft_status *status) {
  r->n_bytes += n * size;
  if (r->counts) return NULL;
  return runner_memory_take(&r->memory, home, n * size, status);
}

/* Of the last device, whose ops use it. */
static void *take_device(device_runner *r, uint64_t n, uint64_t size, weft_status *status) {
  return take_memory_of(r, r->last, n, size, status);
}

/* Host memory that the devices reach. */
static void *take_pinned(device_runner *r, uint64_t n_bytes, weft_status *status) {
  if (*status == WEFT_OK) r->n_bytes += n_bytes;
  return runner_memory_pin(&r->memory, r->last, n_bytes, status);
}

static weft_status open_slots(device_runner *r) {
  weft_status status = WEFT_OK;
  uint64_t c = r->canvas_length;
  r->slots = take_host(r, r->config.n_slots, sizeof *r->slots, &status);
  runner_slot counted = {0};
  for (uint32_t i = 0; i < r->config.n_slots && status == WEFT_OK; i++) {
    runner_slot *s = r->counts ? &counted : &r->slots[i];
    s->history = take_host(r, r->config.seq_tokens_max, sizeof *s->history, &status);
    if (c == 0) continue;
    s->canvas = take_host(r, c, sizeof *s->canvas, &status);
    s->soft = take_memory_of(r, r->first, c * r->n_hidden, sizeof(float), &status);
    if (!r->in_place) s->classes = take_device(r, runner_classes_words(r->info.n_vocab), sizeof *s->classes, &status);
  }
  return status;
}

static weft_status open_flights(device_runner *r) {
  weft_status status = WEFT_OK;
  const weft_model_limits *limits = &r->config.limits;
  uint64_t rows = limits->canvas_rows_max, n = r->stats_max, n_scored = r->info.scored_rows_max;
  for (uint32_t i = 0; i <= r->info.depth; i++) {
    runner_flight *f = &r->flight[i];
    f->result = take_host(r, limits->segments_max, sizeof *f->result, &status);
    f->canvas_in = take_host(r, rows, sizeof *f->canvas_in, &status);
    f->segment = take_host(r, limits->segments_max, sizeof *f->segment, &status);
    f->generation = take_host(r, limits->segments_max, sizeof *f->generation, &status);
    f->output_segment = take_host(r, r->output_max, sizeof *f->output_segment, &status);
    f->draft = take_host(r, r->output_max, sizeof *f->draft, &status);
    f->token = take_host(r, limits->segments_max + r->info.draft_rows_max, sizeof *f->token, &status);
    f->temperature = take_host(r, n, sizeof *f->temperature, &status);
    f->stats = take_pinned(r, runner_stats_bytes(n), &status);
    f->sampled = take_pinned(r, (limits->segments_max + r->info.draft_rows_max) * sizeof *f->sampled, &status);
    f->canvas = take_pinned(r, limits->segments_max * sizeof *f->canvas, &status);
    f->judged = take_pinned(r, n_scored * sizeof *f->judged, &status);
    f->given_logit = take_pinned(r, n_scored * sizeof *f->given_logit, &status);
    f->given = take_host(r, n_scored, sizeof *f->given, &status);
    f->scored = take_host(r, n_scored, sizeof *f->scored, &status);
  }
  return status;
}

static uint64_t inputs_words(const device_runner *r) {
  return 5 * (uint64_t)r->stats_max + (uint64_t)r->config.limits.segments_max * RUNNER_CANVAS_WORDS;
}

static weft_status open_host(device_runner *r) {
  weft_status status = WEFT_OK;
  const weft_model_limits *limits = &r->config.limits;
  uint64_t n = r->stats_max, n_groups = r->info.n_groups;
  r->token = take_host(r, limits->rows_max, sizeof *r->token, &status);
  r->cell_of = take_host(r, limits->rows_max, sizeof *r->cell_of, &status);
  r->segment = take_host(r, limits->segments_max, sizeof *r->segment, &status);
  r->position = take_host(r, limits->rows_max, sizeof *r->position, &status);
  r->kv_slot = take_host(r, limits->rows_max * n_groups, sizeof *r->kv_slot, &status);
  r->table_at = take_host(r, limits->segments_max * n_groups, sizeof *r->table_at, &status);
  r->output_row = take_host(r, r->output_max, sizeof *r->output_row, &status);
  r->output_at = take_host(r, r->output_max, sizeof *r->output_at, &status);
  r->soft_of = take_host(r, limits->segments_max, sizeof *r->soft_of, &status);
  r->want_soft = take_host(r, n, sizeof *r->want_soft, &status);
  r->inputs = take_host(r, inputs_words(r), sizeof *r->inputs, &status);
  r->allowed_of = take_host(r, n, sizeof *r->allowed_of, &status);
  r->given_at = take_host(r, r->logit_rows_max, sizeof *r->given_at, &status);
  r->asked = take_host(r, r->asked_words, sizeof *r->asked, &status);
  r->masks = take_host(r, (uint64_t)r->logit_rows_max * r->mask_words, sizeof *r->masks, &status);
  if (status == WEFT_OK) status = weft_grammar_scratch_open(&r->grammar_scratch);
  if (status == WEFT_OK) status = runner_open_held(r);
  if (status != WEFT_OK) return status;
  return open_flights(r);
}

weft_status runner_upload_allowed(const device_runner *r, weft_device *device, uint32_t *to) {
  uint32_t *mask = weft_alloc(r->mask_words, sizeof *mask);
  if (mask == NULL) return WEFT_E_NO_MEMORY;
  memset(mask, 0xFF, r->mask_words * sizeof *mask);
  for (uint32_t i = 0; i < r->config.n_suppressed; i++) {
    uint32_t token = (uint32_t)r->config.suppressed[i];
    if (token < r->info.n_vocab) mask[token / 32] &= ~(1u << token % 32);
  }
  weft_status status = weft_device_upload(device, to, mask, r->mask_words * sizeof *mask);
  weft_free(mask);
  return status;
}

static weft_status open_allowed(device_runner *r) {
  if (r->config.n_suppressed == 0) return WEFT_OK;
  weft_status status = WEFT_OK;
  r->allowed = take_device(r, r->mask_words, sizeof *r->allowed, &status);
  if (status != WEFT_OK || r->counts) return status;
  return runner_upload_allowed(r, r->memory.placer != NULL ? r->memory.placer : r->last, r->allowed);
}

/* What the first device has of the cells: with one device, the cells. */
static weft_status open_mirror(device_runner *r) {
  weft_status status = WEFT_OK;
  if (r->info.n_stages == 1) {
    r->d_mirror = r->d_cells;
    return WEFT_OK;
  }
  uint64_t n_words = runner_mirror_canvas(r, r->config.n_slots);
  r->d_mirror = take_memory_of(r, r->first, n_words, sizeof *r->d_mirror, &status);
  return status;
}

static weft_status open_device(device_runner *r) {
  weft_status status = WEFT_OK;
  weft_device *d = r->last;
  uint64_t n = r->stats_max, n_scored = r->info.scored_rows_max;
  r->d_hidden = take_device(r, (uint64_t)r->output_max * r->n_hidden, sizeof(float), &status);
  if (r->canvas_length > 0) r->d_soft = take_device(r, n * r->n_hidden, sizeof(float), &status);
  r->d_logits = take_device(r, (uint64_t)r->logit_rows_max * r->info.n_vocab, sizeof(float), &status);
  uint64_t n_cells = r->canvas_length == 0 ? r->config.n_slots : runner_canvas_cell(r, r->config.n_slots);
  r->d_inputs = take_device(r, inputs_words(r), sizeof *r->d_inputs, &status);
  r->d_cells = take_device(r, n_cells, sizeof *r->d_cells, &status);
  r->d_stats = take_device(r, runner_stats_bytes(n), 1, &status);
  r->d_asked = take_device(r, r->asked_words, sizeof *r->d_asked, &status);
  r->d_masks = take_device(r, (uint64_t)r->logit_rows_max * r->mask_words, sizeof *r->d_masks, &status);
  r->d_sampled = take_device(r, r->config.limits.segments_max + r->info.draft_rows_max, sizeof *r->d_sampled, &status);
  r->d_canvas = take_device(r, r->config.limits.segments_max, sizeof *r->d_canvas, &status);
  r->d_judged = take_device(r, n_scored, sizeof *r->d_judged, &status);
  r->d_given_logit = take_device(r, n_scored, sizeof *r->d_given_logit, &status);
  r->d_given_at = take_device(r, r->logit_rows_max, sizeof *r->d_given_at, &status);
  r->d_bad = take_device(r, r->logit_rows_max, 1, &status);
  if (r->canvas_length > 0 && !r->in_place) {
    uint64_t n_floats = (uint64_t)r->config.limits.canvas_rows_max * r->n_hidden;
    r->d_soft_in = take_memory_of(r, r->first, n_floats, sizeof(float), &status);
  }
  if (status == WEFT_OK) status = open_mirror(r);
  if (status != WEFT_OK) return status;
  float some = 0.0f, *soft = r->counts && r->canvas_length > 0 ? &some : r->d_soft; /* that there are any is asked */
  weft_head_stats_args stats = {.weight = &r->canvas_head,
                                .n_rows = (uint32_t)n,
                                .h_stride = r->n_hidden,
                                .soft = soft,
                                .soft_stride = r->n_hidden};
  weft_weight all = *r->head; /* which may be a range of it */
  all.n_out = r->info.n_vocab;
  weft_head_rows_args rows = {
      .weight = &all, .n_rows = r->logit_rows_max, .h_stride = r->n_hidden, .logits_stride = r->info.n_vocab};
  weft_sample_args sample = {.n_rows = r->logit_rows_max, .n_vocab = r->info.n_vocab};
  weft_canvas_args canvas = {.n_rows = r->config.limits.segments_max, .n = r->canvas_length};
  weft_classes_args classes = {
      .n_rows = r->logit_rows_max, .n_classes = WEFT_GRAPH_CLASSES, .n_tokens = r->info.n_vocab};
  const uint64_t needs[] = {runner_stats_scratch(d, r->head, stats), weft_head_rows_scratch(d, &rows),
                            weft_sample_scratch(d, &sample),         weft_canvas_scratch(d, &canvas),
                            weft_classes_scratch(d, &classes),       runner_share_scratch(r)};
  for (uint32_t i = 0; i < sizeof needs / sizeof *needs; i++) {
    if (needs[i] > r->scratch_bytes) r->scratch_bytes = needs[i];
  }
  r->d_scratch = take_device(r, r->scratch_bytes, 1, &status);
  if (status == WEFT_OK) status = open_allowed(r);
  if (status == WEFT_OK) status = runner_share_open(r, inputs_words(r), &r->share);
  r->n_bytes += runner_share_bytes(r->share);
  return status;
}

void weft_device_runner_describe(const weft_device_runner_config *config, weft_runner_info *info) {
  const weft_model_info *model = weft_model_get_info(config->model);
  *info = (weft_runner_info){0};
  (void)snprintf(info->name, sizeof info->name, "%s", config->name);
  (void)snprintf(info->arch, sizeof info->arch, "%s", model->arch);
  info->fingerprint_low = model->fingerprint_low;
  info->fingerprint_high = model->fingerprint_high;
  info->n_vocab = model->n_vocab;
  info->context_length = model->context_length;
  info->canvas_length = model->canvas_length;
  info->autoregressive = true;
  info->holds_canvases = model->canvas_length > 0;
  info->n_slots = config->n_slots;
  info->n_saves = model->canvas_length > 0 ? config->n_saves : 0;
  info->rows_max = config->limits.rows_max;
  info->scored_rows_max = info->rows_max < SCORED_ROWS_MAX ? info->rows_max : SCORED_ROWS_MAX;
  info->draft_rows_max = config->draft_rows_max;
  info->drafts = config->assistant != NULL;
  info->n_stages = weft_split_stages(weft_model_get_split(config->model));
  info->depth = info->n_stages + 1; /* every stage has a step, and the host plans one */
  info->page_bytes = config->layout->page_bytes;
  info->kv_bytes_per_token = weft_kv_bytes_per_token(&model->kv, false);
  info->n_experts = model->n_experts;
  info->n_experts_used = model->n_experts_used;
  info->entropy_bound = model->entropy_bound;
  info->n_groups = config->layout->n_groups;
  memcpy(info->group, config->layout->group, sizeof info->group);
}

static void fill_info(device_runner *r) {
  const weft_model_info *model = weft_model_get_info(r->config.model);
  weft_device_runner_describe(&r->config, &r->info);
  r->n_hidden = model->n_hidden;
  r->canvas_length = model->canvas_length;
  r->bounds = model_bounds(r->config.model, r->config.layout, r->config.n_slots);
  r->bounds.scored_rows_max = r->info.scored_rows_max;
  r->bounds.draft_rows_max = r->info.draft_rows_max;
}

/* A runner without its memory; NULL: there is none. */
static device_runner *make_runner(const weft_device_runner_config *config) {
  device_runner *r = weft_alloc(1, sizeof *r);
  if (r == NULL) return NULL;
  r->base.ops = &runner_ops;
  r->config = *config;
  r->split = weft_model_get_split(config->model);
  r->first = r->split->device[0];
  r->last = weft_split_last(r->split);
  runner_memory_open(&r->memory, r->split, config->model->limits.placer);
  fill_info(r);
  r->in_place = weft_device_get_info(r->last)->host_memory;
  r->graphs = r->info.graphs = weft_device_get_info(r->last)->graphs && model_shards_in_graphs(config->model);
  r->head = weft_model_head(config->model, &r->cap, &r->embed_scale);
  r->canvas_head = weft_canvas_head(r->head);
  uint64_t logits_bytes = config->logits_bytes_max;
  if (logits_bytes == 0) logits_bytes = (uint64_t)(r->in_place ? 64 : 128) << 20;
  uint64_t row_bytes = (uint64_t)r->info.n_vocab * sizeof(float);
  r->logit_rows_max = logits_bytes < row_bytes ? 1 : (uint32_t)(logits_bytes / row_bytes);
  /* A held canvas on a device with memory of its own has all its rows at once. */
  uint32_t rows_most = config->n_slots + r->info.draft_rows_max;
  if (!r->in_place && rows_most < r->canvas_length) rows_most = r->canvas_length;
  if (r->logit_rows_max > rows_most) r->logit_rows_max = rows_most;
  r->stats_max = config->limits.segments_max + r->info.draft_rows_max + config->limits.canvas_rows_max;
  r->output_max = r->stats_max + r->info.scored_rows_max;
  if (r->output_max < config->limits.rows_max) r->output_max = config->limits.rows_max;
  r->asked_words = runner_asked_words(r);
  r->mask_words = (r->info.n_vocab + 31) / 32;
  return r;
}

static weft_status take_memory(device_runner *r) {
  weft_status status = open_slots(r);
  if (status == WEFT_OK) status = runner_open_saves(r);
  if (status == WEFT_OK) status = open_host(r);
  if (status == WEFT_OK) status = open_device(r);
  if (status == WEFT_OK) status = runner_assist_open(r, &r->assist);
  r->n_bytes += runner_assist_bytes(r->assist);
  return status == WEFT_OK ? runner_look_open(r) : status;
}

weft_status weft_device_runner_count(const weft_device_runner_config *config, uint64_t *n_bytes, uint64_t *n_pinned) {
  device_runner *r = make_runner(config);
  if (r == NULL) return WEFT_E_NO_MEMORY;
  r->counts = r->memory.counts = true;
  weft_status status = take_memory(r);
  *n_bytes = r->n_bytes;
  *n_pinned = r->memory.n_pinned;
  runner_close(&r->base);
  return status;
}

weft_status weft_device_runner_open(const weft_device_runner_config *config, weft_runner **out, uint64_t *n_bytes,
                                    weft_error *error) {
  *out = NULL;
  if (!weft_kv_store_holds(config->store, config->layout))
    return weft_fail(error, WEFT_E_INVALID, "%s needs pages of %llu bytes; the pool has %llu", config->name,
                     (unsigned long long)config->layout->page_bytes, (unsigned long long)config->store->page_bytes);
  device_runner *r = make_runner(config);
  if (r == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the runner of %s", config->name);
  weft_status status = take_memory(r);
  if (status != WEFT_OK) {
    char room[WEFT_SPLIT_ROOM_MAX];
    (void)weft_split_tell_room(r->split, r->memory.asked, r->memory.left, room);
    runner_close(&r->base);
    return weft_fail(
        error, status,
        "the runner of %s needs more memory than there is (%s, or more); lower --running, --rows or --kv-mib",
        config->name, room);
  }
  runner_memory_tell(&r->memory, config->name, r->d_soft);
  if (n_bytes != NULL) *n_bytes = r->n_bytes;
  *out = &r->base;
  return WEFT_OK;
}

void weft_device_runner_away(const weft_runner *runner, uint64_t *n_bytes_first, uint64_t *n_bytes_host) {
  const device_runner *r = (const device_runner *)(const void *)runner;
  *n_bytes_first = r->memory.n_bytes_first;
  *n_bytes_host = r->memory.n_bytes_host;
}
