/* SPDX-License-Identifier: MIT */
#include "api/cli/manual.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "api/cli/terminal.h"
#include "base/memory.h"
#include "base/nearest.h"

/* ---- the tables ------------------------------------------------------------------------------ */

const weft_command *weft_manual_next(const weft_manual *manual, uint32_t *at) {
  uint32_t index = (*at)++;
  for (uint32_t i = 0; i < manual->n_lists; i++) {
    if (index < manual->list[i].n) return &manual->list[i].row[index];
    index -= manual->list[i].n;
  }
  return NULL;
}

const weft_command *weft_manual_find(const weft_manual *manual, const char *name) {
  uint32_t at = 0;
  for (const weft_command *c; (c = weft_manual_next(manual, &at)) != NULL;) {
    if (strcmp(c->name, name) == 0) return c;
  }
  return NULL;
}

int weft_manual_no_command(const weft_manual *manual, const char *name) {
  uint32_t at = 0;
  weft_nearest nearest = weft_nearest_to(name, strlen(name));
  for (const weft_command *c; (c = weft_manual_next(manual, &at)) != NULL;) weft_nearest_try(&nearest, c->name);
  if (nearest.best == NULL)
    return weft_cli_fail(WEFT_EXIT_USAGE, "no command is named '%s': weft --help lists them", name);
  return weft_cli_fail(WEFT_EXIT_USAGE, "no command is named '%s': did you mean weft %s? weft --help lists them", name,
                       nearest.best);
}

static bool has_topic(const weft_option *o, const char *topic) {
  return strcmp(o->topic, topic) == 0;
}

static void read_topic(const weft_manual *manual, unsigned command, const char *topic,
                       const weft_manual_reader *reader) {
  uint32_t at = 0;
  bool begun = false;
  for (const weft_option *o; (o = weft_config_next(manual->more, command, &at)) != NULL;) {
    if (!has_topic(o, topic)) continue;
    if (!begun) reader->topic(reader->self, topic);
    begun = true;
    reader->option(reader->self, o);
  }
}

/* No earlier row of the command has the topic of this one. */
static bool leads_topic(const weft_manual *manual, unsigned command, const weft_option *row) {
  uint32_t at = 0;
  const weft_option *o;
  while ((o = weft_config_next(manual->more, command, &at)) != NULL && !has_topic(o, row->topic)) {
  }
  return o == row;
}

void weft_manual_read(const weft_manual *manual, unsigned command, const weft_manual_reader *reader) {
  uint32_t at = 0;
  for (const weft_option *o; (o = weft_config_next(manual->more, command, &at)) != NULL;) {
    if (has_topic(o, WEFT_TOPIC_OUTPUT) || !leads_topic(manual, command, o)) continue;
    read_topic(manual, command, o->topic, reader);
  }
  read_topic(manual, command, WEFT_TOPIC_OUTPUT, reader);
}

const char *weft_manual_default(const weft_option *o, char out[32]) {
  bool is_number = o->kind == WEFT_OPTION_U32 || o->kind == WEFT_OPTION_F32;
  out[0] = 0;
  if (is_number && strchr(o->help, '[') == NULL) (void)snprintf(out, 32, "%g", o->range.initial);
  if (o->text != NULL) (void)snprintf(out, 32, "%s", o->text);
  return out;
}

/* ---- the example configuration ----------------------------------------------------------------- */

static void put_example_topic(void *self, const char *topic) {
  weft_text_printf(self, "\n# ---- %s ----\n", topic);
}

/* A comment for people begins with `# `; behind a bare # stands a line that may be used. */
static void put_example_option(void *self, const weft_option *o) {
  char initial[32];
  if (!weft_config_is_lasting(o) || o->at == offsetof(weft_config, config_file)) return;
  weft_text_printf(self, "\n# %s\n#%s = ", o->help, o->name);
  if (o->kind == WEFT_OPTION_FLAG) {
    weft_text_puts(self, "on\n");
  } else {
    weft_text_printf(self, "%s\n", weft_manual_default(o, initial)[0] != 0 ? initial : o->argument);
  }
}

void weft_manual_example(const weft_manual *manual, weft_text *out) {
  const weft_manual only_product = {.list = manual->list, .n_lists = manual->n_lists};
  weft_text_printf(out,
                   "# Configuration of `weft serve` (weft %s): lines `name = value`. It is read from the file of\n"
                   "# --config, or else from weft/weft.conf in $XDG_CONFIG_HOME or ~/.config, or else from\n"
                   "# %s. The environment (WEFT_NAME) and the command line win over it. What is\n"
                   "# commented out has its default; a value in capitals says what belongs there.\n",
                   weft_version(), WEFT_CONFIG_OF_MACHINE);
  weft_manual_read(&only_product, WEFT_CMD_SERVE,
                   &(weft_manual_reader){.topic = put_example_topic, .option = put_example_option, .self = out});
}

/* ---- files ------------------------------------------------------------------------------------- */

static int write_file(const char *folder, const char *name, weft_text *text) {
  weft_text path = {0};
  weft_text_printf(&path, "%s/%s", folder, name);
  if (weft_text_status(&path) != WEFT_OK || weft_text_status(text) != WEFT_OK) {
    weft_text_free(&path);
    return weft_cli_fail(WEFT_EXIT_RUNTIME, "help: out of memory");
  }
  int code = 0;
  for (char *c = path.bytes + strlen(folder) + 1; code == 0 && (c = strchr(c, '/')) != NULL; c++) {
    *c = 0;
    if (mkdir(path.bytes, 0755) != 0 && errno != EEXIST)
      code = weft_cli_fail(WEFT_EXIT_RUNTIME, "%s: %s", path.bytes, strerror(errno));
    *c = '/';
  }
  FILE *file = code == 0 ? fopen(path.bytes, "wb") : NULL;
  bool good = file != NULL && fwrite(text->bytes, 1, text->n, file) == text->n;
  if (file != NULL) good = fclose(file) == 0 && good;
  if (code == 0 && !good) code = weft_cli_fail(WEFT_EXIT_RUNTIME, "%s: %s", path.bytes, strerror(errno));
  weft_text_free(&path);
  weft_text_clear(text);
  return code;
}

/* Everything below the folder as it lies below share/ of an installation. */
static int write_all(const weft_manual *manual, const char *folder) {
  static const char *const shells[][2] = {{"bash", "bash-completion/completions/weft"},
                                          {"zsh", "zsh/site-functions/_weft"},
                                          {"fish", "fish/vendor_completions.d/weft.fish"}};
  weft_text text = {0};
  char name[128];
  if (mkdir(folder, 0755) != 0 && errno != EEXIST)
    return weft_cli_fail(WEFT_EXIT_RUNTIME, "%s: %s", folder, strerror(errno));
  weft_manual_page(manual, NULL, &text);
  int code = write_file(folder, "man/man1/weft.1", &text);
  uint32_t at = 0;
  for (const weft_command *c; code == 0 && (c = weft_manual_next(manual, &at)) != NULL;) {
    weft_manual_page(manual, c, &text);
    (void)snprintf(name, sizeof name, "man/man1/weft-%s.1", c->name);
    code = write_file(folder, name, &text);
  }
  weft_manual_page_of_file(manual, &text);
  if (code == 0) code = write_file(folder, "man/man5/weft.conf.5", &text);
  weft_manual_example(manual, &text);
  if (code == 0) code = write_file(folder, "doc/weft/examples/weft.conf", &text);
  for (size_t i = 0; code == 0 && i < sizeof shells / sizeof *shells; i++) {
    (void)weft_manual_completions(manual, shells[i][0], &text); /* it knows these */
    code = write_file(folder, shells[i][1], &text);
  }
  weft_text_free(&text);
  return code;
}

/* ---- weft help --------------------------------------------------------------------------------- */

static int print_text(weft_text *text) {
  int code = weft_text_status(text) == WEFT_OK ? 0 : weft_cli_fail(WEFT_EXIT_RUNTIME, "help: out of memory");
  if (code == 0) (void)fwrite(text->bytes, 1, text->n, stdout); /* looked at when the program ends */
  weft_text_free(text);
  return code;
}

static int print_generated(const weft_manual *manual, const char *what, const char *of) {
  weft_text text = {0};
  const weft_command *command = of != NULL ? weft_manual_find(manual, of) : NULL;
  if (strcmp(what, "--man") == 0) {
    bool file = of != NULL && strcmp(of, "weft.conf") == 0;
    if (of != NULL && command == NULL && !file) return weft_manual_no_command(manual, of);
    if (file) weft_manual_page_of_file(manual, &text);
    if (!file) weft_manual_page(manual, command, &text);
  } else if (strcmp(what, "--completions") == 0) {
    if (of == NULL || !weft_manual_completions(manual, of, &text)) {
      weft_text_free(&text);
      return weft_cli_fail(WEFT_EXIT_USAGE, "help --completions: name bash, zsh or fish");
    }
  } else if (strcmp(what, "--example-config") == 0 && of == NULL) {
    weft_manual_example(manual, &text);
  } else if (strcmp(what, "--write") == 0 && of != NULL) {
    return write_all(manual, of);
  } else {
    return weft_cli_fail(WEFT_EXIT_USAGE,
                         "help: '%s': it takes the name of a command, or --man [COMMAND], --completions SHELL, "
                         "--example-config or --write DIR",
                         what);
  }
  return print_text(&text);
}

int weft_manual_run(const weft_manual *manual, int argc, char **argv) {
  weft_text text = {0};
  uint32_t n_columns = weft_terminal_stdout(NULL).n_columns;
  if (argc > 2) return weft_cli_fail(WEFT_EXIT_USAGE, "help: '%s' is a word too many", argv[2]);
  if (argc > 0 && argv[0][0] == '-') return print_generated(manual, argv[0], argc > 1 ? argv[1] : NULL);
  if (argc > 1) return weft_cli_fail(WEFT_EXIT_USAGE, "help: '%s' is a word too many", argv[1]);
  if (argc == 0) {
    weft_manual_usage(manual, n_columns, &text);
    return print_text(&text);
  }
  const weft_command *command = weft_manual_find(manual, argv[0]);
  if (command == NULL) return weft_manual_no_command(manual, argv[0]);
  weft_manual_help(manual, command, n_columns, &text);
  return print_text(&text);
}
