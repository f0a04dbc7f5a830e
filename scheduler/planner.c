/* SPDX-License-Identifier: MIT */
/* Planning: which rows of which running request go into the next step.
 *
 * Law. Running first: every decode row, commit and denoise step while they fit and no tenant is far
 * ahead, then prompts and admissions as share.c says, while rows last. Who found no room in a step is
 * first in the next one. Memory goes by
 * rank: a request that lacks blocks takes them from a request that ranks below it (which recomputes
 * later) or waits until somebody leaves; so the first in rank always advances. What is planned
 * ahead of results never goes beyond what the results can only confirm or void:
 *
 *   autoregressive   the row after a token that is still being sampled
 *   canvas           the next denoise step; after the last possible step the commit, and the next
 *                    canvas on it */
#include "base/check.h"
#include "scheduler/cost.h"
#include "scheduler/engine_internal.h"

enum { FAR_AHEAD = 16, AHEAD = 8 }; /* requests between a prefetch and its use */

/* ---- memory ---------------------------------------------------------------------------------- */

/* The highest in rank that lacks memory is remembered: it is served first, and nobody is admitted
 * meanwhile. Where a tenant's own limit is the reason that holds within the tenant only. */
static void starve(weft_engine *e, weft_request *r, weft_request **starved) {
  weft_rank rank = weft_tenants_rank(&e->tenants, r);
  if (*starved != NULL) {
    weft_rank other = weft_tenants_rank(&e->tenants, *starved);
    if (!weft_policy_goes_before(&rank, &other)) return;
  }
  *starved = r;
}

static uint32_t find_victim(weft_engine *e, const weft_request *r, bool own_only) {
  weft_tenants *t = &e->tenants;
  if (e->n_leaving > 0) return WEFT_POLICY_NONE; /* somebody's blocks are on their way */
  uint64_t weight = weft_tenants_active_weight(t);
  for (uint32_t i = 0; i < t->n_tenants; i++) {
    uint32_t held = weft_pager_owner_usage(e->pager, i).n_pinned;
    uint32_t part = weft_tenants_part(t, i, e->config.n_pages, weight);
    t->excess[i] = held > part ? held - part : 0;
  }
  weft_rank rank = weft_tenants_rank(t, r);
  return weft_policy_victim(e->rank, e->n_running, &rank, t->excess, own_only);
}

/* Blocks for the positions before `end`, and for the rest of the smallest block that `end` lies in:
 * that costs no page, since every group's block is a multiple of it. */
static weft_status reserve_to(weft_engine *e, weft_request *r, uint32_t end) {
  uint32_t grain = e->lane[r->lane].block_min;
  uint32_t rounded = (end + grain - 1) & ~(grain - 1);
  if (rounded > e->config.seq_tokens_max) rounded = e->config.seq_tokens_max;
  weft_status status = weft_pager_reserve(e->pager, r->seq, rounded - r->n_committed);
  /* lengths were checked at submit */
  WEFT_CHECK(status == WEFT_OK || status == WEFT_NO_BLOCKS || status == WEFT_QUOTA);
  if (status == WEFT_OK) r->n_reserved = rounded;
  return status;
}

/* Rows that may be planned: n, less when shrink allows it, 0 when memory has to come free first. */
static uint32_t reserve_slow(weft_engine *e, weft_request *r, uint32_t n, bool shrink) {
  weft_request **own = &e->tenants.tenant[r->tenant].starved;
  weft_status status = WEFT_OK;
  weft_lifecycle_commit(e, r); /* windows let go of what they passed */
  for (;;) {
    for (uint32_t got = n; got > 0; got = shrink ? got / 2 : 0) {
      status = reserve_to(e, r, r->n_planned + got);
      if (status != WEFT_OK) continue;
      if (e->starved == r) e->starved = NULL;
      if (*own == r) *own = NULL;
      return got;
    }
    if (weft_lifecycle_commit_all(e, r)) continue; /* its windows may hold less then */
    bool limited = status == WEFT_QUOTA;
    if (!limited && weft_pins_give_way(e, r)) continue;
    uint32_t victim = find_victim(e, r, limited);
    if (victim == WEFT_POLICY_NONE || !weft_lifecycle_preempt(e, e->ranked[victim])) {
      starve(e, r, limited ? own : &e->starved);
      return 0;
    }
  }
}

static inline uint32_t reserve(weft_engine *e, weft_request *r, uint32_t n, bool shrink) {
  if (r->n_planned + n <= r->n_reserved) return n;
  return reserve_slow(e, r, n, shrink);
}

/* ---- one request ----------------------------------------------------------------------------- */

static inline weft_work *add_work(weft_planner *p, weft_request *r, weft_work_kind kind, uint32_t n_rows,
                                  weft_output output) {
  weft_work *work = weft_plan_add(p->plan, kind, n_rows);
  work->request = r;
  work->slot = r->slot;
  work->kv_len = r->n_planned;
  work->block = work->step = 0;
  work->output = (uint8_t)output;
  p->rows_left -= n_rows;
  r->n_in_flight += 1;
  r->planned_in = (uint32_t)p->plan->number;
  weft_cost_add(&p->lane->cost.layers, &p->engine->tenants.tenant[r->tenant].planned, n_rows, r->n_planned,
                kind == WEFT_WORK_DENOISE, output == WEFT_OUTPUT_CANVAS ? n_rows : output);
  return work;
}

static bool has_time(weft_planner *p, const weft_request *r, uint32_t n, uint32_t n_outputs) {
  if (weft_pace_canvas(&p->pace, n, r->n_planned, n_outputs)) return true;
  weft_share_hold(p, r);
  return false;
}

/* The next denoise step on top of n_planned keys. */
static bool plan_denoise(weft_planner *p, weft_request *r) {
  uint32_t n = r->size.n_canvas;
  if (r->next_block == r->size.n_blocks) return true; /* the last step of the last canvas is in flight */
  if (n > p->rows_left || weft_plan_is_full(p->plan)) return false;
  if (!has_time(p, r, n, n)) return false;
  weft_pace_spend(&p->pace, n, r->n_planned, true, n);
  weft_work *work = add_work(p, r, WEFT_WORK_DENOISE, n, WEFT_OUTPUT_CANVAS);
  work->block = r->next_block;
  work->step = r->next_step;
  work->source = WEFT_TOKENS_CANVAS;
  r->next_step += 1;
  if (r->next_step < r->asked.entropy_bound.max_steps) return true;
  r->next_block += 1; /* that step ends the canvas whatever it finds */
  r->next_step = 0;
  return true;
}

/* The canvas before next_block becomes keys and values; the device knows its tokens, the host maybe
 * not yet. */
static bool plan_commit(weft_planner *p, weft_request *r) {
  uint32_t n = r->size.n_canvas;
  if (n > p->rows_left || weft_plan_is_full(p->plan)) return false;
  if (!has_time(p, r, n, 0)) return false;
  if (reserve(p->engine, r, n, false) == 0) return true; /* waits for memory, not for rows */
  weft_pace_spend(&p->pace, n, r->n_planned, true, 0);
  weft_work *work = add_work(p, r, WEFT_WORK_COMMIT, n, WEFT_OUTPUT_NONE);
  work->source = WEFT_TOKENS_ARGMAX;
  r->n_planned += n;
  return plan_denoise(p, r);
}

static bool serve_canvas(weft_planner *p, weft_request *r) {
  if (r->next_block == r->size.n_blocks) return true;
  uint32_t n_virtual = r->n_prompt + r->next_block * r->size.n_canvas;
  if (r->n_planned == n_virtual) return plan_denoise(p, r);
  WEFT_CHECK(r->n_planned + r->size.n_canvas == n_virtual);
  return plan_commit(p, r);
}

static inline bool serve_decode(weft_planner *p, weft_request *r) {
  uint32_t n_virtual = r->n_tokens + r->n_pending;
  if (n_virtual == r->n_end) return true; /* its last token is in flight */
  if (p->rows_left == 0 || weft_plan_is_full(p->plan)) return false;
  WEFT_CHECK(r->n_planned + 1 == n_virtual);
  if (p->n_ahead > 0 && !weft_share_has_time(p, r)) return false;
  if (reserve(p->engine, r, 1, false) == 0) return true;
  weft_work *work = add_work(p, r, WEFT_WORK_DECODE, 1, WEFT_OUTPUT_TOKEN);
  bool known = r->n_planned < r->n_tokens;
  work->source = known ? WEFT_TOKENS_HOST : WEFT_TOKENS_SAMPLED;
  work->token = known ? r->last_token : 0;
  p->n_decode_keys += r->n_planned;
  r->n_planned += 1;
  r->n_pending += 1;
  return true;
}

/* A chunk of the tokens the host knows. The last chunk of an autoregressive request gives a token;
 * after that of a canvas request the first denoise step may follow at once. */
static bool serve_prefill(weft_planner *p, weft_request *r) {
  weft_engine *e = p->engine;
  uint32_t want = r->n_tokens - r->n_planned;
  uint32_t n = want < e->config.prefill_chunk ? want : e->config.prefill_chunk;
  if (n > p->rows_left) n = p->rows_left;
  if (n == 0 || weft_plan_is_full(p->plan)) return false;
  n = weft_pace_chunk(&p->pace, n, r->n_planned, r->canvas ? 0 : 1);
  if (n == 0) {
    weft_share_hold(p, r);
    return false;
  }
  n = reserve(e, r, n, true);
  if (n == 0) return true;
  bool token = n == want && !r->canvas;
  weft_pace_spend(&p->pace, n, r->n_planned, false, token);
  weft_work *work = add_work(p, r, WEFT_WORK_PREFILL, n, token ? WEFT_OUTPUT_TOKEN : WEFT_OUTPUT_NONE);
  work->source = WEFT_TOKENS_HOST;
  r->n_planned += n;
  if (n < want) return true;
  r->prefilling = false;
  r->n_pending = token ? 1 : 0;
  if (r->canvas) (void)plan_denoise(p, r);
  return true;
}

static inline bool serve(weft_planner *p, weft_request *r) {
  if (r->planned_in == (uint32_t)p->plan->number) return true; /* served before */
  if (!r->prefilling) return r->canvas ? serve_canvas(p, r) : serve_decode(p, r);
  bool served = serve_prefill(p, r);
  if (!r->prefilling) weft_lifecycle_make_ready(p->engine, r);
  return served;
}

bool weft_planner_serve(weft_planner *p, weft_request *r) {
  bool served = serve(p, r);
  weft_tenants_charge(&p->engine->tenants, r->tenant, &p->lane->cost);
  return served;
}

/* ---- one lane -------------------------------------------------------------------------------- */

/* First the request; later, when it is about to ask for blocks, what the pager knows of it. */
static inline void prefetch_ready(const weft_planner *p, uint32_t i) {
  const weft_ready *ready = &p->lane->ready;
  if (i + FAR_AHEAD >= ready->n) return;
  __builtin_prefetch(ready->at[i + FAR_AHEAD], 1);
  const weft_request *r = ready->at[i + AHEAD];
  if (r != NULL && r->n_planned == r->n_reserved) weft_pager_prefetch(p->engine->pager, r->seq);
}

static void serve_ready(weft_planner *p) {
  weft_ready *ready = &p->lane->ready;
  weft_ready_pack(ready);
  uint32_t i = 0;
  for (; i < ready->n && p->rows_left > 0; i++) {
    prefetch_ready(p, i);
    weft_request *r = ready->at[i];
    if (r != NULL && !serve(p, r)) weft_ready_skip(ready, i);
  }
  weft_ready_turn(ready, i);
}

static void serve_starved(weft_planner *p) {
  weft_request *r = p->engine->starved;
  if (r != NULL && r->lane == p->lane->index) (void)weft_planner_serve(p, r);
}

/* Once in a while prompts go first, with half of the rows, when decoding left them none for several
 * steps. */
static void serve_squeezed(weft_planner *p) {
  uint32_t kept = p->rows_left / 2;
  p->rows_left -= kept;
  weft_share_run(p, false);
  p->rows_left += kept;
}

/* Other lanes' steps come between the steps of this one: each has its part of the target. */
static void open_pace(weft_planner *p) {
  weft_lane *lane = p->lane;
  uint64_t lanes = weft_engine_lanes_with_requests(p->engine);
  double budget_us = (double)p->engine->config.target_tpot_us;
  if (lane->ready.n_decode == 0) budget_us = 0.0;
  if (lanes != 0) budget_us /= __builtin_popcountll(lanes);
  weft_share_open(p, budget_us > 0.0);
  weft_pace_open(&p->pace, &lane->cost, budget_us, lane->ready.n_decode - p->n_ahead, lane->keys_per_decode,
                 &lane->late);
}

/* For the next plans: what got rows in this one, and what did not. */
static void close_plan(weft_planner *p) {
  weft_lane *lane = p->lane;
  const uint32_t *rows = p->plan->n_rows_of;
  if (rows[WEFT_WORK_DECODE] > 0) {
    lane->keys_per_decode = (uint32_t)(p->n_decode_keys / rows[WEFT_WORK_DECODE]);
  }
  bool canvas = rows[WEFT_WORK_DENOISE] + rows[WEFT_WORK_COMMIT] > 0;
  lane->late.n_canvases = p->pace.canvas_held && !canvas ? lane->late.n_canvases + 1 : 0;
  bool prompts = !weft_list_empty(&lane->prefilling) || lane->n_waiting > 0;
  bool squeezed =
      prompts && rows[WEFT_WORK_PREFILL] == 0 && (p->rows_left == 0 || p->pace.prompt_held || p->pace.canvas_held);
  lane->late.n_prompts = squeezed ? lane->late.n_prompts + 1 : 0;
  p->plan->shape = weft_tenants_planned(&p->engine->tenants);
  weft_tenants_settle(&p->engine->tenants, lane->index, &lane->cost, &p->plan->shape);
  weft_tenants_level(&p->engine->tenants, weft_engine_lanes_with_requests(p->engine));
}

void weft_planner_run(weft_planner *p) {
  weft_lane *lane = p->lane;
  p->engine->preempted = false;
  open_pace(p);
  serve_starved(p);
  if (weft_policy_prefill_first(lane->late.n_prompts)) serve_squeezed(p);
  bool contended = weft_share_is_contended(p);
  if (!contended) serve_ready(p);
  weft_share_run(p, contended);
  if (p->plan->n_rows == 0 && p->pace.budget_us > 0.0) {
    p->pace.budget_us = 0.0; /* nobody who may decode can, so nobody waits for a token */
    p->pace.prompt_held = p->pace.canvas_held = false;
    weft_share_open(p, false);
    if (!contended) serve_ready(p);
    weft_share_run(p, contended);
  }
  close_plan(p);
}
