/* SPDX-License-Identifier: MIT */
#include "api/dialects/stream.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/dialects/answer_calls.h"
#include "api/dialects/limits_told.h"
#include "api/generation.h"
#include "api/json.h"
#include "api/dialects/places.h"
#include "api/request_memory.h"
#include "api/runtime.h"
#include "base/memory.h"

/* What costs how much of a pull's work, beside the bytes that are written: nanoseconds, about. */
enum { WORK_LOOK = 32, WORK_DELTA = 512, WORK_TOKEN = 64, WORK_ENTRY = 192 };

/* ---- memory ---- */

static void clear_choice(weft_choice *c) {
  weft_text_clear(&c->text);
  weft_text_clear(&c->thinking);
  weft_text_clear(&c->ids);
  for (int i = 0; i < 4; i++) weft_text_clear(&c->logprobs[i]);
  c->n_ids = c->n_logprobs = 0;
  answer_calls_sent(c);
}

static weft_status choice_status(const weft_choice *c) {
  bool refused = c->text.refused || c->thinking.refused || c->ids.refused || c->prompt_places.refused;
  for (int i = 0; i < 4; i++) refused = refused || c->logprobs[i].refused;
  return refused ? WEFT_E_NO_MEMORY : WEFT_OK;
}

static void close_answer(void *self) {
  weft_answer *a = self;
  if (a == NULL) return;
  answer_calls_close(a);
  for (uint32_t i = 0; i < a->n; i++) {
    weft_choice *c = &a->choice[i];
    weft_generation_free(c->generation);
    weft_text_free(&c->text);
    weft_text_free(&c->thinking);
    weft_text_free(&c->ids);
    weft_text_free(&c->prompt_places);
    for (int k = 0; k < 4; k++) weft_text_free(&c->logprobs[k]);
  }
  weft_pieces_free(&a->out);
  weft_text_free(&a->body);
  if (a->own != NULL) a->dialect->close(a->own);
  weft_free(a->choice);
  weft_free(a->id);
  weft_free(a);
}

static void cancel_all(void *self) {
  weft_answer *a = self;
  for (uint32_t i = 0; i < a->n; i++) weft_cancel(a->choice[i].generation);
}

/* ---- what is written ---- */

const char *weft_answer_mode_name(const weft_answer *a) {
  return a->by_canvas ? "diffusion" : "autoregressive";
}

weft_answer_usage weft_answer_get_usage(const weft_answer *a) {
  weft_answer_usage u = {0};
  for (uint32_t i = 0; i < a->n; i++) {
    const weft_choice *c = &a->choice[i];
    if (i % a->wanted.n_choices == 0) {
      u.prompt += c->usage.prompt_tokens;
      u.cached += c->usage.cached_tokens;
    }
    u.completion += c->usage.completion_tokens;
    u.thinking += c->n_thinking_tokens;
    u.canvases += c->usage.canvases;
    u.steps += c->usage.denoise_steps;
    u.drafted += c->usage.drafted;
    u.accepted += c->usage.accepted;
    u.draft_runs += c->usage.draft_runs;
    u.draft_us += c->usage.draft_us;
    u.verify_us += c->usage.verify_us;
    u.commit_us += c->usage.commit_us;
    u.rollback_us += c->usage.rollback_us;
  }
  return u;
}

const weft_choice *weft_answer_first(const weft_answer *a, const weft_choice *c) {
  return &a->choice[c->prompt * a->wanted.n_choices];
}

static void put_chunk(weft_answer *a, weft_choice *c, const char *finish) {
  a->dialect->chunk(a, c, finish, &a->out);
  c->begun = true;
  clear_choice(c);
}

/* A canvas may hold calls, or a part of one: a client is shown the rest of it. */
static void put_canvas(weft_answer *a, const weft_choice *c, const weft_delta *d) {
  weft_text content = {0};
  weft_delta shown = *d;
  if (c->reader != NULL) {
    if (answer_calls_canvas(c, d->text, d->n_text, &content) != WEFT_OK) a->out.text.refused = true;
    shown.text = content.n == 0 ? "" : content.bytes;
    shown.n_text = content.n;
  }
  a->dialect->canvas(a, c, &shown, &a->out);
  weft_text_free(&content);
}

/* Numbers the choices that are given: of each prompt the most likely ones, the earlier of equals. */
static void choose_given(weft_answer *a) {
  for (uint32_t i = 0; i < a->n; i++) a->choice[i].index = UINT32_MAX;
  for (uint32_t first = 0, index = 0; first < a->n; first += a->wanted.n_choices) {
    for (uint32_t k = 0; k < a->wanted.n_given; k++) {
      weft_choice *best = NULL;
      for (uint32_t i = 0; i < a->wanted.n_choices; i++) {
        weft_choice *c = &a->choice[first + i];
        if (c->index != UINT32_MAX) continue;
        if (best == NULL || c->mean_logprob > best->mean_logprob) best = c;
      }
      best->index = index++;
    }
  }
}

/* ---- taking deltas ---- */

static weft_status keep_text(const weft_answer *a, weft_choice *c, const weft_delta *d) {
  weft_status status = WEFT_OK;
  c->has_text = c->has_text || (d->kind == WEFT_DELTA_TEXT && d->n_text > 0);
  if (!d->thinking && c->reader != NULL) {
    status = answer_calls_push(c, d->text, d->n_text);
  } else if (!answer_calls_in_call(c)) {
    weft_text_append(d->thinking ? &c->thinking : &c->text, d->text, d->n_text);
  }
  if (d->thinking) c->n_thinking_tokens += d->n_tokens;
  for (uint32_t i = 0; i < d->n_tokens && a->wanted.token_ids && d->kind == WEFT_DELTA_TEXT; i++) {
    if (c->n_ids++ > 0) weft_text_puts(&c->ids, ",");
    weft_json_int(&c->ids, d->tokens[i]);
  }
  if (a->asked->sampling.logprobs && d->logprobs != NULL) a->dialect->logprobs(a, c, d);
  if (d->kind == WEFT_DELTA_PROMPT) c->n_prompt_text += weft_text_characters(d->text, d->n_text);
  return status == WEFT_OK ? choice_status(c) : status;
}

/* Whether the choice has something that was not sent. */
static bool has_more(const weft_choice *c) {
  return c->text.n > 0 || c->thinking.n > 0 || c->n_ids > 0 || c->n_logprobs > 0 || answer_calls_waiting(c);
}

static weft_status refuse_end(const weft_delta *end, weft_refusal *why) {
  if (strcmp(end->finish, "evicted") == 0) {
    (void)weft_refuse(
        why, 429, "queue_full", NULL,
        "the queue is full and this tenant has most in it for its weight: its newest waiting request gave "
        "its place to another tenant's; come again later");
    why->retry_s = (end->retry_ms + 999) / 1000;
    return WEFT_E_INVALID;
  }
  if (strcmp(end->finish, "error") == 0) return weft_refuse(why, 500, "generation_failed", NULL, "%s", end->error);
  if (strcmp(end->finish, "deadline") == 0) {
    return weft_refuse(why, 504, "timeout", "timeout_ms",
                       "the request's timeout_ms passed before its answer was complete");
  }
  if (strcmp(end->finish, "cancelled") == 0)
    return weft_refuse(why, 503, "cancelled", NULL, "the request was cancelled");
  return WEFT_OK;
}

/* A client that sums the logprobs of an echoed prompt expects one for each token that was drawn, the end token too. */
static void put_end_logprobs(const weft_answer *a, weft_choice *c, const weft_delta *d) {
  weft_delta one = *d;
  one.n_tokens = 1;
  a->dialect->logprobs(a, c, &one);
}

/* A call in which the client's own end was found is no call to answer to: the client hears of its end instead. */
static bool ends_with_calls(const weft_choice *c) {
  bool asked_for = c->stop != NULL || c->stop_token >= 0;
  return c->n_calls > 0 && strcmp(c->finish, "stop") == 0 && (c->call[c->n_calls - 1].whole || !asked_for);
}

static weft_status take_end(weft_answer *a, weft_choice *c, const weft_delta *d, weft_refusal *why) {
  c->ended = true;
  c->finish = d->finish;
  c->stop = d->stop;
  c->stop_token = d->stop_token;
  c->usage = d->usage;
  c->mean_logprob = d->mean_logprob;
  a->n_ended += 1;
  weft_status status = refuse_end(d, why);
  if (status != WEFT_OK) return status;
  if (a->asked->echo && a->asked->sampling.logprobs && d->logprobs != NULL) put_end_logprobs(a, c, d);
  bool cut = strcmp(c->finish, "stop") != 0 || c->stop != NULL || c->stop_token >= 0;
  if ((c->reader != NULL && answer_calls_end(c, cut) != WEFT_OK) || choice_status(c) != WEFT_OK) {
    return weft_refuse(why, 500, "no_memory", NULL, "no memory for the answer");
  }
  if (ends_with_calls(c)) c->finish = "tool_calls";
  if (!a->by_chunks) return WEFT_OK;
  if (c->reader != NULL && has_more(c)) put_chunk(a, c, NULL);
  put_chunk(a, c, c->finish);
  return WEFT_OK;
}

/* The logprobs of a prompt are written once for all of its choices. */
static bool lists_prompt(const weft_answer *a, const weft_choice *c) {
  return a->wanted.prompt_logprobs && c == weft_answer_first(a, c);
}

static weft_status take_delta(weft_answer *a, weft_choice *c, const weft_delta *d, weft_refusal *why) {
  if (d->kind == WEFT_DELTA_END) return take_end(a, c, d, why);
  if (d->kind == WEFT_DELTA_CANVAS) {
    if (a->wanted.stream && a->asked->canvas_deltas) put_canvas(a, c, d);
    return WEFT_OK;
  }
  bool listed = d->kind == WEFT_DELTA_PROMPT && lists_prompt(a, c);
  if (listed) a->dialect->prompt(a, c, d);
  if ((listed && !a->asked->echo ? choice_status(c) : keep_text(a, c, d)) != WEFT_OK)
    return weft_refuse(why, 500, "no_memory", NULL, "no memory for the answer");
  if (a->by_chunks && has_more(c)) put_chunk(a, c, NULL);
  return WEFT_OK;
}

/* The next delta of a choice: where the prompt, or its logprobs, are given back, parts of it come first, so that a long
 * one is written over many pulls. */
static int next_delta(const weft_answer *a, weft_choice *c, weft_delta *d) {
  if (c->ended) return WEFT_AGAIN;
  while (!c->prompt_read) {
    int status = weft_prompt_part(weft_answer_first(a, c)->generation, c->n_prompt_read, d);
    if (status != 0) return status;
    c->n_prompt_read += d->n_tokens;
    c->prompt_read = d->n_tokens == 0;
    if (!c->prompt_read) return 0;
  }
  return weft_next(c->generation, 0, d);
}

static int64_t work_of(const weft_delta *d) {
  int64_t entries = d->logprobs == NULL ? 0 : d->n_tokens * (1 + (int64_t)d->top_stride);
  return WORK_DELTA + (int64_t)d->n_text + d->n_tokens * (int64_t)WORK_TOKEN + entries * WORK_ENTRY;
}

/* Takes one delta, of the choices in turn. WEFT_AGAIN: nothing is there now. */
static weft_status take_one(weft_answer *a, int64_t *work, weft_refusal *why) {
  for (uint32_t i = 0; i < a->n; i++) {
    weft_choice *c = &a->choice[a->turn];
    weft_delta d;
    a->turn = (a->turn + 1) % a->n;
    int status = next_delta(a, c, &d);
    *work -= WORK_LOOK;
    if (status == WEFT_AGAIN) continue;
    if (status != 0) return weft_refuse(why, 500, "internal", NULL, "%s", weft_status_text((weft_status)status));
    *work -= work_of(&d);
    return take_delta(a, c, &d, why) == WEFT_OK ? WEFT_OK : WEFT_E_INVALID;
  }
  return WEFT_AGAIN;
}

/* One step of a stream, after which `out` may have something to read. WEFT_AGAIN: nothing is there now. */
static weft_status step_stream(weft_answer *a, int64_t *work, weft_refusal *why) {
  bool begins = a->dialect->begin != NULL && a->n_begun < a->n;
  if (begins) {
    weft_choice *c = &a->choice[a->n_begun++];
    a->dialect->begin(a, c, &a->out);
    c->begun = true;
    return WEFT_OK;
  }
  if (a->n_ended < a->n) return take_one(a, work, why);
  if (a->dialect->settle != NULL && !a->dialect->settle(a, work)) return WEFT_OK;
  a->dialect->last(a, &a->out);
  a->over = true;
  return WEFT_OK;
}

static weft_pull pull_stream(void *self, weft_exchange *x, int64_t *work, weft_text *out) {
  weft_answer *a = self;
  weft_refusal why;
  (void)x;
  for (;;) {
    if (!weft_pieces_read(&a->out, out, work)) return WEFT_PULL_MORE;
    if (a->over) return WEFT_PULL_END;
    if (*work <= 0) return WEFT_PULL_MORE;
    weft_status status = step_stream(a, work, &why);
    if (status == WEFT_AGAIN) return WEFT_PULL_WAIT;
    if (status == WEFT_OK) continue;
    cancel_all(a);
    a->dialect->fault(a, &why, &a->out);
    a->over = true;
  }
}

/* One step of a whole answer, as above; its chunks are not given. */
static weft_status step_whole(weft_answer *a, int64_t *work, weft_refusal *why) {
  if (a->n_ended < a->n) {
    weft_status status = take_one(a, work, why);
    weft_pieces_clear(&a->out);
    return status;
  }
  if (a->dialect->settle != NULL && !a->dialect->settle(a, work)) return WEFT_OK;
  if (a->wanted.n_given < a->wanted.n_choices) choose_given(a);
  a->dialect->whole(a, &a->out);
  weft_text_reserve(&a->body, weft_pieces_bytes(&a->out));
  a->over = true;
  return WEFT_OK;
}

static weft_pull pull_whole(void *self, weft_exchange *x, int64_t *work, weft_text *out) {
  weft_answer *a = self;
  weft_refusal why;
  (void)out; /* the answer comes in one piece */
  while (!a->over) {
    if (*work <= 0) return WEFT_PULL_MORE;
    weft_status status = step_whole(a, work, &why);
    if (status == WEFT_AGAIN) return WEFT_PULL_WAIT;
    if (status == WEFT_OK) continue;
    cancel_all(a);
    weft_exchange_refuse(x, &why);
    return WEFT_PULL_END;
  }
  if (!weft_pieces_read(&a->out, &a->body, work)) return WEFT_PULL_MORE;
  weft_exchange_answer(x, 200, "application/json", &a->body);
  return WEFT_PULL_END;
}

/* Nothing was given for a while, and nothing is half given. */
static void say_wait(void *self, weft_text *out) {
  const weft_answer *a = self;
  a->dialect->ping(a, out);
}

/* ---- starting ---- */

/* An unknown name is refused when the request is submitted. */
static const char *served_name(const weft_runtime *rt, const char *asked) {
  uint32_t index;
  const weft_served_model *m = weft_runtime_model(rt, asked, &index, NULL);
  return m == NULL ? "" : m->name;
}

static weft_answer *open_answer(const weft_answer_config *config, weft_exchange *x) {
  const weft_gen *gen = config->gen;
  weft_answer *a = weft_alloc(1, sizeof *a);
  bool lacks_own = config->dialect->close != NULL && config->own == NULL; /* there was no memory for it */
  if (a == NULL || lacks_own) {
    if (config->own != NULL) config->dialect->close(config->own);
    weft_free(a);
    return NULL;
  }
  struct timespec now;
  (void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail with this clock */
  weft_text id = {0};
  weft_text_printf(&id, "%s%s", config->dialect->id_prefix, weft_exchange_id(x));
  *a = (weft_answer){.dialect = config->dialect,
                     .exchange = x,
                     .id = id.bytes,
                     .model = served_name(config->runtime, gen->params.model),
                     .created = now.tv_sec,
                     .wanted = gen->wanted,
                     .by_chunks = gen->wanted.stream || config->dialect->whole_by_chunks,
                     .out = {.copies = gen->wanted.stream},
                     .own = config->own};
  a->choice = weft_alloc((size_t)gen->n_prompts * gen->wanted.n_choices, sizeof *a->choice);
  if (a->choice != NULL && weft_text_status(&id) == WEFT_OK && id.bytes != NULL) return a;
  close_answer(a);
  return NULL;
}

/* What an answer that gives the prompt back, or lists its logprobs, keeps for each token of it. */
static size_t bytes_per_prompt_token(const weft_gen *gen, bool collected) {
  const weft_sampling *s = &gen->params.sampling;
  size_t n = gen->wanted.prompt_logprobs ? (1 + (size_t)gen->wanted.n_prompt_logprobs) * WEFT_JSON_BYTES : 0;
  if (!gen->params.echo || !collected) return n;
  return n + WEFT_TEXT_BYTES + (s->logprobs ? (1 + (size_t)s->n_top_logprobs) * WEFT_JSON_BYTES : 0);
}

/* A request on its way to the engine. */
typedef struct submission {
  const weft_answer_config *config;
  weft_exchange *exchange;
} submission;

static bool stops_submit(void *self) {
  const submission *s = self;
  return atomic_load(s->config->draining) || weft_exchange_stops(s->exchange);
}

static weft_status submit_prompts(weft_answer *a, const weft_answer_config *config, weft_generate_params *params,
                                  weft_generation **out, weft_refusal *why) {
  const weft_gen *gen = config->gen;
  char line[512];
  bool own_limit = false;
  uint32_t retry_ms = 0, n = gen->n_prompts * gen->wanted.n_choices;
  submission own = {config, a->exchange};
  for (uint32_t p = 0; p < gen->n_prompts; p++) {
    params[p] = gen->params;
    params[p].tenant = config->tenant;
    params[p].collected = !gen->wanted.stream || a->dialect->keeps_text;
    params[p].prompt = gen->prompt[p];
    params[p].kept_per_prompt_token = bytes_per_prompt_token(gen, params[p].collected);
    params[p].stop_submit = stops_submit;
    params[p].stop_self = &own;
  }
  params->retry_ms = &retry_ms;
  params->own_limit = &own_limit;
  int status = weft_submit_all(config->runtime, params, gen->n_prompts, gen->wanted.n_choices, out, line, sizeof line);
  if (status != 0) {
    (void)weft_refuse_status(why, status, line, atomic_load(config->draining));
    places_name(gen, why);
    why->retry_s = (retry_ms + 999) / 1000;
    why->own_limit = own_limit;
    return WEFT_E_INVALID;
  }
  a->asked = weft_generation_asked(out[0]);
  for (uint32_t i = 0; i < n; i++) {
    a->choice[i].generation = out[i];
    a->by_canvas = weft_answer_mode(out[i]) == WEFT_MODE_DIFFUSION; /* of all choices alike */
    a->choice[i].index = i;
    a->choice[i].prompt = i / gen->wanted.n_choices;
    a->choice[i].prompt_read = !a->asked->echo && !lists_prompt(a, &a->choice[i]);
  }
  a->n = n;
  return WEFT_OK;
}

/* All choices of all prompts, or none. */
static weft_status submit_all(weft_answer *a, const weft_answer_config *config, weft_refusal *why) {
  const weft_gen *gen = config->gen;
  weft_generate_params *params = weft_alloc(gen->n_prompts, sizeof *params);
  weft_generation **out = weft_alloc((size_t)gen->n_prompts * gen->wanted.n_choices, sizeof *out);
  weft_status status = params == NULL || out == NULL
                           ? weft_refuse(why, 503, "no_memory", NULL, "no memory for this request: try again later")
                           : submit_prompts(a, config, params, out, why);
  weft_free(params);
  weft_free(out);
  return status;
}

static void wake_exchange(void *self) {
  weft_exchange_wake(self);
}

void weft_answer_start(const weft_answer_config *config, weft_exchange *x) {
  weft_refusal why;
  weft_answer *a = open_answer(config, x);
  weft_status status = a == NULL
                           ? weft_refuse(&why, 503, "no_memory", NULL, "no memory for this request: try again later")
                           : submit_all(a, config, &why);
  if (status == WEFT_OK && answer_calls_open(a, config->gen) != WEFT_OK) {
    status = weft_refuse(&why, 503, "no_memory", NULL, "no memory for this request: try again later");
  }
  limits_tell(config->runtime, config->tenant, x);
  if (status != WEFT_OK) {
    close_answer(a);
    if (!weft_exchange_gives_back(x)) weft_exchange_refuse(x, &why);
    return;
  }
  weft_exchange_note(x)->answer = a;
  weft_source source = {.pull = a->wanted.stream ? pull_stream : pull_whole,
                        .wait = say_wait,
                        .left = cancel_all,
                        .close = close_answer,
                        .self = a};
  if (a->wanted.stream) {
    weft_exchange_stream(x, a->dialect->stream_type, &source);
  } else {
    weft_exchange_later(x, &source);
  }
  /* the exchange belongs to this worker until its handler returns, so nothing is read meanwhile */
  for (uint32_t i = 0; i < a->n; i++) weft_on_ready(a->choice[i].generation, wake_exchange, x);
}
