/* SPDX-License-Identifier: MIT */
/* The inbox of an engine: the only place where other threads meet the engine thread. Submitted, cancelled and evicted
 * requests lie in lists until the engine thread takes them all at once. Here it is decided what happens when the queue
 * is full: inbox.c refuses a submission with FULL, or evicts requests for it as queue_share.h says.
 *
 * Law. The inbox is bounded by the places (places.h), which the inboxes of several engines may share. A submission gets
 * places for all of its requests or for none, to whichever inboxes they go.
 *
 * When places are short, queue_share.h says which submissions give theirs; that is decided at once, under the mutex.
 * The evicted requests are counted out and noted, and the engine thread ends them before it admits any request. If a
 * request is evicted after the engine thread took its notes, weft_inbox_start says so when the request is about to
 * start; so no evicted request ever runs. A request that ends for another reason first takes its note back: it ends
 * once.
 *
 * The limits of a tenant change in its account and in the notes of every inbox at once (weft_inboxes_change_tenant), so
 * what is submitted later is judged by the new ones, and each engine thread takes them at its next turn. n_old counts
 * the live requests that were judged by earlier limits.
 *
 * Everything here is under the mutex of the places, held for a few instructions. The engine thread sleeps on `changed`
 * and never misses a note, because notes are counted. */
#ifndef WEFT_SCHEDULER_INBOX_H
#define WEFT_SCHEDULER_INBOX_H

#include "scheduler/places.h"
#include "scheduler/replica_choice.h"
#include "scheduler/request.h"

/* What an engine shall know of a tenant that has changed. */
typedef struct weft_tenant_change {
  weft_tenant_config config;
  uint32_t tenant;
  bool none_old; /* no request that was judged by earlier limits is left in this engine */
} weft_tenant_change;

typedef struct weft_inbox_tenant {
  weft_tenant_config config;
  uint32_t n_old; /* of this engine's live requests, those judged by other limits than the account's */
  bool changed;   /* the engine thread has not taken it, or requests that are older than it are left */
} weft_inbox_tenant;

typedef struct weft_inbox {
  weft_places *places; /* borrowed */
  pthread_cond_t changed;
  weft_request *first, **last; /* submitted, in order; linked by inbox_next */
  weft_request *cancelled;     /* linked by cancel_next */
  weft_link evicted;           /* requests whose place was taken, linked by evicted_link */
  weft_replica_load all, *of;  /* the requests of this engine that have a place; of: [n_tenants] */
  weft_inbox_tenant *tenant;   /* [n_tenants] */
  weft_tenant_change *taken;   /* [n_tenants], the engine thread's: what it took last */
  uint32_t n_changed;          /* of tenant[] */
  uint64_t n_notes, n_taken_notes;
  bool draining, closed, stop, reset_cache;
} weft_inbox;

/* What the engine thread takes out of the inbox at the start of a turn. */
typedef struct weft_inbox_notes {
  weft_request *submitted, *cancelled;
  weft_link evicted;
  const weft_tenant_change *change; /* [n_changes], until the next take */
  uint32_t n_changes;
  bool reset_cache;
} weft_inbox_notes;

/* places: borrowed until close. */
weft_status weft_inbox_open(weft_inbox *inbox, weft_places *places);
void weft_inbox_close(weft_inbox *inbox);

/* ---- any thread ---- */

/* Puts each of n requests into its own inbox (weft_request.inbox; all of the same places), or none. They belong to one
 * tenant. FULL with a line when the tenant's account or the queue has no place, or when an inbox is draining or closed
 * (shortage->why is then WEFT_REFUSED_NONE); RATE_LIMIT when the account has too few tokens. n_tokens: tokens that the
 * requests may use together, prompts and longest answers. */
weft_status weft_inboxes_put(weft_request *const *request, uint32_t n, uint64_t n_tokens, uint64_t now_us,
                             weft_shortage *shortage, weft_error *error);
/* Gives a tenant other limits: those of all in its account, and each[i] to the engine of inbox[i], of the same places.
 * Takes no memory. */
void weft_inboxes_change_tenant(weft_inbox *const *inbox, uint32_t n, uint32_t tenant, const weft_tenant_config *all,
                                const weft_tenant_config *each, uint64_t now_us);
/* Notes that the request is cancelled. Takes over one reference to the request, which the caller gives. */
void weft_inbox_cancel(weft_inbox *inbox, weft_request *request);
void weft_inbox_drain(weft_inbox *inbox);
void weft_inbox_reset_cache(weft_inbox *inbox);
/* Wakes the engine thread without a note of its own. */
void weft_inbox_poke(weft_inbox *inbox);
/* Tells the engine thread to end. */
void weft_inbox_stop(weft_inbox *inbox);
uint32_t weft_inbox_n_live(weft_inbox *inbox);
bool weft_inbox_draining(weft_inbox *inbox);
/* How busy the engine is: with all requests, and with those of the tenant. */
void weft_inbox_get_load(weft_inbox *inbox, uint32_t tenant, weft_replica_load *all, weft_replica_load *own);

/* ---- engine thread --------------------------------------------------------------------------- */

void weft_inbox_take(weft_inbox *inbox, weft_inbox_notes *notes);
/* Counts a request that starts to run, for the first time or again. False: it was evicted since the notes were taken,
 * and must end. */
bool weft_inbox_start(weft_inbox *inbox, weft_request *request);
/* Counts a request that ran and waits again. */
void weft_inbox_preempt(weft_inbox *inbox, weft_request *request);
/* A request ended: its tenant's account gets back n_unused of the tokens that the account gave for it. */
void weft_inbox_end(weft_inbox *inbox, weft_request *request, uint32_t n_unused, uint64_t now_us);
/* Sleeps until there is a note, or until until_us (UINT64_MAX: no limit) of the monotonic clock. False: the thread
 * shall end. */
bool weft_inbox_sleep(weft_inbox *inbox, uint64_t until_us);
bool weft_inbox_stopping(weft_inbox *inbox);
/* Refuses all requests from now on (closed), or takes them again. */
void weft_inbox_set_closed(weft_inbox *inbox, bool closed);

#endif
