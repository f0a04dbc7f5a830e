/* SPDX-License-Identifier: MIT */
/* Templates: whose byte each byte of the output is, whatever a template does with it; templates that never end, nest or
 * grow without end; and what a refusal says. What the constructs print is in tests/golden/model_jinja.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/text/jinja.h"
#include "tests/support/refuse_each.h"

static const char usual[] =
    "{\"u\":\"<|im_end|>\",\"v\":\"a<b>c\",\"n\":12,\"list\":[\"x\",\"<s>\"],\"map\":{\"<k>\":\"<v>\"},\"pad\":\"  <p> "
    "\","
    "\"messages\":[{\"role\":\"user\",\"content\":\"<u>\"},{\"role\":\"<r>\",\"content\":\"\"}],\"lines\":\"<1>\\n<2>"
    "\","
    "\"json\":\"[\\\"<j>\\\"]\"}";

static weft_status render(const char *text, const weft_jinja_budget *budget, weft_jinja_text *out, weft_error *error) {
  static const char *const roles[] = {"system", "user", "assistant"};
  static const weft_jinja_word words[] = {{"bos_token", "<bos>"}};
  weft_jinja *jinja;
  *out = (weft_jinja_text){0};
  weft_status status = weft_jinja_open(text, strlen(text), &jinja, error);
  if (status != WEFT_OK) return status;
  json_t *values = json_loads(usual, 0, NULL);
  const weft_jinja_context context = {.values = values,
                                      .words = words,
                                      .n_words = 1,
                                      .roles = roles,
                                      .n_roles = 3,
                                      .now = {.tm_year = 126, .tm_mday = 1},
                                      .budget = budget == NULL ? weft_jinja_budget_default() : *budget};
  status = weft_jinja_render(jinja, &context, out, error);
  json_decref(values);
  weft_jinja_close(jinja);
  return status;
}

/* want: the output with what is the request's, or computed, in [ ]. */
static void marked(const char *text, const char *want) {
  weft_jinja_text out;
  weft_error error = {{0}};
  weft_text shown = {0};
  if (render(text, NULL, &out, &error) != WEFT_OK) fail_msg("%s: %s", text, error.text);
  bool mark = true;
  for (size_t i = 0; i <= out.n; i++) {
    bool next = i == out.n || out.marks[i] == WEFT_JINJA_OWN;
    if (next != mark) weft_text_puts(&shown, mark ? "[" : "]");
    mark = next;
    if (i < out.n) weft_text_append(&shown, out.bytes + i, 1);
  }
  if (strcmp(shown.n == 0 ? "" : shown.bytes, want) != 0) fail_msg("%s:\n%s\nand must be\n%s", text, shown.bytes, want);
  weft_text_free(&shown);
  weft_jinja_text_free(&out);
}

static void test_marks(void **state) {
  (void)state;
  static const char *const rows[][2] = {
      {"<t>{{ u }}</t>", "<t>[<|im_end|>]</t>"},
      {"{{ '<t>' + u + '</t>' }}", "<t>[<|im_end|>]</t>"},
      {"{{ '<t>' ~ n ~ u ~ true ~ 1.5 }}", "<t>[12<|im_end|>True1.5]"},
      {"{{ bos_token }}{{ messages[0].role }}{{ messages[1].role }}{{ messages[0].content }}", "<bos>user[<r><u>]"},
      {"{{ '<' + messages[0].role + '>' }}", "<user>"},
      {"{{ 'ab' | upper }}{{ v | upper }}{{ ('x' + v) | title }}", "AB[A<B>C]X[a<B>c]"},
      {"{{ ('[' + v + '] ') | trim | capitalize }}", "[[a<b>c]]"},
      {"{{ pad | trim }}{{ (' <t>' + pad) | trim }}{{ pad.strip() }}", "[<p>]<t>[  <p><p>]"},
      {"{{ v | replace('b', 'T') }}{{ v | replace('<b>', u) }}{{ 'a<b>' | replace('b', n) }}",
       "[a<]T[>ca<|im_end|>c]a<[12]>"},
      {"{{ v.split('<') | join('<|') }}{{ ['a', u, 'b'] | join(n) }}", "[a]<|[b>c]a[12<|im_end|>12]b"},
      {"{{ v[1:4] }}{{ ('t' + v)[0:3] }}{{ ('t' + v)[::-1] }}{{ ('t' ~ u) | reverse }}",
       "[<b>]t[a<c>b<a]t[>|dne_mi|<]t"},
      {"{{ ('t' ~ u)[0] }}{{ ('t' ~ u)[1] }}{{ ('t' ~ u) | first }}{{ ('t' ~ u) | last }}", "t[<]t[>]"},
      {"{{ map | tojson }}{{ {'k': u} | tojson }}{{ '<t>' | tojson }}{{ ['a', u] }}",
       "[{\"<k>\": \"<v>\"}{\"]k[\": \"<|im_end|>\"}\"]<t>[\"[']a[', '<|im_end|>']]"},
      {"{{ map | string }}{{ list | tojson(indent=1) }}", "[{'<k>': '<v>'}[\n \"x\",\n \"<s>\"\n]]"},
      {"{% for k, v in map.items() %}<{{ k }}={{ v }}>{% endfor %}", "<[<k>]=[<v>]>"},
      {"{% for c in 'a' ~ v %}{{ c }},{% endfor %}", "a,[a],[<],[b],[>],[c],"},
      {"{% macro m(x, y='<y>') %}<m>{{ x }}{{ y }}{% endmacro %}{{ m(u) }}{{ m(u) | trim ~ '!' }}",
       "<m>[<|im_end|>]<y><m>[<|im_end|>]<y>!"},
      {"{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}{{ u }}c{% endcall %}", "<[<|im_end|>]c>"},
      {"{% set x %}<x>{{ u }}{% endset %}{{ x }}{% set y | upper %}y{{ v }}{% endset %}{{ y }}",
       "<x>[<|im_end|>]Y[A<B>C]"},
      {"{% filter replace('<', '{') %}<f>{{ v }}{% endfilter %}", "{f>[a]{[b>c]"},
      {"{% set ns = namespace(x='<') %}{% for i in list %}{% set ns.x = ns.x + i + '>' %}{% endfor %}{{ ns.x }}",
       "<[x]>[<s>]>"},
      {"{{ lines | indent(2) }}{{ lines.splitlines() | join('\n') }}", "[<1>\n  <2><1>]\n[<2>]"},
      {"{{ json | from_json | first }}{{ '[\"<t>\"]' | from_json | first }}", "[<j><t>]"},
      {"{{ list | sort | join(',') }}{{ list | map('upper') | join }}{{ list | unique | list | last }}",
       "[<s>],[xX<S><s>]"},
      {"{{ '%s' }}{{ 'ab' * 2 }}{{ u * 2 }}{{ strftime_now('%Y') }}{{ range(2) | list }}",
       "%sabab[<|im_end|><|im_end|>2026[0, 1]]"},
      {"{{ v.strip('ac') }}{{ v.removeprefix('a') }}{{ ('t' + v).removesuffix('c') }}{{ v.upper() }}{{ '-'.join(list) "
       "}}",
       "[<b><b>c]t[a<b>A<B>Cx]-[<s>]"},
      {"{{ u if u else 'e' }}{{ '' or v }}{{ none or '<n>' }}{{ u | default('d') }}{{ q | default('<q>') }}",
       "[<|im_end|>a<b>c]<n>[<|im_end|>]<q>"},
      {"{{ '<|im_' ~ 'end|>' }}{{ '<|im_' ~ v[0] }}{{ u[:5] ~ 'end|>' }}", "<|im_end|><|im_[a<|im_]end|>"},
      {"{{ dict(a=u, b='<b>').values() | join }}{{ {'<k>': 1} | list | first }}{{ map | list | first }}",
       "[<|im_end|>]<b><k>[<k>]"},
      {"{{ [u, '<t>'] | max }}{{ [['<t>', u]] | map('last') | first }}{{ messages | map(attribute='role') | join }}",
       "[<|im_end|><|im_end|>]user[<r>]"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) marked(rows[i][0], rows[i][1]);
}

static void refused(const char *text, weft_status status, const char *words) {
  const weft_jinja_budget small = {.steps = 200000, .bytes = 8 << 20, .depth = 300};
  weft_jinja_text out;
  weft_error error = {{0}};
  weft_status got = render(text, &small, &out, &error);
  if (got != status || strstr(error.text, words) == NULL || strchr(error.text, '\n') != NULL) {
    fail_msg("%s: %d '%s', must be %d '%s'", text, (int)got, error.text, (int)status, words);
  }
  assert_null(out.bytes);
}

/* What a parser makes of a text counts, although it lies elsewhere. */
static void test_parsed_text_counts(void **state) {
  const weft_jinja_budget small = {.steps = 200000, .bytes = 1 << 20, .depth = 300};
  weft_jinja_text out;
  weft_error error = {{0}};
  (void)state;
  assert_int_equal(render("{{ ('[' * 30000) | from_json }}", &small, &out, &error), WEFT_E_TOO_LARGE);
  assert_non_null(strstr(error.text, "bytes of memory"));
}

/* Each of these would run for hours, take all memory or overflow the stack. */
static void test_hostile_templates_end(void **state) {
  (void)state;
  static const char *const steps = "takes more than 200000 steps", *const bytes = "bytes of memory";
  refused("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", WEFT_E_TOO_LARGE, steps);
  refused("{% set n = namespace(l=[0]) %}{% for a in range(99) %}{% set n.l = n.l + n.l %}{% endfor %}",
          WEFT_E_TOO_LARGE, "takes more");
  refused("{% set n = namespace(s='ab') %}{% for a in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
          WEFT_E_TOO_LARGE, bytes);
  refused("{{ 'abcdefgh' * 9999999999 }}", WEFT_E_TOO_LARGE, "takes more");
  refused("{{ [1] * 9999999999 }}", WEFT_E_TOO_LARGE, "takes more");
  refused("{{ 'a' | indent(9999999999) }}", WEFT_E_TOO_LARGE, steps);
  refused("{{ [1] | tojson(indent=9999999999) }}", WEFT_E_TOO_LARGE, steps);
  refused("{{ 2 ** 9999999999 }}", WEFT_E_TOO_LARGE, "a number grows too large");
  refused("{{ 9223372036854775807 + 1 }}", WEFT_E_TOO_LARGE, "a number grows too large");
  refused("{{ -9223372036854775807 - 2 }}", WEFT_E_TOO_LARGE, "a number grows too large");
  refused("{{ range(-9223372036854775807, 9223372036854775807) }}", WEFT_E_TOO_LARGE, "'range' has more than");
  refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", WEFT_E_TOO_LARGE, "nests more than 300 deep");
  refused("{% macro m(x) %}{{ m(x)(x) }}{% endmacro %}{{ m(m) }}", WEFT_E_TOO_LARGE, "nests more than 300 deep");
  refused("{% set n = namespace(l=[]) %}{% for a in range(999) %}{% set n.l = [n.l] %}{% endfor %}{{ n.l | tojson }}",
          WEFT_E_TOO_LARGE, "nests more than 300 deep");
  refused(
      "{% set n = namespace(l=[]) %}{% for a in range(999) %}{% set n.l = [n.l] %}{% endfor %}{{ n.l == n.l }}{{ n.l "
      "}}",
      WEFT_E_TOO_LARGE, "nests more than 300 deep");
  refused(
      "{% set n = namespace(l=[1]) %}{% for a in range(60) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l | tojson }}",
      WEFT_E_TOO_LARGE, "takes more");
  refused(
      "{% set n = namespace(l=[1]) %}{% for a in range(60) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l == [n.l[0], "
      "n.l[1]] }}",
      WEFT_E_TOO_LARGE, steps);
  refused(
      "{% set n = namespace(s='aaaaaaaa') %}{% for a in range(12) %}{% set n.s = n.s | replace('a', n.s) %}{% endfor "
      "%}",
      WEFT_E_TOO_LARGE, "takes more");
  refused("{% for a in range(99999) %}{{ lines }}{{ lines }}{{ lines }}{{ lines }}{% endfor %}", WEFT_E_TOO_LARGE,
          "takes more");
}

/* Each of these goes through much data by few parts of the template, so what it goes through must count. */
static void test_long_data_counts(void **state) {
  (void)state;
  static const char *const rows[] = {
      "{% set l = [0] * 30000 %}{% for a in range(99) %}{% set x = l | select %}{% endfor %}",
      "{% set l = [0] * 30000 %}{% for a in range(99) %}{% set x = l == l %}{% endfor %}",
      "{% set l = [0] * 30000 %}{% for a in range(99) %}{% set x = l < l %}{% endfor %}",
      "{% set s = 'a' * 60000 %}{% for a in range(999) %}{% set x = s.startswith(s) %}{% endfor %}",
      "{% set s = ' ' * 60000 %}{% for a in range(99) %}{% set x = s | trim %}{% endfor %}",
      "{% set s = ' ' * 60000 %}{% for a in range(99) %}{% set x = s.rstrip() %}{% endfor %}",
      "{% set s = 'a' * 60000 %}{{ s.strip('b' * 60000 + 'a') }}",
      "{% set s = 'a' * 60000 %}{{ s.rfind(s[:30000] + 'b') }}",
      "{% set s = 'a' * 60000 %}{{ s.rsplit(s[:30000] + 'b') }}",
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    refused(rows[i], WEFT_E_TOO_LARGE, "takes more than 200000 steps");
  }
}

/* Whole numbers keep all their digits, and a power of -1 takes no rounds. */
static void test_whole_numbers(void **state) {
  (void)state;
  marked("{{ 9007199254740993 | int }} {{ 9223372036854775807 | int }} {{ true | int }}",
         "[9007199254740993] [9223372036854775807] [1]");
  marked("{{ 9007199254740993 | round }} {{ 9223372036854775807 | round(2) }} {{ 1250 | round(-2) }}",
         "[9007199254740993] [9223372036854775807] [1200]");
  marked("{{ (-1) ** 9000000000000000000 }} {{ (-1) ** 9000000000000000001 }} {{ (-1) ** 0 }}", "[1] [-1] [1]");
  marked("{{ 0 ** 0 }} {{ 0 ** 8 }} {{ 1 ** 9000000000000000000 }} {{ (-2) ** 3 }}", "[1] [0] [1] [-8]");
  refused("{{ 9223372036854775807 | round(-3) }}", WEFT_E_TOO_LARGE, "a number grows too large");
  refused("{{ 5 | round(-400) }}", WEFT_E_INVALID, "must be -15 to 15");
  refused("{{ u | abs }}", WEFT_E_INVALID, "a string has no absolute value");
  refused("{{ u | round }}", WEFT_E_INVALID, "a string cannot be rounded");
}

/* A template as deep or as long as no parser's stack should be. */
static void test_hostile_text(void **state) {
  (void)state;
  static const char nests[] = "it nests more than 200 deep";
  static const char *const rows[][4] = {{"{{ ", "(", ")", nests},
                                        {"{{ ", "[", "]", nests},
                                        {"{{ ", "{1:", "}", nests},
                                        {"{{ ", "not ", "", nests},
                                        {"{{ ", "-", "", nests},
                                        {"", "{% if x %}", "", nests},
                                        {"", "{% for x in y %}", "", nests},
                                        {"{{ 1", " if 1 else 1", "", nests},
                                        {"{{ x", "|trim", "", "more than 256 filters in a row"},
                                        {"{{ x", ".y", "", "more than 256 calls and attributes in a row"},
                                        {"{{ 1", "+1", "", "more than 256 operators in a row"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_text text = {0};
    weft_error error = {{0}};
    weft_jinja *jinja;
    weft_text_puts(&text, rows[i][0]);
    for (int k = 0; k < 20000; k++) weft_text_puts(&text, rows[i][1]);
    for (int k = 0; k < 20000; k++) weft_text_puts(&text, rows[i][2]);
    weft_text_puts(&text, " }}");
    weft_status status = weft_jinja_open(text.bytes, text.n, &jinja, &error);
    if (status != WEFT_E_TOO_LARGE || strstr(error.text, rows[i][3]) == NULL)
      fail_msg("row %zu: %d %s", i, (int)status, error.text);
    assert_null(jinja);
    weft_text_free(&text);
  }
  weft_error error;
  weft_jinja *jinja;
  char *large = calloc(1, WEFT_JINJA_TEMPLATE_MAX + 1);
  memset(large, 'x', WEFT_JINJA_TEMPLATE_MAX + 1);
  assert_int_equal(weft_jinja_open(large, WEFT_JINJA_TEMPLATE_MAX + 1, &jinja, &error), WEFT_E_TOO_LARGE);
  assert_int_equal(weft_jinja_open(large, WEFT_JINJA_TEMPLATE_MAX, &jinja, &error), WEFT_OK);
  weft_jinja_close(jinja);
  free(large);
}

static void test_refusals(void **state) {
  (void)state;
  static const struct {
    const char *text;
    weft_status status;
    const char *words;
  } rows[] = {
      {"a\n\n{{ x | groupby('y') }}", WEFT_E_UNSUPPORTED, "line 3: the filter 'groupby' is not supported"},
      {"{{ x is filter('y') }}", WEFT_E_UNSUPPORTED, "line 1: the test 'filter' is not supported"},
      {"\n{% extends 'x' %}", WEFT_E_UNSUPPORTED, "line 2: 'extends' is not supported"},
      {"{% do x %}", WEFT_E_UNSUPPORTED, "'do' is not supported"},
      {"{% for x in y recursive %}{% endfor %}", WEFT_E_UNSUPPORTED, "recursive loops are not supported"},
      {"{{ '%s' % 'x' }}", WEFT_E_UNSUPPORTED, "formatting a string by % is not supported"},
      {"{{ 'x'.format(1) }}", WEFT_E_UNSUPPORTED, "the method 'format' of a string is not supported"},
      {"{{ '\\N{DASH}' }}", WEFT_E_UNSUPPORTED, "names of characters"},
      {"{{ x[1, 2] }}", WEFT_E_UNSUPPORTED, "several subscripts"},
      {"{{ x", WEFT_E_FORMAT, "line 1: '{{' is not closed"},
      {"{% if x %}\n\n{{ y }}", WEFT_E_FORMAT, "the block that began in line 1 is not closed"},
      {"{% endfor %}", WEFT_E_FORMAT, "'endfor' closes nothing"},
      {"{# x", WEFT_E_FORMAT, "'{#' is not closed"},
      {"{% raw %} {{ x }}", WEFT_E_FORMAT, "raw is not closed"},
      {"{{ 'abc }}", WEFT_E_FORMAT, "a string is not closed"},
      {"{{ x y }}", WEFT_E_FORMAT, "}} is expected before 'y'"},
      {"{{ }}", WEFT_E_FORMAT, "an expression is missing"},
      {"{{ x | }}", WEFT_E_FORMAT, "a name is expected"},
      {"{{ a ? b }}", WEFT_E_FORMAT, "the character '?' means nothing here"},
      {"{{ ) }}", WEFT_E_FORMAT, "')' closes nothing"},
      {"{{ 1x }}", WEFT_E_FORMAT, "a number runs into a name"},
      {"{{ 99999999999999999999 }}", WEFT_E_UNSUPPORTED, "does not fit"},
      {"{% break %}", WEFT_E_FORMAT, "belong into a loop"},
      {"{% for x in y %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}", WEFT_E_FORMAT, "belong into a loop"},
      {"{% call x %}{% endcall %}", WEFT_E_FORMAT, "a call block needs a call"},
      {"{{ f(a=1, 2) }}", WEFT_E_FORMAT, "an argument without a name follows one with a name"},
      {"{{ f(a=1, *b=[2]) }}", WEFT_E_FORMAT, "an argument without a name follows one with a name"},
      {"{{ f(*b=[2]) }}", WEFT_E_FORMAT, ") is expected before '='"},
      {"{{ f(**b={}) }}", WEFT_E_FORMAT, ") is expected before '='"},
      {"{{ '\xFF' }}", WEFT_E_FORMAT, "is no UTF-8"},
      {"\n{{ messages.x.y }}", WEFT_E_INVALID, "line 2: 'x' is undefined"},
      {"{{ nothing() }}", WEFT_E_INVALID, "there is no function 'nothing'"},
      {"{{ u + 1 }}", WEFT_E_INVALID, "a string + a number means nothing"},
      {"{{ raise_exception('only\nusers') }}", WEFT_E_INVALID, "the template refuses this conversation: only users"},
      {"{{ u | trim(1) }}", WEFT_E_INVALID, "it must be a string"},
      {"{{ u | trim(1, 2) }}", WEFT_E_INVALID, "the filter 'trim' takes 0 to 1 arguments and is given 2"},
      {"{% macro m(a) %}{% endmacro %}{{ m(b=1) }}", WEFT_E_INVALID,
       "the macro 'm' is given an argument that it does not take"},
      {"{% set u.x = 1 %}", WEFT_E_INVALID, "'u' is no namespace"},
      {"{{ list | select('string') | length }}", WEFT_E_INVALID, "before it goes through the filter 'list'"},
      {"{{ map | map('nothing') | list }}", WEFT_E_UNSUPPORTED, "the filter 'nothing' is not supported"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) refused(rows[i].text, rows[i].status, rows[i].words);
}

/* A long conversation costs what it is long: text that is put together piece by piece is not copied each time. */
static void test_growing_text_is_linear(void **state) {
  (void)state;
  const weft_jinja_budget budget = {.steps = 2000000, .bytes = 32 << 20, .depth = 100};
  weft_jinja_text out;
  weft_error error = {{0}};
  const char *text =
      "{% set n = namespace(s='') %}{% for i in range(50000) %}{% set n.s = n.s + '0123456789' + u %}{% endfor %}{{ "
      "n.s }}";
  if (render(text, &budget, &out, &error) != WEFT_OK) fail_msg("%s", error.text);
  assert_int_equal(out.n, 50000 * 20);
  weft_jinja_text_free(&out);
}

static weft_status render_all(void *self, weft_error *error) {
  static const char text[] =
      "{% macro m(a, b=1) %}{{ a ~ b }}{% endmacro %}{% for x in list | sort %}{{ m(x) }}{{ map | tojson }}{% endfor %}"
      "{% set n = namespace(s='') %}{% for i in range(3000) %}{% set n.s = n.s + u %}{% endfor %}{{ n.s | upper }}";
  weft_jinja_text out;
  (void)self;
  weft_status status = render(text, NULL, &out, error);
  if (status == WEFT_E_NO_MEMORY) assert_non_null(strstr(error->text, "out of memory"));
  weft_jinja_text_free(&out);
  return status;
}

static void test_refused_memory(void **state) {
  (void)state;
  assert_in_range(refuse_each(render_all, NULL, true), 8, 1000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_marks),
      cmocka_unit_test(test_hostile_templates_end),
      cmocka_unit_test(test_parsed_text_counts),
      cmocka_unit_test(test_long_data_counts),
      cmocka_unit_test(test_whole_numbers),
      cmocka_unit_test(test_hostile_text),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_growing_text_is_linear),
      cmocka_unit_test(test_refused_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
