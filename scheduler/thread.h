/* SPDX-License-Identifier: MIT */
/* The loop on a thread of its own.
 *
 * Law: it sleeps when a turn found nothing to do, until a note in the inbox or the next deadline;
 * it never spins. */
#ifndef WEFT_SCHEDULER_THREAD_H
#define WEFT_SCHEDULER_THREAD_H

#include "scheduler/state.h"

weft_status weft_thread_start(weft_engine *engine);
/* Ends the thread, if there is one, and all requests with CANCELLED. */
void weft_thread_stop(weft_engine *engine);

#endif
