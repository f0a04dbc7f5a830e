/* SPDX-License-Identifier: MIT */
/* Visits: work of another thread that needs the pager, and so is done by the engine's thread, a piece in each turn.
 *
 * Law. One visit is under way at a time; the others wait. The engine's thread calls it at the end of a turn until it
 * says that it is done, and goes on with requests between the pieces, so a piece must be short, and allocate nothing.
 * Where no thread runs the engine, who visits makes its turns meanwhile. Nobody who has no visit pays more than one
 * load for it. */
#ifndef WEFT_SCHEDULER_VISIT_H
#define WEFT_SCHEDULER_VISIT_H

#include <pthread.h>
#include <stdatomic.h>

#include "pager/saved.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weft_visit_answer {
  WEFT_VISIT_DONE = 0,
  WEFT_VISIT_AGAIN = 1, /* in the next turn, which comes at once */
  WEFT_VISIT_LATER = 2  /* in the next turn, when something that the engine waits for has ended */
} weft_visit_answer;

typedef weft_visit_answer (*weft_visit)(void *self, weft_pager *pager);

typedef struct weft_visits {
  pthread_mutex_t one, mutex; /* one: of who visits; mutex: of what follows */
  pthread_cond_t ended;
  bool is_open;
  _Atomic bool wanted;
  weft_visit visit;
  void *self;
} weft_visits;

weft_status weft_visits_open(weft_visits *visits); /* NO_MEMORY */
void weft_visits_close(weft_visits *visits);       /* what was not opened is fine */
/* ---- who visits, any thread but the engine's ---- */

/* Waits until no other visit is under way, and asks for this one; the caller sees to it that the engine has turns. */
void weft_visits_begin(weft_visits *visits, weft_visit visit, void *self);
static inline bool weft_visits_wanted(weft_visits *visits) {
  return atomic_load(&visits->wanted);
}
/* Waits for the visit's end, or for a moment. True: it has not ended. */
bool weft_visits_wait(weft_visits *visits);
/* After it. */
void weft_visits_end(weft_visits *visits);

/* ---- the engine's thread ---- */

/* The end of a turn. True: the next turn should come at once. */
bool weft_visits_turn(weft_visits *visits, weft_pager *pager);

#ifdef __cplusplus
}
#endif
#endif
