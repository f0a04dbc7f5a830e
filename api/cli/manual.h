/* SPDX-License-Identifier: MIT */
/* The manual of the program: the usage, --help, man pages, completions for shells and the example configuration, all
 * written from the table of commands and the tables of options.
 *
 * Law: a command or an option of the tables stands in every one of them, and no file here names one by itself. What is
 * written depends on the tables alone, so that two builds of one version write the same bytes. */
#ifndef WEFT_API_CLI_MANUAL_H
#define WEFT_API_CLI_MANUAL_H

#include "api/cli/cli.h"
#include "base/text.h"

/* Commands that stand together under a heading. */
typedef struct weft_command_list {
  const char *heading;
  const weft_command *row;
  uint32_t n;
} weft_command_list;

typedef struct weft_manual {
  const weft_command_list *list;
  uint32_t n_lists;
  const weft_option_table *more; /* options beside the product's */
} weft_manual;

/* The next command, from *at on, which begins at 0; NULL: there are no more. */
const weft_command *weft_manual_next(const weft_manual *manual, uint32_t *at);
const weft_command *weft_manual_find(const weft_manual *manual, const char *name);
/* One line to standard error: there is no such command, and which one may be meant. Returns the exit code. */
int weft_manual_no_command(const weft_manual *manual, const char *name);

/* Is given the rows of a command by topic, as --help has them: topics in the order of their first rows, what every
 * command has at the end. */
typedef struct weft_manual_reader {
  void (*topic)(void *self, const char *topic);
  void (*option)(void *self, const weft_option *option);
  void *self;
} weft_manual_reader;
void weft_manual_read(const weft_manual *manual, unsigned command, const weft_manual_reader *reader);

/* What is said of a default that is a number or a text: "8080"; "" where there is none, or where the help says it. */
const char *weft_manual_default(const weft_option *option, char out[32]);

/* Each appends. n_columns: of the terminal; 0: every option on one line of its own, however long, for programs
 * that look for lines. */
void weft_manual_usage(const weft_manual *manual, uint32_t n_columns, weft_text *out);
void weft_manual_help(const weft_manual *manual, const weft_command *command, uint32_t n_columns, weft_text *out);
/* The options of other servers and ours, as tables of docs/coming-from.md. */
void weft_manual_foreign(weft_text *out);
/* The man page weft-COMMAND(1); NULL: weft(1). */
void weft_manual_page(const weft_manual *manual, const weft_command *command, weft_text *out);
/* The man page weft.conf(5). */
void weft_manual_page_of_file(const weft_manual *manual, weft_text *out);
/* Every option of the configuration file with its default, all commented out. */
void weft_manual_example(const weft_manual *manual, weft_text *out);
/* For bash, zsh or fish; false: no such shell is known. */
bool weft_manual_completions(const weft_manual *manual, const char *shell, weft_text *out);

/* weft help ...: argv[0 .. argc) without the program's name and `help`. Returns the exit code. */
int weft_manual_run(const weft_manual *manual, int argc, char **argv);

#endif
