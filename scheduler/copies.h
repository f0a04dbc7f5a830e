/* SPDX-License-Identifier: MIT */
/* Ends of page copies: what runners tell of copies that failed, and of those to and from the file that ended.
 *
 * Law. The pager is told before the next plan, so no plan relies on content whose copy has failed. */
#ifndef WEFT_SCHEDULER_COPIES_H
#define WEFT_SCHEDULER_COPIES_H

#include "scheduler/state.h"

void weft_copies_hear(weft_engine *engine);

#endif
