/* SPDX-License-Identifier: MIT */
/* Formats that are kept: found again by their own tenant alone, and not driven out by another one's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/formats.h"
#include "tests/support/grammar_sample.h"

static weft_grammar *get(weft_formats *formats, uint32_t tenant, const char *text) {
  weft_grammar *g = NULL;
  uint64_t retry_us;
  weft_error error = {{0}};
  if (weft_formats_get(
          formats, &(weft_format_ask){.tenant = tenant, .kind = WEFT_GRAMMAR_REGEX, .text = text, .n = strlen(text)},
          &g, &retry_us, &error) != WEFT_OK)
    fail_msg("%s: %s", text, error.text);
  return g;
}

static void a_flood_drives_out_its_own(void **state) {
  enum { MINE = 3, FLOOD = 3 * WEFT_FORMATS };
  static const char *const mine[MINE] = {"a+", "b+", "a|b"};
  weft_formats *formats;
  weft_grammar *first[MINE];
  const grammar_world *world = *state;
  assert_int_equal(weft_formats_open(world->tokenizer, 2, &formats), WEFT_OK);
  for (uint32_t i = 0; i < MINE; i++) first[i] = get(formats, 0, mine[i]);
  for (uint32_t i = 0; i < FLOOD; i++) {
    char text[16];
    (void)snprintf(text, sizeof text, "a{%u}", i + 1);
    weft_grammar_unref(get(formats, 1, text));
  }
  for (uint32_t i = 0; i < MINE; i++) { /* found, not compiled again: the same one */
    weft_grammar *again = get(formats, 0, mine[i]);
    assert_ptr_equal(again, first[i]);
    weft_grammar_unref(again);
    weft_grammar_unref(first[i]);
  }
  weft_formats_close(formats);
}

static void tenants_find_their_own(void **state) {
  weft_formats *formats;
  const grammar_world *world = *state;
  assert_int_equal(weft_formats_open(world->tokenizer, 2, &formats), WEFT_OK);
  weft_grammar *one = get(formats, 0, "a+b"), *other = get(formats, 1, "a+b"), *again = get(formats, 0, "a+b");
  assert_ptr_not_equal(one, other);
  assert_ptr_equal(one, again);
  weft_grammar_unref(one);
  weft_grammar_unref(other);
  weft_grammar_unref(again);
  weft_formats_close(formats);
}

/* One tenant alone: the format used longest ago goes. */
static void the_oldest_goes(void **state) {
  weft_formats *formats;
  const grammar_world *world = *state;
  assert_int_equal(weft_formats_open(world->tokenizer, 1, &formats), WEFT_OK);
  weft_grammar *kept = get(formats, 0, "a+"), *gone = get(formats, 0, "b+");
  for (uint32_t i = 0; i + 1 < WEFT_FORMATS; i++) {
    char text[16];
    (void)snprintf(text, sizeof text, "a{%u}", i + 1);
    weft_grammar_unref(get(formats, 0, "a+")); /* in use all the time */
    weft_grammar_unref(get(formats, 0, text));
  }
  weft_grammar *a = get(formats, 0, "a+"), *b = get(formats, 0, "b+");
  assert_ptr_equal(a, kept);
  assert_ptr_not_equal(b, gone);
  weft_grammar *all[] = {kept, gone, a, b};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) weft_grammar_unref(all[i]);
  weft_formats_close(formats);
}

/* A format without a text may have none, or an empty one: it is the same. */
static void no_text_is_an_empty_one(void **state) {
  static const char *const texts[] = {NULL, "", NULL};
  weft_formats *formats;
  weft_grammar *g[3];
  weft_error error;
  uint64_t retry_us;
  const grammar_world *world = *state;
  assert_int_equal(weft_formats_open(world->tokenizer, 1, &formats), WEFT_OK);
  for (size_t i = 0; i < 3; i++) {
    const weft_format_ask ask = {.kind = WEFT_GRAMMAR_JSON_OBJECT, .text = texts[i]};
    assert_int_equal(weft_formats_get(formats, &ask, &g[i], &retry_us, &error), WEFT_OK);
    assert_ptr_equal(g[i], g[0]);
  }
  for (size_t i = 0; i < 3; i++) weft_grammar_unref(g[i]);
  weft_formats_close(formats);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_flood_drives_out_its_own),
                                     cmocka_unit_test(tenants_find_their_own), cmocka_unit_test(the_oldest_goes),
                                     cmocka_unit_test(no_text_is_an_empty_one)};
  return cmocka_run_group_tests(tests, grammar_world_setup, grammar_world_teardown);
}
