/* SPDX-License-Identifier: MIT */
/* What routers ask of a worker: what it serves, in how large blocks, and how much it has to do.
 *
 * Law: names and members are those that routers read (docs/fleet.md says which). Where a router asks for one model it
 * is the first; `models` has all. Counts of all tenants are shown to whom /metrics shows them, in the head of an answer
 * too. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "api/events/kv_events.h"
#include "api/json.h"
#include "api/runtime.h"
#include "api/server/router.h"

static void answer_json(weft_exchange *x, weft_text *body) {
  weft_exchange_answer(x, 200, "application/json", body);
}

static void put_name(const char *member, const char *value, weft_text *out) {
  weft_text_printf(out, "\"%s\":", member);
  weft_json_words(out, value);
  weft_text_puts(out, ",");
}

/* A path would say where files lie on this machine, so the name stands for it. */
static void put_names(const weft_served_model *m, weft_text *out) {
  put_name("served_model_name", m->name, out);
  put_name("model_path", m->name, out);
  put_name("tokenizer_path", m->name, out);
}

static void put_size(const weft_runtime *rt, uint32_t index, weft_text *out) {
  const weft_cache_size size = weft_runtime_cache(rt, index);
  weft_text_printf(out, "\"max_model_len\":%u,\"block_size\":%u,\"num_gpu_blocks\":%llu", rt->model[index].context,
                   size.block_tokens, (unsigned long long)size.n_blocks);
}

/* Devices that compute one layer together. */
static uint32_t tensor_parts(const weft_runtime *rt) {
  return weft_split_shards(&rt->model[0].copy[0].split);
}

void weft_handle_server_info(weft_server *s, weft_exchange *x) {
  const weft_runtime *rt = s->runtime;
  weft_text body = {0};
  weft_text_puts(&body, "{");
  put_name("version", weft_version(), &body);
  put_names(&rt->model[0], &body);
  weft_text_printf(&body, "\"tp_size\":%u,\"dp_size\":%u,\"max_running_requests\":%u,", tensor_parts(rt),
                   rt->n_replicas, rt->n_replicas * rt->options.running);
  put_size(rt, 0, &body);
  weft_text_printf(&body, ",\"product_bits\":%u", weft_device_get_info(rt->devices.device[0])->products);
  weft_text_puts(&body, ",\"models\":[");
  for (uint32_t i = 0; i < rt->n_models; i++) {
    weft_text_puts(&body, i == 0 ? "{" : ",{");
    put_name("served_model_name", rt->model[i].name, &body);
    put_size(rt, i, &body);
    if (s->events != NULL) {
      weft_text_puts(&body, ",\"kv_event_sources\":");
      kv_events_sources(s->events, i, &body);
    }
    weft_text_puts(&body, "}");
  }
  weft_text_puts(&body, "]}");
  answer_json(x, &body);
}

void weft_handle_model_info(weft_server *s, weft_exchange *x) {
  const weft_served_model *m = &s->runtime->model[0];
  weft_text body = {0};
  weft_text_puts(&body, "{");
  put_names(m, &body);
  put_name("model_type", weft_model_get_info(m->model)->arch, &body);
  weft_text_printf(&body, "\"is_generation\":true,\"max_model_len\":%u}", m->context);
  answer_json(x, &body);
}

void weft_handle_kv_event_sources(weft_server *s, weft_exchange *x) {
  weft_text body = {0};
  weft_refusal why;
  if (s->events != NULL) {
    kv_events_sources(s->events, 0, &body);
    answer_json(x, &body);
    return;
  }
  (void)weft_refuse(&why, 404, "no_kv_events", NULL, "this server tells no cache events: --kv-events does");
  weft_exchange_refuse(x, &why);
}

/* ---- load ---- */

typedef struct load_counts {
  uint32_t n_running, n_waiting;
  uint64_t n_used,
      n_max;    /* tokens of the first model that the pages held by requests have room for; that fill the pool */
  double usage; /* share of the pool that requests hold, 0 to 1 */
} load_counts;

static load_counts get_load(const weft_server *s) {
  weft_engine_stats stats;
  const weft_cache_size size = weft_runtime_cache(s->runtime, 0);
  weft_replicas_get_stats(s->runtime->replicas, &stats);
  load_counts load = {.n_running = stats.n_running, .n_waiting = stats.n_waiting};
  if (stats.pager.n_pages > 0) load.usage = (double)stats.pager.n_pinned / (double)stats.pager.n_pages;
  load.n_max = size.n_blocks * size.block_tokens;
  load.n_used = (uint64_t)(load.usage * (double)load.n_max);
  return load;
}

static void put_load(const weft_server *s, const load_counts *load, weft_text *out) {
  weft_text_printf(out,
                   "\"num_running_reqs\":%u,\"num_waiting_reqs\":%u,\"num_total_reqs\":%u,\"num_used_tokens\":%llu,"
                   "\"max_total_num_tokens\":%llu,\"token_usage\":%.6f,\"max_running_requests\":%u",
                   load->n_running, load->n_waiting, load->n_running + load->n_waiting,
                   (unsigned long long)load->n_used, (unsigned long long)load->n_max, load->usage,
                   s->runtime->n_replicas * s->runtime->options.running);
}

/* One entry: how requests are shared out to replicas is this server's. */
void weft_handle_loads(weft_server *s, weft_exchange *x) {
  const load_counts load = get_load(s);
  weft_text body = {0};
  weft_text_puts(&body, "{");
  put_name("version", weft_version(), &body);
  weft_text_printf(&body, "\"load\":%u,\"dp_rank_count\":1,\"loads\":[{\"dp_rank\":0,",
                   load.n_running + load.n_waiting);
  put_load(s, &load, &body);
  weft_text_puts(&body, "}],\"aggregate\":{");
  put_load(s, &load, &body);
  weft_text_puts(&body, "}}");
  answer_json(x, &body);
}

/* Who may read counters of all tenants; decided as for /metrics. */
static bool may_see_load(const weft_server *s, weft_exchange *x) {
  const weft_note *note = weft_exchange_note(x);
  if (s->keys == NULL || s->public_metrics) return true;
  if (!note->has_tenant) return false;
  return weft_keys_is_operator(s->keys, note->tenant) || weft_keys_is_metrics(s->keys, note->tenant) ||
         weft_keys_one_asks(s->keys);
}

void weft_about_load(weft_server *s, weft_exchange *x) {
  const char *format = weft_exchange_header(x, "endpoint-load-metrics-format");
  bool text = format != NULL && strcasecmp(format, "TEXT") == 0,
       json = format != NULL && strcasecmp(format, "JSON") == 0;
  if (!(text || json) || !may_see_load(s, x)) return;
  const load_counts load = get_load(s);
  char line[192];
  (void)snprintf(line, sizeof line,
                 text ? "TEXT named_metrics.kv_cache_usage_perc=%.6f, named_metrics.num_requests_waiting=%u, "
                        "named_metrics.num_requests_running=%u"
                      : "JSON {\"named_metrics\":{\"kv_cache_usage_perc\":%.6f,\"num_requests_waiting\":%u,"
                        "\"num_requests_running\":%u}}",
                 load.usage, load.n_waiting, load.n_running);
  weft_exchange_set_header(x, "endpoint-load-metrics", line);
}
