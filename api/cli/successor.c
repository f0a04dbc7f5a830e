/* SPDX-License-Identifier: MIT */
#include "api/cli/successor.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/path.h"

enum { PATH_BYTES = 4096, WORDS_BYTES = 1 << 20 };

struct successor {
  int folder;
  char *program; /* from the root */
  char *words;   /* of the command line, each ended by a zero byte */
  char **argument;
};

extern char **environ;

/* The command line, as the system has it. */
static weft_status read_words(successor *s, weft_error *error) {
  s->words = weft_alloc(WORDS_BYTES + 1, 1);
  if (s->words == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for --take-over");
  int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  size_t n = 0;
  ssize_t got = fd < 0 ? -1 : 1;
  while (got > 0 && n < WORDS_BYTES) {
    got = read(fd, s->words + n, WORDS_BYTES - n);
    if (got > 0) n += (size_t)got;
  }
  if (fd >= 0) (void)close(fd); /* only read */
  if (got != 0 || n == 0)
    return weft_fail(error, WEFT_E_IO, "--take-over: the system does not tell the command line of this process");
  uint32_t n_words = 0;
  for (size_t at = 0; at < n; at += strlen(s->words + at) + 1) n_words += 1;
  s->argument = weft_alloc((size_t)n_words + 1, sizeof *s->argument);
  if (s->argument == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for --take-over");
  n_words = 0;
  for (size_t at = 0; at < n; at += strlen(s->words + at) + 1) s->argument[n_words++] = s->words + at;
  return WEFT_OK;
}

/* The file that the first word names, or where it was found by its name alone, the one that runs. */
static char *find_program(const char *word) {
  if (strchr(word, '/') != NULL) return weft_path_from_root(word);
  char *name = weft_alloc(PATH_BYTES, 1);
  if (name == NULL) return NULL;
  ssize_t n = readlink("/proc/self/exe", name, PATH_BYTES - 1);
  if (n > 0) return name;
  weft_free(name);
  return NULL;
}

weft_status successor_open(successor **out, weft_error *error) {
  successor *s = *out = weft_alloc(1, sizeof *s);
  if (s == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for --take-over");
  s->folder = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  weft_status status = read_words(s, error);
  if (status != WEFT_OK) return status;
  s->program = find_program(s->argument[0]);
  if (s->folder < 0 || s->program == NULL)
    return weft_fail(error, WEFT_E_IO, "--take-over: the program '%.200s' is not found again", s->argument[0]);
  return WEFT_OK;
}

void successor_close(successor *s) {
  if (s == NULL) return;
  if (s->folder >= 0) (void)close(s->folder);
  weft_free(s->program);
  weft_free(s->words);
  weft_free(s->argument);
  weft_free(s);
}

weft_status successor_start(const successor *s, int *pid, weft_error *error) {
  posix_spawn_file_actions_t actions;
  pid_t child = 0;
  int fault = posix_spawn_file_actions_init(&actions);
  if (fault == 0) {
    fault = posix_spawn_file_actions_addfchdir_np(&actions, s->folder);
    if (fault == 0) fault = posix_spawn(&child, s->program, &actions, NULL, s->argument, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
  }
  *pid = child;
  return fault == 0 ? WEFT_OK
                    : weft_fail(error, WEFT_E_IO, "%.200s cannot be started: %s", s->program, strerror(fault));
}
