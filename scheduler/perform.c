/* SPDX-License-Identifier: MIT */
#include "scheduler/perform.h"

#include <string.h>

#include "scheduler/lifecycle.h"
#include "scheduler/pins.h"
#include "scheduler/waiting.h"

/* Plans after which a request that lacked pages is tried again, even if no more pages are free. */
enum { RETRY_PLANS = 16 };

/* ---- rows ------------------------------------------------------------------------------------ */

static weft_work *add_rows(weft_planning *p, weft_request *r, const weft_rows *rows) {
  return weft_perform_add(p, r, rows->kind, rows->n, rows->first_output, rows->n_outputs, rows->ask);
}

static void perform_denoise(weft_planning *p, weft_request *r, const weft_rows *rows) {
  weft_pace_spend(&p->pace, rows->n, r->n_planned, true, rows->n_outputs);
  weft_work *work = add_rows(p, r, rows);
  work->block = r->next_block;
  work->step = r->next_step;
  work->source = WEFT_TOKENS_CANVAS;
  r->next_step += 1;
  if (r->next_step < r->params.asked.entropy_bound.max_steps) return;
  r->next_block += 1; /* that step ends the canvas whatever it finds */
  r->next_step = 0;
}

static void perform_commit(weft_planning *p, weft_request *r, const weft_rows *rows) {
  weft_pace_spend(&p->pace, rows->n, r->n_planned, true, rows->n_outputs);
  weft_work *work = add_rows(p, r, rows);
  work->source = WEFT_TOKENS_ARGMAX;
  r->n_planned += rows->n;
}

static void perform_prefill(weft_planning *p, weft_request *r, const weft_rows *rows) {
  bool last = rows->n == r->n_tokens - r->n_planned;
  weft_pace_spend(&p->pace, rows->n, r->n_planned, false, rows->n_outputs);
  weft_work *work = add_rows(p, r, rows);
  work->source = WEFT_TOKENS_HOST;
  p->scored_rows_left -= weft_ask_n_scored(rows->ask, rows->n_outputs);
  r->n_planned += rows->n;
  if (!last) return;
  r->prefilling = false;
  r->n_pending = (uint8_t)weft_ask_n_sampled(rows->ask, rows->n_outputs);
  weft_lifecycle_make_ready(p->engine, r);
}

/* What the rows of drafts add to the plan. */
static void count_run(weft_planning *p, const weft_request *r, uint32_t n_rows) {
  const weft_cost_layers *layers = &p->lane->cost.layers;
  weft_cost_shape one = {0}, all = {0}, *of = &p->plan->of_drafts;
  weft_cost_add(layers, &one, 1, r->n_planned, false, 1);
  weft_cost_add(layers, &all, n_rows, r->n_planned, false, n_rows);
  of->n_rows += all.n_rows - one.n_rows;
  of->n_outputs += all.n_outputs - one.n_outputs;
  of->n_reads += all.n_reads - one.n_reads;
  of->n_products += all.n_products - one.n_products;
  p->plan->n_runs += 1;
  if (n_rows - 1 > p->plan->n_drafts_most) p->plan->n_drafts_most = n_rows - 1;
  if (r->drafting.kind != WEFT_DRAFT_NGRAM && !r->drafting.by_runner) p->plan->waits_drafter = true;
}

void weft_perform_drafting(weft_planning *p, weft_request *r) {
  weft_engine *e = p->engine;
  weft_drafting *d = &r->drafting;
  uint64_t waited_us = d->waits_since_us > 0 && e->now_us > d->waits_since_us ? e->now_us - d->waits_since_us : 0;
  e->requests[r->lane].drafts.draft_ns += p->drafting.took_ns;
  r->usage.drafts.draft_ns += p->drafting.took_ns + waited_us * 1000;
  d->waits_since_us = p->drafting.coming ? e->now_us : 0;
  p->drafting.asked = false;
}

/* The drafts stand behind the tokens of the request until the run has landed. */
static void perform_verify(weft_planning *p, weft_request *r, const weft_rows *rows) {
  uint32_t n_drafts = rows->n - 1;
  memcpy(r->tokens + r->n_tokens, p->draft, n_drafts * sizeof *p->draft);
  weft_pace_spend_drafts(&p->pace, n_drafts, r->n_planned + 1);
  p->n_decode_keys += r->n_planned;
  count_run(p, r, rows->n);
  weft_drafting_began(&r->drafting);
  weft_draft_stats *stats = &p->engine->requests[r->lane].drafts;
  stats->n_runs += 1;
  stats->n_drafted += n_drafts;
  r->usage.n_drafted += n_drafts;
  r->usage.drafts.n_runs += 1;
  weft_work *work = add_rows(p, r, rows);
  work->source = WEFT_TOKENS_HOST;
  work->peeks = r->drafting.shadow;
  p->draft_rows_left -= n_drafts;
  r->n_planned += rows->n;
  r->n_pending = (uint8_t)rows->n;
}

void weft_perform_rows(weft_planning *p, weft_request *r, const weft_rows *rows) {
  switch (rows->kind) {
    case WEFT_WORK_PREFILL:
      perform_prefill(p, r, rows);
      break;
    case WEFT_WORK_COMMIT:
      perform_commit(p, r, rows);
      break;
    case WEFT_WORK_DENOISE:
      perform_denoise(p, r, rows);
      break;
    case WEFT_WORK_DECODE:
      weft_perform_decode(p, r);
      break;
    case WEFT_WORK_VERIFY:
      perform_verify(p, r, rows);
      break;
  }
}

/* ---- memory ---------------------------------------------------------------------------------- */

bool weft_perform_relief(weft_engine *e, weft_request *r, const weft_relief *relief) {
  switch (relief->kind) {
    case WEFT_RELIEF_COMMIT:
      weft_lifecycle_commit_all(e, r);
      return true;
    case WEFT_RELIEF_PIN:
      return weft_pins_give_way(e, r);
    case WEFT_RELIEF_PREEMPT:
      if (weft_lifecycle_preempt(e, relief->victim)) return true;
      break; /* its blocks come when its rows have landed */
    case WEFT_RELIEF_WAIT:
      break;
  }
  weft_lifecycle_starve(e, r, relief->within_tenant);
  return false;
}

/* ---- waiting requests ------------------------------------------------------------------------ */

static weft_status open_slot(weft_engine *e, weft_lane *lane, weft_request *r) {
  weft_slot_params params = {.draws = !r->params.canvas,
                             .denoises = r->params.canvas,
                             .logprobs = r->has_logprobs, /* for a score, too */
                             .sampling = &r->params.asked.sampling,
                             .entropy_bound = &r->params.asked.entropy_bound,
                             .grammar = r->params.grammar,
                             .rules = r->params.rules,
                             .tokens = r->tokens,
                             .n_tokens = r->n_tokens,
                             .n_prompt = r->params.n_tokens,
                             .max_tokens = r->size.answer_max,
                             .trace = r->params.asked.trace};
  uint64_t start_ns = weft_clock_ns();
  weft_status status = lane->runner->ops->slot_open(lane->runner, r->slot, &params);
  e->runner_ns += weft_clock_ns() - start_ns;
  return status;
}

/* The runner could not open a slot: its device failed (the lane breaks), or the request ends with the runner's reason.
 */
static void refuse_slot(weft_engine *e, weft_lane *lane, weft_request *r, weft_seq seq, weft_status status) {
  weft_pager_release(e->pager, seq);
  weft_waiting_wake(e, seq, UINT32_MAX);
  lane->lost = status == WEFT_E_DEVICE;
  if (!lane->lost) weft_lifecycle_finish(e, r, WEFT_FINISH_ERROR, weft_status_text(status));
}

static bool can_draft(const weft_engine *e, const weft_lane *lane, const weft_request *r) {
  weft_draft_kind kind = r->params.asked.draft.kind;
  if (lane->info->draft_rows_max == 0 || r->params.canvas || kind == WEFT_DRAFT_OFF) return false;
  return kind == WEFT_DRAFT_NGRAM || lane->info->drafts || e->config.drafter != NULL;
}

static weft_performed start_request(weft_engine *e, weft_lane *lane, weft_request *r, weft_seq seq, uint32_t n_cached) {
  if (!weft_inbox_start(&e->inbox, r)) { /* it was evicted since this turn began */
    weft_pager_release(e->pager, seq);
    weft_waiting_wake(e, seq, UINT32_MAX);
    weft_lifecycle_evict(e, r);
    return WEFT_PERFORMED_WAITS;
  }
  r->slot = lane->free_slot[lane->n_free_slots - 1];
  weft_status status = open_slot(e, lane, r);
  if (status != WEFT_OK) {
    refuse_slot(e, lane, r, seq, status);
    return WEFT_PERFORMED_WAITS;
  }
  lane->n_free_slots -= 1;
  const weft_pager_stats before = weft_pager_get_stats(e->pager);
  weft_pager_enter(e->pager, seq, r->admitted_once);
  const weft_pager_stats after = weft_pager_get_stats(e->pager);
  e->requests[r->lane].n_sought_tokens += after.n_prompt_tokens - before.n_prompt_tokens;
  e->requests[r->lane].n_found_tokens += after.n_hit_tokens - before.n_hit_tokens;
  weft_waiting_dequeue(e, r);
  r->seq = seq;
  e->followers[seq].leader = r;
  r->n_valid = r->n_committed = r->n_planned = r->n_reserved = n_cached;
  r->placement.block = UINT32_MAX;
  if (!r->admitted_once) {
    r->usage.n_cached = n_cached;
    e->stats.n_cached_tokens += n_cached;
  }
  r->drafts = can_draft(e, lane, r);
  r->drafting.by_runner = r->drafts && lane->info->drafts && r->drafting.kind != WEFT_DRAFT_NGRAM;
  r->drafting.guessed_at = 0;
  r->drafting.waits_since_us = 0;
  weft_lifecycle_enter(e, r);
  return WEFT_PERFORMED_STARTED;
}

static void make_waiter(weft_engine *e, const weft_admission *is) {
  weft_wait *wait = &is->request->wait;
  if (!is->keeps_waiter) {
    e->claims.waiter = is->request;
    e->claims.waits_for = (uint8_t)is->lacks;
  }
  if (is->n_pages == 0) return; /* it lacks a place, or as many pages as the last try found */
  wait->need_pages = is->n_pages;
  wait->retry_plan = e->n_plans + RETRY_PLANS;
}

weft_performed weft_perform_admission(weft_planning *p, const weft_admission *is) {
  weft_engine *e = p->engine;
  switch (is->kind) {
    case WEFT_ADMIT_START:
      return start_request(e, p->lane, is->request, is->seq, is->n_cached);
    case WEFT_ADMIT_FOLLOW:
      weft_waiting_follow(e, is->request, is->leader, is->wake_at);
      return WEFT_PERFORMED_WAITS;
    case WEFT_ADMIT_FILE:
      weft_waiting_for_file(e, is->request, is->n_pages);
      return WEFT_PERFORMED_WAITS;
    case WEFT_ADMIT_LIMITED:
      weft_claims_of(e, is->request)->limited = RETRY_PLANS;
      return WEFT_PERFORMED_WAITS;
    case WEFT_ADMIT_PASS:
      weft_claims_of(e, is->request)->passed = true;
      return WEFT_PERFORMED_WAITS;
    case WEFT_ADMIT_NO_ROOM:
      make_waiter(e, is);
      if (is->victim != NULL) break;
      weft_claims_of(e, is->asked)->passed = true;
      return WEFT_PERFORMED_WAITS;
    case WEFT_ADMIT_CLAIM:
      make_waiter(e, is);
      break;
    case WEFT_ADMIT_PIN:
      return weft_pins_give_way(e, is->request) ? WEFT_PERFORMED_AGAIN : WEFT_PERFORMED_STOP;
    case WEFT_ADMIT_NOBODY:
      break;
  }
  if (is->victim != NULL) (void)weft_lifecycle_preempt(e, is->victim);
  return WEFT_PERFORMED_STOP;
}
