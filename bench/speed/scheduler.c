/* SPDX-License-Identifier: MIT */
/* weft bench scheduler: the host time of a step, without the model: plan, batch, apply and the
 * pager's part of them.
 *
 * Law: measured on the real engine and pager; the runner is the fake one without memory, and the
 * time spent inside it is not counted. All requests decode, one row each per step, at 26B geometry
 * (six groups, blocks of 16 and 32 tokens), with some hundred tokens of context; every step crosses
 * block boundaries for its share of the requests. --n-parallel takes one number of requests,
 * --n-generate times --repeat is the number of steps. The result is the median over steps, since
 * the machine may be shared; the best step stands beside it. Then views are asked for, as while somebody
 * watches the server (scheduler/watch.h): what one costs in all, and in the step that it costs most, beyond the median of
 * steps without. bench/instructions.sh counts the instructions of the same work. */
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
  VIEW_STEPS = 640,
  CONTEXT = 2048,
  PAGES_PER_REQUEST = 6 * (PROMPT + ANSWER) / 16
};

typedef struct bench_result {
  double median_us, best_us;
  double view_us, view_step_us; /* of a view; of the step that it costs most */
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

static double wall_us(bench_world *w, uint64_t now_us) {
  uint64_t start_ns = weft_clock_ns();
  (void)weft_engine_step(w->engine, now_us);
  return (double)(weft_clock_ns() - start_ns) / 1e3;
}

static double median_of(double *values, uint32_t n) {
  if (n == 0) return 0;
  qsort(values, n, sizeof *values, by_value);
  return values[n / 2];
}

/* Nobody else asks for views here, so the steps until one is there are those that it costs: some that look at a part of
 * the pool, and a last one that takes the view. */
static weft_status measure_views(bench_world *w, uint64_t now_us, bench_result *out) {
  double plain[VIEW_STEPS], parts[VIEW_STEPS], last[VIEW_STEPS];
  uint32_t n_parts = 0, n_last = 0;
  weft_view view;
  weft_status status = weft_engine_open_view(w->engine, &view);
  if (status != WEFT_OK) return status;
  for (uint32_t i = 0; i < VIEW_STEPS / 4; i++) plain[i] = wall_us(w, now_us++);
  double plain_us = median_of(plain, VIEW_STEPS / 4);
  while (n_parts + n_last < VIEW_STEPS) {
    if (view.number == n_last) weft_engine_ask_view(w->engine);
    double more = wall_us(w, now_us++) - plain_us;
    bool taken = weft_engine_await_view(w->engine, 0, &view) && view.number > n_last;
    *(taken ? &last[n_last++] : &parts[n_parts++]) = more;
  }
  weft_view_close(&view);
  double part_us = median_of(parts, n_parts), last_us = median_of(last, n_last);
  out->view_us = last_us + (n_last == 0 ? 0 : part_us * n_parts / n_last);
  out->view_step_us = part_us > last_us ? part_us : last_us;
  return WEFT_OK;
}

/* Prompts first, then some steps of decoding so that every structure is warm. */
static weft_status open_warm(bench_world *w, uint32_t n, bool overlap, uint64_t *now_us, weft_error *error) {
  weft_engine_stats stats = {0};
  weft_status status = open_world(w, n, overlap, error);
  if (status == WEFT_OK) status = submit_all(w, error);
  while (status == WEFT_OK && stats.n_decode_rows < (uint64_t)n * WARM_STEPS) {
    (void)weft_engine_step(w->engine, (*now_us)++);
    weft_engine_get_stats(w->engine, &stats);
  }
  return status;
}

static weft_status measure_steps(bench_world *w, uint32_t n_steps, uint64_t now_us, bench_result *out,
                                 weft_error *error) {
  double times[STEPS_MAX];
  weft_engine_stats before, after;
  weft_engine_get_stats(w->engine, &before);
  for (uint32_t i = 0; i < n_steps; i++) times[i] = step_us(w, now_us++);
  weft_engine_get_stats(w->engine, &after);
  uint64_t n_rows = after.n_decode_rows - before.n_decode_rows;
  if (n_rows != (uint64_t)w->n * n_steps) {
    return weft_fail(error, WEFT_E_INVALID, "%llu rows in %u steps of %u requests", (unsigned long long)n_rows, n_steps,
                     w->n);
  }
  qsort(times, n_steps, sizeof *times, by_value);
  out->median_us = times[n_steps / 2];
  out->best_us = times[0];
  return WEFT_OK;
}

/* Each part in a world of its own: answers have an end. */
static weft_status measure_task(const bench_task *task, uint32_t n, bench_result *out, weft_error *error) {
  weft_status status = WEFT_OK;
  for (int part = 0; part < 2 && status == WEFT_OK; part++) {
    bench_world w = {0};
    uint64_t now_us = 1;
    status = open_warm(&w, n, task->overlap, &now_us, error);
    if (status == WEFT_OK && part == 0) status = measure_steps(&w, task->n_steps, now_us, out, error);
    if (status == WEFT_OK && part == 1 && measure_views(&w, now_us, out) != WEFT_OK)
      status = weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a view of %u requests", n);
    close_world(&w);
  }
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
  (void)printf("},\"view_us\":{");
  for (uint32_t i = 0; i < task->n_sizes; i++) {
    (void)printf("%s\"%u\":%.1f", i == 0 ? "" : ",", task->size[i], results[i].view_us);
  }
  (void)printf("},\"view_step_us\":{");
  for (uint32_t i = 0; i < task->n_sizes; i++) {
    (void)printf("%s\"%u\":%.1f", i == 0 ? "" : ",", task->size[i], results[i].view_step_us);
  }
  (void)printf("}}\n");
}

static void print_table(const bench_task *task, const bench_result *results) {
  (void)printf("%8s %12s %12s %14s %12s %12s\n", "running", "step us", "best us", "ns per row", "view us", "of a step");
  for (uint32_t i = 0; i < task->n_sizes; i++) {
    (void)printf("%8u %12.1f %12.1f %14.1f %12.1f %12.1f\n", task->size[i], results[i].median_us, results[i].best_us,
                 results[i].median_us * 1e3 / task->size[i], results[i].view_us, results[i].view_step_us);
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
