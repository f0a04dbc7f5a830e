/* SPDX-License-Identifier: MIT */
/* weft serve: models behind HTTP until SIGTERM or SIGINT, which drain; a second one cancels. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "api/admin.h"
#include "api/cli/cli.h"
#include "api/json.h"
#include "api/server.h"
#include "base/clock.h"
#include "base/log.h"

enum { LOOK_MS = 20, CANCEL_MS = 5000 };

/* Signals are told through a descriptor; a handler can be given nothing but globals. */
static int signal_fd = -1;

static void on_signal(int number) {
  uint64_t one = 1;
  int kept = errno;
  (void)number;
  (void)!write(signal_fd, &one, sizeof one); /* full only after 2^64 signals */
  errno = kept;
}

static int catch_signals(void) {
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
  signal_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
  if (signal_fd < 0 || sigaction(SIGTERM, &action, NULL) != 0 || sigaction(SIGINT, &action, NULL) != 0) {
    return weft_cli_fail(WEFT_EXIT_RUNTIME, "serve: %s", strerror(errno));
  }
  return 0;
}

/* True when a signal came within ms (-1: however long it takes). */
static bool wait_signal(int ms) {
  uint64_t count;
  struct pollfd wait = {.fd = signal_fd, .events = POLLIN};
  if (poll(&wait, 1, ms) <= 0) return false;
  return read(signal_fd, &count, sizeof count) == (ssize_t)sizeof count;
}

/* True when a signal came. */
static bool wait_idle(weft_server *server, uint64_t ms) {
  uint64_t until = weft_clock_us() + ms * 1000u;
  while (!weft_server_idle(server) && weft_clock_us() < until) {
    if (wait_signal(LOOK_MS)) return true;
  }
  return false;
}

/* to: where standard error was before the log took its place. */
static void say_where(const weft_config *config, const weft_runtime *rt, uint32_t port, int to) {
  const char *host = config->host == NULL ? "127.0.0.1" : config->host;
  const char *left = strchr(host, ':') != NULL ? "[" : "", *right = *left != 0 ? "]" : "";
  weft_text names = {0}, line = {0};
  weft_text_puts(&line, "{\"port\":");
  weft_text_printf(&line, "%u,\"host\":", port);
  weft_json_words(&line, host);
  weft_text_puts(&line, ",\"models\":[");
  for (uint32_t i = 0; i < weft_n_models(rt); i++) {
    const char *name = weft_model_at(rt, i).name;
    weft_text_printf(&names, i == 0 ? "%s" : ", %s", name);
    if (i > 0) weft_text_puts(&line, ",");
    weft_json_words(&line, name);
  }
  weft_text_puts(&line, "]}\n");
  if (weft_text_status(&names) == WEFT_OK && weft_text_status(&line) == WEFT_OK) {
    (void)dprintf(to, "weft: serving %s on http://%s%s%s:%u\n", names.bytes, left, host, right, port);
    if (config->json) {
      (void)fputs(line.bytes, stdout);
      (void)fflush(stdout); /* a reader that left is no reason to stop */
    }
  }
  weft_text_free(&names);
  weft_text_free(&line);
}

/* Where this server's log and core files go, apart from those of others: opened before anything
 * else, so that a bad folder is told at once, entered when all other files are open. */
typedef struct workplace {
  int folder, log; /* -1: none */
} workplace;

static int open_workplace(const char *directory, workplace *w) {
  *w = (workplace){-1, -1};
  if (directory == NULL) return 0;
  w->folder = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (w->folder >= 0) w->log = openat(w->folder, "weft.log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (w->log >= 0) return 0;
  return weft_cli_fail(WEFT_EXIT_USAGE, "--directory %s: %s", directory, strerror(errno));
}

static void close_workplace(workplace *w) {
  if (w->folder >= 0) (void)close(w->folder);
  if (w->log >= 0) (void)close(w->log); /* its copy is standard error */
}

static int enter_workplace(const workplace *w) {
  if (w->log < 0 || (fchdir(w->folder) == 0 && dup2(w->log, STDERR_FILENO) >= 0)) return 0;
  return weft_cli_fail(WEFT_EXIT_RUNTIME, "--directory: %s", strerror(errno));
}

static void run(const weft_config *config, weft_server *server) {
  while (!wait_signal(-1)) continue;
  weft_log(WEFT_LOG_INFO, "draining: at most %u s; a second signal cancels what is running", config->drain_seconds);
  weft_server_drain(server);
  bool again = wait_idle(server, (uint64_t)config->drain_seconds * 1000u);
  if (weft_server_idle(server)) return;
  weft_log(WEFT_LOG_WARN, again ? "cancelling what is running" : "the time to drain is up: cancelling what is running");
  weft_server_cancel(server);
  (void)wait_idle(server, CANCEL_MS);
}

static const weft_tenant_options everybody = {.name = "default"};

static int serve(const weft_config *config, const weft_keys *keys, const workplace *place) {
  weft_open_options options = weft_config_open(config);
  weft_server_options where = {.host = config->host,
                               .port = config->port,
                               .body_mib = config->body_mib,
                               .connections = config->connections,
                               .keys = keys};
  weft_runtime *rt = NULL;
  weft_server *server = NULL;
  weft_error error = {{0}};
  char line[512];
  options.tenants = keys == NULL ? 1 : weft_keys_n_tenants(keys);
  options.tenant = keys == NULL ? &everybody : weft_keys_options(keys);
  int status = weft_open(&options, &rt, line, sizeof line);
  if (status != 0) return weft_cli_fail(weft_cli_code(status), "%s", line);
  if (config->verbose) (void)fputs(weft_plan(rt), stderr);
  int code = 0;
  for (uint32_t i = 0; code == 0 && i < config->pin_files.n; i++) {
    if (weft_admin_pin_file(rt, keys, config->pin_files.item[i], &error) != WEFT_OK)
      code = weft_cli_fail(WEFT_EXIT_USAGE, "--pin %s", error.text);
  }
  if (code == 0 && weft_server_open(&where, rt, &server, &error) != WEFT_OK)
    code = weft_cli_fail(WEFT_EXIT_USAGE, "%s", error.text);
  if (code == 0) code = catch_signals();
  if (code == 0) {
    int to = place->log >= 0 ? dup(STDERR_FILENO) : STDERR_FILENO;
    code = enter_workplace(place); /* first, so that no request is logged elsewhere */
    if (code == 0) say_where(config, rt, weft_server_port(server), to);
    if (to > STDERR_FILENO) (void)close(to);
  }
  if (code == 0) run(config, server);
  weft_server_close(server);
  weft_close(rt);
  return code;
}

int weft_cli_serve(const weft_config *config) {
  weft_keys *keys = NULL;
  weft_error error = {{0}};
  if (config->models.n == 0) return weft_cli_fail(WEFT_EXIT_USAGE, "no model: name a GGUF file with -m FILE");
  if (config->words.n > 0) return weft_cli_fail(WEFT_EXIT_USAGE, "serve: '%s' is no option", config->words.item[0]);
  if (config->api_keys != NULL) {
    weft_status status = weft_keys_open(config->api_keys, &keys, &error);
    if (status != WEFT_OK) return weft_cli_fail(WEFT_EXIT_USAGE, "--api-keys: %s", error.text);
  }
  workplace place;
  int code = open_workplace(config->directory, &place);
  if (code == 0) code = serve(config, keys, &place);
  close_workplace(&place);
  weft_keys_close(keys);
  return code;
}
