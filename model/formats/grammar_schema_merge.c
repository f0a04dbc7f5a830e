/* SPDX-License-Identifier: MIT */
/* Two flat schemas as one, and whether two schemas can hold at once.
 *
 * Law: a value that fits the merged schema fits both. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/formats/grammar_schema.h"

/* Copies of lists and objects are kept to the end, so that they cost memory too: more steps than their time alone. */
static bool count_copy(schema_reader *r, size_t n) {
  return builder_step(r->b, 16 * (uint64_t)n);
}

/* The same of members whose values become both of two: each is looked up in the other object, and set in a new one. */
static bool count_members(schema_reader *r, size_t n) {
  return builder_step(r->b, 48 * (uint64_t)n);
}

/* ---- merging ---- */

typedef struct merging {
  schema_reader *r;
  json_t *into;
  const json_t *a, *b; /* what is merged; into began as a copy of a */
  bool never;          /* nothing fits both */
} merging;

static void set_member(merging *m, const char *key, json_t *value) {
  if (value == NULL || json_object_set_new(m->into, key, value) != 0) {
    schema_fail(m->r, WEFT_E_NO_MEMORY, "no memory for it");
  }
}

json_t *schema_both(const json_t *a, const json_t *b) {
  if (b == NULL || json_is_true(b) || a == b) return a == NULL ? json_incref((json_t *)b) : json_incref((json_t *)a);
  if (a == NULL || json_is_true(a)) return json_incref((json_t *)b);
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
    if ((a & b & 1u << i) != 0) schema_append(m->r, list, json_string(names[i]));
  }
  m->never = json_array_size(list) == 0;
  if (m->never) schema_contradict(m->r, "it asks for different types");
  set_member(m, "type", list);
}

/* What is in either list; what is in both. */
static void merge_lists(merging *m, const char *key, const json_t *x, const json_t *y, bool union_of) {
  if (!count_copy(m->r, json_array_size(x) + json_array_size(y))) return;
  json_t *list = union_of ? json_copy((json_t *)x) : json_array();
  for (size_t i = 0; i < json_array_size(y); i++) {
    json_t *item = json_array_get(y, i);
    bool found = false;
    if (!builder_step(m->r->b, 1 + json_array_size(x))) break;
    for (size_t k = 0; k < json_array_size(x) && !found; k++) found = schema_is_same(m->r, json_array_get(x, k), item);
    if (found != union_of) schema_append(m->r, list, json_incref(item));
  }
  m->never = !union_of && json_array_size(list) == 0;
  if (m->never) schema_contradict(m->r, "it asks for different constants");
  set_member(m, key, list);
}

/* ---- objects ---- */

/* Whether a name surely falls under one of the patterns of a schema, so that its additionalProperties say nothing of
 * it. */
static bool is_under_pattern(schema_reader *r, const json_t *schema, const char *name) {
  const char *pattern;
  json_t *value;
  bool under = false;
  json_object_foreach(json_object_get(schema, "patternProperties"), pattern, value) {
    bool known;
    automaton a = schema_pattern(r, pattern, REGEX_SURELY, &known);
    under = under || (known && automaton_has(r->b, &a, name, strlen(name)));
    automaton_close(&a);
  }
  return under;
}

/* What a schema says of a property that only the other one names. */
static const json_t *say_of_other(schema_reader *r, const json_t *schema, const char *name) {
  const json_t *other = json_object_get(schema, "additionalProperties");
  return other == NULL || is_under_pattern(r, schema, name) ? NULL : other;
}

/* Properties of one schema are also under what the other one says of additional ones. */
static void merge_properties(merging *m) {
  const json_t *pa = json_object_get(m->a, "properties"), *pb = json_object_get(m->b, "properties");
  const json_t *oa = json_object_get(m->a, "additionalProperties"), *ob = json_object_get(m->b, "additionalProperties");
  if (!count_members(m->r, json_object_size(pa) + json_object_size(pb))) return;
  json_t *all = json_object(), *value;
  const char *name;
  json_object_foreach((json_t *)pa, name, value) {
    const json_t *other = json_object_get(pb, name);
    if (other == NULL) other = say_of_other(m->r, m->b, name);
    schema_set(m->r, all, name, schema_both(value, other));
  }
  json_object_foreach((json_t *)pb, name, value) {
    if (json_object_get(pa, name) != NULL) continue;
    schema_set(m->r, all, name, schema_both(say_of_other(m->r, m->a, name), value));
  }
  if (json_object_size(all) > 0) {
    set_member(m, "properties", all);
  } else {
    json_decref(all);
  }
  if (oa != NULL || ob != NULL) set_member(m, "additionalProperties", schema_both(oa, ob));
}

/* Patterns of one schema are exempt from what it says of additional ones, not from what the other one does. */
static void merge_patterns(merging *m) {
  const json_t *pa = json_object_get(m->a, "patternProperties"), *pb = json_object_get(m->b, "patternProperties");
  const json_t *oa = json_object_get(m->a, "additionalProperties"), *ob = json_object_get(m->b, "additionalProperties");
  if (pa == NULL && pb == NULL) return;
  if (!count_members(m->r, json_object_size(pa) + json_object_size(pb))) return;
  json_t *all = json_object(), *value;
  const char *pattern;
  json_object_foreach((json_t *)pa, pattern, value) {
    const json_t *other = json_object_get(pb, pattern);
    schema_set(m->r, all, pattern, schema_both(value, other != NULL ? other : ob));
  }
  json_object_foreach((json_t *)pb, pattern, value) {
    if (json_object_get(pa, pattern) == NULL) schema_set(m->r, all, pattern, schema_both(oa, value));
  }
  set_member(m, "patternProperties", all);
}

/* Names that one schema has not seen and the other one has not either. */
static void add_unseen(merging *m, const json_t *own, const json_t *other, json_t *list) {
  const json_t *unseen = json_object_get(own, FLAT_UNSEEN), *beside = json_object_get(other, FLAT_UNSEEN);
  const json_t *properties = json_object_get(other, "properties");
  for (size_t i = 0; i < json_array_size(unseen); i++) {
    const char *name = json_string_value(json_array_get(unseen, i));
    bool seen = json_object_get(properties, name) != NULL && !schema_has_word(m->r, beside, name);
    if (!seen && !schema_has_word(m->r, list, name)) schema_append(m->r, list, json_incref(json_array_get(unseen, i)));
  }
}

static void merge_unseen(merging *m) {
  json_t *list = json_array();
  add_unseen(m, m->a, m->b, list);
  add_unseen(m, m->b, m->a, list);
  if (json_array_size(list) > 0) {
    set_member(m, FLAT_UNSEEN, list);
  } else {
    json_decref(list);
    (void)json_object_del(m->into, FLAT_UNSEEN);
  }
}

/* ---- arrays ---- */

static void merge_items(merging *m) {
  const json_t *pa = json_object_get(m->a, "prefixItems"), *pb = json_object_get(m->b, "prefixItems");
  const json_t *ia = json_object_get(m->a, "items"), *ib = json_object_get(m->b, "items");
  size_t n_a = json_array_size(pa), n_b = json_array_size(pb), n = n_a > n_b ? n_a : n_b;
  if (!count_copy(m->r, n)) return;
  if (n > 0) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
      const json_t *x = i < n_a ? json_array_get(pa, i) : ia, *y = i < n_b ? json_array_get(pb, i) : ib;
      schema_append(m->r, list, x == NULL && y == NULL ? json_true() : schema_both(x, y));
    }
    set_member(m, "prefixItems", list);
  }
  if (ia != NULL || ib != NULL) set_member(m, "items", schema_both(ia, ib));
}

/* ---- all of it ---- */

/* A keyword that both have. */
static void merge_keyword(merging *m, const char *key, const json_t *x, json_t *y) {
  bool least = strncmp(key, "min", 3) == 0 || strcmp(key, "exclusiveMinimum") == 0;
  bool most = strncmp(key, "max", 3) == 0 || strcmp(key, "exclusiveMaximum") == 0;
  if (strcmp(key, "type") == 0) {
    merge_types(m, x, y);
  } else if (strcmp(key, "enum") == 0) {
    merge_lists(m, key, x, y, false);
  } else if (json_is_array(x)) {
    merge_lists(m, key, x, y, true);
  } else if (least || most) {
    bool greater = decimal_compare_json(y, x) > 0;
    if (greater == least) set_member(m, key, json_incref(y));
  } else if (json_is_true(y)) {
    set_member(m, key, json_true()); /* uniqueItems, and marks */
  }
}

static bool is_merged_apart(const char *key) {
  static const char *const list[] = {"properties", "additionalProperties", "patternProperties", "prefixItems", "items",
                                     FLAT_UNSEEN};
  for (uint32_t i = 0; i < sizeof list / sizeof *list; i++) {
    if (strcmp(key, list[i]) == 0) return true;
  }
  return false;
}

json_t *schema_merge(schema_reader *r, const json_t *a, const json_t *b) {
  if (json_object_size(b) == 0) return (json_t *)a;
  if (json_object_size(a) == 0) return (json_t *)b;
  if (!count_copy(r, json_object_size(a) + json_object_size(b))) return NULL;
  merging m = {r, json_copy((json_t *)a), a, b, false};
  const char *key;
  json_t *value;
  if (schema_keep(r, m.into) == NULL) return NULL;
  json_object_foreach((json_t *)b, key, value) {
    const json_t *own = json_object_get(a, key);
    if (is_merged_apart(key)) continue;
    if (own == NULL) {
      set_member(&m, key, json_incref(value));
    } else if (own != value) {
      merge_keyword(&m, key, own, value);
    }
    if (!builder_ok(r->b) || m.never) return NULL;
  }
  merge_properties(&m);
  merge_patterns(&m);
  merge_items(&m);
  merge_unseen(&m);
  return builder_ok(r->b) ? m.into : NULL;
}

/* ---- exclusion ---- */

/* The types of a flat schema, where one of integers is one of numbers. */
static uint32_t fold_integers(schema_reader *r, const json_t *flat) {
  uint32_t bits = schema_flat_bits(r, flat);
  return (bits & TYPE_INTEGER) != 0 ? (bits | TYPE_NUMBER) & ~(uint32_t)TYPE_INTEGER : bits;
}

static bool excludes_flat(schema_reader *r, const json_t *a, const json_t *b, uint32_t depth) {
  uint32_t common = fold_integers(r, a) & fold_integers(r, b);
  const json_t *x = json_object_get(a, "enum"), *y = json_object_get(b, "enum");
  bool apart = x != NULL && y != NULL;
  for (size_t i = 0; i < json_array_size(x) && apart; i++) {
    for (size_t k = 0; k < json_array_size(y) && apart && builder_step(r->b, 1); k++) {
      apart = !schema_is_same(r, json_array_get(x, i), json_array_get(y, k));
    }
  }
  if (common == 0 || apart) return builder_ok(r->b);
  if (common != TYPE_OBJECT) return false;
  const json_t *pa = json_object_get(a, "properties"), *pb = json_object_get(b, "properties");
  const json_t *in_a = json_object_get(a, "required"), *in_b = json_object_get(b, "required");
  const char *name;
  json_t *value;
  json_object_foreach((json_t *)pa, name, value) {
    const json_t *other = json_object_get(pb, name);
    if (!builder_step(r->b, 12)) return false;
    bool needed = other != NULL && schema_has_word(r, in_a, name) && schema_has_word(r, in_b, name);
    if (needed && schema_excludes(r, value, other, depth + 1)) return true;
  }
  return false;
}

bool schema_excludes(schema_reader *r, const json_t *a, const json_t *b, uint32_t depth) {
  if (depth > 4 || !builder_ok(r->b)) return false;
  if (json_is_true(a) || json_is_true(b)) return json_is_false(a) || json_is_false(b);
  const json_t *x = schema_flatten(r, a, 0), *y = schema_flatten(r, b, 0);
  for (size_t i = 0; i < json_array_size(x) && builder_ok(r->b); i++) {
    for (size_t k = 0; k < json_array_size(y) && builder_step(r->b, 8); k++) {
      if (!excludes_flat(r, json_array_get(x, i), json_array_get(y, k), depth)) return false;
    }
  }
  return builder_ok(r->b);
}
