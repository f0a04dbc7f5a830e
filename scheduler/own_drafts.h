/* SPDX-License-Identifier: MIT */
/* Drafts that a lane's runner makes itself (model/runner/runner.h, draft), from a drafter that reads the keys of the
 * model it drafts for.
 *
 * Law. They are made where a step is planned, behind the choice of its depth, by one call for all requests that may
 * have a run in it and of which nothing is in flight; each then has its guesses as n-grams have theirs. The call reads
 * pages of running requests, all of which were computed by steps before, and changes nothing of them; it is part of the
 * time of the step (depth.h). Where it fails there are no drafts, and the next step says why. */
#ifndef WEFT_SCHEDULER_OWN_DRAFTS_H
#define WEFT_SCHEDULER_OWN_DRAFTS_H

#include "scheduler/planning.h"

void weft_own_drafts_make(weft_planning *planning);

#endif
