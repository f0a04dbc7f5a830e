/* SPDX-License-Identifier: MIT */
/* Law: pages from n_open on are closed: FREE, and never taken. A closed page that was used is in the free list, as any
 * FREE page is, until a search for an open one meets it there and takes it out; it says so (keep), so that it is put
 * back when it opens. So closing a page costs the same however long the free list is.
 *
 *   0            n_open               n_pages_touched        n_pages
 *   | open        | closed, once used  | never used           |
 *
 * A move changes where a block lies and nothing else: its references, its payer, its node, its place among the blocks
 * that are evicted before and after it. Block tables are rewritten in one pass, for which the record of a page that was
 * moved names the page that it was moved to. */
#include "pager/resize.h"

#include "pager/pager_internal.h"

/* The pages [from, to) that were ever used. */
static weft_page end_of_touched(const weft_pager *pager, weft_page to) {
  return to < pager->n_pages_touched ? to : pager->n_pages_touched;
}

static void open_pages(weft_pager *pager, uint32_t n) {
  for (weft_page page = end_of_touched(pager, n); page-- > pager->n_open;) {
    if (!pager->page[page].keep) continue;
    pager->page[page].keep = 0;
    pager->page[page].next = pager->free_page & PAGER_LINK_NONE;
    pager->free_page = page;
  }
  pager->stats.n_free += n - pager->n_open;
  pager->stats.n_pages = pager->n_open = n;
}

/* The list of a state names `to` instead of the page, and so do its members if it is the first one. */
static void move_in_run(weft_pager *pager, weft_page first, weft_page page, weft_page to) {
  weft_page *list = pager->table + pager->run_base + pager->run[first] + PAGER_RUN_HEAD;
  uint32_t n = pager_run_length(pager, first), i = 0;
  while (i < n && list[i] != page) i++;
  WEFT_CHECK(i < n);
  list[i] = to;
  if (page != first) return;
  for (i = 1; i < n; i++) pager->page[list[i]].next = to & PAGER_LINK_NONE;
  pager->run[to] = pager->run[page];
  pager->run[page] = 0;
}

/* What the page holds lies in another one from now on, which its own record names. */
static void move_page(weft_pager *pager, weft_page page) {
  pager_page *record = &pager->page[page];
  weft_page to = pager_page_pop(pager), first = record->state == PAGER_MEMBER ? record->next : page;
  bool published = record->state != PAGER_MEMBER && record->node != PAGER_NODE_NONE;
  if (published) pager_journal_block(pager, WEFT_JOURNAL_REMOVED, page);
  if (pager_is_state(pager, first)) move_in_run(pager, first, page, to);
  if (record->state == PAGER_CACHED)
    pager_page_relink(pager, page, to);
  else
    pager->page[to] = *record;
  if (published) pager_places(pager, record->node)[record->group] = to;
  if (published) pager_journal_block(pager, WEFT_JOURNAL_STORED, to);
  pager_copy_emit(pager, WEFT_PAGE_TO_PAGE, page, to);
  record->next = to & PAGER_LINK_NONE;
}

/* Entries of block tables that name pages [from, end) name those that these were moved to. */
static void rewrite_tables(weft_pager *pager, weft_page from, weft_page end) {
  for (weft_seq seq = 0; seq < pager->n_seqs_touched; seq++) {
    const pager_seq *s = &pager->seq[seq];
    if (!s->live) continue;
    for (uint32_t g = 0; g < pager->model[s->model].n_groups; g++) {
      weft_page *table = pager_table(pager, seq, g);
      for (uint32_t block = s->first[g]; block < s->end[g]; block++)
        if (table[block] >= from && table[block] < end) table[block] = pager->page[table[block]].next;
    }
  }
}

static void close_pages(weft_pager *pager, uint32_t n) {
  weft_page end = end_of_touched(pager, pager->n_open);
  uint32_t n_free = pager->n_open - (end > n ? end : n);
  for (weft_page page = n; page < end; page++) n_free += pager->page[page].state == PAGER_FREE;
  pager->stats.n_free -= n_free;
  pager->stats.n_pages = pager->n_open = n;
  while (pager->stats.n_pinned + pager->stats.n_cached > n) pager_evict_due(pager);
  bool in_tables = false;
  for (weft_page page = n; page < end; page++) {
    if (pager->page[page].state == PAGER_FREE) continue;
    in_tables = in_tables || pager->page[page].state == PAGER_PINNED;
    move_page(pager, page);
  }
  if (in_tables) rewrite_tables(pager, n, end);
  for (weft_page page = n; page < end; page++) {
    if (pager->page[page].state == PAGER_FREE) continue;
    pager->page[page].copy = 0; /* a copy reads it, and none fills it */
    pager_page_free(pager, page);
  }
}

weft_status weft_pager_resize(weft_pager *pager, uint32_t n_pages) {
  WEFT_CHECK(n_pages >= 1 && n_pages <= pager->n_pages);
  if (n_pages >= pager->n_open) {
    open_pages(pager, n_pages);
    return WEFT_OK;
  }
  bool empty = pager->stats.n_pinned + pager->stats.n_cached == 0;
  if (pager->n_open - n_pages > pager->moves_max && !empty) return WEFT_E_TOO_LARGE;
  if (pager->n_copies_waiting > 0) return WEFT_AGAIN;
  if (pager->stats.n_pinned > n_pages) return WEFT_NO_BLOCKS;
  close_pages(pager, n_pages);
  return WEFT_OK;
}
