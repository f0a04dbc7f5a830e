/* SPDX-License-Identifier: MIT */
/* A small terminal: what a person sees after some bytes were written to it.
 *
 * Law: it knows what `weft` sends and fails on anything else: printable UTF-8 (one column, wide ones two), CR, LF, tab,
 * save and restore of the place (ESC 7, ESC 8), erase below, cursor up, and attributes. As a real one it wraps
 * before the character after the last column, scrolls at the bottom, and keeps what scrolled away. */
#ifndef WEFT_TESTS_TERMINAL_SCREEN_H
#define WEFT_TESTS_TERMINAL_SCREEN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

enum { TERMINAL_COLUMNS_MAX = 120, TERMINAL_LINES_MAX = 4096, SECOND_HALF = 1 };

typedef struct terminal_screen {
  uint32_t n_columns, n_rows, top; /* top: first line on the screen; lines above have scrolled away */
  uint32_t row, column;            /* on the screen; column n_columns: wraps before the next character */
  uint32_t saved_row, saved_column;
  const char *wrong; /* what it did not understand */
  uint32_t cell[TERMINAL_LINES_MAX][TERMINAL_COLUMNS_MAX];
} terminal_screen;

static inline terminal_screen *terminal_open(uint32_t n_rows, uint32_t n_columns) {
  terminal_screen *t = calloc(1, sizeof *t);
  if (t == NULL) abort();
  t->n_rows = n_rows;
  t->n_columns = n_columns;
  return t;
}

static inline void terminal_line_feed(terminal_screen *t) {
  if (t->row + 1 < t->n_rows) {
    t->row++;
  } else if (t->top + t->n_rows + 1 < TERMINAL_LINES_MAX) {
    t->top++;
  } else {
    t->wrong = "too many lines";
  }
  if (t->column == t->n_columns) t->column--;
}

static inline void terminal_put(terminal_screen *t, uint32_t character) {
  bool wide = character >= 0x1100 && (character >= 0x1F300 || (character >= 0x2E80 && character <= 0xD7A3));
  if (t->column + (wide ? 2 : 1) > t->n_columns) {
    t->column = 0;
    terminal_line_feed(t);
  }
  uint32_t *line = t->cell[t->top + t->row];
  line[t->column++] = character;
  if (wide) line[t->column++] = SECOND_HALF;
}

static inline void terminal_erase_below(terminal_screen *t) {
  uint32_t from = t->column == t->n_columns ? t->column - 1 : t->column;
  for (uint32_t r = t->row; r < t->n_rows; r++, from = 0) {
    memset(&t->cell[t->top + r][from], 0, (t->n_columns - from) * sizeof t->cell[0][0]);
  }
}

/* After ESC: how many bytes it took. */
static inline size_t terminal_escape(terminal_screen *t, const char *bytes, size_t n) {
  if (n > 0 && bytes[0] == '7') {
    t->saved_row = t->row;
    t->saved_column = t->column;
    return 1;
  }
  if (n > 0 && bytes[0] == '8') {
    t->row = t->saved_row;
    t->column = t->saved_column;
    return 1;
  }
  uint32_t number = 0;
  size_t at = 1;
  if (n == 0 || bytes[0] != '[') {
    t->wrong = "an unknown escape";
    return n;
  }
  for (; at < n && bytes[at] >= '0' && bytes[at] <= '9'; at++) number = number * 10 + (uint32_t)(bytes[at] - '0');
  char last = at < n ? bytes[at] : 0;
  if (last == 'J' && number == 0) {
    terminal_erase_below(t);
  } else if (last == 'A') {
    if (number == 0) number = 1;
    t->row = number < t->row ? t->row - number : 0;
    if (t->column == t->n_columns) t->column--;
  } else if (last != 'm') {
    t->wrong = "an unknown control sequence";
  }
  return at + 1;
}

static inline void terminal_write(terminal_screen *t, const char *bytes, size_t n) {
  for (size_t i = 0; i < n && t->wrong == NULL;) {
    uint32_t character;
    size_t length = weft_utf8_decode(bytes + i, n - i, &character);
    if (length == 0) {
      t->wrong = "bytes that are no UTF-8";
      return;
    }
    i += length;
    if (character == 0x1B) {
      i += terminal_escape(t, bytes + i, n - i);
    } else if (character == '\r') {
      t->column = 0;
    } else if (character == '\n') {
      terminal_line_feed(t);
    } else if (character == '\t') {
      uint32_t stop = (t->column / 8 + 1) * 8;
      t->column = stop < t->n_columns ? stop : t->n_columns - 1;
    } else if (character < 0x20 || (character >= 0x7F && character < 0xA0)) {
      t->wrong = "a control character";
    } else {
      terminal_put(t, character);
    }
  }
}

/* All that can be seen, also by scrolling back: lines without blanks at their ends, no empty lines at the end. The
 * caller frees the text. */
static inline void terminal_text(const terminal_screen *t, weft_text *out) {
  uint32_t n_empty = 0;
  for (uint32_t r = 0; r < t->top + t->n_rows; r++) {
    uint32_t end = t->n_columns;
    while (end > 0 && (t->cell[r][end - 1] == 0 || t->cell[r][end - 1] == ' ')) end--;
    if (end == 0) {
      n_empty++;
      continue;
    }
    for (; n_empty > 0; n_empty--) weft_text_puts(out, "\n");
    for (uint32_t c = 0; c < end; c++) {
      char bytes[4] = " ";
      size_t length = t->cell[r][c] == 0 ? 1 : weft_utf8_encode(t->cell[r][c], bytes);
      if (t->cell[r][c] != SECOND_HALF) weft_text_append(out, bytes, length);
    }
    weft_text_puts(out, "\n");
  }
}

#endif
