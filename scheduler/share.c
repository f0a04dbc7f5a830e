/* SPDX-License-Identifier: MIT */
/* Sharing a step among tenants: prompts, admissions, and, where rows are short, whatever runs.
 *
 * Law. Again and again the request that is due first gets its rows: the higher level of its class, then
 * the tenant with the smaller clock, then arrival. Within a tenant running requests go first, then
 * waiting ones. Decode rows and canvases of all tenants go before that (planner.c) only while they
 * fit and none of their tenants is more than one step of its own ahead of a tenant with a prompt:
 * so a step is the unit of unfairness (docs/scheduler.md derives the bound). Requests that found no
 * room are first among their tenant's in the next step. */
#include "scheduler/cost.h"
#include "scheduler/engine_internal.h"

typedef struct share_walk {
  weft_planner *p;
  weft_tenants *tenants;
  uint64_t lane_bit;
  uint32_t n_contenders;
  bool admitting;
  weft_link served, skipped; /* prompts with rows left to compute */
} share_walk;

/* ---- is there anything to share? ------------------------------------------------------------- */

/* The smallest clock of a tenant with a prompt, running or waiting, or that got less than it wanted
 * last time; UINT64_MAX: there is none. */
static uint64_t least_clock(const weft_engine *e, const weft_lane *lane) {
  const weft_tenants *t = &e->tenants;
  uint64_t least = UINT64_MAX;
  for (const weft_link *at = lane->prefilling.next; at != &lane->prefilling; at = at->next) {
    uint64_t clock = t->tenant[WEFT_OF_LINK(at, weft_request, link)->tenant].clock;
    if (clock < least) least = clock;
  }
  for (uint32_t i = 0; i < t->n_tenants; i++) {
    if (t->tenant[i].clock >= least) continue;
    bool wants = (t->tenant[i].wants >> lane->index & 1) != 0;
    if (wants || weft_tenants_first(t, lane->index, i) != NULL) least = t->tenant[i].clock;
  }
  return least;
}

/* More than n full steps ahead of a clock. */
static bool is_ahead(const weft_planner *p, uint32_t tenant, uint64_t clock, uint32_t n) {
  const weft_tenants *t = &p->engine->tenants;
  uint64_t own = t->tenant[tenant].clock;
  return own > clock && own - clock > n * weft_tenants_ticks(t, tenant, p->step_charge);
}

bool weft_share_is_contended(const weft_planner *p) {
  const weft_engine *e = p->engine;
  const weft_lane *lane = p->lane;
  const weft_tenants *t = &e->tenants;
  if (t->n_tenants == 1) return false;
  if (lane->ready.n_rows > p->rows_left) return true;
  uint64_t least = least_clock(e, lane);
  const uint32_t *n_ready = &t->n_ready[(size_t)lane->index * t->n_tenants];
  for (uint32_t i = 0; i < t->n_tenants; i++) {
    if (n_ready[i] > 0 && is_ahead(p, i, least, 1)) return true;
  }
  return false;
}

/* ---- with a target for the time between tokens ----------------------------------------------- */

/* Decode rows of tenants that are far ahead of one that wants more. */
static uint32_t count_ahead(weft_planner *p) {
  weft_tenants *t = &p->engine->tenants;
  const weft_ready *ready = &p->lane->ready;
  uint64_t least = least_clock(p->engine, p->lane);
  bool any = false;
  for (uint32_t i = 0; i < t->n_tenants; i++) {
    t->tenant[i].ahead = is_ahead(p, i, least, WEFT_PACE_AHEAD);
    any = any || t->tenant[i].ahead;
  }
  uint32_t n = 0;
  for (uint32_t i = 0; any && i < ready->n; i++) {
    const weft_request *r = ready->at[i];
    n += r != NULL && !r->canvas && t->tenant[r->tenant].ahead;
  }
  return n;
}

void weft_share_open(weft_planner *p, bool paced) {
  const weft_cost_shape full = {.n_rows = p->lane->rows_max};
  p->held = (weft_candidate){.tenant_clock = UINT64_MAX, .level = INT32_MIN};
  p->n_ahead = 0;
  if (p->engine->tenants.n_tenants == 1) return;
  p->step_charge = weft_cost_charge(&p->lane->cost, &full);
  if (paced) p->n_ahead = count_ahead(p);
}

void weft_share_hold(weft_planner *p, const weft_request *r) {
  weft_tenants *t = &p->engine->tenants;
  weft_candidate is = weft_tenants_candidate(t, r);
  t->tenant[r->tenant].held = true;
  if (is.tenant_clock < p->held.tenant_clock) p->held.tenant_clock = is.tenant_clock;
  if (is.level > p->held.level) p->held.level = is.level;
}

bool weft_share_has_time(weft_planner *p, const weft_request *r) {
  if (!p->engine->tenants.tenant[r->tenant].ahead) return true;
  return weft_pace_decode(&p->pace, r->n_planned);
}

/* What is far ahead of somebody held back waits: else only that one would pay for the target. */
static bool waits_for_held(const weft_planner *p, const weft_request *r, const weft_candidate *is) {
  if (p->held.tenant_clock == UINT64_MAX || is->level > p->held.level) return false;
  return is_ahead(p, r->tenant, p->held.tenant_clock, WEFT_PACE_AHEAD);
}

/* ---- before the walk: the works of each tenant, after it: lists as they were ----------------- */

static void gather(share_walk *w, bool with_ready) {
  weft_lane *lane = w->p->lane;
  weft_link *link;
  if (with_ready) {
    for (uint32_t i = 0; i < lane->ready.n; i++) {
      weft_request *r = lane->ready.at[i];
      if (r != NULL) weft_list_push_back(&w->tenants->tenant[r->tenant].works, &r->link);
    }
  }
  while ((link = weft_list_pop_front(&lane->prefilling)) != NULL) {
    weft_request *r = WEFT_OF_LINK(link, weft_request, link);
    weft_list_push_back(&w->tenants->tenant[r->tenant].works, link);
  }
  const weft_engine *e = w->p->engine;
  weft_tenants_sink(w->tenants);
  if (e->memory_waiter != NULL) weft_tenants_lift(w->tenants, e->memory_waiter, e->now_us);
  for (uint32_t i = 0; i < w->tenants->n_tenants; i++) {
    weft_tenant *t = &w->tenants->tenant[i];
    t->wants &= ~w->lane_bit;
    const weft_request *waits = weft_tenants_first(w->tenants, lane->index, i), *runs = NULL;
    if (!weft_list_empty(&t->works)) runs = WEFT_OF_LINK(t->works.next, weft_request, link);
    weft_tenants_charge(w->tenants, i, &lane->cost);
    if (waits != NULL) weft_tenants_lift(w->tenants, waits, e->now_us);
    if (runs != NULL) weft_tenants_lift(w->tenants, runs, e->now_us);
    if (waits != NULL || runs != NULL) w->tenants->contender[w->n_contenders++] = i;
  }
}

static void note_wants(share_walk *w, const weft_link *list) {
  for (const weft_link *at = list->next; at != list; at = at->next) {
    w->tenants->tenant[WEFT_OF_LINK(at, weft_request, link)->tenant].wants |= w->lane_bit;
  }
}

/* Prompts in the order of the next step: skipped, not reached, served, new. */
static void put_back(share_walk *w, bool with_ready) {
  weft_lane *lane = w->p->lane;
  note_wants(w, &w->skipped);
  note_wants(w, &w->served);
  note_wants(w, &lane->prefilling);
  for (uint32_t i = 0; i < w->n_contenders; i++) {
    weft_tenant *t = &w->tenants->tenant[w->tenants->contender[i]];
    weft_link *link;
    t->wants |= w->lane_bit; /* the walk ended before it had nothing more to ask for */
    while ((link = weft_list_pop_front(&t->works)) != NULL) {
      if (WEFT_OF_LINK(link, weft_request, link)->prefilling) {
        weft_list_push_back(&w->skipped, link);
      }
    }
  }
  weft_list_splice_front(&lane->prefilling, &w->served);
  weft_list_splice_front(&lane->prefilling, &w->skipped);
  if (with_ready) weft_ready_settle(&lane->ready, w->p->plan->number);
}

/* ---- the walk -------------------------------------------------------------------------------- */

static weft_request *first_of(share_walk *w, uint32_t tenant) {
  weft_tenant *t = &w->tenants->tenant[tenant];
  if (!weft_list_empty(&t->works)) return WEFT_OF_LINK(t->works.next, weft_request, link);
  weft_request *r = weft_tenants_first(w->tenants, w->p->lane->index, tenant);
  if (r == NULL || w->admitting) return r;
  t->wants |= w->lane_bit; /* what it lacks is no limit of its own */
  return NULL;
}

/* The request that is due first; NULL: nobody can use more rows. */
static weft_request *next_due(share_walk *w) {
  uint32_t *contender = w->tenants->contender;
  weft_request *best = NULL;
  weft_candidate best_is = {0};
  for (uint32_t i = 0; i < w->n_contenders;) {
    weft_request *r = first_of(w, contender[i]);
    if (r == NULL) {
      contender[i] = contender[--w->n_contenders];
      continue;
    }
    i += 1;
    weft_candidate is = weft_tenants_candidate(w->tenants, r);
    if (waits_for_held(w->p, r, &is)) continue;
    if (best != NULL && !weft_policy_is_due_before(&is, &best_is)) continue;
    best = r;
    best_is = is;
  }
  return best;
}

static void serve(share_walk *w, weft_request *r) {
  weft_list_remove(&r->link);
  bool was_ready = !r->prefilling, done = weft_planner_serve(w->p, r);
  if (was_ready && !done) w->tenants->tenant[r->tenant].wants |= w->lane_bit;
  if (r->prefilling) weft_list_push_back(done ? &w->served : &w->skipped, &r->link);
}

void weft_share_run(weft_planner *p, bool with_ready) {
  weft_engine *e = p->engine;
  share_walk w = {.p = p, .tenants = &e->tenants, .lane_bit = UINT64_C(1) << p->lane->index, .admitting = true};
  weft_list_init(&w.served);
  weft_list_init(&w.skipped);
  gather(&w, with_ready);
  weft_request *r;
  while (p->rows_left > 0 && (r = next_due(&w)) != NULL) {
    if (r->state != WEFT_REQUEST_WAITING) {
      serve(&w, r);
    } else {
      w.admitting = weft_admission_try(p, r);
    }
  }
  put_back(&w, with_ready);
}
