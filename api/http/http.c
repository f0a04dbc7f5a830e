/* SPDX-License-Identifier: MIT */
/* The network thread: it accepts, drives connections, looks at their deadlines and ends them. */
#include "api/http/http.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "api/http/http_internal.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/threads.h"

enum {
  EVENTS = 256,
  ACCEPTS = 64,      /* before others are driven */
  LOOK_US = 250000,  /* between two looks at deadlines */
  FLUSH_US = 2000000 /* how long close waits for last bytes */
};

uint64_t http_now(const weft_http *http) {
  return http->config.clock_us == NULL ? weft_clock_us() : http->config.clock_us();
}

uint64_t http_idle_us(const weft_http *http) {
  return (uint64_t)http->config.idle_seconds * 1000000;
}

void http_count(weft_http *http, weft_http_end how) {
  atomic_fetch_add(&http->n_ended[how], 1);
}

void http_poke(weft_http *http) {
  uint64_t one = 1;
  WEFT_CHECK(write(http->wakes, &one, sizeof one) == (ssize_t)sizeof one); /* full only after 2^64 */
}

/* ---- accepting ---- */

/* Of the address that has most connections without a whole request, the one that has been so for longest. */
bool http_evict(weft_http *http) {
  uint32_t n_of[ADDRESSES_MAX] = {0};
  http_connection *worst = NULL;
  for (http_connection *c = http->first; c != NULL; c = c->next) n_of[c->address] += c->x == NULL || !c->x->busy;
  for (http_connection *c = http->first; c != NULL; c = c->next) {
    if (c->x != NULL && c->x->busy) continue;
    bool worse = worst == NULL || n_of[c->address] > n_of[worst->address] ||
                 (n_of[c->address] == n_of[worst->address] && c->since_us <= worst->since_us);
    if (worse) worst = c;
  }
  if (worst == NULL) return false;
  http_count(http, WEFT_HTTP_EVICTED);
  http_drop(worst);
  return true;
}

static void watch_listener(weft_http *http, bool on) {
  struct epoll_event event = {.events = on ? EPOLLIN : 0, .data.ptr = http};
  (void)epoll_ctl(http->epoll, EPOLL_CTL_MOD, http->listener, &event); /* it is in the set */
  http->listening = on;
}

/* False: no connection waits to be accepted, or file descriptors are short. */
static bool accept_one(weft_http *http) {
  struct sockaddr_storage peer = {0};
  socklen_t n = sizeof peer;
  int fd = accept4(http->listener, (struct sockaddr *)&peer, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
    if (!http_evict(http)) watch_listener(http, false); /* until the next look */
    return false;
  }
  if (fd < 0) return errno == EINTR || errno == ECONNABORTED;
  bool room = http->n_connections < http->config.connections_max || http_evict(http);
  if (!room || !http_connection_open(http, fd, &peer)) (void)close(fd);
  return true;
}

static void accept_some(weft_http *http) {
  for (uint32_t i = 0; i < ACCEPTS && accept_one(http); i++) continue;
}

/* ---- the loop ---- */

static void take_ready(weft_http *http) {
  uint64_t count;
  (void)!read(http->wakes, &count, sizeof count); /* it was poked, or not */
  weft_exchange *x;
  for (uint32_t n = 0; (x = http_take_ready(http)) != NULL; n++) {
    if (x->connection != NULL) {
      http_drive(x->connection);
    } else if (http_unqueue(x)) {
      http_finish(x, true);
    }
    if (n >= http->config.connections_max) { /* the rest after others */
      http_poke(http);
      return;
    }
  }
}

/* Drives the connections that are pending now; those that are postponed meanwhile come after them, in the next round.
 */
static void drive_pending(weft_http *http) {
  uint32_t n = 0;
  for (const http_connection *c = http->pending; c != NULL; c = c->next_pending) n++;
  for (; n > 0 && http->pending != NULL; n--) {
    http_connection *c = http->pending;
    http->pending = c->next_pending;
    if (http->pending == NULL) http->last_pending = NULL;
    c->pending = false;
    http_drive(c);
  }
}

static void look_at_deadlines(weft_http *http) {
  uint64_t now = http_now(http);
  if (!http->listening && !http->passed) watch_listener(http, true);
  for (http_connection *c = http->first, *next; c != NULL; c = next) {
    next = c->next;
    bool late = c->deadline_us != 0 && now >= c->deadline_us, stalls = c->stall_us != 0 && now >= c->stall_us;
    if (late || stalls) {
      http_expire(c);
    } else {
      http_say_wait(c, now);
    }
  }
}

static void cancel_all(weft_http *http) {
  for (http_connection *c = http->first; c != NULL; c = c->next) {
    if (c->x == NULL) continue;
    c->x->cancelled = true;
    atomic_store(&c->x->unwanted, true);
    http_postpone(c); /* told once no worker has it */
  }
}

/* A queued request that no worker will take. */
static void refuse_queued(weft_http *http) {
  for (http_connection *c = http->first; c != NULL; c = c->next) {
    if (c->x == NULL || c->phase != PHASE_WORK || !http_unqueue(c->x) || c->x->answer != ANSWER_NONE) continue;
    http_refuse_closing(c->x);
    http_postpone(c);
  }
}

/* True: all is over. */
static bool take_orders(weft_http *http, uint64_t *until_us) {
  (void)pthread_mutex_lock(&http->lock);
  bool cancel = http->cancel_asked, closing = http->closing, gone = http->workers_gone, pass = http->pass_asked;
  http->cancel_asked = http->pass_asked = false;
  (void)pthread_mutex_unlock(&http->lock);
  if (pass && !http->passed) http_pass_on(http);
  if (cancel) cancel_all(http);
  if (!closing) return false;
  refuse_queued(http);
  if (!gone) return false;
  if (*until_us == 0) {
    cancel_all(http);
    *until_us = weft_clock_us() + FLUSH_US; /* whatever the clock of deadlines says */
  }
  return http->pending == NULL && (atomic_load(&http->n_active) == 0 || weft_clock_us() >= *until_us);
}

/* What happened to a connection is noted, and acted on when all events are taken: acting on one may end another. */
static void take_event(const struct epoll_event *event) {
  http_connection *c = event->data.ptr;
  bool broken = (event->events & (EPOLLERR | EPOLLHUP)) != 0;
  if (broken || (event->events & EPOLLIN) != 0) c->readable = true;
  if (broken || (event->events & EPOLLOUT) != 0) c->writable = true;
  if (broken || (event->events & EPOLLRDHUP) != 0) c->hung_up = c->readable = true;
  http_postpone(c);
}

static int sleep_ms(const weft_http *http, uint64_t until_us) {
  if (http->pending != NULL || http->n_waiting > 0 || http->n_in_line > 0) return 0;
  if (until_us > 0) return 10;
  return http->n_connections > 0 || !http->listening ? LOOK_US / 1000 : -1;
}

static void *run_network(void *self) {
  weft_http *http = self;
  struct epoll_event events[EVENTS];
  uint64_t until_us = 0;
  while (!take_orders(http, &until_us)) {
    int n = epoll_wait(http->epoll, events, EVENTS, sleep_ms(http, until_us));
    WEFT_CHECK(n >= 0 || errno == EINTR);
    http_end_round(http);
    bool accepts = false, wakes = false;
    for (int i = 0; i < n; i++) {
      accepts = accepts || events[i].data.ptr == http;
      wakes = wakes || events[i].data.ptr == &http->wakes;
      if (events[i].data.ptr != http && events[i].data.ptr != &http->wakes) take_event(&events[i]);
    }
    drive_pending(http);
    if (http->n_waiting > 0) http_shake_one(http);
    if (wakes) take_ready(http);
    if (accepts && !http->passed) accept_some(http);
    http_take_turns(http);
    uint64_t now = weft_clock_us();
    if (now - http->looked_us < LOOK_US) continue;
    http->looked_us = now;
    look_at_deadlines(http);
  }
  return NULL;
}

/* ---- opening ---- */

static weft_status start_network(weft_http *http, weft_error *error) {
  struct epoll_event listener = {.events = EPOLLIN, .data.ptr = http};
  struct epoll_event wakes = {.events = EPOLLIN, .data.ptr = &http->wakes};
  http->epoll = epoll_create1(EPOLL_CLOEXEC);
  http->wakes = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (http->epoll < 0 || http->wakes < 0 || epoll_ctl(http->epoll, EPOLL_CTL_ADD, http->wakes, &wakes) != 0 ||
      epoll_ctl(http->epoll, EPOLL_CTL_ADD, http->listener, &listener) != 0) {
    return weft_fail(error, WEFT_E_IO, "the system refused a descriptor for the server: %s", strerror(errno));
  }
  http->listening = true;
  weft_status status = http_jobs_open(http, error);
  http->config.weight = NULL; /* not kept */
  if (status != WEFT_OK) return status;
  status = weft_threads_start(&http->network, run_network, http, error);
  http->has_network = status == WEFT_OK;
  return status;
}

weft_status weft_http_open(const weft_http_config *config, weft_http **out, weft_error *error) {
  *out = NULL;
  weft_http *http = weft_alloc(1, sizeof *http);
  if (http == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the server");
  http->config = *config;
  http->config.host = http->config.tls_cert = http->config.tls_key = NULL; /* not kept */
  http->listener = http->local.fd = http->epoll = http->wakes = -1;
  (void)pthread_mutex_init(&http->lock, NULL); /* these cannot fail with default attributes on this system */
  http_share_open(http);
  http_turns_open(http);
  *out = http; /* callbacks of the first request may want it before this function returns */
  weft_status status = WEFT_OK;
  if (config->tls_cert != NULL || config->tls_key != NULL)
    status = weft_http_renew(http, config->tls_cert, config->tls_key, error);
  if (status == WEFT_OK) status = http_listen(http, config->host, error);
  if (status == WEFT_OK) status = start_network(http, error);
  if (status == WEFT_OK) status = http_adopt(http, config->host, error);
  if (status != WEFT_OK) {
    weft_http_close(http);
    *out = NULL;
  }
  return status;
}

weft_http_plan weft_http_get_plan(const weft_http *http) {
  bool tls = http->identity != NULL; /* renewed, but never taken away */
  return (weft_http_plan){.n_connections = http->config.connections_max,
                          .connection_bytes = CONNECTION_BYTES + (tls ? TLS_BYTES : 0),
                          .body_bytes = http->config.bodies_bytes_max,
                          .answer_bytes = ANSWERS_BYTES,
                          .tls = tls};
}

uint32_t weft_http_port(const weft_http *http) {
  return http->port;
}

bool weft_http_is_unix(const weft_http *http) {
  return http->local.path != NULL;
}

bool weft_http_is_loopback(const weft_http *http) {
  return http->loopback;
}

uint32_t weft_http_active(weft_http *http) {
  return atomic_load(&http->n_active);
}

uint64_t weft_http_body_bytes(weft_http *http) {
  return atomic_load(&http->n_body_bytes);
}

uint64_t weft_http_answer_bytes(weft_http *http) {
  return atomic_load(&http->n_answer_bytes);
}

uint64_t weft_http_ended(weft_http *http, weft_http_end how) {
  return atomic_load(&http->n_ended[how]);
}

weft_status weft_http_renew(weft_http *http, const char *cert, const char *key, weft_error *error) {
  tls_identity *now, *before;
  weft_status status = tls_identity_open(cert, key, &now, error);
  if (status != WEFT_OK) return status;
  (void)pthread_mutex_lock(&http->lock);
  before = http->identity;
  http->identity = now;
  (void)pthread_mutex_unlock(&http->lock);
  tls_identity_close(before);
  return WEFT_OK;
}

/* ---- handing over ---- */

int weft_http_listener(const weft_http *http) {
  return http->listener;
}

uint32_t weft_http_connections(weft_http *http) {
  return atomic_load(&http->n_connections);
}

void weft_http_pass_on(weft_http *http) {
  const struct timespec nap = {.tv_nsec = 200000};
  (void)pthread_mutex_lock(&http->lock);
  http->pass_asked = true;
  (void)pthread_mutex_unlock(&http->lock);
  http_poke(http);
  while (!atomic_load(&http->passed)) (void)nanosleep(&nap, NULL);
}

/* ---- closing ---- */

void weft_http_cancel(weft_http *http) {
  (void)pthread_mutex_lock(&http->lock);
  http->cancel_asked = true;
  (void)pthread_mutex_unlock(&http->lock);
  http_poke(http);
}

void weft_http_close(weft_http *http) {
  if (http == NULL) return;
  http_jobs_close(http);
  if (http->has_network) {
    (void)pthread_mutex_lock(&http->lock);
    http->workers_gone = true;
    (void)pthread_mutex_unlock(&http->lock);
    http_poke(http);
    (void)pthread_join(http->network, NULL); /* ours, joined once */
  }
  while (http->first != NULL) http_drop(http->first);
  for (weft_exchange *x; (x = http_take_ready(http)) != NULL;) http_finish(x, true); /* whose clients had left */
  weft_workers_close(http->workers);
  http_stop_listening(http);
  tls_identity_close(http->identity);
  if (http->epoll >= 0) (void)close(http->epoll);
  if (http->wakes >= 0) (void)close(http->wakes);
  (void)pthread_mutex_destroy(&http->lock);
  weft_free(http);
}
