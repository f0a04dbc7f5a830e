/* SPDX-License-Identifier: MIT */
/* Opening models of deepseek41 from files that differ from a sound one in one fact. */
#include "tests/support/edited_model.h"

static const char *const base = "deepseek41-base", *const deep = "deepseek41-deep";

static void test_keys(void **state) {
  (void)state;
  static const char *const required[] = {"block_count",
                                         "attention.q_lora_rank",
                                         "attention.sliding_window",
                                         "attention.indexer.top_k",
                                         "attention.compress_ratios",
                                         "attention.indexer.candidate_top_k_blocks",
                                         "attention.indexer.candidate_block_size",
                                         "engram.max_ngram_size",
                                         "engram.head_count",
                                         "engram.key_length",
                                         "engram.multipliers",
                                         "engram.primes",
                                         "engram.offsets",
                                         "engram.token_map",
                                         "engram.pad_id",
                                         "hyper_connection.count",
                                         "expert_shared_count",
                                         "swiglu_clamp_exp"};
  static const char *const required_later[] = {
      "ple.ngram_size",   "ple.heads_per_ngram", "ple.layer_multipliers", "ple.head_vocab_sizes",
      "ple.head_offsets", "engram.token_map",    "engram.pad_token_id",   "embedding_length_per_layer_input"};
  static const number_case cases[] = {
      {"deepseek41.hash_layer_count", 1, WEFT_E_UNSUPPORTED, "is 1: experts by a table of tokens are not supported"},
      {"deepseek41.attention.compress_ratios", 2, WEFT_E_FORMAT, "has 1 elements for 4 layers"},
      {"deepseek41.attention.indexer.candidate_source_layer", 4, WEFT_E_FORMAT, "it must be 0..3"},
      {"deepseek41.attention.indexer.candidate_source_layer", 3, WEFT_E_FORMAT,
       "layer 3 chooses blocks of far rows, and has none of its own (key 'candidate_source_layer')"},
      {"deepseek41.attention.indexer.candidate_source_layer", 0, WEFT_E_FORMAT,
       "layer 2 comes after the choice of blocks of other far rows (key 'candidate_source_layer')"},
      {"deepseek41.attention.indexer.candidate_top_k_blocks", 1, WEFT_E_FORMAT,
       "1 blocks of 3 far rows are chosen, of which 4 rows are; more blocks are needed (key 'candidate_top_k_blocks')"},
      {"deepseek41.attention.indexer.candidate_block_size", 0, WEFT_E_FORMAT, "it must be 1.."},
      {"deepseek41.engram.max_ngram_size", 9, WEFT_E_FORMAT, "it must be 2..8"},
      {"deepseek41.engram.max_ngram_size", 2, WEFT_E_FORMAT, "multipliers' has 6 elements; 4 are needed"},
      {"deepseek41.engram.head_count", 3, WEFT_E_FORMAT, "primes' has 8 elements; 12 are needed"},
      {"deepseek41.engram.head_count", 0, WEFT_E_FORMAT, "it must be 1..64"},
      {"deepseek41.engram.key_length", 5, WEFT_E_FORMAT, "'blk.1.engram_wkv.weight' has shape 16 x 24"},
      {"deepseek41.engram.layer_ids", 4, WEFT_E_FORMAT, "it must be 0..3"},
      {"deepseek41.engram.layer_ids", 0, WEFT_E_FORMAT, "'blk.0.engram_embd.weight' is missing"},
  };
  weft_model_info info;
  refused_without(base, "deepseek41", required, sizeof required / sizeof *required);
  refused_without(deep, "deepseek41", required_later, sizeof required_later / sizeof *required_later);
  refused_numbers(base, cases, sizeof cases / sizeof *cases);
  refused(base, (gguf_edit){.drop_key = "deepseek41.engram.layer_ids"}, WEFT_E_FORMAT,
          "'deepseek41.engram.layer_ids' has 0 elements; a deepseek41 model needs 1 to 8");
  refused(deep, (gguf_edit){.set_u32 = "deepseek41.engram.pad_token_id", .value = 8}, WEFT_E_FORMAT, "it must be 0..7");
  accepted(base, (gguf_edit){0}, &info);
  /* near rows of four layers, far and index rows of each, one time with what is pooled, and tokens, of layer 0 */
  assert_int_equal(info.n_layers, 4);
  assert_int_equal(info.kv.n_sets, 4 * 3 + 1 + 3);
  assert_int_equal(weft_kv_bytes_per_token(&info.kv, true), (8 + 8) * 4 / 2 + (8 + 8) * 4);
}

static void test_lists(void **state) {
  (void)state;
  static const struct {
    const char *key;
    int32_t number[16];
    uint32_t n;
    weft_status status;
    const char *words;
  } lists[] = {
      {"attention.compress_ratios", {2, 2, 1}, 3, WEFT_E_FORMAT, "compress_ratios' has 3 elements for 4 layers"},
      {"attention.compress_ratios", {2, 2, 1, 4}, 4, WEFT_E_UNSUPPORTED, "is 4; rows for each one or two positions"},
      {"attention.compress_ratios", {2, 1, 1, 1}, 4, WEFT_E_FORMAT, "gives layer 1 1 and layer 0, whose far rows"},
      {"attention.compress_ratios",
       {0, 2, 1, 1},
       4,
       WEFT_E_FORMAT,
       "layer 0 has tensors of far rows, and none by its 0 in 'attention.compress_ratios'"},
      {"attention.compress_ratios", {1, 1, 1, 1}, 4, WEFT_E_UNSUPPORTED, "attn_compressor_gate.weight' is not used"},
      {"engram.layer_ids", {2, 1}, 2, WEFT_E_FORMAT, "is 1; it must be 3..3"},
      {"engram.layer_ids", {1}, 1, WEFT_E_FORMAT, "multipliers' has 6 elements; 3 are needed"},
      {"engram.primes", {5, 7, 11, 13, 17, 19, 23, 0}, 8, WEFT_E_FORMAT, "primes' is 0; it must be 1.."},
      {"engram.primes",
       {5, 7, 11, 14, 17, 19, 23, 29},
       8,
       WEFT_E_FORMAT,
       "rows 23 to 36 of head 3 are not in its table"},
      {"engram.offsets",
       {0, 5, 12, 23, 0, 17, 36, 60},
       8,
       WEFT_E_FORMAT,
       "rows 60 to 88 of head 7 are not in its table"},
      {"engram.token_map", {0, 1, 2, 3, 1, 4, 5}, 7, WEFT_E_FORMAT, "token_map' has 7 elements; 8 are needed"},
      {"engram.token_map", {0, 1, 2, 3, 1, 4, -5, 1}, 8, WEFT_E_FORMAT, "is -5; it must not be negative"},
      {"engram.token_map", {0, 1, 2, 3, 1, 4, 1 << 30, 1}, 8, WEFT_E_FORMAT, "has more than 63 bits"},
  };
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
    char key[96];
    (void)snprintf(key, sizeof key, "deepseek41.%s", lists[i].key);
    refused(base, (gguf_edit){.set_list = key, .list = lists[i].number, .n_list = lists[i].n}, lists[i].status,
            lists[i].words);
  }
}

static void test_tensors(void **state) {
  (void)state;
  static const char *const needed[] = {"output.weight",
                                       "blk.0.hc_attn_fn.weight",
                                       "blk.2.hc_ffn_base.weight",
                                       "blk.0.attn_q_a_norm.weight",
                                       "blk.3.attn_sinks.weight",
                                       "blk.0.attn_compressor_gate.weight",
                                       "blk.2.attn_compressor_norm.weight",
                                       "blk.0.indexer.k_norm.weight",
                                       "blk.3.indexer.proj.weight",
                                       "blk.1.exp_probs_b.bias",
                                       "blk.1.engram_embd.weight",
                                       "blk.2.engram_wkv.weight",
                                       "blk.1.engram_q.weight",
                                       "blk.2.engram_k.weight"};
  char words[96];
  for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
    (void)snprintf(words, sizeof words, "'%s' is missing", needed[i]);
    refused(base, (gguf_edit){.drop_tensor = needed[i]}, WEFT_E_FORMAT, words);
  }
  refused(deep, (gguf_edit){.drop_tensor = "per_layer_token_embd.weight"}, WEFT_E_FORMAT,
          "'per_layer_token_embd.weight' is missing");
  refused(deep, (gguf_edit){.drop_tensor = "blk.0.engram_gate.weight"}, WEFT_E_FORMAT,
          "'blk.0.engram_q.weight' is missing");
  refused(deep, (gguf_edit){.reshape = "blk.0.engram_gate.weight"}, WEFT_E_FORMAT, "expected 8 x 3");
  refused(base, (gguf_edit){.reshape = "blk.1.engram_q.weight"}, WEFT_E_FORMAT, "expected 8 x 2");
  refused(base, (gguf_edit){.reshape = "blk.1.engram_embd.weight"}, WEFT_E_FORMAT,
          "of head 3 are not in its table of 35");
  refused(base, (gguf_edit){.drop_tensor = "blk.0.attn_compressor_kv.weight"}, WEFT_E_FORMAT,
          "layer 0 has some of 'attn_compressor_kv'");
  refused(base, (gguf_edit){.drop_tensor = "blk.2.indexer.attn_q_b.weight"}, WEFT_E_FORMAT,
          "layer 2 has some of 'attn_compressor_kv'");
  refused(base, (gguf_edit){.add_scalar = "blk.0.attn_compressor_ape.weight"}, WEFT_E_UNSUPPORTED,
          "is not used by a deepseek41");
}

/* Files of converters that say less, or in other names, and tables of fewer bits. */
static void test_other_files(void **state) {
  (void)state;
  weft_model_info info;
  accepted(deep, (gguf_edit){0}, &info);
  accepted(deep, (gguf_edit){.drop_key = "deepseek41.attention.kv_source_layers"}, &info); /* 2048 blocks of 8 then */
  accepted(deep, (gguf_edit){.set_u32 = "deepseek41.nextn_predict_layers", .value = 2}, &info);
  accepted(base, (gguf_edit){.drop_key = "deepseek41.swiglu_clamp_shexp"}, &info);
  refused(base, (gguf_edit){.add_scalar = "blk.3.exp_probs_b_vl.bias"}, WEFT_E_FORMAT, "expected 3 x 1");
  accepted(base, (gguf_edit){.quantise = "blk.1.engram_embd.weight", .type = WEFT_TYPE_F16}, &info);
  accepted(base, (gguf_edit){.drop_key = "deepseek41.attention.indexer.candidate_source_layer"}, &info);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_keys),
      cmocka_unit_test(test_lists),
      cmocka_unit_test(test_tensors),
      cmocka_unit_test(test_other_files),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
