/* SPDX-License-Identifier: MIT */
/* Requests whose prefix comes up from the file: they wait, hold nobody up, and end in every way in which a wait can
 * end. */
#include "tests/support/engine_world.h"

enum { SLOW = 40, STEP_US = 1000 };

/* Rows that cost something, so that pages are worth bringing back. */
static uint64_t law(void *self, const weft_batch *batch) {
  (void)self;
  return 100 + 100 * (uint64_t)batch->n_rows;
}

static weft_request_params prompt_of(uint32_t who) {
  weft_request_params p = ask(false, 64, 4);
  p.domain.low = 100 + who;
  return p;
}

static void turn(uint32_t n) {
  for (uint32_t i = 0; i < n; i++) (void)weft_engine_step(w.engine, w.now += STEP_US);
}

static void run_all(weft_request *r, const weft_request_params *p) {
  uint64_t until = w.now + 1000000000;
  while (!weft_engine_idle(w.engine)) {
    turn(1);
    assert_true(w.now < until);
  }
  if (r != NULL) check_equal_solo(r, p);
}

/* Prompts of eight others push the first one's blocks down to the file. */
static void open_and_push_down(bool overlap) {
  plan_world();
  w.config.n_pages = 30;
  w.config.n_host_pages = 30;
  w.config.n_file_pages = 1000;
  w.config.overlap = overlap;
  for (uint32_t i = 0; i < 2; i++) {
    w.fake[i].law = law;
    w.fake[i].lazy = overlap;
  }
  open_world();
  for (uint32_t who = 0; who < 8; who++) {
    weft_request_params p = prompt_of(who);
    run_all(submit(&p), &p);
  }
  for (uint32_t i = 0; i < 50; i++) turn(1);
  assert_true(stats().pager.n_to_file > 20);
  assert_int_equal(stats().n_file_waits, 0);
  weft_fake_store_slow_moves(w.store, SLOW);
}

/* The first one asks again: true, it waits. */
static weft_request *ask_again(weft_request_params *p) {
  *p = prompt_of(0);
  weft_request *r = submit(p);
  turn(2);
  assert_int_equal(stats().n_file_waits, 1);
  assert_int_equal(stats().n_waiting, 1);
  assert_int_equal(stats().n_running, 0);
  assert_true(stats().pager.n_lifting > 0);
  return r;
}

static void a_prefix_comes_up(void **state) {
  (void)state;
  for (int overlap = 0; overlap < 2; overlap++) {
    weft_request_params p;
    open_and_push_down(overlap == 1);
    uint64_t n_rows = stats().n_prefill_rows, n_steps = stats().n_steps;
    weft_request *r = ask_again(&p);
    run_all(r, &p);
    weft_engine_stats s = stats();
    assert_true(s.pager.n_from_file > 0 && s.pager.n_restored > 0);
    assert_true(s.n_prefill_rows - n_rows < 32); /* of 64 */
    assert_true(s.n_steps - n_steps <= 6);       /* what only brings copies is no step */
    assert_int_equal(s.n_file_waits_in_vain, 0);
    assert_int_equal(s.pager.n_lifting, 0);
    (void)close_world(NULL);
  }
}

/* Whether the first one waits for its prefix where a page takes so long, as a start with kept prefixes measured it. */
static bool waits_for(double page_us, uint32_t *n_pages) {
  open_and_push_down(false);
  weft_engine_expect_file(w.engine, page_us);
  uint64_t n_before = stats().pager.n_from_file;
  weft_request_params p = prompt_of(0);
  run_all(submit(&p), &p);
  bool waited = stats().n_file_waits > 0;
  *n_pages = (uint32_t)(stats().pager.n_from_file - n_before);
  (void)close_world(NULL);
  return waited;
}

/* What the operator wants read is read though it takes a little longer than computing, and not where it takes much
 * longer. A row takes 100 us here. */
static void kept_prefixes_may_take_longer(void **state) {
  uint32_t n_pages, none;
  (void)state;
  assert_true(waits_for(1, &n_pages) && n_pages > 0);
  double equal_us = 64 * 100.0 / n_pages;
  assert_true(waits_for(1.4 * equal_us, &none));
  assert_false(waits_for(4 * equal_us, &none));
}

/* Others, of the same and of another model, run and end meanwhile. */
static void nobody_is_held_up(void **state) {
  (void)state;
  weft_request_params p, q = ask(false, 20, 6), other = ask(true, 10, 8);
  open_and_push_down(false);
  weft_fake_store_slow_moves(w.store, 150);
  weft_request *r = ask_again(&p);
  q.domain.low = 7;
  q.model = 1;
  other.domain.low = 8;
  weft_request *a = submit(&q), *b = submit(&other);
  turn(25);
  check_equal_solo(a, &q);
  check_equal_solo(b, &other);
  assert_int_equal(stats().n_waiting, 1);
  run_all(r, &p);
  assert_int_equal(stats().n_file_waits_in_vain, 0);
}

static void waits_end_early(void **state) {
  (void)state;
  for (uint32_t way = 0; way < 4; way++) {
    weft_request_params p = prompt_of(0);
    open_and_push_down(way % 2 == 1);
    if (way == 1) p.deadline_us = w.now + 5 * STEP_US;
    weft_request *r = submit(&p);
    turn(2);
    assert_int_equal(stats().n_waiting, 1);
    if (way == 0) weft_engine_cancel(w.engine, r);
    if (way == 2) weft_engine_stop(w.engine);
    if (way == 3) weft_engine_reset_cache(w.engine); /* then there is nothing to wait for */
    if (way < 2) turn(6);
    if (way < 3) assert_int_equal(end_and_release(r), way == 1 ? WEFT_FINISH_DEADLINE : WEFT_FINISH_CANCELLED);
    if (way == 3) run_all(r, &p);
    assert_int_equal(stats().n_waiting, 0);
    if (way != 2) turn(200);
    assert_int_equal(stats().pager.n_pinned, 0);
    weft_error error;
    assert_true(weft_pager_check(weft_engine_pager(w.engine), &error));
    (void)close_world(NULL);
  }
}

/* Moves fail: what they were to bring is computed. */
static void moves_that_fail(void **state) {
  (void)state;
  weft_request_params p;
  open_and_push_down(false);
  weft_fake_store_fail(w.store, 1);
  weft_request *r = ask_again(&p);
  uint64_t n_rows = stats().n_prefill_rows;
  run_all(r, &p);
  assert_true(stats().n_prefill_rows - n_rows >= 64);
  assert_true(stats().pager.n_file_lost > 0);
  assert_int_equal(stats().pager.n_from_file, 0);
}

/* A disk that answers no more: who waits computes after a while, others at once; when it answers again, they wait
 * again. */
static void a_disk_that_hangs(void **state) {
  (void)state;
  weft_request_params p;
  open_and_push_down(false);
  weft_fake_store_slow_moves(w.store, UINT32_MAX - 1); /* in effect never */
  weft_request *r = ask_again(&p);
  uint64_t from_us = w.now;
  run_all(r, &p);
  assert_int_equal(stats().n_file_waits_in_vain, 1);
  assert_true(w.now - from_us < 1000000);
  weft_request_params q = prompt_of(1);
  from_us = w.now;
  run_all(submit(&q), &q);
  assert_int_equal(stats().n_file_waits, 1);
  assert_true(w.now - from_us < 50000);
  weft_fake_store_slow_moves(w.store, 3);
  weft_fake_store_end_moves(w.store);
  turn(20);
  q = prompt_of(2);
  run_all(submit(&q), &q);
  assert_true(stats().n_file_waits > 1);
  assert_int_equal(stats().n_file_waits_in_vain, 1);
}

/* All eight ask at once: each waits its turn and none computes what lies in the file. */
static void many_wait(void **state) {
  (void)state;
  open_and_push_down(false);
  weft_fake_store_slow_moves(w.store, 6);
  uint64_t n_rows = stats().n_prefill_rows;
  weft_request_params p[8];
  weft_request *r[8];
  for (uint32_t who = 0; who < 8; who++) {
    p[who] = prompt_of(who);
    r[who] = submit(&p[who]);
  }
  run_all(NULL, NULL);
  for (uint32_t who = 0; who < 8; who++) check_equal_solo(r[who], &p[who]);
  assert_true(stats().pager.n_from_file > 30);
  assert_true(stats().n_prefill_rows - n_rows < 8 * 32);
  assert_int_equal(stats().n_file_waits_in_vain, 0);
}

/* The lane of the one that waits breaks; the other lane's pages come and go as before. */
static void its_model_breaks(void **state) {
  (void)state;
  weft_request_params p, bad = ask(false, 30, 3), q = ask(false, 30, 3);
  open_and_push_down(false);
  weft_request *r = ask_again(&p);
  bad.domain.low = 50;
  weft_fake_runner_break(w.runner[0]);
  weft_request *b = submit(&bad);
  turn(4);
  assert_int_equal(end_and_release(b), WEFT_FINISH_ERROR);
  assert_int_equal(end_and_release(r), WEFT_FINISH_ERROR);
  q.model = 1;
  q.domain.low = 51;
  run_all(submit(&q), &q);
  turn(100);
  assert_int_equal(stats().pager.n_lifting, 0);
  assert_int_equal(stats().n_waiting, 0);
}

int main(void) {
  weft_log_set_level((weft_log_level)-1); /* a device is lost on purpose */
  const struct CMUnitTest tests[] = {
      TEST(a_prefix_comes_up), TEST(nobody_is_held_up), TEST(waits_end_early),  TEST(moves_that_fail),
      TEST(a_disk_that_hangs), TEST(many_wait),         TEST(its_model_breaks), TEST(kept_prefixes_may_take_longer)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
