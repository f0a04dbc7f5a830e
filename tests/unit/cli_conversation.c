/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/cli/conversation.h"
#include "base/memory.h"

/* The roles, as their first letters, and the first letter of each text. */
static const char *shape_of(const weft_conversation *c) {
  static char out[128];
  size_t n = 0;
  for (uint32_t i = 0; i < c->n && n + 3 < sizeof out; i++) {
    out[n++] = c->turn[i].role[0];
    out[n++] = c->turn[i].content[0];
  }
  out[n] = 0;
  return out;
}

static void talk(weft_conversation *c, const char *letters) {
  for (const char *l = letters; *l != 0; l++) {
    const char text[] = {*l, 0};
    assert_int_equal(weft_conversation_add(c, (l - letters) % 2 == 0 ? "user" : "assistant", text), WEFT_OK);
  }
}

static void the_oldest_are_dropped(void **state) {
  static const struct {
    const char *said;
    uint32_t n, dropped;
    const char *left;
  } table[] = {{"", 1, 0, "ss"},        {"1", 1, 0, "ssu1"},
               {"1a2", 1, 1, "ssu2"},   {"1a2b3", 1, 1, "ssu2abu3"},
               {"1a2b3", 9, 2, "ssu3"}, {"1a2b3", 0, 0, "ssu1aau2abu3"}};
  (void)state;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    weft_conversation c = {0};
    assert_int_equal(weft_conversation_set_system(&c, "s"), WEFT_OK);
    talk(&c, table[i].said);
    assert_int_equal(weft_conversation_drop(&c, table[i].n), table[i].dropped);
    assert_string_equal(shape_of(&c), table[i].left);
    weft_conversation_clear(&c);
    assert_string_equal(shape_of(&c), "ss");
    weft_conversation_free(&c);
  }
}

static void there_is_one_system_text(void **state) {
  (void)state;
  weft_conversation c = {0};
  talk(&c, "1a");
  assert_int_equal(weft_conversation_set_system(&c, "x"), WEFT_OK);
  assert_int_equal(weft_conversation_set_system(&c, "y"), WEFT_OK);
  assert_string_equal(shape_of(&c), "syu1aa");
  assert_int_equal(weft_conversation_set_system(&c, ""), WEFT_OK);
  assert_int_equal(weft_conversation_set_system(&c, ""), WEFT_OK);
  assert_string_equal(shape_of(&c), "u1aa");
  weft_conversation_take_back(&c);
  assert_string_equal(shape_of(&c), "u1");
  weft_conversation_free(&c);
  weft_conversation_take_back(&c);
  assert_int_equal(weft_conversation_drop(&c, 1), 0);
}

/* Every allocation is refused in turn: what was said before is as it was. */
static void memory_is_refused(void **state) {
  const char *path = WEFT_BINARY_DIR "/test_conversation.json";
  weft_error error;
  (void)state;
  (void)unlink(path);
  for (uint64_t at = 1; at < 40; at++) {
    weft_conversation c = {0};
    talk(&c, "1a2b3c4d5e6f7g8h"); /* as many as there is room for */
    weft_memory_fail_at(at);
    weft_status added = weft_conversation_add(&c, "user", "9");
    weft_status system = weft_conversation_set_system(&c, "s");
    weft_memory_fail_at(0);
    assert_string_equal(shape_of(&c) + (system == WEFT_OK ? 2 : 0),
                        added == WEFT_OK ? "u1aau2abu3acu4adu5aeu6afu7agu8ahu9" : "u1aau2abu3acu4adu5aeu6afu7agu8ah");
    assert_int_equal(weft_conversation_save(&c, path, &error), WEFT_OK);
    weft_memory_fail_at(at);
    weft_conversation read = {0};
    weft_status loaded = weft_conversation_load(&read, path, &error);
    weft_memory_fail_at(0);
    if (loaded == WEFT_OK) {
      char before[128];
      (void)snprintf(before, sizeof before, "%s", shape_of(&c));
      assert_string_equal(shape_of(&read), before);
    } else {
      assert_int_equal(read.n, 0);
    }
    weft_conversation_free(&read);
    weft_conversation_free(&c);
  }
  (void)unlink(path);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_oldest_are_dropped),
                                     cmocka_unit_test(there_is_one_system_text), cmocka_unit_test(memory_is_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
