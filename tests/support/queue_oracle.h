/* SPDX-License-Identifier: MIT */
/* The law of the full queue as an outsider can check it, from what the engine says of each tenant. */
#ifndef WEFT_TESTS_QUEUE_ORACLE_H
#define WEFT_TESTS_QUEUE_ORACLE_H

#include "scheduler/engine.h"

/* With n more requests in the queue a tenant has no more than its share of those that have not started: the queue must
 * not refuse it. config: [n_tenants], weight 0 is 1. */
static inline bool is_within_queue_share(weft_engine *engine, const weft_tenant_config *config, uint32_t n_tenants,
                                         uint32_t tenant, uint32_t n) {
  uint64_t n_all = 0, weights = 0, own = 0, own_weight = 0;
  for (uint32_t i = 0; i < n_tenants; i++) {
    weft_tenant_stats stats;
    weft_engine_get_tenant_stats(engine, i, &stats);
    uint64_t weight = config[i].weight == 0 ? 1 : config[i].weight;
    if (i == tenant) own = stats.n_unstarted + n, own_weight = weight;
    if (i == tenant || stats.n_unstarted > 0) weights += weight;
    n_all += stats.n_unstarted;
  }
  return own * weights <= n_all * own_weight;
}

#endif
