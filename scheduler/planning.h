/* SPDX-License-Identifier: MIT */
/* A plan in the making: what the files that decide share while they decide.
 *
 * Law: planner.c owns the struct, which lives for one plan; perform.c, share.c and light.c fill it too. */
#ifndef WEFT_SCHEDULER_PLANNING_H
#define WEFT_SCHEDULER_PLANNING_H

#include "scheduler/state.h"

typedef struct weft_planning {
  weft_engine *engine;
  weft_lane *lane;
  weft_step_plan *plan;
  uint32_t rows_left;        /* at first all of the step (rows.h) */
  uint32_t scored_rows_left; /* rows of prompts that may be scored */
  uint32_t draft_rows_left;
  int32_t draft[WEFT_DRAFTS_MAX]; /* what the drafter gave for the request that is asked about */
  struct {
    bool asked, coming; /* the drafter was asked for the request; its drafts are coming */
    uint64_t took_ns;
  } drafting;            /* until perform.c has told the request */
  uint32_t n_ready_left; /* requests that decode or denoise and may still get rows (rows.h, stages) */
  weft_pace pace;
  uint64_t n_decode_keys;
  uint64_t step_charge; /* what a step full of prompt rows is charged (cost.h) */
  uint32_t n_ahead;     /* decode rows that no time is set aside for (claims.h, tenant.ahead) */
  double light_us; /* predicted time of the decode rows of light tenants alone; 0: there are none, or a target is set */
  bool alone;      /* only decode rows of light tenants get rows in this step (light.h) */
  bool canvas_lacks_rows; /* a canvas found fewer rows left than it has */
  bool crowded;           /* time was short in the last step: canvases and prompts take turns in this one */
  weft_candidate held;    /* over the requests that found no time: the least clock and the highest level */
  uint64_t restores_end;  /* once the pager's n_restored reaches this count, no more requests are admitted */
} weft_planning;

#endif
