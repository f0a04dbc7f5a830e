/* SPDX-License-Identifier: MIT */
/* Where the server listens: an address and a port, or a unix socket.
 *
 * Law: the file of a unix socket is removed when the server ends, and one that a killed server left behind is removed
 * when the next one begins; never a socket on which a server still answers, and never a file that is no socket. Servers
 * that begin in one folder do so one after the other. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "api/http/http_internal.h"
#include "base/memory.h"
#include "base/path.h"

/* ---- an address and a port ---- */

static weft_status listen_at(weft_http *http, const char *host, weft_error *error) {
  char port[16];
  struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM}, *list;
  (void)snprintf(port, sizeof port, "%u", http->config.port);
  int code = getaddrinfo(host, port, &hints, &list);
  if (code != 0) return weft_fail(error, WEFT_E_INVALID, "--host %s: %s", host, gai_strerror(code));
  int fault = EADDRNOTAVAIL, one = 1;
  for (const struct addrinfo *a = list; a != NULL && http->listener < 0; a = a->ai_next) {
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool good = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
                bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0;
    if (good) {
      http->listener = fd;
    } else {
      fault = errno;
      if (fd >= 0) (void)close(fd);
    }
  }
  freeaddrinfo(list);
  if (http->listener >= 0) return WEFT_OK;
  if (fault == EADDRINUSE) {
    return weft_fail(error, WEFT_E_IO, "port %u of %s is in use: stop what listens there, or choose another --port",
                     http->config.port, host);
  }
  return weft_fail(error, WEFT_E_IO, "port %u of %s: %s", http->config.port, host, strerror(fault));
}

/* Where it listens in truth. */
static void learn_address(weft_http *http) {
  struct sockaddr_storage own = {0};
  socklen_t n = sizeof own;
  (void)getsockname(http->listener, (struct sockaddr *)&own, &n); /* cannot fail for a socket that is bound */
  (void)http_address_of(http, http->listener, &own, &http->loopback);
  const void *at = &own;
  if (own.ss_family == AF_INET) http->port = ntohs(((const struct sockaddr_in *)at)->sin_port);
  if (own.ss_family == AF_INET6) http->port = ntohs(((const struct sockaddr_in6 *)at)->sin6_port);
}

/* ---- a unix socket ---- */

enum { LOCK_TRIES = 500, LOCK_TRY_MS = 10 };

/* Between bind and listen a socket looks as if it had been left behind, and one that was left behind may be taken by two
 * servers at once, so that one removes the other's. Hence a server has the lock of the folder meanwhile. The lock needs
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

static weft_status fail_path(const char *path, int fault, weft_error *error) {
  struct stat file;
  if (fault != EADDRINUSE) return weft_fail(error, WEFT_E_IO, "--host unix:%s: %s", path, strerror(fault));
  bool is_socket = lstat(path, &file) == 0 && S_ISSOCK(file.st_mode);
  return weft_fail(error, WEFT_E_IO, "--host unix:%s: %s", path,
                   is_socket ? "somebody answers there: stop it, or choose another path"
                             : "a file that is no socket is there: choose another path");
}

/* The file mode is set before any client can connect: a socket answers from listen on. Under the lock of the folder. */
static weft_status listen_in_folder(weft_http *http, const char *path, weft_error *error) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  struct stat file;
  memcpy(address.sun_path, path, strlen(path));
  int fd = http->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0),
      fault = bind_path(fd, &address);
  if (fault != 0) return fail_path(path, fault, error);
  http->socket_path = weft_path_from_root(path); /* the process may go to another folder */
  bool good = chmod(path, http->config.socket_mode) == 0 && lstat(path, &file) == 0 && listen(fd, SOMAXCONN) == 0;
  fault = errno;
  if (good && http->socket_path != NULL) {
    http->socket_device = file.st_dev;
    http->socket_inode = file.st_ino;
    return WEFT_OK;
  }
  (void)unlink(path); /* ours, since a moment ago */
  return good ? weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the path of the socket")
              : fail_path(path, fault, error);
}

static weft_status listen_on_path(weft_http *http, const char *path, weft_error *error) {
  size_t n = strlen(path), n_max = sizeof((struct sockaddr_un *)NULL)->sun_path - 1;
  if (n == 0 || n > n_max) {
    return weft_fail(error, WEFT_E_INVALID, "--host unix:%s: the path of a unix socket has 1 to %zu bytes", path,
                     n_max);
  }
  int lock = lock_folder(path);
  if (lock < 0 && errno == EWOULDBLOCK) {
    return weft_fail(error, WEFT_E_IO, "--host unix:%s: another program holds the lock of its folder: try again", path);
  }
  if (lock < 0) return weft_fail(error, WEFT_E_IO, "--host unix:%s: %s", path, strerror(errno));
  weft_status status = listen_in_folder(http, path, error);
  (void)close(lock);
  return status;
}

/* ---- both ---- */

weft_status http_listen(weft_http *http, const char *host, weft_error *error) {
  static const char unix_prefix[] = "unix:";
  size_t n = sizeof unix_prefix - 1;
  bool is_unix = strncmp(host, unix_prefix, n) == 0;
  weft_status status = is_unix ? listen_on_path(http, host + n, error) : listen_at(http, host, error);
  if (status == WEFT_OK) learn_address(http);
  return status;
}

void http_stop_listening(weft_http *http) {
  struct stat file;
  if (http->socket_path != NULL && lstat(http->socket_path, &file) == 0 && file.st_dev == http->socket_device &&
      file.st_ino == http->socket_inode) {
    (void)unlink(http->socket_path); /* first, so that no client finds a socket that does not answer */
  }
  weft_free(http->socket_path);
  if (http->listener >= 0) (void)close(http->listener);
  http->listener = -1;
}

weft_status weft_http_try(const char *host, uint32_t port, uint32_t socket_mode, bool *loopback, weft_error *error) {
  weft_http *http = weft_alloc(1, sizeof *http);
  if (http == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the server");
  http->config = (weft_http_config){.port = port, .socket_mode = socket_mode};
  http->listener = -1;
  weft_status status = http_listen(http, host, error);
  *loopback = status == WEFT_OK && http->loopback;
  http_stop_listening(http);
  weft_free(http);
  return status;
}
