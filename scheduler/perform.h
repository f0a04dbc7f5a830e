/* SPDX-License-Identifier: MIT */
/* Performing: what was decided while a plan is made becomes true. Requests change state here, in apply.c and at the
 * start of a turn (step.c), and nowhere else.
 *
 * Law. A function here decides nothing: it does the one thing that it is told, keeps the fields of claims.h, and
 * returns what came of it. Which rows, with which outputs, comes from rows.h; who starts, from admission.h; where blocks
 * come from, from relief.h. It calls the pager, the runner's slots and lifecycle.h, never a file that decides.
 * Engine thread. */
#ifndef WEFT_SCHEDULER_PERFORM_H
#define WEFT_SCHEDULER_PERFORM_H

#include "scheduler/admission.h"
#include "scheduler/cost.h"
#include "scheduler/relief.h"
#include "scheduler/rows.h"

/* What became of the waiting request that was due. */
typedef enum weft_performed {
  WEFT_PERFORMED_STARTED = 1, /* it runs: rows may be planned for it */
  WEFT_PERFORMED_WAITS = 2,   /* it goes on waiting, or has ended; others may start */
  WEFT_PERFORMED_STOP = 3,    /* no further request may start in this plan */
  WEFT_PERFORMED_AGAIN = 4    /* pages came free: the request is to be asked about again */
} weft_performed;

weft_performed weft_perform_admission(weft_planning *planning, const weft_admission *admission);

/* True: blocks may have come free, so the caller asks for them again. False: the request waits for them. */
bool weft_perform_relief(weft_engine *engine, weft_request *request, const weft_relief *relief);

/* The next work of the plan, for n_rows rows of the request on top of its planned keys. */
static inline weft_work *weft_perform_add(weft_planning *p, weft_request *r, weft_work_kind kind, uint32_t n_rows,
                                          uint32_t first_output, uint32_t n_outputs, weft_ask ask) {
  weft_work *work = weft_plan_add(p->plan, kind, n_rows);
  work->request = r;
  work->slot = r->slot;
  work->kv_len = r->n_planned;
  work->first_output = first_output;
  work->n_outputs = n_outputs;
  work->ask = (uint8_t)ask;
  p->rows_left -= n_rows;
  if (kind != WEFT_WORK_PREFILL && r->planned_in != (uint32_t)p->plan->number) p->n_ready_left -= 1;
  r->n_in_flight += 1;
  r->planned_in = (uint32_t)p->plan->number;
  weft_cost_add(&p->lane->cost.layers, &p->engine->tenants.tenant[r->tenant].planned, n_rows, r->n_planned,
                kind == WEFT_WORK_DENOISE, n_outputs);
  return work;
}

/* The row after the request's last token, which the host knows or the device is still sampling. */
static inline void weft_perform_decode(weft_planning *p, weft_request *r) {
  weft_work *work = weft_perform_add(p, r, WEFT_WORK_DECODE, 1, 0, 1, WEFT_ASK_SAMPLE);
  bool known = r->n_planned < r->n_tokens;
  work->source = known ? WEFT_TOKENS_HOST : WEFT_TOKENS_SAMPLED;
  work->token = known ? r->last_token : 0;
  p->n_decode_keys += r->n_planned;
  r->n_planned += 1;
  r->n_pending += 1;
}

/* A drafter was asked for the request (planning.drafting): what it took, and what the request waited before. */
void weft_perform_drafting(weft_planning *planning, weft_request *request);
/* Rows of a prompt, a commit, a denoise step or a run. A prompt whose last rows these are decodes or denoises from now
 * on. */
void weft_perform_rows(weft_planning *planning, weft_request *request, const weft_rows *rows);

#endif
