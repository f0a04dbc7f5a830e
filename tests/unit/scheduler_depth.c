/* SPDX-License-Identifier: MIT */
/* How many drafts the runs of a step have: over virtual time, with drafts that are right by chance, that steps with
 * drafts never give fewer than 98 tokens where there were 100, in any ten seconds after the first 200 steps, whatever
 * is right and however many sequences there are, whether a drafter costs nothing or a third of a millisecond a draft;
 * that what the first 200 steps cost is bounded; and that drafts gain where they can. The law of the steps' times is
 * what bench/results has of one H200 with 26B: 585 to 5141 tokens a second at 1 to 32 rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "scheduler/depth.h"
#include "scheduler/drafting.h"

enum { SEQUENCES_MAX = 128, WINDOWS_MAX = 64 };

/* A machine: what steps take, by their rows; what the host adds to a step that is not planned ahead; whether a device
 * meets steps of new shapes that then run call by call, and are recorded; and what each of the drafts takes that are
 * made one after another before a step (model/runner/runner_assist.h), for all of its requests. */
typedef struct machine {
  double (*step_us)(uint32_t n_rows);
  double host_us, first_us, capture_us, draft_us;
} machine;

typedef struct world {
  const machine *is;
  weft_cost_model cost;
  weft_depth depth;
  weft_drafting of[SEQUENCES_MAX];
  weft_acceptance tenant;
  uint32_t n, n_keys;
  double right[SEQUENCES_MAX]; /* chance */
  uint64_t n_answer[SEQUENCES_MAX], n_runs[SEQUENCES_MAX];
  uint64_t n_draws, seed;
  uint8_t seen[1024]; /* shapes */
  double us, tokens, drafted;
  double early_us; /* of the first 200 steps: what they took beyond the time of their tokens without drafts */
} world;

static world w;

static double h200_us(uint32_t n) {
  static const struct {
    uint32_t rows;
    double us;
  } at[] = {{1, 1710}, {2, 2174}, {4, 3135}, {8, 3998}, {16, 5006}, {32, 6224}, {64, 8200}, {512, 25000}, {4096, 2e5}};
  uint32_t i = 0;
  while (i + 2 < sizeof at / sizeof *at && at[i + 1].rows < n) i++;
  return at[i].us + (at[i + 1].us - at[i].us) * (n - at[i].rows) / (at[i + 1].rows - at[i].rows);
}

/* A processor: rows are nearly all that a step costs. */
static double processor_us(uint32_t n) {
  return 8000.0 + 6000.0 * n;
}

static const machine card = {h200_us, 150, 6000, 12000, 0}, card_and_drafter = {h200_us, 150, 6000, 12000, 300},
                     processor = {processor_us, 100, 0, 0, 0};

static void open_machine(const machine *is, uint32_t n, uint64_t seed) {
  static const weft_cost_layers layers = {.full = WEFT_COST_WHOLE / 6, .window = 1024, .n_experts = 128, .n_used = 8};
  const weft_draft draft = {.kind = WEFT_DRAFT_DEFAULT, .n_max = 16};
  w = (world){.is = is, .n = n, .n_keys = 500, .seed = seed};
  weft_cost_open(&w.cost, &layers);
  weft_depth_open(&w.depth);
  for (uint32_t i = 0; i < n; i++) weft_drafting_open(&w.of[i], &draft, NULL, NULL, 0, 0);
}

static bool draw_right(double chance) {
  const weft_draw_key key = {w.seed, 0, WEFT_DRAW_TEST, (uint32_t)w.n_draws++, 1};
  return weft_draw_uniform(&key) < chance;
}

static void choose(void) {
  weft_depth_crowd crowd = {.n = w.n};
  for (uint32_t i = 0; i < w.n; i++)
    weft_depth_count(&crowd, weft_drafting_rate(&w.of[i], &w.tenant, (uint32_t)w.n_answer[i]), 16, false);
  const weft_cost_shape shape = weft_cost_decode(&w.cost.layers, w.n, w.n_keys);
  const weft_depth_limits limits = {.draft_rows = 2048, .rows = 4000, .ahead = true};
  weft_depth_choose(&w.depth, &w.cost, &crowd, &shape, &limits);
}

/* Runs of the requests that have some; what they gave. */
static void run_drafts(weft_depth_step *s) {
  uint32_t depth = weft_depth_ladder[w.depth.rung];
  bool has[SEQUENCES_MAX] = {false};
  for (uint32_t i = 0; i < w.n; i++) {
    has[i] = depth > 0 &&
             weft_depth_class(weft_drafting_rate(&w.of[i], &w.tenant, (uint32_t)w.n_answer[i])) >= w.depth.least_rate;
    if (!has[i]) continue;
    s->n_runs += 1;
    w.n_runs[i] += 1;
    s->shape.n_rows += depth;
    s->shape.n_outputs += depth;
    s->shape.n_products += (uint64_t)depth * w.n_keys;
  }
  for (uint32_t i = 0; i < w.n; i++) {
    uint32_t n = 0;
    w.n_answer[i] += 1;
    if (!has[i]) continue;
    weft_drafting_began(&w.of[i]);
    while (n < depth && draw_right(w.right[i])) n++;
    weft_drafting_judge(&w.of[i], &w.tenant, depth, n, (uint32_t)w.n_answer[i]);
    w.n_answer[i] += n;
    s->n_gained += n;
  }
  s->depth = s->n_runs > 0 ? depth : 0;
}

static void one_step(void) {
  choose();
  const weft_cost_shape plain = weft_cost_decode(&w.cost.layers, w.n, w.n_keys);
  weft_depth_step s = {.n_sequences = w.n, .plain = plain, .shape = plain, .pure = true, .trial = w.depth.trial};
  bool was_run = w.depth.after_run;
  run_drafts(&s);
  const weft_draw_key key = {w.seed, 1, WEFT_DRAW_TEST, (uint32_t)w.n_draws++, 2};
  s.us = w.is->step_us(s.shape.n_rows) * (0.97 + 0.06 * weft_draw_uniform(&key));
  uint32_t shape = (s.n_runs * 7 + s.depth) % sizeof w.seen;
  s.is_new = w.is->first_us > 0 && w.seen[shape] < 2;
  if (s.is_new) s.us += w.seen[shape]++ == 0 ? w.is->first_us : w.is->capture_us;
  weft_cost_learn(&w.cost, &s.shape, s.us);
  if (s.n_runs > 0 || was_run) s.us += w.is->host_us;
  s.us += w.is->draft_us * s.depth;
  weft_depth_landed(&w.depth, &w.cost, &s);
  w.us += s.us;
  w.tokens += w.n + s.n_gained;
  w.drafted += s.shape.n_rows - plain.n_rows;
}

/* The least of the tokens of any ten seconds (to half of one) beside those without drafts; *mean: of all. */
static double least_of_windows(double seconds, void (*change)(double us), double *mean) {
  enum { HALVES = 20 };
  double at[4 * WINDOWS_MAX] = {0}, plain = w.n / (w.is->step_us(w.n) / 1e6), least = 100.0;
  uint32_t n = 0;
  for (uint32_t i = 0; i < 200; i++) one_step();
  w.early_us = w.us - w.tokens / plain * 1e6;
  double from = w.us, before = w.tokens;
  while (w.us - from < seconds * 1e6) {
    if (change != NULL) change(w.us - from);
    one_step();
    while ((w.us - from) / 5e5 >= n + 1 && n + 1 < sizeof at / sizeof *at) at[++n] = w.tokens - before;
  }
  for (uint32_t i = 0; i + HALVES <= n; i++) {
    double ratio = (at[i + HALVES] - at[i]) / (plain * 10.0);
    if (ratio < least) least = ratio;
  }
  *mean = (w.tokens - before) / (w.us - from) * 1e6 / plain;
  return least;
}

/* The law of depth.h: a fiftieth, or two steps where that is more; one step may lie on the border of ten seconds. */
static double least_allowed(void) {
  double step = w.is->step_us(w.n) / 1e7;
  return 1.0 - step - (2.0 * step > 0.02 ? 2.0 * step : 0.02);
}

/* Before anything is known an account is spent, and the step that spends it. */
static double early_allowed(void) {
  double steps = 2.0 * w.is->step_us(w.n), credit = WEFT_DEPTH_CREDIT_US;
  return 1.02 * ((steps > credit ? steps : credit) + w.is->step_us(8 * w.n) + w.is->capture_us);
}

/* What is gained at 0.6 and 0.8 at least, of a card; by a drafter that costs, of n sequences. */
static double gain_of(const machine *is, uint32_t n, double right) {
  if (is == &card_and_drafter && n <= 2) return right < 0.7 ? 0.99 : 1.15;
  if (is == &card_and_drafter) return right < 0.7 ? (n == 128 ? 1.03 : 1.1) : n == 128 ? 1.15 : 1.4;
  if (right < 0.7) return n == 128 || n <= 2 ? 1.05 : 1.2;
  return n == 128 ? 1.15 : 1.5;
}

static void drafts_never_lose_on(const machine *is, const char *name, double seconds) {
  static const uint32_t numbers[] = {1, 2, 4, 8, 16, 32, 128};
  static const double rates[] = {0, 0.2, 0.4, 0.6, 0.8, 0.9, 1};
  for (uint32_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    for (uint32_t k = 0; k < sizeof rates / sizeof *rates; k++) {
      double mean;
      open_machine(is, numbers[i], 10 * i + k + 1);
      for (uint32_t r = 0; r < w.n; r++) w.right[r] = rates[k];
      double least = least_of_windows(seconds, NULL, &mean);
      print_message(
          "%s, %3u sequences, %.1f right: %.2f times the tokens, %.3f in the worst ten seconds, the first 200 "
          "steps lost %.0f ms\n",
          name, w.n, rates[k], mean, least, w.early_us / 1000.0);
      assert_true(least >= (is != &processor ? 0.98 : least_allowed()));
      assert_true(w.early_us <= early_allowed());
      if (is != &processor && (rates[k] == 0.6 || rates[k] == 0.8)) assert_true(mean > gain_of(is, w.n, rates[k]));
    }
  }
}

static void drafts_never_lose_on_a_card(void **state) {
  (void)state;
  drafts_never_lose_on(&card, "card", 14.0);
}

static void a_drafter_that_costs_never_loses(void **state) {
  (void)state;
  drafts_never_lose_on(&card_and_drafter, "card and drafter", 14.0);
}

static void drafts_never_lose_on_a_processor(void **state) {
  (void)state;
  drafts_never_lose_on(&processor, "processor", 30.0);
}

/* What one H200 measured of one sequence of 26B with a drafter that reads keys (h200-assistant.json). */
static double measured_us(uint32_t n) {
  static const double us[] = {1740, 2166, 2707, 3052, 3520, 3644};
  return n <= 6 ? us[n - 1] : n <= 16 ? 3644 + (n - 6) * 140.0 : h200_us(n);
}

static const machine measured = {measured_us, 40, 6000, 12000, 249};

/* Beside the best depth for all steps nearly nothing is lost by the choice, by looks aside and by bad luck. */
static void one_sequence_comes_near_the_best_depth(void **state) {
  static const double rates[] = {0.6, 0.7, 0.8, 0.9};
  (void)state;
  for (uint32_t k = 0; k < sizeof rates / sizeof *rates; k++) {
    double best = 0.0, mean, sum = 0.0;
    for (uint32_t i = 1; i < 7; i++) {
      double right = 1.0, tokens = 1.0;
      uint32_t depth = weft_depth_ladder[i];
      for (uint32_t n = 0; n < depth; n++) tokens += right *= rates[k];
      double gain = tokens * measured_us(1) / (measured_us(1 + depth) + measured.host_us + measured.draft_us * depth);
      if (gain > best) best = gain;
    }
    for (uint32_t i = 0; i < 4; i++) {
      open_machine(&measured, 1, 1000 + 10 * k + i);
      w.right[0] = rates[k];
      (void)least_of_windows(14.0, NULL, &mean);
      sum += mean / 4;
    }
    print_message("one sequence, %.1f right: %.3f times the tokens, %.3f by the best depth\n", rates[k], sum, best);
    assert_true(sum > 0.97 * best);
  }
}

/* All drafts are right for a while, then none is. */
static void turn_over(double us) {
  bool right = (uint64_t)(us / 1.5e6) % 2 == 0;
  for (uint32_t i = 0; i < w.n; i++) w.right[i] = right ? 1.0 : 0.0;
}

/* Just enough are right to begin, and none as soon as there are runs. */
static void deceive(double us) {
  (void)us;
  for (uint32_t i = 0; i < w.n; i++) w.right[i] = w.depth.after_run && !w.depth.trial ? 0.0 : 1.0;
}

static void drafts_that_change_never_lose(void **state) {
  static const uint32_t numbers[] = {1, 8, 32};
  static void (*const change[])(double) = {turn_over, deceive};
  (void)state;
  for (uint32_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    for (uint32_t k = 0; k < 2; k++) {
      double mean;
      open_machine(&card, numbers[i], 100 + i);
      double least = least_of_windows(14.0, change[k], &mean);
      print_message("%3u sequences, %s: %.2f times the tokens, %.3f in the worst ten seconds\n", w.n,
                    k == 0 ? "right and wrong in turns" : "right in trials only", mean, least);
      assert_true(least >= 0.98);
      if (k == 0) assert_true(mean > 1.1);
    }
  }
}

/* Of requests whose drafts are right and others whose are wrong, the first have runs. */
static void only_those_that_gain_have_runs(void **state) {
  uint64_t n_runs[2] = {0};
  double mean;
  (void)state;
  open_machine(&card, 8, 7);
  for (uint32_t i = 0; i < 8; i++) w.right[i] = i % 2 == 0 ? 0.95 : 0.02;
  assert_true(least_of_windows(14.0, NULL, &mean) >= 0.98);
  print_message("half of 8 sequences right: %.2f times the tokens\n", mean);
  assert_true(mean > 1.5);
  for (uint32_t i = 0; i < 8; i++) n_runs[i % 2] += w.n_runs[i];
  assert_true(n_runs[0] > 10 * n_runs[1]);
}

/* Whether there are drafts at this rate, of one sequence whose steps with one draft take 1300 us where those without
 * take 1000. */
static uint8_t rung_at(double rate) {
  weft_depth_crowd crowd = {.n = 1};
  const weft_cost_shape shape = weft_cost_decode(&w.cost.layers, 1, w.n_keys);
  const weft_depth_limits limits = {.draft_rows = 1, .rows = 100};
  weft_depth_count(&crowd, rate, 16, true);
  weft_depth_choose(&w.depth, &w.cost, &crowd, &shape, &limits);
  return w.depth.rung;
}

/* Between the two bounds it stays as it is. */
static void there_is_hysteresis(void **state) {
  (void)state;
  open_machine(&card, 1, 1);
  const weft_cost_shape plain = weft_cost_decode(&w.cost.layers, 1, w.n_keys);
  weft_depth_step s = {.n_sequences = 1, .plain = plain, .shape = plain, .pure = true, .us = 1000};
  for (uint32_t i = 0; i < WEFT_DEPTH_KNOWN; i++) {
    assert_int_equal(rung_at(1.0), 0); /* nothing is known of steps without */
    weft_depth_landed(&w.depth, &w.cost, &s);
  }
  s.shape.n_rows = s.shape.n_outputs = 2;
  s.n_runs = s.n_gained = s.depth = 1;
  s.us = 1300;
  weft_depth_landed(&w.depth, &w.cost, &s);
  assert_int_equal(rung_at(0.31), 0); /* 1.31 tokens in 1.3 times the time */
  assert_int_equal(rung_at(0.34), 1);
  w.depth.after_run = false;
  assert_int_equal(rung_at(0.34), 0);
  assert_int_equal(rung_at(0.38), 1);
}

/* Where runs are of one length, requests that may have fewer drafts count for shorter runs only. */
static void runs_of_one_length_are_weighed(void **state) {
  weft_depth_crowd crowd = {.n = 4};
  (void)state;
  open_machine(&card, 4, 1);
  const weft_cost_shape plain = weft_cost_decode(&w.cost.layers, 4, w.n_keys);
  weft_depth_step s = {.n_sequences = 4, .plain = plain, .shape = plain, .pure = true, .us = 1000};
  for (uint32_t i = 0; i < WEFT_DEPTH_KNOWN; i++) weft_depth_landed(&w.depth, &w.cost, &s);
  s.n_runs = 4;
  s.n_gained = 4;
  for (uint32_t depth = 1; depth <= 5; depth += depth < 3 ? 1 : 2) { /* so that their times are known */
    s.depth = depth;
    s.shape.n_rows = s.shape.n_outputs = 4 + 4 * depth;
    s.us = 1000 + 50 * depth;
    weft_depth_landed(&w.depth, &w.cost, &s);
  }
  for (uint32_t i = 0; i < 4; i++) weft_depth_count(&crowd, 0.95, i == 0 ? 3 : 1, true);
  weft_depth_limits limits = {.draft_rows = 100, .rows = 100};
  weft_depth_choose(&w.depth, &w.cost, &crowd, &plain, &limits);
  assert_true(weft_depth_ladder[w.depth.rung] >= 3); /* one has three, the others one each */
  w.depth.rung = 0;
  limits.alike = true;
  weft_depth_choose(&w.depth, &w.cost, &crowd, &plain, &limits);
  assert_int_equal(weft_depth_ladder[w.depth.rung], 1);
  crowd = (weft_depth_crowd){.n = 4};
  for (uint32_t i = 0; i < 4; i++) weft_depth_count(&crowd, 0.1, 3, true);
  w.depth.rung = 0;
  weft_depth_choose(&w.depth, &w.cost, &crowd, &plain, &limits); /* depths that none has are none, however fast */
  assert_true(weft_depth_ladder[w.depth.rung] <= 3);
}

/* An account that is empty ends runs whatever is expected, until a quarter is there again; shapes that are met for the
 * first time tell nothing of times. */
static void an_empty_account_ends_runs(void **state) {
  (void)state;
  open_machine(&card, 1, 1);
  const weft_cost_shape plain = weft_cost_decode(&w.cost.layers, 1, w.n_keys);
  weft_depth_step s = {.n_sequences = 1, .plain = plain, .shape = plain, .pure = true, .us = 1000};
  for (uint32_t i = 0; i < WEFT_DEPTH_KNOWN; i++) weft_depth_landed(&w.depth, &w.cost, &s);
  assert_int_equal(rung_at(1.0), 1);
  s.n_runs = s.depth = 1;
  s.is_new = true;
  s.us = 50000;
  weft_depth_landed(&w.depth, &w.cost, &s);
  assert_int_equal(w.depth.cell[0][1].n, 0);
  assert_int_equal(rung_at(1.0), 1);
  weft_depth_landed(&w.depth, &w.cost, &s);
  assert_int_equal(rung_at(1.0), 0);
  s = (weft_depth_step){.n_sequences = 1, .plain = plain, .shape = plain, .pure = true, .us = 1000};
  uint32_t n = 0;
  for (; rung_at(1.0) == 0; n++) weft_depth_landed(&w.depth, &w.cost, &s);
  assert_in_range(n * 1000 / 200, WEFT_DEPTH_CREDIT_US / 4, WEFT_DEPTH_CREDIT_US);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(there_is_hysteresis),
                                     cmocka_unit_test(an_empty_account_ends_runs),
                                     cmocka_unit_test(runs_of_one_length_are_weighed),
                                     cmocka_unit_test(only_those_that_gain_have_runs),
                                     cmocka_unit_test(one_sequence_comes_near_the_best_depth),
                                     cmocka_unit_test(drafts_that_change_never_lose),
                                     cmocka_unit_test(drafts_never_lose_on_a_card),
                                     cmocka_unit_test(a_drafter_that_costs_never_loses),
                                     cmocka_unit_test(drafts_never_lose_on_a_processor)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
