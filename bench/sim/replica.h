/* SPDX-License-Identifier: MIT */
/* One replica: engine and pager as they are, over fake runners; around each runner a layer that
 * gives its steps their time and ends canvases early.
 *
 * Law. The device of a replica computes one step after the other, over all its models, each as long
 * as the profile says. A step that is submitted starts when the one before has ended; collecting it
 * moves the replica's clock to its end. A canvas stops after a number of steps that depends on
 * request and canvas alone; a step of it that was submitted beyond that is void, and takes its time
 * all the same. A replica that fails or is replaced does so between two steps: what runs there breaks, its cache is
 * gone, and it is as it was when it was opened. */
#ifndef WEFT_BENCH_SIM_REPLICA_H
#define WEFT_BENCH_SIM_REPLICA_H

#include "bench/lab/lab.h"
#include "bench/sim/sim.h"
#include "bench/sim/told.h"

typedef struct weft_sim_replica weft_sim_replica;

/* A request as the replicas see it. */
typedef struct weft_sim_request {
  weft_sim_replica *replica;
  weft_request *handle; /* NULL: not submitted, refused, or over */
  bool started, ended;
  uint32_t next_ended; /* index + 1 */
} weft_sim_request;

/* What all replicas share. */
typedef struct weft_sim_world {
  const weft_lab_config *config;
  const weft_sim_profile *profile;
  const weft_sim_load *load;
  weft_sim_run *run;
  weft_sim_request *request; /* [load.n] */
  int32_t *prompt;           /* [load.longest], scratch */
  uint32_t n_present;        /* tenants of the load */
  weft_sim_index *index;     /* replicas tell it of their caches; NULL: they tell nothing */
  weft_sim_names names;
} weft_sim_world;

weft_status weft_sim_replica_open(weft_sim_world *world, uint32_t index, weft_sim_replica **out, weft_error *error);
/* All its requests were released. NULL is fine. */
void weft_sim_replica_close(weft_sim_replica *replica);
/* Forgets request `at`, whatever became of it. NULL: no replica had it. */
void weft_sim_replica_release(weft_sim_replica *replica, uint32_t at);

/* The time of its next turn; UINT64_MAX: it has nothing to do. */
uint64_t weft_sim_replica_next(const weft_sim_replica *replica);
/* Gives it request `at`, at its time of arrival. A refusal is an outcome, not a failure. */
weft_status weft_sim_replica_submit(weft_sim_replica *replica, uint32_t at, weft_error *error);
void weft_sim_replica_cancel(weft_sim_replica *replica, uint32_t at);
weft_status weft_sim_replica_turn(weft_sim_replica *replica, weft_error *error);
/* Forgets a request that ended until now. Returns its number + 1; 0: there is none. */
uint32_t weft_sim_replica_settle(weft_sim_replica *replica);
/* From this time on it has nothing: neither requests, all of which have ended, nor a cache. */
weft_status weft_sim_replica_renew(weft_sim_replica *replica, uint64_t now_us, weft_error *error);
/* Ends request `at` of it as failed, if it had not ended; settle gives it back. */
void weft_sim_replica_break(weft_sim_replica *replica, uint32_t at, uint64_t now_us);
/* Requests that it has and that have not ended. */
uint32_t weft_sim_replica_live(const weft_sim_replica *replica);
weft_sent_pool weft_sim_replica_pool(weft_sim_replica *replica);
/* When it had nothing more to do. */
uint64_t weft_sim_replica_end(const weft_sim_replica *replica);
/* Counts at the end of the whole run; an error names a broken contract. */
weft_status weft_sim_replica_finish(weft_sim_replica *replica, uint64_t end_us, weft_error *error);

#endif
