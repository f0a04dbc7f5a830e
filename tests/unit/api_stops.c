/* SPDX-License-Identifier: MIT */
/* The cost and the limits of stop strings; what they find is tried in tests/fuzz/api_stops.c and
 * tests/prop/api_stops.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/stops.h"

enum { TEXT = 100000 };

/* Look-ups for a text that comes four bytes at a time, as tokens do. */
static uint64_t look_ups(const char *const *list, uint32_t n, const char *text) {
  weft_stops stops;
  weft_stop_search search = {0};
  weft_error error;
  size_t end;
  assert_int_equal(weft_stops_open(&stops, list, n, &error), WEFT_OK);
  for (size_t at = 0; at < TEXT; at += 4) assert_false(weft_stops_read(&stops, &search, text + at, 4, false, &end));
  weft_stops_close(&stops);
  return search.n_read;
}

static void crafted_strings_cost_what_plain_ones_do(void **state) {
  static char text[TEXT], crafted[63][33];
  const char *plain[] = {"\n\n", "END", "###", "</s>", "User:", "Assistant:", "stop", "Q:"}, *list[63];
  (void)state;
  memset(text, 'a', sizeof text);
  for (uint32_t i = 0; i < 63; i++) { /* nearly found at every byte */
    memset(crafted[i], 'a', 32);
    crafted[i][31] = (char)('A' + i % 26);
    crafted[i][30] = (char)('0' + i / 26);
    list[i] = crafted[i];
  }
  uint64_t few = look_ups(plain, 8, text), many = look_ups(list, 63, text);
  assert_int_equal(few, TEXT);
  assert_int_equal(many, TEXT);
}

static void memory_is_bounded_and_known(void **state) {
  char text[2][WEFT_STOP_BYTES_MAX + 1];
  const char *list[] = {text[0], text[1]};
  weft_stops stops;
  weft_error error;
  (void)state;
  for (uint32_t i = 0; i < 2 * WEFT_STOP_BYTES_MAX; i++) {
    text[i / WEFT_STOP_BYTES_MAX][i % WEFT_STOP_BYTES_MAX] = (char)(1 + (i * 7 + i / 255) % 255);
  }
  text[0][WEFT_STOP_BYTES_MAX] = text[1][WEFT_STOP_BYTES_MAX] = 0;
  assert_int_equal(weft_stops_open(&stops, list, 2, &error), WEFT_OK);
  assert_true(stops.n_bytes <= (WEFT_STOPS_BYTES_MAX + 1) * 258 * sizeof(uint16_t));
  weft_stops_close(&stops);
  assert_int_equal(weft_stops_open(&stops, NULL, 0, &error), WEFT_OK);
  assert_int_equal(stops.n_bytes, 0);
}

static void refuse(const char *const *list, uint32_t n, const char *words) {
  weft_stops stops;
  weft_error error = {{0}};
  assert_int_equal(weft_stops_open(&stops, list, n, &error), WEFT_E_INVALID);
  if (strstr(error.text, words) == NULL || strchr(error.text, '\n') != NULL) fail_msg("%s", error.text);
}

static void limits_are_told_in_one_line(void **state) {
  char text[WEFT_STOP_BYTES_MAX + 2];
  const char *list[WEFT_STOPS_MAX + 1];
  (void)state;
  memset(text, 'x', sizeof text);
  text[sizeof text - 1] = 0;
  for (uint32_t i = 0; i <= WEFT_STOPS_MAX; i++) list[i] = text + 901;
  refuse(list, WEFT_STOPS_MAX + 1, "65 stop strings; at most 64");
  refuse(list, WEFT_STOPS_MAX, "together; at most 2048");
  list[1] = "";
  refuse(list, 2, "stop string 1 has 0 bytes");
  list[1] = text;
  refuse(list, 2, "stop string 1 has 1025 bytes; it must have 1 to 1024");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(crafted_strings_cost_what_plain_ones_do),
                                     cmocka_unit_test(memory_is_bounded_and_known),
                                     cmocka_unit_test(limits_are_told_in_one_line)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
