/* SPDX-License-Identifier: MIT */
/* Starting threads.
 *
 * Law: every thread of the process that allocates is started here. A thread's first allocation may need memory that
 * later ones do not (jemalloc makes an arena for it, and ends the process by a fault where the address space has no
 * room for one). So the room is asked for before the thread is made, the thread allocates once before its function
 * begins, and who starts it waits for that: a thread that runs can be refused memory as any other, and a start without
 * room is refused with a line. */
#ifndef WEFT_BASE_THREADS_H
#define WEFT_BASE_THREADS_H

#include <pthread.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Runs run(self) on a new thread, to be joined by the caller. NO_MEMORY with one line: the system or the allocator
 * refused it. error may be NULL. */
weft_status weft_threads_start(pthread_t *out, void *(*run)(void *self), void *self, weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
