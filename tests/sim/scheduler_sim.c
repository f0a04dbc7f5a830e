/* SPDX-License-Identifier: MIT */
/* Simulation: the real engine and pager over fake runners under a virtual clock, one small random
 * world per seed (tests/support/sim_world.h).
 *
 *   test_sim_scheduler_sim                 seeds from 1, as many as tests/support/amount.h says
 *   test_sim_scheduler_sim --seed N        one of them, with what happened
 *   test_sim_scheduler_sim --seeds A..B
 *
 * Oracles: one final event each; an answer equals that of the same request alone (or is a prefix of
 * it when the request was ended from outside); everything free after drain; laws of the pager every
 * few steps; bounded number of steps; limits of tenants never exceeded; cancel within one step;
 * cached tokens only from the same sharing domain; the runner's contract kept; the fairness bound
 * in fair worlds. Choices of one prompt often come in one submission, all or none; the queue is often short: a tenant
 * within its share of it is never refused, and only what never ran is evicted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "scheduler/check.h"
#include "scheduler/engine.h"
#include "bench/doubles/fake_runner.h"
#include "tests/support/amount.h"
#include "tests/support/fake_solo.h"
#include "tests/support/queue_oracle.h"
#include "tests/support/service_watch.h"
#include "tests/support/sim_request.h"
#include "tests/support/sim_totals.h"
#include "tests/support/sim_world.h"
#include "tests/support/seeds.h"

/* ---- what is checked ------------------------------------------------------------------------- */

static void check_same_prefix(sim *s, const sim_request *r, uint32_t index) {
  if (r->n_tokens > r->solo.n) FAIL(s, "request %u: %u tokens, alone %u", index, r->n_tokens, r->solo.n);
  for (uint32_t i = 0; i < r->n_tokens; i++) {
    if (r->tokens[i] == r->solo.tokens[i]) continue;
    FAIL(s, "request %u: token %u of %u is %d, alone %d", index, i, r->n_tokens, r->tokens[i], r->solo.tokens[i]);
  }
}

static void check_end(sim *s, const sim_request *r, uint32_t index) {
  const weft_usage *u = &r->end.usage;
  check_same_prefix(s, r, index);
  if (u->n_answer != r->n_tokens) FAIL(s, "request %u: usage says %u tokens, %u came", index, u->n_answer, r->n_tokens);
  if (r->end.finish == WEFT_FINISH_CANCELLED && !r->cancelled) FAIL(s, "request %u: cancelled by nobody", index);
  if (r->end.finish == WEFT_FINISH_DEADLINE && r->params.deadline_us == 0) FAIL(s, "request %u: no deadline", index);
  if (r->end.finish == WEFT_FINISH_ERROR && r->end.error[0] == 0) FAIL(s, "request %u: error without words", index);
  if (r->end.finish == WEFT_FINISH_EVICTED && (u->started_us > 0 || r->n_tokens > 0 || r->end.retry_us == 0))
    FAIL(s, "request %u: evicted when it had started, or without an estimate", index);
  bool natural = r->end.finish == WEFT_FINISH_STOP || r->end.finish == WEFT_FINISH_LENGTH ||
                 (r->end.finish == WEFT_FINISH_ERROR && !s->faulty);
  if (!natural) return;
  if (r->end.finish != r->solo.finish) {
    FAIL(s, "request %u: finish %d, alone %d (%s)", index, (int)r->end.finish, (int)r->solo.finish,
         r->end.error == NULL ? "" : r->end.error);
  }
  if (r->n_tokens != r->solo.n) FAIL(s, "request %u: %u tokens, alone %u", index, r->n_tokens, r->solo.n);
  if (u->n_canvases != r->solo.n_canvases || u->n_denoise_steps != r->solo.n_steps) {
    FAIL(s, "request %u: %u canvases in %u steps, alone %u in %u", index, u->n_canvases, u->n_denoise_steps,
         r->solo.n_canvases, r->solo.n_steps);
  }
}

static uint32_t common_prefix(const sim_request *a, const sim_request *b) {
  uint32_t n = 0;
  while (n < a->params.n_tokens) {
    const sim_request *r = b;
    uint32_t n_all = r->params.n_tokens + r->solo.n;
    if (n >= n_all) {
      /* the tail of a canvas behind the cut is context, too, while it is computed: bounded by one
       * canvas */
      return r->params.canvas ? a->params.n_tokens : n;
    }
    int32_t token = n < r->params.n_tokens ? r->prompt[n] : r->solo.tokens[n - r->params.n_tokens];
    if (token != a->prompt[n]) break;
    n += 1;
  }
  return n;
}

/* What a request found in the cache was put there by a request of its own domain and model. */
static void check_domains(sim *s) {
  for (uint32_t i = 0; i < s->n_requests; i++) {
    const sim_request *r = &s->request[i];
    if (!r->finished || r->end.usage.n_cached == 0) continue;
    uint32_t longest = 0;
    for (uint32_t k = 0; k < s->n_requests; k++) {
      const sim_request *other = &s->request[k];
      if (k == i || other->refused || other->params.model != r->params.model) continue;
      if (other->params.domain.low != r->params.domain.low) continue;
      if (other->params.asked.no_cache && !r->params.asked.no_cache) continue;
      uint32_t n = common_prefix(r, other);
      if (n > longest) longest = n;
    }
    if (r->end.usage.n_cached > longest || (r->params.asked.no_cache && !r->grouped)) {
      FAIL(s, "request %u: %u cached tokens, its domain knows %u", i, r->end.usage.n_cached, longest);
    }
  }
}

static void check_drained(sim *s) {
  weft_error error = {{0}};
  if (!weft_pager_check(weft_engine_pager(s->engine), &error)) FAIL(s, "pager: %s", error.text);
  weft_pager_stats stats = weft_pager_get_stats(weft_engine_pager(s->engine));
  if (stats.n_pinned != 0 || stats.n_seqs != 0) FAIL(s, "%u pages and %u sequences left", stats.n_pinned, stats.n_seqs);
  for (uint32_t i = 0; i < s->config.n_models; i++) {
    uint32_t n = weft_fake_runner_open_slots(s->runner[i]);
    if (n > 0) FAIL(s, "runner %u: %u slots left open", i, n);
  }
  if (!weft_engine_idle(s->engine)) FAIL(s, "not idle after everything ended");
  weft_engine_stats engine_stats;
  weft_engine_get_stats(s->engine, &engine_stats);
  if (!s->config.overlap && s->config.drafter == NULL && !s->ngrams && !s->own_drafts && engine_stats.n_void_rows > 0) {
    FAIL(s, "%llu void rows without overlap", (unsigned long long)engine_stats.n_void_rows);
  }
  if (s->config.pins_max == 0) check_domains(s); /* pins compute prefixes, public ones for all */
}

/* What the engine says that it charged is what was computed. */
static void check_charges(sim *s) {
  for (uint32_t i = 0; i < s->config.n_tenants; i++) {
    weft_tenant_stats stats;
    weft_engine_get_tenant_stats(s->engine, i, &stats);
    double off = s->watch.charged_us[i] - (double)stats.charged_us;
    if (off < -1.0 || off > 1.0 + s->step / 256.0)
      FAIL(s, "tenant %u: was charged %llu us of %.1f", i, (unsigned long long)stats.charged_us,
           s->watch.charged_us[i]);
  }
}

/* ---- what the clients do --------------------------------------------------------------------- */

/* In any span of time: taken less given back <= limit x (1 + minutes). */
static void check_tokens(sim *s, const sim_request *r, uint32_t index, double taken) {
  uint32_t limit = s->tenant[r->params.tenant].tokens_per_minute;
  sim_tokens *t = &s->tokens[r->params.tenant];
  double allowed = (double)limit / 60e6 * (double)s->now_us;
  if (limit == 0) return;
  if (t->net - allowed < t->least) t->least = t->net - allowed;
  t->net += taken;
  if (t->net - allowed > t->least + limit + 1e-3)
    FAIL(s, "request %u: its tenant took more than %u tokens a minute", index, limit);
}

static uint32_t longest_answer(const sim *s, const weft_request_params *p) {
  uint32_t room = context_of(s, p->model) - p->n_tokens;
  if (p->canvas) room -= room % s->fake[p->model].model.n_canvas;
  return p->max_tokens < room ? p->max_tokens : room;
}

/* What a request did not use goes back when it ends. */
static void give_back_tokens(sim *s, const sim_request *r) {
  const weft_usage *u = &r->end.usage;
  uint32_t taken = r->params.n_tokens + longest_answer(s, &r->params);
  bool started = u->started_us > 0;
  uint32_t used = started ? r->params.n_tokens - u->n_cached + u->n_answer : 0;
  check_tokens(s, r, 0, -(double)(taken - used));
}

static void take_event(sim *s, sim_request *r, uint32_t index, const weft_event *event) {
  if (r->finished) FAIL(s, "request %u: an event after the final one", index);
  if (event->kind == WEFT_EVENT_TOKENS) {
    if (event->first != r->n_tokens || event->n == 0)
      FAIL(s, "request %u: tokens from %u, %u came", index, event->first, r->n_tokens);
    r->tokens = realloc(r->tokens, (r->n_tokens + event->n) * sizeof *r->tokens);
    memcpy(r->tokens + r->n_tokens, event->tokens, event->n * sizeof *r->tokens);
    if (r->params.asked.sampling.logprobs && !r->params.canvas) {
      for (uint32_t i = 0; i < event->n; i++)
        if (event->logprobs[i * (1 + event->n_top)].token != event->tokens[i])
          FAIL(s, "request %u: logprob of another token", index);
    }
    r->n_tokens += event->n;
  } else if (event->kind == WEFT_EVENT_CANVAS) {
    if (event->n_dropped > 0) r->dropped_events = true;
    bool next = event->block == r->next_block && event->step == r->next_step;
    if (!next && !r->dropped_events) {
      FAIL(s, "request %u: step %u of canvas %u, not step %u of canvas %u", index, event->step, event->block,
           r->next_step, r->next_block);
    }
    bool last = event->stopped || event->step + 1 == r->params.asked.entropy_bound.max_steps;
    r->next_block = last ? event->block + 1 : event->block;
    r->next_step = last ? 0 : event->step + 1;
  } else {
    r->finished = true;
    r->end = *event;
    give_back_tokens(s, r);
    if (s->fair) watch_ended(&s->watch, index);
    totals.n_finished[event->finish] += 1;
    check_end(s, r, index);
  }
}

static void poll_all(sim *s) {
  for (uint32_t i = 0; i < s->n_requests; i++) {
    sim_request *r = &s->request[i];
    weft_event event;
    if (r->handle == NULL) continue;
    while (weft_engine_poll(s->engine, r->handle, &event) == WEFT_OK) take_event(s, r, i, &event);
    if (r->cancelled && !r->finished && s->step > r->cancelled_in) FAIL(s, "request %u: cancelled and not over", i);
    if (!r->finished) continue;
    weft_engine_release(s->engine, r->handle);
    r->handle = NULL;
    r->released = true;
  }
}

/* A refusal by a limit is counted for its tenant and says when to come again. */
static void check_refusal(sim *s, const sim_request *r, uint32_t index, uint64_t n_before, uint64_t retry_us) {
  weft_tenant_stats stats;
  weft_engine_get_tenant_stats(s->engine, r->params.tenant, &stats);
  const uint64_t *n = stats.n_refused;
  if (n[0] + n[1] + n[2] == 0) FAIL(s, "request %u: refused by nothing", index);
  uint32_t n_short = (uint32_t)(n[WEFT_REFUSED_QUEUE] - n_before), tenant = r->params.tenant;
  if (n_short > 0 && is_within_queue_share(s->engine, s->tenant, s->config.n_tenants, tenant, n_short))
    FAIL(s, "request %u: within its share of the queue, and refused", index);
  if (retry_us == UINT64_MAX) FAIL(s, "request %u: refused without an estimate", index);
  totals.n_full += 1;
}

/* No tenant runs more than its limit; a submission brings none above its queue's. */
static void check_limits(sim *s) {
  for (uint32_t i = 0; i < s->config.n_tenants; i++) {
    const weft_tenant_config *t = &s->tenant[i];
    weft_tenant_stats stats;
    weft_engine_get_tenant_stats(s->engine, i, &stats);
    uint32_t n_pinned = weft_pager_owner_usage(weft_engine_pager(s->engine), i).n_pinned;
    if (t->blocks_max > 0 && n_pinned > t->blocks_max)
      FAIL(s, "tenant %u: pays for %u pages, its limit is %u", i, n_pinned, t->blocks_max);
    if (t->running_max > 0 && stats.n_running > t->running_max)
      FAIL(s, "tenant %u: %u requests run, its limit is %u", i, stats.n_running, t->running_max);
    uint32_t running_max = t->running_max > 0 ? t->running_max : s->config.running_max;
    if (running_max > s->config.running_max) running_max = s->config.running_max;
    if (t->waiting_max > 0 && stats.n_waiting > t->waiting_max + running_max)
      FAIL(s, "tenant %u: %u requests wait, its limit is %u", i, stats.n_waiting, t->waiting_max);
  }
}

/* None of n requests ever gets in with the others: the line says how many do, so they come in two submissions. */
static void split(sim *s, sim_request *r, uint32_t index, uint32_t n, const char *line) {
  const char *words = strstr(line, "ask for at most ");
  unsigned most = 0;
  if (words == NULL || sscanf(words, "ask for at most %u", &most) != 1 || most == 0 || most >= n || r->shrunk)
    FAIL(s, "request %u and %u more: %s", index, n - 1, line);
  r->shrunk = true;
  r[most].joins = false;
  r[most].submit_step = r->submit_step;
  totals.n_split += 1;
}

/* FULL and RATE_LIMIT: all come again. Else they are over for good. */
static void take_refusal(sim *s, sim_request *r, uint32_t index, uint32_t n, weft_status status, const char *line) {
  bool again = status == WEFT_FULL || status == WEFT_RATE_LIMIT;
  for (uint32_t i = 0; i < n; i++) {
    if (r[i].handle != NULL) FAIL(s, "request %u: refused and there", index + i);
    if (r[i].params.deadline_us > 0) r[i].params.deadline_us -= s->now_us;
    r[i].submit_step = s->step + (again ? 5 : 0);
  }
  if (again) return;
  if (status == WEFT_E_INVALID) {
    split(s, r, index, n, line);
    return;
  }
  if (status != WEFT_E_TOO_LARGE && status != WEFT_E_LIMIT && status != WEFT_E_DEVICE)
    FAIL(s, "request %u: %s", index, line);
  for (uint32_t i = 0; i < n; i++) r[i].refused = r[i].released = true;
  totals.n_requests += n;
  totals.n_refused += n;
}

/* The request and those that join it. */
static void submit(sim *s, sim_request *r, uint32_t index) {
  weft_request_params params[REQUESTS_MAX];
  weft_request *handle[REQUESTS_MAX];
  weft_error error = {{0}};
  uint32_t n = 1;
  while (index + n < s->n_requests && r[n].joins) n += 1;
  for (uint32_t i = 0; i < n; i++) {
    if (r[i].params.deadline_us > 0) r[i].params.deadline_us += s->now_us;
    r[i].params.joins = i > 0;
    r[i].params.sibling = i > 0 || r->elder == NULL ? NULL : r->elder->handle; /* NULL once it was released */
    params[i] = r[i].params;
  }
  uint64_t retry_us = UINT64_MAX;
  weft_tenant_stats before;
  weft_engine_get_tenant_stats(s->engine, r->params.tenant, &before);
  params->retry_us = &retry_us;
  weft_status status = weft_engine_submit_all(s->engine, params, n, s->now_us, handle, &error);
  for (uint32_t i = 0; i < n; i++) r[i].handle = handle[i];
  if (status == WEFT_FULL || status == WEFT_RATE_LIMIT)
    check_refusal(s, r, index, before.n_refused[WEFT_REFUSED_QUEUE], retry_us);
  if (status != WEFT_OK) {
    take_refusal(s, r, index, n, status, error.text);
    return;
  }
  totals.n_requests += n;
  totals.n_together += n > 1;
  for (uint32_t i = 0; i < n; i++) {
    check_tokens(s, &r[i], index + i, r[i].params.n_tokens + longest_answer(s, &r[i].params));
    if (s->fair) watch_submitted(&s->watch, index + i, r[i].params.tenant);
    r[i].solo = solo_run(&s->fake[r[i].params.model].model, &r[i].params, context_of(s, r[i].params.model));
  }
}

/* The operator pins the beginning of some prompt, for its tenant or for all, or unpins. */
static void act_pins(sim *s) {
  weft_pin_info info;
  uint32_t id;
  weft_error error = {{0}};
  if (s->config.pins_max == 0 || s->fair) return; /* the watch knows only requests */
  if (s->step > 300) return; /* prompts without end would keep a low class waiting until it is old */
  if (chance(s, 3) && weft_engine_list_pins(s->engine, &info, 1) == 1 &&
      weft_engine_unpin(s->engine, info.id) != WEFT_OK)
    FAIL(s, "pin %u is listed and cannot be unpinned", info.id);
  if (!chance(s, 8)) return;
  const sim_request *r = &s->request[draw(s, 0, s->n_requests - 1)];
  weft_pin_params p = {.model = r->params.model,
                       .tenant = r->params.tenant,
                       .domain = r->params.domain,
                       .is_public = chance(s, 50),
                       .tokens = r->prompt,
                       .n_tokens = draw(s, 1, r->params.n_tokens),
                       .priority = (int32_t)draw(s, 0, 2) - 1,
                       .expires_us = chance(s, 50) ? 0 : s->now_us + draw(s, 1, 30000)};
  weft_status status = weft_engine_pin(s->engine, &p, s->now_us, &id, &error);
  if (status == WEFT_OK) totals.n_pins += 1;
  if (status != WEFT_OK && error.text[0] == 0) FAIL(s, "a pin was refused without words");
}

static void unpin_all(sim *s) {
  weft_pin_info info;
  while (weft_engine_list_pins(s->engine, &info, 1) == 1) (void)weft_engine_unpin(s->engine, info.id);
  (void)weft_engine_step(s->engine, s->now_us);
}

/* Draws of its own, so that the worlds of old seeds stay what they were. */
static void act_pool(sim *s) {
  uint64_t draws = weft_mix64(s->seed ^ weft_mix64(s->step + 1000));
  if (s->config.pool == NULL || draws % 12 != 0) return;
  bool promised = (draws >> 8) % 4 == 0;
  uint32_t n = 1 + (uint32_t)(draws >> 16) % s->config.pool->n_pages_max;
  weft_engine_resize_pool(s->engine, promised ? s->config.n_pages : n);
  totals.n_resizes += 1;
}

/* Once nothing is there, the pool is as small as it is asked to be. */
static void empty_pool(sim *s) {
  if (s->config.pool == NULL) return;
  totals.n_small += s->n_backed_least < s->config.n_pages;
  weft_engine_resize_pool(s->engine, 1);
  for (uint32_t i = 0; weft_engine_pool_size(s->engine).n_backed > 1; i++) {
    (void)weft_engine_step(s->engine, s->now_us);
    if (i > 4 * s->config.pool->n_pages_max)
      FAIL(s, "an empty pool stays at %u pages", weft_engine_pool_size(s->engine).n_backed);
  }
}

static void act(sim *s) {
  for (uint32_t i = 0; i < s->n_requests; i++) {
    sim_request *r = &s->request[i];
    if (r->handle == NULL && !r->released && !r->joins && r->submit_step <= s->step) submit(s, r, i);
    if (r->handle == NULL) continue;
    if (r->cancel_step <= s->step && !r->cancelled) {
      weft_engine_cancel(s->engine, r->handle);
      weft_engine_cancel(s->engine, r->handle);
      r->cancelled = true;
      r->cancelled_in = s->step;
    }
    if (r->release_step <= s->step) { /* leaves without waiting for the end */
      weft_engine_release(s->engine, r->handle);
      r->handle = NULL;
      r->released = true;
      check_tokens(s, r, i, -(double)(r->params.n_tokens + longest_answer(s, &r->params)));
    }
  }
  if (chance(s, 1)) weft_engine_reset_cache(s->engine);
  act_pool(s);
  act_pins(s);
}

static bool all_over(const sim *s) {
  for (uint32_t i = 0; i < s->n_requests; i++)
    if (!s->request[i].released) return false;
  return true;
}

static bool one_waits(const sim *s) {
  for (uint32_t i = 0; i < s->n_requests; i++)
    if (s->request[i].handle != NULL) return true;
  return false;
}

/* ---- one seed -------------------------------------------------------------------------------- */

static void add_state_totals(const sim *s) {
  bool any = false;
  for (uint32_t i = 0; i < s->config.n_models; i++) {
    uint32_t last = s->fake[i].model.n_groups - 1;
    if (s->fake[i].model.group[last].state_pages == 0) continue;
    any = true;
    totals.n_state_hits += weft_pager_group_usage(weft_engine_pager(s->engine), i, last).n_hits;
  }
  totals.n_state_worlds += any;
}

static void add_totals(sim *s) {
  add_state_totals(s);
  weft_engine_stats stats;
  weft_engine_get_stats(s->engine, &stats);
  totals.n_steps += stats.n_steps;
  totals.n_preemptions += stats.n_preemptions;
  totals.n_mixed += stats.n_mixed_steps;
  totals.n_switches += stats.n_switches;
  totals.n_void += stats.n_void_rows;
  for (uint32_t i = 0; i < s->config.n_models; i++) {
    weft_request_stats requests;
    weft_engine_get_request_stats(s->engine, i, &requests);
    totals.n_drafted += requests.drafts.n_drafted;
    totals.n_accepted += requests.drafts.n_accepted;
    totals.n_shadowed += requests.drafts.n_shadowed;
    if (requests.drafts.n_differences > 0) FAIL(s, "a run foretold another token than its rows gave");
    if (s->fake[i].drafts) totals.n_own_drafted += requests.drafts.n_drafted;
    if (s->fake[i].drafts) totals.n_own_right += requests.drafts.n_accepted;
    if (s->config.drafter == NULL && !s->ngrams && !s->fake[i].drafts && requests.drafts.n_drafted > 0)
      FAIL(s, "drafts that nobody asked for");
  }
  totals.n_hits += stats.pager.n_hits;
  totals.n_forks += stats.pager.n_forks;
  totals.n_dropped_pins += stats.n_pins_dropped;
  totals.n_waits += stats.pager.n_waits;
  totals.n_out += stats.pager.n_spilled;
  totals.n_back += stats.pager.n_restored;
  totals.n_lost += stats.pager.n_spill_lost;
  totals.n_to_file += stats.pager.n_to_file, totals.n_from_file += stats.pager.n_from_file;
  totals.n_file_lost += stats.pager.n_file_lost;
  totals.n_file_waits += stats.n_file_waits, totals.n_in_vain += stats.n_file_waits_in_vain;
  totals.n_watched += s->watch.n_watched;
  totals.n_broken += (uint64_t)__builtin_popcountll(stats.broken_runners);
  if (!s->verbose) return;
  printf("steps %llu, preemptions %llu, mixed %llu, switches %llu, hits %llu, void rows %llu\n",
         (unsigned long long)stats.n_steps, (unsigned long long)stats.n_preemptions,
         (unsigned long long)stats.n_mixed_steps, (unsigned long long)stats.n_switches,
         (unsigned long long)stats.pager.n_hits, (unsigned long long)stats.n_void_rows);
}

static void run_seed(uint64_t seed, bool verbose) {
  sim *s = calloc(1, sizeof *s);
  s->seed = seed;
  s->verbose = verbose;
  open_world(s);
  bool again = false;
  uint32_t n_still = 0; /* steps without anything to do, while the file works */
  while (!all_over(s) || !weft_engine_idle(s->engine)) {
    act(s);
    bool moves = weft_fake_store_n_moving(s->store) > 0 && n_still < 100;
    uint32_t least = moves ? 10 : again ? 10000 : 100; /* so that tokens of a minute come back */
    uint64_t passes_us = draw(s, least, moves ? 200 : again ? 300000 : 1500);
    s->now_us += s->slow ? 1000 * passes_us : passes_us;
    again = weft_engine_step(s->engine, s->now_us) == WEFT_AGAIN;
    n_still = again ? n_still + 1 : 0;
    poll_all(s);
    check_limits(s);
    moves = weft_fake_store_n_moving(s->store) > 0;
    if (again && !moves && s->late_in != s->step && one_waits(s)) FAIL(s, "nothing to do, and a request waits");
    for (uint32_t i = 0; i < s->config.n_models; i++) {
      const char *violation = weft_fake_runner_violation(s->runner[i]);
      if (violation != NULL) FAIL(s, "runner %u: %s", i, violation);
    }
    if (s->watch.violation[0] != 0) FAIL(s, "%s", s->watch.violation);
    weft_error error = {{0}};
    const char *broken = weft_engine_check(s->engine);
    if (broken != NULL) FAIL(s, "engine: %s", broken);
    if (s->step % 7 == 0 && !weft_pager_check(weft_engine_pager(s->engine), &error)) FAIL(s, "pager: %s", error.text);
    if (++s->step > s->n_steps_max) FAIL(s, "not over after %u steps", s->step);
  }
  unpin_all(s);
  check_drained(s);
  empty_pool(s);
  if (s->fair) check_charges(s);
  add_totals(s);
  close_world(s);
  free(s);
}

int main(int argc, char **argv) {
  const seeds s = seeds_open(test_amount(250, 1500, 60000), argc, argv);
  weft_log_set_level((weft_log_level)-1); /* devices are lost on purpose here */
  for (unsigned long long seed = s.first; seed <= s.last; seed++) run_seed(seed, s.one);
  print_totals(s.last - s.first + 1);
  return 0;
}
