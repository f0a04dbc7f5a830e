/* SPDX-License-Identifier: MIT */
/* States: runs of pages that are taken, shared, evicted and moved as one; which borders have one; what a hit, a fork, a
 * trim, a limit and a lower tier make of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "pager/spill.h"
#include "tests/support/pager_kit.h"

enum { BORDER = 64, STATES = 2 /* the group of the states */, TOKENS = 1024 };

/* Keys of all positions, rows since the last multiple of 64, and a state of k pages at every 64th position. Another model has keys
 * alone. */
static weft_pager *open_tiers(uint32_t n_pages, uint32_t k, uint32_t n_host, uint32_t n_file) {
  weft_pager_model model[2] = {{.n_groups = 3,
                                .group = {{.block_tokens = 16},
                                          {.block_tokens = 16, .window = BORDER, .from_border = true},
                                          {.block_tokens = BORDER, .state_pages = k}}},
                               {.n_groups = 1, .group = {{.block_tokens = 16}}}};
  return kit_open_config((weft_pager_config){.n_pages = n_pages,
                                             .n_host_pages = n_host,
                                             .n_file_pages = n_file,
                                             .n_seqs = 8,
                                             .seq_tokens_max = 8192,
                                             .n_models = 2,
                                             .model = model,
                                             .journal_capacity = 1024});
}

static weft_pager *open_states(uint32_t n_pages, uint32_t k) {
  return open_tiers(n_pages, k, 0, 0);
}

static weft_pager_stats stats_of(const weft_pager *pager) {
  return weft_pager_get_stats(pager);
}

/* At which borders up to `end` the sequence has a state, as bits: bit i stands for border i + 1. */
static uint32_t borders_of(const weft_pager *pager, weft_seq seq, uint32_t end) {
  uint32_t bits = 0;
  for (uint32_t i = 0; (i + 1) * BORDER <= end; i++)
    if (weft_pager_state(pager, seq, STATES, (i + 1) * BORDER) != NULL) bits |= 1u << i;
  return bits;
}

static uint32_t n_states_cached(const weft_pager *pager) {
  return weft_pager_group_usage(pager, 0, STATES).n_cached;
}

/* A sequence of the model with keys alone, of which no block is published. */
static weft_seq hold_keys(weft_pager *pager, uint32_t n_blocks) {
  kit_result r = kit_try(
      pager, (weft_admit){.model = 1, .owner = 7, .tokens = (const int32_t[]){5}, .n_tokens = 1, .no_cache = true});
  assert_int_equal(r.status, WEFT_OK);
  if (n_blocks > 0) assert_int_equal(weft_pager_reserve(pager, r.seq, 16 * n_blocks, 16 * n_blocks), WEFT_OK);
  return r.seq;
}

/* What is CACHED goes, as far as that many pages need it. */
static void squeeze(weft_pager *pager, uint32_t n_pages) {
  weft_pager_release(pager, hold_keys(pager, n_pages));
  kit_check(pager);
}

/* ---- what a reserve takes --------------------------------------------------------------------- */

/* A chunk of a prompt needs the state at its last border; rows within a chunk need none. */
static void the_last_border_has_a_state(void **state) {
  (void)state;
  enum { K = 100 };
  int32_t tokens[TOKENS];
  weft_pager *pager = open_states(2000, K);
  kit_result r = kit_admit(pager, kit_tokens(tokens, 700, 0, 1), 700, 1);
  kit_is_cached(r, 0);
  assert_null(weft_pager_state(pager, r.seq, STATES, 0));
  assert_int_equal(weft_pager_reserve(pager, r.seq, 63, 63), WEFT_OK);
  assert_int_equal(weft_pager_n_pages_held(pager, r.seq), 4 + 4);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 300, 300), WEFT_OK);
  assert_int_equal(borders_of(pager, r.seq, 300), 1 << 3); /* 256 */
  assert_int_equal(weft_pager_n_pages_held(pager, r.seq), 19 + 19 + K);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 319, 319), WEFT_OK); /* the next rows, in flight too */
  assert_int_equal(borders_of(pager, r.seq, 319), 1 << 3);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 320, 320), WEFT_OK);
  assert_int_equal(borders_of(pager, r.seq, 320), 1 << 3 | 1 << 4);
  kit_check(pager);
  weft_pager_commit(pager, r.seq, tokens, 300);
  assert_int_equal(borders_of(pager, r.seq, 320), 1 << 3 | 1 << 4);
  weft_pager_commit(pager, r.seq, tokens + 300, 20);
  assert_int_equal(borders_of(pager, r.seq, 320), 1 << 4);
  assert_int_equal(n_states_cached(pager), 1); /* 256, COLD, since no boundary needs it */
  assert_int_equal(pager->n_kept_pages, 0);
  assert_int_equal(stats_of(pager).n_pinned, weft_pager_n_pages_held(pager, r.seq));
  assert_int_equal(weft_pager_pages_for(pager, 0, 63, 63), 4 + 4);
  assert_int_equal(weft_pager_pages_for(pager, 0, 64, 64), 4 + 4 + K);
  assert_int_equal(weft_pager_pages_for(pager, 0, 640, 1), 40 + 4 + 2 * K);
  assert_int_equal(weft_pager_pages_for(pager, 0, 640, 2), 40 + 5 + 3 * K);
  assert_int_equal(weft_pager_pages_mean(pager, 0, 63), 4 + 4);
  assert_int_equal(weft_pager_pages_mean(pager, 0, 640), 40 + 3 + K + 2); /* 2.5 of 4, and a 64th of a second state */
  kit_end(pager, r.seq);
}

/* Two sequences take single pages in turns; the state has what one of them gives back, no two pages neighbours. */
static void pages_may_lie_anywhere(void **state) {
  (void)state;
  enum { K = 200 };
  int32_t tokens[TOKENS];
  bool is_neighbour[2 * K + 24] = {false};
  weft_pager *pager = open_states(2 * K + 20, K);
  weft_seq a = hold_keys(pager, 0), b = hold_keys(pager, 0);
  for (uint32_t i = 1; i <= K + 10; i++) {
    assert_int_equal(weft_pager_reserve(pager, a, 16 * i, 16 * i), WEFT_OK);
    assert_int_equal(weft_pager_reserve(pager, b, 16 * i, 16 * i), WEFT_OK);
  }
  assert_int_equal(weft_pager_headroom(pager), 0);
  weft_pager_release(pager, a);
  kit_result r = kit_admit(pager, kit_tokens(tokens, 64, 0, 1), 64, 0);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 64, 64), WEFT_OK); /* 4 + 4 + K of K + 10 */
  const weft_page *pages = weft_pager_state(pager, r.seq, STATES, 64);
  assert_int_equal(pages[0], kit_page(pager, r.seq, STATES, 0));
  for (uint32_t i = 0; i < K; i++) {
    assert_true(pages[i] < 2 * K + 20 && !is_neighbour[pages[i] + 1]);
    is_neighbour[pages[i]] = is_neighbour[pages[i] + 1] = is_neighbour[pages[i] + 2] = true;
  }
  uint64_t offset = (uint64_t)(pages - weft_pager_tables(pager)); /* a batch names a list by its offset */
  assert_true(offset >= 8 * pager->table_stride && offset < UINT32_MAX);
  kit_check(pager);
  weft_pager_release(pager, b);
  kit_end(pager, r.seq);
}

/* Rows that are void take the states they reached with them; what the next rows need was not touched. */
static void trim_needs_no_copy(void **state) {
  (void)state;
  int32_t tokens[TOKENS];
  weft_page_copy copy[4];
  weft_pager *pager = open_states(300, 50);
  kit_result r = kit_begin(pager, kit_tokens(tokens, 126, 0, 1), 126);
  weft_page at_64 = kit_page(pager, r.seq, STATES, 0);
  for (uint32_t i = 0; i < 3; i++) {
    assert_int_equal(weft_pager_reserve(pager, r.seq, 7, 7), WEFT_OK); /* a draft of six */
    assert_int_equal(borders_of(pager, r.seq, 133), 3);
    weft_pager_commit(pager, r.seq, (const int32_t[]){9}, i == 0); /* one row is right, then none */
    weft_pager_trim(pager, r.seq);
    assert_int_equal(borders_of(pager, r.seq, 127), 1);
    assert_int_equal(kit_page(pager, r.seq, STATES, 0), at_64);
    kit_check(pager);
  }
  assert_int_equal(weft_pager_reserve(pager, r.seq, 7, 7), WEFT_OK);
  weft_pager_commit(pager, r.seq, (const int32_t[]){1, 2, 3}, 3); /* beyond the border */
  weft_pager_trim(pager, r.seq);
  assert_int_equal(borders_of(pager, r.seq, 130), 2);
  assert_int_equal(weft_pager_take_copies(pager, copy, 4), 0);
  kit_end(pager, r.seq);
}

/* ---- who shares a state ----------------------------------------------------------------------- */

static void choices_share_a_state(void **state) {
  (void)state;
  enum { K = 30 };
  int32_t tokens[TOKENS];
  weft_page_copy copy[32];
  weft_seq fork[4];
  weft_pager *pager = open_states(400, K);
  kit_result r = kit_begin(pager, kit_tokens(tokens, 150, 0, 1), 150);
  uint32_t n_pinned = stats_of(pager).n_pinned;
  for (uint32_t i = 0; i < 3; i++) {
    assert_int_equal(weft_pager_fork(pager, r.seq, 149 - i, &fork[i]), WEFT_OK);
    assert_int_equal(kit_page(pager, fork[i], STATES, 1), kit_page(pager, r.seq, STATES, 1));
  }
  assert_int_equal(stats_of(pager).n_pinned, n_pinned);
  assert_int_equal(weft_pager_fork(pager, r.seq, 127, &fork[3]), WEFT_E_NOT_FOUND); /* its state is gone */
  for (uint32_t i = 0; i < 3; i++) {
    kit_compute(pager, fork[i], (const int32_t[]){(int32_t)i, 1, 2}, 3);
    assert_int_equal(kit_page(pager, fork[i], STATES, 1), kit_page(pager, r.seq, STATES, 1));
  }
  assert_int_equal(weft_pager_take_copies(pager, copy, 32), 6); /* of keys, in two groups; of the state none */
  for (uint32_t i = 0; i < 3; i++) { /* each goes on beyond the next border: a state of its own */
    for (uint32_t t = 0; t < 45; t++) kit_compute(pager, fork[i], (const int32_t[]){(int32_t)(i + t)}, 1);
    assert_int_equal(borders_of(pager, fork[i], 192), 1 << 2);
    kit_check(pager);
  }
  weft_pager_release(pager, r.seq);
  for (uint32_t i = 1; i < 3; i++) weft_pager_release(pager, fork[i]);
  kit_end(pager, fork[0]);
}

/* A fork within the first chunk needs no state. */
static void a_fork_before_the_first_border(void **state) {
  (void)state;
  int32_t tokens[TOKENS];
  weft_seq fork;
  weft_pager *pager = open_states(100, 5);
  kit_result r = kit_begin(pager, kit_tokens(tokens, 60, 0, 1), 60);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 10, 10), WEFT_OK); /* beyond the border, in flight */
  assert_int_equal(weft_pager_fork(pager, r.seq, 50, &fork), WEFT_OK);
  assert_int_equal(borders_of(pager, fork, 64), 0);
  kit_compute(pager, fork, tokens + 50, 20);
  assert_int_equal(borders_of(pager, fork, 70), 1);
  weft_pager_release(pager, r.seq);
  kit_end(pager, fork);
}

/* ---- hits ------------------------------------------------------------------------------------- */

/* The next turn of a conversation goes on at the last border of the turn before, and at its prompt's. */
static void a_turn_begins_at_a_state(void **state) {
  (void)state;
  int32_t tokens[TOKENS], other[TOKENS];
  weft_pager *pager = open_states(1000, 40);
  kit_tokens(tokens, TOKENS, 340, 1);
  kit_tokens(other, TOKENS, 340, 2); /* the answer's thinking is left out in the next turn */
  kit_result r = kit_begin(pager, tokens, 330);
  for (uint32_t i = 330; i < 500; i++) kit_compute(pager, r.seq, tokens + i, 1);
  weft_pager_release(pager, r.seq);
  assert_int_equal(n_states_cached(pager), 3);        /* that at 384 was passed by decoding: COLD, and still there */
  assert_int_equal(kit_hit(pager, tokens, 700), 448); /* where the turn ended */
  kit_drain_cold(pager);
  assert_int_equal(n_states_cached(pager), 2);
  assert_int_equal(kit_hit(pager, tokens, 700), 448);
  assert_int_equal(kit_hit(pager, tokens, 447), 320); /* where its prompt ended */
  assert_int_equal(kit_hit(pager, other, 700), 320);
  assert_int_equal(kit_hit(pager, tokens, 319), 0); /* keys without a state are no hit */
  assert_int_equal(weft_pager_group_usage(pager, 0, STATES).n_hits, 4);
  kit_close(pager);
}

/* A place where prompts part has a snapshot, the end of the prompt behind it too; keys of others are shared as ever. */
static void a_parting_has_a_state(void **state) {
  (void)state;
  int32_t tokens[TOKENS], other[TOKENS];
  weft_pager *pager = open_states(1000, 40);
  kit_tokens(tokens, TOKENS, 255, 1);
  kit_tokens(other, TOKENS, 255, 2); /* the last tokens of the prompt are others in the next turn */
  weft_admit args = {.domain = {1, 2}, .tokens = tokens, .n_tokens = 257, .n_prompt = 257, .parting = {130, 255}};
  for (uint32_t told = 0; told < 2; told++) {
    if (told == 0) memset(args.parting, 0, sizeof args.parting);
    kit_result r = kit_enter(pager, args);
    kit_compute(pager, r.seq, tokens, 257);
    weft_pager_release(pager, r.seq);
    kit_drain_cold(pager);
    kit_check(pager);
    assert_int_equal(kit_hit(pager, tokens, 700), 256);
    assert_int_equal(kit_hit(pager, other, 700), told ? 192 : 0);
    assert_int_equal(kit_hit(pager, tokens, 140), told ? 128 : 0);
    weft_pager_reset_cache(pager);
    args.parting[0] = 130;
    args.parting[1] = 255;
  }
  args.parting[1] = 258;
  assert_int_equal(kit_try(pager, args).status, WEFT_E_INVALID);
  kit_close(pager);
}

/* A long prompt has snapshots as far apart as makes them no larger than its keys: another that parts from it anywhere
 * computes no more than that distance again. */
static void a_long_prompt_has_snapshots(void **state) {
  (void)state;
  enum { K = 9, N = 1000 }; /* nine pages of keys are 144 tokens, so there is a snapshot at every 256th */
  int32_t tokens[TOKENS], other[TOKENS];
  weft_pager *pager = open_states(N, K);
  kit_run(pager, kit_tokens(tokens, N, 0, 1), N);
  kit_drain_cold(pager);
  assert_int_equal(n_states_cached(pager), 4); /* 960 ends the prompt */
  for (uint32_t n = 50; n < N; n += 100) {
    memcpy(other, tokens, sizeof tokens);
    for (uint32_t i = n; i < N; i++) other[i] = -5;
    assert_int_equal(kit_hit(pager, other, N), n / 256 * 256);
  }
  kit_close(pager);
}

/* The state of a hit is shared, and found again by a request that was preempted. */
static void a_preempted_request_finds_its_state(void **state) {
  (void)state;
  enum { K = 40 };
  int32_t tokens[TOKENS];
  weft_pager *pager = open_states(400, K);
  kit_result a = kit_begin(pager, kit_tokens(tokens, TOKENS, 0, 1), 200);
  for (uint32_t i = 200; i < 270; i++) kit_compute(pager, a.seq, tokens + i, 1);
  weft_pager_release(pager, a.seq);
  a = kit_admit(pager, tokens, 270, 1);
  kit_is_cached(a, 256);
  kit_result b = kit_admit(pager, tokens, 270, 1);
  kit_is_cached(b, 256);
  assert_int_equal(kit_page(pager, a.seq, STATES, 3), kit_page(pager, b.seq, STATES, 3));
  assert_int_equal(weft_pager_n_pages_held(pager, a.seq), 16 + K); /* of the rows since the border none */
  assert_int_equal(stats_of(pager).n_pinned, 16 + K);
  weft_pager_release(pager, a.seq);
  kit_end(pager, b.seq);
}

/* Two prompts with a common beginning: the second waits, the first keeps a state for it where they part, and what they
 * share is computed once. */
static void a_follower_gets_a_state(void **state) {
  (void)state;
  int32_t tokens[TOKENS], other[TOKENS];
  weft_pager *pager = open_states(1000, 40);
  kit_tokens(tokens, 800, 500, 1);
  kit_tokens(other, 800, 500, 2);
  kit_result a = kit_admit(pager, tokens, 800, 1);
  kit_is_cached(a, 0);
  kit_waits(kit_admit(pager, other, 800, 1), a.seq);
  assert_int_equal(weft_pager_reserve(pager, a.seq, 800, 800), WEFT_OK);
  assert_int_equal(borders_of(pager, a.seq, 800), 1 << 6 | 1 << 11); /* 448 and 768 */
  kit_waits(kit_admit(pager, other, 800, 1), a.seq);                 /* its rows are in flight */
  weft_pager_commit(pager, a.seq, tokens, 800);
  kit_result b = kit_admit(pager, other, 800, 1);
  kit_is_cached(b, 448);
  kit_check(pager);
  weft_pager_release(pager, b.seq);
  kit_end(pager, a.seq);
}

/* Keys are cached and the state is gone: who computes it is known by a block that no hit needs, of a window of one. */
static void a_follower_of_a_state_alone(void **state) {
  (void)state;
  int32_t tokens[TOKENS];
  weft_pager_model model = {
      .n_groups = 3,
      .group = {{.block_tokens = 16}, {.block_tokens = 16, .window = 1}, {.block_tokens = BORDER, .state_pages = 3}}};
  weft_pager *pager = kit_open_config((weft_pager_config){.n_pages = 100, .n_seqs = 4, .model = &model});
  kit_run(pager, kit_tokens(tokens, 70, 0, 1), 70);
  kit_drain_cold(pager);
  while (weft_pager_group_usage(pager, 0, STATES).n_cached > 0) assert_true(pager_evict_one(pager));
  assert_int_equal(weft_pager_group_usage(pager, 0, 0).n_cached, 4);
  kit_result a = kit_admit(pager, tokens, 70, 1);
  kit_is_cached(a, 0);
  kit_waits(kit_admit(pager, tokens, 70, 1), a.seq);
  kit_compute(pager, a.seq, tokens, 70);
  kit_result b = kit_admit(pager, tokens, 70, 1);
  kit_is_cached(b, 64);
  weft_pager_release(pager, b.seq);
  kit_end(pager, a.seq);
}

/* Rows that are in flight already leave no state behind: then there is nothing to wait for. */
static void nobody_waits_for_a_state_that_was_passed(void **state) {
  (void)state;
  int32_t tokens[TOKENS], other[TOKENS];
  weft_pager *pager = open_states(1000, 40);
  kit_tokens(tokens, 800, 500, 1);
  kit_tokens(other, 800, 500, 2);
  kit_result a = kit_admit(pager, tokens, 800, 1);
  assert_int_equal(weft_pager_reserve(pager, a.seq, 600, 600), WEFT_OK);
  kit_result b = kit_admit(pager, other, 800, 1);
  kit_is_cached(b, 0); /* and the next prompt of this kind finds a state where these two part */
  kit_compute(pager, b.seq, other, 800);
  weft_pager_release(pager, b.seq);
  weft_pager_commit(pager, a.seq, tokens, 600);
  weft_pager_release(pager, a.seq);
  kit_drain_cold(pager);
  kit_tokens(other, 800, 500, 3);
  b = kit_begin(pager, other, 800);
  weft_pager_release(pager, b.seq);
  kit_drain_cold(pager);
  kit_tokens(other, 800, 500, 4);
  assert_int_equal(kit_hit(pager, other, 800), 448);
  kit_close(pager);
}

/* ---- room, limits, eviction ------------------------------------------------------------------- */

/* A snapshot is taken where there is room for it, and refuses no row. */
static void a_snapshot_is_worth_no_refusal(void **state) {
  (void)state;
  enum { K = 40 };
  int32_t tokens[TOKENS];
  kit_tokens(tokens, TOKENS, 0, 1);
  weft_admit args = {.domain = {1, 2}, .tokens = tokens, .n_tokens = 600, .n_prompt = 300, .owner = 1};
  for (uint32_t limited = 0; limited < 2; limited++) {
    for (uint32_t room = 0; room < 2; room++) { /* 64 rows of keys in two groups, 300 and so 256 a boundary */
      uint32_t n_pages = 38 + 38 + K + (room ? K : K - 1);
      weft_pager *pager = open_states(limited ? 1000 : n_pages, K);
      if (limited) weft_pager_set_owner_limit(pager, 1, n_pages);
      kit_result r = kit_enter(pager, args);
      assert_int_equal(weft_pager_reserve(pager, r.seq, 600, 600), WEFT_OK);
      assert_int_equal(borders_of(pager, r.seq, 600), room ? 1 << 8 | 1 << 3 : 1 << 8);
      weft_pager_commit(pager, r.seq, tokens, 600);
      assert_int_equal(n_states_cached(pager), room);
      kit_end(pager, r.seq);
    }
  }
}

/* Without room for the state that the next rows need, no row is reserved and nothing changes. */
static void a_state_needs_room(void **state) {
  (void)state;
  enum { K = 40 };
  int32_t tokens[TOKENS];
  weft_pager *pager = open_states(4 + 4 + 1 + 1 + K - 1, K);
  kit_result r = kit_admit(pager, kit_tokens(tokens, 80, 0, 1), 80, 0);
  kit_compute(pager, r.seq, tokens, 63);
  weft_pager_stats before = stats_of(pager);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 2, 2), WEFT_NO_BLOCKS);
  kit_unchanged(pager, before);
  weft_pager_set_owner_limit(pager, 0, 8 + K - 1);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 1, 1), WEFT_QUOTA);
  kit_unchanged(pager, before);
  weft_pager_set_owner_limit(pager, 0, 8 + K);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 1, 1), WEFT_OK);
  assert_int_equal(weft_pager_owner_usage(pager, 0).n_pinned, 8 + K);
  kit_end(pager, r.seq);
}

/* A state is evicted whole, the last one of a prefix first, and one page more that is needed evicts no other. */
static void a_state_is_evicted_whole(void **state) {
  (void)state;
  enum { K = 40 };
  int32_t tokens[TOKENS];
  weft_pager *pager = open_states(2 * K + 40, K);
  kit_tokens(tokens, TOKENS, 0, 1);
  assert_int_equal(kit_run(pager, tokens, 140), 0);      /* 9 + 5 pages, a state at 128 */
  assert_int_equal(stats_of(pager).n_cached, 8 + 8 + K); /* of the windowed group too, COLD */
  squeeze(pager, stats_of(pager).n_free + 8);
  assert_int_equal(stats_of(pager).n_cached, 8 + K); /* what was COLD */
  squeeze(pager, stats_of(pager).n_free + 1);
  assert_int_equal(stats_of(pager).n_cached, 8);
  assert_int_equal(stats_of(pager).n_evicted, 8 + K);
  assert_int_equal(n_states_cached(pager), 0);
  assert_int_equal(kit_hit(pager, tokens, 140), 0);
  kit_close(pager);
}

/* Snapshots that are kept have at most half of the pool; the one used longest ago becomes the first to go. */
static void snapshots_have_a_limit(void **state) {
  (void)state;
  enum { K = 30, N = 400 };
  int32_t tokens[TOKENS];
  weft_pager *pager = open_states(N, K);
  for (int32_t i = 1; i <= 9; i++) {
    kit_tokens(tokens, 100, 0, i);
    assert_int_equal(kit_run(pager, tokens, 100), 0);
    assert_true(pager->n_kept_pages <= N / 2);
    if (i == 7) assert_int_equal(kit_hit(pager, kit_tokens(tokens, 100, 0, 2), 100), 64);
    kit_check(pager);
  }
  kit_drain_cold(pager);
  assert_int_equal(n_states_cached(pager), N / 2 / K);
  for (int32_t i = 1; i <= 9; i++) {
    bool kept = i == 2 || i >= 5; /* 6 of them: of the nine the last, and the one that was used again */
    assert_int_equal(kit_hit(pager, kit_tokens(tokens, 100, 0, i), 100), kept ? 64 : 0);
  }
  kit_close(pager);
}

/* The operator pays for the state of a public prefix, a tenant for its own, and neither twice. */
static void a_state_is_paid_for_once(void **state) {
  (void)state;
  enum { K = 20 };
  int32_t tokens[TOKENS];
  weft_pager *pager = open_states(600, K);
  weft_admit args = {.domain = {1, 2},
                     .tokens = kit_tokens(tokens, 300, 0, 1),
                     .n_tokens = 300,
                     .n_prompt = 300,
                     .n_public = 130,
                     .owner = 1};
  kit_result a = kit_enter(pager, args);
  assert_int_equal(weft_pager_reserve(pager, a.seq, 300, 300), WEFT_OK);
  assert_int_equal(borders_of(pager, a.seq, 300), 1 << 1 | 1 << 3); /* 128 ends the public prefix */
  assert_int_equal(weft_pager_owner_usage(pager, WEFT_OWNER_OPERATOR).n_pinned, 8 + 8 + K);
  assert_int_equal(weft_pager_owner_usage(pager, 1).n_pinned, 11 + 11 + K);
  weft_pager_commit(pager, a.seq, tokens, 300);
  args.owner = 2;
  args.domain.low = 9;
  kit_result b = kit_enter(pager, args);
  kit_is_cached(b, 128);
  assert_int_equal(weft_pager_owner_usage(pager, WEFT_OWNER_OPERATOR).n_pinned, 8 + K);
  assert_int_equal(weft_pager_owner_usage(pager, 2).n_pinned, 0);
  kit_check(pager);
  weft_pager_release(pager, b.seq);
  kit_end(pager, a.seq);
}

/* Two sequences that compute the same state end up with one. */
static void a_state_computed_twice_goes_back(void **state) {
  (void)state;
  enum { K = 20 };
  int32_t tokens[TOKENS];
  weft_pager *pager = open_states(300, K);
  weft_admit args = {
      .domain = {1, 2}, .tokens = kit_tokens(tokens, 70, 0, 1), .n_tokens = 70, .n_prompt = 70, .follow_none = true};
  kit_result a = kit_enter(pager, args), b = kit_enter(pager, args);
  kit_compute(pager, a.seq, tokens, 70);
  kit_compute(pager, b.seq, tokens, 70);
  assert_int_equal(kit_page(pager, a.seq, STATES, 0), kit_page(pager, b.seq, STATES, 0));
  assert_int_equal(stats_of(pager).n_pinned, 5 + 1 + K + 2);
  kit_check(pager);
  weft_pager_release(pager, a.seq);
  kit_end(pager, b.seq);
}

/* ---- lower tiers ------------------------------------------------------------------------------ */

static kit_result admit_below(weft_pager *pager, const int32_t *tokens, uint32_t n, bool wait) {
  return kit_try(pager, (weft_admit){.domain = {1, 2},
                                     .tokens = tokens,
                                     .n_tokens = n,
                                     .n_prompt = n,
                                     .restore_max_pages = UINT32_MAX,
                                     .restore_wait = wait});
}

static uint32_t take(weft_pager *pager, weft_page_copy *copy, uint32_t kind) {
  weft_page_copy all[1024];
  uint32_t n = weft_pager_take_copies(pager, all, 1024), n_of = 0;
  assert_true(n < 1024);
  for (uint32_t i = 0; i < n; i++)
    if (all[i].kind == kind) copy[n_of++] = all[i];
  kit_check(pager);
  return n_of;
}

/* A snapshot beyond the limit goes to host memory, where there is any, and is found there. */
static void a_snapshot_beyond_the_limit_goes_down(void **state) {
  (void)state;
  enum { K = 30, N = 400 };
  int32_t tokens[TOKENS];
  weft_page_copy copy[1024];
  weft_pager *pager = open_tiers(N, K, 200, 0);
  for (int32_t i = 1; i <= 8; i++) kit_run(pager, kit_tokens(tokens, 70, 0, i), 70);
  assert_int_equal(weft_pager_group_usage(pager, 0, STATES).n_cached, 6);
  assert_int_equal(weft_pager_group_usage(pager, 0, STATES).n_host, 2);
  assert_int_equal(stats_of(pager).n_host_held, 2 * K);
  assert_int_equal(take(pager, copy, WEFT_PAGE_TO_HOST), 2 * K);
  kit_result r = admit_below(pager, kit_tokens(tokens, 70, 0, 1), 70, false);
  kit_is_cached(r, 64);
  assert_int_equal(take(pager, copy, WEFT_HOST_TO_PAGE), K); /* its keys were still here */
  kit_end(pager, r.seq);
}

/* All pages of a state go to host memory, one copy each, and come back together. */
static void a_state_goes_down_and_comes_back(void **state) {
  (void)state;
  enum { K = 100, N = 200 };
  int32_t tokens[TOKENS];
  weft_page_copy copy[1024];
  weft_pager *pager = open_tiers(N, K, 300, 0);
  kit_run(pager, kit_tokens(tokens, 70, 0, 1), 70);
  squeeze(pager, N);
  assert_int_equal(weft_pager_take_copies(pager, copy, K - 1), K - 1); /* the state's, which comes first */
  kit_result r = admit_below(pager, tokens, 70, false);
  kit_is_cached(r, 0); /* a page of it is not there yet */
  weft_pager_release(pager, r.seq);
  assert_int_equal(take(pager, copy, WEFT_PAGE_TO_HOST), 4 + 1);
  assert_int_equal(stats_of(pager).n_host_held, 4 + K);
  assert_int_equal(weft_pager_group_usage(pager, 0, STATES).n_host, 1);
  r = admit_below(pager, tokens, 70, false);
  kit_is_cached(r, 64);
  assert_int_equal(take(pager, copy, WEFT_HOST_TO_PAGE), 4 + K);
  assert_int_equal(stats_of(pager).n_restored, 4 + K);
  assert_int_equal(stats_of(pager).n_host_held, 0);
  const weft_page *pages = weft_pager_state(pager, r.seq, STATES, 64);
  for (uint32_t i = 0; i < K; i++) assert_int_equal(pages[i], copy[4 + i].to);
  kit_end(pager, r.seq);
}

/* Of all copies of a state one fails: the state is lost, and no key. */
static void a_lost_page_loses_the_state(void **state) {
  (void)state;
  enum { K = 100, N = 200 };
  int32_t tokens[TOKENS];
  weft_page_copy copy[1024];
  for (uint32_t lost = 0; lost < K; lost += 33) {
    weft_pager *pager = open_tiers(N, K, 300, 0);
    kit_run(pager, kit_tokens(tokens, 70, 0, 1), 70);
    squeeze(pager, N);
    uint32_t n = take(pager, copy, WEFT_PAGE_TO_HOST), found = 0;
    for (uint32_t i = 0; i < n && found <= lost; i++) {
      const pager_slot *slot = &pager->slot[copy[i].to];
      bool of_state = slot->state == PAGER_SLOT_MEMBER || slot->group == STATES;
      if (of_state && found++ == lost) weft_pager_spill_lost(pager, copy[i].to);
    }
    assert_int_equal(stats_of(pager).n_spill_lost, 1);
    assert_int_equal(stats_of(pager).n_host_held, 4);
    kit_check(pager);
    kit_result r = admit_below(pager, tokens, 70, false);
    kit_is_cached(r, 0);
    kit_end(pager, r.seq);
  }
}

static uint32_t end_moves(weft_pager *pager, uint32_t kind, uint32_t fails) {
  weft_page_copy copy[1024];
  uint32_t n = take(pager, copy, kind);
  for (uint32_t i = 0; i < n; i++) {
    weft_pager_moved(pager, &copy[i], n - 1 - i != fails); /* in the order of their taking; the fails-th last fails */
    kit_check(pager);
  }
  return n;
}

/* A state sinks to the file when all its moves have ended, is lifted as one, and lost as one. */
static void a_state_moves_to_the_file(void **state) {
  (void)state;
  enum { K = 100, N = 200 };
  for (uint32_t fails = 0; fails < 2; fails++) {
    int32_t tokens[TOKENS];
    weft_pager *pager = open_tiers(N, K, 216, 1000);
    kit_run(pager, kit_tokens(tokens, 134, 0, 1), 134);
    squeeze(pager, N);
    uint32_t n_sunk = end_moves(pager, WEFT_HOST_TO_FILE, UINT32_MAX);
    assert_true(n_sunk >= K); /* fewer than half of the host's slots are free */
    assert_int_equal(stats_of(pager).n_file_held, n_sunk);
    kit_result r = admit_below(pager, tokens, 134, true);
    kit_waits(r, WEFT_SEQ_NONE);
    assert_int_equal(stats_of(pager).n_lifting, n_sunk);
    assert_int_equal(end_moves(pager, WEFT_FILE_TO_HOST, fails ? 3 : UINT32_MAX), n_sunk);
    assert_int_equal(stats_of(pager).n_file_lost, fails);
    r = admit_below(pager, tokens, 134, true);
    kit_is_cached(r, fails ? 0 : 128);
    kit_end(pager, r.seq);
  }
}

/* A state that would take more than half of a tier is forgotten instead, and keeps no other content from moving. */
static void a_large_state_stays_out_of_a_tier(void **state) {
  (void)state;
  enum { K = 100, N = 200 };
  int32_t tokens[TOKENS];
  weft_page_copy copy[1024];
  weft_pager *pager = open_tiers(N, K, 199, 0);
  kit_run(pager, kit_tokens(tokens, 70, 0, 1), 70);
  squeeze(pager, N);
  assert_int_equal(take(pager, copy, WEFT_PAGE_TO_HOST), 4);
  assert_int_equal(weft_pager_group_usage(pager, 0, STATES).n_host, 0);
  kit_close(pager);
  pager = open_tiers(N, K, 216, 150); /* it fits the host, and not the file */
  kit_run(pager, kit_tokens(tokens, 134, 0, 1), 134);
  squeeze(pager, N);
  (void)end_moves(pager, WEFT_HOST_TO_FILE, UINT32_MAX);
  assert_int_equal(weft_pager_group_usage(pager, 0, STATES).n_host, 0);
  assert_int_equal(weft_pager_group_usage(pager, 0, STATES).n_file, 0);
  assert_true(stats_of(pager).n_host_held + stats_of(pager).n_file_held > 0);
  kit_close(pager);
}

/* ---- the rest --------------------------------------------------------------------------------- */

static void a_reset_forgets_states(void **state) {
  (void)state;
  enum { K = 30 };
  int32_t tokens[TOKENS];
  weft_pager *pager = open_states(300, K);
  kit_run(pager, kit_tokens(tokens, 100, 0, 1), 100);
  kit_result r = kit_begin(pager, kit_tokens(tokens, 100, 0, 2), 100);
  weft_pager_reset_cache(pager);
  kit_check(pager);
  assert_int_equal(stats_of(pager).n_free, 300 - 7 - 3 - K); /* the running one goes on, with what it holds */
  kit_compute(pager, r.seq, tokens, 60);
  assert_int_equal(borders_of(pager, r.seq, 160), 2);
  weft_pager_release(pager, r.seq);
  assert_int_equal(stats_of(pager).n_free, 300);
  kit_close(pager);
}

static void bad_groups_are_named(void **state) {
  (void)state;
#define KEYS \
  { .block_tokens = 16 }
#define STATE_OF_9 \
  { .block_tokens = 64, .state_pages = 9 }
  static const struct {
    weft_layer_group group[3];
    const char *word;
  } rows[] = {
      {{KEYS, {.block_tokens = 64, .state_pages = WEFT_STATE_PAGES_MAX + 1}}, "state_pages is 4097; give up to 4096"},
      {{KEYS, {.block_tokens = 64, .window = 64, .state_pages = 9}}, "has a window"},
      {{STATE_OF_9, KEYS}, "keys and values first"},
      {{KEYS, STATE_OF_9, KEYS}, "keys and values first"},
      {{KEYS, {.block_tokens = 16, .from_border = true}}, "behind a border and has no window"}};
#undef KEYS
#undef STATE_OF_9
  for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_pager_model model = {.n_groups = rows[i].group[2].block_tokens != 0 ? 3 : 2};
    memcpy(model.group, rows[i].group, sizeof rows[i].group);
    weft_pager_config config = {
        .n_pages = 10, .n_seqs = 1, .seq_tokens_max = 100, .n_models = 1, .model = &model, .hash_seed = 1};
    weft_pager *pager = NULL;
    weft_error error = {{0}};
    assert_int_equal(weft_pager_open(&config, &pager, &error), WEFT_E_INVALID);
    if (strstr(error.text, rows[i].word) == NULL) fail_msg("%s", error.text);
  }
}

/* One corruption per case; false when there are no more. */
/* clang-format off */
static bool corrupt(weft_pager *p, weft_seq seq, weft_page held, weft_page cached, uint32_t which) {
  weft_page *page = p->table + p->run_base + p->run[held] + PAGER_RUN_HEAD;
  switch (which) {
    case 0: p->run[held] = p->run[cached]; return true;
    case 1: p->run[held] = 0; return true;
    case 2: page[PAGER_RUN_N - PAGER_RUN_HEAD] -= 1; return true;
    case 3: page[0] = page[1]; return true;
    case 4: page[2] = page[1]; return true;
    case 5: p->page[page[1]].state = PAGER_PINNED; return true;
    case 6: p->page[page[1]].next = cached; return true;
    case 7: page[1] = cached; return true;
    case 8: p->n_kept_pages += 1; return true;
    case 9: p->page[cached].keep = 0; return true;
    case 10: p->free_run[STATES] = 0; return true;
    case 11: pager_table(p, seq, STATES)[1] = WEFT_PAGE_NONE; return true;
    case 12: pager_table(p, seq, STATES)[1] = cached; return true;
    case 13: pager_table(p, seq, 0)[0] = held; return true;
    case 14: p->stats.n_cached -= 1; return true;
    case 15: p->owner[0].n_pinned -= 1; return true;
    case 16: p->run[kit_page(p, seq, 0, 0)] = p->run[held]; return true;
    case 17: p->kept[0] = 0; return true;
    case 18: p->kept[1] = p->run[held]; return true;
    case 19: p->table[p->run_base + p->kept[0] + PAGER_RUN_AFTER] = p->run[held]; return true;
    case 20: p->table[p->run_base + p->kept[0] + PAGER_RUN_BEFORE] = p->run[held]; return true;
    default: return false;
  }
}
/* clang-format on */

static void every_corruption_is_named(void **state) {
  (void)state;
  bool more = true;
  for (uint32_t which = 0; more; which++) {
    int32_t tokens[TOKENS];
    weft_error error = {{0}};
    weft_pager *pager = open_states(300, 30);
    kit_run(pager, kit_tokens(tokens, 100, 0, 1), 100);
    kit_result r = kit_begin(pager, kit_tokens(tokens, 150, 0, 2), 150);
    weft_page held = kit_page(pager, r.seq, STATES, 1),
              cached = pager->table[pager->run_base + pager->kept[0] + PAGER_RUN_HEAD];
    kit_check(pager);
    more = corrupt(pager, r.seq, held, cached, which);
    bool good = weft_pager_check(pager, &error);
    if (good == more) fail_msg("corruption %u: %s", which, good ? "not noticed" : error.text);
    weft_pager_close(pager);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_last_border_has_a_state),
                                     cmocka_unit_test(pages_may_lie_anywhere),
                                     cmocka_unit_test(trim_needs_no_copy),
                                     cmocka_unit_test(choices_share_a_state),
                                     cmocka_unit_test(a_fork_before_the_first_border),
                                     cmocka_unit_test(a_turn_begins_at_a_state),
                                     cmocka_unit_test(a_parting_has_a_state),
                                     cmocka_unit_test(a_long_prompt_has_snapshots),
                                     cmocka_unit_test(a_preempted_request_finds_its_state),
                                     cmocka_unit_test(a_follower_gets_a_state),
                                     cmocka_unit_test(a_follower_of_a_state_alone),
                                     cmocka_unit_test(nobody_waits_for_a_state_that_was_passed),
                                     cmocka_unit_test(a_snapshot_is_worth_no_refusal),
                                     cmocka_unit_test(a_state_needs_room),
                                     cmocka_unit_test(a_state_is_evicted_whole),
                                     cmocka_unit_test(snapshots_have_a_limit),
                                     cmocka_unit_test(a_state_is_paid_for_once),
                                     cmocka_unit_test(a_state_computed_twice_goes_back),
                                     cmocka_unit_test(a_snapshot_beyond_the_limit_goes_down),
                                     cmocka_unit_test(a_state_goes_down_and_comes_back),
                                     cmocka_unit_test(a_lost_page_loses_the_state),
                                     cmocka_unit_test(a_state_moves_to_the_file),
                                     cmocka_unit_test(a_large_state_stays_out_of_a_tier),
                                     cmocka_unit_test(a_reset_forgets_states),
                                     cmocka_unit_test(bad_groups_are_named),
                                     cmocka_unit_test(every_corruption_is_named)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
