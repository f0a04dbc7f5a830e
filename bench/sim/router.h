/* SPDX-License-Identifier: MIT */
/* The router in front of several replicas.
 *
 * Law. `hash`: consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2016). A
 * replica has many points on a ring. The key of a request is the chain hash over the leading full
 * blocks of its prompt, its sharing domain and its model; the request goes to the first replica
 * from its key on whose load stays within `bound` times the mean, this request included. So equal
 * prefixes meet, a popular prefix overflows always to the same next replicas, and no replica has
 * more than ceil(bound * m / n) of the m requests in flight. `round-robin`: in turn.
 * A load is the number of requests routed and not ended. `prefix`: as weft serve --split replicas chooses, by the same
 * functions (scheduler/replica_choice.h, scheduler/sent_prefixes.h). With --replay a file chooses (assignment.h). */
#ifndef WEFT_BENCH_SIM_ROUTER_H
#define WEFT_BENCH_SIM_ROUTER_H

#include "bench/sim/sim.h"

typedef struct weft_sim_point {
  uint64_t at;
  uint32_t replica;
} weft_sim_point;

typedef struct weft_sim_router {
  uint32_t n_replicas, n_blocks, n_points, next;
  bool round_robin, shared_cache, by_prefix;
  uint32_t canvas_steps;
  double bound;
  weft_sim_point *point; /* by place on the ring */
  uint32_t load[WEFT_SIM_REPLICAS], n_live;
  uint32_t *replay;   /* [load.n]; NULL: it chooses itself */
  uint64_t n_spilled; /* requests that their first replica had no room for */
  /* by_prefix: requests routed and not ended, by tenant too; rows of all that were routed. */
  weft_sent_prefixes sent;
  weft_replica_load all[WEFT_REPLICAS_MAX], own[WEFT_REPLICAS_MAX][WEFT_SIM_TENANTS];
  uint64_t n_given[WEFT_REPLICAS_MAX];
} weft_sim_router;

/* 0, or an exit code after one line. */
int weft_sim_router_open(const weft_lab_config *config, const weft_sim_load *load, weft_sim_router *out);
void weft_sim_router_close(weft_sim_router *router);
/* The replica for this item; it has one request more from now on. pool: [n_replicas] where by_prefix. prompt:
 * [load->longest], scratch. */
uint32_t weft_sim_router_take(weft_sim_router *router, const weft_sim_load *load, const weft_sim_item *item,
                              const weft_sent_pool *pool, int32_t *prompt);
void weft_sim_router_ended(weft_sim_router *router, uint32_t replica, const weft_sim_item *item);

#endif
