/* SPDX-License-Identifier: MIT */
#include "api/server/router.h"

#include <string.h>

#include "api/server/page.h"

const weft_endpoint weft_endpoints[] = {
    {"POST", "/v1/chat/completions", WEFT_ACCESS_TENANT, false, weft_handle_chat},
    {"POST", "/v1/completions", WEFT_ACCESS_TENANT, false, weft_handle_completions},
    {"POST", "/v1/chat/completions/render", WEFT_ACCESS_TENANT, false, weft_handle_render_chat},
    {"POST", "/v1/completions/render", WEFT_ACCESS_TENANT, false, weft_handle_render_completions},
    {"POST", "/v1/responses", WEFT_ACCESS_TENANT, false, weft_handle_responses},
    {"GET", "/v1/responses/*", WEFT_ACCESS_TENANT, false, weft_handle_response},
    {"DELETE", "/v1/responses/*", WEFT_ACCESS_TENANT, false, weft_handle_response_delete},
    {"POST", "/v1/messages", WEFT_ACCESS_TENANT, false, weft_handle_messages},
    {"POST", "/v1/messages/count_tokens", WEFT_ACCESS_TENANT, false, weft_handle_count_tokens},
    {"POST", "/api/chat", WEFT_ACCESS_TENANT, false, weft_handle_ollama_chat},
    {"POST", "/api/generate", WEFT_ACCESS_TENANT, false, weft_handle_ollama_generate},
    {"GET", "/api/tags", WEFT_ACCESS_TENANT, false, weft_handle_ollama_tags},
    {"POST", "/api/show", WEFT_ACCESS_TENANT, false, weft_handle_ollama_show},
    {"GET", "/api/ps", WEFT_ACCESS_TENANT, false, weft_handle_ollama_ps},
    {"GET", "/api/version", WEFT_ACCESS_OPEN, true, weft_handle_ollama_version},
    {"POST", "/api/embed", WEFT_ACCESS_TENANT, false, weft_handle_ollama_not_here},
    {"POST", "/api/embeddings", WEFT_ACCESS_TENANT, false, weft_handle_ollama_not_here},
    {"POST", "/api/pull", WEFT_ACCESS_TENANT, false, weft_handle_ollama_not_here},
    {"POST", "/api/push", WEFT_ACCESS_TENANT, false, weft_handle_ollama_not_here},
    {"POST", "/api/create", WEFT_ACCESS_TENANT, false, weft_handle_ollama_not_here},
    {"POST", "/api/copy", WEFT_ACCESS_TENANT, false, weft_handle_ollama_not_here},
    {"DELETE", "/api/delete", WEFT_ACCESS_TENANT, false, weft_handle_ollama_not_here},
    {"GET", "/v1/models", WEFT_ACCESS_ABOUT, true, weft_handle_models},
    {"GET", "/v1/models/*", WEFT_ACCESS_ABOUT, true, weft_handle_model},
    {"POST", "/v1/models/load", WEFT_ACCESS_OPERATE, false, weft_handle_load_model},
    {"POST", "/v1/models/unload", WEFT_ACCESS_OPERATE, false, weft_handle_unload_model},
    {"POST", "/v1/models/sleep", WEFT_ACCESS_OPERATE, false, weft_handle_sleep_model},
    {"POST", "/v1/models/wake", WEFT_ACCESS_OPERATE, false, weft_handle_wake_model},
    {"POST", "/sleep", WEFT_ACCESS_OPERATE, false, weft_handle_sleep},
    {"POST", "/wake_up", WEFT_ACCESS_OPERATE, false, weft_handle_wake_up},
    {"GET", "/is_sleeping", WEFT_ACCESS_ABOUT, true, weft_handle_is_sleeping},
    {"POST", "/models/load", WEFT_ACCESS_OPERATE, false, weft_handle_load_model},
    {"POST", "/models/unload", WEFT_ACCESS_OPERATE, false, weft_handle_unload_model},
    {"POST", "/tokenize", WEFT_ACCESS_TENANT, false, weft_handle_tokenize},
    {"GET", "/tokenizer_info", WEFT_ACCESS_TENANT, true, weft_handle_tokenizer_info},
    {"POST", "/detokenize", WEFT_ACCESS_TENANT, false, weft_handle_detokenize},
    {"GET", "/", WEFT_ACCESS_OPEN, true, weft_handle_root},
    {"GET", WEFT_PAGE_PATHS, WEFT_ACCESS_OPEN, true, weft_handle_page_file},
    {"GET", "/health", WEFT_ACCESS_OPEN, true, weft_handle_ready},
    {"GET", "/readyz", WEFT_ACCESS_OPEN, true, weft_handle_ready},
    {"GET", "/livez", WEFT_ACCESS_OPEN, true, weft_handle_alive},
    {"GET", "/ping", WEFT_ACCESS_OPEN, true, weft_handle_ready},
    {"POST", "/ping", WEFT_ACCESS_OPEN, true, weft_handle_ready},
    {"GET", "/load", WEFT_ACCESS_COUNTS, true, weft_handle_load},
    {"GET", "/metrics", WEFT_ACCESS_COUNTS, true, weft_handle_metrics},
    {"GET", "/get_load", WEFT_ACCESS_COUNTS, true, weft_handle_loads},
    {"GET", "/loads", WEFT_ACCESS_COUNTS, true, weft_handle_loads},
    {"GET", "/v1/loads", WEFT_ACCESS_COUNTS, true, weft_handle_loads},
    {"GET", "/kv_event_sources", WEFT_ACCESS_COUNTS, true, weft_handle_kv_event_sources},
    {"GET", "/server_info", WEFT_ACCESS_ABOUT, true, weft_handle_server_info},
    {"GET", "/get_server_info", WEFT_ACCESS_ABOUT, true, weft_handle_server_info},
    {"GET", "/model_info", WEFT_ACCESS_ABOUT, true, weft_handle_model_info},
    {"GET", "/get_model_info", WEFT_ACCESS_ABOUT, true, weft_handle_model_info},
    {"GET", "/stats", WEFT_ACCESS_TENANT, false, weft_handle_stats},
    {"GET", "/stats/stream", WEFT_ACCESS_TENANT, false, weft_handle_stats_stream},
    {"GET", "/openapi.json", WEFT_ACCESS_OPEN, false, weft_handle_openapi},
    {"GET", "/docs", WEFT_ACCESS_OPEN, false, weft_handle_docs},
    {"GET", "/version", WEFT_ACCESS_OPEN, true, weft_handle_version},
    {"GET", "/admin/pins", WEFT_ACCESS_OPERATE, true, weft_handle_pins},
    {"POST", "/admin/pins", WEFT_ACCESS_OPERATE, false, weft_handle_pin},
    {"DELETE", "/admin/pins/*", WEFT_ACCESS_OPERATE, true, weft_handle_unpin},
    {"POST", "/admin/prefixes/save", WEFT_ACCESS_OPERATE, false, weft_handle_save_prefixes},
    {"POST", "/admin/prefixes/load", WEFT_ACCESS_OPERATE, false, weft_handle_load_prefixes},
    {"POST", "/reset_prefix_cache", WEFT_ACCESS_OPERATE, false, weft_handle_reset_prefix_cache},
    {"GET", "/admin/trace", WEFT_ACCESS_OPERATE, false, weft_handle_trace},
};
const uint32_t weft_n_endpoints = sizeof weft_endpoints / sizeof *weft_endpoints;
_Static_assert(sizeof weft_endpoints / sizeof *weft_endpoints <= WEFT_ENDPOINTS_MAX,
               "the counters have a row for each route");

weft_refusal_form weft_router_refusals(const char *path) {
  static const struct {
    const char *beginning;
    weft_refusal_form form;
  } rows[] = {{"/v1/messages", weft_anthropic_refusal}, {"/api/", weft_ollama_refusal}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    if (strncmp(path, rows[i].beginning, strlen(rows[i].beginning)) == 0) return rows[i].form;
  }
  return NULL;
}

static bool path_fits(const char *pattern, const char *path) {
  size_t n = strlen(pattern);
  if (strcmp(pattern, WEFT_PAGE_PATHS) == 0) return weft_page_find(path) != NULL;
  if (pattern[n - 1] == '*') return strncmp(pattern, path, n - 1) == 0;
  return strcmp(pattern, path) == 0;
}

/* Whether a path is one of those for every tenant. */
static bool is_for_tenants(const char *path) {
  for (uint32_t i = 0; i < weft_n_endpoints; i++) {
    weft_access access = weft_endpoints[i].access;
    bool every = access == WEFT_ACCESS_OPEN || access == WEFT_ACCESS_TENANT || access == WEFT_ACCESS_ABOUT;
    if (every && path_fits(weft_endpoints[i].path, path)) return true;
  }
  return false;
}

bool weft_router_tidy(const char *path, char *out) {
  static const char version[] = "/v1";
  size_t n = 0, n_version = sizeof version - 1;
  if (is_for_tenants(path) && path[strlen(path) - 1] != '/') return false;
  if (strlen(path) + n_version >= WEFT_PATH_MAX) return false;
  char *plain = out + n_version; /* room for the version before it */
  for (const char *at = path; *at != 0; at++) {
    if (*at != '/' || n == 0 || plain[n - 1] != '/') plain[n++] = *at;
  }
  if (n > 1 && plain[n - 1] == '/') n -= 1;
  plain[n] = 0;
  while (strncmp(plain, "/v1/v1/", 7) == 0) memmove(plain, plain + n_version, strlen(plain) - n_version + 1);
  if (!is_for_tenants(plain)) {
    memcpy(out, version, n_version);
    plain = out;
  }
  if (!is_for_tenants(plain) || strcmp(plain, path) == 0) return false;
  memmove(out, plain, strlen(plain) + 1);
  return true;
}

/* The methods of a path, for a 405. */
static const char *methods_of(const char *path) {
  static const char *const lists[] = {NULL,     "GET, HEAD",         "POST",         "GET, HEAD, POST",
                                      "DELETE", "GET, HEAD, DELETE", "POST, DELETE", "GET, HEAD, POST, DELETE"};
  unsigned bits = 0;
  for (uint32_t i = 0; i < weft_n_endpoints; i++) {
    const char *method = weft_endpoints[i].method;
    if (!path_fits(weft_endpoints[i].path, path)) continue;
    bits |= strcmp(method, "GET") == 0 ? 1u : strcmp(method, "POST") == 0 ? 2u : 4u;
  }
  return lists[bits];
}

const weft_endpoint *weft_router_find(const char *method, const char *path, const char **allow, weft_refusal *why) {
  const weft_endpoint *other = NULL;
  if (strcmp(method, "HEAD") == 0) method = "GET"; /* http_connection.c leaves the body out (bodiless) */
  for (uint32_t i = 0; i < weft_n_endpoints; i++) {
    if (!path_fits(weft_endpoints[i].path, path)) continue;
    if (strcmp(weft_endpoints[i].method, method) == 0) return &weft_endpoints[i];
    other = &weft_endpoints[i];
  }
  *allow = NULL;
  if (other == NULL) {
    (void)weft_refuse(why, 404, "unknown_url", NULL, "nothing is served at %.256s: /docs lists what is", path);
    return NULL;
  }
  *allow = methods_of(path);
  (void)weft_refuse(why, 405, "method_not_allowed", NULL, "%.256s takes %s, not %.16s", path, *allow, method);
  return NULL;
}
