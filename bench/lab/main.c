/* SPDX-License-Identifier: MIT */
/* The program weft: the product's commands and the laboratory's, and --help. It stands in the top room because it knows
 * both. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bench/lab/lab.h"

static const weft_command commands[] = {
    {"generate", WEFT_CMD_GENERATE, weft_cli_generate, "-m FILE -p TEXT", "write text, token by token or by diffusion",
     "  weft generate -m a.gguf --chat -p \"Sort from low to high: 41 7 23\"\n"
     "  weft generate -m a.gguf -i story.txt -n 200 --temperature 0.7 --seed 1\n"
     "  weft generate -m a.gguf --chat -p \"What is 58 + 37?\" --mode autoregressive --json\n",
     0},
    {"chat", WEFT_CMD_CHAT, weft_cli_chat, "-m FILE", "talk to a model on the terminal",
     "  weft chat -m a.gguf\n"
     "  weft chat -m a.gguf --system \"Answer in one line.\" --temperature 0\n",
     0},
    {"serve", WEFT_CMD_SERVE, weft_cli_serve, "-m FILE [-m FILE ...]", "an OpenAI-compatible HTTP server",
     "  weft serve -m a.gguf                                   one model on 127.0.0.1:8080\n"
     "  weft serve -m a.gguf -m b.gguf --port 9000             two models over one pool of KV memory\n"
     "  weft serve -m a.gguf --diffusion-steps 24 --top-k 40   for requests that do not name their own\n"
     "  weft serve -m a.gguf --host 0.0.0.0 --api-keys keys    for others, each with a key\n"
     "  WEFT_ROWS=1024 weft serve --config weft.conf           options from the environment and a file\n",
     0},
    {"demo", WEFT_CMD_DEMO, weft_cli_demo, "-m FILE -m FILE", "serve the demo model and show what happens",
     "  weft demo -m model/demo/weft-demo.gguf -m model/demo/weft-demo-ar.gguf\n", 0},
    {"doctor", WEFT_CMD_SERVE, weft_cli_doctor, "[-m FILE] [OPTIONS OF serve]",
     "what is wrong with this machine, and with options of serve; no model is loaded",
     "  weft doctor\n"
     "  weft doctor -m a.gguf --host 0.0.0.0 --api-keys keys\n"
     "  weft doctor --config weft.conf --json\n",
     0},
    {"fields", WEFT_CMD_FIELDS, weft_cli_fields, "", "print what the server does with each field of a body",
     "  weft fields\n", 0},
    {"inspect", WEFT_CMD_INSPECT, weft_cli_inspect, "FILE", "print what a GGUF file holds",
     "  weft inspect a.gguf\n"
     "  weft inspect a.gguf --json\n",
     1},
    {"tokenize", WEFT_CMD_TOKENIZE, weft_cli_tokenize, "-m FILE -p TEXT", "text to token ids, or ids to text",
     "  weft tokenize -m a.gguf -p \"some text\"\n"
     "  weft tokenize -m a.gguf --tokens 2,5,9\n",
     0},
    {"top", WEFT_CMD_TOP, weft_cli_top, "[--port N]", "a running server, live: pool, models, tenants, latencies",
     "  weft top --port 8080\n", 0},
    {"trace", WEFT_CMD_TRACE, weft_cli_trace, "[--port N] [-o FILE]",
     "the last steps of a running server, for chrome://tracing", "  weft trace --port 8080 -o steps.json\n", 0}};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void print_commands(FILE *to, const char *topic, const weft_command *list, uint32_t n) {
  (void)fprintf(to, "\n%s:\n", topic);
  for (uint32_t i = 0; i < n; i++) (void)fprintf(to, "  weft %-10s %s\n", list[i].name, list[i].help);
}

static int print_usage(FILE *to, int code) {
  (void)fprintf(to,
                "weft %s: one paged pool of KV memory, one loop, many tenants and models\n\n"
                "Examples:\n"
                "  weft generate -m a.gguf --chat -p \"What is 58 + 37?\"\n"
                "  weft serve -m a.gguf --port 8080\n",
                weft_version());
  print_commands(to, "To use and to serve models", commands, N_COMMANDS);
  print_commands(to, "To measure, test and simulate", weft_lab_commands, weft_lab_n_commands);
  (void)fprintf(
      to, "\nweft COMMAND --help has examples and all options of a command. weft --version prints the version.\n");
  return code;
}

static const weft_command *find_command(const char *name) {
  for (uint32_t i = 0; i < N_COMMANDS; i++) {
    if (strcmp(commands[i].name, name) == 0) return &commands[i];
  }
  for (uint32_t i = 0; i < weft_lab_n_commands; i++) {
    if (strcmp(weft_lab_commands[i].name, name) == 0) return &weft_lab_commands[i];
  }
  return NULL;
}

static int run_command(const weft_command *command, int argc, char **argv) {
  weft_lab_config config;
  weft_error error;
  weft_status status = weft_config_parse(&config.product, &weft_lab_options, command->options, argc, argv, &error);
  int code = 0;
  if (status != WEFT_OK) {
    code = weft_cli_fail(WEFT_EXIT_USAGE, "%s: %s", command->name, error.text);
  } else if (config.product.help) {
    (void)printf("weft %s %s\n%s\n\nExamples:\n%s", command->name, command->usage, command->help, command->examples);
    weft_config_help(&weft_lab_options, command->options, stdout);
  } else if (config.product.words.n > command->n_words) {
    const char *word = config.product.words.item[command->n_words];
    code = weft_cli_fail(WEFT_EXIT_USAGE,
                         "%s: '%s' belongs to no option: a value stands behind the name of its option, as -m FILE, and "
                         "a value of several words in quotes",
                         command->name, word);
  } else {
    if (config.product.verbose) weft_log_set_level(WEFT_LOG_INFO);
    code = command->run(&config.product);
  }
  weft_config_free(&config.product);
  return code;
}

/* A file that is mapped and then cut short by somebody else answers a read with this signal. Weights are not read
 * through a mapping, but what stands before them in a file is, while it is opened. The read is tried again and ends
 * the process, but not silently. */
static void tell_bus_error(int number) {
  static const char line[] =
      "weft: a file was cut short, or its disk failed, while it was read (bus error): look whether the model's file is "
      "complete, and start again\n";
  ssize_t n = write(STDERR_FILENO, line, sizeof line - 1);
  (void)n; /* there is nobody else to tell */
  (void)signal(number, SIG_DFL);
}

int main(int argc, char **argv) {
  (void)signal(SIGPIPE, SIG_IGN); /* a reader that left is an error of the write */
  (void)signal(SIGBUS, tell_bus_error);
  if (argc < 2) return print_usage(stderr, WEFT_EXIT_USAGE);
  int code = 0;
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
    code = print_usage(stdout, 0);
  } else if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "version") == 0) {
    char backends[3 * WEFT_PATHS_MAX];
    weft_device_list_backends(backends, sizeof backends);
    (void)printf("weft %s\n%s", weft_version(), backends);
  } else {
    const weft_command *command = find_command(argv[1]);
    if (command == NULL) {
      return weft_cli_fail(WEFT_EXIT_USAGE, "no command is named '%s': weft --help lists them", argv[1]);
    }
    code = run_command(command, argc - 2, argv + 2);
  }
  if (fflush(stdout) != 0 && code == 0) code = weft_cli_fail(WEFT_EXIT_RUNTIME, "standard output: %s", strerror(errno));
  return code;
}
