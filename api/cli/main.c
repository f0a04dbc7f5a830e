/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "api/cli/cli.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"

typedef struct command_row {
  const char *name;
  unsigned bit;
  int (*run)(const weft_config *config);
  const char *usage, *help;
} command_row;

static const command_row commands[] = {
    {"generate", WEFT_CMD_GENERATE, weft_cli_generate, "-m FILE -p TEXT", "write text, token by token or by diffusion"},
    {"chat", WEFT_CMD_CHAT, weft_cli_chat, "-m FILE", "talk to a model on the terminal"},
    {"serve", WEFT_CMD_SERVE, weft_cli_serve, "-m FILE [-m FILE ...]", "an OpenAI-compatible HTTP server"},
    {"inspect", WEFT_CMD_INSPECT, weft_cli_inspect, "FILE", "print what a GGUF file holds"},
    {"tokenize", WEFT_CMD_TOKENIZE, weft_cli_tokenize, "-m FILE -p TEXT", "text to token ids, or ids to text"},
    {"logits", WEFT_CMD_LOGITS, weft_cli_logits, "-m FILE --tokens IDS -o FILE", "write raw f32 logits"},
    {"check", WEFT_CMD_CHECK, weft_cli_check, "-m FILE [--backend NAME]",
     "a backend against ref, op by op, over a model"},
    {"bench", WEFT_CMD_BENCH, weft_cli_bench,
     "[model "
     "[context|sequences|canvases|mix]|room|kernels|pager|capacity|scheduler|peer|serving|pressure|tenants|profile] -m "
     "FILE",
     "measure"},
    {"eval", WEFT_CMD_EVAL, weft_cli_eval, "-m FILE --cases FILE", "answer examples with known answers, both ways"},
    {"demo", WEFT_CMD_DEMO, weft_cli_demo, "-m FILE -m FILE", "serve the demo model and show what happens"},
    {"soak", WEFT_CMD_SOAK, weft_cli_soak, "-m FILE", "full load with random cancels for a while"},
    {"sim", WEFT_CMD_SIM, weft_cli_sim, "[--trace FILE]", "engine and pager under a virtual clock, without a model"},
    {"trace", WEFT_CMD_TRACE, weft_cli_trace, "[--port N] [-o FILE]",
     "the last steps of a running server, for chrome://tracing"},
    {"top", WEFT_CMD_TOP, weft_cli_top, "[--port N]", "a running server, live: pool, models, tenants, latencies"},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

int weft_cli_fail(int code, const char *format, ...) {
  char line[1024];
  va_list list;
  va_start(list, format);
  (void)vsnprintf(line, sizeof line, format, list); /* a cut line is still a line */
  va_end(list);
  (void)fprintf(stderr, "weft: %s\n", line);
  return code;
}

int weft_cli_code(int status) {
  switch (status) {
    case WEFT_OK:
      return WEFT_EXIT_OK;
    case WEFT_E_INVALID:
    case WEFT_E_TOO_LARGE:
    case WEFT_E_NOT_FOUND:
      return WEFT_EXIT_USAGE;
    case WEFT_E_FORMAT:
    case WEFT_E_IO:
    case WEFT_E_UNSUPPORTED:
      return WEFT_EXIT_LOAD;
    default:
      return WEFT_EXIT_RUNTIME;
  }
}

int weft_cli_open(const weft_config *config, weft_runtime **runtime) {
  if (config->models.n == 0) return weft_cli_fail(WEFT_EXIT_USAGE, "no model: name a GGUF file with -m FILE");
  weft_open_options options = weft_config_open(config);
  char error[512];
  int status = weft_open(&options, runtime, error, sizeof error);
  if (status != 0) return weft_cli_fail(weft_cli_code(status), "%s", error);
  if (config->verbose) (void)fputs(weft_plan(*runtime), stderr);
  return 0;
}

static int set_mode(const char *mode, weft_mode *out) {
  *out = WEFT_MODE_AUTO;
  if (mode == NULL || strcmp(mode, "auto") == 0) return 0;
  if (strcmp(mode, "ar") == 0 || strcmp(mode, "autoregressive") == 0) {
    *out = WEFT_MODE_AUTOREGRESSIVE;
    return 0;
  }
  if (strcmp(mode, "diffusion") == 0) {
    *out = WEFT_MODE_DIFFUSION;
    return 0;
  }
  return weft_cli_fail(WEFT_EXIT_USAGE, "--mode: '%s' must be auto, autoregressive (ar) or diffusion", mode);
}

int weft_cli_params(const weft_config *config, weft_generate_params *p) {
  weft_generate_defaults(p);
  int code = set_mode(config->mode, &p->mode);
  if (code != 0) return code;
  p->thinking = config->thinking;
  p->max_tokens = config->max_tokens;
  p->temperature = config->temperature;
  p->top_k = config->has_top_k ? (int32_t)config->top_k : -1;
  p->top_p = config->top_p;
  p->min_p = config->min_p;
  p->repetition_penalty = config->repetition_penalty;
  p->presence_penalty = config->presence_penalty;
  p->frequency_penalty = config->frequency_penalty;
  p->has_seed = config->has_seed;
  p->seed = config->seed;
  p->logprobs = config->logprobs > 0;
  p->top_logprobs = config->logprobs;
  p->stop = config->stop.item;
  p->n_stop = config->stop.n;
  p->ignore_eos = config->ignore_eos;
  p->with_special = config->special;
  p->diffusion_steps = config->diffusion_steps;
  p->diffusion_stability = config->has_stability ? (int32_t)config->diffusion_stability : -1;
  p->diffusion_t_min = config->diffusion_t_min;
  p->diffusion_t_max = config->diffusion_t_max;
  p->diffusion_entropy_bound = config->diffusion_entropy_bound;
  p->diffusion_confidence = config->diffusion_confidence;
  p->diffusion_blocks = config->diffusion_blocks;
  p->diffusion_no_self_conditioning = config->no_self_conditioning;
  return 0;
}

char *weft_cli_read(const char *path, size_t *n) {
  FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
  if (file == NULL) {
    (void)weft_cli_fail(0, "%s: %s", path, strerror(errno));
    return NULL;
  }
  weft_text text = {.max = (size_t)256 << 20};
  char piece[65536];
  size_t got;
  while ((got = fread(piece, 1, sizeof piece, file)) > 0) weft_text_append(&text, piece, got);
  bool bad = ferror(file) != 0 || weft_text_status(&text) != WEFT_OK;
  if (file != stdin) (void)fclose(file); /* only read */
  weft_text_append(&text, "", 0);
  if (bad || text.bytes == NULL) {
    weft_text_free(&text);
    (void)weft_cli_fail(0, "%s could not be read whole (at most 256 MiB)", path);
    return NULL;
  }
  *n = text.n;
  return text.bytes;
}

static int usage(FILE *to, int code) {
  (void)fprintf(to, "weft %s: one paged pool of KV memory, one loop, many tenants and models\n\n", weft_version());
  for (uint32_t i = 0; i < N_COMMANDS; i++) {
    (void)fprintf(to, "  weft %-9s %-52s %s\n", commands[i].name, commands[i].usage, commands[i].help);
  }
  (void)fprintf(to, "\nweft COMMAND --help lists the options of a command.\n");
  return code;
}

int main(int argc, char **argv) {
  (void)signal(SIGPIPE, SIG_IGN); /* a reader that left is an error of the write */
  if (argc < 2) return usage(stderr, WEFT_EXIT_USAGE);
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0)
    return usage(stdout, 0);
  if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "version") == 0) {
    (void)printf("weft %s\n", weft_version());
    return 0;
  }
  for (uint32_t i = 0; i < N_COMMANDS; i++) {
    const command_row *c = &commands[i];
    if (strcmp(argv[1], c->name) != 0) continue;
    weft_config config;
    weft_error error;
    weft_config_defaults(&config);
    weft_status status = weft_config_parse(&config, c->bit, argc - 2, argv + 2, &error);
    if (status != WEFT_OK) {
      weft_config_free(&config);
      return weft_cli_fail(WEFT_EXIT_USAGE, "%s: %s", c->name, error.text);
    }
    if (config.help) {
      (void)printf("weft %s %s: %s\n\n", c->name, c->usage, c->help);
      weft_config_help(c->bit, stdout);
      return 0;
    }
    if (config.verbose) weft_log_set_level(WEFT_LOG_INFO);
    int code = c->run(&config);
    weft_config_free(&config);
    if (fflush(stdout) != 0 && code == 0)
      code = weft_cli_fail(WEFT_EXIT_RUNTIME, "standard output: %s", strerror(errno));
    return code;
  }
  return weft_cli_fail(WEFT_EXIT_USAGE, "no command is named '%s': weft --help lists them", argv[1]);
}
