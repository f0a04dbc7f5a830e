/* SPDX-License-Identifier: MIT */
/* Ids of 2 200 strings under each tokenizer, against the reference libraries
 * (tests/golden/tokenizers, README there). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/text/detok.h"
#include "model/text/tokenizer_internal.h"
#include "tests/support/gguf_edit.h"

#define FOLDER WEFT_SOURCE_DIR "/tests/golden/tokenizers/"
#define BASE   "bpe-gpt-2.ids.txt"

typedef struct lines {
  FILE *file;
  char *line;
  size_t capacity;
} lines;

static lines lines_open(const char *name) {
  char path[512];
  (void)snprintf(path, sizeof path, FOLDER "%s", name);
  lines l = {fopen(path, "r"), NULL, 0};
  if (l.file == NULL) fail_msg("cannot open %s", path);
  return l;
}

/* NULL at the end. */
static char *lines_next(lines *l) {
  ssize_t n = getline(&l->line, &l->capacity, l->file);
  if (n <= 0) return NULL;
  if (l->line[n - 1] == '\n') l->line[n - 1] = 0;
  return l->line;
}

static void lines_close(lines *l) {
  free(l->line);
  (void)fclose(l->file);
}

static size_t from_hex(char *text) {
  if (strcmp(text, "-") == 0) return 0;
  size_t n = strlen(text) / 2;
  for (size_t i = 0; i < n; i++) {
    unsigned byte;
    assert_int_equal(sscanf(text + 2 * i, "%2x", &byte), 1);
    text[i] = (char)byte;
  }
  return n;
}

static void to_list(const weft_tokens *tokens, char *out, size_t room) {
  size_t at = 0;
  out[0] = 0;
  if (tokens->n == 0) (void)snprintf(out, room, "-");
  for (uint32_t i = 0; i < tokens->n; i++) {
    at += (size_t)snprintf(out + at, room - at, "%s%d", i > 0 ? "," : "", tokens->ids[i]);
    assert_true(at < room);
  }
}

/* A byte-level vocabulary has one file: under other names it is that file with another pre-tokenizer. */
static weft_tokenizer *open_tokenizer(const char *name) {
  char path[512];
  bool is_there = strncmp(name, "bpe-", 4) != 0 || strcmp(name, "bpe-qwen2") == 0 || strcmp(name, "bpe-llama-bpe") == 0;
  const gguf_edit edit = {.set_string = is_there ? NULL : "tokenizer.ggml.pre", .text = name + 4};
  (void)snprintf(path, sizeof path, FOLDER "%s.gguf", is_there ? name : "bpe-qwen2");
  weft_gguf *stored, *gguf;
  weft_tokenizer *t;
  gguf_writer w = {0};
  weft_error error = {{0}};
  if (weft_gguf_open(path, &stored, &error) != WEFT_OK) fail_msg("%s", error.text);
  gguf_edit_apply(stored, &edit, &w);
  weft_gguf_close(stored);
  weft_bytes file = gguf_writer_finish(&w);
  if (weft_gguf_open_memory(file.data, file.n, name, &gguf, &error) != WEFT_OK) fail_msg("%s", error.text);
  if (weft_tokenizer_open(gguf, &t, &error) != WEFT_OK) fail_msg("%s", error.text);
  weft_gguf_close(gguf); /* the tokenizer keeps what it needs */
  gguf_writer_close(&w);
  return t;
}

/* What decoding gives back: the text with bad bytes replaced, without the control tokens that were
 * parsed. */
static void check_decode(const weft_tokenizer *t, const weft_tokens *tokens, const char *text, size_t n,
                         bool with_special, uint32_t line) {
  weft_text back = {0}, clean = {0};
  assert_int_equal(weft_tokenizer_decode(t, tokens->ids, tokens->n, with_special, &back), WEFT_OK);
  for (size_t at = 0; at < n;) { /* one U+FFFD per bad byte; and U+2581 is a space to these vocabularies */
    uint32_t c;
    size_t length = weft_utf8_decode(text + at, n - at, &c);
    bool space = length == 3 && c == 0x2581 && t->kind != TOKENIZER_GPT2;
    if (length == 0) {
      weft_text_puts(&clean, "\xEF\xBF\xBD");
    } else if (space) {
      weft_text_puts(&clean, " ");
    } else {
      weft_text_append(&clean, text + at, length);
    }
    at += length == 0 ? 1 : length;
  }
  if (back.n != clean.n || (back.n > 0 && memcmp(back.bytes, clean.bytes, back.n) != 0)) {
    fail_msg("string %u: decoding gives '%s', not '%s'", line, back.bytes, clean.bytes);
  }
  weft_text_free(&back);
  weft_text_free(&clean);
}

static void check_one(const weft_tokenizer *t, const char *text, size_t n, unsigned flags, const char *want,
                      const char *name, uint32_t line) {
  static char got[1 << 16];
  weft_tokens tokens = {0};
  weft_error error = {{0}};
  if (weft_tokenizer_encode(t, text, n, flags, &tokens, &error) != WEFT_OK) fail_msg("%s", error.text);
  to_list(&tokens, got, sizeof got);
  if (strcmp(got, want) != 0) {
    fail_msg("%s line %u flags %u '%.*s':\n got %s\nwant %s", name, line, flags, (int)n, text, got, want);
  }
  /* llama puts a space before every part between specials, which does not come back as one text. */
  bool parts = t->kind == TOKENIZER_LLAMA && flags != 0;
  if (!parts) check_decode(t, &tokens, text, n, true, line);
  weft_tokens_free(&tokens);
}

/* The file whose row one that is `^` has, too. */
static const char *base_of(const char *name) {
  if (strcmp(name, "bpe-deepseek-llm") == 0) return "bpe-deepseek-coder.ids.txt";
  return strcmp(name, "bpe-kimi-k2") == 0 ? "bpe-gpt-4o.ids.txt" : BASE;
}

static uint32_t check_file(const weft_tokenizer *t, const char *name, const char *strings, const char *ids) {
  lines texts = lines_open(strings), rows = lines_open(ids), near = lines_open(base_of(name)), base = lines_open(BASE);
  uint32_t n = 0;
  for (char *text; (text = lines_next(&texts)) != NULL; n++) {
    char *row = lines_next(&rows), *nearer = lines_next(&near), *same = lines_next(&base);
    assert_non_null(row);
    if (strcmp(row, "^") == 0) row = nearer;
    assert_non_null(row);
    if (strcmp(row, "^") == 0) row = same;
    assert_non_null(row);
    char *second = strchr(row, ' ');
    assert_non_null(second);
    *second++ = 0;
    if (strcmp(second, "=") == 0) second = row;
    size_t n_bytes = from_hex(text);
    check_one(t, text, n_bytes, 0, row, name, n + 1);
    check_one(t, text, n_bytes, WEFT_ENCODE_PARSE_SPECIAL, second, name, n + 1);
  }
  assert_null(lines_next(&rows));
  lines_close(&texts);
  lines_close(&rows);
  lines_close(&near);
  lines_close(&base);
  return n;
}

static void check(const char *name, bool has_broken) {
  char file[64];
  weft_tokenizer *t = open_tokenizer(name);
  (void)snprintf(file, sizeof file, "%s.ids.txt", name);
  assert_true(check_file(t, name, "strings.txt", file) >= 1300);
  (void)snprintf(file, sizeof file, "%s.broken.txt", name);
  if (has_broken) assert_true(check_file(t, name, "broken.txt", file) >= 20);
  weft_tokenizer_close(t);
}

/* clang-format off */
#define TOKENIZERS(X)                                 \
  X(gemma4, "gemma4", true)                           \
  X(llama, "llama", true)                             \
  X(bpe_default, "bpe-default", false)                \
  X(bpe_gpt2, "bpe-gpt-2", true)                      \
  X(bpe_llama, "bpe-llama-bpe", false)                \
  X(bpe_qwen2, "bpe-qwen2", true)                     \
  X(bpe_qwen35, "bpe-qwen35", false)                  \
  X(bpe_gpt_4o, "bpe-gpt-4o", false)                  \
  X(bpe_kimi_k2, "bpe-kimi-k2", false)                \
  X(bpe_tekken, "bpe-tekken", false)                  \
  X(bpe_starcoder, "bpe-starcoder", false)            \
  X(bpe_deepseek_coder, "bpe-deepseek-coder", false)  \
  X(bpe_deepseek_llm, "bpe-deepseek-llm", false)      \
  X(bpe_deepseek3, "bpe-deepseek-v3", false)
/* clang-format on */

#define X(id, name, has_broken)         \
  static void test_##id(void **state) { \
    (void)state;                        \
    check(name, has_broken);            \
  }
TOKENIZERS(X)
#undef X

int main(void) {
  const struct CMUnitTest tests[] = {
#define X(id, name, has_broken) cmocka_unit_test(test_##id),
      TOKENIZERS(X)
#undef X
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
