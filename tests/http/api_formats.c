/* SPDX-License-Identifier: MIT */
/* Formats of answers over HTTP: every name that asks for one, that the answer always is of the format, and that it is
 * the same alone, beside others, after preemption and streamed. */
#include "tests/support/http_conversation.h"
#include "tests/support/schema_check.h"

static talk server;

static int open_with(uint64_t kv_bytes, uint32_t running) {
  const weft_open_options options = {.threads = 2, .kv_bytes = kv_bytes, .running = running, .no_prefix_cache = true};
  talk_serve(&server, NULL, options, (weft_server_options){.body_mib = 1, .idle_seconds = 2});
  return 0;
}

static int open_server(void **state) {
  *state = &server;
  return open_with(8 << 20, 8);
}

#define SCHEMA                                                                                                       \
  "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\",\"minimum\":0," \
  "\"maximum\":99},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\"]},\"maxItems\":3}},\"required\":["  \
  "\"name\",\"age\",\"tags\"],\"additionalProperties\":false}"
#define HEAD "{\"mode\":\"autoregressive\",\"messages\":[{\"role\":\"user\",\"content\":\"Who is Dan?\"}],"

/* The content of the answer, to be freed. */
static char *content_of(json_t *answer, const char *finish) {
  const char *text = text_at(answer, "choices.0.message.content");
  if (finish != NULL) assert_string_equal(text_at(answer, "choices.0.finish_reason"), finish);
  return strdup(text);
}

static char *ask(const char *fields) {
  weft_text body = {0};
  weft_text_printf(&body, HEAD "%s}", fields);
  json_t *answer = talk_json(server.port, "/v1/chat/completions", body.bytes);
  char *content = content_of(answer, "stop");
  json_decref(answer);
  weft_text_free(&body);
  return content;
}

static void check_fits(const char *schema_text, const char *text) {
  json_t *schema = json_loads(schema_text, JSON_DECODE_ANY, NULL), *value = json_loads(text, JSON_DECODE_ANY, NULL);
  if (value == NULL || !schema_check(schema, schema, value)) fail_msg("'%s' does not fit", text);
  json_decref(value);
  json_decref(schema);
}

static void every_name_is_understood(void **state) {
  static const struct {
    const char *fields, *schema;
  } rows[] = {
      {"\"max_tokens\":70,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"strict\":"
       "true,"
       "\"schema\":" SCHEMA "}}",
       SCHEMA},
      {"\"max_tokens\":40,\"temperature\":0,\"guided_json\":" SCHEMA, SCHEMA},
      {"\"max_tokens\":40,\"temperature\":2,\"seed\":3,\"top_k\":40,\"logprobs\":true,\"json_schema\":" SCHEMA, SCHEMA},
      {"\"max_tokens\":25,\"structured_outputs\":{\"json\":" SCHEMA "}", SCHEMA},
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
    weft_text_printf(&body, HEAD "\"max_tokens\":%u,\"seed\":%u,\"temperature\":1,\"guided_json\":" SCHEMA "}", n, n);
    talk_answer a = talk_ask(server.port, "POST", "/v1/chat/completions", body.bytes);
    json_t *root = json_loads(a.body.bytes, 0, NULL);
    if (a.code == 400) {
      assert_int_equal(shortest, 0);
      assert_non_null(strstr(text_at(root, "error.message"), "raise max_tokens"));
    } else {
      shortest = shortest == 0 ? n : shortest;
      char *content = content_of(root, "stop");
      check_fits(SCHEMA, content);
      free(content);
    }
    json_decref(root);
    talk_answer_free(&a);
    weft_text_free(&body);
  }
  assert_true(shortest > 3 && shortest < 30);
}

enum { MANY = 6, SMALL_POOL = 1 << 20 };

static void write_request(weft_text *body, uint32_t i, bool stream) {
  weft_text_clear(body);
  weft_text_printf(body,
                   HEAD "\"max_tokens\":%u,\"seed\":%u,\"temperature\":1.2,\"stream\":%s,\"guided_json\":" SCHEMA "}",
                   90 + 10 * i, 77 + i, stream ? "true" : "false");
}

static void answers_are_the_same_alone_and_beside_others(void **state) {
  char *alone[MANY];
  weft_text body = {0};
  (void)state;
  for (uint32_t i = 0; i < MANY; i++) {
    write_request(&body, i, false);
    json_t *answer = talk_json(server.port, "/v1/chat/completions", body.bytes);
    alone[i] = content_of(answer, "stop");
    check_fits(SCHEMA, alone[i]);
    json_decref(answer);
  }
  for (int round = 0; round < 2; round++) { /* together; then in a pool that is too small for all */
    int fd[MANY];
    double before = talk_metric(server.port, "vllm:num_preemptions_total");
    for (uint32_t i = 0; i < MANY; i++) {
      write_request(&body, i, false);
      fd[i] = talk_dial(server.port);
      talk_send(fd[i], "POST", "/v1/chat/completions", "", body.bytes, body.n);
    }
    for (uint32_t i = 0; i < MANY; i++) {
      talk_answer a = talk_receive(fd[i]);
      json_t *answer = json_loads(a.body.bytes, 0, NULL);
      char *content = content_of(answer, "stop");
      assert_string_equal(content, alone[i]);
      free(content);
      json_decref(answer);
      talk_answer_free(&a);
      (void)close(fd[i]);
    }
    double after = talk_metric(server.port, "vllm:num_preemptions_total");
    if (round == 1 && after <= before) fail_msg("the small pool preempted nobody");
    talk_close(&server);
    (void)open_with(round == 0 ? SMALL_POOL : 8 << 20, 8);
  }
  write_request(&body, 0, true);
  json_t *events = talk_stream(server.port, "/v1/chat/completions", body.bytes);
  weft_text joined = {0};
  for (size_t i = 0; i < json_array_size(events); i++) {
    const char *piece = json_string_value(at(json_array_get(events, i), "data.choices.0.delta.content"));
    if (piece != NULL) weft_text_puts(&joined, piece);
  }
  assert_string_equal(joined.bytes, alone[0]);
  json_decref(events);
  weft_text_free(&joined);
  weft_text_free(&body);
  for (uint32_t i = 0; i < MANY; i++) free(alone[i]);
}

static void what_cannot_be_is_refused(void **state) {
  static const struct {
    const char *fields, *words;
  } rows[] = {
      {"\"response_format\":{\"type\":\"xml\"}", "'xml'"},
      {"\"response_format\":{\"type\":\"json_schema\"}", "a schema"},
      {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"not\":{}}}}", "'not'"},
      {"\"guided_regex\":\"(a\"", "not closed"},
      {"\"guided_regex\":\"a\",\"guided_choice\":[\"a\"]", "twice"},
      {"\"guided_choice\":\"a\"", "list"},
      {"\"guided_json\":{\"$ref\":\"#\"}", "begins with itself"},
      {"\"structured_outputs\":{\"structural_tag\":\"x\"}", "structural_tag"},
      {"\"guided_json\":{},\"ignore_eos\":true", "ignore_eos"},
      {"\"guided_regex\":\"x{5000}\",\"max_tokens\":6000,\"mode\":\"diffusion\"",
       "too large for an answer by diffusion"},
      {"\"guided_json\":{},\"thinking\":true", "thinking"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_text body = {0};
    weft_text_printf(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],%s%s}",
                     strstr(rows[i].fields, "\"mode\"") == NULL ? "\"mode\":\"autoregressive\"," : "", rows[i].fields);
    talk_answer a = talk_ask(server.port, "POST", "/v1/chat/completions", body.bytes);
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
      cmocka_unit_test(answers_are_the_same_alone_and_beside_others), cmocka_unit_test(what_cannot_be_is_refused)};
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
