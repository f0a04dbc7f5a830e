/* SPDX-License-Identifier: MIT */
#include "scheduler/lifecycle.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "scheduler/cost.h"
#include "scheduler/latency.h"
#include "scheduler/pins.h"
#include "scheduler/pool_size.h"
#include "scheduler/snapshot.h"
#include "scheduler/waiting.h"

static weft_tenant_stats *tenant_stats(weft_engine *e, const weft_request *r) {
  weft_tenant *tenant = &e->tenants.tenant[r->tenant];
  tenant->changed = true;
  return &tenant->stats;
}

/* ---- waiting --------------------------------------------------------------------------------- */

void weft_lifecycle_accept(weft_engine *e, weft_request *r) {
  r->accepted = true;
  r->arrival = e->n_arrivals++;
  if (!r->is_draft) {
    e->stats.n_submitted += 1;
    tenant_stats(e, r)->n_submitted += 1;
  }
  if (r->params.deadline_us > 0) {
    weft_deadlines_add(&e->deadlines, r->params.deadline_us, r, &r->deadline_at);
  }
  if (r->head != r) {
    r->expected = true;
    r->head->n_expected += 1;
  }
  weft_waiting_enqueue(e, r);
  weft_pool_size_expect(e, r);
  weft_lane *lane = &e->lane[r->lane];
  if (lane->broken) {
    weft_lifecycle_finish(e, r, WEFT_FINISH_ERROR, lane->reason);
  } else if (r->turned_away) {
    weft_lifecycle_evict(e, r);
  }
}

/* The sibling started, or ended without having started. */
static void expect_no_more(weft_request *r) {
  if (!r->expected) return;
  r->expected = false;
  r->head->n_expected -= 1;
}

/* ---- running --------------------------------------------------------------------------------- */

static void count_start(weft_engine *e, weft_request *r) {
  r->admitted_once = true;
  r->usage.started_us = e->now_us;
  if (r->is_draft) return;
  uint64_t waited = e->now_us > r->usage.submitted_us ? e->now_us - r->usage.submitted_us : 0;
  weft_histogram_count_us(&e->requests[r->lane].queue, waited);
  e->requests[r->lane].n_prompt_tokens += r->params.n_tokens;
  weft_tenant_stats *own = tenant_stats(e, r);
  own->queue_us += waited;
  weft_latency_count(own->queue, waited);
  own->n_prompt_tokens += r->params.n_tokens;
  own->n_cached_tokens += r->usage.n_cached;
}

void weft_lifecycle_make_ready(weft_engine *e, weft_request *r) {
  weft_list_remove(&r->link);
  weft_ready_append(&e->lane[r->lane].ready, r);
  weft_tenants_ready(&e->tenants, r, true);
}

/* ---- canvases of preempted requests ---------------------------------------------------------- */

/* Saves the canvas of a preempted request in a place of the runner, if one is free; else the canvas starts again at
 * step 0. */
static void save_canvas(weft_engine *e, weft_lane *lane, weft_request *r) {
  if (!r->denoises || r->next_step == 0 || lane->n_free_saves == 0 || lane->broken) return;
  uint32_t save = lane->free_save[lane->n_free_saves - 1];
  if (lane->runner->ops->slot_save(lane->runner, r->slot, save) != WEFT_OK) return;
  lane->n_free_saves -= 1;
  r->save = save;
  r->saved_stay = lane->n_away;
  r->saved_step = r->next_step;
  e->stats.n_canvases_saved += 1;
}

static void drop_canvas(weft_engine *e, weft_request *r) {
  weft_lane *lane = &e->lane[r->lane];
  if (r->save == WEFT_SAVE_NONE) return;
  if (r->saved_stay == lane->n_away) lane->free_save[lane->n_free_saves++] = r->save;
  r->save = WEFT_SAVE_NONE;
}

/* Restores a saved canvas. One that cannot be restored starts again at step 0, where the same numbers are drawn. */
static void resume_canvas(weft_engine *e, weft_request *r) {
  weft_runner *runner = e->lane[r->lane].runner;
  r->next_step = 0;
  if (r->save == WEFT_SAVE_NONE) return;
  bool is_there = r->saved_stay == e->lane[r->lane].n_away; /* else its model has been away meanwhile */
  if (is_there && runner->ops->slot_restore(runner, r->slot, r->save) == WEFT_OK) {
    r->next_step = r->saved_step;
    e->stats.n_canvases_resumed += 1;
  }
  drop_canvas(e, r);
}

void weft_lifecycle_enter(weft_engine *e, weft_request *r) {
  weft_lane *lane = &e->lane[r->lane];
  if (!r->admitted_once) count_start(e, r);
  expect_no_more(r);
  if (r->head->trunk == NULL) r->head->trunk = r;
  e->n_changes += 1;
  r->state = WEFT_REQUEST_RUNNING;
  r->wait.need_pages = 0;
  r->wait.n_file_waits = 0;
  r->n_in_flight = r->n_pending = 0;
  r->next_block = r->block;
  resume_canvas(e, r);
  r->prefilling = r->n_planned < r->n_tokens;
  if (r->prefilling) {
    weft_list_push_back(&lane->prefilling, &r->link);
  } else {
    weft_lifecycle_make_ready(e, r);
  }
  r->rank_at = e->n_running;
  e->rank[e->n_running] = weft_tenants_rank(&e->tenants, r);
  e->ranked[e->n_running] = r;
  e->n_running += 1;
  e->n_busy = e->n_running;
  lane->n_running += 1;
  tenant_stats(e, r)->n_running += 1;
}

static void unrank_request(weft_engine *e, weft_request *r) {
  uint32_t last = e->n_running - 1;
  e->rank[r->rank_at] = e->rank[last];
  e->ranked[r->rank_at] = e->ranked[last];
  e->ranked[r->rank_at]->rank_at = r->rank_at;
  e->n_running = last;
  e->n_busy = last;
}

/* While siblings wait to fork the prompt of this request, the pager is told of its last row later: until then the
 * windows keep all keys that the siblings' own last row will see. */
static bool holds_last_row(const weft_request *r) {
  return r->head->n_expected > 0 && r->head->trunk == r && !r->denoises && r->n_valid == r->n_prompt;
}

static void commit_to(weft_engine *e, weft_request *r, uint32_t end) {
  if (end <= r->n_committed) return;
  weft_pager_commit(e->pager, r->seq, r->tokens + r->n_committed, end - r->n_committed);
  r->n_committed = end;
  weft_waiting_wake(e, r->seq, end);
}

void weft_lifecycle_commit(weft_engine *e, weft_request *r) {
  commit_to(e, r, holds_last_row(r) ? r->n_valid - 1 : r->n_valid);
}

void weft_lifecycle_commit_all(weft_engine *e, weft_request *r) {
  commit_to(e, r, r->n_valid);
}

void weft_lifecycle_take_back(weft_engine *e, weft_request *r) {
  weft_lifecycle_commit_all(e, r);
  weft_pager_trim(e->pager, r->seq);
  r->n_reserved = weft_pager_n_reserved(e->pager, r->seq);
}

static void leave_engine(weft_engine *e, weft_request *r) {
  weft_lane *lane = &e->lane[r->lane];
  WEFT_CHECK(r->n_in_flight == 0);
  weft_list_remove(&r->link);
  weft_lifecycle_commit(e, r);
  weft_pager_trim(e->pager, r->seq);
  /* The end of an answer, or of what a preempted request will ask for again, is worth keeping. */
  bool keep = r->finish == WEFT_FINISH_NONE || r->finish == WEFT_FINISH_STOP || r->finish == WEFT_FINISH_LENGTH;
  if (keep && !r->params.asked.no_cache) weft_pager_mark(e->pager, r->seq);
  if (r->finish == WEFT_FINISH_NONE) save_canvas(e, lane, r);
  weft_seq seq = r->seq;
  weft_pager_release(e->pager, seq);
  e->followers[seq].leader = NULL;
  r->seq = WEFT_SEQ_NONE;
  const weft_drafter *drafter = e->config.drafter;
  if (r->drafts && drafter != NULL && drafter->end != NULL) drafter->end(drafter->self, r->lane, r->slot);
  lane->runner->ops->slot_close(lane->runner, r->slot);
  lane->free_slot[lane->n_free_slots++] = r->slot;
  lane->n_running -= 1;
  tenant_stats(e, r)->n_running -= 1;
  weft_tenants_unlimit(&e->tenants);
  unrank_request(e, r);
  weft_pins_hold(e, r);
  if (r->finish == WEFT_FINISH_NONE) {
    r->state = WEFT_REQUEST_WAITING;
    weft_waiting_enqueue(e, r);
  } else {
    r->state = WEFT_REQUEST_DONE;
    weft_request_unref(r);
  }
  weft_waiting_wake(e, seq, UINT32_MAX);
}

void weft_lifecycle_starve(weft_engine *e, weft_request *r, bool within_tenant) {
  weft_request **starved = within_tenant ? &weft_claims_of(e, r)->starved : &e->claims.starved;
  weft_rank rank = weft_tenants_rank(&e->tenants, r);
  if (*starved != NULL) {
    weft_rank other = weft_tenants_rank(&e->tenants, *starved);
    if (!weft_policy_goes_before(&rank, &other)) return;
  }
  *starved = r;
}

void weft_lifecycle_fed(weft_engine *e, const weft_request *r) {
  weft_request **own = &weft_claims_of(e, r)->starved;
  if (e->claims.starved == r) e->claims.starved = NULL;
  if (*own == r) *own = NULL;
}

static void start_leaving(weft_engine *e, weft_request *r) {
  weft_lifecycle_fed(e, r);
  if (r->head->trunk == r) r->head->trunk = NULL;
  if (r->state == WEFT_REQUEST_LEAVING) return;
  e->n_changes += 1;
  r->state = WEFT_REQUEST_LEAVING;
  e->rank[r->rank_at].excluded = true;
  if (weft_ready_remove(&e->lane[r->lane].ready, r)) weft_tenants_ready(&e->tenants, r, false);
  weft_list_remove(&r->link);
  weft_list_push_back(&e->lane[r->lane].leaving, &r->link);
  e->claims.n_leaving += 1;
}

/* True: the request left. */
static bool try_leave(weft_engine *e, weft_request *r) {
  if (r->state != WEFT_REQUEST_LEAVING || r->n_in_flight > 0) return false;
  e->claims.n_leaving -= 1;
  leave_engine(e, r);
  return true;
}

bool weft_lifecycle_preempt(weft_engine *e, weft_request *r) {
  WEFT_CHECK(r->state == WEFT_REQUEST_RUNNING);
  e->claims.preempted = true;
  e->stats.n_preemptions += 1;
  e->requests[r->lane].n_preemptions += 1;
  r->usage.n_preemptions += 1;
  tenant_stats(e, r)->n_preemptions += 1;
  weft_inbox_preempt(&e->inbox, r);
  start_leaving(e, r);
  return try_leave(e, r);
}

void weft_lifecycle_landed_last(weft_engine *e, weft_request *r) {
  (void)try_leave(e, r);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* How many of the tokens that its tenant's account gave for the request it did not use. */
static uint32_t tokens_unused(const weft_request *r) {
  if (r->is_draft) return 0;
  if (!r->admitted_once) return r->n_prompt + r->size.answer_max;
  return r->usage.n_cached + r->size.answer_max - r->n_answer;
}

static uint64_t cost_of_answer(const weft_request *r) {
  uint64_t n_rows = r->denoises ? (uint64_t)r->usage.n_denoise_steps * r->size.n_canvas : r->n_answer;
  return weft_cost_in_rows(n_rows, n_rows * r->n_tokens);
}

static void count_drafts(weft_draft_stats *all, const weft_draft_times *own) {
  weft_histogram_count_draft_us(&all->draft, own->draft_ns / 1000);
  weft_histogram_count_draft_us(&all->verify, own->verify_us);
  weft_histogram_count_draft_us(&all->commit, own->commit_ns / 1000);
  weft_histogram_count_draft_us(&all->back, own->back_ns / 1000);
}

static void count_finish(weft_engine *e, weft_request *r) {
  weft_usage *u = &r->usage;
  u->n_answer = r->n_answer;
  u->finished_us = e->now_us;
  if (r->is_draft) return;
  weft_request_stats *all = &e->requests[r->lane];
  all->n_finished[r->finish] += 1;
  weft_histogram_count_us(&all->e2e, u->finished_us > u->submitted_us ? u->finished_us - u->submitted_us : 0);
  tenant_stats(e, r)->n_finished += 1;
  if (r->admitted_once) weft_forecast_answer(&e->forecast, cost_of_answer(r));
  if (r->admitted_once) {
    weft_histogram_count_tokens(&all->prompt, r->params.n_tokens);
    weft_histogram_count_tokens(&all->answer, r->n_answer);
    weft_histogram_count_tokens(&all->asked, r->size.answer_max);
  }
  if (u->drafts.n_runs > 0) count_drafts(&all->drafts, &u->drafts);
  if (r->n_answer == 0) return;
  weft_histogram_count_us(&all->prefill, u->first_token_us - u->started_us);
  weft_histogram_count_us(&all->decode, u->finished_us - u->first_token_us);
  if (r->n_answer > 1) weft_histogram_count_us(&all->tpot, (u->finished_us - u->first_token_us) / (r->n_answer - 1));
}

static void record_request(weft_engine *e, const weft_request *r) {
  const weft_usage *u = &r->usage;
  const weft_request_record record = {.number = r->arrival,
                                      .lane = r->lane,
                                      .tenant = r->tenant,
                                      .canvas = r->denoises,
                                      .finish = r->finish,
                                      .n_prompt = u->n_prompt,
                                      .n_cached = u->n_cached,
                                      .n_answer = u->n_answer,
                                      .n_preemptions = u->n_preemptions,
                                      .submitted_us = u->submitted_us,
                                      .started_us = u->started_us,
                                      .first_token_us = u->first_token_us,
                                      .finished_us = u->finished_us};
  weft_recorder_add_request(&e->recorder, &record);
}

void weft_lifecycle_finish(weft_engine *e, weft_request *r, weft_finish finish, const char *reason) {
  WEFT_CHECK(r->finish == WEFT_FINISH_NONE);
  WEFT_CHECK(finish != WEFT_FINISH_NONE);
  e->n_changes += 1;
  r->finish = (uint8_t)finish;
  if (r->drafts && e->draft_history != NULL)
    weft_draft_history_keep(e->draft_history, &r->drafting, r->params.domain, r->params.model, r->tokens, r->n_tokens);
  if (reason != NULL) (void)snprintf(r->error, sizeof r->error, "%s", reason);
  weft_deadlines_remove(&e->deadlines, &r->deadline_at);
  expect_no_more(r);
  count_finish(e, r);
  if (!r->is_draft) record_request(e, r);
  bool waited = r->state == WEFT_REQUEST_WAITING;
  if (waited) weft_waiting_dequeue(e, r);
  if (waited) drop_canvas(e, r);
  weft_inbox_end(&e->inbox, r, tokens_unused(r), e->now_us);
  weft_request_publish_end(r);
  weft_request_published();
  weft_request_tell(r);
  if (waited) {
    r->state = WEFT_REQUEST_DONE;
    weft_request_unref(r);
    return;
  }
  start_leaving(e, r);
  (void)try_leave(e, r);
}

void weft_lifecycle_evict(weft_engine *e, weft_request *r) {
  const weft_shortage shortage = {.why = WEFT_REFUSED_QUEUE, .n_own_places = 1};
  r->retry_us = weft_snapshot_retry_us(e, r->tenant, &shortage);
  weft_lifecycle_finish(e, r, WEFT_FINISH_EVICTED, NULL);
}

void weft_lifecycle_refuse(weft_engine *e, weft_lane *lane, const char *reason) {
  weft_request *r;
  weft_waiting_end_file(e, lane->index);
  while ((r = weft_tenants_any(&e->tenants, lane->index)) != NULL) {
    weft_lifecycle_finish(e, r, WEFT_FINISH_ERROR, reason);
  }
}

/* ---- a broken lane --------------------------------------------------------------------------- */

static void end_one(weft_engine *e, weft_request *r, const char *reason) {
  r->n_in_flight = 0;
  if (r->finish == WEFT_FINISH_NONE) {
    weft_lifecycle_finish(e, r, WEFT_FINISH_ERROR, reason);
  } else {
    (void)try_leave(e, r);
  }
}

static void end_list(weft_engine *e, weft_link *list, const char *reason) {
  while (!weft_list_empty(list)) {
    end_one(e, WEFT_OF_LINK(list->next, weft_request, link), reason);
  }
}

void weft_lifecycle_break(weft_engine *e, weft_lane *lane, weft_status status, const char *where) {
  if (lane->broken) return;
  (void)snprintf(lane->reason, sizeof lane->reason, "%s: %s during %s; restart to use it again", lane->info->name,
                 weft_status_text(status), where);
  lane->broken = true;
  weft_log(WEFT_LOG_ERROR, "%s", lane->reason);
  e->stats.broken_runners |= UINT64_C(1) << lane->index;
  weft_pins_let_go(e, lane->index);
  weft_snapshot_take(e); /* health is red before a client hears of it */
  for (uint32_t i = 0; i < e->n_flight; i++) {
    weft_step_plan *plan = weft_plan_in_flight(e, i);
    if (plan->lane == lane->index) plan->dropped = true;
  }
  lane->n_in_flight = 0;
  end_list(e, &lane->leaving, lane->reason);
  end_list(e, &lane->prefilling, lane->reason);
  weft_request *r;
  while ((r = weft_ready_any(&lane->ready)) != NULL) end_one(e, r, lane->reason);
  /* With the last sequence of the lane its followers went back to their queues. */
  weft_lifecycle_refuse(e, lane, lane->reason);
}
