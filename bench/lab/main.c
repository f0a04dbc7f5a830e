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
    {"generate", WEFT_CMD_GENERATE, weft_cli_generate, "FILE -p TEXT", "write text, token by token or by diffusion",
     "  weft generate -m a.gguf --chat -p \"Sort from low to high: 41 7 23\"\n"
     "  weft generate -m a.gguf -i story.txt -n 200 --temperature 0.7 --seed 1\n"
     "  weft generate -m a.gguf --chat -p \"What is 58 + 37?\" --mode autoregressive --json\n",
     WEFT_WORDS_ARE_MODELS},
    {"chat", WEFT_CMD_CHAT, weft_cli_chat, "FILE | --url URL", "talk to a model on the terminal",
     "  weft chat a.gguf\n"
     "  weft chat --url http://127.0.0.1:8080    with a server, weft's or another\n"
     "  weft chat a.gguf --system \"Answer in one line.\" --temperature 0\n",
     WEFT_WORDS_ARE_MODELS},
    {"run", WEFT_CMD_CHAT, weft_cli_chat, "FILE | --url URL", "the same as chat", "  weft run a.gguf\n",
     WEFT_WORDS_ARE_MODELS},
    {"serve", WEFT_CMD_SERVE, weft_cli_serve, "FILE [FILE ...]", "an OpenAI-compatible HTTP server",
     "  weft serve a.gguf                                      one model on 127.0.0.1:8080\n"
     "  weft serve a.gguf b.gguf --port 9000                   two models over one pool of KV memory\n"
     "  weft serve a.gguf --diffusion-steps 24 --top-k 40      for requests that do not name their own\n"
     "  weft serve a.gguf --host 0.0.0.0 --api-keys keys       for others, each with a key\n"
     "  WEFT_ROWS=1024 weft serve --config weft.conf           options from the environment and a file\n",
     WEFT_WORDS_ARE_MODELS},
    {"demo", WEFT_CMD_DEMO, weft_cli_demo, "-m FILE -m FILE", "serve the demo model and show what happens",
     "  weft demo -m model/demo/weft-demo.gguf -m model/demo/weft-demo-ar.gguf\n", WEFT_WORDS_ARE_MODELS},
    {"doctor", WEFT_CMD_SERVE, weft_cli_doctor, "[FILE] [OPTIONS OF serve]",
     "what is wrong with this machine, and with options of serve; no model is loaded",
     "  weft doctor\n"
     "  weft doctor -m a.gguf --host 0.0.0.0 --api-keys keys\n"
     "  weft doctor --config weft.conf --json\n",
     WEFT_WORDS_ARE_MODELS},
    {"fields", WEFT_CMD_FIELDS, weft_cli_fields, "", "print what the server does with each field of a body",
     "  weft fields\n", 0},
    {"inspect", WEFT_CMD_INSPECT, weft_cli_inspect, "FILE", "print what a GGUF file holds",
     "  weft inspect a.gguf\n"
     "  weft inspect a.gguf --json\n",
     1},
    {"plan", WEFT_CMD_PLAN, weft_cli_plan, "FILE [--users N --prompt P --answer A]",
     "which memory a file needs for so many users, and at what rate; no weight is loaded",
     "  weft plan a.gguf --users 32 --prompt 2048 --answer 512\n"
     "  weft plan a.gguf --card h200 --users 256\n",
     WEFT_WORDS_ARE_MODELS},
    {"pull", WEFT_CMD_PULL, weft_cli_pull, "OWNER/NAME[:QUANT]", "fetch a model from a hub, and print where it is",
     "  weft pull OWNER/NAME\n"
     "  weft pull OWNER/NAME:Q8_0 --cache /models\n"
     "  weft serve -hf OWNER/NAME:Q4_K_M\n",
     8},
    {"tokenize", WEFT_CMD_TOKENIZE, weft_cli_tokenize, "FILE -p TEXT", "text to token ids, or ids to text",
     "  weft tokenize a.gguf -p \"some text\"\n"
     "  weft tokenize a.gguf --tokens 2,5,9\n",
     WEFT_WORDS_ARE_MODELS},
    {"top", WEFT_CMD_TOP, weft_cli_top, "[--port N]", "a running server, live: pool, models, tenants, latencies",
     "  weft top --port 8080\n", 0},
    {"trace", WEFT_CMD_TRACE, weft_cli_trace, "[--port N] [-o FILE]",
     "the last steps of a running server, for chrome://tracing", "  weft trace --port 8080 -o steps.json\n", 0},
    {"weights", WEFT_CMD_WEIGHTS, weft_cli_weights, "FILE --socket PATH",
     "own the weights of models, so that several servers map one copy and start at once",
     "  weft weights a.gguf --socket /run/user/1000/weft-weights\n"
     "  weft serve a.gguf --weights /run/user/1000/weft-weights\n"
     "  weft weights a.gguf --socket /run/user/1000/weft-weights --dry-run\n",
     WEFT_WORDS_ARE_MODELS}};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static const weft_command_list *command_lists(void) {
  static weft_command_list lists[2] = {{"To use and to serve models", commands, N_COMMANDS}};
  lists[1] = (weft_command_list){"To measure, test and simulate", weft_lab_commands, weft_lab_n_commands};
  return lists;
}

static int print_version(void) {
  char backends[3 * WEFT_PATHS_MAX];
  weft_device_list_backends(backends, sizeof backends);
  (void)printf("weft %s\n%s", weft_version(), backends);
  return 0;
}

static void warn_of_strangers(void) {
  char line[256];
  for (uint32_t at = 0; weft_config_stranger(&weft_lab_options, &at, line, sizeof line);) {
    weft_cli_say(STDERR_FILENO, "%s", line);
  }
}

/* A word that belongs to no option. Where no model is named yet it was meant to be one, as with servers that know
 * models by name. */
static int refuse_word(const weft_command *command, const weft_config *config, const char *word) {
  if (command->n_words == WEFT_WORDS_ARE_MODELS && config->models.n == 0 && config->hub_models.n == 0)
    return weft_cli_fail(WEFT_EXIT_USAGE,
                         "%s: '%s' is no file: a model is a GGUF file, or one of a hub: -hf OWNER/NAME fetches "
                         "it where it is not there yet",
                         command->name, word);
  return weft_cli_fail(WEFT_EXIT_USAGE,
                       "%s: '%s' belongs to no option: a value stands behind the name of its option, as -m FILE or -p "
                       "TEXT, and a value of several words in quotes",
                       command->name, word);
}

static int run_command(const weft_manual *manual, const weft_command *command, int argc, char **argv) {
  weft_lab_config config;
  weft_error error;
  weft_status status = weft_config_parse(&config.product, &weft_lab_options, command->options, argc, argv, &error);
  const bool takes_models = command->n_words == WEFT_WORDS_ARE_MODELS;
  if (status == WEFT_OK && takes_models) status = weft_config_take_models(&config.product, &error);
  int code = 0;
  if (status != WEFT_OK) {
    code = weft_cli_fail(WEFT_EXIT_USAGE, "%s: %s", command->name, error.text);
  } else if (config.product.help) {
    char *name = (char *)(uintptr_t)command->name;
    code = weft_manual_run(manual, 1, &name);
  } else if (config.product.version) {
    code = print_version();
  } else if (config.product.words.n > (takes_models ? 0 : command->n_words)) {
    code = refuse_word(command, &config.product, config.product.words.item[takes_models ? 0 : command->n_words]);
  } else {
    weft_log_set(weft_config_log(&config.product));
    warn_of_strangers();
    if (command->run != weft_cli_doctor) code = weft_cli_take_hub_models(&config.product); /* it only looks */
    if (code == 0) code = command->run(&config.product);
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

static int print_usage(const weft_manual *manual) {
  weft_text text = {0};
  weft_manual_usage(manual, 0, &text);
  if (weft_text_status(&text) == WEFT_OK) (void)fputs(text.bytes, stderr); /* there is nowhere else to say it */
  weft_text_free(&text);
  return WEFT_EXIT_USAGE;
}

static const char *const help_words[] = {"help", "--help", "-help", "-h", NULL};
static const char *const version_words[] = {"version", "--version", "-V", "-v", NULL};

static bool is_one_of(const char *word, const char *const *words) {
  while (*words != NULL && strcmp(*words, word) != 0) words++;
  return *words != NULL;
}

int main(int argc, char **argv) {
  (void)signal(SIGPIPE, SIG_IGN); /* a reader that left is an error of the write */
  (void)signal(SIGBUS, tell_bus_error);
  const weft_manual manual = {.list = command_lists(), .n_lists = 2, .more = &weft_lab_options};
  if (argc < 2) return print_usage(&manual);
  int code = 0;
  if (is_one_of(argv[1], help_words)) {
    code = weft_manual_run(&manual, argc - 2, argv + 2);
  } else if (is_one_of(argv[1], version_words)) {
    code = print_version();
  } else {
    const weft_command *command = weft_manual_find(&manual, argv[1]);
    if (command == NULL) return weft_manual_no_command(&manual, argv[1]);
    code = run_command(&manual, command, argc - 2, argv + 2);
  }
  if (fflush(stdout) != 0 && code == 0) code = weft_cli_fail(WEFT_EXIT_RUNTIME, "standard output: %s", strerror(errno));
  return code;
}
