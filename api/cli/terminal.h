/* SPDX-License-Identifier: MIT */
/* The terminal that standard output is, if it is one, and how foreign text gets there.
 *
 * * Law: text that somebody else made (answers, canvases, prompts, names) reaches a terminal through
 * weft_terminal_put alone, so that no byte of it can be a command to the terminal: control characters are shown
 * as '?', and so is what is no ASCII where the terminal does not take UTF-8. */
#ifndef WEFT_API_CLI_TERMINAL_H
#define WEFT_API_CLI_TERMINAL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "api/config.h"
#include "base/text.h"

/* Where text goes. n_columns and n_rows: 0 where the size of the terminal is not known, and without a terminal. */
typedef struct weft_terminal {
  FILE *to; /* borrowed */
  bool is_terminal;
  bool moves;    /* its cursor can be moved */
  bool colours;  /* it has them, and they are wanted */
  bool is_ascii; /* it takes no UTF-8 */
  uint32_t n_columns, n_rows;
} weft_terminal;

/* The standard output as it is now. config: whether colours are wanted; NULL: they are not. */
weft_terminal weft_terminal_stdout(const weft_config *config);
/* Asks for its size again. */
void weft_terminal_measure(weft_terminal *terminal);

/* Writes text as the law says; newlines and tabs are kept, with one_line they are blanks. Without a terminal the
 * bytes go as they are. */
void weft_terminal_put(const weft_terminal *terminal, const char *text, size_t n, bool one_line);
/* Columns that n bytes take at most: a character that is no ASCII takes up to two, a tab up to eight. */
size_t weft_terminal_columns(const char *text, size_t n);

/* The columns of the terminal that a descriptor is; 0: it is none, or does not know. */
uint32_t weft_terminal_width(int descriptor);
/* Appends words on lines of at most n_columns (0: on one line), all but the first line indented; blanks between words
 * become one. column: where the first word begins. Ends the line. */
void weft_terminal_wrap(weft_text *out, const char *words, uint32_t column, uint32_t indent, uint32_t n_columns);

typedef enum weft_style {
  WEFT_PLAIN,
  WEFT_BOLD,
  WEFT_DIM,
  WEFT_GREY,
  WEFT_RED,
  WEFT_GREEN,
  WEFT_YELLOW,
  WEFT_CYAN
} weft_style;
/* What begins a style, and WEFT_PLAIN ends it; "" where colours are not wanted. */
const char *weft_terminal_style(const weft_terminal *terminal, weft_style style);

#endif
