/* SPDX-License-Identifier: MIT */
/* Whether a JSON value fits a schema, written plainly and apart from the code that compiles schemas. Patterns and
 * formats are left to tests/schemas/check.py. */
#ifndef WEFT_TESTS_SCHEMA_CHECK_H
#define WEFT_TESTS_SCHEMA_CHECK_H

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

static inline bool schema_check(const json_t *root, const json_t *schema, const json_t *value);

static inline bool schema_check_type(const char *type, const json_t *v) {
  double number = json_number_value(v);
  if (strcmp(type, "object") == 0) return json_is_object(v);
  if (strcmp(type, "array") == 0) return json_is_array(v);
  if (strcmp(type, "string") == 0) return json_is_string(v);
  if (strcmp(type, "number") == 0) return json_is_number(v);
  if (strcmp(type, "integer") == 0) return json_is_number(v) && number == floor(number);
  if (strcmp(type, "boolean") == 0) return json_is_boolean(v);
  return json_is_null(v);
}

static inline bool schema_check_types(const json_t *type, const json_t *v) {
  if (type == NULL) return true;
  if (json_is_string(type)) return schema_check_type(json_string_value(type), v);
  for (size_t i = 0; i < json_array_size(type); i++) {
    if (schema_check_type(json_string_value(json_array_get(type, i)), v)) return true;
  }
  return false;
}

static inline bool schema_check_numbers(const json_t *s, const json_t *v) {
  const json_t *low = json_object_get(s, "minimum"), *high = json_object_get(s, "maximum");
  const json_t *above = json_object_get(s, "exclusiveMinimum"), *below = json_object_get(s, "exclusiveMaximum");
  double x = json_number_value(v);
  if (!json_is_number(v)) return true;
  return (low == NULL || x >= json_number_value(low)) && (high == NULL || x <= json_number_value(high)) &&
         (above == NULL || x > json_number_value(above)) && (below == NULL || x < json_number_value(below));
}

static inline bool schema_check_size(const json_t *s, const char *least, const char *most, size_t n) {
  const json_t *low = json_object_get(s, least), *high = json_object_get(s, most);
  return (low == NULL || (double)n >= json_number_value(low)) && (high == NULL || (double)n <= json_number_value(high));
}

static inline bool schema_check_object(const json_t *root, const json_t *s, const json_t *v) {
  const json_t *properties = json_object_get(s, "properties"), *required = json_object_get(s, "required");
  const json_t *other = json_object_get(s, "additionalProperties");
  const char *name;
  json_t *member;
  for (size_t i = 0; i < json_array_size(required); i++) {
    if (json_object_get(v, json_string_value(json_array_get(required, i))) == NULL) return false;
  }
  json_object_foreach((json_t *)v, name, member) {
    const json_t *own = json_object_get(properties, name);
    if (own == NULL) own = other;
    if (own != NULL && !schema_check(root, own, member)) return false;
  }
  return schema_check_size(s, "minProperties", "maxProperties", json_object_size(v));
}

static inline bool schema_check_array(const json_t *root, const json_t *s, const json_t *v) {
  const json_t *prefix = json_object_get(s, "prefixItems"), *items = json_object_get(s, "items");
  for (size_t i = 0; i < json_array_size(v); i++) {
    const json_t *own = i < json_array_size(prefix) ? json_array_get(prefix, i) : items;
    if (own != NULL && !schema_check(root, own, json_array_get(v, i))) return false;
  }
  return schema_check_size(s, "minItems", "maxItems", json_array_size(v));
}

static inline size_t schema_check_length(const char *text) {
  size_t n = 0;
  for (; *text != 0; text++) n += ((unsigned char)*text & 0xC0) != 0x80 ? 1 : 0;
  return n;
}

static inline bool schema_check_values(const json_t *s, const json_t *v) {
  const json_t *one = json_object_get(s, "const"), *list = json_object_get(s, "enum");
  bool found = list == NULL;
  for (size_t i = 0; i < json_array_size(list) && !found; i++) found = json_equal(json_array_get(list, i), v);
  return found && (one == NULL || json_equal(one, v));
}

static inline bool schema_check_branches(const json_t *root, const json_t *s, const json_t *v) {
  static const char *const names[] = {"allOf", "anyOf", "oneOf"};
  for (int k = 0; k < 3; k++) {
    const json_t *list = json_object_get(s, names[k]);
    size_t n = json_array_size(list), n_fit = 0;
    for (size_t i = 0; i < n; i++) n_fit += schema_check(root, json_array_get(list, i), v) ? 1 : 0;
    if (list != NULL && (k == 0 ? n_fit != n : k == 1 ? n_fit == 0 : n_fit != 1)) return false;
  }
  return true;
}

/* References to "#" and "#/$defs/name". */
static inline bool schema_check(const json_t *root, const json_t *s, const json_t *v) {
  if (json_is_boolean(s)) return json_is_true(s);
  const char *reference = json_string_value(json_object_get(s, "$ref"));
  if (reference != NULL) {
    const json_t *target = root;
    if (strlen(reference) > 8) target = json_object_get(json_object_get(root, "$defs"), reference + 8);
    if (!schema_check(root, target, v)) return false;
  }
  if (!schema_check_types(json_object_get(s, "type"), v) || !schema_check_values(s, v)) return false;
  if (!schema_check_numbers(s, v) || !schema_check_branches(root, s, v)) return false;
  if (json_is_object(v) && !schema_check_object(root, s, v)) return false;
  if (json_is_array(v) && !schema_check_array(root, s, v)) return false;
  return !json_is_string(v) ||
         schema_check_size(s, "minLength", "maxLength", schema_check_length(json_string_value(v)));
}

#endif
