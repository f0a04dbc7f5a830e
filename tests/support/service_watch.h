/* SPDX-License-Identifier: MIT */
/* A layer around a runner that sees what each tenant is given, and holds the fairness bound of
 * docs/scheduler.md against it: while two tenants both have somebody waiting, their service divided
 * by weight differs over any interval by at most k C / w(i) + k C / w(j), C the highest charge of a
 * step, k = 2, and with a target for the time between tokens 1 + WEFT_PACE_AHEAD. Service is
 * predicted device time: a cost model of its own learns from the same steps as the engine's.
 *
 * A request is known by its seed: the low byte is free, the rest is its number plus one. */
#ifndef WEFT_TESTS_SERVICE_WATCH_H
#define WEFT_TESTS_SERVICE_WATCH_H

#include <stdio.h>

#include "scheduler/engine.h"
#include "scheduler/pace.h"

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
  bool paced; /* there is a target */
  weft_cost_model model;
  weft_cost_shape flight[4]; /* steps submitted and not collected, by number */
  uint32_t rows_max, n_submitted, n_collected;
  double step_us;                                          /* the highest charge so far */
  double charged_us[WATCH_TENANTS], served[WATCH_TENANTS]; /* charged divided by weight */
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

static inline weft_status watch_slot_open(weft_runner *runner, uint32_t slot, const weft_slot_params *p) {
  service_watch *w = (service_watch *)runner;
  uint32_t request = (uint32_t)(p->sampling->seed >> 8) - 1;
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
  double c = (w->paced ? 1.0 + WEFT_PACE_AHEAD : 2.0) * w->step_us;
  double bound = c / w->weight[i] + c / w->weight[j] + 1.0; /* charges are whole numbers */
  if (pair->high - pair->low <= bound || w->violation[0] != 0) return;
  (void)snprintf(w->violation, sizeof w->violation,
                 "tenants %u and %u (weights %u, %u): service differs by %.1f, the bound is %.1f", i, j, w->weight[i],
                 w->weight[j], pair->high - pair->low, bound);
}

/* What rows, keys and outputs cost, never less than a microsecond for a row. */
static inline double watch_cost(const service_watch *w, const weft_cost_shape *shape) {
  return (double)weft_cost_of_part(&w->model, shape) / WEFT_COST_PER_US;
}

static inline void watch_add(const service_watch *w, weft_cost_shape *shape, const weft_segment *segment) {
  weft_cost_add(&w->model.layers, shape, segment->n_rows, segment->kv_len, segment->mask == WEFT_MASK_WHOLE,
                segment->n_outputs);
}

/* The time of the step goes to tenants as their parts would cost alone. */
static inline void watch_serve(service_watch *w, const weft_cost_shape *step, const weft_cost_shape *part) {
  weft_cost_shape full = {.n_rows = w->rows_max};
  double sum = 0.0, us = weft_cost_step(&w->model, step), full_us = weft_cost_step(&w->model, &full);
  for (uint32_t t = 0; t < w->n_tenants; t++) sum += watch_cost(w, &part[t]);
  if (us < sum) us = sum;
  for (uint32_t t = 0; t < w->n_tenants; t++) {
    double charge = watch_cost(w, &part[t]) * us / sum;
    w->charged_us[t] += charge;
    w->served[t] += charge / w->weight[t];
  }
  if (full_us < w->rows_max) full_us = w->rows_max;
  if (us > w->step_us) w->step_us = us;
  if (full_us > w->step_us) w->step_us = full_us;
}

static inline weft_status watch_submit(weft_runner *runner, const weft_batch *batch) {
  service_watch *w = (service_watch *)runner;
  double before[WATCH_TENANTS];
  weft_cost_shape part[WATCH_TENANTS] = {{0}}, *step = &w->flight[w->n_submitted++ % 4];
  *step = (weft_cost_shape){0};
  for (uint32_t t = 0; t < w->n_tenants; t++) before[t] = w->served[t];
  for (uint32_t s = 0; s < batch->n_segments; s++) {
    watch_add(w, step, &batch->segment[s]);
    watch_add(w, &part[w->tenant_of_slot[batch->segment[s].slot]], &batch->segment[s]);
  }
  watch_serve(w, step, part);
  for (uint32_t i = 0; i < w->n_tenants; i++) {
    for (uint32_t j = 0; j < i; j++) watch_pair(w, i, j, before[i] - before[j]);
  }
  return w->inner->ops->submit(w->inner, batch);
}

static inline weft_status watch_collect(weft_runner *runner, weft_step_result *result) {
  service_watch *w = (service_watch *)runner;
  weft_status status = w->inner->ops->collect(w->inner, result);
  const weft_cost_shape *step = &w->flight[w->n_collected++ % 4];
  if (status == WEFT_OK) weft_cost_learn(&w->model, step, (double)result->device_us);
  return status;
}

static inline void watch_close(weft_runner *runner) {
  (void)runner; /* the test closes what is inside */
}

/* All layers of a group count alike. */
static inline weft_cost_layers watch_layers(const weft_runner_info *info) {
  weft_cost_layers layers = {.n_experts = info->n_experts, .n_used = info->n_experts_used};
  uint64_t n_full = 0, n = 0;
  for (uint32_t g = 0; g < info->n_groups; g++) {
    if (info->group[g].state_pages != 0) continue;
    n += info->group[g].n_layers;
    if (info->group[g].window == 0) n_full += info->group[g].n_layers;
    if (info->group[g].window > layers.window) layers.window = info->group[g].window;
  }
  layers.full = (uint32_t)(n_full * WEFT_COST_WHOLE / n);
  return layers;
}

/* rows_max: of a step, as the engine is told. */
static inline void watch_open(service_watch *w, weft_runner *inner, uint32_t rows_max) {
  static const weft_runner_ops ops = {WEFT_RUNNER_OPS(watch)};
  w->head.ops = &ops;
  w->inner = inner;
  w->rows_max = rows_max;
  const weft_cost_layers layers = watch_layers(inner->ops->info(inner));
  weft_cost_open(&w->model, &layers);
}

#endif
