/* SPDX-License-Identifier: MIT */
/* Qwen3-Coder's calls: <function=NAME>, for each argument <parameter=KEY>, its text on lines of its own,
 * </parameter>, and </function>. They are given as JSON; what the schema of the function calls a string is one,
 * whatever it looks like. */
#include <jansson.h>
#include <string.h>

#include "model/text/calls_internal.h"

enum { BETWEEN, OPEN_STRING, OPEN_VALUE, OPEN_EITHER, STRING, VALUE, EITHER }; /* EITHER: a string, or null */

static const char function_open[] = "<function=", function_close[] = "</function>",
                  parameter_open[] = "<parameter=", parameter_close[] = "</parameter>";

/* ---- types: for each parameter that is no plain string a letter, its name and a zero byte; then a zero byte ---- */

static const char any_value = 'v', string_or_null = 'n';

/* The letter of a parameter; 0: it is a plain string. */
static char type_of(const json_t *schema) {
  const json_t *type = json_object_get(schema, "type");
  bool string = false, null = false;
  size_t n_types = json_is_array(type) ? json_array_size(type) : 1;
  for (size_t i = 0; i < n_types; i++) {
    const char *word = json_string_value(json_is_array(type) ? json_array_get(type, i) : type);
    string = string || (word != NULL && strcmp(word, "string") == 0);
    null = null || (word != NULL && strcmp(word, "null") == 0);
  }
  return !string ? any_value : null ? string_or_null : 0;
}

weft_status weft_callable_types(const char *parameters, weft_text *out) {
  json_t *schema = parameters == NULL ? NULL : json_loads(parameters, 0, NULL), *property;
  const char *name;
  json_object_foreach(json_object_get(schema, "properties"), name, property) {
    char type = type_of(property);
    if (type == 0) continue;
    weft_text_append(out, &type, 1);
    weft_text_append(out, name, strlen(name) + 1);
  }
  json_decref(schema);
  weft_text_append(out, "", 1);
  return weft_text_status(out);
}

static const char *find_types(const weft_call_reader *r, const char *name, size_t n) {
  for (uint32_t i = 0; i < r->n_callable; i++) {
    const weft_callable *c = &r->callable[i];
    if (strlen(c->name) == n && memcmp(c->name, name, n) == 0) return c->types;
  }
  return NULL;
}

/* How the text of a parameter is read. */
static uint8_t reading_of(const weft_call_reader *r, const char *name, size_t n) {
  for (const char *at = r->types; at != NULL && *at != 0; at += strlen(at) + 1) {
    if (strlen(at + 1) != n || memcmp(at + 1, name, n) != 0) continue;
    return *at == any_value ? OPEN_VALUE : OPEN_EITHER;
  }
  return OPEN_STRING;
}

/* ---- reading ---- */

bool calls_qwen_head(weft_call_reader *r) {
  bool direct = calls_match_at(r, r->mark, function_open) == MATCH_YES;
  size_t i = direct ? r->head : calls_skip_blanks(r, r->head);
  if (!direct) {
    calls_match match = calls_match_at(r, i, function_open);
    if (match == MATCH_PART) return false;
    if (match == MATCH_NO) return calls_refuse_head(r);
    i += strlen(function_open);
  }
  size_t n = calls_name_length(r, i);
  if (i + n == r->held.n) return false;
  if (r->held.bytes[i + n] != '>') return calls_refuse_head(r);
  (void)calls_begin(r, i, n, i + n + 1);
  if (r->state != CALLS_ARGUMENTS) return true;
  r->types = find_types(r, r->held.bytes + i, n);
  r->inner = BETWEEN;
  calls_puts(r, "{");
  return true;
}

static bool read_parameter(weft_call_reader *r, size_t i) {
  bool found;
  size_t key = i + strlen(parameter_open), end = calls_find(r, key, ">", &found);
  if (end - key > CALLS_HELD_MAX) return calls_break(r);
  if (!found) return false;
  r->inner = reading_of(r, r->held.bytes + key, end - key);
  calls_puts(r, r->first ? "\"" : ",\"");
  calls_give_escaped(r, r->held.bytes + key, end - key);
  calls_puts(r, r->inner == OPEN_STRING ? "\":\"" : "\":");
  r->first = false;
  r->at = r->scanned = end + 1;
  return true;
}

/* Between parameters: another one, or the end. */
static bool read_between(weft_call_reader *r) {
  const char *close = calls_rows[WEFT_CALLS_QWEN].close;
  size_t i = r->at = calls_skip_blanks(r, r->at);
  if (i == r->held.n) return false;
  calls_match match = calls_match_at(r, i, parameter_open);
  if (match == MATCH_YES) return read_parameter(r, i);
  calls_match end = calls_match_at(r, i, function_close), call_end = calls_match_at(r, i, close);
  if (end == MATCH_YES || call_end == MATCH_YES) {
    calls_puts(r, "}");
    r->at = i + strlen(end == MATCH_YES ? function_close : close);
    calls_finish(r, true, end == MATCH_YES ? CALLS_TAIL : CALLS_TEXT);
    return true;
  }
  if (match == MATCH_PART || end == MATCH_PART || call_end == MATCH_PART) return false;
  return calls_break(r);
}

/* A string as it comes; the line end before the mark that closes it is not a part of it. */
static bool read_string(weft_call_reader *r) {
  bool found;
  size_t mark = calls_find(r, r->at, parameter_close, &found), end = mark;
  if (end > r->at && r->held.bytes[end - 1] == '\n') end -= 1;
  calls_give_escaped(r, r->held.bytes + r->at, end - r->at);
  r->at = end;
  if (!found) return false;
  r->at = mark + strlen(parameter_close);
  r->inner = BETWEEN;
  calls_puts(r, "\"");
  return true;
}

/* Anything else is looked at when it is whole. */
static bool read_whole(weft_call_reader *r) {
  bool found;
  const char *b = r->held.bytes;
  size_t mark = calls_find(r, r->scanned, parameter_close, &found), end = mark;
  r->scanned = mark;
  if (!found) return false;
  if (end > r->at && b[end - 1] == '\n') end -= 1;
  bool null = end - r->at == 4 && memcmp(b + r->at, "null", 4) == 0;
  bool given = (r->inner == VALUE || null) && calls_give_value(r, r->at, end);
  if (!given) {
    calls_puts(r, "\"");
    calls_give_escaped(r, b + r->at, end - r->at);
    calls_puts(r, "\"");
  }
  r->at = mark + strlen(parameter_close);
  r->inner = BETWEEN;
  return true;
}

bool calls_qwen_arguments(weft_call_reader *r) {
  if (r->inner == BETWEEN) return read_between(r);
  if (r->inner == STRING) return read_string(r);
  if (r->inner == VALUE || r->inner == EITHER) return read_whole(r);
  if (r->held.bytes[r->at] == '\n') r->at += 1; /* the line of its own */
  r->inner = r->inner == OPEN_STRING ? STRING : r->inner == OPEN_VALUE ? VALUE : EITHER;
  r->scanned = r->at;
  return true;
}

void calls_qwen_cut(weft_call_reader *r) {
  if (r->inner == VALUE || r->inner == EITHER) calls_give_cut_value(r, r->at, r->held.n);
}

bool calls_qwen_tail(weft_call_reader *r) {
  r->at = calls_skip_blanks(r, r->at);
  return r->at < r->held.n && calls_close(r);
}
