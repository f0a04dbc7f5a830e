/* SPDX-License-Identifier: MIT */
/* The budget: host memory of all requests that were submitted and not released, in bytes (request_bytes_max). Any
 * thread.
 *
 * Law. All requests together never hold more than the budget. Where there are several tenants, a tenant may take
 * memory only while what it then holds is no more than what is still free. So of k tenants that hold as much as they
 * may, each has at least one (k + 1)th of the budget, and another (k + 1)th is free for the next tenant. A request is
 * counted whole before its memory is taken, and until that memory is given back. What could never fit is LIMIT,
 * what does not fit now is FULL. */
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
/* The bytes that one request may hold when there is no other. */
uint64_t weft_budget_largest(const weft_budget *budget);
/* The bytes that all requests hold now. */
uint64_t weft_budget_held(weft_budget *budget);
/* Counts requests of a submission that was refused with FULL: one refused request refuses all of its submission. */
void weft_budget_count_refused(weft_budget *budget, uint32_t tenant, uint32_t n_requests);
uint64_t weft_budget_refused(weft_budget *budget, uint32_t tenant);

#endif
