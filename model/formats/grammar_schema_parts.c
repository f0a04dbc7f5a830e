/* SPDX-License-Identifier: MIT */
/* Objects and arrays of a schema.
 *
 * Law: declared properties come in the order of their declaration, each at most once; others after them, where
 * additionalProperties says so: where it is left out beside declared ones, there are none. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/formats/grammar_json.h"

typedef struct property {
  const char *name;
  size_t n_name;
  const json_t *schema;
  bool required;
} property;

typedef struct object_parts {
  property *property;
  const char **sorted; /* names */
  uint32_t n, n_required;
  const json_t *other; /* of additional properties; NULL: there are none */
  uint32_t min, max;   /* additional ones */
} object_parts;

static int compare_names(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void add_property(schema_reader *r, object_parts *parts, const char *name, const json_t *schema, bool required) {
  if (json_is_false(schema)) {
    if (required) schema_fail(r, WEFT_E_INVALID, "the property '%.40s' is required and cannot be", name);
    return;
  }
  parts->property[parts->n] = (property){name, strlen(name), schema, required};
  parts->sorted[parts->n++] = name;
  parts->n_required += required ? 1 : 0;
}

static bool check_object(schema_reader *r, const json_t *properties, const json_t *required, const json_t *other) {
  if (properties != NULL && !json_is_object(properties)) schema_fail(r, WEFT_E_INVALID, "properties must be an object");
  if (required != NULL && !json_is_array(required)) schema_fail(r, WEFT_E_INVALID, "required must be a list of names");
  if (other != NULL && !json_is_object(other) && !json_is_boolean(other)) {
    schema_fail(r, WEFT_E_INVALID, "additionalProperties must be a schema, true or false");
  }
  return builder_ok(r->b);
}

/* How many additional properties there may be. */
static void count_others(schema_reader *r, const json_t *schema, object_parts *parts) {
  uint32_t min = schema_count(r, schema, "minProperties", 0),
           max = schema_count(r, schema, "maxProperties", GRAMMAR_NONE);
  parts->max = GRAMMAR_NONE;
  bool fixed = parts->n == parts->n_required;
  if (parts->other == NULL) {
    if (min <= parts->n_required && max >= parts->n) return;
    schema_fail(r, WEFT_E_UNSUPPORTED,
                "minProperties and maxProperties are supported where all declared properties are required");
  } else if (fixed && max >= parts->n) {
    parts->min = min > parts->n ? min - parts->n : 0;
    if (max != GRAMMAR_NONE) parts->max = max - parts->n;
    if (parts->max < parts->min) schema_fail(r, WEFT_E_INVALID, "maxProperties is less than minProperties");
  } else if (min > parts->n_required || max != GRAMMAR_NONE) {
    schema_fail(r, WEFT_E_UNSUPPORTED,
                "minProperties and maxProperties are supported where all declared properties are required");
  }
}

static bool is_told(schema_reader *r, const object_parts *parts, const char *name) {
  size_t n = strlen(name);
  bool told = false;
  if (!builder_step(r->b, 1 + parts->n / 4)) return true;
  for (uint32_t k = 0; k < parts->n && !told; k++) {
    told = schema_is_same_text(r, parts->property[k].name, parts->property[k].n_name, name, n);
  }
  return told;
}

static bool read_parts(schema_reader *r, const json_t *schema, object_parts *parts) {
  const json_t *properties = json_object_get(schema, "properties"), *required = json_object_get(schema, "required");
  const json_t *other = json_object_get(schema, "additionalProperties");
  const char *name;
  json_t *value;
  if (!check_object(r, properties, required, other)) return false;
  size_t n = json_object_size(properties) + json_array_size(required);
  if (!builder_step(r->b, 16 * (uint64_t)n)) return false; /* for sorting them, too */
  parts->property = weft_alloc(n, sizeof *parts->property);
  parts->sorted = weft_alloc(n, sizeof *parts->sorted);
  if (parts->property == NULL || parts->sorted == NULL) {
    schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
    return false;
  }
  bool any = other == NULL ? json_object_size(properties) == 0 : !json_is_false(other);
  parts->other = !any ? NULL : other == NULL ? json_true() : other;
  json_object_foreach((json_t *)properties, name, value) {
    add_property(r, parts, name, value, schema_has_word(r, required, name));
  }
  for (size_t i = 0; i < json_array_size(required) && builder_ok(r->b); i++) {
    name = json_string_value(json_array_get(required, i));
    if (name == NULL) {
      schema_fail(r, WEFT_E_INVALID, "required must be a list of names");
    } else if (json_object_get(properties, name) == NULL) {
      const json_t *own = other == NULL ? json_true() : other;
      if (!is_told(r, parts, name)) add_property(r, parts, name, own, true);
    }
  }
  qsort(parts->sorted, parts->n, sizeof *parts->sorted, compare_names);
  if (builder_ok(r->b)) count_others(r, schema, parts);
  return builder_ok(r->b);
}

/* The value of a property: the path says which. */
static uint32_t emit_member(schema_reader *r, const property *p, uint32_t from) {
  size_t before = strlen(r->path);
  json_t *name = json_string(p->name);
  if (name == NULL) {
    schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
    return from;
  }
  (void)snprintf(r->path + before, sizeof r->path - before, "/%.40s", p->name);
  uint32_t to = schema_emit(r, p->schema, json_colon(r->b, json_constant(r->b, from, name)));
  r->path[before] = 0;
  json_decref(name);
  return to;
}

/* A rule for one additional property. */
static uint32_t other_rule(schema_reader *r, const object_parts *parts) {
  grammar_builder *b = r->b;
  uint32_t rule = builder_rule_open(b);
  if (!builder_ok(b)) return 0;
  uint32_t first = b->rule[rule].first, last = b->rule[rule].last;
  uint32_t at = json_colon(b, json_key_other(b, first, parts->sorted, parts->n));
  builder_empty(b, schema_emit(r, parts->other, at), last);
  return rule;
}

/* Additional properties: none[0] after no property, none[1] after one or more. Gives where they may end. */
static uint32_t emit_others(schema_reader *r, const object_parts *parts, const uint32_t at[2]) {
  grammar_builder *b = r->b;
  uint32_t end = builder_state(b), pair = other_rule(r, parts), more = builder_rule_open(b);
  if (!builder_ok(b)) return end;
  builder_call(b, json_comma(b, b->rule[more].first), b->rule[more].last, pair);
  uint32_t one = builder_state(b);
  bool has_any = parts->n_required == 0 && parts->max > 0, unbounded = parts->max == GRAMMAR_NONE;
  if (has_any) builder_call(b, at[0], one, pair);
  uint32_t left = unbounded ? GRAMMAR_NONE : parts->max > 0 ? parts->max - 1 : 0;
  builder_empty(b, builder_count(b, one, more, parts->min > 0 ? parts->min - 1 : 0, left), end);
  builder_empty(b, builder_count(b, at[1], more, parts->min, parts->max), end);
  if (parts->min == 0) builder_empty(b, at[0], end);
  return end;
}

/* State [0] of a property: none came before it; [1]: at least one did. */
uint32_t schema_emit_object(schema_reader *r, const json_t *schema, uint32_t from) {
  grammar_builder *b = r->b;
  object_parts parts = {0};
  uint32_t at[2] = {json_space(b, builder_text(b, from, "{", 1)), builder_state(b)}, end = 0;
  if (read_parts(r, schema, &parts)) {
    bool first = true; /* nothing that is required came before */
    for (uint32_t i = 0; i < parts.n && builder_ok(b); i++) {
      uint32_t name = builder_state(b), next[2] = {builder_state(b), builder_state(b)};
      if (first) builder_empty(b, at[0], name);
      if (i > 0) builder_empty(b, json_comma(b, at[1]), name);
      builder_empty(b, emit_member(r, &parts.property[i], name), next[1]);
      if (!parts.property[i].required) {
        builder_empty(b, at[0], next[0]);
        builder_empty(b, at[1], next[1]);
      }
      first = first && !parts.property[i].required;
      at[0] = next[0];
      at[1] = next[1];
    }
    if (parts.other != NULL && builder_ok(b)) {
      end = emit_others(r, &parts, at);
    } else {
      end = builder_state(b);
      if (first) builder_empty(b, at[0], end);
      builder_empty(b, at[1], end);
    }
  }
  weft_free(parts.property);
  weft_free((void *)parts.sorted);
  return builder_text(b, json_space(b, end), "}", 1);
}

/* ---- arrays ---- */

typedef struct array_parts {
  const json_t *prefix; /* a list, or NULL */
  const json_t *items;  /* NULL: none beyond the prefix */
  uint32_t n_prefix, min, max;
} array_parts;

static bool read_array(schema_reader *r, const json_t *schema, array_parts *a) {
  const json_t *items = json_object_get(schema, "items"), *unique = json_object_get(schema, "uniqueItems");
  a->prefix = json_object_get(schema, "prefixItems");
  if (a->prefix == NULL && json_is_array(items)) { /* as older drafts write it */
    a->prefix = items;
    items = json_object_get(schema, "additionalItems");
  }
  if (a->prefix != NULL && !json_is_array(a->prefix))
    schema_fail(r, WEFT_E_INVALID, "prefixItems must be a list of schemas");
  a->n_prefix = (uint32_t)json_array_size(a->prefix);
  a->min = schema_count(r, schema, "minItems", 0);
  a->max = schema_count(r, schema, "maxItems", GRAMMAR_NONE);
  a->items = items != NULL ? items : json_true();
  bool closed = json_is_false(items) || (items == NULL && a->prefix != NULL && a->min <= a->n_prefix);
  if (closed && a->max > a->n_prefix) a->max = a->n_prefix;
  if (a->max < a->min) schema_fail(r, WEFT_E_INVALID, "an array has room for %u items and needs %u", a->max, a->min);
  if (json_is_true(unique) && a->max > 1)
    schema_fail(r, WEFT_E_UNSUPPORTED, "the keyword 'uniqueItems' is not supported");
  return builder_ok(r->b);
}

/* Items that are all alike, after `from`, which none came before. Gives where they may end. */
static uint32_t emit_items(schema_reader *r, const array_parts *a, uint32_t from) {
  grammar_builder *b = r->b;
  uint32_t end = builder_state(b);
  if (a->min == 0) builder_empty(b, from, end);
  if (a->max == 0) return end;
  if (a->max == GRAMMAR_NONE && a->min <= 1) {
    uint32_t item = builder_state(b);
    builder_empty(b, from, item);
    uint32_t after = schema_emit(r, a->items, item);
    builder_empty(b, json_comma(b, after), item);
    builder_empty(b, after, end);
    return end;
  }
  uint32_t rule = builder_rule_open(b), more = builder_rule_open(b), one = builder_state(b);
  if (!builder_ok(b)) return end;
  builder_empty(b, schema_emit(r, a->items, b->rule[rule].first), b->rule[rule].last);
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
  builder_empty(b, schema_emit(r, a->items, json_comma(b, b->rule[more].first)), b->rule[more].last);
  uint32_t min = a->min > a->n_prefix ? a->min - a->n_prefix : 0;
  return builder_count(b, from, more, min, a->max == GRAMMAR_NONE ? GRAMMAR_NONE : a->max - a->n_prefix);
}

uint32_t schema_emit_array(schema_reader *r, const json_t *schema, uint32_t from) {
  grammar_builder *b = r->b;
  array_parts a = {0};
  uint32_t at = json_space(b, builder_text(b, from, "[", 1)), end = builder_state(b);
  if (!read_array(r, schema, &a)) return from;
  size_t before = strlen(r->path);
  (void)snprintf(r->path + before, sizeof r->path - before, "/items");
  if (a.n_prefix == 0) {
    builder_empty(b, emit_items(r, &a, at), end);
  } else {
    for (uint32_t i = 0; i < a.n_prefix && i < a.max && builder_ok(b); i++) {
      if (i >= a.min) builder_empty(b, at, end);
      at = schema_emit(r, json_array_get(a.prefix, i), i == 0 ? at : json_comma(b, at));
    }
    if (a.max > a.n_prefix) at = emit_rest(r, &a, at);
    builder_empty(b, at, end);
  }
  r->path[before] = 0;
  return builder_text(b, json_space(b, end), "]", 1);
}
