/* SPDX-License-Identifier: MIT */
#include "scheduler/light.h"

static const double NO_TIME_US = 1e-3; /* nothing fits */

/* The tenants that have requests. */
typedef struct present {
  uint64_t weight;
  double used_lately;
  int32_t highest_class;
} present;

static present find_present(const weft_tenants *t) {
  present is = {.highest_class = WEFT_CLASS_LOW};
  for (uint32_t i = 0; i < t->n_tenants; i++) {
    const weft_tenant *tenant = &t->tenant[i];
    if (!weft_tenants_is_active(tenant)) continue;
    is.weight += tenant->config.weight;
    is.used_lately += tenant->used_lately;
    if (tenant->config.priority_class > is.highest_class) is.highest_class = tenant->config.priority_class;
  }
  return is;
}

static bool is_light(const weft_tenant *tenant, const present *all) {
  return tenant->config.priority_class == all->highest_class &&
         weft_policy_is_light(tenant->used_lately, all->used_lately, tenant->config.weight, all->weight);
}

static double predict_decode(const weft_lane *lane, uint32_t n_decode) {
  weft_cost_shape shape = weft_cost_decode(&lane->cost.layers, n_decode, lane->keys_per_decode);
  return weft_cost_step(&lane->cost, &shape);
}

/* Decode rows of all do not fit: those of light tenants have their time, the others take turns for the rest. */
static void set_aside(weft_planning *p, const present *all, uint32_t n_light) {
  weft_tenants *t = &p->engine->tenants;
  for (uint32_t i = 0; i < t->n_tenants; i++) t->claims[i].ahead = !is_light(&t->tenant[i], all);
  p->n_ahead = p->lane->ready.n_decode - n_light;
}

/* The shortest step that a light tenant may ask for, and how many decode rows the light tenants have; 0: none. */
static double find_limit(const weft_engine *e, const weft_lane *lane, const present *all, uint32_t *n_light) {
  const weft_tenants *t = &e->tenants;
  const weft_tenant_ready *ready = &t->ready[(size_t)lane->index * t->n_tenants];
  uint32_t n_lanes = (uint32_t)__builtin_popcountll(weft_lanes_with_requests(e));
  double least_us = 0.0;
  *n_light = 0;
  for (uint32_t i = 0; i < t->n_tenants; i++) {
    if (ready[i].n_decode == 0 || !is_light(&t->tenant[i], all)) continue;
    double alone_us = predict_decode(lane, ready[i].n_decode);
    double us = weft_policy_light_step(alone_us, t->tenant[i].config.weight, all->weight, n_lanes);
    if (*n_light == 0 || us < least_us) least_us = us;
    *n_light += ready[i].n_decode;
  }
  return least_us;
}

double weft_light_open(weft_planning *p) {
  const weft_tenants *t = &p->engine->tenants;
  const weft_lane *lane = p->lane;
  if (t->n_tenants == 1 || lane->ready.n_decode == 0) return 0.0;
  const present all = find_present(t);
  uint32_t n_light;
  double limit_us = find_limit(p->engine, lane, &all, &n_light);
  if (n_light == 0) return 0.0;
  p->light_us = predict_decode(lane, n_light);
  if (limit_us < WEFT_LIGHT_FACTOR * p->light_us) limit_us = WEFT_LIGHT_FACTOR * p->light_us;
  p->alone = lane->late.n_alone == 0 || lane->late.shared_us > WEFT_LIGHT_ALONE * p->light_us;
  bool too_many = p->alone || predict_decode(lane, lane->ready.n_decode) > limit_us;
  if (too_many) set_aside(p, &all, n_light);
  p->crowded = lane->late.held;
  return p->alone ? NO_TIME_US : limit_us;
}

void weft_light_close(weft_planning *p) {
  weft_pace_late *late = &p->lane->late;
  late->held = p->pace.prompt_held || p->pace.canvas_held || p->pace.decode_held;
  if (p->light_us <= 0.0) return;
  late->n_alone += p->alone;
  late->shared_us = p->alone ? 0.0 : late->shared_us + p->plan->predicted_us;
}
