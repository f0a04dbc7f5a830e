/* SPDX-License-Identifier: MIT */
#include "bench/sim/router.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lab/lab.h"
#include "bench/sim/assignment.h"

enum { POINTS = 128 }; /* of a replica */

static int by_place(const void *a, const void *b) {
  const weft_sim_point *x = a, *y = b;
  if (x->at != y->at) return x->at < y->at ? -1 : 1;
  return (x->replica > y->replica) - (x->replica < y->replica);
}

int weft_sim_router_open(const weft_lab_config *config, const weft_sim_load *load, weft_sim_router *out) {
  *out = (weft_sim_router){.n_replicas = config->replicas,
                           .n_blocks = config->router_blocks,
                           .shared_cache = config->product.shared_cache,
                           .bound = (double)config->router_bound};
  const char *name = config->router == NULL ? "hash" : config->router;
  out->round_robin = strcmp(name, "round-robin") == 0;
  out->by_prefix = strcmp(name, "prefix") == 0;
  out->canvas_steps = config->canvas_steps;
  if (config->replay != NULL && config->router != NULL) {
    return weft_cli_fail(WEFT_EXIT_USAGE, "sim: --replay and --router exclude each other");
  }
  if (!out->round_robin && !out->by_prefix && strcmp(name, "hash") != 0) {
    return weft_cli_fail(WEFT_EXIT_USAGE, "sim: --router '%s' must be hash, round-robin or prefix", name);
  }
  if (out->by_prefix && out->n_replicas > WEFT_REPLICAS_MAX) {
    return weft_cli_fail(WEFT_EXIT_USAGE, "sim: --router prefix serves at most %d replicas, not %u", WEFT_REPLICAS_MAX,
                         out->n_replicas);
  }
  if (out->by_prefix && weft_sent_open(&out->sent) != WEFT_OK)
    return weft_cli_fail(WEFT_EXIT_RUNTIME, "sim: no memory for the router");
  out->n_points = POINTS * out->n_replicas;
  out->point = weft_alloc(out->n_points, sizeof *out->point);
  if (out->point == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "sim: no memory for the router");
  for (uint32_t i = 0; i < out->n_points; i++) {
    out->point[i] = (weft_sim_point){.at = weft_mix64(weft_mix64(i / POINTS + 1) + i % POINTS), .replica = i / POINTS};
  }
  qsort(out->point, out->n_points, sizeof *out->point, by_place);
  return config->replay == NULL ? 0 : weft_sim_assignment_read(config->replay, load->n, out->n_replicas, &out->replay);
}

void weft_sim_router_close(weft_sim_router *router) {
  weft_sent_close(&router->sent);
  weft_free(router->point);
  weft_free(router->replay);
  router->replay = NULL;
  router->point = NULL;
}

/* The last block of a prompt may be partial: the next turn has another one there. */
static uint64_t key_of(const weft_sim_router *r, const weft_sim_load *load, const weft_sim_item *item) {
  uint32_t n = item->n_prompt / WEFT_SIM_BLOCK;
  if (n > r->n_blocks) n = r->n_blocks;
  if (n == 0) n = 1;
  uint64_t domain = r->shared_cache ? 0 : item->tenant + 1;
  uint64_t key = weft_mix64((uint64_t)item->model << 32 | domain);
  for (uint32_t i = 0; i < n; i++) key = weft_mix64(key ^ weft_mix64(load->id[item->first_id + i] + 1));
  return key;
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

static uint32_t by_hash(weft_sim_router *r, uint64_t key) {
  uint32_t most = (uint32_t)ceil(r->bound * (r->n_live + 1) / r->n_replicas);
  uint32_t first = first_point(r, key);
  for (uint32_t i = 0; i < r->n_points; i++) {
    uint32_t at = r->point[(first + i) % r->n_points].replica;
    if (r->load[at] >= most) continue;
    r->n_spilled += at != r->point[first % r->n_points].replica;
    return at;
  }
  return r->point[first % r->n_points].replica; /* not reached: bound >= 1 leaves room somewhere */
}

/* As weft_engine_rows counts them. */
static uint64_t rows_of(const weft_sim_router *r, const weft_sim_item *item) {
  return item->n_prompt + (uint64_t)item->n_answer * (item->diffusion ? r->canvas_steps + 1 : 1);
}

static uint32_t by_prefix(weft_sim_router *r, const weft_sim_load *load, const weft_sim_item *item,
                          const weft_sent_pool *pool, int32_t *prompt) {
  const weft_sent_prompt sought = {.model = item->model,
                                   .domain = {.low = r->shared_cache ? 0 : item->tenant + 1},
                                   .tokens = prompt,
                                   .n_tokens = item->n_prompt};
  weft_replica_view view[WEFT_REPLICAS_MAX];
  uint32_t n_found[WEFT_REPLICAS_MAX];
  uint64_t n_rows = rows_of(r, item);
  weft_sim_load_prompt(load, item, prompt);
  weft_sent_find(&r->sent, &sought, pool, r->n_replicas, n_found);
  for (uint32_t i = 0; i < r->n_replicas; i++) {
    view[i] = (weft_replica_view){.works = true,
                                  .has_room = true,
                                  .all = r->all[i],
                                  .own = r->own[i][item->tenant],
                                  .n_given = r->n_given[i],
                                  .n_found = n_found[i]};
  }
  uint32_t at = weft_replica_choose(view, r->n_replicas);
  weft_sent_note(&r->sent, &sought, &pool[at], at);
  r->all[at].n_rows += n_rows;
  r->all[at].n_requests += 1;
  r->own[at][item->tenant].n_rows += n_rows;
  r->own[at][item->tenant].n_requests += 1;
  r->n_given[at] += n_rows;
  return at;
}

uint32_t weft_sim_router_take(weft_sim_router *r, const weft_sim_load *load, const weft_sim_item *item,
                              const weft_sent_pool *pool, int32_t *prompt) {
  uint32_t at = r->replay != NULL ? r->replay[item - load->item]
                : r->round_robin  ? r->next++ % r->n_replicas
                : r->by_prefix    ? by_prefix(r, load, item, pool, prompt)
                                  : by_hash(r, key_of(r, load, item));
  r->load[at] += 1;
  r->n_live += 1;
  return at;
}

void weft_sim_router_ended(weft_sim_router *r, uint32_t replica, const weft_sim_item *item) {
  r->load[replica] -= 1;
  r->n_live -= 1;
  if (!r->by_prefix) return;
  r->all[replica].n_rows -= rows_of(r, item);
  r->all[replica].n_requests -= 1;
  r->own[replica][item->tenant].n_rows -= rows_of(r, item);
  r->own[replica][item->tenant].n_requests -= 1;
}
