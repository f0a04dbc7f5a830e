/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/nearest.h"

static const char *nearest_of(const char *word) {
  static const char *const known[] = {"serve", "chat", "generate", "context", "kv-mib", "rows", "running", "top"};
  weft_nearest nearest = weft_nearest_to(word, strlen(word));
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) weft_nearest_try(&nearest, known[i]);
  return nearest.best == NULL ? "" : nearest.best;
}

static void slips_of_the_hand(void **state) {
  static const char *const table[][2] = {
      {"serv", "serve"},       {"sevre", "serve"},  {"srve", "serve"},    {"chta", "chat"},     {"cat", "chat"},
      {"genrate", "generate"}, {"gen", "generate"}, {"kv_mib", "kv-mib"}, {"KV-MIB", "kv-mib"}, {"kvmib", "kv-mib"},
      {"contxt", "context"},   {"run", "running"},  {"tpo", "top"},       {"row", "rows"}};
  (void)state;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    if (strcmp(nearest_of(table[i][0]), table[i][1]) != 0)
      fail_msg("%s: '%s', not %s", table[i][0], nearest_of(table[i][0]), table[i][1]);
  }
}

static void words_that_mean_nothing(void **state) {
  static const char *const table[] = {"", "x", "xy", "dance", "elephant", "zzzzzzzzzzz", "\xFF\xFE\xFD"};
  char longest[5000];
  (void)state;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) assert_string_equal(nearest_of(table[i]), "");
  memset(longest, 's', sizeof longest);
  longest[sizeof longest - 1] = 0;
  assert_string_equal(nearest_of(longest), "");
}

static void names_that_are_the_same(void **state) {
  (void)state;
  assert_true(weft_same_name("kv_mib=4", 6, "kv-mib"));
  assert_true(weft_same_name("", 0, ""));
  assert_false(weft_same_name("kv-mib", 5, "kv-mib"));
  assert_false(weft_same_name("kv-mibs", 7, "kv-mib"));
  assert_false(weft_same_name("KV-mib", 6, "kv-mib"));
}

static void names_without_what_stands_between(void **state) {
  char plain[8];
  (void)state;
  weft_plain_name("RTX-40 9_0", plain, sizeof plain);
  assert_string_equal(plain, "rtx4090");
  weft_plain_name("GeForce 4090", plain, sizeof plain); /* cut */
  assert_string_equal(plain, "geforce");
  weft_plain_name("-\xC3\xA4 ", plain, sizeof plain);
  assert_string_equal(plain, "");
  weft_plain_name("x", plain, 1);
  assert_string_equal(plain, "");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(slips_of_the_hand), cmocka_unit_test(words_that_mean_nothing),
                                     cmocka_unit_test(names_that_are_the_same),
                                     cmocka_unit_test(names_without_what_stands_between)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
