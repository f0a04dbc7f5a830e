/* SPDX-License-Identifier: MIT */
/* Law: in a windowed group a sequence holds only the blocks that its next row can see. A block that leaves the block
 * table stays valid and CACHED, because the hit of a later prompt may end not far behind it:
 *
 *      |<------- window ------->|
 *  ----[====|====|====|====|====]B----------> positions
 *
 * A hit that ends at position B needs every block of the window before B and, of this group, no other. Positions where
 * a hit is likely to end are the boundaries of a sequence: the end of its own hit, the end of its prompt, a place where
 * the caller says that prompts part, a mark, a node where prefixes part, of a model with states each multiple of
 * snapshot_every in a prompt, and the position where the sequence ends. A boundary is a multiple of the largest block of
 * the model, because a hit can end only where all groups end a block. A block that no sequence holds any more is
 *
 *   WARM  if a boundary of a sequence that had it needs it; it is evicted in the order of its worth (pool.c)
 *   COLD  if none does; COLD blocks are evicted before all others, so they cost no other block its page. They include
 *         the blocks between the last boundary and the end of the sequence: no hit can end behind them before a later
 *         sequence has computed them again. */
#include "pager/pager_internal.h"

static uint64_t *boundary_words_of(const weft_pager *pager, weft_seq seq) {
  return pager->boundary + (uint64_t)seq * pager->boundary_words;
}

void pager_boundary_set(weft_pager *pager, weft_seq seq, uint32_t position) {
  uint32_t index = position / pager->model[pager->seq[seq].model].block_max;
  if (index == 0 || pager->boundary_words == 0) return;
  WEFT_CHECK(index / 64 < pager->boundary_words);
  boundary_words_of(pager, seq)[index / 64] |= UINT64_C(1) << (index % 64);
}

bool pager_boundary_at(const weft_pager *pager, weft_seq seq, uint32_t position) {
  uint32_t grain = pager->model[pager->seq[seq].model].block_max, index = position / grain;
  if ((position & (grain - 1)) != 0 || index / 64 >= pager->boundary_words) return false;
  return (boundary_words_of(pager, seq)[index / 64] >> (index % 64) & 1) != 0;
}

/* True when a bit in [low, high] is set. */
static bool any_boundary(const uint64_t *words, uint64_t low, uint64_t high) {
  for (uint64_t at = low / 64; low <= high && at <= high / 64; at++) {
    uint64_t word = words[at];
    if (at == low / 64) word &= UINT64_MAX << (low % 64);
    if (at == high / 64) word &= UINT64_MAX >> (63 - high % 64);
    if (word != 0) return true;
  }
  return false;
}

/* The window before a boundary B contains the block if and only if the block starts before B and its last position is
 * beyond B - window, or at or behind the last border before B. */
static bool window_needs_block(const weft_pager *pager, weft_seq seq, const pager_group *group, uint32_t block) {
  uint64_t grain = pager->model[pager->seq[seq].model].block_max;
  uint64_t start = (uint64_t)block << group->shift;
  uint64_t low = start / grain + 1;
  uint64_t last_seen = start + group->layers.block_tokens - 1, window = group->layers.window;
  uint64_t behind = group->layers.from_border ? (last_seen / window + 1) * window : last_seen + window;
  uint64_t high = (behind - 1) / grain;
  uint64_t last = (uint64_t)pager->boundary_words * 64 - 1;
  return any_boundary(boundary_words_of(pager, seq), low, high < last ? high : last);
}

bool pager_block_is_needed(const weft_pager *pager, weft_seq seq, uint32_t g, uint32_t block) {
  const pager_group *group = &pager->model[pager->seq[seq].model].group[g];
  return group->layers.window == 0 || window_needs_block(pager, seq, group, block);
}

void pager_window_drop(weft_pager *pager, weft_seq seq) {
  pager_seq *s = &pager->seq[seq];
  const pager_model *model = &pager->model[s->model];
  for (uint32_t i = 0; i < model->n_windowed; i++) {
    uint32_t g = model->windowed[i];
    const pager_group *group = &model->group[g];
    uint32_t first = pager_window_first(group, s->n_valid);
    weft_page *table = pager_table(pager, seq, g);
    for (uint32_t block = s->first[g]; block < first; block++) {
      weft_page page = table[block];
      if (page == WEFT_PAGE_NONE) continue; /* a state that nobody needed */
      table[block] = WEFT_PAGE_NONE;
      if (pager->page[page].node != PAGER_NODE_NONE && window_needs_block(pager, seq, group, block))
        pager->page[page].keep = 1;
      pager_block_unpin(pager, page, PAGER_COLD);
      pager->stats.n_window_dropped += 1;
    }
    if (first > s->first[g]) s->first[g] = first;
  }
  if (pager->run != NULL) pager_states_require(pager, seq);
}

void pager_window_keep_block(weft_pager *pager, uint32_t place) {
  if (!pager_place_is_page(place)) return;
  if (pager_is_state(pager, place)) {
    pager_run_keep(pager, place);
    return;
  }
  pager->page[place].keep = 1;
  if (pager->page[place].state == PAGER_CACHED) pager_page_touch(pager, place);
}

/* The blocks that a hit at the present end needs stay WARM, also those that have left the block table already. */
static void keep_window_at_end(weft_pager *pager, weft_seq seq) {
  pager_seq *s = &pager->seq[seq];
  const pager_model *model = &pager->model[s->model];
  uint32_t end = pager_boundary_below(model, s->n_valid), low[WEFT_GROUPS_MAX], lowest = UINT32_MAX;
  if (s->tail == PAGER_NODE_NONE || end == 0) return;
  for (uint32_t i = 0; i < model->n_windowed; i++) {
    const pager_group *group = &model->group[model->windowed[i]];
    low[i] = pager_window_first(group, end);
    if (low[i] >= s->first[model->windowed[i]]) continue; /* the block table still holds all of them */
    if (low[i] * group->span < lowest) lowest = low[i] * group->span;
  }
  for (uint32_t node = s->tail; pager->node[node].depth > lowest; node = pager->node[node].parent) {
    uint32_t depth = pager->node[node].depth;
    for (uint32_t i = 0; i < model->n_windowed; i++) {
      uint32_t g = model->windowed[i], span = model->group[g].span;
      if ((depth & (span - 1)) != 0) continue;
      uint32_t block = depth / span - 1;
      if (block < s->first[g] && block >= low[i]) pager_window_keep_block(pager, pager_places(pager, node)[g]);
    }
  }
}

void weft_pager_mark(weft_pager *pager, weft_seq seq) {
  pager_seq *s = pager_seq_of(pager, seq);
  if (s->tail == PAGER_NODE_NONE) return;
  pager_boundary_set(pager, seq, pager_boundary_below(&pager->model[s->model], s->n_valid));
  keep_window_at_end(pager, seq);
}
