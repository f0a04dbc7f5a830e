/* SPDX-License-Identifier: MIT */
/* Law: a windowed group holds, for a sequence, only the blocks that its next row can see. What
 * leaves the table stays valid and CACHED, because a later prompt may end its hit there:
 *
 *      |<------- window ------->|                       a hit that ends at boundary B needs every
 *  ----[====|====|====|====|====]B----------> positions block of the window before B, and no other
 *
 *   WARM  some boundary of the sequence needs the block: the end of its prompt, of its hit, a mark,
 * a node where prefixes part; or the sequence ended here COLD  none does: such a block is the first
 * to be evicted, so it costs nobody anything
 *
 * A boundary is a multiple of the largest block of the space, since only there all groups end a
 * block. */
#include "pager/pager_internal.h"

static uint64_t *boundaries(const weft_pager *pager, weft_seq seq) {
  return pager->boundary + (uint64_t)seq * pager->boundary_words;
}

void pager_boundary_set(weft_pager *pager, weft_seq seq, uint32_t position) {
  uint32_t index = position / pager->space[pager->seq[seq].space].block_max;
  if (index == 0 || pager->boundary_words == 0) return;
  WEFT_CHECK(index / 64 < pager->boundary_words);
  boundaries(pager, seq)[index / 64] |= UINT64_C(1) << (index % 64);
}

bool pager_boundary_at(const weft_pager *pager, weft_seq seq, uint32_t position) {
  uint32_t grain = pager->space[pager->seq[seq].space].block_max, index = position / grain;
  if ((position & (grain - 1)) != 0 || index / 64 >= pager->boundary_words) return false;
  return (boundaries(pager, seq)[index / 64] >> (index % 64) & 1) != 0;
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

/* The window before a boundary B holds the block iff  start < B  and  B - window < its last
 * position. */
static bool needed(const weft_pager *pager, weft_seq seq, const pager_group *group, uint32_t block) {
  uint64_t grain = pager->space[pager->seq[seq].space].block_max;
  uint64_t start = (uint64_t)block << group->shift;
  uint64_t low = start / grain + 1;
  uint64_t high = (start + group->block_tokens + group->window - 2) / grain;
  uint64_t last = (uint64_t)pager->boundary_words * 64 - 1;
  return any_boundary(boundaries(pager, seq), low, high < last ? high : last);
}

bool pager_block_is_needed(const weft_pager *pager, weft_seq seq, uint32_t g, uint32_t block) {
  const pager_group *group = &pager->space[pager->seq[seq].space].group[g];
  return group->window == 0 || needed(pager, seq, group, block);
}

void pager_window_drop(weft_pager *pager, weft_seq seq) {
  pager_seq *s = &pager->seq[seq];
  const pager_space *space = &pager->space[s->space];
  for (uint32_t i = 0; i < space->n_windowed; i++) {
    uint32_t g = space->windowed[i];
    const pager_group *group = &space->group[g];
    uint32_t first = pager_window_first(group, s->n_valid);
    weft_page *table = pager_table(pager, seq, g);
    for (uint32_t block = s->first[g]; block < first; block++) {
      weft_page page = table[block];
      table[block] = WEFT_PAGE_NONE;
      if (pager->page[page].node != PAGER_NODE_NONE && needed(pager, seq, group, block)) pager->page[page].keep = 1;
      pager_page_unpin(pager, page, PAGER_COLD);
      pager->stats.n_window_dropped += 1;
    }
    if (first > s->first[g]) s->first[g] = first;
  }
}

void pager_window_keep_block(weft_pager *pager, uint32_t place) {
  if (!pager_place_is_page(place)) return;
  pager->page[place].keep = 1;
  if (pager->page[place].state == PAGER_CACHED) pager_page_touch(pager, place);
}

/* The windows before the present end stay WARM, also those parts that already left the table. */
static void window_keep(weft_pager *pager, weft_seq seq) {
  pager_seq *s = &pager->seq[seq];
  const pager_space *space = &pager->space[s->space];
  uint32_t end = pager_boundary_below(space, s->n_valid), low[WEFT_GROUPS_MAX], lowest = UINT32_MAX;
  if (s->tail == PAGER_NODE_NONE || end == 0) return;
  for (uint32_t i = 0; i < space->n_windowed; i++) {
    const pager_group *group = &space->group[space->windowed[i]];
    low[i] = pager_window_first(group, end);
    if (low[i] >= s->first[space->windowed[i]]) continue; /* the table still holds all of it */
    if (low[i] * group->span < lowest) lowest = low[i] * group->span;
  }
  for (uint32_t node = s->tail; pager->node[node].depth > lowest; node = pager->node[node].parent) {
    uint32_t depth = pager->node[node].depth;
    for (uint32_t i = 0; i < space->n_windowed; i++) {
      uint32_t g = space->windowed[i], span = space->group[g].span;
      if ((depth & (span - 1)) != 0) continue;
      uint32_t block = depth / span - 1;
      if (block < s->first[g] && block >= low[i]) pager_window_keep_block(pager, pager_places(pager, node)[g]);
    }
  }
}

void weft_pager_mark(weft_pager *pager, weft_seq seq) {
  pager_seq *s = pager_seq_of(pager, seq);
  if (s->tail == PAGER_NODE_NONE) return;
  pager_boundary_set(pager, seq, pager_boundary_below(&pager->space[s->space], s->n_valid));
  window_keep(pager, seq);
}
