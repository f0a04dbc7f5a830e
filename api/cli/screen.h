/* SPDX-License-Identifier: MIT */
/* Text on a terminal while it is being made: a canvas is drawn over itself after every denoise step, and replaced
 * by plain text once it is final. Without a terminal only final text is written.
 *
 * * Law: what stays on the screen at the end is exactly the answer; foreign text goes through weft_terminal_put.
 * To take a canvas away again, the terminal must go back to a place that it has saved. The only place whose
 * column is known without knowing how wide the terminal draws each character is the beginning of a line, and a
 * saved place is wrong once the screen has scrolled or has got another size. So the place is saved where the last
 * line of the final text begins, after room was made below for that line, the canvas and its status line; drawing
 * begins with that line again. A canvas that needs more room than was made is given it first, and is cut to what
 * the screen has. A line that leaves no room on the screen has no canvas drawn behind it. After a change of size
 * the screen is cleared and the answer so far written again. */
#ifndef WEFT_API_CLI_SCREEN_H
#define WEFT_API_CLI_SCREEN_H

#include <stdbool.h>
#include <stdint.h>

#include "api/cli/terminal.h"
#include "base/text.h"

/* How a position of a canvas stands after a step. */
typedef enum weft_cell_state {
  WEFT_CELL_NOISE,   /* the model is not sure of it: a random token stands there for the next step */
  WEFT_CELL_DRAWN,   /* the likeliest token was drawn, but not accepted in this step */
  WEFT_CELL_ACCEPTED /* it was accepted */
} weft_cell_state;

typedef struct weft_cell {
  uint32_t at, n; /* its bytes in the text of the canvas */
  weft_cell_state state;
} weft_cell;

/* A canvas after a denoise step; borrowed for the call. */
typedef struct weft_canvas_view {
  const char *text;
  size_t n_text;
  const weft_cell *cell; /* [n_cells] which follow one another in the text; without cells all of it is drawn */
  uint32_t n_cells;
  uint32_t block, step, n_steps, accepted, n_positions; /* counted from 0; n_steps 0: not known */
} weft_canvas_view;

typedef struct weft_screen {
  weft_terminal terminal;
  bool live;
  weft_text line;    /* final text after its last newline; live only */
  weft_text before;  /* final text before that; live only */
  bool placed;       /* the terminal has saved where line begins, and nothing has scrolled since */
  bool has_no_place; /* line was begun without a saved place */
  uint32_t n_rows;   /* made room for, from where line begins */
  bool wrote, ended_line;
} weft_screen;

/* The cursor must be in the first column. wanted: canvases are drawn, where the terminal has room for them. */
void weft_screen_begin(weft_screen *screen, weft_terminal terminal, bool wanted);
/* No canvas will come: text need not be written again. Before the first text. */
void weft_screen_plain(weft_screen *screen);
void weft_screen_canvas(weft_screen *screen, const weft_canvas_view *canvas);
void weft_screen_text(weft_screen *screen, const char *text, size_t n);
/* The terminal has another size now. */
void weft_screen_resize(weft_screen *screen, uint32_t n_columns, uint32_t n_rows);
/* Frees too. */
void weft_screen_end(weft_screen *screen);

#endif
