/* SPDX-License-Identifier: MIT */
/* What compiling a format costs is counted, whatever it is made of, and compiling ends when nobody wants it any more.
 * Steps are counted, so nothing here depends on how fast the machine is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "model/formats/grammar_internal.h"
#include "tests/support/grammar_sample.h"

static grammar_world world;

static int open_world(void **state) {
  (void)state;
  return grammar_world_small(&world) ? 0 : -1;
}

static int close_world(void **state) {
  (void)state;
  grammar_world_close(&world);
  return 0;
}

static weft_status compile(weft_grammar_kind kind, const weft_text *text, weft_grammar_work *work, weft_error *error) {
  weft_grammar *g;
  assert_int_equal(weft_text_status(text), WEFT_OK);
  weft_status status = weft_grammar_compile(kind, text->bytes, text->n, world.trie, &g, work, error);
  weft_grammar_unref(g);
  return status;
}

static uint64_t steps_of_schema(const weft_text *text) {
  weft_grammar_work work = {0};
  weft_error error;
  (void)compile(WEFT_GRAMMAR_JSON_SCHEMA, text, &work, &error);
  return work.n_steps;
}

/* ---- texts of a size ---- */

/* A constant of n members that differs from others in its last one alone. */
static void put_constant(weft_text *t, uint32_t n, uint32_t which) {
  weft_text_puts(t, "[");
  for (uint32_t i = 1; i < n; i++) weft_text_puts(t, "7,");
  weft_text_printf(t, "%u]", 100 + which);
}

static void put_constants(weft_text *t, uint32_t n_constants, uint32_t n, uint32_t from) {
  for (uint32_t i = 0; i < n_constants; i++) {
    weft_text_puts(t, i > 0 ? "," : "");
    put_constant(t, n, from + i);
  }
}

enum { CONSTANTS = 6 };

/* Two lists without a common constant, merged. */
static void put_merged_lists(weft_text *t, uint32_t n) {
  weft_text_puts(t, "{\"allOf\":[{\"enum\":[");
  put_constants(t, CONSTANTS, n, 0);
  weft_text_puts(t, "]},{\"enum\":[");
  put_constants(t, CONSTANTS, n, CONSTANTS);
  weft_text_puts(t, "]}]}");
}

static void put_merged_constants(weft_text *t, uint32_t n) {
  weft_text_puts(t, "{\"allOf\":[{\"const\":");
  put_constant(t, n, 0);
  weft_text_puts(t, "},{\"const\":");
  put_constant(t, n, 1);
  weft_text_puts(t, "}]}");
}

/* A constant beside a list that does not have it. */
static void put_constant_beside(weft_text *t, uint32_t n) {
  weft_text_puts(t, "{\"const\":");
  put_constant(t, n, CONSTANTS);
  weft_text_puts(t, ",\"enum\":[");
  put_constants(t, CONSTANTS, n, 0);
  weft_text_puts(t, "]}");
}

/* Branches of oneOf that exclude each other by their constants; the third is none. */
static void put_excluded(weft_text *t, uint32_t n) {
  weft_text_puts(t, "{\"oneOf\":[{\"enum\":[");
  put_constants(t, CONSTANTS, n, 0);
  weft_text_puts(t, "]},{\"enum\":[");
  put_constants(t, CONSTANTS, n, CONSTANTS);
  weft_text_puts(t, "]},{}]}");
}

/* Types that are told n times, merged. */
static void put_merged_types(weft_text *t, uint32_t n) {
  for (uint32_t k = 0; k < 2; k++) {
    weft_text_puts(t, k == 0 ? "{\"allOf\":[{\"type\":[\"null\"" : "},{\"type\":[\"string\"");
    for (uint32_t i = 0; i < n; i++) weft_text_puts(t, k == 0 ? ",\"null\"" : ",\"string\"");
    weft_text_puts(t, "]");
  }
  weft_text_puts(t, "}]}");
}

/* One schema of many words that hold nothing, for each of many names. */
static void put_many_names(weft_text *t, uint32_t n) {
  weft_text_puts(t, "{\"required\":[\"a0\"");
  for (uint32_t i = 1; i < CONSTANTS; i++) weft_text_printf(t, ",\"a%u\"", i);
  weft_text_puts(t, "],\"additionalProperties\":{\"type\":\"null\"");
  for (uint32_t i = 0; i < n; i++) weft_text_printf(t, ",\"x-%u\":1", i);
  weft_text_puts(t, "}}");
}

/* A reference of n parts, asked for again and again. */
static void put_references(weft_text *t, uint32_t n) {
  if (n > 1000) n = 1000; /* the parser's depth */
  weft_text_puts(t, "{\"anyOf\":[{}");
  for (uint32_t i = 0; i < CONSTANTS; i++) {
    weft_text_puts(t, ",{\"$ref\":\"#");
    for (uint32_t k = 0; k < n; k++) weft_text_puts(t, "/x-a");
    weft_text_puts(t, "\"}");
  }
  weft_text_puts(t, "],\"x-a\":");
  for (uint32_t k = 1; k < n; k++) weft_text_puts(t, "{\"x-a\":");
  weft_text_puts(t, "{\"type\":\"null\"}");
  for (uint32_t k = 1; k < n; k++) weft_text_puts(t, "}");
  weft_text_puts(t, "}");
}

/* A long base that references are resolved against. */
static void put_long_base(weft_text *t, uint32_t n) {
  weft_text_puts(t, "{\"$id\":\"http://x/");
  for (uint32_t i = 0; i < n; i++) weft_text_puts(t, "y/");
  weft_text_puts(t, "\",\"$defs\":{\"z\":{}");
  for (uint32_t i = 0; i < CONSTANTS; i++) weft_text_printf(t, ",\"a%u\":{\"$ref\":\"../z\"}", i);
  weft_text_puts(t, "}}");
}

/* Two objects of n properties each, merged. */
static void put_merged_objects(weft_text *t, uint32_t n) {
  for (uint32_t k = 0; k < 2; k++) {
    weft_text_puts(t, k == 0 ? "{\"allOf\":[{\"properties\":{\"a\":false" : "}},{\"properties\":{\"b\":false");
    for (uint32_t i = 0; i < n; i++) weft_text_printf(t, ",\"p%u\":false", i);
  }
  weft_text_puts(t, "}}]}");
}

/* Names that are as long as each other and differ in the last letter, looked for in a list of others; refused then. */
static void put_long_names(weft_text *t, uint32_t n) {
  weft_text_puts(t, "{\"additionalProperties\":false,\"properties\":{");
  for (uint32_t k = 0; k < 2; k++) {
    for (uint32_t i = 0; i < CONSTANTS; i++) {
      weft_text_puts(t, i > 0 ? ",\"" : "\"");
      for (uint32_t c = 0; c < n; c++) weft_text_puts(t, "nnnnnnnn");
      weft_text_printf(t, "%c\"%s", (int)(k == 0 ? 'a' + i : 'A' + i), k == 0 ? ":true" : "");
    }
    weft_text_puts(t, k == 0 ? "},\"required\":[" : "]}");
  }
}

/* What is n times as large costs as much more as is compared in it, or looked through: `times` for each of n. */
static void work_follows_size(void **state) {
  static const struct {
    const char *name;
    void (*put)(weft_text *t, uint32_t n);
    uint32_t times;
  } rows[] = {{"lists that are merged", put_merged_lists, CONSTANTS * CONSTANTS},
              {"constants that are merged", put_merged_constants, 1},
              {"a constant beside a list", put_constant_beside, CONSTANTS},
              {"branches that exclude each other", put_excluded, CONSTANTS * CONSTANTS},
              {"types that are merged", put_merged_types, 2},
              {"a schema for many names", put_many_names, CONSTANTS},
              {"long references", put_references, CONSTANTS},
              {"long names", put_long_names, CONSTANTS},
              {"a long base of references", put_long_base, 2 * CONSTANTS},
              {"objects that are merged", put_merged_objects, 64}};
  enum { SMALL = 10, LARGE = 900 };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_text small = {0}, large = {0};
    rows[i].put(&small, SMALL);
    rows[i].put(&large, LARGE);
    uint64_t less = steps_of_schema(&small), more = steps_of_schema(&large);
    if (more < less + (uint64_t)rows[i].times * (LARGE - SMALL)) {
      fail_msg("%s: %llu steps for %d, %llu for %d", rows[i].name, (unsigned long long)less, SMALL,
               (unsigned long long)more, LARGE);
    }
    weft_text_free(&small);
    weft_text_free(&large);
  }
}

/* Lists of the same constants in two orders, which differ in their last members, merged again and again; at last with
 * one that has none of them. */
static void put_bomb(weft_text *t) {
  weft_text_puts(t, "{\"allOf\":[");
  for (uint32_t i = 0; i < 200; i++) weft_text_puts(t, "{\"$ref\":\"#/x-a\"},{\"$ref\":\"#/x-b\"},");
  weft_text_puts(t, "{\"$ref\":\"#/x-c\"}]");
  for (uint32_t i = 0; i < 3; i++) {
    weft_text_printf(t, ",\"x-%c\":{\"enum\":[", (int)('a' + i));
    for (uint32_t k = 0; k < 12; k++) {
      weft_text_puts(t, k > 0 ? "," : "");
      put_constant(t, 1200, i == 0 ? k : i == 1 ? 11 - k : 12 + k);
    }
    weft_text_puts(t, "]}");
  }
  weft_text_puts(t, "}");
}

/* A small copy of a schema that took a worker for minutes. It is refused as soon as its steps are used up. */
static void a_bomb_of_constants_is_refused(void **state) {
  weft_text text = {0};
  weft_grammar_work work = {0};
  weft_error error = {{0}};
  (void)state;
  put_bomb(&text);
  assert_true(text.n <= WEFT_GRAMMAR_TEXT_MAX);
  assert_int_equal(compile(WEFT_GRAMMAR_JSON_SCHEMA, &text, &work, &error), WEFT_E_TOO_LARGE);
  assert_non_null(strstr(error.text, "steps"));
  assert_in_range(work.n_steps, GRAMMAR_STEPS_MAX, GRAMMAR_STEPS_MAX + (1 << 20));
  weft_text_free(&text);
}

/* ---- names of a place ---- */

static weft_grammar *compile_reference(const char *reference, weft_status *status, weft_error *error) {
  char text[400];
  weft_grammar *g;
  (void)snprintf(text, sizeof text,
                 "{\"prefixItems\":[{\"$ref\":\"#/$defs/a~1b/0\"},{\"$ref\":\"%s\"}],\"items\":false,\"minItems\":2,"
                 "\"$defs\":{\"a/b\":[{\"type\":\"array\",\"maxItems\":3,\"items\":{\"type\":\"boolean\"}}]}}",
                 reference);
  *status = weft_grammar_compile(WEFT_GRAMMAR_JSON_SCHEMA, text, strlen(text), world.trie, &g, NULL, error);
  return g;
}

/* A place has one rule, whatever the reference that leads to it looks like; what RFC 6901 does not allow is refused. */
static void a_place_has_one_rule(void **state) {
  static const char *const same[] = {"#/$defs/a~1b/0", "#/%24defs/a~1b/0", "#/$defs/a%7e1b/%30",
                                     "#/%24%64efs/a%7E1b/0"};
  static const struct {
    const char *reference, *words;
  } refused[] = {{"#/$defs/a~1b/00", "leading zeros"},
                 {"#/$defs/a~1b/000", "leading zeros"},
                 {"#/$defs/a~1b/+0", "leading zeros"},
                 {"#/$defs/a~1b/ 0", "leading zeros"},
                 {"#/$defs/a~1b/0x0", "leading zeros"},
                 {"#/$defs/a~1b/", "leading zeros"},
                 {"#/$defs/a~1b/-", "leading zeros"},
                 {"#/$defs/a~1b/1", "not there"},
                 {"#/$defs/a~1b/999999999", "not there"},
                 {"#/$defs/a~1b/18446744073709551616", "leading zeros"},
                 {"#/$defs/a~2b/0", "malformed"},
                 {"#/$defs/a~", "malformed"},
                 {"#/$defs/a%2", "malformed"},
                 {"#/$defs/a% 1b/0", "malformed"},
                 {"#/$defs/a%00", "malformed"},
                 {"#/$defs/a%2Fb/0", "not there"}};
  weft_error error = {{0}};
  weft_status status;
  uint32_t n_rules = 0, n_states = 0;
  (void)state;
  for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
    weft_grammar *g = compile_reference(same[i], &status, &error);
    if (status != WEFT_OK) fail_msg("%s: %s", same[i], error.text);
    if (i == 0) n_rules = g->n_rules, n_states = g->n_states;
    assert_int_equal(g->n_rules, n_rules);
    assert_int_equal(g->n_states, n_states);
    weft_grammar_unref(g);
  }
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    assert_null(compile_reference(refused[i].reference, &status, &error));
    if (status != WEFT_E_INVALID || strstr(error.text, refused[i].words) == NULL)
      fail_msg("%s: %s", refused[i].reference, error.text);
  }
}

/* ---- the end of compiling ---- */

typedef struct asked {
  uint32_t n, stop_at; /* the question that is answered with yes */
} asked;

static bool answer_question(void *self) {
  asked *a = self;
  return ++a->n >= a->stop_at;
}

/* Something that takes long in each part of compiling: reading, determinising, measuring, tables. */
static void put_long_one(weft_text *t, uint32_t which) {
  if (which == 0) {
    put_bomb(t);
  } else if (which == 1) {
    weft_text_puts(t, "(a|b)*a");
    for (int i = 0; i < 40; i++) weft_text_puts(t, "(a|b)");
  } else {
    weft_text_puts(t, "{\"type\":\"object\",\"properties\":{");
    for (int i = 0; i < 1500; i++) weft_text_printf(t, "%s\"p%d\":{\"enum\":[\"a%d\"]}", i > 0 ? "," : "", i, i);
    weft_text_puts(t, "}}");
  }
}

/* Compiling that nobody wants any more ends with the next question, whichever part it is in. */
static void compiling_ends_when_it_is_not_wanted(void **state) {
  static const weft_grammar_kind kinds[] = {WEFT_GRAMMAR_JSON_SCHEMA, WEFT_GRAMMAR_REGEX, WEFT_GRAMMAR_JSON_SCHEMA};
  (void)state;
  for (uint32_t which = 0; which < 3; which++) {
    weft_text text = {0};
    put_long_one(&text, which);
    asked all = {.stop_at = UINT32_MAX};
    weft_grammar_work whole = {.stop = answer_question, .self = &all};
    weft_error error = {{0}};
    (void)compile(kinds[which], &text, &whole, &error);
    if (all.n < 8) fail_msg("%u: only %u questions", which, all.n);
    for (uint32_t at = 1; at <= all.n; at += 1 + all.n / 7) {
      asked a = {.stop_at = at};
      weft_grammar_work work = {.stop = answer_question, .self = &a};
      assert_int_equal(compile(kinds[which], &text, &work, &error), WEFT_CANCELLED);
      assert_int_equal(a.n, at); /* it is not asked again */
      assert_true(work.n_steps <= (uint64_t)at * 2 * WEFT_GRAMMAR_LOOK);
    }
    weft_text_free(&text);
  }
}

/* The same for the graph of canvases. */
static void a_graph_ends_when_it_is_not_wanted(void **state) {
  static const char schema[] = "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":60},\"maxItems\":40}";
  weft_error error = {{0}};
  weft_grammar *g;
  (void)state;
  for (uint32_t at = 1; at <= 3; at++) {
    asked a = {.stop_at = at};
    weft_grammar_work work = {.stop = answer_question, .self = &a};
    assert_int_equal(
        weft_grammar_compile(WEFT_GRAMMAR_JSON_SCHEMA, schema, strlen(schema), world.trie, &g, NULL, &error), WEFT_OK);
    assert_int_equal(weft_grammar_for_canvases(g, &work, &error), WEFT_CANCELLED);
    assert_int_equal(a.n, at);
    weft_grammar_unref(g);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(work_follows_size), cmocka_unit_test(a_bomb_of_constants_is_refused),
      cmocka_unit_test(a_place_has_one_rule), cmocka_unit_test(compiling_ends_when_it_is_not_wanted),
      cmocka_unit_test(a_graph_ends_when_it_is_not_wanted)};
  return cmocka_run_group_tests(tests, open_world, close_world);
}
