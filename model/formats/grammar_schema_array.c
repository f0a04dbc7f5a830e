/* SPDX-License-Identifier: MIT */
/* Arrays of a schema.
 *
 * Law: items that `contains` asks for stand together, at the place where they begin in one of several alternatives.
 * Items that must differ are of constants, and come in the order in which the schema lists these; or each place has a
 * schema of its own that excludes those of the others. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "model/formats/grammar_schema.h"

enum { CONTAINS_MAX = 64, VALUES_MAX = 256, TUPLES_MAX = 512, ALTERNATIVES_MAX = 256 };

typedef struct array_parts {
  const json_t *prefix; /* a list, or NULL */
  const json_t *items;  /* NULL: nothing is said of them */
  uint32_t n_prefix, min, max;
} array_parts;

static array_parts read_array(schema_reader *r, const json_t *flat) {
  array_parts a = {json_object_get(flat, "prefixItems"), json_object_get(flat, "items"), 0, 0, 0};
  a.n_prefix = (uint32_t)json_array_size(a.prefix);
  a.min = schema_count(r, flat, "minItems", 0);
  a.max = schema_count(r, flat, "maxItems", GRAMMAR_NONE);
  return a;
}

static const json_t *schema_at(const array_parts *a, uint32_t i) {
  if (i < a->n_prefix) return json_array_get(a->prefix, i);
  return a->items != NULL ? a->items : json_true();
}

/* No items beyond those with schemas of their own: so it is said, or nothing is said and none are needed. */
static void close_items(schema_reader *r, array_parts *a) {
  bool closed = a->items == NULL ? a->n_prefix > 0 && a->min <= a->n_prefix : schema_is_never(r, a->items);
  if (closed && a->max > a->n_prefix) a->max = a->n_prefix;
}

/* ---- contains ---- */

/* The array with `n` items from `at` on that fit, and, where there is a most, no others. */
static void add_placed(schema_reader *r, const json_t *flat, const json_t *of, uint32_t at, uint32_t n, bool only,
                       json_t *out) {
  array_parts a = read_array(r, flat);
  uint32_t n_prefix = at + n > a.n_prefix ? at + n : a.n_prefix;
  json_t *made = schema_keep(r, json_copy((json_t *)flat)), *prefix = json_array();
  json_t *none = only ? schema_keep(r, json_pack("{s:O}", "not", of)) : json_true();
  for (uint32_t i = 0; i < n_prefix && builder_step(r->b, 16); i++) {
    const json_t *with = i >= at && i < at + n ? of : none;
    schema_append(r, prefix, schema_both(schema_at(&a, i), with));
  }
  bool failed = made == NULL || json_object_set(made, "prefixItems", prefix) != 0;
  json_decref(prefix);
  if (failed || !builder_ok(r->b)) {
    schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
    return;
  }
  failed = json_object_set_new(made, "items", schema_both(a.items, none)) != 0;
  if (a.min < at + n) failed = json_object_set_new(made, "minItems", json_integer(at + n)) != 0 || failed;
  if (failed || json_array_append(out, made) != 0) schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
}

/* The alternatives of one `contains`. */
static void place_contains(schema_reader *r, const json_t *flat, const json_t *contains, json_t *out) {
  const json_t *of = json_object_get(contains, "of");
  json_int_t min = json_integer_value(json_object_get(contains, "min"));
  json_int_t max = json_integer_value(json_object_get(contains, "max"));
  array_parts a = read_array(r, flat);
  bool only = max < (json_int_t)GRAMMAR_NONE;
  if (min > max) schema_contradict(r, "minContains is greater than maxContains");
  if (min > CONTAINS_MAX) schema_fail(r, WEFT_E_TOO_LARGE, "minContains is greater than %d", CONTAINS_MAX);
  json_int_t most = min == 0 && max > 0 ? 1 : min;
  for (json_int_t n = min; n <= most && min <= max && builder_ok(r->b); n++) {
    for (uint32_t at = 0; at <= a.n_prefix && builder_ok(r->b) && (n > 0 || at == 0); at++) {
      uint32_t end = at + (uint32_t)n;
      bool room = end <= a.max && (end <= a.n_prefix || a.items == NULL || !schema_is_never(r, a.items));
      if (room) add_placed(r, flat, of, at, (uint32_t)n, only, out);
    }
  }
  if (json_array_size(out) > ALTERNATIVES_MAX) {
    schema_fail(r, WEFT_E_TOO_LARGE, "contains has more than %d alternatives", ALTERNATIVES_MAX);
  }
}

/* The array without `contains`, as alternatives. */
static const json_t *place_all(schema_reader *r, const json_t *flat) {
  const json_t *contains = json_object_get(flat, FLAT_CONTAINS);
  json_t *bare = schema_keep(r, json_copy((json_t *)flat));
  json_t *list = schema_keep(r, json_pack("[O]", bare));
  (void)json_object_del(bare, FLAT_CONTAINS);
  for (size_t i = 0; i < json_array_size(contains) && builder_ok(r->b); i++) {
    json_t *next = schema_keep(r, json_array());
    for (size_t k = 0; k < json_array_size(list) && builder_ok(r->b); k++) {
      place_contains(r, json_array_get(list, k), json_array_get(contains, i), next);
    }
    list = next;
  }
  return list;
}

/* ---- items that differ ---- */

static void add_value(schema_reader *r, json_t *values, const json_t *value) {
  for (size_t i = 0; i < json_array_size(values) && builder_step(r->b, 1); i++) {
    if (schema_is_same(r, json_array_get(values, i), value)) return;
  }
  schema_append(r, values, json_incref((json_t *)value));
}

/* All values that fit a schema; NULL: they are not listed. */
static json_t *list_values(schema_reader *r, const json_t *schema) {
  const json_t *flats = schema_flatten(r, schema, 0);
  json_t *values = schema_keep(r, json_array());
  for (size_t i = 0; i < json_array_size(flats) && builder_ok(r->b); i++) {
    const json_t *flat = json_array_get(flats, i), *list = json_object_get(flat, "enum");
    uint32_t bits = schema_flat_bits(r, flat);
    if (list == NULL && (bits & ~(uint32_t)(TYPE_BOOLEAN | TYPE_NULL)) != 0) return NULL;
    if (list == NULL && (bits & TYPE_BOOLEAN) != 0) add_value(r, values, json_false());
    if (list == NULL && (bits & TYPE_BOOLEAN) != 0) add_value(r, values, json_true());
    if (list == NULL && (bits & TYPE_NULL) != 0) add_value(r, values, json_null());
    for (size_t k = 0; k < json_array_size(list) && builder_ok(r->b); k++) {
      const json_t *value = json_array_get(list, k);
      if (schema_fits_flat(r, flat, value, 0) == FITS) add_value(r, values, value);
    }
  }
  return json_array_size(values) <= VALUES_MAX ? values : NULL;
}

/* Constants in the order of their list, each at most once. at[c]: after c of them. */
static uint32_t emit_ascending(schema_reader *r, const array_parts *a, const json_t *values, uint32_t from) {
  grammar_builder *b = r->b;
  uint32_t n = (uint32_t)json_array_size(values), end = builder_state(b), n_at = (a->max < n ? a->max : n) + 1;
  uint32_t *at = weft_alloc(2 * (size_t)n_at, sizeof *at), *next = at == NULL ? NULL : at + n_at;
  if (at == NULL) {
    schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
    return end;
  }
  bool plain = n > 0 && a->min <= 1 && a->max >= n; /* then it need not be counted */
  if (plain) n_at = 2;
  at[0] = from;
  for (uint32_t c = 1; c < n_at; c++) at[c] = builder_state(b);
  for (uint32_t i = 0; i < n && n_at > 1 && builder_ok(b); i++) {
    for (uint32_t c = 0; c < n_at; c++) builder_empty(b, at[c], next[c] = builder_state(b));
    for (uint32_t c = 0; c < n_at && builder_ok(b); c++) {
      uint32_t to = plain ? 1 : c + 1;
      if (to >= n_at) break;
      uint32_t begin = c > 0 ? json_comma(b, at[c]) : at[c];
      builder_empty(b, json_constant(b, begin, json_array_get(values, i)), next[to]);
    }
    memcpy(at, next, n_at * sizeof *at);
  }
  for (uint32_t c = a->min < n_at ? a->min : n_at; c < n_at && builder_ok(b); c++) builder_empty(b, at[c], end);
  if (a->min > n) schema_contradict(r, "there are not that many different items");
  weft_free(at);
  return end;
}

/* Whether each two places of the prefix exclude one another. */
static bool are_apart(schema_reader *r, const array_parts *a) {
  if (a->max > a->n_prefix) return false;
  for (uint32_t i = 0; i < a->n_prefix && i < a->max; i++) {
    for (uint32_t k = 0; k < i && builder_step(r->b, 16); k++) {
      if (!schema_excludes(r, json_array_get(a->prefix, i), json_array_get(a->prefix, k), 0)) return false;
    }
  }
  return builder_ok(r->b);
}

/* The next place of a list of constants that differ. */
static void emit_tuple(schema_reader *r, const array_parts *a, json_t *taken, uint32_t from, uint32_t end,
                       uint32_t *n) {
  uint32_t i = (uint32_t)json_array_size(taken);
  if (i >= a->min) builder_empty(r->b, from, end);
  if (i >= a->n_prefix || i >= a->max || !builder_ok(r->b)) return;
  const json_t *values = list_values(r, json_array_get(a->prefix, i));
  for (size_t k = 0; k < json_array_size(values) && builder_ok(r->b); k++) {
    if (++*n > TUPLES_MAX) {
      schema_fail(r, WEFT_E_TOO_LARGE, "uniqueItems has more than %d ways here", TUPLES_MAX);
      return;
    }
    json_t *with = schema_keep(r, json_copy(taken));
    add_value(r, with, json_array_get(values, k));
    if (json_array_size(with) == i) continue;
    uint32_t begin = i > 0 ? json_comma(r->b, from) : from;
    emit_tuple(r, a, with, json_constant(r->b, begin, json_array_get(values, k)), end, n);
  }
}

/* GRAMMAR_NONE: items that differ cannot be told from others here. */
static uint32_t emit_unique(schema_reader *r, const array_parts *a, uint32_t from) {
  uint32_t n = 0, end;
  bool listed = a->n_prefix > 0 && a->max <= a->n_prefix;
  const json_t *values = a->n_prefix == 0 && a->items != NULL ? list_values(r, a->items) : NULL;
  if (values != NULL) return emit_ascending(r, a, values, from);
  for (uint32_t i = 0; i < a->n_prefix && i < a->max && listed; i++) {
    listed = list_values(r, json_array_get(a->prefix, i)) != NULL;
  }
  if (!listed || !builder_ok(r->b)) return GRAMMAR_NONE;
  end = builder_state(r->b);
  emit_tuple(r, a, schema_keep(r, json_array()), from, end, &n);
  return end;
}

/* ---- items ---- */

/* Items that are all alike, after `from`, which none came before. Gives where they may end. */
static uint32_t emit_items(schema_reader *r, const array_parts *a, uint32_t from) {
  grammar_builder *b = r->b;
  uint32_t end = builder_state(b);
  const json_t *items = schema_at(a, 0);
  if (a->min == 0) builder_empty(b, from, end);
  if (a->max == 0) return end;
  if (a->max == GRAMMAR_NONE && a->min <= 1) {
    uint32_t item = builder_state(b);
    builder_empty(b, from, item);
    uint32_t after = schema_emit(r, items, item);
    builder_empty(b, json_comma(b, after), item);
    builder_empty(b, after, end);
    return end;
  }
  uint32_t rule = builder_rule_open(b), more = builder_rule_open(b), one = builder_state(b);
  if (!builder_ok(b)) return end;
  builder_empty(b, schema_emit(r, items, b->rule[rule].first), b->rule[rule].last);
  builder_call(b, json_comma(b, b->rule[more].first), b->rule[more].last, rule);
  builder_call(b, from, one, rule);
  uint32_t left = a->max == GRAMMAR_NONE ? GRAMMAR_NONE : a->max - 1;
  builder_empty(b, builder_count(b, one, more, a->min > 0 ? a->min - 1 : 0, left), end);
  return end;
}

/* Items after those that have a schema each. */
static uint32_t emit_rest(schema_reader *r, const array_parts *a, uint32_t from) {
  grammar_builder *b = r->b;
  uint32_t more = builder_rule_open(b);
  if (!builder_ok(b)) return from;
  builder_empty(b, schema_emit(r, schema_at(a, a->n_prefix), json_comma(b, b->rule[more].first)), b->rule[more].last);
  uint32_t min = a->min > a->n_prefix ? a->min - a->n_prefix : 0;
  return builder_count(b, from, more, min, a->max == GRAMMAR_NONE ? GRAMMAR_NONE : a->max - a->n_prefix);
}

/* What stands between the brackets. */
static uint32_t emit_inside(schema_reader *r, const json_t *flat, uint32_t at) {
  grammar_builder *b = r->b;
  array_parts a = read_array(r, flat);
  uint32_t end = builder_state(b);
  close_items(r, &a);
  if (a.max < a.min) {
    schema_contradict(r, "an array has room for %u items and needs %u", a.max, a.min);
    return end;
  }
  if (json_is_true(json_object_get(flat, "uniqueItems")) && a.max > 1 && !are_apart(r, &a)) {
    uint32_t to = emit_unique(r, &a, at);
    if (to != GRAMMAR_NONE) return to;
    schema_widen(r, "the keyword 'uniqueItems' is supported for items that are listed (enum), or exclude one another");
  }
  if (a.n_prefix == 0) return emit_items(r, &a, at);
  for (uint32_t i = 0; i < a.n_prefix && i < a.max && builder_ok(b); i++) {
    if (i >= a.min) builder_empty(b, at, end);
    at = schema_emit(r, json_array_get(a.prefix, i), i == 0 ? at : json_comma(b, at));
  }
  if (a.max > a.n_prefix) at = emit_rest(r, &a, at);
  builder_empty(b, at, end);
  return end;
}

uint32_t schema_emit_array(schema_reader *r, const json_t *flat, uint32_t from) {
  grammar_builder *b = r->b;
  uint32_t open = json_space(b, builder_text(b, from, "[", 1)), end = builder_state(b);
  const json_t *list = place_all(r, flat);
  size_t before = strlen(r->path);
  (void)snprintf(r->path + before, sizeof r->path - before, "/items");
  for (size_t i = 0; i < json_array_size(list) && builder_ok(b); i++) {
    uint32_t in = builder_state(b);
    builder_empty(b, open, in);
    builder_empty(b, emit_inside(r, json_array_get(list, i), in), end);
  }
  r->path[before] = 0;
  return builder_text(b, json_space(b, end), "]", 1);
}
