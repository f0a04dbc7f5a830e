/* SPDX-License-Identifier: MIT */
/* weft bench pressure: 24 conversations of 4 turns, all at once, half of them answered by diffusion where the model
 * can.
 * First in a pool that evicts nothing; then in a tenth of what that one holds at the end: alone, with host memory
 * behind it, and with a fifth as much host memory and a file behind that (--spill-file PATH [weft-bench.spill]).
 * Prints the rows of prompts computed in each: what exceeds the first run was computed again. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lab/lab.h"
#include "bench/speed/bench.h"
#include "bench/speed/measure.h"

enum { TALKS = 24, TURNS = 4, FIRST = 160, MORE = 24, ANSWER = 16, TOKENS_MAX = FIRST + TURNS * (MORE + 64) };

typedef struct talk {
  int32_t tokens[TOKENS_MAX];
  uint32_t n;
  weft_generation *generation;
} talk;

typedef struct result {
  double pages, rows, out, back, to_file, from_file, waits, preemptions, resumed, seconds;
} result;

static void add_tokens(talk *t, uint32_t index, uint32_t n, uint32_t n_vocab) {
  for (uint32_t i = 0; i < n; i++, t->n++) t->tokens[t->n] = weft_prompt_token(5, index + 1, t->n, n_vocab);
}

static int ask_next(weft_runtime *rt, talk *t, uint32_t index) {
  weft_generate_params p;
  char error[256];
  weft_generate_defaults(&p);
  p.prompt.tokens = t->tokens;
  p.prompt.n_tokens = t->n;
  p.max_tokens = ANSWER;
  p.ignore_eos = true;
  p.sampling.temperature = 0.0f;
  p.has_seed = true;
  p.mode = index % 2 == 0 ? WEFT_MODE_AUTO : WEFT_MODE_AUTOREGRESSIVE;
  if (weft_submit(rt, &p, &t->generation, error, sizeof error) == 0) return 0;
  return weft_cli_fail(WEFT_EXIT_RUNTIME, "bench pressure: %s", error);
}

/* The answer becomes part of the talk. */
static void hear_answer(talk *t) {
  weft_delta d = {0};
  while (d.kind != WEFT_DELTA_END) {
    if (weft_next(t->generation, 1000, &d) != 0) continue;
    for (uint32_t i = 0; d.kind == WEFT_DELTA_TEXT && i < d.n_tokens && t->n + MORE < TOKENS_MAX; i++) {
      t->tokens[t->n++] = d.tokens[i];
    }
  }
  weft_generation_free(t->generation);
  t->generation = NULL;
}

static int take_turns(weft_runtime *rt, talk *talks) {
  uint32_t n_vocab = weft_model_at(rt, 0).vocabulary;
  int code = 0;
  for (uint32_t turn = 0; turn < TURNS && code == 0; turn++) {
    for (uint32_t i = 0; i < TALKS && code == 0; i++) {
      add_tokens(&talks[i], i, turn == 0 ? FIRST : MORE, n_vocab);
      code = ask_next(rt, &talks[i], i);
    }
    for (uint32_t i = 0; i < TALKS; i++) {
      if (talks[i].generation != NULL) hear_answer(&talks[i]);
    }
  }
  return code;
}

/* Bytes of each tier. */
typedef struct tiers {
  uint64_t pool, host, file;
} tiers;

static int run_pressure(const weft_lab_config *config, const tiers *n_bytes, result *r, uint64_t *page_bytes) {
  weft_lab_config own = *config;
  weft_open_options options = weft_config_open(&own.product);
  weft_runtime *rt;
  char error[512];
  options.kv_bytes = n_bytes->pool;
  options.host_bytes = n_bytes->host;
  options.spill_bytes = n_bytes->file;
  options.spill_file = n_bytes->file == 0                   ? NULL
                       : config->product.spill_file != NULL ? config->product.spill_file
                                                            : "weft-bench.spill";
  options.context = 2 * TOKENS_MAX;
  int status = weft_open(&options, &rt, error, sizeof error);
  if (status != 0) return weft_cli_fail(weft_cli_code(status), "%s", error);
  talk *talks = weft_alloc(TALKS, sizeof *talks);
  uint64_t start_us = weft_clock_us();
  int code = talks == NULL ? weft_cli_fail(WEFT_EXIT_RUNTIME, "no memory for the talks") : take_turns(rt, talks);
  r->seconds = (double)(weft_clock_us() - start_us) * 1e-6;
  /* counters of the last step come a moment after its tokens */
  while (code == 0 && !weft_idle(rt)) (void)usleep(1000);
  char *metrics = weft_metrics(rt);
  r->pages = weft_metric(metrics, "weft_pool_pages") - weft_metric(metrics, "weft_pool_pages_free");
  r->rows = weft_metric(metrics, "weft_rows_prefill_total");
  r->out = weft_metric(metrics, "weft_spill_pages_out_total");
  r->back = weft_metric(metrics, "weft_spill_pages_back_total");
  r->to_file = weft_metric(metrics, "weft_file_pages_out_total");
  r->from_file = weft_metric(metrics, "weft_file_pages_back_total");
  r->waits = weft_metric(metrics, "weft_file_waits_total");
  r->preemptions = weft_metric(metrics, "vllm:num_preemptions_total");
  r->resumed = weft_metric(metrics, "weft_canvases_resumed_total");
  *page_bytes = rt->page_bytes;
  weft_release(metrics);
  weft_free(talks);
  weft_close(rt);
  return code;
}

int weft_bench_pressure(const weft_lab_config *config) {
  static const char *const names[] = {"ample pool", "a tenth", "a tenth, host memory", "a tenth, host, file"};
  enum { RUNS = 4, FIFTH = 5 };
  result r[RUNS] = {{0}};
  uint64_t page_bytes = 0, ample = (uint64_t)256 << 20;
  int code = config->product.models.n == 0 ? weft_cli_fail(WEFT_EXIT_USAGE, WEFT_NO_MODEL)
                                           : run_pressure(config, &(tiers){.pool = ample}, &r[0], &page_bytes);
  uint64_t all = (uint64_t)r[0].pages * page_bytes, tenth = (uint64_t)(r[0].pages / 10.0) * page_bytes;
  const tiers small[] = {
      {.pool = tenth}, {.pool = tenth, .host = ample}, {.pool = tenth, .host = all / FIFTH, .file = ample}};
  for (uint32_t i = 1; i < RUNS && code == 0; i++) code = run_pressure(config, &small[i - 1], &r[i], &page_bytes);
  if (code != 0) return code;
  for (uint32_t i = 0; i < RUNS; i++) {
    const char *format =
        config->product.json
            ? "%s{\"name\": \"%s\", \"prefill_rows\": %.0f, \"again\": %.0f, \"pages_out\": %.0f, \"pages_back\": "
              "%.0f, \"file_pages_out\": %.0f, \"file_pages_back\": %.0f, \"file_waits\": %.0f, "
              "\"preemptions\": %.0f, \"canvases_resumed\": %.0f, \"seconds\": %.2f}%s\n"
            : "%s%-22s %6.0f rows of prompts, %6.0f again; %5.0f pages out, %5.0f back; file %5.0f out, %5.0f "
              "back, %4.0f waits; %3.0f preemptions, %2.0f canvases resumed; %.2f s%s\n";
    (void)printf(format, config->product.json ? (i == 0 ? "[" : " ") : "", names[i], r[i].rows, r[i].rows - r[0].rows,
                 r[i].out, r[i].back, r[i].to_file, r[i].from_file, r[i].waits, r[i].preemptions, r[i].resumed,
                 r[i].seconds, config->product.json ? (i + 1 < RUNS ? "," : "]") : "");
  }
  return 0;
}
