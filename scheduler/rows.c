/* SPDX-License-Identifier: MIT */
#include "scheduler/rows.h"

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

/* The last token and n - 1 drafts. Every row draws a token. */
static void choose_run(uint32_t n, weft_rows *out) {
  *out = (weft_rows){.kind = n > 1 ? WEFT_WORK_VERIFY : WEFT_WORK_DECODE,
                     .n = n,
                     .n_keys = n,
                     .may_be_fewer = n > 1,
                     .n_outputs = n,
                     .ask = WEFT_ASK_SAMPLE};
}

static uint32_t least_of(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

/* The drafts of a request, in p->draft: at most n_max, and none from one on that the vocabulary does not have or that
 * would end the answer: nothing is drawn after it. */
static uint32_t ask_drafter(weft_planning *p, const weft_request *r, uint32_t n_max) {
  const weft_drafter *drafter = p->engine->config.drafter;
  uint32_t n = n_max == 0 ? 0 : drafter->guess(drafter->self, r->lane, r->tokens, r->n_tokens, n_max, p->draft), k = 0;
  WEFT_CHECK(n <= n_max);
  while (k < n && (uint32_t)p->draft[k] < p->lane->info->n_vocab && !weft_request_is_stop_token(r, p->draft[k])) k++;
  return k;
}

/* How many tokens a run may draw is not known before it has landed, so it has no successor in flight. */
static weft_rows_verdict rows_of_run(weft_planning *p, const weft_request *r, weft_rows *out) {
  if (r->n_in_flight > 0) return WEFT_ROWS_NONE;
  weft_rows_verdict verdict = weft_rows_of_decode(p, r);
  if (verdict != WEFT_ROWS_SOME) return verdict;
  uint32_t n_max =
      least_of(least_of(p->rows_left - 1, r->n_end - r->n_tokens - 1), least_of(p->draft_rows_left, WEFT_DRAFTS_MAX));
  n_max = weft_pace_drafts(&p->pace, n_max, r->n_planned + 1);
  choose_run(1 + ask_drafter(p, r, n_max), out);
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
