/* SPDX-License-Identifier: MIT */
/* How evenly rows go to experts: what windows of counted choices make of the histogram and of the evenness. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "model/expert_loads.h"

enum { EXPERTS = 16, WINDOW = WEFT_EXPERT_WINDOW * EXPERTS };

static weft_expert_loads *open_loads(uint32_t n_layers) {
  weft_expert_loads *loads = NULL;
  assert_int_equal(weft_expert_loads_open(&loads), WEFT_OK);
  assert_int_equal(weft_expert_loads_stats(loads).n_experts, 0);
  assert_int_equal(weft_expert_loads_shape(loads, n_layers, EXPERTS), WEFT_OK);
  assert_int_equal(weft_expert_loads_stats(loads).n_experts, EXPERTS);
  return loads;
}

static void check(weft_expert_loads *loads, const uint64_t ratio[WEFT_EXPERT_RATIOS], uint64_t n, double evenness) {
  weft_expert_stats s = weft_expert_loads_stats(loads);
  assert_memory_equal(s.ratio, ratio, sizeof s.ratio);
  assert_int_equal(s.n_windows, n);
  assert_true(s.evenness > evenness - 1e-9 && s.evenness < evenness + 1e-9);
}

static void all_alike(void **state) {
  (void)state;
  weft_expert_loads *loads = open_loads(1);
  int32_t ids[WINDOW];
  for (int32_t i = 0; i < WINDOW; i++) ids[i] = i % EXPERTS;
  weft_expert_loads_add(loads, 0, ids, WINDOW - 1);
  check(loads, (const uint64_t[WEFT_EXPERT_RATIOS]){0}, 0, 0.0);
  weft_expert_loads_add(loads, 0, ids + WINDOW - 1, 1);
  check(loads, (const uint64_t[WEFT_EXPERT_RATIOS]){0, 0, 0, EXPERTS}, 1, 1.0);
  weft_expert_loads_close(loads);
}

/* One expert has all of a window in one layer, four share the next one of another; what is no expert counts nowhere. */
static void some_alone(void **state) {
  (void)state;
  weft_expert_loads *loads = open_loads(2);
  int32_t ids[WINDOW];
  for (int32_t i = 0; i < WINDOW; i++) ids[i] = 5;
  weft_expert_loads_add(loads, 1, (const int32_t[]){-1, EXPERTS, INT32_MIN}, 3);
  weft_expert_loads_add(loads, 1, ids, WINDOW);
  check(loads, (const uint64_t[WEFT_EXPERT_RATIOS]){15, 0, 0, 0, 0, 0, 0, 1}, 1, 1.0 / 16);
  for (int32_t i = 0; i < WINDOW; i++) ids[i] = 3 * (i % 4);
  weft_expert_loads_add(loads, 2, ids, WINDOW); /* there is no such layer */
  weft_expert_loads_add(loads, 0, ids, WINDOW / 2);
  assert_int_equal(weft_expert_loads_shape(loads, 2, EXPERTS), WEFT_OK); /* loaded again: the counts stay */
  weft_expert_loads_add(loads, 0, ids, WINDOW / 2);
  check(loads, (const uint64_t[WEFT_EXPERT_RATIOS]){27, 0, 0, 0, 0, 4, 0, 1}, 2, 1.0 / 16 + 1.0 / 4);
  weft_expert_loads_close(loads);
}

static void memory_is_refused(void **state) {
  (void)state;
  weft_expert_loads *loads = NULL;
  weft_memory_fail_at(1);
  assert_int_equal(weft_expert_loads_open(&loads), WEFT_E_NO_MEMORY);
  for (uint64_t i = 1; i <= 2; i++) {
    weft_memory_fail_at(0);
    assert_int_equal(weft_expert_loads_open(&loads), WEFT_OK);
    weft_memory_fail_at(i);
    assert_int_equal(weft_expert_loads_shape(loads, 2, EXPERTS), WEFT_E_NO_MEMORY);
    weft_memory_fail_at(0);
    weft_expert_loads_add(loads, 0, (const int32_t[]){0}, 1);
    assert_int_equal(weft_expert_loads_stats(loads).n_experts, 0);
    weft_expert_loads_close(loads);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(all_alike), cmocka_unit_test(some_alone),
                                     cmocka_unit_test(memory_is_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
