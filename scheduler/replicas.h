/* SPDX-License-Identifier: MIT */
/* Replicas: engines that each have all models on a device of their own, behind one submission. Where a server has one
 * device, or one model over several, there is one replica, and all of this is its engine.
 *
 * Law. Each replica has its own pool, its own loop and its own thread; an engine does not know that there are others.
 * Which one gets a request is decided once, when it is submitted (replica_choice.h); its siblings go with it, so that
 * its prompt is computed once, and the other requests of a submission may go elsewhere. Replicas compute the same bits,
 * so no answer depends on the choice. Places, the queue, what tenants may have waiting, their tokens of a minute and the
 * memory of requests are one for all (places.h). Of a tenant's limit on running requests each replica keeps its part,
 * some one more where it does not come out even, and a request goes where a part is free; of a replica that broke the
 * part is lost. A tenant whose limit is less than the number of replicas runs on that many, and not every tenant on
 * the same ones. Fair share,
 * classes, turns and limits on pages are rules of each replica about what it has.
 *
 * A tenant's limits may change at any time, in all replicas at once (weft_replicas_change_tenant). A request that waits on
 * a replica whose part of a smaller limit is none runs there as one of a part of one.
 *
 * A replica whose device failed gets no request of the models that broke, while another one works. A pin is declared in
 * all replicas whose device works, under one number, or in none.
 *
 * Threads: any, but for open and close. */
#ifndef WEFT_SCHEDULER_REPLICAS_H
#define WEFT_SCHEDULER_REPLICAS_H

#include "scheduler/engine.h"

typedef struct weft_replicas weft_replicas;

typedef struct weft_replicas_config {
  uint32_t n;
  /* Of each; runner is not read. running_max and pages are those of one replica; waiting_max, request_bytes_max and the
   * limits of tenants, but for blocks_max, are those of all. */
  weft_engine_config engine;
  weft_runner *const *runner[WEFT_REPLICAS_MAX]; /* [n][n_models] */
} weft_replicas_config;

weft_status weft_replicas_open(const weft_replicas_config *config, weft_replicas **out, weft_error *error);
void weft_replicas_close(weft_replicas *replicas); /* as weft_engine_close */
weft_engine *weft_replicas_at(const weft_replicas *replicas, uint32_t index);
/* The engine that has the request: for its poll, wait, cancel and release. */
weft_engine *weft_replicas_of(const weft_replicas *replicas, const weft_request *request);

/* As weft_engine_submit_all, but that each request goes to the replica that is chosen for it, and to another one where
 * that breaks meanwhile. */
weft_status weft_replicas_submit_all(weft_replicas *replicas, const weft_request_params *params, uint32_t n,
                                     uint64_t now_us, weft_request **out, weft_error *error);

/* What engine.h says of one engine, of all. */
weft_status weft_replicas_start(weft_replicas *replicas);
void weft_replicas_stop(weft_replicas *replicas);
void weft_replicas_drain(weft_replicas *replicas);
bool weft_replicas_idle(weft_replicas *replicas);
void weft_replicas_reset_cache(weft_replicas *replicas);
/* config: over all replicas, as in open, but for blocks_max, which is of each. */
weft_status weft_replicas_change_tenant(weft_replicas *replicas, uint32_t tenant, const weft_tenant_config *config,
                                        uint64_t now_us, weft_error *error);
weft_status weft_replicas_pin(weft_replicas *replicas, const weft_pin_params *params, uint64_t now_us, uint32_t *id,
                              weft_error *error);
weft_status weft_replicas_unpin(weft_replicas *replicas, uint32_t id);
/* Of the first replica that has it. */
weft_status weft_replicas_copy_pin(weft_replicas *replicas, uint32_t id, int32_t **tokens, uint32_t *n_tokens);
/* A pin is held when every replica that works holds it; its pages are those of one. */
uint32_t weft_replicas_list_pins(weft_replicas *replicas, weft_pin_info *out, uint32_t max);
/* Sums, as stats_sum.h says. Group usage: [WEFT_GROUPS_MAX]. */
void weft_replicas_get_stats(weft_replicas *replicas, weft_engine_stats *out);
void weft_replicas_get_request_stats(weft_replicas *replicas, uint32_t model, weft_request_stats *out);
void weft_replicas_move_tokens(weft_replicas *replicas, uint32_t tenant, int64_t n_tokens, uint64_t now_us);
/* What a tenant may still submit now, with the limits that it has. */
weft_tenant_left weft_replicas_get_tenant_left(weft_replicas *replicas, uint32_t tenant, uint64_t now_us);
void weft_replicas_get_tenant_stats(weft_replicas *replicas, uint32_t tenant, weft_tenant_stats *out);
void weft_replicas_get_group_usage(weft_replicas *replicas, uint32_t model, weft_group_usage *out);

#endif
