/* SPDX-License-Identifier: MIT */
/* JSON schemas to rules: draft 2020-12, and what older drafts write otherwise (definitions, a list as items). What a
 * schema refers to becomes a rule, made once, so a schema may refer to itself; everything else is written in place, so
 * that alternatives with a common beginning share it. Keywords that the specification does not know restrict nothing.
 * */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "model/formats/grammar_schema.h"
#include "model/text/json_tree.h"

enum { TOLD_MAX = 4 /* lines in the log about one schema */ };

/* ---- keywords ---- */

bool schema_is_annotation(const char *keyword) {
  static const char *const list[] = {"title",    "description", "default",   "examples", "example",
                                     "$schema",  "$id",         "$comment",  "$defs",    "definitions",
                                     "readOnly", "writeOnly",   "deprecated"};
  for (uint32_t i = 0; i < sizeof list / sizeof *list; i++) {
    if (strcmp(keyword, list[i]) == 0) return true;
  }
  return false;
}

/* Keywords of flat schemas and the types that they speak of. */
static uint32_t keyword_bits(const char *keyword) {
  static const struct {
    const char *word;
    uint32_t bits;
  } list[] = {{"properties", TYPE_OBJECT},
              {"required", TYPE_OBJECT},
              {"additionalProperties", TYPE_OBJECT},
              {"patternProperties", TYPE_OBJECT},
              {"minProperties", TYPE_OBJECT},
              {"maxProperties", TYPE_OBJECT},
              {FLAT_NAMES, TYPE_OBJECT},
              {"items", TYPE_ARRAY},
              {"prefixItems", TYPE_ARRAY},
              {"minItems", TYPE_ARRAY},
              {"maxItems", TYPE_ARRAY},
              {"uniqueItems", TYPE_ARRAY},
              {FLAT_CONTAINS, TYPE_ARRAY},
              {"minLength", TYPE_STRING},
              {"maxLength", TYPE_STRING},
              {FLAT_PATTERNS, TYPE_STRING},
              {FLAT_NO_PATTERNS, TYPE_STRING},
              {FLAT_FORMATS, TYPE_STRING},
              {FLAT_NO_TEXTS, TYPE_STRING},
              {"minimum", TYPE_NUMBER},
              {"maximum", TYPE_NUMBER},
              {"exclusiveMinimum", TYPE_NUMBER},
              {"exclusiveMaximum", TYPE_NUMBER},
              {FLAT_MULTIPLES, TYPE_NUMBER},
              {FLAT_FRACTION, TYPE_NUMBER}};
  for (uint32_t i = 0; i < sizeof list / sizeof *list; i++) {
    if (strcmp(keyword, list[i].word) == 0) return list[i].bits;
  }
  return 0;
}

static void put_line(schema_reader *r, char *line, size_t n, const char *format, va_list args) {
  char what[320];
  (void)vsnprintf(what, sizeof what, format, args);
  (void)snprintf(line, n, "schema%s%.64s at %.60s: %s", r->of == NULL ? "" : " of ", r->of == NULL ? "" : r->of,
                 r->path, what);
}

static void tell_widened(schema_reader *r, const char *line) {
  if (r->n_told++ < TOLD_MAX) weft_log(WEFT_LOG_WARN, "%s; it is not strict, so more is allowed there", line);
}

void schema_fail(schema_reader *r, weft_status status, const char *format, ...) {
  char line[480];
  va_list args;
  va_start(args, format);
  put_line(r, line, sizeof line, format, args);
  va_end(args);
  builder_fail(r->b, status, "%s", line);
}

void schema_widen(schema_reader *r, const char *format, ...) {
  char line[480];
  va_list args;
  va_start(args, format);
  put_line(r, line, sizeof line, format, args);
  va_end(args);
  if (!r->lenient) {
    builder_fail(r->b, WEFT_E_UNSUPPORTED, "%s", line);
  } else {
    tell_widened(r, line);
  }
}

void schema_contradict(schema_reader *r, const char *format, ...) {
  va_list args;
  if (r->b->why[0] != 0) return;
  va_start(args, format);
  put_line(r, r->b->why, sizeof r->b->why, format, args);
  va_end(args);
}

uint32_t schema_type_bits(schema_reader *r, const json_t *type) {
  static const char *const names[] = {"object", "array", "string", "number", "integer", "boolean", "null", NULL};
  uint32_t bits = 0;
  size_t n = json_is_array(type) ? json_array_size(type) : 1;
  if (!builder_step(r->b, 4 * (uint64_t)n)) return 0;
  for (size_t i = 0; i < n; i++) {
    const char *name = json_string_value(json_is_array(type) ? json_array_get(type, i) : type);
    uint32_t k = 0;
    while (name != NULL && names[k] != NULL && strcmp(names[k], name) != 0) k += 1;
    if ((name == NULL || names[k] == NULL) && r->lenient) {
      schema_widen(r, "type '%.40s' is none", name == NULL ? "" : name);
      return TYPE_ALL;
    }
    if (name == NULL || names[k] == NULL) {
      schema_fail(r, WEFT_E_INVALID,
                  "type must be object, array, string, number, integer, boolean, null or a list of them");
      return 0;
    }
    bits |= 1u << k;
  }
  if (bits == 0 && r->lenient) {
    schema_widen(r, "type is an empty list");
    return TYPE_ALL;
  }
  if (bits == 0) schema_fail(r, WEFT_E_INVALID, "type is an empty list");
  return bits;
}

uint32_t schema_value_bits(const json_t *value) {
  decimal number;
  if (decimal_of(value, &number)) return decimal_is_whole(&number) ? TYPE_INTEGER | TYPE_NUMBER : TYPE_NUMBER;
  switch (json_typeof(value)) {
    case JSON_OBJECT:
      return TYPE_OBJECT;
    case JSON_ARRAY:
      return TYPE_ARRAY;
    case JSON_STRING:
      return TYPE_STRING;
    case JSON_NULL:
      return TYPE_NULL;
    default:
      return TYPE_BOOLEAN;
  }
}

/* A bound from above that no answer reaches is none. */
uint32_t schema_count(schema_reader *r, const json_t *schema, const char *keyword, uint32_t otherwise) {
  const json_t *value = json_object_get(schema, keyword);
  decimal number;
  bool exact;
  if (value == NULL) return otherwise;
  if (!decimal_of(value, &number) || number.negative || !decimal_is_whole(&number)) {
    schema_fail(r, WEFT_E_INVALID, "%s must be a whole number from 0", keyword);
    return otherwise;
  }
  int64_t count = decimal_round(&number, false, &exact);
  if (count <= GRAMMAR_COUNT_MAX) return (uint32_t)count;
  if (otherwise == GRAMMAR_NONE) return count > INT32_MAX ? GRAMMAR_NONE : GRAMMAR_COUNT_MAX;
  weft_text text = {0};
  weft_json_write(value, &text);
  schema_fail(r, WEFT_E_TOO_LARGE, "%s is %.40s; at most %d are allowed", keyword, text.refused ? "" : text.bytes,
              GRAMMAR_COUNT_MAX);
  weft_text_free(&text);
  return otherwise;
}

uint32_t schema_flat_bits(schema_reader *r, const json_t *flat) {
  const json_t *type = json_object_get(flat, "type"), *list = json_object_get(flat, "enum");
  uint32_t bits = type == NULL ? (uint32_t)TYPE_ALL : schema_type_bits(r, type), values = 0;
  if ((bits & TYPE_NUMBER) != 0) bits |= TYPE_INTEGER;
  if (list == NULL || !builder_step(r->b, json_array_size(list))) return bits;
  for (size_t i = 0; i < json_array_size(list); i++) values |= schema_value_bits(json_array_get(list, i));
  return bits & values;
}

/* ---- numbers ---- */

json_bounds schema_bounds(schema_reader *r, const json_t *schema) {
  json_bounds d = {0};
  decimal bound;
  (void)r;
  d.has_low = decimal_of(json_object_get(schema, "minimum"), &d.low);
  d.has_high = decimal_of(json_object_get(schema, "maximum"), &d.high);
  if (decimal_of(json_object_get(schema, "exclusiveMinimum"), &bound) &&
      (!d.has_low || decimal_compare(&bound, &d.low) >= 0)) {
    d.low = bound;
    d.has_low = d.low_open = true;
  }
  if (decimal_of(json_object_get(schema, "exclusiveMaximum"), &bound) &&
      (!d.has_high || decimal_compare(&bound, &d.high) <= 0)) {
    d.high = bound;
    d.has_high = d.high_open = true;
  }
  return d;
}

static uint32_t emit_number(schema_reader *r, const json_t *flat, uint32_t from, bool whole) {
  json_number_kind kind = {.bounds = schema_bounds(r, flat), .whole = whole};
  const json_t *multiples = json_object_get(flat, FLAT_MULTIPLES);
  bool bounded = kind.bounds.has_low || kind.bounds.has_high;
  kind.fraction = json_object_get(flat, FLAT_FRACTION) != NULL;
  if (json_array_size(multiples) > NUMBER_MULTIPLES) {
    schema_fail(r, WEFT_E_TOO_LARGE, "multipleOf is asked for more than %d times", NUMBER_MULTIPLES);
  }
  if (!builder_ok(r->b)) return from;
  for (size_t i = 0; i < json_array_size(multiples); i++) {
    (void)decimal_of(json_array_get(multiples, i), &kind.multiple[kind.n_multiples++]);
  }
  uint32_t to = GRAMMAR_NONE;
  bool plain = kind.n_multiples == 0 && !kind.fraction && (whole || !bounded);
  if (plain) to = whole ? json_integer_within(r->b, from, &kind.bounds) : json_number_any(r->b, from);
  if (!plain || to == GRAMMAR_NONE) to = json_number_of(r->b, from, &kind);
  if (to != GRAMMAR_NONE) return to;
  schema_contradict(r, "no number that can be written fits all that is said of it");
  return builder_state(r->b);
}

/* ---- constants ---- */

static uint32_t emit_constants(schema_reader *r, const json_t *flat, uint32_t from) {
  grammar_builder *b = r->b;
  const json_t *list = json_object_get(flat, "enum");
  uint32_t to = builder_state(b), n = 0;
  for (size_t i = 0; builder_ok(b) && i < json_array_size(list); i++) {
    const json_t *value = json_array_get(list, i);
    if (!builder_step(b, json_object_size(flat)) || schema_fits_flat(r, flat, value, 0) != FITS) continue;
    uint32_t end = json_constant(b, from, value);
    if (end != GRAMMAR_NONE) builder_empty(b, end, to);
    n += end != GRAMMAR_NONE ? 1 : 0;
  }
  if (n == 0) schema_contradict(r, "none of the values of enum or const fits the other keywords");
  return to;
}

/* ---- any schema ---- */

static uint32_t emit_words(grammar_builder *b, uint32_t from, uint32_t to, const char *const *words) {
  for (; *words != NULL; words++) builder_empty(b, builder_text(b, from, *words, strlen(*words)), to);
  return to;
}

/* The types that a schema without type means: those that its keywords speak of. */
static uint32_t implied_bits(const json_t *flat) {
  const char *key;
  json_t *value;
  uint32_t bits = 0;
  json_object_foreach((json_t *)flat, key, value) bits |= keyword_bits(key);
  return bits == 0 ? (uint32_t)TYPE_ALL : bits;
}

/* An object or a list. Arguments of a call are read back to a depth that the frames of a stack stay below, so where
 * references may make them deep, each level of them is a frame. */
static uint32_t emit_level(schema_reader *r, const json_t *flat, bool object, uint32_t from) {
  grammar_builder *b = r->b;
  uint32_t n_open = r->n_open, rule = GRAMMAR_NONE, at = from;
  bool apart = n_open > 0 && r->refers && r->of != NULL;
  if (apart) rule = builder_rule_open(b);
  if (!builder_ok(b)) return from;
  if (apart) at = b->rule[rule].first;
  r->n_open = apart ? 1 : n_open + 1;
  at = object ? schema_emit_object(r, flat, at) : schema_emit_array(r, flat, at);
  r->n_open = n_open;
  if (!apart || !builder_ok(b)) return at;
  uint32_t to = builder_state(b);
  builder_empty(b, at, b->rule[rule].last);
  builder_call(b, from, to, rule);
  return to;
}

static uint32_t emit_flat(schema_reader *r, const json_t *flat, uint32_t from) {
  static const char *const booleans[] = {"true", "false", NULL}, *const null[] = {"null", NULL};
  grammar_builder *b = r->b;
  const json_t *type = json_object_get(flat, "type");
  if (r->tags) return schema_emit_arguments(r, flat, from);
  if (json_object_get(flat, "enum") != NULL) return emit_constants(r, flat, from);
  uint32_t bits = type == NULL ? implied_bits(flat) : schema_type_bits(r, type), to = builder_state(b), said = 0;
  if (!builder_ok(b)) return from;
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)flat, key, value) said |= keyword_bits(key);
  if (bits == TYPE_ALL && said == 0) return json_value_any(b, from);
  if ((bits & TYPE_OBJECT) != 0) builder_empty(b, emit_level(r, flat, true, from), to);
  if ((bits & TYPE_ARRAY) != 0) builder_empty(b, emit_level(r, flat, false, from), to);
  if ((bits & TYPE_STRING) != 0) builder_empty(b, schema_emit_string(r, flat, from), to);
  bool number = (bits & TYPE_NUMBER) != 0;
  if (number || (bits & TYPE_INTEGER) != 0) builder_empty(b, emit_number(r, flat, from, !number), to);
  if ((bits & TYPE_BOOLEAN) != 0) (void)emit_words(b, from, to, booleans);
  if ((bits & TYPE_NULL) != 0) (void)emit_words(b, from, to, null);
  return to;
}

static uint32_t find_rule(schema_reader *r, const char *reference) {
  const json_t *target = schema_target(r, reference);
  if (target == NULL) return 0;
  if (json_is_true(target)) return GRAMMAR_NONE; /* any value */
  for (uint32_t i = 0; i < r->n_rules && builder_step(r->b, 1); i++) {
    if (r->rule[i].schema == target && r->rule[i].tags == r->tags) return r->rule[i].rule;
  }
  schema_rule *rules = weft_grow(r->rule, r->n_rules, &r->rules_capacity, 64, sizeof *rules);
  if (rules == NULL) {
    schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
    return 0;
  }
  r->rule = rules;
  uint32_t rule = builder_rule_open(r->b);
  if (builder_ok(r->b)) r->rule[r->n_rules++] = (schema_rule){target, reference, rule, r->tags};
  return rule;
}

/* The one keyword of a schema that restricts anything; NULL: there are several, or none. */
static const char *find_only_keyword(const json_t *schema) {
  const char *only = NULL, *key;
  json_t *value;
  json_object_foreach((json_t *)schema, key, value) {
    if (schema_is_annotation(key)) continue;
    if (only != NULL) return NULL;
    only = key;
  }
  return only;
}

/* Alternatives, each of which stays as it is, so that what it refers to is a rule. */
static uint32_t emit_alternatives(schema_reader *r, const json_t *list, uint32_t from) {
  uint32_t to = builder_state(r->b);
  for (size_t i = 0; i < json_array_size(list) && builder_ok(r->b); i++) {
    builder_empty(r->b, schema_emit(r, json_array_get(list, i), from), to);
  }
  return to;
}

/* Whether each two branches of oneOf exclude one another. */
static bool are_apart(schema_reader *r, const json_t *list) {
  for (size_t i = 0; i < json_array_size(list); i++) {
    for (size_t k = 0; k < i && builder_step(r->b, 64); k++) {
      if (!schema_excludes(r, json_array_get(list, i), json_array_get(list, k), 0)) return false;
    }
  }
  return builder_ok(r->b);
}

/* All values of the schema's types. */
static uint32_t emit_widest(schema_reader *r, const json_t *schema, uint32_t from) {
  const json_t *type = json_object_get(schema, "type");
  json_t *flat = type == NULL ? NULL : schema_keep(r, json_pack("{s:O}", "type", type));
  return flat == NULL ? json_value_any(r->b, from) : emit_flat(r, flat, from);
}

static uint32_t emit_flats(schema_reader *r, const json_t *schema, uint32_t from) {
  grammar_builder *b = r->b;
  const json_t *flats = schema_flatten(r, schema, 0);
  uint32_t to = builder_state(b);
  if (builder_ok(b) && json_array_size(flats) == 0) {
    schema_contradict(r, "nothing fits all that is said here");
    if (r->lenient) {
      schema_widen(r, "nothing fits all that is said here");
      builder_empty(b, emit_widest(r, schema, from), to);
    }
  }
  for (size_t i = 0; i < json_array_size(flats) && builder_ok(b); i++) {
    builder_empty(b, emit_flat(r, json_array_get(flats, i), from), to);
  }
  return to;
}

static uint32_t emit_schema(schema_reader *r, const json_t *schema, uint32_t from) {
  grammar_builder *b = r->b;
  if (json_is_true(schema)) return json_value_any(b, from);
  if (json_is_false(schema)) return builder_state(b); /* nothing leads there */
  const char *only = json_is_object(schema) ? find_only_keyword(schema) : NULL;
  const json_t *value = only == NULL ? NULL : json_object_get(schema, only);
  if (only != NULL && strcmp(only, "$ref") == 0 && json_is_string(value)) {
    uint32_t to = builder_state(b), rule = find_rule(r, json_string_value(value));
    if (rule == GRAMMAR_NONE) return json_value_any(b, from);
    builder_call(b, from, to, rule);
    return to;
  }
  bool list = only != NULL && json_is_array(value) && json_array_size(value) > 0;
  if (list && strcmp(only, "allOf") == 0 && json_array_size(value) == 1) return emit_alternatives(r, value, from);
  if (list && strcmp(only, "anyOf") == 0) return emit_alternatives(r, value, from);
  if (list && strcmp(only, "oneOf") == 0 && are_apart(r, value)) return emit_alternatives(r, value, from);
  return emit_flats(r, schema, from);
}

static uint32_t emit_within(schema_reader *r, const json_t *schema, uint32_t from) {
  if (!builder_step(r->b, 1 + 4 * (uint64_t)json_object_size(schema)))
    return from; /* its keywords are looked through */
  if (r->depth >= GRAMMAR_NEST_MAX) {
    schema_fail(r, WEFT_E_TOO_LARGE, "the schema is nested more than %d deep", GRAMMAR_NEST_MAX);
    return from;
  }
  r->depth += 1;
  uint32_t to = emit_schema(r, schema, from);
  r->depth -= 1;
  return to;
}

/* Whether what was read since the mark failed and may be wider instead: then it is taken back, and the log says why. */
static bool take_back(schema_reader *r, builder_mark before) {
  grammar_builder *b = r->b;
  bool held = b->status != WEFT_E_INVALID && b->status != WEFT_E_UNSUPPORTED && b->status != WEFT_E_TOO_LARGE;
  if (held || !r->lenient || b->n_steps > GRAMMAR_STEPS_MAX) return false;
  builder_take_back(b, before);
  tell_widened(r, b->error == NULL ? "a part of the schema cannot be held" : b->error->text);
  return true;
}

/* Where a schema is not strict, the innermost one that cannot be held allows its types instead. */
uint32_t schema_emit(schema_reader *r, const json_t *schema, uint32_t from) {
  if (!r->lenient || !builder_ok(r->b)) return emit_within(r, schema, from);
  builder_mark before = builder_mark_here(r->b);
  const schema_reader saved = *r;
  uint32_t to = emit_within(r, schema, from);
  if (!take_back(r, before)) return to;
  r->n_rules = saved.n_rules;
  r->depth = saved.depth;
  r->n_open = saved.n_open;
  (void)snprintf(r->path, sizeof r->path, "%s", saved.path);
  return emit_widest(r, json_is_object(schema) ? schema : NULL, from);
}

static void read_rules(schema_reader *r) {
  grammar_builder *b = r->b;
  for (uint32_t i = 0; i < r->n_rules && builder_ok(b); i++) {
    (void)snprintf(r->path, sizeof r->path, "%s", r->rule[i].name);
    builder_rule rule = b->rule[r->rule[i].rule];
    r->tags = r->rule[i].tags;
    builder_empty(b, schema_emit(r, r->rule[i].schema, rule.first), rule.last);
  }
}

/* Closes the reader; the rule of its root. */
static uint32_t read_root(schema_reader *r) {
  uint32_t rule = 0;
  builder_mark before = builder_mark_here(r->b);
  if (builder_ok(r->b)) schema_settle_references(r);
  if (builder_ok(r->b) && json_is_object(r->root)) {
    rule = find_rule(r, "#");
  } else if (builder_ok(r->b)) {
    rule = builder_rule_open(r->b);
    if (builder_ok(r->b)) builder_empty(r->b, schema_emit(r, r->root, r->b->rule[rule].first), r->b->rule[rule].last);
  }
  if (builder_ok(r->b)) read_rules(r);
  if (take_back(r, before)) {
    json_t *object = schema_keep(r, json_pack("{s:s}", "type", "object"));
    r->tags = r->b->style == STYLE_TAGS;
    rule = builder_rule_open(r->b);
    if (builder_ok(r->b)) builder_empty(r->b, emit_flat(r, object, r->b->rule[rule].first), r->b->rule[rule].last);
  }
  weft_free(r->rule);
  weft_free(r->base);
  json_decref(r->made);
  json_decref(r->root);
  return rule;
}

uint32_t schema_add_rule(grammar_builder *b, const json_t *schema, const char *of, const char *types, bool lenient) {
  schema_reader r = {.b = b, .path = "#", .of = of, .made = json_array(), .lenient = lenient, .types = types};
  r.tags = b->style == STYLE_TAGS;
  r.root = json_deep_copy(schema);
  if (r.root == NULL || r.made == NULL) builder_fail(b, WEFT_E_NO_MEMORY, "no memory for the schema");
  return read_root(&r);
}

void grammar_read_schema(grammar_builder *b, const char *text, size_t n) {
  json_error_t error;
  schema_reader r = {.b = b, .path = "#", .made = json_array()};
  r.root = weft_json_read(text, n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | WEFT_JSON_ZEROS, &error);
  if (r.root == NULL) {
    builder_fail(b, WEFT_E_INVALID, "the schema is not valid JSON at byte %d: %.120s", error.position, error.text);
  } else if (r.made == NULL) {
    builder_fail(b, WEFT_E_NO_MEMORY, "no memory for the schema");
  }
  b->root = read_root(&r);
}

void grammar_read_choice(grammar_builder *b, const char *text, size_t n) {
  json_error_t error;
  json_t *list = weft_json_read(text, n, 0, &error);
  b->root = builder_rule_open(b);
  if (!json_is_array(list) || json_array_size(list) == 0) {
    builder_fail(b, WEFT_E_INVALID, "a choice must be a list of at least one text");
  }
  for (size_t i = 0; i < json_array_size(list) && builder_ok(b); i++) {
    const json_t *item = json_array_get(list, i);
    if (!json_is_string(item) || json_string_length(item) == 0) {
      builder_fail(b, WEFT_E_INVALID, "choice %zu must be a text that is not empty", i);
      break;
    }
    uint32_t end = builder_text(b, b->rule[b->root].first, json_string_value(item), json_string_length(item));
    builder_empty(b, end, b->rule[b->root].last);
  }
  json_decref(list);
}
