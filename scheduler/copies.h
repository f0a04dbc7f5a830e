/* SPDX-License-Identifier: MIT */
/* Ends of page copies: the runners say which copies failed, and which copies to and from the spill file have ended.
 *
 * Law. The pager hears of them before the next plan, so no plan relies on content whose copy has failed. Engine
 * thread. */
#ifndef WEFT_SCHEDULER_COPIES_H
#define WEFT_SCHEDULER_COPIES_H

#include "scheduler/state.h"

/* Asks a runner and tells the pager; once in every turn, and after every submit. */
void weft_copies_hear(weft_engine *engine);

#endif
