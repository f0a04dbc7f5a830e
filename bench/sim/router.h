/* SPDX-License-Identifier: MIT */
/* The router in front of several replicas.
 *
 * Law. `hash`: consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2016). A
 * replica has many points on a ring. The key of a request is the chain hash over the leading full
 * blocks of its prompt, its sharing domain and its model; the request goes to the first replica
 * from its key on whose load stays within `bound` times the mean, this request included. So equal
 * prefixes meet, a popular prefix overflows always to the same next replicas, and no replica has
 * more than ceil(bound * m / n) of the m requests in flight. With --copies N it goes to the one of the first N from its
 * key on that has the least load, if that stays within the bound. With --move-s each tenant has another key in every
 * period of so many seconds, whose beginning is drawn for each tenant.
 * `index`: to the replica that has most of the prompt, as its cache events said (index.h), among those whose load stays
 * within the bound; of equals to that with the least load, then to the one that was given fewest requests.
 * `round-robin`: in turn. `prefix`: as weft serve --split replicas chooses, by the same functions
 * (scheduler/replica_choice.h, scheduler/sent_prefixes.h). With --replay a file chooses (assignment.h).
 *
 * A load is the number of requests routed and not ended, as far as the router has heard: of an end it hears
 * --router-lag-ms late. A replica that is away or leaves is passed over by all of them, at once: it refuses, and the
 * router tries the next one. */
#ifndef WEFT_BENCH_SIM_ROUTER_H
#define WEFT_BENCH_SIM_ROUTER_H

#include "bench/sim/sim.h"
#include "bench/sim/told.h"

typedef struct weft_sim_point {
  uint64_t at;
  uint32_t replica;
} weft_sim_point;

/* The end of a request that the router has not heard of. */
typedef struct weft_sim_ended {
  uint64_t at_us;
  uint32_t replica, item;
} weft_sim_ended;

typedef enum weft_sim_rule { WEFT_SIM_HASH, WEFT_SIM_ROUND_ROBIN, WEFT_SIM_PREFIX, WEFT_SIM_INDEX } weft_sim_rule;

typedef struct weft_sim_router {
  const weft_lab_config *config;
  const weft_sim_load *requests;
  weft_sim_rule rule;
  uint32_t n_replicas, n_points, next;
  double bound;
  weft_sim_point *point; /* by place on the ring */
  uint32_t load[WEFT_SIM_REPLICAS], n_live, n_serving;
  bool passed_over[WEFT_SIM_REPLICAS]; /* it is away or leaves */
  weft_sim_ended *ended;               /* [requests->n], in order of time */
  uint32_t n_ended, n_heard;
  uint32_t *replay;                  /* [requests->n]; NULL: it chooses itself */
  uint64_t n_spilled;                /* requests that their first replica had no room for */
  uint64_t given[WEFT_SIM_REPLICAS]; /* requests; PREFIX: rows that they may need */
  /* PREFIX: requests routed and not ended, by tenant too; rows of all that were routed. */
  weft_sent_prefixes sent;
  weft_replica_load all[WEFT_REPLICAS_MAX], own[WEFT_REPLICAS_MAX][WEFT_SIM_TENANTS];
  /* INDEX */
  weft_sim_index index;
  const weft_sim_names *names;
  uint64_t *key; /* [requests->longest] */
  uint64_t n_credited;
} weft_sim_router;

enum { WEFT_SIM_NOBODY = UINT32_MAX };

/* names: borrowed. 0, or an exit code after one line. */
int weft_sim_router_open(const weft_lab_config *config, const weft_sim_load *load, const weft_sim_names *names,
                         weft_sim_router *out);
void weft_sim_router_close(weft_sim_router *router);
/* The replica for a request of the load that arrives now; it has one request more from now on. pool: [n_replicas] with
 * PREFIX. prompt: [longest], scratch. WEFT_SIM_NOBODY: no replica serves. */
uint32_t weft_sim_router_take(weft_sim_router *router, uint32_t item, const weft_sent_pool *pool, int32_t *prompt);
/* A request ended at this time, which is never less than in the call before. */
void weft_sim_router_ended(weft_sim_router *router, uint32_t replica, uint32_t item, uint64_t now_us);
/* Whether a replica gets requests. */
void weft_sim_router_pass_over(weft_sim_router *router, uint32_t replica, bool passed_over);

#endif
