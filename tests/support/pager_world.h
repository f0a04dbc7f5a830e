/* SPDX-License-Identifier: MIT */
/* A naive mirror of a pager, which knows what every page holds.
 *
 * Law of the mirror: a page is an array of cells; a row writes to a cell one number that stands for
 * (model, group, domain, all tokens up to its position). Whatever a sequence can see through its
 * table must be the numbers of its own tokens; so wrong sharing, stale content, a lost copy, a
 * block of another tenant or a block dropped too early is a wrong number. Which blocks are indexed
 * A state is one number of all tokens before its border and of which page of it this is; whoever goes on from a border
 * reads all its pages. Which blocks are indexed is known from the journal alone; from that the mirror computes by brute
 * force how long a hit must be, what reserve must answer, how many pages are free, cached and pinned, and who pays for
 * them. */
#ifndef WEFT_TESTS_PAGER_WORLD_H
#define WEFT_TESTS_PAGER_WORLD_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "pager/spill.h"

enum {
  PAGES_MAX = 96,
  SEQS_MAX = 8,
  TOKENS_MAX = 160,
  BLOCK_MAX = 16,
  MODELS = 3,
  GROUPS = 5,
  STATE_PAGES = 24, /* the most of one state */
  HISTORIES = 12,   /* token sequences that new prompts continue */
  DOMAINS = 2,
  HOST_MAX = 40,
  FILE_MAX = 24,
  PLACES = PAGES_MAX + HOST_MAX + FILE_MAX, /* pages, then the host's slots, then the file's */
  MOVES = WEFT_MOVES_MAX,
  OWNERS = 3 /* two in the first domain, one in the second; then the operator */
};

typedef struct history {
  uint32_t n, model, domain, n_public;
  int32_t token[TOKENS_MAX];
} history;

typedef struct model_seq {
  bool live, cache; /* cache: it finds, publishes and promises, */
  bool did_cache;   /* and did when this operation began */
  uint32_t model, domain, owner, n_public, n_prompt_tokens, n_valid, n_reserved, n_written;
  int32_t token[TOKENS_MAX];
  uint64_t digest[TOKENS_MAX]; /* of [0, i]; without the group */
} model_seq;

/* What happened in all episodes. */
typedef struct mirror_totals {
  uint64_t n_admits, n_hits, n_waits, n_refused, n_copies, n_evicted, n_forks, n_quota, n_public, n_roomless;
  uint64_t n_spilled, n_restored, n_moved, n_lifts, n_lost;
  uint64_t n_resized, n_shifted; /* resizes; blocks and pages of states that one moved */
  uint64_t n_states, n_state_hits, n_snapshots,
      n_states_back; /* taken; hits on one; taken at boundaries; brought back */
} mirror_totals;

typedef struct mirror {
  uint64_t seed, random;
  uint32_t op, n_ops;
  weft_pager *pager;
  weft_pager_config config;
  weft_pager_model model[MODELS];
  uint32_t block_max[MODELS];
  bool weak, windows[MODELS];
  uint32_t n_open; /* pages of the pool, as it was made last */
  model_seq seq[SEQS_MAX];
  history history[HISTORIES];
  uint64_t cell[PLACES][BLOCK_MAX];
  bool indexed[PLACES];
  bool ready[PLACES]; /* the copy that fills the host's slot has run */
  uint32_t model_of[PLACES], group_of[PLACES], position_of[PLACES];
  uint64_t before[PLACES];    /* last cell of the block before it in the chain; 0 at the start */
  weft_page_copy move[MOVES]; /* taken and not ended */
  bool copied[MOVES];
  uint32_t n_moves;
  uint32_t limit[OWNERS], payer[PAGES_MAX];
  weft_page shadow[SEQS_MAX][GROUPS][TOKENS_MAX]; /* the tables as they were */
  uint32_t shadow_n[SEQS_MAX][GROUPS], shadow_held[PAGES_MAX];
  uint64_t journal_next;
  mirror_totals total;
} mirror;

static inline void fail(const mirror *m, int line, const char *format, ...) __attribute__((noreturn))
__attribute__((format(printf, 3, 4)));

static inline void fail(const mirror *m, int line, const char *format, ...) {
  va_list list;
  va_start(list, format);
  fprintf(stderr, "line %d: operation %u: ", line, m->op);
  (void)vfprintf(stderr, format, list); /* to standard error; nobody reads the count */
  va_end(list);
  fprintf(stderr, "\nreplay: test_prop_pager_model %u %llu\n", m->n_ops, (unsigned long long)m->seed);
  exit(1);
}

#define REQUIRE(condition, ...) ((condition) ? (void)0 : fail(m, __LINE__, __VA_ARGS__))

static inline uint32_t below(mirror *m, uint32_t n) {
  m->random += 0x9E3779B97F4A7C15ull;
  return (uint32_t)(weft_mix64(m->random) >> 32) % n;
}

static inline uint32_t least(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

/* ---- what the mirror knows -------------------------------------------------------------------- */

static inline uint64_t start_digest(uint32_t model) {
  return weft_mix64(0x5eed + model * 64);
}

/* The domain begins behind the public prefix. */
static inline void digests(uint64_t *out, const int32_t *tokens, uint32_t from, uint32_t to, const model_seq *s) {
  uint64_t d = from == 0 ? start_digest(s->model) : out[from - 1];
  for (uint32_t i = from; i < to; i++) {
    if (i == s->n_public) d = weft_mix64(d + 1 + s->domain);
    out[i] = d = weft_mix64(d * 0x9E3779B97F4A7C15ull + (uint32_t)tokens[i] + 1);
  }
}

/* What a row of this digest writes in a group; never 0. */
static inline uint64_t cell_of(uint64_t digest, uint32_t group) {
  return weft_mix64(digest ^ ((uint64_t)group + 1) * 0xA0761D6478BD642Full) | 1;
}

static inline const weft_page *table_of(const mirror *m, weft_seq seq, uint32_t g, uint32_t *n) {
  return weft_pager_table(m->pager, seq, g, n);
}

static inline uint32_t place_of(weft_tier tier, uint32_t index) {
  return index + (tier == WEFT_TIER_POOL ? 0 : tier == WEFT_TIER_HOST ? PAGES_MAX : PAGES_MAX + HOST_MAX);
}

static inline uint32_t from_of(const weft_page_copy *copy) {
  static const weft_tier tier[] = {WEFT_TIER_POOL, WEFT_TIER_POOL, WEFT_TIER_HOST, WEFT_TIER_HOST, WEFT_TIER_FILE};
  return place_of(tier[copy->kind], copy->from);
}

static inline uint32_t to_of(const weft_page_copy *copy) {
  static const weft_tier tier[] = {WEFT_TIER_POOL, WEFT_TIER_HOST, WEFT_TIER_POOL, WEFT_TIER_FILE, WEFT_TIER_HOST};
  return place_of(tier[copy->kind], copy->to);
}

/* Where the content of a page is now: a copy that nobody took yet has still to bring it. */
static inline uint32_t source_of(const mirror *m, uint32_t place) {
  for (uint32_t i = m->pager->n_copies_waiting; i-- > 0;)
    if (to_of(&m->pager->copy[i]) == place) place = from_of(&m->pager->copy[i]);
  return place;
}

static inline uint32_t holders(const mirror *m, weft_page page) {
  uint32_t n_holders = 0;
  for (weft_seq seq = 0; seq < m->config.n_seqs; seq++) {
    if (!m->seq[seq].live) continue;
    for (uint32_t g = 0; g < m->model[m->seq[seq].model].n_groups; g++) {
      uint32_t n;
      const weft_page *table = table_of(m, seq, g, &n);
      for (uint32_t i = 0; i < n; i++) n_holders += table[i] == page;
    }
  }
  return n_holders;
}

/* Pages of a block of the group. */
static inline uint32_t pages_of(const weft_layer_group *group) {
  return group->state_pages == 0 ? 1 : group->state_pages;
}

/* Pages of the block that begins with this page, held or indexed. */
static inline uint32_t pages_at(const mirror *m, weft_page page) {
  return pager_block_pages(m->pager, page);
}

/* What page i of a state holds, whose last token has this digest. */
static inline uint64_t state_cell(uint64_t digest, uint32_t group, uint32_t i) {
  return cell_of(digest, group + i * GROUPS);
}

/* The first position that a row sees. */
static inline uint32_t seen_from(const weft_layer_group *group, uint32_t position) {
  if (group->window == 0) return 0;
  if (group->from_border) return position / group->window * group->window;
  return position < group->window ? 0 : position - group->window + 1;
}

static inline uint32_t window_first(const weft_layer_group *group, uint32_t position) {
  if (group->state_pages != 0) return position < group->block_tokens ? 0 : position / group->block_tokens - 1;
  return seen_from(group, position) / group->block_tokens;
}

static inline void read_journal(mirror *m) {
  weft_journal_event event;
  uint64_t n_missed;
  while (weft_pager_journal_read(m->pager, &m->journal_next, &event, 1, &n_missed) == 1) {
    REQUIRE(n_missed == 0, "the journal lost %llu events", (unsigned long long)n_missed);
    if (event.kind == WEFT_JOURNAL_CLEARED) {
      memset(m->indexed, 0, sizeof m->indexed);
      continue;
    }
    uint32_t page = place_of(event.tier, event.page);
    const uint32_t n_of[] = {m->config.n_pages, m->config.n_host_pages, m->config.n_file_pages};
    uint32_t block = m->model[event.model].group[event.group].block_tokens;
    REQUIRE(event.page < n_of[event.tier] && event.n_tokens == block, "journal: page %u", page);
    if (event.kind == WEFT_JOURNAL_REMOVED) {
      REQUIRE(m->indexed[page] && m->model_of[page] == event.model && m->group_of[page] == event.group &&
                  m->position_of[page] == event.first_position,
              "page %u left the index, where it was not", page);
      m->indexed[page] = false;
      continue;
    }
    REQUIRE(!m->indexed[page], "page %u came into the index twice", page);
    m->indexed[page] = true;
    m->ready[page] = event.tier != WEFT_TIER_HOST;
    m->model_of[page] = event.model;
    m->group_of[page] = event.group;
    m->position_of[page] = event.first_position;
  }
}

/* ---- who pays -------------------------------------------------------------------------------- */

static inline uint32_t payer_of(const mirror *m, const model_seq *s, uint32_t g, uint32_t block) {
  uint32_t position = block * m->model[s->model].group[g].block_tokens;
  bool shares = s->cache || s->did_cache;
  return shares && position < s->n_public ? WEFT_OWNER_OPERATOR : s->owner;
}

/* Whoever comes to hold a page that nobody else held pays for it from then on. Tables that changed
 * are compared with how they were. */
static inline void follow_payers(mirror *m) {
  for (weft_seq seq = 0; seq < m->config.n_seqs; seq++) {
    const model_seq *s = &m->seq[seq];
    for (uint32_t g = 0; g < GROUPS; g++) {
      uint32_t n = 0;
      bool live = s->live && g < m->model[s->model].n_groups;
      const weft_page *table = live ? table_of(m, seq, g, &n) : NULL;
      for (uint32_t i = 0; i < n; i++) {
        weft_page was = i < m->shadow_n[seq][g] ? m->shadow[seq][g][i] : WEFT_PAGE_NONE;
        if (table[i] == was || table[i] == WEFT_PAGE_NONE) continue;
        uint32_t n_others = m->shadow_held[table[i]]; /* it may have let go of it to get it back */
        for (uint32_t h = 0; h < GROUPS; h++)
          for (uint32_t j = 0; j < m->shadow_n[seq][h]; j++) n_others -= m->shadow[seq][h][j] == table[i];
        if (n_others == 0) m->payer[table[i]] = payer_of(m, s, g, i);
      }
    }
  }
  memset(m->shadow_held, 0, sizeof m->shadow_held);
  for (weft_seq seq = 0; seq < m->config.n_seqs; seq++) {
    model_seq *s = &m->seq[seq];
    s->did_cache = s->cache;
    for (uint32_t g = 0; g < GROUPS; g++) {
      uint32_t n = 0;
      bool live = s->live && g < m->model[s->model].n_groups;
      const weft_page *table = live ? table_of(m, seq, g, &n) : NULL;
      for (uint32_t i = 0; i < n; i++) {
        m->shadow[seq][g][i] = table[i];
        if (table[i] != WEFT_PAGE_NONE) m->shadow_held[table[i]] += 1;
      }
      m->shadow_n[seq][g] = n;
    }
  }
}

static inline uint32_t n_paid(const mirror *m, uint32_t owner, bool held) {
  uint32_t n = 0;
  for (weft_page page = 0; page < m->config.n_pages; page++)
    if (m->payer[page] == owner && (held ? m->shadow_held[page] != 0 : m->shadow_held[page] == 0 && m->indexed[page]))
      n += pages_at(m, page);
  return n;
}

static inline void require_owners(const mirror *m) {
  for (uint32_t i = 0; i <= OWNERS; i++) {
    uint32_t owner = i == OWNERS ? WEFT_OWNER_OPERATOR : i;
    weft_owner_usage usage = weft_pager_owner_usage(m->pager, owner);
    REQUIRE(usage.n_pinned == n_paid(m, owner, true) && usage.n_cached == n_paid(m, owner, false),
            "owner %u pays for %u and has %u cached; the mirror has %u, %u", owner, usage.n_pinned, usage.n_cached,
            n_paid(m, owner, true), n_paid(m, owner, false));
  }
}

static inline bool over_limit(const mirror *m, uint32_t owner, uint32_t n_more) {
  return m->limit[owner] != 0 && n_more != 0 && n_paid(m, owner, true) + n_more > m->limit[owner];
}

/* A block that was moved has the payer that it had, and whoever held its page holds the other one. */
static inline void follow_shift(mirror *m, weft_page from, weft_page to) {
  m->payer[to] = m->payer[from];
  m->shadow_held[to] = m->shadow_held[from];
  m->shadow_held[from] = 0;
  for (weft_seq seq = 0; seq < m->config.n_seqs; seq++)
    for (uint32_t g = 0; g < GROUPS; g++)
      for (uint32_t i = 0; i < m->shadow_n[seq][g]; i++)
        if (m->shadow[seq][g][i] == from) m->shadow[seq][g][i] = to;
  m->total.n_shifted += 1;
}

#endif
