/* SPDX-License-Identifier: MIT */
#include "scheduler/rows.h"

#include <string.h>

#include "scheduler/runs.h"

/* ---- the step ---------------------------------------------------------------------------------- */

/* Whether a request has a token to come that no step in flight computes. */
static bool lane_decodes(const weft_lane *lane) {
  for (uint32_t i = 0; lane->ready.n_decode > 0 && i < lane->ready.n; i++) {
    const weft_request *r = lane->ready.at[i];
    if (r != NULL && !r->denoises && r->n_tokens + r->n_pending < r->n_end) return true;
  }
  return false;
}

uint32_t weft_rows_of_step(const weft_engine *e, const weft_lane *lane) {
  if (lane->rows_beside == lane->rows_max) return lane->rows_max;
  for (uint32_t i = 0; i < e->n_lanes; i++) {
    if (lane_decodes(&e->lane[i])) return lane->rows_beside;
  }
  return weft_lane_has_prompts(lane) && weft_tenants_are_rivals(&e->tenants) ? lane->rows_beside : lane->rows_max;
}

/* ---- canvases and prompts ---------------------------------------------------------------------- */

static bool has_time_for_canvas(weft_planning *p, const weft_request *r, uint32_t n_outputs) {
  if (weft_pace_canvas(&p->pace, r->size.n_canvas, r->n_planned, n_outputs)) return true;
  weft_share_hold(p, r);
  return false;
}

/* The next denoise step on top of n_planned keys, or first the commit of the canvas before next_block: the device knows
 * its tokens, the host maybe not yet. */
static weft_rows_verdict rows_of_canvas(weft_planning *p, const weft_request *r, weft_rows *out) {
  uint32_t n = r->size.n_canvas;
  if (r->next_block == r->size.n_blocks) return WEFT_ROWS_NONE; /* the last step of the last canvas is in flight */
  uint32_t n_virtual = r->n_prompt + r->next_block * n;
  bool commits = r->n_planned != n_virtual;
  WEFT_CHECK(!commits || r->n_planned + n == n_virtual);
  if (weft_rows_leave_stage(p, r)) return WEFT_ROWS_NONE;
  if (n > p->rows_left) p->canvas_lacks_rows = true;
  if (n > p->rows_left || weft_plan_is_full(p->plan)) return WEFT_ROWS_HELD;
  if (!has_time_for_canvas(p, r, commits ? 0 : n)) return WEFT_ROWS_HELD;
  *out = (weft_rows){.kind = commits ? WEFT_WORK_COMMIT : WEFT_WORK_DENOISE,
                     .n = n,
                     .n_keys = commits ? n : 0,
                     .n_outputs = commits ? 0 : n,
                     .ask = commits ? WEFT_ASK_SAMPLE : WEFT_ASK_CANVAS};
  return WEFT_ROWS_SOME;
}

/* The first n rows of a prompt that are left: those that are still to be scored have an output, and the last one of a
 * prompt that is answered token by token draws the first token. */
static void choose_outputs(const weft_request *r, uint32_t n, weft_rows *out) {
  bool draws = n == r->n_tokens - r->n_planned && !r->denoises && r->size.answer_max > 0;
  uint32_t first, n_scored = weft_request_n_to_score(r, n, &first);
  WEFT_CHECK(n_scored == 0 || !draws || first + n_scored == n - 1);
  out->n = out->n_keys = n;
  out->first_output = n_scored > 0 ? first : draws ? n - 1 : 0;
  out->n_outputs = n_scored + (draws ? 1 : 0);
  out->ask = n_scored == 0 ? WEFT_ASK_SAMPLE : draws ? WEFT_ASK_SCORE_THEN_SAMPLE : WEFT_ASK_SCORE;
}

/* How many of n rows of a prompt leave no more to score than there is room for. */
static uint32_t fit_scores(const weft_planning *p, const weft_request *r, uint32_t n) {
  uint32_t first, n_scored = weft_request_n_to_score(r, n, &first);
  return n_scored > p->scored_rows_left ? first + p->scored_rows_left : n;
}

static uint32_t divide_up(uint32_t n, uint32_t parts) {
  return n / parts + (n % parts != 0);
}

/* Those that can have rows now are shared out to the stages without a step; an n-th of all is the most. */
uint32_t weft_rows_n_ready(const weft_planning *p) {
  const weft_ready *ready = &p->lane->ready;
  uint32_t n_stages = p->lane->n_stages, n_busy = p->engine->n_flight, n_free = 0;
  if (n_stages == 1) return UINT32_MAX;
  if (n_busy > n_stages - 1) n_busy = n_stages - 1;
  for (uint32_t i = 0; i < ready->n; i++) {
    const weft_request *r = ready->at[i];
    n_free += r != NULL && !weft_rows_are_near(p, r);
  }
  uint32_t share = divide_up(ready->n - ready->n_holes, n_stages), own = divide_up(n_free, n_stages - n_busy);
  return own < share ? own : share;
}

/* At most so many of n rows of a prompt that are left, so that every stage has some (rows.h). */
static uint32_t share_of_stage(const weft_lane *lane, uint32_t n) {
  uint32_t share = divide_up(n, lane->n_stages);
  return share < WEFT_STAGE_ROWS && lane->n_stages > 1 ? WEFT_STAGE_ROWS : share;
}

/* A chunk of the tokens that the host knows. */
static weft_rows_verdict rows_of_prompt(weft_planning *p, const weft_request *r, weft_rows *out) {
  uint32_t n = r->n_tokens - r->n_planned, share = share_of_stage(p->lane, n);
  if (n > share) n = share;
  if (n > p->engine->config.prefill_chunk) n = p->engine->config.prefill_chunk;
  if (n > p->rows_left) n = p->rows_left;
  n = fit_scores(p, r, n);
  if (n == 0 || weft_plan_is_full(p->plan)) return WEFT_ROWS_HELD;
  *out = (weft_rows){.kind = WEFT_WORK_PREFILL, .may_be_fewer = true};
  choose_outputs(r, n, out);
  uint32_t n_timely = weft_pace_chunk(&p->pace, n, r->n_planned, out->n_outputs);
  if (n_timely == 0) {
    weft_share_hold(p, r);
    return WEFT_ROWS_HELD;
  }
  if (n_timely < n) choose_outputs(r, n_timely, out);
  return WEFT_ROWS_SOME;
}

/* ---- drafts ----------------------------------------------------------------------------------- */

/* The last token and n - 1 drafts. Every row draws a token. */
static void choose_run(uint32_t n, weft_rows *out) {
  out->kind = n > 1 ? WEFT_WORK_VERIFY : WEFT_WORK_DECODE;
  out->n = out->n_keys = out->n_outputs = n;
  out->may_be_fewer = n > 1;
  out->first_output = 0;
  out->ask = WEFT_ASK_SAMPLE;
}

static uint32_t least_of(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

/* How many drafts there is room for: rows, places of the answer before its last one, and what the drafter has. */
static uint32_t room_for_drafts(const weft_planning *p, const weft_request *r) {
  uint32_t n = least_of(p->draft_rows_left, r->drafting.n_max), n_left = r->n_end - r->n_tokens;
  n = least_of(n, p->rows_left > 0 ? p->rows_left - 1 : 0);
  n = least_of(n, n_left > 0 ? n_left - 1 : 0);
  bool guessed = r->drafting.kind == WEFT_DRAFT_NGRAM;
  if (r->drafting.by_runner && r->n_in_flight == 0) { /* its runner was asked before the plan (own_drafts.h) */
    if (r->drafting.guessed_at != r->n_tokens) return 0;
    guessed = true;
  }
  return guessed ? least_of(n, r->drafting.n_guessed) : n;
}

/* How many drafts the request should have now; 0: none. */
static uint32_t count_drafts(const weft_planning *p, const weft_request *r) {
  uint32_t n_max = room_for_drafts(p, r);
  if (n_max == 0 || p->engine->config.drafts_always) return weft_runs_follow_shadow(r) ? 0 : n_max;
  return least_of(n_max, weft_runs_depth(p->lane, r));
}

static uint32_t ask_drafter(weft_planning *p, const weft_request *r, uint32_t n_max) {
  const weft_drafter *drafter = p->engine->config.drafter;
  if (r->drafting.kind != WEFT_DRAFT_NGRAM && !r->drafting.by_runner) {
    const weft_draft_text text = {
        .model = r->lane, .slot = r->slot, .params = &r->params, .tokens = r->tokens, .n_tokens = r->n_tokens};
    uint32_t n = drafter->guess(drafter->self, &text, n_max, p->draft);
    WEFT_CHECK(n <= n_max || n == WEFT_DRAFTS_COMING);
    return n;
  }
  memcpy(p->draft, r->drafting.guess, n_max * sizeof *p->draft);
  return n_max;
}

/* The drafts of a request, in p->draft: at most n_max, and none from one on that the vocabulary does not have, that
 * would end the answer (nothing is drawn after it), or that its format does not allow. Or WEFT_DRAFTS_COMING. */
static uint32_t find_drafts(weft_planning *p, const weft_request *r, uint32_t n_max) {
  uint32_t k = 0;
  n_max = weft_pace_drafts(&p->pace, n_max, r->n_planned + 1);
  if (n_max == 0) return 0;
  uint64_t start_ns = weft_clock_ns();
  uint32_t n = ask_drafter(p, r, n_max);
  if (n == WEFT_DRAFTS_COMING) k = n;
  while (k < n && (uint32_t)p->draft[k] < p->lane->info->n_vocab && !weft_request_is_stop_token(r, p->draft[k])) k++;
  weft_runner *runner = p->lane->runner;
  if (k > 0 && k <= n_max && r->params.grammar != NULL && runner->ops->allowed != NULL)
    k = runner->ops->allowed(runner, r->slot, p->draft, k);
  p->drafting.asked = true;
  p->drafting.coming = n == WEFT_DRAFTS_COMING;
  p->drafting.took_ns = weft_clock_ns() - start_ns;
  return k;
}

/* How many tokens a run may draw is not known before it has landed, so it has no successor in flight; and a request
 * waits for its rows in flight before it has a run, since drafts follow tokens that are known. */
static weft_rows_verdict rows_of_run(weft_planning *p, const weft_request *r, weft_rows *out) {
  bool has_run = r->n_pending > r->n_in_flight;
  *out = (weft_rows){0};
  if (has_run) return WEFT_ROWS_NONE;
  uint32_t n = count_drafts(p, r);
  if (n > 0 && r->n_in_flight > 0) return WEFT_ROWS_NONE;
  weft_rows_verdict verdict = weft_rows_of_decode(p, r);
  if (verdict != WEFT_ROWS_SOME) return verdict;
  if (n > 0) n = find_drafts(p, r, n);
  if (n == WEFT_DRAFTS_COMING) return WEFT_ROWS_NONE;
  choose_run(1 + n, out);
  return WEFT_ROWS_SOME;
}

weft_rows_verdict weft_rows_next(weft_planning *p, const weft_request *r, weft_rows *out) {
  if (r->prefilling) return rows_of_prompt(p, r, out);
  return r->denoises ? rows_of_canvas(p, r, out) : rows_of_run(p, r, out);
}

void weft_rows_cut(const weft_request *r, uint32_t n, weft_rows *rows) {
  if (n == rows->n) return;
  WEFT_CHECK(rows->may_be_fewer && n < rows->n);
  if (rows->kind == WEFT_WORK_PREFILL) {
    choose_outputs(r, n, rows);
  } else {
    choose_run(n, rows);
  }
}
