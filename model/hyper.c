/* SPDX-License-Identifier: MIT */
#include "model/hyper.h"

#include <inttypes.h>
#include <stdio.h>

enum { HIDDEN_MAX = 1 << 17, FF_MAX = 1 << 20, HEADS_MAX = 4096, EXPERTS_MAX = 4096 };

weft_status hyper_refuse_if_set(const model_keys *keys, const char *name, const char *what) {
  uint32_t value;
  weft_status status = model_keys_u32_or(keys, name, 0, UINT32_MAX, 0, &value);
  if (status != WEFT_OK || value == 0) return status;
  return weft_fail(keys->error, WEFT_E_UNSUPPORTED, "%s: key '%s%s' is %" PRIu32 ": %s are not supported",
                   weft_gguf_path(keys->gguf), keys->arch, name, value, what);
}

weft_status hyper_refuse_each(const model_keys *keys, const char *const (*names)[2], uint32_t n) {
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < n && status == WEFT_OK; i++) status = hyper_refuse_if_set(keys, names[i][0], names[i][1]);
  return status;
}

weft_status hyper_check_per_layer(const model_keys *keys, const model_hyper *hyper, const char *name) {
  uint64_t n = model_keys_count(keys, name);
  if (n <= 1 || n == hyper->n_layers) return WEFT_OK;
  return weft_fail(keys->error, WEFT_E_FORMAT, "%s: key '%s%s' has %" PRIu64 " elements for %" PRIu32 " layers",
                   weft_gguf_path(keys->gguf), keys->arch, name, n, hyper->n_layers);
}

weft_status hyper_check_head_dim(const model_keys *keys, const char *name, uint32_t head_dim) {
  if (head_dim % 8 == 0) return WEFT_OK;
  return weft_fail(keys->error, WEFT_E_UNSUPPORTED, "%s: key '%s%s' is %" PRIu32 "; a multiple of 8 is needed",
                   weft_gguf_path(keys->gguf), keys->arch, name, head_dim);
}

weft_status hyper_check_same(const model_keys *keys, const char *name, uint32_t wanted) {
  uint32_t same;
  weft_status status = model_keys_u32_or(keys, name, 0, UINT32_MAX, wanted, &same);
  if (status != WEFT_OK || same == wanted) return status;
  return weft_fail(keys->error, WEFT_E_UNSUPPORTED,
                   "%s: key '%s%s' is %" PRIu32 ", which differs from key_length %" PRIu32, weft_gguf_path(keys->gguf),
                   keys->arch, name, same, wanted);
}

weft_status hyper_read_sizes(const model_keys *keys, model_hyper *hyper) {
  weft_status status = model_keys_u32(keys, ".block_count", 1, WEFT_LAYERS_MAX, &hyper->n_layers);
  if (status == WEFT_OK) status = model_keys_u32(keys, ".context_length", 1, 1 << 30, &hyper->context_length);
  if (status == WEFT_OK) status = model_keys_u32(keys, ".embedding_length", 1, HIDDEN_MAX, &hyper->n_hidden);
  if (status == WEFT_OK) status = model_keys_f32(keys, ".attention.layer_norm_rms_epsilon", 0, 1, &hyper->eps);
  return status;
}

weft_status hyper_read_heads(const model_keys *keys, model_hyper *hyper, bool kv_is_optional) {
  static const char *const kv_name = ".attention.head_count_kv";
  weft_status status = model_keys_u32(keys, ".attention.head_count", 1, HEADS_MAX, &hyper->n_heads);
  if (status == WEFT_OK) status = hyper_check_per_layer(keys, hyper, kv_name);
  bool is_absent = kv_is_optional && model_keys_count(keys, kv_name) == 0;
  for (uint32_t l = 0; status == WEFT_OK && l < hyper->n_layers; l++) {
    hyper->n_kv_heads[l] = hyper->n_heads;
    hyper->n_kv_shares[l] = 1;
    if (!is_absent) status = model_keys_u32_at(keys, kv_name, l, 1, HEADS_MAX, &hyper->n_kv_heads[l]);
    if (status == WEFT_OK && hyper->n_heads % hyper->n_kv_heads[l] != 0) {
      return weft_fail(keys->error, WEFT_E_FORMAT,
                       "%s: layer %" PRIu32 ": %" PRIu32 " heads do not share %" PRIu32 " key heads evenly",
                       weft_gguf_path(keys->gguf), l, hyper->n_heads, hyper->n_kv_heads[l]);
    }
  }
  return status;
}

weft_status hyper_read_head_dim(const model_keys *keys, model_hyper *hyper) {
  static const char *const name = ".attention.key_length";
  uint32_t head_dim;
  if (model_keys_count(keys, name) == 0 && hyper->n_hidden % hyper->n_heads != 0) {
    return weft_fail(keys->error, WEFT_E_FORMAT,
                     "%s: key '%s%s' is missing, and %" PRIu32 " heads do not share a width of %" PRIu32 " evenly",
                     weft_gguf_path(keys->gguf), keys->arch, name, hyper->n_heads, hyper->n_hidden);
  }
  weft_status status =
      model_keys_u32_or(keys, name, 8, HYPER_HEAD_DIM_MAX, hyper->n_hidden / hyper->n_heads, &head_dim);
  if (status == WEFT_OK && (head_dim < 8 || head_dim > HYPER_HEAD_DIM_MAX)) {
    return weft_fail(keys->error, WEFT_E_UNSUPPORTED, "%s: heads of %" PRIu32 "; 8 to %d are supported",
                     weft_gguf_path(keys->gguf), head_dim, HYPER_HEAD_DIM_MAX);
  }
  if (status == WEFT_OK) status = hyper_check_same(keys, ".attention.value_length", head_dim);
  if (status == WEFT_OK) status = hyper_check_same(keys, ".rope.dimension_count", head_dim);
  if (status == WEFT_OK) status = hyper_check_head_dim(keys, name, head_dim);
  for (uint32_t l = 0; status == WEFT_OK && l < hyper->n_layers; l++) hyper->head_dim[l] = head_dim;
  return status;
}

weft_status hyper_read_rotated(const model_keys *keys, model_hyper *hyper) {
  uint32_t head_dim = 0;
  weft_status status = model_keys_u32(keys, ".attention.key_length", 8, HYPER_HEAD_DIM_MAX, &head_dim);
  if (status == WEFT_OK) status = hyper_check_same(keys, ".attention.value_length", head_dim);
  if (status == WEFT_OK) status = hyper_check_head_dim(keys, ".attention.key_length", head_dim);
  if (status == WEFT_OK) status = model_keys_u32(keys, ".rope.dimension_count", 2, head_dim, &hyper->n_rotated);
  if (status == WEFT_OK && hyper->n_rotated % 2 != 0) {
    return weft_fail(keys->error, WEFT_E_UNSUPPORTED,
                     "%s: key '%s.rope.dimension_count' is %" PRIu32 "; elements of a head rotate in pairs",
                     weft_gguf_path(keys->gguf), keys->arch, hyper->n_rotated);
  }
  for (uint32_t l = 0; status == WEFT_OK && l < hyper->n_layers; l++) hyper->head_dim[l] = head_dim;
  return status;
}

weft_status hyper_leave_out_nextn(const model_keys *keys, model_hyper *hyper) {
  uint32_t n = 0;
  weft_status status = model_keys_u32_or(keys, ".nextn_predict_layers", 0, hyper->n_layers - 1, 0, &n);
  hyper->n_layers -= n;
  hyper->n_layers_left_out = n;
  return status;
}

weft_status hyper_read_windows(const model_keys *keys, model_hyper *hyper, uint32_t period_or) {
  static const char *const name = ".attention.sliding_window_pattern";
  uint32_t window, period = period_or;
  weft_status status = model_keys_u32(keys, ".attention.sliding_window", 1, 1 << 30, &window);
  if (status == WEFT_OK) status = hyper_check_per_layer(keys, hyper, name);
  if (status != WEFT_OK) return status;
  uint64_t n = model_keys_count(keys, name);
  bool is_scalar = n <= 1;
  if (n == 1 || (n == 0 && period_or == 0)) status = model_keys_u32(keys, name, 1, WEFT_LAYERS_MAX, &period);
  for (uint32_t l = 0; status == WEFT_OK && l < hyper->n_layers; l++) {
    uint32_t sliding = is_scalar ? (l + 1) % period != 0 : 0;
    if (!is_scalar) status = model_keys_u32_at(keys, name, l, 0, 1, &sliding);
    hyper->window[l] = sliding ? window : 0;
  }
  return status;
}

/* ---- feed-forward ---- */

weft_status hyper_read_ff(const model_keys *keys, model_hyper *hyper) {
  static const char *const name = ".feed_forward_length";
  weft_status status = hyper_check_per_layer(keys, hyper, name);
  for (uint32_t l = 0; status == WEFT_OK && l < hyper->n_layers; l++) {
    status = model_keys_u32_at(keys, name, l, 1, FF_MAX, &hyper->n_ff[l]);
  }
  return status;
}

static bool layer_has(const weft_gguf *gguf, uint32_t layer, const char *rest) {
  char name[96];
  (void)snprintf(name, sizeof name, "blk.%" PRIu32 ".%s.weight", layer, rest);
  return weft_gguf_tensor_find(gguf, name) != NULL;
}

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

weft_status hyper_read_experts(const model_keys *keys, model_hyper *hyper, uint32_t width_or) {
  weft_status status = model_keys_u32_or(keys, ".expert_count", 0, EXPERTS_MAX, 0, &hyper->n_experts);
  if (status == WEFT_OK) status = find_moe_layers(keys, hyper);
  if (status != WEFT_OK || hyper->n_experts == 0) return status;
  status = model_keys_u32(keys, ".expert_used_count", 1, hyper->n_experts, &hyper->n_experts_used);
  if (status != WEFT_OK) return status;
  if (width_or > 0)
    return model_keys_u32_or(keys, ".expert_feed_forward_length", 1, FF_MAX, width_or, &hyper->n_expert_ff);
  return model_keys_u32(keys, ".expert_feed_forward_length", 1, FF_MAX, &hyper->n_expert_ff);
}

weft_status hyper_read_shared_experts(const model_keys *keys, model_hyper *hyper) {
  uint32_t n_shared = 0, n_dense = 0;
  bool any = false;
  for (uint32_t l = 0; l < hyper->n_layers; l++) any = any || hyper->moe[l];
  weft_status status = model_keys_u32_or(keys, ".leading_dense_block_count", 0, UINT32_MAX, 0, &n_dense);
  if (status == WEFT_OK && any) status = model_keys_u32(keys, ".expert_shared_count", 1, 1024, &n_shared);
  for (uint32_t l = 0; l < hyper->n_layers + hyper->n_layers_left_out; l++)
    if (hyper->moe[l]) hyper->n_ff[l] = n_shared * hyper->n_expert_ff;
  for (uint32_t l = 0; l < hyper->n_layers && status == WEFT_OK; l++) {
    if (hyper->moe[l] == (l >= n_dense)) continue;
    status = weft_fail(keys->error, WEFT_E_FORMAT,
                       "%s: tensor 'blk.%" PRIu32
                       ".ffn_gate_inp.weight' is %s, and key '%s.leading_dense_block_count' "
                       "is %" PRIu32,
                       weft_gguf_path(keys->gguf), l, hyper->moe[l] ? "there" : "missing", keys->arch, n_dense);
  }
  return status;
}

/* How many groups of experts there are, and how many of them are used; one is none. */
static weft_status read_groups(const model_keys *keys, model_hyper *hyper) {
  static const char *const name = ".expert_group_count";
  model_choice *choice = &hyper->choice;
  uint32_t n = 0, n_used = 0, least = choice->scores == WEFT_SCORES_SOFTMAX ? 1 : 2;
  weft_status status = model_keys_u32_or(keys, name, 0, UINT32_MAX, 0, &n);
  if (status != WEFT_OK || n < 2) return status;
  if (n > WEFT_ASSIGN_GROUPS_MAX || hyper->n_experts % n != 0 || hyper->n_experts / n < least)
    return weft_fail(keys->error, WEFT_E_UNSUPPORTED,
                     "%s: key '%s%s' is %" PRIu32 "; at most %d groups that share %" PRIu32
                     " experts evenly are supported",
                     weft_gguf_path(keys->gguf), keys->arch, name, n, WEFT_ASSIGN_GROUPS_MAX, hyper->n_experts);
  status = model_keys_u32(keys, ".expert_group_used_count", 1, n, &n_used);
  if (status == WEFT_OK && hyper->n_experts_used > n_used * (hyper->n_experts / n))
    return weft_fail(keys->error, WEFT_E_FORMAT,
                     "%s: key '%s.expert_group_used_count' is %" PRIu32 ": such groups have fewer than %" PRIu32
                     " experts",
                     weft_gguf_path(keys->gguf), keys->arch, n_used, hyper->n_experts_used);
  choice->n_groups = n, choice->n_groups_used = n_used;
  return status;
}

weft_status hyper_read_choice(const model_keys *keys, model_hyper *hyper, weft_expert_scores scores_or) {
  enum { GATING_SOFTMAX = 1, GATING_SIGMOID = 2 };
  static const char *const name = ".expert_gating_func";
  model_choice *choice = &hyper->choice;
  uint32_t gating = 0, renorms = 0;
  weft_status status = model_keys_u32_or(keys, name, 0, UINT32_MAX, 0, &gating);
  if (status != WEFT_OK) return status;
  if (gating > GATING_SIGMOID)
    return weft_fail(keys->error, WEFT_E_UNSUPPORTED,
                     "%s: key '%s%s' is %" PRIu32 "; scores by a softmax (1) or a sigmoid (2) are supported",
                     weft_gguf_path(keys->gguf), keys->arch, name, gating);
  choice->scores = gating == 0 ? scores_or : gating == GATING_SIGMOID ? WEFT_SCORES_SIGMOID : WEFT_SCORES_SOFTMAX;
  status = model_keys_u32_or(keys, ".expert_weights_norm", 0, 1, 0, &renorms);
  choice->as_scored = renorms == 0;
  if (status == WEFT_OK) status = model_keys_f32_or(keys, ".expert_weights_scale", -1e6, 1e6, 1.0f, &choice->factor);
  if (choice->factor == 0.0f) choice->factor = 1.0f; /* so says a file that scales nothing */
  return status == WEFT_OK ? read_groups(keys, hyper) : status;
}
