/* SPDX-License-Identifier: MIT */
/* Where the server listens: an address and a port, or a unix socket (base/local_socket.h). */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/http/http_internal.h"
#include "base/memory.h"

static const char unix_prefix[] = "unix:";

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

/* ---- one that was handed over ---- */

static weft_status take_listener(weft_http *http, weft_error *error) {
  int listens = 0;
  socklen_t n = sizeof listens;
  http->listener = http->config.listener;
  if (getsockopt(http->listener, SOL_SOCKET, SO_ACCEPTCONN, &listens, &n) == 0 && listens != 0) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID, "what was handed over is no socket that listens");
}

weft_status http_adopt(weft_http *http, const char *host, weft_error *error) {
  bool is_unix = strncmp(host, unix_prefix, sizeof unix_prefix - 1) == 0;
  if (!http->config.has_listener || !is_unix) return WEFT_OK;
  return weft_local_socket_adopt(host + sizeof unix_prefix - 1, &http->local, error);
}

void http_pass_on(weft_http *http) {
  weft_local_socket_forget(&http->local);
  /* another process has the socket open, so closing it here would not take it out of the set */
  (void)epoll_ctl(http->epoll, EPOLL_CTL_DEL, http->listener, NULL);
  http_stop_listening(http);
  http->listening = false;
  atomic_store(&http->passed, true);
}

/* ---- both ---- */

weft_status http_listen(weft_http *http, const char *host, weft_error *error) {
  size_t n = sizeof unix_prefix - 1;
  bool is_unix = strncmp(host, unix_prefix, n) == 0;
  weft_status status =
      http->config.has_listener ? take_listener(http, error)
      : is_unix ? weft_local_socket_open("--host unix:", host + n, http->config.socket_mode, &http->local, error)
                : listen_at(http, host, error);
  if (is_unix && !http->config.has_listener) http->listener = http->local.fd;
  http->local.fd = -1; /* it is the listener's now */
  if (status == WEFT_OK) learn_address(http);
  return status;
}

void http_stop_listening(weft_http *http) {
  weft_local_socket_close(&http->local); /* first, so that no client finds a socket that does not answer */
  if (http->listener >= 0) (void)close(http->listener);
  http->listener = -1;
}

weft_status weft_http_try(const char *host, uint32_t port, uint32_t socket_mode, bool *loopback, weft_error *error) {
  weft_http *http = weft_alloc(1, sizeof *http);
  if (http == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the server");
  http->config = (weft_http_config){.port = port, .socket_mode = socket_mode};
  http->listener = http->local.fd = -1;
  weft_status status = http_listen(http, host, error);
  *loopback = status == WEFT_OK && http->loopback;
  http_stop_listening(http);
  weft_free(http);
  return status;
}
