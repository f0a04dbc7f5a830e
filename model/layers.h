/* SPDX-License-Identifier: MIT */
/* Parts of a layer that architectures share. Each part reads and writes the buffers of the step.
 *
 * Law: a piece computes all rows of the step at once; what differs between rows is data. In a step of a model in
 * shards whose rows are shared out, what is neither of heads nor of experts is computed for the rows that the shard
 * owns (step->own_first, n_own), and pieces exchange rows where the next product needs all of them. Else a shard owns
 * all rows, and computes as one device does. */
#ifndef WEFT_MODEL_LAYERS_H
#define WEFT_MODEL_LAYERS_H

#include "model/model_internal.h"

/* y = x W^T for up to three weights over one input. The rows of x and y lie one behind another. */
weft_status layers_matmul(model_step *step, const float *x, uint32_t n_rows, uint32_t n_weights,
                          const weft_weight *const *weight, float *const *y);
/* The form in which all of the weights take n_rows rows without preparing them, or f32. A weight that is NULL takes any
 * form. */
weft_rows_form layers_form(const model_step *step, weft_rows_way way, uint32_t n_rows, uint32_t n_weights,
                           const weft_weight *const *weight);
/* step->x = the rows of the token embedding times the model's factor. */
weft_status layers_embed(model_step *step);
/* Shares the step's rows out anew, after their number has changed. */
void layers_own_rows(model_step *step);
/* The rows that the shard owns, of an array as wide as the residual stream. */
static inline float *layers_own(const model_step *step, float *x) {
  return x + (uint64_t)step->own_first * model_row_width(step->model);
}
/* x [step->n_rows, row width], of which each shard has the rows that it owns, becomes whole on every shard. */
weft_status layers_gather(model_step *step, float *x);
/* y = (add + norm(x + x2) * weight) * row_scale, for rows first_row .. of all arrays, rows one behind another; all but x
 * and y may be NULL. Where x_weight or x2_weight is given, x or x2 is normed by itself first; the norms of y in `then`
 * follow (op norm, kernels/ops.h). */
typedef struct layers_norm_args {
  float *x, *x2;
  const float *x_weight, *x2_weight, *weight, *add, *row_scale;
  float *y;
  uint32_t first_row, n_rows, n_then;
  bool plain, add_is_row; /* plain: x + x2 is not normed; add_is_row: add is one row for all rows */
  const float *then_weight[WEFT_NORM_THEN_MAX];
  float *then[WEFT_NORM_THEN_MAX];
  weft_rows_form then_form[WEFT_NORM_THEN_MAX];
} layers_norm_args;
weft_status layers_norm(model_step *step, const layers_norm_args *args);
/* Adds to `norm` the norm of y that follows a layer: the input of the next layer, in step->h, or after the last layer
 * the hidden rows that the step gives out. Nothing before a cut, where only the residual stream goes on. */
void layers_then_next(model_step *step, uint32_t layer, layers_norm_args *norm);
/* Computes keys, values and attention from step->h: keys and values go to the pages, the result to step->a. In the last
 * layer the step then goes on with the output rows only. A step without output rows ends with the last layer that
 * stores keys, and step->n_rows is 0 from there on. */
weft_status layers_attention(model_step *step, uint32_t layer);
/* Of that the keys and values alone, which are stored. */
weft_status layers_keys(model_step *step, uint32_t layer);
/* The same for a layer with the delta rule: what later rows need goes to the pages, the result to step->a. */
weft_status layers_delta(model_step *step, uint32_t layer);
/* The same for a layer with one vector for keys and values (model/mla.h); layers_output then gives its product. */
weft_status layers_mla(model_step *step, uint32_t layer);
/* The same for a layer with latent rows, up to what attention gives a row, in y [n_rows, n_hidden]. All rows go on. */
weft_status layers_latent(model_step *step, uint32_t layer, float *y);
/* One part is made of those of the stream, by mixes, and normed: into step->h, with shares for layers_spread; or, where
 * shares is NULL, into the hidden rows that the step gives out. In a model that carries, by what the sublayer before
 * made; then mixes is NULL where nothing follows. */
typedef struct layers_mix_args {
  const weft_weight *mixes;
  const float *base, *scale, *norm;
  float *shares, *out;
  bool first; /* sublayer of a model that carries */
} layers_mix_args;
weft_status layers_mix(model_step *step, const layers_mix_args *args);
/* The stream takes what a layer reads of the memory, in its table, by the last tokens (kernels/engram.h). */
weft_status layers_engram(model_step *step, uint32_t layer);
/* step->x takes what a sublayer made. */
weft_status layers_spread(model_step *step, const float *y);
/* From here on only the output rows are computed, in their order; step->a has rows of `cols`. */
weft_status layers_keep_output_rows(model_step *step, uint64_t cols);
/* y = the product of the attention's result, of the heads of all shards, with the layer's `o`; of the rows that the
 * shard owns. */
weft_status layers_output(model_step *step, const model_layer *layer, float *y);
/* out = down(act(gate x) * (up x)), of n_rows rows, with whole matrices. */
typedef struct layers_mlp_args {
  const float *x;
  weft_rows_form x_form;
  const weft_weight *gate, *up, *down;
  float *out;
  uint32_t n_rows;
} layers_mlp_args;
weft_status layers_mlp(model_step *step, const layers_mlp_args *args);
/* That of a layer. layers_mlp_form: the form in which the layer's gate and up read step->h. */
layers_mlp_args layers_mlp_of(const model_layer *layer, const float *x, weft_rows_form form, float *out,
                              uint32_t n_rows);
weft_rows_form layers_mlp_form(const model_step *step, uint32_t layer);
/* The feed-forward part of a layer without experts: out = down(act(gate h) * (up h)) of the rows that the shard owns,
 * from step->h in `form`. */
weft_status layers_dense(model_step *step, const model_layer *layer, weft_rows_form form, float *out);
/* The feed-forward part of a layer with experts. They are chosen by the router's product with `routed`, of rows that the
 * shard owns; out = what they make of x, in x_form (layers_experts_form), of rows that the shard owns; out may be
 * `routed`. shared, or NULL: an MLP of all rows beside them, whose x and out are of rows that the shard owns.
 * with_router, or NULL: a weight whose product with `routed` is made together with the router's, into with_router_out;
 * only where layers_joins_router says so. */
typedef struct layers_experts_args {
  const float *routed;
  float *x, *out;
  weft_rows_form x_form;
  const layers_mlp_args *shared;
  const weft_weight *with_router;
  float *with_router_out;
} layers_experts_args;
/* Whether a weight, which may be missing, can be multiplied with the layer's router in one product. */
bool layers_joins_router(const weft_model *model, const model_layer *layer, const weft_weight *weight);
weft_rows_form layers_experts_form(const model_step *step, const model_layer *layer);
weft_status layers_experts(model_step *step, const model_layer *layer, const layers_experts_args *args);

/* Numbers that a shard gives to an exchange, at most. */
uint64_t layers_exchange_floats(const weft_model *model);
/* The scratch memory of a part: layers_plan fills part->plan, layers_place the pointers once scratch_base is there. */
weft_status layers_plan(const weft_model *model, model_part *part);
void layers_place(model_part *part);

#endif
