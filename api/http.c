/* SPDX-License-Identifier: MIT */
/* The listening socket, the HTTP library's callbacks, and the workers. */
#include "api/http.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "api/http_internal.h"
#include "base/check.h"
#include "base/log.h"
#include "base/memory.h"

enum {
  DISCARD_BYTES_MAX = 64 << 20, /* of a body that is refused: beyond it the connection is closed */
  FLUSH_MS = 2000,              /* how long close waits for last bytes */
  HEADER_BYTES_MAX = 32768
};

/* ---- workers ---- */

static void run_job(void *self, weft_job *job, bool closing) {
  weft_http *http = self;
  weft_exchange *x = (weft_exchange *)(void *)((char *)job - offsetof(weft_exchange, job));
  (void)pthread_mutex_lock(&x->lock);
  bool left = x->left;
  (void)pthread_mutex_unlock(&x->lock);
  if (closing || left) {
    weft_refusal why;
    (void)weft_refuse(&why, left ? CODE_LEFT : 503, "cancelled", NULL, "the request was cancelled");
    weft_exchange_refuse(x, &why);
  } else {
    http->config.handle(http->config.self, x);
  }
  (void)pthread_mutex_lock(&x->lock);
  x->working = false;
  x->suspended = false;
  MHD_resume_connection(x->connection);
  (void)pthread_mutex_unlock(&x->lock);
}

static void gone(void *self) {
  http__tell_left(self, true);
}

/* Gives the exchange to a worker; its connection is suspended until the worker is done. */
static bool hand_over(weft_http *http, weft_exchange *x) {
  const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
  if (info == NULL || weft_watch_add(http->watch, info->connect_fd, gone, x, &x->ticket) != WEFT_OK) return false;
  x->watched = true;
  (void)pthread_mutex_lock(&x->lock);
  x->suspended = true;
  x->working = true;
  bool open = weft_workers_put(http->workers, &x->job, x->note.tenant); /* who first waits for the exchange's lock */
  if (open) {
    MHD_suspend_connection(x->connection);
  } else {
    x->suspended = false;
    x->working = false;
  }
  (void)pthread_mutex_unlock(&x->lock);
  return open;
}

/* ---- requests ---- */

static void refuse_body(weft_exchange *x, int code, const char *word, const char *format, unsigned long long value) {
  weft_refusal why;
  char line[256];
  (void)snprintf(line, sizeof line, format, value);
  (void)weft_refuse(&why, code, word, NULL, "%s", line);
  weft_exchange_refuse(x, &why);
}

static void refuse_large(weft_exchange *x) {
  refuse_body(x, 413, "body_too_large",
              "the body is larger than %llu bytes: send less, or serve with a larger --body-mib",
              (unsigned long long)x->http->config.body_bytes_max);
}

/* The headers are in. */
static enum MHD_Result begin(weft_http *http, weft_exchange *x) {
  x->quick = http->config.begin(http->config.self, x);
  const char *text = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Content-Length");
  unsigned long long length = text == NULL ? 0 : strtoull(text, NULL, 10);
  if (x->answer == ANSWER_NONE && length > http->config.body_bytes_max) refuse_large(x);
  if (length <= http->config.body_bytes_max + DISCARD_BYTES_MAX) return MHD_YES;
  x->handed = true;
  return http__respond(x); /* without reading it: the library closes the connection */
}

static enum MHD_Result take_body(weft_http *http, weft_exchange *x, const char *bytes, size_t n) {
  x->n_read += n;
  if (x->answer != ANSWER_NONE) {
    return x->n_read <= http->config.body_bytes_max + DISCARD_BYTES_MAX ? MHD_YES : MHD_NO;
  }
  if (x->n_read > http->config.body_bytes_max) {
    refuse_large(x);
  } else if (atomic_fetch_add(&http->n_body_bytes, n) + n > http->config.bodies_bytes_max) {
    atomic_fetch_sub(&http->n_body_bytes, n);
    refuse_body(x, 503, "busy", "the server is reading %llu bytes of other requests: try again",
                (unsigned long long)http->config.bodies_bytes_max);
  } else {
    weft_text_append(&x->body, bytes, n);
    if (weft_text_status(&x->body) != WEFT_OK) {
      atomic_fetch_sub(&http->n_body_bytes, n);
      refuse_body(x, 503, "no_memory", "no memory for a body of %llu bytes", (unsigned long long)x->n_read);
    }
  }
  if (x->answer != ANSWER_NONE) {
    atomic_fetch_sub(&http->n_body_bytes, x->body.n);
    weft_text_free(&x->body);
  }
  return MHD_YES;
}

/* The request is whole, or its answer woke it. */
static enum MHD_Result advance(weft_http *http, weft_exchange *x) {
  if (!x->handed) {
    x->handed = true;
    if (x->answer == ANSWER_NONE && x->quick) {
      http->config.handle(http->config.self, x);
      WEFT_CHECK(x->answer == ANSWER_WHOLE);
    } else if (x->answer == ANSWER_NONE) {
      if (hand_over(http, x)) return MHD_YES;
      refuse_body(x, 503, "busy", "the server takes no more than %llu connections, or is shutting down",
                  (unsigned long long)http->config.connections_max);
    }
  }
  atomic_fetch_sub(&http->n_body_bytes, x->body.n);
  weft_text_free(&x->body); /* the handler took from it what it needs */
  if (!http__settle(x)) return MHD_YES;
  return http__respond(x);
}

static enum MHD_Result on_request(void *self, struct MHD_Connection *connection, const char *path, const char *method,
                                  const char *version, const char *bytes, size_t *n_bytes, void **state) {
  weft_http *http = self;
  weft_exchange *x = *state;
  (void)version; /* the library answers in the version it was asked in */
  if (x == NULL) {
    x = http__exchange_open(http, connection, path, method);
    if (x == NULL) return MHD_NO;
    *state = x;
    return begin(http, x);
  }
  if (x->queued) return MHD_YES; /* answered before the body was read */
  if (*n_bytes > 0) {
    size_t n = *n_bytes;
    *n_bytes = 0;
    return take_body(http, x, bytes, n);
  }
  return advance(http, x);
}

static void on_completed(void *self, struct MHD_Connection *connection, void **state,
                         enum MHD_RequestTerminationCode how) {
  weft_http *http = self;
  weft_exchange *x = *state;
  (void)connection;
  if (x == NULL) return;
  *state = NULL;
  /* one that hangs up as soon as it has its answer did not leave before */
  bool left = how != MHD_REQUEST_TERMINATED_COMPLETED_OK || x->code == CODE_LEFT;
  http->config.done(http->config.self, x, x->queued ? x->code : 0, left);
  http__exchange_close(x);
}

static void on_log(void *self, const char *format, va_list list) {
  char line[512];
  (void)self;
  int n = vsnprintf(line, sizeof line, format, list);
  if (n > 0 && (size_t)n < sizeof line && line[n - 1] == '\n') line[n - 1] = 0;
  weft_log(WEFT_LOG_DEBUG, "http: %s", line);
}

/* ---- opening ---- */

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

static weft_status start_daemon(weft_http *http, weft_error *error) {
  const weft_http_config *c = &http->config;
  http->daemon = MHD_start_daemon(
      MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL, on_request, http,
      MHD_OPTION_EXTERNAL_LOGGER, on_log, http, MHD_OPTION_LISTEN_SOCKET, http->listener, MHD_OPTION_NOTIFY_COMPLETED,
      on_completed, http, MHD_OPTION_CONNECTION_LIMIT, (unsigned)c->connections_max, MHD_OPTION_CONNECTION_TIMEOUT,
      (unsigned)c->idle_seconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADER_BYTES_MAX, MHD_OPTION_END);
  if (http->daemon == NULL) return weft_fail(error, WEFT_E_IO, "the HTTP library could not start: %s", strerror(errno));
  http->listener = -1; /* the library closes it */
  const union MHD_DaemonInfo *info = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_BIND_PORT);
  http->port = info == NULL || info->port == 0 ? c->port : info->port;
  return WEFT_OK;
}

static weft_status start_workers(weft_http *http, weft_error *error) {
  const weft_http_config *c = &http->config;
  const weft_workers_config config = {.n_threads = c->n_workers,
                                      .n_tenants = c->n_tenants == 0 ? 1 : c->n_tenants,
                                      .weight = c->weight,
                                      .self = http,
                                      .run = run_job};
  return weft_workers_open(&config, &http->workers, error);
}

weft_status weft_http_open(const weft_http_config *config, weft_http **out, weft_error *error) {
  *out = NULL;
  weft_http *http = weft_alloc(1, sizeof *http);
  if (http == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the server");
  http->config = *config;
  http->config.host = NULL; /* not kept */
  http->listener = -1;
  (void)pthread_mutex_init(&http->lock, NULL); /* these cannot fail with default attributes on this system */
  (void)pthread_cond_init(&http->idle, NULL);
  weft_status status = listen_at(http, config->host == NULL ? "127.0.0.1" : config->host, error);
  if (status == WEFT_OK) status = weft_watch_open(config->connections_max, &http->watch, error);
  if (status == WEFT_OK) status = start_workers(http, error);
  http->config.weight = NULL;
  *out = http; /* callbacks of the first request may want it before this function returns */
  if (status == WEFT_OK) status = start_daemon(http, error);
  if (status != WEFT_OK) {
    weft_http_close(http);
    *out = NULL;
  }
  return status;
}

uint32_t weft_http_port(const weft_http *http) {
  return http->port;
}

uint64_t weft_http_worker_us(weft_http *http, uint32_t tenant) {
  return weft_workers_used_us(http->workers, tenant);
}

uint32_t weft_http_active(weft_http *http) {
  (void)pthread_mutex_lock(&http->lock);
  uint32_t n = http->n_active;
  (void)pthread_mutex_unlock(&http->lock);
  return n;
}

/* ---- closing ---- */

void weft_http_cancel(weft_http *http) {
  (void)pthread_mutex_lock(&http->lock);
  for (weft_exchange *x = http->first; x != NULL; x = x->next) http__tell_left(x, false);
  (void)pthread_mutex_unlock(&http->lock);
}

static void wait_idle(weft_http *http, uint32_t ms) {
  struct timespec until;
  (void)clock_gettime(CLOCK_REALTIME, &until); /* cannot fail with this clock */
  until.tv_nsec += (long)(ms % 1000) * 1000000;
  until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  (void)pthread_mutex_lock(&http->lock);
  while (http->n_active > 0) {
    if (pthread_cond_timedwait(&http->idle, &http->lock, &until) == ETIMEDOUT) break;
  }
  (void)pthread_mutex_unlock(&http->lock);
}

static void wake_all(weft_http *http) {
  (void)pthread_mutex_lock(&http->lock);
  for (weft_exchange *x = http->first; x != NULL; x = x->next) weft_exchange_wake(x);
  (void)pthread_mutex_unlock(&http->lock);
}

void weft_http_close(weft_http *http) {
  if (http == NULL) return;
  if (http->workers != NULL) weft_workers_stop(http->workers);
  if (http->daemon != NULL) {
    weft_http_cancel(http);
    wait_idle(http, FLUSH_MS);
    atomic_store(&http->abort, true);
    wake_all(http); /* from here on nothing is suspended: the library may not be stopped otherwise */
    MHD_stop_daemon(http->daemon);
  }
  weft_workers_close(http->workers);
  weft_watch_close(http->watch);
  if (http->listener >= 0) (void)close(http->listener);
  (void)pthread_cond_destroy(&http->idle);
  (void)pthread_mutex_destroy(&http->lock);
  weft_free(http);
}
