/* SPDX-License-Identifier: MIT */
#include "api/tenants.h"

#include <string.h>

#include "api/prometheus.h"
#include "base/memory.h"

static weft_tenant_config config_of(const weft_tenant_options *o) {
  return (weft_tenant_config){.weight = o->weight,
                              .priority_class = o->priority_class,
                              .running_max = o->running,
                              .waiting_max = o->queued,
                              .tokens_per_minute = o->tokens_per_minute,
                              .blocks_max = o->blocks};
}

/* A place for a tenant that comes later has room for any name. */
static char *copy_name(const char *name) {
  size_t n = strlen(name), room = n == 0 ? WEFT_TENANT_NAME_BYTES : n;
  char *copy = weft_alloc(room + 1, 1);
  if (copy != NULL) memcpy(copy, name, n);
  return copy;
}

weft_status weft_tenants_name(weft_runtime *rt, weft_tenant_config *config, weft_error *error) {
  uint32_t n = rt->options.tenants;
  rt->tenant_name = weft_alloc(n, sizeof *rt->tenant_name);
  bool good = rt->tenant_name != NULL;
  for (uint32_t i = 0; good && i < n; i++) {
    weft_tenant_options o = {0};
    if (rt->options.tenant != NULL) o = rt->options.tenant[i];
    weft_text number = {0};
    weft_text_printf(&number, "%u", i);
    if (weft_text_status(&number) == WEFT_OK) {
      rt->tenant_name[i] = copy_name(o.name == NULL ? number.bytes : o.name);
    }
    weft_text_free(&number);
    good = rt->tenant_name[i] != NULL;
    config[i] = config_of(&o);
    if (good && rt->tenant_name[i][0] != 0 && rt->n_named == i) rt->n_named = i + 1;
  }
  return good ? WEFT_OK : weft_fail(error, WEFT_E_NO_MEMORY, "no memory for %u tenants", n);
}

uint32_t weft_tenants_count(const weft_runtime *rt) {
  return rt->n_named;
}

weft_status weft_tenants_set(weft_runtime *rt, uint32_t tenant, const weft_tenant_options *o, weft_error *error) {
  const weft_tenant_config config = config_of(o);
  bool is_new = tenant == rt->n_named;
  if (is_new && (o->name == NULL || strlen(o->name) - 1 >= WEFT_TENANT_NAME_BYTES))
    return weft_fail(error, WEFT_E_INVALID, "a tenant's name has 1 to %d bytes", WEFT_TENANT_NAME_BYTES);
  if (tenant > rt->n_named)
    return weft_fail(error, WEFT_E_INVALID, "tenant number %u comes after %u", tenant, rt->n_named);
  weft_status status = weft_replicas_change_tenant(rt->replicas, tenant, &config, weft_clock_us(), error);
  if (status != WEFT_OK || !is_new) return status;
  memcpy(rt->tenant_name[tenant], o->name, strlen(o->name) + 1);
  rt->n_named = tenant + 1; /* from here on others read the name */
  return WEFT_OK;
}

void weft_tenants_forget(weft_runtime *rt) {
  for (uint32_t i = 0; rt->tenant_name != NULL && i < rt->options.tenants; i++) {
    weft_free(rt->tenant_name[i]);
  }
  weft_free(rt->tenant_name);
  rt->tenant_name = NULL;
}

/* ---- counters -------------------------------------------------------------------------------- */

#define AT(field) WEFT_COUNTER_AT(weft_tenant_stats, field)

static const weft_counter_row rows[] = {
    {"weft_tenant_requests_total", "counter", "Requests that ended.", AT(n_finished)},
    {"weft_tenant_evicted_total", "counter", "Of those: gave their place in the full queue to another tenant.",
     AT(n_evicted)},
    {"weft_tenant_prompt_tokens_total", "counter", "Prompt tokens.", AT(n_prompt_tokens)},
    {"weft_tenant_cached_tokens_total", "counter", "Cached prompt tokens.", AT(n_cached_tokens)},
    {"weft_tenant_completion_tokens_total", "counter", "Answer tokens.", AT(n_answer_tokens)},
    {"weft_tenant_requests_running", "gauge", "Requests running.", AT(n_running)},
    {"weft_tenant_requests_waiting", "gauge", "Requests waiting.", AT(n_waiting)},
    {"weft_tenant_blocks", "gauge", "Pages of the pool that it pays for.", AT(n_blocks)},
    {"weft_tenant_blocks_cached", "gauge", "Cached pages that it paid for last.", AT(n_blocks_cached)},
    {"weft_tenant_preemptions_total", "counter", "Preemptions.", AT(n_preemptions)},
    {"weft_tenant_rows_total", "counter", "Rows planned for it.", AT(n_rows)},
    {"weft_tenant_charged_microseconds_total", "counter", "Predicted device time that fair share charged.",
     AT(charged_us)},
};

const char *const weft_refused_names[WEFT_REFUSED_KINDS] = {[WEFT_REFUSED_QUEUE] = "queue",
                                                            [WEFT_REFUSED_TENANT_QUEUE] = "tenant_queue",
                                                            [WEFT_REFUSED_TOKENS] = "tokens",
                                                            [WEFT_REFUSED_MEMORY] = "memory"};

static void put_refused(weft_runtime *rt, const weft_tenant_stats *stats, uint32_t n, weft_text *out) {
  weft_prometheus_head(out, "weft_tenant_refused_total", "counter",
                       "Requests refused: the queue of all, its own queue, its tokens per minute, memory of requests.");
  for (uint32_t r = 0; r < WEFT_REFUSED_KINDS; r++) {
    for (uint32_t i = 0; i < n; i++) {
      weft_text_puts(out, "weft_tenant_refused_total{");
      weft_prometheus_label(out, "tenant", rt->tenant_name[i]);
      weft_text_printf(out, ",reason=\"%s\"} %llu\n", weft_refused_names[r], (unsigned long long)stats[i].n_refused[r]);
    }
  }
}

static void put_queue_time(weft_runtime *rt, const weft_tenant_stats *stats, uint32_t n, weft_text *out) {
  weft_prometheus_head(out, "weft_tenant_queue_seconds", "summary", "From submission to the first step.");
  for (uint32_t i = 0; i < n; i++) {
    unsigned long long n_started = 0;
    for (uint32_t k = 0; k < 20; k++) n_started += stats[i].queue[k];
    weft_text_puts(out, "weft_tenant_queue_seconds_sum{");
    weft_prometheus_label(out, "tenant", rt->tenant_name[i]);
    weft_text_printf(out, "} %.6f\nweft_tenant_queue_seconds_count{", (double)stats[i].queue_us / 1e6);
    weft_prometheus_label(out, "tenant", rt->tenant_name[i]);
    weft_text_printf(out, "} %llu\n", n_started);
  }
}

void weft_tenants_metrics(weft_runtime *rt, weft_text *out) {
  uint32_t n = weft_tenants_count(rt);
  weft_tenant_stats *stats = weft_alloc(n, sizeof *stats);
  out->refused = out->refused || stats == NULL;
  for (uint32_t i = 0; stats != NULL && i < n; i++) {
    weft_replicas_get_tenant_stats(rt->replicas, i, &stats[i]);
  }
  for (size_t r = 0; stats != NULL && r < sizeof rows / sizeof *rows; r++) {
    weft_prometheus_head(out, rows[r].name, rows[r].type, rows[r].help);
    for (uint32_t i = 0; i < n; i++) {
      weft_text_printf(out, "%s{", rows[r].name);
      weft_prometheus_label(out, "tenant", rt->tenant_name[i]);
      weft_text_printf(out, "} %llu\n", weft_counter_of(&stats[i], &rows[r]));
    }
  }
  if (stats != NULL) put_refused(rt, stats, n, out);
  if (stats != NULL) put_queue_time(rt, stats, n, out);
  weft_free(stats);
}
