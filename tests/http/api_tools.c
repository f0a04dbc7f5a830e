/* SPDX-License-Identifier: MIT */
/* Tools over HTTP: prompts with declarations, calls and results; answers that must be calls, streamed and whole;
 * what is refused. The chat templates are not the one with which the demo models were taught to call: grammars make the
 * calls, and a bias where the choice is the model's. What was taught is in api_structured.c. */
#include "tests/support/amount.h"
#include "tests/support/http_refusal.h"
#include "tests/support/schema_check.h"

#define CHAT   "/v1/chat/completions"
#define JSON   "\"model\":\"weft-demo\",\"mode\":\"autoregressive\","
#define HERMES "\"model\":\"weft-demo-ar\","
#define CANVAS "\"model\":\"weft-demo\",\"mode\":\"diffusion\","
#define USER   "\"messages\":[{\"role\":\"user\",\"content\":\"Who is Dan?\"}]"
#define SCHEMA                                                                                                         \
  "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":6},\"age\":{\"type\":\"integer\"," \
  "\"minimum\":0,\"maximum\":99}},\"required\":[\"name\"],\"additionalProperties\":false}"
#define FIND \
  "{\"type\":\"function\",\"function\":{\"name\":\"find\",\"description\":\"Finds.\",\"parameters\":" SCHEMA "}}"
#define STRICT "{\"type\":\"function\",\"function\":{\"name\":\"find\",\"strict\":true,\"parameters\":" SCHEMA "}}"
#define GET_TIME                                                                                    \
  "{\"type\":\"function\",\"function\":{\"name\":\"get_time\",\"parameters\":{\"type\":\"object\"," \
  "\"properties\":{},\"additionalProperties\":false}}}"
#define TOOLS "\"tools\":[" FIND "," GET_TIME "]"
/* An end of the request's own, and none of the model's. */
#define IGNORE "\"ignore_eos\":true,\"stop_token_ids\":[5],\"max_tokens\":200"

static talk server;

static int open_server(void **state) {
  *state = talk_serve_tools(&server);
  return 0;
}

/* ---- answers ---- */

/* A call is of a declared function, and its arguments fit. */
static void check_call(const char *name, const char *arguments) {
  json_t *value = json_loads(arguments, 0, NULL), *schema = json_loads(SCHEMA, 0, NULL);
  if (!json_is_object(value)) fail_msg("the arguments '%s' are no object", arguments);
  if (strcmp(name, "find") == 0) {
    if (!schema_check(schema, schema, value)) fail_msg("'%s' does not fit", arguments);
  } else {
    assert_string_equal(name, "get_time");
    assert_int_equal(json_object_size(value), 0);
  }
  json_decref(value);
  json_decref(schema);
}

static void check_content(const char *content) {
  assert_null(strstr(content, "<tool_call"));
  assert_null(strstr(content, "</tool_call"));
}

/* The calls of a whole answer as "name arguments\n" each. */
static void read_whole(json_t *choice, weft_text *out) {
  json_t *calls = at(choice, "message.tool_calls");
  assert_string_equal(text_at(choice, "finish_reason"), "tool_calls");
  assert_true(json_is_null(at(choice, "message.content")));
  assert_true(json_array_size(calls) > 0);
  for (size_t i = 0; i < json_array_size(calls); i++) {
    json_t *call = json_array_get(calls, i);
    assert_string_equal(text_at(call, "type"), "function");
    assert_int_equal(strncmp(text_at(call, "id"), "call_", 5), 0);
    check_call(text_at(call, "function.name"), text_at(call, "function.arguments"));
    weft_text_printf(out, "%s %s\n", text_at(call, "function.name"), text_at(call, "function.arguments"));
  }
}

/* The same out of a stream: the name comes first and once, arguments in pieces, content never. How many pieces there
 * were beyond one for each call: a slow reader gets several at once, and what is written by diffusion comes canvas by
 * canvas. */
static size_t read_stream(const char *body, weft_text *out) {
  json_t *events = talk_stream(server.port, CHAT, body);
  size_t n = json_array_size(events), n_pieces = 0;
  json_int_t last = -1;
  const char *finish = NULL;
  for (size_t i = 0; i + 1 < n; i++) {
    json_t *choice = at(json_array_get(events, i), "data.choices.0"), *calls = at(choice, "delta.tool_calls");
    const char *content = json_string_value(at(choice, "delta.content"));
    if (content != NULL) assert_string_equal(content, "");
    if (json_is_string(at(choice, "finish_reason"))) finish = text_at(choice, "finish_reason");
    for (size_t k = 0; k < json_array_size(calls); k++) {
      json_t *call = json_array_get(calls, k);
      if (json_string_value(at(call, "function.name")) != NULL) {
        assert_int_equal(int_at(call, "index"), ++last);
        assert_non_null(json_string_value(at(call, "id")));
        assert_string_equal(text_at(call, "type"), "function");
        weft_text_printf(out, "%s%s ", last > 0 ? "\n" : "", text_at(call, "function.name"));
      }
      assert_int_equal(int_at(call, "index"), last);
      weft_text_puts(out, text_at(call, "function.arguments"));
      n_pieces += 1;
    }
  }
  weft_text_puts(out, "\n");
  assert_true(last >= 0 && n_pieces > (size_t)last);
  assert_non_null(finish);
  assert_string_equal(finish, "tool_calls");
  json_decref(events);
  return n_pieces - (size_t)last - 1;
}

static void calls_that_must_be(void **state) {
  static const struct {
    const char *model, *fields;
    bool one, find;
  } rows[] = {
      {JSON, TOOLS ",\"tool_choice\":\"required\"", false, false},
      {HERMES, TOOLS ",\"tool_choice\":\"required\"", false, false},
      {CANVAS, TOOLS ",\"tool_choice\":\"required\"", false, false},
      {CANVAS, TOOLS ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false", true, false},
      {CANVAS, TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"find\"}}", true, true},
      {JSON, TOOLS ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false", true, false},
      {HERMES, TOOLS ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false", true, false},
      {JSON, TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"find\"}}", true, true},
      {HERMES, TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"find\"}}", true, true},
  };
  (void)state;
  size_t n_more = 0;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    for (uint32_t seed = 1; seed <= test_amount(1, 2, 2); seed++) {
      weft_text body = {0}, whole = {0}, streamed = {0};
      weft_text_printf(&body, "{%s%s,%s,\"max_tokens\":200,\"temperature\":0.7,\"seed\":%u,\"stream\":false}",
                       rows[i].model, USER, rows[i].fields, seed);
      json_t *answer = talk_json(server.port, CHAT, body.bytes);
      read_whole(at(answer, "choices.0"), &whole);
      if (rows[i].one) assert_int_equal(json_array_size(at(answer, "choices.0.message.tool_calls")), 1);
      if (rows[i].find) assert_int_equal(strncmp(whole.bytes, "find ", 5), 0);
      json_decref(answer);
      body.n -= strlen("false}");
      weft_text_puts(&body, "true}");
      n_more += read_stream(body.bytes, &streamed);
      assert_string_equal(whole.bytes, streamed.bytes);
      weft_text_free(&body);
      weft_text_free(&whole);
      weft_text_free(&streamed);
    }
  }
  assert_true(n_more > 0);
}

/* Every choice has its own calls, with ids of their own. */
static void choices_call_for_themselves(void **state) {
  (void)state;
  json_t *answer = talk_json(server.port, CHAT,
                             "{" HERMES USER "," TOOLS
                             ",\"tool_choice\":\"required\",\"n\":3,\"max_tokens\":120,"
                             "\"parallel_tool_calls\":false,\"seed\":4}");
  weft_text text = {0};
  for (int i = 0; i < 3; i++) {
    char path[32];
    (void)snprintf(path, sizeof path, "choices.%d", i);
    read_whole(at(answer, path), &text);
  }
  assert_string_not_equal(text_at(answer, "choices.0.message.tool_calls.0.id"),
                          text_at(answer, "choices.1.message.tool_calls.0.id"));
  json_decref(answer);
  weft_text_free(&text);
}

/* Where the choice is the model's it answers in text; a strict tool is called as its schema says once the call
 * opens. */
static void the_model_decides(void **state) {
  (void)state;
  static const char *const bodies[] = {"{" HERMES USER "," TOOLS ",\"max_tokens\":20,\"temperature\":0}",
                                       "{" HERMES USER ",\"tools\":[" STRICT "],\"max_tokens\":20,\"temperature\":0}",
                                       "{" HERMES USER "," TOOLS
                                       ",\"max_tokens\":20,\"temperature\":0,\"tool_choice\":\"none\"}",
                                       "{" CANVAS USER "," TOOLS ",\"max_tokens\":32,\"seed\":1}",
                                       "{" CANVAS USER ",\"tools\":[" STRICT "],\"max_tokens\":32,\"seed\":1}"};
  for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
    json_t *answer = talk_json(server.port, CHAT, bodies[i]);
    assert_null(at(answer, "choices.0.message.tool_calls"));
    check_content(text_at(answer, "choices.0.message.content"));
    assert_string_not_equal(text_at(answer, "choices.0.finish_reason"), "tool_calls");
    json_decref(answer);
  }
  json_t *ids =
      talk_json(server.port, "/tokenize", "{\"model\":\"weft-demo\",\"prompt\":\"{\",\"add_special_tokens\":false}");
  weft_text body = {0}, text = {0};
  assert_int_equal(int_at(ids, "count"), 1);
  weft_text_printf(&body,
                   "{" JSON USER ",\"tools\":[" STRICT "," GET_TIME
                   "],\"parallel_tool_calls\":false,"
                   "\"max_tokens\":100,\"seed\":2,\"logit_bias\":{\"%d\":100}}",
                   (int)int_at(ids, "tokens.0"));
  json_t *answer = talk_json(server.port, CHAT, body.bytes);
  read_whole(at(answer, "choices.0"), &text);
  json_decref(answer);
  json_decref(ids);
  weft_text_free(&body);
  weft_text_free(&text);
}

/* A call that max_tokens cuts off is a call, its arguments are cut, and the end says length. A grammar never is. */
static void calls_that_are_cut(void **state) {
  (void)state;
  talk_answer a =
      talk_ask(server.port, "POST", CHAT, "{" HERMES USER "," TOOLS ",\"tool_choice\":\"required\",\"max_tokens\":4}");
  assert_int_equal(a.code, 400);
  assert_non_null(strstr(a.body.bytes, "raise max_tokens"));
  talk_answer_free(&a);
}

/* Forms that are no JSON are held in their own syntax: calls that must be, a strict tool in a free answer, several
 * calls, a format beside them, both ways of writing, and a call comes back in the history. */
static void forms_that_are_no_json(void **state) {
  const char *models[] = {DEMO_MODEL}, *templates[] = {WEFT_SOURCE_DIR "/tests/golden/chat/gemma4.jinja",
                                                       WEFT_SOURCE_DIR "/tests/golden/chat/tools-qwen.jinja",
                                                       WEFT_SOURCE_DIR "/tests/golden/chat/deepseek4.jinja"};
  static const struct {
    const char *fields;
    bool must;
  } rows[] = {
      {TOOLS ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false", true},
      {"\"tools\":[" STRICT "," GET_TIME "],\"tool_choice\":\"required\"", true},
      {"\"tools\":[" STRICT "],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"find\"}}", true},
      {"\"tools\":[" STRICT "," GET_TIME "]", false},
      {"\"tools\":[" STRICT "],\"response_format\":{\"type\":\"json_object\"}", false},
      {"\"tools\":[" STRICT "],\"thinking\":true", false},
      {"\"tools\":[" FIND "],\"thinking\":true,\"tool_choice\":\"required\"", true},
  };
  (void)state;
  for (size_t t = 0; t < 3; t++) {
    weft_open_options options = {.models = models,
                                 .n_models = 1,
                                 .context = 1024,
                                 .kv_bytes = 16 << 20,
                                 .chat_templates = &templates[t],
                                 .n_chat_templates = 1};
    talk own;
    (void)talk_serve(&own, NULL, options, (weft_server_options){0});
    /* each row both ways; the quick amount, and the last template: each row one way, in turn */
    for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
      if (test_amount(1, t == 2, 0) != 0 && (i / 2 + i + t) % 2 != 0) continue;
      weft_text body = {0};
      weft_text_printf(&body, "{\"mode\":\"%s\",\"max_tokens\":240,\"seed\":%zu," USER ",%s}",
                       i % 2 == 0 ? "autoregressive" : "diffusion", i, rows[i / 2].fields);
      json_t *answer = talk_json(own.port, CHAT, body.bytes);
      json_t *calls = at(answer, "choices.0.message.tool_calls");
      assert_true(!rows[i / 2].must || json_array_size(calls) > 0);
      for (size_t k = 0; k < json_array_size(calls); k++) { /* with more tokens there could be more of them */
        json_t *call = json_array_get(calls, k);
        check_call(text_at(call, "function.name"), text_at(call, "function.arguments"));
      }
      if (calls == NULL) check_content(text_at(answer, "choices.0.message.content"));
      json_decref(answer);
      weft_text_free(&body);
    }
    talk_close(&own);
  }
}

/* Where the marks of thinking are letters, the format begins behind them all the same, and where a template marks
 * none it is the answer. */
static void thinking_by_letters(void **state) {
  static const char *const files[] = {WEFT_SOURCE_DIR "/tests/golden/chat/tools-qwen.jinja",
                                      WEFT_SOURCE_DIR "/tests/golden/chat/tools-json.jinja"};
  const char *models[] = {DEMO_MODEL};
  (void)state;
  for (size_t t = 0; t < 2; t++) {
    weft_open_options options = {.models = models,
                                 .n_models = 1,
                                 .context = 1024,
                                 .kv_bytes = 16 << 20,
                                 .chat_templates = &files[t],
                                 .n_chat_templates = 1};
    talk own;
    (void)talk_serve(&own, NULL, options, (weft_server_options){0});
    for (uint32_t i = 0; i < 6; i += test_amount(5, 1, 1)) { /* quick: each field once, each way of writing once */
      weft_text body = {0};
      weft_text_printf(&body,
                       "{\"mode\":\"%s\",\"max_tokens\":200,\"seed\":%u," USER
                       ",%s,\"response_format\":{\"type\":"
                       "\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":" SCHEMA "}}}",
                       i % 2 == 0 ? "autoregressive" : "diffusion", i,
                       i < 4 ? "\"thinking\":true" : "\"reasoning_effort\":\"low\"");
      json_t *answer = talk_json(own.port, CHAT, body.bytes);
      check_call("find", text_at(answer, "choices.0.message.content"));
      json_decref(answer);
      weft_text_free(&body);
    }
    talk_close(&own);
  }
}

/* ---- prompts ---- */

/* The prompt of a body as text. */
static char *prompt_of(const char *fields) {
  weft_text body = {0};
  weft_text_printf(&body, "{%s}", fields);
  json_t *tokens = talk_json(server.port, "/tokenize", body.bytes);
  weft_text_clear(&body);
  char *ids = json_dumps(at(tokens, "tokens"), 0);
  weft_text_printf(&body, "{" HERMES "\"tokens\":%s}", ids);
  json_t *text = talk_json(server.port, "/detokenize", body.bytes);
  char *out = strdup(text_at(text, "prompt"));
  json_decref(tokens);
  json_decref(text);
  weft_text_free(&body);
  free(ids);
  return out;
}

static void prompts_hold_tools_and_calls(void **state) {
  (void)state;
  char *text =
      prompt_of(HERMES
                "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":null,"
                "\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"find\","
                "\"arguments\":\"{\\\"name\\\": \\\"Dan\\\", \\\"age\\\": 3}\"}}]},{\"role\":\"tool\","
                "\"tool_call_id\":\"c1\",\"content\":\"not found\"}]," TOOLS);
  assert_non_null(strstr(text,
                         "<|turn>system\n{\"type\": \"function\", \"function\": {\"name\": \"find\", \"description\": "
                         "\"Finds.\", \"parameters\": {\"type\": \"object\""));
  assert_non_null(strstr(text,
                         "<|turn>user\nHi<turn|>\n<|turn>model\n<tool_call>{\"name\": \"find\", \"arguments\": "
                         "{\"name\": \"Dan\", \"age\": 3}}</tool_call><turn|>\n<|turn>tool\nfind c1: not found"
                         "<turn|>\n<|turn>model\n"));
  free(text);
}

/* What a model said comes back in the history, also a call that max_tokens cut off, and one that is no JSON at all; and
 * what no parser holds is told as it was written. */
static void arguments_of_a_history_are_any_string(void **state) {
#define SAID(arguments)                                                                                            \
  HERMES                                                                                                           \
  "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\\u0000\\udc00\"},{\"role\":\"assistant\",\"content\":null,"   \
  "\"tool_calls\":["                                                                                               \
  "{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"find\",\"arguments\":\"" arguments                \
  "\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"ok\"}],\"tools\":[{\"type\":\"function\","      \
  "\"function\":{"                                                                                                 \
  "\"name\":\"find\",\"parameters\":{\"type\":\"object\",\"properties\":{\"n\":{\"maximum\":18446744073709551615," \
  "\"multipleOf\":0.1}}}}}]"
  static const char *const rows[][2] = {
      {SAID("{\\\"name\\\": \\\"Da"), "{\"name\": \"Da\"}"},
      {SAID("{\\\"a\\\":[1,"), "{\"a\": [1]}"},
      {SAID("{\\\"a\\\":18446744073709551616,\\\"b\\\":1e999}"), "{\"a\": 18446744073709551616, \"b\": 1e999}"},
      {SAID("{\\\"a\\\":\\\"\\\\u0000\\\\ud800\\\"}"), "{\"a\": \"\xEF\xBF\xBD\xEF\xBF\xBD\"}"},
      {SAID("oops"), "\"oops\""},
      {SAID("[1]"), "\"[1]\""},
      {SAID(""), "{}"}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_text want = {0};
    char *text = prompt_of(rows[i][0]);
    weft_text_printf(&want, "<tool_call>{\"name\": \"find\", \"arguments\": %s}</tool_call>", rows[i][1]);
    if (strstr(text, want.bytes) == NULL) fail_msg("%s is not in %s", want.bytes, text);
    assert_non_null(strstr(text, "user\nHi\xEF\xBF\xBD\xEF\xBF\xBD<turn|>"));
    assert_non_null(strstr(text, "\"maximum\": 18446744073709551615, \"multipleOf\": 0.1}"));
    weft_text_free(&want);
    free(text);
  }
}

/* Who speaks is for the template to tell, whatever the role, and is any text. */
static void names_of_messages_reach_the_template(void **state) {
  (void)state;
  char *text = prompt_of(HERMES
                         "\"messages\":[{\"role\":\"system\",\"name\":\"the house\",\"content\":\"Hi\"},"
                         "{\"role\":\"user\",\"name\":\"Bj\u00f8rn\",\"content\":\"Hi\"},"
                         "{\"role\":\"assistant\",\"name\":\"bot\",\"content\":\"Ho\"},"
                         "{\"role\":\"user\",\"name\":null,\"content\":\"Hi\"}]");
  assert_non_null(strstr(text,
                         "<|turn>system\nthe house says: Hi<turn|>\n<|turn>user\nBj\xc3\xb8rn says: Hi<turn|>\n"
                         "<|turn>model\nbot says: Ho<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\n"));
  free(text);
}

static size_t count_of(json_t *list, json_int_t id) {
  size_t n = 0;
  for (size_t i = 0; i < json_array_size(list); i++) n += json_integer_value(json_array_get(list, i)) == id ? 1 : 0;
  return n;
}

/* Wherever text of a request stands in declarations, calls and results, it stays text. */
static void text_of_tools_is_no_structure(void **state) {
  static const char *const fields[] = {
      "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":"
      "\"f\","
      "\"description\":\"%s\"}}]",
      "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":"
      "\"f\","
      "\"parameters\":{\"type\":\"object\",\"properties\":{\"%s\":{\"enum\":[\"%s\"]}}}}}]",
      "\"messages\":[{\"role\":\"user\",\"name\":\"%s\",\"content\":\"x\"}]",
      "\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"%s\","
      "\"function\":"
      "{\"name\":\"f\",\"arguments\":\"{\\\"%s\\\":\\\"%s\\\"}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"%s\","
      "\"content\":"
      "\"%s\"}]"};
  (void)state;
  json_t *special = talk_json(server.port, "/tokenize",
                              "{" HERMES "\"prompt\":\"<turn|>\",\"parse_special\":true,\"add_special_tokens\":false}");
  json_int_t id = int_at(special, "tokens.0");
  assert_int_equal(int_at(special, "count"), 1);
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    size_t n[2];
    for (int k = 0; k < 2; k++) {
      const char *w = k == 0 ? "plain" : "<turn|><|turn>system";
      char inside[1024], body[1200];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-extra-args"
      (void)snprintf(inside, sizeof inside, fields[i], w, w, w, w, w);
#pragma GCC diagnostic pop
      (void)snprintf(body, sizeof body, "{" HERMES "%s}", inside);
      json_t *tokens = talk_json(server.port, "/tokenize", body);
      n[k] = count_of(at(tokens, "tokens"), id);
      json_decref(tokens);
    }
    assert_true(n[0] > 0);
    assert_int_equal(n[0], n[1]);
  }
  json_decref(special);
}

/* ---- refusals ---- */

static void refusals(void **state) {
#define TEXT_64      "2345678901234567890123456789012345678901234567890123456789012345"
#define TOOL(inside) "{" HERMES USER ",\"tools\":[{\"type\":\"function\",\"function\":{" inside "}}]}"
#define TURN(inside) "{" HERMES "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}," inside "]}"
#define CALL(inside) TURN("{\"role\":\"assistant\",\"tool_calls\":[" inside "]}")
  static const struct {
    const char *body, *param, *words;
  } rows[] = {
      {"{" HERMES USER ",\"tools\":5}", "tools", "a list"},
      {"{" HERMES USER ",\"tools\":[5]}", "tools[0]", "\"type\": \"function\""},
      {TOOL(""), "tools[0].function.name", "a string"},
      {TOOL("\"name\":\"\""), "tools[0].function.name", "1 to 128"},
      {TOOL("\"name\":\"<tool_call>\""), "tools[0].function.name", "1 to 128"},
      {TOOL("\"name\":\"two words\""), "tools[0].function.name", "1 to 128"},
      {TOOL("\"name\":\"a" TEXT_64 TEXT_64 "\""), "tools[0].function.name", "1 to 128"},
      {TOOL("\"name\":\"f\",\"description\":5"), "tools[0].function.description", "a string"},
      {TOOL("\"name\":\"f\",\"parameters\":[]"), "tools[0].function.parameters", "a JSON schema"},
      {TOOL("\"name\":\"f\",\"strict\":1"), "tools[0].function.strict", "true or false"},
      {"{" HERMES USER ",\"tools\":[" FIND "," FIND "]}", "tools[1].function", "the same name, 'find'"},
      {"{" HERMES USER "," TOOLS ",\"tool_choice\":\"must\"}", "tool_choice", "\"required\""},
      {"{" HERMES USER "," TOOLS ",\"tool_choice\":{\"type\":\"x\"}}", "tool_choice.type", "must be"},
      {"{" HERMES USER "," TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"h\"}}}",
       "tool_choice.function.name", "'h', which is not among the tools"},
      {"{" HERMES USER "," TOOLS ",\"parallel_tool_calls\":1}", "parallel_tool_calls", "true or false"},
      {"{" HERMES USER "," TOOLS ",\"tool_choice\":\"required\",\"ignore_eos\":true,\"max_tokens\":200}", NULL,
       "ignore_eos"},
      {"{" HERMES USER "," TOOLS ",\"tool_choice\":\"required\"," IGNORE "}", NULL, "ignore_eos"},
      {"{" CANVAS USER "," TOOLS ",\"tool_choice\":\"required\"," IGNORE "}", NULL, "ignore_eos"},
      {"{" HERMES USER ",\"tools\":[" STRICT "]," IGNORE "}", NULL, "ignore_eos"},
      {"{" HERMES USER
       ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"not\":{}},\"strict\":true}}],"
       "\"tool_choice\":\"required\"}",
       NULL, "schema of f at #: what must not hold"},
      {CALL("5"), "messages[1].tool_calls[0]", "an object"},
      {CALL("{\"function\":{\"name\":\"\"}}"), "messages[1].tool_calls[0].function.name", "1 to 128"},
      {TURN("{\"role\":\"user\",\"content\":\"y\",\"tool_calls\":[{}]}"), "messages[1].tool_calls",
       "only the assistant"},
      {TURN("{\"role\":\"tool\",\"content\":\"y\",\"tool_call_id\":5}"), "messages[1].tool_call_id", "a string"},
      {TURN("{\"role\":\"tool\",\"content\":\"y\",\"name\":\"\"}"), "messages[1].name", "1 to 128"},
      {TURN("{\"role\":\"user\",\"content\":\"y\",\"name\":5}"), "messages[1].name", "a string"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    check_refusal(talk_ask(server.port, "POST", CHAT, rows[i].body), rows[i].body, 400, rows[i].param, rows[i].words);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(refusals),
      cmocka_unit_test(prompts_hold_tools_and_calls),
      cmocka_unit_test(arguments_of_a_history_are_any_string),
      cmocka_unit_test(names_of_messages_reach_the_template),
      cmocka_unit_test(calls_that_must_be),
      cmocka_unit_test(choices_call_for_themselves),
      cmocka_unit_test(the_model_decides),
      cmocka_unit_test(calls_that_are_cut),
      cmocka_unit_test(text_of_tools_is_no_structure),
      cmocka_unit_test(forms_that_are_no_json),
      cmocka_unit_test(thinking_by_letters),
  };
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
