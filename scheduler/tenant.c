/* SPDX-License-Identifier: MIT */
#include "scheduler/tenant.h"

#include <string.h>

#include "base/memory.h"

#define CLOCK_MAX (UINT64_C(1) << 62)

weft_status weft_tenants_open(weft_tenants *tenants, const weft_tenant_config *config, uint32_t n_tenants,
                              uint32_t n_lanes) {
  *tenants = (weft_tenants){.n_tenants = n_tenants, .n_lanes = n_lanes};
  tenants->tenant = weft_alloc(n_tenants, sizeof *tenants->tenant);
  tenants->queue = weft_alloc((size_t)n_tenants * n_lanes, sizeof *tenants->queue);
  tenants->ready = weft_alloc((size_t)n_tenants * n_lanes, sizeof *tenants->ready);
  tenants->answered = weft_alloc((size_t)n_tenants * n_lanes, sizeof *tenants->answered);
  tenants->contender = weft_alloc(n_tenants, sizeof *tenants->contender);
  tenants->excess = weft_alloc(n_tenants, sizeof *tenants->excess);
  tenants->claims = weft_alloc(n_tenants, sizeof *tenants->claims);
  tenants->shared = weft_alloc(n_tenants, sizeof *tenants->shared);
  if (tenants->tenant == NULL || tenants->queue == NULL || tenants->ready == NULL || tenants->answered == NULL ||
      tenants->contender == NULL || tenants->excess == NULL || tenants->claims == NULL || tenants->shared == NULL) {
    weft_tenants_close(tenants);
    return WEFT_E_NO_MEMORY;
  }
  for (size_t i = 0; i < (size_t)n_tenants * n_lanes; i++) weft_list_init(&tenants->queue[i]);
  for (uint32_t i = 0; i < n_tenants; i++) {
    const weft_tenant_config plain = {.weight = 0};
    weft_tenants_change(tenants, i, config == NULL ? &plain : &config[i]);
    weft_list_init(&tenants->tenant[i].works);
  }
  weft_tenants_reset_levels(tenants);
  return WEFT_OK;
}

void weft_tenants_change(weft_tenants *tenants, uint32_t tenant, const weft_tenant_config *config) {
  weft_tenant *t = &tenants->tenant[tenant];
  t->config = *config;
  if (t->config.weight == 0) t->config.weight = 1;
  t->ticks = WEFT_CLOCK_UNIT / t->config.weight;
}

void weft_tenants_close(weft_tenants *tenants) {
  weft_free(tenants->tenant);
  weft_free(tenants->queue);
  weft_free(tenants->ready);
  weft_free(tenants->answered);
  weft_free(tenants->contender);
  weft_free(tenants->excess);
  weft_free(tenants->claims);
  weft_free(tenants->shared);
  memset(tenants, 0, sizeof *tenants);
}

/* ---- queues ---------------------------------------------------------------------------------- */

static weft_link *queue_of(const weft_tenants *tenants, uint32_t lane, uint32_t tenant) {
  return &tenants->queue[(size_t)lane * tenants->n_tenants + tenant];
}

bool weft_tenants_queued_before(const weft_request *a, const weft_request *b) {
  int64_t aged_a = (int64_t)a->usage.submitted_us - a->params.asked.priority * (int64_t)WEFT_AGE_US;
  int64_t aged_b = (int64_t)b->usage.submitted_us - b->params.asked.priority * (int64_t)WEFT_AGE_US;
  if (aged_a != aged_b) return aged_a < aged_b;
  return a->arrival < b->arrival;
}

/* New requests belong near the tail, requests that come back (preempted, followers) near the head:
 * one walk from the end that is closer by arrival. */
void weft_tenants_enqueue(weft_tenants *tenants, weft_request *request) {
  weft_tenant *tenant = &tenants->tenant[request->tenant];
  if (!weft_tenants_is_active(tenant) && tenant->clock < tenants->now) tenant->clock = tenants->now;
  tenants->claims[request->tenant].wants |= UINT64_C(1) << request->lane; /* until its lane is planned */
  tenant->n_queued += 1;
  tenant->queued_cost += request->n_tokens;
  tenant->changed = true;
  weft_link *queue = queue_of(tenants, request->lane, request->tenant), *at;
  if (request->admitted_once || request->wait.retry_plan > 0) {
    for (at = queue->next; at != queue; at = at->next) {
      if (weft_tenants_queued_before(request, WEFT_OF_LINK(at, weft_request, link))) break;
    }
  } else {
    for (at = queue; at->prev != queue; at = at->prev) {
      if (weft_tenants_queued_before(WEFT_OF_LINK(at->prev, weft_request, link), request)) break;
    }
  }
  weft_list_insert_before(at, &request->link);
}

void weft_tenants_dequeued(weft_tenants *tenants, const weft_request *request) {
  weft_tenant *tenant = &tenants->tenant[request->tenant];
  tenant->n_queued -= 1;
  tenant->queued_cost -= request->n_tokens;
  tenant->changed = true;
}

bool weft_tenants_may_start(const weft_tenants *tenants, uint32_t tenant) {
  const weft_tenant *t = &tenants->tenant[tenant];
  const weft_tenant_claims *claims = &tenants->claims[tenant];
  if (claims->starved != NULL || claims->limited > 0) return false;
  return t->config.running_max == 0 || t->stats.n_running < t->config.running_max;
}

void weft_tenants_unlimit(weft_tenants *tenants) {
  for (uint32_t i = 0; i < tenants->n_tenants; i++) tenants->claims[i].limited = 0;
}

weft_request *weft_tenants_first(const weft_tenants *tenants, uint32_t lane, uint32_t tenant) {
  weft_link *queue = queue_of(tenants, lane, tenant);
  if (weft_list_empty(queue) || !weft_tenants_may_start(tenants, tenant)) return NULL;
  return WEFT_OF_LINK(queue->next, weft_request, link);
}

weft_request *weft_tenants_any(const weft_tenants *tenants, uint32_t lane) {
  for (uint32_t i = 0; i < tenants->n_tenants; i++) {
    weft_link *queue = queue_of(tenants, lane, i);
    if (!weft_list_empty(queue)) return WEFT_OF_LINK(queue->next, weft_request, link);
  }
  return NULL;
}

/* ---- order ----------------------------------------------------------------------------------- */

void weft_tenants_reset_levels(weft_tenants *tenants) {
  for (int32_t i = 0; i < WEFT_CLASSES; i++) tenants->level[i] = i + WEFT_CLASS_LOW;
}

void weft_tenants_raise_level(weft_tenants *tenants, const weft_request *request, uint64_t now_us) {
  int32_t class = tenants->tenant[request->tenant].config.priority_class;
  uint64_t since = request->usage.submitted_us, age = now_us > since ? now_us - since : 0;
  int32_t level = weft_policy_level(class, age), *own = &tenants->level[class - WEFT_CLASS_LOW];
  if (level > *own) *own = level;
}

weft_candidate weft_tenants_candidate(const weft_tenants *tenants, const weft_request *request) {
  const weft_tenant *tenant = &tenants->tenant[request->tenant];
  return (weft_candidate){.tenant_clock = tenant->clock,
                          .arrival = request->arrival,
                          .level = tenants->level[tenant->config.priority_class - WEFT_CLASS_LOW]};
}

weft_rank weft_tenants_rank(const weft_tenants *tenants, const weft_request *request) {
  bool alone = tenants->n_tenants == 1; /* then a priority takes no memory of another tenant */
  return (weft_rank){
      .arrival = request->arrival,
      .tenant = request->tenant,
      .priority = alone ? request->params.asked.priority : tenants->tenant[request->tenant].config.priority_class};
}

uint64_t weft_tenants_active_weight(const weft_tenants *tenants) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < tenants->n_tenants; i++) {
    const weft_tenant *t = &tenants->tenant[i];
    if (weft_tenants_is_active(t)) sum += t->config.weight;
  }
  return sum;
}

uint32_t weft_tenants_part(const weft_tenants *tenants, uint32_t tenant, uint32_t n, uint64_t active_weight) {
  uint64_t own = tenants->tenant[tenant].config.weight;
  uint64_t part = active_weight > own ? n * own / active_weight : n;
  return part > 0 ? (uint32_t)part : 1;
}

/* ---- clocks ---------------------------------------------------------------------------------- */

static void charge_tenant(weft_tenant *t, uint64_t cost) {
  t->clock += (cost - t->charged) * t->ticks;
  t->charged = cost;
}

void weft_tenants_charge(weft_tenants *tenants, uint32_t tenant, const weft_cost_model *model) {
  weft_tenant *t = &tenants->tenant[tenant];
  charge_tenant(t, weft_cost_of_part(model, &t->planned));
}

weft_cost_shape weft_tenants_planned(const weft_tenants *tenants) {
  weft_cost_shape all = {0};
  for (uint32_t i = 0; i < tenants->n_tenants; i++) weft_cost_join(&all, &tenants->tenant[i].planned);
  return all;
}

/* Only device time that a tenant uses while others have requests counts; time without rivals is free. */
static void remember_use(weft_tenants *tenants, uint64_t whole) {
  if (!weft_tenants_are_rivals(tenants)) return;
  const double span = (double)WEFT_LATELY_US * WEFT_COST_PER_US;
  double keep = span / (span + (double)whole);
  for (uint32_t i = 0; i < tenants->n_tenants; i++) {
    weft_tenant *t = &tenants->tenant[i];
    t->used_lately = keep * t->used_lately + (double)t->charged;
  }
}

void weft_tenants_settle(weft_tenants *tenants, uint32_t lane, const weft_cost_model *model,
                         const weft_cost_shape *step) {
  uint64_t sum = 0, whole = weft_cost_charge(model, step);
  for (uint32_t i = 0; i < tenants->n_tenants; i++) {
    weft_tenants_charge(tenants, i, model);
    sum += tenants->tenant[i].charged;
  }
  double scale = whole > sum ? (double)whole / (double)sum : 1.0;
  for (uint32_t i = 0; i < tenants->n_tenants; i++) {
    weft_tenant *t = &tenants->tenant[i];
    weft_tenant_claims *claims = &tenants->claims[i];
    if (claims->held) claims->wants |= UINT64_C(1) << lane;
    claims->held = false;
    if (t->charged > 0) charge_tenant(t, (uint64_t)((double)t->charged * scale));
  }
  remember_use(tenants, whole);
  for (uint32_t i = 0; i < tenants->n_tenants; i++) {
    weft_tenant *t = &tenants->tenant[i];
    if (t->charged == 0) continue;
    t->stats.n_rows += t->planned.n_rows;
    t->charged_before += t->charged;
    t->planned = (weft_cost_shape){0};
    t->charged = 0;
  }
}

/* Clocks are only compared with each other, so all may be turned back by the same amount before they overflow. */
static void turn_back(weft_tenants *tenants) {
  for (uint32_t i = 0; i < tenants->n_tenants; i++) {
    uint64_t *clock = &tenants->tenant[i].clock;
    *clock = *clock > tenants->now ? *clock - tenants->now : 0;
  }
  tenants->now = 0;
}

void weft_tenants_level(weft_tenants *tenants, uint64_t lanes_with_work) {
  uint64_t least = UINT64_MAX, most = 0;
  for (uint32_t i = 0; i < tenants->n_tenants; i++) {
    const weft_tenant *t = &tenants->tenant[i];
    weft_tenant_claims *claims = &tenants->claims[i];
    claims->wants &= weft_tenants_is_active(t) ? lanes_with_work : 0;
    if (claims->limited > 0) claims->limited -= 1;
    if (claims->wants != 0 && t->clock < least) least = t->clock;
    if (t->clock > most) most = t->clock;
  }
  uint64_t now = least == UINT64_MAX ? most : least;
  if (now > tenants->now) tenants->now = now;
  for (uint32_t i = 0; i < tenants->n_tenants; i++) {
    weft_tenant *t = &tenants->tenant[i];
    if (tenants->claims[i].wants == 0 && t->clock < tenants->now) t->clock = tenants->now;
  }
  if (tenants->now >= CLOCK_MAX) turn_back(tenants);
}

uint64_t weft_tenants_answered(const weft_tenants *tenants, uint32_t lane) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < tenants->n_tenants; i++) sum += tenants->answered[(size_t)lane * tenants->n_tenants + i];
  return sum;
}

/* ---- what others see ------------------------------------------------------------------------- */

void weft_tenants_share(weft_tenants *tenants, const weft_pager *pager) {
  for (uint32_t i = 0; i < tenants->n_tenants; i++) {
    weft_tenant *t = &tenants->tenant[i];
    weft_owner_usage usage = weft_pager_owner_usage(pager, i);
    bool evicted = t->stats.n_blocks_cached != usage.n_cached; /* by others, while it did nothing */
    if (!t->changed && !evicted && t->stats.n_running == 0) continue;
    t->changed = false;
    t->stats.n_answer_tokens = 0;
    for (uint32_t lane = 0; lane < tenants->n_lanes; lane++)
      t->stats.n_answer_tokens += tenants->answered[(size_t)lane * tenants->n_tenants + i];
    t->stats.charged_us = t->charged_before / WEFT_COST_PER_US;
    t->stats.n_blocks = usage.n_pinned;
    t->stats.n_blocks_cached = usage.n_cached;
    tenants->shared[i] = (weft_tenant_view){
        .stats = t->stats, .n_queued = t->n_queued, .queued_cost = t->queued_cost, .active = weft_tenants_is_active(t)};
  }
}

double weft_tenants_share_of(const weft_tenants *tenants, uint32_t tenant) {
  double sum = 0, own = tenants->tenant[tenant].config.weight;
  for (uint32_t i = 0; i < tenants->n_tenants; i++) {
    if (tenants->shared[i].active || i == tenant) sum += tenants->tenant[i].config.weight;
  }
  return own / sum;
}
