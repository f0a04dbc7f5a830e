/* SPDX-License-Identifier: MIT */
/* One generation: parameters in, deltas out. The engine deals in tokens; here they become text, thinking is split from
 * the answer, and stop strings end it. What a request leaves open of its sampling is filled in here
 * (answer_defaults.h).
 *
 * Two streams run over the same tokens: one on the engine thread, which decides when to stop, one on the reader's
 * thread, which gives the text. Both print the same text, byte by byte, and search it with the same automaton, so they
 * find the same end. What the engine thread does costs O(1) for a token and takes no memory. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

#include "api/answer_defaults.h"
#include "api/answer_limits.h"
#include "api/call_plan.h"
#include "api/delta_logprobs.h"
#include "api/generation.h"
#include "api/prompt.h"
#include "api/prompt_parts.h"
#include "api/request_memory.h"
#include "api/stops.h"
#include "base/memory.h"

enum { DELTA_TOKENS_MAX = 256 /* of one delta: a reader that comes late takes a long answer in pieces */ };
_Static_assert((int)WEFT_ANSWERS_MAX == (int)WEFT_SUBMISSION_MAX, "what weft.h promises, the engine takes");

struct weft_generation {
  weft_runtime *runtime;
  const weft_served_model *model;
  weft_request *request;
  encoded_prompt prompt;
  weft_grammar *grammar; /* NULL: any answer */
  call_plan calls;       /* without its format */
  bool held_thinking;    /* the grammar begins with thinking */
  bool canvas;           /* the answer is written by diffusion */
  answer_limits limits;
  uint32_t min_tokens; /* stop strings are looked for behind them */
  bool keep_stop, ignore_eos;
  bool whole_tokens, logprobs, score, ended;
  uint64_t format_key;                      /* of the format that was asked for */
  bool echo, with_special, prompt_logprobs; /* prompt_logprobs: of this generation's own request; siblings have none */
  prompt_parts parts;
  weft_stops stops;

  /* engine thread */
  weft_chat_stream stop_stream; /* takes no memory after submit */
  weft_stop_search stop_search;
  bool stop_found;
  uint32_t n_stop_seen; /* tokens the stop stream has taken */

  /* reader */
  weft_chat_stream stream;
  weft_stop_search search;
  size_t n_searched; /* bytes of limbo */
  weft_event event;  /* TOKENS being worked off, or FINISHED being held back */
  bool has_event, finishing;
  uint32_t next;      /* token of event to take next */
  uint64_t n_waiting; /* tokens taken and not released */
  double logprob_sum; /* with score */
  weft_text limbo;    /* text made and not given */
  bool limbo_thinking, stopped;
  weft_status lost;            /* why the reader's text broke off: what is left is thrown away until the end */
  const int32_t *answer;       /* the engine's, from the first token on */
  const weft_logprob *logprob; /* likewise, n_top + 1 for each token */
  uint32_t n_top;
  uint32_t n_given, n_released;            /* tokens of deltas before the present one; of the present one */
  uint32_t n_ids;                          /* tokens taken and not given before */
  weft_text text;                          /* of the present delta */
  weft_text stop;                          /* the stop string that was found */
  delta_logprobs entries;                  /* of the present delta */
  uint32_t *text_at;                       /* with logprobs: characters of text before each of the n_ids tokens */
  uint32_t text_at_capacity, n_characters; /* of all text so far */
  char error[256];

  _Atomic(void (*)(void *)) ready;
  _Atomic(void *) ready_self;
};

/* ---- engine thread -------------------------------------------------------------------------------------- */

static void search_text(void *self, const char *text, size_t n, bool thinking) {
  weft_generation *g = self;
  size_t end;
  if (g->n_stop_seen <= g->min_tokens) return; /* counted before its text comes */
  if (!g->stop_found) g->stop_found = weft_stops_read(&g->stops, &g->stop_search, text, n, thinking, &end);
}

static uint32_t stop_rule(void *self, const int32_t *tokens, uint32_t n_tokens) {
  weft_generation *g = self;
  while (g->n_stop_seen < n_tokens && !g->stop_found) {
    /* an id outside the vocabulary has no text to search; the reader, who cannot print it either, ends the answer */
    (void)weft_chat_stream_feed(&g->stop_stream, tokens[g->n_stop_seen++], search_text, g);
  }
  if (!g->stop_found) return n_tokens;
  return g->n_stop_seen < n_tokens ? g->n_stop_seen : WEFT_STOP_KEEP_ALL;
}

static void notify_reader(void *self) {
  weft_generation *g = self;
  void (*ready)(void *) = atomic_load(&g->ready);
  if (ready != NULL) ready(atomic_load(&g->ready_self));
}

/* ---- submit ------------------------------------------------------------------------------------------------- */

static uint32_t to_ms(uint64_t us) {
  return us < 1000000000 ? (uint32_t)((us + 999) / 1000) : 1000000;
}

/* Whether something is asked for that is defined for answers token by token alone. */
static bool asks_for_tokens(const weft_generate_params *p) {
  bool rules = p->min_tokens > 0 || p->n_allowed_tokens > 0 || p->n_bad_words > 0;
  return p->prompt_logprobs || p->prompt_only || p->score || rules || weft_sampling_of_tokens(&p->sampling) != NULL;
}

/* Where the choice is the model's, what is not defined for a canvas decides it. */
static bool answers_by_canvas(const weft_generation *g, const weft_generate_params *p) {
  bool can = weft_model_get_info(g->model->model)->canvas_length > 0 && !asks_for_tokens(p);
  return p->mode == WEFT_MODE_DIFFUSION || (p->mode == WEFT_MODE_AUTO && can);
}

/* The last tokens of a prompt where the request wants it cut. */
static weft_status encode_prompt(weft_generation *g, const weft_prompt *prompt, const weft_generate_params *p,
                                 weft_error *error) {
  weft_status status = prompt_encode(g->model, prompt, &prompt_to_answer, &g->prompt, error);
  weft_tokens *t = &g->prompt.tokens;
  if (status != WEFT_OK) return status;
  uint32_t n_canvas = answers_by_canvas(g, p) ? weft_model_get_info(g->model->model)->canvas_length : 0;
  uint32_t kept = answer_limits_prompt(p, t->n, g->model->context, n_canvas);
  if (kept < t->n) memmove(t->ids, t->ids + (t->n - kept), kept * sizeof *t->ids);
  t->n = kept;
  return WEFT_OK;
}

static weft_status make_prompt(weft_generation *g, const weft_generate_params *p, weft_error *error) {
  weft_prompt prompt = p->prompt;
  if (p->tool_choice == WEFT_TOOLS_NONE) prompt.n_tools = 0;
  if (p->sibling == NULL) return encode_prompt(g, &prompt, p, error);
  if (p->prompt.turns != NULL || p->prompt.text != NULL || p->prompt.tokens != NULL) {
    return weft_fail(error, WEFT_E_INVALID, "give exactly one of a prompt and a sibling");
  }
  return prompt_copy(&p->sibling->prompt, &g->prompt, error);
}

static uint64_t fresh_seed(void) {
  uint64_t seed = 0;
  if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) seed = weft_clock_us();
  return seed;
}

static void fill_sampling(const weft_generation *g, const weft_generate_params *p, weft_request_params *out) {
  out->sampling = p->sampling;
  out->entropy_bound = p->entropy_bound;
  answer_defaults_fill(g->model, &out->sampling, &out->entropy_bound);
  out->sampling.logprobs = p->sampling.logprobs || p->score;
  if (!p->has_seed) out->sampling.seed = fresh_seed();
}

/* The longest answer that is asked for; the engine cuts it to what the context leaves. */
static uint32_t choose_length(const weft_generation *g, const weft_generate_params *p, bool canvas) {
  uint32_t max_tokens = p->max_tokens > 0 ? p->max_tokens : WEFT_ANSWER_TOKENS;
  if (p->prompt_only) return 0;
  if (!canvas || p->canvases == 0) return max_tokens;
  uint64_t most = (uint64_t)p->canvases * weft_model_get_info(g->model->model)->canvas_length;
  if (p->max_tokens > 0 && most >= max_tokens) return max_tokens;
  return most > UINT32_MAX ? UINT32_MAX : (uint32_t)most;
}

static uint32_t smaller_of(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

/* Memory that this generation holds besides the engine's request, for an answer as long as the context allows. */
static uint64_t caller_bytes(const weft_generation *g, const weft_generate_params *p, uint32_t max_tokens) {
  uint32_t context = g->model->context, room = context > g->prompt.tokens.n ? context - g->prompt.tokens.n : 0;
  const weft_generation_need need = {.n_prompt = g->prompt.tokens.n,
                                     .answer_max = smaller_of(max_tokens, room),
                                     .delta_tokens_max = smaller_of(smaller_of(max_tokens, room), DELTA_TOKENS_MAX),
                                     .echo = g->echo,
                                     .prompt_logprobs = g->prompt_logprobs,
                                     .n_prompt_top = p->n_prompt_top,
                                     .logprobs = g->logprobs,
                                     .collected = p->collected,
                                     .n_top = p->sampling.n_top_logprobs,
                                     .stop_bytes = g->stops.n_bytes,
                                     .format_bytes = g->grammar == NULL ? 0 : weft_grammar_bytes(g->grammar)};
  uint64_t kept = p->kept_bytes + (uint64_t)p->kept_per_prompt_token * g->prompt.tokens.n;
  return weft_generation_bytes(g->model, &need) + kept + answer_limits_bytes(&g->limits);
}

/* Whether the answer is written by diffusion by a runner that can hold it; submit refuses it from others. */
static bool is_held_canvas(const weft_generation *g, const weft_generate_params *p) {
  return answers_by_canvas(g, p) && g->model->runner->ops->info(g->model->runner)->holds_canvases;
}

/* The compiled format of the answer. A tenant whose formats took too long hears when to come again. */
static weft_status get_grammar(weft_generation *g, const weft_generate_params *p, weft_grammar_kind kind,
                               const char *text, size_t n, weft_error *error) {
  uint64_t retry_us;
  const weft_format_ask ask = {p->tenant, kind, is_held_canvas(g, p), text, n, p->stop_submit, p->stop_self};
  weft_status status = weft_formats_get(g->model->formats, &ask, &g->grammar, &retry_us, error);
  if (status == WEFT_RATE_LIMIT && p->retry_ms != NULL) *p->retry_ms = to_ms(retry_us);
  return status;
}

/* The grammar of calls, of a format, of both, and of thinking before them. */
static weft_status find_grammar(weft_generation *g, const weft_generate_params *p, const weft_text *calls,
                                weft_error *error) {
  bool thinks = p->prompt.thinking || g->prompt.thinks, formatted = p->format != WEFT_FORMAT_ANY;
  if (!g->calls.held && !formatted) return WEFT_OK;
  if (!thinks && !formatted) return get_grammar(g, p, WEFT_GRAMMAR_CALLS, calls->bytes, calls->n, error);
  if (!thinks && !g->calls.held) {
    return get_grammar(g, p, (weft_grammar_kind)p->format, p->format_text, p->n_format_text, error);
  }
  weft_text text = {0};
  call_plan_answer(g->model, p, &g->calls, g->prompt.thinks, calls, &text);
  weft_status status = weft_text_status(&text) == WEFT_OK
                           ? get_grammar(g, p, WEFT_GRAMMAR_ANSWER, text.bytes, text.n, error)
                           : weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the format of the answer");
  weft_text_free(&text);
  return status;
}

/* Which format was asked for. */
static uint64_t key_of_format(const weft_generate_params *p) {
  return p->format_text == NULL ? (uint64_t)p->format
                                : XXH3_64bits_withSeed(p->format_text, p->n_format_text, (uint64_t)p->format);
}

/* What tools and a format mean for the answer. A sibling's prompt has the same tools, and what is held with them is as
 * the sibling's: it has the sibling's format or leaves it out. */
static weft_status find_answer(weft_generation *g, const weft_generate_params *p, weft_error *error) {
  const weft_text none = {0};
  g->format_key = key_of_format(p);
  if (p->sibling != NULL) {
    g->calls = p->sibling->calls;
    g->held_thinking = p->sibling->held_thinking;
    if (g->calls.held || g->held_thinking) {
      if (p->format != WEFT_FORMAT_ANY && g->format_key != p->sibling->format_key) {
        return weft_fail(error, WEFT_E_UNSUPPORTED,
                         "a sibling of a generation with tools or thinking has its format: give the same one, or none");
      }
      g->grammar = weft_grammar_ref(p->sibling->grammar);
      return WEFT_OK;
    }
    return find_grammar(g, p, &none, error);
  }
  weft_text calls = {0};
  weft_status status = call_plan_make(g->model, p, answers_by_canvas(g, p), &g->calls, &calls, error);
  if (status == WEFT_OK) status = find_grammar(g, p, &calls, error);
  g->held_thinking = g->grammar != NULL && (p->prompt.thinking || g->prompt.thinks);
  weft_text_free(&calls);
  return status;
}

/* Opens what reading the answer needs, and fills the parameters of the engine's request. */
static weft_status prepare_request(weft_generation *g, const weft_generate_params *p, uint64_t now,
                                   weft_request_params *out, weft_error *error) {
  weft_status status = make_prompt(g, p, error);
  if (status == WEFT_OK) status = weft_stops_open(&g->stops, p->stop, p->n_stop, error);
  if (status == WEFT_OK) status = find_answer(g, p, error);
  if (status == WEFT_OK && g->grammar != NULL && p->ignore_eos) {
    return weft_fail(error, WEFT_E_INVALID,
                     "ignore_eos and a format of the answer, or a tool that must be called, exclude each other: leave "
                     "one of them out");
  }
  if (status == WEFT_OK) status = answer_limits_open(g->model, p, &g->limits, error);
  if (status != WEFT_OK) return status;
  bool canvas = g->canvas = answers_by_canvas(g, p);
  unsigned flags = (p->with_special ? (unsigned)WEFT_DETOK_WITH_SPECIAL : 0u) |
                   (p->whole_tokens ? (unsigned)WEFT_DETOK_WHOLE_TOKENS : 0u);
  weft_chat_stream_open(&g->stream, g->prompt.chat, g->model->tokenizer, flags, g->prompt.thinks);
  weft_chat_stream_open(&g->stop_stream, g->prompt.chat, g->model->tokenizer, flags, g->prompt.thinks);
  g->stream.shows_calls = g->stop_stream.shows_calls = g->calls.read;
  if (g->stops.n > 0 && weft_chat_stream_reserve(&g->stop_stream) != WEFT_OK) {
    return weft_fail(error, WEFT_E_NO_MEMORY, "no memory to look for stop strings");
  }
  g->min_tokens = p->min_tokens;
  g->keep_stop = p->keep_stop;
  g->ignore_eos = p->ignore_eos;
  g->whole_tokens = p->whole_tokens;
  g->logprobs = p->sampling.logprobs && !canvas;
  g->score = p->score && !canvas;
  g->echo = p->echo && p->sibling == NULL;
  g->with_special = p->with_special;
  g->prompt_logprobs = p->prompt_logprobs && p->sibling == NULL;
  uint32_t max_tokens = choose_length(g, p, canvas);
  *out = (weft_request_params){.tenant = p->tenant,
                               .domain = answer_limits_domain(
                                   g->runtime->salt_secret, weft_runtime_domain(g->runtime, p->tenant), p->cache_salt),
                               .canvas = canvas,
                               .tokens = g->prompt.tokens.ids,
                               .n_tokens = g->prompt.tokens.n,
                               .max_tokens = max_tokens,
                               .prompt_logprobs = g->prompt_logprobs,
                               .n_prompt_top = p->n_prompt_top,
                               .ignore_eos = p->ignore_eos && !g->limits.has_stop,
                               .stop_rule = g->stops.n > 0 ? stop_rule : NULL,
                               .stop_self = g,
                               .notify = notify_reader,
                               .notify_self = g,
                               .deadline_us = p->timeout_ms > 0 ? now + (uint64_t)p->timeout_ms * 1000u : 0,
                               .priority = p->priority,
                               .no_cache = p->no_cache,
                               .caller_bytes = caller_bytes(g, p, max_tokens),
                               .canvas_events = canvas && p->canvas_deltas,
                               .trace = canvas && p->trace};
  out->stop_tokens = weft_tokenizer_eog(g->model->tokenizer, &out->n_stop_tokens);
  if (g->limits.has_stop) {
    out->stop_tokens = g->limits.stop.ids;
    out->n_stop_tokens = g->limits.stop.n;
  }
  fill_sampling(g, p, out);
  out->grammar = g->grammar;
  out->rules = g->limits.rules;
  return WEFT_OK;
}

/* Requests on their way into the engine: [n_prompts x n_choices], the choices of a prompt one after the other. */
typedef struct submission {
  weft_runtime *runtime;
  weft_generation **out;
  weft_request_params *request;
  weft_request **handle;
  uint32_t n;
  uint64_t now;
} submission;

static weft_status take_memory(submission *s, weft_error *error) {
  s->request = weft_alloc(s->n, sizeof *s->request);
  s->handle = weft_alloc(s->n, sizeof *s->handle);
  if (s->request != NULL && s->handle != NULL) return WEFT_OK;
  return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for %u answers", s->n);
}

static weft_status prepare_at(submission *s, const weft_generate_params *params, uint32_t at, weft_error *error) {
  weft_runtime *rt = s->runtime;
  uint32_t index;
  if (params->tenant >= rt->options.tenants) {
    return weft_fail(error, WEFT_E_INVALID, "tenant %u does not exist; there are %u", params->tenant,
                     rt->options.tenants);
  }
  const weft_served_model *m = weft_runtime_model(rt, params->model, &index, error);
  if (m == NULL) return WEFT_E_NOT_FOUND;
  weft_generation *g = s->out[at] = weft_alloc(1, sizeof *g);
  if (g == NULL) return WEFT_E_NO_MEMORY;
  g->runtime = rt;
  g->model = m;
  weft_request_params *request = &s->request[at];
  weft_status status = prepare_request(g, params, s->now, request, error);
  request->model = index;
  return status;
}

/* The choices of a prompt: the first reads it, the others are its siblings. */
static weft_status prepare_choices(submission *s, const weft_generate_params *params, uint32_t first, uint32_t n,
                                   weft_error *error) {
  weft_generate_params p = *params;
  weft_status status = prepare_at(s, &p, first, error);
  if (status == WEFT_OK && p.sibling != NULL) s->request[first].sibling = p.sibling->request;
  for (uint32_t k = 1; k < n && status == WEFT_OK; k++) {
    p.prompt = (weft_prompt){0};
    p.sibling = s->out[first];
    p.sampling.choice += 1;
    status = prepare_at(s, &p, first + k, error);
    s->request[first + k].joins = true;
  }
  return status;
}

/* The engine has checked the tokens, and counted the memory. */
static weft_status open_parts(weft_generation *g, weft_error *error) {
  if (!g->echo && !g->prompt_logprobs) return WEFT_OK;
  weft_status status = prompt_parts_open(&g->parts, g->model->tokenizer, g->prompt.tokens.ids, g->prompt.tokens.n,
                                         g->echo, g->with_special);
  return status == WEFT_OK ? status : weft_fail(error, status, "the prompt has no text: %s", weft_status_text(status));
}

static weft_status submit_prompts(submission *s, const weft_generate_params *params, uint32_t n_prompts,
                                  uint32_t n_choices, weft_error *error) {
  uint64_t retry_us = 0;
  weft_status status = take_memory(s, error);
  for (uint32_t p = 0; p < n_prompts && status == WEFT_OK; p++) {
    status = prepare_choices(s, &params[p], p * n_choices, n_choices, error);
  }
  if (status != WEFT_OK) return status;
  s->request->retry_us = &retry_us;
  status = weft_replicas_submit_all(s->runtime->replicas, s->request, s->n, s->now, s->handle, error);
  if (params->retry_ms != NULL) *params->retry_ms = to_ms(retry_us);
  for (uint32_t i = 0; i < s->n && status == WEFT_OK; i++) s->out[i]->request = s->handle[i];
  for (uint32_t i = 0; i < s->n && status == WEFT_OK; i++) status = open_parts(s->out[i], error);
  return status;
}

int weft_submit_all(weft_runtime *rt, const weft_generate_params *params, uint32_t n_prompts, uint32_t n_choices,
                    weft_generation **out, char *error, size_t n_error) {
  weft_error why = {{0}};
  submission s = {.runtime = rt, .out = out, .now = weft_clock_us()};
  if (n_prompts == 0 || n_choices == 0 || n_prompts > WEFT_ANSWERS_MAX / n_choices) {
    (void)weft_fail(&why, WEFT_E_INVALID, "%u prompts times %u choices; there may be 1 to %d answers", n_prompts,
                    n_choices, WEFT_ANSWERS_MAX);
    return weft_tell(&why, WEFT_E_INVALID, error, n_error);
  }
  s.n = n_prompts * n_choices;
  memset(out, 0, s.n * sizeof *out);
  weft_status status = submit_prompts(&s, params, n_prompts, n_choices, &why);
  weft_free(s.request);
  weft_free(s.handle);
  if (status == WEFT_OK) return 0;
  for (uint32_t i = 0; i < s.n; i++) {
    weft_generation_free(out[i]);
    out[i] = NULL;
  }
  return weft_tell(&why, status, error, n_error);
}

int weft_submit(weft_runtime *rt, const weft_generate_params *params, weft_generation **out, char *error,
                size_t n_error) {
  return weft_submit_all(rt, params, 1, 1, out, error, n_error);
}

void weft_on_ready(weft_generation *g, void (*ready)(void *self), void *self) {
  atomic_store(&g->ready_self, self);
  atomic_store(&g->ready, ready);
  ready(self); /* what came before is not missed */
}

weft_mode weft_answer_mode(const weft_generation *g) {
  return g->canvas ? WEFT_MODE_DIFFUSION : WEFT_MODE_AUTOREGRESSIVE;
}

uint32_t weft_prompt_tokens(const weft_generation *g, const int32_t **tokens) {
  *tokens = g->prompt.tokens.ids;
  return g->prompt.tokens.n;
}

int weft_prompt_part(weft_generation *g, uint32_t first, weft_delta *out) {
  weft_prompt_logprobs logprobs;
  if (!g->prompt_logprobs) return (int)prompt_parts_get(&g->parts, first, NULL, out);
  weft_status status = weft_engine_prompt_logprobs(g->request, &logprobs);
  if (status == WEFT_AGAIN) return WEFT_AGAIN;
  if (status != WEFT_OK) return (int)prompt_parts_get(&g->parts, g->parts.n, NULL, out); /* it ended before */
  return (int)prompt_parts_get(&g->parts, first, &logprobs, out);
}

void weft_cancel(weft_generation *g) {
  weft_engine_cancel(weft_replicas_of(g->runtime->replicas, g->request), g->request);
}

void weft_generation_free(weft_generation *g) {
  if (g == NULL) return;
  if (g->request != NULL) weft_engine_release(weft_replicas_of(g->runtime->replicas, g->request), g->request);
  weft_chat_stream_close(&g->stream);
  weft_chat_stream_close(&g->stop_stream);
  weft_stops_close(&g->stops);
  weft_grammar_unref(g->grammar);
  answer_limits_close(&g->limits);
  prompt_parts_close(&g->parts);
  prompt_close(&g->prompt);
  weft_text_free(&g->limbo);
  weft_text_free(&g->text);
  weft_text_free(&g->stop);
  delta_logprobs_close(&g->entries);
  weft_free(g->text_at);
  weft_free(g);
}

bool weft_generation_calls(const weft_generation *g, weft_call_form *form) {
  *form = g->calls.form;
  return g->calls.read;
}

/* ---- the reader ------------------------------------------------------------------------------------------------ */

/* Forgets what the last delta gave. */
static void drop_released(weft_generation *g) {
  g->n_given += g->n_released;
  g->n_ids -= g->n_released;
  if (g->text_at != NULL) memmove(g->text_at, g->text_at + g->n_released, g->n_ids * sizeof *g->text_at);
  g->n_released = 0;
  weft_text_clear(&g->text);
}

/* Drops the first n bytes of limbo, which were searched. */
static void drop_limbo(weft_generation *g, size_t n) {
  if (n == 0) return;
  memmove(g->limbo.bytes, g->limbo.bytes + n, g->limbo.n - n + 1);
  g->limbo.n -= n;
  g->n_searched = g->limbo.n;
}

/* Moves from limbo to the delta what can no longer become a stop string; ids follow their text in whole-token mode. */
static void release_text(weft_generation *g, bool all) {
  size_t end = 0, from = g->n_searched, n_new = g->limbo.n - from;
  if (!g->stopped && n_new > 0 &&
      weft_stops_read(&g->stops, &g->search, g->limbo.bytes + from, n_new, g->limbo_thinking, &end)) {
    size_t n_stop = weft_stops_found(&g->stops, &g->search);
    weft_text_append(&g->text, g->limbo.bytes, g->keep_stop ? from + end : from + end - n_stop);
    weft_text_append(&g->stop, g->limbo.bytes + from + end - n_stop, n_stop);
    g->stopped = true;
  }
  g->n_searched = g->limbo.n;
  size_t held = all ? 0 : weft_stops_held(&g->stops, &g->search);
  if (g->stopped) {
    drop_limbo(g, g->limbo.n);
  } else if (held == 0 || !g->whole_tokens) {
    if (g->limbo.n > held) weft_text_append(&g->text, g->limbo.bytes, g->limbo.n - held);
    drop_limbo(g, g->limbo.n - held);
  }
  if (g->whole_tokens && g->limbo.n > 0) return;
  g->n_released = g->n_ids - (uint32_t)g->n_waiting;
}

/* Counts the text that was added to limbo, which had `before` bytes. */
static void count_text(weft_generation *g, size_t before) {
  if (g->limbo.n > before)
    g->n_characters += (uint32_t)weft_text_characters(g->limbo.bytes + before, g->limbo.n - before);
}

/* Where the text of the next token begins; limbo had `before` bytes then. A token that ends within a character prints
 * nothing yet. */
static weft_status keep_place(weft_generation *g, size_t before) {
  if (!g->logprobs) return WEFT_OK;
  uint32_t *text_at = weft_grow(g->text_at, g->n_ids, &g->text_at_capacity, 16, sizeof *text_at);
  if (text_at == NULL) return WEFT_E_NO_MEMORY;
  g->text_at = text_at;
  g->text_at[g->n_ids] = g->n_characters;
  count_text(g, before);
  return WEFT_OK;
}

/* Takes tokens of the event until it is used up, the delta is full or the channel changes. */
static weft_status take_tokens(weft_generation *g, bool *thinking) {
  g->answer = g->event.tokens - g->event.first;
  g->n_top = g->event.n_top;
  if (g->event.logprobs != NULL) g->logprob = g->event.logprobs - (size_t)g->event.first * (1 + g->n_top);
  /* one at a time where calls are read, so that whose text a logprob belongs to does not depend on the reader's haste */
  uint32_t n_max = !g->logprobs ? DELTA_TOKENS_MAX : g->calls.read ? 1 : delta_logprobs_tokens_max(g->n_top);
  for (uint32_t n = 0; n < n_max && g->next < g->event.n; n++) {
    uint32_t i = g->next;
    uint32_t n_ids = 1;
    bool channel = g->limbo_thinking;
    size_t before = g->limbo.n;
    weft_status status = weft_chat_stream_push(&g->stream, g->event.tokens[i], &g->limbo, &channel, &n_ids);
    if (status == WEFT_OK) status = keep_place(g, before);
    if (status != WEFT_OK) return status;
    bool searched = g->event.first + i >= g->min_tokens; /* as the engine thread does */
    if (!searched) g->n_searched = g->limbo.n;
    if (g->score) g->logprob_sum += (double)g->event.logprobs[(size_t)i * (1 + g->n_top)].logprob;
    g->next += 1;
    g->n_ids += 1;
    g->n_waiting = n_ids > 0 ? 0 : g->n_waiting + 1;
    bool grew = g->limbo.n > before;
    if (grew && channel != g->limbo_thinking && (before > 0 || g->text.n > 0)) {
      /* the text of the other channel goes first: split what limbo holds */
      weft_text tail = {0};
      weft_text_append(&tail, g->limbo.bytes + before, g->limbo.n - before);
      g->limbo.n = before;
      if (g->n_searched > before) g->n_searched = before;
      release_text(g, true);
      if (g->n_released == g->n_ids) g->n_released -= 1; /* this token belongs to the text that follows */
      status = weft_text_status(&tail);
      weft_text_append(&g->limbo, tail.bytes, tail.n);
      weft_text_free(&tail);
      if (!searched) g->n_searched = g->limbo.n;
      *thinking = g->limbo_thinking;
      g->limbo_thinking = channel;
      return status == WEFT_OK ? weft_text_status(&g->limbo) : status;
    }
    if (grew) g->limbo_thinking = channel;
    release_text(g, false);
  }
  *thinking = g->limbo_thinking;
  return weft_text_status(&g->limbo);
}

/* The logprobs of n tokens: [n][1 + n_top]. */
static weft_status fill_logprobs(weft_generation *g, const weft_logprob *from, uint32_t n, weft_delta *out) {
  delta_logprobs *l = &g->entries;
  weft_status status = delta_logprobs_begin(l, g->model->tokenizer, n, g->n_top);
  for (uint32_t i = 0; i < n && status == WEFT_OK; i++) {
    const weft_logprob *own = from + (size_t)i * (1 + g->n_top), *top = own + 1;
    status = delta_logprobs_put(l, own->token, own->logprob, 0);
    for (uint32_t k = 0; k < g->n_top && status == WEFT_OK; k++) {
      status = delta_logprobs_put_top(l, top[k].token, top[k].logprob, 0);
    }
  }
  return status == WEFT_OK ? delta_logprobs_end(l, out) : status;
}

static weft_status give_text_delta(weft_generation *g, bool thinking, weft_delta *out) {
  *out = (weft_delta){.kind = WEFT_DELTA_TEXT,
                      .text = g->text.bytes == NULL ? "" : g->text.bytes,
                      .n_text = g->text.n,
                      .thinking = thinking,
                      .tokens = g->answer + g->n_given,
                      .n_tokens = g->n_released};
  if (weft_text_status(&g->text) != WEFT_OK) return WEFT_E_NO_MEMORY;
  if (!g->logprobs || g->n_released == 0) return WEFT_OK;
  out->text_at = g->text_at;
  return fill_logprobs(g, g->logprob + (size_t)g->n_given * (1 + g->n_top), g->n_released, out);
}

static weft_status give_canvas(weft_generation *g, weft_delta *out) {
  const weft_event *e = &g->event;
  weft_detok detok;
  weft_text_clear(&g->text);
  weft_detok_open(&detok, g->model->tokenizer, 0);
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < e->n_canvas && status == WEFT_OK; i++) {
    if (weft_tokenizer_is_eog(g->model->tokenizer, e->argmax[i])) break;
    bool marker = g->calls.read && weft_chat_is_call_marker(g->prompt.chat, e->argmax[i]);
    detok.flags = marker ? WEFT_DETOK_WITH_SPECIAL : 0;
    status = weft_detok_push(&detok, e->argmax[i], &g->text, NULL);
  }
  if (status == WEFT_OK) status = weft_detok_flush(&detok, &g->text, NULL);
  weft_detok_close(&detok);
  *out = (weft_delta){.kind = WEFT_DELTA_CANVAS,
                      .text = g->text.bytes == NULL ? "" : g->text.bytes,
                      .n_text = g->text.n,
                      .tokens = e->argmax,
                      .n_tokens = e->n_canvas,
                      .block = e->block,
                      .step = e->step,
                      .stopped = e->stopped,
                      .accepted = e->n_accepted,
                      .step_temperature = e->temperature,
                      .mean_entropy = e->mean_entropy,
                      .canvas_in = e->canvas_in,
                      .drawn = e->drawn,
                      .canvas_out = e->canvas_out,
                      .entropy = e->entropy,
                      .accepted_mask = e->accepted};
  return status;
}

/* The model's own ends are no answer to why it stopped. */
static int32_t own_stop_token(const weft_generation *g) {
  int32_t token = g->event.finish == WEFT_FINISH_STOP && g->limits.has_stop ? g->event.stop_token : -1;
  return token >= 0 && !g->ignore_eos && weft_tokenizer_is_eog(g->model->tokenizer, token) ? -1 : token;
}

static weft_status give_end(weft_generation *g, weft_delta *out) {
  const weft_usage *u = &g->event.usage;
  (void)snprintf(g->error, sizeof g->error, "%s", g->event.error == NULL ? "" : g->event.error);
  if (g->lost != WEFT_OK && g->event.finish != WEFT_FINISH_ERROR) {
    g->event.finish = WEFT_FINISH_ERROR;
    (void)snprintf(g->error, sizeof g->error, "the text of the answer broke off: %s", weft_status_text(g->lost));
  }
  /* broken bytes at the very end are printed only now, and U+FFFD may complete a stop string */
  if (g->stopped && g->event.finish == WEFT_FINISH_LENGTH) g->event.finish = WEFT_FINISH_STOP;
  *out = (weft_delta){
      .kind = WEFT_DELTA_END,
      .text = "",
      .finish = weft_finish_text(g->event.finish),
      .stop = g->stopped && g->event.finish == WEFT_FINISH_STOP ? g->stop.bytes : NULL,
      .error = g->event.finish == WEFT_FINISH_ERROR ? g->error : NULL,
      .retry_ms = to_ms(g->event.retry_us),
      .stop_token = own_stop_token(g),
      .mean_logprob = u->n_answer == 0 ? -INFINITY : g->logprob_sum / u->n_answer,
      .usage = {.prompt_tokens = u->n_prompt,
                .cached_tokens = u->n_cached,
                .completion_tokens = u->n_answer,
                .canvases = u->n_canvases,
                .denoise_steps = u->n_denoise_steps,
                .preemptions = u->n_preemptions,
                .queue_us = u->started_us > u->submitted_us ? u->started_us - u->submitted_us : 0,
                .first_token_us = u->first_token_us > u->submitted_us ? u->first_token_us - u->submitted_us : 0,
                .total_us = u->finished_us - u->submitted_us,
                .denoising_us = u->denoising_us > u->submitted_us ? u->denoising_us - u->submitted_us : 0}};
  g->ended = true;
  g->n_top = g->event.n_top;
  bool has_logprobs = g->logprobs && g->event.logprobs != NULL && g->event.finish == WEFT_FINISH_STOP;
  if (has_logprobs) out->text_at = &g->n_characters;
  return has_logprobs ? fill_logprobs(g, g->event.logprobs, 1, out) : WEFT_OK;
}

/* A reader that lost text gives no more of it: the request ends, and its end says why. */
static weft_status give_lost(weft_generation *g, weft_delta *out, bool *given) {
  bool ends = g->has_event && g->event.kind == WEFT_EVENT_FINISHED;
  *given = ends;
  if (ends) return give_end(g, out);
  g->has_event = false;
  return WEFT_OK;
}

/* The end of the tokens: what the stream still holds comes out. */
static weft_status flush_stream(weft_generation *g, bool *thinking) {
  bool channel = g->limbo_thinking;
  size_t before = g->limbo.n;
  weft_status status = weft_chat_stream_flush(&g->stream, &g->limbo, &channel, NULL);
  if (g->logprobs) count_text(g, before);
  if (g->limbo.n > before) g->limbo_thinking = channel;
  g->n_waiting = 0;
  release_text(g, true);
  *thinking = g->limbo_thinking;
  return status;
}

static weft_status next_delta(weft_generation *g, weft_delta *out, bool *given) {
  bool thinking = g->limbo_thinking;
  weft_status status = WEFT_OK;
  *given = true;
  drop_released(g);
  if (g->has_event && g->event.kind == WEFT_EVENT_TOKENS) {
    status = take_tokens(g, &thinking);
    if (g->next == g->event.n) g->has_event = false;
    if (status == WEFT_OK) status = weft_text_status(&g->text);
    if (status == WEFT_OK && (g->text.n > 0 || g->n_released > 0)) return give_text_delta(g, thinking, out);
  } else if (g->has_event && g->event.kind == WEFT_EVENT_CANVAS) {
    g->has_event = false;
    return give_canvas(g, out);
  } else if (g->has_event) {
    if (!g->finishing) {
      g->finishing = true;
      status = flush_stream(g, &thinking);
      if (status == WEFT_OK) status = weft_text_status(&g->text);
      if (status == WEFT_OK && (g->text.n > 0 || g->n_released > 0)) return give_text_delta(g, thinking, out);
    }
    if (status == WEFT_OK) return give_end(g, out);
  }
  *given = false;
  return status;
}

int weft_next(weft_generation *g, uint32_t timeout_ms, weft_delta *out) {
  weft_engine *engine = weft_replicas_of(g->runtime->replicas, g->request);
  if (g->ended) return WEFT_AGAIN;
  uint64_t until = weft_clock_us() + (uint64_t)timeout_ms * 1000u;
  for (;;) {
    bool given;
    weft_status status = g->lost == WEFT_OK ? next_delta(g, out, &given) : give_lost(g, out, &given);
    if (status != WEFT_OK) {
      g->lost = status;
      weft_engine_cancel(engine, g->request);
      continue;
    }
    if (given) return 0;
    if (g->has_event) continue;
    status = weft_engine_poll(engine, g->request, &g->event);
    if (status == WEFT_OK) {
      g->has_event = true;
      g->next = 0;
      continue;
    }
    if (status != WEFT_AGAIN) return (int)status;
    uint64_t now = weft_clock_us();
    if (now >= until) return WEFT_AGAIN;
    status = weft_engine_wait(engine, g->request, until - now);
    if (status != WEFT_OK && status != WEFT_AGAIN) return (int)status;
  }
}
