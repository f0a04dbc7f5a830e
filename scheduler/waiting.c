/* SPDX-License-Identifier: MIT */
#include "scheduler/waiting.h"

#include "base/memory.h"
#include "scheduler/cost.h"

enum {
  FILE_BYTES_PER_US = 1024, /* until moves have been measured */
  FILE_WAIT_US = 200000,    /* shortest wait that a request is given */
  FILE_WAITS_MAX = 8        /* of one request */
};

weft_status weft_waiting_open(weft_engine *e) {
  uint32_t n_requests = e->config.running_max + e->config.waiting_max;
  uint32_t n_seqs = e->config.running_max + e->config.pins_max;
  weft_list_init(&e->file_waits.whole);
  weft_list_init(&e->file_waits.list);
  e->file_waits.patience = 1;
  e->file_waits.page_us = (double)e->lane[0].info->page_bytes / FILE_BYTES_PER_US;
  e->followers = weft_alloc(n_seqs, sizeof *e->followers);
  if (e->followers == NULL) return WEFT_E_NO_MEMORY;
  for (uint32_t i = 0; i < n_seqs; i++) weft_list_init(&e->followers[i].list);
  if (weft_deadlines_open(&e->following, n_requests) != WEFT_OK) return WEFT_E_NO_MEMORY;
  return weft_deadlines_open(&e->file_waits.until, n_requests);
}

void weft_waiting_close(weft_engine *e) {
  weft_deadlines_close(&e->file_waits.until);
  weft_deadlines_close(&e->following);
  weft_free(e->followers);
}

/* ---- queues ---------------------------------------------------------------------------------- */

static void count_waiting(weft_engine *e, const weft_request *r, int32_t change) {
  e->lane[r->lane].n_waiting += (uint32_t)change;
  e->stats.n_waiting += (uint32_t)change;
}

void weft_waiting_enqueue(weft_engine *e, weft_request *r) {
  e->n_changes += 1;
  weft_tenants_enqueue(&e->tenants, r);
  count_waiting(e, r, 1);
}

void weft_waiting_dequeue(weft_engine *e, weft_request *r) {
  weft_list_remove(&r->link);
  count_waiting(e, r, -1);
  if (e->claims.waiter == r) e->claims.waiter = NULL;
  weft_deadlines_remove(&e->file_waits.until, &r->wait.file_at);
  weft_deadlines_remove(&e->following, &r->wait.follow_at);
  e->file_waits.n_pages -= r->wait.file_pages;
  r->wait.file_pages = 0;
  if (r->wait.leader == WEFT_SEQ_NONE) {
    weft_tenants_dequeued(&e->tenants, r);
  } else {
    r->wait.leader = WEFT_SEQ_NONE;
    e->lane[r->lane].n_deferred -= 1;
  }
}

/* Back to its queue, near the head. */
static void come_back(weft_engine *e, weft_request *r) {
  weft_waiting_dequeue(e, r);
  r->wait.retry_plan = e->n_plans;
  weft_waiting_enqueue(e, r);
}

/* It leaves its queue and still waits, for the leader. */
static void defer_request(weft_engine *e, weft_request *r, weft_seq leader) {
  weft_waiting_dequeue(e, r);
  count_waiting(e, r, 1);
  r->wait.leader = leader;
  e->lane[r->lane].n_deferred += 1;
}

/* ---- followers ------------------------------------------------------------------------------- */

void weft_waiting_follow(weft_engine *e, weft_request *r, weft_seq leader, uint32_t wake_at) {
  weft_followers *f = &e->followers[leader];
  defer_request(e, r, leader);
  r->wait.wake_at = wake_at;
  r->wait.followed_from = weft_pager_n_valid(e->pager, leader);
  if (weft_list_empty(&f->list) || wake_at < f->wake_at) f->wake_at = wake_at;
  weft_list_push_back(&f->list, &r->link);
  weft_deadlines_add(&e->following, e->n_plans + WEFT_FOLLOW_PLANS, r, &r->wait.follow_at);
}

void weft_waiting_end_follows(weft_engine *e) {
  weft_request *r;
  while ((r = weft_deadlines_expired(&e->following, e->n_plans)) != NULL) {
    r->wait.follow_none = weft_pager_n_valid(e->pager, r->wait.leader) == r->wait.followed_from;
    come_back(e, r);
  }
}

void weft_waiting_wake(weft_engine *e, weft_seq seq, uint32_t n_valid) {
  weft_followers *f = &e->followers[seq];
  if (weft_list_empty(&f->list) || n_valid < f->wake_at) return;
  weft_link all, *link;
  weft_list_init(&all);
  weft_list_splice_back(&all, &f->list);
  f->wake_at = UINT32_MAX;
  while ((link = weft_list_pop_front(&all)) != NULL) {
    weft_request *r = WEFT_OF_LINK(link, weft_request, link);
    if (n_valid >= r->wait.wake_at) {
      come_back(e, r);
      continue;
    }
    if (r->wait.wake_at < f->wake_at) f->wake_at = r->wait.wake_at;
    weft_list_push_back(&f->list, link);
  }
}

/* ---- for the file ---------------------------------------------------------------------------- */

static bool file_hangs(const weft_engine *e) {
  weft_pager_stats stats = weft_pager_get_stats(e->pager);
  return stats.n_lifting + stats.n_sinking > 0 && e->now_us > e->file_waits.heard_us + FILE_WAIT_US;
}

bool weft_waiting_may_wait_for_file(const weft_engine *e, const weft_request *r) {
  if (e->config.n_file_pages == 0 || r->wait.n_file_waits >= FILE_WAITS_MAX) return false;
  return !file_hangs(e);
}

void weft_waiting_for_file(weft_engine *e, weft_request *r, uint32_t n_pages) {
  weft_file_waits *f = &e->file_waits;
  double us = weft_cost_row_us(&e->lane[r->lane].cost) * r->n_tokens * f->patience;
  defer_request(e, r, WEFT_LEADER_FILE);
  e->stats.n_file_waits += 1;
  r->wait.n_file_waits += 1;
  r->wait.file_pages = n_pages;
  f->n_pages += n_pages;
  weft_deadlines_add(&f->until, e->now_us + (uint64_t)(us < FILE_WAIT_US ? FILE_WAIT_US : us), r, &r->wait.file_at);
  weft_list_push_back(n_pages > 0 ? &f->whole : &f->list, &r->link);
}

static weft_request *first_of(const weft_link *list) {
  return weft_list_empty(list) ? NULL : WEFT_OF_LINK(list->next, weft_request, link);
}

static void end_long_waits(weft_engine *e) {
  weft_file_waits *f = &e->file_waits;
  weft_request *r;
  while ((r = weft_deadlines_expired(&f->until, e->now_us)) != NULL) {
    if (r->wait.file_pages == 0 && !file_hangs(e)) { /* its turn will come */
      weft_deadlines_remove(&f->until, &r->wait.file_at);
      weft_deadlines_add(&f->until, e->now_us + FILE_WAIT_US, r, &r->wait.file_at);
      continue;
    }
    e->stats.n_file_waits_in_vain += 1;
    r->wait.n_file_waits = FILE_WAITS_MAX;
    come_back(e, r);
  }
}

void weft_waiting_wake_from_file(weft_engine *e) {
  weft_file_waits *f = &e->file_waits;
  weft_request *r;
  if (e->config.n_file_pages == 0) return;
  end_long_waits(e);
  weft_pager_stats stats = weft_pager_get_stats(e->pager);
  if (stats.n_lifting + stats.n_sinking == 0) f->heard_us = e->now_us;
  if (stats.n_lifting > 0) return;
  while ((r = first_of(&f->whole)) != NULL) come_back(e, r);
  if ((r = first_of(&f->list)) != NULL) come_back(e, r);
}

static void end_list(weft_engine *e, const weft_link *list, uint32_t lane) {
  for (weft_link *link = list->next, *next; link != list; link = next) {
    next = link->next;
    weft_request *r = WEFT_OF_LINK(link, weft_request, link);
    if (r->lane == lane) come_back(e, r);
  }
}

void weft_waiting_end_file(weft_engine *e, uint32_t lane) {
  end_list(e, &e->file_waits.whole, lane);
  end_list(e, &e->file_waits.list, lane);
}
