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
#include "model/formats/grammar_style.h"
#include "model/text/calls.h"

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
  bool never, tags;    /* tags: they are arguments that stand between tags */
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
  if (!style_writes_name(r->b, parts->tags, name)) {
    if (required && r->lenient)
      schema_widen(r, "the form of the model's calls has no way to write the name '%.40s'", name);
    if (required && !r->lenient)
      schema_contradict(r, "the form of the model's calls has no way to write the name '%.40s'", name);
    parts->never = parts->never || (required && !r->lenient);
    return;
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

/* The value of a member behind its name: to the end of the value, or of the tag that ends it. name NULL: of any
 * other. */
static uint32_t emit_value(schema_reader *r, bool tags, const char *name, const json_t *schema, uint32_t from) {
  grammar_builder *b = r->b;
  if (!tags) return schema_emit(r, schema, json_colon(b, from));
  weft_callable_kind kind = weft_callable_reads(r->types, name == NULL ? "" : name, name == NULL ? 0 : strlen(name));
  if (kind != WEFT_CALLABLE_VALUE) return schema_emit_argument(r, schema, kind == WEFT_CALLABLE_TEXT_OR_NULL, from);
  uint32_t to = style_tag_close(b, schema_emit(r, schema, style_tag_end(b, from, false)));
  if (b->tags->typed) builder_empty(b, schema_emit_argument(r, schema, false, from), to);
  return to;
}

/* A name out of a set, and a value. */
static void emit_pair(schema_reader *r, const object_parts *parts, automaton *name, const json_t *schema,
                      uint32_t rule) {
  grammar_builder *b = r->b;
  if (automaton_is_empty(name) || !builder_ok(b)) return;
  uint32_t first = b->rule[rule].first;
  uint32_t at = parts->tags               ? style_tag_of(b, first, name)
                : b->style == STYLE_GEMMA ? style_key_of(b, first, name)
                                          : json_string_of(b, first, name);
  uint32_t to = emit_value(r, parts->tags, NULL, schema, at);
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
    emit_pair(r, parts, &names, schema, rule);
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
    uint32_t at = parts->tags ? style_tag_other(b, first, parts->sorted, parts->n_sorted)
                              : json_key_other(b, first, parts->sorted, parts->n_sorted);
    builder_empty(b, emit_value(r, parts->tags, NULL, parts->other, at), last);
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

static uint32_t put_comma(const object_parts *parts, grammar_builder *b, uint32_t from) {
  return parts->tags ? from : json_comma(b, from);
}

/* The name and the value of a property: the path says which. */
static uint32_t emit_member(schema_reader *r, const object_parts *parts, const property *p, uint32_t from) {
  grammar_builder *b = r->b;
  size_t before = strlen(r->path);
  (void)snprintf(r->path + before, sizeof r->path - before, "/%.40s", p->name);
  uint32_t at = parts->tags ? style_tag(b, from, p->name) : json_key(b, from, p->name);
  uint32_t to = emit_value(r, parts->tags, p->name, p->schema, at);
  r->path[before] = 0;
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
    builder_call(b, begun || i > 0 ? put_comma(parts, b, at) : at, next, one);
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
  builder_call(b, put_comma(parts, b, b->rule[rule[1]].first), b->rule[rule[1]].last, rule[0]);
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
      builder_empty(b, emit_member(r, parts, p, b->rule[rule].first), b->rule[rule].last);
      for (uint32_t c = 0; c + 1 < places->n && c <= i && builder_ok(b); c++) {
        if (parts->max != GRAMMAR_NONE && c + 1 > parts->max) break;
        builder_call(b, c > 0 ? put_comma(parts, b, places->at[c]) : places->at[c], next[c + 1], rule);
      }
    } else if (builder_ok(b)) {
      bool first = true; /* nothing that is required came before */
      for (uint32_t k = 0; k < i; k++) first = first && !parts->property[k].required;
      if (first) builder_empty(b, places->at[0], name);
      if (i > 0) builder_empty(b, put_comma(parts, b, places->at[1]), name);
      builder_empty(b, emit_member(r, parts, p, name), next[1]);
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

/* From before the first member to behind the last one. */
static uint32_t emit_members(schema_reader *r, const json_t *flat, bool tags, uint32_t from) {
  grammar_builder *b = r->b;
  object_parts parts = {.tags = tags};
  uint32_t end = builder_state(b);
  read_parts(r, flat, &parts);
  uint32_t *at = weft_alloc(parts.n + 2u, sizeof *at), *next = weft_alloc(parts.n + 2u, sizeof *next);
  if (at == NULL || next == NULL) schema_fail(r, WEFT_E_NO_MEMORY, "no memory for it");
  if (builder_ok(b) && !parts.never) builder_empty(b, emit_parts(r, &parts, from, at, next), end);
  weft_free(at);
  weft_free(next);
  weft_free(parts.property);
  weft_free((void *)parts.sorted);
  return end;
}

uint32_t schema_emit_object(schema_reader *r, const json_t *flat, uint32_t from) {
  uint32_t open = json_space(r->b, builder_text(r->b, from, "{", 1));
  return builder_text(r->b, json_space(r->b, emit_members(r, flat, false, open)), "}", 1);
}

/* ---- arguments between tags ---- */

/* An object that is a constant; GRAMMAR_NONE: it cannot be written. */
static uint32_t put_constant(schema_reader *r, const json_t *value, uint32_t from) {
  grammar_builder *b = r->b;
  const char *name;
  json_t *member;
  json_object_foreach((json_t *)(uintptr_t)value, name, member) {
    weft_callable_kind kind = weft_callable_reads(r->types, name, strlen(name));
    const char *text = json_string_value(member);
    bool null = json_is_null(member) && kind == WEFT_CALLABLE_TEXT_OR_NULL;
    bool fits = kind == WEFT_CALLABLE_VALUE || null || (text != NULL && strstr(text, b->tags->behind) == NULL);
    bool is_word = !b->tags->typed && text != NULL && strcmp(text, "null") == 0,
         as_json = kind == WEFT_CALLABLE_VALUE || null;
    if (kind == WEFT_CALLABLE_TEXT_OR_NULL && is_word) fits = false;
    from = fits ? style_tag(b, from, name) : GRAMMAR_NONE;
    if (from == GRAMMAR_NONE) return from;
    from = style_tag_end(b, from, !as_json);
    from = as_json ? json_written_constant(b, from, member) : style_text(b, from, text);
    from = style_tag_close(b, from);
  }
  return from;
}

uint32_t schema_emit_arguments(schema_reader *r, const json_t *flat, uint32_t from) {
  grammar_builder *b = r->b;
  const json_t *list = json_object_get(flat, "enum");
  uint32_t to = builder_state(b), n_open = r->n_open;
  bool any = list == NULL;
  r->tags = false;
  r->n_open = 1;
  if (list == NULL && (schema_flat_bits(r, flat) & TYPE_OBJECT) != 0) {
    builder_empty(b, emit_members(r, flat, true, from), to);
  }
  for (size_t i = 0; i < json_array_size(list) && builder_step(b, 4); i++) {
    const json_t *value = json_array_get(list, i);
    bool object = (schema_value_bits(value) & TYPE_OBJECT) != 0;
    if (!object || schema_fits_flat(r, flat, value, 0) != FITS) continue;
    uint32_t in = builder_state(b);
    builder_empty(b, from, in);
    uint32_t end = put_constant(r, value, in);
    if (end != GRAMMAR_NONE) builder_empty(b, end, to);
    any = any || end != GRAMMAR_NONE;
  }
  if (!any) schema_contradict(r, "none of the values of enum or const can be written as arguments");
  r->tags = true;
  r->n_open = n_open;
  return to;
}
