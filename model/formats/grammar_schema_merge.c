/* SPDX-License-Identifier: MIT */
/* Two schemas as one, and whether two can hold at once.
 *
 * Law: a value that fits the merged schema fits both. Where that cannot be written with one keyword, merging fails by
 * name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/formats/grammar_json.h"

/* Keeps a schema to the end. */
static json_t *keep_schema(schema_reader *r, json_t *schema) {
  if (schema != NULL && builder_step(r->b, 16) && json_array_append(r->made, schema) == 0) {
    json_decref(schema); /* the list holds it */
    return schema;
  }
  json_decref(schema);
  schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
  return NULL;
}

/* Copies of lists and objects are kept to the end, so that they cost memory too: more steps than their time alone. */
static bool count_copy(schema_reader *r, size_t n) {
  return builder_step(r->b, 16 * (uint64_t)n);
}

json_t *schema_without(schema_reader *r, const json_t *schema, const char *keyword) {
  if (!count_copy(r, json_object_size(schema))) return NULL;
  json_t *copy = json_copy((json_t *)schema);
  const char *key;
  json_t *value;
  void *next;
  if (copy == NULL) return keep_schema(r, NULL);
  json_object_foreach_safe(copy, next, key, value) {
    if (strcmp(key, keyword) == 0 || schema_is_annotation(key)) (void)json_object_del(copy, key);
  }
  return keep_schema(r, copy);
}

/* ---- merging ---- */

typedef struct merging {
  schema_reader *r;
  json_t *into;
  const json_t *a, *b; /* what is merged; into began as a copy of a */
} merging;

static void set_member(merging *m, const char *key, json_t *value) {
  if (value == NULL || json_object_set_new(m->into, key, value) != 0) {
    schema_fail(m->r, WEFT_E_NO_MEMORY, "no memory for it");
  }
}

static json_t *both_of(schema_reader *r, const json_t *a, const json_t *b) {
  if (json_is_true(a) || schema_is_same(r, a, b)) return json_incref((json_t *)b);
  if (json_is_true(b)) return json_incref((json_t *)a);
  if (json_is_false(a) || json_is_false(b)) return json_false();
  return json_pack("{s:[O,O]}", "allOf", a, b);
}

static void merge_types(merging *m, const json_t *x, const json_t *y) {
  static const char *const names[] = {"object", "array", "string", "number", "integer", "boolean", "null"};
  uint32_t a = schema_type_bits(m->r, x), b = schema_type_bits(m->r, y);
  if ((a & TYPE_NUMBER) != 0) a |= TYPE_INTEGER;
  if ((b & TYPE_NUMBER) != 0) b |= TYPE_INTEGER;
  json_t *list = json_array();
  for (uint32_t i = 0; i < 7; i++) {
    if ((a & b & 1u << i) != 0) (void)json_array_append_new(list, json_string(names[i]));
  }
  if (json_array_size(list) == 0) schema_fail(m->r, WEFT_E_INVALID, "nothing fits: allOf asks for different types");
  set_member(m, "type", list);
}

static void merge_lists(merging *m, const char *key, const json_t *x, const json_t *y, bool union_of) {
  if (!count_copy(m->r, json_array_size(x) + json_array_size(y))) return;
  json_t *list = union_of ? json_copy((json_t *)x) : json_array();
  for (size_t i = 0; i < json_array_size(y); i++) {
    json_t *item = json_array_get(y, i);
    bool found = false;
    if (!builder_step(m->r->b, 1 + json_array_size(x))) break;
    for (size_t k = 0; k < json_array_size(x) && !found; k++) found = schema_is_same(m->r, json_array_get(x, k), item);
    if (found != union_of) (void)json_array_append(list, item);
  }
  set_member(m, key, list);
}

/* Properties of one schema are also under what the other one says of additional ones. */
static void merge_properties(merging *m) {
  const json_t *pa = json_object_get(m->a, "properties"), *pb = json_object_get(m->b, "properties");
  const json_t *oa = json_object_get(m->a, "additionalProperties"), *ob = json_object_get(m->b, "additionalProperties");
  if (!count_copy(m->r, json_object_size(pa) + json_object_size(pb))) return;
  json_t *all = json_object(), *value;
  const char *name;
  json_object_foreach((json_t *)pa, name, value) {
    const json_t *other = json_object_get(pb, name);
    if (other == NULL) other = ob;
    (void)json_object_set_new(all, name, other == NULL ? json_incref(value) : both_of(m->r, value, other));
  }
  json_object_foreach((json_t *)pb, name, value) {
    if (json_object_get(pa, name) != NULL) continue;
    (void)json_object_set_new(all, name, oa == NULL ? json_incref(value) : both_of(m->r, oa, value));
  }
  if (json_object_size(all) > 0) {
    set_member(m, "properties", all);
  } else {
    json_decref(all);
  }
  if (oa != NULL && ob != NULL) {
    set_member(m, "additionalProperties", both_of(m->r, oa, ob));
  } else if (oa != NULL || ob != NULL) {
    set_member(m, "additionalProperties", json_incref((json_t *)(oa != NULL ? oa : ob)));
  }
}

static void merge_alternatives(merging *m, const json_t *x, const json_t *y) {
  json_t *list = json_array();
  for (size_t i = 0; i < json_array_size(x); i++) {
    for (size_t k = 0; k < json_array_size(y) && builder_step(m->r->b, 64); k++) {
      (void)json_array_append_new(list, both_of(m->r, json_array_get(x, i), json_array_get(y, k)));
    }
  }
  set_member(m, "anyOf", list);
}

static bool starts_with(const char *text, const char *start) {
  return strncmp(text, start, strlen(start)) == 0;
}

/* A keyword that both have, differently. */
static void merge_keyword(merging *m, const char *key, const json_t *x, json_t *y) {
  bool least = strcmp(key, "minimum") == 0 || strcmp(key, "exclusiveMinimum") == 0 || starts_with(key, "minL") ||
               starts_with(key, "minI") || starts_with(key, "minP");
  bool most = strcmp(key, "maximum") == 0 || strcmp(key, "exclusiveMaximum") == 0 || starts_with(key, "maxL") ||
              starts_with(key, "maxI") || starts_with(key, "maxP");
  if (strcmp(key, "type") == 0) {
    merge_types(m, x, y);
  } else if (strcmp(key, "required") == 0 || strcmp(key, "allOf") == 0) {
    merge_lists(m, key, x, y, true);
  } else if (strcmp(key, "enum") == 0) {
    merge_lists(m, key, x, y, false);
  } else if (strcmp(key, "anyOf") == 0) {
    merge_alternatives(m, x, y);
  } else if (strcmp(key, "items") == 0 && !json_is_array(x) && !json_is_array(y)) {
    set_member(m, key, both_of(m->r, x, y));
  } else if (least || most) {
    bool greater = json_number_value(y) > json_number_value(x);
    if (greater == least) set_member(m, key, json_incref(y));
  } else if (strcmp(key, "const") == 0) {
    schema_fail(m->r, WEFT_E_INVALID, "nothing fits: allOf asks for different constants");
  } else {
    schema_fail(m->r, WEFT_E_UNSUPPORTED, "allOf, or a branch beside it, with two different '%.40s' is not supported",
                key);
  }
}

/* A schema with what it refers to in place of the reference, as far as merging needs it. */
static const json_t *open_reference(schema_reader *r, const json_t *schema) {
  for (uint32_t i = 0; builder_ok(r->b); i++) {
    const char *reference = json_string_value(json_object_get(schema, "$ref"));
    if (reference == NULL) return schema;
    if (i >= GRAMMAR_NEST_MAX / 2) {
      schema_fail(r, WEFT_E_INVALID, "references go in a circle");
      return NULL;
    }
    const json_t *target = schema_target(r, reference), *rest = schema_without(r, schema, "$ref");
    if (target == NULL || rest == NULL) return NULL;
    schema = target;
    if (json_object_size(rest) == 0) continue;
    if (r->depth >= GRAMMAR_NEST_MAX) {
      schema_fail(r, WEFT_E_TOO_LARGE, "the schema is nested more than %d deep", GRAMMAR_NEST_MAX);
      return NULL;
    }
    r->depth += 1;
    schema = schema_merge(r, target, rest);
    r->depth -= 1;
  }
  return NULL;
}

json_t *schema_merge(schema_reader *r, const json_t *a, const json_t *b) {
  if (json_is_true(b)) return (json_t *)a;
  if (json_is_true(a)) return (json_t *)b;
  a = open_reference(r, a);
  b = open_reference(r, b);
  if (!builder_ok(r->b)) return NULL;
  if (!json_is_object(a) || !json_is_object(b)) {
    if (json_is_true(a) || json_is_true(b)) return (json_t *)(json_is_true(a) ? b : a);
    schema_fail(r, WEFT_E_INVALID, "nothing fits: allOf has a schema that is no object");
    return NULL;
  }
  if (!count_copy(r, json_object_size(a) + json_object_size(b))) return NULL;
  merging m = {r, json_copy((json_t *)a), a, b};
  const char *key;
  json_t *value;
  if (keep_schema(r, m.into) == NULL) return NULL;
  json_object_foreach((json_t *)b, key, value) {
    const json_t *own = json_object_get(a, key);
    if (schema_is_annotation(key) || strcmp(key, "properties") == 0 || strcmp(key, "additionalProperties") == 0)
      continue;
    if (own == NULL) {
      set_member(&m, key, json_incref(value));
    } else if (!schema_is_same(r, own, value)) {
      merge_keyword(&m, key, own, value);
    }
    if (!builder_ok(r->b)) return NULL;
  }
  merge_properties(&m);
  return builder_ok(r->b) ? m.into : NULL;
}

/* ---- exclusion ---- */

static const json_t *constant_list(const json_t *schema, size_t *n) {
  const json_t *one = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");
  *n = one != NULL ? 1 : json_array_size(list);
  return one != NULL ? one : json_is_array(list) ? list : NULL;
}

static const json_t *constant_at(const json_t *schema, const json_t *list, size_t i) {
  return json_object_get(schema, "const") != NULL ? list : json_array_get(list, i);
}

static uint32_t possible_bits(schema_reader *r, const json_t *schema) {
  size_t n;
  const json_t *type = json_object_get(schema, "type"), *list = constant_list(schema, &n);
  uint32_t bits = type == NULL ? (uint32_t)TYPE_ALL : schema_type_bits(r, type), values = 0;
  if ((bits & TYPE_INTEGER) != 0) bits |= TYPE_NUMBER;
  if (!builder_step(r->b, n)) return 0;
  for (size_t i = 0; i < n; i++) values |= schema_value_bits(constant_at(schema, list, i)) & ~(uint32_t)TYPE_INTEGER;
  return (bits & ~(uint32_t)TYPE_INTEGER) & (list == NULL ? (uint32_t)TYPE_ALL : values);
}

static bool have_no_common_constant(schema_reader *r, const json_t *a, const json_t *b) {
  size_t n_a, n_b;
  const json_t *x = constant_list(a, &n_a), *y = constant_list(b, &n_b);
  if (x == NULL || y == NULL) return false;
  for (size_t i = 0; i < n_a; i++) {
    for (size_t k = 0; k < n_b && builder_ok(r->b); k++) {
      const json_t *p = constant_at(a, x, i), *q = constant_at(b, y, k);
      bool numbers = json_is_number(p) && json_is_number(q);
      if (schema_is_same(r, p, q) || (numbers && json_number_value(p) == json_number_value(q))) return false;
    }
  }
  return builder_ok(r->b);
}

bool schema_excludes(schema_reader *r, const json_t *a, const json_t *b, uint32_t depth) {
  if (depth > 4 || !builder_ok(r->b)) return false;
  if (json_is_false(a) || json_is_false(b)) return true;
  if (json_is_true(a) || json_is_true(b)) return false;
  a = open_reference(r, a);
  b = open_reference(r, b);
  if (!json_is_object(a) || !json_is_object(b)) return false;
  uint32_t common = possible_bits(r, a) & possible_bits(r, b);
  if (common == 0 || have_no_common_constant(r, a, b)) return true;
  if (common != TYPE_OBJECT) return false;
  const json_t *pa = json_object_get(a, "properties"), *pb = json_object_get(b, "properties");
  const char *name;
  json_t *value;
  json_object_foreach((json_t *)pa, name, value) {
    const json_t *other = json_object_get(pb, name);
    const json_t *in_a = json_object_get(a, "required"), *in_b = json_object_get(b, "required");
    if (!builder_step(r->b, 4) || other == NULL) continue;
    bool needed = schema_has_word(r, in_a, name) && schema_has_word(r, in_b, name);
    if (needed && schema_excludes(r, value, other, depth + 1)) return true;
  }
  return false;
}
