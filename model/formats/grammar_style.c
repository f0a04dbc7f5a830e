/* SPDX-License-Identifier: MIT */
#include "model/formats/grammar_style.h"

#include <string.h>

#include "model/formats/grammar_json.h"
#include "model/text/calls.h"
#include "model/text/json_tree.h"

enum {
  NAME_MAX = 64, /* characters of a name that the model chooses */
  STATES_LARGE = 128
};

static uint32_t put_words(grammar_builder *b, uint32_t from, const char *words) {
  return builder_text(b, from, words, strlen(words));
}

/* ---- texts ---- */

/* Large sets lose a character of the mark, since each state would be needed once for every part of the mark. */
static bool exclude_character(grammar_builder *b, automaton *texts, const char *mark) {
  const char *pattern = strcmp(mark, GEMMA_QUOTE) == 0 ? "^[^|]*$" : "^[^<]*$";
  automaton others = automaton_found(b, pattern, strlen(pattern), REGEX_PLAIN),
            left = automaton_both(b, texts, &others);
  bool any = !automaton_is_empty(&left);
  automaton_close(&others);
  automaton_close(any ? texts : &left);
  if (any) *texts = left;
  return any;
}

void style_exclude_mark(grammar_builder *b, automaton *texts, const char *mark) {
  weft_text quoted = {0};
  if (texts->n_states > STATES_LARGE && exclude_character(b, texts, mark)) return;
  for (const char *at = mark; *at != 0; at++)
    weft_text_printf(&quoted, strchr("<>|\"/", *at) != NULL ? "\\%c" : "%c", *at);
  if (weft_text_status(&quoted) != WEFT_OK) {
    builder_fail(b, WEFT_E_NO_MEMORY, "no memory for the grammar");
  } else {
    automaton found = automaton_found(b, quoted.bytes, quoted.n, REGEX_PLAIN);
    automaton_exclude(b, texts, &found);
  }
  weft_text_free(&quoted);
}

static uint32_t emit_texts(grammar_builder *b, uint32_t from, const automaton *texts) {
  uint32_t to = builder_state(b);
  automaton_emit(b, texts, WRITING_PLAIN, from, to);
  return to;
}

/* ---- Gemma ---- */

uint32_t style_string_any(grammar_builder *b, uint32_t from) {
  uint32_t in = builder_marker(b, from, GEMMA_QUOTE), to = builder_state(b);
  builder_text_until(b, in, GRAMMAR_NONE, GEMMA_QUOTE, to);
  return to;
}

/* min to max characters. They are counted one by one, so one that every mark has may not be among them. */
static uint32_t put_sized(grammar_builder *b, uint32_t from, uint32_t min, uint32_t max, const char *but) {
  uint32_t rule = builder_rule_open(b);
  if (!builder_ok(b)) return from;
  builder_others(b, b->rule[rule].first, b->rule[rule].last, but);
  return builder_count(b, from, rule, min, max);
}

uint32_t style_string_sized(grammar_builder *b, uint32_t from, uint32_t min, uint32_t max) {
  return builder_marker(b, put_sized(b, builder_marker(b, from, GEMMA_QUOTE), min, max, "|"), GEMMA_QUOTE);
}

uint32_t style_string_of(grammar_builder *b, uint32_t from, automaton *texts) {
  style_exclude_mark(b, texts, GEMMA_QUOTE);
  return builder_marker(b, emit_texts(b, builder_marker(b, from, GEMMA_QUOTE), texts), GEMMA_QUOTE);
}

/* Whether a name can stand without quotes: what ends one, or begins something else, is none of it. */
static bool is_bare(const char *name) {
  bool word = name[0] != 0 && strstr(name, WEFT_JSON_ZERO) == NULL;
  for (const char *at = name; *at != 0; at++) {
    word = word && (uint8_t)*at > ' ' && strchr(":=,{}[]\"'<|>", *at) == NULL;
  }
  return word;
}

uint32_t style_text(grammar_builder *b, uint32_t from, const char *text) {
  for (const char *zero; (zero = strstr(text, WEFT_JSON_ZERO)) != NULL; text = zero + strlen(WEFT_JSON_ZERO)) {
    from = builder_text(b, builder_text(b, from, text, (size_t)(zero - text)), "", 1);
  }
  return put_words(b, from, text);
}

static uint32_t put_marked(grammar_builder *b, uint32_t from, const char *text) {
  if (strstr(text, GEMMA_QUOTE) != NULL) return GRAMMAR_NONE;
  return builder_marker(b, style_text(b, builder_marker(b, from, GEMMA_QUOTE), text), GEMMA_QUOTE);
}

bool style_writes_name(const grammar_builder *b, bool tag, const char *name) {
  if (tag && strstr(name, WEFT_JSON_ZERO) != NULL) return false;
  if (!tag) return b->style != STYLE_GEMMA || strstr(name, GEMMA_QUOTE) == NULL;
  while (*name != 0 && (uint8_t)*name >= ' ' && *name != (b->tags->typed ? '"' : '>')) name += 1;
  return *name == 0;
}

uint32_t style_key(grammar_builder *b, uint32_t from, const char *name) {
  return is_bare(name) ? put_words(b, from, name) : put_marked(b, from, name);
}

/* What a name has that the model chooses. */
static const char gemma_name[] = "^[A-Za-z0-9_$@.*/+#\\u0080-\\u{10FFFF}-]+$", tags_name[] = "^[A-Za-z0-9_.$-]+$";

static uint32_t put_name_of(grammar_builder *b, uint32_t from, const char *pattern, automaton *names) {
  automaton a = automaton_found(b, pattern, strlen(pattern), REGEX_PLAIN);
  automaton_narrow(b, names, &a);
  return emit_texts(b, from, names);
}

static uint32_t put_name_other(grammar_builder *b, uint32_t from, const char *pattern, uint32_t max,
                               const char *const *name, uint32_t n) {
  automaton names = automaton_sized(b, 1, max), declared = automaton_texts(b, name, n);
  automaton_exclude(b, &names, &declared);
  uint32_t to = put_name_of(b, from, pattern, &names);
  automaton_close(&names);
  return to;
}

uint32_t style_key_other(grammar_builder *b, uint32_t from, const char *const *name, uint32_t n) {
  return put_name_other(b, from, gemma_name, GRAMMAR_NONE, name, n);
}

uint32_t style_key_of(grammar_builder *b, uint32_t from, automaton *names) {
  return put_name_of(b, from, gemma_name, names);
}

static uint32_t put_list(grammar_builder *b, uint32_t from, const json_t *list) {
  uint32_t at = put_words(b, from, "[");
  for (size_t i = 0; i < json_array_size(list) && at != GRAMMAR_NONE; i++) {
    at = style_constant(b, i == 0 ? at : put_words(b, at, ","), json_array_get(list, i));
  }
  return at == GRAMMAR_NONE ? at : put_words(b, at, "]");
}

static uint32_t put_object(grammar_builder *b, uint32_t from, const json_t *object) {
  uint32_t at = put_words(b, from, "{");
  const char *name;
  json_t *value;
  bool first = true;
  json_object_foreach((json_t *)(uintptr_t)object, name, value) {
    if (at != GRAMMAR_NONE) at = style_key(b, first ? at : put_words(b, at, ","), name);
    if (at != GRAMMAR_NONE) at = style_constant(b, put_words(b, at, ":"), value);
    first = false;
  }
  return at == GRAMMAR_NONE ? at : put_words(b, at, "}");
}

uint32_t style_constant(grammar_builder *b, uint32_t from, const json_t *value) {
  if (!builder_step(b, 1)) return from;
  if (json_is_string(value)) return put_marked(b, from, json_string_value(value));
  if (json_is_array(value)) return put_list(b, from, value);
  if (json_is_object(value) && !decimal_is_number(value)) return put_object(b, from, value);
  return json_written_constant(b, from, value);
}

/* ---- tags ---- */

uint32_t style_tag_close(grammar_builder *b, uint32_t from) {
  if (!b->tags->typed) from = put_words(b, from, "\n");
  return put_words(b, builder_marker(b, from, b->tags->behind), "\n");
}

uint32_t style_tag_end(grammar_builder *b, uint32_t from, bool string) {
  const weft_call_tags *tags = b->tags;
  if (!tags->typed) return put_words(b, put_words(b, from, tags->argument_end), "\n");
  return put_words(b, put_words(b, from, string ? WEFT_CALL_STRING : WEFT_CALL_VALUE), tags->argument_end);
}

uint32_t style_argument_any(grammar_builder *b, uint32_t from) {
  uint32_t closed = builder_state(b);
  builder_text_until(b, from, GRAMMAR_NONE, b->tags->behind, closed);
  return put_words(b, closed, "\n");
}

uint32_t style_argument_sized(grammar_builder *b, uint32_t from, uint32_t min, uint32_t max) {
  return style_tag_close(b, put_sized(b, from, min, max, "<"));
}

uint32_t style_argument_of(grammar_builder *b, uint32_t from, automaton *texts) {
  style_exclude_mark(b, texts, b->tags->behind);
  return style_tag_close(b, emit_texts(b, from, texts));
}

uint32_t style_tag(grammar_builder *b, uint32_t from, const char *name) {
  if (!style_writes_name(b, true, name)) return GRAMMAR_NONE;
  return put_words(b, builder_marker(b, from, b->tags->argument), name);
}

uint32_t style_tag_other(grammar_builder *b, uint32_t from, const char *const *name, uint32_t n) {
  return put_name_other(b, builder_marker(b, from, b->tags->argument), tags_name, NAME_MAX, name, n);
}

uint32_t style_tag_of(grammar_builder *b, uint32_t from, automaton *names) {
  automaton sized = automaton_sized(b, 1, NAME_MAX);
  automaton_narrow(b, names, &sized);
  return put_name_of(b, builder_marker(b, from, b->tags->argument), tags_name, names);
}
