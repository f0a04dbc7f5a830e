/* SPDX-License-Identifier: MIT */
/* The places of a server: how many requests may be there, what each tenant has of them, and the memory of all. One
 * engine has places of its own; the engines of replicas (replicas.h) share theirs, so every limit here is one of the
 * whole server, whichever engine a request went to.
 *
 * Law. n_live counts requests that were submitted to any of the engines and have neither finished nor been evicted; it
 * is never above live_max, which is the number of requests that may run at once, in all engines, plus waiting_max. The
 * inboxes of the engines (inbox.h) do the counting, under the one mutex here. */
#ifndef WEFT_SCHEDULER_PLACES_H
#define WEFT_SCHEDULER_PLACES_H

#include <pthread.h>

#include "scheduler/account.h"
#include "scheduler/budget.h"

typedef struct weft_places {
  pthread_mutex_t mutex; /* of all but the budget, and of the inboxes */
  uint32_t n_live, live_max, running_max, waiting_max;
  uint64_t n_submissions;
  weft_account *account; /* [n_tenants] */
  uint32_t n_tenants;
  uint64_t n_refused[WEFT_MODELS_MAX][WEFT_REFUSED_KINDS]; /* requests by model, as the accounts count them by tenant */
  weft_budget budget;
} weft_places;

/* Of engines that may run config->running_max requests each. NO_MEMORY: nothing is left to close. */
weft_status weft_places_open(weft_places *places, const weft_engine_config *config, uint32_t n_engines);
void weft_places_close(weft_places *places);
/* A copy of a tenant's account. */
weft_account weft_places_account(weft_places *places, uint32_t tenant);
/* weft_account_move of a tenant's account. Any thread. */
void weft_places_move(weft_places *places, uint32_t tenant, int64_t n_tokens, uint64_t now_us);
/* n requests of a model were refused. Any thread. */
void weft_places_count_refused(weft_places *places, uint32_t model, weft_refused why, uint32_t n);
void weft_places_get_refused(weft_places *places, uint32_t model, uint64_t out[WEFT_REFUSED_KINDS]);

#endif
