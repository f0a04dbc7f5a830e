/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/status.h"
#include "base/text.h"

static void utf8_round_trip(void **state) {
  (void)state;
  for (uint32_t c = 0; c <= 0x10FFFF; c += c < 0x900 ? 1 : 97) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    char bytes[4];
    uint32_t back;
    size_t n = weft_utf8_encode(c, bytes);
    assert_int_equal(weft_utf8_decode(bytes, n, &back), n);
    assert_int_equal(back, c);
    assert_true(weft_utf8_valid(bytes, n, NULL));
    for (size_t k = 1; k < n; k++) {
      assert_int_equal(weft_utf8_decode(bytes, k, &back), 0);
      assert_int_equal(weft_utf8_complete(bytes, k), 0);
    }
    assert_int_equal(weft_utf8_complete(bytes, n), n);
  }
}

static void utf8_refusals(void **state) {
  (void)state;
  static const char *const bad[] = {"\x80",         "\xC0\x80",         "\xC1\xBF",         "\xE0\x80\x80",
                                    "\xED\xA0\x80", "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80",
                                    "\xFF",         "a\xE2\x82"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    size_t at = 99;
    assert_false(weft_utf8_valid(bad[i], strlen(bad[i]), &at));
    assert_int_equal(at, bad[i][0] == 'a' ? 1 : 0);
  }
  assert_int_equal(weft_utf8_complete("ab\xE2\x82", 4), 2);
  assert_int_equal(weft_utf8_complete("ab\xE2\x82\xAC", 5), 5);
  assert_int_equal(weft_utf8_complete("\x80\x80", 2), 2); /* can never become valid */
}

static void text_grows_to_its_maximum(void **state) {
  (void)state;
  weft_text text = {.max = 100};
  for (int i = 0; i < 10; i++) weft_text_printf(&text, "%09d-", i);
  assert_int_equal(text.n, 100);
  assert_int_equal(weft_text_status(&text), WEFT_OK);
  weft_text_append(&text, "x", 1);
  assert_int_equal(weft_text_status(&text), WEFT_E_NO_MEMORY);
  assert_int_equal(text.n, 100);
  weft_text_clear(&text);
  weft_text_puts(&text, "again");
  assert_string_equal(text.bytes, "again");
  weft_text_free(&text);
}

static void memory_can_be_refused_once(void **state) {
  (void)state;
  (void)weft_memory_fail_at(2);
  void *a = weft_alloc(1, 8), *b = weft_alloc(1, 8), *c = weft_alloc(1, 8);
  assert_non_null(a);
  assert_null(b);
  assert_non_null(c);
  assert_int_equal(weft_memory_fail_at(0), 3);
  weft_free(a);
  weft_free(c);
  assert_null(weft_alloc(SIZE_MAX, 2));
  assert_null(weft_realloc(NULL, SIZE_MAX, 2));
  void *aligned = weft_alloc_aligned(10, 256);
  assert_int_equal((uintptr_t)aligned % 256, 0);
  weft_free(aligned);
  assert_null(weft_alloc_aligned(10, 24));
}

static void every_status_has_words(void **state) {
  (void)state;
#define X(name, value, text) assert_string_equal(weft_status_text(name), text);
  WEFT_STATUS_MAP(X)
#undef X
  weft_error error;
  assert_int_equal(weft_fail(&error, WEFT_FULL, "%d of %d", 3, 3), WEFT_FULL);
  assert_string_equal(error.text, "3 of 3");
  assert_int_equal(weft_fail(NULL, WEFT_FULL, "nobody reads"), WEFT_FULL);
  weft_log_set_level(WEFT_LOG_ERROR);
  weft_log(WEFT_LOG_DEBUG, "not shown");
}

static void draws_are_pure_and_spread(void **state) {
  (void)state;
  weft_draw_key key = {1, 0, WEFT_DRAW_TEST, 0, 0};
  uint32_t bins[16] = {0};
  double sum = 0;
  for (uint64_t p = 0; p < 64000; p++) {
    key.position = p;
    float u = weft_draw_uniform(&key);
    assert_true(u >= 0.0f && u < 1.0f);
    assert_true(u == weft_draw_uniform(&key));
    sum += (double)u;
    bins[weft_draw_below(&key, 16)] += 1;
  }
  assert_true(sum / 64000 > 0.49 && sum / 64000 < 0.51);
  for (int i = 0; i < 16; i++) assert_in_range(bins[i], 3600, 4400);
  weft_draw_key other = key;
  other.step = 1;
  assert_true(weft_draw_bits(&key) != weft_draw_bits(&other));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(utf8_round_trip),           cmocka_unit_test(utf8_refusals),
      cmocka_unit_test(text_grows_to_its_maximum), cmocka_unit_test(memory_can_be_refused_once),
      cmocka_unit_test(every_status_has_words),    cmocka_unit_test(draws_are_pure_and_spread)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
