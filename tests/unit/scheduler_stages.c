/* SPDX-License-Identifier: MIT */
/* A runner that computes several steps at once (rows.h, stages): no request decodes or denoises in two steps that are
 * computed at once, also where other lanes make plans without rows, every stage has a step while requests could run, all
 * of them get rows as often, one alone does not wait, and answers are what they are with one stage. */
#include "tests/support/engine_world.h"

#include "scheduler/rows.h"

enum { STEPS = 4096, SLOTS = 8, LONG = 5000 };

/* Of every batch: the slots with rows that decode or denoise, how many rows of prompts, and the batches in flight before
 * it. */
static struct { uint32_t n, n_stages, n_overlaps, slots[STEPS], n_prompt[STEPS], n_before[STEPS]; } seen;

static uint64_t note_batch(void *self, const weft_batch *batch) {
  (void)self;
  uint32_t i = seen.n++;
  assert_true(i < STEPS);
  seen.slots[i] = seen.n_prompt[i] = 0;
  seen.n_before[i] = w.engine->n_flight;
  for (uint32_t s = 0; s < batch->n_segments; s++) {
    const weft_segment *segment = &batch->segment[s];
    bool prompt = segment->n_rows > 1 || segment->n_outputs == 0;
    if (segment->token_source == WEFT_TOKENS_HOST && prompt)
      seen.n_prompt[i] += segment->n_rows;
    else
      seen.slots[i] |= 1u << segment->slot;
  }
  for (uint32_t back = 1; back < seen.n_stages && back <= seen.n_before[i]; back++)
    seen.n_overlaps += (seen.slots[i] & seen.slots[i - back]) != 0;
  return 1000;
}

static void plan_stages(uint32_t n_stages) {
  plan_world();
  memset(&seen, 0, sizeof seen);
  seen.n_stages = n_stages;
  for (uint32_t i = 0; i < 2; i++) {
    w.fake[i].n_stages = n_stages;
    w.fake[i].depth = n_stages + 1;
    w.fake[i].law = note_batch;
    w.fake[i].lazy = true;
  }
  w.config.n_models = 1;
  w.config.overlap = true;
  w.config.no_prefix_cache = true;
}

static uint32_t count_bits(uint32_t x) {
  return (uint32_t)__builtin_popcount(x);
}

/* n requests of one kind at once. */
static void spread_over_stages(bool canvas, uint32_t n_stages, uint32_t n) {
  weft_request *r[SLOTS];
  weft_request_params p[SLOTS];
  plan_stages(n_stages);
  open_world();
  for (uint32_t i = 0; i < n; i++) {
    p[i] = ask(canvas, 4 + i, canvas ? 3 * CANVAS : 40);
    p[i].asked.entropy_bound.confidence = 0.0f;
    r[i] = submit(&p[i]);
  }
  run_out();
  uint32_t share = (n + n_stages - 1) / n_stages, n_full = 0;
  for (uint32_t i = 0; i + n_stages <= seen.n; i++) {
    uint32_t all = 0;
    for (uint32_t s = 0; s < n_stages; s++) all |= seen.slots[i + s];
    if (seen.n_prompt[i] == 0)
      assert_true(count_bits(seen.slots[i]) <= share); /* a prompt's end may bring a first step */
    n_full += count_bits(all) == n && seen.n_before[i + n_stages - 1] + 1 >= n_stages;
  }
  if (seen.n_overlaps > 0)
    fail_msg("%s, %u requests, %u stages: %u times in two steps at once", canvas ? "canvases" : "decode", n, n_stages,
             seen.n_overlaps);
  if (n >= n_stages && n_full < 20)
    fail_msg("%u requests, %u stages: %u times every stage had a step and every request rows", n, n_stages, n_full);
  for (uint32_t i = 0; i < n; i++) check_equal_solo(r[i], &p[i]);
  (void)close_world(NULL);
}

static void requests_are_spread_over_stages(void **state) {
  (void)state;
  for (uint32_t n_stages = 1; n_stages <= 3; n_stages++) {
    for (uint32_t n = 1; n <= SLOTS; n++) {
      spread_over_stages(false, n_stages, n);
      if (2 * CANVAS * ((n + n_stages - 1) / n_stages) <= w.config.rows_per_step) spread_over_stages(true, n_stages, n);
    }
  }
}

/* A request of another model waits for a place all the time, so that its lane makes plans without rows between the
 * steps of the others. Plans that were not submitted take no device's time: no request has rows in two steps at once. */
static void empty_plans_are_no_steps(void **state) {
  (void)state;
  for (uint32_t n_stages = 2; n_stages <= 3; n_stages++) {
    weft_request *r[4];
    plan_stages(n_stages);
    w.config.n_models = 2;
    w.config.running_max = 4;
    w.fake[1].law = NULL;
    open_world();
    weft_request_params p = ask(false, 6, 40), late = ask(false, 4, 2);
    late.model = 1;
    submit_all(&p, r, 4);
    step(6);
    weft_request *other = submit(&late);
    step(1);
    uint64_t n_plans = w.engine->n_plans, n_steps = stats().n_steps;
    step(20);
    assert_true(stats().n_waiting == 1);
    assert_true(w.engine->n_plans - n_plans > stats().n_steps - n_steps + 10); /* there were such plans */
    run_out();
    assert_int_equal(seen.n_overlaps, 0);
    release_all(r, 4);
    weft_engine_release(w.engine, other);
    (void)close_world(NULL);
  }
}

static void plan_long(uint32_t n_stages) {
  plan_stages(n_stages);
  w.fake[0].context_length = w.config.seq_tokens_max = 2 * LONG;
  w.fake[0].rows_max = w.config.rows_per_step = 2048;
  w.fake[0].model.group[1].window = 0;
  w.config.n_pages = 8 * LONG;
}

/* A prompt alone comes in pieces, two of which are computed at once; pieces are not cut below WEFT_STAGE_ROWS. */
static void a_prompt_is_cut_for_stages(void **state) {
  (void)state;
  static const uint32_t lengths[] = {500, 1024, 1025, 2048, 3000, 4096};
  static int32_t tokens[LONG];
  for (uint32_t i = 0; i < LONG; i++) tokens[i] = (int32_t)(i % VOCAB);
  for (uint32_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
    plan_long(2);
    open_world();
    weft_request_params p = ask(false, 4, 2);
    p.tokens = tokens;
    p.n_tokens = lengths[k];
    weft_request *r = submit(&p);
    run_out();
    uint32_t sum = 0, n_at_once = 0;
    for (uint32_t i = 0; i < seen.n; sum += seen.n_prompt[i++]) {
      uint32_t left = lengths[k] - sum, least = left < WEFT_STAGE_ROWS ? left : WEFT_STAGE_ROWS;
      if (left < 2) break;
      assert_true(seen.n_prompt[i] >= least);
      assert_true(seen.n_prompt[i] <= 2048);
      n_at_once += i > 0 && seen.n_before[i] > 0;
    }
    assert_true(n_at_once >= (lengths[k] > WEFT_STAGE_ROWS + 1 ? 1 : 0));
    weft_engine_release(w.engine, r);
    (void)close_world(NULL);
  }
}

/* Prompts enough for both stages fill their steps. */
static void prompts_fill_steps(void **state) {
  (void)state;
  static int32_t tokens[4][LONG];
  weft_request *r[4];
  plan_long(2);
  open_world();
  for (uint32_t i = 0; i < 4; i++) {
    for (uint32_t t = 0; t < LONG; t++) tokens[i][t] = (int32_t)((t + i) % VOCAB);
    weft_request_params p = ask(false, 4, 1);
    p.tokens = tokens[i];
    p.n_tokens = 2048;
    r[i] = submit(&p);
  }
  run_out();
  for (uint32_t i = 0; i < 3; i++) assert_int_equal(seen.n_prompt[i], 2048);
  release_all(r, 4);
}

/* Without overlap there is one step at a time, whatever the runner can. */
static void without_overlap_there_is_one_stage(void **state) {
  (void)state;
  weft_request *r[4];
  plan_stages(2);
  w.config.overlap = false;
  open_world();
  weft_request_params p = ask(false, 6, 30);
  submit_all(&p, r, 4);
  run_out();
  uint32_t n_all = 0;
  for (uint32_t i = 0; i < seen.n; i++) n_all += count_bits(seen.slots[i]) == 4;
  assert_true(n_all >= 28);
  release_all(r, 4);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(requests_are_spread_over_stages),    TEST(empty_plans_are_no_steps),
      TEST(a_prompt_is_cut_for_stages),         TEST(prompts_fill_steps),
      TEST(without_overlap_there_is_one_stage),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
