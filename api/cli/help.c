/* SPDX-License-Identifier: MIT */
/* The manual on a terminal: the usage and the help of a command, wrapped to its width. */
#include <string.h>

#include "api/cli/manual.h"
#include "api/cli/terminal.h"

enum { OPTION_COLUMN = 37, NARROW = 72, NARROW_INDENT = 6, COMMAND_COLUMN = 18 };

static void put_blanks(weft_text *out, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) weft_text_puts(out, " ");
}

/* `left` in the first columns, the words beside it or, where it is too long or the terminal too narrow, below. */
static void put_entry(weft_text *out, const char *left, const char *words, uint32_t column, uint32_t n_columns) {
  size_t n = strlen(left);
  weft_text_puts(out, left);
  if (n_columns == 0 || (n_columns >= NARROW && n + 1 <= column)) {
    put_blanks(out, n < column ? column - (uint32_t)n : 1);
    weft_terminal_wrap(out, words, column, column, n_columns);
    return;
  }
  uint32_t indent = n_columns >= NARROW ? column : NARROW_INDENT;
  weft_text_puts(out, "\n");
  put_blanks(out, indent);
  weft_terminal_wrap(out, words, indent, indent, n_columns);
}

/* Examples are whole lines: a command to copy, and behind three blanks what it is for. A command is never broken. */
static void put_examples(weft_text *out, const char *examples, uint32_t n_columns) {
  while (*examples != 0) {
    size_t n = strcspn(examples, "\n");
    const char *gap = memmem(examples, n, "   ", 3);
    if (n_columns == 0 || n <= n_columns || gap == NULL) {
      weft_text_append(out, examples, n);
      weft_text_puts(out, "\n");
    } else {
      char words[256];
      const char *what = gap + strspn(gap, " ");
      weft_text_append(out, examples, (size_t)(gap - examples));
      weft_text_puts(out, "\n");
      put_blanks(out, NARROW_INDENT);
      (void)snprintf(words, sizeof words, "%.*s", (int)(examples + n - what), what);
      weft_terminal_wrap(out, words, NARROW_INDENT, NARROW_INDENT, n_columns);
    }
    examples += n + (examples[n] == '\n');
  }
}

static void put_paragraph(weft_text *out, const char *words, uint32_t n_columns) {
  weft_terminal_wrap(out, words, 0, 0, n_columns);
}

static void put_commands(weft_text *out, const weft_command_list *list, uint32_t n_columns) {
  char left[64];
  (void)snprintf(left, sizeof left, "%s:", list->heading);
  weft_text_puts(out, "\n");
  put_paragraph(out, left, n_columns);
  for (uint32_t i = 0; i < list->n; i++) {
    (void)snprintf(left, sizeof left, "  weft %-10s", list->row[i].name);
    put_entry(out, left, list->row[i].help, COMMAND_COLUMN, n_columns);
  }
}

void weft_manual_usage(const weft_manual *manual, uint32_t n_columns, weft_text *out) {
  char line[160];
  (void)snprintf(line, sizeof line, "weft %s: one paged pool of KV memory, one loop, many tenants and models",
                 weft_version());
  put_paragraph(out, line, n_columns);
  weft_text_puts(out, "\nExamples:\n");
  put_examples(out,
               "  weft generate -m a.gguf --chat -p \"What is 58 + 37?\"\n"
               "  weft serve a.gguf --port 8080\n",
               n_columns);
  for (uint32_t i = 0; i < manual->n_lists; i++) put_commands(out, &manual->list[i], n_columns);
  weft_text_puts(out, "\n");
  put_paragraph(out, "weft help COMMAND has examples and all options of a command. weft --version prints the version.",
                n_columns);
}

typedef struct help_writer {
  weft_text *out;
  uint32_t n_columns;
} help_writer;

static void put_topic(void *self, const char *topic) {
  const help_writer *w = self;
  weft_text_puts(w->out, "\n");
  char line[128];
  (void)snprintf(line, sizeof line, "%s:", topic);
  put_paragraph(w->out, line, w->n_columns);
}

static void put_option(void *self, const weft_option *o) {
  const help_writer *w = self;
  char left[64], initial[32];
  weft_text words = {0};
  const char letter[] = {'-', o->letter, ',', ' ', 0};
  bool narrow = w->n_columns > 0 && w->n_columns < NARROW; /* names begin in one column only where there is room */
  (void)snprintf(left, sizeof left, "  %s--%s%s%s",
                 o->letter != 0 ? letter
                 : narrow       ? ""
                                : "    ",
                 o->name, o->argument != NULL ? " " : "", o->argument != NULL ? o->argument : "");
  weft_text_puts(&words, o->help);
  if (weft_manual_default(o, initial)[0] != 0) weft_text_printf(&words, " [%s]", initial);
  if (weft_text_status(&words) == WEFT_OK) put_entry(w->out, left, words.bytes, OPTION_COLUMN, w->n_columns);
  weft_text_free(&words);
}

void weft_manual_help(const weft_manual *manual, const weft_command *command, uint32_t n_columns, weft_text *out) {
  help_writer writer = {.out = out, .n_columns = n_columns};
  const weft_manual_reader reader = {.topic = put_topic, .option = put_option, .self = &writer};
  weft_text line = {0};
  weft_text_printf(&line, "weft %s %s", command->name, command->usage);
  if (weft_text_status(&line) == WEFT_OK) weft_terminal_wrap(out, line.bytes, 0, NARROW_INDENT, n_columns);
  weft_text_free(&line);
  put_paragraph(out, command->help, n_columns);
  weft_text_puts(out, "\nExamples:\n");
  put_examples(out, command->examples, n_columns);
  weft_manual_read(manual, command->options, &reader);
}
