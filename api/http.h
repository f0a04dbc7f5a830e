/* SPDX-License-Identifier: MIT */
/* HTTP: sockets in, whole requests to a handler, answers out, whole or over time. Knows no endpoint
 * and no model.
 *
 * An exchange is one request and its answer. begin is called when its headers are in, handle when
 * its body is in. Law: an exchange is answered exactly once: by weft_exchange_answer or _refuse, at
 * once or later, or by _stream. Nothing here blocks the network thread: handlers that may take long
 * run on worker threads, and an answer that is not there yet leaves the connection suspended until
 * weft_exchange_wake. A client that leaves is told to the source of its answer at once. A request
 * that was refused in begin is read to its end and kept nowhere.
 *
 * Threads: begin, pull, close and done run on the network thread; handle there or on a worker,
 * never on two; left on any thread. wake may be called by any thread while the source is open. */
#ifndef WEFT_API_HTTP_H
#define WEFT_API_HTTP_H

#include "api/refusal.h"
#include "base/text.h"

typedef struct weft_http weft_http;
typedef struct weft_exchange weft_exchange;

typedef enum weft_pull {
  WEFT_PULL_MORE = 1,  /* ask again at once */
  WEFT_PULL_WAIT = 2,  /* nothing now; wake will be called */
  WEFT_PULL_END = 3,   /* the answer is complete */
  WEFT_PULL_BROKEN = 4 /* end the connection */
} weft_pull;

/* What makes an answer over time. */
typedef struct weft_source {
  /* Streamed: appends to out. Otherwise calls weft_exchange_answer or _refuse before it gives END.
   */
  weft_pull (*pull)(void *self, weft_exchange *exchange, weft_text *out);
  void (*left)(void *self);  /* at most once: nobody wants the answer any more; must not block */
  void (*close)(void *self); /* exactly once, last */
  void *self;
} weft_source;

/* What a handler keeps with its exchange. */
typedef struct weft_note {
  const void *route;
  uint32_t index, tenant;
} weft_note;

typedef struct weft_http_config {
  const char *host; /* [127.0.0.1] */
  uint32_t port;    /* 0: a free one */
  uint64_t body_bytes_max;
  uint64_t bodies_bytes_max; /* of all requests being read */
  uint32_t connections_max;
  uint32_t n_workers;
  uint32_t n_tenants;     /* [1] among whom workers are shared, by weft_note.tenant (api/workers.h) */
  const uint32_t *weight; /* [n_tenants], only read during open; NULL: all 1 */
  uint32_t idle_seconds;  /* a connection that neither sends nor takes for so long is closed */
  void *self;
  bool (*begin)(void *self, weft_exchange *exchange); /* true: handle is quick, run it on the network thread */
  void (*handle)(void *self, weft_exchange *exchange);
  void (*done)(void *self, weft_exchange *exchange, int code, bool left); /* code 0: no answer was sent */
} weft_http_config;

/* One line names the address and the reason (a port in use). *out is set before any callback runs.
 */
weft_status weft_http_open(const weft_http_config *config, weft_http **out, weft_error *error);
uint32_t weft_http_port(const weft_http *http);
uint32_t weft_http_active(weft_http *http); /* requests being read or answered */
/* Processor time that workers spent on a tenant's requests. */
uint64_t weft_http_worker_us(weft_http *http, uint32_t tenant);
/* Tells every source that its answer is not wanted any more, as if all clients had left; they still
 * get its end. */
void weft_http_cancel(weft_http *http);
/* Cancels, waits a little for the last bytes, ends all threads. NULL is fine. */
void weft_http_close(weft_http *http);

const char *weft_exchange_method(const weft_exchange *exchange);
const char *weft_exchange_path(const weft_exchange *exchange);
const char *weft_exchange_id(const weft_exchange *exchange); /* X-Request-Id of the client, or a fresh one */
/* A header of the request, or NULL. Only in begin. */
const char *weft_exchange_header(const weft_exchange *exchange, const char *name);
/* The client is on this machine. */
bool weft_exchange_is_local(const weft_exchange *exchange);
const char *weft_exchange_body(const weft_exchange *exchange, size_t *n);
weft_note *weft_exchange_note(weft_exchange *exchange);

/* name and value are copied. */
void weft_exchange_set_header(weft_exchange *exchange, const char *name, const char *value);
/* body is taken; type is static. */
void weft_exchange_answer(weft_exchange *exchange, int code, const char *type, weft_text *body);
void weft_exchange_refuse(weft_exchange *exchange, const weft_refusal *why);
/* 200 and a body as long as the source gives more. The source is the exchange's from here on. */
void weft_exchange_stream(weft_exchange *exchange, const char *type, const weft_source *source);
/* The source answers later. The source is the exchange's from here on. */
void weft_exchange_later(weft_exchange *exchange, const weft_source *source);
void weft_exchange_wake(weft_exchange *exchange);

#endif
