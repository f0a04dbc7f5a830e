/* SPDX-License-Identifier: MIT */
/* Gemma 3, text: the dense layers of gemma4.c with one head size, no norm of values and no scalar of a layer. Five of
 * six layers have a window and rotate by a pace of their own; those without one rotate more slowly where the file says
 * so (rope.scaling, linear).
 *
 * What files have, by llama.cpp's converter: norms as factors (1 is added already), and no key that says by what scores
 * are divided. It is the root of a head's size, but for the model of 62 layers (27B), where it is the root of the width
 * for each head; llama.cpp knows that model by its layers, too. */
#include <math.h>

#include "model/hyper.h"
#include "model/layers.h"
#include "model/models.h"
#include "model/rope.h"
#include "model/tensor_rows.h"

/* ---- keys ---- */

enum { PERIOD = 6 /* of windows, where the file does not say it */, LAYERS_27B = 62 };

/* What would change the numbers, and is not computed. */
static weft_status refuse_others(const model_keys *keys) {
  static const char *const names[][2] = {
      {".expert_count", "experts"},
      {".attention.shared_kv_layers", "layers that share keys"},
  };
  float cap = 0.0f;
  weft_status status = hyper_refuse_each(keys, names, sizeof names / sizeof *names);
  if (status == WEFT_OK) status = model_keys_f32_or(keys, ".attn_logit_softcapping", 0, 1e6, 0, &cap);
  if (status != WEFT_OK || cap == 0.0f) return status;
  return weft_fail(keys->error, WEFT_E_UNSUPPORTED, "%s: key '%s.attn_logit_softcapping' is %g; only 0 is supported",
                   weft_gguf_path(keys->gguf), keys->arch, (double)cap);
}

weft_status gemma3_read(const weft_gguf *gguf, model_hyper *hyper, weft_error *error) {
  model_keys keys = {gguf, hyper->arch, error};
  weft_status status = hyper_read_sizes(&keys, hyper);
  if (status == WEFT_OK) status = refuse_others(&keys);
  if (status == WEFT_OK) status = hyper_read_heads(&keys, hyper, false);
  if (status == WEFT_OK) status = hyper_read_head_dim(&keys, hyper);
  if (status == WEFT_OK) status = hyper_read_windows(&keys, hyper, PERIOD);
  if (status == WEFT_OK) status = hyper_read_ff(&keys, hyper);
  if (status == WEFT_OK) status = model_keys_f32_or(&keys, ".final_logit_softcapping", 0, 1e6, 0, &hyper->cap);
  if (status == WEFT_OK) status = model_keys_f32_or(&keys, ".rope.freq_base", 1, 1e12, 1e6f, &hyper->rope_base);
  if (status == WEFT_OK)
    status = model_keys_f32_or(&keys, ".rope.freq_base_swa", 1, 1e12, 1e4f, &hyper->rope_base_window);
  if (status == WEFT_OK) status = rope_read_scaling(&keys, hyper, false);
  if (status != WEFT_OK) return status;
  bool by_width = hyper->n_layers == LAYERS_27B;
  float divisor = sqrtf((float)(by_width ? hyper->n_hidden / hyper->n_heads : hyper->head_dim[0]));
  hyper->attention_scale = rope_score_factor(&hyper->rope_scaling) / divisor;
  hyper->embed_scale = sqrtf((float)hyper->n_hidden);
  hyper->activation = WEFT_GELU_TANH;
  return WEFT_OK;
}

/* ---- tensors ---- */

static const tensor_row layer_rows[] = {
    ROW("attn_norm.weight", VECTOR, ALWAYS, attn_norm, 0, HIDDEN),
    ROW("attn_q.weight", MATRIX, ALWAYS, q, MATMUL, HIDDEN, DIM_Q),
    ROW("attn_k.weight", MATRIX, ALWAYS, k, MATMUL, HIDDEN, DIM_KV),
    ROW("attn_v.weight", MATRIX, ALWAYS, v, MATMUL, HIDDEN, DIM_KV),
    ROW("attn_output.weight", MATRIX, ALWAYS, o, MATMUL, DIM_Q, HIDDEN),
    ROW("attn_q_norm.weight", VECTOR, ALWAYS, q_norm, 0, DIM_HEAD),
    ROW("attn_k_norm.weight", VECTOR, ALWAYS, k_norm, 0, DIM_HEAD),
    ROW("post_attention_norm.weight", VECTOR, ALWAYS, post_attn_norm, 0, HIDDEN),
    ROW("ffn_norm.weight", VECTOR, ALWAYS, ffn_norm, 0, HIDDEN),
    ROW("ffn_gate.weight", MATRIX, ALWAYS, gate, MATMUL, HIDDEN, DIM_FF),
    ROW("ffn_up.weight", MATRIX, ALWAYS, up, MATMUL, HIDDEN, DIM_FF),
    ROW("ffn_down.weight", MATRIX, ALWAYS, down, MATMUL, DIM_FF, DIM_DOWN),
    ROW("post_ffw_norm.weight", VECTOR, ALWAYS, post_ffw_norm, 0, HIDDEN),
};

/* Layers with a window have a pace of rotation of their own, without a scaling. */
static weft_status load_rotation(weft_model *model, weights_loader *loader) {
  const model_hyper *hyper = &model->hyper;
  const uint32_t n = hyper->head_dim[0];
  weft_status status = WEFT_OK;
  for (uint32_t p = 0; p < model->n_parts && status == WEFT_OK; p++) {
    model_part *part = &model->part[p];
    weights_at_layer(loader, part->first_layer);
    status = rope_frequencies_of(loader, n, hyper->rope_base, &hyper->rope_scaling, &part->inv_freq);
    if (status == WEFT_OK)
      status = rope_frequencies_of(loader, n, hyper->rope_base_window, NULL, &part->inv_freq_window);
  }
  return status;
}

weft_status gemma3_load(weft_model *model, weights_loader *loader) {
  weft_status status = WEIGHTS_LOAD(loader, global_rows, UINT32_MAX, &model->globals);
  if (status == WEFT_OK) status = weights_output_norm(loader);
  if (status == WEFT_OK) status = load_rotation(model, loader);
  for (uint32_t l = 0; status == WEFT_OK && l < model->hyper.n_layers; l++) {
    model->layers[l].scale = 1.0f;
    status = WEIGHTS_LOAD(loader, layer_rows, l, &model->layers[l]);
    if (status == WEFT_OK) status = WEIGHTS_LOAD(loader, scale_rows, l, &model->layers[l]);
  }
  return status == WEFT_OK ? gemma4_load_row_scales(loader) : status;
}
