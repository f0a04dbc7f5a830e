/* SPDX-License-Identifier: MIT */
/* Pieces of JSON, and what a schema is read with. Private to model/grammar_*.c.
 *
 * Law: after { [ , : and before ] } white space is nothing, one blank, or a line end and up to 32 blanks; there is none
 * before a value that is the whole answer, none after it. Numbers have at most 15 digits before the point and 15 after
 * it, and, where nothing bounds them, an exponent of one or two digits. */
#ifndef WEFT_MODEL_FORMATS_GRAMMAR_JSON_H
#define WEFT_MODEL_FORMATS_GRAMMAR_JSON_H

#include <jansson.h>

#include "model/formats/grammar_internal.h"

/* Each adds edges from the state `from` to the state that it returns. */
uint32_t json_space(grammar_builder *b, uint32_t from);
uint32_t json_comma(grammar_builder *b, uint32_t from);
uint32_t json_colon(grammar_builder *b, uint32_t from); /* with its space */
uint32_t json_string_any(grammar_builder *b, uint32_t from);
uint32_t json_value_any(grammar_builder *b, uint32_t from);
uint32_t json_object_any(grammar_builder *b, uint32_t from);
/* A whole value as text, a string with its quotes. */
uint32_t json_constant(grammar_builder *b, uint32_t from, const json_t *value);
/* A string of min to max characters; max GRAMMAR_NONE: any number. */
uint32_t json_string_sized(grammar_builder *b, uint32_t from, uint32_t min, uint32_t max);
/* A property's name that is none of the n names, which are sorted; the name has no escapes. */
uint32_t json_key_other(grammar_builder *b, uint32_t from, const char *const *name, uint32_t n);

/* Bounds of a number; without one it is -INFINITY or INFINITY. `open`: the bound itself is out. */
typedef struct json_bounds {
  double low, high;
  bool low_open, high_open;
} json_bounds;

/* Numbers within bounds: whole ones; all, fractions included. GRAMMAR_NONE: there is none that can be written. */
uint32_t json_integer_within(grammar_builder *b, uint32_t from, const json_bounds *bounds);
uint32_t json_number_within(grammar_builder *b, uint32_t from, const json_bounds *bounds);

/* ---- schemas ---- */

typedef struct schema_rule {
  const json_t *schema;
  const char *name; /* the reference by which the schema was found */
  uint32_t rule;
} schema_rule;

typedef struct schema_reader {
  grammar_builder *b;
  json_t *root; /* the whole schema, in which references are looked up */
  json_t *made; /* a list of schemas that were merged: kept to the end, since rules are found by their address */
  schema_rule *rule;
  uint32_t n_rules, rules_capacity, depth;
  char path[200]; /* where the reader is, for messages */
  const char *of; /* of what the schema is a part, for messages; NULL: the schema is the whole format */
} schema_reader;

/* A rule for a schema that is a part of a larger text. */
uint32_t schema_add_rule(grammar_builder *b, const json_t *schema, const char *of);

/* A failure that names the place. */
void schema_fail(schema_reader *r, weft_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Looking things up (grammar_schema_find.c), each counted by the size of what is looked at; all say no after a
 * failure. Whether two constants are the same value; whether a list has the word; what a reference leads to. */
bool schema_is_same(schema_reader *r, const json_t *a, const json_t *b);
bool schema_is_same_text(schema_reader *r, const char *a, size_t n_a, const char *b, size_t n_b);
bool schema_has_word(schema_reader *r, const json_t *list, const char *word);
json_t *schema_target(schema_reader *r, const char *reference);
/* One schema that allows what both allow; owned by the reader. NULL after a failure. */
json_t *schema_merge(schema_reader *r, const json_t *a, const json_t *b);
/* All but one keyword of a schema; owned by the reader. */
json_t *schema_without(schema_reader *r, const json_t *schema, const char *keyword);
/* Whether a keyword restricts nothing. */
bool schema_is_annotation(const char *keyword);
/* Whether no value fits both, as far as types, constants and required properties show it. */
bool schema_excludes(schema_reader *r, const json_t *a, const json_t *b, uint32_t depth);

enum {
  TYPE_OBJECT = 1,
  TYPE_ARRAY = 2,
  TYPE_STRING = 4,
  TYPE_NUMBER = 8,
  TYPE_INTEGER = 16,
  TYPE_BOOLEAN = 32,
  TYPE_NULL = 64,
  TYPE_ALL = 127
};
uint32_t schema_type_bits(schema_reader *r, const json_t *type); /* 0 after a failure */
uint32_t schema_value_bits(const json_t *value);

/* Any schema (grammar_schema.c); it calls the two after it for objects and arrays (grammar_schema_parts.c). */
uint32_t schema_emit(schema_reader *r, const json_t *schema, uint32_t from);
uint32_t schema_emit_object(schema_reader *r, const json_t *schema, uint32_t from);
uint32_t schema_emit_array(schema_reader *r, const json_t *schema, uint32_t from);
/* A whole number of a keyword, from 0; `otherwise` where it is missing. */
uint32_t schema_count(schema_reader *r, const json_t *schema, const char *keyword, uint32_t otherwise);

#endif
