/* SPDX-License-Identifier: MIT */
/* Deadlines: a binary heap of requests, earliest first, so that a step looks only at what has expired. Not locked.
 *
 * Law. heap[i].at_us <= heap[2i+1].at_us and heap[2i+2].at_us; *index, which lies in the owner, is the owner's place
 * in the heap. The heap borrows its owners. */
#ifndef WEFT_SCHEDULER_DEADLINE_H
#define WEFT_SCHEDULER_DEADLINE_H

#include <stdint.h>

#include "base/status.h"

#define WEFT_DEADLINE_NONE UINT32_MAX

typedef struct weft_deadline {
  uint64_t at_us;
  void *owner;
  uint32_t *index; /* in the owner: its place in the heap, WEFT_DEADLINE_NONE when in none */
} weft_deadline;

typedef struct weft_deadlines {
  weft_deadline *heap; /* [n_max] */
  uint32_t n, n_max;
} weft_deadlines;

weft_status weft_deadlines_open(weft_deadlines *deadlines, uint32_t n_max);
void weft_deadlines_close(weft_deadlines *deadlines);
void weft_deadlines_add(weft_deadlines *deadlines, uint64_t at_us, void *owner, uint32_t *index);
/* Does nothing when *index is WEFT_DEADLINE_NONE. */
void weft_deadlines_remove(weft_deadlines *deadlines, uint32_t *index);
/* The owner of the earliest deadline, if that is <= now_us, else NULL. The owner stays in the heap. */
void *weft_deadlines_expired(const weft_deadlines *deadlines, uint64_t now_us);
/* The earliest, UINT64_MAX when there is none. */
uint64_t weft_deadlines_next_us(const weft_deadlines *deadlines);

#endif
