/* SPDX-License-Identifier: MIT */
/* Formats of answers over HTTP: every name that asks for one, that the answer always is of the format, and that it is
 * the same alone, beside others, after preemption and streamed. */
#include "tests/support/format_talk.h"

#define HEAD "{\"mode\":\"autoregressive\",\"messages\":[{\"role\":\"user\",\"content\":\"Who is Dan?\"}],"

static char *ask(const char *fields) {
  weft_text body = {0};
  weft_text_printf(&body, HEAD "%s}", fields);
  json_t *answer = talk_json(server.port, CHAT, body.bytes);
  char *content = strdup(complete_content(answer));
  json_decref(answer);
  weft_text_free(&body);
  return content;
}

static void check_fits(const char *schema_text, const char *text) {
  if (!fits_schema(schema_text, text)) fail_msg("'%s' does not fit", text);
}

static void every_name_is_understood(void **state) {
  static const struct {
    const char *fields, *schema;
  } rows[] = {
      {"\"max_tokens\":70,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"strict\":"
       "true,"
       "\"schema\":" PERSON "}}",
       PERSON},
      {"\"max_tokens\":40,\"temperature\":0,\"guided_json\":" PERSON, PERSON},
      {"\"max_tokens\":40,\"temperature\":2,\"seed\":3,\"top_k\":40,\"logprobs\":true,\"json_schema\":" PERSON, PERSON},
      {"\"max_tokens\":25,\"structured_outputs\":{\"json\":" PERSON "}", PERSON},
      {"\"max_tokens\":30,\"response_format\":{\"type\":\"json_object\"}", "{\"type\":\"object\"}"},
      {"\"max_tokens\":30,\"structured_outputs\":{\"json_object\":true}", "{\"type\":\"object\"}"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char *content = ask(rows[i].fields);
    check_fits(rows[i].schema, content);
    free(content);
  }
  char *word = ask("\"guided_choice\":[\"yes\",\"no\"]");
  assert_true(strcmp(word, "yes") == 0 || strcmp(word, "no") == 0);
  free(word);
  word = ask("\"guided_regex\":\"[A-C]{3}-\\\\d{2}\"");
  assert_int_equal(strlen(word), 6);
  assert_int_equal(word[3], '-');
  free(word);
  word = ask("\"max_tokens\":30,\"guided_grammar\":\"root ::= \\\"<\\\" [a-z]{1,5} \\\">\\\"\"");
  assert_true(word[0] == '<' && word[strlen(word) - 1] == '>');
  free(word);
  word = ask("\"grammar\":\"root ::= \\\"x\\\" \\\"y\\\"\"");
  assert_string_equal(word, "xy");
  free(word);
}

/* However few tokens there are, as long as there is room for the shortest answer. */
static void answers_are_complete_in_time(void **state) {
  (void)state;
  uint32_t shortest = 0;
  for (uint32_t n = 1; n < 60; n += shortest == 0 ? 1 : 7) {
    weft_text body = {0};
    weft_text_printf(&body, HEAD "\"max_tokens\":%u,\"seed\":%u,\"temperature\":1,\"guided_json\":" PERSON "}", n, n);
    talk_answer a = talk_ask(server.port, "POST", CHAT, body.bytes);
    json_t *root = json_loads(a.body.bytes, 0, NULL);
    if (a.code == 400) {
      assert_int_equal(shortest, 0);
      assert_non_null(strstr(text_at(root, "error.message"), "raise max_tokens"));
    } else {
      shortest = shortest == 0 ? n : shortest;
      check_fits(PERSON, complete_content(root));
    }
    json_decref(root);
    talk_answer_free(&a);
    weft_text_free(&body);
  }
  assert_true(shortest > 3 && shortest < 30);
}

/* A person with a long name: six answers at once do not fit in the small pool, whatever the model would rather say. */
#define LONG_PERSON                                                                                                 \
  "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"minLength\":60},\"age\":{\"type\":"         \
  "\"integer\","                                                                                                    \
  "\"minimum\":0,\"maximum\":99},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\"]},\"maxItems\":3}}," \
  "\"required\":[\"name\",\"age\",\"tags\"],\"additionalProperties\":false}"

static void write_request(weft_text *body, uint32_t i, bool stream) {
  weft_text_clear(body);
  weft_text_printf(
      body, HEAD "\"max_tokens\":%u,\"seed\":%u,\"temperature\":1.2,\"stream\":%s,\"guided_json\":" LONG_PERSON "}",
      90 + 10 * i, 77 + i, stream ? "true" : "false");
}

static void write_whole(weft_text *body, uint32_t i) {
  write_request(body, i, false);
}

static void check_person(uint32_t i, const char *text) {
  (void)i;
  check_fits(PERSON, text);
}

static void answers_are_the_same_alone_and_beside_others(void **state) {
  (void)state;
  same_alone_and_beside_others(write_whole, check_person);
}

static void streamed_it_is_the_same(void **state) {
  weft_text body = {0};
  (void)state;
  write_request(&body, 0, false);
  json_t *whole = talk_json(server.port, CHAT, body.bytes);
  write_request(&body, 0, true);
  json_t *events = talk_stream(server.port, CHAT, body.bytes);
  weft_text joined = joined_content(events);
  assert_string_equal(joined.bytes, complete_content(whole));
  weft_text_free(&joined);
  json_decref(events);
  json_decref(whole);
  weft_text_free(&body);
}

static void what_cannot_be_is_refused(void **state) {
  static const struct {
    const char *fields, *words;
  } rows[] = {
      {"\"response_format\":{\"type\":\"xml\"}", "'xml'"},
      {"\"response_format\":{\"type\":\"json_schema\"}", "a schema"},
      {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"not\":{}}}}",
       "must not hold here leaves nothing"},
      {"\"guided_regex\":\"(a\"", "not closed"},
      {"\"guided_regex\":\"a\",\"guided_choice\":[\"a\"]", "twice"},
      {"\"guided_choice\":\"a\"", "list"},
      {"\"guided_json\":{\"$ref\":\"#\"}", "begins with itself"},
      {"\"structured_outputs\":{\"structural_tag\":\"x\"}", "structural_tag"},
      {"\"guided_json\":{},\"ignore_eos\":true", "ignore_eos"},
      {"\"guided_regex\":\"x{5000}\",\"max_tokens\":6000,\"mode\":\"diffusion\"",
       "too large for an answer by diffusion"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_text body = {0};
    weft_text_printf(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],%s%s}",
                     strstr(rows[i].fields, "\"mode\"") == NULL ? "\"mode\":\"autoregressive\"," : "", rows[i].fields);
    talk_answer a = talk_ask(server.port, "POST", CHAT, body.bytes);
    if (a.code != 400 || strstr(a.body.bytes, rows[i].words) == NULL) {
      fail_msg("%s: %d %s", rows[i].fields, a.code, a.body.bytes);
    }
    talk_answer_free(&a);
    weft_text_free(&body);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_name_is_understood), cmocka_unit_test(answers_are_complete_in_time),
      cmocka_unit_test(answers_are_the_same_alone_and_beside_others), cmocka_unit_test(streamed_it_is_the_same),
      cmocka_unit_test(what_cannot_be_is_refused)};
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
