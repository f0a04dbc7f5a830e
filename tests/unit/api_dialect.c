/* SPDX-License-Identifier: MIT */
/* How the OpenAI dialect writes a choice: thinking apart from the answer, ids, logprobs of strange tokens; and how responses
 * take up what was said before. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "api/dialects/anthropic.h"
#include "api/dialects/ollama.h"
#include "api/dialects/openai.h"
#include "api/dialects/responses.h"
#include "base/memory.h"

static json_t *written(void (*put)(const weft_answer *, const weft_choice *, weft_pieces *), const weft_answer *a,
                       const weft_choice *c) {
  weft_text out = {0};
  weft_pieces pieces = {.copies = true};
  json_error_t error;
  put(a, c, &pieces);
  for (int64_t work = 1; !weft_pieces_read(&pieces, &out, &work);) work = 1;
  weft_pieces_free(&pieces);
  weft_text_puts(&out, "}");
  json_t *root = json_loads(out.bytes, 0, &error);
  if (root == NULL) fail_msg("%s: %s", error.text, out.bytes);
  weft_text_free(&out);
  return root;
}

static const weft_openai_form *form_of(const weft_answer *a) {
  return a->dialect->form;
}

static void chunk(const weft_answer *a, const weft_choice *c, weft_pieces *out) {
  form_of(a)->chunk(a, c, NULL, out);
}
static void last(const weft_answer *a, const weft_choice *c, weft_pieces *out) {
  form_of(a)->chunk(a, c, "stop", out);
}
static void whole(const weft_answer *a, const weft_choice *c, weft_pieces *out) {
  form_of(a)->whole(a, c, out);
}

static const char *text_at(json_t *root, const char *first, const char *second) {
  return json_string_value(json_object_get(json_object_get(root, first), second));
}

static void thinking_is_apart(void **state) {
  const weft_generate_params asked = {.max_tokens = 1};
  weft_answer a = {.dialect = &weft_openai_chat, .asked = &asked};
  weft_choice c = {.index = 3, .finish = "stop"};
  (void)state;
  json_t *root = written(chunk, &a, &c); /* nothing was sent yet: the role comes first */
  assert_string_equal(text_at(root, "delta", "role"), "assistant");
  json_decref(root);
  c.begun = true;
  weft_text_puts(&c.thinking, "hm \"so\"");
  root = written(chunk, &a, &c);
  assert_string_equal(text_at(root, "delta", "reasoning_content"), "hm \"so\"");
  assert_null(text_at(root, "delta", "content"));
  assert_int_equal(json_integer_value(json_object_get(root, "index")), 3);
  json_decref(root);
  weft_text_puts(&c.text, "yes");
  root = written(whole, &a, &c);
  assert_string_equal(text_at(root, "message", "content"), "yes");
  assert_string_equal(text_at(root, "message", "reasoning_content"), "hm \"so\"");
  assert_null(json_object_get(root, "token_ids"));
  json_decref(root);
  weft_text_clear(&c.thinking);
  root = written(chunk, &a, &c);
  assert_string_equal(text_at(root, "delta", "content"), "yes");
  json_decref(root);
  weft_text_clear(&c.text);
  root = written(last, &a, &c);
  assert_string_equal(json_string_value(json_object_get(root, "finish_reason")), "stop");
  assert_int_equal(json_object_size(json_object_get(root, "delta")), 0);
  json_decref(root);
  weft_text_free(&c.thinking);
  weft_text_free(&c.text);
}

/* A token that is half a character, and one that cannot be: still JSON, with the bytes as they are. */
static void logprobs_of_strange_tokens(void **state) {
  const weft_token_logprob top[] = {{7, -0.5f, "\xF0\x9F", 2, 1}, {8, -INFINITY, "\"", 1, 2}};
  const uint32_t text_at[] = {3}, n_top[] = {2};
  const weft_delta d = {
      .n_tokens = 1, .logprobs = top, .top_logprobs = top, .n_top = n_top, .top_stride = 2, .text_at = text_at};
  const weft_dialect *const dialects[] = {&weft_openai_chat, &weft_openai_completions};
  const weft_generate_params asked = {.sampling = {.logprobs = true, .n_top_logprobs = 2}};
  (void)state;
  for (int i = 0; i < 2; i++) {
    weft_answer a = {.dialect = dialects[i], .asked = &asked};
    weft_choice c = {.begun = true, .finish = "stop"};
    dialects[i]->logprobs(&a, &c, &d);
    dialects[i]->logprobs(&a, &c, &d);
    json_t *root = written(whole, &a, &c), *list = json_object_get(root, "logprobs");
    if (i == 0) {
      list = json_object_get(list, "content");
      assert_int_equal(json_array_size(list), 2);
      json_t *token = json_array_get(list, 1), *bytes = json_object_get(token, "bytes");
      assert_int_equal(json_integer_value(json_array_get(bytes, 0)), 0xF0);
      json_t *other = json_array_get(json_object_get(token, "top_logprobs"), 1);
      assert_true(json_number_value(json_object_get(other, "logprob")) == -9999.0);
    } else {
      assert_int_equal(json_array_size(json_object_get(list, "tokens")), 2);
      assert_int_equal(json_integer_value(json_array_get(json_object_get(list, "text_offset"), 0)), 3);
      json_t *other = json_array_get(json_object_get(list, "top_logprobs"), 0);
      assert_true(json_number_value(json_object_get(other, "\"")) == -9999.0);
    }
    json_decref(root);
    for (int k = 0; k < 4; k++) weft_text_free(&c.logprobs[k]);
  }
}

/* What a stream says while it waits: nothing that a reader of events takes for one, Anthropic's own event, and of lines
 * an object that adds nothing. */
static void a_ping_changes_no_answer(void **state) {
  static const weft_dialect *const events[] = {&weft_openai_chat, &weft_openai_completions, &weft_openai_responses};
  static const weft_dialect *const lines[] = {&weft_ollama_chat, &weft_ollama_generate};
  const weft_answer a = {.model = "m"};
  weft_text out = {0};
  (void)state;
  for (int i = 0; i < 3; i++) {
    weft_text_clear(&out);
    events[i]->ping(&a, &out);
    assert_true(out.n > 3 && out.bytes[0] == ':' && strcmp(strchr(out.bytes, '\n'), "\n\n") == 0);
  }
  weft_text_clear(&out);
  weft_anthropic.ping(&a, &out);
  assert_string_equal(out.bytes, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
  for (int i = 0; i < 2; i++) {
    weft_answer named = {.dialect = lines[i], .model = "m"};
    weft_text_clear(&out);
    lines[i]->ping(&named, &out);
    assert_string_equal(strchr(out.bytes, '\n'), "\n");
    json_t *line = json_loads(out.bytes, 0, NULL);
    assert_true(json_is_false(json_object_get(line, "done")));
    const char *text =
        i == 0 ? text_at(line, "message", "content") : json_string_value(json_object_get(line, "response"));
    assert_string_equal(text, "");
    json_decref(line);
  }
  weft_text_free(&out);
}

/* The request `body`, which goes on after the items of the response before it. */
static void parse_after(const char *body, const char *before, weft_gen *gen) {
  const weft_text items = {.bytes = (char *)(uintptr_t)before, .n = strlen(before)};
  const weft_body_rules limits = {.json = weft_json_limits(8192)};
  weft_refusal why = {0};
  assert_int_equal(weft_responses_parse(body, strlen(body), &limits, gen, &why), WEFT_OK);
  if (weft_responses_continue(gen, &items, &limits, &why) != WEFT_OK) fail_msg("%s", why.message);
}

/* What a model said may have a zero byte in it. Where the conversation goes on, it ends no text, but is U+FFFD. */
static void zero_bytes_end_no_text(void **state) {
  static const char body[] = "{\"input\":\"Go on.\",\"previous_response_id\":\"resp_1\"}";
  static const char said[] =
      "{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\","
      "\"text\":\"a\\u0000b\"}]}";
  weft_gen gen;
  (void)state;
  parse_after(body, said, &gen);
  assert_int_equal(gen.prompt->n_turns, 2);
  assert_string_equal(gen.prompt->turns[0].content,
                      "a\xEF\xBF\xBD"
                      "b");
  weft_gen_close(&gen);
}

static void check_thinking(const weft_chat_turn *turn, const char *role, const char *content, uint32_t n_calls,
                           const char *thinking) {
  assert_string_equal(turn->role, role);
  assert_string_equal(turn->content, content);
  assert_int_equal(turn->n_calls, n_calls);
  if (thinking == NULL) {
    assert_null(turn->thinking);
  } else {
    assert_non_null(turn->thinking);
    assert_string_equal(turn->thinking, thinking);
  }
}

/* Items of reasoning before one turn of the model are joined, also where they stand between its items; those that no
 * turn of the model follows are left out. */
static void all_items_of_reasoning_are_thinking_of_their_turn(void **state) {
#define THOUGHT(text) "{\"type\":\"reasoning\",\"content\":[{\"type\":\"reasoning_text\",\"text\":\"" text "\"}]},"
#define SAID(text)    "{\"role\":\"assistant\",\"content\":\"" text "\"}"
#define CALLED        "{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\",\"arguments\":\"{}\"}"
  static const char body[] = "{\"previous_response_id\":\"resp_1\",\"input\":[" THOUGHT("e") CALLED
      ",{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":\"x\"}," SAID("w") "," THOUGHT("f")
          THOUGHT("g") "{\"role\":\"user\",\"content\":\"y\"}]}";
  static const char before[] = THOUGHT("a") THOUGHT("b") SAID("u") "," THOUGHT("c") SAID("v") "," THOUGHT("d") CALLED;
  weft_gen gen;
  (void)state;
  parse_after(body, before, &gen);
  const weft_chat_turn *turn = gen.prompt->turns;
  assert_int_equal(gen.prompt->n_turns, 5);
  check_thinking(&turn[0], "assistant", "u", 0, "ab");
  check_thinking(&turn[1], "assistant", "v", 2, "cde");
  check_thinking(&turn[2], "tool", "x", 0, NULL);
  check_thinking(&turn[3], "assistant", "w", 0, NULL);
  check_thinking(&turn[4], "user", "y", 0, NULL);
  weft_gen_close(&gen);
}

/* Wherever memory is refused, the body is, and nothing is left behind. */
static void thinking_without_memory(void **state) {
  static const char body[] = "{\"input\":[" THOUGHT("a") THOUGHT("b") SAID("u") "," THOUGHT("c") CALLED
      ",{\"role\":\"user\",\"content\":\"y\"}]}";
  const weft_body_rules limits = {.json = weft_json_limits(8192)};
  (void)state;
  for (uint64_t fail_at = 1;; fail_at++) {
    weft_gen gen;
    weft_refusal why = {0};
    (void)weft_memory_fail_at(fail_at);
    weft_status status = weft_responses_parse(body, sizeof body - 1, &limits, &gen, &why);
    bool refused = weft_memory_fail_at(0) >= fail_at;
    if (status == WEFT_OK) weft_gen_close(&gen);
    if (!refused) break;
    assert_int_not_equal(status, WEFT_OK);
    assert_int_equal(why.http, 503);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(thinking_is_apart),
                                     cmocka_unit_test(logprobs_of_strange_tokens),
                                     cmocka_unit_test(a_ping_changes_no_answer),
                                     cmocka_unit_test(zero_bytes_end_no_text),
                                     cmocka_unit_test(all_items_of_reasoning_are_thinking_of_their_turn),
                                     cmocka_unit_test(thinking_without_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
