/* SPDX-License-Identifier: MIT */
/* The forward pass of one step, part after part. */
#include "model/layers.h"
#include "model/models.h"

/* Outputs of causal rows come before those of canvas rows. */
static bool outputs_are_sound(const weft_forward_args *args) {
  const weft_batch *batch = args->batch;
  if (args->n_output > batch->n_rows) return false;
  for (uint32_t i = 0; i < args->n_output; i++) {
    if (args->output_row[i] >= batch->n_rows) return false;
    bool was_canvas = i > 0 && args->output_row[i - 1] >= batch->n_causal;
    if (was_canvas && args->output_row[i] < batch->n_causal) return false;
  }
  return true;
}

static void probe_layer(const model_step *step, uint32_t layer) {
  const weft_forward_args *args = step->args;
  if (args->layer_probe != NULL) args->layer_probe(args->probe_self, layer, step->x, step->n_rows);
}

weft_status weft_model_forward(weft_model *model, weft_forward_args *args) {
  weft_batch_bounds bounds = model_bounds(model, args->layout, UINT32_MAX);
  args->n_experts_touched = 0;
  if (!weft_kv_store_holds(args->kv, args->layout)) return WEFT_E_INVALID;
  if (!weft_batch_is_sound(args->batch, &bounds) || !outputs_are_sound(args)) return WEFT_E_INVALID;
  return model_forward(model, args);
}

weft_batch_bounds model_bounds(const weft_model *model, const weft_kv_layout *layout, uint32_t n_slots) {
  return (weft_batch_bounds){.rows_max = model->limits.rows_max,
                             .canvas_rows_max = model->limits.canvas_rows_max,
                             .segments_max = model->limits.segments_max,
                             .n_slots = n_slots,
                             .n_groups = layout->n_groups,
                             .canvas_length = model->hyper.canvas_length,
                             .scored_rows_max = model->limits.rows_max};
}

weft_status model_forward(weft_model *model, weft_forward_args *args) {
  args->n_experts_touched = 0;
  if (args->batch->n_rows == 0) return WEFT_OK;
  model_part *part = &model->part[0];
  model_step step = {
      .model = model,
      .part = part,
      .args = args,
      .n_rows = args->batch->n_rows,
      .n_causal = args->batch->n_causal,
      .x = part->scratch.x,
      .h = part->scratch.h,
      .a = part->scratch.a,
  };
  weft_status status = step_arrays_fill(&part->arrays, args);
  weft_device_at_layer(part->device, 0);
  if (status == WEFT_OK) status = model->arch->embed(&step);
  probe_layer(&step, 0);
  layers_norm_args norm = {.x = step.x, .weight = model->layers[0].attn_norm, .y = step.h, .n_rows = step.n_rows};
  if (status == WEFT_OK) status = layers_norm(&step, &norm);
  for (uint32_t l = 0; status == WEFT_OK && l < model->hyper.n_layers; l++) {
    weft_device_at_layer(part->device, l);
    status = model->arch->layer(&step, l);
    if (step.n_rows == 0) break; /* no output is wanted, and all keys are stored */
    probe_layer(&step, l + 1);
  }
  weft_device_at_layer(part->device, UINT32_MAX);
  args->n_experts_touched = step.n_touched;
  return status;
}
