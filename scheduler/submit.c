/* SPDX-License-Identifier: MIT */
/* Submit: every request is judged here, before it costs anything. What happens when the queue is full is decided in
 * inbox.c. Any thread; reads what never changes after open, and one copy of the tenant's limits for each submission.
 *
 * Law. The engine can finish whatever passes with the pool as it is, alone if need be. A limit that only shortens the
 * answer (context) shortens it. A limit that no schedule can keep (pool, places for all requests of the submission,
 * their memory, tokens of a minute) refuses, and the line names the largest length or number that would fit. A request
 * that fits an idle engine is never refused in this way: at most it finds the engine FULL. A submission is one act:
 * nothing of it is left behind when it is refused or when memory runs out midway. */
#include <string.h>

#include "scheduler/engine.h"
#include "scheduler/fit.h"
#include "scheduler/pins.h"
#include "scheduler/snapshot.h"

enum { STOP_TOKENS_MAX = 1024 };

/* Programs that shorten a conversation and ask again look for these words, which OpenAI's servers began with. */
#define CONTEXT_IS "this model's maximum context length is %u tokens"

static weft_status check_tokens(const weft_request_params *p, uint32_t n_vocab, weft_error *error) {
  if (p->n_tokens == 0 || p->tokens == NULL) {
    return weft_fail(error, WEFT_E_INVALID, "the prompt is empty; give at least one token");
  }
  for (uint32_t i = 0; i < p->n_tokens; i++) {
    if (p->tokens[i] >= 0 && (uint32_t)p->tokens[i] < n_vocab) continue;
    return weft_fail(error, WEFT_E_INVALID, "prompt token %u is %d; the vocabulary has tokens 0 to %u", i, p->tokens[i],
                     n_vocab - 1);
  }
  if (p->n_stop_tokens > STOP_TOKENS_MAX) {
    return weft_fail(error, WEFT_E_INVALID, "%u stop tokens; at most %d are allowed", p->n_stop_tokens,
                     STOP_TOKENS_MAX);
  }
  return WEFT_OK;
}

/* Refuses what is not defined for a canvas, rather than ignoring it. */
static weft_status check_canvas(const weft_generate_params *asked, const weft_runner_info *info, weft_error *error) {
  bool logprobs = weft_wants_logprobs(asked);
  const char *what = logprobs ? "logprobs" : weft_sampling_of_tokens(&asked->sampling);
  if (what == NULL) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID,
                   "%s is not defined for a canvas%s, whose tokens move until it is done: leave it out, or ask %s for "
                   "mode \"autoregressive\"",
                   what, logprobs ? " (so best_of cannot choose by it)" : "", info->name);
}

static weft_status check_prompt_logprobs(const weft_request_params *p, const weft_runner_info *info,
                                         weft_error *error) {
  if (!p->asked.prompt_logprobs) return WEFT_OK;
  uint64_t n = (uint64_t)p->n_tokens * (1 + (uint64_t)p->asked.n_prompt_top);
  if (p->canvas) {
    return weft_fail(error, WEFT_E_INVALID,
                     "logprobs of the prompt are not defined for an answer by diffusion: leave them out, or ask %s for "
                     "mode \"autoregressive\"",
                     info->name);
  }
  if (p->asked.n_prompt_top > WEFT_TOP_LOGPROBS_MAX) {
    return weft_fail(error, WEFT_E_INVALID, "prompt_logprobs is %u; it must be at most %d", p->asked.n_prompt_top,
                     WEFT_TOP_LOGPROBS_MAX);
  }
  if (info->scored_rows_max == 0) {
    return weft_fail(error, WEFT_E_UNSUPPORTED, "%s gives no logprobs of a prompt", info->name);
  }
  if (n <= WEFT_PROMPT_LOGPROBS_MAX) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID,
                   "%u prompt tokens with the logprobs of %u more at each place are %llu logprobs; a request may have "
                   "%d: ask for fewer at each place, or shorten the prompt",
                   p->n_tokens, p->asked.n_prompt_top, (unsigned long long)n, WEFT_PROMPT_LOGPROBS_MAX);
}

static weft_status check_kind(const weft_request_params *p, const weft_runner_info *info, weft_error *error) {
  if (p->canvas && info->canvas_length == 0) {
    return weft_fail(error, WEFT_E_INVALID,
                     "%s cannot answer by diffusion, it has no canvas: ask for autoregressive decoding", info->name);
  }
  if (!p->canvas && !info->autoregressive) {
    return weft_fail(error, WEFT_E_INVALID, "%s cannot answer token by token; ask for diffusion", info->name);
  }
  if (p->canvas && p->max_tokens == 0) {
    return weft_fail(
        error, WEFT_E_INVALID,
        "max_tokens is 0: a prompt alone, without an answer, is not defined for an answer by diffusion; ask "
        "%s for mode \"autoregressive\"",
        info->name);
  }
  if (!p->canvas) return weft_sampling_check(&p->asked.sampling, info->n_vocab, error);
  weft_status status = check_canvas(&p->asked, info, error);
  return status == WEFT_OK ? weft_entropy_bound_check(&p->asked.entropy_bound, error) : status;
}

static weft_status check_draft(const weft_draft *d, weft_error *error) {
  if (d->kind >= WEFT_DRAFT_KINDS) return weft_fail(error, WEFT_E_INVALID, "drafts of kind %d", (int)d->kind);
  if (d->n_max > WEFT_DRAFTS_MAX)
    return weft_fail(error, WEFT_E_INVALID, "%u drafts of a step; there may be %d", d->n_max, WEFT_DRAFTS_MAX);
  if (d->kind != WEFT_DRAFT_NGRAM) return WEFT_OK;
  if (d->ngram_least >= 1 && d->ngram_least <= d->ngram_most && d->ngram_most <= WEFT_NGRAM_MAX) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID, "drafts after the same %u to %u tokens; there may be 1 to %d", d->ngram_least,
                   d->ngram_most, WEFT_NGRAM_MAX);
}

/* What the request may hold: the pool, or less where its tenant has a limit. */
typedef struct fit_within {
  uint32_t n_pages, tokens, canvas; /* as in weft_lane */
  const char *of;
} fit_within;

/* limit: pages that its tenant may hold; 0: all. */
static fit_within fit_of(const weft_engine *e, const weft_lane *lane, uint32_t limit) {
  if (limit == 0 || limit >= e->config.n_pages) {
    return (fit_within){e->config.n_pages, lane->fit_tokens, lane->fit_canvas, "of the pool"};
  }
  uint32_t n_canvas = lane->info->canvas_length;
  fit_within fit = {.n_pages = limit, .of = "that this tenant may hold"};
  fit.tokens = weft_fit_longest(e, lane->index, 1, limit);
  if (n_canvas > 0) fit.canvas = weft_fit_longest(e, lane->index, n_canvas, limit);
  return fit;
}

static weft_status size_autoregressive(const fit_within *fit, const weft_request_params *p, uint32_t context,
                                       weft_request_size *size, weft_error *error) {
  uint32_t room = context - p->n_tokens;
  size->answer_max = p->max_tokens < room ? p->max_tokens : room;
  uint32_t n_keys = p->n_tokens + (size->answer_max > 0 ? size->answer_max - 1 : 0); /* its last token needs no row */
  if (n_keys <= fit->tokens) return WEFT_OK;
  return weft_fail(error, WEFT_E_TOO_LARGE,
                   CONTEXT_IS
                   " here: %u prompt tokens and %u answer tokens need more than the %u pages %s; "
                   "prompt and max_tokens together may be %u",
                   fit->tokens + 1, p->n_tokens, size->answer_max, fit->n_pages, fit->of, fit->tokens + 1);
}

static weft_status size_canvas(const fit_within *fit, const weft_lane *lane, const weft_request_params *p,
                               uint32_t context, weft_request_size *size, weft_error *error) {
  uint32_t n = lane->info->canvas_length, room = (context - p->n_tokens) / n;
  if (room == 0) {
    return weft_fail(error, WEFT_E_TOO_LARGE,
                     CONTEXT_IS ", and a prompt of %u leaves no room for a canvas of %u; it may have %u", context,
                     p->n_tokens, n, context > n ? context - n : 0);
  }
  uint32_t wanted = (uint32_t)(((uint64_t)p->max_tokens + n - 1) / n);
  size->n_canvas = n;
  size->n_blocks = wanted < room ? wanted : room;
  uint64_t most = (uint64_t)size->n_blocks * n;
  size->answer_max = p->max_tokens < most ? p->max_tokens : (uint32_t)most;
  if (p->n_tokens > fit->tokens) {
    return weft_fail(error, WEFT_E_TOO_LARGE,
                     CONTEXT_IS " here: a prompt of %u needs more than the %u pages %s; it may have %u",
                     fit->tokens + 1, p->n_tokens, fit->n_pages, fit->of, fit->tokens);
  }
  uint32_t n_fit = 1; /* canvases: the last one is never committed, so one needs no pages */
  if (p->n_tokens < fit->canvas) n_fit += (fit->canvas - p->n_tokens) / n;
  if (size->n_blocks <= n_fit) return WEFT_OK;
  return weft_fail(error, WEFT_E_TOO_LARGE,
                   CONTEXT_IS
                   " here: %u prompt tokens and %u canvases of %u need more than the %u pages %s; "
                   "prompt and max_tokens together may be %u",
                   p->n_tokens + n_fit * n, p->n_tokens, size->n_blocks, n, fit->n_pages, fit->of,
                   p->n_tokens + n_fit * n);
}

static bool is_same_prompt(const weft_request_params *p, const weft_request_params *q) {
  return p->n_tokens == q->n_tokens &&
         (p->tokens == q->tokens || memcmp(p->tokens, q->tokens, p->n_tokens * sizeof *p->tokens) == 0);
}

/* before: the request before it in its submission, or NULL. What was asked never changes, so another thread may read it
 * while its request runs. */
static weft_status check_sibling(const weft_request_params *p, const weft_request_params *before, weft_error *error) {
  if (p->joins && (before == NULL || p->sibling != NULL)) {
    return weft_fail(error, WEFT_E_INVALID,
                     "a request joins the one before it in its submission; there is none, or "
                     "it names another sibling");
  }
  const weft_request_params *q = p->joins ? before : p->sibling != NULL ? &p->sibling->params : NULL;
  if (q == NULL) return WEFT_OK;
  bool same = p->model == q->model && p->canvas == q->canvas && p->tenant == q->tenant &&
              weft_key128_equal(p->domain, q->domain) && p->asked.no_cache == q->asked.no_cache && is_same_prompt(p, q);
  if (same) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID, "a sibling must have the same prompt, model, kind, tenant and cache");
}

/* Rules of tokens are refused where they could not be kept. */
static weft_status check_rules(const weft_request_params *p, const weft_runner_info *info, weft_error *error) {
  if (p->rules == NULL) return WEFT_OK;
  if (p->canvas) {
    return weft_fail(
        error, WEFT_E_INVALID,
        "min_tokens, allowed_token_ids and bad_words are not defined for a canvas, whose tokens move until "
        "it is done: leave them out, or ask %s for mode \"autoregressive\"",
        info->name);
  }
  if (p->grammar == NULL) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID,
                   "min_tokens, allowed_token_ids and bad_words together with a format of the answer or required tools "
                   "are not supported: the answer could be kept from ever being complete");
}

/* What an answer that is held to a grammar needs. */
static weft_status check_grammar(const weft_request_params *p, const weft_request_size *size,
                                 const weft_runner_info *info, weft_error *error) {
  if (p->grammar == NULL) return WEFT_OK;
  if (p->canvas && !info->holds_canvases) {
    return weft_fail(
        error, WEFT_E_INVALID,
        "a format of the answer, or a tool that must be called, is not supported on a canvas of %s: leave it "
        "out, or ask for mode \"autoregressive\"",
        info->name);
  }
  if (p->asked.ignore_eos) {
    return weft_fail(error, WEFT_E_INVALID, "ignore_eos and a format of the answer exclude each other: leave one out");
  }
  uint32_t shortest = weft_grammar_shortest(p->grammar);
  if (size->answer_max >= shortest) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID,
                   "the shortest answer of the format that was asked for has %u tokens and there is room for %u: %s",
                   shortest, size->answer_max,
                   p->max_tokens > size->answer_max ? "shorten the prompt" : "raise max_tokens");
}

static weft_status check_tokens_per_minute(uint32_t limit, const weft_request_params *p, const weft_request_size *size,
                                           weft_error *error) {
  if (limit == 0 || p->is_draft || p->n_tokens + size->answer_max <= limit) return WEFT_OK;
  return weft_fail(error, WEFT_E_LIMIT,
                   "%u prompt tokens and %u answer tokens are more than this tenant's %u a minute; "
                   "prompt and max_tokens together may be as many",
                   p->n_tokens, size->answer_max, limit);
}

static weft_status judge_request(const weft_engine *e, const weft_account *own, const weft_request_params *p,
                                 const weft_request_params *before, weft_request_size *size, weft_error *error) {
  if (p->model >= e->n_lanes) {
    return weft_fail(error, WEFT_E_INVALID, "model number %u; there are %u", p->model, e->n_lanes);
  }
  const weft_lane *lane = &e->lane[p->model];
  if (lane->broken) return weft_fail(error, WEFT_E_DEVICE, "%s", lane->reason);
  weft_status status = check_tokens(p, lane->info->n_vocab, error);
  if (status == WEFT_OK) status = check_kind(p, lane->info, error);
  if (status == WEFT_OK) status = check_prompt_logprobs(p, lane->info, error);
  if (status == WEFT_OK) status = check_draft(&p->asked.draft, error);
  if (status == WEFT_OK) status = check_sibling(p, before, error);
  if (status != WEFT_OK) return status;
  uint32_t context = lane->context;
  if (p->n_tokens > context || (p->n_tokens == context && p->max_tokens > 0)) {
    return weft_fail(error, WEFT_E_TOO_LARGE,
                     CONTEXT_IS
                     " and the prompt has %u, which leaves no room for an answer: it may have %u; shorten "
                     "it, or serve with a larger --context",
                     context, p->n_tokens, context - 1);
  }
  fit_within fit = fit_of(e, lane, own->blocks_max);
  status =
      p->canvas ? size_canvas(&fit, lane, p, context, size, error) : size_autoregressive(&fit, p, context, size, error);
  if (status == WEFT_OK) status = check_rules(p, lane->info, error);
  if (status == WEFT_OK) status = check_grammar(p, size, lane->info, error);
  return status == WEFT_OK ? check_tokens_per_minute(own->tokens_per_minute, p, size, error) : status;
}

/* Of its tenant's account. */
static uint64_t tokens_of(const weft_request_params *p, const weft_request_size *size) {
  return p->is_draft ? 0 : (uint64_t)p->n_tokens + size->answer_max;
}

static weft_status too_many(const weft_engine *e, const weft_account *own, uint32_t n, uint64_t n_tokens,
                            uint32_t n_fit, weft_error *error) {
  if (own->live_max > 0 && n > own->live_max) {
    return weft_fail(error, WEFT_E_INVALID,
                     "%u answers at once are more than this tenant's limits allow (%u running and %u waiting): ask for "
                     "at most %u",
                     n, own->running_max, own->waiting_max, n_fit);
  }
  if (n > e->places->live_max) {
    return weft_fail(error, WEFT_E_INVALID,
                     "%u answers at once are more than this server takes (%u running and %u waiting): ask for at most "
                     "%u",
                     n, e->places->running_max, e->places->waiting_max, n_fit);
  }
  return weft_fail(error, WEFT_E_INVALID,
                   "%u answers need %llu tokens, prompts and longest answers together, which is more than this "
                   "tenant's %u a minute: ask for at most %u, or for shorter ones",
                   n, (unsigned long long)n_tokens, own->tokens_per_minute, n_fit);
}

/* Whether an engine that has nothing to do takes them all, as long as the tenant's limits stay. */
static weft_status judge_together(const weft_engine *e, const weft_account *own, const weft_request_params *p,
                                  const weft_request_size *size, uint32_t n, uint64_t *n_tokens, weft_error *error) {
  uint32_t places = e->places->live_max, n_fit = 0;
  if (own->live_max > 0 && own->live_max < places) places = own->live_max;
  *n_tokens = 0;
  for (uint32_t i = 0; i < n; i++) {
    if (p[i].tenant != p->tenant) {
      return weft_fail(error, WEFT_E_INVALID,
                       "requests of tenants %u and %u in one submission; it must be one tenant's", p->tenant,
                       p[i].tenant);
    }
    *n_tokens += tokens_of(&p[i], &size[i]);
    if (own->tokens_per_minute == 0 || *n_tokens <= own->tokens_per_minute) n_fit += 1;
  }
  if (n_fit > places) n_fit = places;
  return n_fit == n ? WEFT_OK : too_many(e, own, n, *n_tokens, n_fit, error);
}

/* Whether the budget has room for all of them when no other request holds any. A request that does not even fit alone
 * is refused by weft_request_open. */
static weft_status judge_memory(const weft_engine *e, const weft_request_params *p, const weft_request_size *size,
                                uint32_t n, weft_error *error) {
  uint64_t n_bytes = 0, largest = weft_budget_largest(&e->places->budget);
  uint32_t n_fit = 0;
  for (uint32_t i = 0; i < n; i++) {
    n_bytes += weft_request_bytes(&p[i], &size[i]);
    if (n_bytes <= largest) n_fit += 1;
  }
  if (n_fit == n || n_fit == 0) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID,
                   "%u answers need %llu bytes of memory and one submission may have %llu: ask for at most %u, for "
                   "shorter ones or for fewer logprobs, or serve with a larger --request-mib",
                   n, (unsigned long long)n_bytes, (unsigned long long)largest, n_fit);
}

static void free_all(weft_request **request, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    weft_request_unref(request[i]); /* the engine's */
    weft_request_unref(request[i]);
    request[i] = NULL;
  }
}

/* n_answer: tokens, whole canvases of a canvas. */
static uint64_t rows_of(const weft_request_params *p, uint64_t n_answer) {
  return p->n_tokens + (p->canvas ? n_answer * ((uint64_t)p->asked.entropy_bound.max_steps + 1) : n_answer);
}

uint64_t weft_engine_rows(const weft_engine *e, const weft_request_params *p) {
  const weft_lane *lane = &e->lane[p->model];
  uint64_t room = p->n_tokens < lane->context ? lane->context - p->n_tokens : 0;
  uint64_t n = p->max_tokens < room ? p->max_tokens : room, canvas = lane->info->canvas_length;
  return rows_of(p, p->canvas && canvas > 0 ? (n + canvas - 1) / canvas * canvas : n);
}

static void recall_drafts(const weft_engine *e, weft_request *r) {
  const weft_request_params *p = &r->params;
  if (e->draft_history == NULL || p->canvas || p->asked.draft.kind == WEFT_DRAFT_OFF || p->asked.no_cache) return;
  weft_draft_history_find(e->draft_history, &r->drafting, p->domain, p->model, r->tokens, p->n_tokens);
}

/* FULL: the budget has no room for all of them now; those that had it give it back. */
static weft_status open_all(weft_engine *const *engine, const weft_account *own, const weft_request_params *params,
                            const weft_request_size *size, uint32_t n, uint64_t now_us, weft_request **out,
                            weft_error *error) {
  weft_budget *budget = &engine[0]->places->budget;
  for (uint32_t i = 0; i < n; i++) {
    weft_request_params p = params[i];
    if (p.joins) p.sibling = out[i - 1];
    weft_status status = weft_request_open(&p, &size[i], budget, &out[i], error);
    if (status != WEFT_OK) {
      free_all(out, i);
      if (status == WEFT_FULL) {
        weft_budget_count_refused(budget, p.tenant, n);
        weft_places_count_refused(engine[0]->places, p.model, WEFT_REFUSED_MEMORY, n);
      }
      return status;
    }
    recall_drafts(engine[i], out[i]);
    out[i]->inbox = &engine[i]->inbox;
    out[i]->limits = own->limits;
    out[i]->n_rows = rows_of(&p, p.canvas ? (uint64_t)size[i].n_blocks * size[i].n_canvas : size[i].answer_max);
    out[i]->usage.submitted_us = now_us;
  }
  return WEFT_OK;
}

weft_status weft_engines_submit(weft_engine *const *engine, const weft_request_params *params, uint32_t n,
                                uint64_t now_us, weft_request **out, weft_error *error) {
  weft_request_size size[WEFT_SUBMISSION_MAX];
  uint64_t n_tokens;
  weft_shortage shortage = {.why = WEFT_REFUSED_MEMORY, .n_own_places = n};
  memset(out, 0, n * sizeof *out);
  memset(size, 0, n * sizeof *size);
  const uint32_t n_tenants = engine[0]->config.n_tenants;
  for (uint32_t i = 0; i < n; i++) {
    if (params[i].tenant >= n_tenants)
      return weft_fail(error, WEFT_E_INVALID, "tenant number %u; there are %u", params[i].tenant, n_tenants);
  }
  const weft_account own_limits = weft_places_account(engine[0]->places, params->tenant), *account = &own_limits;
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < n && status == WEFT_OK; i++) {
    status = judge_request(engine[i], account, &params[i], i > 0 ? &params[i - 1] : NULL, &size[i], error);
  }
  if (status == WEFT_OK) status = judge_together(engine[0], account, params, size, n, &n_tokens, error);
  if (status == WEFT_OK) status = judge_memory(engine[0], params, size, n, error);
  if (status == WEFT_OK) status = open_all(engine, account, params, size, n, now_us, out, error);
  if (status != WEFT_OK && status != WEFT_FULL) return status;
  if (status == WEFT_OK) {
    status = weft_inboxes_put(out, n, n_tokens, now_us, &shortage, error);
    if (status == WEFT_OK) return WEFT_OK;
    free_all(out, n);
  }
  bool own = shortage.why == WEFT_REFUSED_TENANT_QUEUE || shortage.why == WEFT_REFUSED_TOKENS;
  if (params->own_limit != NULL) *params->own_limit = own;
  if (params->retry_us != NULL) *params->retry_us = weft_snapshot_retry_us(engine[0], params->tenant, &shortage);
  return status;
}

weft_status weft_submission_check(uint32_t n, weft_error *error) {
  if (n > 0 && n <= WEFT_SUBMISSION_MAX) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID, "%u requests in one submission; there may be 1 to %d", n,
                   WEFT_SUBMISSION_MAX);
}

weft_status weft_engine_submit_all(weft_engine *engine, const weft_request_params *params, uint32_t n, uint64_t now_us,
                                   weft_request **out, weft_error *error) {
  weft_engine *each[WEFT_SUBMISSION_MAX];
  weft_status status = weft_submission_check(n, error);
  for (uint32_t i = 0; i < n && status == WEFT_OK; i++) each[i] = engine;
  return status == WEFT_OK ? weft_engines_submit(each, params, n, now_us, out, error) : status;
}

weft_status weft_engine_submit(weft_engine *engine, const weft_request_params *params, uint64_t now_us,
                               weft_request **out, weft_error *error) {
  return weft_engine_submit_all(engine, params, 1, now_us, out, error);
}

/* Submits a request of one token whose prompt is the prefix: computing it is what fills the pin. */
static weft_status warm_up(weft_engine *e, const weft_pin_params *p, uint32_t n_tokens, uint64_t now_us,
                           weft_error *error) {
  weft_request_params params = {.model = p->model,
                                .tenant = p->tenant,
                                .domain = p->domain,
                                .tokens = p->tokens,
                                .n_tokens = n_tokens,
                                .max_tokens = 1,
                                .asked = {.sampling = weft_sampling_neutral(), .priority = p->priority}};
  weft_request *request;
  weft_status status = weft_engine_submit(e, &params, now_us, &request, error);
  if (status == WEFT_OK) weft_request_unref(request); /* it goes on without a reader */
  return status;
}

weft_status weft_engine_pin(weft_engine *e, const weft_pin_params *params, uint64_t now_us, uint32_t *id,
                            weft_error *error) {
  uint32_t n_tokens;
  weft_status status = weft_pins_declare(e, params, id, &n_tokens, error);
  if (status != WEFT_OK) return status;
  status = warm_up(e, params, n_tokens, now_us, error);
  if (status != WEFT_OK) (void)weft_pins_remove(e, *id);
  return status;
}
