/* SPDX-License-Identifier: MIT */
#include "api/dialects/fields.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "model/text/json_tree.h"

enum { NAMED_MAX = 256, NAME_BYTES = 128 };

const json_t *field_of(const json_t *object, const char *name) {
  const json_t *value = json_object_get(object, name);
  return value == NULL || json_is_null(value) ? NULL : value;
}

bool field_is(const json_t *object, const char *name, const char *word) {
  const char *text = json_string_value(json_object_get(object, name));
  return text != NULL && strcmp(text, word) == 0;
}

bool field_whole(const json_t *value, json_int_t *out) {
  double number = json_real_value(value);
  if (json_is_integer(value)) *out = json_integer_value(value);
  if (!json_is_real(value)) return json_is_integer(value);
  if (number != floor(number) || fabs(number) > 9007199254740992.0) return false; /* 2^53: the last without gaps */
  *out = (json_int_t)number;
  return true;
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

weft_status field_ids(weft_gen *gen, const json_t *list, const char *field, weft_prompt *out, weft_refusal *why) {
  size_t n = json_array_size(list);
  if (!json_is_array(list)) return field_wrong(why, field, "a list of token ids");
  if (n > UINT32_MAX / 2) return field_wrong(why, field, "shorter");
  int32_t *ids = weft_gen_alloc(gen, n == 0 ? 1 : n, sizeof *ids);
  if (ids == NULL) return field_no_memory(why);
  for (size_t i = 0; i < n; i++) {
    const json_t *id = json_array_get(list, i);
    json_int_t value = 0;
    if (!field_whole(id, &value) || value < 0 || value > INT32_MAX) {
      return weft_refuse(why, 400, "invalid_value", field, "%s[%zu] is no token id: ids are whole numbers from 0",
                         field, i);
    }
    ids[i] = (int32_t)value;
  }
  out->tokens = ids;
  out->n_tokens = (uint32_t)n;
  return WEFT_OK;
}

/* ---- one value ---- */

/* Whether the value is one of those that a list of JSON values with blanks between has. */
static bool is_listed(const json_t *value, const char *list) {
  weft_text text = {.max = 64};
  weft_json_write(value, &text);
  bool found = false;
  for (size_t n; !text.refused && *list != 0 && !found; list += n + (list[n] == ' ')) {
    n = strcspn(list, " ");
    char *end;
    double number = strtod(list, &end);
    found = (n == text.n && memcmp(list, text.bytes, n) == 0) ||
            (json_is_number(value) && end == list + n && json_number_value(value) == number);
  }
  weft_text_free(&text);
  return found;
}

static bool asks_for_nothing(const json_t *value, const char *nothing) {
  bool empty = (json_is_string(value) && json_string_length(value) == 0) ||
               (json_is_array(value) && json_array_size(value) == 0) ||
               (json_is_object(value) && json_object_size(value) == 0);
  if (empty) return true;
  if (nothing != NULL) return is_listed(value, nothing);
  return json_is_false(value) || (json_is_number(value) && json_number_value(value) == 0);
}

static weft_status read_number(const field_row *row, const json_t *value, const char *field, void *at,
                               weft_refusal *why) {
  bool whole = row->kind != FIELD_REAL;
  double number = json_number_value(value);
  if (!json_is_number(value) || (whole && number != floor(number))) {
    return field_wrong(why, field, whole ? "a whole number" : "a number");
  }
  if (row->kind == FIELD_COUNT && number == -1) {
    *(uint32_t *)at = UINT32_MAX;
    return WEFT_OK;
  }
  if (row->kind == FIELD_OFF && number == -1) number = 0;
  if (!weft_range_has(&row->range, number)) {
    char allowed[WEFT_RANGE_TEXT];
    const char *also = row->kind == FIELD_COUNT ? ", or -1: no limit" : row->kind == FIELD_OFF ? ", or -1: off" : "";
    return weft_refuse(why, 400, "invalid_value", field, "%s is %.12g; it must be %s%s", field, number,
                       weft_range_text(&row->range, allowed), also);
  }
  if (row->kind == FIELD_REAL) *(float *)at = (float)number;
  if (row->kind == FIELD_U32 || row->kind == FIELD_COUNT) *(uint32_t *)at = (uint32_t)number;
  if (row->kind == FIELD_I32 || row->kind == FIELD_OFF) *(int32_t *)at = (int32_t)number;
  return WEFT_OK;
}

/* Clients draw 64 bits, of which JSON's readers hold 63. */
static weft_status read_seed(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  const char *digits = weft_json_written(value);
  char *end = NULL;
  errno = 0;
  unsigned long long seed = digits == NULL ? 0 : strtoull(digits, &end, 10);
  if (digits != NULL && (*end != 0 || errno != 0 || *digits == '-')) digits = NULL;
  json_int_t whole = 0;
  if (digits == NULL && !field_whole(value, &whole)) {
    return field_wrong(why, field, "a whole number of at most 64 bits");
  }
  gen->params.has_seed = true;
  gen->params.sampling.seed = digits != NULL ? (uint64_t)seed : (uint64_t)whole;
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
      return read_seed(gen, value, field, why);
    case FIELD_READ:
      return row->read(gen, value, field, why);
    case FIELD_REFUSED:
      if (asks_for_nothing(value, row->nothing)) return WEFT_OK;
      return weft_refuse(why, 400, "unsupported", field, "%s: %s", field, row->what);
    case FIELD_LATER:
    case FIELD_MET:
    case FIELD_PASSED:
      return WEFT_OK;
    default:
      return read_number(row, value, field, at, why);
  }
}

/* ---- what is passed over ---- */

/* Names that the log has already: clients choose them, so there is an end to them, which the log hears of, too. */
static pthread_mutex_t named_lock = PTHREAD_MUTEX_INITIALIZER;
static char named[NAMED_MAX][NAME_BYTES];
static uint32_t n_named;
static bool said_end;

typedef enum news { NEWS_NONE, NEWS_NAME, NEWS_END } news;

/* What the log has not heard yet: this name (cut names are one name), or that it hears of no more. */
static news find_news(const char *where, const char *what) {
  char cut[NAME_BYTES] = {0};
  bool known = false;
  (void)snprintf(cut, sizeof cut, "%.60s %.60s", where, what);
  (void)pthread_mutex_lock(&named_lock);
  for (uint32_t i = 0; i < n_named && !known; i++) known = strcmp(named[i], cut) == 0;
  news found = known ? NEWS_NONE : n_named < NAMED_MAX ? NEWS_NAME : said_end ? NEWS_NONE : NEWS_END;
  if (found == NEWS_NAME) memcpy(named[n_named++], cut, NAME_BYTES);
  said_end = said_end || found == NEWS_END;
  (void)pthread_mutex_unlock(&named_lock);
  return found;
}

weft_status fields_pass(const weft_gen *gen, const char *where, const char *what, const char *field,
                        weft_refusal *why) {
  if (gen->strict_fields) {
    return weft_refuse(why, 400, "unknown_field", field,
                       "%.96s: nothing is done with it at %.60s, and this server passes nothing over (--strict-fields)",
                       field, where);
  }
  news found = find_news(where, what);
  if (found == NEWS_NAME) {
    weft_log(
        WEFT_LOG_WARN,
        "%.60s: '%.64s' is passed over: nothing is done with it here (docs/fields.md); --strict-fields refuses such "
        "requests; told once",
        where, what);
  } else if (found == NEWS_END) {
    weft_log(WEFT_LOG_WARN,
             "%.60s: '%.64s' is passed over, too, and with it %d names are: no further ones are told; --strict-fields "
             "refuses such requests",
             where, what, NAMED_MAX + 1);
  }
  return WEFT_OK;
}

weft_status fields_read(weft_gen *gen, const field_table *table, const json_t *object, const char *prefix,
                        weft_refusal *why) {
  const char *name;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)object, name, value) {
    char field[160];
    size_t i = 0;
    if (json_is_null(value)) continue;
    (void)snprintf(field, sizeof field, "%.96s%.60s", prefix, name);
    while (i < table->n_rows && strcmp(table->rows[i].name, name) != 0) i++;
    bool known = i < table->n_rows;
    weft_status status = !known || table->rows[i].kind == FIELD_PASSED
                             ? fields_pass(gen, table->where, name, field, why)
                             : field_read(gen, &table->rows[i], value, field, why);
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}
