/* SPDX-License-Identifier: MIT */
/* weft soak: a server of our own under full load for a while: many clients of several tenants, both kinds, several
 * answers to a prompt, shared and private prompts, deadlines, clients that hang up at random, and a pool of a
 * twentieth of what they would hold at once, with a little host memory behind it, and a file behind that.
 *
 * Law: it passes when nothing broke, no request was stuck, the server's memory was flat after the first third (the
 * slope of its resident size), and after the drain every count agrees with every other: all pages free or cached,
 * every request ended once, tenants and kinds add up. */
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lab/lab.h"
#include "bench/soak/clients.h"

enum { CLIENTS = 64, FLAT_KIB = 4096, STUCK_S = 600, SAMPLES_MAX = 4096 };
enum { DEMAND_S = 10, DEMAND_STEADY_US = 2000000, DEMAND_MIB = 256, DEMAND_PART = 20 };

typedef struct soak {
  const weft_lab_config *config;
  char keys[64];
  weft_child child;
  weft_soak_server server;
  pthread_t thread[CLIENTS];
  weft_soak_client client[CLIENTS];
  uint32_t n_clients, n_samples;
  double seconds[SAMPLES_MAX], kib[SAMPLES_MAX]; /* of the server's resident memory */
  double pages, demand_pages;
  uint64_t stuck_us; /* the longest that a request was seen under way */
} soak;

/* ---- the server ---------------------------------------------------------------------------------------------- */

static bool write_keys(soak *s) {
  static const char *const limits[WEFT_SOAK_TENANTS] = {"weight=3 blocks=28", "class=high running=24",
                                                        "class=low queued=48", "tokens-per-minute=40000"};
  (void)snprintf(s->keys, sizeof s->keys, "/tmp/weft-soak-XXXXXX");
  int fd = mkstemp(s->keys);
  FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
  if (file == NULL) return false;
  bool ok = fprintf(file, "soak-operator operator\n") > 0;
  for (uint32_t i = 0; i < WEFT_SOAK_TENANTS; i++) {
    ok = fprintf(file, "%s tenant-%u %s\n", weft_soak_key(i), i, limits[i]) > 0 && ok;
  }
  return fclose(file) == 0 && ok;
}

static int start_server(soak *s, uint32_t kv_mib, const char *queue, const char *drain_seconds) {
  char mib[16], spill[sizeof s->keys + 8];
  const char *args[2 * WEFT_SOAK_MODELS + 20];
  uint32_t n = 0;
  (void)snprintf(mib, sizeof mib, "%u", kv_mib);
  (void)snprintf(spill, sizeof spill, "%s.spill", s->keys);
  for (uint32_t i = 0; i < s->config->product.models.n; i++) {
    args[n++] = "-m";
    args[n++] = s->config->product.models.item[i];
  }
  const char *const rest[] = {
      "--kv-mib",    mib,          "--context",       "448",         "--running", "256",          "--queue",
      queue,         "--api-keys", s->keys,           "--host-mib",  "4",         "--spill-file", spill,
      "--spill-mib", "32",         "--drain-seconds", drain_seconds, NULL};
  memcpy(&args[n], rest, sizeof rest);
  if (weft_child_start(&s->child, args) != 0) return WEFT_EXIT_RUNTIME;
  s->server.port = s->child.port;
  return 0;
}

static bool read_models(soak *s) {
  weft_text text = {0};
  int status = weft_client_request_as(s->child.port, weft_soak_key(0), "GET", "/v1/models", NULL, &text, 0);
  json_t *root = status == 200 ? json_loads(text.bytes, 0, NULL) : NULL, *list = json_object_get(root, "data");
  s->server.n_models = (uint32_t)json_array_size(list);
  for (uint32_t i = 0; i < s->server.n_models; i++) {
    const json_t *row = json_array_get(list, i);
    weft_soak_model *model = &s->server.model[i];
    const char *name = json_string_value(json_object_get(row, "id"));
    (void)snprintf(model->name, sizeof model->name, "%s", name == NULL ? "" : name);
    model->autoregressive = json_is_true(json_object_get(row, "autoregressive"));
    model->diffusion = json_is_true(json_object_get(row, "diffusion"));
  }
  json_decref(root);
  weft_text_free(&text);
  return s->server.n_models > 0;
}

/* Prometheus text of the server; false: it gives none. */
static bool read_metrics(const soak *s, weft_text *text) {
  weft_text_clear(text);
  int status = weft_client_request_as(s->child.port, "soak-operator", "GET", "/metrics", NULL, text, 0);
  return status == 200 && text->bytes != NULL;
}

/* ---- under load ---------------------------------------------------------------------------------------------- */

static void start_clients(soak *s, uint64_t length_us) {
  s->server.until_us = weft_clock_us() + length_us;
  for (s->n_clients = 0; s->n_clients < CLIENTS; s->n_clients++) {
    weft_soak_client *c = &s->client[s->n_clients];
    memset(c, 0, sizeof *c);
    c->server = &s->server;
    c->index = s->n_clients;
    if (weft_threads_start(&s->thread[s->n_clients], weft_soak_run_client, c, NULL) != WEFT_OK) break;
  }
}

static void join_clients(soak *s) {
  for (uint32_t i = 0; i < s->n_clients; i++) (void)pthread_join(s->thread[i], NULL); /* started above */
}

static void look_for_stuck(soak *s) {
  uint64_t now = weft_clock_us();
  for (uint32_t i = 0; i < s->n_clients; i++) {
    uint64_t since = s->client[i].asked_us;
    if (since > 0 && now > since && now - since > s->stuck_us) s->stuck_us = now - since;
  }
}

/* Watches until the clients have their last answers, or a client is stuck. */
static void watch_clients(soak *s, uint64_t length_us) {
  uint64_t start = weft_clock_us(), every = length_us / SAMPLES_MAX;
  if (every < 100000) every = 100000;
  for (bool busy = true; busy && s->stuck_us < STUCK_S * 1000000ull;) {
    (void)usleep((useconds_t)every); /* woken early is fine */
    look_for_stuck(s);
    uint64_t now = weft_clock_us();
    if (now < s->server.until_us && now > start + length_us / 3 && s->n_samples < SAMPLES_MAX) {
      s->seconds[s->n_samples] = (double)(now - start) * 1e-6;
      s->kib[s->n_samples++] = (double)weft_child_kib(&s->child, "VmRSS");
    }
    busy = now < s->server.until_us;
    for (uint32_t i = 0; i < s->n_clients; i++) busy = busy || s->client[i].asked_us > 0;
  }
}

/* Watches the pages that requests hold until they rise no more. */
static void watch_demand(soak *s, double *page_bytes) {
  weft_text text = {0};
  uint64_t rose_us = weft_clock_us();
  while (weft_clock_us() < s->server.until_us && weft_clock_us() < rose_us + DEMAND_STEADY_US &&
         read_metrics(s, &text)) {
    double pinned = weft_metric(text.bytes, "weft_pool_pages_pinned");
    *page_bytes = DEMAND_MIB * 1048576.0 / weft_metric(text.bytes, "weft_pool_pages");
    if (pinned > s->demand_pages) {
      s->demand_pages = pinned;
      rose_us = weft_clock_us();
    }
    (void)usleep(20000); /* woken early is fine */
  }
  weft_text_free(&text);
}

/* What the clients hold where there is room for all of them at once, and the MiB of a twentieth of it. */
static int measure_demand(soak *s, uint32_t *kv_mib) {
  double page_bytes = 0.0;
  int code = start_server(s, DEMAND_MIB, "4096", "0");
  if (code != 0) return code;
  if (!read_models(s)) code = weft_cli_fail(WEFT_EXIT_RUNTIME, "soak: the server names no models");
  if (code == 0) {
    start_clients(s, DEMAND_S * 1000000ull);
    watch_demand(s, &page_bytes);
  }
  s->server.until_us = 0;
  if (weft_child_stop(&s->child) != 0 && code == 0)
    code = weft_cli_fail(WEFT_EXIT_FAILED, "the server did not end well");
  join_clients(s);
  s->n_clients = 0;
  double mib = s->demand_pages * page_bytes / DEMAND_PART / 1048576.0;
  *kv_mib = mib < 1.0 ? 1 : (uint32_t)mib;
  return code;
}

/* ---- the judgement ------------------------------------------------------------------------------------------- */

/* Least squares over the samples: KiB by which the memory grew from the first to the last. */
static double growth_kib(const soak *s) {
  double n = s->n_samples, x = 0.0, y = 0.0, xx = 0.0, xy = 0.0;
  if (s->n_samples < 2) return 0.0;
  for (uint32_t i = 0; i < s->n_samples; i++) {
    x += s->seconds[i] / n;
    y += s->kib[i] / n;
  }
  for (uint32_t i = 0; i < s->n_samples; i++) {
    xx += (s->seconds[i] - x) * (s->seconds[i] - x);
    xy += (s->seconds[i] - x) * (s->kib[i] - y);
  }
  return xy / xx * (s->seconds[s->n_samples - 1] - s->seconds[0]);
}

typedef struct soak_sum {
  const char *what, *all;
  const char *part[6];
} soak_sum;

/* Counts that must add up when nothing runs. */
static uint32_t check_sums(const char *metrics) {
  static const soak_sum sums[] = {
      {"pages", "weft_pool_pages", {"weft_pool_pages_free", "weft_pool_pages_cached"}},
      {"cached pages of groups", "weft_pool_pages_cached", {"weft_group_blocks_cached"}},
      {"host pages of groups", "weft_host_pages_used", {"weft_group_blocks_host"}},
      {"requests", "weft_requests_submitted_total", {"vllm:request_success_total"}},
      {"rows",
       "weft_rows_total",
       {"weft_rows_prefill_total", "weft_rows_decode_total", "weft_rows_canvas_total", "weft_rows_commit_total"}},
      {"rows of models", "weft_rows_total", {"weft_model_rows_total"}},
      {"steps of models", "weft_steps_total", {"weft_model_steps_total"}},
      {"requests of tenants", "weft_requests_submitted_total", {"weft_tenant_requests_total"}},
      {"prompt tokens of tenants", "vllm:prompt_tokens_total", {"weft_tenant_prompt_tokens_total"}},
      {"cached tokens of tenants", "weft_cached_tokens_total", {"weft_tenant_cached_tokens_total"}},
      {"answer tokens of tenants", "vllm:generation_tokens_total", {"weft_tenant_completion_tokens_total"}},
      {"preemptions of tenants", "vllm:num_preemptions_total", {"weft_tenant_preemptions_total"}},
      {"rows of tenants", "weft_rows_total", {"weft_tenant_rows_total"}},
  };
  uint32_t n_wrong = 0;
  for (uint32_t i = 0; i < sizeof sums / sizeof *sums; i++) {
    double all = weft_metric(metrics, sums[i].all), parts = 0.0;
    for (uint32_t k = 0; sums[i].part[k] != NULL; k++) parts += weft_metric(metrics, sums[i].part[k]);
    if (all == parts) continue;
    (void)weft_cli_fail(0, "%s do not add up: %.0f, their parts %.0f", sums[i].what, all, parts);
    n_wrong += 1;
  }
  return n_wrong;
}

static uint32_t check_zeros(const char *metrics) {
  static const char *const zeros[] = {"vllm:num_requests_running",    "vllm:num_requests_waiting",
                                      "weft_tenant_requests_running", "weft_tenant_requests_waiting",
                                      "weft_pool_pages_pinned",       "weft_pool_sequences"};
  uint32_t n_wrong = 0;
  for (uint32_t i = 0; i < sizeof zeros / sizeof *zeros; i++) {
    double value = weft_metric(metrics, zeros[i]);
    if (value == 0.0) continue;
    (void)weft_cli_fail(0, "%s is %.0f after all requests ended", zeros[i], value);
    n_wrong += 1;
  }
  return n_wrong;
}

/* Waits until nothing runs: who hung up last may still be leaving. Then counts what is wrong. */
static uint32_t check_idle(soak *s) {
  weft_text text = {0};
  bool idle = false;
  for (uint32_t i = 0; i < STUCK_S * 20 && !idle && read_metrics(s, &text); i++) {
    idle = weft_metric(text.bytes, "vllm:num_requests_running") + weft_metric(text.bytes, "vllm:num_requests_waiting") +
               weft_metric(text.bytes, "weft_pool_pages_pinned") ==
           0.0;
    if (!idle) (void)usleep(50000); /* woken early is fine */
  }
  uint32_t n_wrong = text.n == 0;
  if (text.n > 0) {
    s->pages = weft_metric(text.bytes, "weft_pool_pages");
    n_wrong += check_zeros(text.bytes) + check_sums(text.bytes);
  }
  weft_text_free(&text);
  return n_wrong;
}

static void print_result(const soak *s, const weft_soak_client *sum, double growth) {
  uint32_t last = s->n_samples > 0 ? s->n_samples - 1 : 0;
  double minutes = (s->seconds[last] - s->seconds[0]) / 60.0;
  const char *format =
      s->config->product.json
          ? "{\"answered\": %llu, \"left\": %llu, \"refused\": %llu, \"expired\": %llu, \"failed\": %llu, \"pages\": "
            "%.0f, "
            "\"demand_pages\": %.0f, \"longest_s\": %.1f, \"resident_kib\": %.0f, \"growth_kib\": %.0f, "
            "\"growth_kib_per_minute\": %.1f}\n"
          : "%llu answered, %llu hung up, %llu refused, %llu expired, %llu failed; pool of %.0f pages, all at once "
            "would hold "
            "%.0f; longest wait %.1f s; %.0f KiB resident, %+.0f over the last two thirds (%+.1f a minute)\n";
  (void)printf(format, (unsigned long long)sum->n_answered, (unsigned long long)sum->n_left,
               (unsigned long long)sum->n_refused, (unsigned long long)sum->n_expired,
               (unsigned long long)sum->n_failed, s->pages, s->demand_pages, (double)s->stuck_us * 1e-6, s->kib[last],
               growth, minutes > 0.0 ? growth / minutes : 0.0);
}

static int judge_soak(const soak *s, uint32_t n_wrong) {
  weft_soak_client sum = {0};
  double growth = growth_kib(s);
  for (uint32_t i = 0; i < s->n_clients; i++) {
    sum.n_answered += s->client[i].n_answered;
    sum.n_left += s->client[i].n_left;
    sum.n_refused += s->client[i].n_refused;
    sum.n_expired += s->client[i].n_expired;
    sum.n_failed += s->client[i].n_failed;
  }
  print_result(s, &sum, growth);
  if (sum.n_failed > 0) {
    return weft_cli_fail(WEFT_EXIT_FAILED, "%llu requests broke off or got an unexpected status",
                         (unsigned long long)sum.n_failed);
  }
  if (n_wrong > 0) return weft_cli_fail(WEFT_EXIT_FAILED, "%u counts are wrong after the drain", n_wrong);
  if (growth > FLAT_KIB) return weft_cli_fail(WEFT_EXIT_FAILED, "the server's memory grew by %.0f KiB", growth);
  return sum.n_answered > 0 ? 0 : weft_cli_fail(WEFT_EXIT_FAILED, "no request was answered");
}

static int run_soak(soak *s) {
  uint64_t length_us = (uint64_t)s->config->seconds * 1000000u;
  uint32_t kv_mib = 1;
  int code = measure_demand(s, &kv_mib);
  if (code == 0) code = start_server(s, kv_mib, "128", "30");
  if (code != 0) return code;
  start_clients(s, length_us);
  watch_clients(s, length_us);
  if (s->stuck_us >= STUCK_S * 1000000ull) {
    (void)weft_child_stop(&s->child); /* the clients' connections end with it */
    join_clients(s);
    return weft_cli_fail(WEFT_EXIT_FAILED, "a request was under way for %d s", STUCK_S);
  }
  join_clients(s);
  uint32_t n_wrong = check_idle(s);
  int stopped = weft_child_stop(&s->child);
  if (stopped != 0) return weft_cli_fail(WEFT_EXIT_FAILED, "the server ended with code %d", stopped);
  return judge_soak(s, n_wrong);
}

int weft_lab_soak(const weft_config *product) {
  const weft_lab_config *config = weft_lab_of(product);
  static soak s;
  if (config->product.models.n == 0 || config->product.models.n > WEFT_SOAK_MODELS) {
    return weft_cli_fail(WEFT_EXIT_USAGE, "soak: name 1 to %d GGUF files with -m FILE", WEFT_SOAK_MODELS);
  }
  s.config = config;
  s.server.seed = config->product.sampling.seed;
  if (!write_keys(&s)) return weft_cli_fail(WEFT_EXIT_RUNTIME, "soak: no file for the keys in /tmp");
  int code = run_soak(&s);
  (void)unlink(s.keys); /* in /tmp */
  return code;
}
