/* SPDX-License-Identifier: MIT */
/* POST /admin/prefixes/save and /admin/prefixes/load: {"name": "monday"}, or for save no body. */
#include <jansson.h>
#include <string.h>

#include "api/dialects/fields.h"
#include "api/server/router.h"
#include "base/log.h"

/* The one field that there is; *name stays NULL without it. It lives as long as root. */
static weft_status read_name(const json_t *root, const char **name, weft_refusal *why) {
  const char *key;
  json_t *value;
  if (!json_is_object(root)) return weft_refuse(why, 400, "invalid_value", NULL, "the body must be a JSON object");
  json_object_foreach((json_t *)root, key, value) {
    if (strcmp(key, "name") != 0)
      return weft_refuse(why, 400, "invalid_value", key, "%.32s is unknown; there is name alone", key);
    if (json_is_null(value)) continue;
    *name = json_string_value(value);
    if (*name == NULL) return weft_refuse(why, 400, "invalid_value", key, "name must be a string");
  }
  return WEFT_OK;
}

static weft_status refuse_code(weft_refusal *why, int code, const char *line) {
  if (code == WEFT_E_INVALID) return weft_refuse(why, 400, "invalid_value", "name", "%s", line);
  if (code == WEFT_E_UNSUPPORTED) return weft_refuse(why, 409, "prefixes_not_kept", NULL, "%s", line);
  return weft_refuse(why, code == WEFT_E_NO_MEMORY ? 503 : 500, "prefixes_not_kept", NULL, "%s", line);
}

static void answer_counts(weft_exchange *x, const char *what, const weft_kept_counts *counts) {
  const weft_log_field fields[] = {weft_log_number("blocks", counts->blocks), weft_log_number("bytes", counts->bytes)};
  const weft_log_event event = {"prefixes", what, fields, 2};
  weft_text body = {0};
  weft_log_tell(WEFT_LOG_NOTICE, &event);
  weft_text_printf(&body, "{\"blocks\":%llu,\"bytes\":%llu}", (unsigned long long)counts->blocks,
                   (unsigned long long)counts->bytes);
  weft_exchange_answer(x, 200, "application/json", &body);
}

static void handle_prefixes(weft_server *s, weft_exchange *x, bool loads) {
  weft_refusal why;
  json_t *root = NULL;
  const char *name = NULL;
  char line[512] = "";
  size_t n;
  weft_kept_counts counts;
  const char *bytes = weft_exchange_body(x, &n);
  weft_status status = n == 0 ? WEFT_OK : weft_body_load(bytes, n, &s->body_rules.json, &root, &why);
  if (status == WEFT_OK && root != NULL) status = read_name(root, &name, &why);
  if (status == WEFT_OK && loads && name == NULL)
    status = weft_refuse(&why, 400, "invalid_value", "name", "name the copy: {\"name\": \"monday\"}");
  if (status == WEFT_OK) {
    int code = loads ? weft_prefixes_load(s->runtime, name, &counts, line, sizeof line)
                     : weft_prefixes_save(s->runtime, name, &counts, line, sizeof line);
    if (code != 0) status = refuse_code(&why, code, line);
  }
  if (status == WEFT_OK)
    answer_counts(x, loads ? "loaded" : "saved", &counts);
  else
    weft_exchange_refuse(x, &why);
  json_decref(root);
}

void weft_handle_save_prefixes(weft_server *s, weft_exchange *x) {
  handle_prefixes(s, x, false);
}

void weft_handle_load_prefixes(weft_server *s, weft_exchange *x) {
  handle_prefixes(s, x, true);
}
