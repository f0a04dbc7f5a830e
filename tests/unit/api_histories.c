/* SPDX-License-Identifier: MIT */
/* Histories as clients keep them, in every dialect: what a tool gave and what the model said before ends no
 * conversation, whatever it holds. Each row is what a turn's text is made of, and the text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "api/dialects/anthropic.h"
#include "api/dialects/ollama.h"
#include "api/dialects/responses.h"
#include "base/log.h"

#define IMAGE "[an image: this model reads only text]\n"
#define FILES "[a file: this model reads only text]\n"
#define SOUND "[a sound: this model reads only text]\n"
#define DATA  "\"data:image/png;base64,aGkhaGkhaGkh\""

typedef struct row {
  const char *given, *text;
  const char *thinking; /* of the turn; NULL: none */
  bool whole;           /* nothing was passed over: it is read with strict fields, too */
} row;

/* The last turn but n_behind of a body made of one row. */
static void check_rows(weft_parser parser, const char *head, const row *rows, size_t n, const char *tail,
                       uint32_t n_behind, const char *role) {
  for (size_t i = 0; i < n; i++) {
    weft_text body = {0};
    weft_gen gen;
    weft_refusal why = {0};
    weft_text_puts(&body, head);
    weft_text_puts(&body, rows[i].given);
    weft_text_puts(&body, tail);
    weft_body_rules rules = {.json = weft_json_limits(8192)};
    if (parser(body.bytes, body.n, &rules, &gen, &why) != WEFT_OK) fail_msg("%s: %s", body.bytes, why.message);
    const weft_chat_turn *turn = &gen.prompt->turns[gen.prompt->n_turns - 1 - n_behind];
    if (strcmp(turn->role, role) != 0) fail_msg("%s: the turn is the %s's", body.bytes, turn->role);
    if (strcmp(turn->content, rows[i].text) != 0) fail_msg("%s: '%s'", body.bytes, turn->content);
    if (rows[i].thinking != NULL) assert_string_equal(turn->thinking, rows[i].thinking);
    weft_gen_close(&gen);
    rules.strict_fields = true;
    bool read = parser(body.bytes, body.n, &rules, &gen, &why) == WEFT_OK;
    if (read) weft_gen_close(&gen);
    if (read != rows[i].whole) fail_msg("%s: with strict fields it is %s", body.bytes, read ? "read" : why.message);
    weft_text_free(&body);
  }
}
#define CHECK_ROWS(parser, head, rows, tail, behind, role) \
  check_rows(parser, head, rows, sizeof(rows) / sizeof *(rows), tail, behind, role)

static void refuse_each(weft_parser parser, const char *head, const char *const *given, size_t n, const char *tail) {
  for (size_t i = 0; i < n; i++) {
    weft_text body = {0};
    weft_gen gen;
    weft_refusal why = {0};
    const weft_body_rules rules = {.json = weft_json_limits(8192)};
    weft_text_printf(&body, "%s%s%s", head, given[i], tail);
    if (parser(body.bytes, body.n, &rules, &gen, &why) == WEFT_OK) fail_msg("%s was read", body.bytes);
    assert_int_equal(why.http, 400);
    weft_text_free(&body);
  }
}
#define REFUSE_EACH(parser, head, given, tail) refuse_each(parser, head, given, sizeof(given) / sizeof *(given), tail)

/* ---- OpenAI's chat ---- */

#define CHAT_CALL                                                                                         \
  "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":" \
  "\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},"

static void results_of_chat(void **state) {
  static const row rows[] = {
      {"\"x\"", "x", NULL, true},
      {"[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"text\",\"text\":\"y\"}]", "xy", NULL, true},
      {"[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"image_url\",\"image_url\":{\"url\":" DATA "}}]", "x" IMAGE,
       NULL, false},
      {"[{\"type\":\"image_url\",\"image_url\":{\"url\":\"http://a/b.png\"}}]",
       "[an image (http://a/b.png): this model reads only text]\n", NULL, false},
      {"[{\"type\":\"input_audio\",\"input_audio\":{\"data\":\"aGk=\",\"format\":\"wav\"}}]", SOUND, NULL, false},
      {"[{\"type\":\"file\",\"file\":{\"filename\":\"a.pdf\",\"file_data\":" DATA "}}]",
       "[a file (a.pdf): this model reads only text]\n", NULL, false},
      {"[{\"type\":\"input_text\",\"text\":\"x\"},\"y\",null]", "xy", NULL, true},
      {"[{\"type\":\"resource\",\"resource\":{\"uri\":\"file:///a\",\"text\":\"x\"}}]",
       "{\"type\":\"resource\",\"resource\":{\"uri\":\"file:///a\",\"text\":\"x\"}}\n", NULL, true},
      {"[{\"type\":\"resource\",\"resource\":{\"uri\":\"a\",\"mimeType\":\"a/b\",\"blob\":\"aGk=\"}}]",
       "{\"type\":\"resource\",\"resource\":{\"uri\":\"a\",\"mimeType\":\"a/b\",\"blob\":\"[not text]\"}}\n", NULL,
       false},
      {"{\"ok\":true,\"n\":[1,18446744073709551616]}", "{\"ok\":true,\"n\":[1,18446744073709551616]}", NULL, true},
      {"{\"picture\":" DATA "}", "{\"picture\":\"[not text]\"}", NULL, false},
      {"3", "3", NULL, true},
      {"true", "true", NULL, true},
      {"null", "", NULL, true},
      {"[]", "", NULL, true},
      {"[1,2]", "[1,2]", NULL, true},
      {"\"x\",\"images\":[{\"type\":\"image_url\"}]", "x\n" IMAGE, NULL, false}};
  (void)state;
  CHECK_ROWS(weft_openai_parse_chat, CHAT_CALL "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":", rows, "}]}", 0,
             "tool");
  CHECK_ROWS(weft_openai_parse_chat, CHAT_CALL "{\"role\":\"function\",\"name\":\"f\",\"content\":", rows, "}]}", 0,
             "tool");
}

static void answers_of_chat(void **state) {
  static const row rows[] = {
      {"\"content\":[{\"type\":\"refusal\",\"refusal\":\"no\"}]", "no", NULL, true},
      {"\"content\":[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"refusal\",\"refusal\":\"no\"}]", "xno", NULL, true},
      {"\"content\":null,\"refusal\":\"no\"", "no", NULL, true},
      {"\"content\":[{\"type\":\"thinking\",\"thinking\":[{\"type\":\"text\",\"text\":\"h\"},{\"type\":\"text\","
       "\"text\":"
       "\"m\"}]},{\"type\":\"text\",\"text\":\"x\"}]",
       "x", "hm", true},
      {"\"content\":[{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"s\"},{\"type\":\"text\",\"text\":\"x\"}"
       "]",
       "x", "hm", true},
      {"\"content\":[{\"type\":\"reasoning\",\"text\":\"hm\"},{\"type\":\"output_text\",\"text\":\"x\"}]", "x", "hm",
       true},
      {"\"reasoning_content\":\"a\",\"content\":[{\"type\":\"reasoning\",\"text\":\"hm\"}]", "", "a", true},
      {"\"content\":[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"reference\",\"reference_ids\":[1]}]", "x", NULL,
       false},
      {"\"content\":[{\"type\":\"redacted_thinking\",\"data\":\"aGk=\"},{\"type\":\"text\",\"text\":\"x\"}]", "x", NULL,
       false},
      {"\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":" DATA "}}]", IMAGE, NULL, false},
      {"\"content\":\"x\",\"images\":[{\"type\":\"image_url\",\"image_url\":{\"url\":" DATA "}}]", "x\n" IMAGE, NULL,
       false},
      {"\"content\":null,\"audio\":{\"id\":\"audio_1\"}", SOUND, NULL, false},
      {"\"content\":null,\"audio\":{\"id\":\"a\",\"data\":\"aGk=\",\"transcript\":\"hey\"}", "hey", NULL, true},
      {"\"content\":\"x\",\"audio\":null", "x", NULL, true},
      {"\"content\":[]", "", NULL, true},
      {"\"content\":null,\"function_call\":{\"name\":\"f\",\"arguments\":\"{}\"}", "", NULL, true},
      {"\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"a.b\",\"arguments\":[1]}}]", "", NULL,
       true}};
  static const char *const shown[] = {"{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}",
                                      "{\"type\":\"file\",\"file\":{\"file_id\":\"x\"}}", "{\"type\":\"weather\"}",
                                      "3"};
  (void)state;
  CHECK_ROWS(weft_openai_parse_chat, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",",
             rows, "},{\"role\":\"user\",\"content\":\"b\"}]}", 1, "assistant");
  REFUSE_EACH(weft_openai_parse_chat, "{\"messages\":[{\"role\":\"user\",\"content\":[", shown, "]}]}");
}

/* ---- Anthropic's messages ---- */

#define USE                                                                                                      \
  "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":[{" \
  "\"type\":"                                                                                                    \
  "\"tool_use\",\"id\":\"1\",\"name\":\"f\",\"input\":{}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_"   \
  "result\","                                                                                                    \
  "\"tool_use_id\":\"1\",\"content\":"

static void results_of_messages(void **state) {
  static const row rows[] = {
      {"[{\"type\":\"document\",\"title\":\"t\",\"source\":{\"type\":\"url\",\"url\":\"http://a/b.pdf\"}}]",
       "[a document (t, http://a/b.pdf): this model reads only text]\n", NULL, false},
      {"[{\"type\":\"document\",\"source\":{\"type\":\"file\",\"file_id\":\"f1\"}}]",
       "[a document (f1): this model reads only text]\n", NULL, false},
      {"[{\"type\":\"document\",\"source\":{\"type\":\"base64\",\"media_type\":\"application/"
       "pdf\",\"data\":\"aGk=\"}}]",
       "[a document: this model reads only text]\n", NULL, false},
      {"[{\"type\":\"document\",\"source\":{\"type\":\"content\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},{"
       "\"type\":"
       "\"image\",\"source\":{\"type\":\"base64\",\"data\":\"aGk=\"}}]}}]",
       "x" IMAGE, NULL, false},
      {"[{\"type\":\"search_result\",\"source\":\"s\",\"title\":\"t\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}],"
       "\"citations\":null}]",
       "t\ns\nx", NULL, true},
      {"[{\"type\":\"search_result\",\"source\":\"s\",\"title\":\"t\"}]",
       "{\"type\":\"search_result\",\"source\":\"s\",\"title\":\"t\"}\n", NULL, true},
      {"[{\"type\":\"web_search_result\",\"url\":\"u\",\"title\":\"t\",\"encrypted_content\":\"aGk=\"}]",
       "{\"type\":\"web_search_result\",\"url\":\"u\",\"title\":\"t\",\"encrypted_content\":\"[not text]\"}\n", NULL,
       false},
      {"[{\"type\":\"image\",\"source\":{\"type\":\"url\",\"url\":\"http://a\"}},{\"type\":\"text\",\"text\":\"x\"}]",
       "[an image (http://a): this model reads only text]\nx", NULL, false},
      {"[{\"type\":\"weather_block\",\"temp\":3}]", "{\"type\":\"weather_block\",\"temp\":3}\n", NULL, true},
      {"[{\"type\":\"audio\",\"data\":\"aGk=\",\"mimeType\":\"audio/wav\"}]", SOUND, NULL, false},
      {"[{\"type\":\"container_upload\",\"file_id\":\"f\"}]", "[a file (f): this model reads only text]\n", NULL,
       false},
      {"[{\"type\":\"text\",\"text\":\"x\"},\"y\"]", "xy", NULL, true},
      {"{\"a\":1}", "{\"a\":1}", NULL, true},
      {"3", "3", NULL, true},
      {"null", "", NULL, true},
      {"[]", "", NULL, true}};
  (void)state;
  CHECK_ROWS(weft_anthropic_parse, USE, rows, "}]}]}", 0, "tool");
}

static void answers_of_messages(void **state) {
  static const row rows[] = {
      {"{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"compaction\",\"content\":null}", "x", NULL, true},
      {"{\"type\":\"compaction\",\"content\":\"sum\"}", "sum", NULL, true},
      {"{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"s\"},{\"type\":\"text\",\"text\":\"x\"}", "x", "hm",
       true},
      {"{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"container_upload\",\"file_id\":\"f\"}",
       "x[a file (f): this model reads only text]\n", NULL, false},
      {"{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"image\",\"source\":{\"type\":\"base64\",\"data\":\"aGk=\"}}",
       "x" IMAGE, NULL, false},
      {"{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"fallback\",\"from\":{\"model\":\"a\"}}", "x", NULL, false},
      {"{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\"}", "", NULL, true},
      {"{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\",\"input\":null}", "", NULL, true},
      {"{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\",\"input\":\"{\\\"a\\\":\"}", "", NULL, true},
      {"{\"type\":\"mcp_tool_use\",\"id\":\"1\",\"name\":\"a.b/c\",\"server_name\":\"s\",\"input\":{}}", "", NULL,
       true}};
  static const row results[] = {
      {"{\"type\":\"web_search_tool_result\",\"tool_use_id\":\"1\",\"content\":[{\"type\":\"web_search_result\","
       "\"url\":\"u\","
       "\"encrypted_content\":\"aGk=\"}]}",
       "{\"type\":\"web_search_result\",\"url\":\"u\",\"encrypted_content\":\"[not text]\"}\n", NULL, false},
      {"{\"type\":\"web_search_tool_result\",\"tool_use_id\":\"1\",\"content\":{\"type\":\"web_search_tool_result_"
       "error\","
       "\"error_code\":\"e\"}}",
       "{\"type\":\"web_search_tool_result_error\",\"error_code\":\"e\"}\n", NULL, true},
      {"{\"type\":\"web_fetch_tool_result\",\"tool_use_id\":\"1\",\"content\":{\"type\":\"web_fetch_result\","
       "\"content\":{"
       "\"type\":\"document\",\"source\":{\"type\":\"base64\",\"media_type\":\"application/pdf\",\"data\":\"aGk=\"}}}}",
       "{\"type\":\"web_fetch_result\",\"content\":{\"type\":\"document\",\"source\":{\"type\":\"base64\",\"media_"
       "type\":"
       "\"application/pdf\",\"data\":\"[not text]\"}}}\n",
       NULL, false},
      {"{\"type\":\"code_execution_tool_result\",\"tool_use_id\":\"1\",\"content\":{\"type\":\"code_execution_result\","
       "\"stdout\":\"x\",\"return_code\":0}}",
       "{\"type\":\"code_execution_result\",\"stdout\":\"x\",\"return_code\":0}\n", NULL, true},
      {"{\"type\":\"mcp_tool_result\",\"tool_use_id\":\"1\",\"is_error\":false,\"content\":[{\"type\":\"text\","
       "\"text\":"
       "\"x\"}]}",
       "x", NULL, true},
      {"{\"type\":\"mcp_tool_result\",\"tool_use_id\":\"1\",\"content\":\"x\"}", "x", NULL, true}};
  static const char *const shown[] = {
      "{\"type\":\"image\",\"source\":{\"type\":\"url\",\"url\":\"x\"}}",
      "{\"type\":\"document\",\"source\":{\"type\":\"url\",\"url\":\"x\"}}",
      "{\"type\":\"document\",\"source\":{\"type\":\"content\",\"content\":[{\"type\":\"image\"}]}}",
      "{\"type\":\"container_upload\",\"file_id\":\"x\"}",
      "{\"type\":\"weather\"}",
      "{\"type\":\"compaction\",\"content\":null,\"encrypted_content\":\"aGk=\"}"};
#define SAID \
  "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":["
#define GO "]},{\"role\":\"user\",\"content\":\"b\"}]}"
  (void)state;
  CHECK_ROWS(weft_anthropic_parse, SAID, rows, GO, 1, "assistant");
  CHECK_ROWS(weft_anthropic_parse, SAID "{\"type\":\"server_tool_use\",\"id\":\"1\",\"name\":\"g\",\"input\":{}},",
             results, GO, 1, "tool");
  REFUSE_EACH(weft_anthropic_parse, "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":[", shown, "]}]}");
}

/* ---- OpenAI's responses ---- */

static void results_of_responses(void **state) {
  static const row rows[] = {
      {"[{\"type\":\"input_text\",\"text\":\"x\"},{\"type\":\"input_image\",\"image_url\":" DATA "}]", "x" IMAGE, NULL,
       false},
      {"[{\"type\":\"input_image\",\"image_url\":\"http://a\"}]", "[an image (http://a): this model reads only text]\n",
       NULL, false},
      {"[{\"type\":\"input_file\",\"filename\":\"a.pdf\",\"file_data\":" DATA "}]",
       "[a file (a.pdf): this model reads only text]\n", NULL, false},
      {"{\"type\":\"computer_screenshot\",\"image_url\":" DATA "}", IMAGE, NULL, false},
      {"[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"weather\",\"t\":3}]", "x{\"type\":\"weather\",\"t\":3}\n", NULL,
       true},
      {"[{\"type\":\"refusal\",\"refusal\":\"no\"}]", "no", NULL, true},
      {"[{\"stdout\":\"x\",\"stderr\":\"\"}]", "[{\"stdout\":\"x\",\"stderr\":\"\"}]", NULL, true},
      {"{\"ok\":1}", "{\"ok\":1}", NULL, true},
      {"null", "", NULL, true},
      {"[]", "", NULL, true}};
  (void)state;
  CHECK_ROWS(
      weft_responses_parse,
      "{\"input\":[{\"role\":\"user\",\"content\":\"a\"},{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\","
      "\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":",
      rows, "}]}", 0, "tool");
}

/* Items that are a result, or become one. */
static void items_of_responses(void **state) {
  static const row results[] = {
      {"{\"type\":\"local_shell_call_output\",\"id\":\"1\",\"output\":\"x\"}", "x", NULL, true},
      {"{\"type\":\"shell_call_output\",\"call_id\":\"1\",\"output\":[{\"stdout\":\"x\"}]}", "[{\"stdout\":\"x\"}]",
       NULL, true},
      {"{\"type\":\"apply_patch_call_output\",\"call_id\":\"1\",\"status\":\"failed\"}", "failed", NULL, true},
      {"{\"type\":\"computer_call_output\",\"call_id\":\"1\",\"output\":{\"type\":\"computer_screenshot\",\"image_"
       "url\":" DATA "}}",
       IMAGE, NULL, false},
      {"{\"type\":\"image_generation_call\",\"id\":\"1\",\"status\":\"completed\",\"result\":\"aGkhaGkh\"}", IMAGE,
       NULL, false},
      {"{\"type\":\"code_interpreter_call\",\"id\":\"1\",\"code\":\"1\",\"container_id\":\"c\",\"outputs\":[{\"type\":"
       "\"logs\","
       "\"logs\":\"x\"},{\"type\":\"image\",\"url\":" DATA "}]}",
       "{\"type\":\"logs\",\"logs\":\"x\"}\n" IMAGE, NULL, false},
      {"{\"type\":\"mcp_call\",\"id\":\"1\",\"server_label\":\"s\",\"name\":\"a.b\",\"arguments\":\"{}\",\"output\":"
       "\"x\"}",
       "x", NULL, true},
      {"{\"type\":\"custom_tool_call_output\",\"call_id\":\"1\",\"output\":[{\"type\":\"input_image\",\"image_url\":"
       "\"u\"}]}",
       "[an image (u): this model reads only text]\n", NULL, false},
      {"{\"type\":\"function_call_output\",\"id\":\"1\",\"output\":\"x\"}", "x", NULL, true}};
  static const row answers[] = {
      {"{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_image\",\"image_url\":" DATA "}]}",
       IMAGE, NULL, false},
      {"{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_audio\",\"transcript\":\"hey\"}]}",
       "hey", NULL, true},
      {"{\"type\":\"message\",\"role\":\"assistant\",\"content\":null}", "", NULL, true},
      {"{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":\"no\"}]}", "no",
       NULL, true},
      {"{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"weather\"},{\"type\":\"output_text\","
       "\"text\":"
       "\"x\",\"annotations\":[]}]}",
       "x", NULL, false},
      {"{\"type\":\"function_call\",\"id\":\"1\",\"name\":\"f\",\"arguments\":null}", "", NULL, true},
      {"{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"a.b\"}", "", NULL, true}};
  static const row says[] = {
      {"{\"type\":\"agent_message\",\"id\":\"1\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}", "x", NULL, true},
      {"{\"type\":\"compaction_trigger\"}", "a", NULL, false},
      {"{\"type\":\"mcp_approval_response\",\"approval_request_id\":\"1\",\"approve\":true}", "a", NULL, false}};
  static const char *const unknown[] = {
      "{\"type\":\"compaction\",\"encrypted_content\":\"aGk=\"}", "{\"type\":\"item_reference\",\"id\":\"1\"}",
      "{\"type\":\"weather\",\"t\":3}",
      "{\"role\":\"user\",\"content\":[{\"type\":\"input_image\",\"image_url\":\"u\"}]}",
      "{\"role\":\"user\",\"content\":null}"};
#define ITEMS "{\"input\":[{\"role\":\"user\",\"content\":\"a\"},"
  (void)state;
  CHECK_ROWS(weft_responses_parse, ITEMS, results, "]}", 0, "tool");
  CHECK_ROWS(weft_responses_parse, ITEMS, answers, ",{\"role\":\"user\",\"content\":\"b\"}]}", 1, "assistant");
  CHECK_ROWS(weft_responses_parse, ITEMS, says, "]}", 0, "user");
  REFUSE_EACH(weft_responses_parse, ITEMS, unknown, "]}");
}

/* ---- Ollama ---- */

static void histories_of_ollama(void **state) {
  static const row results[] = {{"\"x\",\"images\":[\"aGk=\"]", "x\n" IMAGE, NULL, false},
                                {"{\"a\":1}", "{\"a\":1}", NULL, true},
                                {"null", "", NULL, true},
                                {"[{\"type\":\"text\",\"text\":\"x\"}]", "x", NULL, true}};
  static const row answers[] = {
      {"\"content\":\"x\",\"images\":[\"aGk=\"]", "x\n" IMAGE, NULL, false},
      {"\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":\"}}]", "", NULL, true},
      {"\"content\":null,\"images\":null,\"tool_calls\":[{\"function\":{\"name\":\"a.b\",\"arguments\":[1]}}]", "",
       NULL, true}};
  static const char *const shown[] = {"\"images\":[\"aGk=\"]", "\"images\":\"aGk=\""};
#define OLLAMA "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\""
  (void)state;
  CHECK_ROWS(weft_ollama_parse_chat, OLLAMA "tool\",\"content\":", results, "}]}", 0, "tool");
  CHECK_ROWS(weft_ollama_parse_chat, OLLAMA "assistant\",", answers, "},{\"role\":\"user\",\"content\":\"b\"}]}", 1,
             "assistant");
  REFUSE_EACH(weft_ollama_parse_chat, OLLAMA "user\",\"content\":\"x\",", shown, "}]}");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(results_of_chat),      cmocka_unit_test(answers_of_chat),
                                     cmocka_unit_test(results_of_messages),  cmocka_unit_test(answers_of_messages),
                                     cmocka_unit_test(results_of_responses), cmocka_unit_test(items_of_responses),
                                     cmocka_unit_test(histories_of_ollama)};
  weft_log_set_level((weft_log_level)-1);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
