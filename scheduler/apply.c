/* SPDX-License-Identifier: MIT */
/* Applying: results become tokens, events, committed positions.
 *
 * Law. Segments are applied in plan order. Rows of a request that has finished meanwhile are void
 * and counted. A preempted request whose rows were in flight keeps what they gave. Tokens are known
 * to the host before the rows that hold them are committed: a row's token was sampled in an earlier
 * step, which was applied earlier. */
#include <stdio.h>

#include "base/check.h"
#include "scheduler/engine_internal.h"
#include "scheduler/latency.h"

/* ---- the answer grows ------------------------------------------------------------------------ */

/* n_answer tokens are in place; the stop rule may cut them, never below what was published. */
static void publish(weft_engine *e, weft_request *r, uint32_t n_answer, weft_finish finish) {
  uint32_t before = r->n_answer;
  if (n_answer > before) {
    bool stop;
    uint32_t keep = weft_request_keep(r, n_answer, &stop);
    if (stop) finish = WEFT_FINISH_STOP;
    n_answer = keep > before ? keep : before;
  }
  if (n_answer > before) {
    if (before == 0) {
      r->usage.first_token_us = e->now_us;
      uint64_t ttft = e->now_us > r->usage.submitted_us ? e->now_us - r->usage.submitted_us : 0;
      e->stats.ttft_sum_us += ttft;
      weft_latency_count(e->stats.ttft, ttft);
    }
    e->stats.n_answer_tokens += n_answer - before;
    r->n_answer = n_answer;
    weft_request_publish(r, n_answer);
  }
  if (finish != WEFT_FINISH_NONE) {
    weft_lifecycle_finish(e, r, finish, NULL); /* tells the reader, too */
  } else if (n_answer > before) {
    weft_request_tell(r);
  }
}

static void apply_token(weft_engine *e, weft_request *r, const weft_segment_result *result) {
  WEFT_CHECK(r->n_pending > 0);
  r->n_pending -= 1;
  if (result->bad) {
    weft_lifecycle_finish(e, r, WEFT_FINISH_ERROR,
                          "the model gave a logit that is not finite for this request");
    return;
  }
  int32_t token = result->sampled.token;
  if (weft_request_is_stop_token(r, token)) {
    publish(e, r, r->n_answer, WEFT_FINISH_STOP);
    return;
  }
  WEFT_CHECK(r->n_answer < r->size.answer_max);
  r->tokens[r->n_tokens++] = token;
  if (r->sampled != NULL) r->sampled[r->n_answer] = result->sampled;
  bool full = r->n_answer + 1 == r->size.answer_max;
  publish(e, r, r->n_answer + 1, full ? WEFT_FINISH_LENGTH : WEFT_FINISH_NONE);
}

/* ---- canvases -------------------------------------------------------------------------------- */

/* The argmax canvas is final: the whole canvas is context for the next one, the answer is cut. */
static void finish_canvas(weft_engine *e, weft_request *r, const int32_t *argmax) {
  uint32_t n = r->size.n_canvas, n_answer = r->n_answer;
  weft_finish finish = WEFT_FINISH_NONE;
  for (uint32_t i = 0; i < n; i++) {
    r->tokens[r->n_tokens++] = argmax[i];
    if (finish != WEFT_FINISH_NONE) continue;
    if (weft_request_is_stop_token(r, argmax[i])) {
      finish = WEFT_FINISH_STOP;
    } else if (++n_answer == r->size.answer_max) {
      finish = WEFT_FINISH_LENGTH;
    }
  }
  r->usage.n_canvases += 1;
  e->stats.n_canvases += 1;
  if (r->next_block == r->block) { /* done early: the steps planned ahead are void */
    r->next_block += 1;
    r->next_step = 0;
  }
  r->block += 1;
  publish(e, r, n_answer, finish);
}

/* A preempted canvas goes through its steps again: they are reported once. */
static void report_step(weft_request *r, const weft_work *work, const weft_segment_result *result) {
  if (work->block != r->reported_block || work->step != r->reported_step) return;
  r->usage.n_denoise_steps += 1;
  r->reported_step += 1;
  if (result->done) {
    r->reported_block += 1;
    r->reported_step = 0;
  }
  weft_request_publish_canvas(r, result, work->block, work->step);
}

static void apply_canvas(weft_engine *e, weft_request *r, const weft_work *work,
                         const weft_segment_result *result) {
  if (result->is_void || work->block < r->block) {
    e->stats.n_void_rows += work->n_rows;
    if (work->block < r->block) return;
    weft_lifecycle_finish(e, r, WEFT_FINISH_ERROR,
                          "the runner skipped a denoise step of a canvas that was not done");
    return;
  }
  e->stats.n_denoise_steps += 1;
  if (result->bad) {
    weft_lifecycle_finish(e, r, WEFT_FINISH_ERROR,
                          "the model gave a logit that is not finite for this request");
    return;
  }
  report_step(r, work, result);
  if (result->done) {
    finish_canvas(e, r, result->argmax);
  } else if (work->step + 1 == r->asked.entropy_bound.max_steps) {
    weft_lifecycle_finish(e, r, WEFT_FINISH_ERROR,
                          "the runner did not end a canvas at its last denoise step");
  } else {
    weft_request_tell(r);
  }
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* The rows are valid. The pager hears of decoded ones when they fill a block: before, it could do
 * nothing with them. */
static void land_rows(weft_engine *e, weft_request *r, const weft_work *work) {
  WEFT_CHECK(r->n_valid == work->kv_len);
  WEFT_CHECK(work->kv_len + work->n_rows <= r->n_tokens);
  r->n_valid += work->n_rows;
  if (work->kind == WEFT_WORK_PREFILL) r->usage.n_computed_rows += work->n_rows;
  bool full = (r->n_valid & (e->lane[r->lane].block_min - 1)) == 0;
  if (full || work->kind != WEFT_WORK_DECODE) weft_lifecycle_commit(e, r);
}

static void apply_work(weft_engine *e, const weft_work *work, const weft_segment_result *result) {
  weft_request *r = work->request;
  if (r->finish != WEFT_FINISH_NONE) {
    e->stats.n_void_rows += work->n_rows;
  } else {
    if (work->kind != WEFT_WORK_DENOISE) land_rows(e, r, work);
    if (work->output == WEFT_OUTPUT_TOKEN) apply_token(e, r, result);
    if (work->output == WEFT_OUTPUT_CANVAS) apply_canvas(e, r, work, result);
  }
  weft_lifecycle_landed(e, r);
}

/* Results come in order, one per segment with an output. False: this is not the segment's. */
static bool take_result(const weft_step_result *result, uint32_t segment, uint32_t *next,
                        const weft_segment_result **out) {
  if (*next == result->n_results || result->result[*next].segment != segment) return false;
  *out = &result->result[(*next)++];
  return true;
}

enum { AHEAD = 6 }; /* works between a prefetch and its use */

static inline void prefetch_work(const weft_work *work) {
  const char *r = (const char *)work->request;
  __builtin_prefetch(r, 1);
  __builtin_prefetch(r + 64, 1);
}

bool weft_apply_step(weft_engine *engine, weft_plan *plan, const weft_step_result *result) {
  uint32_t next = 0, segment = 0;
  for (uint32_t i = 0; i < plan->n_causal; i++, segment++) {
    const weft_work *work = &plan->causal[i];
    const weft_segment_result *own = NULL;
    if (i + AHEAD < plan->n_causal) prefetch_work(work + AHEAD);
    if (work->output != WEFT_OUTPUT_NONE && !take_result(result, segment, &next, &own))
      return false;
    apply_work(engine, work, own);
  }
  for (uint32_t i = 0; i < plan->n_canvas; i++, segment++) {
    const weft_segment_result *own = NULL;
    if (!take_result(result, segment, &next, &own)) return false;
    apply_work(engine, &plan->canvas[i], own);
  }
  return next == result->n_results;
}
