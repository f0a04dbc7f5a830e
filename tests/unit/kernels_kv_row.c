/* SPDX-License-Identifier: MIT */
/* Keys and values as they are stored: sizes, the error of 8 bits, and what is not finite. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "kernels/kv_row.h"

enum { N = 256 };

static void fill(float *x, uint64_t seed, float size) {
  for (uint32_t i = 0; i < N; i++) {
    const weft_draw_key key = {.seed = seed, .purpose = WEFT_DRAW_TEST, .position = i};
    x[i] = size * (2.0f * weft_draw_uniform(&key) - 1.0f);
  }
}

static void sizes_are_those_of_the_type(void **state) {
  static const weft_type types[] = {WEFT_TYPE_F32, WEFT_TYPE_BF16, WEFT_TYPE_Q8_0};
  (void)state;
  for (uint32_t t = 0; t < 3; t++) {
    for (uint32_t n = 32; n <= 1024; n += 32) {
      assert_true(weft_kv_row_fits(types[t], n));
      assert_int_equal(weft_kv_row_bytes(types[t], n), weft_type_row_bytes(types[t], n));
    }
  }
  assert_true(weft_kv_row_fits(WEFT_TYPE_BF16, 40));
  assert_false(weft_kv_row_fits(WEFT_TYPE_Q8_0, 40));
  assert_false(weft_kv_row_fits(WEFT_TYPE_Q4_0, 32));
}

static void eight_bits_err_by_half_a_factor(void **state) {
  static const float scales[] = {1e-9f, 1e-6f, 1e-3f, 1.0f, 30.0f, 1e4f};
  float x[N], y[N];
  uint8_t row[N + N / 16];
  (void)state;
  for (uint32_t s = 0; s < sizeof scales / sizeof *scales; s++) {
    fill(x, s, scales[s]);
    weft_kv_row_store(WEFT_TYPE_Q8_0, x, N, row);
    weft_kv_row_load(WEFT_TYPE_Q8_0, row, N, y);
    for (uint32_t b = 0; b < N; b += 32) {
      float most = 0;
      for (uint32_t i = b; i < b + 32; i++) most = fmaxf(most, fabsf(x[i]));
      /* half a step, the 11 bits of the factor, and its least value in f16 */
      float allowed = most / 127.0f * 0.5f + most * 0x1p-11f + 127 * 0x1p-25f;
      for (uint32_t i = b; i < b + 32; i++) assert_true(fabsf(x[i] - y[i]) <= allowed);
    }
  }
}

static void what_is_not_finite_stays_so(void **state) {
  static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
  float x[N], y[N];
  uint8_t row[N + N / 16];
  (void)state;
  for (uint32_t k = 0; k < 4; k++) {
    fill(x, 9, 1.0f);
    x[40] = bad[k];
    weft_kv_row_store(WEFT_TYPE_Q8_0, x, N, row);
    weft_kv_row_load(WEFT_TYPE_Q8_0, row, N, y);
    assert_false(isfinite(y[40]));
    for (uint32_t i = 0; i < N; i++) {
      if (i / 32 != 1) assert_true(isfinite(y[i]));
    }
  }
  memset(x, 0, sizeof x);
  weft_kv_row_store(WEFT_TYPE_Q8_0, x, N, row);
  weft_kv_row_load(WEFT_TYPE_Q8_0, row, N, y);
  for (uint32_t i = 0; i < N; i++) assert_true(y[i] == 0.0f);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(sizes_are_those_of_the_type),
                                     cmocka_unit_test(eight_bits_err_by_half_a_factor),
                                     cmocka_unit_test(what_is_not_finite_stays_so)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
