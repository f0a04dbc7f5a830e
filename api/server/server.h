/* SPDX-License-Identifier: MIT */
/* The server: a runtime behind HTTP. `weft serve` runs it, and tests run it in their own process.
 *
 * Law: the server owns neither the runtime nor the keys nor the origins; all must outlive it. open listens before it
 * returns; drain refuses new requests and lets the others end; close ends everything within seconds and leaves the
 * runtime idle. Any thread. */
#ifndef WEFT_API_SERVER_SERVER_H
#define WEFT_API_SERVER_SERVER_H

#include "api/server/keys.h"
#include "api/weft.h"
#include "base/status.h"
#include "base/text.h"

typedef struct weft_server weft_server;

/* Zero-initialise; every zero means the default in brackets: [serve] is that of the option of the same name. */
typedef struct weft_server_options {
  const char *host;      /* [serve] unix:PATH is a unix socket */
  uint32_t port;         /* 0: a free one */
  uint32_t socket_mode;  /* [serve] file mode of the unix socket */
  bool has_listener;     /* host and port are listened on already, by a socket that another process handed over: */
  int listener;          /* this one; the server's from weft_server_open on, also where that fails */
  const char *estate;    /* [none] what the server before leaves (estate.h), taken before a client is answered */
  size_t n_estate;       /* bytes */
  const char *tls_cert;  /* [none] a certificate with its chain, in PEM; then only TLS is spoken */
  const char *tls_key;   /* [none] its key, in PEM */
  uint32_t body_mib;     /* [serve] largest body of a request */
  uint32_t connections;  /* [serve] at once */
  uint32_t idle_seconds; /* [120] after which an idle connection is closed */
  const weft_keys *keys; /* [none] without keys every client may ask, as tenant 0 */
  /* [none] pages of these origins (SCHEME://HOST[:PORT]) may ask, and requests may name their hosts */
  const char *const *origins;
  uint32_t n_origins;
  bool no_page;                   /* the page at / is not served */
  const struct kv_events *events; /* [none] what routers are told of the cache */
  bool public_metrics;            /* counters need no key */
  bool strict_fields;             /* fields of bodies that nobody knows are refused, not only named in the log */
  uint64_t (*clock_us)(void);     /* [weft_clock_us] clock of deadlines; tests pass their own */
  uint64_t (*worker_us)(void);    /* [the thread's processor time] clock of a worker's work; tests pass their own */
} weft_server_options;

/* Members that are 0 or NULL get the default of their option of `weft serve`, where it has one. */
void weft_server_fill_options(weft_server_options *options);
/* One line names the address and the reason (a port in use). The caller owns *out until close. */
weft_status weft_server_open(const weft_server_options *options, weft_runtime *runtime, weft_server **out,
                             weft_error *error);
uint32_t weft_server_port(const weft_server *server);
/* Who asks whether the server is ready is told that it drains; requests are answered as before. Any thread. */
void weft_server_leave(weft_server *server);
void weft_server_drain(weft_server *server);
/* Handing over (http.h): the socket; no connection is accepted any more; connections that are open. */
int weft_server_listener(const weft_server *server);
void weft_server_pass_on(weft_server *server);
uint32_t weft_server_connections(weft_server *server);
/* While true, the operator is told to pin and unpin later: where the server's pins go over, none must come or go. */
void weft_server_hold_pins(weft_server *server, bool hold);
/* The server can be reached from this machine alone. */
bool weft_server_is_loopback(const weft_server *server);
/* Appends one line: the most host memory that connections and the bodies that they read can take. */
void weft_server_plan(const weft_server *server, weft_text *out);
/* A tenant has other weight, class and limits from now on, or is new (weft_tenants_set); options that the keys' file
 * has checked. While requests run. */
void weft_server_change_tenant(weft_server *server, uint32_t tenant, const weft_tenant_options *options);
/* New connections are shown this certificate; after a failure they are shown the one before. */
weft_status weft_server_renew(weft_server *server, const char *tls_cert, const char *tls_key, weft_error *error);
/* No generation is running and no request is being answered. A request that was not read whole does not count. */
bool weft_server_idle(weft_server *server);
/* Cancels what is running; clients still get the end of their answer. */
void weft_server_cancel(weft_server *server);
void weft_server_close(weft_server *server); /* NULL is fine */

#endif
