/* SPDX-License-Identifier: MIT */
/* Opening models of deepseek4 from files that differ from a sound one in one fact. */
#include "tests/support/edited_model.h"

static void test_deepseek4_keys(void **state) {
  (void)state;
  static const char *const required[] = {"block_count",
                                         "context_length",
                                         "embedding_length",
                                         "attention.head_count",
                                         "attention.head_count_kv",
                                         "attention.key_length",
                                         "attention.q_lora_rank",
                                         "attention.sliding_window",
                                         "attention.output_group_count",
                                         "attention.output_lora_rank",
                                         "attention.indexer.head_count",
                                         "attention.indexer.key_length",
                                         "attention.indexer.top_k",
                                         "attention.compress_ratios",
                                         "attention.compress_rope_freq_base",
                                         "rope.dimension_count",
                                         "rope.freq_base",
                                         "hyper_connection.count",
                                         "hyper_connection.sinkhorn_iterations",
                                         "hyper_connection.epsilon",
                                         "expert_used_count",
                                         "expert_feed_forward_length",
                                         "expert_shared_count",
                                         "expert_gating_func",
                                         "expert_weights_norm",
                                         "expert_weights_scale",
                                         "hash_layer_count",
                                         "swiglu_clamp_exp"};
  static const number_case cases[] = {
      {"deepseek4.attention.head_count_kv", 2, WEFT_E_UNSUPPORTED, "is 2; one vector for each position"},
      {"deepseek4.attention.key_length", 12, WEFT_E_UNSUPPORTED, "a multiple of 8 is needed"},
      {"deepseek4.attention.value_length", 16, WEFT_E_UNSUPPORTED, "differs from key_length"},
      {"deepseek4.attention.sliding_window", 0, WEFT_E_FORMAT, "it must be 1.."},
      {"deepseek4.attention.output_group_count", 3, WEFT_E_UNSUPPORTED, "is 3; a number that divides that of heads"},
      {"deepseek4.attention.output_group_count", 17, WEFT_E_FORMAT, "it must be 1..16"},
      {"deepseek4.attention.indexer.key_length", 12, WEFT_E_UNSUPPORTED, "a multiple of 8 is needed"},
      {"deepseek4.attention.indexer.top_k", 0, WEFT_E_FORMAT, "it must be 1.."},
      {"deepseek4.attention.compress_ratios", 4, WEFT_E_FORMAT, "has 1 elements for 3 layers"},
      {"deepseek4.rope.dimension_count", 3, WEFT_E_UNSUPPORTED, "is 3; numbers rotate in pairs"},
      {"deepseek4.rope.dimension_count", 16, WEFT_E_FORMAT, "it must be 2..8"},
      {"deepseek4.hyper_connection.count", 9, WEFT_E_FORMAT, "it must be 1..8"},
      {"deepseek4.hyper_connection.count", 3, WEFT_E_FORMAT, "'output_hc_fn.weight' has shape 16 x 2"},
      {"deepseek4.hyper_connection.sinkhorn_iterations", 0, WEFT_E_FORMAT, "it must be 1.."},
      {"deepseek4.expert_gating_func", 2, WEFT_E_UNSUPPORTED, "is 2; scores by the root of softplus (4)"},
      {"deepseek4.expert_weights_norm", 0, WEFT_E_UNSUPPORTED, "weights of experts with a sum of 1"},
      {"deepseek4.expert_group_count", 8, WEFT_E_UNSUPPORTED, "groups of experts are not supported"},
      {"deepseek4.expert_shared_count", 2, WEFT_E_FORMAT, "'blk.0.ffn_gate_shexp.weight' has shape 8 x 4"},
      {"deepseek4.hash_layer_count", 3, WEFT_E_FORMAT, "it must be 0..2"},
      {"deepseek4.hash_layer_count", 2, WEFT_E_FORMAT, "'blk.1.ffn_gate_tid2eid.weight' is missing"},
      {"deepseek4.nextn_predict_layers", 4, WEFT_E_FORMAT, "is 4; it must be 0..3"},
      {"deepseek4.nextn_predict_layers", 0, WEFT_E_UNSUPPORTED, "'blk.3.nextn.eh_proj.weight' is not used"},
  };
  weft_model_info info;
  refused_without("deepseek4-base", "deepseek4", required, sizeof required / sizeof *required);
  refused_numbers("deepseek4-base", cases, sizeof cases / sizeof *cases);
  refused("deepseek4-base", (gguf_edit){.set_f32 = "deepseek4.swiglu_clamp_exp", .real = -1.0f}, WEFT_E_FORMAT,
          "swiglu_clamp_exp' is -1");
  accepted("deepseek4-base", (gguf_edit){.drop_key = "deepseek4.swiglu_clamp_shexp"}, &info);
  /* near rows of three layers, of two far rows and what they are made of, of one an index */
  assert_int_equal(info.n_layers, 3);
  assert_int_equal(info.kv.n_sets, 1 + 5 + 3);
  assert_int_equal(weft_kv_bytes_per_token(&info.kv, true), (8 + 8) * 4 / 4); /* far and index rows of the second */
  inspect_holds("deepseek4-base", (gguf_edit){0}, false, "1 heads of 8 for 4 tokens");
  inspect_holds("deepseek4-base", (gguf_edit){0}, false, "I32          1 tensors  64 bytes\n");
  /* of 512 tokens: near rows of windows of 8, far and index rows for each 4, far rows for each 128, what these are made
   * of since 8 and since 128 */
  const uint32_t bytes = (3 * 8 * 8 + 2 * 128 * 8 + 4 * 8 + 8 * (2 * 16 + 2 * 16) + 128 * 2 * 8) * 4;
  char words[32];
  (void)snprintf(words, sizeof words, "%u", bytes);
  inspect_holds("deepseek4-base", (gguf_edit){0}, true, words);
}

static void test_deepseek4_ratios(void **state) {
  (void)state;
  static const struct {
    int32_t ratio[4];
    uint32_t n;
    weft_status status;
    const char *words;
  } lists[] = {
      {{0, 4, 3, 0}, 4, WEFT_E_UNSUPPORTED, "compress_ratios' is 3; rows for each 4 or 128 positions are supported"},
      {{64, 4, 128, 0}, 4, WEFT_E_UNSUPPORTED, "compress_ratios' is 64; rows for each 4 or 128"},
      {{0, -4, 128, 0}, 4, WEFT_E_FORMAT, "compress_ratios' is -4; it must not be negative"},
      {{0, 4}, 2, WEFT_E_FORMAT, "compress_ratios' has 2 elements for 3 layers"},
      {{0}, 0, WEFT_E_FORMAT, "compress_ratios' has 0 elements"},
      {{0, 128, 128, 0}, 4, WEFT_E_FORMAT, "'blk.1.attn_compressor_kv.weight' has shape 8 x 16"},
  };
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
    const gguf_edit e = {
        .set_list = "deepseek4.attention.compress_ratios", .list = lists[i].ratio, .n_list = lists[i].n};
    refused("deepseek4-base", e, lists[i].status, lists[i].words);
  }
}

static void test_deepseek4_tensors(void **state) {
  (void)state;
  static const char *const needed[] = {"output_hc_fn.weight",
                                       "output_hc_scale.weight",
                                       "output.weight",
                                       "blk.0.hc_attn_fn.weight",
                                       "blk.2.hc_ffn_base.weight",
                                       "blk.0.attn_q_a.weight",
                                       "blk.0.attn_q_a_norm.weight",
                                       "blk.0.attn_kv.weight",
                                       "blk.0.attn_sinks.weight",
                                       "blk.0.attn_output_a.weight",
                                       "blk.0.attn_output_b.weight",
                                       "blk.1.attn_compressor_kv.weight",
                                       "blk.2.attn_compressor_ape.weight",
                                       "blk.1.indexer.attn_q_b.weight",
                                       "blk.1.indexer.proj.weight",
                                       "blk.1.indexer_compressor_norm.weight",
                                       "blk.0.ffn_gate_tid2eid.weight",
                                       "blk.1.exp_probs_b.bias",
                                       "blk.0.ffn_down_shexp.weight"};
  char words[96];
  for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
    (void)snprintf(words, sizeof words, "'%s' is missing", needed[i]);
    refused("deepseek4-base", (gguf_edit){.drop_tensor = needed[i]}, WEFT_E_FORMAT, words);
  }
  refused("deepseek4-base", (gguf_edit){.reshape = "blk.2.attn_compressor_ape.weight"}, WEFT_E_FORMAT,
          "expected 8 x 128");
  refused("deepseek4-base", (gguf_edit){.reshape = "blk.0.attn_output_a.weight"}, WEFT_E_FORMAT, "expected 16 x 8");
  refused("deepseek4-base", (gguf_edit){.retype = "blk.0.ffn_gate_tid2eid.weight", .type = WEFT_TYPE_F32},
          WEFT_E_UNSUPPORTED, "has type F32; a table of experts is of type I32");
  refused("deepseek4-base", (gguf_edit){.bad_integer = "blk.0.ffn_gate_tid2eid.weight"}, WEFT_E_FORMAT,
          "names expert 1000 of token 0; there are 4");
  refused("deepseek4-base", (gguf_edit){.add_scalar = "blk.0.attn_compressor_kv.weight"}, WEFT_E_UNSUPPORTED,
          "is not used by a deepseek4");
}

/* What the makers of the first files (ds4) wrote otherwise than llama.cpp's converter does: 16-bit numbers in mixers,
 * positions of blocks and the router, no limits of the MLP beside the experts, groups of experts that are none, and a
 * layer that guesses ahead which is counted and lies in a file of its own, with names of its own. */
static void test_deepseek4_first_files(void **state) {
  (void)state;
  static const char *const halves[] = {"token_embd.weight",
                                       "output_hc_fn.weight",
                                       "blk.0.hc_attn_fn.weight",
                                       "blk.1.hc_ffn_fn.weight",
                                       "blk.1.attn_compressor_kv.weight",
                                       "blk.2.attn_compressor_gate.weight",
                                       "blk.2.attn_compressor_ape.weight",
                                       "blk.1.indexer.attn_q_b.weight",
                                       "blk.1.indexer.proj.weight",
                                       "blk.1.indexer_compressor_ape.weight",
                                       "blk.1.ffn_gate_inp.weight"};
  weft_model_info info;
  for (size_t i = 0; i < sizeof halves / sizeof *halves; i++)
    accepted("deepseek4-base", (gguf_edit){.quantise = halves[i], .type = WEFT_TYPE_F16}, &info);
  accepted("deepseek4-base", (gguf_edit){.drop_key = "deepseek4.swiglu_clamp_shexp"}, &info);
  accepted("deepseek4-base", (gguf_edit){.set_u32 = "deepseek4.expert_group_count", .value = 0}, &info);
  accepted("deepseek4-base", (gguf_edit){.set_u32 = "deepseek4.expert_group_used_count", .value = 0}, &info);
  accepted("deepseek4-deep", (gguf_edit){.set_u32 = "deepseek4.nextn_predict_layers", .value = 1}, &info);
  assert_int_equal(info.n_layers, 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_deepseek4_keys),
      cmocka_unit_test(test_deepseek4_ratios),
      cmocka_unit_test(test_deepseek4_tensors),
      cmocka_unit_test(test_deepseek4_first_files),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
