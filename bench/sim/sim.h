/* SPDX-License-Identifier: MIT */
/* weft sim: the real engine and pager under a virtual clock, one replica or several behind a router.
 *
 * Law: time passes only by what the profile says that steps take and by waiting for the next
 * arrival; all draws are functions of the seed. The same load, profile and options give the same
 * numbers, to the last digit, however busy the machine is.
 *
 *   profile   models of a device: geometry, and what a step costs
 *   load      requests; from a trace (trace) or drawn (draw)
 *   router    which replica a request goes to
 *   told      what replicas tell of their caches; index: what a router knows of it
 *   fate      which replicas fail, are replaced and come back
 *   replica   one engine and pager under the clock
 *   turns     whose turn is next
 *   run       all replicas, in order of time
 *   series    what happened when, in a bounded number of bins
 *   metrics   numbers of a run; report prints them, figures draws them */
#ifndef WEFT_BENCH_SIM_SIM_H
#define WEFT_BENCH_SIM_SIM_H

#include "bench/lab/lab.h"
#include "bench/sim/profile.h"
#include "bench/sim/series.h"

enum {
  WEFT_SIM_BLOCK = 512,    /* tokens that one id of a drawn load stands for */
  WEFT_SIM_REPLICAS = 1000 /* most replicas */
};

/* One request of the load. */
typedef struct weft_sim_item {
  uint64_t at_us;                  /* arrival; never less than that of the item before */
  uint64_t cancel_us, deadline_us; /* after arrival; 0: none */
  uint32_t n_prompt, n_answer, tenant, model;
  int32_t priority;
  bool diffusion;
  uint64_t first_id; /* of weft_sim_load.id: one per block of the prompt */
} weft_sim_item;

typedef struct weft_sim_load {
  weft_sim_item *item;
  uint64_t *id; /* blocks with the same id have the same tokens */
  uint64_t n_ids, ids_room;
  uint32_t n, room, n_tenants, longest;        /* longest: prompt plus answer */
  uint32_t block;                              /* tokens that an id stands for */
  weft_tenant_config tenant[WEFT_SIM_TENANTS]; /* of --api-keys, in order; others by default */
} weft_sim_load;

/* From --trace, or drawn. 0, or an exit code after one line. */
int weft_sim_load_open(const weft_lab_config *config, const weft_sim_profile *profile, weft_sim_load *out);
void weft_sim_load_close(weft_sim_load *load);
/* Tokens [0, n_prompt) of an item. */
void weft_sim_load_prompt(const weft_sim_load *load, const weft_sim_item *item, int32_t *tokens);
/* Blocks of a prompt. */
uint32_t weft_sim_blocks_of(const weft_sim_load *load, uint32_t n_tokens);
/* Ids that no other request has, for the whole prompt of request `at`. */
void weft_sim_own_ids(const weft_sim_load *load, uint32_t at, uint32_t first, uint32_t n_ids, uint64_t *id);
/* Adds an item to the end; id has one entry per block. 0, or an exit code after one line. */
int weft_sim_load_add(weft_sim_load *load, const weft_sim_profile *profile, const weft_sim_item *item,
                      const uint64_t *id);
enum { WEFT_SIM_TOKENS = 1 << 22 };

/* JSON lines to items, and back. id: scratch, WEFT_SIM_TOKENS / load->block entries. */
int weft_sim_trace_read(const char *path, const weft_sim_profile *profile, weft_sim_load *load, uint64_t *id);
int weft_sim_trace_write(const char *path, const weft_sim_profile *profile, const weft_sim_load *load);
int weft_sim_draw(const weft_lab_config *config, const weft_sim_profile *profile, weft_sim_load *load, uint64_t *id);

/* What became of a request. Times are 0 where the event did not happen. */
typedef struct weft_sim_outcome {
  uint64_t started_us, first_us, finished_us;
  uint32_t n_answer, n_canvases, n_cached;
  uint32_t n_recomputed; /* prompt rows computed more than once */
  uint32_t replica;
  bool refused, cancelled, expired, failed;
} weft_sim_outcome;

/* Counts of one replica, or of all together. */
typedef struct weft_sim_counts {
  uint64_t end_us, busy_us;
  uint64_t backlog_us;            /* of steps while every tenant of the load had a request waiting there */
  double pool_page_us;            /* pinned pages, times how long */
  uint64_t n_pages, n_pages_peak; /* of the pool; most pinned at once */
  uint64_t n_steps, n_mixed_steps, n_switches, n_rows, n_void_rows, n_preemptions;
  uint64_t n_prefill_rows, n_denoise_steps;
  uint64_t n_pages_out, n_pages_back;                               /* to host memory, from there */
  uint64_t n_event_batches, n_events, n_blocks_told, n_event_bytes; /* of cache events, with --router index */
  uint32_t n_failures, n_replaced;                                  /* how often it failed, was drained and replaced */
  uint64_t n_pages_evicted;                 /* given up for new content, whether host memory took it or not */
  uint64_t measured_us, error_us;           /* of steps; |what the engine predicted - that| */
  uint64_t rows[WEFT_SIM_TENANTS];          /* computed for each tenant */
  double service_us[WEFT_SIM_TENANTS];      /* device time spent on them */
  double service_backlog[WEFT_SIM_TENANTS]; /* and in the steps of backlog_us */
} weft_sim_counts;

/* The requests of the load in groups, each in the order of the load: group g has item[first[g]] to the one before
 * item[first[g + 1]]. */
typedef struct weft_sim_groups {
  uint32_t *item;  /* [load.n] */
  uint32_t *first; /* [groups + 2] */
} weft_sim_groups;

typedef struct weft_sim_run {
  weft_sim_outcome *outcome; /* [load.n] */
  weft_sim_counts total;
  weft_sim_counts *replica; /* [n_replicas] */
  uint32_t n_replicas;
  uint64_t n_spilled;    /* requests that the router sent past their first replica */
  uint64_t n_credited;   /* prompt tokens that the index said are cached where the requests were sent */
  uint32_t n_index_most; /* blocks of replicas that the index knew at once */
  uint64_t upgraded_us;  /* when the last replica was back from an upgrade; 0: not all were */
  bool has_events;       /* events were told */
  weft_sim_series series;
  weft_sim_groups by_replica, by_tenant;
} weft_sim_run;

/* Runs the load to its end. With --clients the times of arrival are set. 0, or an exit code after one line. */
int weft_sim_run_load(const weft_lab_config *config, const weft_sim_profile *profile, weft_sim_load *load,
                      weft_sim_run *out);
void weft_sim_run_close(weft_sim_run *run);

/* Prints a table, --csv or --json. 0, or an exit code after one line. */
int weft_sim_report(const weft_lab_config *config, const weft_sim_load *load, const weft_sim_run *run);
/* Writes SVG files into the folder of --plots. 0, or an exit code after one line. */
int weft_sim_figures(const weft_lab_config *config, const weft_sim_load *load, const weft_sim_run *run);

#endif
