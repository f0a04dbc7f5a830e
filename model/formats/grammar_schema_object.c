/* SPDX-License-Identifier: MIT */
/* Objects of a schema.
 *
 * Law: declared properties come in the order of their declaration, each at most once; others after them, where
 * additionalProperties or patternProperties say so: where nothing is said of others beside declared ones, there are
 * none. A name is held to every pattern that it may match, and is none of the declared ones. Where at least two others
 * must come, the names of the first ones differ by their lengths, so that they are surely different. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/formats/grammar_schema.h"

enum { SUBSETS_PATTERNS = 3, DISTINCT_MAX = 32, BASES_MAX = 8, PATTERNS_MAX = 64 };

typedef struct property {
  const char *name;
  const json_t *schema;
  bool required;
} property;

typedef struct object_parts {
  const json_t *flat;
  property *property;
  const char **sorted; /* all declared names, also of those that cannot be */
  uint32_t n, n_sorted, n_required;
  const json_t *other; /* of additional properties; NULL: there are none */
  json_t *patterns;    /* a pattern: a schema; NULL: none */
  uint32_t min, max;   /* properties in all */
  bool never;
} object_parts;

static int compare_names(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* ---- which properties ---- */

/* Whether a text is in the set of a pattern in a reading; perhaps, where the pattern is not known. */
static bool is_matched(schema_reader *r, const char *pattern, regex_reading reading, const char *name) {
  bool known;
  automaton a = schema_pattern(r, pattern, reading, &known);
  bool matched = known ? automaton_has(r->b, &a, name, strlen(name)) : reading == REGEX_PERHAPS;
  automaton_close(&a);
  return matched;
}

/* The schema of a property together with those of the patterns that its name may match. */
static const json_t *add_patterns(schema_reader *r, const object_parts *parts, const char *name, const json_t *schema,
                                  bool *under) {
  const char *pattern;
  json_t *value;
  *under = false;
  json_object_foreach(parts->patterns, pattern, value) {
    if (!builder_ok(r->b) || !is_matched(r, pattern, REGEX_PERHAPS, name)) continue;
    schema = schema_keep(r, schema_both(schema, value));
    *under = *under || is_matched(r, pattern, REGEX_SURELY, name);
  }
  return schema;
}

static bool may_be_named(schema_reader *r, const json_t *flat, const char *name) {
  const json_t *names = json_object_get(flat, FLAT_NAMES);
  json_t *text = names == NULL ? NULL : schema_keep(r, json_string(name));
  for (size_t i = 0; i < json_array_size(names) && builder_ok(r->b); i++) {
    if (schema_fits(r, json_array_get(names, i), text, 0) != FITS) return false;
  }
  return true;
}

static void add_property(schema_reader *r, object_parts *parts, const char *name, const json_t *schema, bool required) {
  if (!builder_ok(r->b)) return;
  parts->sorted[parts->n_sorted++] = name;
  if (required && r->lenient && json_is_false(schema)) {
    schema_widen(r, "the property '%.40s' is required and cannot be", name);
    schema = json_true();
  }
  bool stays = required && r->lenient; /* what cannot be held of it is widened where it is written */
  if (!stays && (schema_is_never(r, schema) || !may_be_named(r, parts->flat, name))) {
    if (required) schema_contradict(r, "the property '%.40s' is required and cannot be", name);
    parts->never = parts->never || required;
    return;
  }
  parts->property[parts->n++] = (property){name, schema, required};
  parts->n_required += required ? 1 : 0;
}

/* What is required and not declared is an additional property, or one of a pattern. */
static void add_required(schema_reader *r, object_parts *parts, const char *name) {
  bool again = false, under;
  const json_t *other = json_object_get(parts->flat, "additionalProperties");
  if (!builder_step(r->b, 1 + parts->n_sorted / 4)) return;
  for (uint32_t k = 0; k < parts->n_sorted && !again; k++) {
    again = schema_is_same_text(r, parts->sorted[k], strlen(parts->sorted[k]), name, strlen(name));
  }
  if (again) return;
  const json_t *schema = add_patterns(r, parts, name, json_true(), &under);
  if (!under && other != NULL) schema = schema_keep(r, schema_both(schema, other));
  add_property(r, parts, name, schema, true);
}

static bool open_parts(schema_reader *r, const json_t *flat, object_parts *parts, size_t n) {
  parts->flat = flat;
  parts->property = weft_alloc(n, sizeof *parts->property);
  parts->sorted = (const char **)weft_alloc(n, sizeof *parts->sorted);
  parts->patterns = json_object_get(flat, "patternProperties");
  parts->min = schema_count(r, flat, "minProperties", 0);
  parts->max = schema_count(r, flat, "maxProperties", GRAMMAR_NONE);
  if (parts->property == NULL || parts->sorted == NULL) schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
  return builder_ok(r->b);
}

static void read_parts(schema_reader *r, const json_t *flat, object_parts *parts) {
  const json_t *properties = json_object_get(flat, "properties"), *required = json_object_get(flat, "required");
  const json_t *other = json_object_get(flat, "additionalProperties");
  const char *name;
  json_t *value;
  size_t n = json_object_size(properties) + json_array_size(required);
  if (!builder_step(r->b, 16 * (uint64_t)n) || !open_parts(r, flat, parts, n)) return;
  json_object_foreach((json_t *)properties, name, value) {
    bool under;
    const json_t *schema = add_patterns(r, parts, name, value, &under);
    add_property(r, parts, name, schema, schema_has_word(r, required, name));
  }
  for (size_t i = 0; i < json_array_size(required) && builder_ok(r->b); i++) {
    name = json_string_value(json_array_get(required, i));
    if (name == NULL) {
      schema_fail(r, WEFT_E_INVALID, "required must be a list of names");
    } else {
      add_required(r, parts, name);
    }
  }
  qsort((void *)parts->sorted, parts->n_sorted, sizeof *parts->sorted, compare_names);
  bool alone = parts->n == parts->n_required && json_object_size(parts->patterns) == 0 && parts->n == 0;
  bool none = other == NULL && json_object_size(properties) == 0 && json_object_size(parts->patterns) == 0;
  bool open = alone || none || parts->min > parts->n;
  parts->other = other != NULL ? (schema_is_never(r, other) ? NULL : other) : open ? json_true() : NULL;
  if (parts->max != GRAMMAR_NONE && parts->max < parts->n_required) {
    schema_contradict(r, "maxProperties is less than what is required");
    parts->never = true;
  }
}

/* ---- names of others ---- */

/* A key, a colon and a value. */
static void emit_pair(schema_reader *r, const automaton *name, const json_t *schema, uint32_t rule) {
  grammar_builder *b = r->b;
  if (automaton_is_empty(name) || !builder_ok(b)) return;
  uint32_t in = builder_text(b, b->rule[rule].first, "\"", 1), out = builder_state(b);
  automaton_emit(b, name, WRITING_JSON, in, out);
  uint32_t to = schema_emit(r, schema, json_colon(b, builder_text(b, out, "\"", 1)));
  if (builder_ok(b)) builder_empty(b, to, b->rule[rule].last);
}

/* Texts whose length leaves `rest` when divided by n. */
static automaton sized_by_rest(grammar_builder *b, uint32_t rest, uint32_t n) {
  automaton a = {.everything = GRAMMAR_NONE};
  for (uint32_t i = 0; i < n && automaton_begin_state(b, &a, i == rest); i++) {
    automaton_add_edge(b, &a, 0, AUTOMATON_CHARACTER_MAX, (i + 1) % n);
  }
  automaton_finish(b, &a);
  return a;
}

/* The names that propertyNames allow, as several sets. Gives how many. */
static uint32_t find_bases(schema_reader *r, const object_parts *parts, automaton base[BASES_MAX]) {
  const json_t *names = json_object_get(parts->flat, FLAT_NAMES);
  uint32_t n = 0;
  if (names == NULL) {
    base[n++] = automaton_sized(r->b, 0, GRAMMAR_NONE);
    return n;
  }
  json_t *all = schema_keep(r, json_pack("{s:O}", "allOf", names));
  const json_t *flats = all == NULL ? NULL : schema_flatten(r, all, 0);
  for (size_t i = 0; i < json_array_size(flats) && n < BASES_MAX && builder_ok(r->b); i++) {
    base[n++] = schema_texts(r, json_array_get(flats, i));
  }
  return n;
}

/* Of a set of names, those that match the patterns of `in` and no others, declared names left out. */
static automaton pick_names(schema_reader *r, const object_parts *parts, const automaton *base, uint64_t in) {
  grammar_builder *b = r->b;
  automaton names = automaton_texts(b, parts->sorted, parts->n_sorted), a = automaton_without(b, base, &names);
  const char *pattern;
  json_t *value;
  uint32_t i = 0;
  automaton_close(&names);
  json_object_foreach(parts->patterns, pattern, value) {
    bool known, has = (in >> i++ & 1) != 0;
    if (!builder_ok(b)) break;
    automaton one = schema_pattern(r, pattern, has ? REGEX_SURELY : REGEX_PERHAPS, &known);
    if (known && has) automaton_narrow(b, &a, &one);
    if (known && !has) automaton_exclude(b, &a, &one);
    if (!known) automaton_close(&one);
  }
  return a;
}

/* What others with names that match the patterns of `in` and no others must be; NULL: there are none. */
static const json_t *pick_schema(schema_reader *r, const object_parts *parts, uint64_t in) {
  const json_t *schema = in == 0 ? parts->other : json_true();
  const char *pattern;
  json_t *value;
  uint32_t i = 0;
  json_object_foreach(parts->patterns, pattern, value) {
    if ((in >> i++ & 1) != 0) schema = schema_keep(r, schema_both(schema, value));
  }
  return schema == NULL || schema_is_never(r, schema) ? NULL : schema;
}

static void emit_pairs_of(schema_reader *r, const object_parts *parts, uint64_t in, uint32_t rule, uint32_t rest,
                          uint32_t n_rests) {
  const json_t *schema = pick_schema(r, parts, in);
  automaton base[BASES_MAX];
  if (schema == NULL || !builder_ok(r->b)) return;
  uint32_t n = find_bases(r, parts, base);
  for (uint32_t i = 0; i < n; i++) {
    automaton names = pick_names(r, parts, &base[i], in);
    if (n_rests > 1 && builder_ok(r->b)) {
      automaton sized = sized_by_rest(r->b, rest, n_rests);
      automaton_narrow(r->b, &names, &sized);
    }
    emit_pair(r, &names, schema, rule);
    automaton_close(&names);
    automaton_close(&base[i]);
  }
}

/* A rule for one property that is not declared. n_rests > 1: the length of its name leaves `rest` when divided by it.
 * */
static uint32_t other_rule(schema_reader *r, const object_parts *parts, uint32_t rest, uint32_t n_rests) {
  grammar_builder *b = r->b;
  uint32_t rule = builder_rule_open(b), n_patterns = (uint32_t)json_object_size(parts->patterns);
  if (!builder_ok(b)) return 0;
  if (n_patterns == 0 && n_rests <= 1 && json_object_get(parts->flat, FLAT_NAMES) == NULL) {
    uint32_t first = b->rule[rule].first, last = b->rule[rule].last;
    if (parts->other == NULL) return rule;
    uint32_t at = json_colon(b, json_key_other(b, first, parts->sorted, parts->n_sorted));
    builder_empty(b, schema_emit(r, parts->other, at), last);
    return rule;
  }
  if (n_patterns > PATTERNS_MAX)
    schema_fail(r, WEFT_E_TOO_LARGE, "patternProperties has more than %d patterns", PATTERNS_MAX);
  emit_pairs_of(r, parts, 0, rule, rest, n_rests);
  for (uint64_t in = 1; n_patterns <= SUBSETS_PATTERNS && in < UINT64_C(1) << n_patterns && builder_ok(b); in++) {
    emit_pairs_of(r, parts, in, rule, rest, n_rests);
  }
  for (uint32_t i = 0; n_patterns > SUBSETS_PATTERNS && i < n_patterns && builder_ok(b); i++) {
    emit_pairs_of(r, parts, UINT64_C(1) << i, rule, rest, n_rests);
  }
  return rule;
}

/* ---- the object ---- */

/* The name and the value of a property: the path says which. */
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

/* Where declared properties leave the object: after `count` of them; where that is counted, else after none and after
 * some. */
typedef struct object_places {
  uint32_t *at, n; /* [n] states */
  bool counted;
} object_places;

/* At least `least` others, at most `most`, behind `from`, where `begun` properties stand. Gives where they end. */
static uint32_t emit_some(schema_reader *r, const object_parts *parts, uint32_t from, bool begun, uint32_t least,
                          uint32_t most, const uint32_t rule[2]) {
  grammar_builder *b = r->b;
  uint32_t end = builder_state(b), at = from;
  if (least > DISTINCT_MAX || least > most) {
    schema_contradict(r, "minProperties asks for more properties than can be");
    return end;
  }
  if (least == 0) builder_empty(b, from, end);
  if (most == 0) return end;
  for (uint32_t i = 0; least > 1 && i < least && builder_ok(b); i++) {
    uint32_t next = builder_state(b), one = other_rule(r, parts, i, least);
    builder_call(b, begun || i > 0 ? json_comma(b, at) : at, next, one);
    at = next;
  }
  if (least > 1) {
    most = most == GRAMMAR_NONE ? GRAMMAR_NONE : most - least;
    least = 0;
  } else if (!begun) {
    uint32_t next = builder_state(b);
    builder_call(b, at, next, rule[0]);
    at = next;
    most = most == GRAMMAR_NONE ? GRAMMAR_NONE : most - 1;
    least = 0;
  }
  builder_empty(b, builder_count(b, at, rule[1], least, most), end);
  return end;
}

static uint32_t emit_others(schema_reader *r, const object_parts *parts, const object_places *places) {
  grammar_builder *b = r->b;
  uint32_t end = builder_state(b), rule[2] = {other_rule(r, parts, 0, 1), builder_rule_open(b)};
  if (!builder_ok(b)) return end;
  builder_call(b, json_comma(b, b->rule[rule[1]].first), b->rule[rule[1]].last, rule[0]);
  for (uint32_t c = 0; c < places->n && builder_ok(b); c++) {
    uint32_t before = places->counted ? c : c == 0 ? 0 : parts->n_required;
    if (c == 0 && parts->n_required > 0) continue;
    if (parts->max != GRAMMAR_NONE && parts->max < before) continue;
    uint32_t least = parts->min > before ? parts->min - before : 0;
    uint32_t most = parts->max == GRAMMAR_NONE ? GRAMMAR_NONE : parts->max - before;
    builder_empty(b, emit_some(r, parts, places->at[c], c > 0, least, most, rule), end);
  }
  return end;
}

/* Declared properties: from each place on with the property, and without it where it is not required. */
static void emit_declared(schema_reader *r, const object_parts *parts, object_places *places, uint32_t *next) {
  grammar_builder *b = r->b;
  for (uint32_t i = 0; i < parts->n && builder_ok(b); i++) {
    const property *p = &parts->property[i];
    uint32_t name = builder_state(b), rule = places->counted ? builder_rule_open(b) : 0;
    if (!builder_step(b, places->n)) return;
    for (uint32_t c = 0; c < places->n; c++) next[c] = builder_state(b);
    for (uint32_t c = 0; c < places->n && !p->required; c++) builder_empty(b, places->at[c], next[c]);
    if (places->counted && builder_ok(b)) {
      builder_empty(b, emit_member(r, p, b->rule[rule].first), b->rule[rule].last);
      for (uint32_t c = 0; c + 1 < places->n && c <= i && builder_ok(b); c++) {
        if (parts->max != GRAMMAR_NONE && c + 1 > parts->max) break;
        builder_call(b, c > 0 ? json_comma(b, places->at[c]) : places->at[c], next[c + 1], rule);
      }
    } else if (builder_ok(b)) {
      bool first = true; /* nothing that is required came before */
      for (uint32_t k = 0; k < i; k++) first = first && !parts->property[k].required;
      if (first) builder_empty(b, places->at[0], name);
      if (i > 0) builder_empty(b, json_comma(b, places->at[1]), name);
      builder_empty(b, emit_member(r, p, name), next[1]);
    }
    memcpy(places->at, next, places->n * sizeof *next);
  }
}

static uint32_t emit_parts(schema_reader *r, const object_parts *parts, uint32_t from, uint32_t *at, uint32_t *next) {
  grammar_builder *b = r->b;
  bool fixed = parts->n == parts->n_required, bounded = parts->min > parts->n_required || parts->max != GRAMMAR_NONE;
  bool counted = !fixed && bounded &&
                 (parts->min > parts->n_required || parts->max < parts->n || parts->other != NULL ||
                  json_object_size(parts->patterns) > 0);
  object_places places = {at, counted ? parts->n + 1 : 2, counted};
  at[0] = from;
  for (uint32_t c = 1; c < places.n; c++) at[c] = builder_state(b);
  emit_declared(r, parts, &places, next);
  if (builder_ok(b) && (parts->other != NULL || json_object_size(parts->patterns) > 0)) {
    return emit_others(r, parts, &places);
  }
  uint32_t end = builder_state(b);
  for (uint32_t c = 0; c < places.n && builder_ok(b); c++) {
    uint32_t before = places.counted ? c : c == 0 ? 0 : parts->n_required;
    bool few = places.counted || fixed ? before < parts->min : false;
    if ((c == 0 && parts->n_required > 0) || few) continue;
    builder_empty(b, at[c], end);
  }
  return end;
}

uint32_t schema_emit_object(schema_reader *r, const json_t *flat, uint32_t from) {
  grammar_builder *b = r->b;
  object_parts parts = {0};
  uint32_t open = json_space(b, builder_text(b, from, "{", 1)), end = builder_state(b);
  read_parts(r, flat, &parts);
  uint32_t *at = weft_alloc(parts.n + 2u, sizeof *at), *next = weft_alloc(parts.n + 2u, sizeof *next);
  if (at == NULL || next == NULL) schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
  if (builder_ok(b) && !parts.never) builder_empty(b, emit_parts(r, &parts, open, at, next), end);
  weft_free(at);
  weft_free(next);
  weft_free(parts.property);
  weft_free((void *)parts.sorted);
  return builder_text(b, json_space(b, end), "}", 1);
}
