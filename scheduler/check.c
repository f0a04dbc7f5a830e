/* SPDX-License-Identifier: MIT */
#include "scheduler/check.h"

#include "scheduler/pool_size.h"

typedef struct counts {
  uint32_t n_running, n_leaving, n_waiting, n_ready, n_decode;
} counts;

static bool is_on(const weft_request *r, const weft_lane *lane, weft_request_state state) {
  return r->lane == lane->index && r->state == state && r->seq != WEFT_SEQ_NONE;
}

/* The order of positions in request.h. Where nothing of a request is in flight, nothing is left of its rows but what is
 * valid. */
static const char *check_positions(const weft_request *r) {
  bool ordered = r->n_committed <= r->n_valid && r->n_valid <= r->n_planned && r->n_planned <= r->n_reserved;
  if (!ordered || r->n_valid > r->n_tokens) return "the positions of a request are out of order";
  if (!r->denoises && r->n_planned > r->n_tokens + r->n_pending)
    return "a request has rows for tokens that nobody draws";
  if (r->n_in_flight == 0 && (r->n_planned != r->n_valid || r->n_pending != 0))
    return "a request has nothing in flight, and rows that did not land";
  return NULL;
}

static const char *check_running(const weft_engine *e, const weft_lane *lane, counts *n) {
  for (const weft_link *at = lane->prefilling.next; at != &lane->prefilling; at = at->next) {
    const weft_request *r = WEFT_OF_LINK(at, weft_request, link);
    if (!is_on(r, lane, WEFT_REQUEST_RUNNING) || !r->prefilling) return "a prefilling request does not run here";
    const char *broken = check_positions(r);
    if (broken != NULL) return broken;
    n->n_running += 1;
  }
  for (uint32_t i = 0; i < lane->ready.n; i++) {
    const weft_request *r = lane->ready.at[i];
    if (r == NULL) continue;
    if (!is_on(r, lane, WEFT_REQUEST_RUNNING) || r->prefilling || r->ready_at != i)
      return "a ready request does not run here, or has tokens without rows";
    const char *broken = check_positions(r);
    if (broken != NULL) return broken;
    n->n_running += 1;
    n->n_ready += 1;
    n->n_decode += !r->denoises;
  }
  for (const weft_link *at = lane->leaving.next; at != &lane->leaving; at = at->next) {
    const weft_request *r = WEFT_OF_LINK(at, weft_request, link);
    if (!is_on(r, lane, WEFT_REQUEST_LEAVING) || r->n_in_flight == 0 || !e->rank[r->rank_at].excluded)
      return "a leaving request has nothing in flight";
    n->n_running += 1;
    n->n_leaving += 1;
  }
  if (lane->stay == WEFT_STAY_AWAY && n->n_running + lane->n_in_flight > 0)
    return "a lane is used and its model is away";
  if (n->n_running != lane->n_running) return "requests in the lists of a lane are not those that it counts as running";
  return n->n_decode == lane->ready.n_decode ? NULL : "ready requests that decode are miscounted";
}

static bool waits_at(const weft_request *r, uint32_t lane, weft_seq leader) {
  return r->lane == lane && r->state == WEFT_REQUEST_WAITING && r->seq == WEFT_SEQ_NONE && r->wait.leader == leader;
}

static const char *check_queues(const weft_engine *e, uint32_t lane, uint32_t *n) {
  const weft_tenants *t = &e->tenants;
  for (uint32_t i = 0; i < t->n_tenants; i++) {
    const weft_link *queue = &t->queue[(size_t)lane * t->n_tenants + i];
    const weft_request *before = NULL;
    for (const weft_link *at = queue->next; at != queue; at = at->next) {
      const weft_request *r = WEFT_OF_LINK(at, weft_request, link);
      if (!waits_at(r, lane, WEFT_SEQ_NONE) || r->tenant != i)
        return "a queue holds a request that does not wait in it";
      if (before != NULL && weft_tenants_queued_before(r, before)) return "a queue is out of order";
      before = r;
      *n += 1;
    }
  }
  return NULL;
}

/* Followers of all sequences and those that wait for the file, by lane. */
static const char *check_followers(const weft_engine *e, uint32_t *n_waiting) {
  uint32_t n_seqs = e->config.running_max + e->config.pins_max;
  for (uint32_t s = 0; s < n_seqs; s++) {
    const weft_followers *f = &e->followers[s];
    for (const weft_link *at = f->list.next; at != &f->list; at = at->next) {
      const weft_request *r = WEFT_OF_LINK(at, weft_request, link);
      if (!waits_at(r, r->lane, s) || r->wait.wake_at < f->wake_at) return "a follower would be woken too late";
      n_waiting[r->lane] += 1;
    }
  }
  const weft_link *lists[] = {&e->file_waits.whole, &e->file_waits.list};
  uint32_t n_pages = 0;
  for (uint32_t i = 0; i < 2; i++) {
    for (const weft_link *at = lists[i]->next; at != lists[i]; at = at->next) {
      const weft_request *r = WEFT_OF_LINK(at, weft_request, link);
      if (!waits_at(r, r->lane, WEFT_LEADER_FILE)) return "a request waits for the file and for something else";
      n_pages += r->wait.file_pages;
      n_waiting[r->lane] += 1;
    }
  }
  return n_pages == e->file_waits.n_pages ? NULL : "pages of those that wait for the file are miscounted";
}

static const char *check_claims(const weft_engine *e, uint32_t n_leaving) {
  const weft_claims *c = &e->claims;
  uint64_t all_lanes = (UINT64_C(1) << e->n_lanes) - 1;
  if (c->n_leaving != n_leaving) return "leaving requests are miscounted";
  if (c->none_set_aside) return "a turn ended and nothing is set aside for the waiter";
  if (c->starved != NULL && c->starved->state != WEFT_REQUEST_RUNNING) return "who lacks memory does not run";
  if (c->waiter != NULL && !waits_at(c->waiter, c->waiter->lane, WEFT_SEQ_NONE))
    return "who waits for pages is in no queue";
  for (uint32_t i = 0; i < e->tenants.n_tenants; i++) {
    const weft_tenant_claims *t = &c->tenant[i];
    if (t->starved != NULL && (t->starved->state != WEFT_REQUEST_RUNNING || t->starved->tenant != i))
      return "who lacks its tenant's blocks does not run, or is another tenant's";
    if ((t->wants & ~all_lanes) != 0) return "a tenant wants rows of a lane that does not exist";
    if (t->held) return "a plan was closed and a tenant is still held back in it";
    if (!weft_list_empty(&e->tenants.tenant[i].works)) return "a plan was closed and works of a tenant are left over";
  }
  return NULL;
}

const char *weft_engine_check(const weft_engine *e) {
  uint32_t n_running = 0, n_leaving = 0, n_waiting[WEFT_MODELS_MAX] = {0};
  const char *broken = check_followers(e, n_waiting);
  for (uint32_t i = 0; broken == NULL && i < e->n_lanes; i++) {
    counts n = {0};
    broken = check_running(e, &e->lane[i], &n);
    if (broken == NULL && n_waiting[i] != e->lane[i].n_deferred) broken = "deferred requests are miscounted";
    if (broken == NULL) broken = check_queues(e, i, &n_waiting[i]);
    if (broken == NULL && n_waiting[i] != e->lane[i].n_waiting) broken = "waiting requests are miscounted";
    n_running += n.n_running;
    n_leaving += n.n_leaving;
  }
  if (broken == NULL && n_running != e->n_running) broken = "running requests are miscounted";
  if (broken == NULL && e->n_called > WEFT_CALLS_MAX) broken = "too many steps in a row were called out of their turn";
  if (broken == NULL) broken = weft_pool_size_check(e);
  return broken != NULL ? broken : check_claims(e, n_leaving);
}
