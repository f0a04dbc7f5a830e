/* SPDX-License-Identifier: MIT */
/* weft help: the manual printed, or written to files. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "api/cli/manual.h"
#include "api/cli/terminal.h"

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
  } else if (strcmp(what, "--other-servers") == 0 && of == NULL) {
    weft_manual_foreign(&text);
  } else if (strcmp(what, "--write") == 0 && of != NULL) {
    return write_all(manual, of);
  } else {
    return weft_cli_fail(WEFT_EXIT_USAGE,
                         "help: '%s': it takes the name of a command, or --man [COMMAND], --completions SHELL, "
                         "--example-config, --other-servers or --write DIR",
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
