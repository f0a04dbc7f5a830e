/* SPDX-License-Identifier: MIT */
/* Texts of a schema: patterns, formats, lengths, and what must not be.
 *
 * Law: one pattern or format by itself is read straight into rules, so that long repetitions stay counts; where several
 * things speak of a text, they become one automaton. A format beside a pattern with which nothing would fit is left
 * out, as the specification allows. */
#include <string.h>

#include "base/memory.h"
#include "model/formats/grammar_schema.h"
#include "model/formats/grammar_style.h"
#include "model/text/calls.h"

enum { LONGEST_BESIDE = 256 }; /* characters, where another keyword speaks of the text, too */

#define OCTET "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define DATE \
  "([12]\\d{3}-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8])))"
#define TIME  "(([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,6})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d))"
#define LABEL "([A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?)"
#define GROUP "[0-9a-f]{1,4}"

const char *schema_format_pattern(const char *name) {
  static const struct {
    const char *name, *pattern;
  } formats[] = {
      {"date", "^" DATE "$"},
      {"time", "^" TIME "$"},
      {"date-time", "^" DATE "T" TIME "$"},
      {"duration",
       "^P(\\d{1,4}Y(\\d{1,2}M(\\d{1,3}D)?)?|\\d{1,4}M(\\d{1,3}D)?|\\d{1,4}D|\\d{1,4}W|T(\\d{1,4}H(\\d{1,"
       "2}M(\\d{1,2}S)?)?|\\d{1,4}M(\\d{1,2}S)?|\\d{1,5}S))$"},
      {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
      {"email", "^[A-Za-z0-9_%+-]{1,32}(\\.[A-Za-z0-9_%+-]{1,16}){0,2}@" LABEL "(\\." LABEL "){0,3}\\.[A-Za-z]{2,8}$"},
      {"hostname", "^" LABEL "(\\." LABEL "){0,4}$"},
      {"ipv4", "^" OCTET "(\\." OCTET "){3}$"},
      {"ipv6", "^" GROUP "(:" GROUP "){7}$"},
      {"uri", "^https?://" LABEL "(\\." LABEL "){0,4}(:[1-9]\\d{0,3})?(/[A-Za-z0-9._~-]{0,64}){0,8}"
              "(\\?[A-Za-z0-9._~=&-]{0,128})?(#[A-Za-z0-9._~-]{0,64})?$"}};
  for (uint32_t i = 0; i < sizeof formats / sizeof *formats; i++) {
    if (strcmp(formats[i].name, name) == 0) return formats[i].pattern;
  }
  return NULL;
}

/* A builder that fails by itself, for what may be given up. */
static bool read_apart(schema_reader *r, const char *pattern, regex_reading reading, automaton *out) {
  weft_error error = {{0}};
  grammar_builder apart = *r->b;
  apart.error = &error;
  *out = automaton_found(&apart, pattern, strlen(pattern), reading);
  bool refused = apart.status != WEFT_E_NO_MEMORY && apart.n_steps <= GRAMMAR_STEPS_MAX;
  bool tells = apart.status != WEFT_OK;
  r->b->n_steps = apart.n_steps;
  if (tells && refused) schema_widen(r, "pattern '%.40s': %.200s", pattern, error.text);
  if (tells && !refused) schema_fail(r, apart.status, "pattern '%.40s': %.200s", pattern, error.text);
  return !tells;
}

/* Whether a pattern can be read; it is widened where it cannot. */
static bool is_readable(schema_reader *r, const char *pattern) {
  weft_error error = {{0}};
  grammar_builder apart = *r->b;
  apart.error = &error;
  expressions e = {.b = &apart, .text = pattern, .n_text = strlen(pattern)};
  (void)regex_read(&e);
  expressions_close(&e);
  r->b->n_steps = apart.n_steps;
  if (apart.status != WEFT_OK) schema_widen(r, "pattern '%.40s': %.200s", pattern, error.text);
  return apart.status == WEFT_OK;
}

automaton schema_pattern(schema_reader *r, const char *pattern, regex_reading reading, bool *known) {
  automaton a = {.everything = GRAMMAR_NONE};
  *known = pattern != NULL && builder_ok(r->b) && read_apart(r, pattern, reading, &a);
  return a;
}

/* Narrows by a list of patterns, or of formats. */
static void narrow_by(schema_reader *r, const json_t *list, bool formats, automaton *a) {
  for (size_t i = 0; i < json_array_size(list) && builder_ok(r->b); i++) {
    const char *text = json_string_value(json_array_get(list, i));
    bool known;
    if (formats) text = schema_format_pattern(text);
    automaton one = schema_pattern(r, text, REGEX_SURELY, &known);
    if (known) automaton_narrow(r->b, a, &one);
    if (!known) automaton_close(&one);
  }
}

static void exclude_patterns(schema_reader *r, const json_t *list, automaton *a) {
  for (size_t i = 0; i < json_array_size(list) && builder_ok(r->b); i++) {
    bool known;
    automaton one = schema_pattern(r, json_string_value(json_array_get(list, i)), REGEX_PERHAPS, &known);
    if (known) automaton_exclude(r->b, a, &one);
    if (!known) automaton_close(&one);
  }
}

static automaton texts_of(schema_reader *r, const json_t *list) {
  automaton a = {.everything = GRAMMAR_NONE};
  size_t n = json_array_size(list);
  const char **text = (const char **)weft_alloc(n + 1, sizeof *text);
  uint32_t kept = 0;
  if (text == NULL) schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
  for (size_t i = 0; i < n && text != NULL; i++) {
    const char *one = json_string_value(json_array_get(list, i));
    if (one != NULL) text[kept++] = one;
  }
  if (text != NULL && builder_ok(r->b)) a = automaton_texts(r->b, text, kept);
  weft_free((void *)text);
  return a;
}

automaton schema_texts(schema_reader *r, const json_t *flat) {
  const json_t *constants = json_object_get(flat, "enum"), *formats = json_object_get(flat, FLAT_FORMATS);
  const json_t *none = json_object_get(flat, FLAT_NO_TEXTS);
  uint32_t min = schema_count(r, flat, "minLength", 0), max = schema_count(r, flat, "maxLength", GRAMMAR_NONE);
  bool beside_pattern = json_object_get(flat, FLAT_PATTERNS) != NULL && json_array_size(formats) == 1;
  automaton a = {.everything = GRAMMAR_NONE};
  if ((schema_flat_bits(r, flat) & TYPE_STRING) == 0) return a;
  if (max != GRAMMAR_NONE && max > LONGEST_BESIDE) max = min > LONGEST_BESIDE ? min : LONGEST_BESIDE;
  a = automaton_sized(r->b, min, max);
  if (constants != NULL) {
    automaton one = texts_of(r, constants);
    automaton_narrow(r->b, &a, &one);
    formats = NULL;
  }
  narrow_by(r, json_object_get(flat, FLAT_PATTERNS), false, &a);
  exclude_patterns(r, json_object_get(flat, FLAT_NO_PATTERNS), &a);
  if (none != NULL) {
    automaton one = texts_of(r, none);
    automaton_exclude(r->b, &a, &one);
  }
  if (formats != NULL && builder_ok(r->b)) {
    automaton all = automaton_sized(r->b, 0, GRAMMAR_NONE);
    automaton both = automaton_both(r->b, &a, &all);
    automaton_close(&all);
    narrow_by(r, formats, true, &both);
    bool left_out = automaton_is_empty(&both) && beside_pattern;
    automaton_close(left_out ? &both : &a);
    if (!left_out) a = both;
  }
  return a;
}

/* The first pattern of a text, or that of its first format. */
static const char *find_alone(const json_t *flat) {
  const json_t *patterns = json_object_get(flat, FLAT_PATTERNS), *formats = json_object_get(flat, FLAT_FORMATS);
  const char *format = json_string_value(json_array_get(formats, 0));
  if (patterns != NULL) return json_string_value(json_array_get(patterns, 0));
  return format == NULL ? NULL : schema_format_pattern(format);
}

/* A string of one pattern alone; GRAMMAR_NONE: the mark that ends it may stand in the pattern. */
static uint32_t emit_alone(schema_reader *r, const char *pattern, uint32_t from) {
  static const pattern_writing ways[STYLES] = {
      [STYLE_JSON] = {WRITING_JSON, 0}, [STYLE_TAGS] = {WRITING_TAGS, 0}, [STYLE_GEMMA] = {WRITING_PLAIN, '|'}};
  grammar_builder *b = r->b;
  bool gemma = b->style == STYLE_GEMMA;
  uint32_t in = gemma ? builder_marker(b, from, GEMMA_QUOTE) : builder_text(b, from, "\"", 1), out = builder_state(b);
  if (!grammar_read_pattern(b, pattern, strlen(pattern), &ways[b->style], in, out)) return GRAMMAR_NONE;
  return gemma ? builder_marker(b, out, GEMMA_QUOTE) : builder_text(b, out, "\"", 1);
}

uint32_t schema_emit_string(schema_reader *r, const json_t *flat, uint32_t from) {
  grammar_builder *b = r->b;
  const json_t *patterns = json_object_get(flat, FLAT_PATTERNS), *formats = json_object_get(flat, FLAT_FORMATS);
  bool sized = json_object_get(flat, "minLength") != NULL || json_object_get(flat, "maxLength") != NULL;
  bool excludes = json_object_get(flat, FLAT_NO_PATTERNS) != NULL || json_object_get(flat, FLAT_NO_TEXTS) != NULL;
  size_t n = json_array_size(patterns) + json_array_size(formats);
  uint32_t min = schema_count(r, flat, "minLength", 0), max = schema_count(r, flat, "maxLength", GRAMMAR_NONE);
  if (!builder_ok(b)) return from;
  if (max < min) {
    schema_contradict(r, "maxLength is less than minLength");
    return builder_state(b);
  }
  if (n == 0 && !excludes) return json_string_sized(b, from, min, max);
  const char *alone = n == 1 && !sized && !excludes ? find_alone(flat) : NULL;
  if (alone != NULL && r->lenient && !is_readable(r, alone)) return json_string_any(b, from);
  if (alone != NULL) {
    uint32_t to = emit_alone(r, alone, from);
    if (to != GRAMMAR_NONE) return to;
  }
  automaton a = schema_texts(r, flat);
  if (builder_ok(b) && automaton_is_empty(&a)) schema_contradict(r, "no text fits all that is said of it");
  uint32_t to = json_string_of(b, from, &a);
  automaton_close(&a);
  return to;
}

/* An argument between tags that is a text by its schema: it stands there as it is. nullable: the word null is none. */
static uint32_t emit_argument(schema_reader *r, const json_t *flat, bool nullable, uint32_t from) {
  static const char *const said[] = {FLAT_PATTERNS, FLAT_NO_PATTERNS, FLAT_FORMATS, FLAT_NO_TEXTS, "enum"};
  static const char *const null[] = {"null"};
  grammar_builder *b = r->b;
  uint32_t min = schema_count(r, flat, "minLength", 0), max = schema_count(r, flat, "maxLength", GRAMMAR_NONE);
  bool plain = !nullable;
  for (size_t i = 0; i < sizeof said / sizeof *said && plain; i++) plain = json_object_get(flat, said[i]) == NULL;
  if (max < min) schema_contradict(r, "maxLength is less than minLength");
  if (max < min || !builder_ok(b)) return builder_state(b);
  if (plain && min == 0 && max == GRAMMAR_NONE) return style_argument_any(b, from);
  if (plain) return style_argument_sized(b, from, min, max);
  size_t n =
      json_array_size(json_object_get(flat, FLAT_PATTERNS)) + json_array_size(json_object_get(flat, FLAT_FORMATS));
  bool others = json_object_get(flat, FLAT_NO_PATTERNS) != NULL || json_object_get(flat, FLAT_NO_TEXTS) != NULL ||
                json_object_get(flat, "enum") != NULL;
  const char *alone = n == 1 && min == 0 && max == GRAMMAR_NONE && !others && !nullable ? find_alone(flat) : NULL;
  if (alone != NULL && r->lenient && !is_readable(r, alone)) return style_argument_any(b, from);
  uint32_t out = builder_state(b);
  const pattern_writing way = {WRITING_PLAIN, '<'};
  if (alone != NULL && grammar_read_pattern(b, alone, strlen(alone), &way, from, out)) return style_tag_close(b, out);
  automaton a = schema_texts(r, flat);
  if (nullable) {
    automaton one = automaton_texts(b, null, 1);
    automaton_exclude(b, &a, &one);
  }
  uint32_t to = style_argument_of(b, from, &a);
  automaton_close(&a);
  return to;
}

uint32_t schema_emit_argument(schema_reader *r, const json_t *schema, bool nullable, uint32_t from) {
  grammar_builder *b = r->b;
  const json_t *flats = schema_flatten(r, schema, 0);
  uint32_t to = builder_state(b);
  for (size_t i = 0; i < json_array_size(flats) && builder_ok(b); i++) {
    const json_t *flat = json_array_get(flats, i);
    uint32_t bits = schema_flat_bits(r, flat);
    bool null = nullable && (bits & TYPE_NULL) != 0, not_null = nullable && !b->tags->typed;
    if ((bits & TYPE_STRING) != 0) builder_empty(b, emit_argument(r, flat, not_null, style_tag_end(b, from, true)), to);
    if (null) builder_empty(b, style_tag_close(b, builder_text(b, style_tag_end(b, from, false), "null", 4)), to);
  }
  return to;
}
