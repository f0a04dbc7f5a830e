/* SPDX-License-Identifier: MIT */
/* Formats of answers that are written by diffusion, over HTTP: the answer always is of the format, over the borders of
 * canvases, with as few tokens as the shortest answer has, streamed, and the same alone, beside others and after
 * preemption; every canvas that is shown begins as an answer of the format does. */
#include "tests/support/amount.h"
#include "tests/support/http_conversation.h"
#include "tests/support/schema_check.h"

static talk server;

static int open_with(uint64_t kv_bytes) {
  const weft_open_options options = {.threads = 2, .kv_bytes = kv_bytes, .running = 8, .no_prefix_cache = true};
  talk_serve(&server, NULL, options, (weft_server_options){.body_mib = 1, .idle_seconds = 2});
  return 0;
}

static int open_server(void **state) {
  *state = &server;
  return open_with(8 << 20);
}

#define CHAT "/v1/chat/completions"
#define PERSON                                                                                                       \
  "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\",\"minimum\":0," \
  "\"maximum\":99},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\"]},\"maxItems\":3}},\"required\":["  \
  "\"name\",\"age\",\"tags\"],\"additionalProperties\":false}"
#define LIST                                                                                                         \
  "{\"type\":\"array\",\"minItems\":4,\"items\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"," \
  "\"maxLength\":12},\"ok\":{\"type\":\"boolean\"}},\"required\":[\"city\",\"ok\"],\"additionalProperties\":false}}"
#define PETS                                                                                                           \
  "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"pet\":{\"enum\":[\"fox\",\"cat\",\"dog\"]}}," \
  "\"required\":[\"name\",\"pet\"],\"additionalProperties\":false}"
#define HEAD                                                                                                        \
  "{\"mode\":\"diffusion\",\"messages\":[{\"role\":\"user\",\"content\":\"Give name and pet as JSON: Amy lives in " \
  "Paris, has a fox and is 52 years old.\"}],"

typedef struct format_row {
  const char *field, *schema; /* schema NULL: fits() looks at the text */
  bool (*fits)(const char *text);
  uint32_t room; /* enough for the shortest answer */
} format_row;

static bool is_word(const char *text) {
  return strcmp(text, "yes") == 0 || strcmp(text, "no") == 0 || strcmp(text, "perhaps") == 0;
}

/* [A-C]{3}-\d{40} */
static bool is_code(const char *text) {
  if (strlen(text) != 44 || strspn(text, "ABC") != 3 || text[3] != '-') return false;
  return strspn(text + 4, "0123456789") == 40;
}

/* "<" [a-z]{1,5} ">", any number of them */
static bool is_marked(const char *text) {
  while (*text == '<') {
    size_t n = strspn(text + 1, "abcdefghijklmnopqrstuvwxyz");
    if (n < 1 || n > 5 || text[1 + n] != '>') return false;
    text += n + 2;
  }
  return *text == 0;
}

static const format_row formats[] = {
    {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"strict\":true,\"schema\":" PETS
     "}}",
     PETS, NULL, 40},
    {"\"guided_json\":" PERSON, PERSON, NULL, 40},
    {"\"guided_json\":" LIST, LIST, NULL, 90},
    {"\"response_format\":{\"type\":\"json_object\"}", "{\"type\":\"object\"}", NULL, 20},
    {"\"guided_choice\":[\"yes\",\"no\",\"perhaps\"]", NULL, is_word, 8},
    {"\"guided_regex\":\"[A-C]{3}-\\\\d{40}\"", NULL, is_code, 50},
    {"\"guided_grammar\":\"root ::= (\\\"<\\\" [a-z]{1,5} \\\">\\\")*\"", NULL, is_marked, 8}};
enum { FORMATS = sizeof formats / sizeof *formats };

static void check_text(const format_row *f, const char *text) {
  if (f->schema == NULL) {
    if (!f->fits(text)) fail_msg("'%s' is not of %s", text, f->field);
    return;
  }
  json_t *schema = json_loads(f->schema, JSON_DECODE_ANY, NULL), *value = json_loads(text, JSON_DECODE_ANY, NULL);
  if (value == NULL || !schema_check(schema, schema, value)) fail_msg("'%s' is not of %s", text, f->field);
  json_decref(value);
  json_decref(schema);
}

static void write_body(weft_text *body, const format_row *f, uint32_t room, uint32_t seed, const char *more) {
  weft_text_clear(body);
  weft_text_printf(body, HEAD "\"max_tokens\":%u,\"seed\":%u,\"diffusion\":{\"steps\":%u}%s,%s}", room, seed,
                   2 + seed % 7, more, f->field);
}

/* Many answers of each format, short and long. */
static void every_answer_is_of_its_format(void **state) {
  (void)state;
  weft_text body = {0};
  uint32_t n_canvases = 0, n_answers = test_amount(35, 105, 105);
  for (uint32_t i = 0; i < n_answers; i++) {
    const format_row *f = &formats[i % FORMATS];
    write_body(&body, f, f->room + i / FORMATS * 4, i, "");
    json_t *answer = talk_json(server.port, CHAT, body.bytes);
    check_text(f, text_at(answer, "choices.0.message.content"));
    assert_true(int_at(answer, "usage.completion_tokens") <= (json_int_t)(f->room + i / FORMATS * 4));
    n_canvases += (uint32_t)int_at(answer, "usage.completion_tokens_details.canvases");
    json_decref(answer);
  }
  assert_true(n_canvases > n_answers + n_answers / 4); /* some have several */
  weft_text_free(&body);
}

/* Too small a max_tokens is a 400; from the first one that is none on every answer is complete. */
static void the_shortest_answer_fits(void **state) {
  (void)state;
  weft_text body = {0};
  for (uint32_t i = 0; i < FORMATS; i++) {
    const format_row *f = &formats[i];
    uint32_t n = 1, tried = 0;
    for (; tried < 3; n++) {
      write_body(&body, f, n, n, "");
      talk_answer a = talk_ask(server.port, "POST", CHAT, body.bytes);
      json_t *root = json_loads(a.body.bytes, 0, NULL);
      if (a.code == 400) {
        assert_int_equal(tried, 0);
        assert_non_null(strstr(text_at(root, "error.message"), "raise max_tokens"));
        if (i == 5) n = n < 40 ? 40 : n; /* its shortest answer is known to be long */
      } else {
        check_text(f, text_at(root, "choices.0.message.content"));
        tried += 1;
      }
      json_decref(root);
      talk_answer_free(&a);
      assert_true(n < 120);
    }
  }
  weft_text_free(&body);
}

/* [A-C]{3}-\d{140}: five canvases, so that many of them do not fit a small pool. */
static bool is_long_code(const char *text) {
  return strlen(text) == 144 && strspn(text, "ABC") == 3 && text[3] == '-' && strspn(text + 4, "0123456789") == 140;
}

enum { MANY = 6 };

static const format_row *format_of_many(uint32_t i) {
  static const format_row longer = {"\"guided_regex\":\"[A-C]{3}-\\\\d{140}\"", NULL, is_long_code, 148};
  return i < 2 ? &formats[i] : &longer;
}

static void answers_are_the_same_alone_and_beside_others(void **state) {
  char *alone[MANY];
  weft_text body = {0};
  (void)state;
  for (uint32_t i = 0; i < MANY; i++) {
    write_body(&body, format_of_many(i), format_of_many(i)->room + 40, 301 + 7 * i, "");
    json_t *answer = talk_json(server.port, CHAT, body.bytes);
    alone[i] = strdup(text_at(answer, "choices.0.message.content"));
    check_text(format_of_many(i), alone[i]);
    json_decref(answer);
  }
  for (int round = 0; round < 2; round++) { /* together; then in a pool that is too small for all */
    int fd[MANY];
    double before = talk_metric(server.port, "vllm:num_preemptions_total");
    for (uint32_t i = 0; i < MANY; i++) {
      write_body(&body, format_of_many(i), format_of_many(i)->room + 40, 301 + 7 * i, "");
      fd[i] = talk_dial(server.port);
      talk_send(fd[i], "POST", CHAT, "", body.bytes, body.n);
    }
    for (uint32_t i = 0; i < MANY; i++) {
      talk_answer a = talk_receive(fd[i]);
      json_t *answer = json_loads(a.body.bytes, 0, NULL);
      assert_string_equal(text_at(answer, "choices.0.message.content"), alone[i]);
      json_decref(answer);
      talk_answer_free(&a);
      (void)close(fd[i]);
    }
    double after = talk_metric(server.port, "vllm:num_preemptions_total");
    if (round == 1 && after <= before) fail_msg("the small pool preempted nobody");
    talk_close(&server);
    (void)open_with(round == 0 ? 1 << 20 : 8 << 20);
  }
  weft_text_free(&body);
  for (uint32_t i = 0; i < MANY; i++) free(alone[i]);
}

/* Streamed it is the same answer, and the text of every canvas that is shown can be one of the format: of a word that
 * is chosen it is the word. */
static void streams_show_what_fits(void **state) {
  (void)state;
  weft_text body = {0};
  for (uint32_t i = 0; i < FORMATS; i++) {
    const format_row *f = &formats[i];
    weft_text joined = {0};
    write_body(&body, f, f->room + 40, 500 + i, "");
    json_t *whole = talk_json(server.port, CHAT, body.bytes);
    write_body(&body, f, f->room + 40, 500 + i, ",\"stream\":true,\"stream_canvas\":true");
    json_t *events = talk_stream(server.port, CHAT, body.bytes);
    for (size_t k = 0; k < json_array_size(events); k++) {
      json_t *event = json_array_get(events, k);
      const char *piece = json_string_value(at(event, "data.choices.0.delta.content"));
      bool replaces = strcmp(text_at(event, "event"), "replace") == 0;
      if (piece != NULL) weft_text_puts(&joined, piece);
      if (replaces && i == 4) check_text(f, text_at(event, "data.text"));
    }
    assert_string_equal(joined.bytes == NULL ? "" : joined.bytes, text_at(whole, "choices.0.message.content"));
    json_decref(events);
    json_decref(whole);
    weft_text_free(&joined);
  }
  weft_text_free(&body);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_answer_is_of_its_format), cmocka_unit_test(the_shortest_answer_fits),
      cmocka_unit_test(answers_are_the_same_alone_and_beside_others), cmocka_unit_test(streams_show_what_fits)};
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
