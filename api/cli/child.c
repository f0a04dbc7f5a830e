/* SPDX-License-Identifier: MIT */
#include "api/cli/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/cli/cli.h"

extern char **environ;

enum { ARGS_MAX = 64 };

static int read_port(int fd, uint16_t *port) {
  char line[512];
  size_t n = 0;
  while (n + 1 < sizeof line) {
    ssize_t got = read(fd, line + n, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || line[n] == '\n') break;
    n += 1;
  }
  line[n] = 0;
  const char *at = strstr(line, "\"port\"");
  if (at == NULL) return -1;
  at += strcspn(at, ":") + 1;
  *port = (uint16_t)strtoul(at, NULL, 10);
  return *port == 0 ? -1 : 0;
}

int weft_child_start(weft_child *child, const char *const *args) {
  const char *argv[ARGS_MAX + 8] = {"weft",   "serve",   "--port",   "0",
                                    "--json", "--quiet", "--config", "/dev/null"}; /* no file of the user's */
  uint32_t n = 8;
  for (uint32_t i = 0; args[i] != NULL && n < ARGS_MAX; i++) argv[n++] = args[i];
  int pipe_fd[2];
  posix_spawn_file_actions_t actions;
  child->pid = -1;
  if (pipe2(pipe_fd, O_CLOEXEC) != 0) return weft_cli_fail(-1, "pipe: %s", strerror(errno));
  (void)posix_spawn_file_actions_init(&actions); /* cannot fail on Linux */
  int status = posix_spawn_file_actions_adddup2(&actions, pipe_fd[1], STDOUT_FILENO);
  if (status == 0) {
    status = posix_spawn(&child->pid, "/proc/self/exe", &actions, NULL, (char *const *)(uintptr_t)argv, environ);
  }
  (void)posix_spawn_file_actions_destroy(&actions); /* nothing to lose */
  (void)close(pipe_fd[1]);                          /* the child's end */
  if (status != 0) child->pid = -1;
  int failed = status != 0 ? -1 : read_port(pipe_fd[0], &child->port);
  (void)close(pipe_fd[0]); /* one line was all */
  if (failed == 0) return 0;
  (void)weft_child_stop(child);
  return weft_cli_fail(-1, "the server did not start");
}

int weft_child_stop(weft_child *child) {
  if (child->pid <= 0) return -1;
  int status = 0;
  (void)kill(child->pid, SIGTERM); /* gone already is as good */
  while (waitpid(child->pid, &status, 0) < 0) {
    if (errno != EINTR) return -1;
  }
  child->pid = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

uint64_t weft_child_kib(const weft_child *child, const char *field) {
  char path[64], line[256];
  uint64_t kib = 0;
  (void)snprintf(path, sizeof path, "/proc/%d/status", (int)child->pid);
  FILE *file = fopen(path, "r");
  if (file == NULL) return 0;
  size_t n = strlen(field);
  while (fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, field, n) == 0 && line[n] == ':') kib = strtoull(line + n + 1, NULL, 10);
  }
  (void)fclose(file); /* only read */
  return kib;
}
