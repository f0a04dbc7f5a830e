/* SPDX-License-Identifier: MIT */
/* Admission: what should happen to the waiting request that is due. Asks the pager, which pins the cached prefix of a
 * request that may start; changes no request. perform.c acts.
 *
 * Law. Nobody is admitted while a running request lacks memory or in a plan that preempted somebody. A request starts
 * only when the pages of all its tokens can be had besides a margin for those that run. The first that does not fit
 * waits and is passed, on any lane, only by a request that is due before it, or whose tenant has less than its share
 * where the waiting one's has not: those have used less, and stop passing when they have not, so it starts when enough
 * has come free. A tenant that has less than its share of places or pages, and whose clock is
 * behind, does not wait until somebody ends: the last to come of a tenant beyond its share gives way (debt.h), what
 * comes free is set aside for it on every lane (claims.h), and neither a preemption nor a running request of the
 * debtor that lacks memory keeps it from starting. A request whose
 * prefix is being computed by another one follows that sequence, and others pass it meanwhile; likewise one whose
 * prefix comes up from the file. A sibling of a running request forks its sequence where the prompt ends; where one of
 * both will write there, it copies the last block at once, so that no block is written to that another reads, and a
 * shared block never costs a page later. */
#ifndef WEFT_SCHEDULER_ADMISSION_H
#define WEFT_SCHEDULER_ADMISSION_H

#include "scheduler/debt.h"
#include "scheduler/planning.h"

typedef enum weft_admission_kind {
  WEFT_ADMIT_NOBODY = 0,  /* nobody else may start in this plan */
  WEFT_ADMIT_START = 1,   /* with the sequence seq */
  WEFT_ADMIT_FOLLOW = 2,  /* leader, until it has wake_at valid tokens */
  WEFT_ADMIT_FILE = 3,    /* wait for the file; n_pages as in weft_waiting_for_file */
  WEFT_ADMIT_LIMITED = 4, /* its tenant's limit of blocks: nobody else of the tenant starts for some plans */
  WEFT_ADMIT_PASS = 5,    /* nobody else of its tenant may start in this plan, others may */
  WEFT_ADMIT_NO_ROOM =
      6,               /* it lacks n_pages: the victim gives way and nobody else may start in this plan; NULL: PASS */
  WEFT_ADMIT_CLAIM = 7 /* it lacks a place that is owed to it: the victim (or NULL) gives way, nobody else may start */
} weft_admission_kind;

typedef struct weft_admission {
  weft_admission_kind kind;
  weft_request *request; /* the one meant: another than the one asked about where that has to let it pass */
  weft_request *asked;   /* NO_ROOM: the one asked about */
  weft_request *victim;
  weft_seq seq, leader;
  uint32_t n_cached, wake_at, n_pages;
  weft_debt_of lacks; /* NO_ROOM, CLAIM */
  bool keeps_waiter;  /* NO_ROOM: the present waiter has less than its share, this one has not: it stays the waiter */
} weft_admission;

weft_admission weft_admission_decide(weft_planning *planning, weft_request *request);

/* A lane is called out of its turn by a tenant of the highest level there is, with no more than its share of places,
 * that is behind somebody who runs: a waiting request of it would start now, or claim what it is owed, or a prompt of
 * it is not computed yet. The clock of that tenant, the least if there are several. UINT64_MAX - 1: nobody does, but
 * the waiter of claims.h would start on the lane, and others wait for it. UINT64_MAX: nobody calls. */
uint64_t weft_admission_call(const weft_engine *engine, const weft_lane *lane);

#endif
