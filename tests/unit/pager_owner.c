/* SPDX-License-Identifier: MIT */
/* Who pays for a page, the limit of an owner, and public prefixes: who sees them, and where they
 * end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/pager_kit.h"

/* A prompt of an owner; each owner has a domain of its own unless one is given. */
static kit_result begin_as(weft_pager *pager, uint32_t owner, uint64_t domain, const int32_t *tokens, uint32_t n,
                           uint32_t n_public) {
  return kit_enter(
      pager,
      (weft_admit){
          .domain = {domain, 1}, .tokens = tokens, .n_tokens = n, .n_prompt = n, .n_public = n_public, .owner = owner});
}

/* The same, which must be admissible, and what is not cached is computed. */
static kit_result compute_as(weft_pager *pager, uint32_t owner, uint64_t domain, const int32_t *tokens, uint32_t n,
                             uint32_t n_public) {
  kit_result r = begin_as(pager, owner, domain, tokens, n, n_public);
  assert_int_equal(r.status, WEFT_OK);
  kit_compute(pager, r.seq, tokens + r.n_cached, n - r.n_cached);
  kit_check(pager);
  return r;
}

/* The same, released. Returns how much was cached. */
static uint32_t run_as(weft_pager *pager, uint32_t owner, const int32_t *tokens, uint32_t n, uint32_t n_public) {
  kit_result r = compute_as(pager, owner, owner, tokens, n, n_public);
  weft_pager_release(pager, r.seq);
  return r.n_cached;
}

static void expect(const weft_pager *pager, uint32_t owner, uint32_t n_pinned, uint32_t n_cached) {
  weft_owner_usage usage = weft_pager_owner_usage(pager, owner);
  assert_int_equal(usage.n_pinned, n_pinned);
  assert_int_equal(usage.n_cached, n_cached);
  kit_check(pager);
}

/* For prompts of up to 256 tokens, without windows. */
static weft_pager *open_plain(void) {
  return kit_open(16, 3, 1, (kit_group[]){{16, 0}});
}

/* ---- who pays -------------------------------------------------------------------------------- */

static void every_state_has_a_payer(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[100]){0}, 100, 0, 1);
  weft_pager *pager = open_plain();
  kit_result r = begin_as(pager, 3, 3, a, 100, 0);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 40, 40), WEFT_OK);
  expect(pager, 3, 3, 0);
  weft_pager_commit(pager, r.seq, a, 20);
  weft_pager_trim(pager, r.seq);
  expect(pager, 3, 2, 0);
  kit_compute(pager, r.seq, a + 20, 80);
  expect(pager, 3, 7, 0);
  weft_pager_release(pager, r.seq);
  expect(pager, 3, 0, 6); /* the partly filled block is FREE */
  weft_seq held = kit_hold(pager, 12 * 16);
  expect(pager, 3, 0, 4);
  expect(pager, 0, 12, 0);
  weft_pager_release(pager, held);
  assert_int_equal(run_as(pager, 3, a, 100, 0), 64);
  weft_owner_usage usage = weft_pager_owner_usage(pager, 3);
  assert_int_equal(usage.n_evicted, 2);
  assert_int_equal(usage.n_admits, 2);
  assert_int_equal(usage.n_hits, 1);
  assert_int_equal(usage.n_hit_tokens, 64);
  assert_int_equal(usage.n_prompt_tokens, 200);
  weft_pager_reset_cache(pager);
  expect(pager, 3, 0, 0);
  kit_close(pager);
}

/* Two owners in one domain: the block is paid for once. The payer may leave first: it goes on
 * paying until nobody holds the block; then whoever finds it pays. */
static void a_shared_block_is_paid_for_once(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[64]){0}, 64, 0, 1);
  weft_pager *pager = open_plain();
  kit_result first = compute_as(pager, 1, 9, a, 64, 0);
  kit_result second = begin_as(pager, 2, 9, a, 64, 0);
  assert_int_equal(second.n_cached, 64);
  expect(pager, 1, 4, 0);
  expect(pager, 2, 0, 0);
  weft_pager_release(pager, first.seq);
  expect(pager, 1, 4, 0);
  kit_compute(pager, second.seq, a, 10);
  expect(pager, 2, 1, 0);
  weft_pager_release(pager, second.seq);
  expect(pager, 1, 0, 4);
  expect(pager, 2, 0, 0);
  second = begin_as(pager, 2, 9, a, 64, 0);
  expect(pager, 1, 0, 0);
  expect(pager, 2, 4, 0);
  kit_end(pager, second.seq);
}

/* The operator takes over what it comes to hold, so that it never counts against a limit. */
static void the_operator_takes_over(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[64]){0}, 64, 0, 1);
  weft_pager *pager = open_plain();
  kit_result first = compute_as(pager, 1, 1, a, 64, 0);
  kit_result pin = begin_as(pager, WEFT_OWNER_OPERATOR, 1, a, 32, 0);
  assert_int_equal(pin.n_cached, 32);
  expect(pager, 1, 2, 0);
  expect(pager, WEFT_OWNER_OPERATOR, 2, 0);
  weft_pager_release(pager, first.seq);
  expect(pager, 1, 0, 2);
  expect(pager, WEFT_OWNER_OPERATOR, 2, 0);
  weft_pager_release(pager, pin.seq);
  expect(pager, WEFT_OWNER_OPERATOR, 0, 2);
  kit_close(pager);
}

/* What two owners compute at the same time ends as one block, of whoever was first. */
static void computed_twice_is_paid_for_once(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[64]){0}, 64, 0, 1);
  const int32_t *b = kit_tokens((int32_t[64]){0}, 64, 0, 2);
  weft_pager *pager = open_plain();
  kit_result first = begin_as(pager, 1, 9, a, 64, 0);
  kit_result second = begin_as(pager, 2, 9, b, 64, 0);
  assert_int_equal(weft_pager_reserve(pager, first.seq, 64, 64), WEFT_OK);
  assert_int_equal(weft_pager_reserve(pager, second.seq, 64, 64), WEFT_OK);
  expect(pager, 1, 4, 0);
  expect(pager, 2, 4, 0);
  weft_pager_commit(pager, first.seq, a, 64);
  weft_pager_commit(pager, second.seq, a, 64);
  expect(pager, 1, 4, 0);
  expect(pager, 2, 0, 0);
  weft_pager_release(pager, first.seq);
  kit_end(pager, second.seq);
}

static void a_fork_shares_the_bill(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[40]){0}, 40, 0, 1);
  weft_pager *pager = open_plain();
  kit_result r = compute_as(pager, 5, 5, a, 40, 0);
  weft_seq fork;
  assert_int_equal(weft_pager_fork(pager, r.seq, 40, &fork), WEFT_OK);
  expect(pager, 5, 3, 0);
  kit_compute(pager, fork, a, 1); /* the third block is copied */
  expect(pager, 5, 4, 0);
  weft_pager_release(pager, r.seq);
  expect(pager, 5, 3, 0);
  weft_pager_release(pager, fork);
  expect(pager, 5, 0, 2);
  kit_close(pager);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void reserve_stops_at_the_limit(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[200]){0}, 200, 0, 1);
  const int32_t *b = kit_tokens((int32_t[200]){0}, 200, 0, 2);
  weft_pager *pager = kit_open(64, 4, 2, (kit_group[]){{16, 0}, {16, 17}});
  weft_pager_set_owner_limit(pager, 1, 6);
  kit_result r = begin_as(pager, 1, 1, a, 200, 0);
  weft_pager_stats before = weft_pager_get_stats(pager);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 49, 49), WEFT_QUOTA);
  kit_unchanged(pager, before);
  expect(pager, 1, 0, 0);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 48, 48), WEFT_OK);
  expect(pager, 1, 6, 0);
  kit_result other = compute_as(pager, 2, 2, b, 200, 0); /* nobody else is held up */
  weft_pager_commit(pager, r.seq, a, 48);                /* its window lets go of two blocks */
  expect(pager, 1, 4, 2);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 17, 17), WEFT_QUOTA);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 1, 1), WEFT_OK);
  expect(pager, 1, 6, 2);
  weft_pager_set_owner_limit(pager, 1, 3); /* nothing is taken away, and what costs nothing works */
  expect(pager, 1, 6, 2);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 16, 16), WEFT_OK);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 17, 17), WEFT_QUOTA);
  weft_pager_release(pager, r.seq);
  weft_pager_release(pager, other.seq);
  assert_int_equal(weft_pager_owner_usage(pager, 1).limit, 3);
  kit_close(pager);
}

/* The quota is asked before the pool: a tenant at its limit does not look like a full pool. */
static void a_quota_is_not_a_full_pool(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[64]){0}, 64, 0, 1);
  weft_pager *pager = kit_open(4, 4, 1, (kit_group[]){{16, 0}});
  weft_pager_set_owner_limit(pager, 1, 2);
  kit_result r = begin_as(pager, 1, 1, a, 64, 0);
  weft_seq held = kit_hold(pager, 3 * 16);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 48, 48), WEFT_QUOTA);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 32, 32), WEFT_NO_BLOCKS);
  weft_pager_release(pager, held);
  kit_end(pager, r.seq);
}

/* A hit that nobody holds counts; one that somebody holds and pays for does not. */
static void admit_stops_at_the_limit(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[128]){0}, 128, 0, 1);
  weft_pager *pager = kit_open(32, 4, 1, (kit_group[]){{16, 0}});
  assert_int_equal(run_as(pager, 1, a, 128, 32), 0);
  expect(pager, 1, 0, 6);
  expect(pager, WEFT_OWNER_OPERATOR, 0, 2);
  weft_pager_set_owner_limit(pager, 1, 5);
  weft_pager_stats before = weft_pager_get_stats(pager);
  assert_int_equal(begin_as(pager, 1, 1, a, 128, 32).status, WEFT_QUOTA);
  kit_unchanged(pager, before);
  weft_pager_set_owner_limit(pager, 1, 6);
  kit_result first = begin_as(pager, 1, 1, a, 128, 32);
  assert_int_equal(first.status, WEFT_OK);
  kit_result second = begin_as(pager, 1, 1, a, 128, 32);
  assert_int_equal(second.status, WEFT_OK);
  expect(pager, 1, 6, 0);
  weft_pager_release(pager, first.seq);
  kit_end(pager, second.seq);
}

/* ---- public prefixes ------------------------------------------------------------------------- */

/* All owners find the public prefix, wherever it ends, and nobody finds more of another's prompt:
 * not the private rest, not the public tokens as private ones, not the private ones as public. */
static void only_the_public_prefix_is_shared(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[160]){0}, 160, 160, 1);
  for (uint32_t n_public = 0; n_public <= 160; n_public += 5) {
    weft_pager *pager = kit_open(128, 4, 2, (kit_group[]){{16, 0}, {32, 0}});
    uint32_t end = n_public / 32 * 32;
    assert_int_equal(run_as(pager, 1, a, 160, n_public), 0);
    expect(pager, WEFT_OWNER_OPERATOR, 0, end / 16 + end / 32);
    expect(pager, 1, 0, (160 - end) / 16 + (160 - end) / 32);
    assert_int_equal(run_as(pager, 2, a, 160, n_public), end);
    assert_int_equal(run_as(pager, 1, a, 160, n_public), 160);
    assert_int_equal(run_as(pager, 2, a, 160, n_public), 160);
    assert_int_equal(run_as(pager, 3, a, 160, 0), 0); /* it did not ask for the public one */
    uint32_t more = end + 32 <= 160 ? end + 32 : 160;
    assert_int_equal(run_as(pager, 4, a, 160, more), end);
    if (end > 0) assert_int_equal(run_as(pager, 5, a, 160, end - 32), end - 32);
    kit_close(pager);
  }
}

static void a_public_domain_is_nobodys(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[32]){0}, 32, 0, 1);
  weft_pager *pager = open_plain();
  const weft_admit bad[] = {{.domain = WEFT_DOMAIN_PUBLIC, .tokens = a, .n_tokens = 32},
                            {.tokens = a, .n_tokens = 32, .n_public = 33},
                            {.tokens = a, .n_tokens = 32, .owner = WEFT_OWNERS_MAX}};
  for (uint32_t i = 0; i < 3; i++) {
    kit_result r = kit_try(pager, bad[i]);
    if (r.status != WEFT_E_INVALID) fail_msg("row %u: status %d", i, (int)r.status);
  }
  kit_close(pager);
}

/* A fork of less than the public prefix could go on with other tokens: it publishes nothing. */
static void a_fork_within_the_prefix_is_private(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[100]){0}, 100, 0, 1);
  const int32_t *b = kit_tokens((int32_t[100]){0}, 100, 50, 2);
  for (uint32_t n = 0; n < 90; n += 7) {
    weft_pager *pager = kit_open(32, 2, 1, (kit_group[]){{16, 0}});
    kit_result r = compute_as(pager, 1, 1, a, 100, 70);
    weft_seq fork;
    assert_int_equal(weft_pager_fork(pager, r.seq, n, &fork), WEFT_OK);
    uint64_t n_published = weft_pager_get_stats(pager).n_published;
    kit_compute(pager, fork, b + n, 100 - n);
    kit_check(pager);
    n_published = weft_pager_get_stats(pager).n_published - n_published;
    assert_int_equal(n_published, n < 64 ? 0 : (100 - n + n % 16) / 16);
    assert_int_equal(weft_pager_owner_usage(pager, WEFT_OWNER_OPERATOR).n_pinned, 4);
    weft_pager_release(pager, fork);
    weft_pager_release(pager, r.seq);
    assert_int_equal(run_as(pager, 2, b, 100, 70), 0);
    kit_close(pager);
  }
}

/* What is not published is not public: the sequence's owner pays. */
static void without_a_cache_the_owner_pays(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[64]){0}, 64, 0, 1);
  weft_pager *pager = open_plain();
  kit_result r =
      kit_try(pager, (weft_admit){.tokens = a, .n_tokens = 64, .n_public = 64, .owner = 7, .no_cache = true});
  assert_int_equal(r.status, WEFT_OK);
  kit_compute(pager, r.seq, a, 64);
  expect(pager, 7, 4, 0);
  weft_pager_release(pager, r.seq);
  r = begin_as(pager, 7, 7, a, 64, 64);
  kit_compute(pager, r.seq, a, 20);
  expect(pager, WEFT_OWNER_OPERATOR, 2, 0);
  weft_pager_reset_cache(pager); /* it publishes nothing more */
  kit_compute(pager, r.seq, a + 20, 44);
  expect(pager, WEFT_OWNER_OPERATOR, 2, 0);
  expect(pager, 7, 2, 0);
  kit_end(pager, r.seq);
}

/* Another tenant waits for whoever computes the public prefix, and goes on alone behind it. */
static void waits_cross_the_switch(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[128]){0}, 128, 64, 1);
  const int32_t *b = kit_tokens((int32_t[128]){0}, 128, 64, 2);
  weft_pager *pager = kit_open(64, 4, 2, (kit_group[]){{16, 0}, {16, 40}});
  kit_result leader = begin_as(pager, 1, 1, a, 128, 64);
  for (uint32_t at = 0; at < 64; at += 8) {
    kit_result r = begin_as(pager, 2, 2, b, 128, 64);
    kit_waits(r, leader.seq);
    kit_compute(pager, leader.seq, a + at, 8);
    kit_check(pager);
  }
  kit_result other = begin_as(pager, 2, 2, a, 128, 64); /* the same tokens, another domain */
  kit_is_cached(other, 64);
  kit_result same = begin_as(pager, 1, 1, a, 128, 64); /* its own domain: it waits for the rest */
  kit_waits(same, leader.seq);
  weft_pager_release(pager, leader.seq);
  same = begin_as(pager, 1, 1, a, 128, 64);
  kit_is_cached(same, 64);
  weft_pager_release(pager, other.seq);
  kit_end(pager, same.seq);
}

/* The window before the end of the public prefix is kept under pressure, for all domains; a hit
 * behind the switch uses blocks of both sides. */
static void windows_reach_across_the_switch(void **state) {
  (void)state;
  static const uint32_t windows[] = {2, 15, 16, 17, 33, 40, 64, 100};
  int32_t tokens[400];
  for (uint32_t i = 0; i < 8; i++) {
    weft_pager *pager = kit_open(160, 2, 2, (kit_group[]){{32, 0}, {16, windows[i]}});
    kit_tokens(tokens, 400, 96, 1);
    kit_result r = begin_as(pager, 1, 1, tokens, 320, 96);
    for (uint32_t at = 0; at < 320; at += 4) kit_compute(pager, r.seq, tokens + at, 4);
    kit_drain_cold(pager);
    kit_tokens(tokens, 400, 96, 2);
    assert_int_equal(run_as(pager, 2, tokens, 128, 96), 96);
    assert_int_equal(run_as(pager, 2, tokens, 128, 96), 128);
    assert_int_equal(run_as(pager, 2, tokens, 140, 96), 128);
    assert_int_equal(run_as(pager, 3, tokens, 128, 96), 96);
    kit_end(pager, r.seq);
  }
}

/* A public prefix that nobody follows goes with its last page; so does a domain below it. */
static void nothing_of_a_domain_is_left(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[64]){0}, 64, 0, 1);
  weft_pager *pager = open_plain();
  assert_int_equal(run_as(pager, 1, a, 64, 32), 0);
  assert_int_equal(pager->n_nodes_live, 6); /* two roots */
  assert_true(pager_evict_one(pager) && pager_evict_one(pager));
  assert_int_equal(pager->n_nodes_live, 3);
  assert_int_equal(run_as(pager, 1, a, 40, 32), 32); /* no block of its own: no root of its own */
  assert_int_equal(pager->n_nodes_live, 3);
  assert_true(pager_evict_one(pager) && pager_evict_one(pager));
  assert_int_equal(pager->n_nodes_live, 0);
  kit_close(pager);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_state_has_a_payer),
      cmocka_unit_test(a_shared_block_is_paid_for_once),
      cmocka_unit_test(the_operator_takes_over),
      cmocka_unit_test(computed_twice_is_paid_for_once),
      cmocka_unit_test(a_fork_shares_the_bill),
      cmocka_unit_test(reserve_stops_at_the_limit),
      cmocka_unit_test(a_quota_is_not_a_full_pool),
      cmocka_unit_test(admit_stops_at_the_limit),
      cmocka_unit_test(only_the_public_prefix_is_shared),
      cmocka_unit_test(a_public_domain_is_nobodys),
      cmocka_unit_test(a_fork_within_the_prefix_is_private),
      cmocka_unit_test(without_a_cache_the_owner_pays),
      cmocka_unit_test(waits_cross_the_switch),
      cmocka_unit_test(windows_reach_across_the_switch),
      cmocka_unit_test(nothing_of_a_domain_is_left),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
