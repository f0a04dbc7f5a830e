/* SPDX-License-Identifier: MIT */
/* Memory of requests: what one counts for, and how tenants share the budget. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "scheduler/budget.h"
#include "scheduler/request.h"

/* ---- what a request counts for ------------------------------------------------------------------ */

static uint64_t bytes_of(bool logprobs, uint32_t n_top, uint32_t answer_max) {
  const weft_request_params params = {.n_tokens = 10,
                                      .asked.sampling = {.logprobs = logprobs, .n_top_logprobs = n_top}};
  const weft_request_size size = {.answer_max = answer_max};
  return weft_request_bytes(&params, &size);
}

static void logprobs_cost_what_is_asked(void **state) {
  (void)state;
  enum { N = 131072 };
  uint64_t plain = bytes_of(false, 20, N), own = bytes_of(true, 0, N), five = bytes_of(true, 5, N);
  assert_in_range(plain, 4u * N, 4u * N + 8192);
  assert_int_equal(own - plain, 8u * N);
  assert_int_equal(five - own, 5u * 8u * N);
}

static void a_request_gives_back_what_it_took(void **state) {
  const int32_t tokens[] = {1, 2, 3};
  const weft_request_params params = {
      .tokens = tokens, .n_tokens = 3, .tenant = 1, .caller_bytes = 12345, .asked.sampling = {.logprobs = true}};
  const weft_request_size size = {.answer_max = 100};
  weft_budget budget;
  weft_error error;
  weft_request *r[2];
  uint64_t n = weft_request_bytes(&params, &size);
  (void)state;
  assert_true(n > 12345 + 100 * 12);
  assert_int_equal(weft_budget_open(&budget, 4 * n, 2), WEFT_OK);
  assert_int_equal(weft_request_open(&params, &size, &budget, &r[0], &error), WEFT_OK);
  assert_int_equal(weft_budget_held(&budget), n);
  assert_int_equal(weft_request_open(&params, &size, &budget, &r[1], &error), WEFT_OK);
  weft_request *none;
  assert_int_equal(weft_request_open(&params, &size, &budget, &none, &error), WEFT_FULL);
  assert_null(none);
  weft_budget_count_refused(&budget, 1, 3);
  assert_int_equal(weft_budget_refused(&budget, 0), 0);
  assert_int_equal(weft_budget_refused(&budget, 1), 3);
  for (uint32_t i = 0; i < 2; i++) {
    weft_request_unref(r[i]);
    assert_int_equal(weft_budget_held(&budget), (2 - i) * n); /* the other reference holds it */
    weft_request_unref(r[i]);
  }
  assert_int_equal(weft_budget_held(&budget), 0);
  weft_budget_close(&budget);
}

/* ---- who gets it ---------------------------------------------------------------------------------- */

static uint64_t take_all(weft_budget *b, uint32_t tenant, uint64_t n_bytes) {
  uint64_t n = 0;
  while (weft_budget_take(b, tenant, n_bytes, NULL) == WEFT_OK) n += n_bytes;
  return n;
}

static void a_tenant_leaves_as_much_as_it_holds(void **state) {
  weft_budget b;
  (void)state;
  assert_int_equal(weft_budget_open(&b, 1200, 3), WEFT_OK);
  assert_int_equal(take_all(&b, 0, 10), 600);
  assert_int_equal(take_all(&b, 1, 10), 300);
  assert_int_equal(take_all(&b, 2, 10), 150);
  weft_budget_give_back(&b, 0, 600);
  assert_int_equal(take_all(&b, 2, 10), 300); /* it holds 450, the second 300, and 450 are free */
  weft_budget_give_back(&b, 1, 300);
  weft_budget_close(&b);
}

static void one_tenant_may_have_all(void **state) {
  weft_budget b;
  weft_error error;
  (void)state;
  assert_int_equal(weft_budget_open(&b, 1000, 1), WEFT_OK);
  assert_int_equal(take_all(&b, 0, 10), 1000);
  weft_budget_give_back(&b, 0, 1000);
  assert_int_equal(weft_budget_take(&b, 0, 1001, &error), WEFT_E_LIMIT);
  assert_non_null(strstr(error.text, "--request-mib"));
  weft_budget_close(&b);
}

static void without_a_limit_everything_fits(void **state) {
  weft_budget b;
  (void)state;
  assert_int_equal(weft_budget_open(&b, 0, 2), WEFT_OK);
  assert_int_equal(weft_budget_take(&b, 0, UINT64_C(1) << 60, NULL), WEFT_OK);
  assert_int_equal(weft_budget_take(&b, 1, UINT64_C(1) << 60, NULL), WEFT_OK);
  weft_budget_close(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(logprobs_cost_what_is_asked), cmocka_unit_test(a_request_gives_back_what_it_took),
      cmocka_unit_test(a_tenant_leaves_as_much_as_it_holds), cmocka_unit_test(one_tenant_may_have_all),
      cmocka_unit_test(without_a_limit_everything_fits)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
