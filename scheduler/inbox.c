/* SPDX-License-Identifier: MIT */
#include "scheduler/inbox.h"

#include <string.h>

#include "base/check.h"
#include "base/condition.h"
#include "base/memory.h"
#include "pager/pager.h"
#include "scheduler/queue_share.h"

static void free_inbox(weft_inbox *inbox) {
  weft_free(inbox->of);
  weft_free(inbox->tenant);
  weft_free(inbox->taken);
}

weft_status weft_inbox_open(weft_inbox *inbox, weft_places *places) {
  memset(inbox, 0, sizeof *inbox);
  inbox->of = weft_alloc(places->n_tenants, sizeof *inbox->of);
  inbox->tenant = weft_alloc(places->n_tenants, sizeof *inbox->tenant);
  inbox->taken = weft_alloc(places->n_tenants, sizeof *inbox->taken);
  bool good = inbox->of != NULL && inbox->tenant != NULL && inbox->taken != NULL;
  if (!good || weft_condition_open(&inbox->changed) != WEFT_OK) {
    free_inbox(inbox);
    return WEFT_E_NO_MEMORY;
  }
  inbox->places = places;
  inbox->last = &inbox->first;
  weft_list_init(&inbox->evicted);
  return WEFT_OK;
}

void weft_inbox_close(weft_inbox *inbox) {
  (void)pthread_cond_destroy(&inbox->changed);
  free_inbox(inbox);
}

static void lock_inbox(weft_inbox *inbox) {
  (void)pthread_mutex_lock(&inbox->places->mutex);
}
static void unlock_inbox(weft_inbox *inbox) {
  (void)pthread_mutex_unlock(&inbox->places->mutex);
}

static void wake_engine(weft_inbox *inbox) {
  inbox->n_notes += 1;
  (void)pthread_cond_signal(&inbox->changed);
}

static void note_and_unlock(weft_inbox *inbox) {
  wake_engine(inbox);
  unlock_inbox(inbox);
}

/* ---- which requests have a place; all under the mutex ------------------------------------------ */

static weft_request *unstarted_at(weft_link *link) {
  return WEFT_OF_LINK(link, weft_request, unstarted_link);
}

static void leave_queue(weft_account *account, weft_request *r) {
  weft_list_remove(&r->unstarted_link);
  account->n_unstarted -= 1;
}

/* It was judged by other limits than its tenant has now. */
static bool is_old(const weft_inbox *inbox, const weft_request *r) {
  return r->limits != inbox->places->account[r->tenant].limits;
}

static void count_live(weft_inbox *inbox, const weft_request *r) {
  inbox->all.n_requests += 1;
  inbox->all.n_rows += r->n_rows;
  inbox->of[r->tenant].n_requests += 1;
  inbox->of[r->tenant].n_rows += r->n_rows;
  inbox->tenant[r->tenant].n_old += is_old(inbox, r);
  inbox->places->n_live += 1;
}

/* The place of the request is free from now on. */
static void leave_engine(weft_request *r) {
  weft_inbox *inbox = r->inbox;
  weft_account *account = &inbox->places->account[r->tenant];
  if (r->place == WEFT_PLACE_UNSTARTED) leave_queue(account, r);
  if (r->place != WEFT_PLACE_RUNNING) account->n_waiting -= 1;
  account->n_live -= 1;
  inbox->all.n_requests -= 1;
  inbox->all.n_rows -= r->n_rows;
  inbox->of[r->tenant].n_requests -= 1;
  inbox->of[r->tenant].n_rows -= r->n_rows;
  inbox->tenant[r->tenant].n_old -= is_old(inbox, r);
  inbox->places->n_live -= 1;
}

/* The list whose newest requests give way first: requests of submissions of which a part has started come last. NULL:
 * there are none. */
static weft_link *gives_way_first(weft_account *account) {
  return !weft_list_empty(&account->unstarted)   ? &account->unstarted
         : !weft_list_empty(&account->remaining) ? &account->remaining
                                                 : NULL;
}

/* Evicts the newest submission of the tenant. Returns how many places that makes free. */
static uint32_t evict_newest(weft_account *account) {
  uint32_t n = 0;
  weft_link *list = gives_way_first(account);
  uint64_t submission = unstarted_at(list->prev)->submission;
  while (!weft_list_empty(list)) {
    weft_request *r = unstarted_at(list->prev);
    if (r->submission != submission) break;
    leave_engine(r);
    r->place = WEFT_PLACE_EVICTED;
    weft_list_push_back(&r->inbox->evicted, &r->evicted_link);
    wake_engine(r->inbox);
    account->n_evicted += 1;
    n += 1;
  }
  return n;
}

/* How many places the tenant would give, newest submissions first, until there are `wanted`. Evicts nothing. */
static uint32_t would_give(weft_account *account, weft_queue_part will_have, uint32_t wanted) {
  weft_queue_part part = {account->n_unstarted, account->weight};
  weft_link *lists[] = {&account->unstarted, &account->remaining};
  uint32_t n = 0;
  for (uint32_t i = 0; i < 2; i++) {
    weft_link *at = lists[i]->prev;
    while (n < wanted && at != lists[i] && weft_queue_part_is_larger(part, will_have)) {
      uint64_t submission = unstarted_at(at)->submission;
      for (; at != lists[i] && unstarted_at(at)->submission == submission; at = at->prev) {
        part.n -= 1;
        n += 1;
      }
    }
  }
  return n;
}

/* Makes places for n requests of a tenant, by evicting requests of other tenants where queue_share.h says so. Returns
 * how many are missing; if any are, none was evicted. */
static uint32_t make_room(weft_places *places, uint32_t tenant, uint32_t n) {
  uint64_t n_wanted = (uint64_t)places->n_live + n;
  uint32_t missing = n_wanted > places->live_max ? (uint32_t)(n_wanted - places->live_max) : 0, n_found = 0;
  const weft_account *own = &places->account[tenant];
  weft_queue_part will_have = {own->n_unstarted + n, own->weight}, part[WEFT_OWNER_OPERATOR];
  if (missing == 0) return 0;
  for (uint32_t i = 0; i < places->n_tenants; i++) {
    weft_account *account = &places->account[i];
    part[i] = (weft_queue_part){account->n_unstarted, account->weight};
    if (i != tenant && n_found < missing) n_found += would_give(account, will_have, missing - n_found);
  }
  if (n_found < missing) return missing;
  for (uint32_t n_made = 0; n_made < missing;) {
    uint32_t who = weft_queue_who_gives_way(part, places->n_tenants, tenant, will_have);
    WEFT_CHECK(who < places->n_tenants); /* would_give found them by the same comparison */
    n_made += evict_newest(&places->account[who]);
    part[who].n = places->account[who].n_unstarted;
  }
  return 0;
}

static weft_status judge_limits(weft_request *const *request, uint32_t n, uint64_t n_tokens, uint64_t now_us,
                                weft_shortage *shortage, weft_error *error) {
  weft_places *places = request[0]->inbox->places;
  uint32_t tenant = request[0]->tenant;
  *shortage = (weft_shortage){.why = WEFT_REFUSED_NONE};
  for (uint32_t i = 0; i < n; i++) {
    const weft_inbox *inbox = request[i]->inbox;
    if (inbox->closed) return weft_fail(error, WEFT_FULL, "the engine has stopped and takes no new requests");
    if (inbox->draining) return weft_fail(error, WEFT_FULL, "the engine is draining and takes no new requests");
  }
  weft_account *account = &places->account[tenant];
  weft_status status = weft_account_check(account, n, n_tokens, now_us, shortage, error);
  if (status == WEFT_OK) {
    shortage->n_places = make_room(places, tenant, n);
    if (shortage->n_places > 0) {
      shortage->why = WEFT_REFUSED_QUEUE;
      status = weft_fail(error, WEFT_FULL, "the queue is full: there are %u requests, and may be %u; come again later",
                         places->n_live, places->live_max);
    }
  }
  if (status != WEFT_OK) {
    account->n_refused[shortage->why] += n;
    for (uint32_t i = 0; i < n; i++) places->n_refused[request[i]->lane][shortage->why] += 1;
  }
  return status;
}

static void append_request(weft_account *account, weft_request *r) {
  weft_inbox *inbox = r->inbox;
  r->submission = inbox->places->n_submissions;
  r->place = WEFT_PLACE_UNSTARTED;
  weft_list_push_back(&account->unstarted, &r->unstarted_link);
  r->inbox_next = NULL;
  *inbox->last = r;
  inbox->last = &r->inbox_next;
  count_live(inbox, r);
  wake_engine(inbox);
}

weft_status weft_inboxes_put(weft_request *const *request, uint32_t n, uint64_t n_tokens, uint64_t now_us,
                             weft_shortage *shortage, weft_error *error) {
  weft_inbox *first = request[0]->inbox;
  lock_inbox(first);
  weft_status status = judge_limits(request, n, n_tokens, now_us, shortage, error);
  if (status == WEFT_OK) {
    weft_account *account = &first->places->account[request[0]->tenant];
    weft_account_take(account, n_tokens);
    first->places->n_submissions += 1;
    for (uint32_t i = 0; i < n; i++) append_request(account, request[i]);
    account->n_live += n;
    account->n_waiting += n;
    account->n_unstarted += n;
  }
  unlock_inbox(first);
  return status;
}

/* The first request of a submission starts: the others, which lie beside it in the list, are no longer first to give
 * way. */
static void part_starts(weft_account *account, weft_request *first) {
  weft_link *at = &first->unstarted_link;
  while (at->prev != &account->unstarted && unstarted_at(at->prev)->submission == first->submission) at = at->prev;
  while (at != &account->unstarted && unstarted_at(at)->submission == first->submission) {
    weft_link *next = at->next;
    unstarted_at(at)->submission_started = true;
    weft_list_remove(at);
    weft_list_push_back(&account->remaining, at);
    at = next;
  }
}

bool weft_inbox_start(weft_inbox *inbox, weft_request *r) {
  weft_account *account = &inbox->places->account[r->tenant];
  lock_inbox(inbox);
  bool evicted = r->place == WEFT_PLACE_EVICTED;
  if (!evicted) {
    if (r->place == WEFT_PLACE_UNSTARTED) {
      if (!r->submission_started) part_starts(account, r);
      leave_queue(account, r);
    }
    r->place = WEFT_PLACE_RUNNING;
    account->n_waiting -= 1;
  }
  unlock_inbox(inbox);
  return !evicted;
}

void weft_inbox_preempt(weft_inbox *inbox, weft_request *r) {
  lock_inbox(inbox);
  r->place = WEFT_PLACE_PREEMPTED;
  inbox->places->account[r->tenant].n_waiting += 1;
  unlock_inbox(inbox);
}

void weft_inbox_end(weft_inbox *inbox, weft_request *r, uint32_t n_unused, uint64_t now_us) {
  lock_inbox(inbox);
  if (r->place == WEFT_PLACE_EVICTED) {
    weft_list_remove(&r->evicted_link);
  } else {
    leave_engine(r);
  }
  r->place = WEFT_PLACE_NONE;
  weft_account *account = &inbox->places->account[r->tenant];
  /* what was taken from a bucket of another size, or from none, is not given back to this one */
  if ((int32_t)(r->limits - account->tokens_limits) >= 0) weft_account_give_back(account, n_unused, now_us);
  unlock_inbox(inbox);
}

/* ---- notes ----------------------------------------------------------------------------------- */

void weft_inbox_cancel(weft_inbox *inbox, weft_request *request) {
  lock_inbox(inbox);
  request->cancel_next = inbox->cancelled;
  inbox->cancelled = request;
  note_and_unlock(inbox);
}

void weft_inbox_drain(weft_inbox *inbox) {
  lock_inbox(inbox);
  inbox->draining = true;
  note_and_unlock(inbox);
}

void weft_inbox_reset_cache(weft_inbox *inbox) {
  lock_inbox(inbox);
  inbox->reset_cache = true;
  note_and_unlock(inbox);
}

void weft_inboxes_change_tenant(weft_inbox *const *inbox, uint32_t n, uint32_t tenant, const weft_tenant_config *all,
                                const weft_tenant_config *each, uint64_t now_us) {
  weft_places *places = inbox[0]->places;
  (void)pthread_mutex_lock(&places->mutex);
  weft_account_change(&places->account[tenant], all, places->running_max, now_us);
  for (uint32_t i = 0; i < n; i++) {
    weft_inbox_tenant *t = &inbox[i]->tenant[tenant];
    t->config = each[i];
    t->n_old = inbox[i]->of[tenant].n_requests;
    inbox[i]->n_changed += !t->changed;
    t->changed = true;
    wake_engine(inbox[i]);
  }
  (void)pthread_mutex_unlock(&places->mutex);
}

void weft_inbox_poke(weft_inbox *inbox) {
  lock_inbox(inbox);
  note_and_unlock(inbox);
}

void weft_inbox_stop(weft_inbox *inbox) {
  lock_inbox(inbox);
  inbox->stop = true;
  note_and_unlock(inbox);
}

uint32_t weft_inbox_n_live(weft_inbox *inbox) {
  lock_inbox(inbox);
  uint32_t n = inbox->all.n_requests;
  unlock_inbox(inbox);
  return n;
}

bool weft_inbox_draining(weft_inbox *inbox) {
  lock_inbox(inbox);
  bool draining = inbox->draining;
  unlock_inbox(inbox);
  return draining;
}

/* A change is taken again in every turn until the requests that are older than it have ended. */
static void take_changes(weft_inbox *inbox, weft_inbox_notes *notes) {
  for (uint32_t i = 0; inbox->n_changed > 0 && i < inbox->places->n_tenants; i++) {
    weft_inbox_tenant *t = &inbox->tenant[i];
    if (!t->changed) continue;
    t->changed = t->n_old > 0;
    inbox->n_changed -= !t->changed;
    inbox->taken[notes->n_changes++] =
        (weft_tenant_change){.config = t->config, .tenant = i, .none_old = t->n_old == 0};
  }
  notes->change = inbox->taken;
}

void weft_inbox_take(weft_inbox *inbox, weft_inbox_notes *notes) {
  lock_inbox(inbox);
  *notes =
      (weft_inbox_notes){.submitted = inbox->first, .cancelled = inbox->cancelled, .reset_cache = inbox->reset_cache};
  weft_list_init(&notes->evicted);
  weft_list_splice_back(&notes->evicted, &inbox->evicted);
  take_changes(inbox, notes);
  inbox->first = NULL;
  inbox->last = &inbox->first;
  inbox->cancelled = NULL;
  inbox->reset_cache = false;
  inbox->n_taken_notes = inbox->n_notes;
  unlock_inbox(inbox);
}

void weft_inbox_get_load(weft_inbox *inbox, uint32_t tenant, weft_replica_load *all, weft_replica_load *own) {
  lock_inbox(inbox);
  *all = inbox->all;
  *own = inbox->of[tenant];
  unlock_inbox(inbox);
}

bool weft_inbox_sleep(weft_inbox *inbox, uint64_t until_us) {
  bool in_time = true;
  lock_inbox(inbox);
  while (inbox->n_notes == inbox->n_taken_notes && !inbox->stop && in_time) {
    in_time = weft_condition_wait(&inbox->changed, &inbox->places->mutex, until_us);
  }
  bool go_on = !inbox->stop;
  unlock_inbox(inbox);
  return go_on;
}

bool weft_inbox_stopping(weft_inbox *inbox) {
  lock_inbox(inbox);
  bool stop = inbox->stop;
  unlock_inbox(inbox);
  return stop;
}

void weft_inbox_set_closed(weft_inbox *inbox, bool closed) {
  lock_inbox(inbox);
  inbox->closed = closed;
  if (!closed) inbox->stop = false;
  unlock_inbox(inbox);
}
