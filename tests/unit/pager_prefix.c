/* SPDX-License-Identifier: MIT */
/* What a prompt may find: how long a hit is, who may see it, what the weakest group allows, what a
 * hash collision must not do, and which windows are still there when a later prompt needs them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/pager_kit.h"

/* ---- length ---------------------------------------------------------------------------------- */

static void hit_ends_at_a_block_and_before_the_kept_rows(void **state) {
  (void)state;
  const int32_t *tokens = kit_tokens((int32_t[100]){0}, 100, 0, 1);
  weft_pager *pager = kit_open(64, 2, 1, (kit_group[]){{16, 0}});
  assert_int_equal(kit_run(pager, tokens, 70), 0);
  static const uint32_t cases[][3] = {/* tokens, kept rows, hit */
                                      {15, 0, 0},  {16, 0, 16},  {16, 1, 0},  {17, 1, 16}, {31, 0, 16}, {32, 0, 32},
                                      {32, 1, 16}, {48, 17, 16}, {48, 48, 0}, {64, 0, 64}, {70, 1, 64}, {100, 1, 64}};
  for (uint32_t i = 0; i < 12; i++) {
    kit_result r = kit_admit(pager, tokens, cases[i][0], cases[i][1]);
    kit_is_cached(r, cases[i][2]);
    assert_int_equal(weft_pager_n_valid(pager, r.seq), cases[i][2]);
    assert_int_equal(weft_pager_n_pages_held(pager, r.seq), cases[i][2] / 16);
    kit_check(pager);
    weft_pager_release(pager, r.seq);
  }
  weft_pager_stats stats = weft_pager_get_stats(pager);
  assert_int_equal(stats.n_admits, 13);
  assert_int_equal(stats.n_hits, 9);
  assert_int_equal(stats.n_hit_tokens, 16 * 5 + 32 + 64 * 3);
  kit_close(pager);
}

static void hit_ends_where_tokens_differ(void **state) {
  (void)state;
  int32_t a[96], b[96];
  kit_tokens(a, 96, 0, 1);
  weft_pager *pager = kit_open(64, 2, 1, (kit_group[]){{16, 0}});
  kit_run(pager, a, 96);
  for (uint32_t same = 0; same <= 96; same += 5) {
    memcpy(b, a, sizeof b);
    for (uint32_t i = same; i < 96; i++) b[i] = a[i] ^ 0x40000000;
    assert_int_equal(kit_hit(pager, b, 96), same / 16 * 16);
  }
  memcpy(b, a, sizeof b); /* the same tokens further on are another block: the chain counts */
  assert_int_equal(kit_hit(pager, a + 16, 80), 0);
  kit_close(pager);
}

static void weakest_group_decides(void **state) {
  (void)state;
  const int32_t *tokens = kit_tokens((int32_t[100]){0}, 100, 0, 1);
  weft_pager *pager = kit_open(64, 2, 3, (kit_group[]){{8, 0}, {32, 0}, {16, 0}});
  for (uint32_t n = 1; n <= 100; n++) {
    weft_pager_reset_cache(pager);
    kit_run(pager, tokens, n);
    assert_int_equal(kit_hit(pager, tokens, 100), n / 32 * 32);
  }
  kit_close(pager);
}

/* The longest multiple of 32 for which every group has all blocks that a row there sees. */
static uint32_t naive_hit(bool present[3][8], const kit_group *groups) {
  for (uint32_t hit = 128; hit > 0; hit -= 32) {
    bool good = true;
    for (uint32_t g = 0; g < 3; g++)
      for (uint32_t p = 0; p < hit; p++)
        if (groups[g].window == 0 || p + groups[g].window > hit) good = good && present[g][p / groups[g].block_tokens];
    if (good) return hit;
  }
  return 0;
}

/* Blocks are evicted one after another: each time the hit is what the rest can serve, in all
 * groups. */
static void missing_blocks_shorten_the_hit(void **state) {
  (void)state;
  static const kit_group groups[] = {{16, 0}, {32, 0}, {16, 40}};
  const int32_t *tokens = kit_tokens((int32_t[128]){0}, 128, 0, 1);
  uint32_t n_pages = 8 + 4 + 8, n_lengths = 0, last = UINT32_MAX;
  for (uint32_t n_evicted = 0; n_evicted <= n_pages; n_evicted++) {
    weft_pager *pager = kit_open(64, 2, 3, groups);
    kit_run(pager, tokens, 128);
    for (uint32_t i = 0; i < n_evicted; i++) assert_true(pager_evict_one(pager));
    bool present[3][8] = {{false}};
    weft_journal_event event;
    uint64_t next = 0, n_missed;
    while (weft_pager_journal_read(pager, &next, &event, 1, &n_missed) == 1)
      present[event.group][event.first_position / event.n_tokens] = event.kind == WEFT_JOURNAL_STORED;
    uint32_t hit = kit_hit(pager, tokens, 128);
    assert_int_equal(hit, naive_hit(present, groups));
    n_lengths += hit != last;
    last = hit;
    kit_close(pager);
  }
  assert_true(n_lengths >= 2);
  assert_int_equal(last, 0);
}

/* ---- who may see it ---------------------------------------------------------------------------- */

static void domains_and_spaces_are_apart(void **state) {
  (void)state;
  const int32_t *tokens = kit_tokens((int32_t[64]){0}, 64, 0, 1);
  weft_pager *pager = kit_open_spaces(64, 2, 2, 1, (kit_group[]){{16, 0}});
  weft_admit own = {.domain = {7, 8}, .tokens = tokens, .n_tokens = 64, .n_prompt = 64};
  kit_result r = kit_try(pager, own);
  assert_int_equal(r.status, WEFT_OK);
  /* While it is computed and after: same tokens, other domain or model, neither wait nor hit. */
  weft_admit others[3] = {own, own, own};
  others[0].domain.low = 6;
  others[1].domain.high = 9;
  others[2].model = 1; /* the same fingerprint: still another model */
  for (uint32_t round = 0; round < 2; round++) {
    for (uint32_t i = 0; i < 3; i++) {
      kit_result other = kit_try(pager, others[i]);
      kit_is_cached(other, 0);
      weft_pager_release(pager, other.seq);
    }
    if (round == 0) kit_compute(pager, r.seq, tokens, 64);
  }
  weft_pager_release(pager, r.seq);
  r = kit_try(pager, own);
  kit_is_cached(r, 64);
  kit_end(pager, r.seq);
}

static void no_cache_neither_finds_nor_publishes_nor_waits(void **state) {
  (void)state;
  const int32_t *tokens = kit_tokens((int32_t[64]){0}, 64, 0, 1);
  weft_pager *pager = kit_open(64, 3, 1, (kit_group[]){{16, 0}});
  weft_admit args = {.domain = {1, 2}, .tokens = tokens, .n_tokens = 64, .no_cache = true};
  kit_result secret = kit_try(pager, args);
  assert_int_equal(secret.status, WEFT_OK);
  kit_result r = kit_admit(pager, tokens, 64, 0); /* does not wait for the secret one */
  assert_int_equal(r.status, WEFT_OK);
  kit_result second = kit_try(pager, args);
  kit_is_cached(second, 0); /* nor the other way round */
  kit_compute(pager, secret.seq, tokens, 64);
  kit_compute(pager, second.seq, tokens, 64);
  assert_int_equal(weft_pager_get_stats(pager).n_published, 0);
  weft_pager_release(pager, secret.seq);
  weft_pager_release(pager, second.seq);
  assert_int_equal(weft_pager_get_stats(pager).n_free, 64);
  kit_end(pager, r.seq);
}

static void pager_without_cache(void **state) {
  (void)state;
  const int32_t *tokens = kit_tokens((int32_t[64]){0}, 64, 0, 1);
  weft_pager_model model = {.n_groups = 1, .group = {{16, 20}}};
  weft_pager *pager =
      kit_open_config((weft_pager_config){.n_pages = 32, .n_seqs = 2, .model = &model, .no_prefix_cache = true});
  kit_result a = kit_admit(pager, tokens, 64, 0), b = kit_admit(pager, tokens, 64, 0);
  assert_int_equal(b.status, WEFT_OK);
  kit_compute(pager, a.seq, tokens, 64);
  weft_pager_mark(pager, a.seq);
  weft_pager_release(pager, a.seq);
  assert_int_equal(weft_pager_get_stats(pager).n_cached, 0);
  assert_int_equal(kit_hit(pager, tokens, 64), 0);
  kit_end(pager, b.seq);
}

/* ---- collisions -------------------------------------------------------------------------------- */

/* With a hash of no bits, or two, every search meets every node: only parent and tokens tell. Base blocks have four
 * tokens, or sixteen, which are compared by code of their own. */
static void colliding_hashes_share_nothing_wrong(void **state) {
  (void)state;
  static const uint32_t bits[] = {0, 1, 2, 5};
  for (uint32_t i = 0; i < 8; i++) {
    int32_t tokens[64];
    weft_pager *pager = kit_open(400, 2, 1 + i / 4, (kit_group[]){{16, 0}, {4, 0}});
    pager_test_weaken_hash(pager, bits[i % 4]);
    for (int32_t seed = 1; seed <= 20; seed++) assert_int_equal(kit_run(pager, kit_tokens(tokens, 64, 0, seed), 48), 0);
    kit_check(pager);
    for (int32_t seed = 1; seed <= 20; seed++) {
      kit_tokens(tokens, 64, 0, seed);
      assert_int_equal(kit_hit(pager, tokens, 64), 48);
      tokens[17] += 100000; /* the token another prompt has there */
      assert_int_equal(kit_hit(pager, tokens, 64), 16);
    }
    kit_close(pager);
  }
}

/* ---- computed twice ---------------------------------------------------------------------------- */

static void block_computed_twice_is_kept_once(void **state) {
  (void)state;
  const int32_t *tokens = kit_tokens((int32_t[40]){0}, 40, 0, 1);
  weft_pager *pager = kit_open(64, 3, 1, (kit_group[]){{16, 0}});
  kit_result a = kit_admit(pager, tokens, 15, 1), b = kit_admit(pager, tokens, 15, 1);
  assert_int_equal(b.status, WEFT_OK); /* no full block is promised: nothing to wait for */
  kit_compute(pager, a.seq, tokens, 40);
  kit_compute(pager, b.seq, tokens, 40);
  weft_pager_stats stats = weft_pager_get_stats(pager);
  assert_int_equal(stats.n_published, 2);
  assert_int_equal(stats.n_duplicates, 2);
  assert_int_equal(stats.n_pinned, 4); /* two shared, two partly filled */
  for (uint32_t block = 0; block < 2; block++)
    assert_int_equal(kit_page(pager, a.seq, 0, block), kit_page(pager, b.seq, 0, block));
  assert_int_not_equal(kit_page(pager, a.seq, 0, 2), kit_page(pager, b.seq, 0, 2));
  kit_check(pager);
  weft_pager_release(pager, a.seq);
  assert_int_equal(weft_pager_get_stats(pager).n_cached, 0);
  weft_pager_release(pager, b.seq);
  assert_int_equal(weft_pager_get_stats(pager).n_cached, 2);
  kit_close(pager);
}

static void preempted_sequence_finds_its_blocks(void **state) {
  (void)state;
  const int32_t *tokens = kit_tokens((int32_t[150]){0}, 150, 0, 1);
  weft_pager *pager = kit_open(64, 2, 3, (kit_group[]){{32, 0}, {16, 40}, {16, 64}});
  for (uint32_t n = 33; n < 150; n++) { /* whatever its length, it loses less than one block */
    kit_result r = kit_begin(pager, tokens, 20);
    for (uint32_t at = 20; at < n; at++) kit_compute(pager, r.seq, tokens + at, 1);
    weft_pager_release(pager, r.seq);
    weft_admit again = {.domain = {1, 2}, .tokens = tokens, .n_tokens = n + 1, .n_prompt = 20, .n_keep_rows = 1};
    r = kit_try(pager, again);
    kit_is_cached(r, n / 32 * 32);
    kit_check(pager);
    weft_pager_release(pager, r.seq);
    weft_pager_reset_cache(pager);
  }
  kit_close(pager);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(hit_ends_at_a_block_and_before_the_kept_rows),
      cmocka_unit_test(hit_ends_where_tokens_differ),
      cmocka_unit_test(weakest_group_decides),
      cmocka_unit_test(missing_blocks_shorten_the_hit),
      cmocka_unit_test(domains_and_spaces_are_apart),
      cmocka_unit_test(no_cache_neither_finds_nor_publishes_nor_waits),
      cmocka_unit_test(pager_without_cache),
      cmocka_unit_test(colliding_hashes_share_nothing_wrong),
      cmocka_unit_test(block_computed_twice_is_kept_once),
      cmocka_unit_test(preempted_sequence_finds_its_blocks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
