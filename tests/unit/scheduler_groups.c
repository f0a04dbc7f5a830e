/* SPDX-License-Identifier: MIT */
/* Several choices of one prompt: the prompt is computed once, every choice equals the same request
 * alone, and each has its own end. */
#include "tests/support/engine_world.h"

enum { CHOICES = 5 };

static weft_request_params choice_of(const weft_request_params *p, uint32_t choice) {
  weft_request_params q = *p;
  q.asked.sampling.choice = choice;
  return q;
}

/* The first is p; the others are its siblings. */
static void submit_group(const weft_request_params *p, weft_request **r, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    weft_request_params q = choice_of(p, i);
    if (i > 0) q.sibling = r[i - 1]; /* any member will do */
    r[i] = submit(&q);
  }
}

static void check_group(const weft_request_params *p, weft_request **r, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    weft_request_params q = choice_of(p, i);
    if (r[i] != NULL) check_equal_solo(r[i], &q);
  }
}

static void a_prompt_is_computed_once(void **state) {
  (void)state;
  for (uint32_t n_prompt = 1; n_prompt < 34; n_prompt++) {
    for (uint32_t variant = 0; variant < 8; variant++) {
      bool canvas = (variant & 1) != 0;
      plan_world();
      w.config.overlap = (variant & 2) != 0;
      w.config.no_prefix_cache = (variant & 4) != 0;
      w.config.prefill_chunk = 12;
      open_world();
      weft_request_params p = ask(canvas, n_prompt, 2 * CANVAS);
      p.asked.no_cache = n_prompt % 3 == 0;
      weft_request *r[CHOICES];
      submit_group(&p, r, CHOICES);
      run_out();
      weft_engine_stats s = stats();
      if (n_prompt > 1) {
        assert_int_equal(s.n_prefill_rows, n_prompt + (canvas ? 0 : CHOICES - 1));
        assert_int_equal(s.pager.n_forks, CHOICES - 1);
        /* a partly filled block of 8, and one of 4, where the forks begin to write */
        uint32_t at = n_prompt - (canvas ? 0 : 1);
        assert_int_equal(s.pager.n_copies, (CHOICES - 1) * ((at % 8 != 0) + (at % 4 != 0)));
      }
      for (uint32_t i = 1; i < CHOICES && n_prompt > 1; i++) {
        weft_event event;
        while (weft_engine_poll(w.engine, r[i], &event) == WEFT_OK) continue;
        assert_int_equal(event.usage.n_cached, n_prompt - (canvas ? 0 : 1));
        weft_engine_release(w.engine, r[i]);
        r[i] = NULL;
      }
      check_group(&p, r, n_prompt > 1 ? 1 : CHOICES);
      (void)close_world(NULL);
    }
  }
}

/* The last canvas is never committed, so nobody will write behind the prompt: no copy. */
static void one_canvas_each_copies_nothing(void **state) {
  (void)state;
  open_world();
  weft_request_params p = ask(true, 21, CANVAS);
  weft_request *r[CHOICES];
  submit_group(&p, r, CHOICES);
  run_out();
  assert_int_equal(stats().pager.n_forks, CHOICES - 1);
  assert_int_equal(stats().pager.n_copies, 0);
  check_group(&p, r, CHOICES);
}

static void every_choice_equals_itself_alone(void **state) {
  (void)state;
  for (uint32_t variant = 0; variant < 16; variant++) {
    plan_world();
    w.config.overlap = (variant & 2) != 0;
    w.config.running_max = (variant & 4) != 0 ? 2 : 8; /* fewer than choices */
    w.config.no_prefix_cache = (variant & 8) != 0;
    open_world();
    weft_request_params p = ask((variant & 1) != 0, 30, 3 * CANVAS);
    weft_request *r[CHOICES];
    submit_group(&p, r, CHOICES);
    run_out();
    check_group(&p, r, CHOICES);
    assert_true(stats().pager.n_forks >= 1);
    (void)close_world(NULL);
  }
}

/* Two choices of a prompt, the second n_steps after the first. */
static void submit_late(const weft_request_params *p, weft_request **r, uint32_t n_steps) {
  r[0] = submit(p);
  step(n_steps);
  weft_request_params q = choice_of(p, 1);
  q.sibling = r[0];
  r[1] = submit(&q);
  step(1);
}

static void choices_that_come_late_fork_too(void **state) {
  (void)state;
  open_world();
  weft_request_params p = ask(false, 5, 30); /* 9 keys of window: positions 0 .. 7 stay for long */
  weft_request *r[2];
  submit_late(&p, r, 4);
  assert_int_equal(stats().pager.n_forks, 1);
  run_out();
  check_group(&p, r, 2);
}

/* ... and where a window has passed, they find what is cached. */
static void choices_that_come_too_late_find_the_cache(void **state) {
  (void)state;
  open_world();
  weft_request_params p = ask(false, 20, 40);
  weft_request *r[2];
  submit_late(&p, r, 30);
  assert_int_equal(stats().pager.n_forks, 0);
  assert_int_equal(stats().n_prefill_rows, 20 + 4); /* 16 were cached */
  run_out();
  check_group(&p, r, 2);
}

static void cancels_end_one(void **state) {
  (void)state;
  for (uint32_t victim = 0; victim < CHOICES; victim++) {
    for (uint32_t at = 0; at < 6; at++) {
      plan_world();
      w.config.prefill_chunk = 10;
      w.config.running_max = 3;
      open_world();
      weft_request_params p = ask(victim % 2 == 1, 34, 2 * CANVAS);
      weft_request *r[CHOICES];
      submit_group(&p, r, CHOICES);
      step(at);
      weft_engine_cancel(w.engine, r[victim]);
      step(1);
      assert_int_equal(end_and_release(r[victim]), WEFT_FINISH_CANCELLED);
      r[victim] = NULL;
      run_out();
      check_group(&p, r, CHOICES);
      (void)close_world(NULL);
    }
  }
}

static void cancels_end_all(void **state) {
  (void)state;
  for (uint32_t at = 0; at < 8; at++) {
    plan_world();
    w.config.overlap = at % 2 == 1;
    w.config.prefill_chunk = 10;
    open_world();
    weft_request_params p = ask(false, 34, 20);
    weft_request *r[CHOICES];
    submit_group(&p, r, CHOICES);
    step(at);
    release_all(r, CHOICES); /* the head first */
    run_out();
    assert_int_equal(stats().n_finished[WEFT_FINISH_CANCELLED], CHOICES);
    (void)close_world(NULL);
  }
}

/* A pool that holds about two of the five: siblings are preempted, and all answers stay. */
static void full_pools_change_no_answer(void **state) {
  (void)state;
  uint64_t n_preemptions = 0, n_forks = 0;
  for (uint32_t variant = 0; variant < 8; variant++) {
    for (uint32_t n_pages = 16; n_pages < 34; n_pages++) {
      plan_world();
      w.config.n_pages = n_pages;
      w.config.overlap = (variant & 2) != 0;
      w.config.no_prefix_cache = (variant & 4) != 0;
      open_world();
      weft_request_params p = ask((variant & 1) != 0, 27, 5 * CANVAS);
      weft_request *r[CHOICES];
      submit_group(&p, r, CHOICES);
      run_out();
      n_preemptions += stats().n_preemptions;
      n_forks += stats().pager.n_forks;
      check_group(&p, r, CHOICES);
      (void)close_world(NULL);
    }
  }
  assert_true(n_preemptions > 20);
  assert_true(n_forks > 100);
}

static uint32_t stop_at(void *self, const int32_t *tokens, uint32_t n) {
  (void)tokens;
  uint32_t keep = *(const uint32_t *)self;
  return n > keep ? keep : n;
}

static void each_has_its_own_limits(void **state) {
  (void)state;
  open_world();
  weft_request_params p = ask(false, 20, 40), q = choice_of(&p, 1);
  weft_request *a = submit(&p);
  q.sibling = a;
  q.max_tokens = 1;
  weft_request *one = submit(&q);
  q.max_tokens = 40;
  uint32_t keep = 7;
  q.stop_rule = stop_at;
  q.stop_self = &keep;
  weft_request *stops = submit(&q);
  q.stop_rule = NULL;
  q.deadline_us = 12;
  weft_request *late = submit(&q);
  q.deadline_us = 0;
  q.asked.priority = 3;
  weft_request *first = submit(&q);
  run_out();
  uint32_t n = 0;
  q.sibling = NULL;
  check_equal_solo(first, &q);
  assert_int_equal(finish_of(one, NULL, &n).finish, WEFT_FINISH_LENGTH);
  assert_int_equal(n, 1);
  assert_int_equal(finish_of(stops, NULL, &n).finish, WEFT_FINISH_STOP);
  assert_int_equal(n, 7);
  assert_int_equal(end_and_release(late), WEFT_FINISH_DEADLINE);
  check_equal_solo(a, &p);
  weft_engine_release(w.engine, one);
  weft_engine_release(w.engine, stops);
}

static void a_device_error_ends_the_group(void **state) {
  (void)state;
  for (uint32_t at = 1; at < 8; at++) {
    for (uint32_t slot = 0; slot < 2; slot++) {
      plan_world();
      w.config.prefill_chunk = 10;
      if (slot == 1)
        w.fake[0].fail_slot_at = at;
      else
        w.fake[0].fail_collect_at = at;
      open_world();
      weft_request_params p = ask(false, 24, 10);
      weft_request *r[CHOICES];
      submit_group(&p, r, CHOICES);
      run_out();
      for (uint32_t i = 0; i < CHOICES; i++) {
        weft_finish finish = end_and_release(r[i]);
        assert_true(finish == WEFT_FINISH_ERROR || finish == WEFT_FINISH_LENGTH);
      }
      (void)close_world(NULL);
    }
  }
}

static void siblings_must_agree(void **state) {
  (void)state;
  open_world();
  weft_request_params p = ask(false, 20, 4);
  weft_request *r = submit(&p);
  weft_request_params q = p;
  q.sibling = r;
  q.n_tokens = 19;
  refused(&q, WEFT_E_INVALID, "same prompt");
  q.n_tokens = 20;
  q.tenant = 1;
  refused(&q, WEFT_E_INVALID, "tenant");
  q.tenant = 0;
  q.model = 1;
  refused(&q, WEFT_E_INVALID, "model");
  q.model = 0;
  q.asked.no_cache = true;
  refused(&q, WEFT_E_INVALID, "cache");
  q.asked.no_cache = false;
  q.domain.low = 9;
  refused(&q, WEFT_E_INVALID, "tenant");
  q.domain.low = 1;
  q.canvas = true;
  refused(&q, WEFT_E_INVALID, "kind");
  w.prompt[19] = 3;
  q.canvas = false;
  refused(&q, WEFT_E_INVALID, "same prompt");
  run_out();
  weft_engine_release(w.engine, r);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(a_prompt_is_computed_once),
                                     TEST(one_canvas_each_copies_nothing),
                                     TEST(every_choice_equals_itself_alone),
                                     TEST(choices_that_come_late_fork_too),
                                     TEST(choices_that_come_too_late_find_the_cache),
                                     TEST(cancels_end_one),
                                     TEST(cancels_end_all),
                                     TEST(full_pools_change_no_answer),
                                     TEST(each_has_its_own_limits),
                                     TEST(a_device_error_ends_the_group),
                                     TEST(siblings_must_agree)};
  return cmocka_run_group_tests(tests, expect_broken_runners, NULL);
}
