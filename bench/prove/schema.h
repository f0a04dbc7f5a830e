/* SPDX-License-Identifier: MIT */
/* Is a JSON value of a schema? For the files and reports of `weft prove`, whose schemas are committed beside them.
 *
 * Law: a schema is a part of JSON Schema 2020-12: type, enum, const, properties, required, additionalProperties, items,
 * minItems, minimum, maximum, minLength, oneOf, and $ref to #/$defs/NAME. A schema that has another keyword is refused
 * as if the value were wrong, so none is passed over. `description` and the names that begin with $ tell people
 * something. Nothing is changed. */
#ifndef WEFT_BENCH_PROVE_SCHEMA_H
#define WEFT_BENCH_PROVE_SCHEMA_H

#include <jansson.h>
#include <stdbool.h>

#include "bench/inside.h"

/* False: why has got "/place/of/the/value: what is wrong". */
bool prove_schema_check(const json_t *schema, const json_t *value, weft_text *why);

#endif
