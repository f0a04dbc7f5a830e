/* SPDX-License-Identifier: MIT */
/* Policy: which request goes first and which one has to give way. Pure functions over small plain structs: the same
 * facts give the same answer, so a test is a table. Any thread.
 *
 * Law. Rank is a total order (class, then arrival), so one of the running requests is first. No other request that lacks
 * memory may take its memory, hence it always makes progress while it runs. */
#ifndef WEFT_SCHEDULER_POLICY_H
#define WEFT_SCHEDULER_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#define WEFT_POLICY_NONE UINT32_MAX

/* A running request, as far as memory is concerned. */
typedef struct weft_rank {
  uint64_t arrival; /* unique; a smaller one came earlier */
  int32_t priority; /* class of the tenant; where there is one tenant, the priority of the request */
  uint32_t tenant;
  bool excluded; /* it is leaving already: to preempt it would gain nothing */
} weft_rank;

/* True when a goes before b: higher priority, then earlier arrival. */
bool weft_policy_goes_before(const weft_rank *a, const weft_rank *b);

/* The running request (its index) that gives up its memory for `needs`. Of the requests that rank below `needs`, and
 * with own_only of the same tenant, it is one of the lowest class; among these one of the tenant that is furthest
 * beyond its share of the pool (excess: [n_tenants] pages, 0: not beyond it); among these the one that arrived last.
 * WEFT_POLICY_NONE: there is none. */
uint32_t weft_policy_victim(const weft_rank *running, uint32_t n, const weft_rank *needs, const uint32_t *excess,
                            bool own_only);

/* The level of a class: the class itself, and one more for every WEFT_AGE_US that the next request of any of its
 * tenants has waited, up to the highest class. So a low class is never starved. */
enum { WEFT_CLASS_LOW = -1, WEFT_CLASS_HIGH = 1, WEFT_CLASSES = 3 };
#define WEFT_AGE_US UINT64_C(10000000)
int32_t weft_policy_level(int32_t priority_class, uint64_t age_us);

/* The next request of one tenant. */
typedef struct weft_candidate {
  uint64_t tenant_clock; /* virtual time of the tenant (tenant.h) */
  uint64_t arrival;
  int32_t level;
} weft_candidate;

/* True when a is served before b: the higher level, then the smaller clock, then the earlier arrival. */
bool weft_policy_is_due_before(const weft_candidate *a, const weft_candidate *b);

/* Pages that must stay free when one more request is admitted, so that the running requests can take their next page
 * without a preemption. */
uint32_t weft_policy_margin(uint32_t n_running, uint32_t n_pages);
/* Pages of one request (pager.h): at its peak and in the mean while it decodes; at its peak in the middle of a chunk of
 * its prompt. */
typedef struct weft_request_pages {
  uint32_t peak, mean, prompt;
} weft_request_pages;

/* How many requests, at most n_most, run at once in n_pages: all of them at their peak as they decode, and the last one
 * in the middle of its prompt beside the others, which it may wait for until they hold no more than in the mean. */
uint32_t weft_policy_room(const weft_request_pages *each, uint32_t n_pages, uint32_t n_most);

/* Which lane's turn it is: of the lanes with work the one that has used least of the device, the next one in circular
 * order among equals; but `current` keeps its turn while it has work and is less than slice_us ahead of that lane. So
 * two lanes with work differ by less than slice_us and one step of each. has_work: one bit for each lane.
 * WEFT_POLICY_NONE when no lane has work. */
uint32_t weft_policy_turn(uint32_t current, const double *used_us, uint64_t has_work, uint32_t n_lanes,
                          double slice_us);

/* Whether a tenant is light: it has used less than half of its share of what all tenants with requests have used. A
 * tenant that is alone never is, nor is any tenant when all have used about their shares. used, used_by_all: device
 * time over the same span. */
bool weft_policy_is_light(double used, double used_by_all, uint64_t weight, uint64_t weight_of_all);

/* How many microseconds a step may take that holds decode rows of a light tenant, which take alone_us alone:
 * WEFT_LIGHT_FACTOR times what they would take if the tenant had its share of the device and no more, divided by
 * n_lanes, since steps of other models come between; but at least WEFT_LIGHT_FACTOR times alone_us. */
enum { WEFT_LIGHT_FACTOR = 8 };
double weft_policy_light_step(double alone_us, uint64_t weight, uint64_t weight_of_all, uint32_t n_lanes);

/* True when prompts got no row in n_squeezed_steps steps in a row, and that is so long that they go first once. */
bool weft_policy_prefill_first(uint32_t n_squeezed_steps);

#endif
