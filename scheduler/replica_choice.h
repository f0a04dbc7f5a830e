/* SPDX-License-Identifier: MIT */
/* Which replica gets a request of a tenant (replicas.h). A pure function.
 *
 * Law. Work is counted in rows: a replica has those that its requests may need, waiting or running, each counted whole
 * until it ends. A replica is much busier than another one by more than the request's own rows that is also more than
 * a quarter. The replicas are narrowed down, where that leaves any, to those
 *   whose device works,
 *   where the tenant may run one more request at once,
 *   that are not much busier than the least busy of these,
 *   that are not much busier with requests of the tenant than that one of these which has least of it.
 * Of what is left the one that was sent the longest beginning of the prompt gets the request; of equals that with least
 * of the tenant, then the least busy one, then the one that was given fewest rows since the start, so that idle
 * replicas fill their caches in turn, then the first. So equal states give equal choices; a shared prefix keeps its
 * requests together, and a popular one spreads before one replica alone has all the work; and a tenant with much work
 * has it on every replica, so that it gets its share of each (share.h). The bound is that of consistent hashing with
 * bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2016), which the router of the simulation has
 * (bench/sim/router.h), with the longest known prefix in place of a hash. */
#ifndef WEFT_SCHEDULER_REPLICA_CHOICE_H
#define WEFT_SCHEDULER_REPLICA_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct weft_replica_view {
  bool works, has_room; /* its device; for one more running request of the tenant */
  uint64_t n_rows;      /* that its requests may need */
  uint64_t n_own_rows;  /* of them, of the tenant's */
  uint64_t n_given;     /* rows of all requests since the start */
  uint32_t n_found;     /* tokens of the prompt's longest beginning that it was sent */
} weft_replica_view;

static inline bool weft_replica_is_better(const weft_replica_view *a, const weft_replica_view *b) {
  if (a->n_found != b->n_found) return a->n_found > b->n_found;
  if (a->n_own_rows != b->n_own_rows) return a->n_own_rows < b->n_own_rows;
  if (a->n_rows != b->n_rows) return a->n_rows < b->n_rows;
  return a->n_given < b->n_given;
}

/* left: one bit for each replica. Those whose load is not much above the least of them. */
static inline uint32_t weft_replicas_leave_busy(const uint64_t *load, uint32_t n, uint32_t left, uint64_t own_rows) {
  uint64_t least = UINT64_MAX;
  uint32_t kept = 0;
  for (uint32_t i = 0; i < n; i++) {
    if ((left >> i & 1) != 0 && load[i] < least) least = load[i];
  }
  uint64_t slack = own_rows > least / 4 ? own_rows : least / 4;
  for (uint32_t i = 0; i < n; i++) {
    if ((left >> i & 1) != 0 && load[i] - least <= slack) kept |= 1u << i;
  }
  return kept;
}

/* own_rows: of the request; n at most 8. Where no device works: 0, whose engine says why. */
static inline uint32_t weft_replica_choose(const weft_replica_view *view, uint32_t n, uint64_t own_rows) {
  uint64_t all[8], own[8];
  uint32_t left = 0, with_room = 0, best = n;
  for (uint32_t i = 0; i < n; i++) {
    all[i] = view[i].n_rows;
    own[i] = view[i].n_own_rows;
    if (view[i].works) left |= 1u << i;
    if (view[i].works && view[i].has_room) with_room |= 1u << i;
  }
  if (with_room != 0) left = with_room;
  left = weft_replicas_leave_busy(all, n, left, own_rows);
  left = weft_replicas_leave_busy(own, n, left, own_rows);
  for (uint32_t i = 0; i < n; i++) {
    if ((left >> i & 1) != 0 && (best == n || weft_replica_is_better(&view[i], &view[best]))) best = i;
  }
  return best < n ? best : 0;
}

#endif
