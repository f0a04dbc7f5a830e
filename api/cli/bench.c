/* SPDX-License-Identifier: MIT */
/* weft bench: `model` (the default) measures a GGUF file the way people compare engines: prefill, decode, batched decode
 * and canvas steps; the other words measure parts. */
#include "api/cli/bench.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "api/cli/measure.h"

enum { REPEAT_MAX = 1000 };

typedef struct bench_row {
  const char *name, *unit;
  weft_load load;
  bool prefill; /* the rate of prompt tokens, not of generated ones */
} bench_row;

static double rate_of(const bench_row *row, const weft_measured *m) {
  if (row->prefill) return row->load.n_parallel * row->load.n_prompt / m->prefill_s;
  if (row->load.diffusion) return m->n_tokens == 0 ? 0.0 : 1000.0 * m->generate_s / (double)m->n_tokens; /* ms a step */
  return m->generate_s > 0.0 ? (double)m->n_tokens / m->generate_s : 0.0;
}

static int run_row(const weft_config *config, weft_runtime *rt, const bench_row *row, json_t *out) {
  double rates[REPEAT_MAX];
  uint32_t n = config->repeat < REPEAT_MAX ? config->repeat : REPEAT_MAX;
  for (uint32_t i = 0; i <= n; i++) { /* the first run warms up */
    weft_measured m;
    int code = weft_measure(rt, &row->load, 1000u + i, &m);
    if (code != 0) return code;
    if (i > 0) rates[i - 1] = rate_of(row, &m);
  }
  double median = weft_median(rates, n), spread = rates[n - 1] - rates[0];
  if (!config->json) {
    (void)printf("%-28s %10.2f %-8s  spread %.2f over %u runs\n", row->name, median, row->unit, spread, n);
    (void)fflush(stdout); /* a row at a time */
  }
  (void)json_array_append_new(out, json_pack("{s:s, s:f, s:f, s:s, s:i, s:i, s:i}", "work", row->name, "median", median,
                                             "spread", spread, "unit", row->unit, "n_prompt", (int)row->load.n_prompt,
                                             "n_generate", (int)row->load.n_generate, "n_parallel",
                                             (int)row->load.n_parallel));
  return 0;
}

static int run_rows(const weft_config *config, weft_runtime *rt, json_t *out) {
  static char names[16][48];
  bench_row rows[16];
  uint32_t n = 0;
  uint32_t np = config->n_prompt, ng = config->n_generate;
  (void)snprintf(names[n], sizeof names[n], "prefill %u", np);
  rows[n] = (bench_row){names[n], "tok/s", {np, 1, 1, false}, true};
  n += 1;
  static const uint32_t sweep[] = {1, 4, 16, 32};
  for (uint32_t i = 0; i < 4; i++) {
    uint32_t parallel = config->n_parallel > 0 ? config->n_parallel : sweep[i];
    (void)snprintf(names[n], sizeof names[n], "decode, %u at once", parallel);
    rows[n] = (bench_row){names[n], "tok/s", {16, ng, parallel, false}, false};
    n += 1;
    if (config->n_parallel > 0) break;
  }
  if (weft_model_at(rt, 0).canvas > 0) {
    (void)snprintf(names[n], sizeof names[n], "canvas step, prompt %u", np);
    rows[n] = (bench_row){names[n], "ms/step", {np, 9, 1, true}, false};
    n += 1;
  }
  for (uint32_t i = 0; i < n; i++) {
    int code = run_row(config, rt, &rows[i], out);
    if (code != 0) return code;
  }
  return 0;
}

int weft_bench_model(const weft_config *config) {
  weft_runtime *rt;
  int code = weft_cli_open(config, &rt);
  if (code != 0) return code;
  json_t *list = json_array();
  if (!config->json) (void)printf("%s", weft_plan(rt));
  code = run_rows(config, rt, list);
  if (code == 0 && config->json) {
    char *text = json_dumps(list, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    (void)printf("%s\n", text == NULL ? "[]" : text);
    free(text);
  }
  json_decref(list);
  weft_close(rt);
  return code;
}

/* The parts take words of their own; only --json goes along. */
static int run_part(int (*part)(int, char **), const weft_config *config) {
  char name[] = "bench", json[] = "--json";
  char *argv[] = {name, json, NULL};
  return part(config->json ? 2 : 1, argv);
}

int weft_cli_bench(const weft_config *config) {
  const char *what = config->words.n > 0 ? config->words.item[0] : "model";
  if (strcmp(what, "model") == 0) return weft_bench_model(config);
  if (strcmp(what, "kernels") == 0) return run_part(weft_bench_kernels, config);
  if (strcmp(what, "pager") == 0) return weft_bench_pager(config);
  if (strcmp(what, "capacity") == 0) return weft_bench_capacity(config);
  if (strcmp(what, "scheduler") == 0) return weft_bench_scheduler(config);
  if (strcmp(what, "peer") == 0) return weft_bench_peer(config);
  if (strcmp(what, "serving") == 0) return weft_bench_serving(config);
  if (strcmp(what, "pressure") == 0) return weft_bench_pressure(config);
  if (strcmp(what, "profile") == 0) return weft_bench_profile(config);
  return weft_cli_fail(WEFT_EXIT_USAGE,
                       "bench: '%s' must be model, kernels, pager, capacity, scheduler, peer, serving, pressure or profile", what);
}
