/* SPDX-License-Identifier: MIT */
/* Reads the fields of a JSON object in a body, by one table for each kind of object.
 *
 * Law: this is the one rule for the fields of all dialects. A field is read; or it asks for what holds here anyway
 * (FIELD_MET); or it changes nothing in the answer and is passed over (FIELD_PASSED); or it would change the answer
 * and is refused by its name, unless its value asks for nothing. A field that a table does not have is passed over,
 * too. What is passed over is named in the log the first time that it comes, and is a 400 where the operator asked for
 * strict fields. A field that is null counts as left out. docs/fields.md is made of these tables. */
#ifndef WEFT_API_DIALECTS_FIELDS_H
#define WEFT_API_DIALECTS_FIELDS_H

#include <jansson.h>

#include "api/dialects/gen.h"
#include "base/range.h"

typedef enum field_kind {
  FIELD_BOOL = 1,
  FIELD_U32,
  FIELD_I32,
  FIELD_REAL,
  FIELD_TEXT,
  FIELD_SEED,   /* sets params.has_seed too */
  FIELD_COUNT,  /* a U32 of which -1 says that there is no limit */
  FIELD_OFF,    /* an I32 of which 0 says that it is off, and -1 the same */
  FIELD_READ,   /* read by the function of the row */
  FIELD_LATER,  /* read by the caller of fields_read, after all other fields */
  FIELD_MET,    /* asks for what holds here anyway, or for nothing: a name, a mark of the form */
  FIELD_PASSED, /* passed over: what it asks for is not done, and changes nothing in the answer */
  FIELD_REFUSED
} field_kind;

/* field: the name with the path to the field, for refusals. */
typedef weft_status (*field_reader)(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why);

typedef struct field_row {
  const char *name;
  field_kind kind;
  const char *what;  /* one line for docs/fields.md; FIELD_REFUSED: what is not supported, or what to do instead */
  size_t at;         /* offset of the value in a weft_gen */
  weft_range range;  /* of a number */
  field_reader read; /* FIELD_READ */
  /* FIELD_REFUSED: the values that ask for nothing, as JSON with blanks between; NULL: false, 0 and what is empty. */
  const char *nothing;
} field_row;

typedef struct field_table {
  const char *where; /* what has these fields, for the log and docs/fields.md: "/v1/messages", "... messages[]" */
  const field_row *rows;
  size_t n_rows;
} field_table;

/* A row of a field that has no place and no reader of its own. */
#define FIELD_ROW(field, how, words) \
  { .name = (field), .kind = FIELD_##how, .what = (words) }
#define FIELDS_COUNT(rows) (sizeof(rows) / sizeof *(rows))
/* A table of a list of rows, which is an array. */
#define FIELD_TABLE(where, rows) \
  { (where), (rows), FIELDS_COUNT(rows) }

/* Reads every field of the object. prefix: what stands before a name in refusals, for example "options.". */
weft_status fields_read(weft_gen *gen, const field_table *table, const json_t *object, const char *prefix,
                        weft_refusal *why);
/* What is passed over that is no field, such as a tool or a part of a message. what: its kind, in words that are the
 * same each time. */
weft_status fields_pass(const weft_gen *gen, const char *where, const char *what, const char *field, weft_refusal *why);

/* Reads one value into its place in *gen. field: as for a field_reader. */
weft_status field_read(weft_gen *gen, const field_row *row, const json_t *value, const char *field, weft_refusal *why);

/* The value of a field, or NULL where it is left out or null. */
const json_t *field_of(const json_t *object, const char *name);
/* Whether a member is this string. */
bool field_is(const json_t *object, const char *name, const char *word);
/* A whole number, also where it is written with a fraction that is zero, as clients write it whose language has one
 * kind of number. False: value is none, or beyond what 64 bits hold. */
bool field_whole(const json_t *value, json_int_t *out);
/* Sets *out where the field was given. */
weft_status field_flag(const json_t *object, const char *name, bool *out, weft_refusal *why);
/* Writes a value of the body as compact JSON text, which lives as long as gen. */
weft_status field_json(weft_gen *gen, const json_t *value, const char **out, weft_refusal *why);
/* Sets the tokens of a prompt, and nothing else of it, from a list of ids. */
weft_status field_ids(weft_gen *gen, const json_t *list, const char *field, weft_prompt *out, weft_refusal *why);
weft_status field_wrong(weft_refusal *why, const char *field, const char *must_be);
weft_status field_no_memory(weft_refusal *why);

#endif
