/* SPDX-License-Identifier: MIT */
/* Text on a terminal while it is being made: a canvas is drawn over itself after every denoise step, and replaced by
 * plain text once it is final. Without a terminal only final text is written.
 *
 * Law: what stays on the screen at the end is exactly the answer; control characters of the text are not sent to the
 * terminal. To take a canvas away again, the terminal must go back to a place that it has saved. The only place whose
 * column is known without knowing how wide the terminal draws each character is the beginning of a line, and a saved
 * place is wrong once the screen has scrolled. So the place is saved where the last line of the final text begins,
 * after room was made below for that line and the canvas; drawing begins with that line again. A line that leaves
 * no room on the screen has no canvas drawn behind it. */
#ifndef WEFT_API_CLI_SCREEN_H
#define WEFT_API_CLI_SCREEN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "api/weft.h"
#include "base/text.h"

/* Where text goes. n_columns and n_rows: 0 where the size of the terminal is not known, and without a terminal. */
typedef struct weft_terminal {
  FILE *to; /* borrowed */
  bool is_terminal;
  uint32_t n_columns, n_rows;
} weft_terminal;

typedef struct weft_screen {
  weft_terminal terminal;
  bool live;
  weft_text line;    /* final text after its last newline; live only */
  bool placed;       /* the terminal has saved where line begins, and nothing has scrolled since */
  bool has_no_place; /* line was begun without a saved place */
  bool wrote, ended_line;
} weft_screen;

/* The standard output as it is now. */
weft_terminal weft_terminal_stdout(void);

/* The cursor must be in the first column. wanted: canvases are drawn, where the terminal has room for them. */
void weft_screen_begin(weft_screen *screen, weft_terminal terminal, bool wanted);
void weft_screen_canvas(weft_screen *screen, const weft_delta *canvas);
void weft_screen_text(weft_screen *screen, const char *text, size_t n);
/* Frees too. */
void weft_screen_end(weft_screen *screen);

#endif
