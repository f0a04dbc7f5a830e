/* SPDX-License-Identifier: MIT */
/* A plan: one step of one lane as data (vLLM: the scheduler's output). It says which rows of which request are
 * computed, where their tokens come from and what is wanted of them; it holds no tokens and no pages.
 *
 * Law. A plan has two lists, causal rows (prefill, decode, verify, commit) and denoise steps. A request has at most one
 * work in each: its denoise step runs on top of its causal rows. n_rows is the sum over both lists and at most the
 * rows_max of the lane. A plan lives from planning until its results are applied; the requests in it keep their slots
 * and pages until then. The engine owns the plans and the arrays in them; the batcher and apply.c read them. */
#ifndef WEFT_SCHEDULER_PLAN_H
#define WEFT_SCHEDULER_PLAN_H

#include "scheduler/cost.h"
#include "scheduler/request.h"

typedef enum weft_work_kind {
  WEFT_WORK_PREFILL = 0, /* tokens the host knows: a prompt, or all tokens after a preemption */
  WEFT_WORK_DECODE = 1,
  WEFT_WORK_COMMIT = 2, /* a final canvas becomes keys and values */
  WEFT_WORK_DENOISE = 3,
  WEFT_WORK_VERIFY = 4 /* the last token and drafts of those after it (draft.h) */
} weft_work_kind;

enum { WEFT_WORK_KINDS = 5 };

typedef struct weft_work {
  weft_request *request;
  uint32_t slot;
  uint32_t kv_len; /* keys before the rows; position of the first row */
  uint32_t n_rows;
  uint32_t first_output, n_outputs; /* what is asked of which rows (model/batch.h) */
  union {
    uint32_t block; /* denoise */
    int32_t token;  /* decode, when the host knows it */
  };
  uint32_t step;  /* denoise */
  uint8_t kind;   /* weft_work_kind */
  uint8_t source; /* weft_token_source */
  uint8_t ask;    /* weft_ask */
  bool peeks;     /* verify: as in model/batch.h */
} weft_work;

typedef struct weft_step_plan {
  uint64_t number; /* which step of the engine this is, from 1; steps without rows and plans that were not submitted do
                      not count */
  uint32_t lane;
  bool called;                                 /* made out of its lane's turn (weft_admission_call) */
  bool dropped;                                /* the lane broke while it was in flight */
  uint64_t began_us, launched_us, enqueued_us; /* engine time: planning began; the runner got the step; had it */
  weft_work *causal, *canvas;                  /* [n_max] each */
  uint32_t n_causal, n_canvas, n_max;
  uint32_t n_rows, n_rows_of[WEFT_WORK_KINDS]; /* the second by weft_work_kind */
  weft_cost_shape shape;                       /* of all works */
  double predicted_us;                         /* device time by the cost model */
  /* Of runs (depth.h): how many, the rows of their drafts, the most drafts of one, tokens that they gave beyond one
   * each; whether one had drafts that take time to make; and whether they are a trial, and the lane waited for them. */
  uint32_t n_runs, n_drafts_most, n_gained;
  weft_cost_shape of_drafts;
  bool waits_drafter, trial, waited;
  uint64_t device_us; /* of the step, once it has landed; 0: not measured */
} weft_step_plan;

weft_status weft_plan_open(weft_step_plan *plan, uint32_t n_max);
void weft_plan_close(weft_step_plan *plan);
void weft_plan_begin(weft_step_plan *plan, uint64_t number, uint32_t lane);

static inline bool weft_plan_is_full(const weft_step_plan *plan) {
  return plan->n_causal == plan->n_max || plan->n_canvas == plan->n_max;
}

/* The next work of its list, to be filled in by the caller. The plan must not be full. */
static inline weft_work *weft_plan_add(weft_step_plan *plan, weft_work_kind kind, uint32_t n_rows) {
  weft_work *work = kind == WEFT_WORK_DENOISE ? &plan->canvas[plan->n_canvas++] : &plan->causal[plan->n_causal++];
  plan->n_rows += n_rows;
  plan->n_rows_of[kind] += n_rows;
  work->kind = (uint8_t)kind;
  work->n_rows = n_rows;
  return work;
}

#endif
