/* SPDX-License-Identifier: MIT */
/* weft bench: `model` (the default) measures a GGUF file the way people compare engines: prefill, decode, batched decode
 * and canvas steps; the other words measure parts. */
#include "api/cli/bench.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "api/cli/measure.h"
#include "api/runtime.h"

enum { REPEAT_MAX = 1000, ROWS_MAX = 64 };

typedef struct bench_row {
  const char *name, *unit;
  weft_load load;
  bool prefill; /* the rate of prompt tokens, not of generated ones */
} bench_row;

static double rate_of(const bench_row *row, const weft_measured *m) {
  double n_tokens = (double)m->n_tokens, n_parallel = row->load.n_parallel;
  if (row->prefill) return n_parallel * row->load.n_prompt / m->prefill_s;
  if (row->load.diffusion) return m->n_tokens == 0 ? 0.0 : 1000.0 * n_parallel * m->generate_s / n_tokens; /* ms a step */
  return m->generate_s > 0.0 ? n_tokens / m->generate_s : 0.0;
}

/* MiB of keys and values that the row's sequences hold at their end. */
static double kv_mib_of(const weft_runtime *rt, const bench_row *row) {
  const weft_runner *runner = rt->model[0].runner;
  uint64_t n_new = row->load.diffusion ? 0 : row->load.n_generate;
  uint64_t n_bytes = runner->ops->info(runner)->kv_bytes_per_token * row->load.n_parallel * (row->load.n_prompt + n_new);
  return (double)n_bytes / (1024.0 * 1024.0);
}

static int run_row(const weft_config *config, weft_runtime *rt, const bench_row *row, json_t *out) {
  double rates[REPEAT_MAX], firsts[REPEAT_MAX];
  uint32_t n = config->repeat < REPEAT_MAX ? config->repeat : REPEAT_MAX;
  for (uint32_t i = 0; i <= n; i++) { /* the first run warms up */
    weft_measured m;
    int code = weft_measure(rt, &row->load, 1000u + i, &m);
    if (code != 0) return code;
    if (i == 0) continue;
    rates[i - 1] = rate_of(row, &m);
    firsts[i - 1] = 1000.0 * m.prefill_s;
  }
  double median = weft_median(rates, n), spread = rates[n - 1] - rates[0], first = weft_median(firsts, n);
  const weft_load *l = &row->load;
  if (config->csv) {
    (void)printf("\"%s\",%.6g,%.6g,%s,%u,%u,%u,%.6g,%.6g\n", row->name, median, spread, row->unit, l->n_prompt,
                 l->n_generate, l->n_parallel, first, kv_mib_of(rt, row));
  } else if (!config->json) {
    (void)printf("%-28s %10.2f %-8s  spread %.2f over %u runs; first after %.2f ms; KV %.1f MiB\n", row->name, median,
                 row->unit, spread, n, first, kv_mib_of(rt, row));
  }
  (void)fflush(stdout); /* a row at a time */
  (void)json_array_append_new(
      out, json_pack("{s:s, s:f, s:f, s:s, s:i, s:i, s:i, s:f, s:f, s:s}", "work", row->name, "median", median, "spread",
                     spread, "unit", row->unit, "n_prompt", (int)l->n_prompt, "n_generate", (int)l->n_generate, "n_parallel",
                     (int)l->n_parallel, "first_ms", first, "kv_mib", kv_mib_of(rt, row), "device",
                     weft_device_get_info(rt->device)->name));
  return 0;
}

/* ---- which rows ---- */

typedef struct bench_list {
  bench_row row[ROWS_MAX];
  char name[ROWS_MAX][48];
  uint32_t n;
} bench_list;

static void add_prefill(bench_list *list, uint32_t n_prompt) {
  (void)snprintf(list->name[list->n], sizeof list->name[0], "prefill %u", n_prompt);
  list->row[list->n] = (bench_row){list->name[list->n], "tok/s", {n_prompt, 1, 1, false}, true};
  list->n += 1;
}

static void add_decode(bench_list *list, uint32_t n_prompt, uint32_t n_generate, uint32_t n_parallel) {
  if (n_parallel == 1 && n_prompt > 16) {
    (void)snprintf(list->name[list->n], sizeof list->name[0], "decode after %u", n_prompt);
  } else {
    (void)snprintf(list->name[list->n], sizeof list->name[0], "decode, %u at once", n_parallel);
  }
  list->row[list->n] = (bench_row){list->name[list->n], "tok/s", {n_prompt, n_generate, n_parallel, false}, false};
  list->n += 1;
}

static void add_canvas(bench_list *list, uint32_t n_prompt, uint32_t n_parallel) {
  if (n_parallel == 1) {
    (void)snprintf(list->name[list->n], sizeof list->name[0], "canvas step, prompt %u", n_prompt);
  } else {
    (void)snprintf(list->name[list->n], sizeof list->name[0], "canvas step, %u at once", n_parallel);
  }
  list->row[list->n] = (bench_row){list->name[list->n], "ms/step", {n_prompt, 9, n_parallel, true}, false};
  list->n += 1;
}

/* Doubling from `from` while at most `to`. */
static uint32_t next_size(uint32_t size, uint32_t to) { return size > to / 2 ? to + 1 : 2 * size; }

static int list_rows(const weft_config *config, const weft_runtime *rt, const char *sweep, bench_list *list) {
  static const uint32_t usual[] = {1, 4, 16, 32};
  uint32_t np = config->n_prompt, ng = config->n_generate, running = rt->options.running, context = rt->model[0].context;
  bool canvases = weft_model_at(rt, 0).canvas > 0;
  list->n = 0;
  if (sweep == NULL) {
    add_prefill(list, np);
    for (uint32_t i = 0; i < 4 && (config->n_parallel == 0 || i == 0); i++)
      add_decode(list, 16, ng, config->n_parallel > 0 ? config->n_parallel : usual[i]);
    if (canvases) add_canvas(list, np, 1);
  } else if (strcmp(sweep, "context") == 0) {
    for (uint32_t n = 512; n <= context - 1 && n + ng <= context; n = next_size(n, context)) {
      add_prefill(list, n);
      add_decode(list, n, ng, 1);
    }
  } else if (strcmp(sweep, "sequences") == 0) {
    for (uint32_t n = 1; n <= running; n = next_size(n, running)) add_decode(list, 16, ng, n);
  } else if (strcmp(sweep, "canvases") == 0 && canvases) {
    for (uint32_t n = 1; n <= running; n = next_size(n, running)) add_canvas(list, np, n);
  } else {
    return weft_cli_fail(WEFT_EXIT_USAGE, "bench model: '%s' must be context, sequences, or canvases of a model that has them",
                         sweep);
  }
  return 0;
}

static int run_rows(const weft_config *config, weft_runtime *rt, json_t *out) {
  static bench_list list;
  int code = list_rows(config, rt, config->words.n > 1 ? config->words.item[1] : NULL, &list);
  if (code == 0 && config->csv) (void)printf("work,median,spread,unit,n_prompt,n_generate,n_parallel,first_ms,kv_mib\n");
  for (uint32_t i = 0; i < list.n && code == 0; i++) code = run_row(config, rt, &list.row[i], out);
  return code;
}

int weft_bench_model(const weft_config *config) {
  weft_runtime *rt;
  int code = weft_cli_open(config, &rt);
  if (code != 0) return code;
  json_t *list = json_array();
  if (!config->json && !config->csv) (void)printf("%s", weft_plan(rt));
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
