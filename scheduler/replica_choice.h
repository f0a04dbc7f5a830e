/* SPDX-License-Identifier: MIT */
/* Which replica gets a request (replicas.h). A pure function.
 *
 * Law. Work is counted in rows: a replica has those that its requests may need, waiting or running, each counted whole
 * until it ends. Of the replicas whose device works, and of these of those where the request's tenant may run one more
 * at once, if there are any, the least busy one says what is much busier: more by above the request's own rows, and
 * by above a quarter. Of those that are not much busier the one that was sent the longest beginning of the prompt gets
 * the request; of equals the least busy one, then the one that was given fewest rows since the start, so that idle
 * replicas fill their caches in turn, then the first. So equal states give equal choices, a shared prefix keeps its
 * requests together, and a popular one spreads before one replica alone has all the work. The bound is that of
 * consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2016), which the router of the simulation
 * has (bench/sim/router.h), with the longest known prefix in place of a hash. */
#ifndef WEFT_SCHEDULER_REPLICA_CHOICE_H
#define WEFT_SCHEDULER_REPLICA_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct weft_replica_view {
  bool works, has_room; /* its device; for one more running request of the tenant */
  uint64_t n_rows;      /* that its requests may need */
  uint64_t n_given;     /* rows of all requests since the start */
  uint32_t n_found;     /* tokens of the prompt's longest beginning that it was sent */
} weft_replica_view;

static inline bool weft_replica_is_better(const weft_replica_view *a, const weft_replica_view *b) {
  if (a->n_found != b->n_found) return a->n_found > b->n_found;
  if (a->n_rows != b->n_rows) return a->n_rows < b->n_rows;
  return a->n_given < b->n_given;
}

/* own_rows: of the request. Where no device works: 0, whose engine says why. */
static inline uint32_t weft_replica_choose(const weft_replica_view *view, uint32_t n, uint64_t own_rows) {
  uint64_t least = UINT64_MAX;
  uint32_t best = n;
  bool any_room = false;
  for (uint32_t i = 0; i < n; i++) any_room = any_room || (view[i].works && view[i].has_room);
  for (uint32_t i = 0; i < n; i++) {
    bool may = view[i].works && (view[i].has_room || !any_room);
    if (may && view[i].n_rows < least) least = view[i].n_rows;
  }
  uint64_t slack = own_rows > least / 4 ? own_rows : least / 4;
  for (uint32_t i = 0; i < n; i++) {
    bool may = view[i].works && (view[i].has_room || !any_room) && view[i].n_rows - least <= slack;
    if (may && (best == n || weft_replica_is_better(&view[i], &view[best]))) best = i;
  }
  return best < n ? best : 0;
}

#endif
