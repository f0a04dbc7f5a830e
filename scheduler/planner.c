/* SPDX-License-Identifier: MIT */
#include "scheduler/planner.h"

#include "scheduler/lifecycle.h"
#include "scheduler/light.h"
#include "scheduler/own_drafts.h"
#include "scheduler/perform.h"
#include "scheduler/runs.h"

enum { FAR_AHEAD = 16, AHEAD = 8 }; /* requests between a prefetch and its use */

/* One plan, in short; where each line is decided stands behind it. The functions below come in the reverse order.
 *
 *   plan(lane):
 *     how long the step may be: the target between tokens, or what light tenants leave      pace, light
 *     what is left in the step: rows, rows that are scored, drafts
 *
 *     the request that lacks blocks, if it is of this lane: serve it                        claims.starved
 *     a canvas found too few rows in the last plans: serve the one that is due
 *     else prompts got no row in the last plans: serve what is due with half of the rows
 *
 *     unless tenants contend for this step:                                                 share
 *       for each request that decodes or denoises, in turn: serve it
 *     while share has a request that is due:                                                share, policy
 *       it waits: admit it; where it starts, serve it                                       admission, debt
 *       it runs: serve it, and charge its tenant
 *
 *     nothing got rows, and there was a limit of time: once more without it
 *     remember what found no room; predict and charge the step                              cost, tenant
 *
 *   serve(request):
 *     loop
 *       which rows it can use now, and what is asked of them                                rows
 *         prompt      a chunk, as long as rows and time are left
 *         decode      the row of the token that it knows or that is being drawn
 *         run         nothing in flight: that row and drafts of the next ones
 *         canvas      the next denoise step, or first the commit of the canvas before
 *       none can be used: done; none is left in this step: it goes first in the next one
 *       the blocks of these rows; while the pager lacks some:                               relief
 *         tell it of rows that landed, let go of a pin, preempt a request, or wait
 *       the work is in the plan, and the request is as if it had been computed              perform
 *     until the work shares no pass with a next one: a prompt's end or a commit does, with a denoise step
 *
 *   admit(request):
 *     the pager's longest cached prefix, and room for all of its tokens besides a margin    admission
 *     START, FOLLOW who computes the prefix, wait for the FILE, let a PIN go and ask again,
 *     or it lacks room: then who is preempted for it, if a tenant owes it that              debt
 *     made true                                                                             perform */

/* ---- one running request --------------------------------------------------------------------- */

static uint32_t find_blocks(weft_engine *e, weft_request *r, uint32_t n, bool may_shrink) {
  weft_lifecycle_commit(e, r); /* the pager frees what lies before the request's windows */
  if (weft_relief_yields(e, r, n)) return 0;
  for (;;) {
    bool limited = false;
    uint32_t got = weft_relief_reserve(e, r, n, may_shrink, &limited);
    if (got > 0) {
      weft_lifecycle_fed(e, r);
      return got;
    }
    weft_relief relief = weft_relief_decide(e, r, limited);
    if (!weft_perform_relief(e, r, &relief)) return 0;
  }
}

/* How many of n more positions have blocks now; 0: none, so the request waits for memory. */
static inline uint32_t blocks_for(weft_engine *e, weft_request *r, uint32_t n, bool may_shrink) {
  if (r->n_planned + n <= r->n_reserved) return n;
  return find_blocks(e, r, n, may_shrink);
}

static inline bool serve_decode(weft_planning *p, weft_request *r) {
  weft_rows_verdict verdict = weft_rows_of_decode(p, r);
  if (verdict != WEFT_ROWS_SOME) return verdict != WEFT_ROWS_HELD;
  if (blocks_for(p->engine, r, 1, false) > 0) weft_perform_decode(p, r);
  return true;
}

/* One work, or two that share a pass: the last chunk of a prompt and the first denoise step, the commit of a canvas and
 * the first step of the next one. */
static bool serve_works(weft_planning *p, weft_request *r) {
  bool was_prefilling = r->prefilling;
  for (;;) {
    weft_rows rows;
    weft_rows_verdict verdict = weft_rows_next(p, r, &rows);
    if (p->drafting.asked) weft_perform_drafting(p, r);
    if (verdict == WEFT_ROWS_HELD) return was_prefilling && !r->prefilling;
    if (verdict == WEFT_ROWS_NONE) return true;
    if (rows.n_keys > 0) {
      uint32_t n = blocks_for(p->engine, r, rows.n_keys, rows.may_be_fewer);
      if (n == 0) return true;
      weft_rows_cut(r, n, &rows);
    }
    weft_perform_rows(p, r, &rows);
    if (rows.kind == WEFT_WORK_DENOISE || r->prefilling || !r->denoises) return true;
  }
}

/* False: the request wanted rows and got none. */
static inline bool serve_request(weft_planning *p, weft_request *r) {
  if (r->planned_in == (uint32_t)p->plan->number) return true; /* served before */
  return r->prefilling || r->denoises || r->drafts ? serve_works(p, r) : serve_decode(p, r);
}

static bool serve_charged(weft_planning *p, weft_request *r) {
  bool served = serve_request(p, r);
  weft_tenants_charge(&p->engine->tenants, r->tenant, &p->lane->cost);
  return served;
}

/* ---- which request is due --------------------------------------------------------------------- */

/* False: no further request may start in this plan. */
static bool try_admission(weft_planning *p, weft_request *r) {
  weft_admission admission;
  weft_performed what;
  do { /* again at most once for every pin that is held */
    admission = weft_admission_decide(p, r);
    what = weft_perform_admission(p, &admission);
  } while (what == WEFT_PERFORMED_AGAIN);
  if (what == WEFT_PERFORMED_STARTED) (void)serve_charged(p, admission.request);
  return what != WEFT_PERFORMED_STOP;
}

/* Gives the rows that are left to requests in the order in which they are due: prompts, waiting requests, and with
 * with_ready those that decode or denoise. */
static void serve_due(weft_planning *p, bool with_ready) {
  weft_share share;
  weft_request *r;
  weft_share_begin(&share, p, with_ready);
  while ((r = weft_share_next(&share)) != NULL) {
    if (r->state == WEFT_REQUEST_WAITING) {
      share.admitting = try_admission(p, r);
    } else {
      bool was_ready = !r->prefilling;
      weft_share_served(&share, r, was_ready, serve_charged(p, r));
    }
  }
  weft_share_end(&share);
}

/* Prefetches a request some places ahead; nearer, where it is about to ask for blocks, the pager's record of it. */
static inline void prefetch_ready(const weft_planning *p, uint32_t i) {
  const weft_ready *ready = &p->lane->ready;
  if (i + FAR_AHEAD >= ready->n) return;
  __builtin_prefetch(ready->at[i + FAR_AHEAD], 1);
  const weft_request *r = ready->at[i + AHEAD];
  if (r != NULL && r->n_planned == r->n_reserved) weft_pager_prefetch(p->engine->pager, r->seq);
}

/* Serves the requests that decode or denoise in their order. Where time is too short for all, canvases are left out:
 * they and prompts are then served in the order in which they are due. */
static void serve_ready(weft_planning *p) {
  weft_ready *ready = &p->lane->ready;
  weft_ready_pack(ready);
  uint32_t i = 0;
  for (; i < ready->n && p->rows_left > 0 && p->n_ready_left > 0; i++) {
    prefetch_ready(p, i);
    weft_request *r = ready->at[i];
    if (r == NULL || (r->denoises && p->crowded)) continue;
    if (!serve_request(p, r)) weft_ready_skip(ready, i);
  }
  weft_ready_turn(ready, i);
}

static void serve_starved(weft_planning *p) {
  weft_request *r = p->engine->claims.starved;
  if (r != NULL && r->lane == p->lane->index) (void)serve_charged(p, r);
}

/* When decoding left prompts no row for several steps, prompts go first once, with half of the rows. */
static void serve_squeezed(weft_planning *p) {
  uint32_t kept = p->rows_left / 2;
  p->rows_left -= kept;
  serve_due(p, false);
  p->rows_left += kept;
}

/* The canvas that is due first (policy.h), where a class is as old as its oldest canvas; of one tenant the canvas that
 * has waited longest. */
static weft_request *find_canvas(const weft_planning *p) {
  weft_tenants *tenants = &p->engine->tenants;
  const weft_ready *ready = &p->lane->ready;
  weft_request *best = NULL, *r;
  weft_candidate best_is = {0};
  weft_tenants_reset_levels(tenants);
  for (uint32_t i = 0; i < ready->n; i++) {
    if ((r = ready->at[i]) != NULL && r->denoises) weft_tenants_raise_level(tenants, r, p->engine->now_us);
  }
  for (uint32_t i = 0; i < ready->n; i++) {
    if ((r = ready->at[i]) == NULL || !r->denoises || (best != NULL && best->tenant == r->tenant)) continue;
    weft_candidate is = weft_tenants_candidate(tenants, r);
    if (best != NULL && !weft_policy_is_due_before(&is, &best_is)) continue;
    best = r;
    best_is = is;
  }
  return best;
}

/* When others left no canvas rows enough for several steps, one goes first once. False: it got no rows. */
static bool serve_narrowed(weft_planning *p) {
  weft_request *r = find_canvas(p);
  uint32_t n_before = p->plan->n_rows;
  if (r != NULL) (void)serve_charged(p, r);
  return p->plan->n_rows > n_before;
}

/* ---- one plan -------------------------------------------------------------------------------- */

/* Steps of other lanes come between the steps of this one, so each lane has its part of the target; and with several
 * stages, of those of one request, so each step has. */
static void open_pace(weft_planning *p) {
  weft_lane *lane = p->lane;
  uint64_t lanes = weft_lanes_with_requests(p->engine);
  bool has_target = p->engine->config.target_tpot_us > 0;
  double budget_us = (double)p->engine->config.target_tpot_us;
  if (lane->ready.n_decode == 0) budget_us = 0.0;
  if (lanes != 0) budget_us /= __builtin_popcountll(lanes);
  budget_us /= lane->n_stages;
  weft_share_open(p, budget_us > 0.0);
  if (!has_target) budget_us = weft_light_open(p);
  uint32_t n_decode = (lane->ready.n_decode - p->n_ahead + lane->n_stages - 1) / lane->n_stages;
  weft_pace_open(&p->pace, &lane->cost, budget_us, n_decode, lane->keys_per_decode, &lane->late);
  if (!has_target && !p->alone) weft_pace_owe_first(&p->pace);
}

/* For the next plans: what got rows in this one, and what did not. */
static void close_plan(weft_planning *p) {
  weft_lane *lane = p->lane;
  const uint32_t *rows = p->plan->n_rows_of;
  uint32_t n_decode = rows[WEFT_WORK_DECODE] + p->plan->n_runs;
  if (n_decode > 0 && !p->alone) lane->keys_per_decode = (uint32_t)(p->n_decode_keys / n_decode);
  bool canvas = rows[WEFT_WORK_DENOISE] + rows[WEFT_WORK_COMMIT] > 0;
  bool narrow = !canvas && weft_ready_has_canvas(&lane->ready);
  lane->late.n_narrow = narrow ? lane->late.n_narrow + p->canvas_lacks_rows : 0;
  lane->late.n_canvases = p->pace.canvas_held && !canvas ? lane->late.n_canvases + 1 : 0;
  bool squeezed = weft_lane_has_prompts(lane) && rows[WEFT_WORK_PREFILL] == 0 &&
                  (p->rows_left == 0 || p->pace.prompt_held || p->pace.canvas_held);
  lane->late.n_prompts = squeezed ? lane->late.n_prompts + 1 : 0;
  p->plan->shape = weft_tenants_planned(&p->engine->tenants);
  p->plan->predicted_us = weft_cost_step(&lane->cost, &p->plan->shape);
  weft_light_close(p);
  weft_tenants_settle(&p->engine->tenants, lane->index, &lane->cost, &p->plan->shape);
  weft_tenants_level(&p->engine->tenants, weft_lanes_with_requests(p->engine));
}

void weft_planner_run(weft_engine *e, weft_lane *lane, weft_step_plan *plan) {
  weft_planning p = {.engine = e,
                     .lane = lane,
                     .plan = plan,
                     .rows_left = weft_rows_of_step(e, lane),
                     .scored_rows_left = lane->info->scored_rows_max,
                     .draft_rows_left = lane->info->draft_rows_max};
  p.n_ready_left = weft_rows_n_ready(&p);
  p.restores_end = weft_pager_get_stats(e->pager).n_restored + lane->restores_max;
  e->claims.preempted = false;
  open_pace(&p);
  weft_runs_choose(&p);
  weft_own_drafts_make(&p);
  serve_starved(&p);
  bool narrowed = lane->late.n_narrow >= WEFT_PACE_HELD && serve_narrowed(&p);
  if (!narrowed && weft_policy_prefill_first(lane->late.n_prompts)) serve_squeezed(&p);
  bool contended = weft_share_is_contended(&p);
  if (!contended) serve_ready(&p);
  serve_due(&p, contended || p.crowded);
  if (plan->n_rows == 0 && p.pace.budget_us > 0.0) {
    p.pace.budget_us = 0.0; /* no request that decodes can have a row now, so none waits for a token of this step */
    p.pace.prompt_held = p.pace.canvas_held = p.pace.decode_held = false;
    weft_share_open(&p, false);
    if (!contended) serve_ready(&p);
    serve_due(&p, contended || p.crowded);
  }
  close_plan(&p);
}
