/* SPDX-License-Identifier: MIT */
/* One line from a person: with a line editor (libedit, where the build has it and standard input and output are a
 * terminal that can move its cursor), or as it comes.
 *
 * * Law: a line is what was typed or pasted up to the return key, in UTF-8 and without control characters but
 * newlines and tabs. A paste of several lines is one line with newlines in it where the terminal marks pastes,
 * and a backslash at the end of a line continues it everywhere. While a line is read the terminal may be set
 * otherwise; when it was read, the terminal is as before. */
#ifndef WEFT_API_CLI_LINE_H
#define WEFT_API_CLI_LINE_H

#include "api/cli/terminal.h"
#include "base/text.h"

typedef struct weft_line weft_line;

typedef enum weft_line_end {
  WEFT_LINE_READ,
  WEFT_LINE_CLOSED,     /* end of input, or Ctrl-D where nothing was typed */
  WEFT_LINE_INTERRUPTED /* Ctrl-C; what was typed is dropped */
} weft_line_end;

/* Adds to out, each followed by a newline, what the word that ends text may become. */
typedef void (*weft_line_completer)(void *self, const char *text, weft_text *out);

/* history: a file that earlier lines are read from and these are added to; NULL: none. Both pointers are borrowed until
 * weft_line_close. NULL: no memory. */
weft_line *weft_line_open(const weft_terminal *terminal, const char *history, weft_line_completer complete, void *self);
/* Sets out to the line, without its end. prompt: ASCII. The line is kept in the history if `keep`. */
weft_line_end weft_line_read(weft_line *line, const char *prompt, bool keep, weft_text *out);
void weft_line_close(weft_line *line);

#endif
