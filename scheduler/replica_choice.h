/* SPDX-License-Identifier: MIT */
/* Which replica gets a request of a tenant (replicas.h). A pure function.
 *
 * Law. A replica is busy with its requests, waiting or running, and with the rows that these may need, each counted
 * whole until it ends. It is much busier than another one that has fewer requests when it has more than twice as many
 * and one, and not fewer rows. The replicas are narrowed down, where that leaves any, to those
 *   whose device works,
 *   where the tenant may run one more request at once,
 *   that are not much busier than the one of these with the fewest requests,
 *   that are not much busier with requests of the tenant than that one of these which has the fewest of its requests.
 * Of what is left the one that may have most of the prompt's beginning (sent_prefixes.h) gets the request; of equals
 * that with the fewest rows of the tenant, then the fewest of all, then the one that was given fewest rows since the
 * start, so that idle replicas fill their caches in turn, then the first. So equal states give equal choices; a shared
 * prefix keeps its requests together, a popular one, which all replicas come to have, does not; and a tenant with much
 * work has it on every replica, so that it gets its share of each (share.h). The bound is like that of consistent
 * hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2016), which the router of the simulation has
 * (bench/sim/router.h), with the longest known prefix in place of a hash; docs/sim.md compares them. */
#ifndef WEFT_SCHEDULER_REPLICA_CHOICE_H
#define WEFT_SCHEDULER_REPLICA_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

enum { WEFT_REPLICAS_MAX = 16 };

/* Requests, and the rows that they may need. */
typedef struct weft_replica_load {
  uint64_t n_rows;
  uint32_t n_requests;
} weft_replica_load;

typedef struct weft_replica_view {
  bool works, has_room;       /* its device; for one more running request of the tenant */
  weft_replica_load all, own; /* own: of the tenant */
  uint64_t n_given;           /* rows of all requests since the start */
  uint32_t n_found;           /* tokens of the prompt's beginning that it may have */
} weft_replica_view;

static inline bool weft_replica_is_better(const weft_replica_view *a, const weft_replica_view *b) {
  if (a->n_found != b->n_found) return a->n_found > b->n_found;
  if (a->own.n_rows != b->own.n_rows) return a->own.n_rows < b->own.n_rows;
  if (a->all.n_rows != b->all.n_rows) return a->all.n_rows < b->all.n_rows;
  return a->n_given < b->n_given;
}

/* left: one bit for each replica that is left. Those of them that are not much busier than the one with the fewest
 * requests. */
static inline uint32_t weft_replicas_leave_busy(const weft_replica_load *load, uint32_t n, uint32_t left) {
  uint32_t least = n, kept = 0;
  for (uint32_t i = 0; i < n; i++) {
    if ((left >> i & 1) != 0 && (least == n || load[i].n_requests < load[least].n_requests)) least = i;
  }
  for (uint32_t i = 0; i < n; i++) {
    if ((left >> i & 1) == 0) continue;
    bool many = load[i].n_requests > 2 * (uint64_t)load[least].n_requests + 1;
    if (!many || load[i].n_rows < load[least].n_rows) kept |= 1u << i;
  }
  return kept;
}

/* n: 1 .. WEFT_REPLICAS_MAX. Where no device works: 0, whose engine says why. */
static inline uint32_t weft_replica_choose(const weft_replica_view *view, uint32_t n) {
  weft_replica_load all[WEFT_REPLICAS_MAX], own[WEFT_REPLICAS_MAX];
  uint32_t left = 0, with_room = 0, best = n;
  for (uint32_t i = 0; i < n; i++) {
    all[i] = view[i].all;
    own[i] = view[i].own;
    if (view[i].works) left |= 1u << i;
    if (view[i].works && view[i].has_room) with_room |= 1u << i;
  }
  if (with_room != 0) left = with_room;
  left = weft_replicas_leave_busy(all, n, left);
  left = weft_replicas_leave_busy(own, n, left);
  for (uint32_t i = 0; i < n; i++) {
    if ((left >> i & 1) != 0 && (best == n || weft_replica_is_better(&view[i], &view[best]))) best = i;
  }
  return best < n ? best : 0;
}

#endif
