/* SPDX-License-Identifier: MIT */
#include "scheduler/debt.h"

weft_debt weft_debt_open(const weft_engine *e, const weft_request *r, weft_debt_of of, uint32_t wanted) {
  uint32_t n_places = e->lane[r->lane].info->n_slots;
  if (e->config.running_max < n_places) n_places = e->config.running_max;
  return (weft_debt){.of = of,
                     .n = of == WEFT_DEBT_PAGES ? e->config.n_pages : n_places,
                     .wanted = wanted,
                     .active_weight = weft_tenants_active_weight(&e->tenants)};
}

static uint32_t holding_of(const weft_engine *e, const weft_debt *d, uint32_t tenant) {
  return d->of == WEFT_DEBT_PAGES ? weft_pager_owner_usage(e->pager, tenant).n_pinned
                                  : e->tenants.tenant[tenant].stats.n_running;
}

static uint32_t share_of(const weft_engine *e, const weft_debt *d, uint32_t tenant) {
  return weft_tenants_part(&e->tenants, tenant, d->n, d->active_weight);
}

bool weft_debt_is_within_share(const weft_engine *e, const weft_debt *d, const weft_request *r) {
  return holding_of(e, d, r->tenant) + d->wanted <= share_of(e, d, r->tenant);
}

bool weft_debt_owes(const weft_engine *e, const weft_debt *d, uint32_t tenant, const weft_request *r) {
  const weft_tenant *a = &e->tenants.tenant[tenant], *b = &e->tenants.tenant[r->tenant];
  return tenant != r->tenant && a->stats.n_running > 1 && a->config.priority_class <= b->config.priority_class &&
         holding_of(e, d, tenant) > share_of(e, d, tenant);
}

weft_request *weft_debt_find(const weft_engine *e, const weft_debt *d, const weft_request *r) {
  if (e->tenants.n_tenants == 1 || !weft_debt_is_within_share(e, d, r)) return NULL;
  weft_request *last = NULL;
  for (uint32_t i = 0; i < e->n_running; i++) {
    weft_request *other = e->ranked[i];
    if (e->rank[i].excluded || (d->of == WEFT_DEBT_SLOTS && other->lane != r->lane)) continue;
    if (last != NULL && other->arrival < last->arrival) continue;
    if (weft_debt_owes(e, d, other->tenant, r)) last = other;
  }
  return last;
}

bool weft_debt_goes_before_starved(const weft_engine *e, const weft_request *r) {
  const weft_request *starved = e->claims.starved;
  if (starved == NULL) return true;
  if (e->tenants.n_tenants == 1) return false;
  weft_debt debt = weft_debt_open(e, r, WEFT_DEBT_PAGES, 1);
  return weft_debt_is_within_share(e, &debt, r) && weft_debt_owes(e, &debt, starved->tenant, r);
}
