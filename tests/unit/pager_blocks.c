/* SPDX-License-Identifier: MIT */
/* Blocks of one sequence: what open refuses, reserve and trim at block edges, windows, and the page
 * count that admission relies on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/memory.h"
#include "tests/support/pager_kit.h"

/* ---- open ------------------------------------------------------------------------------------ */

static weft_pager_config good_config(weft_pager_model *model) {
  *model = (weft_pager_model){.n_groups = 2, .group = {{16, 0}, {32, 64}}};
  return (weft_pager_config){.n_pages = 8, .n_seqs = 2, .seq_tokens_max = 128, .n_models = 1, .model = model};
}

static void require_refused(const weft_pager_config *config, const char *field) {
  weft_pager *pager = NULL;
  weft_error error = {{0}};
  assert_int_equal(weft_pager_open(config, &pager, &error), WEFT_E_INVALID);
  assert_null(pager);
  if (strstr(error.text, field) == NULL) fail_msg("'%s' does not name %s", error.text, field);
  assert_int_equal(weft_pager_open(config, &pager, NULL), WEFT_E_INVALID);
}

static void open_names_the_bad_field(void **state) {
  (void)state;
  weft_pager_model model;
  weft_pager_config good = good_config(&model), config;
#define REFUSED(member, bad) \
  config = good;             \
  config.member = bad;       \
  require_refused(&config, #member)
  REFUSED(n_pages, 0);
  REFUSED(n_pages, UINT32_MAX);
  REFUSED(n_seqs, 0);
  REFUSED(n_seqs, UINT32_MAX);
  REFUSED(seq_tokens_max, 0);
  REFUSED(seq_tokens_max, 1u << 24);
  REFUSED(n_models, 0);
  REFUSED(n_models, WEFT_MODELS_MAX + 1);
  REFUSED(model, NULL);
  REFUSED(journal_capacity, 3);
#undef REFUSED
  model.n_groups = 0;
  require_refused(&good, "model[0].n_groups");
  model.n_groups = WEFT_GROUPS_MAX + 1;
  require_refused(&good, "model[0].n_groups");
  static const uint32_t bad_blocks[] = {0, 3, 48, 512};
  for (uint32_t i = 0; i < 4; i++) {
    good = good_config(&model);
    model.group[1].block_tokens = bad_blocks[i];
    require_refused(&good, "model[0].group[1].block_tokens");
  }
}

static void open_survives_each_refused_allocation(void **state) {
  (void)state;
  weft_pager_model model;
  weft_pager_config config = good_config(&model);
  weft_pager *pager = NULL;
  weft_error error;
  (void)weft_memory_fail_at(0);
  assert_int_equal(weft_pager_open(&config, &pager, &error), WEFT_OK);
  uint64_t n_allocations = weft_memory_fail_at(0);
  assert_true(n_allocations > 5);
  weft_pager_close(pager);
  for (uint64_t n = 1; n <= n_allocations; n++) {
    pager = NULL;
    (void)weft_memory_fail_at(n);
    assert_int_equal(weft_pager_open(&config, &pager, &error), WEFT_E_NO_MEMORY);
    assert_null(pager);
  }
  (void)weft_memory_fail_at(0);
  weft_pager_close(NULL);
}

static void nothing_is_allocated_after_open(void **state) {
  (void)state;
  int32_t tokens[200];
  weft_pager *pager = kit_open(64, 4, 2, (kit_group[]){{16, 0}, {8, 20}});
  (void)weft_memory_fail_at(1);
  kit_run(pager, kit_tokens(tokens, 200, 100, 1), 200);
  kit_result r = kit_begin(pager, kit_tokens(tokens, 200, 100, 2), 200);
  weft_seq fork;
  assert_int_equal(weft_pager_fork(pager, r.seq, weft_pager_n_valid(pager, r.seq), &fork), WEFT_OK);
  kit_compute(pager, fork, tokens, 9);
  weft_pager_mark(pager, fork);
  weft_pager_reset_cache(pager);
  weft_pager_release(pager, fork);
  weft_pager_release(pager, r.seq);
  assert_int_equal(weft_memory_fail_at(0), 0);
  kit_close(pager);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void admit_refuses_and_changes_nothing(void **state) {
  (void)state;
  int32_t tokens[KIT_TOKENS_MAX + 1] = {0};
  weft_pager *pager = kit_open(8, 2, 1, (kit_group[]){{16, 0}});
  weft_admit good = {.tokens = tokens, .n_tokens = 20, .n_prompt = 20}, args;
  weft_seq seq = 41, waits_for = 42;
  uint32_t n_cached = 43;
  weft_pager_stats before = weft_pager_get_stats(pager);
#define REFUSED(member, bad, status) \
  args = good;                       \
  args.member = bad;                 \
  assert_int_equal(weft_pager_admit(pager, &args, &seq, &n_cached, &waits_for), status)
  REFUSED(model, 1, WEFT_E_INVALID);
  REFUSED(tokens, NULL, WEFT_E_INVALID);
  REFUSED(n_tokens, 0, WEFT_E_INVALID);
  REFUSED(n_prompt, 21, WEFT_E_INVALID);
  REFUSED(n_keep_rows, 21, WEFT_E_INVALID);
  REFUSED(n_tokens, KIT_TOKENS_MAX + 1, WEFT_E_TOO_LARGE);
#undef REFUSED
  kit_unchanged(pager, before);
  kit_result a = kit_admit(pager, kit_tokens(tokens, 20, 0, 1), 20, 1);
  kit_result b = kit_admit(pager, kit_tokens(tokens, 20, 0, 2), 20, 1);
  before = weft_pager_get_stats(pager);
  assert_int_equal(kit_admit(pager, kit_tokens(tokens, 20, 0, 3), 20, 1).status, WEFT_FULL);
  assert_int_equal(weft_pager_fork(pager, a.seq, weft_pager_n_valid(pager, a.seq), &seq), WEFT_FULL);
  kit_unchanged(pager, before);
  assert_int_equal(seq, 41);
  weft_pager_release(pager, a.seq);
  kit_end(pager, b.seq);
}

/* ---- reserve and trim ------------------------------------------------------------------------ */

static void reserve_at_block_edges(void **state) {
  (void)state;
  int32_t tokens[64];
  weft_pager *pager = kit_open(64, 2, 2, (kit_group[]){{16, 0}, {32, 0}});
  kit_result r = kit_admit(pager, kit_tokens(tokens, 64, 0, 1), 64, 1);
  static const uint32_t rows[][3] = {/* rows, blocks of 16, blocks of 32 */
                                     {0, 0, 0}, {1, 1, 1}, {15, 1, 1}, {16, 1, 1}, {17, 2, 1}, {32, 2, 1}, {33, 3, 2}};
  for (uint32_t i = 0; i < 7; i++) {
    assert_int_equal(weft_pager_reserve(pager, r.seq, rows[i][0], rows[i][0]), WEFT_OK);
    assert_int_equal(weft_pager_n_reserved(pager, r.seq), rows[i][0]);
    for (uint32_t g = 0; g < 2; g++) {
      uint32_t n;
      (void)weft_pager_table(pager, r.seq, g, &n);
      assert_int_equal(n, rows[i][1 + g]);
    }
    assert_int_equal(weft_pager_n_pages_held(pager, r.seq), rows[i][1] + rows[i][2]);
    kit_check(pager);
  }
  weft_page first = kit_page(pager, r.seq, 0, 0);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 5, 5), WEFT_OK); /* less than there is: no change */
  assert_int_equal(weft_pager_n_reserved(pager, r.seq), 33);
  assert_int_equal(kit_page(pager, r.seq, 0, 0), first);
  weft_pager_trim(pager, r.seq);
  assert_int_equal(weft_pager_n_pages_held(pager, r.seq), 0);
  kit_compute(pager, r.seq, tokens, 17);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 30, 30), WEFT_OK); /* [17, 47) */
  assert_int_equal(weft_pager_n_pages_held(pager, r.seq), 3 + 2);
  weft_pager_trim(pager, r.seq); /* the partly filled blocks stay */
  assert_int_equal(weft_pager_n_pages_held(pager, r.seq), 2 + 1);
  assert_int_equal(weft_pager_n_reserved(pager, r.seq), 17);
  kit_end(pager, r.seq);
}

static void reserve_is_all_or_nothing(void **state) {
  (void)state;
  int32_t tokens[64];
  weft_pager *pager = kit_open(5, 2, 2, (kit_group[]){{16, 0}, {8, 0}});
  kit_result r = kit_admit(pager, kit_tokens(tokens, 64, 0, 1), 64, 1);
  kit_compute(pager, r.seq, tokens, 20); /* 2 + 3 blocks: the whole pool */
  weft_pager_stats before = weft_pager_get_stats(pager);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 4, 4), WEFT_OK);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 5, 5), WEFT_NO_BLOCKS);
  assert_int_equal(weft_pager_reserve(pager, r.seq, KIT_TOKENS_MAX - 20, KIT_TOKENS_MAX - 20), WEFT_NO_BLOCKS);
  assert_int_equal(weft_pager_reserve(pager, r.seq, KIT_TOKENS_MAX - 19, KIT_TOKENS_MAX - 19), WEFT_E_TOO_LARGE);
  assert_int_equal(weft_pager_reserve(pager, r.seq, UINT32_MAX, UINT32_MAX), WEFT_E_TOO_LARGE);
  kit_unchanged(pager, before);
  assert_int_equal(weft_pager_n_reserved(pager, r.seq), 24);
  kit_end(pager, r.seq);
}

static void reserve_takes_all_headroom(void **state) {
  (void)state;
  int32_t tokens[KIT_TOKENS_MAX];
  weft_pager *pager = kit_open(10, 3, 1, (kit_group[]){{16, 0}});
  kit_run(pager, kit_tokens(tokens, 96, 0, 1), 96);
  weft_pager_stats stats = weft_pager_get_stats(pager);
  assert_int_equal(stats.n_cached, 6);
  assert_int_equal(weft_pager_headroom(pager), 10);
  weft_seq all = kit_hold(pager, 160);
  assert_int_equal(weft_pager_headroom(pager), 0);
  assert_int_equal(weft_pager_get_stats(pager).n_evicted, 6);
  weft_pager_release(pager, all);
  assert_int_equal(weft_pager_get_stats(pager).n_free, 10); /* nothing of it was published */
  kit_close(pager);
}

/* ---- windows --------------------------------------------------------------------------------- */

/* Positions a later row can see: > n_valid - window. A block stays while it has one of them. */
static void require_window(const weft_pager *pager, weft_seq seq, uint32_t block, uint32_t window) {
  uint32_t n, n_valid = weft_pager_n_valid(pager, seq);
  const weft_page *table = weft_pager_table(pager, seq, 0, &n);
  for (uint32_t i = 0; i < n; i++) {
    bool seen = (int64_t)(i + 1) * block - 1 > (int64_t)n_valid - window;
    assert_int_equal(table[i] != WEFT_PAGE_NONE, seen);
  }
}

static void window_edges(void **state) {
  (void)state;
  static const uint32_t windows[] = {1, 2, 15, 16, 17, 31, 32, 33, 100};
  const int32_t *tokens = kit_tokens((int32_t[200]){0}, 200, 0, 1);
  for (uint32_t i = 0; i < 9; i++) {
    for (uint32_t chunk = 1; chunk <= 67; chunk += chunk < 4 ? 1 : 21) {
      weft_pager *pager = kit_open(64, 1, 1, (kit_group[]){{16, windows[i]}});
      kit_result r = kit_admit(pager, tokens, 200, 1);
      for (uint32_t at = 0; at + chunk <= 200; at += chunk) {
        kit_compute(pager, r.seq, tokens + at, chunk);
        require_window(pager, r.seq, 16, windows[i]);
        kit_check(pager);
      }
      uint64_t n_dropped = weft_pager_get_stats(pager).n_window_dropped;
      assert_int_equal(n_dropped, (200 - 200 % chunk) / 16 + ((200 - 200 % chunk) % 16 != 0) -
                                      weft_pager_n_pages_held(pager, r.seq));
      kit_end(pager, r.seq);
    }
  }
}

/* The largest number of pages held, over all places where a chunk of n_rows can begin. */
static uint32_t measured_peak(const kit_group *groups, uint32_t n_tokens, uint32_t n_rows) {
  uint32_t peak = 0;
  int32_t tokens[KIT_TOKENS_MAX] = {0};
  for (uint32_t offset = 0; offset < 32; offset++) {
    weft_pager *pager = kit_open(256, 1, 2, groups);
    weft_seq seq = kit_hold(pager, 0);
    uint32_t n_now = offset < n_rows ? offset : n_rows;
    for (uint32_t at = 0; at < n_tokens; at += n_now, n_now = n_rows) {
      if (n_now > n_tokens - at) n_now = n_tokens - at;
      assert_int_equal(weft_pager_reserve(pager, seq, n_now, n_now), WEFT_OK);
      uint32_t n_held = weft_pager_n_pages_held(pager, seq);
      if (n_held > peak) peak = n_held;
      weft_pager_commit(pager, seq, tokens, n_now);
      if (n_now == 0) n_now = n_rows;
    }
    weft_pager_release(pager, seq);
    weft_pager_close(pager);
  }
  return peak;
}

static void pages_for_is_the_peak(void **state) {
  (void)state;
  static const uint32_t windows[] = {1, 2, 16, 17, 33, 64};
  static const uint32_t rows[] = {1, 2, 15, 16, 17, 40};
  static const uint32_t lengths[] = {1, 16, 17, 40, 300};
  for (uint32_t w = 0; w < 6; w++) {
    kit_group groups[] = {{16, windows[w]}, {32, 0}};
    weft_pager *pager = kit_open(1, 1, 2, groups);
    for (uint32_t r = 0; r < 6; r++)
      for (uint32_t n = 0; n < 5; n++) {
        uint32_t claimed = weft_pager_pages_for(pager, 0, lengths[n], rows[r]);
        uint32_t peak = measured_peak(groups, lengths[n], rows[r]);
        assert_true(claimed >= peak);
        if (lengths[n] == 300) assert_int_equal(claimed, peak);
        assert_true(claimed <= peak + 1);
      }
    weft_pager_close(pager);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(open_names_the_bad_field),
                                     cmocka_unit_test(open_survives_each_refused_allocation),
                                     cmocka_unit_test(nothing_is_allocated_after_open),
                                     cmocka_unit_test(admit_refuses_and_changes_nothing),
                                     cmocka_unit_test(reserve_at_block_edges),
                                     cmocka_unit_test(reserve_is_all_or_nothing),
                                     cmocka_unit_test(reserve_takes_all_headroom),
                                     cmocka_unit_test(window_edges),
                                     cmocka_unit_test(pages_for_is_the_peak)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
