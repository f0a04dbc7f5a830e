/* SPDX-License-Identifier: MIT */
/* Soft embeddings in every form that this machine has: weights of five panels are widened, more than a span of
 * integers, exponentials narrowed where the form wants it, and the sums are those of doubles, within what integers or
 * f32 round. A column that holds no number gives none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/head.h"

enum {
  N_COLUMNS = 3,
  N_IN = N_COLUMNS * CPU_PANEL,
  N_PANELS = 5,
  N_TOKENS = N_PANELS * CPU_PANEL,
  SPAN_PANELS = CPU_SOFT_SPAN / CPU_PANEL,
  SPOILT = N_IN - 1 /* the column whose token 0 is NaN, where one is */
};

static float number(uint64_t i, uint32_t what) {
  const weft_draw_key key = {i, what, WEFT_DRAW_TEST, 0, 0};
  return weft_draw_uniform(&key);
}

static uint16_t bf16_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return (uint16_t)(bits >> 16);
}

static float of_bf16(uint16_t half) {
  uint32_t bits = (uint32_t)half << 16;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

static uint16_t weight_of(uint32_t token, uint32_t input) {
  return bf16_of(number(token * N_IN + input, 1) * 2.0f - 1.0f);
}

/* Panels as they are packed. */
static void make_panels(uint16_t packed[N_PANELS][N_IN][CPU_PANEL], bool spoilt) {
  for (uint32_t v = 0; v < N_TOKENS; v++) {
    for (uint32_t i = 0; i < N_IN; i++) packed[v / CPU_PANEL][i][v % CPU_PANEL] = weight_of(v, i);
  }
  if (spoilt) packed[0][SPOILT][0] = 0x7FC0;
}

static void widen(const cpu_soft_fns *fns, bool spoilt, uint8_t *wide) {
  static uint16_t packed[N_PANELS][N_IN][CPU_PANEL];
  const cpu_pack_info info = {.type = WEFT_TYPE_BF16, .form = CPU_FORM_FLOAT};
  make_panels(packed, spoilt);
  for (uint32_t at = 0; at < N_PANELS; at += SPAN_PANELS) {
    cpu_soft_panels panels = {&info, (const uint8_t *)packed[at], sizeof packed[at], N_IN, at, N_PANELS - at};
    if (panels.n > SPAN_PANELS) panels.n = SPAN_PANELS;
    fns->widen(&panels, wide);
  }
}

/* Inputs [first, first + n) of a row. */
static void check_row(const float *soft, uint32_t r, uint32_t first, uint32_t n, float tolerance, bool spoilt) {
  for (uint32_t c = 0; c < n; c++) {
    double sum = 0.0, size = 1.0;
    for (uint32_t v = 0; v < N_TOKENS; v++) {
      double product = (double)number(r * N_TOKENS + v, 2) * (double)of_bf16(weight_of(v, first + c));
      sum += product;
      size += fabs(product);
    }
    double expected = (double)(float)r * 0.5 + 0.25 * sum;
    if (spoilt && first + c == SPOILT)
      assert_true(isnan(soft[c]));
    else
      assert_true(fabs((double)soft[c] - expected) <= size * (double)tolerance);
  }
}

static void check(const cpu_soft_fns *fns, float tolerance, bool spoilt) {
  static uint8_t wide[N_COLUMNS * CPU_PANEL * WEFT_VOCAB_CHUNK * sizeof(float)] __attribute__((aligned(64)));
  static float e[CPU_SOFT_ROWS][WEFT_VOCAB_CHUNK] __attribute__((aligned(64)));
  static float soft[CPU_SOFT_ROWS][2 * CPU_PANEL];
  assert_true(N_COLUMNS * fns->column_bytes <= sizeof wide);
  widen(fns, spoilt, wide);
  for (uint32_t r = 0; r < CPU_SOFT_ROWS; r++) {
    for (uint32_t v = 0; v < N_TOKENS; v++) e[r][v] = number(r * N_TOKENS + v, 2);
    if (fns->narrow != NULL) fns->narrow(e[r]);
  }
  for (uint32_t column = 0; column < N_COLUMNS; column += fns->columns) {
    uint32_t left = N_COLUMNS - column, n = (left < fns->columns ? left : fns->columns) * CPU_PANEL;
    cpu_soft_tile tile = {.wide = wide + (uint64_t)column * fns->column_bytes,
                          .n_tokens = N_TOKENS,
                          .n_rows = CPU_SOFT_ROWS,
                          .n_cols = n};
    for (uint32_t r = 0; r < CPU_SOFT_ROWS; r++) {
      for (uint32_t c = 0; c < n; c++) soft[r][c] = (float)r;
      tile.e[r] = e[r];
      tile.soft[r] = soft[r];
      tile.factor[r][0] = 0.5f;
      tile.factor[r][1] = 0.25f;
    }
    fns->add(&tile);
    for (uint32_t r = 0; r < CPU_SOFT_ROWS; r++) check_row(soft[r], r, column * CPU_PANEL, n, tolerance, spoilt);
  }
}

static void check_form(const cpu_soft_fns *fns, float tolerance) {
  check(fns, tolerance, false);
  check(fns, tolerance, true);
}

static bool has(const char *isa) {
  weft_device_config config = {.backend = "cpu", .n_threads = 1, .isa = isa};
  weft_device *device = NULL;
  if (weft_device_open(&config, &device, NULL) != WEFT_OK) return false;
  weft_device_close(device);
  return true;
}

static void test_forms(void **state) {
  (void)state;
  check_form(&cpu_soft_portable, 0x1p-20f);
#if defined(__x86_64__)
  if (has("avx2")) check_form(&cpu_soft_avx2, 0x1p-20f);
  if (has("avx512")) check_form(&cpu_soft_avx512, 0x1p-20f);
  if (has("avx512")) check_form(&cpu_soft_integers_avx512, 0x1p-11f);
#endif
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
