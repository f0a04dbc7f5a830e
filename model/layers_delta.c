/* SPDX-License-Identifier: MIT */
/* Layers with the gated delta rule in place of attention (kernels/delta.h). */
#include "model/layers_args.h"

weft_delta_rule_args layers_delta_of(const weft_model *model, const model_part *part, uint32_t l, uint32_t n_rows) {
  const model_delta *delta = &model->hyper.delta;
  const model_scratch *s = &part->scratch;
  uint64_t keys = (uint64_t)delta->n_k_heads * delta->dim, values = (uint64_t)delta->n_v_heads * delta->dim;
  return (weft_delta_rule_args){
      .view = {.type = model->info.kv.set[model->first_set[l]].rows.type,
               .dim = delta->dim,
               .n_k_heads = delta->n_k_heads,
               .n_v_heads = delta->n_v_heads,
               .every = MODEL_DELTA_EVERY},
      .q = s->k,
      .v = s->v,
      .beta = s->beta,
      .z = s->z,
      .norm = model->layers[l].o_norm,
      .out = s->a,
      .n_rows = n_rows,
      .eps = model->hyper.eps,
      .q_stride = keys,
      .v_stride = values,
      .beta_stride = delta->n_v_heads,
      .z_stride = values,
      .out_stride = values,
      .scratch = s->work,
      .scratch_bytes = s->work_bytes,
  };
}

static void place_view(const model_step *step, uint32_t l, weft_delta_view *view) {
  uint32_t set = step->model->first_set[l], shard = step->model->shard;
  const weft_kv_view rows = weft_kv_store_view(step->args->kv, step->args->layout, set, shard);
  view->block_tokens = rows.block_tokens;
  view->base = rows.base;
  view->page_bytes = rows.page_bytes;
  view->offset = rows.k_offset;
  view->state = weft_kv_store_run(step->args->kv, step->args->layout, set + 1, shard);
  view->tail = weft_kv_store_run(step->args->kv, step->args->layout, set + 2, shard);
}

/* The segments of the step as the layer's ops take them, and the states that they write. */
static void make_segments(const model_step *step, uint32_t l, weft_delta_rule_args *args) {
  const weft_batch *batch = step->args->batch;
  const step_arrays *arrays = &step->part->arrays;
  const weft_kv_place *place = &step->args->layout->place[step->model->first_set[l]];
  uint32_t rows_group = place[0].group, group = place[1].group;
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    const weft_segment *from = &batch->segment[i];
    step->part->delta_segments[i] = (weft_delta_segment){.first_row = from->first_row,
                                                         .n_rows = from->n_rows,
                                                         .kv_len = from->kv_len,
                                                         .table = step_arrays_table(arrays, i, rows_group),
                                                         .state = step_arrays_state(arrays, i, group)};
  }
  args->segment = step->part->delta_segments;
  args->n_segments = batch->n_segments;
  args->write = step->part->delta_writes;
  for (uint32_t i = 0; i < batch->n_states; i++) {
    const weft_state_write *from = &batch->state[i];
    if (from->group != group) continue;
    step->part->delta_writes[args->n_writes++] = (weft_delta_write){
        .segment = from->segment, .position = from->position, .pages = step_arrays_written(arrays, i)};
  }
}

weft_status layers_delta(model_step *step, uint32_t l) {
  const model_layer *layer = &step->model->layers[l];
  const model_scratch *s = &step->part->scratch;
  weft_delta_rule_args rule = layers_delta_of(step->model, step->part, l, step->n_rows);
  uint64_t channels = layer->q.n_out, values = rule.out_stride;
  place_view(step, l, &rule.view);
  make_segments(step, l, &rule);
  weft_delta_rows_args rows = {.view = rule.view,
                               .x = s->q,
                               .alpha = s->alpha,
                               .beta = s->beta,
                               .conv = layer->conv,
                               .a = layer->decay,
                               .dt = layer->decay_bias,
                               .q = s->k,
                               .v = s->v,
                               .segment = rule.segment,
                               .n_segments = rule.n_segments,
                               .n_rows = step->n_rows,
                               .x_stride = channels,
                               .alpha_stride = rule.beta_stride,
                               .beta_stride = rule.beta_stride,
                               .q_stride = rule.q_stride,
                               .v_stride = rule.v_stride};
  weft_status status = layers_project(step, l);
  if (status == WEFT_OK) status = weft_delta_rows(step->part->device, &rows);
  if (status == WEFT_OK) status = weft_delta_rule(step->part->device, &rule);
  if (status != WEFT_OK) return status;
  if (layers_end_here(step, l)) {
    step->n_rows = 0;
    return WEFT_OK;
  }
  step->o_x = step->a;
  step->o_form = WEFT_ROWS_F32;
  return l + 1 == step->model->hyper.n_layers ? layers_keep_output_rows(step, values) : WEFT_OK;
}
