/* SPDX-License-Identifier: MIT */
/* weft top: a running server, live. Every view shows what changed since the one before: rates per second, and
 * latencies of the requests that ended or began to answer in between. On a terminal a server that is gone is a
 * line, and is looked for again; keys sort, pause and leave. Elsewhere there is one view, or as many as --frames
 * says. */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "api/cli/cli.h"
#include "api/cli/interrupt.h"
#include "api/cli/top_view.h"
#include "base/clock.h"
#include "base/memory.h"

/* Another screen, and no cursor on it, so that the shell's is as it was when this one is left. */
#define SCREEN_ON   "\033[?1049h\033[?25l"
#define SCREEN_OFF  "\033[?25h\033[?1049l"
#define TO_TOP      "\033[H"
#define ERASE_LINE  "\033[K"
#define ERASE_BELOW "\033[J"

typedef struct top_state {
  const weft_config *config;
  weft_terminal terminal;
  bool live;     /* a screen of its own */
  bool has_keys; /* standard input is the terminal, and was set to give keys as they are pressed */
  bool leaves, paused, helps, wants_view;
  struct termios before;
  weft_reading reading[2], spare;
  uint32_t newest; /* of reading */
  uint32_t n_read; /* good ones in a row; two make a view */
  weft_top_view view;
  weft_error why; /* the server does not answer; "": it does */
  uint64_t gone_us;
} top_state;

/* ---- the screen ---------------------------------------------------------------------------------- */

static void begin_screen(top_state *s) {
  struct termios keys;
  if (!s->live) return;
  s->has_keys = tcgetattr(STDIN_FILENO, &s->before) == 0;
  if (s->has_keys) {
    keys = s->before;
    keys.c_lflag &= (tcflag_t) ~(ICANON | ECHO);
    keys.c_cc[VMIN] = 1;
    keys.c_cc[VTIME] = 0;
    s->has_keys = tcsetattr(STDIN_FILENO, TCSADRAIN, &keys) == 0;
  }
  (void)fputs(SCREEN_ON, stdout);
}

static void end_screen(const top_state *s) {
  if (!s->live) return;
  (void)fputs(SCREEN_OFF, stdout);
  (void)fflush(stdout); /* a terminal that is gone shows at the end */
  if (s->has_keys) (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &s->before);
}

/* Bytes of the line that take at most n_columns; what begins with ESC and ends with a letter takes none. */
static size_t fit_line(const char *line, size_t n, size_t n_columns) {
  size_t at = 0, column = 0;
  while (at < n) {
    size_t length = 1;
    if (line[at] == '\033') {
      while (at + length < n && line[at + length] != 'm') length++;
      at += length + 1;
      continue;
    }
    while (at + length < n && ((unsigned char)line[at + length] & 0xC0) == 0x80) length++;
    column += weft_terminal_columns(line + at, length);
    if (column > n_columns) break;
    at += length;
  }
  return at < n ? at : n;
}

/* As many lines as the screen has; the last one says how many more there are. */
static void draw_lines(const top_state *s, const weft_text *lines) {
  uint32_t n = 0, n_rows = s->terminal.n_rows > 0 ? s->terminal.n_rows : 24;
  for (size_t i = 0; i < lines->n; i++) n += lines->bytes[i] == '\n';
  uint32_t n_shown = n <= n_rows ? n : n_rows - 1;
  const char *at = lines->bytes;
  (void)fputs(TO_TOP, stdout);
  for (uint32_t i = 0; i < n_shown; i++) {
    size_t length = strcspn(at, "\n");
    (void)fwrite(at, 1, fit_line(at, length, s->terminal.n_columns), stdout);
    (void)fprintf(stdout, "%s" ERASE_LINE, weft_terminal_style(&s->terminal, WEFT_PLAIN));
    if (i + 1 < n_shown || n_shown < n) (void)fputc('\n', stdout);
    at += length + 1;
  }
  if (n_shown < n) (void)printf("%.*s" ERASE_LINE, (int)s->terminal.n_columns, "(more lines below)");
  (void)fputs(ERASE_BELOW, stdout);
}

/* What the keys do, and what is the matter, above the rest. */
static void put_notes(const top_state *s, weft_text *out) {
  if (s->why.text[0] != 0) {
    char clean[2 * sizeof s->why.text];
    (void)weft_utf8_clean(s->why.text, clean, sizeof clean);
    weft_text_printf(out, "%s%s for %.0f s; looking again%s\n", weft_terminal_style(&s->terminal, WEFT_RED), clean,
                     (double)(weft_clock_us() - s->gone_us) / 1e6, weft_terminal_style(&s->terminal, WEFT_PLAIN));
  }
  if (s->paused)
    weft_text_printf(out, "%spaused: space goes on%s\n", weft_terminal_style(&s->terminal, WEFT_YELLOW),
                     weft_terminal_style(&s->terminal, WEFT_PLAIN));
  if (!s->helps) return;
  weft_text keys = {0};
  weft_text_puts(&keys, "q leave  space pause  h hide this  i reverse");
  weft_top_fields(&s->terminal, "keys", &keys, out);
  weft_text_clear(&keys);
  weft_top_keys(&keys);
  weft_text_printf(&keys, "  (now %c)", s->view.sorted_by == 0 ? '-' : s->view.sorted_by);
  weft_top_fields(&s->terminal, "sort by", &keys, out);
  weft_text_free(&keys);
}

static int show_view(top_state *s) {
  weft_text text = {0};
  s->view.before = &s->reading[s->newest ^ 1];
  s->view.after = &s->reading[s->newest];
  weft_terminal_measure(&s->terminal);
  if (s->live) put_notes(s, &text);
  if (s->config->json) {
    weft_top_json(&s->view, &text);
  } else if (s->n_read >= 2) {
    weft_top_lines(&s->view, &s->terminal, &text);
  }
  int code = weft_text_status(&text) == WEFT_OK ? 0 : weft_cli_fail(WEFT_EXIT_RUNTIME, "top: out of memory");
  weft_text_puts(&text, "");
  if (code == 0 && s->live) draw_lines(s, &text);
  if (code == 0 && !s->live) (void)fwrite(text.bytes, 1, text.n, stdout);
  (void)fflush(stdout); /* a terminal that is gone shows at the end */
  weft_text_free(&text);
  return code;
}

/* ---- keys ---------------------------------------------------------------------------------------- */

static void take_key(top_state *s, char key) {
  s->wants_view = true;
  if (key == 'q' || key == 'Q' || key == 4) {
    s->leaves = true;
  } else if (key == ' ') {
    s->paused = !s->paused;
  } else if (key == 'h' || key == '?') {
    s->helps = !s->helps;
  } else if (key == 'i') {
    s->view.reversed = !s->view.reversed;
  } else if (weft_top_sorts(key)) {
    s->view.sorted_by = s->view.sorted_by == key ? 0 : key;
  } else {
    s->wants_view = false;
  }
}

/* Waits until then, or until something else is to be done: a key, another size, Ctrl-C. */
static void wait_until(top_state *s, uint64_t until_us) {
  for (uint64_t now = weft_clock_us(); now < until_us && !s->leaves && !s->wants_view; now = weft_clock_us()) {
    struct pollfd wait[] = {{.fd = weft_interrupts_fd(), .events = POLLIN},
                            {.fd = s->has_keys ? STDIN_FILENO : -1, .events = POLLIN}};
    int ready = poll(wait, 2, (int)((until_us - now + 999) / 1000));
    if (weft_interrupts_take()) s->leaves = true;
    if (weft_resizes_take()) s->wants_view = true;
    char keys[32];
    ssize_t n = ready > 0 && wait[1].revents != 0 ? read(STDIN_FILENO, keys, sizeof keys) : -1;
    if (n == 0) s->has_keys = false;                                           /* the terminal is gone */
    for (ssize_t i = 0; i < n && keys[0] != '\033'; i++) take_key(s, keys[i]); /* arrows and their like are no keys */
  }
}

/* ---- the loop ------------------------------------------------------------------------------------ */

/* A reading more. On a terminal a server that is gone is waited for. */
static int take_reading(top_state *s) {
  weft_error why = {{0}};
  int code = weft_reading_take(s->config, &s->spare, &why);
  if (weft_interrupts_take()) s->leaves = true;
  if (s->leaves) return 0;
  if (code == 0) {
    const weft_reading oldest = s->reading[s->newest ^ 1];
    s->newest ^= 1;
    s->reading[s->newest] = s->spare;
    s->spare = oldest;
    s->n_read += 1;
    s->why.text[0] = 0;
    return 0;
  }
  if (!s->live || s->n_read == 0) return why.text[0] != 0 ? weft_cli_fail(code, "%s", why.text) : code;
  if (s->why.text[0] == 0) s->gone_us = weft_clock_us();
  s->why = why;
  return 0;
}

static int run_views(top_state *s) {
  uint32_t n_frames = s->config->frames == 0 && !s->live ? 1 : s->config->frames, n_shown = 0; /* 0: no end */
  uint64_t period_us = (uint64_t)((double)s->config->interval * 1e6), due_us = weft_clock_us() + period_us;
  int code = 0;
  while (code == 0 && !s->leaves) {
    s->wants_view = false;
    wait_until(s, due_us);
    if (s->leaves) break;
    if (weft_clock_us() >= due_us) {
      due_us = weft_clock_us() + period_us;
      bool was_gone = s->why.text[0] != 0;
      if (!s->paused) code = take_reading(s);
      if (code != 0 || s->leaves) break;
      if (was_gone && s->why.text[0] == 0) continue; /* it is back: rates want two readings of it */
      s->wants_view = !s->paused;
      n_shown += s->wants_view;
    }
    if (s->wants_view && s->n_read >= 2) code = show_view(s);
    if (n_frames > 0 && n_shown >= n_frames) break;
  }
  return code;
}

int weft_cli_top(const weft_config *config) {
  top_state s = {.config = config, .terminal = weft_terminal_stdout(config), .view = {.config = config}};
  s.live = s.terminal.moves && !config->json;
  weft_interrupts_catch();
  int code = take_reading(&s);
  if (code == 0 && !s.leaves) {
    begin_screen(&s);
    code = run_views(&s);
    end_screen(&s);
  }
  weft_text_free(&s.reading[0].text);
  weft_text_free(&s.reading[1].text);
  weft_text_free(&s.spare.text);
  return code;
}
