/* SPDX-License-Identifier: MIT */
/* One rule for the fields of all dialects, held for every row of every table: what is passed over is, and is refused
 * where fields are strict; what is refused is, unless its value asks for nothing; an unknown field is passed over. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/dialects/anthropic.h"
#include "api/dialects/field_tables.h"
#include "api/dialects/ollama.h"
#include "api/dialects/openai.h"
#include "api/dialects/responses.h"

/* The status of an object of one member, read by the table. */
static weft_status read_one(const field_table *table, const char *name, const char *value, bool strict,
                            weft_refusal *why) {
  weft_gen gen = {.strict_fields = strict};
  char text[256];
  (void)snprintf(text, sizeof text, "{\"%s\":%s}", name, value);
  json_t *object = json_loads(text, 0, NULL);
  assert_non_null(object);
  weft_status status = fields_read(&gen, table, object, "at.", why);
  json_decref(object);
  weft_gen_close(&gen);
  return status;
}

static void check_row(const field_table *table, const field_row *row) {
  static const char *const something[] = {"\"x\"", "[1]", "{\"x\":1}", "7.25"};
  char field[160];
  (void)snprintf(field, sizeof field, "at.%s", row->name);
  for (size_t i = 0; i < 4; i++) {
    weft_refusal why = {0}, strict_why = {0};
    if (row->kind != FIELD_MET && row->kind != FIELD_PASSED && row->kind != FIELD_REFUSED) continue;
    weft_status status = read_one(table, row->name, something[i], false, &why),
                strict = read_one(table, row->name, something[i], true, &strict_why);
    if ((status == WEFT_OK) != (row->kind != FIELD_REFUSED)) fail_msg("%s: %s", table->where, field);
    if ((strict == WEFT_OK) != (row->kind == FIELD_MET)) fail_msg("%s: %s, strict", table->where, field);
    if (status != WEFT_OK) assert_string_equal(why.param, field);
    if (strict != WEFT_OK) assert_string_equal(strict_why.param, field);
  }
  weft_refusal why = {0};
  if (row->kind == FIELD_REFUSED) assert_int_equal(read_one(table, row->name, "[]", true, &why), WEFT_OK);
  assert_int_equal(read_one(table, row->name, "null", true, &why), WEFT_OK);
}

static void every_row_is_as_its_table_says(void **state) {
  (void)state;
  assert_true(n_field_tables >= 20);
  for (size_t i = 0; i < n_field_tables; i++) {
    const field_table *table = field_tables[i];
    for (size_t k = 0; k < table->n_rows; k++) {
      for (size_t j = 0; j < k; j++) assert_string_not_equal(table->rows[j].name, table->rows[k].name);
      if (table->rows[k].what == NULL || table->rows[k].what[0] == 0) fail_msg("%s has no words", table->rows[k].name);
      check_row(table, &table->rows[k]);
    }
    weft_refusal why = {0};
    assert_int_equal(read_one(table, "invented_tomorrow", "{\"x\":1}", false, &why), WEFT_OK);
    assert_int_equal(read_one(table, "invented_tomorrow", "{\"x\":1}", true, &why), WEFT_E_INVALID);
    assert_string_equal(why.code, "unknown_field");
  }
}

/* The values with which a field asks for nothing, beside what is empty. */
static void values_that_ask_for_nothing(void **state) {
  static const struct {
    const char *name, *nothing, *something;
  } rows[] = {{"typical_p", "1", "0"},
              {"typical_p", "1.0", "0.9"},
              {"top_n_sigma", "-1", "1"},
              {"mirostat", "0", "2"},
              {"use_beam_search", "false", "true"},
              {"function_call", "\"none\"", "\"f\""},
              {"include_reasoning", "true", "false"},
              {"thinking_token_budget", "-1", "100"},
              {"lora", "[]", "[{}]"},
              {"documents", "[]", "[\"a\"]"},
              {"add_special_tokens", "false", "true"},
              {"chat_template", "\"\"", "\"x\""}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_refusal why = {0};
    assert_int_equal(read_one(&openai_chat_fields, rows[i].name, rows[i].nothing, true, &why), WEFT_OK);
    if (read_one(&openai_chat_fields, rows[i].name, rows[i].something, false, &why) == WEFT_OK) {
      fail_msg("%s: %s was not refused", rows[i].name, rows[i].something);
    }
  }
}

/* Whole bodies with fields that nobody knows, at the top and inside. */
static void unknown_fields_in_every_dialect(void **state) {
  static const struct {
    weft_status (*parse)(const char *, size_t, const weft_body_rules *, weft_gen *, weft_refusal *);
    const char *body;
  } rows[] = {
      {weft_openai_parse_chat, "{\"new\":{\"a\":1},\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"},
      {weft_openai_parse_chat, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"new\":1}]}"},
      {weft_openai_parse_chat,
       "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"new\":1}}],"
       "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"},
      {weft_openai_parse_chat, "{\"tools\":[{\"type\":\"new\"}],\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"},
      {weft_openai_parse_completions, "{\"new\":[1],\"prompt\":\"a\"}"},
      {weft_responses_parse, "{\"new\":1,\"input\":\"a\"}"},
      {weft_responses_parse, "{\"input\":[{\"role\":\"user\",\"content\":\"a\",\"new\":1}]}"},
      {weft_responses_parse, "{\"input\":\"a\",\"text\":{\"new\":1}}"},
      {weft_responses_parse, "{\"input\":\"a\",\"tools\":[{\"type\":\"new\"}]}"},
      {weft_anthropic_parse, "{\"max_tokens\":1,\"new\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"},
      {weft_anthropic_parse, "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"new\":1}]}"},
      {weft_anthropic_parse,
       "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
       "\"text\":\"a\",\"new\":1}]}]}"},
      {weft_anthropic_parse,
       "{\"max_tokens\":1,\"context_management\":{\"edits\":[{\"type\":\"x\"}]},\"messages\":[{"
       "\"role\":\"user\",\"content\":\"a\"}]}"},
      {weft_ollama_parse_chat, "{\"new\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"},
      {weft_ollama_parse_chat, "{\"options\":{\"new\":1},\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"},
      {weft_ollama_parse_chat, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"new\":1}]}"},
      {weft_ollama_parse_generate, "{\"new\":1,\"prompt\":\"a\"}"}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    for (int strict = 0; strict < 2; strict++) {
      const weft_body_rules rules = {.json = weft_json_limits(8192), .strict_fields = strict == 1};
      weft_gen gen;
      weft_refusal why = {0};
      weft_status status = rows[i].parse(rows[i].body, strlen(rows[i].body), &rules, &gen, &why);
      if ((status == WEFT_OK) != (strict == 0)) fail_msg("%s, strict %d: %s", rows[i].body, strict, why.message);
      if (status == WEFT_OK) weft_gen_close(&gen);
    }
  }
}

/* What is written to standard error while many fields that nobody knows come, each twice. The caller frees it. */
static char *log_of_fields(uint32_t n) {
  FILE *file = tmpfile();
  int kept = dup(STDERR_FILENO);
  assert_true(file != NULL && kept >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
  for (uint32_t i = 0; i < 2 * n; i++) {
    char name[32];
    weft_refusal why = {0};
    (void)snprintf(name, sizeof name, "invented_%u", i % n);
    assert_int_equal(read_one(&openai_chat_fields, name, "1", false, &why), WEFT_OK);
  }
  assert_true(dup2(kept, STDERR_FILENO) >= 0);
  (void)close(kept);
  (void)fseek(file, 0, SEEK_END);
  long size = ftell(file);
  char *text = calloc((size_t)size + 1, 1);
  rewind(file);
  assert_true(text != NULL && fread(text, 1, (size_t)size, file) == (size_t)size);
  (void)fclose(file);
  return text;
}

/* Clients choose the names, so there is an end to those that the log keeps; it says so, once. */
static void the_log_says_where_it_ends(void **state) {
  uint32_t n = 0;
  (void)state;
  char *text = log_of_fields(400);
  for (const char *at = text; (at = strstr(at, "is passed over")) != NULL; at++) n += 1;
  assert_true(n > 100 && n < 300); /* other tests of this program have told some */
  const char *end = strstr(text, "no further ones are told");
  assert_non_null(end);
  assert_null(strstr(end + 1, "is passed over"));
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_row_is_as_its_table_says), cmocka_unit_test(values_that_ask_for_nothing),
      cmocka_unit_test(unknown_fields_in_every_dialect), cmocka_unit_test(the_log_says_where_it_ends)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
