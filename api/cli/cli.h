/* SPDX-License-Identifier: MIT */
/* The `weft` program: one file per subcommand, one row of the table in main.c each.
 *
 * Law: results go to standard output, everything else to standard error, and the exit code says what kind of failure
 * there was, so that scripts can tell them apart. */
#ifndef WEFT_API_CLI_CLI_H
#define WEFT_API_CLI_CLI_H

#include "api/config.h"

enum {
  WEFT_EXIT_OK = 0,
  WEFT_EXIT_FAILED = 1,   /* the command ran and the result is bad (a check, an evaluation below its bar) */
  WEFT_EXIT_USAGE = 2,    /* the command line or an input is wrong */
  WEFT_EXIT_LOAD = 3,     /* a model or a file could not be loaded */
  WEFT_EXIT_RUNTIME = 4,  /* the run broke off: device, memory, input or output */
  WEFT_EXIT_STOPPED = 130 /* by SIGINT */
};

typedef struct weft_command {
  const char *name;
  unsigned options; /* WEFT_CMD_..., or its like */
  int (*run)(const weft_config *config);
  const char *usage, *help;
  const char *examples; /* whole lines */
  uint32_t n_words;     /* most words that belong to no option; others are refused; or WEFT_WORDS_ARE_MODELS */
} weft_command;

/* What a command says that has none. */
#define WEFT_NO_MODEL "no model: name a GGUF file with -m FILE, or a model of a hub with -hf OWNER/NAME"

/* Words that name files are models, as if -m stood before each; others are refused. */
enum { WEFT_WORDS_ARE_MODELS = 0x7fffffff };

int weft_cli_generate(const weft_config *config);
int weft_cli_chat(const weft_config *config);
int weft_cli_serve(const weft_config *config);
/* The same; `opened` is called before anybody can ask anything: the laboratory's place in a server. */
int weft_cli_serve_opened(const weft_config *config, void (*opened)(weft_runtime *rt));
int weft_cli_plan(const weft_config *config);
int weft_cli_pull(const weft_config *config);
int weft_cli_doctor(const weft_config *config);
int weft_cli_fields(const weft_config *config);
int weft_cli_inspect(const weft_config *config);
int weft_cli_weights(const weft_config *config);
int weft_cli_tokenize(const weft_config *config);
int weft_cli_demo(const weft_config *config);
int weft_cli_trace(const weft_config *config);
int weft_cli_top(const weft_config *config);

/* Writes one line to standard error and returns the code: with --log-format json an object of the log. Whatever
 * the words hold it is one line: what would be none is written as \xNN (weft_utf8_clean). */
int weft_cli_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same line to a descriptor: for news that are no failure. */
void weft_cli_say(int to, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A plan (weft_plan) in the log, each line a line of its own. */
void weft_cli_tell_plan(const char *plan);
/* The exit code of a status of weft_open: what the machine refuses at start (memory, threads) is LOAD, too. */
int weft_cli_open_code(int status);
/* The exit code of a status of weft_submit, and of what comes later. */
int weft_cli_code(int status);
/* Where a model that -hf names lies, without asking anybody. False, with a line: it is not there, or it is no name. */
bool weft_cli_find_hub_model(const weft_config *config, const char *name, char *place, size_t n, weft_error *error);
/* The models that -hf names become models of the configuration, fetched where they are not there yet. 0, or an
 * exit code after one line. */
int weft_cli_take_hub_models(weft_config *config);
/* Opens what -m names; 0, or an exit code after one line. */
int weft_cli_open(const weft_config *config, weft_runtime **runtime);
/* What --mode says; NULL: auto. 0, or an exit code after one line. */
int weft_cli_mode(const char *mode, weft_mode *out);
/* Parameters of one generation from the options (prompt left out). 0, or an exit code after one line. */
int weft_cli_params(const weft_config *config, weft_generate_params *params);
/* A whole file, or standard input for "-"; the caller frees. NULL after one line. */
char *weft_cli_read(const char *path, size_t *n);

#endif
