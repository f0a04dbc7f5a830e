/* SPDX-License-Identifier: MIT */
/* The hash of the prefix index is seeded with a secret: who knows the hash function alone cannot choose tokens that
 * crowd the lines which others search. The seed changes where nodes lie in the index and nothing else: no hit, no
 * page, no copy and no event of the journal depends on it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/random.h"
#include "tests/support/pager_kit.h"

/* ---- an attack on the index ------------------------------------------------------------------ */

enum { BLOCK = 16, N_PAGES = 32768, N_CRAFTED = 16000, N_VICTIM = 8192, AIMED_PART = 100 };

static weft_pager *open_big(void) {
  weft_pager_model model = {.fingerprint = {7, 7}, .n_groups = 1, .group = {{.block_tokens = BLOCK}}};
  weft_pager_config config = {
      .n_pages = N_PAGES, .n_seqs = 2, .seq_tokens_max = N_VICTIM, .n_models = 1, .model = &model};
  weft_pager *pager = NULL;
  weft_error error;
  assert_int_equal(weft_pager_open(&config, &pager, &error), WEFT_OK);
  return pager;
}

/* The line of a block behind the root of a domain, as XXH3 without a seed gives it: the attacker knows the code, the
 * fingerprint of the weights and the own domain. */
static uint32_t known_line(const weft_pager *pager, const XXH128_hash_t *root, const int32_t *block) {
  unsigned char bytes[12 + 4 * BLOCK];
  memcpy(bytes, &root->low64, 8);
  memcpy(bytes + 8, &root->high64, 4);
  memcpy(bytes + 12, block, sizeof bytes - 12);
  return (uint32_t)(((XXH3_128bits(bytes, sizeof bytes).low64 >> 32) * pager->n_lines) >> 32);
}

static weft_admit prompt_of(uint64_t domain, const int32_t *tokens, uint32_t n_tokens) {
  return (weft_admit){.domain = {domain, domain}, .tokens = tokens, .n_tokens = n_tokens, .n_prompt = n_tokens};
}

/* Prompts of one block each, which stay cached: random tokens, or such as the known hash puts into the first lines. */
static void fill_index(weft_pager *pager, bool crafted) {
  uint64_t key[4] = {7, 7, 666, 666}, draws = 1;
  XXH128_hash_t root = XXH3_128bits(key, sizeof key);
  for (uint32_t i = 0; i < N_CRAFTED; i++) {
    int32_t block[BLOCK];
    do {
      for (uint32_t k = 0; k < BLOCK; k++) block[k] = (int32_t)(weft_mix64(draws++) % 262144);
    } while (crafted && known_line(pager, &root, block) >= pager->n_lines / AIMED_PART);
    weft_admit args = prompt_of(666, block, BLOCK);
    weft_seq seq, waits_for;
    uint32_t n_cached;
    assert_int_equal(weft_pager_admit(pager, &args, &seq, &n_cached, &waits_for), WEFT_OK);
    kit_compute(pager, seq, block, BLOCK);
    weft_pager_release(pager, seq);
  }
}

/* Lines that a search for the hash reads until it knows that the block is not there, as pager_node_find does. */
static uint32_t lines_of_search(const weft_pager *pager, pager_hash hash) {
  uint32_t at = (uint32_t)(((hash.low >> 32) * pager->n_lines) >> 32), n = 1;
  for (; pager->line[(uint64_t)at * PAGER_LINE_WORDS + PAGER_LINE_ENTRIES] != 0; n++)
    at = at + 1 == pager->n_lines ? 0 : at + 1;
  return n;
}

/* What another tenant's prompt of 8192 random tokens reads of the index, in lines. */
static uint32_t lines_of_victim(bool crafted) {
  static int32_t tokens[N_VICTIM];
  weft_pager *pager = open_big();
  fill_index(pager, crafted);
  for (uint32_t i = 0; i < N_VICTIM; i++) tokens[i] = (int32_t)(weft_mix64(~(uint64_t)i) % 262144);
  weft_admit args = prompt_of(1, tokens, N_VICTIM);
  weft_seq seq, waits_for;
  uint32_t n_cached, n_lines = 0;
  assert_int_equal(weft_pager_admit(pager, &args, &seq, &n_cached, &waits_for), WEFT_OK);
  pager_hash hash = pager_hash_of(pager, pager->seq[seq].tail);
  for (uint32_t at = 0; at < N_VICTIM; at += BLOCK) {
    hash = pager_hash_next(pager, hash, tokens + at);
    n_lines += lines_of_search(pager, hash);
  }
  kit_end(pager, seq);
  return n_lines;
}

static void crafted_tokens_cost_what_random_ones_cost(void **state) {
  (void)state;
  uint32_t random = lines_of_victim(false), crafted = lines_of_victim(true);
  print_message("lines read for a prompt of %d tokens: %u beside random content, %u beside crafted content\n", N_VICTIM,
                random, crafted);
  assert_in_range(random, N_VICTIM / BLOCK, 2 * N_VICTIM / BLOCK);
  assert_in_range(crafted, N_VICTIM / BLOCK, 2 * N_VICTIM / BLOCK);
}

/* ---- what does not depend on the seed -------------------------------------------------------- */

enum { N_OPERATIONS = 4000, N_SEQS = 6 };

typedef struct digest {
  uint64_t sum;
} digest;

static void add(digest *d, const void *data, size_t n_bytes) {
  uint64_t pair[2] = {d->sum, XXH3_64bits(data, n_bytes)};
  d->sum = XXH3_64bits(pair, sizeof pair);
}

static void add_number(digest *d, uint64_t number) {
  add(d, &number, sizeof number);
}

typedef struct scene {
  weft_pager *pager;
  uint64_t random, next_event;
  weft_seq seq[N_SEQS];
  digest digest;
} scene;

static uint32_t below(scene *s, uint32_t n) {
  s->random += UINT64_C(0x9E3779B97F4A7C15);
  return (uint32_t)(weft_mix64(s->random) >> 32) % n;
}

static void open_scene(scene *s, uint64_t seed) {
  weft_pager_model model = {
      .fingerprint = {3, 4}, .n_groups = 2, .group = {{.block_tokens = 8, .window = 20}, {.block_tokens = 16}}};
  weft_pager_config config = {.n_pages = 60,
                              .n_host_pages = 24,
                              .n_seqs = N_SEQS,
                              .seq_tokens_max = 200,
                              .n_models = 1,
                              .model = &model,
                              .journal_capacity = 1024,
                              .hash_seed = seed};
  weft_error error;
  *s = (scene){.random = 99};
  for (uint32_t i = 0; i < N_SEQS; i++) s->seq[i] = WEFT_SEQ_NONE;
  assert_int_equal(weft_pager_open(&config, &s->pager, &error), WEFT_OK);
}

static void begin_one(scene *s, uint32_t i) {
  int32_t tokens[200];
  uint32_t n = 1 + below(s, 120), n_cached = 0, shared = below(s, 5);
  for (uint32_t k = 0; k < n; k++) tokens[k] = (int32_t)(k + 1000 * (k < 16 * shared ? 1 : below(s, 3)));
  weft_admit args = prompt_of(1 + below(s, 2), tokens, n);
  args.restore_max_pages = 60;
  weft_seq seq = WEFT_SEQ_NONE, waits_for = WEFT_SEQ_NONE;
  weft_status status = weft_pager_admit(s->pager, &args, &seq, &n_cached, &waits_for);
  add_number(&s->digest, (uint64_t)status ^ (uint64_t)seq << 8 ^ (uint64_t)n_cached << 40 ^ waits_for);
  if (status != WEFT_OK) return;
  s->seq[i] = seq;
  if (weft_pager_reserve(s->pager, seq, n - n_cached, n - n_cached) == WEFT_OK)
    weft_pager_commit(s->pager, seq, tokens + n_cached, n - n_cached);
}

static void operate(scene *s) {
  uint32_t i = below(s, N_SEQS);
  if (s->seq[i] == WEFT_SEQ_NONE) {
    begin_one(s, i);
  } else if (below(s, 3) != 0) {
    weft_pager_release(s->pager, s->seq[i]);
    s->seq[i] = WEFT_SEQ_NONE;
  } else {
    int32_t token = (int32_t)below(s, 5);
    weft_status status = weft_pager_reserve(s->pager, s->seq[i], 1, 1);
    add_number(&s->digest, (uint64_t)status);
    if (status == WEFT_OK) weft_pager_commit(s->pager, s->seq[i], &token, 1);
  }
  weft_page_copy copy[64];
  uint32_t n_copies = weft_pager_take_copies(s->pager, copy, 64);
  for (uint32_t k = 0; k < n_copies; k++)
    add_number(&s->digest, copy[k].from ^ (uint64_t)copy[k].to << 24 ^ (uint64_t)copy[k].kind << 48);
  for (uint32_t k = 0; k < N_SEQS; k++) {
    for (uint32_t g = 0; g < 2 && s->seq[k] != WEFT_SEQ_NONE; g++) {
      uint32_t n_entries;
      const weft_page *table = weft_pager_table(s->pager, s->seq[k], g, &n_entries);
      add(&s->digest, table, n_entries * sizeof *table);
    }
  }
  weft_journal_event event;
  uint64_t n_missed;
  while (weft_pager_journal_read(s->pager, &s->next_event, &event, 1, &n_missed) == 1) {
    uint64_t fields[] = {event.number,     event.kind,        event.model,         event.group,
                         event.tier,       event.page,        event.hash.low,      event.hash.high,
                         event.parent.low, event.parent.high, event.first_position};
    add(&s->digest, fields, sizeof fields);
  }
}

static uint64_t digest_of(uint64_t seed) {
  scene s;
  open_scene(&s, seed);
  for (uint32_t i = 0; i < N_OPERATIONS; i++) operate(&s);
  weft_pager_stats stats = weft_pager_get_stats(s.pager);
  assert_true(stats.n_evicted > 100 && stats.n_spilled > 100 && stats.n_restored > 0 && stats.n_duplicates > 0);
  for (uint32_t i = 0; i < N_SEQS; i++)
    if (s.seq[i] != WEFT_SEQ_NONE) weft_pager_release(s.pager, s.seq[i]);
  kit_close(s.pager);
  return s.digest.sum;
}

static void nothing_that_is_seen_depends_on_the_seed(void **state) {
  (void)state;
  uint64_t expected = digest_of(1);
  for (uint64_t seed = 2; seed < 8; seed++) assert_true(digest_of(seed) == expected);
  for (uint32_t i = 0; i < 4; i++) assert_true(digest_of(0) == expected); /* another secret each time */
}

static void a_pager_without_a_seed_draws_its_own_secret(void **state) {
  (void)state;
  scene a, b;
  open_scene(&a, 0);
  open_scene(&b, 0);
  assert_memory_not_equal(a.pager->secret, b.pager->secret, sizeof a.pager->secret);
  weft_pager_close(a.pager);
  weft_pager_close(b.pager);
  open_scene(&a, 5);
  open_scene(&b, 5);
  assert_memory_equal(a.pager->secret, b.pager->secret, sizeof a.pager->secret);
  weft_pager_close(a.pager);
  weft_pager_close(b.pager);
}

/* ---- names of blocks outside of the process -------------------------------------------------- */

/* Whoever has the fingerprint, the domain and the tokens can compute the names in the journal without the process. */
static void names_in_the_journal_can_be_computed_outside(void **state) {
  (void)state;
  scene s;
  int32_t tokens[32];
  open_scene(&s, 0);
  kit_tokens(tokens, 32, 0, 1);
  weft_admit args = prompt_of(5, tokens, 32);
  weft_seq seq, waits_for;
  uint32_t n_cached;
  assert_int_equal(weft_pager_admit(s.pager, &args, &seq, &n_cached, &waits_for), WEFT_OK);
  kit_compute(s.pager, seq, tokens, 32);
  weft_pager_release(s.pager, seq);
  uint64_t root[4] = {3, 4, 5, 5};
  XXH128_hash_t name[5] = {XXH3_128bits(root, sizeof root)};
  for (uint32_t i = 0; i < 4; i++) {
    unsigned char bytes[16 + 4 * 8];
    memcpy(bytes, &name[i].low64, 8);
    memcpy(bytes + 8, &name[i].high64, 8);
    memcpy(bytes + 16, tokens + i * 8, 4 * 8);
    name[i + 1] = XXH3_128bits(bytes, sizeof bytes);
  }
  weft_journal_event event;
  uint64_t n_missed;
  uint32_t n_stored = 0;
  for (uint64_t next = 0; weft_pager_journal_read(s.pager, &next, &event, 1, &n_missed) == 1;) {
    if (event.kind != WEFT_JOURNAL_STORED) continue;
    uint32_t from = event.first_position / 8, to = from + event.n_tokens / 8;
    assert_true(event.parent.low == name[from].low64 && event.parent.high == name[from].high64);
    assert_true(event.hash.low == name[to].low64 && event.hash.high == name[to].high64);
    n_stored += 1;
  }
  assert_int_equal(n_stored, 4 + 2);
  kit_close(s.pager);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(crafted_tokens_cost_what_random_ones_cost),
      cmocka_unit_test(nothing_that_is_seen_depends_on_the_seed),
      cmocka_unit_test(a_pager_without_a_seed_draws_its_own_secret),
      cmocka_unit_test(names_in_the_journal_can_be_computed_outside),
  };
  return cmocka_run_group_tests_name("pager: seed", tests, NULL, NULL);
}
