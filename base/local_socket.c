/* SPDX-License-Identifier: MIT */
#include "base/local_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/path.h"

enum { LOCK_TRIES = 500, LOCK_TRY_MS = 10 };

/* Between bind and listen a socket looks as if it had been left behind, and one that was left behind may be taken by
 * two servers at once, so that one removes the other's. Hence a server has the lock of the folder meanwhile. The lock needs
 * no file of its own, and ends with the process whatever becomes of it. -1: errno says why not. */
static int lock_folder(const char *path) {
  char folder[sizeof((struct sockaddr_un *)NULL)->sun_path];
  const char *slash = strrchr(path, '/');
  int n = slash == NULL || slash == path ? 1 : (int)(slash - path);
  (void)snprintf(folder, sizeof folder, "%.*s", n, slash == NULL ? "." : path); /* the path is no longer than that */
  int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (int tries = 1; fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0; tries++) {
    int fault = errno;
    if (fault != EINTR && (fault != EWOULDBLOCK || tries == LOCK_TRIES)) {
      (void)close(fd);
      errno = fault;
      return -1;
    }
    (void)poll(NULL, 0, LOCK_TRY_MS);
  }
  return fd;
}

/* No process listens on the socket of this name any more. */
static bool is_left_behind(const struct sockaddr_un *address) {
  struct stat file;
  if (lstat(address->sun_path, &file) != 0 || !S_ISSOCK(file.st_mode)) return false;
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  bool refused = connect(fd, (const struct sockaddr *)address, sizeof *address) != 0 && errno == ECONNREFUSED;
  (void)close(fd); /* nothing was sent */
  return refused;
}

/* 0, or why not. */
static int bind_path(int fd, const struct sockaddr_un *address) {
  const struct sockaddr *name = (const void *)address;
  if (fd >= 0 && bind(fd, name, sizeof *address) == 0) return 0;
  if (fd < 0 || errno != EADDRINUSE) return errno;
  if (!is_left_behind(address)) return EADDRINUSE;
  return unlink(address->sun_path) == 0 && bind(fd, name, sizeof *address) == 0 ? 0 : errno;
}

static weft_status fail_path(const char *prefix, const char *path, int fault, weft_error *error) {
  struct stat file;
  if (fault != EADDRINUSE) return weft_fail(error, WEFT_E_IO, "%s%s: %s", prefix, path, strerror(fault));
  bool is_socket = lstat(path, &file) == 0 && S_ISSOCK(file.st_mode);
  return weft_fail(error, WEFT_E_IO, "%s%s: %s", prefix, path,
                   is_socket ? "somebody answers there: stop it, or choose another path"
                             : "a file that is no socket is there: choose another path");
}

/* The file mode is set before any client can connect: a socket answers from listen on. Under the lock of the folder. */
static weft_status listen_in_folder(const char *prefix, const char *path, uint32_t mode, weft_local_socket *out,
                                    weft_error *error) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  struct stat file;
  memcpy(address.sun_path, path, strlen(path));
  out->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  int fault = bind_path(out->fd, &address);
  if (fault != 0) return fail_path(prefix, path, fault, error);
  out->path = weft_path_from_root(path); /* the process may go to another folder */
  bool good = chmod(path, mode) == 0 && lstat(path, &file) == 0 && listen(out->fd, SOMAXCONN) == 0;
  fault = errno;
  if (good && out->path != NULL) {
    out->device = file.st_dev;
    out->inode = file.st_ino;
    return WEFT_OK;
  }
  (void)unlink(path); /* ours, since a moment ago */
  return good ? weft_fail(error, WEFT_E_NO_MEMORY, "%s%s: no memory for the path", prefix, path)
              : fail_path(prefix, path, fault, error);
}

/* What a failure left of it; its file is gone already. */
static void drop_socket(weft_local_socket *s) {
  weft_free(s->path);
  if (s->fd >= 0) (void)close(s->fd);
  *s = (weft_local_socket)WEFT_NO_LOCAL_SOCKET;
}

weft_status weft_local_socket_open(const char *prefix, const char *path, uint32_t mode, weft_local_socket *out,
                                   weft_error *error) {
  size_t n = strlen(path), n_max = sizeof((struct sockaddr_un *)NULL)->sun_path - 1;
  *out = (weft_local_socket)WEFT_NO_LOCAL_SOCKET;
  if (n == 0 || n > n_max) {
    return weft_fail(error, WEFT_E_INVALID, "%s%s: the path of a unix socket has 1 to %zu bytes", prefix, path, n_max);
  }
  int lock = lock_folder(path);
  if (lock < 0 && errno == EWOULDBLOCK) {
    return weft_fail(error, WEFT_E_IO, "%s%s: another program holds the lock of its folder: try again", prefix, path);
  }
  if (lock < 0) return weft_fail(error, WEFT_E_IO, "%s%s: %s", prefix, path, strerror(errno));
  weft_status status = listen_in_folder(prefix, path, mode, out, error);
  if (status != WEFT_OK) drop_socket(out);
  (void)close(lock);
  return status;
}

weft_status weft_local_socket_adopt(const char *path, weft_local_socket *out, weft_error *error) {
  struct stat file;
  *out = (weft_local_socket)WEFT_NO_LOCAL_SOCKET;
  if (lstat(path, &file) != 0) return fail_path("", path, errno, error);
  out->path = weft_path_from_root(path);
  if (out->path == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "%s: no memory for the path", path);
  out->device = file.st_dev;
  out->inode = file.st_ino;
  return WEFT_OK;
}

void weft_local_socket_forget(weft_local_socket *s) {
  drop_socket(s);
}

void weft_local_socket_close(weft_local_socket *s) {
  struct stat file;
  if (s->path != NULL && lstat(s->path, &file) == 0 && file.st_dev == s->device && file.st_ino == s->inode)
    (void)unlink(s->path);
  drop_socket(s);
}
