/* SPDX-License-Identifier: MIT */
/* The inside of the engine, shared by the files that make up a step. Engine thread only, except
 * where said.
 *
 *   engine.c       open, close, submit; what other threads call
 *   step.c         inbox, expiry, launch, land: the order of a turn
 *   planner.c      running requests -> rows of a plan; memory, victims
 *   share.c        whose rows are next, tenant by tenant
 *   admission.c    waiting requests -> running
 *   lift.c         requests that wait for the file
 *   apply.c        results -> tokens, events, commits
 *   lifecycle.c    how a request changes state: enter, finish, preempt, leave, break
 *   thread.c       the loop on a thread of its own
 *
 * Law. A running request is in exactly one list of its lane: prefilling (tokens the host knows lack
 * rows), ready (decodes or denoises), leaving (nothing more is planned). Its sequence and slot are
 * given back only when nothing of it is in flight, so a page is never handed on while a submitted
 * step may still read or write it. */
#ifndef WEFT_SCHEDULER_ENGINE_INTERNAL_H
#define WEFT_SCHEDULER_ENGINE_INTERNAL_H

#include "base/check.h"
#include "base/clock.h"
#include "scheduler/batcher.h"
#include "scheduler/forecast.h"
#include "scheduler/inbox.h"
#include "scheduler/lift.h"
#include "scheduler/pace.h"
#include "scheduler/plan.h"
#include "scheduler/pin.h"
#include "scheduler/ready.h"
#include "scheduler/tenant.h"

enum {
  WEFT_LANES_MAX = WEFT_SPACES_MAX,
  WEFT_FLIGHT_MAX = 2 /* plans submitted and not landed: one without overlap, two with */
};

/* What a request follows that waits for the file. */
#define WEFT_FOLLOWS_FILE (WEFT_SEQ_NONE - 1)

/* One runner as the engine sees it. */
typedef struct weft_lane {
  weft_runner *runner;
  const weft_runner_info *info;
  uint32_t index;
  uint32_t rows_max;             /* budget of one step */
  uint32_t block_min, block_max; /* tokens of the smallest and the largest block of its groups */
  uint32_t context;              /* most tokens of a request, prompt and answer */
  uint32_t restores_max;         /* pages that one step may bring back before it admits nobody else */
  uint32_t fit_tokens;           /* longest keys and values that fit the pool alone, row by row */
  uint32_t fit_canvas;           /* ... with a whole canvas of rows in flight */
  _Atomic bool broken;
  bool lost;           /* its device failed while a plan was made: it breaks when the plan is laid aside */
  char reason[320];    /* why it is broken */
  uint32_t *free_slot; /* stack */
  uint32_t n_free_slots;
  uint32_t *free_save; /* stack: places for the canvases of preempted requests */
  uint32_t n_free_saves;
  weft_ready ready;
  weft_batcher batcher;
  weft_link prefilling, leaving;
  uint32_t n_running;   /* slots taken, leaving ones included */
  uint32_t n_waiting;   /* queued or followers */
  uint32_t n_in_flight; /* plans */
  weft_cost_model cost;
  double used_us;           /* of the device; who had nothing to do is raised to turn_us */
  uint32_t keys_per_decode; /* of the last plan with decode rows */
  weft_pace_late late;
  uint64_t n_batches;
} weft_lane;

/* Those who wait for a prefix that a sequence is computing. */
typedef struct weft_followers {
  weft_link list;
  uint32_t wake_at; /* n_valid of the leader */
} weft_followers;

struct weft_engine {
  weft_engine_config config;
  uint32_t n_lanes;
  weft_lane lane[WEFT_LANES_MAX];
  weft_pager *pager;
  weft_tenants tenants;
  weft_deadlines deadlines;
  weft_lifts lifts;
  weft_inbox inbox;      /* any thread */
  weft_pins pins;        /* any thread */
  weft_account *account; /* [n_tenants], under the inbox's mutex */
  weft_forecast forecast;

  /* running requests, dense: rank[i] belongs to ranked[i] */
  weft_rank *rank;
  weft_request **ranked;
  uint32_t n_running;
  _Atomic uint32_t n_busy;   /* == n_running, for other threads */
  weft_followers *followers; /* [running_max + pins_max], by sequence */

  weft_request **told; /* while a step is applied: whose answer grew */
  uint32_t n_told;

  weft_plan plan[WEFT_FLIGHT_MAX];
  uint32_t first_flight, n_flight;
  uint64_t n_plans, n_arrivals;
  uint32_t turn, last_lane;
  double turn_us; /* used_us of the lane that had the last turn; never falls */

  weft_request *starved;       /* runs and lacks memory: served before anybody else */
  weft_request *memory_waiter; /* waits and lacks memory: nobody of its priority or less passes it */
  uint32_t n_leaving;          /* requests that give back their memory when their rows have landed */
  bool preempted;              /* in this plan: no admissions */
  uint64_t n_changes;          /* of state, of any request, and moves that ended: a turn with one was not idle */

  bool real_clock; /* time is read from the clock, not only taken from step's argument */
  uint64_t now_us;
  uint64_t device_free_us;   /* when the last step was collected */
  uint64_t runner_ns;        /* spent in calls of the runner, this turn */
  uint64_t step_ns, plan_ns; /* sums over all turns with a step: all, without the runner */
  uint64_t hidden_ns;        /* of plan_ns, while the device had a step */
  weft_engine_stats stats;

  weft_recorder recorder; /* any thread */
  pthread_mutex_t stats_mutex;
  weft_engine_stats shared_stats; /* under stats_mutex */
  weft_forecast shared_forecast;  /* under stats_mutex */
  weft_group_usage *shared_usage; /* [n_lanes][WEFT_BATCH_GROUPS_MAX], under stats_mutex */
  pthread_t thread;
  bool has_thread; /* start and stop: the caller's thread */
};

/* ---- step.c ---------------------------------------------------------------------------------- */
weft_status weft_engine_turn(weft_engine *engine, uint64_t now_us);
/* Ends everything with CANCELLED, after what is in flight has landed. */
void weft_engine_end_all(weft_engine *engine);
/* Submits one plan of the lane whose turn it is; false: nothing to submit. */
bool weft_engine_launch(weft_engine *engine);
void weft_engine_land(weft_engine *engine);
void weft_engine_share_stats(weft_engine *engine);
/* One bit per lane that has any request. */
uint64_t weft_engine_lanes_with_requests(const weft_engine *engine);

/* ---- engine.c -------------------------------------------------------------------------------- */
/* The longest sequence of the lane that n_pages hold with n_rows rows in flight. Any thread. */
uint32_t weft_engine_longest_fit(const weft_engine *engine, uint32_t lane, uint32_t n_rows, uint32_t n_pages);

/* ---- planner.c ------------------------------------------------------------------------------- */
typedef struct weft_planner {
  weft_engine *engine;
  weft_lane *lane;
  weft_plan *plan;
  uint32_t rows_left;
  weft_pace pace;
  uint64_t n_decode_keys;
  uint64_t step_charge;  /* of a step full of prompt rows */
  uint32_t n_ahead;      /* decode rows of tenants far ahead of one that wants more */
  weft_candidate held;   /* of those that found no time, the least in clock; level: the highest */
  uint64_t restores_end; /* of the pager's count: beyond it the step brings back too much to admit more */
} weft_planner;
void weft_planner_run(weft_planner *planner);
/* Plans what this running request can use of the rows left. False: it wanted rows and got none. */
bool weft_planner_serve(weft_planner *planner, weft_request *request);

/* ---- share.c --------------------------------------------------------------------------------- */
/* True: rows are too few for all that run, or a tenant is far ahead of one that wants more. */
bool weft_share_is_contended(const weft_planner *planner);
/* Before anything is planned. paced: there is a target for the time between tokens. */
void weft_share_open(weft_planner *planner, bool paced);
/* The request found no time in this plan. */
void weft_share_hold(weft_planner *planner, const weft_request *request);
/* False: its tenant is far ahead, and the target leaves no time for this decode row. */
bool weft_share_has_time(weft_planner *planner, const weft_request *request);
/* Gives the rows left to whoever is due first: prompts, waiting requests, and with_ready those that
 * decode or denoise. */
void weft_share_run(weft_planner *planner, bool with_ready);

/* ---- admission.c ----------------------------------------------------------------------------- */
/* Starts and plans a waiting request, the first of its tenant on the lane; or it follows a prefix,
 * or ends. False: nobody else may start in this plan. */
bool weft_admission_try(weft_planner *planner, weft_request *request);
/* The sequence advanced (or ended: n_valid UINT32_MAX): followers that may now find their prefix
 * wait in queues again. */
void weft_admission_wake(weft_engine *engine, weft_seq seq, uint32_t n_valid);

/* ---- apply.c --------------------------------------------------------------------------------- */
/* False: the results do not belong to the plan. */
bool weft_apply_step(weft_engine *engine, weft_plan *plan, const weft_step_result *result);

/* ---- lifecycle.c ----------------------------------------------------------------------------- */
/* Its prompt has rows: it decodes or denoises from now on. */
void weft_lifecycle_make_ready(weft_engine *engine, weft_request *request);
/* From the inbox into its queue. */
void weft_lifecycle_accept(weft_engine *engine, weft_request *request);
void weft_lifecycle_enqueue(weft_engine *engine, weft_request *request);
/* Out of its queue or from among the followers; still WAITING. */
void weft_lifecycle_dequeue(weft_engine *engine, weft_request *request);
/* A dequeued request with sequence and slot starts to run. */
void weft_lifecycle_enter(weft_engine *engine, weft_request *request);
/* The one final event. reason: FINISH_ERROR only. A running request leaves as soon as nothing is in
 * flight. */
void weft_lifecycle_finish(weft_engine *engine, weft_request *request, weft_finish finish, const char *reason);
/* Gives up its memory and waits again. True: at once; false: when its rows in flight have landed.
 */
bool weft_lifecycle_preempt(weft_engine *engine, weft_request *request);
/* Tells the pager of all positions that have landed. */
void weft_lifecycle_commit(weft_engine *engine, weft_request *request);
/* Also of a last row of the prompt that was held back for siblings. False: there was nothing. */
bool weft_lifecycle_commit_all(weft_engine *engine, weft_request *request);
/* Nothing of a leaving request is in flight any more: it leaves. */
void weft_lifecycle_landed_last(weft_engine *engine, weft_request *request);
/* A segment of the request landed. */
static inline void weft_lifecycle_landed(weft_engine *engine, weft_request *request) {
  WEFT_CHECK(request->n_in_flight > 0);
  uint8_t left = (uint8_t)(request->n_in_flight - 1);
  request->n_in_flight = left;
  if (request->state == WEFT_REQUEST_LEAVING && left == 0) {
    weft_lifecycle_landed_last(engine, request);
  }
}
/* Every request of the lane ends with an error; its plans in flight are dropped. */
void weft_lifecycle_break(weft_engine *engine, weft_lane *lane, weft_status status, const char *where);

#endif
