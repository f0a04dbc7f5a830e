/* SPDX-License-Identifier: MIT */
#include "model/text/json_tree.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

/* U+FDD0 is a character that Unicode leaves to programs for their own use. */
static const char written_name[] = "\xEF\xB7\x90", replacement[] = "\xEF\xBF\xBD";
enum { ESCAPE_LENGTH = 6, NUMBER_SAFE = 18 }; /* of \uXXXX; digits that 64 bits hold, whatever they are */

/* ---- numbers ---- */

static size_t skip_digits(const char *text, size_t n, size_t i) {
  while (i < n && text[i] >= '0' && text[i] <= '9') i += 1;
  return i;
}

/* The length of the JSON number that the text begins with; 0: it begins with none. */
static size_t number_length(const char *text, size_t n, bool *whole) {
  size_t i = n > 0 && text[0] == '-' ? 1 : 0, first = i;
  i = skip_digits(text, n, i);
  *whole = true;
  if (i == first || (text[first] == '0' && i > first + 1)) return 0;
  if (i < n && text[i] == '.') {
    size_t from = i + 1;
    i = skip_digits(text, n, from);
    *whole = false;
    if (i == from) return 0;
  }
  if (i < n && (text[i] == 'e' || text[i] == 'E')) {
    size_t from = i + 1;
    if (from < n && (text[from] == '+' || text[from] == '-')) from += 1;
    i = skip_digits(text, n, from);
    *whole = false;
    if (i == from) return 0;
  }
  return i;
}

/* Whether no digit before the exponent is more than 0. */
static bool is_zero(const char *number) {
  return strcspn(number, "123456789") >= strcspn(number, "eE");
}

bool weft_json_is_written(const char *number, size_t n) {
  bool whole;
  if (n < 4 || number_length(number, n, &whole) != n || (whole && n <= NUMBER_SAFE)) return false;
  char small[64], *copy = n < sizeof small ? small : weft_strndup(number, n);
  if (copy == NULL) return true; /* as a text it fits anywhere */
  if (copy == small) (void)snprintf(small, sizeof small, "%.*s", (int)n, number);
  errno = 0;
  if (whole) {
    (void)strtoll(copy, NULL, 10);
  } else {
    double value = strtod(copy, NULL);
    errno = isfinite(value) && (value != 0 || is_zero(copy)) ? 0 : ERANGE;
  }
  bool over = errno == ERANGE;
  if (copy != small) weft_free(copy);
  return over;
}

const char *weft_json_written(const json_t *json) {
  if (!json_is_object(json) || json_object_size(json) != 1) return NULL;
  return json_string_value(json_object_get(json, written_name));
}

/* ---- reading ---- */

/* What the reader would not take is written anew. out NULL: it is only looked for. */
typedef struct json_repair {
  const char *text;
  size_t n;
  weft_text *out;
  bool changed, zeros;
} json_repair;

static void put_bytes(json_repair *r, const char *bytes, size_t n) {
  if (r->out != NULL) weft_text_append(r->out, bytes, n);
}

static int hex_of(const char *text) {
  int value = 0;
  for (int i = 0; i < 4; i++) {
    char c = text[i], lower = (char)(c | 0x20);
    if (c >= '0' && c <= '9') {
      value = value * 16 + (c - '0');
    } else if (lower >= 'a' && lower <= 'f') {
      value = value * 16 + (lower - 'a' + 10);
    } else {
      return -1;
    }
  }
  return value;
}

/* The code of the escape \uXXXX at text[i]; -1: none stands there. */
static int escape_at(const json_repair *r, size_t i) {
  bool is = r->n - i >= ESCAPE_LENGTH && r->text[i] == '\\' && r->text[i + 1] == 'u';
  return is ? hex_of(r->text + i + 2) : -1;
}

static bool is_high(int code) {
  return code >= 0xD800 && code < 0xDC00;
}

static bool is_low(int code) {
  return code >= 0xDC00 && code < 0xE000;
}

/* What follows the first quote of a string, with its last one. */
static size_t string_end(const json_repair *r, size_t i) {
  while (i < r->n && r->text[i] != '"') i += r->text[i] == '\\' && i + 1 < r->n ? 2 : 1;
  return i < r->n ? i + 1 : i;
}

/* Each replacement is as long as what it stands for. */
static void repair_string(json_repair *r, size_t from, size_t end) {
  static const char escape[] = "\\uFFFD";
  bool named = end - from == 5 && memcmp(r->text + from + 1, written_name, 3) == 0;
  named = named || (end - from == 8 && escape_at(r, from + 1) == 0xFDD0);
  if (named) {
    r->changed = true;
    put_bytes(r, "\"", 1);
    put_bytes(r, end - from == 5 ? replacement : escape, end - from - 2);
    put_bytes(r, "\"", 1);
    return;
  }
  static const char zero[] = "\\uFDD1";
  size_t kept = from;
  for (size_t i = from + 1; i + 1 < end;) {
    bool own = end - i > 3 && memcmp(r->text + i, WEFT_JSON_ZERO, 3) == 0;
    if (r->text[i] != '\\' && !own) {
      i += 1;
      continue;
    }
    int code = own ? -1 : escape_at(r, i), next = is_high(code) ? escape_at(r, i + ESCAPE_LENGTH) : -1;
    bool half = is_low(code) || (is_high(code) && !is_low(next));
    if (own || code == 0 || code == WEFT_JSON_ZERO_CHARACTER || half) {
      r->changed = true;
      put_bytes(r, r->text + kept, i - kept);
      if (own) put_bytes(r, replacement, strlen(replacement));
      if (!own) put_bytes(r, code == 0 && r->zeros ? zero : escape, ESCAPE_LENGTH);
      kept = i + (own ? strlen(WEFT_JSON_ZERO) : ESCAPE_LENGTH);
    }
    i += own                             ? strlen(WEFT_JSON_ZERO)
         : code < 0                      ? 2
         : is_high(code) && is_low(next) ? 2 * ESCAPE_LENGTH
                                         : ESCAPE_LENGTH;
  }
  put_bytes(r, r->text + kept, end - kept);
}

static bool is_of_word(char c) {
  return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '+' || c == '-' || c == '.';
}

static void repair_word(json_repair *r, size_t from, size_t end) {
  bool written = weft_json_is_written(r->text + from, end - from);
  if (written) {
    r->changed = true;
    put_bytes(r, "{\"", 2);
    put_bytes(r, written_name, strlen(written_name));
    put_bytes(r, "\":\"", 3);
  }
  put_bytes(r, r->text + from, end - from);
  if (written) put_bytes(r, "\"}", 2);
}

/* Goes through the whole text; with out, ends where out has `until` bytes. The place in the text where it ended. */
static size_t repair_text(json_repair *r, size_t until) {
  size_t at = 0;
  while (at < r->n && (r->out == NULL || r->out->n < until)) {
    size_t end = at + 1, before = r->out == NULL ? 0 : r->out->n;
    if (r->text[at] == '"') {
      end = string_end(r, at + 1);
      repair_string(r, at, end);
    } else if (is_of_word(r->text[at])) {
      while (end < r->n && is_of_word(r->text[end])) end += 1;
      repair_word(r, at, end);
    } else {
      while (end < r->n && r->text[end] != '"' && !is_of_word(r->text[end])) end += 1;
      put_bytes(r, r->text + at, end - at);
    }
    if (r->out != NULL && r->out->n > until) return at + (until - before < end - at ? until - before : end - at);
    at = end;
  }
  return at;
}

/* Where in the text that was given the fault is. */
static void place_error(const char *text, size_t n, json_error_t *error) {
  weft_text copy = {0};
  json_repair r = {.text = text, .n = n, .out = &copy}; /* what stands for a zero is as long in either way */
  size_t at = error->position < 0 ? 0 : repair_text(&r, (size_t)error->position);
  weft_text_free(&copy);
  error->line = 1;
  error->column = 0;
  error->position = (int)at;
  for (size_t i = 0; i < at && i < n; i++) {
    error->column += ((unsigned char)text[i] & 0xC0) != 0x80;
    if (text[i] != '\n') continue;
    error->line += 1;
    error->column = 0;
  }
}

json_t *weft_json_read(const char *text, size_t n, size_t flags, json_error_t *error) {
  json_error_t own;
  json_repair look = {.text = text, .n = n, .zeros = (flags & WEFT_JSON_ZEROS) != 0};
  flags &= ~(size_t)WEFT_JSON_ZEROS;
  if (error == NULL) error = &own;
  (void)repair_text(&look, 0);
  if (!look.changed) return json_loadb(text, n, flags, error);
  weft_text copy = {.max = SIZE_MAX};
  json_repair r = {.text = text, .n = n, .out = &copy, .zeros = look.zeros};
  (void)repair_text(&r, SIZE_MAX);
  json_t *json = NULL;
  if (weft_text_status(&copy) == WEFT_OK) {
    json = json_loadb(copy.bytes, copy.n, flags, error);
    if (json == NULL) place_error(text, n, error);
  } else {
    json = json_loadb("", 0, 0, error); /* for its other members */
    (void)snprintf(error->text, sizeof error->text - 1, "out of memory");
  }
  weft_text_free(&copy);
  return json;
}

/* ---- zeros ---- */

static void replace_zeros(char *text) {
  for (char *at = text; (at = strstr(at, WEFT_JSON_ZERO)) != NULL;) memcpy(at, replacement, strlen(replacement));
}

static bool drop_in_name(json_t *object, const char *name) {
  char *plain = strstr(name, WEFT_JSON_ZERO) == NULL ? NULL : weft_strdup(name);
  if (plain == NULL) return strstr(name, WEFT_JSON_ZERO) == NULL;
  replace_zeros(plain);
  bool ok = json_object_set(object, plain, json_object_get(object, name)) == 0 && json_object_del(object, name) == 0;
  weft_free(plain);
  return ok;
}

static bool drop_in_object(json_t *object, const char *const *kept) {
  const char *name;
  json_t *value;
  void *next;
  bool ok = true;
  json_object_foreach(object, name, value) {
    const char *const *keeps = kept;
    while (*keeps != NULL && strcmp(*keeps, name) != 0) keeps += 1;
    if (*keeps == NULL || !json_is_object(value)) ok = weft_json_drop_zeros(value, kept) && ok;
  }
  json_object_foreach_safe(object, next, name, value) ok = drop_in_name(object, name) && ok;
  return ok;
}

bool weft_json_drop_zeros(json_t *json, const char *const *kept) {
  bool ok = true;
  if (json_is_object(json)) return drop_in_object(json, kept);
  for (size_t i = 0; i < json_array_size(json); i++) ok = weft_json_drop_zeros(json_array_get(json, i), kept) && ok;
  const char *text = json_string_value(json);
  if (text == NULL || strstr(text, WEFT_JSON_ZERO) == NULL) return ok;
  char *plain = weft_strdup(text);
  if (plain == NULL) return false;
  replace_zeros(plain);
  ok = json_string_set(json, plain) == 0;
  weft_free(plain);
  return ok;
}

/* ---- writing ---- */

static void write_string(const char *bytes, size_t n, weft_text *out) {
  static const char plain[] = "\b\f\n\r\t\"\\", letter[] = "bfnrt\"\\";
  size_t from = 0;
  weft_text_append(out, "\"", 1);
  for (size_t i = 0; i < n; i++) {
    unsigned char c = (unsigned char)bytes[i];
    if (c == 0xEF && n - i >= 3 && memcmp(bytes + i, WEFT_JSON_ZERO, 3) == 0) {
      weft_text_append(out, bytes + from, i - from);
      weft_text_puts(out, "\\u0000");
      from = i + 3;
    }
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    const char *known = c == 0 ? NULL : strchr(plain, c);
    weft_text_append(out, bytes + from, i - from);
    if (known != NULL) {
      weft_text_printf(out, "\\%c", letter[known - plain]);
    } else {
      weft_text_printf(out, "\\u%04x", c);
    }
    from = i + 1;
  }
  weft_text_append(out, bytes + from, n - from);
  weft_text_append(out, "\"", 1);
}

static void write_real(double real, weft_text *out) {
  char text[40];
  int digits = 15;
  do {
    (void)snprintf(text, sizeof text, "%.*g", digits, real);
  } while (strtod(text, NULL) != real && ++digits <= 17);
  weft_text_puts(out, text);
  if (strpbrk(text, ".e") == NULL) weft_text_puts(out, ".0");
}

static void write_object(const json_t *json, weft_text *out) {
  const char *name;
  json_t *value;
  bool first = true;
  weft_text_append(out, "{", 1);
  json_object_foreach((json_t *)(uintptr_t)json, name, value) {
    if (!first) weft_text_append(out, ",", 1);
    first = false;
    write_string(name, strlen(name), out);
    weft_text_append(out, ":", 1);
    weft_json_write(value, out);
  }
  weft_text_append(out, "}", 1);
}

static void write_array(const json_t *json, weft_text *out) {
  weft_text_append(out, "[", 1);
  for (size_t i = 0; i < json_array_size(json); i++) {
    if (i > 0) weft_text_append(out, ",", 1);
    weft_json_write(json_array_get(json, i), out);
  }
  weft_text_append(out, "]", 1);
}

void weft_json_write(const json_t *json, weft_text *out) {
  const char *written = weft_json_written(json);
  switch (json_typeof(json)) {
    case JSON_OBJECT:
      if (written == NULL) {
        write_object(json, out);
      } else {
        weft_text_puts(out, written);
      }
      break;
    case JSON_ARRAY:
      write_array(json, out);
      break;
    case JSON_STRING:
      write_string(json_string_value(json), json_string_length(json), out);
      break;
    case JSON_INTEGER:
      weft_text_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(json));
      break;
    case JSON_REAL:
      write_real(json_real_value(json), out);
      break;
    case JSON_TRUE:
    case JSON_FALSE:
      weft_text_puts(out, json_is_true(json) ? "true" : "false");
      break;
    case JSON_NULL:
      weft_text_puts(out, "null");
      break;
  }
}
