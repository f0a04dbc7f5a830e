/* SPDX-License-Identifier: MIT */
/* Attention of layers whose keys and values are made of one vector for each position (model/mla.h), by the ops of
 * latent rows. Queries and results of attention go to and fro between q and a of the scratch memory. */
#include "model/layers_args.h"

uint32_t layers_mla_inputs(const weft_model *model, const model_part *part, uint32_t l, const weft_weight **weight,
                           float **y) {
  const model_layer *layer = &model->layers[l];
  const model_scratch *s = &part->scratch;
  bool is_low = layer->latent.q_a.data != NULL;
  weight[0] = is_low ? &layer->latent.q_a : &layer->q;
  y[0] = is_low ? s->low_q : s->a;
  weight[1] = &layer->latent.kv;
  y[1] = s->k;
  return 2;
}

/* y_h = W_h x_h of all rows of the step. */
static weft_status multiply_heads(model_step *step, const float *x, const float *weight, uint32_t n_in, uint32_t n_out,
                                  uint32_t n_rest, float *y) {
  const uint32_t n_heads = step->model->hyper.n_heads;
  const weft_latent_heads_args args = {.x = x,
                                       .weight = weight,
                                       .y = y,
                                       .n_rows = step->n_rows,
                                       .n_heads = n_heads,
                                       .n_in = n_in,
                                       .n_out = n_out,
                                       .n_rest = n_rest,
                                       .x_stride = (uint64_t)n_heads * (n_in + n_rest),
                                       .y_stride = (uint64_t)n_heads * (n_out + n_rest)};
  return weft_latent_heads(step->part->device, &args);
}

/* Queries, in a, then in q as they meet the kept vectors. */
static weft_status make_queries(model_step *step, const model_layer *layer) {
  const model_hyper *hyper = &step->model->hyper;
  const model_scratch *s = &step->part->scratch;
  weft_status status = layer->latent.q_b.data != NULL ? layers_low_queries(step, &layer->latent, s->a) : WEFT_OK;
  if (status != WEFT_OK) return status;
  return multiply_heads(step, s->a, layer->k_b, hyper->mla.n_still, hyper->mla.rank, hyper->latent.n_rotated, s->q);
}

static weft_status store_rows(model_step *step, const model_layer *layer, const weft_latent_view *rows) {
  const model_hyper *hyper = &step->model->hyper;
  const model_scratch *s = &step->part->scratch;
  const weft_latent_rows_args args = {.near = *rows,
                                      .q = s->q,
                                      .kv = s->k,
                                      .kv_norm = layer->latent.kv_norm,
                                      .turn = {step->part->inv_freq, hyper->latent.n_rotated},
                                      .segment = step->part->latent_segments,
                                      .n_segments = step->args->batch->n_segments,
                                      .n_rows = step->n_rows,
                                      .n_heads = hyper->n_heads,
                                      .q_stride = (uint64_t)hyper->n_heads * rows->width,
                                      .kv_stride = rows->width,
                                      .eps = hyper->eps,
                                      .parted = true};
  return weft_latent_rows(step->part->device, &args);
}

static weft_status attend_rows(model_step *step, const weft_latent_view *rows) {
  const model_hyper *hyper = &step->model->hyper;
  const model_scratch *s = &step->part->scratch;
  const weft_latent_attend_args args = {.near = *rows,
                                        .q = s->q,
                                        .out = step->a,
                                        .turn = {step->part->inv_freq, hyper->latent.n_rotated},
                                        .segment = step->part->latent_segments,
                                        .n_segments = step->args->batch->n_segments,
                                        .n_rows = step->n_rows,
                                        .n_heads = hyper->n_heads,
                                        .window = UINT32_MAX,
                                        .n_values = hyper->mla.rank,
                                        .scale = hyper->attention_scale,
                                        .q_stride = (uint64_t)hyper->n_heads * rows->width,
                                        .out_stride = (uint64_t)hyper->n_heads * hyper->mla.rank};
  return weft_latent_attend(step->part->device, &args);
}

weft_status layers_mla(model_step *step, uint32_t l) {
  const model_hyper *hyper = &step->model->hyper;
  const model_layer *layer = &step->model->layers[l];
  const model_scratch *s = &step->part->scratch;
  const weft_latent_view rows =
      weft_kv_store_rows(step->args->kv, step->args->layout, step->model->first_set[l], step->model->shard);
  layers_latent_segments(step, l);
  weft_status status = layers_project(step, l);
  if (status == WEFT_OK) status = make_queries(step, layer);
  if (status == WEFT_OK) status = store_rows(step, layer, &rows);
  if (status != WEFT_OK) return status;
  if (layers_end_here(step, l)) {
    step->n_rows = 0; /* rows in pages were all that was wanted */
    return WEFT_OK;
  }
  const uint64_t cols = (uint64_t)hyper->n_heads * hyper->mla.rank;
  status = attend_rows(step, &rows);
  if (status == WEFT_OK && l + 1 == hyper->n_layers) status = layers_keep_output_rows(step, cols);
  if (status != WEFT_OK || step->n_rows == 0) return status;
  float *values = step->a == s->q ? s->a : s->q;
  step->o_form = WEFT_ROWS_F32;
  step->o_x = values;
  return multiply_heads(step, step->a, layer->v_b, hyper->mla.rank, hyper->mla.n_value, 0, values);
}
