/* SPDX-License-Identifier: MIT */
#include "api/cli/screen.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/text.h"

void weft_screen_begin(weft_screen *s, bool wanted) {
  struct winsize size;
  memset(s, 0, sizeof *s);
  s->live = wanted && isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20;
  if (s->live) s->n_columns = size.ws_col;
}

/* Clears from the end of the final text to the end of the screen. */
static void erase(weft_screen *s) {
  if (s->n_drawn == 0) return;
  (void)printf("\0338\033[J"); /* back to the saved place, clear below */
  s->n_drawn = 0;
}

/* Writes text as it may appear on a terminal: newlines kept, other control characters shown as '?'. */
static void put(const char *text, size_t n, bool one_line) {
  for (size_t i = 0; i < n; i++) {
    unsigned char c = (unsigned char)text[i];
    if (c == '\n' && !one_line) {
      (void)putchar('\n');
    } else if (c == '\t' && !one_line) {
      (void)putchar('\t');
    } else if (c < 0x20 || c == 0x7F) {
      (void)putchar(c == '\n' ? ' ' : '?');
    } else {
      (void)putchar(c);
    }
  }
}

void weft_screen_canvas(weft_screen *s, const weft_delta *d) {
  if (!s->live) return;
  if (s->n_drawn == 0) {
    (void)printf("\n\n\033[2A\0337"); /* room below, then remember the place */
  }
  (void)printf("\0338\033[J");
  size_t room = (size_t)s->n_columns * 2 - 24, n = d->n_text < room ? d->n_text : room;
  n = n < d->n_text ? weft_utf8_complete(d->text, n) : n;
  (void)printf("\033[2m[step %2u, %3u of %3u kept] ", d->step + 1, d->accepted, d->n_tokens);
  put(d->text, n, true);
  (void)printf("\033[0m");
  (void)fflush(stdout); /* a terminal that is gone shows at the end */
  s->n_drawn = 1;
}

void weft_screen_text(weft_screen *s, const char *text, size_t n) {
  erase(s);
  if (n == 0) return;
  if (isatty(STDOUT_FILENO)) {
    put(text, n, false);
  } else {
    (void)fwrite(text, 1, n, stdout);
  }
  (void)fflush(stdout);
  s->ended_line = text[n - 1] == '\n';
  s->wrote = true;
}

void weft_screen_end(weft_screen *s) {
  erase(s);
  if (s->wrote && !s->ended_line) (void)putchar('\n');
  (void)fflush(stdout);
}
