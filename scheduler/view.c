/* SPDX-License-Identifier: MIT */
#include "scheduler/view.h"

#include <string.h>

#include "base/memory.h"

weft_status weft_view_open(weft_view *view, uint32_t requests_max, const weft_grid *grid) {
  *view = (weft_view){.n_cells = grid->n_cells, .pages_per_cell = grid->pages_per_cell, .requests_max = requests_max};
  view->request = weft_alloc(requests_max, sizeof *view->request);
  view->cell = weft_alloc(view->n_cells, sizeof *view->cell);
  if (view->request != NULL && view->cell != NULL) return WEFT_OK;
  weft_view_close(view);
  return WEFT_E_NO_MEMORY;
}

void weft_view_close(weft_view *view) {
  weft_free(view->request);
  weft_free(view->cell);
  *view = (weft_view){0};
}

void weft_view_copy(const weft_view *from, weft_view *to) {
  weft_view_request *request = to->request;
  weft_grid_cell *cell = to->cell;
  *to = *from;
  to->request = request;
  to->cell = cell;
  memcpy(request, from->request, from->n_requests * sizeof *request);
  memcpy(cell, from->cell, from->n_cells * sizeof *cell);
}
