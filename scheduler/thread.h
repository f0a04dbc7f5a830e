/* SPDX-License-Identifier: MIT */
/* The loop on a thread of its own.
 *
 * Law. When a turn found nothing to do, the thread sleeps until a note in the inbox or the next deadline; it never
 * spins. Both functions are called by the thread that opened the engine, or one at a time. */
#ifndef WEFT_SCHEDULER_THREAD_H
#define WEFT_SCHEDULER_THREAD_H

#include "scheduler/state.h"

weft_status weft_thread_start(weft_engine *engine);
/* Ends the thread, if there is one, and all requests with CANCELLED. */
void weft_thread_stop(weft_engine *engine);

#endif
