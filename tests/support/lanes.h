/* SPDX-License-Identifier: MIT */
/* An engine over the fake runners of a few models that share one pool, for programs that run one random world per seed
 * (seeds.h). A program draws its worlds from the same seed and gives up in the name of it. */
#ifndef WEFT_TESTS_LANES_H
#define WEFT_TESTS_LANES_H

#include "bench/doubles/fake_runner.h"
#include "scheduler/check.h"
#include "scheduler/engine.h"
#include "tests/support/seeds.h"

enum { LANES_MAX = 3 };

typedef struct lanes {
  uint64_t seed, draws;
  uint32_t n;
  weft_fake_store *store;
  weft_runner *runner[LANES_MAX];
  weft_engine *engine;
} lanes;

#define FAIL(l, ...) seeds_fail((l)->seed, __VA_ARGS__)

static inline uint32_t lanes_draw(lanes *l, uint32_t low, uint32_t high) {
  return seeds_draw(l->seed, &l->draws, low, high);
}

/* One runner for each of the l->n descriptions, and the engine over them. */
static inline void lanes_open(lanes *l, const weft_fake_config *fakes, weft_engine_config config) {
  weft_error error = {{0}};
  if (weft_fake_store_open(config.n_pages, 16, &l->store) != WEFT_OK) FAIL(l, "no memory for the store");
  for (uint32_t i = 0; i < l->n; i++) {
    weft_fake_config fake = fakes[i];
    fake.name = "model";
    fake.id = i;
    fake.store = l->store;
    if (weft_fake_runner_open(&fake, &l->runner[i]) != WEFT_OK) FAIL(l, "no memory for a runner");
  }
  config.n_models = l->n;
  config.runner = l->runner;
  if (weft_engine_open(&config, &l->engine, &error) != WEFT_OK) FAIL(l, "%s", error.text);
}

static inline void lanes_close(lanes *l) {
  weft_engine_close(l->engine);
  for (uint32_t i = 0; i < l->n; i++) {
    const char *violation = weft_fake_runner_violation(l->runner[i]);
    if (violation != NULL) FAIL(l, "lane %u: %s", i, violation);
    l->runner[i]->ops->close(l->runner[i]);
  }
  weft_fake_store_close(l->store);
}

static inline void lanes_step(lanes *l, uint64_t now_us) {
  (void)weft_engine_step(l->engine, now_us);
  const char *broken = weft_engine_check(l->engine);
  if (broken != NULL) FAIL(l, "engine: %s", broken);
}

/* A request that ends with its length; model, tenant and the rest are the caller's. */
static inline weft_request_params lanes_request(const int32_t *tokens, uint32_t n_tokens, uint32_t max_tokens,
                                                uint32_t max_steps) {
  weft_request_params p = {.tokens = tokens,
                           .n_tokens = n_tokens,
                           .max_tokens = max_tokens,
                           .asked.sampling = weft_sampling_neutral(),
                           .asked.entropy_bound = weft_entropy_bound_default()};
  p.asked.entropy_bound.max_steps = max_steps;
  return p;
}

static inline weft_request *lanes_submit(lanes *l, const weft_request_params *p, uint64_t now_us) {
  weft_error error = {{0}};
  weft_request *request = NULL;
  if (weft_engine_submit(l->engine, p, now_us, &request, &error) != WEFT_OK) FAIL(l, "%s", error.text);
  return request;
}

#endif
