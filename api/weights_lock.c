/* SPDX-License-Identifier: MIT */
#include "api/weights_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

/* The file was removed by the owner before, between our open and our lock. */
static bool is_still_there(int fd, const char *path) {
  struct stat own, named;
  return fstat(fd, &own) == 0 && lstat(path, &named) == 0 && own.st_dev == named.st_dev && own.st_ino == named.st_ino;
}

static weft_status fail_held(int fd, const char *path, const char *what, weft_error *error) {
  char pid[16] = "";
  ssize_t n = pread(fd, pid, sizeof pid - 1, 0);
  long number = n > 0 ? strtol(pid, NULL, 10) : 0;
  return weft_fail(error, WEFT_E_UNSUPPORTED,
                   "process %ld owns the weights of %s already (%s): use its socket, or end it", number, what, path);
}

weft_status weights_lock_take(const char *path, const char *what, weights_lock *out, weft_error *error) {
  *out = (weights_lock)WEIGHTS_NO_LOCK;
  for (;;) {
    int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return weft_fail(error, WEFT_E_IO, "the lock %s: %s", path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
      weft_status status = errno == EWOULDBLOCK ? fail_held(fd, path, what, error)
                                                : weft_fail(error, WEFT_E_IO, "the lock %s: %s", path, strerror(errno));
      (void)close(fd); /* not ours */
      return status;
    }
    if (!is_still_there(fd, path)) {
      (void)close(fd); /* a file without a name; the next try makes a new one */
      continue;
    }
    out->path = weft_strdup(path);
    out->fd = fd;
    if (out->path == NULL) weights_lock_give(out);
    if (out->fd < 0) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a lock");
    bool told = ftruncate(fd, 0) == 0 && dprintf(fd, "%d\n", (int)getpid()) > 0;
    (void)told; /* the number is for people; the lock holds without it */
    return WEFT_OK;
  }
}

void weights_lock_give(weights_lock *lock) {
  if (lock->fd < 0) return;
  if (lock->path != NULL) (void)unlink(lock->path); /* ours, while we have the lock */
  (void)close(lock->fd);
  weft_free(lock->path);
  *lock = (weights_lock)WEIGHTS_NO_LOCK;
}
