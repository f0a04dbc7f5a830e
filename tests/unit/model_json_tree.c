/* SPDX-License-Identifier: MIT */
/* JSON of requests: what a strict parser would not take is read, and written again; everything else is as jansson has
 * it, errors with their places too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/random.h"
#include "model/text/json_tree.h"
#include "tests/support/amount.h"

#define FFFD "\xEF\xBF\xBD"

static void check_written(const char *text, const char *want) {
  json_error_t error;
  weft_text out = {0};
  json_t *json = weft_json_read(text, strlen(text), JSON_DECODE_ANY, &error);
  if (json == NULL) fail_msg("%s: %s", text, error.text);
  weft_json_write(json, &out);
  assert_string_equal(out.bytes, want);
  weft_text_free(&out);
  json_decref(json);
}

static void what_no_tree_holds_is_read(void **state) {
  static const char *const rows[][2] = {
      {"\"a\\u0000b\"", "\"a" FFFD "b\""},
      {"\"\\ud800\"", "\"" FFFD "\""},
      {"\"\\uDFFF\\ud83d\\ude00\\ud83dx\"", "\"" FFFD "\xF0\x9F\x98\x80" FFFD "x\""},
      {"\"\\\\u0000\"", "\"\\\\u0000\""},
      {"{\"\\u0000\":1,\"\\udc00\":2}", "{\"" FFFD "\":2}"},
      {"9223372036854775807", "9223372036854775807"},
      {"[9223372036854775808,-9223372036854775809]", "[9223372036854775808,-9223372036854775809]"},
      {"{\"a\": 1e999, \"b\":-1.5E+4000}", "{\"a\":1e999,\"b\":-1.5E+4000}"},
      {"[1e-999,0.1,100.0,1e2,1E22,-0.0]", "[1e-999,0.1,100.0,100.0,1e+22,-0.0]"},
      {"\"9223372036854775808\"", "\"9223372036854775808\""},
      /* the name that stands for such numbers is nobody's */
      {"{\"\xEF\xB7\x90\":\"1e999\"}", "{\"" FFFD "\":\"1e999\"}"},
      {"{\"\\ufdd0\":\"x\"}", "{\"" FFFD "\":\"x\"}"},
      {"[true,null,\"\\n\\\"\\\\\\u0001\"]", "[true,null,\"\\n\\\"\\\\\\u0001\"]"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) check_written(rows[i][0], rows[i][1]);
}

/* A zero that is asked for is kept, and dropped again but in the members that are named. */
static void zeros_are_kept_where_they_are_asked_for(void **state) {
  static const char text[] =
      "{\"a\\u0000\":\"\\u0000b\",\"l\":[\"\\u0000\",\"\xEF\xB7\x91\\ufdd1\"],\"schema\":{\"const\":\"\\u0000\"},"
      "\"x\":{\"schema\":\"\\u0000\"}}";
  static const char *const kept[] = {"schema", NULL};
  weft_text out = {0};
  (void)state;
  json_t *json = weft_json_read(text, strlen(text), WEFT_JSON_ZEROS, NULL);
  weft_json_write(json, &out);
  assert_string_equal(out.bytes, "{\"a\\u0000\":\"\\u0000b\",\"l\":[\"\\u0000\",\"" FFFD FFFD
                                 "\"],\"schema\":{\"const\":\"\\u0000\"},\"x\":{\"schema\":\"\\u0000\"}}");
  assert_true(weft_json_drop_zeros(json, kept));
  weft_text_clear(&out);
  weft_json_write(json, &out);
  assert_string_equal(out.bytes, "{\"l\":[\"" FFFD "\",\"" FFFD FFFD
                                 "\"],\"schema\":{\"const\":\"\\u0000\"},\"x\":{\"schema\":\"" FFFD "\"},\"a" FFFD
                                 "\":\"" FFFD "b\"}");
  weft_text_free(&out);
  json_decref(json);
}

static void such_a_number_is_nothing_else(void **state) {
  static const char text[] = "[18446744073709551616,18]";
  (void)state;
  json_t *json = weft_json_read(text, strlen(text), 0, NULL), *number = json_array_get(json, 0);
  assert_false(json_is_number(number) || json_is_string(number) || json_is_array(number) || json_is_null(number));
  assert_string_equal(weft_json_written(number), "18446744073709551616");
  assert_null(weft_json_written(json_array_get(json, 1)));
  assert_null(weft_json_written(json));
  json_decref(json);
  assert_true(weft_json_is_written("1e400", 5) && weft_json_is_written("-0.01E-400", 10));
  assert_false(weft_json_is_written("0.00e-400", 9) || weft_json_is_written("1e-300", 6));
  assert_false(weft_json_is_written("01844674407370955161600", 23));
  assert_false(weft_json_is_written("1e4000x", 7));
}

/* What is no JSON is none, and the line, the column and the byte are those of the text that was given. */
static void errors_have_the_place_in_the_text(void **state) {
  static const char *const heads[] = {"", "\"\\u0000\",", "18446744073709551616,", "\n1e999,\n\"\xC3\xA9\\ud800\",",
                                      "\"x\",\n"};
  static const char *const faults[] = {"x]", "1 2]", "\"a", "[", "01]", "1.]", "\"\\x\"]", "tru]", "\"a\tb\"]"};
  (void)state;
  for (size_t h = 0; h < sizeof heads / sizeof *heads; h++) {
    for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
      char given[200], plain[200];
      json_error_t error, want;
      (void)snprintf(given, sizeof given, "[%s%s", heads[h], faults[f]);
      (void)snprintf(plain, sizeof plain, "%s", given);
      for (char *at; (at = strstr(plain, "\\u0000")) != NULL || (at = strstr(plain, "\\ud800")) != NULL;)
        memcpy(at, "\\u0041", 6);
      for (char *at; (at = strstr(plain, "18446744073709551616")) != NULL;)
        memset(at, '1', 18), memcpy(at + 18, ".1", 2);
      for (char *at; (at = strstr(plain, "1e999")) != NULL;) memcpy(at, "1e111", 5);
      assert_null(weft_json_read(given, strlen(given), 0, &error));
      assert_null(json_loads(plain, 0, &want));
      if (error.position != want.position || error.line != want.line || error.column != want.column)
        fail_msg("%s: line %d column %d byte %d, not %d %d %d", given, error.line, error.column, error.position,
                 want.line, want.column, want.position);
      assert_string_equal(error.text, want.text);
    }
  }
}

/* Any text: it is read where jansson reads it, as the same value. */
static void what_jansson_reads_is_the_same(void **state) {
  static const char *const words[] = {"{",
                                      "}",
                                      "[",
                                      "]",
                                      ",",
                                      ":",
                                      "\"a\"",
                                      "\"\"",
                                      "1",
                                      "-2.5",
                                      "1e3",
                                      "true",
                                      "null",
                                      " ",
                                      "\\",
                                      "\"",
                                      "u0000",
                                      "\\ud83d\\ude00",
                                      "99999999999999999",
                                      "0"};
  uint64_t random = 3;
  (void)state;
  for (uint32_t round = 0, n = test_amount(5000, 50000, 500000); round < n; round++) {
    weft_text text = {0}, out = {0};
    for (uint64_t k = 1 + weft_mix64(++random) % 8; k > 0; k--) {
      weft_text_puts(&text, words[weft_mix64(++random) % (sizeof words / sizeof *words)]);
    }
    json_t *want = json_loadb(text.bytes, text.n, JSON_DECODE_ANY, NULL),
           *got = weft_json_read(text.bytes, text.n, JSON_DECODE_ANY, NULL);
    if (want != NULL && !json_equal(want, got)) fail_msg("%s", text.bytes);
    if (got != NULL) {
      weft_json_write(got, &out);
      json_t *again = weft_json_read(out.bytes, out.n, JSON_DECODE_ANY, NULL);
      if (!json_equal(got, again)) fail_msg("%s became %s", text.bytes, out.bytes);
      json_decref(again);
    }
    json_decref(want);
    json_decref(got);
    weft_text_free(&text);
    weft_text_free(&out);
  }
}

static void refused_memory_is_an_error(void **state) {
  static const char text[] = "[\"\\u0000\"]";
  json_error_t error;
  (void)state;
  (void)weft_memory_fail_at(1);
  assert_null(weft_json_read(text, strlen(text), 0, &error));
  (void)weft_memory_fail_at(0);
  assert_string_equal(error.text, "out of memory");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_no_tree_holds_is_read),     cmocka_unit_test(zeros_are_kept_where_they_are_asked_for),
      cmocka_unit_test(such_a_number_is_nothing_else),  cmocka_unit_test(errors_have_the_place_in_the_text),
      cmocka_unit_test(what_jansson_reads_is_the_same), cmocka_unit_test(refused_memory_is_an_error),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
