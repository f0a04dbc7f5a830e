/* SPDX-License-Identifier: MIT */
/* Tests: what may follow `is`. */
#include <string.h>

#include "model/text/jinja_internal.h"

#define TEST(name, condition)                                                         \
  static jinja_value name(jinja_run *run, jinja_value self, const jinja_args *args) { \
    (void)run;                                                                        \
    (void)args;                                                                       \
    return jinja_bool(condition);                                                     \
  }

/* What a test compares with. */
#define OTHER (args->values[0])

static int64_t remainder_of(jinja_run *run, jinja_value self, int64_t by) {
  int64_t whole = jinja_integer_of(run, self, "a number that is tested");
  if (by == 0) jinja_fail(run, WEFT_E_INVALID, "a number is divided by 0");
  return by == 0 || by == -1 ? 0 : whole % by;
}

static bool is_callable(jinja_value v) {
  return v.kind == JINJA_MACRO || v.kind == JINJA_FUNCTION || v.kind == JINJA_METHOD;
}

static bool is_same(jinja_run *run, jinja_value a, jinja_value b) {
  return a.kind == b.kind && jinja_equal(run, a, b);
}

static bool is_iterable(jinja_value v) {
  return v.kind == JINJA_STRING || v.kind == JINJA_LIST || v.kind == JINJA_DICT || v.kind == JINJA_UNDEFINED;
}

static bool is_sequence(jinja_value v) {
  return is_iterable(v) && (v.kind != JINJA_LIST || v.list->flavour != JINJA_FLAVOUR_GENERATOR);
}

static bool is_case(jinja_run *run, jinja_value v, jinja_case as) {
  const jinja_string *s = jinja_text(run, v);
  const jinja_string *same = jinja_text(run, jinja_recase(run, s, as));
  const jinja_string *other = jinja_text(run, jinja_recase(run, s, as == CASE_UPPER ? CASE_LOWER : CASE_UPPER));
  bool letters = !jinja_string_is(same, other->bytes, other->n); /* some letter has a case */
  return letters && jinja_string_is(s, same->bytes, same->n);
}

TEST(test_boolean, self.kind == JINJA_BOOL)
TEST(test_callable, is_callable(self))
TEST(test_defined, self.kind != JINJA_UNDEFINED)
TEST(test_divisibleby, remainder_of(run, self, jinja_integer_of(run, OTHER, "a divisor")) == 0)
TEST(test_equal, jinja_equal(run, self, OTHER))
TEST(test_even, remainder_of(run, self, 2) == 0)
TEST(test_false, self.kind == JINJA_BOOL && !self.truth)
TEST(test_float, self.kind == JINJA_FLOAT)
TEST(test_in, jinja_contains(run, OTHER, self))
TEST(test_integer, self.kind == JINJA_INT)
TEST(test_iterable, is_iterable(self))
TEST(test_less, jinja_compare(run, self, OTHER) < 0)
TEST(test_less_equal, jinja_compare(run, self, OTHER) <= 0)
TEST(test_lower, is_case(run, self, CASE_LOWER))
TEST(test_mapping, self.kind == JINJA_DICT)
TEST(test_more, jinja_compare(run, self, OTHER) > 0)
TEST(test_more_equal, jinja_compare(run, self, OTHER) >= 0)
TEST(test_none, self.kind == JINJA_NONE)
TEST(test_number, jinja_is_number(self))
TEST(test_odd, remainder_of(run, self, 2) != 0)
TEST(test_same, is_same(run, self, OTHER))
TEST(test_sequence, is_sequence(self))
TEST(test_string, self.kind == JINJA_STRING)
TEST(test_true, self.kind == JINJA_BOOL && self.truth)
TEST(test_undefined, self.kind == JINJA_UNDEFINED)
TEST(test_unequal, !jinja_equal(run, self, OTHER))
TEST(test_upper, is_case(run, self, CASE_UPPER))

static const jinja_function tests[] = {
    {"boolean", 0, 0, test_boolean},
    {"callable", 0, 0, test_callable},
    {"defined", 0, 0, test_defined},
    {"divisibleby", 1, 1, test_divisibleby},
    {"eq", 1, 1, test_equal},
    {"equalto", 1, 1, test_equal},
    {"==", 1, 1, test_equal},
    {"even", 0, 0, test_even},
    {"false", 0, 0, test_false},
    {"float", 0, 0, test_float},
    {"ge", 1, 1, test_more_equal},
    {">=", 1, 1, test_more_equal},
    {"greaterthan", 1, 1, test_more},
    {"gt", 1, 1, test_more},
    {">", 1, 1, test_more},
    {"in", 1, 1, test_in},
    {"integer", 0, 0, test_integer},
    {"iterable", 0, 0, test_iterable},
    {"le", 1, 1, test_less_equal},
    {"<=", 1, 1, test_less_equal},
    {"lessthan", 1, 1, test_less},
    {"lower", 0, 0, test_lower},
    {"lt", 1, 1, test_less},
    {"<", 1, 1, test_less},
    {"mapping", 0, 0, test_mapping},
    {"ne", 1, 1, test_unequal},
    {"!=", 1, 1, test_unequal},
    {"none", 0, 0, test_none},
    {"number", 0, 0, test_number},
    {"odd", 0, 0, test_odd},
    {"sameas", 1, 1, test_same},
    {"sequence", 0, 0, test_sequence},
    {"string", 0, 0, test_string},
    {"true", 0, 0, test_true},
    {"undefined", 0, 0, test_undefined},
    {"upper", 0, 0, test_upper},
    {NULL, 0, 0, NULL},
};

const jinja_function *jinja_test_find(const char *name, size_t n) {
  return jinja_function_find(tests, name, n);
}
