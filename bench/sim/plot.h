/* SPDX-License-Identifier: MIT */
/* Line plots as SVG files: axes with round ticks, a legend, up to eight lines.
 *
 * Law: the same data give the same bytes. Points with y NAN are left out. A log axis starts at the
 * smallest positive x. */
#ifndef WEFT_BENCH_SIM_PLOT_H
#define WEFT_BENCH_SIM_PLOT_H

#include <stdbool.h>
#include <stdint.h>

enum { WEFT_PLOT_LINES = 8 };

typedef struct weft_plot_line {
  const char *name;
  const double *x, *y; /* [n] */
  uint32_t n;
} weft_plot_line;

typedef struct weft_plot {
  const char *title, *x_name, *y_name;
  bool log_x;
  double y_max; /* 0: from the data */
  weft_plot_line line[WEFT_PLOT_LINES];
  uint32_t n_lines;
} weft_plot;

/* 0, or an exit code after one line. */
int weft_plot_write(const weft_plot *plot, const char *path);

#endif
