/* SPDX-License-Identifier: MIT */
/* The laboratory of the program: its commands (bench, boot, check, eval, logits, perplexity, prove, sim, soak,
 * test-model) and the options that they alone have.
 *
 * Law: the program's main hands both tables over; nothing else of the product knows them. Every command of the table is
 * called with the configuration that begins a weft_lab_config, which is what the option table says it fills. */
#ifndef WEFT_BENCH_LAB_LAB_H
#define WEFT_BENCH_LAB_LAB_H

#include "bench/inside.h"

typedef struct weft_lab_config {
  weft_config product; /* first: a command gets a pointer to it */
  /* logits */
  const char *canvas, *self_cond;
  float self_cond_temperature;
  /* perplexity */
  const char *noise, *save_logits, *kl;
  uint32_t chunks, stride;
  /* test-model */
  const char *text;
  /* check */
  float tolerance;
  const char *with;
  /* bench, eval, soak */
  const char *llama, *cases, *report;
  uint32_t n_prompt, n_generate, n_parallel, repeat, limit, seconds;
  uint32_t from, to, step;     /* bench frontier */
  const char *accept, *depths; /* bench drafts */
  bool csv, cpu_time, structured;
  /* prove */
  const char *matrix, *baseline, *suite, *contract, *budget, *proofs, *work, *keep, *commit, *report_check;
  weft_text_list candidates, prompt_files;
  bool defaults;
  /* boot */
  uint32_t parent, die_at;
  bool dry_run, drop_key, drafts_always;
  /* sim: the load */
  float rate, diffusion, shared, long_share, skew, cancel, urgent;
  uint32_t requests, burst, tenants, prompt_tokens, answer_tokens, shared_tokens, prefixes, longest_tokens, cancel_ms;
  uint32_t deadline_ms, trace_block, clients;
  float think_ms;
  /* sim: replicas, the device, what counts as good */
  float zipf, day_s, swing, move_s, fail_s, away_s, upgrade_s;
  uint32_t copies, router_lag_ms, index_lag_ms, upgrade_at_once;
  const char *profile, *plots, *router, *replay, *assignment;
  uint32_t replicas, router_blocks, canvas_steps, canvas_steps_min;
  float router_bound, step_us, row_us, key_us, goodput_ttft_ms, goodput_tpot_ms;
} weft_lab_config;

extern const weft_option_table weft_lab_options;
extern const weft_command weft_lab_commands[];
extern const uint32_t weft_lab_n_commands;

static inline const weft_lab_config *weft_lab_of(const weft_config *config) {
  return (const weft_lab_config *)config;
}

int weft_lab_bench(const weft_config *config);
int weft_lab_check(const weft_config *config);
int weft_lab_boot(const weft_config *config);
int weft_lab_eval(const weft_config *config);
int weft_lab_logits(const weft_config *config);
int weft_lab_perplexity(const weft_config *config);
int weft_lab_prove(const weft_config *config);
int weft_lab_sim(const weft_config *config);
int weft_lab_soak(const weft_config *config);
int weft_lab_test_model(const weft_config *config);

#endif
