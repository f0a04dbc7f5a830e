/* SPDX-License-Identifier: MIT */
/* One plan in the making: what the files that decide share while they decide. Lives for one plan. */
#ifndef WEFT_SCHEDULER_PLANNING_H
#define WEFT_SCHEDULER_PLANNING_H

#include "scheduler/state.h"

typedef struct weft_planning {
  weft_engine *engine;
  weft_lane *lane;
  weft_step_plan *plan;
  uint32_t rows_left;
  weft_pace pace;
  uint64_t n_decode_keys;
  uint64_t step_charge;  /* of a step full of prompt rows */
  uint32_t n_ahead;      /* decode rows that no time is set aside for (claims.h, tenant.ahead) */
  double light_us;       /* predicted, of light tenants' decode rows alone; 0: there are none, or there is a target */
  bool alone;            /* nothing but these gets rows */
  bool crowded;          /* ... leave less time than others could use: canvases and prompts take turns */
  weft_candidate held;   /* of the requests that found no time: the least clock, the highest level */
  uint64_t restores_end; /* of the pager's count: beyond it the step brings back too much to admit more */
} weft_planning;

#endif
