/* SPDX-License-Identifier: MIT */
/* Which request is due: find_due, by the law of share.h. */
#include "scheduler/share.h"

#include "scheduler/cost.h"

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
    bool wants = (t->claims[i].wants >> lane->index & 1) != 0;
    if (wants || weft_tenants_first(t, lane->index, i) != NULL) least = t->tenant[i].clock;
  }
  return least;
}

/* More than n full steps ahead of a clock. */
static bool is_ahead(const weft_planning *p, uint32_t tenant, uint64_t clock, uint32_t n) {
  const weft_tenants *t = &p->engine->tenants;
  uint64_t own = t->tenant[tenant].clock;
  return own > clock && own - clock > n * weft_tenants_ticks(t, tenant, p->step_charge);
}

bool weft_share_is_contended(const weft_planning *p) {
  const weft_engine *e = p->engine;
  const weft_lane *lane = p->lane;
  const weft_tenants *t = &e->tenants;
  if (t->n_tenants == 1) return false;
  if (lane->ready.n_rows > p->rows_left || p->n_ahead > 0) return true;
  uint64_t least = least_clock(e, lane);
  const weft_tenant_ready *ready = &t->ready[(size_t)lane->index * t->n_tenants];
  for (uint32_t i = 0; i < t->n_tenants; i++) {
    if (ready[i].n > 0 && is_ahead(p, i, least, 1)) return true;
  }
  return false;
}

/* ---- with a target for the time between tokens ----------------------------------------------- */

/* Decode rows of tenants that are far ahead of one that wants more. */
static uint32_t count_ahead(weft_planning *p) {
  weft_tenants *t = &p->engine->tenants;
  const weft_ready *ready = &p->lane->ready;
  uint64_t least = least_clock(p->engine, p->lane);
  bool any = false;
  for (uint32_t i = 0; i < t->n_tenants; i++) {
    t->claims[i].ahead = is_ahead(p, i, least, WEFT_PACE_AHEAD);
    any = any || t->claims[i].ahead;
  }
  uint32_t n = 0;
  for (uint32_t i = 0; any && i < ready->n; i++) {
    const weft_request *r = ready->at[i];
    n += r != NULL && !r->denoises && t->claims[r->tenant].ahead;
  }
  return n;
}

void weft_share_open(weft_planning *p, bool paced) {
  const weft_cost_shape full = {.n_rows = p->rows_left};
  p->held = (weft_candidate){.tenant_clock = UINT64_MAX, .level = INT32_MIN};
  p->n_ahead = 0;
  if (p->engine->tenants.n_tenants == 1) return;
  p->step_charge = weft_cost_charge(&p->lane->cost, &full);
  if (paced) p->n_ahead = count_ahead(p);
}

void weft_share_hold(weft_planning *p, const weft_request *r) {
  weft_tenants *t = &p->engine->tenants;
  weft_candidate is = weft_tenants_candidate(t, r);
  t->claims[r->tenant].held = true;
  if (is.tenant_clock < p->held.tenant_clock) p->held.tenant_clock = is.tenant_clock;
  if (is.level > p->held.level) p->held.level = is.level;
}

bool weft_share_has_time(weft_planning *p, const weft_request *r) {
  if (!p->engine->tenants.claims[r->tenant].ahead) return true;
  return weft_pace_decode(&p->pace, r->n_planned);
}

/* A request whose tenant is far ahead of one that was held back waits: else that tenant alone would pay for the
 * target. */
static bool waits_for_held(const weft_planning *p, const weft_request *r, const weft_candidate *is) {
  if (p->held.tenant_clock == UINT64_MAX || is->level > p->held.level) return false;
  return is_ahead(p, r->tenant, p->held.tenant_clock, WEFT_PACE_AHEAD);
}

/* ---- the iterator: the works of each tenant ---------------------------------------------------- */

static weft_tenants *tenants_of(const weft_share *s) {
  return &s->p->engine->tenants;
}

static void note_want(const weft_share *s, uint32_t tenant) {
  tenants_of(s)->claims[tenant].wants |= UINT64_C(1) << s->p->lane->index;
}

static void gather_works(const weft_share *s) {
  weft_tenants *tenants = tenants_of(s);
  weft_lane *lane = s->p->lane;
  weft_link *link;
  for (uint32_t i = 0; s->with_ready && i < lane->ready.n; i++) {
    weft_request *r = lane->ready.at[i];
    if (r != NULL) weft_list_push_back(&tenants->tenant[r->tenant].works, &r->link);
  }
  while ((link = weft_list_pop_front(&lane->prefilling)) != NULL) {
    weft_request *r = WEFT_OF_LINK(link, weft_request, link);
    weft_list_push_back(&tenants->tenant[r->tenant].works, link);
  }
}

/* Finds the tenants that contend, and the level of each class by the age of its next requests. */
static void gather_contenders(weft_share *s) {
  const weft_engine *e = s->p->engine;
  const weft_lane *lane = s->p->lane;
  weft_tenants *tenants = tenants_of(s);
  weft_tenants_reset_levels(tenants);
  if (e->claims.waiter != NULL) weft_tenants_raise_level(tenants, e->claims.waiter, e->now_us);
  for (uint32_t i = 0; i < tenants->n_tenants; i++) {
    const weft_link *works = &tenants->tenant[i].works;
    const weft_request *waits = weft_tenants_first(tenants, lane->index, i), *runs = NULL;
    if (!weft_list_empty(works)) runs = WEFT_OF_LINK(works->next, weft_request, link);
    tenants->claims[i].wants &= ~(UINT64_C(1) << lane->index);
    tenants->claims[i].passed = false;
    weft_tenants_charge(tenants, i, &lane->cost);
    if (waits != NULL) weft_tenants_raise_level(tenants, waits, e->now_us);
    if (runs != NULL) weft_tenants_raise_level(tenants, runs, e->now_us);
    if (waits != NULL || runs != NULL) tenants->contender[s->n_contenders++] = i;
  }
}

void weft_share_begin(weft_share *s, weft_planning *p, bool with_ready) {
  *s = (weft_share){.p = p, .with_ready = with_ready, .admitting = p->lane->stay == WEFT_STAY_HERE};
  weft_list_init(&s->served);
  weft_list_init(&s->skipped);
  gather_works(s);
  gather_contenders(s);
}

static weft_request *first_of_tenant(const weft_share *s, uint32_t tenant) {
  const weft_tenants *tenants = tenants_of(s);
  const weft_link *works = &tenants->tenant[tenant].works;
  if (!weft_list_empty(works)) return WEFT_OF_LINK(works->next, weft_request, link);
  weft_request *r = weft_tenants_first(tenants, s->p->lane->index, tenant);
  if (r == NULL || (s->admitting && !tenants->claims[tenant].passed)) return r;
  note_want(s, tenant); /* it waits for others, not for a limit of its own */
  return NULL;
}

static weft_request *find_due(weft_share *s) {
  const weft_tenants *tenants = tenants_of(s);
  uint32_t *contender = tenants->contender;
  weft_request *best = NULL;
  weft_candidate best_is = {0};
  for (uint32_t i = 0; i < s->n_contenders;) {
    weft_request *r = first_of_tenant(s, contender[i]);
    if (r == NULL) {
      contender[i] = contender[--s->n_contenders];
      continue;
    }
    i += 1;
    weft_candidate is = weft_tenants_candidate(tenants, r);
    if (waits_for_held(s->p, r, &is)) continue;
    if (best != NULL && !weft_policy_is_due_before(&is, &best_is)) continue;
    best = r;
    best_is = is;
  }
  return best;
}

weft_request *weft_share_next(weft_share *s) {
  weft_request *r = s->p->rows_left > 0 ? find_due(s) : NULL;
  if (r != NULL && r->state != WEFT_REQUEST_WAITING) weft_list_remove(&r->link);
  return r;
}

void weft_share_served(weft_share *s, weft_request *r, bool was_ready, bool done) {
  if (was_ready && !done) note_want(s, r->tenant);
  if (r->prefilling) weft_list_push_back(done ? &s->served : &s->skipped, &r->link);
}

static void note_wants(const weft_share *s, const weft_link *list) {
  for (const weft_link *at = list->next; at != list; at = at->next) {
    note_want(s, WEFT_OF_LINK(at, weft_request, link)->tenant);
  }
}

/* Prompts in the order of the next step: skipped, not reached, served, new. */
void weft_share_end(weft_share *s) {
  weft_lane *lane = s->p->lane;
  weft_tenants *tenants = tenants_of(s);
  note_wants(s, &s->skipped);
  note_wants(s, &s->served);
  note_wants(s, &lane->prefilling);
  for (uint32_t i = 0; i < s->n_contenders; i++) {
    uint32_t tenant = tenants->contender[i];
    weft_link *link;
    note_want(s, tenant); /* the walk ended before it had nothing more to ask for */
    while ((link = weft_list_pop_front(&tenants->tenant[tenant].works)) != NULL) {
      if (WEFT_OF_LINK(link, weft_request, link)->prefilling) weft_list_push_back(&s->skipped, link);
    }
  }
  weft_list_splice_front(&lane->prefilling, &s->served);
  weft_list_splice_front(&lane->prefilling, &s->skipped);
  if (s->with_ready) weft_ready_settle(&lane->ready, s->p->plan->number);
}
