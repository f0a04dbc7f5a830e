/* SPDX-License-Identifier: MIT */
/* What the operator asks of models that come and go. */
#include <string.h>

#include "api/dialects/gen.h"
#include "api/dialects/model_states.h"
#include "api/json.h"
#include "api/server/router.h"
#include "base/memory.h"

typedef struct told_state {
  const weft_runtime *runtime;
  uint32_t model;
} told_state;

static void tell_state(void *self, weft_text *out) {
  const told_state *t = self;
  const weft_model_card card = weft_model_at(t->runtime, t->model);
  weft_text_puts(out, "{\"success\":true,\"model\":");
  weft_json_words(out, card.name);
  weft_text_puts(out, ",\"state\":");
  weft_json_words(out, card.state);
  const resident_view view = residents_look(t->runtime->residents, t->model);
  weft_text_printf(out, ",\"kept_bytes\":%llu}", (unsigned long long)view.kept_bytes);
}

static void tell_done(void *self, weft_text *out) {
  (void)self;
  weft_text_puts(out, "{\"success\":true}");
}

static weft_status read_level(const json_t *value, uint32_t *level, weft_refusal *why) {
  json_int_t n = json_is_integer(value) ? json_integer_value(value) : 0;
  *level = (uint32_t)n;
  if (n == RESIDENT_WEIGHTS_STAY || n == RESIDENT_WEIGHTS_GO) return WEFT_OK;
  return weft_refuse(why, 400, "invalid_value", "level",
                     "level must be 1, weights stay in host memory, or 2, they are dropped");
}

/* The model that the body names, where it sleeps at which level, and nothing else. */
static weft_status read_model(weft_server *s, weft_exchange *x, bool sleeps, uint32_t *model, uint32_t *level,
                              weft_refusal *why) {
  json_t *root = NULL, *value;
  const char *key, *name = NULL;
  weft_error error = {{0}};
  size_t n;
  const char *bytes = weft_exchange_body(x, &n);
  weft_status status = weft_body_load(bytes, n, &s->body_rules.json, &root, why);
  if (status == WEFT_OK) {
    json_object_foreach(root, key, value) {
      if (strcmp(key, "model") == 0)
        name = json_string_value(value);
      else if (sleeps && strcmp(key, "level") == 0)
        status = status == WEFT_OK ? read_level(value, level, why) : status;
      else if (status == WEFT_OK)
        status = weft_refuse(why, 400, "invalid_value", NULL, "%.32s is unknown: the body has model%s", key,
                             sleeps ? " and level" : " alone");
    }
  }
  if (status == WEFT_OK && name == NULL)
    status = weft_refuse(why, 400, "invalid_value", "model", "model must be the name of a model");
  if (status == WEFT_OK && weft_runtime_model(s->runtime, name, model, &error) == NULL)
    status = weft_refuse_status(why, WEFT_E_NOT_FOUND, error.text, false);
  json_decref(root);
  return status;
}

static void change_models(weft_server *s, weft_exchange *x, uint32_t model, resident_wish wish, uint32_t level) {
  weft_error error = {{0}};
  resident_ask ask = {.level = level};
  told_state *told = weft_alloc(1, sizeof *told);
  weft_status status = told == NULL ? WEFT_E_NO_MEMORY : WEFT_OK;
  if (status == WEFT_OK) status = residents_ask(s->runtime->residents, model, wish, &ask, &error);
  if (status != WEFT_OK) {
    weft_free(told);
    model_states_refuse(x, status, error.text[0] != 0 ? error.text : weft_status_text(status));
    return;
  }
  *told = (told_state){s->runtime, model};
  model_states_answer(s->runtime, x, &ask, model == RESIDENTS_ALL ? tell_done : tell_state, told);
}

static void change_model(weft_server *s, weft_exchange *x, resident_wish wish) {
  weft_refusal why;
  uint32_t model = 0, level = 0;
  if (read_model(s, x, wish == RESIDENT_SLEEP, &model, &level, &why) == WEFT_OK)
    change_models(s, x, model, wish, level);
  else
    weft_exchange_refuse(x, &why);
}

void weft_handle_load_model(weft_server *s, weft_exchange *x) {
  change_model(s, x, RESIDENT_LOAD);
}

void weft_handle_unload_model(weft_server *s, weft_exchange *x) {
  change_model(s, x, RESIDENT_UNLOAD);
}

void weft_handle_sleep_model(weft_server *s, weft_exchange *x) {
  change_model(s, x, RESIDENT_SLEEP);
}

void weft_handle_wake_model(weft_server *s, weft_exchange *x) {
  change_model(s, x, RESIDENT_WAKE);
}

/* `level` of a query, of digits alone, as json. */
static weft_status read_query_level(const char *query, uint32_t *level, weft_refusal *why) {
  static const char key[] = "level=";
  for (const char *at = query; *at != 0; at += strcspn(at, "&"), at += *at == '&') {
    if (strncmp(at, key, sizeof key - 1) != 0) continue;
    const char *digits = at + sizeof key - 1;
    size_t n = strcspn(digits, "&");
    json_t *value = json_integer(n == 1 ? digits[0] - '0' : 0);
    weft_status status = read_level(value, level, why);
    json_decref(value);
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}

/* The paths of these three are vLLM's; a body, modes and tags say nothing more. */
void weft_handle_sleep(weft_server *s, weft_exchange *x) {
  weft_refusal why;
  uint32_t level = 0;
  if (read_query_level(weft_exchange_query(x), &level, &why) == WEFT_OK)
    change_models(s, x, RESIDENTS_ALL, RESIDENT_SLEEP, level);
  else
    weft_exchange_refuse(x, &why);
}

void weft_handle_wake_up(weft_server *s, weft_exchange *x) {
  change_models(s, x, RESIDENTS_ALL, RESIDENT_WAKE, 0);
}

void weft_handle_is_sleeping(weft_server *s, weft_exchange *x) {
  weft_text body = {0};
  weft_text_printf(&body, "{\"is_sleeping\":%s}", residents_sleep(s->runtime->residents) ? "true" : "false");
  weft_exchange_answer(x, 200, "application/json", &body);
}
