/* SPDX-License-Identifier: MIT */
/* Both forms of the log's lines say the same, whatever the fields hold, and programs read them back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/log.h"
#include "base/random.h"
#include "base/text.h"

/* What clients have tried: line feeds, terminal escapes, quotes, another field, bytes that are no UTF-8, text that is
 * shown from right to left, separators of lines, the last characters there are. */
static const char *const hostile[] = {"plain",
                                      "",
                                      "two words",
                                      "a\nweft: error: b",
                                      "\x1b[2J\x07",
                                      "say \"no\" \\ never",
                                      "x\" code=200 tenant=\"operator",
                                      "\",\"level\":\"error",
                                      "\xff\xfe\x80",
                                      "\xe2\x80\xae\xe2\x80\xa8",
                                      "\xc2\x85\x7f",
                                      "\xf4\x8f\xbf\xbf \xc3\xa4",
                                      "cut \xf0\x9f\x98"};
enum { N_HOSTILE = sizeof hostile / sizeof *hostile };

static size_t write_one(weft_log_form form, const weft_log_event *event, char out[WEFT_LOG_LINE + 1]) {
  const weft_log_settings kept = weft_log_get();
  weft_log_set((weft_log_settings){WEFT_LOG_INFO, form});
  size_t n = weft_log_write(WEFT_LOG_INFO, event, out);
  weft_log_set(kept);
  assert_true(n > 0 && n <= WEFT_LOG_LINE);
  out[n] = 0;
  assert_int_equal(out[n - 1], '\n');
  assert_true(weft_utf8_valid(out, n, NULL));
  for (size_t i = 0; i + 1 < n; i++) assert_true((unsigned char)out[i] >= 0x20 && out[i] != 0x7F);
  return n;
}

/* What a reader of JSON should find where these words were given. */
static void repair(const char *words, weft_text *out) {
  weft_utf8_repair(words, strlen(words), out);
  weft_text_append(out, "", 0);
}

static void json_is_read_back(void **state) {
  (void)state;
  for (int i = 0; i < N_HOSTILE; i++) {
    char line[WEFT_LOG_LINE + 1];
    const weft_log_field fields[] = {weft_log_words("path", hostile[i]), weft_log_number("code", UINT64_MAX / 4),
                                     weft_log_real("ms", 1.25), weft_log_true("left"), weft_log_words("none", NULL)};
    const weft_log_event event = {"request", hostile[(i + 1) % N_HOSTILE], fields, 5};
    (void)write_one(WEFT_LOG_JSON, &event, line);
    json_error_t where;
    json_t *root = json_loads(line, JSON_REJECT_DUPLICATES, &where);
    if (root == NULL) fail_msg("%s: %s", where.text, line);
    weft_text path = {0}, text = {0};
    repair(hostile[i], &path);
    repair(hostile[(i + 1) % N_HOSTILE], &text);
    assert_string_equal(json_string_value(json_object_get(root, "path")), path.bytes);
    assert_string_equal(json_string_value(json_object_get(root, "text")), text.bytes);
    assert_string_equal(json_string_value(json_object_get(root, "level")), "info");
    assert_string_equal(json_string_value(json_object_get(root, "topic")), "request");
    assert_int_equal(strlen(json_string_value(json_object_get(root, "time"))), 24);
    assert_true((uint64_t)json_integer_value(json_object_get(root, "code")) == UINT64_MAX / 4);
    assert_true(json_is_true(json_object_get(root, "left")));
    assert_int_equal(json_object_size(root), 8); /* no field that nobody wrote */
    weft_text_free(&path);
    weft_text_free(&text);
    json_decref(root);
  }
}

/* Reads `name=value` fields as a program does: a value in quotes ends at the next quote that no backslash precedes. */
static uint32_t count_fields(const char *at) {
  uint32_t n = 0;
  while (*at != '\n') {
    size_t name = strspn(at, "abcdefghijklmnopqrstuvwxyz_0123456789");
    if (name == 0 || at[name] != '=') fail_msg("no field begins here: %s", at);
    at += name + 1;
    if (*at == '"') {
      for (at++; *at != '"'; at++) {
        if (*at == '\\' && (at[1] == '"' || at[1] == '\\')) at++;
        if (*at == '\n') fail_msg("a value does not end");
      }
      at++;
    } else {
      at += strcspn(at, " \n");
    }
    if (*at == ' ') at++;
    n++;
  }
  return n;
}

static void text_is_read_back(void **state) {
  (void)state;
  for (int i = 0; i < N_HOSTILE; i++) {
    char line[WEFT_LOG_LINE + 1];
    const weft_log_field fields[] = {weft_log_words("path", hostile[i]), weft_log_number("code", 404)};
    const weft_log_event event = {"request", hostile[(i + 1) % N_HOSTILE], fields, 2};
    (void)write_one(WEFT_LOG_TEXT, &event, line);
    const char *at = strstr(line, "Z info: request: ");
    assert_non_null(at);
    assert_int_equal(count_fields(at + strlen("Z info: request: ")), 3);
    assert_string_equal(line + strlen(line) - strlen(" code=404\n"), " code=404\n");
  }
}

static uint32_t draw(uint32_t a, uint32_t b, uint32_t c) {
  return (uint32_t)weft_mix64(weft_mix64(weft_mix64(a) ^ b) ^ c);
}

/* Fields of any length, drawn at random: a line is never longer than a pipe takes in one piece, and is always whole. */
static void long_fields_are_cut(void **state) {
  static char words[4][9000];
  char line[WEFT_LOG_LINE + 1];
  (void)state;
  for (uint32_t round = 0; round < 400; round++) {
    weft_log_field fields[24];
    uint32_t n = draw(7, round, 0) % 24;
    for (uint32_t k = 0; k < 4; k++) {
      uint32_t length = draw(7, round, 1 + k) % (sizeof words[k] - 1);
      for (uint32_t i = 0; i < length; i++) words[k][i] = (char)(1 + draw(round, k, i) % 255);
      words[k][length] = 0;
    }
    for (uint32_t i = 0; i < n; i++) {
      static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l",
                                          "m", "n", "o", "p", "q", "r", "s", "t", "u", "v", "w", "x"};
      fields[i] = i % 3 == 2 ? weft_log_number(names[i], i) : weft_log_words(names[i], words[i % 4]);
    }
    const weft_log_event event = {round % 2 == 0 ? "topic" : NULL, round % 3 == 0 ? words[0] : NULL, fields, n};
    (void)write_one(WEFT_LOG_JSON, &event, line);
    json_error_t where;
    json_t *root = json_loads(line, JSON_REJECT_DUPLICATES, &where);
    if (root == NULL) fail_msg("%s: %s", where.text, line);
    json_decref(root);
    (void)write_one(WEFT_LOG_TEXT, &event, line);
  }
}

static void a_cut_line_says_so(void **state) {
  static char words[5000];
  char line[WEFT_LOG_LINE + 1];
  (void)state;
  memset(words, 'x', sizeof words - 1);
  const weft_log_field field = weft_log_words("path", words);
  const weft_log_event event = {NULL, NULL, &field, 1};
  (void)write_one(WEFT_LOG_JSON, &event, line);
  assert_non_null(strstr(line, "x\",\"cut\":true}\n"));
  (void)write_one(WEFT_LOG_TEXT, &event, line);
  assert_non_null(strstr(line, "x cut=true\n"));
}

static void names_are_read(void **state) {
  weft_log_level level;
  weft_log_form form;
  (void)state;
  assert_true(weft_log_level_of("warning", &level) && level == WEFT_LOG_WARN);
  assert_true(weft_log_level_of("debug", &level) && level == WEFT_LOG_DEBUG);
  assert_false(weft_log_level_of("loud", &level));
  assert_true(weft_log_form_of("json", &form) && form == WEFT_LOG_JSON);
  assert_true(weft_log_form_of("text", &form) && form == WEFT_LOG_TEXT);
  assert_false(weft_log_form_of("xml", &form));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(json_is_read_back),  cmocka_unit_test(text_is_read_back), cmocka_unit_test(long_fields_are_cut),
      cmocka_unit_test(a_cut_line_says_so), cmocka_unit_test(names_are_read),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
