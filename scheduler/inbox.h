/* SPDX-License-Identifier: MIT */
/* The inbox: the only place where other threads meet the engine thread. Submitted, cancelled and evicted requests lie in
 * lists until the engine takes them all at once.
 *
 * Law. Bounded: n_live counts requests that were submitted and have neither finished nor been evicted; it is never above
 * live_max, which is what may run at once and waiting_max more. A submission gets places for all of its requests or for
 * none. When places are short, queue_share.h says which submissions give theirs: at once, under the mutex. Their requests
 * are counted out and noted, and the engine thread ends them before it admits anybody; weft_inbox_start tells it of a
 * request that gave its place since then, so no evicted request ever runs. A request that ends on its own first takes its
 * note back: the end comes once. Everything here is under one mutex, held for a few instructions. The engine sleeps on
 * `changed` and never misses a note: notes are counted. */
#ifndef WEFT_SCHEDULER_INBOX_H
#define WEFT_SCHEDULER_INBOX_H

#include "scheduler/account.h"
#include "scheduler/request.h"

typedef struct weft_inbox {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  weft_request *first, **last; /* submitted, in order; linked by inbox_next */
  weft_request *cancelled;     /* linked by cancel_next */
  weft_link evicted;           /* by evicted_link */
  uint32_t n_live, live_max, waiting_max;
  uint64_t n_submissions;
  weft_account *account; /* [n_tenants], the caller's */
  uint32_t n_tenants;
  uint64_t n_notes, n_taken_notes;
  bool draining, closed, stop, reset_cache;
} weft_inbox;

typedef struct weft_inbox_notes {
  weft_request *submitted, *cancelled;
  weft_link evicted;
  bool reset_cache;
} weft_inbox_notes;

/* account: one per tenant, opened, borrowed until close. */
weft_status weft_inbox_open(weft_inbox *inbox, uint32_t waiting_max, uint32_t running_max, weft_account *account,
                            uint32_t n_tenants);
void weft_inbox_close(weft_inbox *inbox);

/* ---- any thread ---- */

/* All requests, which belong to one tenant, or none: FULL with a line when the tenant's account or the queue says no, or
 * when draining or closed (why: WEFT_REFUSED_NONE). n_tokens: what they may use together. */
weft_status weft_inbox_put(weft_inbox *inbox, weft_request *const *request, uint32_t n, uint64_t n_tokens,
                           uint64_t now_us, weft_shortage *shortage, weft_error *error);
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

void weft_inbox_take(weft_inbox *inbox, weft_inbox_notes *notes);
/* The request starts to run, for the first time or again. False: it was evicted, and must end. */
bool weft_inbox_start(weft_inbox *inbox, weft_request *request);
/* A request that ran waits again. */
void weft_inbox_preempt(weft_inbox *inbox, weft_request *request);
/* A request ended; n_unused of the tokens that were taken for it go back. */
void weft_inbox_end(weft_inbox *inbox, weft_request *request, uint32_t n_unused, uint64_t now_us);
/* Sleeps until there is a note, or until_us (UINT64_MAX: no limit) on the monotonic clock. False:
 * stop was asked. */
bool weft_inbox_sleep(weft_inbox *inbox, uint64_t until_us);
bool weft_inbox_stopping(weft_inbox *inbox);
/* Refuses all requests from now on (closed), or takes them again. */
void weft_inbox_set_closed(weft_inbox *inbox, bool closed);

#endif
