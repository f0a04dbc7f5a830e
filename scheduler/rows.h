/* SPDX-License-Identifier: MIT */
/* Which rows a running request can use next. Reads the request and the plan, and changes neither. A waiting request is
 * admitted first, and then asks here in the same plan (planner.c).
 *
 * Law. Rows that are planned before the results of earlier rows are known are such that these results can only confirm
 * them or make them void. A run of several rows (model/batch.h) may also end partly void: its first rows are confirmed,
 * the others void. No other rows are planned on top of such a run before it has landed; then apply.c sets the request's
 * planned rows back to those that were confirmed, and the pager takes back the blocks that only void rows needed.
 *
 *   prompt           tokens that the host knows: at most prefill_chunk, the rows left in the step, and as many as
 *                    weft_pace_chunk (pace.h) finds time for beside those that decode
 *   autoregressive   the row after a token that is still being sampled, also where that token decides what may follow:
 *                    the runner has it when it makes the row's mask (model/runner/runner_sample.c)
 *   with drafts      where the step is to have runs of it (runs.h), nothing while any rows are in flight; then a run
 *                    of the last token and as many drafts as were chosen, the drafter has, and rows and time are there
 *                    for; nothing while the drafter makes them. Else as without drafts, but nothing while a run is
 *                    in flight (step.c: no step of the lane is then planned at all, if it has one stage)
 *   canvas           the next denoise step; after the last possible step the commit of the canvas, and the first step
 *                    of the next canvas on top of it
 *
 * Stages. Where the runner computes n > 1 steps at once, each on a device of its own, a step begins on the first device
 * before the steps ahead of it have left the others. So that no device waits for another, a request that decodes or
 * denoises has rows in one of n steps in a row while any of them are in flight; a plan serves at most an n-th of such
 * requests, beside those whose prompts end in it, so that the next ones find others; and a prompt's chunk is at most an
 * n-th of what is left of the prompt, but never cut below WEFT_STAGE_ROWS. With one stage nothing of this changes a
 * plan.
 *
 * Rows of a step. A step holds rows_per_step rows while nobody waits for its end but those whose prompts are in it: no
 * request of any model has a next token to come that it could compute, and no two tenants have requests while prompts
 * of the lane are to be computed. Else it holds rows_beside rows, so that what one prompt costs the streams and the
 * first tokens of others is bounded. Canvases alone do not bound it: all of a step go on together.
 *
 * Outputs. Which of the rows have an output, and what is asked of it, is decided here and nowhere else. */
#ifndef WEFT_SCHEDULER_ROWS_H
#define WEFT_SCHEDULER_ROWS_H

#include "scheduler/share.h"

/* A step of fewer rows of prompts loses more on each device than its neighbours save beside it: in bench/results/h200.json a
 * prompt runs at 37, 46 and 52 thousand tokens a second in chunks of 512, 1024 and 2048. */
enum { WEFT_STAGE_ROWS = 1024 };

typedef enum weft_rows_verdict {
  WEFT_ROWS_NONE = 0, /* it can use none until the results of its rows in flight are there */
  WEFT_ROWS_HELD = 1, /* it could use some, but no row or no time is left in this step */
  WEFT_ROWS_SOME = 2
} weft_rows_verdict;

typedef struct weft_rows {
  weft_work_kind kind;
  uint32_t n;
  uint32_t n_keys;   /* positions beyond those planned that need blocks */
  bool may_be_fewer; /* when blocks are short (weft_rows_cut); else it is all or none */
  uint32_t first_output, n_outputs;
  weft_ask ask;
} weft_rows;

/* Whether the request's rows in flight are still near the first stages, so that rows planned now would wait for them. */
static inline bool weft_rows_are_near(const weft_planning *p, const weft_request *r) {
  return r->n_in_flight > 0 && (uint32_t)p->plan->number - r->planned_in < p->lane->n_stages;
}

/* Whether the request leaves this plan to others, so that no stage waits for its rows. */
static inline bool weft_rows_leave_stage(const weft_planning *p, const weft_request *r) {
  if (p->lane->n_stages == 1 || r->planned_in == (uint32_t)p->plan->number) return false;
  return p->n_ready_left == 0 || weft_rows_are_near(p, r);
}

/* Most rows of the lane's next step. */
uint32_t weft_rows_of_step(const weft_engine *engine, const weft_lane *lane);
/* How many requests that decode or denoise the plan serves at most. */
uint32_t weft_rows_n_ready(const weft_planning *planning);

/* For an autoregressive request whose prompt is computed. */
static inline weft_rows_verdict weft_rows_of_decode(weft_planning *p, const weft_request *r) {
  uint32_t n_virtual = r->n_tokens + r->n_pending;
  if (n_virtual == r->n_end) return WEFT_ROWS_NONE; /* its last token is in flight */
  if (weft_rows_leave_stage(p, r)) return WEFT_ROWS_NONE;
  if (p->rows_left == 0 || weft_plan_is_full(p->plan)) return WEFT_ROWS_HELD;
  WEFT_CHECK(r->n_planned + 1 == n_virtual);
  if (p->n_ahead > 0 && !weft_share_has_time(p, r)) return WEFT_ROWS_HELD;
  return WEFT_ROWS_SOME;
}

/* For a request that computes its prompt, denoises, or may have drafts. *out is set with SOME only. */
weft_rows_verdict weft_rows_next(weft_planning *planning, const weft_request *request, weft_rows *out);
/* There are blocks for the first n of these rows only. */
void weft_rows_cut(const weft_request *request, uint32_t n, weft_rows *rows);

#endif
