/* SPDX-License-Identifier: MIT */
/* Answers of models that this process has open. */
#include <string.h>

#include "api/cli/canvas_cells.h"
#include "api/cli/speaker.h"
#include "base/memory.h"

enum { LOOK_MS = 100 };

typedef struct local_speaker {
  weft_speaker speaker; /* first: who has a pointer to it has one to this */
  weft_runtime *runtime;
  weft_generate_params params; /* of the options */
  weft_canvas_cells cells;
} local_speaker;

static const char *name_model(const weft_speaker *s, uint32_t index) {
  const weft_runtime *rt = ((const local_speaker *)s)->runtime;
  return index < weft_n_models(rt) ? weft_model_at(rt, index).name : NULL;
}

static void describe_model(const weft_speaker *s, uint32_t index, weft_text *out) {
  const weft_model_card card = weft_model_at(((const local_speaker *)s)->runtime, index);
  weft_text_printf(out, "%s, context of %u tokens",
                   card.diffusion && card.autoregressive ? "by diffusion or token by token"
                   : card.diffusion                      ? "by diffusion"
                                                         : "token by token",
                   card.context);
}

static void close_local(weft_speaker *s) {
  local_speaker *l = (local_speaker *)s;
  weft_close(l->runtime);
  weft_canvas_cells_free(&l->cells);
  weft_free(l);
}

static void tell_canvas(local_speaker *l, const char *model, const weft_delta *d, const weft_listener *listener) {
  const weft_canvas_view view = weft_canvas_cells_view(&l->cells, l->runtime, model, d);
  listener->canvas(listener->self, &view);
}

static weft_said end_of(const weft_delta *d, weft_error *why) {
  if (strcmp(d->finish, "stop") == 0) return WEFT_SAID;
  if (strcmp(d->finish, "length") == 0) return WEFT_SAID_LENGTH;
  if (strcmp(d->finish, "cancelled") == 0) return WEFT_SAID_STOPPED;
  (void)weft_fail(why, WEFT_E_DEVICE, "the answer broke off: %s", d->error != NULL ? d->error : d->finish);
  return WEFT_SAID_REFUSED;
}

static weft_said listen_to(local_speaker *l, weft_generation *g, const char *model, const weft_listener *listener,
                           weft_error *why) {
  weft_delta d = {0};
  int status = 0;
  if (weft_answer_mode(g) != WEFT_MODE_DIFFUSION) listener->plain(listener->self);
  while ((status = weft_next(g, LOOK_MS, &d)) == WEFT_AGAIN || (status == 0 && d.kind != WEFT_DELTA_END)) {
    listener->look(listener->self);
    if (listener->stop(listener->self)) weft_cancel(g);
    if (status == WEFT_AGAIN) continue;
    if (d.kind == WEFT_DELTA_CANVAS) tell_canvas(l, model, &d, listener);
    if (d.kind == WEFT_DELTA_TEXT) listener->text(listener->self, d.text, d.n_text, d.thinking);
  }
  if (status == 0) return end_of(&d, why);
  (void)weft_fail(why, WEFT_E_DEVICE, "the answer broke off: %s", weft_status_text((weft_status)status));
  return WEFT_SAID_REFUSED;
}

static weft_said ask_local(weft_speaker *s, const weft_speaker_asks *asks, const weft_listener *listener,
                           weft_error *why) {
  local_speaker *l = (local_speaker *)s;
  weft_generate_params params = l->params;
  weft_generation *g;
  params.model = name_model(s, asks->model);
  params.prompt.turns = asks->turn;
  params.prompt.n_turns = asks->n_turns;
  params.mode = asks->mode;
  params.sampling.temperature = asks->temperature;
  params.canvas_deltas = params.trace = asks->canvases;
  int status = weft_submit(l->runtime, &params, &g, why->text, sizeof why->text);
  if (status != 0) return status == WEFT_E_TOO_LARGE ? WEFT_SAID_TOO_LONG : WEFT_SAID_REFUSED;
  weft_said said = listen_to(l, g, params.model, listener, why);
  weft_generation_free(g);
  return said;
}

int weft_speaker_open_local(const weft_config *config, weft_speaker **out) {
  local_speaker *l = weft_alloc(1, sizeof *l);
  if (l == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory");
  int code = weft_cli_params(config, &l->params);
  if (code == 0) code = weft_cli_open(config, &l->runtime);
  if (code != 0) {
    weft_free(l);
    return code;
  }
  l->speaker =
      (weft_speaker){.model_name = name_model, .describe = describe_model, .ask = ask_local, .close = close_local};
  *out = &l->speaker;
  return 0;
}
