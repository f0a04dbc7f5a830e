/* SPDX-License-Identifier: MIT */
/* Argument structs that a step fills and runs (layers.c, layers_delta.c, layers_latent.c, layers_mla.c), and whose
 * scratch the plan of its memory asks for (layers_plan.c), and what these share; private to them, to assistant.c and
 * to runner/runner_look.c.
 *
 * Law: what decides how much scratch an op needs is set here, so that the plan cannot ask for less than the step. */
#ifndef WEFT_MODEL_LAYERS_ARGS_H
#define WEFT_MODEL_LAYERS_ARGS_H

#include "model/layers.h"

/* The weight, or NULL where the file has none. */
static inline const weft_weight *layers_weight_of(const weft_weight *weight) {
  return weight->data != NULL ? weight : NULL;
}
weft_matmul_args layers_product_of(const model_part *part, const float *x, uint32_t n_rows, uint32_t n_weights,
                                   const weft_weight *const *weight, float *const *y);
/* Where the rows of a layer have their choice of experts: each layer has a place of its own until the next step. */
int32_t *layers_ids_of(const weft_model *model, const model_part *part, const model_layer *layer);
weft_experts_args layers_experts_of(const weft_model *model, const model_part *part, const model_layer *layer);
weft_route_args layers_route_of(const weft_model *model, const model_part *part, const model_layer *layer,
                                uint32_t n_rows);
/* Every product of a layer with its own weights, but those of experts, goes through here. */
weft_status layers_multiply(model_step *step, const weft_matmul_args *args);
/* The weights that read a layer's input, at most LAYERS_INPUTS_MAX, and where their products go in scratch. */
enum { LAYERS_INPUTS_MAX = 7 };
uint32_t layers_inputs_of(const weft_model *model, const model_part *part, uint32_t layer, const weft_weight **weight,
                          float **y);
/* Those of a layer with latent rows. */
uint32_t layers_latent_inputs(const weft_model *model, const model_part *part, uint32_t layer,
                              const weft_weight **weight, float **y);
/* Those of a layer with one vector for keys and values (model/mla.h). */
uint32_t layers_mla_inputs(const weft_model *model, const model_part *part, uint32_t layer, const weft_weight **weight,
                           float **y);
/* Where the segments of a step find the latent rows of a layer. */
void layers_latent_segments(const model_step *step, uint32_t layer);
/* The products of q_b with the normed products of q_a, which low_q of scratch has. */
weft_status layers_low_queries(model_step *step, const model_latent_layer *layer, float *q);
/* Chooses experts by scores of their own, or by a table of tokens, for all rows of a step. */
weft_status layers_assign(model_step *step, const model_layer *layer, const float *x);
weft_latent_choose_args layers_choose_of(const weft_model *model, const model_part *part, uint32_t n_rows);
/* Computes the products of a layer's input with all of them. */
weft_status layers_project(model_step *step, uint32_t layer);
/* No output is wanted, and no later layer stores what a later row needs. */
bool layers_end_here(const model_step *step, uint32_t layer);
/* The delta rule of a layer, but for the memory of its view, its segments and its writes. */
weft_delta_rule_args layers_delta_of(const weft_model *model, const model_part *part, uint32_t layer, uint32_t n_rows);

/* Shows a tap the n_rows rows of a layer's stage. */
static inline void layers_tap(const model_step *step, uint32_t layer, weft_stage stage, const float *x,
                              uint64_t n_cols) {
  const weft_forward_args *args = step->args;
  if (args->tap == NULL || step->model->n_shards > 1) return;
  const weft_tapped tapped = {
      .layer = layer, .stage = stage, .device = step->part->device, .x = x, .n_rows = step->n_rows, .n_cols = n_cols};
  args->tap(args->tap_self, &tapped);
}

#endif
