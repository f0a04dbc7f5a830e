/* SPDX-License-Identifier: MIT */
/* Parts of a layer that architectures share. Each part reads and writes the buffers of the step.
 *
 * Law: a piece computes all rows of the step at once; what differs between rows is data. */
#ifndef WEFT_MODEL_LAYERS_H
#define WEFT_MODEL_LAYERS_H

#include "model/model_internal.h"

/* y = x W^T for up to three weights over one input. The rows of x and y lie one behind another. */
weft_status layers_matmul(model_step *step, const float *x, uint32_t n_rows, uint32_t n_weights,
                          const weft_weight *const *weight, float *const *y);
/* step->x = the rows of the token embedding times the model's factor. */
weft_status layers_embed(model_step *step);
/* y = (add + norm(x + x2) * weight) * row_scale, rows one behind another; all but x and y may be NULL. Where x_weight
 * or x2_weight is given, x or x2 is normed by itself first; the norms of y in `then` follow (op norm,
 * kernels/ops.h). */
typedef struct layers_norm_args {
  float *x, *x2;
  const float *x_weight, *x2_weight, *weight, *add, *row_scale;
  float *y;
  uint32_t n_rows, n_then;
  bool plain, add_is_row; /* plain: x + x2 is not normed; add_is_row: add is one row for all rows */
  const float *then_weight[WEFT_NORM_THEN_MAX];
  float *then[WEFT_NORM_THEN_MAX];
} layers_norm_args;
weft_status layers_norm(model_step *step, const layers_norm_args *args);
/* Adds to `norm` the norm of y that follows a layer: the input of the next layer, in step->h, or after the last layer
 * the hidden rows that the step gives out. Nothing before a cut, where only the residual stream goes on. */
void layers_then_next(model_step *step, uint32_t layer, layers_norm_args *norm);
/* Computes keys, values and attention from step->h: keys and values go to the pages, the result to step->a. In the last
 * layer the step then goes on with the output rows only. A step without output rows ends with the last layer that
 * stores keys, and step->n_rows is 0 from there on. */
weft_status layers_attention(model_step *step, uint32_t layer);
/* out = down(act(gate x) * (up x)). */
typedef struct layers_mlp_args {
  const float *x;
  const weft_weight *gate, *up, *down;
  float *out;
  uint32_t n_rows;
} layers_mlp_args;
weft_status layers_mlp(model_step *step, const layers_mlp_args *args);
/* layers_route chooses experts by the router's product with r; layers_experts computes out = those experts over u and,
 * unless shared is NULL, an MLP of all rows beside them. sum: with shared, what layers_sum_norm will be called with
 * next, for two arrays: the op may begin it. */
weft_status layers_route(model_step *step, const model_layer *layer, const float *r);
weft_status layers_experts(model_step *step, const model_layer *layer, const float *u, float *out,
                           const layers_mlp_args *shared, const layers_norm_args *sum);

/* Sums x [step->n_rows, n_hidden] over the shards, in place; does nothing where there is one. */
weft_status layers_sum(model_step *step, float *x);
/* The same of args->x, and of two arrays of args->x2, with the norm of them. What was summed is lost. */
weft_status layers_sum_norm(model_step *step, const layers_norm_args *args, uint32_t n_arrays);

/* The scratch memory of a part: layers_plan fills part->plan, layers_place the pointers once scratch_base is there. */
weft_status layers_plan(const weft_model *model, model_part *part);
void layers_place(model_part *part);

#endif
