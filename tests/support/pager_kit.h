/* SPDX-License-Identifier: MIT */
/* What the unit tests of the pager share: a pager from a few numbers, prompts that begin alike, and
 * one call that computes rows. Include after cmocka.h. */
#ifndef WEFT_TESTS_PAGER_KIT_H
#define WEFT_TESTS_PAGER_KIT_H

#include <string.h>

#include "pager/pager_internal.h"

enum { KIT_TOKENS_MAX = 1024 };

typedef struct kit_group {
  uint32_t block_tokens, window;
} kit_group;

/* One model and KIT_TOKENS_MAX where the configuration says nothing else. */
static inline weft_pager *kit_open_config(weft_pager_config config) {
  weft_pager *pager = NULL;
  weft_error error = {{0}};
  if (config.n_models == 0) config.n_models = 1;
  if (config.seq_tokens_max == 0) config.seq_tokens_max = KIT_TOKENS_MAX;
  if (weft_pager_open(&config, &pager, &error) != WEFT_OK) fail_msg("%s", error.text);
  return pager;
}

static inline weft_pager *kit_open_spaces(uint32_t n_pages, uint32_t n_seqs, uint32_t n_models, uint32_t n_groups,
                                          const kit_group *groups) {
  weft_pager_model model[2] = {{.n_groups = n_groups}, {.n_groups = n_groups}};
  for (uint32_t g = 0; g < n_groups; g++)
    model[0].group[g] = model[1].group[g] =
        (weft_layer_group){.block_tokens = groups[g].block_tokens, .window = groups[g].window};
  return kit_open_config((weft_pager_config){
      .n_pages = n_pages, .n_seqs = n_seqs, .n_models = n_models, .model = model, .journal_capacity = 1024});
}

static inline weft_pager *kit_open(uint32_t n_pages, uint32_t n_seqs, uint32_t n_groups, const kit_group *groups) {
  return kit_open_spaces(n_pages, n_seqs, 1, n_groups, groups);
}

static inline void kit_check(const weft_pager *pager) {
  weft_error error;
  if (!weft_pager_check(pager, &error)) fail_msg("%s", error.text);
}

/* Nothing that the pager counts has changed since. */
static inline void kit_unchanged(const weft_pager *pager, weft_pager_stats before) {
  weft_pager_stats after = weft_pager_get_stats(pager);
  assert_memory_equal(&before, &after, sizeof before);
}

/* Every test ends here: all laws hold, nothing is held, everything can become free. */
static inline void kit_close(weft_pager *pager) {
  kit_check(pager);
  weft_pager_stats stats = weft_pager_get_stats(pager);
  assert_int_equal(stats.n_seqs, 0);
  assert_int_equal(stats.n_pinned, 0);
  weft_pager_reset_cache(pager);
  assert_int_equal(weft_pager_get_stats(pager).n_free, stats.n_pages);
  kit_check(pager);
  weft_pager_close(pager);
}

/* The last sequence ends, and with it the test. */
static inline void kit_end(weft_pager *pager, weft_seq last) {
  weft_pager_release(pager, last);
  kit_close(pager);
}

/* n tokens; those from `own` on differ with the seed. */
static inline const int32_t *kit_tokens(int32_t *out, uint32_t n, uint32_t own, int32_t seed) {
  for (uint32_t i = 0; i < n; i++) out[i] = (int32_t)i * 7 + (i < own ? 0 : 100000 * seed);
  return out;
}

typedef struct kit_result {
  weft_status status;
  weft_seq seq, waits_for;
  uint32_t n_cached;
} kit_result;

static inline kit_result kit_try(weft_pager *pager, weft_admit args) {
  kit_result r = {.seq = WEFT_SEQ_NONE, .waits_for = WEFT_SEQ_NONE, .n_cached = 77};
  r.status = weft_pager_admit(pager, &args, &r.seq, &r.n_cached, &r.waits_for);
  return r;
}

/* The same, and what was admitted is counted as a request that began. */
static inline kit_result kit_enter(weft_pager *pager, weft_admit args) {
  kit_result r = kit_try(pager, args);
  if (r.status == WEFT_OK) weft_pager_enter(pager, r.seq, false);
  return r;
}

static inline kit_result kit_admit(weft_pager *pager, const int32_t *tokens, uint32_t n, uint32_t n_keep_rows) {
  return kit_enter(
      pager,
      (weft_admit){.domain = {1, 2}, .tokens = tokens, .n_tokens = n, .n_prompt = n, .n_keep_rows = n_keep_rows});
}

/* It was admitted, and so much of it was cached. */
static inline void kit_is_cached(kit_result r, uint32_t n_cached) {
  assert_int_equal(r.status, WEFT_OK);
  assert_int_equal(r.n_cached, n_cached);
}

/* It waits for another sequence. */
static inline void kit_waits(kit_result r, weft_seq leader) {
  assert_int_equal(r.status, WEFT_AGAIN);
  assert_int_equal(r.waits_for, leader);
}

static inline void kit_compute(weft_pager *pager, weft_seq seq, const int32_t *tokens, uint32_t n) {
  assert_int_equal(weft_pager_reserve(pager, seq, n, n), WEFT_OK);
  weft_pager_commit(pager, seq, tokens, n);
}

/* Admits a prompt that must be admissible and computes what is not cached. */
static inline kit_result kit_begin(weft_pager *pager, const int32_t *tokens, uint32_t n) {
  kit_result r = kit_admit(pager, tokens, n, 0);
  assert_int_equal(r.status, WEFT_OK);
  kit_compute(pager, r.seq, tokens + r.n_cached, n - r.n_cached);
  return r;
}

/* The same, and ends it. Returns how much was cached. */
static inline uint32_t kit_run(weft_pager *pager, const int32_t *tokens, uint32_t n) {
  kit_result r = kit_begin(pager, tokens, n);
  weft_pager_release(pager, r.seq);
  return r.n_cached;
}

/* How long a hit would be; leaves the order of eviction as after a use. */
static inline uint32_t kit_hit(weft_pager *pager, const int32_t *tokens, uint32_t n) {
  kit_result r = kit_admit(pager, tokens, n, 0);
  assert_int_equal(r.status, WEFT_OK);
  weft_pager_release(pager, r.seq);
  return r.n_cached;
}

/* Holds n_pages pages of a pager with one group, for pressure; the caller releases. */
static inline weft_seq kit_hold(weft_pager *pager, uint32_t n_tokens) {
  kit_result r = kit_try(pager, (weft_admit){.tokens = (const int32_t[]){5}, .n_tokens = 1, .no_cache = true});
  assert_int_equal(r.status, WEFT_OK);
  assert_int_equal(weft_pager_reserve(pager, r.seq, n_tokens, n_tokens), WEFT_OK);
  return r.seq;
}

/* Evicts all COLD blocks: what is left is what a boundary keeps. */
static inline void kit_drain_cold(weft_pager *pager) {
  for (uint32_t head = pager->n_pages + PAGER_COLD; pager->page[head].next != head;)
    assert_true(pager_evict_one(pager));
}

static inline weft_page kit_page(const weft_pager *pager, weft_seq seq, uint32_t group, uint32_t block) {
  uint32_t n;
  const weft_page *table = weft_pager_table(pager, seq, group, &n);
  assert_true(block < n);
  return table[block];
}

#endif
