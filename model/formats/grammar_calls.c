/* SPDX-License-Identifier: MIT */
/* Calls of tools as rules: in the form that the model writes, with arguments that fit the schema of what is called.
 *
 * Law: an answer of such a grammar is read by model/text/calls.h as the calls that it is, and its free text as text:
 * the
 * letters of a marker never stand in it. */
#include <jansson.h>
#include <string.h>

#include "model/formats/grammar_schema.h"
#include "model/formats/grammar_style.h"
#include "model/text/calls.h"
#include "model/text/json_tree.h"

typedef struct calls_grammar {
  grammar_builder *b;
  weft_call_form form;
  const char *open, *close; /* markers; NULL: none */
  bool several, free;
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
  builder_fail(b, WEFT_E_INVALID,
               "the arguments of %.64s are an object: the type of their schema must be object%s%.60s", name,
               type == NULL ? "" : ", and is ", text.refused || type == NULL ? "" : text.bytes);
  weft_text_free(&text);
}

static uint32_t add_schema(grammar_builder *b, const json_t *schema, const char *name, bool lenient) {
  weft_text text = {0}, types = {0};
  weft_json_write(schema, &text);
  bool tags = b->style == STYLE_TAGS;
  weft_status status = weft_text_status(&text);
  if (status == WEFT_OK && tags) status = weft_callable_types(text.bytes, &types);
  if (status != WEFT_OK) builder_fail(b, status, "no memory for the schema");
  uint32_t rule = builder_ok(b) ? schema_add_rule(b, schema, name, tags ? types.bytes : NULL, lenient) : 0;
  weft_text_free(&text);
  weft_text_free(&types);
  return rule;
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
    builder_call(b, from, to, add_schema(b, objects, name, !strict));
  }
  json_decref(objects);
}

/* Between tags: any texts of any names. */
static uint32_t add_any_tags(grammar_builder *b, uint32_t from) {
  uint32_t rule = builder_rule_open(b);
  if (!builder_ok(b)) return from;
  uint32_t first = b->rule[rule].first, last = b->rule[rule].last, name = style_tag_other(b, first, NULL, 0);
  builder_empty(b, style_argument_any(b, style_tag_end(b, name, true)), last);
  if (b->tags->typed) builder_empty(b, style_tag_close(b, json_value_any(b, style_tag_end(b, name, false))), last);
  return builder_count(b, from, rule, 0, GRAMMAR_NONE);
}

/* What stands before a name, between it and the arguments, and behind these. */
static uint32_t put_head(calls_grammar *g, uint32_t from, const char *name) {
  static const char *const behind[WEFT_CALL_FORMS] = {
      [WEFT_CALLS_GEMMA] = "", [WEFT_CALLS_LLAMA] = "\", \"parameters\": "};
  grammar_builder *b = g->b;
  const char *middle = behind[g->form];
  if (b->style == STYLE_TAGS) {
    from = builder_marker(b, put_words(b, from, g->form == WEFT_CALLS_QWEN ? "\n" : ""), b->tags->open);
    return put_words(b, put_words(b, put_words(b, from, name), b->tags->open_end), "\n");
  }
  from = put_words(b, from, b->style == STYLE_GEMMA ? "call:" : "{\"name\": \"");
  return put_words(b, put_words(b, from, name), middle == NULL ? "\", \"arguments\": " : middle);
}

static uint32_t put_tail(calls_grammar *g, uint32_t from) {
  if (g->b->style == STYLE_TAGS) return put_words(g->b, builder_marker(g->b, from, g->b->tags->close), "\n");
  return put_words(g->b, from, g->b->style == STYLE_GEMMA ? "" : "}");
}

/* {"name": "NAME", "arguments": {...}}, call:NAME{...}, or a function between tags. */
static void add_tool(calls_grammar *g, const json_t *tool) {
  grammar_builder *b = g->b;
  const char *name = json_string_value(json_object_get(tool, "name"));
  bool strict = json_is_true(json_object_get(tool, "strict")), any = json_object_get(tool, "parameters") == NULL;
  b->may_widen = b->may_widen || (!strict && !any);
  any = any || (!strict && b->widest);
  if (name == NULL) builder_fail(b, WEFT_E_INVALID, "a tool must have a name");
  if (!builder_ok(b)) return;
  uint32_t at = put_head(g, b->rule[g->object].first, name);
  if (any) {
    at = b->style == STYLE_TAGS ? add_any_tags(b, at) : json_object_any(b, at);
  } else {
    uint32_t to = builder_state(b);
    add_arguments(g, tool, name, at, to);
    at = to;
  }
  builder_empty(b, put_tail(g, at), b->rule[g->object].last);
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
  return g->close == NULL || g->form == WEFT_CALLS_DSML
             ? from
             : builder_marker(g->b, lines ? put_words(g->b, from, "\n") : from, g->close);
}

/* All calls, from after the first opening marker on. */
static uint32_t add_calls(calls_grammar *g, uint32_t from) {
  grammar_builder *b = g->b;
  bool list = g->form == WEFT_CALLS_MISTRAL || (g->form == WEFT_CALLS_JSON && g->several),
       one_pair = g->form == WEFT_CALLS_DSML; /* of markers around all calls */
  uint32_t first = builder_state(b);
  builder_empty(b, list || one_pair ? put_words(b, from, list ? "[" : "\n") : from, first);
  uint32_t end = add_call(g, first);
  if (g->several) {
    bool none = g->form == WEFT_CALLS_GEMMA || one_pair;
    const char *between = list ? ", " : g->form == WEFT_CALLS_LLAMA ? "; " : none ? "" : "\n";
    uint32_t next = put_words(b, end, between);
    bool marked = !list && !one_pair && g->open != NULL && g->form != WEFT_CALLS_LLAMA;
    builder_empty(b, marked ? builder_marker(b, next, g->open) : next, first);
  }
  if (one_pair) return builder_marker(b, end, g->close);
  return list ? put_words(b, end, "]") : end;
}

/* The answer is calls, or text, with calls after it where a marker says that they begin. */
static void add_free(calls_grammar *g, uint32_t first, uint32_t last) {
  grammar_builder *b = g->b;
  bool marked = g->open != NULL && g->form != WEFT_CALLS_LLAMA;
  uint32_t text = builder_state(b), calls = builder_state(b);
  if (marked) {
    builder_empty(b, first, text);
    builder_empty(b, add_calls(g, calls), last);
    builder_text_until(b, text, last, g->open, calls);
    return;
  }
  builder_empty(b, add_calls(g, first), last);
  builder_empty(b, first, last);
  static const char begins[] = "\t\n\r <[{"; /* how a call begins, or its marker */
  builder_others(b, first, text, begins);
  if (g->open != NULL) {
    builder_text_until(b, text, last, g->open, GRAMMAR_NONE);
  } else {
    builder_others(b, text, text, "");
    builder_empty(b, text, last);
  }
}

static bool read_form(calls_grammar *g, const json_t *root) {
  const char *word = json_string_value(json_object_get(root, "form"));
  uint32_t form = 0;
  while (form < WEFT_CALL_FORMS && (word == NULL || strcmp(word, weft_call_form_name((weft_call_form)form)) != 0)) {
    form += 1;
  }
  if (form == WEFT_CALL_FORMS) return false;
  g->form = (weft_call_form)form;
  g->open = weft_call_form_open(g->form);
  g->close = weft_call_form_close(g->form);
  g->several = json_is_true(json_object_get(root, "several"));
  g->free = json_is_true(json_object_get(root, "free"));
  return true;
}

void grammar_add_calls(grammar_builder *b, const json_t *root) {
  calls_grammar g = {.b = b};
  const json_t *tools = json_object_get(root, "tools");
  if (!read_form(&g, root) || !json_is_array(tools) || json_array_size(tools) == 0) {
    builder_fail(b, WEFT_E_INVALID, "calls must be a JSON object with a form and tools");
  }
  b->root = builder_rule_open(b);
  g.object = builder_rule_open(b);
  bool tags = g.form == WEFT_CALLS_QWEN || g.form == WEFT_CALLS_DSML;
  b->style = g.form == WEFT_CALLS_GEMMA ? STYLE_GEMMA : tags ? STYLE_TAGS : STYLE_JSON;
  b->tags = tags ? weft_call_form_tags(g.form) : NULL;
  for (size_t i = 0; i < json_array_size(tools) && builder_ok(b); i++) add_tool(&g, json_array_get(tools, i));
  b->style = STYLE_JSON;
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
  json_t *root = weft_json_read(text, n, WEFT_JSON_ZEROS, &error);
  grammar_add_calls(b, root);
  json_decref(root);
}

/* ---- whole answers ---- */

/* What is thought, from before it to behind it, with line ends after a tag. */
static uint32_t add_thinking(grammar_builder *b, const json_t *thinking, uint32_t from) {
  const char *open = json_string_value(json_object_get(thinking, "open"));
  const char *close = json_string_value(json_object_get(thinking, "close"));
  uint32_t closes = close == NULL ? 0 : weft_token_trie_marker(b->trie, close);
  if (open == NULL || close == NULL || open[0] == 0 || close[0] == 0) {
    builder_fail(b, WEFT_E_INVALID, "thinking must have a marker before it and one behind it");
    return from;
  }
  bool begun = json_is_true(json_object_get(thinking, "begun"));
  uint32_t in = builder_state(b), out = builder_state(b), to = builder_state(b);
  if (!begun) builder_empty(b, from, to);
  builder_empty(b, begun ? from : builder_marker(b, from, open), in);
  if (closes != 0) {
    builder_characters(b, in, in, 0, 0x10FFFF);
    builder_bytes(b, in, out, (uint8_t)closes, (uint8_t)closes);
  } else {
    builder_text_until(b, in, GRAMMAR_NONE, close, out);
  }
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
  json_t *root = weft_json_read(text, n, WEFT_JSON_ZEROS, &error);
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
