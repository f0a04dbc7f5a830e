/* SPDX-License-Identifier: MIT */
/* The forward pass of one step, part after part. */
#include "model/layers.h"
#include "model/models.h"
#include "model/shards.h"

/* Outputs of the encoder pass come before those of the decoder pass. */
static bool outputs_are_sound(const weft_forward_args *args) {
  const weft_batch *batch = args->batch;
  if (args->n_output > batch->n_rows) return false;
  for (uint32_t i = 0; i < args->n_output; i++) {
    if (args->output_row[i] >= batch->n_rows) return false;
    bool was_decoder = i > 0 && args->output_row[i - 1] >= batch->n_encoder;
    if (was_decoder && args->output_row[i] < batch->n_encoder) return false;
  }
  return true;
}

/* A tap is shown whole rows. */
static weft_status tap_stream(model_step *step, uint32_t layer, weft_stage stage) {
  const weft_forward_args *args = step->args;
  if (args->tap == NULL) return WEFT_OK;
  weft_status status = stage == WEFT_STAGE_LAYER && step->owns_part ? layers_gather(step, step->x) : WEFT_OK;
  const weft_tapped tapped = {.layer = layer,
                              .stage = stage,
                              .device = step->part->device,
                              .x = step->x,
                              .n_rows = step->n_rows,
                              .n_cols = model_row_width(step->model)};
  if (step->model->shard == 0) args->tap(args->tap_self, &tapped);
  return status;
}

weft_batch_bounds model_bounds(const weft_model *model, const weft_kv_layout *layout, uint32_t n_slots) {
  return (weft_batch_bounds){.rows_max = model->limits.rows_max,
                             .canvas_rows_max = model->limits.canvas_rows_max,
                             .segments_max = model->limits.segments_max,
                             .n_slots = n_slots,
                             .n_groups = layout->n_groups,
                             .canvas_length = model->hyper.canvas_length,
                             .scored_rows_max = model->limits.rows_max,
                             .draft_rows_max = model->limits.rows_max};
}

/* ---- part after part ---- */

weft_status model_send(weft_device *from, weft_device *to, void *to_memory, const void *from_memory, uint64_t n_bytes,
                       uint64_t *crossed) {
  if (from == to) return weft_device_copy(from, to_memory, from_memory, n_bytes);
  (void)__atomic_fetch_add(crossed, n_bytes, __ATOMIC_RELAXED);
  return weft_device_send(from, to, to_memory, from_memory, n_bytes);
}

void model_begin(weft_model *model, weft_forward_args *args, model_step *step) {
  *step = (model_step){.model = model, .args = args, .inbox = (uint32_t)(model->n_passes++ % MODEL_INBOXES)};
}

/* Floats of a row's embeddings for all layers. */
static uint64_t per_layer_floats(const weft_model *model) {
  return (uint64_t)model->hyper.n_per_layer * model->hyper.n_layers;
}

/* All rows of the batch, of which a shard has all or those that it owns. */
static void begin_rows(model_step *step) {
  step->n_rows = step->args->batch->n_rows;
  layers_own_rows(step);
}

weft_status model_enter(model_step *step, uint32_t p) {
  weft_model *model = step->model;
  model_part *part = step->part = &model->part[p];
  uint64_t n_rows = step->args->batch->n_rows, n = n_rows * model_row_width(model), f = sizeof(float);
  begin_rows(step);
  if (p == 0) return WEFT_OK;
  float *inbox = part->inbox[step->inbox];
  weft_status status = weft_device_follow(part->device, model->part[p - 1].device, MARK_SENT);
  if (status == WEFT_OK) {
    status = weft_device_copy(part->device, layers_own(step, part->scratch.x), layers_own(step, inbox),
                              step->n_own * model_row_width(model) * f);
  }
  if (status == WEFT_OK && model->hyper.n_per_layer > 0) {
    status = weft_device_copy(part->device, part->scratch.per_layer, inbox + n, n_rows * per_layer_floats(model) * f);
  }
  return status == WEFT_OK ? weft_device_mark(part->device, MARK_TAKEN + step->inbox) : status;
}

weft_status model_leave(model_step *step) {
  weft_model *model = step->model;
  const model_part *part = step->part, *next = part + 1;
  uint64_t n_rows = step->args->batch->n_rows, n = n_rows * model_row_width(model), f = sizeof(float);
  if (part == model_last_part(model)) return WEFT_OK;
  float *inbox = next->inbox[step->inbox];
  weft_status status = weft_device_follow(part->device, next->device, MARK_TAKEN + step->inbox);
  if (status == WEFT_OK) {
    status = model_send(part->device, next->device, layers_own(step, inbox), layers_own(step, step->x),
                        step->n_own * model_row_width(model) * f, &model->crossed.rows);
  }
  if (status == WEFT_OK && model->hyper.n_per_layer > 0) {
    status = model_send(part->device, next->device, inbox + n, part->scratch.per_layer,
                        n_rows * per_layer_floats(model) * f, &model->crossed.rows);
  }
  return status == WEFT_OK ? weft_device_mark(part->device, MARK_SENT) : status;
}

/* The rows of layer 0 in step->x: shards add the rows of their tokens, or shard 0 gives all of them and others
 * nothing. */
static weft_status embed_rows(model_step *step) {
  const weft_model *model = step->model;
  uint64_t n_bytes = (uint64_t)step->n_rows * model_row_width(model) * sizeof *step->x;
  weft_status status =
      model_shards_embeds(model) ? model->arch->embed(step) : weft_device_zero(step->part->device, step->x, n_bytes);
  if (status != WEFT_OK || model->n_shards == 1) return status;
  weft_shards_array sum = {.x = step->x, .n_cols = (uint32_t)model_row_width(model)};
  return weft_shards_exchange(step->part->exchanges, model->shard, WEFT_SHARDS_SUM, &sum, 1, step->n_rows);
}

/* The input of the part's first layer: rows in step->x, and their norm in step->h. */
static weft_status make_input(model_step *step) {
  const weft_model *model = step->model;
  uint32_t first = step->part->first_layer;
  weft_device_at_layer(step->part->device, first);
  weft_status status = first == 0 ? embed_rows(step) : WEFT_OK;
  if (first == 0 && status == WEFT_OK) status = tap_stream(step, 0, WEFT_STAGE_INPUT);
  bool arrived_in_part = first > 0 && step->owns_part; /* embedded rows are whole on every shard */
  step->h_form = WEFT_ROWS_F32;
  if (model->hyper.latent.n_streams > 0) return status; /* the layer mixes the parts of the stream itself */
  step->h_is_part = arrived_in_part;
  layers_norm_args norm = {.x = step->x,
                           .weight = model->layers[first].attn_norm,
                           .y = step->h,
                           .first_row = arrived_in_part ? step->own_first : 0,
                           .n_rows = arrived_in_part ? step->n_own : step->n_rows};
  return status == WEFT_OK ? layers_norm(step, &norm) : status;
}

/* The hidden rows that the step gives out: shard 0 to the caller, others to who shares the head's rows out. */
static weft_status end_rows(model_step *step) {
  bool ended = step->part->end_layer == step->model->hyper.n_layers && step->n_rows > 0;
  if (!ended || !step->h_is_part) return WEFT_OK;
  step->h_is_part = false;
  return layers_gather(step, step->model->shard == 0 ? step->args->hidden : step->h);
}

/* Keeps what goes into the layer, where a drafter reads it. */
static weft_status keep_features(const model_step *step, uint32_t layer) {
  const weft_model *model = step->model;
  const model_block *block = model->features.block;
  const uint64_t n = model->hyper.n_hidden;
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; block != NULL && i < block->n_layers && status == WEFT_OK; i++) {
    const weft_norm_args copy = {.x = step->x,
                                 .y = model->features.rows + i * n,
                                 .n_rows = step->n_rows,
                                 .n_cols = (uint32_t)n,
                                 .plain = true,
                                 .x_stride = n,
                                 .y_stride = block->n_layers * n};
    if (block->layer[i] == layer) status = weft_norm(step->part->device, &copy);
  }
  return status;
}

/* The cells that hold tokens lie on shard 0, which comes here when they have been written. */
static weft_status meet_before_tokens(const model_step *step) {
  const weft_model *model = step->model;
  if (!model->token_ranges || step->part->first_layer > 0) return WEFT_OK;
  return weft_shards_meet(step->part->exchanges, model->shard);
}

/* Up to the rows that the part's first layer reads. */
static weft_status begin_part(model_step *step) {
  model_part *part = step->part;
  begin_rows(step);
  step->n_encoder = step->args->batch->n_encoder;
  step->x = part->scratch.x;
  step->h = part->scratch.h;
  step->a = part->scratch.a;
  step->kept = NULL;
  step->h_is_part = false;
  weft_status status = meet_before_tokens(step);
  bool embeds = part->first_layer == 0 && model_shards_embeds(step->model);
  if (status == WEFT_OK) status = step_arrays_fill(&part->arrays, step->args, embeds);
  return status == WEFT_OK ? make_input(step) : status;
}

weft_status model_compute(model_step *step, uint32_t first, uint32_t end) {
  model_part *part = step->part;
  weft_status status = first == part->first_layer ? begin_part(step) : WEFT_OK;
  /* Without rows no output is wanted, and all keys are stored. */
  for (uint32_t l = first; status == WEFT_OK && l < end && step->n_rows > 0; l++) {
    weft_device_at_layer(part->device, l);
    status = keep_features(step, l);
    if (status == WEFT_OK) status = step->model->arch->layer(step, l);
    if (status == WEFT_OK && step->n_rows > 0) status = tap_stream(step, l, WEFT_STAGE_LAYER);
  }
  if (status == WEFT_OK && end == part->end_layer) status = end_rows(step);
  weft_device_at_layer(part->device, UINT32_MAX);
  return status;
}

weft_status weft_model_forward(weft_model *model, weft_forward_args *args) {
  weft_batch_bounds bounds = model_bounds(model, args->layout, UINT32_MAX);
  if (!weft_kv_store_holds(args->kv, args->layout)) return WEFT_E_INVALID;
  if (!weft_batch_is_sound(args->batch, &bounds) || !outputs_are_sound(args)) return WEFT_E_INVALID;
  if (args->batch->n_rows == 0) return WEFT_OK;
  model_step step;
  weft_status status = WEFT_OK;
  model_begin(model, args, &step);
  model_shards_start(model->others, args);
  for (uint32_t p = 0; p < model->n_parts && status == WEFT_OK; p++) {
    status = model_enter(&step, p);
    if (status == WEFT_OK) status = model_compute(&step, step.part->first_layer, step.part->end_layer);
    if (status == WEFT_OK) status = model_leave(&step);
  }
  return model_shards_join(model->others, status);
}
