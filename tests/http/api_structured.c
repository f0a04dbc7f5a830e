/* SPDX-License-Identifier: MIT */
/* What the demo model was taught of JSON and of tools, over HTTP and both ways of writing: the questions of
 * model/demo/eval-structured.jsonl, none of which it was trained on. Answers that are held to a schema are right as
 * often as free ones, and three times as long as the schema asks for; calls are those that the question needs, with results
 * the answer goes on, and a question that needs no tool gets its answer. */
#include "tests/support/amount.h"
#include "tests/support/http_conversation.h"

#define CHAT "/v1/chat/completions"

enum { LINE_BYTES = 1 << 16 };

static talk server;
static const char *const modes[] = {"autoregressive", "diffusion"};

static int open_server(void **state) {
  static const char *const models[] = {DEMO_MODEL};
  const weft_open_options options = {
      .models = models, .n_models = 1, .threads = 2, .kv_bytes = 16 << 20, .context = 1024};
  *state = talk_serve(&server, NULL, options, (weft_server_options){.body_mib = 1});
  return 0;
}

/* The first n examples of a family. The caller decrefs. */
static json_t *read_family(const char *family, uint32_t n) {
  FILE *file = fopen(WEFT_SOURCE_DIR "/model/demo/eval-structured.jsonl", "r");
  json_t *list = json_array();
  char *line = malloc(LINE_BYTES);
  assert_non_null(file);
  assert_non_null(line);
  while (json_array_size(list) < n && fgets(line, LINE_BYTES, file) != NULL) {
    json_t *item = json_loads(line, 0, NULL);
    assert_non_null(item);
    if (strcmp(text_at(item, "family"), family) == 0) {
      json_array_append_new(list, item);
    } else {
      json_decref(item);
    }
  }
  (void)fclose(file);
  free(line);
  assert_int_equal(json_array_size(list), n);
  return list;
}

/* Sends a body, which is decrefed. The caller decrefs the answer. */
static json_t *ask(json_t *body) {
  char *text = json_dumps(body, 0);
  json_t *answer = talk_json(server.port, CHAT, text);
  free(text);
  json_decref(body);
  return answer;
}

/* The body for an example. The caller owns it. */
static json_t *body_of(json_t *item, const char *mode) {
  return json_pack("{s:s, s:i, s:i, s:i, s:O}", "mode", mode, "temperature", 0, "seed", 7, "max_tokens",
                   (int)int_at(item, "max_tokens"), "messages", at(item, "messages"));
}

static void set_schema(json_t *body, json_t *item) {
  json_object_set_new(body, "response_format",
                      json_pack("{s:s, s:{s:s, s:b, s:O}}", "type", "json_schema", "json_schema", "name", "x", "strict",
                                1, "schema", at(item, "schema")));
}

/* Whether the answer is the example's; its tokens are added. */
static bool is_right(json_t *body, json_t *item, json_int_t *n_tokens) {
  json_t *answer = ask(body);
  const char *text = text_at(answer, "choices.0.message.content");
  bool right = strcmp(text, text_at(item, "answer")) == 0;
  if (!right) print_message("%s, not %s\n", text, text_at(item, "answer"));
  *n_tokens += int_at(answer, "usage.completion_tokens");
  json_decref(answer);
  return right;
}

/* The tokens of the shortest answer of the example's schema, which the refusal of one token names. */
static json_int_t shortest(json_t *item) {
  json_t *body = body_of(item, modes[0]);
  set_schema(body, item);
  json_object_set_new(body, "max_tokens", json_integer(1));
  char *text = json_dumps(body, 0);
  talk_answer a = talk_ask(server.port, "POST", CHAT, text);
  if (a.code != 400) fail_msg("one token gave %d: %s", a.code, a.body.bytes);
  const char *number = strstr(a.body.bytes, "asked for has ");
  assert_non_null(number);
  json_int_t n = strtol(number + strlen("asked for has "), NULL, 10);
  assert_true(n > 1 && n < 100);
  talk_answer_free(&a);
  json_decref(body);
  free(text);
  return n;
}

static void held_answers_are_as_right_as_free_ones(void **state) {
  static const char *const families[] = {"answer", "list", "rows", "record"};
  uint32_t n = test_amount(4, 6, 50), n_asked = 0, free_right[2] = {0}, held_right[2] = {0};
  json_int_t n_free = 0, n_held = 0, n_shortest = 0;
  (void)state;
  for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
    json_t *list = read_family(families[f], n);
    for (size_t i = 0; i < n; i++, n_asked++) {
      json_t *item = json_array_get(list, i);
      n_shortest += shortest(item);
      for (int mode = 0; mode < 2; mode++) {
        json_t *held = body_of(item, modes[mode]);
        set_schema(held, item);
        free_right[mode] += is_right(body_of(item, modes[mode]), item, &n_free);
        held_right[mode] += is_right(held, item, &n_held);
      }
    }
    json_decref(list);
  }
  for (int mode = 0; mode < 2; mode++) {
    print_message("%s: of %u answers %u right free, %u held\n", modes[mode], n_asked, free_right[mode],
                  held_right[mode]);
    assert_true(free_right[mode] * 10 >= n_asked * 9);
    assert_true(held_right[mode] * 100 >= free_right[mode] * 95);
  }
  print_message("%.1f tokens on average, %.1f at least\n", (double)n_held / (2.0 * n_asked),
                (double)n_shortest / n_asked);
  assert_true(n_held >= 3 * 2 * n_shortest);
}

/* ---- tools ---- */

#define OPEN  "<tool_call>\n"
#define CLOSE "\n</tool_call>"

/* The calls that the model's text has, as OpenAI writes them, with ids from `first` on. */
static json_t *calls_of(const char *text, size_t first) {
  json_t *calls = json_array();
  for (; (text = strstr(text, OPEN)) != NULL; first++) {
    char id[32], *arguments;
    text += strlen(OPEN);
    json_t *call = json_loads(text, JSON_DISABLE_EOF_CHECK, NULL);
    assert_non_null(call);
    (void)snprintf(id, sizeof id, "call_%zu", first);
    arguments = json_dumps(at(call, "arguments"), 0);
    json_array_append_new(calls, json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", id, "type", "function", "function", "name",
                                           text_at(call, "name"), "arguments", arguments));
    free(arguments);
    json_decref(call);
  }
  return calls;
}

/* The messages of an example with calls in their own members, as a client sends them. */
static json_t *messages_of(json_t *item) {
  json_t *out = json_array(), *m;
  size_t i, n_calls = 0, n_results = 0;
  json_array_foreach(at(item, "messages"), i, m) {
    json_t *copy = json_copy(m);
    if (strncmp(text_at(m, "content"), OPEN, strlen(OPEN)) == 0) {
      json_t *calls = calls_of(text_at(m, "content"), n_calls);
      n_calls += json_array_size(calls);
      json_object_set_new(copy, "content", json_null());
      json_object_set_new(copy, "tool_calls", calls);
    } else if (strcmp(text_at(m, "role"), "tool") == 0) {
      char id[32];
      (void)snprintf(id, sizeof id, "call_%zu", n_results++);
      json_object_set_new(copy, "tool_call_id", json_string(id));
    }
    json_array_append_new(out, copy);
  }
  assert_int_equal(n_calls, n_results);
  return out;
}

static json_t *tool_body(json_t *item, const char *mode, const char *choice) {
  json_t *body = body_of(item, mode);
  json_object_set_new(body, "messages", messages_of(item));
  json_object_set(body, "tools", at(item, "tools"));
  json_object_set_new(body, "tool_choice", json_string(choice));
  return body;
}

/* Whether the calls of an answer are these, names and arguments. */
static bool same_calls(json_t *got, json_t *wanted) {
  bool same = json_array_size(got) == json_array_size(wanted);
  for (size_t i = 0; same && i < json_array_size(wanted); i++) {
    json_t *a = json_array_get(got, i), *b = json_array_get(wanted, i);
    json_t *x = json_loads(text_at(a, "function.arguments"), 0, NULL);
    json_t *y = json_loads(text_at(b, "function.arguments"), 0, NULL);
    same = x != NULL && json_equal(x, y) && strcmp(text_at(a, "function.name"), text_at(b, "function.name")) == 0;
    json_decref(x);
    json_decref(y);
  }
  return same;
}

static bool calls_right(json_t *item, const char *mode, const char *choice) {
  json_t *answer = ask(tool_body(item, mode, choice)), *wanted = calls_of(text_at(item, "answer"), 0);
  bool right = same_calls(at(answer, "choices.0.message.tool_calls"), wanted) &&
               json_is_null(at(answer, "choices.0.message.content")) &&
               strcmp(text_at(answer, "choices.0.finish_reason"), "tool_calls") == 0;
  if (!right) {
    char *got = json_dumps(at(answer, "choices.0.message"), 0);
    print_message("%s, %s: %s, not %s\n", mode, choice, got, text_at(item, "answer"));
    free(got);
  }
  json_decref(answer);
  json_decref(wanted);
  return right;
}

/* ---- stop strings ---- */

/* The arguments and the reason of a stream with one call, into a text: "arguments reason stop_reason". */
static void read_stream(json_t *body, weft_text *out) {
  json_object_set_new(body, "stream", json_true());
  char *text = json_dumps(body, 0);
  json_t *events = talk_stream(server.port, CHAT, text);
  for (size_t i = 0; i + 1 < json_array_size(events); i++) {
    json_t *choice = at(json_array_get(events, i), "data.choices.0");
    const char *more = json_string_value(at(choice, "delta.tool_calls.0.function.arguments"));
    assert_null(at(choice, "delta.tool_calls.1"));
    if (more != NULL) weft_text_puts(out, more);
    if (!json_is_string(at(choice, "finish_reason"))) continue;
    weft_text_printf(out, " %s %s", text_at(choice, "finish_reason"), text_at(choice, "stop_reason"));
  }
  json_decref(events);
  json_decref(body);
  free(text);
}

/* The answer of an example ends before the stop string, with so much of the arguments. */
static void check_stop(json_t *item, const char *mode, const char *stop, const char *arguments, const char *finish) {
  json_t *body = tool_body(item, mode, "auto"), *whole = ask(tool_body(item, mode, "auto"));
  weft_text streamed = {0}, wanted = {0};
  json_object_set_new(body, "stop", json_string(stop));
  json_t *again = json_deep_copy(body), *answer = ask(body), *choice = at(answer, "choices.0");
  assert_int_equal(json_array_size(at(choice, "message.tool_calls")), 1);
  assert_string_equal(text_at(choice, "message.tool_calls.0.function.arguments"), arguments);
  assert_string_equal(text_at(choice, "finish_reason"), finish);
  assert_string_equal(text_at(choice, "stop_reason"), stop);
  /* the engine ended there; a canvas is computed as a whole */
  if (strcmp(mode, "autoregressive") == 0 && strcmp(finish, "stop") == 0) {
    assert_true(int_at(answer, "usage.completion_tokens") < int_at(whole, "usage.completion_tokens"));
  }
  weft_text_printf(&wanted, "%s %s %s", arguments, finish, stop);
  read_stream(again, &streamed);
  assert_string_equal(streamed.bytes, wanted.bytes);
  json_decref(answer);
  json_decref(whole);
  weft_text_free(&wanted);
  weft_text_free(&streamed);
}

/* A stop string is looked for in calls as the model writes them. One that cuts a call is why the answer ended. */
static void stop_strings_end_calls(void **state) {
  uint32_t n_checked = 0;
  json_t *list = read_family("call", 8);
  (void)state;
  for (size_t i = 0; i < json_array_size(list); i++) {
    json_t *item = json_array_get(list, i), *calls = calls_of(text_at(item, "answer"), 0);
    char arguments[256], stop[4];
    (void)snprintf(arguments, sizeof arguments, "%s", text_at(json_array_get(calls, 0), "function.arguments"));
    json_decref(calls);
    const char *text = text_at(item, "answer"), *from = strstr(text, arguments);
    size_t n = strlen(arguments), middle = n / 2;
    assert_non_null(from);
    (void)snprintf(stop, sizeof stop, "%.3s", from + middle);
    if (strstr(text, stop) != from + middle) continue;
    for (int mode = 0; mode < 2; mode++) {
      if (!calls_right(item, modes[mode], "auto")) continue;
      arguments[middle] = from[middle];
      check_stop(item, modes[mode], "</tool_call>", arguments, "tool_calls");
      arguments[middle] = 0;
      check_stop(item, modes[mode], stop, arguments, "stop");
      n_checked += 1;
    }
  }
  print_message("%u answers were cut\n", n_checked);
  assert_true(n_checked >= 4);
  json_decref(list);
}

static void calls_are_made_where_they_are_needed(void **state) {
  static const char *const choices[] = {"auto", "required"};
  uint32_t n = test_amount(8, 24, 50);
  json_t *list = read_family("call", n);
  (void)state;
  for (int mode = 0; mode < 2; mode++) {
    for (int choice = 0; choice < 2; choice++) {
      uint32_t right = 0;
      for (size_t i = 0; i < n; i++) right += calls_right(json_array_get(list, i), modes[mode], choices[choice]);
      print_message("%s, %s: %u of %u calls right\n", modes[mode], choices[choice], right, n);
      assert_true(right * 10 >= n * 9);
    }
  }
  json_decref(list);
}

static void texts_are_given_where_no_call_is_needed(void **state) {
  static const char *const families[] = {"result", "aside"};
  uint32_t n = test_amount(8, 24, 50);
  (void)state;
  for (int f = 0; f < 2; f++) {
    json_t *list = read_family(families[f], n);
    for (int mode = 0; mode < 2; mode++) {
      uint32_t right = 0;
      for (size_t i = 0; i < n; i++) {
        json_t *item = json_array_get(list, i), *answer = ask(tool_body(item, modes[mode], "auto"));
        const char *text = json_string_value(at(answer, "choices.0.message.content"));
        bool good = text != NULL && strcmp(text, text_at(item, "answer")) == 0;
        if (!good) print_message("%s, not %s\n", text == NULL ? "no text" : text, text_at(item, "answer"));
        right += good && at(answer, "choices.0.message.tool_calls") == NULL;
        json_decref(answer);
      }
      print_message("%s, %s: %u of %u right\n", families[f], modes[mode], right, n);
      assert_true(right * 10 >= n * 9);
    }
    json_decref(list);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(held_answers_are_as_right_as_free_ones), cmocka_unit_test(calls_are_made_where_they_are_needed),
      cmocka_unit_test(stop_strings_end_calls), cmocka_unit_test(texts_are_given_where_no_call_is_needed)};
  return cmocka_run_group_tests_name("api_structured", tests, open_server, close_talk);
}
