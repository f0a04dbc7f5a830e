/* SPDX-License-Identifier: MIT */
/* Fields of a JSON object that a user wrote, each with a range and a default.
 *
 * Law: the first wrong field gives one line on standard error that names the place and the range,
 * and sets bad; every call returns a usable value, so the caller asks once at the end. */
#ifndef WEFT_BENCH_SIM_JSON_FIELDS_H
#define WEFT_BENCH_SIM_JSON_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct weft_json_fields {
  const char *where;
  uint32_t line; /* 0: a whole file */
  const json_t *root;
  bool bad;
} weft_json_fields;

void weft_json_complain(weft_json_fields *fields, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* other: the value when it is absent; NAN: it must be there. */
double weft_json_number(weft_json_fields *fields, const char *name, double low, double high, double other);
bool weft_json_flag(weft_json_fields *fields, const char *name, bool other);
/* Valid as long as the object. */
const char *weft_json_text(weft_json_fields *fields, const char *name, const char *other);

#endif
