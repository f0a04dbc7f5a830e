/* SPDX-License-Identifier: MIT */
/* What a schema is read with. Private to model/formats/grammar_schema*.c.
 *
 * Law: a schema whose keywords apply other schemas to the same value (allOf, anyOf, oneOf, not, if, references, ...)
 * is made a list of flat ones, of which a value that fits any fits the schema. A flat schema has only keywords that
 * speak of the value itself or of its parts, whose schemas stay as they are until they are reached. Where a flat
 * schema allows less than was asked for, that is sound; it never allows more. An empty list says that nothing fits,
 * as far as it can be written. */
#ifndef WEFT_MODEL_FORMATS_GRAMMAR_SCHEMA_H
#define WEFT_MODEL_FORMATS_GRAMMAR_SCHEMA_H

#include "model/formats/automaton.h"
#include "model/formats/grammar_json.h"

/* Keywords of flat schemas alone; those of schemas that are read never begin so. Lists hold what several schemas
 * said. */
#define FLAT_PATTERNS    "\001patterns"
#define FLAT_NO_PATTERNS "\001no-patterns"
#define FLAT_FORMATS     "\001formats"
#define FLAT_NO_TEXTS    "\001no-texts"
#define FLAT_NAMES       "\001names"    /* propertyNames */
#define FLAT_CONTAINS    "\001contains" /* {"of": schema, "min": n, "max": n} */
#define FLAT_MULTIPLES   "\001multiples"
#define FLAT_FRACTION    "\001fraction" /* true: no whole number */
/* What does not count as evaluated, since it comes from what must not hold: names of properties; true: what patterns
 * and additionalProperties say; true: items. */
#define FLAT_UNSEEN       "\001unseen"
#define FLAT_UNSEEN_REST  "\001unseen-rest"
#define FLAT_UNSEEN_ITEMS "\001unseen-items"

typedef struct schema_rule {
  const json_t *schema;
  const char *name; /* the reference by which the schema was found */
  uint32_t rule;
  bool tags;
} schema_rule;

typedef struct schema_reader {
  grammar_builder *b;
  json_t *root; /* the whole schema, in which references are looked up */
  json_t *made; /* a list of schemas that were made: kept to the end, since rules are found by their address */
  schema_rule *rule;
  uint32_t n_rules, rules_capacity, depth;
  char path[200];    /* where the reader is, for messages */
  const char *of;    /* of what the schema is a part, for messages; NULL: the schema is the whole format */
  char *base;        /* the URI of the root */
  bool lenient;      /* what cannot be held is widened, and told in the log, instead of refused */
  bool refers;       /* it has references, so answers may be nested deeper than it is */
  bool tags;         /* what is read now are the arguments themselves, which stand between tags (STYLE_TAGS) */
  const char *types; /* how each of them is read: weft_callable_types */
  uint32_t n_told;
  uint32_t n_open; /* objects and lists that are open in the rule that is being read */
} schema_reader;

/* A rule for the schema of a call's arguments in the builder's style. types: for STYLE_TAGS, how each is read. */
uint32_t schema_add_rule(grammar_builder *b, const json_t *schema, const char *of, const char *types, bool lenient);

/* A failure that names the place. */
void schema_fail(schema_reader *r, weft_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* What cannot be held: fails, or tells it in the log where the reader is lenient; then the caller allows more. */
void schema_widen(schema_reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Why nothing fits, for the line that says so in the end; the first one stays. */
void schema_contradict(schema_reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* References become paths from the root (grammar_schema_refs.c). */
void schema_settle_references(schema_reader *r);
/* Looking things up (grammar_schema_find.c), each counted by the size of what is looked at; all say no after a
 * failure. Whether two constants are the same value; whether a list has the word; what a reference leads to, true
 * where it was widened. */
bool schema_is_same(schema_reader *r, const json_t *a, const json_t *b);
bool schema_is_same_text(schema_reader *r, const char *a, size_t n_a, const char *b, size_t n_b);
bool schema_has_word(schema_reader *r, const json_t *list, const char *word);
json_t *schema_target(schema_reader *r, const char *reference);

/* ---- flat schemas; what is given is the reader's, and empty or NULL after a failure ---- */

/* grammar_schema_flat.c */
json_t *schema_flatten(schema_reader *r, const json_t *schema, uint32_t depth);
json_t *schema_keep(schema_reader *r, json_t *made);
/* Takes the item, or the value; without memory the reader fails. */
void schema_append(schema_reader *r, json_t *list, json_t *item);
void schema_set(schema_reader *r, json_t *object, const char *key, json_t *value);
/* The flat schemas of what does not fit a schema (grammar_schema_not.c). */
json_t *schema_flatten_not(schema_reader *r, const json_t *schema, uint32_t depth);
/* grammar_schema_merge.c: a flat schema that allows what both allow; NULL: nothing, or a failure. */
json_t *schema_merge(schema_reader *r, const json_t *a, const json_t *b);
/* Both schemas at once, a new reference. */
json_t *schema_both(const json_t *a, const json_t *b);
/* Whether no value fits both, as far as types, constants and required properties show it. */
bool schema_excludes(schema_reader *r, const json_t *a, const json_t *b, uint32_t depth);
/* Whether a keyword restricts nothing. */
bool schema_is_annotation(const char *keyword);

/* Whether a value fits (grammar_schema_fits.c). Where it depends on who understands the schema, UNSURE. */
typedef enum schema_verdict { FITS_NOT, FITS_UNSURE, FITS } schema_verdict;
schema_verdict schema_fits(schema_reader *r, const json_t *schema, const json_t *value, uint32_t depth);
/* The same for a flat schema. */
schema_verdict schema_fits_flat(schema_reader *r, const json_t *flat, const json_t *value, uint32_t depth);

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
/* The types of a flat schema; a number is an integer, too. */
uint32_t schema_flat_bits(schema_reader *r, const json_t *flat);
/* A whole number of a keyword, from 0; `otherwise` where it is missing. */
uint32_t schema_count(schema_reader *r, const json_t *schema, const char *keyword, uint32_t otherwise);
json_bounds schema_bounds(schema_reader *r, const json_t *flat);

/* ---- to rules: each adds edges from a state and gives the state where they end ---- */

uint32_t schema_emit(schema_reader *r, const json_t *schema, uint32_t from);
/* Of flat schemas. */
uint32_t schema_emit_object(schema_reader *r, const json_t *flat, uint32_t from);
/* Of a call, where they stand between tags. */
uint32_t schema_emit_arguments(schema_reader *r, const json_t *flat, uint32_t from);
uint32_t schema_emit_array(schema_reader *r, const json_t *flat, uint32_t from);
uint32_t schema_emit_string(schema_reader *r, const json_t *flat, uint32_t from);
/* A text between tags, and the tag that ends it. nullable: null is read as no text. */
uint32_t schema_emit_argument(schema_reader *r, const json_t *schema, bool nullable, uint32_t from);
/* The texts that a flat schema allows, for names of properties and where several keywords speak of a text
 * (grammar_schema_text.c). */
automaton schema_texts(schema_reader *r, const json_t *flat);
/* What matches a pattern surely; perhaps. A pattern that cannot be read is widened: *known is false. */
automaton schema_pattern(schema_reader *r, const char *pattern, regex_reading reading, bool *known);
/* The pattern of a format, NULL: the format restricts nothing here. */
const char *schema_format_pattern(const char *format);
/* Whether nothing fits a schema, as far as it is seen without reading the schemas of parts. */
bool schema_is_never(schema_reader *r, const json_t *schema);

#endif
