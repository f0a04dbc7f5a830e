/* SPDX-License-Identifier: MIT */
#include "bench/sim/json_fields.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "bench/inside.h"

void weft_json_complain(weft_json_fields *f, const char *format, ...) {
  char text[256], place[24] = "";
  va_list args;
  if (f->bad) return;
  f->bad = true;
  va_start(args, format);
  (void)vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (f->line > 0) (void)snprintf(place, sizeof place, ":%u", f->line);
  (void)weft_cli_fail(0, "%s%s: %s", f->where, place, text);
}

double weft_json_number(weft_json_fields *f, const char *name, double low, double high, double other) {
  const json_t *value = json_object_get(f->root, name);
  if (value == NULL && !isnan(other)) return other;
  double x = json_is_number(value) ? json_number_value(value) : NAN;
  if (x >= low && x <= high) return x;
  weft_json_complain(f, "\"%s\" must be a number from %g to %g", name, low, high);
  return low;
}

bool weft_json_flag(weft_json_fields *f, const char *name, bool other) {
  const json_t *value = json_object_get(f->root, name);
  if (value == NULL) return other;
  if (!json_is_boolean(value)) weft_json_complain(f, "\"%s\" must be true or false", name);
  return json_is_true(value);
}

const char *weft_json_text(weft_json_fields *f, const char *name, const char *other) {
  const json_t *value = json_object_get(f->root, name);
  if (value == NULL) return other;
  if (json_is_string(value)) return json_string_value(value);
  weft_json_complain(f, "\"%s\" must be a text", name);
  return other;
}
