/* SPDX-License-Identifier: MIT */
#include "scheduler/runs.h"

bool weft_runs_follow_shadow(const weft_request *r) {
  const weft_drafting *d = &r->drafting;
  return r->n_tokens < d->foretold_at + (d->n_foretold > 0 ? d->n_foretold : 1);
}

/* The drafts that there may be: before the last token of the answer, and as many as n-grams have. */
static uint32_t most_drafts(const weft_request *r) {
  uint32_t n = r->drafting.n_max, n_left = r->n_end - r->n_tokens;
  if (!r->drafts || r->prefilling || n_left <= 1 || weft_runs_follow_shadow(r)) return 0;
  if (n > n_left - 1) n = n_left - 1;
  return r->drafting.kind == WEFT_DRAFT_NGRAM && n > r->drafting.n_guessed ? r->drafting.n_guessed : n;
}

static double rate_of(const weft_lane *lane, const weft_request *r) {
  return weft_drafting_rate(&r->drafting, &lane->acceptance[r->tenant], r->n_answer);
}

static void count_crowd(const weft_lane *lane, weft_depth_crowd *crowd) {
  const weft_ready *ready = &lane->ready;
  *crowd = (weft_depth_crowd){0};
  for (uint32_t i = 0; i < ready->n; i++) {
    const weft_request *r = ready->at[i];
    if (r == NULL || r->denoises || (lane->n_stages > 1 && r->n_in_flight > 0)) continue;
    crowd->n += 1;
    uint32_t n = most_drafts(r);
    if (n > 0) weft_depth_count(crowd, rate_of(lane, r), n, r->drafting.kind == WEFT_DRAFT_NGRAM);
  }
}

static void choose_depth(weft_engine *e, weft_lane *lane, double budget_us) {
  weft_depth_crowd crowd;
  const weft_drafter *drafter = e->config.drafter;
  count_crowd(lane, &crowd);
  const weft_cost_shape shape = weft_cost_decode(&lane->cost.layers, crowd.n, lane->keys_per_decode);
  weft_depth_limits limits = {.draft_rows = lane->info->draft_rows_max,
                              .rows = lane->rows_beside > crowd.n ? lane->rows_beside - crowd.n : 0,
                              .budget_us = budget_us,
                              .alike = lane->info->graphs,
                              .ahead = e->config.overlap && lane->info->depth > 1 && lane->n_stages == 1};
  if (crowd.n_unjudged > 0 && !lane->info->drafts && drafter->wait_us != NULL)
    limits.wait_us = drafter->wait_us(drafter->self, lane->index);
  weft_depth_choose(lane->depth, &lane->cost, &crowd, &shape, &limits);
}

static bool has_choice(const weft_engine *e, const weft_lane *lane) {
  return lane->info->draft_rows_max > 0 && !e->config.drafts_always;
}

void weft_runs_choose(weft_planning *p) {
  weft_lane *lane = p->lane;
  if (!has_choice(p->engine, lane)) return;
  if (lane->n_in_flight == 0 || lane->n_stages > 1) choose_depth(p->engine, lane, p->pace.budget_us);
  p->plan->waited = lane->waits_for_drafts;
  p->plan->trial = lane->depth->trial;
  lane->waits_for_drafts = false;
}

bool weft_runs_wait(weft_engine *e, weft_lane *lane) {
  if (!has_choice(e, lane) || lane->n_in_flight == 0 || lane->n_stages > 1) return false;
  choose_depth(e, lane, 0.0);
  lane->waits_for_drafts = lane->depth->rung > 0;
  return lane->waits_for_drafts;
}

uint32_t weft_runs_depth(const weft_lane *lane, const weft_request *r) {
  const weft_depth *d = lane->depth;
  uint32_t n = most_drafts(r), depth = weft_depth_ladder[d->rung];
  if (d->rung == 0 || n == 0 || weft_depth_class(rate_of(lane, r)) < d->least_rate) return 0;
  if (n >= depth) return depth;
  return lane->info->graphs ? 0 : weft_depth_ladder[weft_depth_rung(n)];
}

static double time_of_step(const weft_engine *e, const weft_step_plan *plan, uint64_t device_us) {
  uint64_t from = plan->began_us > e->device_free_us ? plan->began_us : e->device_free_us;
  uint64_t us = e->now_us > from ? e->now_us - from : 0;
  bool whole = e->real_clock && e->lane[plan->lane].n_stages == 1 && us > device_us;
  return (double)(whole ? us : device_us);
}

void weft_runs_landed(weft_engine *e, const weft_step_plan *plan, const weft_step_result *result) {
  weft_lane *lane = &e->lane[plan->lane];
  const uint32_t *rows = plan->n_rows_of;
  const weft_drafter *drafter = e->config.drafter;
  if (!has_choice(e, lane) || result->device_us == 0) return;
  weft_depth_step step = {.n_sequences = rows[WEFT_WORK_DECODE] + plan->n_runs,
                          .n_runs = plan->n_runs,
                          .n_gained = plan->n_gained,
                          .depth = plan->n_drafts_most,
                          .shape = plan->shape,
                          .plain = plan->shape,
                          .pure = rows[WEFT_WORK_DECODE] + rows[WEFT_WORK_VERIFY] == plan->n_rows,
                          .is_new = result->is_new,
                          .trial = plan->trial,
                          .waited = plan->waited,
                          .us = time_of_step(e, plan, result->device_us)};
  step.plain.n_rows -= plan->of_drafts.n_rows;
  step.plain.n_outputs -= plan->of_drafts.n_outputs;
  step.plain.n_reads -= plan->of_drafts.n_reads;
  step.plain.n_products -= plan->of_drafts.n_products;
  if (plan->waits_drafter && drafter->wait_us != NULL) step.wait_us = drafter->wait_us(drafter->self, plan->lane);
  weft_depth_landed(lane->depth, &lane->cost, &step);
}
