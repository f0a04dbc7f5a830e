/* SPDX-License-Identifier: MIT */
/* Counters of the prefix cache tell the truth under memory pressure: a prompt is looked up once, when its request
 * starts to run, however often it was tried before and however often it resumes. And what is only tried leaves no
 * trace in the order of eviction. */
#include "tests/support/engine_world.h"

static weft_pager_stats pager_stats(void) {
  return stats().pager;
}

/* Six answers that do not fit together, over a prompt that all share: some wait, some are preempted. */
static void run_under_pressure(bool overlap, uint32_t n_pages, weft_request **r, uint32_t n) {
  plan_world();
  w.config.overlap = overlap;
  w.config.n_pages = n_pages;
  open_world();
  for (uint32_t i = 0; i < n; i++) {
    weft_request_params p = ask(false, 30 + i, 40);
    r[i] = submit(&p);
    step(2);
  }
  run_out();
}

static void a_prompt_is_counted_once(void **state) {
  (void)state;
  uint64_t n_preemptions = 0;
  for (uint32_t n_pages = 26; n_pages < 60; n_pages++) {
    enum { N = 6 };
    weft_request *r[N];
    run_under_pressure(n_pages % 2 == 0, n_pages, r, N);
    weft_engine_stats s = stats();
    uint64_t n_prompt = 0, n_cached = 0;
    for (uint32_t i = 0; i < N; i++) {
      weft_event end = finish_of(r[i], NULL, NULL);
      n_prompt += 30 + i;
      n_cached += end.usage.n_cached;
      weft_engine_release(w.engine, r[i]);
    }
    assert_int_equal(s.pager.n_admits, N);
    assert_int_equal(s.pager.n_prompt_tokens, n_prompt);
    assert_int_equal(s.pager.n_hit_tokens, n_cached);
    assert_int_equal(s.pager.n_resumes, s.n_preemptions);
    assert_true(s.pager.n_resumed_tokens >= 30 * s.n_preemptions);
    assert_true(s.pager.n_resumed_hit_tokens <= s.pager.n_resumed_tokens);
    n_preemptions += s.n_preemptions;
    (void)close_world(NULL);
  }
  assert_true(n_preemptions > 10);
}

/* Choices that fork count as forks when they start, not each time that they find no room. */
static void a_fork_is_counted_once(void **state) {
  (void)state;
  enum { N = 4 };
  for (uint32_t n_pages = 26; n_pages < 50; n_pages++) {
    plan_world();
    w.config.n_pages = n_pages;
    open_world();
    weft_request *r[N];
    for (uint32_t i = 0; i < N; i++) {
      weft_request_params p = ask(false, 33, 40);
      p.sibling = i == 0 ? NULL : r[0];
      p.asked.sampling.choice = i;
      r[i] = submit(&p);
    }
    run_out();
    weft_pager_stats s = pager_stats();
    assert_int_equal(s.n_forks + s.n_admits, N);
    assert_int_equal(s.n_forked_tokens, 32 * s.n_forks);
    release_all(r, N);
    (void)close_world(NULL);
  }
}

/* A pin that looks whether its prefix is there, and holds it, is no prompt. */
static void a_pin_is_no_prompt(void **state) {
  (void)state;
  w.config.pins_max = 2;
  open_world();
  weft_pin_params pin = {.tokens = w.prompt, .n_tokens = 24, .domain = {.low = 1}};
  uint32_t id = 0;
  weft_error error = {{0}};
  assert_int_equal(weft_engine_pin(w.engine, &pin, ++w.now, &id, &error), WEFT_OK);
  for (uint32_t i = 0; i < 3; i++) {
    weft_request_params p = ask(false, 40, 4);
    weft_request *r = submit(&p);
    for (uint32_t k = 0; k < 100 && !weft_engine_idle(w.engine); k++) step(1);
    weft_engine_release(w.engine, r);
  }
  assert_int_equal(stats().n_pins_held, 1);
  assert_int_equal(pager_stats().n_admits, 4); /* with the one that computes the pin */
  assert_int_equal(pager_stats().n_prompt_tokens, stats().n_prompt_tokens);
  assert_int_equal(pager_stats().n_hit_tokens, stats().n_cached_tokens);
  assert_int_equal(weft_engine_unpin(w.engine, id), WEFT_OK);
  step(1);
}

static void an_idle_engine_shows_that_its_cache_was_reset(void **state) {
  (void)state;
  open_world();
  weft_request_params p = ask(false, 40, 4);
  weft_request *r = submit(&p);
  run_out();
  weft_engine_release(w.engine, r);
  assert_true(pager_stats().n_cached > 0);
  weft_engine_reset_cache(w.engine);
  step(1);
  assert_int_equal(pager_stats().n_cached, 0);
  assert_int_equal(pager_stats().n_free, pager_stats().n_pages);
}

/* How much of the prompt the pager would find now. */
static uint32_t cached_of(const int32_t *tokens, uint32_t n_tokens) {
  weft_pager *pager = weft_engine_pager(w.engine);
  weft_admit args = {.model = 1, .domain = {.low = 1}, .tokens = tokens, .n_tokens = n_tokens};
  weft_seq seq, waits_for;
  uint32_t n_cached = 0;
  assert_int_equal(weft_pager_admit(pager, &args, &seq, &n_cached, &waits_for), WEFT_OK);
  weft_pager_release(pager, seq);
  return n_cached;
}

/* A request that waits for room tries again and again. Its cached prefix ages all the same: what was used after it
 * outlives it. */
static void trying_again_keeps_no_prefix_young(void **state) {
  (void)state;
  enum { N = 40 };
  int32_t older[80], newer[N], other[48];
  for (uint32_t i = 0; i < 80; i++) older[i] = (int32_t)((i * 3 + 1) % VOCAB);
  for (uint32_t i = 0; i < N; i++) newer[i] = (int32_t)((i * 11 + 2) % VOCAB);
  for (uint32_t i = 0; i < 48; i++) other[i] = (int32_t)((i * 13 + 5) % VOCAB);
  plan_world();
  w.fake[1].model.n_groups = 1; /* blocks of 8 tokens, all kept */
  w.config.n_pages = 16;
  open_world();
  const int32_t *first[] = {older, newer};
  for (uint32_t i = 0; i < 2; i++) { /* five blocks each */
    weft_request_params p = ask(false, N, 1);
    p.model = 1;
    p.tokens = first[i];
    weft_request *r = submit(&p);
    run_out();
    weft_engine_release(w.engine, r);
  }
  weft_request_params p = ask(false, 48, 40);
  p.model = 1;
  p.tokens = other;
  weft_request *runs = submit(&p);
  step(3);
  p = ask(false, 80, 2);
  p.model = 1;
  p.tokens = older;
  weft_request *waits = submit(&p);
  while (pager_stats().n_evicted < 3) step(1); /* the running one takes a block every eight steps */
  assert_int_equal(stats().n_waiting, 1);
  assert_int_equal(cached_of(newer, N), N);
  assert_int_equal(cached_of(older, N), N - 3 * 8);
  run_out();
  weft_engine_release(w.engine, runs);
  weft_engine_release(w.engine, waits);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(a_prompt_is_counted_once),
      TEST(a_fork_is_counted_once),
      TEST(a_pin_is_no_prompt),
      TEST(an_idle_engine_shows_that_its_cache_was_reset),
      TEST(trying_again_keeps_no_prefix_young),
  };
  return cmocka_run_group_tests_name("scheduler: counters", tests, NULL, NULL);
}
