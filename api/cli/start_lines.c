/* SPDX-License-Identifier: MIT */
#include "api/cli/start_lines.h"

#include <string.h>

#include "api/runtime.h"

void start_print_url(const weft_config *config, uint32_t port, weft_text *out) {
  const char *host = config->host, *left = strchr(host, ':') != NULL ? "[" : "", *right = *left != 0 ? "]" : "";
  if (weft_config_socket(host) != NULL) {
    weft_text_printf(out, "%s%s", host, config->tls_cert == NULL ? "" : ", in TLS");
  } else {
    weft_text_printf(out, "%s://%s%s%s:%u", config->tls_cert == NULL ? "http" : "https", left, host, right, port);
  }
}

static void print_devices(const weft_devices *devices, weft_text *out) {
  const weft_device_info *first = weft_device_get_info(devices->device[0]);
  weft_text_printf(out, "device  %s, because %s: ", first->backend, devices->why.text);
  if (first->host_memory) {
    weft_text_printf(out, "%s, %u thread%s", first->isa, first->n_threads, first->n_threads == 1 ? "" : "s");
  } else {
    weft_text_printf(out, "%s, %s", first->name, first->isa);
  }
  if (devices->n > 1) weft_text_printf(out, ", %u devices", devices->n);
  weft_text_puts(out, "\n");
  devices_tell_generations(devices, "bits    ", out);
}

/* How many requests there is memory for, of each model as if it were alone. */
static void print_room(const weft_runtime *rt, weft_text *out) {
  const char *each = rt->n_replicas > 1 ? " in each replica" : "";
  double mib = (double)rt->n_pages * (double)rt->page_bytes / (1024.0 * 1024.0);
  weft_text_printf(out, "pool    %.0f MiB of keys and values%s (--kv-mib)\n", mib, each);
  weft_text_puts(out, "room    at once for");
  for (uint32_t i = 0; i < rt->n_models; i++) {
    const weft_served_model *m = &rt->model[i];
    uint32_t room = weft_engine_room(weft_replicas_at(rt->replicas, 0), i, m->context);
    const char *comma = i == 0 ? "" : i + 1 < rt->n_models ? "," : ", or";
    weft_text_printf(out, "%s %u users of %s with %u tokens each", comma, room, m->name, m->context);
  }
  weft_text_printf(out, "%s; at most %u run (--running), and %u wait (--queue)\n", each, rt->options.running,
                   rt->options.queue);
}

void start_print_facts(const weft_config *config, const weft_runtime *rt, const char *url, bool is_open,
                       weft_text *out) {
  print_devices(&rt->devices, out);
  print_room(rt, out);
  if (weft_config_socket(config->host) != NULL) {
    weft_text_puts(out, "open    over the socket: /v1 (OpenAI), / (Anthropic, Ollama), /metrics, /health\n");
  } else {
    weft_text_printf(out, "open    %s (%sAnthropic, Ollama), %s/v1 (OpenAI), /metrics, /health\n", url,
                     config->no_page ? "" : "a page, ", url);
  }
  if (config->api_keys != NULL || config->api_key.n > 0) {
    weft_text_puts(out, "keys    on: clients send Authorization: Bearer KEY\n");
  } else {
    weft_text_printf(out, "keys    off: %s may use every model (--api-keys FILE)\n",
                     is_open ? "whoever reaches the port" : "every program on this machine that reaches it");
  }
  if (config->config_read != NULL) weft_text_printf(out, "file    options from %s\n", config->config_read);
  weft_text_printf(out,
                   "end     Ctrl-C or SIGTERM; what runs then has %u s to come to its end (--drain-seconds), a second "
                   "one cancels it\n",
                   config->drain_seconds);
}
