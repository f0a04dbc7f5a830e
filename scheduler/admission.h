/* SPDX-License-Identifier: MIT */
/* Admission: decides what should happen to the waiting request that is due (vLLM: the step from waiting to running).
 * It asks the pager, which pins the cached prefix of a request that may start; it changes no request and lets go of
 * nothing that was held before. perform.c acts.
 *
 * Law. No request is admitted while a running request lacks memory, nor in a plan that preempted a request, except on
 * the debts below. A request starts only when the pages of all its tokens can be had besides a margin for the running
 * requests.
 *
 * The first request that does not fit becomes the waiter (claims.h). On any lane only two kinds of requests pass it:
 * requests that are due before it, and requests whose tenant has no more than its share where the tenant of the waiter
 * would have more. Both kinds have used less than the waiter's tenant and stop passing as soon as they have not, so
 * the waiter starts once enough pages have come free.
 *
 * A tenant that would not exceed its share of places or pages does not wait until a request ends: the running request
 * that came last, of the tenants beyond their share, is preempted for it (debt.h). What comes free is set aside for
 * the waiter on every lane. Neither an earlier preemption in the plan nor a starved request of the debtor keeps it
 * from starting.
 *
 * A request whose prefix is being computed by another request follows that request's sequence, and others pass it
 * meanwhile. So does a request whose prefix comes up from the spill file.
 *
 * A sibling of a running request (n, best_of) forks that request's sequence where the prompt ends. If either of them
 * will write into the last block of the prompt, that block is copied at once: then no block that one sequence reads is
 * written by another, and a shared block never costs a page later. */
#ifndef WEFT_SCHEDULER_ADMISSION_H
#define WEFT_SCHEDULER_ADMISSION_H

#include "scheduler/debt.h"
#include "scheduler/planning.h"

typedef enum weft_admission_kind {
  WEFT_ADMIT_NOBODY = 0,  /* no further request may start in this plan */
  WEFT_ADMIT_START = 1,   /* the request starts, with the sequence seq */
  WEFT_ADMIT_FOLLOW = 2,  /* it follows the sequence `leader` until that has wake_at valid tokens */
  WEFT_ADMIT_FILE = 3,    /* it waits for the file; n_pages as in weft_waiting_for_file */
  WEFT_ADMIT_LIMITED = 4, /* its tenant's limit of blocks is reached: no request of the tenant starts for some plans */
  WEFT_ADMIT_PASS = 5,    /* no request of its tenant starts in this plan; requests of other tenants may */
  /* It lacks n_pages pages. The victim, if there is one, is preempted, and no further request starts in this plan;
   * without a victim the same happens as with PASS. */
  WEFT_ADMIT_NO_ROOM = 6,
  /* It lacks a place that is owed to it. The victim, if there is one, is preempted; no further request starts. */
  WEFT_ADMIT_CLAIM = 7,
  WEFT_ADMIT_PIN = 8 /* it has room once a pin of lower priority gives way, and is then to be asked about again */
} weft_admission_kind;

typedef struct weft_admission {
  weft_admission_kind kind;
  /* The request that the verdict is about: the waiter, where the request that was asked about must let the waiter
   * pass. */
  weft_request *request;
  weft_request *asked;  /* NO_ROOM: the request that was asked about */
  weft_request *victim; /* NO_ROOM, CLAIM: the running request to preempt, or NULL */
  weft_seq seq, leader; /* START: the sequence, which the request owns from now on; FOLLOW: the sequence it follows */
  uint32_t n_cached;    /* START: tokens whose keys and values the sequence already has */
  uint32_t wake_at;     /* FOLLOW */
  uint32_t n_pages;     /* NO_ROOM, FILE */
  weft_debt_of lacks;   /* NO_ROOM, CLAIM: what is short */
  bool keeps_waiter;    /* NO_ROOM: the present waiter fits its tenant's share and this request does not: it stays */
} weft_admission;

weft_admission weft_admission_decide(weft_planning *planning, weft_request *request);

/* Whether a tenant calls the lane out of its turn. Such a tenant is of the highest level there is, has no more than
 * its share of places, and its clock is behind that of a tenant with running requests; and a waiting request of it
 * would start on the lane now or claim what is owed to it, or a prompt of it on the lane is not computed yet. Gives
 * the clock of that tenant, the least if there are several. UINT64_MAX - 1: there is no such tenant, but the waiter of
 * claims.h would start on this lane, or its starved request would go on, and other requests wait for it. UINT64_MAX:
 * the lane is not called. */
uint64_t weft_admission_call(const weft_engine *engine, const weft_lane *lane);
/* Some lane is called by a tenant with the given clock. A tenant on this lane comes before it if its clock is further
 * behind and it is of the highest level, whatever places it has, and if a prompt of it is not computed yet or a waiting
 * request of it would start. Gives the least clock of such tenants. The given clock: there is none, or a request of any
 * lane lacks pages, so that a step for such a tenant might be in vain. */
uint64_t weft_admission_behind(const weft_engine *engine, const weft_lane *lane, uint64_t clock);

#endif
