/* SPDX-License-Identifier: MIT */
#include "bench/speed/rates.h"

#include <unistd.h>

enum { EVERY_US = 10000, LOOKS_MAX = 1 << 15 };

static void look_once(weft_rates *rates) {
  weft_engine_stats all;
  weft_request_stats of_first;
  weft_replicas_get_stats(rates->runtime->replicas, &all);
  weft_replicas_get_request_stats(rates->runtime->replicas, 0, &of_first);
  if (rates->n == LOOKS_MAX) return;
  rates->look[rates->n++] = (weft_rate_look){weft_clock_us(), of_first.n_answer_tokens, all.n_steps};
}

static void *run_looks(void *self) {
  weft_rates *rates = self;
  while (!atomic_load(&rates->ends)) {
    look_once(rates);
    (void)usleep(EVERY_US); /* woken early is fine */
  }
  look_once(rates);
  return NULL;
}

bool weft_rates_start(weft_rates *rates, weft_runtime *runtime) {
  *rates = (weft_rates){.runtime = runtime, .look = weft_alloc(LOOKS_MAX, sizeof *rates->look)};
  if (rates->look != NULL && weft_threads_start(&rates->thread, run_looks, rates, NULL) == WEFT_OK) return true;
  weft_rates_free(rates);
  return false;
}

void weft_rates_stop(weft_rates *rates) {
  atomic_store(&rates->ends, true);
  (void)pthread_join(rates->thread, NULL);
}

void weft_rates_free(weft_rates *rates) {
  weft_free(rates->look);
  rates->look = NULL;
}

static double rate_between(const weft_rate_look *a, const weft_rate_look *b) {
  return b->us > a->us ? (double)(b->n_tokens - a->n_tokens) * 1e6 / (double)(b->us - a->us) : 0.0;
}

weft_steady weft_rates_steady(const weft_rate_look *look, uint32_t n, uint64_t from_us, uint64_t to_us,
                              uint64_t n_skipped, double window_s) {
  weft_steady out = {0};
  uint32_t first = 0, end = n;
  while (first < n && look[first].us < from_us) first++;
  while (end > first && look[end - 1].us > to_us) end--;
  if (first == end) return out;
  out.n_steps = look[end - 1].n_steps - look[first].n_steps;
  for (uint64_t n_steps = look[first].n_steps + n_skipped; first < end && look[first].n_steps < n_steps;) first++;
  if (first + 1 >= end) return out;
  out.seconds = (double)(look[end - 1].us - look[first].us) * 1e-6;
  out.tok_s = out.least_tok_s = rate_between(&look[first], &look[end - 1]);
  out.window_s = out.seconds < window_s ? out.seconds : window_s;
  for (uint32_t i = first, k = first; i < end; i++) {
    while (k < end && (double)(look[k].us - look[i].us) < out.window_s * 1e6) k++;
    if (k == end) break;
    double rate = rate_between(&look[i], &look[k]);
    if (rate < out.least_tok_s) out.least_tok_s = rate;
  }
  return out;
}
