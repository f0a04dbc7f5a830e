/* SPDX-License-Identifier: MIT */
/* Reads the fields of a JSON object in a body, by one table for each kind of object.
 *
 * Law: a field is read, known to change nothing here, or refused by its name: nothing that a client asks for is
 * silently left out, and a misspelt field is an error. A field that is null counts as left out, and so does a refused
 * field whose value asks for nothing. */
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
  FIELD_SEED,  /* sets params.has_seed too */
  FIELD_READ,  /* read by the function of the row */
  FIELD_LATER, /* read by the caller of fields_read, after all other fields */
  FIELD_KNOWN, /* accepted, and changes nothing here */
  FIELD_REFUSED
} field_kind;

/* field: the name with the path to the field, for refusals. */
typedef weft_status (*field_reader)(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why);

typedef struct field_row {
  const char *name;
  field_kind kind;
  size_t at;           /* offset of the value in a weft_gen */
  weft_range range;    /* of a number */
  field_reader read;   /* FIELD_READ */
  const char *instead; /* FIELD_REFUSED: what is not supported, or what to do instead */
  double nothing;      /* FIELD_REFUSED: a number that asks for nothing */
} field_row;

#define FIELDS_COUNT(rows) (sizeof(rows) / sizeof *(rows))

/* Reads every field of the object. prefix: what stands before a name in refusals, for example "options.". */
weft_status fields_read(weft_gen *gen, const field_row *rows, size_t n_rows, const json_t *object, const char *prefix,
                        weft_refusal *why);

/* Reads one value into its place in *gen. field: as for a field_reader. */
weft_status field_read(weft_gen *gen, const field_row *row, const json_t *value, const char *field, weft_refusal *why);

/* The value of a field, or NULL where it is left out or null. */
const json_t *field_of(const json_t *object, const char *name);
/* Sets *out where the field was given. */
weft_status field_flag(const json_t *object, const char *name, bool *out, weft_refusal *why);
/* Writes a value of the body as compact JSON text, which lives as long as gen. */
weft_status field_json(weft_gen *gen, const json_t *value, const char **out, weft_refusal *why);
weft_status field_wrong(weft_refusal *why, const char *field, const char *must_be);
weft_status field_no_memory(weft_refusal *why);

#endif
