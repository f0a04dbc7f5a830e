/* SPDX-License-Identifier: MIT */
/* Tenants that change while the engine runs: weight, class and limits, and a tenant that appears in a place that was
 * kept for it. What runs is not touched, what comes later is judged by what holds then. */
#include "tests/support/engine_world.h"

static weft_tenant_config tenants[3];

static void open_tenants(weft_tenant_config a, weft_tenant_config b) {
  tenants[0] = a;
  tenants[1] = b;
  tenants[2] = (weft_tenant_config){0};
  w.config.n_tenants = 3; /* the third is a place */
  w.config.tenant = tenants;
  open_world();
}

static void change(uint32_t tenant, weft_tenant_config config) {
  weft_error error = {{0}};
  if (weft_engine_change_tenant(w.engine, tenant, &config, ++w.now, &error) != WEFT_OK) fail_msg("%s", error.text);
}

/* ---- shares ---- */

enum { FLOOD = 60 };

static weft_request *flooded[3][FLOOD];

static void flood(uint32_t tenant) {
  weft_request_params p = ask_as(tenant, 80, 1);
  submit_all(&p, flooded[tenant], FLOOD);
}

/* Rows of each tenant in n steps, while all have work. */
static void count_rows(uint32_t n, uint64_t rows[3]) {
  uint64_t before[3];
  for (uint32_t t = 0; t < 3; t++) before[t] = tenant_stats(t).n_rows;
  step(n);
  for (uint32_t t = 0; t < 3; t++) {
    rows[t] = tenant_stats(t).n_rows - before[t];
    assert_true(tenant_stats(t).n_waiting > 0 || rows[t] == 0);
  }
}

/* Whether the part of the rows is n hundredths, give or take five: clocks lie two steps apart at most. */
static void is_part(uint64_t rows, uint64_t all, uint32_t n) {
  if (100 * rows + 5 * all < n * all || 100 * rows > (n + 5) * all)
    fail_msg("%llu of %llu rows, not %u%%", (unsigned long long)rows, (unsigned long long)all, n);
}

static void open_flood(void) {
  w.config.waiting_max = 3 * FLOOD;
  w.config.running_max = 8;
  open_tenants((weft_tenant_config){0}, (weft_tenant_config){0});
  flood(0);
  flood(1);
}

static void end_flood(uint32_t n) {
  for (uint32_t t = 0; t < n; t++) release_all(flooded[t], FLOOD);
  run_out();
}

static void a_weight_changes_in_the_middle(void **state) {
  uint64_t rows[3];
  (void)state;
  open_flood();
  step(4);
  count_rows(40, rows);
  is_part(rows[0], rows[0] + rows[1], 50);
  change(0, (weft_tenant_config){.weight = 3});
  step(4);
  count_rows(40, rows);
  is_part(rows[0], rows[0] + rows[1], 75);
  change(0, (weft_tenant_config){.weight = 1});
  step(4);
  count_rows(40, rows);
  is_part(rows[0], rows[0] + rows[1], 50);
  end_flood(2);
}

/* A tenant that comes into a place gets its share from its first step on, and nothing for the time before. */
static void a_tenant_appears_in_the_middle(void **state) {
  uint64_t rows[3];
  (void)state;
  open_flood();
  step(40);
  change(2, (weft_tenant_config){.weight = 2});
  flood(2);
  step(4);
  count_rows(60, rows);
  uint64_t all = rows[0] + rows[1] + rows[2];
  is_part(rows[2], all, 50);
  is_part(rows[0], all, 25);
  end_flood(3);
}

/* ---- limits ---- */

static void a_running_limit_changes(void **state) {
  (void)state;
  open_tenants((weft_tenant_config){.running_max = 4}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 6, 12);
  weft_request *mine[8];
  submit_all(&p, mine, 8);
  step(1);
  assert_int_equal(tenant_stats(0).n_running, 4);
  change(0, (weft_tenant_config){.running_max = 1});
  step(2);
  assert_int_equal(tenant_stats(0).n_running, 4); /* who runs goes on */
  while (tenant_stats(0).n_finished < 4) step(1);
  step(2);
  assert_int_equal(tenant_stats(0).n_running, 1);
  change(0, (weft_tenant_config){0});
  step(1);
  assert_int_equal(tenant_stats(0).n_running, 8 - tenant_stats(0).n_finished);
  run_out();
  for (uint32_t i = 0; i < 8; i++) {
    assert_int_equal(finish_of(mine[i], NULL, NULL).finish, WEFT_FINISH_LENGTH);
    weft_engine_release(w.engine, mine[i]);
  }
}

static weft_status status_of(const weft_request_params *p, weft_error *error) {
  weft_request *r = NULL;
  weft_status status = weft_engine_submit(w.engine, p, ++w.now, &r, error);
  if (status == WEFT_OK) weft_engine_release(w.engine, r);
  return status;
}

/* A request that was taken under a larger limit of blocks ends as it would; the smaller one refuses what comes, and
 * holds once the older ones have ended. */
static void a_block_limit_waits_for_who_needs_more(void **state) {
  weft_error error = {{0}};
  (void)state;
  open_tenants((weft_tenant_config){0}, (weft_tenant_config){0});
  weft_request_params large = ask_as(0, 40, 40), small = ask_as(0, 8, 8);
  weft_request *r = submit(&large);
  step(2);
  change(0, (weft_tenant_config){.blocks_max = 8});
  step(2);
  assert_true(weft_pager_owner_usage(weft_engine_pager(w.engine), 0).n_pinned > 8);
  assert_int_equal(weft_pager_owner_usage(weft_engine_pager(w.engine), 0).limit, 0);
  assert_int_equal(status_of(&large, &error), WEFT_E_TOO_LARGE);
  assert_non_null(strstr(error.text, "8 pages that this tenant may hold"));
  weft_request *other = submit(&small);
  while (!weft_engine_idle(w.engine)) step(1);
  assert_int_equal(finish_of(r, NULL, NULL).finish, WEFT_FINISH_LENGTH);
  assert_int_equal(finish_of(other, NULL, NULL).finish, WEFT_FINISH_LENGTH);
  weft_engine_release(w.engine, r);
  weft_engine_release(w.engine, other);
  step(1);
  assert_int_equal(weft_pager_owner_usage(weft_engine_pager(w.engine), 0).limit, 8);
  change(0, (weft_tenant_config){.blocks_max = 20}); /* a larger one holds at once */
  step(1);
  assert_int_equal(weft_pager_owner_usage(weft_engine_pager(w.engine), 0).limit, 20);
}

/* What was taken stays taken, and what was taken before there was a limit is not given back into it. */
static void tokens_of_a_minute_change(void **state) {
  weft_error error = {{0}};
  (void)state;
  open_tenants((weft_tenant_config){.tokens_per_minute = 60}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 10, 30);
  weft_request *r = submit(&p); /* 40 of 60 */
  change(0, (weft_tenant_config){.tokens_per_minute = 100});
  assert_int_equal(weft_engine_get_tenant_left(w.engine, 0, w.now).tokens, 60);
  change(0, (weft_tenant_config){.tokens_per_minute = 40});
  assert_int_equal(weft_engine_get_tenant_left(w.engine, 0, w.now).tokens, 0);
  weft_engine_cancel(w.engine, r);
  run_out();
  weft_engine_release(w.engine, r);
  assert_int_equal(weft_engine_get_tenant_left(w.engine, 0, w.now).tokens, 0);
  assert_int_equal(status_of(&p, &error), WEFT_RATE_LIMIT);
  w.now += 60000000;
  assert_int_equal(status_of(&p, &error), WEFT_OK);
  change(0, (weft_tenant_config){0});
  assert_int_equal(status_of(&p, &error), WEFT_OK);
  run_out();
}

static void a_queue_limit_changes(void **state) {
  weft_error error = {{0}};
  (void)state;
  open_tenants((weft_tenant_config){0}, (weft_tenant_config){0});
  weft_request_params p = ask_as(0, 6, 4);
  weft_request *r[4];
  submit_all(&p, r, 4);
  change(0, (weft_tenant_config){.running_max = 1, .waiting_max = 1});
  assert_int_equal(status_of(&p, &error), WEFT_FULL);
  assert_non_null(strstr(error.text, "may have 2 (1 running and 1 waiting)"));
  run_out();
  for (uint32_t i = 0; i < 4; i++) assert_int_equal(finish_of(r[i], NULL, NULL).finish, WEFT_FINISH_LENGTH);
  release_all(r, 4);
  assert_int_equal(status_of(&p, &error), WEFT_OK);
  run_out();
}

static void what_is_out_of_range_changes_nothing(void **state) {
  weft_error error = {{0}};
  const weft_tenant_config heavy = {.weight = 1001}, odd = {.priority_class = 2}, fine = {0};
  (void)state;
  open_tenants((weft_tenant_config){.running_max = 2}, (weft_tenant_config){0});
  assert_int_equal(weft_engine_change_tenant(w.engine, 0, &heavy, 1, &error), WEFT_E_INVALID);
  assert_int_equal(weft_engine_change_tenant(w.engine, 0, &odd, 1, &error), WEFT_E_INVALID);
  assert_int_equal(weft_engine_change_tenant(w.engine, 3, &fine, 1, &error), WEFT_E_INVALID);
  assert_int_equal(weft_engine_step(w.engine, ++w.now), WEFT_AGAIN);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, plan_fixture, close_world)
  const struct CMUnitTest tests[] = {
      TEST(a_weight_changes_in_the_middle),         TEST(a_tenant_appears_in_the_middle), TEST(a_running_limit_changes),
      TEST(a_block_limit_waits_for_who_needs_more), TEST(tokens_of_a_minute_change),      TEST(a_queue_limit_changes),
      TEST(what_is_out_of_range_changes_nothing)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
