/* SPDX-License-Identifier: MIT */
/* weft bench scheduler: the host time of a step, without the model: plan, batch, apply and the
 * pager's part of them.
 *
 * Law: measured on the real engine and pager; the runner is the fake one without memory, and the
 * time spent inside it is not counted. All requests decode, one row each per step, at 26B geometry
 * (six groups, blocks of 16 and 32 tokens), with some hundred tokens of context; every step crosses
 * block boundaries for its share of the requests. --n-parallel takes one number of requests,
 * --n-generate times --repeat is the number of steps. The result is the median over steps, since
 * the machine may be shared; the best step stands beside it. bench/instructions.sh counts the
 * instructions of the same work. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/doubles/fake_runner.h"
#include "bench/lab/lab.h"
#include "bench/speed/bench.h"

enum {
  N_SIZES = 3,
  N_GROUPS = 6,
  PROMPT = 128,
  ANSWER = 1024,
  WARM_STEPS = 64,
  STEPS_MAX = 896,
  CONTEXT = 2048,
  PAGES_PER_REQUEST = 6 * (PROMPT + ANSWER) / 16
};

typedef struct bench_result {
  double median_us, best_us;
} bench_result;

typedef struct bench_task {
  uint32_t n_sizes, size[N_SIZES], n_steps;
  bool overlap;
} bench_task;

typedef struct bench_world {
  weft_runner *runner;
  weft_engine *engine;
  weft_request **request;
  uint32_t n;
} bench_world;

static weft_status open_world(bench_world *w, uint32_t n, bool overlap, weft_error *error) {
  weft_fake_config fake = {.name = "bench",
                           .autoregressive = true,
                           .n_slots = n,
                           .rows_max = n + 4096,
                           .depth = 2,
                           .context_length = CONTEXT,
                           .model = {.salt = 1, .n_vocab = 262144, .n_groups = N_GROUPS}};
  for (uint32_t g = 0; g < N_GROUPS; g++) {
    fake.model.group[g] =
        (weft_layer_group){.block_tokens = g == 0 ? 32 : 16, .window = g == 0 ? 0 : 1024, .n_layers = 5};
  }
  w->n = n;
  w->request = weft_alloc(n, sizeof *w->request);
  if (w->request == NULL || weft_fake_runner_open(&fake, &w->runner) != WEFT_OK) {
    return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for %u requests", n);
  }
  weft_engine_config config = {.n_models = 1,
                               .runner = &w->runner,
                               .n_pages = n * PAGES_PER_REQUEST,
                               .rows_per_step = n + 4096,
                               .running_max = n,
                               .waiting_max = n,
                               .n_tenants = 16,
                               .seq_tokens_max = CONTEXT,
                               .overlap = overlap};
  return weft_engine_open(&config, &w->engine, error);
}

static void close_world(bench_world *w) {
  for (uint32_t i = 0; w->request != NULL && i < w->n; i++) {
    weft_engine_release(w->engine, w->request[i]);
  }
  weft_engine_close(w->engine);
  if (w->runner != NULL) w->runner->ops->close(w->runner);
  weft_free(w->request);
  *w = (bench_world){0};
}

static weft_status submit_all(bench_world *w, weft_error *error) {
  int32_t prompt[PROMPT];
  for (uint32_t i = 0; i < w->n; i++) {
    for (uint32_t k = 0; k < PROMPT; k++) prompt[k] = (int32_t)((i * 131 + k * 7) % 262144);
    weft_request_params params = {.tenant = i % 16,
                                  .tokens = prompt,
                                  .n_tokens = PROMPT - i % 32, /* boundaries spread over steps */
                                  .max_tokens = ANSWER,
                                  .asked.sampling = weft_sampling_neutral()};
    weft_status status = weft_engine_submit(w->engine, &params, 1, &w->request[i], error);
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Host time of one step, in microseconds: what the engine counts as its own. */
static double step_us(bench_world *w, uint64_t now_us) {
  weft_engine_stats before, after;
  weft_engine_get_stats(w->engine, &before);
  (void)weft_engine_step(w->engine, now_us);
  weft_engine_get_stats(w->engine, &after);
  return (double)(after.plan_us - before.plan_us);
}

static weft_status measure_task(const bench_task *task, uint32_t n, bench_result *out, weft_error *error) {
  bench_world w = {0};
  double times[STEPS_MAX];
  uint32_t n_steps = task->n_steps;
  uint64_t now_us = 1;
  weft_status status = open_world(&w, n, task->overlap, error);
  if (status == WEFT_OK) status = submit_all(&w, error);
  weft_engine_stats stats = {0};
  /* Prompts first, then some steps of decoding so that every structure is warm. */
  while (status == WEFT_OK && stats.n_decode_rows < (uint64_t)n * WARM_STEPS) {
    (void)weft_engine_step(w.engine, now_us++);
    weft_engine_get_stats(w.engine, &stats);
  }
  uint64_t n_rows = stats.n_decode_rows;
  for (uint32_t i = 0; status == WEFT_OK && i < n_steps; i++) times[i] = step_us(&w, now_us++);
  if (status == WEFT_OK) {
    weft_engine_get_stats(w.engine, &stats);
    if (stats.n_decode_rows - n_rows != (uint64_t)n * n_steps) {
      status = weft_fail(error, WEFT_E_INVALID, "%llu rows in %u steps of %u requests",
                         (unsigned long long)(stats.n_decode_rows - n_rows), n_steps, n);
    }
    qsort(times, n_steps, sizeof *times, by_value);
    *out = (bench_result){.median_us = times[n_steps / 2], .best_us = times[0]};
  }
  close_world(&w);
  return status;
}

static void print_json(const bench_task *task, const bench_result *results) {
  (void)printf("{\"step_us\":{");
  for (uint32_t i = 0; i < task->n_sizes; i++) {
    (void)printf("%s\"%u\":%.1f", i == 0 ? "" : ",", task->size[i], results[i].median_us);
  }
  (void)printf("},\"best_us\":{");
  for (uint32_t i = 0; i < task->n_sizes; i++) {
    (void)printf("%s\"%u\":%.1f", i == 0 ? "" : ",", task->size[i], results[i].best_us);
  }
  (void)printf("}}\n");
}

static void print_table(const bench_task *task, const bench_result *results) {
  (void)printf("%8s %12s %12s %14s\n", "running", "step us", "best us", "ns per row");
  for (uint32_t i = 0; i < task->n_sizes; i++) {
    (void)printf("%8u %12.1f %12.1f %14.1f\n", task->size[i], results[i].median_us, results[i].best_us,
                 results[i].median_us * 1e3 / task->size[i]);
  }
}

int weft_bench_scheduler(const weft_lab_config *config) {
  bench_task task = {.n_sizes = N_SIZES,
                     .size = {256, 1024, 4096},
                     .n_steps = config->n_generate * config->repeat,
                     .overlap = !config->product.no_overlap};
  if (task.n_steps > STEPS_MAX) task.n_steps = STEPS_MAX;
  if (config->n_parallel > 0) {
    task.n_sizes = 1;
    task.size[0] = config->n_parallel;
  }
  bench_result results[N_SIZES];
  for (uint32_t i = 0; i < task.n_sizes; i++) {
    weft_error error = {{0}};
    if (measure_task(&task, task.size[i], &results[i], &error) == WEFT_OK) continue;
    return weft_cli_fail(1, "bench scheduler: %s", error.text);
  }
  if (config->product.json) {
    print_json(&task, results);
  } else {
    print_table(&task, results);
  }
  return 0;
}
