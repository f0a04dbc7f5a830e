/* SPDX-License-Identifier: MIT */
/* A pool that changes its size while requests run (scheduler/pool_size.h), in virtual time: nobody waits for it, it gets
 * as small as what runs lets it, and its memory goes when nothing uses it any more. */
#include "tests/support/engine_world.h"

#include "base/random.h"
#include "scheduler/check.h"

enum { PAGES = 120, PAGES_MAX = 480, STREAMS = 6, N_TOKENS = 60, STEP_PAGES = 16, STEP_US = 250 };

static weft_pool_calls pool;
static uint32_t n_refused_from, n_resizes, n_copies;
static uint64_t longest_us, page_us; /* page_us: what the driver takes to map a page or to take it away */

static weft_pool_view size(void) {
  return weft_engine_pool_size(w.engine);
}

static weft_status resize_store(void *self, uint32_t n_pages) {
  (void)self;
  if (n_refused_from > 0 && n_pages >= n_refused_from) return WEFT_E_NO_MEMORY;
  uint32_t before = size().n_backed, n = n_pages > before ? n_pages - before : before - n_pages;
  weft_fake_store_resize(w.store, n_pages);
  n_resizes += 1;
  w.now += n * page_us;
  return WEFT_OK;
}

static weft_status copy_now(void *self, const weft_page_copy *copy, uint32_t n) {
  (void)self;
  weft_fake_store_copy(w.store, copy, n);
  n_copies += n;
  return WEFT_OK;
}

/* Steps of other lengths, one after another. */
static uint64_t time_of_step(void *self, const weft_batch *batch) {
  (void)self;
  uint64_t us = 500 + weft_mix64(batch->number) % 500;
  if (us > longest_us) longest_us = us;
  w.now += us;
  return us;
}

static void open_pool(uint32_t n_first, bool overlap) {
  n_refused_from = n_resizes = n_copies = 0;
  longest_us = 0;
  plan_world();
  pool = (weft_pool_calls){.n_pages_max = PAGES_MAX,
                           .n_pages_first = n_first,
                           .n_pages_step = STEP_PAGES,
                           .resize = resize_store,
                           .copy = copy_now};
  w.config.n_pages = PAGES_MAX; /* of the store */
  for (uint32_t i = 0; i < 2; i++) {
    w.fake[i].law = time_of_step;
    w.fake[i].lazy = true;
  }
  w.config.overlap = overlap;
  weft_error error = {{0}};
  assert_int_equal(weft_fake_store_open(PAGES_MAX, 8, &w.store), WEFT_OK);
  weft_fake_store_resize(w.store, n_first);
  for (uint32_t i = 0; i < 2; i++) {
    w.fake[i].store = w.store;
    assert_int_equal(weft_fake_runner_open(&w.fake[i], &w.runner[i]), WEFT_OK);
  }
  w.config.n_pages = PAGES;
  w.config.pool = &pool;
  w.config.runner = w.runner;
  if (weft_engine_open(&w.config, &w.engine, &error) != WEFT_OK) fail_msg("%s", error.text);
}

static void turn(void) {
  weft_error error = {{0}};
  (void)weft_engine_step(w.engine, w.now);
  const char *broken = weft_engine_check(w.engine);
  if (broken != NULL) fail_msg("%s", broken);
  if (!weft_pager_check(weft_engine_pager(w.engine), &error)) fail_msg("%s", error.text);
}

static void end_all(void) {
  for (uint32_t i = 0; !weft_engine_idle(w.engine); i++) {
    assert_true(i < 2000);
    turn();
  }
}

/* Fills the cache with prompts of their own. */
static void fill_cache(uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    weft_request_params p = ask(false, 64, 1);
    w.prompt[0] = (int32_t)(i % VOCAB);
    w.prompt[1] = (int32_t)(i / VOCAB);
    weft_request *r = submit(&p);
    run_out();
    weft_engine_release(w.engine, r);
  }
}

/* Streams beside a pool that shrinks to less than half and grows again and again, by a driver that takes half of the
 * shortest step for the pages of one turn: no stream waits for a token longer than for two of the longest steps, and
 * all have the tokens that they have alone. */
static void test_gaps(void **state) {
  (void)state;
  for (uint32_t overlap = 0; overlap < 2; overlap++) {
    open_pool(PAGES_MAX, overlap != 0);
    fill_cache(24);
    page_us = STEP_US / STEP_PAGES;
    weft_request_params p[STREAMS];
    weft_request *r[STREAMS];
    uint64_t last[STREAMS] = {0}, gap = 0;
    uint32_t n[STREAMS] = {0}, n_done = 0, n_shrunk = 0;
    for (uint32_t i = 0; i < STREAMS; i++) {
      p[i] = ask_as(i % 3, 9 + i, N_TOKENS);
      r[i] = submit(&p[i]);
    }
    for (uint32_t turns = 0; n_done < STREAMS; turns++) {
      assert_true(turns < 2000);
      if (turns % 24 == 6) weft_engine_resize_pool(w.engine, turns % 48 == 6 ? PAGES : PAGES_MAX);
      turn();
      n_shrunk += size().n_backed < PAGES_MAX / 2;
      for (uint32_t i = 0; i < STREAMS; i++) {
        weft_event event;
        while (r[i] != NULL && weft_engine_poll(w.engine, r[i], &event) == WEFT_OK) {
          if (event.kind == WEFT_EVENT_TOKENS) {
            if (last[i] > 0 && w.now - last[i] > gap) gap = w.now - last[i];
            last[i] = w.now;
            n[i] += event.n;
            continue;
          }
          assert_int_equal(event.finish, WEFT_FINISH_LENGTH);
          weft_engine_release(w.engine, r[i]);
          r[i] = NULL;
          n_done += 1;
        }
      }
    }
    for (uint32_t i = 0; i < STREAMS; i++) assert_int_equal(n[i], N_TOKENS);
    print_message("%s: gaps of %llu us at most, steps of %llu, %u resizes of memory\n", overlap ? "overlap" : "alone",
                  (unsigned long long)gap, (unsigned long long)longest_us, n_resizes);
    assert_true(gap > 0 && gap <= 2 * longest_us);
    assert_true(n_shrunk > 0 && n_resizes > 20);
    page_us = 0;
    (void)close_world(NULL);
  }
}

/* What runs keeps its pages, and the pool gets as small as was asked once it has ended; then everything goes, but for a
 * page. No runner needs to make a step for it. */
static void test_as_far_as_it_goes(void **state) {
  (void)state;
  open_pool(PAGES_MAX, true);
  fill_cache(24);
  weft_request_params p = ask_as(0, 60, 30);
  weft_request *r = submit(&p);
  step(4);
  weft_engine_resize_pool(w.engine, 1);
  for (uint32_t i = 0; i < 12; i++) turn();
  uint32_t n_pinned = weft_pager_get_stats(weft_engine_pager(w.engine)).n_pinned;
  assert_true(n_pinned > 8 && size().n_open >= n_pinned);
  end_all();
  for (uint32_t i = 0; i < 80; i++) turn();
  weft_engine_release(w.engine, r);
  assert_int_equal(size().n_open, 1);
  assert_int_equal(size().n_backed, 1);
  weft_engine_resize_pool(w.engine, PAGES);
  for (uint32_t i = 0; i < 20; i++) turn();
  assert_int_equal(size().n_backed, PAGES);
  r = submit(&p);
  end_all();
  weft_engine_release(w.engine, r);
}

static void test_refused(void **state) {
  (void)state;
  open_pool(PAGES, false);
  n_refused_from = PAGES + 20;
  weft_engine_resize_pool(w.engine, PAGES_MAX);
  for (uint32_t i = 0; i < 10; i++) turn();
  assert_true(size().refused && size().n_open == PAGES + 16 && size().n_wanted == PAGES_MAX);
  n_refused_from = 0;
  for (uint32_t i = 0; i < 10; i++) turn();
  assert_int_equal(size().n_open, PAGES + 16); /* until somebody asks again */
  weft_engine_resize_pool(w.engine, PAGES_MAX);
  for (uint32_t i = 0; i < 40; i++) turn();
  assert_true(!size().refused && size().n_open == PAGES_MAX);
}

/* There is no memory for what was asked for, but for what a request needs that comes then, or came before. */
static void test_refused_beyond_what_is_needed(void **state) {
  (void)state;
  for (uint32_t later = 0; later < 2; later++) {
    open_pool(PAGES, false);
    weft_engine_resize_pool(w.engine, 1);
    for (uint32_t i = 0; i < 80; i++) turn();
    assert_int_equal(size().n_backed, 1);
    pool.n_pages_step = PAGES_MAX;
    n_refused_from = PAGES + 1;
    weft_request_params p = ask_as(0, 60, 30);
    weft_request *r = later ? NULL : submit(&p);
    weft_engine_resize_pool(w.engine, PAGES_MAX);
    for (uint32_t i = 0; i < 4; i++) turn();
    if (later) {
      assert_true(size().refused && size().n_backed == 1);
      r = submit(&p);
    }
    end_all();
    assert_true(size().refused && size().n_backed > 8 && size().n_backed <= PAGES);
    weft_engine_release(w.engine, r);
    (void)close_world(NULL);
  }
}

static void test_configurations(void **state) {
  (void)state;
  const weft_pool_calls wrong[] = {{.n_pages_max = PAGES - 1, .n_pages_first = 1, .n_pages_step = 1},
                                   {.n_pages_max = PAGES, .n_pages_first = 0, .n_pages_step = 1},
                                   {.n_pages_max = PAGES, .n_pages_first = PAGES + 1, .n_pages_step = 1},
                                   {.n_pages_max = PAGES, .n_pages_first = PAGES, .n_pages_step = 0}};
  open_pool(PAGES, false);
  for (uint32_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    weft_engine *engine = NULL;
    weft_error error = {{0}};
    weft_engine_config config = w.config;
    config.pool = &wrong[i];
    assert_int_equal(weft_engine_open(&config, &engine, &error), WEFT_E_INVALID);
    assert_non_null(strstr(error.text, "a pool of"));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(test_gaps, close_world), cmocka_unit_test_teardown(test_as_far_as_it_goes, close_world),
      cmocka_unit_test_teardown(test_refused, close_world), cmocka_unit_test(test_refused_beyond_what_is_needed),
      cmocka_unit_test_teardown(test_configurations, close_world)};
  return cmocka_run_group_tests_name("a pool that changes its size", tests, NULL, NULL);
}
