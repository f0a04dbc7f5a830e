/* SPDX-License-Identifier: MIT */
/* Whose turn is next in a simulation is what a look at every replica says: bench/sim/turns.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/random.h"
#include "bench/sim/turns.h"

static uint32_t look_at_all(const uint64_t *at_us, uint32_t n) {
  uint32_t first = 0;
  for (uint32_t i = 1; i < n; i++) {
    if (at_us[i] < at_us[first]) first = i;
  }
  return first;
}

/* Few different times, so that equal ones are common, and never among them. */
static void the_first_is_the_least(void **state) {
  static const uint32_t sizes[] = {1, 2, 3, 7, 8, 1000};
  (void)state;
  for (uint32_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    uint32_t n = sizes[s];
    uint64_t at_us[1000];
    weft_sim_turns turns;
    assert_true(weft_sim_turns_open(&turns, n));
    for (uint32_t i = 0; i < n; i++) at_us[i] = UINT64_MAX;
    for (uint32_t i = 0; i < 5000; i++) {
      uint64_t bits = weft_mix64(s * 10000 + i);
      uint32_t at = (uint32_t)(bits % n);
      at_us[at] = bits >> 60 == 0 ? UINT64_MAX : (bits >> 32) % 50;
      weft_sim_turns_set(&turns, at, at_us[at]);
      uint32_t first = weft_sim_turns_first(&turns);
      assert_int_equal(first, look_at_all(at_us, n));
      assert_true(turns.at_us[first] == at_us[first]);
    }
    weft_sim_turns_close(&turns);
  }
}

static void memory_may_be_refused(void **state) {
  (void)state;
  for (uint64_t at = 1; at <= 2; at++) {
    weft_sim_turns turns;
    (void)weft_memory_fail_at(at);
    assert_false(weft_sim_turns_open(&turns, 9));
    (void)weft_memory_fail_at(0);
    weft_sim_turns_close(&turns);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_first_is_the_least), cmocka_unit_test(memory_may_be_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
