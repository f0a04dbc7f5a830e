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
  weft_text_puts(out, "}");
}

static void tell_done(void *self, weft_text *out) {
  (void)self;
  weft_text_puts(out, "{\"success\":true}");
}

/* The model that the body names, and nothing else. */
static weft_status read_model(weft_server *s, weft_exchange *x, uint32_t *model, weft_refusal *why) {
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
      else if (status == WEFT_OK)
        status = weft_refuse(why, 400, "invalid_value", NULL, "%.32s is unknown: the body has model alone", key);
    }
  }
  if (status == WEFT_OK && name == NULL)
    status = weft_refuse(why, 400, "invalid_value", "model", "model must be the name of a model");
  if (status == WEFT_OK && weft_runtime_model(s->runtime, name, model, &error) == NULL)
    status = weft_refuse_status(why, WEFT_E_NOT_FOUND, error.text, false);
  json_decref(root);
  return status;
}

static void change_models(weft_server *s, weft_exchange *x, uint32_t model, resident_wish wish) {
  weft_error error = {{0}};
  resident_ask ask;
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
  uint32_t model = 0;
  if (read_model(s, x, &model, &why) == WEFT_OK)
    change_models(s, x, model, wish);
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

/* The paths of these three are vLLM's; a body or a level says nothing more. */
void weft_handle_sleep(weft_server *s, weft_exchange *x) {
  change_models(s, x, RESIDENTS_ALL, RESIDENT_SLEEP);
}

void weft_handle_wake_up(weft_server *s, weft_exchange *x) {
  change_models(s, x, RESIDENTS_ALL, RESIDENT_WAKE);
}

void weft_handle_is_sleeping(weft_server *s, weft_exchange *x) {
  weft_text body = {0};
  weft_text_printf(&body, "{\"is_sleeping\":%s}", residents_sleep(s->runtime->residents) ? "true" : "false");
  weft_exchange_answer(x, 200, "application/json", &body);
}
