/* SPDX-License-Identifier: MIT */
/* Which function answers which path: one row for each endpoint, in router.c. For the files of api/ only.
 * docs/adding-an-endpoint.md lists the files that a new endpoint touches.
 *
 * Law: a row says everything about an endpoint that is not in its handler: method, path, who may ask, and whether it
 * is quick enough for the network thread. A handler answers its exchange exactly once (api/http/http.h). */
#ifndef WEFT_API_SERVER_ROUTER_H
#define WEFT_API_SERVER_ROUTER_H

#include "api/dialects/handlers.h"
#include "api/server/server.h"

/* Who may ask. Before the semicolon: where the server has API keys; after it: where it has none. */
typedef enum weft_access {
  WEFT_ACCESS_OPEN,   /* every client, with or without a key */
  WEFT_ACCESS_TENANT, /* any known key but those of metrics; every client */
  WEFT_ACCESS_ABOUT,  /* any known key; every client */
  /* the operator's key and those of metrics, because the answer shows counts of all tenants; or any key where all
   * that may ask are of one tenant, which then sees its own counts; or every client where the operator wants that
   * (--public-metrics); every client */
  WEFT_ACCESS_COUNTS,
  WEFT_ACCESS_OPERATE /* the operator's key; a program on this machine */
} weft_access;

#define WEFT_PAGE_PATHS "/(page)"

typedef struct weft_endpoint {
  /* A path that ends in * stands for all paths that begin with what is before the *; WEFT_PAGE_PATHS for those of the
   * files of the page (page.h). */
  const char *method, *path;
  weft_access access;
  /* The handler answers before it returns and parses no body, so it runs on the network thread and not on a worker. */
  bool quick;
  void (*handle)(weft_server *server, weft_exchange *exchange);
} weft_endpoint;

extern const weft_endpoint weft_endpoints[];
extern const uint32_t weft_n_endpoints;

enum { WEFT_PATH_MAX = 1024 };
/* Whether nothing is served at a path, but something is at the one that its client means: without slashes that are
 * doubled or at its end, with /v1 before it, or with one /v1 in place of two. Only of endpoints for every tenant: what
 * a proxy keeps from others by its path has one path. out: [WEFT_PATH_MAX]. */
bool weft_router_tidy(const char *path, char *out);

/* The row of a request; or NULL, the refusal, and in *allow the methods that the path has (for a 405; NULL for a 404).
 */
const weft_endpoint *weft_router_find(const char *method, const char *path, const char **allow, weft_refusal *why);

/* The form of refusals at a path, that of the path's dialect; NULL: the common form. */
weft_refusal_form weft_router_refusals(const char *path);

/* service.c */
void weft_handle_models(weft_server *server, weft_exchange *x);
void weft_handle_model(weft_server *server, weft_exchange *x);
void weft_handle_metrics(weft_server *server, weft_exchange *x);
void weft_handle_trace(weft_server *server, weft_exchange *x);
void weft_handle_version(weft_server *server, weft_exchange *x);
void weft_handle_tokenize(weft_server *server, weft_exchange *x);
void weft_handle_detokenize(weft_server *server, weft_exchange *x);
/* page.c: the page at /, or the line for programs that look for Ollama; the other files of the page */
void weft_handle_root(weft_server *server, weft_exchange *x);
void weft_handle_page_file(weft_server *server, weft_exchange *x);
/* openapi.c, docs_page.c: what there is, for programs and for people */
void weft_handle_openapi(weft_server *server, weft_exchange *x);
void weft_handle_docs(weft_server *server, weft_exchange *x);
/* tokenizer_info.c */
void weft_handle_tokenizer_info(weft_server *server, weft_exchange *x);
/* watch.c */
void weft_handle_stats(weft_server *server, weft_exchange *x);
void weft_handle_stats_stream(weft_server *server, weft_exchange *x);
/* probes.c */
void weft_handle_alive(weft_server *server, weft_exchange *x);
void weft_handle_ready(weft_server *server, weft_exchange *x);
void weft_handle_load(weft_server *server, weft_exchange *x);
/* about.c: what routers ask of a worker */
void weft_handle_server_info(weft_server *server, weft_exchange *x);
void weft_handle_model_info(weft_server *server, weft_exchange *x);
void weft_handle_loads(weft_server *server, weft_exchange *x);
void weft_handle_kv_event_sources(weft_server *server, weft_exchange *x);
/* The header of a request that asks for a report of the load, in the answer's head. Any answer; only in begin. */
void weft_about_load(weft_server *server, weft_exchange *x);
/* admin.c */
void weft_handle_pin(weft_server *server, weft_exchange *x);
void weft_handle_pins(weft_server *server, weft_exchange *x);
void weft_handle_unpin(weft_server *server, weft_exchange *x);
void weft_handle_reset_prefix_cache(weft_server *server, weft_exchange *x);
/* models_admin.c: models that come and go */
void weft_handle_load_model(weft_server *server, weft_exchange *x);
void weft_handle_unload_model(weft_server *server, weft_exchange *x);
void weft_handle_sleep_model(weft_server *server, weft_exchange *x);
void weft_handle_wake_model(weft_server *server, weft_exchange *x);
void weft_handle_sleep(weft_server *server, weft_exchange *x);
void weft_handle_wake_up(weft_server *server, weft_exchange *x);
void weft_handle_is_sleeping(weft_server *server, weft_exchange *x);
void weft_handle_save_prefixes(weft_server *server, weft_exchange *x); /* prefixes.c */
void weft_handle_load_prefixes(weft_server *server, weft_exchange *x);
/* server.c: the counters of the server, as Prometheus text */
void weft_server_metrics(weft_server *server, weft_text *out);

#endif
