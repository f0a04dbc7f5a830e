/* SPDX-License-Identifier: MIT */
/* What commands share: failing with one line, opening models, parameters from options, reading a file. */
#include "api/cli/cli.h"
#include "api/cli/terminal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"

/* On a terminal at words, below the first one or, of a line with a name in its first column (`pool    4096 MiB`),
 * below what follows that; elsewhere one line. */
static void write_wrapped(int to, const char *line) {
  enum { MARK = sizeof "weft: " - 1, NARROW = 60 };
  uint32_t n_columns = weft_terminal_width(to);
  size_t name = strcspn(line, " "), n = strncmp(line + name, "  ", 2) == 0 ? name + strspn(line + name, " ") : 0;
  uint32_t column = MARK + (uint32_t)n;
  weft_text out = {0};
  weft_text_printf(&out, "weft: %.*s", (int)n, line);
  weft_terminal_wrap(&out, line + n, column, n_columns < NARROW ? 2 : column, n_columns);
  bool wraps = n_columns > 0 && weft_text_status(&out) == WEFT_OK;
  (void)dprintf(to, "%s%s%s", wraps ? out.bytes : "weft: ", wraps ? "" : line, wraps ? "" : "\n"); /* likewise */
  weft_text_free(&out);
}

static void say_line(int to, weft_log_level level, const char *format, va_list list) {
  char text[1024], line[WEFT_LOG_LINE];
  (void)vsnprintf(text, sizeof text, format, list); /* a cut line is still a line */
  if (weft_log_get().form == WEFT_LOG_JSON) {
    const weft_log_event event = {NULL, text, NULL, 0};
    size_t n = weft_log_write(level, &event, line);
    (void)!write(to, line, n); /* to where nobody may be listening */
    return;
  }
  (void)weft_utf8_clean(text, line, sizeof line);
  write_wrapped(to, line);
}

int weft_cli_fail(int code, const char *format, ...) {
  va_list list;
  va_start(list, format);
  say_line(STDERR_FILENO, WEFT_LOG_ERROR, format, list);
  va_end(list);
  return code;
}

void weft_cli_say(int to, const char *format, ...) {
  va_list list;
  va_start(list, format);
  say_line(to, WEFT_LOG_NOTICE, format, list);
  va_end(list);
}

void weft_cli_tell_plan(const char *plan) {
  char text[1024];
  while (*plan != 0) {
    size_t n = strcspn(plan, "\n");
    const weft_log_event event = {"plan", text, NULL, 0};
    (void)snprintf(text, sizeof text, "%.*s", (int)n, plan);
    weft_log_tell(WEFT_LOG_INFO, &event);
    plan += n + (plan[n] != 0);
  }
}

int weft_cli_open_code(int status) {
  return weft_cli_code(status) == WEFT_EXIT_RUNTIME ? WEFT_EXIT_LOAD : weft_cli_code(status);
}

int weft_cli_code(int status) {
  switch (status) {
    case WEFT_OK:
      return WEFT_EXIT_OK;
    case WEFT_E_INVALID:
    case WEFT_E_TOO_LARGE:
    case WEFT_E_LIMIT:
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
  if (config->models.n == 0) return weft_cli_fail(WEFT_EXIT_USAGE, WEFT_NO_MODEL);
  weft_open_options options = weft_config_open(config);
  char error[512];
  int status = weft_open(&options, runtime, error, sizeof error);
  if (status != 0) return weft_cli_fail(weft_cli_open_code(status), "%s", error);
  weft_cli_tell_plan(weft_plan(*runtime));
  return 0;
}

int weft_cli_mode(const char *mode, weft_mode *out) {
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
  int code = weft_cli_mode(config->mode, &p->mode);
  if (code != 0) return code;
  p->prompt.thinking = config->thinking;
  p->max_tokens = config->max_tokens;
  weft_config_answer(config, p);
  p->sampling.logprobs = config->logprobs > 0;
  p->sampling.n_top_logprobs = config->logprobs;
  p->stop = config->stop.item;
  p->n_stop = config->stop.n;
  p->ignore_eos = config->ignore_eos;
  p->with_special = config->special;
  p->canvases = config->canvases;
  return 0;
}

char *weft_cli_read(const char *path, size_t *n) {
  FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
  if (file == NULL) {
    (void)weft_cli_fail(0, "%s: %s", path, strerror(errno));
    return NULL;
  }
  weft_text text = {.max = (size_t)256 << 20};
  bool bad = !weft_text_read(&text, file) || weft_text_status(&text) != WEFT_OK;
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
