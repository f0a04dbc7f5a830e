/* SPDX-License-Identifier: MIT */
/* DeepSeek-V2, V3 and R1, Kimi-K2, GLM-4.7-Flash: keys and values are made of one vector for each position, which is
 * what is kept (model/mla.h); experts beside an MLP that every row takes, behind dense layers. What follows attention
 * is as in qwen35.c.
 *
 * What files have, by llama.cpp's converter: for each head a matrix of keys, turned around, and one of values
 * (attn_k_b, attn_v_b); files of converters before April 2025 have one of both (attn_kv_b) and are refused. A vector's
 * size is key_length, a head's key_length_mla. yarn_log_multiplier is a tenth of mscale_all_dim here, which is the
 * model's mscale too, so that cosines and sines keep their length. Where a file does not say how experts are scored it
 * is by a sigmoid if it has biases of choice, else by a softmax. A layer behind the others, which guesses tokens ahead,
 * is not computed. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "model/hyper.h"
#include "model/layers.h"
#include "model/models.h"
#include "model/rope.h"
#include "model/tensor_rows.h"

/* ---- keys ---- */

enum { RANK_MAX = 1 << 16 };

static weft_status refuse_key(const model_keys *keys, const char *name, uint32_t value, const char *what) {
  return weft_fail(keys->error, WEFT_E_UNSUPPORTED, "%s: key '%s%s' is %" PRIu32 "; %s", weft_gguf_path(keys->gguf),
                   keys->arch, name, value, what);
}

/* Files of older converters have the matrices of keys and values in one. */
static weft_status refuse_older(const model_keys *keys) {
  if (weft_gguf_tensor_find(keys->gguf, "blk.0.attn_kv_b.weight") == NULL) return WEFT_OK;
  return weft_fail(keys->error, WEFT_E_UNSUPPORTED,
                   "%s: tensor 'blk.0.attn_kv_b.weight' is of an older converter; take a file that has attn_k_b and "
                   "attn_v_b in its place",
                   weft_gguf_path(keys->gguf));
}

static weft_status read_heads(const model_keys *keys, model_hyper *hyper) {
  static const char *const vector = ".attention.key_length", *const query = ".attention.key_length_mla";
  model_mla *mla = &hyper->mla;
  uint32_t width = 0, *rotated = &hyper->latent.n_rotated;
  weft_status status = hyper_read_heads(keys, hyper, false);
  if (status == WEFT_OK && hyper->n_kv_heads[0] != 1)
    return refuse_key(keys, ".attention.head_count_kv", hyper->n_kv_heads[0], "one vector for each position is needed");
  if (status == WEFT_OK) status = model_keys_u32(keys, ".attention.kv_lora_rank", 8, HYPER_HEAD_DIM_MAX, &mla->rank);
  if (status == WEFT_OK) status = model_keys_u32(keys, ".rope.dimension_count", 2, HYPER_HEAD_DIM_MAX, rotated);
  if (status == WEFT_OK && *rotated % 2 != 0)
    return refuse_key(keys, ".rope.dimension_count", *rotated, "numbers rotate in pairs");
  if (status == WEFT_OK) status = model_keys_u32(keys, vector, 8, HYPER_HEAD_DIM_MAX, &width);
  if (status == WEFT_OK && width != mla->rank + *rotated)
    return refuse_key(keys, vector, width, "attention.kv_lora_rank and rope.dimension_count together are needed");
  if (status == WEFT_OK) status = hyper_check_head_dim(keys, vector, width);
  if (status == WEFT_OK) status = model_keys_u32(keys, query, *rotated + 1, HYPER_HEAD_DIM_MAX, &mla->n_query);
  if (status == WEFT_OK)
    status = model_keys_u32(keys, ".attention.value_length_mla", 1, HYPER_HEAD_DIM_MAX, &mla->n_value);
  if (status == WEFT_OK)
    status = model_keys_u32_or(keys, ".attention.q_lora_rank", 0, RANK_MAX, 0, &hyper->latent.q_rank);
  mla->n_still = mla->n_query - *rotated;
  for (uint32_t l = 0; status == WEFT_OK && l < hyper->n_layers; l++) hyper->head_dim[l] = width;
  return status;
}

/* How experts are scored where no key says it. */
static weft_expert_scores scores_of(const model_keys *keys, const model_hyper *hyper) {
  char name[64];
  bool has_bias = false;
  for (uint32_t l = 0; l < hyper->n_layers; l++) {
    (void)snprintf(name, sizeof name, "blk.%" PRIu32 ".exp_probs_b.bias", l);
    has_bias = has_bias || weft_gguf_tensor_find(keys->gguf, name) != NULL;
  }
  return has_bias ? WEFT_SCORES_SIGMOID : WEFT_SCORES_SOFTMAX;
}

static weft_status read_rotation(const model_keys *keys, model_hyper *hyper) {
  const rope_scaling *scaling = &hyper->rope_scaling;
  double side = 1.0;
  weft_status status = model_keys_f32(keys, ".rope.freq_base", 1, 1e12, &hyper->rope_base);
  if (status == WEFT_OK) status = rope_read_scaling(keys, hyper, true);
  if (status != WEFT_OK) return status;
  if (scaling->kind == ROPE_YARN && scaling->shorter == 0.0f)
    return weft_fail(keys->error, WEFT_E_UNSUPPORTED,
                     "%s: key '%s.rope.scaling.yarn_log_multiplier' is missing; yarn needs it here",
                     weft_gguf_path(keys->gguf), keys->arch);
  if (scaling->kind == ROPE_YARN && scaling->factor > 1.0f)
    side = 1.0 + (double)scaling->shorter * log((double)scaling->factor);
  hyper->attention_scale = (float)(side * side / sqrt((double)hyper->mla.n_query));
  return WEFT_OK;
}

weft_status deepseek2_read(const weft_gguf *gguf, model_hyper *hyper, weft_error *error) {
  model_keys keys = {gguf, hyper->arch, error};
  weft_status status = hyper_read_sizes(&keys, hyper);
  if (status == WEFT_OK) status = refuse_older(&keys);
  if (status == WEFT_OK) status = hyper_refuse_if_set(&keys, ".attention.sliding_window", "windows");
  if (status == WEFT_OK) status = hyper_refuse_if_set(&keys, ".attention.temperature_length", "growing scores");
  if (status == WEFT_OK) status = read_heads(&keys, hyper);
  if (status == WEFT_OK) status = hyper_read_ff(&keys, hyper);
  if (status == WEFT_OK) status = hyper_read_experts(&keys, hyper, 0);
  if (status == WEFT_OK) status = hyper_leave_out_nextn(&keys, hyper);
  if (status == WEFT_OK) status = hyper_read_shared_experts(&keys, hyper);
  if (status == WEFT_OK) status = hyper_read_choice(&keys, hyper, scores_of(&keys, hyper));
  if (status == WEFT_OK) status = read_rotation(&keys, hyper);
  hyper->activation = WEFT_SILU;
  hyper->embed_scale = 1.0f;
  return status;
}

/* ---- tensors ---- */

static const tensor_row query_rows[] = {
    ROW("attn_q.weight", MATRIX, ALWAYS, q, MATMUL, HIDDEN, DIM_MLA_QUERY),
};
static const tensor_row low_query_rows[] = {
    ROW("attn_q_a.weight", MATRIX, ALWAYS, latent.q_a, MATMUL, HIDDEN, DIM_Q_RANK),
    ROW("attn_q_a_norm.weight", VECTOR, ALWAYS, latent.q_a_norm, 0, DIM_Q_RANK),
    ROW("attn_q_b.weight", MATRIX, ALWAYS, latent.q_b, MATMUL, DIM_Q_RANK, DIM_MLA_QUERY),
};

static const tensor_row layer_rows[] = {
    ROW("attn_norm.weight", VECTOR, ALWAYS, attn_norm, 0, HIDDEN),
    ROW("attn_kv_a_mqa.weight", MATRIX, ALWAYS, latent.kv, MATMUL, HIDDEN, DIM_HEAD),
    ROW("attn_kv_a_norm.weight", VECTOR, ALWAYS, latent.kv_norm, 0, DIM_MLA_RANK),
    ROW("attn_k_b.weight", VECTOR, ALWAYS, k_b, 0, DIM_MLA_STILL, DIM_MLA_RANK, DIM_HEADS),
    ROW("attn_v_b.weight", VECTOR, ALWAYS, v_b, 0, DIM_MLA_RANK, DIM_MLA_VALUE, DIM_HEADS),
    ROW("attn_output.weight", MATRIX, ALWAYS, o, MATMUL, DIM_MLA_VALUES, HIDDEN),
    ROW("ffn_norm.weight", VECTOR, ALWAYS, ffn_norm, 0, HIDDEN),
    ROW("ffn_gate.weight", MATRIX, DENSE, gate, MATMUL, HIDDEN, DIM_FF),
    ROW("ffn_up.weight", MATRIX, DENSE, up, MATMUL, HIDDEN, DIM_FF),
    ROW("ffn_down.weight", MATRIX, DENSE, down, MATMUL, DIM_FF, DIM_DOWN),
    ROW("ffn_gate_inp.weight", MATRIX, MOE, router, MATMUL, HIDDEN, DIM_EXPERTS),
    ROW("exp_probs_b.bias", VECTOR, MOE_NEVER, choice_bias, 0, DIM_EXPERTS),
    ROW("ffn_gate_shexp.weight", MATRIX, MOE, gate, MATMUL, HIDDEN, DIM_FF),
    ROW("ffn_up_shexp.weight", MATRIX, MOE, up, MATMUL, HIDDEN, DIM_FF),
    ROW("ffn_down_shexp.weight", MATRIX, MOE, down, MATMUL, DIM_FF, HIDDEN),
};

static bool has_ops(const weft_kernels *kernels) {
  return kernels->latent_heads != NULL;
}

static weft_status load_rotation(weft_model *model, weights_loader *loader) {
  const model_hyper *hyper = &model->hyper;
  weft_status status = WEFT_OK;
  for (uint32_t p = 0; p < model->n_parts && status == WEFT_OK; p++) {
    model_part *part = &model->part[p];
    weights_at_layer(loader, part->first_layer);
    status =
        rope_frequencies_of(loader, hyper->latent.n_rotated, hyper->rope_base, &hyper->rope_scaling, &part->inv_freq);
  }
  return status;
}

weft_status deepseek2_load(weft_model *model, weights_loader *loader) {
  const bool low = model->hyper.latent.q_rank > 0;
  weft_status status = model_check_place(model, loader, has_ops, "the latent rows");
  if (status == WEFT_OK) status = WEIGHTS_LOAD(loader, global_rows, UINT32_MAX, &model->globals);
  if (status == WEFT_OK) status = weights_output_norm(loader);
  if (status == WEFT_OK) status = load_rotation(model, loader);
  for (uint32_t l = 0; status == WEFT_OK && l < model->hyper.n_layers; l++) {
    model_layer *layer = &model->layers[l];
    status = low ? WEIGHTS_LOAD(loader, low_query_rows, l, layer) : WEIGHTS_LOAD(loader, query_rows, l, layer);
    if (status == WEFT_OK) status = WEIGHTS_LOAD(loader, layer_rows, l, layer);
  }
  if (status != WEFT_OK) return status;
  return weights_load_experts(loader, expert_rows, sizeof expert_rows / sizeof *expert_rows, expert_scale_rows,
                              sizeof expert_scale_rows / sizeof *expert_scale_rows);
}

/* ---- forward ---- */

weft_status deepseek2_layer(model_step *step, uint32_t l) {
  return qwen35_layer_after(step, l, layers_mla(step, l));
}
