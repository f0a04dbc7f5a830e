/* SPDX-License-Identifier: MIT */
/* Views of the engine: none where nobody asks, one for each that is asked for; the phases of requests, pins, bounds. */
#include "base/clock.h"
#include "tests/support/engine_world.h"

static weft_view view;

static void open_watched(void) {
  open_world();
  assert_int_equal(weft_engine_open_view(w.engine, &view), WEFT_OK);
}

/* Without a thread the engine takes the view in a step of the test. */
static void look(void) {
  uint64_t before = view.number;
  weft_engine_ask_view(w.engine);
  for (uint32_t i = 0; i < 1000; i++) {
    step(1);
    if (weft_engine_await_view(w.engine, 0, &view)) break;
  }
  assert_int_equal(view.number, before + 1);
  const weft_pager_stats *p = &view.pager;
  assert_int_equal(p->n_free + p->n_cached + p->n_pinned, w.config.n_pages);
  assert_true(view.n_pinned <= p->n_pinned);
}

static uint32_t n_in(weft_phase phase) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < view.n_requests; i++) n += view.request[i].phase == phase;
  return n;
}

static int close_watched(void **state) {
  weft_view_close(&view);
  return close_world(state);
}

static void nobody_asks(void **state) {
  (void)state;
  open_watched();
  weft_request_params p = ask(true, 20, 24);
  weft_request *r = submit(&p);
  run_out();
  assert_int_equal(stats().n_views, 0);
  assert_false(weft_engine_await_view(w.engine, 0, &view) && view.number > 0);
  assert_int_equal(end_and_release(r), WEFT_FINISH_LENGTH);
  look();
  step(20);
  assert_int_equal(stats().n_views, 1); /* one for each that was asked for */
}

/* Asked for and not taken: the newest one is given, and the asker is told that it is late. */
static void a_late_view(void **state) {
  (void)state;
  open_watched();
  look();
  weft_engine_ask_view(w.engine);
  assert_false(weft_engine_await_view(w.engine, weft_clock_us() + 1000, &view));
  assert_int_equal(view.number, 1);
  step(1);
  assert_true(weft_engine_await_view(w.engine, 0, &view));
  assert_int_equal(view.number, 2);
}

static void phases_of_both_kinds(void **state) {
  (void)state;
  open_watched();
  weft_request_params token = ask(false, 70, 12), canvas = ask(true, 60, 24);
  token.model = 1;
  token.tenant = 2;
  weft_request *a = submit(&token), *b = submit(&canvas);
  uint32_t seen = 0;
  uint64_t number = UINT64_MAX;
  while (!weft_engine_idle(w.engine)) {
    look();
    for (uint32_t i = 0; i < view.n_requests; i++) {
      const weft_view_request *r = &view.request[i];
      seen |= 1u << r->phase;
      assert_true(r->n_computed <= r->n_prompt);
      assert_int_equal(r->tenant, r->model == 1 ? 2 : 0);
      assert_int_equal(r->n_prompt, r->model == 1 ? 70 : 60);
      assert_int_equal(r->answer_max, r->model == 1 ? 12 : 24);
      assert_int_equal(r->n_canvas, r->model == 1 ? 0 : CANVAS);
      if (r->model == 1 && number == UINT64_MAX) number = r->number;
      if (r->model == 1) assert_int_equal(r->number, number);
      if (r->phase == WEFT_PHASE_DENOISE) assert_true(r->step <= r->n_steps && r->block <= 3 && r->n_steps > 0);
    }
    assert_int_equal(view.n_more, 0);
  }
  uint32_t wanted = 1u << WEFT_PHASE_PREFILL | 1u << WEFT_PHASE_DECODE | 1u << WEFT_PHASE_DENOISE;
  assert_int_equal(seen & wanted, wanted);
  look();
  assert_int_equal(view.n_requests, 0);
  assert_int_equal(view.pager.n_pinned, 0);
  release_all((weft_request *[]){a, b}, 2);
}

/* More wait than are listed; the running ones are there, and of each tenant some that wait. */
static void what_waits_is_bounded(void **state) {
  enum { N = 60 };
  weft_request *r[N];
  (void)state;
  w.config.running_max = 2;
  w.config.waiting_max = N;
  open_watched();
  for (uint32_t i = 0; i < N; i++) {
    weft_request_params p = ask(false, 20, 40);
    p.tenant = i < 50 ? 0 : 1;
    p.domain.low = 100 + i; /* no prefix is shared, so nobody follows another */
    r[i] = submit(&p);
  }
  step(6);
  look();
  uint32_t n_of[2] = {0, 0};
  for (uint32_t i = 0; i < view.n_requests; i++) n_of[view.request[i].tenant] += 1;
  assert_int_equal(n_in(WEFT_PHASE_PREFILL) + n_in(WEFT_PHASE_DECODE), 2);
  assert_int_equal(n_in(WEFT_PHASE_QUEUED), view.n_requests - 2);
  assert_in_range(n_of[0], WEFT_VIEW_QUEUE_MAX, WEFT_VIEW_QUEUE_MAX + 2);
  assert_in_range(n_of[1], 9, 10);
  assert_int_equal(view.n_requests + view.n_more, N);
  release_all(r, N);
  run_out();
}

static void followers_and_preempted(void **state) {
  weft_request *r[6];
  (void)state;
  w.config.n_pages = 46;
  open_watched();
  weft_request_params leader = ask(false, 90, 2), follower = ask(false, 90, 2);
  leader.model = follower.model = 1;
  w.prompt[89] = 3;
  r[0] = submit(&leader);
  step(1);
  r[1] = submit(&follower);
  uint32_t n_prefix = 0, n_preempted = 0;
  for (uint32_t i = 0; i < 10 && !weft_engine_idle(w.engine); i++) {
    look();
    n_prefix += n_in(WEFT_PHASE_PREFIX);
  }
  assert_true(n_prefix > 0);
  run_out();
  release_all(r, 2);
  for (uint32_t i = 0; i < 6; i++) { /* they start with room, and grow beyond it */
    weft_request_params p = ask(false, 12, 80);
    p.model = 1;
    p.domain.low = 50 + i;
    r[i] = submit(&p);
  }
  for (uint32_t i = 0; i < 1000 && !weft_engine_idle(w.engine); i++) {
    look();
    n_preempted += n_in(WEFT_PHASE_PREEMPTED);
    for (uint32_t k = 0; k < view.n_requests; k++)
      if (view.request[k].phase == WEFT_PHASE_PREEMPTED && view.request[k].n_computed == 0)
        assert_true(view.request[k].n_preemptions > 0);
  }
  assert_true(n_preempted > 0);
  run_out();
  release_all(r, 6);
}

static void pins_are_shown(void **state) {
  uint32_t id = 0;
  weft_error error = {{0}};
  (void)state;
  w.config.pins_max = 2;
  open_watched();
  weft_pin_params p = {.domain = {.low = 1}, .tokens = w.prompt, .n_tokens = 32};
  assert_int_equal(weft_engine_pin(w.engine, &p, ++w.now, &id, &error), WEFT_OK);

  for (uint32_t i = 0; i < 200 && !weft_engine_idle(w.engine); i++) step(1);

  look();
  weft_pin_info info;
  assert_int_equal(weft_engine_list_pins(w.engine, &info, 1), 1);
  assert_true(info.held);
  assert_true(view.n_pinned > 0); /* a window keeps fewer than the pages that a pin may have */
  assert_int_equal(view.n_pinned, view.pager.n_pinned);
  uint32_t n = 0;
  for (uint32_t i = 0; i < view.n_cells; i++) n += view.cell[i].state == WEFT_GRID_PINNED;
  assert_int_equal(n, view.n_pinned);
  assert_int_equal(weft_engine_unpin(w.engine, id), WEFT_OK);
  step(2);
  look();
  assert_int_equal(view.n_pinned, 0);
}

/* A large pool is looked at in parts while there is work, and at once where there is none. */
static void a_large_pool(void **state) {
  (void)state;
  w.config.n_pages = 3 * WEFT_VIEW_SCAN_PAGES + 5;
  open_watched();
  weft_request_params p = ask(false, 20, 60);
  weft_request *r = submit(&p);
  step(3);
  weft_engine_ask_view(w.engine);
  uint32_t n = 0;
  do {
    assert_int_equal(weft_engine_step(w.engine, ++w.now), WEFT_OK);
    n += 1;
  } while (!weft_engine_await_view(w.engine, 0, &view));
  assert_int_equal(n, 3);
  assert_int_equal(view.n_requests, 1);
  run_out();
  weft_engine_ask_view(w.engine);
  step(1);
  assert_true(weft_engine_await_view(w.engine, 0, &view));
  weft_engine_release(w.engine, r);
}

/* An idle engine is woken for a view, and a busy one goes on: asked for from another thread. */
static void with_a_thread(void **state) {
  (void)state;
  open_watched();
  assert_int_equal(weft_engine_start(w.engine), WEFT_OK);
  for (uint64_t i = 1; i <= 50; i++) {
    weft_request_params p = ask(i % 2 == 0, 20, 30);
    weft_request *r = NULL;
    weft_error error;
    assert_int_equal(weft_engine_submit(w.engine, &p, weft_clock_us(), &r, &error), WEFT_OK);
    weft_engine_ask_view(w.engine);
    assert_true(weft_engine_await_view(w.engine, UINT64_MAX, &view));
    assert_true(view.number >= i);
    weft_engine_release(w.engine, r);
  }
  weft_engine_stop(w.engine);
  assert_int_equal(stats().n_views, view.number);
}

#define WATCH(f) cmocka_unit_test_setup_teardown(f, plan_fixture, close_watched)

int main(void) {
  const struct CMUnitTest tests[] = {WATCH(nobody_asks),
                                     WATCH(a_late_view),
                                     WATCH(phases_of_both_kinds),
                                     WATCH(what_waits_is_bounded),
                                     WATCH(followers_and_preempted),
                                     WATCH(pins_are_shown),
                                     WATCH(a_large_pool),
                                     WATCH(with_a_thread)};
  return cmocka_run_group_tests_name("unit/scheduler_watch", tests, NULL, NULL);
}
