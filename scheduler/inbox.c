/* SPDX-License-Identifier: MIT */
#include "scheduler/inbox.h"

#include <string.h>
#include <time.h>

weft_status weft_inbox_open(weft_inbox *inbox, uint32_t waiting_max, uint32_t running_max, weft_account *account) {
  memset(inbox, 0, sizeof *inbox);
  pthread_condattr_t attributes;
  if (pthread_condattr_init(&attributes) != 0) return WEFT_E_NO_MEMORY;
  (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  int bad = pthread_cond_init(&inbox->changed, &attributes);
  (void)pthread_condattr_destroy(&attributes);
  if (bad != 0) return WEFT_E_NO_MEMORY;
  if (pthread_mutex_init(&inbox->mutex, NULL) != 0) {
    (void)pthread_cond_destroy(&inbox->changed);
    return WEFT_E_NO_MEMORY;
  }
  inbox->last = &inbox->first;
  inbox->account = account;
  inbox->waiting_max = waiting_max;
  inbox->live_max = waiting_max + running_max;
  return WEFT_OK;
}

void weft_inbox_close(weft_inbox *inbox) {
  (void)pthread_mutex_destroy(&inbox->mutex);
  (void)pthread_cond_destroy(&inbox->changed);
}

static void lock(weft_inbox *inbox) {
  (void)pthread_mutex_lock(&inbox->mutex);
}
static void unlock(weft_inbox *inbox) {
  (void)pthread_mutex_unlock(&inbox->mutex);
}

static void note_and_unlock(weft_inbox *inbox) {
  inbox->n_notes += 1;
  (void)pthread_cond_signal(&inbox->changed);
  unlock(inbox);
}

/* Under the mutex. */
static weft_status judge(weft_inbox *inbox, const weft_request *request, uint64_t now_us, weft_refused *why,
                         weft_error *error) {
  *why = WEFT_REFUSED_NONE;
  if (inbox->closed) {
    return weft_fail(error, WEFT_FULL, "the engine has stopped and takes no new requests");
  }
  if (inbox->draining) {
    return weft_fail(error, WEFT_FULL, "the engine is draining and takes no new requests");
  }
  weft_account *account = &inbox->account[request->tenant];
  if (inbox->n_waiting >= inbox->waiting_max || inbox->n_live >= inbox->live_max) {
    *why = WEFT_REFUSED_QUEUE;
    account->n_refused[*why] += 1;
    return weft_fail(error, WEFT_FULL, "the queue is full: %u requests wait; come again later", inbox->waiting_max);
  }
  return weft_account_take(account, request->n_prompt + request->size.answer_max, now_us, why, error);
}

weft_status weft_inbox_put(weft_inbox *inbox, weft_request *request, uint64_t now_us, weft_refused *why,
                           weft_error *error) {
  lock(inbox);
  weft_status status = judge(inbox, request, now_us, why, error);
  if (status != WEFT_OK) {
    unlock(inbox);
    return status;
  }
  inbox->n_waiting += 1;
  inbox->n_live += 1;
  request->inbox_next = NULL;
  *inbox->last = request;
  inbox->last = &request->inbox_next;
  note_and_unlock(inbox);
  return WEFT_OK;
}

void weft_inbox_cancel(weft_inbox *inbox, weft_request *request) {
  lock(inbox);
  request->cancel_next = inbox->cancelled;
  inbox->cancelled = request;
  note_and_unlock(inbox);
}

void weft_inbox_drain(weft_inbox *inbox) {
  lock(inbox);
  inbox->draining = true;
  note_and_unlock(inbox);
}

void weft_inbox_reset_cache(weft_inbox *inbox) {
  lock(inbox);
  inbox->reset_cache = true;
  note_and_unlock(inbox);
}

void weft_inbox_poke(weft_inbox *inbox) {
  lock(inbox);
  note_and_unlock(inbox);
}

void weft_inbox_stop(weft_inbox *inbox) {
  lock(inbox);
  inbox->stop = true;
  note_and_unlock(inbox);
}

uint32_t weft_inbox_n_live(weft_inbox *inbox) {
  lock(inbox);
  uint32_t n = inbox->n_live;
  unlock(inbox);
  return n;
}

bool weft_inbox_draining(weft_inbox *inbox) {
  lock(inbox);
  bool draining = inbox->draining;
  unlock(inbox);
  return draining;
}

weft_inbox_notes weft_inbox_take(weft_inbox *inbox) {
  lock(inbox);
  weft_inbox_notes notes = {
      .submitted = inbox->first, .cancelled = inbox->cancelled, .reset_cache = inbox->reset_cache};
  inbox->first = NULL;
  inbox->last = &inbox->first;
  inbox->cancelled = NULL;
  inbox->reset_cache = false;
  inbox->n_taken_notes = inbox->n_notes;
  unlock(inbox);
  return notes;
}

void weft_inbox_count_waiting(weft_inbox *inbox, uint32_t tenant, int32_t change) {
  lock(inbox);
  uint32_t *own = &inbox->account[tenant].n_waiting;
  inbox->n_waiting = (uint32_t)((int32_t)inbox->n_waiting + change);
  *own = (uint32_t)((int32_t)*own + change);
  unlock(inbox);
}

void weft_inbox_count_finished(weft_inbox *inbox, uint32_t tenant, uint32_t n_unused, uint64_t now_us) {
  lock(inbox);
  inbox->n_live -= 1;
  weft_account_give_back(&inbox->account[tenant], n_unused, now_us);
  unlock(inbox);
}

weft_account weft_inbox_account(weft_inbox *inbox, uint32_t tenant) {
  lock(inbox);
  weft_account account = inbox->account[tenant];
  unlock(inbox);
  return account;
}

bool weft_inbox_sleep(weft_inbox *inbox, uint64_t until_us) {
  struct timespec until = {.tv_sec = (time_t)(until_us / 1000000), .tv_nsec = (long)(until_us % 1000000 * 1000)};
  int waited = 0;
  lock(inbox);
  while (inbox->n_notes == inbox->n_taken_notes && !inbox->stop && waited == 0) {
    waited = until_us == UINT64_MAX ? pthread_cond_wait(&inbox->changed, &inbox->mutex)
                                    : pthread_cond_timedwait(&inbox->changed, &inbox->mutex, &until);
  }
  bool go_on = !inbox->stop;
  unlock(inbox);
  return go_on;
}

bool weft_inbox_stopping(weft_inbox *inbox) {
  lock(inbox);
  bool stop = inbox->stop;
  unlock(inbox);
  return stop;
}

void weft_inbox_set_closed(weft_inbox *inbox, bool closed) {
  lock(inbox);
  inbox->closed = closed;
  if (!closed) inbox->stop = false;
  unlock(inbox);
}
