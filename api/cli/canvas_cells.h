/* SPDX-License-Identifier: MIT */
/* What of a canvas of this process is shown as what: noise, drawn, accepted.
 *
 * * Law: a view and its cells are valid until the next one is made; with a delta that has no trace, or without
 * memory, it is the plain text of the canvas. */
#ifndef WEFT_API_CLI_CANVAS_CELLS_H
#define WEFT_API_CLI_CANVAS_CELLS_H

#include "api/cli/screen.h"

typedef struct weft_canvas_cells {
  weft_text text; /* of all cells */
  weft_cell *cell;
  uint32_t n_max;
} weft_canvas_cells;

/* delta: WEFT_DELTA_CANVAS of a request with trace. */
weft_canvas_view weft_canvas_cells_view(weft_canvas_cells *cells, weft_runtime *runtime, const char *model,
                                        const weft_delta *delta);
void weft_canvas_cells_free(weft_canvas_cells *cells);

#endif
