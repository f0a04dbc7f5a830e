/* SPDX-License-Identifier: MIT */
/* Looking things up in a schema: whether two constants are the same, whether a list has a word, what a reference leads
 * to.
 *
 * Law: each of these counts what it looks at in steps of the builder, node by node and byte by byte, so that what is
 * large costs much, however often it is asked for; after the steps are used up all of them say no. A place in a schema
 * has one name (RFC 6901): another spelling of it is refused, or leads to the same part. */
#include <string.h>

#include "model/formats/grammar_schema.h"
#include "model/text/json_tree.h"

enum { BYTES_PER_STEP = 32, WORDS_PER_STEP = 4, LOOK_UP_STEPS = 4 };

/* ---- the same? ---- */

bool schema_is_same_text(schema_reader *r, const char *a, size_t n_a, const char *b, size_t n_b) {
  if (n_a != n_b || !builder_step(r->b, n_a / BYTES_PER_STEP)) return false;
  return memcmp(a, b, n_a) == 0;
}

static bool is_same_list(schema_reader *r, const json_t *a, const json_t *b) {
  size_t n = json_array_size(a);
  if (n != json_array_size(b)) return false;
  for (size_t i = 0; i < n; i++) {
    if (!schema_is_same(r, json_array_get(a, i), json_array_get(b, i))) return false;
  }
  return true;
}

static bool is_same_object(schema_reader *r, const json_t *a, const json_t *b) {
  const char *key;
  json_t *value;
  if (json_object_size(a) != json_object_size(b)) return false;
  json_object_foreach((json_t *)a, key, value) {
    if (!builder_step(r->b, LOOK_UP_STEPS + strlen(key) / BYTES_PER_STEP)) return false;
    if (!schema_is_same(r, value, json_object_get(b, key))) return false;
  }
  return true;
}

static bool is_same_number(schema_reader *r, const json_t *a, const json_t *b) {
  const char *x = weft_json_written(a), *y = weft_json_written(b);
  uint64_t bytes = (x == NULL ? 0 : strlen(x)) + (y == NULL ? 0 : strlen(y));
  return builder_step(r->b, 8 + bytes / 16) && decimal_compare_json(a, b) == 0;
}

/* As deep as the parser lets a text be nested. */
bool schema_is_same(schema_reader *r, const json_t *a, const json_t *b) {
  if (!builder_step(r->b, 1) || a == NULL || b == NULL) return false;
  if (a == b) return true;
  bool number = decimal_is_number(a);
  if (number || decimal_is_number(b)) return number && decimal_is_number(b) && is_same_number(r, a, b);
  if (json_typeof(a) != json_typeof(b)) return false;
  switch (json_typeof(a)) {
    case JSON_OBJECT:
      return is_same_object(r, a, b);
    case JSON_ARRAY:
      return is_same_list(r, a, b);
    case JSON_STRING:
      return schema_is_same_text(r, json_string_value(a), json_string_length(a), json_string_value(b),
                                 json_string_length(b));
    default:
      return true; /* true, false and null are one value each */
  }
}

bool schema_has_word(schema_reader *r, const json_t *list, const char *word) {
  size_t n = json_array_size(list), n_word = strlen(word);
  if (!builder_step(r->b, 1 + n / WORDS_PER_STEP + n_word / BYTES_PER_STEP)) return false;
  for (size_t i = 0; i < n; i++) {
    const json_t *item = json_array_get(list, i);
    if (json_is_string(item) && schema_is_same_text(r, json_string_value(item), json_string_length(item), word, n_word))
      return true;
  }
  return false;
}

/* ---- references ---- */

typedef struct pointer {
  const char *at; /* in the reference: what is not read yet */
  bool malformed;
} pointer;

static int hex_digit(char c) {
  static const char digits[] = "0123456789abcdef";
  const char *at = c == 0 ? NULL : strchr(digits, c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c);
  return at == NULL ? -1 : (int)(at - digits);
}

/* The next byte of the pointer, where %25 and the like stand for one; 0: there is none. */
static char take_byte(pointer *p) {
  char c = *p->at;
  if (c == 0) return 0;
  p->at += 1;
  if (c != '%') return c;
  int high = hex_digit(p->at[0]), low = high < 0 ? -1 : hex_digit(p->at[1]);
  p->malformed = p->malformed || low < 0 || high * 16 + low == 0;
  if (p->malformed) return 0;
  p->at += 2;
  return (char)(high * 16 + low);
}

/* One part of the pointer, up to the next / or the end: ~1 is /, ~0 is ~. False: it is longer than any that is known.
 * */
static bool take_part(pointer *p, char *out, size_t capacity) {
  size_t n = 0;
  for (;;) {
    pointer before = *p;
    char c = take_byte(p);
    if (c == 0 || c == '/') {
      if (c == '/') *p = before;
      break;
    }
    if (c == '~') {
      char which = take_byte(p);
      p->malformed = p->malformed || (which != '0' && which != '1');
      c = which == '0' ? '~' : '/';
    }
    if (n + 1 >= capacity) return false;
    out[n++] = c;
  }
  out[n] = 0;
  return !p->malformed;
}

/* The number of an item: 0, or digits of which the first is not 0. */
static bool read_index(const char *part, size_t *out) {
  size_t n = strlen(part);
  if (n == 0 || n > 9 || strspn(part, "0123456789") != n || (part[0] == '0' && n > 1)) return false;
  *out = 0;
  for (size_t i = 0; i < n; i++) *out = *out * 10 + (size_t)(part[i] - '0');
  return true;
}

json_t *schema_target(schema_reader *r, const char *reference) {
  json_t *at = r->root;
  pointer p = {.at = reference + 1};
  char part[256];
  if (reference[0] != '#' || (reference[1] != 0 && reference[1] != '/')) {
    schema_widen(r, "$ref to '%.80s' is not supported: it must lead into this schema, as #/$defs/name", reference);
    return builder_ok(r->b) ? json_true() : NULL;
  }
  if (!builder_step(r->b, strlen(reference))) return NULL;
  while (at != NULL && take_byte(&p) == '/' && builder_step(r->b, LOOK_UP_STEPS)) {
    size_t index = 0;
    if (!take_part(&p, part, sizeof part)) {
      at = NULL;
    } else if (json_is_array(at)) {
      p.malformed = !read_index(part, &index);
      at = p.malformed ? NULL : json_array_get(at, index);
    } else {
      at = json_object_get(at, part);
    }
  }
  if (!builder_ok(r->b)) return NULL;
  if (r->lenient && (p.malformed || at == NULL)) {
    schema_widen(r, "$ref leads to '%.80s', which is not there", reference);
    return json_true();
  }
  if (p.malformed) {
    schema_fail(r, WEFT_E_INVALID,
                "$ref to '%.80s' is malformed: an item of a list is a number without leading zeros, ~ is written ~0, "
                "and %% stands before two hexadecimal digits",
                reference);
  } else if (at == NULL) {
    schema_fail(r, WEFT_E_INVALID, "$ref leads to '%.80s', which is not there", reference);
  }
  return p.malformed ? NULL : at;
}
