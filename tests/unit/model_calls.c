/* SPDX-License-Identifier: MIT */
/* Calls in the text of answers: every form, however the text is cut, and what is no call. And JSON a byte at a time,
 * held against a parser. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/random.h"
#include "model/text/calls.h"
#include "model/text/json_steps.h"
#include "tests/support/amount.h"

static const char find_schema[] =
    "{\"type\":\"object\",\"properties\":{\"text\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},"
    "\"maybe\":{\"type\":[\"string\",\"null\"]},\"list\":{\"type\":\"array\"},\"flag\":{\"type\":\"boolean\"}}}";
static weft_text find_types;
static weft_callable tools[] = {{"find", NULL}, {"get_time", NULL}};

static int open_tools(void **state) {
  (void)state;
  if (weft_callable_types(find_schema, &find_types) != WEFT_OK) return -1;
  tools[0].types = find_types.bytes;
  return 0;
}

static int close_tools(void **state) {
  (void)state;
  weft_text_free(&find_types);
  return 0;
}

/* A number below n; the same in every run. */
static uint32_t draw(uint64_t *state, uint32_t n) {
  *state += 1;
  return (uint32_t)(weft_mix64(weft_mix64(*state)) >> 32) % n;
}

/* What a reader gave: content, then each call as @name arguments, and what it ended with: $ whole, ! not. */
typedef struct taken {
  weft_text content, calls;
} taken;

static void take_content(void *self, const char *text, size_t n) {
  weft_text_append(&((taken *)self)->content, text, n);
}

static void take_begin(void *self, const char *name, size_t n) {
  weft_text_printf(&((taken *)self)->calls, "@%.*s ", (int)n, name);
}

static void take_arguments(void *self, const char *text, size_t n) {
  weft_text_append(&((taken *)self)->calls, text, n);
}

static void take_end(void *self, bool whole) {
  weft_text_puts(&((taken *)self)->calls, whole ? "$" : "!");
}

static void feed(weft_call_form form, const char *const *pieces, const size_t *n, uint32_t n_pieces, taken *out) {
  weft_call_reader reader;
  const weft_call_sink sink = {out, take_content, take_begin, take_arguments, take_end};
  *out = (taken){0};
  weft_call_reader_open(&reader, form, tools, 2);
  for (uint32_t i = 0; i < n_pieces; i++) {
    assert_int_equal(weft_call_reader_push(&reader, pieces[i], n[i], &sink), WEFT_OK);
  }
  assert_int_equal(weft_call_reader_end(&reader, true, &sink), WEFT_OK);
  weft_call_reader_close(&reader);
  weft_text_puts(&out->content, ""); /* so that there are bytes */
  weft_text_puts(&out->calls, "");
}

static void check_pieces(weft_call_form form, const char *const *pieces, const size_t *n, uint32_t n_pieces,
                         const char *content, const char *calls) {
  taken t;
  feed(form, pieces, n, n_pieces, &t);
  assert_string_equal(t.content.n == 0 ? "" : t.content.bytes, content);
  assert_string_equal(t.calls.n == 0 ? "" : t.calls.bytes, calls);
  weft_text_free(&t.content);
  weft_text_free(&t.calls);
}

/* The text as one, cut at every byte, and byte by byte. */
static void check_text(weft_call_form form, const char *text, const char *content, const char *calls) {
  size_t n = strlen(text);
  check_pieces(form, &text, &n, 1, content, calls);
  for (size_t cut = 0; cut <= n; cut++) {
    const char *const two[] = {text, text + cut};
    const size_t lengths[] = {cut, n - cut};
    check_pieces(form, two, lengths, 2, content, calls);
  }
  const char **bytes = calloc(n + 1, sizeof *bytes);
  size_t *ones = calloc(n + 1, sizeof *ones);
  for (size_t i = 0; i < n; i++) {
    bytes[i] = text + i;
    ones[i] = 1;
  }
  check_pieces(form, bytes, ones, (uint32_t)n, content, calls);
  free(bytes);
  free(ones);
}

#define Q "<|\"|>"
/* Tags of DSML. */
#define D           "\uFF5CDSML\uFF5C"
#define DO          "<" D "tool_calls>"
#define DC          "</" D "tool_calls>"
#define DF(name)    "<" D "invoke name=\"" name "\">"
#define DFC         "</" D "invoke>"
#define DP(key, is) "<" D "parameter name=\"" key "\" string=\"" is "\">"
#define DPC         "</" D "parameter>"

static const struct {
  weft_call_form form;
  const char *text, *content, *calls;
} rows[] = {
    /* a call, alone and beside text */
    {WEFT_CALLS_HERMES, "<tool_call>\n{\"name\": \"find\", \"arguments\": {\"text\": \"a b\", \"n\": 3}}\n</tool_call>",
     "", "@find {\"text\": \"a b\", \"n\": 3}$"},
    {WEFT_CALLS_HERMES, "Let me see.\n\n<tool_call>{\"name\":\"find\",\"arguments\":{}}</tool_call>\n", "Let me see.",
     "@find {}$"},
    {WEFT_CALLS_QWEN,
     "<tool_call>\n<function=find>\n<parameter=text>\nline 1\n  \"two\"\n</parameter>\n<parameter=n>\n3\n</parameter>\n"
     "</function>\n</tool_call>",
     "", "@find {\"text\":\"line 1\\n  \\\"two\\\"\",\"n\":3}$"},
    {WEFT_CALLS_GEMMA, "<|tool_call>call:find{text:" Q "a, {b}: \"c\"\n" Q ",n:3}<tool_call|>", "",
     "@find {\"text\":\"a, {b}: \\\"c\\\"\\n\",\"n\":3}$"},
    {WEFT_CALLS_GEMMA, "One moment. <|tool_call>call:get_time{}<tool_call|>", "One moment.", "@get_time {}$"},
    {WEFT_CALLS_LLAMA, "{\"name\": \"find\", \"parameters\": {\"n\": 1}}", "", "@find {\"n\": 1}$"},
    {WEFT_CALLS_LLAMA, "<|python_tag|>{\"name\": \"any\", \"parameters\": {\"n\": 1}}", "", "@any {\"n\": 1}$"},
    {WEFT_CALLS_LLAMA, " {\"type\":\"function\",\"name\":\"find\",\"parameters\":{}}", "", "@find {}$"},
    {WEFT_CALLS_MISTRAL, "[TOOL_CALLS][{\"name\": \"find\", \"arguments\": {\"n\": 1}, \"id\": \"abcdefghi\"}]", "",
     "@find {\"n\": 1}$"},
    {WEFT_CALLS_MISTRAL, "Sure.[TOOL_CALLS]find[ARGS]{\"n\": 1}", "Sure.", "@find {\"n\": 1}$"},
    {WEFT_CALLS_MISTRAL, "[TOOL_CALLS]find[CALL_ID]abcdefghi[ARGS]{\"n\": 1}", "", "@find {\"n\": 1}$"},
    {WEFT_CALLS_JSON, "{\"name\":\"find\",\"arguments\":{\"n\":[1,{\"a\":null}]}}", "",
     "@find {\"n\":[1,{\"a\":null}]}$"},
    {WEFT_CALLS_DSML,
     "Let me see.\n\n" DO "\n" DF("find") "\n" DP("text", "true") "\nline 1\n  \"two\" </b>\n" DPC
                                                                  "\n" DP("n", "false") "3" DPC "\n" DFC "\n" DC,
     "Let me see.", "@find {\"text\":\"\\nline 1\\n  \\\"two\\\" </b>\\n\",\"n\":3}$"},
    {WEFT_CALLS_DSML, DO DF("get_time") "\n" DFC DC "\n", "", "@get_time {}$"},
    /* several */
    {WEFT_CALLS_DSML,
     DO "\n" DF("find") "\n" DP("text", "true") "42" DPC DP(
         "list", "false") "[1, {\"a\":null}]" DPC DFC "\n" DF("get_time") DP("x", "true") "true" DPC DFC DC " Done.",
     "Done.", "@find {\"text\":\"42\",\"list\":[1, {\"a\":null}]}$@get_time {\"x\":\"true\"}$"},
    /* what the tag says of the text counts; where it says nothing, the schema; what is no JSON is a string */
    {WEFT_CALLS_DSML,
     DF("find") DP("n", "true") "3" DPC DP("text", "false") "a b" DPC "<" D "parameter name=\"n\">4" DPC "<" D
                                                            "parameter name=\"text\">5" DPC DP("k>\u00E9",
                                                                                               "false") "\"x\"" DPC DFC,
     "", "@find {\"n\":\"3\",\"text\":\"a b\",\"n\":4,\"text\":\"5\",\"k>\u00E9\":\"x\"}$"},
    {WEFT_CALLS_DSML, DO "\n" DF("find") "\n{\"n\": [1], \"text\": 'a'}\n" DFC "\n" DC, "",
     "@find {\"n\": [1], \"text\": \"a\"}$"},
    /* no calls, and calls that are cut off */
    {WEFT_CALLS_DSML, "I would write <" D "tool or <\uFF5C here", "I would write <" D "tool or <\uFF5C here", ""},
    {WEFT_CALLS_DSML, DO "\nnothing\n" DC " here", "\nnothing\n here", ""},
    {WEFT_CALLS_DSML, DO DF("no such name") DFC DC, "no such name\">" DFC, ""},
    {WEFT_CALLS_DSML, DO DF("find") DP("text", "true") "ab</" D "para", "", "@find {\"text\":\"ab</" D "para!"},
    {WEFT_CALLS_DSML, DO DF("find") DP("n", "false") "[1, ", "", "@find {\"n\":[1,!"},
    {WEFT_CALLS_DSML, DO DF("find") DP("n", "false") "1" DPC "so" DFC, "so" DFC, "@find {\"n\":1}$"},
    {WEFT_CALLS_HERMES,
     "<tool_call>{\"name\":\"find\",\"arguments\":{\"n\":1}}</tool_call>\n<tool_call>\n{\"name\":\"get_time\"}\n"
     "</tool_call>\nDone.",
     "Done.", "@find {\"n\":1}$@get_time {}$"},
    {WEFT_CALLS_QWEN,
     "<tool_call><function=find></function></tool_call> "
     "<function=get_time>\n<parameter=x>\n1\n</parameter>\n</function>",
     "", "@find {}$@get_time {\"x\":\"1\"}$"},
    {WEFT_CALLS_GEMMA, "<|tool_call>call:find{n:1}<tool_call|><|tool_call>call:get_time{}<tool_call|>", "",
     "@find {\"n\":1}$@get_time {}$"},
    {WEFT_CALLS_LLAMA, "{\"name\":\"find\",\"parameters\":{}}; {\"name\":\"get_time\",\"parameters\":{}}", "",
     "@find {}$@get_time {}$"},
    {WEFT_CALLS_JSON, "[{\"name\":\"find\",\"arguments\":{}}, {\"name\":\"get_time\",\"arguments\":{}}]", "",
     "@find {}$@get_time {}$"},
    {WEFT_CALLS_MISTRAL, "[TOOL_CALLS]find[ARGS]{}[TOOL_CALLS]get_time{\"a\":1}", "", "@find {}$@get_time {\"a\":1}$"},
    /* members in another order; control characters and markers in strings */
    {WEFT_CALLS_HERMES, "<tool_call>{\"arguments\":{\"n\":1},\"id\":7,\"name\":\"find\"}</tool_call>", "",
     "@find {\"n\":1}$"},
    {WEFT_CALLS_HERMES, "<tool_call>{\"name\":\"find\",\"arguments\":{\"text\":\"a\nb</tool_call>\\\"\"}}</tool_call>",
     "", "@find {\"text\":\"a\\nb</tool_call>\\\"\"}$"},
    /* values */
    {WEFT_CALLS_GEMMA,
     "<|tool_call>call:find{list:[1,-2.5e3," Q "x" Q ",[],{}],flag:true,text:bare words,maybe:null,deep:{a:{b:False}},}"
     "<tool_call|>",
     "",
     "@find {\"list\":[1,-2.5e3,\"x\",[],{}],\"flag\":true,\"text\":\"bare "
     "words\",\"maybe\":null,\"deep\":{\"a\":{\"b\":"
     "false}}}$"},
    {WEFT_CALLS_GEMMA, "<|tool_call>call:find{" Q "odd key" Q ": 1, \"json\" : \"a\\\"b\" , n : 01 }<tool_call|>", "",
     "@find {\"odd key\":1,\"json\":\"a\\\"b\",\"n\":\"01\"}$"},
    {WEFT_CALLS_QWEN,
     "<tool_call><function=find><parameter=text>42</parameter><parameter=maybe>null</parameter><parameter=list>[1, "
     "2]</parameter><parameter=flag>True</parameter><parameter=n>many</parameter><parameter=other>{}</parameter>"
     "</function></tool_call>",
     "", "@find {\"text\":\"42\",\"maybe\":null,\"list\":[1, 2],\"flag\":true,\"n\":\"many\",\"other\":\"{}\"}$"},
    {WEFT_CALLS_QWEN, "<tool_call><function=find><parameter=text>\n\n a </parameter\n\n</parameter></tool_call>", "",
     "@find {\"text\":\"\\n a </parameter\\n\"}$"},
    /* no call: content, without markers */
    {WEFT_CALLS_HERMES, "I would write <tool_ or <tool_call", "I would write <tool_ or <tool_call", ""},
    {WEFT_CALLS_HERMES, "<tool_call>\nnothing\n</tool_call> here", "\nnothing\n here", ""},
    {WEFT_CALLS_HERMES, "a </tool_call>b", "a b", ""},
    {WEFT_CALLS_HERMES, "<tool_call>{\"name\":\"no such name\",\"arguments\":{}}</tool_call>",
     "{\"name\":\"no such name\",\"arguments\":{}}", ""},
    {WEFT_CALLS_HERMES, "<tool_call>{\"name\":\"find\",\"arguments\":[1]}</tool_call>",
     "{\"name\":\"find\",\"arguments\":[1]}", ""},
    {WEFT_CALLS_HERMES, "<tool_call>{\"name\":\"find\"", "{\"name\":\"find\"", ""},
    {WEFT_CALLS_GEMMA, "<|tool_call>find{}<tool_call|>", "find{}", ""},
    {WEFT_CALLS_GEMMA, "<|tool_call>find{text:" Q "a" Q "}<tool_call|> b" Q, "find{text:a} b", ""},
    {WEFT_CALLS_LLAMA, "{\"name\": \"stranger\", \"parameters\": {}}", "{\"name\": \"stranger\", \"parameters\": {}}",
     ""},
    {WEFT_CALLS_LLAMA, "{\"answer\": 42}", "{\"answer\": 42}", ""},
    {WEFT_CALLS_JSON, "[1, 2, 3]", "[1, 2, 3]", ""},
    {WEFT_CALLS_JSON, "So: {\"name\":\"find\",\"arguments\":{}}", "So: {\"name\":\"find\",\"arguments\":{}}", ""},
    {WEFT_CALLS_MISTRAL, "[TOOL_CALLS] and so on", " and so on", ""},
    /* cut off, or wrong after its head: a call that is not whole */
    {WEFT_CALLS_HERMES, "<tool_call>{\"name\":\"find\",\"arguments\":{\"text\":\"ab", "", "@find {\"text\":\"ab!"},
    {WEFT_CALLS_HERMES, "<tool_call>{\"name\":\"find\",\"arguments\":{\"n\":1,}}</tool_call> and <b>", "and <b>",
     "@find {\"n\":1}$"},
    {WEFT_CALLS_HERMES, "<tool_call>{\"name\":\"find\",\"arguments\":{\"n\":1}}</tool_", "", "@find {\"n\":1}$"},
    {WEFT_CALLS_GEMMA, "<|tool_call>call:find{text:" Q "ab", "", "@find {\"text\":\"ab!"},
    {WEFT_CALLS_GEMMA, "<|tool_call>call:find{n:1<tool_call|>x", "x", "@find {\"n\":1}$"},
    {WEFT_CALLS_GEMMA, "<|tool_call>call:find{:}<tool_call|>x", "x", "@find {}$"},
    {WEFT_CALLS_QWEN, "<tool_call><function=find>oops</tool_call>x", "find>oopsx", ""},
    {WEFT_CALLS_QWEN, "<tool_call><function=find><parameter=n>1</parameter>so</function>", "so</function>",
     "@find {\"n\":1}$"},
    {WEFT_CALLS_QWEN, "<tool_call><function=find>", "", "@find {!"},
    /* not as the form has it, and read all the same: in the style of Python, of JavaScript or of a shell */
    {WEFT_CALLS_HERMES,
     "<tool_call>{'name': 'find', 'arguments': {'text': 'it\\'s', 'flag': True, 'maybe': None}}</tool_call>", "",
     "@find {\"text\":\"it's\",\"flag\":true,\"maybe\":null}$"},
    {WEFT_CALLS_HERMES, "<tool_call>{\"name\":\"find\",\"arguments\":{'text':'it's \"so\"','n':1}}</tool_call>", "",
     "@find {\"text\":\"it's \\\"so\\\"\",\"n\":1}$"},
    {WEFT_CALLS_HERMES, "<tool_call>{name: find, arguments: {text: a b, n: 3}}</tool_call>", "",
     "@find {\"text\":\"a b\",\"n\":3}$"},
    {WEFT_CALLS_HERMES, "<tool_call>{\"name\":\"find\",\"arguments\":{text=\"a\", n=3}}</tool_call>", "",
     "@find {\"text\":\"a\", \"n\":3}$"},
    {WEFT_CALLS_MISTRAL, "[TOOL_CALLS][{'name': 'find', 'arguments': {'n': 1}}, {'name': 'get_time', 'arguments': {}}]",
     "", "@find {\"n\":1}$@get_time {}$"},
    {WEFT_CALLS_LLAMA, "{'name': 'find', 'parameters': {'n': 1}}", "", "@find {\"n\":1}$"},
    /* arguments as JSON inside of a string; as the members beside the name; a call inside of "function" */
    {WEFT_CALLS_HERMES, "<tool_call>{\"name\":\"find\",\"arguments\":\"{\\\"n\\\": 1}\"}</tool_call>x", "x",
     "@find {\"n\": 1}$"},
    {WEFT_CALLS_JSON, "{\"name\":\"find\",\"arguments\":\"{\\\"n\\\":1}\"}", "", "@find {\"n\":1}$"},
    {WEFT_CALLS_HERMES, "<tool_call>{\"name\":\"find\",\"arguments\":\"\"}</tool_call>", "", "@find {}$"},
    {WEFT_CALLS_HERMES, "<tool_call>{\"name\":\"find\",\"n\":1}</tool_call>", "", "@find {\"n\":1}$"},
    {WEFT_CALLS_HERMES,
     "<tool_call>{\"type\":\"function\",\"function\":{\"name\":\"find\",\"arguments\":{\"n\":1}}}</tool_call>", "",
     "@find {\"n\":1}$"},
    {WEFT_CALLS_HERMES, "<tool_call>{\"name\":\"find\",\"arguments\":\"now\"}</tool_call>",
     "{\"name\":\"find\",\"arguments\":\"now\"}", ""},
    /* two calls in one pair of markers; marks, braces and commas that are missing or too many */
    {WEFT_CALLS_HERMES,
     "<tool_call>{\"name\":\"find\",\"arguments\":{\"n\":1}}\n{\"name\":\"get_time\",\"arguments\":{}}</tool_call>", "",
     "@find {\"n\":1}$@get_time {}$"},
    {WEFT_CALLS_HERMES, "<tool_call>[{\"name\":\"find\",\"arguments\":{}},{\"name\":\"get_time\"}]</tool_call>", "",
     "@find {}$@get_time {}$"},
    {WEFT_CALLS_QWEN, "<tool_call><function=find></function><function=get_time></function></tool_call>", "",
     "@find {}$@get_time {}$"},
    {WEFT_CALLS_GEMMA, "<|tool_call>call:find{n:1}call:get_time{}<tool_call|>", "", "@find {\"n\":1}$@get_time {}$"},
    {WEFT_CALLS_HERMES, "<tool_call>{\"name\":\"find\",\"arguments\":{\"n\":1}\n<tool_call>{\"name\":\"get_time\"}", "",
     "@find {\"n\":1}$@get_time {}$"},
    {WEFT_CALLS_HERMES, "<tool_call>{\"name\":\"find\",\"arguments\":{\"n\":1</tool_call>x", "x", "@find {\"n\":1}$"},
    {WEFT_CALLS_HERMES, "<tool_call>{\"name\":\"find\",\"arguments\":{\"list\":[1,2,],\"n\":1,}}}</tool_call>x", "x",
     "@find {\"list\":[1,2],\"n\":1}$"},
    {WEFT_CALLS_HERMES,
     "<tool_call>{\"name\":\"find\",\"arguments\":{\"text\":\"say \"hi\" to\" \n \"n\":1}}</tool_call>", "",
     "@find {\"text\":\"say \\\"hi\\\" to\" \n ,\"n\":1}$"},
    {WEFT_CALLS_HERMES, "<tool_call>{\"name\":\"find\",\"arguments\":{{\"text\":\"\\d+\"}}}</tool_call>", "",
     "@find {\"text\":\"\\\\d+\"}$"},
    /* one form in the way of another */
    {WEFT_CALLS_QWEN, "<tool_call>{\"name\":\"find\",\"arguments\":{\"n\":1}}</tool_call>", "", "@find {\"n\":1}$"},
    {WEFT_CALLS_HERMES, "<tool_call><function=find><parameter=n>1</parameter></function></tool_call>x", "x",
     "@find {\"n\":1}$"},
    {WEFT_CALLS_QWEN, "<tool_call><function=find>{\"n\": 1}</function></tool_call>x", "x", "@find {\"n\": 1}$"},
    {WEFT_CALLS_GEMMA, "<|tool_call>{\"name\":\"find\",\"arguments\":{\"n\":1}}<tool_call|>x", "x", "@find {\"n\":1}$"},
    {WEFT_CALLS_QWEN, "<tool_call><function=find><parameter=list>['a', True,]</parameter></function></tool_call>", "",
     "@find {\"list\":[\"a\", true]}$"},
    {WEFT_CALLS_LLAMA, "{\"name\": \"find\", \"parameters\": {\"n\": 1", "", "@find {\"n\": 1!"},
    /* cut off within what is held back until it is whole: the beginning of a JSON text */
    {WEFT_CALLS_QWEN, "<tool_call><function=find><parameter=list>\n[1, 2,\n", "", "@find {\"list\":[1, 2,!"},
    {WEFT_CALLS_QWEN, "<tool_call><function=find><parameter=n>many", "", "@find {\"n\":\"many!"},
    {WEFT_CALLS_QWEN, "<tool_call><function=find><parameter=maybe>nul", "", "@find {\"maybe\":nul!"},
    {WEFT_CALLS_QWEN, "<tool_call><function=find><parameter=text>a\n", "", "@find {\"text\":\"a!"},
    {WEFT_CALLS_HERMES, "<tool_call>{\"name\":\"find\",\"arguments\":{\"n\": 1, ", "", "@find {\"n\": 1,!"},
    {WEFT_CALLS_GEMMA, "<|tool_call>call:find{n:12", "", "@find {\"n\":12!"},
    {WEFT_CALLS_GEMMA, "<|tool_call>call:find{text:bare wor", "", "@find {\"text\":\"bare wor!"},
    {WEFT_CALLS_GEMMA, "<|tool_call>call:find{text:\"ab", "", "@find {\"text\":\"ab!"},
    {WEFT_CALLS_GEMMA, "<|tool_call>call:find{list:[1, 2", "", "@find {\"list\":[1,2!"},
    {WEFT_CALLS_GEMMA, "<|tool_call>call:find{n:1, te", "", "@find {\"n\":1,\"te!"},
    {WEFT_CALLS_GEMMA, "<|tool_call>call:find{" Q "te", "", "@find {\"te!"},
    {WEFT_CALLS_GEMMA, "<|tool_call>call:find{ \n", "", "@find {!"},
    /* text stays as it is */
    {WEFT_CALLS_HERMES, "\n\n Plain \n text, 1 < 2 \n", "\n\n Plain \n text, 1 < 2 \n", ""},
    {WEFT_CALLS_JSON, "", "", ""},
    {WEFT_CALLS_LLAMA, "  ", "  ", ""},
    {WEFT_CALLS_MISTRAL, "a [1] [TOOL b", "a [1] [TOOL b", ""},
};

static void every_form_at_every_cut(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    check_text(rows[i].form, rows[i].text, rows[i].content, rows[i].calls);
  }
}

/* What is long is bounded in the same place however it comes. */
static void long_parts_at_every_cut(void **state) {
  static const char *const heads[] = {"<tool_call>{\"name\":\"%*s",
                                      "<tool_call>{%*s\"name\":\"find\",\"arguments\":{}}", "%*s<tool_call>", "a%*sb"};
  (void)state;
  const int step = (int)test_amount(5, 1, 1); /* of the long ones */
  for (size_t h = 0; h < sizeof heads / sizeof *heads; h++) {
    for (int size = 250; size < 9000; size = size < 260    ? size + 1
                                             : size < 8170 ? 8170 + (int)h
                                             : size < 8200 ? size + step
                                                           : 9001) {
      char text[10000];
      int n = snprintf(text, sizeof text, heads[h], size, "");
      const char *piece = text;
      size_t length = (size_t)n;
      taken whole, bytes;
      feed(WEFT_CALLS_HERMES, &piece, &length, 1, &whole);
      const char **all = calloc(length, sizeof *all);
      size_t *ones = calloc(length, sizeof *ones);
      for (size_t i = 0; i < length; i++) all[i] = text + i, ones[i] = 1;
      feed(WEFT_CALLS_HERMES, all, ones, (uint32_t)length, &bytes);
      assert_int_equal(whole.content.n, bytes.content.n);
      assert_int_equal(whole.calls.n, bytes.calls.n);
      free(all);
      free(ones);
      weft_text_free(&whole.content), weft_text_free(&whole.calls);
      weft_text_free(&bytes.content), weft_text_free(&bytes.calls);
    }
  }
}

/* A model that writes blanks without end between arguments costs the same for each of them. */
static void blanks_are_not_held(void **state) {
  static const struct {
    weft_call_form form;
    const char *head, *tail;
  } calls[] = {{WEFT_CALLS_GEMMA, "<|tool_call>call:find{", "n:1}<tool_call|>"},
               {WEFT_CALLS_QWEN, "<function=find>", "<parameter=n>1</parameter></function>"},
               {WEFT_CALLS_DSML, DF("find"), DP("n", "false") "1" DPC DFC},
               {WEFT_CALLS_HERMES, "<tool_call>{\"name\":\"find\",\"arguments\":{", "\"n\":1}}</tool_call>"}};
  (void)state;
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    taken t = {0};
    weft_call_reader reader;
    const weft_call_sink sink = {&t, take_content, take_begin, take_arguments, take_end};
    weft_call_reader_open(&reader, calls[i].form, tools, 2);
    assert_int_equal(weft_call_reader_push(&reader, calls[i].head, strlen(calls[i].head), &sink), WEFT_OK);
    for (int k = 0; k < 1000; k++) {
      assert_int_equal(weft_call_reader_push(&reader, "\n", 1, &sink), WEFT_OK);
      assert_true(reader.held.n < 300); /* a head of tags waits a little for what is behind it */
    }
    assert_int_equal(weft_call_reader_push(&reader, calls[i].tail, strlen(calls[i].tail), &sink), WEFT_OK);
    assert_int_equal(weft_call_reader_end(&reader, true, &sink), WEFT_OK);
    assert_int_equal(t.calls.bytes[t.calls.n - 1], '$');
    weft_call_reader_close(&reader);
    weft_text_free(&t.content), weft_text_free(&t.calls);
  }
}

/* From the end of its head to the end of its arguments a reader is in a call. */
static void in_a_call_or_not(void **state) {
  static const char *const parts[] = {
      "a <tool_call>{\"name\":\"find\",\"arg",          "uments\":{",   "\"n\":1,", "}", "x</tool_call>",
      "<tool_call>{\"name\":\"find\",\"arguments\":{}", "}</tool_call>"};
  static const bool in_call[] = {false, true, true, false, false, false, false};
  weft_call_reader reader;
  taken t = {0};
  const weft_call_sink sink = {&t, take_content, take_begin, take_arguments, take_end};
  (void)state;
  weft_call_reader_open(&reader, WEFT_CALLS_HERMES, tools, 2);
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    assert_int_equal(weft_call_reader_push(&reader, parts[i], strlen(parts[i]), &sink), WEFT_OK);
    assert_int_equal(weft_call_reader_in_call(&reader), in_call[i]);
  }
  weft_call_reader_close(&reader);
  weft_text_free(&t.content), weft_text_free(&t.calls);
}

/* The n bytes are the beginning of a JSON text. */
static void check_beginning(const char *text, size_t n) {
  json_steps steps = {0};
  for (size_t i = 0; i < n; i++) {
    json_step step = json_steps_take(&steps, text[i]);
    if (step == JSON_STEP_BAD || (step == JSON_STEP_DONE && i + 1 < n)) fail_msg("no JSON: %.*s", (int)n, text);
  }
}

/* Texts made of the pieces that forms are made of: no cut changes anything, no marker is given as content, and a
 * call that is whole has an object. */
static void random_texts(void **state) {
  static const char *const words[] = {"<tool_call>",
                                      "</tool_call>",
                                      "<|tool_call>",
                                      "<tool_call|>",
                                      Q,
                                      "[TOOL_CALLS]",
                                      "[ARGS]",
                                      "<|python_tag|>",
                                      "<function=",
                                      "</function>",
                                      "<parameter=",
                                      "</parameter>",
                                      "{\"name\":\"find\",\"arguments\":",
                                      "{",
                                      "}",
                                      "[",
                                      "]",
                                      ":",
                                      ",",
                                      "\"",
                                      "call:",
                                      "find",
                                      "get_time",
                                      ">",
                                      "\n",
                                      " ",
                                      "n",
                                      "1",
                                      "-2",
                                      "true",
                                      "x y",
                                      "\\",
                                      "\xC3\xA9",
                                      "{\"name\": \"find\", \"parameters\": {",
                                      "text:",
                                      "'",
                                      "=",
                                      "True",
                                      "\"arguments\":\"",
                                      "null",
                                      DO,
                                      DC,
                                      "<" D "invoke name=\"",
                                      DFC,
                                      DP("n", "false"),
                                      DP("text", "true"),
                                      DPC,
                                      D};
  uint64_t random = 7;
  (void)state;
  for (uint32_t round = 0, n_rounds = test_amount(300, 1000, 30000); round < n_rounds; round++) {
    weft_text text = {0};
    weft_call_form form = (weft_call_form)(round % WEFT_CALL_FORMS);
    for (uint32_t i = 0, n = draw(&random, 24); i < n; i++) {
      weft_text_puts(&text, words[draw(&random, sizeof words / sizeof *words)]);
    }
    weft_text_puts(&text, "");
    const char *all = text.n == 0 ? "" : text.bytes;
    taken t;
    feed(form, &all, &text.n, 1, &t);
    check_text(form, all, t.content.n == 0 ? "" : t.content.bytes, t.calls.n == 0 ? "" : t.calls.bytes);
    for (const char *at = t.calls.n == 0 ? NULL : t.calls.bytes; at != NULL && (at = strchr(at, '@')) != NULL;) {
      const char *from = strchr(at, ' '), *to = at + strcspn(at, "$!"); /* no word has one of these letters */
      json_error_t error;
      json_t *json = json_loadb(from, (size_t)(to - from), 0, &error);
      if (*to == '$' && !json_is_object(json) && strstr(error.text, "duplicate") == NULL) fail_msg("%s: %s", all, from);
      if (*to == '!') check_beginning(from + 1, (size_t)(to - from) - 1);
      json_decref(json);
      at = to;
    }
    weft_text_free(&t.content);
    weft_text_free(&t.calls);
    weft_text_free(&text);
  }
}

/* A canvas is read by a copy of the reader: what it shows has no call in it, wherever the canvas begins, and the reader
 * stands where it stood. */
static void a_copy_reads_ahead(void **state) {
  static const char answer[] = "See: <|tool_call>call:find{text:" Q "a b" Q ",n:3}<tool_call|>";
  (void)state;
  for (size_t cut = 0; cut < sizeof answer; cut++) {
    weft_call_reader reader, copy;
    taken given = {0}, shown = {0};
    const weft_call_sink sink = {&given, take_content, take_begin, take_arguments, take_end},
                         canvas = {&shown, take_content, take_begin, take_arguments, take_end};
    weft_call_reader_open(&reader, WEFT_CALLS_GEMMA, tools, 2);
    assert_int_equal(weft_call_reader_push(&reader, answer, cut, &sink), WEFT_OK);
    assert_int_equal(weft_call_reader_copy(&reader, &copy), WEFT_OK);
    assert_int_equal(weft_call_reader_push(&copy, answer + cut, strlen(answer) - cut, &canvas), WEFT_OK);
    assert_int_equal(weft_call_reader_end(&copy, true, &canvas), WEFT_OK);
    weft_call_reader_close(&copy);
    weft_text_puts(&given.content, "");
    weft_text_append(&given.content, shown.content.n == 0 ? "" : shown.content.bytes, shown.content.n);
    assert_string_equal(given.content.bytes, "See:");
    weft_text_clear(&given.content);
    weft_text_clear(&given.calls);
    assert_int_equal(weft_call_reader_push(&reader, answer + cut, strlen(answer) - cut, &sink), WEFT_OK);
    assert_int_equal(weft_call_reader_end(&reader, true, &sink), WEFT_OK);
    assert_int_equal(given.calls.n, shown.calls.n);
    assert_int_equal(given.content.n, shown.content.n);
    weft_call_reader_close(&reader);
    weft_text_free(&given.content), weft_text_free(&given.calls);
    weft_text_free(&shown.content), weft_text_free(&shown.calls);
  }
}

static weft_text mended;

static void take_mended(void *self, const char *text, size_t n) {
  weft_text_append(self, text, n);
}

/* Mends the text, `step` bytes at a time, and ends it. */
static void mend_text(const char *text, size_t n, size_t step, bool cut) {
  json_mend mend = {.mark = Q, .end = "</tool_call>", .self = &mended, .take = take_mended};
  size_t at = 0;
  weft_text_clear(&mended);
  weft_text_puts(&mended, "");
  for (size_t n_given = 0; n_given < n;) {
    n_given = n_given + step < n ? n_given + step : n;
    at += json_mend_read(&mend, text + at, n_given - at, false);
  }
  at += json_mend_read(&mend, text + at, n - at, true);
  if (json_mend_done(&mend)) return;
  if (cut) {
    json_mend_cut(&mend, text + at, n - at);
  } else {
    json_mend_close(&mend, text + at, n - at);
  }
}

/* What is mended is JSON, whatever the text is and however it comes; cut off, it is the beginning of JSON. */
static void mended_texts_are_json(void **state) {
  static const char *const words[] = {
      "{",       "}",  "[",     "]", ",",    ":",    "\"",   "'",   "=",        " ",  "\n",      Q,   "</tool_call>",
      "</tool_", "\\", "\\u00", "4", "-1.5", "True", "null", "a b", "\xC3\xA9", "\t", "{\"a\":", "<|"};
  uint64_t random = 11;
  (void)state;
  for (uint32_t round = 0, n_rounds = test_amount(1500, 5000, 200000); round < n_rounds; round++) {
    weft_text text = {0}, whole = {0};
    weft_text_puts(&text, round % 2 == 0 ? "{" : "[");
    for (uint32_t i = 0, n = draw(&random, 20); i < n; i++) {
      weft_text_puts(&text, words[draw(&random, sizeof words / sizeof *words)]);
    }
    mend_text(text.bytes, text.n, text.n, false);
    json_t *json = json_loadb(mended.bytes, mended.n, 0, NULL);
    if (json == NULL) fail_msg("%s became %s", text.bytes, mended.bytes);
    json_decref(json);
    weft_text_append(&whole, mended.bytes, mended.n);
    mend_text(text.bytes, text.n, 1 + draw(&random, 3), false);
    assert_string_equal(mended.bytes, whole.bytes);
    mend_text(text.bytes, text.n, 1, true);
    check_beginning(mended.bytes, mended.n);
    weft_text_free(&text);
    weft_text_free(&whole);
  }
  weft_text_free(&mended);
}

static json_t *draw_json(uint64_t *random, uint32_t depth) {
  static const char *const texts[] = {"",       "a",    "it's",         "\"q\"",        "\\",
                                      "{x: 1}", "a\nb", "\xE2\x82\xAC", "</tool_call>", "1"};
  json_t *json;
  switch (draw(random, depth == 0 ? 5 : 7)) {
    case 0:
      return json_string(texts[draw(random, 10)]);
    case 1:
      return json_integer((json_int_t)draw(random, 1000) - 500);
    case 2:
      return json_real((double)draw(random, 1000) / 7);
    case 3:
      return draw(random, 2) == 0 ? json_true() : json_null();
    case 4:
    case 5:
      json = json_object();
      for (uint32_t i = 0, n = draw(random, 4); i < n; i++) {
        json_object_set_new(json, texts[draw(random, 10)], depth == 0 ? json_true() : draw_json(random, depth - 1));
      }
      return json;
    default:
      json = json_array();
      for (uint32_t i = 0, n = draw(random, 4); i < n; i++) json_array_append_new(json, draw_json(random, depth - 1));
      return json;
  }
}

/* What is JSON already is given byte for byte. */
static void json_is_not_changed(void **state) {
  uint64_t random = 5;
  (void)state;
  for (uint32_t round = 0, n_rounds = test_amount(500, 2500, 50000); round < n_rounds; round++) {
    json_t *json = json_array();
    json_array_append_new(json, draw_json(&random, 4));
    char *text = json_dumps(json, round % 3 == 0 ? JSON_COMPACT : round % 3 == 1 ? 0 : JSON_INDENT(2));
    mend_text(text, strlen(text), 1 + draw(&random, 5), true);
    assert_string_equal(mended.bytes, text);
    free(text);
    json_decref(json);
  }
  weft_text_free(&mended);
}

/* An answer that the model ended itself is whole, whatever it forgot. */
static void the_models_own_end_closes_a_call(void **state) {
  static const struct {
    weft_call_form form;
    const char *text, *calls;
  } ends[] = {
      {WEFT_CALLS_HERMES, "<tool_call>{\"name\":\"find\",\"arguments\":{\"text\":\"ab", "@find {\"text\":\"ab\"}$"},
      {WEFT_CALLS_HERMES, "<tool_call>{\"name\":\"find\",\"arguments\":{\"list\":[tru", "@find {\"list\":[\"tru\"]}$"},
      {WEFT_CALLS_GEMMA, "<|tool_call>call:find{n:12", "@find {\"n\":12}$"},
      {WEFT_CALLS_QWEN, "<tool_call><function=find><parameter=n>\n12\n", "@find {\"n\":12}$"},
      {WEFT_CALLS_QWEN, "<tool_call><function=find><parameter=text>\na\n", "@find {\"text\":\"a\"}$"},
      {WEFT_CALLS_QWEN, "<tool_call><function=find>", "@find {}$"}};
  (void)state;
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
    taken t = {0};
    weft_call_reader reader;
    const weft_call_sink sink = {&t, take_content, take_begin, take_arguments, take_end};
    weft_call_reader_open(&reader, ends[i].form, tools, 2);
    assert_int_equal(weft_call_reader_push(&reader, ends[i].text, strlen(ends[i].text), &sink), WEFT_OK);
    assert_int_equal(weft_call_reader_end(&reader, false, &sink), WEFT_OK);
    assert_string_equal(t.calls.bytes, ends[i].calls);
    weft_call_reader_close(&reader);
    weft_text_free(&t.content), weft_text_free(&t.calls);
  }
}

/* What is kept of a schema is what a reader asks of it: which parameters are no plain strings. */
static void types_of_a_schema(void **state) {
  static const char of_find[] = "vn\0nmaybe\0vlist\0vflag\0";
  static const char *const none[] = {NULL, "{}", "[]", "{\"properties\":5}", "no JSON"};
  (void)state;
  assert_int_equal(find_types.n, sizeof of_find);
  assert_memory_equal(find_types.bytes, of_find, sizeof of_find);
  for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
    weft_text out = {0};
    assert_int_equal(weft_callable_types(none[i], &out), WEFT_OK);
    assert_int_equal(out.n, 1);
    assert_int_equal(out.bytes[0], 0);
    weft_text_free(&out);
  }
}

static void forms_of_templates(void **state) {
  static const struct {
    const char *text;
    weft_call_form form;
  } templates[] = {
      {"{{ '<|tool_call>call:' + name }}", WEFT_CALLS_GEMMA},
      {"<tool_call>\n<function=example>\n<parameter=x>", WEFT_CALLS_QWEN},
      {"<tool_call></tool_call>", WEFT_CALLS_HERMES},
      {"{{ '<' + '" D "' + 'tool_calls>' }}", WEFT_CALLS_DSML},
      {"[AVAILABLE_TOOLS][TOOL_CALLS]", WEFT_CALLS_MISTRAL},
      {"{\"name\": function name, \"parameters\": dictionary of argument name and its value}", WEFT_CALLS_LLAMA},
      {"{{ messages }}", WEFT_CALLS_JSON},
      {"", WEFT_CALLS_JSON},
  };
  (void)state;
  for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
    assert_int_equal(weft_call_form_of(templates[i].text, strlen(templates[i].text)), templates[i].form);
  }
}

/* JSON a byte at a time agrees with the parser on every text, whole or broken. */
static void json_steps_agree(void **state) {
  static const char *const words[] = {
      "{",       "}",     "[",  "]",   "{\"k\":", "[1,", ":",    ",",  "\"a\"", "\"\\u00e9\\n\"",
      "\"\\x\"", "1",     "-0", "01",  "1.5",     "1.",  "2e-7", "2e", "true",  "nul",
      "null",    "false", " ",  "\"b", "\"c\"",   "-"};
  uint64_t random = 11;
  uint32_t n_whole = 0, n_rounds = test_amount(10000, 50000, 2000000);
  (void)state;
  for (uint32_t round = 0; round < n_rounds; round++) {
    weft_text text = {0};
    for (uint32_t i = 0, n = 1 + draw(&random, 6); i < n; i++) {
      weft_text_puts(&text, words[draw(&random, sizeof words / sizeof *words)]);
    }
    json_steps steps = {0};
    json_step step = JSON_STEP_MORE;
    size_t n = 0;
    while (n < text.n && step == JSON_STEP_MORE) step = json_steps_take(&steps, text.bytes[n++]);
    json_t *json = json_loadb(text.bytes, n, 0, NULL); /* objects and lists alone; what follows them is another text */
    bool string = text.bytes[strspn(text.bytes, " ")] == '"';
    if (!string && (step == JSON_STEP_DONE) != (json != NULL))
      fail_msg("'%.*s' of '%s'", (int)n, text.bytes, text.bytes);
    n_whole += json != NULL ? 1 : 0;
    json_decref(json);
    weft_text_free(&text);
  }
  assert_in_range(n_whole, n_rounds / 400, UINT32_MAX);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_form_at_every_cut),
      cmocka_unit_test(long_parts_at_every_cut),
      cmocka_unit_test(blanks_are_not_held),
      cmocka_unit_test(in_a_call_or_not),
      cmocka_unit_test(types_of_a_schema),
      cmocka_unit_test(random_texts),
      cmocka_unit_test(mended_texts_are_json),
      cmocka_unit_test(json_is_not_changed),
      cmocka_unit_test(the_models_own_end_closes_a_call),
      cmocka_unit_test(forms_of_templates),
      cmocka_unit_test(json_steps_agree),
      cmocka_unit_test(a_copy_reads_ahead),
  };
  return cmocka_run_group_tests(tests, open_tools, close_tools);
}
