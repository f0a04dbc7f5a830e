/* SPDX-License-Identifier: MIT */
#include "bench/sim/router.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lab/lab.h"
#include "bench/sim/assignment.h"

enum { POINTS = 128 /* of a replica */, COPIES_MAX = 64 };

static int by_place(const void *a, const void *b) {
  const weft_sim_point *x = a, *y = b;
  if (x->at != y->at) return x->at < y->at ? -1 : 1;
  return (x->replica > y->replica) - (x->replica < y->replica);
}

static int check_options(const weft_lab_config *c, const weft_sim_router *r) {
  if (c->replay != NULL && c->router != NULL) {
    return weft_cli_fail(WEFT_EXIT_USAGE, "sim: --replay and --router exclude each other");
  }
  if (r->rule == WEFT_SIM_PREFIX && r->n_replicas > WEFT_REPLICAS_MAX) {
    return weft_cli_fail(WEFT_EXIT_USAGE, "sim: --router prefix serves at most %d replicas, not %u", WEFT_REPLICAS_MAX,
                         r->n_replicas);
  }
  bool hashes = r->rule == WEFT_SIM_HASH && c->replay == NULL;
  const char *lost = c->copies > 1 && !hashes                           ? "copies"
                     : c->move_s > 0.0f && !hashes                      ? "move-s"
                     : c->index_lag_ms > 0 && r->rule != WEFT_SIM_INDEX ? "index-lag-ms"
                                                                        : NULL;
  if (lost == NULL) return 0;
  return weft_cli_fail(WEFT_EXIT_USAGE, "sim: --%s goes with --router %s alone", lost,
                       strcmp(lost, "index-lag-ms") == 0 ? "index" : "hash");
}

/* The rule of --router. False: there is no such. */
static bool read_rule(const char *name, weft_sim_rule *out) {
  static const char *const names[] = {"hash", "round-robin", "prefix", "index"};
  for (uint32_t i = 0; i < sizeof names / sizeof *names; i++) {
    *out = (weft_sim_rule)i;
    if (name == NULL || strcmp(name, names[i]) == 0) return true; /* hash by default */
  }
  return false;
}

static bool take_memory(weft_sim_router *r) {
  r->n_points = POINTS * r->n_replicas;
  r->point = weft_alloc(r->n_points, sizeof *r->point);
  r->ended = weft_alloc(r->requests->n, sizeof *r->ended);
  r->key = weft_alloc(r->requests->longest, sizeof *r->key);
  return r->point != NULL && r->ended != NULL && r->key != NULL &&
         (r->rule != WEFT_SIM_PREFIX || weft_sent_open(&r->sent) == WEFT_OK) &&
         (r->rule != WEFT_SIM_INDEX ||
          weft_sim_index_open((uint64_t)r->config->index_lag_ms * 1000, &r->index) == WEFT_OK);
}

int weft_sim_router_open(const weft_lab_config *config, const weft_sim_load *load, const weft_sim_names *names,
                         weft_sim_router *out) {
  *out = (weft_sim_router){.config = config,
                           .requests = load,
                           .n_replicas = config->replicas,
                           .n_serving = config->replicas,
                           .bound = (double)config->router_bound,
                           .names = names};
  if (!read_rule(config->router, &out->rule)) {
    return weft_cli_fail(WEFT_EXIT_USAGE, "sim: --router '%s' must be hash, round-robin, prefix or index",
                         config->router);
  }
  int code = check_options(config, out);
  if (code != 0) return code;
  if (!take_memory(out)) return weft_cli_fail(WEFT_EXIT_RUNTIME, "sim: no memory for the router");
  for (uint32_t i = 0; i < out->n_points; i++) {
    out->point[i] = (weft_sim_point){.at = weft_mix64(weft_mix64(i / POINTS + 1) + i % POINTS), .replica = i / POINTS};
  }
  qsort(out->point, out->n_points, sizeof *out->point, by_place);
  return config->replay == NULL ? 0 : weft_sim_assignment_read(config->replay, load->n, out->n_replicas, &out->replay);
}

void weft_sim_router_close(weft_sim_router *router) {
  weft_sent_close(&router->sent);
  weft_sim_index_close(&router->index);
  weft_free(router->point);
  weft_free(router->ended);
  weft_free(router->key);
  weft_free(router->replay);
  router->replay = NULL;
  router->point = NULL;
}

/* ---- hash ------------------------------------------------------------------------------------ */

/* How often a tenant has moved. */
static uint64_t moves_of(const weft_sim_router *r, const weft_sim_item *item) {
  double period_us = 1e6 * (double)r->config->move_s;
  if (period_us <= 0.0) return 0;
  weft_draw_key key = {
      .seed = r->config->product.sampling.seed, .purpose = WEFT_DRAW_TEST, .position = item->tenant, .step = 1u << 29};
  double begun = (double)(weft_draw_bits(&key) >> 11) * 0x1p-53;
  return (uint64_t)((double)item->at_us / period_us + begun);
}

/* The last block of a prompt may be partial: the next turn has another one there. */
static uint64_t key_of(const weft_sim_router *r, const weft_sim_item *item) {
  const weft_sim_load *load = r->requests;
  uint32_t n = item->n_prompt / load->block;
  if (n > r->config->router_blocks) n = r->config->router_blocks;
  if (n == 0) n = 1;
  uint64_t domain = r->config->product.shared_cache ? 0 : item->tenant + 1, n_moves = moves_of(r, item);
  uint64_t key = weft_mix64((uint64_t)item->model << 32 | domain);
  for (uint32_t i = 0; i < n; i++) key = weft_mix64(key ^ weft_mix64(load->id[item->first_id + i] + 1));
  return n_moves == 0 ? key : weft_mix64(key ^ weft_mix64(n_moves << 32 | (item->tenant + 1)));
}

static uint32_t first_point(const weft_sim_router *r, uint64_t key) {
  uint32_t low = 0, high = r->n_points;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (r->point[middle].at < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/* Most requests of a replica, with one more than there are. */
static uint32_t most_load(const weft_sim_router *r) {
  return (uint32_t)ceil(r->bound * (r->n_live + 1) / r->n_serving);
}

static bool is_among(const uint32_t *list, uint32_t n, uint32_t replica) {
  for (uint32_t i = 0; i < n; i++) {
    if (list[i] == replica) return true;
  }
  return false;
}

/* The first replicas from a key on that serve, at most `copies`. */
static uint32_t list_copies(const weft_sim_router *r, uint32_t first, uint32_t *list) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < r->n_points && n < r->config->copies; i++) {
    uint32_t at = r->point[(first + i) % r->n_points].replica;
    if (!r->passed_over[at] && !is_among(list, n, at)) list[n++] = at;
  }
  return n;
}

static uint32_t by_hash(weft_sim_router *r, const weft_sim_item *item) {
  uint32_t list[COPIES_MAX] = {0}, most = most_load(r), first = first_point(r, key_of(r, item));
  uint32_t n = list_copies(r, first, list), best = list[0];
  for (uint32_t i = 1; i < n; i++) {
    if (r->load[list[i]] < r->load[best]) best = list[i];
  }
  if (r->load[best] < most) return best;
  for (uint32_t i = 0; i < r->n_points; i++) {
    uint32_t at = r->point[(first + i) % r->n_points].replica;
    if (r->passed_over[at] || r->load[at] >= most) continue;
    r->n_spilled += 1;
    return at;
  }
  return best; /* not reached: bound >= 1 leaves room somewhere */
}

/* ---- index ----------------------------------------------------------------------------------- */

/* n_found: blocks of the prompt. */
static bool is_better(const weft_sim_router *r, const uint32_t *n_found, uint32_t a, uint32_t b) {
  if (n_found[a] != n_found[b]) return n_found[a] > n_found[b];
  if (r->load[a] != r->load[b]) return r->load[a] < r->load[b];
  return r->given[a] < r->given[b];
}

static uint32_t by_index(weft_sim_router *r, const weft_sim_item *item, int32_t *prompt) {
  uint32_t n_found[WEFT_SIM_REPLICAS], most = most_load(r), best = WEFT_SIM_NOBODY;
  weft_sim_load_prompt(r->requests, item, prompt);
  uint32_t n = weft_sim_names_keys(r->names, item, prompt, r->key);
  weft_sim_index_learn(&r->index, item->at_us);
  weft_sim_index_find(&r->index, r->key, n, r->n_replicas, n_found);
  for (uint32_t i = 0; i < r->n_replicas; i++) {
    if (r->passed_over[i] || r->load[i] >= most) continue;
    if (best == WEFT_SIM_NOBODY || is_better(r, n_found, i, best)) best = i;
  }
  if (best == WEFT_SIM_NOBODY) return best; /* not reached: bound >= 1 leaves room somewhere */
  r->n_credited += (uint64_t)n_found[best] * r->names->unit_tokens[item->model];
  r->given[best] += 1;
  return best;
}

/* ---- prefix ---------------------------------------------------------------------------------- */

/* As weft_engine_rows counts them. */
static uint64_t rows_of(const weft_sim_router *r, const weft_sim_item *item) {
  return item->n_prompt + (uint64_t)item->n_answer * (item->diffusion ? r->config->canvas_steps + 1 : 1);
}

static uint32_t by_prefix(weft_sim_router *r, const weft_sim_item *item, const weft_sent_pool *pool, int32_t *prompt) {
  const weft_sent_prompt sought = {.model = item->model,
                                   .domain = weft_sim_domain(r->config->product.shared_cache, item->tenant),
                                   .tokens = prompt,
                                   .n_tokens = item->n_prompt};
  weft_replica_view view[WEFT_REPLICAS_MAX];
  uint32_t n_found[WEFT_REPLICAS_MAX];
  uint64_t n_rows = rows_of(r, item);
  weft_sim_load_prompt(r->requests, item, prompt);
  weft_sent_find(&r->sent, &sought, pool, r->n_replicas, n_found);
  for (uint32_t i = 0; i < r->n_replicas; i++) {
    view[i] = (weft_replica_view){.works = !r->passed_over[i],
                                  .has_room = true,
                                  .all = r->all[i],
                                  .own = r->own[i][item->tenant],
                                  .n_given = r->given[i],
                                  .n_found = n_found[i]};
  }
  uint32_t at = weft_replica_choose(view, r->n_replicas);
  weft_sent_note(&r->sent, &sought, &pool[at], at);
  r->all[at].n_rows += n_rows;
  r->all[at].n_requests += 1;
  r->own[at][item->tenant].n_rows += n_rows;
  r->own[at][item->tenant].n_requests += 1;
  r->given[at] += n_rows;
  return at;
}

/* ---- all ------------------------------------------------------------------------------------- */

/* This one, or the next that serves. */
static uint32_t or_next(const weft_sim_router *r, uint32_t at) {
  while (r->passed_over[at]) at = (at + 1) % r->n_replicas;
  return at;
}

static void hear_end(weft_sim_router *r, const weft_sim_ended *end) {
  const weft_sim_item *item = &r->requests->item[end->item];
  r->load[end->replica] -= 1;
  r->n_live -= 1;
  if (r->rule != WEFT_SIM_PREFIX) return;
  r->all[end->replica].n_rows -= rows_of(r, item);
  r->all[end->replica].n_requests -= 1;
  r->own[end->replica][item->tenant].n_rows -= rows_of(r, item);
  r->own[end->replica][item->tenant].n_requests -= 1;
}

uint32_t weft_sim_router_take(weft_sim_router *r, uint32_t number, const weft_sent_pool *pool, int32_t *prompt) {
  const weft_sim_item *item = &r->requests->item[number];
  uint64_t lag_us = (uint64_t)r->config->router_lag_ms * 1000;
  while (r->n_heard < r->n_ended && r->ended[r->n_heard].at_us + lag_us <= item->at_us) {
    hear_end(r, &r->ended[r->n_heard++]);
  }
  if (r->n_serving == 0) return WEFT_SIM_NOBODY;
  uint32_t at = r->replay != NULL                 ? or_next(r, r->replay[number])
                : r->rule == WEFT_SIM_ROUND_ROBIN ? or_next(r, r->next++ % r->n_replicas)
                : r->rule == WEFT_SIM_PREFIX      ? by_prefix(r, item, pool, prompt)
                : r->rule == WEFT_SIM_INDEX       ? by_index(r, item, prompt)
                                                  : by_hash(r, item);
  r->load[at] += 1;
  r->n_live += 1;
  return at;
}

void weft_sim_router_ended(weft_sim_router *r, uint32_t replica, uint32_t item, uint64_t now_us) {
  r->ended[r->n_ended++] = (weft_sim_ended){.at_us = now_us, .replica = replica, .item = item};
}

void weft_sim_router_pass_over(weft_sim_router *r, uint32_t replica, bool passed_over) {
  if (r->passed_over[replica] == passed_over) return;
  r->passed_over[replica] = passed_over;
  if (passed_over) {
    r->n_serving -= 1;
  } else {
    r->n_serving += 1;
  }
}
