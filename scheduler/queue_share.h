/* SPDX-License-Identifier: MIT */
/* The share of the queue: which tenant gives way when the queue is full. Pure functions; inbox.c calls them under its
 * mutex.
 *
 * Law. The queue holds the requests that have not started; it is full when all requests, those that run among them, are
 * as many as may run and wait together. A tenant's part of it is the number of its requests in the
 * queue, divided by the tenant's weight. When a submission finds too few places, the tenant with the largest part
 * gives way, its newest submission first and each submission as a whole, while its part is larger than the part that
 * the submitter will have with the new requests. If that makes too little room no tenant gives way, and the submission
 * is refused. A client whose request gave way gets 429 with the code queue_full and Retry-After (api/dialects/stream.c
 * refuse_end). It follows that
 *   - a tenant that stays within its share (the places of the queue, times its weight, divided by the weights of all
 *     tenants with requests in it) always gets in: the queue is full, so another tenant is beyond its share, and its
 *     part is larger;
 *   - no tenant loses a place to a tenant that then has as much for its weight, or more: two tenants cannot evict
 *     each other in turn. */
#ifndef WEFT_SCHEDULER_QUEUE_SHARE_H
#define WEFT_SCHEDULER_QUEUE_SHARE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct weft_queue_part {
  uint32_t n, weight;
} weft_queue_part;

/* Whether a has more requests for its weight than b. */
static inline bool weft_queue_part_is_larger(weft_queue_part a, weft_queue_part b) {
  return (uint64_t)a.n * b.weight > (uint64_t)b.n * a.weight;
}

/* The tenant other than the submitter with the largest part, the first of equals, whose part is larger than what the
 * submitter will have; n_tenants when there is none. */
static inline uint32_t weft_queue_who_gives_way(const weft_queue_part *part, uint32_t n_tenants, uint32_t submitter,
                                                weft_queue_part will_have) {
  uint32_t largest = n_tenants;
  for (uint32_t i = 0; i < n_tenants; i++) {
    if (i == submitter || !weft_queue_part_is_larger(part[i], will_have)) continue;
    if (largest == n_tenants || weft_queue_part_is_larger(part[i], part[largest])) largest = i;
  }
  return largest;
}

#endif
