/* SPDX-License-Identifier: MIT */
/* Grammars of calls: what they give is read as calls, whole, of what was declared, with arguments that fit; free
 * text stays text; with markers that are tokens and with markers that are letters. With arguments it is a tool
 * (tests/support/grammar_tool.h), which prints what the reader of calls makes of the arguments. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "model/formats/grammar_internal.h"
#include "model/text/calls.h"
#include "model/text/json_steps.h"
#include "model/text/json_tree.h"
#include "tests/support/grammar_tool.h"
#include "tests/support/schema_check.h"

#define SCHEMA                                                         \
  "{\"type\":\"object\",\"properties\":{\"text\":{\"$ref\":\"#/$defs/" \
  "word\"},\"n\":{\"type\":\"integer\",\"maximum\":9}},"               \
  "\"required\":[\"text\"],\"additionalProperties\":false,\"$defs\":{\"word\":{\"type\":\"string\",\"maxLength\":4}}}"

static weft_text find_types;
static weft_callable tools[] = {{"find", NULL}, {"get_time", NULL}};

typedef struct seen {
  weft_text content, arguments;
  char name[65];
  uint32_t n_calls;
} seen;

static void take_content(void *self, const char *text, size_t n) {
  weft_text_append(&((seen *)self)->content, text, n);
}

static void take_begin(void *self, const char *name, size_t n) {
  seen *s = self;
  (void)snprintf(s->name, sizeof s->name, "%.*s", (int)n, name);
  s->n_calls += 1;
  weft_text_clear(&s->arguments);
}

static void take_arguments(void *self, const char *text, size_t n) {
  weft_text_append(&((seen *)self)->arguments, text, n);
}

static void take_end(void *self, bool whole) {
  seen *s = self;
  assert_true(whole);
  json_t *value = json_loadb(s->arguments.bytes, s->arguments.n, 0, NULL), *schema = json_loads(SCHEMA, 0, NULL);
  assert_true(strcmp(s->name, "find") == 0 || strcmp(s->name, "get_time") == 0);
  if (!json_is_object(value)) fail_msg("%s", s->arguments.bytes);
  if (strcmp(s->name, "find") == 0 && !schema_check(schema, schema, value)) fail_msg("%s", s->arguments.bytes);
  json_decref(value);
  json_decref(schema);
}

static void take_nothing(void *self, bool whole) {
  (void)self;
  assert_true(whole);
}

/* Marks of calls as tokens of their own, or not. */
static const char *const markers[] = {"<tool_call>",  "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>",
                                      "<|tool_call>", "<tool_call|>", "<|\"|>",       WEFT_CALL_INNER};
enum { N_MARKERS = sizeof markers / sizeof *markers };

static void check_answers(grammar_world *w, weft_call_form form, bool free_text, bool several, uint32_t n_rounds) {
  char text[1024];
  weft_grammar *g;
  weft_error error = {{0}};
  uint32_t n_called = 0;
  (void)snprintf(text, sizeof text,
                 "{\"form\":\"%s\",\"free\":%s,\"several\":%s,\"tools\":[{\"name\":\"find\",\"parameters\":" SCHEMA
                 "},{\"name\":\"get_time\"}]}",
                 weft_call_form_name(form), free_text ? "true" : "false", several ? "true" : "false");
  if (weft_grammar_compile(WEFT_GRAMMAR_CALLS, text, strlen(text), w->trie, &g, NULL, &error) != WEFT_OK) {
    fail_msg("%s", error.text);
  }
  for (uint32_t i = 0; i < n_rounds; i++) {
    weft_text answer = {0};
    uint32_t n_tokens;
    const char *wrong = grammar_sample(w, g, i * 31 + 1, weft_grammar_shortest(g) + i % 5 * 80, &answer, &n_tokens);
    if (wrong != NULL) fail_msg("%s", wrong);
    seen s = {0};
    const weft_call_sink sink = {&s, take_content, take_begin, take_arguments, take_end};
    weft_call_reader reader;
    weft_call_reader_open(&reader, form, tools, 2);
    assert_int_equal(weft_call_reader_push(&reader, answer.bytes == NULL ? "" : answer.bytes, answer.n, &sink),
                     WEFT_OK);
    assert_int_equal(weft_call_reader_end(&reader, true, &sink), WEFT_OK);
    weft_call_reader_close(&reader);
    if (!free_text) assert_true(s.content.n == 0 && s.n_calls > 0);
    if (!several) assert_in_range(s.n_calls, 0, 1);
    n_called += s.n_calls;
    weft_text_free(&s.content);
    weft_text_free(&s.arguments);
    weft_text_free(&answer);
  }
  if (!free_text && several) assert_true(n_called > n_rounds);
  weft_grammar_unref(g);
}

static void answers_are_calls(void **state) {
  (void)state;
  assert_int_equal(weft_callable_types(SCHEMA, &find_types), WEFT_OK);
  tools[0].types = find_types.bytes;
  for (uint32_t special = 0; special < 2; special++) {
    grammar_world w;
    assert_true(grammar_world_with(&w, markers, special == 0 ? 0 : N_MARKERS));
    for (uint32_t form = 0; form < WEFT_CALL_FORMS; form++) {
      for (uint32_t kind = 0; kind < 4; kind++) {
        check_answers(&w, (weft_call_form)form, kind / 2 == 1, kind % 2 == 1, 40);
      }
    }
    grammar_world_close(&w);
  }
  weft_text_free(&find_types);
}

/* Arguments are an object, also where the schema allows more or says nothing of the type. */
static void arguments_are_an_object(void **state) {
  static const char *const schemas[] = {
      "{}",
      "{\"description\":\"x\"}",
      "{\"type\":[\"string\",\"object\"]}",
      "{\"properties\":{\"text\":{\"type\":\"string\",\"maxLength\":4}}}",
      "{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"}}}}}",
      "{\"anyOf\":[{\"required\":[\"a\"]},{\"type\":\"object\"}]}"};
  (void)state;
  grammar_world w;
  assert_true(grammar_world_with(&w, markers, N_MARKERS));
  for (size_t k = 0; k < sizeof schemas / sizeof *schemas; k++) {
    char text[512];
    weft_grammar *g;
    weft_error error = {{0}};
    (void)snprintf(
        text, sizeof text,
        "{\"form\":\"hermes\",\"free\":false,\"several\":false,\"tools\":[{\"name\":\"get_time\",\"parameters\":%s}]}",
        schemas[k]);
    if (weft_grammar_compile(WEFT_GRAMMAR_CALLS, text, strlen(text), w.trie, &g, NULL, &error) != WEFT_OK) {
      fail_msg("%s: %s", schemas[k], error.text);
    }
    for (uint32_t i = 0; i < 40; i++) {
      weft_text answer = {0};
      uint32_t n_tokens;
      seen s = {0};
      const weft_call_sink sink = {&s, take_content, take_begin, take_arguments, take_end};
      weft_call_reader reader;
      const char *wrong = grammar_sample(&w, g, i * 31 + 1, weft_grammar_shortest(g) + i % 5 * 20, &answer, &n_tokens);
      if (wrong != NULL) fail_msg("%s", wrong);
      weft_call_reader_open(&reader, WEFT_CALLS_HERMES, tools, 2);
      assert_int_equal(weft_call_reader_push(&reader, answer.bytes, answer.n, &sink), WEFT_OK);
      assert_int_equal(weft_call_reader_end(&reader, true, &sink), WEFT_OK);
      weft_call_reader_close(&reader);
      if (s.n_calls != 1 || s.content.n != 0) fail_msg("%s: %s", schemas[k], answer.bytes);
      weft_text_free(&s.content);
      weft_text_free(&s.arguments);
      weft_text_free(&answer);
    }
    weft_grammar_unref(g);
  }
  grammar_world_close(&w);
}

static bool takes(grammar_world *w, const weft_grammar *g, const char *const *words) {
  weft_matcher m;
  weft_matcher_begin(&m, g);
  for (; *words != NULL; words++) {
    int32_t special = weft_tokenizer_find(w->tokenizer, *words);
    if (special > 255 && !weft_matcher_take(&m, w->scratch, special)) return false;
    for (const char *at = special > 255 ? "" : *words; *at != 0; at++) {
      if (!weft_matcher_take(&m, w->scratch, (int32_t)(uint8_t)*at)) return false;
    }
  }
  return weft_matcher_may_end(&m, w->scratch);
}

#define CALL "\n{\"name\": \"find\", \"arguments\": {\"text\": \"a\"}}\n"

/* Free text may have all but the letters of the marker; a marker is the token where there is one. */
static void free_text_and_markers(void **state) {
  static const char grammar[] =
      "{\"form\":\"hermes\",\"free\":true,\"several\":false,\"tools\":[{\"name\":\"find\",\"parameters\":" SCHEMA "}]}";
  static const struct {
    const char *words[5];
    bool letters, tokens; /* whether it is allowed where markers are letters; where they are tokens */
  } rows[] = {{{""}, true, true},
              {{"Hello <tool_ <<tool_call <tool_call"}, true, true},
              {{"<tool_call>"}, false, false},
              {{"a<tool_call>b"}, false, false},
              {{"Now: ", "<tool_call>", CALL, "</tool_call>"}, true, true},
              {{"Now: ", "<tool_call>", "\n{\"name\": \"find\", \"arguments\": {}}\n", "</tool_call>"}, false, false},
              {{"<tool_call>", CALL}, false, false},
              {{"<tool_call>", CALL, "</tool_call>", "more"}, false, false}};
  (void)state;
  for (uint32_t special = 0; special < 2; special++) {
    grammar_world w;
    weft_grammar *g;
    weft_error error = {{0}};
    assert_true(grammar_world_with(&w, markers, special == 0 ? 0 : N_MARKERS));
    if (weft_grammar_compile(WEFT_GRAMMAR_CALLS, grammar, strlen(grammar), w.trie, &g, NULL, &error) != WEFT_OK) {
      fail_msg("%s", error.text);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
      bool allowed = takes(&w, g, rows[i].words);
      if (allowed != (special == 0 ? rows[i].letters : rows[i].tokens)) fail_msg("row %zu, special %u", i, special);
    }
    weft_grammar_unref(g);
    grammar_world_close(&w);
  }
}

/* Thinking before calls or a format; the native forms of Gemma and Qwen beside a format. */
static void whole_answers(void **state) {
  static const char *const special[] = {"<|channel>",   "<channel|>",  "<|tool_call>",
                                        "<tool_call|>", "<tool_call>", "</tool_call>"};
  static const struct {
    const char *grammar, *words[6];
    bool allowed;
  } rows[] = {
      {"{\"thinking\":{\"open\":\"<|channel>\",\"close\":\"<channel|>\",\"begun\":false},\"format\":{\"kind\":3,"
       "\"text\":\"ab+\"}}",
       {"<|channel>", "x { } \n", "<channel|>", "abb"},
       true},
      {"{\"thinking\":{\"open\":\"<|channel>\",\"close\":\"<channel|>\",\"begun\":false},\"format\":{\"kind\":3,"
       "\"text\":\"ab+\"}}",
       {"abb"},
       true},
      {"{\"thinking\":{\"open\":\"<|channel>\",\"close\":\"<channel|>\",\"begun\":false},\"format\":{\"kind\":3,"
       "\"text\":\"ab+\"}}",
       {"<|channel>", "x", "<channel|>", "x"},
       false},
      {"{\"thinking\":{\"open\":\"<|channel>\",\"close\":\"<channel|>\",\"begun\":true},\"format\":{\"kind\":3,"
       "\"text\":\"ab+\"}}",
       {"abb"},
       false}, /* it is still thinking */
      {"{\"thinking\":{\"open\":\"<|channel>\",\"close\":\"<channel|>\",\"begun\":true},\"format\":{\"kind\":3,"
       "\"text\":\"ab+\"}}",
       {"hm", "<channel|>", "ab"},
       true},
      {"{\"calls\":{\"form\":\"gemma\",\"tools\":[{\"name\":\"f\"}]},\"format\":{\"kind\":3,\"text\":"
       "\"ab+\"}}",
       {"<|tool_call>", "call:f{a:1}", "<tool_call|>"},
       true},
      {"{\"calls\":{\"form\":\"gemma\",\"tools\":[{\"name\":\"f\"}]},\"format\":{\"kind\":3,\"text\":"
       "\"ab+\"}}",
       {"<|tool_call>", "call:g{a:1}", "<tool_call|>"},
       false},
      {"{\"calls\":{\"form\":\"qwen\",\"tools\":[{\"name\":\"f\"}]},\"format\":{\"kind\":3,\"text\":"
       "\"ab+\"}}",
       {"<tool_call>", "\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n", "</tool_call>"},
       true},
      {"{\"calls\":{\"form\":\"qwen\",\"tools\":[{\"name\":\"f\"}]},\"format\":{\"kind\":3,\"text\":"
       "\"ab+\"}}",
       {"words"},
       false},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    grammar_world w;
    weft_grammar *g;
    weft_error error = {{0}};
    assert_true(grammar_world_with(&w, special, 6));
    if (weft_grammar_compile(WEFT_GRAMMAR_ANSWER, rows[i].grammar, strlen(rows[i].grammar), w.trie, &g, NULL, &error) !=
        WEFT_OK) {
      fail_msg("%s", error.text);
    }
    if (takes(&w, g, rows[i].words) != rows[i].allowed) fail_msg("row %zu", i);
    weft_grammar_unref(g);
    grammar_world_close(&w);
  }
}

/* The arguments of the only call of an answer to a grammar of calls. */
static const char *read_arguments(const char *line, size_t n, weft_text *text) {
  json_t *root = weft_json_read(line, n, 0, NULL), *tool = json_array_get(json_object_get(root, "tools"), 0);
  const char *form = json_string_value(json_object_get(root, "form")), *wrong = NULL;
  weft_text schema = {0}, types = {0};
  seen s = {0};
  const weft_call_sink sink = {&s, take_content, take_begin, take_arguments, take_nothing};
  uint32_t which = 0;
  while (which + 1 < WEFT_CALL_FORMS && strcmp(weft_call_form_name((weft_call_form)which), form) != 0) which += 1;
  weft_json_write(json_object_get(tool, "parameters"), &schema);
  (void)weft_callable_types(schema.bytes, &types);
  const weft_callable callable = {json_string_value(json_object_get(tool, "name")), types.bytes};
  weft_call_reader reader;
  weft_call_reader_open(&reader, (weft_call_form)which, &callable, 1);
  for (size_t i = 0; i < text->n; i++) (void)weft_call_reader_push(&reader, text->bytes + i, 1, &sink);
  (void)weft_call_reader_end(&reader, true, &sink);
  weft_call_reader_close(&reader);
  if (s.n_calls != 1 || s.content.n > 0) {
    wrong = "no call";
  } else {
    weft_text_clear(text);
    weft_text_append(text, s.arguments.bytes, s.arguments.n);
  }
  weft_text_free(&schema);
  weft_text_free(&types);
  weft_text_free(&s.content);
  weft_text_free(&s.arguments);
  json_decref(root);
  return wrong;
}

/* What is read of a call are the arguments as they were written. */
static void check_arguments(const char *answer) {
  static const weft_callable any[] = {{"f", NULL}};
  seen s = {0};
  const weft_call_sink sink = {&s, take_content, take_begin, take_arguments, take_nothing};
  weft_call_reader reader;
  const char *from = strstr(answer, "\"arguments\": ") + strlen("\"arguments\": ");
  weft_call_reader_open(&reader, WEFT_CALLS_JSON, any, 1);
  assert_int_equal(weft_call_reader_push(&reader, answer, strlen(answer), &sink), WEFT_OK);
  assert_int_equal(weft_call_reader_end(&reader, true, &sink), WEFT_OK);
  weft_call_reader_close(&reader);
  assert_int_equal(s.n_calls, 1);
  assert_int_equal(s.arguments.n, strlen(from) - 1);
  assert_memory_equal(s.arguments.bytes, from, s.arguments.n);
  weft_text_free(&s.content);
  weft_text_free(&s.arguments);
}

/* Arguments may be nested as deeply as they are read back, and no deeper, whatever a schema refers to. */
static void depth_is_that_of_the_reader(void **state) {
  static const struct {
    const char *schema, *open, *close;
    uint32_t levels; /* of each step */
  } rows[] = {
      {"{\"properties\":{\"c\":{\"$ref\":\"#\"}}}", "{\"c\":", "}", 1},
      {"{\"properties\":{\"c\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}}}", "{\"c\":[", "]}", 2},
      {"{\"properties\":{\"c\":{\"properties\":{\"d\":{\"items\":{\"items\":{\"$ref\":\"#/properties/"
       "c\"},\"type\":\"array\"},"
       "\"type\":\"array\"}},\"type\":\"object\"}}}",
       "{\"d\":[[", "]]}", 3},
      {"{}", "{\"c\":[", "]}", 2},
  };
  (void)state;
  grammar_world w;
  assert_true(grammar_world_small(&w));
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char text[512];
    weft_grammar *g;
    weft_error error = {{0}};
    (void)snprintf(text, sizeof text, "{\"form\":\"json\",\"tools\":[{\"name\":\"f\",\"parameters\":%s}]}",
                   rows[i].schema);
    if (weft_grammar_compile(WEFT_GRAMMAR_CALLS, text, strlen(text), w.trie, &g, NULL, &error) != WEFT_OK) {
      fail_msg("%s", error.text);
    }
    for (uint32_t levels = 40; levels <= WEFT_JSON_DEPTH + 12; levels++) {
      weft_text answer = {0};
      uint32_t n = levels / rows[i].levels;
      weft_text_puts(&answer, "{\"name\": \"f\", \"arguments\": ");
      if (rows[i].levels == 3) weft_text_puts(&answer, "{\"c\":");
      for (uint32_t k = 0; k < n; k++) weft_text_puts(&answer, rows[i].open);
      while (answer.bytes[answer.n - 1] == ':') answer.n -= strlen("\"c\":");
      for (uint32_t k = 0; k < n; k++) weft_text_puts(&answer, rows[i].close);
      if (rows[i].levels == 3) weft_text_puts(&answer, "}");
      weft_text_puts(&answer, "}");
      const char *const words[] = {answer.bytes, NULL};
      uint32_t depth = n * rows[i].levels + (rows[i].levels == 3 ? 1 : 0);
      if (takes(&w, g, words) != (depth <= WEFT_JSON_DEPTH)) fail_msg("%s", answer.bytes);
      if (depth <= WEFT_JSON_DEPTH) check_arguments(answer.bytes);
      weft_text_free(&answer);
    }
    weft_grammar_unref(g);
  }
  grammar_world_close(&w);
}

/* Whatever the form, the arguments of a strict tool are read as values that fit its schema. */
static void arguments_fit_in_every_form(void **state) {
  static const char *const schemas[] = {
      "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":[\"string\",\"null\"]},\"c\":{"
      "\"type\":"
      "\"integer\"},\"d\":{\"enum\":[\"1\",\"null\",\"x</"
      "parameter>\",\"<|\\\"|>\",null,2,true]}},\"required\":[\"a\",\"b\",\"c\",\"d\"]}",
      "{\"type\":\"object\",\"properties\":{\"l\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":5},"
      "\"maxItems\":3},"
      "\"o\":{\"type\":\"object\",\"properties\":{\"x "
      "y\":{\"type\":\"string\"},\"k:v\":{\"type\":\"number\"}},\"required\":[\"k:v\"],"
      "\"additionalProperties\":{\"type\":\"string\"}}},\"required\":[\"l\",\"o\"]}",
      "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\",\"minimum\":3},\"minProperties\":1,"
      "\"maxProperties\":3}",
      "{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":9},\"t\":{\"$"
      "ref\":\"#/$defs/t\"}},"
      "\"required\":[\"s\",\"t\"],\"$defs\":{\"t\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/t\"}}}}",
      "{\"anyOf\":[{\"properties\":{\"k\":{\"const\":\"a\"},\"n\":{\"type\":\"integer\"}},\"required\":[\"k\",\"n\"]},{"
      "\"properties\":{"
      "\"k\":{\"const\":\"b\"},\"n\":{\"type\":\"string\"}},\"required\":[\"k\",\"n\"]}]}",
      "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^<[a-z]+>$\"},\"b\":{\"type\":"
      "\"array\",\"items\":{"
      "\"type\":\"string\",\"pattern\":\"^[a-z]*\\\\|b|<\\\\|$\"},\"minItems\":1},\"c\":{\"type\":\"string\","
      "\"pattern\":"
      "\"^(?=.*[a-z])(?=.*\\\\d).{8,64}$\"},\"d\":{\"type\":\"string\",\"pattern\":\"^.{2,3000}$\"}},\"required\":["
      "\"a\",\"b\",\"c\",\"d\"]}",
      "{\"enum\":[{\"deep\":[null],\"word\":\"x\"},{},{\"word\":\"null\"},3]}",
      "{\"type\":\"object\",\"properties\":{\"free\":{},\"s\":{\"anyOf\":[{\"type\":\"string\",\"maxLength\":3},{"
      "\"type\":\"null\"}]}},"
      "\"required\":[\"free\",\"s\"]}",
  };
  (void)state;
  for (uint32_t special = 0; special < 2; special++) {
    grammar_world w;
    assert_true(grammar_world_with(&w, markers, special == 0 ? 0 : N_MARKERS));
    for (size_t i = 0; i < WEFT_CALL_FORMS * sizeof schemas / sizeof *schemas; i++) {
      const char *schema = schemas[i / WEFT_CALL_FORMS],
                 *form = weft_call_form_name((weft_call_form)(i % WEFT_CALL_FORMS));
      weft_text line = {0};
      weft_grammar *g = NULL;
      weft_error error = {{0}};
      weft_text_printf(&line, "{\"form\":\"%s\",\"tools\":[{\"name\":\"f\",\"strict\":true,\"parameters\":%s}]}", form,
                       schema);
      if (weft_grammar_compile(WEFT_GRAMMAR_CALLS, line.bytes, line.n, w.trie, &g, NULL, &error) != WEFT_OK) {
        fail_msg("%s: %s", line.bytes, error.text);
      }
      json_t *of = json_loads(schema, 0, NULL);
      for (uint32_t k = 0; k < 30; k++) {
        weft_text answer = {0};
        uint32_t n_tokens;
        const char *wrong =
            grammar_sample(&w, g, k * 37 + 1, weft_grammar_shortest(g) + k % 6 * 50, &answer, &n_tokens);
        if (wrong == NULL) wrong = read_arguments(line.bytes, line.n, &answer);
        json_t *value = json_loadb(answer.bytes, answer.n, 0, NULL);
        if (wrong != NULL || !json_is_object(value) || !schema_check(of, of, value)) {
          fail_msg("%s: %s: %.*s", line.bytes, wrong == NULL ? "" : wrong, (int)answer.n, answer.bytes);
        }
        json_decref(value);
        weft_text_free(&answer);
      }
      json_decref(of);
      weft_grammar_unref(g);
      weft_text_free(&line);
    }
    grammar_world_close(&w);
  }
}

/* The two forms that are no JSON, letter by letter. */
static void native_forms(void **state) {
  static const char tool[] =
      "{\"form\":\"%s\",\"free\":true,\"several\":true,\"tools\":[{\"name\":\"f\",\"strict\":true,\"parameters\":{"
      "\"type\":\"object\","
      "\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},\"l\":{\"type\":\"array\",\"items\":{"
      "\"enum\":[\"a\",\"</\"]"
      "}}},\"required\":[\"s\"]}}]}";
  static const struct {
    const char *form, *text;
    bool allowed;
  } rows[] = {
      {"gemma", "Let me look.<|tool_call>call:f{s:<|\"|>a, \"b\"<|\"|>,n:3,l:[<|\"|>a<|\"|>]}<tool_call|>", true},
      {"gemma", "<|tool_call>call:f{s:<|\"|><|\"|>}<tool_call|><|tool_call>call:f{s:<|\"|>x<|\"|>}<tool_call|>", true},
      {"gemma", "<|tool_call>call:f{n:3}<tool_call|>", false},
      {"gemma", "<|tool_call>call:f{s:3}<tool_call|>", false},
      {"gemma", "<|tool_call>call:f{\"s\":\"a\"}<tool_call|>", false},
      {"gemma", "<|tool_call>call:g{s:<|\"|>a<|\"|>}<tool_call|>", false},
      {"gemma", "<|tool_call>call:f{s:<|\"|>a<|\"|>}<tool_call|>more", false},
      {"qwen", "Hm.<tool_call>\n<function=f>\n<parameter=s>\na <b> \"c\"\n\n</parameter>\n</function>\n</tool_call>",
       true},
      {"qwen",
       "<tool_call>\n<function=f>\n<parameter=s>\n3\n</parameter>\n<parameter=n>\n-7\n</"
       "parameter>\n<parameter=l>\n[\"a\", "
       "\"<\\/\"]\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=f>\n<parameter=s>\n\n</"
       "parameter>\n</function>"
       "\n</tool_call>",
       true},
      {"qwen", "<tool_call>\n<function=f>\n</function>\n</tool_call>", false},
      {"qwen",
       "<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n<parameter=n>\nx\n</parameter>\n</function>\n</"
       "tool_call>",
       false},
      {"qwen",
       "<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n<parameter=l>\n[\"</\"]\n</parameter>\n</"
       "function>\n</tool_call>",
       false},
  };
  (void)state;
  grammar_world w;
  assert_true(grammar_world_small(&w));
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char text[512];
    weft_grammar *g;
    weft_error error = {{0}};
    const char *const words[] = {rows[i].text, NULL};
    (void)snprintf(text, sizeof text, tool, rows[i].form);
    if (weft_grammar_compile(WEFT_GRAMMAR_CALLS, text, strlen(text), w.trie, &g, NULL, &error) != WEFT_OK) {
      fail_msg("%s", error.text);
    }
    if (takes(&w, g, words) != rows[i].allowed) fail_msg("%s", rows[i].text);
    weft_grammar_unref(g);
  }
  grammar_world_close(&w);
}

static void refusals(void **state) {
  static const struct {
    const char *text, *words;
  } rows[] = {{"{}", "a form and tools"},
              {"{\"form\":\"nobody's\",\"tools\":[{\"name\":\"f\"}]}", "a form and tools"},
              {"{\"form\":\"qwen\",\"tools\":[{\"name\":\"f\",\"strict\":true,\"parameters\":{\"properties\":{\"a>b\":{"
               "}},\"required\":[\"a>b\"]"
               "}}]}",
               "schema of f at #: the form of the model's calls has no way to write the name 'a>b'"},
              {"{\"form\":\"gemma\",\"tools\":[{\"name\":\"f\",\"strict\":true,\"parameters\":{\"properties\":{\"a\":{"
               "\"const\":\"<|\\\"|>\"}},"
               "\"required\":[\"a\"]}}]}",
               "schema of f at #/a: none of the values of enum or const"},
              {"{\"form\":\"json\",\"tools\":[]}", "a form and tools"},
              {"{\"form\":\"json\",\"tools\":[{}]}", "a name"},
              {"{\"form\":\"json\",\"tools\":[{\"name\":\"f\",\"parameters\":{\"not\":{}},\"strict\":true}]}",
               "schema of f at #: what must not hold"},
              {"{\"form\":\"json\",\"tools\":[{\"name\":\"f\",\"parameters\":{\"type\":\"string\"},\"strict\":true}]}",
               "the arguments of f are an object: the type of their schema must be object, and is \"string\""},
              {"{\"form\":\"json\",\"tools\":[{\"name\":\"f\",\"parameters\":{\"type\":[]},\"strict\":true}]}",
               "must be object, and is []"},
              {"{\"form\":\"json\",\"tools\":[{\"name\":\"f\",\"parameters\":[],\"strict\":true}]}",
               "the type of their schema must be object"},
              {"{\"form\":\"json\",\"tools\":[{\"name\":\"f\",\"parameters\":{\"enum\":[\"a\"]},\"strict\":true}]}",
               "schema of f"},
              {"{\"form\":\"json\",\"tools\":[{\"name\":\"f\",\"parameters\":{\"$ref\":\"#/a\"},\"strict\":true}]}",
               "schema of f"}};
  grammar_world w;
  (void)state;
  assert_true(grammar_world_small(&w));
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_grammar *g;
    weft_error error = {{0}};
    weft_status status =
        weft_grammar_compile(WEFT_GRAMMAR_CALLS, rows[i].text, strlen(rows[i].text), w.trie, &g, NULL, &error);
    assert_int_not_equal(status, WEFT_OK);
    if (strstr(error.text, rows[i].words) == NULL) fail_msg("%s", error.text);
  }
  grammar_world_close(&w);
}

static weft_status nothing_more(weft_grammar *g, weft_grammar_work *work, weft_error *error) {
  (void)g;
  (void)work;
  (void)error;
  return WEFT_OK;
}

int main(int argc, char **argv) {
  static const grammar_way calls = {nothing_more, grammar_sample, read_arguments};
  if (argc > 1) return grammar_tool(argc, argv, &calls);
  const struct CMUnitTest tests[] = {cmocka_unit_test(answers_are_calls),
                                     cmocka_unit_test(free_text_and_markers),
                                     cmocka_unit_test(whole_answers),
                                     cmocka_unit_test(refusals),
                                     cmocka_unit_test(arguments_fit_in_every_form),
                                     cmocka_unit_test(native_forms),
                                     cmocka_unit_test(depth_is_that_of_the_reader),
                                     cmocka_unit_test(arguments_are_an_object)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
