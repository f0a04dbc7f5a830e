/* SPDX-License-Identifier: MIT */
/* Pace: the engine over fake devices whose steps follow a law. */
#include "tests/support/engine_world.h"

#include "scheduler/pace.h"

enum { FIXED_US = 500, ROW_US = 20, CANVAS_US = 30, STEPS = 4096 };

/* What each step took, and of what it was. */
static struct {
  uint64_t us[STEPS], sum_us[2];
  uint32_t n, n_decode[STEPS], n_rows[STEPS], n_canvases[STEPS], n_prompt[STEPS];
} seen;

static uint64_t law(void *self, const weft_batch *batch) {
  uint32_t lane = *(const uint32_t *)self, i = seen.n++;
  uint64_t us = (lane + 1) * FIXED_US + (uint64_t)ROW_US * batch->n_rows +
                (uint64_t)CANVAS_US * (batch->n_rows - batch->n_encoder);
  assert_true(i < STEPS);
  for (uint32_t s = 0; s < batch->n_segments; s++) {
    const weft_segment *segment = &batch->segment[s];
    if (segment->pass == WEFT_PASS_DECODER) {
      seen.n_canvases[i] += 1;
    } else if (weft_segment_n_sampled(segment) == 1 && segment->n_rows == 1) {
      seen.n_decode[i] += 1;
    } else if (segment->token_source == WEFT_TOKENS_HOST) {
      seen.n_prompt[i] += segment->n_rows;
    }
  }
  seen.us[i] = us;
  seen.n_rows[i] = batch->n_rows;
  seen.sum_us[lane] += us;
  return us;
}

static uint32_t lane_of[2] = {0, 1};

static void plan_paced(uint64_t target_us) {
  plan_world();
  memset(&seen, 0, sizeof seen);
  for (uint32_t i = 0; i < 2; i++) {
    w.fake[i].law = law;
    w.fake[i].law_self = &lane_of[i];
  }
  w.config.target_tpot_us = target_us;
  w.config.no_prefix_cache = true;
}

static weft_request *ask_decode(uint32_t runner, uint32_t n_tokens, uint32_t max_tokens) {
  weft_request_params p = ask(false, n_tokens, max_tokens);
  p.model = runner;
  return submit(&p);
}

static weft_request *ask_canvas(uint32_t n_tokens) {
  weft_request_params p = ask(true, n_tokens, 3 * CANVAS);
  p.asked.entropy_bound.confidence = 0.0f;
  p.asked.entropy_bound.max_steps = 12;
  return submit(&p);
}

/* Steps from `first` on with decode rows that took longer than the target. */
static uint32_t n_slow(uint32_t first, uint64_t target_us) {
  uint32_t n = 0;
  for (uint32_t i = first; i < seen.n; i++) n += seen.n_decode[i] > 0 && seen.us[i] > target_us;
  return n;
}

/* What the model makes of the law is learned first: decode rows, prompts and canvases alone. */
static void warm_up(void) {
  weft_request *r[3] = {ask_decode(0, 30, 20), ask_canvas(20), ask_decode(0, 9, 4)};
  run_out();
  all_end(r, 3, WEFT_FINISH_LENGTH);
}

/* Two decode, prompts and canvases come: every step with decode rows stays under the target, and
 * everything ends. */
static void a_target_is_held(void **state) {
  (void)state;
  const uint64_t target_us = 1100; /* 500 + 2 * 20 + a canvas of 400, or 28 rows of a prompt */
  plan_paced(target_us);
  open_world();
  warm_up();
  uint32_t first = seen.n;
  weft_request *r[8] = {ask_decode(0, 4, 80), ask_decode(0, 5, 80)};
  step(4);
  for (uint32_t i = 2; i < 5; i++) r[i] = ask_canvas(20 + i);
  for (uint32_t i = 5; i < 8; i++) r[i] = ask_decode(0, 80 + i, 2);
  step(70); /* the first two still decode */
  uint32_t n_canvases = 0, n_prompt = 0;
  for (uint32_t i = first + 4; i < seen.n; i++) {
    n_canvases += seen.n_canvases[i];
    n_prompt += seen.n_prompt[i];
  }
  print_message("%u steps, %u slow, %u denoise steps, %u prompt rows\n", seen.n - first,
                n_slow(first, target_us + target_us / 50), n_canvases, n_prompt);
  assert_int_equal(n_slow(first + 2, target_us + target_us / 50), 0);
  assert_true(n_canvases > 20);
  assert_true(n_prompt >= 150);
  run_out();
  all_end(r, 8, WEFT_FINISH_LENGTH);
}

/* The target leaves no time for a canvas nor for a chunk: each kind still runs, one piece at a time,
 * within the bound. */
static void nobody_starves_under_a_target(void **state) {
  (void)state;
  const uint64_t target_us = 600;
  plan_paced(target_us);
  open_world();
  warm_up();
  weft_request *r[5] = {ask_decode(0, 4, 90)};
  step(4);
  uint32_t first = seen.n, last_canvas = seen.n, last_prompt = seen.n;
  r[1] = ask_canvas(4);
  r[2] = ask_canvas(5);
  r[3] = ask_decode(0, 64, 2);
  step(80);
  for (uint32_t i = first; i < seen.n; i++) {
    if (seen.n_canvases[i] + (seen.n_rows[i] >= CANVAS) > 0) {
      assert_true(i - last_canvas <= 2 * (WEFT_PACE_HELD + 2));
      last_canvas = i;
    }
    if (seen.n_prompt[i] > 0) last_prompt = i;
    assert_true(seen.n_canvases[i] <= 1);
    assert_true(seen.us[i] <= FIXED_US + 4 * ROW_US + WEFT_PACE_CHUNK * (ROW_US + CANVAS_US));
  }
  assert_true(last_prompt > first);
  assert_true(last_canvas > first);
  uint32_t n = n_slow(first, target_us);
  print_message("%u of %u steps slow\n", n, seen.n - first);
  assert_true(n <= 2 * (seen.n - first) / (WEFT_PACE_HELD + 1) + 2);
  run_out();
  all_end(r, 4, WEFT_FINISH_LENGTH);
}

/* Without anybody who decodes there is no target: canvases are packed, prompts come whole. */
static void no_target_without_decoding(void **state) {
  (void)state;
  plan_paced(600);
  open_world();
  warm_up();
  weft_request *r[3] = {ask_canvas(4), ask_canvas(5), ask_canvas(6)};
  step(6);
  assert_int_equal(seen.n_canvases[seen.n - 1], 3);
  run_out();
  all_end(r, 3, WEFT_FINISH_LENGTH);
}

/* Steps of lane 1 take about twice as long: it gets half as many. */
static void lanes_get_equal_time(void **state) {
  (void)state;
  plan_paced(0);
  open_world();
  weft_request *a = ask_decode(0, 4, 90), *b = ask_decode(1, 4, 90);
  step(90);
  uint64_t x = seen.sum_us[0], y = seen.sum_us[1];
  print_message("%llu and %llu us\n", (unsigned long long)x, (unsigned long long)y);
  assert_true((x > y ? x - y : y - x) <= 2000);
  assert_true(stats().lane[0].n_steps > stats().lane[1].n_steps + 20);
  run_out();
  assert_int_equal(end_and_release(a), WEFT_FINISH_LENGTH);
  assert_int_equal(end_and_release(b), WEFT_FINISH_LENGTH);
}

/* A lane that had nothing to do for long does not make up for it. */
static void idle_time_is_not_saved_up(void **state) {
  (void)state;
  plan_paced(0);
  open_world();
  weft_request *a = ask_decode(0, 4, 90);
  step(50);
  weft_request *b = ask_decode(1, 4, 30);
  uint64_t before = seen.sum_us[0];
  step(12);
  assert_true(seen.sum_us[0] - before >= 3000);
  run_out();
  assert_int_equal(end_and_release(a), WEFT_FINISH_LENGTH);
  assert_int_equal(end_and_release(b), WEFT_FINISH_LENGTH);
}

static uint64_t charged_us(uint32_t tenant) {
  return tenant_stats(tenant).charged_us;
}

/* One tenant decodes, for another one's canvases the target leaves no time: what they are given
 * stays together. */
static void a_target_is_not_paid_by_one_tenant(void **state) {
  (void)state;
  const uint64_t target_us = 700;
  plan_paced(target_us);
  open_world();
  warm_up();
  weft_request *r[12];
  for (uint32_t i = 0; i < 6; i++) r[i] = ask_decode(0, 4, 90);
  step(3);
  for (uint32_t i = 6; i < 12; i++) {
    weft_request_params p = ask(true, 4, 4 * CANVAS);
    p.asked.entropy_bound.confidence = 0.0f;
    p.asked.entropy_bound.max_steps = 12;
    p.tenant = 1;
    r[i] = submit(&p);
  }
  step(3);
  uint64_t before[2] = {charged_us(0), charged_us(1)};
  const uint64_t step_us = FIXED_US + 40 * ROW_US, bound_us = (1 + WEFT_PACE_AHEAD) * step_us;
  int64_t low = 0, high = 0;
  for (uint32_t i = 0; i < 100; i++) {
    step(1);
    int64_t apart = (int64_t)(charged_us(0) - before[0]) - (int64_t)(charged_us(1) - before[1]);
    if (apart < low) low = apart;
    if (apart > high) high = apart;
  }
  print_message("%lld us apart, bound %llu\n", (long long)(high - low), 2ull * bound_us);
  assert_true((uint64_t)(high - low) <= 2 * bound_us);
  run_out();
  all_end(r, 12, WEFT_FINISH_LENGTH);
}

static void predictions_are_counted(void **state) {
  (void)state;
  plan_paced(0);
  open_world();
  warm_up();
  const weft_lane_stats before = stats().lane[0];
  weft_request *r[2] = {ask_decode(0, 20, 60), ask_canvas(10)};
  run_out();
  const weft_lane_stats lane = stats().lane[0];
  uint64_t n = 0, took_us = lane.measured_us - before.measured_us;
  for (uint32_t i = 0; i < WEFT_STEP_RATIOS; i++) n += lane.ratio[i];
  assert_int_equal(n, lane.n_steps);
  assert_int_equal(lane.measured_us, seen.sum_us[0]);
  print_message("error %.3f\n", (double)(lane.error_us - before.error_us) / (double)took_us);
  assert_true((lane.error_us - before.error_us) * 20 < took_us);
  all_end(r, 2, WEFT_FINISH_LENGTH);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(a_target_is_held),        TEST(nobody_starves_under_a_target), TEST(no_target_without_decoding),
      TEST(lanes_get_equal_time),    TEST(idle_time_is_not_saved_up),     TEST(a_target_is_not_paid_by_one_tenant),
      TEST(predictions_are_counted),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
