/* SPDX-License-Identifier: MIT */
/* Policy: who goes first and who has to give way. Pure functions over small plain structs: the same
 * facts give the same answer, and a test is a table.
 *
 * Law: rank is a total order (class, then arrival), so among the running requests one is first;
 * nobody may take its memory, hence it always makes progress. */
#ifndef WEFT_SCHEDULER_POLICY_H
#define WEFT_SCHEDULER_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#define WEFT_POLICY_NONE UINT32_MAX

/* A running request, as far as memory is concerned. */
typedef struct weft_rank {
  uint64_t arrival; /* unique; smaller came earlier */
  int32_t priority; /* class of the tenant; of the request where there is one tenant */
  uint32_t tenant;
  bool excluded; /* already leaving: gains nothing */
} weft_rank;

/* True when a goes before b: higher priority, then earlier arrival. */
bool weft_policy_goes_before(const weft_rank *a, const weft_rank *b);

/* The running request that gives up its memory for `needs`: of those that rank below it, and of its
 * own tenant where own_only, one of the lowest class; among these of the tenant that is furthest
 * beyond its share of the pool (excess, [tenants]; 0: not beyond it); among these the last. NONE:
 * nobody. */
uint32_t weft_policy_victim(const weft_rank *running, uint32_t n, const weft_rank *needs, const uint32_t *excess,
                            bool own_only);

/* The level of a class: itself, and one more for every WEFT_AGE_US that its next requests are old,
 * up to the highest class. */
enum { WEFT_CLASS_LOW = -1, WEFT_CLASS_HIGH = 1, WEFT_CLASSES = 3 };
#define WEFT_AGE_US UINT64_C(10000000)
int32_t weft_policy_level(int32_t priority_class, uint64_t age_us);

/* The next request of one tenant. */
typedef struct weft_candidate {
  uint64_t tenant_clock; /* what the tenant has used, weighted */
  uint64_t arrival;
  int32_t level;
} weft_candidate;

/* True when a is served before b: the higher level, then the tenant that has used least, then
 * arrival. */
bool weft_policy_is_due_before(const weft_candidate *a, const weft_candidate *b);

/* Pages that must stay unpromised when one more request is admitted, so that those running can take
 * their next page without a preemption. */
uint32_t weft_policy_margin(uint32_t n_running, uint32_t n_pages);

/* Which lane's turn it is: the one with work that has used least of the device, the next one in
 * circular order among equals; but `current` keeps it while it has work and is less than slice_us
 * ahead of that one. has_work: one bit per lane. NONE when no lane has work. Two lanes with work
 * differ by less than slice_us and one step of each. */
uint32_t weft_policy_turn(uint32_t current, const double *used_us, uint64_t has_work, uint32_t n_lanes,
                          double slice_us);

/* A tenant is light when it has used less than half of its share of what all that are there have used. Who is there
 * alone never is, nor is anybody when all have used about their shares. used: of device time, over the same span. */
bool weft_policy_is_light(double used, double used_by_all, uint64_t weight, uint64_t weight_of_all);

/* How long a step may take that holds decode rows of a light tenant, which alone take alone_us: WEFT_LIGHT_FACTOR
 * times what they would take if the tenant had its share of the device and no more, or its turn among n_lanes models
 * where that is less. Other models' steps come between, so a step of one has a part of that time. */
enum { WEFT_LIGHT_FACTOR = 8 };
double weft_policy_light_step(double alone_us, uint64_t weight, uint64_t weight_of_all, uint32_t n_lanes);

/* True when prompts have been squeezed out of the steps for so long that they go first once. */
bool weft_policy_prefill_first(uint32_t n_squeezed_steps);

#endif
