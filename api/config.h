/* SPDX-License-Identifier: MIT */
/* The option table: every option of every command is one row here: flag, environment name, file key, range, default
 * and help come from the same row.
 *
 * Law: later wins: default, then the file of --config (lines `name = value`), then the environment (WEFT_NAME, dashes as
 * underscores, server options only), then flags. An unknown name or a value out of range is one line and a failure,
 * never a guess. This is the only file that reads the environment. */
#ifndef WEFT_API_CONFIG_H
#define WEFT_API_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "api/weft.h"
#include "base/status.h"

enum { WEFT_LIST_MAX = 64 };

typedef struct weft_text_list {
  const char *item[WEFT_LIST_MAX];
  uint32_t n;
} weft_text_list;

/* Which commands an option belongs to. */
enum {
  WEFT_CMD_GENERATE = 1,
  WEFT_CMD_CHAT = 2,
  WEFT_CMD_SERVE = 4,
  WEFT_CMD_INSPECT = 8,
  WEFT_CMD_TOKENIZE = 16,
  WEFT_CMD_LOGITS = 32,
  WEFT_CMD_BENCH = 64,
  WEFT_CMD_EVAL = 128,
  WEFT_CMD_DEMO = 256,
  WEFT_CMD_SOAK = 512,
  WEFT_CMD_SIM = 1024,
  WEFT_CMD_TRACE = 2048,
  WEFT_CMD_TOP = 4096,
  WEFT_CMD_CHECK = 8192
};

typedef struct weft_config {
  /* what is served and how */
  weft_text_list models, kv_8bit;
  const char *backend, *config_file, *spill_file;
  uint32_t threads, kv_mib, device_mib, host_mib, spill_mib, context, running, queue, rows, pins;
  uint32_t tpot_ms, slice_ms;
  bool hold_tpot;
  uint32_t saved_canvases;
  bool no_prefix_cache, no_overlap, no_graphs, no_arena, no_deterministic, quiet, verbose, json, help;
  /* the server */
  const char *host, *api_keys, *directory;
  weft_text_list pin_files;
  uint32_t port, body_mib, connections, drain_seconds;
  /* one generation */
  const char *prompt, *input, *tokens, *system, *mode, *trace;
  weft_text_list stop;
  bool chat, thinking, ignore_eos, no_live, special;
  uint32_t max_tokens, top_k, logprobs;
  float temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  bool has_seed;
  uint64_t seed;
  uint32_t diffusion_steps, diffusion_blocks, diffusion_stability;
  uint64_t diffusion_seed;
  bool has_diffusion_seed, has_top_k, has_stability, no_self_conditioning;
  float diffusion_t_min, diffusion_t_max, diffusion_entropy_bound, diffusion_confidence;
  /* logits */
  const char *canvas, *self_cond, *output;
  float tolerance;
  float self_cond_temperature;
  /* bench, eval, demo, soak */
  const char *llama, *cases;
  uint32_t n_prompt, n_generate, n_parallel, repeat, limit, seconds;
  /* sim */
  float step_us, row_us, key_us, rate, diffusion, shared, long_share, skew, target_ttft_ms, target_tpot_ms;
  uint32_t requests, burst, tenants, prompt_tokens, answer_tokens, shared_tokens, prefixes, longest_tokens;
  float cancel, urgent, router_bound;
  uint32_t canvas_steps, canvas_steps_min, cancel_ms, deadline_ms, replicas, router_blocks;
  const char *profile, *plots, *router;
  bool csv, shared_cache;
  /* trace, top */
  const char *key_file;
  uint32_t frames;
  float interval;
  /* words that are no options */
  weft_text_list words;
  /* texts of the --config file */
  char *owned[WEFT_LIST_MAX];
  uint32_t n_owned;
} weft_config;

void weft_config_defaults(weft_config *config);
/* argv[0 .. argc) without the program's and the command's name; pointers into argv are kept. */
weft_status weft_config_parse(weft_config *config, unsigned command, int argc, char **argv, weft_error *error);
void weft_config_free(weft_config *config);
/* The options of a command, for --help. */
void weft_config_help(unsigned command, FILE *to);
/* Options of weft_open from the configuration. */
weft_open_options weft_config_open(const weft_config *config);
/* "2,5,9" to ids; the caller frees. */
weft_status weft_config_ids(const char *text, const char *flag, int32_t **ids, uint32_t *n, weft_error *error);

#endif
