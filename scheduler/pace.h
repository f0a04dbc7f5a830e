/* SPDX-License-Identifier: MIT */
/* Pace: how much of a step prompts and canvases may fill, so that the time between tokens of those
 * that decode stays under a target.
 *
 * Law. Decode rows always run, but for tenants far ahead of one held back (share.c); prompts and canvases share what their predicted time leaves of the
 * target: a prompt in chunks as long as fit, at least WEFT_PACE_CHUNK rows; a canvas whole or not at
 * all, canvases in turns. What is held back is first in the next step. After WEFT_PACE_HELD steps in
 * a row in which no canvas ran though one was held, one runs whatever it takes; after as many in
 * which no prompt did, prompts go first, and one gets WEFT_PACE_CHUNK rows whatever they take; never
 * both in one step. So a step exceeds the target only by an error of prediction or by one such
 * piece, and of n canvases (prompts) each runs at least once in n * (WEFT_PACE_HELD + 2) steps. Where
 * nobody decodes there is no target.
 *
 * Without a target the same holds for the time that light tenants leave (light.h), but that the first piece of every
 * step, a canvas, WEFT_PACE_CHUNK rows of a prompt or a decode row, runs whatever it takes: nothing but decode rows of
 * light tenants goes before it. */
#ifndef WEFT_SCHEDULER_PACE_H
#define WEFT_SCHEDULER_PACE_H

#include "scheduler/cost.h"

enum { WEFT_PACE_CHUNK = 16, WEFT_PACE_HELD = 4 };
/* A tenant that is this many full steps ahead of a tenant that is held back waits for it (share.c). */
enum { WEFT_PACE_AHEAD = 4 };

/* Of the plans before. */
typedef struct weft_pace_late {
  uint32_t n_prompts, n_canvases; /* in a row in which nothing of a kind ran, though something of it found no time */
  bool held;                      /* in the last one something found no time */
  uint64_t n_alone;               /* steps of light tenants' decode rows alone */
  double shared_us;               /* of steps in which light tenants' decode rows were not alone, since they were */
} weft_pace_late;

typedef struct weft_pace {
  const weft_cost_model *model;
  double budget_us;                           /* of the step; 0: no limit */
  weft_cost_shape shape;                      /* decode rows as expected, and what else was planned */
  bool prompt_due, canvas_due;                /* the next one runs whatever it takes */
  bool decode_due;                            /* ... that pace_open was not told of */
  bool prompt_held, canvas_held, decode_held; /* one found no time */
} weft_pace;

/* n_decode decode rows will come, over keys_per_decode keys each. budget_us 0: everything fits. */
void weft_pace_open(weft_pace *pace, const weft_cost_model *model, double budget_us, uint32_t n_decode,
                    uint32_t keys_per_decode, const weft_pace_late *late);
/* The first piece runs whatever it takes. */
void weft_pace_owe_first(weft_pace *pace);
/* How many of the next n rows of a prompt, the last of them with n_outputs outputs; 0: none. */
uint32_t weft_pace_chunk(weft_pace *pace, uint32_t n, uint32_t kv_len, uint32_t n_outputs);
/* True when a canvas of n rows may run. */
bool weft_pace_canvas(weft_pace *pace, uint32_t n, uint32_t kv_len, uint32_t n_outputs);
/* True when a decode row that pace_open was not told of has time, and is planned. */
bool weft_pace_decode(weft_pace *pace, uint32_t kv_len);
/* They are planned. */
void weft_pace_spend(weft_pace *pace, uint32_t n, uint32_t kv_len, bool canvas, uint32_t n_outputs);

#endif
