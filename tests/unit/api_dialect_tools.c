/* SPDX-License-Identifier: MIT */
/* Tools in the dialects beside OpenAI's chat. What a body declares and what its history holds becomes the same request
 * as the chat body that says the same; calls of an answer look as each dialect has them, streamed or whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/dialects/anthropic.h"
#include "api/dialects/ollama.h"
#include "api/dialects/responses.h"
#include "base/memory.h"
#include "model/text/json_steps.h"

/* ---- requests ---- */

#define SCHEMA "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}}}"

static const char chat_body[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\"},"
    "{\"role\":\"assistant\",\"content\":\"b\",\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":{"
    "\"name\":\"get\",\"arguments\":\"{\\\"city\\\":\\\"Oslo\\\"}\"}},{\"id\":\"c2\",\"type\":\"function\","
    "\"function\":{\"name\":\"get\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":"
    "\"rain\"},{\"role\":\"tool\",\"tool_call_id\":\"c2\",\"content\":\"sun\"},{\"role\":\"user\",\"content\":\"d\"}],"
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"description\":\"weather\","
    "\"parameters\":" SCHEMA "}}]}";

static const char messages_body[] =
    "{\"max_tokens\":5,\"system\":\"s\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
    "\"content\":[{\"type\":\"text\",\"text\":\"b\"},{\"type\":\"tool_use\",\"id\":\"c1\",\"name\":\"get\",\"input\":{"
    "\"city\":\"Oslo\"}},{\"type\":\"tool_use\",\"id\":\"c2\",\"name\":\"get\",\"input\":{}}]},{\"role\":\"user\","
    "\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"c1\",\"content\":\"rain\"},{\"type\":\"tool_result\","
    "\"tool_use_id\":\"c2\",\"content\":[{\"type\":\"text\",\"text\":\"sun\"}],\"is_error\":false},"
    "{\"type\":\"text\",\"text\":\"d\"}]}],\"tools\":[{\"name\":\"get\",\"description\":\"weather\",\"input_"
    "schema\":" SCHEMA "}]}";

static const char ollama_body[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\"},{\"role\":"
    "\"assistant\",\"content\":\"b\",\"tool_calls\":[{\"id\":\"c1\",\"function\":{\"name\":\"get\",\"arguments\":{"
    "\"city\":\"Oslo\"}}},{\"id\":\"c2\",\"function\":{\"name\":\"get\",\"arguments\":{}}}]},{\"role\":\"tool\","
    "\"tool_call_id\":\"c1\",\"content\":\"rain\"},{\"role\":\"tool\",\"tool_call_id\":\"c2\",\"content\":\"sun\"},"
    "{\"role\":\"user\",\"content\":\"d\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get\","
    "\"description\":\"weather\",\"parameters\":" SCHEMA "}}]}";

static const char responses_body[] =
    "{\"instructions\":\"s\",\"input\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":[{"
    "\"type\":\"output_text\",\"text\":\"b\"}]},{\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"get\","
    "\"arguments\":\"{\\\"city\\\":\\\"Oslo\\\"}\"},{\"type\":\"function_call\",\"call_id\":\"c2\",\"name\":\"get\","
    "\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"rain\"},{\"type\":"
    "\"function_call_output\",\"call_id\":\"c2\",\"output\":\"sun\"},{\"role\":\"user\",\"content\":\"d\"}],\"tools\":["
    "{\"type\":\"function\",\"name\":\"get\",\"description\":\"weather\",\"parameters\":" SCHEMA "}]}";

static void parse(weft_parser parser, const char *body, weft_gen *gen) {
  const weft_body_rules limits = {.json = weft_json_limits(8192)};
  weft_refusal why;
  if (parser(body, strlen(body), &limits, gen, &why) != WEFT_OK) fail_msg("%s: %s", body, why.message);
}

static void check_same(const char *a, const char *b) {
  assert_true((a == NULL) == (b == NULL));
  if (a != NULL) assert_string_equal(a, b);
}

static void check_same_prompt(const weft_prompt *a, const weft_prompt *b) {
  assert_int_equal(a->n_turns, b->n_turns);
  for (uint32_t i = 0; i < a->n_turns; i++) {
    const weft_chat_turn *t = &a->turns[i], *u = &b->turns[i];
    check_same(t->role, u->role);
    check_same(t->content, u->content);
    check_same(t->call_id, u->call_id);
    assert_int_equal(t->n_calls, u->n_calls);
    for (uint32_t k = 0; k < t->n_calls; k++) {
      check_same(t->calls[k].id, u->calls[k].id);
      check_same(t->calls[k].name, u->calls[k].name);
      check_same(t->calls[k].arguments, u->calls[k].arguments);
    }
  }
  assert_int_equal(a->n_tools, b->n_tools);
  for (uint32_t i = 0; i < a->n_tools; i++) {
    check_same(a->tools[i].name, b->tools[i].name);
    check_same(a->tools[i].description, b->tools[i].description);
    check_same(a->tools[i].parameters, b->tools[i].parameters);
    assert_int_equal(a->tools[i].strict, b->tools[i].strict);
  }
}

static void same_request_in_every_dialect(void **state) {
  static const struct {
    weft_parser parser;
    const char *body;
  } rows[] = {{weft_anthropic_parse, messages_body},
              {weft_ollama_parse_chat, ollama_body},
              {weft_responses_parse, responses_body}};
  weft_gen chat;
  (void)state;
  parse(weft_openai_parse_chat, chat_body, &chat);
  assert_int_equal(chat.prompt->n_turns, 6);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_gen gen;
    parse(rows[i].parser, rows[i].body, &gen);
    check_same_prompt(gen.prompt, chat.prompt);
    weft_gen_close(&gen);
  }
  weft_gen_close(&chat);
}

#define TOOLS "\"tools\":[{\"name\":\"f\",\"input_schema\":{}},{\"name\":\"get\",\"input_schema\":{}}]"
#define HI    "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"

static void what_must_be_called(void **state) {
  static const struct {
    const char *choice;
    weft_tool_choice kind;
    bool one;
  } rows[] = {{"{\"type\":\"auto\"}", WEFT_TOOLS_AUTO, false},
              {"{\"type\":\"none\"}", WEFT_TOOLS_NONE, false},
              {"{\"type\":\"any\",\"disable_parallel_tool_use\":true}", WEFT_TOOLS_REQUIRED, true},
              {"{\"type\":\"tool\",\"name\":\"get\"}", WEFT_TOOLS_NAMED, false}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_text body = {0};
    weft_gen gen;
    weft_text_printf(&body, HI TOOLS ",\"tool_choice\":%s}", rows[i].choice);
    parse(weft_anthropic_parse, body.bytes, &gen);
    assert_int_equal(gen.params.tool_choice, rows[i].kind);
    assert_int_equal(gen.params.one_call, rows[i].one);
    if (rows[i].kind == WEFT_TOOLS_NAMED) assert_int_equal(gen.params.named_tool, 1);
    weft_gen_close(&gen);
    weft_text_free(&body);
  }
}

static void what_is_refused(void **state) {
  static const struct {
    weft_parser parser;
    const char *body, *param;
  } rows[] = {
      {weft_anthropic_parse, HI "\"tools\":[{\"name\":\"a b\",\"input_schema\":{}}]}", "tools[0].name"},
      {weft_anthropic_parse, HI "\"tools\":[{\"name\":\"f\"}]}", "tools[0]"},
      {weft_anthropic_parse,
       HI "\"tools\":[{\"name\":\"f\",\"input_schema\":{}},{\"name\":\"f\",\"input_schema\":{}}]}", "tools[1]"},
      {weft_anthropic_parse, HI "\"tools\":5}", "tools"},
      {weft_anthropic_parse, HI "\"tools\":[{\"name\":\"f\",\"input_schema\":{},\"strict\":1}]}", "tools[0]"},
      {weft_anthropic_parse, HI TOOLS ",\"tool_choice\":{\"type\":\"any\",\"disable_parallel_tool_use\":1}}",
       "disable_parallel_tool_use"},
      {weft_anthropic_parse, HI "\"tool_choice\":{\"type\":\"any\"}}", "tool_choice"},
      {weft_anthropic_parse, HI TOOLS ",\"tool_choice\":{\"type\":\"tool\",\"name\":\"nobody\"}}", "tool_choice.name"},
      {weft_anthropic_parse,
       "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_use\",\"id\":\"x\",\"name\":"
       "\"f\","
       "\"input\":{}}]}]}",
       "messages[0].content[0]"},
      {weft_anthropic_parse,
       "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"content\":\"x\"}]}]"
       "}",
       "messages[0].content[0]"},
      {weft_ollama_parse_chat,
       "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]}]}",
       "tool_calls"},
      {weft_ollama_parse_chat, "{\"messages\":[{\"role\":\"tool\",\"tool_name\":5,\"content\":\"x\"}]}",
       "messages[0].tool_name"},
      {weft_ollama_parse_chat, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"thinking\":5}]}",
       "messages[0].thinking"},
      {weft_ollama_parse_chat, "{\"messages\":[{\"role\":\"tool\",\"tool_call_id\":5,\"content\":\"x\"}]}",
       "messages[0].tool_call_id"},
      {weft_responses_parse,
       "{\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"tool_choice\":{\"type\":\"function\","
       "\"name\":\"g\"}}",
       "tool_choice.name"},
      {weft_responses_parse, "{\"input\":\"a\",\"tools\":[{\"type\":\"web_search\"}],\"tool_choice\":\"required\"}",
       "tool_choice"},
      {weft_responses_parse, "{\"input\":[{\"type\":\"function_call\",\"name\":\"f\",\"arguments\":\"{}\"}]}",
       "input[0]"},
      {weft_responses_parse, "{\"input\":\"a\",\"tool_choice\":\"required\"}", "tool_choice"}};
  const weft_body_rules limits = {.json = weft_json_limits(8192)};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_gen gen;
    weft_refusal why = {0};
    if (rows[i].parser(rows[i].body, strlen(rows[i].body), &limits, &gen, &why) == WEFT_OK) {
      fail_msg("%s was not refused", rows[i].body);
    }
    assert_int_equal(why.http, 400);
    if (strcmp(why.param, rows[i].param) != 0) fail_msg("%s: %s, not %s", rows[i].body, why.param, rows[i].param);
  }
}

/* Arguments of calls come back as deep as they are read from answers, and no deeper: each dialect names the call. */
static void deep_arguments(void **state) {
  static const struct {
    weft_parser parser;
    const char *before, *after, *param;
    bool text;
  } rows[] = {
      {weft_openai_parse_chat,
       "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":["
       "{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":",
       "}}]}]}", "messages[1].tool_calls[0].function.arguments", true},
      {weft_anthropic_parse,
       "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":[{"
       "\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\",\"input\":",
       "}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"1\",\"content\":\"x\"}]}]}",
       "messages[1].content[0]", false},
      {weft_ollama_parse_chat,
       "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{"
       "\"function\":{\"name\":\"f\",\"arguments\":",
       "}}]}]}", "messages[1].tool_calls[0].function", false},
      {weft_responses_parse,
       "{\"input\":[{\"role\":\"user\",\"content\":\"a\"},{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\","
       "\"arguments\":",
       "},{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":\"x\"}]}", "input[1]", true},
  };
  const weft_body_rules limits = {.json = weft_json_limits(8192)};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    for (uint32_t depth = WEFT_JSON_DEPTH; depth <= WEFT_JSON_DEPTH + 1; depth++) {
      weft_gen gen;
      weft_refusal why = {0};
      weft_text body = {0};
      weft_text_printf(&body, "%s%s", rows[i].before, rows[i].text ? "\"" : "");
      for (uint32_t k = 0; k < depth; k++) weft_text_puts(&body, rows[i].text ? "{\\\"a\\\":" : "{\"a\":");
      weft_text_puts(&body, "1");
      for (uint32_t k = 0; k < depth; k++) weft_text_puts(&body, "}");
      weft_text_printf(&body, "%s%s", rows[i].text ? "\"" : "", rows[i].after);
      weft_status status = rows[i].parser(body.bytes, body.n, &limits, &gen, &why);
      if (depth == WEFT_JSON_DEPTH) {
        if (status != WEFT_OK) fail_msg("row %zu: %s", i, why.message);
        weft_gen_close(&gen);
      } else {
        assert_int_not_equal(status, WEFT_OK);
        assert_string_equal(why.code, "invalid_value");
        if (strcmp(why.param, rows[i].param) != 0) fail_msg("row %zu: %s", i, why.param);
      }
      weft_text_free(&body);
    }
  }
}

/* The memory for the calls of a turn grows by doubling, so a body with many calls costs no more than they are. */
static void many_calls_of_a_turn(void **state) {
  enum { N = 128 };
  weft_text body = {0};
  weft_gen gen;
  (void)state;
  weft_text_puts(&body, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[");
  for (int i = 0; i < N; i++) {
    weft_text_printf(&body, "%s{\"id\":\"c%d\",\"function\":{\"name\":\"f%d\"}}", i == 0 ? "" : ",", i, i);
  }
  weft_text_puts(&body, "]}]}");
  (void)weft_memory_fail_at(0);
  parse(weft_ollama_parse_chat, body.bytes, &gen);
  assert_in_range(weft_memory_fail_at(0), 1, 32);
  assert_int_equal(gen.prompt->turns[0].n_calls, N);
  for (int i = 0; i < N; i++) {
    char id[8];
    (void)snprintf(id, sizeof id, "c%d", i);
    assert_string_equal(gen.prompt->turns[0].calls[i].id, id);
    assert_string_equal(gen.prompt->turns[0].calls[i].name + 1, id + 1);
  }
  weft_gen_close(&gen);
  weft_text_free(&body);
}

/* ---- answers ---- */

enum { OWN_BYTES = 4096 }; /* more than any dialect keeps */

typedef struct answer_kit {
  weft_choice choice;
  weft_answer_call call[2];
  weft_answer answer;
  weft_text out;
} answer_kit;

static char answer_id[] = "resp_x";

static void open_kit(answer_kit *k, const weft_dialect *dialect) {
  static const char *const ids[] = {"c1", "c2"}, *const names[] = {"get", "put"};
  *k = (answer_kit){.choice = {.finish = NULL}};
  for (int i = 0; i < 2; i++) {
    (void)strcpy(k->call[i].id, ids[i]);
    weft_text_puts(&k->call[i].name, names[i]);
  }
  k->choice.call = k->call;
  static const weft_generate_params asked = {.max_tokens = 1};
  k->answer = (weft_answer){.dialect = dialect,
                            .asked = &asked,
                            .id = answer_id,
                            .model = "m",
                            .choice = &k->choice,
                            .n = 1,
                            .wanted.n_choices = 1,
                            .own = weft_alloc(1, OWN_BYTES)};
}

static void close_kit(answer_kit *k) {
  for (int i = 0; i < 2; i++) {
    weft_text_free(&k->call[i].name);
    weft_text_free(&k->call[i].arguments);
  }
  weft_text_free(&k->choice.text);
  weft_text_free(&k->choice.thinking);
  weft_text_free(&k->choice.logprobs[0]);
  weft_text_free(&k->out);
  k->answer.dialect->close(k->answer.own);
}

/* All that was written, formatted a little at a time. */
static void read_pieces(answer_kit *k, weft_pieces *pieces) {
  for (int64_t work = 1; !weft_pieces_read(pieces, &k->out, &work);) work = 1;
  weft_pieces_free(pieces);
}

/* One chunk, after which everything counts as sent. */
static void send(answer_kit *k, const char *finish) {
  weft_pieces pieces = {.copies = true};
  k->choice.finish = finish;
  k->answer.dialect->chunk(&k->answer, &k->choice, finish, &pieces);
  read_pieces(k, &pieces);
  weft_text_clear(&k->choice.text);
  for (uint32_t i = 0; i < k->choice.n_calls; i++) {
    k->call[i].begun = true;
    weft_text_clear(&k->call[i].arguments);
  }
}

/* The last chunk, and what the dialect writes behind it. */
static void send_last(answer_kit *k) {
  send(k, "tool_calls");
  weft_pieces pieces = {.copies = true};
  k->answer.dialect->last(&k->answer, &pieces);
  read_pieces(k, &pieces);
}

/* get({"city":"Oslo"}) in two pieces; the second ends the call and has the text behind it, as pieces of many tokens do. */
static void stream_first_call(answer_kit *k, const char *text_behind) {
  k->choice.n_calls = 1;
  weft_text_puts(&k->call[0].arguments, "{\"city\":");
  send(k, NULL);
  weft_text_puts(&k->call[0].arguments, "\"Oslo\"}");
  weft_text_puts(&k->choice.text, text_behind);
  k->call[0].whole = true;
  send(k, NULL);
}

/* "hm", then get({"city":"Oslo"}), then put({}). */
static void streamed(answer_kit *k) {
  weft_text_puts(&k->choice.text, "hm");
  send(k, NULL);
  stream_first_call(k, "");
  k->choice.n_calls = 2;
  weft_text_puts(&k->call[1].arguments, "{}");
  k->call[1].whole = true;
  send(k, NULL);
  send_last(k);
}

/* What is made of the choice in one piece. */
static void make_whole(answer_kit *k, const char *finish) {
  k->choice.finish = finish;
  if (k->answer.dialect->whole_by_chunks) send(k, finish);
  weft_pieces pieces = {.copies = false};
  weft_text_clear(&k->out);
  k->answer.dialect->whole(&k->answer, &pieces);
  read_pieces(k, &pieces);
}

static void whole(answer_kit *k) {
  weft_text_puts(&k->choice.text, "hm");
  k->choice.n_calls = 2;
  weft_text_puts(&k->call[0].arguments, "{\"city\":\"Oslo\"}");
  weft_text_puts(&k->call[1].arguments, "{}");
  k->call[0].whole = k->call[1].whole = true;
  make_whole(k, "tool_calls");
}

static void check_says(const answer_kit *k, const char *words) {
  if (strstr(k->out.bytes, words) == NULL) fail_msg("'%s' is not in %s", words, k->out.bytes);
}

static void calls_of_anthropic(void **state) {
  answer_kit k;
  (void)state;
  open_kit(&k, &weft_anthropic);
  streamed(&k);
  check_says(&k, "\"index\":1,\"content_block\":{\"type\":\"tool_use\",\"id\":\"c1\",\"name\":\"get\",\"input\":{}}}");
  check_says(&k, "\"index\":1,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"city\\\":\"}");
  check_says(&k, "\"index\":2,\"content_block\":{\"type\":\"tool_use\",\"id\":\"c2\",\"name\":\"put\",\"input\":{}}}");
  check_says(&k, "{\"type\":\"content_block_stop\",\"index\":2}");
  check_says(&k, "\"stop_reason\":\"tool_use\"");
  close_kit(&k);
  open_kit(&k, &weft_anthropic);
  whole(&k);
  json_t *root = json_loads(k.out.bytes, 0, NULL), *content = json_object_get(root, "content");
  assert_int_equal(json_array_size(content), 3);
  json_t *input = json_object_get(json_array_get(content, 1), "input");
  assert_string_equal(json_string_value(json_object_get(input, "city")), "Oslo");
  json_decref(root);
  close_kit(&k);
}

/* A call is given at once when it is whole; a piece of it makes no line. */
static void calls_of_ollama(void **state) {
  static const char first[] =
      "\"tool_calls\":[{\"id\":\"c1\",\"function\":{\"index\":0,\"name\":\"get\",\"arguments\":{"
      "\"city\":\"Oslo\"}}}]";
  answer_kit k;
  int n_lines = 0;
  (void)state;
  open_kit(&k, &weft_ollama_chat);
  streamed(&k);
  for (const char *c = k.out.bytes; *c != 0; c++) n_lines += *c == '\n';
  assert_int_equal(n_lines, 4); /* the text, two calls, the end */
  check_says(&k, first);
  check_says(&k, "\"index\":1,\"name\":\"put\",\"arguments\":{}}");
  check_says(&k, "\"done_reason\":\"stop\"");
  close_kit(&k);
  open_kit(&k, &weft_ollama_chat);
  whole(&k);
  json_t *root = json_loads(k.out.bytes, 0, NULL);
  assert_int_equal(json_array_size(json_object_get(json_object_get(root, "message"), "tool_calls")), 2);
  json_decref(root);
  close_kit(&k);
}

/* The last event holds what the whole response has. */
static void calls_of_responses(void **state) {
  answer_kit k;
  (void)state;
  open_kit(&k, &weft_openai_responses);
  streamed(&k);
  check_says(&k, "response.function_call_arguments.delta");
  check_says(&k, "\"arguments\":\"{\\\"city\\\":\\\"Oslo\\\"}\",\"call_id\":\"c1\",\"name\":\"get\"}");
  const char *last = strstr(k.out.bytes, "event: response.completed\ndata: ");
  assert_non_null(last);
  json_t *event = json_loads(strstr(last, "data: ") + 6, JSON_DISABLE_EOF_CHECK, NULL);
  json_t *made = json_incref(json_object_get(json_object_get(event, "response"), "output"));
  json_decref(event);
  close_kit(&k);
  open_kit(&k, &weft_openai_responses);
  whole(&k);
  json_t *root = json_loads(k.out.bytes, 0, NULL), *output = json_object_get(root, "output");
  assert_int_equal(json_array_size(output), 3);
  assert_true(json_equal(output, made));
  json_t *call = json_array_get(output, 1);
  assert_string_equal(json_string_value(json_object_get(call, "type")), "function_call");
  assert_string_equal(json_string_value(json_object_get(call, "arguments")), "{\"city\":\"Oslo\"}");
  json_decref(root);
  json_decref(made);
  close_kit(&k);
}

static void streamed_with_text_behind(answer_kit *k) {
  stream_first_call(k, "hm");
  send_last(k);
}

static void text_behind_a_call_is_no_part_of_it(void **state) {
  answer_kit k;
  (void)state;
  open_kit(&k, &weft_anthropic);
  streamed_with_text_behind(&k);
  check_says(&k, "\"index\":0,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"\\\"Oslo\\\"}\"}");
  check_says(&k, "\"index\":1,\"delta\":{\"type\":\"text_delta\",\"text\":\"hm\"}");
  close_kit(&k);
  open_kit(&k, &weft_openai_responses);
  streamed_with_text_behind(&k);
  check_says(&k, "\"arguments\":\"{\\\"city\\\":\\\"Oslo\\\"}\",\"call_id\":\"c1\",\"name\":\"get\"}");
  check_says(&k, "{\"type\":\"output_text\",\"text\":\"hm\"");
  close_kit(&k);
}

/* A call that breaks off in the midst of an answer takes nothing of the next one with it. */
static void a_broken_call_hides_no_other(void **state) {
  answer_kit k;
  (void)state;
  open_kit(&k, &weft_ollama_chat);
  k.choice.n_calls = 1;
  weft_text_puts(&k.call[0].arguments, "{\"city\":oops");
  send(&k, NULL);
  k.choice.n_calls = 2;
  weft_text_puts(&k.call[1].arguments, "{}");
  k.call[1].whole = true;
  send(&k, NULL);
  check_says(&k, "[{\"id\":\"c2\",\"function\":{\"index\":0,\"name\":\"put\",\"arguments\":{}}}]");
  close_kit(&k);
}

/* Only the item in which an answer was cut off is incomplete, streamed or whole. */
static void what_was_cut_off(void **state) {
  answer_kit k;
  (void)state;
  open_kit(&k, &weft_openai_responses);
  weft_text_puts(&k.choice.thinking, "so");
  weft_text_puts(&k.choice.text, "hm");
  k.choice.n_calls = 1;
  weft_text_puts(&k.call[0].arguments, "{\"ci");
  make_whole(&k, "length");
  json_t *root = json_loads(k.out.bytes, 0, NULL), *output = json_object_get(root, "output");
  static const char *const states[] = {"completed", "completed", "incomplete"};
  assert_int_equal(json_array_size(output), 3);
  for (size_t i = 0; i < 3; i++) {
    assert_string_equal(json_string_value(json_object_get(json_array_get(output, i), "status")), states[i]);
  }
  json_decref(root);
  close_kit(&k);
}

/* Logprobs of the tokens of a call neither end it nor make a message. */
static void logprobs_of_a_call(void **state) {
  answer_kit k;
  (void)state;
  open_kit(&k, &weft_openai_responses);
  k.choice.reader = (void *)&k; /* calls are read; the dialect asks no more than that */
  static const char *const pieces[] = {"", "{\"city\":", "\"Oslo\"}"};
  for (size_t i = 0; i < 3; i++) {
    k.choice.n_calls = i > 0;
    k.choice.n_logprobs = 1;
    weft_text_puts(&k.choice.logprobs[0], "{}");
    weft_text_puts(&k.call[0].arguments, pieces[i]);
    send(&k, NULL);
    weft_text_clear(&k.choice.logprobs[0]);
    k.choice.n_logprobs = 0;
  }
  send_last(&k);
  assert_null(strstr(k.out.bytes, "output_text"));
  check_says(&k, "\"arguments\":\"{\\\"city\\\":\\\"Oslo\\\"}\",\"call_id\":\"c1\",\"name\":\"get\"}");
  close_kit(&k);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(same_request_in_every_dialect),
                                     cmocka_unit_test(what_must_be_called),
                                     cmocka_unit_test(what_is_refused),
                                     cmocka_unit_test(deep_arguments),
                                     cmocka_unit_test(many_calls_of_a_turn),
                                     cmocka_unit_test(calls_of_anthropic),
                                     cmocka_unit_test(calls_of_ollama),
                                     cmocka_unit_test(calls_of_responses),
                                     cmocka_unit_test(text_behind_a_call_is_no_part_of_it),
                                     cmocka_unit_test(a_broken_call_hides_no_other),
                                     cmocka_unit_test(what_was_cut_off),
                                     cmocka_unit_test(logprobs_of_a_call)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
