/* SPDX-License-Identifier: MIT */
/* Submit: judges a request before it costs anything. Any thread; reads only what never changes
 * after open.
 *
 * Law: what passes can be finished by the engine with the pool as it is, alone if need be. A limit
 * that only shortens the answer (context) shortens it; a limit that no schedule can keep (pool)
 * refuses, and the line says the largest length that would fit. */
#include <string.h>

#include "scheduler/engine.h"
#include "scheduler/fit.h"
#include "scheduler/pins.h"

enum { STOP_TOKENS_MAX = 1024 };

static weft_status check_tokens(const weft_request_params *p, uint32_t n_vocab, weft_error *error) {
  if (p->n_tokens == 0 || p->tokens == NULL) {
    return weft_fail(error, WEFT_E_INVALID, "the prompt is empty; give at least one token");
  }
  for (uint32_t i = 0; i < p->n_tokens; i++) {
    if (p->tokens[i] >= 0 && (uint32_t)p->tokens[i] < n_vocab) continue;
    return weft_fail(error, WEFT_E_INVALID, "prompt token %u is %d; the vocabulary has tokens 0 to %u", i, p->tokens[i],
                     n_vocab - 1);
  }
  if (p->max_tokens == 0) {
    return weft_fail(error, WEFT_E_INVALID, "max_tokens is 0; it must be at least 1");
  }
  if (p->n_stop_tokens > STOP_TOKENS_MAX) {
    return weft_fail(error, WEFT_E_INVALID, "%u stop tokens; at most %d are allowed", p->n_stop_tokens,
                     STOP_TOKENS_MAX);
  }
  return WEFT_OK;
}

static weft_status check_kind(const weft_request_params *p, const weft_runner_info *info, weft_error *error) {
  if (p->canvas && info->canvas_length == 0) {
    return weft_fail(error, WEFT_E_INVALID, "%s cannot answer by diffusion; ask for autoregressive decoding",
                     info->name);
  }
  if (!p->canvas && !info->autoregressive) {
    return weft_fail(error, WEFT_E_INVALID, "%s cannot answer token by token; ask for diffusion", info->name);
  }
  if (p->canvas && p->sampling.logprobs) {
    return weft_fail(error, WEFT_E_INVALID,
                     "logprobs of a canvas do not exist: its positions are drawn together; leave "
                     "logprobs out or ask for autoregressive decoding");
  }
  return p->canvas ? weft_entropy_bound_check(&p->entropy_bound, error)
                   : weft_sampling_check(&p->sampling, info->n_vocab, error);
}

/* What the request may hold: the pool, or less where its tenant has a limit. */
typedef struct fit_within {
  uint32_t n_pages, tokens, canvas; /* as in weft_lane */
  const char *of;
} fit_within;

static fit_within fit_of(const weft_engine *e, const weft_lane *lane, uint32_t tenant) {
  uint32_t limit = e->tenants.tenant[tenant].config.blocks_max; /* never changes */
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
  uint32_t n_keys = p->n_tokens + size->answer_max - 1; /* the last token needs no row */
  if (n_keys <= fit->tokens) return WEFT_OK;
  return weft_fail(error, WEFT_E_TOO_LARGE,
                   "%u prompt tokens and %u answer tokens need more than the %u pages %s; "
                   "prompt and max_tokens together may be %u",
                   p->n_tokens, size->answer_max, fit->n_pages, fit->of, fit->tokens + 1);
}

static weft_status size_canvas(const fit_within *fit, const weft_lane *lane, const weft_request_params *p,
                               uint32_t context, weft_request_size *size, weft_error *error) {
  uint32_t n = lane->info->canvas_length, room = (context - p->n_tokens) / n;
  if (room == 0) {
    return weft_fail(error, WEFT_E_TOO_LARGE,
                     "a prompt of %u tokens leaves no room for a canvas of %u in a context of %u; "
                     "it may have %u",
                     p->n_tokens, n, context, context > n ? context - n : 0);
  }
  uint32_t wanted = (uint32_t)(((uint64_t)p->max_tokens + n - 1) / n);
  size->n_canvas = n;
  size->n_blocks = wanted < room ? wanted : room;
  uint64_t most = (uint64_t)size->n_blocks * n;
  size->answer_max = p->max_tokens < most ? p->max_tokens : (uint32_t)most;
  if (p->n_tokens > fit->tokens) {
    return weft_fail(error, WEFT_E_TOO_LARGE, "a prompt of %u tokens needs more than the %u pages %s; it may have %u",
                     p->n_tokens, fit->n_pages, fit->of, fit->tokens);
  }
  uint32_t n_fit = 1; /* canvases: the last one is never committed, so one needs no pages */
  if (p->n_tokens < fit->canvas) n_fit += (fit->canvas - p->n_tokens) / n;
  if (size->n_blocks <= n_fit) return WEFT_OK;
  return weft_fail(error, WEFT_E_TOO_LARGE,
                   "%u prompt tokens and %u canvases of %u need more than the %u pages %s; "
                   "prompt and max_tokens together may be %u",
                   p->n_tokens, size->n_blocks, n, fit->n_pages, fit->of, p->n_tokens + n_fit * n);
}

/* What was asked never changes, so another thread may read it while its request runs. */
static weft_status check_sibling(const weft_request_params *p, weft_error *error) {
  if (p->sibling == NULL) return WEFT_OK;
  const weft_request_params *q = &p->sibling->asked;
  bool same = p->runner == q->runner && p->canvas == q->canvas && p->tenant == q->tenant &&
              weft_key128_equal(p->domain, q->domain) && p->no_cache == q->no_cache && p->n_tokens == q->n_tokens &&
              memcmp(p->tokens, q->tokens, p->n_tokens * sizeof *p->tokens) == 0;
  if (same) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID, "a sibling must have the same prompt, model, kind, tenant and cache");
}

static weft_status check_tokens_per_minute(const weft_engine *e, const weft_request_params *p,
                                           const weft_request_size *size, weft_error *error) {
  uint32_t limit = e->account[p->tenant].tokens_per_minute; /* never changes */
  if (limit == 0 || p->n_tokens + size->answer_max <= limit) return WEFT_OK;
  return weft_fail(error, WEFT_E_TOO_LARGE,
                   "%u prompt tokens and %u answer tokens are more than this tenant's %u a minute; "
                   "prompt and max_tokens together may be as many",
                   p->n_tokens, size->answer_max, limit);
}

static weft_status judge(const weft_engine *e, const weft_request_params *p, weft_request_size *size,
                         weft_error *error) {
  if (p->runner >= e->n_lanes) {
    return weft_fail(error, WEFT_E_INVALID, "model number %u; there are %u", p->runner, e->n_lanes);
  }
  if (p->tenant >= e->config.n_tenants) {
    return weft_fail(error, WEFT_E_INVALID, "tenant number %u; there are %u", p->tenant, e->config.n_tenants);
  }
  const weft_lane *lane = &e->lane[p->runner];
  if (lane->broken) return weft_fail(error, WEFT_E_DEVICE, "%s", lane->reason);
  weft_status status = check_tokens(p, lane->info->n_vocab, error);
  if (status == WEFT_OK) status = check_kind(p, lane->info, error);
  if (status == WEFT_OK) status = check_sibling(p, error);
  if (status != WEFT_OK) return status;
  uint32_t context = lane->context;
  if (p->n_tokens >= context) {
    return weft_fail(error, WEFT_E_TOO_LARGE,
                     "a prompt of %u tokens leaves no room for an answer in a context of %u; it may "
                     "have %u",
                     p->n_tokens, context, context - 1);
  }
  fit_within fit = fit_of(e, lane, p->tenant);
  status =
      p->canvas ? size_canvas(&fit, lane, p, context, size, error) : size_autoregressive(&fit, p, context, size, error);
  return status == WEFT_OK ? check_tokens_per_minute(e, p, size, error) : status;
}

/* When the tokens are there; when a place comes free. */
static uint64_t estimate_retry_us(weft_engine *e, const weft_request_params *p, const weft_request_size *size,
                                  weft_refused why) {
  uint32_t tenant = p->tenant;
  if (why == WEFT_REFUSED_NONE) return 0;
  if (why == WEFT_REFUSED_TOKENS) {
    weft_account account = weft_inbox_account(&e->inbox, tenant);
    return weft_account_retry_us(&account, p->n_tokens + size->answer_max);
  }
  (void)pthread_mutex_lock(&e->stats_mutex);
  const weft_tenant_view *view = e->tenants.shared;
  uint64_t cost = view[tenant].queued_cost;
  uint32_t n = view[tenant].n_queued;
  double share = weft_tenants_share_of(&e->tenants, tenant);
  if (why == WEFT_REFUSED_QUEUE) {
    cost = 0, n = 0, share = 1.0;
    for (uint32_t i = 0; i < e->config.n_tenants; i++) {
      cost += view[i].queued_cost;
      n += view[i].n_queued;
    }
  }
  uint64_t us = weft_forecast_us(&e->shared_forecast, cost, n, share);
  (void)pthread_mutex_unlock(&e->stats_mutex);
  return us;
}

weft_status weft_engine_submit(weft_engine *engine, const weft_request_params *params, uint64_t now_us,
                               weft_request **out, weft_error *error) {
  *out = NULL;
  weft_request_size size = {0};
  weft_status status = judge(engine, params, &size, error);
  if (status != WEFT_OK) return status;
  weft_request *request;
  status = weft_request_open(params, &size, &engine->budget, &request, error);
  if (status == WEFT_FULL && params->retry_us != NULL) {
    *params->retry_us = estimate_retry_us(engine, params, &size, WEFT_REFUSED_MEMORY);
  }
  if (status != WEFT_OK) return status;
  request->usage.submitted_us = now_us;
  weft_refused why;
  status = weft_inbox_put(&engine->inbox, request, now_us, &why, error);
  if (status != WEFT_OK) {
    weft_request_unref(request); /* the engine's */
    weft_request_unref(request);
    if (params->retry_us != NULL) *params->retry_us = estimate_retry_us(engine, params, &size, why);
    return status;
  }
  *out = request;
  return WEFT_OK;
}

/* The prefix as a prompt, for one token: what computes it. */
static weft_status warm_up(weft_engine *e, const weft_pin_params *p, uint32_t n_tokens, uint64_t now_us,
                           weft_error *error) {
  weft_request_params params = {.runner = p->runner,
                                .tenant = p->tenant,
                                .domain = p->domain,
                                .tokens = p->tokens,
                                .n_tokens = n_tokens,
                                .max_tokens = 1,
                                .sampling = weft_sampling_default(),
                                .ignore_eos = true,
                                .priority = p->priority};
  weft_request *request;
  weft_status status = weft_engine_submit(e, &params, now_us, &request, error);
  if (status == WEFT_OK) weft_request_unref(request); /* nobody reads it; it goes on */
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
