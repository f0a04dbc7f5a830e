/* SPDX-License-Identifier: MIT */
/* Lower tiers: what goes down, in which order copies come out, what comes back and at which price, and what a
 * failed copy, a full tier and a reset leave behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "pager/spill.h"
#include "tests/support/pager_kit.h"

static weft_pager *open_tiers(uint32_t n_pages, uint32_t n_host, uint32_t n_file, uint32_t window) {
  weft_pager_model model = {.n_groups = window == 0 ? 1 : 2, .group = {{4, 0}, {4, window}}};
  return kit_open_config((weft_pager_config){
      .n_pages = n_pages, .n_host_pages = n_host, .n_file_pages = n_file, .n_seqs = 4, .model = &model});
}

static weft_pager_stats stats_of(const weft_pager *pager) {
  return weft_pager_get_stats(pager);
}

/* All pages of the pool for a moment: whatever is cached goes down. */
static void squeeze(weft_pager *pager) {
  uint32_t n_pages = stats_of(pager).n_pages;
  weft_seq seq = kit_hold(pager, 4 * n_pages / pager->model[0].n_groups);
  weft_pager_release(pager, seq);
}

static uint32_t take(weft_pager *pager, weft_page_copy *copy, uint32_t max) {
  uint32_t n = weft_pager_take_copies(pager, copy, max);
  assert_true(n < max);
  kit_check(pager);
  return n;
}

static void drop_copies(weft_pager *pager) {
  weft_page_copy copy[512];
  (void)take(pager, copy, 512);
}

static kit_result admit(weft_pager *pager, const int32_t *tokens, uint32_t n, uint32_t max_pages, uint32_t cost,
                        bool wait) {
  kit_result r = kit_try(pager, (weft_admit){.domain = {1, 2},
                                             .tokens = tokens,
                                             .n_tokens = n,
                                             .n_prompt = n,
                                             .restore_max_pages = max_pages,
                                             .restore_cost = cost,
                                             .restore_wait = wait});
  kit_check(pager);
  return r;
}

/* How long a hit is when pages come back at any price, without waiting for the file. */
static uint32_t hit_below(weft_pager *pager, const int32_t *tokens, uint32_t n) {
  kit_result r = admit(pager, tokens, n, stats_of(pager).n_pages, 0, false);
  assert_int_equal(r.status, WEFT_OK);
  weft_pager_release(pager, r.seq);
  return r.n_cached;
}

static int32_t prompt[16];

/* The prompt, which has four pages, was computed, and all of it has gone down; its copies are not taken yet. */
static weft_pager *open_gone_down(uint32_t n_pages, uint32_t n_host) {
  weft_pager *pager = open_tiers(n_pages, n_host, 0, 0);
  assert_int_equal(kit_run(pager, kit_tokens(prompt, 16, 16, 0), 16), 0);
  squeeze(pager);
  return pager;
}

static void what_is_evicted_comes_back(void **state) {
  (void)state;
  weft_page_copy copy[64];
  weft_pager *pager = open_gone_down(8, 8);
  assert_int_equal(stats_of(pager).n_spilled, 4);
  assert_int_equal(stats_of(pager).n_host_held, 4);
  assert_int_equal(stats_of(pager).n_cached, 0);
  assert_int_equal(hit_below(pager, prompt, 16), 0); /* its copies were not taken yet */
  assert_int_equal(take(pager, copy, 64), 4);
  for (uint32_t i = 0; i < 4; i++) assert_int_equal(copy[i].kind, WEFT_PAGE_TO_HOST);
  kit_result r = admit(pager, prompt, 16, 8, 0, false);
  kit_is_cached(r, 16);
  assert_int_equal(stats_of(pager).n_pinned, 4);
  assert_int_equal(stats_of(pager).n_host_held, 0);
  assert_int_equal(stats_of(pager).n_restored, 4);
  weft_page_copy back[64];
  assert_int_equal(take(pager, back, 64), 4);
  for (uint32_t i = 0; i < 4; i++) { /* tails went first; each page gets what its slot was given */
    assert_int_equal(back[i].kind, WEFT_HOST_TO_PAGE);
    assert_int_equal(back[i].from, copy[3 - i].to);
    assert_int_equal(back[i].to, kit_page(pager, r.seq, 0, i));
  }
  weft_pager_release(pager, r.seq);
  assert_int_equal(kit_hit(pager, prompt, 16), 16);
  kit_close(pager);
}

/* The page is handed on in the same plan: its content leaves before anything comes in. */
static void a_page_handed_on_is_read_first(void **state) {
  (void)state;
  int32_t b[64];
  weft_page_copy copy[64];
  weft_pager *pager = open_gone_down(4, 8);
  drop_copies(pager);
  (void)kit_run(pager, kit_tokens(b, 16, 0, 1), 16);
  kit_result r = admit(pager, prompt, 16, 8, 0, false);
  assert_int_equal(r.n_cached, 16);
  assert_int_equal(take(pager, copy, 64), 8);
  for (uint32_t i = 0; i < 8; i += 2) {
    assert_int_equal(copy[i].kind, WEFT_PAGE_TO_HOST);
    assert_int_equal(copy[i + 1].kind, WEFT_HOST_TO_PAGE);
    assert_int_equal(copy[i].from, copy[i + 1].to);
  }
  for (uint32_t i = 0; i + 1 < 8; i += 2) /* a slot that was read may be filled again, later */
    for (uint32_t k = 0; k <= i; k += 2) assert_int_not_equal(copy[k].to, copy[i + 1].from);
  weft_pager_release(pager, r.seq);
  assert_int_equal(hit_below(pager, b, 16), 16);
  kit_close(pager);
}

static void price_and_room_decide(void **state) {
  (void)state;
  weft_pager *pager = open_gone_down(8, 8);
  drop_copies(pager);
  static const struct {
    uint32_t max_pages, cost, n_cached;
  } rows[] = {{0, 0, 0}, {3, 0, 0}, {8, 4 * 256, 0}, {8, 4 * 256 - 1, 16}, {4, 0, 16}};
  for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    kit_result r = admit(pager, prompt, 16, rows[i].max_pages, rows[i].cost, false);
    assert_int_equal(r.n_cached, rows[i].n_cached);
    weft_pager_release(pager, r.seq);
    squeeze(pager);
    drop_copies(pager);
  }
  weft_seq holder = kit_hold(pager, 20); /* three pages are left */
  assert_int_equal(hit_below(pager, prompt, 16), 0);
  kit_end(pager, holder);
}

/* Pages that the hit itself uses are no room for what comes back. */
static void own_cached_pages_are_no_room(void **state) {
  (void)state;
  int32_t tokens[64];
  weft_pager *pager = open_tiers(4, 8, 0, 0);
  (void)kit_run(pager, kit_tokens(tokens, 16, 16, 0), 16);
  weft_seq holder = kit_hold(pager, 8); /* the tail of two blocks goes down */
  drop_copies(pager);
  assert_int_equal(stats_of(pager).n_host_held, 2);
  assert_int_equal(hit_below(pager, tokens, 16), 8); /* the two cached pages, which are all there is */
  weft_pager_release(pager, holder);
  assert_int_equal(hit_below(pager, tokens, 16), 16);
  kit_close(pager);
}

static void the_host_lets_the_tail_go(void **state) {
  (void)state;
  weft_pager *pager = open_gone_down(8, 3);
  drop_copies(pager);
  assert_int_equal(stats_of(pager).n_spill_dropped, 1);
  assert_int_equal(hit_below(pager, prompt, 16), 12);
  kit_close(pager);
}

static void cold_pages_do_not_go_down(void **state) {
  (void)state;
  int32_t tokens[128];
  weft_pager *pager = open_tiers(40, 40, 0, 8);
  (void)kit_run(pager, kit_tokens(tokens, 64, 64, 0), 64);
  squeeze(pager);
  drop_copies(pager);
  /* all of the group that keeps everything, and the window before the ends of prompt and answer */
  assert_true(stats_of(pager).n_spilled >= 16 + 2);
  assert_true(stats_of(pager).n_spilled <= 16 + 4);
  assert_int_equal(hit_below(pager, tokens, 64), 64);
  kit_close(pager);
}

static void computed_again_replaces_what_is_below(void **state) {
  (void)state;
  weft_pager *pager = open_gone_down(8, 8);
  drop_copies(pager);
  assert_int_equal(kit_run(pager, prompt, 16), 0); /* may bring nothing back */
  assert_int_equal(stats_of(pager).n_host_held, 0);
  assert_int_equal(kit_hit(pager, prompt, 16), 16);
  kit_close(pager);
}

static void lost_copies_are_forgotten(void **state) {
  (void)state;
  weft_page_copy copy[64];
  weft_pager *pager = open_gone_down(8, 8);
  assert_int_equal(take(pager, copy, 64), 4);
  weft_pager_spill_lost(pager, copy[1].to); /* the third block; the fourth is of no use without it */
  weft_pager_spill_lost(pager, copy[1].to); /* told twice, and one that holds nothing */
  weft_pager_spill_lost(pager, 7);
  kit_check(pager);
  assert_int_equal(stats_of(pager).n_spill_lost, 1);
  assert_int_equal(stats_of(pager).n_host_held, 3);
  kit_result r = admit(pager, prompt, 16, 8, 0, false);
  assert_int_equal(r.n_cached, 8);
  kit_compute(pager, r.seq, prompt + 8, 8); /* the rest, computed again */
  weft_pager_release(pager, r.seq);
  assert_int_equal(kit_hit(pager, prompt, 16), 16);
  kit_close(pager);
}

static void a_reset_forgets_all_tiers(void **state) {
  (void)state;
  weft_pager *pager = open_gone_down(8, 8);
  weft_pager_reset_cache(pager);
  kit_check(pager);
  assert_int_equal(stats_of(pager).n_host_held, 0);
  assert_int_equal(pager->n_nodes_live, 0);
  drop_copies(pager); /* they run for nothing */
  assert_int_equal(hit_below(pager, prompt, 16), 0);
  kit_close(pager);
}

/* More prefixes than the host holds: the oldest go on to the file, and come up again when asked for. */
static void the_file_takes_what_the_host_lets_go(void **state) {
  (void)state;
  int32_t a[64], b[64];
  weft_page_copy copy[64];
  uint32_t n_to_file = 0;
  weft_pager *pager = open_tiers(8, 8, 8, 0);
  (void)kit_run(pager, kit_tokens(a, 12, 12, 0), 12);
  for (int32_t round = 1; round < 6 && n_to_file < 3; round++) {
    squeeze(pager);
    uint32_t n = take(pager, copy, 64);
    for (uint32_t i = 0; i < n; i++) {
      if (copy[i].kind != WEFT_HOST_TO_FILE) continue;
      n_to_file += 1;
      weft_pager_moved(pager, &copy[i], true);
      kit_check(pager);
    }
    (void)kit_run(pager, kit_tokens(b, 12, 0, round), 12);
  }
  assert_true(n_to_file >= 3);
  assert_true(stats_of(pager).n_file_held >= 3);
  weft_pager_reset_cache(pager);
  (void)kit_run(pager, a, 12);
  squeeze(pager);
  drop_copies(pager);
  kit_close(pager);
}

/* One block, by hand, through every way that a move can end. */
static void moves_end_well_or_not(void **state) {
  (void)state;
  for (uint32_t way = 0; way < 5; way++) {
    int32_t a[64];
    weft_page_copy copy[64];
    weft_pager *pager = open_tiers(2, 2, 2, 0);
    (void)kit_run(pager, kit_tokens(a, 4, 4, 0), 4);
    squeeze(pager);
    assert_int_equal(take(pager, copy, 64), 2); /* half of the host's slots are to be free: the content goes on */
    weft_page_copy *move = &copy[1];
    assert_int_equal(move->kind, WEFT_HOST_TO_FILE);
    if (way == 1) { /* on its way, and read all the same */
      assert_int_equal(hit_below(pager, a, 4), 4);
    }
    if (way == 2) weft_pager_reset_cache(pager);
    weft_pager_moved(pager, move, way != 3);
    kit_check(pager);
    weft_pager_stats s = stats_of(pager);
    assert_int_equal(s.n_file_held, way == 0 || way == 4);
    assert_int_equal(s.n_file_lost, way == 3);
    if (way == 0 || way == 4) {
      assert_int_equal(hit_below(pager, a, 4), 0); /* not from the file without waiting */
      kit_result r = admit(pager, a, 4, 8, 0, true);
      if (r.status == WEFT_OK) weft_pager_release(pager, r.seq); /* the host is too small to lift */
    }
    kit_close(pager);
  }
}

static void the_file_is_waited_for(void **state) {
  (void)state;
  for (uint32_t good = 0; good < 2; good++) {
    int32_t tokens[64], other[64];
    weft_page_copy copy[64];
    weft_pager *pager = open_tiers(8, 4, 8, 0);
    (void)kit_run(pager, kit_tokens(tokens, 4, 4, 0), 4);
    for (int32_t i = 1; stats_of(pager).n_file_held == 0 && i < 20; i++) {
      squeeze(pager);
      uint32_t n = take(pager, copy, 64);
      for (uint32_t k = 0; k < n; k++)
        if (copy[k].kind == WEFT_HOST_TO_FILE) weft_pager_moved(pager, &copy[k], true);
      if (stats_of(pager).n_file_held == 0) (void)kit_run(pager, kit_tokens(other, 4, 0, i), 4);
    }
    kit_result r = admit(pager, tokens, 4, 8, 0, true);
    kit_waits(r, WEFT_SEQ_NONE);
    assert_int_equal(admit(pager, tokens, 4, 8, 0, true).status, WEFT_AGAIN); /* still on its way */
    uint32_t n = take(pager, copy, 64);
    assert_int_equal(copy[n - 1].kind, WEFT_FILE_TO_HOST);
    weft_pager_moved(pager, &copy[n - 1], good == 1);
    r = admit(pager, tokens, 4, 8, 0, true);
    kit_is_cached(r, good == 1 ? 4 : 0);
    assert_int_equal(stats_of(pager).n_file_lost, good == 0);
    kit_end(pager, r.seq);
  }
}

/* Nodes live on by the host's slots; when they run out, the oldest content gives way. */
static void nodes_are_found_for_new_prefixes(void **state) {
  (void)state;
  int32_t tokens[64];
  weft_pager *pager = open_tiers(4, 4, 0, 0);
  for (int32_t i = 0; i < 200; i++) {
    assert_int_equal(kit_run(pager, kit_tokens(tokens, 16, 0, i), 16), 0);
    drop_copies(pager);
    assert_true(pager->n_nodes_live <= pager->n_nodes);
  }
  assert_int_equal(kit_hit(pager, tokens, 16), 16);
  kit_close(pager);
}

static void wrong_tiers_are_refused(void **state) {
  (void)state;
  weft_pager_model model = {.n_groups = 1, .group = {{4, 0}}};
  weft_pager_config config = {.n_pages = 4, .n_seqs = 1, .seq_tokens_max = 8, .n_models = 1, .model = &model};
  weft_pager *pager = NULL;
  weft_error error;
  config.n_file_pages = 1;
  assert_int_equal(weft_pager_open(&config, &pager, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "n_host_pages"));
  config.n_host_pages = 1u << 24;
  assert_int_equal(weft_pager_open(&config, &pager, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "n_host_pages"));
}

/* What comes back puts out what was there, again and again in one plan: the queue has room for both. */
static void a_plan_full_of_copies(void **state) {
  (void)state;
  int32_t tokens[3][64];
  weft_page_copy copy[64];
  weft_pager *pager = open_tiers(8, 20, 0, 0);
  for (int i = 0; i < 3; i++) {
    (void)kit_run(pager, kit_tokens(tokens[i], 32, 0, i), 32);
    if (i < 2) squeeze(pager);
    drop_copies(pager);
  }
  for (int i = 0; i < 2; i++) (void)hit_below(pager, tokens[i], 32);
  assert_int_equal(stats_of(pager).n_restored, 8);
  assert_true(take(pager, copy, 64) <= 8 + 20);
  assert_int_equal(hit_below(pager, tokens[1], 32), 32); /* in the next plan */
  kit_close(pager);
}

/* The laws of the lower tiers are recomputed too: each corruption is named. */
static void corrupted_slots_are_named(void **state) {
  (void)state;
  for (uint32_t which = 0; which < 6; which++) {
    int32_t tokens[64];
    weft_pager *pager = open_tiers(16, 16, 0, 0);
    weft_error error = {{0}};
    kit_run(pager, kit_tokens(tokens, 64, 0, 1), 64);
    squeeze(pager);
    kit_check(pager);
    uint32_t s = pager->slot[pager->n_slots].next;
    assert_true(s < pager->n_host && pager->slot[s].waiting);
    switch (which) {
      case 0:
        pager->slot[s].state = PAGER_SLOT_PICKED;
        break;
      case 1:
        pager->slot[s].node = PAGER_NODE_NONE;
        break;
      case 2:
        pager->slot[s].older = s;
        break;
      case 3:
        pager->stats.n_host_held += 1;
        break;
      case 4:
        pager->n_free_host -= 1;
        break;
      default:
        pager->n_copies_waiting = 0, pager->n_spills_waiting = 0;
        break; /* as if a copy had been lost */
    }
    assert_false(weft_pager_check(pager, &error));
    assert_true(strlen(error.text) > 10);
    weft_pager_close(pager);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(corrupted_slots_are_named),
      cmocka_unit_test(what_is_evicted_comes_back),
      cmocka_unit_test(a_page_handed_on_is_read_first),
      cmocka_unit_test(price_and_room_decide),
      cmocka_unit_test(own_cached_pages_are_no_room),
      cmocka_unit_test(the_host_lets_the_tail_go),
      cmocka_unit_test(cold_pages_do_not_go_down),
      cmocka_unit_test(computed_again_replaces_what_is_below),
      cmocka_unit_test(lost_copies_are_forgotten),
      cmocka_unit_test(a_reset_forgets_all_tiers),
      cmocka_unit_test(the_file_takes_what_the_host_lets_go),
      cmocka_unit_test(moves_end_well_or_not),
      cmocka_unit_test(the_file_is_waited_for),
      cmocka_unit_test(nodes_are_found_for_new_prefixes),
      cmocka_unit_test(a_plan_full_of_copies),
      cmocka_unit_test(wrong_tiers_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
