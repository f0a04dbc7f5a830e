/* SPDX-License-Identifier: MIT */
/* gpt-oss: the layers of llama.c, with sinks in every head, a window on every other layer, biases on all matrices but
 * the embedding and the head, and experts with a clamped gate. The layer itself is llama_layer: which of these a layer
 * has is in its tensors.
 *
 * Where the sources differ: the model's configuration says that YaRN's blend is not rounded to whole pairs
 * ("truncate": false), and so does transformers; llama.cpp rounds it. The configuration is followed here. The gate's
 * slope and limit are no keys of the format (kernels/experts.h has them). */
#include <math.h>

#include "model/hyper.h"
#include "model/layers.h"
#include "model/models.h"
#include "model/rope.h"
#include "model/tensor_rows.h"

/* ---- keys ---- */

enum { PERIOD = 2 /* of windows, where the file does not say it: every second layer sees all */ };

/* What would change the numbers, and is not computed. */
static weft_status refuse_others(const model_keys *keys) {
  static const char *const names[][2] = {
      {".expert_shared_feed_forward_length", "shared experts"},
      {".expert_shared_count", "shared experts"},
      {".expert_group_count", "groups of experts"},
      {".leading_dense_block_count", "leading dense layers"},
  };
  return hyper_refuse_each(keys, names, sizeof names / sizeof *names);
}

weft_status gpt_oss_read(const weft_gguf *gguf, model_hyper *hyper, weft_error *error) {
  model_keys keys = {gguf, hyper->arch, error};
  weft_status status = hyper_read_sizes(&keys, hyper);
  if (status == WEFT_OK) status = refuse_others(&keys);
  if (status == WEFT_OK) status = hyper_read_heads(&keys, hyper, false);
  if (status == WEFT_OK) status = hyper_read_head_dim(&keys, hyper);
  if (status == WEFT_OK) status = hyper_read_windows(&keys, hyper, PERIOD);
  if (status == WEFT_OK) status = hyper_read_ff(&keys, hyper);
  if (status == WEFT_OK) status = hyper_read_experts(&keys, hyper, 0);
  if (status == WEFT_OK) status = model_keys_f32(&keys, ".rope.freq_base", 1, 1e12, &hyper->rope_base);
  if (status == WEFT_OK) status = rope_read_scaling(&keys, hyper, false);
  if (status != WEFT_OK) return status;
  hyper->rope_scaling.between_pairs = true;
  hyper->attention_scale = rope_score_factor(&hyper->rope_scaling) / sqrtf((float)hyper->head_dim[0]);
  hyper->activation = WEFT_CLAMPED_SILU;
  hyper->embed_scale = 1.0f;
  return WEFT_OK;
}

/* ---- tensors ---- */

static const tensor_row layer_rows[] = {
    ROW("attn_norm.weight", VECTOR, ALWAYS, attn_norm, 0, HIDDEN),
    ROW("attn_q.weight", MATRIX, ALWAYS, q, MATMUL, HIDDEN, DIM_Q),
    ROW("attn_k.weight", MATRIX, ALWAYS, k, MATMUL, HIDDEN, DIM_KV),
    ROW("attn_v.weight", MATRIX, ALWAYS, v, MATMUL, HIDDEN, DIM_KV),
    ROW("attn_output.weight", MATRIX, ALWAYS, o, MATMUL, DIM_Q, HIDDEN),
    ROW("attn_q.bias", VECTOR, ALWAYS, q_bias, 0, DIM_Q),
    ROW("attn_k.bias", VECTOR, ALWAYS, k_bias, 0, DIM_KV),
    ROW("attn_v.bias", VECTOR, ALWAYS, v_bias, 0, DIM_KV),
    ROW("attn_output.bias", VECTOR, ALWAYS, o_bias, 0, HIDDEN),
    ROW("attn_sinks.weight", VECTOR, ALWAYS, sinks, 0, DIM_HEADS),
    ROW("post_attention_norm.weight", VECTOR, ALWAYS, ffn_norm, 0, HIDDEN),
    ROW("ffn_gate_inp.weight", MATRIX, ALWAYS, router, MATMUL, HIDDEN, DIM_EXPERTS),
    ROW("ffn_gate_inp.bias", VECTOR, ALWAYS, router_bias, 0, DIM_EXPERTS),
    ROW("ffn_gate_exps.bias", VECTOR, ALWAYS, gate_exps_bias, 0, DIM_EXPERT_FF, DIM_EXPERTS),
    ROW("ffn_up_exps.bias", VECTOR, ALWAYS, up_exps_bias, 0, DIM_EXPERT_FF, DIM_EXPERTS),
    ROW("ffn_down_exps.bias", VECTOR, ALWAYS, down_exps_bias, 0, HIDDEN, DIM_EXPERTS),
};

weft_status gpt_oss_load(weft_model *model, weights_loader *loader) {
  return llama_load_rows(model, loader, layer_rows, sizeof layer_rows / sizeof *layer_rows);
}
