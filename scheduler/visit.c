/* SPDX-License-Identifier: MIT */
#include "scheduler/visit.h"

#include "base/clock.h"
#include "base/condition.h"

enum { LOOK_US = 200000 };

weft_status weft_visits_open(weft_visits *v) {
  (void)pthread_mutex_init(&v->one, NULL); /* neither can fail with default attributes on this system */
  (void)pthread_mutex_init(&v->mutex, NULL);
  v->is_open = weft_condition_open(&v->ended) == WEFT_OK;
  return v->is_open ? WEFT_OK : WEFT_E_NO_MEMORY;
}

void weft_visits_close(weft_visits *v) {
  if (!v->is_open) return;
  (void)pthread_cond_destroy(&v->ended);
  (void)pthread_mutex_destroy(&v->mutex);
  (void)pthread_mutex_destroy(&v->one);
}

bool weft_visits_turn(weft_visits *v, weft_pager *pager) {
  if (!atomic_load(&v->wanted)) return false;
  (void)pthread_mutex_lock(&v->mutex);
  weft_visit_answer answer = v->visit(v->self, pager);
  if (answer == WEFT_VISIT_DONE) {
    atomic_store(&v->wanted, false);
    (void)pthread_cond_signal(&v->ended);
  }
  (void)pthread_mutex_unlock(&v->mutex);
  return answer == WEFT_VISIT_AGAIN;
}

bool weft_visits_wait(weft_visits *v) {
  (void)pthread_mutex_lock(&v->mutex);
  if (atomic_load(&v->wanted)) (void)weft_condition_wait(&v->ended, &v->mutex, weft_clock_us() + LOOK_US);
  bool waits = atomic_load(&v->wanted);
  (void)pthread_mutex_unlock(&v->mutex);
  return waits;
}

void weft_visits_begin(weft_visits *v, weft_visit visit, void *self) {
  (void)pthread_mutex_lock(&v->one);
  (void)pthread_mutex_lock(&v->mutex);
  v->visit = visit;
  v->self = self;
  atomic_store(&v->wanted, true);
  (void)pthread_mutex_unlock(&v->mutex);
}

void weft_visits_end(weft_visits *v) {
  (void)pthread_mutex_unlock(&v->one);
}
