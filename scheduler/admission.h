/* SPDX-License-Identifier: MIT */
/* Admission: what should happen to the waiting request that is due. Asks the pager, which pins the cached prefix of a
 * request that may start; changes no request. perform.c acts.
 *
 * Law. Nobody is admitted while a running request lacks memory or in a plan that preempted somebody. A request starts only
 * when the pages of all its tokens can be had besides a margin for those that run. The first that does not fit is passed
 * only by who is due before it, on no lane by anybody else: those have used less, and stop passing when they have not, so
 * it starts when enough has come free. A tenant that has less than its share of places or pages, and whose clock is
 * behind, does not wait until somebody ends: the last to come of a tenant beyond its share gives way. A request whose
 * prefix is being computed by another one follows that sequence, and others pass it meanwhile; likewise one whose prefix
 * comes up from the file. A sibling of a running request forks its sequence where the prompt ends; where one of both will
 * write there, it copies the last block at once, so that no block is written to that another reads, and a shared block
 * never costs a page later. */
#ifndef WEFT_SCHEDULER_ADMISSION_H
#define WEFT_SCHEDULER_ADMISSION_H

#include "scheduler/planning.h"

typedef enum weft_admission_kind {
  WEFT_ADMIT_NOBODY = 0,  /* nobody else may start in this plan */
  WEFT_ADMIT_START = 1,   /* with the sequence seq */
  WEFT_ADMIT_FOLLOW = 2,  /* leader, until it has wake_at valid tokens */
  WEFT_ADMIT_FILE = 3,    /* wait for the file; n_pages as in weft_waiting_for_file */
  WEFT_ADMIT_LIMITED = 4, /* its tenant's limit of blocks: nobody else of the tenant starts for some plans */
  WEFT_ADMIT_NO_ROOM = 5, /* it lacks n_pages: nobody else may start in this plan, the victim (or NULL) gives way */
  WEFT_ADMIT_CLAIM = 6    /* it lacks a place: nobody else may start in this plan, the victim gives way */
} weft_admission_kind;

typedef struct weft_admission {
  weft_admission_kind kind;
  weft_request *request; /* the one meant: another than the one asked about where that has to let it pass */
  weft_request *victim;
  weft_seq seq, leader;
  uint32_t n_cached, wake_at, n_pages;
} weft_admission;

weft_admission weft_admission_decide(weft_planning *planning, weft_request *request);

#endif
