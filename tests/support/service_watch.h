/* SPDX-License-Identifier: MIT */
/* A layer around a runner that sees what each tenant is given, and holds the fairness bound of
 * docs/scheduler.md against it: while two tenants both have somebody waiting, their service divided
 * by weight differs over any interval by at most 2 C / w(i) + 2 C / w(j), C the highest cost of a
 * step.
 *
 * A request is known by its seed: the low byte is free, the rest is its number plus one. */
#ifndef WEFT_TESTS_SERVICE_WATCH_H
#define WEFT_TESTS_SERVICE_WATCH_H

#include <stdio.h>

#include "scheduler/cost.h"
#include "scheduler/engine.h"

enum { WATCH_TENANTS = 8, WATCH_SLOTS = 64, WATCH_REQUESTS = 64 };

/* The difference of two tenants' service since both wait, and how far it has been. */
typedef struct service_pair {
  bool both_wait;
  double low, high;
} service_pair;

typedef struct service_watch {
  weft_runner head; /* first: the engine's runner is this layer */
  weft_runner *inner;
  uint32_t n_tenants, weight[WATCH_TENANTS], n_waiting[WATCH_TENANTS];
  uint32_t tenant_of[WATCH_REQUESTS], tenant_of_slot[WATCH_SLOTS];
  bool started[WATCH_REQUESTS];
  uint64_t step_cost; /* the highest so far */
  double served[WATCH_TENANTS]; /* cost divided by weight */
  service_pair pair[WATCH_TENANTS][WATCH_TENANTS];
  uint64_t n_watched; /* steps in which two tenants waited */
  char violation[128];
} service_watch;

static inline void watch_submitted(service_watch *w, uint32_t request, uint32_t tenant) {
  w->tenant_of[request] = tenant;
  w->n_waiting[tenant] += 1;
}

/* It ended without having started. */
static inline void watch_ended(service_watch *w, uint32_t request) {
  if (!w->started[request]) w->n_waiting[w->tenant_of[request]] -= 1;
  w->started[request] = true;
}

static inline const weft_runner_info *watch_info(const weft_runner *runner) {
  const service_watch *w = (const service_watch *)runner;
  return w->inner->ops->info(w->inner);
}

static inline weft_status watch_slot_open(weft_runner *runner, uint32_t slot,
                                          const weft_slot_params *p) {
  service_watch *w = (service_watch *)runner;
  uint32_t request = (uint32_t)((p->canvas ? p->entropy_bound.seed : p->sampling.seed) >> 8) - 1;
  w->tenant_of_slot[slot] = w->tenant_of[request];
  watch_ended(w, request);
  return w->inner->ops->slot_open(w->inner, slot, p);
}

static inline void watch_slot_close(weft_runner *runner, uint32_t slot) {
  service_watch *w = (service_watch *)runner;
  w->inner->ops->slot_close(w->inner, slot);
}

static inline void watch_pair(service_watch *w, uint32_t i, uint32_t j, double before) {
  service_pair *pair = &w->pair[i][j];
  bool both = w->n_waiting[i] > 0 && w->n_waiting[j] > 0;
  double now = w->served[i] - w->served[j];
  if (both && !pair->both_wait) pair->low = pair->high = before;
  pair->both_wait = both;
  if (!both) return;
  w->n_watched += 1;
  if (now < pair->low) pair->low = now;
  if (now > pair->high) pair->high = now;
  double c = 2.0 * (double)w->step_cost;
  double bound = c / w->weight[i] + c / w->weight[j] + 1e-6;
  if (pair->high - pair->low <= bound || w->violation[0] != 0) return;
  (void)snprintf(w->violation, sizeof w->violation,
                 "tenants %u and %u (weights %u, %u): service differs by %.1f, the bound is %.1f", i,
                 j, w->weight[i], w->weight[j], pair->high - pair->low, bound);
}

static inline weft_status watch_submit(weft_runner *runner, const weft_batch *batch) {
  service_watch *w = (service_watch *)runner;
  double before[WATCH_TENANTS];
  uint64_t step = 0, rows = watch_info(runner)->rows_max;
  for (uint32_t t = 0; t < w->n_tenants; t++) before[t] = w->served[t];
  for (uint32_t s = 0; s < batch->n_segments; s++) {
    const weft_segment *segment = &batch->segment[s];
    uint32_t tenant = w->tenant_of_slot[segment->slot];
    uint64_t cost = weft_cost_of_segment(segment->n_rows, segment->kv_len);
    step += cost;
    w->served[tenant] += (double)cost / w->weight[tenant];
  }
  if (step < rows) step = rows;
  if (step > w->step_cost) w->step_cost = step;
  for (uint32_t i = 0; i < w->n_tenants; i++) {
    for (uint32_t j = 0; j < i; j++) watch_pair(w, i, j, before[i] - before[j]);
  }
  return w->inner->ops->submit(w->inner, batch);
}

static inline weft_status watch_collect(weft_runner *runner, weft_step_result *result) {
  service_watch *w = (service_watch *)runner;
  return w->inner->ops->collect(w->inner, result);
}

static inline void watch_close(weft_runner *runner) {
  (void)runner; /* the test closes what is inside */
}

static inline void watch_open(service_watch *w, weft_runner *inner) {
  static const weft_runner_ops ops = {.info = watch_info,
                                      .slot_open = watch_slot_open,
                                      .slot_close = watch_slot_close,
                                      .submit = watch_submit,
                                      .collect = watch_collect,
                                      .close = watch_close};
  w->head.ops = &ops;
  w->inner = inner;
}

#endif
