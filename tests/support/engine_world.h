/* SPDX-License-Identifier: MIT */
/* A small world for tests of the engine: two fake runners over one pool, and short words for what a
 * test does with them. TEST plans a world for each test, which changes w.fake and w.config before open_world; a test of
 * several worlds plans and closes the others itself. */
#ifndef WEFT_TESTS_ENGINE_WORLD_H
#define WEFT_TESTS_ENGINE_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "scheduler/engine.h"
#include "bench/doubles/fake_runner.h"
#include "tests/support/fake_solo.h"

enum { CONTEXT = 96, CANVAS = 8, VOCAB = 64 };

typedef struct world {
  weft_fake_store *store;
  weft_fake_config fake[2];
  weft_runner *runner[2];
  weft_engine_config config;
  weft_engine *engine;
  uint64_t now;
  int32_t prompt[CONTEXT + 8];
} world;

static world w;

/* Two runners: 0 does both kinds, 1 only tokens. Change fake and config, then open_world. */
static inline void plan_world(void) {
  memset(&w, 0, sizeof w);
  for (uint32_t i = 0; i < 2; i++) {
    w.fake[i] = (weft_fake_config){.name = i == 0 ? "both" : "tokens",
                                   .id = i,
                                   .autoregressive = true,
                                   .n_slots = 8,
                                   .rows_max = 64,
                                   .depth = 2,
                                   .scored_rows_max = 12,
                                   .context_length = CONTEXT};
    w.fake[i].model = (weft_fake_model){.salt = 40 + i,
                                        .n_vocab = VOCAB,
                                        .n_groups = 2,
                                        .group = {{.block_tokens = 8}, {.block_tokens = 4, .window = 9}}};
  }
  w.fake[0].model.n_canvas = CANVAS;
  w.config = (weft_engine_config){.n_models = 2,
                                  .n_pages = 200,
                                  .rows_per_step = 40,
                                  .running_max = 8,
                                  .waiting_max = 16,
                                  .n_tenants = 3,
                                  .seq_tokens_max = CONTEXT};
  for (uint32_t i = 0; i < CONTEXT + 8; i++) w.prompt[i] = (int32_t)((i * 5 + 9) % VOCAB);
}

static inline int plan_fixture(void **state) {
  (void)state;
  plan_world();
  return 0;
}

static inline void open_world(void) {
  weft_error error = {{0}};
  assert_int_equal(weft_fake_store_open(w.config.n_pages, 8, &w.store), WEFT_OK);
  assert_int_equal(weft_fake_store_add_tiers(w.store, w.config.n_host_pages, w.config.n_file_pages, 1, 0), WEFT_OK);
  for (uint32_t i = 0; i < 2; i++) {
    w.fake[i].store = w.store;
    assert_int_equal(weft_fake_runner_open(&w.fake[i], &w.runner[i]), WEFT_OK);
  }
  w.config.runner = w.runner;
  if (weft_engine_open(&w.config, &w.engine, &error) != WEFT_OK) fail_msg("%s", error.text);
}

static inline int close_world(void **state) {
  (void)state;
  if (w.engine == NULL) return 0;
  weft_engine_close(w.engine);
  for (uint32_t i = 0; i < 2; i++) {
    assert_null(weft_fake_runner_violation(w.runner[i]));
    w.runner[i]->ops->close(w.runner[i]);
  }
  weft_fake_store_close(w.store);
  w.engine = NULL;
  return 0;
}

static inline weft_request_params ask(bool canvas, uint32_t n_tokens, uint32_t max_tokens) {
  weft_request_params p = {.canvas = canvas,
                           .tokens = w.prompt,
                           .n_tokens = n_tokens,
                           .max_tokens = max_tokens,
                           .asked.sampling = weft_sampling_neutral(),
                           .asked.entropy_bound = weft_entropy_bound_default()};
  p.domain.low = 1;
  return p;
}

/* Token by token, of this tenant, in a domain of its own and without the prefix cache. */
static inline weft_request_params ask_as(uint32_t tenant, uint32_t n_tokens, uint32_t max_tokens) {
  weft_request_params p = ask(false, n_tokens, max_tokens);
  p.tenant = tenant;
  p.domain.low = tenant + 1;
  p.asked.no_cache = true;
  return p;
}

static inline weft_tenant_stats tenant_stats(uint32_t tenant) {
  weft_tenant_stats s;
  weft_engine_get_tenant_stats(w.engine, tenant, &s);
  return s;
}

static inline weft_request *submit(const weft_request_params *p) {
  weft_request *r = NULL;
  weft_error error = {{0}};
  if (weft_engine_submit(w.engine, p, ++w.now, &r, &error) != WEFT_OK) fail_msg("%s", error.text);
  return r;
}

/* The same n times. */
static inline void submit_all(const weft_request_params *p, weft_request **r, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) r[i] = submit(p);
}

static inline void release_all(weft_request *const *r, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) weft_engine_release(w.engine, r[i]);
}

static inline void step(uint32_t n) {
  for (uint32_t i = 0; i < n; i++) (void)weft_engine_step(w.engine, ++w.now);
}

static inline void run_out(void) {
  uint64_t until = w.now + 5000;
  while (!weft_engine_idle(w.engine)) {
    assert_int_equal(weft_engine_step(w.engine, ++w.now), WEFT_OK);
    assert_true(w.now < until);
  }
  assert_int_equal(weft_engine_step(w.engine, ++w.now), WEFT_AGAIN);
  assert_int_equal(weft_pager_get_stats(weft_engine_pager(w.engine)).n_pinned, 0);
}

static inline weft_engine_stats stats(void) {
  weft_engine_stats s;
  weft_engine_get_stats(w.engine, &s);
  return s;
}

/* Reads all events; tokens may be NULL. */
static inline weft_event finish_of(weft_request *r, int32_t *tokens, uint32_t *n) {
  weft_event event = {0};
  uint32_t count = 0, n_ends = 0;
  weft_event end = {0};
  while (weft_engine_poll(w.engine, r, &event) == WEFT_OK) {
    if (event.kind == WEFT_EVENT_TOKENS && tokens != NULL) {
      memcpy(tokens + event.first, event.tokens, event.n * sizeof *tokens);
    }
    if (event.kind == WEFT_EVENT_TOKENS) count = event.first + event.n;
    if (event.kind == WEFT_EVENT_FINISHED) {
      end = event;
      n_ends += 1;
    }
  }
  assert_true(n_ends <= 1);
  if (n != NULL) *n = count;
  return end;
}

static inline weft_finish end_and_release(weft_request *r) {
  weft_event end = finish_of(r, NULL, NULL);
  weft_engine_release(w.engine, r);
  return end.finish;
}

static inline void all_end(weft_request *const *r, uint32_t n, weft_finish finish) {
  for (uint32_t i = 0; i < n; i++) {
    weft_finish got = end_and_release(r[i]);
    if (got != finish) fail_msg("request %u of %u ended with %d, not %d", i, n, (int)got, (int)finish);
  }
}

static inline void check_equal_solo(weft_request *r, const weft_request_params *p) {
  int32_t tokens[2 * CONTEXT];
  uint32_t n = 0;
  weft_event end = finish_of(r, tokens, &n);
  solo_answer alone = solo_run(&w.fake[p->model].model, p, CONTEXT);
  assert_int_equal(end.finish, alone.finish);
  assert_int_equal(n, alone.n);
  assert_memory_equal(tokens, alone.tokens, n * sizeof *tokens);
  assert_int_equal(end.usage.n_denoise_steps, alone.n_steps);
  free(alone.tokens);
  weft_engine_release(w.engine, r);
}

static inline void refused(const weft_request_params *p, weft_status expected, const char *words) {
  weft_request *r = NULL;
  weft_error error = {{0}};
  weft_status status = weft_engine_submit(w.engine, p, 1, &r, &error);
  assert_int_equal(status, expected);
  assert_null(r);
  if (strstr(error.text, words) == NULL) fail_msg("'%s' lacks '%s'", error.text, words);
}

/* The world of each test is planned when the test begins, and closed when it ends. */
#define TEST(f) cmocka_unit_test_setup_teardown(f, plan_fixture, close_world)

/* For groups in which runners break: what is logged of them is no news. */
static inline int expect_broken_runners(void **state) {
  (void)state;
  weft_log_set_level((weft_log_level)-1);
  return 0;
}

#endif
