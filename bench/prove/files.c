/* SPDX-License-Identifier: MIT */
#include "bench/prove/files.h"

#include <string.h>

#include "bench/prove/child.h"
#include "bench/prove/schema.h"

static weft_status read_json(const char *path, json_t **out, weft_error *error) {
  json_error_t why;
  *out = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
  if (*out != NULL) return WEFT_OK;
  if (why.line < 0) return weft_fail(error, WEFT_E_NOT_FOUND, "%s", why.text);
  return weft_fail(error, WEFT_E_FORMAT, "%s:%d:%d: %s", path, why.line, why.column, why.text);
}

static weft_status hold_to_schema(const char *folder, const char *kind, const json_t *value, const char *path,
                                  weft_error *error) {
  char name[PROVE_PATH_MAX];
  json_t *schema = NULL;
  weft_text why = {0};
  (void)snprintf(name, sizeof name, "%s/schemas/%s.json", folder, kind);
  weft_status status = read_json(name, &schema, error);
  if (status == WEFT_OK && !prove_schema_check(schema, value, &why))
    status = weft_fail(error, WEFT_E_FORMAT, "%s: %s", path, why.n > 0 ? why.bytes : "no memory to say what is wrong");
  weft_text_free(&why);
  json_decref(schema);
  return status;
}

static weft_status read_held(const char *folder, const char *kind, const char *path, json_t **out, weft_error *error) {
  weft_status status = read_json(path, out, error);
  if (status == WEFT_OK) status = hold_to_schema(folder, kind, *out, path, error);
  if (status != WEFT_OK) {
    json_decref(*out);
    *out = NULL;
  }
  return status;
}

weft_status prove_file_read(const char *folder, const char *kind, const char *name, json_t **out, weft_error *error) {
  char path[PROVE_PATH_MAX];
  *out = NULL;
  int n = strchr(name, '/') != NULL ? snprintf(path, sizeof path, "%s", name)
                                    : snprintf(path, sizeof path, "%s/%s/%s.json", folder, kind, name);
  if (n < 0 || (size_t)n >= sizeof path) return weft_fail(error, WEFT_E_TOO_LARGE, "%s: the name is too long", name);
  return read_held(folder, kind, path, out, error);
}

weft_status prove_report_read(const char *folder, const char *path, json_t **out, weft_error *error) {
  return read_held(folder, "reports", path, out, error);
}

weft_status prove_report_check(const char *folder, const json_t *report, weft_error *error) {
  return hold_to_schema(folder, "reports", report, "the report", error);
}

const char *prove_text(const json_t *object, const char *name, const char *other) {
  const char *text = json_string_value(json_object_get(object, name));
  return text != NULL ? text : other;
}

uint64_t prove_number(const json_t *object, const char *name, uint64_t other) {
  const json_t *number = json_object_get(object, name);
  return json_is_integer(number) && json_integer_value(number) >= 0 ? (uint64_t)json_integer_value(number) : other;
}

bool prove_flag(const json_t *object, const char *name) {
  return json_is_true(json_object_get(object, name));
}
