/* SPDX-License-Identifier: MIT */
/* The run of a simulation: engine, pager and fake runner as they are; around the runner a layer
 * that gives each step its time and ends canvases early.
 *
 * Law. A device computes one step after the other, each as long as the profile says. A step that is
 * submitted starts when the one before has ended; collecting it moves the clock to its end. A
 * canvas stops after a number of steps that depends on request and canvas alone; a step of it that
 * was submitted beyond that is void, and takes its time all the same. */
#include <math.h>
#include <string.h>

#include "api/cli/cli.h"
#include "api/cli/sim.h"
#include "base/memory.h"
#include "base/random.h"
#include "scheduler/engine.h"
#include "scheduler/fake_runner.h"

enum { N_GROUPS = 6, GLOBAL = 5, WINDOW = 1024, PAGE_KIB = 640, DEPTH = 2 };

struct sim_world;

typedef struct sim_request {
  struct sim_world *world;
  weft_request *handle;
  bool dirty, started;
} sim_request;

/* A batch submitted and not collected. */
typedef struct sim_flight {
  uint64_t ends_us;
  weft_segment *segment; /* [segments_max] */
  uint32_t *n_stop;      /* of canvas segments: steps after which the canvas stops */
} sim_flight;

typedef struct sim_world {
  weft_runner head; /* first: the engine's runner is this layer */
  weft_runner *inner;
  const weft_config *config;
  const weft_sim_load *load;
  weft_sim_run *run;
  weft_engine *engine;
  uint64_t now_us, free_us;
  uint32_t *item_of; /* [n_slots] */
  sim_flight flight[DEPTH + 1];
  uint32_t first, n_flight;
  weft_segment_result *result; /* [segments_max] */
  sim_request *request;        /* [load.n] */
  uint32_t *dirty;             /* [load.n] */
  uint32_t n_dirty, next, n_live;
  int32_t *prompt; /* [longest] */
  uint32_t n_slots;
  uint32_t n_waiting[WEFT_SIM_TENANTS]; /* submitted and never started, by tenant */
  uint32_t n_backlogged, n_present;     /* tenants with somebody waiting; tenants of the load */
} sim_world;

static void start_waiting(sim_world *w, uint32_t item) {
  w->n_backlogged += w->n_waiting[w->load->item[item].tenant]++ == 0;
}

/* It started, or ended without; only the first time counts. */
static void end_waiting(sim_world *w, uint32_t item) {
  if (w->request[item].started) return;
  w->request[item].started = true;
  w->n_backlogged -= --w->n_waiting[w->load->item[item].tenant] == 0;
}

/* ---- the layer around the runner ------------------------------------------------------------- */

static const weft_runner_info *layer_info(const weft_runner *runner) {
  const sim_world *w = (const sim_world *)runner;
  return w->inner->ops->info(w->inner);
}

static weft_status layer_slot_open(weft_runner *runner, uint32_t slot, const weft_slot_params *p) {
  sim_world *w = (sim_world *)runner;
  w->item_of[slot] = (uint32_t)(p->canvas ? p->entropy_bound.seed : p->sampling.seed);
  end_waiting(w, w->item_of[slot]);
  return w->inner->ops->slot_open(w->inner, slot, p);
}

static void layer_slot_close(weft_runner *runner, uint32_t slot) {
  sim_world *w = (sim_world *)runner;
  w->inner->ops->slot_close(w->inner, slot);
}

static uint32_t steps_of_canvas(const sim_world *w, uint32_t item, uint32_t block) {
  uint32_t most = w->config->canvas_steps, least = w->config->canvas_steps_min;
  if (least == 0 || least >= most) return most;
  weft_draw_key key = {.seed = w->config->seed,
                       .choice = item,
                       .purpose = WEFT_DRAW_TEST,
                       .position = block,
                       .step = UINT32_MAX};
  return least + weft_draw_below(&key, most - least + 1);
}

/* Keys that a segment's rows see together, summed over layer groups. */
static uint64_t keys_of(const weft_runner_info *info, const weft_segment *segment) {
  uint64_t n_keys = 0;
  for (uint32_t g = 0; g < info->n_groups; g++) {
    uint32_t window = info->group[g].window, before = segment->kv_len;
    if (window > 0 && before > window - 1) before = window - 1;
    n_keys += before + segment->n_rows;
  }
  return n_keys;
}

static weft_status layer_submit(weft_runner *runner, const weft_batch *batch) {
  sim_world *w = (sim_world *)runner;
  sim_flight *f = &w->flight[(w->first + w->n_flight) % (DEPTH + 1)];
  weft_status status = w->inner->ops->submit(w->inner, batch);
  if (status != WEFT_OK) return status;
  uint64_t n_keys = 0;
  bool backlog = w->n_backlogged == w->n_present;
  memcpy(f->segment, batch->segment, batch->n_segments * sizeof *f->segment);
  for (uint32_t s = 0; s < batch->n_segments; s++) {
    const weft_segment *segment = &batch->segment[s];
    uint32_t item = w->item_of[segment->slot];
    n_keys += keys_of(layer_info(runner), segment);
    w->run->rows[w->load->item[item].tenant] += segment->n_rows;
    if (backlog) w->run->rows_backlog[w->load->item[item].tenant] += segment->n_rows;
    f->n_stop[s] = segment->canvas ? steps_of_canvas(w, item, segment->block) : 0;
  }
  double us = (double)w->config->step_us + (double)w->config->row_us * batch->n_rows +
              (double)w->config->key_us * (double)n_keys / 1000.0;
  uint64_t takes_us = us < 1.0 ? 1 : (uint64_t)us;
  uint64_t starts_us = w->free_us > w->now_us ? w->free_us : w->now_us;
  f->ends_us = w->free_us = starts_us + takes_us;
  w->run->busy_us += takes_us;
  if (backlog) w->run->backlog_us += takes_us;
  w->n_flight += 1;
  return WEFT_OK;
}

static weft_status layer_collect(weft_runner *runner, weft_step_result *result) {
  sim_world *w = (sim_world *)runner;
  weft_status status = w->inner->ops->collect(w->inner, result);
  if (status != WEFT_OK) return status;
  sim_flight *f = &w->flight[w->first];
  w->first = (w->first + 1) % (DEPTH + 1);
  w->n_flight -= 1;
  if (f->ends_us > w->now_us) w->now_us = f->ends_us;
  memcpy(w->result, result->result, result->n_results * sizeof *w->result);
  for (uint32_t i = 0; i < result->n_results; i++) {
    weft_segment_result *r = &w->result[i];
    const weft_segment *segment = &f->segment[r->segment];
    if (!segment->canvas) continue;
    uint32_t n_stop = f->n_stop[r->segment];
    r->is_void = segment->step >= n_stop;
    if (segment->step + 1 != n_stop) continue;
    r->done = true;
    r->stopped = n_stop < w->config->canvas_steps;
  }
  result->result = w->result;
  return WEFT_OK;
}

static void layer_close(weft_runner *runner) {
  (void)runner; /* the world closes what is inside */
}

static const weft_runner_ops layer_ops = {.info = layer_info,
                                          .slot_open = layer_slot_open,
                                          .slot_close = layer_slot_close,
                                          .submit = layer_submit,
                                          .collect = layer_collect,
                                          .close = layer_close};

/* ---- open, close ----------------------------------------------------------------------------- */

static bool take_memory(sim_world *w, uint32_t rows) {
  const weft_sim_load *load = w->load;
  uint32_t segments_max = 2 * w->n_slots < rows ? 2 * w->n_slots : rows;
  w->item_of = weft_alloc(w->n_slots, sizeof *w->item_of);
  w->result = weft_alloc(segments_max, sizeof *w->result);
  w->request = weft_alloc(load->n, sizeof *w->request);
  w->dirty = weft_alloc(load->n, sizeof *w->dirty);
  w->prompt = weft_alloc(load->longest, sizeof *w->prompt);
  w->run->outcome = weft_alloc(load->n, sizeof *w->run->outcome);
  bool ok = w->item_of != NULL && w->result != NULL && w->request != NULL && w->dirty != NULL &&
            w->prompt != NULL && w->run->outcome != NULL;
  for (uint32_t i = 0; ok && i <= DEPTH; i++) {
    w->flight[i].segment = weft_alloc(segments_max, sizeof *w->flight[i].segment);
    w->flight[i].n_stop = weft_alloc(segments_max, sizeof *w->flight[i].n_stop);
    ok = w->flight[i].segment != NULL && w->flight[i].n_stop != NULL;
  }
  return ok;
}

static uint32_t or_else(uint32_t value, uint32_t other) {
  return value != 0 ? value : other;
}

static weft_status open_world(sim_world *w, weft_error *error) {
  const weft_config *c = w->config;
  uint32_t rows = or_else(c->rows, 512), context = or_else(c->context, w->load->longest + 1);
  w->n_slots = or_else(c->running, 64);
  w->run->n_pages = (uint32_t)((uint64_t)or_else(c->kv_mib, 16384) * 1024 / PAGE_KIB);
  weft_fake_config fake = {.name = "sim",
                           .autoregressive = true,
                           .n_slots = w->n_slots,
                           .rows_max = rows,
                           .depth = DEPTH,
                           .context_length = context,
                           .model = {.salt = 1, .n_vocab = WEFT_SIM_VOCAB, .n_groups = N_GROUPS}};
  if (w->load->diffusion) fake.model.n_canvas = WEFT_SIM_CANVAS;
  for (uint32_t g = 0; g < N_GROUPS; g++) {
    fake.model.group[g] = (weft_runner_group){
        .block_tokens = g == GLOBAL ? 32 : 16, .window = g == GLOBAL ? 0 : WINDOW, .n_layers = 5};
  }
  if (!take_memory(w, rows) || weft_fake_runner_open(&fake, &w->inner) != WEFT_OK) {
    return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for %u requests", w->load->n);
  }
  w->head.ops = &layer_ops;
  weft_runner *runner = &w->head;
  weft_engine_config config = {.n_runners = 1,
                               .runner = &runner,
                               .n_pages = w->run->n_pages,
                               .rows_per_step = rows,
                               .running_max = w->n_slots,
                               .waiting_max = or_else(c->queue, 256),
                               .n_tenants = w->load->n_tenants,
                               .seq_tokens_max = context,
                               .overlap = !c->no_overlap,
                               .no_prefix_cache = c->no_prefix_cache};
  return weft_engine_open(&config, &w->engine, error);
}

static void close_world(sim_world *w) {
  for (uint32_t i = 0; w->request != NULL && i < w->load->n; i++) {
    weft_engine_release(w->engine, w->request[i].handle);
  }
  weft_engine_close(w->engine);
  if (w->inner != NULL) w->inner->ops->close(w->inner);
  for (uint32_t i = 0; i <= DEPTH; i++) {
    weft_free(w->flight[i].segment);
    weft_free(w->flight[i].n_stop);
  }
  weft_free(w->item_of);
  weft_free(w->result);
  weft_free(w->request);
  weft_free(w->dirty);
  weft_free(w->prompt);
}

void weft_sim_run_close(weft_sim_run *run) {
  weft_free(run->outcome);
  run->outcome = NULL;
}

/* ---- requests -------------------------------------------------------------------------------- */

static void on_notify(void *self) {
  sim_request *request = self;
  sim_world *w = request->world;
  if (request->dirty) return;
  request->dirty = true;
  w->dirty[w->n_dirty++] = (uint32_t)(request - w->request);
}

static weft_status submit_next(sim_world *w, weft_error *error) {
  uint32_t at = w->next++;
  const weft_sim_item *item = &w->load->item[at];
  sim_request *request = &w->request[at];
  request->world = w;
  weft_sim_load_prompt(w->load, item, w->prompt);
  weft_request_params params = {.tenant = item->tenant,
                                .domain = {.low = w->config->shared_cache ? 0 : item->tenant + 1},
                                .canvas = item->diffusion,
                                .tokens = w->prompt,
                                .n_tokens = item->n_prompt,
                                .max_tokens = item->n_answer,
                                .sampling = weft_sampling_default(),
                                .entropy_bound = weft_entropy_bound_default(),
                                .notify = on_notify,
                                .notify_self = request};
  params.sampling.seed = params.entropy_bound.seed = at;
  params.entropy_bound.max_steps = w->config->canvas_steps;
  weft_status status = weft_engine_submit(w->engine, &params, item->at_us, &request->handle, error);
  if (status == WEFT_OK) {
    w->n_live += 1;
    start_waiting(w, at);
  }
  if (status != WEFT_FULL && status != WEFT_E_TOO_LARGE) return status;
  w->run->outcome[at].refused = true;
  return WEFT_OK;
}

/* What happened to one request until now. */
static void read_events(sim_world *w, uint32_t at) {
  sim_request *request = &w->request[at];
  weft_sim_outcome *outcome = &w->run->outcome[at];
  weft_event event;
  request->dirty = false;
  while (request->handle != NULL &&
         weft_engine_poll(w->engine, request->handle, &event) == WEFT_OK) {
    if (event.kind == WEFT_EVENT_TOKENS) {
      if (outcome->first_us == 0) outcome->first_us = w->now_us;
      outcome->n_answer += event.n;
    }
    if (event.kind != WEFT_EVENT_FINISHED) continue;
    outcome->started_us = event.usage.started_us;
    outcome->finished_us = w->now_us;
    outcome->n_canvases = event.usage.n_canvases;
    outcome->failed = event.finish != WEFT_FINISH_LENGTH && event.finish != WEFT_FINISH_STOP;
    end_waiting(w, at);
    weft_engine_release(w->engine, request->handle);
    request->handle = NULL;
    w->n_live -= 1;
  }
}

static void watch_pool(sim_world *w, uint64_t since_us) {
  uint32_t n_pinned = weft_pager_get_stats(weft_engine_pager(w->engine)).n_pinned;
  w->run->pool_page_us += (double)n_pinned * (double)(w->now_us - since_us);
  if (n_pinned > w->run->n_pages_peak) w->run->n_pages_peak = n_pinned;
}

/* ---- the run --------------------------------------------------------------------------------- */

static weft_status submit_arrived(sim_world *w, weft_error *error) {
  weft_status status = WEFT_OK;
  while (status == WEFT_OK && w->next < w->load->n && w->load->item[w->next].at_us <= w->now_us) {
    status = submit_next(w, error);
  }
  return status;
}

static weft_status turn(sim_world *w, weft_error *error) {
  weft_status status = submit_arrived(w, error);
  if (status != WEFT_OK) return status;
  uint64_t since_us = w->now_us;
  status = weft_engine_step(w->engine, w->now_us);
  if (status == WEFT_OK) {
    for (uint32_t i = 0; i < w->n_dirty; i++) read_events(w, w->dirty[i]);
    w->n_dirty = 0;
    watch_pool(w, since_us);
    return WEFT_OK;
  }
  if (status != WEFT_AGAIN) return weft_fail(error, status, "the engine refused a step");
  if (w->next < w->load->n) {
    w->now_us = w->load->item[w->next].at_us;
  } else if (w->n_live > 0) {
    return weft_fail(error, WEFT_E_INVALID, "%u requests are stuck; a bug", w->n_live);
  }
  return WEFT_OK;
}

static void take_stats(const sim_world *w) {
  weft_engine_stats stats;
  weft_sim_run *run = w->run;
  weft_engine_get_stats(w->engine, &stats);
  run->end_us = w->now_us;
  run->n_steps = stats.n_steps;
  run->n_mixed_steps = stats.n_mixed_steps;
  run->n_rows = stats.n_rows;
  run->n_void_rows = stats.n_void_rows;
  run->n_preemptions = stats.n_preemptions;
  run->n_prompt_tokens = stats.n_prompt_tokens;
  run->n_cached_tokens = stats.n_cached_tokens;
  run->n_answer_tokens = stats.n_answer_tokens;
  run->n_prefill_rows = stats.n_prefill_rows;
  run->n_denoise_steps = stats.n_denoise_steps;
}

int weft_sim_run_load(const weft_config *config, const weft_sim_load *load, weft_sim_run *out) {
  sim_world w = {.config = config, .load = load, .run = out};
  weft_error error = {{0}};
  bool present[WEFT_SIM_TENANTS] = {false};
  for (uint32_t i = 0; i < load->n; i++) {
    w.n_present += !present[load->item[i].tenant];
    present[load->item[i].tenant] = true;
  }
  weft_status status = open_world(&w, &error);
  while (status == WEFT_OK && (w.next < load->n || w.n_live > 0)) status = turn(&w, &error);
  if (status == WEFT_OK) take_stats(&w);
  const char *violation = w.inner == NULL ? NULL : weft_fake_runner_violation(w.inner);
  if (violation != NULL) status = weft_fail(&error, WEFT_E_INVALID, "%s; a bug", violation);
  close_world(&w);
  return status == WEFT_OK ? 0 : weft_cli_fail(weft_cli_code(status), "sim: %s", error.text);
}
