/* SPDX-License-Identifier: MIT */
/* Llama and its relatives (Ministral 3, Qwen2, Qwen3, Qwen3-MoE): norms before attention and before the feed-forward
 * part, one head size, a gated MLP with SiLU or routed experts in its place. What differs between them is in the file:
 * biases, norms of queries and keys, experts, a head of its own. Only how rows of a head lie is a matter of the
 * architecture: the converters of llama and mistral3 put the two that rotate together side by side. gpt_oss.c reads
 * other keys and tensors, and has the same layer. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "model/hyper.h"
#include "model/layers.h"
#include "model/models.h"
#include "model/rope.h"
#include "model/tensor_rows.h"

/* ---- keys ---- */

/* What other architectures say in these keys would change the numbers, and is not computed. */
static weft_status refuse_others(const model_keys *keys) {
  static const char *const names[][2] = {
      {".attention.sliding_window_pattern", "windows of some layers"},
      {".expert_shared_feed_forward_length", "shared experts"},
      {".expert_shared_count", "shared experts"},
      {".expert_group_count", "groups of experts"},
      {".leading_dense_block_count", "leading dense layers"},
  };
  float factor = 1.0f;
  weft_status status = hyper_refuse_each(keys, names, sizeof names / sizeof *names);
  if (status == WEFT_OK) status = model_keys_f32_or(keys, ".expert_weights_scale", -1e6, 1e6, 1.0f, &factor);
  if (status != WEFT_OK || factor == 1.0f || factor == 0.0f) return status;
  return weft_fail(keys->error, WEFT_E_UNSUPPORTED, "%s: key '%s.expert_weights_scale' is %g; only 1 is supported",
                   weft_gguf_path(keys->gguf), keys->arch, (double)factor);
}

static weft_status read_window(const model_keys *keys, model_hyper *hyper) {
  uint32_t window;
  weft_status status = model_keys_u32_or(keys, ".attention.sliding_window", 0, 1 << 30, 0, &window);
  for (uint32_t l = 0; status == WEFT_OK && l < hyper->n_layers; l++) hyper->window[l] = window;
  return status;
}

/* A file may say nothing of the width of experts: it is then that of the feed-forward part. */
static weft_status read_ffn(const model_keys *keys, model_hyper *hyper) {
  weft_status status = hyper_read_ff(keys, hyper);
  return status == WEFT_OK ? hyper_read_experts(keys, hyper, hyper->n_ff[0]) : status;
}

static bool is_mistral3(const model_hyper *hyper) {
  return strcmp(hyper->arch, "mistral3") == 0;
}

/* Scores of mistral3 grow with the position, in steps of the context that the model was trained on; the first step is
 * 1. Beyond it nothing is computed: the context ends there. */
static weft_status end_at_first_step(const model_keys *keys, model_hyper *hyper) {
  float growth = 0.0f;
  if (!is_mistral3(hyper)) return WEFT_OK;
  weft_status status = model_keys_f32_or(keys, ".attention.temperature_scale", 0, 1e6, 0, &growth);
  if (growth > 0.0f && hyper->context_length > hyper->rope_scaling.context)
    hyper->context_length = hyper->rope_scaling.context;
  return status;
}

weft_status llama_read(const weft_gguf *gguf, model_hyper *hyper, weft_error *error) {
  model_keys keys = {gguf, hyper->arch, error};
  weft_status status = hyper_read_sizes(&keys, hyper);
  if (status == WEFT_OK) status = refuse_others(&keys);
  if (status == WEFT_OK) status = hyper_read_heads(&keys, hyper, true);
  if (status == WEFT_OK) status = hyper_read_head_dim(&keys, hyper);
  if (status == WEFT_OK) status = read_window(&keys, hyper);
  if (status == WEFT_OK) status = read_ffn(&keys, hyper);
  if (status == WEFT_OK) status = model_keys_f32_or(&keys, ".rope.freq_base", 1, 1e12, 10000.0f, &hyper->rope_base);
  if (status == WEFT_OK) status = rope_read_scaling(&keys, hyper, is_mistral3(hyper));
  if (status == WEFT_OK) status = end_at_first_step(&keys, hyper);
  if (status != WEFT_OK) return status;
  float scale = 1.0f / sqrtf((float)hyper->head_dim[0]);
  status = model_keys_f32_or(&keys, ".attention.scale", 0, 1e6, 0, &hyper->attention_scale);
  if (hyper->attention_scale == 0.0f) hyper->attention_scale = scale;
  hyper->attention_scale *= rope_score_factor(&hyper->rope_scaling);
  hyper->rope_paired = strcmp(hyper->arch, "llama") == 0 || is_mistral3(hyper);
  hyper->activation = WEFT_SILU;
  hyper->embed_scale = 1.0f;
  return status;
}

/* ---- tensors ---- */

static const tensor_row layer_rows[] = {
    ROW("attn_norm.weight", VECTOR, ALWAYS, attn_norm, 0, HIDDEN),
    ROW("attn_q.weight", HEADS_MATRIX, ALWAYS, q, MATMUL, HIDDEN, DIM_Q),
    ROW("attn_k.weight", HEADS_MATRIX, ALWAYS, k, MATMUL, HIDDEN, DIM_KV),
    ROW("attn_v.weight", MATRIX, ALWAYS, v, MATMUL, HIDDEN, DIM_KV),
    ROW("attn_output.weight", MATRIX, ALWAYS, o, MATMUL, DIM_Q, HIDDEN),
    ROW("attn_q.bias", HEADS_VECTOR, NEVER, q_bias, 0, DIM_Q),
    ROW("attn_k.bias", HEADS_VECTOR, NEVER, k_bias, 0, DIM_KV),
    ROW("attn_v.bias", VECTOR, NEVER, v_bias, 0, DIM_KV),
    ROW("attn_output.bias", VECTOR, NEVER, o_bias, 0, HIDDEN),
    ROW("attn_q_norm.weight", HEADS_VECTOR, NEVER, q_norm, 0, DIM_HEAD),
    ROW("attn_k_norm.weight", HEADS_VECTOR, NEVER, k_norm, 0, DIM_HEAD),
    ROW("ffn_norm.weight", VECTOR, ALWAYS, ffn_norm, 0, HIDDEN),
    ROW("ffn_gate.weight", MATRIX, DENSE, gate, MATMUL, HIDDEN, DIM_FF),
    ROW("ffn_up.weight", MATRIX, DENSE, up, MATMUL, HIDDEN, DIM_FF),
    ROW("ffn_down.weight", MATRIX, DENSE, down, MATMUL, DIM_FF, DIM_DOWN),
    ROW("ffn_gate_inp.weight", MATRIX, MOE, router, MATMUL, HIDDEN, DIM_EXPERTS),
    ROW("ffn_down_exps.scale", VECTOR, MOE_NEVER, expert_scale, 0, DIM_EXPERTS),
};

static weft_status load_layers(weft_model *model, weights_loader *loader, const tensor_row *rows, uint32_t n_rows) {
  weft_status status = rope_load(loader);
  for (uint32_t l = 0; status == WEFT_OK && l < model->hyper.n_layers; l++) {
    status = weights_load(loader, rows, n_rows, l, &model->layers[l]);
    if (status == WEFT_OK) status = WEIGHTS_LOAD(loader, scale_rows, l, &model->layers[l]);
  }
  return status;
}

weft_status llama_load_rows(weft_model *model, weights_loader *loader, const tensor_row *rows, uint32_t n_rows) {
  weft_status status = WEIGHTS_LOAD(loader, global_rows, UINT32_MAX, &model->globals);
  if (status == WEFT_OK) status = weights_output_norm(loader);
  if (status == WEFT_OK) status = load_layers(model, loader, rows, n_rows);
  if (status != WEFT_OK) return status;
  return weights_load_experts(loader, expert_rows, sizeof expert_rows / sizeof *expert_rows, expert_scale_rows,
                              sizeof expert_scale_rows / sizeof *expert_scale_rows);
}

weft_status llama_load(weft_model *model, weights_loader *loader) {
  return llama_load_rows(model, loader, layer_rows, sizeof layer_rows / sizeof *layer_rows);
}

weft_status llama_load_layers(weft_model *model, weights_loader *loader) {
  return load_layers(model, loader, layer_rows, sizeof layer_rows / sizeof *layer_rows);
}

/* ---- forward ---- */

/* x = x + t + bias. */
static layers_norm_args stream_sum(const model_step *step, const float *bias) {
  return (layers_norm_args){.x = step->x,
                            .x2 = step->part->scratch.t,
                            .add = bias,
                            .y = step->x,
                            .first_row = step->own_first,
                            .n_rows = step->n_own,
                            .plain = true,
                            .add_is_row = true};
}

weft_status llama_layer(model_step *step, uint32_t l) {
  weft_model *model = step->model;
  model_scratch *s = &step->part->scratch;
  const model_layer *layer = &model->layers[l];
  weft_status status = layers_attention(step, l);
  if (status != WEFT_OK || step->n_rows == 0) return status;
  status = layers_output(step, layer, s->t);
  if (status != WEFT_OK) return status;
  layers_norm_args attended = stream_sum(step, layer->o_bias);
  attended.n_then = 1;
  attended.then_weight[0] = layer->ffn_norm;
  attended.then[0] = step->h;
  if (!model->hyper.moe[l]) attended.then_form[0] = layers_mlp_form(step, l);
  status = layers_norm(step, &attended);
  if (status != WEFT_OK) return status;
  layers_experts_args experts = {.routed = step->h, .x = step->h, .out = s->t};
  status = model->hyper.moe[l] ? layers_experts(step, layer, &experts)
                               : layers_dense(step, layer, attended.then_form[0], s->t);
  if (status != WEFT_OK) return status;
  layers_norm_args sum = stream_sum(step, NULL);
  layers_then_next(step, l, &sum);
  return layers_norm(step, &sum);
}
