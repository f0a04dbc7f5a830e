/* SPDX-License-Identifier: MIT */
#include "bench/sim/series.h"

#include <string.h>

#include "bench/inside.h"

bool weft_sim_series_open(weft_sim_series *s, uint32_t n_tenants) {
  *s = (weft_sim_series){.bin_us = 1000, .n_tenants = n_tenants};
  s->service = weft_alloc((size_t)WEFT_SIM_BINS * n_tenants, sizeof *s->service);
  return s->service != NULL;
}

void weft_sim_series_close(weft_sim_series *s) {
  weft_free(s->service);
  s->service = NULL;
}

static void join_bins(weft_sim_series *s) {
  uint32_t n = s->n_tenants, half = WEFT_SIM_BINS / 2;
  for (uint32_t t = 0; t < WEFT_SIM_TRACKS; t++) {
    double *v = s->track[t];
    for (uint32_t i = 0; i < half; i++) v[i] = v[(size_t)2 * i] + v[(size_t)2 * i + 1];
    memset(v + half, 0, half * sizeof *v);
  }
  for (uint32_t i = 0; i < half; i++) {
    double *to = s->service + (size_t)i * n, *from = s->service + (size_t)2 * i * n;
    for (uint32_t t = 0; t < n; t++) to[t] = from[t] + from[n + t];
  }
  memset(s->service + (size_t)half * n, 0, (size_t)half * n * sizeof *s->service);
  s->bin_us *= 2;
}

static void reach_time(weft_sim_series *s, uint64_t to_us) {
  while (to_us >= s->bin_us * WEFT_SIM_BINS) join_bins(s);
  if (to_us > s->end_us) s->end_us = to_us;
}

void weft_sim_series_add(weft_sim_series *s, uint64_t from_us, uint64_t to_us, const double value[WEFT_SIM_TRACKS]) {
  reach_time(s, to_us);
  while (from_us < to_us) {
    uint64_t bin = from_us / s->bin_us, until = (bin + 1) * s->bin_us;
    if (until > to_us) until = to_us;
    for (uint32_t t = 0; t < WEFT_SIM_TRACKS; t++) {
      s->track[t][bin] += value[t] * (double)(until - from_us);
    }
    from_us = until;
  }
}

void weft_sim_series_serve(weft_sim_series *s, uint64_t at_us, uint32_t tenant, double us) {
  reach_time(s, at_us);
  s->service[at_us / s->bin_us * s->n_tenants + tenant] += us;
}

uint32_t weft_sim_series_bins(const weft_sim_series *s) {
  return (uint32_t)(s->end_us / s->bin_us) + 1;
}
