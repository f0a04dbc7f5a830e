/* SPDX-License-Identifier: MIT */
/* The order of eviction, what pins protect, reset, and the journal that tells of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/memory.h"
#include "tests/support/pager_kit.h"

/* The next removals, oldest event first; others are skipped. Returns how many. */
static uint32_t removed(const weft_pager *pager, uint64_t *next, weft_journal_event *out, uint32_t max) {
  uint64_t n_missed;
  uint32_t n = 0;
  while (n < max && weft_pager_journal_read(pager, next, &out[n], 1, &n_missed) == 1) {
    assert_int_equal(n_missed, 0);
    n += out[n].kind == WEFT_JOURNAL_REMOVED;
  }
  return n;
}

/* ---- order ------------------------------------------------------------------------------------ */

static void tails_go_before_heads(void **state) {
  (void)state;
  const int32_t *tokens = kit_tokens((int32_t[160]){0}, 160, 160, 1);
  weft_journal_event event[32];
  weft_pager *pager = kit_open(15, 2, 2, (kit_group[]){{16, 0}, {32, 0}});
  kit_run(pager, tokens, 160); /* 10 + 5 blocks */
  uint64_t next = 0;
  for (uint32_t i = 0; i < 15; i++) {
    assert_true(pager_evict_one(pager));
    kit_check(pager);
  }
  assert_int_equal(removed(pager, &next, event, 32), 15);
  uint32_t end[2] = {160, 160}; /* each group from its end to its start, both at the same pace */
  for (uint32_t i = 0; i < 15; i++) {
    uint32_t g = event[i].group;
    assert_int_equal(event[i].first_position + event[i].n_tokens, end[g]);
    end[g] = event[i].first_position;
    assert_true(end[0] <= end[1] + 32 && end[1] <= end[0] + 32);
  }
  assert_false(pager_evict_one(pager));
  kit_close(pager);
}

static void least_recently_used_goes_first(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[64]){0}, 64, 0, 1);
  const int32_t *b = kit_tokens((int32_t[64]){0}, 64, 0, 2);
  const int32_t *c = kit_tokens((int32_t[64]){0}, 64, 0, 3);
  weft_pager *pager = kit_open(12, 3, 1, (kit_group[]){{16, 0}});
  kit_run(pager, a, 64);
  kit_run(pager, b, 64);
  kit_run(pager, c, 64);
  assert_int_equal(kit_hit(pager, a, 64), 64); /* used again: b is the oldest now */
  weft_seq held = kit_hold(pager, 3 * 16);
  kit_check(pager);
  assert_int_equal(kit_hit(pager, b, 64), 16); /* its head is left, and is now the newest */
  weft_pager_release(pager, held);
  weft_seq more = kit_hold(pager, 5 * 16); /* 3 free pages and 2 of c */
  assert_int_equal(kit_hit(pager, c, 64), 32);
  assert_int_equal(kit_hit(pager, a, 64), 64);
  assert_int_equal(kit_hit(pager, b, 64), 16);
  kit_end(pager, more);
}

/* A chain used partly again: what was not used goes, from its end; the shared head stays. */
static void shared_head_outlives_its_tails(void **state) {
  (void)state;
  int32_t tokens[96];
  weft_pager *pager = kit_open(32, 2, 1, (kit_group[]){{16, 0}});
  for (int32_t seed = 1; seed <= 4; seed++) kit_run(pager, kit_tokens(tokens, 96, 48, seed), 96);
  weft_pager_stats stats = weft_pager_get_stats(pager);
  assert_int_equal(stats.n_cached, 3 + 4 * 3);
  for (uint32_t i = 0; i < 12; i++) {
    assert_true(pager_evict_one(pager));
    kit_check(pager);
    for (int32_t seed = 1; seed <= 4; seed++) {
      uint32_t n_left = (uint32_t)seed * 3 <= i + 1 ? 0 : (uint32_t)seed * 3 - (i + 1);
      weft_admit args = {.domain = {1, 2}, .tokens = kit_tokens(tokens, 96, 48, seed), .n_tokens = 96};
      pager_match match = {.root = pager_root_find(pager, PAGER_NODE_NONE, 0, args.domain)};
      pager_match_prompt(pager, &args, &match); /* looks without using */
      assert_int_equal(match.n_hit, 48 + 16 * (n_left < 3 ? n_left : 3));
    }
  }
  kit_close(pager);
}

static void pinned_blocks_stay(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[64]){0}, 64, 0, 1);
  weft_pager *pager = kit_open(8, 3, 1, (kit_group[]){{16, 0}});
  kit_run(pager, a, 64);
  kit_result r = kit_admit(pager, a, 50, 0); /* 48 of 64 */
  assert_int_equal(weft_pager_headroom(pager), 5);
  weft_seq held = kit_hold(pager, 5 * 16);
  assert_int_equal(weft_pager_reserve(pager, r.seq, 1, 1), WEFT_NO_BLOCKS);
  assert_int_equal(weft_pager_get_stats(pager).n_evicted, 1);
  weft_pager_release(pager, held);
  weft_pager_release(pager, r.seq);
  assert_int_equal(kit_hit(pager, a, 64), 48);
  kit_close(pager);
}

/* What a window passed over, and no boundary needs, goes before anything older that is worth
 * keeping. */
static void cold_goes_before_warm(void **state) {
  (void)state;
  const int32_t *old = kit_tokens((int32_t[64]){0}, 64, 0, 1);
  const int32_t *a = kit_tokens((int32_t[256]){0}, 256, 0, 2);
  weft_journal_event event[64];
  weft_pager *pager = kit_open(64, 2, 2, (kit_group[]){{16, 0}, {16, 32}});
  kit_run(pager, old, 64);
  kit_result r = kit_begin(pager, a, 256); /* 16 global, 16 windowed blocks of which 2 or 3 are held */
  uint64_t next = 0;
  (void)removed(pager, &next, event, 64);
  uint32_t n_cold = 0;
  for (weft_page page = 0; page < 64; page++)
    n_cold += pager->page[page].state == PAGER_CACHED && !pager->page[page].keep && pager->page[page].group == 1;
  assert_true(n_cold >= 12);
  for (uint32_t i = 0; i < n_cold; i++) assert_true(pager_evict_one(pager));
  assert_int_equal(removed(pager, &next, event, 64), n_cold);
  for (uint32_t i = 0; i < n_cold; i++) assert_int_equal(event[i].group, 1);
  assert_int_equal(kit_hit(pager, old, 64), 64);
  weft_pager_release(pager, r.seq);
  assert_int_equal(kit_hit(pager, a, 256), 256);
  kit_close(pager);
}

/* ---- worth ----------------------------------------------------------------------------------- */

/* A hit of the given model, without using it. */
static uint32_t look(weft_pager *pager, uint32_t model, const int32_t *tokens, uint32_t n) {
  weft_admit args = {.model = model, .domain = {1, 2}, .tokens = tokens, .n_tokens = n};
  pager_match match = {.root = pager_root_find(pager, PAGER_NODE_NONE, model, args.domain)};
  if (match.root == PAGER_NODE_NONE) return 0;
  pager_match_prompt(pager, &args, &match);
  return match.n_hit;
}

static void run_in(weft_pager *pager, uint32_t model, uint32_t retention, const int32_t *tokens, uint32_t n) {
  kit_result r = kit_try(
      pager,
      (weft_admit){
          .model = model, .domain = {1, 2}, .tokens = tokens, .n_tokens = n, .n_prompt = n, .retention = retention});
  assert_int_equal(r.status, WEFT_OK);
  kit_compute(pager, r.seq, tokens + r.n_cached, n - r.n_cached);
  weft_pager_release(pager, r.seq);
  kit_check(pager);
}

/* How many times the rest of the pool must be filled with other prompts of one block until nothing
 * is left of a prompt of four. Sixteen pages. */
static uint32_t turnovers_until_gone(weft_pager *pager, uint32_t model, const int32_t *tokens) {
  int32_t other[16];
  for (uint32_t n_runs = 0;; n_runs++) {
    assert_true(n_runs < 2000);
    if (look(pager, model, tokens, 64) == 0) return n_runs / 12;
    run_in(pager, 0, 0, kit_tokens(other, 16, 0, 100 + (int32_t)n_runs), 16);
  }
}

/* Each class of retention is kept twice as long as the one below, and none for ever. */
static void retention_is_a_matter_of_time(void **state) {
  (void)state;
  const int32_t *tokens = kit_tokens((int32_t[64]){0}, 64, 0, 1);
  for (uint32_t retention = 0; retention <= WEFT_RETENTION_MAX; retention++) {
    weft_pager *pager = kit_open(16, 2, 1, (kit_group[]){{16, 0}});
    run_in(pager, 0, retention, tokens, 64);
    uint32_t n = turnovers_until_gone(pager, 0, tokens), worth = 1u << retention;
    assert_in_range(n, worth == 1 ? 1 : worth - 1, worth + 1);
    kit_close(pager);
  }
  weft_pager *pager = kit_open(16, 2, 1, (kit_group[]){{16, 0}});
  weft_admit beyond = {.tokens = tokens, .n_tokens = 64, .retention = WEFT_RETENTION_MAX + 1};
  assert_int_equal(kit_try(pager, beyond).status, WEFT_E_INVALID);
  kit_close(pager);
}

static weft_pager *open_costs(uint32_t n_pages, uint32_t doubles, uint32_t other_doubles) {
  weft_pager_model model[2] = {{.n_groups = 1, .group = {{16, 0}}, .cost_doubles = doubles},
                               {.n_groups = 1, .group = {{16, 0}}, .cost_doubles = other_doubles}};
  return kit_open_config((weft_pager_config){.n_pages = n_pages, .n_seqs = 2, .n_models = 2, .model = model});
}

/* What costs more to compute again is kept longer: another model's tokens, or tokens further on. */
static void cost_is_worth(void **state) {
  (void)state;
  int32_t tokens[256], other[64];
  kit_tokens(tokens, 256, 0, 1);
  for (uint32_t log = 0; log < 6; log++) { /* the last of 64 tokens costs 1 << log, or a little more */
    weft_pager *pager = open_costs(16, 0, log == 0 ? 0 : 64 / ((1u << log) - 1));
    run_in(pager, 1, 0, tokens, 64);
    uint32_t n = turnovers_until_gone(pager, 1, tokens), worth = 1u << (log < 3 ? log : 3);
    assert_in_range(n, worth == 1 ? 1 : worth - 1, worth + 1);
    kit_close(pager);
  }
  weft_pager *pager = open_costs(20, 128, 0);
  run_in(pager, 0, 0, tokens, 256); /* three times as much at its end */
  run_in(pager, 0, 0, kit_tokens(other, 64, 0, 2), 64);
  for (uint32_t i = 0; i < 4; i++) assert_true(pager_evict_one(pager));
  assert_int_equal(look(pager, 0, other, 64), 0); /* younger, and gone first */
  assert_int_equal(look(pager, 0, tokens, 256), 256);
  kit_close(pager);
}

/* Whatever is worth more and whoever used it last: a chain never loses its head before its tail. */
static void tails_go_first_whatever_they_are_worth(void **state) {
  (void)state;
  int32_t tokens[256];
  weft_pager *pager = kit_open(64, 2, 1, (kit_group[]){{16, 0}});
  run_in(pager, 0, 3, kit_tokens(tokens, 256, 96, 1), 256);
  run_in(pager, 0, 0, kit_tokens(tokens, 256, 96, 2), 128); /* the head is worth little to it */
  run_in(pager, 0, 1, kit_tokens(tokens, 256, 48, 3), 160);
  while (pager_evict_one(pager)) {
    kit_check(pager);
    uint32_t n_nodes = 0;
    for (int32_t seed = 1; seed <= 3; seed++) {
      uint32_t own = seed == 3 ? 48 : 96, n = seed == 1 ? 256 : seed == 2 ? 128 : 160;
      kit_tokens(tokens, 256, own, seed);
      uint32_t hit = look(pager, 0, tokens, n);
      n_nodes += hit > own ? (hit - own) / 16 : 0;
      if (seed == 1) n_nodes += (hit < own ? hit : own) / 16;
    }
    assert_int_equal(n_nodes, weft_pager_get_stats(pager).n_cached); /* all can be reached */
  }
  kit_close(pager);
}

/* With windows, too, eviction shortens the hit from its end: the end of the prompt can be served
 * until all that follows it is gone. */
static void boundaries_go_from_the_end(void **state) {
  (void)state;
  const int32_t *tokens = kit_tokens((int32_t[320]){0}, 320, 0, 1);
  weft_pager *pager = kit_open(128, 2, 2, (kit_group[]){{16, 0}, {16, 50}});
  kit_result r = kit_begin(pager, tokens, 160);
  for (uint32_t at = 160; at < 320; at += 16) kit_compute(pager, r.seq, tokens + at, 16);
  weft_pager_release(pager, r.seq);
  kit_drain_cold(pager);
  uint32_t n_after = 10 + 4; /* blocks after the prompt: all global ones, and the last window */
  assert_int_equal(look(pager, 0, tokens, 320), 320);
  for (uint32_t i = 0; i < n_after; i++) {
    assert_true(pager_evict_one(pager));
    kit_check(pager);
    assert_int_equal(look(pager, 0, tokens, 320), 160);
  }
  assert_true(pager_evict_one(pager));
  assert_int_equal(look(pager, 0, tokens, 320), 144); /* for the same prompt again */
  kit_close(pager);
}

/* ---- one pool for all ------------------------------------------------------------------------ */

/* An autoregressive model and one for diffusion, whose tokens cost more; other blocks, other windows. */
static weft_pager *open_two_models(uint32_t n_pages) {
  weft_pager_model model[2] = {
      {.n_groups = 2, .group = {{32, 0}, {16, 64}}},
      {.fingerprint = {7, 7}, .n_groups = 3, .group = {{64, 0}, {16, 48}, {16, 48}}, .cost_doubles = 40}};
  return kit_open_config((weft_pager_config){.n_pages = n_pages, .n_seqs = 8, .n_models = 2, .model = model});
}

/* Sequences of 512 tokens of one model until the pool refuses; all are let go. How many fitted. */
static uint32_t fill_model(weft_pager *pager, uint32_t model, int32_t seed) {
  int32_t tokens[512];
  weft_seq seq[8];
  uint32_t n = 0;
  for (weft_status status = WEFT_OK; n < 8; n++) {
    kit_tokens(tokens, 512, 0, seed + (int32_t)n);
    weft_admit args = {.model = model, .domain = {1, 2}, .tokens = tokens, .n_tokens = 512, .n_prompt = 512};
    kit_result r = kit_try(pager, args);
    assert_int_equal(r.status, WEFT_OK);
    seq[n] = r.seq;
    for (uint32_t at = r.n_cached; at < 512 && status == WEFT_OK; at += 32) {
      status = weft_pager_reserve(pager, seq[n], 32, 32);
      if (status == WEFT_OK) weft_pager_commit(pager, seq[n], tokens + at, 32);
    }
    if (status == WEFT_OK) continue;
    assert_int_equal(status, WEFT_NO_BLOCKS);
    weft_pager_release(pager, seq[n]);
    break;
  }
  assert_true(n > 0 && n < 8);
  kit_check(pager);
  for (uint32_t i = 0; i < n; i++) weft_pager_release(pager, seq[i]);
  kit_check(pager);
  return n;
}

/* Each model can have the whole pool while the other is idle, whatever the other left in it, and
 * again and again. */
static void spaces_share_the_pool(void **state) {
  (void)state;
  for (uint32_t n_pages = 60; n_pages <= 100; n_pages += 20) {
    uint32_t alone[2];
    for (uint32_t model = 0; model < 2; model++) {
      weft_pager *pager = open_two_models(n_pages);
      alone[model] = fill_model(pager, model, 1);
      kit_close(pager);
    }
    weft_pager *pager = open_two_models(n_pages);
    for (int32_t round = 0; round < 6; round++)
      assert_int_equal(fill_model(pager, round % 2, 100 * round), alone[round % 2]);
    assert_int_equal(weft_pager_headroom(pager), n_pages);
    kit_close(pager);
  }
}

/* What one model left behind goes for the other by cost: what is dear to compute is kept longer. */
static void another_space_is_evicted_by_cost(void **state) {
  (void)state;
  int32_t cheap[128], dear[128], more[128];
  kit_tokens(cheap, 128, 0, 1);
  kit_tokens(dear, 128, 0, 2);
  weft_pager *pager = open_two_models(64);
  run_in(pager, 1, 0, dear, 128);
  run_in(pager, 0, 0, cheap, 128);
  for (int32_t seed = 3; seed < 12; seed++) run_in(pager, 0, 0, kit_tokens(more, 128, 0, seed), 128);
  assert_int_equal(look(pager, 0, cheap, 128), 0);
  assert_int_equal(look(pager, 1, dear, 128), 128);
  for (int32_t seed = 12; seed < 50; seed++) run_in(pager, 0, 0, kit_tokens(more, 128, 0, seed), 128);
  assert_int_equal(look(pager, 1, dear, 128), 0);
  kit_close(pager);
}

/* A model of windows alone has more nodes than pages, since a chain keeps its nodes while it runs: there are
 * enough for all sequences at their longest, so each goes on publishing to its end. */
static void windows_alone_have_nodes_enough(void **state) {
  (void)state;
  int32_t tokens[KIT_TOKENS_MAX];
  weft_pager *pager = kit_open(24, 4, 1, (kit_group[]){{8, 32}});
  for (int32_t round = 0; round < 8; round++) {
    weft_seq seq[4];
    for (int32_t i = 0; i < 4; i++) {
      kit_tokens(tokens, KIT_TOKENS_MAX, 0, 10 * round + i);
      kit_result r = kit_admit(pager, tokens, 8, 1);
      assert_int_equal(r.status, WEFT_OK);
      seq[i] = r.seq;
    }
    for (uint32_t at = 0; at < KIT_TOKENS_MAX; at += 8) {
      for (int32_t i = 0; i < 4; i++) {
        kit_tokens(tokens, KIT_TOKENS_MAX, 0, 10 * round + i);
        kit_compute(pager, seq[i], tokens + at, 8);
        assert_int_not_equal(pager->seq[seq[i]].tail, PAGER_NODE_NONE);
      }
    }
    kit_check(pager);
    for (uint32_t i = 0; i < 4; i++) weft_pager_release(pager, seq[i]);
    assert_int_equal(kit_hit(pager, tokens, KIT_TOKENS_MAX), KIT_TOKENS_MAX);
  }
  kit_close(pager);
}

/* ---- reset ------------------------------------------------------------------------------------ */

static void reset_while_running_is_complete(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[100]){0}, 100, 0, 1);
  const int32_t *b = kit_tokens((int32_t[100]){0}, 100, 0, 2);
  weft_pager *pager = kit_open(64, 4, 2, (kit_group[]){{16, 0}, {16, 40}});
  kit_run(pager, b, 100);
  kit_result r = kit_begin(pager, a, 60);
  weft_page mine = kit_page(pager, r.seq, 0, 1);
  weft_pager_reset_cache(pager);
  kit_check(pager);
  weft_pager_stats stats = weft_pager_get_stats(pager);
  assert_int_equal(stats.n_cached, 0);
  assert_int_equal(stats.n_pinned, weft_pager_n_pages_held(pager, r.seq));
  assert_int_equal(kit_page(pager, r.seq, 0, 1), mine); /* it keeps its blocks */
  assert_int_equal(kit_hit(pager, a, 100), 0);          /* which nobody finds */
  assert_int_equal(kit_hit(pager, b, 100), 0);
  uint64_t n_published = weft_pager_get_stats(pager).n_published;
  kit_compute(pager, r.seq, a + 60, 40); /* and goes on, publishing nothing */
  weft_pager_mark(pager, r.seq);
  kit_check(pager);
  assert_int_equal(weft_pager_get_stats(pager).n_published, n_published);
  weft_seq fork;
  assert_int_equal(weft_pager_fork(pager, r.seq, weft_pager_n_valid(pager, r.seq), &fork), WEFT_OK);
  weft_pager_release(pager, r.seq);
  kit_compute(pager, fork, a, 5);
  weft_pager_release(pager, fork);
  assert_int_equal(weft_pager_get_stats(pager).n_free, 64);
  assert_int_equal(kit_run(pager, a, 100), 0); /* and life goes on */
  assert_int_equal(kit_run(pager, a, 100), 96);
  kit_close(pager);
}

/* ---- journal ---------------------------------------------------------------------------------- */

static uint32_t read_all(const weft_pager *pager, uint64_t next, weft_journal_event *out, uint32_t max) {
  uint64_t n_missed;
  uint32_t n = weft_pager_journal_read(pager, &next, out, max, &n_missed);
  assert_int_equal(n_missed, 0);
  return n;
}

static void journal_names_the_chain(void **state) {
  (void)state;
  const int32_t *tokens = kit_tokens((int32_t[64]){0}, 64, 0, 1);
  weft_journal_event first[16], second[16];
  for (uint32_t round = 0; round < 2; round++) { /* another process gives the same names */
    weft_pager *pager = kit_open(32, 2, 2, (kit_group[]){{16, 0}, {32, 0}});
    kit_run(pager, tokens, 64);
    weft_journal_event *event = round == 0 ? first : second;
    assert_int_equal(read_all(pager, 0, event, 16), 6);
    uint32_t position[2] = {0, 0};
    for (uint32_t i = 0; i < 6; i++) {
      uint32_t g = event[i].group, size = g == 0 ? 16 : 32;
      assert_int_equal(event[i].number, i);
      assert_int_equal(event[i].kind, WEFT_JOURNAL_STORED);
      assert_int_equal(event[i].model, 0);
      assert_int_equal(event[i].n_tokens, size);
      assert_int_equal(event[i].first_position, position[g]);
      position[g] += size;
      for (uint32_t j = 0; j < 6; j++) { /* who ends where another begins names it as its parent */
        bool follows = event[j].first_position == event[i].first_position + size;
        bool equal = event[j].parent.low == event[i].hash.low && event[j].parent.high == event[i].hash.high;
        assert_int_equal(follows, equal);
      }
    }
    kit_close(pager);
  }
  assert_memory_equal(first, second, 6 * sizeof first[0]);
}

static void journal_tells_what_was_missed(void **state) {
  (void)state;
  const int32_t *tokens = kit_tokens((int32_t[160]){0}, 160, 0, 1);
  weft_pager_model model = {.n_groups = 1, .group = {{16, 0}}};
  weft_pager *pager =
      kit_open_config((weft_pager_config){.n_pages = 16, .n_seqs = 2, .model = &model, .journal_capacity = 4});
  weft_journal_event event[16];
  uint64_t next = 0, n_missed = 9;
  assert_int_equal(weft_pager_journal_read(pager, &next, event, 16, &n_missed), 0);
  assert_int_equal(n_missed, 0);
  kit_result r = kit_begin(pager, tokens, 64);
  assert_int_equal(weft_pager_journal_read(pager, &next, event, 3, &n_missed), 3);
  assert_int_equal(next, 3);
  assert_int_equal(n_missed, 0);
  kit_compute(pager, r.seq, tokens + 64, 96); /* events 4 to 9: 6 to 9 are left */
  assert_int_equal(weft_pager_journal_read(pager, &next, event, 16, &n_missed), 4);
  assert_int_equal(n_missed, 3);
  assert_int_equal(event[0].number, 6);
  assert_int_equal(event[3].number, 9);
  assert_int_equal(next, 10);
  weft_pager_reset_cache(pager);
  assert_int_equal(weft_pager_journal_read(pager, &next, event, 16, &n_missed), 1);
  assert_int_equal(event[0].kind, WEFT_JOURNAL_CLEARED);
  kit_end(pager, r.seq);
}

/* A hit ends only where all groups end a block. What a window holds behind the last such place is of no use to anybody,
 * and goes before older content that is. */
static void window_blocks_that_no_hit_can_use_go_first(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[64]){0}, 64, 0, 1);
  const int32_t *b = kit_tokens((int32_t[48]){0}, 48, 0, 2);
  weft_pager *pager = kit_open(32, 2, 2, (kit_group[]){{16, 40}, {32, 0}});
  weft_journal_event event[2];
  kit_run(pager, a, 64);
  kit_run(pager, b, 48); /* a hit can end at 32: the window needs [0, 32) */
  uint64_t next = weft_pager_get_stats(pager).n_published;
  assert_true(pager_evict_one(pager));
  assert_int_equal(removed(pager, &next, event, 1), 1);
  assert_int_equal(event[0].group, 0);
  assert_int_equal(event[0].first_position, 32);
  assert_int_equal(event[0].n_tokens, 16);
  kit_check(pager);
  assert_int_equal(kit_hit(pager, a, 64), 64);
  assert_int_equal(kit_hit(pager, b, 48), 32);
  kit_close(pager);
}

/* The pages of two prompts, the first let go before the second; then something that must not change that. */
typedef enum trial { TRY_FOR_ROOM, TRY_FOR_ALL, TRY_FOR_LIMIT, FORK_IN_VAIN, N_TRIALS } trial;

static void try_in_vain(weft_pager *pager, trial what, const int32_t *a, uint32_t n, weft_seq trunk) {
  weft_admit args = {.domain = {1, 2}, .tokens = a, .n_tokens = n, .n_prompt = n};
  weft_status expected = WEFT_NO_BLOCKS;
  weft_seq seq;
  switch (what) {
    case TRY_FOR_ROOM:
      args.room_pages = n / 16, args.room_margin = weft_pager_headroom(pager);
      break;
    case TRY_FOR_ALL:
      args.n_cached_least = n, expected = WEFT_E_NOT_FOUND;
      break;
    case TRY_FOR_LIMIT:
      args.room_pages = n / 16, args.room_in_limit = true, expected = WEFT_QUOTA;
      break;
    case FORK_IN_VAIN:
    case N_TRIALS:
      assert_int_equal(weft_pager_fork(pager, trunk, weft_pager_n_valid(pager, trunk), &seq), WEFT_OK);
      weft_pager_release(pager, seq);
      return;
  }
  weft_pager_set_owner_limit(pager, 0, what == TRY_FOR_LIMIT ? n / 16 - 1 : 0);
  assert_int_equal(kit_try(pager, args).status, expected);
  weft_pager_set_owner_limit(pager, 0, 0);
}

static void what_is_tried_in_vain_ages_all_the_same(void **state) {
  (void)state;
  const int32_t *a = kit_tokens((int32_t[160]){0}, 160, 0, 1);
  const int32_t *b = kit_tokens((int32_t[48]){0}, 48, 0, 2);
  for (trial what = 0; what < N_TRIALS; what++) {
    weft_pager *pager = kit_open(24, 3, 1, (kit_group[]){{16, what == FORK_IN_VAIN ? 20 : 0}});
    weft_seq trunk = WEFT_SEQ_NONE;
    kit_run(pager, a, 48);
    if (what == FORK_IN_VAIN) { /* the windows that it passes stay cached for a hit at 48 */
      trunk = kit_begin(pager, a, 112).seq;
      weft_pager_mark(pager, trunk);
    }
    kit_run(pager, b, 48);
    for (uint32_t i = 0; i < 40; i++) try_in_vain(pager, what, a, 160, trunk);
    kit_check(pager);
    uint32_t head = pager->n_pages + PAGER_WARM, n_first = 0, n_second = 0;
    for (weft_page page = pager->page[head].next; page != head; page = pager->page[page].next) {
      uint32_t end = pager->node[pager->page[page].node].depth * 16;
      bool is_second = end <= 48 && memcmp(pager_tokens(pager, pager->page[page].node), b + end - 16, 64) == 0;
      if (n_second > 0 && !is_second) fail_msg("trial %u: a page of the first prompt is younger", (uint32_t)what);
      *(is_second ? &n_second : &n_first) += 1;
    }
    assert_int_equal(n_second, 3);
    assert_in_range(n_first, 3, 4);
    if (trunk != WEFT_SEQ_NONE) weft_pager_release(pager, trunk);
    kit_close(pager);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tails_go_before_heads),
      cmocka_unit_test(least_recently_used_goes_first),
      cmocka_unit_test(shared_head_outlives_its_tails),
      cmocka_unit_test(pinned_blocks_stay),
      cmocka_unit_test(cold_goes_before_warm),
      cmocka_unit_test(retention_is_a_matter_of_time),
      cmocka_unit_test(cost_is_worth),
      cmocka_unit_test(tails_go_first_whatever_they_are_worth),
      cmocka_unit_test(boundaries_go_from_the_end),
      cmocka_unit_test(spaces_share_the_pool),
      cmocka_unit_test(another_space_is_evicted_by_cost),
      cmocka_unit_test(windows_alone_have_nodes_enough),
      cmocka_unit_test(reset_while_running_is_complete),
      cmocka_unit_test(window_blocks_that_no_hit_can_use_go_first),
      cmocka_unit_test(what_is_tried_in_vain_ages_all_the_same),
      cmocka_unit_test(journal_names_the_chain),
      cmocka_unit_test(journal_tells_what_was_missed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
