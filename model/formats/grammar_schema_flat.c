/* SPDX-License-Identifier: MIT */
/* Schemas that apply others to the same value, as lists of flat ones. */
#include <string.h>

#include "model/formats/grammar_schema.h"

enum { FLAT_DEPTH_MAX = 48, FLATS_MAX = 4096 };

json_t *schema_keep(schema_reader *r, json_t *schema) {
  if (schema != NULL && builder_step(r->b, 16) && json_array_append(r->made, schema) == 0) {
    json_decref(schema); /* the list holds it */
    return schema;
  }
  json_decref(schema);
  schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
  return NULL;
}

static json_t *empty_list(schema_reader *r) {
  return schema_keep(r, json_array());
}

void schema_append(schema_reader *r, json_t *list, json_t *item) {
  if (json_array_append_new(list, item) != 0) schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
}

void schema_set(schema_reader *r, json_t *object, const char *key, json_t *value) {
  if (json_object_set_new(object, key, value) != 0) schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
}

/* A list that holds one value. */
static void put_listed(schema_reader *r, json_t *into, const char *key, const json_t *value) {
  schema_set(r, into, key, json_pack("[O]", value));
}

static void add_all(schema_reader *r, json_t *to, const json_t *from) {
  for (size_t i = 0; i < json_array_size(from) && builder_step(r->b, 4); i++) {
    if (json_array_append(to, json_array_get(from, i)) != 0) schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
  }
  if (json_array_size(to) > FLATS_MAX) {
    schema_fail(r, WEFT_E_TOO_LARGE, "it has more than %d alternatives", FLATS_MAX);
  }
}

/* ---- what speaks of the value itself ---- */

typedef enum value_kind {
  KIND_ANY,
  KIND_LIST,
  KIND_FILLED, /* a list that is not empty */
  KIND_MAP,
  KIND_SCHEMA,
  KIND_COUNT,
  KIND_NUMBER,
  KIND_POSITIVE,
  KIND_TEXT,
  KIND_TRUTH
} value_kind;

static const struct {
  const char *word, *is;
  value_kind kind;
} plain_keywords[] = {{"type", "", KIND_ANY},
                      {"properties", "an object", KIND_MAP},
                      {"patternProperties", "an object", KIND_MAP},
                      {"additionalProperties", "a schema, true or false", KIND_SCHEMA},
                      {"required", "a list of names", KIND_LIST},
                      {"minProperties", "a whole number from 0", KIND_COUNT},
                      {"maxProperties", "a whole number from 0", KIND_COUNT},
                      {"items", "a schema, true or false", KIND_SCHEMA},
                      {"prefixItems", "a list of schemas", KIND_LIST},
                      {"minItems", "a whole number from 0", KIND_COUNT},
                      {"maxItems", "a whole number from 0", KIND_COUNT},
                      {"uniqueItems", "true or false", KIND_TRUTH},
                      {"minLength", "a whole number from 0", KIND_COUNT},
                      {"maxLength", "a whole number from 0", KIND_COUNT},
                      {"minimum", "a number", KIND_NUMBER},
                      {"maximum", "a number", KIND_NUMBER},
                      {"exclusiveMinimum", "a number", KIND_NUMBER},
                      {"exclusiveMaximum", "a number", KIND_NUMBER},
                      {"enum", "a list of at least one value", KIND_FILLED}};

static bool is_kind(const json_t *value, value_kind kind) {
  decimal number;
  bool is_number = decimal_of(value, &number);
  if (is_number && kind != KIND_ANY) {
    bool count = !number.negative && decimal_is_whole(&number);
    return kind == KIND_COUNT ? count : kind == KIND_POSITIVE ? !number.negative && number.n > 0 : kind == KIND_NUMBER;
  }
  switch (kind) {
    case KIND_LIST:
      return json_is_array(value);
    case KIND_FILLED:
      return json_array_size(value) > 0;
    case KIND_MAP:
      return json_is_object(value);
    case KIND_SCHEMA:
      return json_is_object(value) || json_is_boolean(value);
    case KIND_COUNT:
    case KIND_NUMBER:
    case KIND_POSITIVE:
      return false;
    case KIND_TEXT:
      return json_is_string(value);
    case KIND_TRUTH:
      return json_is_boolean(value);
    default:
      return true;
  }
}

/* false: the value is none that the keyword may have, and the keyword is left out if that was not a failure. */
static bool check_kind(schema_reader *r, const char *key, const json_t *value, value_kind kind, const char *is) {
  if (is_kind(value, kind)) return true;
  if (r->lenient) {
    schema_widen(r, "%.40s must be %s", key, is);
  } else {
    schema_fail(r, WEFT_E_INVALID, "%.40s must be %s", key, is);
  }
  return false;
}

/* A list as items, and the items behind it, as older drafts write them. */
static void put_old_items(schema_reader *r, const json_t *schema, json_t *into) {
  const json_t *items = json_object_get(schema, "items"), *more = json_object_get(schema, "additionalItems");
  schema_set(r, into, "prefixItems", json_incref((json_t *)items));
  if (more != NULL) schema_set(r, into, "items", json_incref((json_t *)more));
}

static void put_contains(schema_reader *r, const json_t *schema, json_t *into) {
  const json_t *of = json_object_get(schema, "contains");
  uint32_t min = schema_count(r, schema, "minContains", 1), max = schema_count(r, schema, "maxContains", GRAMMAR_NONE);
  if (!check_kind(r, "contains", of, KIND_SCHEMA, "a schema, true or false")) return;
  if (min == 0 && max == GRAMMAR_NONE) return;
  schema_set(r, into, FLAT_CONTAINS,
             json_pack("[{s:O,s:I,s:I}]", "of", of, "min", (json_int_t)min, "max", (json_int_t)max));
}

/* Draft 4 says with true that the bound beside it is out. */
static void put_old_bound(schema_reader *r, const json_t *schema, const char *key, json_t *into) {
  bool least = strcmp(key, "exclusiveMinimum") == 0;
  const char *beside = least ? "minimum" : "maximum";
  const json_t *bound = json_object_get(schema, beside);
  if (json_is_true(json_object_get(schema, key)) && bound != NULL)
    schema_set(r, into, key, json_incref((json_t *)bound));
}

/* Keywords that become lists. false: it is none of them. */
static bool put_listed_keyword(schema_reader *r, const char *key, const json_t *value, json_t *into) {
  if (strcmp(key, "pattern") == 0) {
    if (check_kind(r, key, value, KIND_TEXT, "a text")) put_listed(r, into, FLAT_PATTERNS, value);
  } else if (strcmp(key, "format") == 0) {
    bool known =
        check_kind(r, key, value, KIND_TEXT, "a text") && schema_format_pattern(json_string_value(value)) != NULL;
    if (known) put_listed(r, into, FLAT_FORMATS, value);
  } else if (strcmp(key, "propertyNames") == 0) {
    if (check_kind(r, key, value, KIND_SCHEMA, "a schema, true or false")) put_listed(r, into, FLAT_NAMES, value);
  } else if (strcmp(key, "multipleOf") == 0) {
    if (check_kind(r, key, value, KIND_POSITIVE, "a number greater than 0")) put_listed(r, into, FLAT_MULTIPLES, value);
  } else if (strcmp(key, "const") == 0) {
    put_listed(r, into, "enum", value);
  } else {
    return false;
  }
  return true;
}

static bool is_exclusive(const char *key) {
  return strcmp(key, "exclusiveMinimum") == 0 || strcmp(key, "exclusiveMaximum") == 0;
}

static void put_keyword(schema_reader *r, const json_t *schema, const char *key, json_t *value, json_t *into) {
  if (key[0] == '\001') {
    schema_set(r, into, key, json_incref(value));
  } else if (strcmp(key, "items") == 0 && json_is_array(value)) {
    put_old_items(r, schema, into);
  } else if (is_exclusive(key) && json_is_boolean(value)) {
    put_old_bound(r, schema, key, into);
  } else if (strcmp(key, "enum") == 0 && json_object_get(schema, "const") != NULL) {
    return; /* const is put in its place, and looked for in the list */
  } else if (strcmp(key, "contains") == 0) {
    put_contains(r, schema, into);
  } else if (!put_listed_keyword(r, key, value, into)) {
    for (uint32_t i = 0; i < sizeof plain_keywords / sizeof *plain_keywords; i++) {
      if (strcmp(key, plain_keywords[i].word) != 0) continue;
      if (!check_kind(r, key, value, plain_keywords[i].kind, plain_keywords[i].is)) return;
      schema_set(r, into, key, json_incref(value));
    }
  }
}

static bool is_in(schema_reader *r, const json_t *list, const json_t *value) {
  for (size_t i = 0; i < json_array_size(list) && builder_step(r->b, 2); i++) {
    if (schema_is_same(r, json_array_get(list, i), value)) return true;
  }
  return false;
}

/* The keywords of one schema that speak of the value; NULL: nothing fits. */
static json_t *flat_of(schema_reader *r, const json_t *schema) {
  json_t *into = schema_keep(r, json_object()), *value;
  const char *key;
  if (into == NULL || !builder_step(r->b, 8 * (uint64_t)json_object_size(schema))) return NULL;
  json_object_foreach((json_t *)schema, key, value) {
    if (!schema_is_annotation(key)) put_keyword(r, schema, key, value, into);
  }
  const json_t *one = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");
  if (one != NULL && list != NULL && !is_in(r, list, one)) {
    schema_contradict(r, "const is none of the values of enum");
    return NULL;
  }
  const json_t *type = json_object_get(schema, "type");
  if (type != NULL && schema_type_bits(r, type) == 0) return NULL;
  return builder_ok(r->b) ? into : NULL;
}

/* ---- alternatives ---- */

/* Each of one list with each of the other. */
static json_t *cross_lists(schema_reader *r, const json_t *a, const json_t *b) {
  json_t *out = empty_list(r);
  for (size_t i = 0; i < json_array_size(a) && out != NULL; i++) {
    for (size_t k = 0; k < json_array_size(b) && builder_step(r->b, 16); k++) {
      json_t *merged = schema_merge(r, json_array_get(a, i), json_array_get(b, k));
      if (merged != NULL && json_array_append(out, merged) != 0) schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
    }
    if (json_array_size(out) > FLATS_MAX)
      schema_fail(r, WEFT_E_TOO_LARGE, "it has more than %d alternatives", FLATS_MAX);
  }
  return out;
}

static bool check_list(schema_reader *r, const char *keyword, const json_t *list) {
  if (json_is_array(list) && json_array_size(list) > 0) return true;
  schema_fail(r, WEFT_E_INVALID, "%s must be a list of at least one schema", keyword);
  return false;
}

static json_t *flatten_any(schema_reader *r, const json_t *list, uint32_t depth) {
  json_t *out = empty_list(r);
  for (size_t i = 0; i < json_array_size(list) && out != NULL && builder_ok(r->b); i++) {
    add_all(r, out, schema_flatten(r, json_array_get(list, i), depth + 1));
  }
  return out;
}

/* Of oneOf: a branch, and none of those that may hold with it. */
static json_t *flatten_one(schema_reader *r, const json_t *list, uint32_t depth) {
  json_t *out = empty_list(r);
  size_t n = json_array_size(list);
  for (size_t i = 0; i < n && out != NULL && builder_ok(r->b); i++) {
    json_t *own = schema_flatten(r, json_array_get(list, i), depth + 1);
    for (size_t k = 0; k < n && builder_step(r->b, 16) && json_array_size(own) > 0; k++) {
      const json_t *other = json_array_get(list, k);
      if (k == i || schema_excludes(r, json_array_get(list, i), other, 0) || !builder_ok(r->b)) continue;
      own = cross_lists(r, own, schema_flatten_not(r, other, depth + 1));
    }
    add_all(r, out, own);
  }
  return out;
}

/* if, then, else. What `if` has evaluated counts where it holds. */
static json_t *flatten_if(schema_reader *r, const json_t *schema, uint32_t depth) {
  const json_t *condition = json_object_get(schema, "if");
  const json_t *then = json_object_get(schema, "then"), *otherwise = json_object_get(schema, "else");
  json_t *holds = schema_flatten(r, condition, depth + 1), *fails, *out = empty_list(r);
  if (then != NULL) holds = cross_lists(r, holds, schema_flatten(r, then, depth + 1));
  if (then == NULL && otherwise == NULL) {
    fails = schema_flatten(r, json_true(), depth + 1);
  } else {
    fails = schema_flatten_not(r, condition, depth + 1);
    if (otherwise != NULL) fails = cross_lists(r, fails, schema_flatten(r, otherwise, depth + 1));
  }
  if (out != NULL) add_all(r, out, holds);
  if (out != NULL) add_all(r, out, fails);
  return out;
}

/* A property that asks for others, or for a schema of the whole object: it is there with it, or it is not there. */
static json_t *flatten_dependent(schema_reader *r, const char *name, const json_t *of, uint32_t depth) {
  json_t *out = empty_list(r), *names = json_is_array(of) ? json_copy((json_t *)of) : json_array();
  if (out == NULL || names == NULL || json_array_append_new(names, json_string(name)) != 0) {
    json_decref(names);
    schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
    return NULL;
  }
  json_t *there = schema_keep(r, json_pack("[{s:o}]", "required", names));
  json_t *absent = schema_keep(r, json_pack("{s:{s:b},s:[s]}", "properties", name, 0, FLAT_UNSEEN, name));
  if (there == NULL || absent == NULL) return NULL;
  if (!json_is_array(of)) there = cross_lists(r, there, schema_flatten(r, of, depth + 1));
  add_all(r, out, there);
  if (json_array_append(out, absent) != 0) schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
  return out;
}

static json_t *cross_dependent(schema_reader *r, const json_t *schema, json_t *list, uint32_t depth) {
  static const char *const keywords[] = {"dependentRequired", "dependentSchemas", "dependencies"};
  for (uint32_t i = 0; i < 3; i++) {
    json_t *map = json_object_get(schema, keywords[i]), *of;
    const char *name;
    if (map != NULL && !check_kind(r, keywords[i], map, KIND_MAP, "an object")) continue;
    json_object_foreach(map, name, of) {
      if (builder_ok(r->b)) list = cross_lists(r, list, flatten_dependent(r, name, of, depth));
    }
  }
  return list;
}

/* ---- what nothing beside it has evaluated ---- */

static void replace_both(schema_reader *r, json_t *flat, const char *key, const json_t *schema) {
  const json_t *own = json_object_get(flat, key);
  schema_set(r, flat, key, own == NULL ? json_incref((json_t *)schema) : schema_both(own, schema));
}

static void apply_to_properties(schema_reader *r, json_t *flat, const json_t *schema) {
  const json_t *unseen = json_object_get(flat, FLAT_UNSEEN), *patterns = json_object_get(flat, "patternProperties");
  bool rest = json_object_get(flat, FLAT_UNSEEN_REST) != NULL;
  if (json_object_get(flat, "additionalProperties") != NULL && !rest) return;
  replace_both(r, flat, "additionalProperties", schema);
  if (unseen != NULL) {
    json_t *copy = json_copy(json_object_get(flat, "properties"));
    for (size_t i = 0; i < json_array_size(unseen) && builder_step(r->b, 8); i++) {
      replace_both(r, copy, json_string_value(json_array_get(unseen, i)), schema);
    }
    schema_set(r, flat, "properties", copy);
  }
  if (rest && patterns != NULL) {
    json_t *copy = json_copy((json_t *)patterns), *value;
    const char *key;
    json_object_foreach((json_t *)patterns, key, value) replace_both(r, copy, key, schema);
    schema_set(r, flat, "patternProperties", copy);
  }
  (void)json_object_del(flat, FLAT_UNSEEN);
  (void)json_object_del(flat, FLAT_UNSEEN_REST);
}

static void apply_to_items(schema_reader *r, json_t *flat, const json_t *schema) {
  const json_t *prefix = json_object_get(flat, "prefixItems");
  bool unseen = json_object_get(flat, FLAT_UNSEEN_ITEMS) != NULL;
  if (json_object_get(flat, "items") != NULL && !unseen) return;
  replace_both(r, flat, "items", schema);
  if (!unseen) return;
  json_t *copy = json_array();
  for (size_t i = 0; i < json_array_size(prefix) && builder_step(r->b, 8); i++) {
    schema_append(r, copy, schema_both(json_array_get(prefix, i), schema));
  }
  schema_set(r, flat, "prefixItems", copy);
  (void)json_object_del(flat, FLAT_UNSEEN_ITEMS);
}

static json_t *apply_unevaluated(schema_reader *r, const json_t *schema, json_t *list) {
  const json_t *properties = json_object_get(schema, "unevaluatedProperties");
  const json_t *items = json_object_get(schema, "unevaluatedItems");
  if (properties == NULL && items == NULL) return list;
  json_t *out = empty_list(r);
  for (size_t i = 0; i < json_array_size(list) && out != NULL && builder_step(r->b, 32); i++) {
    json_t *flat = schema_keep(r, json_copy(json_array_get(list, i)));
    if (flat == NULL) break;
    if (properties != NULL) apply_to_properties(r, flat, properties);
    if (items != NULL) apply_to_items(r, flat, items);
    if (json_array_append(out, flat) != 0) schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
  }
  return out;
}

/* ---- all of it ---- */

static json_t *flatten_parts(schema_reader *r, const json_t *schema, uint32_t depth) {
  const json_t *all = json_object_get(schema, "allOf"), *any = json_object_get(schema, "anyOf");
  const json_t *one = json_object_get(schema, "oneOf"), *none = json_object_get(schema, "not");
  const json_t *reference = json_object_get(schema, "$ref");
  json_t *own = flat_of(r, schema), *list = empty_list(r);
  if (own == NULL || list == NULL) return list;
  if (json_array_append(list, own) != 0) schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
  if (json_object_get(schema, "$dynamicRef") != NULL || json_object_get(schema, "$recursiveRef") != NULL) {
    schema_widen(r, "a $dynamicRef or $recursiveRef whose anchor depends on where it is used is not supported");
  }
  if (reference != NULL && !json_is_string(reference)) schema_fail(r, WEFT_E_INVALID, "$ref must be a text");
  if (reference != NULL && builder_ok(r->b)) {
    const json_t *target = schema_target(r, json_string_value(reference));
    list = cross_lists(r, list, target == NULL ? NULL : schema_flatten(r, target, depth + 1));
  }
  if (all != NULL && !json_is_array(all)) schema_fail(r, WEFT_E_INVALID, "allOf must be a list of schemas");
  for (size_t i = 0; i < json_array_size(all) && builder_ok(r->b); i++) {
    list = cross_lists(r, list, schema_flatten(r, json_array_get(all, i), depth + 1));
  }
  if (any != NULL && check_list(r, "anyOf", any)) list = cross_lists(r, list, flatten_any(r, any, depth));
  if (one != NULL && check_list(r, "oneOf", one)) list = cross_lists(r, list, flatten_one(r, one, depth));
  if (none != NULL && builder_ok(r->b)) list = cross_lists(r, list, schema_flatten_not(r, none, depth + 1));
  if (json_object_get(schema, "if") != NULL) list = cross_lists(r, list, flatten_if(r, schema, depth));
  return apply_unevaluated(r, schema, cross_dependent(r, schema, list, depth));
}

json_t *schema_flatten(schema_reader *r, const json_t *schema, uint32_t depth) {
  if (!builder_step(r->b, 8)) return NULL;
  if (json_is_false(schema)) return empty_list(r);
  if (json_is_true(schema)) return schema_keep(r, json_pack("[{}]"));
  if (!json_is_object(schema) || decimal_is_number(schema)) {
    schema_fail(r, WEFT_E_INVALID, "a schema must be an object, true or false");
    return NULL;
  }
  if (depth > FLAT_DEPTH_MAX) {
    schema_fail(r, WEFT_E_TOO_LARGE, "references go in a circle, or schemas apply one another more than %d deep",
                FLAT_DEPTH_MAX);
    return NULL;
  }
  return flatten_parts(r, schema, depth);
}

bool schema_is_never(schema_reader *r, const json_t *schema) {
  static const char *const shallow[] = {"allOf", "not", "anyOf", "oneOf", "if", "enum", "const"};
  bool looks = json_is_false(schema);
  for (uint32_t i = 0; i < sizeof shallow / sizeof *shallow && !looks; i++) {
    looks = json_object_get(schema, shallow[i]) != NULL;
  }
  return looks && json_array_size(schema_flatten(r, schema, 0)) == 0 && builder_ok(r->b);
}
