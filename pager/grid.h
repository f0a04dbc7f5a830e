/* SPDX-License-Identifier: MIT */
/* The grid: a picture of the pool for who looks on, of bounded size however large the pool is.
 *
 * Law. A cell stands for pages_per_cell pages in a row, the last one for those that are left; it has the state and the
 * payer that most of them have. The pages of a state are like its first one. To look changes nothing in the pager. A
 * scan goes on where it left off, so that it can be spread over several steps; a cell is then as old as the step that
 * looked at it. Nothing is allocated after open. */
#ifndef WEFT_PAGER_GRID_H
#define WEFT_PAGER_GRID_H

#include "pager/pager.h"

enum { WEFT_GRID_CELLS_MAX = 4096 };

typedef enum weft_grid_state {
  WEFT_GRID_FREE = 0,
  WEFT_GRID_CACHED = 1,
  WEFT_GRID_LIVE = 2,   /* a sequence holds it */
  WEFT_GRID_PINNED = 3, /* one of those that the caller marked holds it */
  WEFT_GRID_STATES = 4
} weft_grid_state;

typedef struct weft_grid_cell {
  uint8_t state; /* weft_grid_state */
  uint8_t owner; /* who pays, or of a cached page paid last; of a free one 0 */
} weft_grid_cell;

typedef struct weft_grid {
  uint32_t n_pages, n_cells, pages_per_cell;
  weft_grid_cell *cell; /* [n_cells] */
  uint32_t next;        /* the cell that the scan looks at next */
  uint32_t n_pinned;    /* pages that are marked */
  uint64_t *mark;       /* [n_marks] a bit for each page that a marked sequence holds */
  uint32_t n_marks;
  uint16_t *count; /* [WEFT_GRID_STATES * WEFT_OWNERS_MAX] scratch: pages of the cell; zero between cells */
} weft_grid;

weft_status weft_grid_open(weft_grid *grid, const weft_pager *pager); /* NO_MEMORY */
void weft_grid_close(weft_grid *grid);                                /* a grid that is all zero is fine */
/* No page is marked any more. */
void weft_grid_clear_marks(weft_grid *grid);
/* Marks the pages that a sequence holds. */
void weft_grid_mark(weft_grid *grid, const weft_pager *pager, weft_seq seq);
/* Begins a scan from the first page. */
void weft_grid_begin(weft_grid *grid);
/* Looks at the cells of the next n_pages pages or a few more. True: all cells were looked at. */
bool weft_grid_scan(weft_grid *grid, const weft_pager *pager, uint32_t n_pages);

#endif
