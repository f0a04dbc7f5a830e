/* SPDX-License-Identifier: MIT */
#include "api/cli/screen.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { CANVAS_ROWS = 2, COLUMNS_MIN = 20 };

#define SAVE_PLACE   "\0337"
#define TO_PLACE     "\0338"
#define ERASE_BELOW  "\033[J"
#define DIM          "\033[2m"
#define NOT_DIM      "\033[0m"
#define UP_BY_FORMAT "\033[%uA"

weft_terminal weft_terminal_stdout(void) {
  struct winsize size;
  weft_terminal t = {.to = stdout, .is_terminal = isatty(STDOUT_FILENO) == 1};
  if (t.is_terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) {
    t.n_columns = size.ws_col;
    t.n_rows = size.ws_row;
  }
  return t;
}

void weft_screen_begin(weft_screen *s, weft_terminal terminal, bool wanted) {
  memset(s, 0, sizeof *s);
  s->terminal = terminal;
  s->live = wanted && terminal.is_terminal && terminal.n_columns >= COLUMNS_MIN && terminal.n_rows > CANVAS_ROWS + 1;
}

/* Writes text as it may appear on a terminal: newlines and tabs kept, other control characters shown as '?', those too
 * that Unicode has between U+0080 and U+009F (some terminals obey them). */
static void put_text(const weft_screen *s, const char *text, size_t n, bool one_line) {
  for (size_t i = 0; i < n; i++) {
    unsigned char c = (unsigned char)text[i];
    if (c == 0xC2 && i + 1 < n && (unsigned char)text[i + 1] < 0xA0) {
      i++;
      c = 0x7F;
    }
    if (c == '\n' && !one_line) {
      (void)fputc('\n', s->terminal.to);
    } else if (c == '\t' && !one_line) {
      (void)fputc('\t', s->terminal.to);
    } else if (c < 0x20 || c == 0x7F) {
      (void)fputc(c == '\n' ? ' ' : '?', s->terminal.to);
    } else {
      (void)fputc(c, s->terminal.to);
    }
  }
}

/* Rows that the line and a canvas behind it take at most: no character takes more columns than it has bytes, but a tab
 * takes up to eight; and a wide character may leave the last column of a row free. */
static uint32_t rows_at_most(const weft_screen *s) {
  size_t columns = s->line.n;
  for (size_t i = 0; i < s->line.n; i++) columns += s->line.bytes[i] == '\t' ? 7 : 0;
  size_t rows = 1 + columns / (s->terminal.n_columns - 1) + CANVAS_ROWS;
  return rows < UINT32_MAX ? (uint32_t)rows : UINT32_MAX;
}

/* Saves the place, if there is room, and writes the line. The cursor is where the line begins, with nothing below. */
static void begin_line(weft_screen *s) {
  uint32_t rows = rows_at_most(s);
  s->placed = rows <= s->terminal.n_rows;
  s->has_no_place = !s->placed;
  if (s->placed) {
    for (uint32_t i = 1; i < rows; i++) (void)fputc('\n', s->terminal.to);
    (void)fprintf(s->terminal.to, UP_BY_FORMAT SAVE_PLACE, rows - 1);
  }
  put_text(s, s->line.bytes, s->line.n, false);
}

void weft_screen_canvas(weft_screen *s, const weft_delta *d) {
  if (!s->live || s->has_no_place) return;
  if (!s->placed) begin_line(s);
  if (!s->placed) return;
  char label[64];
  int n_label = snprintf(label, sizeof label, "[step %2u, %3u of %3u kept] ", d->step + 1, d->accepted, d->n_tokens);
  size_t room = (size_t)(s->terminal.n_columns - 1) * CANVAS_ROWS;
  room = room > (size_t)n_label ? room - (size_t)n_label : 0;
  size_t n = d->n_text <= room ? d->n_text : weft_utf8_complete(d->text, room);
  (void)fprintf(s->terminal.to, TO_PLACE ERASE_BELOW);
  put_text(s, s->line.bytes, s->line.n, false);
  (void)fprintf(s->terminal.to, DIM);
  put_text(s, label, (size_t)n_label, true);
  put_text(s, d->text, n, true);
  (void)fprintf(s->terminal.to, NOT_DIM);
  (void)fflush(s->terminal.to); /* a terminal that is gone shows at the end */
}

/* Text whose complete lines stay, and whose last line may be written again. */
static void put_live(weft_screen *s, const char *text, size_t n) {
  const char *newline = memrchr(text, '\n', n);
  size_t n_complete = newline == NULL ? 0 : (size_t)(newline + 1 - text);
  if (s->placed) {
    (void)fprintf(s->terminal.to, TO_PLACE ERASE_BELOW);
    if (newline != NULL) put_text(s, s->line.bytes, s->line.n, false);
  }
  put_text(s, text, n_complete, false);
  if (newline != NULL) s->line.n = 0;
  weft_text_append(&s->line, text + n_complete, n - n_complete);
  if (weft_text_status(&s->line) != WEFT_OK) { /* cannot be written again: go on as without live drawing */
    put_text(s, text + n_complete, n - n_complete, false);
    s->live = s->placed = false;
  } else if (newline == NULL && s->has_no_place) {
    put_text(s, text, n, false);
  } else {
    begin_line(s);
  }
}

void weft_screen_text(weft_screen *s, const char *text, size_t n) {
  if (n == 0) return;
  if (s->live) {
    put_live(s, text, n);
  } else if (s->terminal.is_terminal) {
    put_text(s, text, n, false);
  } else {
    (void)fwrite(text, 1, n, s->terminal.to);
  }
  (void)fflush(s->terminal.to);
  s->ended_line = text[n - 1] == '\n';
  s->wrote = true;
}

void weft_screen_end(weft_screen *s) {
  if (s->placed) {
    (void)fprintf(s->terminal.to, TO_PLACE ERASE_BELOW);
    put_text(s, s->line.bytes, s->line.n, false);
  }
  if (s->wrote && !s->ended_line) (void)fputc('\n', s->terminal.to);
  (void)fflush(s->terminal.to);
  weft_text_free(&s->line);
  s->live = s->placed = false;
}
