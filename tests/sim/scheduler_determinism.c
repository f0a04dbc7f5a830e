/* SPDX-License-Identifier: MIT */
/* The determinism contract: the same 200 mixed requests give the same tokens in three orders of
 * arrival, with three pool sizes and chunk sizes, with and without prefix cache, overlap,
 * preemption and a host tier, also one whose copies fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "scheduler/engine.h"
#include "scheduler/fake_runner.h"
#include "tests/support/fake_solo.h"

enum { N_REQUESTS = 200, PROMPT_MAX = 40, CONTEXT = 160 };

typedef struct variant {
  uint32_t order, n_pages, chunk, running, n_host;
  uint32_t fail_one_in; /* copies to the host; 0: none fails */
  bool no_cache, overlap;
  bool tight; /* the pool is too small for those who run: somebody must be preempted */
} variant;

typedef struct answer {
  weft_finish finish;
  uint32_t n;
  int32_t tokens[CONTEXT];
} answer;

static int32_t prompts[N_REQUESTS][PROMPT_MAX];
static weft_request_params requests[N_REQUESTS];
static answer answers[N_REQUESTS];

static uint32_t draw(uint64_t *state, uint32_t n) {
  return (uint32_t)((weft_mix64(++*state * 0x9E3779B97F4A7C15ull) >> 32) % n);
}

static const weft_fake_config fakes[2] = {
    {.name = "mixed",
     .id = 0,
     .autoregressive = true,
     .n_slots = 48,
     .rows_max = 128,
     .depth = 2,
     .context_length = CONTEXT,
     .model = {.salt = 11,
               .n_vocab = 90,
               .n_canvas = 8,
               .n_groups = 2,
               .group = {{.block_tokens = 8, .window = 0}, {.block_tokens = 4, .window = 13}}}},
    {.name = "plain",
     .id = 1,
     .autoregressive = true,
     .n_slots = 48,
     .rows_max = 128,
     .depth = 2,
     .context_length = CONTEXT,
     .lazy = true,
     .model = {.salt = 12, .n_vocab = 70, .n_groups = 1, .group = {{.block_tokens = 16}}}},
};

static void make_requests(void) {
  static const int32_t stop_tokens[] = {3};
  uint64_t state = 5;
  for (uint32_t i = 0; i < N_REQUESTS; i++) {
    weft_request_params *p = &requests[i];
    *p = (weft_request_params){
        .runner = draw(&state, 3) == 0, .tokens = prompts[i], .stop_tokens = stop_tokens};
    p->tenant = draw(&state, 3);
    p->n_tokens = 1 + draw(&state, PROMPT_MAX);
    uint32_t family = draw(&state, 3), shared = draw(&state, p->n_tokens + 1);
    for (uint32_t k = 0; k < p->n_tokens; k++) {
      prompts[i][k] = (int32_t)(k < shared ? (k * 7 + family) % 60 : draw(&state, 60));
    }
    p->canvas = p->runner == 0 && draw(&state, 2) == 0;
    p->max_tokens = 1 + draw(&state, 110);
    p->sampling = weft_sampling_default();
    p->sampling.seed = draw(&state, 9);
    p->entropy_bound = weft_entropy_bound_default();
    p->entropy_bound.seed = draw(&state, 9);
    p->entropy_bound.max_steps = 1 + draw(&state, 9);
    p->n_stop_tokens = draw(&state, 2);
  }
}

static void collect(weft_engine *engine, weft_request **handle, uint32_t index) {
  weft_event event;
  answer *a = &answers[index];
  while (*handle != NULL && weft_engine_poll(engine, *handle, &event) == WEFT_OK) {
    if (event.kind == WEFT_EVENT_TOKENS) {
      memcpy(a->tokens + event.first, event.tokens, event.n * sizeof *event.tokens);
      a->n = event.first + event.n;
    } else if (event.kind == WEFT_EVENT_FINISHED) {
      a->finish = event.finish;
      weft_engine_release(engine, *handle);
      *handle = NULL;
    }
  }
}

/* Which request is the i-th to arrive. */
static uint32_t arrival(uint32_t order, uint32_t i) {
  if (order == 0) return i;
  if (order == 1) return N_REQUESTS - 1 - i;
  return (i * 73 + 19) % N_REQUESTS; /* 73 and 200 have no common factor */
}

static void run(const variant *v, weft_engine_stats *stats) {
  weft_fake_store *store;
  weft_runner *runner[2];
  weft_engine *engine;
  weft_error error = {{0}};
  assert_int_equal(weft_fake_store_open(v->n_pages, 16, &store), WEFT_OK);
  assert_int_equal(weft_fake_store_add_tiers(store, v->n_host, 0, 7, v->fail_one_in), WEFT_OK);
  for (uint32_t i = 0; i < 2; i++) {
    weft_fake_config config = fakes[i];
    config.store = store;
    assert_int_equal(weft_fake_runner_open(&config, &runner[i]), WEFT_OK);
  }
  weft_engine_config config = {.n_runners = 2,
                               .runner = runner,
                               .n_pages = v->n_pages,
                               .n_host_pages = v->n_host,
                               .rows_per_step = 96,
                               .prefill_chunk = v->chunk,
                               .running_max = v->running,
                               .waiting_max = 50,
                               .n_tenants = 3,
                               .seq_tokens_max = CONTEXT,
                               .overlap = v->overlap,
                               .no_prefix_cache = v->no_cache};
  assert_int_equal(weft_engine_open(&config, &engine, &error), WEFT_OK);
  weft_request *handle[N_REQUESTS] = {NULL};
  memset(answers, 0, sizeof answers);
  uint32_t n_submitted = 0;
  for (uint64_t now = 1; n_submitted < N_REQUESTS || !weft_engine_idle(engine); now++) {
    while (n_submitted < N_REQUESTS) { /* as many as the queue takes */
      uint32_t at = arrival(v->order, n_submitted);
      weft_status status = weft_engine_submit(engine, &requests[at], now, &handle[at], &error);
      if (status == WEFT_FULL) break;
      assert_int_equal(status, WEFT_OK);
      n_submitted += 1;
    }
    assert_int_equal(weft_engine_step(engine, now), WEFT_OK);
    for (uint32_t i = 0; i < N_REQUESTS; i++) collect(engine, &handle[i], i);
    assert_true(now < 100000);
  }
  weft_engine_get_stats(engine, stats);
  for (uint32_t i = 0; i < 2; i++) assert_null(weft_fake_runner_violation(runner[i]));
  weft_engine_close(engine);
  for (uint32_t i = 0; i < 2; i++) runner[i]->ops->close(runner[i]);
  weft_fake_store_close(store);
}

static void check_solo(void) {
  for (uint32_t i = 0; i < N_REQUESTS; i++) {
    solo_answer alone = solo_run(&fakes[requests[i].runner].model, &requests[i], CONTEXT);
    assert_int_equal(answers[i].finish, alone.finish);
    assert_int_equal(answers[i].n, alone.n);
    assert_memory_equal(answers[i].tokens, alone.tokens, alone.n * sizeof(int32_t));
    free(alone.tokens);
  }
}

static void same_tokens_everywhere(void **state) {
  (void)state;
  static const variant variants[] = {
      {.order = 0, .n_pages = 900, .chunk = 0, .running = 40},
      {.order = 1, .n_pages = 900, .chunk = 7, .running = 40, .overlap = true},
      {.order = 2, .n_pages = 900, .chunk = 32, .running = 40, .overlap = true, .no_cache = true},
      {.order = 0, .n_pages = 75, .chunk = 5, .running = 40, .tight = true},
      {.order = 1, .n_pages = 75, .chunk = 64, .running = 40, .overlap = true, .tight = true},
      {.order = 2, .n_pages = 75, .chunk = 16, .running = 40, .no_cache = true, .tight = true},
      {.order = 2, .n_pages = 60, .chunk = 0, .running = 40, .overlap = true, .tight = true},
      {.order = 0, .n_pages = 60, .chunk = 1, .running = 3},
      {.order = 1, .n_pages = 400, .chunk = 96, .running = 1, .overlap = true},
      {.order = 0, .n_pages = 75, .chunk = 5, .running = 40, .tight = true, .n_host = 400},
      {.order = 1, .n_pages = 75, .chunk = 64, .running = 40, .overlap = true, .tight = true, .n_host = 60},
      {.order = 2, .n_pages = 60, .chunk = 0, .running = 40, .overlap = true, .tight = true, .n_host = 9},
      {.order = 2, .n_pages = 75, .chunk = 0, .running = 40, .overlap = true, .tight = true, .n_host = 300,
       .fail_one_in = 3},
      {.order = 1, .n_pages = 60, .chunk = 7, .running = 3, .n_host = 1000},
  };
  for (uint32_t i = 0; i < sizeof variants / sizeof *variants; i++) {
    weft_engine_stats stats;
    run(&variants[i], &stats);
    check_solo();
    assert_true(variants[i].tight ? stats.n_preemptions > 0 : true);
    assert_true(variants[i].no_cache ? stats.pager.n_hits == 0 : stats.pager.n_hits > 0);
    if (variants[i].running > 3) assert_true(stats.n_mixed_steps > 0);
    assert_true(stats.n_switches > 0);
    if (variants[i].n_host > 0) assert_true(stats.pager.n_spilled > 0 && stats.pager.n_restored > 0);
    if (variants[i].fail_one_in > 0) assert_true(stats.pager.n_spill_lost > 0);
    printf("variant %u: %llu steps, %llu mixed, %llu preemptions, %llu hits, %llu void rows, %llu pages out, %llu "
           "back, %llu lost, %llu rows of prompts\n", i,
           (unsigned long long)stats.n_steps, (unsigned long long)stats.n_mixed_steps,
           (unsigned long long)stats.n_preemptions, (unsigned long long)stats.pager.n_hits,
           (unsigned long long)stats.n_void_rows, (unsigned long long)stats.pager.n_spilled,
           (unsigned long long)stats.pager.n_restored, (unsigned long long)stats.pager.n_spill_lost,
           (unsigned long long)stats.n_prefill_rows);
  }
}

int main(void) {
  make_requests();
  const struct CMUnitTest tests[] = {cmocka_unit_test(same_tokens_everywhere)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
