/* SPDX-License-Identifier: MIT */
/* Law: every page is in one state, and this file makes all changes of state.
 *
 *            take                       unpin, published
 *    FREE ----------> PINNED (refs) ------------------------> CACHED: COLD or a WARM list
 *     ^                |        ^                               |   |
 *     +----------------+        +------------- pin -------------+   |
 *       unpin, not published                                        |
 *     ^------------- evict (COLD pages first, then the one due) ----+
 *
 * The order of eviction is GreedyDual (Young, 1994) in whole numbers. A page of worth w that becomes WARM when the
 * clock shows c is due at c + 2^w. The page that is due first is evicted, and the clock moves on to its `due`; nothing
 * else moves the clock. So a page whose worth is one higher is kept about twice as long, and a page that is not used
 * is evicted in the end, whatever its worth. Within the list of one worth the pages are due in the order in which they
 * came, so only the oldest page of each list has to be compared: O(1).
 *
 * A state is one entry of these lists, by its first page; its other pages share its state and are counted with it
 * (state.c).
 *
 * A sequence pins all blocks of a prefix and unpins them from the end, and no block is worth more than those before
 * it. So in a group that keeps every token a page is due no later than the pages before it in its prefix: what is
 * evicted is the tail of a prefix, and what stays can be reached from its head. */
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

static void page_list_remove(weft_pager *pager, weft_page page) {
  pager_page *record = &pager->page[page];
  pager->page[record->cached.older].next = record->next;
  pager->page[record->next].cached.older = record->cached.older;
}

static void page_list_append(weft_pager *pager, weft_page page, pager_list list) {
  uint32_t head = list_head(pager, list);
  uint32_t newest = pager->page[head].cached.older;
  if (list != PAGER_COLD) pager->page[page].cached.due = pager->clock + (1u << (list - PAGER_WARM));
  pager->page[page].next = head;
  pager->page[page].cached.older = newest;
  pager->page[newest].next = page;
  pager->page[head].cached.older = page;
}

/* What the next evictions will read is far apart in memory, so it is fetched ahead: of the next page to be evicted the
 * index line and the parent of its node, of the one after that its node, and of the third the page record. */
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

static inline void count_evicted(weft_pager *pager, weft_page page, uint32_t group_id, bool is_state) {
  weft_owner_usage *payer = &pager->owner[pager->page[page].owner];
  payer->n_cached -= 1;
  payer->n_evicted += 1;
  pager->usage[group_id].n_cached -= 1;
  pager->stats.n_cached -= 1;
  pager->stats.n_evicted += 1;
  if (is_state) pager_run_evicted(pager, page);
}

/* Takes the block that is to be evicted next out of its list and out of the index, and returns its page; of a state the
 * first, and the others become FREE. If `spill` is set, the content of a WARM block goes to host memory, if there is
 * any. */
static weft_page evict_next_page(weft_pager *pager, bool spill) {
  weft_page oldest[PAGER_N_LISTS];
  for (uint32_t list = 0; list < PAGER_N_LISTS; list++)
    oldest[list] = pager->page[list_head(pager, (pager_list)list)].next;
  pager_list first = pager_first_due(pager, oldest);
  weft_page page = oldest[first];
  bool warm = first != PAGER_COLD;
  if (warm) pager->clock = pager->page[page].cached.due;
  WEFT_CHECK(page < pager->n_pages && pager->page[page].state == PAGER_CACHED);
  prefetch_victims(pager, pager->page[page].next);
  page_list_remove(pager, page);
  bool is_state = pager_is_state(pager, page);
  count_evicted(pager, page, pager_group_id_at(pager, pager->page[page].node, pager->page[page].group), is_state);
  if (spill && warm && pager->n_host > 0 && pager_spill_out(pager, page)) {
    if (is_state) pager_run_dissolve(pager, page);
    return page;
  }
  pager_unpublish(pager, page);
  if (is_state) pager_run_dissolve(pager, page);
  if (pager->page[page].copy) pager_copies_cancel(pager, page);
  return page;
}

bool pager_evict_one(weft_pager *pager) {
  if (pager_spill_forget_oldest(pager)) return true;
  if (pager->stats.n_cached == 0) return false;
  pager_page_free(pager, evict_next_page(pager, false));
  return true;
}

void pager_evict_due(weft_pager *pager) {
  pager_page_free(pager, evict_next_page(pager, true));
}

/* A closed page that is met on the way leaves the free list (resize.c). */
weft_page pager_page_pop(weft_pager *pager) {
  weft_page page = pager->free_page;
  for (; page != PAGER_LINK_NONE && page >= pager->n_open; page = pager->page[page].next) pager->page[page].keep = 1;
  if (page == PAGER_LINK_NONE) {
    pager->free_page = page;
    page = pager->n_pages_touched++;
    WEFT_CHECK(page < pager->n_open);
  } else {
    pager->free_page = pager->page[page].next;
  }
  pager->stats.n_free -= 1;
  return page;
}

weft_page pager_page_find(weft_pager *pager) {
  return pager->stats.n_free == 0 ? evict_next_page(pager, true) : pager_page_pop(pager);
}

void pager_page_relink(weft_pager *pager, weft_page page, weft_page to) {
  pager_page *record = &pager->page[to];
  *record = pager->page[page];
  WEFT_CHECK(record->state == PAGER_CACHED);
  pager->page[record->cached.older].next = to & PAGER_LINK_NONE;
  pager->page[record->next].cached.older = to & PAGER_LINK_NONE;
}

/* The operator pays for what it holds, so that a pin counts against the limit of no tenant. */
static void operator_takes_over(weft_pager *pager, pager_page *record) {
  pager->owner[record->owner].n_pinned -= 1;
  pager->owner[WEFT_OWNER_OPERATOR].n_pinned += 1;
  record->owner = WEFT_OWNER_OPERATOR;
}

void pager_page_pin(weft_pager *pager, weft_page page, uint32_t owner, uint32_t group_id) {
  pager_page *record = &pager->page[page];
  if (record->state == PAGER_PINNED) {
    record->pinned.references += 1;
    if (owner == WEFT_OWNER_OPERATOR) operator_takes_over(pager, record);
    return;
  }
  WEFT_CHECK(record->state == PAGER_CACHED);
  page_list_remove(pager, page);
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

static pager_list warm_list_of(const weft_pager *pager, weft_page page) {
  return (pager_list)(PAGER_WARM + pager->node[pager->page[page].node].worth);
}

void pager_page_cache(weft_pager *pager, weft_page page, pager_list list) {
  pager_page *record = &pager->page[page];
  WEFT_CHECK(record->node != PAGER_NODE_NONE);
  record->state = PAGER_CACHED;
  pager->usage[record->pinned.group_id].n_cached += 1;
  pager->owner[record->owner].n_cached += 1;
  pager->stats.n_cached += 1;
  page_list_append(pager, page, record->keep || list != PAGER_COLD ? warm_list_of(pager, page) : list);
}

void pager_page_touch(weft_pager *pager, weft_page page) {
  WEFT_CHECK(pager->page[page].state == PAGER_CACHED);
  page_list_remove(pager, page);
  page_list_append(pager, page, warm_list_of(pager, page));
}

bool pager_block_sink(weft_pager *pager, weft_page page) {
  bool is_state = pager_is_state(pager, page), keep = pager->page[page].keep;
  uint32_t group_id = pager_group_id_at(pager, pager->page[page].node, pager->page[page].group);
  if (pager->n_host == 0 || !pager_spill_out(pager, page)) return false;
  page_list_remove(pager, page);
  pager->page[page].keep = keep; /* a state that is WARM leaves its chain */
  count_evicted(pager, page, group_id, is_state);
  if (is_state) pager_run_dissolve(pager, page);
  pager_page_free(pager, page);
  return true;
}

void pager_page_cool(weft_pager *pager, weft_page page) {
  WEFT_CHECK(pager->page[page].state == PAGER_CACHED);
  pager->page[page].keep = 0;
  page_list_remove(pager, page);
  page_list_append(pager, page, PAGER_COLD);
}
