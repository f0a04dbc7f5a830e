/* SPDX-License-Identifier: MIT */
/* The cost model against laws that are known: shapes as a server sees them, times from a law. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/random.h"
#include "scheduler/cost.h"

typedef struct law {
  double fixed_us, bytes_rows, row_us, read_us, product_us, experts_us, output_us;
} law;

/* Weights are read while rows are computed: whichever takes longer. */
static const law card = {.fixed_us = 6000,
                         .bytes_rows = 100,
                         .row_us = 60,
                         .read_us = 0.02,
                         .product_us = 0.0004,
                         .experts_us = 9000,
                         .output_us = 4};
static const law cpu = {.fixed_us = 900, .row_us = 2100, .read_us = 0.5, .product_us = 0.1, .output_us = 300};

static const weft_cost_layers layers = {.full = WEFT_COST_WHOLE / 6, .window = 1024, .n_experts = 128, .n_used = 8};

static uint64_t state = 1;

static uint32_t draw(uint32_t low, uint32_t high) {
  state += UINT64_C(0x9E3779B97F4A7C15);
  return low + (uint32_t)(weft_mix64(state) % (high - low + 1));
}

static double time_of(const law *l, const weft_cost_shape *s) {
  double experts = 1.0 - pow(1.0 - 8.0 / 128.0, s->n_rows);
  double rows = s->n_rows > l->bytes_rows ? s->n_rows - l->bytes_rows : 0;
  return l->fixed_us + l->row_us * rows + l->read_us * (double)s->n_reads + l->product_us * (double)s->n_products +
         l->experts_us * experts + l->output_us * s->n_outputs;
}

/* Decode rows, at times a chunk of a prompt, at times canvases. */
static weft_cost_shape a_step(void) {
  weft_cost_shape s = {0};
  uint32_t n_decode = draw(1, 64), kind = draw(0, 3);
  for (uint32_t i = 0; i < n_decode; i++) weft_cost_add(&layers, &s, 1, draw(10, 8000), false, 1);
  if (kind == 1) weft_cost_add(&layers, &s, draw(1, 512), draw(0, 4000), false, 1);
  for (uint32_t i = 0; kind == 2 && i < draw(1, 3); i++) {
    weft_cost_add(&layers, &s, 256, draw(100, 2000), true, 256);
  }
  return s;
}

/* Mean relative error of the predictions of n steps; noise: relative, at most. */
static double run(weft_cost_model *m, const law *l, uint32_t n, double noise) {
  double sum = 0;
  for (uint32_t i = 0; i < n; i++) {
    weft_cost_shape s = a_step();
    double us = time_of(l, &s), predicted = weft_cost_step(m, &s);
    sum += fabs(predicted - us) / us;
    double jitter = noise * ((double)draw(0, 2000) / 1000.0 - 1.0);
    weft_cost_learn(m, &s, us * (1.0 + jitter));
  }
  return sum / n;
}

static void check_bounds(const weft_cost_model *m) {
  for (uint32_t i = 0; i < WEFT_COST_FEATURES; i++) {
    assert_true(m->us[i] >= 0.0);
    assert_true(m->us[i] <= 1e9);
  }
}

static void test_learns_a_law(void **test) {
  (void)test;
  const law *laws[] = {&card, &cpu};
  for (uint32_t i = 0; i < 2; i++) {
    weft_cost_model m;
    weft_cost_open(&m, &layers);
    double first = run(&m, laws[i], 512, 0.0), then = run(&m, laws[i], 512, 0.0);
    print_message("law %u: error %.3f, then %.3f\n", i, first, then);
    assert_true(then < 0.06);
    check_bounds(&m);
  }
}

static void test_noise_does_not_mislead(void **test) {
  (void)test;
  weft_cost_model m;
  weft_cost_open(&m, &layers);
  (void)run(&m, &card, 1024, 0.3);
  double error = run(&m, &card, 512, 0.3);
  print_message("noise of 30 %%: error %.3f\n", error);
  assert_true(error < 0.12);
  check_bounds(&m);
}

static void test_outliers_weigh_little(void **test) {
  (void)test;
  weft_cost_model m;
  weft_cost_open(&m, &layers);
  (void)run(&m, &card, 1024, 0.05);
  double before = run(&m, &card, 128, 0.05);
  for (uint32_t i = 0; i < 16; i++) { /* stalls, and steps whose canvases were all done */
    weft_cost_shape s = a_step();
    weft_cost_learn(&m, &s, i % 2 == 0 ? 5e6 : 3.0);
    (void)run(&m, &card, 15, 0.05);
  }
  double after = run(&m, &card, 64, 0.05);
  print_message("outliers: error %.3f before, %.3f after\n", before, after);
  assert_true(after < before + 0.06);
}

static void test_follows_a_change(void **test) {
  (void)test;
  weft_cost_model m;
  law slow = card;
  weft_cost_open(&m, &layers);
  (void)run(&m, &card, 1024, 0.05);
  slow.fixed_us *= 2;
  slow.row_us *= 2;
  slow.experts_us *= 2;
  (void)run(&m, &slow, 2 * WEFT_COST_MEMORY, 0.05);
  double error = run(&m, &slow, 256, 0.05);
  print_message("after a change: error %.3f\n", error);
  assert_true(error < 0.1);
}

/* What was learned of prompts is not lost while for a long time nothing but decode rows runs. */
static void test_remembers_what_it_does_not_see(void **test) {
  (void)test;
  weft_cost_model m;
  weft_cost_open(&m, &layers);
  (void)run(&m, &card, 2048, 0.0);
  for (uint32_t i = 0; i < 4096; i++) {
    weft_cost_shape s = {0};
    for (uint32_t k = 0; k < 16; k++) weft_cost_add(&layers, &s, 1, 500 + i / 8, false, 1);
    weft_cost_learn(&m, &s, time_of(&card, &s));
  }
  weft_cost_shape s = {0};
  weft_cost_add(&layers, &s, 512, 1000, false, 1);
  double ratio = weft_cost_step(&m, &s) / time_of(&card, &s);
  print_message("a prompt after 4096 steps without: predicted %.2f of its time\n", ratio);
  assert_true(ratio > 0.7 && ratio < 1.4);
}

static void test_the_first_step_sets_the_scale(void **test) {
  (void)test;
  weft_cost_model m;
  weft_cost_shape s = {0};
  weft_cost_open(&m, &layers);
  assert_true(weft_cost_row_us(&m) == 26.0); /* a page that takes as long is worth a row */
  assert_int_equal(weft_cost_of_us(&m, 26.0), 256);
  weft_cost_add(&layers, &s, 32, 0, false, 1);
  assert_true(weft_cost_step(&m, &s) > 0.0);
  weft_cost_learn(&m, &s, 0.0); /* not measured */
  assert_int_equal(m.n_steps, 0);
  weft_cost_learn(&m, &s, 123456.0);
  assert_true(fabs(weft_cost_step(&m, &s) - 123456.0) < 1.0);
  assert_true(weft_cost_row_us(&m) > 0.0 && weft_cost_row_us(&m) != 26.0);
}

static void test_windows_bound_keys(void **test) {
  (void)test;
  const weft_cost_layers full = {.full = WEFT_COST_WHOLE};
  const weft_cost_layers half = {.full = WEFT_COST_WHOLE / 2, .window = 100};
  weft_cost_shape a = {0}, b = {0};
  weft_cost_add(&full, &a, 1, 9999, false, 1);
  weft_cost_add(&half, &b, 1, 9999, false, 1);
  assert_int_equal(a.n_reads, 10000);
  assert_int_equal(b.n_reads, 5050);
  weft_cost_shape c = {0};
  weft_cost_add(&full, &c, 256, 1000, true, 256);
  assert_int_equal(c.n_products, 256 * 1256);
  weft_cost_add(&full, &c, 1, 9999, false, 1);
  assert_int_equal(c.n_rows, 257);
}

/* Charges: the parts of a step share its time as they would cost alone, and a row is a microsecond
 * at least. */
static void test_parts_share_the_time_of_a_step(void **test) {
  (void)test;
  weft_cost_model m;
  weft_cost_open(&m, &layers);
  (void)run(&m, &card, 2000, 0.0);
  for (uint32_t i = 0; i < 200; i++) {
    weft_cost_shape a = a_step(), b = a_step(), both = a;
    weft_cost_join(&both, &b);
    uint64_t parts = weft_cost_of_part(&m, &a) + weft_cost_of_part(&m, &b);
    uint64_t whole = weft_cost_charge(&m, &both);
    assert_true(parts <= whole + 2);
    assert_true(fabs((double)whole / WEFT_COST_PER_US - weft_cost_step(&m, &both)) < 1.0);
    assert_true(weft_cost_of_part(&m, &a) >= (uint64_t)a.n_rows * WEFT_COST_PER_US);
  }
  weft_cost_shape rows = {.n_rows = 100}, far = {.n_rows = 1, .n_reads = 9000, .n_products = 9000};
  assert_true(weft_cost_of_part(&m, &far) > 2 * weft_cost_of_part(&m, &(weft_cost_shape){.n_rows = 1}));
  for (uint32_t i = 0; i < WEFT_COST_FEATURES; i++) m.us[i] = 0.0; /* a model that knows nothing */
  assert_int_equal(weft_cost_of_part(&m, &rows), 100 * WEFT_COST_PER_US);
  assert_int_equal(weft_cost_charge(&m, &rows), 100 * WEFT_COST_PER_US);
  for (uint32_t i = 0; i < WEFT_COST_FEATURES; i++) m.us[i] = 1e9; /* nothing wraps */
  rows = (weft_cost_shape){UINT32_MAX, UINT32_MAX, UINT64_MAX, UINT64_MAX};
  assert_true(weft_cost_charge(&m, &rows) < UINT64_C(1) << 50);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_learns_a_law),
      cmocka_unit_test(test_noise_does_not_mislead),
      cmocka_unit_test(test_outliers_weigh_little),
      cmocka_unit_test(test_follows_a_change),
      cmocka_unit_test(test_remembers_what_it_does_not_see),
      cmocka_unit_test(test_the_first_step_sets_the_scale),
      cmocka_unit_test(test_windows_bound_keys),
      cmocka_unit_test(test_parts_share_the_time_of_a_step),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
