/* SPDX-License-Identifier: MIT */
#include "scheduler/snapshot.h"

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
  }
  (void)pthread_mutex_lock(&e->stats_mutex);
  e->shared_stats = e->stats;
  e->shared_forecast = e->forecast;
  for (uint32_t i = 0; i < e->n_lanes; i++) {
    weft_group_usage *usage = &e->shared_usage[i * WEFT_BATCH_GROUPS_MAX];
    for (uint32_t g = 0; g < e->lane[i].info->n_groups; g++) usage[g] = weft_pager_group_usage(e->pager, i, g);
  }
  weft_tenants_share(&e->tenants, e->pager);
  (void)pthread_mutex_unlock(&e->stats_mutex);
}
