/* SPDX-License-Identifier: MIT */
/* Whether a constant of a schema fits what stands beside it.
 *
 * Law: FITS is said only of what fits however the schema is understood, FITS_NOT only of what does not; formats
 * restrict nothing here, since they are annotations and the constant was written by who wrote them. */
#include <string.h>

#include "model/formats/grammar_schema.h"

enum { FITS_DEPTH_MAX = 32 };

static schema_verdict take_worse(schema_verdict a, schema_verdict b) {
  return a < b ? a : b;
}

static schema_verdict is_sure(bool fits) {
  return fits ? FITS : FITS_NOT;
}

/* ---- texts ---- */

static uint32_t count_characters(const char *text) {
  uint32_t n = 0;
  for (; *text != 0; text++) n += ((uint8_t)*text & 0xC0) != 0x80 ? 1 : 0;
  return n;
}

static schema_verdict match_pattern(schema_reader *r, const char *pattern, const char *text) {
  bool known, sure, perhaps;
  automaton a = schema_pattern(r, pattern, REGEX_SURELY, &known);
  sure = known && automaton_has(r->b, &a, text, strlen(text));
  automaton_close(&a);
  if (sure) return FITS;
  a = schema_pattern(r, pattern, REGEX_PERHAPS, &known);
  perhaps = !known || automaton_has(r->b, &a, text, strlen(text));
  automaton_close(&a);
  return perhaps ? FITS_UNSURE : FITS_NOT;
}

static schema_verdict fits_text(schema_reader *r, const json_t *flat, const char *text) {
  uint32_t n = count_characters(text);
  schema_verdict so =
      is_sure(n >= schema_count(r, flat, "minLength", 0) && n <= schema_count(r, flat, "maxLength", GRAMMAR_NONE));
  const json_t *patterns = json_object_get(flat, FLAT_PATTERNS), *none = json_object_get(flat, FLAT_NO_PATTERNS);
  const json_t *texts = json_object_get(flat, FLAT_NO_TEXTS);
  for (size_t i = 0; i < json_array_size(patterns) && builder_ok(r->b); i++) {
    so = take_worse(so, match_pattern(r, json_string_value(json_array_get(patterns, i)), text));
  }
  for (size_t i = 0; i < json_array_size(none) && builder_ok(r->b); i++) {
    schema_verdict v = match_pattern(r, json_string_value(json_array_get(none, i)), text);
    so = take_worse(so, v == FITS ? FITS_NOT : v == FITS_NOT ? FITS : FITS_UNSURE);
  }
  for (size_t i = 0; i < json_array_size(texts); i++) {
    if (strcmp(json_string_value(json_array_get(texts, i)), text) == 0) so = FITS_NOT;
  }
  return so;
}

/* ---- numbers ---- */

static schema_verdict fits_number(schema_reader *r, const json_t *flat, const json_t *value) {
  json_bounds d = schema_bounds(r, flat);
  decimal number, of;
  const json_t *multiples = json_object_get(flat, FLAT_MULTIPLES);
  (void)decimal_of(value, &number);
  schema_verdict so = is_sure(json_bounds_hold(&d, &number));
  if (json_object_get(flat, FLAT_FRACTION) != NULL && decimal_is_whole(&number)) so = FITS_NOT;
  for (size_t i = 0; i < json_array_size(multiples) && builder_step(r->b, 1 + number.n / 16); i++) {
    (void)decimal_of(json_array_get(multiples, i), &of);
    int multiple = decimal_is_multiple(&number, &of);
    so = take_worse(so, multiple < 0 ? FITS_UNSURE : is_sure(multiple > 0));
  }
  return so;
}

/* ---- objects ---- */

static schema_verdict fits_names(schema_reader *r, const json_t *flat, const char *name, uint32_t depth) {
  const json_t *names = json_object_get(flat, FLAT_NAMES);
  schema_verdict so = FITS;
  json_t *text = names == NULL ? NULL : schema_keep(r, json_string(name));
  for (size_t i = 0; i < json_array_size(names) && text != NULL; i++) {
    so = take_worse(so, schema_fits(r, json_array_get(names, i), text, depth + 1));
  }
  return so;
}

static schema_verdict fits_member(schema_reader *r, const json_t *flat, const char *name, const json_t *value,
                                  uint32_t depth) {
  const json_t *own = json_object_get(json_object_get(flat, "properties"), name);
  const json_t *other = json_object_get(flat, "additionalProperties");
  schema_verdict so = own == NULL ? FITS : schema_fits(r, own, value, depth + 1), beside = FITS_NOT;
  const char *pattern;
  json_t *schema;
  json_object_foreach(json_object_get(flat, "patternProperties"), pattern, schema) {
    if (!builder_ok(r->b)) return FITS_NOT;
    schema_verdict under = match_pattern(r, pattern, name);
    if (under > beside) beside = under;
    if (under != FITS_NOT && schema_fits(r, schema, value, depth + 1) != FITS) {
      so = take_worse(so, under == FITS ? schema_fits(r, schema, value, depth + 1) : FITS_UNSURE);
    }
  }
  if (own == NULL && other != NULL && beside != FITS) {
    schema_verdict v = schema_fits(r, other, value, depth + 1);
    so = take_worse(so, beside == FITS_NOT || v == FITS ? v : FITS_UNSURE);
  }
  return take_worse(so, fits_names(r, flat, name, depth));
}

static schema_verdict fits_object(schema_reader *r, const json_t *flat, const json_t *value, uint32_t depth) {
  const json_t *required = json_object_get(flat, "required");
  size_t n = json_object_size(value);
  schema_verdict so = is_sure(n >= schema_count(r, flat, "minProperties", 0) &&
                              n <= schema_count(r, flat, "maxProperties", GRAMMAR_NONE));
  const char *name;
  json_t *member;
  for (size_t i = 0; i < json_array_size(required); i++) {
    name = json_string_value(json_array_get(required, i));
    if (name == NULL || json_object_get(value, name) == NULL) so = FITS_NOT;
  }
  json_object_foreach((json_t *)value, name, member) {
    if (so != FITS_NOT && builder_step(r->b, 4)) so = take_worse(so, fits_member(r, flat, name, member, depth));
  }
  return so;
}

/* ---- arrays ---- */

static schema_verdict fits_contains(schema_reader *r, const json_t *contains, const json_t *value, uint32_t depth) {
  json_int_t sure = 0, perhaps = 0, min = json_integer_value(json_object_get(contains, "min"));
  json_int_t max = json_integer_value(json_object_get(contains, "max"));
  for (size_t i = 0; i < json_array_size(value) && builder_ok(r->b); i++) {
    schema_verdict v = schema_fits(r, json_object_get(contains, "of"), json_array_get(value, i), depth + 1);
    sure += v == FITS ? 1 : 0;
    perhaps += v != FITS_NOT ? 1 : 0;
  }
  if (perhaps < min || sure > max) return FITS_NOT;
  return sure >= min && perhaps <= max ? FITS : FITS_UNSURE;
}

static bool has_twins(schema_reader *r, const json_t *value) {
  for (size_t i = 0; i < json_array_size(value); i++) {
    for (size_t k = 0; k < i && builder_step(r->b, 1); k++) {
      const json_t *x = json_array_get(value, i), *y = json_array_get(value, k);
      if (schema_is_same(r, x, y)) return true;
    }
  }
  return false;
}

static schema_verdict fits_array(schema_reader *r, const json_t *flat, const json_t *value, uint32_t depth) {
  const json_t *prefix = json_object_get(flat, "prefixItems"), *items = json_object_get(flat, "items");
  const json_t *contains = json_object_get(flat, FLAT_CONTAINS);
  size_t n = json_array_size(value);
  schema_verdict so =
      is_sure(n >= schema_count(r, flat, "minItems", 0) && n <= schema_count(r, flat, "maxItems", GRAMMAR_NONE));
  for (size_t i = 0; i < n && so != FITS_NOT && builder_ok(r->b); i++) {
    const json_t *own = i < json_array_size(prefix) ? json_array_get(prefix, i) : items;
    if (own != NULL) so = take_worse(so, schema_fits(r, own, json_array_get(value, i), depth + 1));
  }
  for (size_t i = 0; i < json_array_size(contains) && so != FITS_NOT; i++) {
    so = take_worse(so, fits_contains(r, json_array_get(contains, i), value, depth));
  }
  if (json_is_true(json_object_get(flat, "uniqueItems")) && has_twins(r, value)) so = FITS_NOT;
  return so;
}

/* ---- any value ---- */

schema_verdict schema_fits_flat(schema_reader *r, const json_t *flat, const json_t *value, uint32_t depth) {
  const json_t *list = json_object_get(flat, "enum");
  uint32_t bits = schema_value_bits(value);
  bool found = list == NULL;
  if (!builder_step(r->b, 4) || depth > FITS_DEPTH_MAX) return FITS_UNSURE;
  if ((schema_flat_bits(r, flat) & bits) == 0) return FITS_NOT;
  for (size_t i = 0; i < json_array_size(list) && !found && builder_step(r->b, 1); i++) {
    found = schema_is_same(r, json_array_get(list, i), value);
  }
  if (!found) return FITS_UNSURE; /* a constant within may be equal though it is written otherwise */
  if (json_is_string(value)) return fits_text(r, flat, json_string_value(value));
  if (decimal_is_number(value)) return fits_number(r, flat, value);
  if (json_is_object(value)) return fits_object(r, flat, value, depth);
  return json_is_array(value) ? fits_array(r, flat, value, depth) : FITS;
}

schema_verdict schema_fits(schema_reader *r, const json_t *schema, const json_t *value, uint32_t depth) {
  schema_verdict best = FITS_NOT;
  if (json_is_boolean(schema)) return is_sure(json_is_true(schema));
  if (depth > FITS_DEPTH_MAX) return FITS_UNSURE;
  const json_t *flats = schema_flatten(r, schema, 0);
  for (size_t i = 0; i < json_array_size(flats) && best != FITS && builder_ok(r->b); i++) {
    schema_verdict v = schema_fits_flat(r, json_array_get(flats, i), value, depth);
    if (v > best) best = v;
  }
  /* flat schemas may allow less than the schema does: what fits none of them may fit it all the same */
  return best == FITS_NOT ? FITS_UNSURE : best;
}
