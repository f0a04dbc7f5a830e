/* SPDX-License-Identifier: MIT */
#include "api/dialects/fields.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/text/json_tree.h"

const json_t *field_of(const json_t *object, const char *name) {
  const json_t *value = json_object_get(object, name);
  return value == NULL || json_is_null(value) ? NULL : value;
}

weft_status field_wrong(weft_refusal *why, const char *field, const char *must_be) {
  return weft_refuse(why, 400, "invalid_value", field, "%s must be %s", field, must_be);
}

weft_status field_no_memory(weft_refusal *why) {
  return weft_refuse(why, 503, "no_memory", NULL, "no memory for this request: try again later");
}

weft_status field_flag(const json_t *object, const char *name, bool *out, weft_refusal *why) {
  const json_t *value = field_of(object, name);
  if (value == NULL) return WEFT_OK;
  if (!json_is_boolean(value)) return field_wrong(why, name, "true or false");
  *out = json_is_true(value);
  return WEFT_OK;
}

weft_status field_json(weft_gen *gen, const json_t *value, const char **out, weft_refusal *why) {
  weft_text text = {0};
  weft_json_write(value, &text);
  char *kept = weft_text_status(&text) == WEFT_OK ? weft_gen_alloc(gen, text.n + 1, 1) : NULL;
  if (kept != NULL) memcpy(kept, text.bytes, text.n);
  weft_text_free(&text);
  *out = kept;
  return kept == NULL ? field_no_memory(why) : WEFT_OK;
}

static bool asks_for_nothing(const json_t *value, double nothing) {
  if (json_is_number(value)) return json_number_value(value) == nothing;
  if (json_is_string(value)) return json_string_length(value) == 0;
  return json_is_false(value) || (json_is_array(value) && json_array_size(value) == 0) ||
         (json_is_object(value) && json_object_size(value) == 0);
}

static weft_status read_number(const field_row *row, const json_t *value, const char *field, void *at,
                               weft_refusal *why) {
  bool whole = row->kind != FIELD_REAL;
  double number = json_number_value(value);
  if (!json_is_number(value) || (whole && number != floor(number))) {
    return field_wrong(why, field, whole ? "a whole number" : "a number");
  }
  if (!weft_range_has(&row->range, number)) {
    char allowed[WEFT_RANGE_TEXT];
    return weft_refuse(why, 400, "invalid_value", field, "%s is %.12g; it must be %s", field, number,
                       weft_range_text(&row->range, allowed));
  }
  if (row->kind == FIELD_REAL) *(float *)at = (float)number;
  if (row->kind == FIELD_U32) *(uint32_t *)at = (uint32_t)number;
  if (row->kind == FIELD_I32) *(int32_t *)at = (int32_t)number;
  return WEFT_OK;
}

weft_status field_read(weft_gen *gen, const field_row *row, const json_t *value, const char *field, weft_refusal *why) {
  void *at = (char *)gen + row->at;
  switch (row->kind) {
    case FIELD_BOOL:
      if (!json_is_boolean(value)) return field_wrong(why, field, "true or false");
      *(bool *)at = json_is_true(value);
      return WEFT_OK;
    case FIELD_TEXT:
      if (!json_is_string(value)) return field_wrong(why, field, "a string");
      *(const char **)at = json_string_value(value);
      return WEFT_OK;
    case FIELD_SEED:
      if (!json_is_integer(value)) return field_wrong(why, field, "a whole number of at most 63 bits");
      gen->params.has_seed = true;
      gen->params.sampling.seed = (uint64_t)json_integer_value(value);
      return WEFT_OK;
    case FIELD_READ:
      return row->read(gen, value, field, why);
    case FIELD_REFUSED:
      if (asks_for_nothing(value, row->nothing)) return WEFT_OK;
      return weft_refuse(why, 400, "unsupported", field, "%s: %s", field, row->instead);
    case FIELD_LATER:
    case FIELD_KNOWN:
      return WEFT_OK;
    default:
      return read_number(row, value, field, at, why);
  }
}

weft_status fields_read(weft_gen *gen, const field_row *rows, size_t n_rows, const json_t *object, const char *prefix,
                        weft_refusal *why) {
  const char *name;
  json_t *value;
  json_object_foreach((json_t *)object, name, value) {
    char field[160];
    size_t i = 0;
    if (json_is_null(value)) continue;
    (void)snprintf(field, sizeof field, "%.96s%.60s", prefix, name);
    while (i < n_rows && strcmp(rows[i].name, name) != 0) i++;
    if (i == n_rows) {
      return weft_refuse(why, 400, "unknown_field", field, "%s is not known here: leave it out or spell it right",
                         field);
    }
    weft_status status = field_read(gen, &rows[i], value, field, why);
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}
