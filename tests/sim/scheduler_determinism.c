/* SPDX-License-Identifier: MIT */
/* The determinism contract: the same 200 mixed requests, some of them choices of one prompt, give
 * the same tokens in three orders of arrival, with three pool sizes and three chunk sizes, each
 * without prefix cache, with it, and with it and a host tier (also one whose copies fail); with and
 * without preemption, overlap, forks, and tenants that differ. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "scheduler/engine.h"
#include "bench/doubles/fake_runner.h"
#include "tests/support/fake_solo.h"

enum { N_REQUESTS = 200, PROMPT_MAX = 40, CONTEXT = 160 };

typedef struct variant {
  uint32_t order, n_pages, chunk, running, n_host, n_file;
  uint32_t n_saves;     /* canvases of preempted requests that resume */
  uint32_t fail_one_in; /* copies to the host; 0: none fails */
  bool no_cache, overlap;
  bool forks;   /* choices of one prompt compute it once */
  bool tenants; /* of different weight and class */
  bool tight;   /* the pool is too small for those who run: somebody must be preempted */
} variant;

typedef struct answer {
  weft_finish finish;
  uint32_t n;
  int32_t tokens[CONTEXT];
} answer;

static int32_t prompts[N_REQUESTS][PROMPT_MAX];
static weft_request_params requests[N_REQUESTS];
static answer answers[N_REQUESTS];
static bool is_choice[N_REQUESTS]; /* of the prompt of the request before */

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

/* Another choice of the prompt before. */
static void make_choice(uint32_t i, uint64_t *state) {
  weft_request_params *p = &requests[i];
  const weft_request_params *q = &requests[i - 1];
  is_choice[i] = true;
  p->model = q->model;
  p->canvas = q->canvas;
  p->tenant = q->tenant;
  p->n_tokens = q->n_tokens;
  memcpy(prompts[i], prompts[i - 1], sizeof prompts[i]);
  p->asked.sampling.choice = 1 + draw(state, 4);
}

static void make_requests(void) {
  static const int32_t stop_tokens[] = {3};
  uint64_t state = 5;
  for (uint32_t i = 0; i < N_REQUESTS; i++) {
    weft_request_params *p = &requests[i];
    *p = (weft_request_params){.model = draw(&state, 3) == 0, .tokens = prompts[i], .stop_tokens = stop_tokens};
    p->tenant = draw(&state, 3);
    p->n_tokens = 1 + draw(&state, PROMPT_MAX);
    uint32_t family = draw(&state, 3), shared = draw(&state, p->n_tokens + 1);
    for (uint32_t k = 0; k < p->n_tokens; k++) {
      prompts[i][k] = (int32_t)(k < shared ? (k * 7 + family) % 60 : draw(&state, 60));
    }
    p->canvas = p->model == 0 && draw(&state, 2) == 0;
    p->max_tokens = 1 + draw(&state, 110);
    p->asked.sampling = weft_sampling_neutral();
    p->asked.sampling.seed = draw(&state, 9);
    p->asked.entropy_bound = weft_entropy_bound_default();
    p->asked.entropy_bound.no_self_conditioning = draw(&state, 9) == 0;
    p->asked.entropy_bound.max_steps = 1 + draw(&state, 9);
    p->n_stop_tokens = draw(&state, 2);
    if (i % 2 == 1 && draw(&state, 2) == 0) make_choice(i, &state);
  }
}

/* A neighbour with the same prompt that still runs. */
static weft_request *sibling_of(weft_request *const *handle, uint32_t i) {
  if (is_choice[i] && handle[i - 1] != NULL) return handle[i - 1];
  return i + 1 < N_REQUESTS && is_choice[i + 1] ? handle[i + 1] : NULL;
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
  return (i / 2 * 37 + 19) % (N_REQUESTS / 2) * 2 + i % 2; /* pairs; 37 and 100 have no common factor */
}

static uint32_t n_waiting(weft_engine *engine, uint32_t n_tenants) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < n_tenants; i++) {
    weft_tenant_stats stats;
    weft_engine_get_tenant_stats(engine, i, &stats);
    n += stats.n_waiting;
  }
  return n;
}

static void run(const variant *v, weft_engine_stats *stats) {
  weft_fake_store *store;
  weft_runner *runner[2];
  weft_engine *engine;
  weft_error error = {{0}};
  assert_int_equal(weft_fake_store_open(v->n_pages, 16, &store), WEFT_OK);
  assert_int_equal(weft_fake_store_add_tiers(store, v->n_host, v->n_file, 7, v->fail_one_in), WEFT_OK);
  weft_fake_store_slow_moves(store, 5);
  for (uint32_t i = 0; i < 2; i++) {
    weft_fake_config config = fakes[i];
    config.store = store;
    config.n_saves = v->n_saves;
    assert_int_equal(weft_fake_runner_open(&config, &runner[i]), WEFT_OK);
  }
  static const weft_tenant_config tenants[3] = {
      {.weight = 5}, {.weight = 1, .priority_class = 1}, {.weight = 2, .priority_class = -1}};
  weft_engine_config config = {.n_models = 2,
                               .runner = runner,
                               .n_pages = v->n_pages,
                               .n_host_pages = v->n_host,
                               .n_file_pages = v->n_file,
                               .rows_per_step = 96,
                               .prefill_chunk = v->chunk,
                               .running_max = v->running,
                               .waiting_max = 50,
                               .n_tenants = 3,
                               .tenant = v->tenants ? tenants : NULL,
                               .seq_tokens_max = CONTEXT,
                               .overlap = v->overlap,
                               .no_prefix_cache = v->no_cache};
  assert_int_equal(weft_engine_open(&config, &engine, &error), WEFT_OK);
  weft_request *handle[N_REQUESTS] = {NULL};
  memset(answers, 0, sizeof answers);
  uint32_t n_submitted = 0;
  for (uint64_t now = 1; n_submitted < N_REQUESTS || !weft_engine_idle(engine); now++) {
    while (n_submitted < N_REQUESTS &&
           n_waiting(engine, config.n_tenants) < config.waiting_max) { /* nobody is evicted */
      uint32_t at = arrival(v->order, n_submitted);
      weft_request_params params = requests[at];
      if (v->forks) params.sibling = sibling_of(handle, at);
      weft_status status = weft_engine_submit(engine, &params, now, &handle[at], &error);
      assert_int_equal(status, WEFT_OK);
      n_submitted += 1;
    }
    weft_status status = weft_engine_step(engine, now);
    assert_true(status == WEFT_OK || weft_fake_store_n_moving(store) > 0);
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
    solo_answer alone = solo_run(&fakes[requests[i].model].model, &requests[i], CONTEXT);
    assert_int_equal(answers[i].finish, alone.finish);
    assert_int_equal(answers[i].n, alone.n);
    assert_memory_equal(answers[i].tokens, alone.tokens, alone.n * sizeof(int32_t));
    free(alone.tokens);
  }
}

static uint32_t n_undisturbed; /* variants in which nobody was preempted */
static uint64_t n_lifted;      /* pages from the file, in all variants */
static uint64_t n_resumed;     /* canvases of preempted requests, in all variants */

static void check_variant(const variant *v, const char *name) {
  weft_engine_stats stats;
  run(v, &stats);
  check_solo();
  const weft_pager_stats *p = &stats.pager;
  printf(
      "%s: %llu steps, %llu mixed, %llu void rows, %llu preemptions, %llu hits, %llu forks, "
      "%llu pages out, %llu back, %llu lost; file: %llu out, %llu back, %llu lost\n",
      name, (unsigned long long)stats.n_steps, (unsigned long long)stats.n_mixed_steps,
      (unsigned long long)stats.n_void_rows, (unsigned long long)stats.n_preemptions, (unsigned long long)p->n_hits,
      (unsigned long long)p->n_forks, (unsigned long long)p->n_spilled, (unsigned long long)p->n_restored,
      (unsigned long long)p->n_spill_lost, (unsigned long long)p->n_to_file, (unsigned long long)p->n_from_file,
      (unsigned long long)p->n_file_lost);
  n_undisturbed += stats.n_preemptions == 0;
  if (v->tight) assert_true(stats.n_preemptions > 0);
  assert_true(v->no_cache ? p->n_hits == 0 : p->n_hits > 0);
  assert_true(v->forks ? p->n_forks > 0 : p->n_forks == 0);
  if (v->n_host > 0 && v->n_pages < 900) assert_true(p->n_spilled > 0 && p->n_restored > 0);
  if (v->fail_one_in > 0 && v->n_pages < 900) assert_true(p->n_spill_lost > 0);
  n_resumed += stats.n_canvases_resumed;
  n_lifted += p->n_from_file;
  if (v->n_file > 0 && v->n_pages < 900) assert_true(p->n_to_file > 0);
  if (v->running > 3) assert_true(stats.n_mixed_steps > 0);
  assert_true(stats.n_switches > 0);
}

/* Every order with every pool, chunk and cache; the rest alternates. */
static void same_tokens_in_every_combination(void **state) {
  static const uint32_t pools[] = {900, 150, 60}, chunks[] = {0, 7, 33};
  char name[120];
  (void)state;
  for (uint32_t i = 0; i < 108; i++) {
    uint32_t cache = i / 27; /* none, on the device, with a host tier, with a file behind that */
    variant v = {.order = i % 3,
                 .n_pages = pools[i / 3 % 3],
                 .chunk = chunks[i / 9 % 3],
                 .running = 40,
                 .no_cache = cache == 0,
                 .n_host = cache < 2    ? 0
                           : i % 2 == 0 ? 60
                           : cache == 2 ? 400
                                        : 100,
                 .n_file = cache == 3 ? 600 : 0,
                 .fail_one_in = cache >= 2 && i % 3 == 0 ? 3 : 0,
                 .n_saves = i % 3 * 4,
                 .overlap = i % 2 == 0,
                 .forks = i % 4 < 2,
                 .tenants = i % 5 < 2,
                 .tight = i / 3 % 3 == 2};
    (void)snprintf(name, sizeof name, "order %u, %u pages, %u on the host, %u in the file, chunk %u%s%s%s%s%s", v.order,
                   v.n_pages, v.n_host, v.n_file, v.chunk, v.no_cache ? ", no cache" : "",
                   v.fail_one_in > 0 ? ", copies fail" : "", v.overlap ? ", overlap" : "", v.forks ? ", forks" : "",
                   v.tenants ? ", tenants" : "");
    check_variant(&v, name);
  }
  assert_true(n_undisturbed > 0);
  assert_true(n_resumed > 0);
  assert_true(n_lifted > 0);
}

static void same_tokens_one_at_a_time(void **state) {
  static const variant variants[] = {
      {.order = 0, .n_pages = 60, .chunk = 1, .running = 3},
      {.order = 1, .n_pages = 60, .chunk = 7, .running = 3, .n_host = 1000},
      {.order = 2, .n_pages = 60, .chunk = 0, .running = 40, .n_host = 9, .overlap = true},
      {.order = 1, .n_pages = 400, .chunk = 96, .running = 1, .overlap = true},
  };
  static const char *const names[] = {"three at a time, row by row", "three at a time, large host",
                                      "nine pages on the host", "one at a time"};
  (void)state;
  for (uint32_t i = 0; i < sizeof variants / sizeof *variants; i++) {
    check_variant(&variants[i], names[i]);
  }
}

int main(void) {
  make_requests();
  const struct CMUnitTest tests[] = {cmocka_unit_test(same_tokens_in_every_combination),
                                     cmocka_unit_test(same_tokens_one_at_a_time)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
