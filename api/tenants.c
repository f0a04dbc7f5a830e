/* SPDX-License-Identifier: MIT */
#include "api/tenants.h"

#include <stddef.h>
#include <string.h>

#include "base/memory.h"

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
      const char *name = o.name == NULL ? number.bytes : o.name;
      rt->tenant_name[i] = weft_strndup(name, strlen(name));
    }
    weft_text_free(&number);
    good = rt->tenant_name[i] != NULL;
    config[i] = (weft_tenant_config){.weight = o.weight,
                                     .priority_class = o.priority_class,
                                     .running_max = o.running,
                                     .waiting_max = o.queued,
                                     .tokens_per_minute = o.tokens_per_minute,
                                     .blocks_max = o.blocks};
  }
  return good ? WEFT_OK : weft_fail(error, WEFT_E_NO_MEMORY, "no memory for %u tenants", n);
}

void weft_tenants_forget(weft_runtime *rt) {
  for (uint32_t i = 0; rt->tenant_name != NULL && i < rt->options.tenants; i++) {
    weft_free(rt->tenant_name[i]);
  }
  weft_free(rt->tenant_name);
  rt->tenant_name = NULL;
}

/* ---- counters -------------------------------------------------------------------------------- */

typedef struct tenant_row {
  const char *name, *label, *type, *help; /* help NULL: one more of the name before */
  size_t at, n_bytes;
} tenant_row;

#define AT(field) offsetof(weft_tenant_stats, field), sizeof(((weft_tenant_stats *)0)->field)

static const tenant_row rows[] = {
    {"weft_tenant_requests_total", "", "counter", "Requests that ended.", AT(n_finished)},
    {"weft_tenant_prompt_tokens_total", "", "counter", "Prompt tokens.", AT(n_prompt_tokens)},
    {"weft_tenant_cached_tokens_total", "", "counter", "Cached prompt tokens.",
     AT(n_cached_tokens)},
    {"weft_tenant_completion_tokens_total", "", "counter", "Answer tokens.", AT(n_answer_tokens)},
    {"weft_tenant_requests_running", "", "gauge", "Requests running.", AT(n_running)},
    {"weft_tenant_requests_waiting", "", "gauge", "Requests waiting.", AT(n_waiting)},
    {"weft_tenant_blocks", "", "gauge", "Pages of the pool that it pays for.", AT(n_blocks)},
    {"weft_tenant_blocks_cached", "", "gauge", "Cached pages that it paid for last.",
     AT(n_blocks_cached)},
    {"weft_tenant_preemptions_total", "", "counter", "Preemptions.", AT(n_preemptions)},
    {"weft_tenant_rows_total", "", "counter", "Rows planned for it.", AT(n_rows)},
    {"weft_tenant_cost_total", "", "counter", "Predicted device time that fair share charged.",
     AT(cost)},
    {"weft_tenant_refused_total", ",reason=\"queue\"", "counter",
     "Requests refused: the queue of all, its own queue, its tokens per minute.",
     AT(n_refused[WEFT_REFUSED_QUEUE])},
    {"weft_tenant_refused_total", ",reason=\"tenant_queue\"", NULL, NULL,
     AT(n_refused[WEFT_REFUSED_TENANT_QUEUE])},
    {"weft_tenant_refused_total", ",reason=\"tokens\"", NULL, NULL,
     AT(n_refused[WEFT_REFUSED_TOKENS])},
};

static unsigned long long number_at(const weft_tenant_stats *stats, const tenant_row *row) {
  uint64_t wide = 0;
  uint32_t narrow = 0;
  if (row->n_bytes == sizeof wide) {
    memcpy(&wide, (const char *)stats + row->at, sizeof wide);
    return wide;
  }
  memcpy(&narrow, (const char *)stats + row->at, sizeof narrow);
  return narrow;
}

static void put_label(weft_text *out, const char *name) {
  weft_text_puts(out, "{tenant=\"");
  for (const char *c = name; *c != 0; c++) {
    if (*c == '"' || *c == '\\') weft_text_puts(out, "\\");
    weft_text_append(out, *c == '\n' ? " " : c, 1);
  }
  weft_text_puts(out, "\"");
}

static void put_queue_time(weft_runtime *rt, const weft_tenant_stats *stats, weft_text *out) {
  weft_text_puts(out,
                 "# HELP weft_tenant_queue_seconds From submission to the first step.\n"
                 "# TYPE weft_tenant_queue_seconds summary\n");
  for (uint32_t i = 0; i < rt->options.tenants; i++) {
    unsigned long long n = 0;
    for (uint32_t k = 0; k < 20; k++) n += stats[i].queue[k];
    weft_text_puts(out, "weft_tenant_queue_seconds_sum");
    put_label(out, rt->tenant_name[i]);
    weft_text_printf(out, "} %.6f\nweft_tenant_queue_seconds_count",
                     (double)stats[i].queue_us / 1e6);
    put_label(out, rt->tenant_name[i]);
    weft_text_printf(out, "} %llu\n", n);
  }
}

void weft_tenants_metrics(weft_runtime *rt, weft_text *out) {
  uint32_t n = rt->options.tenants;
  weft_tenant_stats *stats = weft_alloc(n, sizeof *stats);
  out->refused = out->refused || stats == NULL;
  for (uint32_t i = 0; stats != NULL && i < n; i++) {
    weft_engine_get_tenant_stats(rt->engine, i, &stats[i]);
  }
  for (size_t r = 0; stats != NULL && r < sizeof rows / sizeof *rows; r++) {
    if (rows[r].help != NULL) {
      weft_text_printf(out, "# HELP %s %s\n# TYPE %s %s\n", rows[r].name, rows[r].help,
                       rows[r].name, rows[r].type);
    }
    for (uint32_t i = 0; i < n; i++) {
      weft_text_puts(out, rows[r].name);
      put_label(out, rt->tenant_name[i]);
      weft_text_printf(out, "%s} %llu\n", rows[r].label, number_at(&stats[i], &rows[r]));
    }
  }
  if (stats != NULL) put_queue_time(rt, stats, out);
  weft_free(stats);
}
