/* SPDX-License-Identifier: MIT */
/* Opening what cannot be served: each file differs from a sound one in one fact, each set of options in one number.
 * Every refusal is one line that names the file and what is wrong with it, the status says whose fault it is, nothing
 * is left open or leaks, and a sound model opens afterwards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/log.h"
#include "tests/support/gguf_edit.h"
#include "tests/support/small_runtime.h"

static void refused_with(const weft_open_options *options, weft_status wanted, const char *words) {
  weft_runtime *runtime = (weft_runtime *)(void *)&wanted;
  char error[600];
  memset(error, 'x', sizeof error);
  int status = weft_open(options, &runtime, error, sizeof error);
  error[sizeof error - 1] = 0;
  bool good = status == (int)wanted && runtime == NULL && strstr(error, words) != NULL && strchr(error, '\n') == NULL;
  if (!good) {
    fail_msg("status %d (%s), wanted %d with '%s'", status, status == 0 ? "it opened" : error, (int)wanted, words);
  }
  /* no line wanted, and a line that is too long */
  assert_int_equal(weft_open(options, &runtime, NULL, 0), status);
  assert_int_equal(weft_open(options, &runtime, error, 8), status);
  assert_true(strlen(error) == 7);
}

static void refused_file(const char *path, weft_status wanted, const char *words) {
  weft_open_options options = small_runtime(&path, 1);
  refused_with(&options, wanted, words);
  char error[600] = "";
  weft_runtime *runtime;
  (void)weft_open(&options, &runtime, error, sizeof error);
  if (strstr(error, path) == NULL) fail_msg("the line does not name the file: %s", error);
}

static void refused(const char *name, gguf_edit e, weft_status wanted, const char *words) {
  char source[400];
  (void)snprintf(source, sizeof source, MODELS "%s.gguf", name);
  refused_file(gguf_edit_file(source, &e, "bad"), wanted, words);
}

static void opens(const char *path) {
  weft_open_options options = small_runtime(&path, 1);
  weft_runtime *runtime;
  char error[512] = "";
  if (weft_open(&options, &runtime, error, sizeof error) != 0) fail_msg("%s", error);
  assert_null(weft_unwell(runtime));
  assert_true(weft_idle(runtime) && weft_n_models(runtime) == 1 && weft_plan(runtime) != NULL);
  weft_close(runtime);
}

/* ---- files --------------------------------------------------------------------------------------------- */

static void test_architecture(void **state) {
  (void)state;
  refused("ar-base", (gguf_edit){.set_string = "general.architecture", .text = "rwkv7"}, WEFT_E_UNSUPPORTED,
          "architecture 'rwkv7' is not supported");
  refused("ar-base", (gguf_edit){.set_string = "general.architecture", .text = "llama"}, WEFT_E_FORMAT, "llama.");
  refused("ar-base", (gguf_edit){.drop_key = "general.architecture"}, WEFT_E_FORMAT, "general.architecture");
  refused("dg-base", (gguf_edit){.set_string = "general.architecture", .text = "gemma4"}, WEFT_E_FORMAT, "gemma4.");
  /* without the key a canvas has 256 rows, which this small runtime has no step for */
  refused("dg-base", (gguf_edit){.drop_key = "diffusion.canvas_length"}, WEFT_E_INVALID, "a canvas of 256 rows needs");
  refused("dg-base", (gguf_edit){.set_u32 = "diffusion.canvas_length", .value = 0}, WEFT_E_FORMAT, "canvas_length");
}

/* What is served does not depend on its file any more: nothing of it is mapped, so a file that is cut raises no signal. */
static void test_file_is_let_go(void **state) {
  (void)state;
  const char *path = gguf_edit_file(MODELS "ar-base.gguf", &(gguf_edit){0}, "let-go");
  weft_open_options options = small_runtime(&path, 1);
  weft_runtime *runtime;
  char line[4096] = "";
  if (weft_open(&options, &runtime, line, sizeof line) != 0) fail_msg("%s", line);
  FILE *maps = fopen("/proc/self/maps", "re");
  assert_non_null(maps);
  while (fgets(line, sizeof line, maps) != NULL) assert_null(strstr(line, path));
  assert_int_equal(fclose(maps), 0);
  weft_close(runtime);
}

static void test_types(void **state) {
  (void)state;
  static const int32_t unknown[] = {4, 31, 41, 1000, -1, INT32_MAX};
  for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
    refused("ar-base", (gguf_edit){.retype = "blk.0.attn_q.weight", .type = unknown[i]}, WEFT_E_UNSUPPORTED,
            "blk.0.attn_q.weight");
  }
  /* a type that exists, but the bytes are not there for it or too many */
  refused("ar-base", (gguf_edit){.retype = "blk.0.attn_q.weight", .type = WEFT_TYPE_Q4_K}, WEFT_E_FORMAT,
          "blk.0.attn_q.weight");
}

static void test_tensors(void **state) {
  (void)state;
  static const char *const names[] = {"token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight",
                                      "blk.3.ffn_down_exps.weight", "blk.1.ffn_gate_inp.weight"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    refused("ar-base", (gguf_edit){.drop_tensor = names[i]}, WEFT_E_FORMAT, names[i]);
    refused("ar-base", (gguf_edit){.reshape = names[i]}, WEFT_E_FORMAT, i == 0 ? "127 embeddings" : names[i]);
  }
  refused("dg-base", (gguf_edit){.drop_tensor = "self_cond_down.weight"}, WEFT_E_FORMAT, "self_cond_down");
  refused("dg-base", (gguf_edit){.drop_tensor = "blk.2.enc_layer_output_scale.weight"}, WEFT_E_FORMAT,
          "enc_layer_output_scale");
}

static void test_tokenizers(void **state) {
  (void)state;
  refused("ar-base", (gguf_edit){.fewer_tokens = 1}, WEFT_E_FORMAT, "tokenizer.ggml.");
  refused("ar-base", (gguf_edit){.fewer_tokens = 128}, WEFT_E_FORMAT, "tokenizer.ggml.");
  refused("ar-base", (gguf_edit){.drop_key = "tokenizer.ggml.tokens"}, WEFT_E_FORMAT, "tokenizer.ggml.tokens");
  refused("ar-base", (gguf_edit){.drop_key = "tokenizer.ggml.model"}, WEFT_E_NOT_FOUND, "tokenizer.ggml.model");
  refused("ar-base", (gguf_edit){.set_string = "tokenizer.ggml.model", .text = "rwkv"}, WEFT_E_UNSUPPORTED, "rwkv");
  opens(gguf_edit_file(MODELS "ar-base.gguf", &(gguf_edit){.set_u32 = "tokenizer.ggml.bos_token_id", .value = 128},
                       "no_bos")); /* a warning: another token of that meaning is looked for */
}

static void test_absurd(void **state) {
  (void)state;
  static const struct {
    const char *key;
    uint32_t value;
    const char *words;
  } rows[] = {
      {"gemma4.context_length", 0, "gemma4.context_length"},
      {"gemma4.block_count", 0, "gemma4.block_count"},
      {"gemma4.block_count", UINT32_MAX, "gemma4.block_count"},
      {"gemma4.embedding_length", UINT32_MAX, "gemma4.embedding_length"},
      {"gemma4.embedding_length", 1u << 31, "gemma4.embedding_length"},
      {"gemma4.feed_forward_length", UINT32_MAX, "feed_forward_length"},
      {"gemma4.attention.head_count", UINT32_MAX, "gemma4.attention.head_count"},
      {"gemma4.attention.head_count_kv", UINT32_MAX, "gemma4.attention.head_count_kv"},
      {"gemma4.attention.key_length", UINT32_MAX, "gemma4.attention.key_length"},
      {"gemma4.attention.key_length_swa", 0, "gemma4.attention.key_length_swa"},
      {"gemma4.expert_count", UINT32_MAX, "expert_count"},
      {"gemma4.expert_used_count", UINT32_MAX, "gemma4.expert_used_count"},
      {"gemma4.expert_feed_forward_length", UINT32_MAX, "expert_feed_forward_length"},
      {"gemma4.attention.sliding_window", 0, "gemma4.attention.sliding_window"},
      {"gemma4.vocab_size", UINT32_MAX, "vocab_size 4294967295"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    refused("ar-base", (gguf_edit){.set_u32 = rows[i].key, .value = rows[i].value}, WEFT_E_FORMAT, rows[i].words);
  }
  refused("ar-base", (gguf_edit){.set_u32 = "gemma4.context_length", .value = 1}, WEFT_E_INVALID, "a context of 1");
  refused("ar-base", (gguf_edit){.set_f32 = "gemma4.rope.freq_base", .real = 0.0f}, WEFT_E_FORMAT, "freq_base");
  refused("ar-base", (gguf_edit){.set_f32 = "gemma4.final_logit_softcapping", .real = -INFINITY}, WEFT_E_FORMAT,
          "final_logit_softcapping");
  refused("ar-base", (gguf_edit){.set_f32 = "gemma4.attention.layer_norm_rms_epsilon", .real = NAN}, WEFT_E_FORMAT,
          "layer_norm_rms_epsilon");
  refused("dg-base", (gguf_edit){.set_u32 = "diffusion.canvas_length", .value = UINT32_MAX}, WEFT_E_FORMAT,
          "canvas_length");
  refused("dg-base", (gguf_edit){.set_f32 = "diffusion.eb_t_max", .real = NAN}, WEFT_E_FORMAT, "eb_");
}

/* Cut anywhere, the file is refused: never read beyond its end, never half a model. */
static void test_truncated(void **state) {
  (void)state;
  static const char source[] = MODELS "dg-fused-c4.gguf";
  weft_gguf *gguf;
  weft_error error;
  assert_int_equal(weft_gguf_open(source, &gguf, &error), WEFT_OK);
  uint64_t n = gguf->parts[0].n_bytes;
  weft_gguf_close(gguf);
  for (uint64_t k = 1; k <= 60; k++) {
    uint64_t left = k < 20 ? k * 4 - 3 : n * (k - 19) / 42; /* the header closely, then evenly */
    const char *path = gguf_edit_file(source, &(gguf_edit){.cut = 1}, "cut");
    assert_int_equal(truncate(path, (off_t)left), 0);
    refused_file(path, WEFT_E_FORMAT, left < 24 ? "cut.gguf" : "cut.gguf: ");
  }
}

static void test_no_files(void **state) {
  (void)state;
  refused_file("/nowhere/model.gguf", WEFT_E_IO, "No such file");
  refused_file("/tmp", WEFT_E_IO, "not a regular file");
  refused_file("/dev/null", WEFT_E_IO, "not a regular file");
  refused_file(WEFT_SOURCE_DIR "/LICENSE", WEFT_E_FORMAT, "GGUF");
  refused_file("", WEFT_E_IO, "");
}

/* ---- options ------------------------------------------------------------------------------------------- */

static void test_options(void **state) {
  (void)state;
  static const char *const one[] = {MODELS "dg-base.gguf"};
  static const char *const twice[] = {MODELS "dg-base.gguf", MODELS "dg-base.gguf"};
  static const char *many[17];
  for (uint32_t i = 0; i < 17; i++) many[i] = one[0];
  weft_open_options o = small_runtime(one, 0);
  refused_with(&o, WEFT_E_INVALID, "no model was given");
  o = small_runtime(twice, 2);
  refused_with(&o, WEFT_E_INVALID, "would both be served as 'dg-base'");
  o = small_runtime(many, 17);
  refused_with(&o, WEFT_E_INVALID, "at most 16");
  o = small_runtime(one, 1);
  o.backend = "tpu";
  refused_with(&o, WEFT_E_UNSUPPORTED, "'tpu'");
  static const struct {
    size_t at; /* of a member of four bytes */
    uint32_t value;
    const char *words;
  } numbers[] = {{offsetof(weft_open_options, rows), 4, "canvas of 8 rows"},
                 {offsetof(weft_open_options, context), 1, "a context of 1 has no room"},
                 {offsetof(weft_open_options, context), UINT32_MAX, "out of range"},
                 {offsetof(weft_open_options, running), UINT32_MAX, "out of range"},
                 {offsetof(weft_open_options, queue), UINT32_MAX, "out of range"},
                 {offsetof(weft_open_options, rows), UINT32_MAX, "out of range"},
                 {offsetof(weft_open_options, tenants), UINT32_MAX, "out of range"}};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    o = small_runtime(one, 1);
    memcpy((char *)&o + numbers[i].at, &numbers[i].value, sizeof numbers[i].value);
    refused_with(&o, WEFT_E_INVALID, numbers[i].words);
  }
  o = small_runtime(one, 1);
  o.kv_bytes = 1;
  refused_with(&o, WEFT_E_INVALID, "raise --kv-mib");
  o.kv_bytes = UINT64_MAX;
  refused_with(&o, WEFT_E_INVALID, "lower --kv-mib");
}

/* A bad file among good ones refuses the whole, and names the bad one. */
static void test_among_good(void **state) {
  (void)state;
  const char *bad = gguf_edit_file(MODELS "ar-base.gguf", &(gguf_edit){.drop_tensor = "output_norm.weight"}, "among");
  const char *list[] = {MODELS "dg-base.gguf", bad, MODELS "ar-w16.gguf"};
  weft_open_options o = small_runtime(list, 3);
  refused_with(&o, WEFT_E_FORMAT, "among.gguf");
}

static void test_good_after_all(void **state) {
  (void)state;
  opens(MODELS "dg-base.gguf");
  opens(gguf_edit_file(MODELS "ar-base.gguf", &(gguf_edit){.drop_key = "general.name"}, "sound"));
  opens(gguf_edit_file(MODELS "ar-base.gguf", &(gguf_edit){.set_u32 = "gemma4.context_length", .value = 1 << 20},
                       "long"));
  opens(gguf_edit_file(MODELS "ar-base.gguf",
                       &(gguf_edit){.set_u32 = "gemma4.attention.sliding_window", .value = 1 << 20}, "wide"));
  gguf_edit_clean();
}

int main(void) {
  weft_log_set_level(WEFT_LOG_ERROR);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_architecture), cmocka_unit_test(test_file_is_let_go), cmocka_unit_test(test_types),
      cmocka_unit_test(test_tensors),      cmocka_unit_test(test_tokenizers),     cmocka_unit_test(test_absurd),
      cmocka_unit_test(test_truncated),    cmocka_unit_test(test_no_files),       cmocka_unit_test(test_options),
      cmocka_unit_test(test_among_good),   cmocka_unit_test(test_good_after_all),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
