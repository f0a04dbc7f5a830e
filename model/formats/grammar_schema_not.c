/* SPDX-License-Identifier: MIT */
/* What does not fit a schema.
 *
 * Law: each keyword that restricts gives schemas of values that it does not let through; of some keywords only a part
 * of them, or none, can be written. So a value that fits what is given here does not fit the schema, however formats
 * and classes of characters are understood. Nothing of it counts as evaluated. */
#include <string.h>

#include "model/formats/grammar_schema.h"

enum { NOT_DEPTH_MAX = 48, PAIRS_MAX = 64 };

typedef struct negation {
  schema_reader *r;
  const json_t *schema;
  json_t *out; /* a list of schemas */
} negation;

static void add_schema(negation *n, json_t *schema) {
  if (!builder_step(n->r->b, 16) || schema == NULL || json_array_append_new(n->out, schema) != 0) {
    schema_fail(n->r, WEFT_E_NO_MEMORY, "no memory for it");
  }
}

static json_t *not_of(const json_t *schema) {
  return json_is_boolean(schema) ? json_boolean(json_is_false(schema)) : json_pack("{s:O}", "not", schema);
}

/* A list of `n` schemas that allow anything, and one more. */
static json_t *list_after(schema_reader *r, size_t n, json_t *last) {
  json_t *list = json_array();
  for (size_t i = 0; i < n; i++) schema_append(r, list, json_true());
  schema_append(r, list, last);
  return list;
}

static void negate_types(negation *n, const json_t *value) {
  static const char *const names[] = {"object", "array", "string", "number", "integer", "boolean", "null"};
  uint32_t bits = schema_type_bits(n->r, value);
  json_t *others = json_array();
  for (uint32_t i = 0; i < 7; i++) {
    bool integer = 1u << i == TYPE_INTEGER, number = 1u << i == TYPE_NUMBER;
    if (integer || (bits & 1u << i) != 0 || (number && (bits & TYPE_INTEGER) != 0)) continue;
    schema_append(n->r, others, json_string(names[i]));
  }
  if (json_array_size(others) > 0) {
    add_schema(n, json_pack("{s:o}", "type", others));
  } else {
    json_decref(others);
  }
  if ((bits & TYPE_INTEGER) != 0 && (bits & TYPE_NUMBER) == 0) {
    add_schema(n, json_pack("{s:s,s:b}", "type", "number", FLAT_FRACTION, 1));
  }
}

/* Other types than the constants have; and texts, numbers and the like that are none of them. */
static void negate_constants(negation *n, const json_t *list) {
  uint32_t bits = 0;
  const json_t *least = NULL, *most = NULL; /* numbers */
  bool both = false, empty_object = false, empty_array = false;
  json_t *texts = json_array();
  const json_t *truth = NULL;
  for (size_t i = 0; i < json_array_size(list) && builder_step(n->r->b, 8); i++) {
    const json_t *value = json_array_get(list, i);
    bits |= schema_value_bits(value);
    if (json_is_string(value)) schema_append(n->r, texts, json_incref((json_t *)value));
    if (decimal_is_number(value)) {
      if (least == NULL || decimal_compare_json(value, least) < 0) least = value;
      if (most == NULL || decimal_compare_json(value, most) > 0) most = value;
      continue;
    }
    both = both || (truth != NULL && json_is_boolean(value) && truth != value);
    if (json_is_boolean(value)) truth = value;
    empty_object = empty_object || (json_is_object(value) && json_object_size(value) == 0);
    empty_array = empty_array || (json_is_array(value) && json_array_size(value) == 0);
  }
  static const char *const names[] = {"object", "array", "string", "number", "", "boolean", "null"};
  json_t *others = json_array();
  for (uint32_t i = 0; i < 7; i++) {
    if ((bits & 1u << i) == 0 && names[i][0] != 0) schema_append(n->r, others, json_string(names[i]));
  }
  if (json_array_size(others) > 0) add_schema(n, json_pack("{s:O}", "type", others));
  json_decref(others);
  if (json_array_size(texts) > 0) add_schema(n, json_pack("{s:s,s:O}", "type", "string", FLAT_NO_TEXTS, texts));
  if (most != NULL) add_schema(n, json_pack("{s:s,s:O}", "type", "number", "exclusiveMinimum", most));
  if (least != NULL) add_schema(n, json_pack("{s:s,s:O}", "type", "number", "exclusiveMaximum", least));
  if (truth != NULL && !both) add_schema(n, json_pack("{s:[b]}", "enum", json_is_false(truth)));
  if ((bits & TYPE_OBJECT) != 0 && !empty_object)
    add_schema(n, json_pack("{s:s,s:i}", "type", "object", "maxProperties", 0));
  if ((bits & TYPE_ARRAY) != 0 && !empty_array) add_schema(n, json_pack("{s:s,s:i}", "type", "array", "maxItems", 0));
  json_decref(texts);
}

/* A bound on one side becomes one on the other. */
static bool negate_bound(negation *n, const char *key, const json_t *value) {
  static const struct {
    const char *key, *type, *to;
    int more;
  } list[] = {{"minimum", "number", "exclusiveMaximum", 0},
              {"maximum", "number", "exclusiveMinimum", 0},
              {"exclusiveMinimum", "number", "maximum", 0},
              {"exclusiveMaximum", "number", "minimum", 0},
              {"minLength", "string", "maxLength", -1},
              {"maxLength", "string", "minLength", 1},
              {"minItems", "array", "maxItems", -1},
              {"maxItems", "array", "minItems", 1},
              {"minProperties", "object", "maxProperties", -1},
              {"maxProperties", "object", "minProperties", 1}};
  for (uint32_t i = 0; i < sizeof list / sizeof *list; i++) {
    if (strcmp(key, list[i].key) != 0) continue;
    decimal number;
    bool exact;
    if (!decimal_of(value, &number)) return true; /* of draft 4 */
    if (list[i].more == 0) {
      add_schema(n, json_pack("{s:s,s:O}", "type", list[i].type, list[i].to, value));
      return true;
    }
    int64_t count = decimal_round(&number, false, &exact) + list[i].more;
    if (count >= 0) add_schema(n, json_pack("{s:s,s:I}", "type", list[i].type, list[i].to, (json_int_t)count));
    return true;
  }
  return false;
}

static void negate_properties(negation *n, const json_t *properties) {
  const char *name;
  json_t *value;
  json_object_foreach((json_t *)properties, name, value) {
    if (json_is_true(value)) continue;
    add_schema(n,
               json_pack("{s:s,s:[s],s:{s:o}}", "type", "object", "required", name, "properties", name, not_of(value)));
  }
}

static void negate_items(negation *n, const json_t *items) {
  size_t n_prefix = json_array_size(json_object_get(n->schema, "prefixItems"));
  if (json_is_array(items) || json_is_true(items)) return; /* of older drafts */
  if (n_prefix == 0) {
    add_schema(n, json_pack("{s:s,s:o}", "type", "array", "contains", not_of(items)));
  } else {
    add_schema(n, json_pack("{s:s,s:I,s:o}", "type", "array", "minItems", (json_int_t)n_prefix + 1, "prefixItems",
                            list_after(n->r, n_prefix, not_of(items))));
  }
}

static void negate_prefix(negation *n, const json_t *list) {
  for (size_t i = 0; i < json_array_size(list) && builder_ok(n->r->b); i++) {
    const json_t *item = json_array_get(list, i);
    if (json_is_true(item)) continue;
    add_schema(n, json_pack("{s:s,s:I,s:o}", "type", "array", "minItems", (json_int_t)i + 1, "prefixItems",
                            list_after(n->r, i, not_of(item))));
  }
}

static void negate_contains(negation *n, const json_t *of) {
  uint32_t min = schema_count(n->r, n->schema, "minContains", 1);
  uint32_t max = schema_count(n->r, n->schema, "maxContains", GRAMMAR_NONE);
  if (min > 0) add_schema(n, json_pack("{s:s,s:o}", "type", "array", "items", not_of(of)));
  if (max != GRAMMAR_NONE) {
    add_schema(n, json_pack("{s:s,s:O,s:I}", "type", "array", "contains", of, "minContains", (json_int_t)max + 1));
  }
}

/* All of them fail. */
static void negate_any(negation *n, const json_t *list) {
  json_t *all = json_array();
  for (size_t i = 0; i < json_array_size(list); i++) schema_append(n->r, all, not_of(json_array_get(list, i)));
  add_schema(n, json_pack("{s:o}", "allOf", all));
}

static void negate_one(negation *n, const json_t *list) {
  size_t n_list = json_array_size(list), n_pairs = 0;
  negate_any(n, list);
  for (size_t i = 0; i < n_list; i++) {
    for (size_t k = 0; k < i && n_pairs++ < PAIRS_MAX; k++) {
      add_schema(n, json_pack("{s:[O,O]}", "allOf", json_array_get(list, i), json_array_get(list, k)));
    }
  }
}

static void negate_if(negation *n, const json_t *condition) {
  const json_t *then = json_object_get(n->schema, "then"), *otherwise = json_object_get(n->schema, "else");
  if (then != NULL) add_schema(n, json_pack("{s:[O,o]}", "allOf", condition, not_of(then)));
  if (otherwise != NULL) add_schema(n, json_pack("{s:[o,o]}", "allOf", not_of(condition), not_of(otherwise)));
}

static void negate_dependent(negation *n, const json_t *map) {
  const char *name;
  json_t *of;
  json_object_foreach((json_t *)map, name, of) {
    json_t *failing = json_is_array(of) ? json_pack("{s:{s:O}}", "not", "required", of) : not_of(of);
    add_schema(n, json_pack("{s:s,s:[s],s:[o]}", "type", "object", "required", name, "allOf", failing));
  }
}

static void negate_keyword(negation *n, const char *key, const json_t *value) {
  if (strcmp(key, "type") == 0) {
    negate_types(n, value);
  } else if (strcmp(key, "enum") == 0 && json_is_array(value)) {
    negate_constants(n, value);
  } else if (strcmp(key, "const") == 0) {
    json_t *list = json_pack("[O]", value);
    negate_constants(n, list);
    json_decref(list);
  } else if (strcmp(key, "pattern") == 0) {
    add_schema(n, json_pack("{s:s,s:[O]}", "type", "string", FLAT_NO_PATTERNS, value));
  } else if (strcmp(key, "multipleOf") == 0) {
    decimal number;
    if (decimal_of(value, &number) && decimal_is_whole(&number)) {
      add_schema(n, json_pack("{s:s,s:b}", "type", "number", FLAT_FRACTION, 1));
    }
  } else if (strcmp(key, "required") == 0) {
    for (size_t i = 0; i < json_array_size(value); i++) {
      const char *name = json_string_value(json_array_get(value, i));
      if (name != NULL) add_schema(n, json_pack("{s:s,s:{s:b}}", "type", "object", "properties", name, 0));
    }
  } else if (strcmp(key, "properties") == 0) {
    negate_properties(n, value);
  } else if (strcmp(key, "items") == 0) {
    negate_items(n, value);
  } else if (strcmp(key, "prefixItems") == 0) {
    negate_prefix(n, value);
  } else if (strcmp(key, "contains") == 0) {
    negate_contains(n, value);
  } else {
    (void)negate_bound(n, key, value);
  }
}

static void negate_applied(negation *n, const char *key, const json_t *value) {
  if (strcmp(key, "allOf") == 0) {
    for (size_t i = 0; i < json_array_size(value); i++) add_schema(n, not_of(json_array_get(value, i)));
  } else if (strcmp(key, "anyOf") == 0) {
    negate_any(n, value);
  } else if (strcmp(key, "oneOf") == 0) {
    negate_one(n, value);
  } else if (strcmp(key, "not") == 0) {
    add_schema(n, json_is_object(value) ? json_incref((json_t *)value) : json_pack("{s:[O]}", "allOf", value));
  } else if (strcmp(key, "if") == 0) {
    negate_if(n, value);
  } else if (strcmp(key, "dependentRequired") == 0 || strcmp(key, "dependentSchemas") == 0) {
    negate_dependent(n, value);
  } else if (strcmp(key, "$ref") == 0 && json_is_string(value)) {
    const json_t *target = schema_target(n->r, json_string_value(value));
    if (target != NULL) add_schema(n, not_of(target));
  } else {
    negate_keyword(n, key, value);
  }
}

/* Marks all of a flat schema as not evaluated. */
static json_t *hide_flat(schema_reader *r, const json_t *flat) {
  json_t *copy = schema_keep(r, json_copy((json_t *)flat)), *names = json_array(), *value;
  const char *name;
  json_object_foreach(json_object_get(copy, "properties"), name, value) {
    if (builder_step(r->b, 2)) schema_append(r, names, json_string(name));
  }
  bool failed = false;
  if (json_array_size(names) > 0) failed = json_object_set(copy, FLAT_UNSEEN, names) != 0;
  json_decref(names);
  bool rest =
      json_object_get(copy, "additionalProperties") != NULL || json_object_get(copy, "patternProperties") != NULL;
  bool items = json_object_get(copy, "items") != NULL || json_object_get(copy, "prefixItems") != NULL;
  if (rest) failed = json_object_set_new(copy, FLAT_UNSEEN_REST, json_true()) != 0 || failed;
  if (items) failed = json_object_set_new(copy, FLAT_UNSEEN_ITEMS, json_true()) != 0 || failed;
  if (failed) schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
  return copy;
}

json_t *schema_flatten_not(schema_reader *r, const json_t *schema, uint32_t depth) {
  json_t *out = schema_keep(r, json_array()), *value;
  negation n = {r, schema, schema_keep(r, json_array())};
  const char *key;
  if (depth > NOT_DEPTH_MAX)
    schema_fail(r, WEFT_E_TOO_LARGE, "schemas apply one another more than %d deep", NOT_DEPTH_MAX);
  if (!json_is_object(schema) && !json_is_boolean(schema)) {
    schema_fail(r, WEFT_E_INVALID, "a schema must be an object, true or false");
  }
  if (!builder_ok(r->b)) return NULL;
  if (json_is_false(schema)) add_schema(&n, json_object());
  json_object_foreach((json_t *)schema, key, value) {
    if (builder_ok(r->b)) negate_applied(&n, key, value);
  }
  for (size_t i = 0; i < json_array_size(n.out) && builder_ok(r->b); i++) {
    const json_t *flats = schema_flatten(r, json_array_get(n.out, i), depth + 1);
    for (size_t k = 0; k < json_array_size(flats) && builder_ok(r->b); k++) {
      if (json_array_append(out, hide_flat(r, json_array_get(flats, k))) != 0) {
        schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
      }
    }
  }
  if (json_array_size(out) == 0) schema_contradict(r, "what must not hold here leaves nothing that can be written");
  return out;
}
