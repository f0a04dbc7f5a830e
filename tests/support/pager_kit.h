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

static inline weft_pager *kit_open_spaces(uint32_t n_pages, uint32_t n_seqs, uint32_t n_models, uint32_t n_groups,
                                          const kit_group *groups) {
  weft_pager_model model[2] = {{.n_groups = n_groups}, {.n_groups = n_groups}};
  for (uint32_t g = 0; g < n_groups; g++)
    model[0].group[g] = model[1].group[g] =
        (weft_layer_group){.block_tokens = groups[g].block_tokens, .window = groups[g].window};
  weft_pager_config config = {.n_pages = n_pages,
                              .n_seqs = n_seqs,
                              .seq_tokens_max = KIT_TOKENS_MAX,
                              .n_models = n_models,
                              .model = model,
                              .journal_capacity = 1024};
  weft_pager *pager = NULL;
  weft_error error;
  assert_int_equal(weft_pager_open(&config, &pager, &error), WEFT_OK);
  return pager;
}

static inline weft_pager *kit_open(uint32_t n_pages, uint32_t n_seqs, uint32_t n_groups, const kit_group *groups) {
  return kit_open_spaces(n_pages, n_seqs, 1, n_groups, groups);
}

static inline void kit_check(const weft_pager *pager) {
  weft_error error;
  if (!weft_pager_check(pager, &error)) fail_msg("%s", error.text);
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

static inline kit_result kit_admit(weft_pager *pager, const int32_t *tokens, uint32_t n, uint32_t n_keep_rows) {
  weft_admit args = {.domain = {1, 2}, .tokens = tokens, .n_tokens = n, .n_prompt = n, .n_keep_rows = n_keep_rows};
  kit_result r = {.seq = WEFT_SEQ_NONE, .waits_for = WEFT_SEQ_NONE, .n_cached = 77};
  r.status = weft_pager_admit(pager, &args, &r.seq, &r.n_cached, &r.waits_for);
  if (r.status == WEFT_OK) weft_pager_enter(pager, r.seq, false);
  return r;
}

static inline void kit_compute(weft_pager *pager, weft_seq seq, const int32_t *tokens, uint32_t n) {
  assert_int_equal(weft_pager_reserve(pager, seq, n), WEFT_OK);
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
  int32_t token = 5;
  weft_admit args = {.tokens = &token, .n_tokens = 1, .no_cache = true};
  weft_seq seq = WEFT_SEQ_NONE, waits_for;
  uint32_t n_cached;
  assert_int_equal(weft_pager_admit(pager, &args, &seq, &n_cached, &waits_for), WEFT_OK);
  assert_int_equal(weft_pager_reserve(pager, seq, n_tokens), WEFT_OK);
  return seq;
}

static inline weft_page kit_page(const weft_pager *pager, weft_seq seq, uint32_t group, uint32_t block) {
  uint32_t n;
  const weft_page *table = weft_pager_table(pager, seq, group, &n);
  assert_true(block < n);
  return table[block];
}

#endif
