/* SPDX-License-Identifier: MIT */
/* What the mirror of a pager (pager_world.h) knows of states: which ones a sequence must have, what the device reads
 * and writes of them, and which pages they cost. */
#ifndef WEFT_TESTS_PAGER_WORLD_STATES_H
#define WEFT_TESTS_PAGER_WORLD_STATES_H

#include "tests/support/pager_world.h"

/* States of one page or of many, for one or two kinds of recurrence. */
static inline void add_states(mirror *m, uint32_t i) {
  weft_pager_model *model = &m->model[i];
  uint32_t n = below(m, 4) == 0 ? 2 : 1;
  for (; n > 0 && model->n_groups < GROUPS; n--) {
    uint32_t most = below(m, 3) == 0 ? STATE_PAGES : 4;
    weft_layer_group *group = &model->group[model->n_groups++];
    *group = (weft_layer_group){.block_tokens = 1u << below(m, 5), .state_pages = 1 + below(m, most)};
    if (group->block_tokens > m->block_max[i]) m->block_max[i] = group->block_tokens;
    m->windows[i] = true;
  }
}

/* The table has the state at the last border before n_valid, and what is valid holds what the tokens make of it. */
static inline void require_states(const mirror *m, weft_seq seq, uint32_t g, uint32_t *n_held) {
  const model_seq *s = &m->seq[seq];
  const weft_layer_group *group = &m->model[s->model].group[g];
  uint32_t n, block = group->block_tokens, first = window_first(group, s->n_valid);
  const weft_page *table = table_of(m, seq, g, &n);
  REQUIRE(n == s->n_reserved / block, "sequence %u: entries of group %u", seq, g);
  REQUIRE(weft_pager_state(m->pager, seq, g, 0) == NULL, "sequence %u has a state before its first token", seq);
  for (uint32_t i = 0; i < n; i++) {
    const weft_page *page = weft_pager_state(m->pager, seq, g, (i + 1) * block);
    REQUIRE((page == NULL) == (table[i] == WEFT_PAGE_NONE) && (page == NULL || page[0] == table[i]),
            "sequence %u, group %u: state %u", seq, g, i);
    if (i < first) REQUIRE(page == NULL, "sequence %u, group %u: holds state %u of %u", seq, g, i, first);
    if ((i + 1) * block <= s->n_valid && i == first) REQUIRE(page != NULL, "sequence %u, group %u: no state", seq, g);
    if (page == NULL) continue;
    *n_held += group->state_pages;
    for (uint32_t k = 0; k < group->state_pages && (i + 1) * block <= s->n_valid; k++)
      REQUIRE(m->cell[source_of(m, page[k])][block - 1] == state_cell(s->digest[(i + 1) * block - 1], g, k),
              "sequence %u, group %u, state %u: page %u of it, %u, holds other content", seq, g, i, k, page[k]);
  }
}

/* Pages of the snapshots at boundaries that the sure rows pass. */
static inline uint32_t snapshots_wanted(const mirror *m, weft_seq seq, uint32_t sure, uint32_t *n_own) {
  const model_seq *s = &m->seq[seq];
  uint32_t n = 0;
  for (uint32_t g = 0; g < m->model[s->model].n_groups; g++) {
    const weft_layer_group *group = &m->model[s->model].group[g];
    uint32_t n_entries;
    (void)table_of(m, seq, g, &n_entries);
    for (uint32_t i = n_entries; s->cache && group->state_pages != 0 && i + 1 < sure / group->block_tokens; i++) {
      if (!pager_boundary_at(m->pager, seq, (i + 1) * group->block_tokens)) continue;
      n += group->state_pages;
      *n_own += payer_of(m, s, g, i) == s->owner ? group->state_pages : 0;
    }
  }
  return n;
}

static inline bool has_states(const mirror *m) {
  for (uint32_t i = 0; i < m->config.n_models; i++)
    if (m->model[i].group[m->model[i].n_groups - 1].state_pages != 0) return true;
  return false;
}

/* A state is evicted whole, so a few pages more than needed may come free. */
static inline void require_evicted(mirror *m, uint32_t need, uint32_t n_free, uint64_t n_evicted) {
  uint32_t least_evicted = need > n_free ? need - n_free : 0;
  uint32_t more = has_states(m) && least_evicted > 0 ? STATE_PAGES - 1 : 0;
  REQUIRE(n_evicted >= least_evicted && n_evicted <= least_evicted + more, "evicted while pages were free");
  m->total.n_evicted += n_evicted;
}

/* Rows [n_written, n_reserved) read the state at their last border, and write those at the borders that they reach. */
static inline void compute_states(mirror *m, weft_seq seq, uint32_t g) {
  model_seq *s = &m->seq[seq];
  const weft_layer_group *group = &m->model[s->model].group[g];
  uint32_t block = group->block_tokens, border = s->n_written / block * block;
  if (s->n_written == s->n_reserved) return;
  const weft_page *from = weft_pager_state(m->pager, seq, g, border);
  REQUIRE((from == NULL) == (border == 0), "sequence %u, group %u: no state for the row at %u", seq, g, s->n_written);
  for (uint32_t k = 0; border > 0 && k < group->state_pages; k++)
    REQUIRE(m->cell[from[k]][block - 1] == state_cell(s->digest[border - 1], g, k), "sequence %u reads a wrong state",
            seq);
  for (border += block; border <= s->n_reserved; border += block) {
    const weft_page *to = weft_pager_state(m->pager, seq, g, border);
    REQUIRE(to != NULL || border + block <= s->n_reserved, "sequence %u, group %u: no state at %u", seq, g, border);
    m->total.n_states += to != NULL;
    for (uint32_t k = 0; to != NULL && k < group->state_pages; k++)
      m->cell[to[k]][block - 1] = state_cell(s->digest[border - 1], g, k);
  }
}

/* The last border before n tokens has a state. */
static inline bool has_state_before(const mirror *m, weft_seq seq, uint32_t n) {
  const weft_pager_model *model = &m->model[m->seq[seq].model];
  for (uint32_t g = 0; g < model->n_groups; g++) {
    const weft_layer_group *group = &model->group[g];
    uint32_t border = n / group->block_tokens * group->block_tokens;
    if (group->state_pages != 0 && border > 0 && weft_pager_state(m->pager, seq, g, border) == NULL) return false;
  }
  return true;
}

#endif
