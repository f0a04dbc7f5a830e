/* SPDX-License-Identifier: MIT */
#include "api/server/model_states.h"

#include <string.h>

#include "api/dialects/fields.h"
#include "api/json.h"
#include "api/server/router.h"
#include "base/memory.h"

typedef struct waiting_answer {
  weft_runtime *runtime;
  weft_exchange *exchange;
  resident_ask ask;
  resident_watcher watcher;
  model_states_tell tell;
  void *self;
} waiting_answer;

void model_states_refuse(weft_exchange *x, weft_status status, const char *line) {
  weft_refusal why;
  if (status == WEFT_E_TOO_LARGE)
    (void)weft_refuse(&why, 409, "no_room", "model", "%s", line);
  else
    (void)weft_refuse_status(&why, status, line, status == WEFT_CANCELLED);
  weft_exchange_refuse(x, &why);
}

static weft_pull pull_outcome(void *self, weft_exchange *x, int64_t *work, weft_text *out) {
  waiting_answer *a = self;
  weft_error error = {{0}};
  (void)work;
  (void)out;
  weft_status status = residents_outcome(a->runtime->residents, &a->ask, &error);
  if (status == WEFT_AGAIN) return WEFT_PULL_WAIT;
  if (status != WEFT_OK) {
    model_states_refuse(x, status, error.text);
    return WEFT_PULL_END;
  }
  weft_text body = {0};
  a->tell(a->self, &body);
  weft_exchange_answer(x, 200, "application/json", &body);
  return WEFT_PULL_END;
}

static void wake_exchange(void *self) {
  weft_exchange_wake(((waiting_answer *)self)->exchange);
}

static void pass_over(void *self) {
  (void)self;
}

static void close_answer(void *self) {
  waiting_answer *a = self;
  residents_unwatch(a->runtime->residents, &a->watcher);
  weft_free(a->self);
  weft_free(a);
}

void model_states_answer(weft_runtime *rt, weft_exchange *x, const resident_ask *ask, model_states_tell tell,
                         void *self) {
  waiting_answer *a = weft_alloc(1, sizeof *a);
  if (a == NULL) {
    weft_free(self);
    model_states_refuse(x, WEFT_E_NO_MEMORY, "no memory for the request");
    return;
  }
  *a = (waiting_answer){.runtime = rt,
                        .exchange = x,
                        .ask = *ask,
                        .watcher = {.changed = wake_exchange, .self = a},
                        .tell = tell,
                        .self = self};
  const weft_source source = {.pull = pull_outcome, .left = pass_over, .close = close_answer, .self = a};
  residents_watch(rt->residents, &a->watcher);
  weft_exchange_later(x, &source);
}

/* ---- for the operator -------------------------------------------------------------------------- */

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

static void change_model(weft_server *s, weft_exchange *x, bool load) {
  weft_refusal why;
  weft_error error = {{0}};
  resident_ask ask;
  uint32_t model = 0;
  if (read_model(s, x, &model, &why) != WEFT_OK) {
    weft_exchange_refuse(x, &why);
    return;
  }
  told_state *told = weft_alloc(1, sizeof *told);
  weft_status status = told == NULL ? WEFT_E_NO_MEMORY : WEFT_OK;
  if (status == WEFT_OK) status = residents_ask(s->runtime->residents, model, load, &ask, &error);
  if (status != WEFT_OK) {
    weft_free(told);
    model_states_refuse(x, status, error.text[0] != 0 ? error.text : weft_status_text(status));
    return;
  }
  *told = (told_state){s->runtime, model};
  model_states_answer(s->runtime, x, &ask, tell_state, told);
}

void weft_handle_load_model(weft_server *s, weft_exchange *x) {
  change_model(s, x, true);
}

void weft_handle_unload_model(weft_server *s, weft_exchange *x) {
  change_model(s, x, false);
}
