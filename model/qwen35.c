/* SPDX-License-Identifier: MIT */
/* Qwen3.5 and its successors with its architecture (3.6, 3.8), dense and with experts: three of four layers have the
 * gated delta rule (kernels/delta.h), every fourth has attention, whose result is gated and of whose heads a part
 * rotates. Experts have an MLP beside them that every row takes, gated by one number for each row.
 *
 * What files have, by llama.cpp's converter: norms as factors (1 is added already), -e^A_log as ssm_a, value heads in
 * the order in which head h reads the key head h mod n, and for each head of attention the rows of its queries, then
 * those of its gates. The rotation has sections for images (rope.dimension_sections), which are one and the same for
 * text. A layer behind the others guesses tokens ahead: it may draft (nextn.h), and else it is not computed. Where the
 * sources differ: keys are made of length 1 with 1e-6 added to the sum of squares, as transformers does; llama.cpp
 * bounds the length by the norms' eps. */
#include <inttypes.h>
#include <math.h>

#include "model/hyper.h"
#include "model/layers.h"
#include "model/models.h"
#include "model/rope.h"
#include "model/tensor_rows.h"

/* ---- keys ---- */

enum { PERIOD = 4 /* where the file does not say it: every fourth layer has attention */, HEADS_MAX = 4096 };

static weft_status refuse_key(const model_keys *keys, const char *name, uint32_t value, const char *what) {
  return weft_fail(keys->error, WEFT_E_UNSUPPORTED, "%s: key '%s%s' is %" PRIu32 "; %s", weft_gguf_path(keys->gguf),
                   keys->arch, name, value, what);
}

/* What would change the numbers, and is not computed. */
static weft_status refuse_others(const model_keys *keys) {
  static const char *const names[][2] = {
      {".attention.sliding_window", "windows"},
      {".expert_group_count", "groups of experts"},
      {".leading_dense_block_count", "leading dense layers"},
      {".expert_shared_count", "several shared experts"},
  };
  return hyper_refuse_each(keys, names, sizeof names / sizeof *names);
}

/* Heads of the delta rule. */
static weft_status read_delta(const model_keys *keys, model_hyper *hyper) {
  model_delta *delta = &hyper->delta;
  uint32_t n_taps = 0, n_inner = 0;
  weft_status status = model_keys_u32(keys, ".ssm.conv_kernel", 1, 64, &n_taps);
  if (status == WEFT_OK && n_taps != WEFT_DELTA_TAPS)
    return refuse_key(keys, ".ssm.conv_kernel", n_taps, "convolutions over 4 positions are supported");
  if (status == WEFT_OK) status = model_keys_u32(keys, ".ssm.state_size", 1, WEFT_DELTA_DIM_MAX, &delta->dim);
  if (status == WEFT_OK && delta->dim % 8 != 0)
    return refuse_key(keys, ".ssm.state_size", delta->dim, "a multiple of 8 is needed");
  if (status == WEFT_OK) status = model_keys_u32(keys, ".ssm.group_count", 1, HEADS_MAX, &delta->n_k_heads);
  if (status == WEFT_OK) status = model_keys_u32(keys, ".ssm.time_step_rank", 1, HEADS_MAX, &delta->n_v_heads);
  if (status == WEFT_OK) status = model_keys_u32(keys, ".ssm.inner_size", 1, HEADS_MAX * WEFT_DELTA_DIM_MAX, &n_inner);
  if (status != WEFT_OK) return status;
  if (delta->n_v_heads % delta->n_k_heads != 0)
    return refuse_key(keys, ".ssm.time_step_rank", delta->n_v_heads, "a multiple of ssm.group_count is needed");
  if (n_inner != delta->n_v_heads * delta->dim)
    return refuse_key(keys, ".ssm.inner_size", n_inner, "ssm.time_step_rank times ssm.state_size is needed");
  return WEFT_OK;
}

/* Which layers have the delta rule: a list, or all but every full_attention_interval-th. */
static weft_status read_pattern(const model_keys *keys, model_hyper *hyper) {
  static const char *const name = ".attention.recurrent_layers";
  uint32_t period = PERIOD;
  weft_status status = hyper_check_per_layer(keys, hyper, name);
  bool listed = model_keys_count(keys, name) > 0;
  if (status == WEFT_OK && !listed)
    status = model_keys_u32_or(keys, ".full_attention_interval", 1, WEFT_LAYERS_MAX, PERIOD, &period);
  bool any = false;
  for (uint32_t l = 0; l < hyper->n_layers && status == WEFT_OK; l++) {
    uint32_t delta = (l + 1) % period != 0;
    if (listed) status = model_keys_u32_at(keys, name, l, 0, 1, &delta);
    hyper->delta.layer[l] = delta != 0;
    any = any || delta == 0;
  }
  if (status != WEFT_OK || any) return status;
  return weft_fail(keys->error, WEFT_E_UNSUPPORTED, "%s: no layer has attention (key '%s.full_attention_interval')",
                   weft_gguf_path(keys->gguf), keys->arch);
}

static bool has_experts(const model_keys *keys) {
  return model_keys_count(keys, ".expert_count") > 0;
}

/* The width of the MLP: of a model with experts, of the one beside them. */
static weft_status read_ffn(const model_keys *keys, model_hyper *hyper) {
  if (!has_experts(keys)) return hyper_read_ff(keys, hyper);
  uint32_t width = 0;
  weft_status status = model_keys_u32(keys, ".expert_shared_feed_forward_length", 1, 1 << 20, &width);
  for (uint32_t l = 0; l < hyper->n_layers; l++) hyper->n_ff[l] = width;
  return status == WEFT_OK ? hyper_read_experts(keys, hyper, 0) : status;
}

weft_status qwen35_read(const weft_gguf *gguf, model_hyper *hyper, weft_error *error) {
  model_keys keys = {gguf, hyper->arch, error};
  weft_status status = hyper_read_sizes(&keys, hyper);
  if (status == WEFT_OK) status = refuse_others(&keys);
  if (status == WEFT_OK) status = read_pattern(&keys, hyper);
  if (status == WEFT_OK) status = hyper_read_heads(&keys, hyper, false);
  if (status == WEFT_OK) status = hyper_read_rotated(&keys, hyper);
  if (status == WEFT_OK) status = read_delta(&keys, hyper);
  if (status == WEFT_OK) status = read_ffn(&keys, hyper);
  if (status == WEFT_OK) status = model_keys_f32(&keys, ".rope.freq_base", 1, 1e12, &hyper->rope_base);
  if (status == WEFT_OK) status = rope_read_scaling(&keys, hyper, false);
  if (status == WEFT_OK) status = hyper_leave_out_nextn(&keys, hyper);
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
    ROW("attn_q.weight", FIRST_HALVES, ATTENTION, q, MATMUL, HIDDEN, DIM_Q_TWICE),
    ROW("attn_q.weight", SECOND_HALVES, ATTENTION, out_gate, MATMUL, HIDDEN, DIM_Q_TWICE),
    ROW("attn_k.weight", HEADS_MATRIX, ATTENTION, k, MATMUL, HIDDEN, DIM_KV),
    ROW("attn_v.weight", MATRIX, ATTENTION, v, MATMUL, HIDDEN, DIM_KV),
    ROW("attn_output.weight", MATRIX, ATTENTION, o, MATMUL, DIM_Q, HIDDEN),
    ROW("attn_q_norm.weight", HEADS_VECTOR, ATTENTION, q_norm, 0, DIM_HEAD),
    ROW("attn_k_norm.weight", HEADS_VECTOR, ATTENTION, k_norm, 0, DIM_HEAD),
    ROW("attn_qkv.weight", MATRIX, DELTA, q, MATMUL, HIDDEN, DIM_DELTA_CHANNELS),
    ROW("attn_gate.weight", MATRIX, DELTA, out_gate, MATMUL, HIDDEN, DIM_DELTA_VALUES),
    ROW("ssm_alpha.weight", MATRIX, DELTA, alpha, MATMUL, HIDDEN, DIM_DELTA_HEADS),
    ROW("ssm_beta.weight", MATRIX, DELTA, beta, MATMUL, HIDDEN, DIM_DELTA_HEADS),
    ROW("ssm_conv1d.weight", VECTOR, DELTA, conv, 0, DIM_DELTA_TAPS, DIM_DELTA_CHANNELS),
    ROW("ssm_a", VECTOR, DELTA, decay, 0, DIM_DELTA_HEADS),
    ROW("ssm_dt.bias", VECTOR, DELTA, decay_bias, 0, DIM_DELTA_HEADS),
    ROW("ssm_norm.weight", VECTOR, DELTA, o_norm, 0, DIM_DELTA_HEAD),
    ROW("ssm_out.weight", MATRIX, DELTA, o, MATMUL, DIM_DELTA_VALUES, HIDDEN),
    ROW("ffn_gate.weight", MATRIX, DENSE, gate, MATMUL, HIDDEN, DIM_FF),
    ROW("ffn_up.weight", MATRIX, DENSE, up, MATMUL, HIDDEN, DIM_FF),
    ROW("ffn_down.weight", MATRIX, DENSE, down, MATMUL, DIM_FF, DIM_DOWN),
    ROW("ffn_gate_inp.weight", MATRIX, MOE, router, MATMUL, HIDDEN, DIM_EXPERTS),
    ROW("ffn_gate_inp_shexp.weight", MATRIX, MOE, shared_gate, MATMUL, HIDDEN, DIM_ONE),
    ROW("ffn_gate_shexp.weight", MATRIX, MOE, gate, MATMUL, HIDDEN, DIM_FF),
    ROW("ffn_up_shexp.weight", MATRIX, MOE, up, MATMUL, HIDDEN, DIM_FF),
    ROW("ffn_down_shexp.weight", MATRIX, MOE, down, MATMUL, DIM_FF, HIDDEN),
    ROW("ffn_down_exps.scale", VECTOR, MOE_NEVER, expert_scale, 0, DIM_EXPERTS),
    ROW("attn_q.scale", SCALE, NEVER, out_gate, 0, DIM_ONE),
    SCALES("attn_qkv", q, DIM_ONE),
    SCALES("attn_gate", out_gate, DIM_ONE),
    SCALES("ssm_alpha", alpha, DIM_ONE),
    SCALES("ssm_beta", beta, DIM_ONE),
    SCALES("ssm_out", o, DIM_ONE),
    SCALES("ffn_gate_shexp", gate, DIM_ONE),
    SCALES("ffn_up_shexp", up, DIM_ONE),
    SCALES("ffn_down_shexp", down, DIM_ONE),
};

static bool has_ops(const weft_kernels *kernels) {
  return kernels->delta_rule != NULL;
}

weft_status qwen35_load(weft_model *model, weights_loader *loader) {
  weft_status status = model_check_place(model, loader, has_ops, "the delta rule");
  if (status != WEFT_OK) return status;
  return llama_load_rows(model, loader, layer_rows, sizeof layer_rows / sizeof *layer_rows);
}

weft_status qwen35_load_nextn(weft_model *model, weights_loader *loader) {
  weft_status status = rope_load(loader);
  if (status == WEFT_OK) status = WEIGHTS_LOAD(loader, layer_rows, 0, &model->layers[0]);
  if (status == WEFT_OK) status = WEIGHTS_LOAD(loader, scale_rows, 0, &model->layers[0]);
  return status == WEFT_OK
             ? weights_load_experts(loader, expert_rows, sizeof expert_rows / sizeof *expert_rows, expert_scale_rows,
                                    sizeof expert_scale_rows / sizeof *expert_scale_rows)
             : status;
}

/* ---- forward ---- */

/* s->y = sigmoid(shared_gate h) * s->y, the MLP beside the experts; without such a gate as it is. The gate's product is
 * there already where it was made with the router's (compute_experts). */
static weft_status gate_shared(model_step *step, const model_layer *layer) {
  const model_scratch *s = &step->part->scratch;
  const weft_weight *weight = &layer->shared_gate;
  float *y = s->shared_gate;
  const uint32_t n_hidden = step->model->hyper.n_hidden;
  if (weight->data == NULL) return WEFT_OK;
  weft_gate_args args = {.g = y,
                         .u = s->y,
                         .y = s->y,
                         .n_rows = step->n_rows,
                         .n_cols = n_hidden,
                         .g_stride = 1,
                         .u_stride = n_hidden,
                         .y_stride = n_hidden,
                         .activation = WEFT_SIGMOID,
                         .one_g = true};
  weft_status status = WEFT_OK;
  if (!layers_joins_router(step->model, layer, weight))
    status = layers_matmul(step, step->h, step->n_rows, 1, &weight, &y);
  return status == WEFT_OK ? weft_gate(step->part->device, &args) : status;
}

/* Experts into s->t, the MLP beside them into s->y. */
static weft_status compute_experts(model_step *step, const model_layer *layer) {
  const model_scratch *s = &step->part->scratch;
  const layers_mlp_args shared = layers_mlp_of(layer, step->h, WEFT_ROWS_F32, s->y, step->n_rows);
  layers_experts_args experts = {.routed = step->h, .x = step->h, .out = s->t, .shared = &shared};
  if (layers_joins_router(step->model, layer, &layer->shared_gate))
    experts.with_router = &layer->shared_gate, experts.with_router_out = s->shared_gate;
  weft_status status = layers_experts(step, layer, &experts);
  return status == WEFT_OK ? gate_shared(step, layer) : status;
}

weft_status qwen35_layer_after(model_step *step, uint32_t l, weft_status status) {
  const weft_model *model = step->model;
  const model_scratch *s = &step->part->scratch;
  const model_layer *layer = &model->layers[l];
  bool moe = model->hyper.moe[l];
  if (status != WEFT_OK || step->n_rows == 0) return status;
  status = layers_output(step, layer, s->t);
  if (status != WEFT_OK) return status;
  layers_norm_args sum = {.x = step->x, .x2 = s->t, .y = step->x, .n_rows = step->n_own, .plain = true};
  layers_norm_args attended = sum;
  attended.n_then = 1;
  attended.then_weight[0] = layer->ffn_norm;
  attended.then[0] = step->h;
  if (!moe) attended.then_form[0] = layers_mlp_form(step, l);
  status = layers_norm(step, &attended);
  if (status != WEFT_OK) return status;
  status = moe ? compute_experts(step, layer) : layers_dense(step, layer, attended.then_form[0], s->t);
  if (status != WEFT_OK) return status;
  sum.x = sum.y = step->x;
  if (moe) sum.add = s->y;
  layers_then_next(step, l, &sum);
  return layers_norm(step, &sum);
}

weft_status qwen35_layer(model_step *step, uint32_t l) {
  bool is_delta = step->model->hyper.delta.layer[l];
  return qwen35_layer_after(step, l, is_delta ? layers_delta(step, l) : layers_attention(step, l));
}
