/* SPDX-License-Identifier: MIT */
/* How the Anthropic dialect writes what the demo models never do: thinking, answers without text, faults in mid-stream. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "api/dialects/anthropic.h"
#include "base/memory.h"

/* The kinds of the events in order, and of those with a block its number: "content_block_start 0 ping ...". */
static weft_text kinds_of(const weft_text *stream) {
  weft_text out = {0};
  for (const char *at = stream->bytes; (at = strstr(at, "data: ")) != NULL; at++) {
    size_t n = strcspn(at + 6, "\n");
    json_t *data = json_loadb(at + 6, n, 0, NULL);
    assert_non_null(data);
    weft_text_printf(&out, "%s ", json_string_value(json_object_get(data, "type")));
    const json_t *index = json_object_get(data, "index");
    if (index != NULL) weft_text_printf(&out, "%d ", (int)json_integer_value(index));
    json_decref(data);
  }
  return out;
}

static void *new_stream(void) {
  return weft_alloc(1, 256); /* more than the dialect keeps */
}

static void thinking_is_a_block(void **state) {
  weft_choice c = {.finish = "stop"};
  weft_answer a = {
      .dialect = &weft_anthropic, .choice = &c, .n = 1, .wanted.n_choices = 1, .own = new_stream(), .id = NULL};
  weft_pieces out = {.copies = true};
  (void)state;
  weft_text_puts(&c.thinking, "hm");
  weft_anthropic.chunk(&a, &c, NULL, &out);
  weft_anthropic.chunk(&a, &c, NULL, &out);
  weft_text_clear(&c.thinking);
  weft_text_puts(&c.text, "yes");
  weft_anthropic.chunk(&a, &c, NULL, &out);
  weft_text_clear(&c.text);
  weft_anthropic.chunk(&a, &c, "stop", &out);
  weft_anthropic.last(&a, &out);
  weft_text kinds = kinds_of(&out.text);
  assert_string_equal(kinds.bytes,
                      "content_block_start 0 ping content_block_delta 0 content_block_delta 0 "
                      "content_block_stop 0 content_block_start 1 content_block_delta 1 "
                      "content_block_stop 1 message_delta message_stop ");
  assert_non_null(strstr(out.text.bytes, "{\"type\":\"thinking_delta\",\"thinking\":\"hm\"}"));
  assert_non_null(strstr(out.text.bytes, "\"stop_reason\":\"end_turn\""));
  weft_text_free(&kinds);
  weft_pieces_free(&out);
  weft_text_free(&c.thinking);
  weft_text_free(&c.text);
  weft_free(a.own);
}

static void an_answer_without_text_has_an_empty_block(void **state) {
  weft_choice c = {.finish = "stop", .stop = "###"};
  weft_answer a = {.dialect = &weft_anthropic, .choice = &c, .n = 1, .wanted.n_choices = 1, .own = new_stream()};
  weft_pieces out = {.copies = true};
  (void)state;
  weft_anthropic.chunk(&a, &c, "stop", &out);
  weft_text kinds = kinds_of(&out.text);
  assert_string_equal(kinds.bytes, "content_block_start 0 ping content_block_stop 0 message_delta ");
  assert_non_null(strstr(out.text.bytes, "\"stop_reason\":\"stop_sequence\",\"stop_sequence\":\"###\""));
  weft_text_free(&kinds);
  weft_pieces_free(&out);
  weft_free(a.own);
}

static void kinds_of_errors(void **state) {
  static const struct {
    int http;
    const char *type;
  } rows[] = {{400, "invalid_request_error"}, {401, "authentication_error"},
              {403, "permission_error"},      {404, "not_found_error"},
              {405, "invalid_request_error"}, {413, "request_too_large"},
              {429, "rate_limit_error"},      {500, "api_error"},
              {503, "overloaded_error"},      {504, "timeout_error"}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_refusal why;
    weft_text out = {0};
    (void)weft_refuse(&why, rows[i].http, "word", "field", "what \"is\" wrong");
    weft_anthropic_refusal(&why, "id", &out);
    json_t *root = json_loads(out.bytes, 0, NULL), *error = json_object_get(root, "error");
    assert_string_equal(json_string_value(json_object_get(error, "type")), rows[i].type);
    assert_string_equal(json_string_value(json_object_get(error, "message")), "what \"is\" wrong");
    json_decref(root);
    weft_text_free(&out);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(thinking_is_a_block),
                                     cmocka_unit_test(an_answer_without_text_has_an_empty_block),
                                     cmocka_unit_test(kinds_of_errors)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
