/* SPDX-License-Identifier: MIT */
/* How far a long command is, on standard error.
 *
 * Law: on a terminal one line that is written again; elsewhere a line when the work begins and at each quarter of it, so
 * that a log stays short. The time that is left is guessed from the time so far. */
#ifndef WEFT_BENCH_LAB_PROGRESS_H
#define WEFT_BENCH_LAB_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct weft_lab_progress {
  const char *what; /* the work, in a word or two */
  bool quiet;       /* say nothing */
  uint64_t started_us;
  uint32_t n_told; /* quarters that have been told, and one for the beginning */
  bool ended;
} weft_lab_progress;

/* At done of total > 0; more: what else is known by now, or "". */
void weft_lab_progress_show(weft_lab_progress *progress, uint64_t done, uint64_t total, const char *more);

#endif
