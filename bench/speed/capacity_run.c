/* SPDX-License-Identifier: MIT */
/* weft bench capacity: what fits a pool. First the 26B geometry through the pager alone
 * (capacity.c), then, with a model, real requests on it.
 *
 * Law of the real run: an engine of its own, stepped by hand, computes every token; the pool is small
 * and the prefix cache on. A sequence counts as held while its answer grows; the count is taken when
 * it was highest, and the run ends with the first preemption of one, or when no prompt was worked on for a
 * while. Other schemes are counted for the same sequences at the same lengths, in fractions of a
 * sequence; sharing is measured against a second run without it. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "bench/lab/lab.h"
#include "bench/speed/bench.h"
#include "bench/speed/capacity.h"

enum {
  N_REQUESTS = 1024,
  RUNNING = 1024,
  POOL_MIB = 48,
  CONTEXT = 2048,
  ROWS = 512,
  MEAN = CONTEXT / 8,
  N_TENANTS = 32,
  SHARED = 1024,
  OWN = 64,
  PATIENCE = 64 /* steps without a row of a prompt after which the pool counts as full */
};

typedef uint32_t (*make_prompt)(const weft_served_model *model, uint32_t index, int32_t *tokens);

typedef struct capacity_run {
  const weft_runtime *runtime;
  const weft_served_model *model;
  weft_engine *engine;
  weft_request *request[N_REQUESTS];
  uint32_t n_prompt[N_REQUESTS], n_answer[N_REQUESTS], n_requests;
  uint32_t n_held, n_pinned;
  double contiguous, ring, kept; /* pages the same sequences need under other schemes */
} capacity_run;

typedef struct capacity_figures {
  uint32_t n_held, n_alone, n_shared;
  double contiguous, ring, sliding, kv_sharing;
} capacity_figures;

static double draw_request(uint32_t index) {
  weft_draw_key key = {.seed = 27, .purpose = WEFT_DRAW_TEST, .position = index};
  return ((double)(weft_draw_bits(&key) >> 11) + 0.5) * 0x1p-53; /* in (0, 1) */
}

static uint32_t window_of(const weft_served_model *model) {
  uint32_t window = 0;
  for (uint32_t g = 0; g < model->layout.n_groups; g++)
    if (model->layout.group[g].window > window) window = model->layout.group[g].window;
  return window;
}

static int32_t any_token(const weft_served_model *model, uint64_t who, uint32_t position) {
  uint32_t half = weft_model_get_info(model->model)->n_vocab / 2; /* above the control tokens */
  return (int32_t)(half + weft_mix64(who << 32 | position) % half);
}

/* A window and an exponential tail, mean an eighth of the context, all tokens its own. */
static uint32_t mixed_prompt(const weft_served_model *model, uint32_t index, int32_t *tokens) {
  uint32_t window = window_of(model);
  double length = window - (MEAN - (double)window) * log(draw_request(index));
  uint32_t n = length > CONTEXT / 2 ? CONTEXT / 2 : (uint32_t)length;
  for (uint32_t i = 0; i < n; i++) tokens[i] = any_token(model, index + 1, i);
  return n;
}

static uint32_t shared_prompt(const weft_served_model *model, uint32_t index, int32_t *tokens) {
  for (uint32_t i = 0; i < SHARED + OWN; i++) tokens[i] = any_token(model, i < SHARED ? 0 : index + 1, i);
  return SHARED + OWN;
}

static weft_status submit_all(capacity_run *run, make_prompt make, bool no_cache, weft_error *error) {
  int32_t tokens[CONTEXT];
  for (uint32_t i = 0; i < run->n_requests; i++) {
    run->n_prompt[i] = make(run->model, i, tokens);
    weft_request_params params = {.tenant = i % N_TENANTS,
                                  .domain = {1, 1}, /* the cache is shared by all */
                                  .tokens = tokens,
                                  .n_tokens = run->n_prompt[i],
                                  .max_tokens = CONTEXT - run->n_prompt[i],
                                  .asked.sampling = weft_sampling_neutral(),
                                  .asked.no_cache = no_cache};
    weft_status status = weft_engine_submit(run->engine, &params, 1, &run->request[i], error);
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}

/* Pages, in fractions, of one sequence of n tokens under the other schemes. */
static void add_schemes(capacity_run *run, uint32_t n) {
  const weft_kv_layout *layout = &run->model->layout;
  for (uint32_t g = 0; g < layout->n_groups; g++) {
    double block = layout->group[g].block_tokens;
    uint32_t window = layout->group[g].window;
    run->contiguous += CONTEXT / block;
    run->ring += (window == 0 ? CONTEXT : window - 1) / block;
    run->kept += ceil(n / block);
  }
}

/* Reads all answers; remembers the moment when most were growing. */
static void look_at_answers(capacity_run *run) {
  uint32_t n_held = 0;
  for (uint32_t i = 0; i < run->n_requests; i++) {
    weft_event event;
    while (weft_engine_poll(run->engine, run->request[i], &event) == WEFT_OK)
      if (event.kind == WEFT_EVENT_TOKENS) run->n_answer[i] = event.first + event.n;
    n_held += run->n_answer[i] > 0;
  }
  if (n_held <= run->n_held) return;
  run->n_held = n_held;
  run->contiguous = run->ring = run->kept = 0.0;
  for (uint32_t i = 0; i < run->n_requests; i++)
    if (run->n_answer[i] > 0) add_schemes(run, run->n_prompt[i] + run->n_answer[i] - 1);
  weft_engine_stats stats;
  weft_engine_get_stats(run->engine, &stats);
  run->n_pinned = stats.pager.n_pinned;
}

static weft_status fill_engine(capacity_run *run, make_prompt make, bool no_cache, weft_error *error) {
  weft_engine_config config = {.n_models = 1,
                               .runner = &run->model->runner,
                               .n_pages = run->runtime->n_pages,
                               .rows_per_step = ROWS,
                               .running_max = RUNNING,
                               .waiting_max = N_REQUESTS,
                               .n_tenants = N_TENANTS,
                               .seq_tokens_max = CONTEXT};
  weft_status status = weft_engine_open(&config, &run->engine, error);
  if (status == WEFT_OK) status = submit_all(run, make, no_cache, error);
  weft_engine_stats stats = {0};
  uint64_t now_us = 1, n_early = 0; /* early: preempted while no answer grew yet */
  for (uint32_t idle = 0; status == WEFT_OK && idle < PATIENCE; idle++) {
    uint64_t n_before = stats.n_prefill_rows;
    (void)weft_engine_step(run->engine, now_us++);
    weft_engine_get_stats(run->engine, &stats);
    if (stats.n_preemptions > n_early && run->n_held > 0) break;
    n_early = stats.n_preemptions;
    look_at_answers(run);
    if (stats.n_prefill_rows > n_before) idle = 0;
    if (run->n_held == run->n_requests) break;
  }
  if (status == WEFT_OK && stats.broken_runners != 0) status = weft_fail(error, WEFT_E_DEVICE, "the runner broke");
  for (uint32_t i = 0; i < run->n_requests && run->request[i] != NULL; i++)
    weft_engine_release(run->engine, run->request[i]);
  while (run->engine != NULL && weft_engine_step(run->engine, now_us++) == WEFT_OK) {
  }
  weft_engine_close(run->engine);
  return status;
}

/* Runs in memory of its own: the arrays are large. */
static weft_status run_one(const weft_runtime *rt, uint32_t n_requests, make_prompt make, bool no_cache,
                           capacity_run **out, weft_error *error) {
  *out = weft_alloc(1, sizeof **out);
  if (*out == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a run");
  **out = (capacity_run){.runtime = rt, .model = &rt->model[0], .n_requests = n_requests};
  weft_status status = fill_engine(*out, make, no_cache, error);
  if (status == WEFT_OK && (*out)->n_held == 0)
    status = weft_fail(error, WEFT_E_TOO_LARGE, "no sequence fits the pool");
  return status;
}

static weft_status measure_capacity(const weft_runtime *rt, capacity_figures *out, weft_error *error) {
  capacity_run *mixed = NULL, *full[2] = {NULL}, *few[2] = {NULL};
  weft_status status = run_one(rt, N_REQUESTS, mixed_prompt, false, &mixed, error);
  for (uint32_t alone = 0; alone < 2; alone++) {
    if (status == WEFT_OK) status = run_one(rt, N_REQUESTS, shared_prompt, alone == 1, &full[alone], error);
    if (status == WEFT_OK) status = run_one(rt, N_TENANTS, shared_prompt, alone == 1, &few[alone], error);
  }
  if (status == WEFT_OK) {
    *out = (capacity_figures){
        .n_held = mixed->n_held,
        .contiguous = mixed->contiguous / rt->n_pages,
        .ring = mixed->ring / rt->n_pages,
        .sliding = mixed->kept / rt->n_pages,
        .n_shared = full[0]->n_held,
        .n_alone = full[1]->n_held,
        .kv_sharing = ((double)few[1]->n_pinned / few[1]->n_held) / ((double)few[0]->n_pinned / few[0]->n_held)};
  }
  weft_free(mixed);
  for (uint32_t alone = 0; alone < 2; alone++) weft_free(full[alone]), weft_free(few[alone]);
  return status;
}

static void print_run(const weft_runtime *rt, const capacity_figures *f) {
  (void)printf("real requests: %s, %u pages of %.1f KiB, context %d\n", rt->model[0].name, rt->n_pages,
               (double)rt->page_bytes / 1024.0, CONTEXT);
  (void)printf("  own prompts, window + exponential      %8u held at once\n", f->n_held);
  (void)printf("    against contiguous reservation       %8.2f x\n", f->contiguous);
  (void)printf("    against that with a ring             %8.2f x\n", f->ring);
  (void)printf("    against paging that keeps windows    %8.2f x\n", f->sliding);
  (void)printf("  %d tokens shared and %d own         %8u held at once, %u without sharing\n", SHARED, OWN, f->n_shared,
               f->n_alone);
  (void)printf("    KV of %d such sequences              %8.2f x less\n", N_TENANTS, f->kv_sharing);
}

static json_t *geometry_json(const weft_capacity *c) {
  return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "capacity_ratio_contiguous", c->ratio_contiguous,
                   "capacity_ratio_ring", c->ratio_ring, "capacity_ratio_sliding", c->ratio_sliding, "waste_percent",
                   c->waste_percent, "sharing_ratio", c->ratio_sharing, "sharing_ratio_windows_kept",
                   c->ratio_sharing_kept);
}

static json_t *run_json(const weft_runtime *rt, const capacity_figures *f) {
  return json_pack("{s:s, s:i, s:I, s:i, s:i, s:f, s:f, s:f, s:i, s:i, s:f}", "model", rt->model[0].name, "n_pages",
                   (int)rt->n_pages, "page_bytes", (json_int_t)rt->page_bytes, "context", CONTEXT, "sequences_held",
                   (int)f->n_held, "capacity_ratio_contiguous", f->contiguous, "capacity_ratio_ring", f->ring,
                   "capacity_ratio_sliding", f->sliding, "sequences_held_sharing", (int)f->n_shared,
                   "sequences_held_alone", (int)f->n_alone, "sharing_ratio", f->kv_sharing);
}

/* The model's part; *out is NULL without a model. */
static int run_model(const weft_lab_config *config, json_t **out) {
  weft_lab_config own = *config;
  if (config->product.models.n == 0) return 0;
  if (own.product.kv_mib == 0) own.product.kv_mib = POOL_MIB;
  own.product.context = CONTEXT;
  own.product.running = RUNNING;
  own.product.rows = ROWS;
  weft_runtime *rt;
  int code = weft_cli_open(&own.product, &rt);
  if (code != 0) return code;
  capacity_figures figures = {0};
  weft_error error = {{0}};
  if (measure_capacity(rt, &figures, &error) != WEFT_OK)
    code = weft_cli_fail(WEFT_EXIT_RUNTIME, "bench capacity: %s", error.text);
  else if (config->product.json)
    *out = run_json(rt, &figures);
  else
    print_run(rt, &figures);
  weft_close(rt);
  return code;
}

int weft_bench_capacity(const weft_lab_config *config) {
  weft_capacity capacity;
  weft_error error = {{0}};
  json_t *run = NULL;
  if (weft_capacity_measure(&capacity, &error) != WEFT_OK)
    return weft_cli_fail(WEFT_EXIT_RUNTIME, "bench capacity: %s", error.text);
  if (!config->product.json) weft_capacity_print(&capacity);
  int code = run_model(config, &run);
  if (code != 0 || !config->product.json) return code;
  json_t *all = json_pack("{s:o}", "geometry_26b", geometry_json(&capacity));
  if (run != NULL) (void)json_object_set_new(all, "real_requests", run);
  char *text = json_dumps(all, JSON_INDENT(1) | JSON_REAL_PRECISION(5));
  (void)printf("%s\n", text == NULL ? "{}" : text);
  free(text);
  json_decref(all);
  return 0;
}
