/* SPDX-License-Identifier: MIT */
#include "bench/sim/replica.h"

#include <string.h>

#include "bench/doubles/fake_runner.h"
#include "bench/lab/lab.h"

enum { DEPTH = 2, STUCK_TURNS = 100000, IDLE_US = 1000 };

/* A batch submitted and not collected. */
typedef struct sim_flight {
  uint64_t ends_us, takes_us;
  weft_segment *segment; /* [segments_max] */
  uint32_t *n_stop;      /* of canvas segments: steps after which the canvas stops */
} sim_flight;

typedef struct sim_lane {
  weft_runner head; /* first: the engine's runner is this layer */
  weft_runner *inner;
  weft_sim_replica *replica;
  const weft_sim_model *model;
  weft_runner_info info;
  uint32_t *item_of; /* [n_slots] */
  sim_flight flight[DEPTH + 1];
  uint32_t first, n_flight;
  weft_segment_result *result; /* [segments_max] */
} sim_lane;

struct weft_sim_replica {
  weft_sim_world *world;
  weft_sim_counts *counts;
  weft_engine *engine;
  weft_sim_told *told;
  uint64_t now_us, free_us; /* the clock; when the device is free */
  uint32_t index, n_slots, n_live, last_ended, n_stuck;
  bool idle;
  uint64_t watched_us; /* the series has everything before */
  double seen[WEFT_SIM_TRACKS];
  sim_lane lane[WEFT_SIM_MODELS];
  uint32_t n_waiting[WEFT_SIM_TENANTS]; /* submitted and never started, by tenant */
  uint32_t n_backlogged;                /* tenants with a request waiting */
};

static uint32_t tenant_of(const weft_sim_replica *r, uint32_t at) {
  return r->world->load->item[at].tenant;
}

static void start_waiting(weft_sim_replica *r, uint32_t at) {
  r->n_backlogged += r->n_waiting[tenant_of(r, at)]++ == 0;
}

/* It started, or ended without; only the first time counts. */
static void end_waiting(weft_sim_replica *r, uint32_t at) {
  if (r->world->request[at].started) return;
  r->world->request[at].started = true;
  r->n_backlogged -= --r->n_waiting[tenant_of(r, at)] == 0;
}

/* ---- the layer around a runner --------------------------------------------------------------- */

static const weft_runner_info *layer_info(const weft_runner *runner) {
  return &((const sim_lane *)runner)->info;
}

static weft_status layer_slot_open(weft_runner *runner, uint32_t slot, const weft_slot_params *p) {
  sim_lane *lane = (sim_lane *)runner;
  uint32_t at = (uint32_t)p->sampling->seed;
  lane->item_of[slot] = at;
  end_waiting(lane->replica, at);
  return lane->inner->ops->slot_open(lane->inner, slot, p);
}

static void layer_slot_close(weft_runner *runner, uint32_t slot) {
  sim_lane *lane = (sim_lane *)runner;
  lane->inner->ops->slot_close(lane->inner, slot);
}

static uint32_t steps_of_canvas(const weft_lab_config *c, uint32_t item, uint32_t block) {
  if (c->canvas_steps_min == 0 || c->canvas_steps_min >= c->canvas_steps) return c->canvas_steps;
  weft_draw_key key = {.seed = c->product.sampling.seed,
                       .choice = item,
                       .purpose = WEFT_DRAW_TEST,
                       .position = block,
                       .step = UINT32_MAX};
  return c->canvas_steps_min + weft_draw_below(&key, c->canvas_steps - c->canvas_steps_min + 1);
}

static uint64_t keys_of(const weft_sim_model *model, const weft_segment *segment) {
  return weft_sim_keys(model, segment->kv_len, segment->n_rows);
}

static weft_sim_step measure_batch(const weft_sim_model *model, const weft_batch *batch) {
  weft_sim_step step = {.n_rows = batch->n_rows};
  for (uint32_t s = 0; s < batch->n_segments; s++) {
    const weft_segment *segment = &batch->segment[s];
    step.n_keys += keys_of(model, segment);
    step.n_outputs += segment->n_outputs;
  }
  return step;
}

/* A step's time goes to the tenants: what keys take by keys, the rest by rows. */
static void charge_tenants(sim_lane *lane, const weft_batch *batch, uint64_t takes_us, uint64_t n_keys) {
  weft_sim_replica *r = lane->replica;
  double key_us = lane->model->key_us / 1000.0, rest_us = (double)takes_us - key_us * (double)n_keys;
  bool backlog = r->n_backlogged == r->world->n_present;
  if (backlog) r->counts->backlog_us += takes_us;
  for (uint32_t s = 0; s < batch->n_segments; s++) {
    const weft_segment *segment = &batch->segment[s];
    uint32_t tenant = tenant_of(r, lane->item_of[segment->slot]);
    double us = rest_us * segment->n_rows / batch->n_rows + key_us * (double)keys_of(lane->model, segment);
    r->counts->rows[tenant] += segment->n_rows;
    r->counts->service_us[tenant] += us;
    if (backlog) r->counts->service_backlog[tenant] += us;
    weft_sim_series_serve(&r->world->run->series, r->free_us, tenant, us);
  }
}

static weft_status layer_submit(weft_runner *runner, const weft_batch *batch) {
  sim_lane *lane = (sim_lane *)runner;
  weft_sim_replica *r = lane->replica;
  sim_flight *f = &lane->flight[(lane->first + lane->n_flight) % (DEPTH + 1)];
  weft_status status = lane->inner->ops->submit(lane->inner, batch);
  if (status != WEFT_OK) return status;
  memcpy(f->segment, batch->segment, batch->n_segments * sizeof *f->segment);
  for (uint32_t s = 0; s < batch->n_segments; s++) {
    const weft_segment *segment = &batch->segment[s];
    f->n_stop[s] = segment->pass == WEFT_PASS_DECODER
                       ? steps_of_canvas(r->world->config, lane->item_of[segment->slot], segment->block)
                       : 0;
  }
  weft_sim_step step = measure_batch(lane->model, batch);
  double us = weft_sim_step_us(lane->model, &step) + r->world->profile->copy_us * batch->n_copies;
  uint64_t takes_us = us < 1.0 ? 1 : (uint64_t)us;
  uint64_t starts_us = r->free_us > r->now_us ? r->free_us : r->now_us;
  f->takes_us = takes_us;
  f->ends_us = r->free_us = starts_us + takes_us;
  r->counts->busy_us += takes_us;
  charge_tenants(lane, batch, takes_us, step.n_keys);
  lane->n_flight += 1;
  return WEFT_OK;
}

static weft_status layer_collect(weft_runner *runner, weft_step_result *result) {
  sim_lane *lane = (sim_lane *)runner;
  weft_sim_replica *r = lane->replica;
  weft_status status = lane->inner->ops->collect(lane->inner, result);
  if (status != WEFT_OK) return status;
  sim_flight *f = &lane->flight[lane->first];
  lane->first = (lane->first + 1) % (DEPTH + 1);
  lane->n_flight -= 1;
  if (f->ends_us > r->now_us) r->now_us = f->ends_us;
  memcpy(lane->result, result->result, result->n_results * sizeof *lane->result);
  for (uint32_t i = 0; i < result->n_results; i++) {
    weft_segment_result *one = &lane->result[i];
    const weft_segment *segment = &f->segment[one->segment];
    if (segment->pass != WEFT_PASS_DECODER) continue;
    uint32_t n_stop = f->n_stop[one->segment];
    one->is_void = segment->step >= n_stop;
    if (segment->step + 1 != n_stop) continue;
    one->done = true;
    one->stopped = n_stop < r->world->config->canvas_steps;
  }
  result->result = lane->result;
  result->device_us = f->takes_us;
  return WEFT_OK;
}

static void layer_close(weft_runner *runner) {
  (void)runner; /* the replica closes what is inside */
}

static const weft_runner_ops layer_ops = {WEFT_RUNNER_OPS(layer)};

/* ---- open, close ----------------------------------------------------------------------------- */

static uint32_t or_else(uint32_t value, uint32_t other) {
  return value != 0 ? value : other;
}

static bool open_lane(weft_sim_replica *r, uint32_t index, uint32_t rows, uint32_t context) {
  const weft_sim_model *model = &r->world->profile->model[index];
  sim_lane *lane = &r->lane[index];
  weft_fake_config fake = {
      .name = model->name,
      .n_experts = model->n_experts,
      .n_experts_used = model->n_top,
      .id = index,
      .autoregressive = model->autoregressive,
      .n_slots = r->n_slots,
      .rows_max = rows,
      .depth = DEPTH,
      .context_length = context,
      .model = {.salt = 1 + index, .n_vocab = WEFT_SIM_VOCAB, .n_canvas = model->canvas, .n_groups = model->n_groups}};
  memcpy(fake.model.group, model->group, sizeof model->group);
  lane->head.ops = &layer_ops;
  lane->replica = r;
  lane->model = model;
  uint32_t segments_max = 2 * r->n_slots < rows ? 2 * r->n_slots : rows;
  lane->item_of = weft_alloc(r->n_slots, sizeof *lane->item_of);
  lane->result = weft_alloc(segments_max, sizeof *lane->result);
  bool ok = lane->item_of != NULL && lane->result != NULL;
  for (uint32_t i = 0; ok && i <= DEPTH; i++) {
    lane->flight[i].segment = weft_alloc(segments_max, sizeof *lane->flight[i].segment);
    lane->flight[i].n_stop = weft_alloc(segments_max, sizeof *lane->flight[i].n_stop);
    ok = lane->flight[i].segment != NULL && lane->flight[i].n_stop != NULL;
  }
  if (!ok || weft_fake_runner_open(&fake, &lane->inner) != WEFT_OK) return false;
  lane->info = *lane->inner->ops->info(lane->inner);
  lane->info.page_bytes = (uint64_t)r->world->profile->page_kib * 1024;
  return true;
}

static weft_status open_parts(weft_sim_replica *r, weft_error *error) {
  const weft_sim_world *world = r->world;
  const weft_lab_config *c = world->config;
  uint32_t rows = c->product.rows, context = or_else(c->product.context, world->load->longest + 1);
  weft_runner *runner[WEFT_SIM_MODELS];
  for (uint32_t i = 0; i < world->profile->n_models; i++) {
    if (!open_lane(r, i, rows, context)) {
      return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for replica %u", r->index);
    }
    runner[i] = &r->lane[i].head;
  }
  weft_engine_config config = {
      .n_models = world->profile->n_models,
      .runner = runner,
      .n_pages = (uint32_t)r->counts->n_pages,
      .n_host_pages = (uint32_t)((uint64_t)c->product.host_mib * 1024 / world->profile->page_kib),
      .rows_per_step = rows,
      .running_max = r->n_slots,
      .waiting_max = c->product.queue,
      .n_tenants = world->load->n_tenants,
      .tenant = world->load->tenant,
      .seq_tokens_max = context,
      .slice_us = (uint64_t)c->product.slice_ms * 1000,
      .target_tpot_us = (uint64_t)c->product.tpot_ms * 1000,
      .overlap = !c->product.no_overlap,
      .no_prefix_cache = c->product.no_prefix_cache,
      .prefix_feed = world->index != NULL,
      .hash_seed = 1};
  weft_status status = weft_engine_open(&config, &r->engine, error);
  if (status != WEFT_OK || world->index == NULL) return status;
  status = weft_sim_told_open(&world->names, world->profile, r->engine, config.n_host_pages > 0, world->index, r->index,
                              r->now_us, &r->told);
  return status == WEFT_OK ? WEFT_OK : weft_fail(error, status, "no memory for replica %u", r->index);
}

static void close_parts(weft_sim_replica *r) {
  weft_sim_told_close(r->told);
  weft_engine_close(r->engine);
  r->told = NULL;
  r->engine = NULL;
  for (uint32_t m = 0; m < WEFT_SIM_MODELS; m++) {
    sim_lane *lane = &r->lane[m];
    if (lane->inner != NULL) lane->inner->ops->close(lane->inner);
    for (uint32_t i = 0; i <= DEPTH; i++) {
      weft_free(lane->flight[i].segment);
      weft_free(lane->flight[i].n_stop);
    }
    weft_free(lane->item_of);
    weft_free(lane->result);
    *lane = (sim_lane){.first = 0};
  }
}

weft_status weft_sim_replica_open(weft_sim_world *world, uint32_t index, weft_sim_replica **out, weft_error *error) {
  const weft_lab_config *c = world->config;
  weft_sim_replica *r = *out = weft_alloc(1, sizeof *r);
  if (r == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for replica %u", index);
  r->world = world;
  r->index = index;
  r->counts = &world->run->replica[index];
  r->idle = true;
  r->n_slots = c->product.running;
  r->counts->n_pages = (uint64_t)or_else(c->product.kv_mib, 16384) * 1024 / world->profile->page_kib;
  return open_parts(r, error);
}

void weft_sim_replica_release(weft_sim_replica *r, uint32_t at) {
  if (r == NULL) return;
  weft_engine_release(r->engine, r->world->request[at].handle);
  r->world->request[at].handle = NULL;
}

void weft_sim_replica_close(weft_sim_replica *r) {
  if (r == NULL) return;
  close_parts(r);
  weft_free(r);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void note_end(weft_sim_replica *r, uint32_t at, const weft_event *event) {
  weft_sim_outcome *o = &r->world->run->outcome[at];
  const weft_usage *u = &event->usage;
  uint32_t n_once = u->n_prompt - u->n_cached;
  o->started_us = u->started_us;
  o->finished_us = r->now_us;
  o->n_canvases = u->n_canvases;
  o->n_cached = u->n_cached;
  o->n_recomputed = u->n_computed_rows > n_once ? u->n_computed_rows - n_once : 0;
  o->cancelled = event->finish == WEFT_FINISH_CANCELLED;
  o->expired = event->finish == WEFT_FINISH_DEADLINE;
  o->failed = event->finish == WEFT_FINISH_ERROR;
  o->refused = event->finish == WEFT_FINISH_EVICTED;
}

/* Called by the engine where results are applied: the clock is at the end of their step. */
static void on_notify(void *self) {
  weft_sim_request *request = self;
  weft_sim_replica *r = request->replica;
  uint32_t at = (uint32_t)(request - r->world->request);
  weft_sim_outcome *o = &r->world->run->outcome[at];
  weft_event event;
  while (request->handle != NULL && !request->ended &&
         weft_engine_poll(r->engine, request->handle, &event) == WEFT_OK) {
    if (event.kind == WEFT_EVENT_TOKENS) {
      if (o->first_us == 0) o->first_us = r->now_us;
      o->n_answer += event.n;
    } else if (event.kind == WEFT_EVENT_FINISHED) {
      note_end(r, at, &event);
      request->ended = true;
      request->next_ended = r->last_ended;
      r->last_ended = at + 1;
    }
  }
}

uint32_t weft_sim_replica_settle(weft_sim_replica *r) {
  uint32_t ended = r->last_ended;
  if (ended == 0) return 0;
  weft_sim_request *request = &r->world->request[ended - 1];
  r->last_ended = request->next_ended;
  end_waiting(r, ended - 1);
  weft_engine_release(r->engine, request->handle);
  request->handle = NULL;
  r->n_live -= 1;
  return ended;
}

void weft_sim_replica_break(weft_sim_replica *r, uint32_t at, uint64_t now_us) {
  weft_sim_request *request = &r->world->request[at];
  if (request->replica != r || request->handle == NULL || request->ended) return;
  r->world->run->outcome[at].failed = true;
  r->world->run->outcome[at].finished_us = now_us;
  request->ended = true;
  request->next_ended = r->last_ended;
  r->last_ended = at + 1;
}

weft_status weft_sim_replica_submit(weft_sim_replica *r, uint32_t at, weft_error *error) {
  weft_sim_world *w = r->world;
  const weft_sim_item *item = &w->load->item[at];
  weft_sim_request *request = &w->request[at];
  request->replica = r;
  w->run->outcome[at].replica = r->index;
  weft_sim_load_prompt(w->load, item, w->prompt);
  weft_request_params params = {.model = item->model,
                                .tenant = item->tenant,
                                .domain = weft_sim_domain(w->config->product.shared_cache, item->tenant),
                                .canvas = item->diffusion,
                                .tokens = w->prompt,
                                .n_tokens = item->n_prompt,
                                .max_tokens = item->n_answer,
                                .asked.sampling = weft_sampling_neutral(),
                                .asked.entropy_bound = weft_entropy_bound_default(),
                                .asked.priority = item->priority,
                                .notify = on_notify,
                                .notify_self = request};
  params.asked.sampling.seed = at;
  params.asked.entropy_bound.max_steps = w->config->canvas_steps;
  if (item->deadline_us > 0) params.deadline_us = item->at_us + item->deadline_us;
  weft_status status = weft_engine_submit(r->engine, &params, item->at_us, &request->handle, error);
  if (status == WEFT_FULL || status == WEFT_RATE_LIMIT || status == WEFT_E_TOO_LARGE || status == WEFT_E_LIMIT) {
    w->run->outcome[at].refused = true;
    return WEFT_OK;
  }
  if (status != WEFT_OK) return status;
  r->n_live += 1;
  start_waiting(r, at);
  if (r->idle && r->now_us < item->at_us) r->now_us = item->at_us;
  r->idle = false;
  return WEFT_OK;
}

void weft_sim_replica_cancel(weft_sim_replica *r, uint32_t at) {
  weft_sim_request *request = &r->world->request[at];
  if (request->handle != NULL && !request->ended) weft_engine_cancel(r->engine, request->handle);
}

/* ---- a turn ---------------------------------------------------------------------------------- */

uint64_t weft_sim_replica_next(const weft_sim_replica *r) {
  return r->idle ? UINT64_MAX : r->now_us;
}

static void watch_engine(weft_sim_replica *r, uint64_t since_us) {
  weft_engine_stats stats;
  weft_engine_get_stats(r->engine, &stats);
  const weft_pager_stats *p = &stats.pager;
  weft_sim_series_add(&r->world->run->series, r->watched_us, since_us, r->seen); /* idle */
  r->seen[WEFT_SIM_PINNED] = p->n_pinned;
  r->seen[WEFT_SIM_USED] = p->n_pinned + p->n_cached;
  r->seen[WEFT_SIM_RUNNING] = stats.n_running;
  r->seen[WEFT_SIM_WAITING] = stats.n_waiting;
  weft_sim_series_add(&r->world->run->series, since_us, r->now_us, r->seen);
  r->watched_us = r->now_us;
  r->counts->pool_page_us += (double)p->n_pinned * (double)(r->now_us - since_us);
  if (p->n_pinned > r->counts->n_pages_peak) r->counts->n_pages_peak = p->n_pinned;
}

weft_status weft_sim_replica_turn(weft_sim_replica *r, weft_error *error) {
  uint64_t since_us = r->now_us;
  if (r->told != NULL) weft_sim_told_flush(r->told, r->now_us, r->counts);
  weft_status status = weft_engine_step(r->engine, r->now_us);
  if (status == WEFT_OK) {
    r->n_stuck = 0;
    watch_engine(r, since_us);
    return WEFT_OK;
  }
  if (status != WEFT_AGAIN) return weft_fail(error, status, "the engine refused a step");
  r->idle = r->n_live == 0 && !weft_sim_told_waits(r->told);
  if (r->n_live == 0) return WEFT_OK;
  r->now_us += IDLE_US; /* a request waits for time to pass */
  watch_engine(r, since_us);
  if (++r->n_stuck < STUCK_TURNS) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID, "%u requests are stuck; a bug", r->n_live);
}

uint32_t weft_sim_replica_live(const weft_sim_replica *r) {
  return r->n_live;
}

weft_sent_pool weft_sim_replica_pool(weft_sim_replica *r) {
  return weft_engine_get_pool(r->engine);
}

uint64_t weft_sim_replica_end(const weft_sim_replica *r) {
  return r->now_us;
}

/* What the engine counted since it was opened; the simulation is also a test of the real engine and pager: their laws
 * hold after every run. */
static weft_status take_counts(weft_sim_replica *r, weft_error *error) {
  weft_engine_stats stats;
  weft_sim_counts *c = r->counts;
  weft_engine_get_stats(r->engine, &stats);
  c->n_steps += stats.n_steps;
  c->n_mixed_steps += stats.n_mixed_steps;
  c->n_switches += stats.n_switches;
  c->n_rows += stats.n_rows;
  c->n_void_rows += stats.n_void_rows;
  c->n_preemptions += stats.n_preemptions;
  c->n_pages_out += stats.pager.n_spilled;
  c->n_pages_back += stats.pager.n_restored;
  c->n_pages_evicted += stats.pager.n_evicted;
  c->n_prefill_rows += stats.n_prefill_rows;
  c->n_denoise_steps += stats.n_denoise_steps;
  for (uint32_t i = 0; i < r->world->profile->n_models; i++) {
    c->measured_us += stats.lane[i].measured_us;
    c->error_us += stats.lane[i].error_us;
    const char *violation = weft_fake_runner_violation(r->lane[i].inner);
    if (violation != NULL) return weft_fail(error, WEFT_E_INVALID, "%s; a bug", violation);
  }
  const char *broken = weft_engine_check(r->engine);
  if (broken != NULL) return weft_fail(error, WEFT_E_INVALID, "a law of the engine is broken: %s; a bug", broken);
  return weft_pager_check(weft_engine_pager(r->engine), error) ? WEFT_OK : WEFT_E_INVALID;
}

weft_status weft_sim_replica_renew(weft_sim_replica *r, uint64_t now_us, weft_error *error) {
  while (weft_engine_step(r->engine, now_us) == WEFT_OK) { /* what was in flight lands for nobody */
  }
  weft_status status = take_counts(r, error);
  if (status != WEFT_OK) return status;
  weft_sim_series_add(&r->world->run->series, r->watched_us, now_us, r->seen);
  memset(r->seen, 0, sizeof r->seen);
  close_parts(r);
  r->now_us = r->free_us = r->watched_us = now_us;
  r->idle = true;
  r->n_stuck = 0;
  return open_parts(r, error);
}

weft_status weft_sim_replica_finish(weft_sim_replica *r, uint64_t end_us, weft_error *error) {
  weft_sim_series_add(&r->world->run->series, r->watched_us, end_us, r->seen);
  r->counts->end_us = r->now_us;
  return take_counts(r, error);
}
