/* SPDX-License-Identifier: MIT */
#include "api/cli/screen.h"

#include <stdio.h>
#include <string.h>

/* Columns from which on canvases are drawn, and the rows of one at least: one of text and the status line. */
enum { COLUMNS_MIN = 12, CANVAS_ROWS_MIN = 2, WIDE_STATUS = 50, STATUS_MAX = 96 };

#define SAVE_PLACE   "\0337"
#define TO_PLACE     "\0338"
#define ERASE_BELOW  "\033[J"
#define CLEAR_SCREEN "\033[H\033[2J"
#define UP_BY_FORMAT "\033[%uA"

static bool has_room(const weft_terminal *t) {
  return t->n_columns >= COLUMNS_MIN && t->n_rows > CANVAS_ROWS_MIN + 1;
}

void weft_screen_begin(weft_screen *s, weft_terminal terminal, bool wanted) {
  memset(s, 0, sizeof *s);
  s->terminal = terminal;
  s->live = wanted && terminal.moves && has_room(&terminal);
}

void weft_screen_plain(weft_screen *s) {
  s->live = false;
}

/* Rows that text takes at most when it begins in the first column, counted in columns that never are too few: a wide
 * character may leave the last column of a row free. */
typedef struct row_counter {
  size_t row, column, width;
} row_counter;

static row_counter begin_rows(const weft_screen *s) {
  return (row_counter){.width = s->terminal.n_columns - 1};
}

static void count_columns(row_counter *c, size_t n) {
  c->column += n;
  c->row += c->column / c->width;
  c->column %= c->width;
}

static row_counter count_line(const weft_screen *s) {
  row_counter c = begin_rows(s);
  count_columns(&c, weft_terminal_columns(s->line.bytes, s->line.n));
  return c;
}

/* Bytes of the canvas that end in the first n_rows rows, and how many rows they take; a newline begins a row. */
static size_t fit_canvas(const weft_screen *s, const weft_canvas_view *v, size_t n_rows, size_t *taken) {
  row_counter c = count_line(s), before = c;
  size_t at = 0;
  while (at < v->n_text && c.row < n_rows) {
    size_t n = 1;
    while (at + n < v->n_text && ((unsigned char)v->text[at + n] & 0xC0) == 0x80) n++;
    before = c;
    if (v->text[at] == '\n') {
      c = (row_counter){.row = c.row + 1, .width = c.width};
    } else {
      count_columns(&c, v->text[at] == '\t' ? 1 : weft_terminal_columns(v->text + at, n)); /* a tab is a blank there */
    }
    if (c.row < n_rows) at += n;
  }
  *taken = (c.row < n_rows ? c.row : before.row) + 1;
  return at;
}

static void put_line(const weft_screen *s) {
  weft_terminal_put(&s->terminal, s->line.bytes, s->line.n, false);
}

/* Saves the place with room for n_rows rows, if the screen has so many, and writes the line. The cursor is where
 * the line begins, with nothing below. */
static void begin_line(weft_screen *s, size_t n_rows) {
  s->placed = n_rows <= s->terminal.n_rows;
  s->has_no_place = !s->placed;
  if (s->placed) {
    s->n_rows = (uint32_t)n_rows;
    for (uint32_t i = 1; i < s->n_rows; i++) (void)fputc('\n', s->terminal.to);
    (void)fprintf(s->terminal.to, UP_BY_FORMAT SAVE_PLACE, s->n_rows - 1);
  }
  put_line(s);
}

static void begin_line_for_any(weft_screen *s) {
  begin_line(s, count_line(s).row + 1 + CANVAS_ROWS_MIN);
}

static void put_cells(const weft_screen *s, const weft_canvas_view *v, size_t n_shown) {
  static const weft_style styles[] = {
      [WEFT_CELL_NOISE] = WEFT_GREY, [WEFT_CELL_DRAWN] = WEFT_DIM, [WEFT_CELL_ACCEPTED] = WEFT_BOLD};
  const weft_cell whole = {.n = (uint32_t)v->n_text, .state = WEFT_CELL_DRAWN};
  const weft_cell *cell = v->n_cells > 0 ? v->cell : &whole;
  uint32_t n = v->n_cells > 0 ? v->n_cells : 1;
  weft_style style = WEFT_PLAIN;
  for (uint32_t i = 0; i < n && cell[i].at < n_shown; i++) {
    size_t end = cell[i].at + cell[i].n < n_shown ? cell[i].at + cell[i].n : n_shown;
    if (styles[cell[i].state] != style || i == 0) {
      if (i > 0) (void)fputs(weft_terminal_style(&s->terminal, WEFT_PLAIN), s->terminal.to);
      style = styles[cell[i].state];
      (void)fputs(weft_terminal_style(&s->terminal, style), s->terminal.to);
    }
    for (size_t at = cell[i].at; at < end;) {
      const char *newline = memchr(v->text + at, '\n', end - at);
      size_t stop = newline == NULL ? end : (size_t)(newline - v->text);
      weft_terminal_put(&s->terminal, v->text + at, stop - at, true);
      if (newline != NULL) (void)fputc('\n', s->terminal.to);
      at = newline == NULL ? end : stop + 1;
    }
  }
  (void)fputs(weft_terminal_style(&s->terminal, WEFT_PLAIN), s->terminal.to);
}

/* A line of its own below the canvas; shorter where the terminal is narrow. */
static void put_status(const weft_screen *s, const weft_canvas_view *v) {
  char status[STATUS_MAX], steps[24] = "";
  if (v->n_steps > 0)
    (void)snprintf(steps, sizeof steps, s->terminal.n_columns < WIDE_STATUS ? "/%u" : " of %u", v->n_steps);
  if (s->terminal.n_columns < WIDE_STATUS) {
    (void)snprintf(status, sizeof status, "%u: %u%s, %u/%u", v->block + 1, v->step + 1, steps, v->accepted,
                   v->n_positions);
  } else {
    (void)snprintf(status, sizeof status, "[canvas %u, step %u%s: %u of %u accepted]", v->block + 1, v->step + 1, steps,
                   v->accepted, v->n_positions);
  }
  (void)fprintf(s->terminal.to, "\n%s%.*s%s", weft_terminal_style(&s->terminal, WEFT_CYAN),
                (int)(s->terminal.n_columns - 1), status, weft_terminal_style(&s->terminal, WEFT_PLAIN));
}

void weft_screen_canvas(weft_screen *s, const weft_canvas_view *v) {
  if (!s->live || s->has_no_place) return;
  if (!s->placed) begin_line_for_any(s);
  if (!s->placed) return;
  size_t taken, n_shown = fit_canvas(s, v, s->terminal.n_rows - 1, &taken);
  (void)fputs(TO_PLACE ERASE_BELOW, s->terminal.to);
  if (taken + 1 > s->n_rows) {
    begin_line(s, taken + 1);
  } else {
    put_line(s);
  }
  put_cells(s, v, n_shown);
  put_status(s, v);
  (void)fflush(s->terminal.to); /* a terminal that is gone shows at the end */
}

static void keep_line(weft_screen *s, const char *text, size_t n, size_t n_complete) {
  if (n_complete > 0) {
    weft_text_append(&s->before, s->line.bytes, s->line.n);
    weft_text_append(&s->before, text, n_complete);
    s->line.n = 0;
  }
  weft_text_append(&s->line, text + n_complete, n - n_complete);
}

/* Text whose complete lines stay, and whose last line may be written again. */
static void put_live(weft_screen *s, const char *text, size_t n) {
  const char *newline = memrchr(text, '\n', n);
  size_t n_complete = newline == NULL ? 0 : (size_t)(newline + 1 - text);
  if (s->placed) {
    (void)fputs(TO_PLACE ERASE_BELOW, s->terminal.to);
    if (newline != NULL) put_line(s);
  }
  weft_terminal_put(&s->terminal, text, n_complete, false);
  keep_line(s, text, n, n_complete);
  if (weft_text_status(&s->line) != WEFT_OK || weft_text_status(&s->before) != WEFT_OK) {
    weft_terminal_put(&s->terminal, text + n_complete, n - n_complete, false); /* it cannot be written again */
    s->live = s->placed = false;
  } else if (newline == NULL && s->has_no_place) {
    weft_terminal_put(&s->terminal, text, n, false);
  } else {
    begin_line_for_any(s);
  }
}

void weft_screen_text(weft_screen *s, const char *text, size_t n) {
  if (n == 0) return;
  if (s->live) {
    put_live(s, text, n);
  } else {
    weft_terminal_put(&s->terminal, text, n, false);
  }
  (void)fflush(s->terminal.to);
  s->ended_line = text[n - 1] == '\n';
  s->wrote = true;
}

/* Where the cursor is cannot be known: a terminal may have broken its rows anew. */
void weft_screen_resize(weft_screen *s, uint32_t n_columns, uint32_t n_rows) {
  bool changed = n_columns != s->terminal.n_columns || n_rows != s->terminal.n_rows;
  s->terminal.n_columns = n_columns;
  s->terminal.n_rows = n_rows;
  if (!s->live || !changed) return;
  bool drawn = s->placed || s->has_no_place;
  s->placed = s->has_no_place = false;
  if (drawn) {
    (void)fputs(CLEAR_SCREEN, s->terminal.to);
    weft_terminal_put(&s->terminal, s->before.bytes, s->before.n, false);
  }
  if (!has_room(&s->terminal)) {
    s->live = false;
    if (drawn) put_line(s);
  } else if (drawn) {
    begin_line_for_any(s);
  }
  (void)fflush(s->terminal.to);
}

void weft_screen_end(weft_screen *s) {
  if (s->placed) {
    (void)fputs(TO_PLACE ERASE_BELOW, s->terminal.to);
    put_line(s);
  }
  if (s->wrote && !s->ended_line) (void)fputc('\n', s->terminal.to);
  (void)fflush(s->terminal.to);
  weft_text_free(&s->line);
  weft_text_free(&s->before);
  s->live = s->placed = false;
}
