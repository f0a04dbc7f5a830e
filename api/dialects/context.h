/* SPDX-License-Identifier: MIT */
/* What a handler of an endpoint works with: the runtime, the HTTP server and the limits of its requests.
 *
 * Law: api/server/server.c makes it and takes it away; a handler changes nothing in it but the counters. */
#ifndef WEFT_API_DIALECTS_CONTEXT_H
#define WEFT_API_DIALECTS_CONTEXT_H

#include <stdatomic.h>

#include "api/dialects/responses_store.h"
#include "api/http/http.h"
#include "api/dialects/gen.h"
#include "api/weft.h"

typedef struct weft_server weft_server;
struct weft_keys;     /* api/server/keys.h */
struct weft_watchers; /* api/server/watch.h */

enum { WEFT_ENDPOINTS_MAX = 80, WEFT_CODES_MAX = 17 };

struct weft_server {
  weft_runtime *runtime;
  weft_http *http;
  const struct weft_keys *keys;
  const char *host; /* the host that the server was told to listen on; NULL: none */
  const char *const *origins;
  uint32_t n_origins;
  bool no_page;
  const struct kv_events *events; /* api/events/kv_events.h; NULL: none */
  bool public_metrics;            /* counts of all tenants are for everybody */
  weft_body_rules body_rules;
  struct weft_watchers *watchers;
  weft_responses *responses;     /* responses that clients may ask for again */
  uint64_t body_bytes;           /* of one body, at most */
  atomic_bool draining, leaving; /* leaving: answers as before, but says that it is not ready */
  atomic_bool holds_pins;        /* they are being handed over */
  atomic_uint_fast64_t answered[WEFT_ENDPOINTS_MAX + 1][WEFT_CODES_MAX]; /* by route and code; last route: none */
  atomic_uint_fast64_t left;
};

#endif
