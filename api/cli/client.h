/* SPDX-License-Identifier: MIT */
/* An HTTP client: what `weft top`, `trace`, `demo`, `chat --url` and the laboratory ask of servers. One request,
 * one connection; the answer may be a stream.
 *
 * * Law: a request ends by its time and when it is told to, whatever the server does, and nothing that a server
 * sends makes it take more than WEFT_CLIENT_BYTES_MAX of memory. Over TLS the server shows exactly the
 * certificate that was named or, where none was, one for its host that the system trusts. */
#ifndef WEFT_API_CLI_CLIENT_H
#define WEFT_API_CLI_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

enum { WEFT_CLIENT_BYTES_MAX = 256 << 20, WEFT_CLIENT_HOST_MAX = 256, WEFT_CLIENT_PREFIX_MAX = 512 };

/* Where a server is, and who asks. */
typedef struct weft_target {
  const char *socket; /* path of a unix socket; NULL: host and port */
  const char *host;   /* name or address; NULL: 127.0.0.1 */
  uint16_t port;
  bool tls;             /* HTTPS */
  const char *tls_cert; /* a file in PEM: HTTPS, and the server has to show this certificate; NULL: see the law */
  const char *prefix;   /* stands before every path; NULL: nothing */
  const char *key;      /* NULL: none */
} weft_target;

/* What a URL such as https://host:8443/under says, or unix:PATH; the target points into it. */
typedef struct weft_client_url {
  const char *socket; /* points into the URL; NULL: host and port */
  char host[WEFT_CLIENT_HOST_MAX], prefix[WEFT_CLIENT_PREFIX_MAX];
  uint16_t port;
  bool tls;
} weft_client_url;

typedef struct weft_client_call {
  const char *method, *path;
  const char *body;    /* JSON; NULL: none */
  uint32_t timeout_ms; /* 0: ten minutes */
  /* Lines of the body as they come, without their ends, with the time (weft_clock_us) at which their last byte
   * was read; NULL: nobody wants them. */
  void (*take)(void *self, const char *line, size_t n, uint64_t at_us);
  bool (*stop)(void *self); /* asked some twenty times a second; true: leave; NULL: never */
  void *self;
} weft_client_call;

/* Beside the HTTP status: the time was up, or it was told to leave; the server broke off before its answer was
 * whole; no server was reached, or it is not the one that was meant (TLS). */
enum { WEFT_CLIENT_LEFT = 0, WEFT_CLIENT_BROKEN = -1, WEFT_CLIENT_UNREACHED = -2 };

/* One exchange; out gets the whole body, or what came of it. Returns the HTTP status or one of the above. */
int weft_client_run(const weft_target *target, const weft_client_call *call, weft_text *out);
/* The same with a plain request. cancel_after_ms > 0: hang up after that long. */
int weft_client_ask(const weft_target *target, const char *method, const char *path, const char *body, weft_text *out,
                    uint32_t cancel_after_ms);
/* The same on a port of 127.0.0.1. */
int weft_client_request(uint16_t port, const char *method, const char *path, const char *body, weft_text *out,
                        uint32_t cancel_after_ms);
/* The same with an API key; NULL: none. */
int weft_client_request_as(uint16_t port, const char *key, const char *method, const char *path, const char *body,
                           weft_text *out, uint32_t cancel_after_ms);
/* http://HOST[:PORT][/PATH], https://... or unix:PATH */
weft_status weft_client_read_url(const char *url, weft_client_url *out, weft_error *error);
/* The server that a URL names, without certificate and key. */
weft_target weft_client_target(const weft_client_url *url);

#endif
