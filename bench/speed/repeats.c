/* SPDX-License-Identifier: MIT */
/* weft bench repeats: the same prompts again and again. Answers must be equal whatever the times of threads and kernels
 * are, so what differs between two runs is a race.
 *
 * Law: the first run computes its prompts, and later ones find what is left of them, which changes no answer either. A
 * case that differs ends with a line that names the run, the sequence and the first token; the others are run all the
 * same, and the command fails. */
#include <string.h>

#include "bench/speed/bench.h"
#include "bench/speed/measure.h"

enum { RUNS_MAX = 1001 /* --repeat and the first one */, SEED = 7000 };

typedef struct repeats_bench {
  const weft_lab_config *config;
  weft_runtime *rt;
  weft_load load;
  int32_t *first, *again; /* [n_parallel][n_generate] */
  double rate[RUNS_MAX];  /* tokens a second */
  json_t *records;
  bool differs;
} repeats_bench;

/* Where the answers of a run leave those of the first one. */
typedef struct repeats_difference {
  uint32_t run, sequence, token; /* run 0: nowhere */
} repeats_difference;

static repeats_difference compare_answers(const repeats_bench *b, uint32_t run) {
  uint32_t n = b->load.n_generate;
  for (uint32_t s = 0; s < b->load.n_parallel; s++) {
    for (uint32_t t = 0; t < n; t++)
      if (b->first[s * n + t] != b->again[s * n + t]) return (repeats_difference){run, s, t};
  }
  return (repeats_difference){0, 0, 0};
}

static int run_once(repeats_bench *b, uint32_t run) {
  weft_measured m;
  b->load.answers = run == 0 ? b->first : b->again;
  int code = weft_measure(b->rt, &b->load, SEED, &m);
  if (code == 0) b->rate[run] = weft_measured_rate(&m);
  return code;
}

static void print_case(repeats_bench *b, uint32_t n_runs, repeats_difference at) {
  double median = weft_median(b->rate, n_runs);
  if (b->config->csv)
    (void)printf("%u,%u,%u,%u,%u,%.6g\n", b->load.n_parallel, n_runs, at.run, at.sequence, at.token, median);
  else if (!b->config->product.json && at.run == 0)
    (void)printf("%4u at once: %u runs have equal answers, %.2f tok/s\n", b->load.n_parallel, n_runs, median);
  else if (!b->config->product.json)
    (void)printf("%4u at once: run %u gives sequence %u another answer from token %u on\n", b->load.n_parallel, at.run,
                 at.sequence, at.token);
  (void)fflush(stdout);
  json_t *record = json_pack("{s:s, s:i, s:i, s:b, s:f, s:s}", "work", "repeats", "n_parallel", (int)b->load.n_parallel,
                             "runs", (int)n_runs, "equal", at.run == 0, "tok_s", median, "device",
                             weft_device_get_info(b->rt->devices.device[0])->name);
  if (at.run > 0)
    (void)json_object_update_new(
        record, json_pack("{s:i, s:i, s:i}", "run", (int)at.run, "sequence", (int)at.sequence, "token", (int)at.token));
  (void)json_array_append_new(b->records, record);
}

static int run_case(repeats_bench *b, uint32_t n_parallel) {
  uint32_t n_runs = b->config->repeat + 1;
  repeats_difference at = {0, 0, 0};
  b->load.n_parallel = n_parallel;
  b->first = weft_alloc((size_t)n_parallel * b->load.n_generate, sizeof *b->first);
  b->again = weft_alloc((size_t)n_parallel * b->load.n_generate, sizeof *b->again);
  int code = b->first == NULL || b->again == NULL ? weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory") : 0;
  for (uint32_t run = 0; run < n_runs && code == 0; run++) {
    code = run_once(b, run);
    if (code == 0 && run > 0 && at.run == 0) at = compare_answers(b, run);
  }
  if (code == 0) print_case(b, n_runs, at);
  b->differs |= at.run > 0;
  weft_free(b->first);
  weft_free(b->again);
  return code;
}

int weft_bench_repeats(const weft_lab_config *config) {
  static const uint32_t sweep[] = {1, 2, 4, 5, 8, 12, 16, 24, 32, 64, 128};
  repeats_bench b = {.config = config};
  int code = weft_cli_open(&config->product, &b.rt);
  if (code != 0) return code;
  b.load = (weft_load){.n_prompt = config->n_prompt, .n_generate = config->n_generate};
  b.records = json_array();
  if ((uint64_t)config->n_prompt + config->n_generate > b.rt->model[0].context)
    code = weft_cli_fail(WEFT_EXIT_USAGE, "bench: prompt and answer have more tokens than the context of %u",
                         b.rt->model[0].context);
  if (config->n_parallel > 0 && code == 0) code = run_case(&b, config->n_parallel);
  for (uint32_t i = 0; config->n_parallel == 0 && i < sizeof sweep / sizeof *sweep && code == 0; i++)
    if (sweep[i] <= b.rt->options.running) code = run_case(&b, sweep[i]);
  if (code == 0 && config->product.json) weft_bench_print(b.records);
  if (code == 0 && b.differs) code = weft_cli_fail(WEFT_EXIT_FAILED, "bench: answers differ between runs: a race");
  json_decref(b.records);
  weft_close(b.rt);
  return code;
}
