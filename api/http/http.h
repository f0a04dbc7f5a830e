/* SPDX-License-Identifier: MIT */
/* The HTTP server: it reads requests from sockets, hands whole requests to a handler, and sends answers, whole or piece
 * by piece. It knows no endpoint and no model.
 *
 * An exchange is one request and its answer. begin is called when the headers of the request are in, handle when its
 * body is in.
 *
 * Law: an exchange is answered exactly once: by weft_exchange_answer or _refuse, at once or later, or by _stream; one
 * head goes out for it. A request that begin refused is answered at once and its body is kept nowhere.
 *
 * Law: no client holds up another one. Every phase of a connection ends by a deadline of its own, however the peer
 * feeds it: the head 10 s after its first byte, a body by its size, an answer when the client takes none of it. A
 * client that closes its connection, or its sending half, has left: http_connection.c notices it (hung_up) and the
 * source of its answer is told at once (left), which cancels its generations. When all connections are taken, a new
 * one takes the place of the oldest that holds no whole request, among those of the address that has most of them;
 * requests being answered never take the last eighth of the places, so that a new connection is always heard. No
 * tenant (or, where there is one tenant, no address) holds more than half of the places for requests or of the memory
 * for bodies. When that memory is full, the one that holds most of it gives way; small bodies have an eighth of it to
 * themselves.
 *
 * Memory of bodies: the exchange owns its body and counts it in one of two pools while it is read, waits for a worker
 * and is handled. It is freed when the handler has returned (http_drop_body), or with the exchange if the client
 * leaves before. A handler that needs a part of the body longer copies that part.
 *
 * With TLS a handshake has the deadline of a head. Handshakes go one step at a time between rounds in which all other
 * connections get on, and the next step belongs to the oldest handshake of the address that has fewest of them.
 *
 * Nothing here blocks the network thread: handlers that may take long run on worker threads, which serve tenants in
 * turn, and an answer that is not there yet is pulled when weft_exchange_wake says so. A source is pulled only when
 * the client has taken all that was pulled before, so a slow reader delays itself alone.
 *
 * Law: between two looks at the sockets the thread makes at most WEFT_HTTP_ROUND_WORK of answers, or works on them for
 * a millisecond, and finishes the step that it is in. What a source costs is counted in units of a byte written, about
 * a nanosecond. http_turns.c says whose turn it is.
 *
 * A stream that gives nothing for ten seconds says that it goes on (wait).
 *
 * Threads: begin, pull, left, close and done run on the network thread; handle there or on a worker, never on two.
 * wake may be called by any thread while the source is open. */
#ifndef WEFT_API_HTTP_HTTP_H
#define WEFT_API_HTTP_HTTP_H

#include "api/http/refusal.h"
#include "api/http/trace_context.h"
#include "base/text.h"

enum {
  WEFT_HTTP_ROUND_WORK = 1 << 20, /* of answers between two looks at the sockets */
  WEFT_HTTP_STEP_WORK = 1 << 18   /* of one step of a source, which a round may end with, at most */
};

typedef struct weft_http weft_http;
typedef struct weft_exchange weft_exchange;

typedef enum weft_pull {
  WEFT_PULL_MORE = 1,  /* ask again at once */
  WEFT_PULL_WAIT = 2,  /* nothing now; wake will be called */
  WEFT_PULL_END = 3,   /* the answer is complete */
  WEFT_PULL_BROKEN = 4 /* end the connection */
} weft_pull;

/* What makes an answer over time. Whoever fills it in owns self; close is where it is freed. */
typedef struct weft_source {
  /* Streamed: appends to out. Otherwise calls weft_exchange_answer or _refuse before it gives END. Takes what it costs
   * off *work, and ends within a step of its own when none is left: with MORE if there is more. */
  weft_pull (*pull)(void *self, weft_exchange *exchange, int64_t *work, weft_text *out);
  /* Streamed: appends what tells a client that was given nothing for a while to go on waiting. NULL: nothing does. */
  void (*wait)(void *self, weft_text *out);
  void (*left)(void *self);  /* at most once: the client has left, or the server ends; must not block */
  void (*close)(void *self); /* exactly once, as the last call */
  void *self;
} weft_source;

/* What begin keeps with an exchange: the endpoint, its index for the counters, and the tenant. */
typedef struct weft_note {
  const void *route;
  const void *answer; /* lives until the exchange is done */
  uint32_t index, tenant;
  uint32_t ticket;   /* of the key that was sent; 0: none was */
  bool has_tenant;   /* it is known who asks */
  bool anthropic;    /* the client says that it speaks Anthropic's dialect */
  bool open_metrics; /* it would rather have counters in that form */
  bool html, kept;   /* it takes the file of the page that it asks for; it has this very file already */
  uint64_t begun_us;
} weft_note;

typedef struct weft_http_config {
  const char *host;               /* unix:PATH is a unix socket */
  uint32_t port;                  /* 0: a free one */
  uint32_t socket_mode;           /* file mode of a unix socket, which says which users may connect */
  bool has_listener;              /* host and port are listened on already, by a socket that was handed over: */
  int listener;                   /* this one, which the server owns from open on, also where open fails */
  const char *tls_cert, *tls_key; /* files in PEM, both or neither; NULL: plain HTTP */
  uint64_t body_bytes_max;        /* of one body */
  uint64_t bodies_bytes_max;      /* of all bodies that are being read or wait for a worker */
  uint32_t connections_max;
  uint32_t n_workers;
  uint32_t n_tenants;     /* 1: shares are given to addresses instead of tenants */
  const uint32_t *weight; /* [n_tenants] for the tenants' turns at the workers; read during open only; NULL: all 1 */
  uint32_t idle_seconds;  /* after which a connection between two requests, or one that takes no answer, is closed */
  uint64_t (*clock_us)(void);  /* NULL: weft_clock_us; deadlines are looked at four times a second whatever it says */
  uint64_t (*worker_us)(void); /* the clock that jobs are charged by; NULL: processor time of the calling thread */
  void *self;
  bool (*begin)(void *self, weft_exchange *exchange); /* true: handle is quick, run it on the network thread */
  void (*handle)(void *self, weft_exchange *exchange);
  void (*done)(void *self, weft_exchange *exchange, int code, bool left); /* code 0: no answer was sent */
} weft_http_config;

/* Why connections ended, beyond clients that closed them. */
typedef enum weft_http_end {
  WEFT_HTTP_MALFORMED, /* the bytes were no HTTP request */
  WEFT_HTTP_LATE_HEAD, /* the deadline of a head */
  WEFT_HTTP_LATE_BODY, /* the deadline of a body */
  WEFT_HTTP_STALLED,   /* the client took nothing of its answer */
  WEFT_HTTP_EVICTED,   /* another connection needed the place */
  WEFT_HTTP_IDLE,      /* no request for too long */
  WEFT_HTTP_HANDSHAKE, /* TLS was not agreed on, or not in time */
  WEFT_HTTP_ENDS
} weft_http_end;

/* The most host memory that the server takes, except for answers of the engine, which are counted with their
 * requests. */
typedef struct weft_http_plan {
  uint32_t n_connections;
  uint64_t connection_bytes; /* of each */
  uint64_t body_bytes;       /* of all bodies being read or waiting for a worker */
  uint64_t answer_bytes;     /* of large finished answers that their clients have not taken */
  bool tls;
} weft_http_plan;

/* One line names the address and the reason (a port in use). *out is set before any callback runs. */
weft_status weft_http_open(const weft_http_config *config, weft_http **out, weft_error *error);
/* Whether a server could listen there: it does, for a moment, and leaves nothing behind. Errors as of open. */
weft_status weft_http_try(const char *host, uint32_t port, uint32_t socket_mode, bool *loopback, weft_error *error);
weft_http_plan weft_http_get_plan(const weft_http *http);
uint32_t weft_http_port(const weft_http *http);
/* Whether the server listens on a loopback address or a unix socket, so that only this machine reaches it. */
bool weft_http_is_loopback(const weft_http *http);
bool weft_http_is_unix(const weft_http *http);
/* From now on new connections are shown this certificate; after a failure they are shown the one before. Any thread;
 * only for a server with TLS. */
weft_status weft_http_renew(weft_http *http, const char *cert, const char *key, weft_error *error);
uint32_t weft_http_active(weft_http *http);       /* requests that were read whole and whose answers are not yet out */
uint64_t weft_http_body_bytes(weft_http *http);   /* bytes of bodies that are being read or wait for a worker */
uint64_t weft_http_answer_bytes(weft_http *http); /* bytes of large finished answers that wait for their clients */
uint64_t weft_http_ended(weft_http *http, weft_http_end how); /* how many connections ended in this way */
/* The most work on answers that was ever done between two looks at the sockets. */
uint64_t weft_http_most_work(weft_http *http);
/* The tenant's weight at the workers from now on; nothing where there is one tenant. Any thread. */
void weft_http_set_weight(weft_http *http, uint32_t tenant, uint32_t weight);
/* Processor time that workers spent on a tenant's requests. */
uint64_t weft_http_worker_us(weft_http *http, uint32_t tenant);
/* The socket that it listens on, borrowed: to hand it to another process. */
int weft_http_listener(const weft_http *http);
/* Accepts no more; the socket, and the file of a unix socket, are another process' from now on. Connections that there
 * are have their requests answered as before, and each is closed behind an answer. Returns when it holds. */
void weft_http_pass_on(weft_http *http);
uint32_t weft_http_connections(weft_http *http); /* that are open */
/* Tells every source that its answer is not wanted any more, as if all clients had left; the clients still get its
 * end. */
void weft_http_cancel(weft_http *http);
/* Cancels, waits a little for the last bytes, ends all threads. NULL is fine. */
void weft_http_close(weft_http *http);

/* Asked now and then by a handler that takes long. True: it ends without an answer, or with any: the client has left,
 * or the server is closing, or (weft_exchange_gives_back) its worker is needed by others; then it must not have
 * answered, and is called again later. */
bool weft_exchange_stops(weft_exchange *exchange);
bool weft_exchange_gives_back(const weft_exchange *exchange);

const char *weft_exchange_method(const weft_exchange *exchange);
const char *weft_exchange_path(const weft_exchange *exchange);
const char *weft_exchange_query(const weft_exchange *exchange); /* as it was sent, without its question mark */
/* Takes another path in its place, for who answers it; where memory is refused the old one stays. Only in begin. */
void weft_exchange_set_path(weft_exchange *exchange, const char *path);
const char *weft_exchange_id(const weft_exchange *exchange); /* X-Request-Id of the client, or a fresh one */
/* The trace that the client names; the answer's head has it as `traceresponse`, with a span of this exchange. */
const weft_trace_context *weft_exchange_trace(const weft_exchange *exchange);
/* Sets how refusals of this exchange are written; without it weft_refusal_json writes them. Only in begin. */
typedef void (*weft_refusal_form)(const weft_refusal *why, const char *id, weft_text *out);
void weft_exchange_set_refusals(weft_exchange *exchange, weft_refusal_form form);
/* The host that the request names, with its port; NULL: it names none. Only in begin. */
const char *weft_exchange_host(const weft_exchange *exchange);
/* A header of the request, or NULL. Only in begin. */
const char *weft_exchange_header(const weft_exchange *exchange, const char *name);
/* The index-th of the headers of this name, or NULL. Only in begin. */
const char *weft_exchange_header_at(const weft_exchange *exchange, const char *name, uint32_t index);
/* Whether the client is on this machine. */
bool weft_exchange_is_local(const weft_exchange *exchange);
/* The body, n bytes, not ended by zero. The exchange owns it: valid until the handler returns. */
const char *weft_exchange_body(const weft_exchange *exchange, size_t *n);
weft_note *weft_exchange_note(weft_exchange *exchange);

/* Sets a header of the answer, in place of an earlier one of the same name. name and value are copied. A value that
 * would break the head of the answer (a line break) is not sent. */
void weft_exchange_set_header(weft_exchange *exchange, const char *name, const char *value);
/* Answers with a whole body. The memory of body goes over to the exchange; type is static. */
void weft_exchange_answer(weft_exchange *exchange, int code, const char *type, weft_text *body);
void weft_exchange_refuse(weft_exchange *exchange, const weft_refusal *why);
/* Answers with 200 and a body that is sent as the source gives it. The exchange closes the source. */
void weft_exchange_stream(weft_exchange *exchange, const char *type, const weft_source *source);
/* The source answers later, in one piece. The exchange closes the source. */
void weft_exchange_later(weft_exchange *exchange, const weft_source *source);
/* The source has something to give: it is pulled again. Any thread, until close. */
void weft_exchange_wake(weft_exchange *exchange);

#endif
