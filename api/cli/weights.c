/* SPDX-License-Identifier: MIT */
/* weft weights: owns the weights of models until SIGTERM, SIGINT or the end of --parent-pid; or says what it would do
 * (--dry-run), or what another one did (--counts). With --json it prints an event a line (docs/weights.md). */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "api/cli/cli.h"
#include "api/cli/notify.h"
#include "api/weights_owner.h"
#include "base/text.h"

/* Blocked before any thread begins, so that all inherit it and the signals come here alone. */
static int catch_ends(int *fd) {
  sigset_t ends;
  (void)sigemptyset(&ends);
  (void)sigaddset(&ends, SIGTERM);
  (void)sigaddset(&ends, SIGINT);
  bool good = sigprocmask(SIG_BLOCK, &ends, NULL) == 0 && (*fd = signalfd(-1, &ends, SFD_CLOEXEC)) >= 0;
  return good ? 0 : weft_cli_fail(WEFT_EXIT_RUNTIME, "weights: %s", strerror(errno));
}

/* A descriptor that can be read when the process has ended. */
static int watch_parent(uint32_t pid, int *fd) {
  *fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
  if (*fd >= 0) return 0;
  return weft_cli_fail(WEFT_EXIT_USAGE, "--parent-pid %u: %s", pid,
                       errno == ESRCH ? "there is no such process" : strerror(errno));
}

static void print_event(void *self, const char *event) {
  (void)self;
  (void)printf("%s\n", event);
  (void)fflush(stdout); /* a reader that left is no reason to stop */
}

static int print_verdict(const weft_open_options *options, const weights_owner_options *own) {
  weft_error error = {{0}};
  weft_status status = weights_owner_judge(options, own, &error);
  return status == WEFT_OK ? 0 : weft_cli_fail(weft_cli_open_code(status), "%s", error.text);
}

static int print_counts(const char *socket) {
  weft_weights *weights = NULL;
  char *json = NULL, line[512];
  int status = socket == NULL ? WEFT_E_INVALID : weft_weights_open(socket, &weights, line, sizeof line);
  if (socket == NULL) (void)snprintf(line, sizeof line, "--socket PATH is missing: where the owner answers");
  if (status == 0) status = weft_weights_counts(weights, &json, line, sizeof line);
  if (status == 0) (void)printf("%s\n", json);
  weft_release(json);
  weft_weights_close(weights);
  return status == 0 ? 0 : weft_cli_fail(weft_cli_open_code(status), "%s", line);
}

static void say_ready(const weft_config *config, const weights_owner *owner) {
  if (!config->quiet)
    weft_cli_say(STDERR_FILENO, "%.1f MiB of weights are at %s: weft serve MODEL --weights %s",
                 (double)weights_owner_bytes(owner) / 1048576.0, config->socket, config->socket);
  if (notify_send("READY=1") < 0) weft_log(WEFT_LOG_WARN, "NOTIFY_SOCKET: the service manager could not be told");
}

static int own_weights(const weft_config *config, const weft_open_options *options, const weights_owner_options *own) {
  weights_owner *owner = NULL;
  weft_error error = {{0}};
  int stop[2] = {-1, -1};
  weft_text counts = {0};
  char guard[64];
  (void)signal(SIGPIPE, SIG_IGN);
  int code = catch_ends(&stop[0]);
  if (code == 0 && config->parent_pid > 0) code = watch_parent(config->parent_pid, &stop[1]);
  (void)snprintf(guard, sizeof guard, "{\"event\":\"guard\",\"parent\":%u}", config->parent_pid);
  if (stop[1] >= 0 && own->tell != NULL) own->tell(own->tell_self, guard);
  if (code == 0) {
    weft_status status = weights_owner_open(options, own, &owner, &error);
    if (status == WEFT_OK) {
      say_ready(config, owner);
      status = weights_owner_run(owner, stop, stop[1] >= 0 ? 2 : 1, &error);
      weights_owner_counts(owner, &counts);
      if (own->tell != NULL) own->tell(own->tell_self, "{\"event\":\"shutdown\"}");
      if (weft_text_status(&counts) == WEFT_OK) weft_log(WEFT_LOG_NOTICE, "weights: ended: %s", counts.bytes);
    }
    if (status != WEFT_OK) code = weft_cli_fail(weft_cli_open_code(status), "%s", error.text);
  }
  weft_text_free(&counts);
  weights_owner_close(owner);
  for (int i = 0; i < 2; i++) {
    if (stop[i] >= 0) (void)close(stop[i]); /* only read */
  }
  return code;
}

int weft_cli_weights(const weft_config *config) {
  weft_open_options options = weft_config_open(config);
  const weights_owner_options own = {.socket = config->socket,
                                     .scope = config->scope,
                                     .transport = config->transport,
                                     .reserve_bytes = (uint64_t)config->reserve_mib << 20,
                                     .tell = config->json || config->dry_run ? print_event : NULL};
  if (config->counts) return print_counts(config->socket);
  if (config->models.n == 0) return weft_cli_fail(WEFT_EXIT_USAGE, WEFT_NO_MODEL);
  return config->dry_run ? print_verdict(&options, &own) : own_weights(config, &options, &own);
}
