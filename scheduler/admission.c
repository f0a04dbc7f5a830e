/* SPDX-License-Identifier: MIT */
/* Admission: which waiting request starts to run.
 *
 * Law. In the order of share.c, while rows, slots, sequences and blocks last; nobody is admitted
 * while a running request lacks memory or in a plan that preempted somebody. A request starts only
 * when the pages of all its tokens can be had besides a margin for those that run; the first that
 * does not fit is passed only by who is due before it, on no lane by anybody else: those have used
 * less, and stop passing when they have not, so it starts when enough has come free. A tenant that
 * has less than its share of places or pages, and whose clock is behind, does not wait until
 * somebody ends: the last to come of a tenant beyond its share gives way. A request whose prefix is
 * being computed by another one leaves the queue and follows that sequence; it comes back when the
 * sequence has advanced or ended, and others pass it meanwhile; likewise one whose prefix comes up
 * from the file (lift.h). A sibling of a running request
 * forks its sequence where the prompt ends; where one of both will write there, it copies the last
 * block at once, so that no block is written to that another reads, and a shared block never costs
 * a page later. */
#include "base/check.h"
#include "scheduler/cost.h"
#include "scheduler/engine_internal.h"

/* A request that lacked pages is tried again after so many plans, even without more of them. */
enum { RETRY_STEPS = 16 };

typedef enum outcome { ADMITTED, FOLLOWS, NO_ROOM, LIMITED, ENDED, LOST } outcome;

/* ---- followers ------------------------------------------------------------------------------- */

/* Comes back when the leader has wake_at tokens. */
static void follow(weft_engine *e, weft_lane *lane, weft_request *r, weft_seq leader, uint32_t wake_at) {
  weft_lifecycle_dequeue(e, r);
  lane->n_waiting += 1; /* it still waits */
  e->stats.n_waiting += 1;
  weft_followers *f = &e->followers[leader];
  r->follows = leader;
  r->wake_at = wake_at;
  if (weft_list_empty(&f->list) || r->wake_at < f->wake_at) f->wake_at = r->wake_at;
  weft_list_push_back(&f->list, &r->link);
}

void weft_admission_wake(weft_engine *e, weft_seq seq, uint32_t n_valid) {
  weft_followers *f = &e->followers[seq];
  if (weft_list_empty(&f->list) || n_valid < f->wake_at) return;
  weft_link all, *link;
  weft_list_init(&all);
  weft_list_splice_back(&all, &f->list);
  f->wake_at = UINT32_MAX;
  while ((link = weft_list_pop_front(&all)) != NULL) {
    weft_request *r = WEFT_OF_LINK(link, weft_request, link);
    if (n_valid < r->wake_at) {
      if (r->wake_at < f->wake_at) f->wake_at = r->wake_at;
      weft_list_push_back(&f->list, link);
      continue;
    }
    r->follows = WEFT_SEQ_NONE;
    r->retry_step = e->n_plans; /* it comes back: near the head of its queue */
    e->lane[r->lane].n_waiting -= 1;
    e->stats.n_waiting -= 1;
    weft_lifecycle_enqueue(e, r);
  }
}

/* ---- one request ----------------------------------------------------------------------------- */

/* Pages of n tokens that come in as a prompt does. */
static uint32_t pages_of(const weft_engine *e, uint32_t lane, uint32_t n_tokens) {
  uint32_t rows = n_tokens < e->config.prefill_chunk ? n_tokens : e->config.prefill_chunk;
  return weft_pager_pages_for(e->pager, lane, n_tokens, rows);
}

/* Pages the request will need soon beyond those its cached prefix already holds. */
static uint32_t pages_wanted(const weft_engine *e, const weft_request *r, weft_seq seq) {
  uint32_t n = pages_of(e, r->lane, r->n_tokens);
  uint32_t held = weft_pager_n_blocks_held(e->pager, seq);
  uint32_t margin = weft_policy_margin(e->n_running, e->config.n_pages);
  return (n > held ? n - held : 0) + margin;
}

static weft_status open_slot(weft_engine *e, weft_lane *lane, weft_request *r) {
  weft_slot_params params = {.canvas = r->asked.canvas,
                             .sampling = r->asked.sampling,
                             .entropy_bound = r->asked.entropy_bound,
                             .tokens = r->tokens,
                             .n_tokens = r->n_tokens,
                             .n_prompt = r->asked.n_tokens,
                             .max_tokens = r->size.answer_max,
                             .trace = r->asked.trace};
  uint64_t start_ns = weft_clock_ns();
  weft_status status = lane->runner->ops->slot_open(lane->runner, r->slot, &params);
  e->runner_ns += weft_clock_ns() - start_ns;
  return status;
}

uint32_t weft_engine_room(const weft_engine *e, uint32_t lane, uint32_t n_tokens) {
  uint64_t each = weft_pager_pages_for(e->pager, lane, n_tokens, 1), last = pages_of(e, lane, n_tokens);
  uint32_t n = 0;
  while (n < e->config.running_max && n * each + last + weft_policy_margin(n, e->config.n_pages) <= e->config.n_pages)
    n++;
  return n;
}

/* Takes a slot and starts to run, or ends with the runner's reason. */
static outcome enter(weft_engine *e, weft_lane *lane, weft_request *r, weft_seq seq, uint32_t n_cached) {
  r->slot = lane->free_slot[lane->n_free_slots - 1];
  weft_status status = open_slot(e, lane, r);
  if (status != WEFT_OK) {
    weft_pager_release(e->pager, seq);
    weft_admission_wake(e, seq, UINT32_MAX);
    lane->lost = status == WEFT_E_DEVICE;
    if (lane->lost) return LOST;
    weft_lifecycle_finish(e, r, WEFT_FINISH_ERROR, weft_status_text(status));
    return ENDED;
  }
  lane->n_free_slots -= 1;
  weft_lifecycle_dequeue(e, r);
  r->seq = seq;
  r->n_valid = r->n_committed = r->n_planned = r->n_reserved = n_cached;
  r->placement.block = UINT32_MAX;
  if (!r->admitted_once) {
    r->usage.n_cached = n_cached;
    e->stats.n_cached_tokens += n_cached;
  }
  weft_lifecycle_enter(e, r);
  return ADMITTED;
}

/* Pins of lower priority count as room. */
static bool has_room(weft_engine *e, const weft_request *r, uint32_t wanted) {
  if (wanted > weft_pager_headroom(e->pager) + weft_pins_spare(e, r)) return false;
  while (wanted > weft_pager_headroom(e->pager)) {
    if (!weft_pins_give_way(e, r)) return false; /* their pages were in use elsewhere, too */
  }
  return true;
}

static outcome no_room(weft_engine *e, weft_request *r, weft_seq seq, uint32_t wanted) {
  weft_pager_release(e->pager, seq);
  r->need_pages = wanted;
  r->retry_step = e->n_plans + RETRY_STEPS;
  return NO_ROOM;
}

/* Content comes back from host memory only for a request that will find room for the rest, too. */
static uint32_t restores_max(const weft_engine *e, uint32_t n_pages) {
  if (e->config.n_host_pages == 0) return 0;
  return e->n_running > 0 && n_pages > weft_pager_headroom(e->pager) ? 0 : e->config.n_pages;
}

/* The pages would bring its tenant over its limit; alone it is let in, since it fits. */
static bool is_over_limit(const weft_engine *e, const weft_request *r, uint32_t wanted) {
  weft_owner_usage usage = weft_pager_owner_usage(e->pager, r->tenant);
  if (usage.limit == 0 || e->tenants.tenant[r->tenant].stats.n_running == 0) return false;
  uint32_t margin = weft_policy_margin(e->n_running, e->config.n_pages);
  return usage.n_pinned + wanted - margin > usage.limit;
}

/* Until a request leaves, and some plans at most. */
static outcome limited(weft_engine *e, const weft_request *r, weft_seq seq) {
  if (seq != WEFT_SEQ_NONE) weft_pager_release(e->pager, seq);
  e->tenants.tenant[r->tenant].limited = RETRY_STEPS;
  return LIMITED;
}

static outcome admit_prompt(weft_engine *e, weft_lane *lane, weft_request *r) {
  uint32_t n_pages = pages_of(e, r->lane, r->n_tokens) + weft_policy_margin(e->n_running, e->config.n_pages);
  weft_admit args = {.space = lane->index,
                     .domain = r->asked.domain,
                     .tokens = r->tokens,
                     .n_tokens = r->n_tokens,
                     .n_prompt = r->asked.n_tokens,
                     .n_public = weft_pins_n_public(e, r),
                     .owner = r->tenant,
                     .retention = (uint32_t)(e->tenants.tenant[r->tenant].config.priority_class - WEFT_CLASS_LOW),
                     .n_keep_rows = r->asked.canvas ? 0 : 1,
                     .restore_max_pages = restores_max(e, n_pages),
                     .restore_cost = weft_cost_of_page(&lane->cost, lane->info->page_bytes),
                     .lift_cost = weft_cost_of_us(&lane->cost, e->lifts.page_us),
                     .restore_wait = weft_lifts_may_wait(e, r),
                     .lift_none = n_pages + e->lifts.n_pages > weft_pager_headroom(e->pager),
                     .no_cache = r->asked.no_cache};
  weft_seq seq = WEFT_SEQ_NONE, leader = WEFT_SEQ_NONE;
  uint32_t n_cached = 0;
  weft_status status = weft_pager_admit(e->pager, &args, &seq, &n_cached, &leader);
  if (status == WEFT_AGAIN && leader == WEFT_SEQ_NONE) {
    weft_lifts_wait(e, lane, r, n_cached == 0 ? n_pages : 0);
    return FOLLOWS;
  }
  if (status == WEFT_AGAIN) {
    /* when the leader has twice as many tokens as now: few tries, at most twice the wait */
    uint32_t n_valid = weft_pager_n_valid(e->pager, leader);
    follow(e, lane, r, leader, n_valid == 0 ? 1 : 2 * n_valid);
    return FOLLOWS;
  }
  if (status == WEFT_QUOTA) return limited(e, r, WEFT_SEQ_NONE);
  WEFT_CHECK(status == WEFT_OK); /* sequences were counted, lengths checked at submit */
  uint32_t wanted = pages_wanted(e, r, seq);
  if (is_over_limit(e, r, wanted)) return limited(e, r, seq);
  if (e->n_running > 0 && !has_room(e, r, wanted)) return no_room(e, r, seq, wanted);
  return enter(e, lane, r, seq, n_cached);
}

/* An autoregressive answer needs the last row of the prompt itself, a canvas none. */
static outcome fork_prompt(weft_engine *e, weft_lane *lane, weft_request *r, const weft_request *trunk) {
  uint32_t n = r->n_prompt - (r->canvas ? 0 : 1);
  /* the last canvas is never committed */
  bool writes = !r->canvas || r->size.n_blocks > 1 || trunk->size.n_blocks > 1;
  if (weft_pager_n_valid(e->pager, trunk->seq) < n) {
    follow(e, lane, r, trunk->seq, n);
    return FOLLOWS;
  }
  weft_seq seq;
  weft_status status = weft_pager_fork(e->pager, trunk->seq, n, &seq);
  if (status == WEFT_E_NOT_FOUND) return admit_prompt(e, lane, r); /* a window has passed */
  WEFT_CHECK(status == WEFT_OK);
  uint32_t wanted = pages_wanted(e, r, seq) + lane->info->n_groups; /* and the copies */
  if (is_over_limit(e, r, wanted)) return limited(e, r, seq);
  if (!has_room(e, r, wanted)) return no_room(e, r, seq, wanted);
  if (writes) status = weft_pager_reserve(e->pager, seq, 1);
  if (status == WEFT_QUOTA) return limited(e, r, seq);
  return status == WEFT_OK ? enter(e, lane, r, seq, n) : no_room(e, r, seq, wanted);
}

static outcome try_admit(weft_engine *e, weft_lane *lane, weft_request *r) {
  const weft_request *trunk = r->head->trunk;
  bool forks = trunk != NULL && !r->admitted_once && r->n_prompt > 1;
  return forks ? fork_prompt(e, lane, r, trunk) : admit_prompt(e, lane, r);
}

/* ---- the queue of a lane --------------------------------------------------------------------- */

static bool may_admit(const weft_planner *p) {
  const weft_engine *e = p->engine;
  if (e->starved != NULL || e->preempted || p->rows_left == 0) return false;
  if (p->pace.prompt_held) return false;
  bool restores = e->config.n_host_pages > 0;
  if (restores && weft_pager_get_stats(e->pager).n_restored >= p->restores_end) return false;
  if (p->lane->n_waiting == 0 || p->lane->n_free_slots == 0 || p->lane->lost) return false;
  return e->n_running < e->config.running_max && !weft_plan_is_full(p->plan);
}

/* False: it lacked pages not long ago and nothing has come free since. */
static bool worth_a_try(const weft_engine *e, const weft_request *r) {
  if (e->n_running == 0 || r->need_pages == 0) return true;
  return e->n_plans >= r->retry_step || weft_pager_headroom(e->pager) >= r->need_pages;
}

/* The one that lacked memory is passed only by who is due before it: on its own lane it goes in the
 * place of anybody else. NULL: it waits on another lane. */
static weft_request *let_waiter_pass(const weft_engine *e, weft_request *r) {
  weft_request *waiter = e->memory_waiter;
  if (waiter == NULL || waiter == r) return r;
  if (!weft_tenants_may_start(&e->tenants, waiter->tenant)) return r;
  weft_candidate a = weft_tenants_candidate(&e->tenants, r);
  weft_candidate b = weft_tenants_candidate(&e->tenants, waiter);
  bool before = r->tenant == waiter->tenant ? weft_tenants_queued_before(r, waiter) : weft_policy_is_due_before(&a, &b);
  if (before) return r;
  return waiter->lane == r->lane ? waiter : NULL;
}

/* ---- a place for a tenant that has less than its share --------------------------------------- */

/* What is short: places among the running, or pages. */
typedef struct shortage {
  bool pages;
  uint32_t n;      /* there are */
  uint32_t wanted; /* by the request */
  uint64_t active_weight;
} shortage;

static uint32_t has(const weft_engine *e, const shortage *s, uint32_t tenant) {
  return s->pages ? weft_pager_owner_usage(e->pager, tenant).n_pinned : e->tenants.tenant[tenant].stats.n_running;
}

/* Beyond its share, ahead in its clock, of no higher class, and it keeps running something. */
static bool owes(const weft_engine *e, const shortage *s, uint32_t tenant, uint32_t to) {
  const weft_tenant *a = &e->tenants.tenant[tenant], *b = &e->tenants.tenant[to];
  return tenant != to && a->stats.n_running > 1 && a->clock > b->clock &&
         a->config.priority_class <= b->config.priority_class &&
         has(e, s, tenant) > weft_tenants_part(&e->tenants, tenant, s->n, s->active_weight);
}

/* Of the tenants that owe r's tenant a place, the last to come gives way. Nobody is brought below
 * its share of places by it, and r's tenant not above: so it ends. */
static void claim_share(weft_planner *p, const weft_request *r, bool pages) {
  weft_engine *e = p->engine;
  if (e->tenants.n_tenants == 1 || e->starved != NULL || e->preempted || e->n_leaving > 0) return;
  uint32_t n_places = p->lane->info->n_slots;
  if (e->config.running_max < n_places) n_places = e->config.running_max;
  shortage s = {.pages = pages,
                .n = pages ? e->config.n_pages : n_places,
                .wanted = pages ? r->need_pages : 1,
                .active_weight = weft_tenants_active_weight(&e->tenants)};
  uint32_t part = weft_tenants_part(&e->tenants, r->tenant, s.n, s.active_weight);
  if (has(e, &s, r->tenant) + s.wanted > part) return;
  weft_request *last = NULL;
  for (uint32_t i = 0; i < e->n_running; i++) {
    weft_request *other = e->ranked[i];
    bool helps = pages || p->lane->n_free_slots > 0 || other->lane == r->lane;
    if (e->rank[i].excluded || !helps) continue;
    if (last != NULL && other->arrival < last->arrival) continue;
    if (owes(e, &s, other->tenant, r->tenant)) last = other;
  }
  if (last != NULL) (void)weft_lifecycle_preempt(e, last);
}

static bool lacks_place(const weft_planner *p) {
  const weft_engine *e = p->engine;
  return p->lane->n_free_slots == 0 || e->n_running == e->config.running_max;
}

bool weft_admission_try(weft_planner *p, weft_request *r) {
  weft_engine *e = p->engine;
  if ((r = let_waiter_pass(e, r)) == NULL) return false;
  if (lacks_place(p)) claim_share(p, r, false);
  if (!may_admit(p)) return false;
  outcome got = worth_a_try(e, r) ? try_admit(e, p->lane, r) : NO_ROOM;
  if (got == ADMITTED) (void)weft_planner_serve(p, r);
  if (got != NO_ROOM) return true;
  e->memory_waiter = r;
  claim_share(p, r, true);
  return false;
}
