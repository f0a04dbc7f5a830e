/* SPDX-License-Identifier: MIT */
#include "scheduler/relief.h"

#include "scheduler/debt.h"
#include "scheduler/pins.h"

/* The first position before which the rows up to `end` may be void. Of a run all but the first may be; and the last row
 * of a prompt may be told to the pager later (lifecycle.c). */
static uint32_t sure_end(const weft_request *r, uint32_t end) {
  if (r->prefilling) return end == r->n_prompt ? end - 1 : end;
  return r->denoises ? end : r->n_planned + 1;
}

/* Blocks for the positions before `end`, and for the rest of the smallest block that `end` lies in: that costs no page,
 * since every group's block is a multiple of it; but where it ends at a border it costs a state. */
static weft_status reserve_to(weft_engine *e, weft_request *r, uint32_t end) {
  const weft_lane *lane = &e->lane[r->lane];
  uint32_t grain = lane->block_min;
  uint32_t rounded = (end + grain - 1) & ~(grain - 1);
  if (rounded > e->config.seq_tokens_max) rounded = e->config.seq_tokens_max;
  if (lane->border_min != 0 && (rounded & (lane->border_min - 1)) == 0) rounded = end;
  weft_status status =
      weft_pager_reserve(e->pager, r->seq, rounded - r->n_committed, sure_end(r, end) - r->n_committed);
  WEFT_CHECK(status == WEFT_OK || status == WEFT_NO_BLOCKS ||
             status == WEFT_QUOTA); /* lengths were checked at submit */
  if (status == WEFT_OK) r->n_reserved = rounded;
  return status;
}

uint32_t weft_relief_reserve(weft_engine *e, weft_request *r, uint32_t n, bool may_shrink, bool *limited) {
  weft_status status = WEFT_OK;
  for (uint32_t got = n; got > 0; got = may_shrink ? got / 2 : 0) {
    status = reserve_to(e, r, r->n_planned + got);
    if (status == WEFT_OK) return got;
  }
  *limited = status == WEFT_QUOTA;
  return 0;
}

static bool is_first_in_rank(const weft_engine *e, const weft_rank *rank) {
  for (uint32_t i = 0; i < e->n_running; i++) {
    if (!e->rank[i].excluded && weft_policy_goes_before(&e->rank[i], rank)) return false;
  }
  return true;
}

static weft_request *find_victim(weft_engine *e, const weft_request *r, bool own_only) {
  weft_tenants *t = &e->tenants;
  if (e->claims.n_leaving > 0) return NULL; /* blocks of a preempted request are on their way */
  uint64_t weight = weft_tenants_active_weight(t);
  for (uint32_t i = 0; i < t->n_tenants; i++) {
    uint32_t held = weft_pager_owner_usage(e->pager, i).n_pinned;
    uint32_t part = weft_tenants_part(t, i, e->config.n_pages, weight);
    t->excess[i] = held > part ? held - part : 0;
  }
  weft_rank rank = weft_tenants_rank(t, r);
  uint32_t victim = weft_policy_victim(e->rank, e->n_running, &rank, t->excess, own_only);
  if (victim == WEFT_POLICY_NONE) return NULL;
  /* a tenant that is owed pages would take them back at once (debt.h), and so on without end */
  bool owes = !own_only && t->excess[r->tenant] > 0 && t->excess[e->ranked[victim]->tenant] == 0;
  bool equals = rank.priority == e->rank[victim].priority;
  return owes && equals && !is_first_in_rank(e, &rank) ? NULL : e->ranked[victim];
}

bool weft_relief_yields(const weft_engine *e, const weft_request *r, uint32_t n) {
  const weft_request *waiter = e->claims.waiter;
  if (waiter == NULL || waiter->tenant == r->tenant || e->claims.waits_for != WEFT_DEBT_PAGES) return false;
  if (e->claims.none_set_aside) return false;
  if (!weft_tenants_may_start(&e->tenants, waiter->tenant) || !weft_debt_goes_before_starved(e, waiter)) return false;
  uint32_t own = weft_lane_pages_for_rows(&e->lane[r->lane], n);
  if (weft_pager_headroom(e->pager) >= waiter->wait.need_pages + own) return false;
  weft_debt debt = weft_debt_open(e, waiter, WEFT_DEBT_PAGES, waiter->wait.need_pages);
  return weft_debt_is_within_share(e, &debt, waiter) && weft_debt_owes(e, &debt, r->tenant, waiter);
}

static weft_request *find_debtor(const weft_engine *e, const weft_request *r) {
  if (e->claims.n_leaving > 0) return NULL;
  weft_debt debt =
      weft_debt_open(e, r, WEFT_DEBT_PAGES, e->lane[r->lane].info->n_groups + e->lane[r->lane].state_pages);
  return weft_debt_find(e, &debt, r);
}

weft_relief weft_relief_decide(weft_engine *e, const weft_request *r, bool limited) {
  if (r->n_valid > r->n_committed) return (weft_relief){.kind = WEFT_RELIEF_COMMIT};
  if (!limited && weft_pins_spare(e, r) > 0) return (weft_relief){.kind = WEFT_RELIEF_PIN};
  weft_request *victim = find_victim(e, r, limited);
  if (victim == NULL && !limited) victim = find_debtor(e, r);
  if (victim != NULL) return (weft_relief){.kind = WEFT_RELIEF_PREEMPT, .victim = victim, .within_tenant = limited};
  return (weft_relief){.kind = WEFT_RELIEF_WAIT, .within_tenant = limited};
}
