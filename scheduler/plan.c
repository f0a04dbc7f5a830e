/* SPDX-License-Identifier: MIT */
#include "scheduler/plan.h"

#include <string.h>

#include "base/memory.h"

weft_status weft_plan_open(weft_step_plan *plan, uint32_t n_max) {
  memset(plan, 0, sizeof *plan);
  plan->causal = weft_alloc(n_max, sizeof *plan->causal);
  plan->canvas = weft_alloc(n_max, sizeof *plan->canvas);
  plan->n_max = n_max;
  if (plan->causal != NULL && plan->canvas != NULL) return WEFT_OK;
  weft_plan_close(plan);
  return WEFT_E_NO_MEMORY;
}

void weft_plan_close(weft_step_plan *plan) {
  weft_free(plan->causal);
  weft_free(plan->canvas);
  memset(plan, 0, sizeof *plan);
}

void weft_plan_begin(weft_step_plan *plan, uint64_t number, uint32_t lane) {
  plan->number = number;
  plan->lane = lane;
  plan->dropped = false;
  plan->n_causal = plan->n_canvas = plan->n_rows = 0;
  plan->shape = (weft_cost_shape){0};
  memset(plan->n_rows_of, 0, sizeof plan->n_rows_of);
  plan->n_runs = plan->n_drafts_most = plan->n_gained = 0;
  plan->of_drafts = (weft_cost_shape){0};
  plan->waits_drafter = plan->trial = plan->waited = false;
}
