/* SPDX-License-Identifier: MIT */
/* Pins: what is held, how long, who may take it, and who shares it when it is public. */
#include "tests/support/engine_world.h"

enum { PAGES = 60 };

static void open_pins(uint32_t n_pins, uint32_t n_pages) {
  plan_world();
  w.config.pins_max = n_pins;
  w.config.n_pages = n_pages;
  open_world();
}

static weft_pin_params prefix(uint32_t n_tokens) {
  return (weft_pin_params){.domain = {.low = 1}, .tokens = w.prompt, .n_tokens = n_tokens, .priority = 0};
}

static uint32_t pin(const weft_pin_params *p) {
  uint32_t id = 0;
  weft_error error = {{0}};
  if (weft_engine_pin(w.engine, p, ++w.now, &id, &error) != WEFT_OK) fail_msg("%s", error.text);
  return id;
}

static void pin_refused(const weft_pin_params *p, weft_status expected, const char *words) {
  uint32_t id = 0;
  weft_error error = {{0}};
  assert_int_equal(weft_engine_pin(w.engine, p, ++w.now, &id, &error), expected);
  if (strstr(error.text, words) == NULL) fail_msg("'%s' lacks '%s'", error.text, words);
}

static weft_pin_info only_pin(void) {
  weft_pin_info info[4] = {{0}};
  assert_int_equal(weft_engine_list_pins(w.engine, info, 4), 1);
  return info[0];
}

/* Until nothing runs. */
static void settle(void) {
  for (uint32_t i = 0; i < 400 && !weft_engine_idle(w.engine); i++) step(1);
  assert_true(weft_engine_idle(w.engine));
}

static void check(void) {
  weft_error error = {{0}};
  if (!weft_pager_check(weft_engine_pager(w.engine), &error)) fail_msg("%s", error.text);
}

/* Fills the pool with other prompts, one after the other, so that all that may be evicted is. */
static void flood(uint32_t tenant, uint64_t domain) {
  for (uint32_t i = 0; i < 12; i++) {
    weft_request_params p = ask(false, 60, 20);
    int32_t other[60];
    for (uint32_t k = 0; k < 60; k++) other[k] = (int32_t)((k * 7 + i * 3 + 1) % VOCAB);
    p.tokens = other;
    p.tenant = tenant;
    p.domain.low = domain;
    weft_request *r = submit(&p);
    settle();
    weft_engine_release(w.engine, r);
  }
}

static uint32_t cached_of(uint32_t n_tokens, uint64_t domain) {
  weft_request_params p = ask(false, n_tokens, 2);
  p.domain.low = domain;
  weft_request *r = submit(&p);
  settle();
  weft_event event;
  while (weft_engine_poll(w.engine, r, &event) == WEFT_OK) continue;
  weft_engine_release(w.engine, r);
  return event.usage.n_cached;
}

static void a_pin_outlives_pressure(void **state) {
  (void)state;
  open_pins(4, PAGES);
  assert_int_equal(cached_of(30, 1), 0);
  flood(0, 2);
  assert_int_equal(cached_of(30, 1), 0); /* gone: nobody kept it */
  flood(0, 2);
  weft_pin_params p = prefix(29); /* 24 in whole blocks of 8 */
  uint32_t id = pin(&p);
  assert_false(only_pin().held);
  settle();
  weft_pin_info info = only_pin();
  assert_true(info.held);
  assert_int_equal(info.id, id);
  assert_int_equal(info.n_tokens, 24);
  assert_int_equal(stats().n_pins_held, 1);
  assert_int_equal(stats().n_pin_pages, info.n_pages);
  flood(0, 2);
  assert_int_equal(cached_of(30, 1), 24);
  assert_int_equal(cached_of(30, 2), 0); /* another domain */
  check();
  assert_int_equal(weft_engine_unpin(w.engine, id), WEFT_OK);
  assert_int_equal(weft_engine_unpin(w.engine, id), WEFT_E_NOT_FOUND);
  assert_int_equal(weft_engine_list_pins(w.engine, &info, 1), 0);
  step(1);
  assert_int_equal(weft_pager_get_stats(weft_engine_pager(w.engine)).n_pinned, 0);
  flood(0, 2);
  assert_int_equal(cached_of(30, 1), 0);
}

static void pins_expire(void **state) {
  (void)state;
  open_pins(4, PAGES);
  weft_pin_params p = prefix(32);
  p.expires_us = 5000;
  (void)pin(&p);
  settle();
  w.now = 4998;
  step(1);
  assert_true(only_pin().held);
  step(1);
  weft_pin_info info;
  assert_int_equal(weft_engine_list_pins(w.engine, &info, 1), 0);
  assert_int_equal(stats().n_pins, 0);
  assert_int_equal(weft_pager_get_stats(weft_engine_pager(w.engine)).n_pinned, 0);
}

/* The prefix is known from then on, although nobody could compute it yet. */
static void a_pin_is_held_by_whoever_computes_it(void **state) {
  (void)state;
  open_pins(4, PAGES);
  weft_pin_params p = prefix(24);
  (void)pin(&p);
  settle();
  weft_engine_reset_cache(w.engine);
  step(1);
  assert_false(only_pin().held);
  assert_int_equal(weft_pager_get_stats(weft_engine_pager(w.engine)).n_pinned, 0);
  assert_int_equal(cached_of(20, 1), 0); /* too short */
  assert_false(only_pin().held);
  (void)cached_of(24, 2); /* not its domain */
  assert_false(only_pin().held);
  (void)cached_of(24, 1);
  assert_true(only_pin().held);
  check();
}

static void a_public_pin_is_for_all(void **state) {
  (void)state;
  open_pins(4, PAGES);
  weft_pin_params p = prefix(24);
  p.is_public = true;
  uint32_t id = pin(&p);
  settle();
  flood(0, 9);
  assert_int_equal(cached_of(40, 5), 24);
  assert_int_equal(cached_of(40, 6), 24); /* and what follows is its own again */
  assert_int_equal(cached_of(40, 6), 32);
  w.prompt[23] = (w.prompt[23] + 1) % VOCAB; /* another prefix: not public */
  assert_int_equal(cached_of(40, 5), 0);
  w.prompt[23] = (w.prompt[23] + VOCAB - 1) % VOCAB;
  assert_int_equal(weft_engine_unpin(w.engine, id), WEFT_OK);
  assert_int_equal(cached_of(40, 7), 0); /* not public any more */
  check();
}

static void the_longest_public_prefix_counts(void **state) {
  (void)state;
  open_pins(4, 200);
  weft_pin_params p = prefix(16);
  p.is_public = true;
  (void)pin(&p);
  p.n_tokens = 32;
  (void)pin(&p);
  settle();
  assert_int_equal(cached_of(50, 5), 32);
  assert_int_equal(cached_of(30, 6), 16);
  check();
}

static void what_cannot_be_pinned(void **state) {
  (void)state;
  open_pins(2, PAGES);
  weft_pin_params p = prefix(7);
  pin_refused(&p, WEFT_E_INVALID, "whole blocks of 8");
  p = prefix(24);
  p.model = 2;
  pin_refused(&p, WEFT_E_INVALID, "model number 2");
  p.model = 0;
  p.tenant = 7;
  pin_refused(&p, WEFT_E_INVALID, "tenant number 7");
  p = prefix(CONTEXT);
  pin_refused(&p, WEFT_E_TOO_LARGE, "context");
  step(1);
  assert_int_equal(stats().n_pins, 0);
  p = prefix(64);
  (void)pin(&p);
  p.domain.low = 2;
  (void)pin(&p);
  pin_refused(&p, WEFT_FULL, "2 pins");
  settle();
  check();
  (void)close_world(NULL);
  open_pins(8, 22); /* the longest request takes 12 + 6 of them */
  p = prefix(40);
  pin_refused(&p, WEFT_E_TOO_LARGE, "longest request");
  (void)close_world(NULL);
  plan_world();
  w.config.no_prefix_cache = true;
  w.config.pins_max = 1;
  open_world();
  p = prefix(40);
  pin_refused(&p, WEFT_E_INVALID, "cache is off");
}

/* Who may take a pin's blocks, and that it comes back without being computed when it was not evicted. */
static void pins_give_way_to_higher_classes(void **state) {
  (void)state;
  static const weft_tenant_config tenants[] = {{.priority_class = 0}, {.priority_class = 1}, {0}};
  for (uint32_t tenant = 0; tenant < 2; tenant++) {
    plan_world();
    w.config.tenant = tenants;
    w.config.pins_max = 2;
    w.config.n_pages = 36;
    open_world();
    weft_pin_params p = prefix(48);
    (void)pin(&p);
    settle();
    assert_true(only_pin().held);
    weft_request *r[2];
    for (uint32_t i = 0; i < 2; i++) { /* more than what is left, together */
      weft_request_params q = ask(false, 50 + i, 40);
      int32_t other[60];
      for (uint32_t k = 0; k < 60; k++) other[k] = (int32_t)((k * 7 + i * 3 + 1) % VOCAB);
      q.tokens = other;
      q.tenant = tenant;
      q.domain.low = 3;
      r[i] = submit(&q);
    }
    settle();
    check();
    assert_int_equal(stats().n_pins_dropped > 0, tenant == 1);
    assert_int_equal(only_pin().held, tenant == 0);
    all_end(r, 2, WEFT_FINISH_LENGTH);
    (void)cached_of(50, 1);
    assert_true(only_pin().held); /* again */
    (void)close_world(NULL);
  }
}

static void pins_of_a_broken_lane_give_back_their_memory(void **state) {
  (void)state;
  w.config.pins_max = 2;
  w.fake[0].fail_collect_at = 4;
  open_world();
  weft_pin_params p = prefix(24);
  (void)pin(&p);
  settle();
  assert_true(only_pin().held);
  weft_request_params q = ask(false, 10, 30);
  weft_request *r = submit(&q);
  settle();
  assert_int_equal(end_and_release(r), WEFT_FINISH_ERROR);
  assert_false(only_pin().held);
  assert_int_equal(weft_pager_get_stats(weft_engine_pager(w.engine)).n_pinned, 0);
}

/* The operator pays for a pin also where a request of its tenant held the blocks before: so the tenant
 * keeps all that its limit gives it. */
static void a_pin_takes_nothing_of_a_tenants_limit(void **state) {
  (void)state;
  weft_tenant_config tenants[3] = {{.blocks_max = 20}, {0}, {0}};
  plan_world();
  w.config.pins_max = 2;
  w.config.tenant = tenants;
  open_world();
  weft_request_params p = ask(false, 40, 20), large = ask(false, 72, 20);
  weft_request *r = submit(&p);
  step(3);
  weft_pin_params held = prefix(40);
  (void)pin(&held);
  settle();
  assert_true(only_pin().held);
  weft_engine_release(w.engine, r);
  step(2);
  assert_int_equal(weft_pager_owner_usage(weft_engine_pager(w.engine), 0).n_pinned, 0);
  large.asked.no_cache = true;
  r = submit(&large);
  settle();
  assert_int_equal(end_and_release(r), WEFT_FINISH_LENGTH);
  check();
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(a_pin_outlives_pressure),
                                     TEST(pins_expire),
                                     TEST(a_pin_is_held_by_whoever_computes_it),
                                     TEST(a_public_pin_is_for_all),
                                     TEST(the_longest_public_prefix_counts),
                                     TEST(what_cannot_be_pinned),
                                     TEST(pins_give_way_to_higher_classes),
                                     TEST(a_pin_takes_nothing_of_a_tenants_limit),
                                     TEST(pins_of_a_broken_lane_give_back_their_memory)};
  return cmocka_run_group_tests(tests, expect_broken_runners, NULL);
}
