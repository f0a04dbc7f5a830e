/* SPDX-License-Identifier: MIT */
/* weft sim: the real engine and pager under a virtual clock.
 *
 * Law: time passes only by what the profile says that steps take and by waiting for the next
 * arrival; all draws are functions of the seed. The same load, profile and options give the same
 * numbers, to the last digit, however busy the machine is. */
#ifndef WEFT_API_CLI_SIM_H
#define WEFT_API_CLI_SIM_H

#include "api/config.h"

enum {
  WEFT_SIM_BLOCK = 512,   /* tokens that one hash id of a trace stands for */
  WEFT_SIM_CANVAS = 256,  /* tokens of a canvas */
  WEFT_SIM_TENANTS = 256, /* most tenants */
  WEFT_SIM_VOCAB = 262144
};

/* One request of the load. */
typedef struct weft_sim_item {
  uint64_t at_us; /* arrival; never less than that of the item before */
  uint32_t n_prompt, n_answer, tenant;
  bool diffusion;
  uint64_t first_id; /* of weft_sim_load.id: one per block of the prompt */
} weft_sim_item;

typedef struct weft_sim_load {
  weft_sim_item *item;
  uint64_t *id; /* blocks with the same id have the same tokens */
  uint64_t n_ids, ids_room;
  uint32_t n, room, n_tenants, longest; /* longest: prompt plus answer */
  bool diffusion;                       /* some item is */
} weft_sim_load;

/* From --trace, or generated. 0, or an exit code after one line. */
int weft_sim_load_open(const weft_config *config, weft_sim_load *out);
void weft_sim_load_close(weft_sim_load *load);
/* Tokens [0, n_prompt) of an item. */
void weft_sim_load_prompt(const weft_sim_load *load, const weft_sim_item *item, int32_t *tokens);
/* Adds an item with n_ids ids to the end. False: no memory. */
bool weft_sim_load_add(weft_sim_load *load, const weft_sim_item *item, const uint64_t *id,
                       uint32_t n_ids);

/* What became of a request. Times are 0 where the event did not happen. */
typedef struct weft_sim_outcome {
  uint64_t started_us, first_us, finished_us;
  uint32_t n_answer, n_canvases;
  bool refused, failed;
} weft_sim_outcome;

typedef struct weft_sim_run {
  weft_sim_outcome *outcome; /* [load.n] */
  uint64_t end_us, busy_us;
  uint64_t backlog_us;            /* of steps while every tenant of the load had somebody waiting */
  double pool_page_us;            /* pinned pages, times how long */
  uint32_t n_pages, n_pages_peak; /* of the pool; most pinned at once */
  uint64_t rows[WEFT_SIM_TENANTS];         /* computed for each tenant */
  uint64_t rows_backlog[WEFT_SIM_TENANTS]; /* and in the steps of backlog_us */
  uint64_t n_steps, n_mixed_steps, n_rows, n_void_rows, n_preemptions;
  uint64_t n_prompt_tokens, n_cached_tokens, n_answer_tokens, n_prefill_rows, n_denoise_steps;
} weft_sim_run;

/* Runs the load to its end. 0, or an exit code after one line. */
int weft_sim_run_load(const weft_config *config, const weft_sim_load *load, weft_sim_run *out);
void weft_sim_run_close(weft_sim_run *run);

/* Prints a table, --csv or --json. 0, or an exit code after one line. */
int weft_sim_report(const weft_config *config, const weft_sim_load *load, const weft_sim_run *run);

#endif
