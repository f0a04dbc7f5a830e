/* SPDX-License-Identifier: MIT */
#include "scheduler/step.h"

#include <string.h>

#include "base/check.h"
#include "scheduler/admission.h"
#include "scheduler/apply.h"
#include "scheduler/copies.h"
#include "scheduler/guests.h"
#include "scheduler/lifecycle.h"
#include "scheduler/pins.h"
#include "scheduler/planner.h"
#include "scheduler/pool_size.h"
#include "scheduler/prefix_feed.h"
#include "scheduler/runs.h"
#include "scheduler/snapshot.h"
#include "scheduler/visit.h"
#include "scheduler/waiting.h"
#include "scheduler/watch.h"

/* ---- what came from outside ------------------------------------------------------------------ */

/* Requests that are older than a smaller limit of blocks may need more than it, so until they have ended the limit that
 * they were judged by holds. What a request has as its rank follows its tenant's class. */
static void change_tenant(weft_engine *e, const weft_tenant_change *change) {
  weft_tenant_config config = change->config;
  const weft_tenant_config before = e->tenants.tenant[change->tenant].config;
  uint32_t now = before.blocks_max;
  bool smaller = config.blocks_max > 0 && (now == 0 || now > config.blocks_max);
  if (smaller && !change->none_old) config.blocks_max = now;
  (void)pthread_mutex_lock(&e->stats_mutex);
  weft_tenants_change(&e->tenants, change->tenant, &config);
  (void)pthread_mutex_unlock(&e->stats_mutex);
  weft_pager_set_owner_limit(e->pager, change->tenant, config.blocks_max);
  for (uint32_t i = 0; i < e->n_running; i++) {
    if (e->ranked[i]->tenant == change->tenant)
      e->rank[i].priority = weft_tenants_rank(&e->tenants, e->ranked[i]).priority;
  }
  if (memcmp(&before, &e->tenants.tenant[change->tenant].config, sizeof before) == 0) return;
  e->claims.tenant[change->tenant].limited = 0;
  e->n_changes += 1;
}

static void take_inbox(weft_engine *e) {
  weft_inbox_notes notes;
  weft_link *link;
  weft_inbox_take(&e->inbox, &notes);
  for (uint32_t i = 0; i < notes.n_changes; i++) change_tenant(e, &notes.change[i]);
  while ((link = weft_list_pop_front(&notes.evicted)) != NULL) {
    weft_request *r = WEFT_OF_LINK(link, weft_request, evicted_link);
    r->turned_away = true;
    if (r->accepted) weft_lifecycle_evict(e, r); /* else it is among the submitted ones */
  }
  for (weft_request *r = notes.submitted, *next; r != NULL; r = next) {
    next = r->inbox_next;
    weft_lifecycle_accept(e, r);
  }
  for (weft_request *r = notes.cancelled, *next; r != NULL; r = next) {
    next = r->cancel_next;
    if (r->finish == WEFT_FINISH_NONE) weft_lifecycle_finish(e, r, WEFT_FINISH_CANCELLED, NULL);
    weft_request_unref(r);
  }
  if (notes.reset_cache) {
    weft_pins_let_go(e, UINT32_MAX);
    weft_pager_reset_cache(e->pager);
    e->n_changes += 1; /* so that the copy of the statistics is taken again, also where no request runs */
  }
}

static void expire_deadlines(weft_engine *e) {
  weft_pins_expire(e);
  weft_request *r;
  while ((r = weft_deadlines_expired(&e->deadlines, e->now_us)) != NULL) {
    weft_lifecycle_finish(e, r, WEFT_FINISH_DEADLINE, NULL);
  }
}

/* ---- launch ---------------------------------------------------------------------------------- */

/* What a run gives is known when it has landed. A step that was planned before would be without its requests, and
 * without those that wait to have runs; so with one stage the lane waits, and its requests stay in the same steps. */
static bool waits_for_run(weft_engine *e, weft_lane *lane) {
  if (lane->n_stages > 1) return false;
  for (uint32_t i = 0; i < e->n_flight; i++) {
    const weft_step_plan *plan = &e->plan[(e->first_flight + i) % e->depth];
    if (plan->lane == lane->index && plan->n_rows_of[WEFT_WORK_VERIFY] > 0) return true;
  }
  return weft_runs_wait(e, lane);
}

static uint64_t lanes_with_work(weft_engine *e) {
  uint64_t bits = 0;
  for (uint32_t i = 0; i < e->n_lanes; i++) {
    weft_lane *lane = &e->lane[i];
    bool work = !lane->broken && lane->n_in_flight < lane->info->depth && weft_lane_n_requests(lane) > 0;
    bits |= (uint64_t)(work && !waits_for_run(e, lane)) << i;
  }
  return bits;
}

static void count_step(weft_engine *e, const weft_step_plan *plan) {
  weft_engine_stats *s = &e->stats;
  const uint32_t *rows = plan->n_rows_of;
  s->n_steps += 1;
  s->n_rows += plan->n_rows;
  s->n_prefill_rows += rows[WEFT_WORK_PREFILL];
  s->n_decode_rows += rows[WEFT_WORK_DECODE] + rows[WEFT_WORK_VERIFY];
  s->n_commit_rows += rows[WEFT_WORK_COMMIT];
  s->n_canvas_rows += rows[WEFT_WORK_DENOISE];
  bool causal = rows[WEFT_WORK_PREFILL] + rows[WEFT_WORK_DECODE] + rows[WEFT_WORK_VERIFY] > 0;
  if (causal && rows[WEFT_WORK_DENOISE] > 0) s->n_mixed_steps += 1;
  if (s->n_steps > 1 && plan->lane != e->last_lane) s->n_switches += 1;
  e->last_lane = plan->lane;
}

/* A lane with work that is called out of its turn (weft_admission_call). Where a tenant on another lane is further
 * behind than the one that calls, it is that lane: else the caller would get ahead of that tenant by all its calls.
 * WEFT_POLICY_NONE: none is called, or the lane whose turn it is was passed over WEFT_CALLS_MAX times. */
static uint32_t called_lane(const weft_engine *e, uint64_t lanes) {
  uint32_t called = WEFT_POLICY_NONE;
  uint64_t least = UINT64_MAX;
  if ((lanes & (lanes - 1)) == 0 || e->n_called == WEFT_CALLS_MAX) return called;
  for (uint32_t i = 0; i < e->n_lanes; i++) {
    uint64_t clock = (lanes >> i & 1) != 0 ? weft_admission_call(e, &e->lane[i]) : UINT64_MAX;
    if (clock < least) least = clock, called = i;
  }
  for (uint32_t i = 0; least < UINT64_MAX - 1 && i < e->n_lanes; i++) {
    uint64_t clock = (lanes >> i & 1) != 0 ? weft_admission_behind(e, &e->lane[i], least) : UINT64_MAX;
    if (clock < least) least = clock, called = i;
  }
  return called;
}

/* Which lane's turn it is (policy.h). A lane that has nothing to do saves up no device time. */
static uint32_t next_turn(weft_engine *e, uint64_t lanes) {
  double used_us[WEFT_MODELS_MAX];
  for (uint32_t i = 0; i < e->n_lanes; i++) {
    weft_lane *lane = &e->lane[i];
    bool idle = weft_lane_n_requests(lane) == 0;
    if (idle && lane->used_us < e->turn_us) lane->used_us = e->turn_us;
    used_us[i] = lane->used_us;
  }
  return weft_policy_turn(e->turn, used_us, lanes, e->n_lanes, (double)e->config.slice_us);
}

/* A lane that is called out of its turn does not end another one's turn. */
static void take_turn(weft_engine *e, weft_lane *lane, const weft_step_plan *plan) {
  e->n_called = plan->called ? e->n_called + 1 : 0;
  if (!plan->called) {
    e->turn = lane->index;
    if (e->turn_us < lane->used_us) e->turn_us = lane->used_us;
  }
  lane->used_us += plan->predicted_us; /* put right when it has landed */
}

static bool submit_step(weft_engine *e, weft_lane *lane, weft_step_plan *plan) {
  weft_batch batch = weft_batcher_build(&lane->batcher, plan, e->pager, lane->info, lane->n_batches);
  uint64_t start_ns = weft_clock_ns();
  plan->launched_us = weft_present_us(e);
  weft_status status = lane->runner->ops->submit(lane->runner, &batch);
  e->runner_ns += weft_clock_ns() - start_ns;
  plan->enqueued_us = weft_present_us(e);
  weft_copies_hear(e);
  if (status != WEFT_OK) {
    weft_lifecycle_break(e, lane, status, "the start of a step");
    return false;
  }
  lane->n_batches += 1;
  lane->n_in_flight += 1;
  e->n_flight += 1;
  e->pool.n_submitted += 1;
  if (plan->n_rows == 0) return true;
  count_step(e, plan);
  take_turn(e, lane, plan);
  return true;
}

/* Submits a step without rows, so that copies to and from the file begin: the requests that wait for them may be the
 * only ones there are. */
static bool launch_moves(weft_engine *e) {
  if (weft_pager_moves_waiting(e->pager) == 0) return false;
  for (uint32_t i = 0; i < e->n_lanes; i++) {
    weft_lane *lane = &e->lane[i];
    if (lane->broken || lane->stay == WEFT_STAY_AWAY || lane->n_in_flight == lane->info->depth) continue;
    weft_step_plan *plan = weft_plan_in_flight(e, e->n_flight);
    e->n_plans += 1;
    weft_plan_begin(plan, e->stats.n_steps + 1, i);
    if (submit_step(e, lane, plan)) return true;
  }
  return false;
}

static bool launch_rows(weft_engine *e) {
  uint64_t lanes = lanes_with_work(e);
  while (lanes != 0) {
    uint32_t turn = next_turn(e, lanes), called = called_lane(e, lanes),
             at = called != WEFT_POLICY_NONE ? called : turn;
    lanes &= ~(UINT64_C(1) << at);
    weft_lane *lane = &e->lane[at];
    weft_step_plan *plan = weft_plan_in_flight(e, e->n_flight);
    e->n_plans += 1;
    weft_plan_begin(plan, e->stats.n_steps + 1, at);
    plan->began_us = weft_present_us(e);
    plan->called = at != turn;
    weft_planner_run(e, lane, plan);
    if (lane->lost) {
      weft_lifecycle_break(e, lane, WEFT_E_DEVICE, "the start of a request");
      continue;
    }
    if (plan->n_rows > 0 && submit_step(e, lane, plan)) {
      uint64_t cost = weft_cost_in_rows(plan->n_rows, plan->shape.n_products);
      weft_forecast_step(&e->forecast, cost, e->now_us);
      return true;
    }
    if (lane->used_us < e->turn_us) lane->used_us = e->turn_us; /* it could not use its turn */
  }
  return false;
}

/* Where nothing else keeps the device busy, running requests get the pages that are set aside for the waiter: it did
 * not start. */
static bool launch_step(weft_engine *e) {
  bool launched = launch_rows(e);
  bool set_aside = e->claims.waiter != NULL && e->claims.waits_for == WEFT_DEBT_PAGES;
  if (!launched && set_aside && e->n_flight == 0 && e->n_running > 0) {
    e->claims.none_set_aside = true;
    launched = launch_rows(e);
    e->claims.none_set_aside = false;
  }
  return launched || launch_moves(e);
}

/* ---- land ------------------------------------------------------------------------------------ */

static void count_lane(weft_engine *e, const weft_step_plan *plan) {
  weft_lane_stats *lane = &e->stats.lane[plan->lane];
  uint64_t from = plan->launched_us > e->device_free_us ? plan->launched_us : e->device_free_us;
  lane->n_steps += 1;
  lane->n_rows += plan->n_rows;
  if (e->now_us > from) lane->busy_us += e->now_us - from;
  e->device_free_us = e->now_us;
}

static void learn_cost(weft_engine *e, const weft_step_plan *plan, uint64_t took_us) {
  weft_lane_stats *s = &e->stats.lane[plan->lane];
  if (took_us == 0) return;
  weft_cost_learn(&e->lane[plan->lane].cost, &plan->shape, (double)took_us);
  e->lane[plan->lane].used_us += (double)took_us - plan->predicted_us;
  if (plan->n_rows_of[WEFT_WORK_VERIFY] > 0) e->requests[plan->lane].drafts.verify_us += took_us;
  uint64_t predicted_us = (uint64_t)plan->predicted_us;
  s->measured_us += took_us;
  s->predicted_us += predicted_us;
  s->error_us += took_us > predicted_us ? took_us - predicted_us : predicted_us - took_us;
  uint32_t i = 0;
  while (i < WEFT_STEP_RATIOS - 1 && (double)took_us > plan->predicted_us * weft_step_ratio_bounds[i]) {
    i += 1;
  }
  s->ratio[i] += 1;
  s->ratio_sum += (double)took_us / plan->predicted_us;
}

static void record_step(weft_engine *e, const weft_step_plan *plan, uint64_t took_us, bool failed) {
  const weft_pager_stats pager = weft_pager_get_stats(e->pager);
  const weft_step_record record = {
      .number = e->recorder.n_steps + 1,
      .lane = plan->lane,
      .failed = failed,
      .began_us = plan->began_us,
      .launched_us = plan->launched_us,
      .enqueued_us = plan->enqueued_us,
      .collected_us = e->now_us,
      .applied_us = weft_present_us(e),
      .predicted_us = (uint64_t)plan->predicted_us,
      .measured_us = took_us,
      .resizing_us = e->pool.resizing_us,
      .n_segments = plan->n_causal + plan->n_canvas,
      .n_prefill_rows = plan->n_rows_of[WEFT_WORK_PREFILL],
      .n_decode_rows = plan->n_rows_of[WEFT_WORK_DECODE] + plan->n_rows_of[WEFT_WORK_VERIFY],
      .n_commit_rows = plan->n_rows_of[WEFT_WORK_COMMIT],
      .n_canvas_rows = plan->n_rows_of[WEFT_WORK_DENOISE],
      .n_running = e->n_running,
      .n_waiting = e->stats.n_waiting,
      .n_pages_free = pager.n_free,
      .n_pages_cached = pager.n_cached,
      .n_pages_pinned = pager.n_pinned,
      .n_preemptions = e->stats.n_preemptions,
      .n_evicted = pager.n_evicted};
  e->pool.resizing_us = 0;
  weft_recorder_add_step(&e->recorder, &record);
}

static void land_step(weft_engine *e) {
  WEFT_CHECK(e->n_flight > 0);
  weft_step_plan *plan = &e->plan[e->first_flight];
  weft_lane *lane = &e->lane[plan->lane];
  weft_step_result result = {0};
  weft_status status = WEFT_OK;
  if (!plan->dropped) {
    uint64_t start_ns = weft_clock_ns();
    status = lane->runner->ops->collect(lane->runner, &result);
    e->runner_ns += weft_clock_ns() - start_ns;
    e->now_us = weft_present_us(e);
    if (status == WEFT_OK) status = result.status;
    uint64_t number = lane->n_batches - lane->n_in_flight; /* of the oldest in flight */
    if (status == WEFT_OK && result.number != number) status = WEFT_E_INVALID;
    if (status == WEFT_OK && !weft_apply_step(e, plan, &result)) status = WEFT_E_INVALID;
    if (status != WEFT_OK) {
      weft_lifecycle_break(e, lane, status, "a step");
    } else {
      lane->n_in_flight -= 1;
      if (plan->n_rows > 0) weft_runs_landed(e, plan, &result);
      if (plan->n_rows > 0) learn_cost(e, plan, result.device_us);
    }
    if (plan->n_rows > 0) count_lane(e, plan);
    if (plan->n_rows > 0) record_step(e, plan, result.device_us, status != WEFT_OK);
  }
  e->first_flight = (e->first_flight + 1) % e->depth;
  e->n_flight -= 1;
  e->pool.n_landed += 1;
}

/* ---- a turn ---------------------------------------------------------------------------------- */

/* A clock of the host's own time: it stands still while a call of the runner is made. */
static uint64_t own_ns(const weft_engine *e) {
  return weft_clock_ns() - e->runner_ns;
}

static bool launch_counted(weft_engine *e) {
  bool hidden = e->n_flight > 0;
  uint64_t start_ns = own_ns(e);
  bool launched = launch_step(e);
  if (hidden) e->hidden_ns += own_ns(e) - start_ns;
  return launched;
}

static void land_counted(weft_engine *e) {
  bool hidden = e->n_flight > 1;
  uint64_t start_ns = own_ns(e);
  land_step(e);
  if (hidden) e->hidden_ns += own_ns(e) - start_ns;
}

weft_status weft_step_turn(weft_engine *e, uint64_t now_us) {
  uint64_t start_ns = weft_clock_ns();
  e->now_us = now_us;
  e->runner_ns = 0;
  uint64_t n_changes = e->n_changes;
  take_inbox(e);
  expire_deadlines(e);
  weft_guests_hear(e);
  weft_copies_hear(e);
  weft_waiting_wake_from_file(e);
  weft_waiting_end_follows(e);
  weft_pool_size_begin(e);
  bool launched = e->n_flight < e->depth && launch_counted(e);
  uint32_t keep = launched ? e->depth - 1 : 0;
  bool landed = e->n_flight > keep;
  while (e->n_flight > keep) land_counted(e);
  weft_pool_size_end(e);
  if (launched || landed) {
    uint64_t turn_ns = weft_clock_ns() - start_ns;
    e->step_ns += turn_ns;
    e->plan_ns += turn_ns - e->runner_ns;
  }
  if (e->feed != NULL) weft_prefix_feed_fill(e->feed, e->pager);
  if (!launched) weft_forecast_idle(&e->forecast);
  bool idle = !launched && !landed && e->n_changes == n_changes;
  if (!idle) weft_snapshot_take(e);
  weft_watch_turn(e, idle);
  bool visited = weft_visits_wanted(&e->visits), more = visited && weft_visits_turn(&e->visits, e->pager);
  if (visited) weft_snapshot_take(e);
  return idle && !more ? WEFT_AGAIN : WEFT_OK;
}

void weft_step_end_all(weft_engine *e) {
  while (e->n_flight > 0) land_step(e);
  take_inbox(e);
  for (uint32_t i = 0; i < e->n_lanes; i++) {
    weft_lane *lane = &e->lane[i];
    weft_request *r;
    weft_waiting_end_file(e, i);
    while ((r = weft_ready_any(&lane->ready)) != NULL) {
      weft_lifecycle_finish(e, r, WEFT_FINISH_CANCELLED, NULL);
    }
    while (!weft_list_empty(&lane->prefilling)) {
      r = WEFT_OF_LINK(lane->prefilling.next, weft_request, link);
      weft_lifecycle_finish(e, r, WEFT_FINISH_CANCELLED, NULL);
    }
    while ((r = weft_tenants_any(&e->tenants, i)) != NULL) {
      weft_lifecycle_finish(e, r, WEFT_FINISH_CANCELLED, NULL);
    }
    WEFT_CHECK(weft_list_empty(&lane->leaving));
  }
  weft_pins_clear(e);
  weft_snapshot_take(e);
}
