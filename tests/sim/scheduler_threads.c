/* SPDX-License-Identifier: MIT */
/* Threads: submitters, cancellers, pollers and readers of statistics against an engine on a thread
 * of its own. Run under the thread sanitizer this shows races; everywhere it shows lost wake-ups,
 * lost events and callbacks that come after release. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/random.h"
#include "scheduler/engine.h"
#include "bench/doubles/fake_runner.h"
#include "tests/support/amount.h"
#include "tests/support/fake_solo.h"

enum { N_CLIENTS = 4, PER_CLIENT = 60, CONTEXT = 96, N_PAGES = 120 };
#define WAIT_US (1000u * TEST_WAIT_MS)

typedef struct world {
  weft_fake_store *store;
  weft_fake_config config;
  weft_runner *runner;
  weft_engine *engine;
  _Atomic uint32_t n_bad; /* checks failed on client threads: cmocka's asserts belong to the main one */
  _Atomic uint32_t n_natural, n_notified, n_evicted, n_full;
  _Atomic bool over;
} world;

typedef struct client {
  world *w;
  uint64_t draws;
  pthread_t thread;
} client;

/* Memory of the callbacks of one request: gone when release returned. */
typedef struct callback {
  _Atomic uint32_t n_notified;
  int32_t modulus;
} callback;

static void open_world(world *w, bool overlap, uint32_t waiting_max, uint32_t running_max) {
  memset(w, 0, sizeof *w);
  assert_int_equal(weft_fake_store_open(N_PAGES, 8, &w->store), WEFT_OK);
  w->config = (weft_fake_config){.name = "mixed",
                                 .autoregressive = true,
                                 .n_slots = 12,
                                 .rows_max = 64,
                                 .depth = 2,
                                 .context_length = CONTEXT,
                                 .store = w->store,
                                 .model = {.salt = 5,
                                           .n_vocab = 80,
                                           .n_canvas = 8,
                                           .n_groups = 2,
                                           .group = {{.block_tokens = 8}, {.block_tokens = 4, .window = 9}}}};
  assert_int_equal(weft_fake_runner_open(&w->config, &w->runner), WEFT_OK);
  weft_engine_config config = {.n_models = 1,
                               .runner = &w->runner,
                               .n_pages = N_PAGES,
                               .rows_per_step = 48,
                               .running_max = running_max,
                               .waiting_max = waiting_max,
                               .n_tenants = N_CLIENTS,
                               .pins_max = 2,
                               .seq_tokens_max = CONTEXT,
                               .overlap = overlap};
  weft_error error = {{0}};
  assert_int_equal(weft_engine_open(&config, &w->engine, &error), WEFT_OK);
}

static void close_world(world *w) {
  weft_engine_close(w->engine);
  assert_null(weft_fake_runner_violation(w->runner));
  w->runner->ops->close(w->runner);
  weft_fake_store_close(w->store);
}

static uint32_t draw(client *c, uint32_t n) {
  return (uint32_t)((weft_mix64(++c->draws * 0x9E3779B97F4A7C15ull) >> 32) % n);
}

static void expect(client *c, bool ok) {
  if (!ok) atomic_fetch_add(&c->w->n_bad, 1);
}

static void notify(void *self) {
  atomic_fetch_add(&((callback *)self)->n_notified, 1);
}

static uint32_t rule(void *self, const int32_t *tokens, uint32_t n) {
  const callback *call = self;
  for (uint32_t i = 0; i < n; i++)
    if (tokens[i] % call->modulus == 0) return i;
  return n;
}

static void fill(client *c, uint32_t tenant, int32_t *prompt, callback *call, weft_request_params *p) {
  *p = (weft_request_params){.tenant = tenant,
                             .domain = {.low = tenant / 2},
                             .tokens = prompt,
                             .n_tokens = 1 + draw(c, 40),
                             .max_tokens = 1 + draw(c, 40)};
  for (uint32_t i = 0; i < p->n_tokens; i++) prompt[i] = (int32_t)(i < 20 ? i : draw(c, 80));
  p->canvas = draw(c, 2) == 0;
  p->asked.sampling = weft_sampling_neutral();
  p->asked.sampling.seed = draw(c, 100);
  p->asked.entropy_bound = weft_entropy_bound_default();
  p->asked.canvas_deltas = draw(c, 2) == 0;
  call->modulus = 11 + (int32_t)draw(c, 40);
  if (draw(c, 2) == 0) {
    p->stop_rule = rule;
    p->stop_self = call;
  }
  p->notify = notify;
  p->notify_self = call;
  if (draw(c, 6) == 0) p->deadline_us = weft_clock_us() + draw(c, 3000);
}

/* Reads events until the end; returns how it ended, WEFT_FINISH_NONE when none came in time. */
static weft_finish read_all(client *c, weft_request *r, const weft_request_params *p) {
  solo_answer alone = solo_run(&c->w->config.model, p, CONTEXT);
  weft_finish finish = WEFT_FINISH_NONE;
  uint32_t n = 0;
  while (finish == WEFT_FINISH_NONE && weft_engine_wait(c->w->engine, r, WAIT_US) == WEFT_OK) {
    weft_event event;
    while (weft_engine_poll(c->w->engine, r, &event) == WEFT_OK) {
      expect(c, finish == WEFT_FINISH_NONE);
      if (event.kind == WEFT_EVENT_FINISHED) finish = event.finish;
      if (event.kind != WEFT_EVENT_TOKENS) continue;
      expect(c, event.first == n && n + event.n <= alone.n);
      if (n + event.n <= alone.n) expect(c, memcmp(event.tokens, alone.tokens + n, event.n * sizeof(int32_t)) == 0);
      n += event.n;
    }
  }
  bool natural = finish == WEFT_FINISH_STOP || finish == WEFT_FINISH_LENGTH;
  if (natural) expect(c, finish == alone.finish && n == alone.n);
  if (natural) atomic_fetch_add(&c->w->n_natural, 1);
  free(alone.tokens);
  return finish;
}

typedef struct canceller {
  world *w;
  weft_request *request;
} canceller;

static void *cancel_from_elsewhere(void *self) {
  canceller *c = self;
  weft_engine_cancel(c->w->engine, c->request);
  weft_engine_cancel(c->w->engine, c->request);
  return NULL;
}

/* Sometimes one more answer to the prompt, while the first runs, or waits, or has ended. */
static void another_choice(client *c, const weft_request_params *first, weft_request *elder) {
  if (draw(c, 3) != 0) return;
  callback call = {.modulus = 11 + (int32_t)draw(c, 40)};
  weft_request_params params = *first;
  params.sibling = elder;
  params.asked.sampling.choice = 1;
  params.deadline_us = 0;
  params.stop_self = params.notify_self = &call;
  weft_request *r = NULL;
  if (weft_engine_submit(c->w->engine, &params, weft_clock_us(), &r, NULL) != WEFT_OK) return;
  if (draw(c, 4) != 0) expect(c, read_all(c, r, &params) != WEFT_FINISH_NONE);
  weft_engine_release(c->w->engine, r);
}

static void one_request(client *c, uint32_t tenant) {
  int32_t prompt[48];
  weft_request_params params;
  callback *call = calloc(1, sizeof *call);
  fill(c, tenant, prompt, call, &params);
  weft_request *r = NULL;
  weft_error error;
  weft_status status = WEFT_FULL;
  while (status == WEFT_FULL) {
    status = weft_engine_submit(c->w->engine, &params, weft_clock_us(), &r, &error);
    if (status == WEFT_FULL) sched_yield();
  }
  expect(c, status == WEFT_OK);
  another_choice(c, &params, r);
  uint32_t how = draw(c, 8);
  pthread_t thread;
  canceller other = {.w = c->w, .request = r};
  bool cancels = how == 0 && pthread_create(&thread, NULL, cancel_from_elsewhere, &other) == 0;
  if (how != 1) expect(c, read_all(c, r, &params) != WEFT_FINISH_NONE);
  if (cancels) pthread_join(thread, NULL);
  weft_engine_release(c->w->engine, r); /* with how == 1 while it still runs */
  atomic_fetch_add(&c->w->n_notified, atomic_load(&call->n_notified));
  free(call);
}

static void *client_loop(void *self) {
  client *c = self;
  uint32_t tenant = (uint32_t)c->draws % N_CLIENTS;
  c->draws *= 1000003;
  for (uint32_t i = 0; i < PER_CLIENT; i++) one_request(c, tenant);
  return NULL;
}

/* The beginning of everybody's prompts, for a moment, or until it is ended. */
static void pin_or_unpin(client *c) {
  weft_pin_info info[2];
  int32_t prompt[16];
  uint32_t id, n = weft_engine_list_pins(c->w->engine, info, 2);
  for (int32_t i = 0; i < 16; i++) prompt[i] = i;
  weft_pin_params p = {
      .is_public = draw(c, 2) == 0, .tokens = prompt, .n_tokens = 16, .expires_us = weft_clock_us() + draw(c, 3000)};
  if (n > 0 && draw(c, 2) == 0) (void)weft_engine_unpin(c->w->engine, info[0].id);
  (void)weft_engine_pin(c->w->engine, &p, weft_clock_us(), &id, NULL);
}

static void *stats_loop(void *self) {
  client *c = self;
  while (!atomic_load(&c->w->over)) {
    weft_engine_stats stats;
    weft_engine_get_stats(c->w->engine, &stats);
    uint64_t n_finished = 0;
    for (uint32_t i = 0; i < WEFT_FINISH_KINDS; i++) n_finished += stats.n_finished[i];
    expect(c, n_finished <= stats.n_submitted);
    expect(c, stats.pager.n_free + stats.pager.n_cached + stats.pager.n_pinned == stats.pager.n_pages);
    (void)weft_engine_idle(c->w->engine);
    if (draw(c, 200) == 0) weft_engine_reset_cache(c->w->engine);
    if (draw(c, 50) == 0) pin_or_unpin(c);
    sched_yield();
  }
  return NULL;
}

static void many_clients(void **state) {
  (void)state;
  for (uint32_t round = 0; round < 2; round++) {
    world w;
    open_world(&w, round == 1, 6, 12);
    client clients[N_CLIENTS + 1];
    assert_int_equal(weft_engine_start(w.engine), WEFT_OK);
    assert_int_equal(weft_engine_start(w.engine), WEFT_E_INVALID);
    for (uint32_t i = 0; i <= N_CLIENTS; i++) {
      clients[i] = (client){.w = &w, .draws = i + round * N_CLIENTS};
      pthread_create(&clients[i].thread, NULL, i < N_CLIENTS ? client_loop : stats_loop, &clients[i]);
    }
    for (uint32_t i = 0; i < N_CLIENTS; i++) pthread_join(clients[i].thread, NULL);
    weft_engine_drain(w.engine);
    atomic_store(&w.over, true);
    pthread_join(clients[N_CLIENTS].thread, NULL);
    assert_int_equal(w.n_bad, 0);
    assert_true(w.n_natural > N_CLIENTS * PER_CLIENT / 3);
    assert_true(w.n_notified > w.n_natural);
    weft_engine_stop(w.engine);
    assert_true(weft_engine_idle(w.engine));
    weft_pager_stats stats = weft_pager_get_stats(weft_engine_pager(w.engine));
    assert_int_equal(stats.n_pinned, 0);
    close_world(&w);
  }
}

/* One submission of a few choices. True: all have their answers; false: it was refused, or evicted in part or whole. */
static bool try_choices(client *c, const weft_request_params *p, uint32_t n) {
  weft_request_params all[3];
  weft_request *r[3];
  weft_error error;
  bool done = true;
  for (uint32_t i = 0; i < n; i++) {
    all[i] = *p;
    all[i].joins = i > 0;
    all[i].asked.sampling.choice = i;
  }
  weft_status status = weft_engine_submit_all(c->w->engine, all, n, weft_clock_us(), r, &error);
  expect(c, status == WEFT_OK || status == WEFT_FULL);
  if (status != WEFT_OK) {
    atomic_fetch_add(&c->w->n_full, 1);
    sched_yield();
    return false;
  }
  for (uint32_t i = 0; i < n; i++) {
    weft_finish finish = read_all(c, r[i], &all[i]);
    expect(c, finish == WEFT_FINISH_STOP || finish == WEFT_FINISH_LENGTH || finish == WEFT_FINISH_EVICTED);
    if (finish == WEFT_FINISH_EVICTED) atomic_fetch_add(&c->w->n_evicted, 1);
    done = done && finish != WEFT_FINISH_EVICTED;
  }
  for (uint32_t i = 0; i < n; i++) weft_engine_release(c->w->engine, r[i]);
  return done;
}

static void *few_places_loop(void *self) {
  client *c = self;
  uint32_t tenant = (uint32_t)c->draws % N_CLIENTS;
  c->draws *= 1000003;
  for (uint32_t i = 0; i < PER_CLIENT; i++) {
    int32_t prompt[48];
    weft_request_params p;
    callback call = {0};
    fill(c, tenant, prompt, &call, &p);
    p.deadline_us = 0;
    uint32_t n = 1 + draw(c, 3);
    while (!try_choices(c, &p, n)) {
    }
  }
  return NULL;
}

/* Places for four requests, two of which run, and ten clients of four tenants: their submissions displace each other,
 * each request ends once, and everybody gets all answers in the end. */
static void few_places(void **state) {
  (void)state;
  enum { N = 10 };
  world w;
  client clients[N];
  open_world(&w, true, 2, 2);
  assert_int_equal(weft_engine_start(w.engine), WEFT_OK);
  for (uint32_t i = 0; i < N; i++) {
    clients[i] = (client){.w = &w, .draws = i < 6 ? 4 : i}; /* six of one tenant */
    pthread_create(&clients[i].thread, NULL, few_places_loop, &clients[i]);
  }
  for (uint32_t i = 0; i < N; i++) pthread_join(clients[i].thread, NULL);
  assert_int_equal(w.n_bad, 0);
  assert_true(w.n_natural >= N * PER_CLIENT);
  assert_true(w.n_full > 0);
  weft_engine_stop(w.engine);
  assert_true(weft_engine_idle(w.engine));
  weft_engine_stats stats;
  weft_engine_get_stats(w.engine, &stats);
  assert_int_equal(stats.n_finished[WEFT_FINISH_EVICTED], w.n_evicted);
  print_message("%u submissions refused, %u requests evicted\n", w.n_full, w.n_evicted);
  assert_int_equal(weft_pager_get_stats(weft_engine_pager(w.engine)).n_pinned, 0);
  close_world(&w);
}

/* Stop while requests wait and run: each gets its final event, later submits are refused with a
 * line. */
static void stop_with_work(void **state) {
  (void)state;
  world w;
  open_world(&w, true, 40, 12);
  client c = {.w = &w, .draws = 99};
  weft_request *handles[30];
  callback calls[30];
  memset(calls, 0, sizeof calls);
  weft_request_params params;
  int32_t prompt[48];
  weft_error error;
  assert_int_equal(weft_engine_start(w.engine), WEFT_OK);
  for (uint32_t i = 0; i < 30; i++) {
    fill(&c, i % N_CLIENTS, prompt, &calls[i], &params);
    assert_int_equal(weft_engine_submit(w.engine, &params, weft_clock_us(), &handles[i], &error), WEFT_OK);
  }
  weft_engine_stop(w.engine);
  weft_request *late = NULL;
  assert_int_equal(weft_engine_submit(w.engine, &params, 0, &late, &error), WEFT_FULL);
  assert_null(late);
  assert_non_null(strstr(error.text, "stopped"));
  for (uint32_t i = 0; i < 30; i++) {
    weft_event event = {0};
    weft_status status;
    uint32_t n_finished = 0;
    while ((status = weft_engine_poll(w.engine, handles[i], &event)) == WEFT_OK) {
      n_finished += event.kind == WEFT_EVENT_FINISHED;
    }
    assert_int_equal(n_finished, 1);
    weft_engine_release(w.engine, handles[i]);
  }
  assert_true(weft_engine_idle(w.engine));
  close_world(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(many_clients), cmocka_unit_test(few_places),
                                     cmocka_unit_test(stop_with_work)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
