/* SPDX-License-Identifier: MIT */
/* Formats of answers that are written by diffusion, over HTTP: the answer always is of the format, over the borders of
 * canvases, with as few tokens as the shortest answer has, streamed, and the same alone, beside others and after
 * preemption; every canvas that is shown begins as an answer of the format does. */
#include "tests/support/amount.h"
#include "tests/support/format_talk.h"

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
  if (!fits_schema(f->schema, text)) fail_msg("'%s' is not of %s", text, f->field);
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
  uint32_t n_canvases = 0, n_answers = test_amount(14, 105, 105);
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

static const format_row *format_of_many(uint32_t i) {
  static const format_row longer = {"\"guided_regex\":\"[A-C]{3}-\\\\d{140}\"", NULL, is_long_code, 148};
  return i < 2 ? &formats[i] : &longer;
}

static void write_of_many(weft_text *body, uint32_t i) {
  write_body(body, format_of_many(i), format_of_many(i)->room + 40, 301 + 7 * i, "");
}

static void check_of_many(uint32_t i, const char *text) {
  check_text(format_of_many(i), text);
}

static void answers_are_the_same_alone_and_beside_others(void **state) {
  (void)state;
  same_alone_and_beside_others(write_of_many, check_of_many);
}

/* Streamed it is the same answer, and the text of every canvas that is shown can be one of the format: of a word that
 * is chosen it is the word. */
static void streams_show_what_fits(void **state) {
  (void)state;
  weft_text body = {0};
  for (uint32_t i = 0; i < FORMATS; i++) {
    const format_row *f = &formats[i];
    write_body(&body, f, f->room + 40, 500 + i, "");
    json_t *whole = talk_json(server.port, CHAT, body.bytes);
    write_body(&body, f, f->room + 40, 500 + i, ",\"stream\":true,\"stream_canvas\":true");
    json_t *events = talk_stream(server.port, CHAT, body.bytes);
    for (size_t k = 0; k < json_array_size(events); k++) {
      json_t *event = json_array_get(events, k);
      bool replaces = strcmp(text_at(event, "event"), "replace") == 0;
      if (replaces && i == 4) check_text(f, text_at(event, "data.text"));
    }
    weft_text joined = joined_content(events);
    assert_string_equal(joined.bytes, text_at(whole, "choices.0.message.content"));
    json_decref(events);
    json_decref(whole);
    weft_text_free(&joined);
  }
  weft_text_free(&body);
}

/* {"field0": a string, "field1": an integer, "field2": a boolean, ...}, which no model here would write by itself. */
static void write_form(weft_text *body, uint32_t n) {
  static const char *const kinds[] = {"{\"type\":\"string\",\"maxLength\":12}",
                                      "{\"type\":\"integer\",\"minimum\":0,\"maximum\":99}", "{\"type\":\"boolean\"}",
                                      "{\"enum\":[\"red\",\"green\",\"blue\"]}"};
  weft_text_puts(body, HEAD
                 "\"stream\":true,\"stream_canvas\":true,\"seed\":7,\"max_tokens\":400,\"guided_json\":"
                 "{\"type\":\"object\",\"properties\":{");
  for (uint32_t i = 0; i < n; i++) weft_text_printf(body, "%s\"field%u\":%s", i == 0 ? "" : ",", i, kinds[i % 4]);
  weft_text_puts(body, "},\"required\":[");
  for (uint32_t i = 0; i < n; i++) weft_text_printf(body, "%s\"field%u\"", i == 0 ? "" : ",", i);
  weft_text_puts(body, "],\"additionalProperties\":false}}");
}

/* A form that the model would not write is accepted all the same, position by position, so that the model sees it and
 * its canvases can come to rest: without that none of their positions is, in any step. */
static void a_form_comes_to_rest(void **state) {
  weft_text body = {0};
  double accepted = 0, positions = 0;
  (void)state;
  write_form(&body, 12);
  json_t *events = talk_stream(server.port, CHAT, body.bytes), *event;
  size_t i;
  json_array_foreach(events, i, event) {
    if (strcmp(text_at(event, "event"), "replace") != 0) continue;
    accepted += (double)int_at(event, "data.accepted");
    positions += (double)int_at(event, "data.positions");
  }
  if (positions == 0 || accepted < positions / 5) fail_msg("%.0f of %.0f positions were accepted", accepted, positions);
  json_decref(events);
  weft_text_free(&body);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_answer_is_of_its_format),
                                     cmocka_unit_test(the_shortest_answer_fits),
                                     cmocka_unit_test(answers_are_the_same_alone_and_beside_others),
                                     cmocka_unit_test(streams_show_what_fits), cmocka_unit_test(a_form_comes_to_rest)};
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
