/* SPDX-License-Identifier: MIT */
/* Rows that are packed for products of 8 bits: every instruction set that this machine has makes the same bytes as
 * portable code, for blocks of every kind side by side, every number of blocks and every place in a group. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/matmul.h"

enum { BLOCKS_MAX = 11, BYTES = CPU_GROUP * BLOCKS_MAX * CPU_X_BYTES, ROUNDS = 400 };

/* One number of a block of some kind. */
static float number_of(uint32_t kind, const weft_draw_key *key) {
  float x = weft_draw_uniform(key) * 2.0f - 1.0f;
  switch (kind) {
    case 0:
      return 0.0f;
    case 1:
      return x * 0x1p-101f; /* all codes 0 */
    case 2:
      return x < 0.0f ? -0x1p-100f : 0x1p-100f; /* the least that has codes */
    case 3:
      return x * 0x1p-140f; /* subnormal */
    case 4:
      return x < -0.9f ? NAN : x;
    case 5:
      return x > 0.9f ? -INFINITY : x;
    case 6:
      return x < 0.0f ? -FLT_MAX : FLT_MAX * x;
    case 7:
      return x * 1e-30f;
    default:
      return x * 30.0f;
  }
}

static void make_row(uint32_t round, uint32_t n_blocks, float *x) {
  for (uint32_t b = 0; b < n_blocks; b++) {
    const weft_draw_key of_block = {round, b, WEFT_DRAW_TEST, 0, 0};
    uint32_t kind = weft_draw_below(&of_block, 12);
    for (uint32_t i = 0; i < CPU_PACK_BLOCK; i++) {
      const weft_draw_key key = {round, b, WEFT_DRAW_TEST, i + 1, 1};
      x[b * CPU_PACK_BLOCK + i] = number_of(kind, &key);
    }
  }
}

static void compare(const char *isa) {
  static uint8_t expected[BYTES], got[BYTES];
  float x[BLOCKS_MAX * CPU_PACK_BLOCK];
  weft_device_config config = {.backend = "cpu", .n_threads = 1, .isa = isa};
  weft_device *device = NULL;
  if (weft_device_open(&config, &device, NULL) != WEFT_OK) { /* this machine has no such instructions */
    print_message("left out: %s\n", isa);
    return;
  }
  const cpu_products *products = cpu_products_find(cpu_get_isa(device));
  for (uint32_t round = 0; round < ROUNDS; round++) {
    uint32_t n_blocks = 1 + round % BLOCKS_MAX, n_rows = 1 + round / BLOCKS_MAX % CPU_GROUP, row = round % n_rows;
    make_row(round, n_blocks, x);
    memset(expected, 0xA5, sizeof expected);
    memset(got, 0xA5, sizeof got);
    cpu_products_portable.quantise(x, n_blocks * CPU_PACK_BLOCK, row, n_rows, expected);
    products->quantise(x, n_blocks * CPU_PACK_BLOCK, row, n_rows, got);
    assert_memory_equal(got, expected, sizeof got); /* what lies around the row, too */
  }
  weft_device_close(device);
}

static void test_same_bytes(void **state) {
  (void)state;
  compare("portable");
  compare("avx2");
  compare("avx512");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bytes)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
