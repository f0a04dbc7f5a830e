/* SPDX-License-Identifier: MIT */
/* How the arguments of a call with tags are read: their text does not show whether it is a string.
 *
 * A text of entries, each a letter, a name and a zero byte, and then a zero byte: 's' is a string, 'n' a string or
 * null, 'v' JSON, or a string where it is none. 'o' has no name: arguments that are not named are read as 'v', else
 * as 's'. */
#include <stdlib.h>
#include <string.h>

#include "model/text/calls.h"
#include "model/text/json_tree.h"

enum { MAY_STRING = 1, MAY_NULL = 2, MAY_OTHER = 4, MAY_ALL = 7, DEPTH_MAX = 12, LOOKS_MAX = 4096 };

typedef struct type_finder {
  json_t *root, *properties; /* properties: a name: what its value may be, as a number */
  uint32_t n_looks;
  bool other; /* an argument that is not named may be something else than a string */
} type_finder;

/* What a reference within the schema leads to; NULL: nothing. */
static json_t *find_target(const type_finder *f, const char *reference) {
  json_t *at = reference[0] == '#' ? f->root : NULL;
  const char *next = reference[0] == '#' ? reference + 1 : "";
  while (at != NULL && *next == '/') {
    char part[256];
    size_t n = 0;
    for (next += 1; *next != 0 && *next != '/' && n + 1 < sizeof part; next++) {
      bool escaped = next[0] == '~' && (next[1] == '0' || next[1] == '1');
      part[n++] = !escaped ? *next : next[1] == '0' ? '~' : '/';
      next += escaped ? 1 : 0;
    }
    part[n] = 0;
    at = json_is_array(at) ? json_array_get(at, (size_t)strtoul(part, NULL, 10)) : json_object_get(at, part);
  }
  return *next == 0 ? at : NULL;
}

static uint32_t bits_of_value(const json_t *value) {
  return json_is_string(value) ? MAY_STRING : json_is_null(value) ? MAY_NULL : MAY_OTHER;
}

static uint32_t bits_of_words(const json_t *type) {
  uint32_t bits = 0;
  size_t n = json_is_array(type) ? json_array_size(type) : 1;
  for (size_t i = 0; i < n; i++) {
    const char *word = json_string_value(json_is_array(type) ? json_array_get(type, i) : type);
    bool string = word != NULL && strcmp(word, "string") == 0, null = word != NULL && strcmp(word, "null") == 0;
    bits |= string ? MAY_STRING : null ? MAY_NULL : MAY_OTHER;
  }
  return bits;
}

/* What a value that fits the schema may be, at least. */
static uint32_t bits_of(type_finder *f, const json_t *schema, uint32_t depth) {
  static const char *const any[] = {"anyOf", "oneOf"};
  uint32_t bits = MAY_ALL;
  if (!json_is_object(schema) || depth > DEPTH_MAX || f->n_looks++ > LOOKS_MAX) return bits;
  const json_t *type = json_object_get(schema, "type"), *list = json_object_get(schema, "enum");
  const json_t *one = json_object_get(schema, "const"), *all = json_object_get(schema, "allOf");
  const char *reference = json_string_value(json_object_get(schema, "$ref"));
  if (type != NULL && !json_is_null(type)) bits &= bits_of_words(type);
  if (one != NULL) bits &= bits_of_value(one);
  uint32_t values = 0;
  for (size_t i = 0; i < json_array_size(list); i++) values |= bits_of_value(json_array_get(list, i));
  if (values != 0) bits &= values;
  if (reference != NULL) bits &= bits_of(f, find_target(f, reference), depth + 1);
  for (size_t i = 0; i < json_array_size(all); i++) bits &= bits_of(f, json_array_get(all, i), depth + 1);
  for (size_t k = 0; k < 2; k++) {
    const json_t *branches = json_object_get(schema, any[k]);
    uint32_t either = 0;
    for (size_t i = 0; i < json_array_size(branches); i++) either |= bits_of(f, json_array_get(branches, i), depth + 1);
    if (either != 0) bits &= either;
  }
  return bits;
}

static bool note_type(type_finder *f, const char *name, uint32_t bits) {
  json_int_t before = json_integer_value(json_object_get(f->properties, name));
  return json_object_set_new(f->properties, name, json_integer(before | (json_int_t)bits)) == 0;
}

static bool note_members(type_finder *f, const json_t *constant) {
  const char *name;
  json_t *value;
  bool ok = true;
  json_object_foreach((json_t *)(uintptr_t)constant, name, value) ok = note_type(f, name, bits_of_value(value)) && ok;
  return ok;
}

/* Properties wherever the schema applies others to the same object; one that is told twice may be both. */
static bool collect_types(type_finder *f, json_t *schema, uint32_t depth) {
  static const char *const lists[] = {"allOf", "anyOf", "oneOf"}, *const parts[] = {"if", "then", "else"};
  const char *name, *reference = json_string_value(json_object_get(schema, "$ref"));
  json_t *value;
  bool ok = true;
  if (!json_is_object(schema) || depth > DEPTH_MAX || f->n_looks++ > LOOKS_MAX) return true;
  json_object_foreach(json_object_get(schema, "properties"), name, value) {
    ok = note_type(f, name, bits_of(f, value, 0)) && ok;
  }
  const json_t *values = json_object_get(schema, "enum");
  for (size_t i = 0; i < json_array_size(values); i++) ok = note_members(f, json_array_get(values, i)) && ok;
  ok = note_members(f, json_object_get(schema, "const")) && ok;
  const json_t *more = json_object_get(schema, "additionalProperties");
  bool plain = more == NULL || json_is_boolean(more) || bits_of(f, more, 0) == MAY_STRING;
  f->other = f->other || !plain || json_object_size(json_object_get(schema, "patternProperties")) > 0;
  if (reference != NULL) ok = collect_types(f, find_target(f, reference), depth + 1) && ok;
  for (size_t k = 0; k < 3; k++) {
    const json_t *list = json_object_get(schema, lists[k]);
    for (size_t i = 0; i < json_array_size(list); i++) ok = collect_types(f, json_array_get(list, i), depth + 1) && ok;
    ok = collect_types(f, json_object_get(schema, parts[k]), depth + 1) && ok;
  }
  json_object_foreach(json_object_get(schema, "dependentSchemas"), name, value) {
    ok = collect_types(f, value, depth + 1) && ok;
  }
  return ok;
}

weft_status weft_callable_types(const char *parameters, weft_text *out) {
  type_finder f = {.properties = json_object()};
  const char *name;
  json_t *bits;
  f.root = parameters == NULL ? NULL : weft_json_read(parameters, strlen(parameters), 0, NULL);
  bool ok = f.properties != NULL && collect_types(&f, f.root, 0);
  if (f.other) weft_text_append(out, "o", 2);
  json_object_foreach(f.properties, name, bits) {
    uint32_t may = (uint32_t)json_integer_value(bits);
    char letter = may == MAY_STRING ? 's' : may == (MAY_STRING | MAY_NULL) ? 'n' : 'v';
    if (letter == 's' && !f.other) continue;
    weft_text_append(out, &letter, 1);
    weft_text_append(out, name, strlen(name) + 1);
  }
  json_decref(f.properties);
  json_decref(f.root);
  weft_text_append(out, "", 1); /* a byte that is no letter ends the list: others may follow in *out */
  return ok ? weft_text_status(out) : WEFT_E_NO_MEMORY;
}

weft_callable_kind weft_callable_reads(const char *types, const char *name, size_t n) {
  weft_callable_kind otherwise = WEFT_CALLABLE_TEXT;
  for (const char *at = types; at != NULL && *at != 0; at += strlen(at) + 1) {
    if (*at == 'o') otherwise = WEFT_CALLABLE_VALUE;
    if (*at == 'o' || strlen(at + 1) != n || memcmp(at + 1, name, n) != 0) continue;
    return *at == 'v' ? WEFT_CALLABLE_VALUE : *at == 'n' ? WEFT_CALLABLE_TEXT_OR_NULL : WEFT_CALLABLE_TEXT;
  }
  return otherwise;
}
