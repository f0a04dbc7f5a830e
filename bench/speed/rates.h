/* SPDX-License-Identifier: MIT */
/* Tokens over time while a load runs: a thread that looks at the counters of the first model every few milliseconds.
 *
 * Law: what it tells is of a span of the run in which the load is the same, from one time to another: after so many of
 * its steps, the rate over the rest, and the least rate of any window of it that is as long as was asked, or as the
 * span where that is shorter. A look costs a copy of the counters under their mutex, and no step waits for it. */
#ifndef WEFT_BENCH_SPEED_RATES_H
#define WEFT_BENCH_SPEED_RATES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "bench/inside.h"

typedef struct weft_rate_look {
  uint64_t us, n_tokens, n_steps; /* since the engines were opened */
} weft_rate_look;

typedef struct weft_rates {
  weft_runtime *runtime;
  pthread_t thread;
  atomic_bool ends;
  weft_rate_look *look; /* [n], owned */
  uint32_t n;
} weft_rates;

/* false: out of memory, or of threads; then there is nothing to stop. Looks beyond some minutes are not kept. */
bool weft_rates_start(weft_rates *rates, weft_runtime *runtime);
void weft_rates_stop(weft_rates *rates);
void weft_rates_free(weft_rates *rates);

typedef struct weft_steady {
  double tok_s, least_tok_s; /* 0: there were not so many steps, or the span was too short to look twice */
  double seconds, window_s;  /* what is left of the span; how long the least window is */
  uint64_t n_steps;          /* of the whole span */
} weft_steady;

/* Of the looks from from_us to to_us, without those before n_skipped steps of them. */
weft_steady weft_rates_steady(const weft_rate_look *look, uint32_t n, uint64_t from_us, uint64_t to_us,
                              uint64_t n_skipped, double window_s);

#endif
