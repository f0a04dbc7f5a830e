/* SPDX-License-Identifier: MIT */
/* Answers of a format, over HTTP: the server that gives them, and that they are the same alone, beside others and after
 * preemption. */
#ifndef WEFT_TESTS_FORMAT_TALK_H
#define WEFT_TESTS_FORMAT_TALK_H

#include "tests/support/http_conversation.h"
#include "tests/support/schema_check.h"

#define CHAT "/v1/chat/completions"
#define PERSON                                                                                                       \
  "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\",\"minimum\":0," \
  "\"maximum\":99},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\"]},\"maxItems\":3}},\"required\":["  \
  "\"name\",\"age\",\"tags\"],\"additionalProperties\":false}"

enum { POOL_BYTES = 8 << 20, SMALL_POOL_BYTES = 1 << 20, MANY = 6 };

static talk server;

static int open_with(uint64_t kv_bytes) {
  const weft_open_options options = {.threads = 2, .kv_bytes = kv_bytes, .running = 8, .no_prefix_cache = true};
  talk_serve(&server, NULL, options, (weft_server_options){.body_mib = 1, .idle_seconds = 2});
  return 0;
}

static int open_server(void **state) {
  *state = &server;
  return open_with(POOL_BYTES);
}

/* The text is JSON of the schema. */
static inline bool fits_schema(const char *schema_text, const char *text) {
  json_t *schema = json_loads(schema_text, JSON_DECODE_ANY, NULL), *value = json_loads(text, JSON_DECODE_ANY, NULL);
  bool fits = value != NULL && schema_check(schema, schema, value);
  json_decref(value);
  json_decref(schema);
  return fits;
}

/* What a whole answer says; borrowed. It is complete: no limit ended it. */
static inline const char *complete_content(json_t *answer) {
  assert_string_equal(text_at(answer, "choices.0.finish_reason"), "stop");
  return text_at(answer, "choices.0.message.content");
}

/* What the pieces of a stream say together. */
static inline weft_text joined_content(json_t *events) {
  weft_text joined = {0};
  weft_text_append(&joined, "", 0); /* never NULL */
  for (size_t i = 0; i < json_array_size(events); i++) {
    const char *piece = json_string_value(at(json_array_get(events, i), "data.choices.0.delta.content"));
    if (piece != NULL) weft_text_puts(&joined, piece);
  }
  return joined;
}

/* write: the body of request i of MANY; check: that its answer is of its format. Ends with a server as at first. */
static void same_alone_and_beside_others(void (*write)(weft_text *body, uint32_t i),
                                         void (*check)(uint32_t i, const char *text)) {
  char *alone[MANY];
  weft_text body = {0};
  for (uint32_t i = 0; i < MANY; i++) {
    write(&body, i);
    json_t *answer = talk_json(server.port, CHAT, body.bytes);
    alone[i] = strdup(complete_content(answer));
    check(i, alone[i]);
    json_decref(answer);
  }
  for (int round = 0; round < 2; round++) { /* together; then in a pool that is too small for all */
    int fd[MANY];
    double before = talk_metric(server.port, "vllm:num_preemptions_total");
    for (uint32_t i = 0; i < MANY; i++) {
      write(&body, i);
      fd[i] = talk_begin(server.port, CHAT, body.bytes);
    }
    for (uint32_t i = 0; i < MANY; i++) {
      talk_answer a = talk_receive(fd[i]);
      json_t *answer = json_loads(a.body.bytes, 0, NULL);
      assert_string_equal(complete_content(answer), alone[i]);
      json_decref(answer);
      talk_answer_free(&a);
      (void)close(fd[i]);
    }
    double after = talk_metric(server.port, "vllm:num_preemptions_total");
    if (round == 1 && after <= before) fail_msg("the small pool preempted nobody");
    talk_close(&server);
    (void)open_with(round == 0 ? SMALL_POOL_BYTES : POOL_BYTES);
  }
  weft_text_free(&body);
  for (uint32_t i = 0; i < MANY; i++) free(alone[i]);
}

#endif
