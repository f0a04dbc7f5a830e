/* SPDX-License-Identifier: MIT */
#include "scheduler/engine.h"

#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/memory.h"
#include "scheduler/cost.h"
#include "scheduler/fit.h"
#include "scheduler/pins.h"
#include "scheduler/pool_size.h"
#include "scheduler/snapshot.h"
#include "scheduler/step.h"
#include "scheduler/thread.h"
#include "scheduler/waiting.h"
#include "scheduler/watch.h"

enum {
  TENANTS_MAX = WEFT_OWNER_OPERATOR, /* tenants are owners of the pager below it */
  PINS_MAX = 4096,
  RUNNING_MAX = 1 << 20,
  WAITING_MAX = 1 << 24,
  ROWS_MAX = 1 << 20,
  TOKENS_MAX = 1 << 24,
  VISIT_NAP_NS = 500000
};

/* ---- open ------------------------------------------------------------------------------------ */

typedef struct limit {
  const char *name;
  uint32_t value, low, high;
} limit;

static weft_status check_tenant(uint32_t i, const weft_tenant_config *t, weft_error *error) {
  if (t->weight > WEFT_WEIGHT_MAX) {
    return weft_fail(error, WEFT_E_INVALID, "engine: weight of tenant %u is %u; at most %d", i, t->weight,
                     WEFT_WEIGHT_MAX);
  }
  if (t->priority_class < WEFT_CLASS_LOW || t->priority_class > WEFT_CLASS_HIGH) {
    return weft_fail(error, WEFT_E_INVALID, "engine: class of tenant %u is %d; it must be -1, 0 or 1", i,
                     t->priority_class);
  }
  return WEFT_OK;
}

static weft_status check_tenants(const weft_engine_config *c, weft_error *error) {
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; status == WEFT_OK && c->tenant != NULL && i < c->n_tenants; i++)
    status = check_tenant(i, &c->tenant[i], error);
  return status;
}

static weft_status check_limits(const weft_engine_config *c, weft_error *error) {
  const limit rows[] = {
      {"n_models", c->n_models, 1, WEFT_MODELS_MAX},    {"n_pages", c->n_pages, 1, INT32_MAX},
      {"rows_per_step", c->rows_per_step, 1, ROWS_MAX}, {"running_max", c->running_max, 1, RUNNING_MAX},
      {"waiting_max", c->waiting_max, 1, WAITING_MAX},  {"n_tenants", c->n_tenants, 1, TENANTS_MAX},
      {"pins_max", c->pins_max, 0, PINS_MAX},           {"seq_tokens_max", c->seq_tokens_max, 2, TOKENS_MAX},
  };
  for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    if (rows[i].value >= rows[i].low && rows[i].value <= rows[i].high) continue;
    return weft_fail(error, WEFT_E_INVALID, "engine: %s is %u; it must be from %u to %u", rows[i].name, rows[i].value,
                     rows[i].low, rows[i].high);
  }
  if (c->rows_beside > c->rows_per_step) {
    return weft_fail(error, WEFT_E_INVALID, "engine: rows_beside is %u; it must be at most rows_per_step, %u",
                     c->rows_beside, c->rows_per_step);
  }
  return WEFT_OK;
}

/* Most rows of a step for which somebody waits (rows.h). */
static uint32_t rows_beside_of(const weft_engine_config *c, const weft_runner_info *info) {
  uint32_t n = c->rows_beside > 0 ? c->rows_beside : c->rows_per_step;
  return n < info->rows_max ? n : info->rows_max;
}

static weft_status check_pool(const weft_engine_config *c, weft_error *error) {
  const weft_pool_calls *p = c->pool;
  if (p == NULL || (p->n_pages_max >= c->n_pages && p->n_pages_max <= INT32_MAX && p->n_pages_first >= 1 &&
                    p->n_pages_first <= p->n_pages_max && p->n_pages_step >= 1))
    return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID,
                   "engine: a pool of %u to %u pages that begins with %u and changes by %u; give at least %u, and 1",
                   c->n_pages, p->n_pages_max, p->n_pages_first, p->n_pages_step, c->n_pages);
}

static void range_of_blocks(const weft_runner_info *info, uint32_t *least, uint32_t *most) {
  *least = WEFT_BLOCK_TOKENS_MAX;
  *most = 1;
  for (uint32_t g = 0; g < info->n_groups; g++) {
    uint32_t n = info->group[g].block_tokens;
    if (n < *least) *least = n;
    if (n > *most) *most = n;
  }
}

/* Block tables are addressed by 32-bit offsets into the pager's one array. */
static weft_status check_runner(const weft_engine_config *c, uint32_t index, weft_error *error) {
  const weft_runner_info *info = c->runner[index]->ops->info(c->runner[index]);
  uint32_t budget = rows_beside_of(c, info);
  if (info->canvas_length > budget) {
    return weft_fail(error, WEFT_E_INVALID, "%s: a canvas has %u rows, a step at most %u; raise rows per step to %u",
                     info->name, info->canvas_length, budget, info->canvas_length);
  }
  if (info->n_stages == 0 || info->n_stages > WEFT_STAGES_MAX) {
    return weft_fail(error, WEFT_E_INVALID, "%s: a runner computes 1 to %d steps at once, not %u", info->name,
                     WEFT_STAGES_MAX, info->n_stages);
  }
  if (info->n_slots == 0 || info->depth == 0 || budget == 0 || info->n_groups == 0 ||
      info->n_groups > WEFT_GROUPS_MAX) {
    return weft_fail(error, WEFT_E_INVALID, "%s: %u slots, depth %u, %u rows, %u layer groups; each must be at least 1",
                     info->name, info->n_slots, info->depth, budget, info->n_groups);
  }
  uint64_t n_entries = 0;
  for (uint32_t g = 0; g < info->n_groups; g++) {
    n_entries += c->seq_tokens_max / info->group[g].block_tokens + 1;
  }
  uint32_t block_min, block_max;
  range_of_blocks(info, &block_min, &block_max);
  uint32_t n_pages = c->pool == NULL ? c->n_pages : c->pool->n_pages_max;
  if ((uint64_t)n_pages * (block_max / block_min) > UINT32_MAX) {
    return weft_fail(error, WEFT_E_TOO_LARGE,
                     "%s: %u pages have more than 2^32 blocks of %u tokens; lower their number", info->name, n_pages,
                     block_min);
  }
  uint32_t n_seqs = c->running_max + c->pins_max;
  if (n_entries * n_seqs > UINT32_MAX) {
    return weft_fail(error, WEFT_E_TOO_LARGE,
                     "%s: block tables of %u requests and pins of %u tokens have more than 2^32 "
                     "entries; lower one of them",
                     info->name, n_seqs, c->seq_tokens_max);
  }
  return WEFT_OK;
}

static weft_status open_pager(weft_engine *e, weft_error *error) {
  const weft_engine_config *c = &e->config;
  weft_pager_model model[WEFT_MODELS_MAX] = {0};
  for (uint32_t i = 0; i < c->n_models; i++) {
    const weft_runner_info *info = e->lane[i].info;
    model[i].fingerprint = (weft_key128){.low = info->fingerprint_low, .high = info->fingerprint_high};
    model[i].n_groups = info->n_groups;
    model[i].cost_doubles = WEFT_COST_KEYS_PER_ROW; /* to compute a token again: its row and its keys */
    memcpy(model[i].group, info->group, sizeof model[i].group);
  }
  weft_pager_config config = {.n_pages = c->pool == NULL ? c->n_pages : c->pool->n_pages_max,
                              .resize_pages = c->pool == NULL ? 0 : c->pool->n_pages_step,
                              .n_host_pages = c->n_host_pages,
                              .n_file_pages = c->n_file_pages,
                              .n_seqs = c->running_max + c->pins_max,
                              .seq_tokens_max = c->seq_tokens_max,
                              .n_models = c->n_models,
                              .model = model,
                              .no_prefix_cache = c->no_prefix_cache,
                              .changes = c->prefix_feed,
                              .saves = c->saves_prefixes,
                              .hash_seed = c->hash_seed};
  weft_status status = weft_pager_open(&config, &e->pager, error);
  if (status == WEFT_OK) weft_pool_size_open(e);
  return status;
}

static void open_cost(weft_lane *lane) {
  const weft_runner_info *info = lane->info;
  weft_cost_layers layers = {.n_experts = info->n_experts, .n_used = info->n_experts_used};
  uint32_t n_full = 0, n_layers = 0;
  for (uint32_t g = 0; g < info->n_groups; g++) {
    const weft_layer_group *group = &info->group[g];
    if (group->state_pages != 0) continue; /* a state costs a row the same wherever it is */
    n_layers += group->n_layers;
    if (group->window == 0) n_full += group->n_layers;
    if (group->window > layers.window) layers.window = group->window;
  }
  layers.full = n_layers == 0 ? WEFT_COST_WHOLE : (uint32_t)((uint64_t)n_full * WEFT_COST_WHOLE / n_layers);
  weft_cost_open(&lane->cost, &layers);
}

static void open_states(weft_lane *lane) {
  for (uint32_t g = 0; g < lane->info->n_groups; g++) {
    const weft_layer_group *group = &lane->info->group[g];
    if (group->state_pages == 0) continue;
    if (lane->border_min == 0 || group->block_tokens < lane->border_min) lane->border_min = group->block_tokens;
    lane->state_pages += group->state_pages;
  }
}

static weft_status open_lane(weft_engine *e, uint32_t index) {
  weft_lane *lane = &e->lane[index];
  uint32_t canvas = lane->info->canvas_length;
  lane->index = index;
  lane->n_stages = e->config.overlap ? lane->info->n_stages : 1;
  lane->rows_max = lane->info->rows_max < e->config.rows_per_step ? lane->info->rows_max : e->config.rows_per_step;
  lane->rows_beside = rows_beside_of(&e->config, lane->info);
  lane->context =
      lane->info->context_length < e->config.seq_tokens_max ? lane->info->context_length : e->config.seq_tokens_max;
  range_of_blocks(lane->info, &lane->block_min, &lane->block_max);
  open_states(lane);
  lane->restores_max = weft_cost_restores_max(lane->info->page_bytes);
  lane->fit_tokens = weft_fit_longest(e, index, 1, e->config.n_pages);
  lane->fit_canvas = canvas == 0 ? 0 : weft_fit_longest(e, index, canvas, e->config.n_pages);
  open_cost(lane);
  weft_list_init(&lane->prefilling);
  weft_list_init(&lane->leaving);
  lane->free_slot = weft_alloc(lane->info->n_slots, sizeof *lane->free_slot);
  if (lane->free_slot == NULL) return WEFT_E_NO_MEMORY;
  for (uint32_t i = 0; i < lane->info->n_slots; i++) {
    lane->free_slot[i] = lane->info->n_slots - 1 - i;
  }
  lane->n_free_slots = lane->info->n_slots;
  lane->free_save = weft_alloc(lane->info->n_saves, sizeof *lane->free_save);
  lane->acceptance = weft_alloc(e->config.n_tenants, sizeof *lane->acceptance);
  lane->depth = weft_alloc(1, sizeof *lane->depth);
  if (lane->info->drafts) {
    lane->drafted = weft_alloc(lane->info->n_slots, sizeof *lane->drafted);
    lane->draft = weft_alloc((size_t)lane->info->n_slots * WEFT_DRAFTS_MAX, sizeof *lane->draft);
    if (lane->drafted == NULL || lane->draft == NULL) return WEFT_E_NO_MEMORY;
  }
  if (lane->free_save == NULL || lane->acceptance == NULL || lane->depth == NULL) return WEFT_E_NO_MEMORY;
  weft_depth_open(lane->depth);
  for (uint32_t i = 0; i < lane->info->n_saves; i++) lane->free_save[i] = i;
  lane->n_free_saves = lane->info->n_saves;
  return weft_ready_open(&lane->ready, lane->info->n_slots);
}

static weft_status open_batchers(weft_engine *e, uint32_t segments_max) {
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < e->n_lanes && status == WEFT_OK; i++) {
    weft_lane *lane = &e->lane[i];
    status = weft_batcher_open(&lane->batcher, lane->info, lane->rows_max, segments_max,
                               weft_pager_copies_max(e->pager) + 1);
  }
  return status;
}

static bool has_drafts(const weft_engine *e) {
  uint32_t i = 0;
  while (i < e->n_lanes && e->lane[i].info->draft_rows_max == 0) i++;
  return i < e->n_lanes;
}

static weft_status take_memory(weft_engine *e) {
  const weft_engine_config *c = &e->config;
  uint32_t rows_max = 1, n_slots = 0;
  e->depth = 1;
  for (uint32_t i = 0; i < e->n_lanes; i++) {
    weft_status status = open_lane(e, i);
    if (status != WEFT_OK) return status;
    if (c->overlap && e->lane[i].n_stages + 1 > e->depth) e->depth = e->lane[i].n_stages + 1;
    if (e->lane[i].rows_max > rows_max) rows_max = e->lane[i].rows_max;
    if (e->lane[i].info->n_slots > n_slots) n_slots = e->lane[i].info->n_slots;
  }
  uint32_t n_works = c->running_max < n_slots ? c->running_max : n_slots;
  if (n_works > rows_max) n_works = rows_max;
  n_works += 1; /* so that a full plan is never the reason to stop */
  if (has_drafts(e)) {
    e->draft_history = weft_alloc(1, sizeof *e->draft_history);
    if (e->draft_history == NULL) return WEFT_E_NO_MEMORY;
  }
  e->rank = weft_alloc(c->running_max, sizeof *e->rank);
  e->ranked = weft_alloc(c->running_max, sizeof *e->ranked);
  e->told = weft_alloc(2 * (size_t)n_works, sizeof *e->told);
  if (e->rank == NULL || e->ranked == NULL || e->told == NULL) return WEFT_E_NO_MEMORY;
  for (uint32_t i = 0; i < e->depth; i++) {
    weft_status status = weft_plan_open(&e->plan[i], n_works);
    if (status != WEFT_OK) return status;
  }
  weft_status status = weft_tenants_open(&e->tenants, c->tenant, c->n_tenants, e->n_lanes);
  if (status == WEFT_OK && c->prefix_feed) status = weft_prefix_feed_open(e->pager, &e->feed);
  if (status != WEFT_OK) return status;
  e->claims.tenant = e->tenants.claims;
  status = weft_recorder_open(&e->recorder);
  if (status == WEFT_OK) status = weft_watch_open(e);
  if (status == WEFT_OK) status = weft_visits_open(&e->visits);
  if (status != WEFT_OK) return status;
  e->shared_usage = weft_alloc((size_t)e->n_lanes * WEFT_GROUPS_MAX, sizeof *e->shared_usage);
  e->requests = weft_alloc(e->n_lanes, sizeof *e->requests);
  e->shared_requests = weft_alloc(e->n_lanes, sizeof *e->shared_requests);
  if (e->shared_usage == NULL) return WEFT_E_NO_MEMORY;
  if (e->requests == NULL || e->shared_requests == NULL) return WEFT_E_NO_MEMORY;
  for (uint32_t i = 0; i < c->n_tenants; i++) {
    weft_pager_set_owner_limit(e->pager, i, e->tenants.tenant[i].config.blocks_max);
  }
  weft_pins_plan(e);
  status = weft_pins_open(&e->pins, c->pins_max);
  if (status != WEFT_OK) return status;
  if (c->places == NULL) status = weft_places_open(&e->own_places, c, 1);
  if (status != WEFT_OK) return status;
  status = weft_deadlines_open(&e->deadlines, c->running_max + c->waiting_max);
  if (status != WEFT_OK) return status;
  status = weft_waiting_open(e);
  if (status != WEFT_OK) return status;
  return open_batchers(e, 2 * n_works);
}

static void free_engine(weft_engine *e) {
  for (uint32_t i = 0; i < e->n_lanes; i++) {
    weft_free(e->lane[i].free_slot);
    weft_free(e->lane[i].free_save);
    weft_free(e->lane[i].acceptance);
    weft_free(e->lane[i].depth);
    weft_free(e->lane[i].drafted);
    weft_free(e->lane[i].draft);
    weft_ready_close(&e->lane[i].ready);
    weft_batcher_close(&e->lane[i].batcher);
  }
  weft_free(e->draft_history);
  for (uint32_t i = 0; i < WEFT_FLIGHT_MAX; i++) weft_plan_close(&e->plan[i]);
  weft_deadlines_close(&e->deadlines);
  weft_waiting_close(e);
  weft_tenants_close(&e->tenants);
  weft_pins_close(&e->pins);
  weft_watch_close(e);
  weft_visits_close(&e->visits);
  weft_free(e->shared_usage);
  weft_free(e->requests);
  weft_free(e->shared_requests);
  weft_recorder_close(&e->recorder);
  weft_free(e->rank);
  weft_free(e->ranked);
  weft_free(e->told);
  weft_places_close(&e->own_places);
  weft_prefix_feed_close(e->feed);
  weft_pager_close(e->pager);
  weft_free(e);
}

weft_status weft_engine_open(const weft_engine_config *config, weft_engine **out, weft_error *error) {
  *out = NULL;
  weft_status status = check_limits(config, error);
  if (status == WEFT_OK) status = check_tenants(config, error);
  if (status == WEFT_OK) status = check_pool(config, error);
  for (uint32_t i = 0; status == WEFT_OK && i < config->n_models; i++) {
    status = check_runner(config, i, error);
  }
  if (status != WEFT_OK) return status;
  weft_engine *e = weft_alloc(1, sizeof *e);
  if (e == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "engine: no memory for its head");
  e->config = *config;
  e->n_lanes = config->n_models;
  if (e->config.prefill_chunk == 0 || e->config.prefill_chunk > config->rows_per_step) {
    e->config.prefill_chunk = config->rows_per_step;
  }
  for (uint32_t i = 0; i < e->n_lanes; i++) {
    e->lane[i].runner = config->runner[i];
    e->lane[i].info = config->runner[i]->ops->info(config->runner[i]);
  }
  status = open_pager(e, error);
  if (status == WEFT_OK && take_memory(e) != WEFT_OK) {
    status = weft_fail(error, WEFT_E_NO_MEMORY,
                       "engine: no memory for %u running and %u waiting requests; lower one of them",
                       config->running_max, config->waiting_max);
  }
  e->places = config->places != NULL ? config->places : &e->own_places;
  if (status == WEFT_OK && weft_inbox_open(&e->inbox, e->places) != WEFT_OK) {
    status = weft_fail(error, WEFT_E_NO_MEMORY, "engine: the system refused a lock");
  }
  if (status != WEFT_OK) {
    free_engine(e);
    return status;
  }
  (void)pthread_mutex_init(&e->stats_mutex, NULL);
  weft_snapshot_take(e);
  *out = e;
  return WEFT_OK;
}

void weft_engine_close(weft_engine *engine) {
  if (engine == NULL) return;
  weft_thread_stop(engine);
  weft_inbox_close(&engine->inbox);
  (void)pthread_mutex_destroy(&engine->stats_mutex);
  free_engine(engine);
}

/* ---- other threads --------------------------------------------------------------------------- */

void weft_engine_cancel(weft_engine *engine, weft_request *request) {
  if (atomic_load(&request->finished) || atomic_exchange(&request->cancelled, true)) return;
  atomic_fetch_add(&request->n_references, 1);
  weft_inbox_cancel(&engine->inbox, request);
}

weft_status weft_engine_poll(weft_engine *engine, weft_request *request, weft_event *out) {
  (void)engine;
  return weft_request_poll(request, out);
}

const weft_generate_params *weft_engine_asked(const weft_request *request) {
  return &request->params.asked;
}

weft_status weft_engine_prompt_logprobs(const weft_request *request, weft_prompt_logprobs *out) {
  return weft_request_prompt_logprobs(request, out);
}

weft_status weft_engine_wait(weft_engine *engine, weft_request *request, uint64_t timeout_us) {
  (void)engine;
  return weft_request_wait(request, timeout_us);
}

void weft_engine_release(weft_engine *engine, weft_request *request) {
  if (request == NULL) return;
  weft_request_detach(request);
  weft_engine_cancel(engine, request);
  weft_request_unref(request);
}

void weft_engine_wake(weft_engine *engine) {
  weft_inbox_poke(&engine->inbox);
}

weft_status weft_engine_step(weft_engine *engine, uint64_t now_us) {
  return weft_step_turn(engine, now_us);
}

void weft_engine_drain(weft_engine *engine) {
  weft_inbox_drain(&engine->inbox);
}

bool weft_engine_idle(weft_engine *engine) {
  return weft_inbox_n_live(&engine->inbox) == 0 && engine->n_busy == 0;
}

void weft_engine_resize_pool(weft_engine *engine, uint32_t n_pages) {
  weft_pool_size_ask(engine, n_pages);
}

weft_pool_view weft_engine_pool_size(weft_engine *engine) {
  return weft_pool_size_look(engine);
}

void weft_engine_reset_cache(weft_engine *engine) {
  weft_inbox_reset_cache(&engine->inbox);
}

weft_status weft_engines_change_tenant(weft_engine *const *engine, uint32_t n, uint32_t tenant,
                                       const weft_tenant_config *config, const weft_tenant_config *each,
                                       uint64_t now_us, weft_error *error) {
  weft_inbox *inbox[WEFT_REPLICAS_MAX];
  uint32_t n_tenants = engine[0]->config.n_tenants;
  if (tenant >= n_tenants) return weft_fail(error, WEFT_E_INVALID, "tenant number %u; there are %u", tenant, n_tenants);
  weft_status status = check_tenant(tenant, config, error);
  if (status != WEFT_OK) return status;
  for (uint32_t i = 0; i < n; i++) inbox[i] = &engine[i]->inbox;
  weft_inboxes_change_tenant(inbox, n, tenant, config, each, now_us);
  return WEFT_OK;
}

weft_status weft_engine_change_tenant(weft_engine *engine, uint32_t tenant, const weft_tenant_config *config,
                                      uint64_t now_us, weft_error *error) {
  return weft_engines_change_tenant(&engine, 1, tenant, config, config, now_us, error);
}

static void add_histogram(uint64_t *buckets, uint64_t *sum, const weft_histogram *part) {
  for (uint32_t i = 0; i < WEFT_HISTOGRAM_BUCKETS; i++) buckets[i] += part->bucket[i];
  *sum += part->sum;
}

/* What is counted by model, of all models. */
static void add_request_stats(weft_engine_stats *out, const weft_request_stats *part) {
  for (uint32_t i = 0; i < WEFT_FINISH_KINDS; i++) out->n_finished[i] += part->n_finished[i];
  out->n_prompt_tokens += part->n_prompt_tokens;
  out->n_answer_tokens += part->n_answer_tokens;
  add_histogram(out->ttft, &out->ttft_sum_us, &part->ttft);
  add_histogram(out->tpot, &out->tpot_sum_us, &part->tpot);
  add_histogram(out->e2e, &out->e2e_sum_us, &part->e2e);
  add_histogram(out->queue, &out->queue_us, &part->queue);
}

void weft_engine_get_stats(weft_engine *engine, weft_engine_stats *out) {
  (void)pthread_mutex_lock(&engine->stats_mutex);
  *out = engine->shared_stats;
  for (uint32_t i = 0; i < engine->n_lanes; i++) add_request_stats(out, &engine->shared_requests[i]);
  (void)pthread_mutex_unlock(&engine->stats_mutex);
  out->request_bytes = weft_budget_held(&engine->places->budget);
  out->n_views = weft_watch_count(engine);
}

weft_status weft_engine_open_view(const weft_engine *engine, weft_view *out) {
  return weft_watch_open_view(engine, out);
}

void weft_engine_ask_view(weft_engine *engine) {
  weft_watch_ask(engine);
}

bool weft_engine_await_view(weft_engine *engine, uint64_t until_us, weft_view *out) {
  return weft_watch_await(engine, until_us, out);
}

uint32_t weft_engine_get_steps(weft_engine *engine, weft_step_record *out, uint32_t max) {
  return weft_recorder_steps(&engine->recorder, out, max);
}

uint32_t weft_engine_get_requests(weft_engine *engine, weft_request_record *out, uint32_t max) {
  return weft_recorder_requests(&engine->recorder, out, max);
}

weft_tenant_left weft_engine_get_tenant_left(weft_engine *engine, uint32_t tenant, uint64_t now_us) {
  weft_account account = weft_places_account(engine->places, tenant);
  return weft_account_left(&account, now_us);
}

void weft_engine_move_tokens(weft_engine *engine, uint32_t tenant, int64_t n_tokens, uint64_t now_us) {
  weft_places_move(engine->places, tenant, n_tokens, now_us);
}

void weft_engine_get_tenant_stats(weft_engine *engine, uint32_t tenant, weft_tenant_stats *out) {
  weft_account account = weft_places_account(engine->places, tenant);
  (void)pthread_mutex_lock(&engine->stats_mutex);
  *out = engine->tenants.shared[tenant].stats;
  (void)pthread_mutex_unlock(&engine->stats_mutex);
  out->n_waiting = account.n_waiting;
  out->n_unstarted = account.n_unstarted;
  out->n_evicted = account.n_evicted;
  memcpy(out->n_refused, account.n_refused, sizeof out->n_refused);
  out->n_refused[WEFT_REFUSED_MEMORY] = weft_budget_refused(&engine->places->budget, tenant);
}

uint64_t weft_engine_request_bytes(const weft_request_params *params, uint32_t answer_max, uint32_t n_canvas) {
  uint32_t n_blocks = n_canvas == 0 ? 0 : (answer_max + n_canvas - 1) / n_canvas;
  const weft_request_size size = {.answer_max = answer_max, .n_canvas = n_canvas, .n_blocks = n_blocks};
  return weft_request_bytes(params, &size);
}

void weft_engine_get_request_stats(weft_engine *engine, uint32_t model, weft_request_stats *out) {
  (void)pthread_mutex_lock(&engine->stats_mutex);
  *out = engine->shared_requests[model];
  (void)pthread_mutex_unlock(&engine->stats_mutex);
}

void weft_engine_get_group_usage(weft_engine *engine, uint32_t model, weft_group_usage *out) {
  const weft_group_usage *usage = &engine->shared_usage[model * WEFT_GROUPS_MAX];
  (void)pthread_mutex_lock(&engine->stats_mutex);
  memcpy(out, usage, engine->lane[model].info->n_groups * sizeof *out);
  (void)pthread_mutex_unlock(&engine->stats_mutex);
}

weft_prefix_feed *weft_engine_feed(weft_engine *engine) {
  return engine->feed;
}

void weft_engine_expect_file(weft_engine *e, double page_us) {
  if (page_us > 0) e->file_waits.page_us = page_us;
  e->file_waits.patience = 2;
}

void weft_engine_visit(weft_engine *engine, weft_visit visit, void *self) {
  const struct timespec nap = {.tv_nsec = VISIT_NAP_NS};
  weft_visits *v = &engine->visits;
  weft_visits_begin(v, visit, self);
  while (engine->has_thread && weft_visits_wanted(v)) {
    weft_inbox_poke(&engine->inbox); /* now and then, should what the visit waits for never end */
    (void)weft_visits_wait(v);
  }
  while (weft_visits_wanted(v)) {
    bool idle = weft_step_turn(engine, weft_clock_us()) == WEFT_AGAIN;
    if (idle && weft_visits_wanted(v)) (void)nanosleep(&nap, NULL);
  }
  weft_visits_end(v);
}

weft_draft_history *weft_engine_draft_history(weft_engine *engine) {
  return engine->draft_history;
}

weft_pager *weft_engine_pager(weft_engine *engine) {
  return engine->pager;
}

void weft_engine_get_load(weft_engine *engine, uint32_t tenant, weft_replica_load *all, weft_replica_load *own) {
  weft_inbox_get_load(&engine->inbox, tenant, all, own);
}

weft_sent_pool weft_engine_get_pool(weft_engine *engine) {
  (void)pthread_mutex_lock(&engine->stats_mutex);
  const weft_pager_stats *p = &engine->shared_stats.pager;
  const weft_sent_pool pool = {.n_evicted = p->n_evicted,
                               .n_kept = p->n_pages - p->n_pinned + p->n_host_pages + p->n_file_pages};
  (void)pthread_mutex_unlock(&engine->stats_mutex);
  return pool;
}

bool weft_engine_can_run(const weft_engine *engine, uint32_t model) {
  return !engine->lane[model].broken;
}

bool weft_engine_has(const weft_engine *engine, const weft_request *request) {
  return request->inbox == &engine->inbox;
}

weft_status weft_engine_start(weft_engine *engine) {
  return weft_thread_start(engine);
}

void weft_engine_stop(weft_engine *engine) {
  weft_thread_stop(engine);
}

weft_status weft_engine_unpin(weft_engine *engine, uint32_t id) {
  return weft_pins_remove(engine, id);
}

uint32_t weft_engine_list_pins(weft_engine *engine, weft_pin_info *out, uint32_t max) {
  return weft_pins_list(engine, out, max);
}

weft_status weft_engine_copy_pin(weft_engine *engine, uint32_t id, int32_t **tokens, uint32_t *n_tokens) {
  return weft_pins_copy(engine, id, tokens, n_tokens);
}

void weft_engine_set_drafter(weft_engine *engine, const weft_drafter *drafter, bool always) {
  WEFT_CHECK(weft_engine_idle(engine));
  engine->config.drafter = drafter;
  engine->config.drafts_always = always;
}

uint32_t weft_engine_last_step(const weft_request *request) {
  return request->planned_in;
}

uint32_t weft_engine_room(const weft_engine *engine, uint32_t lane, uint32_t n_tokens) {
  return weft_fit_room(engine, lane, n_tokens);
}

uint64_t weft_engine_tokens(const weft_engine *engine, uint32_t lane) {
  return weft_fit_tokens(engine, lane);
}

void weft_engine_get_refused(const weft_engine *engine, uint32_t model, uint64_t out[WEFT_REFUSED_KINDS]) {
  weft_places_get_refused(engine->places, model, out);
}
