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
#include "model/keys.h"
#include "model/layers.h"
#include "model/models.h"

enum { HIDDEN_MAX = 1 << 17, FF_MAX = 1 << 20, HEADS_MAX = 4096, HEAD_DIM_MAX = 1024, EXPERTS_MAX = 4096 };

/* ---- keys ---- */

static weft_status refuse_if_set(const model_keys *keys, const char *name, const char *what) {
  uint32_t value;
  weft_status status = model_keys_u32_or(keys, name, 0, UINT32_MAX, 0, &value);
  if (status != WEFT_OK || value == 0) return status;
  return weft_fail(keys->error, WEFT_E_UNSUPPORTED, "%s: key '%s%s' is %" PRIu32 ": %s are not supported",
                   weft_gguf_path(keys->gguf), keys->arch, name, value, what);
}

/* A key that may be one number or one per layer. */
static weft_status check_per_layer(const model_keys *keys, const model_hyper *hyper, const char *name) {
  uint64_t n = model_keys_count(keys, name);
  if (n <= 1 || n == hyper->n_layers) return WEFT_OK;
  return weft_fail(keys->error, WEFT_E_FORMAT, "%s: key '%s%s' has %" PRIu64 " elements for %" PRIu32 " layers",
                   weft_gguf_path(keys->gguf), keys->arch, name, n, hyper->n_layers);
}

static weft_status read_window(const model_keys *keys, model_hyper *hyper) {
  static const char *const name = ".attention.sliding_window_pattern";
  uint32_t window, period = 0;
  weft_status status = model_keys_u32(keys, ".attention.sliding_window", 1, 1 << 30, &window);
  if (status == WEFT_OK) status = check_per_layer(keys, hyper, name);
  if (status != WEFT_OK) return status;
  bool is_scalar = model_keys_count(keys, name) <= 1;
  if (is_scalar) status = model_keys_u32(keys, name, 1, WEFT_LAYERS_MAX, &period);
  for (uint32_t l = 0; status == WEFT_OK && l < hyper->n_layers; l++) {
    uint32_t sliding = is_scalar ? (l + 1) % period != 0 : 0;
    if (!is_scalar) status = model_keys_u32_at(keys, name, l, 0, 1, &sliding);
    hyper->window[l] = sliding ? window : 0;
  }
  return status;
}

/* The two head sizes: of layers without and with a window. */
static weft_status read_head_dim(const model_keys *keys, bool windowed, uint32_t *out) {
  static const char *const names[3][2] = {
      {".attention.key_length", ".attention.key_length_swa"},
      {".attention.value_length", ".attention.value_length_swa"},
      {".rope.dimension_count", ".rope.dimension_count_swa"},
  };
  weft_status status = model_keys_u32(keys, names[0][windowed], 8, HEAD_DIM_MAX, out);
  for (uint32_t i = 1; status == WEFT_OK && i < 3; i++) {
    uint32_t same;
    status = model_keys_u32_or(keys, names[i][windowed], 0, UINT32_MAX, *out, &same);
    if (status != WEFT_OK || same == *out) continue;
    status = weft_fail(keys->error, WEFT_E_UNSUPPORTED,
                       "%s: key '%s%s' is %" PRIu32 ", which differs from key_length %" PRIu32,
                       weft_gguf_path(keys->gguf), keys->arch, names[i][windowed], same, *out);
  }
  if (status == WEFT_OK && *out % 8 != 0) {
    status = weft_fail(keys->error, WEFT_E_UNSUPPORTED, "%s: key '%s%s' is %" PRIu32 "; a multiple of 8 is needed",
                       weft_gguf_path(keys->gguf), keys->arch, names[0][windowed], *out);
  }
  return status;
}

static weft_status read_heads(const model_keys *keys, model_hyper *hyper) {
  static const char *const kv_name = ".attention.head_count_kv";
  uint32_t head_dim[2] = {0, 0};
  weft_status status = model_keys_u32(keys, ".attention.head_count", 1, HEADS_MAX, &hyper->n_heads);
  if (status == WEFT_OK) status = check_per_layer(keys, hyper, kv_name);
  for (uint32_t l = 0; status == WEFT_OK && l < hyper->n_layers; l++) {
    bool windowed = hyper->window[l] > 0;
    if (head_dim[windowed] == 0) status = read_head_dim(keys, windowed, &head_dim[windowed]);
    hyper->head_dim[l] = head_dim[windowed];
    if (status == WEFT_OK) status = model_keys_u32_at(keys, kv_name, l, 1, HEADS_MAX, &hyper->n_kv_heads[l]);
    if (status == WEFT_OK && hyper->n_heads % hyper->n_kv_heads[l] != 0) {
      return weft_fail(keys->error, WEFT_E_FORMAT,
                       "%s: layer %" PRIu32 ": %" PRIu32 " heads do not share %" PRIu32 " key heads evenly",
                       weft_gguf_path(keys->gguf), l, hyper->n_heads, hyper->n_kv_heads[l]);
    }
  }
  return status;
}

static bool layer_has(const weft_gguf *gguf, uint32_t layer, const char *rest) {
  char name[96];
  (void)snprintf(name, sizeof name, "blk.%" PRIu32 ".%s.weight", layer, rest);
  return weft_gguf_tensor_find(gguf, name) != NULL;
}

/* A layer without a router is dense; a layer with experts and no router is a broken file. */
static weft_status find_moe_layers(const model_keys *keys, model_hyper *hyper) {
  static const char *const experts[] = {"ffn_gate_up_exps", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"};
  for (uint32_t l = 0; l < hyper->n_layers; l++) {
    hyper->moe[l] = layer_has(keys->gguf, l, "ffn_gate_inp");
    if (hyper->moe[l] && hyper->n_experts == 0) {
      return weft_fail(keys->error, WEFT_E_FORMAT,
                       "%s: blk.%" PRIu32 " has a router, but key '%s.expert_count' is missing or 0",
                       weft_gguf_path(keys->gguf), l, keys->arch);
    }
    for (uint32_t i = 0; !hyper->moe[l] && i < sizeof experts / sizeof *experts; i++) {
      if (!layer_has(keys->gguf, l, experts[i])) continue;
      return weft_fail(keys->error, WEFT_E_FORMAT,
                       "%s: tensor 'blk.%" PRIu32 ".ffn_gate_inp.weight' is missing; the layer's experts need it",
                       weft_gguf_path(keys->gguf), l);
    }
  }
  return WEFT_OK;
}

static weft_status read_ffn(const model_keys *keys, model_hyper *hyper) {
  static const char *const name = ".feed_forward_length";
  weft_status status = check_per_layer(keys, hyper, name);
  for (uint32_t l = 0; status == WEFT_OK && l < hyper->n_layers; l++) {
    status = model_keys_u32_at(keys, name, l, 1, FF_MAX, &hyper->n_ff[l]);
  }
  if (status == WEFT_OK) status = model_keys_u32_or(keys, ".expert_count", 0, EXPERTS_MAX, 0, &hyper->n_experts);
  if (status == WEFT_OK) status = find_moe_layers(keys, hyper);
  if (status != WEFT_OK || hyper->n_experts == 0) return status;
  status = model_keys_u32(keys, ".expert_used_count", 1, hyper->n_experts, &hyper->n_experts_used);
  if (status != WEFT_OK) return status;
  return model_keys_u32(keys, ".expert_feed_forward_length", 1, FF_MAX, &hyper->n_expert_ff);
}

weft_status gemma4_read(const weft_gguf *gguf, model_hyper *hyper, weft_error *error) {
  model_keys keys = {gguf, hyper->arch, error};
  weft_status status = model_keys_u32(&keys, ".block_count", 1, WEFT_LAYERS_MAX, &hyper->n_layers);
  if (status == WEFT_OK) status = refuse_if_set(&keys, ".embedding_length_per_layer_input", "per-layer embeddings");
  if (status == WEFT_OK) status = refuse_if_set(&keys, ".attention.shared_kv_layers", "layers that share keys");
  if (status == WEFT_OK) status = model_keys_u32(&keys, ".context_length", 1, 1 << 30, &hyper->context_length);
  if (status == WEFT_OK) status = model_keys_u32(&keys, ".embedding_length", 1, HIDDEN_MAX, &hyper->n_hidden);
  if (status == WEFT_OK) status = read_window(&keys, hyper);
  if (status == WEFT_OK) status = read_heads(&keys, hyper);
  if (status == WEFT_OK) status = read_ffn(&keys, hyper);
  if (status == WEFT_OK) status = model_keys_f32(&keys, ".attention.layer_norm_rms_epsilon", 0, 1, &hyper->eps);
  if (status == WEFT_OK) status = model_keys_f32(&keys, ".final_logit_softcapping", 0, 1e6, &hyper->cap);
  if (status == WEFT_OK) status = model_keys_f32(&keys, ".rope.freq_base", 1, 1e12, &hyper->rope_base);
  if (status == WEFT_OK) status = model_keys_f32(&keys, ".rope.freq_base_swa", 1, 1e12, &hyper->rope_base_window);
  hyper->embed_scale = sqrtf((float)hyper->n_hidden);
  hyper->attention_scale = 1.0f;
  return status;
}

/* ---- tensors ---- */

#define ROW(name, kind, need, field, uses, ...) \
  TENSOR_ROW(model_layer, "blk.%u." name, NULL, kind, need, field, uses, __VA_ARGS__)
#define GLOBAL(name, kind, need, field, uses, ...) \
  TENSOR_ROW(model_globals, name, NULL, kind, need, field, uses, __VA_ARGS__)
#define HIDDEN  DIM_HIDDEN
#define MATMUL  WEFT_USE_MATMUL
#define EXPERTS WEFT_USE_EXPERTS
#define EMBED   WEFT_USE_EMBED

static const tensor_row layer_rows[] = {
    ROW("attn_norm.weight", VECTOR, ALWAYS, attn_norm, 0, HIDDEN),
    ROW("attn_q.weight", MATRIX, ALWAYS, q, MATMUL, HIDDEN, DIM_Q),
    ROW("attn_k.weight", MATRIX, ALWAYS, k, MATMUL, HIDDEN, DIM_KV),
    ROW("attn_v.weight", MATRIX, WINDOW, v, MATMUL, HIDDEN, DIM_KV),
    ROW("attn_output.weight", MATRIX, ALWAYS, o, MATMUL, DIM_Q, HIDDEN),
    ROW("attn_q_norm.weight", VECTOR, ALWAYS, q_norm, 0, DIM_HEAD),
    ROW("attn_k_norm.weight", VECTOR, ALWAYS, k_norm, 0, DIM_HEAD),
    ROW("post_attention_norm.weight", VECTOR, ALWAYS, post_attn_norm, 0, HIDDEN),
    ROW("ffn_norm.weight", VECTOR, ALWAYS, ffn_norm, 0, HIDDEN),
    ROW("ffn_gate.weight", MATRIX, ALWAYS, gate, MATMUL, HIDDEN, DIM_FF),
    ROW("ffn_up.weight", MATRIX, ALWAYS, up, MATMUL, HIDDEN, DIM_FF),
    ROW("ffn_down.weight", MATRIX, ALWAYS, down, MATMUL, DIM_FF, HIDDEN),
    ROW("post_ffw_norm.weight", VECTOR, ALWAYS, post_ffw_norm, 0, HIDDEN),
    ROW("post_ffw_norm_1.weight", VECTOR, MOE, post_ffw_norm_1, 0, HIDDEN),
    ROW("pre_ffw_norm_2.weight", VECTOR, MOE, pre_ffw_norm_2, 0, HIDDEN),
    ROW("post_ffw_norm_2.weight", VECTOR, MOE, post_ffw_norm_2, 0, HIDDEN),
    ROW("ffn_gate_inp.weight", MATRIX, MOE, router, MATMUL, HIDDEN, DIM_EXPERTS),
    ROW("ffn_down_exps.scale", VECTOR, MOE_NEVER, expert_scale, 0, DIM_EXPERTS),
    ROW("layer_output_scale.weight", SCALAR, ALWAYS, scale, 0, DIM_ONE),
};

/* After everything else: where memory ends, it ends here. */
static const tensor_row expert_rows[] = {
    ROW("ffn_gate_up_exps.weight", MATRIX, MOE_NEVER, gate_up_exps, EXPERTS, HIDDEN, DIM_EXPERT_FF_TWICE, DIM_EXPERTS),
    ROW("ffn_gate_exps.weight", MATRIX, MOE_NEVER, gate_exps, EXPERTS, HIDDEN, DIM_EXPERT_FF, DIM_EXPERTS),
    ROW("ffn_up_exps.weight", MATRIX, MOE_NEVER, up_exps, EXPERTS, HIDDEN, DIM_EXPERT_FF, DIM_EXPERTS),
    ROW("ffn_down_exps.weight", MATRIX, MOE, down_exps, EXPERTS, DIM_EXPERT_FF, HIDDEN, DIM_EXPERTS),
};

static const tensor_row global_rows[] = {
    GLOBAL("token_embd.weight", MATRIX, ALWAYS, token_embd, EMBED, HIDDEN, DIM_VOCAB),
    GLOBAL("output.weight", MATRIX, NEVER, output, EMBED, HIDDEN, DIM_VOCAB),
    GLOBAL("output_norm.weight", VECTOR, ALWAYS, output_norm, 0, HIDDEN),
};

/* Exactly one of the two forms of the experts' input side. */
static weft_status check_expert_forms(weights_loader *loader, uint32_t l) {
  const model_layer *layer = &loader->model->layers[l];
  bool fused = layer->gate_up_exps.data != NULL;
  bool gate = layer->gate_exps.data != NULL, up = layer->up_exps.data != NULL;
  if (!loader->model->hyper.moe[l] || (fused && !gate && !up) || (!fused && gate && up)) return WEFT_OK;
  return weft_fail(loader->error, WEFT_E_FORMAT,
                   "%s: blk.%" PRIu32 " needs either ffn_gate_up_exps or both of ffn_gate_exps and ffn_up_exps",
                   weft_gguf_path(loader->gguf), l);
}

/* The router's scale is folded with its factor n_hidden^-1/2. */
static weft_status load_router_scale(weights_loader *loader, uint32_t l) {
  weft_model *model = loader->model;
  uint32_t n = model->hyper.n_hidden;
  char name[96];
  if (!model->hyper.moe[l]) return WEFT_OK;
  (void)snprintf(name, sizeof name, "blk.%" PRIu32 ".ffn_gate_inp.scale", l);
  float *values = weft_alloc(n, sizeof *values);
  if (values == NULL)
    return weft_fail(loader->error, WEFT_E_NO_MEMORY, "%s: out of memory", weft_gguf_path(loader->gguf));
  weft_status status = weights_read(loader, name, n, values);
  if (status == WEFT_E_NOT_FOUND) {
    status = weft_fail(loader->error, WEFT_E_FORMAT, "%s: tensor '%s' is missing; a %s model needs it",
                       weft_gguf_path(loader->gguf), name, model->hyper.arch);
  }
  float factor = 1.0f / sqrtf((float)n);
  for (uint32_t i = 0; i < n; i++) values[i] *= factor;
  if (status == WEFT_OK) status = weights_vector(loader, values, n, &model->layers[l].router_scale);
  weft_free(values);
  return status;
}

/* One factor per row: causal rows come first in a step, canvas rows after them, so that the factors
 * of a step with n_causal causal rows start at row rows_max - n_causal. */
static weft_status load_row_scales(weights_loader *loader) {
  weft_model *model = loader->model;
  uint64_t n_causal = model->limits.rows_max, n = n_causal + model->limits.canvas_rows_max;
  float *values = weft_alloc((size_t)n, sizeof *values);
  if (values == NULL)
    return weft_fail(loader->error, WEFT_E_NO_MEMORY, "%s: out of memory", weft_gguf_path(loader->gguf));
  weft_status status = WEFT_OK;
  for (uint32_t l = 0; status == WEFT_OK && l < model->hyper.n_layers; l++) {
    model_layer *layer = &model->layers[l];
    if (!model->hyper.diffusion) layer->encoder_scale = layer->scale;
    for (uint64_t i = 0; i < n; i++) values[i] = i < n_causal ? layer->encoder_scale : layer->scale;
    status = weights_vector(loader, values, n, &layer->row_scale);
  }
  weft_free(values);
  return status;
}

/* NeoX frequencies in f32 steps; divisors (rope_freqs) of 1e29 and more mean no rotation. */
static weft_status load_frequencies(weights_loader *loader, uint32_t head_dim, float base, const float *divisor,
                                    const float **out) {
  float values[HEAD_DIM_MAX / 2];
  for (uint32_t i = 0; i < head_dim / 2; i++) {
    float exponent = (float)(2 * i) / (float)head_dim;
    float frequency = 1.0f / (float)pow((double)base, (double)exponent);
    bool still = divisor != NULL && !(divisor[i] < 1e29f);
    values[i] = still ? 0.0f : divisor != NULL ? frequency / divisor[i] : frequency;
  }
  return weights_vector(loader, values, head_dim / 2, out);
}

static weft_status load_rope(weights_loader *loader) {
  weft_model *model = loader->model;
  const model_hyper *hyper = &model->hyper;
  float divisor[HEAD_DIM_MAX / 2];
  for (uint32_t l = 0; l < hyper->n_layers; l++) {
    bool windowed = hyper->window[l] > 0;
    const float **out = windowed ? &model->globals.inv_freq_window : &model->globals.inv_freq;
    if (*out != NULL) continue;
    weft_status status = WEFT_OK;
    if (!windowed) status = weights_read(loader, "rope_freqs.weight", hyper->head_dim[l] / 2, divisor);
    if (status == WEFT_E_NOT_FOUND) {
      status =
          weft_fail(loader->error, WEFT_E_FORMAT, "%s: tensor 'rope_freqs.weight' is missing; global layers need it",
                    weft_gguf_path(loader->gguf));
    }
    if (status == WEFT_OK) {
      status = load_frequencies(loader, hyper->head_dim[l], windowed ? hyper->rope_base_window : hyper->rope_base,
                                windowed ? NULL : divisor, out);
    }
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}

weft_status gemma4_load(weft_model *model, weights_loader *loader) {
  uint32_t n_global = sizeof global_rows / sizeof *global_rows, n_layer = sizeof layer_rows / sizeof *layer_rows,
           n_expert = sizeof expert_rows / sizeof *expert_rows;
  weft_status status = weights_load(loader, global_rows, n_global, UINT32_MAX, &model->globals);
  if (status == WEFT_OK) status = load_rope(loader);
  for (uint32_t l = 0; status == WEFT_OK && l < model->hyper.n_layers; l++) {
    status = weights_load(loader, layer_rows, n_layer, l, &model->layers[l]);
    if (status == WEFT_OK) status = load_router_scale(loader, l);
  }
  if (status == WEFT_OK) status = load_row_scales(loader);
  for (uint32_t l = 0; status == WEFT_OK && l < model->hyper.n_layers; l++) {
    status = weights_load(loader, expert_rows, n_expert, l, &model->layers[l]);
    if (status == WEFT_OK) status = check_expert_forms(loader, l);
  }
  return status;
}

/* ---- forward ---- */

weft_status gemma4_embed(model_step *step) {
  weft_model *model = step->model;
  weft_embed_args args = {
      .weight = &model->globals.token_embd,
      .tokens = model->arrays.token,
      .y = step->x,
      .n_rows = step->n_rows,
      .scale = model->hyper.embed_scale,
      .y_stride = model->hyper.n_hidden,
  };
  return weft_embed(model->device, &args);
}

/* Router and experts read the residual stream through norms of their own: s->y and s->r. */
static weft_status feed_forward(model_step *step, const model_layer *layer, uint32_t l) {
  model_scratch *s = &step->model->scratch;
  bool moe = step->model->hyper.moe[l];
  layers_mlp_args mlp = {
      .x = step->h, .gate = &layer->gate, .up = &layer->up, .down = &layer->down, .out = s->t, .n_rows = step->n_rows};
  weft_status status = moe ? layers_route(step, layer, s->y) : layers_mlp(step, &mlp);
  /* the router's product has read s->y before the experts write it */
  if (status == WEFT_OK && moe) status = layers_experts(step, layer, s->r, s->y, &mlp);
  if (status != WEFT_OK) return status;
  layers_norm_args sum = {.x = s->t,
                          .x2 = moe ? s->y : NULL,
                          .x_weight = moe ? layer->post_ffw_norm_1 : NULL,
                          .x2_weight = moe ? layer->post_ffw_norm_2 : NULL,
                          .weight = layer->post_ffw_norm,
                          .add = step->x,
                          .row_scale = layer->row_scale + (step->model->limits.rows_max - step->n_causal),
                          .y = step->x,
                          .n_rows = step->n_rows};
  layers_then_next(step, l, &sum);
  return layers_norm(step, &sum);
}

weft_status gemma4_layer(model_step *step, uint32_t l) {
  weft_model *model = step->model;
  model_scratch *s = &model->scratch;
  const model_layer *layer = &model->layers[l];
  weft_status status = layers_attention(step, l);
  if (status != WEFT_OK || step->n_rows == 0) return status;
  const weft_weight *o = &layer->o;
  status = layers_matmul(step, step->a, step->n_rows, 1, &o, &s->t);
  if (status != WEFT_OK) return status;
  layers_norm_args sum = {.x = s->t,
                          .weight = layer->post_attn_norm,
                          .add = step->x,
                          .y = step->x,
                          .n_rows = step->n_rows,
                          .n_then = model->hyper.moe[l] ? 3 : 1,
                          .then_weight = {layer->ffn_norm, layer->router_scale, layer->pre_ffw_norm_2},
                          .then = {step->h, s->y, s->r}};
  status = layers_norm(step, &sum);
  return status == WEFT_OK ? feed_forward(step, layer, l) : status;
}
