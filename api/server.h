/* SPDX-License-Identifier: MIT */
/* The server: a runtime behind HTTP. What `weft serve` runs, and tests run in their own process.
 *
 * Law: it owns neither the runtime nor the keys nor the origins; all must outlive it. open answers at once; drain
 * refuses what is new and lets the rest end; close ends everything within seconds and leaves the
 * runtime idle. Any thread. */
#ifndef WEFT_API_SERVER_H
#define WEFT_API_SERVER_H

#include "api/keys.h"
#include "api/weft.h"
#include "base/status.h"
#include "base/text.h"

typedef struct weft_server weft_server;

/* Zero-initialise; every zero means the default in brackets: [serve] is that of the option of the same name. */
typedef struct weft_server_options {
  const char *host;     /* [serve] unix:PATH is a unix socket */
  uint32_t port;        /* 0: a free one */
  uint32_t socket_mode; /* [serve] who may connect to the unix socket */
  const char *tls_cert; /* [none] files in PEM, with the chain and the key: TLS and nothing else is spoken */
  const char *tls_key;
  uint32_t body_mib;     /* [serve] */
  uint32_t connections;  /* [serve] */
  uint32_t idle_seconds; /* [120] */
  const weft_keys *keys; /* NULL: everybody may ask, as tenant 0 */
  const char *const
      *origins; /* [none] pages of these origins (SCHEME://HOST[:PORT]) may ask; their hosts may be asked for */
  uint32_t n_origins;
  uint64_t (*clock_us)(void); /* [weft_clock_us] of deadlines, for tests */
} weft_server_options;

weft_status weft_server_open(const weft_server_options *options, weft_runtime *runtime, weft_server **out,
                             weft_error *error);
uint32_t weft_server_port(const weft_server *server);
void weft_server_drain(weft_server *server);
/* It can be reached from this machine alone. */
bool weft_server_is_loopback(const weft_server *server);
/* The most host memory that connections and what they read can take, as text. The caller frees it. */
void weft_server_plan(const weft_server *server, weft_text *out);
/* New connections are shown this certificate; after a failure the one before. */
weft_status weft_server_renew(weft_server *server, const char *tls_cert, const char *tls_key, weft_error *error);
/* Nothing is running and nothing is being answered; a request that was not read whole is nothing. */
bool weft_server_idle(weft_server *server);
/* Ends what is running; clients still get an end. */
void weft_server_cancel(weft_server *server);
void weft_server_close(weft_server *server); /* NULL is fine */

#endif
