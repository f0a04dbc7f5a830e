/* SPDX-License-Identifier: MIT */
#include "pager/grid.h"

#include <string.h>

#include "base/memory.h"
#include "pager/pager_internal.h"

weft_status weft_grid_open(weft_grid *grid, const weft_pager *pager) {
  uint32_t n = pager->n_pages, per_cell = (n + WEFT_GRID_CELLS_MAX - 1) / WEFT_GRID_CELLS_MAX;
  *grid = (weft_grid){
      .n_pages = n, .pages_per_cell = per_cell, .n_cells = (n + per_cell - 1) / per_cell, .n_marks = n / 64 + 1};
  grid->cell = weft_alloc(grid->n_cells, sizeof *grid->cell);
  grid->mark = weft_alloc(grid->n_marks, sizeof *grid->mark);
  grid->count = weft_alloc((size_t)WEFT_GRID_STATES * WEFT_OWNERS_MAX, sizeof *grid->count);
  if (grid->cell != NULL && grid->mark != NULL && grid->count != NULL) return WEFT_OK;
  weft_grid_close(grid);
  return WEFT_E_NO_MEMORY;
}

void weft_grid_close(weft_grid *grid) {
  weft_free(grid->cell);
  weft_free(grid->mark);
  weft_free(grid->count);
  *grid = (weft_grid){0};
}

/* ---- marks ------------------------------------------------------------------------------------ */

void weft_grid_clear_marks(weft_grid *grid) {
  if (grid->n_pinned == 0) return;
  memset(grid->mark, 0, grid->n_marks * sizeof *grid->mark);
  grid->n_pinned = 0;
}

static void mark_page(weft_grid *grid, weft_page page) {
  uint64_t bit = UINT64_C(1) << (page & 63), *word = &grid->mark[page >> 6];
  grid->n_pinned += (*word & bit) == 0;
  *word |= bit;
}

void weft_grid_mark(weft_grid *grid, const weft_pager *pager, weft_seq seq) {
  const pager_seq *s = pager_seq_of(pager, seq);
  const pager_model *model = &pager->model[s->model];
  for (uint32_t g = 0; g < model->n_groups; g++) {
    const weft_page *table = pager_table(pager, seq, g);
    for (uint32_t block = s->first[g]; block < s->end[g]; block++) {
      if (table[block] == WEFT_PAGE_NONE) continue;
      uint32_t n = pager_block_pages(pager, table[block]);
      for (uint32_t i = 0; i < n; i++) mark_page(grid, n == 1 ? table[block] : pager_run_list(pager, table[block])[i]);
    }
  }
}

/* ---- cells ------------------------------------------------------------------------------------ */

static bool is_marked(const weft_grid *grid, weft_page page) {
  return (grid->mark[page >> 6] >> (page & 63) & 1) != 0;
}

/* State and owner of a page as one number. */
static uint32_t look_at(const weft_grid *grid, const weft_pager *pager, weft_page page) {
  if (page >= pager->n_pages_touched) return WEFT_GRID_FREE;
  const pager_page *record = &pager->page[page];
  if (record->state == PAGER_MEMBER) record = &pager->page[record->next];
  if (record->state == PAGER_FREE) return WEFT_GRID_FREE;
  uint32_t state = record->state == PAGER_CACHED ? WEFT_GRID_CACHED
                   : is_marked(grid, page)       ? WEFT_GRID_PINNED
                                                 : WEFT_GRID_LIVE;
  return state * WEFT_OWNERS_MAX + record->owner;
}

/* What most of the pages [first, end) are. Equal pages in a row, as most are, are counted at once. */
static weft_grid_cell most_of(weft_grid *grid, const weft_pager *pager, weft_page first, weft_page end) {
  uint16_t seen[WEFT_GRID_STATES * WEFT_OWNERS_MAX];
  uint32_t n_seen = 0, most = 0;
  for (weft_page page = first; page < end;) {
    uint32_t what = look_at(grid, pager, page), n = 1;
    while (page + n < end && look_at(grid, pager, page + n) == what) n += 1;
    if (grid->count[what] == 0) seen[n_seen++] = (uint16_t)what;
    grid->count[what] = (uint16_t)(grid->count[what] + n);
    page += n;
  }
  for (uint32_t i = 0; i < n_seen; i++) {
    if (i == 0 || grid->count[seen[i]] > grid->count[most]) most = seen[i];
  }
  for (uint32_t i = 0; i < n_seen; i++) grid->count[seen[i]] = 0;
  return (weft_grid_cell){(uint8_t)(most / WEFT_OWNERS_MAX), (uint8_t)(most % WEFT_OWNERS_MAX)};
}

void weft_grid_begin(weft_grid *grid) {
  grid->next = 0;
}

bool weft_grid_scan(weft_grid *grid, const weft_pager *pager, uint32_t n_pages) {
  uint32_t n_cells = n_pages / grid->pages_per_cell + 1, left = grid->n_cells - grid->next;
  if (n_cells > left) n_cells = left;
  for (uint32_t i = 0; i < n_cells; i++) {
    weft_page first = grid->next * grid->pages_per_cell, end = first + grid->pages_per_cell;
    grid->cell[grid->next++] = most_of(grid, pager, first, end < grid->n_pages ? end : grid->n_pages);
  }
  return grid->next == grid->n_cells;
}
