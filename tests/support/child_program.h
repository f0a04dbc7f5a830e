/* SPDX-License-Identifier: MIT */
/* The program `weft` as a process of a test: started, read line by line, ended. */
#ifndef WEFT_TESTS_CHILD_PROGRAM_H
#define WEFT_TESTS_CHILD_PROGRAM_H

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include "tests/support/http_conversation.h"

extern char **environ;

typedef struct program {
  pid_t pid;
  int out, err;
  uint16_t port;
} program;

enum { PROGRAM_WORDS = 40 };

static inline void read_line(int fd, char *line, size_t n_max) {
  size_t n = 0;
  struct pollfd wait = {.fd = fd, .events = POLLIN};
  while (n + 1 < n_max && poll(&wait, 1, TALK_MS) > 0 && read(fd, line + n, 1) == 1 && line[n] != '\n') n++;
  line[n] = 0;
}

/* weft WORDS... MORE..., each up to NULL. */
static inline program spawn_program(const char *const *words, const char *const *more) {
  const char *args[PROGRAM_WORDS] = {WEFT_BINARY_DIR "/weft"};
  int n = 1, out[2], err[2];
  program p = {0};
  for (; *words != NULL && n < PROGRAM_WORDS - 1; words++) args[n++] = *words;
  for (; *more != NULL && n < PROGRAM_WORDS - 1; more++) args[n++] = *more;
  assert_int_equal(pipe2(out, O_CLOEXEC), 0);
  assert_int_equal(pipe2(err, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  (void)posix_spawn_file_actions_init(&actions);
  (void)posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  (void)posix_spawn_file_actions_adddup2(&actions, err[1], 2);
  assert_int_equal(posix_spawn(&p.pid, args[0], &actions, NULL, (char *const *)args, environ), 0);
  (void)posix_spawn_file_actions_destroy(&actions);
  (void)close(out[1]);
  (void)close(err[1]);
  p.out = out[0];
  p.err = err[0];
  return p;
}

/* ---- processes of another user, which only root can be ---- */

enum { STRANGER = 65534 };

/* A process of another user that listens on the path, and answers nothing. 0: this one cannot make any. */
static inline pid_t listen_as_stranger(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  int ready[2];
  char byte = 0;
  if (geteuid() != 0) return 0;
  memcpy(address.sun_path, path, strlen(path));
  assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
  pid_t pid = fork();
  if (pid == 0) {
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    bool good = setresuid(STRANGER, STRANGER, STRANGER) == 0 &&
                bind(fd, (const struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 4) == 0;
    byte = good ? 'y' : 'n';
    (void)!write(ready[1], &byte, 1);
    for (;;) (void)pause();
  }
  assert_int_equal(read(ready[0], &byte, 1), 1);
  assert_int_equal(byte, 'y');
  (void)close(ready[0]);
  (void)close(ready[1]);
  return pid;
}

static inline void end_stranger(pid_t pid) {
  int how;
  if (pid == 0) return;
  assert_int_equal(kill(pid, SIGKILL), 0);
  assert_int_equal(waitpid(pid, &how, 0), pid);
}

/* Whether a process of another user that connects there is hung up on before it has said a word. */
static inline bool stranger_is_hung_up_on(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  int how;
  if (geteuid() != 0) return true;
  memcpy(address.sun_path, path, strlen(path));
  pid_t pid = fork();
  if (pid == 0) {
    char byte;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    bool good = setresuid(STRANGER, STRANGER, STRANGER) == 0 &&
                connect(fd, (const struct sockaddr *)&address, sizeof address) == 0;
    _exit(good && read(fd, &byte, 1) <= 0 ? 0 : 1);
  }
  assert_int_equal(waitpid(pid, &how, 0), pid);
  return WIFEXITED(how) && WEXITSTATUS(how) == 0;
}

/* The object that it prints when it is ready; the caller decrefs. */
static inline json_t *await_object(const program *p) {
  char line[512];
  read_line(p->out, line, sizeof line);
  json_t *root = json_loads(line, 0, NULL);
  if (root != NULL) return root;
  read_line(p->err, line, sizeof line);
  fail_msg("it did not say that it is ready: %s", line);
  return NULL;
}

/* Sends a signal (0: it ends by itself) and waits: what it said on standard error that nobody has read, and how it
 * ended. */
static inline int await_end(program *p, int number, char *rest, size_t n_max) {
  size_t n = 0;
  ssize_t got;
  struct pollfd wait = {.fd = p->err, .events = POLLIN};
  int how = 0;
  if (number != 0) assert_int_equal(kill(p->pid, number), 0);
  while (n + 1 < n_max && poll(&wait, 1, TALK_MS) > 0 && (got = read(p->err, rest + n, n_max - 1 - n)) > 0)
    n += (size_t)got;
  rest[n] = 0;
  assert_int_equal(waitpid(p->pid, &how, 0), p->pid);
  (void)close(p->out);
  (void)close(p->err);
  return how;
}

static inline void end_program(program *p, int number, char *rest, size_t n_max) {
  int how = await_end(p, number, rest, n_max);
  assert_true(WIFEXITED(how));
  if (WEXITSTATUS(how) != 0) fail_msg("it ended with %d: %s", WEXITSTATUS(how), rest);
}

#endif
