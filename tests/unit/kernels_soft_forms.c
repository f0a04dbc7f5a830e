/* SPDX-License-Identifier: MIT */
/* Soft embeddings in every form that this machine has, also those that cpu_soft_find leaves aside here: weights of
 * two panels are widened, exponentials narrowed where the form wants it, and the sums are those of doubles, within
 * what bf16 or f32 round. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/head.h"

enum { N_IN = 32, N_TOKENS = 2 * CPU_PANEL, COLUMN = CPU_PANEL * WEFT_VOCAB_CHUNK };

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

static void widen(const cpu_soft_fns *fns, uint8_t *wide) {
  const cpu_pack_info info = {.type = WEFT_TYPE_BF16, .form = CPU_FORM_FLOAT};
  for (uint32_t panel = 0; panel < N_TOKENS / CPU_PANEL; panel++) {
    uint16_t packed[N_IN][CPU_PANEL];
    for (uint32_t i = 0; i < N_IN; i++) {
      for (uint32_t lane = 0; lane < CPU_PANEL; lane++) packed[i][lane] = weight_of(panel * CPU_PANEL + lane, i);
    }
    fns->widen(&info, (const uint8_t *)packed, N_IN, panel, wide);
  }
}

static void check_row(const float *soft, uint32_t r, uint32_t first, float tolerance) {
  for (uint32_t c = 0; c < CPU_PANEL; c++) {
    double sum = 0.0, size = 1.0;
    for (uint32_t v = 0; v < N_TOKENS; v++) {
      double product = (double)number(r * N_TOKENS + v, 2) * (double)of_bf16(weight_of(v, first + c));
      sum += product;
      size += fabs(product);
    }
    double expected = (double)(float)r * 0.5 + 0.25 * sum;
    assert_true(fabs((double)soft[c] - expected) <= size * (double)tolerance);
  }
}

static void check(const cpu_soft_fns *fns, float tolerance) {
  static uint8_t wide[N_IN / CPU_PANEL * COLUMN * sizeof(float)] __attribute__((aligned(64)));
  static float e[CPU_SOFT_ROWS][WEFT_VOCAB_CHUNK] __attribute__((aligned(64)));
  static float soft[CPU_SOFT_ROWS][CPU_PANEL];
  widen(fns, wide);
  for (uint32_t r = 0; r < CPU_SOFT_ROWS; r++) {
    for (uint32_t v = 0; v < N_TOKENS; v++) e[r][v] = number(r * N_TOKENS + v, 2);
    if (fns->narrow != NULL) fns->narrow(e[r]);
  }
  for (uint32_t column = 0; column < N_IN / CPU_PANEL; column++) {
    cpu_soft_tile tile = {.wide = wide + (uint64_t)column * COLUMN * fns->element_bytes,
                          .n_tokens = N_TOKENS,
                          .n_rows = CPU_SOFT_ROWS,
                          .n_cols = CPU_PANEL};
    for (uint32_t r = 0; r < CPU_SOFT_ROWS; r++) {
      for (uint32_t c = 0; c < CPU_PANEL; c++) soft[r][c] = (float)r;
      tile.e[r] = e[r];
      tile.soft[r] = soft[r];
      tile.factor[r][0] = 0.5f;
      tile.factor[r][1] = 0.25f;
    }
    fns->add(&tile);
    for (uint32_t r = 0; r < CPU_SOFT_ROWS; r++) check_row(soft[r], r, column * CPU_PANEL, tolerance);
  }
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
  check(&cpu_soft_portable, 0x1p-20f);
#if defined(__x86_64__)
  if (has("avx2")) check(&cpu_soft_avx2, 0x1p-20f);
  if (has("avx512")) check(&cpu_soft_avx512, 0x1p-20f);
  if (has("avx512") && __builtin_cpu_supports("avx512bf16")) check(&cpu_soft_bf16_avx512, 0x1p-8f);
#endif
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
