/* SPDX-License-Identifier: MIT */
/* Tenants in the engine: who shares a step, who gives way, what limits hold and whom they do not
 * touch. */
#include "base/memory.h"
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

/* Two tenants of equal weight; so many of their requests may wait and run. */
static void open_queue(uint32_t waiting_max, uint32_t running_max) {
  w.config.waiting_max = waiting_max;
  w.config.running_max = running_max;
  open_tenants((weft_tenant_config){0}, (weft_tenant_config){0});
}

/* Prompts of 80 rows in steps of 40: a short one of another tenant does not wait behind them all. */
static void prompts_take_turns(void **state) {
  (void)state;
  open_tenants((weft_tenant_config){0}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 80, 1);
  weft_request *large[6];
  submit_all(&p, large, 6);
  step(1);
  weft_request_params q = ask_as(1, 20, 1);
  weft_request *small = submit(&q);
  step(2);
  assert_int_equal(finish_of(small, NULL, NULL).finish, WEFT_FINISH_LENGTH);
  assert_true(tenant_stats(0).n_finished <= 1);
  run_out();
  weft_engine_release(w.engine, small);
  release_all(large, 6);
}

/* A running limit holds back its tenant and nobody else. */
static void a_running_limit_holds_back_its_tenant(void **state) {
  (void)state;
  open_tenants((weft_tenant_config){.running_max = 2}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 6, 8), q = ask_as(1, 6, 8);
  weft_request *mine[6], *other[3];
  submit_all(&p, mine, 6);
  submit_all(&q, other, 3);
  step(1);
  assert_int_equal(tenant_stats(0).n_running, 2);
  assert_int_equal(tenant_stats(0).n_waiting, 4);
  assert_int_equal(tenant_stats(1).n_running, 3);
  run_out();
  all_end(mine, 6, WEFT_FINISH_LENGTH);
  all_end(other, 3, WEFT_FINISH_LENGTH);
}

/* A block limit: the tenant's requests wait for each other, or give way; it never pays for more;
 * nobody else is preempted; what could never fit is refused. */
static void a_block_limit_holds_back_its_tenant(void **state) {
  (void)state;
  open_tenants((weft_tenant_config){.blocks_max = 14}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 20, 40), never = ask_as(0, 80, 16), q = ask_as(1, 20, 40);
  refused(&never, WEFT_E_TOO_LARGE, "14 pages that this tenant may hold");
  weft_request *mine[4], *other[3];
  submit_all(&p, mine, 4);
  submit_all(&q, other, 3);
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
  p.asked.no_cache = q.asked.no_cache = false;
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
  w.config.running_max = 4;
  open_tenants((weft_tenant_config){0}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 6, 60), q = ask_as(1, 6, 40);
  weft_request *mine[4], *other[3];
  submit_all(&p, mine, 4);
  step(4);
  assert_int_equal(tenant_stats(0).n_running, 4);
  submit_all(&q, other, 3);
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
  w.config.n_pages = 40;
  open_tenants((weft_tenant_config){0}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 40, 30), q = ask_as(1, 40, 2);
  weft_request *mine[4];
  submit_all(&p, mine, 4);
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

/* Two models. Tenant 2 runs on the second one, whose turn does not end, and is far ahead; prompts of tenant 1 wait for
 * the first one and hold more than its share of places, so it calls no lane. Tenant 0 calls the second lane for 28
 * steps. Tenant 1 has a tenth of its weight: three steps meanwhile, so that it has nothing to catch up on when tenant 0
 * then asks the first model. */
static void a_call_brings_nobody_ahead(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 3; i++) tenants[i] = (weft_tenant_config){.weight = i == 1 ? 1 : 10};
  w.config.tenant = tenants;
  w.fake[0].model.n_canvas = 0; /* it would have more rows than a step */
  w.config.rows_per_step = 4;
  w.config.prefill_chunk = 2; /* two prompts share a step */
  w.config.slice_us = 1000000000;
  open_world();
  weft_request_params busy = ask_as(2, 2, 94), behind = ask_as(1, 80, 1), calls = ask_as(0, 56, 1),
                      last = ask_as(0, 4, 1);
  busy.model = calls.model = 1;
  weft_request *others[2], *waits[3], *heavy[2];
  submit_all(&busy, others, 2);
  step(2);
  submit_all(&behind, waits, 3);
  step(50);
  assert_int_equal(tenant_stats(1).n_running, 2);
  uint64_t n_before = tenant_stats(1).n_rows;
  submit_all(&calls, heavy, 2);
  do step(1);
  while (tenant_stats(0).n_running > 0);
  assert_int_equal(tenant_stats(2).n_running, 2);
  assert_int_equal(tenant_stats(1).n_rows - n_before, 3 * 4);
  weft_request *request = submit(&last);
  step(2);
  assert_int_equal(end_and_release(request), WEFT_FINISH_LENGTH);
  run_out();
  all_end(others, 2, WEFT_FINISH_LENGTH);
  all_end(waits, 3, WEFT_FINISH_LENGTH);
  all_end(heavy, 2, WEFT_FINISH_LENGTH);
}

/* Two models. A request of tenant 2 on the second one comes to lack pages, so the first one has the turn, which does
 * not end. Once pages are free it gets them although its model has no turn: no request starts before it has them, and
 * tenant 0 would wait for the end of the turn. */
static void who_lacks_pages_needs_no_turn(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 3; i++)
    tenants[i] = (weft_tenant_config){.weight = i == 1 ? 8 : 1, .priority_class = i == 2 ? WEFT_CLASS_LOW : 0};
  w.config.tenant = tenants;
  w.config.slice_us = 1000000000;
  w.config.rows_per_step = 8;
  w.config.n_pages = 19;
  open_world();
  weft_request_params lacks = ask_as(2, 2, 90), large = ask_as(1, 64, 4), turn = ask_as(1, 2, 60),
                      late = ask_as(0, 4, 1);
  lacks.model = 1;
  weft_request *r[4] = {submit(&lacks)};
  step(3);
  r[1] = submit(&large);
  r[2] = submit(&turn);
  do step(1);
  while (tenant_stats(1).n_finished == 0);
  assert_int_equal(tenant_stats(2).n_running, 1);
  uint64_t n_rows = tenant_stats(2).n_rows;
  r[3] = submit(&late);
  step(2);
  assert_int_equal(tenant_stats(0).n_finished, 1);
  assert_true(tenant_stats(2).n_rows > n_rows);
  run_out();
  all_end(r, 4, WEFT_FINISH_LENGTH);
}

/* A low class starts last, but after 20 s it stands with the others. */
static void a_low_class_does_not_starve(void **state) {
  (void)state;
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
  release_all(high, 60);
}

/* A tenant whose requests grow old because it has many gains nothing over others of its class. */
static void a_flood_does_not_age_past_others(void **state) {
  (void)state;
  w.config.running_max = 1;
  w.config.waiting_max = 100;
  open_tenants((weft_tenant_config){0}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 4, 1), q = ask_as(1, 4, 1);
  weft_request *many[90];
  submit_all(&p, many, 90);
  for (uint32_t i = 0; i < 30; i++) {
    w.now += 1000000;
    step(1);
    if (i < 15) continue;
    weft_request *one = submit(&q);
    step(2);
    assert_int_equal(end_and_release(one), WEFT_FINISH_LENGTH);
  }
  run_out();
  release_all(many, 90);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void come_again(weft_request_params *p, weft_status expected, const char *words, uint64_t low_us,
                       uint64_t high_us) {
  weft_request *r = NULL;
  weft_error error = {{0}};
  uint64_t retry_us = 0;
  p->retry_us = &retry_us;
  assert_int_equal(weft_engine_submit(w.engine, p, w.now, &r, &error), expected);
  p->retry_us = NULL;
  if (strstr(error.text, words) == NULL) fail_msg("'%s' lacks '%s'", error.text, words);
  assert_in_range(retry_us, low_us, high_us);
}

static void tokens_come_back(void **state) {
  (void)state;
  open_tenants((weft_tenant_config){.tokens_per_minute = 60}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 10, 30), q = ask_as(1, 10, 30), never = ask_as(0, 31, 30);
  refused(&never, WEFT_E_LIMIT, "this tenant's 60 a minute");
  weft_request *r = submit(&p);
  come_again(&p, WEFT_RATE_LIMIT, "20 of this tenant's 60 tokens a minute are left", 19990000, 20000000);
  weft_request *other = submit(&q); /* nobody else is touched */
  weft_engine_cancel(w.engine, r);  /* never started: all come back */
  step(1);
  assert_int_equal(end_and_release(r), WEFT_FINISH_CANCELLED);
  r = submit(&p);
  run_out();
  assert_int_equal(end_and_release(r), WEFT_FINISH_LENGTH); /* used to the last token */
  come_again(&p, WEFT_RATE_LIMIT, "tokens a minute", 19900000, 20000000);
  w.now += 20000000;
  r = submit(&p);
  p.max_tokens = 1;
  come_again(&p, WEFT_RATE_LIMIT, "tokens a minute", 10900000, 11000000);
  run_out();
  assert_int_equal(tenant_stats(0).n_refused[WEFT_REFUSED_TOKENS], 3);
  assert_int_equal(tenant_stats(1).n_refused[WEFT_REFUSED_TOKENS], 0);
  weft_engine_release(w.engine, r);
  weft_engine_release(w.engine, other);
}

/* The queue of a tenant is full: the estimate is the time in which one of those who wait starts. */
static void a_full_queue_is_estimated(void **state) {
  (void)state;
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
  come_again(&p, WEFT_FULL, "this tenant's queue is full", 5000, 15000);
  assert_true(tenant_stats(0).n_refused[WEFT_REFUSED_TENANT_QUEUE] >= 2);
  assert_int_equal(tenant_stats(1).n_refused[WEFT_REFUSED_TENANT_QUEUE], 0);
  run_out();
  release_all(r, n);
}

/* ---- a submission is one act ----------------------------------------------------------------- */

/* n choices of one prompt. */
static weft_status submit_choices(const weft_request_params *p, uint32_t n, weft_request **r, weft_error *error) {
  weft_request_params all[WEFT_SUBMISSION_MAX];
  for (uint32_t i = 0; i < n; i++) {
    all[i] = *p;
    all[i].joins = i > 0;
    all[i].asked.sampling.choice = i;
    all[i].asked.sampling.temperature = 1.0f;
  }
  return weft_engine_submit_all(w.engine, all, n, ++w.now, r, error);
}

static void choices_refused(const weft_request_params *p, uint32_t n, weft_status expected, const char *words) {
  weft_request *r[WEFT_SUBMISSION_MAX];
  weft_error error = {{0}};
  for (uint32_t i = 0; i < n; i++) r[i] = (weft_request *)(void *)&w;
  assert_int_equal(submit_choices(p, n, r, &error), expected);
  for (uint32_t i = 0; i < n; i++) assert_null(r[i]);
  if (strstr(error.text, words) == NULL) fail_msg("'%s' lacks '%s'", error.text, words);
}

/* Two may run and three may wait: an idle engine takes up to five, every time, and says so to six. */
static void all_choices_or_none(void **state) {
  (void)state;
  open_tenants((weft_tenant_config){.running_max = 2, .waiting_max = 3}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 10, 5);
  weft_request *r[8];
  weft_error error = {{0}};
  for (uint32_t n = 4; n <= 5; n++) {
    for (uint32_t round = 0; round < 30; round++) {
      if (submit_choices(&p, n, r, &error) != WEFT_OK) fail_msg("round %u: %s", round, error.text);
      run_out();
      all_end(r, n, WEFT_FINISH_LENGTH);
    }
  }
  uint64_t n_submitted = stats().n_submitted;
  choices_refused(&p, 6, WEFT_E_INVALID, "(2 running and 3 waiting): ask for at most 5");
  choices_refused(&p, 8, WEFT_E_INVALID, "8 answers at once are more than this tenant's limits allow");
  assert_int_equal(submit_choices(&p, 4, r, &error), WEFT_OK);
  choices_refused(&p, 2, WEFT_FULL, "it has 4 requests, may have 5 (2 running and 3 waiting), and 2 more came");
  assert_int_equal(submit_choices(&p, 1, r + 4, &error), WEFT_OK);
  assert_int_equal(tenant_stats(0).n_refused[WEFT_REFUSED_TENANT_QUEUE], 2);
  run_out();
  all_end(r, 5, WEFT_FINISH_LENGTH);
  assert_int_equal(stats().n_submitted, n_submitted + 5);
}

/* The queue of all tenants bounds a submission, too; so does the number of requests in one. */
static void more_choices_than_the_queue_holds(void **state) {
  (void)state;
  w.config.waiting_max = 3;
  w.config.running_max = 4;
  open_tenants((weft_tenant_config){.waiting_max = 10}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 4, 3), other = ask_as(1, 4, 3);
  weft_request *r[8];
  weft_error error = {{0}};
  choices_refused(&p, 8, WEFT_E_INVALID, "than this server takes (4 running and 3 waiting): ask for at most 7");
  choices_refused(&p, 16, WEFT_E_INVALID, "(4 running and 10 waiting): ask for at most 7");
  assert_int_equal(submit_choices(&other, 7, r, &error), WEFT_OK);
  run_out();
  all_end(r, 7, WEFT_FINISH_LENGTH);
  weft_request_params mixed[2] = {p, other};
  assert_int_equal(weft_engine_submit_all(w.engine, mixed, 2, w.now, r, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "tenants 0 and 1 in one submission"));
  assert_int_equal(weft_engine_submit_all(w.engine, mixed, 0, w.now, r, &error), WEFT_E_INVALID);
  p.joins = true;
  refused(&p, WEFT_E_INVALID, "there is none");
  mixed[1] = ask_as(0, 5, 3);
  mixed[1].joins = true;
  p.joins = false;
  mixed[0] = p;
  assert_int_equal(weft_engine_submit_all(w.engine, mixed, 2, w.now, r, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "same prompt"));
}

/* Memory is taken for all of them, or for none; of two tenants one may hold half of it. */
static void memory_of_all_choices(void **state) {
  (void)state;
  weft_request_params p = ask_as(0, 10, 30);
  uint64_t n_bytes = weft_engine_request_bytes(&p, 30, 0);
  w.config.request_bytes_max = 8 * n_bytes;
  open_tenants((weft_tenant_config){0}, (weft_tenant_config){0});
  weft_request *r[4];
  weft_error error = {{0}};
  uint64_t retry_us = 0;
  choices_refused(&p, 5, WEFT_E_INVALID, "ask for at most 4, for shorter ones or for fewer logprobs");
  assert_int_equal(submit_choices(&p, 2, r, &error), WEFT_OK);
  p.retry_us = &retry_us;
  choices_refused(&p, 3, WEFT_FULL, "are free: come again later");
  assert_true(retry_us > 0);
  assert_int_equal(stats().request_bytes, 2 * n_bytes);
  assert_int_equal(tenant_stats(0).n_refused[WEFT_REFUSED_MEMORY], 3);
  assert_int_equal(submit_choices(&p, 2, r + 2, &error), WEFT_OK);
  run_out();
  all_end(r, 4, WEFT_FINISH_LENGTH);
  assert_int_equal(stats().request_bytes, 0);
}

/* Tokens of the minute are taken for all of them, or for none. */
static void tokens_of_all_choices(void **state) {
  (void)state;
  open_tenants((weft_tenant_config){.tokens_per_minute = 120}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 10, 30);
  weft_request *r[4];
  weft_error error = {{0}};
  choices_refused(&p, 4, WEFT_E_INVALID, "4 answers need 160 tokens");
  choices_refused(&p, 4, WEFT_E_INVALID, "this tenant's 120 a minute: ask for at most 3");
  assert_int_equal(submit_choices(&p, 2, r, &error), WEFT_OK);
  uint64_t retry_us = 0;
  p.retry_us = &retry_us;
  choices_refused(&p, 2, WEFT_RATE_LIMIT, "40 of this tenant's 120 tokens a minute are left");
  assert_in_range(retry_us, 19990000, 20000000); /* 40 more tokens, two a second */
  assert_int_equal(tenant_stats(0).n_refused[WEFT_REFUSED_TOKENS], 2);
  assert_int_equal(submit_choices(&p, 1, r + 2, &error), WEFT_OK); /* nothing was taken by it */
  run_out();
  all_end(r, 3, WEFT_FINISH_LENGTH);
}

/* What another server took of the same minute is taken here; what is more than there is stays owed, and refills pay it
 * before the bucket fills; what is given back there comes back here. */
static void tokens_taken_elsewhere(void **state) {
  (void)state;
  open_tenants((weft_tenant_config){.tokens_per_minute = 120}, (weft_tenant_config){0});
  uint64_t now = w.now;
  weft_engine_move_tokens(w.engine, 0, 100, now);
  weft_engine_move_tokens(w.engine, 1, 100, now); /* without a limit nothing is counted */
  weft_tenant_left left = weft_engine_get_tenant_left(w.engine, 0, now);
  assert_int_equal(left.tokens, 20);
  assert_int_equal(left.tokens_lacking, 100);
  assert_int_equal(left.tokens_taken, 100);
  assert_int_equal(weft_engine_get_tenant_left(w.engine, 1, now).tokens_taken, 0);
  weft_engine_move_tokens(w.engine, 0, 60, now); /* 40 more than there are */
  left = weft_engine_get_tenant_left(w.engine, 0, now);
  assert_int_equal(left.tokens, 0);
  assert_int_equal(left.tokens_lacking, 160);
  assert_int_equal(left.tokens_full_us, 80000000);
  assert_int_equal(weft_engine_get_tenant_left(w.engine, 0, now + 20000000).tokens, 0); /* two a second pay 40 */
  assert_int_equal(weft_engine_get_tenant_left(w.engine, 0, now + 25000000).tokens, 10);
  weft_engine_move_tokens(w.engine, 0, -50, now);
  left = weft_engine_get_tenant_left(w.engine, 0, now);
  assert_int_equal(left.tokens, 10);
  assert_int_equal(left.tokens_taken, 110);
  weft_request_params p = ask_as(0, 5, 6);
  refused(&p, WEFT_RATE_LIMIT, "10 of this tenant's 120 tokens a minute are left");
}

/* Memory that runs out midway leaves nothing behind. */
static void no_memory_midway(void **state) {
  (void)state;
  open_tenants((weft_tenant_config){.running_max = 2, .waiting_max = 3, .tokens_per_minute = 100},
               (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 10, 10);
  weft_request *r[5];
  weft_error error = {{0}};
  for (uint64_t at = 1; at <= 5; at++) {
    (void)weft_memory_fail_at(at);
    choices_refused(&p, 5, WEFT_E_NO_MEMORY, "no memory for a request of 10 prompt tokens");
    (void)weft_memory_fail_at(0);
  }
  assert_true(weft_engine_idle(w.engine));
  assert_int_equal(weft_engine_step(w.engine, ++w.now), WEFT_AGAIN);
  assert_int_equal(submit_choices(&p, 5, r, &error), WEFT_OK); /* all its places and tokens are there */
  run_out();
  all_end(r, 5, WEFT_FINISH_LENGTH);
}

/* ---- the queue is shared by right ------------------------------------------------------------ */

static uint32_t n_evicted(weft_request **r, uint32_t n) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < n; i++) {
    weft_event end = finish_of(r[i], NULL, NULL);
    if (end.finish != WEFT_FINISH_EVICTED) continue;
    assert_true(end.retry_us > 0);
    assert_int_equal(end.usage.n_answer, 0);
    count += 1;
  }
  return count;
}

/* Two run and eight wait, all of one tenant. Another one gets its half of the queue, the newest of the first give way,
 * and none of what runs. */
static void a_full_queue_is_shared(void **state) {
  (void)state;
  w.config.waiting_max = 8;
  w.config.running_max = 2;
  open_tenants((weft_tenant_config){.tokens_per_minute = 200}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 4, 12), q = ask_as(1, 4, 2);
  weft_request *many[10], *few[4];
  submit_all(&p, many, 10);
  step(2);
  refused(&p, WEFT_FULL, "the queue is full");
  for (uint32_t i = 0; i < 4; i++) {
    few[i] = submit(&q);
    if (i % 2 == 0) step(1);
  }
  refused(&q, WEFT_FULL, "the queue is full");
  step(1);
  assert_int_equal(n_evicted(many, 6), 0);
  assert_int_equal(n_evicted(many + 6, 4), 4);
  assert_int_equal(tenant_stats(0).n_evicted, 4);
  assert_int_equal(tenant_stats(1).n_evicted, 0);
  assert_int_equal(stats().n_finished[WEFT_FINISH_EVICTED], 4);
  assert_int_equal(tenant_stats(0).n_refused[WEFT_REFUSED_QUEUE], 1);
  assert_int_equal(tenant_stats(1).n_refused[WEFT_REFUSED_QUEUE], 1);
  for (uint32_t i = 6; i < 10; i++) weft_engine_release(w.engine, many[i]);
  run_out();
  all_end(many, 6, WEFT_FINISH_LENGTH);
  all_end(few, 4, WEFT_FINISH_LENGTH);
  p.max_tokens = 100; /* tokens of the evicted came back: six requests took 16 each of 200 */
  p.n_tokens = 3;
  many[0] = submit(&p);
  run_out();
  assert_int_equal(end_and_release(many[0]), WEFT_FINISH_LENGTH);
}

/* Three to one: so the queue of eight is shared. */
static void a_full_queue_is_shared_by_weight(void **state) {
  (void)state;
  w.config.waiting_max = 8;
  w.config.running_max = 1;
  open_tenants((weft_tenant_config){.weight = 3}, (weft_tenant_config){.weight = 1});
  weft_request_params p = ask_as(0, 4, 4), q = ask_as(1, 4, 4);
  weft_request *heavy[9], *light[9];
  uint32_t n = 0;
  submit_all(&q, light, 9);
  step(1);
  weft_error error = {{0}};
  while (n < 9 && weft_engine_submit(w.engine, &p, ++w.now, &heavy[n], &error) == WEFT_OK) n += 1;
  assert_int_equal(n, 6);
  step(1);
  assert_int_equal(tenant_stats(0).n_unstarted, 6);
  assert_int_equal(tenant_stats(1).n_unstarted, 2);
  assert_int_equal(n_evicted(light, 9), 6);
  run_out();
  release_all(light, 9);
  all_end(heavy, n, WEFT_FINISH_LENGTH);
}

/* A submission gives way as a whole, and one of which a part runs gives way last, although it is newer. */
static void a_submission_gives_way_as_a_whole(void **state) {
  (void)state;
  open_queue(6, 1);
  weft_request_params p = ask_as(0, 4, 4), first = p, q = ask_as(1, 4, 4);
  weft_request *old[4], *begun[3], *other[3];
  weft_error error = {{0}};
  assert_int_equal(submit_choices(&p, 4, old, &error), WEFT_OK);
  first.asked.priority = 1;
  assert_int_equal(submit_choices(&first, 3, begun, &error), WEFT_OK);
  step(1);
  assert_int_equal(tenant_stats(0).n_running, 1);
  other[0] = submit(&q);
  step(1);
  assert_int_equal(n_evicted(old, 4), 4); /* for one place: it is an answer as a whole */
  assert_int_equal(n_evicted(begun, 3), 0);
  assert_int_equal(tenant_stats(0).n_unstarted, 2);
  run_out();
  release_all(old, 4);
  all_end(begun, 3, WEFT_FINISH_LENGTH);
  all_end(other, 1, WEFT_FINISH_LENGTH);
}

/* What would make too little room evicts nobody. */
static void nobody_gives_way_in_vain(void **state) {
  (void)state;
  open_queue(6, 1);
  weft_request_params p = ask_as(0, 4, 4), q = ask_as(1, 4, 4);
  weft_request *many[7], *three[3];
  weft_error error = {{0}};
  submit_all(&p, many, 7);
  step(1);
  choices_refused(&q, 4, WEFT_FULL, "the queue is full");
  step(1);
  assert_int_equal(n_evicted(many, 7), 0);
  assert_int_equal(submit_choices(&q, 3, three, &error), WEFT_OK); /* its half */
  step(1);
  assert_int_equal(n_evicted(many, 7), 3);
  run_out();
  release_all(many, 7);
  all_end(three, 3, WEFT_FINISH_LENGTH);
}

/* Evicted before the engine saw it; evicted and cancelled, or released, before the engine heard of either: one end. */
static void an_evicted_request_ends_once(void **state) {
  (void)state;
  open_queue(4, 1);
  weft_request_params p = ask_as(0, 4, 4), q = ask_as(1, 4, 4);
  p.deadline_us = 1000000;
  for (uint32_t way = 0; way < 3; way++) {
    for (uint32_t seen = 0; seen < 2; seen++) {
      weft_request *many[5], *other[2];
      submit_all(&p, many, 5);
      if (seen == 1) step(1);
      submit_all(&q, other, 2);
      if (way == 1) weft_engine_cancel(w.engine, many[4]);
      if (way == 2) weft_engine_release(w.engine, many[4]);
      step(1);
      if (way < 2) assert_int_equal(end_and_release(many[4]), WEFT_FINISH_EVICTED);
      assert_int_equal(end_and_release(many[3]), WEFT_FINISH_EVICTED);
      run_out();
      all_end(many, 3, WEFT_FINISH_LENGTH);
      all_end(other, 2, WEFT_FINISH_LENGTH);
    }
  }
}

typedef struct intruder {
  weft_request_params params;
  weft_request *request[2];
  bool armed;
} intruder;

static void intrude(void *self) {
  intruder *in = self;
  weft_error error = {{0}};
  if (in->armed) assert_int_equal(submit_choices(&in->params, 2, in->request, &error), WEFT_OK);
  in->armed = false;
}

/* Its place goes to another tenant when the turn has begun in which it would start: it does not start. */
static void evicted_in_the_turn_that_would_start_it(void **state) {
  (void)state;
  w.config.waiting_max = 1;
  w.config.running_max = 1;
  open_tenants((weft_tenant_config){.weight = 3}, (weft_tenant_config){0});
  weft_request_params p = ask_as(1, 4, 90), late = p;
  intruder in = {.params = ask_as(0, 4, 4)};
  p.notify = intrude; /* runs when the deadline ends it: after the inbox was taken, before anybody starts */
  p.notify_self = &in;
  p.deadline_us = 50;
  weft_request *r = submit(&p), *waits = submit(&late);
  step(3);
  assert_int_equal(tenant_stats(1).n_running, 1);
  in.armed = true;
  w.now = 60;
  step(1);
  assert_false(in.armed);
  assert_int_equal(end_and_release(r), WEFT_FINISH_DEADLINE);
  assert_int_equal(tenant_stats(1).n_running, 0);
  weft_event end = finish_of(waits, NULL, NULL);
  assert_int_equal(end.finish, WEFT_FINISH_EVICTED);
  assert_int_equal(end.usage.started_us, 0);
  weft_engine_release(w.engine, waits);
  run_out();
  all_end(in.request, 2, WEFT_FINISH_LENGTH);
}

static void open_refuses_odd_tenants(void **state) {
  (void)state;
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
  open_tenants((weft_tenant_config){.blocks_max = 16}, (weft_tenant_config){0});
  weft_request_params first = ask_as(0, 40, 8), shares = ask_as(1, 40, 50), large = ask_as(0, 88, 4);
  int32_t other[88];
  for (uint32_t i = 0; i < 88; i++) other[i] = (int32_t)((i * 7 + 3) % VOCAB);
  large.tokens = other;
  first.domain.low = shares.domain.low = large.domain.low = 9;
  first.asked.no_cache = shares.asked.no_cache = large.asked.no_cache = false;
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
  w.config.n_pages = 24;
  open_tenants((weft_tenant_config){0}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 40, 4), q = ask_as(1, 80, 8);
  p.asked.no_cache = false;
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
                                     TEST(a_call_brings_nobody_ahead),
                                     TEST(who_lacks_pages_needs_no_turn),
                                     TEST(a_low_class_does_not_starve),
                                     TEST(a_flood_does_not_age_past_others),
                                     TEST(tokens_come_back),
                                     TEST(a_full_queue_is_estimated),
                                     TEST(all_choices_or_none),
                                     TEST(more_choices_than_the_queue_holds),
                                     TEST(tokens_of_all_choices),
                                     TEST(memory_of_all_choices),
                                     TEST(tokens_taken_elsewhere),
                                     TEST(no_memory_midway),
                                     TEST(a_full_queue_is_shared),
                                     TEST(a_full_queue_is_shared_by_weight),
                                     TEST(a_submission_gives_way_as_a_whole),
                                     TEST(nobody_gives_way_in_vain),
                                     TEST(an_evicted_request_ends_once),
                                     TEST(evicted_in_the_turn_that_would_start_it),
                                     TEST(open_refuses_odd_tenants)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
