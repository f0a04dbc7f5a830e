/* SPDX-License-Identifier: MIT */
/* Logprobs of an answer that is held to a format, where a place often has fewer likely tokens than were asked for: the
 * same in every dialect that has them, whole and as a stream, however often and beside whomever one asks. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "tests/support/http_conversation.h"

#define SCHEMA                                                                                                 \
  "{\"type\":\"object\",\"properties\":{\"old\":{\"type\":\"boolean\"},\"pet\":{\"enum\":[\"cat\",\"dog\"]}}," \
  "\"required\":[\"old\",\"pet\"],\"additionalProperties\":false}"
#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"Who is Dan?\"}]"
#define OPTIONS  "\"temperature\":1,\"seed\":5"

enum { REPEATS = 6 };

static talk server;

static int open_server(void **state) {
  static const char *const models[] = {DEMO_AR_MODEL};
  const weft_open_options options = {
      .models = models, .n_models = 1, .threads = 1, .kv_bytes = 8 << 20, .context = 512};
  *state = talk_serve(&server, NULL, options, (weft_server_options){0});
  return 0;
}

/* Adds members of a list of tokens to `all`. */
static void add_list(json_t *all, json_t *list) {
  size_t i;
  json_t *token;
  json_array_foreach(list, i, token)(void) json_array_append(all, token);
}

/* Each object of an NDJSON body. */
static json_t *read_lines(const weft_text *body) {
  json_t *lines = json_array();
  for (const char *from = body->bytes, *end; (end = strchr(from, '\n')) != NULL; from = end + 1) {
    json_t *line = json_loadb(from, (size_t)(end - from), 0, NULL);
    assert_non_null(line);
    (void)json_array_append_new(lines, line);
  }
  return lines;
}

static json_t *list_of_chat(json_t *object) {
  return at(object, "choices.0.logprobs.content");
}

static json_t *list_of_ollama(json_t *object) {
  return at(object, "logprobs");
}

static json_t *list_of_response(json_t *object) {
  const char *type = json_string_value(json_object_get(object, "type"));
  if (type == NULL) return at(object, "output.0.content.0.logprobs");
  return strcmp(type, "response.output_text.delta") == 0 ? at(object, "logprobs") : NULL;
}

/* Its four lists, told as one. */
static json_t *list_of_completion(json_t *object) {
  static const char *const names[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
  json_t *lists = at(object, "choices.0.logprobs"), *all = json_array();
  for (size_t i = 0; i < json_array_size(at(lists, "tokens")); i++) {
    json_t *place = json_array();
    for (int k = 0; k < 4; k++) (void)json_array_append(place, json_array_get(at(lists, names[k]), i));
    (void)json_array_append_new(all, place);
  }
  (void)json_object_set_new(object, "told", all); /* so that it is freed */
  return all;
}

static const struct {
  const char *path, *fields;
  json_t *(*list)(json_t *);
  bool lines;
} dialects[] = {
    {"/v1/chat/completions", MESSAGES ",\"logprobs\":true,\"top_logprobs\":4,\"guided_json\":" SCHEMA "," OPTIONS,
     list_of_chat, false},
    {"/v1/completions", "\"prompt\":\"Who is Dan?\",\"logprobs\":4,\"guided_json\":" SCHEMA "," OPTIONS,
     list_of_completion, false},
    {"/v1/responses",
     "\"input\":\"Who is Dan?\",\"include\":[\"message.output_text.logprobs\"],\"top_logprobs\":4,\"store\":false,"
     "\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"x\",\"schema\":" SCHEMA "}}," OPTIONS,
     list_of_response, false},
    {"/api/chat", MESSAGES ",\"logprobs\":true,\"top_logprobs\":4,\"format\":" SCHEMA ",\"options\":{" OPTIONS "}",
     list_of_ollama, true},
    {"/api/generate",
     "\"prompt\":\"Who is Dan?\",\"logprobs\":true,\"top_logprobs\":4,\"format\":" SCHEMA ",\"options\":{" OPTIONS "}",
     list_of_ollama, true},
};
enum { DIALECTS = sizeof dialects / sizeof *dialects };

/* All tokens of an answer, with what is told of them. */
static json_t *ask(size_t i, bool stream) {
  weft_text body = {0};
  json_t *all = json_array(), *parts;
  weft_text_printf(&body, "{%s,\"stream\":%s}", dialects[i].fields, stream ? "true" : "false");
  talk_answer a = talk_ask(server.port, "POST", dialects[i].path, body.bytes);
  if (a.code != 200) fail_msg("%s: %d: %s", dialects[i].path, a.code, a.body.bytes);
  if (!stream) {
    parts = json_array();
    (void)json_array_append_new(parts, json_loads(a.body.bytes, 0, NULL));
  } else {
    parts = dialects[i].lines ? read_lines(&a.body) : talk_events(&a.body);
  }
  size_t k;
  json_t *part;
  json_array_foreach(parts, k, part) {
    json_t *data = stream && !dialects[i].lines ? at(part, "data") : part;
    if (json_is_object(data)) add_list(all, dialects[i].list(data));
  }
  json_decref(parts);
  talk_answer_free(&a);
  weft_text_free(&body);
  return all;
}

/* Others that compute meanwhile, so that it differs how many tokens are there when a delta is made. */
static atomic_bool enough;

static void *disturb(void *self) {
  (void)self;
  while (!atomic_load(&enough)) {
    json_decref(talk_json(server.port, "/v1/completions",
                          "{\"prompt\":\"a frog\",\"max_tokens\":20,\"n\":3,\"temperature\":0}"));
  }
  return NULL;
}

static void the_same_however_it_is_asked_for(void **state) {
  pthread_t other;
  (void)state;
  assert_int_equal(pthread_create(&other, NULL, disturb, NULL), 0);
  for (size_t i = 0; i < DIALECTS; i++) {
    json_t *first = ask(i, false);
    assert_true(json_array_size(first) > 5);
    for (int n = 0; n < 2 * REPEATS; n++) {
      json_t *again = ask(i, n % 2 == 0);
      if (!json_equal(first, again)) {
        char *a = json_dumps(first, 0), *b = json_dumps(again, 0);
        fail_msg("%s, %s:\n%s\nbefore:\n%s", dialects[i].path, n % 2 == 0 ? "as a stream" : "whole", b, a);
      }
      json_decref(again);
    }
    json_decref(first);
  }
  atomic_store(&enough, true);
  assert_int_equal(pthread_join(other, NULL), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_however_it_is_asked_for)};
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
