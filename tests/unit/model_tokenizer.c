/* SPDX-License-Identifier: MIT */
/* Opening vocabularies: what is read, and what is refused with one clear line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/memory.h"
#include "model/text/tokenizer_internal.h"
#include "tests/support/tokenizer_fixture.h"

static void test_alphabet(void **state) {
  (void)state;
  bool seen[0x144] = {false};
  for (unsigned b = 0; b < 256; b++) {
    uint32_t c = gpt2_character((uint8_t)b);
    assert_true(c < 0x144);
    assert_false(seen[c]);
    seen[c] = true;
    assert_int_equal(gpt2_byte(c), b);
  }
  assert_int_equal(gpt2_character(' '), 0x120);
  assert_int_equal(gpt2_character('\n'), 0x10A);
  assert_int_equal(gpt2_character('\t'), 0x109);
  assert_int_equal(gpt2_character(0x7F), 0x121);
  assert_int_equal(gpt2_character(0xAD), 0x143);
  assert_int_equal(gpt2_byte(' '), -1);
  assert_int_equal(gpt2_byte(0x144), -1);
  assert_int_equal(gpt2_byte(0x2581), -1);
}

static void test_gemma4_reads_everything(void **state) {
  (void)state;
  tokenizer_fixture f = {0};
  fixture_gemma4(&f);
  int32_t suppressed[] = {7, 5};
  gguf_writer_array(&f.writer, "tokenizer.ggml.suppress_tokens", WEFT_GGUF_I32, suppressed, 2, 4);
  gguf_writer_bool(&f.writer, "tokenizer.ggml.add_bos_token", false);
  weft_tokenizer *t = fixture_tokenizer(&f);
  assert_int_equal(weft_tokenizer_n_vocab(t), f.n);
  assert_int_equal(weft_tokenizer_bos(t), GEMMA_BOS);
  assert_int_equal(t->eos, GEMMA_EOS);
  assert_int_equal(t->pad, GEMMA_PAD);
  assert_int_equal(t->unk, GEMMA_UNK);
  assert_int_equal(t->mask, GEMMA_MASK);
  assert_true(t->add_bos); /* whatever the file says */
  assert_int_equal(weft_tokenizer_find(t, "<|turn>"), GEMMA_TURN);
  assert_int_equal(weft_tokenizer_find(t, "<|turn"), -1);
  assert_int_equal(weft_tokenizer_find(t, ""), -1);
  assert_true(weft_tokenizer_is_control(t, GEMMA_TURN));
  assert_false(weft_tokenizer_is_control(t, GEMMA_CHANNEL));
  assert_false(weft_tokenizer_is_control(t, -1));
  assert_false(weft_tokenizer_is_control(t, (int32_t)f.n));
  uint32_t n;
  const int32_t *eog = weft_tokenizer_eog(t, &n); /* by text and by key, ascending */
  assert_int_equal(n, 3);
  assert_int_equal(eog[0], GEMMA_EOS);
  assert_int_equal(eog[1], GEMMA_TURN_END);
  assert_int_equal(eog[2], GEMMA_TOOL_RESPONSE);
  assert_true(weft_tokenizer_is_eog(t, GEMMA_TURN_END));
  assert_false(weft_tokenizer_is_eog(t, GEMMA_TURN));
  assert_true(weft_tokenizer_is_control(t, GEMMA_TOOL_RESPONSE)); /* it ends generations: no longer printed */
  const int32_t *list = weft_tokenizer_suppressed(t, &n);
  assert_int_equal(n, 2);
  assert_int_equal(list[0], 7);
  assert_int_equal(list[1], 5);
  assert_int_equal(t->kind, TOKENIZER_GEMMA4);
  fixture_close(&f);
}

static void test_eog_adjustments(void **state) {
  (void)state;
  tokenizer_fixture f = {0};
  fixture_gpt2(&f, "gpt-2");
  uint32_t end = fixture_token(&f, "<|end|>", FIXTURE_CONTROL);
  uint32_t returned = fixture_token(&f, "<|return|>", FIXTURE_CONTROL);
  uint32_t call = fixture_token(&f, "<|call|>", FIXTURE_NORMAL);
  uint32_t channel = fixture_token(&f, "<|channel|>", FIXTURE_CONTROL);
  uint32_t pad = fixture_token(&f, "<|fim_pad|>", FIXTURE_CONTROL);
  uint32_t eot = fixture_token(&f, "stop", FIXTURE_USER);
  gguf_writer_u32(&f.writer, "tokenizer.ggml.eot_token_id", eot);
  gguf_writer_i32(&f.writer, "tokenizer.ggml.bos_token_id", -1);
  gguf_writer_u32(&f.writer, "tokenizer.ggml.padding_token_id", 0xFFFFFFFFu);
  weft_tokenizer *t = fixture_tokenizer(&f);
  assert_false(weft_tokenizer_is_eog(t, (int32_t)end));
  assert_false(weft_tokenizer_is_control(t, (int32_t)end));
  assert_true(weft_tokenizer_is_eog(t, (int32_t)returned));
  assert_true(weft_tokenizer_is_eog(t, (int32_t)call));
  assert_true(weft_tokenizer_is_control(t, (int32_t)call));
  assert_false(weft_tokenizer_is_control(t, (int32_t)channel));
  assert_true(weft_tokenizer_is_eog(t, (int32_t)pad));
  assert_true(weft_tokenizer_is_eog(t, (int32_t)eot));
  assert_int_equal(weft_tokenizer_bos(t), -1);
  assert_int_equal(t->pad, -1);
  assert_int_equal(t->eos, -1);
  assert_false(t->add_bos);
  assert_string_equal(split_name(t->split), "gpt-2");
  fixture_close(&f);
}

static void test_end_of_sentence_is_text_beside_tool_responses(void **state) {
  (void)state;
  tokenizer_fixture f = {0};
  fixture_gemma4(&f);
  uint32_t id = fixture_token(&f, "</s>", FIXTURE_CONTROL);
  weft_tokenizer *t = fixture_tokenizer(&f);
  assert_false(weft_tokenizer_is_eog(t, (int32_t)id));
  assert_false(weft_tokenizer_is_control(t, (int32_t)id));
  fixture_close(&f);
}

static void test_llama_defaults(void **state) {
  (void)state;
  tokenizer_fixture f = {0};
  fixture_llama(&f);
  fixture_bytes(&f);
  weft_tokenizer *t = fixture_tokenizer(&f);
  assert_int_equal(weft_tokenizer_bos(t), 1);
  assert_int_equal(t->eos, 2);
  assert_int_equal(t->unk, 0);
  assert_true(t->add_bos);
  assert_true(weft_tokenizer_adds_space(t));
  assert_true(weft_tokenizer_is_eog(t, 2));
  fixture_close(&f);
}

/* Opens, wants a refusal of this status whose line has these words; closes the fixture. */
static void refused(tokenizer_fixture *f, weft_status status, const char *words) {
  weft_tokenizer *t;
  weft_error error = {{0}};
  weft_status got = fixture_open(f, &t, &error);
  if (got != status || strstr(error.text, words) == NULL || strchr(error.text, '\n') != NULL) {
    fail_msg("got %d '%s', wanted %d '%s'", got, error.text, status, words);
  }
  assert_null(t);
  fixture_close(f);
}

static void test_refuses_models(void **state) {
  (void)state;
  tokenizer_fixture f = {.model = "bert"};
  (void)fixture_token(&f, "a", FIXTURE_NORMAL);
  refused(&f, WEFT_E_UNSUPPORTED, "tokenizer.ggml.model is 'bert'; weft reads gpt2, llama and gemma4");
  static const char *const pres[] = {"gpt-9",       "",     " ",
                                     "gpt-2 phi-2", "qwen", "an-absurdly-long-name-of-a-pre-tokenizer-that-is-none"};
  for (size_t i = 0; i < sizeof pres / sizeof *pres; i++) {
    fixture_gpt2(&f, pres[i]);
    refused(&f, WEFT_E_UNSUPPORTED, "tokenizer.ggml.pre is '");
  }
}

/* As Ollama writes Gemma 4: called llama, scores that count, byte tokens typed as text, markers typed as control. */
static void fixture_ollama(tokenizer_fixture *f) {
  fixture_gemma4(f);
  (void)fixture_token(f, "<0xZZ>", FIXTURE_NORMAL);
  f->model = "llama";
  f->pre = "gemma4";
  while (f->n < 600) {
    char text[16];
    (void)snprintf(text, sizeof text, "filler%u", f->n);
    (void)fixture_token(f, text, FIXTURE_NORMAL);
  }
  for (uint32_t i = 0; i < f->n; i++) {
    f->scores[i] = (float)i;
    if (f->types[i] == FIXTURE_BYTE) f->types[i] = FIXTURE_NORMAL;
    if (i >= GEMMA_CHANNEL && i <= GEMMA_TOOL_RESPONSE) f->types[i] = FIXTURE_CONTROL;
  }
}

static void test_ollama_gemma4_is_read_as_gemma4(void **state) {
  (void)state;
  static const char text[] = "a\n\n\nb  \xC3\xA9!<|channel>";
  tokenizer_fixture f[2] = {0};
  weft_tokenizer *t[2];
  weft_tokens tokens[2] = {0};
  weft_error error = {{0}};
  const uint32_t ends[] = {GEMMA_EOS, GEMMA_TURN_END};
  fixture_gemma4(&f[0]);
  fixture_ollama(&f[1]);
  gguf_writer_array(&f[1].writer, "tokenizer.ggml.eos_token_ids", WEFT_GGUF_U32, ends, 2, 4);
  for (int i = 0; i < 2; i++) {
    t[i] = fixture_tokenizer(&f[i]);
    unsigned flags = WEFT_ENCODE_ADD_SPECIAL | WEFT_ENCODE_PARSE_SPECIAL;
    assert_int_equal(weft_tokenizer_encode(t[i], text, strlen(text), flags, &tokens[i], &error), WEFT_OK);
  }
  assert_int_equal(tokens[0].n, tokens[1].n);
  assert_memory_equal(tokens[0].ids, tokens[1].ids, tokens[0].n * sizeof *tokens[0].ids);
  for (int32_t id = 0; id < (int32_t)f[0].n; id++) {
    assert_int_equal(weft_tokenizer_is_control(t[0], id), weft_tokenizer_is_control(t[1], id));
    assert_int_equal(weft_tokenizer_is_eog(t[0], id), weft_tokenizer_is_eog(t[1], id));
  }
  for (int i = 0; i < 2; i++) {
    weft_tokens_free(&tokens[i]);
    fixture_close(&f[i]);
  }
}

static void test_refuses_what_contradicts_itself(void **state) {
  (void)state;
  tokenizer_fixture f = {0};
  fixture_ollama(&f);
  for (uint32_t i = 0; i < f.n_merges; i++) free(f.merges[i]);
  f.n_merges = 0;
  refused(&f, WEFT_E_FORMAT, "tokenizer.ggml.pre is 'gemma4' but there are no tokenizer.ggml.merges; convert");
  fixture_ollama(&f);
  f.pre = "qwen2";
  refused(&f, WEFT_E_UNSUPPORTED, "tokenizer.ggml.model is 'llama' but tokenizer.ggml.pre is 'qwen2'");
  fixture_ollama(&f);
  f.pre = NULL;
  refused(&f, WEFT_E_FORMAT, "tokenizer.ggml.scores are the numbers of the tokens");
  fixture_gemma4(&f);
  const float score = 0;
  gguf_writer_array(&f.writer, "tokenizer.ggml.eos_token_ids", WEFT_GGUF_F32, &score, 1, 4);
  refused(&f, WEFT_E_FORMAT, "key 'tokenizer.ggml.eos_token_ids' has type array of f32; it must be an integer");
  fixture_gemma4(&f);
  const uint32_t beyond = 1u << 20;
  gguf_writer_array(&f.writer, "tokenizer.ggml.eos_token_ids", WEFT_GGUF_U32, &beyond, 1, 4);
  refused(&f, WEFT_E_FORMAT, "tokenizer.ggml.eos_token_ids[0] is 1048576; it must be a token below");
}

static void test_refuses_what_is_missing(void **state) {
  (void)state;
  gguf_writer w = {0};
  weft_gguf *gguf;
  weft_tokenizer *t;
  weft_error error = {{0}};
  gguf_writer_string(&w, "general.architecture", "test");
  weft_bytes bytes = gguf_writer_finish(&w);
  assert_int_equal(weft_gguf_open_memory(bytes.data, bytes.n, "bare.gguf", &gguf, &error), WEFT_OK);
  assert_int_equal(weft_tokenizer_open(gguf, &t, &error), WEFT_E_NOT_FOUND);
  assert_non_null(strstr(error.text, "bare.gguf has no tokenizer"));
  weft_gguf_close(gguf);
  gguf_writer_string(&w, "tokenizer.ggml.model", "gemma4");
  bytes = gguf_writer_finish(&w);
  assert_int_equal(weft_gguf_open_memory(bytes.data, bytes.n, "bare.gguf", &gguf, &error), WEFT_OK);
  assert_int_equal(weft_tokenizer_open(gguf, &t, &error), WEFT_E_FORMAT);
  assert_non_null(strstr(error.text, "tokenizer.ggml.tokens has 0 entries"));
  weft_gguf_close(gguf);
  const char *one[] = {"a"};
  gguf_writer_strings(&w, "tokenizer.ggml.tokens", one, 1);
  bytes = gguf_writer_finish(&w);
  assert_int_equal(weft_gguf_open_memory(bytes.data, bytes.n, "bare.gguf", &gguf, &error), WEFT_OK);
  assert_int_equal(weft_tokenizer_open(gguf, &t, &error), WEFT_E_FORMAT);
  assert_non_null(strstr(error.text, "tokenizer.ggml.merges is missing"));
  weft_gguf_close(gguf);
  gguf_writer_close(&w);
}

static void test_refuses_tokens(void **state) {
  (void)state;
  tokenizer_fixture f = {0};
  fixture_gemma4(&f);
  (void)fixture_token(&f, "A", FIXTURE_NORMAL);
  refused(&f, WEFT_E_FORMAT, "are both 'A'");
  fixture_gemma4(&f);
  (void)fixture_token(&f, "x7", 9);
  refused(&f, WEFT_E_FORMAT, "is 9; it must be 0 to 6");
  fixture_gemma4(&f);
  (void)fixture_token(&f, "<0xGG>", FIXTURE_BYTE);
  refused(&f, WEFT_E_FORMAT, "is a byte token but reads '<0xGG>'");
  fixture_gemma4(&f);
  (void)fixture_token(&f, "cut\xE2", FIXTURE_USER);
  refused(&f, WEFT_E_FORMAT, "is special but its text is not UTF-8");
  f.model = "llama";
  (void)fixture_token_scored(&f, "a", FIXTURE_NORMAL, (float)strtod("nan", NULL));
  refused(&f, WEFT_E_FORMAT, "scores[0] is not a number");
}

/* Two empty texts are no duplicates: padding of real files; and they are never found. */
static void test_empty_tokens(void **state) {
  (void)state;
  tokenizer_fixture f = {0};
  fixture_gemma4(&f);
  for (int i = 0; i < 200; i++) (void)fixture_token(&f, "", i % 2 == 0 ? FIXTURE_UNUSED : FIXTURE_CONTROL);
  (void)fixture_token(&f, "zz", FIXTURE_NORMAL);
  weft_tokenizer *t = fixture_tokenizer(&f);
  assert_int_equal(weft_tokenizer_find(t, ""), -1);
  assert_int_equal(weft_tokenizer_find(t, "zz"), (int32_t)f.n - 1);
  weft_text text = {0};
  assert_int_equal(weft_tokenizer_piece(t, (int32_t)f.n - 2, true, &text), WEFT_OK);
  assert_int_equal(text.n, 0);
  weft_text_free(&text);
  fixture_close(&f);
}

static void test_refuses_lengths(void **state) {
  (void)state;
  static const char *const keys[] = {"tokenizer.ggml.token_type", "tokenizer.ggml.scores"};
  for (int i = 0; i < 2; i++) {
    gguf_writer w = {0};
    const char *tokens[] = {"a", "b"};
    int32_t types[] = {1, 1, 1};
    float scores[] = {0, 0, 0};
    gguf_writer_string(&w, "tokenizer.ggml.model", "llama");
    gguf_writer_strings(&w, "tokenizer.ggml.tokens", tokens, 2);
    gguf_writer_array(&w, keys[0], WEFT_GGUF_I32, types, i == 0 ? 3 : 2, 4);
    gguf_writer_array(&w, keys[1], WEFT_GGUF_F32, scores, i == 0 ? 2 : 1, 4);
    weft_bytes bytes = gguf_writer_finish(&w);
    weft_gguf *gguf;
    weft_tokenizer *t;
    weft_error error = {{0}};
    assert_int_equal(weft_gguf_open_memory(bytes.data, bytes.n, "odd.gguf", &gguf, &error), WEFT_OK);
    assert_int_equal(weft_tokenizer_open(gguf, &t, &error), WEFT_E_FORMAT);
    assert_non_null(strstr(error.text, keys[i]));
    assert_non_null(strstr(error.text, "entries for 2 tokens"));
    weft_gguf_close(gguf);
    gguf_writer_close(&w);
  }
}

/* An id that no token has is no reason to refuse a file: the token is looked for by its name. */
static void test_a_wrong_bos_is_told(void **state) {
  (void)state;
  for (int named = 0; named < 2; named++) {
    tokenizer_fixture f = {0};
    fixture_gpt2(&f, "gpt-2");
    uint32_t id = named == 0 ? 0 : fixture_token(&f, "<s>", FIXTURE_CONTROL);
    gguf_writer_u32(&f.writer, "tokenizer.ggml.bos_token_id", 100000);
    weft_tokenizer *t = fixture_tokenizer(&f);
    assert_int_equal(weft_tokenizer_bos(t), named == 0 ? -1 : (int32_t)id);
    fixture_close(&f);
  }
  tokenizer_fixture f = {0};
  fixture_gpt2(&f, "gpt-2");
  gguf_writer_string(&f.writer, "tokenizer.ggml.bos_token_id", "one");
  refused(&f, WEFT_E_FORMAT, "tokenizer.ggml.bos_token_id");
}

static void test_refuses_ids(void **state) {
  (void)state;
  static const char *const keys[] = {"eos", "unknown", "padding", "mask", "eot", "fim_pad"};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    tokenizer_fixture f = {0};
    char key[64];
    (void)snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", keys[i]);
    fixture_gpt2(&f, "gpt-2");
    gguf_writer_u32(&f.writer, key, 256);
    refused(&f, WEFT_E_FORMAT, "is 256; it must be a token below 256");
  }
  tokenizer_fixture f = {0};
  fixture_gpt2(&f, "gpt-2");
  gguf_writer_i32(&f.writer, "tokenizer.ggml.eos_token_id", -2);
  refused(&f, WEFT_E_FORMAT, "is -2");
  fixture_gpt2(&f, "gpt-2");
  gguf_writer_string(&f.writer, "tokenizer.ggml.eos_token_id", "one");
  refused(&f, WEFT_E_FORMAT, "tokenizer.ggml.eos_token_id");
  fixture_gpt2(&f, "gpt-2");
  gguf_writer_bool(&f.writer, "tokenizer.ggml.add_bos_token", true);
  refused(&f, WEFT_E_FORMAT, "bos_token_id does not name");
  fixture_gpt2(&f, "gpt-2");
  gguf_writer_bool(&f.writer, "tokenizer.ggml.add_eos_token", true);
  refused(&f, WEFT_E_FORMAT, "eos_token_id does not name");
  fixture_gpt2(&f, "gpt-2");
  int32_t bad[] = {256};
  gguf_writer_array(&f.writer, "tokenizer.ggml.suppress_tokens", WEFT_GGUF_I32, bad, 1, 4);
  refused(&f, WEFT_E_FORMAT, "suppress_tokens[0] is 256");
  f.model = "gemma4";
  (void)fixture_token(&f, "a", FIXTURE_NORMAL);
  refused(&f, WEFT_E_FORMAT, "bos_token_id does not name");
}

static void test_refuses_merges(void **state) {
  (void)state;
  static const char *const lines[] = {"ab", "a ", " a", "", "a", " "};
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
    tokenizer_fixture f = {0};
    fixture_gemma4(&f);
    fixture_merge(&f, "a", "b");
    free(f.merges[f.n_merges - 1]);
    f.merges[f.n_merges - 1] = strdup(lines[i]);
    refused(&f, WEFT_E_FORMAT, "it must be two texts with a space between");
  }
}

static void test_missing_pre_is_default(void **state) {
  (void)state;
  tokenizer_fixture f = {0};
  fixture_gpt2(&f, NULL);
  weft_log_set_level(WEFT_LOG_ERROR);
  weft_tokenizer *t = fixture_tokenizer(&f);
  assert_string_equal(split_name(t->split), "default");
  fixture_close(&f);
}

/* Every allocation of open refused once: a clean refusal each time, then success. */
static void test_open_survives_refused_memory(void **state) {
  (void)state;
  static const char *const models[] = {"gemma4", "gpt2", "llama"};
  for (int m = 0; m < 3; m++) {
    tokenizer_fixture f = {0};
    weft_tokenizer *t;
    weft_error error;
    if (m == 1) {
      fixture_gpt2(&f, "deepseek-v3");
      fixture_merge(&f, "a", "b");
    } else {
      fixture_gemma4(&f);
      fixture_merge(&f, "ghost", "part"); /* parts that are no tokens */
      f.model = models[m];
    }
    assert_int_equal(fixture_open(&f, &t, &error), WEFT_OK);
    weft_tokenizer_close(t);
    uint64_t n = 1;
    for (;; n++) {
      (void)weft_memory_fail_at(n);
      weft_status status = weft_tokenizer_open(f.gguf, &t, &error);
      uint64_t n_asked = weft_memory_fail_at(0);
      if (status == WEFT_OK) {
        weft_tokenizer_close(t);
        if (n_asked < n) break; /* else a refusal that only costs speed: PCRE2's compiler */
      } else {
        assert_int_equal(status, WEFT_E_NO_MEMORY);
        assert_null(t);
      }
      assert_true(n < 10000);
    }
    assert_true(n > 5);
    fixture_close(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_alphabet),
      cmocka_unit_test(test_gemma4_reads_everything),
      cmocka_unit_test(test_eog_adjustments),
      cmocka_unit_test(test_end_of_sentence_is_text_beside_tool_responses),
      cmocka_unit_test(test_llama_defaults),
      cmocka_unit_test(test_refuses_models),
      cmocka_unit_test(test_ollama_gemma4_is_read_as_gemma4),
      cmocka_unit_test(test_refuses_what_contradicts_itself),
      cmocka_unit_test(test_refuses_what_is_missing),
      cmocka_unit_test(test_refuses_tokens),
      cmocka_unit_test(test_empty_tokens),
      cmocka_unit_test(test_refuses_lengths),
      cmocka_unit_test(test_a_wrong_bos_is_told),
      cmocka_unit_test(test_refuses_ids),
      cmocka_unit_test(test_refuses_merges),
      cmocka_unit_test(test_missing_pre_is_default),
      cmocka_unit_test(test_open_survives_refused_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
