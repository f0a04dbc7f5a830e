/* SPDX-License-Identifier: MIT */
/* Opening models from files that differ from a sound one in one fact: each refusal names the key or
 * tensor, what is wrong and what was expected; nothing leaks. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/memory.h"
#include "model/inspect.h"
#include "model/model.h"
#include "model/models.h"
#include "tests/support/edited_model.h"

typedef struct seen {
  uint64_t done, total;
} seen;

static void see(void *self, uint64_t done, uint64_t total) {
  seen *s = self;
  assert_true(done >= s->done && done <= total);
  s->done = done;
  s->total = total;
}

static void test_architecture(void **state) {
  (void)state;
  refused("ar-base", (gguf_edit){.drop_key = "general.architecture"}, WEFT_E_FORMAT,
          "'general.architecture' is missing");
  refused("ar-base", (gguf_edit){.set_string = "general.architecture", .text = "lla\nma"}, WEFT_E_UNSUPPORTED,
          "architecture 'lla?ma' is not supported; take a model of one of these: gemma4");
  refused("ar-base", (gguf_edit){.set_u32 = "general.architecture"}, WEFT_E_FORMAT, "must be a string");
}

static void test_required_keys(void **state) {
  (void)state;
  static const char *const names[] = {"block_count",
                                      "context_length",
                                      "embedding_length",
                                      "feed_forward_length",
                                      "expert_feed_forward_length",
                                      "expert_used_count",
                                      "attention.head_count",
                                      "attention.head_count_kv",
                                      "attention.key_length",
                                      "attention.key_length_swa",
                                      "attention.sliding_window",
                                      "attention.sliding_window_pattern",
                                      "attention.layer_norm_rms_epsilon",
                                      "rope.freq_base"};
  refused_without("ar-base", "gemma4", names, sizeof names / sizeof *names);
}

static void test_bounds(void **state) {
  (void)state;
  static const struct {
    const char *key;
    uint32_t value;
    const char *words;
  } cases[] = {
      {"gemma4.block_count", 0, "is 0; it must be 1..256"},
      {"gemma4.block_count", 1u << 30, "is 1073741824; it must be 1..256"},
      {"gemma4.block_count", 5, "has 4 elements for 5 layers"},
      {"gemma4.context_length", 0, "it must be 1.."},
      {"gemma4.embedding_length", 0, "it must be 1.."},
      {"gemma4.embedding_length", 64, "'token_embd.weight' has shape 32 x 128 x 1 x 1; expected 64 x 128 x 1 x 1"},
      {"gemma4.attention.head_count", 0, "it must be 1.."},
      {"gemma4.attention.head_count", 3, "do not share 2 key heads evenly"},
      {"gemma4.attention.head_count_kv", 0, "it must be 1.."},
      {"gemma4.expert_count", 2, "'blk.0.ffn_gate_inp.weight' has shape"},
      {"gemma4.expert_count", 0, "'gemma4.expert_count' is missing or 0"},
      {"gemma4.expert_used_count", 5, "is 5; it must be 1..4"},
      {"gemma4.expert_used_count", 0, "is 0; it must be 1..4"},
      {"gemma4.attention.sliding_window", 0, "it must be 1.."},
      {"gemma4.attention.sliding_window_pattern", 0, "it must be 1.."},
      {"gemma4.vocab_size", 100, "they must agree"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    refused("ar-base", (gguf_edit){.set_u32 = cases[i].key, .value = cases[i].value}, WEFT_E_FORMAT, cases[i].words);
  }
  refused("dg-base", (gguf_edit){.set_u32 = "diffusion.canvas_length", .value = 4096}, WEFT_E_FORMAT,
          "it must be 1..1024");
  refused("dg-base", (gguf_edit){.set_u32 = "diffusion.eb_max_steps", .value = 0}, WEFT_E_FORMAT, "eb_max_steps");
  refused("dg-base", (gguf_edit){.set_f32 = "diffusion.eb_t_min", .real = 0.9f}, WEFT_E_FORMAT, "eb_");
  refused("ar-base", (gguf_edit){.set_f32 = "gemma4.rope.freq_base", .real = -1.0f}, WEFT_E_FORMAT, "freq_base' is -1");
  refused("ar-base", (gguf_edit){.set_f32 = "gemma4.attention.layer_norm_rms_epsilon", .real = __builtin_nanf("")},
          WEFT_E_FORMAT, "is nan");
}

static void test_unsupported(void **state) {
  (void)state;
  refused("ar-base", (gguf_edit){.set_u32 = "gemma4.attention.value_length", .value = 16}, WEFT_E_UNSUPPORTED,
          "differs from key_length");
  refused("ar-base", (gguf_edit){.set_u32 = "gemma4.rope.dimension_count_swa", .value = 8}, WEFT_E_UNSUPPORTED,
          "differs from key_length");
  refused("dg-base", (gguf_edit){.rename = "blk.0.attn_v.weight", .name = "output.weight"}, WEFT_E_UNSUPPORTED,
          "must tie it to token_embd");
}

static void test_tensors(void **state) {
  (void)state;
  static const char *const needed[] = {"token_embd.weight",
                                       "output_norm.weight",
                                       "rope_freqs.weight",
                                       "blk.1.attn_norm.weight",
                                       "blk.1.attn_q.weight",
                                       "blk.1.attn_k.weight",
                                       "blk.0.attn_v.weight",
                                       "blk.1.attn_output.weight",
                                       "blk.1.attn_q_norm.weight",
                                       "blk.1.attn_k_norm.weight",
                                       "blk.1.post_attention_norm.weight",
                                       "blk.1.ffn_norm.weight",
                                       "blk.1.ffn_gate.weight",
                                       "blk.1.ffn_up.weight",
                                       "blk.1.ffn_down.weight",
                                       "blk.1.post_ffw_norm.weight",
                                       "blk.1.post_ffw_norm_1.weight",
                                       "blk.1.pre_ffw_norm_2.weight",
                                       "blk.1.post_ffw_norm_2.weight",
                                       "blk.1.ffn_gate_inp.weight",
                                       "blk.1.ffn_gate_inp.scale",
                                       "blk.1.ffn_down_exps.weight"};
  for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
    char words[128];
    (void)snprintf(words, sizeof words, "tensor '%s' is missing", needed[i]);
    refused("ar-base", (gguf_edit){.drop_tensor = needed[i]}, WEFT_E_FORMAT, words);
    if (strcmp(needed[i], "token_embd.weight") == 0) continue; /* its rows are the vocabulary */
    (void)snprintf(words, sizeof words, "'%.64s' has shape", needed[i]);
    refused("ar-base", (gguf_edit){.reshape = needed[i]}, WEFT_E_FORMAT, words);
  }
  refused("ar-base", (gguf_edit){.reshape = "token_embd.weight"}, WEFT_E_FORMAT, "127 embeddings, 128 tokens");
  refused("ar-base", (gguf_edit){.drop_tensor = "blk.2.ffn_gate_up_exps.weight"}, WEFT_E_FORMAT,
          "blk.2 needs either ffn_gate_up_exps or both");
  refused("ar-moe-v", (gguf_edit){.drop_tensor = "blk.2.ffn_up_exps.weight"}, WEFT_E_FORMAT, "blk.2 needs either");
  refused("dg-base", (gguf_edit){.drop_tensor = "blk.3.enc_layer_output_scale.weight"}, WEFT_E_FORMAT, "is missing");
  refused("dg-base", (gguf_edit){.drop_tensor = "self_cond_pre_norm.weight"}, WEFT_E_FORMAT, "is missing");
  refused("dg-base", (gguf_edit){.drop_tensor = "self_cond_up.weight"}, WEFT_E_FORMAT, "is missing");
}

static void test_unused_tensors(void **state) {
  (void)state;
  static const char *const names[] = {"blk.1.extra.weight",
                                      "blk.0.attn_v_norm.scale",
                                      "blk.0.none.input_scale",
                                      "blk.1.ffn_gate_exps.scale",
                                      "output.scale",
                                      "token_embd.scale",
                                      "output.bias",
                                      "output_norm.bias",
                                      "token_embd_norm.weight",
                                      "position_embd.weight",
                                      "token_types.weight",
                                      "per_layer_token_embd.weight",
                                      "rope_factors_long.weight",
                                      "rope_factors_short.weight"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char words[96];
    (void)snprintf(words, sizeof words, "tensor '%s' is not used by a gemma4 model", names[i]);
    const gguf_edit e = {.rename = "blk.1.ffn_down_exps.scale", .name = names[i]};
    refused("ar-base", e, WEFT_E_UNSUPPORTED, words);
    limits.unused_tensors = true;
    accepted("ar-base", e, NULL);
    limits.unused_tensors = false;
  }
  accepted("ar-base", (gguf_edit){.rename = "blk.1.ffn_down_exps.scale", .name = "a.blk.0.scale"},
           NULL); /* of an encoder */
}

/* Scales beside matrices: of another shape, of a matrix that is not there, of no numbers; one that lacks is one. */
static void test_scales(void **state) {
  (void)state;
  const gguf_edit lacks[] = {{.drop_tensor = "blk.1.ffn_gate_exps.scale"},
                             {.drop_tensor = "blk.1.ffn_up_exps.input_scale"}};
  for (size_t i = 0; i < sizeof lacks / sizeof *lacks; i++) accepted("ar-nvfp4", lacks[i], NULL);
  accepted("qwen3moe-nvfp4", (gguf_edit){.drop_tensor = "output.scale"}, NULL);
  accepted("qwen3-nvfp4", (gguf_edit){.drop_tensor = "blk.0.attn_q.scale"}, NULL);
  accepted("dg-base", (gguf_edit){.add_scalar = "self_cond_up.input_scale", .real = 0.5f}, NULL);
  refused("dg-base", (gguf_edit){.rename = "blk.1.ffn_down_exps.scale", .name = "self_cond_up.scale"}, WEFT_E_FORMAT,
          "tensor 'self_cond_up.scale' has shape 4 x 1 x 1 x 1; expected 1 x 1 x 1 x 1");
  refused("dg-base", (gguf_edit){.add_scalar = "self_cond_pre_norm.scale", .real = 0.5f}, WEFT_E_UNSUPPORTED,
          "tensor 'self_cond_pre_norm.scale' is not used by a diffusion-gemma model");
  refused("ar-base", (gguf_edit){.add_scalar = "self_cond_up.scale", .real = 0.5f}, WEFT_E_UNSUPPORTED,
          "tensor 'self_cond_up.scale' is not used by a gemma4 model");
  refused("ar-nvfp4", (gguf_edit){.reshape = "blk.1.ffn_gate_exps.scale"}, WEFT_E_FORMAT,
          "tensor 'blk.1.ffn_gate_exps.scale' has shape 3 x 1 x 1 x 1; expected 4 x 1 x 1 x 1");
  refused("ar-nvfp4", (gguf_edit){.reshape = "blk.2.ffn_down_exps.input_scale"}, WEFT_E_FORMAT,
          "tensor 'blk.2.ffn_down_exps.input_scale' has shape 3 x 1 x 1 x 1; expected 4 x 1 x 1 x 1");
  refused("qwen3moe-nvfp4", (gguf_edit){.reshape = "blk.0.ffn_down_exps.scale"}, WEFT_E_FORMAT,
          "'blk.0.ffn_down_exps.scale' has");
  refused("ar-nvfp4", (gguf_edit){.rename = "blk.1.ffn_gate_exps.scale", .name = "blk.0.attn_q.scale"}, WEFT_E_FORMAT,
          "tensor 'blk.0.attn_q.scale' has shape 4 x 1 x 1 x 1; expected 1 x 1 x 1 x 1");
  refused("ar-nvfp4", (gguf_edit){.retype = "blk.1.ffn_gate_exps.scale", .type = 26}, WEFT_E_UNSUPPORTED,
          "tensor 'blk.1.ffn_gate_exps.scale' has type 26 (I32)");
  refused("ar-nvfp4", (gguf_edit){.rename = "blk.1.ffn_up_exps.scale", .name = "blk.1.ffn_gate_up_exps.scale"},
          WEFT_E_UNSUPPORTED, "tensor 'blk.1.ffn_gate_up_exps.scale' is not used by a gemma4 model");
  refused("qwen3-nvfp4", (gguf_edit){.rename = "blk.0.attn_q.scale", .name = "output.scale"}, WEFT_E_UNSUPPORTED,
          "tensor 'output.scale' is not used by a qwen3 model"); /* the head is tied */
}

static void test_types(void **state) {
  (void)state;
  static const char *const names[] = {"blk.0.attn_q.weight",      "blk.3.ffn_down_exps.weight",
                                      "output_norm.weight",       "rope_freqs.weight",
                                      "blk.2.ffn_gate_inp.scale", "blk.1.layer_output_scale.weight"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char words[96];
    (void)snprintf(words, sizeof words, "tensor '%s' has type 26 (I32); use a file", names[i]);
    refused("ar-base", (gguf_edit){.retype = names[i], .type = 26 /* I32 */}, WEFT_E_UNSUPPORTED, words);
  }
  /* a tensor that nothing reads may be of any type */
  accepted("ar-base",
           (gguf_edit){.rename = "blk.1.ffn_down_exps.scale", .name = "mtp.extra", .retype = "mtp.extra", .type = 26},
           NULL);
}

/* Nothing is placed on a device that a file cannot be used with. */
static void test_refused_before_weights_are_read(void **state) {
  (void)state;
  gguf_writer w;
  weft_gguf *gguf = open_edited("ar-base", &(gguf_edit){.drop_tensor = "blk.3.ffn_down_exps.weight"}, &w);
  weft_device *device = open_ref();
  weft_model *model;
  seen s = {0, 0};
  weft_error error = {{0}};
  assert_int_equal(weft_model_judge(gguf, &error), WEFT_E_FORMAT);
  const weft_split split = weft_split_one(device);
  assert_int_equal(weft_model_open(gguf, &split, &limits, see, &s, &model, &error), WEFT_E_FORMAT);
  assert_non_null(strstr(error.text, "'blk.3.ffn_down_exps.weight' is missing"));
  assert_int_equal(s.total, 0);
  weft_device_close(device);
  weft_gguf_close(gguf);
  gguf_writer_close(&w);
}

/* Embeddings per layer, and layers that read the keys of an earlier layer. */
static void test_shared_layers(void **state) {
  (void)state;
  static const char *const names[] = {
      "per_layer_token_embd.weight", "per_layer_model_proj.weight", "per_layer_proj_norm.weight",
      "blk.2.inp_gate.weight",       "blk.2.proj.weight",           "blk.2.post_norm.weight",
      "blk.0.attn_k.weight",         "blk.0.attn_k_norm.weight",    "blk.0.attn_v.weight"};
  weft_model_info info;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char words[96];
    (void)snprintf(words, sizeof words, "tensor '%s' is missing", names[i]);
    refused("ar-e2b", (gguf_edit){.drop_tensor = names[i]}, WEFT_E_FORMAT, words);
    (void)snprintf(words, sizeof words, "'%s' has shape", names[i]);
    refused("ar-e2b", (gguf_edit){.reshape = names[i]}, WEFT_E_FORMAT, words);
  }
  accepted("ar-e2b", (gguf_edit){.drop_tensor = "blk.6.attn_k.weight"}, &info); /* of a layer that shares keys */
  assert_true(info.kv.set[4].keys_of == 0 && info.kv.set[5].keys_of == 4 && info.kv.set[6].keys_of == 5);
  refused("ar-e2b", (gguf_edit){.reshape = "blk.6.attn_k.weight"}, WEFT_E_FORMAT, "'blk.6.attn_k.weight' has shape");
  refused("ar-e2b", (gguf_edit){.set_u32 = "gemma4.attention.shared_kv_layers", .value = 7}, WEFT_E_FORMAT,
          "is 7; it must be 0..6");
  refused("ar-e2b", (gguf_edit){.set_u32 = "gemma4.attention.shared_kv_layers", .value = 3}, WEFT_E_FORMAT,
          "layer 4 shares keys, but no layer before 4 has such keys");
  refused("ar-e2b", (gguf_edit){.set_u32 = "gemma4.attention.shared_kv_layers", .value = UINT32_MAX}, WEFT_E_FORMAT,
          "it must be 0..6");
  refused("dg-base", (gguf_edit){.set_u32 = "diffusion-gemma.attention.shared_kv_layers", .value = 1},
          WEFT_E_UNSUPPORTED, "is 1: layers that share keys of a canvas are not supported");
  accepted("dg-base", (gguf_edit){.set_u32 = "diffusion-gemma.attention.shared_kv_layers", .value = 0}, &info);
  refused("ar-e2b", (gguf_edit){.set_u32 = "gemma4.embedding_length_per_layer_input", .value = UINT32_MAX},
          WEFT_E_FORMAT, "it must be 0..16384");
  refused("ar-e2b", (gguf_edit){.set_u32 = "gemma4.embedding_length_per_layer_input", .value = 0}, WEFT_E_UNSUPPORTED,
          "is not used by a gemma4 model");
  refused("ar-e2b", (gguf_edit){.set_u32 = "gemma4.feed_forward_length", .value = 0}, WEFT_E_FORMAT, "it must be 1..");
}

static void test_llama_keys(void **state) {
  (void)state;
  static const char *const required[] = {"block_count",          "context_length",
                                         "embedding_length",     "feed_forward_length",
                                         "attention.head_count", "attention.layer_norm_rms_epsilon"};
  static const struct {
    const char *model, *key;
    uint32_t value;
    weft_status status;
    const char *words;
  } cases[] = {
      {"llama-base", "llama.block_count", 0, WEFT_E_FORMAT, "is 0; it must be 1..256"},
      {"llama-base", "llama.block_count", 5, WEFT_E_FORMAT, "'blk.4.attn_norm.weight' is missing"},
      {"llama-base", "llama.attention.head_count", 0, WEFT_E_FORMAT, "it must be 1.."},
      {"llama-base", "llama.attention.head_count", 3, WEFT_E_FORMAT, "do not share 2 key heads evenly"},
      {"llama-base", "llama.attention.head_count_kv", 0, WEFT_E_FORMAT, "it must be 1.."},
      {"llama-base", "llama.attention.head_count_kv", 1, WEFT_E_FORMAT, "'blk.0.attn_k.weight' has shape"},
      {"llama-base", "llama.attention.key_length", 0, WEFT_E_FORMAT, "it must be 8..1024"},
      {"llama-base", "llama.attention.key_length", 1u << 31, WEFT_E_FORMAT, "it must be 8..1024"},
      {"llama-base", "llama.attention.value_length", 16, WEFT_E_UNSUPPORTED, "differs from key_length 8"},
      {"llama-base", "llama.rope.dimension_count", 4, WEFT_E_UNSUPPORTED, "differs from key_length 8"},
      {"llama-linear-bias", "llama.attention.head_count", 5, WEFT_E_FORMAT, "do not share a width of 32 evenly"},
      {"llama-linear-bias", "llama.attention.head_count", 8, WEFT_E_UNSUPPORTED, "heads of 4; 8 to 1024"},
      {"llama-base", "llama.feed_forward_length", 0, WEFT_E_FORMAT, "it must be 1.."},
      {"llama-moe", "llama.expert_count", 0, WEFT_E_FORMAT, "'llama.expert_count' is missing or 0"},
      {"llama-moe", "llama.expert_used_count", 9, WEFT_E_FORMAT, "is 9; it must be 1..4"},
      {"qwen3moe-base", "qwen3moe.expert_feed_forward_length", 8, WEFT_E_FORMAT, "'blk.0.ffn_gate_exps.weight' has"},
      {"qwen3moe-base", "qwen3moe.expert_shared_feed_forward_length", 8, WEFT_E_UNSUPPORTED,
       "shared experts are not supported"},
      {"llama-base", "llama.rope.scaling.original_context_length", 0, WEFT_E_FORMAT, "it must be 1.."},
  };
  weft_model_info info;
  refused_without("llama-base", "llama", required, sizeof required / sizeof *required);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    refused(cases[i].model, (gguf_edit){.set_u32 = cases[i].key, .value = cases[i].value}, cases[i].status,
            cases[i].words);
  }
  refused("llama-base", (gguf_edit){.set_string = "llama.rope.scaling.type", .text = "longrope"}, WEFT_E_UNSUPPORTED,
          "key 'llama.rope.scaling.type' names a scaling that is not supported; none, linear and yarn are");
  refused("llama-base", (gguf_edit){.add_scalar = "rope_factors_long.weight", .real = 1}, WEFT_E_UNSUPPORTED,
          "tensor 'rope_factors_long.weight' is not used by a llama model");
  refused("qwen2-bias", (gguf_edit){.add_scalar = "output.bias"}, WEFT_E_UNSUPPORTED,
          "tensor 'output.bias' is not used by a qwen2 model");
  refused("llama-yarn", (gguf_edit){.set_f32 = "llama.rope.scaling.factor", .real = 0.0f}, WEFT_E_FORMAT,
          "factor' is 0");
  refused("llama-yarn", (gguf_edit){.set_f32 = "llama.rope.scaling.yarn_log_multiplier", .real = 0.1f},
          WEFT_E_UNSUPPORTED, "yarn_log_multiplier");
  refused("llama-moe", (gguf_edit){.set_f32 = "llama.expert_weights_scale", .real = 2.5f}, WEFT_E_UNSUPPORTED,
          "only 1 is supported");
  accepted("llama-base", (gguf_edit){.set_string = "llama.rope.scaling.type", .text = "none"}, &info);
  accepted("llama-base", (gguf_edit){.drop_key = "llama.rope.freq_base"}, &info);
  assert_true(info.kv.set[0].rows.head_dim == 8 && info.kv.set[0].window == 0 && info.n_experts == 0);
}

static void read_query_bias(gguf_edit e, float *out, uint32_t n) {
  gguf_writer w;
  weft_gguf *gguf = open_edited("llama-linear-bias", &e, &w);
  weft_device *device = open_ref();
  weft_model *model;
  weft_error error = {{0}};
  const weft_split split = weft_split_one(device);
  assert_int_equal(weft_model_open(gguf, &split, &limits, NULL, NULL, &model, &error), WEFT_OK);
  assert_int_equal(model->hyper.n_heads * model->hyper.head_dim[2], n);
  assert_int_equal(weft_device_download(device, out, model->layers[2].q_bias, n * sizeof *out), WEFT_OK);
  weft_model_close(model);
  weft_device_close(device);
  weft_gguf_close(gguf);
  gguf_writer_close(&w);
}

/* Elements of a llama's bias change their places; those of a quantised one are told apart only once they are floats. */
static void test_quantised_bias(void **state) {
  (void)state;
  enum { N = 32 };
  float wanted[N], got[N], largest = 0.0f;
  read_query_bias((gguf_edit){0}, wanted, N);
  read_query_bias((gguf_edit){.quantise = "blk.2.attn_q.bias", .type = WEFT_TYPE_Q8_0}, got, N);
  for (uint32_t i = 0; i < N; i++) largest = fmaxf(largest, fabsf(wanted[i]));
  assert_true(largest > 0.0f);
  for (uint32_t i = 0; i < N; i++) assert_true(fabsf(got[i] - wanted[i]) <= largest / 200.0f);
}

static void test_llama_tensors(void **state) {
  (void)state;
  static const char *const needed[] = {"token_embd.weight",        "output_norm.weight",    "blk.1.attn_norm.weight",
                                       "blk.1.attn_q.weight",      "blk.1.attn_k.weight",   "blk.1.attn_v.weight",
                                       "blk.1.attn_output.weight", "blk.1.ffn_norm.weight", "blk.1.ffn_gate.weight",
                                       "blk.1.ffn_up.weight",      "blk.1.ffn_down.weight"};
  weft_model_info info;
  for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
    char words[128];
    (void)snprintf(words, sizeof words, "tensor '%s' is missing", needed[i]);
    refused("llama-base", (gguf_edit){.drop_tensor = needed[i]}, WEFT_E_FORMAT, words);
    if (i == 0) continue; /* its rows are the vocabulary */
    (void)snprintf(words, sizeof words, "'%.64s' has shape", needed[i]);
    refused("llama-base", (gguf_edit){.reshape = needed[i]}, WEFT_E_FORMAT, words);
  }
  static const char *const biases[] = {"attn_q", "attn_k", "attn_v", "attn_output"};
  for (size_t i = 0; i < 4; i++) {
    char name[64], words[96];
    (void)snprintf(name, sizeof name, "blk.2.%s.bias", biases[i]);
    (void)snprintf(words, sizeof words, "'%s' has shape", name);
    refused("llama-linear-bias", (gguf_edit){.reshape = name}, WEFT_E_FORMAT, words);
    accepted("llama-linear-bias", (gguf_edit){.drop_tensor = name}, &info);
  }
  refused("llama-linear-bias", (gguf_edit){.rename = "blk.2.attn_q.bias", .name = "blk.2.ffn_up.bias"},
          WEFT_E_UNSUPPORTED, "'blk.2.ffn_up.bias' is not used by a llama model");
  refused("llama-3", (gguf_edit){.reshape = "rope_freqs.weight"}, WEFT_E_FORMAT, "'rope_freqs.weight' has shape");
  refused("qwen3-base", (gguf_edit){.reshape = "blk.0.attn_q_norm.weight"}, WEFT_E_FORMAT,
          "attn_q_norm.weight' has shape");
  refused("qwen3moe-base", (gguf_edit){.drop_tensor = "blk.1.ffn_gate_inp.weight"}, WEFT_E_FORMAT,
          "'blk.1.ffn_gate_inp.weight' is missing; the layer's experts need it");
  refused("qwen3moe-base", (gguf_edit){.drop_tensor = "blk.1.ffn_up_exps.weight"}, WEFT_E_FORMAT, "blk.1 needs either");
  refused("qwen3moe-base", (gguf_edit){.drop_tensor = "blk.1.ffn_down_exps.weight"}, WEFT_E_FORMAT, "is missing");
}

static void test_gpt_oss_keys(void **state) {
  (void)state;
  static const char *const required[] = {"block_count",
                                         "context_length",
                                         "embedding_length",
                                         "feed_forward_length",
                                         "expert_feed_forward_length",
                                         "expert_used_count",
                                         "attention.head_count",
                                         "attention.head_count_kv",
                                         "attention.sliding_window",
                                         "attention.layer_norm_rms_epsilon",
                                         "rope.freq_base"};
  static const number_case cases[] = {
      {"gpt-oss.block_count", 3, WEFT_E_FORMAT, "'blk.2.attn_norm.weight' is missing"},
      {"gpt-oss.attention.head_count", 3, WEFT_E_FORMAT, "do not share 2 key heads evenly"},
      {"gpt-oss.attention.key_length", 1u << 31, WEFT_E_FORMAT, "it must be 8..1024"},
      {"gpt-oss.attention.value_length", 8, WEFT_E_UNSUPPORTED, "differs from key_length 16"},
      {"gpt-oss.attention.sliding_window", 0, WEFT_E_FORMAT, "is 0; it must be 1.."},
      {"gpt-oss.attention.sliding_window_pattern", 0, WEFT_E_FORMAT, "is 0; it must be 1..256"},
      {"gpt-oss.expert_count", 0, WEFT_E_FORMAT, "'gpt-oss.expert_count' is missing or 0"},
      {"gpt-oss.expert_count", 9, WEFT_E_FORMAT, "'blk.0.ffn_gate_inp.weight' has shape"},
      {"gpt-oss.expert_used_count", 9, WEFT_E_FORMAT, "is 9; it must be 1..3"},
      {"gpt-oss.expert_feed_forward_length", 1u << 31, WEFT_E_FORMAT, "it must be 1.."},
      {"gpt-oss.expert_feed_forward_length", 8, WEFT_E_FORMAT, "'blk.0.ffn_gate_exps.bias' has shape"},
      {"gpt-oss.expert_shared_count", 1, WEFT_E_UNSUPPORTED, "shared experts are not supported"},
      {"gpt-oss.rope.scaling.original_context_length", 0, WEFT_E_FORMAT, "it must be 1.."},
  };
  weft_model_info info;
  refused_without("gpt-oss-base", "gpt-oss", required, sizeof required / sizeof *required);
  refused_numbers("gpt-oss-base", cases, sizeof cases / sizeof *cases);
  refused("gpt-oss-pattern", (gguf_edit){.set_u32 = "gpt-oss.block_count", .value = 3}, WEFT_E_FORMAT,
          "sliding_window_pattern' has 2 elements for 3 layers");
  refused("gpt-oss-base", (gguf_edit){.set_string = "general.architecture", .text = "gptoss"}, WEFT_E_UNSUPPORTED,
          "take a file of llama.cpp's converter, whose architecture is 'gpt-oss'");
  accepted("gpt-oss-base", (gguf_edit){.set_u32 = "gpt-oss.attention.sliding_window_pattern", .value = 1}, &info);
  assert_true(info.kv.set[0].window == 0 && info.kv.set[1].window == 0);
  accepted("gpt-oss-pattern", (gguf_edit){0}, &info);
  assert_true(info.kv.set[0].window == 0 && info.kv.set[1].window == 5);
  accepted("gpt-oss-base", (gguf_edit){0}, &info);
  assert_true(info.kv.set[0].window == 128 && info.kv.set[1].window == 0 && info.n_experts == 3);
}

static void test_gpt_oss_tensors(void **state) {
  (void)state;
  static const char *const needed[] = {"attn_norm.weight",   "attn_q.weight",       "attn_k.weight",
                                       "attn_v.weight",      "attn_output.weight",  "attn_q.bias",
                                       "attn_k.bias",        "attn_v.bias",         "attn_output.bias",
                                       "attn_sinks.weight",  "ffn_gate_inp.weight", "post_attention_norm.weight",
                                       "ffn_gate_inp.bias",  "ffn_gate_exps.bias",  "ffn_up_exps.bias",
                                       "ffn_down_exps.bias", "ffn_down_exps.weight"};
  for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
    char name[64], words[128];
    (void)snprintf(name, sizeof name, "blk.1.%s", needed[i]);
    (void)snprintf(words, sizeof words, "tensor '%s' is missing", name);
    refused("gpt-oss-base", (gguf_edit){.drop_tensor = name}, WEFT_E_FORMAT, words);
    (void)snprintf(words, sizeof words, "'%s' has shape", name);
    refused("gpt-oss-base", (gguf_edit){.reshape = name}, WEFT_E_FORMAT, words);
  }
  refused("gpt-oss-base", (gguf_edit){.drop_tensor = "blk.1.ffn_up_exps.weight"}, WEFT_E_FORMAT, "blk.1 needs either");
  refused("gpt-oss-base", (gguf_edit){.add_scalar = "blk.1.ffn_gate_up_exps.bias"}, WEFT_E_UNSUPPORTED,
          "'blk.1.ffn_gate_up_exps.bias' is not used by a gpt-oss model");
}

static void test_what_may_differ(void **state) {
  (void)state;
  weft_model_info info;
  accepted("ar-base", (gguf_edit){0}, &info);
  assert_true(info.kv_type == WEFT_TYPE_F32 && info.canvas_length == 0 && info.n_experts == 4);
  assert_string_equal(info.name, "ar-base");
  accepted("ar-base", (gguf_edit){.quantise = "blk.0.attn_q.weight", .type = WEFT_TYPE_BF16}, &info);
  assert_int_equal(info.kv_type, WEFT_TYPE_BF16);
  accepted("ar-base", (gguf_edit){.quantise = "blk.0.attn_norm.weight", .type = WEFT_TYPE_BF16},
           &info); /* a vector of another type */
  accepted("ar-base", (gguf_edit){.drop_tensor = "blk.1.ffn_down_exps.scale"}, &info);
  accepted("ar-base", (gguf_edit){.drop_key = "gemma4.vocab_size"}, &info);
  accepted("ar-base", (gguf_edit){.drop_key = "general.name"}, &info);
  assert_string_equal(info.name, "edited");
  accepted("ar-base", (gguf_edit){.rename = "blk.1.ffn_down_exps.scale", .name = "mtp.extra"}, &info); /* only told */
  accepted("ar-base", (gguf_edit){.rename = "blk.1.ffn_down_exps.scale", .name = "blk.4.extra"},
           &info); /* no such layer */
  accepted("ar-base", (gguf_edit){.drop_tensor = "blk.1.layer_output_scale.weight"}, &info);
  accepted("ar-base", (gguf_edit){.drop_key = "gemma4.rope.freq_base_swa"}, &info);
  accepted("ar-base", (gguf_edit){.drop_key = "gemma4.final_logit_softcapping"}, &info);
  accepted("dg-base", (gguf_edit){.drop_key = "diffusion.eb_t_min"}, &info);
  assert_true(info.entropy_bound.t_min == 0.4f && info.canvas_length == 8);
  accepted("dg-base", (gguf_edit){.drop_key = "diffusion.canvas_length"}, &info);
  assert_int_equal(info.canvas_length, 256);
  accepted("dg-base", (gguf_edit){.set_u32 = "diffusion.eb_max_steps", .value = 7}, &info);
  assert_int_equal(info.entropy_bound.max_steps, 7);
  accepted("ar-base", (gguf_edit){.set_f32 = "general.sampling.temp", .real = 0.5f}, &info);
  assert_true(info.temperature == 0.5f && info.top_p == 1.0f && info.top_k == 0);
}

static void test_limits(void **state) {
  (void)state;
  gguf_writer w;
  weft_gguf *gguf = open_edited("ar-base", &(gguf_edit){0}, &w);
  weft_device *device = open_ref();
  static const weft_model_limits bad[] = {{.segments_max = 1},
                                          {.rows_max = 8, .canvas_rows_max = 9, .segments_max = 1},
                                          {.rows_max = 8},
                                          {.rows_max = 8, .segments_max = 9},
                                          {.rows_max = UINT32_MAX, .segments_max = 1}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    weft_model *model;
    weft_error error = {{0}};
    const weft_split split = weft_split_one(device);
    assert_int_equal(weft_model_open(gguf, &split, &bad[i], NULL, NULL, &model, &error), WEFT_E_INVALID);
    assert_null(model);
    assert_non_null(strstr(error.text, "model limits"));
  }
  weft_model_close(NULL);
  weft_device_close(device);
  weft_gguf_close(gguf);
  gguf_writer_close(&w);
}

/* Every allocation of an open refused once: a line, no leak (seen by the sanitizer build). */
static void refuse_memory(const char *name) {
  gguf_writer w;
  weft_gguf *gguf = open_edited(name, &(gguf_edit){0}, &w);
  weft_device *device = open_ref();
  bool worked = false;
  for (uint64_t n = 1; !worked && n < 2000; n++) {
    weft_model *model;
    weft_error error = {{0}};
    seen s = {0, 0};
    (void)weft_memory_fail_at(n);
    const weft_split split = weft_split_one(device);
    weft_status status = weft_model_open(gguf, &split, &limits, see, &s, &model, &error);
    (void)weft_memory_fail_at(0);
    worked = status == WEFT_OK;
    if (!worked) {
      assert_int_equal(status, WEFT_E_NO_MEMORY);
      assert_true(model == NULL && error.text[0] != 0);
    } else {
      assert_true(s.done == s.total && s.total > 0);
    }
    weft_model_close(model);
  }
  assert_true(worked);
  weft_device_close(device);
  weft_gguf_close(gguf);
  gguf_writer_close(&w);
}

static void test_memory_refused(void **state) {
  (void)state;
  refuse_memory("dg-base");
  refuse_memory("ar-e2b");
  refuse_memory("llama-linear-bias");
}

static void test_qwen35_keys(void **state) {
  (void)state;
  static const char *const required[] = {"block_count",          "context_length",       "embedding_length",
                                         "feed_forward_length",  "attention.head_count", "attention.head_count_kv",
                                         "attention.key_length", "rope.dimension_count", "rope.freq_base",
                                         "ssm.conv_kernel",      "ssm.state_size",       "ssm.group_count",
                                         "ssm.time_step_rank",   "ssm.inner_size"};
  static const number_case cases[] = {
      {"qwen35.ssm.conv_kernel", 3, WEFT_E_UNSUPPORTED, "is 3; convolutions over 4 positions"},
      {"qwen35.ssm.state_size", 12, WEFT_E_UNSUPPORTED, "is 12; a multiple of 8 is needed"},
      {"qwen35.ssm.state_size", 1u << 31, WEFT_E_FORMAT, "it must be 1..256"},
      {"qwen35.ssm.state_size", 16, WEFT_E_UNSUPPORTED, "ssm.inner_size' is 32; ssm.time_step_rank times"},
      {"qwen35.ssm.group_count", 3, WEFT_E_UNSUPPORTED, "is 4; a multiple of ssm.group_count is needed"},
      {"qwen35.ssm.group_count", 1, WEFT_E_FORMAT, "'blk.0.attn_qkv.weight' has shape 8 x 64"},
      {"qwen35.ssm.group_count", 0, WEFT_E_FORMAT, "is 0; it must be 1..4096"},
      {"qwen35.ssm.inner_size", 1u << 31, WEFT_E_FORMAT, "it must be 1..1048576"},
      {"qwen35.ssm.time_step_rank", 1u << 31, WEFT_E_FORMAT, "it must be 1..4096"},
      {"qwen35.rope.dimension_count", 3, WEFT_E_UNSUPPORTED, "elements of a head rotate in pairs"},
      {"qwen35.rope.dimension_count", 16, WEFT_E_FORMAT, "it must be 2..8"},
      {"qwen35.full_attention_interval", 4, WEFT_E_UNSUPPORTED, "no layer has attention"},
      {"qwen35.full_attention_interval", 1, WEFT_E_FORMAT, "'blk.0.attn_q.weight' is missing"},
      {"qwen35.attention.sliding_window", 5, WEFT_E_UNSUPPORTED, "windows are not supported"},
      {"qwen35.nextn_predict_layers", 3, WEFT_E_FORMAT, "is 3; it must be 0..2"},
      {"qwen35.block_count", 256, WEFT_E_UNSUPPORTED, "layers keep lies in 598 sets of rows; at most 511"},
  };
  weft_model_info info;
  refused_without("qwen35-base", "qwen35", required, sizeof required / sizeof *required);
  refused_numbers("qwen35-base", cases, sizeof cases / sizeof *cases);
  refused("qwen35-moe", (gguf_edit){.drop_key = "qwen35moe.expert_shared_feed_forward_length"}, WEFT_E_FORMAT,
          "'qwen35moe.expert_shared_feed_forward_length' is missing");
  /* layers that guess ahead are left out, with their tensors */
  accepted("qwen35-moe", (gguf_edit){.set_u32 = "qwen35moe.nextn_predict_layers", .value = 1}, &info);
  assert_int_equal(info.n_layers, 2);
  accepted("qwen35-base", (gguf_edit){0}, &info);
  assert_int_equal(weft_kv_state_bytes(&info.kv), 2 * (4 * 8 * 8 + 3 * 64) * sizeof(float));
  inspect_holds("qwen35-base", (gguf_edit){0}, true, "\"state_bytes\": 3584, \"border_bytes\": 59392");
  inspect_holds("qwen35-base", (gguf_edit){0}, false, "up to 58.00 KiB of one sequence, at a border none");
  inspect_holds("qwen35-base", (gguf_edit){0}, false, "since a border at every 64");
  const gguf_edit ahead = {.set_u32 = "qwen35moe.nextn_predict_layers", .value = 1};
  inspect_holds("qwen35-moe", ahead, false, "left out: 1 more layer that guesses tokens ahead (nextn), 18 tensors, ");
  inspect_holds("qwen35-moe", ahead, true, "\"layers_left_out\": 1, \"bytes_left_out\": ");
  inspect_holds("qwen35-moe", (gguf_edit){0}, true, "\"layers_left_out\": 0, \"bytes_left_out\": 0}");
}

static void test_qwen35_tensors(void **state) {
  (void)state;
  static const char *const needed[] = {
      "blk.0.attn_qkv.weight", "blk.0.attn_gate.weight",          "blk.0.ssm_alpha.weight", "blk.0.ssm_beta.weight",
      "blk.0.ssm_a",           "blk.0.ssm_conv1d.weight",         "blk.0.ssm_dt.bias",      "blk.0.ssm_norm.weight",
      "blk.0.ssm_out.weight",  "blk.0.attn_norm.weight",          "blk.2.attn_q.weight",    "blk.2.attn_k_norm.weight",
      "blk.2.ffn_gate.weight", "blk.2.post_attention_norm.weight"};
  char words[96];
  for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
    (void)snprintf(words, sizeof words, "'%s' is missing", needed[i]);
    refused("qwen35-base", (gguf_edit){.drop_tensor = needed[i]}, WEFT_E_FORMAT, words);
  }
  refused("qwen35-moe", (gguf_edit){.drop_tensor = "blk.0.ffn_gate_inp_shexp.weight"}, WEFT_E_FORMAT, "is missing");
  refused("qwen35-base", (gguf_edit){.reshape = "blk.0.ssm_out.weight"}, WEFT_E_FORMAT, "expected 32 x 8");
  refused("qwen35-base", (gguf_edit){.reshape = "blk.2.attn_q.weight"}, WEFT_E_FORMAT, "expected 8 x 32");
  refused("qwen35-base", (gguf_edit){.add_scalar = "blk.0.attn_q.bias"}, WEFT_E_UNSUPPORTED, "is not used by a qwen35");
}

static model_hyper hyper_of(const char *model, gguf_edit e) {
  gguf_writer w;
  weft_gguf *gguf = open_edited(model, &e, &w);
  const model_arch *arch;
  model_hyper hyper;
  weft_error error = {{0}};
  if (model_hyper_read(gguf, &arch, &hyper, &error) != WEFT_OK) fail_msg("%s", error.text);
  weft_gguf_close(gguf);
  gguf_writer_close(&w);
  return hyper;
}

static void test_gemma3(void **state) {
  (void)state;
  static const char *const required[] = {"block_count",
                                         "context_length",
                                         "embedding_length",
                                         "feed_forward_length",
                                         "attention.head_count",
                                         "attention.head_count_kv",
                                         "attention.sliding_window",
                                         "attention.layer_norm_rms_epsilon"};
  static const number_case cases[] = {
      {"gemma3.block_count", 7, WEFT_E_FORMAT, "'blk.6.attn_norm.weight' is missing"},
      {"gemma3.attention.head_count", 3, WEFT_E_FORMAT, "do not share 2 key heads evenly"},
      {"gemma3.attention.key_length", 1u << 31, WEFT_E_FORMAT, "it must be 8..1024"},
      {"gemma3.attention.value_length", 8, WEFT_E_UNSUPPORTED, "differs from key_length 16"},
      {"gemma3.attention.sliding_window", 0, WEFT_E_FORMAT, "is 0; it must be 1.."},
      {"gemma3.attention.sliding_window_pattern", 0, WEFT_E_FORMAT, "is 0; it must be 1..256"},
      {"gemma3.attention.shared_kv_layers", 1, WEFT_E_UNSUPPORTED, "layers that share keys are not supported"},
      {"gemma3.expert_count", 4, WEFT_E_UNSUPPORTED, "experts are not supported"},
  };
  weft_model_info info;
  refused_without("gemma3-base", "gemma3", required, sizeof required / sizeof *required);
  refused_numbers("gemma3-base", cases, sizeof cases / sizeof *cases);
  refused("gemma3-base", (gguf_edit){.set_f32 = "gemma3.attn_logit_softcapping", .real = 50.0f}, WEFT_E_UNSUPPORTED,
          "attn_logit_softcapping' is 50; only 0");
  refused("gemma3-base", (gguf_edit){.drop_tensor = "blk.5.attn_v.weight"}, WEFT_E_FORMAT, "is missing");
  refused("gemma3-base", (gguf_edit){.drop_tensor = "blk.0.post_ffw_norm.weight"}, WEFT_E_FORMAT, "is missing");
  refused("gemma3-base", (gguf_edit){.add_scalar = "blk.0.layer_output_scale.weight"}, WEFT_E_UNSUPPORTED,
          "is not used by a gemma3 model");
  accepted("gemma3-base", (gguf_edit){.set_u32 = "gemma3.attention.sliding_window_pattern", .value = 2}, &info);
  assert_true(info.kv.set[0].window == 6 && info.kv.set[1].window == 0 && info.kv.set[5].window == 0);
  assert_true(hyper_of("gemma3-base", (gguf_edit){0}).attention_scale == 0.25f);
  /* the model of 62 layers has another divisor of scores: the root of 8 numbers for 2 heads */
  assert_true(hyper_of("gemma3-base", (gguf_edit){.set_u32 = "gemma3.block_count", .value = 62}).attention_scale ==
              0.5f);
}

static void test_glm4moe(void **state) {
  (void)state;
  static const char *const required[] = {
      "block_count",          "context_length",          "embedding_length",           "feed_forward_length",
      "attention.head_count", "attention.head_count_kv", "attention.key_length",       "rope.dimension_count",
      "expert_used_count",    "expert_shared_count",     "expert_feed_forward_length", "rope.freq_base"};
  static const number_case cases[] = {
      {"glm4moe.attention.sliding_window", 5, WEFT_E_UNSUPPORTED, "windows are not supported"},
      {"glm4moe.attention.value_length", 8, WEFT_E_UNSUPPORTED, "differs from key_length 16"},
      {"glm4moe.rope.dimension_count", 7, WEFT_E_UNSUPPORTED, "elements of a head rotate in pairs"},
      {"glm4moe.rope.dimension_count", 32, WEFT_E_FORMAT, "it must be 2..16"},
      {"glm4moe.expert_gating_func", 3, WEFT_E_UNSUPPORTED, "is 3; scores by a softmax (1) or a sigmoid (2)"},
      {"glm4moe.expert_group_count", 4, WEFT_E_UNSUPPORTED, "is 4; at most 32 groups that share 6 experts evenly"},
      {"glm4moe.expert_group_count", 6, WEFT_E_UNSUPPORTED, "is 6; at most 32 groups"},
      {"glm4moe.expert_group_used_count", 4, WEFT_E_FORMAT, "is 4; it must be 1..3"},
      {"glm4moe.expert_group_used_count", 1, WEFT_E_FORMAT, "is 1: such groups have fewer than 3 experts"},
      {"glm4moe.expert_shared_count", 0, WEFT_E_FORMAT, "is 0; it must be 1..1024"},
      {"glm4moe.expert_shared_count", 2, WEFT_E_FORMAT, "'blk.1.ffn_gate_shexp.weight' has shape 8 x 8"},
      {"glm4moe.leading_dense_block_count", 2, WEFT_E_FORMAT, "'blk.1.ffn_gate_inp.weight' is there, and key"},
      {"glm4moe.leading_dense_block_count", 0, WEFT_E_FORMAT, "'blk.0.ffn_gate_inp.weight' is missing, and key"},
      {"glm4moe.nextn_predict_layers", 3, WEFT_E_FORMAT, "is 3; it must be 0..2"},
      {"glm4moe.nextn_predict_layers", 0, WEFT_E_FORMAT, "'blk.2.ffn_gate_inp.weight' is missing, and key"},
  };
  weft_model_info info;
  refused_without("glm4moe-base", "glm4moe", required, sizeof required / sizeof *required);
  refused_numbers("glm4moe-base", cases, sizeof cases / sizeof *cases);
  refused("glm4moe-base", (gguf_edit){.drop_tensor = "blk.1.exp_probs_b.bias"}, WEFT_E_FORMAT, "is missing");
  refused("glm4moe-base", (gguf_edit){.drop_tensor = "blk.1.ffn_up_shexp.weight"}, WEFT_E_FORMAT, "is missing");
  refused("glm4moe-base", (gguf_edit){.add_scalar = "blk.1.ffn_gate_inp_shexp.weight"}, WEFT_E_UNSUPPORTED,
          "is not used by a glm4moe model");
  accepted("glm4moe-base", (gguf_edit){0}, &info);
  assert_int_equal(info.kv.n_layers, 2);
  inspect_holds("glm4moe-base", (gguf_edit){0}, false,
                "left out: 1 more layer that guesses tokens ahead (nextn), 1 tens");
  assert_true(hyper_of("glm4moe-base", (gguf_edit){0}).choice.scores == WEFT_SCORES_SIGMOID);
  assert_true(hyper_of("glm4moe-base", (gguf_edit){.drop_key = "glm4moe.expert_weights_norm"}).choice.as_scored);
  const gguf_edit unscaled = {.set_f32 = "glm4moe.expert_weights_scale", .real = 0.0f};
  assert_true(hyper_of("glm4moe-base", unscaled).choice.factor == 1.0f);
}

static void test_deepseek2(void **state) {
  (void)state;
  static const char *const required[] = {
      "block_count",          "context_length",           "feed_forward_length",
      "attention.head_count", "attention.head_count_kv",  "attention.kv_lora_rank",
      "attention.key_length", "attention.key_length_mla", "attention.value_length_mla",
      "rope.dimension_count", "rope.freq_base",           "expert_shared_count"};
  static const number_case cases[] = {
      {"deepseek2.attention.head_count_kv", 3, WEFT_E_UNSUPPORTED, "is 3; one vector for each position is needed"},
      {"deepseek2.attention.kv_lora_rank", 16, WEFT_E_UNSUPPORTED, "key_length' is 32; attention.kv_lora_rank and"},
      {"deepseek2.attention.kv_lora_rank", 1u << 31, WEFT_E_FORMAT, "it must be 8..1024"},
      {"deepseek2.rope.dimension_count", 7, WEFT_E_UNSUPPORTED, "is 7; numbers rotate in pairs"},
      {"deepseek2.attention.key_length_mla", 8, WEFT_E_FORMAT, "is 8; it must be 9..1024"},
      {"deepseek2.attention.key_length_mla", 32, WEFT_E_FORMAT, "'blk.0.attn_q_b.weight' has shape 8 x 72"},
      {"deepseek2.attention.value_length_mla", 16, WEFT_E_FORMAT, "'blk.0.attn_v_b.weight' has shape 24 x 8 x 3"},
      {"deepseek2.attention.q_lora_rank", 0, WEFT_E_FORMAT, "'blk.0.attn_q.weight' is missing"},
      {"deepseek2.attention.sliding_window", 5, WEFT_E_UNSUPPORTED, "windows are not supported"},
      {"deepseek2.expert_gating_func", 4, WEFT_E_UNSUPPORTED, "is 4; scores by a softmax (1) or a sigmoid (2)"},
      {"deepseek2.leading_dense_block_count", 2, WEFT_E_FORMAT, "'blk.1.ffn_gate_inp.weight' is there, and key"},
  };
  refused_without("deepseek2-base", "deepseek2", required, sizeof required / sizeof *required);
  refused_numbers("deepseek2-base", cases, sizeof cases / sizeof *cases);
  refused("deepseek2-base", (gguf_edit){.drop_key = "deepseek2.rope.scaling.yarn_log_multiplier"}, WEFT_E_UNSUPPORTED,
          "yarn_log_multiplier' is missing; yarn needs it here");
  refused("deepseek2-base", (gguf_edit){.drop_tensor = "blk.1.attn_k_b.weight"}, WEFT_E_FORMAT, "is missing");
  refused("deepseek2-base", (gguf_edit){.add_scalar = "blk.0.attn_kv_b.weight"}, WEFT_E_UNSUPPORTED,
          "attn_kv_b.weight' is of an older converter; take a file that has attn_k_b and attn_v_b");
  weft_model_info info;
  accepted("deepseek2-base", (gguf_edit){0}, &info);
  assert_true(info.kv.set[0].rows.values_are_keys && info.kv.set[0].rows.head_dim == 32 && info.kv.n_sets == 2);
  const gguf_edit unsaid = {.drop_key = "deepseek2.expert_gating_func"};
  assert_true(hyper_of("deepseek2-base", unsaid).choice.scores == WEFT_SCORES_SIGMOID);
  assert_true(hyper_of("deepseek2-lite", (gguf_edit){0}).choice.scores == WEFT_SCORES_SOFTMAX);
}

/* Scores that grow with the position do so behind the first context: the model's ends there. */
static void test_mistral3(void **state) {
  (void)state;
  weft_model_info info;
  accepted("mistral3-base", (gguf_edit){0}, &info);
  assert_int_equal(info.context_length, 48);
  accepted("mistral3-base", (gguf_edit){.drop_key = "mistral3.attention.temperature_scale"}, &info);
  assert_int_equal(info.context_length, 768);
  refused("mistral3-base", (gguf_edit){.set_f32 = "mistral3.attention.temperature_scale", .real = -1.0f}, WEFT_E_FORMAT,
          "temperature_scale' is -1");
  refused("mistral3-base", (gguf_edit){.set_f32 = "mistral3.rope.scaling.yarn_log_multiplier", .real = -1.0f},
          WEFT_E_FORMAT, "yarn_log_multiplier' is -1");
  float with = hyper_of("mistral3-base", (gguf_edit){0}).attention_scale,
        without = hyper_of("mistral3-base", (gguf_edit){.drop_key = "mistral3.rope.scaling.yarn_log_multiplier"})
                      .attention_scale;
  assert_true(with == 0.25f && fabsf(without / with - 1.63141f) < 1e-4f); /* (1 + ln 16 / 10) squared */
}

static void test_inspect(void **state) {
  (void)state;
  inspect_holds("dg-base", (gguf_edit){0}, false, "canvas: 8 tokens, at most 48 steps");
  inspect_holds("dg-base", (gguf_edit){0}, false,
                "KV per token (F32)          1.00 KiB, once windows are full 512 bytes");
  inspect_holds("dg-base", (gguf_edit){0}, false, "diffusion-gemma.attention.head_count_kv        [2, 1, 2, 1]");
  inspect_holds("ar-e2b", (gguf_edit){0}, false,
                "KV per token (F32)          768 bytes, once windows are full 256 bytes");
  inspect_holds("dg-base", (gguf_edit){0}, true, "\"bytes_per_token\": 1024, \"bytes_per_token_windows_full\": 512");
  inspect_holds("dg-base", (gguf_edit){0}, true,
                "{\"name\": \"blk.0.attn_q.weight\", \"type\": \"F32\", \"shape\": [32, 64], "
                "\"bytes\": 8192}");
  inspect_holds("ar-base", (gguf_edit){.set_string = "general.name", .text = "a\"b\x80\n"}, true,
                "\"name\": \"a\\\"b\xEF\xBF\xBD?\"");
  inspect_holds("ar-base", (gguf_edit){.set_string = "general.architecture", .text = "other"}, true,
                "\"refusal\": \"edited.gguf: architecture 'other' is not supported");
  inspect_holds("ar-base", (gguf_edit){.set_string = "general.architecture", .text = "other"}, false,
                "weft refuses this file: edited.gguf: architecture 'other' is not supported");
  inspect_holds("ar-base", (gguf_edit){.set_f32 = "a.b", .real = __builtin_inff()}, true, "\"value\": \"inf\"");
}

int main(void) {
  weft_log_set_level(WEFT_LOG_ERROR);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_architecture),
      cmocka_unit_test(test_required_keys),
      cmocka_unit_test(test_bounds),
      cmocka_unit_test(test_unsupported),
      cmocka_unit_test(test_tensors),
      cmocka_unit_test(test_what_may_differ),
      cmocka_unit_test(test_limits),
      cmocka_unit_test(test_memory_refused),
      cmocka_unit_test(test_inspect),
      cmocka_unit_test(test_gemma3),
      cmocka_unit_test(test_glm4moe),
      cmocka_unit_test(test_deepseek2),
      cmocka_unit_test(test_mistral3),
      cmocka_unit_test(test_unused_tensors),
      cmocka_unit_test(test_scales),
      cmocka_unit_test(test_types),
      cmocka_unit_test(test_refused_before_weights_are_read),
      cmocka_unit_test(test_shared_layers),
      cmocka_unit_test(test_llama_keys),
      cmocka_unit_test(test_gpt_oss_keys),
      cmocka_unit_test(test_gpt_oss_tensors),
      cmocka_unit_test(test_qwen35_keys),
      cmocka_unit_test(test_qwen35_tensors),
      cmocka_unit_test(test_llama_tensors),
      cmocka_unit_test(test_quantised_bias),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
