/* SPDX-License-Identifier: MIT */
/* Law: every page is in one state, and this file makes all the changes between them.
 *
 *            take                       unpin, published
 *    FREE ----------> PINNED (refs) ------------------------> CACHED: COLD or a WARM list
 *     ^                |        ^                               |   |
 *     +----------------+        +------------- pin -------------+   |
 *       unpin, not published                                        |
 *     ^------------------- evict (COLD first, then who is due) -----+
 *
 * A WARM page of worth w is due when the clock has advanced by 2^w since it was let go; the clock
 * is moved by eviction, to when the evicted page was due. So a page that is worth twice as much is
 * kept about twice as long, and what nobody uses is evicted in the end whatever it is worth. Lists
 * of one worth are in order by themselves: only their oldest pages are compared, O(1).
 *
 * A sequence pins whole chains and unpins them tail first, and no block is worth more than those
 * before it. So in a group that keeps all tokens a page is due no later than the pages before it in
 * the chain: tails go before heads. */
#include "pager/spill.h"

static uint32_t list_head(const weft_pager *pager, pager_list list) {
  return pager->n_pages + (uint32_t)list;
}

void pager_lists_reset(weft_pager *pager) {
  for (uint32_t list = 0; list < PAGER_N_LISTS; list++) {
    uint32_t head = list_head(pager, (pager_list)list);
    pager->page[head].next = pager->page[head].cached.older = head;
    pager->page[head].node = PAGER_NODE_NONE;
  }
}

static void list_remove(weft_pager *pager, weft_page page) {
  pager_page *record = &pager->page[page];
  pager->page[record->cached.older].next = record->next;
  pager->page[record->next].cached.older = record->cached.older;
}

static void list_append(weft_pager *pager, weft_page page, pager_list list) {
  uint32_t head = list_head(pager, list);
  uint32_t newest = pager->page[head].cached.older;
  if (list != PAGER_COLD) pager->page[page].cached.due = pager->clock + (1u << (list - PAGER_WARM));
  pager->page[page].next = head;
  pager->page[page].cached.older = newest;
  pager->page[newest].next = page;
  pager->page[head].cached.older = page;
}

/* What the next evictions will read is far apart in memory: ask for it now. The page three further
 * on, the node of the second, the index line and the parent of the first. */
static void prefetch_victims(const weft_pager *pager, weft_page first) {
  weft_page second = pager->page[first].next;
  __builtin_prefetch(&pager->page[pager->page[second].next]);
  uint32_t node = pager->page[second].node;
  if (node != PAGER_NODE_NONE) {
    __builtin_prefetch(&pager->node[node], 1);
    __builtin_prefetch(pager_places(pager, node) + pager->page[second].group, 1);
  }
  node = pager->page[first].node;
  if (node == PAGER_NODE_NONE) return;
  const pager_node *record = &pager->node[node];
  uint64_t index_line = ((uint64_t)record->hash[1] * pager->n_lines) >> 32;
  __builtin_prefetch(pager->line + index_line * PAGER_LINE_WORDS, 1);
  __builtin_prefetch(&pager->node[record->parent], 1);
}

pager_list pager_first_due(const weft_pager *pager, const weft_page oldest[PAGER_N_LISTS]) {
  if (oldest[PAGER_COLD] < pager->n_pages) return PAGER_COLD;
  pager_list first = PAGER_WARM;
  uint32_t soonest = UINT32_MAX;
  for (uint32_t list = PAGER_WARM; list < PAGER_N_LISTS; list++) {
    if (oldest[list] >= pager->n_pages) continue;
    uint8_t wait = (uint8_t)(pager->page[oldest[list]].cached.due - pager->clock);
    if (wait >= soonest) continue;
    soonest = wait;
    first = (pager_list)list;
  }
  return first;
}

/* The page whose turn it is, out of its list and of the index. What is worth keeping goes to the host,
 * if there is one (spill). */
static weft_page evict(weft_pager *pager, bool spill) {
  weft_page oldest[PAGER_N_LISTS];
  for (uint32_t list = 0; list < PAGER_N_LISTS; list++)
    oldest[list] = pager->page[list_head(pager, (pager_list)list)].next;
  pager_list first = pager_first_due(pager, oldest);
  weft_page page = oldest[first];
  bool warm = first != PAGER_COLD;
  if (warm) pager->clock = pager->page[page].cached.due;
  WEFT_CHECK(page < pager->n_pages && pager->page[page].state == PAGER_CACHED);
  prefetch_victims(pager, pager->page[page].next);
  list_remove(pager, page);
  weft_owner_usage *payer = &pager->owner[pager->page[page].owner];
  payer->n_cached -= 1;
  payer->n_evicted += 1;
  pager->usage[pager_group_id_at(pager, pager->page[page].node, pager->page[page].group)].n_cached -= 1;
  pager->stats.n_cached -= 1;
  pager->stats.n_evicted += 1;
  if (spill && warm && pager->n_host > 0 && pager_spill_out(pager, page)) return page;
  pager_unpublish(pager, page);
  if (pager->page[page].copy) pager_copies_cancel(pager, page);
  return page;
}

bool pager_evict_one(weft_pager *pager) {
  if (pager_spill_forget_oldest(pager)) return true;
  if (pager->stats.n_cached == 0) return false;
  pager_page_free(pager, evict(pager, false));
  return true;
}

weft_page pager_page_find(weft_pager *pager) {
  if (pager->n_pages_touched == pager->n_pages) return evict(pager, true);
  pager->stats.n_free -= 1;
  return pager->n_pages_touched++;
}

/* What the operator holds counts against nobody's limit. */
static void take_over(weft_pager *pager, pager_page *record) {
  pager->owner[record->owner].n_pinned -= 1;
  pager->owner[WEFT_OWNER_OPERATOR].n_pinned += 1;
  record->owner = WEFT_OWNER_OPERATOR;
}

void pager_page_pin(weft_pager *pager, weft_page page, uint32_t owner, uint32_t group_id) {
  pager_page *record = &pager->page[page];
  if (record->state == PAGER_PINNED) {
    record->pinned.references += 1;
    if (owner == WEFT_OWNER_OPERATOR) take_over(pager, record);
    return;
  }
  WEFT_CHECK(record->state == PAGER_CACHED);
  list_remove(pager, page);
  pager->usage[group_id].n_cached -= 1;
  pager->usage[group_id].n_pinned += 1;
  pager->owner[record->owner].n_cached -= 1;
  pager->owner[owner].n_pinned += 1;
  record->state = PAGER_PINNED;
  record->pinned.references = 1;
  record->pinned.group_id = group_id & 0xFF;
  record->owner = owner & 0xFF;
  pager->stats.n_cached -= 1;
  pager->stats.n_pinned += 1;
}

static pager_list warm_list(const weft_pager *pager, weft_page page) {
  return (pager_list)(PAGER_WARM + pager->node[pager->page[page].node].worth);
}

void pager_page_cache(weft_pager *pager, weft_page page, pager_list list) {
  pager_page *record = &pager->page[page];
  WEFT_CHECK(record->node != PAGER_NODE_NONE);
  record->state = PAGER_CACHED;
  pager->usage[record->pinned.group_id].n_cached += 1;
  pager->owner[record->owner].n_cached += 1;
  pager->stats.n_cached += 1;
  list_append(pager, page, record->keep || list != PAGER_COLD ? warm_list(pager, page) : list);
}

void pager_page_touch(weft_pager *pager, weft_page page) {
  WEFT_CHECK(pager->page[page].state == PAGER_CACHED);
  list_remove(pager, page);
  list_append(pager, page, warm_list(pager, page));
}
