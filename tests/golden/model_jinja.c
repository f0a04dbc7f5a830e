/* SPDX-License-Identifier: MIT */
/* Templates against Python's jinja2: the committed cases (tests/golden/jinja), whose text and marks must be equal; or,
 * with the argument -, lines from standard input rendered to standard output, for check_templates.py.
 *
 * A line {"template": TEXT} is the template of the lines behind it; {"values": {...}, "words": {...}} renders it
 * (values stay for lines that have none). With "text", that must come out; with "error" the template or the render must
 * be refused and say so. The clock stands at 2026-11-22 13:05:09, a Sunday. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/text/jinja.h"

static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
enum { N_WORDS_MAX = 16, N_ROLES = sizeof roles / sizeof *roles };

typedef struct outcome {
  weft_status status;
  weft_jinja_text text;
  weft_error error;
} outcome;

static outcome render_line(const weft_jinja *jinja, const json_t *values, const json_t *line) {
  outcome o = {0};
  weft_jinja_word words[N_WORDS_MAX];
  uint32_t n = 0;
  const char *name;
  json_t *word;
  json_object_foreach(json_object_get(line, "words"), name, word) {
    if (n < N_WORDS_MAX) words[n++] = (weft_jinja_word){name, json_string_value(word)};
  }
  const weft_jinja_context context = {
      .values = values,
      .words = words,
      .n_words = n,
      .roles = roles,
      .n_roles = N_ROLES,
      .now = {.tm_year = 126, .tm_mon = 10, .tm_mday = 22, .tm_hour = 13, .tm_min = 5, .tm_sec = 9, .tm_yday = 325},
      .budget = weft_jinja_budget_default(),
  };
  o.status = weft_jinja_render(jinja, &context, &o.text, &o.error);
  return o;
}

static weft_jinja *open_line(const json_t *line, weft_error *error) {
  const json_t *text = json_object_get(line, "template");
  weft_jinja *jinja;
  (void)weft_jinja_open(json_string_value(text), json_string_length(text), &jinja, error);
  return jinja;
}

/* Nothing that came with a conversation is marked: the word stands in all of its fields. */
static void check_theirs(const weft_jinja_text *text, const char *where) {
  static const char word[] = "\xE2\x9F\xA6user\xE2\x9F\xA7";
  for (const char *at = strstr(text->bytes, word); at != NULL; at = strstr(at + 1, word)) {
    for (size_t i = 0; i < sizeof word - 1; i++) {
      if (text->marks[at - text->bytes + (ptrdiff_t)i] == WEFT_JINJA_OWN)
        fail_msg("%s: text of the request is marked", where);
    }
  }
}

/* jinja NULL: it could not be opened, and unopened says why. */
static void check_line(const weft_jinja *jinja, const weft_error *unopened, const json_t *values, const json_t *line,
                       const char *where) {
  outcome o = {.status = WEFT_E_FORMAT, .error = *unopened};
  if (jinja != NULL) o = render_line(jinja, values, line);
  const json_t *text = json_object_get(line, "text"), *error = json_object_get(line, "error");
  if (error != NULL) {
    if (o.status == WEFT_OK) fail_msg("%s: rendered, and must be refused", where);
    if (strstr(o.error.text, json_string_value(error)) == NULL)
      fail_msg("%s: '%s' lacks '%s'", where, o.error.text, json_string_value(error));
  } else {
    if (o.status != WEFT_OK) fail_msg("%s: %s", where, o.error.text);
    if (strcmp(o.text.bytes, json_string_value(text)) != 0) {
      fail_msg("%s:\n%s\nand jinja2 gives\n%s", where, o.text.bytes, json_string_value(text));
    }
    check_theirs(&o.text, where);
  }
  weft_jinja_text_free(&o.text);
}

/* A file of lines under way. */
typedef struct reader {
  FILE *file;
  char *text;
  size_t capacity;
  weft_jinja *jinja;
  weft_error unopened;
  json_t *line, *values;
} reader;

/* The next line that renders, with its template and values; false at the end. */
static bool read_line(reader *r) {
  for (;;) {
    json_decref(r->line);
    r->line = NULL;
    if (getline(&r->text, &r->capacity, r->file) <= 0) return false;
    r->line = json_loads(r->text, 0, NULL);
    assert_non_null(r->line);
    json_t *values = json_object_get(r->line, "values");
    if (values != NULL) {
      json_decref(r->values);
      r->values = json_incref(values);
    }
    if (json_object_get(r->line, "template") == NULL) return true;
    weft_jinja_close(r->jinja);
    r->jinja = open_line(r->line, &r->unopened);
  }
}

static void close_reader(reader *r) {
  weft_jinja_close(r->jinja);
  json_decref(r->values);
  free(r->text);
  (void)fclose(r->file);
}

static void check_file(const char *name, uint32_t n_least) {
  char path[512], where[600];
  uint32_t n = 0;
  (void)snprintf(path, sizeof path, WEFT_SOURCE_DIR "/tests/golden/jinja/%s", name);
  reader r = {.file = fopen(path, "r")};
  if (r.file == NULL) fail_msg("cannot open %s", path);
  while (read_line(&r)) {
    const char *label = json_string_value(json_object_get(r.line, "name"));
    (void)snprintf(where, sizeof where, "%s: case %u %s", name, ++n, label == NULL ? "" : label);
    check_line(r.jinja, &r.unopened, r.values, r.line, where);
  }
  close_reader(&r);
  assert_true(n >= n_least);
}

static void test_constructs(void **state) {
  (void)state;
  check_file("constructs.jsonl", 90);
}

static void test_conversations(void **state) {
  (void)state;
  check_file("conversations.jsonl", 190);
}

static void print_outcome(outcome *o) {
  json_t *line = json_object();
  if (o->status == WEFT_OK) {
    json_t *lengths = json_array();
    bool own = true;
    for (size_t at = 0; at < o->text.n; own = !own) {
      size_t from = at;
      while (at < o->text.n && (o->text.marks[at] == WEFT_JINJA_OWN) == own) at += 1;
      json_array_append_new(lengths, json_integer((json_int_t)(at - from)));
    }
    json_object_set_new(line, "text", json_stringn(o->text.bytes, o->text.n));
    json_object_set_new(line, "marks", lengths);
  } else {
    json_object_set_new(line, "error", json_string(o->error.text));
  }
  char *printed = json_dumps(line, 0);
  (void)puts(printed);
  free(printed);
  json_decref(line);
  weft_jinja_text_free(&o->text);
}

static int render_input(void) {
  reader r = {.file = stdin};
  while (read_line(&r)) {
    outcome o = {.status = WEFT_E_FORMAT, .error = r.unopened};
    if (r.jinja != NULL) o = render_line(r.jinja, r.values, r.line);
    print_outcome(&o);
  }
  close_reader(&r);
  return 0;
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_constructs), cmocka_unit_test(test_conversations)};
  if (argc > 1 && strcmp(argv[1], "-") == 0) return render_input();
  return cmocka_run_group_tests(tests, NULL, NULL);
}
