/* SPDX-License-Identifier: MIT */
#include "scheduler/admission.h"

#include "scheduler/cost.h"
#include "scheduler/fit.h"
#include "scheduler/pins.h"
#include "scheduler/waiting.h"

static weft_admission verdict(weft_admission_kind kind, weft_request *r) {
  return (weft_admission){.kind = kind, .request = r, .seq = WEFT_SEQ_NONE, .leader = WEFT_SEQ_NONE};
}

/* ---- pages ----------------------------------------------------------------------------------- */

/* Pages that stay unpromised when one more starts. */
static uint32_t margin(const weft_engine *e) {
  return weft_policy_margin(e->n_running, e->config.n_pages);
}

/* Pages the request will need soon beyond those its cached prefix already holds. */
static uint32_t pages_wanted(const weft_engine *e, const weft_request *r, weft_seq seq) {
  uint32_t n = weft_fit_pages(e, r->lane, r->n_tokens);
  uint32_t held = weft_pager_n_blocks_held(e->pager, seq);
  return (n > held ? n - held : 0) + margin(e);
}

/* Pins of lower priority count as room, and are let go of for it. */
static bool has_room(weft_engine *e, const weft_request *r, uint32_t wanted) {
  if (wanted > weft_pager_headroom(e->pager) + weft_pins_spare(e, r)) return false;
  while (wanted > weft_pager_headroom(e->pager)) {
    if (!weft_pins_give_way(e, r)) return false; /* their pages were in use elsewhere, too */
  }
  return true;
}

/* The pages would bring its tenant over its limit; alone it is let in, since it fits. */
static bool is_over_limit(const weft_engine *e, const weft_request *r, uint32_t wanted) {
  weft_owner_usage usage = weft_pager_owner_usage(e->pager, r->tenant);
  if (usage.limit == 0 || e->tenants.tenant[r->tenant].stats.n_running == 0) return false;
  return usage.n_pinned + wanted - margin(e) > usage.limit;
}

static weft_admission give_back(const weft_engine *e, weft_admission_kind kind, weft_request *r, weft_seq seq,
                                uint32_t n_pages) {
  weft_admission is = verdict(kind, r);
  if (seq != WEFT_SEQ_NONE) weft_pager_release(e->pager, seq);
  is.n_pages = n_pages;
  return is;
}

/* ---- a prompt of its own, or that of a sibling ------------------------------------------------ */

/* Content comes back from host memory only for a request that will find room for the rest, too. */
static uint32_t restores_max(const weft_engine *e, uint32_t n_pages) {
  if (e->config.n_host_pages == 0) return 0;
  return e->n_running > 0 && n_pages > weft_pager_headroom(e->pager) ? 0 : e->config.n_pages;
}

static weft_admit arguments_of(weft_engine *e, const weft_lane *lane, const weft_request *r, uint32_t n_pages) {
  const weft_tenant_config *tenant = &e->tenants.tenant[r->tenant].config;
  return (weft_admit){.space = lane->index,
                      .domain = r->asked.domain,
                      .tokens = r->tokens,
                      .n_tokens = r->n_tokens,
                      .n_prompt = r->asked.n_tokens,
                      .n_public = weft_pins_n_public(e, r),
                      .owner = r->tenant,
                      .retention = (uint32_t)(tenant->priority_class - WEFT_CLASS_LOW),
                      .n_keep_rows = r->asked.canvas ? 0 : 1,
                      .restore_max_pages = restores_max(e, n_pages),
                      .restore_cost = weft_cost_of_page(&lane->cost, lane->info->page_bytes),
                      .lift_cost = weft_cost_of_us(&lane->cost, e->file_waits.page_us),
                      .restore_wait = weft_waiting_may_wait_for_file(e, r),
                      .lift_none = n_pages + e->file_waits.n_pages > weft_pager_headroom(e->pager),
                      .room_pages = e->n_running > 0 ? n_pages - margin(e) : 0, /* alone it is let in, since it fits */
                      .room_margin = margin(e),
                      .room_spare = weft_pins_spare(e, r),
                      .room_in_limit = e->tenants.tenant[r->tenant].stats.n_running > 0,
                      .no_cache = r->asked.no_cache};
}

static weft_admission admit_prompt(weft_engine *e, const weft_lane *lane, weft_request *r) {
  uint32_t n_pages = weft_fit_pages(e, r->lane, r->n_tokens) + margin(e);
  weft_admit args = arguments_of(e, lane, r, n_pages);
  weft_admission is = verdict(WEFT_ADMIT_START, r);
  weft_status status = weft_pager_admit(e->pager, &args, &is.seq, &is.n_cached, &is.leader);
  if (status == WEFT_AGAIN && is.leader == WEFT_SEQ_NONE) {
    is.kind = WEFT_ADMIT_FILE;
    is.n_pages = is.n_cached == 0 ? n_pages : 0;
    return is;
  }
  if (status == WEFT_AGAIN) {
    /* when the leader has twice as many tokens as now: few tries, at most twice the wait */
    uint32_t n_valid = weft_pager_n_valid(e->pager, is.leader);
    is.kind = WEFT_ADMIT_FOLLOW;
    is.wake_at = n_valid == 0 ? 1 : 2 * n_valid;
    return is;
  }
  if (status == WEFT_QUOTA) return verdict(WEFT_ADMIT_LIMITED, r);
  if (status == WEFT_NO_BLOCKS) return give_back(e, WEFT_ADMIT_NO_ROOM, r, WEFT_SEQ_NONE, is.n_cached);
  WEFT_CHECK(status == WEFT_OK); /* sequences were counted, lengths checked at submit */
  uint32_t wanted = pages_wanted(e, r, is.seq);
  if (e->n_running > 0 && !has_room(e, r, wanted)) return give_back(e, WEFT_ADMIT_NO_ROOM, r, is.seq, wanted);
  return is;
}

/* An autoregressive answer needs the last row of the prompt itself, a canvas none. */
static weft_admission fork_prompt(weft_engine *e, const weft_lane *lane, weft_request *r, const weft_request *trunk) {
  weft_admission is = verdict(WEFT_ADMIT_START, r);
  is.n_cached = r->n_prompt - (r->canvas ? 0 : 1);
  if (weft_pager_n_valid(e->pager, trunk->seq) < is.n_cached) {
    is.kind = WEFT_ADMIT_FOLLOW;
    is.leader = trunk->seq;
    is.wake_at = is.n_cached;
    return is;
  }
  weft_status status = weft_pager_fork(e->pager, trunk->seq, is.n_cached, &is.seq);
  if (status == WEFT_E_NOT_FOUND) return admit_prompt(e, lane, r); /* a window has passed */
  WEFT_CHECK(status == WEFT_OK);
  uint32_t wanted = pages_wanted(e, r, is.seq) + lane->info->n_groups; /* and the copies */
  if (is_over_limit(e, r, wanted)) return give_back(e, WEFT_ADMIT_LIMITED, r, is.seq, 0);
  if (!has_room(e, r, wanted)) return give_back(e, WEFT_ADMIT_NO_ROOM, r, is.seq, wanted);
  /* the last canvas is never committed */
  bool writes = !r->canvas || r->size.n_blocks > 1 || trunk->size.n_blocks > 1;
  if (writes) status = weft_pager_reserve(e->pager, is.seq, 1);
  if (status == WEFT_QUOTA) return give_back(e, WEFT_ADMIT_LIMITED, r, is.seq, 0);
  return status == WEFT_OK ? is : give_back(e, WEFT_ADMIT_NO_ROOM, r, is.seq, wanted);
}

static weft_admission admit(weft_engine *e, const weft_lane *lane, weft_request *r) {
  const weft_request *trunk = r->head->trunk;
  bool forks = trunk != NULL && !r->admitted_once && r->n_prompt > 1;
  return forks ? fork_prompt(e, lane, r, trunk) : admit_prompt(e, lane, r);
}

/* ---- the queue of a lane --------------------------------------------------------------------- */

static bool lacks_place(const weft_planning *p) {
  const weft_engine *e = p->engine;
  return p->lane->n_free_slots == 0 || e->n_running == e->config.running_max;
}

static bool may_admit(const weft_planning *p) {
  const weft_engine *e = p->engine;
  if (e->claims.starved != NULL || e->claims.preempted || p->rows_left == 0) return false;
  if (p->pace.prompt_held) return false;
  bool restores = e->config.n_host_pages > 0;
  if (restores && weft_pager_get_stats(e->pager).n_restored >= p->restores_end) return false;
  return p->lane->n_waiting > 0 && !p->lane->lost && !weft_plan_is_full(p->plan);
}

/* False: it lacked pages not long ago and nothing has come free since. */
static bool worth_a_try(const weft_engine *e, const weft_request *r) {
  if (e->n_running == 0 || r->wait.need_pages == 0) return true;
  return e->n_plans >= r->wait.retry_plan || weft_pager_headroom(e->pager) >= r->wait.need_pages;
}

/* The one that lacked memory is passed only by who is due before it: on its own lane it goes in the place of anybody else.
 * NULL: it waits on another lane. */
static weft_request *let_waiter_pass(const weft_engine *e, weft_request *r) {
  weft_request *waiter = e->claims.memory_waiter;
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

/* Of the tenants that owe r's tenant a place, the last to come. Nobody is brought below its share of places by it, and
 * r's tenant not above: so it ends. */
static weft_request *find_debtor(const weft_planning *p, const weft_request *r, bool pages, uint32_t wanted) {
  weft_engine *e = p->engine;
  if (e->tenants.n_tenants == 1 || e->claims.starved != NULL || e->claims.preempted || e->claims.n_leaving > 0)
    return NULL;
  uint32_t n_places = p->lane->info->n_slots;
  if (e->config.running_max < n_places) n_places = e->config.running_max;
  shortage s = {.pages = pages,
                .n = pages ? e->config.n_pages : n_places,
                .wanted = wanted,
                .active_weight = weft_tenants_active_weight(&e->tenants)};
  uint32_t part = weft_tenants_part(&e->tenants, r->tenant, s.n, s.active_weight);
  if (has(e, &s, r->tenant) + s.wanted > part) return NULL;
  weft_request *last = NULL;
  for (uint32_t i = 0; i < e->n_running; i++) {
    weft_request *other = e->ranked[i];
    bool helps = pages || p->lane->n_free_slots > 0 || other->lane == r->lane;
    if (e->rank[i].excluded || !helps) continue;
    if (last != NULL && other->arrival < last->arrival) continue;
    if (owes(e, &s, other->tenant, r->tenant)) last = other;
  }
  return last;
}

weft_admission weft_admission_decide(weft_planning *p, weft_request *r) {
  weft_engine *e = p->engine;
  weft_admission is = verdict(WEFT_ADMIT_NOBODY, r);
  if ((r = let_waiter_pass(e, r)) == NULL) return is;
  is.request = r;
  if (lacks_place(p)) {
    is.victim = find_debtor(p, r, false, 1);
    if (is.victim != NULL) is.kind = WEFT_ADMIT_CLAIM;
    return is;
  }
  if (!may_admit(p)) return is;
  if (worth_a_try(e, r)) {
    is = admit(e, p->lane, r);
  } else {
    is.kind = WEFT_ADMIT_NO_ROOM;
    is.n_pages = 0; /* as the last try found */
  }
  if (is.kind == WEFT_ADMIT_NO_ROOM) {
    is.victim = find_debtor(p, r, true, is.n_pages > 0 ? is.n_pages : r->wait.need_pages);
  }
  return is;
}
