/* SPDX-License-Identifier: MIT */
/* Pace: how much of a step prompts and canvases may fill, so that the time between tokens of the requests that decode
 * stays under a target. It is what bounds the time of a step (with light.h, where there is no target).
 *
 * Law. Decode rows always run, except those of tenants far ahead of a tenant that was held back (share.c). Prompts and
 * canvases share what the predicted time of the decode rows leaves of the target: a prompt in chunks as long as fit,
 * at least WEFT_PACE_CHUNK rows; a canvas whole or not at all, and canvases take turns. What is held back is first in
 * the next step. After WEFT_PACE_HELD steps in a row in which no canvas ran though one was held, one runs whatever it
 * takes; after as many in which no prompt did, prompts go first, and one gets WEFT_PACE_CHUNK rows whatever they take;
 * never both in one step. So a step exceeds the target only where the prediction of its time was wrong, or by one such
 * piece; and of n canvases (or prompts) each runs at least once in n * (WEFT_PACE_HELD + 2) steps. Where no request
 * decodes there is no target.
 *
 * Without a target the same holds for the time that light tenants leave (light.h), except that the first piece of
 * every step runs whatever it takes: a canvas, WEFT_PACE_CHUNK rows of a prompt, or a decode row. Only decode rows of
 * light tenants go before it. */
#ifndef WEFT_SCHEDULER_PACE_H
#define WEFT_SCHEDULER_PACE_H

#include "scheduler/cost.h"

enum { WEFT_PACE_CHUNK = 16, WEFT_PACE_HELD = 4 };
/* A tenant that is this many full steps ahead of a tenant that is held back waits for it (share.c). */
enum { WEFT_PACE_AHEAD = 4 };

/* What is remembered from the plans before; one for each lane, which owns it. */
typedef struct weft_pace_late {
  uint32_t n_prompts, n_canvases; /* plans in a row in which no prompt (canvas) ran although one found no time */
  /* Plans in which a canvas found too few rows left; it begins anew with a plan in which a canvas ran, or in which no
   * canvas was ready. */
  uint32_t n_narrow;
  bool held;        /* in the last plan something found no time */
  uint64_t n_alone; /* steps of light tenants' decode rows alone, so far */
  double shared_us; /* predicted time of steps with light tenants' decode rows since the last such step */
} weft_pace_late;

typedef struct weft_pace {
  const weft_cost_model *model;
  double budget_us;                           /* of the step; 0: no limit */
  weft_cost_shape shape;                      /* decode rows as expected, and what else was planned */
  bool prompt_due, canvas_due;                /* the next one runs whatever it takes */
  bool decode_due;                            /* the same for a decode row that weft_pace_open was not told of */
  bool prompt_held, canvas_held, decode_held; /* one found no time */
} weft_pace;

/* Begins a step of at most budget_us predicted microseconds (0: everything fits) in which n_decode decode rows will
 * come, over keys_per_decode keys each. */
void weft_pace_open(weft_pace *pace, const weft_cost_model *model, double budget_us, uint32_t n_decode,
                    uint32_t keys_per_decode, const weft_pace_late *late);
/* The first piece runs whatever it takes. */
void weft_pace_owe_first(weft_pace *pace);
/* How many of the next n rows of a prompt may run now, at most n_outputs of them with an output; 0: none. */
uint32_t weft_pace_chunk(weft_pace *pace, uint32_t n, uint32_t kv_len, uint32_t n_outputs);
/* True when a canvas of n rows may run. */
bool weft_pace_canvas(weft_pace *pace, uint32_t n, uint32_t kv_len, uint32_t n_outputs);
/* True when a decode row that weft_pace_open was not told of has time; it is counted as planned. */
bool weft_pace_decode(weft_pace *pace, uint32_t kv_len);
/* How many of n drafts, which would follow kv_len keys, have time. They are never due. */
uint32_t weft_pace_drafts(const weft_pace *pace, uint32_t n, uint32_t kv_len);
/* n rows are planned: their time is no longer free. */
void weft_pace_spend(weft_pace *pace, uint32_t n, uint32_t kv_len, bool canvas, uint32_t n_outputs);
/* The same for n drafts, which take no turn of what is due. */
void weft_pace_spend_drafts(weft_pace *pace, uint32_t n, uint32_t kv_len);

#endif
