/* SPDX-License-Identifier: MIT */
/* What happened when: values over time in a bounded number of bins.
 *
 * Law: time starts at 0; when it leaves the last bin, neighbours join and bins become twice as
 * wide. A bin holds integrals (value times microseconds), so joining adds. */
#ifndef WEFT_BENCH_SIM_SERIES_H
#define WEFT_BENCH_SIM_SERIES_H

#include <stdbool.h>
#include <stdint.h>

enum { WEFT_SIM_BINS = 512, WEFT_SIM_TENANTS = 255 /* as many as an engine takes */ };

typedef enum weft_sim_track {
  WEFT_SIM_PINNED = 0, /* pages held by running requests, all replicas */
  WEFT_SIM_USED = 1,   /* those and the cached ones */
  WEFT_SIM_RUNNING = 2,
  WEFT_SIM_WAITING = 3,
  WEFT_SIM_TRACKS = 4
} weft_sim_track;

typedef struct weft_sim_series {
  uint64_t bin_us, end_us;
  uint32_t n_tenants;
  double track[WEFT_SIM_TRACKS][WEFT_SIM_BINS];
  double *service; /* [WEFT_SIM_BINS][n_tenants]: device time, us */
} weft_sim_series;

bool weft_sim_series_open(weft_sim_series *series, uint32_t n_tenants);
void weft_sim_series_close(weft_sim_series *series);
/* The values from one time to another. */
void weft_sim_series_add(weft_sim_series *series, uint64_t from_us, uint64_t to_us,
                         const double value[WEFT_SIM_TRACKS]);
void weft_sim_series_serve(weft_sim_series *series, uint64_t at_us, uint32_t tenant, double us);
uint32_t weft_sim_series_bins(const weft_sim_series *series);

#endif
