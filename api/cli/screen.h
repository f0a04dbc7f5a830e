/* SPDX-License-Identifier: MIT */
/* Text on a terminal while it is being made: a canvas is drawn over itself after every denoise step, and replaced by
 * plain text once it is final. Without a terminal only final text is written.
 *
 * Law: what stays on the screen at the end is exactly the answer; control characters of the text are not sent to the
 * terminal. */
#ifndef WEFT_API_CLI_SCREEN_H
#define WEFT_API_CLI_SCREEN_H

#include <stdbool.h>
#include <stdint.h>

#include "api/weft.h"

typedef struct weft_screen {
  bool live;
  uint32_t n_columns;
  uint32_t column;  /* where the final text ends */
  uint32_t n_drawn; /* lines of a drawn canvas below that point */
  bool ended_line;
  bool wrote;
} weft_screen;

void weft_screen_begin(weft_screen *screen, bool wanted);
void weft_screen_canvas(weft_screen *screen, const weft_delta *canvas);
void weft_screen_text(weft_screen *screen, const char *text, size_t n);
void weft_screen_end(weft_screen *screen);

#endif
