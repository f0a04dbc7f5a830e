/* SPDX-License-Identifier: MIT */
/* Anthropic's messages over both demo models: one that writes by diffusion and one that writes token by token. What a
 * message says is what a chat completion of the same request says; its stream has Anthropic's events in their order. */
#include "tests/support/http_conversation.h"

#define MESSAGES "/v1/messages"
#define COUNT    "/v1/messages/count_tokens"
#define CHAT     "/v1/chat/completions"
#define USER     "\"messages\":[{\"role\":\"user\",\"content\":\"Write 4711 backwards.\"}]"
#define ASK      USER ",\"temperature\":0,\"seed\":5"
#define TABLE                                                                                                    \
  "\"messages\":[{\"role\":\"user\",\"content\":\"Make a table: Tom 43 Oslo; Ana 88 Kyiv; Zoe 47 Seoul; Kim 19 " \
  "Paris\"}],\"temperature\":0,\"seed\":5"

static const char *const names[] = {"weft-demo", "weft-demo-ar"};
static talk server;

static int open_server(void **state) {
  *state = talk_serve_both(&server, NULL);
  return 0;
}

static json_t *ask_stream(const char *model, const char *fields) {
  weft_text body = {0};
  weft_text_printf(&body, "{\"model\":\"%s\",\"stream\":true,%s}", model, fields);
  json_t *events = talk_stream(server.port, MESSAGES, body.bytes);
  weft_text_free(&body);
  return events;
}

static json_int_t input_of(json_t *usage) {
  return int_at(usage, "input_tokens") + int_at(usage, "cache_creation_input_tokens") +
         int_at(usage, "cache_read_input_tokens");
}

static void test_whole(void **state) {
  (void)state;
  for (int m = 0; m < 2; m++) {
    json_t *chat = talk_model(server.port, CHAT, names[m], ASK ",\"max_tokens\":40");
    json_t *root =
        talk_model(server.port, MESSAGES, names[m], ASK ",\"max_tokens\":40,\"metadata\":{\"user_id\":\"u\"}");
    assert_true(strncmp(text_at(root, "id"), "msg_", 4) == 0);
    assert_string_equal(text_at(root, "type"), "message");
    assert_string_equal(text_at(root, "role"), "assistant");
    assert_string_equal(text_at(root, "model"), names[m]);
    assert_string_equal(text_at(root, "mode"), m == 0 ? "diffusion" : "autoregressive");
    assert_int_equal(json_array_size(at(root, "content")), 1);
    assert_string_equal(text_at(root, "content.0.type"), "text");
    assert_string_equal(text_at(root, "content.0.text"), text_at(chat, "choices.0.message.content"));
    assert_string_equal(text_at(root, "stop_reason"), "end_turn");
    assert_true(json_is_null(at(root, "stop_sequence")));
    assert_int_equal(input_of(at(root, "usage")), int_at(chat, "usage.prompt_tokens"));
    assert_int_equal(int_at(root, "usage.output_tokens"), int_at(chat, "usage.completion_tokens"));
    json_decref(root);
    json_decref(chat);
  }
}

static const char *type_at(json_t *events, size_t i) {
  json_t *event = json_array_get(events, i);
  assert_string_equal(text_at(event, "event"), text_at(event, "data.type")); /* told twice, alike */
  return text_at(event, "data.type");
}

/* The exact sequence of a message with one block of text; its text. */
static weft_text check_events(json_t *events, json_t *whole) {
  size_t n = json_array_size(events);
  weft_text text = {0};
  assert_true(n >= 7);
  assert_string_equal(type_at(events, 0), "message_start");
  assert_string_equal(type_at(events, 1), "content_block_start");
  assert_string_equal(type_at(events, 2), "ping");
  for (size_t i = 3; i < n - 3; i++) {
    assert_string_equal(type_at(events, i), "content_block_delta");
    assert_string_equal(text_at(json_array_get(events, i), "data.delta.type"), "text_delta");
    assert_int_equal(int_at(json_array_get(events, i), "data.index"), 0);
    weft_text_puts(&text, text_at(json_array_get(events, i), "data.delta.text"));
  }
  assert_string_equal(type_at(events, n - 3), "content_block_stop");
  assert_string_equal(type_at(events, n - 2), "message_delta");
  assert_string_equal(type_at(events, n - 1), "message_stop");
  json_t *start = at(json_array_get(events, 0), "data.message"), *end = at(json_array_get(events, n - 2), "data");
  assert_int_equal(json_array_size(at(start, "content")), 0);
  assert_true(json_is_null(at(start, "stop_reason")));
  assert_int_equal(input_of(at(start, "usage")), input_of(at(whole, "usage")));
  assert_string_equal(text_at(json_array_get(events, 1), "data.content_block.text"), "");
  assert_int_equal(input_of(at(end, "usage")), input_of(at(whole, "usage")));
  assert_int_equal(int_at(end, "usage.output_tokens"), int_at(whole, "usage.output_tokens"));
  assert_true(json_equal(at(end, "delta.stop_reason"), at(whole, "stop_reason")));
  assert_true(json_equal(at(end, "delta.stop_sequence"), at(whole, "stop_sequence")));
  weft_text_append(&text, "", 0);
  return text;
}

static void check_stream(const char *model, const char *fields, const char *reason) {
  json_t *whole = talk_model(server.port, MESSAGES, model, fields), *events = ask_stream(model, fields);
  weft_text text = check_events(events, whole);
  assert_string_equal(text.bytes, text_at(whole, "content.0.text"));
  assert_string_equal(text_at(whole, "stop_reason"), reason);
  weft_text_free(&text);
  json_decref(events);
  json_decref(whole);
}

static void test_stream_says_what_whole_says(void **state) {
  (void)state;
  for (int m = 0; m < 2; m++) {
    check_stream(names[m], TABLE ",\"max_tokens\":96", "end_turn");
    check_stream(names[m], TABLE ",\"max_tokens\":9", "max_tokens");
    check_stream(names[m], TABLE ",\"max_tokens\":96,\"stop_sequences\":[\"never said\",\"Seoul\"]", "stop_sequence");
  }
  check_stream(names[0], TABLE ",\"max_tokens\":96,\"mode\":\"autoregressive\"", "end_turn");
}

/* The string is named, and neither it nor what would follow is in the text. */
static void test_stop_sequence_is_named(void **state) {
  (void)state;
  for (int m = 0; m < 2; m++) {
    json_t *root = talk_model(server.port, MESSAGES, names[m],
                              TABLE ",\"max_tokens\":96,\"stop_sequences\":[\"never said\",\"Seoul\",\"Paris\"]");
    assert_string_equal(text_at(root, "stop_sequence"), "Seoul");
    assert_null(strstr(text_at(root, "content.0.text"), "Seoul"));
    assert_non_null(strstr(text_at(root, "content.0.text"), "Zoe"));
    json_decref(root);
  }
}

/* A system prompt as text and as blocks, a turn as text and as blocks: the same conversation, the same as in chat. */
static void test_system_and_blocks(void **state) {
  static const char *const same[] = {
      "\"system\":\"Be brief.\",\"messages\":[{\"role\":\"user\",\"content\":\"Say 5.\"}],",
      "\"system\":[{\"type\":\"text\",\"text\":\"Be \",\"cache_control\":{\"type\":\"ephemeral\"}},"
      "{\"type\":\"text\",\"text\":\"brief.\"}],\"messages\":[{\"role\":\"user\",\"content\":["
      "{\"type\":\"text\",\"text\":\"Say \"},{\"type\":\"text\",\"text\":\"5.\"}]}],"};
  (void)state;
  for (int m = 0; m < 2; m++) {
    json_t *chat = talk_model(server.port, CHAT, names[m],
                              "\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\","
                              "\"content\":\"Say 5.\"}],\"max_tokens\":24,\"temperature\":0,\"seed\":5");
    for (int i = 0; i < 2; i++) {
      char fields[512];
      (void)snprintf(fields, sizeof fields, "%s\"max_tokens\":24,\"temperature\":0,\"seed\":5", same[i]);
      json_t *root = talk_model(server.port, MESSAGES, names[m], fields);
      assert_string_equal(text_at(root, "content.0.text"), text_at(chat, "choices.0.message.content"));
      assert_int_equal(input_of(at(root, "usage")), int_at(chat, "usage.prompt_tokens"));
      json_decref(root);
    }
    json_decref(chat);
  }
}

/* What an answer of the model held is part of the next request; what it thought is not. */
static void test_history(void **state) {
  static const char fields[] =
      "\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\","
      "\"thinking\":\"hm\",\"signature\":\"\"},{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"user\",\"content\":"
      "\"c\"}]";
  static const char plain[] =
      "\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},"
      "{\"role\":\"user\",\"content\":\"c\"}]";
  (void)state;
  json_t *one = talk_model(server.port, COUNT, names[0], fields),
         *other = talk_model(server.port, COUNT, names[0], plain);
  assert_int_equal(int_at(one, "input_tokens"), int_at(other, "input_tokens"));
  json_decref(one);
  json_decref(other);
}

static void test_count_tokens(void **state) {
  (void)state;
  for (int m = 0; m < 2; m++) {
    json_t *count = talk_model(server.port, COUNT, names[m], ASK ",\"system\":\"Be brief.\"");
    json_t *root = talk_model(server.port, MESSAGES, names[m], ASK ",\"system\":\"Be brief.\",\"max_tokens\":1");
    assert_true(int_at(count, "input_tokens") > 5);
    assert_int_equal(int_at(count, "input_tokens"), input_of(at(root, "usage")));
    json_decref(count);
    json_decref(root);
  }
}

static void test_format(void **state) {
  (void)state;
  json_t *root = talk_model(server.port, MESSAGES, names[1],
                            ASK
                            ",\"max_tokens\":60,\"output_config\":{\"format\":{\"type\":\"json_schema\",\"schema\":{"
                            "\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"boolean\"}},\"required\":[\"a\"],"
                            "\"additionalProperties\":false}}}");
  talk_check_schema(root, "content.0.text");
  json_decref(root);
}

typedef struct bad_body {
  const char *path, *body;
  int code;
  const char *type, *words;
} bad_body;

#define MAX ",\"max_tokens\":4"

static const bad_body bad_bodies[] = {
    {MESSAGES, "", 400, "invalid_request_error", "empty"},
    {MESSAGES, "{", 400, "invalid_request_error", "line 1, column"},
    {MESSAGES, "{}", 400, "invalid_request_error", "messages"},
    {MESSAGES, "{" USER "}", 400, "invalid_request_error", "max_tokens"},
    {MESSAGES, "{" USER ",\"max_tokens\":0}", 400, "invalid_request_error", "max_tokens is 0"},
    {MESSAGES, "{" USER ",\"max_tokens\":\"x\"}", 400, "invalid_request_error", "whole number"},
    {MESSAGES, "{\"messages\":[]" MAX "}", 400, "invalid_request_error", "at least one"},
    {MESSAGES, "{\"messages\":[1]" MAX "}", 400, "invalid_request_error", "messages[0]"},
    {MESSAGES, "{\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]" MAX "}", 400, "invalid_request_error",
     "messages[0].role"},
    {MESSAGES, "{\"messages\":[{\"role\":\"user\",\"content\":5}]" MAX "}", 400, "invalid_request_error",
     "messages[0].content"},
    {MESSAGES, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{}}]}]" MAX "}", 400,
     "invalid_request_error", "only text"},
    {MESSAGES, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]" MAX "}", 400,
     "invalid_request_error", "messages[0].content[0]"},
    {MESSAGES,
     "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"y\"}]" MAX "}", 400,
     "invalid_request_error", "the last message"},
    {MESSAGES, "{" USER MAX ",\"system\":5}", 400, "invalid_request_error", "system"},
    {MESSAGES, "{" USER MAX ",\"temperature\":-1}", 400, "invalid_request_error", "temperature is -1"},
    {MESSAGES, "{" USER MAX ",\"top_k\":1.5}", 400, "invalid_request_error", "top_k"},
    {MESSAGES, "{" USER MAX ",\"stop_sequences\":[1]}", 400, "invalid_request_error", "stop_sequences"},
    {MESSAGES, "{" USER MAX ",\"stream\":1}", 400, "invalid_request_error", "stream"},
    {MESSAGES, "{" USER MAX ",\"thinking\":{\"type\":\"deep\"}}", 400, "invalid_request_error", "thinking"},
    {MESSAGES, "{" USER MAX ",\"output_config\":{\"effort\":\"much\"}}", 400, "invalid_request_error",
     "output_config.effort"},
    {MESSAGES, "{" USER MAX ",\"output_format\":{\"type\":\"xml\"}}", 400, "invalid_request_error", "output_format"},
    {MESSAGES, "{" USER MAX ",\"mcp_servers\":[{}]}", 400, "invalid_request_error", "mcp_servers"},
    {MESSAGES, "{" USER MAX ",\"mode\":\"magic\",\"model\":\"weft-demo\"}", 400, "invalid_request_error", "mode"},
    {MESSAGES, "{" USER MAX ",\"model\":\"nobody\"}", 404, "not_found_error", "nobody"},
    {COUNT, "{" USER ",\"model\":\"nobody\"}", 404, "not_found_error", "nobody"},
    {COUNT, "{}", 400, "invalid_request_error", "messages"},
};

static void test_errors_have_their_shape(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof bad_bodies / sizeof *bad_bodies; i++) {
    const bad_body *b = &bad_bodies[i];
    char id[160];
    talk_answer a = talk_ask(server.port, "POST", b->path, b->body);
    if (a.code != b->code) fail_msg("%s: gave %d: %s", b->body, a.code, a.body.bytes);
    json_t *root = json_loads(a.body.bytes, 0, NULL);
    assert_string_equal(text_at(root, "type"), "error");
    assert_string_equal(text_at(root, "error.type"), b->type);
    if (strstr(text_at(root, "error.message"), b->words) == NULL)
      fail_msg("%s: '%s' does not say '%s'", b->body, text_at(root, "error.message"), b->words);
    assert_string_equal(text_at(root, "request_id"), talk_header(&a, "request-id", id, sizeof id));
    json_decref(root);
    talk_answer_free(&a);
  }
  talk_check(talk_ask(server.port, "GET", MESSAGES, ""), 405, "\"type\":\"error\"");
}

/* The key of Anthropic's clients says the same as the key of OpenAI's; an error of keys has Anthropic's shape, too. */
static void test_keys(void **state) {
  static const char text[] = "sk-red red\nsk-op operator\n", body[] = "{" USER MAX "}";
  static const struct {
    const char *header;
    int code;
  } rows[] = {{"", 401},
              {"X-Api-Key: sk-red\r\n", 200},
              {"x-api-key: sk-red\r\nanthropic-version: 2023-06-01\r\n", 200},
              {"Authorization: Bearer sk-red\r\n", 200},
              {"X-Api-Key: sk-none\r\n", 401},
              {"X-Api-Key: \r\n", 401},
              {"X-Api-Key: sk-red\r\nX-Api-Key: sk-op\r\n", 400},
              {"X-Api-Key: sk-red\r\nAuthorization: Bearer sk-none\r\n", 401},
              {"X-Api-Key: sk-red\r\nAuthorization: Basic x\r\n", 401}};
  static const char *const models[] = {DEMO_AR_MODEL};
  talk other;
  (void)state;
  (void)talk_serve(&other, text, (weft_open_options){.models = models, .n_models = 1}, (weft_server_options){0});
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    talk_answer a = talk_ask_as(other.port, "POST", MESSAGES, rows[i].header, body);
    if (a.code != rows[i].code) fail_msg("%s gave %d: %s", rows[i].header, a.code, a.body.bytes);
    if (a.code == 401)
      assert_non_null(strstr(a.body.bytes, "{\"type\":\"error\",\"error\":{\"type\":\"authentication_error\""));
    talk_answer_free(&a);
  }
  talk_check(talk_ask_as(other.port, "GET", "/metrics", "X-Api-Key: sk-red\r\n", ""), 403, "");
  talk_check(talk_ask_as(other.port, "GET", "/metrics", "X-Api-Key: sk-op\r\n", ""), 200, "");
  talk_close(&other);
}

/* A client that leaves in the middle of a stream ends its request. */
static void test_leaving(void **state) {
  static const char body[] =
      "{" USER
      ",\"max_tokens\":900,\"stream\":true,\"model\":\"weft-demo\",\"mode\":\"autoregressive\",\"temperature\":100,"
      "\"top_k\":0,\"seed\":3}";
  weft_text got = {0};
  (void)state;
  double before = talk_ended(server.port, "abort");
  for (int i = 0; i < 20 && talk_ended(server.port, "abort") == before; i++) { /* an answer may end before it is left */
    int fd = talk_begin(server.port, MESSAGES, body);
    while (got.n == 0 || strstr(got.bytes, "content_block_delta") == NULL)
      assert_true(talk_read(fd, &got, TALK_MS) > 0);
    (void)close(fd);
    weft_text_clear(&got);
    talk_await(server.port, "vllm:num_requests_running", 0);
  }
  assert_true(talk_ended(server.port, "abort") > before);
  weft_text_free(&got);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_whole),
      cmocka_unit_test(test_stream_says_what_whole_says),
      cmocka_unit_test(test_stop_sequence_is_named),
      cmocka_unit_test(test_system_and_blocks),
      cmocka_unit_test(test_history),
      cmocka_unit_test(test_count_tokens),
      cmocka_unit_test(test_format),
      cmocka_unit_test(test_errors_have_their_shape),
      cmocka_unit_test(test_keys),
      cmocka_unit_test(test_leaving),
  };
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
