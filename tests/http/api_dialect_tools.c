/* SPDX-License-Identifier: MIT */
/* Tools over HTTP in the dialects beside OpenAI's chat: Anthropic's messages, OpenAI's responses and Ollama's chat.
 * What is declared, called and sent back makes the prompt that the same chat makes; calls that must be are those of the
 * same chat, whole and streamed. The chat templates are not the one with which the demo models were taught to call, and
 * Ollama's dialect cannot ask for a call: how it writes one is in tests/unit/api_dialect_tools.c. */
#include "tests/support/http_conversation.h"

#define CHAT      "/v1/chat/completions"
#define MESSAGES  "/v1/messages"
#define RESPONSES "/v1/responses"
#define OLLAMA    "/api/chat"
#define SCHEMA                                                                                                         \
  "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":6},\"age\":{\"type\":\"integer\"," \
  "\"minimum\":0,\"maximum\":99}},\"required\":[\"name\"],\"additionalProperties\":false}"
#define TYPED \
  "{\"type\":\"function\",\"function\":{\"name\":\"find\",\"description\":\"Finds.\",\"parameters\":" SCHEMA "}}"
#define CHAT_TOOLS    "\"tools\":[" TYPED "]"
#define MESSAGES_TOOL "\"tools\":[{\"name\":\"find\",\"description\":\"Finds.\",\"input_schema\":" SCHEMA "}]"
#define RESPONSES_TOOL \
  "\"tools\":[{\"type\":\"function\",\"name\":\"find\",\"description\":\"Finds.\",\"parameters\":" SCHEMA "}]"
#define USER   "{\"role\":\"user\",\"content\":\"Who is Dan?\"}"
#define INPUT  "{\\\"name\\\": \\\"Dan\\\", \\\"age\\\": 3}"
#define OBJECT "{\"name\":\"Dan\",\"age\":3}"

static const char *const names[] = {"weft-demo", "weft-demo-ar"};
static talk server;

static int open_server(void **state) {
  *state = talk_serve_tools(&server);
  return 0;
}

/* The caller decrefs. */
static json_t *ask(const char *path, const char *model, int seed, const char *fields) {
  weft_text body = {0};
  weft_text_printf(&body, "\"temperature\":0.7,\"seed\":%d,\"mode\":\"autoregressive\",%s", seed, fields);
  json_t *root = talk_model(server.port, path, model, body.bytes);
  weft_text_free(&body);
  return root;
}

static json_t *ask_stream(const char *path, const char *model, int seed, const char *fields) {
  weft_text body = {0};
  weft_text_printf(&body,
                   "{\"model\":\"%s\",\"stream\":true,\"temperature\":0.7,\"seed\":%d,\"mode\":\"autoregressive\",%s}",
                   model, seed, fields);
  json_t *events = talk_stream(server.port, path, body.bytes);
  weft_text_free(&body);
  return events;
}

static void equal_json(const char *a, const char *b) {
  json_t *x = json_loads(a, 0, NULL), *y = json_loads(b, 0, NULL);
  if (x == NULL || !json_equal(x, y)) fail_msg("'%s' is not '%s'", a, b);
  json_decref(x);
  json_decref(y);
}

/* The arguments of the only call that a chat must make. The caller frees them. */
static char *chat_call(const char *model, int seed) {
  json_t *root = ask(CHAT, model, seed,
                     "\"messages\":[" USER "]," CHAT_TOOLS
                     ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false,\"max_tokens\":120");
  char *arguments = strdup(text_at(root, "choices.0.message.tool_calls.0.function.arguments"));
  json_decref(root);
  return arguments;
}

/* Tokens of the prompt of a chat of these messages. */
static json_int_t chat_prompt(const char *model, const char *messages) {
  weft_text fields = {0};
  weft_text_printf(&fields, "\"messages\":[%s]," CHAT_TOOLS ",\"max_tokens\":1", messages);
  json_t *root = ask(CHAT, model, 1, fields.bytes);
  json_int_t n = int_at(root, "usage.prompt_tokens");
  json_decref(root);
  weft_text_free(&fields);
  return n;
}

#define CHAT_HISTORY                                                                                                  \
  USER ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":" \
       "{\"name\":\"find\",\"arguments\":\"" INPUT                                                                    \
       "\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"not found\"}"

/* ---- Anthropic ---- */

static json_int_t all_input(json_t *root) {
  return int_at(root, "usage.input_tokens") + int_at(root, "usage.cache_read_input_tokens");
}

static void messages_are_prompts_of_chat(void **state) {
  (void)state;
  for (int m = 0; m < 2; m++) {
    json_t *root = ask(MESSAGES, names[m], 1, "\"max_tokens\":1,\"messages\":[" USER "]," MESSAGES_TOOL);
    assert_int_equal(all_input(root), chat_prompt(names[m], USER));
    json_decref(root);
    root = ask(
        MESSAGES, names[m], 1,
        "\"max_tokens\":1,\"messages\":[" USER
        ",{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"c1\",\"name\":\"find\",\"input\":" OBJECT
        "}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"c1\",\"content\":"
        "\"not found\"}]}]," MESSAGES_TOOL);
    assert_int_equal(all_input(root), chat_prompt(names[m], CHAT_HISTORY));
    json_decref(root);
  }
}

/* The input of the only call of a stream, put together from its pieces. */
static void read_message_events(json_t *events, weft_text *input) {
  const char *reason = NULL;
  int n_calls = 0;
  for (size_t i = 0; i < json_array_size(events); i++) {
    json_t *data = at(json_array_get(events, i), "data");
    const char *type = text_at(data, "type"), *piece = json_string_value(at(data, "delta.partial_json"));
    if (strcmp(type, "content_block_start") == 0) {
      assert_string_equal(text_at(data, "content_block.type"), "tool_use");
      assert_string_equal(text_at(data, "content_block.name"), "find");
      assert_int_equal(json_object_size(at(data, "content_block.input")), 0);
      n_calls += 1;
    }
    if (piece != NULL) weft_text_puts(input, piece);
    if (strcmp(type, "message_delta") == 0) reason = text_at(data, "delta.stop_reason");
  }
  assert_int_equal(n_calls, 1);
  assert_non_null(reason);
  assert_string_equal(reason, "tool_use");
}

static void messages_call(void **state) {
  static const char *const choices[] = {"{\"type\":\"any\",\"disable_parallel_tool_use\":true}",
                                        "{\"type\":\"tool\",\"name\":\"find\"}"};
  (void)state;
  for (int i = 0; i < 4; i++) {
    const char *model = names[i % 2];
    char *wanted = chat_call(model, i);
    weft_text fields = {0}, input = {0};
    weft_text_printf(&fields, "\"max_tokens\":120,\"messages\":[" USER "]," MESSAGES_TOOL ",\"tool_choice\":%s",
                     choices[i / 2]);
    json_t *root = ask(MESSAGES, model, i, fields.bytes);
    assert_int_equal(json_array_size(at(root, "content")), 1);
    assert_string_equal(text_at(root, "content.0.type"), "tool_use");
    assert_string_equal(text_at(root, "content.0.name"), "find");
    assert_string_equal(text_at(root, "stop_reason"), "tool_use");
    char *given = json_dumps(at(root, "content.0.input"), 0);
    equal_json(given, wanted);
    json_t *events = ask_stream(MESSAGES, model, i, fields.bytes);
    read_message_events(events, &input);
    equal_json(input.bytes, wanted);
    json_decref(events);
    json_decref(root);
    weft_text_free(&fields);
    weft_text_free(&input);
    free(given);
    free(wanted);
  }
}

/* ---- OpenAI's responses ---- */

static void responses_are_prompts_of_chat(void **state) {
  (void)state;
  for (int m = 0; m < 2; m++) {
    json_t *root = ask(RESPONSES, names[m], 1, "\"max_output_tokens\":1,\"input\":[" USER "]," RESPONSES_TOOL);
    assert_int_equal(int_at(root, "usage.input_tokens"), chat_prompt(names[m], USER));
    json_decref(root);
    root = ask(RESPONSES, names[m], 1,
               "\"max_output_tokens\":1,\"input\":[" USER
               ",{\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"find\",\"arguments\":\"" INPUT
               "\"},{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"not found\"}]," RESPONSES_TOOL);
    assert_int_equal(int_at(root, "usage.input_tokens"), chat_prompt(names[m], CHAT_HISTORY));
    json_decref(root);
  }
}

/* Of the only call of a stream: the pieces of its arguments, which are what its end says. */
static void read_response_events(json_t *events, weft_text *arguments) {
  bool ended = false;
  for (size_t i = 0; i < json_array_size(events); i++) {
    json_t *data = at(json_array_get(events, i), "data");
    const char *type = text_at(data, "type");
    if (strcmp(type, "response.function_call_arguments.delta") == 0) weft_text_puts(arguments, text_at(data, "delta"));
    if (strcmp(type, "response.function_call_arguments.done") == 0) {
      assert_string_equal(text_at(data, "arguments"), arguments->bytes);
      ended = true;
    }
    assert_string_not_equal(type, "response.output_text.delta");
  }
  assert_true(ended);
  json_t *last = json_array_get(events, json_array_size(events) - 1);
  assert_string_equal(text_at(last, "data.response.output.0.arguments"), arguments->bytes);
}

/* A call, whole and streamed; its result is sent back behind the response that was kept, or with all before it. */
static void responses_call(void **state) {
  static const char *const choices[] = {"\"required\"", "{\"type\":\"function\",\"name\":\"find\"}"};
  (void)state;
  for (int i = 0; i < 4; i++) {
    const char *model = names[i % 2];
    char *wanted = chat_call(model, i);
    weft_text fields = {0}, arguments = {0};
    weft_text_printf(&fields,
                     "\"max_output_tokens\":120,\"input\":[" USER "]," RESPONSES_TOOL
                     ",\"parallel_tool_calls\":false,\"tool_choice\":%s",
                     choices[i / 2]);
    json_t *root = ask(RESPONSES, model, i, fields.bytes);
    assert_int_equal(json_array_size(at(root, "output")), 1);
    assert_string_equal(text_at(root, "output.0.type"), "function_call");
    assert_string_equal(text_at(root, "output.0.name"), "find");
    equal_json(text_at(root, "output.0.arguments"), wanted);
    json_t *events = ask_stream(RESPONSES, model, i, fields.bytes);
    read_response_events(events, &arguments);
    equal_json(arguments.bytes, wanted);
    json_decref(events);

    weft_text result = {0}, all = {0};
    char *item = json_dumps(at(root, "output.0"), 0);
    weft_text_puts(&result, "{\"type\":\"function_call_output\",\"output\":\"not found\",\"call_id\":\"");
    weft_text_puts(&result, text_at(root, "output.0.call_id"));
    weft_text_puts(&result, "\"}");
    weft_text_printf(&all, "\"max_output_tokens\":1,\"input\":[" USER ",%s,%s]," RESPONSES_TOOL, item, result.bytes);
    weft_text_clear(&fields);
    weft_text_printf(&fields, "\"max_output_tokens\":1,\"input\":[%s],\"previous_response_id\":\"%s\"," RESPONSES_TOOL,
                     result.bytes, text_at(root, "id"));
    json_t *one = ask(RESPONSES, model, 1, fields.bytes), *other = ask(RESPONSES, model, 1, all.bytes);
    assert_int_equal(int_at(one, "usage.input_tokens"), int_at(other, "usage.input_tokens"));
    assert_true(int_at(one, "usage.input_tokens") > int_at(root, "usage.input_tokens"));
    json_decref(one);
    json_decref(other);
    json_decref(root);
    weft_text_free(&fields);
    weft_text_free(&arguments);
    weft_text_free(&result);
    weft_text_free(&all);
    free(item);
    free(wanted);
  }
}

/* ---- Ollama ---- */

static json_t *ask_ollama(const char *model, const char *messages, const char *more) {
  weft_text fields = {0};
  weft_text_printf(&fields,
                   "\"messages\":[%s]," CHAT_TOOLS
                   ",\"options\":{\"num_predict\":12,\"temperature\":0,\"seed\":5},"
                   "\"mode\":\"autoregressive\"%s",
                   messages, more);
  json_t *root = talk_model(server.port, OLLAMA, model, fields.bytes);
  weft_text_free(&fields);
  return root;
}

static void ollama_is_a_prompt_of_chat(void **state) {
  static const char history[] = USER
      ",{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"c1\",\"function\":{\"name\":\"find\","
      "\"arguments\":" OBJECT "}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"not found\"}";
  (void)state;
  for (int m = 0; m < 2; m++) {
    json_t *root = ask_ollama(names[m], USER, ",\"stream\":false");
    assert_int_equal(int_at(root, "prompt_eval_count"), chat_prompt(names[m], USER));
    assert_null(at(root, "message.tool_calls")); /* the model decides */
    json_decref(root);
    root = ask_ollama(names[m], history, ",\"stream\":false");
    assert_int_equal(int_at(root, "prompt_eval_count"), chat_prompt(names[m], CHAT_HISTORY));
    json_decref(root);
  }
}

/* A line at a time: together they say what the whole answer says. */
static void ollama_streams_beside_tools(void **state) {
  (void)state;
  for (int m = 0; m < 2; m++) {
    json_t *whole = ask_ollama(names[m], USER, ",\"stream\":false");
    weft_text body = {0}, text = {0};
    weft_text_printf(&body,
                     "{\"model\":\"%s\",\"messages\":[" USER "]," CHAT_TOOLS
                     ",\"options\":{\"num_predict\":12,\"temperature\":0,\"seed\":5},\"mode\":\"autoregressive\"}",
                     names[m]);
    talk_answer a = talk_ask(server.port, "POST", OLLAMA, body.bytes);
    assert_int_equal(a.code, 200);
    bool done = false;
    for (const char *line = a.body.bytes, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
      json_t *root = json_loadb(line, (size_t)(end - line), 0, NULL);
      weft_text_puts(&text, text_at(root, "message.content"));
      done = json_is_true(at(root, "done"));
      json_decref(root);
    }
    assert_true(done);
    assert_string_equal(text.bytes, text_at(whole, "message.content"));
    talk_answer_free(&a);
    json_decref(whole);
    weft_text_free(&body);
    weft_text_free(&text);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(messages_are_prompts_of_chat),  cmocka_unit_test(messages_call),
      cmocka_unit_test(responses_are_prompts_of_chat), cmocka_unit_test(responses_call),
      cmocka_unit_test(ollama_is_a_prompt_of_chat),    cmocka_unit_test(ollama_streams_beside_tools)};
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
