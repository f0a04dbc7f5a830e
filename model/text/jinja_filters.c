/* SPDX-License-Identifier: MIT */
/* Filters that change one value. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/text/jinja_filters.h"
#include "model/text/json_tree.h"

#define FILTER(name) static jinja_value name(jinja_run *run, jinja_value self, const jinja_args *args)

static jinja_value string_part(jinja_run *run, jinja_string s) {
  return jinja_string_value(run, s);
}

FILTER(filter_default) {
  const jinja_value *other = jinja_argument(args, 0, "default_value"), *falsy = jinja_argument(args, 1, "boolean");
  bool absent = self.kind == JINJA_UNDEFINED || (falsy != NULL && jinja_truth(*falsy) && !jinja_truth(self));
  return !absent ? self : other != NULL ? *other : jinja_word(run, "");
}

FILTER(filter_trim) {
  const jinja_value *set = jinja_argument(args, 0, "chars");
  const jinja_string *s = jinja_text(run, self), *chars = NULL;
  if (set != NULL && set->kind != JINJA_NONE) chars = jinja_string_of(run, *set, "the characters of 'trim'");
  return jinja_strip_counted(run, s, chars, true, true);
}

FILTER(filter_upper) {
  (void)args;
  return jinja_recase(run, jinja_text(run, self), CASE_UPPER);
}

FILTER(filter_lower) {
  (void)args;
  return jinja_recase(run, jinja_text(run, self), CASE_LOWER);
}

FILTER(filter_capitalize) {
  (void)args;
  return jinja_recase(run, jinja_text(run, self), CASE_CAPITAL);
}

FILTER(filter_title) {
  (void)args;
  return jinja_recase(run, jinja_text(run, self), CASE_HEADLINE);
}

FILTER(filter_string) {
  (void)args;
  return string_part(run, *jinja_text(run, self));
}

FILTER(filter_length) {
  (void)args;
  return jinja_int(jinja_length(run, self));
}

FILTER(filter_list) {
  (void)args;
  const jinja_list *list = jinja_iterate(run, self);
  if (list->flavour != JINJA_FLAVOUR_RANGE) return jinja_list_value(run, list->items, list->n, JINJA_FLAVOUR_LIST);
  jinja_items items = {0};
  for (size_t i = 0; i < list->n && !jinja_failed(run); i++) jinja_items_add(run, &items, jinja_list_at(list, i));
  return jinja_items_value(run, &items, JINJA_FLAVOUR_LIST);
}

FILTER(filter_replace) {
  const jinja_value *old = jinja_argument(args, 0, "old"), *with = jinja_argument(args, 1, "new");
  const jinja_value *count = jinja_argument(args, 2, "count");
  if (old == NULL || with == NULL) {
    jinja_fail(run, WEFT_E_INVALID, "the filter 'replace' needs what to replace and by what");
    return jinja_nothing();
  }
  int64_t n = count == NULL || count->kind == JINJA_NONE ? -1 : jinja_integer_of(run, *count, "the count of 'replace'");
  return jinja_replace(run, jinja_text(run, self), jinja_text(run, *old), jinja_text(run, *with), n);
}

FILTER(filter_indent) {
  const jinja_value *width = jinja_argument(args, 0, "width"), *first = jinja_argument(args, 1, "first");
  const jinja_value *blank = jinja_argument(args, 2, "blank");
  const jinja_string *by = NULL;
  jinja_buffer *out = jinja_take(run, sizeof *out), *spaces = jinja_take(run, sizeof *spaces);
  if (out == NULL || spaces == NULL) return jinja_nothing();
  if (width != NULL && width->kind == JINJA_STRING) {
    by = width->string;
  } else {
    int64_t n = width == NULL ? 4 : jinja_integer_of(run, *width, "the width of 'indent'");
    for (int64_t i = 0; i < n && !jinja_failed(run) && jinja_charge(run, 1); i++) jinja_puts(run, spaces, " ");
    by = jinja_buffer_value(run, spaces).string;
  }
  bool blanks = blank != NULL && jinja_truth(*blank), firsts = first != NULL && jinja_truth(*first);
  const jinja_string *s = jinja_text(run, self);
  const jinja_list *lines = jinja_split_lines(run, s).list;
  bool ends_open = s->n == 0 || s->bytes[s->n - 1] == '\n'; /* then a last, empty line counts */
  size_t n = jinja_failed(run) ? 0 : lines->n + (ends_open ? 1 : 0);
  for (size_t i = 0; i < n && !jinja_failed(run); i++) {
    size_t n_line = i < lines->n ? lines->items[i].string->n : 0;
    if (i > 0) jinja_puts(run, out, "\n");
    if (i == 0 ? firsts : blanks || n_line > 0) jinja_append(run, out, by);
    if (n_line > 0) jinja_append(run, out, lines->items[i].string);
  }
  return jinja_buffer_value(run, out);
}

enum { DIGITS_MAX = 80 };

/* What is between the white space, with a 0 behind it; its length, or 0: it is empty, or too long for a number. */
static size_t copy_digits(const jinja_string *s, char digits[DIGITS_MAX]) {
  jinja_string text = jinja_strip(s, NULL, true, true);
  if (text.n == 0 || text.n >= DIGITS_MAX) return 0;
  memcpy(digits, text.bytes, text.n);
  digits[text.n] = 0;
  return text.n;
}

/* Digits as int() reads them, with white space around; false: they are no number. */
static bool read_integer(const jinja_string *s, int base, int64_t *out) {
  char digits[DIGITS_MAX], *end = digits;
  size_t n = copy_digits(s, digits);
  if (n > 0) *out = strtoll(digits, &end, base);
  return n > 0 && end == digits + n;
}

static bool read_real(const jinja_string *s, double *out) {
  char digits[DIGITS_MAX], *end = digits;
  size_t n = copy_digits(s, digits);
  if (n == 0 || memchr(digits, 'x', n) != NULL) return false;
  *out = strtod(digits, &end);
  return end == digits + n;
}

/* Of a whole number or a boolean; not by way of a double, which has fewer digits. */
static int64_t whole_of(jinja_value v) {
  return v.kind == JINJA_INT ? v.integer : v.truth;
}

FILTER(filter_int) {
  const jinja_value *other = jinja_argument(args, 0, "default"), *base = jinja_argument(args, 1, "base");
  int64_t whole = 0, radix = base == NULL ? 10 : jinja_integer_of(run, *base, "the base of 'int'");
  double real = 0;
  if (self.kind == JINJA_INT || self.kind == JINJA_BOOL) return jinja_int(whole_of(self));
  if (radix < 2 || radix > 36) jinja_fail(run, WEFT_E_INVALID, "the base of 'int' must be 2 to 36");
  if (self.kind == JINJA_STRING && !jinja_failed(run) && read_integer(self.string, (int)radix, &whole))
    return jinja_int(whole);
  bool known = self.kind == JINJA_FLOAT || (self.kind == JINJA_STRING && read_real(self.string, &real));
  if (self.kind == JINJA_FLOAT) real = self.real;
  if (known && real > -9.2e18 && real < 9.2e18) return jinja_int((int64_t)real);
  return other != NULL ? *other : jinja_int(0);
}

FILTER(filter_float) {
  const jinja_value *other = jinja_argument(args, 0, "default");
  double real = 0;
  (void)run;
  if (jinja_is_number(self)) return jinja_float(jinja_number(self));
  if (self.kind == JINJA_STRING && read_real(self.string, &real)) return jinja_float(real);
  return other != NULL ? *other : jinja_float(0);
}

FILTER(filter_abs) {
  (void)args;
  if (!jinja_is_number(self)) jinja_fail(run, WEFT_E_INVALID, "%s has no absolute value", jinja_type_name(self));
  if (jinja_failed(run)) return jinja_nothing();
  if (self.kind == JINJA_FLOAT) return jinja_float(fabs(self.real));
  int64_t whole = whole_of(self);
  return jinja_int(whole < 0 && whole != INT64_MIN ? -whole : whole);
}

FILTER(filter_round) {
  const jinja_value *precision = jinja_argument(args, 0, "precision"), *method = jinja_argument(args, 1, "method");
  int64_t digits = precision == NULL ? 0 : jinja_integer_of(run, *precision, "the precision of 'round'");
  const jinja_string *how = method == NULL ? NULL : jinja_string_of(run, *method, "the method of 'round'");
  if (!jinja_is_number(self)) jinja_fail(run, WEFT_E_INVALID, "%s cannot be rounded", jinja_type_name(self));
  if (digits < -15 || digits > 15) jinja_fail(run, WEFT_E_INVALID, "the precision of 'round' must be -15 to 15");
  if (jinja_failed(run)) return jinja_nothing();
  double scale = pow(10, (double)digits), real = jinja_number(self) * scale;
  bool whole = self.kind != JINJA_FLOAT && how == NULL; /* stays whole */
  bool up = how != NULL && jinja_string_is(how, "ceil", 4), down = how != NULL && jinja_string_is(how, "floor", 5);
  if (whole && digits >= 0) return jinja_int(whole_of(self));
  double rounded = (up ? ceil(real) : down ? floor(real) : nearbyint(real)) / scale;
  if (!whole) return jinja_float(rounded);
  if (fabs(rounded) < 9.2e18) return jinja_int((int64_t)rounded);
  jinja_fail(run, WEFT_E_TOO_LARGE, "a number grows too large");
  return jinja_nothing();
}

static void json_form_read(jinja_run *run, const jinja_args *args, jinja_json_form *form) {
  static const jinja_string comma_space = {.bytes = ", ", .n = 2}, comma = {.bytes = ",", .n = 1};
  static const jinja_string colon_space = {.bytes = ": ", .n = 2};
  const jinja_value *ascii = jinja_argument(args, 0, "ensure_ascii"), *indent = jinja_argument(args, 1, "indent");
  const jinja_value *separators = jinja_argument(args, 2, "separators"), *sorted = jinja_argument(args, 3, "sort_keys");
  jinja_buffer *spaces = jinja_take(run, sizeof *spaces);
  form->ascii = ascii != NULL && jinja_truth(*ascii);
  form->sorted = sorted != NULL && jinja_truth(*sorted);
  form->indented = indent != NULL && indent->kind != JINJA_NONE;
  form->item_separator = form->indented ? &comma : &comma_space;
  form->key_separator = &colon_space;
  if (spaces == NULL) return;
  if (form->indented && indent->kind == JINJA_STRING) {
    form->indent = indent->string;
  } else if (form->indented) {
    int64_t n = jinja_integer_of(run, *indent, "the indent of 'tojson'");
    for (int64_t i = 0; i < n && jinja_charge(run, 1); i++) jinja_puts(run, spaces, " ");
    form->indent = jinja_buffer_value(run, spaces).string;
  }
  if (separators == NULL || separators->kind == JINJA_NONE) return;
  const jinja_list *pair = jinja_iterate(run, *separators);
  if (pair->n != 2) jinja_fail(run, WEFT_E_INVALID, "the separators of 'tojson' are not two");
  if (jinja_failed(run)) return;
  form->item_separator = jinja_string_of(run, jinja_list_at(pair, 0), "a separator of 'tojson'");
  form->key_separator = jinja_string_of(run, jinja_list_at(pair, 1), "a separator of 'tojson'");
}

/* The arguments are those of the filter that transformers gives to templates. */
FILTER(filter_tojson) {
  jinja_json_form form = {0};
  jinja_buffer *out = jinja_take(run, sizeof *out);
  json_form_read(run, args, &form);
  if (out == NULL || jinja_failed(run)) return jinja_nothing();
  jinja_json_write(run, out, self, &form);
  return jinja_buffer_value(run, out);
}

/* Takes the memory that the parser needs at most from the budget: it lies outside of the arena. */
static bool take_json_room(jinja_run *run, const jinja_string *s) {
  enum { VALUE_BYTES = 64 };
  size_t n = 1;
  for (size_t i = 0; i < s->n; i++) n += strchr("[{,:", s->bytes[i]) != NULL && s->bytes[i] != 0 ? 1 : 0;
  return jinja_take(run, n * VALUE_BYTES) != NULL;
}

/* transformers has no such filter, but some templates want one: it turns the arguments of a tool call, which came as
 * text, into a mapping. */
FILTER(filter_from_json) {
  (void)args;
  json_error_t why;
  const jinja_string *s = jinja_string_of(run, self, "what 'from_json' reads");
  if (!jinja_charge(run, s->n) || !take_json_room(run, s)) return jinja_nothing();
  json_t *json = weft_json_read(s->bytes, s->n, JSON_DECODE_ANY, &why);
  if (json == NULL) {
    jinja_fail(run, WEFT_E_INVALID, "'from_json' is given what is no JSON: %s", why.text);
    return jinja_nothing();
  }
  jinja_value value = jinja_json_read(run, json);
  json_decref(json);
  return value;
}

static const jinja_function filters[] = {
    {"abs", 0, 0, filter_abs},
    {"capitalize", 0, 0, filter_capitalize},
    {"count", 0, 0, filter_length},
    {"d", 0, 2, filter_default},
    {"default", 0, 2, filter_default},
    {"dictsort", 0, 3, jinja_filter_dictsort},
    {"first", 0, 0, jinja_filter_first},
    {"float", 0, 1, filter_float},
    {"from_json", 0, 0, filter_from_json},
    {"indent", 0, 3, filter_indent},
    {"int", 0, 2, filter_int},
    {"items", 0, 0, jinja_filter_items},
    {"join", 0, 2, jinja_filter_join},
    {"last", 0, 0, jinja_filter_last},
    {"length", 0, 0, filter_length},
    {"list", 0, 0, filter_list},
    {"lower", 0, 0, filter_lower},
    {"map", 1, 8, jinja_filter_map},
    {"max", 0, 2, jinja_filter_max},
    {"min", 0, 2, jinja_filter_min},
    {"reject", 0, 8, jinja_filter_reject},
    {"rejectattr", 1, 8, jinja_filter_rejectattr},
    {"replace", 2, 3, filter_replace},
    {"reverse", 0, 0, jinja_filter_reverse},
    {"round", 0, 2, filter_round},
    {"safe", 0, 0, filter_string},
    {"select", 0, 8, jinja_filter_select},
    {"selectattr", 1, 8, jinja_filter_selectattr},
    {"sort", 0, 3, jinja_filter_sort},
    {"string", 0, 0, filter_string},
    {"sum", 0, 2, jinja_filter_sum},
    {"title", 0, 0, filter_title},
    {"tojson", 0, 4, filter_tojson},
    {"trim", 0, 1, filter_trim},
    {"unique", 0, 2, jinja_filter_unique},
    {"upper", 0, 0, filter_upper},
    {NULL, 0, 0, NULL},
};

const jinja_function *jinja_filter_find(const char *name, size_t n) {
  return jinja_function_find(filters, name, n);
}
