/* SPDX-License-Identifier: MIT */
/* Tenants: what each has used, and who of its requests waits for which lane.
 *
 * Law. The clock of a tenant is its virtual time: what it was charged (cost.h), divided by its weight. While a plan is
 * made, the clock runs ahead by what the tenant's rows, keys and outputs cost alone; when the plan is complete, by the
 * tenant's part of the whole step. Among tenants with work the one with the smallest clock is served first (share.h). No
 * tenant saves up time: one that wanted nothing more at the end of a plan, or that comes back from having nothing to do,
 * has its clock raised to `now`, the smallest clock of the tenants that still want rows. No tenant pays for time without
 * rivals: while all get what they want, all clocks are raised to the same value. Each queue (tenant x lane) is in order
 * of submission, where one unit of priority counts as having come WEFT_AGE_US earlier. */
#ifndef WEFT_SCHEDULER_TENANT_H
#define WEFT_SCHEDULER_TENANT_H

#include "scheduler/claims.h"
#include "scheduler/cost.h"
#include "scheduler/policy.h"
#include "scheduler/request.h"
#include "scheduler/stats.h"

/* Clock ticks of one unit of cost at weight 1; 1 to 16 divide it. */
enum { WEFT_CLOCK_UNIT = 720720 };
/* What a tenant has used fades over this much device time. */
enum { WEFT_LATELY_US = 1000000 };

/* Requests of a tenant on a lane that decode or denoise. */
typedef struct weft_tenant_ready {
  uint32_t n, n_decode;
} weft_tenant_ready;

typedef struct weft_tenant {
  weft_tenant_config config; /* defaults filled in */
  uint32_t ticks;            /* of one unit of cost */
  uint64_t clock;
  weft_cost_shape planned; /* for it in the present plan */
  uint64_t charged;        /* for that, so far */
  uint64_t charged_before; /* for all plans before */
  double used_lately;      /* charged while other tenants had requests, the last WEFT_LATELY_US above all */
  uint32_t n_queued;
  weft_link works;         /* what share.c may still plan for it in the present plan */
  uint64_t queued_cost;    /* of the prompts in its queues */
  bool changed;            /* stats, since they were last shared */
  weft_tenant_stats stats; /* what waits, was refused or evicted is the inbox's */
} weft_tenant;

/* What other threads may see of it. */
typedef struct weft_tenant_view {
  weft_tenant_stats stats;
  uint64_t queued_cost;
  uint32_t n_queued;
  bool active;
} weft_tenant_view;

typedef struct weft_tenants {
  uint32_t n_tenants, n_lanes;
  uint64_t now;                /* virtual time; never falls */
  int32_t level[WEFT_CLASSES]; /* of each class in this plan, the lowest class first */
  weft_tenant *tenant;         /* [n_tenants] */
  weft_tenant_claims *claims;  /* [n_tenants], the engine's claims of each tenant */
  weft_link *queue;            /* [n_lanes][n_tenants] */
  weft_tenant_ready *ready;    /* [n_lanes][n_tenants] */
  uint32_t *contender;         /* [n_tenants], scratch of share.c */
  uint32_t *excess;            /* [n_tenants], scratch of victims */
  weft_tenant_view *shared;    /* [n_tenants], under the engine's stats_mutex */
} weft_tenants;

/* config: [n_tenants] or NULL. */
weft_status weft_tenants_open(weft_tenants *tenants, const weft_tenant_config *config, uint32_t n_tenants,
                              uint32_t n_lanes);
void weft_tenants_close(weft_tenants *tenants);
/* Puts a waiting request where its priority and arrival say. */
void weft_tenants_enqueue(weft_tenants *tenants, weft_request *request);
/* The caller has taken the request out of its queue, by its link: it is counted as queued no longer. */
void weft_tenants_dequeued(weft_tenants *tenants, const weft_request *request);
/* The order of one tenant's requests in its queue. */
bool weft_tenants_queued_before(const weft_request *a, const weft_request *b);
/* Its limits let one more request start. */
bool weft_tenants_may_start(const weft_tenants *tenants, uint32_t tenant);
/* The first waiting request of a tenant on a lane that its limits let start; NULL when there is
 * none. It stays queued. */
weft_request *weft_tenants_first(const weft_tenants *tenants, uint32_t lane, uint32_t tenant);
/* Blocks came free, so every tenant that was held back by its own limit of blocks may try again: the blocks may be
 * another tenant's, and a block that two tenants shared may now be charged to either. */
void weft_tenants_unlimit(weft_tenants *tenants);
/* Any request in the lane's queues; NULL when empty. */
weft_request *weft_tenants_any(const weft_tenants *tenants, uint32_t lane);
/* Classes stand where they are, until weft_tenants_raise_level. */
void weft_tenants_reset_levels(weft_tenants *tenants);
/* The class of the request's tenant is raised by its age: all tenants of a class stand together, so
 * that whose requests grow old in its own queue gains nothing over others of its class. */
void weft_tenants_raise_level(weft_tenants *tenants, const weft_request *request, uint64_t now_us);
/* How the request stands against those of other tenants. */
weft_candidate weft_tenants_candidate(const weft_tenants *tenants, const weft_request *request);
/* How it stands when memory is short. */
weft_rank weft_tenants_rank(const weft_tenants *tenants, const weft_request *request);
/* Sum of the weights of those that have requests now. */
uint64_t weft_tenants_active_weight(const weft_tenants *tenants);
/* What a tenant, one of them, would have of n things; at least 1. */
uint32_t weft_tenants_part(const weft_tenants *tenants, uint32_t tenant, uint32_t n, uint64_t active_weight);
/* The tenant's clock, by what is planned for it so far. */
void weft_tenants_charge(weft_tenants *tenants, uint32_t tenant, const weft_cost_model *model);
/* What is planned for all. */
weft_cost_shape weft_tenants_planned(const weft_tenants *tenants);
/* The plan of a lane is complete: each tenant pays its part of the step. */
void weft_tenants_settle(weft_tenants *tenants, uint32_t lane, const weft_cost_model *model,
                         const weft_cost_shape *step);
/* Raises the clocks of all tenants that want nothing (claims.h says who does), as the law above says. */
void weft_tenants_level(weft_tenants *tenants, uint64_t lanes_with_work);

/* Both under the engine's stats_mutex; share_of by any thread. */
void weft_tenants_share(weft_tenants *tenants, const weft_pager *pager);
/* The part of the device that the tenant would have among those that are active now, (0 .. 1]. */
double weft_tenants_share_of(const weft_tenants *tenants, uint32_t tenant);

/* It has requests. */
static inline bool weft_tenants_is_active(const weft_tenant *tenant) {
  return tenant->n_queued > 0 || tenant->stats.n_running > 0;
}

static inline uint64_t weft_tenants_ticks(const weft_tenants *tenants, uint32_t tenant, uint64_t cost) {
  return cost * tenants->tenant[tenant].ticks;
}

/* The request begins to decode or denoise, and ends to. */
static inline void weft_tenants_ready(weft_tenants *tenants, const weft_request *r, bool begins) {
  weft_tenant_ready *ready = &tenants->ready[(size_t)r->lane * tenants->n_tenants + r->tenant];
  uint32_t by = begins ? 1 : UINT32_MAX; /* one less */
  ready->n += by;
  if (!r->canvas) ready->n_decode += by;
}

#endif
