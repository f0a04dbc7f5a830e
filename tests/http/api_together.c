/* SPDX-License-Identifier: MIT */
/* Thinking, tools and formats of the answer in one request, in every dialect that has them, by both ways of writing:
 * the grammar begins where thinking ends, and holds a call or a text of the format. And mode auto: what a canvas cannot
 * do makes the answer token by token, and the answer says so. */
#include "tests/support/amount.h"
#include "tests/support/http_conversation.h"
#include "tests/support/schema_check.h"

static talk server;

static int open_server(void **state) {
  const weft_open_options options = {.threads = 2, .kv_bytes = 8 << 20, .running = 8, .no_prefix_cache = true};
  talk_serve(&server, NULL, options, (weft_server_options){.body_mib = 1, .idle_seconds = 2});
  *state = &server;
  return 0;
}

/* The text is JSON of the schema. */
static bool fits_schema(const char *schema_text, const char *text) {
  json_t *schema = json_loads(schema_text, JSON_DECODE_ANY, NULL), *value = json_loads(text, JSON_DECODE_ANY, NULL);
  bool fits = value != NULL && schema_check(schema, schema, value);
  json_decref(value);
  json_decref(schema);
  return fits;
}

#define CHAT "/v1/chat/completions"
#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"Who is Dan?\"}]"
#define SHAPE                                                                                                          \
  "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":6},\"age\":{\"type\":\"integer\"," \
  "\"minimum\":0,\"maximum\":99}},\"required\":[\"name\",\"age\"],\"additionalProperties\":false}"
#define ASKED                                                                                                   \
  "{\"type\":\"object\",\"properties\":{\"who\":{\"type\":\"string\",\"maxLength\":6}},\"required\":[\"who\"]," \
  "\"additionalProperties\":false}"
#define FORMAT "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":" SHAPE "}}"
#define TOOLS_OF(more) \
  "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"find\"" more ",\"parameters\":" ASKED "}}]"

/* A call fits the tool, and without one the text fits the format. */
static void check_either(const char *text, const char *name, const char *arguments, bool may_answer, bool may_call) {
  if (name != NULL) {
    assert_true(may_call);
    assert_string_equal(name, "find");
    if (!fits_schema(ASKED, arguments)) fail_msg("the arguments '%s' do not fit", arguments);
  } else {
    if (!may_answer || text == NULL || !fits_schema(SHAPE, text))
      fail_msg("'%s' does not fit", text == NULL ? "" : text);
  }
}

static void chats_hold_all_of_it(void **state) {
  static const struct {
    const char *fields;
    bool may_answer, may_call;
  } rows[] = {{FORMAT ",\"thinking\":true", true, false},
              {FORMAT ",\"reasoning_effort\":\"low\"", true, false},
              {FORMAT "," TOOLS_OF(""), true, true},
              {FORMAT ",\"thinking\":true," TOOLS_OF(""), true, true},
              {FORMAT "," TOOLS_OF(",\"strict\":true") ",\"tool_choice\":\"required\"", false, true},
              {TOOLS_OF("") ",\"tool_choice\":\"required\",\"thinking\":true", false, true},
              {TOOLS_OF(",\"strict\":true") ",\"tool_choice\":\"required\",\"thinking\":true", false, true},
              {FORMAT "," TOOLS_OF(",\"strict\":true") ",\"thinking\":true", true, true}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    for (uint32_t k = 0; k < test_amount(2, 4, 4); k++) {
      weft_text body = {0};
      weft_text_printf(&body, "{\"model\":\"%s\",\"mode\":\"%s\",\"seed\":%u,\"max_tokens\":120," USER ",%s}",
                       "weft-demo", k % 2 == 0 ? "autoregressive" : "diffusion", k, rows[i].fields);
      json_t *answer = talk_json(server.port, CHAT, body.bytes);
      const json_t *message = at(answer, "choices.0.message"), *calls = json_object_get(message, "tool_calls");
      const json_t *function = json_object_get(json_array_get(calls, 0), "function");
      assert_string_equal(json_string_value(json_object_get(answer, "mode")),
                          k % 2 == 0 ? "autoregressive" : "diffusion");
      check_either(json_string_value(json_object_get(message, "content")),
                   json_string_value(json_object_get(function, "name")),
                   json_string_value(json_object_get(function, "arguments")), rows[i].may_answer, rows[i].may_call);
      json_decref(answer);
      weft_text_free(&body);
    }
  }
}

/* The text of responses, messages and Ollama's chat; NULL: there is none. */
static const char *text_of(const json_t *answer) {
  const char *own = json_string_value(json_object_get(json_object_get(answer, "message"), "content"));
  const json_t *items = json_object_get(answer, "output") != NULL ? json_object_get(answer, "output")
                                                                  : json_object_get(answer, "content");
  for (size_t i = 0; i < json_array_size(items); i++) { /* logprobs part the thinking into items of both kinds */
    const json_t *item = json_array_get(items, i), *parts = json_object_get(item, "content");
    const char *type = json_string_value(json_object_get(item, "type"));
    if (type != NULL && strcmp(type, "message") == 0)
      own = json_string_value(json_object_get(json_array_get(parts, 0), "text"));
    if (type != NULL && strcmp(type, "text") == 0) own = json_string_value(json_object_get(item, "text"));
  }
  return own;
}

static void other_dialects_hold_it_too(void **state) {
  static const struct {
    const char *path, *fields, *by_tokens; /* by_tokens: what makes the answer token by token */
  } rows[] = {
      {"/v1/responses",
       "\"max_output_tokens\":120,\"input\":\"Who is Dan?\",\"reasoning\":{\"effort\":\"low\"},\"text\":{\"format\":"
       "{\"type\":\"json_schema\",\"name\":\"x\",\"schema\":" SHAPE "}}",
       ",\"top_logprobs\":2,\"include\":[\"message.output_text.logprobs\"]"},
      {"/api/chat",
       "\"stream\":false,\"think\":true,\"options\":{\"num_predict\":120,\"seed\":3}," USER ",\"format\":" SHAPE,
       ",\"logprobs\":true"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    for (int k = 0; k < 2; k++) {
      weft_text body = {0};
      weft_text_printf(&body, "{\"model\":\"weft-demo\",%s%s}", rows[i].fields, k == 0 ? rows[i].by_tokens : "");
      json_t *answer = talk_json(server.port, rows[i].path, body.bytes);
      check_either(text_of(answer), NULL, NULL, true, false);
      assert_string_equal(json_string_value(json_object_get(answer, "mode")), k == 0 ? "autoregressive" : "diffusion");
      json_decref(answer);
      weft_text_free(&body);
    }
  }
}

static void messages_think_and_call(void **state) {
  (void)state;
  json_t *answer =
      talk_json(server.port, "/v1/messages",
                "{\"model\":\"weft-demo\",\"max_tokens\":1100," USER
                ",\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024},\"tool_choice\":{\"type\":\"any\"},"
                "\"tools\":[{\"name\":\"find\",\"input_schema\":" ASKED "}]}");
  const json_t *content = json_object_get(answer, "content"),
               *last = json_array_get(content, json_array_size(content) - 1);
  char *input = json_dumps(json_object_get(last, "input"), JSON_ENCODE_ANY);
  check_either(NULL, json_string_value(json_object_get(last, "name")), input == NULL ? "" : input, false, true);
  free(input);
  json_decref(answer);
}

static void auto_writes_as_what_is_asked_for_needs(void **state) {
  static const struct {
    const char *fields;
    bool canvas;
  } rows[] = {
      {"\"temperature\":0", true},         {"\"logprobs\":true", false},          {"\"min_p\":0.1", false},
      {"\"presence_penalty\":0.5", false}, {"\"repetition_penalty\":1.1", false}, {"\"logit_bias\":{\"5\":1}", false},
      {"\"min_tokens\":2", false},         {"\"bad_words\":[\"zebra\"]", false}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_text body = {0};
    weft_text_printf(&body, "{\"model\":\"weft-demo\",\"max_tokens\":8," USER ",%s}", rows[i].fields);
    json_t *answer = talk_json(server.port, CHAT, body.bytes);
    const char *mode = json_string_value(json_object_get(answer, "mode"));
    if (strcmp(mode, rows[i].canvas ? "diffusion" : "autoregressive") != 0) fail_msg("%s: %s", rows[i].fields, mode);
    json_decref(answer);
    weft_text_free(&body);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(chats_hold_all_of_it), cmocka_unit_test(other_dialects_hold_it_too),
      cmocka_unit_test(messages_think_and_call), cmocka_unit_test(auto_writes_as_what_is_asked_for_needs)};
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
