/* SPDX-License-Identifier: MIT */
#include "scheduler/apply.h"

#include <stdio.h>

#include "base/check.h"
#include "scheduler/latency.h"
#include "scheduler/lifecycle.h"

enum { FAR_AHEAD = 16, AHEAD = 8 }; /* works between a prefetch and its use */

/* ---- the answer grows ------------------------------------------------------------------------ */

/* Readers are told when the whole step is applied: one barrier for all of them. A request that goes
 * on is not freed before. */
static inline void tell_later(weft_engine *e, weft_request *r) {
  e->told[e->n_told++] = r;
}

static void tell_all(weft_engine *e) {
  weft_request_published();
  for (uint32_t i = 0; i < e->n_told; i++) {
    if (i + AHEAD < e->n_told) __builtin_prefetch(e->told[i + AHEAD]);
    weft_request_tell(e->told[i]);
  }
  e->n_told = 0;
}

static void count_first_token(weft_engine *e, weft_request *r) {
  r->usage.first_token_us = e->now_us;
  if (r->is_draft) return;
  uint64_t ttft = e->now_us > r->usage.submitted_us ? e->now_us - r->usage.submitted_us : 0;
  weft_histogram_count_us(&e->requests[r->lane].ttft, ttft);
}

/* Counted as they are made, so that rates of a tenant are right while its requests run. */
static inline void count_answer(weft_engine *e, const weft_request *r, uint32_t n) {
  e->answered[r->tenant] += n;
}

/* The time since the run of drafts was begun that is taken in now; 0: none is. */
static inline uint64_t run_ns(const weft_engine *e) {
  return e->run_began_ns > 0 ? weft_clock_ns() - e->run_began_ns : 0;
}

/* What its reader sees of the request is whole here: the run that ends it counts too. */
static void finish_request(weft_engine *e, weft_request *r, weft_finish finish, const char *reason) {
  r->usage.drafts.commit_ns += run_ns(e);
  weft_lifecycle_finish(e, r, finish, reason);
}

/* n_answer tokens are in place; the stop rule may cut them, never below what was published. */
static void publish_answer(weft_engine *e, weft_request *r, uint32_t n_answer, weft_finish finish) {
  uint32_t before = r->n_answer;
  if (n_answer > before && r->has_rule) {
    bool stop;
    uint32_t keep = weft_request_ask_rule(r, n_answer, &stop);
    if (stop) finish = WEFT_FINISH_STOP;
    n_answer = keep > before ? keep : before;
  }
  if (n_answer > before) {
    if (before == 0) count_first_token(e, r);
    if (!r->is_draft) count_answer(e, r, n_answer - before);
    r->n_answer = n_answer;
    weft_request_publish(r, n_answer);
  }
  if (finish != WEFT_FINISH_NONE) {
    finish_request(e, r, finish, NULL); /* tells the reader, too */
  } else if (n_answer > before) {
    tell_later(e, r);
  }
}

static void end_as_bad(weft_engine *e, weft_request *r) {
  finish_request(e, r, WEFT_FINISH_ERROR, "the model gave a logit that is not finite for this request");
}

/* of: what the result says of this token. */
static inline void apply_token(weft_engine *e, weft_request *r, const weft_sampled *sampled,
                               const weft_segment_result *of) {
  WEFT_CHECK(r->n_pending > 0);
  r->n_pending -= 1;
  int32_t token = sampled->token;
  if (weft_request_is_stop_token(r, token)) {
    r->stop_token = token;
    if (r->has_logprobs) weft_request_keep_logprobs(r, sampled);
    publish_answer(e, r, r->n_answer, WEFT_FINISH_STOP);
    return;
  }
  if (of->left_format) {
    finish_request(e, r, WEFT_FINISH_ERROR, "a token was drawn that the format of the answer does not have");
    return;
  }
  uint32_t n_tokens = r->n_tokens, n_end = r->n_end;
  WEFT_CHECK(n_tokens < n_end);
  r->tokens[n_tokens++] = r->last_token = token;
  r->n_tokens = n_tokens;
  bool full = n_tokens == n_end;
  if (full || of->complete || r->n_answer == 0 || r->has_logprobs || r->has_rule || r->is_draft) {
    if (r->has_logprobs) weft_request_keep_logprobs(r, sampled);
    weft_finish finish = of->complete ? WEFT_FINISH_STOP : full ? WEFT_FINISH_LENGTH : WEFT_FINISH_NONE;
    publish_answer(e, r, r->n_answer + 1, finish);
    return;
  }
  count_answer(e, r, 1);
  r->n_answer += 1;
  weft_request_publish(r, r->n_answer);
  tell_later(e, r);
}

/* A run of one. */
static inline void apply_one(weft_engine *e, weft_request *r, const weft_segment_result *result) {
  if (result->bad) {
    end_as_bad(e, r);
    return;
  }
  apply_token(e, r, result->token, result);
}

/* Scores are there before the first token is. Without an answer the request ends when its prompt is computed. */
static void apply_prompt(weft_engine *e, weft_request *r, const weft_work *work, const weft_segment_result *result) {
  uint32_t n_scored = weft_ask_n_scored((weft_ask)work->ask, work->n_outputs);
  if (n_scored > 0 && !result->bad) {
    WEFT_CHECK(r->n_scored == work->kv_len + work->first_output);
    weft_request_keep_scores(r, result->scored, n_scored);
  }
  if (work->n_outputs > n_scored) {
    apply_one(e, r, result);
  } else if (n_scored > 0 && result->bad) {
    end_as_bad(e, r);
  } else if (r->size.answer_max == 0 && r->n_valid == r->n_prompt) {
    publish_answer(e, r, 0, WEFT_FINISH_LENGTH);
  }
}

/* ---- canvases -------------------------------------------------------------------------------- */

/* The argmax canvas is final: the whole canvas is context for the next one, the answer is cut. */
static void finish_canvas(weft_engine *e, weft_request *r, const weft_segment_result *result) {
  uint32_t n = r->size.n_canvas, n_answer = r->n_answer;
  weft_finish finish = WEFT_FINISH_NONE;
  for (uint32_t i = 0; i < n; i++) {
    r->tokens[r->n_tokens++] = result->argmax[i];
    if (finish != WEFT_FINISH_NONE) continue;
    if (weft_request_is_stop_token(r, result->argmax[i])) {
      r->stop_token = result->argmax[i];
      finish = WEFT_FINISH_STOP;
    } else if (++n_answer == r->size.answer_max) {
      finish = WEFT_FINISH_LENGTH;
    }
  }
  if (result->complete) finish = WEFT_FINISH_STOP;
  r->usage.n_canvases += 1;
  e->stats.n_canvases += 1;
  if (r->next_block == r->block) { /* done early: the steps planned ahead are void */
    r->next_block += 1;
    r->next_step = 0;
  }
  r->block += 1;
  publish_answer(e, r, n_answer, finish);
}

/* A preempted canvas that found no place to be saved goes through its steps again: they are reported once. */
static void report_step(weft_request *r, const weft_work *work, const weft_segment_result *result,
                        uint64_t launched_us) {
  if (work->block != r->reported_block || work->step != r->reported_step) return;
  if (r->usage.n_denoise_steps == 0) r->usage.denoising_us = launched_us;
  r->usage.n_denoise_steps += 1;
  r->reported_step += 1;
  if (result->done) {
    r->reported_block += 1;
    r->reported_step = 0;
  }
  weft_request_publish_canvas(r, result, work->block, work->step);
}

static void apply_canvas(weft_engine *e, weft_request *r, const weft_work *work, const weft_segment_result *result,
                         uint64_t launched_us) {
  if (result->is_void || work->block < r->block) {
    e->stats.n_void_rows += work->n_rows;
    if (work->block < r->block) return;
    finish_request(e, r, WEFT_FINISH_ERROR, "the runner skipped a denoise step of a canvas that was not done");
    return;
  }
  e->stats.n_denoise_steps += 1;
  if (result->bad) {
    end_as_bad(e, r);
    return;
  }
  report_step(r, work, result, launched_us);
  if (result->done) {
    finish_canvas(e, r, result);
  } else if (work->step + 1 == r->params.asked.entropy_bound.max_steps) {
    finish_request(e, r, WEFT_FINISH_ERROR, "the runner did not end a canvas at its last denoise step");
  } else {
    tell_later(e, r);
  }
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* A decoded row is valid. The pager hears of it when it fills a block: before, it could do nothing with the row. */
static inline void land_row(weft_engine *e, weft_request *r, const weft_work *work, uint32_t block_min) {
  WEFT_CHECK(r->n_valid == work->kv_len);
  WEFT_CHECK(work->kv_len < r->n_tokens);
  r->n_valid += 1;
  if ((r->n_valid & (block_min - 1)) == 0) weft_lifecycle_commit(e, r);
}

/* The rows of a prompt or a commit are valid. */
static void land_rows(weft_engine *e, weft_request *r, const weft_work *work) {
  WEFT_CHECK(r->n_valid == work->kv_len);
  WEFT_CHECK(work->kv_len + work->n_rows <= r->n_tokens);
  r->n_valid += work->n_rows;
  if (work->kind == WEFT_WORK_PREFILL) r->usage.n_computed_rows += work->n_rows;
  weft_lifecycle_commit(e, r);
}

/* Of the run's drafts, those before the last token that was taken were right. The request may have ended: what its
 * reader sees was counted before. */
static void judge_drafts(weft_engine *e, weft_step_plan *plan, const weft_work *work, uint32_t n_taken) {
  weft_request *r = work->request;
  weft_draft_stats *stats = &e->requests[r->lane].drafts;
  uint32_t n_right = n_taken > 0 ? n_taken - 1 : 0;
  for (uint32_t i = 0; i < n_right; i++) stats->n_accepted_at[i] += 1;
  stats->n_accepted += n_right;
  plan->n_gained += n_right;
  weft_acceptance *tenant = &e->lane[r->lane].acceptance[r->tenant];
  weft_drafting_judge(&r->drafting, tenant, work->n_rows - 1, n_right, r->n_answer);
}

/* The rows that are not valid never were. */
static void take_back(weft_engine *e, weft_request *r) {
  uint64_t start_ns = weft_clock_ns();
  r->n_pending = 0;
  r->n_planned = r->n_valid;
  weft_lifecycle_take_back(e, r);
  uint64_t took_ns = weft_clock_ns() - start_ns;
  e->requests[r->lane].drafts.back_ns += took_ns;
  r->usage.drafts.back_ns += took_ns;
}

/* What a shadow's run gave is kept to be compared, and the request is as if the run had never been. */
static void keep_foretold(weft_engine *e, weft_step_plan *plan, const weft_work *work,
                          const weft_segment_result *result) {
  weft_request *r = work->request;
  weft_drafting *d = &r->drafting;
  d->foretold_at = r->n_tokens;
  d->n_foretold = result->n_taken;
  for (uint32_t i = 0; i < result->n_taken; i++) d->foretold[i] = result->token[i].token;
  e->stats.n_void_rows += work->n_rows;
  r->usage.n_accepted += result->n_taken > 0 ? result->n_taken - 1 : 0;
  judge_drafts(e, plan, work, result->n_taken);
  take_back(e, r);
}

/* A token of the answer, which came at position `at`, beside what a shadow foretold. */
static void compare_foretold(weft_engine *e, const weft_request *r, uint32_t at, int32_t token) {
  const weft_drafting *d = &r->drafting;
  if (at < d->foretold_at || at >= d->foretold_at + d->n_foretold) return;
  e->requests[r->lane].drafts.n_shadowed += 1;
  if (token == d->foretold[at - d->foretold_at]) return;
  e->requests[r->lane].drafts.n_differences += 1;
}

/* The step has been applied to a request that is drafted for. */
static void follow_drafts(weft_engine *e, weft_request *r, const weft_work *work, const weft_segment_result *result) {
  if (r->drafting.shadow && work->kind == WEFT_WORK_DECODE && !result->bad)
    compare_foretold(e, r, work->kv_len + 1, result->token->token);
  if (r->finish == WEFT_FINISH_NONE)
    weft_drafting_learn(&r->drafting, &e->lane[r->lane].acceptance[r->tenant], r->tokens, r->n_tokens);
}

/* A run of several rows. Each token that is taken is held by the next row, whose keys and values are therefore valid.
 * The rows after the last one are void, and nothing stands on them, since a run has no successor in flight. Its reader
 * is told once. */
static void apply_run(weft_engine *e, weft_step_plan *plan, const weft_work *work, const weft_segment_result *result) {
  weft_request *r = work->request;
  static const weft_segment_result nothing = {0}; /* is said of tokens before the last one */
  uint32_t n_told = e->n_told, n = 0;
  bool grew = false;
  WEFT_CHECK(r->n_valid == work->kv_len && work->kv_len + 1 == r->n_tokens);
  WEFT_CHECK(result->n_taken + result->bad > 0 && result->n_taken <= work->n_outputs);
  for (; n < result->n_taken && r->finish == WEFT_FINISH_NONE; n++) {
    r->n_valid += 1;
    if (n > 0) r->usage.n_accepted += 1; /* the token before was a draft; the last one may end the request */
    apply_token(e, r, &result->token[n], n + 1 == result->n_taken ? result : &nothing);
    grew = grew || e->n_told > n_told;
    e->n_told = n_told;
  }
  if (r->finish == WEFT_FINISH_NONE && result->bad) end_as_bad(e, r);
  e->stats.n_void_rows += work->n_rows - n;
  judge_drafts(e, plan, work, n);
  if (r->finish != WEFT_FINISH_NONE) return; /* its reader was told */
  if (grew) tell_later(e, r);
  take_back(e, r);
}

static void take_run(weft_engine *e, weft_step_plan *plan, const weft_work *work, const weft_segment_result *result) {
  weft_request *r = work->request;
  e->run_began_ns = weft_clock_ns();
  r->usage.drafts.verify_us += plan->device_us;
  (work->peeks ? keep_foretold : apply_run)(e, plan, work, result);
  uint64_t took_ns = run_ns(e);
  e->requests[r->lane].drafts.commit_ns += took_ns;
  if (r->finish == WEFT_FINISH_NONE) r->usage.drafts.commit_ns += took_ns; /* else its reader has it */
  e->run_began_ns = 0;
}

static inline void apply_causal(weft_engine *e, weft_step_plan *plan, const weft_work *work,
                                const weft_segment_result *result, uint32_t block_min) {
  weft_request *r = work->request;
  if (r->finish != WEFT_FINISH_NONE) {
    e->stats.n_void_rows += work->n_rows;
    weft_lifecycle_landed(e, r);
    return;
  }
  if (work->kind == WEFT_WORK_DECODE) {
    land_row(e, r, work, block_min);
    apply_one(e, r, result);
  } else if (work->kind == WEFT_WORK_VERIFY) {
    take_run(e, plan, work, result);
  } else {
    land_rows(e, r, work);
    if (work->kind == WEFT_WORK_PREFILL) apply_prompt(e, r, work, result);
  }
  if (r->drafts) follow_drafts(e, r, work, result);
  weft_lifecycle_landed(e, r);
}

static void apply_denoise(weft_engine *e, const weft_work *work, const weft_segment_result *result,
                          uint64_t launched_us) {
  weft_request *r = work->request;
  if (r->finish != WEFT_FINISH_NONE) {
    e->stats.n_void_rows += work->n_rows;
  } else {
    apply_canvas(e, r, work, result, launched_us);
  }
  weft_lifecycle_landed(e, r);
}

/* Results come in order, one per segment with an output. NULL: the next is not the segment's. */
static inline const weft_segment_result *take_result(const weft_segment_result **next, const weft_segment_result *end,
                                                     uint32_t segment) {
  const weft_segment_result *own = *next;
  if (own == end || own->segment != segment) return NULL;
  __builtin_prefetch(own + AHEAD);
  *next = own + 1;
  return own;
}

/* First the request; later the place of its next token, and what a commit touches if it comes. The
 * last few were asked for as what is far ahead of those before them. */
static inline void prefetch_works(const weft_engine *e, const weft_work *work, uint32_t block_min) {
  __builtin_prefetch(work[FAR_AHEAD].request, 1);
  const weft_request *r = work[AHEAD].request;
  __builtin_prefetch(r->tokens + r->n_tokens, 1);
  if (((work[AHEAD].kv_len + 1) & (block_min - 1)) == 0 && r->seq != WEFT_SEQ_NONE) {
    weft_pager_prefetch(e->pager, r->seq);
    __builtin_prefetch(&e->followers[r->seq]);
  }
}

bool weft_apply_step(weft_engine *engine, weft_step_plan *plan, const weft_step_result *result) {
  const weft_segment_result *next = result->result, *end = next + result->n_results;
  uint32_t n_causal = plan->n_causal, block_min = engine->lane[plan->lane].block_min;
  engine->n_told = 0;
  plan->device_us = result->device_us;
  engine->answered = engine->tenants.answered + (size_t)plan->lane * engine->tenants.n_tenants;
  for (uint32_t i = 0; i < n_causal; i++) {
    const weft_work *work = &plan->causal[i];
    const weft_segment_result *own = NULL;
    if (i + FAR_AHEAD < n_causal) prefetch_works(engine, work, block_min);
    if (work->n_outputs > 0 && (own = take_result(&next, end, i)) == NULL) return false;
    apply_causal(engine, plan, work, own, block_min);
  }
  for (uint32_t i = 0; i < plan->n_canvas; i++) {
    const weft_segment_result *own = take_result(&next, end, n_causal + i);
    if (own == NULL) return false;
    apply_denoise(engine, &plan->canvas[i], own, plan->launched_us);
  }
  tell_all(engine);
  return next == end;
}
