/* SPDX-License-Identifier: MIT */
/* Results of calls in the words of chat templates: the name of the function that a result is of. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/prompt_tools.h"
#include "base/memory.h"

enum { CONTEXT = 1024 };

static void expect_name(const prompt_calls *calls, const char *id, uint32_t turn, const char *name) {
  const char *found = prompt_calls_name(calls, id, turn);
  if (name == NULL) {
    assert_null(found);
  } else {
    assert_non_null(found);
    assert_string_equal(found, name);
  }
}

/* Some agents count their calls anew in every turn: the last call before the result is meant. */
static void the_last_call_with_the_id_counts(void **state) {
  weft_tool_call first[] = {{.id = "1", .name = "a"}, {.id = "2", .name = "b"}, {.id = NULL, .name = "c"}};
  weft_tool_call second[] = {{.id = "1", .name = "d"}, {.id = "1", .name = "e"}};
  weft_chat_turn turn[] = {{.role = "user", .content = "x"},
                           {.role = "assistant", .content = "", .calls = first, .n_calls = 3},
                           {.role = "tool", .content = "y", .call_id = "1"},
                           {.role = "assistant", .content = "", .calls = second, .n_calls = 2},
                           {.role = "tool", .content = "z", .call_id = "1"}};
  const weft_prompt prompt = {.turns = turn, .n_turns = 5};
  weft_error error = {{0}};
  prompt_calls calls;
  (void)state;
  assert_int_equal(prompt_calls_open(&prompt, &calls, &error), WEFT_OK);
  assert_int_equal(calls.n, 4);
  expect_name(&calls, "1", 1, NULL); /* the calls of a turn come after it */
  expect_name(&calls, "1", 2, "a");
  expect_name(&calls, "1", 3, "a");
  expect_name(&calls, "1", 4, "e");
  expect_name(&calls, "2", 4, "b");
  expect_name(&calls, "0", 4, NULL);
  expect_name(&calls, "3", 4, NULL);
  expect_name(&calls, "", 4, NULL);
  char *more;
  weft_json_size left = weft_json_limits(CONTEXT);
  assert_int_equal(prompt_turn_json(&prompt, &calls, 4, &left, &more, &error), WEFT_OK);
  assert_string_equal(more, "{\"tool_call_id\":\"1\",\"name\":\"e\"}");
  weft_free(more);
  turn[4].name = "said";
  assert_int_equal(prompt_turn_json(&prompt, &calls, 4, &left, &more, &error), WEFT_OK);
  assert_string_equal(more, "{\"tool_call_id\":\"1\",\"name\":\"said\"}");
  weft_free(more);
  prompt_calls_close(&calls);
}

/* No calls: nothing is kept, and a result without a name has none. */
static void without_calls(void **state) {
  weft_chat_turn turn[] = {{.role = "tool", .content = "x", .call_id = "1"}};
  const weft_prompt prompt = {.turns = turn, .n_turns = 1};
  weft_error error = {{0}};
  prompt_calls calls;
  (void)state;
  assert_int_equal(prompt_calls_open(&prompt, &calls, &error), WEFT_OK);
  assert_null(calls.call);
  expect_name(&calls, "1", 1, NULL);
  prompt_calls_close(&calls);
}

/* A million calls, and as many results that name the first of them. Where each result looked through the conversation
 * there would be 10^12 comparisons, which is an hour. */
static void many_results_are_looked_up_soon(void **state) {
  enum { N = 1000000 };
  static weft_tool_call call[N];
  static weft_chat_turn turn[2];
  static char id[N][8];
  weft_error error = {{0}};
  prompt_calls calls;
  (void)state;
  for (uint32_t i = 0; i < N; i++) {
    (void)snprintf(id[i], sizeof id[i], "%u", i);
    call[i] = (weft_tool_call){.id = id[i], .name = i == 0 ? "first" : "other"};
  }
  turn[0] = (weft_chat_turn){.role = "assistant", .content = "", .calls = call, .n_calls = N};
  turn[1] = (weft_chat_turn){.role = "tool", .content = "", .call_id = "0"};
  const weft_prompt prompt = {.turns = turn, .n_turns = 2};
  assert_int_equal(prompt_calls_open(&prompt, &calls, &error), WEFT_OK);
  for (uint32_t i = 0; i < N; i++) assert_string_equal(prompt_calls_name(&calls, turn[1].call_id, 1), "first");
  prompt_calls_close(&calls);
}

/* Texts that are small JSON each are no way around the limit of a request: what they have is counted together. */
static void json_of_a_request_is_counted_together(void **state) {
  enum { N = 100000 };
  static const char one[] = "[],";
  static char arguments[N * 3 + 16];
  weft_tool_call call[] = {{.id = "1", .name = "a", .arguments = arguments},
                           {.id = "2", .name = "a", .arguments = arguments}};
  weft_chat_turn turn[] = {{.role = "assistant", .content = "", .calls = call, .n_calls = 1},
                           {.role = "assistant", .content = "", .calls = call + 1, .n_calls = 1}};
  const weft_prompt prompt = {.turns = turn, .n_turns = 2};
  const prompt_calls calls = {0};
  weft_json_size left = weft_json_limits(CONTEXT);
  weft_error error = {{0}};
  char *more;
  (void)state;
  size_t n = (size_t)snprintf(arguments, sizeof arguments, "{\"a\":[");
  for (uint32_t i = 0; i < N; i++, n += 3) memcpy(arguments + n, one, 3);
  memcpy(arguments + n - 1, "]}", 3);
  assert_int_equal(prompt_turn_json(&prompt, &calls, 0, &left, &more, &error), WEFT_OK);
  weft_free(more);
  assert_int_equal(prompt_turn_json(&prompt, &calls, 1, &left, &more, &error), WEFT_E_TOO_LARGE);
  assert_null(more);
  assert_non_null(strstr(error.text, "messages[1].tool_calls[0].function.arguments, with the tools and calls before"));
}

static void refused_memory_is_an_error(void **state) {
  weft_tool_call call[] = {{.id = "1", .name = "a"}};
  weft_chat_turn turn[] = {{.role = "assistant", .content = "", .calls = call, .n_calls = 1}};
  const weft_prompt prompt = {.turns = turn, .n_turns = 1};
  weft_error error = {{0}};
  prompt_calls calls;
  (void)state;
  (void)weft_memory_fail_at(1);
  assert_int_equal(prompt_calls_open(&prompt, &calls, &error), WEFT_E_NO_MEMORY);
  (void)weft_memory_fail_at(0);
  prompt_calls_close(&calls);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_last_call_with_the_id_counts), cmocka_unit_test(without_calls),
      cmocka_unit_test(many_results_are_looked_up_soon),  cmocka_unit_test(json_of_a_request_is_counted_together),
      cmocka_unit_test(refused_memory_is_an_error),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
