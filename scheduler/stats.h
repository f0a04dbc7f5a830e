/* SPDX-License-Identifier: MIT */
/* Counters and sums that the engine shows to other threads, for metrics, the program and tests. All are totals since
 * the engine was opened, except those whose comment says "now". The engine thread writes its own copy; other threads
 * get the copy that snapshot.c takes at the end of a turn. */
#ifndef WEFT_SCHEDULER_STATS_H
#define WEFT_SCHEDULER_STATS_H

#include "scheduler/event.h"

enum { WEFT_STEP_RATIOS = 8 };
extern const double weft_step_ratio_bounds[WEFT_STEP_RATIOS - 1];

/* How often a value fell in each bucket, and the sum of the values. Bucket i counts the values that are at most bound i
 * and above bound i - 1; the last bucket is open. */
enum { WEFT_HISTOGRAM_BUCKETS = 20 };
typedef struct weft_histogram {
  uint64_t bucket[WEFT_HISTOGRAM_BUCKETS], sum;
} weft_histogram;

extern const uint64_t weft_latency_bounds_us[WEFT_HISTOGRAM_BUCKETS - 1];
extern const uint64_t weft_draft_bounds_us[WEFT_HISTOGRAM_BUCKETS - 1];
extern const uint64_t weft_token_bounds[WEFT_HISTOGRAM_BUCKETS - 1];

/* Drafts of one model (draft.h). Times: of the host to draft, to take in what runs gave, and of that to take back what
 * void rows had; of the device for steps that had runs. */
typedef struct weft_draft_stats {
  uint64_t n_runs, n_drafted, n_accepted;
  uint64_t n_accepted_at[WEFT_DRAFTS_MAX]; /* by the place of the draft in its run */
  uint64_t draft_ns, verify_us, commit_ns, back_ns;
  weft_histogram draft, verify, commit, back; /* us, by weft_draft_bounds_us: of each request that had runs (event.h) */
  uint64_t n_shadowed, n_differences; /* tokens that shadows foretold and rows then gave; those that were others */
} weft_draft_stats;

/* Counters of the requests of one model. */
typedef struct weft_request_stats {
  uint64_t n_finished[WEFT_FINISH_KINDS], n_preemptions; /* n_finished: by weft_finish */
  uint64_t n_prompt_tokens, n_answer_tokens;
  weft_draft_stats drafts;
  uint64_t n_sought_tokens, n_found_tokens; /* prompt tokens that were looked up in the prefix cache; those found */
  weft_histogram ttft, tpot, e2e, queue;    /* us: to the first token; mean per further token; to the end; waiting */
  weft_histogram prefill, decode;           /* us: from the start to the first token; from there to the end */
  weft_histogram prompt, answer, asked; /* tokens of prompts; of answers; of the longest answer that was asked for */
} weft_request_stats;

/* Counters of one model. */
typedef struct weft_lane_stats {
  uint64_t n_steps, n_rows;
  uint64_t busy_us; /* time with a step on the device; a step behind another is counted from the end of that one */
  /* Of the steps whose time the runner measured: the sums of measured and predicted times, the sum of |difference|, and
   * how many took at most weft_step_ratio_bounds[i] times the prediction, the last bucket being open. */
  uint64_t measured_us, predicted_us, error_us, ratio[WEFT_STEP_RATIOS];
  double ratio_sum;              /* of measured by predicted time */
  uint32_t n_running, n_waiting; /* now */
  uint64_t n_deferred; /* now, of n_waiting: those that wait for a prefix, which a request computes or the file has */
} weft_lane_stats;

typedef struct weft_engine_stats {
  uint64_t n_steps, n_mixed_steps; /* mixed: causal decode or prefill rows and canvas rows in one step */
  uint64_t n_switches;             /* steps that ran another model than the step before */
  uint64_t n_rows, n_prefill_rows, n_decode_rows, n_canvas_rows, n_commit_rows, n_void_rows;
  uint64_t n_submitted, n_finished[WEFT_FINISH_KINDS], n_preemptions; /* by weft_finish */
  uint64_t n_canvases_saved, n_canvases_resumed;                      /* of preempted requests, in mid-canvas */
  uint64_t n_file_waits, n_file_waits_in_vain; /* waits of requests for the file; those after which one computed */
  uint64_t n_prompt_tokens, n_cached_tokens, n_answer_tokens, n_canvases, n_denoise_steps;
  uint64_t n_views;                          /* taken for those who watch (view.h) */
  uint32_t n_running, n_waiting;             /* now */
  uint32_t n_pins, n_pins_held, n_pin_pages; /* now: declared pins; those in the pool; the pages of these */
  uint64_t n_pins_dropped;                   /* pins let go for a request that lacked blocks */
  uint64_t request_bytes;                    /* that requests hold now, of request_bytes_max */
  bool draining;                             /* now */
  uint64_t broken_runners;                   /* one bit for each model whose device has failed */
  /* Sums. step_us: host time of turns; plan_us: step_us without the time inside the runner; hidden_us: the part of
   * plan_us in which the device had a step; queue_us: the time that requests waited for their first start. */
  uint64_t step_us, plan_us, hidden_us, queue_us;
  /* Histograms with the bounds of weft_latency_bounds_us; weft_engine_get_stats adds up those of all models. */
  uint64_t ttft[20], tpot[20], e2e[20], queue[20];
  uint64_t ttft_sum_us, tpot_sum_us, e2e_sum_us;
  uint32_t n_lanes;
  weft_lane_stats lane[WEFT_MODELS_MAX]; /* [n_lanes], by model */
  weft_pager_stats pager;
} weft_engine_stats;
/* Why submit gave WEFT_FULL, or for TOKENS WEFT_RATE_LIMIT. */
typedef enum weft_refused {
  WEFT_REFUSED_QUEUE = 0,        /* the queue of all tenants is full */
  WEFT_REFUSED_TENANT_QUEUE = 1, /* the tenant's own limit on waiting requests */
  WEFT_REFUSED_TOKENS = 2,       /* the tenant's tokens of this minute */
  WEFT_REFUSED_MEMORY = 3,       /* host memory of requests (request_bytes_max) */
  WEFT_REFUSED_NONE = 4          /* no limit: the engine drains or has stopped */
} weft_refused;
enum { WEFT_REFUSED_KINDS = 4 };

/* Counters of one tenant. */
typedef struct weft_tenant_stats {
  uint32_t n_running, n_waiting; /* now */
  uint32_t n_unstarted;          /* now, of n_waiting: those that never ran; the others were preempted */
  uint64_t n_submitted, n_finished, n_preemptions;
  uint64_t n_prompt_tokens, n_cached_tokens, n_answer_tokens;
  uint32_t n_blocks, n_blocks_cached;     /* now: pages that it pays for; cached pages that it paid for last */
  uint64_t n_rows, charged_us;            /* rows planned for it; the device time that fair share charged for them */
  uint64_t n_refused[WEFT_REFUSED_KINDS]; /* requests of submissions that were refused */
  uint64_t n_evicted;                     /* requests; they are among n_submitted and n_finished, too */
  uint64_t queue[20], queue_us;           /* as in weft_engine_stats */
} weft_tenant_stats;

typedef struct weft_pin_info {
  uint32_t id; /* counts from 1; never used again */
  uint32_t model, tenant;
  bool is_public;
  bool held; /* its blocks are in the pool now */
  int32_t priority;
  uint32_t n_tokens, n_pages;
  uint64_t expires_us; /* engine time; 0: never */
} weft_pin_info;

/* What a tenant may still submit. */
typedef struct weft_tenant_left {
  uint32_t requests_max, requests; /* in the engine at once, of which are left; requests_max 0: no limit */
  uint32_t tokens_max, tokens;     /* of a minute; tokens_max 0: no limit */
  uint64_t tokens_full_us;         /* until the minute's tokens are all there again */
  uint64_t tokens_lacking;         /* to that */
  int64_t tokens_taken;            /* since the start, less those given back */
} weft_tenant_left;

#endif
