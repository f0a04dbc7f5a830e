/* SPDX-License-Identifier: MIT */
/* The fake model: what a fake runner computes. A hash takes the place of a forward pass.
 *
 * Law. The "key and value" of a position in a layer group is a hash of its token, its position and
 * of everything that the row at this position sees in all groups; the next token is a hash of
 * everything that the last row sees. So one wrong, stale, lost or invisible position changes all
 * that follows, as in a real model. Sums make it cheap: what a row sees in a group is the sum of
 * the cells in its window. In a group of states it is the state at the last border at or before it, a hash of the one
 * before and of all that the row before the border sees. */
#ifndef WEFT_BENCH_DOUBLES_FAKE_MODEL_H
#define WEFT_BENCH_DOUBLES_FAKE_MODEL_H

#include "bench/doubles/canvas_step.h"
#include "model/batch.h"
#include "model/runner/runner.h"

typedef struct weft_fake_model {
  uint64_t salt; /* the weights */
  uint32_t n_vocab, n_canvas, n_groups;
  weft_layer_group group[WEFT_GROUPS_MAX];
  uint32_t bad_one_in; /* about one row with an output in this many is not finite; 0: none */
} weft_fake_model;

/* What a row sees: one sum of cells per group. */
typedef struct weft_fake_sums {
  uint64_t group[WEFT_GROUPS_MAX];
} weft_fake_sums;

/* First position that a row at `position` sees in the group. */
uint32_t weft_fake_first_visible(const weft_layer_group *group, uint32_t position);
/* The cell of group g at position; seen: the positions before it that its row sees. */
uint64_t weft_fake_cell(const weft_fake_model *model, uint32_t g, int32_t token, uint32_t position,
                        const weft_fake_sums *seen);
/* The state of group g at a border; seen: what the row before the border sees, itself included, and of group g the
 * state at the border before it (0: there is none). */
uint64_t weft_fake_state(const weft_fake_model *model, uint32_t g, uint32_t border, const weft_fake_sums *seen);
/* The token after a row at position - 1; seen includes that row. */
weft_sampled weft_fake_token(const weft_fake_model *model, const weft_fake_sums *seen, uint32_t position, uint64_t seed,
                             uint32_t choice);
/* How likely the token after a row is; seen includes that row. */
weft_scored weft_fake_score(const weft_fake_model *model, const weft_fake_sums *seen, int32_t token);
bool weft_fake_is_bad(const weft_fake_model *model, const weft_fake_sums *seen);

/* A canvas between steps. */
typedef struct weft_fake_canvas {
  uint32_t step;
  bool done, stopped;
  uint64_t soft;  /* stands for the soft embedding: hash of the step before */
  uint64_t first; /* hash of the canvas of step 0 */
  uint32_t n_accepted;
  float temperature, mean_entropy;
  int32_t *current; /* [n_canvas] */
  weft_host_canvas host;
} weft_fake_canvas;

size_t weft_fake_canvas_bytes(uint32_t n_canvas);
void weft_fake_canvas_open(weft_fake_canvas *canvas, void *memory, uint32_t n_canvas);
/* One denoise step over `position` keys, by the real rule of model/sampler; step 0 starts afresh.
 * current is the canvas that the step read, next the one after it. */
void weft_fake_canvas_step(const weft_fake_model *model, weft_fake_canvas *canvas, const weft_fake_sums *seen,
                           uint32_t position, const weft_sampling *sampling, const weft_entropy_bound *params,
                           uint32_t step);

#endif
