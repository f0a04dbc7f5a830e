/* SPDX-License-Identifier: MIT */
/* The inbox: the only place where other threads meet the engine thread. Submitted and cancelled
 * requests lie in two lists until the engine takes both at once.
 *
 * Law. Bounded: n_waiting counts requests that were submitted or preempted and do not run; at
 * waiting_max put refuses. Everything here is under one mutex, held for a few instructions. The
 * engine sleeps on `changed` and never misses a note: notes are counted. */
#ifndef WEFT_SCHEDULER_INBOX_H
#define WEFT_SCHEDULER_INBOX_H

#include "scheduler/account.h"
#include "scheduler/request.h"

typedef struct weft_inbox {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  weft_request *first, **last; /* submitted, in order; linked by inbox_next */
  weft_request *cancelled;     /* linked by cancel_next */
  uint32_t n_waiting, waiting_max;
  uint32_t n_live, live_max; /* submitted and not finished */
  weft_account *account;     /* [n_tenants], the caller's */
  uint64_t n_notes, n_taken_notes;
  bool draining, closed, stop, reset_cache;
} weft_inbox;

typedef struct weft_inbox_notes {
  weft_request *submitted, *cancelled;
  bool reset_cache;
} weft_inbox_notes;

/* account: one per tenant, borrowed until close. */
weft_status weft_inbox_open(weft_inbox *inbox, uint32_t waiting_max, uint32_t running_max, weft_account *account);
void weft_inbox_close(weft_inbox *inbox);

/* ---- any thread ---- */

/* FULL with a line when the queue or the tenant's account says no (*why says which), or when draining
 * or closed (*why is WEFT_REFUSED_NONE). */
weft_status weft_inbox_put(weft_inbox *inbox, weft_request *request, uint64_t now_us, weft_refused *why,
                           weft_error *error);
/* Takes over one reference, given by the caller. */
void weft_inbox_cancel(weft_inbox *inbox, weft_request *request);
void weft_inbox_drain(weft_inbox *inbox);
void weft_inbox_reset_cache(weft_inbox *inbox);
/* Something elsewhere wants the engine's attention. */
void weft_inbox_poke(weft_inbox *inbox);
/* The engine thread shall end. */
void weft_inbox_stop(weft_inbox *inbox);
uint32_t weft_inbox_n_live(weft_inbox *inbox);
bool weft_inbox_draining(weft_inbox *inbox);
/* A copy of a tenant's account. */
weft_account weft_inbox_account(weft_inbox *inbox, uint32_t tenant);

/* ---- engine thread --------------------------------------------------------------------------- */

weft_inbox_notes weft_inbox_take(weft_inbox *inbox);
/* A request began (-1) or ceased (+1) to run, or one that waited ended (-1). */
void weft_inbox_count_waiting(weft_inbox *inbox, uint32_t tenant, int32_t change);
/* A request ended and used less by so many tokens than it took. */
void weft_inbox_count_finished(weft_inbox *inbox, uint32_t tenant, uint32_t n_unused, uint64_t now_us);
/* Sleeps until there is a note, or until_us (UINT64_MAX: no limit) on the monotonic clock. False:
 * stop was asked. */
bool weft_inbox_sleep(weft_inbox *inbox, uint64_t until_us);
bool weft_inbox_stopping(weft_inbox *inbox);
/* Refuses all requests from now on (closed), or takes them again. */
void weft_inbox_set_closed(weft_inbox *inbox, bool closed);

#endif
