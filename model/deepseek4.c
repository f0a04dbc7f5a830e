/* SPDX-License-Identifier: MIT */
/* DeepSeek-V4: a residual stream of several parts (kernels/streams.h), attention over latent rows (kernels/latent.h),
 * and experts beside an MLP that every row takes. Of its layers some see a window alone; others see far rows beside it,
 * for each 4 positions, of which an index chooses some, or for each 128. The experts of the first layers are chosen by
 * a table of tokens.
 *
 * What files have, by llama.cpp's converter: one matrix for all groups of heads, matrices of values and scores that far
 * and index rows are made of, a table in I32. A layer behind the others guesses
 * tokens ahead (nextn): it may draft (nextn.h), with a mixer of its own before the head where the file has one, and
 * else it is not computed. Where the sources differ: what is kept is not rounded to 8 or 4 bits on its way, as the
 * model's own program does (transformers and llama.cpp do not either); the sum of a row's scores of experts is bounded
 * as in transformers; the MLP beside the experts has limits as they have (transformers, llama.cpp). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "model/hyper.h"
#include "model/layers.h"
#include "model/models.h"
#include "model/rope.h"
#include "model/tensor_rows.h"

/* ---- keys ---- */

enum { GATING_SQRT_SOFTPLUS = 4, RANK_MAX = 1 << 16, HEADS_MAX = 4096 };

static weft_status refuse_key(const model_keys *keys, const char *name, uint32_t value, const char *what) {
  return weft_fail(keys->error, WEFT_E_UNSUPPORTED, "%s: key '%s%s' is %" PRIu32 "; %s", weft_gguf_path(keys->gguf),
                   keys->arch, name, value, what);
}

/* What has one value that is computed; of groups of experts none and one are the same. */
static weft_status read_fixed(const model_keys *keys) {
  static const struct {
    const char *name;
    uint32_t value, otherwise; /* otherwise: where the key is missing */
    bool or_none;
    const char *what;
  } fixed[] = {
      {".attention.head_count_kv", 1, 0, false, "one vector for each position is needed"},
      {".expert_gating_func", GATING_SQRT_SOFTPLUS, 0, false, "scores by the root of softplus (4) are needed"},
      {".expert_weights_norm", 1, 0, false, "weights of experts with a sum of 1 are needed"},
      {".expert_group_count", 1, 1, true, "groups of experts are not supported"},
      {".expert_group_used_count", 1, 1, true, "groups of experts are not supported"},
  };
  for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
    uint32_t value = 0;
    weft_status status = fixed[i].otherwise == 0
                             ? model_keys_u32(keys, fixed[i].name, 0, UINT32_MAX, &value)
                             : model_keys_u32_or(keys, fixed[i].name, 0, UINT32_MAX, fixed[i].otherwise, &value);
    if (status != WEFT_OK) return status;
    bool right = value == fixed[i].value || (fixed[i].or_none && value == 0);
    if (!right) return refuse_key(keys, fixed[i].name, value, fixed[i].what);
  }
  return WEFT_OK;
}

/* The layer behind the others is not computed: where its tensors are there, there is one layer fewer. */
weft_status deepseek4_leave_out_nextn(const model_keys *keys, model_hyper *hyper) {
  static const char *const probes[] = {"eh_proj", "enorm"};
  char name[64];
  uint32_t n = 0;
  weft_status status = model_keys_u32_or(keys, ".nextn_predict_layers", 0, hyper->n_layers - 1, 0, &n);
  for (uint32_t i = 0; i < 2 && status == WEFT_OK && n > 0; i++) {
    (void)snprintf(name, sizeof name, "blk.%" PRIu32 ".nextn.%s.weight", hyper->n_layers - n, probes[i]);
    if (weft_gguf_tensor_find(keys->gguf, name) != NULL) hyper->n_layers_left_out = n;
  }
  hyper->n_layers -= hyper->n_layers_left_out;
  return status;
}

/* Of the first layer that is left out; where a list ends before it, it is as the last one. */
static weft_status read_nextn(const model_keys *keys, model_hyper *hyper) {
  static const char *const ratios = ".attention.compress_ratios";
  const uint32_t l = hyper->n_layers;
  model_latent *latent = &hyper->latent;
  if (hyper->n_layers_left_out == 0) return WEFT_OK;
  hyper->head_dim[l] = hyper->head_dim[0];
  hyper->n_kv_heads[l] = hyper->n_kv_heads[0];
  hyper->window[l] = hyper->window[0];
  hyper->n_ff[l] = hyper->n_ff[0];
  hyper->moe[l] = true;
  latent->limit[l] = latent->limit[l - 1];
  latent->shared_limit[l] = latent->shared_limit[l - 1];
  if (model_keys_count(keys, ratios) <= l) return WEFT_OK;
  return model_keys_u32_at(keys, ratios, l, 0, UINT32_MAX, &latent->ratio[l]);
}

/* A list of at least as many numbers as there are layers: it may have those of the layers that are left out. */
weft_status deepseek4_check_listed(const model_keys *keys, const model_hyper *hyper, const char *name,
                                   bool may_be_one) {
  uint64_t n = model_keys_count(keys, name);
  if (n >= hyper->n_layers || n == 0 || (may_be_one && n == 1)) return WEFT_OK;
  return weft_fail(keys->error, WEFT_E_FORMAT, "%s: key '%s%s' has %" PRIu64 " elements for %" PRIu32 " layers",
                   weft_gguf_path(keys->gguf), keys->arch, name, n, hyper->n_layers);
}

static weft_status read_ratios(const model_keys *keys, model_hyper *hyper) {
  static const char *const name = ".attention.compress_ratios";
  weft_status status = deepseek4_check_listed(keys, hyper, name, false);
  for (uint32_t l = 0; l < hyper->n_layers && status == WEFT_OK; l++) {
    uint32_t *ratio = &hyper->latent.ratio[l];
    status = model_keys_u32_at(keys, name, l, 0, UINT32_MAX, ratio);
    if (status == WEFT_OK && *ratio != 0 && *ratio != MODEL_LATENT_OVERLAPS && *ratio != WEFT_LATENT_RATIO_MAX)
      return refuse_key(keys, name, *ratio, "rows for each 4 or 128 positions are supported, and 0 for none");
    hyper->latent.source[l] = *ratio > 0 ? l + 1 : 0;
    hyper->latent.chooses[l] = *ratio == MODEL_LATENT_OVERLAPS;
  }
  return status;
}

static weft_status read_limits(const model_keys *keys, model_hyper *hyper) {
  static const char *const own = ".swiglu_clamp_exp", *const beside = ".swiglu_clamp_shexp";
  const char *shared = model_keys_count(keys, beside) > 0 ? beside : own;
  weft_status status = deepseek4_check_listed(keys, hyper, own, true);
  if (status == WEFT_OK) status = deepseek4_check_listed(keys, hyper, shared, true);
  for (uint32_t l = 0; l < hyper->n_layers && status == WEFT_OK; l++) {
    status = model_keys_f32_at(keys, own, l, 1e-6, 1e6, &hyper->latent.limit[l]);
    if (status == WEFT_OK) status = model_keys_f32_at(keys, shared, l, 1e-6, 1e6, &hyper->latent.shared_limit[l]);
  }
  return status;
}

static weft_status read_heads(const model_keys *keys, model_hyper *hyper) {
  model_latent *latent = &hyper->latent;
  uint32_t head_dim = 0, window = 0;
  weft_status status = hyper_read_heads(keys, hyper, false);
  if (status == WEFT_OK) status = model_keys_u32(keys, ".attention.key_length", 8, HYPER_HEAD_DIM_MAX, &head_dim);
  if (status == WEFT_OK) status = hyper_check_head_dim(keys, ".attention.key_length", head_dim);
  if (status == WEFT_OK) status = hyper_check_same(keys, ".attention.value_length", head_dim);
  if (status == WEFT_OK) status = model_keys_u32(keys, ".attention.sliding_window", 1, 1 << 20, &window);
  if (status == WEFT_OK) status = model_keys_u32(keys, ".rope.dimension_count", 2, head_dim, &latent->n_rotated);
  if (status == WEFT_OK && latent->n_rotated % 2 != 0)
    return refuse_key(keys, ".rope.dimension_count", latent->n_rotated, "numbers rotate in pairs");
  for (uint32_t l = 0; status == WEFT_OK && l < hyper->n_layers; l++) {
    hyper->head_dim[l] = head_dim;
    hyper->window[l] = window;
  }
  return status;
}

static weft_status read_products(const model_keys *keys, model_hyper *hyper) {
  model_latent *latent = &hyper->latent;
  static const char *const groups = ".attention.output_group_count", *const index = ".attention.indexer.key_length";
  weft_status status = model_keys_u32(keys, ".attention.q_lora_rank", 1, RANK_MAX, &latent->q_rank);
  if (status == WEFT_OK) status = model_keys_u32(keys, groups, 1, MODEL_LATENT_GROUPS_MAX, &latent->n_groups);
  if (status == WEFT_OK && hyper->n_heads % latent->n_groups != 0)
    return refuse_key(keys, groups, latent->n_groups, "a number that divides that of heads is needed");
  if (status == WEFT_OK) status = model_keys_u32(keys, ".attention.output_lora_rank", 1, RANK_MAX, &latent->out_rank);
  if (status == WEFT_OK)
    status = model_keys_u32(keys, ".attention.indexer.head_count", 1, HEADS_MAX, &latent->n_index_heads);
  if (status == WEFT_OK) status = model_keys_u32(keys, index, 8, HYPER_HEAD_DIM_MAX, &latent->index_dim);
  if (status == WEFT_OK && latent->index_dim % 8 != 0)
    return refuse_key(keys, index, latent->index_dim, "a multiple of 8 is needed");
  if (status == WEFT_OK && latent->index_dim < latent->n_rotated)
    return refuse_key(keys, index, latent->index_dim, "at least rope.dimension_count numbers are needed");
  if (status == WEFT_OK) status = model_keys_u32(keys, ".attention.indexer.top_k", 1, RANK_MAX, &latent->top_k);
  return status;
}

static weft_status read_streams(const model_keys *keys, model_hyper *hyper) {
  model_latent *latent = &hyper->latent;
  weft_status status = model_keys_u32(keys, ".hyper_connection.count", 1, WEFT_STREAMS_MAX, &latent->n_streams);
  if (status == WEFT_OK)
    status = model_keys_u32(keys, ".hyper_connection.sinkhorn_iterations", 1, 1000, &latent->n_rounds);
  if (status == WEFT_OK) status = model_keys_f32(keys, ".hyper_connection.epsilon", 0, 1, &latent->floor);
  return status;
}

static weft_status read_experts(const model_keys *keys, model_hyper *hyper) {
  uint32_t n_shared = 0;
  weft_status status = hyper_read_experts(keys, hyper, 0);
  if (status == WEFT_OK) status = model_keys_u32(keys, ".expert_shared_count", 1, 1024, &n_shared);
  if (status == WEFT_OK) status = model_keys_f32(keys, ".expert_weights_scale", -1e6, 1e6, &hyper->choice.factor);
  for (uint32_t l = 0; l < hyper->n_layers && status == WEFT_OK; l++) {
    hyper->n_ff[l] = n_shared * hyper->n_expert_ff;
    if (!hyper->moe[l])
      return weft_fail(keys->error, WEFT_E_FORMAT,
                       "%s: tensor 'blk.%" PRIu32
                       ".ffn_gate_inp.weight' is missing; a %s "
                       "model needs it",
                       weft_gguf_path(keys->gguf), l, keys->arch);
  }
  return status;
}

weft_status deepseek4_read_common(const model_keys *keys, model_hyper *hyper) {
  weft_status status = read_fixed(keys);
  if (status == WEFT_OK) status = read_heads(keys, hyper);
  if (status == WEFT_OK) status = read_products(keys, hyper);
  if (status == WEFT_OK) status = read_streams(keys, hyper);
  if (status == WEFT_OK) status = read_experts(keys, hyper);
  if (status == WEFT_OK) status = read_limits(keys, hyper);
  if (status == WEFT_OK) status = model_keys_f32(keys, ".rope.freq_base", 1, 1e12, &hyper->rope_base);
  if (status == WEFT_OK)
    status = model_keys_f32(keys, ".attention.compress_rope_freq_base", 1, 1e12, &hyper->latent.rope_base_far);
  if (status == WEFT_OK) status = rope_read_scaling(keys, hyper, false);
  if (status != WEFT_OK) return status;
  hyper->choice.scores = WEFT_SCORES_ROOT;
  hyper->attention_scale = 1.0f / sqrtf((float)hyper->head_dim[0]); /* yarn's factor of scores is not this model's */
  hyper->activation = WEFT_SILU;
  hyper->embed_scale = 1.0f;
  return WEFT_OK;
}

weft_status deepseek4_read(const weft_gguf *gguf, model_hyper *hyper, weft_error *error) {
  model_keys keys = {gguf, hyper->arch, error};
  weft_status status = hyper_read_sizes(&keys, hyper);
  if (status == WEFT_OK) status = deepseek4_leave_out_nextn(&keys, hyper);
  if (status == WEFT_OK) status = deepseek4_read_common(&keys, hyper);
  if (status == WEFT_OK) status = read_ratios(&keys, hyper);
  if (status == WEFT_OK)
    status = model_keys_u32(&keys, ".hash_layer_count", 0, hyper->n_layers - 1, &hyper->latent.n_hashed);
  return status == WEFT_OK ? read_nextn(&keys, hyper) : status;
}

/* ---- tensors ---- */

static const tensor_row stream_rows[] = {
    TENSOR_ROW_AT_END(model_globals, "output_hc_fn.weight", MATRIX, ALWAYS, out_mixes, MATMUL, DIM_STREAM, DIM_PARTS),
    TENSOR_ROW_AT_END(model_globals, "output_hc_base.weight", VECTOR, ALWAYS, out_base, 0, DIM_PARTS),
    TENSOR_ROW_AT_END(model_globals, "output_hc_scale.weight", VECTOR, ALWAYS, out_scale, 0, DIM_ONE),
};

/* Of each layer of V4 and of V4.1. */
static const tensor_row common_rows[] = {
    ROW("hc_attn_fn.weight", MATRIX, ALWAYS, latent.attn_mixes, MATMUL, DIM_STREAM, DIM_MIXES),
    ROW("hc_attn_base.weight", VECTOR, ALWAYS, latent.attn_base, 0, DIM_MIXES),
    ROW("hc_attn_scale.weight", VECTOR, ALWAYS, latent.attn_scale, 0, DIM_MIX_SCALES),
    ROW("hc_ffn_fn.weight", MATRIX, ALWAYS, latent.ffn_mixes, MATMUL, DIM_STREAM, DIM_MIXES),
    ROW("hc_ffn_base.weight", VECTOR, ALWAYS, latent.ffn_base, 0, DIM_MIXES),
    ROW("hc_ffn_scale.weight", VECTOR, ALWAYS, latent.ffn_scale, 0, DIM_MIX_SCALES),
    ROW("attn_norm.weight", VECTOR, ALWAYS, attn_norm, 0, HIDDEN),
    ROW("attn_q_a.weight", MATRIX, ALWAYS, latent.q_a, MATMUL, HIDDEN, DIM_Q_RANK),
    ROW("attn_q_a_norm.weight", VECTOR, ALWAYS, latent.q_a_norm, 0, DIM_Q_RANK),
    ROW("attn_q_b.weight", MATRIX, ALWAYS, latent.q_b, MATMUL, DIM_Q_RANK, DIM_Q),
    ROW("attn_kv.weight", MATRIX, ALWAYS, latent.kv, MATMUL, HIDDEN, DIM_HEAD),
    ROW("attn_kv_a_norm.weight", VECTOR, ALWAYS, latent.kv_norm, 0, DIM_HEAD),
    ROW("attn_sinks.weight", VECTOR, ALWAYS, sinks, 0, DIM_HEADS),
    ROW("attn_output_a.weight", GROUPS, ALWAYS, latent.out_a, MATMUL, DIM_GROUP_HEADS, DIM_GROUPS_RANK),
    ROW("attn_output_b.weight", MATRIX, ALWAYS, o, MATMUL, DIM_GROUPS_RANK, HIDDEN),
    ROW("ffn_norm.weight", VECTOR, ALWAYS, ffn_norm, 0, HIDDEN),
    ROW("ffn_gate_inp.weight", MATRIX, ALWAYS, router, MATMUL, HIDDEN, DIM_EXPERTS),
    ROW("exp_probs_b.bias", VECTOR, CHOICE, choice_bias, 0, DIM_EXPERTS),
    ROW("ffn_gate_shexp.weight", MATRIX, ALWAYS, gate, MATMUL, HIDDEN, DIM_FF),
    ROW("ffn_up_shexp.weight", MATRIX, ALWAYS, up, MATMUL, HIDDEN, DIM_FF),
    ROW("ffn_down_shexp.weight", MATRIX, ALWAYS, down, MATMUL, DIM_FF, HIDDEN),
};
static const tensor_row layer_rows[] = {
    ROW("attn_compressor_kv.weight", MATRIX, FAR, latent.far_values, MATMUL, HIDDEN, DIM_PENDING),
    ROW("attn_compressor_gate.weight", MATRIX, FAR, latent.far_scores, MATMUL, HIDDEN, DIM_PENDING),
    ROW("attn_compressor_ape.weight", VECTOR, FAR, latent.far_ape, 0, DIM_PENDING, DIM_RATIO),
    ROW("attn_compressor_norm.weight", VECTOR, FAR, latent.far_norm, 0, DIM_HEAD),
    ROW("indexer.attn_q_b.weight", MATRIX, INDEX, latent.index_q, MATMUL, DIM_Q_RANK, DIM_INDEX_Q),
    ROW("indexer.proj.weight", MATRIX, INDEX, latent.index_weights, MATMUL, HIDDEN, DIM_INDEX_HEADS),
    ROW("indexer_compressor_kv.weight", MATRIX, INDEX, latent.index_values, MATMUL, HIDDEN, DIM_PENDING_INDEX),
    ROW("indexer_compressor_gate.weight", MATRIX, INDEX, latent.index_scores, MATMUL, HIDDEN, DIM_PENDING_INDEX),
    ROW("indexer_compressor_ape.weight", VECTOR, INDEX, latent.index_ape, 0, DIM_PENDING_INDEX, DIM_RATIO),
    ROW("indexer_compressor_norm.weight", VECTOR, INDEX, latent.index_norm, 0, DIM_INDEX),
    ROW("ffn_gate_tid2eid.weight", EXPERT_IDS, HASHED, latent.experts_of, 0, DIM_EXPERTS_USED, DIM_VOCAB),
};

static bool has_ops(const weft_kernels *kernels) {
  return kernels->latent_attend != NULL;
}

/* Layers with far rows have a pace of rotation, and a scaling, of their own. */
static weft_status load_rotation(weft_model *model, weights_loader *loader) {
  const model_hyper *hyper = &model->hyper;
  const uint32_t n = hyper->latent.n_rotated;
  weft_status status = WEFT_OK;
  for (uint32_t p = 0; p < model->n_parts && status == WEFT_OK; p++) {
    model_part *part = &model->part[p];
    weights_at_layer(loader, part->first_layer);
    status = rope_frequencies_of(loader, n, hyper->latent.rope_base_far, &hyper->rope_scaling, &part->inv_freq);
    if (status == WEFT_OK) status = rope_frequencies_of(loader, n, hyper->rope_base, NULL, &part->inv_freq_window);
  }
  return status;
}

weft_status deepseek4_load_expert_stacks(weft_model *model, weights_loader *loader) {
  for (uint32_t l = 0; l < model->hyper.n_layers; l++) {
    model_latent_layer *layer = &model->layers[l].latent;
    layer->limit = model->hyper.latent.limit[l];
    layer->shared_limit = model->hyper.latent.shared_limit[l];
  }
  return weights_load_experts(loader, expert_rows, sizeof expert_rows / sizeof *expert_rows, expert_scale_rows,
                              sizeof expert_scale_rows / sizeof *expert_scale_rows);
}

weft_status deepseek4_load_layer(weights_loader *loader, uint32_t l, const tensor_row *rows, uint32_t n_rows) {
  model_layer *layer = &loader->model->layers[l];
  weft_status status = WEIGHTS_LOAD(loader, common_rows, l, layer);
  return status == WEFT_OK ? weights_load(loader, rows, n_rows, l, layer) : status;
}

static weft_status load_layers(weft_model *model, weights_loader *loader) {
  weft_status status = WEFT_OK;
  for (uint32_t l = 0; status == WEFT_OK && l < model->hyper.n_layers; l++)
    status = deepseek4_load_layer(loader, l, layer_rows, sizeof layer_rows / sizeof *layer_rows);
  return status == WEFT_OK ? deepseek4_load_expert_stacks(model, loader) : status;
}

weft_status deepseek4_load_common(weft_model *model, weights_loader *loader) {
  weft_status status = model_check_place(model, loader, has_ops, "the latent rows");
  if (status == WEFT_OK) status = WEIGHTS_LOAD(loader, global_rows, UINT32_MAX, &model->globals);
  if (status == WEFT_OK) status = weights_output_norm(loader);
  if (status == WEFT_OK && model->globals.output.data == NULL) /* the embedding is no head of such a model */
    status = weft_fail(loader->error, WEFT_E_FORMAT, "%s: tensor 'output.weight' is missing; a %s model needs it",
                       weft_gguf_path(loader->gguf), model->hyper.arch);
  return status == WEFT_OK ? load_rotation(model, loader) : status;
}

weft_status deepseek4_load(weft_model *model, weights_loader *loader) {
  weft_status status = deepseek4_load_common(model, loader);
  if (status == WEFT_OK) status = WEIGHTS_LOAD(loader, stream_rows, UINT32_MAX, &model->globals);
  return status == WEFT_OK ? load_layers(model, loader) : status;
}

static const tensor_row mixer_rows[] = {
    GLOBAL("blk.%u.nextn.hc_head_fn.weight", MATRIX, ALWAYS, out_mixes, MATMUL, DIM_STREAM, DIM_PARTS),
    GLOBAL("blk.%u.nextn.hc_head_base.weight", VECTOR, ALWAYS, out_base, 0, DIM_PARTS),
    GLOBAL("blk.%u.nextn.hc_head_scale.weight", VECTOR, ALWAYS, out_scale, 0, DIM_ONE),
};

/* A mixer of the layer's own, as its makers have it, or that of its model, as in llama.cpp. */
static weft_status load_nextn_mixer(weft_model *model, weights_loader *loader) {
  static const char *const parts[] = {"fn", "base", "scale"};
  const model_globals *of_model = &model->target->globals;
  char name[64];
  for (uint32_t i = 0; i < 3; i++) {
    (void)snprintf(name, sizeof name, "blk.%" PRIu32 ".nextn.hc_head_%s.weight", model->hyper.first_in_file, parts[i]);
    if (weft_gguf_tensor_find(loader->gguf, name) != NULL) return WEIGHTS_LOAD(loader, mixer_rows, 0, &model->globals);
  }
  model->globals.out_mixes = of_model->out_mixes;
  model->globals.out_base = of_model->out_base;
  model->globals.out_scale = of_model->out_scale;
  return WEFT_OK;
}

weft_status deepseek4_load_nextn(weft_model *model, weights_loader *loader) {
  weft_status status = load_nextn_mixer(model, loader);
  if (status == WEFT_OK) status = load_rotation(model, loader);
  return status == WEFT_OK ? load_layers(model, loader) : status;
}

/* ---- forward ---- */

/* Every part of the stream begins as the token's embedding. */
weft_status deepseek4_embed(model_step *step) {
  const weft_model *model = step->model;
  const uint32_t n_hidden = model->hyper.n_hidden;
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < model->hyper.latent.n_streams && status == WEFT_OK; i++) {
    const weft_embed_args args = {.weight = &model->globals.token_embd,
                                  .tokens = step->part->arrays.token,
                                  .y = step->x + (uint64_t)i * n_hidden,
                                  .n_rows = step->n_rows,
                                  .scale = model->hyper.embed_scale,
                                  .y_stride = model_row_width(model)};
    status = weft_embed(step->part->device, &args);
  }
  return status;
}

/* The MLP beside the experts, into s->y. */
static weft_status compute_shared(model_step *step, const model_layer *layer) {
  const model_scratch *s = &step->part->scratch;
  const weft_weight *const in[2] = {&layer->gate, &layer->up}, *down = &layer->down;
  float *const gated[2] = {s->g, s->u};
  float *out = s->y;
  const uint32_t n_ff = layer->gate.n_out;
  const weft_gate_args gate = {.g = s->g,
                               .u = s->u,
                               .y = s->g,
                               .n_rows = step->n_rows,
                               .n_cols = n_ff,
                               .g_stride = n_ff,
                               .u_stride = n_ff,
                               .y_stride = n_ff,
                               .activation = step->model->hyper.activation,
                               .limit = layer->latent.shared_limit};
  weft_status status = layers_matmul(step, step->h, step->n_rows, 2, in, gated);
  if (status == WEFT_OK) status = weft_gate(step->part->device, &gate);
  return status == WEFT_OK ? layers_matmul(step, s->g, step->n_rows, 1, &down, &out) : status;
}

/* Experts and the MLP beside them, into s->t. */
weft_status deepseek4_experts(model_step *step, const model_layer *layer) {
  const model_scratch *s = &step->part->scratch;
  const layers_experts_args experts = {.routed = step->h, .x = step->h, .out = s->t};
  const layers_norm_args sum = {.x = s->t, .x2 = s->y, .y = s->t, .n_rows = step->n_rows, .plain = true};
  weft_status status = compute_shared(step, layer);
  if (status == WEFT_OK) status = layers_experts(step, layer, &experts);
  return status == WEFT_OK ? layers_norm(step, &sum) : status;
}

/* Keeps the stream after the last layer, where the layer that guesses ahead reads it. */
static weft_status keep_stream(const model_step *step) {
  float *to = step->model->features.stream;
  if (to == NULL) return WEFT_OK;
  return weft_device_copy(step->part->device, to, step->x, step->n_rows * model_row_width(step->model) * sizeof *to);
}

weft_status deepseek4_layer(model_step *step, uint32_t l) {
  const weft_model *model = step->model;
  const model_scratch *s = &step->part->scratch;
  const model_layer *layer = &model->layers[l];
  const model_latent_layer *own = &layer->latent;
  bool is_last = l + 1 == model->hyper.n_layers;
  const layers_mix_args attends = {&own->attn_mixes, own->attn_base, own->attn_scale, layer->attn_norm, s->shares,
                                   step->h,          false};
  weft_status status = layers_mix(step, &attends);
  if (status == WEFT_OK) status = layers_latent(step, l, s->t);
  if (status != WEFT_OK || step->n_rows == 0) return status;
  status = layers_spread(step, s->t);
  if (status == WEFT_OK && is_last) status = layers_keep_output_rows(step, 0);
  const layers_mix_args routes = {&own->ffn_mixes, own->ffn_base, own->ffn_scale, layer->ffn_norm,
                                  s->shares,       step->h,       false};
  if (status == WEFT_OK) status = layers_mix(step, &routes);
  if (status == WEFT_OK) status = deepseek4_experts(step, layer);
  if (status == WEFT_OK) status = layers_spread(step, s->t);
  if (status == WEFT_OK && is_last) status = keep_stream(step);
  const model_globals *globals = &model->globals;
  const layers_mix_args ends = {&globals->out_mixes,
                                globals->out_base,
                                globals->out_scale,
                                globals->output_norm,
                                NULL,
                                step->args->hidden,
                                false};
  return status == WEFT_OK && is_last ? layers_mix(step, &ends) : status;
}
