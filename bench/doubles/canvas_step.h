/* SPDX-License-Identifier: MIT */
/* A canvas that is denoised on the host. Models ask their device for it (kernels/canvas.h); the fake model and the tests
 * of devices compute the same rule here.
 *
 * Law: the caller fills argmax, drawn, fresh and entropy before a step; the step writes next and accepted, and puts the
 * argmax canvas in front of the history. A canvas begins with n_history 0. */
#ifndef WEFT_BENCH_DOUBLES_CANVAS_STEP_H
#define WEFT_BENCH_DOUBLES_CANVAS_STEP_H

#include <string.h>

#include "kernels/canvas.h"
#include "model/sampler.h"

typedef struct weft_host_canvas {
  uint32_t n;                      /* positions */
  int32_t *argmax, *drawn, *fresh; /* [n] as in weft_canvas_args */
  float *entropy;                  /* [n] */
  int32_t *next;                   /* out [n] */
  uint8_t *accepted;               /* out [n] */
  int32_t *history;                /* [WEFT_STABILITY_MAX][n] argmax canvases, newest first */
  uint32_t n_history;
  uint32_t *order; /* scratch [n] */
} weft_host_canvas;

static inline weft_canvas_result weft_host_canvas_step(weft_host_canvas *c, const weft_entropy_bound *params,
                                                       uint32_t step) {
  size_t n_bytes = c->n * sizeof *c->history;
  weft_canvas_trial trial = {.n = c->n, .n_history = c->n_history, .history = c->history, .order = c->order};
  trial.argmax = c->argmax, trial.drawn = c->drawn, trial.fresh = c->fresh, trial.entropy = c->entropy;
  trial.next = c->next, trial.accepted = c->accepted;
  weft_entropy_bound_rule(params, step, &trial.rule);
  weft_canvas_judge(&trial);
  memmove(c->history + c->n, c->history, (WEFT_STABILITY_MAX - 1) * n_bytes);
  memcpy(c->history, c->argmax, n_bytes);
  if (c->n_history < WEFT_STABILITY_MAX) c->n_history += 1;
  return trial.result;
}

#endif
