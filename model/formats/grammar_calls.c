/* SPDX-License-Identifier: MIT */
/* Calls of tools as rules: in the form that the model writes, with arguments that fit the schema of what is called.
 *
 * Law: an answer of such a grammar is read by model/text/calls.h as the calls that it is, and its free text as text:
 * the
 * letters of a marker never stand in it. */
#include <jansson.h>
#include <string.h>

#include "model/formats/grammar_schema.h"
#include "model/text/calls.h"
#include "model/text/json_tree.h"

typedef struct calls_grammar {
  grammar_builder *b;
  weft_call_form form;
  const char *open, *close; /* markers; NULL: none */
  bool several, free, loose;
  uint32_t object; /* the rule of one call without its markers */
} calls_grammar;

static uint32_t put_words(grammar_builder *b, uint32_t from, const char *words) {
  return builder_text(b, from, words, strlen(words));
}

/* Whether a schema's "type" lets an object through. */
static bool allows_object(const json_t *type) {
  bool allowed = type == NULL || json_is_null(type);
  size_t n = json_is_array(type) ? json_array_size(type) : 1;
  for (size_t i = 0; i < n && !allowed; i++) {
    const char *word = json_string_value(json_is_array(type) ? json_array_get(type, i) : type);
    allowed = word != NULL && strcmp(word, "object") == 0;
  }
  return allowed;
}

static void refuse_type(grammar_builder *b, const char *name, const json_t *type) {
  weft_text text = {0};
  if (type != NULL) weft_json_write(type, &text);
  weft_text_append(&text, "", 1);
  builder_fail(b, WEFT_E_INVALID,
               "the arguments of %.64s are an object: the type of their schema must be object%s%.60s", name,
               type == NULL ? "" : ", and is ", text.refused || type == NULL ? "" : text.bytes);
  weft_text_free(&text);
}

/* Arguments are an object, also where their schema allows more: any value where it is {}; and where it allows none and
 * is not strict. */
static void add_arguments(calls_grammar *g, const json_t *tool, const char *name, uint32_t from, uint32_t to) {
  grammar_builder *b = g->b;
  const json_t *schema = json_object_get(tool, "parameters"), *type = json_object_get(schema, "type");
  bool strict = json_is_true(json_object_get(tool, "strict"));
  if (strict && (!json_is_object(schema) || !allows_object(type))) {
    refuse_type(b, name, type);
    return;
  }
  json_t *objects = json_is_object(schema) ? json_copy((json_t *)(uintptr_t)schema) : json_object();
  if (json_object_set_new(objects, "type", json_string("object")) != 0) {
    builder_fail(b, WEFT_E_NO_MEMORY, "no memory for the schema");
  } else {
    builder_call(b, from, to, schema_add_rule(b, objects, name, !strict));
  }
  json_decref(objects);
}

/* {"name": "NAME", "arguments": {...}} */
static void add_tool(calls_grammar *g, const json_t *tool) {
  grammar_builder *b = g->b;
  const char *name = json_string_value(json_object_get(tool, "name"));
  const json_t *schema = json_object_get(tool, "parameters");
  if (name == NULL) {
    builder_fail(b, WEFT_E_INVALID, "a tool must have a name");
    return;
  }
  if (!builder_ok(b)) return;
  uint32_t at = put_words(b, b->rule[g->object].first, "{\"name\": \"");
  at = put_words(b, put_words(b, at, name),
                 g->form == WEFT_CALLS_LLAMA ? "\", \"parameters\": " : "\", \"arguments\": ");
  if (schema == NULL) {
    at = json_object_any(b, at);
  } else {
    uint32_t to = builder_state(b);
    add_arguments(g, tool, name, at, to);
    at = to;
  }
  builder_empty(b, put_words(b, at, "}"), b->rule[g->object].last);
}

static uint32_t call_object(calls_grammar *g, uint32_t from) {
  uint32_t to = builder_state(g->b);
  builder_call(g->b, from, to, g->object);
  return to;
}

/* One call, from after its opening marker to after its closing one. */
static uint32_t add_call(calls_grammar *g, uint32_t from) {
  bool lines = g->form == WEFT_CALLS_HERMES;
  from = call_object(g, lines ? put_words(g->b, from, "\n") : from);
  return g->close == NULL ? from : builder_marker(g->b, lines ? put_words(g->b, from, "\n") : from, g->close);
}

/* All calls, from after the first opening marker on. */
static uint32_t add_calls(calls_grammar *g, uint32_t from) {
  grammar_builder *b = g->b;
  bool list = g->form == WEFT_CALLS_MISTRAL || (g->form == WEFT_CALLS_JSON && g->several);
  uint32_t first = builder_state(b);
  builder_empty(b, list ? put_words(b, from, "[") : from, first);
  uint32_t end = add_call(g, first);
  if (g->several) {
    const char *between = list ? ", " : g->form == WEFT_CALLS_LLAMA ? "; " : "\n";
    uint32_t next = put_words(b, end, between);
    bool marked = !list && g->open != NULL && g->form == WEFT_CALLS_HERMES;
    builder_empty(b, marked ? builder_marker(b, next, g->open) : next, first);
  }
  return list ? put_words(b, end, "]") : end;
}

/* Characters but those listed, all of which are ASCII and sorted. */
static void add_others(grammar_builder *b, uint32_t from, uint32_t to, const char *sorted) {
  uint32_t low = 0;
  for (; *sorted != 0; sorted++) {
    if ((uint8_t)*sorted > low) builder_characters(b, from, to, low, (uint8_t)*sorted - 1u);
    low = (uint8_t)*sorted + 1u;
  }
  builder_characters(b, from, to, low, 0x10FFFF);
}

/* Text in which the letters of the marker do not stand: after k of its letters the state k is reached. The first
 * letter of a marker stands in it once, so after a letter that does not fit at most that one counts. `after`: where
 * the marker leads; GRAMMAR_NONE: nowhere. The answer may end in each of these states. */
static void add_text(grammar_builder *b, uint32_t from, uint32_t end, const char *marker, uint32_t after) {
  uint32_t n = (uint32_t)strlen(marker), byte = weft_token_trie_marker(b->trie, marker), at = from, start = from;
  uint32_t one = n > 1 ? builder_state(b) : from;
  for (uint32_t k = 0; k < n && builder_ok(b); k++) {
    char others[3] = {marker[0], 0, 0};
    if (k > 0) others[marker[k] > marker[0] ? 1 : 0] = marker[k];
    if (k > 0) others[marker[k] > marker[0] ? 0 : 1] = marker[0];
    uint32_t next = k == 0 ? one : k + 1 == n ? after : builder_state(b);
    if (next != GRAMMAR_NONE) builder_bytes(b, at, next, (uint8_t)marker[k], (uint8_t)marker[k]);
    if (k > 0) builder_bytes(b, at, one, (uint8_t)marker[0], (uint8_t)marker[0]);
    add_others(b, at, start, others);
    builder_empty(b, at, end);
    if (byte != 0 && after != GRAMMAR_NONE) builder_bytes(b, at, after, (uint8_t)byte, (uint8_t)byte);
    at = next;
  }
}

/* The answer is calls, or text, with calls after it where a marker says that they begin. */
static void add_free(calls_grammar *g, uint32_t first, uint32_t last) {
  grammar_builder *b = g->b;
  bool marked = g->open != NULL && g->form != WEFT_CALLS_LLAMA;
  uint32_t text = builder_state(b), calls = builder_state(b);
  if (marked) {
    builder_empty(b, first, text);
    builder_empty(b, add_calls(g, calls), last);
    add_text(b, text, last, g->open, calls);
    return;
  }
  builder_empty(b, add_calls(g, first), last);
  builder_empty(b, first, last);
  static const char begins[] = "\t\n\r <[{"; /* how a call begins, or its marker */
  add_others(b, first, text, begins);
  if (g->open != NULL) {
    add_text(b, text, last, g->open, GRAMMAR_NONE);
  } else {
    add_others(b, text, text, "");
    builder_empty(b, text, last);
  }
}

static bool read_form(calls_grammar *g, const json_t *root) {
  const char *word = json_string_value(json_object_get(root, "form"));
  uint32_t form = 0;
  while (form < WEFT_CALL_FORMS && (word == NULL || strcmp(word, weft_call_form_name((weft_call_form)form)) != 0)) {
    form += 1;
  }
  g->loose = json_is_true(json_object_get(root, "loose"));
  if (form == WEFT_CALL_FORMS) return false;
  bool held = weft_call_form_held((weft_call_form)form) == (weft_call_form)form;
  if (held == g->loose) return false;
  g->form = (weft_call_form)form;
  g->open = weft_call_form_open(g->form);
  g->close = weft_call_form_close(g->form);
  g->several = json_is_true(json_object_get(root, "several"));
  g->free = json_is_true(json_object_get(root, "free"));
  return true;
}

/* The head of a call in one of the two forms that are no JSON, and free text up to the marker that ends it. */
static void add_loose(calls_grammar *g, const json_t *tools, uint32_t first, uint32_t last) {
  grammar_builder *b = g->b;
  bool gemma = g->form == WEFT_CALLS_GEMMA;
  uint32_t names = put_words(b, builder_marker(b, first, g->open), gemma ? "call:" : "\n<function=");
  uint32_t text = builder_state(b), nowhere = builder_state(b), end = builder_state(b);
  uint32_t quote = gemma ? weft_token_trie_marker(b->trie, "<|\"|>") : 0;
  for (size_t i = 0; i < json_array_size(tools) && builder_ok(b); i++) {
    const char *name = json_string_value(json_object_get(json_array_get(tools, i), "name"));
    if (name == NULL) builder_fail(b, WEFT_E_INVALID, "a tool must have a name");
    if (name != NULL) builder_empty(b, put_words(b, put_words(b, names, name), gemma ? "{" : ">\n"), text);
  }
  add_text(b, text, nowhere, g->close, end);
  if (quote != 0) builder_bytes(b, text, text, (uint8_t)quote, (uint8_t)quote);
  builder_empty(b, end, last);
  if (g->several) builder_empty(b, gemma ? end : put_words(b, end, "\n"), first);
}

void grammar_add_calls(grammar_builder *b, const json_t *root) {
  calls_grammar g = {.b = b};
  const json_t *tools = json_object_get(root, "tools");
  if (!read_form(&g, root) || !json_is_array(tools) || json_array_size(tools) == 0) {
    builder_fail(b, WEFT_E_INVALID, "calls must be a JSON object with a form and tools");
  }
  b->root = builder_rule_open(b);
  if (builder_ok(b) && g.loose) {
    add_loose(&g, tools, b->rule[b->root].first, b->rule[b->root].last);
    return;
  }
  g.object = builder_rule_open(b);
  for (size_t i = 0; i < json_array_size(tools) && builder_ok(b); i++) add_tool(&g, json_array_get(tools, i));
  if (!builder_ok(b)) return;
  uint32_t first = b->rule[b->root].first, last = b->rule[b->root].last;
  bool marked = g.open != NULL && g.form != WEFT_CALLS_LLAMA;
  if (g.free) {
    add_free(&g, first, last);
  } else {
    builder_empty(b, add_calls(&g, marked ? builder_marker(b, first, g.open) : first), last);
  }
}

void grammar_read_calls(grammar_builder *b, const char *text, size_t n) {
  json_error_t error;
  json_t *root = weft_json_read(text, n, 0, &error);
  grammar_add_calls(b, root);
  json_decref(root);
}

/* ---- whole answers ---- */

/* What is thought, from before it to behind it, with line ends after a tag. */
static uint32_t add_thinking(grammar_builder *b, const json_t *thinking, uint32_t from) {
  const char *open = json_string_value(json_object_get(thinking, "open"));
  const char *close = json_string_value(json_object_get(thinking, "close"));
  uint32_t opens = open == NULL ? 0 : weft_token_trie_marker(b->trie, open);
  uint32_t closes = close == NULL ? 0 : weft_token_trie_marker(b->trie, close);
  if (opens == 0 || closes == 0) {
    builder_fail(b, WEFT_E_UNSUPPORTED,
                 "thinking before an answer that is held to a format needs markers that are special tokens of the "
                 "vocabulary: leave one of the two out");
    return from;
  }
  bool begun = json_is_true(json_object_get(thinking, "begun"));
  uint32_t in = builder_state(b), out = builder_state(b), to = builder_state(b);
  if (begun) {
    builder_empty(b, from, in);
  } else {
    builder_empty(b, from, to);
    builder_bytes(b, from, in, (uint8_t)opens, (uint8_t)opens);
  }
  builder_characters(b, in, in, 0, 0x10FFFF);
  builder_bytes(b, in, out, (uint8_t)closes, (uint8_t)closes);
  builder_empty(b, out, to);
  if (strcmp(close, "</think>") == 0) { /* a line end or two, which the stream leaves out */
    uint32_t one = builder_state(b);
    builder_bytes(b, out, one, '\n', '\n');
    builder_empty(b, one, to);
    builder_bytes(b, one, to, '\n', '\n');
  }
  return to;
}

void grammar_read_answer(grammar_builder *b, const char *text, size_t n) {
  json_error_t error;
  json_t *root = weft_json_read(text, n, 0, &error);
  const json_t *thinking = json_object_get(root, "thinking"), *calls = json_object_get(root, "calls");
  const json_t *format = json_object_get(root, "format"), *of = json_object_get(format, "text");
  if (json_is_null(thinking)) thinking = NULL;
  if (json_is_null(calls)) calls = NULL;
  json_int_t kind = json_integer_value(json_object_get(format, "kind"));
  bool nested = kind >= WEFT_GRAMMAR_JSON_OBJECT && kind < WEFT_GRAMMAR_CALLS && json_is_string(of);
  if ((calls == NULL && format == NULL) || (format != NULL && !nested)) {
    builder_fail(b, WEFT_E_INVALID, "an answer must be a JSON object with calls or a format");
  }
  uint32_t rule = builder_rule_open(b);
  if (builder_ok(b)) {
    uint32_t first = b->rule[rule].first, last = b->rule[rule].last;
    uint32_t at = thinking == NULL ? first : add_thinking(b, thinking, first);
    if (calls != NULL && builder_ok(b)) grammar_add_calls(b, calls);
    if (calls != NULL && builder_ok(b)) builder_call(b, at, last, b->root);
    if (format != NULL && builder_ok(b)) {
      grammar_read(b, (weft_grammar_kind)kind, json_string_value(of), json_string_length(of));
    }
    if (format != NULL && builder_ok(b)) builder_call(b, at, last, b->root);
    b->root = rule;
  }
  json_decref(root);
}
