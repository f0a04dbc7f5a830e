/* SPDX-License-Identifier: MIT */
#include "scheduler/snapshot.h"

#include <string.h>

void weft_snapshot_take(weft_engine *e) {
  e->stats.n_running = e->n_running;
  e->stats.step_us = e->step_ns / 1000;
  e->stats.plan_us = e->plan_ns / 1000;
  e->stats.hidden_us = e->hidden_ns / 1000;
  e->stats.draining = weft_inbox_draining(&e->inbox);
  e->stats.pager = weft_pager_get_stats(e->pager);
  e->stats.n_lanes = e->n_lanes;
  for (uint32_t i = 0; i < e->n_lanes; i++) {
    e->stats.lane[i].n_running = e->lane[i].n_running;
    e->stats.lane[i].n_waiting = e->lane[i].n_waiting;
    e->stats.lane[i].n_deferred = e->lane[i].n_deferred;
  }
  for (uint32_t i = 0; i < e->n_lanes; i++) e->requests[i].n_answer_tokens = weft_tenants_answered(&e->tenants, i);
  (void)pthread_mutex_lock(&e->stats_mutex);
  e->shared_stats = e->stats;
  memcpy(e->shared_requests, e->requests, e->n_lanes * sizeof *e->requests);
  e->shared_forecast = e->forecast;
  for (uint32_t i = 0; i < e->n_lanes; i++) {
    weft_group_usage *usage = &e->shared_usage[i * WEFT_GROUPS_MAX];
    for (uint32_t g = 0; g < e->lane[i].info->n_groups; g++) usage[g] = weft_pager_group_usage(e->pager, i, g);
  }
  weft_tenants_share(&e->tenants, e->pager);
  (void)pthread_mutex_unlock(&e->stats_mutex);
}

/* When each of the things that are short is there: the last of them counts. */
uint64_t weft_snapshot_retry_us(weft_engine *e, uint32_t tenant, const weft_shortage *shortage) {
  uint64_t all_cost = 0, us = shortage->tokens_us;
  uint32_t n_all = 0;
  (void)pthread_mutex_lock(&e->stats_mutex);
  const weft_tenant_view *view = e->tenants.shared;
  for (uint32_t i = 0; i < e->config.n_tenants; i++) {
    all_cost += view[i].queued_cost;
    n_all += view[i].n_queued;
  }
  uint64_t own_us = weft_forecast_us(&e->shared_forecast, view[tenant].queued_cost, view[tenant].n_queued,
                                     shortage->n_own_places, weft_tenants_share_of(&e->tenants, tenant));
  uint64_t all_us = weft_forecast_us(&e->shared_forecast, all_cost, n_all, shortage->n_places, 1.0);
  (void)pthread_mutex_unlock(&e->stats_mutex);
  if (own_us > us) us = own_us;
  return all_us > us ? all_us : us;
}
