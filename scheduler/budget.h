/* SPDX-License-Identifier: MIT */
/* The budget: host memory of all requests that were submitted and not released, in bytes.
 *
 * Law. Together the requests never hold more than the budget. Of several tenants none holds more than it leaves free,
 * so with k tenants that hold all they may, each has at least a (k + 1)th of the budget, and so much is free for the
 * next one. A request is counted whole, before its memory is taken, until that is given back; what could never fit is
 * TOO_LARGE, what does not fit now is FULL. Any thread. */
#ifndef WEFT_SCHEDULER_BUDGET_H
#define WEFT_SCHEDULER_BUDGET_H

#include <pthread.h>
#include <stdint.h>

#include "base/status.h"

typedef struct weft_budget {
  pthread_mutex_t mutex;
  uint64_t n_held, n_max; /* bytes */
  uint32_t n_tenants;
  uint64_t *n_held_by, *n_refused; /* [n_tenants] */
} weft_budget;

/* n_max 0: no limit. */
weft_status weft_budget_open(weft_budget *budget, uint64_t n_max, uint32_t n_tenants);
void weft_budget_close(weft_budget *budget);
weft_status weft_budget_take(weft_budget *budget, uint32_t tenant, uint64_t n_bytes, weft_error *error);
void weft_budget_give_back(weft_budget *budget, uint32_t tenant, uint64_t n_bytes);
/* What the largest request may hold when it is alone. */
uint64_t weft_budget_largest(const weft_budget *budget);
/* What is held by all. */
uint64_t weft_budget_held(weft_budget *budget);
/* Requests of submissions that heard FULL: one that is refused refuses all that came with it. */
void weft_budget_count_refused(weft_budget *budget, uint32_t tenant, uint32_t n_requests);
uint64_t weft_budget_refused(weft_budget *budget, uint32_t tenant);

#endif
