/* SPDX-License-Identifier: MIT */
/* What agents send beyond plain messages and functions, read for what it means: groups of tools, tools of free text and
 * tools that are shown later, blocks and items of all kinds in histories and results. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "api/dialects/anthropic.h"
#include "api/dialects/ollama.h"
#include "api/dialects/responses.h"

#define NAME_128                                                                                                       \
  "a234567890123456789012345678901234567890123456789012345678901234a2345678901234567890123456789012345678901234567890" \
  "12345678901234"

static void parse(weft_parser parser, const char *body, weft_gen *gen) {
  const weft_body_rules rules = {.json = weft_json_limits(8192)};
  weft_refusal why;
  if (parser(body, strlen(body), &rules, gen, &why) != WEFT_OK) fail_msg("%s: %s", body, why.message);
}

static void refuse(weft_parser parser, const char *body, const char *param) {
  const weft_body_rules rules = {.json = weft_json_limits(8192)};
  weft_refusal why = {0};
  weft_gen gen;
  if (parser(body, strlen(body), &rules, &gen, &why) == WEFT_OK) fail_msg("%s was read", body);
  if (strcmp(why.param, param) != 0) fail_msg("%s: %s, not %s", body, why.param, param);
}

static void check_turn(const weft_gen *gen, uint32_t i, const char *role, const char *content) {
  assert_true(i < gen->prompt->n_turns);
  assert_string_equal(gen->prompt->turns[i].role, role);
  assert_string_equal(gen->prompt->turns[i].content, content);
}

static void check_call(const weft_gen *gen, uint32_t turn, uint32_t i, const char *name, const char *arguments) {
  assert_true(i < gen->prompt->turns[turn].n_calls);
  assert_string_equal(gen->prompt->turns[turn].calls[i].name, name);
  assert_string_equal(gen->prompt->turns[turn].calls[i].arguments, arguments);
}

/* ---- Anthropic ---- */

#define MESSAGES "{\"max_tokens\":5,\"messages\":["
#define USER     "{\"role\":\"user\",\"content\":\"a\"}"
#define RESULT(blocks)                                                                                             \
  MESSAGES USER                                                                                                    \
      ",{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\",\"input\":{}}]},{" \
      "\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"1\",\"content\":[" blocks "]}]}]}"

static void results_of_other_kinds(void **state) {
  static const struct {
    const char *blocks, *content;
  } rows[] = {
      {"{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"text\",\"text\":\"y\"}", "xy"},
      {"{\"type\":\"image\",\"source\":{\"type\":\"base64\",\"media_type\":\"image/png\",\"data\":\"\"}}",
       "[an image: this model reads only text]\n"},
      {"{\"type\":\"tool_reference\",\"tool_name\":\"g\"}", "The tool g can be called from now on.\n"},
      {"{\"type\":\"document\",\"title\":\"t\",\"source\":{\"type\":\"text\",\"media_type\":\"text/"
       "plain\",\"data\":\"d\"}}",
       "t\nd\n"},
      {"{\"type\":\"search_result\",\"source\":\"s\",\"title\":\"t\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}",
       "t\ns\nx"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_text body = {0};
    weft_gen gen;
    weft_text_printf(&body, RESULT("%s"), rows[i].blocks);
    parse(weft_anthropic_parse, body.bytes, &gen);
    check_turn(&gen, 2, "tool", rows[i].content);
    weft_gen_close(&gen);
    weft_text_free(&body);
  }
  /* what a person shows is refused: an answer without it would be about something else */
  refuse(weft_anthropic_parse,
         MESSAGES "{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"type\":\"base64\"}}]}]}",
         "messages[0].content[0]");
}

static void system_messages_among_others(void **state) {
  weft_gen gen;
  (void)state;
  parse(weft_anthropic_parse,
        "{\"max_tokens\":5,\"system\":\"s\",\"messages\":[" USER
        ",{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"t\"}]},{\"role\":\"system\",\"content\":"
        "\"u\"}," USER "]}",
        &gen);
  assert_int_equal(gen.prompt->n_turns, 5);
  check_turn(&gen, 0, "system", "s");
  check_turn(&gen, 2, "system", "t");
  check_turn(&gen, 3, "system", "u");
  weft_gen_close(&gen);
}

/* What tools of Anthropic's servers called and gave stands within an answer, and what was said after it. */
static void what_servers_did(void **state) {
  weft_gen gen;
  (void)state;
  parse(weft_anthropic_parse,
        MESSAGES USER
        ",{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"b\"},{\"type\":\"server_tool_use\","
        "\"id\":\"1\",\"name\":\"web_search\",\"input\":{\"query\":\"q\"}},{\"type\":\"web_search_tool_result\","
        "\"tool_use_id\":\"1\",\"content\":[{\"type\":\"web_search_result\",\"url\":\"u\"}]},{\"type\":\"text\","
        "\"text\":\"c\"}]}," USER "]}",
        &gen);
  assert_int_equal(gen.prompt->n_turns, 5);
  check_turn(&gen, 1, "assistant", "b");
  check_call(&gen, 1, 0, "web_search", "{\"query\":\"q\"}");
  check_turn(&gen, 2, "tool", "{\"type\":\"web_search_result\",\"url\":\"u\"}\n");
  check_turn(&gen, 3, "assistant", "c");
  weft_gen_close(&gen);
}

static void check_tools(const weft_gen *gen, const char *const *names, uint32_t n) {
  assert_int_equal(gen->prompt->n_tools, n);
  for (uint32_t i = 0; i < n; i++) assert_string_equal(gen->prompt->tools[i].name, names[i]);
}

#define LATER "{\"name\":\"late\",\"input_schema\":{},\"defer_loading\":true}"
#define NOW   "{\"name\":\"now\",\"input_schema\":{}}"
#define TOOLS "],\"tools\":["

static void tools_that_are_shown_later(void **state) {
  static const char *const both[] = {"now", "late"};
  static const char points[] =
      "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"1\",\"content\":[{\"type\":"
      "\"tool_reference\",\"tool_name\":\"late\"}]}]}";
  static const char called[] =
      "{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"late\",\"input\":{}}]}"
      "," USER;
  const struct {
    const char *message, *more;
    uint32_t n;
  } rows[] = {{USER, "", 1},
              {points, "", 2},
              {called, "", 2},
              {USER, ",{\"type\":\"tool_search_tool_regex_20251119\",\"name\":\"s\"}", 2}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_text body = {0};
    weft_gen gen;
    weft_text_printf(&body, MESSAGES "%s" TOOLS NOW "," LATER "%s]}", rows[i].message, rows[i].more);
    parse(weft_anthropic_parse, body.bytes, &gen);
    check_tools(&gen, both, rows[i].n);
    weft_gen_close(&gen);
    weft_text_free(&body);
  }
}

static void tools_of_other_types(void **state) {
  static const char *const names[] = {NAME_128, "bash", "edit"};
  weft_gen gen;
  (void)state;
  parse(weft_anthropic_parse,
        MESSAGES USER TOOLS
        "{\"type\":\"web_search_20250305\",\"name\":\"web_search\"},{\"type\":\"custom\",\"name\":\"" NAME_128
        "\",\"input_schema\":{}},{\"type\":\"bash_20250124\",\"name\":\"bash\"},{\"type\":"
        "\"text_editor_20250728\",\"name\":\"edit\"}],\"tool_choice\":{\"type\":\"tool\",\"name\":\"bash\"}}",
        &gen);
  check_tools(&gen, names, 3);
  assert_non_null(strstr(gen.prompt->tools[1].parameters, "\"command\""));
  assert_int_equal(gen.params.named_tool, 1);
  weft_gen_close(&gen);
  refuse(weft_anthropic_parse, MESSAGES USER TOOLS "{\"name\":\"" NAME_128 "x\",\"input_schema\":{}}]}",
         "tools[0].name");
  refuse(weft_anthropic_parse,
         MESSAGES USER TOOLS NOW
         ",{\"type\":\"web_search_20250305\",\"name\":\"w\"}],\"tool_choice\":{\"type\":\"tool\",\"name\":\"w\"}}",
         "tool_choice.name");
}

/* ---- responses ---- */

#define GROUP(name, tools) "{\"type\":\"namespace\",\"name\":\"" name "\",\"description\":\"D\",\"tools\":[" tools "]}"
#define FUNCTION(name)     "{\"type\":\"function\",\"name\":\"" name "\",\"description\":\"e\",\"parameters\":{}}"

#define CALL_OF_G \
  "{\"type\":\"function_call\",\"call_id\":\"1\",\"namespace\":\"g\",\"name\":\"f\",\"arguments\":\"{}\"}"
#define RESULT_OF_G "{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":\"x\"}"
#define CHOOSE_H    "{\"type\":\"function\",\"namespace\":\"h__\",\"name\":\"f\"}"

static void grouped_tools(void **state) {
  static const char *const names[] = {"g__f", "h__f", "f"}, *const groups[] = {"g", "h__", NULL};
  static const char tools[] = GROUP("g", FUNCTION("f")) "," GROUP("h__", FUNCTION("f")) "," FUNCTION("f");
  weft_text body = {0};
  weft_gen gen;
  (void)state;
  weft_text_printf(&body, "{\"input\":[%s,%s],\"tools\":[%s],\"tool_choice\":%s}", CALL_OF_G, RESULT_OF_G, tools,
                   CHOOSE_H);
  parse(weft_responses_parse, body.bytes, &gen);
  check_tools(&gen, names, 3);
  for (uint32_t i = 0; i < 3; i++) {
    assert_string_equal(gen.tool[i].name, "f");
    assert_true((gen.tool[i].group == NULL) == (groups[i] == NULL));
    if (groups[i] != NULL) assert_string_equal(gen.tool[i].group, groups[i]);
  }
  assert_string_equal(gen.prompt->tools[0].description, "g: D\ne");
  assert_int_equal(gen.params.named_tool, 1);
  check_call(&gen, 0, 0, "g__f", "{}");
  weft_gen_close(&gen);
  weft_text_free(&body);
}

static void long_groups(void **state) {
  weft_gen gen;
  (void)state;
  parse(weft_responses_parse,
        "{\"input\":\"a\",\"tools\":[" GROUP("mcp.server/" NAME_128, FUNCTION("one") "," FUNCTION("two")) "]}", &gen);
  assert_int_equal(gen.prompt->n_tools, 2);
  for (uint32_t i = 0; i < 2; i++) {
    assert_int_equal(strlen(gen.prompt->tools[i].name), 128);
    assert_null(strpbrk(gen.prompt->tools[i].name, "./"));
  }
  assert_string_not_equal(gen.prompt->tools[0].name, gen.prompt->tools[1].name);
  weft_gen_close(&gen);
}

static void tools_of_free_text(void **state) {
  weft_gen gen;
  (void)state;
  parse(weft_responses_parse,
        "{\"input\":[{\"type\":\"custom_tool_call\",\"call_id\":\"1\",\"name\":\"patch\",\"input\":\"a "
        "\\\"b\\\"\\n\"},{\"type\":"
        "\"custom_tool_call_output\",\"call_id\":\"1\",\"output\":\"done\"}],\"tools\":[{\"type\":\"custom\",\"name\":"
        "\"patch\","
        "\"description\":\"P\",\"format\":{\"type\":\"grammar\",\"syntax\":\"lark\",\"definition\":\"start: "
        "X\"}},{\"type\":"
        "\"local_shell\"}],\"tool_choice\":{\"type\":\"custom\",\"name\":\"patch\"}}",
        &gen);
  assert_int_equal(gen.prompt->n_tools, 1);
  assert_int_equal(gen.tool[0].kind, WEFT_TOOL_TEXT);
  assert_non_null(strstr(gen.prompt->tools[0].description, "start: X"));
  assert_non_null(strstr(gen.prompt->tools[0].parameters, "\"input\":{\"type\":\"string\"}"));
  assert_int_equal(gen.params.tool_choice, WEFT_TOOLS_NAMED);
  check_call(&gen, 0, 0, "patch", "{\"input\":\"a \\\"b\\\"\\n\"}");
  check_turn(&gen, 1, "tool", "done");
  weft_gen_close(&gen);
}

static void items_of_every_kind(void **state) {
  static const char body[] =
      "{\"input\":[{\"role\":\"user\",\"content\":\"a\"},"
      "{\"type\":\"web_search_call\",\"id\":\"ws\",\"status\":\"completed\",\"action\":{\"type\":\"search\",\"query\":"
      "\"q\"}},"
      "{\"type\":\"local_shell_call\",\"call_id\":\"1\",\"status\":\"completed\",\"action\":{\"type\":\"exec\","
      "\"command\":[\"ls\"]}},"
      "{\"type\":\"local_shell_call_output\",\"call_id\":\"1\",\"output\":\"a.c\"},"
      "{\"type\":\"mcp_call\",\"id\":\"m\",\"server_label\":\"s\",\"name\":\"find\",\"arguments\":\"{}\",\"output\":"
      "\"found\"},"
      "{\"type\":\"mcp_list_tools\",\"id\":\"l\",\"server_label\":\"s\",\"tools\":[]},{\"type\":\"ghost_snapshot\","
      "\"x\":1},"
      "{\"type\":\"function_call\",\"call_id\":\"2\",\"name\":\"f\",\"arguments\":\"{\"},"
      "{\"type\":\"function_call_output\",\"call_id\":\"2\",\"output\":[{\"type\":\"input_text\",\"text\":\"x\"},{"
      "\"type\":"
      "\"input_image\",\"image_url\":\"u\"}]},"
      "{\"type\":\"tool_search_call\",\"call_id\":\"3\",\"execution\":\"client\",\"arguments\":{\"q\":1}},"
      "{\"type\":\"tool_search_output\",\"call_id\":\"3\",\"tools\":[{\"type\":\"function\",\"name\":\"late\","
      "\"parameters\":{}}]}],"
      "\"tools\":[{\"type\":\"tool_search\",\"execution\":\"client\",\"parameters\":{\"type\":\"object\"}}]}";
  static const char *const names[] = {"tool_search", "late"};
  weft_gen gen;
  (void)state;
  parse(weft_responses_parse, body, &gen);
  check_turn(&gen, 0, "user", "a");
  check_call(&gen, 1, 0, "web_search", "{\"action\":{\"type\":\"search\",\"query\":\"q\"}}");
  check_call(&gen, 1, 1, "local_shell", "{\"action\":{\"type\":\"exec\",\"command\":[\"ls\"]}}");
  check_turn(&gen, 2, "tool", "a.c");
  check_call(&gen, 3, 0, "find", "{}");
  check_turn(&gen, 4, "tool", "found");
  check_call(&gen, 5, 0, "f", "{");
  check_turn(&gen, 6, "tool", "x[an image (u): this model reads only text]\n");
  check_call(&gen, 7, 0, "tool_search", "{\"q\":1}");
  assert_string_equal(gen.prompt->turns[8].role, "tool");
  assert_non_null(strstr(gen.prompt->turns[8].content, "late"));
  assert_int_equal(gen.prompt->n_turns, 9);
  check_tools(&gen, names, 2);
  assert_int_equal(gen.tool[0].kind, WEFT_TOOL_SEARCH);
  weft_gen_close(&gen);
  refuse(weft_responses_parse, "{\"input\":[{\"type\":\"compaction\",\"encrypted_content\":\"x\"}]}", "input[0]");
  refuse(weft_responses_parse, "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]}",
         "input[0].content[0]");
}

/* ---- what several dialects have ---- */

static void what_may_be_called(void **state) {
  static const char *const names[] = {"b", "a"};
  weft_gen gen;
  (void)state;
  parse(weft_openai_parse_chat,
        "{\"messages\":[" USER
        "],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\"}},{\"type\":\"function\",\"function\":{"
        "\"name\":\"b\"}}],\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"required\","
        "\"tools\":[{\"type\":"
        "\"function\",\"function\":{\"name\":\"b\"}}]}}}",
        &gen);
  check_tools(&gen, names, 1);
  assert_int_equal(gen.params.tool_choice, WEFT_TOOLS_REQUIRED);
  weft_gen_close(&gen);
  parse(weft_openai_parse_chat,
        "{\"messages\":[" USER
        "],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\"}}],\"tool_choice\":\"any\"}",
        &gen);
  assert_int_equal(gen.params.tool_choice, WEFT_TOOLS_REQUIRED);
  weft_gen_close(&gen);
}

static void no_limit(void **state) {
  static const struct {
    weft_parser parser;
    const char *body;
  } rows[] = {{weft_openai_parse_chat, "{\"max_tokens\":-1,\"messages\":[" USER "]}"},
              {weft_openai_parse_chat, "{\"max_tokens\":5,\"max_completion_tokens\":-1,\"messages\":[" USER "]}"},
              {weft_openai_parse_chat, "{\"n_predict\":-1,\"messages\":[" USER "]}"},
              {weft_openai_parse_completions, "{\"max_tokens\":-1,\"prompt\":\"a\"}"},
              {weft_responses_parse, "{\"max_output_tokens\":-1,\"input\":\"a\"}"},
              {weft_ollama_parse_chat, "{\"options\":{\"num_predict\":-1},\"messages\":[" USER "]}"}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_gen gen;
    parse(rows[i].parser, rows[i].body, &gen);
    assert_int_equal(gen.params.max_tokens, UINT32_MAX);
    weft_gen_close(&gen);
  }
  refuse(weft_openai_parse_chat, "{\"max_tokens\":-2,\"messages\":[" USER "]}", "max_tokens");
}

static void effort_in_every_dialect(void **state) {
  static const struct {
    weft_parser parser;
    const char *body;
  } rows[] = {{weft_openai_parse_chat, "{\"reasoning_effort\":\"low\",\"messages\":[" USER "]}"},
              {weft_openai_parse_chat, "{\"reasoning\":{\"effort\":\"low\"},\"messages\":[" USER "]}"},
              {weft_openai_parse_chat,
               "{\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{\"a\":1},\"messages\":[" USER "]}"},
              {weft_responses_parse, "{\"reasoning\":{\"effort\":\"low\"},\"input\":\"a\"}"},
              {weft_ollama_parse_chat, "{\"think\":\"low\",\"messages\":[" USER "]}"}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_gen gen;
    parse(rows[i].parser, rows[i].body, &gen);
    assert_true(gen.may_think);
    assert_non_null(strstr(gen.prompt->variables, "\"reasoning_effort\":\"low\""));
    weft_gen_close(&gen);
  }
}

static void ollama_s_own(void **state) {
  weft_gen gen;
  (void)state;
  parse(
      weft_ollama_parse_chat,
      "{\"options\":{\"repeat_penalty\":1.5,\"repeat_last_n\":64,\"mode\":\"autoregressive\",\"mirostat\":2,\"new\":1},"
      "\"messages\":[{\"role\":\"tool\",\"content\":\"x\",\"name\":\"f\"},{\"role\":\"user\",\"name\":\"Ann\","
      "\"content\":\"y\"}]}",
      &gen);
  assert_true(gen.params.sampling.repetition_penalty == 1.5f);
  assert_int_equal(gen.params.sampling.penalty_window, 64);
  assert_int_equal(gen.params.mode, WEFT_MODE_AUTOREGRESSIVE);
  assert_string_equal(gen.prompt->turns[0].name, "f");
  assert_string_equal(gen.prompt->turns[1].name, "Ann");
  weft_gen_close(&gen);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(results_of_other_kinds),
                                     cmocka_unit_test(system_messages_among_others),
                                     cmocka_unit_test(what_servers_did),
                                     cmocka_unit_test(tools_that_are_shown_later),
                                     cmocka_unit_test(tools_of_other_types),
                                     cmocka_unit_test(grouped_tools),
                                     cmocka_unit_test(long_groups),
                                     cmocka_unit_test(tools_of_free_text),
                                     cmocka_unit_test(items_of_every_kind),
                                     cmocka_unit_test(what_may_be_called),
                                     cmocka_unit_test(no_limit),
                                     cmocka_unit_test(effort_in_every_dialect),
                                     cmocka_unit_test(ollama_s_own)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
