/* SPDX-License-Identifier: MIT */
/* The numbers of a run: one list of names and units, the same for everything together, for one
 * replica and for one tenant.
 *
 * Law: a number that does not exist (no canvas, one tenant) is NAN. Percentiles are over finished
 * requests: the smallest value that this percentage does not exceed. */
#ifndef WEFT_BENCH_SIM_METRICS_H
#define WEFT_BENCH_SIM_METRICS_H

#include "bench/sim/sim.h"

enum { WEFT_SIM_METRICS = 96, WEFT_SIM_ALL = -1 };

typedef struct weft_sim_metric {
  const char *name, *unit;
  double value;
} weft_sim_metric;

typedef struct weft_sim_scope {
  int32_t replica, tenant; /* WEFT_SIM_ALL: any */
} weft_sim_scope;

typedef struct weft_sim_metrics {
  weft_sim_metric metric[WEFT_SIM_METRICS];
  uint32_t n;
} weft_sim_metrics;

/* scratch: [load.n]. */
void weft_sim_collect(const weft_lab_config *config, const weft_sim_load *load, const weft_sim_run *run,
                      weft_sim_scope scope, double *scratch, weft_sim_metrics *out);
/* NAN when there is no such name. */
double weft_sim_metric_of(const weft_sim_metrics *metrics, const char *name);

/* The value of one request, in ms; negative: it has none. */
typedef double (*weft_sim_value)(const weft_sim_item *item, const weft_sim_outcome *outcome);
double weft_sim_ttft(const weft_sim_item *item, const weft_sim_outcome *outcome);
double weft_sim_tpot(const weft_sim_item *item, const weft_sim_outcome *outcome);
double weft_sim_canvas(const weft_sim_item *item, const weft_sim_outcome *outcome);
/* The values of the requests in scope, in order. Returns how many. */
uint32_t weft_sim_sorted(const weft_sim_load *load, const weft_sim_run *run, weft_sim_scope scope, weft_sim_value value,
                         double *out);

#endif
