/* SPDX-License-Identifier: MIT */
/* Followers of a prefix that is being computed, and the windows that are still there for those who
 * come later. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/pager_kit.h"

/* ---- waiting ----------------------------------------------------------------------------------- */

static void follower_waits_for_the_leader(void **state) {
  (void)state;
  int32_t a[100], b[100];
  kit_tokens(a, 100, 80, 1);
  kit_tokens(b, 100, 80, 2);
  weft_pager *pager = kit_open(64, 3, 1, (kit_group[]){{16, 0}});
  kit_result leader = kit_admit(pager, a, 100, 1);
  weft_pager_stats before = weft_pager_get_stats(pager);
  kit_result follower = kit_admit(pager, b, 100, 1);
  kit_waits(follower, leader.seq);
  weft_pager_stats after = weft_pager_get_stats(pager);
  assert_int_equal(after.n_waits, before.n_waits + 1);
  after.n_waits = before.n_waits;
  assert_memory_equal(&before, &after, sizeof before); /* otherwise nothing changed */
  for (uint32_t at = 0; at < 80; at += 10) {           /* until all of the common part is there */
    assert_int_equal(kit_admit(pager, b, 100, 1).status, WEFT_AGAIN);
    kit_compute(pager, leader.seq, a + at, 10);
    kit_check(pager);
  }
  follower = kit_admit(pager, b, 100, 1);
  kit_is_cached(follower, 80);
  kit_result third = kit_admit(pager, b, 90, 1); /* follows the follower, now */
  assert_int_equal(third.status, WEFT_OK);       /* 90 tokens: no whole block more */
  assert_int_equal(third.n_cached, 80);
  weft_pager_release(pager, leader.seq);
  weft_pager_release(pager, third.seq);
  third = kit_admit(pager, b, 97, 1);
  kit_waits(third, follower.seq);
  kit_end(pager, follower.seq);
}

static void leader_that_ends_frees_its_followers(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[100]){0}, 100, 100, 1);
  for (uint32_t n_computed = 0; n_computed <= 96; n_computed += 16) {
    weft_pager *pager = kit_open(64, 2, 1, (kit_group[]){{16, 0}});
    kit_result leader = kit_admit(pager, a, 100, 1);
    kit_compute(pager, leader.seq, a, n_computed);
    assert_int_equal(kit_admit(pager, a, 97, 1).status, n_computed < 96 ? WEFT_AGAIN : WEFT_OK);
    if (n_computed == 96) weft_pager_release(pager, 1);
    weft_pager_release(pager, leader.seq);
    kit_check(pager);
    assert_int_equal(kit_hit(pager, a, 100), n_computed);
    kit_close(pager);
  }
}

/* A wait must promise a whole block of the largest group beyond what is there. */
static void follower_waits_only_for_whole_blocks(void **state) {
  (void)state;
  int32_t a[100], b[100];
  for (uint32_t same = 0; same <= 96; same += 3) {
    kit_tokens(a, 100, same, 1);
    kit_tokens(b, 100, same, 2);
    weft_pager *pager = kit_open(64, 2, 2, (kit_group[]){{8, 0}, {32, 0}});
    kit_result leader = kit_admit(pager, a, 100, 1);
    kit_compute(pager, leader.seq, a, 40);
    kit_result follower = kit_admit(pager, b, 100, 1);
    uint32_t hit = same < 32 ? 0 : 32;
    assert_int_equal(follower.status, same / 32 * 32 > hit ? WEFT_AGAIN : WEFT_OK);
    if (follower.status == WEFT_OK) {
      assert_int_equal(follower.n_cached, hit);
      weft_pager_release(pager, follower.seq);
    }
    kit_end(pager, leader.seq);
  }
}

static void promise_broken_by_other_tokens_ends(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[100]){0}, 100, 100, 1);
  const int32_t *b = kit_tokens((int32_t[100]){0}, 100, 20, 2);
  weft_pager *pager = kit_open(64, 2, 1, (kit_group[]){{16, 0}});
  kit_result leader = kit_admit(pager, a, 100, 1);
  kit_compute(pager, leader.seq, b, 100); /* against what it said */
  kit_check(pager);
  assert_int_equal(kit_hit(pager, a, 100), 16);
  kit_end(pager, leader.seq);
}

static void reset_withdraws_promises(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[100]){0}, 100, 100, 1);
  weft_pager *pager = kit_open(64, 3, 1, (kit_group[]){{16, 0}});
  kit_result leader = kit_admit(pager, a, 100, 1);
  kit_compute(pager, leader.seq, a, 50);
  weft_pager_reset_cache(pager);
  kit_check(pager);
  kit_result next = kit_admit(pager, a, 100, 1);
  assert_int_equal(next.status, WEFT_OK); /* it is the leader now */
  assert_int_equal(next.n_cached, 0);
  kit_compute(pager, leader.seq, a + 50, 50); /* what the old one computes, nobody sees */
  assert_int_equal(weft_pager_get_stats(pager).n_published, 3);
  assert_int_equal(kit_admit(pager, a, 100, 1).waits_for, next.seq);
  weft_pager_release(pager, leader.seq);
  weft_pager_release(pager, next.seq);
  assert_int_equal(weft_pager_get_stats(pager).n_cached, 0);
  kit_close(pager);
}

/* ---- windows worth keeping --------------------------------------------------------------------- */

/* A hit needs the blocks of the window before it and no others: what admit pins is exactly those. */
static void hit_pins_one_window(void **state) {
  (void)state;
  static const uint32_t windows[] = {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65};
  const int32_t *tokens = kit_tokens((int32_t[96]){0}, 96, 0, 1);
  for (uint32_t i = 0; i < 11; i++) {
    weft_pager *pager = kit_open(64, 2, 2, (kit_group[]){{16, 0}, {16, windows[i]}});
    kit_run(pager, tokens, 96);
    kit_result r = kit_admit(pager, tokens, 96, 0);
    assert_int_equal(r.n_cached, 96);
    uint32_t n, n_held = 0;
    const weft_page *table = weft_pager_table(pager, r.seq, 1, &n);
    assert_int_equal(n, 6);
    for (uint32_t block = 0; block < 6; block++) n_held += table[block] != WEFT_PAGE_NONE;
    assert_int_equal(n_held, windows[i] == 1 ? 0 : windows[i] > 96 ? 6 : (windows[i] - 2) / 16 + 1);
    assert_int_equal(weft_pager_n_pages_held(pager, r.seq), 6 + n_held);
    kit_end(pager, r.seq);
  }
}

/* Blocks of the windowed group, before the table, that a boundary at n_prompt or one row less
 * needs. */
static uint32_t blocks_kept_for(uint32_t n_prompt, uint32_t window, uint32_t n_valid) {
  uint32_t n = 0;
  for (uint32_t block = 0; 16 * block + 15 + window <= n_valid; block++) {
    bool needed = false;
    for (uint32_t p = 16 * block; p < 16 * block + 16; p++)
      for (uint32_t back = 0; back < 2; back++) {
        uint32_t boundary = (n_prompt - back) / 32 * 32;
        needed = needed || (p < boundary && p + window > boundary);
      }
    n += needed;
  }
  return n;
}

/* The end of the prompt stays servable while the answer grows far beyond it, even without COLD
 * blocks; for the same prompt again (its last row computed), and for one that goes on. No block
 * more is kept for it. */
static void prompt_end_is_kept(void **state) {
  (void)state;
  static const uint32_t windows[] = {2, 17, 18, 33, 34, 40, 64, 65};
  int32_t tokens[400], again[400];
  kit_tokens(tokens, 400, 400, 1);
  for (uint32_t i = 0; i < 8; i++) {
    for (uint32_t n_prompt = 30; n_prompt < 100; n_prompt++) {
      weft_pager *pager = kit_open(128, 2, 2, (kit_group[]){{32, 0}, {16, windows[i]}});
      kit_result r = kit_begin(pager, tokens, n_prompt);
      for (uint32_t at = n_prompt; at < 300; at += 5) kit_compute(pager, r.seq, tokens + at, 5);
      kit_drain_cold(pager);
      assert_int_equal(weft_pager_get_stats(pager).n_cached,
                       blocks_kept_for(n_prompt, windows[i], weft_pager_n_valid(pager, r.seq)));
      weft_pager_release(pager, r.seq);
      kit_check(pager);
      kit_tokens(again, 400, n_prompt, 2);
      assert_int_equal(kit_hit(pager, again, 400), n_prompt / 32 * 32);
      r = kit_admit(pager, tokens, n_prompt, 1);
      assert_int_equal(r.n_cached, (n_prompt - 1) / 32 * 32);
      kit_end(pager, r.seq);
    }
  }
}

/* A place where somebody found something once is a boundary for whoever found it. */
static void found_window_is_kept(void **state) {
  (void)state;
  int32_t tokens[400], other[400];
  kit_tokens(tokens, 400, 400, 1);
  weft_pager *pager = kit_open(128, 2, 2, (kit_group[]){{32, 0}, {16, 40}});
  kit_run(pager, tokens, 400);
  assert_int_equal(kit_run(pager, kit_tokens(other, 400, 130, 2), 400), 128); /* among COLD blocks */
  kit_drain_cold(pager);
  assert_int_equal(kit_hit(pager, kit_tokens(other, 400, 130, 3), 400), 128);
  kit_close(pager);
}

static void marked_turn_is_kept(void **state) {
  (void)state;
  const int32_t *tokens = kit_tokens((int32_t[400]){0}, 400, 400, 1);
  for (uint32_t marked = 0; marked < 2; marked++) {
    for (uint32_t n = 170; n < 204; n++) {
      weft_pager *pager = kit_open(128, 2, 2, (kit_group[]){{32, 0}, {16, 40}});
      kit_result r = kit_begin(pager, tokens, 20);
      for (uint32_t at = 20; at < n; at++) kit_compute(pager, r.seq, tokens + at, 1);
      if (marked) weft_pager_mark(pager, r.seq);
      for (uint32_t at = n; at < 350; at++) kit_compute(pager, r.seq, tokens + at, 1);
      weft_pager_release(pager, r.seq);
      kit_drain_cold(pager);
      const int32_t *turn = kit_tokens((int32_t[400]){0}, 400, n, 2);
      assert_int_equal(kit_hit(pager, turn, 400), marked ? n / 32 * 32 : 0);
      kit_close(pager);
    }
  }
}

/* A conversation computes, turn by turn, only what is new since the last whole block, also when all
 * COLD blocks are gone; wherever the turns end within blocks and windows. */
static void a_turn_computes_only_what_is_new(void **state) {
  (void)state;
  static const uint32_t windows[] = {1, 2, 15, 16, 17, 31, 32, 33, 48, 64, 65, 200};
  const int32_t *tokens = kit_tokens((int32_t[400]){0}, 400, 400, 1);
  for (uint32_t i = 0; i < 12; i++) {
    for (uint32_t turn = 33; turn < 100; turn++) { /* tokens of one turn: prompt and answer */
      weft_pager *pager = kit_open(128, 2, 3, (kit_group[]){{32, 0}, {16, windows[i]}, {8, 20}});
      uint32_t n_valid = 0;
      for (uint32_t n = turn; n <= 300; n += turn) {
        uint32_t n_prompt = n - turn / 2;
        kit_result r = kit_admit(pager, tokens, n_prompt, 1);
        assert_int_equal(r.status, WEFT_OK);
        uint32_t most = (n_prompt - 1) / 32 * 32, end = n_valid / 32 * 32;
        assert_int_equal(r.n_cached, end < most ? end : most);
        kit_compute(pager, r.seq, tokens + r.n_cached, n_prompt - r.n_cached);
        for (uint32_t at = n_prompt; at < n - 1; at++) kit_compute(pager, r.seq, tokens + at, 1);
        n_valid = n - 1; /* the last token of an answer is never computed */
        weft_pager_mark(pager, r.seq);
        weft_pager_release(pager, r.seq);
        kit_drain_cold(pager);
        kit_check(pager);
      }
      kit_close(pager);
    }
  }
}

/* Without pressure every boundary can be served, marked or not: COLD blocks are valid. */
static void cold_blocks_serve_while_they_last(void **state) {
  (void)state;
  int32_t tokens[400], other[400];
  kit_tokens(tokens, 400, 400, 1);
  weft_pager *pager = kit_open(128, 2, 2, (kit_group[]){{32, 0}, {16, 40}});
  kit_run(pager, tokens, 400);
  for (uint32_t n = 0; n < 400; n += 13)
    assert_int_equal(kit_hit(pager, kit_tokens(other, 400, n, 2), 400), n / 32 * 32);
  kit_close(pager);
}

/* A follower's wait is not in vain under pressure: the leader keeps the window where they part. */
static void wait_keeps_the_window(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[300]){0}, 300, 100, 1);
  const int32_t *b = kit_tokens((int32_t[300]){0}, 300, 100, 2);
  weft_pager *pager = kit_open(128, 2, 2, (kit_group[]){{32, 0}, {16, 40}});
  kit_result leader = kit_admit(pager, a, 300, 1);
  assert_int_equal(kit_admit(pager, b, 300, 1).status, WEFT_AGAIN);
  kit_compute(pager, leader.seq, a, 300);
  kit_drain_cold(pager);
  assert_int_equal(kit_hit(pager, b, 300), 96);
  kit_end(pager, leader.seq);
}

/* Prefixes that parted once: the second to come computes the common part again and keeps the
 * window. */
static void second_of_a_shared_prefix_keeps_the_window(void **state) {
  (void)state;
  int32_t tokens[300];
  weft_pager *pager = kit_open(128, 2, 2, (kit_group[]){{32, 0}, {16, 40}});
  kit_run(pager, kit_tokens(tokens, 300, 100, 1), 300);
  kit_drain_cold(pager);
  static const uint32_t expected[] = {0, 96, 96, 96};
  for (uint32_t i = 0; i < 4; i++) {
    assert_int_equal(kit_run(pager, kit_tokens(tokens, 300, 100, 2 + (int32_t)i), 300), expected[i]);
    kit_drain_cold(pager);
    kit_check(pager);
  }
  kit_close(pager);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(follower_waits_for_the_leader),
      cmocka_unit_test(leader_that_ends_frees_its_followers),
      cmocka_unit_test(follower_waits_only_for_whole_blocks),
      cmocka_unit_test(promise_broken_by_other_tokens_ends),
      cmocka_unit_test(reset_withdraws_promises),
      cmocka_unit_test(hit_pins_one_window),
      cmocka_unit_test(prompt_end_is_kept),
      cmocka_unit_test(found_window_is_kept),
      cmocka_unit_test(marked_turn_is_kept),
      cmocka_unit_test(a_turn_computes_only_what_is_new),
      cmocka_unit_test(cold_blocks_serve_while_they_last),
      cmocka_unit_test(wait_keeps_the_window),
      cmocka_unit_test(second_of_a_shared_prefix_keeps_the_window),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
