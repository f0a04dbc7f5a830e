/* SPDX-License-Identifier: MIT */
/* What weft bench takes from the records of one answer: the prompt apart from the tokens, the steady rate apart from
 * the second token, the memory, and what a found prefix leaves to compute. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "bench/sim/profile.h"
#include "bench/speed/measure.h"
#include "bench/speed/rates.h"

static weft_runtime *open_demo(bool no_prefix_cache) {
  static const char *const models[] = {WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf"};
  char error[256] = "";
  weft_runtime *rt = NULL;
  const weft_open_options options = {.models = models,
                                     .n_models = 1,
                                     .kv_bytes = 16 << 20,
                                     .context = 512,
                                     .running = 4,
                                     .threads = 1,
                                     .no_prefix_cache = no_prefix_cache,
                                     .quiet = true};
  if (weft_open(&options, &rt, error, sizeof error) != 0) fail_msg("%s", error);
  return rt;
}

static weft_answer_times measure(weft_runtime *rt, uint32_t n_prompt, bool found) {
  const weft_load load = {.n_prompt = n_prompt, .n_generate = 12, .n_parallel = 1, .found = found};
  weft_answer_times t;
  assert_int_equal(weft_measure_answer(rt, &load, 5, &t), 0);
  assert_int_equal(t.n_decoded, 11);
  assert_true(t.prefill_s > 0.0 && t.steady_s > 0.0);
  assert_true(t.steady_s < t.decode_s); /* the step of the second token is in one of them only */
  return t;
}

static void test_answer(void **state) {
  (void)state;
  weft_runtime *rt = open_demo(false);
  assert_int_equal(measure(rt, 128, true).n_computed, 128);
  assert_int_equal(measure(rt, 256, true).n_computed, 128);
  weft_answer_times t = measure(rt, 448, true);
  assert_int_equal(t.n_computed, 192);
  assert_int_equal(measure(rt, 448, false).n_computed, 448);
  weft_reset_prefix_cache(rt);
  weft_answer_times again = measure(rt, 448, true);
  assert_int_equal(again.n_computed, 448);
  assert_int_equal(again.kv_pages_max, t.kv_pages_max); /* found or computed, a sequence holds the same */
  weft_close(rt);
  rt = open_demo(true);
  (void)measure(rt, 128, true);
  assert_int_equal(measure(rt, 256, true).n_computed, 256);
  weft_close(rt);
}

/* A look every 10 ms for 30 s: 100 tokens a second, 50 in the seconds from 15 to 20; a step each 5 ms. */
static void test_rates(void **state) {
  enum { N = 3000 };
  static weft_rate_look look[N];
  (void)state;
  for (uint64_t i = 0; i < N; i++) {
    uint64_t slow = i < 1500 ? 0 : i < 2000 ? i - 1500 : 500;
    look[i] = (weft_rate_look){.us = 7 + 10000 * i, .n_tokens = (2 * i - slow) / 2, .n_steps = 2 * i};
  }
  weft_steady all = weft_rates_steady(look, N, 0, UINT64_MAX, 0, 10.0);
  assert_float_equal(all.tok_s, 100.0 * 2749 / 2999, 0.1);
  assert_float_equal(all.least_tok_s, 75.0, 0.2);
  assert_true(all.window_s == 10.0 && all.n_steps == 2 * (N - 1));
  weft_steady late = weft_rates_steady(look, N, 1000000, 14000000, 200, 10.0); /* from 2 s to 14 s */
  assert_float_equal(late.seconds, 11.99, 0.02);
  assert_float_equal(late.least_tok_s, 100.0, 0.2);
  weft_steady brief = weft_rates_steady(look, N, 16000000, 17000000, 0, 10.0);
  assert_float_equal(brief.least_tok_s, 50.0, 1.0);
  assert_true(brief.window_s < 1.0);
  assert_true(weft_rates_steady(look, N, 0, 1000000, 300, 10.0).tok_s == 0.0); /* not so many steps */
  assert_true(weft_rates_steady(look, 0, 0, UINT64_MAX, 0, 10.0).tok_s == 0.0);
}

static void test_variation(void **state) {
  (void)state;
  const double values[] = {9.0, 10.0, 11.0};
  char text[WEFT_VARIATION_TEXT];
  assert_true(fabs(weft_variation(values, 3) - 10.0) < 1e-9);
  assert_true(isnan(weft_variation(values, 1)));
  assert_string_equal(weft_variation_text(NAN, true, text), "");
  assert_string_equal(weft_variation_text(NAN, false, text), "-");
  assert_string_equal(weft_variation_text(10.0, false, text), "10.00");
}

/* What rows read: of all positions, of a window, of what lies behind a border; of a state no keys. */
static void keys_are_those_that_rows_see(void **state) {
  (void)state;
  const weft_sim_model model = {.n_groups = 4,
                                .group = {{.block_tokens = 16},
                                          {.block_tokens = 16, .window = 32},
                                          {.block_tokens = 16, .window = 64, .from_border = true},
                                          {.block_tokens = 64, .state_pages = 9}}};
  assert_int_equal(weft_sim_keys(&model, 0, 5), 5 + 5 + 5);
  assert_int_equal(weft_sim_keys(&model, 100, 1), 101 + 32 + 37);
  assert_int_equal(weft_sim_keys(&model, 128, 3), 131 + 34 + 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(keys_are_those_that_rows_see), cmocka_unit_test(test_answer),
                                     cmocka_unit_test(test_rates), cmocka_unit_test(test_variation)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
