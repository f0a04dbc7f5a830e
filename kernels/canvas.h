/* SPDX-License-Identifier: MIT */
/* canvas: the entropy-bound rule of a denoise step, computed where the statistics of head_stats are. It decides which
 * positions of a canvas keep the token that was drawn, which get a fresh random one, and whether the canvas is done.
 *
 * Law: positions are taken in the order of their entropy, the lower position first where entropies are equal. A
 * position is accepted when the f32 sum of the entropies up to and including its own, minus its own, is at most
 * entropy_bound and, with `agree`, its drawn token is its argmax token. The canvas is done when its argmax tokens equal
 * those of the last `stability` steps and its mean entropy is below confidence, or when no step is left. Sums add f32
 * numbers one after the other, so every backend gives the same bits. A slot keeps its canvas between steps. A step
 * after the canvas is done is void and changes nothing, until a step 0 begins the next canvas. For an answer that is
 * held to a grammar the caller gives the most likely canvas of the grammar as argmax tokens, and asks for `agree`. */
#ifndef WEFT_KERNELS_CANVAS_H
#define WEFT_KERNELS_CANVAS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/sampling.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __CUDACC__
#define WEFT_CANVAS_FN static __host__ __device__ inline
#else
#define WEFT_CANVAS_FN static inline
#endif

typedef struct weft_canvas_rule {
  uint32_t step, max_steps; /* step from 0 */
  uint32_t stability;       /* <= WEFT_STABILITY_MAX */
  float entropy_bound, confidence;
  uint32_t agree; /* 1: only positions whose draw is their argmax are accepted */
} weft_canvas_rule;

/* Words of 4 bytes in the state of a slot, for canvases of n positions: [n] tokens of the next step,
 * [WEFT_STABILITY_MAX][n] argmax canvases, newest first, how many argmax canvases there are, and whether the canvas is
 * done. */
WEFT_CANVAS_FN uint64_t weft_canvas_state_words(uint64_t n) {
  return n * (1 + WEFT_STABILITY_MAX) + 2;
}

/* A canvas of the call. */
typedef struct weft_canvas_row {
  weft_canvas_rule rule;
  uint32_t slot;  /* its state is at state + slot * weft_canvas_state_words(n) */
  uint32_t first; /* where its rows begin in the statistics */
} weft_canvas_row;

typedef struct weft_canvas_result {
  uint32_t is_void, bad;  /* void: all else is 0; bad: one of its rows is bad (head_stats) */
  uint32_t done, stopped; /* stopped: done because it is stable and confident */
  uint32_t n_accepted;
  float mean_entropy;
} weft_canvas_result;

typedef struct weft_canvas_args {
  const weft_canvas_row *row;    /* [n_rows], a canvas each; no two of one slot */
  int32_t *state;                /* of all slots */
  const int32_t *argmax, *drawn; /* statistics, a row per position, as are those below */
  const float *entropy;
  const uint8_t *bad;
  const int32_t *fresh; /* tokens for positions that are not accepted */
  int32_t *next;        /* out, as is accepted: the tokens of the next step; undefined for a void canvas */
  uint8_t *accepted;
  weft_canvas_result *out; /* [n_rows] */
  uint32_t n_rows, n;      /* canvases; positions of each, <= WEFT_CANVAS_MAX */
  void *scratch;
  uint64_t scratch_bytes;
} weft_canvas_args;

/* The rule itself on the host, for tests and for backends that compute there. history: [n_history][n] argmax canvases,
 * newest first; order: scratch [n]; next, accepted: out [n]; everything else in: [n]. */
typedef struct weft_canvas_trial {
  weft_canvas_rule rule;
  uint32_t n, n_history;
  const int32_t *argmax, *drawn, *fresh, *history;
  const float *entropy;
  uint32_t *order;
  int32_t *next;
  uint8_t *accepted;
  weft_canvas_result result; /* out, but for is_void and bad */
} weft_canvas_trial;
void weft_canvas_judge(weft_canvas_trial *trial);

#ifdef __cplusplus
}
#endif
#endif
