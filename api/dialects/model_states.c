/* SPDX-License-Identifier: MIT */
#include "api/dialects/model_states.h"

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
