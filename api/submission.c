/* SPDX-License-Identifier: MIT */
/* Parameters in, generations out: what was asked becomes a request of the engine and the generation that reads its
 * answer. What a request leaves open of its sampling is filled in here (answer_defaults.h). */
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

#include "api/answer_defaults.h"
#include "api/drafts.h"
#include "api/generation_internal.h"
#include "api/request_memory.h"
#include "api/residents.h"
#include "api/tenants.h"
#include "base/memory.h"
#include "base/random.h"

_Static_assert((int)WEFT_ANSWERS_MAX == (int)WEFT_SUBMISSION_MAX, "what weft.h promises, the engine takes");

/* Whether something is asked for that is defined for answers token by token alone. */
static bool asks_for_tokens(const weft_generate_params *p) {
  bool rules = p->min_tokens > 0 || p->n_allowed_tokens > 0 || p->n_bad_words > 0;
  return p->prompt_logprobs || p->prompt_only || p->score || rules || weft_sampling_of_tokens(&p->sampling) != NULL;
}

/* Where the choice is the model's, what is not defined for a canvas decides it. */
bool generation_by_canvas(const weft_served_model *m, const weft_generate_params *p) {
  bool can = weft_model_get_info(m->model)->canvas_length > 0 && !asks_for_tokens(p);
  return p->mode == WEFT_MODE_DIFFUSION || (p->mode == WEFT_MODE_AUTO && can);
}

/* The next seed of --seed's row, or one that nobody can foretell. */
static uint64_t next_seed(weft_runtime *runtime) {
  uint64_t seed = 0;
  if (runtime->has_seed) return weft_mix64(runtime->seed + weft_mix64(runtime->n_seeds++));
  if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) seed = weft_clock_us();
  return seed;
}

/* Fills in what was left open, and takes back what means nothing here: a sibling's prompt is given back by the
 * generation that computes it, and an answer by tokens has no canvases. */
static void fill_asked(const weft_generation *g, weft_generate_params *asked) {
  answer_defaults_fill(g->model, &asked->sampling, &asked->entropy_bound);
  drafts_fill(g->model, &asked->draft);
  if (!asked->has_seed) asked->sampling.seed = next_seed(g->runtime);
  asked->echo = asked->echo && asked->sibling == NULL;
  asked->prompt_logprobs = asked->prompt_logprobs && asked->sibling == NULL;
  asked->canvas_deltas = asked->canvas_deltas && g->canvas;
  asked->trace = asked->trace && g->canvas;
}

/* The last tokens of a prompt where the request wants it cut. */
static weft_status encode_prompt(weft_generation *g, const weft_prompt *prompt, const weft_generate_params *p,
                                 weft_error *error) {
  const prompt_form form = prompt_form_of(p->tool_choice);
  weft_status status = prompt_encode(g->model, prompt, &form, &g->prompt, error);
  weft_tokens *t = &g->prompt.tokens;
  if (status != WEFT_OK) return status;
  uint32_t n_canvas = g->canvas ? weft_model_get_info(g->model->model)->canvas_length : 0;
  uint32_t kept = answer_limits_prompt(p, t->n, g->model->context, n_canvas);
  uint32_t n_cut = t->n > kept ? t->n - kept : 0;
  if (n_cut > 0) memmove(t->ids, t->ids + n_cut, kept * sizeof *t->ids);
  t->n = kept;
  for (uint32_t i = 0; i < WEFT_PARTINGS_MAX; i++) {
    uint32_t *parting = &g->prompt.parting[i];
    *parting = *parting > n_cut ? *parting - n_cut : 0;
  }
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

/* The longest answer that is asked for; the engine cuts it to what the context leaves. */
static uint32_t choose_length(const weft_generation *g, const weft_generate_params *p) {
  uint32_t max_tokens = p->max_tokens > 0 ? p->max_tokens : WEFT_ANSWER_TOKENS;
  if (p->prompt_only) return 0;
  if (!g->canvas || p->canvases == 0) return max_tokens;
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
  uint32_t answer_max = smaller_of(max_tokens, room);
  const weft_generation_size size = {.n_prompt = g->prompt.tokens.n,
                                     .answer_max = answer_max,
                                     .delta_tokens_max = smaller_of(answer_max, DELTA_TOKENS_MAX),
                                     .stop_bytes = g->stops.n_bytes,
                                     .format_bytes = g->grammar == NULL ? 0 : weft_grammar_bytes(g->grammar)};
  uint64_t kept = p->kept_bytes + (uint64_t)p->kept_per_prompt_token * g->prompt.tokens.n;
  return weft_generation_bytes(g->model, p, &size) + kept + answer_limits_bytes(&g->limits);
}

/* Whether the answer is written by diffusion by a runner that can hold it; submit refuses it from others. */
static bool is_held_canvas(const weft_generation *g) {
  return g->canvas && g->model->runner->ops->info(g->model->runner)->holds_canvases;
}

/* The compiled format of the answer. A tenant whose formats took too long hears when to come again. */
static weft_status get_grammar(weft_generation *g, const weft_generate_params *p, weft_grammar_kind kind,
                               const char *text, size_t n, weft_error *error) {
  uint64_t retry_us;
  const weft_format_ask ask = {p->tenant, kind, is_held_canvas(g), text, n, p->stop_submit, p->stop_self};
  weft_status status = weft_formats_get(g->model->formats, &ask, &g->grammar, &retry_us, error);
  if (status == WEFT_RATE_LIMIT && p->retry_ms != NULL) *p->retry_ms = generation_ms(retry_us);
  if (status == WEFT_RATE_LIMIT && p->own_limit != NULL) *p->own_limit = true;
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

/* A sibling's prompt has the same tools, and what is held with them is as the sibling's: the format is the sibling's,
 * named again or left out. */
static weft_status find_answer_of_sibling(weft_generation *g, const weft_generate_params *p, weft_error *error) {
  const weft_generation *sibling = p->sibling;
  const weft_text none = {0};
  g->calls = sibling->calls;
  g->held_thinking = sibling->held_thinking;
  if (!g->calls.held && !g->held_thinking) return find_grammar(g, p, &none, error);
  if (p->format != WEFT_FORMAT_ANY && key_of_format(p) != sibling->format_key)
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "a sibling of a generation with tools or thinking has its format: give the same one, or none");
  g->format_key = sibling->format_key;
  g->grammar = weft_grammar_ref(sibling->grammar);
  return WEFT_OK;
}

/* What tools and a format mean for the answer. */
static weft_status find_answer(weft_generation *g, const weft_generate_params *p, weft_error *error) {
  if (p->sibling != NULL) return find_answer_of_sibling(g, p, error);
  weft_text calls = {0};
  weft_status status = call_plan_make(g->model, p, g->canvas, &g->calls, &calls, error);
  if (status == WEFT_OK) status = find_grammar(g, p, &calls, error);
  g->held_thinking = g->grammar != NULL && (p->prompt.thinking || g->prompt.thinks);
  if (g->calls.held || g->held_thinking) g->format_key = key_of_format(p);
  weft_text_free(&calls);
  return status;
}

/* The two streams over the answer's tokens. */
static weft_status open_streams(weft_generation *g, const weft_generate_params *p, weft_error *error) {
  unsigned flags = (p->with_special ? (unsigned)WEFT_DETOK_WITH_SPECIAL : 0u) |
                   (p->whole_tokens ? (unsigned)WEFT_DETOK_WHOLE_TOKENS : 0u);
  weft_chat_stream *reader = &g->reader.stream, *watch = &g->watch.stream;
  weft_chat_stream_open(reader, g->prompt.chat, g->model->tokenizer, flags, g->prompt.thinks);
  weft_chat_stream_open(watch, g->prompt.chat, g->model->tokenizer, flags, g->prompt.thinks);
  reader->shows_calls = watch->shows_calls = g->calls.read;
  g->watch.min_tokens = p->min_tokens;
  if (g->stops.n == 0 || weft_chat_stream_reserve(watch) == WEFT_OK) return WEFT_OK;
  return weft_fail(error, WEFT_E_NO_MEMORY, "no memory to look for stop strings");
}

/* Opens what reading the answer needs. */
static weft_status open_generation(weft_generation *g, const weft_generate_params *p, weft_error *error) {
  weft_status status = make_prompt(g, p, error);
  if (status == WEFT_OK) status = weft_stops_open(&g->stops, p->stop, p->n_stop, error);
  if (status == WEFT_OK) status = find_answer(g, p, error);
  if (status == WEFT_OK && g->grammar != NULL && p->ignore_eos) {
    return weft_fail(error, WEFT_E_INVALID,
                     "ignore_eos and a format of the answer, or a tool that must be called, exclude each other: leave "
                     "one of them out");
  }
  if (status == WEFT_OK) status = answer_limits_open(g->model, p, &g->limits, error);
  return status == WEFT_OK ? open_streams(g, p, error) : status;
}

/* Which tokens end the answer: those that the request names, among them the model's own unless it ignores them. */
static void choose_stop_tokens(const weft_generation *g, weft_request_params *out) {
  if (g->limits.has_stop) {
    out->stop_tokens = g->limits.stop.ids;
    out->n_stop_tokens = g->limits.stop.n;
  } else if (!out->asked.ignore_eos) {
    out->stop_tokens = weft_tokenizer_eog(g->model->tokenizer, &out->n_stop_tokens);
  }
}

/* Decides what the engine is to do for out->asked. */
static weft_status prepare_request(weft_generation *g, uint64_t now, weft_request_params *out, weft_error *error) {
  weft_generate_params *asked = &out->asked;
  g->canvas = generation_by_canvas(g->model, asked);
  fill_asked(g, asked);
  weft_status status = open_generation(g, asked, error);
  if (status != WEFT_OK) return status;
  out->tenant = asked->tenant;
  out->domain =
      answer_limits_domain(g->runtime->salt_secret, weft_runtime_domain(g->runtime, asked->tenant), asked->cache_salt);
  out->canvas = g->canvas;
  out->tokens = g->prompt.tokens.ids;
  out->n_tokens = g->prompt.tokens.n;
  memcpy(out->parting, g->prompt.parting, sizeof out->parting);
  out->max_tokens = choose_length(g, asked);
  out->grammar = g->grammar;
  out->rules = g->limits.rules;
  choose_stop_tokens(g, out);
  out->stop_rule = g->stops.n > 0 ? generation_stop_rule : NULL;
  out->notify = generation_notify;
  out->stop_self = out->notify_self = g;
  out->deadline_us = asked->timeout_ms > 0 ? now + (uint64_t)asked->timeout_ms * 1000u : 0;
  out->caller_bytes = caller_bytes(g, asked, out->max_tokens);
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

/* Request number `at`, which has a copy of what was asked. */
static weft_status prepare_at(submission *s, uint32_t at, weft_error *error) {
  weft_runtime *rt = s->runtime;
  weft_request_params *request = &s->request[at];
  if (request->asked.tenant >= weft_tenants_count(rt)) {
    return weft_fail(error, WEFT_E_INVALID, "tenant %u does not exist; there are %u", request->asked.tenant,
                     weft_tenants_count(rt));
  }
  const weft_served_model *m = weft_runtime_model(rt, request->asked.model, &request->model, error);
  if (m == NULL) return WEFT_E_NOT_FOUND;
  weft_status status = residents_use(rt->residents, request->model, request->asked.tenant, error);
  if (status != WEFT_OK) return status;
  weft_generation *g = s->out[at] = weft_alloc(1, sizeof *g);
  if (g == NULL) return WEFT_E_NO_MEMORY;
  g->runtime = rt;
  g->model = m;
  return prepare_request(g, s->now, request, error);
}

/* The choices of a prompt: the first reads it, the others are its siblings. */
static weft_status prepare_choices(submission *s, const weft_generate_params *params, uint32_t first, uint32_t n,
                                   weft_error *error) {
  weft_request_params *request = &s->request[first];
  request->asked = *params;
  weft_status status = prepare_at(s, first, error);
  if (status == WEFT_OK && params->sibling != NULL) request->sibling = params->sibling->request;
  for (uint32_t k = 1; k < n && status == WEFT_OK; k++) {
    request[k].joins = true;
    request[k].asked = *params;
    request[k].asked.prompt = (weft_prompt){0};
    request[k].asked.sibling = s->out[first];
    request[k].asked.sampling.choice += k;
    status = prepare_at(s, first + k, error);
  }
  return status;
}

/* The engine has checked the tokens, and counted the memory. */
static weft_status open_parts(weft_generation *g, weft_error *error) {
  const weft_generate_params *asked = g->asked;
  if (!asked->echo && !asked->prompt_logprobs) return WEFT_OK;
  weft_status status = prompt_parts_open(&g->parts, g->model->tokenizer, g->prompt.tokens.ids, g->prompt.tokens.n,
                                         asked->echo, asked->with_special);
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
  s->request->own_limit = params->own_limit;
  status = weft_replicas_submit_all(s->runtime->replicas, s->request, s->n, s->now, s->handle, error);
  if (params->retry_ms != NULL) *params->retry_ms = generation_ms(retry_us);
  for (uint32_t i = 0; i < s->n && status == WEFT_OK; i++) {
    s->out[i]->request = s->handle[i];
    s->out[i]->asked = weft_engine_asked(s->handle[i]);
  }
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
