/* SPDX-License-Identifier: MIT */
/* What `weft top` shows of two readings of a server: as lines of a terminal's width, or as one JSON object.
 *
 * * Law: the tables of models and tenants, their JSON and the keys that sort them come from one table of columns.
 * Names come from a server and are cleaned (weft_utf8_clean) before they are shown. */
#ifndef WEFT_API_CLI_TOP_VIEW_H
#define WEFT_API_CLI_TOP_VIEW_H

#include "api/cli/observe.h"
#include "api/cli/terminal.h"

typedef struct weft_top_view {
  const weft_config *config;
  const weft_reading *before, *after;
  char sorted_by; /* a letter of weft_top_keys; 0: in the order of the server */
  bool reversed;
} weft_top_view;

/* The letters that sort, each with the name of what it sorts by, as fields: "n name  r running ...". */
void weft_top_keys(weft_text *out);
bool weft_top_sorts(char letter);
/* Appends a topic and its fields, which have two blanks between them: a line, broken between fields where it is
 * too wide. */
void weft_top_fields(const weft_terminal *terminal, const char *topic, const weft_text *fields, weft_text *out);
/* Appends lines, each with a newline. At most terminal->n_columns wide where that is known, and with its colours. */
void weft_top_lines(const weft_top_view *view, const weft_terminal *terminal, weft_text *out);
/* Appends one line. */
void weft_top_json(const weft_top_view *view, weft_text *out);

#endif
