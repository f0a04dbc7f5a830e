/* SPDX-License-Identifier: MIT */
/* A load beside streams on a device in virtual time: steps go before pieces of weights, and one piece that is under way
 * is not broken off. No two steps end further apart than twice the longest one, and from the time on at which the load
 * has seen that requests run, pieces take at most a fifth. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api/load_pace.h"
#include "base/random.h"

enum { STEP_LEAST_US = 500, STEP_SPAN_US = 500, ROUNDS = 200, PIECES = 400, FIFTH = 5 };

/* The device does one thing at a time; the host enqueues a step as soon as the one before has ended. */
typedef struct world {
  uint64_t now_us, random;
  uint64_t step_ends_us;            /* of the step that is under way; 0: none is, and nobody runs */
  uint64_t begins_us, ends_us;      /* when requests run */
  uint64_t last_us, longest_gap_us; /* between the ends of two steps */
  uint64_t longest_step_us, pieces_us;
} world;

static uint64_t draw(world *w, uint64_t n) {
  return weft_mix64(++w->random) % n;
}

static bool requests_run(const world *w) {
  return w->now_us >= w->begins_us && w->now_us < w->ends_us;
}

static void begin_step(world *w) {
  uint64_t us = STEP_LEAST_US + draw(w, STEP_SPAN_US);
  if (us > w->longest_step_us) w->longest_step_us = us;
  w->step_ends_us = w->now_us + us;
}

/* Steps alone until then; one that is under way then goes on. */
static void run_steps(world *w, uint64_t until_us) {
  while (w->now_us < until_us) {
    uint64_t next = until_us;
    if (w->step_ends_us == 0 && requests_run(w)) begin_step(w);
    if (w->step_ends_us == 0 && w->begins_us > w->now_us && w->begins_us < next) next = w->begins_us;
    if (w->step_ends_us != 0 && w->step_ends_us < next) next = w->step_ends_us;
    w->now_us = next;
    if (w->now_us != w->step_ends_us) continue;
    if (w->last_us != 0 && w->now_us - w->last_us > w->longest_gap_us) w->longest_gap_us = w->now_us - w->last_us;
    w->last_us = w->now_us;
    w->step_ends_us = 0;
  }
}

/* A piece begins when the step that is under way has ended, and the next step waits for it. What the device says that
 * it took has the wait in it, as a card's has. */
static uint64_t run_piece(world *w, uint64_t us) {
  uint64_t asked_us = w->now_us;
  if (w->step_ends_us != 0) run_steps(w, w->step_ends_us);
  w->now_us += us;
  w->pieces_us += us;
  return w->now_us - asked_us;
}

static void run_load(world *w, load_pace *pace, uint64_t n_pieces, uint64_t piece_us, bool counts_waits) {
  for (uint64_t i = 0; i < n_pieces; i++) {
    uint64_t us = piece_us / 2 + draw(w, piece_us / 2), took = run_piece(w, us);
    if (load_pace_looks(pace, w->now_us)) load_pace_saw(pace, w->now_us, requests_run(w));
    uint64_t sleep_us = load_pace_owes(pace, counts_waits ? took : us);
    if (sleep_us == 0) continue;
    sleep_us += draw(w, 60); /* a system wakes late */
    run_steps(w, w->now_us + sleep_us);
    load_pace_slept(pace, sleep_us);
  }
}

static void test_streams_beside_a_load(void **state) {
  (void)state;
  for (uint64_t round = 0; round < ROUNDS; round++) {
    world w = {.random = round * 7919, .begins_us = 1, .ends_us = UINT64_MAX};
    load_pace pace = {0};
    uint64_t piece_us = 20 + draw(&w, STEP_LEAST_US - 20);
    run_steps(&w, 10000);
    uint64_t began_us = w.now_us;
    run_load(&w, &pace, PIECES, piece_us, round % 2 == 0);
    run_steps(&w, w.now_us + LOAD_PACE_LEAST_US); /* what is still owed */
    uint64_t took_us = w.now_us - began_us;
    assert_true(w.longest_gap_us <= 2 * w.longest_step_us);
    assert_true(w.longest_gap_us > STEP_LEAST_US && w.pieces_us > 0);
    if (FIFTH * w.pieces_us > took_us)
      fail_msg("round %u: pieces took %u of %u us", (unsigned)round, (unsigned)w.pieces_us, (unsigned)took_us);
  }
}

/* Requests come in the middle of a load at full speed: what they meet of it ends with the next look. */
static void test_requests_come_later(void **state) {
  (void)state;
  for (uint64_t round = 0; round < ROUNDS; round++) {
    world w = {.random = round * 104729, .ends_us = UINT64_MAX};
    load_pace pace = {0};
    uint64_t piece_us = 20 + draw(&w, STEP_LEAST_US - 20);
    w.begins_us = 3000 + draw(&w, 3000);
    run_load(&w, &pace, PIECES, piece_us, false);
    run_steps(&w, w.now_us + LOAD_PACE_LEAST_US);
    assert_true(w.last_us > 0 && w.longest_gap_us <= 2 * w.longest_step_us);
    uint64_t before_us = w.begins_us + LOAD_PACE_LOOK_US + piece_us; /* at most so much of it at full speed */
    assert_true(FIFTH * (w.pieces_us - (w.pieces_us < before_us ? w.pieces_us : before_us)) <= w.now_us);
  }
}

/* Where nobody runs, nothing is waited for. */
static void test_nobody_runs(void **state) {
  (void)state;
  world w = {.begins_us = UINT64_MAX, .ends_us = UINT64_MAX};
  load_pace pace = {0};
  run_load(&w, &pace, PIECES, 300, true);
  assert_int_equal(w.now_us, w.pieces_us);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_streams_beside_a_load),
                                     cmocka_unit_test(test_requests_come_later), cmocka_unit_test(test_nobody_runs)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
