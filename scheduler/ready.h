/* SPDX-License-Identifier: MIT */
/* The requests of a lane that decode or denoise, in the order in which the next step serves them. Engine thread.
 *
 * Law. This is an array with holes. A request knows its place (ready_at) and leaves a hole when it goes, and no
 * request is moved during a walk. After pack at least as many places as the lane has slots are free of holes. It is an
 * array and not a list so that a walk can prefetch: a step touches every request once. */
#ifndef WEFT_SCHEDULER_READY_H
#define WEFT_SCHEDULER_READY_H

#include "scheduler/request.h"

#define WEFT_READY_NONE UINT32_MAX

typedef struct weft_ready {
  weft_request **at; /* [n_max]; NULL: a hole */
  weft_request **scratch;
  uint32_t *skipped; /* [n_max] */
  uint32_t n, n_holes, n_max, n_skipped;
  uint32_t n_decode; /* how many of the requests are autoregressive */
  uint32_t n_rows;   /* most rows that all of the requests can use in one step */
} weft_ready;

/* n_slots: most requests at once. */
weft_status weft_ready_open(weft_ready *ready, uint32_t n_slots);
void weft_ready_close(weft_ready *ready);
void weft_ready_append(weft_ready *ready, weft_request *request);
/* False: it is not there. */
bool weft_ready_remove(weft_ready *ready, weft_request *request);
/* Any request, NULL when empty. */
weft_request *weft_ready_any(const weft_ready *ready);
/* Closes the holes when there are many. Not during a walk. */
void weft_ready_pack(weft_ready *ready);
/* During a walk: place i wanted rows and got none. */
void weft_ready_skip(weft_ready *ready, uint32_t i);
/* After a walk that reached the places before `end`: the next order is the skipped ones, then those that were not
 * reached, then those that were served. */
void weft_ready_turn(weft_ready *ready, uint32_t end);

/* After rows were given out in another order than the array's: the requests that are not in the plan go first. */
void weft_ready_settle(weft_ready *ready, uint64_t plan_number);

/* Whether any of the requests denoises. */
static inline bool weft_ready_has_canvas(const weft_ready *ready) {
  return ready->n - ready->n_holes > ready->n_decode;
}

/* Place i, NULL: a hole or beyond the end. */
static inline weft_request *weft_ready_at(const weft_ready *ready, uint32_t i) {
  return i < ready->n ? ready->at[i] : NULL;
}

#endif
