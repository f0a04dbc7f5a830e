/* SPDX-License-Identifier: MIT */
/* Gemma 4, text path: sliding and global layers with their own head sizes, values that are the raw
 * keys where a layer has no value matrix, a dense MLP with routed experts beside it, one scalar per
 * layer. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "model/hyper.h"
#include "model/layers.h"
#include "model/models.h"
#include "model/rope.h"
#include "model/tensor_rows.h"

enum { PER_LAYER_MAX = 1 << 14 };

/* ---- keys ---- */

/* The two head sizes: of layers without and with a window. */
static weft_status read_head_dim(const model_keys *keys, bool windowed, uint32_t *out) {
  static const char *const names[3][2] = {
      {".attention.key_length", ".attention.key_length_swa"},
      {".attention.value_length", ".attention.value_length_swa"},
      {".rope.dimension_count", ".rope.dimension_count_swa"},
  };
  weft_status status = model_keys_u32(keys, names[0][windowed], 8, HYPER_HEAD_DIM_MAX, out);
  for (uint32_t i = 1; status == WEFT_OK && i < 3; i++) status = hyper_check_same(keys, names[i][windowed], *out);
  return status == WEFT_OK ? hyper_check_head_dim(keys, names[0][windowed], *out) : status;
}

static weft_status read_heads(const model_keys *keys, model_hyper *hyper) {
  uint32_t head_dim[2] = {0, 0};
  weft_status status = hyper_read_heads(keys, hyper, false);
  for (uint32_t l = 0; status == WEFT_OK && l < hyper->n_layers; l++) {
    bool windowed = hyper->window[l] > 0;
    if (head_dim[windowed] == 0) status = read_head_dim(keys, windowed, &head_dim[windowed]);
    hyper->head_dim[l] = head_dim[windowed];
  }
  return status;
}

/* The last layers read the keys of the last layer of their kind before them. */
static weft_status read_shared_keys(const model_keys *keys, model_hyper *hyper) {
  static const char *const name = ".attention.shared_kv_layers";
  uint32_t n;
  weft_status status = model_keys_u32_or(keys, name, 0, hyper->n_layers - 1, 0, &n);
  uint32_t first = hyper->n_layers - n;
  for (uint32_t l = first; status == WEFT_OK && l < hyper->n_layers; l++) {
    uint32_t from = first;
    while (from > 0 && hyper->window[from - 1] != hyper->window[l]) from--;
    hyper->keys_of[l] = from;
    if (from > 0 && hyper->n_kv_heads[from - 1] == hyper->n_kv_heads[l]) continue;
    status = weft_fail(keys->error, WEFT_E_FORMAT,
                       "%s: key '%s%s' is %" PRIu32 ": layer %" PRIu32 " shares keys, but no layer before %" PRIu32
                       " has such keys",
                       weft_gguf_path(keys->gguf), keys->arch, name, n, l, first);
  }
  return status;
}

/* All but whose keys a layer reads. */
static weft_status read_layers(const weft_gguf *gguf, model_hyper *hyper, weft_error *error) {
  model_keys keys = {gguf, hyper->arch, error};
  weft_status status = hyper_read_sizes(&keys, hyper);
  if (status == WEFT_OK) {
    status = model_keys_u32_or(&keys, ".embedding_length_per_layer_input", 0, PER_LAYER_MAX, 0, &hyper->n_per_layer);
  }
  if (status == WEFT_OK) status = hyper_read_windows(&keys, hyper, 0);
  if (status == WEFT_OK) status = read_heads(&keys, hyper);
  if (status == WEFT_OK) status = hyper_read_ff(&keys, hyper);
  if (status == WEFT_OK) status = hyper_read_experts(&keys, hyper, 0);
  if (status == WEFT_OK) status = model_keys_f32_or(&keys, ".final_logit_softcapping", 0, 1e6, 0, &hyper->cap);
  if (status == WEFT_OK) status = model_keys_f32(&keys, ".rope.freq_base", 1, 1e12, &hyper->rope_base);
  if (status == WEFT_OK) {
    status = model_keys_f32_or(&keys, ".rope.freq_base_swa", 1, 1e12, 10000.0f, &hyper->rope_base_window);
  }
  hyper->embed_scale = sqrtf((float)hyper->n_hidden);
  hyper->attention_scale = 1.0f;
  hyper->activation = WEFT_GELU_TANH;
  hyper->v_norm = true;
  return status;
}

weft_status gemma4_read(const weft_gguf *gguf, model_hyper *hyper, weft_error *error) {
  model_keys keys = {gguf, hyper->arch, error};
  weft_status status = read_layers(gguf, hyper, error);
  return status == WEFT_OK ? read_shared_keys(&keys, hyper) : status;
}

weft_status gemma4_read_assistant(const weft_gguf *gguf, model_hyper *hyper, weft_error *error) {
  model_keys keys = {gguf, hyper->arch, error};
  weft_status status = read_layers(gguf, hyper, error);
  if (status == WEFT_OK)
    status = hyper_refuse_if_set(&keys, ".embedding_length_per_layer_input", "per layer embeddings");
  for (uint32_t l = 0; status == WEFT_OK && l < hyper->n_layers; l++) {
    hyper->keys_of[l] = 1; /* of a layer of another model (assistant.c) */
    if (hyper->moe[l])
      status =
          weft_fail(error, WEFT_E_UNSUPPORTED, "%s: a drafter with experts is not supported", weft_gguf_path(gguf));
  }
  hyper->cap = 0.0f; /* its drafts are drawn from plain logits */
  return status;
}

/* ---- tensors ---- */

static const tensor_row layer_rows[] = {
    ROW("attn_norm.weight", VECTOR, ALWAYS, attn_norm, 0, HIDDEN),
    ROW("attn_q.weight", MATRIX, ALWAYS, q, MATMUL, HIDDEN, DIM_Q),
    ROW("attn_k.weight", MATRIX, KEYS, k, MATMUL, HIDDEN, DIM_KV),
    ROW("attn_v.weight", MATRIX, VALUES, v, MATMUL, HIDDEN, DIM_KV),
    ROW("attn_output.weight", MATRIX, ALWAYS, o, MATMUL, DIM_Q, HIDDEN),
    ROW("attn_q_norm.weight", VECTOR, ALWAYS, q_norm, 0, DIM_HEAD),
    ROW("attn_k_norm.weight", VECTOR, KEYS, k_norm, 0, DIM_HEAD),
    ROW("post_attention_norm.weight", VECTOR, ALWAYS, post_attn_norm, 0, HIDDEN),
    ROW("ffn_norm.weight", VECTOR, ALWAYS, ffn_norm, 0, HIDDEN),
    ROW("ffn_gate.weight", MATRIX, ALWAYS, gate, MATMUL, HIDDEN, DIM_FF),
    ROW("ffn_up.weight", MATRIX, ALWAYS, up, MATMUL, HIDDEN, DIM_FF),
    ROW("ffn_down.weight", MATRIX, ALWAYS, down, MATMUL, DIM_FF, DIM_DOWN),
    ROW("post_ffw_norm.weight", VECTOR, ALWAYS, post_ffw_norm, 0, HIDDEN),
    ROW("post_ffw_norm_1.weight", VECTOR, MOE, post_ffw_norm_1, 0, HIDDEN),
    ROW("pre_ffw_norm_2.weight", VECTOR, MOE, pre_ffw_norm_2, 0, HIDDEN),
    ROW("post_ffw_norm_2.weight", VECTOR, MOE, post_ffw_norm_2, 0, HIDDEN),
    ROW("ffn_gate_inp.weight", MATRIX, MOE, router, MATMUL, HIDDEN, DIM_EXPERTS),
    ROW("ffn_down_exps.scale", VECTOR, MOE_NEVER, expert_scale, 0, DIM_EXPERTS),
    ROW("layer_output_scale.weight", SCALAR, NEVER, scale, 0, DIM_ONE),
};

static const tensor_row per_layer_rows[] = {
    ROW("inp_gate.weight", MATRIX, ALWAYS, inp_gate, MATMUL, HIDDEN, DIM_PER_LAYER),
    ROW("proj.weight", MATRIX, ALWAYS, proj, MATMUL, DIM_PER_LAYER, HIDDEN),
    ROW("post_norm.weight", VECTOR, ALWAYS, post_norm, 0, HIDDEN),
    SCALES("inp_gate", inp_gate, DIM_ONE),
    SCALES("proj", proj, DIM_ONE),
};

static const tensor_row per_layer_global_rows[] = {
    GLOBAL("per_layer_token_embd.weight", MATRIX, ALWAYS, per_layer_token_embd, EMBED, DIM_PER_LAYER_ALL, DIM_VOCAB),
    GLOBAL("per_layer_model_proj.weight", MATRIX, ALWAYS, per_layer_model_proj, MATMUL, HIDDEN, DIM_PER_LAYER_ALL),
};

/* The router's scale is folded with its factor n_hidden^-1/2. */
static weft_status load_router_scale(weights_loader *loader, uint32_t l) {
  weft_model *model = loader->model;
  uint32_t n = model->hyper.n_hidden;
  char name[96];
  if (!model->hyper.moe[l]) return WEFT_OK;
  (void)snprintf(name, sizeof name, "blk.%" PRIu32 ".ffn_gate_inp.scale", l);
  return weights_folded(loader, name, n, 1.0f / sqrtf((float)n), &model->layers[l].router_scale);
}

/* The mean of two summands is made by factors of both: here of the norm of the projection. */
static weft_status load_per_layer(weights_loader *loader) {
  weft_model *model = loader->model;
  if (model->hyper.n_per_layer == 0) return WEFT_OK;
  weft_status status = WEIGHTS_LOAD(loader, per_layer_global_rows, UINT32_MAX, &model->globals);
  if (status == WEFT_OK) {
    status = weights_folded(loader, "per_layer_proj_norm.weight", model->hyper.n_per_layer, sqrtf(0.5f),
                            &model->globals.per_layer_proj_norm);
  }
  for (uint32_t l = 0; status == WEFT_OK && l < model->hyper.n_layers; l++) {
    status = WEIGHTS_LOAD(loader, per_layer_rows, l, &model->layers[l]);
  }
  return status;
}

/* One factor per row: rows of the encoder pass come first in a step, those of the decoder pass after them, so that the
 * factors of a step with n_encoder rows of the former start at row rows_max - n_encoder. */
weft_status gemma4_load_row_scales(weights_loader *loader) {
  weft_model *model = loader->model;
  uint64_t n_encoder = model->limits.rows_max, n = n_encoder + model->limits.canvas_rows_max;
  float *values = weft_alloc((size_t)n, sizeof *values);
  if (values == NULL)
    return weft_fail(loader->error, WEFT_E_NO_MEMORY, "%s: out of memory", weft_gguf_path(loader->gguf));
  weft_status status = WEFT_OK;
  for (uint32_t l = 0; status == WEFT_OK && l < model->hyper.n_layers; l++) {
    model_layer *layer = &model->layers[l];
    if (!model->hyper.diffusion) layer->encoder_scale = layer->scale;
    weights_at_layer(loader, l);
    for (uint64_t i = 0; i < n; i++) values[i] = i < n_encoder ? layer->encoder_scale : layer->scale;
    status = weights_vector(loader, values, n, &layer->row_scale);
  }
  weft_free(values);
  return status;
}

static weft_status load_rope(weights_loader *loader) {
  weft_model *model = loader->model;
  const model_hyper *hyper = &model->hyper;
  float divisor[HYPER_HEAD_DIM_MAX / 2];
  for (uint32_t l = 0; l < hyper->n_layers; l++) {
    bool windowed = hyper->window[l] > 0;
    weights_at_layer(loader, l);
    const float **out = windowed ? &loader->part->inv_freq_window : &loader->part->inv_freq;
    if (*out != NULL) continue;
    weft_status status = WEFT_OK;
    if (!windowed) status = weights_read(loader, "rope_freqs.weight", hyper->head_dim[l] / 2, divisor);
    if (status == WEFT_E_NOT_FOUND) {
      status =
          weft_fail(loader->error, WEFT_E_FORMAT, "%s: tensor 'rope_freqs.weight' is missing; global layers need it",
                    weft_gguf_path(loader->gguf));
    }
    if (status == WEFT_OK) {
      status = rope_frequencies(loader, hyper->head_dim[l], windowed ? hyper->rope_base_window : hyper->rope_base,
                                windowed ? NULL : divisor, out);
    }
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}

weft_status gemma4_load(weft_model *model, weights_loader *loader) {
  weft_status status = WEIGHTS_LOAD(loader, global_rows, UINT32_MAX, &model->globals);
  if (status == WEFT_OK) status = weights_output_norm(loader);
  if (status == WEFT_OK) status = load_rope(loader);
  for (uint32_t l = 0; status == WEFT_OK && l < model->hyper.n_layers; l++) {
    model->layers[l].scale = 1.0f;
    status = WEIGHTS_LOAD(loader, layer_rows, l, &model->layers[l]);
    if (status == WEFT_OK) status = WEIGHTS_LOAD(loader, scale_rows, l, &model->layers[l]);
    if (status == WEFT_OK) status = load_router_scale(loader, l);
  }
  if (status == WEFT_OK) status = load_per_layer(loader);
  if (status == WEFT_OK) status = gemma4_load_row_scales(loader);
  if (status != WEFT_OK) return status;
  return weights_load_experts(loader, expert_rows, sizeof expert_rows / sizeof *expert_rows, expert_scale_rows,
                              sizeof expert_scale_rows / sizeof *expert_scale_rows);
}

/* ---- forward ---- */

/* Every layer's own embedding of a row: the mean of what the token's second embedding says and what the first one
 * projects to, over the square root of two. The projection's factor n_hidden^-1/2 is cancelled by the norm after it but
 * for eps. */
static weft_status embed_per_layer(model_step *step) {
  weft_model *model = step->model;
  model_scratch *s = &step->part->scratch;
  uint32_t n = model->hyper.n_per_layer, n_layers = model->hyper.n_layers;
  weft_embed_args embed = {
      .weight = &model->globals.per_layer_token_embd,
      .tokens = step->part->arrays.token,
      .y = s->per_layer,
      .n_rows = step->n_rows,
      .scale = sqrtf((float)n * 0.5f),
      .y_stride = (uint64_t)n * n_layers,
  };
  const weft_weight *projection = &model->globals.per_layer_model_proj;
  weft_status status = weft_embed(step->part->device, &embed);
  if (status == WEFT_OK) status = layers_matmul(step, step->x, step->n_rows, 1, &projection, &s->per_layer_projected);
  if (status != WEFT_OK) return status;
  weft_norm_args norm = {
      .x = s->per_layer_projected,
      .weight = model->globals.per_layer_proj_norm,
      .add = s->per_layer,
      .y = s->per_layer,
      .n_rows = step->n_rows * n_layers,
      .n_cols = n,
      .x_stride = n,
      .add_stride = n,
      .y_stride = n,
      .eps = model->hyper.eps * (float)model->hyper.n_hidden,
  };
  return weft_norm(step->part->device, &norm);
}

weft_status gemma4_embed(model_step *step) {
  weft_status status = layers_embed(step);
  return status == WEFT_OK && step->model->hyper.n_per_layer > 0 ? embed_per_layer(step) : status;
}

/* The layer's embeddings of the step's rows. In the last layer, which goes on with some rows only, they are moved
 * together first. */
static weft_status find_per_layer(model_step *step, uint32_t l, const float **rows, uint64_t *stride) {
  weft_model *model = step->model;
  uint32_t n = model->hyper.n_per_layer;
  *stride = (uint64_t)n * model->hyper.n_layers;
  *rows = step->part->scratch.per_layer + (uint64_t)l * n;
  if (step->kept == NULL) return WEFT_OK;
  weft_status status = WEFT_OK;
  float *to = step->part->scratch.per_layer_last;
  for (uint64_t i = 0; status == WEFT_OK && i < step->n_rows; i++) {
    status = weft_device_copy(step->part->device, to + i * n, *rows + step->kept[i] * *stride, n * sizeof *to);
  }
  *stride = n;
  *rows = to;
  return status;
}

/* x = (x + norm(projection of (gate of x) * embedding)) * row_scale, after the feed-forward part. */
static weft_status add_per_layer(model_step *step, const model_layer *layer, uint32_t l) {
  weft_model *model = step->model;
  model_scratch *s = &step->part->scratch;
  const weft_weight *inp_gate = &layer->inp_gate, *proj = &layer->proj;
  weft_gate_args gate = {.g = s->gated,
                         .y = s->gated,
                         .n_rows = step->n_rows,
                         .n_cols = model->hyper.n_per_layer,
                         .g_stride = model->hyper.n_per_layer,
                         .y_stride = model->hyper.n_per_layer,
                         .activation = WEFT_GELU_TANH};
  weft_status status = layers_matmul(step, step->x, step->n_rows, 1, &inp_gate, &s->gated);
  if (status == WEFT_OK) status = find_per_layer(step, l, &gate.u, &gate.u_stride);
  if (status == WEFT_OK) status = weft_gate(step->part->device, &gate);
  if (status == WEFT_OK) status = layers_matmul(step, s->gated, step->n_rows, 1, &proj, &s->t);
  if (status != WEFT_OK) return status;
  layers_norm_args sum = {.x = s->t,
                          .weight = layer->post_norm,
                          .add = step->x,
                          .row_scale = layer->row_scale + (model->limits.rows_max - step->n_encoder),
                          .y = step->x,
                          .n_rows = step->n_rows};
  layers_then_next(step, l, &sum);
  return layers_norm(step, &sum);
}

/* Router and experts read the residual stream through norms of their own: s->y and s->r. norm made them. */
static weft_status feed_forward(model_step *step, const model_layer *layer, uint32_t l, const layers_norm_args *norm) {
  model_scratch *s = &step->part->scratch;
  bool moe = step->model->hyper.moe[l], is_end = step->model->hyper.n_per_layer == 0;
  layers_mlp_args mlp =
      layers_mlp_of(layer, layers_own(step, step->h), norm->then_form[0], layers_own(step, s->t), step->n_own);
  layers_experts_args experts = {.routed = s->y, .x = s->r, .out = s->y, .x_form = norm->then_form[2], .shared = &mlp};
  weft_status status =
      moe ? layers_experts(step, layer, &experts) : layers_dense(step, layer, norm->then_form[0], s->t);
  if (status != WEFT_OK) return status;
  layers_norm_args sum = {.x = s->t,
                          .x2 = moe ? s->y : NULL,
                          .x_weight = moe ? layer->post_ffw_norm_1 : NULL,
                          .x2_weight = moe ? layer->post_ffw_norm_2 : NULL,
                          .weight = layer->post_ffw_norm,
                          .add = step->x,
                          .y = step->x,
                          .first_row = step->own_first,
                          .n_rows = step->n_own};
  if (is_end) {
    sum.row_scale = layer->row_scale + (step->model->limits.rows_max - step->n_encoder);
    layers_then_next(step, l, &sum);
  }
  status = layers_norm(step, &sum);
  return status == WEFT_OK && !is_end ? add_per_layer(step, layer, l) : status;
}

weft_status gemma4_layer(model_step *step, uint32_t l) {
  weft_model *model = step->model;
  model_scratch *s = &step->part->scratch;
  const model_layer *layer = &model->layers[l];
  bool moe = model->hyper.moe[l];
  weft_status status = layers_attention(step, l);
  if (status != WEFT_OK || step->n_rows == 0) return status;
  status = layers_output(step, layer, s->t);
  if (status != WEFT_OK) return status;
  layers_norm_args sum = {.x = s->t,
                          .weight = layer->post_attn_norm,
                          .add = step->x,
                          .y = step->x,
                          .first_row = step->own_first,
                          .n_rows = step->n_own,
                          .n_then = moe ? 3 : 1,
                          .then_weight = {layer->ffn_norm, layer->router_scale, layer->pre_ffw_norm_2},
                          .then = {step->h, s->y, s->r}};
  sum.then_form[0] = layers_mlp_form(step, l);
  if (moe) sum.then_form[2] = layers_experts_form(step, layer);
  status = layers_norm(step, &sum);
  return status == WEFT_OK ? feed_forward(step, layer, l, &sum) : status;
}
