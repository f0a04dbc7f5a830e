/* SPDX-License-Identifier: MIT */
/* Random operations on a pager, against the mirror of pager_world.h.
 *
 * Usage: test_prop_pager_model [operations [seed]]   A failing episode prints the command that
 * replays it. */
#include <stdlib.h>

#include "tests/support/amount.h"
#include "pager/resize.h"
#include "tests/support/pager_world_states.h"

enum { EPISODE = 2500 /* operations with one pager */ };

/* ---- invariants ------------------------------------------------------------------------------ */

static void require_seq(const mirror *m, weft_seq seq) {
  const model_seq *s = &m->seq[seq];
  const weft_pager_model *model = &m->model[s->model];
  REQUIRE(weft_pager_n_valid(m->pager, seq) == s->n_valid, "sequence %u: n_valid", seq);
  REQUIRE(weft_pager_n_reserved(m->pager, seq) == s->n_reserved, "sequence %u: n_reserved", seq);
  uint32_t n_held = 0;
  for (uint32_t g = 0; g < model->n_groups; g++) {
    const weft_layer_group *group = &model->group[g];
    if (group->state_pages != 0) {
      require_states(m, seq, g, &n_held);
      continue;
    }
    uint32_t n, block = group->block_tokens, first = window_first(group, s->n_valid);
    const weft_page *table = table_of(m, seq, g, &n);
    REQUIRE(n == (s->n_reserved + block - 1) / block, "sequence %u: entries of group %u", seq, g);
    for (uint32_t i = 0; i < n; i++) {
      REQUIRE((table[i] == WEFT_PAGE_NONE) == (i < first), "sequence %u, group %u: entry %u of %u", seq, g, i, first);
      n_held += table[i] != WEFT_PAGE_NONE;
    }
    for (uint32_t p = seen_from(group, s->n_valid); p < s->n_valid; p++)
      REQUIRE(m->cell[source_of(m, table[p / block])][p % block] == cell_of(s->digest[p], g),
              "sequence %u, group %u, position %u: page %u holds other content", seq, g, p, table[p / block]);
  }
  REQUIRE(weft_pager_n_pages_held(m->pager, seq) == n_held, "sequence %u: blocks held", seq);
}

/* States counted from tables and journal alone. */
static void require_counts(const mirror *m) {
  bool held[PAGES_MAX] = {false};
  for (weft_seq seq = 0; seq < m->config.n_seqs; seq++) {
    if (!m->seq[seq].live) continue;
    for (uint32_t g = 0; g < m->model[m->seq[seq].model].n_groups; g++) {
      uint32_t n;
      const weft_page *table = table_of(m, seq, g, &n);
      for (uint32_t i = 0; i < n; i++)
        if (table[i] != WEFT_PAGE_NONE) held[table[i]] = true;
    }
  }
  uint32_t n_pinned = 0, n_cached = 0;
  for (weft_page page = 0; page < m->config.n_pages; page++) {
    n_pinned += held[page] ? pages_at(m, page) : 0;
    n_cached += m->indexed[page] && !held[page] ? pages_at(m, page) : 0;
  }
  weft_pager_stats stats = weft_pager_get_stats(m->pager);
  REQUIRE(stats.n_pinned == n_pinned && stats.n_cached == n_cached && stats.n_free == m->n_open - n_pinned - n_cached &&
              stats.n_pages == m->n_open,
          "%u pinned, %u cached, %u free; the mirror has %u, %u", stats.n_pinned, stats.n_cached, stats.n_free,
          n_pinned, n_cached);
  REQUIRE(weft_pager_headroom(m->pager) == m->n_open - n_pinned, "headroom");
  uint32_t n_lower[2] = {0};
  for (uint32_t place = PAGES_MAX; place < PLACES; place++)
    if (m->indexed[place])
      n_lower[place >= PAGES_MAX + HOST_MAX] += pages_of(&m->model[m->model_of[place]].group[m->group_of[place]]);
  REQUIRE(stats.n_host_held == n_lower[0] && stats.n_file_held == n_lower[1],
          "%u and %u held in lower tiers; the mirror has %u, %u", stats.n_host_held, stats.n_file_held, n_lower[0],
          n_lower[1]);
}

/* Where the block of a group is that ends with the cell, down to a tier; PLACES: nowhere. */
static uint32_t find_cell(const mirror *m, uint32_t model, uint32_t g, uint64_t cell, weft_tier lowest) {
  uint32_t last = m->model[model].group[g].block_tokens - 1;
  uint32_t n_places = lowest == WEFT_TIER_FILE ? PLACES : place_of(lowest + 1, 0);
  for (uint32_t place = 0; place < n_places; place++)
    if (m->indexed[place] && m->ready[place] && m->model_of[place] == model && m->group_of[place] == g &&
        m->cell[place < PAGES_MAX ? source_of(m, place) : place][last] == cell)
      return place;
  return PLACES;
}

/* The indexed page of a group that ends with the cell. */
static weft_page page_with(const mirror *m, uint32_t model, uint32_t g, uint64_t cell) {
  uint32_t place = find_cell(m, model, g, cell, WEFT_TIER_POOL);
  return place < PLACES ? place : WEFT_PAGE_NONE;
}

static bool has_cell(const mirror *m, uint32_t model, uint32_t g, uint64_t cell) {
  return page_with(m, model, g, cell) != WEFT_PAGE_NONE;
}

/* Every indexed block of a group that keeps all tokens can be reached from the start of its chain. */
static void require_reachable(const mirror *m) {
  for (weft_page page = 0; page < m->config.n_pages; page++) {
    if (!m->indexed[page]) continue;
    uint32_t model = m->model_of[page], g = m->group_of[page];
    const weft_layer_group *group = &m->model[model].group[g];
    if (group->window != 0 || group->state_pages != 0 || m->position_of[page] == 0) continue;
    REQUIRE(has_cell(m, model, g, m->before[source_of(m, page)]), "page %u is indexed, the block before it not", page);
  }
}

static void require_all(const mirror *m) {
  weft_error error;
  for (weft_seq seq = 0; seq < m->config.n_seqs; seq++)
    if (m->seq[seq].live) require_seq(m, seq);
  require_reachable(m);
  REQUIRE(weft_pager_check(m->pager, &error), "%s", error.text);
}

/* ---- admit ----------------------------------------------------------------------------------- */

static weft_seq pick(mirror *m) {
  weft_seq start = below(m, m->config.n_seqs);
  for (uint32_t i = 0; i < m->config.n_seqs; i++) {
    weft_seq seq = (start + i) % m->config.n_seqs;
    if (m->seq[seq].live) return seq;
  }
  return WEFT_SEQ_NONE;
}

static void make_prompt(mirror *m, weft_admit *args, uint32_t *domain, int32_t *tokens) {
  uint32_t n = 0;
  *domain = below(m, DOMAINS);
  weft_seq running = pick(m);
  if (running != WEFT_SEQ_NONE && below(m, 4) == 0) {
    const model_seq *s = &m->seq[running];
    args->model = s->model;
    *domain = s->domain;
    args->n_public = s->n_public;
    n = 1 + below(m, s->n_prompt_tokens);
    memcpy(tokens, s->token, n * sizeof *tokens);
  } else if (below(m, 8) != 0) {
    const history *h = &m->history[below(m, HISTORIES)];
    if (h->n != 0 && below(m, 8) != 0) {
      args->model = h->model;
      *domain = h->domain;
      args->n_public = h->n_public;
    }
    n = h->n == 0 ? 0 : 1 + below(m, h->n);
    if (below(m, 3) == 0) n = h->n;
    memcpy(tokens, h->token, n * sizeof *tokens);
  }
  uint32_t n_more = below(m, 4) == 0 ? below(m, 40) : below(m, 6);
  for (uint32_t i = 0; i < n_more && n < m->config.seq_tokens_max; i++) tokens[n++] = (int32_t)below(m, 3) - 1;
  if (below(m, 8) == 0) *domain = below(m, DOMAINS);
  if (below(m, 8) == 0) args->n_public = below(m, 4) == 0 ? n : below(m, n + 1);
  if (n == 0) tokens[n++] = 7; /* a token that nothing else begins with */
  args->tokens = tokens;
  args->n_tokens = n;
  args->n_public = least(args->n_public, n);
  for (uint32_t i = 0; i < WEFT_PARTINGS_MAX; i++)
    if (below(m, 4) == 0) args->parting[i] = below(m, n + 1);
  args->owner = *domain == 0 ? below(m, 2) : 2;
  args->retention = below(m, WEFT_RETENTION_MAX + 1);
  args->n_prompt = below(m, 4) == 0 ? below(m, n + 1) : n;
  args->n_keep_rows = below(m, 3) == 0 ? 0 : below(m, 5) == 0 ? below(m, n + 1) : 1;
}

/* The longest prefix that every group can serve down to a tier, by trying all. */
static uint32_t expected_hit(const mirror *m, const weft_admit *args, const uint64_t *digest, weft_tier lowest) {
  const weft_pager_model *model = &m->model[args->model];
  bool has[GROUPS][TOKENS_MAX];
  for (uint32_t g = 0; g < model->n_groups; g++) {
    uint32_t block = model->group[g].block_tokens;
    for (uint32_t i = 0; (i + 1) * block <= args->n_tokens; i++)
      has[g][i] = find_cell(m, args->model, g, cell_of(digest[(i + 1) * block - 1], g), lowest) < PLACES;
  }
  uint32_t grain = m->block_max[args->model];
  uint32_t hit = (args->n_tokens - args->n_keep_rows) / grain * grain;
  for (; hit > 0; hit -= grain) {
    bool good = true;
    for (uint32_t g = 0; g < model->n_groups; g++)
      for (uint32_t i = window_first(&model->group[g], hit); i < hit / model->group[g].block_tokens; i++)
        good = good && has[g][i];
    if (good) break;
  }
  return hit;
}

/* What the owner would have to pay for a hit. */
static uint32_t expected_cost(const mirror *m, const weft_admit *args, const model_seq *s, uint32_t hit) {
  uint32_t n = 0;
  for (uint32_t g = 0; g < m->model[args->model].n_groups; g++) {
    const weft_layer_group *group = &m->model[args->model].group[g];
    for (uint32_t i = window_first(group, hit); i < hit / group->block_tokens; i++) {
      uint64_t cell = cell_of(s->digest[(i + 1) * group->block_tokens - 1], g);
      weft_page page = page_with(m, args->model, g, cell);
      bool held = page != WEFT_PAGE_NONE && m->shadow_held[page] != 0; /* else cached, or to come back */
      n += !held && payer_of(m, s, g, i) == args->owner ? pages_of(group) : 0;
    }
  }
  return n;
}

/* Whether the room that the caller asks for is there besides a hit, by counting who holds what. */
static weft_status expected_room(const mirror *m, const weft_admit *args, const model_seq *s, uint32_t hit) {
  uint32_t n_held = 0, n_taken = 0, n_pinned = 0;
  for (uint32_t g = 0; g < m->model[args->model].n_groups; g++) {
    const weft_layer_group *group = &m->model[args->model].group[g];
    for (uint32_t i = window_first(group, hit); i < hit / group->block_tokens; i++) {
      weft_page page = page_with(m, args->model, g, cell_of(s->digest[(i + 1) * group->block_tokens - 1], g));
      n_held += pages_of(group);
      n_taken += page == WEFT_PAGE_NONE || m->shadow_held[page] == 0 ? pages_of(group) : 0;
    }
  }
  for (weft_page page = 0; page < m->config.n_pages; page++)
    if (m->shadow_held[page] != 0) n_pinned += pages_at(m, page);
  uint32_t n_more = args->room_pages > n_held ? args->room_pages - n_held : 0;
  uint32_t n_bill = n_paid(m, args->owner, true) + expected_cost(m, args, s, hit) + n_more;
  if (args->room_pages == 0) return WEFT_OK;
  if (args->room_in_limit && m->limit[args->owner] != 0 && n_bill > m->limit[args->owner]) return WEFT_QUOTA;
  bool fits = n_more + args->room_margin + n_taken <= m->n_open - n_pinned + args->room_spare;
  return fits ? WEFT_OK : WEFT_NO_BLOCKS;
}

/* Whether the blocks in host memory up to `stored` are to come back: cost, pages, room among the copies. */
static bool expected_restore(const mirror *m, const weft_admit *args, const uint64_t *digest, uint32_t hit,
                             uint32_t stored) {
  const weft_pager_model *model = &m->model[args->model];
  uint64_t n_host = 0, n_cached = 0;
  for (uint32_t g = 0; g < model->n_groups; g++) {
    uint32_t block = model->group[g].block_tokens;
    for (uint32_t i = window_first(&model->group[g], stored); i < stored / block; i++) {
      uint32_t place = find_cell(m, args->model, g, cell_of(digest[(i + 1) * block - 1], g), WEFT_TIER_HOST);
      n_host += place >= PAGES_MAX ? pages_of(&model->group[g]) : 0;
      n_cached += place < PAGES_MAX && holders(m, place) == 0 ? pages_of(&model->group[g]) : 0;
    }
  }
  weft_pager_stats stats = weft_pager_get_stats(m->pager);
  return n_host <= args->restore_max_pages && n_host <= stats.n_free + stats.n_cached - n_cached &&
         n_host <= m->pager->spill_capacity - m->pager->n_spills_waiting &&
         (uint64_t)(stored - hit) * 256 > n_host * args->restore_cost;
}

/* How far a running sequence, if it kept its promise, would serve this prompt, in units of grain. */
static uint32_t shared_prompt(const mirror *m, const weft_admit *args, const uint64_t *digest, const model_seq *s,
                              uint32_t grain) {
  if (!s->live || !s->cache || s->model != args->model) return 0;
  if (s->n_valid / m->pager->base_tokens >= s->n_prompt_tokens / m->pager->base_tokens) return 0;
  uint32_t n = 0, max = least(args->n_tokens - args->n_keep_rows, s->n_prompt_tokens);
  while (n < max && digest[n] == s->digest[n]) n++;
  n = n / grain * grain;
  return n > s->n_valid ? n : 0;
}

/* All blocks up to n are there or promised by anyone, seen along the nodes that this sequence
 * promised. It may promise less than its prompt where nodes ran out, or where another's promise was
 * withdrawn. */
static bool promised_until(const mirror *m, weft_seq seq, uint32_t n) {
  const pager_seq *s = &m->pager->seq[seq];
  if (s->announced_tail == PAGER_NODE_NONE || s->announced_end * m->pager->base_tokens < n) return false;
  for (uint32_t node = s->announced_tail; node != PAGER_NODE_NONE; node = m->pager->node[node].parent) {
    if (m->pager->node[node].root) continue;
    if (m->pager->node[node].depth * m->pager->base_tokens > n) continue;
    for (uint32_t g = 0; g < m->model[m->seq[seq].model].n_groups; g++) {
      uint32_t place = pager_places(m->pager, node)[g];
      if (m->model[m->seq[seq].model].group[g].state_pages != 0) continue;
      bool gone = place == PAGER_PLACE_NONE ||
                  (pager_place_is_slot(place) && pager_spill_reach(m->pager, place) == PAGER_NOWHERE);
      if (gone && m->pager->node[node].depth % m->pager->model[m->seq[seq].model].group[g].span == 0) return false;
    }
  }
  return true;
}

/* The longest prefix that a wait would give. */
static uint32_t expected_wait(const mirror *m, const weft_admit *args, const uint64_t *digest) {
  uint32_t longest = 0;
  for (weft_seq seq = 0; seq < m->config.n_seqs; seq++) {
    uint32_t n = shared_prompt(m, args, digest, &m->seq[seq], m->block_max[args->model]);
    if (n > longest && promised_until(m, seq, n)) longest = n;
  }
  return longest;
}

static void require_begun(const mirror *m, weft_seq seq, const weft_admit *args) {
  const pager_seq *inside = &m->pager->seq[seq];
  if (inside->tail == PAGER_NODE_NONE || m->pager->free_node == PAGER_NODE_NONE) return;
  if (inside->announced_end == inside->public_end) return; /* the last node began its domain */
  REQUIRE(inside->announced_end == args->n_tokens / m->pager->base_tokens, "promises only %u base blocks",
          inside->announced_end);
}

/* What may come from lower tiers, how much room is asked for, and how long a hit. */
static void draw_conditions(mirror *m, weft_admit *args) {
  if (below(m, 4) != 0) args->restore_max_pages = below(m, 3) == 0 ? below(m, 6) : PAGES_MAX;
  args->restore_cost = below(m, 2) * 256 * below(m, 12);
  args->lift_cost = below(m, 2) * 256 * below(m, 4);
  args->restore_wait = below(m, 2) == 0;
  args->lift_none = below(m, 4) == 0;
  if (below(m, 4) == 0) {
    args->room_pages = below(m, m->config.n_pages);
    args->room_margin = below(m, 4);
    args->room_spare = below(m, 3);
    args->room_in_limit = below(m, 2) == 0;
  }
  if (below(m, 20) == 0) args->n_cached_least = below(m, args->n_tokens + 1);
}

/* AGAIN names a sequence that computes some of the prompt, or, naming none, waits for a move out of the file. */
static void require_awaited(mirror *m, const weft_admit *args, const uint64_t *digest, weft_seq waits_for, bool filed) {
  if (waits_for == WEFT_SEQ_NONE) {
    REQUIRE(filed && args->restore_wait && weft_pager_get_stats(m->pager).n_lifting > 0, "waits for no move");
    m->total.n_lifts += 1;
    return;
  }
  REQUIRE(waits_for < m->config.n_seqs && m->seq[waits_for].live, "waits for nobody");
  REQUIRE(shared_prompt(m, args, digest, &m->seq[waits_for], m->pager->base_tokens) > 0,
          "waits for sequence %u, which computes nothing for it", waits_for);
  m->total.n_waits += 1;
}

static void op_admit(mirror *m) {
  int32_t tokens[TOKENS_MAX];
  weft_admit args = {.model = below(m, m->config.n_models), .no_cache = below(m, 10) == 0};
  uint32_t domain, n_cached = 99;
  weft_seq seq = WEFT_SEQ_NONE, waits_for = WEFT_SEQ_NONE;
  make_prompt(m, &args, &domain, tokens);
  draw_conditions(m, &args);
  args.domain = (weft_key128){domain, domain == 0 ? 5 : 4};
  bool cache = !args.no_cache && !m->config.no_prefix_cache;
  model_seq begun = {.live = true,
                     .cache = cache,
                     .model = args.model,
                     .domain = domain,
                     .owner = args.owner,
                     .n_public = args.n_public / m->block_max[args.model] * m->block_max[args.model],
                     .n_prompt_tokens = args.n_tokens};
  const uint64_t *digest = begun.digest;
  memcpy(begun.token, tokens, args.n_tokens * sizeof *tokens);
  digests(begun.digest, tokens, 0, args.n_tokens, &begun);
  uint32_t hit = cache ? expected_hit(m, &args, digest, WEFT_TIER_POOL) : 0, n_live = 0;
  uint32_t stored = cache ? expected_hit(m, &args, digest, WEFT_TIER_HOST) : 0;
  uint32_t filed = cache ? expected_hit(m, &args, digest, WEFT_TIER_FILE) : 0;
  bool restore = stored > hit && expected_restore(m, &args, digest, hit, stored);
  if (restore) hit = stored;
  uint32_t wait = cache ? expected_wait(m, &args, digest) : 0;
  for (uint32_t i = 0; i < m->config.n_seqs; i++) n_live += m->seq[i].live;
  weft_status status = weft_pager_admit(m->pager, &args, &seq, &n_cached, &waits_for);
  if (n_live == m->config.n_seqs) {
    REQUIRE(status == WEFT_FULL, "no sequence is free and admit says %d", status);
    return;
  }
  weft_status expected = expected_room(m, &args, &begun, hit);
  if (over_limit(m, args.owner, expected_cost(m, &args, &begun, hit))) expected = WEFT_QUOTA;
  if (hit < args.n_cached_least) expected = WEFT_E_NOT_FOUND;
  REQUIRE(status == expected || (status == WEFT_AGAIN && cache), "admit says %d and not %d", status, expected);
  if (status != WEFT_OK && status != WEFT_AGAIN) {
    m->total.n_quota += status == WEFT_QUOTA;
    m->total.n_roomless += status == WEFT_NO_BLOCKS;
    return;
  }
  if (status == WEFT_AGAIN) {
    require_awaited(m, &args, digest, waits_for, filed > stored);
    return;
  }
  REQUIRE(wait <= filed || m->windows[args.model], /* a window may be gone: no use in waiting */
          "computes [%u, %u), which a running sequence computes", filed, wait);
  m->total.n_restored += restore;
  REQUIRE(n_cached == hit, "hit of %u tokens, expected %u", n_cached, hit);
  REQUIRE(seq < m->config.n_seqs && !m->seq[seq].live, "sequence %u is taken", seq);
  model_seq *s = &m->seq[seq];
  *s = begun;
  s->n_valid = s->n_reserved = s->n_written = hit;
  m->total.n_admits += 1;
  if (below(m, 2) == 0) weft_pager_enter(m->pager, seq, below(m, 4) == 0);
  m->total.n_public += cache && s->n_public != 0 && hit > s->n_public;
  m->total.n_hits += hit > 0;
  for (uint32_t g = 0; g < m->model[s->model].n_groups; g++) {
    bool used = m->model[s->model].group[g].state_pages != 0 && hit > 0;
    m->total.n_state_hits += used;
    m->total.n_states_back += used && restore;
  }
  if (cache) require_begun(m, seq, &args);
  if (cache && m->pager->seq[seq].tail == PAGER_NODE_NONE) s->cache = false; /* no node was left */
}

/* ---- the other operations -------------------------------------------------------------------- */

/* *n_own: those among them that its owner pays for. */
static uint32_t pages_needed(const mirror *m, weft_seq seq, uint32_t end, uint32_t sure, uint32_t *n_copies,
                             uint32_t *n_own) {
  const model_seq *s = &m->seq[seq];
  uint32_t n = 0;
  for (uint32_t g = 0; g < m->model[s->model].n_groups; g++) {
    const weft_layer_group *group = &m->model[s->model].group[g];
    uint32_t block = group->block_tokens, n_entries;
    const weft_page *table = table_of(m, seq, g, &n_entries);
    if (group->state_pages != 0) {
      for (uint32_t i = n_entries; i < end / block; i++) {
        if (i + 1 < sure / block) continue;
        n += group->state_pages;
        *n_own += payer_of(m, s, g, i) == s->owner ? group->state_pages : 0;
      }
      continue;
    }
    n += (end + block - 1) / block - n_entries;
    for (uint32_t i = n_entries; i < (end + block - 1) / block; i++) *n_own += payer_of(m, s, g, i) == s->owner;
    if (s->n_valid % block == 0) continue;
    weft_page last = table[s->n_valid / block];
    bool copy = m->indexed[last] || holders(m, last) > 1;
    *n_copies += copy;
    *n_own += copy && payer_of(m, s, g, s->n_valid / block) == s->owner;
  }
  return n + *n_copies;
}

static void op_reserve(mirror *m) {
  weft_seq seq = pick(m);
  if (seq == WEFT_SEQ_NONE) return;
  model_seq *s = &m->seq[seq];
  uint32_t n_rows = below(m, 4) == 0 ? 1 + below(m, 50) : 1 + below(m, 6);
  if (below(m, 3) == 0 && s->n_prompt_tokens > s->n_valid) n_rows = s->n_prompt_tokens - s->n_valid;
  uint32_t end = s->n_valid + n_rows > s->n_reserved ? s->n_valid + n_rows : s->n_reserved;
  uint32_t n_sure = below(m, 2) == 0 ? n_rows : below(m, n_rows + 1), sure = s->n_valid + n_sure;
  bool fits = s->n_valid + n_rows <= m->config.seq_tokens_max;
  uint32_t n_copies = 0, n_own = 0, need = fits ? pages_needed(m, seq, end, sure, &n_copies, &n_own) : 0;
  uint32_t n_snapshots_own = 0, n_snapshots = fits ? snapshots_wanted(m, seq, sure, &n_snapshots_own) : 0;
  uint32_t n_forked = m->pager->n_copies_waiting - m->pager->n_spills_waiting;
  bool queue_full = n_copies > m->pager->copy_capacity - n_forked;
  weft_pager_stats before = weft_pager_get_stats(m->pager);
  weft_status status = weft_pager_reserve(m->pager, seq, n_rows, n_sure);
  weft_pager_stats after = weft_pager_get_stats(m->pager);
  weft_status expected = WEFT_OK;
  if (!fits)
    expected = WEFT_E_TOO_LARGE;
  else if (over_limit(m, s->owner, n_own))
    expected = WEFT_QUOTA;
  else if (queue_full || need > before.n_free + before.n_cached)
    expected = WEFT_NO_BLOCKS;
  REQUIRE(status == expected, "reserve of %u pages says %d", need, status);
  if (status != WEFT_OK) {
    REQUIRE(memcmp(&before, &after, sizeof before) == 0, "a refused reserve changed a counter");
    m->total.n_refused += 1;
    m->total.n_quota += status == WEFT_QUOTA;
    return;
  }
  bool room =
      need + n_snapshots <= before.n_free + before.n_cached && !over_limit(m, s->owner, n_own + n_snapshots_own);
  if (room) need += n_snapshots, m->total.n_snapshots += n_snapshots > 0;
  REQUIRE(after.n_taken - before.n_taken == need, "took %llu pages for %u",
          (unsigned long long)(after.n_taken - before.n_taken), need);
  require_evicted(m, need, before.n_free, after.n_evicted - before.n_evicted);
  for (uint32_t n = sure; n <= s->n_valid + n_rows; n++)
    if (n >= s->n_reserved) REQUIRE(has_state_before(m, seq, n), "no state for the row at %u", n);
  s->n_reserved = end;
}

static void copy_place(mirror *m, const weft_page_copy *copy, bool ok) {
  uint32_t from = from_of(copy), to = to_of(copy);
  memcpy(m->cell[to], m->cell[from], sizeof m->cell[0]);
  m->before[to] = m->before[from];
  if (!ok) memset(m->cell[to], 0, sizeof m->cell[0]);
}

/* One copy; true: it failed, and the pager must hear of it. */
static bool perform(mirror *m, const weft_page_copy *copy) {
  if (copy->kind == WEFT_HOST_TO_FILE || copy->kind == WEFT_FILE_TO_HOST) {
    REQUIRE(m->n_moves < MOVES, "more than %u moves at once", m->n_moves);
    m->copied[m->n_moves] = below(m, 2) == 0;
    if (m->copied[m->n_moves]) copy_place(m, copy, true);
    m->move[m->n_moves++] = *copy;
    return false;
  }
  bool lost = copy->kind == WEFT_PAGE_TO_HOST && below(m, 20) == 0;
  copy_place(m, copy, !lost);
  m->ready[to_of(copy)] = true;
  m->total.n_spilled += copy->kind == WEFT_PAGE_TO_HOST;
  return lost;
}

/* A move ends: what it copies, it copies now or has copied when it was taken. */
static void op_move(mirror *m) {
  if (m->n_moves == 0) return;
  uint32_t at = below(m, m->n_moves);
  weft_page_copy move = m->move[at];
  bool ok = below(m, 6) != 0;
  if (!m->copied[at]) copy_place(m, &move, ok);
  m->n_moves -= 1;
  uint32_t to = to_of(&move) - PAGES_MAX; /* a slot by number, of either tier */
  if (to >= HOST_MAX) to += m->pager->n_host - HOST_MAX;
  bool member = m->pager->slot[to].state == PAGER_SLOT_MEMBER;
  uint32_t first = member ? m->pager->slot[to].older : to;
  m->move[at] = m->move[m->n_moves];
  m->copied[at] = m->copied[m->n_moves];
  weft_pager_moved(m->pager, &move, ok);
  read_journal(m);
  if (ok)
    m->ready[first < m->pager->n_host ? PAGES_MAX + first : PAGES_MAX + HOST_MAX + first - m->pager->n_host] = true;
  m->total.n_moved += ok;
}

/* The device: copies first, then all rows reserved so far. Tokens beyond the prompt are made up
 * here. */
static void op_device(mirror *m) {
  weft_page_copy copy[2];
  uint32_t n, n_lost = 0, lost[PLACES];
  do {
    n = weft_pager_take_copies(m->pager, copy, 2);
    for (uint32_t i = 0; i < n; i++)
      if (perform(m, &copy[i]) && n_lost < PLACES) lost[n_lost++] = copy[i].to;
    m->total.n_copies += n;
  } while (n == 2);
  for (uint32_t i = 0; i < n_lost; i++) weft_pager_spill_lost(m->pager, lost[i]);
  m->total.n_lost += n_lost;
  for (weft_seq seq = 0; seq < m->config.n_seqs; seq++) {
    model_seq *s = &m->seq[seq];
    if (!s->live) continue;
    for (uint32_t i = s->n_written; i < s->n_reserved; i++)
      if (i >= s->n_prompt_tokens) s->token[i] = (int32_t)below(m, 3) - 1;
    digests(s->digest, s->token, s->n_written, s->n_reserved, s);
    for (uint32_t g = 0; g < m->model[s->model].n_groups; g++) {
      uint32_t n_entries, block = m->model[s->model].group[g].block_tokens;
      const weft_page *table = table_of(m, seq, g, &n_entries);
      if (m->model[s->model].group[g].state_pages != 0) compute_states(m, seq, g);
      if (m->model[s->model].group[g].state_pages != 0) continue;
      for (uint32_t p = s->n_written; p < s->n_reserved; p++) {
        m->cell[table[p / block]][p % block] = cell_of(s->digest[p], g);
        uint64_t before = p < block ? 0 : cell_of(s->digest[p / block * block - 1], g);
        m->before[table[p / block]] = before;
      }
    }
    s->n_written = s->n_reserved;
  }
  for (weft_page page = m->n_open; page < m->config.n_pages; page++) /* their memory is gone */
    memset(m->cell[page], 0xEE, sizeof m->cell[page]);
}

static void op_resize(mirror *m) {
  uint32_t n = 1 + below(m, m->config.n_pages), n_waiting = m->pager->n_copies_waiting;
  if (below(m, 2) == 0 && n < m->n_open) n = m->n_open - least(m->n_open - n, 1 + below(m, 8));
  weft_pager_stats before = weft_pager_get_stats(m->pager);
  weft_status status = weft_pager_resize(m->pager, n), expected = WEFT_OK;
  if (n < m->n_open && m->n_open - n > m->config.resize_pages && before.n_pinned + before.n_cached > 0)
    expected = WEFT_E_TOO_LARGE;
  else if (n < m->n_open && n_waiting > 0)
    expected = WEFT_AGAIN;
  else if (n < m->n_open && before.n_pinned > n)
    expected = WEFT_NO_BLOCKS;
  weft_pager_stats after = weft_pager_get_stats(m->pager);
  REQUIRE(status == expected, "a resize from %u to %u pages says %d", m->n_open, n, status);
  if (status != WEFT_OK) {
    REQUIRE(memcmp(&before, &after, sizeof before) == 0, "a refused resize changed a counter");
    return;
  }
  uint32_t n_had = before.n_pinned + before.n_cached;
  REQUIRE(after.n_pinned == before.n_pinned, "a resize took blocks of sequences");
  REQUIRE(n_had > n || after.n_evicted == before.n_evicted, "a resize evicted without need");
  m->n_open = n;
  for (uint32_t i = n_waiting; i < m->pager->n_copies_waiting; i++) {
    const weft_page_copy *copy = &m->pager->copy[i];
    if (copy->kind == WEFT_PAGE_TO_PAGE) follow_shift(m, copy->from, copy->to);
  }
  m->total.n_resized += 1;
}

/* Who computes a block that is CACHED holds that page from then on, if only until a window drops it
 * in the same commit. */
static void find_computed_twice(mirror *m, weft_seq seq, uint32_t n) {
  const model_seq *s = &m->seq[seq];
  for (uint32_t g = 0; s->cache && g < m->model[s->model].n_groups; g++) {
    uint32_t block = m->model[s->model].group[g].block_tokens, n_entries;
    const weft_page *table = table_of(m, seq, g, &n_entries);
    for (uint32_t i = s->n_valid / block; i < (s->n_valid + n) / block; i++) {
      if (table[i] == WEFT_PAGE_NONE) continue; /* a state that was not taken */
      weft_page page = page_with(m, s->model, g, cell_of(s->digest[(i + 1) * block - 1], g));
      if (page != WEFT_PAGE_NONE && m->shadow_held[page] == 0) m->payer[page] = payer_of(m, s, g, i);
    }
  }
}

static void op_commit(mirror *m) {
  weft_seq seq = pick(m);
  if (seq == WEFT_SEQ_NONE) return;
  model_seq *s = &m->seq[seq];
  uint32_t n = s->n_written - s->n_valid;
  if (below(m, 4) == 0) n = below(m, n + 1);
  while (!has_state_before(m, seq, s->n_valid + n)) n -= 1;
  find_computed_twice(m, seq, n);
  weft_pager_commit(m->pager, seq, s->token + s->n_valid, n);
  s->n_valid += n;
  if (m->pager->seq[seq].tail == PAGER_NODE_NONE) s->cache = false;
}

static void op_trim(mirror *m) {
  weft_seq seq = pick(m);
  if (seq == WEFT_SEQ_NONE) return;
  weft_pager_trim(m->pager, seq);
  m->seq[seq].n_reserved = m->seq[seq].n_written = m->seq[seq].n_valid;
}

/* The sequence's tables have all that a row at position n sees. */
static bool holds_window(const mirror *m, weft_seq seq, uint32_t n) {
  const weft_pager_model *model = &m->model[m->seq[seq].model];
  for (uint32_t g = 0; g < model->n_groups; g++) {
    uint32_t block = model->group[g].block_tokens, n_entries;
    if (model->group[g].state_pages != 0) continue;
    const weft_page *table = table_of(m, seq, g, &n_entries);
    for (uint32_t i = window_first(&model->group[g], n); i < (n + block - 1) / block; i++)
      if (table[i] == WEFT_PAGE_NONE) return false;
  }
  return has_state_before(m, seq, n);
}

static void op_fork(mirror *m) {
  weft_seq seq = pick(m), fork = WEFT_SEQ_NONE;
  if (seq == WEFT_SEQ_NONE) return;
  uint32_t n_live = 0;
  for (uint32_t i = 0; i < m->config.n_seqs; i++) n_live += m->seq[i].live;
  uint32_t n = m->seq[seq].n_valid;
  if (below(m, 2) == 0) n = below(m, n + 1);
  weft_status status = weft_pager_fork(m->pager, seq, n, &fork), expected = WEFT_OK;
  if (n_live == m->config.n_seqs) expected = WEFT_FULL;
  if (!holds_window(m, seq, n)) expected = WEFT_E_NOT_FOUND;
  REQUIRE(status == expected, "fork at %u of %u says %d", n, m->seq[seq].n_valid, status);
  if (status != WEFT_OK) return;
  REQUIRE(fork < m->config.n_seqs && !m->seq[fork].live, "sequence %u is taken", fork);
  m->seq[fork] = m->seq[seq];
  m->seq[fork].n_valid = m->seq[fork].n_reserved = m->seq[fork].n_written = n;
  m->seq[fork].cache = m->pager->seq[fork].tail != PAGER_NODE_NONE;
  REQUIRE(m->seq[fork].cache == (m->seq[seq].cache && n >= m->seq[seq].n_public), "fork at %u", n);
  m->total.n_forks += 1;
  if (below(m, 2) == 0) weft_pager_enter(m->pager, fork, false);
}

static void op_release(mirror *m) {
  weft_seq seq = pick(m);
  if (seq == WEFT_SEQ_NONE) return;
  model_seq *s = &m->seq[seq];
  history *h = &m->history[below(m, HISTORIES)];
  h->n = below(m, 2) == 0 || s->n_prompt_tokens < s->n_valid ? s->n_valid : s->n_prompt_tokens;
  h->model = s->model;
  h->domain = s->domain;
  h->n_public = s->n_public;
  memcpy(h->token, s->token, h->n * sizeof *h->token);
  weft_pager_release(m->pager, seq);
  s->live = false;
}

static void op_limit(mirror *m) {
  uint32_t owner = below(m, OWNERS);
  m->limit[owner] = below(m, 3) == 0 ? 0 : 1 + below(m, m->config.n_pages);
  weft_pager_set_owner_limit(m->pager, owner, m->limit[owner]);
}

static void op_reset(mirror *m) {
  weft_pager_reset_cache(m->pager);
  for (weft_seq seq = 0; seq < m->config.n_seqs; seq++) m->seq[seq].cache = false;
  REQUIRE(weft_pager_get_stats(m->pager).n_cached == 0, "cached after a reset");
}

static void operate(mirror *m) {
  uint32_t what = below(m, 100);
  if (what < 12)
    op_admit(m);
  else if (what < 38)
    op_reserve(m);
  else if (what < 54)
    op_device(m);
  else if (what < 84)
    op_commit(m);
  else if (what < 86)
    op_trim(m);
  else if (what < 89)
    op_fork(m);
  else if (what < 91 && pick(m) != WEFT_SEQ_NONE)
    weft_pager_mark(m->pager, pick(m));
  else if (what < 97)
    op_release(m);
  else if (what < 99)
    for (uint32_t n = below(m, 4); n-- > 0;) op_move(m);
  else if (below(m, 2) == 0)
    op_resize(m);
  else if (below(m, 8) == 0)
    op_reset(m);
  else if (below(m, 8) == 0)
    op_limit(m);
}

/* ---- episodes -------------------------------------------------------------------------------- */

static void make_config(mirror *m) {
  uint32_t n_host = below(m, 2) == 0 ? 0 : 1 + below(m, HOST_MAX);
  uint32_t n_file = n_host == 0 || below(m, 2) == 0 ? 0 : 1 + below(m, FILE_MAX);
  m->config = (weft_pager_config){.n_host_pages = n_host,
                                  .n_file_pages = n_file,
                                  .n_pages = 4 + below(m, n_file > 0 ? 24 : PAGES_MAX - 3),
                                  .resize_pages = below(m, 3) == 0 ? 0 : 1 + below(m, PAGES_MAX),
                                  .n_seqs = 1 + below(m, 1 + below(m, SEQS_MAX)),
                                  .seq_tokens_max = 40 + below(m, TOKENS_MAX - 39),
                                  .n_models = 1 + below(m, MODELS),
                                  .model = m->model,
                                  .journal_capacity = 4096,
                                  .no_prefix_cache = below(m, 30) == 0,
                                  .hash_seed = m->seed + 1};
  for (uint32_t i = 0; i < m->config.n_models; i++) {
    weft_pager_model *model = &m->model[i];
    *model = (weft_pager_model){.fingerprint = {9, 9}, .n_groups = 1 + below(m, GROUPS - 1)};
    if (below(m, 3) == 0) model->n_groups = 1;
    model->cost_doubles = below(m, 2) * below(m, below(m, 2) == 0 ? 10 : 200);
    bool windows = below(m, 3) != 0;
    m->block_max[i] = 1;
    m->windows[i] = false;
    for (uint32_t g = 0; g < model->n_groups; g++) {
      model->group[g].block_tokens = 1u << (below(m, 8) == 0 ? below(m, 5) : 1 + below(m, 4));
      if (windows && below(m, 2) == 0) model->group[g].window = 1 + below(m, 40);
      model->group[g].from_border = g > 0 && model->group[g].window != 0 && below(m, 3) == 0;
      if (model->group[g].block_tokens > m->block_max[i]) m->block_max[i] = model->group[g].block_tokens;
      m->windows[i] = m->windows[i] || model->group[g].window != 0;
    }
    if (model->group[0].window == 1) model->group[0].window = 0; /* else a hit may need no block at all */
    if (below(m, 2) == 0) add_states(m, i);
  }
  m->n_open = m->config.n_pages;
}

static void drain(mirror *m) {
  for (weft_seq seq = 0; seq < m->config.n_seqs; seq++)
    if (m->seq[seq].live) weft_pager_release(m->pager, seq);
  memset(m->seq, 0, sizeof m->seq);
  read_journal(m);
  follow_payers(m);
  require_counts(m);
  require_owners(m);
  require_all(m);
  weft_pager_stats stats = weft_pager_get_stats(m->pager);
  REQUIRE(stats.n_pinned == 0 && stats.n_seqs == 0, "%u pages pinned after drain", stats.n_pinned);
  weft_pager_reset_cache(m->pager);
  stats = weft_pager_get_stats(m->pager);
  REQUIRE(stats.n_free == m->n_open, "%u pages free after a reset", stats.n_free);
  REQUIRE(m->pager->n_nodes_live == 0, "%u nodes live after a reset", m->pager->n_nodes_live);
}

static void episode(mirror *m, uint64_t seed, uint32_t n_ops) {
  *m = (mirror){.seed = seed, .random = seed * 0xD6E8FEB86659FD93ull, .n_ops = n_ops, .total = m->total};
  weft_error error;
  make_config(m);
  REQUIRE(weft_pager_open(&m->config, &m->pager, &error) == WEFT_OK, "%s", error.text);
  if (below(m, 2) == 0) pager_test_weaken_hash(m->pager, below(m, 6));
  for (m->op = 0; m->op < n_ops; m->op++) {
    operate(m);
    read_journal(m);
    follow_payers(m);
    require_counts(m);
    require_owners(m);
    weft_seq seq = pick(m);
    if (seq != WEFT_SEQ_NONE) require_seq(m, seq);
    if (m->op % 16 == 0) require_all(m);
  }
  drain(m);
  weft_pager_close(m->pager);
}

int main(int argc, char **argv) {
  static mirror m;
  uint64_t n_ops = argc > 1 ? strtoull(argv[1], NULL, 10) : test_amount(500000, 1000000, 30000000);
  uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
  uint64_t n_done = 0;
  for (; n_done < n_ops; n_done += EPISODE, seed++)
    episode(&m, seed, n_ops - n_done < EPISODE ? (uint32_t)(n_ops - n_done) : EPISODE);
  printf(
      "%llu operations: %llu admits, %llu hits, %llu waits, %llu refusals, %llu evictions, %llu "
      "forks, %llu copies, %llu quotas, %llu without room, %llu hits beyond a public prefix, %llu to the host, %llu "
      "admits that brought "
      "back, %llu moves of the file, %llu waits for one, %llu lost; %llu states, %llu hits on one, %llu snapshots, "
      "%llu states brought back; %llu resizes that moved %llu pages\n",
      (unsigned long long)n_done, (unsigned long long)m.total.n_admits, (unsigned long long)m.total.n_hits,
      (unsigned long long)m.total.n_waits, (unsigned long long)m.total.n_refused, (unsigned long long)m.total.n_evicted,
      (unsigned long long)m.total.n_forks, (unsigned long long)m.total.n_copies, (unsigned long long)m.total.n_quota,
      (unsigned long long)m.total.n_roomless, (unsigned long long)m.total.n_public,
      (unsigned long long)m.total.n_spilled, (unsigned long long)m.total.n_restored,
      (unsigned long long)m.total.n_moved, (unsigned long long)m.total.n_lifts, (unsigned long long)m.total.n_lost,
      (unsigned long long)m.total.n_states, (unsigned long long)m.total.n_state_hits,
      (unsigned long long)m.total.n_snapshots, (unsigned long long)m.total.n_states_back,
      (unsigned long long)m.total.n_resized, (unsigned long long)m.total.n_shifted);
  if (argc <= 2 && n_ops >= 100000 &&
      (m.total.n_hits == 0 || m.total.n_waits == 0 || m.total.n_refused == 0 || m.total.n_copies == 0 ||
       m.total.n_evicted == 0 || m.total.n_quota == 0 || m.total.n_roomless == 0 || m.total.n_public == 0 ||
       m.total.n_spilled == 0 || m.total.n_restored == 0 || m.total.n_moved == 0 || m.total.n_lifts == 0 ||
       m.total.n_lost == 0 || m.total.n_states == 0 || m.total.n_state_hits == 0 || m.total.n_snapshots == 0 ||
       m.total.n_states_back == 0 || m.total.n_resized == 0 || m.total.n_shifted == 0)) {
    fprintf(stderr, "an outcome never happened: the test tests less than it says\n");
    return 1;
  }
  return 0;
}
