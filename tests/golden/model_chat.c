/* SPDX-License-Identifier: MIT */
/* Prompts of conversations, piece by piece and token by token, against the templates' own language
 * (tests/golden/chat, README there). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "model/text/chat.h"

enum { MESSAGES_MAX = 32 };

typedef struct fixture {
  weft_tokenizer *tokenizer;
  weft_chat *chat;
  const char *variables; /* of the template */
  uint32_t n_cases, n_spelled;
} fixture;

/* A message's members that are neither role nor content, as JSON; free it. NULL: none. */
static char *more_of(const json_t *message) {
  json_t *more = json_copy((json_t *)message);
  (void)json_object_del(more, "role");
  (void)json_object_del(more, "content");
  char *text = json_object_size(more) == 0 ? NULL : json_dumps(more, 0);
  json_decref(more);
  return text;
}

static const char *string_of(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  if (!json_is_string(value)) fail_msg("%s is missing", key);
  return json_string_value(value);
}

/* Texts that spell a user-defined token: the reference finds it there, weft on purpose does not. */
static bool spells_special(const fixture *f, const weft_chat_pieces *pieces) {
  static const char *const texts[] = {"<|channel>", "<channel|>",  "<|tool_call>", "<tool_call|>",
                                      "<|\"|>",     "<tool_call>", "</tool_call>"};
  for (uint32_t i = 0; i < pieces->n; i++) {
    const weft_chat_piece *piece = &pieces->pieces[i];
    for (size_t k = 0; piece->token < 0 && k < sizeof texts / sizeof *texts; k++) {
      bool known = weft_tokenizer_find(f->tokenizer, texts[k]) >= 0;
      if (known && memmem(piece->text, piece->n, texts[k], strlen(texts[k])) != NULL) return true;
    }
  }
  return false;
}

static void check_pieces(const fixture *f, const weft_chat_pieces *pieces, const json_t *want, const char *name) {
  if (pieces->n != json_array_size(want)) {
    fail_msg("%s: %u pieces, not %zu", name, pieces->n, json_array_size(want));
  }
  for (uint32_t i = 0; i < pieces->n; i++) {
    const json_t *row = json_array_get(want, i);
    bool special = json_is_true(json_array_get(row, 0));
    const char *text = json_string_value(json_array_get(row, 1));
    const weft_chat_piece *piece = &pieces->pieces[i];
    if (special != (piece->token >= 0) || piece->n != strlen(text) || memcmp(piece->text, text, piece->n) != 0) {
      fail_msg("%s: piece %u is '%.*s', not '%s'", name, i, (int)piece->n, piece->text, text);
    }
    if (special) assert_int_equal(piece->token, weft_tokenizer_find(f->tokenizer, text));
  }
}

/* The special tokens are those of the template and no others, and the text comes back whole. */
static void check_no_structure(const fixture *f, const weft_tokens *got, const weft_chat_pieces *pieces,
                               const char *text, const char *name) {
  uint32_t n_special = 0, n_wanted = 0;
  for (uint32_t i = 0; i < pieces->n; i++) n_wanted += pieces->pieces[i].token >= 0;
  for (uint32_t i = 0; i < got->n; i++) {
    weft_text shown = {0};
    assert_int_equal(weft_tokenizer_piece(f->tokenizer, got->ids[i], true, &shown), WEFT_OK);
    n_special += shown.n > 3 && shown.bytes[0] == '<' && shown.bytes[shown.n - 1] == '>';
    weft_text_free(&shown);
  }
  if (n_special != n_wanted) fail_msg("%s: %u special tokens, not %u", name, n_special, n_wanted);
  weft_text back = {0};
  assert_int_equal(weft_tokenizer_decode(f->tokenizer, got->ids, got->n, true, &back), WEFT_OK);
  assert_string_equal(back.bytes, text);
  weft_text_free(&back);
}

static void check_ids(const weft_tokens *got, const json_t *want, const char *name) {
  if (got->n != json_array_size(want)) fail_msg("%s: %u tokens, not %zu", name, got->n, json_array_size(want));
  for (uint32_t i = 0; i < got->n; i++) {
    int wanted = (int)json_integer_value(json_array_get(want, i));
    if (got->ids[i] != wanted) fail_msg("%s: token %u is %d, not %d", name, i, got->ids[i], wanted);
  }
}

static void check_case(fixture *f, const json_t *row) {
  const char *name = string_of(row, "name");
  const json_t *list = json_object_get(row, "messages");
  weft_chat_message messages[MESSAGES_MAX] = {0};
  uint32_t n = (uint32_t)json_array_size(list);
  assert_true(n <= MESSAGES_MAX);
  for (uint32_t i = 0; i < n; i++) {
    const json_t *message = json_array_get(list, i);
    messages[i].role = string_of(message, "role");
    messages[i].content = string_of(message, "content");
    messages[i].n_content = json_string_length(json_object_get(message, "content"));
    messages[i].more = more_of(message);
  }
  weft_chat_options options = {.thinking = json_is_true(json_object_get(row, "thinking")),
                               .add_generation_prompt = json_is_true(json_object_get(row, "generation")),
                               .variables = f->variables};
  weft_chat_pieces pieces;
  weft_tokens tokens = {0};
  weft_error error = {{0}};
  if (weft_chat_split(f->chat, messages, n, &options, &pieces, &error) != WEFT_OK) {
    fail_msg("%s: %s", name, error.text);
  }
  check_pieces(f, &pieces, json_object_get(row, "pieces"), name);
  if (weft_chat_render(f->chat, messages, n, &options, &tokens, NULL, &error) != WEFT_OK) {
    fail_msg("%s: %s", name, error.text);
  }
  check_no_structure(f, &tokens, &pieces, string_of(row, "text"), name);
  if (spells_special(f, &pieces)) {
    f->n_spelled += 1;
  } else {
    check_ids(&tokens, json_object_get(row, "ids"), name);
  }
  f->n_cases += 1;
  weft_tokens_free(&tokens);
  weft_chat_pieces_close(&pieces);
  for (uint32_t i = 0; i < n; i++) free((char *)messages[i].more);
}

static char *read_all(const char *path) {
  char *text = calloc(1, 1 << 16);
  FILE *file = fopen(path, "r");
  if (file == NULL || text == NULL) fail_msg("cannot open %s", path);
  assert_true(fread(text, 1, (1 << 16) - 1, file) > 0);
  (void)fclose(file);
  return text;
}

static void check(const char *vocabulary, const char *chat_template, const char *variables, const char *cases,
                  uint32_t n_least) {
  char path[512];
  fixture f = {.variables = variables};
  weft_gguf *gguf;
  weft_error error = {{0}};
  (void)snprintf(path, sizeof path, WEFT_SOURCE_DIR "/tests/golden/tokenizers/%s.gguf", vocabulary);
  if (weft_gguf_open(path, &gguf, &error) != WEFT_OK) fail_msg("%s", error.text);
  if (weft_tokenizer_open(gguf, &f.tokenizer, &error) != WEFT_OK) fail_msg("%s", error.text);
  (void)snprintf(path, sizeof path, WEFT_SOURCE_DIR "/tests/golden/chat/%s.jinja", chat_template);
  char *text = read_all(path);
  const weft_bytes bytes = {text, strlen(text)};
  if (weft_chat_open(gguf, f.tokenizer, bytes, path, &f.chat, &error) != WEFT_OK) fail_msg("%s", error.text);
  free(text);
  weft_gguf_close(gguf);
  (void)snprintf(path, sizeof path, WEFT_SOURCE_DIR "/tests/golden/chat/%s.jsonl", cases);
  FILE *file = fopen(path, "r");
  if (file == NULL) fail_msg("cannot open %s", path);
  char *line = NULL;
  size_t capacity = 0;
  while (getline(&line, &capacity, file) > 0) {
    json_t *row = json_loads(line, 0, NULL);
    assert_non_null(row);
    check_case(&f, row);
    json_decref(row);
  }
  assert_true(f.n_cases >= n_least);
  assert_true(f.n_cases < 8 || f.n_spelled < f.n_cases / 4);
  free(line);
  (void)fclose(file);
  weft_chat_close(f.chat);
  weft_tokenizer_close(f.tokenizer);
}

static void test_gemma4(void **state) {
  (void)state;
  check("gemma4", "gemma4", NULL, "gemma4", 50);
}

static void test_gemma4_2026_07(void **state) {
  (void)state;
  check("gemma4", "gemma4", "{\"edition\": \"july\"}", "gemma4-2026-07", 50);
}

static void test_qwen3(void **state) {
  (void)state;
  check("bpe-qwen2", "qwen3", NULL, "qwen3", 25);
}

static void test_qwen3_tools(void **state) {
  (void)state;
  check("bpe-qwen2", "qwen3", NULL, "qwen3-tools", 3);
}

static void test_qwen35(void **state) {
  (void)state;
  check("bpe-qwen2", "qwen35", NULL, "qwen35", 18);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_gemma4), cmocka_unit_test(test_gemma4_2026_07),
                                     cmocka_unit_test(test_qwen3), cmocka_unit_test(test_qwen3_tools),
                                     cmocka_unit_test(test_qwen35)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
