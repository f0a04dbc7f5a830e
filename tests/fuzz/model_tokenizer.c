/* SPDX-License-Identifier: MIT */
/* Any bytes as a vocabulary, and any bytes as text.
 *
 * Input that begins with "GGUF" is a file: its vocabulary and chat template are opened and, when
 * sound, used. Any other input is text behind one byte that chooses the vocabulary; encoding must
 * succeed, give the text back (bad bytes replaced), and in plain mode give no special token. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "model/text/chat.h"
#include "model/text/tokenizer_internal.h"
#include "tests/support/fuzz_require.h"
#include "tests/support/tokenizer_fixture.h"

enum { N_VOCABULARIES = 13, N_VOCABULARY_MAX = 1024 };
static weft_tokenizer *vocabularies[N_VOCABULARIES];
static uint8_t types[N_VOCABULARIES][N_VOCABULARY_MAX];

static void open_vocabulary(uint32_t k) {
  static const char *const pres[] = {"default", "gpt-2",     "llama-bpe",      "qwen2",
                                     "qwen35",  "starcoder", "deepseek-coder", "deepseek-v3",
                                     "dbrx",    "kimi-k2",   "deepseek-llm"};
  static const char *const merges[][2] = {{"a", "b"}, {"b", "a"}, {"ab", "ab"}, {"<", "|"}, {"<|", "t"}, {"1", "2"}};
  tokenizer_fixture f = {0};
  weft_error error = {{0}};
  if (k < 2) {
    fixture_gemma4(&f);
    (void)fixture_token(&f, "  ", FIXTURE_USER);
    (void)fixture_token(&f, "un", FIXTURE_UNUSED);
  } else {
    fixture_gpt2(&f, pres[k - 2]);
    (void)fixture_token(&f, "<|im_start|>", FIXTURE_CONTROL);
    (void)fixture_token(&f, "<think>", FIXTURE_USER);
  }
  if (k == 1) {
    f.model = "llama";
    gguf_writer_bool(&f.writer, "tokenizer.ggml.add_space_prefix", false);
  }
  for (size_t i = 0; i < sizeof merges / sizeof *merges; i++) fixture_merge(&f, merges[i][0], merges[i][1]);
  if (fixture_open(&f, &vocabularies[k], &error) != WEFT_OK) fuzz_broken(error.text, __FILE__, __LINE__);
  for (uint32_t i = 0; i < f.n; i++) types[k][i] = (uint8_t)f.types[i];
  fixture_close(&f);
}

/* The text as a tokenizer sees it. */
static void seen_text(const weft_tokenizer *t, const char *text, size_t n, weft_text *out) {
  bool spaces = t->kind != TOKENIZER_GPT2;
  for (size_t at = 0; at < n;) {
    uint32_t c = 0;
    size_t length = weft_utf8_decode(text + at, n - at, &c);
    if (length == 0) {
      weft_text_puts(out, "\xEF\xBF\xBD");
    } else if (spaces && c == 0x2581) {
      weft_text_puts(out, " ");
    } else {
      weft_text_append(out, text + at, length);
    }
    at += length == 0 ? 1 : length;
  }
}

static void use_text(uint32_t k, const char *text, size_t n) {
  static const unsigned modes[] = {0, WEFT_ENCODE_PARSE_SPECIAL, WEFT_ENCODE_PLAIN};
  const weft_tokenizer *t = vocabularies[k];
  weft_text want = {0};
  seen_text(t, text, n, &want);
  for (int m = 0; m < 3; m++) {
    weft_tokens tokens = {0};
    weft_text back = {0};
    REQUIRE(weft_tokenizer_encode(t, text, n, modes[m], &tokens, NULL) == WEFT_OK);
    REQUIRE(weft_tokenizer_decode(t, tokens.ids, tokens.n, true, &back) == WEFT_OK);
    REQUIRE(back.n == want.n && (want.n == 0 || memcmp(back.bytes, want.bytes, want.n) == 0));
    for (uint32_t i = 0; i < tokens.n && modes[m] != WEFT_ENCODE_PARSE_SPECIAL; i++) {
      REQUIRE(!weft_tokenizer_is_control(t, tokens.ids[i]));
      bool user = types[k][tokens.ids[i]] == FIXTURE_USER;
      weft_text piece = {0};
      REQUIRE(weft_tokenizer_piece(t, tokens.ids[i], true, &piece) == WEFT_OK);
      REQUIRE(modes[m] == 0 || !user || strcmp(piece.bytes, "  ") == 0);
      weft_text_free(&piece);
    }
    weft_text_free(&back);
    weft_tokens_free(&tokens);
  }
  weft_text_free(&want);
}

static void use_chat(const weft_gguf *gguf, const weft_tokenizer *t) {
  weft_chat *chat;
  weft_error error;
  if (weft_chat_open(gguf, t, (weft_bytes){0}, NULL, &chat, &error) != WEFT_OK) return;
  weft_chat_message messages[] = {
      {.role = "user", .content = "a <|turn> b", .n_content = 11},
      {.role = "assistant", .content = "c", .n_content = 1, .thinking = "d", .n_thinking = 1}};
  weft_chat_options options = {.thinking = true, .add_generation_prompt = true};
  weft_tokens tokens = {0};
  (void)weft_chat_render(chat, messages, 2, &options, &tokens, NULL, &error);
  weft_tokens_free(&tokens);
  weft_chat_close(chat);
}

static void use_file(const uint8_t *data, size_t n) {
  weft_gguf *gguf;
  weft_tokenizer *t;
  weft_error error;
  if (weft_gguf_open_memory(data, n, "fuzz", &gguf, &error) != WEFT_OK) return;
  if (weft_tokenizer_open(gguf, &t, &error) == WEFT_OK) {
    static const char text[] = "Hello  <|turn>user\n\n 12 \xFF\xC3\xA9 <eos>";
    weft_tokens tokens = {0};
    weft_text back = {0};
    for (unsigned flags = 0; flags < 8; flags++) {
      (void)weft_tokenizer_encode(t, text, sizeof text - 1, flags, &tokens, &error);
    }
    REQUIRE(weft_tokenizer_decode(t, tokens.ids, tokens.n, true, &back) == WEFT_OK);
    REQUIRE(weft_utf8_valid(back.bytes == NULL ? "" : back.bytes, back.n, NULL));
    use_chat(gguf, t);
    weft_text_free(&back);
    weft_tokens_free(&tokens);
    weft_tokenizer_close(t);
  }
  weft_gguf_close(gguf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  if (vocabularies[0] == NULL) {
    weft_log_set_level(WEFT_LOG_ERROR);
    for (uint32_t k = 0; k < N_VOCABULARIES; k++) open_vocabulary(k);
  }
  if (n >= 4 && memcmp(data, "GGUF", 4) == 0) {
    use_file(data, n);
  } else if (n > 0) {
    use_text(data[0] % N_VOCABULARIES, (const char *)data + 1, n - 1);
  }
  return 0;
}
