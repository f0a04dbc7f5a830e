/* SPDX-License-Identifier: MIT */
/* All replicas in order of time: what happens to a replica (fate.h), an arrival, a cancel, or the turn of the replica
 * whose clock is behind all others, whichever comes first. Every request of the load ends once: it finishes, is refused
 * or cancelled, expires, or fails with its replica; it is refused where no replica serves. What the router knows at a
 * time is what happened before. With --clients request k arrives when a client is free for the k-th time: so many at
 * the start, then one for each request that ended. A turn begins before those who hear of its end ask again. */
#include <stdlib.h>
#include <string.h>

#include "bench/lab/lab.h"
#include "bench/sim/fate.h"
#include "bench/sim/replica.h"
#include "bench/sim/router.h"
#include "bench/sim/turns.h"

typedef struct sim_cancel {
  uint64_t at_us;
  uint32_t item;
} sim_cancel;

typedef struct sim_clock {
  weft_sim_world world;
  weft_sim_router router;
  weft_sim_turns turns;
  weft_sim_fates fates;
  weft_sim_replica *replica[WEFT_SIM_REPLICAS];
  weft_sim_load *load; /* the world's */
  sim_cancel *cancel;  /* in order of time */
  uint64_t *free_us;   /* with --clients: when a client was free, in order */
  uint32_t n_free;
  uint32_t n_cancels, next_cancel, next_item;
} sim_clock;

static int by_time(const void *a, const void *b) {
  const sim_cancel *x = a, *y = b;
  if (x->at_us != y->at_us) return x->at_us < y->at_us ? -1 : 1;
  return (x->item > y->item) - (x->item < y->item);
}

static void list_cancels(sim_clock *s) {
  const weft_sim_load *load = s->world.load;
  for (uint32_t i = 0; i < load->n; i++) {
    const weft_sim_item *item = &load->item[i];
    if (item->cancel_us == 0) continue;
    s->cancel[s->n_cancels++] = (sim_cancel){.at_us = item->at_us + item->cancel_us, .item = i};
  }
  qsort(s->cancel, s->n_cancels, sizeof *s->cancel, by_time);
}

static weft_status open_clock(sim_clock *s, weft_error *error) {
  const weft_sim_load *load = s->world.load;
  weft_sim_run *run = s->world.run;
  bool present[WEFT_SIM_TENANTS] = {false};
  for (uint32_t i = 0; i < load->n; i++) {
    s->world.n_present += !present[load->item[i].tenant];
    present[load->item[i].tenant] = true;
  }
  run->outcome = weft_alloc(load->n, sizeof *run->outcome);
  run->replica = weft_alloc(run->n_replicas, sizeof *run->replica);
  s->world.request = weft_alloc(load->n, sizeof *s->world.request);
  s->world.prompt = weft_alloc(load->longest, sizeof *s->world.prompt);
  s->cancel = weft_alloc(load->n, sizeof *s->cancel);
  s->free_us = weft_alloc(load->n, sizeof *s->free_us);
  if (run->outcome == NULL || run->replica == NULL || s->world.request == NULL || s->world.prompt == NULL ||
      s->cancel == NULL || s->free_us == NULL || !weft_sim_series_open(&run->series, load->n_tenants) ||
      !weft_sim_turns_open(&s->turns, run->n_replicas) || !weft_sim_fates_open(s->world.config, &s->fates)) {
    return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for %u requests", load->n);
  }
  list_cancels(s);
  uint32_t n_clients = s->world.config->clients;
  if (n_clients > 0 && s->n_cancels > 0) {
    return weft_fail(error, WEFT_E_INVALID,
                     "--clients does not go with requests that are cancelled: leave one of them out");
  }
  s->n_free = n_clients < load->n ? n_clients : load->n; /* all at 0 */
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < run->n_replicas && status == WEFT_OK; i++) {
    status = weft_sim_replica_open(&s->world, i, &s->replica[i], error);
  }
  return status;
}

static void close_clock(sim_clock *s) {
  for (uint32_t i = 0; s->world.request != NULL && i < s->world.load->n; i++) {
    weft_sim_replica_release(s->world.request[i].replica, i);
  }
  for (uint32_t i = 0; i < s->world.run->n_replicas; i++) weft_sim_replica_close(s->replica[i]);
  weft_sim_router_close(&s->router);
  weft_sim_turns_close(&s->turns);
  weft_sim_fates_close(&s->fates);
  weft_free(s->world.request);
  weft_free(s->world.prompt);
  weft_free(s->cancel);
  weft_free(s->free_us);
}

static void close_groups(weft_sim_groups *g) {
  weft_free(g->item);
  weft_free(g->first);
  *g = (weft_sim_groups){0};
}

void weft_sim_run_close(weft_sim_run *run) {
  weft_free(run->outcome);
  weft_free(run->replica);
  weft_sim_series_close(&run->series);
  close_groups(&run->by_replica);
  close_groups(&run->by_tenant);
  run->outcome = NULL;
  run->replica = NULL;
}

/* ---- events ---------------------------------------------------------------------------------- */

/* After whatever may have changed when its next turn is. */
static void renew_turn(sim_clock *s, uint32_t replica) {
  weft_sim_turns_set(&s->turns, replica, weft_sim_replica_next(s->replica[replica]));
}

/* The router knows it, and so does its client. */
static void end_request(sim_clock *s, uint32_t item, uint32_t replica, uint64_t now_us) {
  if (replica != WEFT_SIM_NOBODY) weft_sim_router_ended(&s->router, replica, item, now_us);
  double think_us = 1000.0 * (double)s->world.config->think_ms;
  if (s->world.config->clients > 0 && s->n_free < s->load->n)
    s->free_us[s->n_free++] = now_us + (uint64_t)(think_us + 0.5);
}

/* UINT64_MAX: not before something else happens. */
static uint64_t next_arrival(const sim_clock *s) {
  if (s->next_item >= s->load->n) return UINT64_MAX;
  if (s->world.config->clients == 0) return s->load->item[s->next_item].at_us;
  return s->next_item < s->n_free ? s->free_us[s->next_item] : UINT64_MAX;
}

static weft_status arrive_next(sim_clock *s, weft_error *error) {
  uint32_t at = s->next_item;
  s->load->item[at].at_us = next_arrival(s);
  s->next_item += 1;
  const weft_sim_item *item = &s->world.load->item[at];
  weft_sent_pool pool[WEFT_REPLICAS_MAX];
  for (uint32_t i = 0; s->router.rule == WEFT_SIM_PREFIX && i < s->world.run->n_replicas; i++) {
    pool[i] = weft_sim_replica_pool(s->replica[i]);
  }
  uint32_t replica = weft_sim_router_take(&s->router, at, pool, s->world.prompt);
  if (replica == WEFT_SIM_NOBODY) {
    s->world.run->outcome[at].refused = true;
    end_request(s, at, WEFT_SIM_NOBODY, item->at_us);
    return WEFT_OK;
  }
  weft_status status = weft_sim_replica_submit(s->replica[replica], at, error);
  if (s->world.run->outcome[at].refused) end_request(s, at, replica, item->at_us);
  renew_turn(s, replica);
  return status;
}

static void cancel_next(sim_clock *s) {
  uint32_t item = s->cancel[s->next_cancel++].item;
  weft_sim_replica *replica = s->world.request[item].replica;
  if (replica != NULL) weft_sim_replica_cancel(replica, item);
}

/* What ended in the turn before is known to others from its end on, which is now. */
static void settle_replica(sim_clock *s, uint32_t at, uint64_t now_us) {
  uint32_t ended;
  while ((ended = weft_sim_replica_settle(s->replica[at])) != 0) end_request(s, ended - 1, at, now_us);
}

/* What it had is gone, and it is away for a while. */
static weft_status leave_duty(sim_clock *s, uint32_t at, uint64_t now_us, weft_error *error) {
  weft_status status = weft_sim_replica_renew(s->replica[at], now_us, error);
  weft_sim_fates_gone(&s->fates, at, now_us);
  weft_sim_router_pass_over(&s->router, at, true);
  renew_turn(s, at);
  return status;
}

/* One that is being drained goes when it has nothing more. */
static weft_status turn_replica(sim_clock *s, uint32_t at, weft_error *error) {
  uint64_t now_us = weft_sim_replica_next(s->replica[at]);
  settle_replica(s, at, now_us);
  if (s->fates.duty[at] == WEFT_SIM_LEAVING && weft_sim_replica_live(s->replica[at]) == 0) {
    s->world.run->replica[at].n_replaced += 1;
    return leave_duty(s, at, now_us, error);
  }
  weft_status status = weft_sim_replica_turn(s->replica[at], error);
  renew_turn(s, at);
  return status;
}

/* All that runs there fails. In the middle of a step it waits for the end of the step. */
static weft_status fail_replica(sim_clock *s, uint32_t at, uint64_t now_us, weft_error *error) {
  uint64_t turn_us = weft_sim_replica_next(s->replica[at]);
  if (turn_us != UINT64_MAX && turn_us > now_us) {
    weft_sim_fates_put_off(&s->fates, at, turn_us);
    return WEFT_OK;
  }
  settle_replica(s, at, now_us);
  for (uint32_t i = 0; i < s->next_item; i++) {
    if (s->world.request[i].replica == s->replica[at]) weft_sim_replica_break(s->replica[at], i, now_us);
  }
  settle_replica(s, at, now_us);
  s->world.run->replica[at].n_failures += 1;
  return leave_duty(s, at, now_us, error);
}

static weft_status meet_fate(sim_clock *s, weft_error *error) {
  uint64_t now_us = weft_sim_fates_next(&s->fates);
  weft_sim_fate fate = weft_sim_fates_take(&s->fates);
  switch (fate.kind) {
    case WEFT_SIM_NOTHING:
      return WEFT_OK;
    case WEFT_SIM_FAILS:
      return fail_replica(s, fate.replica, now_us, error);
    case WEFT_SIM_RETURNS:
      weft_sim_router_pass_over(&s->router, fate.replica, false);
      return WEFT_OK;
    case WEFT_SIM_LEAVES:
      break;
  }
  weft_sim_router_pass_over(&s->router, fate.replica, true);
  if (weft_sim_replica_next(s->replica[fate.replica]) != UINT64_MAX) return WEFT_OK; /* it goes at the end of a turn */
  s->world.run->replica[fate.replica].n_replaced += 1;
  return leave_duty(s, fate.replica, now_us, error);
}

/* False: everything is over. */
static bool next_event(sim_clock *s, weft_status *status, weft_error *error) {
  uint32_t first = weft_sim_turns_first(&s->turns);
  uint64_t turn_us = s->turns.at_us[first], cancel_us = UINT64_MAX, item_us = next_arrival(s);
  uint64_t fate_us = weft_sim_fates_next(&s->fates);
  if (s->next_cancel < s->n_cancels) cancel_us = s->cancel[s->next_cancel].at_us;
  bool over = turn_us == UINT64_MAX && cancel_us == UINT64_MAX && item_us == UINT64_MAX;
  if (!over && fate_us <= turn_us && fate_us <= cancel_us && fate_us <= item_us) {
    *status = meet_fate(s, error);
    return true;
  }
  if (item_us <= turn_us && item_us <= cancel_us && item_us != UINT64_MAX) {
    *status = arrive_next(s, error);
  } else if (cancel_us <= turn_us && cancel_us != UINT64_MAX) {
    cancel_next(s);
  } else if (turn_us != UINT64_MAX) {
    *status = turn_replica(s, first, error);
  } else {
    return false;
  }
  return true;
}

/* ---- the sum --------------------------------------------------------------------------------- */

static void add_counts(weft_sim_counts *all, const weft_sim_counts *one) {
  if (one->end_us > all->end_us) all->end_us = one->end_us;
  all->busy_us += one->busy_us;
  all->backlog_us += one->backlog_us;
  all->pool_page_us += one->pool_page_us;
  all->n_pages += one->n_pages;
  all->n_pages_peak += one->n_pages_peak;
  all->n_steps += one->n_steps;
  all->n_mixed_steps += one->n_mixed_steps;
  all->n_switches += one->n_switches;
  all->n_rows += one->n_rows;
  all->n_void_rows += one->n_void_rows;
  all->n_preemptions += one->n_preemptions;
  all->n_pages_out += one->n_pages_out;
  all->n_pages_back += one->n_pages_back;
  all->n_pages_evicted += one->n_pages_evicted;
  all->n_event_batches += one->n_event_batches;
  all->n_events += one->n_events;
  all->n_blocks_told += one->n_blocks_told;
  all->n_event_bytes += one->n_event_bytes;
  all->n_failures += one->n_failures;
  all->n_replaced += one->n_replaced;
  all->measured_us += one->measured_us;
  all->error_us += one->error_us;
  all->n_prefill_rows += one->n_prefill_rows;
  all->n_denoise_steps += one->n_denoise_steps;
  for (uint32_t t = 0; t < WEFT_SIM_TENANTS; t++) {
    all->rows[t] += one->rows[t];
    all->service_us[t] += one->service_us[t];
    all->service_backlog[t] += one->service_backlog[t];
  }
}

static uint32_t group_of(const sim_clock *s, bool by_replica, uint32_t item) {
  return by_replica ? s->world.run->outcome[item].replica : s->world.load->item[item].tenant;
}

/* Counts, adds up, then places: what the report asks of one group costs no look at the others. */
static bool group_requests(const sim_clock *s, bool by_replica, uint32_t n_groups, weft_sim_groups *out) {
  uint32_t n = s->world.load->n;
  out->item = weft_alloc(n, sizeof *out->item);
  out->first = weft_alloc((size_t)n_groups + 2, sizeof *out->first);
  if (out->item == NULL || out->first == NULL) return false;
  for (uint32_t i = 0; i < n; i++) out->first[group_of(s, by_replica, i) + 2] += 1;
  for (uint32_t g = 2; g <= n_groups; g++) out->first[g + 1] += out->first[g];
  for (uint32_t i = 0; i < n; i++) out->item[out->first[group_of(s, by_replica, i) + 1]++] = i;
  return true;
}

static weft_status finish_run(sim_clock *s, weft_error *error) {
  weft_sim_run *run = s->world.run;
  uint64_t end_us = 0;
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < run->n_replicas; i++) {
    uint64_t at_us = weft_sim_replica_end(s->replica[i]);
    if (at_us > end_us) end_us = at_us;
  }
  for (uint32_t i = 0; i < run->n_replicas && status == WEFT_OK; i++) {
    status = weft_sim_replica_finish(s->replica[i], end_us, error);
    add_counts(&run->total, &run->replica[i]);
  }
  run->n_spilled = s->router.n_spilled;
  run->n_credited = s->router.n_credited;
  weft_sim_index_learn(&s->router.index, UINT64_MAX); /* what nobody asked for any more */
  run->n_index_most = s->router.index.n_most;
  run->upgraded_us = s->fates.upgraded_us;
  run->has_events = s->world.index != NULL;
  if (s->router.index.refused) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the router's index");
  if (!group_requests(s, true, run->n_replicas, &run->by_replica) ||
      !group_requests(s, false, s->world.load->n_tenants, &run->by_tenant)) {
    return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for %u requests", s->world.load->n);
  }
  return status;
}

int weft_sim_run_load(const weft_lab_config *config, const weft_sim_profile *profile, weft_sim_load *load,
                      weft_sim_run *out) {
  sim_clock s = {.load = load, .world = {.config = config, .profile = profile, .load = load, .run = out}};
  weft_error error = {{0}};
  out->n_replicas = config->replicas;
  weft_sim_names_open(config, profile, load, &s.world.names);
  int code = weft_sim_router_open(config, load, &s.world.names, &s.router);
  if (s.router.rule == WEFT_SIM_INDEX) s.world.index = &s.router.index;
  if (code != 0) {
    weft_sim_router_close(&s.router);
    return code;
  }
  weft_status status = open_clock(&s, &error);
  while (status == WEFT_OK && next_event(&s, &status, &error)) {
  }
  if (status == WEFT_OK) status = finish_run(&s, &error);
  close_clock(&s);
  return status == WEFT_OK ? 0 : weft_cli_fail(weft_cli_code(status), "sim: %s", error.text);
}
