/* SPDX-License-Identifier: MIT */
/* What a replica tells routers of its cache.
 *
 * Law. It is what `weft serve --kv-events` tells, made by the same functions (api/events): what a turn changed is told
 * when the turn is over, each turn's changes as one batch, and counted in events and in bytes of vLLM's form with the
 * tokens of all tenants. */
#ifndef WEFT_BENCH_SIM_TOLD_H
#define WEFT_BENCH_SIM_TOLD_H

#include "bench/sim/index.h"
#include "bench/sim/sim.h"

/* How blocks are named, for all replicas and the router. */
typedef struct weft_sim_names {
  kv_names names;
  kv_told_domain told[WEFT_SIM_TENANTS];
  char salt[WEFT_SIM_TENANTS][24];
  bool shared_cache;
  uint32_t unit_tokens[WEFT_SIM_MODELS];
} weft_sim_names;

void weft_sim_names_open(const weft_lab_config *config, const weft_sim_profile *profile, const weft_sim_load *load,
                         weft_sim_names *out);
/* The domain of a tenant's prompts. */
weft_key128 weft_sim_domain(bool shared_cache, uint32_t tenant);
/* Keys of the blocks of a prompt that a hit can have. key: [n_prompt / unit_tokens]. Returns how many. */
uint32_t weft_sim_names_keys(const weft_sim_names *names, const weft_sim_item *item, const int32_t *prompt,
                             uint64_t *key);

typedef struct weft_sim_told weft_sim_told;

/* Of an engine that was opened with prefix_feed. From now on it tells; what was known of the replica is cleared. */
weft_status weft_sim_told_open(const weft_sim_names *names, const weft_sim_profile *profile, weft_engine *engine,
                               bool has_host, weft_sim_index *index, uint32_t replica, uint64_t now_us,
                               weft_sim_told **out);
void weft_sim_told_close(weft_sim_told *told); /* NULL is fine */
/* Tells what changed until now. */
void weft_sim_told_flush(weft_sim_told *told, uint64_t now_us, weft_sim_counts *counts);
/* More is to be told once the engine had another turn. */
bool weft_sim_told_waits(const weft_sim_told *told);

#endif
