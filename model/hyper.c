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
