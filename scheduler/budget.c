/* SPDX-License-Identifier: MIT */
#include "scheduler/budget.h"

#include <inttypes.h>

#include "base/check.h"
#include "base/memory.h"

weft_status weft_budget_open(weft_budget *budget, uint64_t n_max, uint32_t n_tenants) {
  *budget = (weft_budget){.n_max = n_max == 0 ? UINT64_MAX : n_max, .n_tenants = n_tenants};
  budget->n_held_by = weft_alloc(2 * (size_t)n_tenants, sizeof *budget->n_held_by);
  if (budget->n_held_by == NULL) return WEFT_E_NO_MEMORY;
  budget->n_refused = budget->n_held_by + n_tenants;
  (void)pthread_mutex_init(&budget->mutex, NULL); /* cannot fail with default attributes on this system */
  return WEFT_OK;
}

void weft_budget_close(weft_budget *budget) {
  if (budget->n_held_by == NULL) return;
  (void)pthread_mutex_destroy(&budget->mutex);
  weft_free(budget->n_held_by);
  budget->n_held_by = NULL;
}

uint64_t weft_budget_largest(const weft_budget *budget) {
  return budget->n_tenants == 1 ? budget->n_max : budget->n_max / 2;
}

/* Under the mutex. */
static bool budget_has_room(const weft_budget *b, uint32_t tenant, uint64_t n_bytes) {
  uint64_t n_free = b->n_max - b->n_held;
  if (n_bytes > n_free) return false;
  return b->n_tenants == 1 || b->n_held_by[tenant] + n_bytes <= n_free - n_bytes;
}

weft_status weft_budget_take(weft_budget *budget, uint32_t tenant, uint64_t n_bytes, weft_error *error) {
  if (n_bytes > weft_budget_largest(budget)) {
    return weft_fail(error, WEFT_E_LIMIT,
                     "this request needs %" PRIu64 " bytes of memory and one request may have %" PRIu64
                     ": ask for a shorter answer, for fewer logprobs, or serve with a larger --request-mib",
                     n_bytes, weft_budget_largest(budget));
  }
  (void)pthread_mutex_lock(&budget->mutex);
  bool fits = budget_has_room(budget, tenant, n_bytes);
  if (fits) {
    budget->n_held += n_bytes;
    budget->n_held_by[tenant] += n_bytes;
  }
  uint64_t n_own = budget->n_held_by[tenant], n_free = budget->n_max - budget->n_held;
  (void)pthread_mutex_unlock(&budget->mutex);
  if (fits) return WEFT_OK;
  return weft_fail(error, WEFT_FULL,
                   "this request needs %" PRIu64 " bytes; this tenant's requests hold %" PRIu64 " and %" PRIu64
                   " are free: come again later, or ask for a shorter answer or fewer logprobs",
                   n_bytes, n_own, n_free);
}

void weft_budget_give_back(weft_budget *budget, uint32_t tenant, uint64_t n_bytes) {
  (void)pthread_mutex_lock(&budget->mutex);
  WEFT_CHECK(n_bytes <= budget->n_held_by[tenant]);
  budget->n_held -= n_bytes;
  budget->n_held_by[tenant] -= n_bytes;
  (void)pthread_mutex_unlock(&budget->mutex);
}

void weft_budget_count_refused(weft_budget *budget, uint32_t tenant, uint32_t n_requests) {
  (void)pthread_mutex_lock(&budget->mutex);
  budget->n_refused[tenant] += n_requests;
  (void)pthread_mutex_unlock(&budget->mutex);
}

uint64_t weft_budget_held(weft_budget *budget) {
  (void)pthread_mutex_lock(&budget->mutex);
  uint64_t n = budget->n_held;
  (void)pthread_mutex_unlock(&budget->mutex);
  return n;
}

uint64_t weft_budget_refused(weft_budget *budget, uint32_t tenant) {
  (void)pthread_mutex_lock(&budget->mutex);
  uint64_t n = budget->n_refused[tenant];
  (void)pthread_mutex_unlock(&budget->mutex);
  return n;
}
