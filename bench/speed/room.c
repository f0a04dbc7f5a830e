/* SPDX-License-Identifier: MIT */
/* weft bench room: how many sequences, and how many canvases, run at once to their end in the pool, beside what the
 * plan says of them.
 *
 * Law: n requests are submitted at once; they hold when in some step all of them ran, and none was preempted before all
 * had ended. Each fills the context: prompt and answer, or prompt and one canvas. Counts grow from what was
 * predicted by a
 * 32nd until a run does not hold; if the first does not, they shrink until one does.
 *
 * One sequence alone is looked at after every step, too: the pages that it holds beside those that the layout says,
 * which where steps are in flight counts those of the next row besides. */
#include <jansson.h>

#include "bench/lab/lab.h"
#include "bench/speed/bench.h"
#include "bench/speed/measure.h"

typedef struct room_run {
  weft_runtime *rt;
  weft_step_record *record; /* [WEFT_RECORDED_STEPS] */
  bool diffusion;
  uint32_t context, canvas;
} room_run;

/* Long enough that the first request still runs when the last one has begun. */
static weft_load load_of(const room_run *run, uint32_t n) {
  uint32_t rows = run->rt->rows_beside, n_steps = 4 + (uint32_t)(2ull * n * run->context / rows);
  weft_load load = {.n_generate = n_steps, .n_parallel = n, .diffusion = run->diffusion};
  if (!run->diffusion && load.n_generate > run->context / 2) load.n_generate = run->context / 2;
  load.n_prompt = run->context - (run->diffusion ? run->canvas : load.n_generate);
  return load;
}

static int try_count(const room_run *run, uint32_t n, bool *holds) {
  weft_engine_stats before, after;
  weft_measured unused;
  weft_load load = load_of(run, n);
  weft_engine_get_stats(weft_replicas_at(run->rt->replicas, 0), &before);
  int code = weft_measure(run->rt, &load, 7000u + n, &unused);
  if (code != 0) return code;
  weft_engine_get_stats(weft_replicas_at(run->rt->replicas, 0), &after);
  uint32_t n_records = weft_engine_get_steps(weft_replicas_at(run->rt->replicas, 0), run->record, WEFT_RECORDED_STEPS),
           most = 0;
  for (uint32_t i = 0; i < n_records; i++) {
    if (run->record[i].number > before.n_steps && run->record[i].n_running > most) most = run->record[i].n_running;
  }
  *holds = after.n_preemptions == before.n_preemptions && most == n;
  return 0;
}

static int find_most(const room_run *run, uint32_t predicted, uint32_t *most) {
  uint32_t n = predicted > 0 ? predicted : 1, step = n / 32 + 1, running = run->rt->options.running;
  bool holds = false;
  *most = 0;
  int code = try_count(run, n, &holds);
  bool grows = holds;
  while (code == 0 && holds == grows) {
    if (holds) *most = n;
    if ((grows && n >= running) || (!grows && n <= 1)) return 0;
    n = grows ? (n + step < running ? n + step : running) : (n > step ? n - step : 1);
    code = try_count(run, n, &holds);
  }
  if (holds) *most = n;
  return code;
}

static int measure_room(const weft_lab_config *config, room_run *run, json_t *out) {
  weft_runtime *rt = run->rt;
  uint32_t n_prompt = run->diffusion ? run->context - run->canvas : run->context, most;
  uint32_t predicted = weft_engine_room(weft_replicas_at(rt->replicas, 0), 0, n_prompt);
  int code = find_most(run, predicted, &most);
  if (code != 0) return code;
  const char *work = run->diffusion ? "canvases at once" : "sequences at once";
  double pool = (double)rt->n_pages * (double)rt->page_bytes / (1024.0 * 1024.0);
  if (!config->product.json) {
    (void)printf("%-18s %6u run to the end, %u predicted; context %u, pool %.0f MiB, at most %u\n", work, most,
                 predicted, run->context, pool, rt->options.running);
  }
  (void)json_array_append_new(
      out,
      json_pack("{s:s, s:i, s:i, s:i, s:f, s:i, s:i, s:s, s:i}", "work", work, "measured", (int)most, "predicted",
                (int)predicted, "context", (int)run->context, "pool_mib", pool, "running_max", (int)rt->options.running,
                "rows", (int)rt->options.rows, "device", weft_device_get_info(rt->devices.device[0])->name,
                "product_bits", (int)weft_device_get_info(rt->devices.device[0])->products));
  return 0;
}

/* What one sequence holds after each step: predicted, and seen. */
typedef struct held_pages {
  uint32_t n_steps, n_same;
  uint64_t least, most, seen_least, seen_most; /* in the steps of its answer */
} held_pages;

static void look_at_step(const weft_runtime *rt, uint32_t n_tokens, uint32_t n_pinned, held_pages *held) {
  uint64_t n = weft_kv_pages_held(&rt->model[0].layout, n_tokens, weft_measure_overlaps(rt) ? 1 : 0);
  if (held->n_steps == 0 || n < held->least) held->least = n;
  if (held->n_steps == 0 || n_pinned < held->seen_least) held->seen_least = n_pinned;
  if (n > held->most) held->most = n;
  if (n_pinned > held->seen_most) held->seen_most = n_pinned;
  held->n_steps += 1;
  held->n_same += n == n_pinned;
}

static int measure_sequence(const weft_lab_config *config, room_run *run, json_t *out) {
  const weft_kv_layout *layout = &run->rt->model[0].layout;
  weft_engine *engine = weft_replicas_at(run->rt->replicas, 0);
  weft_load load = {.n_generate = run->context / 2 < 200 ? run->context / 2 : 200, .n_parallel = 1};
  load.n_prompt = run->context - load.n_generate;
  weft_engine_stats before;
  weft_measured unused;
  held_pages held = {0};
  weft_engine_get_stats(engine, &before);
  int code = weft_measure(run->rt, &load, 6999, &unused);
  if (code != 0) return code;
  uint32_t n = weft_engine_get_steps(engine, run->record, WEFT_RECORDED_STEPS), n_tokens = 0;
  for (uint32_t i = 0; i < n; i++) {
    const weft_step_record *step = &run->record[i];
    bool of_others = n_tokens == 0 && step->n_prefill_rows == 0; /* the last step before may be counted late */
    if (step->number <= before.n_steps || of_others) continue;
    n_tokens += step->n_prefill_rows + step->n_decode_rows;
    if (step->n_running == 1 && step->n_decode_rows == 1) look_at_step(run->rt, n_tokens, step->n_pages_pinned, &held);
  }
  double mib = (double)layout->page_bytes / (1024.0 * 1024.0);
  if (!config->product.json) {
    (void)printf("%-18s %6.2f to %.2f MiB up to %u tokens, %.2f to %.2f predicted; as predicted after %u of %u steps\n",
                 "one sequence", (double)held.seen_least * mib, (double)held.seen_most * mib, run->context,
                 (double)held.least * mib, (double)held.most * mib, held.n_same, held.n_steps);
  }
  (void)json_array_append_new(
      out, json_pack("{s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:f}", "work", "one sequence", "tokens", (int)run->context,
                     "steps", (int)held.n_steps, "steps_as_predicted", (int)held.n_same, "least_mib",
                     (double)held.seen_least * mib, "most_mib", (double)held.seen_most * mib, "predicted_least_mib",
                     (double)held.least * mib, "predicted_most_mib", (double)held.most * mib));
  return 0;
}

int weft_bench_room(const weft_lab_config *config) {
  room_run run = {0};
  int code = weft_cli_open(&config->product, &run.rt);
  if (code != 0) return code;
  json_t *out = json_array();
  run.context = run.rt->model[0].context;
  run.canvas = weft_model_at(run.rt, 0).canvas;
  run.record = weft_alloc(WEFT_RECORDED_STEPS, sizeof *run.record);
  if (run.record == NULL) code = weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory");
  if (!config->product.json) (void)printf("%s", weft_plan(run.rt));
  if (code == 0) code = measure_room(config, &run, out);
  if (code == 0) code = measure_sequence(config, &run, out);
  run.diffusion = true;
  if (code == 0 && run.canvas > 0 && run.canvas < run.context) code = measure_room(config, &run, out);
  if (code == 0 && config->product.json) weft_bench_print(out);
  json_decref(out);
  weft_free(run.record);
  weft_close(run.rt);
  return code;
}
