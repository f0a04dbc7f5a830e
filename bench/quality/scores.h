/* SPDX-License-Identifier: MIT */
/* What a model says of every scored token of a text, and how far that is from what another said.
 *
 * Law: windows go through the model together, as many at once as fill a step; what a row gives does not depend on that.
 * Token by token, the last tokens of each window are scored. With levels of noise, the last canvas of each window is
 * denoised once at each level, without self-conditioning, over the tokens before it, and the noised positions are scored.
 * Memory: one group of windows, and a few bytes for each scored token. */
#ifndef WEFT_BENCH_QUALITY_SCORES_H
#define WEFT_BENCH_QUALITY_SCORES_H

#include "bench/quality/saved_rows.h"
#include "bench/quality/windows.h"

typedef struct weft_scores_args {
  weft_device *device;
  weft_model *model;
  weft_model_limits limits; /* those of the model */
  const weft_windows *windows;
  const float *level; /* of noise; n_levels 0: token by token */
  uint32_t n_levels;
  uint64_t seed;
  uint32_t n_threads;       /* for the sums over the vocabulary; 0: all cores */
  weft_saved_file *save;    /* NULL: rows are not saved */
  weft_saved_file *against; /* NULL: rows are not compared */
  void (*progress)(void *self, uint32_t n_windows,
                   double nll); /* windows done, mean so far of the last level; or NULL */
  void *progress_self;
} weft_scores_args;

/* Of one level, or of the whole text token by token: one number for each scored token, window by window. */
typedef struct weft_series {
  uint32_t n_windows, per_window;
  uint64_t n;
  float *nll;
  float *saved_nll, *divergence; /* with `against` */
  uint64_t n_same_top;           /* rows whose likeliest token is the same */
} weft_series;

typedef struct weft_scores {
  weft_series series[WEFT_SAVED_LEVELS_MAX];
  uint32_t n_series;
} weft_scores;

/* Scored tokens of a window, of all levels together. */
uint32_t weft_scores_per_window(const weft_windows_config *windows, const float *level, uint32_t n_levels,
                                uint32_t canvas);
weft_status weft_scores_run(const weft_scores_args *args, weft_scores *out, weft_error *error);
void weft_scores_free(weft_scores *scores);

#endif
