/* SPDX-License-Identifier: MIT */
/* Pieces of a layer that architectures share. Each reads and writes the step's buffers.
 *
 * Law: a piece computes all rows of the step at once; what differs between rows is data. */
#ifndef WEFT_MODEL_LAYERS_H
#define WEFT_MODEL_LAYERS_H

#include "model/model_internal.h"

/* y = x W^T for up to three weights of one input. Rows are dense. */
weft_status layers_matmul(model_step *step, const float *x, uint32_t n_rows, uint32_t n_weights,
                          const weft_weight *const *weight, float *const *y);
/* step->x = the rows of the token embedding times the model's factor. */
weft_status layers_embed(model_step *step);
/* y = (add + norm(x + x2) * weight) * row_scale, rows dense; all but x and y may be NULL. x and x2 are normed by
 * themselves first where they have a weight, and norms of y follow (weft_norm). plain: x + x2 is not normed. */
typedef struct layers_norm_args {
  float *x, *x2;
  const float *x_weight, *x2_weight, *weight, *add, *row_scale;
  float *y;
  uint32_t n_rows, n_then;
  bool plain, add_is_row; /* add_is_row: one row for all */
  const float *then_weight[WEFT_NORM_THEN_MAX];
  float *then[WEFT_NORM_THEN_MAX];
} layers_norm_args;
weft_status layers_norm(model_step *step, const layers_norm_args *args);
/* Adds the norm of y that follows a layer: what the next layer reads, in step->h, or the hidden rows of the last. */
void layers_then_next(model_step *step, uint32_t layer, layers_norm_args *norm);
/* step->h -> keys and values in their place, attention output in step->a. In the last layer the
 * step then goes on with the output rows only. When there are none, the step ends with the last layer that stores keys:
 * step->n_rows is 0. */
weft_status layers_attention(model_step *step, uint32_t layer);
/* out = down(act(gate x) * (up x)). */
typedef struct layers_mlp_args {
  const float *x;
  const weft_weight *gate, *up, *down;
  float *out;
  uint32_t n_rows;
} layers_mlp_args;
weft_status layers_mlp(model_step *step, const layers_mlp_args *args);
/* The router's product with r chooses experts; out = those experts of u; and, unless shared is NULL, an MLP of all rows
 * beside them. */
weft_status layers_route(model_step *step, const model_layer *layer, const float *r);
weft_status layers_experts(model_step *step, const model_layer *layer, const float *u, float *out,
                           const layers_mlp_args *shared);

/* The scratch of a model: plan fills model->plan, place the pointers once scratch_base is there. */
weft_status layers_plan(weft_model *model);
void layers_place(weft_model *model);

#endif
