/* SPDX-License-Identifier: MIT */
#include "scheduler/policy.h"

enum {
  MARGIN_PART = 8,   /* at most one eighth of the pool is kept unpromised */
  SQUEEZED_STEPS = 4 /* steps without a row for prompts before they go first */
};

bool weft_policy_goes_before(const weft_rank *a, const weft_rank *b) {
  if (a->priority != b->priority) return a->priority > b->priority;
  return a->arrival < b->arrival;
}

/* excess: pages of each tenant beyond its share of the pool. */
static bool gives_way_before(const weft_rank *a, const weft_rank *b, const uint32_t *excess) {
  if (a->priority != b->priority) return a->priority < b->priority;
  if (excess[a->tenant] != excess[b->tenant]) return excess[a->tenant] > excess[b->tenant];
  return a->arrival > b->arrival;
}

uint32_t weft_policy_victim(const weft_rank *running, uint32_t n, const weft_rank *needs, const uint32_t *excess,
                            bool own_only) {
  uint32_t first = WEFT_POLICY_NONE;
  for (uint32_t i = 0; i < n; i++) {
    if (running[i].excluded || !weft_policy_goes_before(needs, &running[i])) continue;
    if (own_only && running[i].tenant != needs->tenant) continue;
    if (first == WEFT_POLICY_NONE || gives_way_before(&running[i], &running[first], excess)) {
      first = i;
    }
  }
  return first;
}

int32_t weft_policy_level(int32_t priority_class, uint64_t age_us) {
  uint64_t levels = age_us / WEFT_AGE_US;
  uint64_t room = (uint64_t)(WEFT_CLASS_HIGH - priority_class);
  return levels < room ? priority_class + (int32_t)levels : WEFT_CLASS_HIGH;
}

bool weft_policy_is_due_before(const weft_candidate *a, const weft_candidate *b) {
  if (a->level != b->level) return a->level > b->level;
  if (a->tenant_clock != b->tenant_clock) return a->tenant_clock < b->tenant_clock;
  return a->arrival < b->arrival;
}

uint32_t weft_policy_margin(uint32_t n_running, uint32_t n_pages) {
  uint32_t most = n_pages / MARGIN_PART;
  return n_running < most ? n_running : most;
}

uint32_t weft_policy_room(const weft_request_pages *each, uint32_t n_pages, uint32_t n_most) {
  uint64_t n = 0;
  while (n < n_most && (n + 1) * each->peak <= n_pages &&
         n * each->mean + each->prompt + weft_policy_margin((uint32_t)n, n_pages) <= n_pages)
    n++;
  return (uint32_t)n;
}

uint32_t weft_policy_turn(uint32_t current, const double *used_us, uint64_t has_work, uint32_t n_lanes,
                          double slice_us) {
  uint32_t least = WEFT_POLICY_NONE;
  for (uint32_t i = 1; i <= n_lanes; i++) { /* the current one last */
    uint32_t lane = (current + i) % n_lanes;
    if ((has_work >> lane & 1) == 0) continue;
    if (least == WEFT_POLICY_NONE || used_us[lane] < used_us[least]) least = lane;
  }
  bool keeps = (has_work >> current & 1) != 0 && used_us[current] < used_us[least] + slice_us;
  return keeps ? current : least;
}

bool weft_policy_is_light(double used, double used_by_all, uint64_t weight, uint64_t weight_of_all) {
  return weight < weight_of_all && 2.0 * used * (double)weight_of_all < used_by_all * (double)weight;
}

double weft_policy_light_step(double alone_us, uint64_t weight, uint64_t weight_of_all, uint32_t n_lanes) {
  double fair = (double)weight_of_all / (double)weight, lanes = n_lanes > 1 ? (double)n_lanes : 1.0;
  if (fair < lanes) fair = lanes;
  return WEFT_LIGHT_FACTOR * fair * alone_us / lanes;
}

bool weft_policy_prefill_first(uint32_t n_squeezed_steps) {
  return n_squeezed_steps >= SQUEEZED_STEPS;
}
