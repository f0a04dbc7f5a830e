/* SPDX-License-Identifier: MIT */
#include "bench/prove/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { LOOK_MS = 50 };

static volatile sig_atomic_t told_to_stop;

static void note_signal(int number) {
  (void)number;
  told_to_stop = 1;
}

void prove_catch_signals(void) {
  struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART};
  told_to_stop = 0;
  (void)sigaction(SIGINT, &action, NULL); /* cannot fail with these arguments */
  (void)sigaction(SIGTERM, &action, NULL);
}

bool prove_told_to_stop(void) {
  return told_to_stop != 0;
}

static int spawn_child(prove_child *child, const char *const *args, char *const *env, int out) {
  posix_spawn_file_actions_t actions;
  char *const *argv = (char *const *)(uintptr_t)args;
  bool own = strcmp(args[0], "weft") == 0;
  (void)posix_spawn_file_actions_init(&actions); /* cannot fail on Linux */
  int status = posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  if (status == 0)
    status = posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, child->log, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (status == 0) status = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (env == NULL) env = environ;
  if (status == 0 && own) status = posix_spawn(&child->pid, "/proc/self/exe", &actions, NULL, argv, env);
  if (status == 0 && !own) status = posix_spawnp(&child->pid, args[0], &actions, NULL, argv, env);
  (void)posix_spawn_file_actions_destroy(&actions); /* nothing to lose */
  return status;
}

weft_status prove_child_start(prove_child *child, const char *const *args, char *const *env, const char *log,
                              weft_error *error) {
  int pipe_fd[2];
  *child = (prove_child){.pid = 0};
  if ((size_t)snprintf(child->log, sizeof child->log, "%s", log) >= sizeof child->log)
    return weft_fail(error, WEFT_E_TOO_LARGE, "%s: the name of the log is too long", log);
  if (pipe2(pipe_fd, O_CLOEXEC) != 0) return weft_fail(error, WEFT_E_IO, "pipe: %s", strerror(errno));
  int status = spawn_child(child, args, env, pipe_fd[1]);
  (void)close(pipe_fd[1]); /* the child's end */
  if (status != 0) {
    (void)close(pipe_fd[0]);
    child->pid = 0;
    return weft_fail(error, WEFT_E_IO, "%s cannot be started: %s", args[0], strerror(status));
  }
  child->out = pipe_fd[0];
  child->hears = true;
  return WEFT_OK;
}

weft_status prove_child_line(prove_child *child, char line[PROVE_LINE_MAX], uint64_t until_us) {
  size_t n = 0;
  while (child->hears) {
    uint64_t now = weft_clock_us();
    struct pollfd wait = {.fd = child->out, .events = POLLIN};
    if (now >= until_us || prove_told_to_stop()) return WEFT_AGAIN;
    int ready = poll(&wait, 1, LOOK_MS);
    if (ready < 0 && errno != EINTR) return WEFT_E_NOT_FOUND;
    if (ready <= 0) continue;
    char byte;
    ssize_t got = read(child->out, &byte, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      (void)close(child->out); /* only read */
      child->hears = false;
      break;
    }
    if (byte == '\n' || n + 1 == PROVE_LINE_MAX) {
      line[n] = 0;
      return WEFT_OK;
    }
    line[n++] = byte;
  }
  line[n] = 0;
  return n > 0 ? WEFT_OK : WEFT_E_NOT_FOUND;
}

static void note_end(prove_child *child, int status) {
  child->code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  child->pid = 0;
}

bool prove_child_alive(prove_child *child) {
  int status = 0;
  if (child->pid == 0) return false;
  pid_t ended = waitpid(child->pid, &status, WNOHANG);
  if (ended == child->pid) note_end(child, status);
  if (ended < 0 && errno == ECHILD) child->pid = 0, child->code = -1;
  return child->pid != 0;
}

bool prove_child_stop(prove_child *child, uint32_t grace_ms) {
  if (child->log[0] == 0) return true;
  if (prove_child_alive(child)) (void)kill(child->pid, SIGTERM); /* gone meanwhile is as good */
  uint64_t until = weft_clock_us() + (uint64_t)grace_ms * 1000u;
  while (prove_child_alive(child) && weft_clock_us() < until) (void)usleep(5000);
  if (prove_child_alive(child)) {
    child->killed = true;
    (void)kill(child->pid, SIGKILL);
    while (prove_child_alive(child)) (void)usleep(5000);
  }
  if (child->hears) (void)close(child->out); /* only read */
  child->hears = false;
  return !child->killed && child->code == 0;
}

void prove_child_last_words(const prove_child *child, char words[256]) {
  char line[1024];
  words[0] = 0;
  FILE *file = fopen(child->log, "r");
  if (file == NULL) return;
  while (fgets(line, sizeof line, file) != NULL) {
    line[strcspn(line, "\n")] = 0;
    if (line[0] != 0) (void)weft_utf8_clean(strncmp(line, "weft: ", 6) == 0 ? line + 6 : line, words, 256);
  }
  (void)fclose(file); /* only read */
}
