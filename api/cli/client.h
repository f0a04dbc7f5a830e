/* SPDX-License-Identifier: MIT */
/* A small HTTP client for servers on this machine, and a `weft serve` as a child process: what `weft top`, `trace` and
 * `demo` and the laboratory (soak, bench) need.
 *
 * Law: a request goes to 127.0.0.1 or to a unix socket, and the caller ends every child that it started. */
#ifndef WEFT_API_CLI_CLIENT_H
#define WEFT_API_CLI_CLIENT_H

#include <stdint.h>
#include <sys/types.h>

#include "base/text.h"

/* Where a server is, and who asks. */
typedef struct weft_target {
  const char *socket; /* path of a unix socket; NULL: 127.0.0.1 */
  uint16_t port;
  const char *tls_cert; /* a file in PEM: the server has to show this certificate; NULL: plain HTTP */
  const char *key;      /* NULL: none */
} weft_target;

/* One exchange; the body of the answer goes to out. cancel_after_ms > 0: hang up after that long (status 0).
 * Returns the HTTP status, 0 after hanging up, -1 when the server could not be reached or broke off. */
int weft_client_ask(const weft_target *target, const char *method, const char *path, const char *body, weft_text *out,
                    uint32_t cancel_after_ms);
/* The same on a port of 127.0.0.1. */
int weft_client_request(uint16_t port, const char *method, const char *path, const char *body, weft_text *out,
                        uint32_t cancel_after_ms);
/* The same with an API key; NULL: none. */
int weft_client_request_as(uint16_t port, const char *key, const char *method, const char *path, const char *body,
                           weft_text *out, uint32_t cancel_after_ms);

typedef struct weft_child {
  pid_t pid;
  uint16_t port;
} weft_child;

/* Starts this program again as `serve ARGS... --port 0 --json --quiet` and waits until it listens. args ends with NULL.
 * 0, or -1 after one line. */
int weft_child_start(weft_child *child, const char *const *args);
/* SIGTERM, then waits. Returns its exit code, or -1. */
int weft_child_stop(weft_child *child);
/* A field of /proc/PID/status in KiB ("VmHWM", "VmRSS"); 0 when unknown. */
uint64_t weft_child_kib(const weft_child *child, const char *field);

#endif
