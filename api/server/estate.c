/* SPDX-License-Identifier: MIT */
#include "api/server/estate.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "api/dialects/context.h"
#include "api/json.h"
#include "api/tenants.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

enum { FORM = 1, PINS_MAX = 4096 };

/* What was told of a tenant. */
typedef struct told_tenant {
  int64_t n_taken; /* tokens, as the account counts them */
  bool tokens;     /* any part has told of them */
} told_tenant;

struct weft_estate {
  weft_server *server;
  weft_runtime *runtime;
  uint64_t number;   /* of responses */
  uint32_t last_pin; /* pins up to this number are told, or of files */
  bool any;          /* a part was written */
  told_tenant tenant[WEFT_TENANTS_MAX + 1];
};

weft_status weft_estate_open(weft_server *server, uint32_t first_pin, weft_estate **out, weft_error *error) {
  weft_estate *e = *out = weft_alloc(1, sizeof *e);
  if (e == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory to hand over");
  e->server = server;
  e->runtime = server->runtime;
  e->last_pin = first_pin - 1;
  return WEFT_OK;
}

void weft_estate_close(weft_estate *e) {
  if (e == NULL) return;
  weft_responses_forget(e->server->responses);
  weft_free(e);
}

static uint32_t count_tenants(weft_runtime *rt) {
  uint32_t n = weft_tenants_count(rt);
  return n < WEFT_TENANTS_MAX ? n : WEFT_TENANTS_MAX;
}

bool weft_estate_has_news(weft_estate *e) {
  if (!e->any || weft_responses_number(e->server->responses) > e->number) return true;
  for (uint32_t i = 0; i < count_tenants(e->runtime); i++) {
    weft_tenant_left left = weft_replicas_get_tenant_left(e->runtime->replicas, i, weft_clock_us());
    if (left.tokens_max > 0 && left.tokens_taken != e->tenant[i].n_taken) return true;
  }
  return false;
}

/* ---- writing ---- */

static void begin_one(weft_text *out, bool *first) {
  weft_text_puts(out, *first ? "{\"tenant\":" : ",{\"tenant\":");
  *first = false;
}

/* At first what the bucket lacks, then what was taken since. */
static void write_tokens(weft_estate *e, told_tenant *told, weft_text *out) {
  bool first = true;
  for (uint32_t i = 0; i < count_tenants(e->runtime); i++) {
    weft_tenant_left left = weft_replicas_get_tenant_left(e->runtime->replicas, i, weft_clock_us());
    int64_t n = told[i].tokens ? left.tokens_taken - told[i].n_taken : (int64_t)left.tokens_lacking;
    if (left.tokens_max == 0) continue;
    told[i] = (told_tenant){.n_taken = left.tokens_taken, .tokens = true};
    if (n == 0) continue;
    begin_one(out, &first);
    weft_json_words(out, e->runtime->tenant_name[i]);
    weft_text_printf(out, ",\"tokens\":%" PRId64 "}", n);
  }
}

static const weft_served_model *model_named(weft_runtime *rt, const char *name) {
  for (uint32_t i = 0; i < rt->n_served; i++) {
    if (strcmp(rt->model[i].name, name) == 0) return &rt->model[i];
  }
  return NULL;
}

static void put_fingerprint(const weft_served_model *m, char out[33]) {
  const weft_model_info *info = weft_model_get_info(m->model);
  (void)snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, info->fingerprint_high, info->fingerprint_low);
}

static void write_pin(weft_estate *e, const weft_pin_card *pin, bool *first, weft_text *out) {
  const weft_served_model *m = model_named(e->runtime, pin->model);
  int32_t *tokens = NULL;
  uint32_t n = 0;
  char print[33];
  weft_status status = weft_replicas_copy_pin(e->runtime->replicas, pin->id, &tokens, &n);
  out->refused = out->refused || status == WEFT_E_NO_MEMORY;
  if (status != WEFT_OK || m == NULL) return; /* it has ended */
  put_fingerprint(m, print);
  begin_one(out, first);
  weft_json_words(out, e->runtime->tenant_name[pin->tenant]);
  weft_text_puts(out, ",\"model\":");
  weft_json_words(out, pin->model);
  weft_text_printf(
      out, ",\"fingerprint\":\"%s\",\"id\":%u,\"public\":%s,\"priority\":%d,\"ttl_seconds\":%u,\"tokens\":", print,
      pin->id, pin->is_public ? "true" : "false", pin->priority, pin->ttl_seconds);
  weft_json_ids(out, tokens, n);
  weft_text_puts(out, "}");
  weft_free(tokens);
}

static void write_pins(weft_estate *e, uint32_t *last, weft_text *out) {
  weft_pin_card *pin = weft_alloc(PINS_MAX, sizeof *pin);
  uint32_t n = pin == NULL ? 0 : weft_pins(e->runtime, pin, PINS_MAX);
  bool first = true;
  out->refused = out->refused || pin == NULL;
  for (uint32_t i = 0; i < n; i++) {
    if (pin[i].id <= e->last_pin) continue;
    write_pin(e, &pin[i], &first, out);
    *last = pin[i].id;
  }
  weft_free(pin);
}

static void write_responses(weft_estate *e, uint64_t until, weft_text *out) {
  bool first = true;
  for (uint32_t i = 0; i < count_tenants(e->runtime); i++) {
    uint64_t at = e->number;
    weft_response_copy one;
    while (weft_responses_next(e->server->responses, i, &at, &one)) {
      out->refused = out->refused || one.id.refused || one.body.refused || one.items.refused;
      if (at <= until && !out->refused) {
        begin_one(out, &first);
        weft_json_words(out, e->runtime->tenant_name[i]);
        weft_text_puts(out, ",\"id\":");
        weft_json_string(out, one.id.bytes, one.id.n);
        if (!one.deleted) weft_text_puts(out, ",\"body\":");
        if (!one.deleted) weft_json_string(out, one.body.bytes, one.body.n);
        if (!one.deleted) weft_text_puts(out, ",\"items\":");
        if (!one.deleted) weft_json_string(out, one.items.bytes, one.items.n);
        weft_text_puts(out, "}");
      }
      weft_text_free(&one.id);
      weft_text_free(&one.body);
      weft_text_free(&one.items);
      if (at > until || out->refused) break;
    }
  }
}

weft_status weft_estate_write(weft_estate *e, weft_text *out, weft_error *error) {
  uint64_t until = weft_responses_number(e->server->responses);
  uint32_t last = e->last_pin;
  told_tenant *told = weft_alloc(WEFT_TENANTS_MAX, sizeof *told);
  if (told == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory to hand over");
  memcpy(told, e->tenant, WEFT_TENANTS_MAX * sizeof *told);
  weft_text_printf(out, "{\"weft_estate\":%d,\"tokens\":[", FORM);
  write_tokens(e, told, out);
  weft_text_puts(out, "],\"pins\":[");
  write_pins(e, &last, out);
  weft_text_puts(out, "],\"responses\":[");
  write_responses(e, until, out);
  weft_text_puts(out, "]}");
  weft_status status = weft_text_status(out);
  if (status == WEFT_OK) {
    e->any = true;
    e->number = until;
    e->last_pin = last;
    memcpy(e->tenant, told, WEFT_TENANTS_MAX * sizeof *told);
  }
  weft_free(told);
  return status == WEFT_OK ? status : weft_fail(error, status, "no memory to hand over");
}

/* ---- taking: judged, then used ---- */

static bool is_text(const json_t *object, const char *name) {
  const json_t *value = json_object_get(object, name);
  return json_is_string(value) && strlen(json_string_value(value)) == json_string_length(value);
}

static bool is_number(const json_t *object, const char *name, json_int_t low, json_int_t high) {
  const json_t *value = json_object_get(object, name);
  return json_is_integer(value) && json_integer_value(value) >= low && json_integer_value(value) <= high;
}

static bool is_tokens(const json_t *one) {
  return is_number(one, "tokens", -INT32_MAX, INT32_MAX) && json_object_size(one) == 2;
}

static bool is_pin(const json_t *one) {
  const json_t *tokens = json_object_get(one, "tokens");
  bool good = is_text(one, "model") && is_text(one, "fingerprint") && is_number(one, "id", 1, INT32_MAX) &&
              json_is_boolean(json_object_get(one, "public")) && is_number(one, "priority", -100, 100) &&
              is_number(one, "ttl_seconds", 0, UINT32_MAX) && json_array_size(tokens) > 0 && json_object_size(one) == 8;
  for (size_t i = 0; good && i < json_array_size(tokens); i++) {
    const json_t *id = json_array_get(tokens, i);
    good = json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) <= INT32_MAX;
  }
  return good;
}

static bool is_response(const json_t *one) {
  size_t n = json_object_size(one);
  return is_text(one, "id") && (n == 2 || (n == 4 && is_text(one, "body") && is_text(one, "items")));
}

static bool all_are(const json_t *root, const char *name, bool (*is)(const json_t *one)) {
  const json_t *list = json_object_get(root, name);
  bool good = json_is_array(list);
  for (size_t i = 0; good && i < json_array_size(list); i++) {
    const json_t *one = json_array_get(list, i);
    good = is_text(one, "tenant") && is(one);
  }
  return good;
}

/* False: no tenant here has this name. */
static bool find_tenant(weft_runtime *rt, const json_t *one, uint32_t *out) {
  const char *name = json_string_value(json_object_get(one, "tenant"));
  for (uint32_t i = 0; i < count_tenants(rt); i++) {
    *out = i;
    if (strcmp(rt->tenant_name[i], name) == 0) return true;
  }
  return false;
}

static bool take_tokens(weft_server *s, uint32_t tenant, const json_t *one) {
  json_int_t n = json_integer_value(json_object_get(one, "tokens"));
  weft_replicas_move_tokens(s->runtime->replicas, tenant, (int64_t)n, weft_clock_us());
  return true;
}

static bool take_pin(weft_server *s, uint32_t tenant, const json_t *one) {
  const json_t *list = json_object_get(one, "tokens");
  const char *name = json_string_value(json_object_get(one, "model"));
  const weft_served_model *m = model_named(s->runtime, name);
  uint32_t id, n = (uint32_t)json_array_size(list), wanted = (uint32_t)json_integer_value(json_object_get(one, "id"));
  char print[33];
  weft_error error = {{0}};
  if (m == NULL) return false;
  put_fingerprint(m, print);
  if (strcmp(print, json_string_value(json_object_get(one, "fingerprint"))) != 0) return false;
  int32_t *tokens = weft_alloc(n, sizeof *tokens);
  for (uint32_t i = 0; tokens != NULL && i < n; i++) tokens[i] = (int32_t)json_integer_value(json_array_get(list, i));
  const weft_prefix p = {.model = name,
                         .tenant = tenant,
                         .is_public = json_is_true(json_object_get(one, "public")),
                         .priority = (int32_t)json_integer_value(json_object_get(one, "priority")),
                         .ttl_seconds = (uint32_t)json_integer_value(json_object_get(one, "ttl_seconds")),
                         .prompt = {.tokens = tokens, .n_tokens = n}};
  weft_status status = tokens == NULL ? weft_fail(&error, WEFT_E_NO_MEMORY, "no memory for a pin")
                                      : weft_runtime_pin(s->runtime, &p, wanted, &id, &error);
  weft_free(tokens);
  if (status != WEFT_OK) weft_log(WEFT_LOG_WARN, "pin %u of the server before is not kept: %s", wanted, error.text);
  if (status == WEFT_OK && id != wanted)
    weft_log(WEFT_LOG_WARN, "pin %u of the server before has the number %u now", wanted, id);
  return true;
}

static bool take_response(weft_server *s, uint32_t tenant, const json_t *one) {
  const char *id = json_string_value(json_object_get(one, "id"));
  const json_t *body = json_object_get(one, "body"), *items = json_object_get(one, "items");
  if (body == NULL) {
    (void)weft_responses_delete(s->responses, tenant, id);
    return true;
  }
  weft_text body_text = {0}, items_text = {0};
  weft_text_append(&body_text, json_string_value(body), json_string_length(body));
  weft_text_append(&items_text, json_string_value(items), json_string_length(items));
  weft_responses_put(s->responses, tenant, id, &body_text, &items_text);
  weft_text_free(&body_text);
  weft_text_free(&items_text);
  return true;
}

static void take_all(weft_server *s, const json_t *root, const char *name, const char *what,
                     bool (*take)(weft_server *s, uint32_t tenant, const json_t *one)) {
  const json_t *list = json_object_get(root, name);
  size_t n_left = 0;
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *one = json_array_get(list, i);
    uint32_t tenant;
    bool taken = find_tenant(s->runtime, one, &tenant) && take(s, tenant, one);
    n_left += !taken;
  }
  if (n_left > 0)
    weft_log(WEFT_LOG_WARN, "%zu %s of the server before stay behind: of tenants or models that are not here", n_left,
             what);
}

static weft_status take_part(weft_server *s, const char *bytes, size_t n, weft_error *error) {
  json_error_t why;
  json_t *root = json_loadb(bytes, n, JSON_REJECT_DUPLICATES, &why);
  bool good = is_number(root, "weft_estate", FORM, FORM) && json_object_size(root) == 4 &&
              all_are(root, "tokens", is_tokens) && all_are(root, "pins", is_pin) &&
              all_are(root, "responses", is_response);
  if (good) {
    take_all(s, root, "tokens", "counts of tokens", take_tokens);
    take_all(s, root, "pins", "pins", take_pin);
    take_all(s, root, "responses", "stored answers", take_response);
  }
  json_decref(root);
  return good ? WEFT_OK : weft_fail(error, WEFT_E_FORMAT, "what the server before leaves has another form");
}

weft_status weft_estate_take(weft_server *s, const char *bytes, size_t n, weft_error *error) {
  weft_status status = WEFT_OK;
  for (size_t at = 0; status == WEFT_OK && (at < n || at == 0);) {
    const char *end = n > at ? memchr(bytes + at, '\n', n - at) : NULL;
    size_t length = end == NULL ? n - at : (size_t)(end - bytes) - at;
    if (length > 0 || n == 0) status = take_part(s, bytes + at, length, error);
    at += length + 1;
  }
  return status;
}
