/* SPDX-License-Identifier: MIT */
/* Ollama's dialect over both demo models: what it says is what a chat completion of the same request says, whole or in
 * lines; models are listed and shown; what Ollama does to models is refused. */
#include "tests/support/http_conversation.h"

#define CHAT "/api/chat"
#define TABLE                                                                                                    \
  "\"messages\":[{\"role\":\"user\",\"content\":\"Make a table: Tom 43 Oslo; Ana 88 Kyiv; Zoe 47 Seoul; Kim 19 " \
  "Paris\"}]"
#define PROMPT  "\"prompt\":\"Make a table: Tom 43 Oslo; Ana 88 Kyiv; Zoe 47 Seoul; Kim 19 Paris\""
#define OPTIONS "\"options\":{\"temperature\":0,\"seed\":5,\"num_predict\":96,\"num_ctx\":4096}"

static const char *const names[] = {"weft-demo", "weft-demo-ar"};
static talk server;

static int open_server(void **state) {
  *state = talk_serve_both(&server, NULL);
  return 0;
}

/* The lines of a stream, each an object. */
static json_t *ask_lines(const char *path, const char *model, const char *fields) {
  char type[64];
  weft_text body = {0};
  weft_text_printf(&body, "{\"model\":\"%s\",%s}", model, fields);
  talk_answer a = talk_ask(server.port, "POST", path, body.bytes);
  if (a.code != 200) fail_msg("%s gave %d: %s", path, a.code, a.body.bytes);
  assert_true(a.complete);
  assert_string_equal(talk_header(&a, "Content-Type", type, sizeof type), "application/x-ndjson");
  json_t *lines = json_array();
  const char *from = a.body.bytes;
  for (const char *end; (end = strchr(from, '\n')) != NULL; from = end + 1) {
    json_error_t error;
    json_t *line = json_loadb(from, (size_t)(end - from), 0, &error);
    if (line == NULL) fail_msg("%s in %.*s", error.text, (int)(end - from), from);
    (void)json_array_append_new(lines, line);
  }
  assert_string_equal(from, "");
  talk_answer_free(&a);
  weft_text_free(&body);
  return lines;
}

/* What chat completions say to the same, with more fields. */
static json_t *ask_openai(const char *model, const char *more) {
  char fields[1024];
  (void)snprintf(fields, sizeof fields, TABLE ",\"temperature\":0,\"seed\":5,\"max_tokens\":96%s", more);
  return talk_model(server.port, "/v1/chat/completions", model, fields);
}

static void check_done(json_t *end, json_t *openai) {
  assert_true(json_is_true(at(end, "done")));
  assert_string_equal(text_at(end, "done_reason"), text_at(openai, "choices.0.finish_reason"));
  assert_int_equal(int_at(end, "prompt_eval_count"), int_at(openai, "usage.prompt_tokens"));
  assert_int_equal(int_at(end, "eval_count"), int_at(openai, "usage.completion_tokens"));
  assert_true(int_at(end, "total_duration") >= int_at(end, "prompt_eval_duration") + int_at(end, "eval_duration"));
  assert_true(int_at(end, "eval_duration") > 0 && int_at(end, "prompt_eval_duration") > 0);
}

/* An answer of one canvas comes at once, and yet it took time. */
static void one_canvas_took_time(void **state) {
  (void)state;
  json_t *answer = talk_json(server.port, "/api/chat",
                             "{\"model\":\"weft-demo\",\"stream\":false,\"messages\":[{\"role\":\"user\","
                             "\"content\":\"What is 58 + 37?\"}],\"options\":{\"num_predict\":16}}");
  assert_true(int_at(answer, "eval_duration") > 0 && int_at(answer, "prompt_eval_duration") > 0);
  assert_true(int_at(answer, "total_duration") >=
              int_at(answer, "prompt_eval_duration") + int_at(answer, "eval_duration"));
  json_decref(answer);
}

static void check_kind(const char *path, const char *model, const char *fields, const char *more, const char *text_path,
                       json_t *openai) {
  char body[1024];
  (void)snprintf(body, sizeof body, "%s,\"stream\":false%s", fields, more);
  json_t *whole = talk_model(server.port, path, model, body);
  assert_string_equal(text_at(whole, "model"), model);
  assert_int_equal(strlen(text_at(whole, "created_at")), strlen("2026-01-01T00:00:00.000000000Z"));
  assert_string_equal(text_at(whole, text_path), text_at(openai, "choices.0.message.content"));
  check_done(whole, openai);
  (void)snprintf(body, sizeof body, "%s%s", fields, more); /* streams unless told otherwise */
  json_t *lines = ask_lines(path, model, body);
  size_t n = json_array_size(lines);
  weft_text text = {0};
  assert_true(n >= 2);
  for (size_t i = 0; i < n; i++) {
    json_t *line = json_array_get(lines, i);
    weft_text_puts(&text, text_at(line, text_path));
    assert_true(i + 1 == n || json_is_false(at(line, "done")));
    assert_string_equal(text_at(line, "model"), model);
  }
  assert_string_equal(text.bytes, text_at(whole, text_path));
  check_done(json_array_get(lines, n - 1), openai);
  weft_text_free(&text);
  json_decref(lines);
  json_decref(whole);
}

static void test_chat_and_generate(void **state) {
  (void)state;
  for (int m = 0; m < 2; m++) {
    json_t *openai = ask_openai(names[m], "");
    check_kind(CHAT, names[m], TABLE "," OPTIONS, "", "message.content", openai);
    check_kind("/api/generate", names[m], PROMPT "," OPTIONS, "", "response", openai);
    json_decref(openai);
  }
  json_t *openai = ask_openai(names[0], ",\"mode\":\"autoregressive\"");
  check_kind(CHAT, names[0], TABLE "," OPTIONS, ",\"mode\":\"autoregressive\"", "message.content", openai);
  json_decref(openai);
}

static void test_options(void **state) {
  (void)state;
  json_t *openai =
      ask_openai(names[1], ",\"stop\":[\"Seoul\"],\"repetition_penalty\":1.1,\"top_k\":5,\"top_p\":0.9,\"min_p\":0.01");
  json_t *root = talk_model(server.port, CHAT, names[1],
                            TABLE
                            ",\"stream\":false,\"keep_alive\":\"5m\",\"options\":{\"temperature\":0,\"seed\":5,"
                            "\"num_predict\":96,\"stop\":[\"Seoul\"],\"repeat_penalty\":1.1,\"top_k\":5,\"top_p\":0.9,"
                            "\"min_p\":0.01,\"repeat_last_n\":-1,\"mirostat\":0,\"typical_p\":1.0}");
  assert_string_equal(text_at(root, "message.content"), text_at(openai, "choices.0.message.content"));
  assert_string_equal(text_at(root, "done_reason"), "stop");
  json_decref(root);
  json_decref(openai);
  root = talk_model(server.port, CHAT, names[1],
                    TABLE ",\"stream\":false,\"ignore_eos\":true,\"options\":{\"num_predict\":3}");
  assert_string_equal(text_at(root, "done_reason"), "length");
  assert_int_equal(int_at(root, "eval_count"), 3);
  json_decref(root);
  root = talk_model(server.port, CHAT, names[1],
                    TABLE ",\"stream\":false,\"options\":{\"num_predict\":-1,\"temperature\":0}");
  assert_string_equal(text_at(root, "done_reason"), "stop");
  json_decref(root);
  /* a window of 0 turns penalties off */
  json_t *plain = talk_model(server.port, CHAT, names[1], TABLE ",\"stream\":false,\"options\":{\"temperature\":0}");
  root = talk_model(server.port, CHAT, names[1],
                    TABLE ",\"stream\":false,\"options\":{\"temperature\":0,\"repeat_penalty\":9,\"repeat_last_n\":0}");
  assert_string_equal(text_at(root, "message.content"), text_at(plain, "message.content"));
  json_decref(root);
  json_decref(plain);
}

static void test_format(void **state) {
  (void)state;
  json_t *root = talk_model(server.port, CHAT, names[1],
                            TABLE
                            ",\"stream\":false,\"format\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":"
                            "\"boolean\"}},\"required\":[\"a\"],\"additionalProperties\":false},\"options\":{"
                            "\"num_predict\":60,\"temperature\":0}");
  talk_check_schema(root, "message.content");
  json_decref(root);
  root = talk_model(server.port, "/api/generate", names[1],
                    PROMPT ",\"stream\":false,\"format\":\"json\",\"options\":{\"num_predict\":60}");
  json_t *value = json_loads(text_at(root, "response"), 0, NULL);
  assert_true(json_is_object(value));
  json_decref(value);
  json_decref(root);
}

static void test_logprobs(void **state) {
  static const char fields[] = TABLE ",\"logprobs\":true,\"top_logprobs\":2," OPTIONS;
  (void)state;
  json_t *openai = ask_openai(names[1], ",\"logprobs\":true,\"top_logprobs\":2");
  json_t *root =
      talk_model(server.port, CHAT, names[1], TABLE ",\"stream\":false,\"logprobs\":true,\"top_logprobs\":2," OPTIONS);
  assert_true(json_equal(at(root, "logprobs"), at(openai, "choices.0.logprobs.content")));
  json_t *lines = ask_lines(CHAT, names[1], fields), *all = json_array(), *line;
  size_t i;
  json_array_foreach(lines, i, line) {
    if (at(line, "logprobs") != NULL) (void)json_array_extend(all, at(line, "logprobs"));
  }
  assert_true(json_equal(all, at(root, "logprobs")));
  json_decref(all);
  json_decref(lines);
  json_decref(root);
  json_decref(openai);
}

/* A raw prompt is what the template would have made, control tokens and all: the answer is that of the turns. */
static void test_raw(void **state) {
  (void)state;
  json_t *tokens = talk_json(server.port, "/tokenize",
                             "{\"model\":\"weft-demo-ar\",\"messages\":[{\"role\":\"user\",\"content\":\"Say 5.\"}]}");
  json_t *openai =
      talk_model(server.port, "/v1/chat/completions", names[1],
                 "\"messages\":[{\"role\":\"user\",\"content\":\"Say 5.\"}],\"temperature\":0,\"max_tokens\":24");
  json_t *no_beginning = json_copy(at(tokens, "tokens"));
  json_t *bare = talk_json(server.port, "/tokenize", "{\"model\":\"weft-demo-ar\",\"prompt\":\"\"}");
  for (json_int_t i = 0; i < int_at(bare, "count"); i++)
    (void)json_array_remove(no_beginning, 0); /* raw adds it again */
  json_t *words = json_pack("{s:s,s:O}", "model", names[1], "tokens", no_beginning);
  char *line = json_dumps(words, 0);
  json_t *text = talk_json(server.port, "/detokenize", line);
  json_t *body = json_pack("{s:s,s:O,s:b,s:b,s:{s:i,s:i}}", "model", names[1], "prompt", at(text, "prompt"), "raw", 1,
                           "stream", 0, "options", "temperature", 0, "num_predict", 24);
  char *raw = json_dumps(body, 0);
  json_t *root = talk_json(server.port, "/api/generate", raw);
  assert_string_equal(text_at(root, "response"), text_at(openai, "choices.0.message.content"));
  assert_int_equal(int_at(root, "prompt_eval_count"), int_at(tokens, "count"));
  free(raw);
  free(line);
  json_t *const all[] = {root, body, text, words, bare, no_beginning, openai, tokens};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) json_decref(all[i]);
}

static void test_loading(void **state) {
  static const char *const bodies[] = {"{\"model\":\"weft-demo\"}", "{\"model\":\"weft-demo\",\"keep_alive\":0}"};
  (void)state;
  for (int i = 0; i < 2; i++) {
    json_t *root = talk_json(server.port, CHAT, bodies[i]);
    assert_string_equal(text_at(root, "done_reason"), "load");
    assert_string_equal(text_at(root, "message.content"), "");
    json_decref(root);
    root = talk_json(server.port, "/api/generate", bodies[i]);
    assert_string_equal(text_at(root, "response"), "");
    json_decref(root);
  }
  talk_check(talk_ask(server.port, "POST", CHAT, "{\"model\":\"nobody\"}"), 404, "");
}

static void check_capabilities(json_t *show, const char *wanted) {
  char *given = json_dumps(at(show, "capabilities"), JSON_COMPACT);
  assert_string_equal(given, wanted);
  free(given);
}

/* Of a template that has no place for tools, and marks no thinking. */
static void test_capabilities_are_the_template_s(void **state) {
  const char *templates[] = {WEFT_SOURCE_DIR "/tests/golden/chat/no-tools.jinja"};
  talk plain;
  (void)state;
  (void)talk_serve(&plain, NULL, (weft_open_options){.chat_templates = templates, .n_chat_templates = 1},
                   (weft_server_options){0});
  json_t *show = talk_json(plain.port, "/api/show", "{\"model\":\"weft-demo\"}");
  check_capabilities(show, "[\"completion\"]");
  json_decref(show);
  talk_close(&plain);
}

static void test_models(void **state) {
  (void)state;
  json_t *tags = talk_json(server.port, "/api/tags", NULL), *ps = talk_json(server.port, "/api/ps", NULL);
  for (size_t i = 0; i < 2; i++) {
    char body[64];
    json_t *card = json_array_get(at(tags, "models"), i), *runs = json_array_get(at(ps, "models"), i);
    assert_string_equal(text_at(card, "name"), names[i]);
    assert_string_equal(text_at(card, "model"), names[i]);
    assert_true(int_at(card, "size") > 100000);
    assert_int_equal(strlen(text_at(card, "digest")), 32);
    assert_string_equal(text_at(card, "details.format"), "gguf");
    assert_non_null(strpbrk(text_at(card, "details.parameter_size"), "KMB"));
    assert_int_equal(text_at(card, "modified_at")[10], 'T');
    assert_string_equal(text_at(runs, "name"), names[i]);
    assert_int_equal(int_at(runs, "context_length"), 1024);
    (void)snprintf(body, sizeof body, "{\"%s\":\"%s\"}", i == 0 ? "model" : "name", names[i]);
    json_t *show = talk_json(server.port, "/api/show", body);
    const char *arch = text_at(json_object_get(at(show, "model_info"), "general.architecture"), "");
    assert_string_equal(arch, text_at(show, "details.family"));
    (void)snprintf(body, sizeof body, "%s.context_length", arch);
    assert_true(json_integer_value(json_object_get(at(show, "model_info"), body)) >= 1024);
    assert_true(json_equal(at(show, "details"), at(card, "details")));
    assert_non_null(strstr(text_at(show, "parameters"), "temperature "));
    check_capabilities(show, "[\"completion\",\"tools\",\"thinking\"]");
    json_decref(show);
  }
  assert_string_not_equal(text_at(tags, "models.0.digest"), text_at(tags, "models.1.digest"));
  json_t *version = talk_json(server.port, "/api/version", NULL);
  assert_string_equal(text_at(version, "weft"), weft_version());
  int major = 0, minor = 0, patch = 0; /* clients refuse servers before 0.6.4 */
  assert_int_equal(sscanf(text_at(version, "version"), "%d.%d.%d", &major, &minor, &patch), 3);
  assert_true(major * 10000 + minor * 100 + patch >= 604);
  json_decref(version);
  json_decref(ps);
  json_decref(tags);
}

typedef struct bad_body {
  const char *method, *path, *body;
  int code;
  const char *words;
} bad_body;

#define OPTION(text) "{" TABLE ",\"options\":{" text "}}"

static const bad_body bad_bodies[] = {
    {"POST", CHAT, "", 400, "empty"},
    {"POST", CHAT, "{", 400, "line 1, column"},
    {"POST", CHAT, "{\"messages\":5}", 400, "messages must be"},
    {"POST", CHAT, "{\"messages\":[5]}", 400, "messages[0]"},
    {"POST", CHAT, "{\"messages\":[{\"role\":\"pirate\",\"content\":\"x\"}]}", 400, "messages[0].role"},
    {"POST", CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":5}]}", 400, "messages[0].content"},
    {"POST", CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"images\":[\"aGk=\"]}]}", 400, "only text"},
    {"POST", CHAT, "{" TABLE ",\"format\":\"xml\"}", 400, "format must be"},
    {"POST", CHAT, "{" TABLE ",\"think\":5}", 400, "think must be"},
    {"POST", CHAT, "{" TABLE ",\"top_logprobs\":2}", 400, "logprobs"},
    {"POST", CHAT, "{" TABLE ",\"options\":5}", 400, "options must be"},
    {"POST", CHAT, OPTION("\"num_predict\":0.5"), 400, "options.num_predict"},
    {"POST", CHAT, OPTION("\"temperature\":-1"), 400, "options.temperature is -1"},
    {"POST", CHAT, OPTION("\"typical_p\":0.5"), 400, "options.typical_p"},
    {"POST", CHAT, OPTION("\"repeat_last_n\":-2"), 400, "options.repeat_last_n"},
    {"POST", CHAT, OPTION("\"stop\":[1]"), 400, "options.stop"},
    {"POST", CHAT, "{" TABLE ",\"model\":\"nobody\"}", 404, "nobody"},
    {"POST", "/api/generate", "{\"prompt\":5}", 400, "prompt must be"},
    {"POST", "/api/generate", "{\"prompt\":\"x\",\"suffix\":\"y\"}", 400, "suffix"},
    {"POST", "/api/generate", "{\"prompt\":\"x\",\"template\":\"y\"}", 400, "template"},
    {"POST", "/api/generate", "{\"prompt\":\"x\",\"context\":[1]}", 400, "context"},
    {"POST", "/api/generate", "{\"prompt\":\"x\",\"raw\":true,\"system\":\"y\"}", 400, "system"},
    {"POST", "/api/show", "{\"model\":\"nobody\"}", 404, "nobody"},
    {"POST", "/api/show", "{\"model\":5}", 400, "model must be"},
    {"POST", "/api/embed", "{\"input\":\"x\"}", 501, "embeddings"},
    {"POST", "/api/embeddings", "{}", 501, "embeddings"},
    {"POST", "/api/pull", "{\"model\":\"x\"}", 501, "started with"},
    {"POST", "/api/push", "{}", 501, "started with"},
    {"POST", "/api/create", "{}", 501, "started with"},
    {"POST", "/api/copy", "{}", 501, "started with"},
    {"DELETE", "/api/delete", "{}", 501, "started with"},
    {"GET", "/api/chat", "", 405, "POST"},
    {"GET", "/api/nothing", "", 404, "/api/nothing"},
};

static void test_errors_have_their_shape(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof bad_bodies / sizeof *bad_bodies; i++) {
    const bad_body *b = &bad_bodies[i];
    talk_answer a = talk_ask(server.port, b->method, b->path, b->body);
    if (a.code != b->code) fail_msg("%s %s: gave %d: %s", b->path, b->body, a.code, a.body.bytes);
    json_t *root = json_loads(a.body.bytes, 0, NULL);
    assert_int_equal(json_object_size(root), 1);
    if (strstr(text_at(root, "error"), b->words) == NULL)
      fail_msg("%s %s: '%s' does not say '%s'", b->path, b->body, text_at(root, "error"), b->words);
    json_decref(root);
    talk_answer_free(&a);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_canvas_took_time),
      cmocka_unit_test(test_chat_and_generate),
      cmocka_unit_test(test_options),
      cmocka_unit_test(test_format),
      cmocka_unit_test(test_logprobs),
      cmocka_unit_test(test_raw),
      cmocka_unit_test(test_loading),
      cmocka_unit_test(test_models),
      cmocka_unit_test(test_capabilities_are_the_template_s),
      cmocka_unit_test(test_errors_have_their_shape),
  };
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
