/* SPDX-License-Identifier: MIT */
/* Between HTTP and the endpoints: finds the route, checks the key, counts. */
#include <string.h>

#include "api/prometheus.h"
#include "api/router.h"
#include "base/log.h"
#include "base/memory.h"

enum { BODY_MIB = 8, CONNECTIONS = 1024, IDLE_SECONDS = 120, N_WORKERS = 4, BODIES_FACTOR = 16 };

/* The codes that are counted each; others count as the last. */
static const int codes[WEFT_CODES_MAX] = {200, 400, 401, 403, 404, 405, 409, 413, 429, 499, 500, 503, 504, 0};
enum { N_CODES = 14 };

static uint32_t code_index(int code) {
  for (uint32_t i = 0; i < N_CODES - 1; i++) {
    if (codes[i] == code) return i;
  }
  return N_CODES - 1;
}

/* ---- requests ---- */

static weft_status check_key(const weft_server *s, weft_exchange *x, weft_access access, weft_refusal *why) {
  static const char scheme[] = "Bearer ";
  const char *header = weft_exchange_header(x, "Authorization");
  weft_note *note = weft_exchange_note(x);
  bool known = header == NULL && weft_keys_find_none(s->keys, &note->tenant);
  if (!known && (header == NULL || strncasecmp(header, scheme, sizeof scheme - 1) != 0)) {
    return weft_refuse(why, 401, "missing_api_key", NULL,
                       "an API key is needed: send the header Authorization: Bearer KEY");
  }
  const char *key = known ? "" : header + sizeof scheme - 1;
  if (!known && !weft_keys_find(s->keys, key, strlen(key), &note->tenant))
    return weft_refuse(why, 401, "invalid_api_key", NULL, "this API key is not known here");
  if (access == WEFT_ACCESS_TENANT || weft_keys_is_operator(s->keys, note->tenant)) return WEFT_OK;
  return weft_refuse(why, 403, "operator_only", NULL, "only the operator may do this: use a key of the tenant `%s`",
                     WEFT_OPERATOR);
}

/* A page in a browser, or a proxy, asks for somebody else, and does so from this machine. */
static bool came_through(weft_exchange *x) {
  static const char *const headers[] = {"Origin", "Forwarded", "X-Forwarded-For", "Via"};
  for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
    if (weft_exchange_header(x, headers[i]) != NULL) return true;
  }
  return false;
}

static weft_status check_access(const weft_server *s, weft_exchange *x, weft_access access, weft_refusal *why) {
  if (access == WEFT_ACCESS_OPEN) return WEFT_OK;
  if (s->keys != NULL) return check_key(s, x, access, why);
  if (access != WEFT_ACCESS_OPERATE) return WEFT_OK;
  if (weft_exchange_is_local(x) && !came_through(x)) return WEFT_OK;
  return weft_refuse(why, 403, "operator_only", NULL,
                     "without API keys only a program on this machine itself may do this");
}

static bool begin(void *self, weft_exchange *x) {
  weft_server *s = self;
  weft_refusal why;
  const char *allow;
  const weft_endpoint *route = weft_router_find(weft_exchange_method(x), weft_exchange_path(x), &allow, &why);
  weft_note *note = weft_exchange_note(x);
  note->route = route;
  note->index = route == NULL ? WEFT_ENDPOINTS_MAX : (uint32_t)(route - weft_endpoints);
  if (route == NULL) {
    if (allow != NULL) weft_exchange_set_header(x, "Allow", allow);
    weft_exchange_refuse(x, &why);
    return true;
  }
  if (check_access(s, x, route->access, &why) != WEFT_OK) weft_exchange_refuse(x, &why);
  return route->quick;
}

static void handle(void *self, weft_exchange *x) {
  const weft_endpoint *route = weft_exchange_note(x)->route;
  route->handle(self, x);
}

static void done(void *self, weft_exchange *x, int code, bool left) {
  weft_server *s = self;
  if (code > 0) atomic_fetch_add(&s->answered[weft_exchange_note(x)->index][code_index(code)], 1);
  if (left) atomic_fetch_add(&s->left, 1);
  weft_log(WEFT_LOG_INFO, "%s %s %s: %d%s", weft_exchange_id(x), weft_exchange_method(x), weft_exchange_path(x), code,
           left ? ", the client left" : "");
}

/* ---- what it counted ---- */

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
  weft_prometheus_head(out, "weft_http_requests_active", "gauge", "HTTP requests being read or answered.");
  weft_text_printf(out, "weft_http_requests_active %u\n", weft_http_active(s->http));
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

weft_status weft_server_open(const weft_server_options *o, weft_runtime *runtime, weft_server **out,
                             weft_error *error) {
  *out = NULL;
  weft_server *s = weft_alloc(1, sizeof *s);
  if (s == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the server");
  s->runtime = runtime;
  s->keys = o->keys;
  s->json_limits = weft_json_limits(longest_context(runtime));
  uint64_t body = (uint64_t)(o->body_mib == 0 ? BODY_MIB : o->body_mib) << 20;
  weft_http_config config = {.host = o->host,
                             .port = o->port,
                             .body_bytes_max = body,
                             .bodies_bytes_max = body * BODIES_FACTOR,
                             .connections_max = o->connections == 0 ? CONNECTIONS : o->connections,
                             .n_workers = N_WORKERS,
                             .idle_seconds = o->idle_seconds == 0 ? IDLE_SECONDS : o->idle_seconds,
                             .self = s,
                             .begin = begin,
                             .handle = handle,
                             .done = done};
  uint32_t weight[WEFT_TENANTS_MAX];
  if (o->keys != NULL) {
    config.n_tenants = weft_keys_n_tenants(o->keys);
    config.weight = weight;
    for (uint32_t i = 0; i < config.n_tenants; i++) weight[i] = weft_keys_options(o->keys)[i].weight;
  }
  weft_status status = weft_http_open(&config, &s->http, error);
  if (status != WEFT_OK) {
    weft_free(s);
    return status;
  }
  *out = s;
  return WEFT_OK;
}

uint32_t weft_server_port(const weft_server *s) {
  return weft_http_port(s->http);
}

void weft_server_drain(weft_server *s) {
  atomic_store(&s->draining, true);
  weft_drain(s->runtime);
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
  weft_free(s);
}
