/* SPDX-License-Identifier: MIT */
/* The state of an engine: data that the files of this room share. Engine thread only, except where a field says
 * otherwise.
 *
 * A turn goes one way through the files, and none of them calls a file in a row above its own:
 *
 *   engine, thread, submit             open and close; the loop on a thread of its own; judging a request
 *   step                               the order of a turn: inbox, expiry, launch, land
 *   planner                            the one loop that makes a plan: which request is due, which rows it gets
 *   perform, apply, guests             carry out what was decided; take in what a step computed, and who came or went
 *   share, light, runs, rows,          decide: whose turn it is, how long a step may be, how many drafts, which rows,
 *   admission, relief                  which request starts, where missing blocks come from
 *   lifecycle                          how a request changes state: enter, finish, preempt, leave, break
 *   waiting, pins, copies, snapshot,   queues and followers; pinned prefixes; ends of page copies; counters for other
 *   watch, visit, pool_size, fit,      threads, views, and visits; how large the pool is, and what it holds; the laws,
 *   check                              recomputed
 *
 * The files that decide change no request's state. What a decision needs of the pager (a pinned prefix, reserved
 * blocks) is taken while it is made, because it changes what fits for the next request of the same plan.
 *
 * Law. A running request is in exactly one list of its lane: prefilling (tokens that the host knows have no rows yet),
 * ready (it decodes or denoises) or leaving (nothing more is planned for it). Its sequence and its slot are given back
 * only when nothing of it is in flight, so a page is never handed on while a submitted step may still read or write
 * it. A lane whose model is away (guests.h) has no running request and nothing in flight. weft_engine_check (check.h)
 * recomputes this and the law of claims.h. */
#ifndef WEFT_SCHEDULER_STATE_H
#define WEFT_SCHEDULER_STATE_H

#include "base/check.h"
#include "base/clock.h"
#include "scheduler/batcher.h"
#include "scheduler/claims.h"
#include "scheduler/depth.h"
#include "scheduler/draft_history.h"
#include "scheduler/file_wait.h"
#include "scheduler/forecast.h"
#include "scheduler/inbox.h"
#include "scheduler/pace.h"
#include "scheduler/plan.h"
#include "scheduler/prefix_feed.h"
#include "scheduler/pin.h"
#include "scheduler/recorder.h"
#include "scheduler/stats.h"
#include "scheduler/ready.h"
#include "scheduler/tenant.h"
#include "scheduler/view.h"
#include "scheduler/visit.h"

enum {
  WEFT_STAGES_MAX = 16,                  /* of a runner: each of as many devices as a start takes */
  WEFT_FLIGHT_MAX = WEFT_STAGES_MAX + 1, /* plans submitted and not landed, at most */
  /* Steps in a row of lanes that were called out of their turn. A tenant of weight w among W that calls one lane all the
   * time has its share of the steps as long as w / W is no more than WEFT_CALLS_MAX / (WEFT_CALLS_MAX + 1). */
  WEFT_CALLS_MAX = 32
};

enum { WEFT_POOL_WAITS_MAX = WEFT_FLIGHT_MAX + 2 };

/* Closed pages whose memory stays until n_steps steps have landed; then the pool has memory for n_pages. */
typedef struct weft_pool_wait {
  uint64_t n_steps;
  uint32_t n_pages;
} weft_pool_wait;

/* The size of the pool (pool_size.h). */
typedef struct weft_pool_size {
  _Atomic uint32_t wanted, asked; /* any thread: pages, and how often somebody asked */
  _Atomic uint32_t shown_open, shown_backed;
  _Atomic bool shown_refused;
  uint32_t n_heard;               /* of asked */
  uint32_t n_backed;              /* pages with memory */
  uint32_t n_largest;             /* pages of the largest request since the engine was without any */
  uint32_t n_refused;             /* fewest pages that there was no memory for, since somebody asked; 0: none */
  bool hindered;                  /* copies wait, so nothing could be closed in this turn */
  uint64_t n_submitted, n_landed; /* steps */
  weft_pool_wait wait[WEFT_POOL_WAITS_MAX];
  uint32_t n_waits;
  uint64_t resizing_us; /* since a step was recorded */
} weft_pool_size;

/* A lane: one model, its runner, and the requests of that model. */
typedef struct weft_lane {
  weft_runner *runner;          /* borrowed from the configuration */
  const weft_runner_info *info; /* the runner's */
  uint32_t index;
  uint32_t rows_max;             /* most rows of a step */
  uint32_t rows_beside;          /* of one for which somebody waits (rows.h) */
  uint32_t n_stages;             /* steps that its runner computes at once; 1 without overlap */
  uint32_t block_min, block_max; /* tokens of the smallest and the largest block of its groups */
  uint32_t border_min;           /* positions between two borders of its states, the least; 0: it has none */
  uint32_t state_pages;          /* of one state of each of its groups of states */
  uint32_t context;              /* most tokens of a request, prompt and answer together */
  uint32_t restores_max;         /* pages that one step may bring back from host memory before it admits no more */
  uint32_t fit_tokens;           /* longest sequence that fits the pool alone, computed row by row */
  uint32_t fit_canvas;           /* longest one that fits with a whole canvas of rows in flight */
  weft_runner_stay stay;         /* of a model that comes and goes, as its runner said at the beginning of the turn */
  uint32_t n_away;               /* how often it went; what was saved before is lost */
  _Atomic bool broken;
  bool lost;           /* its device failed while a plan was made; the lane breaks after the plan is dropped */
  char reason[320];    /* why it is broken */
  uint32_t *free_slot; /* stack */
  uint32_t n_free_slots;
  uint32_t *free_save; /* stack: places for the canvases of preempted requests */
  uint32_t n_free_saves;
  weft_ready ready;
  weft_batcher batcher;
  weft_link prefilling, leaving;
  uint32_t n_running;   /* requests that hold a slot, leaving ones included */
  uint32_t n_waiting;   /* requests in queues, followers, and those that wait for the file */
  uint32_t n_deferred;  /* of n_waiting: followers and those that wait for the file */
  uint32_t n_in_flight; /* plans submitted and not landed */
  weft_cost_model cost;
  double used_us;           /* device time; a lane that had nothing to do is raised to turn_us, so it saves up none */
  uint32_t keys_per_decode; /* mean over the decode rows of the last plan that had some */
  weft_pace_late late;
  weft_acceptance *acceptance; /* [n_tenants] how often drafts of the tenant's requests were right */
  weft_depth *depth;
  weft_request **drafted; /* [n_slots] with a runner that drafts: of a call of it; else NULL, as draft */
  int32_t *draft;         /* [n_slots][WEFT_DRAFTS_MAX] what that gave */
  bool waits_for_drafts;  /* it waits for its rows in flight, so that the next step has runs (runs.h) */
  uint64_t n_batches;
} weft_lane;

/* Whether prompts are to be computed. */
static inline bool weft_lane_has_prompts(const weft_lane *lane) {
  return !weft_list_empty(&lane->prefilling) || lane->n_waiting > 0;
}

/* The requests that wait for a prefix that one sequence is computing. */
typedef struct weft_followers {
  weft_link list;
  uint32_t wake_at;     /* valid tokens of the leader at which the first follower wants to look again */
  weft_request *leader; /* the running request that has the sequence; NULL: none */
} weft_followers;

typedef struct weft_engine {
  weft_engine_config config;
  uint32_t n_lanes;
  weft_lane lane[WEFT_MODELS_MAX];
  weft_pager *pager;
  weft_pool_size pool;
  weft_prefix_feed *feed; /* NULL: nobody may read it */
  weft_tenants tenants;
  weft_deadlines deadlines;
  weft_file_waits file_waits;
  weft_inbox inbox;    /* any thread */
  weft_places *places; /* any thread; own_places, or those that it was given */
  weft_places own_places;
  weft_pin_table pins; /* any thread */
  weft_forecast forecast;

  /* running requests, dense: rank[i] belongs to ranked[i] */
  weft_rank *rank;
  weft_request **ranked;
  uint32_t n_running;
  _Atomic uint32_t n_busy;   /* == n_running, for other threads */
  weft_deadlines following;  /* the plan number at which each follower looks again at the latest */
  weft_followers *followers; /* [running_max + pins_max], by sequence */

  weft_request **told; /* while a step is applied: the requests whose answer grew */
  uint32_t n_told;
  uint64_t *answered; /* [n_tenants] of tenants.answered: those of the lane whose step is applied */

  weft_step_plan plan[WEFT_FLIGHT_MAX]; /* [depth] */
  uint32_t depth; /* plans submitted and not landed: one without overlap, else one more than the stages of a lane */
  uint32_t first_flight, n_flight;
  uint64_t n_plans, n_arrivals;
  uint32_t turn, last_lane;
  uint32_t n_called; /* steps since one of the lane whose turn it was; at most WEFT_CALLS_MAX */
  double turn_us;    /* used_us of the lane that had the last turn; never falls */

  weft_claims claims;
  uint64_t n_changes; /* of the state of any request, and ends of file copies: a turn with one was not idle */

  bool real_clock; /* time is read from the clock, not only taken from step's argument */
  uint64_t now_us;
  uint64_t device_free_us;   /* when the last step was collected */
  uint64_t run_began_ns;     /* a run of drafts is taken in since then (apply.c); 0: none is */
  uint64_t runner_ns;        /* spent inside calls of the runner in this turn */
  uint64_t step_ns, plan_ns; /* sums over all turns with a step: the whole turn; the turn without runner_ns */
  uint64_t hidden_ns;        /* the part of plan_ns that passed while the device had a step */
  weft_engine_stats stats;
  weft_request_stats *requests; /* [n_lanes] */

  weft_draft_history *draft_history; /* any thread (draft_history.h); NULL: no model has drafts */

  weft_recorder recorder; /* any thread */
  pthread_mutex_t stats_mutex;
  weft_engine_stats shared_stats;      /* under stats_mutex */
  weft_request_stats *shared_requests; /* [n_lanes], under stats_mutex */
  weft_forecast shared_forecast;       /* under stats_mutex */
  weft_group_usage *shared_usage;      /* [n_lanes][WEFT_GROUPS_MAX], under stats_mutex */
  weft_watch watch;                    /* any thread, but for what it says there */
  weft_visits visits;                  /* any thread */
  pthread_t thread;
  bool has_thread; /* start and stop: the caller's thread */
} weft_engine;

/* Requests of a lane that run or may start: those that wait for a model that is not here may not. */
static inline uint32_t weft_lane_n_requests(const weft_lane *lane) {
  return lane->n_running + (lane->stay == WEFT_STAY_HERE ? lane->n_waiting : 0);
}

/* Most pages that n further rows of a running request take: blocks of each group, and a state of each group that has
 * states. */
static inline uint32_t weft_lane_pages_for_rows(const weft_lane *lane, uint32_t n) {
  return lane->info->n_groups * (n / lane->block_min + 1) + lane->state_pages;
}

/* One bit per lane that has any such request. */
static inline uint64_t weft_lanes_with_requests(const weft_engine *engine) {
  uint64_t bits = 0;
  for (uint32_t i = 0; i < engine->n_lanes; i++) {
    if (weft_lane_n_requests(&engine->lane[i]) > 0) bits |= UINT64_C(1) << i;
  }
  return bits;
}

/* The plan `i` places behind the oldest one in flight. */
static inline weft_step_plan *weft_plan_in_flight(weft_engine *engine, uint32_t i) {
  return &engine->plan[(engine->first_flight + i) % engine->depth];
}

/* The present time. Within a turn it moves on only where the engine reads the clock itself. */
static inline uint64_t weft_present_us(const weft_engine *engine) {
  return engine->real_clock ? weft_clock_us() : engine->now_us;
}

static inline weft_tenant_claims *weft_claims_of(weft_engine *engine, const weft_request *request) {
  return &engine->claims.tenant[request->tenant];
}

#endif
