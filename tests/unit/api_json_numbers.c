/* SPDX-License-Identifier: MIT */
/* Numbers in answers have the bytes that printf gives: logprobs, which are floats, of every size, doubles, numbers that
 * lie half way between two of nine digits, and whole numbers. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/json.h"
#include "base/random.h"

static weft_text out;

static void check_real(double value) {
  char wanted[64];
  (void)snprintf(wanted, sizeof wanted, isfinite(value) ? "%.9g" : "null", value);
  weft_text_clear(&out);
  weft_json_real(&out, value);
  if (strcmp(out.bytes, wanted) != 0) fail_msg("%.17g (%a): '%s' and not '%s'", value, value, out.bytes, wanted);
}

static void check_both(double value) {
  check_real(value);
  check_real(-value);
}

static void reals_as_printf_has_them(void **state) {
  (void)state;
  static const double edges[] = {0.0,          1.0,         9.99999999,   9.999999995,  9.9999999949, 99999999.95,
                                 999999999.4,  999999999.5, 999999998.5,  1e9,          123456789.5,  1234567890.5,
                                 0.0001,       0.00001,     0.000099999,  9.9999999e-5, 1e-310,       DBL_MIN,
                                 DBL_MAX,      FLT_MIN,     FLT_MAX,      5e-324,       0.1,          1e15,
                                 123456789e10, 1e27,        1e28,         1e29,         INFINITY,     NAN,
                                 4294967296.0, 9999.0,      0.3333333433, 2.5e-5,       1e-19,        1e-20};
  for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) check_both(edges[i]);
  for (int power = -320; power <= 308; power++) { /* around each power of ten */
    double at = pow(10.0, power);
    for (int n = 0; n < 3; n++, at = nextafter(at, 0.0)) check_both(at);
    at = pow(10.0, power);
    for (int n = 0; n < 3; n++, at = nextafter(at, INFINITY)) check_both(at);
  }
}

static uint64_t draw(uint64_t i, uint32_t purpose) {
  const weft_draw_key key = {.seed = 36, .purpose = WEFT_DRAW_TEST, .position = i, .step = purpose};
  return weft_draw_bits(&key);
}

static void drawn_reals(void **state) {
  (void)state;
  for (uint64_t i = 0; i < 200000; i++) {
    uint64_t bits = draw(i, 0);
    uint32_t half = (uint32_t)bits;
    double wide;
    float narrow;
    memcpy(&wide, &bits, sizeof wide);
    memcpy(&narrow, &half, sizeof narrow);
    check_real(wide);
    check_real((double)narrow);
    check_real(-(double)(float)(bits >> 40) * 0x1p-20);                      /* as logprobs are */
    check_real((double)(bits >> 34) + 0.5);                                  /* half way between two whole numbers */
    check_real(((double)(bits % 2000000000) + 0.5) / (double)(1 << i % 20)); /* half way, or nearly */
  }
}

static void whole_numbers(void **state) {
  static const int64_t edges[] = {0, 1, -1, 9, 10, -10, 99, 100, INT32_MIN, INT32_MAX, INT64_MIN, INT64_MAX};
  const int32_t ids[] = {0, -1, INT32_MAX, INT32_MIN, 262143};
  char wanted[32];
  (void)state;
  for (uint32_t i = 0; i < 20000; i++) {
    int64_t value = i < 12 ? edges[i] : (int64_t)(draw(i, 1) >> i % 64);
    (void)snprintf(wanted, sizeof wanted, "%lld", (long long)value);
    weft_text_clear(&out);
    weft_json_int(&out, value);
    assert_string_equal(out.bytes, wanted);
  }
  weft_text_clear(&out);
  weft_json_ids(&out, ids, 5);
  assert_string_equal(out.bytes, "[0,-1,2147483647,-2147483648,262143]");
  weft_text_clear(&out);
  weft_json_ids(&out, ids, 0);
  assert_string_equal(out.bytes, "[]");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(reals_as_printf_has_them), cmocka_unit_test(drawn_reals),
                                     cmocka_unit_test(whole_numbers)};
  int rc = cmocka_run_group_tests(tests, NULL, NULL);
  weft_text_free(&out);
  return rc;
}
