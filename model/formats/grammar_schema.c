/* SPDX-License-Identifier: MIT */
/* JSON schemas to rules: draft 2020-12, and what older drafts write otherwise (definitions, a list as items). What a
 * schema refers to becomes a rule, made once, so a schema may refer to itself; everything else is written in place, so
 * that alternatives with a common beginning share it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "model/formats/grammar_json.h"

/* ---- keywords ---- */

static bool is_among(const char *word, const char *const *list) {
  for (; *list != NULL; list++) {
    if (strcmp(word, *list) == 0) return true;
  }
  return false;
}

bool schema_is_annotation(const char *keyword) {
  static const char *const list[] = {"title",     "description",   "default",  "examples",   "example",     "$schema",
                                     "$id",       "$comment",      "$defs",    "deprecated", "definitions", "readOnly",
                                     "writeOnly", "discriminator", "nullable", NULL};
  return is_among(keyword, list) || strncmp(keyword, "x-", 2) == 0;
}

/* Keywords and the types that they speak of. */
static uint32_t keyword_bits(const char *keyword) {
  static const struct {
    const char *word;
    uint32_t bits;
  } list[] = {{"properties", TYPE_OBJECT},      {"required", TYPE_OBJECT},       {"additionalProperties", TYPE_OBJECT},
              {"minProperties", TYPE_OBJECT},   {"maxProperties", TYPE_OBJECT},  {"items", TYPE_ARRAY},
              {"prefixItems", TYPE_ARRAY},      {"additionalItems", TYPE_ARRAY}, {"minItems", TYPE_ARRAY},
              {"maxItems", TYPE_ARRAY},         {"uniqueItems", TYPE_ARRAY},     {"minLength", TYPE_STRING},
              {"maxLength", TYPE_STRING},       {"pattern", TYPE_STRING},        {"format", 0},
              {"minimum", TYPE_NUMBER},         {"maximum", TYPE_NUMBER},        {"exclusiveMinimum", TYPE_NUMBER},
              {"exclusiveMaximum", TYPE_NUMBER}};
  for (uint32_t i = 0; i < sizeof list / sizeof *list; i++) {
    if (strcmp(keyword, list[i].word) == 0) return list[i].bits;
  }
  return GRAMMAR_NONE;
}

static bool check_keywords(schema_reader *r, const json_t *schema) {
  static const char *const structure[] = {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", NULL};
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)schema, key, value) {
    if (is_among(key, structure) || schema_is_annotation(key) || keyword_bits(key) != GRAMMAR_NONE) continue;
    schema_fail(r, WEFT_E_UNSUPPORTED, "the keyword '%.40s' is not supported", key);
    return false;
  }
  return true;
}

void schema_fail(schema_reader *r, weft_status status, const char *format, ...) {
  char line[320];
  va_list args;
  va_start(args, format);
  (void)vsnprintf(line, sizeof line, format, args);
  va_end(args);
  builder_fail(r->b, status, "schema%s%.64s at %.60s: %s", r->of == NULL ? "" : " of ", r->of == NULL ? "" : r->of,
               r->path, line);
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
    if (name == NULL || names[k] == NULL) {
      schema_fail(r, WEFT_E_INVALID,
                  "type must be object, array, string, number, integer, boolean, null or a list of them");
      return 0;
    }
    bits |= 1u << k;
  }
  if (bits == 0) schema_fail(r, WEFT_E_INVALID, "type is an empty list");
  return bits;
}

uint32_t schema_value_bits(const json_t *value) {
  switch (json_typeof(value)) {
    case JSON_OBJECT:
      return TYPE_OBJECT;
    case JSON_ARRAY:
      return TYPE_ARRAY;
    case JSON_STRING:
      return TYPE_STRING;
    case JSON_INTEGER:
      return TYPE_INTEGER | TYPE_NUMBER;
    case JSON_REAL: {
      double number = json_real_value(value);
      return number == floor(number) ? TYPE_INTEGER | TYPE_NUMBER : TYPE_NUMBER;
    }
    case JSON_NULL:
      return TYPE_NULL;
    default:
      return TYPE_BOOLEAN;
  }
}

uint32_t schema_count(schema_reader *r, const json_t *schema, const char *keyword, uint32_t otherwise) {
  const json_t *value = json_object_get(schema, keyword);
  double number = json_number_value(value);
  if (value == NULL) return otherwise;
  if (!json_is_number(value) || number < 0 || number != floor(number)) {
    schema_fail(r, WEFT_E_INVALID, "%s must be a whole number from 0", keyword);
    return otherwise;
  }
  if (number <= GRAMMAR_COUNT_MAX) return (uint32_t)number;
  if (otherwise == GRAMMAR_NONE) return GRAMMAR_COUNT_MAX; /* an upper bound: answers are a part of what is allowed */
  schema_fail(r, WEFT_E_TOO_LARGE, "%s is %.0f; at most %d are allowed", keyword, number, GRAMMAR_COUNT_MAX);
  return otherwise;
}

/* ---- scalars ---- */

static bool get_bound(schema_reader *r, const json_t *schema, const char *keyword, double *out) {
  const json_t *value = json_object_get(schema, keyword);
  if (value == NULL) return false;
  if (!json_is_number(value)) {
    schema_fail(r, WEFT_E_UNSUPPORTED, "%s must be a number", keyword);
    return false;
  }
  *out = json_number_value(value);
  return true;
}

static json_bounds read_bounds(schema_reader *r, const json_t *schema) {
  json_bounds d = {-INFINITY, INFINITY, false, false};
  double bound;
  (void)get_bound(r, schema, "minimum", &d.low);
  (void)get_bound(r, schema, "maximum", &d.high);
  if (get_bound(r, schema, "exclusiveMinimum", &bound) && bound >= d.low) d.low = bound, d.low_open = true;
  if (get_bound(r, schema, "exclusiveMaximum", &bound) && bound <= d.high) d.high = bound, d.high_open = true;
  return d;
}

static uint32_t emit_number(schema_reader *r, const json_t *schema, uint32_t from, bool whole) {
  json_bounds d = read_bounds(r, schema);
  if (!builder_ok(r->b)) return from;
  uint32_t to = whole ? json_integer_within(r->b, from, &d) : json_number_within(r->b, from, &d);
  if (to != GRAMMAR_NONE) return to;
  schema_fail(r, WEFT_E_UNSUPPORTED,
              "no number between minimum and maximum can be written: numbers have at most 15 digits, "
              "and bounds that are no whole numbers must have one between them");
  return from;
}

#define OCTET "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define DATE \
  "([12]\\d{3}-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8])))"
#define TIME  "(([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,6})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d))"
#define LABEL "([A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?)"

static const char *find_format(const char *name) {
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
      {"ipv6", "^[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}$"},
      {"uri", "^https?://" LABEL "(\\." LABEL "){0,4}(:[1-9]\\d{0,3})?(/[A-Za-z0-9._~-]{0,64}){0,8}"
              "(\\?[A-Za-z0-9._~=&-]{0,128})?(#[A-Za-z0-9._~-]{0,64})?$"}};
  for (uint32_t i = 0; i < sizeof formats / sizeof *formats; i++) {
    if (strcmp(formats[i].name, name) == 0) return formats[i].pattern;
  }
  return NULL;
}

static uint32_t emit_string(schema_reader *r, const json_t *schema, uint32_t from) {
  grammar_builder *b = r->b;
  const json_t *pattern = json_object_get(schema, "pattern"), *format = json_object_get(schema, "format");
  bool sized = json_object_get(schema, "minLength") != NULL || json_object_get(schema, "maxLength") != NULL;
  uint32_t min = schema_count(r, schema, "minLength", 0), max = schema_count(r, schema, "maxLength", GRAMMAR_NONE);
  const char *text = json_string_value(pattern != NULL ? pattern : format);
  if (pattern == NULL && format == NULL) {
    if (max < min) schema_fail(r, WEFT_E_INVALID, "maxLength is less than minLength");
    return builder_ok(b) ? json_string_sized(b, from, min, max) : from;
  }
  if (text == NULL) schema_fail(r, WEFT_E_INVALID, "pattern and format must be strings");
  if (pattern != NULL && format != NULL)
    schema_fail(r, WEFT_E_UNSUPPORTED, "pattern and format together are not supported");
  if (sized) schema_fail(r, WEFT_E_UNSUPPORTED, "minLength and maxLength beside pattern or format are not supported");
  if (text != NULL && pattern == NULL) {
    text = find_format(text);
    if (text == NULL) {
      schema_fail(r, WEFT_E_UNSUPPORTED, "the format '%.40s' is not supported", json_string_value(format));
    }
  }
  if (!builder_ok(b)) return from;
  uint32_t in = builder_text(b, from, "\"", 1), out = builder_state(b);
  grammar_read_pattern(b, text, strlen(text), in, out);
  return builder_text(b, out, "\"", 1);
}

/* ---- constants ---- */

/* What may stand beside a constant: it is known whether a value fits. */
static bool fits_beside(schema_reader *r, const json_t *schema, const json_t *value) {
  const char *key;
  json_t *rule;
  json_object_foreach((json_t *)schema, key, rule) {
    bool is_list = strcmp(key, "enum") == 0, found = false;
    if (schema_is_annotation(key)) continue;
    if (strcmp(key, "type") == 0) {
      if ((schema_type_bits(r, rule) & schema_value_bits(value)) == 0) return false;
    } else if (strcmp(key, "const") == 0) {
      if (!schema_is_same(r, rule, value)) return false;
    } else if (is_list) {
      if (json_object_get(schema, "const") == NULL) continue; /* the value is one of the list */
      for (size_t i = 0; i < json_array_size(rule) && !found; i++)
        found = schema_is_same(r, json_array_get(rule, i), value);
      if (!found) return false;
    } else if (json_is_string(value) || (keyword_bits(key) & (schema_value_bits(value) | TYPE_NUMBER)) != 0) {
      schema_fail(r, WEFT_E_UNSUPPORTED, "'%.40s' beside enum or const is not supported", key);
      return false;
    }
  }
  return builder_ok(r->b);
}

static uint32_t emit_constants(schema_reader *r, const json_t *schema, uint32_t from) {
  grammar_builder *b = r->b;
  const json_t *list = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
  uint32_t to = builder_state(b), n = 0;
  if (list != NULL && (!json_is_array(list) || json_array_size(list) == 0)) {
    schema_fail(r, WEFT_E_INVALID, "enum must be a list of at least one value");
  }
  for (size_t i = 0; builder_ok(b) && i < (one != NULL ? 1 : json_array_size(list)); i++) {
    const json_t *value = one != NULL ? one : json_array_get(list, i);
    if (!builder_step(b, json_object_size(schema)) || !fits_beside(r, schema, value)) continue;
    builder_empty(b, json_constant(b, from, value), to);
    n += 1;
  }
  if (n == 0) schema_fail(r, WEFT_E_INVALID, "none of the values of enum or const fits the other keywords");
  return to;
}

/* ---- any schema ---- */

static uint32_t emit_words(grammar_builder *b, uint32_t from, uint32_t to, const char *const *words) {
  for (; *words != NULL; words++) builder_empty(b, builder_text(b, from, *words, strlen(*words)), to);
  return to;
}

/* The types that a schema without type means: those that its keywords speak of. */
static uint32_t implied_bits(const json_t *schema) {
  const char *key;
  json_t *value;
  uint32_t bits = 0;
  json_object_foreach((json_t *)schema, key, value) {
    uint32_t own = strcmp(key, "format") == 0 ? (uint32_t)TYPE_STRING : keyword_bits(key);
    if (own != GRAMMAR_NONE) bits |= own;
  }
  return bits == 0 ? (uint32_t)TYPE_ALL : bits;
}

static uint32_t emit_types(schema_reader *r, const json_t *schema, uint32_t from) {
  static const char *const booleans[] = {"true", "false", NULL}, *const null[] = {"null", NULL};
  grammar_builder *b = r->b;
  const json_t *type = json_object_get(schema, "type");
  uint32_t bits = type == NULL ? implied_bits(schema) : schema_type_bits(r, type), to = builder_state(b);
  if (!builder_ok(b)) return from;
  bool bare = true;
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)schema, key, value) bare =
      bare && (schema_is_annotation(key) || strcmp(key, "type") == 0);
  if (bits == TYPE_ALL && bare) return json_value_any(b, from);
  if ((bits & TYPE_OBJECT) != 0) builder_empty(b, schema_emit_object(r, schema, from), to);
  if ((bits & TYPE_ARRAY) != 0) builder_empty(b, schema_emit_array(r, schema, from), to);
  if ((bits & TYPE_STRING) != 0) builder_empty(b, emit_string(r, schema, from), to);
  bool number = (bits & TYPE_NUMBER) != 0;
  if (number || (bits & TYPE_INTEGER) != 0) builder_empty(b, emit_number(r, schema, from, !number), to);
  if ((bits & TYPE_BOOLEAN) != 0) (void)emit_words(b, from, to, booleans);
  if ((bits & TYPE_NULL) != 0) (void)emit_words(b, from, to, null);
  return to;
}

/* The branches of anyOf or oneOf, each together with what stands beside them. */
static uint32_t emit_branches(schema_reader *r, const json_t *schema, const char *keyword, uint32_t from) {
  grammar_builder *b = r->b;
  const json_t *list = json_object_get(schema, keyword);
  size_t n = json_array_size(list);
  uint32_t to = builder_state(b);
  if (!json_is_array(list) || n == 0)
    schema_fail(r, WEFT_E_INVALID, "%s must be a list of at least one schema", keyword);
  for (size_t i = 0; strcmp(keyword, "oneOf") == 0 && i < n; i++) {
    for (size_t k = 0; k < i && builder_step(b, 64); k++) {
      if (schema_excludes(r, json_array_get(list, i), json_array_get(list, k), 0) || !builder_ok(b)) continue;
      schema_fail(
          r, WEFT_E_UNSUPPORTED,
          "oneOf, whose branches %zu and %zu may both hold, is not supported: use anyOf, or give them different types "
          "or a required property with different constants",
          k, i);
    }
  }
  json_t *rest = builder_ok(b) ? schema_without(r, schema, keyword) : NULL;
  for (size_t i = 0; i < n && builder_ok(b); i++) {
    const json_t *branch = json_array_get(list, i);
    if (json_is_false(branch)) continue;
    if (json_object_size(rest) > 0) branch = schema_merge(r, rest, branch);
    if (builder_ok(b)) builder_empty(b, schema_emit(r, branch, from), to);
  }
  return to;
}

static uint32_t find_rule(schema_reader *r, const char *reference) {
  const json_t *target = schema_target(r, reference);
  if (target == NULL) return 0;
  for (uint32_t i = 0; i < r->n_rules && builder_step(r->b, 1); i++) {
    if (r->rule[i].schema == target) return r->rule[i].rule;
  }
  schema_rule *rules = weft_grow(r->rule, r->n_rules, &r->rules_capacity, 64, sizeof *rules);
  if (rules == NULL) {
    schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
    return 0;
  }
  r->rule = rules;
  uint32_t rule = builder_rule_open(r->b);
  if (builder_ok(r->b)) r->rule[r->n_rules++] = (schema_rule){target, reference, rule};
  return rule;
}

static uint32_t emit_reference(schema_reader *r, const json_t *schema, uint32_t from) {
  const char *reference = json_string_value(json_object_get(schema, "$ref")), *key;
  json_t *value;
  bool alone = true;
  if (reference == NULL) schema_fail(r, WEFT_E_INVALID, "$ref must be a string");
  json_object_foreach((json_t *)schema, key, value) {
    alone = alone && (strcmp(key, "$ref") == 0 || schema_is_annotation(key));
  }
  if (!builder_ok(r->b)) return from;
  if (!alone) {
    json_t *rest = schema_without(r, schema, "$ref"), *target = schema_target(r, reference);
    json_t *both = builder_ok(r->b) ? schema_merge(r, target, rest) : NULL;
    return builder_ok(r->b) ? schema_emit(r, both, from) : from;
  }
  uint32_t to = builder_state(r->b);
  builder_call(r->b, from, to, find_rule(r, reference));
  return to;
}

static uint32_t emit_all_of(schema_reader *r, const json_t *schema, uint32_t from) {
  const json_t *list = json_object_get(schema, "allOf");
  json_t *all = schema_without(r, schema, "allOf");
  if (!json_is_array(list)) schema_fail(r, WEFT_E_INVALID, "allOf must be a list of schemas");
  for (size_t i = 0; i < json_array_size(list) && builder_ok(r->b); i++) {
    all = schema_merge(r, all, json_array_get(list, i));
  }
  return builder_ok(r->b) ? schema_emit(r, all, from) : from;
}

static uint32_t emit_schema(schema_reader *r, const json_t *schema, uint32_t from) {
  grammar_builder *b = r->b;
  if (json_is_true(schema)) return json_value_any(b, from);
  if (json_is_false(schema)) return builder_state(b); /* nothing leads there */
  if (!json_is_object(schema)) {
    schema_fail(r, WEFT_E_INVALID, "a schema must be an object, true or false");
    return from;
  }
  if (!check_keywords(r, schema)) return from;
  if (json_object_get(schema, "$ref") != NULL) return emit_reference(r, schema, from);
  if (json_object_get(schema, "allOf") != NULL) return emit_all_of(r, schema, from);
  if (json_object_get(schema, "anyOf") != NULL) return emit_branches(r, schema, "anyOf", from);
  if (json_object_get(schema, "oneOf") != NULL) return emit_branches(r, schema, "oneOf", from);
  if (json_object_get(schema, "enum") != NULL || json_object_get(schema, "const") != NULL) {
    return emit_constants(r, schema, from);
  }
  return emit_types(r, schema, from);
}

uint32_t schema_emit(schema_reader *r, const json_t *schema, uint32_t from) {
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

static void read_rules(schema_reader *r) {
  grammar_builder *b = r->b;
  for (uint32_t i = 0; i < r->n_rules && builder_ok(b); i++) {
    (void)snprintf(r->path, sizeof r->path, "%s", r->rule[i].name);
    builder_rule rule = b->rule[r->rule[i].rule];
    builder_empty(b, schema_emit(r, r->rule[i].schema, rule.first), rule.last);
  }
}

uint32_t schema_add_rule(grammar_builder *b, const json_t *schema, const char *of) {
  schema_reader r = {.b = b, .path = "#", .of = of, .made = json_array()};
  uint32_t rule = 0;
  r.root = json_deep_copy(schema);
  if (r.root == NULL || r.made == NULL) builder_fail(b, WEFT_E_NO_MEMORY, "no memory for the schema");
  if (builder_ok(b)) rule = find_rule(&r, "#");
  if (builder_ok(b)) read_rules(&r);
  weft_free(r.rule);
  json_decref(r.made);
  json_decref(r.root);
  return rule;
}

void grammar_read_schema(grammar_builder *b, const char *text, size_t n) {
  json_error_t error;
  schema_reader r = {.b = b, .path = "#", .made = json_array()};
  r.root = json_loadb(text, n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &error);
  if (r.root == NULL) {
    builder_fail(b, WEFT_E_INVALID, "the schema is not valid JSON at byte %d: %.120s", error.position, error.text);
  } else if (r.made == NULL) {
    builder_fail(b, WEFT_E_NO_MEMORY, "no memory for the schema");
  }
  if (builder_ok(b)) b->root = find_rule(&r, "#");
  if (builder_ok(b)) read_rules(&r);
  weft_free(r.rule);
  json_decref(r.made);
  json_decref(r.root);
}

void grammar_read_choice(grammar_builder *b, const char *text, size_t n) {
  json_error_t error;
  json_t *list = json_loadb(text, n, 0, &error);
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
