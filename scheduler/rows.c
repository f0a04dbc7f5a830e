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
  *out = (weft_rows){.kind = commits ? WEFT_WORK_COMMIT : WEFT_WORK_DENOISE, .n = n, .n_keys = commits ? n : 0};
  return WEFT_ROWS_SOME;
}

/* How many of n rows of a prompt leave no more to score than there is room for; *n_outputs: those that are scored. */
static uint32_t fit_scores(const weft_planning *p, const weft_request *r, uint32_t n, uint32_t *n_outputs) {
  uint32_t first, n_scored = weft_request_n_to_score(r, n, &first);
  if (n_scored > p->scored_rows_left) {
    n_scored = p->scored_rows_left;
    n = first + n_scored;
  }
  *n_outputs = n_scored;
  return n;
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
  uint32_t n = r->n_tokens - r->n_planned, share = share_of_stage(p->lane, n), n_outputs;
  if (n > share) n = share;
  if (n > p->engine->config.prefill_chunk) n = p->engine->config.prefill_chunk;
  if (n > p->rows_left) n = p->rows_left;
  n = fit_scores(p, r, n, &n_outputs);
  if (n == 0 || weft_plan_is_full(p->plan)) return WEFT_ROWS_HELD;
  n = weft_pace_chunk(&p->pace, n, r->n_planned, n_outputs + (r->canvas ? 0 : 1));
  if (n == 0) {
    weft_share_hold(p, r);
    return WEFT_ROWS_HELD;
  }
  *out = (weft_rows){.kind = WEFT_WORK_PREFILL, .n = n, .n_keys = n};
  return WEFT_ROWS_SOME;
}

weft_rows_verdict weft_rows_next(weft_planning *p, const weft_request *r, weft_rows *out) {
  return r->prefilling ? rows_of_prompt(p, r, out) : rows_of_canvas(p, r, out);
}
