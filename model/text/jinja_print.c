/* SPDX-License-Identifier: MIT */
/* Values as text: as {{ }} prints them, and as JSON. Both go into nested values and so count depth. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/text/jinja_internal.h"
#include "model/text/json_tree.h"

/* The shortest digits that read back as the same number, in the form that Python chooses. */
void jinja_append_float(jinja_run *run, jinja_buffer *out, double real) {
  char digits[40], text[64];
  if (!isfinite(real)) {
    jinja_puts(run, out, isnan(real) ? "nan" : real > 0 ? "inf" : "-inf");
    return;
  }
  for (int precision = 0; precision < 17; precision++) {
    (void)snprintf(digits, sizeof digits, "%.*e", precision, real);
    if (strtod(digits, NULL) == real) break;
  }
  int exponent = (int)strtol(strchr(digits, 'e') + 1, NULL, 10);
  if (exponent < -4 || exponent >= 16) {
    char *mantissa = digits, *e = strchr(digits, 'e');
    (void)snprintf(text, sizeof text, "%.*se%c%02d", (int)(e - mantissa), mantissa, exponent < 0 ? '-' : '+',
                   abs(exponent));
    jinja_puts(run, out, text);
    return;
  }
  int n_digits = (int)(strchr(digits, 'e') - digits) - (digits[0] == '-') - (strchr(digits, '.') != NULL);
  int decimals = n_digits - 1 - exponent;
  (void)snprintf(text, sizeof text, "%.*f", decimals < 1 ? 1 : decimals, real);
  jinja_puts(run, out, text);
}

static bool is_printable(uint32_t c) {
  static const uint32_t hidden[][2] = {{0, 0x1F},        {0x7F, 0xA0},       {0xAD, 0xAD},       {0x600, 0x605},
                                       {0x61C, 0x61C},   {0x6DD, 0x6DD},     {0x70F, 0x70F},     {0x1680, 0x1680},
                                       {0x180E, 0x180E}, {0x2000, 0x200F},   {0x2028, 0x202F},   {0x205F, 0x206F},
                                       {0x3000, 0x3000}, {0xE000, 0xF8FF},   {0xFEFF, 0xFEFF},   {0xFFF9, 0xFFFB},
                                       {0xFFFE, 0xFFFF}, {0x1D173, 0x1D17A}, {0xE0000, 0x10FFFF}};
  for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) {
    if (c >= hidden[i][0] && c <= hidden[i][1]) return false;
  }
  return true;
}

/* A string within quotes, as Python's repr writes it. */
static void append_quoted(jinja_run *run, jinja_buffer *out, const jinja_string *s) {
  bool apostrophe = memchr(s->bytes, '\'', s->n) != NULL, both = apostrophe && memchr(s->bytes, '"', s->n) != NULL;
  char quote = apostrophe && !both ? '"' : '\'', text[16];
  size_t from = 0;
  (void)jinja_charge(run, s->n / 8);
  jinja_append_text(run, out, &quote, 1);
  for (size_t at = 0; at < s->n && !jinja_failed(run);) {
    uint32_t c = 0;
    size_t n = weft_utf8_decode(s->bytes + at, s->n - at, &c);
    const char *known = c == '\\' ? "\\\\" : c == '\n' ? "\\n" : c == '\r' ? "\\r" : c == '\t' ? "\\t" : NULL;
    bool plain = known == NULL && c != (uint32_t)quote && is_printable(c);
    if (n == 0) break;
    if (!plain) {
      jinja_string before = jinja_part(s, from, at);
      jinja_append(run, out, &before);
      from = at + n;
      if (known != NULL) {
        (void)snprintf(text, sizeof text, "%s", known);
      } else if (c == (uint32_t)quote) {
        (void)snprintf(text, sizeof text, "\\%c", quote);
      } else {
        (void)snprintf(text, sizeof text, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
      }
      jinja_append_escape(run, out, s, at, text);
    }
    at += n;
  }
  jinja_string rest = jinja_part(s, from, s->n);
  jinja_append(run, out, &rest);
  jinja_append_text(run, out, &quote, 1);
}

static void append_inside(jinja_run *run, jinja_buffer *out, jinja_value value);

static void append_list(jinja_run *run, jinja_buffer *out, const jinja_list *list) {
  bool tuple = list->flavour == JINJA_FLAVOUR_TUPLE;
  jinja_puts(run, out, tuple ? "(" : "[");
  for (size_t i = 0; i < list->n && !jinja_failed(run); i++) {
    if (i > 0) jinja_puts(run, out, ", ");
    append_inside(run, out, jinja_list_at(list, i));
  }
  jinja_puts(run, out, !tuple ? "]" : list->n == 1 ? ",)" : ")");
}

static void append_dict(jinja_run *run, jinja_buffer *out, const jinja_dict *dict) {
  jinja_puts(run, out, "{");
  for (size_t i = 0; i < dict->n && !jinja_failed(run); i++) {
    if (i > 0) jinja_puts(run, out, ", ");
    append_inside(run, out, dict->entries[i].key);
    jinja_puts(run, out, ": ");
    append_inside(run, out, dict->entries[i].value);
  }
  jinja_puts(run, out, "}");
}

static void append_inside(jinja_run *run, jinja_buffer *out, jinja_value value) {
  if (!jinja_enter(run) || !jinja_charge(run, 1)) {
    jinja_leave(run);
    return;
  }
  if (value.kind == JINJA_STRING) {
    append_quoted(run, out, value.string);
  } else if (value.kind == JINJA_UNDEFINED) {
    jinja_puts(run, out, "Undefined");
  } else {
    jinja_append_value(run, out, value);
  }
  jinja_leave(run);
}

void jinja_append_value(jinja_run *run, jinja_buffer *out, jinja_value value) {
  char digits[32];
  switch (value.kind) {
    case JINJA_UNDEFINED:
      break;
    case JINJA_NONE:
      jinja_puts(run, out, "None");
      break;
    case JINJA_BOOL:
      jinja_puts(run, out, value.truth ? "True" : "False");
      break;
    case JINJA_INT:
      (void)snprintf(digits, sizeof digits, "%lld", (long long)value.integer);
      jinja_puts(run, out, digits);
      break;
    case JINJA_FLOAT:
      if (value.written > 0) {
        jinja_puts(run, out, run->written[value.written - 1]);
      } else {
        jinja_append_float(run, out, value.real);
      }
      break;
    case JINJA_STRING:
      jinja_append(run, out, value.string);
      break;
    case JINJA_LIST:
      append_list(run, out, value.list);
      break;
    case JINJA_DICT:
      append_dict(run, out, value.dict);
      break;
    default:
      jinja_fail(run, WEFT_E_INVALID, "%s cannot be printed", jinja_type_name(value));
  }
}

const jinja_string *jinja_text(jinja_run *run, jinja_value value) {
  static const jinja_string empty = {.bytes = ""};
  if (value.kind == JINJA_STRING) return value.string;
  if (value.kind == JINJA_UNDEFINED) return &empty;
  jinja_buffer *out = jinja_take(run, sizeof *out);
  if (out == NULL) return &empty;
  jinja_append_value(run, out, value);
  return jinja_buffer_value(run, out).string;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* The escape of a character; 0: it stands for itself. */
static size_t json_escape(uint32_t c, bool ascii, char text[16]) {
  static const char plain[] = "\"\\\n\r\t\f\b", names[] = "\"\\nrtfb";
  const char *known = c == 0 || c > 127 ? NULL : strchr(plain, (int)c);
  if (known != NULL) return (size_t)snprintf(text, 16, "\\%c", names[known - plain]);
  if (c >= 0x20 && (c < 0x7F || !ascii)) return 0;
  if (c < 0x10000) return (size_t)snprintf(text, 16, "\\u%04x", c);
  c -= 0x10000;
  return (size_t)snprintf(text, 16, "\\u%04x\\u%04x", 0xD800 + (c >> 10), 0xDC00 + (c & 0x3FF));
}

static void json_write_string(jinja_run *run, jinja_buffer *out, const jinja_string *s, bool ascii) {
  char text[16];
  size_t from = 0;
  (void)jinja_charge(run, s->n / 8);
  jinja_puts(run, out, "\"");
  for (size_t at = 0; at < s->n && !jinja_failed(run);) {
    uint32_t c = 0;
    size_t n = weft_utf8_decode(s->bytes + at, s->n - at, &c), escape = json_escape(c, ascii, text);
    if (n == 0) break;
    if (escape > 0) {
      jinja_string before = jinja_part(s, from, at);
      jinja_append(run, out, &before);
      jinja_append_escape(run, out, s, at, text);
      from = at + n;
    }
    at += n;
  }
  jinja_string rest = jinja_part(s, from, s->n);
  jinja_append(run, out, &rest);
  jinja_puts(run, out, "\"");
}

static void json_break_line(jinja_run *run, jinja_buffer *out, const jinja_json_form *form, uint32_t level) {
  if (!form->indented) return;
  jinja_puts(run, out, "\n");
  for (uint32_t i = 0; i < level && !jinja_failed(run); i++) jinja_append(run, out, form->indent);
}

static void json_write_at(jinja_run *run, jinja_buffer *out, jinja_value value, const jinja_json_form *form,
                          uint32_t level);

static void json_write_key(jinja_run *run, jinja_buffer *out, jinja_value key, const jinja_json_form *form) {
  if (key.kind == JINJA_STRING) {
    json_write_string(run, out, key.string, form->ascii);
    return;
  }
  jinja_puts(run, out, "\"");
  json_write_at(run, out, key, form, 0);
  jinja_puts(run, out, "\"");
}

static int by_key(const void *a, const void *b, void *run) {
  const jinja_entry *x = a, *y = b;
  return jinja_compare(run, x->key, y->key);
}

static void json_write_dict(jinja_run *run, jinja_buffer *out, const jinja_dict *dict, const jinja_json_form *form,
                            uint32_t level) {
  jinja_entry *entries = dict->entries;
  if (form->sorted && dict->n > 0) {
    entries = jinja_take(run, dict->n * sizeof *entries);
    if (entries == NULL || !jinja_charge(run, dict->n * 8)) return;
    memcpy(entries, dict->entries, dict->n * sizeof *entries);
    qsort_r(entries, dict->n, sizeof *entries, by_key, run);
  }
  jinja_puts(run, out, "{");
  for (size_t i = 0; i < dict->n && !jinja_failed(run); i++) {
    if (i > 0) jinja_append(run, out, form->item_separator);
    json_break_line(run, out, form, level + 1);
    json_write_key(run, out, entries[i].key, form);
    jinja_append(run, out, form->key_separator);
    json_write_at(run, out, entries[i].value, form, level + 1);
  }
  if (dict->n > 0) json_break_line(run, out, form, level);
  jinja_puts(run, out, "}");
}

static void json_write_list(jinja_run *run, jinja_buffer *out, const jinja_list *list, const jinja_json_form *form,
                            uint32_t level) {
  jinja_puts(run, out, "[");
  for (size_t i = 0; i < list->n && !jinja_failed(run); i++) {
    if (i > 0) jinja_append(run, out, form->item_separator);
    json_break_line(run, out, form, level + 1);
    json_write_at(run, out, jinja_list_at(list, i), form, level + 1);
  }
  if (list->n > 0) json_break_line(run, out, form, level);
  jinja_puts(run, out, "]");
}

static void json_write_at(jinja_run *run, jinja_buffer *out, jinja_value value, const jinja_json_form *form,
                          uint32_t level) {
  if (!jinja_enter(run) || !jinja_charge(run, 1)) {
    jinja_leave(run);
    return;
  }
  if (value.kind == JINJA_NONE) {
    jinja_puts(run, out, "null");
  } else if (value.kind == JINJA_BOOL) {
    jinja_puts(run, out, value.truth ? "true" : "false");
  } else if (value.kind == JINJA_FLOAT && value.written == 0 && !isfinite(value.real)) {
    jinja_puts(run, out, isnan(value.real) ? "NaN" : value.real > 0 ? "Infinity" : "-Infinity");
  } else if (jinja_is_number(value)) {
    jinja_append_value(run, out, value);
  } else if (value.kind == JINJA_STRING) {
    json_write_string(run, out, value.string, form->ascii);
  } else if (value.kind == JINJA_LIST && value.list->flavour <= JINJA_FLAVOUR_TUPLE) {
    json_write_list(run, out, value.list, form, level);
  } else if (value.kind == JINJA_DICT) {
    json_write_dict(run, out, value.dict, form, level);
  } else {
    jinja_fail(run, WEFT_E_INVALID, "%s cannot be written as JSON%s", jinja_type_name(value),
               value.kind == JINJA_LIST ? " before it goes through the filter 'list'" : "");
  }
  jinja_leave(run);
}

void jinja_json_write(jinja_run *run, jinja_buffer *out, jinja_value value, const jinja_json_form *form) {
  json_write_at(run, out, value, form, 0);
}

static jinja_value json_read_text(jinja_run *run, const char *bytes, size_t n) {
  char *copy = jinja_take(run, n);
  if (copy == NULL) return jinja_nothing();
  (void)jinja_charge(run, n / 64);
  memcpy(copy, bytes, n);
  weft_jinja_mark *marks = run->trace == 0 ? NULL : jinja_take(run, n * sizeof *marks);
  if (marks != NULL) {
    (void)jinja_charge(run, n / 16);
    for (size_t i = 0; i < n; i++) marks[i] = run->trace + (weft_jinja_mark)i;
    run->trace += (weft_jinja_mark)n;
  }
  return jinja_string_value(run, (jinja_string){.bytes = copy, .marks = marks, .n = n});
}

/* A number that is neither an integer nor a float here: it is printed as it was written, and computed with as a
 * float. */
static jinja_value json_read_written(jinja_run *run, const char *number) {
  if (run->n_written == run->written_capacity) {
    size_t capacity = run->written_capacity == 0 ? 8 : run->written_capacity * 2;
    const char **more = jinja_take(run, capacity * sizeof *more);
    if (more == NULL) return jinja_nothing();
    if (run->n_written > 0) memcpy(more, run->written, run->n_written * sizeof *more);
    run->written = more;
    run->written_capacity = capacity;
  }
  size_t n = strlen(number) + 1;
  char *copy = jinja_take(run, n);
  if (copy == NULL) return jinja_nothing();
  memcpy(copy, number, n);
  run->written[run->n_written++] = copy;
  return (jinja_value){.kind = JINJA_FLOAT, .written = (uint32_t)run->n_written, .real = strtod(number, NULL)};
}

static jinja_value json_read_object(jinja_run *run, const json_t *json) {
  jinja_value dict = jinja_dict_new(run, JINJA_DICT);
  size_t n = json_object_size(json);
  jinja_entry *entries = jinja_take(run, n * sizeof *entries);
  if (entries == NULL || dict.kind != JINJA_DICT) return jinja_nothing();
  dict.dict->entries = entries;
  dict.dict->capacity = n;
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)json, key, value) { /* keys differ already */
    entries[dict.dict->n].key = json_read_text(run, key, strlen(key));
    entries[dict.dict->n].value = jinja_json_read(run, value);
    dict.dict->n += 1;
  }
  return dict;
}

static jinja_value json_read_array(jinja_run *run, const json_t *json) {
  size_t n = json_array_size(json);
  jinja_value *items = jinja_take(run, n * sizeof *items);
  for (size_t i = 0; items != NULL && i < n; i++) items[i] = jinja_json_read(run, json_array_get(json, i));
  return items == NULL ? jinja_nothing() : jinja_list_value(run, items, n, JINJA_FLAVOUR_LIST);
}

jinja_value jinja_json_read(jinja_run *run, const json_t *json) {
  jinja_value value = jinja_none();
  if (!jinja_enter(run) || !jinja_charge(run, 1)) {
    jinja_leave(run);
    return value;
  }
  const char *written = weft_json_written(json);
  switch (json_typeof(json)) {
    case JSON_OBJECT:
      value = written == NULL ? json_read_object(run, json) : json_read_written(run, written);
      break;
    case JSON_ARRAY:
      value = json_read_array(run, json);
      break;
    case JSON_STRING:
      value = json_read_text(run, json_string_value(json), json_string_length(json));
      break;
    case JSON_INTEGER:
      value = jinja_int(json_integer_value(json));
      break;
    case JSON_REAL:
      value = jinja_float(json_real_value(json));
      break;
    case JSON_TRUE:
    case JSON_FALSE:
      value = jinja_bool(json_is_true(json));
      break;
    case JSON_NULL:
      break;
  }
  jinja_leave(run);
  return value;
}
