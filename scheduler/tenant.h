/* SPDX-License-Identifier: MIT */
/* Tenants: what each tenant has used, and which of its requests wait for which lane. Engine thread, except where said.
 *
 * Law. The clock of a tenant is its virtual time: what it was charged (cost.h), divided by its weight, as in weighted
 * fair queueing and in the virtual token counter of Sheng et al. (arXiv 2401.00588). While a plan is made, the clock
 * runs ahead by what the tenant's rows, keys and outputs cost alone; when the plan is complete, by the tenant's part
 * of the whole step. Among tenants with work the one with the smallest clock is served first (share.h). No tenant
 * saves up time: a tenant that wanted nothing more at the end of a plan, or that comes back after having had no
 * requests, has its clock raised to `now`, the smallest clock of the tenants that still want rows. No tenant pays for
 * time that it used without rivals: while all get what they want, all clocks are raised to the same value. Each queue
 * (one for each lane and tenant) is in order of submission, where one unit of a request's priority counts as having
 * been submitted WEFT_AGE_US earlier. */
#ifndef WEFT_SCHEDULER_TENANT_H
#define WEFT_SCHEDULER_TENANT_H

#include "scheduler/claims.h"
#include "scheduler/cost.h"
#include "scheduler/policy.h"
#include "scheduler/request.h"
#include "scheduler/stats.h"

/* Clock ticks of one unit of cost at weight 1. Every number from 1 to 16 divides it, so that clocks of such weights
 * are exact. */
enum { WEFT_CLOCK_UNIT = 720720 };
/* used_lately of a tenant fades over this much device time. */
enum { WEFT_LATELY_US = 1000000 };

/* How many requests of a tenant on a lane decode or denoise; n_decode of them decode. */
typedef struct weft_tenant_ready {
  uint32_t n, n_decode;
} weft_tenant_ready;

typedef struct weft_tenant {
  weft_tenant_config config; /* defaults filled in */
  uint32_t ticks;            /* by which one unit of cost moves the clock: WEFT_CLOCK_UNIT / weight */
  uint64_t clock;
  weft_cost_shape planned; /* its rows, keys and outputs in the present plan */
  uint64_t charged;        /* for them so far, in 1/256 us */
  uint64_t charged_before; /* for all plans before, in 1/256 us */
  double used_lately;      /* charged while other tenants had requests, too; fades over WEFT_LATELY_US */
  uint32_t n_queued;
  weft_link works;         /* running requests that share.c may still plan in the present plan */
  uint64_t queued_cost;    /* tokens of the prompts in its queues */
  bool changed;            /* stats have changed since they were last copied to `shared` */
  weft_tenant_stats stats; /* without what waits, was refused or evicted: the inbox counts these */
} weft_tenant;

/* What other threads may see of a tenant: copied by weft_tenants_share. */
typedef struct weft_tenant_view {
  weft_tenant_stats stats;
  uint64_t queued_cost;
  uint32_t n_queued;
  bool active;
} weft_tenant_view;

typedef struct weft_tenants {
  uint32_t n_tenants, n_lanes;
  uint64_t now;                /* virtual time; never falls */
  int32_t level[WEFT_CLASSES]; /* the level of each class in this plan, the lowest class first */
  weft_tenant *tenant;         /* [n_tenants] */
  weft_tenant_claims *claims;  /* [n_tenants], the engine's claims of each tenant */
  weft_link *queue;            /* [n_lanes][n_tenants] */
  weft_tenant_ready *ready;    /* [n_lanes][n_tenants] */
  uint64_t *answered;          /* [n_lanes][n_tenants] tokens of answers, counted as they are made */
  uint32_t *contender;         /* [n_tenants], scratch of share.c */
  uint32_t *excess;            /* [n_tenants], scratch of relief.c: pages beyond each tenant's share */
  weft_tenant_view *shared;    /* [n_tenants], under the engine's stats_mutex */
} weft_tenants;

/* config: [n_tenants], copied, or NULL for defaults. NO_MEMORY. */
weft_status weft_tenants_open(weft_tenants *tenants, const weft_tenant_config *config, uint32_t n_tenants,
                              uint32_t n_lanes);
void weft_tenants_close(weft_tenants *tenants);
/* The tenant has these weight, class and limits from the next plan on; its clock stays. Engine thread, under the
 * engine's stats_mutex, between plans. */
void weft_tenants_change(weft_tenants *tenants, uint32_t tenant, const weft_tenant_config *config);
/* Puts a waiting request into its queue, where its priority and the time of its submission say. */
void weft_tenants_enqueue(weft_tenants *tenants, weft_request *request);
/* The caller has unlinked the request from its queue: the request is counted as queued no longer. */
void weft_tenants_dequeued(weft_tenants *tenants, const weft_request *request);
/* Whether a comes before b in a queue of their tenant. */
bool weft_tenants_queued_before(const weft_request *a, const weft_request *b);
/* Whether the limits and claims of the tenant let one more of its requests start. */
bool weft_tenants_may_start(const weft_tenants *tenants, uint32_t tenant);
/* The first waiting request of a tenant on a lane; it stays queued. NULL when there is none, or when
 * weft_tenants_may_start says no. */
weft_request *weft_tenants_first(const weft_tenants *tenants, uint32_t lane, uint32_t tenant);
/* Blocks came free, so every tenant that was held back by its own limit of blocks may try again: the blocks may be
 * another tenant's, and a block that two tenants shared may now be charged to either. */
void weft_tenants_unlimit(weft_tenants *tenants);
/* Any request in the lane's queues; NULL when empty. */
weft_request *weft_tenants_any(const weft_tenants *tenants, uint32_t lane);
/* Sets the level of each class to the class itself; weft_tenants_raise_level then raises it. */
void weft_tenants_reset_levels(weft_tenants *tenants);
/* Raises the level of the class that the request's tenant has by the age of the request (policy.h). The level belongs
 * to the class and not to the tenant, so a tenant whose requests grow old because it sent too many gains nothing over
 * the other tenants of its class. */
void weft_tenants_raise_level(weft_tenants *tenants, const weft_request *request, uint64_t now_us);
/* What decides whether the request is due before requests of other tenants. */
weft_candidate weft_tenants_candidate(const weft_tenants *tenants, const weft_request *request);
/* What decides whether the request keeps its memory when memory is short. */
weft_rank weft_tenants_rank(const weft_tenants *tenants, const weft_request *request);
/* The sum of the weights of the tenants that have requests now. */
uint64_t weft_tenants_active_weight(const weft_tenants *tenants);
/* The tenant's share of n pages or places by its weight among the active ones; at least 1. */
uint32_t weft_tenants_part(const weft_tenants *tenants, uint32_t tenant, uint32_t n, uint64_t active_weight);
/* Moves the tenant's clock by what is planned for it so far and not yet charged. */
void weft_tenants_charge(weft_tenants *tenants, uint32_t tenant, const weft_cost_model *model);
/* What is planned for all tenants together. */
weft_cost_shape weft_tenants_planned(const weft_tenants *tenants);
/* The plan of a lane is complete: each tenant is charged its part of the predicted time of the step. */
void weft_tenants_settle(weft_tenants *tenants, uint32_t lane, const weft_cost_model *model,
                         const weft_cost_shape *step);
/* Raises the clocks of all tenants that want nothing (claims.h, tenant.wants), as the law above says. */
void weft_tenants_level(weft_tenants *tenants, uint64_t lanes_with_work);

/* Tokens of answers by the lane's requests so far. */
uint64_t weft_tenants_answered(const weft_tenants *tenants, uint32_t lane);

/* Copies what other threads may see to `shared`. Engine thread, under the engine's stats_mutex. */
void weft_tenants_share(weft_tenants *tenants, const weft_pager *pager);
/* The part of the device that the tenant would have among those that are active now, in (0 .. 1]. Any thread, under
 * the engine's stats_mutex. */
double weft_tenants_share_of(const weft_tenants *tenants, uint32_t tenant);

/* Whether the tenant has requests, waiting or running. */
static inline bool weft_tenants_is_active(const weft_tenant *tenant) {
  return tenant->n_queued > 0 || tenant->stats.n_running > 0;
}

/* Whether two tenants or more have requests. */
static inline bool weft_tenants_are_rivals(const weft_tenants *tenants) {
  uint32_t n = 0;
  for (uint32_t i = 0; n < 2 && i < tenants->n_tenants; i++) n += weft_tenants_is_active(&tenants->tenant[i]);
  return n > 1;
}

static inline uint64_t weft_tenants_ticks(const weft_tenants *tenants, uint32_t tenant, uint64_t cost) {
  return cost * tenants->tenant[tenant].ticks;
}

/* Counts a request that begins (or ends) to decode or denoise. */
static inline void weft_tenants_ready(weft_tenants *tenants, const weft_request *r, bool begins) {
  weft_tenant_ready *ready = &tenants->ready[(size_t)r->lane * tenants->n_tenants + r->tenant];
  uint32_t by = begins ? 1 : UINT32_MAX; /* one less */
  ready->n += by;
  if (!r->denoises) ready->n_decode += by;
}

#endif
