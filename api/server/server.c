/* SPDX-License-Identifier: MIT */
/* Between HTTP and the endpoints: finds the route (router.c), checks the API key, the host and the origin (origins.h),
 * counts answers. Three headers of a request tell pages of browsers from programs: Host, Origin, and Sec-Fetch-Site. */
#include <string.h>

#include "api/config.h"
#include "api/events/kv_events.h"
#include "api/formats.h"
#include "api/http/pack.h"
#include "api/prometheus.h"
#include "api/server/estate.h"
#include "api/server/origins.h"
#include "api/server/page.h"
#include "api/server/request_log.h"
#include "api/server/router.h"
#include "api/server/watch.h"
#include "api/tenants.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "model/text/jinja.h"

enum { IDLE_SECONDS = 120, N_WORKERS = 4, BODIES_FACTOR = 16 };

/* Codes that have a counter of their own; all others share the last one. */
static const int codes[WEFT_CODES_MAX] = {200, 204, 304, 400, 401, 403, 404, 405, 408,
                                          409, 413, 429, 499, 500, 503, 504, 0};
enum { N_CODES = WEFT_CODES_MAX };

static uint32_t code_index(int code) {
  for (uint32_t i = 0; i < N_CODES - 1; i++) {
    if (codes[i] == code) return i;
  }
  return N_CODES - 1;
}

/* ---- keys ---- */

/* What it sends as its key, where OpenAI's clients send one or else where Anthropic's do; NULL: none. */
static const char *key_of(weft_exchange *x, bool *sent) {
  static const char scheme[] = "Bearer ";
  const char *header = weft_exchange_header(x, "Authorization"), *bare = weft_exchange_header(x, "X-Api-Key");
  *sent = header != NULL || bare != NULL;
  if (header == NULL) return bare;
  return strncasecmp(header, scheme, sizeof scheme - 1) == 0 ? header + sizeof scheme - 1 : NULL;
}

/* What the tenant of a key may ask for. */
static weft_status check_tenant(const weft_server *s, uint32_t tenant, weft_access access, weft_refusal *why) {
  bool counts = access == WEFT_ACCESS_COUNTS, about = access == WEFT_ACCESS_ABOUT;
  if (weft_keys_is_operator(s->keys, tenant)) return WEFT_OK;
  if (weft_keys_is_metrics(s->keys, tenant)) {
    if (counts || about) return WEFT_OK;
    return weft_refuse(why, 403, "metrics_only", NULL, "keys of the tenant `%s` read counters and nothing else",
                       WEFT_METRICS);
  }
  if (access == WEFT_ACCESS_TENANT || about || (counts && weft_keys_one_asks(s->keys))) return WEFT_OK;
  return weft_refuse(why, 403, "operator_only", NULL, "only the operator may do this: use a key of the tenant `%s`%s",
                     WEFT_OPERATOR, counts ? ", or of `" WEFT_METRICS "`" : "");
}

/* The tenant that a router names; NULL: none. A router that adds a field to those of its client sends two: it is not
 * known then which of them to trust. */
static weft_status read_tenant(const weft_exchange *x, const char **out, weft_refusal *why) {
  static const char *const headers[] = {"X-Tenant-ID", "x-llm-d-inference-fairness-id",
                                        "x-gateway-inference-fairness-id"};
  *out = NULL;
  for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
    const char *name;
    for (uint32_t k = 0; (name = weft_exchange_header_at(x, headers[i], k)) != NULL; k++) {
      if (*name == 0) continue;
      if (*out != NULL && strcmp(*out, name) != 0)
        return weft_refuse(why, 400, "two_tenants", NULL,
                           "two tenants are named: a router must replace X-Tenant-ID and fairness ids of its client");
      *out = name;
    }
  }
  return WEFT_OK;
}

/* The tenant that a router says it asks for; it is trusted. *said is false where it says nothing. */
static weft_status hear_router(const weft_server *s, weft_exchange *x, bool *said, weft_refusal *why) {
  const char *name;
  weft_status status = read_tenant(x, &name, why);
  *said = status == WEFT_OK && name != NULL;
  if (!*said) return status;
  uint32_t tenant = 0;
  bool plain = weft_keys_find_tenant(s->keys, name, &tenant) && !weft_keys_is_operator(s->keys, tenant) &&
               !weft_keys_is_metrics(s->keys, tenant);
  if (!plain) {
    return weft_refuse(why, 403, "unknown_tenant", NULL,
                       "a router may not ask for '%.64s': it is no tenant of the keys' file that asks for answers",
                       name);
  }
  weft_exchange_note(x)->tenant = tenant;
  return WEFT_OK;
}

/* The key of a router beside that of its client. */
static weft_status check_router(const weft_server *s, weft_exchange *x, bool *said, weft_refusal *why) {
  const char *key = weft_exchange_header(x, "X-Router-Key");
  uint32_t tenant;
  *said = false;
  if (key == NULL) return WEFT_OK;
  if (weft_keys_find(s->keys, key, strlen(key), &tenant, &weft_exchange_note(x)->ticket) &&
      weft_keys_is_router(s->keys, tenant))
    return hear_router(s, x, said, why);
  return weft_refuse(why, 401, "invalid_api_key", NULL, "X-Router-Key is no key of the tenant `%s`", WEFT_ROUTER);
}

static weft_status check_key(const weft_server *s, weft_exchange *x, weft_access access, weft_refusal *why) {
  bool sent, said;
  const char *key = key_of(x, &sent);
  weft_note *note = weft_exchange_note(x);
  weft_status status = check_router(s, x, &said, why);
  if (status != WEFT_OK) return status;
  bool known = said || (!sent && weft_keys_find_none(s->keys, &note->tenant));
  if (!known && key == NULL) {
    return weft_refuse(why, 401, "missing_api_key", NULL,
                       "an API key is needed: send the header Authorization: Bearer KEY");
  }
  if (!known && !weft_keys_find(s->keys, key, strlen(key), &note->tenant, &note->ticket))
    return weft_refuse(why, 401, "invalid_api_key", NULL, "this API key is not known here");
  if (!said && weft_keys_is_router(s->keys, note->tenant)) status = hear_router(s, x, &said, why);
  if (status != WEFT_OK) return status;
  note->has_tenant = true;
  return check_tenant(s, note->tenant, access, why);
}

/* ---- pages and names ---- */

/* A name of this machine that no other site can take. */
static bool names_this_machine(const weft_server *s, const char *host) {
  if (origins_host_is_local(host) || (s->host != NULL && origins_same_host(host, s->host))) return true;
  for (uint32_t i = 0; i < s->n_origins; i++) {
    if (origins_fit_host(s->origins[i], host)) return true;
  }
  return false;
}

/* The origin itself, where it may ask. */
static const char *allowed_origin(const weft_server *s, const char *origin) {
  for (uint32_t i = 0; origin != NULL && i < s->n_origins; i++) {
    if (origins_fit(s->origins[i], origin)) return origin;
  }
  return NULL;
}

/* Refuses a request that names this machine by a name of another site. On a unix socket no name leads to the server,
 * and no page of a browser can reach it. */
static weft_status check_host(const weft_server *s, weft_exchange *x, weft_refusal *why) {
  const char *host = weft_exchange_host(x);
  if (weft_http_is_unix(s->http) || host == NULL || names_this_machine(s, host)) return WEFT_OK; /* browsers send one */
  return weft_refuse(why, 403, "host_not_allowed", NULL,
                     "this server answers as localhost, not as '%.80s': name it with --allow-origin http://%.80s", host,
                     host);
}

/* A person follows a link of another site to the page: that site learns nothing of it and cannot show it in a frame. */
static bool is_visit(weft_exchange *x) {
  const char *to = weft_exchange_header(x, "Sec-Fetch-Dest");
  bool page = strcmp(weft_exchange_path(x), "/") == 0 && weft_exchange_note(x)->html;
  return page && to != NULL && strcasecmp(to, "document") == 0 && weft_exchange_header(x, "Origin") == NULL;
}

static weft_status check_origin(const weft_server *s, weft_exchange *x, weft_refusal *why) {
  const char *origin = weft_exchange_header(x, "Origin"), *site = weft_exchange_header(x, "Sec-Fetch-Site");
  const char *allowed = allowed_origin(s, origin), *host = weft_exchange_host(x);
  if (allowed != NULL) {
    weft_exchange_set_header(x, "Access-Control-Allow-Origin", allowed);
    weft_exchange_set_header(x, "Vary", "Origin");
    weft_exchange_set_header(x, "Access-Control-Expose-Headers",
                             "Retry-After, X-Request-Id, traceresponse, X-RateLimit-Limit-Requests, "
                             "X-RateLimit-Remaining-Requests, "
                             "X-RateLimit-Reset-Requests, X-RateLimit-Limit-Tokens, X-RateLimit-Remaining-Tokens, "
                             "X-RateLimit-Reset-Tokens");
    return WEFT_OK;
  }
  bool foreign = origin != NULL && (host == NULL || strcasecmp(origins_host(origin), host) != 0);
  if (!foreign && (site == NULL || strcasecmp(site, "cross-site") != 0 || is_visit(x))) return WEFT_OK;
  return weft_refuse(why, 403, "cross_origin", NULL, "pages of %.80s may not ask here: --allow-origin lets them",
                     origin == NULL ? "other sites" : origin);
}

/* What a browser asks before it sends a page's request. */
static bool is_preflight(weft_exchange *x) {
  return strcmp(weft_exchange_method(x), "OPTIONS") == 0 && weft_exchange_header(x, "Origin") != NULL &&
         weft_exchange_header(x, "Access-Control-Request-Method") != NULL;
}

/* A page that may ask may send any header: clients of this dialect have dozens of their own. */
static void answer_preflight(weft_exchange *x) {
  weft_text none = {0};
  const char *headers = weft_exchange_header(x, "Access-Control-Request-Headers");
  weft_exchange_set_header(x, "Access-Control-Allow-Methods", "GET, POST, DELETE");
  if (headers != NULL) weft_exchange_set_header(x, "Access-Control-Allow-Headers", headers);
  weft_exchange_set_header(x, "Access-Control-Max-Age", "600");
  weft_exchange_answer(x, 204, NULL, &none);
}

/* The request came through a browser's page or a proxy on this machine, so it may be another user's. */
static bool came_through(weft_exchange *x) {
  static const char *const headers[] = {"Origin", "Forwarded", "X-Forwarded-For", "Via"};
  for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
    if (weft_exchange_header(x, headers[i]) != NULL) return true;
  }
  return false;
}

static weft_status check_access(const weft_server *s, weft_exchange *x, weft_access access, weft_refusal *why) {
  if (access == WEFT_ACCESS_OPEN || (access == WEFT_ACCESS_COUNTS && s->public_metrics)) return WEFT_OK;
  if (s->keys != NULL) return check_key(s, x, access, why);
  if (access != WEFT_ACCESS_OPERATE) return WEFT_OK;
  if (check_host(s, x, why) != WEFT_OK) return WEFT_E_INVALID; /* also where others may ask */
  if (weft_exchange_is_local(x) && !came_through(x)) return WEFT_OK;
  return weft_refuse(why, 403, "operator_only", NULL,
                     "without API keys only a program on this machine itself may do this");
}

/* Nothing is unpacked here: a small body could become a large one. */
static weft_status check_coding(weft_exchange *x, weft_refusal *why) {
  const char *coding = weft_exchange_header(x, "Content-Encoding");
  if (coding == NULL || *coding == 0 || strcasecmp(coding, "identity") == 0) return WEFT_OK;
  return weft_refuse(why, 415, "unknown_content_coding", NULL,
                     "the body is packed (Content-Encoding: %.32s), which is not read here: send it as it is, without "
                     "that header field",
                     coding);
}

/* ---- requests ---- */

static bool begin_exchange(void *self, weft_exchange *x) {
  weft_server *s = self;
  weft_refusal why, who;
  const char *allow = NULL;
  weft_note *note = weft_exchange_note(x);
  char path[WEFT_PATH_MAX];
  if (weft_router_tidy(weft_exchange_path(x), path)) weft_exchange_set_path(x, path);
  const weft_endpoint *route = weft_router_find(weft_exchange_method(x), weft_exchange_path(x), &allow, &why);
  note->route = route;
  note->anthropic = weft_exchange_header(x, "anthropic-version") != NULL;
  weft_page_read_headers(x);
  const char *accept = weft_exchange_header(x, "Accept");
  uint32_t open_metrics = pack_wanted(accept, "application/openmetrics-text");
  note->open_metrics = open_metrics > 0 && open_metrics >= pack_wanted(accept, "text/plain");
  note->begun_us = weft_clock_us();
  note->index = route == NULL ? WEFT_ENDPOINTS_MAX : (uint32_t)(route - weft_endpoints);
  weft_exchange_set_refusals(x, weft_router_refusals(weft_exchange_path(x)));
  bool preflight = is_preflight(x);
  weft_status status = weft_http_is_loopback(s->http) ? check_host(s, x, &who) : WEFT_OK;
  if (status == WEFT_OK) status = check_origin(s, x, &who);
  if (status == WEFT_OK && !preflight && route != NULL) status = check_access(s, x, route->access, &who);
  if (status == WEFT_OK && !preflight && route != NULL) status = check_coding(x, &who);
  if (status != WEFT_OK) {
    weft_exchange_refuse(x, &who);
  } else if (preflight) {
    answer_preflight(x);
  } else if (route != NULL) {
    weft_about_load(s, x);
  } else {
    if (allow != NULL) weft_exchange_set_header(x, "Allow", allow);
    weft_exchange_refuse(x, &why);
  }
  return route == NULL || route->quick;
}

static void handle_exchange(void *self, weft_exchange *x) {
  const weft_endpoint *route = weft_exchange_note(x)->route;
  route->handle(self, x);
}

static void count_exchange(void *self, weft_exchange *x, int code, bool left) {
  weft_server *s = self;
  if (code > 0) atomic_fetch_add(&s->answered[weft_exchange_note(x)->index][code_index(code)], 1);
  if (left) atomic_fetch_add(&s->left, 1);
  weft_request_tell(s, x, code, left);
}

/* ---- what it counted ---- */

static const char *const end_names[WEFT_HTTP_ENDS] = {"malformed", "late_head", "late_body", "stalled",
                                                      "evicted",   "idle",      "handshake"};

static unsigned long long read_count(atomic_uint_fast64_t *count) {
  return atomic_load(count);
}

void weft_server_metrics(weft_server *s, weft_text *out) {
  weft_prometheus_head(out, "weft_http_requests_total", "counter", "HTTP requests answered.");
  for (uint32_t r = 0; r <= WEFT_ENDPOINTS_MAX; r++) {
    for (uint32_t c = 0; c < N_CODES; c++) {
      unsigned long long n = read_count(&s->answered[r][c]);
      if (n == 0) continue;
      weft_text_printf(out, "weft_http_requests_total{method=\"%s\",path=\"%s\",code=\"%d\"} %llu\n",
                       r < weft_n_endpoints ? weft_endpoints[r].method : "other",
                       r < weft_n_endpoints ? weft_endpoints[r].path : "other", codes[c], n);
    }
  }
  weft_prometheus_head(out, "weft_http_clients_left_total", "counter",
                       "Clients that left before their answer was complete.");
  weft_text_printf(out, "weft_http_clients_left_total %llu\n", read_count(&s->left));
  weft_prometheus_head(out, "weft_http_requests_active", "gauge",
                       "HTTP requests that were read and are being answered.");
  weft_text_printf(out, "weft_http_requests_active %u\n", weft_http_active(s->http));
  weft_prometheus_head(out, "weft_http_body_bytes", "gauge", "Memory of request bodies that are being read or wait.");
  weft_text_printf(out, "weft_http_body_bytes %llu\n", (unsigned long long)weft_http_body_bytes(s->http));
  weft_prometheus_head(out, "weft_http_answer_bytes", "gauge",
                       "Memory of large finished answers that wait for their clients.");
  weft_text_printf(out, "weft_http_answer_bytes %llu\n", (unsigned long long)weft_http_answer_bytes(s->http));
  weft_prometheus_head(
      out, "weft_http_round_work", "gauge",
      "Most work on answers between two looks at the sockets, in bytes written or as many nanoseconds.");
  weft_text_printf(out, "weft_http_round_work %llu\n", (unsigned long long)weft_http_most_work(s->http));
  weft_prometheus_head(out, "weft_http_connections_ended_total", "counter",
                       "Connections that the server ended, by why.");
  for (int i = 0; i < WEFT_HTTP_ENDS; i++) {
    weft_text_printf(out, "weft_http_connections_ended_total{reason=\"%s\"} %llu\n", end_names[i],
                     (unsigned long long)weft_http_ended(s->http, (weft_http_end)i));
  }
  if (s->events != NULL) kv_events_metrics(s->events, out);
  weft_prometheus_head(out, "weft_responses_bytes", "gauge", "Memory of responses that clients may ask for again.");
  weft_text_printf(out, "weft_responses_bytes %llu\n", (unsigned long long)weft_responses_bytes(s->responses));
  weft_watchers_metrics(s->watchers, out);
  weft_prometheus_head(out, "weft_log_lines_dropped_total", "counter", "Lines of the log that nobody took.");
  weft_text_printf(out, "weft_log_lines_dropped_total %llu\n", (unsigned long long)weft_log_dropped());
  weft_prometheus_head(out, "weft_http_worker_microseconds_total", "counter",
                       "Processor time of parsing, templates and tokenising, charged to the tenant.");
  for (uint32_t i = 0; i < (s->keys == NULL ? 1 : weft_keys_n_tenants(s->keys)); i++) {
    weft_text_puts(out, "weft_http_worker_microseconds_total{");
    weft_prometheus_label(out, "tenant", s->keys == NULL ? "default" : weft_keys_tenant(s->keys, i));
    weft_text_printf(out, "} %llu\n", (unsigned long long)weft_http_worker_us(s->http, i));
  }
}

/* ---- opening and closing ---- */

static uint32_t longest_context(const weft_runtime *runtime) {
  uint32_t longest = 0;
  for (uint32_t i = 0; i < weft_n_models(runtime); i++) {
    uint32_t context = weft_model_at(runtime, i).context;
    if (context > longest) longest = context;
  }
  return longest;
}

void weft_server_fill_options(weft_server_options *options) {
  weft_config config;
  weft_config_defaults(&config, NULL, WEFT_CMD_SERVE);
  if (options->host == NULL) options->host = config.host;
  if (options->socket_mode == 0) options->socket_mode = weft_config_mode(config.socket_mode);
  if (options->body_mib == 0) options->body_mib = config.body_mib;
  if (options->connections == 0) options->connections = config.connections;
}

static void free_server(weft_server *s) {
  weft_watchers_close(s->watchers);
  weft_responses_close(s->responses);
  weft_free(s);
}

weft_status weft_server_open(const weft_server_options *options, weft_runtime *runtime, weft_server **out,
                             weft_error *error) {
  weft_server_options filled = *options, *const o = &filled;
  weft_server_fill_options(&filled);
  *out = NULL;
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < o->n_origins && status == WEFT_OK; i++) status = origins_check(o->origins[i], error);
  if (status != WEFT_OK) return status;
  weft_server *s = weft_alloc(1, sizeof *s);
  if (s == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the server");
  s->runtime = runtime;
  s->keys = o->keys;
  s->host = o->host;
  s->origins = o->origins;
  s->n_origins = o->n_origins;
  s->no_page = o->no_page;
  s->public_metrics = o->public_metrics;
  s->events = o->events;
  s->body_rules.strict_fields = o->strict_fields;
  s->body_rules.json = weft_json_limits(longest_context(runtime));
  uint64_t body = s->body_bytes = (uint64_t)o->body_mib << 20;
  weft_http_config config = {.host = o->host,
                             .port = o->port,
                             .socket_mode = o->socket_mode,
                             .has_listener = o->has_listener,
                             .listener = o->listener,
                             .tls_cert = o->tls_cert,
                             .tls_key = o->tls_key,
                             .body_bytes_max = body,
                             .bodies_bytes_max = body * BODIES_FACTOR,
                             .connections_max = o->connections,
                             .n_workers = N_WORKERS,
                             .n_tenants = o->keys == NULL ? 1 : weft_keys_n_places(o->keys),
                             .clock_us = o->clock_us,
                             .worker_us = o->worker_us,
                             .idle_seconds = o->idle_seconds == 0 ? IDLE_SECONDS : o->idle_seconds,
                             .self = s,
                             .begin = begin_exchange,
                             .handle = handle_exchange,
                             .done = count_exchange};
  uint32_t weight[WEFT_TENANTS_MAX];
  if (o->keys != NULL) {
    config.weight = weight;
    for (uint32_t i = 0; i < config.n_tenants; i++) weight[i] = weft_keys_options(o->keys)[i].weight;
  }
  status = weft_responses_open(config.n_tenants, 0, &s->responses);
  if (status != WEFT_OK) (void)weft_fail(error, status, "no memory for the server");
  if (status == WEFT_OK && o->n_estate > 0) status = weft_estate_take(s, o->estate, o->n_estate, error);
  if (status == WEFT_OK) status = weft_watchers_open(runtime, o->keys, &s->watchers, error);
  if (status == WEFT_OK) status = weft_http_open(&config, &s->http, error);
  if (status == WEFT_OK)
    *out = s;
  else
    free_server(s);
  return status;
}

uint32_t weft_server_port(const weft_server *s) {
  return weft_http_port(s->http);
}

void weft_server_plan(const weft_server *s, weft_text *out) {
  weft_http_plan plan = weft_http_get_plan(s->http);
  double mib = 1024.0 * 1024.0;
  weft_json_size json = s->body_rules.json;
  double parsed = (double)s->body_bytes + json.values * (double)WEFT_JSON_VALUE_BYTES +
                  json.scalars * (double)WEFT_JSON_SCALAR_BYTES;
  weft_text_printf(out, "formats  at most %.1f MiB of compiled ones that are kept, %.1f MiB for each model\n",
                   (double)WEFT_FORMATS_BYTES * weft_n_models(s->runtime) / mib, WEFT_FORMATS_BYTES / mib);
  weft_text_printf(out,
                   "workers  at most %d times %.1f MiB: %.1f MiB of a body's JSON, %.1f MiB of a chat template's run\n",
                   N_WORKERS, (parsed + (double)weft_jinja_budget_default().bytes) / mib, parsed / mib,
                   (double)weft_jinja_budget_default().bytes / mib);
  weft_text_printf(out, "responses at most %.1f MiB that clients of /v1/responses may ask for again\n",
                   WEFT_RESPONSES_BYTES / mib);
  if (s->keys != NULL) {
    uint32_t n = weft_keys_n_tenants(s->keys), n_places = weft_keys_n_places(s->keys);
    weft_text_printf(out, "tenants  %u, and places for %u more (--spare-tenants)\n", n, n_places - n);
  }
  weft_text_printf(out, "stats    at most %.1f MiB for those who watch\n",
                   (double)weft_watchers_bytes_max(s->watchers) / mib);
  weft_text_printf(out,
                   "http     %.1f MiB at most for bodies being read, %.1f MiB for answers that wait for their clients, "
                   "%.1f MiB for %u connections%s\n",
                   (double)plan.body_bytes / mib, (double)plan.answer_bytes / mib,
                   (double)plan.connection_bytes * plan.n_connections / mib, plan.n_connections,
                   plan.tls ? " in TLS" : "");
}

void weft_server_change_tenant(weft_server *s, uint32_t tenant, const weft_tenant_options *options) {
  weft_error error = {{0}};
  weft_status status = weft_tenants_set(s->runtime, tenant, options, &error);
  WEFT_CHECK(status == WEFT_OK); /* the file of keys allows nothing that it refuses */
  weft_http_set_weight(s->http, tenant, options->weight);
}

weft_status weft_server_renew(weft_server *s, const char *tls_cert, const char *tls_key, weft_error *error) {
  return weft_http_renew(s->http, tls_cert, tls_key, error);
}

bool weft_server_is_loopback(const weft_server *s) {
  return weft_http_is_loopback(s->http);
}

void weft_server_leave(weft_server *s) {
  atomic_store(&s->leaving, true);
}

void weft_server_drain(weft_server *s) {
  atomic_store(&s->draining, true);
  weft_watchers_drain(s->watchers);
  weft_drain(s->runtime);
}

int weft_server_listener(const weft_server *s) {
  return weft_http_listener(s->http);
}

void weft_server_pass_on(weft_server *s) {
  atomic_store(&s->leaving, true);
  weft_watchers_drain(s->watchers);
  weft_http_pass_on(s->http);
}

void weft_server_hold_pins(weft_server *s, bool hold) {
  atomic_store(&s->holds_pins, hold);
}

uint32_t weft_server_connections(weft_server *s) {
  return weft_http_connections(s->http);
}

bool weft_server_idle(weft_server *s) {
  return weft_idle(s->runtime) && weft_http_active(s->http) == 0;
}

void weft_server_cancel(weft_server *s) {
  weft_http_cancel(s->http);
}

void weft_server_close(weft_server *s) {
  if (s == NULL) return;
  atomic_store(&s->draining, true);
  weft_http_close(s->http);
  free_server(s);
}
