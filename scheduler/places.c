/* SPDX-License-Identifier: MIT */
#include "scheduler/places.h"

#include <string.h>

#include "base/memory.h"

weft_status weft_places_open(weft_places *p, const weft_engine_config *config, uint32_t n_engines) {
  *p = (weft_places){.n_tenants = config->n_tenants,
                     .running_max = n_engines * config->running_max,
                     .waiting_max = config->waiting_max};
  p->live_max = p->running_max + p->waiting_max;
  p->account = weft_alloc(p->n_tenants, sizeof *p->account);
  if (p->account == NULL) return WEFT_E_NO_MEMORY;
  const weft_tenant_config plain = {.weight = 0};
  for (uint32_t i = 0; i < p->n_tenants; i++) {
    weft_account_open(&p->account[i], config->tenant == NULL ? &plain : &config->tenant[i], p->running_max);
  }
  weft_status status = weft_budget_open(&p->budget, config->request_bytes_max, p->n_tenants);
  if (status == WEFT_OK && pthread_mutex_init(&p->mutex, NULL) == 0) return WEFT_OK;
  weft_budget_close(&p->budget);
  weft_free(p->account);
  p->account = NULL;
  return WEFT_E_NO_MEMORY;
}

void weft_places_close(weft_places *p) {
  if (p->account == NULL) return; /* never opened */
  (void)pthread_mutex_destroy(&p->mutex);
  weft_budget_close(&p->budget);
  weft_free(p->account);
  p->account = NULL;
}

weft_account weft_places_account(weft_places *p, uint32_t tenant) {
  (void)pthread_mutex_lock(&p->mutex);
  weft_account account = p->account[tenant];
  (void)pthread_mutex_unlock(&p->mutex);
  return account;
}

void weft_places_move(weft_places *p, uint32_t tenant, int64_t n_tokens, uint64_t now_us) {
  (void)pthread_mutex_lock(&p->mutex);
  weft_account_move(&p->account[tenant], n_tokens, now_us);
  (void)pthread_mutex_unlock(&p->mutex);
}

void weft_places_count_refused(weft_places *p, uint32_t model, weft_refused why, uint32_t n) {
  (void)pthread_mutex_lock(&p->mutex);
  p->n_refused[model][why] += n;
  (void)pthread_mutex_unlock(&p->mutex);
}

void weft_places_get_refused(weft_places *p, uint32_t model, uint64_t out[WEFT_REFUSED_KINDS]) {
  (void)pthread_mutex_lock(&p->mutex);
  memcpy(out, p->n_refused[model], sizeof p->n_refused[model]);
  (void)pthread_mutex_unlock(&p->mutex);
}
