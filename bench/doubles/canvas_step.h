/* SPDX-License-Identifier: MIT */
/* A denoise step of the entropy bound on the host. Models ask their device for it (kernels/canvas.h); the fake
 * model and the tests of devices compute the same rule here. */
#ifndef WEFT_BENCH_DOUBLES_CANVAS_STEP_H
#define WEFT_BENCH_DOUBLES_CANVAS_STEP_H

#include "kernels/canvas.h"
#include "model/sampler.h"

/* One step of the rule, from statistics to the next canvas. history: the last `stability` argmax canvases,
 * newest first, [stability][n]; n_history: how many there are so far. order: scratch [n]. */
typedef struct weft_canvas_step {
  const weft_entropy_bound *params;
  uint32_t step;                           /* 0-based */
  uint32_t n;                              /* positions */
  const int32_t *argmax, *drawn, *renoise; /* [n] */
  const float *entropy;                    /* [n] */
  const int32_t *history;
  uint32_t n_history;
  uint32_t *order;
  int32_t *next;     /* out [n] */
  uint8_t *accepted; /* out [n] */
  uint32_t n_accepted;
  float mean_entropy;
  bool stopped; /* stable and confident */
  bool done;    /* stopped, or the last step there is */
} weft_canvas_step;

static inline void weft_entropy_bound_step(weft_canvas_step *s) {
  weft_canvas_trial trial = {.n = s->n,
                             .n_history = s->n_history,
                             .argmax = s->argmax,
                             .drawn = s->drawn,
                             .fresh = s->renoise,
                             .history = s->history,
                             .entropy = s->entropy,
                             .order = s->order,
                             .next = s->next,
                             .accepted = s->accepted};
  weft_entropy_bound_rule(s->params, s->step, &trial.rule);
  weft_canvas_judge(&trial);
  s->n_accepted = trial.result.n_accepted;
  s->mean_entropy = trial.result.mean_entropy;
  s->stopped = trial.result.stopped != 0;
  s->done = trial.result.done != 0;
}

#endif
