/* SPDX-License-Identifier: MIT */
/* JSON of clients: one bad character or a long number ends nothing, and what is no JSON stays none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "api/json_read.h"
#include "base/memory.h"

/* What is read of a text, written again; the caller frees. */
static weft_text reread(const char *text) {
  json_error_t error;
  weft_text out = {0};
  json_t *value = weft_json_read(text, strlen(text), &error);
  if (value == NULL) fail_msg("%s: %s", text, error.text);
  weft_json_put(value, &out);
  assert_int_equal(weft_text_status(&out), WEFT_OK);
  json_decref(value);
  return out;
}

static void what_is_json_is_read(void **state) {
  static const struct {
    const char *text, *again;
  } rows[] = {
      {"{\"a\":[1,-2,true,null,\"x\\ty\"]}", "{\"a\":[1,-2,true,null,\"x\\ty\"]}"},
      {"\"\\ud83d\\ude00\"", "\"\xF0\x9F\x98\x80\""},
      {"\"\\ud83d\"", "\"\xEF\xBF\xBD\""},
      {"\"a\\uDE00b\\uD83D\\uD83D\\uDE00\"",
       "\"a\xEF\xBF\xBD"
       "b\xEF\xBF\xBD\xF0\x9F\x98\x80\""},
      {"\"\\ud83d\\n\"", "\"\xEF\xBF\xBD\\n\""},
      {"{\"\\u0000\":\"\\u0000\"}", "{\"\xEF\xBF\xBD\":\"\xEF\xBF\xBD\"}"},
      {"\"\\\\u0000 \\\\ud800 \\ud800\"", "\"\\\\u0000 \\\\ud800 \xEF\xBF\xBD\""},
      {"18446744073709551616", "18446744073709551616"},
      {"{\"a\":[-9223372036854775809,9223372036854775807],\"b\":1e999}",
       "{\"a\":[-9223372036854775809,9223372036854775807],\"b\":1e999}"},
      {"[-1E+400,123456789012345678901234567890.5,\"{\\\"long number\\\":\\\"\\u0000\"]",
       "[-1E+400,1.2345678901234568e29,\"{\\\"long number\\\":\\\"\xEF\xBF\xBD\"]"},
      {"{\"long number\":\"5\"}", "{\"long number\":\"5\"}"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_text out = reread(rows[i].text);
    if (strcmp(out.bytes, rows[i].again) != 0) fail_msg("%s: %s", rows[i].text, out.bytes);
    weft_text_free(&out);
  }
}

static void what_is_no_json_is_not_mended(void **state) {
  static const char *const rows[] = {"",
                                     "{",
                                     "\"\\ud80\"",
                                     "\"\\ud800",
                                     "01",
                                     "-",
                                     "1e",
                                     "+1",
                                     "[1 2]",
                                     "\"\\x\"",
                                     "{\"a\":\\ud800}",
                                     "\"\\u\"",
                                     "00000000000000000000"};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    json_t *value = weft_json_read(rows[i], strlen(rows[i]), NULL);
    if (value != NULL) fail_msg("%s was read", rows[i]);
  }
}

static void a_long_number_is_none(void **state) {
  (void)state;
  static const char text[] = "[99999999999999999999,5,{\"long number\":\"7\"}]";
  json_t *value = weft_json_read(text, sizeof text - 1, NULL);
  assert_non_null(value);
  const json_t *number = json_array_get(value, 0);
  assert_false(json_is_number(number) || json_is_string(number));
  assert_string_equal(weft_json_long_number(number), "99999999999999999999");
  assert_null(weft_json_long_number(json_array_get(value, 1)));
  assert_null(weft_json_long_number(json_array_get(value, 2)));
  json_decref(value);
}

/* What they cost is bounded: beyond so many they are refused, as JSON's readers do. */
static void many_long_numbers(void **state) {
  (void)state;
  for (uint32_t n = JSON_LONG_NUMBERS_MAX; n <= JSON_LONG_NUMBERS_MAX + 1; n++) {
    weft_text text = {0};
    weft_text_puts(&text, "[");
    for (uint32_t i = 0; i < n; i++) weft_text_puts(&text, i == 0 ? "99999999999999999999" : ",99999999999999999999");
    weft_text_puts(&text, "]");
    json_t *value = weft_json_read(text.bytes, text.n, NULL);
    assert_true((value != NULL) == (n == JSON_LONG_NUMBERS_MAX));
    json_decref(value);
    weft_text_free(&text);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_json_is_read),
                                     cmocka_unit_test(what_is_no_json_is_not_mended),
                                     cmocka_unit_test(a_long_number_is_none), cmocka_unit_test(many_long_numbers)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
