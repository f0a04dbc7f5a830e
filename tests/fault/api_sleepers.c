/* SPDX-License-Identifier: MIT */
/* Models of a folder that sleep, with their weights in host memory or without, or leave when nobody uses them
 * (api/residents.h): who waits for them, what they take meanwhile, and that they answer as before. */
#include "base/log.h"
#include "tests/support/small_folder.h"

/* A model whose time without use is over leaves; one that stays does not. */
static void test_keep(void **state) {
  (void)state;
  weft_open_options options = options_of(0);
  weft_runtime *rt = open_runtime(&options);
  loads(rt, names[0]);
  loads(rt, names[1]);
  residents_keep(rt->residents, index_of(rt, names[1]), 0, 1000);
  while (look(rt, names[1]).state != RESIDENT_ABSENT) (void)usleep(1000);
  is_in(rt, names[0], "ready");
  assert_true(look(rt, names[0]).expires_us == UINT64_MAX);
  shut(rt);
}

/* A model that sleeps is not loaded for a request, which waits: until its deadline, or until the model is woken. */
static void test_sleep(void **state) {
  (void)state;
  static answer late, waited, a;
  weft_open_options options = options_of(0);
  weft_runtime *rt = open_runtime(&options);
  loads(rt, names[0]);
  loads(rt, names[1]);
  wishes(rt, index_of(rt, names[0]), RESIDENT_SLEEP);
  is_in(rt, names[0], "sleeping");
  is_in(rt, names[1], "ready");
  assert_false(residents_sleep(rt->residents));
  weft_generation *waits = start(rt, names[0], 8, 0, 0, &waited);
  finish(start(rt, names[0], 8, 20, 0, &late), &late);
  assert_string_equal(late.finish, "deadline");
  is_in(rt, names[0], "sleeping");
  wishes(rt, index_of(rt, names[0]), RESIDENT_WAKE);
  finish(waits, &waited);
  assert_string_equal(waited.finish, "length");
  /* all, of which those that were there come back */
  unloads(rt, names[1]);
  wishes(rt, RESIDENTS_ALL, RESIDENT_SLEEP);
  assert_true(residents_sleep(rt->residents));
  for (uint32_t i = 0; i < N_FILES; i++) is_in(rt, names[i], "sleeping");
  assert_int_equal(residents_held(rt->residents), 0);
  wishes(rt, RESIDENTS_ALL, RESIDENT_WAKE);
  is_in(rt, names[0], "ready");
  is_in(rt, names[1], "absent");
  ask(rt, names[1], 8, &a);
  wishes(rt, index_of(rt, names[1]), RESIDENT_SLEEP);
  loads(rt, names[1]); /* the operator's load wakes it */
  shut(rt);
}

static uint64_t kept_bytes(weft_runtime *rt, const char *name) {
  return look(rt, name).kept_bytes;
}

static void move_away(const char *name, bool away) {
  char path[128], hidden[160];
  path_of(name, path);
  (void)snprintf(hidden, sizeof hidden, "%s.away", path);
  assert_int_equal(away ? rename(path, hidden) : rename(hidden, path), 0);
}

static void refuses_wish(weft_runtime *rt, uint32_t model, uint32_t level, weft_status wanted, const char *words) {
  weft_error error = {{0}};
  resident_ask asked = {.level = level};
  assert_int_equal(residents_ask(rt->residents, model, RESIDENT_SLEEP, &asked, &error), wanted);
  if (strstr(error.text, words) == NULL) fail_msg("'%s' lacks '%s'", error.text, words);
}

/* Weights that stay in host memory: the model comes back without its file and answers alike, twice; what it took of the
 * device is given back meanwhile. At the second level, and unloaded, they are dropped. */
static void test_levels(void **state) {
  (void)state;
  static answer wanted, a;
  weft_open_options options = options_of(0);
  weft_runtime *rt = open_runtime(&options);
  refuses_wish(rt, RESIDENTS_ALL, RESIDENT_WEIGHTS_STAY, WEFT_E_INVALID, "--sleep-mib");
  shut(rt);
  options.sleep_bytes = 64 << 20;
  rt = open_runtime(&options);
  uint32_t index = index_of(rt, names[0]);
  ask(rt, names[0], 20, &wanted);
  move_away(names[0], true);
  for (int i = 0; i < 2; i++) {
    uint32_t n_pieces = card.n_pieces;
    wishes_at(rt, index, RESIDENT_SLEEP, RESIDENT_WEIGHTS_STAY);
    is_in(rt, names[0], "sleeping");
    assert_true(kept_bytes(rt, names[0]) > 0);
    assert_int_equal(residents_held(rt->residents), 0);
    assert_true(!as_card || card.n_mapped == 0);
    wishes(rt, index, RESIDENT_WAKE);
    assert_int_equal(kept_bytes(rt, names[0]), 0);
    ask(rt, names[0], 20, &a);
    same(&a, &wanted);
    assert_int_equal(card.n_pieces, n_pieces); /* nothing was read */
  }
  wishes(rt, RESIDENTS_ALL, RESIDENT_SLEEP); /* the first level, where there is memory for it */
  assert_true(kept_bytes(rt, names[0]) > 0);
  wishes_at(rt, index, RESIDENT_SLEEP, RESIDENT_WEIGHTS_GO);
  is_in(rt, names[0], "sleeping");
  assert_int_equal(kept_bytes(rt, names[0]), 0);
  char error[512] = "";
  assert_true(weft_load_model(rt, names[0], error, sizeof error) < 0); /* its file is away */
  assert_non_null(strstr(error, "No such file"));
  move_away(names[0], false);
  loads(rt, names[0]);
  wishes_at(rt, index, RESIDENT_SLEEP, RESIDENT_WEIGHTS_STAY);
  unloads(rt, names[0]);
  assert_int_equal(kept_bytes(rt, names[0]), 0);
  shut(rt);
}

/* Where models make room for one another their weights stay while there is host memory: the one whose last use is
 * longest ago loses it first, and none that the operator put to sleep with them. */
static void test_beds(void **state) {
  (void)state;
  static answer wanted[N_FILES], a;
  uint64_t n[N_FILES], bed[N_FILES];
  answers_of_others(8, wanted);
  needs(n);
  weft_open_options options = options_of(larger(n[0], larger(n[1], n[2]))); /* one at a time */
  options.sleep_bytes = 64 << 20;
  weft_runtime *rt = open_runtime(&options);
  for (uint32_t i = 0; i < N_FILES; i++) loads(rt, names[i]);
  wishes(rt, index_of(rt, names[2]), RESIDENT_SLEEP);
  for (uint32_t i = 0; i < N_FILES; i++) bed[i] = kept_bytes(rt, names[i]);
  shut(rt);
  options.sleep_bytes = larger(bed[0] + bed[1], larger(bed[0] + bed[2], bed[1] + bed[2])); /* any two */
  rt = open_runtime(&options);
  loads(rt, names[0]);
  loads(rt, names[1]);
  assert_true(kept_bytes(rt, names[0]) > 0);
  loads(rt, names[2]);
  assert_true(kept_bytes(rt, names[0]) > 0 && kept_bytes(rt, names[1]) > 0);
  move_away(names[0], true);
  ask(rt, names[0], 8, &a); /* while it comes it still has its place, so one of the others loses its own */
  same(&a, &wanted[0]);
  move_away(names[0], false);
  assert_true(kept_bytes(rt, names[1]) == 0 && kept_bytes(rt, names[2]) > 0);
  wishes_at(rt, index_of(rt, names[2]), RESIDENT_SLEEP, RESIDENT_WEIGHTS_STAY);
  loads(rt, names[1]);
  wishes_at(rt, index_of(rt, names[0]), RESIDENT_SLEEP, RESIDENT_WEIGHTS_STAY);
  refuses_wish(rt, index_of(rt, names[1]), RESIDENT_WEIGHTS_STAY, WEFT_E_TOO_LARGE, "level 2 drops them");
  wishes_at(rt, index_of(rt, names[1]), RESIDENT_SLEEP, RESIDENT_WEIGHTS_GO);
  assert_true(kept_bytes(rt, names[0]) > 0 && kept_bytes(rt, names[1]) == 0 && kept_bytes(rt, names[2]) > 0);
  wishes(rt, index_of(rt, names[2]), RESIDENT_WAKE);
  ask(rt, names[2], 8, &a);
  same(&a, &wanted[2]);
  shut(rt);
}

/* The time without use after which models leave, where nobody says another. */
static void test_keep_option(void **state) {
  (void)state;
  weft_open_options options = options_of(0);
  options.keep_alive_us = 1000;
  weft_runtime *rt = open_runtime(&options);
  for (int i = 0; i < 2; i++) {
    loads(rt, names[0]);
    while (look(rt, names[0]).state != RESIDENT_ABSENT) (void)usleep(1000);
  }
  residents_keep(rt->residents, index_of(rt, names[1]), 0, UINT64_MAX);
  loads(rt, names[1]);
  loads(rt, names[0]);
  while (look(rt, names[0]).state != RESIDENT_ABSENT) (void)usleep(1000);
  is_in(rt, names[1], "ready");
  shut(rt);
}

int main(void) {
  weft_log_set_level(WEFT_LOG_ERROR);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_sleep), cmocka_unit_test(test_levels),
                                     cmocka_unit_test(test_beds), cmocka_unit_test(test_keep),
                                     cmocka_unit_test(test_keep_option)};
  const struct CMUnitTest of_a_card[] = {cmocka_unit_test(test_sleep), cmocka_unit_test(test_levels),
                                         cmocka_unit_test(test_beds)};
  int n_failed = cmocka_run_group_tests(tests, make_folder, drop_folder);
  as_card = true;
  return n_failed + cmocka_run_group_tests_name("a card", of_a_card, make_folder, drop_folder);
}
