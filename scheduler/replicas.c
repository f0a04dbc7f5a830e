/* SPDX-License-Identifier: MIT */
#include "scheduler/replicas.h"

#include <string.h>

#include "base/memory.h"
#include "scheduler/places.h"
#include "scheduler/replica_choice.h"
#include "scheduler/sent_prefixes.h"
#include "scheduler/stats_sum.h"

struct weft_replicas {
  weft_engine *engine[WEFT_REPLICAS_MAX];
  uint32_t n, n_models, n_tenants, seq_tokens_max;
  weft_places places;
  uint32_t *running_max; /* [n_tenants], as given, over all replicas; 0: no limit */

  pthread_mutex_t mutex; /* one submission at a time, so that each sees where the one before it went */
  weft_sent_prefixes sent;
  uint64_t n_given[WEFT_REPLICAS_MAX]; /* rows of all requests that were submitted */
  uint32_t n_pins;                     /* ever declared */
  bool has_mutex;
};

/* ---- open and close -------------------------------------------------------------------------- */

/* The replicas in the order in which a tenant is given parts: each tenant begins with another one. */
static uint32_t place_in_order(const weft_replicas *rs, uint32_t tenant, uint32_t i) {
  return (i + rs->n - tenant % rs->n) % rs->n;
}

/* What replica i may run at once of a tenant's limit over all; 0: nothing. */
static uint32_t part_of_limit(const weft_replicas *rs, uint32_t limit, uint32_t tenant, uint32_t i) {
  return limit / rs->n + (place_in_order(rs, tenant, i) < limit % rs->n);
}

/* What replica i is told of a tenant. */
static weft_tenant_config config_of_part(const weft_replicas *rs, const weft_tenant_config *all, uint32_t tenant,
                                         uint32_t i) {
  weft_tenant_config own = *all;
  uint32_t part = part_of_limit(rs, all->running_max, tenant, i);
  if (all->running_max > 0) own.running_max = part > 0 ? part : 1;
  return own;
}

static weft_status open_engine(weft_replicas *rs, const weft_replicas_config *config, uint32_t i,
                               weft_tenant_config *tenant, weft_error *error) {
  weft_engine_config own = config->engine;
  own.runner = config->runner[i];
  own.places = &rs->places;
  own.waiting_max = rs->places.live_max - own.running_max; /* all may come to one */
  for (uint32_t t = 0; own.tenant != NULL && t < own.n_tenants; t++)
    tenant[t] = config_of_part(rs, &own.tenant[t], t, i);
  if (own.tenant != NULL) own.tenant = tenant;
  return weft_engine_open(&own, &rs->engine[i], error);
}

static weft_status open_all(weft_replicas *rs, const weft_replicas_config *config, weft_error *error) {
  const weft_engine_config *c = &config->engine;
  weft_tenant_config *tenant = weft_alloc(c->n_tenants, sizeof *tenant);
  rs->running_max = weft_alloc(c->n_tenants, sizeof *rs->running_max);
  rs->has_mutex = pthread_mutex_init(&rs->mutex, NULL) == 0;
  weft_status status = tenant != NULL && rs->running_max != NULL && rs->has_mutex ? WEFT_OK : WEFT_E_NO_MEMORY;
  if (status == WEFT_OK) status = weft_sent_open(&rs->sent);
  if (status == WEFT_OK) status = weft_places_open(&rs->places, c, rs->n);
  if (status != WEFT_OK) (void)weft_fail(error, status, "engine: no memory for %u replicas", rs->n);
  for (uint32_t t = 0; status == WEFT_OK && c->tenant != NULL && t < c->n_tenants; t++)
    rs->running_max[t] = c->tenant[t].running_max;
  for (uint32_t i = 0; status == WEFT_OK && i < rs->n; i++) status = open_engine(rs, config, i, tenant, error);
  weft_free(tenant);
  return status;
}

weft_status weft_replicas_open(const weft_replicas_config *config, weft_replicas **out, weft_error *error) {
  *out = NULL;
  if (config->n == 0 || config->n > WEFT_REPLICAS_MAX)
    return weft_fail(error, WEFT_E_INVALID, "engine: 1 to %d replicas, not %u", WEFT_REPLICAS_MAX, config->n);
  weft_replicas *rs = weft_alloc(1, sizeof *rs);
  if (rs == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "engine: no memory for its replicas");
  rs->n = config->n;
  rs->n_models = config->engine.n_models;
  rs->n_tenants = config->engine.n_tenants;
  weft_status status;
  if (rs->n == 1) { /* its own places */
    weft_engine_config own = config->engine;
    own.runner = config->runner[0];
    status = weft_engine_open(&own, &rs->engine[0], error);
  } else {
    status = open_all(rs, config, error);
  }
  if (status == WEFT_OK)
    *out = rs;
  else
    weft_replicas_close(rs);
  return status;
}

void weft_replicas_close(weft_replicas *rs) {
  if (rs == NULL) return;
  for (uint32_t i = 0; i < rs->n; i++) weft_engine_close(rs->engine[i]);
  weft_sent_close(&rs->sent);
  weft_places_close(&rs->places);
  if (rs->has_mutex) (void)pthread_mutex_destroy(&rs->mutex);
  weft_free(rs->running_max);
  weft_free(rs);
}

weft_engine *weft_replicas_at(const weft_replicas *rs, uint32_t index) {
  return rs->engine[index];
}

weft_engine *weft_replicas_of(const weft_replicas *rs, const weft_request *request) {
  uint32_t i = 0;
  while (i + 1 < rs->n && !weft_engine_has(rs->engine[i], request)) i += 1;
  return rs->engine[i];
}

weft_status weft_replicas_start(weft_replicas *rs) {
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < rs->n && status == WEFT_OK; i++) status = weft_engine_start(rs->engine[i]);
  return status;
}

void weft_replicas_stop(weft_replicas *rs) {
  for (uint32_t i = 0; i < rs->n; i++) weft_engine_stop(rs->engine[i]);
}

void weft_replicas_drain(weft_replicas *rs) {
  for (uint32_t i = 0; i < rs->n; i++) weft_engine_drain(rs->engine[i]);
}

bool weft_replicas_idle(weft_replicas *rs) {
  bool idle = true;
  for (uint32_t i = 0; i < rs->n; i++) idle = idle && weft_engine_idle(rs->engine[i]);
  return idle;
}

void weft_replicas_reset_cache(weft_replicas *rs) {
  for (uint32_t i = 0; i < rs->n; i++) weft_engine_reset_cache(rs->engine[i]);
  if (rs->n == 1) return;
  (void)pthread_mutex_lock(&rs->mutex);
  weft_sent_forget(&rs->sent);
  (void)pthread_mutex_unlock(&rs->mutex);
}

weft_status weft_replicas_change_tenant(weft_replicas *rs, uint32_t tenant, const weft_tenant_config *config,
                                        uint64_t now_us, weft_error *error) {
  weft_tenant_config each[WEFT_REPLICAS_MAX];
  if (rs->n == 1 || tenant >= rs->n_tenants)
    return weft_engine_change_tenant(rs->engine[0], tenant, config, now_us, error);
  for (uint32_t i = 0; i < rs->n; i++) each[i] = config_of_part(rs, config, tenant, i);
  (void)pthread_mutex_lock(&rs->mutex);
  weft_status status = weft_engines_change_tenant(rs->engine, rs->n, tenant, config, each, now_us, error);
  if (status == WEFT_OK) rs->running_max[tenant] = config->running_max;
  (void)pthread_mutex_unlock(&rs->mutex);
  return status;
}

/* ---- submit ---------------------------------------------------------------------------------- */

static void add_load(weft_replica_load *load, const weft_replica_load *more) {
  load->n_rows += more->n_rows;
  load->n_requests += more->n_requests;
}

static weft_sent_prompt prompt_of(const weft_request_params *p) {
  return (weft_sent_prompt){.model = p->model, .domain = p->domain, .tokens = p->tokens, .n_tokens = p->n_tokens};
}

/* Scores of a prompt are computed for all its rows, whatever is cached. */
static bool seeks_prefix(const weft_request_params *p) {
  return !p->asked.no_cache && !p->asked.prompt_logprobs && p->tokens != NULL;
}

/* A replica without a part of the limit runs nothing of the tenant, so that the limit is never passed; but where all
 * that have a part broke, the first of the others takes their place with a part of one. */
static void leave_parts(const weft_replicas *rs, uint32_t tenant, weft_replica_view *view) {
  uint32_t limit = rs->running_max[tenant], first = rs->n;
  bool any = false;
  for (uint32_t k = rs->n; k-- > 0;) {
    uint32_t i = (tenant + k) % rs->n;
    if (view[i].works) first = i;
    any = any || (view[i].works && part_of_limit(rs, limit, tenant, i) > 0);
  }
  for (uint32_t i = 0; i < rs->n; i++) {
    bool may = any ? part_of_limit(rs, limit, tenant, i) > 0 : i == first;
    view[i].works = view[i].works && may;
  }
}

/* added: [n], what the requests before it in the same submission add, which no engine counts yet. */
static uint32_t choose_replica(weft_replicas *rs, const weft_request_params *p, const weft_replica_load *added) {
  weft_replica_view view[WEFT_REPLICAS_MAX];
  weft_sent_pool pool[WEFT_REPLICAS_MAX];
  uint32_t n_found[WEFT_REPLICAS_MAX] = {0}, limit = rs->running_max[p->tenant];
  const weft_sent_prompt prompt = prompt_of(p);
  for (uint32_t i = 0; i < rs->n; i++) pool[i] = weft_engine_get_pool(rs->engine[i]);
  if (seeks_prefix(p)) weft_sent_find(&rs->sent, &prompt, pool, rs->n, n_found);
  for (uint32_t i = 0; i < rs->n; i++) {
    weft_replica_view *v = &view[i];
    *v = (weft_replica_view){.works = weft_engine_can_run(rs->engine[i], p->model),
                             .n_given = rs->n_given[i] + added[i].n_rows,
                             .n_found = n_found[i]};
    weft_engine_get_load(rs->engine[i], p->tenant, &v->all, &v->own);
    add_load(&v->all, &added[i]);
    add_load(&v->own, &added[i]);
    v->has_room = limit == 0 || v->own.n_requests < part_of_limit(rs, limit, p->tenant, i);
  }
  if (limit > 0) leave_parts(rs, p->tenant, view);
  return weft_replica_choose(view, rs->n);
}

/* Fills engine[n]. What an engine will refuse for its model or tenant goes to any. */
static void choose_all(weft_replicas *rs, const weft_request_params *params, uint32_t n, weft_engine **engine) {
  weft_replica_load added[WEFT_REPLICAS_MAX] = {{0}};
  for (uint32_t k = 0; k < n; k++) {
    const weft_request_params *p = &params[k];
    uint32_t at = 0;
    if (p->model >= rs->n_models || p->tenant >= rs->n_tenants) {
      engine[k] = rs->engine[0];
      continue;
    }
    if (p->joins && k > 0) {
      while (rs->engine[at] != engine[k - 1]) at += 1;
    } else if (p->sibling != NULL) {
      while (at + 1 < rs->n && !weft_engine_has(rs->engine[at], p->sibling)) at += 1;
    } else {
      at = choose_replica(rs, p, added);
    }
    engine[k] = rs->engine[at];
    add_load(&added[at], &(weft_replica_load){.n_rows = weft_engine_rows(rs->engine[at], p), .n_requests = 1});
  }
}

/* They are in: what later choices remember of them. */
static void note_all(weft_replicas *rs, const weft_request_params *params, uint32_t n, weft_engine *const *engine) {
  for (uint32_t k = 0; k < n; k++) {
    const weft_sent_prompt prompt = prompt_of(&params[k]);
    uint32_t at = 0;
    while (rs->engine[at] != engine[k]) at += 1;
    rs->n_given[at] += weft_engine_rows(engine[k], &params[k]);
    if (params[k].asked.no_cache || params[k].joins) continue;
    const weft_sent_pool pool = weft_engine_get_pool(engine[k]);
    weft_sent_note(&rs->sent, &prompt, &pool, at);
  }
}

weft_status weft_replicas_submit_all(weft_replicas *rs, const weft_request_params *params, uint32_t n, uint64_t now_us,
                                     weft_request **out, weft_error *error) {
  weft_engine *engine[WEFT_SUBMISSION_MAX];
  if (rs->n == 1) return weft_engine_submit_all(rs->engine[0], params, n, now_us, out, error);
  weft_status status = weft_submission_check(n, error);
  if (status != WEFT_OK) return status;
  uint32_t tries = 0;
  (void)pthread_mutex_lock(&rs->mutex);
  do { /* a replica that breaks after it was chosen is chosen no more */
    choose_all(rs, params, n, engine);
    status = weft_engines_submit(engine, params, n, now_us, out, error);
  } while (status == WEFT_E_DEVICE && ++tries < rs->n);
  if (status == WEFT_OK) note_all(rs, params, n, engine);
  (void)pthread_mutex_unlock(&rs->mutex);
  return status;
}

/* ---- pins ------------------------------------------------------------------------------------ */

static bool works_or_none(const weft_replicas *rs, uint32_t i, uint32_t model) {
  bool any = false;
  for (uint32_t k = 0; k < rs->n; k++) any = any || weft_engine_can_run(rs->engine[k], model);
  return !any || weft_engine_can_run(rs->engine[i], model);
}

weft_status weft_replicas_pin(weft_replicas *rs, const weft_pin_params *params, uint64_t now_us, uint32_t *id,
                              weft_error *error) {
  if (rs->n == 1 || params->model >= rs->n_models) return weft_engine_pin(rs->engine[0], params, now_us, id, error);
  weft_pin_params each = *params;
  weft_status status = WEFT_OK;
  (void)pthread_mutex_lock(&rs->mutex);
  each.id = params->id > rs->n_pins ? params->id : rs->n_pins + 1;
  rs->n_pins = each.id;
  for (uint32_t i = 0; i < rs->n && status == WEFT_OK; i++) {
    if (works_or_none(rs, i, params->model)) status = weft_engine_pin(rs->engine[i], &each, now_us, id, error);
  }
  (void)pthread_mutex_unlock(&rs->mutex);
  if (status != WEFT_OK) (void)weft_replicas_unpin(rs, each.id);
  return status;
}

weft_status weft_replicas_unpin(weft_replicas *rs, uint32_t id) {
  weft_status status = WEFT_E_NOT_FOUND;
  for (uint32_t i = 0; i < rs->n; i++) {
    if (weft_engine_unpin(rs->engine[i], id) == WEFT_OK) status = WEFT_OK;
  }
  return status;
}

weft_status weft_replicas_copy_pin(weft_replicas *rs, uint32_t id, int32_t **tokens, uint32_t *n_tokens) {
  weft_status status = WEFT_E_NOT_FOUND;
  for (uint32_t i = 0; i < rs->n && status == WEFT_E_NOT_FOUND; i++)
    status = weft_engine_copy_pin(rs->engine[i], id, tokens, n_tokens);
  return status;
}

/* Adds a replica's pins to n others, in the order of their numbers, which is that of declaration. */
static uint32_t merge_pin(weft_pin_info *out, uint32_t n, uint32_t max, const weft_pin_info *pin) {
  uint32_t at = n;
  while (at > 0 && out[at - 1].id >= pin->id) at -= 1;
  if (at < n && out[at].id == pin->id) {
    out[at].held = out[at].held && pin->held;
    return n;
  }
  if (n == max) return n;
  memmove(out + at + 1, out + at, (n - at) * sizeof *out);
  out[at] = *pin;
  return n + 1;
}

uint32_t weft_replicas_list_pins(weft_replicas *rs, weft_pin_info *out, uint32_t max) {
  if (rs->n == 1) return weft_engine_list_pins(rs->engine[0], out, max);
  weft_pin_info *own = weft_alloc((size_t)max + 1, sizeof *own);
  uint32_t n = 0;
  for (uint32_t i = 0; own != NULL && i < rs->n; i++) {
    uint32_t n_own = weft_engine_list_pins(rs->engine[i], own, max);
    for (uint32_t k = 0; k < n_own; k++) {
      if (works_or_none(rs, i, own[k].model)) n = merge_pin(out, n, max, &own[k]);
    }
  }
  weft_free(own);
  return n;
}

/* ---- counters -------------------------------------------------------------------------------- */

void weft_replicas_get_stats(weft_replicas *rs, weft_engine_stats *out) {
  weft_engine_stats part;
  weft_engine_get_stats(rs->engine[0], out);
  for (uint32_t i = 1; i < rs->n; i++) {
    weft_engine_get_stats(rs->engine[i], &part);
    weft_engine_stats_add(out, &part);
  }
}

void weft_replicas_get_request_stats(weft_replicas *rs, uint32_t model, weft_request_stats *out) {
  weft_request_stats part;
  weft_engine_get_request_stats(rs->engine[0], model, out);
  for (uint32_t i = 1; i < rs->n; i++) {
    weft_engine_get_request_stats(rs->engine[i], model, &part);
    weft_request_stats_add(out, &part);
  }
}

void weft_replicas_move_tokens(weft_replicas *rs, uint32_t tenant, int64_t n_tokens, uint64_t now_us) {
  weft_engine_move_tokens(rs->engine[0], tenant, n_tokens, now_us); /* all have the same places */
}

weft_tenant_left weft_replicas_get_tenant_left(weft_replicas *rs, uint32_t tenant, uint64_t now_us) {
  return weft_engine_get_tenant_left(rs->engine[0], tenant, now_us); /* all have the same places */
}

void weft_replicas_get_tenant_stats(weft_replicas *rs, uint32_t tenant, weft_tenant_stats *out) {
  weft_tenant_stats part;
  weft_engine_get_tenant_stats(rs->engine[0], tenant, out);
  for (uint32_t i = 1; i < rs->n; i++) {
    weft_engine_get_tenant_stats(rs->engine[i], tenant, &part);
    weft_tenant_stats_add(out, &part);
  }
}

void weft_replicas_get_group_usage(weft_replicas *rs, uint32_t model, weft_group_usage *out) {
  weft_group_usage part[WEFT_GROUPS_MAX] = {{0}};
  weft_engine_get_group_usage(rs->engine[0], model, out);
  for (uint32_t i = 1; i < rs->n; i++) {
    weft_engine_get_group_usage(rs->engine[i], model, part); /* [n_groups], the same number in each */
    for (uint32_t g = 0; g < WEFT_GROUPS_MAX; g++) weft_group_usage_add(&out[g], &part[g]);
  }
}
