/* SPDX-License-Identifier: MIT */
/* Tenants in the engine: who shares a step, who gives way, what limits hold and whom they do not
 * touch. */
#include "scheduler/policy.h"
#include "tests/support/engine_world.h"

static weft_tenant_config tenants[3];

static void open_tenants(weft_tenant_config a, weft_tenant_config b) {
  tenants[0] = a;
  tenants[1] = b;
  w.config.n_tenants = 2;
  w.config.tenant = tenants;
  open_world();
}

static weft_request_params ask_as(uint32_t tenant, uint32_t n_tokens, uint32_t max_tokens) {
  weft_request_params p = ask(false, n_tokens, max_tokens);
  p.tenant = tenant;
  p.domain.low = tenant + 1;
  p.no_cache = true;
  p.ignore_eos = true;
  return p;
}

static weft_tenant_stats tenant_stats(uint32_t tenant) {
  weft_tenant_stats s;
  weft_engine_get_tenant_stats(w.engine, tenant, &s);
  return s;
}

/* Prompts of 80 rows in steps of 40: a short one of another tenant does not wait behind them all. */
static void prompts_take_turns(void **state) {
  (void)state;
  plan_world();
  open_tenants((weft_tenant_config){0}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 80, 1);
  weft_request *large[6];
  for (uint32_t i = 0; i < 6; i++) large[i] = submit(&p);
  step(1);
  weft_request_params q = ask_as(1, 20, 1);
  weft_request *small = submit(&q);
  step(2);
  assert_int_equal(finish_of(small, NULL, NULL).finish, WEFT_FINISH_LENGTH);
  assert_true(tenant_stats(0).n_finished <= 1);
  run_out();
  weft_engine_release(w.engine, small);
  for (uint32_t i = 0; i < 6; i++) weft_engine_release(w.engine, large[i]);
}

/* A running limit holds back its tenant and nobody else. */
static void a_running_limit_holds_back_its_tenant(void **state) {
  (void)state;
  plan_world();
  open_tenants((weft_tenant_config){.running_max = 2}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 6, 8), q = ask_as(1, 6, 8);
  weft_request *mine[6], *other[3];
  for (uint32_t i = 0; i < 6; i++) mine[i] = submit(&p);
  for (uint32_t i = 0; i < 3; i++) other[i] = submit(&q);
  step(1);
  assert_int_equal(tenant_stats(0).n_running, 2);
  assert_int_equal(tenant_stats(0).n_waiting, 4);
  assert_int_equal(tenant_stats(1).n_running, 3);
  run_out();
  for (uint32_t i = 0; i < 6; i++) assert_int_equal(end_and_release(mine[i]), WEFT_FINISH_LENGTH);
  for (uint32_t i = 0; i < 3; i++) assert_int_equal(end_and_release(other[i]), WEFT_FINISH_LENGTH);
}

/* A block limit: the tenant's requests wait for each other, or give way; it never pays for more;
 * nobody else is preempted; what could never fit is refused. */
static void a_block_limit_holds_back_its_tenant(void **state) {
  (void)state;
  plan_world();
  open_tenants((weft_tenant_config){.blocks_max = 14}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 20, 40), never = ask_as(0, 80, 16), q = ask_as(1, 20, 40);
  refused(&never, WEFT_E_TOO_LARGE, "14 pages that this tenant may hold");
  weft_request *mine[4], *other[3];
  for (uint32_t i = 0; i < 4; i++) mine[i] = submit(&p);
  for (uint32_t i = 0; i < 3; i++) other[i] = submit(&q);
  for (uint32_t i = 0; i < 60; i++) {
    step(1);
    assert_true(weft_pager_owner_usage(weft_engine_pager(w.engine), 0).n_pinned <= 14);
  }
  for (uint32_t i = 0; i < 3; i++) {
    weft_event end = finish_of(other[i], NULL, NULL);
    assert_int_equal(end.finish, WEFT_FINISH_LENGTH);
    assert_int_equal(end.usage.n_preemptions, 0);
    weft_engine_release(w.engine, other[i]);
  }
  run_out();
  for (uint32_t i = 0; i < 4; i++) check_equal_solo(mine[i], &p);
}

/* What the cache keeps of a prompt while another tenant sends n others. */
static uint32_t cached_after(int32_t class, uint32_t n) {
  int32_t tokens[64];
  plan_world();
  w.config.n_pages = 48;
  open_tenants((weft_tenant_config){.priority_class = class}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 60, 1), q = ask_as(1, 60, 1);
  p.no_cache = q.no_cache = false;
  weft_request *first = submit(&p);
  run_out();
  assert_int_equal(end_and_release(first), WEFT_FINISH_LENGTH);
  for (uint32_t i = 0; i < n; i++) {
    for (uint32_t k = 0; k < 60; k++) tokens[k] = (int32_t)((i * 7 + k * 3 + 5) % 40);
    q.tokens = tokens;
    weft_request *r = submit(&q);
    run_out();
    assert_int_equal(end_and_release(r), WEFT_FINISH_LENGTH);
  }
  weft_request *again = submit(&p);
  run_out();
  uint32_t n_cached = finish_of(again, NULL, NULL).usage.n_cached;
  weft_engine_release(w.engine, again);
  (void)close_world(NULL);
  return n_cached;
}

/* The blocks of a higher class stay cached for longer. */
static void a_class_is_kept_in_the_cache(void **state) {
  (void)state;
  assert_int_equal(cached_after(0, 3), 56);
  assert_int_equal(cached_after(0, 6), 0);
  assert_int_equal(cached_after(1, 6), 56);
  assert_int_equal(cached_after(1, 12), 0); /* and not for ever */
}

/* All places are taken by one tenant: another one gets its share of them at once; the answers stay
 * what they are. */
static void a_share_of_the_places(void **state) {
  (void)state;
  plan_world();
  w.config.running_max = 4;
  open_tenants((weft_tenant_config){0}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 6, 60), q = ask_as(1, 6, 40);
  weft_request *mine[4], *other[3];
  for (uint32_t i = 0; i < 4; i++) mine[i] = submit(&p);
  step(4);
  assert_int_equal(tenant_stats(0).n_running, 4);
  for (uint32_t i = 0; i < 3; i++) other[i] = submit(&q);
  step(6);
  assert_int_equal(tenant_stats(0).n_running, 2); /* and not less */
  assert_int_equal(tenant_stats(1).n_running, 2);
  assert_int_equal(stats().n_preemptions, 2);
  run_out();
  for (uint32_t i = 0; i < 4; i++) check_equal_solo(mine[i], &p);
  for (uint32_t i = 0; i < 3; i++) check_equal_solo(other[i], &q);
}

/* The same with pages. */
static void a_share_of_the_pages(void **state) {
  (void)state;
  plan_world();
  w.config.n_pages = 40;
  open_tenants((weft_tenant_config){0}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 40, 30), q = ask_as(1, 40, 2);
  weft_request *mine[4];
  for (uint32_t i = 0; i < 4; i++) mine[i] = submit(&p);
  step(12);
  assert_true(weft_pager_owner_usage(weft_engine_pager(w.engine), 0).n_pinned > 26);
  weft_request *other = submit(&q);
  step(8);
  assert_int_equal(finish_of(other, NULL, NULL).finish, WEFT_FINISH_LENGTH);
  assert_int_equal(tenant_stats(0).n_finished, 0);
  assert_true(tenant_stats(0).n_preemptions > 0);
  run_out();
  for (uint32_t i = 0; i < 4; i++) check_equal_solo(mine[i], &p);
  weft_engine_release(w.engine, other);
}

/* A low class starts last, but after 20 s it stands with the others. */
static void a_low_class_does_not_starve(void **state) {
  (void)state;
  plan_world();
  w.config.running_max = 1;
  w.config.waiting_max = 200;
  open_tenants((weft_tenant_config){.priority_class = WEFT_CLASS_LOW},
               (weft_tenant_config){.priority_class = WEFT_CLASS_HIGH});
  weft_request_params p = ask_as(0, 4, 1), q = ask_as(1, 4, 1);
  weft_request *low = NULL, *high[60];
  uint64_t start = w.now;
  for (uint32_t i = 0; i < 60; i++) { /* one comes every second, three in four are served */
    high[i] = submit(&q);
    if (i == 3) low = submit(&p);
    w.now += 1000000;
    if (i > 3 && i % 4 != 3) step(1);
  }
  run_out();
  uint64_t waited = finish_of(low, NULL, NULL).usage.started_us - start;
  assert_in_range(waited, 20000000, 27000000);
  weft_engine_release(w.engine, low);
  for (uint32_t i = 0; i < 60; i++) weft_engine_release(w.engine, high[i]);
}

/* A tenant whose requests grow old because it has many gains nothing over others of its class. */
static void a_flood_does_not_age_past_others(void **state) {
  (void)state;
  plan_world();
  w.config.running_max = 1;
  w.config.waiting_max = 100;
  open_tenants((weft_tenant_config){0}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 4, 1), q = ask_as(1, 4, 1);
  weft_request *many[90];
  for (uint32_t i = 0; i < 90; i++) many[i] = submit(&p);
  for (uint32_t i = 0; i < 30; i++) {
    w.now += 1000000;
    step(1);
    if (i < 15) continue;
    weft_request *one = submit(&q);
    step(2);
    assert_int_equal(end_and_release(one), WEFT_FINISH_LENGTH);
  }
  run_out();
  for (uint32_t i = 0; i < 90; i++) weft_engine_release(w.engine, many[i]);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void expect_full(weft_request_params *p, const char *words, uint64_t low_us, uint64_t high_us) {
  weft_request *r = NULL;
  weft_error error = {{0}};
  uint64_t retry_us = 0;
  p->retry_us = &retry_us;
  assert_int_equal(weft_engine_submit(w.engine, p, w.now, &r, &error), WEFT_FULL);
  p->retry_us = NULL;
  if (strstr(error.text, words) == NULL) fail_msg("'%s' lacks '%s'", error.text, words);
  assert_in_range(retry_us, low_us, high_us);
}

static void tokens_come_back(void **state) {
  (void)state;
  plan_world();
  open_tenants((weft_tenant_config){.tokens_per_minute = 60}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 10, 30), q = ask_as(1, 10, 30), never = ask_as(0, 31, 30);
  refused(&never, WEFT_E_TOO_LARGE, "this tenant's 60 a minute");
  weft_request *r = submit(&p);
  expect_full(&p, "20 of this tenant's 60 tokens a minute are left", 19990000, 20000000);
  weft_request *other = submit(&q); /* nobody else is touched */
  weft_engine_cancel(w.engine, r);  /* never started: all come back */
  step(1);
  assert_int_equal(end_and_release(r), WEFT_FINISH_CANCELLED);
  r = submit(&p);
  run_out();
  assert_int_equal(end_and_release(r), WEFT_FINISH_LENGTH); /* used to the last token */
  expect_full(&p, "tokens a minute", 19900000, 20000000);
  w.now += 20000000;
  r = submit(&p);
  p.max_tokens = 1;
  expect_full(&p, "tokens a minute", 10900000, 11000000);
  run_out();
  assert_int_equal(tenant_stats(0).n_refused[WEFT_REFUSED_TOKENS], 3);
  assert_int_equal(tenant_stats(1).n_refused[WEFT_REFUSED_TOKENS], 0);
  weft_engine_release(w.engine, r);
  weft_engine_release(w.engine, other);
}

/* The queue of a tenant is full: the estimate is the time in which one of those who wait starts. */
static void a_full_queue_is_estimated(void **state) {
  (void)state;
  plan_world();
  w.config.running_max = 1;
  open_tenants((weft_tenant_config){.waiting_max = 4}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 40, 9);
  weft_request *r[60];
  uint32_t n = 0;
  weft_error error;
  for (uint32_t i = 0; i < 400; i++) { /* a step takes 1000 us, a request nine steps */
    bool room = n < 60 && tenant_stats(0).n_waiting < 4;
    if (room && weft_engine_submit(w.engine, &p, w.now, &r[n], &error) == WEFT_OK) n += 1;
    w.now += 1000;
    (void)weft_engine_step(w.engine, w.now);
  }
  while (weft_engine_submit(w.engine, &p, w.now, &r[n], &error) == WEFT_OK) n += 1;
  expect_full(&p, "this tenant's queue is full", 5000, 15000);
  assert_true(tenant_stats(0).n_refused[WEFT_REFUSED_TENANT_QUEUE] >= 2);
  assert_int_equal(tenant_stats(1).n_refused[WEFT_REFUSED_TENANT_QUEUE], 0);
  run_out();
  for (uint32_t i = 0; i < n; i++) weft_engine_release(w.engine, r[i]);
}

static void open_refuses_odd_tenants(void **state) {
  (void)state;
  plan_world();
  open_world();
  weft_error error = {{0}};
  weft_engine *engine = NULL;
  w.config.tenant = tenants;
  tenants[0] = (weft_tenant_config){.weight = 1001};
  assert_int_equal(weft_engine_open(&w.config, &engine, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "weight of tenant 0 is 1001"));
  tenants[0] = (weft_tenant_config){.priority_class = 2};
  assert_int_equal(weft_engine_open(&w.config, &engine, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "class of tenant 0 is 2"));
}

/* Who paid for a block pays as long as another tenant's request holds it. When that one leaves, what
 * waited for room within the limit starts at once, although nothing else happens. */
static void blocks_come_free_with_somebody_else(void **state) {
  (void)state;
  plan_world();
  open_tenants((weft_tenant_config){.blocks_max = 16}, (weft_tenant_config){0});
  weft_request_params first = ask_as(0, 40, 8), shares = ask_as(1, 40, 50), large = ask_as(0, 88, 4);
  int32_t other[88];
  for (uint32_t i = 0; i < 88; i++) other[i] = (int32_t)((i * 7 + 3) % VOCAB);
  large.tokens = other;
  first.domain.low = shares.domain.low = large.domain.low = 9;
  first.no_cache = shares.no_cache = large.no_cache = false;
  weft_request *r = submit(&large); /* is cached from now on: to find it may need too many blocks */
  run_out();
  check_equal_solo(r, &large);
  for (uint32_t i = 0; i < 17; i++) { /* it waits for so many plans at most between two tries */
    weft_request *payer = submit(&first);
    step(3);
    weft_request *holder = submit(&shares);
    step(9 + i);
    check_equal_solo(payer, &first);
    r = submit(&large);
    step(2);
    assert_int_equal(tenant_stats(0).n_running, 0);
    run_out();
    check_equal_solo(holder, &shares);
    check_equal_solo(r, &large);
  }
}

/* What others evict is told of a tenant that does nothing. */
static void what_is_cached_is_told_to_idle_tenants(void **state) {
  (void)state;
  plan_world();
  w.config.n_pages = 24;
  open_tenants((weft_tenant_config){0}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 40, 4), q = ask_as(1, 80, 8);
  p.no_cache = false;
  weft_request *r = submit(&p);
  run_out();
  assert_int_equal(end_and_release(r), WEFT_FINISH_LENGTH);
  uint32_t n_before = tenant_stats(0).n_blocks_cached;
  assert_true(n_before > 0);
  r = submit(&q);
  run_out();
  assert_int_equal(end_and_release(r), WEFT_FINISH_LENGTH);
  assert_true(tenant_stats(0).n_blocks_cached < n_before);
  assert_int_equal(tenant_stats(0).n_blocks_cached, weft_pager_owner_usage(weft_engine_pager(w.engine), 0).n_cached);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(prompts_take_turns),
                                     TEST(a_running_limit_holds_back_its_tenant),
                                     TEST(a_block_limit_holds_back_its_tenant),
                                     TEST(a_class_is_kept_in_the_cache),
                                     TEST(blocks_come_free_with_somebody_else),
                                     TEST(what_is_cached_is_told_to_idle_tenants),
                                     TEST(a_share_of_the_places),
                                     TEST(a_share_of_the_pages),
                                     TEST(a_low_class_does_not_starve),
                                     TEST(a_flood_does_not_age_past_others),
                                     TEST(tokens_come_back),
                                     TEST(a_full_queue_is_estimated),
                                     TEST(open_refuses_odd_tenants)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
