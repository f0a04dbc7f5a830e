/* SPDX-License-Identifier: MIT */
/* What a body says of the format of the answer, by the names of OpenAI (response_format), vLLM (guided_*,
 * structured_outputs) and llama.cpp (grammar, json_schema): one of them at most. */
#include <string.h>

#include "api/dialects/fields.h"
#include "api/dialects/openai.h"

/* A place in the body that asks for a format. */
typedef struct format_field {
  const char *name;
  weft_format format;
} format_field;

static weft_status set_text(weft_gen *gen, const char *field, weft_format format, const char *text, size_t n,
                            weft_refusal *why) {
  if (gen->params.format != WEFT_FORMAT_ANY) {
    return weft_refuse(why, 400, "invalid_value", field, "%s: the body asks for the format of the answer twice", field);
  }
  gen->params.format = format;
  gen->params.format_text = text;
  gen->params.n_format_text = n;
  return WEFT_OK;
}

/* A value of the body as the text of a format: strings as they are, all else as JSON. */
weft_status weft_openai_set_format(weft_gen *gen, const char *field, weft_format format, const json_t *value,
                                   weft_refusal *why) {
  if (format == WEFT_FORMAT_JSON_OBJECT) return set_text(gen, field, format, "", 0, why);
  if (json_is_string(value) && (format != WEFT_FORMAT_CHOICE)) {
    return set_text(gen, field, format, json_string_value(value), json_string_length(value), why);
  }
  bool schema = format == WEFT_FORMAT_JSON_SCHEMA && (json_is_object(value) || json_is_boolean(value));
  if (!schema && !(format == WEFT_FORMAT_CHOICE && json_is_array(value))) {
    return weft_refuse(why, 400, "invalid_value", field, "%s must be %s", field,
                       format == WEFT_FORMAT_JSON_SCHEMA ? "a JSON schema"
                       : format == WEFT_FORMAT_CHOICE    ? "a list of texts"
                                                         : "a text");
  }
  const char *text;
  weft_status status = field_json(gen, value, &text, why);
  return status == WEFT_OK ? set_text(gen, field, format, text, strlen(text), why) : status;
}

/* OpenAI's: {"type":"text"|"json_object"|"json_schema","json_schema":{"name","strict","schema"}}. */
static weft_status read_response_format(weft_gen *gen, const json_t *format, weft_refusal *why) {
  static const char field[] = "response_format";
  const char *type = json_string_value(json_object_get(format, "type"));
  if (type == NULL) return weft_refuse(why, 400, "invalid_value", field, "%s must be an object with a type", field);
  if (strcmp(type, "text") == 0) return WEFT_OK;
  if (strcmp(type, "json_object") == 0) {
    const json_t *schema = field_of(format, "schema"); /* as llama.cpp has it */
    if (schema != NULL)
      return weft_openai_set_format(gen, "response_format.schema", WEFT_FORMAT_JSON_SCHEMA, schema, why);
    return set_text(gen, field, WEFT_FORMAT_JSON_OBJECT, "", 0, why);
  }
  if (strcmp(type, "json_schema") != 0) {
    return weft_refuse(why, 400, "unsupported", field,
                       "%s of type '%.32s' is not supported: it may be text, json_object or json_schema", field, type);
  }
  const json_t *schema = field_of(field_of(format, "json_schema"), "schema");
  if (schema == NULL) {
    return weft_refuse(why, 400, "invalid_value", "response_format.json_schema.schema",
                       "response_format.json_schema must be an object with a schema");
  }
  return weft_openai_set_format(gen, "response_format.json_schema.schema", WEFT_FORMAT_JSON_SCHEMA, schema, why);
}

/* vLLM's: an object with one of json, regex, choice, grammar, json_object. */
static weft_status read_structured(weft_gen *gen, const json_t *object, weft_refusal *why) {
  static const format_field rows[] = {{"json", WEFT_FORMAT_JSON_SCHEMA},
                                      {"regex", WEFT_FORMAT_REGEX},
                                      {"choice", WEFT_FORMAT_CHOICE},
                                      {"grammar", WEFT_FORMAT_GBNF}};
  const char *key;
  json_t *value;
  if (!json_is_object(object)) {
    return weft_refuse(why, 400, "invalid_value", "structured_outputs", "structured_outputs must be an object");
  }
  weft_status status = WEFT_OK;
  json_object_foreach((json_t *)object, key, value) {
    const format_field *row = NULL;
    char field[64];
    (void)snprintf(field, sizeof field, "structured_outputs.%.40s", key);
    if (json_is_null(value) || json_is_false(value)) continue;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
      if (strcmp(rows[i].name, key) == 0) row = &rows[i];
    }
    if (strcmp(key, "json_object") == 0 && json_is_true(value)) {
      status = set_text(gen, field, WEFT_FORMAT_JSON_OBJECT, "", 0, why);
    } else if (row == NULL) {
      status = weft_refuse(why, 400, "unsupported", field,
                           "%s is not supported: structured_outputs has json, json_object, regex, choice and grammar",
                           field);
    } else {
      status = weft_openai_set_format(gen, field, row->format, value, why);
    }
    if (status != WEFT_OK) return status;
  }
  return status;
}

weft_status weft_openai_format(weft_gen *gen, const json_t *root, weft_refusal *why) {
  static const format_field rows[] = {{"guided_json", WEFT_FORMAT_JSON_SCHEMA}, {"guided_regex", WEFT_FORMAT_REGEX},
                                      {"guided_choice", WEFT_FORMAT_CHOICE},    {"guided_grammar", WEFT_FORMAT_GBNF},
                                      {"json_schema", WEFT_FORMAT_JSON_SCHEMA}, {"grammar", WEFT_FORMAT_GBNF}};
  const json_t *format = field_of(root, "response_format"), *structured = field_of(root, "structured_outputs");
  weft_status status = format == NULL ? WEFT_OK : read_response_format(gen, format, why);
  if (status == WEFT_OK && structured != NULL) status = read_structured(gen, structured, why);
  for (size_t i = 0; i < sizeof rows / sizeof *rows && status == WEFT_OK; i++) {
    const json_t *value = field_of(root, rows[i].name);
    bool nothing = value == NULL || (json_is_string(value) && json_string_length(value) == 0);
    if (!nothing) status = weft_openai_set_format(gen, rows[i].name, rows[i].format, value, why);
  }
  return status;
}
