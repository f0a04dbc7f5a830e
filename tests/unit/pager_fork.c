/* SPDX-License-Identifier: MIT */
/* Forks: what is shared, when a block is copied, in which order copies run, and that nobody writes
 * to a block that another one reads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/pager_kit.h"

static weft_seq fork_of(weft_pager *pager, weft_seq seq) {
  weft_seq fork = WEFT_SEQ_NONE;
  assert_int_equal(weft_pager_fork(pager, seq, weft_pager_n_valid(pager, seq), &fork), WEFT_OK);
  return fork;
}

static void fork_shares_all_blocks(void **state) {
  (void)state;
  const int32_t *tokens = kit_tokens((int32_t[100]){0}, 100, 0, 1);
  weft_pager *pager = kit_open(64, 3, 2, (kit_group[]){{16, 0}, {16, 40}});
  kit_result r = kit_begin(pager, tokens, 90);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 30, 30), WEFT_OK); /* rows in flight are not shared */
  weft_pager_stats before = weft_pager_get_stats(pager);
  weft_seq fork = fork_of(pager, r.seq);
  weft_pager_stats after = weft_pager_get_stats(pager);
  assert_int_equal(before.n_pinned, after.n_pinned);
  assert_int_equal(weft_pager_n_valid(pager, fork), 90);
  assert_int_equal(weft_pager_n_reserved(pager, fork), 90);
  for (uint32_t g = 0; g < 2; g++)
    for (uint32_t block = 0; block < 6; block++)
      assert_int_equal(kit_page(pager, fork, g, block), kit_page(pager, r.seq, g, block));
  kit_check(pager);
  weft_pager_release(pager, r.seq);
  assert_int_equal(weft_pager_n_pages_held(pager, fork), 6 + 3);
  assert_int_equal(weft_pager_get_stats(pager).n_pinned, 6 + 3);
  kit_end(pager, fork);
}

/* A fork of less than all: every length, also inside blocks that are full and published by now. */
static void fork_shares_a_prefix(void **state) {
  (void)state;
  int32_t a[64], b[64];
  kit_tokens(a, 64, 64, 1);
  for (uint32_t n = 0; n <= 50; n++) {
    kit_tokens(b, 64, n, 2);
    weft_pager *pager = kit_open(64, 3, 2, (kit_group[]){{16, 0}, {8, 0}});
    kit_result r = kit_begin(pager, a, 50);
    weft_seq fork = WEFT_SEQ_NONE;
    assert_int_equal(weft_pager_fork(pager, r.seq, 51, &fork), WEFT_E_INVALID);
    assert_int_equal(weft_pager_fork(pager, r.seq, n, &fork), WEFT_OK);
    assert_int_equal(weft_pager_get_stats(pager).n_forks, 0);
    weft_pager_enter(pager, fork, false);
    assert_int_equal(weft_pager_n_valid(pager, fork), n);
    kit_check(pager);
    kit_compute(pager, fork, b + n, 64 - n);
    weft_page_copy copy[8];
    assert_int_equal(weft_pager_take_copies(pager, copy, 8), (n % 16 != 0) + (n % 8 != 0));
    kit_check(pager);
    weft_pager_release(pager, r.seq);
    weft_pager_release(pager, fork);
    assert_int_equal(kit_hit(pager, a, 50), 48);
    assert_int_equal(kit_hit(pager, b, 64), 64);
    assert_int_equal(weft_pager_get_stats(pager).n_forks, 1);
    assert_int_equal(weft_pager_get_stats(pager).n_forked_tokens, n);
    kit_close(pager);
  }
}

static void fork_needs_its_window(void **state) {
  (void)state;
  const int32_t *tokens = kit_tokens((int32_t[64]){0}, 64, 64, 1);
  weft_pager *pager = kit_open(64, 3, 2, (kit_group[]){{16, 0}, {8, 20}});
  kit_result r = kit_begin(pager, tokens, 60); /* the window holds 41 .. 59: blocks from 40 on */
  weft_seq fork = WEFT_SEQ_NONE;
  weft_pager_stats before = weft_pager_get_stats(pager);
  assert_int_equal(weft_pager_fork(pager, r.seq, 58, &fork), WEFT_E_NOT_FOUND);
  kit_unchanged(pager, before);
  assert_int_equal(weft_pager_fork(pager, r.seq, 59, &fork), WEFT_OK);
  kit_check(pager);
  weft_pager_release(pager, fork);
  kit_end(pager, r.seq);
}

static void shared_tail_is_copied_on_write(void **state) {
  (void)state;
  const int32_t *tokens = kit_tokens((int32_t[60]){0}, 60, 0, 1);
  for (uint32_t n = 33; n <= 48; n++) { /* partly filled last blocks, and one that is just full */
    weft_pager *pager = kit_open(64, 3, 2, (kit_group[]){{16, 0}, {8, 0}});
    kit_result r = kit_begin(pager, tokens, n);
    weft_seq fork = fork_of(pager, r.seq);
    weft_page_copy copy[8];
    uint32_t n_shared = (n % 16 != 0) + (n % 8 != 0);
    weft_page kept = kit_page(pager, r.seq, 0, 2);
    assert_int_equal(weft_pager_take_copies(pager, copy, 8), 0);
    assert_int_equal(weft_pager_reserve(pager, fork, 1, 1), WEFT_OK);
    assert_int_equal(weft_pager_take_copies(pager, copy, 8), n_shared);
    if (n_shared > 0) {
      assert_int_equal(copy[0].from, kept);
      assert_int_equal(copy[0].to, kit_page(pager, fork, 0, 2));
    }
    assert_int_equal(kit_page(pager, r.seq, 0, 2), kept);
    assert_int_equal(weft_pager_reserve(pager, r.seq, 1, 1), WEFT_OK); /* it is alone now: in place */
    assert_int_equal(weft_pager_take_copies(pager, copy, 8), 0);
    assert_int_equal(weft_pager_get_stats(pager).n_copies, n_shared);
    kit_check(pager);
    weft_pager_release(pager, fork);
    kit_end(pager, r.seq);
  }
}

static void forks_publish_their_own_branches(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[64]){0}, 64, 40, 1);
  const int32_t *b = kit_tokens((int32_t[64]){0}, 64, 40, 2);
  weft_pager *pager = kit_open(64, 3, 1, (kit_group[]){{16, 0}});
  kit_result r = kit_begin(pager, a, 40);
  weft_seq fork = fork_of(pager, r.seq);
  kit_compute(pager, r.seq, a + 40, 24);
  kit_compute(pager, fork, b + 40, 24);
  kit_check(pager);
  assert_int_not_equal(kit_page(pager, r.seq, 0, 2), kit_page(pager, fork, 0, 2));
  weft_pager_release(pager, r.seq);
  weft_pager_release(pager, fork);
  assert_int_equal(kit_hit(pager, a, 64), 64);
  assert_int_equal(kit_hit(pager, b, 64), 64);
  assert_int_equal(weft_pager_get_stats(pager).n_cached, 2 + 2 + 2);
  kit_close(pager);
}

/* Rows were in flight when the fork was made: the block fills up under one side and is published,
 * and the other, alone with it later, must still not write to it. */
static void published_block_is_never_written(void **state) {
  (void)state;
  const int32_t *tokens = kit_tokens((int32_t[40]){0}, 40, 20, 1);
  const int32_t *other = kit_tokens((int32_t[40]){0}, 40, 20, 2);
  weft_pager *pager = kit_open(8, 3, 1, (kit_group[]){{16, 0}});
  kit_result r = kit_begin(pager, tokens, 20);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 12, 12), WEFT_OK);
  weft_seq fork = fork_of(pager, r.seq);
  weft_pager_commit(pager, r.seq, tokens + 20, 12);
  weft_page page = kit_page(pager, r.seq, 0, 1);
  assert_int_equal(kit_page(pager, fork, 0, 1), page);
  weft_pager_release(pager, r.seq);
  assert_int_equal(weft_pager_reserve(pager, fork, 5, 5), WEFT_OK);
  weft_page_copy copy[4];
  assert_int_equal(weft_pager_take_copies(pager, copy, 4), 1);
  assert_int_equal(copy[0].from, page);
  assert_int_not_equal(kit_page(pager, fork, 0, 1), page);
  weft_pager_commit(pager, fork, other + 20, 5);
  kit_check(pager);
  weft_pager_release(pager, fork);
  assert_int_equal(kit_hit(pager, tokens, 32), 32);
  assert_int_equal(kit_hit(pager, other, 40), 16);
  kit_close(pager);
}

static void copies_come_out_in_order(void **state) {
  (void)state;
  const int32_t *tokens = kit_tokens((int32_t[20]){0}, 20, 0, 1);
  weft_pager *pager = kit_open(16, 4, 1, (kit_group[]){{16, 0}});
  kit_result r = kit_begin(pager, tokens, 20);
  weft_seq a = fork_of(pager, r.seq);
  assert_int_equal(weft_pager_reserve(pager, a, 1, 1), WEFT_OK); /* r -> a */
  weft_page first = kit_page(pager, r.seq, 0, 1), middle = kit_page(pager, a, 0, 1);
  weft_seq b = fork_of(pager, a);
  assert_int_equal(weft_pager_reserve(pager, b, 1, 1), WEFT_OK); /* a -> b */
  weft_page last = kit_page(pager, b, 0, 1);
  weft_pager_release(pager, a); /* its page is the way from r to b: the copy into it stays */
  kit_check(pager);
  weft_seq c = fork_of(pager, r.seq);
  assert_int_equal(weft_pager_reserve(pager, c, 1, 1), WEFT_OK); /* r -> c, maybe into a's old page */
  weft_page_copy copy;
  assert_int_equal(weft_pager_take_copies(pager, &copy, 1), 1);
  assert_true(copy.from == first && copy.to == middle);
  assert_int_equal(weft_pager_take_copies(pager, &copy, 1), 1);
  assert_true(copy.from == middle && copy.to == last);
  weft_pager_release(pager, c); /* nobody reads what it brings: gone */
  assert_int_equal(weft_pager_take_copies(pager, &copy, 1), 0);
  weft_pager_release(pager, r.seq);
  kit_end(pager, b);
}

static void refused_copy_changes_nothing(void **state) {
  (void)state;
  const int32_t *tokens = kit_tokens((int32_t[20]){0}, 20, 0, 1);
  weft_pager *pager = kit_open(3, 4, 1, (kit_group[]){{16, 0}});
  kit_result r = kit_begin(pager, tokens, 20);
  weft_seq a = fork_of(pager, r.seq), b = fork_of(pager, r.seq);
  assert_int_equal(weft_pager_reserve(pager, a, 1, 1), WEFT_OK); /* the last page */
  weft_pager_stats before = weft_pager_get_stats(pager);
  assert_int_equal(weft_pager_reserve(pager, b, 1, 1), WEFT_NO_BLOCKS);
  kit_unchanged(pager, before);
  assert_int_equal(kit_page(pager, b, 0, 1), kit_page(pager, r.seq, 0, 1));
  weft_pager_release(pager, a);
  assert_int_equal(weft_pager_reserve(pager, b, 1, 1), WEFT_OK);
  weft_pager_release(pager, b);
  kit_end(pager, r.seq);
}

/* Copies that nobody takes between steps come to an end, with a refusal. */
static void waiting_copies_are_bounded(void **state) {
  (void)state;
  const int32_t *tokens = kit_tokens((int32_t[64]){0}, 64, 0, 1);
  weft_pager *pager = kit_open(64, 2, 1, (kit_group[]){{16, 0}});
  kit_result r = kit_begin(pager, tokens, 5);
  weft_status status = WEFT_OK;
  uint32_t n = 0;
  while (status == WEFT_OK && n < 9) { /* a copy each time, committed without being performed */
    weft_seq fork = fork_of(pager, r.seq);
    status = weft_pager_reserve(pager, r.seq, 1, 1);
    if (status == WEFT_OK) weft_pager_commit(pager, r.seq, tokens, 1);
    weft_pager_release(pager, fork);
    n += status == WEFT_OK;
    kit_check(pager);
  }
  assert_int_equal(status, WEFT_NO_BLOCKS);
  assert_int_equal(n, 2); /* two sequences, one group */
  weft_page_copy copy[4];
  assert_int_equal(weft_pager_take_copies(pager, copy, 4), 2);
  assert_int_equal(copy[0].to, copy[1].from);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 1, 1), WEFT_OK);
  kit_end(pager, r.seq);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(fork_shares_all_blocks),
      cmocka_unit_test(fork_shares_a_prefix),
      cmocka_unit_test(fork_needs_its_window),
      cmocka_unit_test(shared_tail_is_copied_on_write),
      cmocka_unit_test(forks_publish_their_own_branches),
      cmocka_unit_test(published_block_is_never_written),
      cmocka_unit_test(copies_come_out_in_order),
      cmocka_unit_test(refused_copy_changes_nothing),
      cmocka_unit_test(waiting_copies_are_bounded),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
