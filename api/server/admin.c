/* SPDX-License-Identifier: MIT */
#include "api/server/admin.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "api/dialects/openai.h"
#include "api/json.h"
#include "api/server/router.h"
#include "base/log.h"
#include "base/memory.h"

enum { PINS_LISTED_MAX = 4096 };

/* ---- one pin as JSON ------------------------------------------------------------------------- */

static weft_status refuse_value(weft_refusal *why, const char *field, const char *must_be) {
  return weft_refuse(why, 400, "invalid_value", field, "%s must be %s", field, must_be);
}

static weft_status read_number(const json_t *value, const char *field, json_int_t low, json_int_t high, json_int_t *out,
                               weft_refusal *why) {
  if (field_whole(value, out) && *out >= low && *out <= high) return WEFT_OK;
  return weft_refuse(why, 400, "invalid_value", field,
                     "%s must be a whole number from %" JSON_INTEGER_FORMAT " to %" JSON_INTEGER_FORMAT, field, low,
                     high);
}

static weft_status read_tenant(const weft_keys *keys, const json_t *value, uint32_t *out, weft_refusal *why) {
  const char *name = json_string_value(value);
  if (name == NULL) return refuse_value(why, "tenant", "a tenant's name");
  if (keys != NULL && weft_keys_find_tenant(keys, name, out)) return WEFT_OK;
  return weft_refuse(why, 400, "invalid_value", "tenant", "no tenant is named '%.64s'", name);
}

/* One field. What a prompt names lives in gen. */
static weft_status read_field(const weft_keys *keys, const char *key, const json_t *value, weft_prefix *p,
                              weft_gen *gen, weft_refusal *why) {
  json_int_t number = 0;
  weft_status status = WEFT_OK;
  if (strcmp(key, "model") == 0) {
    p->model = json_string_value(value);
    return p->model == NULL ? refuse_value(why, key, "a string") : WEFT_OK;
  }
  if (strcmp(key, "public") == 0 || strcmp(key, "thinking") == 0) {
    if (!json_is_boolean(value)) return refuse_value(why, key, "true or false");
    *(key[0] == 'p' ? &p->is_public : &p->prompt.thinking) = json_is_true(value);
    return WEFT_OK;
  }
  if (strcmp(key, "tenant") == 0) return read_tenant(keys, value, &p->tenant, why);
  if (strcmp(key, "ttl_seconds") == 0) {
    status = read_number(value, key, 1, UINT32_MAX, &number, why);
    p->ttl_seconds = (uint32_t)number;
    return status;
  }
  if (strcmp(key, "priority") == 0) {
    status = read_number(value, key, -100, 100, &number, why);
    p->priority = (int32_t)number;
    return status;
  }
  if (strcmp(key, "text") == 0) {
    p->prompt.text = json_string_value(value);
    p->prompt.n_text = json_string_length(value);
    return p->prompt.text == NULL ? refuse_value(why, key, "a string") : WEFT_OK;
  }
  if (strcmp(key, "tokens") == 0) return field_ids(gen, value, key, &p->prompt, why);
  if (strcmp(key, "messages") == 0) return weft_openai_messages(gen, value, &p->prompt, why);
  if (strcmp(key, "tools") == 0) return weft_openai_tools(gen, value, NULL, &p->prompt, why);
  return weft_refuse(why, 400, "invalid_value", key,
                     "%.32s is unknown; a pin has model, tenant, public, ttl_seconds, priority, "
                     "thinking, and one of text, tokens and messages with tools",
                     key);
}

static weft_status read_pin(const weft_keys *keys, const json_t *root, weft_prefix *p, weft_gen *gen,
                            weft_refusal *why) {
  const char *key;
  json_t *value;
  if (!json_is_object(root)) return refuse_value(why, "a pin", "a JSON object");
  json_object_foreach((json_t *)root, key, value) {
    if (json_is_null(value)) continue;
    weft_status status = read_field(keys, key, value, p, gen, why);
    if (status != WEFT_OK) return status;
  }
  bool named = json_is_string(json_object_get(root, "tenant"));
  if (keys != NULL && named == p->is_public) {
    return weft_refuse(why, 400, "invalid_value", "tenant", "name the tenant that finds it, or say \"public\": true");
  }
  return WEFT_OK;
}

static void tell_pin(uint32_t id, const char *text) {
  const weft_log_field field = weft_log_number("id", id);
  const weft_log_event event = {"pin", text, &field, 1};
  weft_log_tell(WEFT_LOG_INFO, &event);
}

/* operator: the tenant that computes public prefixes. */
static weft_status declare_one(weft_runtime *rt, const weft_keys *keys, uint32_t operator, const json_t * root,
                               uint32_t *id, weft_refusal *why) {
  weft_gen gen = {0};
  weft_prefix p = {.tenant = operator};
  char line[512];
  weft_status status = read_pin(keys, root, &p, &gen, why);
  if (status == WEFT_OK) {
    int code = weft_pin(rt, &p, id, line, sizeof line);
    if (code == WEFT_FULL || code == WEFT_RATE_LIMIT || code == WEFT_E_TOO_LARGE || code == WEFT_E_LIMIT) {
      status = weft_refuse(why, 409, "no_room", NULL, "%s", line);
    } else if (code != 0) {
      status = weft_refuse_status(why, code, line, false);
    }
  }
  if (status == WEFT_OK) tell_pin(*id, p.is_public ? "public" : "of one tenant");
  weft_gen_close(&gen);
  return status;
}

/* ---- files ----------------------------------------------------------------------------------- */

static uint32_t operator_of(const weft_keys *keys) {
  for (uint32_t i = 0; keys != NULL && i < weft_keys_n_tenants(keys); i++) {
    if (weft_keys_is_operator(keys, i)) return i;
  }
  return 0;
}

/* A JSON file, with or without a mark before its text. */
static json_t *load_file(const char *path, json_error_t *bad) {
  char mark[3];
  FILE *file = fopen(path, "rb");
  if (file == NULL) return json_load_file(path, 0, bad); /* which says why it cannot be opened */
  if (weft_utf8_mark(mark, fread(mark, 1, sizeof mark, file)) == 0) rewind(file);
  json_t *root = json_loadf(file, 0, bad);
  (void)fclose(file); /* only read */
  return root;
}

weft_status weft_admin_pin_file(weft_runtime *rt, const weft_keys *keys, const char *path, weft_error *error) {
  json_error_t bad;
  json_t *root = load_file(path, &bad);
  if (root == NULL) {
    return weft_fail(error, WEFT_E_FORMAT, "%s:%d: %s", path, bad.line < 0 ? 0 : bad.line, bad.text);
  }
  weft_status status = WEFT_OK;
  size_t n = json_is_array(root) ? json_array_size(root) : 1;
  for (size_t i = 0; i < n && status == WEFT_OK; i++) {
    weft_refusal why;
    uint32_t id;
    const json_t *one = json_is_array(root) ? json_array_get(root, i) : root;
    status = declare_one(rt, keys, operator_of(keys), one, &id, &why);
    if (status != WEFT_OK) (void)weft_fail(error, status, "%s: pin %zu: %s", path, i, why.message);
  }
  json_decref(root);
  return status;
}

/* ---- endpoints ------------------------------------------------------------------------------- */

static weft_status refuse_now(weft_server *s, weft_refusal *why) {
  if (atomic_load(&s->draining)) return weft_refuse_status(why, WEFT_FULL, "", true);
  if (!atomic_load(&s->holds_pins)) return WEFT_OK;
  return weft_refuse(why, 503, "draining", NULL, "another server takes over, and this one's pins go to it: ask again");
}

void weft_handle_pin(weft_server *s, weft_exchange *x) {
  weft_refusal why;
  json_t *root = NULL;
  size_t n;
  uint32_t id = 0;
  const char *bytes = weft_exchange_body(x, &n);
  weft_status status = refuse_now(s, &why);
  if (status == WEFT_OK) status = weft_body_load(bytes, n, &s->body_rules.json, &root, &why);
  if (status == WEFT_OK) status = declare_one(s->runtime, s->keys, weft_exchange_note(x)->tenant, root, &id, &why);
  if (status == WEFT_OK) {
    weft_text body = {0};
    weft_text_printf(&body, "{\"id\":%u}", id);
    weft_exchange_answer(x, 200, "application/json", &body);
  } else {
    weft_exchange_refuse(x, &why);
  }
  json_decref(root);
}

static void put_pin(const weft_server *s, const weft_pin_card *pin, weft_text *out) {
  weft_text_printf(out, "{\"id\":%u,\"model\":", pin->id);
  weft_json_words(out, pin->model);
  weft_text_puts(out, ",\"tenant\":");
  if (pin->is_public || s->keys == NULL) {
    weft_text_puts(out, "null");
  } else {
    weft_json_words(out, weft_keys_tenant(s->keys, pin->tenant));
  }
  weft_text_printf(out, ",\"public\":%s,\"held\":%s,\"priority\":%d,\"tokens\":%u,\"pages\":%u",
                   pin->is_public ? "true" : "false", pin->held ? "true" : "false", pin->priority, pin->tokens,
                   pin->pages);
  weft_text_puts(out, ",\"ttl_seconds\":");
  if (pin->ttl_seconds == 0) {
    weft_text_puts(out, "null}");
  } else {
    weft_text_printf(out, "%u}", pin->ttl_seconds);
  }
}

void weft_handle_pins(weft_server *s, weft_exchange *x) {
  weft_text body = {0};
  weft_pin_card *pin = weft_alloc(PINS_LISTED_MAX, sizeof *pin);
  uint32_t n = pin == NULL ? 0 : weft_pins(s->runtime, pin, PINS_LISTED_MAX);
  weft_text_puts(&body, "{\"pins\":[");
  for (uint32_t i = 0; i < n; i++) {
    if (i > 0) weft_text_puts(&body, ",");
    put_pin(s, &pin[i], &body);
  }
  weft_text_puts(&body, "]}");
  body.refused = body.refused || pin == NULL; /* told as a 503 */
  weft_free(pin);
  weft_exchange_answer(x, 200, "application/json", &body);
}

void weft_handle_unpin(weft_server *s, weft_exchange *x) {
  const char *word = weft_exchange_path(x) + strlen("/admin/pins/");
  uint64_t id = 0;
  for (const char *c = word; *c >= '0' && *c <= '9' && id <= UINT32_MAX; c++) id = id * 10 + (uint64_t)(*c - '0');
  bool number = word[0] != 0 && word[strspn(word, "0123456789")] == 0 && id <= UINT32_MAX;
  if (atomic_load(&s->holds_pins)) {
    weft_refusal why;
    (void)refuse_now(s, &why);
    weft_exchange_refuse(x, &why);
    return;
  }
  if (!number || weft_unpin(s->runtime, (uint32_t)id) != 0) {
    weft_refusal why;
    (void)weft_refuse(&why, 404, "pin_not_found", NULL, "no pin has the number '%.32s': GET /admin/pins lists them",
                      word);
    weft_exchange_refuse(x, &why);
    return;
  }
  weft_text body = {0};
  weft_text_printf(&body, "{\"id\":%u,\"unpinned\":true}", (uint32_t)id);
  tell_pin((uint32_t)id, "ended by the operator");
  weft_exchange_answer(x, 200, "application/json", &body);
}

/* The path is vLLM's, and so is the meaning: what runs keeps its blocks, what only the cache holds is dropped. */
void weft_handle_reset_prefix_cache(weft_server *s, weft_exchange *x) {
  weft_text body = {0};
  weft_reset_prefix_cache(s->runtime);
  weft_text_puts(&body, "{\"reset\":true}");
  weft_log(WEFT_LOG_INFO, "the operator dropped the prefix cache");
  weft_exchange_answer(x, 200, "application/json", &body);
}
