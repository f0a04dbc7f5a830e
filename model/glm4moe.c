/* SPDX-License-Identifier: MIT */
/* GLM-4.5 to 4.7 with experts: the layers of qwen35.c that have attention, without a gate of its result. A part of a
 * head rotates, and the first layers are dense. Experts, chosen by a sigmoid of their scores and a bias, stand beside
 * an MLP that every row takes. A layer behind the others, which guesses tokens ahead (nextn), is not computed. */
#include <math.h>

#include "model/hyper.h"
#include "model/layers.h"
#include "model/models.h"
#include "model/rope.h"
#include "model/tensor_rows.h"

/* ---- keys ---- */

weft_status glm4moe_read(const weft_gguf *gguf, model_hyper *hyper, weft_error *error) {
  model_keys keys = {gguf, hyper->arch, error};
  weft_status status = hyper_read_sizes(&keys, hyper);
  if (status == WEFT_OK) status = hyper_refuse_if_set(&keys, ".attention.sliding_window", "windows");
  if (status == WEFT_OK) status = hyper_read_heads(&keys, hyper, false);
  if (status == WEFT_OK) status = hyper_read_rotated(&keys, hyper);
  if (status == WEFT_OK) status = hyper_read_ff(&keys, hyper);
  if (status == WEFT_OK) status = hyper_read_experts(&keys, hyper, 0);
  if (status == WEFT_OK) status = hyper_leave_out_nextn(&keys, hyper);
  if (status == WEFT_OK) status = hyper_read_shared_experts(&keys, hyper);
  if (status == WEFT_OK) status = hyper_read_choice(&keys, hyper, WEFT_SCORES_SIGMOID);
  if (status == WEFT_OK) status = model_keys_f32(&keys, ".rope.freq_base", 1, 1e12, &hyper->rope_base);
  if (status == WEFT_OK) status = rope_read_scaling(&keys, hyper, false);
  if (status != WEFT_OK) return status;
  hyper->attention_scale = rope_score_factor(&hyper->rope_scaling) / sqrtf((float)hyper->head_dim[0]);
  hyper->activation = WEFT_SILU;
  hyper->embed_scale = 1.0f;
  return WEFT_OK;
}

/* ---- tensors ---- */

static const tensor_row layer_rows[] = {
    ROW("attn_norm.weight", VECTOR, ALWAYS, attn_norm, 0, HIDDEN),
    ROW("post_attention_norm.weight", VECTOR, ALWAYS, ffn_norm, 0, HIDDEN),
    ROW("attn_q.weight", HEADS_MATRIX, ALWAYS, q, MATMUL, HIDDEN, DIM_Q),
    ROW("attn_k.weight", HEADS_MATRIX, ALWAYS, k, MATMUL, HIDDEN, DIM_KV),
    ROW("attn_v.weight", MATRIX, ALWAYS, v, MATMUL, HIDDEN, DIM_KV),
    ROW("attn_output.weight", MATRIX, ALWAYS, o, MATMUL, DIM_Q, HIDDEN),
    ROW("attn_q.bias", HEADS_VECTOR, NEVER, q_bias, 0, DIM_Q),
    ROW("attn_k.bias", HEADS_VECTOR, NEVER, k_bias, 0, DIM_KV),
    ROW("attn_v.bias", VECTOR, NEVER, v_bias, 0, DIM_KV),
    ROW("attn_q_norm.weight", HEADS_VECTOR, NEVER, q_norm, 0, DIM_HEAD),
    ROW("attn_k_norm.weight", HEADS_VECTOR, NEVER, k_norm, 0, DIM_HEAD),
    ROW("ffn_gate.weight", MATRIX, DENSE, gate, MATMUL, HIDDEN, DIM_FF),
    ROW("ffn_up.weight", MATRIX, DENSE, up, MATMUL, HIDDEN, DIM_FF),
    ROW("ffn_down.weight", MATRIX, DENSE, down, MATMUL, DIM_FF, DIM_DOWN),
    ROW("ffn_gate_inp.weight", MATRIX, MOE, router, MATMUL, HIDDEN, DIM_EXPERTS),
    ROW("exp_probs_b.bias", VECTOR, MOE, choice_bias, 0, DIM_EXPERTS),
    ROW("ffn_gate_shexp.weight", MATRIX, MOE, gate, MATMUL, HIDDEN, DIM_FF),
    ROW("ffn_up_shexp.weight", MATRIX, MOE, up, MATMUL, HIDDEN, DIM_FF),
    ROW("ffn_down_shexp.weight", MATRIX, MOE, down, MATMUL, DIM_FF, HIDDEN),
    SCALES("ffn_gate_shexp", gate, DIM_ONE),
    SCALES("ffn_up_shexp", up, DIM_ONE),
    SCALES("ffn_down_shexp", down, DIM_ONE),
};

static bool has_ops(const weft_kernels *kernels) {
  return kernels->assign != NULL;
}

weft_status glm4moe_load(weft_model *model, weights_loader *loader) {
  weft_status status = model_check_place(model, loader, has_ops, "the choice of experts");
  if (status != WEFT_OK) return status;
  return llama_load_rows(model, loader, layer_rows, sizeof layer_rows / sizeof *layer_rows);
}
