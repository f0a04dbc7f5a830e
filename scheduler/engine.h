/* SPDX-License-Identifier: MIT */
/* The engine: one continuous-batching loop over one pager and several runners.
 *
 * Law. Requests come in through the inbox and are touched only by the engine thread afterwards; what leaves is
 * an append-only answer and one final event per request, exactly one, whatever happens. A step is planned as data,
 * run, and applied; apply is the only place where requests change state. The host may be one step behind the
 * device (overlap): rows planned for a request that turns out to be finished are void and counted. Preemption is
 * by recompute and loses no token. Time is an argument.
 *
 * Threads: submit, cancel, poll, wait and release may be called by any thread; step, and everything it calls, by
 * one thread only. Memory of a request is taken by submit; the engine thread allocates nothing after open. */
#ifndef WEFT_SCHEDULER_ENGINE_H
#define WEFT_SCHEDULER_ENGINE_H

#include "model/runner.h"
#include "pager/pager.h"
#include "scheduler/recorder.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_engine weft_engine;
typedef struct weft_request weft_request; /* a handle; reference held by the submitter until release */

enum { WEFT_WEIGHT_MAX = 1000 };

/* One tenant. Zero-initialise; every zero means the default in brackets. */
typedef struct weft_tenant_config {
  uint32_t weight;        /* [1] its share of the device against other tenants; <= WEFT_WEIGHT_MAX */
  int32_t priority_class; /* [normal] who starts first: -1 low, 0 normal, 1 high */
  uint32_t running_max;   /* [no limit] requests running at once */
  uint32_t waiting_max;   /* [no limit] requests waiting; beyond it submit gives WEFT_FULL */
  uint32_t
      tokens_per_minute; /* [no limit] prompt tokens computed and answer tokens; beyond it submit gives WEFT_FULL */
  uint32_t blocks_max;   /* [no limit] pages of the pool that it pays for at once (pager.h says who pays) */
} weft_tenant_config;

typedef struct weft_engine_config {
  uint32_t n_runners;
  weft_runner *const *runner; /* [n_runners]; owned by the caller; runner i uses space i of the pager */
  uint32_t n_pages;           /* of the shared pool */
  uint32_t n_host_pages;      /* slots of host memory that take what is evicted; the runners must have them; 0: none */
  uint32_t n_file_pages;      /* slots of a file behind them, likewise */
  uint32_t rows_per_step;     /* budget of rows; >= the longest canvas */
  uint32_t prefill_chunk;     /* most rows of one prompt in one step; 0: rows_per_step */
  uint32_t running_max;       /* requests running at once, all runners */
  uint32_t waiting_max;       /* queued requests; beyond it submit gives WEFT_FULL */
  uint32_t n_tenants;         /* 1 .. 255 */
  const weft_tenant_config *tenant; /* [n_tenants], copied; NULL: all default */
  uint32_t seq_tokens_max;          /* longest request: prompt + answer */
  bool overlap;                     /* plan step n+1 before the results of step n are applied */
  bool no_prefix_cache;
  uint32_t pins_max;       /* prefixes the operator may pin; each has a sequence of the pager */
  uint64_t slice_us;       /* a weight set keeps its turn until it used so much more of the device than others */
  uint64_t target_tpot_us; /* most time between tokens of decoding requests; 0: steps are as full as they can be */
} weft_engine_config;

typedef enum weft_finish {
  WEFT_FINISH_NONE = 0,
  WEFT_FINISH_STOP = 1,   /* end-of-generation token or stop rule */
  WEFT_FINISH_LENGTH = 2, /* max_tokens or context limit */
  WEFT_FINISH_CANCELLED = 3,
  WEFT_FINISH_DEADLINE = 4,
  WEFT_FINISH_ERROR = 5 /* error text says why */
} weft_finish;

/* "stop", "length", ...; "" for NONE */
const char *weft_finish_text(weft_finish finish);

/* Called on the engine thread with the answer so far, whenever it grew, before it is published. Returns how many of
 * the n_tokens are to be kept: n_tokens to go on, less to finish with STOP after that many, WEFT_STOP_KEEP_ALL to
 * finish with STOP and keep them all; what was published stays published. Must be quick. */
#define WEFT_STOP_KEEP_ALL UINT32_MAX
typedef uint32_t (*weft_stop_rule)(void *self, const int32_t *tokens, uint32_t n_tokens);
/* Called on the engine thread when there is something to poll. Must not block; may poll, must not release. After
 * weft_engine_release returned, neither callback of the request runs any more. */
typedef void (*weft_notify)(void *self);

typedef struct weft_request_params {
  uint32_t runner;       /* index */
  uint32_t tenant;       /* index */
  weft_key128 domain;    /* sharing domain, from the authenticated tenant */
  bool canvas;           /* answer by diffusion */
  const int32_t *tokens; /* prompt; copied */
  uint32_t n_tokens;
  uint32_t max_tokens;    /* >= 1; the answer is cut there */
  weft_sampling sampling; /* bias is copied */
  weft_entropy_bound entropy_bound;
  const int32_t *stop_tokens; /* end-of-generation set; copied; never part of the answer */
  uint32_t n_stop_tokens;
  bool ignore_eos;          /* stop tokens do not stop, and are part of the answer */
  weft_stop_rule stop_rule; /* optional */
  void *stop_self;
  weft_notify notify; /* optional */
  void *notify_self;
  uint64_t deadline_us; /* absolute, engine time; 0: none */
  int32_t priority;     /* higher first; 0 usual; orders the requests of one tenant */
  bool no_cache;
  /* A request of the same prompt, not released yet: the prompt is computed once and forked. Model, kind, tenant, domain
   * and no_cache must be the same. Each request of such a group has its own answer, end and limits. */
  weft_request *sibling;
  bool canvas_events; /* keep every denoise step's canvas for poll */
  bool trace;         /* ... with all arrays of the sampler */
  uint64_t *retry_us; /* optional; written by a submit that says FULL: an estimate of when a place or the tokens
                             are there, 0: never */
} weft_request_params;

/* Copies of what happened; see weft_engine_poll. */
typedef enum weft_event_kind {
  WEFT_EVENT_TOKENS = 1, /* more of the answer is final */
  WEFT_EVENT_CANVAS = 2, /* a denoise step ended (canvas_events or trace) */
  WEFT_EVENT_FINISHED = 3
} weft_event_kind;

typedef struct weft_usage {
  uint32_t n_prompt, n_cached, n_answer;
  uint32_t n_computed_rows; /* prompt rows computed, recompute after preemption included */
  uint32_t n_canvases, n_denoise_steps, n_preemptions;
  uint64_t submitted_us, started_us, first_token_us, finished_us;
} weft_usage;

typedef struct weft_event {
  weft_event_kind kind;
  /* TOKENS: answer[first .. first + n) ; pointers stay valid until release */
  uint32_t first, n;
  const int32_t *tokens;
  const weft_sampled *sampled; /* [n] with logprobs wanted, else NULL */
  /* CANVAS: valid until the next poll of this request */
  uint32_t block, step, n_accepted;
  bool stopped; /* the sampler's own rule ended the canvas (not the step limit) */
  float temperature, mean_entropy;
  uint32_t n_canvas;
  const int32_t *argmax;
  const int32_t *canvas_in, *drawn, *canvas_out; /* trace only */
  const float *entropy;
  const uint8_t *accepted;
  uint32_t n_dropped; /* canvas events the reader was too slow for */
  /* FINISHED */
  weft_finish finish;
  weft_usage usage;
  const char *error; /* FINISH_ERROR */
} weft_event;

weft_status weft_engine_open(const weft_engine_config *config, weft_engine **out, weft_error *error);
/* All requests must have been released. */
void weft_engine_close(weft_engine *engine);

/* Checks the request against what could ever fit (pool, context, vocabulary, parameters, limits of the tenant): INVALID
 * or TOO_LARGE with one line; FULL when the queue is full or a limit of the tenant is reached for now. On WEFT_OK the
 * caller owns *out until release. */
weft_status weft_engine_submit(weft_engine *engine, const weft_request_params *params, uint64_t now_us,
                               weft_request **out, weft_error *error);
void weft_engine_cancel(weft_engine *engine, weft_request *request); /* any time, any thread, any number of times */
/* Next event of this request, or WEFT_AGAIN. Never blocks. One reader per request. */
weft_status weft_engine_poll(weft_engine *engine, weft_request *request, weft_event *out);
/* Blocks until there is something to poll or timeout_us passed (WEFT_AGAIN). */
weft_status weft_engine_wait(weft_engine *engine, weft_request *request, uint64_t timeout_us);
/* Gives the handle back; cancels if not finished. */
void weft_engine_release(weft_engine *engine, weft_request *request);

/* The clock of weft_engine_start: monotonic. Who steps the engine himself may use any other. */
uint64_t weft_engine_clock_us(void);
/* One turn of the loop: WEFT_AGAIN when there was nothing to do. */
weft_status weft_engine_step(weft_engine *engine, uint64_t now_us);
/* Something that the engine waits for has ended: a copy of the file. Any thread, any time before close. */
void weft_engine_wake(weft_engine *engine);
/* The loop on a thread of its own, sleeping when there is nothing to do. */
weft_status weft_engine_start(weft_engine *engine);
void weft_engine_stop(weft_engine *engine); /* ends the thread; running requests finish with CANCELLED */
/* Refuses new requests (submit gives WEFT_FULL with a line that says so) and lets running ones end. */
void weft_engine_drain(weft_engine *engine);
bool weft_engine_idle(weft_engine *engine);
/* Drops the prefix cache at the next step boundary. Pins stay declared, and are held when they are computed again. */
void weft_engine_reset_cache(weft_engine *engine);

enum { WEFT_STEP_RATIOS = 8 };
extern const double weft_step_ratio_bounds[WEFT_STEP_RATIOS - 1];

/* One weight set's share of it all. */
typedef struct weft_lane_stats {
  uint64_t n_steps, n_rows;
  uint64_t busy_us; /* its steps were on the device; a step that waits for the one before is counted from its end */
  /* Steps whose time the runner measured: how long they took, how long they were thought to take, and the sum of
   * |difference|; how many took at most weft_step_ratio_bounds[i] times what was thought, last bucket open. */
  uint64_t measured_us, predicted_us, error_us, ratio[WEFT_STEP_RATIOS];
  double ratio_sum;
  uint32_t n_running, n_waiting;
} weft_lane_stats;

/* ---- pins: prefixes that the operator keeps in the pool (pin.h) --------------------------------------------- */

typedef struct weft_pin_params {
  uint32_t runner;
  uint32_t tenant;       /* whose requests find it; public: who computes it */
  weft_key128 domain;    /* the tenant's */
  bool is_public;        /* requests of all tenants that begin with it share its blocks */
  const int32_t *tokens; /* copied; cut to whole blocks */
  uint32_t n_tokens;
  int32_t priority;    /* requests of tenants whose class is above it may take its blocks */
  uint64_t expires_us; /* absolute, engine time; 0: never */
} weft_pin_params;

typedef struct weft_pin_info {
  uint32_t id; /* from 1, never used again */
  uint32_t runner, tenant;
  bool is_public;
  bool held; /* its blocks are in the pool now */
  int32_t priority;
  uint32_t n_tokens, n_pages;
  uint64_t expires_us;
} weft_pin_info;

/* Declares a pin and submits what computes it. Any thread. INVALID, TOO_LARGE (too little of the pool would be left)
 * or FULL (pins, or the queue) with one line. */
weft_status weft_engine_pin(weft_engine *engine, const weft_pin_params *params, uint64_t now_us, uint32_t *id,
                            weft_error *error);
weft_status weft_engine_unpin(weft_engine *engine, uint32_t id); /* NOT_FOUND; gone at the next step */
uint32_t weft_engine_list_pins(weft_engine *engine, weft_pin_info *out, uint32_t max); /* in order of declaration */

typedef struct weft_engine_stats {
  uint64_t n_steps, n_mixed_steps; /* mixed: causal decode or prefill rows and canvas rows in one step */
  uint64_t n_switches;             /* steps that ran another weight set than the step before */
  uint64_t n_rows, n_prefill_rows, n_decode_rows, n_canvas_rows, n_commit_rows, n_void_rows;
  uint64_t n_submitted, n_finished[6], n_preemptions; /* by weft_finish */
  uint64_t n_canvases_saved, n_canvases_resumed;      /* of preempted requests, in mid-canvas */
  uint64_t n_file_waits, n_file_waits_in_vain;        /* of requests for the file; those that then computed */
  uint64_t n_prompt_tokens, n_cached_tokens, n_answer_tokens, n_canvases, n_denoise_steps;
  uint32_t n_running, n_waiting;
  uint32_t n_pins, n_pins_held, n_pin_pages; /* declared; of them in the pool, and their pages */
  uint64_t n_pins_dropped;                   /* let go for a request that lacked blocks */
  bool draining;
  uint64_t broken_runners; /* bit per runner */
  /* sums; plan_us: step_us without the time inside the runner; hidden_us: of plan_us, while the device had a step */
  uint64_t step_us, plan_us, hidden_us, queue_us;
  /* histograms with the bounds of weft_latency_bounds_us, last bucket open */
  uint64_t ttft[20], tpot[20], e2e[20], queue[20];
  uint64_t ttft_sum_us, tpot_sum_us, e2e_sum_us;
  uint32_t n_lanes;
  weft_lane_stats lane[WEFT_SPACES_MAX]; /* [n_lanes], by runner */
  weft_pager_stats pager;
} weft_engine_stats;
/* Why submit said WEFT_FULL. */
typedef enum weft_refused {
  WEFT_REFUSED_QUEUE = 0, /* of all tenants */
  WEFT_REFUSED_TENANT_QUEUE = 1,
  WEFT_REFUSED_TOKENS = 2, /* of this minute */
  WEFT_REFUSED_NONE = 3    /* the engine drains or has stopped: nobody's limit */
} weft_refused;
enum { WEFT_REFUSED_KINDS = 3 };

/* One tenant's part. */
typedef struct weft_tenant_stats {
  uint32_t n_running, n_waiting;
  uint64_t n_submitted, n_finished, n_preemptions;
  uint64_t n_prompt_tokens, n_cached_tokens, n_answer_tokens;
  uint32_t n_blocks, n_blocks_cached; /* pages of the pool that it pays for; cached ones it paid for last */
  uint64_t n_rows, charged_us;        /* planned for it; the predicted device time that fair share charged for them */
  uint64_t n_refused[WEFT_REFUSED_KINDS];
  uint64_t queue[20], queue_us; /* as in weft_engine_stats */
} weft_tenant_stats;
extern const uint64_t weft_latency_bounds_us[19];

/* How many requests of a lane, each growing to n tokens, run at once without preemption while nobody else does: what the
 * pool holds under the rules of admission, at most running_max. Any thread. */
uint32_t weft_engine_room(const weft_engine *engine, uint32_t lane, uint32_t n_tokens);

/* A consistent copy, taken by the engine between steps; any thread. */
void weft_engine_get_stats(weft_engine *engine, weft_engine_stats *out);
void weft_engine_get_tenant_stats(weft_engine *engine, uint32_t tenant, weft_tenant_stats *out);

/* The blocks of each layer group of a runner, as one copy; out: [n_groups]. */
void weft_engine_get_group_usage(weft_engine *engine, uint32_t runner, weft_group_usage *out);

/* Copies the newest at most max records of steps, of requests that ended, oldest first; any thread. */
uint32_t weft_engine_get_steps(weft_engine *engine, weft_step_record *out, uint32_t max);
uint32_t weft_engine_get_requests(weft_engine *engine, weft_request_record *out, uint32_t max);

/* The pager, for tests and for the engine thread only. */
weft_pager *weft_engine_pager(weft_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
