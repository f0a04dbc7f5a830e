/* SPDX-License-Identifier: MIT */
/* What happens to replicas: they fail, they are replaced by new ones (an upgrade), and they come back.
 *
 * Law. A replica that serves fails after a time drawn from the exponential distribution with the mean of --fail-s; when
 * is a function of the seed, the replica and how often it had failed. From --upgrade-s on, --upgrade-at-once replicas
 * at a time leave, those with the lowest numbers first: one that leaves takes no more requests and goes when it has
 * none. Whoever failed or went is back after --away-s, and the next ones leave when all of these are back. Every
 * replica that is there when its turn comes is replaced once; one that is away then comes back new anyway. */
#ifndef WEFT_BENCH_SIM_FATE_H
#define WEFT_BENCH_SIM_FATE_H

#include "bench/lab/lab.h"
#include "bench/sim/sim.h"
#include "bench/sim/turns.h"

typedef enum weft_sim_fate_kind {
  WEFT_SIM_NOTHING,
  WEFT_SIM_FAILS,
  WEFT_SIM_LEAVES,
  WEFT_SIM_RETURNS
} weft_sim_fate_kind;
typedef enum weft_sim_duty { WEFT_SIM_ON_DUTY, WEFT_SIM_LEAVING, WEFT_SIM_AWAY } weft_sim_duty;

typedef struct weft_sim_fates {
  weft_sim_turns turns; /* when each replica fails or comes back */
  uint64_t seed, mean_us, away_us;
  uint64_t batch_us; /* when the next ones leave; UINT64_MAX: not before those are back who left, or never */
  uint32_t n, at_once;
  uint32_t next, n_batch, n_out; /* of the upgrade: whose turn is next; still to leave now; left and not back */
  uint64_t upgraded_us;          /* when the last one was back; 0: not yet */
  uint8_t duty[WEFT_SIM_REPLICAS];
  bool in_upgrade[WEFT_SIM_REPLICAS];
  uint32_t n_failed[WEFT_SIM_REPLICAS];
} weft_sim_fates;

typedef struct weft_sim_fate {
  weft_sim_fate_kind kind;
  uint32_t replica;
} weft_sim_fate;

/* False: memory was refused. close: whatever open returned, or zeros. */
bool weft_sim_fates_open(const weft_lab_config *config, weft_sim_fates *out);
void weft_sim_fates_close(weft_sim_fates *fates);
/* When something happens; UINT64_MAX: never. */
uint64_t weft_sim_fates_next(const weft_sim_fates *fates);
/* What happens then; it has happened. */
weft_sim_fate weft_sim_fates_take(weft_sim_fates *fates);
/* The failure that was taken happens later instead: its replica is in the middle of a step. */
void weft_sim_fates_put_off(weft_sim_fates *fates, uint32_t replica, uint64_t at_us);
/* It has failed, or it was leaving and has no request more: it is away from now on. */
void weft_sim_fates_gone(weft_sim_fates *fates, uint32_t replica, uint64_t now_us);

#endif
