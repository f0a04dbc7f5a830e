/* SPDX-License-Identifier: MIT */
#include "bench/prove/schema.h"

#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 32, PLACE_MAX = 256 };

typedef struct check_job {
  const json_t *root; /* of the schema */
  weft_text *why;
  char place[PLACE_MAX]; /* of the value that is looked at, as a JSON pointer */
  uint32_t depth;
} check_job;

static bool check_value(check_job *job, const json_t *schema, const json_t *value);

static bool refuse_value(check_job *job, const char *what, const char *name) {
  weft_text_clear(job->why);
  weft_text_printf(job->why, "%s: ", job->place[0] != 0 ? job->place : "/");
  weft_text_printf(job->why, what, name);
  return false;
}

static const char *name_type(const json_t *value) {
  switch (json_typeof(value)) {
    case JSON_OBJECT:
      return "object";
    case JSON_ARRAY:
      return "array";
    case JSON_STRING:
      return "string";
    case JSON_INTEGER:
      return "integer";
    case JSON_REAL:
      return "number";
    case JSON_NULL:
      return "null";
    default:
      return "boolean";
  }
}

static bool is_type(const json_t *value, const char *type) {
  const char *name = name_type(value);
  return strcmp(name, type) == 0 || (strcmp(type, "number") == 0 && json_is_integer(value));
}

static bool check_type(check_job *job, const json_t *type, const json_t *value) {
  char list[128] = "";
  size_t n = 0;
  bool good = json_is_string(type) && is_type(value, json_string_value(type));
  if (json_is_string(type)) (void)snprintf(list, sizeof list, "%s", json_string_value(type));
  for (size_t i = 0; i < json_array_size(type); i++) {
    const char *one = json_string_value(json_array_get(type, i));
    good = good || (one != NULL && is_type(value, one));
    int length = snprintf(list + n, sizeof list - n, "%s%s", i > 0 ? " or " : "", one != NULL ? one : "?");
    if (length > 0 && n + (size_t)length < sizeof list) n += (size_t)length;
  }
  return good || refuse_value(job, "it must be of the type %s", list);
}

static bool check_enum(check_job *job, const json_t *list, const json_t *value) {
  for (size_t i = 0; i < json_array_size(list); i++) {
    if (json_equal(json_array_get(list, i), value)) return true;
  }
  char *text = json_dumps(list, JSON_COMPACT | JSON_ENCODE_ANY);
  (void)refuse_value(job, "it must be one of %s", text != NULL ? text : "its list");
  free(text);
  return false;
}

static bool check_const(check_job *job, const json_t *wanted, const json_t *value) {
  if (json_equal(wanted, value)) return true;
  char *text = json_dumps(wanted, JSON_COMPACT | JSON_ENCODE_ANY);
  (void)refuse_value(job, "it must be %s", text != NULL ? text : "another value");
  free(text);
  return false;
}

static bool check_bound(check_job *job, const char *word, const json_t *bound, const json_t *value) {
  char text[64];
  bool least = strcmp(word, "minimum") == 0;
  if (!json_is_number(value)) return true;
  double number = json_number_value(value), limit = json_number_value(bound);
  if (least ? number >= limit : number <= limit) return true;
  (void)snprintf(text, sizeof text, "at %s %g", least ? "least" : "most", limit);
  return refuse_value(job, "it must be %s", text);
}

/* Goes one name deeper, looks at the value there, and comes back. */
static bool check_inside(check_job *job, const json_t *schema, const char *name, const json_t *value) {
  size_t n = strlen(job->place);
  (void)snprintf(job->place + n, sizeof job->place - n, "/%s", name); /* a longer place is cut, for people alone */
  bool good = check_value(job, schema, value);
  job->place[n] = 0;
  return good;
}

static bool check_members(check_job *job, const json_t *schema, const json_t *value) {
  const json_t *known = json_object_get(schema, "properties"), *more = json_object_get(schema, "additionalProperties");
  const json_t *required = json_object_get(schema, "required");
  const char *name;
  json_t *member;
  for (size_t i = 0; i < json_array_size(required); i++) {
    const char *wanted = json_string_value(json_array_get(required, i));
    if (wanted != NULL && json_object_get(value, wanted) == NULL) return refuse_value(job, "'%s' is missing", wanted);
  }
  json_object_foreach((json_t *)(uintptr_t)value, name, member) {
    const json_t *rule = json_object_get(known, name);
    if (rule == NULL && json_is_false(more)) return refuse_value(job, "the name '%s' is unknown", name);
    if (rule == NULL) rule = more;
    if (json_is_object(rule) && !check_inside(job, rule, name, member)) return false;
  }
  return true;
}

static bool check_items(check_job *job, const json_t *items, const json_t *value) {
  char name[24];
  for (size_t i = 0; i < json_array_size(value); i++) {
    (void)snprintf(name, sizeof name, "%zu", i);
    if (!check_inside(job, items, name, json_array_get(value, i))) return false;
  }
  return true;
}

static bool check_reference(check_job *job, const json_t *reference, const json_t *value) {
  const char *name = json_string_value(reference);
  const json_t *schema = NULL;
  if (name != NULL && strncmp(name, "#/$defs/", 8) == 0)
    schema = json_object_get(json_object_get(job->root, "$defs"), name + 8);
  if (schema == NULL)
    return refuse_value(job, "the schema refers to '%s', which it has not", name != NULL ? name : "?");
  return check_value(job, schema, value);
}

/* Exactly one of the list; the line is that of the last one. */
static bool check_one_of(check_job *job, const json_t *list, const json_t *value) {
  size_t n_good = 0;
  for (size_t i = 0; i < json_array_size(list); i++) n_good += check_value(job, json_array_get(list, i), value);
  if (n_good == 1) return true;
  return n_good == 0 ? false : refuse_value(job, "it fits %s of the forms that exclude each other", "several");
}

static bool check_length(check_job *job, const char *word, const json_t *least, const json_t *value) {
  bool list = strcmp(word, "minItems") == 0;
  if (list ? !json_is_array(value) : !json_is_string(value)) return true;
  size_t n = list ? json_array_size(value) : json_string_length(value);
  return n >= (size_t)json_integer_value(least) || refuse_value(job, "it must not be %s", "empty");
}

static bool check_word(check_job *job, const json_t *schema, const char *word, const json_t *rule,
                       const json_t *value) {
  if (strcmp(word, "type") == 0) return check_type(job, rule, value);
  if (strcmp(word, "enum") == 0) return check_enum(job, rule, value);
  if (strcmp(word, "const") == 0) return check_const(job, rule, value);
  if (strcmp(word, "minimum") == 0 || strcmp(word, "maximum") == 0) return check_bound(job, word, rule, value);
  if (strcmp(word, "minItems") == 0 || strcmp(word, "minLength") == 0) return check_length(job, word, rule, value);
  if (strcmp(word, "items") == 0) return check_items(job, rule, value);
  if (strcmp(word, "oneOf") == 0) return check_one_of(job, rule, value);
  if (strcmp(word, "$ref") == 0) return check_reference(job, rule, value);
  if (strcmp(word, "properties") == 0) return !json_is_object(value) || check_members(job, schema, value);
  if (word[0] == '$' || strcmp(word, "description") == 0 || strcmp(word, "required") == 0) return true;
  if (strcmp(word, "additionalProperties") == 0)
    return json_object_get(schema, "properties") != NULL || !json_is_object(value) || check_members(job, schema, value);
  return refuse_value(job, "the schema has the keyword '%s', which is not known here", word);
}

static bool check_value(check_job *job, const json_t *schema, const json_t *value) {
  const char *word;
  json_t *rule;
  bool good = true;
  if (value == NULL) return refuse_value(job, "there is no %s", "value");
  if (job->depth == DEPTH_MAX) return refuse_value(job, "it is more than %s levels deep", "32");
  job->depth += 1;
  json_object_foreach((json_t *)(uintptr_t)schema, word, rule) {
    good = good && check_word(job, schema, word, rule, value);
  }
  job->depth -= 1;
  return good;
}

bool prove_schema_check(const json_t *schema, const json_t *value, weft_text *why) {
  check_job job = {.root = schema, .why = why};
  return check_value(&job, schema, value);
}
